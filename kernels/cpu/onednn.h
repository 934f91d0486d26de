// oneDNN's matrix products [rows, inner] x [inner, columns] -> float32 [rows, columns], cached by shape.
//
// A product runs in the thread that calls it and allocates nothing. This is not a general wrapper of oneDNN: no other
// file sees oneDNN's types.
#pragma once

#include "kernels/ops.h"

enum {
    PACKED_BLOCK = 64,       // columns of the right-hand matrix that are packed together
    MAX_PACKED_COLUMNS = 512 // the most columns of one product
};

struct onednn; // the library's handles and the cache of products
struct matmul; // a product of one shape, compiled by oneDNN

// How the right-hand matrix is packed, for one element type.
struct packed_layout {
    bool usable;      // oneDNN can compute in the type
    bool blocked;     // oneDNN's own blocked format; otherwise plain [inner, 64] for each 64 columns
    int64_t pair;     // inner elements that are interleaved
    int64_t unit;     // inner is padded to a multiple of it
    int64_t rows;     // the rows of a product must be a multiple of it,
    int64_t rows_min; // and not fewer than this
    int64_t columns;  // the most columns of a product
};

struct matmul_shape {
    enum element type;
    int64_t rows, columns, inner; // columns: a multiple of 64
};

// For `threads` threads. The caller frees it with onednn_free. UNAVAILABLE when oneDNN cannot start or memory is short.
status onednn_new(struct onednn **out, int threads);

// NULL is fine; sets *onednn to NULL.
void onednn_free(struct onednn **onednn);

// The layout for F32 or BF16, valid as long as `onednn`.
const struct packed_layout *onednn_layout(const struct onednn *onednn, enum element type);

// *out = the product of a shape, from the cache or newly compiled. It belongs to the cache and stays valid until at
// least 500 other shapes have been asked for. UNAVAILABLE when memory is short; BUG when oneDNN lacks a packed product.
status onednn_matmul(struct onednn *onednn, const struct matmul_shape *shape, struct matmul **out);

// Bytes of scratch memory that matmul_run needs.
size_t matmul_scratch(const struct matmul *matmul);

// out = in x matrix, in the calling thread, which is number `thread`. All are dense, and `matrix` is packed. oneDNN
// takes pointers that are not const, but only reads `in` and `matrix`. Returns whether oneDNN succeeded.
bool matmul_run(const struct onednn *onednn, const struct matmul *matmul, int thread, void *in, void *matrix,
                float *out, void *scratch);
