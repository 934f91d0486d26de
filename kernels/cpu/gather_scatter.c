// Rows copied by index, and sums of rows: gather, scatter, scatter_add, add.
#include <assert.h>

#include "kernels/cpu/cpu.h"

enum {
    task_elements = 1 << 14, // elements that a task copies
    sum_columns = 512,       // columns of a task of scatter_add
    part_columns = 256,      // columns that add converts at once
};

struct rows_job {
    struct cpu_backend *cpu;
    struct tensor out, in, index;
};

static bool rows_index_fits(struct tensor index, int64_t count, int64_t rows) {
    if (!tensor_is(index, ELEMENT_I32, count, 1)) return false;
    for (int64_t i = 0; i < count; i++) {
        int32_t row = *tensor_i32(index, i);
        if (row < 0 || row >= rows) return false;
    }
    return true;
}

static void rows_run(struct backend *backend, struct rows_job job, int64_t rows,
                     void (*task)(void *context, int64_t first, int64_t end, int thread)) {
    job.cpu = cpu_of(backend);
    parallel_for(job.cpu, rows, task_elements / (job.out.columns + 1) + 1, task, &job);
}

static void rows_copy(const struct rows_job *job, int64_t out, int64_t in) {
    cpu_convert(job->cpu, tensor_row(job->out, out), job->out.type, tensor_row(job->in, in), job->in.type,
                (size_t)job->out.columns);
}

static void gather_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct rows_job *job = context;
    for (int64_t i = first; i < end; i++) rows_copy(job, i, *tensor_i32(job->index, i));
}

status cpu_gather(struct backend *backend, struct tensor out, struct tensor table, struct tensor index) {
    CHECK(tensor_fits(out) && tensor_fits(table) && out.columns == table.columns);
    CHECK(rows_index_fits(index, out.rows, table.rows));
    rows_run(backend, (struct rows_job){.out = out, .in = table, .index = index}, out.rows, gather_task);
    return OK;
}

static void scatter_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct rows_job *job = context;
    for (int64_t i = first; i < end; i++) rows_copy(job, *tensor_i32(job->index, i), i);
}

status cpu_scatter(struct backend *backend, struct tensor out, struct tensor in, struct tensor index) {
    CHECK(tensor_fits(out) && tensor_fits(in) && out.columns == in.columns);
    CHECK(rows_index_fits(index, in.rows, out.rows));
    rows_run(backend, (struct rows_job){.out = out, .in = in, .index = index}, in.rows, scatter_task);
    return OK;
}

// Adds a range of columns of every row, so that each sum is taken in the order of the rows.
static void scatter_add_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct rows_job *job = context;
    struct tensor part = tensor_columns(job->in, first, end - first);
    float values[sum_columns];
    assert(end - first <= sum_columns);
    for (int64_t i = 0; i < part.rows; i++) {
        const float *in = cpu_row_read(job->cpu, part, i, values);
        job->cpu->simd.add(tensor_f32(job->out, *tensor_i32(job->index, i)) + first, in, (size_t)(end - first));
    }
}

status cpu_scatter_add(struct backend *backend, struct tensor out, struct tensor in, struct tensor index) {
    CHECK(tensor_is(out, ELEMENT_F32, out.rows, in.columns) && tensor_is(in, -1, in.rows, in.columns));
    CHECK(rows_index_fits(index, in.rows, out.rows));
    struct rows_job job = {cpu_of(backend), out, in, index};
    parallel_for(job.cpu, in.columns, sum_columns, scatter_add_task, &job);
    return OK;
}

static void add_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct rows_job *job = context;
    float sums[part_columns], values[part_columns];
    for (int64_t row = first; row < end; row++) {
        for (int64_t column = 0; column < job->out.columns; column += part_columns) {
            int64_t count = job->out.columns - column < part_columns ? job->out.columns - column : part_columns;
            struct tensor out = tensor_columns(job->out, column, count);
            const float *in = cpu_row_read(job->cpu, tensor_columns(job->in, column, count), row, values);
            const float *old = cpu_row_read(job->cpu, out, row, sums);
            if (old != sums) memcpy(sums, old, (size_t)count * sizeof *sums);
            job->cpu->simd.add(sums, in, (size_t)count);
            cpu_row_write(job->cpu, out, row, sums);
        }
    }
}

status cpu_add(struct backend *backend, struct tensor out, struct tensor in) {
    CHECK(tensor_is(out, -1, in.rows, in.columns) && tensor_is(in, -1, out.rows, out.columns));
    rows_run(backend, (struct rows_job){.out = out, .in = in}, out.rows, add_task);
    return OK;
}
