// Messages for people, on standard error, one line per call: "PROGRAM: text". Standard output is for data alone.
//
// A stage of a pipeline run also names its replica and machine and puts the time in front:
// "2026-01-02T03:04:05.678Z caravan-rollout-2@gpu1: text". The log_* settings are made before other threads start.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Sets the program's name, which must outlive the program. CARAVAN_DEBUG=1 in the environment turns log_debug on.
void log_open(const char *name);

// Appends a suffix to the name in every line ("-2@gpu1"), NULL for none. At most 63 bytes are kept.
void log_suffix(const char *suffix);

// Turns the time in front of every line on or off (the default): UTC, with milliseconds.
void log_timestamps(bool on);

// Returns the part of a log line behind the time; the whole line if it begins with no time.
const char *log_skip_time(const char *line);

// Returns the name given to log_open, without the suffix; "caravan" before that.
const char *log_name(void);

// Replaces control characters by '?': a name out of a file may have line breaks or steer the terminal.
void log_clean(char *text);

// Writes a formatted line, cleaned, with one write(). Lines over 4 KiB are cut. Safe from any thread.
void log_info(const char *format, ...) __attribute__((format(printf, 1, 2)));

// The same without cleaning: of a clean text that was broken into lines for a terminal.
void log_lines(const char *format, ...) __attribute__((format(printf, 1, 2)));

// The same, only if CARAVAN_DEBUG is set.
void log_debug(const char *format, ...) __attribute__((format(printf, 1, 2)));

enum { LOG_LIMIT_LINES = 16 };

// Lines that a peer can cause again and again: each text once a minute, and at most 16 different ones. These are the
// lines of the last minute, by their hashes; a zeroed struct has none.
struct log_limit {
    struct {
        uint64_t hash;
        int64_t until; // milliseconds; 0: free
    } lines[LOG_LIMIT_LINES];
};

// Writes a formatted line to the log unless that was done less than a minute ago or too many others were written since.
// Returns whether it was written. `now_ms` is on a monotonic clock.
bool log_limited(struct log_limit *limit, int64_t now_ms, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
