// The sum of squares, AdamW and the exponential moving average: passes over float32 memory, in fixed blocks.
#include <assert.h>
#include <math.h>

#include "kernels/cpu/cpu.h"

enum { block_elements = 1 << 16 };

static_assert(block_elements % 8 == 0, "only the last block has elements besides whole lanes");

static bool optimizer_dense_f32(struct tensor t, int64_t elements) {
    return tensor_is(t, ELEMENT_F32, t.rows, t.columns) && tensor_dense(t) && t.rows * t.columns == elements;
}

// ---- square_sum ----

struct square_sum_job {
    const struct cpu_backend *cpu;
    const float *in;
    double *sums; // of each block
};

static void square_sum_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct square_sum_job *job = context;
    job->sums[first / block_elements] = job->cpu->simd.square_sum(job->in + first, (size_t)(end - first));
}

status cpu_square_sum(struct backend *backend, double *sum, struct tensor in) {
    struct cpu_backend *cpu = cpu_of(backend);
    int64_t count = in.rows * in.columns, blocks = (count + block_elements - 1) / block_elements;
    CHECK(optimizer_dense_f32(in, count));
    struct square_sum_job job = {.cpu = cpu, .in = tensor_f32(in, 0)};
    TRY(cpu_scratch(cpu, SCRATCH_SUMS, (size_t)blocks * sizeof(double), &job.sums));
    parallel_for(cpu, count, block_elements, square_sum_task, &job);
    for (int64_t i = 0; i < blocks; i++) *sum += job.sums[i];
    return OK;
}

// ---- AdamW ----

struct adamw_job {
    const struct cpu_backend *cpu;
    const struct adamw_range *range;
    struct adamw_factors factors;
};

static void adamw_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct adamw_job *job = context;
    const struct adamw_range *r = job->range;
    job->cpu->simd.adamw(tensor_f32(r->param, 0) + first, tensor_f32(r->grad, 0) + first,
                         tensor_f32(r->exp_avg, 0) + first, tensor_f32(r->exp_avg_sq, 0) + first, (size_t)(end - first),
                         &job->factors);
}

// The bias correction of the first moment is part of the step size, that of the second is under the root.
status cpu_adamw(struct backend *backend, const struct adamw_range *ranges, size_t count,
                 const struct adamw_options *options) {
    CHECK(options->step >= 1);
    double correction1 = 1 - pow(options->beta1, (double)options->step);
    double correction2 = 1 - pow(options->beta2, (double)options->step);
    struct adamw_factors factors = {
        .grad_scale = (float)options->grad_scale,
        .beta1 = (float)options->beta1,
        .one_minus_beta1 = (float)(1 - options->beta1),
        .beta2 = (float)options->beta2,
        .one_minus_beta2 = (float)(1 - options->beta2),
        .step_size = (float)(options->lr / correction1),
        .root_scale = (float)(1 / sqrt(correction2)),
        .eps = (float)options->eps,
    };
    for (size_t i = 0; i < count; i++) {
        const struct adamw_range *r = &ranges[i];
        int64_t elements = r->param.rows * r->param.columns;
        CHECK(optimizer_dense_f32(r->param, elements) && optimizer_dense_f32(r->grad, elements));
        CHECK(optimizer_dense_f32(r->exp_avg, elements) && optimizer_dense_f32(r->exp_avg_sq, elements));
        factors.decay = r->decay ? (float)(1 - options->lr * options->weight_decay) : 1.0f;
        struct adamw_job job = {cpu_of(backend), r, factors};
        parallel_for(cpu_of(backend), elements, block_elements, adamw_task, &job);
    }
    return OK;
}

// ---- ema ----

struct ema_job {
    const struct cpu_backend *cpu;
    float *average;
    const float *in;
    float weight;
};

static void ema_task(void *context, int64_t first, int64_t end, int thread) {
    (void)thread;
    const struct ema_job *job = context;
    job->cpu->simd.ema(job->average + first, job->in + first, (size_t)(end - first), job->weight);
}

status cpu_ema(struct backend *backend, struct tensor average, struct tensor in, double decay) {
    int64_t count = average.rows * average.columns;
    CHECK(optimizer_dense_f32(average, count) && optimizer_dense_f32(in, count));
    struct ema_job job = {cpu_of(backend), tensor_f32(average, 0), tensor_f32(in, 0), (float)(1 - decay)};
    parallel_for(cpu_of(backend), count, block_elements, ema_task, &job);
    return OK;
}
