// Weights, products of activations with them, and the gradients of these products. Nothing is packed: a weight is a
// view of the parameters.
#include <assert.h>
#include <stdlib.h>

#include "kernels/cuda/products.h"
#include "kernels/cuda/rows.h"

enum {
    SUM_ROWS = 128, // rows that one thread adds up
    SUM_THREADS = 128,
};

status product_run(struct cuda_backend *cuda, const struct product *p) {
    assert(p->a.inner == p->b.inner);
    if (p->a.outer == 0 || p->b.outer == 0) return OK;
    if (p->type == ELEMENT_F32) return gemm_f32(cuda, p);
    bool done;
    TRY(lt_product(cuda, p, &done));
    if (done) return OK;
    return gemm_skinny_fits(p) ? gemm_skinny(cuda, p) : gemm_bf16(cuda, p);
}

status product_logits(struct cuda_backend *cuda, struct tensor logits, struct tensor in, struct tensor plain) {
    struct product p = product_of(logits, operand_of(in, false), operand_of(plain, false), in.type);
    return product_run(cuda, &p);
}

status cuda_weight_new(struct backend *backend, struct weight **out, struct tensor plain, bool prepack) {
    *out = NULL;
    CHECK(tensor_fits(plain) && plain.rows > 0 && plain.columns > 0);
    TRY(backend->ops->supports(backend, plain.type));
    NEW(out, 1);
    (*out)->plain = plain;
    (*out)->prepacked = prepack;
    return OK;
}

void cuda_weight_free(struct backend *backend, struct weight **weight) {
    (void)backend;
    free(*weight);
    *weight = NULL;
}

status cuda_linear(struct backend *backend, struct tensor out, struct tensor in, struct weight *w, struct tensor bias,
                   bool add) {
    struct tensor plain = w->plain;
    CHECK(tensor_is(out, -1, in.rows, plain.rows) && tensor_is(in, (int)plain.type, in.rows, plain.columns));
    CHECK(tensor_none(bias) || (tensor_is(bias, -1, 1, plain.rows) && !add));
    struct product p = product_of(out, operand_of(in, false), operand_of(plain, false), in.type);
    p.bias = tensor_row(bias, 0);
    p.bias_type = bias.type;
    p.add = add;
    return product_run(cuda_of(backend), &p);
}

status cuda_linear_grad_input(struct backend *backend, struct tensor grad_in, struct tensor grad_out, struct weight *w,
                              bool add) {
    struct tensor plain = w->plain;
    CHECK(!w->prepacked && tensor_is(grad_in, -1, grad_out.rows, plain.columns));
    CHECK(tensor_is(grad_out, (int)plain.type, grad_in.rows, plain.rows));
    struct product p = product_of(grad_in, operand_of(grad_out, false), operand_of(plain, true), plain.type);
    p.add = add;
    return product_run(cuda_of(backend), &p);
}

// sums[block][column] = the sum of column `column` over rows [block * SUM_ROWS, (block + 1) * SUM_ROWS), in order.
__global__ void __launch_bounds__(SUM_THREADS)
    linear_sum_rows_kernel(float *sums, struct operand in, enum element type) {
    int64_t column = (int64_t)blockIdx.x * SUM_THREADS + threadIdx.x, first = (int64_t)blockIdx.y * SUM_ROWS;
    if (column >= in.inner) return;
    int64_t end = first + SUM_ROWS < in.outer ? first + SUM_ROWS : in.outer;
    float sum = 0;
    for (int64_t row = first; row < end; row++)
        sum = add_rn(sum, element_read(in.data, type, row * in.stride + column));
    sums[blockIdx.y * in.inner + column] = sum;
}

// grad_bias[column] += the sum over the blocks, in order.
__global__ void __launch_bounds__(SUM_THREADS)
    linear_add_sums_kernel(float *grad_bias, const float *sums, int64_t columns, int64_t blocks) {
    int64_t column = (int64_t)blockIdx.x * SUM_THREADS + threadIdx.x;
    if (column >= columns) return;
    float sum = 0;
    for (int64_t block = 0; block < blocks; block++) sum = add_rn(sum, sums[block * columns + column]);
    grad_bias[column] = add_rn(grad_bias[column], sum);
}

status cuda_linear_grad_weight(struct backend *backend, struct tensor grad_weight, struct tensor grad_bias,
                               struct tensor grad_out, struct tensor in) {
    struct cuda_backend *cuda = cuda_of(backend);
    CHECK(tensor_is(grad_weight, -1, grad_out.columns, in.columns));
    CHECK(tensor_is(in, -1, grad_out.rows, in.columns));
    CHECK(tensor_is(grad_out, (int)in.type, in.rows, grad_out.columns));
    CHECK(tensor_none(grad_bias) || tensor_is(grad_bias, ELEMENT_F32, 1, grad_out.columns));
    if (in.rows == 0 || grad_out.columns == 0) return OK;
    if (!tensor_none(grad_bias)) {
        int64_t blocks = (grad_out.rows + SUM_ROWS - 1) / SUM_ROWS;
        unsigned across = (unsigned)((grad_out.columns + SUM_THREADS - 1) / SUM_THREADS);
        float *sums;
        TRY(cuda_scratch(cuda, CUDA_SCRATCH_SUMS, (size_t)(blocks * grad_out.columns) * sizeof *sums, &sums));
        LAUNCH(linear_sum_rows_kernel, dim3(across, (unsigned)blocks), SUM_THREADS, 0, cuda->stream, sums,
               operand_of(grad_out, false), grad_out.type);
        LAUNCH(linear_add_sums_kernel, across, SUM_THREADS, 0, cuda->stream, (float *)tensor_row(grad_bias, 0), sums,
               grad_out.columns, blocks);
        TRY(cuda_launched("linear_grad_weight"));
    }
    struct product p = product_of(grad_weight, operand_of(grad_out, true), operand_of(in, true), in.type);
    p.add = true;
    return product_run(cuda, &p);
}
