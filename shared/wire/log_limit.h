// Log lines that a peer can cause again and again: each text once a minute, and at most 16 different ones.
#ifndef SHARED_WIRE_LOG_LIMIT_H
#define SHARED_WIRE_LOG_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

enum { LOG_LIMIT_LINES = 16 };

// The lines of the last minute, by their hashes. A zeroed struct has none.
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

#endif
