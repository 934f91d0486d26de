// RMSNorm with the residual sum before it, and its gradient.
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/row_view.h"

enum { norm_block = 16, most_sums = 64, sum_columns = 256 };

struct norming {
    const struct cpu_backend *cpu;
    struct tensor out, x, delta, scale, rstd;
    float epsilon;
};

static void norm_rows(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct norming *n = context;
    for (int64_t row = first; row < end; row++) {
        float rstd = n->cpu->simd.rmsnorm(row_view_of(n->out, row), row_view_of(n->x, row), row_view_of(n->delta, row),
                                          row_view_of(n->scale, 0), n->x.columns, n->epsilon);
        if (!tensor_none(n->rstd)) *tensor_f32(n->rstd, row) = rstd;
    }
}

status cpu_rmsnorm(struct backend *backend, struct tensor out, struct tensor x, struct tensor delta,
                   struct tensor scale, float epsilon, struct tensor rstd) {
    CHECK(tensor_is(x, -1, x.rows, x.columns) && tensor_is(out, -1, x.rows, x.columns));
    CHECK(tensor_none(delta) || tensor_is(delta, -1, x.rows, x.columns));
    CHECK(tensor_is(scale, -1, 1, x.columns));
    CHECK(tensor_none(rstd) || tensor_is(rstd, ELEMENT_F32, x.rows, 1));
    struct norming norming = {cpu_of(backend), out, x, delta, scale, rstd, epsilon};
    parallel_for(cpu_of(backend), x.rows, norm_block, norm_rows, &norming);
    return OK;
}

// ---- gradient ----

struct norm_sloping {
    const struct cpu_backend *cpu;
    struct tensor grad_x, grad_scale, grad_out, x, scale, rstd;
    float *sums; // [blocks][C], the gradient of scale from each block of rows
    int64_t block;
};

static void norm_slopes(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct norm_sloping *n = context;
    int64_t columns = n->x.columns;
    float *sums = n->sums ? n->sums + first / n->block * columns : NULL;
    if (sums) memset(sums, 0, (size_t)columns * sizeof *sums);
    for (int64_t row = first; row < end; row++) {
        n->cpu->simd.rmsnorm_grad(row_view_of(n->grad_x, row), sums, row_view_of(n->grad_out, row),
                                  row_view_of(n->x, row), row_view_of(n->scale, 0), columns, *tensor_f32(n->rstd, row));
    }
}

static void add_sums(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct norm_sloping *n = context;
    int64_t blocks = (n->x.rows + n->block - 1) / n->block;
    float *gradient = tensor_f32(n->grad_scale, 0);
    for (int64_t block = 0; block < blocks; block++) {
        n->cpu->simd.add(gradient + first, n->sums + block * n->x.columns + first, (size_t)(end - first));
    }
}

status cpu_rmsnorm_grad(struct backend *backend, struct tensor grad_x, struct tensor grad_scale, struct tensor grad_out,
                        struct tensor x, struct tensor scale, struct tensor rstd) {
    struct cpu_backend *cpu = cpu_of(backend);
    CHECK(tensor_is(x, -1, x.rows, x.columns) && tensor_is(grad_x, -1, x.rows, x.columns));
    CHECK(tensor_is(grad_out, -1, x.rows, x.columns) && tensor_is(scale, -1, 1, x.columns));
    CHECK(tensor_is(rstd, ELEMENT_F32, x.rows, 1));
    CHECK(tensor_none(grad_scale) || tensor_is(grad_scale, ELEMENT_F32, 1, x.columns));
    int64_t block = (x.rows + most_sums - 1) / most_sums;
    if (block < norm_block) block = norm_block;
    struct norm_sloping sloping = {cpu, grad_x, grad_scale, grad_out, x, scale, rstd, NULL, block};
    if (!tensor_none(grad_scale)) {
        size_t blocks = (size_t)((x.rows + block - 1) / block);
        TRY(cpu_scratch(cpu, SCRATCH_SUMS, blocks * (size_t)x.columns * sizeof(float), &sloping.sums));
    }
    parallel_for(cpu, x.rows, block, norm_slopes, &sloping);
    if (sloping.sums) parallel_for(cpu, x.columns, sum_columns, add_sums, &sloping);
    return OK;
}
