// Sums of squares, AdamW, the exponential moving average, pairs and the digest: passes over dense memory, in fixed
// blocks. The arithmetic is that of float32 arrays; numbers of another type go through arrays of a part of a block.
#include <assert.h>
#include <math.h>

#include "kernels/cpu/cpu.h"

enum {
    BLOCK_ELEMENTS = 1 << 16,
    PART_ELEMENTS = 1024, // four such arrays of float32 fit the first-level cache
};

static_assert(BLOCK_ELEMENTS % PART_ELEMENTS == 0 && PART_ELEMENTS % 8 == 0,
              "only the last part has elements besides whole lanes");

// Numbers in memory: float32, bfloat16, or pairs if there are remainders.
struct optimizer_array {
    void *data;
    uint16_t *remainder;
    bool bf16;
};

struct optimizer_job {
    const struct cpu_backend *cpu;
    struct optimizer_array param, grad, exp_avg, exp_avg_sq; // of adamw
    struct adamw_factors factors;
    uint64_t seed, offset;          // of the random bits
    struct optimizer_array average; // of ema and pairs
    struct optimizer_array in;      // of ema, pairs and square_sums
    float weight;                   // of `in` in the average
    const unsigned char *bytes;     // of digest,
    size_t byte_count;              // how many,
    uint64_t first;                 // and the number of the first word
    uint64_t *word_sums;            // of each block
    double *squares;                // of each unit
    int64_t unit;                   // of square_sums
};

static bool optimizer_dense(struct tensor t, int type, int64_t elements) {
    return tensor_is(t, type, t.rows, t.columns) && tensor_dense(t) && t.rows * t.columns == elements;
}

// Whether t and its remainder are F32 and none, or a pair.
static bool optimizer_number(struct tensor t, struct tensor remainder, int64_t elements) {
    if (tensor_none(remainder)) return optimizer_dense(t, ELEMENT_F32, elements);
    return optimizer_dense(t, ELEMENT_BF16, elements) && optimizer_dense(remainder, ELEMENT_U16, elements);
}

static struct optimizer_array optimizer_array_of(struct tensor t, struct tensor remainder) {
    return (struct optimizer_array){.data = tensor_row(t, 0),
                                    .remainder = tensor_none(remainder) ? NULL : tensor_row(remainder, 0),
                                    .bf16 = t.type == ELEMENT_BF16};
}

// Returns the elements from `first` on as float32: the array's own memory, or `part` after conversion.
static float *optimizer_read(const struct simd *simd, const struct optimizer_array *array, int64_t first, size_t count,
                             float *part) {
    if (!array->bf16) return (float *)array->data + first;
    const uint16_t *in = (const uint16_t *)array->data + first;
    if (array->remainder) {
        simd->join_f32(part, in, array->remainder + first, count);
    } else {
        simd->f32_from_bf16(part, in, count);
    }
    return part;
}

// Stores what optimizer_read returned.
static void optimizer_write(const struct simd *simd, const struct optimizer_array *array, int64_t first, size_t count,
                            const float *values) {
    if (!array->bf16) return;
    uint16_t *out = (uint16_t *)array->data + first;
    if (array->remainder) {
        simd->split_f32(out, array->remainder + first, values, count);
    } else {
        simd->bf16_from_f32(out, values, count);
    }
}

static size_t optimizer_part(int64_t at, int64_t end) {
    return (size_t)(end - at < PART_ELEMENTS ? end - at : PART_ELEMENTS);
}

// ---- sums of squares and the digest ----

static void optimizer_square_sums_task(void *context, struct task_range range) {
    const struct optimizer_job *job = context;
    const struct simd *simd = &job->cpu->simd;
    float part[PART_ELEMENTS];
    double sum = 0;
    if (!job->in.bf16)
        sum = simd->square_sum((const float *)job->in.data + range.first, (size_t)(range.end - range.first));
    for (int64_t at = range.first; at < range.end && job->in.bf16; at += PART_ELEMENTS) {
        size_t count = optimizer_part(at, range.end);
        sum += simd->square_sum(optimizer_read(simd, &job->in, at, count, part), count);
    }
    job->squares[range.first / job->unit] = sum;
}

status cpu_square_sums(struct backend *backend, double *sums, const struct square_range *ranges, size_t count) {
    struct cpu_backend *cpu = cpu_of(backend);
    for (size_t i = 0; i < count; i++) {
        const struct tensor in = ranges[i].in;
        const int64_t elements = in.rows * in.columns, unit = ranges[i].unit;
        CHECK(optimizer_dense(in, -1, elements) && unit > 0 && unit % 64 == 0);
        struct optimizer_job job = {
            .cpu = cpu, .in = optimizer_array_of(in, (struct tensor){0}), .squares = sums, .unit = unit};
        parallel_for(cpu, elements, unit, optimizer_square_sums_task, &job);
        sums += (elements + unit - 1) / unit;
    }
    return OK;
}

// Of words of eight bytes.
static void optimizer_digest_task(void *context, struct task_range range) {
    const struct optimizer_job *job = context;
    size_t begin = (size_t)range.first * 8, bytes = (size_t)(range.end - range.first) * 8;
    if (begin + bytes > job->byte_count) bytes = job->byte_count - begin;
    job->word_sums[range.first / BLOCK_ELEMENTS] =
        job->cpu->simd.digest(job->bytes + begin, bytes, job->first + (uint64_t)range.first);
}

status cpu_digest(struct backend *backend, struct tensor in, uint64_t first, uint64_t *sum) {
    struct cpu_backend *cpu = cpu_of(backend);
    CHECK(tensor_fits(in) && tensor_dense(in));
    size_t bytes = (size_t)(in.rows * in.columns) * element_size(in.type);
    int64_t words = (int64_t)((bytes + 7) / 8), blocks = (words + BLOCK_ELEMENTS - 1) / BLOCK_ELEMENTS;
    struct optimizer_job job = {.cpu = cpu, .bytes = tensor_row(in, 0), .byte_count = bytes, .first = first};
    TRY(cpu_scratch(cpu, SCRATCH_SUMS, (size_t)blocks * sizeof *job.word_sums, &job.word_sums));
    parallel_for(cpu, words, BLOCK_ELEMENTS, optimizer_digest_task, &job);
    for (int64_t i = 0; i < blocks; i++) *sum += job.word_sums[i];
    return OK;
}

// ---- AdamW ----

static void optimizer_adamw_task(void *context, struct task_range range) {
    const struct optimizer_job *job = context;
    const struct simd *simd = &job->cpu->simd;
    float parts[4][PART_ELEMENTS];
    for (int64_t at = range.first; at < range.end; at += PART_ELEMENTS) {
        size_t count = optimizer_part(at, range.end);
        float *param = optimizer_read(simd, &job->param, at, count, parts[0]);
        float *grad = optimizer_read(simd, &job->grad, at, count, parts[1]);
        float *exp_avg = optimizer_read(simd, &job->exp_avg, at, count, parts[2]);
        float *exp_avg_sq = optimizer_read(simd, &job->exp_avg_sq, at, count, parts[3]);
        simd->adamw(param, grad, exp_avg, exp_avg_sq, count, &job->factors);
        optimizer_write(simd, &job->param, at, count, param);
        optimizer_write(simd, &job->exp_avg, at, count, exp_avg);
        if (job->exp_avg_sq.bf16)
            simd->bf16_stochastic((uint16_t *)job->exp_avg_sq.data + at, exp_avg_sq, count, job->seed,
                                  (job->offset + (uint64_t)at) / 4);
    }
}

// The bias correction of the first moment is part of the step size, that of the second is under the root.
status cpu_adamw(struct backend *backend, const struct adamw_range *ranges, size_t count,
                 const struct adamw_options *options) {
    const struct tensor none = {0};
    CHECK(options->step >= 1);
    double correction1 = 1 - pow(options->beta1, (double)options->step);
    double correction2 = 1 - pow(options->beta2, (double)options->step);
    struct optimizer_job job = {.cpu = cpu_of(backend),
                                .seed = ops_mix64(ops_mix64(options->key) ^ (uint64_t)options->step),
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
        CHECK(optimizer_number(r->param, r->remainder, elements) && optimizer_dense(r->grad, -1, elements));
        CHECK(optimizer_dense(r->exp_avg, -1, elements) && optimizer_dense(r->exp_avg_sq, -1, elements));
        CHECK(r->offset >= 0 && r->offset % 4 == 0);
        job.param = optimizer_array_of(r->param, r->remainder);
        job.grad = optimizer_array_of(r->grad, none);
        job.exp_avg = optimizer_array_of(r->exp_avg, none);
        job.exp_avg_sq = optimizer_array_of(r->exp_avg_sq, none);
        job.offset = (uint64_t)r->offset;
        job.factors.decay = r->decay ? (float)(1 - options->lr * options->weight_decay) : 1.0f;
        parallel_for(cpu_of(backend), elements, BLOCK_ELEMENTS, optimizer_adamw_task, &job);
    }
    return OK;
}

// ---- the moving average, and pairs ----

static void optimizer_ema_task(void *context, struct task_range range) {
    const struct optimizer_job *job = context;
    const struct simd *simd = &job->cpu->simd;
    float parts[2][PART_ELEMENTS];
    for (int64_t at = range.first; at < range.end; at += PART_ELEMENTS) {
        size_t count = optimizer_part(at, range.end);
        float *average = optimizer_read(simd, &job->average, at, count, parts[0]);
        simd->ema(average, optimizer_read(simd, &job->in, at, count, parts[1]), count, job->weight);
        optimizer_write(simd, &job->average, at, count, average);
    }
}

status cpu_ema(struct backend *backend, struct tensor average, struct tensor average_remainder, struct tensor in,
               struct tensor in_remainder, double decay) {
    int64_t count = average.rows * average.columns;
    CHECK(optimizer_number(average, average_remainder, count) && optimizer_number(in, in_remainder, count));
    struct optimizer_job job = {.cpu = cpu_of(backend),
                                .in = optimizer_array_of(in, in_remainder),
                                .average = optimizer_array_of(average, average_remainder),
                                .weight = (float)(1 - decay)};
    parallel_for(cpu_of(backend), count, BLOCK_ELEMENTS, optimizer_ema_task, &job);
    return OK;
}

// Splits `in` into the pairs `average`, or joins the pairs `in` into `average`.
static void optimizer_pairs_task(void *context, struct task_range range) {
    const struct optimizer_job *job = context;
    size_t count = (size_t)(range.end - range.first);
    if (job->average.bf16)
        optimizer_write(&job->cpu->simd, &job->average, range.first, count, (const float *)job->in.data + range.first);
    else
        optimizer_read(&job->cpu->simd, &job->in, range.first, count, (float *)job->average.data + range.first);
}

static status optimizer_pairs(struct cpu_backend *cpu, struct tensor high, struct tensor remainder,
                              struct tensor values, bool join) {
    int64_t count = values.rows * values.columns;
    CHECK(optimizer_dense(high, ELEMENT_BF16, count) && optimizer_dense(remainder, ELEMENT_U16, count));
    CHECK(optimizer_dense(values, ELEMENT_F32, count));
    struct optimizer_array pairs = optimizer_array_of(high, remainder);
    struct optimizer_array plain = optimizer_array_of(values, (struct tensor){0});
    struct optimizer_job job = {.cpu = cpu, .in = join ? pairs : plain, .average = join ? plain : pairs};
    parallel_for(cpu, count, BLOCK_ELEMENTS, optimizer_pairs_task, &job);
    return OK;
}

status cpu_split_f32(struct backend *backend, struct tensor out, struct tensor remainder, struct tensor in) {
    return optimizer_pairs(cpu_of(backend), out, remainder, in, false);
}

status cpu_join_f32(struct backend *backend, struct tensor out, struct tensor in, struct tensor remainder) {
    return optimizer_pairs(cpu_of(backend), in, remainder, out, true);
}
