// The mean over the rows of each segment, and its gradient.
//
// A block works on one segment (x) and on the columns of 32 octets (y). A warp takes every segment_groups-th row of the
// segment; the warps' sums are then added in order.
#include "kernels/cuda/rows.h"

enum {
    segment_groups = 8,
    segment_threads = 32 * segment_groups,
};

struct segment_mean_args {
    struct device_rows means, rows; // of segments, and of their rows
    const int32_t *begins;
    int64_t begins_stride;
    int64_t segments, row_count, columns;
    uint32_t *reports;
};

// *first, *end = the rows of the block's segment. False, which is reported, if they are no part of the rows in order.
DEVICE bool segment_mean_rows(const struct segment_mean_args &a, int64_t *first, int64_t *end) {
    int64_t s = blockIdx.x;
    *first = a.begins[s * a.begins_stride];
    *end = a.begins[(s + 1) * a.begins_stride];
    bool outer = (s > 0 || *first == 0) && (s + 1 < a.segments || *end == a.row_count);
    if (outer && *first >= 0 && *first < *end && *end <= a.row_count) return true;
    if (threadIdx.x == 0) report_error(a.reports, CUDA_REPORT_INDEX);
    return false;
}

DEVICE int64_t segment_mean_column() {
    return ((int64_t)blockIdx.y * 32 + threadIdx.x % 32) * octet;
}

template <int layout>
__global__ void __launch_bounds__(segment_threads, 4) segment_mean_kernel(struct segment_mean_args a) {
    float *shared = (float *)dynamic_shared(); // [segment_threads][octet]
    int64_t first, end, i = segment_mean_column();
    if (!segment_mean_rows(a, &first, &end)) return;
    float sums[octet] = {};
    for (int64_t row = first + threadIdx.x / 32; row < end && i < a.columns; row += segment_groups) {
        float values[octet];
        octet_load<layout>(values, a.rows, row, i, a.columns);
#pragma unroll
        for (int e = 0; e < octet; e++) sums[e] = add_rn(sums[e], values[e]);
    }
#pragma unroll
    for (int e = 0; e < octet; e++) shared[e * segment_threads + (int)threadIdx.x] = sums[e];
    __syncthreads();
    if (threadIdx.x >= 32 || i >= a.columns) return;
#pragma unroll
    for (int e = 0; e < octet; e++) {
        for (int group = 1; group < segment_groups; group++)
            sums[e] = add_rn(sums[e], shared[e * segment_threads + group * 32 + (int)threadIdx.x]);
        sums[e] = div_rn(sums[e], (float)(end - first));
    }
    octet_store<LAYOUT_ANY>(a.means, blockIdx.x, i, a.columns, sums);
}

template <int layout>
__global__ void __launch_bounds__(segment_threads, 4) segment_mean_grad_kernel(struct segment_mean_args a) {
    int64_t first, end, i = segment_mean_column();
    if (!segment_mean_rows(a, &first, &end) || i >= a.columns) return;
    float share[octet];
    octet_load<LAYOUT_ANY>(share, a.means, blockIdx.x, i, a.columns);
#pragma unroll
    for (int e = 0; e < octet; e++) share[e] = div_rn(share[e], (float)(end - first));
    for (int64_t row = first + threadIdx.x / 32; row < end; row += segment_groups)
        octet_store<layout>(a.rows, row, i, a.columns, share);
}

static status segment_mean_operands(struct cuda_backend *cuda, struct segment_mean_args *args, struct tensor means,
                                    struct tensor rows, struct tensor begins) {
    CHECK(tensor_is(means, -1, means.rows, rows.columns) && tensor_is(rows, -1, rows.rows, rows.columns));
    CHECK(tensor_is(begins, ELEMENT_I32, means.rows + 1, 1) && (means.rows > 0) == (rows.rows > 0));
    *args = {device_rows_of(means), device_rows_of(rows), (const int32_t *)tensor_row(begins, 0),
             begins.stride,         means.rows,           rows.rows,
             rows.columns,          cuda->reports};
    return OK;
}

static dim3 segment_mean_grid(const struct segment_mean_args *args) {
    return dim3((unsigned)args->segments, (unsigned)((octets_of(args->columns) + 31) / 32));
}

status cuda_segment_mean(struct backend *backend, struct tensor out, struct tensor in, struct tensor begins) {
    struct cuda_backend *cuda = cuda_of(backend);
    struct segment_mean_args args;
    TRY(segment_mean_operands(cuda, &args, out, in, begins));
    if (args.segments == 0 || args.columns == 0) return OK;
    LAUNCH_LAYOUT(layout_of(args.columns, &args.rows, 1), segment_mean_kernel, segment_mean_grid(&args),
                  segment_threads, octet * segment_threads * sizeof(float), cuda->stream, args);
    return cuda_launched("segment_mean");
}

status cuda_segment_mean_grad(struct backend *backend, struct tensor grad_in, struct tensor grad_out,
                              struct tensor begins) {
    struct cuda_backend *cuda = cuda_of(backend);
    struct segment_mean_args args;
    TRY(segment_mean_operands(cuda, &args, grad_out, grad_in, begins));
    if (args.segments == 0 || args.columns == 0) return OK;
    LAUNCH_LAYOUT(layout_of(args.columns, &args.rows, 1), segment_mean_grad_kernel, segment_mean_grid(&args),
                  segment_threads, 0, cuda->stream, args);
    return cuda_launched("segment_mean_grad");
}
