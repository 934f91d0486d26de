// LayerNorm with the residual sum before it, and its gradient. How its work is divided is said in norm.h.
#include "kernels/cuda/norm.h"

struct layernorm_args {
    struct device_rows out, x, delta, scale, bias;
    float *statistics; // or NULL
    int64_t statistics_stride;
    int64_t columns;
    float epsilon;
};

// values -= mean, for the octet that begins at column i; 0 after the row's end.
DEVICE void layernorm_centre(float values[octet], float mean, int64_t i, int64_t columns) {
#pragma unroll
    for (int e = 0; e < octet; e++) values[e] = i + e < columns ? add_rn(values[e], -mean) : 0;
}

template <int layout> __global__ void __launch_bounds__(norm_most_threads) layernorm_kernel(struct layernorm_args a) {
    float *shared = (float *)dynamic_shared(), *more_shared = shared + blockDim.x / 32;
    int64_t row = blockIdx.x;
    float x[norm_octets][octet], sum = 0, squares = 0;
#pragma unroll
    for (int k = 0; k < norm_octets; k++) {
        int64_t i = norm_column(k);
        if (i >= a.columns) continue;
        octet_load<layout>(x[k], a.x, row, i, a.columns);
        if (a.delta.data) {
            float delta[octet];
            octet_load<layout>(delta, a.delta, row, i, a.columns);
#pragma unroll
            for (int e = 0; e < octet; e++) x[k][e] = add_rn(x[k][e], delta[e]);
            octet_round<layout>(x[k], a.x);
            octet_store<layout>(a.x, row, i, a.columns, x[k]);
        }
#pragma unroll
        for (int e = 0; e < octet; e++) sum = add_rn(sum, x[k][e]);
    }
    float mean = div_rn(block_sum(sum, shared), (float)a.columns);
#pragma unroll
    for (int k = 0; k < norm_octets; k++) {
        int64_t i = norm_column(k);
        if (i >= a.columns) continue;
        layernorm_centre(x[k], mean, i, a.columns);
#pragma unroll
        for (int e = 0; e < octet; e++) squares = fma_rn(x[k][e], x[k][e], squares);
    }
    float rstd = rsqrt_rn(add_rn(div_rn(block_sum(squares, more_shared), (float)a.columns), a.epsilon));
    if (a.statistics && threadIdx.x == 0) {
        a.statistics[row * a.statistics_stride] = mean;
        a.statistics[row * a.statistics_stride + 1] = rstd;
    }
#pragma unroll
    for (int k = 0; k < norm_octets; k++) {
        int64_t i = norm_column(k);
        if (i >= a.columns) continue;
        float scale[octet], bias[octet] = {};
        octet_load<LAYOUT_ANY>(scale, a.scale, 0, i, a.columns);
        if (a.bias.data) octet_load<LAYOUT_ANY>(bias, a.bias, 0, i, a.columns);
#pragma unroll
        for (int e = 0; e < octet; e++) x[k][e] = add_rn(mul_rn(mul_rn(x[k][e], rstd), scale[e]), bias[e]);
        octet_store<layout>(a.out, row, i, a.columns, x[k]);
    }
}

status cuda_layernorm(struct backend *backend, struct tensor out, struct tensor x, struct tensor delta,
                      struct tensor scale, struct tensor bias, float epsilon, struct tensor statistics) {
    struct cuda_backend *cuda = cuda_of(backend);
    CHECK(tensor_is(x, -1, x.rows, x.columns) && tensor_is(out, -1, x.rows, x.columns));
    CHECK(tensor_none(delta) || tensor_is(delta, -1, x.rows, x.columns));
    CHECK(tensor_is(scale, -1, 1, x.columns) && x.columns <= norm_most_columns);
    CHECK(tensor_none(bias) || tensor_is(bias, -1, 1, x.columns));
    CHECK(tensor_none(statistics) || tensor_is(statistics, ELEMENT_F32, x.rows, 2));
    if (x.rows == 0 || x.columns == 0) return OK;
    struct device_rows operands[] = {device_rows_of(out), device_rows_of(x), device_rows_of(delta)};
    struct layernorm_args args = {operands[0],
                                  operands[1],
                                  operands[2],
                                  device_rows_of(scale),
                                  device_rows_of(bias),
                                  (float *)tensor_row(statistics, 0),
                                  statistics.stride,
                                  x.columns,
                                  epsilon};
    unsigned threads = norm_threads(x.columns);
    LAUNCH_LAYOUT(layout_of(x.columns, operands, 3), layernorm_kernel, (unsigned)x.rows, threads,
                  2 * (threads / 32) * sizeof(float), cuda->stream, args);
    return cuda_launched("layernorm");
}

// ---- the gradient ----

struct layernorm_grad_args {
    struct device_rows grad_x, grad_out, x, scale;
    const float *statistics;
    int64_t statistics_stride;
    struct device_rows scale_sums, bias_sums; // F32 [blocks,C], the gradients from each block of rows; or none
    int64_t rows, columns, block_rows;
};

// With n = (x - mean) rstd and g = grad_out scale: grad_x += rstd (g - mean(g) - n mean(g n)),
// scale_sums += grad_out n, bias_sums += grad_out.
template <int layout>
__global__ void __launch_bounds__(norm_most_threads) layernorm_grad_kernel(struct layernorm_grad_args a) {
    float *shared = (float *)dynamic_shared(), *more_shared = shared + blockDim.x / 32;
    int64_t first = (int64_t)blockIdx.x * a.block_rows;
    int64_t end = first + a.block_rows < a.rows ? first + a.block_rows : a.rows;
    float scale_sums[norm_octets][octet], bias_sums[norm_octets][octet];
#pragma unroll
    for (int j = 0; j < norm_octets * octet; j++)
        scale_sums[j / octet][j % octet] = bias_sums[j / octet][j % octet] = 0;
    for (int64_t row = first; row < end; row++) {
        float mean = a.statistics[row * a.statistics_stride], rstd = a.statistics[row * a.statistics_stride + 1];
        float g[norm_octets][octet], normal[norm_octets][octet], sum = 0, products = 0;
#pragma unroll
        for (int k = 0; k < norm_octets; k++) {
            int64_t i = norm_column(k);
            if (i >= a.columns) continue;
            float scale[octet];
            octet_load<layout>(g[k], a.grad_out, row, i, a.columns);
            octet_load<layout>(normal[k], a.x, row, i, a.columns);
            octet_load<LAYOUT_ANY>(scale, a.scale, 0, i, a.columns);
            layernorm_centre(normal[k], mean, i, a.columns);
#pragma unroll
            for (int e = 0; e < octet; e++) {
                normal[k][e] = mul_rn(normal[k][e], rstd);
                scale_sums[k][e] = fma_rn(g[k][e], normal[k][e], scale_sums[k][e]);
                bias_sums[k][e] = add_rn(bias_sums[k][e], g[k][e]);
                g[k][e] = mul_rn(g[k][e], scale[e]);
                sum = add_rn(sum, g[k][e]);
                products = fma_rn(g[k][e], normal[k][e], products);
            }
        }
        float negative_mean = div_rn(-block_sum(sum, shared), (float)a.columns);
        float negative_product = div_rn(-block_sum(products, more_shared), (float)a.columns);
#pragma unroll
        for (int k = 0; k < norm_octets; k++) {
            int64_t i = norm_column(k);
            if (i >= a.columns) continue;
            float grad[octet];
            octet_load<LAYOUT_ANY>(grad, a.grad_x, row, i, a.columns);
#pragma unroll
            for (int e = 0; e < octet; e++) {
                float centred = fma_rn(normal[k][e], negative_product, add_rn(g[k][e], negative_mean));
                grad[e] = add_rn(grad[e], mul_rn(rstd, centred));
            }
            octet_store<LAYOUT_ANY>(a.grad_x, row, i, a.columns, grad);
        }
        __syncthreads(); // before the shared memory is used again
    }
#pragma unroll
    for (int k = 0; k < norm_octets; k++) {
        int64_t i = norm_column(k);
        if (i >= a.columns) continue;
        if (a.scale_sums.data) octet_store<LAYOUT_ANY>(a.scale_sums, blockIdx.x, i, a.columns, scale_sums[k]);
        if (a.bias_sums.data) octet_store<LAYOUT_ANY>(a.bias_sums, blockIdx.x, i, a.columns, bias_sums[k]);
    }
}

status cuda_layernorm_grad(struct backend *backend, struct tensor grad_x, struct tensor grad_scale,
                           struct tensor grad_bias, struct tensor grad_out, struct tensor x, struct tensor scale,
                           struct tensor statistics) {
    struct cuda_backend *cuda = cuda_of(backend);
    int64_t rows = x.rows, columns = x.columns;
    CHECK(tensor_is(x, -1, rows, columns) && tensor_is(grad_x, -1, rows, columns));
    CHECK(tensor_is(grad_out, -1, rows, columns) && tensor_is(scale, -1, 1, columns));
    CHECK(tensor_is(statistics, ELEMENT_F32, rows, 2) && columns <= norm_most_columns);
    CHECK(tensor_none(grad_scale) || tensor_is(grad_scale, ELEMENT_F32, 1, columns));
    CHECK(tensor_none(grad_bias) || tensor_is(grad_bias, ELEMENT_F32, 1, columns));
    if (rows == 0 || columns == 0) return OK;
    struct device_rows operands[] = {device_rows_of(grad_out), device_rows_of(x)};
    unsigned threads = norm_threads(columns);
    int64_t block_rows = norm_block_rows(rows, threads), blocks = (rows + block_rows - 1) / block_rows;
    float *sums;
    TRY(cuda_scratch(cuda, CUDA_SCRATCH_SUMS, (size_t)(2 * blocks * columns) * sizeof *sums, &sums));
    struct layernorm_grad_args args = {};
    args.grad_x = device_rows_of(grad_x);
    args.grad_out = operands[0];
    args.x = operands[1];
    args.scale = device_rows_of(scale);
    args.statistics = (const float *)tensor_row(statistics, 0);
    args.statistics_stride = statistics.stride;
    args.rows = rows;
    args.columns = columns;
    args.block_rows = block_rows;
    struct device_rows partial = {(char *)sums, columns * (int64_t)sizeof *sums, ELEMENT_F32, false};
    if (!tensor_none(grad_scale)) args.scale_sums = partial;
    partial.data = (char *)(sums + blocks * columns);
    if (!tensor_none(grad_bias)) args.bias_sums = partial;
    LAUNCH_LAYOUT(layout_of(columns, operands, 2), layernorm_grad_kernel, (unsigned)blocks, threads,
                  2 * (threads / 32) * sizeof(float), cuda->stream, args);
    if (!tensor_none(grad_scale)) norm_add_sums(cuda, grad_scale, sums, blocks);
    if (!tensor_none(grad_bias)) norm_add_sums(cuda, grad_bias, sums + blocks * columns, blocks);
    return cuda_launched("layernorm_grad");
}
