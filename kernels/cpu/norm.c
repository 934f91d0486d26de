// RMSNorm and LayerNorm with the residual sum before them, and their gradients, row by row. The formulas are in
// row_kernels.inc.
#include "kernels/cpu/cpu.h"

enum {
    block_rows = 16,  // rows of a task, at least
    blocks_most = 64, // partial sums of the gradients of scale and bias
};

// The rows of a task of a gradient, so many that there are at most blocks_most tasks.
static int64_t norm_block(int64_t rows) {
    int64_t block = (rows + blocks_most - 1) / blocks_most;
    return block < block_rows ? block_rows : block;
}

// Returns the row of sums of a block, zeroed; NULL if there are none.
static float *norm_sums(struct tensor sums, int64_t block) {
    if (tensor_none(sums)) return NULL;
    return memset(tensor_f32(sums, block), 0, (size_t)sums.columns * sizeof(float));
}

// ---- rmsnorm ----

struct rmsnorm_job {
    const struct cpu_backend *cpu;
    struct tensor out, x, delta, scale, rstd;
    float epsilon;
};

static void rmsnorm_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct rmsnorm_job *job = context;
    for (int64_t row = first; row < end; row++) {
        float rstd =
            job->cpu->simd.rmsnorm(row_view_of(job->out, row), row_view_of(job->x, row), row_view_of(job->delta, row),
                                   row_view_of(job->scale, 0), job->x.columns, job->epsilon);
        if (!tensor_none(job->rstd)) *tensor_f32(job->rstd, row) = rstd;
    }
}

status cpu_rmsnorm(struct backend *backend, struct tensor out, struct tensor x, struct tensor delta,
                   struct tensor scale, float epsilon, struct tensor rstd) {
    CHECK(tensor_is(x, -1, x.rows, x.columns) && tensor_is(out, -1, x.rows, x.columns));
    CHECK(tensor_none(delta) || tensor_is(delta, -1, x.rows, x.columns));
    CHECK(tensor_is(scale, -1, 1, x.columns));
    CHECK(tensor_none(rstd) || tensor_is(rstd, ELEMENT_F32, x.rows, 1));
    struct rmsnorm_job job = {cpu_of(backend), out, x, delta, scale, rstd, epsilon};
    parallel_for(cpu_of(backend), x.rows, block_rows, rmsnorm_task, &job);
    return OK;
}

struct rmsnorm_grad_job {
    const struct cpu_backend *cpu;
    struct tensor grad_x, grad_out, x, scale, rstd;
    struct tensor sums; // [blocks,C], the gradient of scale from each block of rows; or none
    int64_t block;      // rows
};

static void rmsnorm_grad_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct rmsnorm_grad_job *job = context;
    float *sums = norm_sums(job->sums, first / job->block);
    for (int64_t row = first; row < end; row++) {
        job->cpu->simd.rmsnorm_grad(row_view_of(job->grad_x, row), sums, row_view_of(job->grad_out, row),
                                    row_view_of(job->x, row), row_view_of(job->scale, 0), job->x.columns,
                                    *tensor_f32(job->rstd, row));
    }
}

status cpu_rmsnorm_grad(struct backend *backend, struct tensor grad_x, struct tensor grad_scale, struct tensor grad_out,
                        struct tensor x, struct tensor scale, struct tensor rstd) {
    struct cpu_backend *cpu = cpu_of(backend);
    CHECK(tensor_is(x, -1, x.rows, x.columns) && tensor_is(grad_x, -1, x.rows, x.columns));
    CHECK(tensor_is(grad_out, -1, x.rows, x.columns) && tensor_is(scale, -1, 1, x.columns));
    CHECK(tensor_is(rstd, ELEMENT_F32, x.rows, 1));
    CHECK(tensor_none(grad_scale) || tensor_is(grad_scale, ELEMENT_F32, 1, x.columns));
    int64_t block = norm_block(x.rows), blocks = (x.rows + block - 1) / block;
    struct rmsnorm_grad_job job = {cpu, grad_x, grad_out, x, scale, rstd, {0}, block};
    struct buffer sums;
    if (!tensor_none(grad_scale))
        TRY(cpu_scratch_tensor(cpu, SCRATCH_SUMS, &sums, &job.sums, ELEMENT_F32, blocks, x.columns));
    parallel_for(cpu, x.rows, block, rmsnorm_grad_task, &job);
    if (!tensor_none(grad_scale)) cpu_add_rows(cpu, grad_scale, job.sums);
    return OK;
}

// ---- layernorm ----

struct layernorm_job {
    const struct cpu_backend *cpu;
    struct tensor out, x, delta, scale, bias, statistics;
    float epsilon;
};

static void layernorm_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct layernorm_job *job = context;
    for (int64_t row = first; row < end; row++) {
        float unused[2], *statistics = tensor_none(job->statistics) ? unused : tensor_f32(job->statistics, row);
        job->cpu->simd.layernorm(row_view_of(job->out, row), row_view_of(job->x, row), row_view_of(job->delta, row),
                                 row_view_of(job->scale, 0), row_view_of(job->bias, 0), job->x.columns, job->epsilon,
                                 statistics);
    }
}

status cpu_layernorm(struct backend *backend, struct tensor out, struct tensor x, struct tensor delta,
                     struct tensor scale, struct tensor bias, float epsilon, struct tensor statistics) {
    CHECK(tensor_is(x, -1, x.rows, x.columns) && tensor_is(out, -1, x.rows, x.columns));
    CHECK(tensor_none(delta) || tensor_is(delta, -1, x.rows, x.columns));
    CHECK(tensor_is(scale, -1, 1, x.columns));
    CHECK(tensor_none(bias) || tensor_is(bias, -1, 1, x.columns));
    CHECK(tensor_none(statistics) || tensor_is(statistics, ELEMENT_F32, x.rows, 2));
    struct layernorm_job job = {cpu_of(backend), out, x, delta, scale, bias, statistics, epsilon};
    parallel_for(cpu_of(backend), x.rows, block_rows, layernorm_task, &job);
    return OK;
}

struct layernorm_grad_job {
    const struct cpu_backend *cpu;
    struct tensor grad_x, grad_out, x, scale, statistics;
    struct tensor scale_sums, bias_sums; // [blocks,C], the gradients from each block of rows; or none
    int64_t block;                       // rows
};

static void layernorm_grad_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct layernorm_grad_job *job = context;
    float *scale_sums = norm_sums(job->scale_sums, first / job->block);
    float *bias_sums = norm_sums(job->bias_sums, first / job->block);
    for (int64_t row = first; row < end; row++) {
        job->cpu->simd.layernorm_grad(row_view_of(job->grad_x, row), scale_sums, bias_sums,
                                      row_view_of(job->grad_out, row), row_view_of(job->x, row),
                                      row_view_of(job->scale, 0), job->x.columns, tensor_f32(job->statistics, row));
    }
}

status cpu_layernorm_grad(struct backend *backend, struct tensor grad_x, struct tensor grad_scale,
                          struct tensor grad_bias, struct tensor grad_out, struct tensor x, struct tensor scale,
                          struct tensor statistics) {
    struct cpu_backend *cpu = cpu_of(backend);
    int64_t columns = x.columns;
    CHECK(tensor_is(x, -1, x.rows, columns) && tensor_is(grad_x, -1, x.rows, columns));
    CHECK(tensor_is(grad_out, -1, x.rows, columns) && tensor_is(scale, -1, 1, columns));
    CHECK(tensor_is(statistics, ELEMENT_F32, x.rows, 2));
    CHECK(tensor_none(grad_scale) || tensor_is(grad_scale, ELEMENT_F32, 1, columns));
    CHECK(tensor_none(grad_bias) || tensor_is(grad_bias, ELEMENT_F32, 1, columns));
    int64_t block = norm_block(x.rows), blocks = (x.rows + block - 1) / block;
    struct layernorm_grad_job job = {cpu, grad_x, grad_out, x, scale, statistics, .block = block};
    struct buffer memory;
    struct tensor sums;
    TRY(cpu_scratch_tensor(cpu, SCRATCH_SUMS, &memory, &sums, ELEMENT_F32, 2 * blocks, columns));
    if (!tensor_none(grad_scale)) job.scale_sums = tensor_rows(sums, 0, blocks);
    if (!tensor_none(grad_bias)) job.bias_sums = tensor_rows(sums, blocks, blocks);
    parallel_for(cpu, x.rows, block, layernorm_grad_task, &job);
    if (!tensor_none(grad_scale)) cpu_add_rows(cpu, grad_scale, job.scale_sums);
    if (!tensor_none(grad_bias)) cpu_add_rows(cpu, grad_bias, job.bias_sums);
    return OK;
}
