// Weights, products of activations with them, and the gradients of these products. A weight is packed when it is
// created, or packed again into scratch memory at each use.
#include <assert.h>
#include <stdlib.h>

#include "kernels/cpu/gemm.h"
#include "shared/base/memory.h"

enum {
    CHUNK_ROWS = 2048, // rows that a float32 weight gradient adds up at once
    PAIR_ROWS = 16,    // rows of pairs that are transposed at once
    PAIR_COLUMNS = GEMM_TILE_ROWS,
    CACHED_BYTES = 4 << 20, // of an output: a larger one leaves the caches before it is read
};

static_assert(CHUNK_ROWS % (2 * PAIR_ROWS) == 0, "only the last pairs of a chunk are fewer than PAIR_ROWS");

// ---- weights ----

status cpu_supports(struct backend *backend, enum element type) {
    (void)backend;
    if (type > ELEMENT_BF16) return fail(UNAVAILABLE, "the CPU computes in float32 and bfloat16 only");
    return OK;
}

status cpu_weight_new(struct backend *backend, struct weight **out, struct tensor plain, bool prepack) {
    struct cpu_backend *cpu = cpu_of(backend);
    *out = NULL;
    CHECK(tensor_fits(plain) && plain.type <= ELEMENT_F16 && plain.rows > 0 && plain.columns > 0);
    TRY(cpu_supports(backend, plain.type));
    struct weight *w;
    NEW(&w, 1);
    w->packed = (struct packed_matrix){.type = plain.type, .outputs = plain.rows, .inner = plain.columns};
    if (prepack) {
        status result = pages_get(cpu, packed_bytes(cpu, plain.type, plain.rows, plain.columns), &w->pages);
        if (result != OK) {
            free(w);
            return result;
        }
        w->packed.data = w->pages.data;
        pack_rows(cpu, &w->packed, plain);
    } else {
        w->plain = plain;
    }
    *out = w;
    return OK;
}

void cpu_weight_free(struct backend *backend, struct weight **weight) {
    if (!*weight) return;
    pages_put(cpu_of(backend), &(*weight)->pages);
    free(*weight);
    *weight = NULL;
}

status weight_packed(struct cpu_backend *cpu, const struct weight *w, int64_t first, int64_t count,
                     struct packed_matrix *out) {
    assert(first % PACKED_BLOCK == 0 && first + count <= w->packed.outputs);
    *out = (struct packed_matrix){.type = w->packed.type, .outputs = count, .inner = w->packed.inner};
    if (w->packed.data) {
        out->data = packed_at(cpu, &w->packed, first);
        return OK;
    }
    TRY(cpu_scratch(cpu, SCRATCH_PACKED, packed_bytes(cpu, out->type, out->outputs, out->inner), &out->data));
    pack_rows(cpu, out, tensor_rows(w->plain, first, count));
    return OK;
}

status weight_packed_transpose(struct cpu_backend *cpu, const struct weight *w, int64_t first, int64_t count,
                               struct packed_matrix *out) {
    CHECK(!w->packed.data);
    assert(first + count <= w->packed.outputs);
    *out = (struct packed_matrix){.type = w->packed.type, .outputs = w->packed.inner, .inner = count};
    TRY(cpu_scratch(cpu, SCRATCH_TRANSPOSED, packed_bytes(cpu, out->type, out->outputs, out->inner), &out->data));
    pack_columns(cpu, out, tensor_rows(w->plain, first, count));
    return OK;
}

// ---- the product ----

struct linear_job {
    struct cpu_backend *cpu;
    struct tensor out, in;
    const float *bias; // or NULL
    bool add;
    bool large;    // the output is larger than CACHED_BYTES
    int64_t inner; // of the gradient of the weight: the rows of `in`, rounded up to an even number
};

static void *linear_read_rows(const void *context, int64_t first, int64_t rows, void *scratch) {
    const struct linear_job *job = context;
    if (job->in.stride == job->in.columns) return tensor_row(job->in, first);
    size_t bytes = (size_t)job->in.columns * element_size(job->in.type);
    for (int64_t i = 0; i < rows; i++)
        memcpy((char *)scratch + (size_t)i * bytes, tensor_row(job->in, first + i), bytes);
    return scratch;
}

static void linear_write_tile(const void *context, float *tile, int64_t stride, int64_t first, int64_t rows,
                              int64_t column, int64_t columns) {
    const struct linear_job *job = context;
    enum element type = job->out.type;
    float before[GEMM_TILE_COLUMNS];
    assert(columns <= GEMM_TILE_COLUMNS);
    if (job->large && !job->bias && !job->add) {
        struct row_view out = row_view_of(tensor_columns(job->out, column, columns), first);
        job->cpu->simd.stream_rows(out, job->out.stride, tile, stride, rows, columns);
        return;
    }
    for (int64_t row = first; row < first + rows; row++, tile += stride) {
        char *out = (char *)tensor_row(job->out, row) + (size_t)column * element_size(type);
        if (job->bias) job->cpu->simd.add(tile, job->bias + column, (size_t)columns);
        if (job->add && type == ELEMENT_F32) {
            job->cpu->simd.add(tensor_f32(job->out, row) + column, tile, (size_t)columns);
            continue;
        }
        if (job->add) {
            cpu_convert(job->cpu, before, ELEMENT_F32, out, type, (size_t)columns);
            job->cpu->simd.add(tile, before, (size_t)columns);
        }
        cpu_convert(job->cpu, out, type, tile, ELEMENT_F32, (size_t)columns);
    }
}

status linear_packed(struct cpu_backend *cpu, struct tensor out, struct tensor in, struct packed_matrix matrix,
                     struct tensor bias, bool add) {
    struct linear_job job = {.cpu = cpu, .out = out, .in = in, .add = add};
    job.large = out.rows * out.columns * (int64_t)element_size(out.type) > CACHED_BYTES;
    if (!tensor_none(bias)) {
        float *values;
        TRY(cpu_scratch(cpu, SCRATCH_SUMS, (size_t)bias.columns * sizeof *values, &values));
        job.bias = cpu_row_read(cpu, bias, 0, values);
    }
    struct gemm gemm = {.matrix = matrix,
                        .rows = in.rows,
                        .read_rows = linear_read_rows,
                        .write_tile = linear_write_tile,
                        .context = &job};
    return gemm_run(cpu, &gemm);
}

status cpu_linear(struct backend *backend, struct tensor out, struct tensor in, struct weight *w, struct tensor bias,
                  bool add) {
    int64_t outputs = w->packed.outputs;
    CHECK(tensor_is(out, -1, in.rows, outputs) && tensor_is(in, (int)w->packed.type, in.rows, w->packed.inner));
    CHECK(tensor_none(bias) || (tensor_is(bias, -1, 1, outputs) && !add));
    struct packed_matrix matrix;
    TRY(weight_packed(cpu_of(backend), w, 0, outputs, &matrix));
    return linear_packed(cpu_of(backend), out, in, matrix, bias, add);
}

status cpu_linear_grad_input(struct backend *backend, struct tensor grad_in, struct tensor grad_out, struct weight *w,
                             bool add) {
    CHECK(tensor_is(grad_in, -1, grad_out.rows, w->packed.inner));
    CHECK(tensor_is(grad_out, (int)w->packed.type, grad_in.rows, w->packed.outputs));
    struct packed_matrix matrix;
    TRY(weight_packed_transpose(cpu_of(backend), w, 0, w->packed.outputs, &matrix));
    return linear_packed(cpu_of(backend), grad_in, grad_out, matrix, (struct tensor){0}, add);
}

// ---- the gradient of the weight ----

// Transposes columns of grad_out to rows. Rows of bfloat16 are interleaved to pairs first and transposed as words of
// four bytes.
static void *linear_read_columns(const void *context, int64_t first, int64_t rows, void *scratch) {
    const struct linear_job *job = context;
    const struct simd *simd = &job->cpu->simd;
    struct tensor part = tensor_columns(job->in, first, rows);
    uint32_t *out = scratch;
    if (part.type == ELEMENT_F32) {
        simd->transpose(out, job->inner, tensor_row(part, 0), part.stride, part.rows, rows);
        if (part.rows < job->inner)
            for (int64_t i = 0; i < rows; i++) out[i * job->inner + part.rows] = 0;
        return scratch;
    }
    uint32_t pairs[PAIR_ROWS][PAIR_COLUMNS];
    uint16_t zeros[PAIR_COLUMNS] = {0};
    assert(rows <= PAIR_COLUMNS && job->inner % 2 == 0);
    for (int64_t row = 0; row < job->inner; row += 2 * PAIR_ROWS) {
        int64_t count = (job->inner - row) / 2 < PAIR_ROWS ? (job->inner - row) / 2 : PAIR_ROWS;
        for (int64_t i = 0; i < count; i++) {
            int64_t at = row + 2 * i;
            simd->interleave((uint16_t *)pairs[i], tensor_bf16(part, at),
                             at + 1 < part.rows ? tensor_bf16(part, at + 1) : zeros, (size_t)rows);
        }
        simd->transpose(out + row / 2, job->inner / 2, pairs[0], PAIR_COLUMNS, count, rows);
    }
    return scratch;
}

status cpu_linear_grad_weight(struct backend *backend, struct tensor grad_weight, struct tensor grad_bias,
                              struct tensor grad_out, struct tensor in) {
    struct cpu_backend *cpu = cpu_of(backend);
    CHECK(tensor_is(grad_weight, -1, grad_out.columns, in.columns));
    CHECK(tensor_is(in, -1, grad_out.rows, in.columns));
    CHECK(tensor_is(grad_out, (int)in.type, in.rows, grad_out.columns));
    CHECK(tensor_none(grad_bias) || tensor_is(grad_bias, ELEMENT_F32, 1, grad_out.columns));
    if (!tensor_none(grad_bias)) cpu_add_rows(cpu, grad_bias, grad_out);
    int64_t chunk = grad_weight.type == ELEMENT_F32 ? CHUNK_ROWS : in.rows; // BF16 is rounded once
    for (int64_t first = 0; first < in.rows; first += chunk) {
        int64_t rows = in.rows - first < chunk ? in.rows - first : chunk;
        struct linear_job job = {.cpu = cpu,
                                 .out = grad_weight,
                                 .in = tensor_rows(grad_out, first, rows),
                                 .add = true,
                                 .inner = (rows + 1) / 2 * 2};
        struct packed_matrix matrix = {.type = in.type, .outputs = in.columns, .inner = job.inner};
        TRY(cpu_scratch(cpu, SCRATCH_OPERAND, packed_bytes(cpu, in.type, matrix.outputs, matrix.inner), &matrix.data));
        pack_columns(cpu, &matrix, tensor_rows(in, first, rows));
        struct gemm gemm = {.matrix = matrix,
                            .rows = grad_out.columns,
                            .whole_rows = true,
                            .read_rows = linear_read_columns,
                            .write_tile = linear_write_tile,
                            .context = &job};
        TRY(gemm_run(cpu, &gemm));
    }
    return OK;
}
