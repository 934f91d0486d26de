// RMSNorm and LayerNorm with the residual sum before them, and their gradients, row by row. The formulas are in
// row_kernels.inc.
#include "kernels/cpu/cpu.h"

enum {
    BLOCK_ROWS = 16, // rows of a task, at least
    MAX_BLOCKS = 64, // partial sums of the gradients of scale and bias
};

struct norm_job {
    const struct cpu_backend *cpu;
    struct tensor x, scale, statistics; // statistics: of layernorm, or the rstd of rmsnorm
    struct tensor out, delta, bias;
    float epsilon;
    struct tensor grad_x, grad_out;
    struct tensor scale_sums, bias_sums; // [blocks,C], the gradients from each block of rows; or none
    int64_t block;                       // rows
};

// Whether a tensor has the shape of x, or that of its row.
static bool norm_like(struct tensor t, struct tensor x) {
    return tensor_is(t, -1, x.rows, x.columns);
}

static bool norm_row(struct tensor t, int type, struct tensor x) {
    return tensor_is(t, type, 1, x.columns);
}

// Returns the row of sums of a block, zeroed; NULL if there are none.
static float *norm_sums(struct tensor sums, int64_t block) {
    if (tensor_none(sums)) return NULL;
    return memset(tensor_f32(sums, block), 0, (size_t)sums.columns * sizeof(float));
}

// Runs the task of a gradient, in which every block of rows has sums of its own, and adds these up.
static status norm_run_grad(struct cpu_backend *cpu, struct norm_job *job, struct tensor grad_scale,
                            struct tensor grad_bias, void (*task)(void *context, struct task_range range)) {
    int64_t rows = job->x.rows, block = (rows + MAX_BLOCKS - 1) / MAX_BLOCKS;
    job->block = block < BLOCK_ROWS ? BLOCK_ROWS : block;
    int64_t blocks = (rows + job->block - 1) / job->block;
    struct buffer memory;
    struct tensor sums;
    TRY(cpu_scratch_tensor(cpu, SCRATCH_SUMS, &memory, &sums, ELEMENT_F32, 2 * blocks, job->x.columns));
    if (!tensor_none(grad_scale)) job->scale_sums = tensor_rows(sums, 0, blocks);
    if (!tensor_none(grad_bias)) job->bias_sums = tensor_rows(sums, blocks, blocks);
    parallel_for(cpu, rows, job->block, task, job);
    if (!tensor_none(grad_scale)) cpu_add_rows(cpu, grad_scale, job->scale_sums);
    if (!tensor_none(grad_bias)) cpu_add_rows(cpu, grad_bias, job->bias_sums);
    return OK;
}

// ---- rmsnorm ----

static void rmsnorm_task(void *context, struct task_range range) {
    const struct norm_job *job = context;
    for (int64_t row = range.first; row < range.end; row++) {
        float rstd =
            job->cpu->simd.rmsnorm(row_view_of(job->out, row), row_view_of(job->x, row), row_view_of(job->delta, row),
                                   row_view_of(job->scale, 0), job->x.columns, job->epsilon);
        if (!tensor_none(job->statistics)) *tensor_f32(job->statistics, row) = rstd;
    }
}

status cpu_rmsnorm(struct backend *backend, struct tensor out, struct tensor x, struct tensor delta,
                   struct tensor scale, float epsilon, struct tensor rstd) {
    CHECK(norm_like(x, x) && norm_like(out, x) && (tensor_none(delta) || norm_like(delta, x)));
    CHECK(norm_row(scale, -1, x));
    CHECK(tensor_none(rstd) || tensor_is(rstd, ELEMENT_F32, x.rows, 1));
    struct norm_job job = {cpu_of(backend), x, scale, rstd, out, delta, .epsilon = epsilon};
    parallel_for(cpu_of(backend), x.rows, BLOCK_ROWS, rmsnorm_task, &job);
    return OK;
}

static void rmsnorm_grad_task(void *context, struct task_range range) {
    const struct norm_job *job = context;
    float *sums = norm_sums(job->scale_sums, range.first / job->block);
    for (int64_t row = range.first; row < range.end; row++) {
        job->cpu->simd.rmsnorm_grad(row_view_of(job->grad_x, row), sums, row_view_of(job->grad_out, row),
                                    row_view_of(job->x, row), row_view_of(job->scale, 0), job->x.columns,
                                    *tensor_f32(job->statistics, row));
    }
}

status cpu_rmsnorm_grad(struct backend *backend, struct tensor grad_x, struct tensor grad_scale, struct tensor grad_out,
                        struct tensor x, struct tensor scale, struct tensor rstd) {
    CHECK(norm_like(x, x) && norm_like(grad_x, x) && norm_like(grad_out, x) && norm_row(scale, -1, x));
    CHECK(tensor_is(rstd, ELEMENT_F32, x.rows, 1));
    CHECK(tensor_none(grad_scale) || norm_row(grad_scale, ELEMENT_F32, x));
    struct norm_job job = {cpu_of(backend), x, scale, rstd, .grad_x = grad_x, .grad_out = grad_out};
    return norm_run_grad(cpu_of(backend), &job, grad_scale, (struct tensor){0}, rmsnorm_grad_task);
}

// ---- layernorm ----

static void layernorm_task(void *context, struct task_range range) {
    const struct norm_job *job = context;
    for (int64_t row = range.first; row < range.end; row++) {
        float unused[2], *statistics = tensor_none(job->statistics) ? unused : tensor_f32(job->statistics, row);
        job->cpu->simd.layernorm(row_view_of(job->out, row), row_view_of(job->x, row), row_view_of(job->delta, row),
                                 row_view_of(job->scale, 0), row_view_of(job->bias, 0), job->x.columns, job->epsilon,
                                 statistics);
    }
}

status cpu_layernorm(struct backend *backend, struct tensor out, struct tensor x, struct tensor delta,
                     struct tensor scale, struct tensor bias, float epsilon, struct tensor statistics) {
    CHECK(norm_like(x, x) && norm_like(out, x) && (tensor_none(delta) || norm_like(delta, x)));
    CHECK(norm_row(scale, -1, x) && (tensor_none(bias) || norm_row(bias, -1, x)));
    CHECK(tensor_none(statistics) || tensor_is(statistics, ELEMENT_F32, x.rows, 2));
    struct norm_job job = {cpu_of(backend), x, scale, statistics, out, delta, bias, .epsilon = epsilon};
    parallel_for(cpu_of(backend), x.rows, BLOCK_ROWS, layernorm_task, &job);
    return OK;
}

static void layernorm_grad_task(void *context, struct task_range range) {
    const struct norm_job *job = context;
    float *scale_sums = norm_sums(job->scale_sums, range.first / job->block);
    float *bias_sums = norm_sums(job->bias_sums, range.first / job->block);
    for (int64_t row = range.first; row < range.end; row++) {
        job->cpu->simd.layernorm_grad(row_view_of(job->grad_x, row), scale_sums, bias_sums,
                                      row_view_of(job->grad_out, row), row_view_of(job->x, row),
                                      row_view_of(job->scale, 0), job->x.columns, tensor_f32(job->statistics, row));
    }
}

status cpu_layernorm_grad(struct backend *backend, struct tensor grad_x, struct tensor grad_scale,
                          struct tensor grad_bias, struct tensor grad_out, struct tensor x, struct tensor scale,
                          struct tensor statistics) {
    CHECK(norm_like(x, x) && norm_like(grad_x, x) && norm_like(grad_out, x) && norm_row(scale, -1, x));
    CHECK(tensor_is(statistics, ELEMENT_F32, x.rows, 2));
    CHECK(tensor_none(grad_scale) || norm_row(grad_scale, ELEMENT_F32, x));
    CHECK(tensor_none(grad_bias) || norm_row(grad_bias, ELEMENT_F32, x));
    struct norm_job job = {cpu_of(backend), x, scale, statistics, .grad_x = grad_x, .grad_out = grad_out};
    return norm_run_grad(cpu_of(backend), &job, grad_scale, grad_bias, layernorm_grad_task);
}
