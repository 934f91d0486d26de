// Rows moved by index, and sums of rows.
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd_families.h"

enum { elements_a_task = 1 << 14 };

static void add(float *out, const float *in, size_t count) {
    for (size_t i = 0; i < count; i++) out[i] += in[i];
}

void simd_rows(struct simd *simd) {
    simd->add = add;
}

struct moving {
    struct cpu_backend *cpu;
    struct tensor out, in;
    const int32_t *index;
    int64_t index_stride;
};

static int64_t rows_a_task(int64_t columns) {
    return elements_a_task / (columns + 1) + 1;
}

static bool in_range(struct tensor index, int64_t rows) {
    for (int64_t i = 0; i < index.rows; i++) {
        int32_t row = *tensor_i32(index, i);
        if (row < 0 || row >= rows) return false;
    }
    return true;
}

static void convert_row(const struct moving *m, int64_t out, int64_t in) {
    cpu_convert(m->cpu, tensor_row(m->out, out), m->out.type, tensor_row(m->in, in), m->in.type,
                (size_t)m->out.columns);
}

static void gather_rows(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct moving *m = context;
    for (int64_t i = first; i < end; i++) convert_row(m, i, m->index[i * m->index_stride]);
}

static void scatter_rows(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct moving *m = context;
    for (int64_t i = first; i < end; i++) convert_row(m, m->index[i * m->index_stride], i);
}

status cpu_gather(struct backend *backend, struct tensor out, struct tensor table, struct tensor index) {
    CHECK(tensor_fits(out) && tensor_fits(table) && out.columns == table.columns);
    CHECK(tensor_is(index, ELEMENT_I32, out.rows, 1) && in_range(index, table.rows));
    struct moving moving = {cpu_of(backend), out, table, tensor_i32(index, 0), index.stride};
    parallel_for(moving.cpu, out.rows, rows_a_task(out.columns), gather_rows, &moving);
    return OK;
}

status cpu_scatter(struct backend *backend, struct tensor out, struct tensor in, struct tensor index) {
    CHECK(tensor_fits(out) && tensor_fits(in) && out.columns == in.columns);
    CHECK(tensor_is(index, ELEMENT_I32, in.rows, 1) && in_range(index, out.rows));
    struct moving moving = {cpu_of(backend), out, in, tensor_i32(index, 0), index.stride};
    parallel_for(moving.cpu, in.rows, rows_a_task(in.columns), scatter_rows, &moving);
    return OK;
}

// A range of columns of every row: so each sum is taken in the order of i.
static void scatter_add_columns(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct moving *m = context;
    struct tensor part = tensor_columns(m->in, first, end - first);
    float room[512];
    for (int64_t i = 0; i < part.rows; i++) {
        const float *in = cpu_row_read(m->cpu, part, i, room);
        m->cpu->simd.add(tensor_f32(m->out, m->index[i * m->index_stride]) + first, in, (size_t)(end - first));
    }
}

status cpu_scatter_add(struct backend *backend, struct tensor out, struct tensor in, struct tensor index) {
    CHECK(tensor_is(out, ELEMENT_F32, out.rows, in.columns) && tensor_is(in, -1, in.rows, in.columns));
    CHECK(tensor_is(index, ELEMENT_I32, in.rows, 1) && in_range(index, out.rows));
    struct moving moving = {cpu_of(backend), out, in, tensor_i32(index, 0), index.stride};
    parallel_for(moving.cpu, in.columns, 512, scatter_add_columns, &moving);
    return OK;
}

// Ranges of columns of one row; F32 onto F32 needs no conversion.
static void add_row(const struct moving *m, int64_t row) {
    float sums[256], room[256];
    for (int64_t first = 0; first < m->out.columns; first += 256) {
        int64_t count = m->out.columns - first < 256 ? m->out.columns - first : 256;
        struct tensor out = tensor_columns(m->out, first, count);
        const float *in = cpu_row_read(m->cpu, tensor_columns(m->in, first, count), row, room);
        const float *old = cpu_row_read(m->cpu, out, row, sums);
        if (old != sums) memcpy(sums, old, (size_t)count * 4);
        m->cpu->simd.add(sums, in, (size_t)count);
        cpu_row_write(m->cpu, out, row, sums);
    }
}

static void add_rows(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct moving *m = context;
    for (int64_t row = first; row < end; row++) add_row(m, row);
}

status cpu_add(struct backend *backend, struct tensor out, struct tensor in) {
    CHECK(tensor_is(out, -1, in.rows, in.columns) && tensor_is(in, -1, out.rows, out.columns));
    struct moving moving = {.cpu = cpu_of(backend), .out = out, .in = in};
    parallel_for(moving.cpu, out.rows, rows_a_task(out.columns), add_rows, &moving);
    return OK;
}
