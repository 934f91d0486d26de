// Matrix products on the matrix unit (amx.h). First the rows are packed, then tiles of the result are computed. The
// columns of a tile stay in the second-level cache while all its rows pass by.
#include <assert.h>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/gemm.h"

enum {
    chunk_rows = 2304, // rows that are packed at a time
    tile_rows_most = 768,
    tile_inner = 1024,    // inner elements of the columns that stay in the cache
    tile_padding = 16,    // floats between the rows of a tile, which would share cache sets
    tasks_per_thread = 6, // at least, if there are so many tiles
    read_rows_most = gemm_tile_rows,
};

static_assert(tile_inner % amx_inner == 0 && read_rows_most % amx_group == 0, "whole tiles of the unit");

// The most columns of a tile, whose packed form takes half a megabyte or somewhat more.
static int64_t gemm_amx_columns_most(enum amx_parts parts) {
    return parts == AMX_F32 ? 128 : 256;
}

static_assert(gemm_tile_columns >= 256, "a tile fits write_tile");

struct gemm_amx {
    struct cpu_backend *cpu;
    const struct gemm *gemm;
    enum amx_parts parts;
    int64_t first, rows; // of the chunk
    int64_t columns;     // of the packed matrix, with its padding
    int64_t tile_rows, tile_columns, row_tasks;
    uint16_t *packed; // the chunk's rows
    char *scratch;    // scratch_bytes for each thread
    size_t scratch_bytes;
};

static int64_t gemm_amx_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static uint16_t *gemm_amx_rows_at(const struct gemm_amx *job, int64_t row) {
    return job->packed + amx_rows_size(job->parts, row, job->gemm->matrix.inner);
}

static void gemm_amx_pack(void *context, int task, int thread) {
    const struct gemm_amx *job = context;
    const struct gemm *gemm = job->gemm;
    int64_t row = (int64_t)task * read_rows_most, rows = gemm_amx_min(job->rows - row, read_rows_most);
    void *scratch = job->scratch + (size_t)thread * job->scratch_bytes;
    const void *in = gemm->read_rows(gemm->context, job->first + row, rows, scratch);
    amx_pack_rows(gemm_amx_rows_at(job, row), in, job->parts, rows, gemm->matrix.inner);
}

static void gemm_amx_tile(void *context, int task, int thread) {
    const struct gemm_amx *job = context;
    const struct gemm *gemm = job->gemm;
    int64_t row = task % job->row_tasks * job->tile_rows, column = task / job->row_tasks * job->tile_columns;
    int64_t rows = gemm_amx_min(job->rows - row, job->tile_rows);
    int64_t columns = gemm_amx_min(job->columns - column, job->tile_columns), inner = gemm->matrix.inner;
    float *tile = (void *)(job->scratch + (size_t)thread * job->scratch_bytes);
    int64_t stride = columns + tile_padding;
    uint16_t *split = (uint16_t *)(tile + job->tile_rows * (job->tile_columns + tile_padding));
    struct amx_product product = {.parts = job->parts,
                                  .out = tile,
                                  .out_stride = stride,
                                  .rows_stride = amx_rows_size(job->parts, amx_group, inner),
                                  .row_count = rows,
                                  .column_count = columns};
    for (int64_t begin = 0; begin < inner; begin += tile_inner) {
        int64_t count = gemm_amx_min(inner - begin, tile_inner);
        product.rows = gemm_amx_rows_at(job, row) + amx_rows_size(job->parts, amx_group, begin);
        product.steps = (count + amx_inner - 1) / amx_inner;
        if (job->parts == AMX_BF16) {
            product.column_stride = amx_columns_size(AMX_BF16, inner);
            product.columns =
                (uint16_t *)packed_at(job->cpu, &gemm->matrix, column) + amx_columns_size(AMX_BF16, begin);
        } else {
            product.column_stride = amx_columns_size(AMX_F32, count);
            product.columns = split;
            for (int64_t i = 0; i < columns; i += amx_block)
                amx_pack_columns(split + i / amx_block * product.column_stride,
                                 (float *)packed_at(job->cpu, &gemm->matrix, column + i) + begin * amx_block, count);
        }
        amx_multiply(&product, begin > 0);
    }
    gemm->write_tile(gemm->context, tile, stride, job->first + row, rows, column,
                     gemm_amx_min(gemm->matrix.outputs - column, columns));
}

// Divides rows into tiles of equal height, so that every thread has work: at first as high as they may be.
static void gemm_amx_divide(struct gemm_amx *job, int64_t rows) {
    int64_t tasks = (int64_t)pool_threads(job->cpu->pool) * tasks_per_thread, most = gemm_amx_columns_most(job->parts);
    int64_t column_tasks = (job->columns + most - 1) / most;
    job->row_tasks = (rows + tile_rows_most - 1) / tile_rows_most;
    while (rows / (2 * job->row_tasks) >= read_rows_most && column_tasks * job->row_tasks < tasks) job->row_tasks *= 2;
    job->tile_rows = ((rows - 1) / job->row_tasks / (2 * amx_group) + 1) * 2 * amx_group;
    column_tasks = (tasks + job->row_tasks - 1) / job->row_tasks;
    int64_t columns = job->columns / column_tasks / amx_block * amx_block;
    job->tile_columns = columns < amx_block ? amx_block : gemm_amx_min(columns, most);
}

status gemm_run_amx(struct cpu_backend *cpu, const struct gemm *gemm) {
    const struct packed_matrix *matrix = &gemm->matrix;
    enum amx_parts parts = matrix->type == ELEMENT_F32 ? AMX_F32 : AMX_BF16;
    int64_t threads = pool_threads(cpu->pool), rows = gemm_amx_min(gemm->rows, chunk_rows);
    struct gemm_amx job = {.cpu = cpu, .gemm = gemm, .parts = parts};
    job.columns = (matrix->outputs + packed_block - 1) / packed_block * packed_block;
    gemm_amx_divide(&job, rows);
    int64_t tile = job.tile_rows * (job.tile_columns + tile_padding) * (int64_t)sizeof(float);
    int64_t split = parts == AMX_F32 ? job.tile_columns / amx_block * amx_columns_size(parts, tile_inner) * 2 : 0;
    int64_t reading = gemm_amx_min(rows, read_rows_most) * matrix->inner * (int64_t)element_size(matrix->type);
    job.scratch_bytes = (size_t)((tile + split > reading ? tile + split : reading) + 4095) / 4096 * 4096;
    TRY(cpu_scratch(cpu, SCRATCH_GEMM, job.scratch_bytes * (size_t)threads, &job.scratch));
    size_t packed = (size_t)amx_rows_size(parts, rows, matrix->inner) * sizeof *job.packed;
    TRY(cpu_scratch(cpu, SCRATCH_GEMM_ROWS, packed, &job.packed));
    for (; job.first < gemm->rows; job.first += chunk_rows) {
        job.rows = gemm_amx_min(gemm->rows - job.first, chunk_rows);
        job.row_tasks = (job.rows + job.tile_rows - 1) / job.tile_rows;
        pool_run(cpu->pool, (int)((job.rows + read_rows_most - 1) / read_rows_most), gemm_amx_pack, &job);
        int64_t column_tasks = (job.columns + job.tile_columns - 1) / job.tile_columns;
        pool_run(cpu->pool, (int)(job.row_tasks * column_tasks), gemm_amx_tile, &job);
    }
    return OK;
}
