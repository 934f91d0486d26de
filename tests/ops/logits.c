// Sampling of rows of logits with the lengths of real vocabularies, against a reference that sorts the tokens and
// computes in double. A head of one column, applied to 1, gives exactly the logits that a test wants.
#include "tests/ops/harness.h"

#include <math.h>
#include <stdlib.h>

#include "shared/base/rng.h"
#include "tests/ops/ranked.h"
#include "tests/ops/sampling.h"

static struct weight *logits_head(struct harness *h, const float *logits, int64_t count) {
    struct tensor plain = harness_dense(h, ELEMENT_F32, count, 1, FILL_ZERO, 0);
    struct weight *head = NULL;
    harness_set(h, plain, logits);
    harness_ok(h, h->ops->weight_new(h->backend, &head, plain, true));
    return head;
}

// F32 [rows,1] of ones.
static struct tensor logits_ones(struct harness *h, int64_t rows) {
    struct tensor ones = harness_dense(h, ELEMENT_F32, rows, 1, FILL_ZERO, 0);
    float *values = harness_memory(h, (size_t)rows * sizeof *values);
    for (int64_t i = 0; i < rows; i++) values[i] = 1;
    harness_set(h, ones, values);
    return ones;
}

// Samples `rows` tokens from the same logits, with the random numbers of keys[0..rows).
static void logits_sample(struct harness *h, const float *logits, int64_t count, struct sampling settings,
                          const uint64_t *keys, int64_t rows, int32_t *tokens, float *logprobs) {
    struct weight *head = logits_head(h, logits, count);
    struct decode_row *row = harness_memory(h, (size_t)rows * sizeof *row);
    for (int64_t i = 0; i < rows; i++) row[i] = (struct decode_row){.max_len = 1, .sampling = settings, .key = keys[i]};
    sampling_step(h, logits_ones(h, rows), head, row, tokens, logprobs);
    h->ops->weight_free(h->backend, &head);
}

static int logits_by_token(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    return x->token < y->token ? -1 : 1;
}

// Sorts the tokens by rank. Returns how many of them top-k and top-p keep.
static int64_t logits_reference_order(struct ranked *order, const float *logits, int64_t count,
                                      struct sampling settings) {
    double max = -INFINITY, total = 0, sum = 0;
    for (int64_t i = 0; i < count; i++) max = fmax(max, logits[i]);
    for (int64_t i = 0; i < count; i++)
        order[i] = (struct ranked){logits[i], exp((logits[i] - max) / (double)settings.temperature), (int32_t)i};
    qsort(order, (size_t)count, sizeof *order, by_rank);
    int64_t kept = settings.top_k > 0 && settings.top_k < count ? settings.top_k : count;
    for (int64_t i = 0; i < kept; i++) total += order[i].weight;
    for (int64_t i = 0; i < kept && settings.top_p < 1; i++) {
        sum += order[i].weight;
        if (sum >= (double)settings.top_p * total) return i + 1;
    }
    return kept;
}

// Whether `token` is where `uniform` falls among the kept tokens in order, a tolerance on either side granted.
static bool logits_is_sampled(struct harness *h, const float *logits, int64_t count, struct sampling settings,
                              double uniform, int32_t token) {
    struct ranked *order = harness_memory(h, (size_t)count * sizeof *order);
    int64_t kept = logits_reference_order(order, logits, count, settings);
    const double tolerance = 2e-6;
    bool boundary = kept < count && order[kept].token == token; // the first token after the cutoff, by rounding
    qsort(order, (size_t)kept, sizeof *order, logits_by_token);
    double total = 0, below = 0;
    for (int64_t i = 0; i < kept; i++) total += order[i].weight;
    for (int64_t i = 0; i < kept; i++) {
        double above = below + order[i].weight;
        if (order[i].token == token)
            return uniform >= below / total - tolerance && uniform <= above / total + tolerance;
        below = above;
    }
    return boundary;
}

static float *logits_random(struct harness *h, int64_t count) {
    float *logits = harness_memory(h, (size_t)count * sizeof *logits);
    double scale = (double[]){0.01, 1, 3, 8}[harness_range(h, 0, 3)];
    bool tied = harness_unit(h) < 0.3, masked = harness_unit(h) < 0.3;
    for (int64_t i = 0; i < count; i++) {
        logits[i] = (float)(scale * harness_normal(h));
        if (tied) logits[i] = floorf(logits[i]);
        if (masked && i % 3 == 1) logits[i] = -INFINITY;
    }
    return logits;
}

static void logits_check_sample(struct harness *h) {
    static const int top_ks[] = {0, 0, 1, 7, 50, 300};
    int64_t count = harness_range(h, 1, harness_unit(h) < 0.5 ? 30000 : 3000);
    struct sampling settings = {harness_unit(h) < 0.5 ? 1 : (float)(0.05 + 1.5 * harness_unit(h)),
                                harness_unit(h) < 0.3 ? 1 : (float)harness_unit(h), top_ks[harness_range(h, 0, 5)]};
    harness_case(h, "sample of %lld, temperature %g, top-p %g, top-k %d", (long long)count,
                 (double)settings.temperature, (double)settings.top_p, settings.top_k);
    float *logits = logits_random(h, count);
    uint64_t key = (uint64_t)(harness_unit(h) * 0x1p53);
    struct tensor tokens = harness_index(h, 1, 1), logprobs = harness_dense(h, ELEMENT_F32, 1, 1, FILL_ZERO, 0);
    int32_t token;
    float logprob;
    logits_sample(h, logits, count, settings, &key, 1, &token, &logprob);
    harness_set(h, tokens, &token);
    harness_set(h, logprobs, &logprob);
    harness_same(h, "token", tokens);
    double want = 0;
    for (int64_t i = 0; i < count; i++) want += exp((double)logits[i] - (double)logits[token]);
    want = -log(want);
    harness_near(h, "logprob", logprobs, &want, 2e-6, 2e-6);
    if (!h->first) return;
    double uniform = rng_uniform(key, 0, 0);
    harness_hold(h, logits_is_sampled(h, logits, count, settings, uniform, token),
                 "token %d is not where uniform %g falls", token, uniform);
}

static void logits_check_greedy(struct harness *h) {
    int64_t count = harness_range(h, 1, 5000);
    harness_case(h, "greedy of %lld", (long long)count);
    float *logits = logits_random(h, count), max = -INFINITY, logprob;
    int32_t token, best = 0;
    for (int64_t i = count - 1; i >= 0; i--) {
        if (logits[i] >= max) best = (int32_t)i;
        if (logits[i] >= max) max = logits[i];
    }
    logits_sample(h, logits, count, (struct sampling){0, 0.5f, 3}, &(uint64_t){0}, 1, &token, &logprob);
    harness_hold(h, token == best, "token %d, not %d", token, best);
}

// At a high temperature the k tokens are equally probable: evenly spaced uniforms sample each of them once, in order.
static void logits_check_top_k(struct harness *h) {
    static const int top_ks[] = {1, 2, 7, 50, 78, 300};
    enum { count = 9000 }; // more than the candidates to which a sampler narrows
    struct sampling settings = {1e7f, 1, top_ks[harness_range(h, 0, 5)]};
    harness_case(h, "each of the top %d", settings.top_k);
    float *logits = logits_random(h, count);
    for (int64_t i = 0; i < count; i++) logits[i] = fmaxf(logits[i], -100);
    struct ranked *order = harness_memory(h, count * sizeof *order);
    int64_t kept = logits_reference_order(order, logits, count, settings);
    qsort(order, (size_t)kept, sizeof *order, logits_by_token);
    uint64_t *keys = harness_memory(h, (size_t)kept * sizeof *keys);
    int32_t *tokens = harness_memory(h, (size_t)kept * sizeof *tokens);
    float *logprobs = harness_memory(h, (size_t)kept * sizeof *logprobs);
    // Emulated, drawing from so many tokens takes long: of many tokens some are left out, but not the last one.
    const int64_t stride = h->emulated ? (kept + 15) / 16 : 1, drawn = (kept + stride - 1) / stride;
    for (int64_t i = 0; i < drawn; i++) {
        const int64_t token = kept - 1 - (drawn - 1 - i) * stride;
        keys[i] = sampling_key(((double)token + 0.3) / (double)kept, ((double)token + 0.7) / (double)kept);
    }
    for (int64_t first = 0, rows; first < drawn; first += rows) {
        rows = drawn - first < DECODE_ROWS_MOST ? drawn - first : DECODE_ROWS_MOST;
        logits_sample(h, logits, count, settings, keys + first, rows, tokens + first, logprobs + first);
    }
    for (int64_t i = 0; i < drawn; i++) {
        const int32_t wanted = order[kept - 1 - (drawn - 1 - i) * stride].token;
        harness_hold(h, tokens[i] == wanted, "sample %lld: token %d, not %d", (long long)i, tokens[i], wanted);
    }
}

// Logits of a broken model, which are not finite, give some token of the vocabulary.
static void logits_check_not_finite(struct harness *h) {
    enum { count = 20000 };
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 9; i++) {
        harness_case(h, "logits that are not finite, %d", i);
        float *logits = logits_random(h, count), logprob;
        for (int64_t t = 0; t < count; t++) {
            if (i < 6 || t % 2) logits[t] = bad[i % 3];
            if (i >= 3 && i < 6 && t == 5) logits[t] = 1;
        }
        int32_t token = -1;
        const struct sampling settings = {1, 0.95f, i % 2 ? 50 : 0};
        logits_sample(h, logits, count, settings, (uint64_t[]){sampling_key(0.49, 0.51)}, 1, &token, &logprob);
        harness_hold(h, token >= 0 && token < count, "token %d", token);
    }
}

static void logits_check(struct harness *h) {
    for (int i = 0; i < harness_repeats(h, 40); i++) {
        logits_check_sample(h);
        logits_check_greedy(h);
    }
    for (int i = 0; i < harness_repeats(h, 12); i++) logits_check_top_k(h);
    logits_check_not_finite(h);
}

// ---- timing ----

struct logits_timing {
    struct harness *h;
    struct decode_batch *batch;
    struct tensor in;
    struct weight *head;
};

static status logits_run_sample(void *context) {
    struct logits_timing *t = context;
    return t->h->ops->sample(t->h->backend, t->batch, t->in, t->head);
}

static void logits_time(struct harness *h) {
    enum { count = 151936 };
    harness_case(h, "timing");
    float *logits = harness_memory(h, count * sizeof *logits);
    for (int64_t i = 0; i < count; i++) logits[i] = (float)(2 * harness_normal(h) + (i < 40 ? 12 : 0));
    struct logits_timing t = {.h = h, .in = logits_ones(h, 1), .head = logits_head(h, logits, count)};
    harness_ok(h, h->ops->decode_batch_new(h->backend, &t.batch, 1, (struct heads){2, 1, 4}, NULL, 0));
    const struct sampling variants[] = {{0, 1, 0}, {1, 1, 0}, {1, 0.95f, 0}, {1, 0.95f, 50}};
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        const struct decode_row row = {.max_len = INT32_MAX, .sampling = variants[i]};
        harness_ok(h, h->ops->decode_batch_set(h->backend, t.batch, 0, &row));
        harness_time(h, 0, 4.0 * count, logits_run_sample, &t, "sample of 151936, temperature %g, top-p %g, top-k %d",
                     (double)variants[i].temperature, (double)variants[i].top_p, variants[i].top_k);
    }
    h->ops->decode_batch_free(h->backend, &t.batch);
    h->ops->weight_free(h->backend, &t.head);
}

const struct suite suite_logits = {"logits", logits_check, logits_time};
