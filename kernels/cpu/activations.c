// The activations SwiGLU, GeGLU, GELU and quick GELU and their gradients, row by row. The formulas are in
// row_kernels.inc.
#include "kernels/cpu/cpu.h"

enum { task_elements = 1 << 15 };

enum activation { SWIGLU, SWIGLU_GRAD, GEGLU, GEGLU_GRAD, GELU, GELU_GRAD, QUICK_GELU, QUICK_GELU_GRAD };

struct activation_job {
    const struct cpu_backend *cpu;
    enum activation operation;
    int64_t columns; // of out, or of grad_out
    struct tensor out, in, grad_out, grad_in;
};

// The operands of SwiGLU and GeGLU are the two halves of a row: gate and up.
static void activation_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct activation_job *job = context;
    const struct simd *simd = &job->cpu->simd;
    int64_t columns = job->columns;
    struct tensor up = tensor_columns(job->in, columns, columns),
                  grad_up = tensor_columns(job->grad_in, columns, columns);
    for (int64_t row = first; row < end; row++) {
        struct row_view out = row_view_of(job->out, row), in = row_view_of(job->in, row);
        struct row_view grad_out = row_view_of(job->grad_out, row), grad_in = row_view_of(job->grad_in, row);
        switch (job->operation) {
        case SWIGLU:
            simd->swiglu(out, in, row_view_of(up, row), columns);
            break;
        case SWIGLU_GRAD:
            simd->swiglu_grad(grad_in, row_view_of(grad_up, row), grad_out, in, row_view_of(up, row), columns);
            break;
        case GEGLU:
            simd->geglu(out, in, row_view_of(up, row), columns);
            break;
        case GEGLU_GRAD:
            simd->geglu_grad(grad_in, row_view_of(grad_up, row), grad_out, in, row_view_of(up, row), columns);
            break;
        case GELU:
            simd->gelu(out, in, columns);
            break;
        case GELU_GRAD:
            simd->gelu_grad(grad_in, grad_out, in, columns);
            break;
        case QUICK_GELU:
            simd->quick_gelu(out, in, columns);
            break;
        case QUICK_GELU_GRAD:
            simd->quick_gelu_grad(grad_in, grad_out, in, columns);
            break;
        }
    }
}

// `in` has `halves` times as many columns as out.
static status activation_run(struct backend *backend, enum activation operation, int halves, struct tensor out,
                             struct tensor in) {
    CHECK(tensor_is(out, -1, out.rows, out.columns) && tensor_is(in, -1, out.rows, halves * out.columns));
    struct activation_job job = {cpu_of(backend), operation, out.columns, .out = out, .in = in};
    parallel_for(cpu_of(backend), out.rows, task_elements / (job.columns + 1) + 1, activation_task, &job);
    return OK;
}

static status activation_run_grad(struct backend *backend, enum activation operation, int halves, struct tensor grad_in,
                                  struct tensor grad_out, struct tensor in) {
    int64_t rows = grad_out.rows, columns = grad_out.columns;
    CHECK(tensor_is(grad_out, -1, rows, columns) && tensor_is(in, -1, rows, halves * columns));
    CHECK(tensor_is(grad_in, -1, rows, halves * columns));
    struct activation_job job = {cpu_of(backend),      operation,         columns, .in = in,
                                 .grad_out = grad_out, .grad_in = grad_in};
    parallel_for(cpu_of(backend), rows, task_elements / (columns + 1) + 1, activation_task, &job);
    return OK;
}

status cpu_swiglu(struct backend *backend, struct tensor out, struct tensor gate_up) {
    return activation_run(backend, SWIGLU, 2, out, gate_up);
}

status cpu_swiglu_grad(struct backend *backend, struct tensor grad_gate_up, struct tensor grad_out,
                       struct tensor gate_up) {
    return activation_run_grad(backend, SWIGLU_GRAD, 2, grad_gate_up, grad_out, gate_up);
}

status cpu_geglu(struct backend *backend, struct tensor out, struct tensor in) {
    return activation_run(backend, GEGLU, 2, out, in);
}

status cpu_geglu_grad(struct backend *backend, struct tensor grad_in, struct tensor grad_out, struct tensor in) {
    return activation_run_grad(backend, GEGLU_GRAD, 2, grad_in, grad_out, in);
}

status cpu_gelu(struct backend *backend, struct tensor out, struct tensor in) {
    return activation_run(backend, GELU, 1, out, in);
}

status cpu_gelu_grad(struct backend *backend, struct tensor grad_in, struct tensor grad_out, struct tensor in) {
    return activation_run_grad(backend, GELU_GRAD, 1, grad_in, grad_out, in);
}

status cpu_quick_gelu(struct backend *backend, struct tensor out, struct tensor in) {
    return activation_run(backend, QUICK_GELU, 1, out, in);
}

status cpu_quick_gelu_grad(struct backend *backend, struct tensor grad_in, struct tensor grad_out, struct tensor in) {
    return activation_run_grad(backend, QUICK_GELU_GRAD, 1, grad_in, grad_out, in);
}
