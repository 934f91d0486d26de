// The sum of squares, AdamW and the exponential moving average: passes over float32 memory, in fixed blocks.
#include <assert.h>
#include <math.h>

#include "kernels/cpu/cpu.h"

enum { block_elements = 1 << 16 };

static_assert(block_elements % 8 == 0, "only the last block has elements besides whole lanes");

struct optimizer_job {
    const struct cpu_backend *cpu;
    enum { SQUARE_SUM, ADAMW, EMA } operation;
    const float *in;
    double *sums;           // of each block
    float *average, weight; // of ema
    const struct adamw_range *range;
    struct adamw_factors factors;
};

static bool optimizer_dense_f32(struct tensor t, int64_t elements) {
    return tensor_is(t, ELEMENT_F32, t.rows, t.columns) && tensor_dense(t) && t.rows * t.columns == elements;
}

static void optimizer_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct optimizer_job *job = context;
    const struct simd *simd = &job->cpu->simd;
    const struct adamw_range *r = job->range;
    size_t count = (size_t)(end - first);
    switch (job->operation) {
    case SQUARE_SUM:
        job->sums[first / block_elements] = simd->square_sum(job->in + first, count);
        break;
    case ADAMW:
        simd->adamw(tensor_f32(r->param, 0) + first, tensor_f32(r->grad, 0) + first, tensor_f32(r->exp_avg, 0) + first,
                    tensor_f32(r->exp_avg_sq, 0) + first, count, &job->factors);
        break;
    case EMA:
        simd->ema(job->average + first, job->in + first, count, job->weight);
        break;
    }
}

status cpu_square_sum(struct backend *backend, double *sum, struct tensor in) {
    struct cpu_backend *cpu = cpu_of(backend);
    int64_t count = in.rows * in.columns, blocks = (count + block_elements - 1) / block_elements;
    CHECK(optimizer_dense_f32(in, count));
    struct optimizer_job job = {.cpu = cpu, .operation = SQUARE_SUM, .in = tensor_f32(in, 0)};
    TRY(cpu_scratch(cpu, SCRATCH_SUMS, (size_t)blocks * sizeof(double), &job.sums));
    parallel_for(cpu, count, block_elements, optimizer_task, &job);
    for (int64_t i = 0; i < blocks; i++) *sum += job.sums[i];
    return OK;
}

// The bias correction of the first moment is part of the step size, that of the second is under the root.
status cpu_adamw(struct backend *backend, const struct adamw_range *ranges, size_t count,
                 const struct adamw_options *options) {
    CHECK(options->step >= 1);
    double correction1 = 1 - pow(options->beta1, (double)options->step);
    double correction2 = 1 - pow(options->beta2, (double)options->step);
    struct optimizer_job job = {.cpu = cpu_of(backend),
                                .operation = ADAMW,
                                .factors = {
                                    .grad_scale = (float)options->grad_scale,
                                    .beta1 = (float)options->beta1,
                                    .one_minus_beta1 = (float)(1 - options->beta1),
                                    .beta2 = (float)options->beta2,
                                    .one_minus_beta2 = (float)(1 - options->beta2),
                                    .step_size = (float)(options->lr / correction1),
                                    .root_scale = (float)(1 / sqrt(correction2)),
                                    .eps = (float)options->eps,
                                }};
    for (size_t i = 0; i < count; i++) {
        const struct adamw_range *r = &ranges[i];
        int64_t elements = r->param.rows * r->param.columns;
        CHECK(optimizer_dense_f32(r->param, elements) && optimizer_dense_f32(r->grad, elements));
        CHECK(optimizer_dense_f32(r->exp_avg, elements) && optimizer_dense_f32(r->exp_avg_sq, elements));
        job.range = r;
        job.factors.decay = r->decay ? (float)(1 - options->lr * options->weight_decay) : 1.0f;
        parallel_for(cpu_of(backend), elements, block_elements, optimizer_task, &job);
    }
    return OK;
}

status cpu_ema(struct backend *backend, struct tensor average, struct tensor in, double decay) {
    int64_t count = average.rows * average.columns;
    CHECK(optimizer_dense_f32(average, count) && optimizer_dense_f32(in, count));
    struct optimizer_job job = {.cpu = cpu_of(backend),
                                .operation = EMA,
                                .in = tensor_f32(in, 0),
                                .average = tensor_f32(average, 0),
                                .weight = (float)(1 - decay)};
    parallel_for(cpu_of(backend), count, block_elements, optimizer_task, &job);
    return OK;
}
