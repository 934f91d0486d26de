// Sampling and decode batches.
#include "tests/ops/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/rng.h"
#include "tests/ops/state.h"

// ---- sampling ----

uint64_t sampling_key(double low, double high) {
    uint64_t key = 0;
    for (; !(rng_uniform(key, 0, 0) >= low && rng_uniform(key, 0, 0) < high);) key++;
    return key;
}

void sampling_step(struct harness *h, struct tensor in, struct weight *head, const struct decode_row *rows,
                   int32_t *tokens, float *logprobs) {
    struct decode_batch *batch = NULL;
    harness_must(h->ops->decode_batch_new(h->backend, &batch, (int)in.rows, (struct heads){2, 1, 4}, NULL, 0));
    for (int i = 0; i < in.rows; i++) harness_ok(h, h->ops->decode_batch_set(h->backend, batch, i, &rows[i]));
    harness_hold(h, batch->rows == in.rows, "%d rows are at work, not %lld", batch->rows, (long long)in.rows);
    harness_ok(h, h->ops->sample(h->backend, batch, in, head));
    harness_ok(h, h->ops->decode_batch_read(h->backend, batch, 0, tokens, logprobs));
    h->ops->decode_batch_free(h->backend, &batch);
    harness_hold(h, !batch, "a batch that was freed is not NULL");
}

// A head of one column: applied to 1, it gives exactly these logits.
static struct weight *sampling_head(struct harness *h, const float *logits, int64_t count) {
    struct tensor plain = harness_dense(h, ELEMENT_F32, count, 1, FILL_ZERO, 0);
    struct weight *head = NULL;
    harness_set(h, plain, logits);
    harness_ok(h, h->ops->weight_new(h->backend, &head, plain, true));
    return head;
}

// F32 [rows,1] of ones.
static struct tensor sampling_ones(struct harness *h, int64_t rows) {
    struct tensor ones = harness_dense(h, ELEMENT_F32, rows, 1, FILL_ZERO, 0);
    float *values = harness_memory(h, (size_t)rows * sizeof *values);
    for (int64_t i = 0; i < rows; i++) values[i] = 1;
    harness_set(h, ones, values);
    return ones;
}

void sampling_draw(struct harness *h, const float *logits, int64_t count, struct sampling settings,
                   const uint64_t *keys, int64_t rows, int32_t *tokens, float *logprobs) {
    struct weight *head = sampling_head(h, logits, count);
    struct decode_row *row = harness_memory(h, (size_t)rows * sizeof *row);
    for (int64_t i = 0; i < rows; i++) row[i] = (struct decode_row){.max_len = 1, .sampling = settings, .key = keys[i]};
    sampling_step(h, sampling_ones(h, rows), head, row, tokens, logprobs);
    h->ops->weight_free(h->backend, &head);
}

static int sampling_by_rank(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

int64_t sampling_order(struct ranked *order, int64_t count, struct sampling settings) {
    double total = 0, sum = 0;
    qsort(order, (size_t)count, sizeof *order, sampling_by_rank);
    for (int64_t i = 0; i < count; i++)
        order[i].weight = exp((order[i].logit - order[0].logit) / (double)settings.temperature);
    int64_t kept = settings.top_k > 0 && settings.top_k < count ? settings.top_k : count;
    for (int64_t i = 0; i < kept; i++) total += order[i].weight;
    for (int64_t i = 0; i < kept && settings.top_p < 1; i++) {
        sum += order[i].weight;
        if (sum >= (double)settings.top_p * total) return i + 1;
    }
    return kept;
}

// ---- logits ----
//
// Sampling of rows of logits with the lengths of real vocabularies, against a reference that sorts the tokens and
// computes in double.

static int logits_by_token(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    return x->token < y->token ? -1 : 1;
}

// Whether `token` is where `uniform` falls among the first `kept` tokens, a tolerance on either side granted.
static bool logits_is_at(struct harness *h, const struct ranked *ranks, int64_t kept, double uniform, int32_t token) {
    const double tolerance = 2e-6;
    struct ranked *order = harness_memory(h, (size_t)kept * sizeof *order);
    double total = 0, below = 0;
    memcpy(order, ranks, (size_t)kept * sizeof *order);
    qsort(order, (size_t)kept, sizeof *order, logits_by_token);
    for (int64_t i = 0; i < kept; i++) total += order[i].weight;
    for (int64_t i = 0; i < kept; i++) {
        const double above = below + order[i].weight;
        if (order[i].token == token)
            return uniform >= below / total - tolerance && uniform <= above / total + tolerance;
        below = above;
    }
    return false;
}

// Whether `token` is where `uniform` falls among the kept tokens. Of 30,000 tokens whose sum comes to top_p within
// rounding, one more or one less may be kept, and all places move.
static bool logits_is_sampled(struct harness *h, const float *logits, int64_t count, struct sampling settings,
                              double uniform, int32_t token) {
    const double tolerance = 1e-6;
    struct ranked *order = harness_memory(h, (size_t)count * sizeof *order);
    double total = 0, sum = 0;
    for (int64_t i = 0; i < count; i++) order[i] = (struct ranked){.logit = logits[i], .token = (int32_t)i};
    const int64_t kept = sampling_order(order, count, settings);
    const int64_t most = settings.top_k > 0 && settings.top_k < count ? settings.top_k : count;
    if (logits_is_at(h, order, kept, uniform, token)) return true;
    for (int64_t i = 0; i < most; i++) total += order[i].weight;
    for (int64_t i = 0; i < kept; i++) sum += order[i].weight;
    const double over = sum / total - (double)settings.top_p, last = order[kept - 1].weight / total;
    return (kept < most && over <= tolerance && logits_is_at(h, order, kept + 1, uniform, token)) ||
           (kept > 1 && over >= last - tolerance && logits_is_at(h, order, kept - 1, uniform, token));
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
    sampling_draw(h, logits, count, settings, &key, 1, &token, &logprob);
    harness_set(h, tokens, &token);
    harness_set(h, logprobs, &logprob);
    harness_same(h, "token", tokens);
    double want = 0;
    for (int64_t i = 0; i < count; i++) want += exp((double)logits[i] - (double)logits[token]);
    want = -log(want);
    const double lse = (double)logits[token] - want; // float32, too, and rounded
    harness_near(h, "logprob", logprobs, &want, 2e-6 + 0x1p-23 * fabs(lse), 2e-6);
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
    sampling_draw(h, logits, count, (struct sampling){0, 0.5f, 3}, &(uint64_t){0}, 1, &token, &logprob);
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
    for (int64_t i = 0; i < count; i++) order[i] = (struct ranked){.logit = logits[i], .token = (int32_t)i};
    int64_t kept = sampling_order(order, count, settings);
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
        rows = drawn - first < MAX_DECODE_ROWS ? drawn - first : MAX_DECODE_ROWS;
        sampling_draw(h, logits, count, settings, keys + first, rows, tokens + first, logprobs + first);
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
        sampling_draw(h, logits, count, settings, (uint64_t[]){sampling_key(0.49, 0.51)}, 1, &token, &logprob);
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

static void logits_time(struct harness *h) {
    enum { count = 151936 };
    harness_case(h, "timing");
    float *logits = harness_memory(h, count * sizeof *logits);
    for (int64_t i = 0; i < count; i++) logits[i] = (float)(2 * harness_normal(h) + (i < 40 ? 12 : 0));
    const struct tensor in = sampling_ones(h, 1);
    struct weight *head = sampling_head(h, logits, count);
    struct decode_batch *batch = NULL;
    harness_ok(h, h->ops->decode_batch_new(h->backend, &batch, 1, (struct heads){2, 1, 4}, NULL, 0));
    const struct sampling variants[] = {{0, 1, 0}, {1, 1, 0}, {1, 0.95f, 0}, {1, 0.95f, 50}};
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        const struct decode_row row = {.max_len = INT32_MAX, .sampling = variants[i]};
        harness_ok(h, h->ops->decode_batch_set(h->backend, batch, 0, &row));
        HARNESS_TIME(h, 0, 4.0 * count, h->ops->sample(h->backend, batch, in, head),
                     "sample of 151936, temperature %g, top-p %g, top-k %d", (double)variants[i].temperature,
                     (double)variants[i].top_p, variants[i].top_k);
    }
    h->ops->decode_batch_free(h->backend, &batch);
    h->ops->weight_free(h->backend, &head);
}

const struct suite suite_logits = {"logits", logits_check, logits_time};

// ---- decode_batch ----
//
// Decode batches over many steps, in which completions join, end and leave, against the same rules on the host. Each
// row draws what it draws alone in a batch of its own.

enum { max_slots = 9, channels = 5, vocabulary = 12, steps = 30 };

static const int32_t eos_ids[] = {3, 7};
static const struct heads batch_heads = {2, 1, 4};

// What the test knows of a batch.
struct batch_case {
    struct decode_batch *batch;
    struct weight *head;
    int capacity;
    bool at_work[max_slots];
    struct decode_row rows[max_slots];
    int32_t tokens[2][max_slots]; // of the last two steps
    float logprobs[2][max_slots];
};

static struct decode_row batch_random_row(struct harness *h) {
    int32_t len = (int32_t)harness_range(h, 0, 6);
    return (struct decode_row){.token = (int32_t)harness_range(h, 0, vocabulary - 1),
                               .position = (int32_t)harness_range(h, 0, 1000),
                               .prefix_len = (int32_t)harness_range(h, 0, 40),
                               .kv_begin = (int32_t)harness_range(h, 0, 100),
                               .len = len,
                               .max_len = len + (int32_t)harness_range(h, 1, 9),
                               .sampling = {(float)harness_range(h, 0, 1), 0.9f, 0},
                               .key = (uint64_t)(harness_unit(h) * 0x1p53),
                               .completion = (uint64_t)harness_range(h, 0, 3)};
}

// Sets some idle slots, and makes one of those at work idle.
static void batch_change_slots(struct harness *h, struct batch_case *it) {
    for (int slot = 0; slot < it->capacity; slot++) {
        double change = harness_unit(h);
        if (it->at_work[slot] ? change > 0.05 : change > 0.3) continue;
        it->at_work[slot] = !it->at_work[slot];
        if (it->at_work[slot]) it->rows[slot] = batch_random_row(h);
        const struct decode_row *row = it->at_work[slot] ? &it->rows[slot] : NULL;
        harness_ok(h, h->ops->decode_batch_set(h->backend, it->batch, slot, row));
    }
}

// The row of a slot. On the CPU only the slots at work have rows, on other devices all slots have.
static int batch_row(const struct harness *h, const struct batch_case *it, int slot) {
    int row = 0;
    for (int i = 0; i < slot; i++) row += !h->cpu || it->at_work[i];
    return row;
}

static void batch_expect_inputs(struct harness *h, const struct batch_case *it) {
    const struct decode_batch *batch = it->batch;
    int rows = batch_row(h, it, it->capacity);
    harness_hold(h,
                 batch->rows == rows && batch->tokens.rows == rows && batch->position_ids.rows == rows &&
                     batch->cache_slots.rows == rows,
                 "%d rows, not %d", batch->rows, rows);
    if (rows == 0 || batch->rows != rows) return;
    int32_t *tokens = harness_numbers(h, batch->tokens), *position_ids = harness_numbers(h, batch->position_ids),
            *cache_slots = harness_numbers(h, batch->cache_slots);
    for (int slot = 0; slot < it->capacity; slot++) {
        const struct decode_row *row = &it->rows[slot];
        int at = batch_row(h, it, slot);
        if (!it->at_work[slot]) {
            harness_hold(h, h->cpu || cache_slots[at] == -1, "slot %d is idle and writes cache row %d", slot,
                         h->cpu ? 0 : cache_slots[at]);
            continue;
        }
        const int32_t *position = position_ids + 3 * at;
        harness_hold(h, row->len == 0 || (tokens[at] == row->token && cache_slots[at] == row->kv_begin + row->len - 1),
                     "slot %d: token %d in cache row %d", slot, tokens[at], cache_slots[at]);
        harness_hold(h, position[0] == row->position && position[1] == row->position && position[2] == row->position,
                     "slot %d: position %d, not %d", slot, position[0], row->position);
    }
}

// What the rows draw, each alone in a batch; then the rows move on.
static void batch_expected_step(struct harness *h, struct batch_case *it, struct tensor in, int step) {
    int32_t *tokens = it->tokens[step % 2];
    float *logprobs = it->logprobs[step % 2];
    struct batch_case before = *it; // the rows of this step
    for (int slot = 0; slot < it->capacity; slot++) {
        struct decode_row *row = &it->rows[slot];
        tokens[slot] = -1;
        logprobs[slot] = 0;
        if (!it->at_work[slot]) continue;
        sampling_step(h, tensor_rows(in, batch_row(h, &before, slot), 1), it->head, row, &tokens[slot],
                      &logprobs[slot]);
        row->token = tokens[slot];
        row->position++;
        row->len++;
        it->at_work[slot] = row->len < row->max_len && row->token != eos_ids[0] && row->token != eos_ids[1];
    }
}

static void batch_expect_draws(struct harness *h, const struct batch_case *it, int step) {
    int32_t tokens[max_slots];
    float logprobs[max_slots];
    harness_ok(h, h->ops->decode_batch_read(h->backend, it->batch, step, tokens, logprobs));
    for (int slot = 0; slot < it->capacity; slot++)
        harness_hold(h, tokens[slot] == it->tokens[step % 2][slot], "step %d, slot %d: token %d, not %d", step, slot,
                     tokens[slot], it->tokens[step % 2][slot]);
    harness_hold(h, memcmp(logprobs, it->logprobs[step % 2], (size_t)it->capacity * sizeof *logprobs) == 0,
                 "step %d: other log-probabilities than those of the rows alone", step);
}

static void batch_check_steps(struct harness *h) {
    struct batch_case it = {.capacity = (int)harness_range(h, 1, max_slots)};
    harness_case(h, "%d slots", it.capacity);
    struct tensor plain = harness_dense(h, ELEMENT_F32, vocabulary, channels, FILL_NORMAL, 0.7);
    struct tensor in = harness_dense(h, ELEMENT_F32, max_slots + steps, channels, FILL_NORMAL, 1);
    harness_ok(h, h->ops->weight_new(h->backend, &it.head, plain, true));
    harness_ok(h, h->ops->decode_batch_new(h->backend, &it.batch, it.capacity, batch_heads, eos_ids, 2));
    for (int step = 0; step < steps; step++) {
        batch_change_slots(h, &it);
        batch_expect_inputs(h, &it);
        struct tensor rows = tensor_rows(in, step, it.batch->rows);
        harness_ok(h, h->ops->sample(h->backend, it.batch, rows, it.head));
        if (step) batch_expect_draws(h, &it, step - 1);
        batch_expected_step(h, &it, rows, step);
        batch_expect_draws(h, &it, step);
    }
    h->ops->decode_batch_free(h->backend, &it.batch);
    h->ops->weight_free(h->backend, &it.head);
}

// Rotates random rows, which sets the cache rows `slots`.
static void batch_rotate(struct harness *h, struct kv_cache *cache, int64_t rows, const int32_t *slots) {
    int64_t columns = (batch_heads.query + 2 * batch_heads.key) * batch_heads.size, pairs = batch_heads.size / 2;
    struct tensor qkv = harness_dense(h, ELEMENT_F32, rows, columns, FILL_NORMAL, 1);
    struct tensor cache_slots = harness_index(h, rows, 1), position_ids = harness_dense(h, ELEMENT_I32, rows, 3, 0, 0);
    struct rope_table table = {.cos = harness_dense(h, ELEMENT_F32, 1, pairs, FILL_NORMAL, 1),
                               .sin = harness_dense(h, ELEMENT_F32, 1, pairs, FILL_NORMAL, 1)};
    harness_set(h, position_ids, harness_memory(h, (size_t)rows * 3 * sizeof(int32_t)));
    harness_set(h, cache_slots, slots);
    harness_ok(h, h->ops->rope(h->backend, qkv, &table, position_ids, batch_heads, cache, 0, cache_slots));
}

// A batch's plan is that of its rows; what a row without a cache row rotates is not kept.
static void batch_check_attention(struct harness *h) {
    enum { cache_rows = 160 };
    struct attention_span spans[max_slots];
    struct decode_batch *batch = NULL;
    struct attention_plan *plan = NULL;
    struct kv_cache *cache = NULL;
    struct tensor none = {0};
    int32_t slots[cache_rows];
    int count = (int)harness_range(h, 1, max_slots);
    harness_case(h, "attention of %d slots", count);
    for (int i = 0; i < cache_rows; i++) slots[i] = i;
    harness_ok(h, h->ops->kv_cache_new(h->backend, &cache, ELEMENT_F32, 1, cache_rows, batch_heads));
    batch_rotate(h, cache, cache_rows, slots);
    harness_ok(h, h->ops->decode_batch_new(h->backend, &batch, count, batch_heads, NULL, 0));
    for (int slot = 0; slot < count; slot++) {
        struct decode_row row = batch_random_row(h);
        row.len++; // it has an input
        row.max_len++;
        spans[slot] =
            (struct attention_span){slot, 1, row.prefix_begin, row.prefix_len, row.kv_begin, row.len, false, 0};
        harness_ok(h, h->ops->decode_batch_set(h->backend, batch, slot, &row));
    }
    harness_ok(h, h->ops->attention_plan_new(h->backend, &plan, batch_heads, spans, (size_t)count, none));
    struct tensor qkv = harness_dense(h, ELEMENT_F32, count, 16, FILL_NORMAL, 1);
    struct tensor out = harness_dense(h, ELEMENT_F32, count, 8, FILL_ZERO, 0),
                  want = harness_dense(h, ELEMENT_F32, count, 8, FILL_ZERO, 0);
    harness_ok(h, h->ops->attention(h->backend, want, qkv, 0.5f, cache, 0, plan, none));
    slots[0] = slots[1] = slots[2] = -1;
    batch_rotate(h, cache, 3, slots);
    harness_ok(h, h->ops->attention(h->backend, out, qkv, 0.5f, cache, 0, batch->plan, none));
    harness_same(h, "attended", out);
    harness_equal(h, "attended by the batch's plan", out, want);
    h->ops->attention_plan_free(h->backend, &plan);
    h->ops->decode_batch_free(h->backend, &batch);
    h->ops->kv_cache_free(h->backend, &cache);
}

static void batch_check_refusals(struct harness *h) {
    const struct operations *ops = h->ops;
    struct decode_batch *batch = NULL;
    struct weight *head = NULL;
    int32_t tokens[2];
    float logprobs[2];
    harness_case(h, "refusals");
    harness_hold(h, ops->decode_batch_new(h->backend, &batch, 0, batch_heads, NULL, 0) == BUG && !batch, "no slots");
    struct tensor in = harness_dense(h, ELEMENT_F32, 2, channels, FILL_NORMAL, 1),
                  plain = harness_dense(h, ELEMENT_F32, vocabulary, channels, FILL_NORMAL, 1);
    harness_ok(h, ops->weight_new(h->backend, &head, plain, true));
    harness_ok(h, ops->decode_batch_new(h->backend, &batch, 2, batch_heads, NULL, 0));
    struct decode_row row = {.max_len = 9};
    for (int slot = 0; slot < 2; slot++) harness_ok(h, ops->decode_batch_set(h->backend, batch, slot, &row));
    harness_hold(h, ops->decode_batch_set(h->backend, batch, 2, &row) == BUG, "a slot beyond the capacity");
    row.len = 9;
    harness_hold(h, ops->decode_batch_set(h->backend, batch, 0, &row) == BUG, "a completion with all its tokens");
    harness_hold(h, ops->sample(h->backend, batch, tensor_rows(in, 0, 1), head) == BUG, "fewer rows than the batch's");
    harness_hold(h, ops->decode_batch_read(h->backend, batch, 0, tokens, logprobs) == BUG, "a step that is to come");
    for (int step = 0; step < 3; step++) harness_ok(h, ops->sample(h->backend, batch, in, head));
    harness_ok(h, ops->decode_batch_read(h->backend, batch, 1, tokens, logprobs));
    harness_hold(h, ops->decode_batch_read(h->backend, batch, 0, tokens, logprobs) == BUG, "a step too long ago");
    ops->decode_batch_free(h->backend, &batch);
    ops->decode_batch_free(h->backend, &batch); // NULL
    ops->weight_free(h->backend, &head);
}

static void batch_check(struct harness *h) {
    for (int i = 0; i < harness_repeats(h, 10); i++) {
        batch_check_steps(h);
        batch_check_attention(h);
    }
    batch_check_refusals(h);
}

const struct suite suite_decode_batch = {"decode_batch", batch_check, NULL};
