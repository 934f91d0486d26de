// Sum of squares, AdamW, exponential moving average: streams over float32 memory, in fixed blocks.
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd_families.h"

#include <math.h>

enum { block = 1 << 16 }; // elements

// ---- inner loops ----

static double square_sum(const float *in, size_t count) {
    double lanes[8] = {0};
    for (size_t i = 0; i < count; i++) lanes[i % 8] += (double)in[i] * in[i];
    double sum = 0;
    for (int lane = 0; lane < 8; lane++) sum += lanes[lane];
    return sum;
}

void simd_plain_adamw(float *x, const float *gradient, float *m, float *v, size_t count,
                      const struct adamw_factors *f) {
    for (size_t i = 0; i < count; i++) {
        float g = gradient[i] * f->scale;
        m[i] = m[i] * f->m1 + g * f->m2;
        v[i] = v[i] * f->v1 + g * g * f->v2;
        x[i] = x[i] * f->keep - m[i] * f->rate / (sqrtf(v[i]) * f->root + f->epsilon);
    }
}

// This form leaves an average that equals `in` as it is.
static void ema(float *average, const float *in, size_t count, float rest) {
    for (size_t i = 0; i < count; i++) average[i] += (in[i] - average[i]) * rest;
}

void simd_optimizer(struct simd *simd) {
    simd->square_sum = square_sum;
    simd->adamw = simd_plain_adamw;
    simd->ema = ema;
}

// ---- operations ----

static bool flat(struct tensor t, int64_t elements) {
    return tensor_is(t, ELEMENT_F32, t.rows, t.columns) && tensor_dense(t) && t.rows * t.columns == elements;
}

struct squaring {
    const struct cpu_backend *cpu;
    const float *in;
    double *sums; // of each block
};

static void square_block(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct squaring *s = context;
    s->sums[first / block] = s->cpu->simd.square_sum(s->in + first, (size_t)(end - first));
}

status cpu_square_sum(struct backend *backend, double *sum, struct tensor in) {
    struct cpu_backend *cpu = cpu_of(backend);
    int64_t count = in.rows * in.columns, blocks = (count + block - 1) / block;
    CHECK(flat(in, count));
    struct squaring squaring = {.cpu = cpu, .in = tensor_f32(in, 0)};
    TRY(cpu_scratch(cpu, SCRATCH_SUMS, (size_t)blocks * sizeof(double), &squaring.sums));
    parallel_for(cpu, count, block, square_block, &squaring);
    for (int64_t i = 0; i < blocks; i++) *sum += squaring.sums[i];
    return OK;
}

struct stepping {
    const struct cpu_backend *cpu;
    const struct adamw_range *range;
    struct adamw_factors factors;
};

static void adamw_block(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct stepping *s = context;
    const struct adamw_range *r = s->range;
    s->cpu->simd.adamw(tensor_f32(r->param, 0) + first, tensor_f32(r->grad, 0) + first,
                       tensor_f32(r->exp_avg, 0) + first, tensor_f32(r->exp_avg_sq, 0) + first, (size_t)(end - first),
                       &s->factors);
}

// Bias corrections: the first moment's goes into the rate, the second's under the root.
static struct adamw_factors factors_of(const struct adamw_options *options, bool decay) {
    double first = 1 - pow(options->beta1, (double)options->step),
           second = 1 - pow(options->beta2, (double)options->step);
    return (struct adamw_factors){
        .scale = (float)options->grad_scale,
        .m1 = (float)options->beta1,
        .m2 = (float)(1 - options->beta1),
        .v1 = (float)options->beta2,
        .v2 = (float)(1 - options->beta2),
        .keep = decay ? (float)(1 - options->lr * options->weight_decay) : 1.0f,
        .rate = (float)(options->lr / first),
        .root = (float)(1 / sqrt(second)),
        .epsilon = (float)options->eps,
    };
}

status cpu_adamw(struct backend *backend, const struct adamw_range *ranges, size_t count,
                 const struct adamw_options *options) {
    CHECK(options->step >= 1);
    for (size_t i = 0; i < count; i++) {
        const struct adamw_range *r = &ranges[i];
        int64_t elements = r->param.rows * r->param.columns;
        CHECK(flat(r->param, elements) && flat(r->grad, elements) && flat(r->exp_avg, elements) &&
              flat(r->exp_avg_sq, elements));
        struct stepping stepping = {cpu_of(backend), r, factors_of(options, r->decay)};
        parallel_for(cpu_of(backend), elements, block, adamw_block, &stepping);
    }
    return OK;
}

struct averaging {
    const struct cpu_backend *cpu;
    float *average;
    const float *in;
    float rest;
};

static void average_block(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct averaging *a = context;
    a->cpu->simd.ema(a->average + first, a->in + first, (size_t)(end - first), a->rest);
}

status cpu_ema(struct backend *backend, struct tensor average, struct tensor in, double decay) {
    int64_t count = average.rows * average.columns;
    CHECK(flat(average, count) && flat(in, count));
    struct averaging averaging = {cpu_of(backend), tensor_f32(average, 0), tensor_f32(in, 0), (float)(1 - decay)};
    parallel_for(cpu_of(backend), count, block, average_block, &averaging);
    return OK;
}
