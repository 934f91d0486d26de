// The activations SwiGLU, GeGLU, GELU and quick GELU and their gradients, row by row. The formulas are in
// row_kernels.inc.
#include "kernels/cpu/cpu.h"

enum { TASK_ELEMENTS = 1 << 15 };

struct activation_job {
    const struct cpu_backend *cpu;
    enum activation kind;
    struct tensor out, in; // out: of the gradient, grad_in
    struct tensor grad_out;
    int64_t columns; // of the activation, or of grad_out
};

static void activation_task(void *context, struct task_range range) {
    const struct activation_job *job = context;
    const struct simd *simd = &job->cpu->simd;
    for (int64_t row = range.first; row < range.end; row++) {
        struct row_view out = row_view_of(job->out, row), in = row_view_of(job->in, row);
        if (tensor_none(job->grad_out))
            simd->activation(job->kind, out, in, job->columns);
        else
            simd->activation_grad(job->kind, out, row_view_of(job->grad_out, row), in, job->columns);
    }
}

// `grad_out` is none unless `out` is the gradient of `in`.
static status activation_run(struct backend *backend, enum activation kind, struct tensor out, struct tensor grad_out,
                             struct tensor in) {
    const struct tensor result = tensor_none(grad_out) ? out : grad_out;
    int64_t rows = result.rows, columns = result.columns, in_columns = activation_gated(kind) ? 2 * columns : columns;
    CHECK(tensor_is(result, -1, rows, columns) && tensor_is(in, -1, rows, in_columns));
    CHECK(tensor_none(grad_out) || tensor_is(out, -1, rows, in_columns));
    struct activation_job job = {cpu_of(backend), kind, out, in, grad_out, columns};
    parallel_for(cpu_of(backend), rows, TASK_ELEMENTS / (columns + 1) + 1, activation_task, &job);
    return OK;
}

status cpu_activation(struct backend *backend, enum activation kind, struct tensor out, struct tensor in) {
    return activation_run(backend, kind, out, (struct tensor){0}, in);
}

status cpu_activation_grad(struct backend *backend, enum activation kind, struct tensor grad_in, struct tensor grad_out,
                           struct tensor in) {
    CHECK(!tensor_none(grad_out));
    return activation_run(backend, kind, grad_in, grad_out, in);
}
