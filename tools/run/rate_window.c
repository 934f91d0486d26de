// A short array: a sample is added every few seconds.
#include "tools/run/rate_window.h"

#include <assert.h>
#include <string.h>

void rate_window_add(struct rate_window *window, const struct rate_sample *sample, double spacing) {
    struct rate_sample *samples = window->samples;
    assert(window->count <= RATE_SAMPLES);
    if (window->count && sample->time - samples[window->count - 1].time < spacing) return;
    if (window->count == RATE_SAMPLES) memmove(samples, samples + 1, --window->count * sizeof *samples);
    samples[window->count++] = *sample;
}

const struct rate_sample *rate_window_start(const struct rate_window *window, double time, double seconds,
                                            size_t later) {
    size_t start = window->count > later ? window->count - 1 - later : 0;
    assert(window->count > 0);
    while (start > 0 && time - window->samples[start].time < seconds) start--;
    return &window->samples[start];
}
