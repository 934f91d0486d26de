// rope, attention and their gradients: prompts with branches, windows and decoding, against double precision; and a
// sequence decoded token by token in a cache laid out otherwise, which must give the bits of the packed one.
//
// Every cache is full of NaN before a case: nothing may leak in from rows that a span does not see.
#include "tests/ops/harness.h"

#include <math.h>
#include <string.h>

enum { most_tokens = 1700, most_segments = 8 };

struct layout {
    int64_t tokens, rows; // rows of the cache
    size_t count;
    struct attention_span spans[most_segments];
    int32_t slots[most_tokens];
};

struct setting {
    struct heads heads;
    float scale;
    enum element type;
    int64_t columns;                                     // (H + 2K) D
    struct tensor plain, qkv, cos, sin, slots, out, lse; // plain: before rotation
    struct kv_cache *cache;
};

// ---- what to compute ----

static struct heads some_heads(struct harness *h, int64_t tokens) {
    if (tokens > 500) return (struct heads){2, 1, 6};
    static const int sizes[] = {2, 12, 16, 24, 40, 64, 80, 128};
    int key = (int)harness_range(h, 1, 3), group = (int)harness_range(h, 1, 8);
    return (struct heads){key * group, key, sizes[harness_range(h, 0, 7)]};
}

// A prompt and branches after it; regions begin anywhere.
static struct layout branched(struct harness *h, int64_t prompt, int branches, const int64_t *lengths) {
    struct layout l = {.count = 1};
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

static struct layout windows(struct harness *h) {
    struct layout l = {.rows = harness_range(h, 0, 20)};
    int count = (int)harness_range(h, 1, 5);
    for (int w = 0; w < count; w++) {
        int64_t size = harness_range(h, 1, 30);
        l.spans[l.count++] =
            (struct attention_span){.q_begin = l.tokens, .q_len = size, .kv_begin = l.rows, .visible = size};
        for (int64_t i = 0; i < size; i++) l.slots[l.tokens++] = (int32_t)l.rows++;
    }
    return l;
}

static struct layout some_layout(struct harness *h) {
    if (harness_unit(h) < 0.3) return windows(h);
    int64_t lengths[5];
    int branches = (int)harness_range(h, 0, 5);
    for (int b = 0; b < branches; b++) lengths[b] = harness_range(h, 1, 14);
    return branched(h, harness_range(h, 1, 70), branches, lengths);
}

// ---- set-up ----

static struct kv_cache *poisoned_cache(struct harness *h, const struct setting *s, int64_t rows) {
    struct kv_cache *cache;
    harness_ok(h, h->ops->kv_cache_new(h->backend, &cache, 2, rows, s->heads));
    struct tensor qkv = harness_dense(h, s->type, rows, s->columns, FILL_ZERO, 0);
    struct tensor angles = harness_dense(h, ELEMENT_F32, rows, s->heads.size / 2, FILL_ZERO, 0);
    struct tensor slots = harness_index(h, rows, rows);
    float *values = harness_values(h, qkv);
    int32_t *numbers = harness_numbers(h, slots);
    for (int64_t i = 0; i < rows * s->columns; i++) values[i] = NAN;
    for (int64_t i = 0; i < rows; i++) numbers[i] = (int32_t)i;
    harness_set(h, qkv, values);
    harness_set(h, slots, numbers);
    harness_ok(h, h->ops->rope(h->backend, qkv, angles, angles, s->heads, cache, 1, slots));
    return cache;
}

static struct setting set_up(struct harness *h, const char *what, const struct layout *l) {
    struct setting s = {.heads = some_heads(h, l->tokens), .type = harness_unit(h) < 0.5 ? ELEMENT_F32 : ELEMENT_BF16};
    s.scale = 1 / sqrtf((float)s.heads.size);
    s.columns = (s.heads.query + 2 * s.heads.key) * s.heads.size;
    harness_case(h, "%s: %lld tokens in %zu spans, %lld rows, H=%d K=%d D=%d, type %d", what, (long long)l->tokens,
                 l->count, (long long)l->rows, s.heads.query, s.heads.key, s.heads.size, s.type);
    s.plain = harness_tensor(h, s.type, l->tokens, s.columns, FILL_NORMAL, harness_unit(h) < 0.3 ? 2 : 1);
    s.qkv = harness_tensor(h, s.type, l->tokens, s.columns, FILL_ZERO, 0);
    s.cos = harness_tensor(h, ELEMENT_F32, l->tokens, s.heads.size / 2, FILL_ZERO, 0);
    s.sin = harness_tensor(h, ELEMENT_F32, l->tokens, s.heads.size / 2, FILL_ZERO, 0);
    s.slots = harness_index(h, l->tokens, 1);
    s.out = harness_tensor(h, s.type, l->tokens, s.heads.query * s.heads.size, FILL_NORMAL, 1);
    s.lse = harness_tensor(h, ELEMENT_F32, l->tokens, s.heads.query, FILL_NORMAL, 1);
    float *cos = harness_values(h, s.cos), *sin = harness_values(h, s.sin);
    for (int64_t i = 0; i < s.cos.rows * s.cos.columns; i++) {
        double angle = 10 * harness_normal(h);
        cos[i] = (float)__builtin_cos(angle);
        sin[i] = (float)__builtin_sin(angle);
    }
    harness_set(h, s.cos, cos);
    harness_set(h, s.sin, sin);
    harness_set(h, s.slots, l->slots);
    s.cache = poisoned_cache(h, &s, l->rows);
    harness_ok(h, h->ops->copy(h->backend, s.qkv, s.plain));
    harness_ok(h, h->ops->rope(h->backend, s.qkv, s.cos, s.sin, s.heads, s.cache, 1, s.slots));
    return s;
}

// ---- rotation ----

static void transpose(const struct setting *s, double *rows, const float *cos, const float *sin, int64_t tokens,
                      double sign) {
    int half = s->heads.size / 2;
    for (int64_t t = 0; t < tokens; t++) {
        for (int head = 0; head < s->heads.query + s->heads.key; head++) {
            double *low = rows + t * s->columns + head * s->heads.size, *high = low + half;
            for (int j = 0; j < half; j++) {
                double a = low[j], b = high[j], c = cos[t * half + j], d = sign * sin[t * half + j];
                low[j] = a * c - b * d;
                high[j] = b * c + a * d;
            }
        }
    }
}

static double *doubles(struct harness *h, struct tensor t) {
    float *values = harness_values(h, t);
    double *out = harness_memory(h, (size_t)(t.rows * t.columns) * sizeof *out);
    for (int64_t i = 0; i < t.rows * t.columns; i++) out[i] = values[i];
    return out;
}

static void check_rotation(struct harness *h) {
    struct layout l = some_layout(h);
    struct setting s = set_up(h, "rope", &l);
    float *cos = harness_values(h, s.cos), *sin = harness_values(h, s.sin);
    double *want = doubles(h, s.plain);
    transpose(&s, want, cos, sin, l.tokens, 1);
    harness_near(h, "qkv", s.qkv, want, 2e-6, 0);
    want = doubles(h, s.qkv);
    transpose(&s, want, cos, sin, l.tokens, -1);
    harness_ok(h, h->ops->rope_grad(h->backend, s.qkv, s.cos, s.sin, s.heads));
    harness_near(h, "grad_qkv", s.qkv, want, 2e-6, 0);
    h->ops->kv_cache_free(h->backend, &s.cache);
}

// ---- attention in double ----

static bool sees(const struct attention_span *s, int64_t query, int64_t row) {
    int64_t own = s->visible + (s->causal ? query : 0);
    return (row >= s->prefix_begin && row < s->prefix_begin + s->prefix_len) ||
           (row >= s->kv_begin && row < s->kv_begin + own);
}

struct reference {
    const struct setting *setting;
    const struct layout *layout;
    double *qkv, *out, *lse;     // results of attention
    double *grad_out, *gradient; // NULL: none
    const float *given;          // out as the operation gave it, which its gradient takes
};

static const double *head_of(const struct reference *r, int64_t token, int head) {
    return r->qkv + token * r->setting->columns + head * r->setting->heads.size;
}

static double inner(const double *a, const double *b, int size) {
    double sum = 0;
    for (int d = 0; d < size; d++) sum += a[d] * b[d];
    return sum;
}

// powers[token] = softmax over the tokens that query `query` of the span sees, 0 elsewhere.
static double row_scaled_exp(const struct reference *r, const struct attention_span *span, int64_t query, int head,
                             double *powers) {
    const struct setting *s = r->setting;
    int key = s->heads.query + head / (s->heads.query / s->heads.key);
    double most = -INFINITY, sum = 0;
    for (int64_t t = 0; t < r->layout->tokens; t++) {
        bool seen = sees(span, query, r->layout->slots[t]);
        powers[t] =
            seen ? (double)s->scale * inner(head_of(r, span->q_begin + query, head), head_of(r, t, key), s->heads.size)
                 : -INFINITY;
        most = fmax(most, powers[t]);
    }
    for (int64_t t = 0; t < r->layout->tokens; t++) sum += powers[t] = exp(powers[t] - most);
    for (int64_t t = 0; t < r->layout->tokens; t++) powers[t] /= sum;
    return most + log(sum);
}

static void slope(const struct reference *r, int64_t token, int head, const double *powers) {
    const struct setting *s = r->setting;
    int size = s->heads.size, key = s->heads.query + head / (s->heads.query / s->heads.key);
    int value = key + s->heads.key;
    int64_t place = token * s->heads.query * size + head * size;
    const double *grad_out = r->grad_out + place;
    double delta = 0;
    for (int d = 0; d < size; d++) delta += grad_out[d] * r->given[place + d];
    for (int64_t t = 0; t < r->layout->tokens; t++) {
        if (powers[t] == 0) continue;
        double steep = powers[t] * (inner(grad_out, head_of(r, t, value), size) - delta) * (double)s->scale;
        for (int d = 0; d < size; d++) {
            r->gradient[token * s->columns + head * size + d] += steep * head_of(r, t, key)[d];
            r->gradient[t * s->columns + key * size + d] += steep * head_of(r, token, head)[d];
            r->gradient[t * s->columns + value * size + d] += powers[t] * grad_out[d];
        }
    }
}

static void compute(const struct reference *r) {
    const struct setting *s = r->setting;
    int size = s->heads.size;
    double powers[most_tokens];
    for (const struct attention_span *span = r->layout->spans; span < r->layout->spans + r->layout->count; span++) {
        for (int64_t i = 0; i < span->q_len * s->heads.query; i++) {
            int64_t query = i / s->heads.query, token = span->q_begin + query;
            int head = (int)(i % s->heads.query), value = s->heads.query + s->heads.key;
            value += head / (s->heads.query / s->heads.key);
            r->lse[token * s->heads.query + head] = row_scaled_exp(r, span, query, head, powers);
            double *out = r->out + token * s->heads.query * size + head * size;
            for (int64_t t = 0; t < r->layout->tokens; t++) {
                for (int d = 0; d < size && powers[t] > 0; d++) out[d] += powers[t] * head_of(r, t, value)[d];
            }
            if (r->gradient) slope(r, token, head, powers);
        }
    }
}

static struct reference refer(struct harness *h, const struct setting *s, const struct layout *l) {
    size_t outs = (size_t)(l->tokens * s->heads.query);
    return (struct reference){.setting = s,
                              .layout = l,
                              .qkv = doubles(h, s->qkv),
                              .out = harness_memory(h, outs * (size_t)s->heads.size * sizeof(double)),
                              .lse = harness_memory(h, outs * sizeof(double))};
}

static void attend(struct harness *h, const struct setting *s, const struct layout *l) {
    harness_ok(
        h, h->ops->attention(h->backend, s->out, s->qkv, s->heads, s->scale, s->cache, 1, l->spans, l->count, s->lse));
}

static void check_attention(struct harness *h, struct layout l) {
    struct setting s = set_up(h, "attention", &l);
    attend(h, &s, &l);
    struct reference r = {0};
    if (h->first) {
        r = refer(h, &s, &l);
        compute(&r);
    }
    harness_near(h, "out", s.out, r.out, 3e-5, 3e-5); // scores are float32 sums of up to 128 products
    harness_near(h, "lse", s.lse, r.lse, 2e-6, 2e-6);
    h->ops->kv_cache_free(h->backend, &s.cache);
}

static void check_gradient(struct harness *h, struct layout l) {
    struct setting s = set_up(h, "attention_grad", &l);
    attend(h, &s, &l);
    struct tensor grad_out = harness_tensor(h, s.type, l.tokens, s.heads.query * s.heads.size, FILL_NORMAL, 1);
    struct tensor gradient = harness_tensor(h, s.type, l.tokens, s.columns, FILL_NORMAL, 1);
    harness_ok(h, h->ops->attention_grad(h->backend, gradient, grad_out, s.out, s.qkv, s.heads, s.scale, s.cache, 1,
                                         s.slots, l.spans, l.count, s.lse));
    struct reference r = {0};
    if (h->first) {
        r = refer(h, &s, &l);
        r.given = harness_values(h, s.out);
        r.grad_out = doubles(h, grad_out);
        r.gradient = harness_memory(h, (size_t)(l.tokens * s.columns) * sizeof(double));
        compute(&r);
    }
    harness_near(h, "grad_qkv", gradient, r.gradient, 5e-5, 5e-5);
    h->ops->kv_cache_free(h->backend, &s.cache);
}

// ---- token by token ----

struct decoding {
    const struct setting *setting;
    const struct layout *packed, *apart; // the same tokens in other rows
    struct kv_cache *cache;
    struct tensor qkv, cos, sin, slots, out, lse; // of one step
};

static struct decoding decoding_of(struct harness *h, const struct setting *s, const struct layout *packed,
                                   const struct layout *apart) {
    int64_t rows = packed->spans[0].q_len;
    if (rows < most_segments) rows = most_segments;
    return (struct decoding){.setting = s,
                             .packed = packed,
                             .apart = apart,
                             .cache = poisoned_cache(h, s, apart->rows),
                             .qkv = harness_tensor(h, s->type, rows, s->columns, FILL_ZERO, 0),
                             .cos = harness_tensor(h, ELEMENT_F32, rows, s->heads.size / 2, FILL_ZERO, 0),
                             .sin = harness_tensor(h, ELEMENT_F32, rows, s->heads.size / 2, FILL_ZERO, 0),
                             .slots = harness_index(h, rows, 1),
                             .out = harness_tensor(h, s->type, rows, s->heads.query * s->heads.size, FILL_ZERO, 0),
                             .lse = harness_tensor(h, ELEMENT_F32, rows, s->heads.query, FILL_ZERO, 0)};
}

// Computes `count` tokens, given by their places in the packed sequence, as one step, and compares their rows.
static void decode_step(struct harness *h, const struct decoding *d, const int64_t *tokens,
                        const struct attention_span *spans, int64_t count, size_t segment_count) {
    const struct setting *s = d->setting;
    const struct operations *ops = h->ops;
    int32_t slots[most_tokens];
    for (int64_t i = 0; i < count; i++) {
        slots[i] = d->apart->slots[tokens[i]];
        harness_ok(h, ops->copy(h->backend, tensor_rows(d->qkv, i, 1), tensor_rows(s->plain, tokens[i], 1)));
        harness_ok(h, ops->copy(h->backend, tensor_rows(d->cos, i, 1), tensor_rows(s->cos, tokens[i], 1)));
        harness_ok(h, ops->copy(h->backend, tensor_rows(d->sin, i, 1), tensor_rows(s->sin, tokens[i], 1)));
    }
    harness_set(h, tensor_rows(d->slots, 0, count), slots);
    struct tensor qkv = tensor_rows(d->qkv, 0, count), out = tensor_rows(d->out, 0, count);
    struct tensor lse = tensor_rows(d->lse, 0, count);
    harness_ok(h, ops->rope(h->backend, qkv, tensor_rows(d->cos, 0, count), tensor_rows(d->sin, 0, count), s->heads,
                            d->cache, 1, tensor_rows(d->slots, 0, count)));
    harness_ok(h, ops->attention(h->backend, out, qkv, s->heads, s->scale, d->cache, 1, spans, segment_count, lse));
    for (int64_t i = 0; i < count; i++) {
        harness_equal(h, "out", tensor_rows(out, i, 1), tensor_rows(s->out, tokens[i], 1));
        harness_equal(h, "lse", tensor_rows(lse, i, 1), tensor_rows(s->lse, tokens[i], 1));
    }
}

static void decode_branches(struct harness *h, const struct decoding *d) {
    for (int64_t place = 0; place < most_tokens; place++) {
        int64_t tokens[most_segments], live = 0;
        struct attention_span spans[most_segments];
        for (size_t b = 1; b < d->apart->count; b++) {
            const struct attention_span *branch = &d->apart->spans[b];
            if (place >= branch->q_len) continue;
            tokens[live] = branch->q_begin + place;
            spans[live] = *branch;
            spans[live].q_begin = live;
            spans[live].q_len = 1;
            spans[live].visible = place + 1;
            spans[live++].causal = false;
        }
        if (live) decode_step(h, d, tokens, spans, live, (size_t)live);
    }
}

static void check_decoding(struct harness *h) {
    int64_t lengths[4] = {0}, prompt = harness_range(h, 1, 60);
    int branches = (int)harness_range(h, 1, 4);
    for (int b = 0; b < branches; b++) lengths[b] = harness_range(h, 1, 20);
    struct layout packed = branched(h, prompt, branches, lengths), apart = branched(h, prompt, branches, lengths);
    struct setting s = set_up(h, "decoding", &packed);
    attend(h, &s, &packed);
    struct decoding d = decoding_of(h, &s, &packed, &apart);
    int64_t tokens[most_tokens] = {0}, cut = harness_range(h, 1, prompt);
    for (int64_t t = 0; t < prompt; t++) tokens[t] = t;
    struct attention_span first = apart.spans[0], rest = first; // the prompt in two pieces
    first.q_len = cut;
    rest.q_len = prompt - cut;
    rest.visible = cut + 1;
    decode_step(h, &d, tokens, &first, cut, 1);
    if (cut < prompt) decode_step(h, &d, tokens + cut, &rest, prompt - cut, 1);
    decode_branches(h, &d);
    h->ops->kv_cache_free(h->backend, &d.cache);
    h->ops->kv_cache_free(h->backend, &s.cache);
}

static void check_refusals(struct harness *h) {
    harness_case(h, "refusals");
    struct heads heads = {2, 1, 4};
    struct kv_cache *cache = NULL;
    harness_hold(h, h->ops->kv_cache_new(h->backend, &cache, 1, 16, (struct heads){3, 2, 4}) == BUG && !cache,
                 "key heads that do not divide the query heads");
    harness_ok(h, h->ops->kv_cache_new(h->backend, &cache, 1, 16, heads));
    struct tensor qkv = harness_dense(h, ELEMENT_F32, 1, 16, FILL_NORMAL, 1),
                  out = harness_dense(h, ELEMENT_F32, 1, 8, FILL_ZERO, 0);
    struct tensor angles = harness_dense(h, ELEMENT_F32, 1, 2, FILL_ZERO, 0), slots = harness_index(h, 1, 1);
    harness_set(h, slots, (int32_t[]){16});
    harness_hold(h, h->ops->rope(h->backend, qkv, angles, angles, heads, cache, 0, slots) == BUG,
                 "a slot beyond the cache");
    struct attention_span beyond = {.q_len = 1, .kv_begin = 10, .visible = 7};
    harness_hold(h, h->ops->attention(h->backend, out, qkv, heads, 1, cache, 0, &beyond, 1, (struct tensor){0}) == BUG,
                 "a span beyond the cache");
    harness_hold(h, h->ops->attention(h->backend, out, qkv, heads, 1, cache, 0, &beyond, 0, (struct tensor){0}) == BUG,
                 "a row without a span");
    h->ops->kv_cache_free(h->backend, &cache);
}

static void check(struct harness *h) {
    for (int i = 0; i < 10; i++) {
        check_rotation(h);
        check_attention(h, some_layout(h));
        check_gradient(h, some_layout(h));
        check_decoding(h);
    }
    struct layout l = branched(h, 900, 3, (int64_t[]){250, 256, 240}); // more than a block of keys, more than a batch
    check_attention(h, l);
    check_gradient(h, l);
    check_refusals(h);
}

// ---- timing ----

struct timed {
    struct harness *h;
    struct setting setting;
    struct tensor grad_out, gradient;
    const struct attention_span *spans;
    size_t count;
};

static status run_attention(void *context) {
    struct timed *t = context;
    const struct setting *s = &t->setting;
    return t->h->ops->attention(t->h->backend, s->out, s->qkv, s->heads, s->scale, s->cache, 0, t->spans, t->count,
                                s->lse);
}

static status run_gradient(void *context) {
    struct timed *t = context;
    const struct setting *s = &t->setting;
    return t->h->ops->attention_grad(t->h->backend, t->gradient, t->grad_out, s->out, s->qkv, s->heads, s->scale,
                                     s->cache, 0, s->slots, t->spans, t->count, s->lse);
}

static status run_rotate(void *context) {
    struct timed *t = context;
    const struct setting *s = &t->setting;
    return t->h->ops->rope(t->h->backend, s->qkv, s->cos, s->sin, s->heads, s->cache, 0, s->slots);
}

static double pairs_of(const struct attention_span *spans, size_t count) {
    double pairs = 0;
    for (size_t i = 0; i < count; i++) {
        const struct attention_span *s = &spans[i];
        double queries = (double)s->q_len, more = s->causal ? queries * (queries - 1) / 2 : 0;
        pairs += queries * (double)(s->prefix_len + s->visible) + more;
    }
    return pairs;
}

// Token t lies in row t of the cache.
static void time_layout(struct harness *h, const char *name, struct heads heads, int64_t tokens, int64_t rows,
                        const struct attention_span *spans, size_t count, bool all) {
    harness_case(h, "timing %s", name);
    int64_t columns = (heads.query + 2 * heads.key) * heads.size, outs = heads.query * heads.size;
    struct timed t = {.h = h, .spans = spans, .count = count};
    t.setting = (struct setting){.heads = heads,
                                 .scale = 1 / sqrtf((float)heads.size),
                                 .qkv = harness_dense(h, ELEMENT_F32, tokens, columns, FILL_NORMAL, 1),
                                 .cos = harness_dense(h, ELEMENT_F32, tokens, heads.size / 2, FILL_ZERO, 0),
                                 .sin = harness_dense(h, ELEMENT_F32, tokens, heads.size / 2, FILL_NORMAL, 1),
                                 .slots = harness_index(h, tokens, 1),
                                 .out = harness_dense(h, ELEMENT_F32, tokens, outs, FILL_ZERO, 0),
                                 .lse = harness_dense(h, ELEMENT_F32, tokens, heads.query, FILL_ZERO, 0)};
    int32_t *slots = harness_memory(h, (size_t)tokens * sizeof *slots);
    for (int64_t i = 0; i < tokens; i++) slots[i] = (int32_t)i;
    harness_set(h, t.setting.slots, slots);
    harness_ok(h, h->ops->kv_cache_new(h->backend, &t.setting.cache, 1, rows, heads));
    double flops = 4 * pairs_of(spans, count) * heads.query * heads.size;
    double bytes = 8.0 * (double)tokens * (double)columns;
    if (all) harness_time(h, 0, bytes, run_rotate, &t, "rope %s", name);
    harness_time(h, flops, 0, run_attention, &t, "attention %s", name);
    if (all) {
        t.grad_out = harness_dense(h, ELEMENT_F32, tokens, outs, FILL_NORMAL, 1);
        t.gradient = harness_dense(h, ELEMENT_F32, tokens, columns, FILL_ZERO, 0);
        harness_time(h, 2.5 * flops, 0, run_gradient, &t, "attention_grad %s", name);
    }
    h->ops->kv_cache_free(h->backend, &t.setting.cache);
}

static void time_group(struct harness *h, struct heads heads, const char *packed_name, const char *decoded_name) {
    enum { prompt = 1184, branch = 128, branches = 8 };
    struct attention_span packed[branches + 1] = {{.q_len = prompt, .visible = 1, .causal = true}}, decoded[branches];
    for (int64_t b = 0; b < branches; b++) {
        int64_t own = prompt + b * branch;
        packed[b + 1] = (struct attention_span){own, branch, 0, prompt, own, 1, true};
        decoded[b] = (struct attention_span){b, 1, 0, prompt, own, branch, false};
    }
    int64_t rows = prompt + branches * branch;
    time_layout(h, packed_name, heads, rows, rows, packed, branches + 1, true);
    time_layout(h, decoded_name, heads, branches, rows, decoded, branches, false);
}

static void time_all(struct harness *h) {
    time_group(h, (struct heads){12, 2, 64}, "1184 + 8x128, 12/2 heads of 64", "8 rows after 1184, 12/2 heads of 64");
    time_group(h, (struct heads){16, 2, 128}, "1184 + 8x128, 16/2 heads of 128",
               "8 rows after 1184, 16/2 heads of 128");
    struct attention_span windows[32], frame = {.q_len = 2048, .visible = 2048};
    for (int64_t w = 0; w < 32; w++)
        windows[w] = (struct attention_span){.q_begin = 64 * w, .q_len = 64, .kv_begin = 64 * w, .visible = 64};
    time_layout(h, "32 windows of 64, 16 heads of 80", (struct heads){16, 16, 80}, 2048, 2048, windows, 32, true);
    time_layout(h, "a frame of 2048, 16 heads of 80", (struct heads){16, 16, 80}, 2048, 2048, &frame, 1, true);
}

const struct suite suite_attention = {"attention", check, time_all};
