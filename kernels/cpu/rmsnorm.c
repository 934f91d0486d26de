// RMSNorm with the residual sum before it, and its gradient, row by row. The formulas are in row_kernels.inc.
#include <assert.h>

#include "kernels/cpu/cpu.h"

enum {
    block_rows = 16,  // rows of a task, at least
    blocks_most = 64, // partial sums of the gradient of scale
};

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

// ---- the gradient ----

struct rmsnorm_grad_job {
    const struct cpu_backend *cpu;
    struct tensor grad_x, grad_out, x, scale, rstd;
    struct tensor sums; // [blocks,C], the gradient of scale from each block of rows; or none
    int64_t block;      // rows
};

static void rmsnorm_grad_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct rmsnorm_grad_job *job = context;
    int64_t columns = job->x.columns;
    float *sums = tensor_none(job->sums) ? NULL : tensor_f32(job->sums, first / job->block);
    if (sums) memset(sums, 0, (size_t)columns * sizeof *sums);
    for (int64_t row = first; row < end; row++) {
        job->cpu->simd.rmsnorm_grad(row_view_of(job->grad_x, row), sums, row_view_of(job->grad_out, row),
                                    row_view_of(job->x, row), row_view_of(job->scale, 0), columns,
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
    int64_t block = (x.rows + blocks_most - 1) / blocks_most;
    if (block < block_rows) block = block_rows;
    int64_t blocks = (x.rows + block - 1) / block;
    assert(blocks <= blocks_most);
    struct rmsnorm_grad_job job = {cpu, grad_x, grad_out, x, scale, rstd, {0}, block};
    struct buffer sums;
    if (!tensor_none(grad_scale))
        TRY(cpu_scratch_tensor(cpu, SCRATCH_SUMS, &sums, &job.sums, ELEMENT_F32, blocks, x.columns));
    parallel_for(cpu, x.rows, block, rmsnorm_grad_task, &job);
    if (!tensor_none(grad_scale)) cpu_add_rows(cpu, grad_scale, job.sums);
    return OK;
}
