// The activations SwiGLU and GELU and their gradients, row by row. The formulas are in row_kernels.inc.
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/row_view.h"

enum { task_elements = 1 << 15 };

struct activation_job {
    const struct cpu_backend *cpu;
    struct tensor out, in, grad_out, grad_in;
};

static void activation_run(struct backend *backend, struct activation_job job, int64_t rows, int64_t columns,
                           void (*task)(void *context, int64_t first, int64_t end, int thread)) {
    job.cpu = cpu_of(backend);
    parallel_for(cpu_of(backend), rows, task_elements / (columns + 1) + 1, task, &job);
}

// ---- SwiGLU ----

static void swiglu_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct activation_job *job = context;
    int64_t columns = job->out.columns;
    for (int64_t row = first; row < end; row++) {
        job->cpu->simd.swiglu(row_view_of(job->out, row), row_view_of(job->in, row),
                              row_view_from(job->in, row, columns), columns);
    }
}

status cpu_swiglu(struct backend *backend, struct tensor out, struct tensor gate_up) {
    CHECK(tensor_is(out, -1, out.rows, out.columns) && tensor_is(gate_up, -1, out.rows, 2 * out.columns));
    activation_run(backend, (struct activation_job){.out = out, .in = gate_up}, out.rows, out.columns, swiglu_task);
    return OK;
}

static void swiglu_grad_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct activation_job *job = context;
    int64_t columns = job->grad_out.columns;
    for (int64_t row = first; row < end; row++) {
        job->cpu->simd.swiglu_grad(row_view_of(job->grad_in, row), row_view_from(job->grad_in, row, columns),
                                   row_view_of(job->grad_out, row), row_view_of(job->in, row),
                                   row_view_from(job->in, row, columns), columns);
    }
}

status cpu_swiglu_grad(struct backend *backend, struct tensor grad_gate_up, struct tensor grad_out,
                       struct tensor gate_up) {
    int64_t rows = grad_out.rows, columns = grad_out.columns;
    CHECK(tensor_is(grad_out, -1, rows, columns) && tensor_is(gate_up, -1, rows, 2 * columns));
    CHECK(tensor_is(grad_gate_up, -1, rows, 2 * columns));
    activation_run(backend, (struct activation_job){.in = gate_up, .grad_out = grad_out, .grad_in = grad_gate_up}, rows,
                   columns, swiglu_grad_task);
    return OK;
}

// ---- GELU ----

static void gelu_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct activation_job *job = context;
    for (int64_t row = first; row < end; row++) {
        job->cpu->simd.gelu(row_view_of(job->out, row), row_view_of(job->in, row), job->in.columns);
    }
}

status cpu_gelu(struct backend *backend, struct tensor out, struct tensor in) {
    CHECK(tensor_is(in, -1, in.rows, in.columns) && tensor_is(out, -1, in.rows, in.columns));
    activation_run(backend, (struct activation_job){.out = out, .in = in}, in.rows, in.columns, gelu_task);
    return OK;
}

static void gelu_grad_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct activation_job *job = context;
    for (int64_t row = first; row < end; row++) {
        job->cpu->simd.gelu_grad(row_view_of(job->grad_in, row), row_view_of(job->grad_out, row),
                                 row_view_of(job->in, row), job->in.columns);
    }
}

status cpu_gelu_grad(struct backend *backend, struct tensor grad_in, struct tensor grad_out, struct tensor in) {
    CHECK(tensor_is(in, -1, in.rows, in.columns) && tensor_is(grad_out, -1, in.rows, in.columns));
    CHECK(tensor_is(grad_in, -1, in.rows, in.columns));
    activation_run(backend, (struct activation_job){.in = in, .grad_out = grad_out, .grad_in = grad_in}, in.rows,
                   in.columns, gelu_grad_task);
    return OK;
}
