// Working memory on a backend. Tensors are allocated one after another and freed in the opposite order, many at a time,
// by going back to a mark. The memory itself is kept for the next call, so that nothing is allocated inside a step once
// the largest step has been seen.
#pragma once

#include <stdbool.h>

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
    size_t live, peak;  // bytes allocated now, and the most so far
    size_t expected;    // of the largest use that was announced
};

struct workspace_mark {
    size_t chunk, used, live;
};

// *out = rows x columns elements of undefined content, dense, at a multiple of 256 bytes of its buffer.
status workspace_alloc(struct workspace *workspace, enum element type, int64_t rows, int64_t columns,
                       struct tensor *out);

// Allocates the same and uploads the host's dense elements of that type.
status workspace_upload(struct workspace *workspace, enum element type, int64_t rows, int64_t columns, const void *host,
                        struct tensor *out);

// Allocates the memory now that the largest use so far needs, so that the next one like it allocates nothing. Nothing
// may be in use. UNAVAILABLE when memory is short.
status workspace_reserve(struct workspace *workspace);

// Announces a use of about so many bytes. Nothing may be in use. Memory that is smaller is freed, so that the next
// allocation makes one chunk for all of it.
void workspace_expect(struct workspace *workspace, size_t bytes);

// Returns the size of the first chunk, which is made for that many bytes.
size_t workspace_chunk_size(size_t bytes);

// Returns a mark of everything that is allocated now.
struct workspace_mark workspace_save(const struct workspace *workspace);

// Frees everything that was allocated after the mark.
void workspace_restore(struct workspace *workspace, struct workspace_mark mark);

// Returns the bytes of all its memory, in use or not.
size_t workspace_size(const struct workspace *workspace);

// Frees all memory.
void workspace_release(struct workspace *workspace);

// A key/value cache of one layer that is reused by every block of every pass. A zeroed struct is empty.
struct kv_scratch {
    struct kv_cache *cache;
    int64_t rows;
};

// Makes room for at least `rows` rows of keys and values of a qkv of `type`, which is the same in every call.
status kv_scratch_reserve(struct kv_scratch *kv, struct backend *backend, enum element type, int64_t rows,
                          struct heads heads);

// Frees the cache.
void kv_scratch_release(struct kv_scratch *kv, struct backend *backend);

// ---- rotary angles ----

// The cosines and sines of the rotary position embedding, which the operation `rope` reads by position id.
//
// They are computed on the host, once, so that they have the same bits on every backend. The table grows when a larger
// position comes. Growing gives it a new place in memory and leaves the values as they were.

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
