// Packing: a matrix is transposed, rounded and stored in the blocks of 64 outputs that oneDNN's products read.
#include "kernels/cpu/gemm.h"

#include <assert.h>

enum { part_inner = 128 }; // inner elements at a time, which fit the first-level cache

static_assert(part_inner % 2 == 0 && packed_block * part_inner * sizeof(uint32_t) <= 32 << 10,
              "a part holds whole pairs and fits the first-level cache");

struct pack_job {
    const struct cpu_backend *cpu;
    const struct packed_matrix *out;
    const struct packed_layout *layout;
    struct tensor matrix;
};

static int64_t pack_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static size_t pack_block_bytes(const struct packed_layout *layout, enum element type, int64_t inner) {
    int64_t padded = (inner + layout->unit - 1) / layout->unit * layout->unit;
    return (size_t)(packed_block * padded) * element_size(type);
}

size_t packed_bytes(const struct cpu_backend *cpu, enum element type, int64_t outputs, int64_t inner) {
    int64_t blocks = (outputs + packed_block - 1) / packed_block;
    return (size_t)blocks * pack_block_bytes(onednn_layout(cpu->onednn, type), type, inner);
}

void *packed_at(const struct cpu_backend *cpu, const struct packed_matrix *matrix, int64_t column) {
    const struct packed_layout *layout = onednn_layout(cpu->onednn, matrix->type);
    assert(column % packed_block == 0);
    return (char *)matrix->data +
           (size_t)(column / packed_block) * pack_block_bytes(layout, matrix->type, matrix->inner);
}

// ---- the rows of the matrix are outputs ----

// Converts the rows [row, row + rows), inner [first, first + count), to the packed type in `part`, part_inner elements
// a row, with a zero after an odd count.
static void pack_read_rows(const struct pack_job *job, void *part, int64_t row, int64_t rows, int64_t first,
                           int64_t count) {
    size_t size = element_size(job->out->type), in_size = element_size(job->matrix.type);
    for (int64_t i = 0; i < rows; i++) {
        char *out = (char *)part + (size_t)(i * part_inner) * size;
        const char *in = (const char *)tensor_row(job->matrix, row + i) + (size_t)first * in_size;
        cpu_convert(job->cpu, out, job->out->type, in, job->matrix.type, (size_t)count);
        if (count & 1) memset(out + (size_t)count * size, 0, size);
    }
}

// Packs inner [first, first + count) of the block of outputs that starts at `row`. Pairs of bfloat16 are transposed as
// words of four bytes, like float32; bfloat16 without pairs is transposed element by element.
static void pack_part(const struct pack_job *job, char *block, uint32_t *part, int64_t row, int64_t rows, int64_t first,
                      int64_t count) {
    const struct simd *simd = &job->cpu->simd;
    uint32_t *words = (void *)block;
    if (job->matrix.type == ELEMENT_F32 && job->out->type == ELEMENT_F32) {
        const uint32_t *in = (const uint32_t *)tensor_f32(job->matrix, row) + first;
        simd->transpose(words + first * packed_block, packed_block, in, job->matrix.stride, rows, count);
        return;
    }
    pack_read_rows(job, part, row, rows, first, count);
    if (job->out->type == ELEMENT_F32) {
        simd->transpose(words + first * packed_block, packed_block, part, part_inner, rows, count);
    } else if (job->layout->pair == 2) {
        simd->transpose(words + first / 2 * packed_block, packed_block, part, part_inner / 2, rows, (count + 1) / 2);
    } else {
        uint16_t *out = (void *)block;
        out += first * packed_block;
        const uint16_t *in = (const uint16_t *)part;
        for (int64_t i = 0; i < rows * count; i++)
            out[i % count * packed_block + i / count] = in[i / count * part_inner + i % count];
    }
}

static void pack_rows_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct pack_job *job = context;
    uint32_t part[packed_block * part_inner] = {0};
    int64_t inner = job->out->inner;
    for (int64_t row = first * packed_block; row < end * packed_block; row += packed_block) {
        int64_t rows = pack_min(job->out->outputs - row, packed_block);
        char *block = packed_at(job->cpu, job->out, row);
        if (rows < packed_block || inner % job->layout->unit)
            memset(block, 0, pack_block_bytes(job->layout, job->out->type, inner));
        for (int64_t at = 0; at < inner; at += part_inner)
            pack_part(job, block, part, row, rows, at, pack_min(inner - at, part_inner));
    }
}

// ---- the columns of the matrix are outputs ----

// Converts the columns [column, column + columns) of one row to the packed type; zeros past the last row or column.
static void pack_read_columns(const struct pack_job *job, void *out, int64_t row, int64_t column, int64_t columns) {
    size_t size = element_size(job->out->type), in_size = element_size(job->matrix.type);
    if (row < job->matrix.rows) {
        const char *in = (const char *)tensor_row(job->matrix, row) + (size_t)column * in_size;
        cpu_convert(job->cpu, out, job->out->type, in, job->matrix.type, (size_t)columns);
        memset((char *)out + (size_t)columns * size, 0, (size_t)(packed_block - columns) * size);
    } else {
        memset(out, 0, packed_block * size);
    }
}

static void pack_columns_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct pack_job *job = context;
    size_t row_bytes = packed_block * element_size(job->out->type);
    for (int64_t column = first * packed_block; column < end * packed_block; column += packed_block) {
        char *block = packed_at(job->cpu, job->out, column);
        int64_t columns = pack_min(job->out->outputs - column, packed_block), row = 0;
        for (; row < job->matrix.rows; row += job->layout->pair) {
            char *out = block + (size_t)row * row_bytes;
            if (job->layout->pair == 1) {
                pack_read_columns(job, out, row, column, columns);
            } else {
                uint16_t even[packed_block], odd[packed_block];
                pack_read_columns(job, even, row, column, columns);
                pack_read_columns(job, odd, row + 1, column, columns);
                job->cpu->simd.interleave((void *)out, even, odd, packed_block);
            }
        }
        size_t done = (size_t)row * row_bytes;
        memset(block + done, 0, pack_block_bytes(job->layout, job->out->type, job->out->inner) - done);
    }
}

static void pack_blocks(struct cpu_backend *cpu, const struct packed_matrix *out, struct tensor matrix,
                        void (*task)(void *context, int64_t first, int64_t end, int thread)) {
    struct pack_job job = {cpu, out, onednn_layout(cpu->onednn, out->type), matrix};
    int64_t blocks = (out->outputs + packed_block - 1) / packed_block;
    parallel_for(cpu, blocks, 4096 / (out->inner + 1) + 1, task, &job);
}

void pack_rows(struct cpu_backend *cpu, const struct packed_matrix *out, struct tensor matrix) {
    assert(matrix.rows == out->outputs && matrix.columns == out->inner);
    pack_blocks(cpu, out, matrix, pack_rows_task);
}

void pack_columns(struct cpu_backend *cpu, const struct packed_matrix *out, struct tensor matrix) {
    assert(matrix.columns == out->outputs && matrix.rows <= out->inner);
    pack_blocks(cpu, out, matrix, pack_columns_task);
}
