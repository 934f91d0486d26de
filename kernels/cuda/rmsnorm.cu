// RMSNorm with the residual sum before it, and its gradient.
//
// A block works on one row at a time. A thread keeps its octets of the row in registers, so that memory is read once.
// The gradient of scale is summed by blocks of rows, whose number depends on the shape alone; the blocks'
// sums are then added in order.
#include "kernels/cuda/rows.h"

enum {
    thread_octets = 2, // of a row
    rmsnorm_most_threads = 512,
    rmsnorm_most_columns = thread_octets * rmsnorm_most_threads * octet,
    grad_most_threads = 84 << 10, // of all blocks of the gradient together
    sum_groups = 8,               // of the blocks' sums of a column, each added by one warp
    sum_threads = 32 * sum_groups,
};

struct rmsnorm_args {
    struct device_rows out, x, delta, scale;
    float *rstd; // or NULL
    int64_t rstd_stride;
    int64_t columns;
    float epsilon;
};

// The column of the thread's k-th octet.
DEVICE int64_t rmsnorm_column(int k) {
    return ((int64_t)k * blockDim.x + threadIdx.x) * octet;
}

// values = scale, rounded to the type of x.
template <int layout>
DEVICE void rmsnorm_scale(float values[octet], const struct device_rows &scale, const struct device_rows &x, int64_t i,
                          int64_t columns) {
    octet_load<LAYOUT_ANY>(values, scale, 0, i, columns);
    octet_round<layout>(values, x);
}

template <int layout> __global__ void __launch_bounds__(rmsnorm_most_threads) rmsnorm_kernel(struct rmsnorm_args a) {
    int64_t row = blockIdx.x;
    float x[thread_octets][octet], delta[thread_octets][octet], squares = 0;
#pragma unroll
    for (int k = 0; k < thread_octets; k++) {
        int64_t i = rmsnorm_column(k);
        if (i >= a.columns) continue;
        octet_load<layout>(x[k], a.x, row, i, a.columns);
        if (a.delta.data) octet_load<layout>(delta[k], a.delta, row, i, a.columns);
    }
#pragma unroll
    for (int k = 0; k < thread_octets; k++) {
        int64_t i = rmsnorm_column(k);
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
    for (int k = 0; k < thread_octets; k++) {
        int64_t i = rmsnorm_column(k);
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

// The threads of a block: enough for thread_octets octets each, in whole warps.
static unsigned rmsnorm_threads(int64_t columns) {
    int64_t threads = (octets_of(columns) + thread_octets - 1) / thread_octets;
    return (unsigned)((threads + 31) / 32 * 32);
}

status cuda_rmsnorm(struct backend *backend, struct tensor out, struct tensor x, struct tensor delta,
                    struct tensor scale, float epsilon, struct tensor rstd) {
    struct cuda_backend *cuda = cuda_of(backend);
    CHECK(tensor_is(x, -1, x.rows, x.columns) && tensor_is(out, -1, x.rows, x.columns));
    CHECK(tensor_none(delta) || tensor_is(delta, -1, x.rows, x.columns));
    CHECK(tensor_is(scale, -1, 1, x.columns) && x.columns <= rmsnorm_most_columns);
    CHECK(tensor_none(rstd) || tensor_is(rstd, ELEMENT_F32, x.rows, 1));
    if (x.rows == 0 || x.columns == 0) return OK;
    struct device_rows operands[] = {device_rows_of(out), device_rows_of(x), device_rows_of(delta)};
    struct rmsnorm_args args = {
        operands[0], operands[1], operands[2], device_rows_of(scale), (float *)tensor_row(rstd, 0),
        rstd.stride, x.columns,   epsilon};
    unsigned threads = rmsnorm_threads(x.columns);
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
__global__ void __launch_bounds__(rmsnorm_most_threads) rmsnorm_grad_kernel(struct rmsnorm_grad_args a) {
    float *shared = (float *)dynamic_shared();
    int64_t first = (int64_t)blockIdx.x * a.block_rows;
    int64_t end = first + a.block_rows < a.rows ? first + a.block_rows : a.rows;
    float sums[thread_octets][octet];
#pragma unroll
    for (int j = 0; j < thread_octets * octet; j++) sums[j / octet][j % octet] = 0;
    for (int64_t row = first; row < end; row++) {
        float rstd = a.rstd[row * a.rstd_stride], products = 0;
        float g[thread_octets][octet], normal[thread_octets][octet];
#pragma unroll
        for (int k = 0; k < thread_octets; k++) {
            int64_t i = rmsnorm_column(k);
            if (i >= a.columns) continue;
            octet_load<layout>(g[k], a.grad_out, row, i, a.columns);
            octet_load<layout>(normal[k], a.x, row, i, a.columns);
        }
#pragma unroll
        for (int k = 0; k < thread_octets; k++) {
            int64_t i = rmsnorm_column(k);
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
        for (int k = 0; k < thread_octets; k++) {
            int64_t i = rmsnorm_column(k);
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
    for (int k = 0; k < thread_octets; k++) {
        int64_t i = rmsnorm_column(k);
        if (a.sums && i < a.columns) octet_store<LAYOUT_ANY>(partial, blockIdx.x, i, a.columns, sums[k]);
    }
}

// out[C] += the sums of `blocks` rows. A warp adds every sum_groups-th row of 32 columns.
__global__ void __launch_bounds__(sum_threads)
    rmsnorm_sum_kernel(float *out, const float *sums, int64_t blocks, int64_t columns) {
    float *shared = (float *)dynamic_shared(); // [sum_groups][32]
    int64_t column = (int64_t)blockIdx.x * 32 + threadIdx.x % 32;
    float sum = 0;
    for (int64_t block = threadIdx.x / 32; block < blocks && column < columns; block += sum_groups)
        sum = add_rn(sum, sums[block * columns + column]);
    shared[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= 32 || column >= columns) return;
    for (int group = 1; group < sum_groups; group++) sum = add_rn(sum, shared[group * 32 + (int)threadIdx.x]);
    out[column] = add_rn(out[column], sum);
}

status cuda_rmsnorm_grad(struct backend *backend, struct tensor grad_x, struct tensor grad_scale,
                         struct tensor grad_out, struct tensor x, struct tensor scale, struct tensor rstd) {
    struct cuda_backend *cuda = cuda_of(backend);
    CHECK(tensor_is(x, -1, x.rows, x.columns) && tensor_is(grad_x, -1, x.rows, x.columns));
    CHECK(tensor_is(grad_out, -1, x.rows, x.columns) && tensor_is(scale, -1, 1, x.columns));
    CHECK(tensor_is(rstd, ELEMENT_F32, x.rows, 1) && x.columns <= rmsnorm_most_columns);
    CHECK(tensor_none(grad_scale) || tensor_is(grad_scale, ELEMENT_F32, 1, x.columns));
    if (x.rows == 0 || x.columns == 0) return OK;
    struct device_rows operands[] = {device_rows_of(grad_out), device_rows_of(x)};
    unsigned threads = rmsnorm_threads(x.columns);
    int64_t most_blocks = grad_most_threads / threads, block_rows = (x.rows + most_blocks - 1) / most_blocks;
    int64_t blocks = (x.rows + block_rows - 1) / block_rows;
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
    if (!tensor_none(grad_scale))
        LAUNCH(rmsnorm_sum_kernel, (unsigned)((x.columns + 31) / 32), sum_threads, sum_threads * sizeof(float),
               cuda->stream, (float *)tensor_row(grad_scale, 0), args.sums, blocks, x.columns);
    return cuda_launched("rmsnorm_grad");
}
