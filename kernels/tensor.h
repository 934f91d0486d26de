// What every backend asks about the tensors that it is given. Each has a struct buffer of its own.
#ifndef KERNELS_TENSOR_H
#define KERNELS_TENSOR_H

#include "kernels/ops.h"

static inline bool tensor_none(struct tensor t) {
    return !t.buffer;
}

// No gaps between the rows.
static inline bool tensor_dense(struct tensor t) {
    return t.stride == t.columns || t.rows <= 1;
}

// Whether the view lies within a buffer of `bytes` bytes.
bool tensor_within(struct tensor t, size_t bytes);

// Whether the view has this type and shape; type -1 means F32 or BF16.
bool tensor_shaped(struct tensor t, int type, int64_t rows, int64_t columns);

// *patches = how many patches the frames make, *columns = the values of each. False if they cannot be cut into patches.
bool patch_shape_counts(const struct patch_shape *shape, int64_t *patches, int64_t *columns);

#endif
