// Working memory on a backend: tensors are taken one after another and given back in the opposite order, all at once.
// What a repeated call needs is kept, so that nothing is allocated inside a step once the largest has been seen.
#ifndef SHARED_MODEL_DESK_H
#define SHARED_MODEL_DESK_H

#include "kernels/ops.h"

struct workspace_chunk {
    struct buffer *memory;
    size_t size;
};

// A zeroed struct with its backend set is an empty workspace.
struct workspace {
    struct backend *backend;
    struct workspace_chunk *chunks;
    size_t count;
    size_t chunk, used; // where the next tensor goes
    size_t live, peak;  // bytes taken at present, and at most so far
};

struct workspace_mark {
    size_t chunk, used, live;
};

// *out = rows x columns elements of unknown content, dense, aligned to 64. UNAVAILABLE when there is no memory.
status workspace_alloc(struct workspace *workspace, enum element type, int64_t rows, int64_t columns,
                       struct tensor *out);

// The same, filled from the host's dense elements of that type.
status workspace_upload(struct workspace *workspace, enum element type, int64_t rows, int64_t columns, const void *host,
                        struct tensor *out);

// What has been taken so far.
struct workspace_mark workspace_save(const struct workspace *workspace);

// Gives back everything that was taken after `mark`.
void workspace_restore(struct workspace *workspace, struct workspace_mark mark);

// Frees all memory.
void workspace_release(struct workspace *workspace);

#endif
