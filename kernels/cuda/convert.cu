// Rows that are copied or converted from one float type to another, row by row or by an index of rows.
#include "kernels/cuda/convert.h"

// out row i = in row i; with an index, one of the two rows is index[i]. Columns are elements, or units of a copy.
struct convert_args {
    struct device_rows out, in;
    const int32_t *index; // or NULL
    int64_t index_stride;
    bool scatter; // the index is of rows of `out`, not of `in`
    int64_t rows, columns, indexed_rows;
    uint32_t *reports;
};

// Returns the indexed row of row i, or i without an index; -1 if it is out of range, which is reported once.
DEVICE int64_t convert_row(const struct convert_args &a, int64_t i) {
    if (!a.index) return i;
    int64_t row = a.index[i * a.index_stride];
    if (row >= 0 && row < a.indexed_rows) return row;
    if (blockIdx.x == 0 && threadIdx.x == 0) report_error(a.reports, CUDA_REPORT_INDEX);
    return -1;
}

template <typename unit> __global__ void __launch_bounds__(row_threads) copy_kernel(struct convert_args a) {
    int64_t column = grid_unit();
    for (int64_t i = blockIdx.y; i < a.rows && column < a.columns; i += gridDim.y) {
        int64_t row = convert_row(a, i), out = a.scatter ? row : i, in = a.scatter ? i : row;
        if (row < 0) continue;
        ((unit *)(a.out.data + out * a.out.stride))[column] = ((const unit *)(a.in.data + in * a.in.stride))[column];
    }
}

__global__ void __launch_bounds__(row_threads) convert_kernel(struct convert_args a) {
    int64_t column = grid_unit() * octet;
    for (int64_t i = blockIdx.y; i < a.rows && column < a.columns; i += gridDim.y) {
        int64_t row = convert_row(a, i), out = a.scatter ? row : i, in = a.scatter ? i : row;
        if (row < 0) continue;
        float values[octet];
        octet_load<LAYOUT_ANY>(values, a.in, in, column, a.columns);
        octet_store<LAYOUT_ANY>(a.out, out, column, a.columns, values);
    }
}

// Copies units of 16 bytes where rows consist of them, otherwise elements.
static void convert_copy(struct cuda_backend *cuda, struct convert_args a) {
    int64_t size = (int64_t)element_size(a.in.type), bytes = a.columns * size;
    if (a.out.aligned && a.in.aligned && bytes % 16 == 0) size = 16;
    a.columns = bytes / size;
    dim3 grid = grid_of(a.columns, a.rows);
    if (size == 16)
        LAUNCH(copy_kernel<struct words16>, grid, row_threads, 0, cuda->stream, a);
    else if (size == 4)
        LAUNCH(copy_kernel<uint32_t>, grid, row_threads, 0, cuda->stream, a);
    else if (size == 2)
        LAUNCH(copy_kernel<uint16_t>, grid, row_threads, 0, cuda->stream, a);
    else
        LAUNCH(copy_kernel<uint8_t>, grid, row_threads, 0, cuda->stream, a);
}

static bool convert_is_float(enum element type) {
    return type == ELEMENT_F32 || type == ELEMENT_BF16 || type == ELEMENT_F16;
}

static status convert_run(struct cuda_backend *cuda, const struct convert_args *a) {
    CHECK(a->in.type == a->out.type || (convert_is_float(a->in.type) && convert_is_float(a->out.type)));
    if (a->rows == 0 || a->columns == 0) return OK;
    if (a->in.type == a->out.type)
        convert_copy(cuda, *a);
    else
        LAUNCH(convert_kernel, grid_of(octets_of(a->columns), a->rows), row_threads, 0, cuda->stream, *a);
    return cuda_launched("convert");
}

status cuda_convert_indexed(struct cuda_backend *cuda, struct tensor out, struct tensor in, struct tensor index,
                            bool scatter) {
    struct convert_args args = {
        device_rows_of(out), device_rows_of(in), (const int32_t *)tensor_row(index, 0), index.stride, scatter,
        index.rows,          out.columns,        scatter ? out.rows : in.rows,          cuda->reports};
    return convert_run(cuda, &args);
}

static struct device_rows convert_rows_of(const void *data, enum element type, int64_t stride, int64_t rows) {
    int64_t bytes = stride * (int64_t)element_size(type);
    bool aligned = (uintptr_t)data % 16 == 0 && (rows <= 1 || bytes % 16 == 0);
    return {(char *)(uintptr_t)data, bytes, type, aligned};
}

status cuda_convert(struct cuda_backend *cuda, void *out, enum element to, int64_t out_stride, const void *in,
                    enum element from, int64_t in_stride, int64_t rows, int64_t columns) {
    if (rows > 1 && out_stride == columns && in_stride == columns) { // one long row
        columns *= rows;
        rows = 1;
    }
    struct convert_args args = {};
    args.out = convert_rows_of(out, to, out_stride, rows);
    args.in = convert_rows_of(in, from, in_stride, rows);
    args.rows = rows;
    args.columns = columns;
    return convert_run(cuda, &args);
}
