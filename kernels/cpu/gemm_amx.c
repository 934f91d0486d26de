// Matrix products on the matrix unit (amx.h). First the rows are packed, then tiles of the result are computed. The
// columns of a tile stay in the second-level cache while all its rows pass by, a strip at a time.
#include <assert.h>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm.h"

enum {
    chunk_rows = 6144,         // rows that are packed at a time
    columns_bytes = 768 << 10, // of the columns that stay in the second-level cache
    columns_most = 256,
    columns_least = 128,   // that should have the whole inner length there;
    inner_most = 1344,     // otherwise so much of it is added up at a time
    strip_rows = 64,       // rows that are computed and written at a time,
    strip_rows_sums = 768, // or that are added up at a time
    strip_padding = 16,    // floats between the rows of a strip, which would share cache sets
    tasks_per_thread = 6,  // at least, if there are so many tiles
    read_rows_most = gemm_tile_rows,
};

static_assert(read_rows_most % amx_group == 0 && inner_most % amx_inner == 0, "whole tiles of the unit");
static_assert((int)gemm_tile_columns >= (int)columns_most, "a strip fits write_tile");

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
    int64_t row = (int64_t)task * read_rows_most, rows = gemm_min(job->rows - row, read_rows_most);
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
                                  .out_stride = columns + strip_padding,
                                  .rows_stride = amx_rows_size(job->parts, amx_group, inner),
                                  .column_stride = amx_columns_size(job->parts, inner),
                                  .column_count = columns};
    for (int64_t row = first; row < end; row += job->strip_rows) {
        product.row_count = gemm_min(end - row, job->strip_rows);
        for (int64_t begin = 0; begin < inner; begin += job->strip_inner) {
            product.rows = gemm_amx_rows_at(job, row) + amx_rows_size(job->parts, amx_group, begin);
            product.columns = packed + amx_columns_at(job->parts, begin);
            product.steps = (gemm_min(inner - begin, job->strip_inner) + amx_inner - 1) / amx_inner;
            amx_multiply(&product, begin > 0);
        }
        gemm->write_tile(gemm->context, strip, product.out_stride, job->first + row, product.row_count, column,
                         gemm_min(gemm->matrix.outputs - column, columns));
    }
}

// Divides rows and columns into tiles, so that every thread has work, and the inner length into what is added up.
static void gemm_amx_divide(struct gemm_amx *job, int64_t rows) {
    int64_t tasks = (int64_t)pool_threads(job->cpu->pool) * tasks_per_thread, inner = job->gemm->matrix.inner;
    int64_t column_bytes = amx_columns_size(job->parts, inner) * (int64_t)sizeof(uint16_t) / amx_block;
    bool whole = column_bytes * columns_least <= columns_bytes;
    int64_t sums = (inner + inner_most - 1) / inner_most;
    job->strip_inner = whole ? inner : ((inner - 1) / sums / amx_inner + 1) * amx_inner;
    job->strip_rows = whole ? strip_rows : strip_rows_sums;
    int64_t most =
        columns_bytes / (amx_columns_size(job->parts, job->strip_inner) * (int64_t)sizeof(uint16_t)) * amx_block;
    most = gemm_min(most, columns_most);
    int64_t column_tasks = (job->columns + most - 1) / most;
    job->row_tasks = 1;
    while (rows / (2 * job->row_tasks) >= read_rows_most && column_tasks * job->row_tasks < tasks) job->row_tasks *= 2;
    job->tile_rows = ((rows - 1) / job->row_tasks / (2 * amx_group) + 1) * 2 * amx_group;
    job->strip_rows = gemm_min(job->strip_rows, job->tile_rows);
    column_tasks = (tasks + job->row_tasks - 1) / job->row_tasks;
    int64_t columns = job->columns / column_tasks / amx_block * amx_block;
    job->tile_columns = columns < amx_block ? amx_block : gemm_min(columns, most);
}

status gemm_run_amx(struct cpu_backend *cpu, const struct gemm *gemm) {
    const struct packed_matrix *matrix = &gemm->matrix;
    int parts = matrix->type == ELEMENT_F32 ? cpu->f32_parts : 1;
    int64_t threads = pool_threads(cpu->pool), rows = gemm_min(gemm->rows, chunk_rows);
    struct gemm_amx job = {.cpu = cpu, .gemm = gemm, .parts = parts};
    job.columns = (matrix->outputs + packed_block - 1) / packed_block * packed_block;
    gemm_amx_divide(&job, rows);
    int64_t tile = job.strip_rows * (job.tile_columns + strip_padding) * (int64_t)sizeof(float);
    int64_t reading = gemm_min(rows, read_rows_most) * matrix->inner * (int64_t)element_size(matrix->type);
    job.scratch_bytes = (size_t)((tile > reading ? tile : reading) + 4095) / 4096 * 4096;
    TRY(cpu_scratch(cpu, SCRATCH_GEMM, job.scratch_bytes * (size_t)threads, &job.scratch));
    size_t packed = (size_t)amx_rows_size(parts, rows, matrix->inner) * sizeof *job.packed;
    TRY(cpu_scratch(cpu, SCRATCH_GEMM_ROWS, packed, &job.packed));
    for (; job.first < gemm->rows; job.first += chunk_rows) {
        job.rows = gemm_min(gemm->rows - job.first, chunk_rows);
        job.row_tasks = (job.rows + job.tile_rows - 1) / job.tile_rows;
        pool_run(cpu->pool, (int)((job.rows + read_rows_most - 1) / read_rows_most), gemm_amx_pack, &job);
        int64_t column_tasks = (job.columns + job.tile_columns - 1) / job.tile_columns;
        pool_run(cpu->pool, (int)(job.row_tasks * column_tasks), gemm_amx_tile, &job);
    }
    return OK;
}
