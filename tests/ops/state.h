// What the harness keeps between calls, for harness.c, timing.c and main.c.
#pragma once

#include "tests/ops/harness.h"

struct placed_tensor {
    struct buffer *buffer;
    size_t bytes;
    struct tensor view;
};

struct harness_state {
    uint64_t seed, stream, drawn;   // stream: of the suite
    const struct version *versions; // of the device
    size_t version_count;
    const char *suite, *version, *first_version;
    char name[256]; // of the case
    struct placed_tensor placed[64];
    size_t placed_count;
    void *blocks[256];
    size_t block_count;
    uint64_t *digests; // of the first version's results, in order
    size_t digest_count, digest_capacity, digest_next;
    int cases, failed, shown;
    int threads;                      // timing: 0 for all
    bool busy;                        // time one thread by processor time, for a machine with other load
    double peak_flops[2], peak_bytes; // F32, BF16; a second
    double seconds;                   // spent on each timing
};

// Ends the last case of a suite.
void harness_end(struct harness *h);

// Counts and prints a failure.
void harness_failed(struct harness *h, const char *what);

// Set-up that must not fail: exits.
void harness_must(status result);

// Measures the machine's peaks with `threads` threads.
void harness_peaks(struct harness_state *s);
