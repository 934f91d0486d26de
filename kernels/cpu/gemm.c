// Matrix products: packing the right-hand matrix, and the tiling, that is, which thread computes which rows and
// columns, with what scratch memory.
#include "kernels/cpu/gemm.h"

#include <assert.h>
#include <stdatomic.h>

#include "kernels/cpu/amx.h"

enum {
    part_inner = 128, // inner elements that are packed at a time, which fit the first-level cache
    tasks_per_thread = 6,
};

static_assert(part_inner % 2 == 0 && packed_block * part_inner * sizeof(uint16_t) <= 32 << 10,
              "a part holds whole pairs and fits the first-level cache");

static int64_t gemm_round_up(int64_t value, int64_t unit) {
    return (value + unit - 1) / unit * unit;
}

// ---- packing: a matrix is transposed and stored in the blocks of 64 outputs that the products read ----

struct pack_job {
    const struct cpu_backend *cpu;
    const struct packed_matrix *out;
    const struct packed_layout *layout;
    struct tensor matrix;
};

static bool gemm_has_parts(const struct cpu_backend *cpu, enum element type) {
    return type == ELEMENT_F32 && cpu->f32_parts > 0;
}

static size_t gemm_block_bytes(const struct cpu_backend *cpu, enum element type, int64_t inner) {
    if (gemm_has_parts(cpu, type)) return (size_t)amx_columns_size(cpu->f32_parts, inner) * sizeof(uint16_t);
    const struct packed_layout *layout = onednn_layout(cpu->onednn, type);
    return (size_t)(packed_block * gemm_round_up(inner, layout->unit)) * element_size(type);
}

size_t packed_bytes(const struct cpu_backend *cpu, enum element type, int64_t outputs, int64_t inner) {
    int64_t blocks = (outputs + packed_block - 1) / packed_block;
    return (size_t)blocks * gemm_block_bytes(cpu, type, inner);
}

void *packed_at(const struct cpu_backend *cpu, const struct packed_matrix *matrix, int64_t column) {
    assert(column % packed_block == 0);
    return (char *)matrix->data + (size_t)(column / packed_block) * gemm_block_bytes(cpu, matrix->type, matrix->inner);
}

// Writes `count` pairs of inner elements of a block of bfloat16, from `pair` on, which are in `words` [count, 64].
static void gemm_pack_pairs(const struct pack_job *job, uint32_t *block, const uint32_t *words, int64_t pair,
                            int64_t count) {
    if (!job->cpu->amx) {
        memcpy(block + pair * packed_block, words, (size_t)(count * packed_block) * sizeof *words);
        return;
    }
    int64_t size = amx_columns_size(1, job->out->inner);
    for (int64_t i = 0; i < count; i++)
        for (int64_t column = 0; column < packed_block; column += 16)
            memcpy((uint16_t *)block + amx_pair_at(1, size, pair + i, column), words + i * packed_block + column,
                   16 * sizeof *words);
}

// Packs part after part of each block of outputs. Pairs of bfloat16 are transposed as words of four bytes, like
// float32; they are copied to `part` first, with a zero after an odd count. bfloat16 without pairs is transposed
// element by element.
static void gemm_pack_rows_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct pack_job *job = context;
    const struct simd *simd = &job->cpu->simd;
    enum element type = job->out->type;
    uint32_t part[packed_block * part_inner / 2] = {0}, pairs[packed_block * part_inner / 2];
    uint16_t *halves = (uint16_t *)part;
    int64_t inner = job->out->inner;
    for (int64_t row = first * packed_block; row < end * packed_block; row += packed_block) {
        int64_t rows = gemm_min(job->out->outputs - row, packed_block);
        uint32_t *words = packed_at(job->cpu, job->out, row);
        if (rows < packed_block || inner % job->layout->unit) memset(words, 0, gemm_block_bytes(job->cpu, type, inner));
        if (rows < packed_block) memset(pairs, 0, sizeof pairs);
        for (int64_t at = 0; at < inner; at += part_inner) {
            int64_t count = gemm_min(inner - at, part_inner);
            if (type == ELEMENT_F32) {
                const uint32_t *in = (const uint32_t *)tensor_f32(job->matrix, row) + at;
                simd->transpose(words + at * packed_block, packed_block, in, job->matrix.stride, rows, count);
                continue;
            }
            for (int64_t i = 0; i < rows; i++) {
                uint16_t *out = halves + i * part_inner;
                memcpy(out, tensor_bf16(job->matrix, row + i) + at, (size_t)count * sizeof *out);
                if (count & 1) out[count] = 0;
            }
            if (job->layout->pair == 2) {
                simd->transpose(pairs, packed_block, part, part_inner / 2, rows, (count + 1) / 2);
                gemm_pack_pairs(job, words, pairs, at / 2, (count + 1) / 2);
            } else {
                uint16_t *out = (uint16_t *)words + at * packed_block;
                for (int64_t i = 0; i < rows * count; i++)
                    out[i % count * packed_block + i / count] = halves[i / count * part_inner + i % count];
            }
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
        memset((char *)out + (size_t)columns * size, 0, (size_t)(packed_block - columns) * size);
    } else {
        memset(out, 0, packed_block * size);
    }
}

static void gemm_pack_columns_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct pack_job *job = context;
    size_t row_bytes = packed_block * element_size(job->out->type);
    for (int64_t column = first * packed_block; column < end * packed_block; column += packed_block) {
        char *block = packed_at(job->cpu, job->out, column);
        int64_t columns = gemm_min(job->out->outputs - column, packed_block);
        int64_t rows = (int64_t)(gemm_block_bytes(job->cpu, job->out->type, job->out->inner) / row_bytes);
        for (int64_t row = 0; row < rows; row += job->layout->pair) {
            if (job->layout->pair == 1) {
                gemm_pack_read_columns(job, block + (size_t)row * row_bytes, row, column, columns);
            } else {
                uint16_t even[packed_block], odd[packed_block];
                uint32_t pairs[packed_block];
                gemm_pack_read_columns(job, even, row, column, columns);
                gemm_pack_read_columns(job, odd, row + 1, column, columns);
                job->cpu->simd.interleave((uint16_t *)pairs, even, odd, packed_block);
                gemm_pack_pairs(job, (uint32_t *)block, pairs, row / 2, 1);
            }
        }
    }
}

// Writes `count` inner elements of a block of float32, which are in `part` [count, 64], as parts.
static void gemm_pack_part(const struct pack_job *job, uint16_t *block, const float *part, int64_t at, int64_t count) {
    const struct amx_columns columns = {.row_stride = packed_block, .tile_stride = 16, .tiles = packed_block / 16};
    int parts = job->cpu->f32_parts;
    amx_pack_columns(block + amx_columns_at(parts, at), part, &columns, parts, count,
                     amx_columns_size(parts, job->out->inner));
}

static void gemm_pack_rows_in_parts(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct pack_job *job = context;
    float part[part_inner * packed_block] = {0};
    for (int64_t row = first * packed_block; row < end * packed_block; row += packed_block) {
        int64_t rows = gemm_min(job->out->outputs - row, packed_block), inner = job->out->inner;
        if (rows < packed_block) memset(part, 0, sizeof part);
        for (int64_t at = 0; at < inner; at += part_inner) {
            int64_t count = gemm_min(inner - at, part_inner);
            const uint32_t *in = (const uint32_t *)tensor_f32(job->matrix, row) + at;
            job->cpu->simd.transpose((uint32_t *)part, packed_block, in, job->matrix.stride, rows, count);
            gemm_pack_part(job, packed_at(job->cpu, job->out, row), part, at, count);
        }
    }
}

static void gemm_pack_columns_in_parts(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct pack_job *job = context;
    float part[part_inner * packed_block];
    for (int64_t column = first * packed_block; column < end * packed_block; column += packed_block) {
        int64_t columns = gemm_min(job->out->outputs - column, packed_block), inner = job->out->inner;
        for (int64_t at = 0; at < inner; at += part_inner) {
            int64_t count = gemm_min(inner - at, part_inner);
            for (int64_t i = 0; i < count; i++)
                gemm_pack_read_columns(job, part + i * packed_block, at + i, column, columns);
            gemm_pack_part(job, packed_at(job->cpu, job->out, column), part, at, count);
        }
    }
}

static void gemm_pack_blocks(struct cpu_backend *cpu, const struct packed_matrix *out, struct tensor matrix,
                             void (*task)(void *context, int64_t first, int64_t end, int thread)) {
    struct pack_job job = {cpu, out, onednn_layout(cpu->onednn, out->type), matrix};
    int64_t blocks = (out->outputs + packed_block - 1) / packed_block;
    parallel_for(cpu, blocks, 4096 / (out->inner + 1) + 1, task, &job);
}

void pack_rows(struct cpu_backend *cpu, const struct packed_matrix *out, struct tensor matrix) {
    assert(matrix.type == out->type && matrix.rows == out->outputs && matrix.columns == out->inner);
    gemm_pack_blocks(cpu, out, matrix, gemm_has_parts(cpu, out->type) ? gemm_pack_rows_in_parts : gemm_pack_rows_task);
}

void pack_columns(struct cpu_backend *cpu, const struct packed_matrix *out, struct tensor matrix) {
    assert(matrix.type == out->type && matrix.columns == out->outputs && matrix.rows <= out->inner);
    gemm_pack_blocks(cpu, out, matrix,
                     gemm_has_parts(cpu, out->type) ? gemm_pack_columns_in_parts : gemm_pack_columns_task);
}

// ---- tiles ----

struct gemm_job {
    struct cpu_backend *cpu;
    const struct gemm *gemm;
    const struct packed_layout *layout;
    int64_t columns;             // of the packed matrix, with its padding
    int64_t tile;                // columns of a tile
    int64_t task_columns;        // whole tiles
    int64_t row_tasks;           // tasks over the same columns
    struct matmul *matmul[2][2]; // [whether the last rows][whether the last columns]
    // Scratch memory, the same amount for each thread: a tile, rows, oneDNN's own.
    char *scratch;
    size_t scratch_bytes, rows_offset, matmul_offset;
    atomic_bool failed;
};

static int64_t gemm_rows_at(const struct gemm_job *job, int64_t first) {
    return gemm_min(job->gemm->rows - first, gemm_tile_rows);
}

// The rows that oneDNN computes: those of the tile and rows of zeros.
static int64_t gemm_padded_rows(const struct gemm_job *job, int64_t first) {
    int64_t rows = gemm_round_up(gemm_rows_at(job, first), job->layout->rows);
    return rows < job->layout->rows_min ? job->layout->rows_min : rows;
}

static int64_t gemm_columns_at(const struct gemm_job *job, int64_t column) {
    return gemm_min(job->columns - column, job->tile);
}

static void gemm_task(void *context, int task, int thread) {
    struct gemm_job *job = context;
    const struct gemm *gemm = job->gemm;
    char *scratch = job->scratch + (size_t)thread * job->scratch_bytes;
    float *tile = (void *)scratch;
    int64_t first = task % job->row_tasks * gemm_tile_rows, begin = task / job->row_tasks * job->task_columns;
    int64_t rows = gemm_rows_at(job, first), padded = gemm_padded_rows(job, first);
    void *in = gemm->read_rows(gemm->context, first, rows, scratch + job->rows_offset);
    if (padded != rows) {
        size_t row_bytes = (size_t)gemm->matrix.inner * element_size(gemm->matrix.type);
        char *padded_in = scratch + job->rows_offset;
        if (in != padded_in) memcpy(padded_in, in, (size_t)rows * row_bytes);
        memset(padded_in + (size_t)rows * row_bytes, 0, (size_t)(padded - rows) * row_bytes);
        in = padded_in;
    }
    for (int64_t column = begin; column < gemm_min(begin + job->task_columns, job->columns); column += job->tile) {
        int64_t columns = gemm_columns_at(job, column);
        const struct matmul *matmul = job->matmul[rows != gemm_rows_at(job, 0)][columns != gemm_columns_at(job, 0)];
        if (!matmul_run(job->cpu->onednn, matmul, thread, in, packed_at(job->cpu, &gemm->matrix, column), tile,
                        scratch + job->matmul_offset))
            atomic_store(&job->failed, true);
        gemm->write_tile(gemm->context, tile, columns, first, rows, column,
                         gemm_min(gemm->matrix.outputs - column, columns));
    }
}

status gemm_run(struct cpu_backend *cpu, const struct gemm *gemm) {
    if (gemm->rows == 0) return OK;
    const struct packed_matrix *matrix = &gemm->matrix;
    if (matrix->type == ELEMENT_BF16 ? cpu->amx : gemm_has_parts(cpu, matrix->type)) return gemm_run_amx(cpu, gemm);
    int64_t threads = pool_threads(cpu->pool);
    struct gemm_job job = {.cpu = cpu,
                           .gemm = gemm,
                           .layout = onednn_layout(cpu->onednn, gemm->matrix.type),
                           .columns = gemm_round_up(gemm->matrix.outputs, packed_block),
                           .row_tasks = (gemm->rows + gemm_tile_rows - 1) / gemm_tile_rows};
    // A product of few rows gets narrow tiles, so that every thread has work.
    int64_t column_tasks = (threads * tasks_per_thread + job.row_tasks - 1) / job.row_tasks;
    int64_t tile = job.columns / column_tasks / packed_block * packed_block;
    job.tile = tile < packed_block ? packed_block : gemm_min(tile, job.layout->columns);
    assert(job.tile <= gemm_tile_columns);
    assert(gemm_tile_rows % job.layout->rows == 0 && job.layout->rows_min <= gemm_tile_rows);
    job.task_columns = gemm->whole_rows ? gemm_round_up(job.columns, job.tile) : job.tile;

    // The products for whole tiles and for those at the edges, and scratch memory that is large enough for each.
    int64_t last_row = (job.row_tasks - 1) * gemm_tile_rows, last_column = (job.columns - 1) / job.tile * job.tile;
    size_t matmul_bytes = 0;
    for (int i = 0; i < 4; i++) {
        struct matmul **matmul = &job.matmul[i / 2][i % 2];
        struct matmul_shape shape = {.type = matrix->type,
                                     .rows = gemm_padded_rows(&job, i / 2 ? last_row : 0),
                                     .columns = gemm_columns_at(&job, i % 2 ? last_column : 0),
                                     .inner = matrix->inner};
        TRY(onednn_matmul(cpu->onednn, &shape, matmul));
        if (matmul_scratch(*matmul) > matmul_bytes) matmul_bytes = matmul_scratch(*matmul);
    }
    size_t rows_bytes = (size_t)gemm_tile_rows * (size_t)matrix->inner * element_size(matrix->type);
    job.rows_offset = (size_t)gemm_tile_rows * (size_t)job.tile * sizeof(float);
    job.matmul_offset = job.rows_offset + (size_t)gemm_round_up((int64_t)rows_bytes, 64);
    job.scratch_bytes = (size_t)gemm_round_up((int64_t)(job.matmul_offset + matmul_bytes), 4096);
    TRY(cpu_scratch(cpu, SCRATCH_GEMM, job.scratch_bytes * (size_t)threads, &job.scratch));

    pool_run(cpu->pool, (int)(job.row_tasks * ((job.columns + job.task_columns - 1) / job.task_columns)), gemm_task,
             &job);
    if (atomic_load(&job.failed)) return fail(UNAVAILABLE, "oneDNN failed to compute a matrix product");
    return OK;
}
