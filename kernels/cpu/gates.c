// The gates between products, SwiGLU and GELU, and their gradients.
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/row_view.h"

enum { gate_elements = 1 << 15 }; // a task's share

struct gating {
    const struct cpu_backend *cpu;
    struct tensor out, in, grad_out, grad_in;
};

static int64_t gate_block(int64_t columns) {
    return gate_elements / (columns + 1) + 1;
}

// ---- SwiGLU ----

static void swiglu_rows(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct gating *g = context;
    for (int64_t row = first; row < end; row++) {
        g->cpu->simd.swiglu(row_view_of(g->out, row), row_view_of(g->in, row),
                            row_view_from(g->in, row, g->out.columns), g->out.columns);
    }
}

status cpu_swiglu(struct backend *backend, struct tensor out, struct tensor gate_up) {
    CHECK(tensor_is(out, -1, out.rows, out.columns) && tensor_is(gate_up, -1, out.rows, 2 * out.columns));
    struct gating gating = {.cpu = cpu_of(backend), .out = out, .in = gate_up};
    parallel_for(cpu_of(backend), out.rows, gate_block(out.columns), swiglu_rows, &gating);
    return OK;
}

static void swiglu_slopes(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct gating *g = context;
    int64_t columns = g->grad_out.columns;
    for (int64_t row = first; row < end; row++) {
        g->cpu->simd.swiglu_grad(row_view_of(g->grad_in, row), row_view_from(g->grad_in, row, columns),
                                 row_view_of(g->grad_out, row), row_view_of(g->in, row),
                                 row_view_from(g->in, row, columns), columns);
    }
}

status cpu_swiglu_grad(struct backend *backend, struct tensor grad_gate_up, struct tensor grad_out,
                       struct tensor gate_up) {
    int64_t rows = grad_out.rows, columns = grad_out.columns;
    CHECK(tensor_is(grad_out, -1, rows, columns) && tensor_is(gate_up, -1, rows, 2 * columns));
    CHECK(tensor_is(grad_gate_up, -1, rows, 2 * columns));
    struct gating gating = {.cpu = cpu_of(backend), .in = gate_up, .grad_out = grad_out, .grad_in = grad_gate_up};
    parallel_for(cpu_of(backend), rows, gate_block(columns), swiglu_slopes, &gating);
    return OK;
}

// ---- GELU ----

static void gelu_rows(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct gating *g = context;
    for (int64_t row = first; row < end; row++) {
        g->cpu->simd.gelu(row_view_of(g->out, row), row_view_of(g->in, row), g->in.columns);
    }
}

status cpu_gelu(struct backend *backend, struct tensor out, struct tensor in) {
    CHECK(tensor_is(in, -1, in.rows, in.columns) && tensor_is(out, -1, in.rows, in.columns));
    struct gating gating = {.cpu = cpu_of(backend), .out = out, .in = in};
    parallel_for(cpu_of(backend), in.rows, gate_block(in.columns), gelu_rows, &gating);
    return OK;
}

static void gelu_slopes(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct gating *g = context;
    for (int64_t row = first; row < end; row++) {
        g->cpu->simd.gelu_grad(row_view_of(g->grad_in, row), row_view_of(g->grad_out, row), row_view_of(g->in, row),
                               g->in.columns);
    }
}

status cpu_gelu_grad(struct backend *backend, struct tensor grad_in, struct tensor grad_out, struct tensor in) {
    CHECK(tensor_is(in, -1, in.rows, in.columns) && tensor_is(grad_out, -1, in.rows, in.columns));
    CHECK(tensor_is(grad_in, -1, in.rows, in.columns));
    struct gating gating = {.cpu = cpu_of(backend), .in = in, .grad_out = grad_out, .grad_in = grad_in};
    parallel_for(cpu_of(backend), in.rows, gate_block(in.columns), gelu_slopes, &gating);
    return OK;
}
