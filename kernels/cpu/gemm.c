// Matrix products: which thread computes which rows and columns, with what scratch memory.
#include <assert.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm.h"

enum {
    TASKS_PER_THREAD = 6,      // at least, if there are so many tiles
    CHUNK_ROWS = 6144,         // rows that are packed at a time
    COLUMNS_BYTES = 768 << 10, // of the columns that stay in the second-level cache
    MAX_COLUMNS = 256,
    MIN_COLUMNS = 128,     // that should have the whole inner length there;
    MAX_INNER = 1344,      // otherwise so much of it is added up at a time
    STRIP_ROWS = 64,       // rows that are computed and written at a time,
    STRIP_ROWS_SUMS = 768, // or that are added up at a time
    STRIP_PADDING = 16,    // floats between the rows of a strip, which would share cache sets
    MAX_READ_ROWS = GEMM_TILE_ROWS,
    VECTOR_INNER = 128, // inner elements of the vector loops at a time: 16 columns of them fit the first-level cache
};

static_assert(MAX_READ_ROWS % AMX_GROUP == 0 && MAX_INNER % AMX_INNER == 0, "whole tiles of the unit");
static_assert(VECTOR_INNER % 2 == 0, "whole pairs of bfloat16");
static_assert((int)GEMM_TILE_COLUMNS >= (int)MAX_COLUMNS, "a strip fits write_tile");

// ---- tiles by the matrix unit ----
//
// bfloat16 where cpu->amx, float32 where cpu->f32_parts. First the rows are packed, then tiles of the result are
// computed. The columns of a tile stay in the second-level cache while all its rows pass by, a strip at a time.

struct gemm_amx {
    struct cpu_backend *cpu;
    const struct gemm *gemm;
    int parts;
    int64_t first, rows; // of the chunk
    int64_t columns;     // of the packed matrix, with its padding
    int64_t tile_rows, tile_columns, row_tasks;
    int64_t strip_rows, strip_inner; // of a tile, that are computed at a time
    uint16_t *packed;                // the chunk's rows
    char *scratch;                   // scratch_bytes for each thread
    size_t scratch_bytes;
};

static uint16_t *gemm_amx_rows_at(const struct gemm_amx *job, int64_t row) {
    return job->packed + amx_rows_size(job->parts, row, job->gemm->matrix.inner);
}

static void gemm_amx_pack(void *context, int task, int thread) {
    const struct gemm_amx *job = context;
    const struct gemm *gemm = job->gemm;
    int64_t row = (int64_t)task * MAX_READ_ROWS, rows = gemm_min(job->rows - row, MAX_READ_ROWS);
    void *scratch = job->scratch + (size_t)thread * job->scratch_bytes;
    const void *in = gemm->read_rows(gemm->context, job->first + row, rows, scratch);
    amx_pack_rows(gemm_amx_rows_at(job, row), in, gemm->matrix.inner, job->parts, rows, gemm->matrix.inner);
}

static void gemm_amx_tile(void *context, int task, int thread) {
    const struct gemm_amx *job = context;
    const struct gemm *gemm = job->gemm;
    int64_t first = task % job->row_tasks * job->tile_rows, column = task / job->row_tasks * job->tile_columns;
    int64_t end = gemm_min(job->rows, first + job->tile_rows);
    int64_t columns = gemm_min(job->columns - column, job->tile_columns), inner = gemm->matrix.inner;
    float *strip = (void *)(job->scratch + (size_t)thread * job->scratch_bytes);
    const uint16_t *packed = packed_at(job->cpu, &gemm->matrix, column);
    struct amx_product product = {.parts = job->parts,
                                  .out = strip,
                                  .out_stride = columns + STRIP_PADDING,
                                  .rows_stride = amx_rows_size(job->parts, AMX_GROUP, inner),
                                  .column_stride = amx_columns_size(job->parts, inner),
                                  .column_count = columns};
    for (int64_t row = first; row < end; row += job->strip_rows) {
        product.row_count = gemm_min(end - row, job->strip_rows);
        for (int64_t begin = 0; begin < inner; begin += job->strip_inner) {
            product.rows = gemm_amx_rows_at(job, row) + amx_rows_size(job->parts, AMX_GROUP, begin);
            product.columns = packed + amx_columns_at(job->parts, begin);
            product.steps = (gemm_min(inner - begin, job->strip_inner) + AMX_INNER - 1) / AMX_INNER;
            amx_multiply(&product, begin > 0);
        }
        gemm->write_tile(gemm->context, strip, product.out_stride, job->first + row, product.row_count, column,
                         gemm_min(gemm->matrix.outputs - column, columns));
    }
}

static status gemm_run_amx(struct cpu_backend *cpu, const struct gemm *gemm) {
    const struct packed_matrix *matrix = &gemm->matrix;
    const int parts = matrix->type == ELEMENT_F32 ? cpu->f32_parts : 1;
    const int64_t threads = pool_threads(cpu->pool), rows = gemm_min(gemm->rows, CHUNK_ROWS), inner = matrix->inner;
    struct gemm_amx job = {.cpu = cpu, .gemm = gemm, .parts = parts, .row_tasks = 1};
    job.columns = gemm_round_up(matrix->outputs, PACKED_BLOCK);

    // Divides the inner length into what is added up at a time, and rows and columns into tiles, so that every thread
    // has work.
    int64_t tasks = threads * TASKS_PER_THREAD, sums = (inner + MAX_INNER - 1) / MAX_INNER;
    int64_t column_bytes = amx_columns_size(parts, inner) * (int64_t)sizeof(uint16_t) / AMX_BLOCK;
    bool whole = column_bytes * MIN_COLUMNS <= COLUMNS_BYTES;
    job.strip_inner = whole ? inner : ((inner - 1) / sums / AMX_INNER + 1) * AMX_INNER;
    int64_t block_bytes = amx_columns_size(parts, job.strip_inner) * (int64_t)sizeof(uint16_t);
    int64_t most = gemm_min(COLUMNS_BYTES / block_bytes * AMX_BLOCK, MAX_COLUMNS);
    int64_t column_tasks = (job.columns + most - 1) / most;
    while (rows / (2 * job.row_tasks) >= MAX_READ_ROWS && column_tasks * job.row_tasks < tasks) job.row_tasks *= 2;
    job.tile_rows = ((rows - 1) / job.row_tasks / (2 * AMX_GROUP) + 1) * 2 * AMX_GROUP;
    job.strip_rows = gemm_min(whole ? STRIP_ROWS : STRIP_ROWS_SUMS, job.tile_rows);
    column_tasks = (tasks + job.row_tasks - 1) / job.row_tasks;
    int64_t columns = job.columns / column_tasks / AMX_BLOCK * AMX_BLOCK;
    job.tile_columns = columns < AMX_BLOCK ? AMX_BLOCK : gemm_min(columns, most);

    int64_t tile = job.strip_rows * (job.tile_columns + STRIP_PADDING) * (int64_t)sizeof(float);
    int64_t reading = gemm_min(rows, MAX_READ_ROWS) * inner * (int64_t)element_size(matrix->type);
    job.scratch_bytes = (size_t)gemm_round_up(tile > reading ? tile : reading, 4096);
    TRY(cpu_scratch(cpu, SCRATCH_GEMM, job.scratch_bytes * (size_t)threads, &job.scratch));
    size_t packed = (size_t)amx_rows_size(parts, rows, inner) * sizeof *job.packed;
    TRY(cpu_scratch(cpu, SCRATCH_GEMM_ROWS, packed, &job.packed));
    column_tasks = (job.columns + job.tile_columns - 1) / job.tile_columns;
    for (; job.first < gemm->rows; job.first += CHUNK_ROWS) {
        job.rows = gemm_min(gemm->rows - job.first, CHUNK_ROWS);
        job.row_tasks = (job.rows + job.tile_rows - 1) / job.tile_rows;
        pool_run(cpu->pool, (int)((job.rows + MAX_READ_ROWS - 1) / MAX_READ_ROWS), gemm_amx_pack, &job);
        pool_run(cpu->pool, (int)(job.row_tasks * column_tasks), gemm_amx_tile, &job);
    }
    return OK;
}

// ---- tiles by oneDNN or by the vector loops ----

struct gemm_job {
    struct cpu_backend *cpu;
    const struct gemm *gemm;
    int64_t columns;             // of the packed matrix, with its padding
    int64_t tile;                // columns of a tile
    int64_t task_columns;        // whole tiles
    int64_t row_tasks;           // tasks over the same columns
    struct matmul *matmul[2][2]; // [whether the last rows][whether the last columns]; NULL: the vector loops
    // Scratch memory, the same amount for each thread: a tile, rows, what oneDNN or the vector loops need.
    char *scratch;
    size_t scratch_bytes, rows_offset, own_offset;
    atomic_bool failed;
};

static int64_t gemm_rows_at(const struct gemm_job *job, int64_t first) {
    return gemm_min(job->gemm->rows - first, GEMM_TILE_ROWS);
}

// The rows that oneDNN computes: those of the tile and rows of zeros.
static int64_t gemm_padded_rows(int64_t rows) {
    return rows < onednn_min_rows() ? onednn_min_rows() : rows;
}

static int64_t gemm_columns_at(const struct gemm_job *job, int64_t column) {
    return gemm_min(job->columns - column, job->tile);
}

// Computes a tile of `rows` x `columns` from `column` on. Each element is one chain of fused multiply-adds over the
// inner index in ascending order (tiles.inc). `block` is scratch memory for VECTOR_INNER rows of 64 columns.
static void gemm_vector_tile(const struct gemm_job *job, float *tile, const float *in, int64_t rows, int64_t column,
                             int64_t columns, float *block) {
    const struct packed_matrix *matrix = &job->gemm->matrix;
    const struct simd *simd = &job->cpu->simd;
    memset(tile, 0, (size_t)(rows * columns) * sizeof *tile);
    for (int64_t at = 0; at < columns; at += PACKED_BLOCK) {
        const void *packed = packed_at(job->cpu, matrix, column + at);
        for (int64_t inner = 0; inner < matrix->inner; inner += VECTOR_INNER) {
            const int64_t count = gemm_min(matrix->inner - inner, VECTOR_INNER);
            const float *part = (const float *)packed + inner * PACKED_BLOCK;
            if (matrix->type == ELEMENT_BF16) {
                for (int64_t i = 0; i < count; i += 2)
                    simd->f32_from_pairs(block + i * PACKED_BLOCK, block + (i + 1) * PACKED_BLOCK,
                                         (const uint16_t *)packed + (inner + i) * PACKED_BLOCK, PACKED_BLOCK);
                part = block;
            }
            simd->av_tile(tile + at, columns, in + inner, matrix->inner, 1, (int)rows, part, PACKED_BLOCK, count,
                          PACKED_BLOCK);
        }
    }
}

static void gemm_task(void *context, int task, int thread) {
    struct gemm_job *job = context;
    const struct gemm *gemm = job->gemm;
    char *scratch = job->scratch + (size_t)thread * job->scratch_bytes;
    float *tile = (void *)scratch, *own = (void *)(scratch + job->own_offset);
    int64_t first = task % job->row_tasks * GEMM_TILE_ROWS, begin = task / job->row_tasks * job->task_columns;
    int64_t rows = gemm_rows_at(job, first), padded = job->matmul[0][0] ? gemm_padded_rows(rows) : rows;
    void *in = gemm->read_rows(gemm->context, first, rows, scratch + job->rows_offset);
    if (padded != rows) {
        size_t row_bytes = (size_t)gemm->matrix.inner * element_size(gemm->matrix.type);
        char *padded_in = scratch + job->rows_offset;
        if (in != padded_in) memcpy(padded_in, in, (size_t)rows * row_bytes);
        memset(padded_in + (size_t)rows * row_bytes, 0, (size_t)(padded - rows) * row_bytes);
        in = padded_in;
    }
    if (!job->matmul[0][0] && gemm->matrix.type == ELEMENT_BF16) {
        float *values = own + VECTOR_INNER * PACKED_BLOCK;
        job->cpu->simd.f32_from_bf16(values, in, (size_t)(rows * gemm->matrix.inner));
        in = values;
    }
    for (int64_t column = begin; column < gemm_min(begin + job->task_columns, job->columns); column += job->tile) {
        int64_t columns = gemm_columns_at(job, column);
        const struct matmul *matmul = job->matmul[rows != gemm_rows_at(job, 0)][columns != gemm_columns_at(job, 0)];
        if (!matmul)
            gemm_vector_tile(job, tile, in, rows, column, columns, own);
        else if (!matmul_run(job->cpu->onednn, matmul, thread, in, packed_at(job->cpu, &gemm->matrix, column), tile,
                             own))
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
                           .columns = gemm_round_up(gemm->matrix.outputs, PACKED_BLOCK),
                           .row_tasks = (gemm->rows + GEMM_TILE_ROWS - 1) / GEMM_TILE_ROWS};
    // A product of few rows gets narrow tiles, so that every thread has work.
    int64_t column_tasks = (threads * TASKS_PER_THREAD + job.row_tasks - 1) / job.row_tasks;
    int64_t tile = job.columns / column_tasks / PACKED_BLOCK * PACKED_BLOCK;
    job.tile = tile < PACKED_BLOCK ? PACKED_BLOCK : gemm_min(tile, MAX_PACKED_COLUMNS);
    assert(job.tile <= GEMM_TILE_COLUMNS);
    job.task_columns = gemm->whole_rows ? gemm_round_up(job.columns, job.tile) : job.tile;

    // oneDNN's products for whole tiles and for those at the edges, and scratch memory that is large enough for each.
    int64_t last_row = (job.row_tasks - 1) * GEMM_TILE_ROWS, last_column = (job.columns - 1) / job.tile * job.tile;
    size_t own_bytes = 0;
    if (onednn_has(cpu->onednn, matrix->type)) {
        for (int i = 0; i < 4; i++) {
            struct matmul **matmul = &job.matmul[i / 2][i % 2];
            struct matmul_shape shape = {.type = matrix->type,
                                         .rows = gemm_padded_rows(gemm_rows_at(&job, i / 2 ? last_row : 0)),
                                         .columns = gemm_columns_at(&job, i % 2 ? last_column : 0),
                                         .inner = matrix->inner};
            TRY(onednn_matmul(cpu->onednn, &shape, matmul));
            if (matmul_scratch(*matmul) > own_bytes) own_bytes = matmul_scratch(*matmul);
        }
    } else if (matrix->type == ELEMENT_BF16) {
        own_bytes = (size_t)(VECTOR_INNER * PACKED_BLOCK + GEMM_TILE_ROWS * matrix->inner) * sizeof(float);
    }
    size_t rows_bytes = (size_t)GEMM_TILE_ROWS * (size_t)matrix->inner * element_size(matrix->type);
    job.rows_offset = (size_t)GEMM_TILE_ROWS * (size_t)job.tile * sizeof(float);
    job.own_offset = job.rows_offset + (size_t)gemm_round_up((int64_t)rows_bytes, 64);
    job.scratch_bytes = (size_t)gemm_round_up((int64_t)(job.own_offset + own_bytes), 4096);
    TRY(cpu_scratch(cpu, SCRATCH_GEMM, job.scratch_bytes * (size_t)threads, &job.scratch));

    pool_run(cpu->pool, (int)(job.row_tasks * ((job.columns + job.task_columns - 1) / job.task_columns)), gemm_task,
             &job);
    if (atomic_load(&job.failed)) return fail(UNAVAILABLE, "oneDNN failed to compute a matrix product");
    return OK;
}
