// RMSNorm with the residual sum before it, and its gradient.
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/line.h"

enum { norm_block = 16, most_sums = 64, sum_columns = 256 };

struct norming {
    const struct cpu_backend *cpu;
    struct tensor out, x, delta, scale, inverse;
    float epsilon;
};

static void norm_rows(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct norming *n = context;
    for (int64_t row = first; row < end; row++) {
        float inverse = n->cpu->vectors.rmsnorm(line_of(n->out, row), line_of(n->x, row), line_of(n->delta, row),
                                                line_of(n->scale, 0), n->x.columns, n->epsilon);
        if (!tensor_none(n->inverse)) *tensor_f32(n->inverse, row) = inverse;
    }
}

status cpu_rmsnorm(struct backend *backend, struct tensor out, struct tensor x, struct tensor delta,
                   struct tensor scale, float epsilon, struct tensor inverse) {
    CHECK(tensor_is(x, -1, x.rows, x.columns) && tensor_is(out, -1, x.rows, x.columns));
    CHECK(tensor_none(delta) || tensor_is(delta, -1, x.rows, x.columns));
    CHECK(tensor_is(scale, -1, 1, x.columns));
    CHECK(tensor_none(inverse) || tensor_is(inverse, ELEMENT_F32, x.rows, 1));
    struct norming norming = {cpu_of(backend), out, x, delta, scale, inverse, epsilon};
    cpu_blocks(cpu_of(backend), x.rows, norm_block, norm_rows, &norming);
    return OK;
}

// ---- gradient ----

struct norm_sloping {
    const struct cpu_backend *cpu;
    struct tensor x_gradient, scale_gradient, out_gradient, x, scale, inverse;
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
        n->cpu->vectors.rmsnorm_gradient(line_of(n->x_gradient, row), sums, line_of(n->out_gradient, row),
                                         line_of(n->x, row), line_of(n->scale, 0), columns,
                                         *tensor_f32(n->inverse, row));
    }
}

static void add_sums(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct norm_sloping *n = context;
    int64_t blocks = (n->x.rows + n->block - 1) / n->block;
    float *gradient = tensor_f32(n->scale_gradient, 0);
    for (int64_t block = 0; block < blocks; block++) {
        n->cpu->vectors.add(gradient + first, n->sums + block * n->x.columns + first, (size_t)(end - first));
    }
}

status cpu_rmsnorm_gradient(struct backend *backend, struct tensor x_gradient, struct tensor scale_gradient,
                            struct tensor out_gradient, struct tensor x, struct tensor scale, struct tensor inverse) {
    struct cpu_backend *cpu = cpu_of(backend);
    CHECK(tensor_is(x, -1, x.rows, x.columns) && tensor_is(x_gradient, -1, x.rows, x.columns));
    CHECK(tensor_is(out_gradient, -1, x.rows, x.columns) && tensor_is(scale, -1, 1, x.columns));
    CHECK(tensor_is(inverse, ELEMENT_F32, x.rows, 1));
    CHECK(tensor_none(scale_gradient) || tensor_is(scale_gradient, ELEMENT_F32, 1, x.columns));
    int64_t block = (x.rows + most_sums - 1) / most_sums;
    if (block < norm_block) block = norm_block;
    struct norm_sloping sloping = {cpu, x_gradient, scale_gradient, out_gradient, x, scale, inverse, NULL, block};
    if (!tensor_none(scale_gradient)) {
        size_t blocks = (size_t)((x.rows + block - 1) / block);
        TRY(cpu_scratch_get(cpu, PLACE_SUMS, blocks * (size_t)x.columns * sizeof(float), &sloping.sums));
    }
    cpu_blocks(cpu, x.rows, block, norm_slopes, &sloping);
    if (sloping.sums) cpu_blocks(cpu, x.columns, sum_columns, add_sums, &sloping);
    return OK;
}
