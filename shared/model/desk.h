// Working memory on a backend: tensors are taken one after another and given back in the opposite order, all at once.
// What a repeated call needs is kept, so that nothing is allocated inside a step once the largest has been seen.
#ifndef SHARED_MODEL_DESK_H
#define SHARED_MODEL_DESK_H

#include "kernels/ops.h"

typedef struct desk_chunk {
    buffer *memory;
    size_t size;
} desk_chunk;

// A zeroed struct with its backend set is an empty desk.
typedef struct desk {
    backend *backend;
    desk_chunk *chunks;
    size_t count;
    size_t chunk, used; // where the next tensor goes
    size_t live, peak;  // bytes taken at present, and at most so far
} desk;

typedef struct desk_mark {
    size_t chunk, used, live;
} desk_mark;

// *out = rows x columns elements of unknown content, dense, aligned to 64. SERVICE when there is no memory.
status desk_take(desk *desk, element type, int64_t rows, int64_t columns, tensor *out);

// The same, filled from the host's dense elements of that type.
status desk_put(desk *desk, element type, int64_t rows, int64_t columns, const void *host, tensor *out);

// What has been taken so far.
desk_mark desk_here(const desk *desk);

// Gives back everything that was taken after `mark`.
void desk_back(desk *desk, desk_mark mark);

// Frees all memory.
void desk_release(desk *desk);

#endif
