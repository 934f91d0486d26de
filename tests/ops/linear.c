// Products: against a double-precision reference; prepacked against not prepacked; a row alone against the same row
// among others; chunks of a weight's rows against the whole.
#include "tests/ops/harness.h"

#include <math.h>
#include <stdio.h>

// want[M,N] = a[M,L] b[N,L]^T. `s` holds the strides of a's rows and columns, then of b's, so that one loop serves
// every transpose.
static double *linear_product(struct harness *h, const float *a, const float *b, int64_t m, int64_t n, int64_t l,
                              const int64_t *s) {
    double *want = harness_memory(h, (size_t)(m * n) * sizeof *want);
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t k = 0; k < l; k++) sum += (double)a[i * s[0] + k * s[1]] * b[j * s[2] + k * s[3]];
            want[i * n + j] = sum;
        }
    }
    return want;
}

struct linear_case {
    int64_t m, n, l;
    enum element type, out, grad;
    bool bias, add;
};

// The error allowed in a float32 sum of `terms` products of standard normal numbers. A chain's partial sums grow as the
// square root of their number, so its rounding errors add up to 2^-24 / sqrt(3) * terms / sqrt(2) on average. The bound
// is eight times that, and for short sums 3e-6 times the square root of their number. Errors of products are
// independent.
static double linear_bound(const struct harness *h, int64_t terms) {
    return fmax(3e-6 * sqrt((double)terms), 2e-7 * (double)terms) + 1e-6 + 6 * h->product_error * sqrt((double)terms);
}

// Adds `before` to a product of `type`. Returns the error allowed for it: a product of bfloat16 may be rounded before
// it is added to bfloat16.
static double linear_add(double *product, const float *before, struct tensor out, enum element type) {
    double largest = 0;
    for (int64_t i = 0; i < out.rows * out.columns; i++) {
        largest = fmax(largest, fabs(product[i]));
        product[i] += before[i];
    }
    return type == ELEMENT_BF16 && out.type == ELEMENT_BF16 ? largest * 0x1p-8 : 0;
}

// `out` is in W^T + bias (or none), where `plain` is W.
static void linear_near(struct harness *h, struct tensor out, struct tensor in, struct tensor plain,
                        struct tensor bias) {
    const int64_t n = plain.rows, l = plain.columns;
    double *want = NULL;
    if (h->first) {
        const float *add = bias.buffer ? harness_values(h, bias) : NULL;
        want =
            linear_product(h, harness_values(h, in), harness_values(h, plain), in.rows, n, l, (int64_t[]){l, 1, l, 1});
        for (int64_t i = 0; add && i < in.rows * n; i++) want[i] += add[i % n];
    }
    harness_near(h, "out", out, want, linear_bound(h, l), 1e-5 + h->product_error);
}

static void linear_check_forward(struct harness *h, const struct linear_case *s, struct tensor plain, struct tensor in,
                                 struct weight *fresh) {
    struct tensor out = harness_tensor(h, s->out, s->m, s->n, FILL_ZERO, 0),
                  again = harness_dense(h, s->out, s->m, s->n, FILL_ZERO, 0);
    struct tensor bias = s->bias ? harness_dense(h, s->type, 1, s->n, FILL_NORMAL, 1) : (struct tensor){0};
    struct weight *prepacked;
    harness_ok(h, h->ops->weight_new(h->backend, &prepacked, plain, true));
    harness_ok(h, h->ops->linear(h->backend, out, in, fresh, bias, false));
    harness_ok(h, h->ops->linear(h->backend, again, in, prepacked, bias, false));
    harness_equal(h, "prepacked and fresh weights", again, out);
    for (int i = 0; i < 3 && s->m > 1; i++) { // a few rows, from a random place
        int64_t rows = harness_range(h, 1, s->m < 20 ? s->m : 20), first = harness_range(h, 0, s->m - rows);
        struct tensor part = tensor_rows(again, first, rows);
        harness_ok(h, h->ops->zero(h->backend, part));
        harness_ok(h, h->ops->linear(h->backend, part, tensor_rows(in, first, rows), prepacked, bias, false));
        harness_equal(h, "rows alone and in a batch", part, tensor_rows(out, first, rows));
    }
    h->ops->weight_free(h->backend, &prepacked);
    linear_near(h, out, in, plain, bias);
}

// A weight that was not prepacked follows its matrix.
static void linear_check_changed_weight(struct harness *h, const struct linear_case *s, struct tensor plain,
                                        struct tensor in, struct weight *fresh) {
    struct tensor other = harness_tensor(h, s->type, s->n, s->l, FILL_NORMAL, 1),
                  before = harness_dense(h, s->type, s->n, s->l, FILL_ZERO, 0);
    struct tensor out = harness_dense(h, ELEMENT_F32, s->m, s->n, FILL_ZERO, 0),
                  want = harness_dense(h, ELEMENT_F32, s->m, s->n, FILL_ZERO, 0);
    struct weight *changed;
    harness_ok(h, h->ops->weight_new(h->backend, &changed, other, false));
    harness_ok(h, h->ops->linear(h->backend, want, in, changed, (struct tensor){0}, false));
    harness_ok(h, h->ops->copy(h->backend, before, plain));
    harness_ok(h, h->ops->copy(h->backend, plain, other));
    harness_ok(h, h->ops->linear(h->backend, out, in, fresh, (struct tensor){0}, false));
    harness_ok(h, h->ops->copy(h->backend, plain, before));
    harness_equal(h, "a weight whose matrix has changed", out, want);
    h->ops->weight_free(h->backend, &changed);
}

// A product that is added: like the gradient of an input, with other rows or alone, prepacked or fresh, and to columns
// of wider rows.
static void linear_check_added(struct harness *h, const struct linear_case *s, struct tensor plain, struct tensor in,
                               struct weight *fresh) {
    struct tensor none = {0}, wide = harness_dense(h, s->out, s->m, s->n + 8, FILL_NORMAL, 1);
    struct tensor out = tensor_columns(wide, 8, s->n), start = harness_dense(h, s->out, s->m, s->n, FILL_ZERO, 0),
                  again = harness_dense(h, s->out, s->m, s->n, FILL_ZERO, 0);
    struct weight *prepacked;
    harness_ok(h, h->ops->copy(h->backend, start, out));
    harness_ok(h, h->ops->copy(h->backend, again, out));
    harness_ok(h, h->ops->weight_new(h->backend, &prepacked, plain, true));
    harness_ok(h, h->ops->linear(h->backend, out, in, fresh, none, true));
    harness_ok(h, h->ops->linear(h->backend, again, in, prepacked, none, true));
    harness_equal(h, "added by prepacked and fresh weights", again, out);
    int64_t rows = harness_range(h, 1, s->m < 20 ? s->m : 20), first = harness_range(h, 0, s->m - rows);
    struct tensor part = tensor_rows(again, first, rows);
    harness_ok(h, h->ops->copy(h->backend, part, tensor_rows(start, first, rows)));
    harness_ok(h, h->ops->linear(h->backend, part, tensor_rows(in, first, rows), prepacked, none, true));
    harness_equal(h, "rows that are added to alone and in a batch", part, tensor_rows(out, first, rows));
    h->ops->weight_free(h->backend, &prepacked);
    double *want = NULL, rounded = 0;
    if (h->first) {
        want = linear_product(h, harness_values(h, in), harness_values(h, plain), s->m, s->n, s->l,
                              (int64_t[]){s->l, 1, s->l, 1});
        rounded = linear_add(want, harness_values(h, start), out, s->type);
    }
    harness_near(h, "out + product", out, want, rounded + linear_bound(h, s->l), 1e-5 + h->product_error);
}

static void linear_check_input_gradient(struct harness *h, const struct linear_case *s, struct tensor plain,
                                        struct weight *fresh) {
    struct tensor grad_out = harness_tensor(h, s->type, s->m, s->n, FILL_NORMAL, 1);
    struct tensor out = harness_tensor(h, s->out, s->m, s->l, s->add ? FILL_NORMAL : FILL_ZERO, 1);
    float *before = harness_values(h, out);
    struct tensor row = harness_dense(h, s->out, 1, s->l, FILL_ZERO, 1);
    int64_t place = harness_range(h, 0, s->m - 1);
    harness_ok(h, h->ops->copy(h->backend, row, tensor_rows(out, place, 1)));
    harness_ok(h, h->ops->linear_grad_input(h->backend, out, grad_out, fresh, s->add));
    harness_ok(h, h->ops->linear_grad_input(h->backend, row, tensor_rows(grad_out, place, 1), fresh, s->add));
    harness_equal(h, "a row's gradient alone", row, tensor_rows(out, place, 1));
    double *want = NULL, rounded = 0;
    if (h->first) {
        want = linear_product(h, harness_values(h, grad_out), harness_values(h, plain), s->m, s->l, s->n,
                              (int64_t[]){s->n, 1, 1, s->l});
        if (s->add) rounded = linear_add(want, before, out, s->type);
    }
    harness_near(h, "grad_in", out, want, rounded + linear_bound(h, s->n), 1e-5 + h->product_error);
}

static void linear_check_weight_gradient(struct harness *h, const struct linear_case *s, struct tensor in) {
    struct tensor grad_out = harness_tensor(h, s->type, s->m, s->n, FILL_NORMAL, 1);
    struct tensor out = harness_tensor(h, s->grad, s->n, s->l, FILL_NORMAL, 1);
    struct tensor bias = s->bias ? harness_dense(h, ELEMENT_F32, 1, s->n, FILL_NORMAL, 1) : (struct tensor){0};
    float *before = harness_values(h, out), *bias_before = s->bias ? harness_values(h, bias) : NULL;
    harness_ok(h, h->ops->linear_grad_weight(h->backend, out, bias, grad_out, in));
    double *want = NULL, *sums = NULL, rounded = 0;
    if (h->first) {
        float *values = harness_values(h, grad_out);
        want = linear_product(h, values, harness_values(h, in), s->n, s->l, s->m, (int64_t[]){1, s->n, 1, s->l});
        rounded = linear_add(want, before, out, s->type);
        sums = harness_memory(h, (size_t)s->n * sizeof *sums);
        for (int64_t i = 0; s->bias && i < s->m * s->n; i++) sums[i % s->n] += values[i];
        for (int64_t i = 0; s->bias && i < s->n; i++) sums[i] += bias_before[i];
    }
    harness_near(h, "grad_weight", out, want, rounded + linear_bound(h, s->m), 1e-5 + h->product_error);
    if (s->bias) harness_near(h, "grad_bias", bias, sums, 1e-5 * sqrt((double)s->m), 1e-5);
}

static void linear_check_shape(struct harness *h, const struct linear_case *s) {
    static const char *const names[] = {"f32", "bf16"};
    harness_case(h, "M=%lld N=%lld L=%lld %s, out %s, grad %s%s%s", (long long)s->m, (long long)s->n, (long long)s->l,
                 names[s->type], names[s->out], names[s->grad], s->bias ? ", bias" : "", s->add ? ", add" : "");
    struct tensor plain = harness_tensor(h, s->type, s->n, s->l, FILL_NORMAL, 1);
    struct tensor in = harness_tensor(h, s->type, s->m, s->l, FILL_NORMAL, 1);
    struct weight *fresh;
    harness_ok(h, h->ops->weight_new(h->backend, &fresh, plain, false));
    linear_check_forward(h, s, plain, in, fresh);
    if (s->m < 100) linear_check_changed_weight(h, s, plain, in, fresh);
    if (s->add) linear_check_added(h, s, plain, in, fresh);
    linear_check_input_gradient(h, s, plain, fresh);
    linear_check_weight_gradient(h, s, in);
    h->ops->weight_free(h->backend, &fresh);
}

// ---- the same bits in every way ----

// The same values in rows that are `gap` elements farther apart, with others between them.
static struct tensor linear_apart(struct harness *h, struct tensor dense, int64_t gap) {
    struct tensor wide = harness_dense(h, dense.type, dense.rows, dense.columns + gap, FILL_NORMAL, 1);
    struct tensor out = tensor_columns(wide, 0, dense.columns);
    harness_ok(h, h->ops->copy(h->backend, out, dense));
    return out;
}

// A backend may compute few rows, or rows that are not aligned, in other ways: all of them give the same bits.
static void linear_check_ways(struct harness *h, int64_t m, int64_t n, int64_t l, enum element type) {
    static const int64_t few[] = {1, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65};
    harness_case(h, "M=%lld N=%lld L=%lld %s in several ways", (long long)m, (long long)n, (long long)l,
                 type == ELEMENT_F32 ? "f32" : "bf16");
    struct tensor plain = harness_dense(h, type, n, l, FILL_NORMAL, 1),
                  in = harness_dense(h, type, m, l, FILL_NORMAL, 1);
    struct tensor bias = harness_dense(h, type, 1, n, FILL_NORMAL, 1);
    struct tensor out = harness_dense(h, type, m, n, FILL_ZERO, 0), again = harness_dense(h, type, m, n, FILL_ZERO, 0);
    struct tensor far = linear_apart(h, in, 1);
    struct weight *weight, *weight_apart;
    harness_ok(h, h->ops->weight_new(h->backend, &weight, plain, false));
    harness_ok(h, h->ops->weight_new(h->backend, &weight_apart, linear_apart(h, plain, 3), false));
    harness_ok(h, h->ops->linear(h->backend, out, in, weight, bias, false));
    linear_near(h, out, in, plain, bias);
    for (size_t i = 0; i < sizeof few / sizeof *few && few[i] <= m; i++) {
        struct tensor part = tensor_rows(again, m - few[i], few[i]);
        harness_ok(h, h->ops->linear(h->backend, part, tensor_rows(in, m - few[i], few[i]), weight, bias, false));
        harness_equal(h, "the last rows alone", part, tensor_rows(out, m - few[i], few[i]));
    }
    harness_ok(h, h->ops->linear(h->backend, again, far, weight, bias, false));
    harness_equal(h, "rows that are apart", again, out);
    harness_ok(h, h->ops->linear(h->backend, again, in, weight_apart, bias, false));
    harness_equal(h, "a weight whose rows are apart", again, out);
    struct weight *weight_near;
    struct tensor near = linear_apart(h, in, 4);
    harness_ok(h, h->ops->weight_new(h->backend, &weight_near, linear_apart(h, plain, 4), false));
    harness_ok(h, h->ops->linear(h->backend, again, near, weight_near, bias, false));
    harness_equal(h, "rows that begin at multiples of 8 bytes", again, out);
    struct tensor grad_in = harness_dense(h, type, m, l, FILL_ZERO, 0),
                  other = harness_dense(h, type, m, l, FILL_ZERO, 0);
    harness_ok(h, h->ops->linear_grad_input(h->backend, grad_in, out, weight, false));
    harness_ok(h, h->ops->linear_grad_input(h->backend, other, linear_apart(h, out, 5), weight_apart, false));
    harness_equal(h, "gradients of rows that are apart", other, grad_in);
    struct tensor grad_weight = harness_dense(h, ELEMENT_F32, n, l, FILL_ZERO, 0),
                  grad_apart = harness_dense(h, ELEMENT_F32, n, l, FILL_ZERO, 0);
    harness_ok(h, h->ops->linear_grad_weight(h->backend, grad_weight, (struct tensor){0}, out, in));
    harness_ok(h, h->ops->linear_grad_weight(h->backend, grad_apart, (struct tensor){0}, linear_apart(h, out, 5), far));
    harness_equal(h, "a weight's gradient from rows that are apart", grad_apart, grad_weight);
    struct tensor grad_near = harness_dense(h, ELEMENT_F32, n, l, FILL_ZERO, 0);
    harness_ok(h, h->ops->linear_grad_input(h->backend, other, linear_apart(h, out, 4), weight_near, false));
    harness_equal(h, "gradients of rows that begin at multiples of 8 bytes", other, grad_in);
    harness_ok(h, h->ops->linear_grad_weight(h->backend, grad_near, (struct tensor){0}, linear_apart(h, out, 4), near));
    harness_equal(h, "a weight's gradient from rows that begin at multiples of 8 bytes", grad_near, grad_weight);
    h->ops->weight_free(h->backend, &weight_near);
    h->ops->weight_free(h->backend, &weight);
    h->ops->weight_free(h->backend, &weight_apart);
}

// One more and one less than tiles have, and many outputs.
static void linear_check_all_ways(struct harness *h) {
    static const int64_t shapes[][3] = {{65, 8, 8},     {127, 129, 24}, {128, 128, 32},  {129, 127, 40}, {130, 136, 64},
                                        {100, 264, 72}, {257, 16, 136}, {70, 120, 1000}, {66, 8200, 16}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (enum element type = ELEMENT_F32; type <= ELEMENT_BF16; type++) {
            if (shapes[i][0] * shapes[i][1] * shapes[i][2] > h->most_steps / 2) continue;
            if (h->backend->ops->supports(h->backend, type) == OK)
                linear_check_ways(h, shapes[i][0], shapes[i][1], shapes[i][2], type);
        }
    }
}

// An output that is larger than the caches has the bits of its parts.
static void linear_check_large(struct harness *h, enum element type) {
    enum { rows = 2050, columns = 1088, part = 410 };
    harness_case(h, "%d x %d outputs, type %d", rows, columns, (int)type);
    struct tensor plain = harness_dense(h, type, columns, 8, FILL_NORMAL, 1),
                  in = harness_dense(h, type, rows, 8, FILL_NORMAL, 1);
    struct tensor out = harness_dense(h, type, rows, columns, FILL_ZERO, 0),
                  again = harness_tensor(h, type, rows, columns, FILL_ZERO, 0);
    struct weight *weight;
    harness_ok(h, h->ops->weight_new(h->backend, &weight, plain, false));
    harness_ok(h, h->ops->linear(h->backend, out, in, weight, (struct tensor){0}, false));
    for (int64_t row = 0; row < rows; row += part)
        harness_ok(h, h->ops->linear(h->backend, tensor_rows(again, row, part), tensor_rows(in, row, part), weight,
                                     (struct tensor){0}, false));
    harness_equal(h, "an output and its parts", again, out);
    h->ops->weight_free(h->backend, &weight);
}

// Few rows and so many outputs that a GPU's blocks are larger: the bits of the rows alone and of some outputs alone.
static void linear_check_many_outputs(struct harness *h) {
    enum { rows = 33, columns = 8200, inner = 8, few = 200 };
    static const int64_t parts[] = {1, 17};
    harness_case(h, "%d x %d outputs of bfloat16", rows, columns);
    struct tensor plain = harness_dense(h, ELEMENT_BF16, columns, inner, FILL_NORMAL, 1),
                  in = harness_dense(h, ELEMENT_BF16, rows, inner, FILL_NORMAL, 1), none = {0};
    struct tensor out = harness_dense(h, ELEMENT_BF16, rows, columns, FILL_ZERO, 0),
                  again = harness_dense(h, ELEMENT_BF16, rows, columns, FILL_ZERO, 0),
                  narrow = harness_dense(h, ELEMENT_BF16, rows, few, FILL_ZERO, 0);
    struct weight *weight, *last;
    harness_ok(h, h->ops->weight_new(h->backend, &weight, plain, false));
    harness_ok(h, h->ops->weight_new(h->backend, &last, tensor_rows(plain, columns - few, few), false));
    harness_ok(h, h->ops->linear(h->backend, out, in, weight, none, false));
    harness_ok(h, h->ops->linear(h->backend, narrow, in, last, none, false));
    harness_equal(h, "the last outputs alone", narrow, tensor_columns(out, columns - few, few));
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct tensor part = tensor_rows(again, 0, parts[i]);
        harness_ok(h, h->ops->linear(h->backend, part, tensor_rows(in, 0, parts[i]), weight, none, false));
        harness_equal(h, "the first rows alone", part, tensor_rows(out, 0, parts[i]));
    }
    linear_near(h, out, in, plain, none);
    h->ops->weight_free(h->backend, &last);
    h->ops->weight_free(h->backend, &weight);
}

static void linear_check_refusals(struct harness *h) {
    harness_case(h, "refusals");
    struct tensor plain = harness_dense(h, ELEMENT_F32, 6, 8, FILL_NORMAL, 1),
                  in = harness_dense(h, ELEMENT_F32, 3, 8, FILL_NORMAL, 1);
    struct tensor out = harness_dense(h, ELEMENT_F32, 3, 6, FILL_ZERO, 0);
    struct weight *prepacked, *none;
    harness_ok(h, h->ops->weight_new(h->backend, &prepacked, plain, true));
    harness_hold(h, h->ops->linear_grad_input(h->backend, in, out, prepacked, false) == BUG,
                 "a prepacked weight's gradient");
    harness_hold(h, h->ops->linear(h->backend, in, out, prepacked, (struct tensor){0}, false) == BUG,
                 "an input of another length");
    harness_hold(h, h->ops->linear(h->backend, out, in, prepacked, tensor_rows(out, 0, 1), true) == BUG,
                 "a bias of a product that is added");
    harness_ok(h, h->ops->linear(h->backend, tensor_rows(out, 0, 0), tensor_rows(in, 0, 0), prepacked,
                                 (struct tensor){0}, false));
    h->ops->weight_free(h->backend, &prepacked);
    harness_hold(h, !prepacked, "a freed weight's pointer");
    h->ops->weight_free(h->backend, &prepacked);
    plain = harness_dense(h, ELEMENT_F16, 6, 8, FILL_NORMAL, 1);
    harness_hold(h, h->ops->weight_new(h->backend, &none, plain, true) == UNAVAILABLE && !none, "half products");
}

static void linear_check(struct harness *h) {
    linear_check_refusals(h);
    linear_check_all_ways(h);
    if (h->backend->ops->supports(h->backend, ELEMENT_BF16) == OK) linear_check_many_outputs(h);
    static const int64_t widths[] = {1, 2, 5, 16, 17, 31, 32, 40, 63, 64, 65, 100, 101, 128, 152, 200, 256, 257, 320};
    enum { count = sizeof widths / sizeof *widths };
    bool half = h->backend->ops->supports(h->backend, ELEMENT_BF16) == OK;
    for (enum element type = ELEMENT_F32; type <= (half ? ELEMENT_BF16 : ELEMENT_F32) && !h->emulated; type++)
        linear_check_large(h, type);
    for (int i = 0; i < harness_repeats(h, 60); i++) {
        struct linear_case s = {.type = half && harness_unit(h) < 0.5 ? ELEMENT_BF16 : ELEMENT_F32};
        s.m = harness_range(h, 1, harness_unit(h) < 0.2 ? 300 : 70);
        s.n = widths[harness_range(h, 0, count - 1)];
        s.l = widths[harness_range(h, 0, count - 1)];
        s.out = harness_unit(h) < 0.5 ? s.type : ELEMENT_F32;
        s.grad = harness_float_type(h);
        s.bias = harness_unit(h) < 0.5;
        s.add = harness_unit(h) < 0.5;
        linear_check_shape(h, &s);
    }
    // The inner lengths of real models; more rows than a chunk; narrow and wide tiles; more rows and a longer inner
    // length than are added up at a time.
    static const int64_t deep[][3] = {{3, 40, 1176},  {2, 17, 3420},   {5, 24, 11008},   {1, 9, 18944},
                                      {2050, 24, 33}, {790, 1100, 37}, {140, 1500, 300}, {770, 8, 4200}};
    for (size_t i = 0; i < sizeof deep / sizeof *deep; i++) {
        if ((h->emulated && deep[i][2] > 4000) || deep[i][0] * deep[i][1] * deep[i][2] > h->most_steps) continue;
        for (enum element type = ELEMENT_F32; type <= (half ? ELEMENT_BF16 : ELEMENT_F32); type++) {
            linear_check_shape(
                h, &(struct linear_case){deep[i][0], deep[i][1], deep[i][2], type, type, type, i % 2, !(i % 2)});
        }
    }
}

// ---- timing ----

static void linear_time_shape(struct harness *h, int64_t m, int64_t l, int64_t n, enum element type, bool gradients) {
    const char *name = type == ELEMENT_BF16 ? "bf16" : "f32";
    harness_case(h, "timing");
    struct tensor plain = harness_dense(h, type, n, l, FILL_NORMAL, 1);
    const struct tensor in = harness_dense(h, type, m, l, FILL_NORMAL, 1), none = {0};
    const struct tensor out = harness_dense(h, type, m, n, FILL_ZERO, 1);
    struct weight *weight = NULL;
    double flops = 2.0 * (double)m * (double)n * (double)l;
    for (int prepack = 1; prepack >= 0; prepack--) {
        harness_ok(h, h->ops->weight_new(h->backend, &weight, plain, prepack));
        HARNESS_TIME(h, flops, 0, h->ops->linear(h->backend, out, in, weight, none, false), "%s %s %lldx%lldx%lld",
                     name, prepack ? "prepacked" : "packed", (long long)m, (long long)l, (long long)n);
        if (prepack) h->ops->weight_free(h->backend, &weight);
        if (!gradients) break;
    }
    if (!gradients) return;
    h->ops->weight_free(h->backend, &weight);
    harness_ok(h, h->ops->weight_new(h->backend, &weight, plain, false));
    const struct tensor grad_out = harness_dense(h, type, m, n, FILL_NORMAL, 1);
    const struct tensor grad_in = harness_dense(h, type, m, l, FILL_ZERO, 1);
    const struct tensor grad_weight = harness_dense(h, ELEMENT_F32, n, l, FILL_ZERO, 1);
    HARNESS_TIME(h, flops, 0, h->ops->linear_grad_input(h->backend, grad_in, grad_out, weight, false),
                 "%s grad_in %lldx%lldx%lld", name, (long long)m, (long long)l, (long long)n);
    HARNESS_TIME(h, flops, 0, h->ops->linear_grad_weight(h->backend, grad_weight, none, grad_out, in),
                 "%s grad_weight %lldx%lldx%lld", name, (long long)m, (long long)l, (long long)n);
    h->ops->weight_free(h->backend, &weight);
}

static void linear_time_all(struct harness *h) {
    for (enum element type = ELEMENT_F32; type <= ELEMENT_BF16; type++) {
        if (h->backend->ops->supports(h->backend, type) != OK) continue;
        linear_time_shape(h, 1160, 768, 2560, type, true);
        linear_time_shape(h, 2200, 768, 4096, type, true);
        linear_time_shape(h, 1160, 2048, 768, type, true);
        linear_time_shape(h, 1160, 768, 32000, type, false);
        linear_time_shape(h, 8, 768, 2560, type, false);
        linear_time_shape(h, 8, 768, 768, type, false);
        linear_time_shape(h, 8, 768, 32000, type, false);
        linear_time_shape(h, 8, 2048, 22016, type, false);
        linear_time_shape(h, 1, 768, 2560, type, false);
        linear_time_shape(h, 1, 768, 32000, type, false);
        linear_time_shape(h, 40, 32, 64, type, true);
    }
}

const struct suite suite_linear = {"linear", linear_check, linear_time_all};
