// Talk for people, on standard error, one line a call: "PROGRAM: text". Standard output is for data alone.
#ifndef SHARED_BASE_LOG_H
#define SHARED_BASE_LOG_H

#include <stdbool.h>

// The name that stands before every line; `name` must outlive the program. CARAVAN_DEBUG=1 in the environment
// turns log_debug on.
void log_open(const char *name);

// The name given to log_open, "caravan" before that.
const char *log_name(void);

// A line for a person. Safe from any thread; one write a line.
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));

// The same, only when CARAVAN_DEBUG is set.
void log_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
