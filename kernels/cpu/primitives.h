// oneDNN's primitives for products [rows, inner] x [inner, columns] -> float32 [rows, columns], kept by shape.
//
// Each runs in the thread that calls it and allocates nothing. Only this file's source sees oneDNN.
#ifndef KERNELS_CPU_PRIMITIVES_H
#define KERNELS_CPU_PRIMITIVES_H

#include "kernels/ops.h"

enum { packed_block = 64 }; // columns of the right side that lie packed together

struct primitives;
struct kept; // a primitive

// How the right side lies packed, for one element type.
struct packed_layout {
    bool usable;     // the type can be computed
    bool blocked;    // oneDNN's own blocks; otherwise plain [inner, 64] for each 64 columns
    int64_t pair;    // inner elements side by side
    int64_t unit;    // inner is padded to a multiple of it
    int64_t rows;    // rows of a product must be a multiple of it
    int64_t columns; // of a product, at most
};

struct primitive_shape {
    enum element type;
    int64_t rows, columns, inner; // columns: a multiple of 64
};

// For `threads` threads. UNAVAILABLE when oneDNN cannot start or memory is short.
status primitives_new(struct primitives **out, int threads);

// NULL is fine; sets *primitives to NULL.
void primitives_free(struct primitives **primitives);

// The layout for F32 or BF16.
const struct packed_layout *primitives_layout(const struct primitives *primitives, enum element type);

// The primitive for a shape; valid until some hundred others have been asked for.
status primitives_find(struct primitives *primitives, const struct primitive_shape *shape, struct kept **out);

// Bytes of scratch memory that a call needs.
size_t kept_scratch(const struct kept *kept);

// out = in x matrix, all dense (the matrix packed), in the calling thread, which is number `thread`. Whether oneDNN
// did.
bool kept_run(const struct primitives *primitives, const struct kept *kept, int thread, const void *in,
              const void *matrix, float *out, void *scratch);

#endif
