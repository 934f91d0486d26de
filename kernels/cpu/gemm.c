// The tiling of a product: which thread computes which rows and columns, with what scratch memory.
#include "kernels/cpu/gemm.h"

#include <assert.h>
#include <stdatomic.h>

enum { tasks_per_thread = 6 };

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

static int64_t gemm_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t gemm_round_up(int64_t value, int64_t unit) {
    return (value + unit - 1) / unit * unit;
}

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

// Finds the products for whole tiles and for those at the edges, and scratch memory that is large enough for each.
static status gemm_prepare(struct gemm_job *job) {
    const struct packed_matrix *matrix = &job->gemm->matrix;
    int64_t last_row = (job->row_tasks - 1) * gemm_tile_rows, last_column = (job->columns - 1) / job->tile * job->tile;
    size_t matmul_bytes = 0;
    for (int i = 0; i < 4; i++) {
        struct matmul **matmul = &job->matmul[i / 2][i % 2];
        struct matmul_shape shape = {.type = matrix->type,
                                     .rows = gemm_padded_rows(job, i / 2 ? last_row : 0),
                                     .columns = gemm_columns_at(job, i % 2 ? last_column : 0),
                                     .inner = matrix->inner};
        TRY(onednn_matmul(job->cpu->onednn, &shape, matmul));
        if (matmul_scratch(*matmul) > matmul_bytes) matmul_bytes = matmul_scratch(*matmul);
    }
    size_t rows_bytes = (size_t)gemm_tile_rows * (size_t)matrix->inner * element_size(matrix->type);
    job->rows_offset = (size_t)gemm_tile_rows * (size_t)job->tile * sizeof(float);
    job->matmul_offset = job->rows_offset + (size_t)gemm_round_up((int64_t)rows_bytes, 64);
    job->scratch_bytes = (size_t)gemm_round_up((int64_t)(job->matmul_offset + matmul_bytes), 4096);
    return cpu_scratch(job->cpu, SCRATCH_GEMM, job->scratch_bytes * (size_t)pool_threads(job->cpu->pool),
                       &job->scratch);
}

// Appends rows of zeros, where oneDNN must not compute fewer rows.
static void *gemm_pad_rows(const struct gemm_job *job, void *in, int64_t rows, int64_t padded, void *scratch) {
    const struct packed_matrix *matrix = &job->gemm->matrix;
    size_t row_bytes = (size_t)matrix->inner * element_size(matrix->type);
    if (in != scratch) memcpy(scratch, in, (size_t)rows * row_bytes);
    memset((char *)scratch + (size_t)rows * row_bytes, 0, (size_t)(padded - rows) * row_bytes);
    return scratch;
}

static void gemm_task(void *context, int task, int thread) {
    struct gemm_job *job = context;
    const struct gemm *gemm = job->gemm;
    char *scratch = job->scratch + (size_t)thread * job->scratch_bytes;
    float *tile = (void *)scratch;
    int64_t first = task % job->row_tasks * gemm_tile_rows, begin = task / job->row_tasks * job->task_columns;
    int64_t rows = gemm_rows_at(job, first), padded = gemm_padded_rows(job, first);
    void *in = gemm->read_rows(gemm->context, first, rows, scratch + job->rows_offset);
    if (padded != rows) in = gemm_pad_rows(job, in, rows, padded, scratch + job->rows_offset);
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
    TRY(gemm_prepare(&job));
    pool_run(cpu->pool, (int)(job.row_tasks * ((job.columns + job.task_columns - 1) / job.task_columns)), gemm_task,
             &job);
    if (atomic_load(&job.failed)) return fail(UNAVAILABLE, "oneDNN failed to compute a matrix product");
    return OK;
}
