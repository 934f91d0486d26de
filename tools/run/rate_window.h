// The counters of a process in the last minutes, from which rates follow that are those of now and not of the whole
// run.
#ifndef TOOLS_RUN_RATE_WINDOW_H
#define TOOLS_RUN_RATE_WINDOW_H

#include <stddef.h>
#include <stdint.h>

enum { RATE_SAMPLES = 32 };

struct rate_sample {
    double time; // seconds, of the process's own clock
    int64_t done, tokens, worked;
    double busy, work_seconds;
};

// A zeroed struct is an empty window.
struct rate_window {
    struct rate_sample samples[RATE_SAMPLES]; // the oldest first
    size_t count;
};

// Adds a sample unless the newest one is less than `spacing` seconds older. A full window loses its oldest one.
void rate_window_add(struct rate_window *window, const struct rate_sample *sample, double spacing);

// Returns the sample from which on to count at `time`: the newest one that is at least `seconds` old and has at least
// `later` samples after it, else the oldest one. The window is not empty. Valid until the next rate_window_add.
const struct rate_sample *rate_window_start(const struct rate_window *window, double time, double seconds,
                                            size_t later);

#endif
