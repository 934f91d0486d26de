// swiglu, geglu, gelu, quick_gelu and their gradients, against double precision; and exp, which all of them use, by
// units of the last place.
#include "tests/ops/harness.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

static double activations_sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

static double activations_phi(double x) {
    return 0.5 * erfc(-x * sqrt(0.5));
}

static void activations_check_swiglu(struct harness *h) {
    int64_t rows = harness_range(h, 1, 20), columns = harness_columns(h, 1, 200);
    enum element type = harness_float_type(h);
    harness_case(h, "swiglu %lld x %lld, type %d", (long long)rows, (long long)columns, type);
    struct tensor in = harness_tensor(h, type, rows, 2 * columns, FILL_EDGES, 3);
    struct tensor out = harness_tensor(h, type, rows, columns, FILL_NORMAL, 1);
    struct tensor grad_out = harness_tensor(h, type, rows, columns, FILL_NORMAL, 1);
    struct tensor grad_in = harness_tensor(h, type, rows, 2 * columns, FILL_NORMAL, 1);
    harness_ok(h, h->ops->swiglu(h->backend, out, in));
    harness_ok(h, h->ops->swiglu_grad(h->backend, grad_in, grad_out, in));
    struct tensor in_place = harness_tensor(h, type, rows, 2 * columns, FILL_ZERO, 0);
    harness_ok(h, h->ops->copy(h->backend, in_place, in));
    harness_ok(h, h->ops->swiglu_grad(h->backend, in_place, grad_out, in_place));
    harness_equal(h, "grad_gate_up in place", in_place, grad_in);
    double *x = harness_doubles(h, in), *g = harness_doubles(h, grad_out), *want = harness_doubles(h, out),
           *want_grad = harness_doubles(h, grad_in);
    double most = 0; // near a zero of silu', the error is in proportion to the factor of silu'
    for (int64_t i = 0; i < rows * columns; i++) {
        int64_t gate = i / columns * 2 * columns + i % columns, up = gate + columns;
        most = fmax(most, fabs(g[i] * x[up]));
        double silu = x[gate] * activations_sigmoid(x[gate]);
        want[i] = silu * x[up];
        want_grad[up] = g[i] * silu;
        want_grad[gate] =
            g[i] * x[up] * activations_sigmoid(x[gate]) * (1 + x[gate] * (1 - activations_sigmoid(x[gate])));
    }
    double relative = type == ELEMENT_BF16 ? 0x1p-8 : 1e-6; // silu is rounded on the way
    harness_near(h, "out", out, want, 1e-32, relative);
    harness_near(h, "grad_gate_up", grad_in, want_grad, 1e-6 + 3e-7 * most, type == ELEMENT_BF16 ? 0x1p-8 : 2e-6);
}

static void activations_check_gelu(struct harness *h) {
    int64_t rows = harness_range(h, 1, 20), columns = harness_columns(h, 1, 400);
    enum element type = harness_float_type(h);
    harness_case(h, "gelu %lld x %lld, type %d", (long long)rows, (long long)columns, type);
    struct tensor in = harness_tensor(h, type, rows, columns, FILL_EDGES, 2);
    struct tensor out = harness_tensor(h, type, rows, columns, FILL_NORMAL, 1);
    struct tensor grad_out = harness_tensor(h, type, rows, columns, FILL_NORMAL, 1);
    struct tensor grad_in = harness_tensor(h, type, rows, columns, FILL_NORMAL, 1);
    harness_ok(h, h->ops->gelu(h->backend, out, in));
    harness_ok(h, h->ops->gelu_grad(h->backend, grad_in, grad_out, in));
    double *x = harness_doubles(h, in), *g = harness_doubles(h, grad_out), *want = harness_doubles(h, out),
           *want_grad = harness_doubles(h, grad_in);
    for (int64_t i = 0; i < rows * columns; i++) {
        want[i] = x[i] * activations_phi(x[i]);
        want_grad[i] = g[i] * (activations_phi(x[i]) + x[i] * exp(-x[i] * x[i] / 2) / sqrt(2 * M_PI));
    }
    harness_near(h, "out", out, want, 4e-7, 2e-7);
    harness_near(h, "grad_in", grad_in, want_grad, 1e-6, 1e-6);
}

static void activations_check_geglu(struct harness *h) {
    int64_t rows = harness_range(h, 1, 20), columns = harness_columns(h, 1, 200);
    enum element type = harness_float_type(h);
    harness_case(h, "geglu %lld x %lld, type %d", (long long)rows, (long long)columns, type);
    struct tensor in = harness_tensor(h, type, rows, 2 * columns, FILL_EDGES, 2);
    struct tensor out = harness_tensor(h, type, rows, columns, FILL_NORMAL, 1);
    struct tensor grad_out = harness_tensor(h, type, rows, columns, FILL_NORMAL, 1);
    struct tensor grad_in = harness_tensor(h, type, rows, 2 * columns, FILL_NORMAL, 1);
    double *x = harness_doubles(h, in), *g = harness_doubles(h, grad_out), *want = harness_doubles(h, out),
           *want_grad = harness_doubles(h, grad_in);
    harness_ok(h, h->ops->geglu(h->backend, out, in));
    harness_ok(h, h->ops->geglu_grad(h->backend, grad_in, grad_out, in));
    int64_t row = harness_range(h, 0, rows - 1);
    struct tensor alone = harness_tensor(h, type, 1, columns, FILL_ZERO, 0);
    harness_ok(h, h->ops->geglu(h->backend, alone, tensor_rows(in, row, 1)));
    harness_equal(h, "a row alone", alone, tensor_rows(out, row, 1));
    harness_ok(h, h->ops->geglu_grad(h->backend, in, grad_out, in));
    harness_equal(h, "grad_in in place", in, grad_in);
    double most = 1; // an error of Phi counts by its factors
    for (int64_t i = 0; i < rows * columns; i++) {
        int64_t a = i / columns * 2 * columns + i % columns, b = a + columns;
        double phi = activations_phi(x[a]);
        most = fmax(most, fmax(fabs(x[b]), fabs(g[i])) * (1 + fmin(fabs(x[a]), 6)) + fabs(g[i] * x[b]));
        want[i] = x[a] * phi * x[b];
        want_grad[a] = g[i] * x[b] * (phi + x[a] * exp(-x[a] * x[a] / 2) / sqrt(2 * M_PI));
        want_grad[b] = g[i] * x[a] * phi;
    }
    harness_near(h, "out", out, want, 4e-7 * most, 4e-7);
    harness_near(h, "grad_in", grad_in, want_grad, 1e-6 * most, 1e-6);
}

static void activations_check_quick_gelu(struct harness *h) {
    int64_t rows = harness_range(h, 1, 20), columns = harness_columns(h, 1, 400);
    enum element type = harness_float_type(h);
    harness_case(h, "quick_gelu %lld x %lld, type %d", (long long)rows, (long long)columns, type);
    struct tensor in = harness_tensor(h, type, rows, columns, FILL_EDGES, 2);
    struct tensor out = harness_tensor(h, type, rows, columns, FILL_NORMAL, 1);
    struct tensor grad_out = harness_tensor(h, type, rows, columns, FILL_NORMAL, 1);
    struct tensor grad_in = harness_tensor(h, type, rows, columns, FILL_NORMAL, 1);
    double *x = harness_doubles(h, in), *g = harness_doubles(h, grad_out), *want = harness_doubles(h, out),
           *want_grad = harness_doubles(h, grad_in);
    harness_ok(h, h->ops->quick_gelu(h->backend, out, in));
    harness_ok(h, h->ops->quick_gelu_grad(h->backend, grad_in, grad_out, in));
    harness_ok(h, h->ops->quick_gelu_grad(h->backend, grad_out, grad_out, in));
    harness_equal(h, "grad_in in place of grad_out", grad_out, grad_in);
    harness_ok(h, h->ops->quick_gelu(h->backend, in, in));
    harness_equal(h, "out in place", in, out);
    for (int64_t i = 0; i < rows * columns; i++) {
        double s = activations_sigmoid(1.702 * x[i]);
        want[i] = x[i] * s;
        want_grad[i] = g[i] * s * (1 + 1.702 * x[i] * (1 - s));
    }
    harness_near(h, "out", out, want, 1e-6, 1e-6);
    harness_near(h, "grad_in", grad_in, want_grad, 2e-6, 2e-6);
}

static void activations_check_refusals(struct harness *h) {
    harness_case(h, "refusals");
    struct tensor four = harness_dense(h, ELEMENT_F32, 3, 4, FILL_NORMAL, 1), two = tensor_columns(four, 0, 2);
    struct tensor numbers = harness_dense(h, ELEMENT_I32, 3, 4, FILL_ZERO, 0);
    harness_broken(h, h->ops->geglu(h->backend, four, four), "geglu of one half");
    harness_broken(h, h->ops->geglu(h->backend, tensor_rows(two, 0, 2), four), "geglu of more rows");
    harness_broken(h, h->ops->geglu_grad(h->backend, two, two, four), "a gradient of one half");
    harness_broken(h, h->ops->quick_gelu(h->backend, two, four), "quick_gelu of more columns");
    harness_broken(h, h->ops->quick_gelu(h->backend, four, numbers), "quick_gelu of integers");
    harness_broken(h, h->ops->quick_gelu_grad(h->backend, four, two, four), "a gradient of fewer columns");
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
    harness_ok(h, h->ops->gelu(h->backend, y, x));
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
    activations_check_swiglu(h);
    activations_check_gelu(h);
    activations_check_geglu(h);
    activations_check_quick_gelu(h);
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
        HARNESS_TIME(h, 0, 3 * bytes, h->ops->swiglu(h->backend, out, gate_up), "%s swiglu 2200x2560", name);
        HARNESS_TIME(h, 0, 5 * bytes, h->ops->swiglu_grad(h->backend, grad_gate_up, out, gate_up),
                     "%s swiglu_grad 2200x2560", name);
        HARNESS_TIME(h, 0, 3 * bytes, h->ops->geglu(h->backend, out, gate_up), "%s geglu 2200x2560", name);
        HARNESS_TIME(h, 0, 5 * bytes, h->ops->geglu_grad(h->backend, grad_gate_up, out, gate_up),
                     "%s geglu_grad 2200x2560", name);
        HARNESS_TIME(h, 0, 4 * bytes, h->ops->gelu(h->backend, grad_gate_up, gate_up), "%s gelu 2200x5120", name);
    }
}

const struct suite suite_activations = {"activations", activations_check, activations_time_all};
