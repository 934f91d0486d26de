// The gates between products, SwiGLU and GELU, and their gradients.
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/line.h"

enum { gate_elements = 1 << 15 }; // a task's share

struct gating {
    const struct cpu_backend *cpu;
    struct tensor out, in, out_gradient, in_gradient;
};

static int64_t gate_block(int64_t columns) {
    return gate_elements / (columns + 1) + 1;
}

// ---- SwiGLU ----

static void swiglu_rows(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct gating *g = context;
    for (int64_t row = first; row < end; row++) {
        g->cpu->vectors.swiglu(line_of(g->out, row), line_of(g->in, row), line_part(g->in, row, g->out.columns),
                               g->out.columns);
    }
}

status cpu_swiglu(struct backend *backend, struct tensor out, struct tensor gate_up) {
    CHECK(tensor_is(out, -1, out.rows, out.columns) && tensor_is(gate_up, -1, out.rows, 2 * out.columns));
    struct gating gating = {.cpu = cpu_of(backend), .out = out, .in = gate_up};
    cpu_blocks(cpu_of(backend), out.rows, gate_block(out.columns), swiglu_rows, &gating);
    return OK;
}

static void swiglu_slopes(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct gating *g = context;
    int64_t columns = g->out_gradient.columns;
    for (int64_t row = first; row < end; row++) {
        g->cpu->vectors.swiglu_gradient(line_of(g->in_gradient, row), line_part(g->in_gradient, row, columns),
                                        line_of(g->out_gradient, row), line_of(g->in, row),
                                        line_part(g->in, row, columns), columns);
    }
}

status cpu_swiglu_gradient(struct backend *backend, struct tensor gate_up_gradient, struct tensor out_gradient,
                           struct tensor gate_up) {
    int64_t rows = out_gradient.rows, columns = out_gradient.columns;
    CHECK(tensor_is(out_gradient, -1, rows, columns) && tensor_is(gate_up, -1, rows, 2 * columns));
    CHECK(tensor_is(gate_up_gradient, -1, rows, 2 * columns));
    struct gating gating = {
        .cpu = cpu_of(backend), .in = gate_up, .out_gradient = out_gradient, .in_gradient = gate_up_gradient};
    cpu_blocks(cpu_of(backend), rows, gate_block(columns), swiglu_slopes, &gating);
    return OK;
}

// ---- GELU ----

static void gelu_rows(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct gating *g = context;
    for (int64_t row = first; row < end; row++) {
        g->cpu->vectors.gelu(line_of(g->out, row), line_of(g->in, row), g->in.columns);
    }
}

status cpu_gelu(struct backend *backend, struct tensor out, struct tensor in) {
    CHECK(tensor_is(in, -1, in.rows, in.columns) && tensor_is(out, -1, in.rows, in.columns));
    struct gating gating = {.cpu = cpu_of(backend), .out = out, .in = in};
    cpu_blocks(cpu_of(backend), in.rows, gate_block(in.columns), gelu_rows, &gating);
    return OK;
}

static void gelu_slopes(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct gating *g = context;
    for (int64_t row = first; row < end; row++) {
        g->cpu->vectors.gelu_gradient(line_of(g->in_gradient, row), line_of(g->out_gradient, row), line_of(g->in, row),
                                      g->in.columns);
    }
}

status cpu_gelu_gradient(struct backend *backend, struct tensor in_gradient, struct tensor out_gradient,
                         struct tensor in) {
    CHECK(tensor_is(in, -1, in.rows, in.columns) && tensor_is(out_gradient, -1, in.rows, in.columns));
    CHECK(tensor_is(in_gradient, -1, in.rows, in.columns));
    struct gating gating = {.cpu = cpu_of(backend), .in = in, .out_gradient = out_gradient, .in_gradient = in_gradient};
    cpu_blocks(cpu_of(backend), in.rows, gate_block(in.columns), gelu_slopes, &gating);
    return OK;
}
