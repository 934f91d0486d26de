// swiglu, geglu, gelu, quick_gelu and their gradients, against double precision; and exp, which all of them use, by
// units of the last place.
#include "tests/ops/harness.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

static double activations_phi(double x) {
    return 0.5 * erfc(-x * sqrt(0.5));
}

enum activation_case { CASE_SWIGLU, CASE_GELU, CASE_GEGLU, CASE_QUICK_GELU, ACTIVATION_CASES };

// The activation of x; *slope = its derivative.
static double activations_value(enum activation_case kind, double x, double *slope) {
    const double a = kind == CASE_SWIGLU ? 1 : 1.702, sigmoid = 1 / (1 + exp(-a * x));
    *slope = sigmoid * (1 + a * x * (1 - sigmoid));
    if (kind == CASE_SWIGLU || kind == CASE_QUICK_GELU) return x * sigmoid;
    *slope = activations_phi(x) + x * exp(-x * x / 2) / sqrt(2 * M_PI);
    return x * activations_phi(x);
}

static void activations_check_kind(struct harness *h, enum activation_case kind) {
    const struct {
        const char *name;
        enum activation kind;
        bool gated;                            // the activation is multiplied by the second half of a row
        double out, out_most, out_relative;    // bounds: absolute, by the largest factor of an error, relative
        double grad, grad_most, grad_relative; // the same of the gradient
    } cases[ACTIVATION_CASES] = {{"swiglu", ACTIVATION_SWIGLU, true, 1e-32, 0, 1e-6, 1e-6, 3e-7, 2e-6},
                                 {"gelu", ACTIVATION_GELU, false, 4e-7, 0, 2e-7, 1e-6, 0, 1e-6},
                                 {"geglu", ACTIVATION_GEGLU, true, 0, 4e-7, 4e-7, 0, 1e-6, 1e-6},
                                 {"quick_gelu", ACTIVATION_QUICK_GELU, false, 1e-6, 0, 1e-6, 2e-6, 0, 2e-6}},
      *c = &cases[kind];
    const bool gated = c->gated;
    int64_t rows = harness_range(h, 1, 20), columns = harness_columns(h, 1, gated ? 200 : 400);
    int64_t in_columns = gated ? 2 * columns : columns;
    enum element type = harness_float_type(h);
    harness_case(h, "%s %lld x %lld, type %d", c->name, (long long)rows, (long long)columns, type);
    struct tensor in = harness_tensor(h, type, rows, in_columns, FILL_EDGES, kind == CASE_SWIGLU ? 3 : 2);
    struct tensor out = harness_tensor(h, type, rows, columns, FILL_NORMAL, 1);
    struct tensor grad_out = harness_tensor(h, type, rows, columns, FILL_NORMAL, 1);
    struct tensor grad_in = harness_tensor(h, type, rows, in_columns, FILL_NORMAL, 1);
    struct tensor in_place = harness_tensor(h, type, rows, in_columns, FILL_ZERO, 0);
    double *x = harness_doubles(h, in), *g = harness_doubles(h, grad_out), *want = harness_doubles(h, out),
           *want_grad = harness_doubles(h, grad_in);
    harness_ok(h, h->ops->activation(h->backend, c->kind, out, in));
    harness_ok(h, h->ops->activation_grad(h->backend, c->kind, grad_in, grad_out, in));

    int64_t row = harness_range(h, 0, rows - 1);
    struct tensor alone = harness_tensor(h, type, 1, columns, FILL_ZERO, 0);
    harness_ok(h, h->ops->activation(h->backend, c->kind, alone, tensor_rows(in, row, 1)));
    harness_equal(h, "a row alone", alone, tensor_rows(out, row, 1));
    if (kind != CASE_GELU) {
        harness_ok(h, h->ops->copy(h->backend, in_place, in));
        harness_ok(h, h->ops->activation_grad(h->backend, c->kind, in_place, grad_out, in_place));
        harness_equal(h, "grad_in in place of in", in_place, grad_in);
    }
    if (kind == CASE_QUICK_GELU) {
        harness_ok(h, h->ops->activation_grad(h->backend, c->kind, grad_out, grad_out, in));
        harness_equal(h, "grad_in in place of grad_out", grad_out, grad_in);
        harness_ok(h, h->ops->activation(h->backend, c->kind, in, in));
        harness_equal(h, "out in place", in, out);
    }

    // Near a zero of silu' an error counts by the factor of silu', and an error of Phi by its factors.
    double most = kind == CASE_GEGLU, slope;
    for (int64_t i = 0; i < rows * columns; i++) {
        int64_t first = i / columns * in_columns + i % columns, second = first + columns;
        double up = gated ? x[second] : 1, value = activations_value(kind, x[first], &slope);
        double factor = kind == CASE_GEGLU ? fmax(fabs(up), fabs(g[i])) * (1 + fmin(fabs(x[first]), 6)) : 0;
        most = fmax(most, factor + fabs(g[i] * up));
        want[i] = value * up;
        want_grad[first] = g[i] * up * slope;
        if (gated) want_grad[second] = g[i] * value;
    }
    bool coarse = kind == CASE_SWIGLU && type == ELEMENT_BF16; // silu is rounded on the way
    harness_near(h, "out", out, want, c->out + c->out_most * most, coarse ? 0x1p-8 : c->out_relative);
    harness_near(h, "grad_in", grad_in, want_grad, c->grad + c->grad_most * most, coarse ? 0x1p-8 : c->grad_relative);
}

static void activations_check_refusals(struct harness *h) {
    harness_case(h, "refusals");
    struct tensor four = harness_dense(h, ELEMENT_F32, 3, 4, FILL_NORMAL, 1), two = tensor_columns(four, 0, 2);
    struct tensor numbers = harness_dense(h, ELEMENT_I32, 3, 4, FILL_ZERO, 0);
    harness_broken(h, h->ops->activation(h->backend, ACTIVATION_GEGLU, four, four), "geglu of one half");
    harness_broken(h, h->ops->activation(h->backend, ACTIVATION_GEGLU, tensor_rows(two, 0, 2), four),
                   "geglu of more rows");
    harness_broken(h, h->ops->activation_grad(h->backend, ACTIVATION_GEGLU, two, two, four), "a gradient of one half");
    harness_broken(h, h->ops->activation(h->backend, ACTIVATION_QUICK_GELU, two, four), "quick_gelu of more columns");
    harness_broken(h, h->ops->activation(h->backend, ACTIVATION_QUICK_GELU, four, numbers), "quick_gelu of integers");
    harness_broken(h, h->ops->activation_grad(h->backend, ACTIVATION_QUICK_GELU, four, two, four),
                   "a gradient of fewer columns");
}

// exp over its whole range: two units of the last place, 0 far below, infinite far above, NaN for NaN.
static void activations_check_exp(struct harness *h) {
    enum { count = 20011 };
    harness_case(h, "exp");
    struct tensor x = harness_dense(h, ELEMENT_F32, 1, count, FILL_NORMAL, 20), y;
    float *in = harness_values(h, x), *out = harness_memory(h, count * sizeof *out);
    memcpy(in, (float[]){0, -0.0f, -87, -87.5f, -1e30f, -INFINITY, 87.9f, 88.5f, INFINITY, NAN}, 10 * sizeof *in);
    y = harness_dense(h, ELEMENT_F32, 1, count, FILL_ZERO, 0);
    h->cpu->simd.row_scaled_exp(out, in, count, 0, 1, 1);
    harness_set(h, y, out);
    harness_same(h, "exp", y);
    for (int i = 0; i < count; i++) {
        double want = exp((double)in[i]);
        bool tiny = in[i] < -87 && out[i] == 0 && want < 2e-38, large = in[i] >= 88 && isinf(out[i]);
        bool good = isnan(want) ? isnan(out[i]) : fabs(out[i] - want) <= 0x1p-22 * want;
        harness_hold(h, tiny || large || good, "exp(%.9g) = %.9g, not %.9g", (double)in[i], (double)out[i], want);
    }
}

// Phi, by gelu: its error is below 1e-7, and the product is rounded once. gelu of NaN, and of negative infinity, is
// NaN.
static void activations_check_phi(struct harness *h) {
    enum { count = 20011 };
    harness_case(h, "Phi");
    struct tensor x = harness_dense(h, ELEMENT_F32, 1, count, FILL_NORMAL, 3);
    struct tensor y = harness_dense(h, ELEMENT_F32, 1, count, FILL_ZERO, 0);
    float *in = harness_values(h, x);
    memcpy(in, (float[]){0, -0.0f, 1e-30f, 0.35f, -13, 13, -1e30f, 1e30f, INFINITY, -INFINITY, NAN}, 11 * sizeof *in);
    harness_set(h, x, in);
    harness_ok(h, h->ops->activation(h->backend, ACTIVATION_GELU, y, x));
    harness_same(h, "gelu", y);
    const float *out = harness_values(h, y);
    for (int i = 0; i < count; i++) {
        double want = in[i] * activations_phi(in[i]), bound = 1e-7 * fabs((double)in[i]) + 0x1p-24 * fabs(want);
        bool good = isfinite(want) ? fabs(out[i] - want) <= bound
                    : isnan(want)  ? isnan(out[i])
                                   : (double)out[i] == want;
        harness_hold(h, good, "gelu(%.9g) = %.9g, not %.9g", (double)in[i], (double)out[i], want);
    }
}

static void activations_check_each(struct harness *h) {
    for (int kind = 0; kind < ACTIVATION_CASES; kind++) activations_check_kind(h, (enum activation_case)kind);
}

static void activations_check(struct harness *h) {
    for (int i = 0; i < 25; i++) activations_check_each(h);
    while (harness_next_layout(h)) activations_check_each(h);
    activations_check_refusals(h);
    activations_check_phi(h);
    if (h->cpu) activations_check_exp(h);
}

// ---- timing ----

static void activations_time_all(struct harness *h) {
    enum { rows = 2200, inner = 2560 };
    for (enum element type = ELEMENT_F32; type <= ELEMENT_BF16; type++) {
        const char *name = type == ELEMENT_BF16 ? "bf16" : "f32";
        double bytes = (double)rows * inner * (double)element_size(type);
        harness_case(h, "timing");
        const struct tensor gate_up = harness_dense(h, type, rows, 2 * inner, FILL_NORMAL, 1);
        const struct tensor grad_gate_up = harness_dense(h, type, rows, 2 * inner, FILL_ZERO, 0);
        const struct tensor out = harness_dense(h, type, rows, inner, FILL_NORMAL, 1);
        HARNESS_TIME(h, 0, 3 * bytes, h->ops->activation(h->backend, ACTIVATION_SWIGLU, out, gate_up),
                     "%s swiglu 2200x2560", name);
        HARNESS_TIME(h, 0, 5 * bytes,
                     h->ops->activation_grad(h->backend, ACTIVATION_SWIGLU, grad_gate_up, out, gate_up),
                     "%s swiglu_grad 2200x2560", name);
        HARNESS_TIME(h, 0, 3 * bytes, h->ops->activation(h->backend, ACTIVATION_GEGLU, out, gate_up),
                     "%s geglu 2200x2560", name);
        HARNESS_TIME(h, 0, 5 * bytes, h->ops->activation_grad(h->backend, ACTIVATION_GEGLU, grad_gate_up, out, gate_up),
                     "%s geglu_grad 2200x2560", name);
        HARNESS_TIME(h, 0, 4 * bytes, h->ops->activation(h->backend, ACTIVATION_GELU, grad_gate_up, gate_up),
                     "%s gelu 2200x5120", name);
    }
}

const struct suite suite_activations = {"activations", activations_check, activations_time_all};
