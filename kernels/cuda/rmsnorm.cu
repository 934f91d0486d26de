// RMSNorm with the residual sum before it, and its gradient. How its work is divided is said in norm.h.
#include "kernels/cuda/norm.h"

struct rmsnorm_args {
    struct device_rows out, x, delta, scale;
    float *rstd; // or NULL
    int64_t rstd_stride;
    int64_t columns;
    float epsilon;
};

// values = scale, rounded to the type of x.
template <int layout>
DEVICE void rmsnorm_scale(float values[octet], const struct device_rows &scale, const struct device_rows &x, int64_t i,
                          int64_t columns) {
    octet_load<LAYOUT_ANY>(values, scale, 0, i, columns);
    octet_round<layout>(values, x);
}

template <int layout> __global__ void __launch_bounds__(norm_most_threads) rmsnorm_kernel(struct rmsnorm_args a) {
    int64_t row = blockIdx.x;
    float x[norm_octets][octet], delta[norm_octets][octet], squares = 0;
#pragma unroll
    for (int k = 0; k < norm_octets; k++) {
        int64_t i = norm_column(k);
        if (i >= a.columns) continue;
        octet_load<layout>(x[k], a.x, row, i, a.columns);
        if (a.delta.data) octet_load<layout>(delta[k], a.delta, row, i, a.columns);
    }
#pragma unroll
    for (int k = 0; k < norm_octets; k++) {
        int64_t i = norm_column(k);
        if (i >= a.columns) continue;
        if (a.delta.data) {
#pragma unroll
            for (int e = 0; e < octet; e++) x[k][e] = add_rn(x[k][e], delta[k][e]);
            octet_round<layout>(x[k], a.x);
            octet_store<layout>(a.x, row, i, a.columns, x[k]);
        }
#pragma unroll
        for (int e = 0; e < octet; e++) squares = fma_rn(x[k][e], x[k][e], squares);
    }
    squares = block_sum(squares, (float *)dynamic_shared());
    float rstd = rsqrt_rn(add_rn(div_rn(squares, (float)a.columns), a.epsilon));
    if (a.rstd && threadIdx.x == 0) a.rstd[row * a.rstd_stride] = rstd;
#pragma unroll
    for (int k = 0; k < norm_octets; k++) {
        int64_t i = norm_column(k);
        if (i >= a.columns) continue;
        float scale[octet];
        rmsnorm_scale<layout>(scale, a.scale, a.x, i, a.columns);
#pragma unroll
        for (int e = 0; e < octet; e++) x[k][e] = mul_rn(x[k][e], rstd);
        octet_round<layout>(x[k], a.x);
#pragma unroll
        for (int e = 0; e < octet; e++) x[k][e] = mul_rn(scale[e], x[k][e]);
        octet_store<layout>(a.out, row, i, a.columns, x[k]);
    }
}

status cuda_rmsnorm(struct backend *backend, struct tensor out, struct tensor x, struct tensor delta,
                    struct tensor scale, float epsilon, struct tensor rstd) {
    struct cuda_backend *cuda = cuda_of(backend);
    CHECK(tensor_is(x, -1, x.rows, x.columns) && tensor_is(out, -1, x.rows, x.columns));
    CHECK(tensor_none(delta) || tensor_is(delta, -1, x.rows, x.columns));
    CHECK(tensor_is(scale, -1, 1, x.columns) && x.columns <= norm_most_columns);
    CHECK(tensor_none(rstd) || tensor_is(rstd, ELEMENT_F32, x.rows, 1));
    if (x.rows == 0 || x.columns == 0) return OK;
    struct device_rows operands[] = {device_rows_of(out), device_rows_of(x), device_rows_of(delta)};
    struct rmsnorm_args args = {
        operands[0], operands[1], operands[2], device_rows_of(scale), (float *)tensor_row(rstd, 0),
        rstd.stride, x.columns,   epsilon};
    unsigned threads = norm_threads(x.columns);
    LAUNCH_LAYOUT(layout_of(x.columns, operands, 3), rmsnorm_kernel, (unsigned)x.rows, threads,
                  threads / 32 * sizeof(float), cuda->stream, args);
    return cuda_launched("rmsnorm");
}

// ---- the gradient ----

struct rmsnorm_grad_args {
    struct device_rows grad_x, grad_out, x, scale;
    const float *rstd;
    int64_t rstd_stride;
    float *sums; // [blocks,C], the gradient of scale from each block of rows; or NULL
    int64_t rows, columns, block_rows;
};

// With n = x rstd and g = grad_out scale: grad_x += rstd (g - n mean(g n)), sums += grad_out round(n).
template <int layout>
__global__ void __launch_bounds__(norm_most_threads) rmsnorm_grad_kernel(struct rmsnorm_grad_args a) {
    float *shared = (float *)dynamic_shared();
    int64_t first = (int64_t)blockIdx.x * a.block_rows;
    int64_t end = first + a.block_rows < a.rows ? first + a.block_rows : a.rows;
    float sums[norm_octets][octet];
#pragma unroll
    for (int j = 0; j < norm_octets * octet; j++) sums[j / octet][j % octet] = 0;
    for (int64_t row = first; row < end; row++) {
        float rstd = a.rstd[row * a.rstd_stride], products = 0;
        float g[norm_octets][octet], normal[norm_octets][octet];
#pragma unroll
        for (int k = 0; k < norm_octets; k++) {
            int64_t i = norm_column(k);
            if (i >= a.columns) continue;
            octet_load<layout>(g[k], a.grad_out, row, i, a.columns);
            octet_load<layout>(normal[k], a.x, row, i, a.columns);
        }
#pragma unroll
        for (int k = 0; k < norm_octets; k++) {
            int64_t i = norm_column(k);
            if (i >= a.columns) continue;
            float scale[octet], rounded[octet];
            rmsnorm_scale<layout>(scale, a.scale, a.x, i, a.columns);
#pragma unroll
            for (int e = 0; e < octet; e++) rounded[e] = normal[k][e] = mul_rn(normal[k][e], rstd);
            octet_round<layout>(rounded, a.x);
#pragma unroll
            for (int e = 0; e < octet; e++) {
                sums[k][e] = fma_rn(g[k][e], rounded[e], sums[k][e]);
                g[k][e] = mul_rn(g[k][e], scale[e]);
                products = fma_rn(g[k][e], normal[k][e], products);
            }
        }
        products = block_sum(products, shared);
        float negative_mean = div_rn(-products, (float)a.columns);
#pragma unroll
        for (int k = 0; k < norm_octets; k++) {
            int64_t i = norm_column(k);
            if (i >= a.columns) continue;
            float grad[octet];
            octet_load<LAYOUT_ANY>(grad, a.grad_x, row, i, a.columns);
#pragma unroll
            for (int e = 0; e < octet; e++)
                grad[e] = add_rn(grad[e], mul_rn(rstd, fma_rn(normal[k][e], negative_mean, g[k][e])));
            octet_store<LAYOUT_ANY>(a.grad_x, row, i, a.columns, grad);
        }
        __syncthreads(); // before `shared` is used again
    }
    struct device_rows partial = {(char *)a.sums, a.columns * (int64_t)sizeof(float), ELEMENT_F32, false};
#pragma unroll
    for (int k = 0; k < norm_octets; k++) {
        int64_t i = norm_column(k);
        if (a.sums && i < a.columns) octet_store<LAYOUT_ANY>(partial, blockIdx.x, i, a.columns, sums[k]);
    }
}

status cuda_rmsnorm_grad(struct backend *backend, struct tensor grad_x, struct tensor grad_scale,
                         struct tensor grad_out, struct tensor x, struct tensor scale, struct tensor rstd) {
    struct cuda_backend *cuda = cuda_of(backend);
    CHECK(tensor_is(x, -1, x.rows, x.columns) && tensor_is(grad_x, -1, x.rows, x.columns));
    CHECK(tensor_is(grad_out, -1, x.rows, x.columns) && tensor_is(scale, -1, 1, x.columns));
    CHECK(tensor_is(rstd, ELEMENT_F32, x.rows, 1) && x.columns <= norm_most_columns);
    CHECK(tensor_none(grad_scale) || tensor_is(grad_scale, ELEMENT_F32, 1, x.columns));
    if (x.rows == 0 || x.columns == 0) return OK;
    struct device_rows operands[] = {device_rows_of(grad_out), device_rows_of(x)};
    unsigned threads = norm_threads(x.columns);
    int64_t block_rows = norm_block_rows(x.rows, threads), blocks = (x.rows + block_rows - 1) / block_rows;
    struct rmsnorm_grad_args args = {device_rows_of(grad_x),
                                     operands[0],
                                     operands[1],
                                     device_rows_of(scale),
                                     (const float *)tensor_row(rstd, 0),
                                     rstd.stride,
                                     NULL,
                                     x.rows,
                                     x.columns,
                                     block_rows};
    if (!tensor_none(grad_scale))
        TRY(cuda_scratch(cuda, CUDA_SCRATCH_SUMS, (size_t)(blocks * x.columns) * sizeof(float), &args.sums));
    LAUNCH_LAYOUT(layout_of(x.columns, operands, 2), rmsnorm_grad_kernel, (unsigned)blocks, threads,
                  threads / 32 * sizeof(float), cuda->stream, args);
    if (!tensor_none(grad_scale)) norm_add_sums(cuda, grad_scale, args.sums, blocks);
    return cuda_launched("rmsnorm_grad");
}
