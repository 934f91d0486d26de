// rope, kv_cache_write, attention and the gradients: prompts with branches, windows and decoding, and texts whose rows
// see a window of their neighbours. The results are compared with a reference in double precision, which is also the
// plain formula of both operations. A sequence that is decoded token by token, with other cache rows, must give the
// same bits as the packed sequence.
//
// Every cache is filled with NaN before a case, so that a read of a row that a span does not see shows in the results.
#include "tests/ops/harness.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { max_tokens = 1700, max_spans = 8 };

struct attention_layout {
    int64_t tokens, rows; // rows of the cache
    size_t count;
    struct attention_span spans[max_spans];
    int32_t slots[max_tokens];
};

struct attention_setup {
    struct heads heads;
    float scale;
    enum element type;
    int64_t columns; // (H + 2K) D
    struct rope_table table;
    struct tensor plain, qkv, position_ids, slots, out, lse; // plain: before rotation
    struct kv_cache *cache;
    struct attention_plan *plan;
};

// ---- layouts ----

static struct heads attention_random_heads(struct harness *h, int64_t tokens) {
    if (tokens > 500) return (struct heads){2, 1, 6};
    static const int sizes[] = {2, 12, 16, 24, 40, 64, 80, 128};
    int key = (int)harness_range(h, 1, 3), group = (int)harness_range(h, 1, 8);
    return (struct heads){key * group, key, sizes[harness_range(h, 0, 7)]};
}

// A prompt and branches after it; the cache rows of each begin anywhere.
static struct attention_layout attention_branches(struct harness *h, int64_t prompt, int branches,
                                                  const int64_t *lengths) {
    struct attention_layout l = {.count = 1};
    int64_t row = harness_range(h, 0, 20);
    l.spans[0] = (struct attention_span){.q_len = prompt, .kv_begin = row, .visible = 1, .causal = true};
    for (; l.tokens < prompt; l.tokens++) l.slots[l.tokens] = (int32_t)row++;
    for (int b = 0; b < branches; b++) {
        row += harness_range(h, 0, 18);
        l.spans[l.count++] = (struct attention_span){.q_begin = l.tokens,
                                                     .q_len = lengths[b],
                                                     .prefix_begin = l.spans[0].kv_begin,
                                                     .prefix_len = prompt,
                                                     .kv_begin = row,
                                                     .visible = 1,
                                                     .causal = true};
        for (int64_t i = 0; i < lengths[b]; i++) l.slots[l.tokens++] = (int32_t)row++;
    }
    l.rows = row + harness_range(h, 0, 20);
    return l;
}

static struct attention_layout attention_windows(struct harness *h) {
    struct attention_layout l = {.rows = harness_range(h, 0, 20)};
    int count = (int)harness_range(h, 1, 5);
    for (int w = 0; w < count; w++) {
        int64_t size = harness_range(h, 1, 30);
        l.spans[l.count++] =
            (struct attention_span){.q_begin = l.tokens, .q_len = size, .kv_begin = l.rows, .visible = size};
        for (int64_t i = 0; i < size; i++) l.slots[l.tokens++] = (int32_t)l.rows++;
    }
    return l;
}

// Texts whose rows see `window` neighbours on each side; the cache rows of each begin anywhere.
static struct attention_layout attention_texts(struct harness *h, int64_t window, int count, const int64_t *lengths) {
    struct attention_layout l = {0};
    for (int text = 0; text < count; text++) {
        l.rows += harness_range(h, 0, 20);
        l.spans[l.count++] = (struct attention_span){.q_begin = l.tokens,
                                                     .q_len = lengths[text],
                                                     .kv_begin = l.rows,
                                                     .visible = lengths[text],
                                                     .window = window};
        for (int64_t i = 0; i < lengths[text]; i++) l.slots[l.tokens++] = (int32_t)l.rows++;
    }
    return l;
}

static struct attention_layout attention_random_texts(struct harness *h) {
    int64_t lengths[5], window = harness_unit(h) < 0.3 ? harness_range(h, 1, 2) : harness_range(h, 1, 60);
    int count = (int)harness_range(h, 1, 5);
    for (int text = 0; text < count; text++) lengths[text] = harness_range(h, 1, 50);
    struct attention_layout l = attention_texts(h, window, count, lengths);
    if (harness_unit(h) < 0.3) l.spans[harness_range(h, 0, count - 1)].window = 0;
    return l;
}

// Rows that attend to later rows alone, which have the first ones as their prefix: only a prefix names the first cache
// rows.
static struct attention_layout attention_crossed(struct harness *h) {
    int64_t begin = harness_range(h, 16, 60), first = harness_range(h, 17, 40), second = harness_range(h, 1, 20);
    struct attention_layout l = {.tokens = first + second, .rows = begin + first + second, .count = 2};
    l.spans[0] = (struct attention_span){.q_len = first, .kv_begin = begin + first, .visible = second};
    l.spans[1] = (struct attention_span){.q_begin = first,
                                         .q_len = second,
                                         .prefix_begin = begin,
                                         .prefix_len = first,
                                         .kv_begin = begin + first,
                                         .visible = 1,
                                         .causal = true};
    for (int64_t t = 0; t < l.tokens; t++) l.slots[t] = (int32_t)(begin + t);
    return l;
}

static struct attention_layout attention_random_layout(struct harness *h) {
    double kind = harness_unit(h);
    if (kind < 0.3) return kind < 0.15 ? attention_windows(h) : attention_random_texts(h);
    int64_t lengths[5];
    int branches = (int)harness_range(h, 0, 5);
    for (int b = 0; b < branches; b++) lengths[b] = harness_range(h, 1, 14);
    return attention_branches(h, harness_range(h, 1, 70), branches, lengths);
}

// ---- set-up ----

// I32 [tokens,3] below `positions`; for half of the tokens all three are equal, as for text.
static struct tensor attention_positions(struct harness *h, int64_t tokens, int64_t positions) {
    struct tensor position_ids = tensor_reshape(harness_index(h, 3 * tokens, positions), tokens, 3);
    int32_t *numbers = harness_numbers(h, position_ids);
    for (int64_t t = 0; t < tokens; t++) {
        if (harness_unit(h) < 0.5) numbers[3 * t + 1] = numbers[3 * t + 2] = numbers[3 * t];
    }
    harness_set(h, position_ids, numbers);
    return position_ids;
}

static struct kv_cache *attention_nan_cache(struct harness *h, const struct attention_setup *s, int64_t rows) {
    struct kv_cache *cache;
    harness_ok(h, h->ops->kv_cache_new(h->backend, &cache, s->type, 2, rows, s->heads));
    struct tensor qkv = harness_dense(h, s->type, rows, s->columns, FILL_ZERO, 0);
    struct tensor angles = harness_dense(h, ELEMENT_F32, 1, s->heads.size / 2, FILL_ZERO, 0);
    struct tensor slots = harness_index(h, rows, rows), position_ids = attention_positions(h, rows, 1);
    float *values = harness_values(h, qkv);
    int32_t *numbers = harness_numbers(h, slots);
    for (int64_t i = 0; i < rows * s->columns; i++) values[i] = NAN;
    for (int64_t i = 0; i < rows; i++) numbers[i] = (int32_t)i;
    harness_set(h, qkv, values);
    harness_set(h, slots, numbers);
    struct rope_table table = {angles, angles, {0}};
    harness_ok(h, h->ops->rope(h->backend, qkv, &table, position_ids, s->heads, cache, 1, slots));
    return cache;
}

// Angles of `positions` positions, and sections of random sizes. The rotations are true ones: with other factors,
// repeated calls of rope would shrink qkv to denormals.
static struct rope_table attention_table(struct harness *h, int64_t positions, int pairs) {
    struct rope_table table = {.cos = harness_tensor(h, ELEMENT_F32, positions, pairs, FILL_ZERO, 0),
                               .sin = harness_tensor(h, ELEMENT_F32, positions, pairs, FILL_ZERO, 0)};
    const int unit = pairs % 8 == 0 && harness_unit(h) < 0.5 ? 8 : 1; // eight pairs at a time may be rotated
    table.sections[0] = unit * (int)harness_range(h, 0, pairs / unit);
    table.sections[1] = unit * (int)harness_range(h, 0, (pairs - table.sections[0]) / unit);
    table.sections[2] = pairs - table.sections[0] - table.sections[1];
    float *cosines = harness_values(h, table.cos), *sines = harness_values(h, table.sin);
    for (int64_t i = 0; i < positions * pairs; i++) {
        double angle = 10 * harness_normal(h);
        cosines[i] = (float)__builtin_cos(angle);
        sines[i] = (float)__builtin_sin(angle);
    }
    harness_set(h, table.cos, cosines);
    harness_set(h, table.sin, sines);
    return table;
}

// Makes the plan of spans that no longer exist afterwards.
static struct attention_plan *attention_plan_of(struct harness *h, struct heads heads,
                                                const struct attention_span *spans, size_t count, struct tensor slots) {
    struct attention_plan *plan;
    struct attention_span *copy = harness_memory(h, count * sizeof *copy);
    memcpy(copy, spans, count * sizeof *copy);
    harness_ok(h, h->ops->attention_plan_new(h->backend, &plan, heads, copy, count, slots));
    memset(copy, 0xff, count * sizeof *copy);
    return plan;
}

static struct attention_setup attention_setup_of(struct harness *h, const char *what, const struct attention_layout *l,
                                                 struct heads heads, enum element type) {
    struct attention_setup s = {.heads = heads, .type = type};
    s.scale = 1 / sqrtf((float)s.heads.size);
    s.columns = (s.heads.query + 2 * s.heads.key) * s.heads.size;
    harness_case(h, "%s: %lld tokens in %zu spans, %lld rows, H=%d K=%d D=%d, type %d", what, (long long)l->tokens,
                 l->count, (long long)l->rows, s.heads.query, s.heads.key, s.heads.size, s.type);
    s.plain = harness_tensor(h, s.type, l->tokens, s.columns, FILL_NORMAL, harness_unit(h) < 0.3 ? 2 : 1);
    s.qkv = harness_tensor(h, s.type, l->tokens, s.columns, FILL_ZERO, 0);
    int64_t positions = harness_range(h, 1, 2 * l->tokens);
    s.table = attention_table(h, positions, s.heads.size / 2);
    s.position_ids = attention_positions(h, l->tokens, positions);
    s.slots = harness_index(h, l->tokens, 1);
    s.out = harness_tensor(h, s.type, l->tokens, s.heads.query * s.heads.size, FILL_NORMAL, 1);
    s.lse = harness_tensor(h, ELEMENT_F32, l->tokens, s.heads.query, FILL_NORMAL, 1);
    harness_set(h, s.slots, l->slots);
    s.cache = attention_nan_cache(h, &s, l->rows);
    harness_ok(h, h->ops->copy(h->backend, s.qkv, s.plain));
    harness_ok(h, h->ops->rope(h->backend, s.qkv, &s.table, s.position_ids, s.heads, s.cache, 1, s.slots));
    s.plan = attention_plan_of(h, s.heads, l->spans, l->count, s.slots);
    return s;
}

static struct attention_setup attention_setup_new(struct harness *h, const char *what,
                                                  const struct attention_layout *l) {
    struct heads heads = attention_random_heads(h, l->tokens);
    return attention_setup_of(h, what, l, heads, harness_float_type(h));
}

static void attention_setup_release(struct harness *h, struct attention_setup *s) {
    h->ops->attention_plan_free(h->backend, &s->plan);
    h->ops->kv_cache_free(h->backend, &s->cache);
}

// ---- rope ----

static void attention_reference_rope(const struct attention_setup *s, double *rows, const float *cos, const float *sin,
                                     const int32_t *position_ids, int64_t tokens, double sign) {
    int half = s->heads.size / 2;
    const int *sections = s->table.sections;
    for (int64_t t = 0; t < tokens; t++) {
        for (int head = 0; head < s->heads.query + s->heads.key; head++) {
            double *low = rows + t * s->columns + head * s->heads.size, *high = low + half;
            for (int j = 0; j < half; j++) {
                int axis = j < sections[0] ? 0 : j < sections[0] + sections[1] ? 1 : 2;
                int64_t at = (int64_t)position_ids[3 * t + axis] * half + j;
                double a = low[j], b = high[j], c = cos[at], d = sign * sin[at];
                low[j] = a * c - b * d;
                high[j] = b * c + a * d;
            }
        }
    }
}

static void attention_check_rope(struct harness *h) {
    struct attention_layout l = attention_random_layout(h);
    struct attention_setup s = attention_setup_new(h, "rope", &l);
    float *cos = harness_values(h, s.table.cos), *sin = harness_values(h, s.table.sin);
    int32_t *position_ids = harness_numbers(h, s.position_ids);
    double *want = harness_doubles(h, s.plain);
    attention_reference_rope(&s, want, cos, sin, position_ids, l.tokens, 1);
    harness_near(h, "qkv", s.qkv, want, 2e-6, 0);
    want = harness_doubles(h, s.qkv);
    attention_reference_rope(&s, want, cos, sin, position_ids, l.tokens, -1);
    harness_ok(h, h->ops->rope_grad(h->backend, s.qkv, &s.table, s.position_ids, s.heads));
    harness_near(h, "grad_qkv", s.qkv, want, 2e-6, 0);
    attention_setup_release(h, &s);
}

// ---- the reference ----

static bool attention_sees(const struct attention_span *s, int64_t query, int64_t row) {
    int64_t own = s->visible + (s->causal ? query : 0), distance = llabs(row - s->kv_begin - query);
    return (row >= s->prefix_begin && row < s->prefix_begin + s->prefix_len) ||
           (row >= s->kv_begin && row < s->kv_begin + own && (s->window == 0 || distance <= s->window));
}

struct attention_reference {
    const struct attention_setup *setup;
    const struct attention_layout *layout;
    double *qkv, *out, *lse;     // results of attention
    double products;             // the largest sum of the absolute products of a score
    double *grad_out, *grad_qkv; // NULL: no gradient
    const float *stored_out;     // the operation's own `out`, which attention_grad takes
};

static const double *attention_head(const struct attention_reference *r, int64_t token, int head) {
    return r->qkv + token * r->setup->columns + head * r->setup->heads.size;
}

static double attention_dot(const double *a, const double *b, int size) {
    double sum = 0;
    for (int d = 0; d < size; d++) sum += a[d] * b[d];
    return sum;
}

static double attention_absolute_dot(const double *a, const double *b, int size) {
    double sum = 0;
    for (int d = 0; d < size; d++) sum += fabs(a[d] * b[d]);
    return sum;
}

// probs[t] = the softmax of the scores of query `query` of the span over the tokens that it sees, 0 for other tokens.
// Returns the log-sum-exp of the scores.
static double attention_reference_softmax(struct attention_reference *r, const struct attention_span *span,
                                          int64_t query, int head, double *probs) {
    const struct attention_setup *s = r->setup;
    int key = s->heads.query + head / (s->heads.query / s->heads.key), size = s->heads.size;
    const double *own = attention_head(r, span->q_begin + query, head), scale = (double)s->scale;
    double max = -INFINITY, sum = 0;
    for (int64_t t = 0; t < r->layout->tokens; t++) {
        probs[t] = -INFINITY;
        if (!attention_sees(span, query, r->layout->slots[t])) continue;
        probs[t] = scale * attention_dot(own, attention_head(r, t, key), size);
        r->products = fmax(r->products, scale * attention_absolute_dot(own, attention_head(r, t, key), size));
        max = fmax(max, probs[t]);
    }
    for (int64_t t = 0; t < r->layout->tokens; t++) sum += probs[t] = exp(probs[t] - max);
    for (int64_t t = 0; t < r->layout->tokens; t++) probs[t] /= sum;
    return max + log(sum);
}

static void attention_reference_grad(const struct attention_reference *r, int64_t token, int head,
                                     const double *probs) {
    const struct attention_setup *s = r->setup;
    int size = s->heads.size, key = s->heads.query + head / (s->heads.query / s->heads.key);
    int value = key + s->heads.key;
    int64_t out_index = token * s->heads.query * size + head * size;
    const double *grad_out = r->grad_out + out_index;
    double delta = 0;
    for (int d = 0; d < size; d++) delta += grad_out[d] * r->stored_out[out_index + d];
    for (int64_t t = 0; t < r->layout->tokens; t++) {
        if (probs[t] == 0) continue;
        double dscore =
            probs[t] * (attention_dot(grad_out, attention_head(r, t, value), size) - delta) * (double)s->scale;
        for (int d = 0; d < size; d++) {
            r->grad_qkv[token * s->columns + head * size + d] += dscore * attention_head(r, t, key)[d];
            r->grad_qkv[t * s->columns + key * size + d] += dscore * attention_head(r, token, head)[d];
            r->grad_qkv[t * s->columns + value * size + d] += probs[t] * grad_out[d];
        }
    }
}

static void attention_reference_run(struct attention_reference *r) {
    const struct attention_setup *s = r->setup;
    int size = s->heads.size;
    double probs[max_tokens];
    for (const struct attention_span *span = r->layout->spans; span < r->layout->spans + r->layout->count; span++) {
        for (int64_t i = 0; i < span->q_len * s->heads.query; i++) {
            int64_t query = i / s->heads.query, token = span->q_begin + query;
            int head = (int)(i % s->heads.query), value = s->heads.query + s->heads.key;
            value += head / (s->heads.query / s->heads.key);
            r->lse[token * s->heads.query + head] = attention_reference_softmax(r, span, query, head, probs);
            double *out = r->out + token * s->heads.query * size + head * size;
            for (int64_t t = 0; t < r->layout->tokens; t++) {
                for (int d = 0; d < size && probs[t] > 0; d++) out[d] += probs[t] * attention_head(r, t, value)[d];
            }
            if (r->grad_qkv) attention_reference_grad(r, token, head, probs);
        }
    }
}

static struct attention_reference attention_reference_new(struct harness *h, const struct attention_setup *s,
                                                          const struct attention_layout *l) {
    size_t heads = (size_t)(l->tokens * s->heads.query);
    return (struct attention_reference){.setup = s,
                                        .layout = l,
                                        .qkv = harness_doubles(h, s->qkv),
                                        .out = harness_memory(h, heads * (size_t)s->heads.size * sizeof(double)),
                                        .lse = harness_memory(h, heads * sizeof(double))};
}

static void attention_run(struct harness *h, const struct attention_setup *s) {
    harness_ok(h, h->ops->attention(h->backend, s->out, s->qkv, s->scale, s->cache, 1, s->plan, s->lse));
}

// Whether probabilities are taken in bfloat16: on a GPU's tensor cores, as are gradients of scores, and with AMX.
static bool attention_rounds(const struct harness *h, const struct attention_setup *s) {
    int size = s->heads.size;
    if (h->cpu) return h->f32_parts > 0 && s->type == ELEMENT_BF16;
    return s->type == ELEMENT_BF16 && (size == 64 || size == 80 || size == 128);
}

// `out` is near `want` by `bound`; with rounded probabilities by `rounded`, and by 0.5 % over the whole tensor.
static void attention_near(struct harness *h, const struct attention_setup *s, const char *what, struct tensor out,
                           const double *want, double bound, double rounded) {
    bool rounds = attention_rounds(h, s);
    harness_near(h, what, out, want, rounds ? rounded : bound, bound);
    if (!rounds || !want) return;
    const float *values = harness_values(h, out);
    double error = 0, sum = 0;
    for (int64_t i = 0; i < out.rows * out.columns; i++) {
        error += (values[i] - want[i]) * (values[i] - want[i]);
        sum += want[i] * want[i];
    }
    harness_hold(h, sqrt(error) <= 0.005 * sqrt(sum), "%s: relative error %.3g", what, sqrt(error / sum));
}

// The error allowed in a score, which may be small though its products are large.
static double attention_score_error(const struct harness *h, const struct attention_reference *r) {
    return r->products * (0x1p-22 + h->product_error);
}

static void attention_results_near(struct harness *h, const struct attention_setup *s,
                                   const struct attention_reference *r) {
    // A probability is off by its score's error of itself, or by 2^-9 if it is rounded, and a value is at most 7.
    const double score = attention_score_error(h, r);
    attention_near(h, s, "out", s->out, r->out, 3e-5 + 4 * score, 7 * 0x1p-9);
    harness_near(h, "lse", s->lse, r->lse, 2e-6 + score, 2e-6);
}

static void attention_check_forward_of(struct harness *h, struct attention_setup *s, const struct attention_layout *l) {
    attention_run(h, s);
    struct attention_reference r = {0};
    if (h->first) {
        r = attention_reference_new(h, s, l);
        attention_reference_run(&r);
    }
    attention_results_near(h, s, &r);
    attention_setup_release(h, s);
}

static void attention_check_forward(struct harness *h, struct attention_layout l) {
    struct attention_setup s = attention_setup_new(h, "attention", &l);
    attention_check_forward_of(h, &s, &l);
}

// Another cache that is written from the rotated qkv must do the same as the one that rope has written.
static void attention_check_written_again(struct harness *h, const struct attention_setup *s,
                                          const struct attention_layout *l) {
    struct tensor out = harness_tensor(h, s->type, s->out.rows, s->out.columns, FILL_NORMAL, 1);
    struct kv_cache *cache = attention_nan_cache(h, s, l->rows);
    harness_ok(h, h->ops->kv_cache_write(h->backend, s->qkv, s->heads, cache, 1, s->slots));
    harness_ok(h, h->ops->attention(h->backend, out, s->qkv, s->scale, cache, 1, s->plan, (struct tensor){0}));
    harness_equal(h, "out, with the cache written again", out, s->out);
    h->ops->kv_cache_free(h->backend, &cache);
}

// Computes the gradient, and compares it with the reference, which it returns (zeroed unless h->first).
static struct attention_reference attention_grad_of(struct harness *h, const struct attention_setup *s,
                                                    const struct attention_layout *l, struct tensor grad_out,
                                                    struct tensor grad_qkv) {
    harness_ok(h, h->ops->attention_grad(h->backend, grad_qkv, grad_out, s->out, s->qkv, s->scale, s->cache, 1, s->plan,
                                         s->lse));
    struct attention_reference r = {0};
    if (h->first) {
        r = attention_reference_new(h, s, l);
        r.stored_out = harness_values(h, s->out);
        r.grad_out = harness_doubles(h, grad_out);
        r.grad_qkv = harness_memory(h, (size_t)(l->tokens * s->columns) * sizeof(double));
        attention_reference_run(&r);
    }
    // A rounded gradient of a score is off by 2^-9 of itself, and the terms of an element add up to 50 or less. The
    // gradients of a key and a value are sums over the heads that use them.
    const double heads = sqrt((double)s->heads.query / s->heads.key);
    const double bound = 5e-5 + 10 * attention_score_error(h, &r);
    attention_near(h, s, "grad_qkv", grad_qkv, r.grad_qkv, bound * heads, 0.1 * heads);
    return r;
}

static void attention_check_grad_of(struct harness *h, struct attention_setup *s, const struct attention_layout *l) {
    attention_run(h, s);
    attention_check_written_again(h, s, l);
    struct tensor grad_out = harness_tensor(h, s->type, l->tokens, s->heads.query * s->heads.size, FILL_NORMAL, 1);
    struct tensor grad_qkv = harness_tensor(h, s->type, l->tokens, s->columns, FILL_NORMAL, 1);
    attention_grad_of(h, s, l, grad_out, grad_qkv);
    attention_setup_release(h, s);
}

static void attention_check_grad(struct harness *h, struct attention_layout l) {
    struct attention_setup s = attention_setup_new(h, "attention_grad", &l);
    attention_check_grad_of(h, &s, &l);
}

// ---- token by token ----

struct attention_decoding {
    const struct attention_setup *setup;
    const struct attention_layout *moved; // the tokens of the packed sequence in other cache rows
    struct kv_cache *cache;
    struct tensor qkv, position_ids, slots, out, lse; // of one step
};

static struct attention_decoding attention_decoding_new(struct harness *h, const struct attention_setup *s,
                                                        const struct attention_layout *packed,
                                                        const struct attention_layout *moved) {
    int64_t rows = packed->tokens;
    return (struct attention_decoding){
        .setup = s,
        .moved = moved,
        .cache = attention_nan_cache(h, s, moved->rows),
        .qkv = harness_tensor(h, s->type, rows, s->columns, FILL_ZERO, 0),
        .position_ids = attention_positions(h, rows, 1),
        .slots = harness_index(h, rows, 1),
        .out = harness_tensor(h, s->type, rows, s->heads.query * s->heads.size, FILL_ZERO, 0),
        .lse = harness_tensor(h, ELEMENT_F32, rows, s->heads.query, FILL_ZERO, 0)};
}

// Computes `count` tokens, given by their indices in the packed sequence, as one step. Their results must be those of
// the packed sequence.
static void attention_decode_step(struct harness *h, const struct attention_decoding *d, const int64_t *tokens,
                                  const struct attention_span *spans, int64_t count, size_t span_count) {
    const struct attention_setup *s = d->setup;
    const struct operations *ops = h->ops;
    int32_t slots[max_tokens];
    for (int64_t i = 0; i < count; i++) {
        slots[i] = d->moved->slots[tokens[i]];
        harness_ok(h, ops->copy(h->backend, tensor_rows(d->qkv, i, 1), tensor_rows(s->plain, tokens[i], 1)));
        harness_ok(
            h, ops->copy(h->backend, tensor_rows(d->position_ids, i, 1), tensor_rows(s->position_ids, tokens[i], 1)));
    }
    harness_set(h, tensor_rows(d->slots, 0, count), slots);
    struct tensor qkv = tensor_rows(d->qkv, 0, count), out = tensor_rows(d->out, 0, count);
    struct tensor lse = tensor_rows(d->lse, 0, count);
    harness_ok(h, ops->rope(h->backend, qkv, &s->table, tensor_rows(d->position_ids, 0, count), s->heads, d->cache, 1,
                            tensor_rows(d->slots, 0, count)));
    struct attention_plan *plan = attention_plan_of(h, s->heads, spans, span_count, (struct tensor){0});
    harness_ok(h, ops->attention(h->backend, out, qkv, s->scale, d->cache, 1, plan, lse));
    ops->attention_plan_free(h->backend, &plan);
    for (int64_t i = 0; i < count; i++) {
        harness_equal(h, "out", tensor_rows(out, i, 1), tensor_rows(s->out, tokens[i], 1));
        harness_equal(h, "lse", tensor_rows(lse, i, 1), tensor_rows(s->lse, tokens[i], 1));
    }
}

// Decodes the branches side by side: all but the last `single` tokens of each in one step, and then token by token.
static void attention_decode_branches(struct harness *h, const struct attention_decoding *d, int64_t single) {
    int64_t tokens[max_tokens], done[max_spans] = {0};
    for (int64_t step = 0; step <= single; step++) {
        struct attention_span spans[max_spans];
        int64_t active = 0;
        size_t count = 0;
        for (size_t b = 1; b < d->moved->count; b++) {
            const struct attention_span *branch = &d->moved->spans[b];
            int64_t len = step == 0 ? branch->q_len - single : done[b] < branch->q_len ? 1 : 0;
            if (len <= 0) continue;
            spans[count] = *branch;
            spans[count].q_begin = active;
            spans[count].q_len = len;
            spans[count].visible = done[b] + 1;
            spans[count++].causal = len > 1;
            for (; len > 0; len--) tokens[active++] = branch->q_begin + done[b]++;
        }
        if (active) attention_decode_step(h, d, tokens, spans, active, count);
    }
}

// The last token of each branch once more, with the plan of a decode batch; one more slot is idle.
static void attention_check_batch(struct harness *h, const struct attention_decoding *d) {
    const struct attention_setup *s = d->setup;
    int branches = (int)d->moved->count - 1;
    struct decode_batch *batch;
    harness_ok(h, h->ops->decode_batch_new(h->backend, &batch, branches + 1, s->heads, NULL, 0));
    for (int b = 0; b < branches; b++) {
        const struct attention_span *branch = &d->moved->spans[b + 1];
        struct decode_row row = {.prefix_begin = (int32_t)branch->prefix_begin,
                                 .prefix_len = (int32_t)branch->prefix_len,
                                 .kv_begin = (int32_t)branch->kv_begin,
                                 .len = (int32_t)branch->q_len,
                                 .max_len = (int32_t)branch->q_len + 1};
        harness_ok(h, h->ops->decode_batch_set(h->backend, batch, b, &row));
        struct tensor last = tensor_rows(s->qkv, branch->q_begin + branch->q_len - 1, 1);
        harness_ok(h, h->ops->copy(h->backend, tensor_rows(d->qkv, b, 1), last));
    }
    struct tensor qkv = tensor_rows(d->qkv, 0, batch->rows), out = tensor_rows(d->out, 0, batch->rows);
    struct tensor none = {0};
    harness_ok(h, h->ops->attention(h->backend, out, qkv, s->scale, d->cache, 1, batch->plan, none));
    for (int b = 0; b < branches; b++) {
        const struct attention_span *branch = &d->moved->spans[b + 1];
        struct tensor want = tensor_rows(s->out, branch->q_begin + branch->q_len - 1, 1);
        harness_equal(h, "out of a decode batch", tensor_rows(out, b, 1), want);
    }
    h->ops->decode_batch_free(h->backend, &batch);
}

// Decodes the tokens of a packed sequence in other cache rows: the prompt in two pieces, then the branches.
static void attention_check_decoding_of(struct harness *h, struct attention_setup *s,
                                        const struct attention_layout *packed, const struct attention_layout *moved,
                                        int64_t cut, int64_t single) {
    attention_run(h, s);
    struct attention_decoding d = attention_decoding_new(h, s, packed, moved);
    int64_t tokens[max_tokens] = {0}, prompt = packed->spans[0].q_len;
    for (int64_t t = 0; t < prompt; t++) tokens[t] = t;
    struct attention_span first = moved->spans[0], rest = first;
    first.q_len = cut;
    rest.q_len = prompt - cut;
    rest.visible = cut + 1;
    attention_decode_step(h, &d, tokens, &first, cut, 1);
    if (cut < prompt) attention_decode_step(h, &d, tokens + cut, &rest, prompt - cut, 1);
    attention_decode_branches(h, &d, single);
    attention_check_batch(h, &d);
    h->ops->kv_cache_free(h->backend, &d.cache);
    attention_setup_release(h, s);
}

static void attention_check_decoding(struct harness *h) {
    int64_t lengths[4] = {0}, prompt = harness_range(h, 1, 60);
    int branches = (int)harness_range(h, 1, 4);
    for (int b = 0; b < branches; b++) lengths[b] = harness_range(h, 1, 20);
    struct attention_layout packed = attention_branches(h, prompt, branches, lengths),
                            moved = attention_branches(h, prompt, branches, lengths);
    struct attention_setup s = attention_setup_new(h, "decoding", &packed);
    attention_check_decoding_of(h, &s, &packed, &moved, harness_range(h, 1, prompt), max_tokens);
}

// ---- texts with a window ----

// Packed texts that were computed together, and what computes some of their rows again.
struct attention_packed {
    struct attention_setup setup;
    struct attention_layout layout;
    struct tensor grad_out, grad_qkv;
    struct kv_cache *cache;
    struct tensor slots, again_out, again_lse, again_grad_qkv;
};

enum { most_shift = 40 };

// Computes rows once more, as a pass of one span with other cache rows. The results must be the same to the bit.
static void attention_text_again(struct harness *h, const struct attention_packed *p, struct attention_span span,
                                 const char *what) {
    const struct attention_setup *s = &p->setup;
    const struct operations *ops = h->ops;
    int64_t first = span.q_begin, rows = span.q_len, keys = span.visible, shift = harness_range(h, 0, most_shift);
    struct tensor qkv = tensor_rows(s->qkv, first, rows), slots = tensor_rows(p->slots, 0, keys), none = {0};
    struct tensor out = tensor_rows(p->again_out, 0, rows), lse = tensor_rows(p->again_lse, 0, rows);
    int32_t numbers[max_tokens];
    for (int64_t i = 0; i < keys; i++) numbers[i] = (int32_t)(shift + i);
    harness_set(h, slots, numbers);
    harness_ok(h, ops->kv_cache_write(h->backend, tensor_rows(s->qkv, first, keys), s->heads, p->cache, 1, slots));
    span.q_begin = 0;
    span.kv_begin = shift;
    struct attention_plan *plan = attention_plan_of(h, s->heads, &span, 1, rows == keys ? slots : none);
    harness_ok(h, ops->attention(h->backend, out, qkv, s->scale, p->cache, 1, plan, lse));
    harness_equal(h, what, out, tensor_rows(s->out, first, rows));
    harness_equal(h, what, lse, tensor_rows(s->lse, first, rows));
    if (rows == keys) {
        struct tensor grad_out = tensor_rows(p->grad_out, first, rows);
        struct tensor grad_qkv = tensor_rows(p->again_grad_qkv, 0, rows);
        harness_ok(h, ops->attention_grad(h->backend, grad_qkv, grad_out, out, qkv, s->scale, p->cache, 1, plan, lse));
        harness_equal(h, what, grad_qkv, tensor_rows(p->grad_qkv, first, rows));
    }
    ops->attention_plan_free(h->backend, &plan);
}

// On the CPU a row gives the same bits as a span of the cache rows that it sees.
static void attention_text_row(struct harness *h, const struct attention_packed *p, const struct attention_span *text,
                               int64_t query) {
    const struct attention_setup *s = &p->setup;
    int64_t first = query > text->window ? query - text->window : 0, end = query + text->window + 1;
    if (end > text->visible) end = text->visible;
    struct attention_span own = {.q_len = 1, .kv_begin = text->kv_begin + first, .visible = end - first};
    struct tensor out = tensor_rows(p->again_out, 0, 1), none = {0};
    struct tensor qkv = tensor_rows(s->qkv, text->q_begin + query, 1);
    struct attention_plan *plan = attention_plan_of(h, s->heads, &own, 1, none);
    harness_ok(h, h->ops->attention(h->backend, out, qkv, s->scale, s->cache, 1, plan, none));
    harness_equal(h, "a row alone", out, tensor_rows(s->out, text->q_begin + query, 1));
    h->ops->attention_plan_free(h->backend, &plan);
}

static struct attention_packed attention_packed_new(struct harness *h, struct heads heads, enum element type,
                                                    const struct attention_layout *l) {
    struct attention_packed p = {.setup = attention_setup_of(h, "texts", l, heads, type), .layout = *l};
    const struct attention_setup *s = &p.setup;
    p.grad_out = harness_tensor(h, type, l->tokens, s->out.columns, FILL_NORMAL, 1);
    p.grad_qkv = harness_tensor(h, type, l->tokens, s->columns, FILL_NORMAL, 1);
    p.cache = attention_nan_cache(h, s, l->tokens + most_shift);
    p.slots = harness_index(h, l->tokens, 1);
    p.again_out = harness_tensor(h, type, l->tokens, s->out.columns, FILL_NORMAL, 1);
    p.again_lse = harness_tensor(h, ELEMENT_F32, l->tokens, s->lse.columns, FILL_NORMAL, 1);
    p.again_grad_qkv = harness_tensor(h, type, l->tokens, s->columns, FILL_NORMAL, 1);
    attention_run(h, s);
    struct attention_reference r = attention_grad_of(h, s, l, p.grad_out, p.grad_qkv);
    attention_results_near(h, s, &r);
    return p;
}

// The results are near the reference. A row's bits depend neither on the rows beside it, nor on other texts, nor on a
// window that hides nothing.
static void attention_check_texts_of(struct harness *h, struct heads heads, enum element type,
                                     const struct attention_layout *l) {
    struct attention_packed p = attention_packed_new(h, heads, type, l);
    for (const struct attention_span *text = l->spans; text < l->spans + l->count; text++) {
        struct attention_span begin = *text, wide = *text;
        bool all = text->window == 0 || text->window + 1 >= text->visible; // nothing is hidden
        attention_text_again(h, &p, *text, "a text alone");
        begin.q_len = harness_range(h, 1, text->q_len);
        attention_text_again(h, &p, begin, "the first rows of a text");
        wide.window = 0;
        if (all) attention_text_again(h, &p, wide, "no window");
        wide.window = INT64_MAX;
        if (all) attention_text_again(h, &p, wide, "a window of any size");
        for (int i = 0; h->cpu && h->f32_parts == 0 && text->window > 0 && i < 3; i++)
            attention_text_row(h, &p, text, harness_range(h, 0, text->q_len - 1));
    }
    h->ops->kv_cache_free(h->backend, &p.cache);
    attention_setup_release(h, &p.setup);
}

// Windows smaller than, equal to and larger than a text, and texts around the sizes of tiles and blocks of keys.
static const struct attention_text_edge {
    struct heads heads;
    enum element type;
    int64_t window;
    int count;
    int64_t lengths[4];
} attention_text_edges[] = {
    {{1, 1, 64}, ELEMENT_BF16, 64, 3, {67, 65, 1}}, {{1, 1, 64}, ELEMENT_BF16, 1, 3, {132, 2, 1}},
    {{4, 2, 64}, ELEMENT_F32, 16, 3, {17, 35, 16}}, {{7, 1, 80}, ELEMENT_BF16, 5, 3, {6, 1, 21}},
    {{1, 1, 128}, ELEMENT_BF16, 9, 2, {10, 30}},    {{3, 1, 24}, ELEMENT_F32, 20, 2, {21, 60}},
    {{2, 1, 24}, ELEMENT_BF16, 20, 2, {9, 14}},
};

static void attention_check_texts(struct harness *h) {
    size_t count = sizeof attention_text_edges / sizeof *attention_text_edges;
    for (const struct attention_text_edge *edge = attention_text_edges; edge < attention_text_edges + count; edge++) {
        struct attention_layout l = attention_texts(h, edge->window, edge->count, edge->lengths);
        attention_check_texts_of(h, edge->heads, edge->type, &l);
    }
    for (int i = 0; !h->emulated && i < 2; i++) {
        struct attention_layout l = attention_random_texts(h);
        attention_check_texts_of(h, attention_random_heads(h, l.tokens), harness_float_type(h), &l);
    }
}

// ---- edges ----

struct attention_edge {
    struct heads heads;
    int branches;
    int64_t prompt;
    int64_t lengths[4];
};

// Around the sizes of the tensor cores' versions: tiles of 64 query rows, blocks of 64 keys, chunks of 512 keys.
static const struct attention_edge attention_decoding_edges[] = {
    {{7, 1, 128}, 3, 63, {65, 1, 64}}, {{8, 1, 64}, 3, 64, {63, 66, 2}}, {{4, 2, 80}, 4, 65, {1, 1, 2, 1}},
    {{1, 1, 64}, 2, 511, {2, 1}},      {{1, 1, 64}, 1, 512, {3}},        {{1, 1, 128}, 1, 513, {2}},
    {{1, 1, 64}, 3, 2, {511, 514, 1}},
};

// The last one has more tiles than one part of the gradient of keys.
static const struct attention_edge attention_reference_edges[] = {
    {{7, 1, 128}, 2, 63, {65, 1}},
    {{2, 2, 80}, 2, 129, {64, 65}},
    {{1, 1, 64}, 1, 513, {2}},
    {{32, 1, 64}, 1, 130, {3}},
};

static void attention_check_edges(struct harness *h) {
    size_t count = sizeof attention_decoding_edges / sizeof *attention_decoding_edges;
    for (const struct attention_edge *edge = attention_decoding_edges; edge < attention_decoding_edges + count;
         edge++) {
        struct attention_layout packed = attention_branches(h, edge->prompt, edge->branches, edge->lengths),
                                moved = attention_branches(h, edge->prompt, edge->branches, edge->lengths);
        struct attention_setup s = attention_setup_of(h, "decoding", &packed, edge->heads, ELEMENT_BF16);
        attention_check_decoding_of(h, &s, &packed, &moved, edge->prompt / 2, 4);
    }
    count = sizeof attention_reference_edges / sizeof *attention_reference_edges;
    for (const struct attention_edge *edge = attention_reference_edges; edge < attention_reference_edges + count;
         edge++) {
        struct attention_layout l = attention_branches(h, edge->prompt, edge->branches, edge->lengths);
        struct attention_setup s = attention_setup_of(h, "attention", &l, edge->heads, ELEMENT_BF16);
        attention_check_forward_of(h, &s, &l);
        s = attention_setup_of(h, "attention_grad", &l, edge->heads, ELEMENT_BF16);
        attention_check_grad_of(h, &s, &l);
    }
}

static void attention_check_plan_refusals(struct harness *h) {
    harness_case(h, "refusals of plans");
    const struct tensor none = {0}, two = harness_index(h, 2, 16);
    const struct heads heads = {2, 1, 4};
    const struct {
        const char *what;
        struct heads heads;
        struct attention_span span;
        struct tensor slots;
    } refused[] = {
        {"key heads that do not divide", {3, 2, 4}, {.q_len = 1, .visible = 7}, none},
        {"more slots than rows", heads, {.q_len = 1, .visible = 7}, two},
        {"a span beyond the rows", heads, {.q_begin = 1, .q_len = 1, .visible = 7}, none},
        {"a span before the cache", heads, {.q_len = 1, .kv_begin = -1, .visible = 7}, none},
        {"a row that sees nothing", heads, {.q_len = 1}, none},
        {"a negative window", heads, {.q_len = 2, .visible = 2, .window = -1}, none},
        {"a causal window", heads, {.q_len = 2, .visible = 2, .window = 1, .causal = true}, none},
        {"a window with a prefix", heads, {.q_len = 2, .visible = 2, .window = 1, .prefix_len = 1}, none},
        {"a row whose window is behind the cache rows", heads, {.q_len = 5, .visible = 2, .window = 2}, none},
    };
    struct attention_plan *plan = NULL;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        status result =
            h->ops->attention_plan_new(h->backend, &plan, refused[i].heads, &refused[i].span, 1, refused[i].slots);
        harness_hold(h, result == BUG && !plan, "%s", refused[i].what);
    }
    h->ops->attention_plan_free(h->backend, &plan);
}

static void attention_expect_refusal(struct harness *h, const struct attention_setup *s, struct heads heads,
                                     const struct attention_span *span, size_t count, const char *what) {
    const struct tensor none = {0};
    struct attention_plan *plan = attention_plan_of(h, heads, span, count, none);
    harness_hold(h, h->ops->attention(h->backend, s->out, s->qkv, 1, s->cache, 0, plan, none) == BUG, "%s", what);
    h->ops->attention_plan_free(h->backend, &plan);
}

static void attention_check_refusals(struct harness *h) {
    harness_case(h, "refusals");
    struct heads heads = {2, 1, 4};
    struct kv_cache *cache = NULL;
    harness_hold(h,
                 h->ops->kv_cache_new(h->backend, &cache, ELEMENT_F32, 1, 16, (struct heads){3, 2, 4}) == BUG && !cache,
                 "key heads that do not divide the query heads");
    harness_ok(h, h->ops->kv_cache_new(h->backend, &cache, ELEMENT_F32, 1, 16, heads));
    struct tensor qkv = harness_dense(h, ELEMENT_F32, 1, 16, FILL_NORMAL, 1),
                  out = harness_dense(h, ELEMENT_F32, 1, 8, FILL_ZERO, 0);
    struct rope_table table = attention_table(h, 5, 2);
    struct tensor slots = harness_index(h, 1, 1), position_ids = attention_positions(h, 1, 1);
    harness_set(h, slots, (int32_t[]){16});
    harness_broken(h, h->ops->rope(h->backend, qkv, &table, position_ids, heads, cache, 0, slots),
                   "a slot beyond the cache");
    harness_broken(h, h->ops->kv_cache_write(h->backend, qkv, heads, cache, 0, slots), "a slot beyond the cache");
    for (int axis = 0; axis < 3; axis++) {
        int32_t beyond[3] = {0}, before[3] = {0};
        beyond[axis] = 5;
        before[axis] = -1;
        harness_set(h, position_ids, beyond);
        harness_broken(h, h->ops->rope_grad(h->backend, qkv, &table, position_ids, heads),
                       "a position beyond the table");
        harness_set(h, position_ids, before);
        harness_broken(h, h->ops->rope_grad(h->backend, qkv, &table, position_ids, heads),
                       "a position before the table");
    }
    harness_set(h, position_ids, (int32_t[3]){4, 4, 4});
    harness_ok(h, h->ops->rope_grad(h->backend, qkv, &table, position_ids, heads));
    table.sections[0] = 2;
    table.sections[1] = 1;
    harness_hold(h, h->ops->rope_grad(h->backend, qkv, &table, position_ids, heads) == BUG,
                 "sections of too many pairs");
    struct attention_span span = {.q_len = 1, .kv_begin = 10, .visible = 7},
                          prefix = {.q_len = 1, .prefix_begin = 10, .prefix_len = 7, .visible = 1};
    const struct attention_setup s = {.qkv = qkv, .out = out, .cache = cache};
    attention_expect_refusal(h, &s, heads, &span, 1, "a span beyond the cache");
    attention_expect_refusal(h, &s, heads, &prefix, 1, "a prefix beyond the cache");
    attention_expect_refusal(h, &s, heads, &span, 0, "a row without a span");
    span.kv_begin = 9;
    attention_expect_refusal(h, &s, (struct heads){2, 2, 2}, &span, 1, "a plan for other heads");
    struct tensor none = {0}, lse = harness_dense(h, ELEMENT_F32, 1, 2, FILL_ZERO, 0);
    struct attention_plan *plan = attention_plan_of(h, heads, &span, 1, none);
    struct tensor grad_qkv = harness_dense(h, ELEMENT_F32, 1, 16, FILL_ZERO, 0);
    harness_ok(h, h->ops->attention(h->backend, out, qkv, 1, cache, 0, plan, lse));
    harness_hold(h, h->ops->attention_grad(h->backend, grad_qkv, out, out, qkv, 1, cache, 0, plan, lse) == BUG,
                 "a gradient without slots");
    h->ops->attention_plan_free(h->backend, &plan);
    h->ops->kv_cache_free(h->backend, &cache);
}

static void attention_check(struct harness *h) {
    for (int i = 0; i < harness_repeats(h, 10); i++) {
        attention_check_rope(h);
        attention_check_forward(h, attention_random_layout(h));
        attention_check_grad(h, attention_random_layout(h));
        attention_check_decoding(h);
    }
    attention_check_forward(h, attention_crossed(h));
    attention_check_grad(h, attention_crossed(h));
    // Long enough for several groups of key blocks and several batches of the CPU's tiles.
    struct attention_layout l = attention_branches(h, 900, 3, (int64_t[]){250, 256, 240});
    if (!h->emulated) {
        attention_check_forward(h, l);
        attention_check_grad(h, l);
    }
    attention_check_edges(h);
    attention_check_texts(h);
    attention_check_plan_refusals(h);
    attention_check_refusals(h);
}

// ---- timing ----

static double attention_pairs(const struct attention_span *spans, size_t count) {
    double pairs = 0;
    for (size_t i = 0; i < count; i++) {
        const struct attention_span *s = &spans[i];
        double queries = (double)s->q_len, more = s->causal ? queries * (queries - 1) / 2 : 0;
        pairs += queries * (double)(s->prefix_len + s->visible) + more;
        // The pairs that a window hides on each side; visible = q_len.
        double hidden = s->window > 0 && s->window < s->q_len ? queries - 1 - (double)s->window : 0;
        pairs -= hidden * (hidden + 1);
    }
    return pairs;
}

// The cache row of token t is t.
static void attention_time_layout(struct harness *h, const char *name, struct heads heads, int64_t tokens, int64_t rows,
                                  const struct attention_span *spans, size_t count, bool all) {
    harness_case(h, "timing %s", name);
    int64_t columns = (heads.query + 2 * heads.key) * heads.size, out_columns = heads.query * heads.size;
    struct attention_setup s = {.heads = heads,
                                .scale = 1 / sqrtf((float)heads.size),
                                .qkv = harness_dense(h, ELEMENT_F32, tokens, columns, FILL_NORMAL, 1),
                                .table = attention_table(h, tokens, heads.size / 2),
                                .position_ids = attention_positions(h, tokens, tokens),
                                .slots = harness_index(h, tokens, 1),
                                .out = harness_dense(h, ELEMENT_F32, tokens, out_columns, FILL_ZERO, 0),
                                .lse = harness_dense(h, ELEMENT_F32, tokens, heads.query, FILL_ZERO, 0)};
    int32_t *slots = harness_memory(h, (size_t)tokens * sizeof *slots);
    for (int64_t i = 0; i < tokens; i++) slots[i] = (int32_t)i;
    harness_set(h, s.slots, slots);
    harness_ok(h, h->ops->kv_cache_new(h->backend, &s.cache, ELEMENT_F32, 1, rows, heads));
    s.plan = attention_plan_of(h, heads, spans, count, s.slots);
    double flops = 4 * attention_pairs(spans, count) * heads.query * heads.size;
    double bytes = 8.0 * (double)tokens * (double)columns;
    if (all)
        HARNESS_TIME(h, 0, bytes,
                     h->ops->rope(h->backend, s.qkv, &s.table, s.position_ids, s.heads, s.cache, 0, s.slots), "rope %s",
                     name);
    HARNESS_TIME(h, flops, 0, h->ops->attention(h->backend, s.out, s.qkv, s.scale, s.cache, 0, s.plan, s.lse),
                 "attention %s", name);
    if (all) {
        const struct tensor grad_out = harness_dense(h, ELEMENT_F32, tokens, out_columns, FILL_NORMAL, 1);
        const struct tensor grad_qkv = harness_dense(h, ELEMENT_F32, tokens, columns, FILL_ZERO, 0);
        HARNESS_TIME(
            h, 2.5 * flops, 0,
            h->ops->attention_grad(h->backend, grad_qkv, grad_out, s.out, s.qkv, s.scale, s.cache, 0, s.plan, s.lse),
            "attention_grad %s", name);
    }
    attention_setup_release(h, &s);
}

static void attention_time_group(struct harness *h, struct heads heads, const char *packed_name,
                                 const char *decoded_name) {
    enum { prompt = 1184, branch = 128, branches = 8 };
    struct attention_span packed[branches + 1] = {{.q_len = prompt, .visible = 1, .causal = true}}, decoded[branches];
    for (int64_t b = 0; b < branches; b++) {
        int64_t own = prompt + b * branch;
        packed[b + 1] = (struct attention_span){own, branch, 0, prompt, own, 1, true, 0};
        decoded[b] = (struct attention_span){b, 1, 0, prompt, own, branch, false, 0};
    }
    int64_t rows = prompt + branches * branch;
    attention_time_layout(h, packed_name, heads, rows, rows, packed, branches + 1, true);
    attention_time_layout(h, decoded_name, heads, branches, rows, decoded, branches, false);
}

static void attention_time_text(struct harness *h, const char *name, int64_t tokens, int64_t window, bool all) {
    struct attention_span text = {.q_len = tokens, .visible = tokens, .window = window};
    attention_time_layout(h, name, (struct heads){16, 16, 64}, tokens, tokens, &text, 1, all);
}

static void attention_time(struct harness *h) {
    attention_time_group(h, (struct heads){12, 2, 64}, "1184 + 8x128, 12/2 heads of 64",
                         "8 rows after 1184, 12/2 heads of 64");
    attention_time_group(h, (struct heads){16, 2, 128}, "1184 + 8x128, 16/2 heads of 128",
                         "8 rows after 1184, 16/2 heads of 128");
    struct attention_span windows[32], frame = {.q_len = 2048, .visible = 2048};
    for (int64_t w = 0; w < 32; w++)
        windows[w] = (struct attention_span){.q_begin = 64 * w, .q_len = 64, .kv_begin = 64 * w, .visible = 64};
    attention_time_layout(h, "32 windows of 64, 16 heads of 80", (struct heads){16, 16, 80}, 2048, 2048, windows, 32,
                          true);
    attention_time_layout(h, "a frame of 2048, 16 heads of 80", (struct heads){16, 16, 80}, 2048, 2048, &frame, 1,
                          true);
    attention_time_text(h, "a text of 700, 16 heads of 64", 700, 0, true);
    attention_time_text(h, "a text of 700, window 64, 16 heads of 64", 700, 64, true);
    attention_time_text(h, "a text of 8192, 16 heads of 64", 8192, 0, false);
    attention_time_text(h, "a text of 8192, window 64, 16 heads of 64", 8192, 64, true);
}

const struct suite suite_attention = {"attention", attention_check, attention_time};
