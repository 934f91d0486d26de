// The mean over the rows of each segment, and its gradient. A task works on a range of columns of every row, so that
// each sum is taken in the order of the rows.
#include <assert.h>

#include "kernels/cpu/cpu.h"

enum { task_columns = 256 };

struct segment_mean_job {
    const struct cpu_backend *cpu;
    struct tensor means, rows, begins; // of segments, and of their rows
};

// Whether begins is I32 [segments + 1, 1] and increases strictly from 0 to `rows`.
static bool segment_mean_begins_fit(struct tensor begins, int64_t segments, int64_t rows) {
    if (!tensor_is(begins, ELEMENT_I32, segments + 1, 1)) return false;
    for (int64_t s = 0; s < segments; s++)
        if (*tensor_i32(begins, s) >= *tensor_i32(begins, s + 1)) return false;
    return *tensor_i32(begins, 0) == 0 && *tensor_i32(begins, segments) == rows;
}

static void segment_mean_divide(float *values, int64_t count, int64_t rows) {
    for (int64_t c = 0; c < count; c++) values[c] /= (float)rows;
}

static void segment_mean_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct segment_mean_job *job = context;
    struct tensor out = tensor_columns(job->means, first, end - first);
    struct tensor in = tensor_columns(job->rows, first, end - first);
    float sums[task_columns], values[task_columns];
    assert(end - first <= task_columns);
    for (int64_t s = 0; s < out.rows; s++) {
        int32_t begin = *tensor_i32(job->begins, s), stop = *tensor_i32(job->begins, s + 1);
        memset(sums, 0, sizeof sums);
        for (int64_t t = begin; t < stop; t++)
            job->cpu->simd.add(sums, cpu_row_read(job->cpu, in, t, values), (size_t)(end - first));
        segment_mean_divide(sums, end - first, stop - begin);
        cpu_row_write(job->cpu, out, s, sums);
    }
}

status cpu_segment_mean(struct backend *backend, struct tensor out, struct tensor in, struct tensor begins) {
    CHECK(tensor_is(out, -1, out.rows, in.columns) && tensor_is(in, -1, in.rows, in.columns));
    CHECK(segment_mean_begins_fit(begins, out.rows, in.rows));
    struct segment_mean_job job = {cpu_of(backend), out, in, begins};
    parallel_for(cpu_of(backend), in.columns, task_columns, segment_mean_task, &job);
    return OK;
}

static void segment_mean_grad_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct segment_mean_job *job = context;
    struct tensor grad_out = tensor_columns(job->means, first, end - first);
    struct tensor grad_in = tensor_columns(job->rows, first, end - first);
    float values[task_columns], shares[task_columns];
    assert(end - first <= task_columns);
    for (int64_t s = 0; s < grad_out.rows; s++) {
        int32_t begin = *tensor_i32(job->begins, s), stop = *tensor_i32(job->begins, s + 1);
        memcpy(shares, cpu_row_read(job->cpu, grad_out, s, values), (size_t)(end - first) * sizeof *shares);
        segment_mean_divide(shares, end - first, stop - begin);
        for (int64_t t = begin; t < stop; t++) cpu_row_write(job->cpu, grad_in, t, shares);
    }
}

status cpu_segment_mean_grad(struct backend *backend, struct tensor grad_in, struct tensor grad_out,
                             struct tensor begins) {
    CHECK(tensor_is(grad_in, -1, grad_in.rows, grad_in.columns));
    CHECK(tensor_is(grad_out, -1, grad_out.rows, grad_in.columns));
    CHECK(segment_mean_begins_fit(begins, grad_out.rows, grad_in.rows));
    struct segment_mean_job job = {cpu_of(backend), grad_out, grad_in, begins};
    parallel_for(cpu_of(backend), grad_in.columns, task_columns, segment_mean_grad_task, &job);
    return OK;
}
