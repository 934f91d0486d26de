// Rows that are copied or added: gather, scatter, scatter_add, add, and patchify, which copies pixels to rows of
// patches.
#include "kernels/cuda/convert.h"

enum { scatter_most_threads = 512 };

status cuda_gather(struct backend *backend, struct tensor out, struct tensor table, struct tensor index) {
    CHECK(tensor_fits(out) && tensor_fits(table) && out.columns == table.columns);
    CHECK(tensor_is(index, ELEMENT_I32, out.rows, 1));
    return cuda_convert_indexed(cuda_of(backend), out, table, index, false);
}

status cuda_scatter(struct backend *backend, struct tensor out, struct tensor in, struct tensor index) {
    CHECK(tensor_fits(out) && tensor_fits(in) && out.columns == in.columns);
    CHECK(tensor_is(index, ELEMENT_I32, in.rows, 1));
    return cuda_convert_indexed(cuda_of(backend), out, in, index, true);
}

// ---- scatter_add ----

struct scatter_add_args {
    struct device_rows out, in;
    const int32_t *index;
    int64_t index_stride;
    int64_t rows, columns, out_rows;
    uint32_t *reports;
};

// Whether an earlier row than i has the index `row`: then that row's block adds row i. Every thread of the block calls.
DEVICE bool scatter_add_earlier(const struct scatter_add_args &a, int64_t i, int32_t row, uint32_t *shared) {
    bool found = false;
    for (int64_t j = threadIdx.x; j < i; j += blockDim.x) found = found || a.index[j * a.index_stride] == row;
    uint32_t any = ballot(found);
    if (lane_id() == 0) shared[threadIdx.x / 32] = any;
    __syncthreads();
    any = 0;
    for (int warp = 0; warp < (int)blockDim.x / 32; warp++) any |= shared[warp];
    __syncthreads();
    return any != 0;
}

// sums += row j of `in`, for each of the rows [first, first + blockDim.x) whose bit is set, in their order.
template <int layout>
DEVICE void scatter_add_rows(float sums[octet], const struct scatter_add_args &a, int64_t first, const uint32_t *bits,
                             int64_t column) {
    for (int warp = 0; warp < (int)blockDim.x / 32; warp++) {
        uint32_t word = bits[warp];
        for (int64_t j = first + 32 * warp; word; j++, word >>= 1) {
            if (!(word & 1) || column >= a.columns) continue;
            float values[octet];
            octet_load<layout>(values, a.in, j, column, a.columns);
#pragma unroll
            for (int e = 0; e < octet; e++) sums[e] = add_rn(sums[e], values[e]);
        }
    }
}

// A block for each row i of `in` (x), and for its columns (y). The block of the first row of an index adds all rows of
// that index, in their order: it looks for them among blockDim.x rows at a time, one a thread.
template <int layout>
__global__ void __launch_bounds__(scatter_most_threads) scatter_add_kernel(struct scatter_add_args a) {
    uint32_t *shared = (uint32_t *)dynamic_shared();
    int64_t i = blockIdx.x, column = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * octet;
    int32_t row = a.index[i * a.index_stride];
    if (row < 0 || row >= a.out_rows) {
        if (threadIdx.x == 0) report_error(a.reports, CUDA_REPORT_INDEX);
        return;
    }
    if (scatter_add_earlier(a, i, row, shared)) return;
    float sums[octet];
    if (column < a.columns) octet_load<LAYOUT_ANY>(sums, a.out, row, column, a.columns);
    for (int64_t first = i; first < a.rows; first += blockDim.x) {
        int64_t j = first + threadIdx.x;
        uint32_t equal = ballot(j < a.rows && a.index[j * a.index_stride] == row);
        if (lane_id() == 0) shared[threadIdx.x / 32] = equal;
        __syncthreads();
        scatter_add_rows<layout>(sums, a, first, shared, column);
        __syncthreads();
    }
    if (column < a.columns) octet_store<LAYOUT_ANY>(a.out, row, column, a.columns, sums);
}

status cuda_scatter_add(struct backend *backend, struct tensor out, struct tensor in, struct tensor index) {
    struct cuda_backend *cuda = cuda_of(backend);
    CHECK(tensor_is(out, -1, out.rows, in.columns) && tensor_is(in, -1, in.rows, in.columns));
    CHECK(tensor_is(index, ELEMENT_I32, in.rows, 1));
    if (in.rows == 0 || in.columns == 0) return OK;
    struct device_rows rows = device_rows_of(in);
    struct scatter_add_args args = {
        device_rows_of(out), rows, (const int32_t *)tensor_row(index, 0), index.stride, in.rows, in.columns, out.rows,
        cuda->reports};
    int64_t octets = octets_of(in.columns), threads = (octets + 31) / 32 * 32;
    if (threads > scatter_most_threads) threads = scatter_most_threads;
    dim3 grid((unsigned)in.rows, (unsigned)((octets + threads - 1) / threads));
    LAUNCH_LAYOUT(layout_of(in.columns, &rows, 1), scatter_add_kernel, grid, (unsigned)threads,
                  (size_t)threads / 32 * sizeof(uint32_t), cuda->stream, args);
    return cuda_launched("scatter_add");
}

// ---- add ----

struct add_args {
    struct device_rows out, in;
    int64_t rows, columns;
};

template <int layout> __global__ void __launch_bounds__(row_threads) add_kernel(struct add_args a) {
    int64_t i = grid_unit() * octet;
    if (i >= a.columns) return;
    for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
        float sums[octet], values[octet];
        octet_load<layout>(sums, a.out, row, i, a.columns);
        octet_load<layout>(values, a.in, row, i, a.columns);
#pragma unroll
        for (int e = 0; e < octet; e++) sums[e] = add_rn(sums[e], values[e]);
        octet_store<layout>(a.out, row, i, a.columns, sums);
    }
}

status cuda_add(struct backend *backend, struct tensor out, struct tensor in) {
    CHECK(tensor_is(out, -1, in.rows, in.columns) && tensor_is(in, -1, out.rows, out.columns));
    if (out.rows == 0 || out.columns == 0) return OK;
    struct device_rows operands[] = {device_rows_of(out), device_rows_of(in)};
    struct add_args args = {operands[0], operands[1], out.rows, out.columns};
    LAUNCH_LAYOUT(layout_of(out.columns, operands, 2), add_kernel, grid_of(octets_of(out.columns), out.rows),
                  row_threads, 0, cuda_of(backend)->stream, args);
    return cuda_launched("add");
}

// ---- patchify ----

struct patchify_args {
    struct device_rows out;
    const unsigned char *frames;
    int64_t frame_stride; // bytes
    int64_t rows, columns;
    struct patch_shape shape;
};

// Where the patch of a row of `out` begins: its first frame and its upper left pixel. Rows are ordered by time, then by
// blocks of merge_size x merge_size patches, row by row.
DEVICE void patchify_origin(const struct patch_shape &s, int64_t row, int *frame, int *y, int *x) {
    int merge = s.merge_size, across = s.width / s.patch_size / merge, down = s.height / s.patch_size / merge;
    int in_block = (int)(row % (merge * merge));
    int64_t block = row / (merge * merge);
    *x = ((int)(block % across) * merge + in_block % merge) * s.patch_size;
    *y = ((int)(block / across % down) * merge + in_block / merge) * s.patch_size;
    *frame = (int)(block / across / down) * s.temporal_patch_size;
}

DEVICE float patchify_of_channel(const float values[3], int channel) {
    return channel == 0 ? values[0] : channel == 1 ? values[1] : values[2];
}

// A thread for each element of a row: channel, time, y, x.
__global__ void __launch_bounds__(row_threads) patchify_kernel(struct patchify_args a) {
    const struct patch_shape &s = a.shape;
    int column = (int)grid_unit(), area = s.patch_size * s.patch_size;
    if (column >= a.columns) return;
    int dx = column % s.patch_size, dy = column % area / s.patch_size;
    int time = column / area % s.temporal_patch_size, channel = column / area / s.temporal_patch_size;
    float mean = patchify_of_channel(s.image_mean, channel), std = patchify_of_channel(s.image_std, channel);
    for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
        int frame, y, x;
        patchify_origin(s, row, &frame, &y, &x);
        frame = frame + time < s.frames ? frame + time : s.frames - 1; // an image has one frame for every time
        int64_t pixel = (int64_t)(y + dy) * s.width + x + dx;
        float value = (float)a.frames[frame * a.frame_stride + pixel * 3 + channel];
        value = div_rn(add_rn(mul_rn(value, s.rescale_factor), -mean), std);
        element_store(a.out.data + row * a.out.stride, a.out.type, column, value);
    }
}

status cuda_patchify(struct backend *backend, struct tensor out, struct tensor frames, const struct patch_shape *s) {
    int64_t patches, columns;
    CHECK(patch_shape_counts(s, &patches, &columns));
    CHECK(tensor_is(frames, ELEMENT_U8, s->frames, (int64_t)s->height * s->width * 3));
    CHECK(tensor_is(out, -1, patches, columns));
    if (patches == 0) return OK;
    struct patchify_args args = {
        device_rows_of(out), (const unsigned char *)tensor_row(frames, 0), frames.stride, patches, columns, *s};
    LAUNCH(patchify_kernel, grid_of(columns, patches), row_threads, 0, cuda_of(backend)->stream, args);
    return cuda_launched("patchify");
}
