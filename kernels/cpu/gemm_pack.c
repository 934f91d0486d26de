// Packing the right-hand matrix of products: it is transposed and stored in the blocks of 64 outputs that the products
// read, in one of three layouts: oneDNN's (gemm.h), that of the matrix unit for bfloat16, and that of float32 in parts
// (amx.h).
#include <assert.h>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm.h"

enum { PART_INNER = 128 }; // inner elements that are packed at a time, which fit the first-level cache

static_assert(PART_INNER % 2 == 0 && PACKED_BLOCK * PART_INNER * sizeof(uint16_t) <= 32 << 10,
              "a part holds whole pairs and fits the first-level cache");

struct pack_job {
    const struct cpu_backend *cpu;
    const struct packed_matrix *out;
    struct tensor matrix;
    bool columns; // the outputs are its columns
};

// The inner elements that are interleaved.
static int64_t gemm_pair(enum element type) {
    return type == ELEMENT_BF16 ? 2 : 1;
}

// What the inner length is padded to a multiple of.
static int64_t gemm_unit(enum element type) {
    return 16 * gemm_pair(type);
}

static size_t gemm_block_bytes(const struct cpu_backend *cpu, enum element type, int64_t inner) {
    if (gemm_has_parts(cpu, type)) return (size_t)amx_columns_size(cpu->f32_parts, inner) * sizeof(uint16_t);
    return (size_t)(PACKED_BLOCK * gemm_round_up(inner, gemm_unit(type))) * element_size(type);
}

size_t packed_bytes(const struct cpu_backend *cpu, enum element type, int64_t outputs, int64_t inner) {
    int64_t blocks = (outputs + PACKED_BLOCK - 1) / PACKED_BLOCK;
    return (size_t)blocks * gemm_block_bytes(cpu, type, inner);
}

void *packed_at(const struct cpu_backend *cpu, const struct packed_matrix *matrix, int64_t column) {
    assert(column % PACKED_BLOCK == 0);
    return (char *)matrix->data + (size_t)(column / PACKED_BLOCK) * gemm_block_bytes(cpu, matrix->type, matrix->inner);
}

// Writes `count` pairs of inner elements of a block of bfloat16, from `pair` on, which are in `words` [count, 64].
static void gemm_pack_pairs(const struct pack_job *job, uint32_t *block, const uint32_t *words, int64_t pair,
                            int64_t count) {
    if (!job->cpu->amx) {
        memcpy(block + pair * PACKED_BLOCK, words, (size_t)(count * PACKED_BLOCK) * sizeof *words);
        return;
    }
    int64_t size = amx_columns_size(1, job->out->inner);
    for (int64_t i = 0; i < count; i++)
        for (int64_t column = 0; column < PACKED_BLOCK; column += 16)
            memcpy((uint16_t *)block + amx_pair_at(1, size, pair + i, column), words + i * PACKED_BLOCK + column,
                   16 * sizeof *words);
}

// Packs part after part of each block of outputs. Pairs of bfloat16 are transposed as words of four bytes, like
// float32; they are copied to `part` first, with a zero after an odd count.
static void gemm_pack_rows_task(void *context, struct task_range range) {
    const struct pack_job *job = context;
    const struct simd *simd = &job->cpu->simd;
    enum element type = job->out->type;
    uint32_t part[PACKED_BLOCK * PART_INNER / 2] = {0}, pairs[PACKED_BLOCK * PART_INNER / 2];
    uint16_t *halves = (uint16_t *)part;
    int64_t inner = job->out->inner;
    for (int64_t row = range.first * PACKED_BLOCK; row < range.end * PACKED_BLOCK; row += PACKED_BLOCK) {
        int64_t rows = gemm_min(job->out->outputs - row, PACKED_BLOCK);
        uint32_t *words = packed_at(job->cpu, job->out, row);
        if (rows < PACKED_BLOCK || inner % gemm_unit(type)) memset(words, 0, gemm_block_bytes(job->cpu, type, inner));
        if (rows < PACKED_BLOCK) memset(pairs, 0, sizeof pairs);
        for (int64_t at = 0; at < inner; at += PART_INNER) {
            int64_t count = gemm_min(inner - at, PART_INNER);
            if (type == ELEMENT_F32) {
                const uint32_t *in = (const uint32_t *)tensor_f32(job->matrix, row) + at;
                simd->transpose(words + at * PACKED_BLOCK, PACKED_BLOCK, in, job->matrix.stride, rows, count);
                continue;
            }
            for (int64_t i = 0; i < rows; i++) {
                uint16_t *out = halves + i * PART_INNER;
                memcpy(out, tensor_bf16(job->matrix, row + i) + at, (size_t)count * sizeof *out);
                if (count & 1) out[count] = 0;
            }
            simd->transpose(pairs, PACKED_BLOCK, part, PART_INNER / 2, rows, (count + 1) / 2);
            gemm_pack_pairs(job, words, pairs, at / 2, (count + 1) / 2);
        }
    }
}

// Copies the columns [column, column + columns) of one row; zeros past the last row or column.
static void gemm_pack_read_columns(const struct pack_job *job, void *out, int64_t row, int64_t column,
                                   int64_t columns) {
    size_t size = element_size(job->out->type);
    if (row < job->matrix.rows) {
        const char *in = (const char *)tensor_row(job->matrix, row) + (size_t)column * size;
        memcpy(out, in, (size_t)columns * size);
        memset((char *)out + (size_t)columns * size, 0, (size_t)(PACKED_BLOCK - columns) * size);
    } else {
        memset(out, 0, PACKED_BLOCK * size);
    }
}

static void gemm_pack_columns_task(void *context, struct task_range range) {
    const struct pack_job *job = context;
    size_t row_bytes = PACKED_BLOCK * element_size(job->out->type);
    for (int64_t column = range.first * PACKED_BLOCK; column < range.end * PACKED_BLOCK; column += PACKED_BLOCK) {
        char *block = packed_at(job->cpu, job->out, column);
        int64_t columns = gemm_min(job->out->outputs - column, PACKED_BLOCK);
        int64_t rows = (int64_t)(gemm_block_bytes(job->cpu, job->out->type, job->out->inner) / row_bytes);
        for (int64_t row = 0; row < rows; row += gemm_pair(job->out->type)) {
            if (job->out->type == ELEMENT_F32) {
                gemm_pack_read_columns(job, block + (size_t)row * row_bytes, row, column, columns);
            } else {
                uint16_t even[PACKED_BLOCK], odd[PACKED_BLOCK];
                uint32_t pairs[PACKED_BLOCK];
                gemm_pack_read_columns(job, even, row, column, columns);
                gemm_pack_read_columns(job, odd, row + 1, column, columns);
                job->cpu->simd.interleave((uint16_t *)pairs, even, odd, PACKED_BLOCK);
                gemm_pack_pairs(job, (void *)block, pairs, row / 2, 1);
            }
        }
    }
}

// Packs float32 as parts, some inner elements of a block of outputs at a time.
static void gemm_pack_in_parts(void *context, struct task_range range) {
    const struct pack_job *job = context;
    const struct amx_columns all = {.row_stride = PACKED_BLOCK, .tile_stride = 16, .tiles = PACKED_BLOCK / 16};
    const int parts = job->cpu->f32_parts;
    const int64_t inner = job->out->inner;
    float part[PART_INNER * PACKED_BLOCK];
    for (int64_t column = range.first * PACKED_BLOCK; column < range.end * PACKED_BLOCK; column += PACKED_BLOCK) {
        int64_t columns = gemm_min(job->out->outputs - column, PACKED_BLOCK);
        if (columns < PACKED_BLOCK) memset(part, 0, sizeof part);
        for (int64_t at = 0; at < inner; at += PART_INNER) {
            int64_t count = gemm_min(inner - at, PART_INNER);
            if (!job->columns)
                job->cpu->simd.transpose((uint32_t *)part, PACKED_BLOCK,
                                         (const uint32_t *)tensor_f32(job->matrix, column) + at, job->matrix.stride,
                                         columns, count);
            for (int64_t i = 0; i < count && job->columns; i++)
                gemm_pack_read_columns(job, part + i * PACKED_BLOCK, at + i, column, columns);
            uint16_t *block = packed_at(job->cpu, job->out, column);
            amx_pack_columns(block + amx_columns_at(parts, at), part, &all, parts, count,
                             amx_columns_size(parts, inner));
        }
    }
}

// Packs the rows of a matrix as outputs, or its columns.
static void gemm_pack(struct cpu_backend *cpu, const struct packed_matrix *out, struct tensor matrix, bool columns) {
    struct pack_job job = {cpu, out, matrix, columns};
    int64_t blocks = (out->outputs + PACKED_BLOCK - 1) / PACKED_BLOCK;
    parallel_for(cpu, blocks, 4096 / (out->inner + 1) + 1,
                 gemm_has_parts(cpu, out->type) ? gemm_pack_in_parts
                 : columns                      ? gemm_pack_columns_task
                                                : gemm_pack_rows_task,
                 &job);
}

void pack_rows(struct cpu_backend *cpu, const struct packed_matrix *out, struct tensor matrix) {
    assert(matrix.type == out->type && matrix.rows == out->outputs && matrix.columns == out->inner);
    gemm_pack(cpu, out, matrix, false);
}

void pack_columns(struct cpu_backend *cpu, const struct packed_matrix *out, struct tensor matrix) {
    assert(matrix.type == out->type && matrix.columns == out->outputs && matrix.rows <= out->inner);
    gemm_pack(cpu, out, matrix, true);
}
