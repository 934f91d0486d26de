// Rows that are copied, converted or added: conversions, gather, scatter, scatter_add, add, the mean of each segment,
// and patchify, which copies pixels to rows of patches.
#include "kernels/cuda/rows.h"

enum {
    MAX_SCATTER_THREADS = 512,
    SEGMENT_GROUPS = 8, // warps of a block, each of which takes every SEGMENT_GROUPS-th row of the segment
    SEGMENT_THREADS = 32 * SEGMENT_GROUPS,
};

// ---- convert ----

// out row i = in row i; with an index, one of the two rows is index[i]. Columns are elements, or units of a copy.
struct row_args {
    struct device_rows out, in;
    const int32_t *index; // or NULL
    int64_t index_stride;
    bool scatter; // the index is of rows of `out`, not of `in`
    int64_t rows, columns, indexed_rows;
    uint32_t *reports;
};

// The arguments for tensors with as many columns; index I32 [T,1], or none.
static struct row_args row_args_of(struct cuda_backend *cuda, struct tensor out, struct tensor in, struct tensor index,
                                   bool scatter) {
    return {
        device_rows_of(out),          device_rows_of(in), (const int32_t *)tensor_row(index, 0), index.stride, scatter,
        scatter ? in.rows : out.rows, out.columns,        scatter ? out.rows : in.rows,          cuda->reports};
}

// Returns the indexed row of row i, or i without an index; -1 if it is out of range, which is reported once.
DEVICE int64_t convert_row(const struct row_args &a, int64_t i) {
    if (!a.index) return i;
    int64_t row = a.index[i * a.index_stride];
    if (row >= 0 && row < a.indexed_rows) return row;
    if (blockIdx.x == 0 && threadIdx.x == 0) report_error(a.reports, CUDA_REPORT_INDEX);
    return -1;
}

template <typename unit> __global__ void __launch_bounds__(ROW_THREADS) copy_kernel(struct row_args a) {
    int64_t column = grid_unit();
    for (int64_t i = blockIdx.y; i < a.rows && column < a.columns; i += gridDim.y) {
        int64_t row = convert_row(a, i), out = a.scatter ? row : i, in = a.scatter ? i : row;
        if (row < 0) continue;
        ((unit *)(a.out.data + out * a.out.stride))[column] = ((const unit *)(a.in.data + in * a.in.stride))[column];
    }
}

__global__ void __launch_bounds__(ROW_THREADS) convert_kernel(struct row_args a) {
    int64_t column = grid_unit() * OCTET;
    for (int64_t i = blockIdx.y; i < a.rows && column < a.columns; i += gridDim.y) {
        int64_t row = convert_row(a, i), out = a.scatter ? row : i, in = a.scatter ? i : row;
        if (row < 0) continue;
        float values[OCTET];
        octet_load<LAYOUT_ANY>(values, a.in, in, column, a.columns);
        octet_store<LAYOUT_ANY>(a.out, out, column, a.columns, values);
    }
}

static status convert_run(struct cuda_backend *cuda, struct row_args a) {
    CHECK(elements_convertible(a.out.type, a.in.type));
    if (a.rows == 0 || a.columns == 0) return OK;
    if (a.in.type != a.out.type) {
        LAUNCH(convert_kernel, grid_of(octets_of(a.columns), a.rows), ROW_THREADS, 0, cuda->stream, a);
        return cuda_launched("convert");
    }
    // Units of 16 or 8 bytes are copied where rows consist of them, otherwise elements.
    int64_t size = (int64_t)element_size(a.in.type), bytes = a.columns * size;
    struct device_rows both[] = {a.out, a.in};
    if (bytes % 8 == 0 && halves_of(both, 2)) size = 8;
    if (a.out.aligned && a.in.aligned && bytes % 16 == 0) size = 16;
    a.columns = bytes / size;
    dim3 grid = grid_of(a.columns, a.rows);
    if (size == 16)
        LAUNCH(copy_kernel<struct words16>, grid, ROW_THREADS, 0, cuda->stream, a);
    else if (size == 8)
        LAUNCH(copy_kernel<struct words8>, grid, ROW_THREADS, 0, cuda->stream, a);
    else if (size == 4)
        LAUNCH(copy_kernel<uint32_t>, grid, ROW_THREADS, 0, cuda->stream, a);
    else if (size == 2)
        LAUNCH(copy_kernel<uint16_t>, grid, ROW_THREADS, 0, cuda->stream, a);
    else
        LAUNCH(copy_kernel<uint8_t>, grid, ROW_THREADS, 0, cuda->stream, a);
    return cuda_launched("convert");
}

status cuda_convert(struct cuda_backend *cuda, struct tensor out, struct tensor in) {
    if (tensor_dense(out) && tensor_dense(in)) { // one long row
        out = tensor_reshape(out, 1, out.rows * out.columns);
        in = tensor_reshape(in, 1, in.rows * in.columns);
    }
    return convert_run(cuda, row_args_of(cuda, out, in, {}, false));
}

status cuda_gather(struct backend *backend, struct tensor out, struct tensor table, struct tensor index) {
    CHECK(tensor_fits(out) && tensor_fits(table) && out.columns == table.columns);
    CHECK(tensor_is(index, ELEMENT_I32, out.rows, 1));
    struct cuda_backend *cuda = cuda_of(backend);
    return convert_run(cuda, row_args_of(cuda, out, table, index, false));
}

status cuda_scatter(struct backend *backend, struct tensor out, struct tensor in, struct tensor index) {
    CHECK(tensor_fits(out) && tensor_fits(in) && out.columns == in.columns);
    CHECK(tensor_is(index, ELEMENT_I32, in.rows, 1));
    struct cuda_backend *cuda = cuda_of(backend);
    return convert_run(cuda, row_args_of(cuda, out, in, index, true));
}

// ---- scatter_add ----

// Whether an earlier row than i has the index `row`: then that row's block adds row i. Every thread of the block calls.
DEVICE bool scatter_add_earlier(const struct row_args &a, int64_t i, int32_t row, uint32_t *shared) {
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
DEVICE void scatter_add_rows(float sums[OCTET], const struct row_args &a, int64_t first, const uint32_t *bits,
                             int64_t column) {
    for (int warp = 0; warp < (int)blockDim.x / 32; warp++) {
        uint32_t word = bits[warp];
        for (int64_t j = first + 32 * warp; word; j++, word >>= 1) {
            if (!(word & 1) || column >= a.columns) continue;
            float values[OCTET];
            octet_load<layout>(values, a.in, j, column, a.columns);
#pragma unroll
            for (int e = 0; e < OCTET; e++) sums[e] = add_rn(sums[e], values[e]);
        }
    }
}

// A block for each row i of `in` (x), and for its columns (y). The block of the first row of an index adds all rows of
// that index, in their order: it looks for them among blockDim.x rows at a time, one a thread.
template <int layout> __global__ void __launch_bounds__(MAX_SCATTER_THREADS) scatter_add_kernel(struct row_args a) {
    uint32_t *shared = (uint32_t *)dynamic_shared();
    int64_t i = blockIdx.x, column = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * OCTET;
    int32_t row = a.index[i * a.index_stride];
    if (row < 0 || row >= a.indexed_rows) {
        if (threadIdx.x == 0) report_error(a.reports, CUDA_REPORT_INDEX);
        return;
    }
    if (scatter_add_earlier(a, i, row, shared)) return;
    float sums[OCTET];
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
    struct row_args args = row_args_of(cuda, out, in, index, true);
    int64_t octets = octets_of(in.columns), threads = (octets + 31) / 32 * 32;
    if (threads > MAX_SCATTER_THREADS) threads = MAX_SCATTER_THREADS;
    dim3 grid((unsigned)in.rows, (unsigned)((octets + threads - 1) / threads));
    LAUNCH_LAYOUT(layout_of(in.columns, &args.in, 1), scatter_add_kernel, grid, (unsigned)threads,
                  (size_t)threads / 32 * sizeof(uint32_t), cuda->stream, args);
    return cuda_launched("scatter_add");
}

// ---- add ----

struct add_args {
    struct device_rows out, in;
    int64_t rows, columns;
};

template <int layout> __global__ void __launch_bounds__(ROW_THREADS) add_kernel(struct add_args a) {
    int64_t i = grid_unit() * OCTET;
    if (i >= a.columns) return;
    for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
        float sums[OCTET], values[OCTET];
        octet_load<layout>(sums, a.out, row, i, a.columns);
        octet_load<layout>(values, a.in, row, i, a.columns);
#pragma unroll
        for (int e = 0; e < OCTET; e++) sums[e] = add_rn(sums[e], values[e]);
        octet_store<layout>(a.out, row, i, a.columns, sums);
    }
}

status cuda_add(struct backend *backend, struct tensor out, struct tensor in) {
    CHECK(tensor_is(out, -1, in.rows, in.columns) && tensor_is(in, -1, out.rows, out.columns));
    if (out.rows == 0 || out.columns == 0) return OK;
    struct device_rows operands[] = {device_rows_of(out), device_rows_of(in)};
    struct add_args args = {operands[0], operands[1], out.rows, out.columns};
    LAUNCH_LAYOUT(layout_of(out.columns, operands, 2), add_kernel, grid_of(octets_of(out.columns), out.rows),
                  ROW_THREADS, 0, cuda_of(backend)->stream, args);
    return cuda_launched("add");
}

// ---- scale ----

template <int layout> __global__ void __launch_bounds__(ROW_THREADS) scale_kernel(struct add_args a, float factor) {
    int64_t i = grid_unit() * OCTET;
    if (i >= a.columns) return;
    for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
        float values[OCTET];
        octet_load<layout>(values, a.in, row, i, a.columns);
#pragma unroll
        for (int e = 0; e < OCTET; e++) values[e] = mul_rn(values[e], factor);
        octet_store<layout>(a.out, row, i, a.columns, values);
    }
}

status cuda_scale(struct backend *backend, struct tensor out, struct tensor in, float factor) {
    CHECK(tensor_is(out, -1, in.rows, in.columns) && tensor_is(in, -1, out.rows, out.columns));
    if (out.rows == 0 || out.columns == 0) return OK;
    struct device_rows operands[] = {device_rows_of(out), device_rows_of(in)};
    struct add_args args = {operands[0], operands[1], out.rows, out.columns};
    LAUNCH_LAYOUT(layout_of(out.columns, operands, 2), scale_kernel, grid_of(octets_of(out.columns), out.rows),
                  ROW_THREADS, 0, cuda_of(backend)->stream, args, factor);
    return cuda_launched("scale");
}

// ---- segment_mean ----
//
// A block works on one segment (x) and on the columns of 32 octets (y). A warp takes every SEGMENT_GROUPS-th row of the
// segment; the warps' sums are then added in order.

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
    return ((int64_t)blockIdx.y * 32 + threadIdx.x % 32) * OCTET;
}

template <int layout>
__global__ void __launch_bounds__(SEGMENT_THREADS, 4) segment_mean_kernel(struct segment_mean_args a) {
    float *shared = (float *)dynamic_shared(); // [SEGMENT_THREADS][OCTET]
    int64_t first, end, i = segment_mean_column();
    if (!segment_mean_rows(a, &first, &end)) return;
    float sums[OCTET] = {};
    for (int64_t row = first + threadIdx.x / 32; row < end && i < a.columns; row += SEGMENT_GROUPS) {
        float values[OCTET];
        octet_load<layout>(values, a.rows, row, i, a.columns);
#pragma unroll
        for (int e = 0; e < OCTET; e++) sums[e] = add_rn(sums[e], values[e]);
    }
#pragma unroll
    for (int e = 0; e < OCTET; e++) shared[e * SEGMENT_THREADS + (int)threadIdx.x] = sums[e];
    __syncthreads();
    if (threadIdx.x >= 32 || i >= a.columns) return;
#pragma unroll
    for (int e = 0; e < OCTET; e++) {
        for (int group = 1; group < SEGMENT_GROUPS; group++)
            sums[e] = add_rn(sums[e], shared[e * SEGMENT_THREADS + group * 32 + (int)threadIdx.x]);
        sums[e] = div_rn(sums[e], (float)(end - first));
    }
    octet_store<LAYOUT_ANY>(a.means, blockIdx.x, i, a.columns, sums);
}

template <int layout>
__global__ void __launch_bounds__(SEGMENT_THREADS, 4) segment_mean_grad_kernel(struct segment_mean_args a) {
    int64_t first, end, i = segment_mean_column();
    if (!segment_mean_rows(a, &first, &end) || i >= a.columns) return;
    float share[OCTET];
    octet_load<LAYOUT_ANY>(share, a.means, blockIdx.x, i, a.columns);
#pragma unroll
    for (int e = 0; e < OCTET; e++) share[e] = div_rn(share[e], (float)(end - first));
    for (int64_t row = first + threadIdx.x / 32; row < end; row += SEGMENT_GROUPS)
        octet_store<layout>(a.rows, row, i, a.columns, share);
}

// Of a gradient the means are read, and the rows are written.
static status segment_mean_run(struct backend *backend, bool grad, struct tensor means, struct tensor rows,
                               struct tensor begins) {
    struct cuda_backend *cuda = cuda_of(backend);
    CHECK(tensor_is(means, -1, means.rows, rows.columns) && tensor_is(rows, -1, rows.rows, rows.columns));
    CHECK(tensor_is(begins, ELEMENT_I32, means.rows + 1, 1) && (means.rows > 0) == (rows.rows > 0));
    if (means.rows == 0 || rows.columns == 0) return OK;
    struct segment_mean_args args = {
        device_rows_of(means), device_rows_of(rows), (const int32_t *)tensor_row(begins, 0),
        begins.stride,         means.rows,           rows.rows,
        rows.columns,          cuda->reports};
    enum layout layout = layout_of(rows.columns, &args.rows, 1);
    dim3 grid((unsigned)means.rows, (unsigned)((octets_of(rows.columns) + 31) / 32));
    if (grad)
        LAUNCH_LAYOUT(layout, segment_mean_grad_kernel, grid, SEGMENT_THREADS, 0, cuda->stream, args);
    else
        LAUNCH_LAYOUT(layout, segment_mean_kernel, grid, SEGMENT_THREADS, OCTET * SEGMENT_THREADS * sizeof(float),
                      cuda->stream, args);
    return cuda_launched(grad ? "segment_mean_grad" : "segment_mean");
}

status cuda_segment_mean(struct backend *backend, struct tensor out, struct tensor in, struct tensor begins) {
    return segment_mean_run(backend, false, out, in, begins);
}

status cuda_segment_mean_grad(struct backend *backend, struct tensor grad_in, struct tensor grad_out,
                              struct tensor begins) {
    return segment_mean_run(backend, true, grad_out, grad_in, begins);
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
__global__ void __launch_bounds__(ROW_THREADS) patchify_kernel(struct patchify_args a) {
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
    LAUNCH(patchify_kernel, grid_of(columns, patches), ROW_THREADS, 0, cuda_of(backend)->stream, args);
    return cuda_launched("patchify");
}
