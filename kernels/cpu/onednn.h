// oneDNN's matrix products [rows, inner] x [inner, columns] -> float32 [rows, columns], cached by shape.
//
// A product runs in the thread that calls it and allocates nothing. This is not a general wrapper of oneDNN: no other
// file sees oneDNN's types.
//
// Only oneDNN's packed products (brgemm) are used, in which a row's sum has one order whatever the other rows. In its
// code for processors without AVX-512 it has not: there gemm.c computes.
#pragma once

#include "kernels/ops.h"

enum {
    PACKED_BLOCK = 64,       // columns of the right-hand matrix that are packed together
    MAX_PACKED_COLUMNS = 512 // the most columns of one product
};

struct onednn; // the library's handles and the cache of products
struct matmul; // a product of one shape, compiled by oneDNN

struct matmul_shape {
    enum element type;
    int64_t rows, columns, inner; // rows: at least onednn_min_rows(); columns: a multiple of 64
};

// For `threads` threads. The caller frees it with onednn_free. UNAVAILABLE when oneDNN cannot start or memory is short.
status onednn_new(struct onednn **out, int threads);

// NULL is fine; sets *onednn to NULL.
void onednn_free(struct onednn **onednn);

// Whether oneDNN has packed products of F32 or BF16 on this processor. With CARAVAN_ONEDNN=none in the environment it
// has none, as on a processor without AVX-512.
bool onednn_has(const struct onednn *onednn, enum element type);

// The fewest rows of a product.
int64_t onednn_min_rows(void);

// *out = the product of a shape of a type that onednn_has, from the cache or newly compiled. It belongs to the cache
// and stays valid until at least 500 other shapes have been asked for. UNAVAILABLE when memory is short; BUG when
// oneDNN lacks a packed product.
status onednn_matmul(struct onednn *onednn, const struct matmul_shape *shape, struct matmul **out);

// Bytes of scratch memory that matmul_run needs.
size_t matmul_scratch(const struct matmul *matmul);

// out = in x matrix, in the calling thread, which is number `thread`. All are dense, and `matrix` is packed. oneDNN
// takes pointers that are not const, but only reads `in` and `matrix`. Returns whether oneDNN succeeded.
bool matmul_run(const struct onednn *onednn, const struct matmul *matmul, int thread, void *in, void *matrix,
                float *out, void *scratch);
