// logprob and its gradient, and sampling against the same rule written in double precision over sorted tokens.
#include "tests/ops/harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "shared/base/rng.h"

struct lm_head_case {
    int64_t rows, channels, vocabulary;
    enum element type;
    struct tensor in, plain, targets;
    struct weight *head;
};

static struct lm_head_case lm_head_set_up(struct harness *h, const char *what, double scale) {
    bool half = h->backend->ops->supports(h->backend, ELEMENT_BF16) == OK;
    struct lm_head_case s = {.rows = harness_range(h, 1, harness_unit(h) < 0.2 ? 150 : 12),
                             .channels = harness_range(h, 1, 70),
                             .vocabulary = harness_range(h, 2, harness_unit(h) < 0.3 ? 9000 : 300),
                             .type = half && harness_unit(h) < 0.5 ? ELEMENT_BF16 : ELEMENT_F32};
    harness_case(h, "%s: %lld rows, C=%lld, V=%lld, type %d", what, (long long)s.rows, (long long)s.channels,
                 (long long)s.vocabulary, s.type);
    s.in = harness_tensor(h, s.type, s.rows, s.channels, FILL_NORMAL, 1);
    s.plain = harness_dense(h, s.type, s.vocabulary, s.channels, FILL_NORMAL, scale);
    s.targets = harness_index(h, s.rows, s.vocabulary);
    harness_ok(h, h->ops->weight_new(h->backend, &s.head, s.plain, false));
    return s;
}

// The error allowed in a logit beyond float32's: those of its products are independent.
static double lm_head_product_error(const struct harness *h, const struct lm_head_case *s) {
    return 6 * h->product_error * sqrt((double)s->channels);
}

static double *lm_head_logits_of(struct harness *h, const struct lm_head_case *s, const float *in, const float *plain) {
    double *logits = harness_memory(h, (size_t)(s->rows * s->vocabulary) * sizeof *logits);
    for (int64_t row = 0; row < s->rows; row++) {
        for (int64_t v = 0; v < s->vocabulary; v++) {
            for (int64_t c = 0; c < s->channels; c++)
                logits[row * s->vocabulary + v] += (double)in[row * s->channels + c] * plain[v * s->channels + c];
        }
    }
    return logits;
}

static double lm_head_lse_of(const double *logits, int64_t count) {
    double most = logits[0], sum = 0;
    for (int64_t i = 1; i < count; i++) most = fmax(most, logits[i]);
    for (int64_t i = 0; i < count; i++) sum += exp(logits[i] - most);
    return most + log(sum);
}

static void lm_head_check_logprob(struct harness *h) {
    struct lm_head_case s = lm_head_set_up(h, "logprob", 0.5);
    struct tensor logprob = harness_dense(h, ELEMENT_F32, s.rows, 1, FILL_ZERO, 0),
                  sums = harness_dense(h, ELEMENT_F32, s.rows, 1, FILL_ZERO, 0);
    struct tensor row = harness_dense(h, ELEMENT_F32, 1, 1, FILL_ZERO, 0);
    harness_ok(h, h->ops->logprob(h->backend, logprob, sums, s.in, s.head, s.targets));
    int64_t place = harness_range(h, 0, s.rows - 1);
    harness_ok(h, h->ops->logprob(h->backend, row, (struct tensor){0}, tensor_rows(s.in, place, 1), s.head,
                                  tensor_rows(s.targets, place, 1)));
    harness_equal(h, "a row alone", row, tensor_rows(logprob, place, 1));
    double *want = NULL, *want_lse = NULL;
    if (h->first) {
        double *logits = lm_head_logits_of(h, &s, harness_values(h, s.in), harness_values(h, s.plain));
        int32_t *targets = harness_numbers(h, s.targets);
        want = harness_memory(h, (size_t)s.rows * sizeof *want);
        want_lse = harness_memory(h, (size_t)s.rows * sizeof *want);
        for (int64_t i = 0; i < s.rows; i++) {
            want_lse[i] = lm_head_lse_of(logits + i * s.vocabulary, s.vocabulary);
            want[i] = logits[i * s.vocabulary + targets[i]] - want_lse[i];
        }
    }
    harness_near(h, "logprob", logprob, want, 1e-5 + lm_head_product_error(h, &s), 1e-6);
    harness_near(h, "lse", sums, want_lse, 1e-5 + lm_head_product_error(h, &s), 1e-6);
    h->ops->weight_free(h->backend, &s.head);
}

// dlogits = dlogprob (onehot - softmax), and the two products of it, in double.
static void lm_head_reference_grad(struct harness *h, const struct lm_head_case *s, const float *dlogprob,
                                   double *grad_in, double *grad_lm_head) {
    float *in = harness_values(h, s->in), *plain = harness_values(h, s->plain);
    double *logits = lm_head_logits_of(h, s, in, plain);
    int32_t *targets = harness_numbers(h, s->targets);
    for (int64_t row = 0; row < s->rows; row++) {
        double *row_logits = logits + row * s->vocabulary, lse = lm_head_lse_of(row_logits, s->vocabulary);
        for (int64_t v = 0; v < s->vocabulary; v++) {
            double g = dlogprob[row] * ((v == targets[row]) - exp(row_logits[v] - lse));
            for (int64_t c = 0; c < s->channels; c++) {
                grad_in[row * s->channels + c] += g * plain[v * s->channels + c];
                grad_lm_head[v * s->channels + c] += g * in[row * s->channels + c];
            }
        }
    }
}

static void lm_head_check_logprob_grad(struct harness *h) {
    struct lm_head_case s = lm_head_set_up(h, "logprob_grad", 0.5);
    struct tensor logprob = harness_dense(h, ELEMENT_F32, s.rows, 1, FILL_ZERO, 0),
                  sums = harness_dense(h, ELEMENT_F32, s.rows, 1, FILL_ZERO, 0);
    struct tensor dlogprob = harness_dense(h, ELEMENT_F32, s.rows, 1, FILL_NORMAL, 1);
    struct tensor grad_in = harness_tensor(h, s.type, s.rows, s.channels, FILL_NORMAL, 1);
    struct tensor grad_lm_head = harness_tensor(h, harness_float_type(h), s.vocabulary, s.channels, FILL_NORMAL, 1);
    float *before = harness_values(h, grad_lm_head);
    harness_ok(h, h->ops->logprob(h->backend, logprob, sums, s.in, s.head, s.targets));
    harness_ok(h, h->ops->logprob_grad(h->backend, grad_in, grad_lm_head, s.in, s.head, s.targets, sums, dlogprob));
    double *want = NULL, *want_head = NULL;
    if (h->first) {
        want = harness_memory(h, (size_t)(s.rows * s.channels) * sizeof *want);
        want_head = harness_memory(h, (size_t)(s.vocabulary * s.channels) * sizeof *want);
        for (int64_t i = 0; i < s.vocabulary * s.channels; i++) want_head[i] = before[i];
        lm_head_reference_grad(h, &s, harness_values(h, dlogprob), want, want_head);
    }
    // dlogits are rounded to the type of the products
    double coarse = s.type == ELEMENT_BF16 ? 2e-2 : 2e-5 + lm_head_product_error(h, &s);
    harness_near(h, "grad_in", grad_in, want, coarse, coarse);
    harness_near(h, "grad_lm_head", grad_lm_head, want_head, coarse * sqrt((double)s.rows), coarse);
    h->ops->weight_free(h->backend, &s.head);
}

// A bfloat16 gradient of more rows than a block is the float32 one, rounded once.
static void lm_head_check_rounded_grad(struct harness *h) {
    enum { rows = 1100, channels = 5, vocabulary = 37 };
    harness_case(h, "logprob_grad of %d rows in bfloat16", rows);
    struct tensor in = harness_dense(h, ELEMENT_F32, rows, channels, FILL_NORMAL, 1),
                  plain = harness_dense(h, ELEMENT_F32, vocabulary, channels, FILL_NORMAL, 0.5);
    struct tensor targets = harness_index(h, rows, vocabulary),
                  logprob = harness_dense(h, ELEMENT_F32, rows, 1, FILL_ZERO, 0),
                  sums = harness_dense(h, ELEMENT_F32, rows, 1, FILL_ZERO, 0),
                  dlogprob = harness_dense(h, ELEMENT_F32, rows, 1, FILL_NORMAL, 1);
    struct tensor grad_in = harness_dense(h, ELEMENT_F32, rows, channels, FILL_ZERO, 0);
    struct tensor fine = harness_dense(h, ELEMENT_F32, vocabulary, channels, FILL_ZERO, 0),
                  coarse = harness_dense(h, ELEMENT_BF16, vocabulary, channels, FILL_ZERO, 0);
    struct weight *head;
    harness_ok(h, h->ops->weight_new(h->backend, &head, plain, false));
    harness_ok(h, h->ops->logprob(h->backend, logprob, sums, in, head, targets));
    harness_ok(h, h->ops->logprob_grad(h->backend, grad_in, fine, in, head, targets, sums, dlogprob));
    harness_ok(h, h->ops->logprob_grad(h->backend, grad_in, coarse, in, head, targets, sums, dlogprob));
    harness_near(h, "grad_lm_head", coarse, harness_doubles(h, fine), 1e-5, 1e-6);
    h->ops->weight_free(h->backend, &head);
}

// ---- sampling ----

// Whether `token` may be sampled: it is among the kept tokens, or at their boundary within rounding.
static bool lm_head_is_allowed(const double *logits, int64_t count, const struct sampling *how, int32_t token) {
    struct ranked *order = malloc((size_t)count * sizeof *order);
    if (!order) exit(69);
    for (int64_t i = 0; i < count; i++) order[i] = (struct ranked){.logit = logits[i], .token = (int32_t)i};
    int64_t kept = sampling_order(order, count, *how);
    if (how->temperature <= 0) kept = 1;
    double least = order[kept - 1].logit - 1e-4 * (1 + fabs(order[kept - 1].logit));
    if (how->top_p < 1 && kept < count) least = fmin(least, order[kept].logit - 1e-4); // the bound within rounding
    free(order);
    return logits[token] >= least;
}

// A random row of a batch; its random number is sometimes close to 0.
static struct decode_row lm_head_random_row(struct harness *h, int64_t vocabulary) {
    const struct sampling how = {.temperature = harness_unit(h) < 0.2 ? 0 : (float)(0.1 + 1.5 * harness_unit(h)),
                                 .top_p = harness_unit(h) < 0.3 ? 1 : (float)harness_unit(h),
                                 .top_k = harness_unit(h) < 0.4 ? 0 : (int)harness_range(h, 1, vocabulary)};
    struct decode_row row = {.max_len = 1, .sampling = how};
    if (harness_unit(h) < 0.1) {
        row.key = sampling_key(0, 1e-3);
    } else {
        row.key = (uint64_t)(harness_unit(h) * 0x1p53);
        row.completion = (uint64_t)harness_range(h, 0, 9);
        row.len = (int32_t)harness_range(h, 0, 20);
        row.max_len = row.len + 1;
    }
    return row;
}

static void lm_head_check_sample(struct harness *h) {
    struct lm_head_case s = lm_head_set_up(h, "sample", harness_unit(h) < 0.5 ? 0.1 : 1);
    struct decode_row *rows = harness_memory(h, (size_t)s.rows * sizeof *rows);
    for (int64_t i = 0; i < s.rows; i++) rows[i] = lm_head_random_row(h, s.vocabulary);
    int32_t *numbers = harness_memory(h, (size_t)s.rows * sizeof *numbers);
    float *values = harness_memory(h, (size_t)s.rows * sizeof *values);
    struct tensor tokens = harness_index(h, s.rows, s.vocabulary),
                  logprobs = harness_dense(h, ELEMENT_F32, s.rows, 1, FILL_ZERO, 0);
    struct tensor score = harness_dense(h, ELEMENT_F32, s.rows, 1, FILL_ZERO, 0);
    sampling_step(h, s.in, s.head, rows, numbers, values);
    harness_set(h, tokens, numbers);
    harness_set(h, logprobs, values);
    harness_same(h, "tokens", tokens);
    harness_ok(h, h->ops->logprob(h->backend, score, (struct tensor){0}, s.in, s.head, tokens));
    harness_equal(h, "log-probabilities from sample and from logprob", logprobs, score);
    if (h->first) {
        double *logits = lm_head_logits_of(h, &s, harness_values(h, s.in), harness_values(h, s.plain));
        for (int64_t i = 0; i < s.rows; i++) {
            const struct sampling *how = &rows[i].sampling;
            bool allowed = lm_head_is_allowed(logits + i * s.vocabulary, s.vocabulary, how, numbers[i]);
            harness_hold(h, allowed, "row %lld: token %d is outside temperature %g, top-k %d, top-p %g", (long long)i,
                         numbers[i], how->temperature, how->top_k, how->top_p);
        }
    }
    h->ops->weight_free(h->backend, &s.head);
}

enum { frequency_draws = 4000 };

// Keys whose random numbers are evenly spread: key i gives one close to (i + 0.5) / frequency_draws.
static const uint64_t *lm_head_even_keys(void) {
    static uint64_t keys[frequency_draws];
    static bool found[frequency_draws];
    static int missing = frequency_draws;
    for (uint64_t key = 0; missing; key++) {
        double uniform = rng_uniform(key, 0, 0) * frequency_draws;
        int place = (int)uniform;
        if (found[place] || fabs(uniform - place - 0.5) > 0.004) continue;
        keys[place] = key;
        found[place] = true;
        missing--;
    }
    return keys;
}

// Samples the same row many times with evenly spread random numbers: each token must come as often as it is probable.
// Where a draw takes long, every fifth of the numbers is drawn with.
static void lm_head_check_frequencies(struct harness *h) {
    enum { part = 200, vocabulary = 40 };
    const int apart = h->cpu ? 1 : 5, draws = frequency_draws / apart;
    const struct sampling how = {.temperature = 0.8f, .top_p = 0.9f, .top_k = 30};
    harness_case(h, "frequencies");
    float logits[vocabulary], *logprobs = harness_memory(h, (size_t)draws * sizeof *logprobs);
    int32_t *numbers = harness_memory(h, (size_t)draws * sizeof *numbers);
    uint64_t keys[part];
    struct ranked order[vocabulary];
    for (int i = 0; i < vocabulary; i++) {
        logits[i] = (float)(1.5 * harness_normal(h));
        order[i] = (struct ranked){.logit = logits[i], .token = i};
    }
    for (int i = 0; i < draws; i += part) { // a batch of all draws would take long to fill
        for (int j = 0; j < part; j++) keys[j] = lm_head_even_keys()[(i + j) * apart + apart / 2];
        sampling_draw(h, logits, vocabulary, how, keys, part, numbers + i, logprobs + i);
    }
    int seen[vocabulary] = {0};
    for (int i = 0; i < draws; i++) seen[numbers[i]]++;
    double sum = 0;
    const int64_t kept = sampling_order(order, vocabulary, how);
    for (int64_t i = 0; i < kept; i++) sum += order[i].weight;
    for (int i = 0; i < vocabulary; i++) {
        double expected = i < kept ? draws * order[i].weight / sum : 0;
        harness_hold(h, fabs(seen[order[i].token] - expected) <= 1.01, "token %d was sampled %d times instead of %.1f",
                     order[i].token, seen[order[i].token], expected);
    }
}

static void lm_head_check_refusals(struct harness *h) {
    harness_case(h, "refusals");
    struct tensor plain = harness_dense(h, ELEMENT_F32, 6, 8, FILL_NORMAL, 1),
                  in = harness_dense(h, ELEMENT_F32, 2, 8, FILL_NORMAL, 1),
                  grad_in = harness_dense(h, ELEMENT_F32, 2, 8, FILL_ZERO, 0),
                  logprob = harness_dense(h, ELEMENT_F32, 2, 1, FILL_ZERO, 0);
    struct tensor lse = harness_dense(h, ELEMENT_F32, 2, 1, FILL_NORMAL, 1), none = {0};
    struct tensor targets = harness_index(h, 2, 6);
    struct weight *head;
    harness_ok(h, h->ops->weight_new(h->backend, &head, plain, false));
    harness_set(h, targets, (int32_t[]){1, 6});
    harness_broken(h, h->ops->logprob(h->backend, logprob, none, in, head, targets), "a target beyond the vocabulary");
    harness_set(h, targets, (int32_t[]){-1, 2});
    harness_broken(h, h->ops->logprob_grad(h->backend, grad_in, none, in, head, targets, lse, logprob),
                   "a negative target");
    h->ops->weight_free(h->backend, &head);
}

static void lm_head_check(struct harness *h) {
    for (int i = 0; i < harness_repeats(h, 12); i++) {
        lm_head_check_logprob(h);
        lm_head_check_logprob_grad(h);
        lm_head_check_sample(h);
    }
    lm_head_check_rounded_grad(h);
    lm_head_check_frequencies(h);
    lm_head_check_refusals(h);
}

// ---- timing ----

static void lm_head_time_type(struct harness *h, enum element type) {
    enum { rows = 1024, vocabulary = 32000, channels = 768 };
    const char *name = type == ELEMENT_BF16 ? "bf16" : "f32";
    harness_case(h, "timing");
    const struct tensor in = harness_dense(h, type, rows, channels, FILL_NORMAL, 1);
    const struct tensor targets = harness_index(h, rows, vocabulary);
    const struct tensor logprob = harness_dense(h, ELEMENT_F32, rows, 1, FILL_ZERO, 0);
    const struct tensor sums = harness_dense(h, ELEMENT_F32, rows, 1, FILL_ZERO, 0);
    const struct tensor dlogprob = harness_dense(h, ELEMENT_F32, rows, 1, FILL_NORMAL, 1);
    const struct tensor grad_in = harness_dense(h, type, rows, channels, FILL_ZERO, 0);
    const struct tensor grad_lm_head = harness_dense(h, ELEMENT_F32, vocabulary, channels, FILL_ZERO, 0);
    struct decode_batch *batch = NULL;
    struct weight *head = NULL;
    struct tensor plain = harness_dense(h, type, vocabulary, channels, FILL_NORMAL, 0.05);
    double flops = 2.0 * rows * vocabulary * channels;
    harness_ok(h, h->ops->decode_batch_new(h->backend, &batch, 8, (struct heads){2, 1, 4}, NULL, 0));
    for (int i = 0; i < 8; i++) {
        const struct decode_row row = {.max_len = 100000, .sampling = {1, 0.95f, 50}, .completion = (uint64_t)i};
        harness_ok(h, h->ops->decode_batch_set(h->backend, batch, i, &row));
    }
    harness_ok(h, h->ops->weight_new(h->backend, &head, plain, true));
    HARNESS_TIME(h, flops, 0, h->ops->logprob(h->backend, logprob, sums, in, head, targets),
                 "%s logprob 1024x768x32000", name);
    HARNESS_TIME(h, flops / 128, 0, h->ops->sample(h->backend, batch, tensor_rows(in, 0, 8), head),
                 "%s sample 8x768x32000", name);
    h->ops->decode_batch_free(h->backend, &batch);
    h->ops->weight_free(h->backend, &head);
    harness_ok(h, h->ops->weight_new(h->backend, &head, plain, false));
    HARNESS_TIME(h, 3 * flops, 0,
                 h->ops->logprob_grad(h->backend, grad_in, grad_lm_head, in, head, targets, sums, dlogprob),
                 "%s logprob_grad 1024x768x32000", name);
    h->ops->weight_free(h->backend, &head);
}

static void lm_head_time_all(struct harness *h) {
    lm_head_time_type(h, ELEMENT_F32);
    if (h->backend->ops->supports(h->backend, ELEMENT_BF16) == OK) lm_head_time_type(h, ELEMENT_BF16);
}

const struct suite suite_lm_head = {"lm_head", lm_head_check, lm_head_time_all};
