// Products by cuBLASLt, where its library is there and has an algorithm that gives the bits of the canonical product
// (products.h). Everything works without it, slower.
//
// The number of tokens of a pass is any, and a row's bits may not depend on it. So an algorithm serves only if it is
// admitted: it does not split a sum, and at several numbers of tokens it gives the canonical bits (admit.cu). What was
// found out is kept on disk (admitted.c).
#ifndef KERNELS_CUDA_LT_H
#define KERNELS_CUDA_LT_H

#include <cublasLt.h>

#include "kernels/cuda/products.h"

enum {
    LT_CANDIDATES = 16,   // algorithms that are tried for a shape
    LT_LEAST_TOKENS = 65, // with fewer the own product serves
};

enum lt_flag { LT_A_TRANSPOSED = 1, LT_B_TRANSPOSED = 2, LT_OUT_F32 = 4, LT_BIAS = 8, LT_ADD = 16 };

// A class of products. The number of tokens, which is a's outer length, or the inner length in a weight's gradient,
// stands for all from half of it, without that half, to itself: it is a power of two.
struct lt_shape {
    int64_t a_outer, b_outer, inner;
    int64_t flags; // of enum lt_flag
};

// What is known of a shape.
struct lt_entry {
    struct lt_shape shape;
    bool admitted;
    cublasLtMatmulAlgo_t algo; // if admitted
};

struct lt;       // the library
struct admitted; // the shapes that have been tried

#ifdef __cplusplus
extern "C" {
#endif

// Sets cuda->lt to the library, or to NULL if there is none. $CARAVAN_CUBLASLT names its file; "none" is no library.
// UNAVAILABLE if a named one cannot be used.
status lt_open(struct cuda_backend *cuda);

// The library with its version, "cuBLASLt 130100"; NULL: there is none. Valid as long as cuda->lt.
const char *lt_name(const struct cuda_backend *cuda);

// Sets cuda->lt to NULL, which is fine before too.
void lt_close(struct cuda_backend *cuda);

// Computes a product of bfloat16 if an algorithm is admitted for its shape, which is found out the first time; *done =
// whether it did. Not while a graph is recorded: a trial allocates and waits, and the library may load a kernel. The
// own product then gives the same bits.
status lt_product(struct cuda_backend *cuda, const struct product *product, bool *done);

// candidates[0..*count) = the algorithms that cuBLASLt proposes for a product and that do not say that they split sums,
// in its order.
void lt_candidates(struct lt *lt, const struct product *product, cublasLtMatmulAlgo_t candidates[LT_CANDIDATES],
                   int *count);

// Starts a product with an algorithm. False if cuBLASLt refuses; then nothing has happened.
bool lt_run(struct cuda_backend *cuda, const struct product *product, const cublasLtMatmulAlgo_t *algo);

// Tries the algorithms for the shape of *entry and fills in the rest of it (admit.cu). *tried = false if memory is too
// short. Waits; what it allocates is freed.
status admit_algorithm(struct cuda_backend *cuda, struct lt_entry *entry, bool *tried);

// ---- admitted.c ----

// *out = what is kept on disk for this GPU, its driver, this version of cuBLASLt and this build of the plug-in. The
// caller frees it with admitted_free.
status admitted_open(struct admitted **out, const struct cuda_backend *cuda, size_t lt_version);

// NULL is fine; sets *admitted to NULL.
void admitted_free(struct admitted **admitted);

// Returns the entry of a shape, NULL if it has none; valid until the next admitted_add.
const struct lt_entry *admitted_find(const struct admitted *admitted, const struct lt_shape *shape);

// Adds the entry of a shape that has none, and with `keep` to the file too, if that can be written.
status admitted_add(struct admitted *admitted, const struct lt_entry *entry, bool keep);

// *shapes = how many there are; returns how many of them have an algorithm.
int admitted_count(const struct admitted *admitted, int *shapes);

#ifdef __cplusplus
}
#endif

#endif
