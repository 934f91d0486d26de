// Matrix products on the device, and weights.
//
// The canonical product of bfloat16: each output is one float32 accumulator, to which the inner elements are added in
// steps of sixteen, k = 0, 16, 32 ..., by mma.sync m16n8k16; past the end they are zeros. Neither the tiles nor the
// other rows and columns of the call change an output's bits. A product of float32 is one chain of fused
// multiply-adds in the order of k.
#pragma once

#include "kernels/cuda/cuda.h"

// A matrix in device memory. Its rows are the outer index of the product (M or N) and its columns the inner one (k), or
// the other way round if it is `transposed`. Two consecutive rows start `stride` elements apart.
struct operand {
    const void *data;
    int64_t outer, inner, stride;
    bool transposed;
};

// out[M,N] = a b^T, plus bias[N] unless it is NULL, plus `out` as it was if `add`. The sums are float32 and rounded
// once. With `add`, a product of bfloat16 is rounded to the output's type before it is added too, as cuBLASLt does it.
struct product {
    struct operand a, b;
    enum element type; // of a and b: F32 or BF16
    void *out;
    enum element out_type; // F32 or BF16
    int64_t out_stride;
    const void *bias;
    enum element bias_type; // F32 or BF16
    bool add;
};

// A matrix of products: a view of the parameters.
struct weight {
    struct tensor plain;
    bool prepacked; // as the caller asked; nothing is packed on this backend
};

// The operand that a tensor is.
static inline struct operand operand_of(struct tensor t, bool transposed) {
    struct operand out = {tensor_row(t, 0), transposed ? t.columns : t.rows, transposed ? t.rows : t.columns, t.stride,
                          transposed};
    return out;
}

// A product of operands of `type` whose outputs are a whole tensor; the caller adds a bias or sets `add`.
static inline struct product product_of(struct tensor out, struct operand a, struct operand b, enum element type) {
    struct product p = {a, b, type, tensor_row(out, 0), out.type, out.stride, NULL, ELEMENT_F32, false};
    return p;
}

#ifdef __cplusplus
extern "C" {
#endif

// Every row of a bfloat16 operand begins at a multiple of so many bytes: 16, 8 or 2.
int operand_alignment(const struct operand *operand);

// Computes a product with the kernel that its type and shape ask for, or with an algorithm of cuBLASLt that gives the
// same bits (cublaslt.cu). Nothing happens if it has no outputs.
status product_run(struct cuda_backend *cuda, const struct product *product);

// logits F32 [T,V] = in[T,C] plain[V,C]^T.
status product_logits(struct cuda_backend *cuda, struct tensor logits, struct tensor in, struct tensor plain);

// The canonical product of bfloat16, of any shape, by the own kernel; if `a` is transposed, `b` is too.
status gemm_bf16(struct cuda_backend *cuda, const struct product *product);

// Loads the kernels of gemm_bf16 and gemm_skinny before products are recorded: cuBLASLt may have computed all of them
// so far.
void gemm_bf16_load(void);

// The product of float32, of any shape.
status gemm_f32(struct cuda_backend *cuda, const struct product *product);

// Whether gemm_skinny takes this product: bfloat16, at most 64 rows of `a`, aligned, nothing transposed.
bool gemm_skinny_fits(const struct product *product);

// The canonical product for few rows of `a`.
status gemm_skinny(struct cuda_backend *cuda, const struct product *product);

// ---- cuBLASLt (cublaslt.cu) ----

// Sets cuda->lt to the library, or to NULL if there is none. $CARAVAN_CUBLASLT names its file; "none" is no library.
// UNAVAILABLE if a named one cannot be used.
status lt_open(struct cuda_backend *cuda);

// The library with its version, "cuBLASLt 130100"; NULL: there is none. Valid as long as cuda->lt.
const char *lt_name(const struct cuda_backend *cuda);

// Sets cuda->lt to NULL, which is fine before too.
void lt_close(struct cuda_backend *cuda);

// Computes a product of bfloat16 if an algorithm is admitted for its shape, which is found out the first time; *done =
// whether it did. While a graph is recorded only what this process has computed so before: a trial allocates and waits,
// and the library may load a kernel. The own product gives the same bits.
status lt_product(struct cuda_backend *cuda, const struct product *product, bool *done);

#ifdef __cplusplus
}
#endif
