// RMSNorm and LayerNorm with the residual sum before them, and their gradients.
//
// A block works on one row at a time. A thread keeps its octets of the row in registers, so that memory is read once.
// The gradients of scale and bias are summed by blocks of rows, whose number depends on the shape alone; the blocks'
// sums are then added in order.
#include "kernels/cuda/rows.h"

enum {
    NORM_OCTETS = 2, // of a row, in one thread
    MAX_NORM_THREADS = 512,
    MAX_NORM_COLUMNS = NORM_OCTETS * MAX_NORM_THREADS * OCTET,
    MAX_NORM_GRAD_THREADS = 84 << 10, // of all blocks of a gradient together
    SUM_GROUPS = 8,                   // of the blocks' sums of a column, each added by one warp
    SUM_THREADS = 32 * SUM_GROUPS,
};

// The column of the thread's k-th OCTET.
DEVICE int64_t norm_column(int k) {
    return ((int64_t)k * blockDim.x + threadIdx.x) * OCTET;
}

// The threads of a block: enough for NORM_OCTETS octets each, in whole warps.
static unsigned norm_threads(int64_t columns) {
    int64_t threads = (octets_of(columns) + NORM_OCTETS - 1) / NORM_OCTETS;
    return (unsigned)((threads + 31) / 32 * 32);
}

// A warp adds every SUM_GROUPS-th row of 32 columns.
__global__ void __launch_bounds__(SUM_THREADS)
    norm_sum_kernel(float *out, const float *sums, int64_t blocks, int64_t columns) {
    float *shared = (float *)dynamic_shared(); // [SUM_GROUPS][32]
    int64_t column = (int64_t)blockIdx.x * 32 + threadIdx.x % 32;
    float sum = 0;
    for (int64_t block = threadIdx.x / 32; block < blocks && column < columns; block += SUM_GROUPS)
        sum = add_rn(sum, sums[block * columns + column]);
    shared[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x >= 32 || column >= columns) return;
    for (int group = 1; group < SUM_GROUPS; group++) sum = add_rn(sum, shared[group * 32 + (int)threadIdx.x]);
    out[column] = add_rn(out[column], sum);
}

// out F32 [1,C] += the rows of sums F32 [blocks,C], if there are some, in an order that their number determines.
static void norm_add_sums(struct cuda_backend *cuda, struct tensor out, const struct device_rows *sums,
                          int64_t blocks) {
    if (!sums->data) return;
    LAUNCH(norm_sum_kernel, (unsigned)((out.columns + 31) / 32), SUM_THREADS, SUM_THREADS * sizeof(float), cuda->stream,
           (float *)tensor_row(out, 0), (const float *)sums->data, blocks, out.columns);
}

struct norm_args {
    struct device_rows out, x, delta, scale;
    float *statistics; // of a row: rstd of rmsnorm, mean and rstd of layernorm; or NULL
    int64_t statistics_stride;
    int64_t columns;
    float epsilon;
};

struct layernorm_args : norm_args {
    struct device_rows bias; // or none
};

struct norm_grad_args {
    struct device_rows grad_x, grad_out, x, scale;
    const float *statistics;
    int64_t statistics_stride;
    struct device_rows scale_sums, bias_sums; // F32 [blocks,C], the gradients from each block of rows; or none
    int64_t rows, columns, block_rows;
};

// ---- rmsnorm ----

// values = scale, rounded to the type of x.
template <int layout>
DEVICE void rmsnorm_scale(float values[OCTET], const struct device_rows &scale, const struct device_rows &x, int64_t i,
                          int64_t columns) {
    octet_load<LAYOUT_ANY>(values, scale, 0, i, columns);
    octet_round<layout>(values, x);
}

template <int layout> __global__ void __launch_bounds__(MAX_NORM_THREADS) rmsnorm_kernel(struct norm_args a) {
    int64_t row = blockIdx.x;
    float x[NORM_OCTETS][OCTET], delta[NORM_OCTETS][OCTET], squares = 0;
#pragma unroll
    for (int k = 0; k < NORM_OCTETS; k++) {
        int64_t i = norm_column(k);
        if (i >= a.columns) continue;
        octet_load<layout>(x[k], a.x, row, i, a.columns);
        if (a.delta.data) octet_load<layout>(delta[k], a.delta, row, i, a.columns);
    }
#pragma unroll
    for (int k = 0; k < NORM_OCTETS; k++) {
        int64_t i = norm_column(k);
        if (i >= a.columns) continue;
        if (a.delta.data) {
#pragma unroll
            for (int e = 0; e < OCTET; e++) x[k][e] = add_rn(x[k][e], delta[k][e]);
            octet_round<layout>(x[k], a.x);
            octet_store<layout>(a.x, row, i, a.columns, x[k]);
        }
#pragma unroll
        for (int e = 0; e < OCTET; e++) squares = fma_rn(x[k][e], x[k][e], squares);
    }
    squares = block_sum(squares, (float *)dynamic_shared());
    float rstd = rsqrt_rn(add_rn(div_rn(squares, (float)a.columns), a.epsilon));
    if (a.statistics && threadIdx.x == 0) a.statistics[row * a.statistics_stride] = rstd;
#pragma unroll
    for (int k = 0; k < NORM_OCTETS; k++) {
        int64_t i = norm_column(k);
        if (i >= a.columns) continue;
        float scale[OCTET];
        rmsnorm_scale<layout>(scale, a.scale, a.x, i, a.columns);
#pragma unroll
        for (int e = 0; e < OCTET; e++) x[k][e] = mul_rn(x[k][e], rstd);
        octet_round<layout>(x[k], a.x);
#pragma unroll
        for (int e = 0; e < OCTET; e++) x[k][e] = mul_rn(scale[e], x[k][e]);
        octet_store<layout>(a.out, row, i, a.columns, x[k]);
    }
}

// With n = x rstd and g = grad_out scale: grad_x += rstd (g - n mean(g n)), sums += grad_out round(n).
template <int layout> __global__ void __launch_bounds__(MAX_NORM_THREADS) rmsnorm_grad_kernel(struct norm_grad_args a) {
    float *shared = (float *)dynamic_shared();
    int64_t first = (int64_t)blockIdx.x * a.block_rows;
    int64_t end = first + a.block_rows < a.rows ? first + a.block_rows : a.rows;
    float sums[NORM_OCTETS][OCTET];
#pragma unroll
    for (int j = 0; j < NORM_OCTETS * OCTET; j++) sums[j / OCTET][j % OCTET] = 0;
    for (int64_t row = first; row < end; row++) {
        float rstd = a.statistics[row * a.statistics_stride], products = 0;
        float g[NORM_OCTETS][OCTET], normal[NORM_OCTETS][OCTET];
#pragma unroll
        for (int k = 0; k < NORM_OCTETS; k++) {
            int64_t i = norm_column(k);
            if (i >= a.columns) continue;
            octet_load<layout>(g[k], a.grad_out, row, i, a.columns);
            octet_load<layout>(normal[k], a.x, row, i, a.columns);
        }
#pragma unroll
        for (int k = 0; k < NORM_OCTETS; k++) {
            int64_t i = norm_column(k);
            if (i >= a.columns) continue;
            float scale[OCTET], rounded[OCTET];
            rmsnorm_scale<layout>(scale, a.scale, a.x, i, a.columns);
#pragma unroll
            for (int e = 0; e < OCTET; e++) rounded[e] = normal[k][e] = mul_rn(normal[k][e], rstd);
            octet_round<layout>(rounded, a.x);
#pragma unroll
            for (int e = 0; e < OCTET; e++) {
                sums[k][e] = fma_rn(g[k][e], rounded[e], sums[k][e]);
                g[k][e] = mul_rn(g[k][e], scale[e]);
                products = fma_rn(g[k][e], normal[k][e], products);
            }
        }
        products = block_sum(products, shared);
        float negative_mean = div_rn(-products, (float)a.columns);
#pragma unroll
        for (int k = 0; k < NORM_OCTETS; k++) {
            int64_t i = norm_column(k);
            if (i >= a.columns) continue;
            float grad[OCTET];
            octet_load<LAYOUT_ANY>(grad, a.grad_x, row, i, a.columns);
#pragma unroll
            for (int e = 0; e < OCTET; e++)
                grad[e] = add_rn(grad[e], mul_rn(rstd, fma_rn(normal[k][e], negative_mean, g[k][e])));
            octet_store<LAYOUT_ANY>(a.grad_x, row, i, a.columns, grad);
        }
        __syncthreads(); // before `shared` is used again
    }
    struct device_rows partial = {a.scale_sums.data, a.columns * (int64_t)sizeof(float), ELEMENT_F32, false};
#pragma unroll
    for (int k = 0; k < NORM_OCTETS; k++) {
        int64_t i = norm_column(k);
        if (a.scale_sums.data && i < a.columns) octet_store<LAYOUT_ANY>(partial, blockIdx.x, i, a.columns, sums[k]);
    }
}

// ---- layernorm ----

// values -= mean, for the OCTET that begins at column i; 0 after the row's end.
DEVICE void layernorm_centre(float values[OCTET], float mean, int64_t i, int64_t columns) {
#pragma unroll
    for (int e = 0; e < OCTET; e++) values[e] = i + e < columns ? add_rn(values[e], -mean) : 0;
}

template <int layout> __global__ void __launch_bounds__(MAX_NORM_THREADS) layernorm_kernel(struct layernorm_args a) {
    float *shared = (float *)dynamic_shared(), *more_shared = shared + blockDim.x / 32;
    int64_t row = blockIdx.x;
    float x[NORM_OCTETS][OCTET], sum = 0, squares = 0;
#pragma unroll
    for (int k = 0; k < NORM_OCTETS; k++) {
        int64_t i = norm_column(k);
        if (i >= a.columns) continue;
        octet_load<layout>(x[k], a.x, row, i, a.columns);
        if (a.delta.data) {
            float delta[OCTET];
            octet_load<layout>(delta, a.delta, row, i, a.columns);
#pragma unroll
            for (int e = 0; e < OCTET; e++) x[k][e] = add_rn(x[k][e], delta[e]);
            octet_round<layout>(x[k], a.x);
            octet_store<layout>(a.x, row, i, a.columns, x[k]);
        }
#pragma unroll
        for (int e = 0; e < OCTET; e++) sum = add_rn(sum, x[k][e]);
    }
    float mean = div_rn(block_sum(sum, shared), (float)a.columns);
#pragma unroll
    for (int k = 0; k < NORM_OCTETS; k++) {
        int64_t i = norm_column(k);
        if (i >= a.columns) continue;
        layernorm_centre(x[k], mean, i, a.columns);
#pragma unroll
        for (int e = 0; e < OCTET; e++) squares = fma_rn(x[k][e], x[k][e], squares);
    }
    float rstd = rsqrt_rn(add_rn(div_rn(block_sum(squares, more_shared), (float)a.columns), a.epsilon));
    if (a.statistics && threadIdx.x == 0) {
        a.statistics[row * a.statistics_stride] = mean;
        a.statistics[row * a.statistics_stride + 1] = rstd;
    }
#pragma unroll
    for (int k = 0; k < NORM_OCTETS; k++) {
        int64_t i = norm_column(k);
        if (i >= a.columns) continue;
        float scale[OCTET], bias[OCTET] = {};
        octet_load<LAYOUT_ANY>(scale, a.scale, 0, i, a.columns);
        if (a.bias.data) octet_load<LAYOUT_ANY>(bias, a.bias, 0, i, a.columns);
#pragma unroll
        for (int e = 0; e < OCTET; e++) x[k][e] = add_rn(mul_rn(mul_rn(x[k][e], rstd), scale[e]), bias[e]);
        octet_store<layout>(a.out, row, i, a.columns, x[k]);
    }
}

// With n = (x - mean) rstd and g = grad_out scale: grad_x += rstd (g - mean(g) - n mean(g n)),
// scale_sums += grad_out n, bias_sums += grad_out.
template <int layout>
__global__ void __launch_bounds__(MAX_NORM_THREADS) layernorm_grad_kernel(struct norm_grad_args a) {
    float *shared = (float *)dynamic_shared(), *more_shared = shared + blockDim.x / 32;
    int64_t first = (int64_t)blockIdx.x * a.block_rows;
    int64_t end = first + a.block_rows < a.rows ? first + a.block_rows : a.rows;
    float scale_sums[NORM_OCTETS][OCTET], bias_sums[NORM_OCTETS][OCTET];
#pragma unroll
    for (int j = 0; j < NORM_OCTETS * OCTET; j++)
        scale_sums[j / OCTET][j % OCTET] = bias_sums[j / OCTET][j % OCTET] = 0;
    for (int64_t row = first; row < end; row++) {
        float mean = a.statistics[row * a.statistics_stride], rstd = a.statistics[row * a.statistics_stride + 1];
        float g[NORM_OCTETS][OCTET], normal[NORM_OCTETS][OCTET], sum = 0, products = 0;
#pragma unroll
        for (int k = 0; k < NORM_OCTETS; k++) {
            int64_t i = norm_column(k);
            if (i >= a.columns) continue;
            float scale[OCTET];
            octet_load<layout>(g[k], a.grad_out, row, i, a.columns);
            octet_load<layout>(normal[k], a.x, row, i, a.columns);
            octet_load<LAYOUT_ANY>(scale, a.scale, 0, i, a.columns);
            layernorm_centre(normal[k], mean, i, a.columns);
#pragma unroll
            for (int e = 0; e < OCTET; e++) {
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
        for (int k = 0; k < NORM_OCTETS; k++) {
            int64_t i = norm_column(k);
            if (i >= a.columns) continue;
            float grad[OCTET];
            octet_load<LAYOUT_ANY>(grad, a.grad_x, row, i, a.columns);
#pragma unroll
            for (int e = 0; e < OCTET; e++) {
                float centred = fma_rn(normal[k][e], negative_product, add_rn(g[k][e], negative_mean));
                grad[e] = add_rn(grad[e], mul_rn(rstd, centred));
            }
            octet_store<LAYOUT_ANY>(a.grad_x, row, i, a.columns, grad);
        }
        __syncthreads(); // before the shared memory is used again
    }
#pragma unroll
    for (int k = 0; k < NORM_OCTETS; k++) {
        int64_t i = norm_column(k);
        if (i >= a.columns) continue;
        if (a.scale_sums.data) octet_store<LAYOUT_ANY>(a.scale_sums, blockIdx.x, i, a.columns, scale_sums[k]);
        if (a.bias_sums.data) octet_store<LAYOUT_ANY>(a.bias_sums, blockIdx.x, i, a.columns, bias_sums[k]);
    }
}

// ---- the operations ----

// rmsnorm, or layernorm, whose rows are `centred`.
static status norm_run(struct backend *backend, bool centred, struct tensor out, struct tensor x, struct tensor delta,
                       struct tensor scale, struct tensor bias, float epsilon, struct tensor statistics) {
    struct cuda_backend *cuda = cuda_of(backend);
    CHECK(tensor_is(x, -1, x.rows, x.columns) && tensor_is(out, -1, x.rows, x.columns));
    CHECK(tensor_none(delta) || tensor_is(delta, -1, x.rows, x.columns));
    CHECK(tensor_is(scale, -1, 1, x.columns) && x.columns <= MAX_NORM_COLUMNS);
    CHECK(tensor_none(bias) || tensor_is(bias, -1, 1, x.columns));
    CHECK(tensor_none(statistics) || tensor_is(statistics, ELEMENT_F32, x.rows, centred ? 2 : 1));
    if (x.rows == 0 || x.columns == 0) return OK;
    struct device_rows operands[] = {device_rows_of(out), device_rows_of(x), device_rows_of(delta)};
    struct norm_args args = {
        operands[0],       operands[1], operands[2], device_rows_of(scale), (float *)tensor_row(statistics, 0),
        statistics.stride, x.columns,   epsilon};
    struct layernorm_args with_bias = {args, device_rows_of(bias)};
    enum layout layout = layout_of(x.columns, operands, 3);
    unsigned threads = norm_threads(x.columns);
    size_t shared = threads / 32 * sizeof(float);
    if (centred)
        LAUNCH_LAYOUT(layout, layernorm_kernel, (unsigned)x.rows, threads, 2 * shared, cuda->stream, with_bias);
    else
        LAUNCH_LAYOUT(layout, rmsnorm_kernel, (unsigned)x.rows, threads, shared, cuda->stream, args);
    return cuda_launched(centred ? "layernorm" : "rmsnorm");
}

static status norm_grad_run(struct backend *backend, bool centred, struct tensor grad_x, struct tensor grad_scale,
                            struct tensor grad_bias, struct tensor grad_out, struct tensor x, struct tensor scale,
                            struct tensor statistics) {
    struct cuda_backend *cuda = cuda_of(backend);
    int64_t rows = x.rows, columns = x.columns;
    CHECK(tensor_is(x, -1, rows, columns) && tensor_is(grad_x, -1, rows, columns));
    CHECK(tensor_is(grad_out, -1, rows, columns) && tensor_is(scale, -1, 1, columns));
    CHECK(tensor_is(statistics, ELEMENT_F32, rows, centred ? 2 : 1) && columns <= MAX_NORM_COLUMNS);
    CHECK(tensor_none(grad_scale) || tensor_is(grad_scale, ELEMENT_F32, 1, columns));
    CHECK(tensor_none(grad_bias) || tensor_is(grad_bias, ELEMENT_F32, 1, columns));
    if (rows == 0 || columns == 0) return OK;
    // A block works on some rows, and has sums of its own.
    unsigned threads = norm_threads(columns);
    int64_t most_blocks = MAX_NORM_GRAD_THREADS / threads, block_rows = (rows + most_blocks - 1) / most_blocks;
    int64_t blocks = (rows + block_rows - 1) / block_rows, sums_size = blocks * columns;
    float *sums = NULL;
    if (centred || !tensor_none(grad_scale))
        TRY(cuda_scratch(cuda, CUDA_SCRATCH_SUMS, (size_t)((centred ? 2 : 1) * sums_size) * sizeof *sums, &sums));
    struct device_rows operands[] = {device_rows_of(grad_out), device_rows_of(x)};
    struct norm_grad_args args = {};
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
    if (!tensor_none(grad_bias)) {
        args.bias_sums = partial;
        args.bias_sums.data = (char *)(sums + sums_size);
    }
    enum layout layout = layout_of(columns, operands, 2);
    size_t shared = threads / 32 * sizeof(float);
    if (centred)
        LAUNCH_LAYOUT(layout, layernorm_grad_kernel, (unsigned)blocks, threads, 2 * shared, cuda->stream, args);
    else
        LAUNCH_LAYOUT(layout, rmsnorm_grad_kernel, (unsigned)blocks, threads, shared, cuda->stream, args);
    norm_add_sums(cuda, grad_scale, &args.scale_sums, blocks);
    norm_add_sums(cuda, grad_bias, &args.bias_sums, blocks);
    return cuda_launched(centred ? "layernorm_grad" : "rmsnorm_grad");
}

status cuda_rmsnorm(struct backend *backend, struct tensor out, struct tensor x, struct tensor delta,
                    struct tensor scale, float epsilon, struct tensor rstd) {
    return norm_run(backend, false, out, x, delta, scale, {}, epsilon, rstd);
}

status cuda_rmsnorm_grad(struct backend *backend, struct tensor grad_x, struct tensor grad_scale,
                         struct tensor grad_out, struct tensor x, struct tensor scale, struct tensor rstd) {
    return norm_grad_run(backend, false, grad_x, grad_scale, {}, grad_out, x, scale, rstd);
}

status cuda_layernorm(struct backend *backend, struct tensor out, struct tensor x, struct tensor delta,
                      struct tensor scale, struct tensor bias, float epsilon, struct tensor statistics) {
    return norm_run(backend, true, out, x, delta, scale, bias, epsilon, statistics);
}

status cuda_layernorm_grad(struct backend *backend, struct tensor grad_x, struct tensor grad_scale,
                           struct tensor grad_bias, struct tensor grad_out, struct tensor x, struct tensor scale,
                           struct tensor statistics) {
    return norm_grad_run(backend, true, grad_x, grad_scale, grad_bias, grad_out, x, scale, statistics);
}
