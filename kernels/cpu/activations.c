// The activations SwiGLU and GELU and their gradients, row by row. The formulas are in row_kernels.inc.
#include "kernels/cpu/cpu.h"

enum { task_elements = 1 << 15 };

struct activation_job {
    const struct cpu_backend *cpu;
    enum { SWIGLU, SWIGLU_GRAD, GELU, GELU_GRAD } operation;
    int64_t columns; // of out, or of grad_out
    struct tensor out, in, grad_out, grad_in;
};

// The operands of SwiGLU are the two halves of a row: gate and up.
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
        case GELU:
            simd->gelu(out, in, columns);
            break;
        case GELU_GRAD:
            simd->gelu_grad(grad_in, grad_out, in, columns);
            break;
        }
    }
}

static void activation_run(struct backend *backend, struct activation_job job, int64_t rows) {
    job.cpu = cpu_of(backend);
    parallel_for(cpu_of(backend), rows, task_elements / (job.columns + 1) + 1, activation_task, &job);
}

status cpu_swiglu(struct backend *backend, struct tensor out, struct tensor gate_up) {
    CHECK(tensor_is(out, -1, out.rows, out.columns) && tensor_is(gate_up, -1, out.rows, 2 * out.columns));
    struct activation_job job = {.operation = SWIGLU, .columns = out.columns, .out = out, .in = gate_up};
    activation_run(backend, job, out.rows);
    return OK;
}

status cpu_swiglu_grad(struct backend *backend, struct tensor grad_gate_up, struct tensor grad_out,
                       struct tensor gate_up) {
    int64_t rows = grad_out.rows, columns = grad_out.columns;
    CHECK(tensor_is(grad_out, -1, rows, columns) && tensor_is(gate_up, -1, rows, 2 * columns));
    CHECK(tensor_is(grad_gate_up, -1, rows, 2 * columns));
    struct activation_job job = {
        .operation = SWIGLU_GRAD, .columns = columns, .in = gate_up, .grad_out = grad_out, .grad_in = grad_gate_up};
    activation_run(backend, job, rows);
    return OK;
}

status cpu_gelu(struct backend *backend, struct tensor out, struct tensor in) {
    CHECK(tensor_is(in, -1, in.rows, in.columns) && tensor_is(out, -1, in.rows, in.columns));
    struct activation_job job = {.operation = GELU, .columns = in.columns, .out = out, .in = in};
    activation_run(backend, job, in.rows);
    return OK;
}

status cpu_gelu_grad(struct backend *backend, struct tensor grad_in, struct tensor grad_out, struct tensor in) {
    CHECK(tensor_is(in, -1, in.rows, in.columns) && tensor_is(grad_out, -1, in.rows, in.columns));
    CHECK(tensor_is(grad_in, -1, in.rows, in.columns));
    struct activation_job job = {
        .operation = GELU_GRAD, .columns = in.columns, .in = in, .grad_out = grad_out, .grad_in = grad_in};
    activation_run(backend, job, in.rows);
    return OK;
}
