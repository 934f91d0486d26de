// Products of activations with weights, and their gradients.
#include "kernels/cpu/weight.h"

#include <stdlib.h>

enum { chunk_rows = 2048 }; // rows that a weight gradient takes in at once

// ---- a product into a tensor ----

struct linear {
    struct cpu_backend *cpu;
    struct tensor out, in;
    const float *bias; // or NULL
    bool add;
};

static const void *dense_rows(const void *context, int64_t first, int64_t rows, void *room) {
    const struct linear *l = context;
    if (l->in.stride == l->in.columns) return tensor_row(l->in, first);
    size_t bytes = (size_t)l->in.columns * element_size(l->in.type);
    for (int64_t i = 0; i < rows; i++) memcpy((char *)room + (size_t)i * bytes, tensor_row(l->in, first + i), bytes);
    return room;
}

static void store_row(const struct linear *l, float *tile, int64_t row, int64_t column, int64_t columns) {
    enum element type = l->out.type;
    char *out = (char *)tensor_row(l->out, row) + (size_t)column * element_size(type);
    float room[512];
    if (l->bias) l->cpu->simd.add(tile, l->bias + column, (size_t)columns);
    if (l->add) {
        cpu_convert(l->cpu, room, ELEMENT_F32, out, type, (size_t)columns);
        l->cpu->simd.add(tile, room, (size_t)columns);
    }
    cpu_convert(l->cpu, out, type, tile, ELEMENT_F32, (size_t)columns);
}

static void store_tile(const void *context, float *tile, int64_t stride, int64_t first, int64_t rows, int64_t column,
                       int64_t columns) {
    for (int64_t i = 0; i < rows; i++) store_row(context, tile + i * stride, first + i, column, columns);
}

status linear_packed(struct cpu_backend *cpu, struct tensor out, struct tensor in, struct packed matrix,
                     struct tensor bias, bool add) {
    struct linear linear = {.cpu = cpu, .out = out, .in = in, .add = add};
    if (!tensor_none(bias)) {
        float *values;
        TRY(cpu_scratch(cpu, SCRATCH_SUMS, (size_t)bias.columns * sizeof *values, &values));
        linear.bias = cpu_row_read(cpu, bias, 0, values);
    }
    struct product product = {
        .matrix = matrix, .rows = in.rows, .operand = dense_rows, .store = store_tile, .context = &linear};
    return product_run(cpu, &product);
}

status cpu_linear(struct backend *backend, struct tensor out, struct tensor in, struct weight *w, struct tensor bias) {
    int64_t outputs = weight_outputs(w);
    CHECK(tensor_is(out, -1, in.rows, outputs) && tensor_is(in, (int)weight_type(w), in.rows, weight_inner(w)));
    CHECK(tensor_none(bias) || tensor_is(bias, -1, 1, outputs));
    struct packed matrix;
    TRY(weight_packed(cpu_of(backend), w, &matrix));
    return linear_packed(cpu_of(backend), out, in, matrix, bias, false);
}

status cpu_linear_grad_input(struct backend *backend, struct tensor grad_in, struct tensor grad_out, struct weight *w,
                             bool add) {
    CHECK(tensor_is(grad_in, -1, grad_out.rows, weight_inner(w)));
    CHECK(tensor_is(grad_out, (int)weight_type(w), grad_in.rows, weight_outputs(w)));
    struct packed matrix;
    TRY(weight_transposed(cpu_of(backend), w, &matrix));
    return linear_packed(cpu_of(backend), grad_in, grad_out, matrix, (struct tensor){0}, add);
}

// ---- the gradient of a weight ----

struct outer {
    struct cpu_backend *cpu;
    struct tensor grad_weight;
    struct tensor grad_out; // some rows of it
    int64_t inner;          // their number, made even
};

// Columns of grad_out become rows; bfloat16 is woven to pairs first and turns as 4-byte words.
static const void *turned_columns(const void *context, int64_t first, int64_t rows, void *room) {
    const struct outer *o = context;
    const struct simd *simd = &o->cpu->simd;
    struct tensor part = tensor_columns(o->grad_out, first, rows);
    if (part.type == ELEMENT_F32) {
        simd->transpose(room, o->inner, tensor_row(part, 0), part.stride, part.rows, rows);
        if (part.rows < o->inner)
            for (int64_t i = 0; i < rows; i++) ((uint32_t *)room)[i * o->inner + part.rows] = 0;
        return room;
    }
    uint32_t pairs[16][128];
    uint16_t zeros[128] = {0};
    for (int64_t row = 0; row < o->inner; row += 32) {
        int64_t count = (o->inner - row) / 2 < 16 ? (o->inner - row) / 2 : 16;
        for (int64_t i = 0; i < count; i++) {
            int64_t at = row + 2 * i;
            simd->interleave((uint16_t *)pairs[i], tensor_bf16(part, at),
                             at + 1 < part.rows ? tensor_bf16(part, at + 1) : zeros, (size_t)rows);
        }
        simd->transpose((uint32_t *)room + row / 2, o->inner / 2, pairs[0], 128, count, rows);
    }
    return room;
}

static void add_tile(const void *context, float *tile, int64_t stride, int64_t first, int64_t rows, int64_t column,
                     int64_t columns) {
    const struct outer *o = context;
    for (int64_t i = 0; i < rows; i++) {
        o->cpu->simd.add(tensor_f32(o->grad_weight, first + i) + column, tile + i * stride, (size_t)columns);
    }
}

// The rows of one chunk: grad_weight += grad_out^T in.
static status add_chunk(struct cpu_backend *cpu, struct tensor grad_weight, struct tensor grad_out, struct tensor in) {
    struct outer outer = {cpu, grad_weight, grad_out, (in.rows + 1) / 2 * 2};
    struct packed matrix = {.type = in.type, .outputs = in.columns, .inner = outer.inner};
    size_t bytes = packed_bytes(cpu, in.type, matrix.outputs, matrix.inner);
    TRY(cpu_scratch(cpu, SCRATCH_OPERAND, bytes, &matrix.data));
    pack_columns(cpu, &matrix, in);
    struct product product = {.matrix = matrix,
                              .rows = grad_out.columns,
                              .whole_rows = true,
                              .operand = turned_columns,
                              .store = add_tile,
                              .context = &outer};
    return product_run(cpu, &product);
}

struct summing {
    const struct cpu_backend *cpu;
    struct tensor sums, in;
};

static void sum_columns(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct summing *s = context;
    struct tensor part = tensor_columns(s->in, first, end - first);
    float room[512];
    for (int64_t row = 0; row < part.rows; row++) {
        const float *in = cpu_row_read(s->cpu, part, row, room);
        s->cpu->simd.add(tensor_f32(s->sums, 0) + first, in, (size_t)(end - first));
    }
}

status cpu_linear_grad_weight(struct backend *backend, struct tensor grad_weight, struct tensor grad_bias,
                              struct tensor grad_out, struct tensor in) {
    struct cpu_backend *cpu = cpu_of(backend);
    CHECK(tensor_is(grad_weight, ELEMENT_F32, grad_out.columns, in.columns));
    CHECK(tensor_is(in, -1, grad_out.rows, in.columns));
    CHECK(tensor_is(grad_out, (int)in.type, in.rows, grad_out.columns));
    CHECK(tensor_none(grad_bias) || tensor_is(grad_bias, ELEMENT_F32, 1, grad_out.columns));
    if (!tensor_none(grad_bias)) {
        struct summing summing = {cpu, grad_bias, grad_out};
        parallel_for(cpu, grad_out.columns, 256, sum_columns, &summing);
    }
    for (int64_t first = 0; first < in.rows; first += chunk_rows) {
        int64_t rows = in.rows - first < chunk_rows ? in.rows - first : chunk_rows;
        TRY(add_chunk(cpu, grad_weight, tensor_rows(grad_out, first, rows), tensor_rows(in, first, rows)));
    }
    return OK;
}
