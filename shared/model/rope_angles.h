// The cosines and sines of the rotary position embedding, which the operation `rope` reads by position id.
//
// They are computed on the host, once, so that they have the same bits on every backend. The table grows when a larger
// position comes. Growing gives it a new place in memory and leaves the values as they were.
#ifndef SHARED_MODEL_ROPE_ANGLES_H
#define SHARED_MODEL_ROPE_ANGLES_H

#include <stdbool.h>

#include "kernels/ops.h"

// An architecture sets the last four, and the sections of the table; the table itself begins empty.
struct rope_angles {
    struct rope_table table; // valid until the next rope_angles_reserve that grows it
    struct buffer *values;   // of the table
    double theta;
    int pairs;    // D/2
    int period;   // pair j has the frequency theta^(-(j mod period) / period)
    bool rounded; // to bfloat16
};

// Makes the table at least `positions` long. UNAVAILABLE when memory is short; the table then stays.
status rope_angles_reserve(struct rope_angles *angles, struct backend *backend, int64_t positions);

// Returns the bytes of a table for positions below `positions`.
size_t rope_angles_bytes(int pairs, int64_t positions);

// Frees the table. A zeroed struct is fine.
void rope_angles_release(struct rope_angles *angles, struct backend *backend);

#endif
