// rmsnorm, swiglu, gelu, their gradients, and the curves under them (exp, erf) by units of the last place.
#include "tests/ops/harness.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

static enum element some_type(struct harness *h) {
    return harness_unit(h) < 0.5 ? ELEMENT_F32 : ELEMENT_BF16;
}

static double *doubles(struct harness *h, struct tensor t) {
    float *values = harness_values(h, t);
    double *out = harness_memory(h, (size_t)(t.rows * t.columns) * sizeof *out);
    for (int64_t i = 0; i < t.rows * t.columns; i++) out[i] = values[i];
    return out;
}

static float rounded(float value, enum element type) {
    return type == ELEMENT_BF16 ? f32_from_bf16(bf16_from_f32(value)) : value;
}

// ---- norms ----

struct norm {
    enum element type;
    int64_t rows, columns;
    struct tensor x, scale, rstd;
};

static struct norm set_up_norm(struct harness *h, const char *what) {
    struct norm n = {
        some_type(h), harness_range(h, 1, harness_unit(h) < 0.2 ? 150 : 20), harness_range(h, 1, 300), {0}, {0}, {0}};
    enum element scale = n.type == ELEMENT_F32 ? ELEMENT_F32 : some_type(h);
    harness_case(h, "%s: %lld x %lld, type %d, scale %d", what, (long long)n.rows, (long long)n.columns, n.type, scale);
    n.x = harness_tensor(h, n.type, n.rows, n.columns, FILL_NORMAL, harness_unit(h) < 0.2 ? 1e-3 : 2);
    n.scale = harness_tensor(h, scale, 1, n.columns, FILL_NORMAL, 1);
    n.rstd = harness_dense(h, ELEMENT_F32, n.rows, 1, FILL_ZERO, 0);
    return n;
}

static void check_rmsnorm(struct harness *h) {
    struct norm n = set_up_norm(h, "rmsnorm");
    bool moved = harness_unit(h) < 0.6;
    struct tensor delta = {0}, out = harness_tensor(h, n.type, n.rows, n.columns, FILL_NORMAL, 1);
    float *x = harness_values(h, n.x), *scale = harness_values(h, n.scale);
    double *want = doubles(h, n.x), *want_x = doubles(h, n.x), *want_rstd = doubles(h, n.rstd);
    if (moved) {
        delta = harness_tensor(h, n.type, n.rows, n.columns, FILL_EDGES, 1);
        float *more = harness_values(h, delta);
        for (int64_t i = 0; i < n.rows * n.columns; i++) want_x[i] = rounded(x[i] + more[i], n.type);
    }
    harness_ok(h, h->ops->rmsnorm(h->backend, out, n.x, delta, n.scale, 1e-6f, n.rstd));
    for (int64_t row = 0; row < n.rows; row++) {
        double sum = 0;
        for (int64_t c = 0; c < n.columns; c++) sum += want_x[row * n.columns + c] * want_x[row * n.columns + c];
        want_rstd[row] = 1 / sqrt(sum / (double)n.columns + 1e-6);
        for (int64_t c = 0; c < n.columns; c++)
            want[row * n.columns + c] =
                want_x[row * n.columns + c] * want_rstd[row] * (double)rounded(scale[c], n.type);
    }
    harness_near(h, "x", n.x, want_x, 0, 0);
    harness_near(h, "rstd", n.rstd, want_rstd, 0, 1e-6);
    harness_near(h, "out", out, want, 1e-7, n.type == ELEMENT_BF16 ? 0x1p-8 : 1e-6);
}

// With g = grad_out * scale: r g - x r^3 mean(g x).
static void check_rmsnorm_gradient(struct harness *h) {
    struct norm n = set_up_norm(h, "rmsnorm_grad");
    struct tensor out = harness_dense(h, n.type, n.rows, n.columns, FILL_ZERO, 0);
    struct tensor slope = harness_tensor(h, n.type, n.rows, n.columns, FILL_NORMAL, 1);
    struct tensor gradient = harness_tensor(h, n.type, n.rows, n.columns, FILL_NORMAL, 1);
    struct tensor grad_scale = harness_tensor(h, ELEMENT_F32, 1, n.columns, FILL_NORMAL, 1);
    harness_ok(h, h->ops->rmsnorm(h->backend, out, n.x, (struct tensor){0}, n.scale, 1e-6f, n.rstd));
    double *want = doubles(h, gradient), *want_scale = doubles(h, grad_scale);
    double *x = doubles(h, n.x), *g = doubles(h, slope), *scale = doubles(h, n.scale), *r = doubles(h, n.rstd);
    double most = 0;
    for (int64_t row = 0; row < n.rows; row++) {
        double sum = 0;
        for (int64_t c = 0; c < n.columns; c++) {
            int64_t i = row * n.columns + c;
            want_scale[c] += g[i] * (double)rounded((float)(x[i] * r[row]), n.type);
            g[i] *= (double)rounded((float)scale[c], n.type);
            sum += g[i] * x[i];
        }
        for (int64_t c = 0; c < n.columns; c++) {
            int64_t i = row * n.columns + c;
            double mean = sum / (double)n.columns * r[row] * r[row];
            want[i] += r[row] * (g[i] - x[i] * mean);
            most = fmax(most, r[row] * (fabs(g[i]) + fabs(x[i] * mean)));
        }
    }
    harness_ok(h, h->ops->rmsnorm_grad(h->backend, gradient, grad_scale, slope, n.x, n.scale, n.rstd));
    harness_near(h, "grad_x", gradient, want, 1e-6 * (1 + most), 1e-6);
    harness_near(h, "grad_scale", grad_scale, want_scale, n.type == ELEMENT_BF16 ? 0.05 : 1e-5, 1e-5);
}

// ---- gates ----

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

static double phi(double x) {
    return 0.5 * erfc(-x * sqrt(0.5));
}

static void check_swiglu(struct harness *h) {
    int64_t rows = harness_range(h, 1, 20), columns = harness_range(h, 1, 200);
    enum element type = some_type(h);
    harness_case(h, "swiglu %lld x %lld, type %d", (long long)rows, (long long)columns, type);
    struct tensor in = harness_tensor(h, type, rows, 2 * columns, FILL_EDGES, 3);
    struct tensor out = harness_tensor(h, type, rows, columns, FILL_NORMAL, 1);
    struct tensor slope = harness_tensor(h, type, rows, columns, FILL_NORMAL, 1);
    struct tensor gradient = harness_tensor(h, type, rows, 2 * columns, FILL_NORMAL, 1);
    harness_ok(h, h->ops->swiglu(h->backend, out, in));
    harness_ok(h, h->ops->swiglu_grad(h->backend, gradient, slope, in));
    double *x = doubles(h, in), *g = doubles(h, slope), *want = doubles(h, out), *want_slope = doubles(h, gradient);
    double most = 0; // silu' has a zero: what it is a factor of sets the error there
    for (int64_t i = 0; i < rows * columns; i++) {
        int64_t gate = i / columns * 2 * columns + i % columns, up = gate + columns;
        most = fmax(most, fabs(g[i] * x[up]));
        double silu = x[gate] * sigmoid(x[gate]);
        want[i] = silu * x[up];
        want_slope[up] = g[i] * silu;
        want_slope[gate] = g[i] * x[up] * sigmoid(x[gate]) * (1 + x[gate] * (1 - sigmoid(x[gate])));
    }
    double relative = type == ELEMENT_BF16 ? 0x1p-8 : 1e-6; // silu is rounded on the way
    harness_near(h, "out", out, want, 1e-32, relative);
    harness_near(h, "grad_gate_up", gradient, want_slope, 1e-6 + 3e-7 * most, type == ELEMENT_BF16 ? 0x1p-8 : 2e-6);
}

static void check_gelu(struct harness *h) {
    int64_t rows = harness_range(h, 1, 20), columns = harness_range(h, 1, 400);
    enum element type = some_type(h);
    harness_case(h, "gelu %lld x %lld, type %d", (long long)rows, (long long)columns, type);
    struct tensor in = harness_tensor(h, type, rows, columns, FILL_EDGES, 2);
    struct tensor out = harness_tensor(h, type, rows, columns, FILL_NORMAL, 1);
    struct tensor slope = harness_tensor(h, type, rows, columns, FILL_NORMAL, 1);
    struct tensor gradient = harness_tensor(h, type, rows, columns, FILL_NORMAL, 1);
    harness_ok(h, h->ops->gelu(h->backend, out, in));
    harness_ok(h, h->ops->gelu_grad(h->backend, gradient, slope, in));
    double *x = doubles(h, in), *g = doubles(h, slope), *want = doubles(h, out), *want_slope = doubles(h, gradient);
    for (int64_t i = 0; i < rows * columns; i++) {
        want[i] = x[i] * phi(x[i]);
        want_slope[i] = g[i] * (phi(x[i]) + x[i] * exp(-x[i] * x[i] / 2) / sqrt(2 * M_PI));
    }
    harness_near(h, "out", out, want, 4e-7, 2e-7);
    harness_near(h, "grad_in", gradient, want_slope, 1e-6, 1e-6);
}

// ---- curves ----

// exp over its whole range: two units of the last place, 0 far below, infinite far above, NaN for NaN.
static void check_exp(struct harness *h) {
    enum { count = 20011 };
    harness_case(h, "exp");
    struct tensor x = harness_dense(h, ELEMENT_F32, 1, count, FILL_NORMAL, 20), y;
    float *in = harness_values(h, x), *out = harness_memory(h, count * sizeof *out);
    memcpy(in, (float[]){0, -0.0f, -87, -87.5f, -1e30f, -INFINITY, 87.9f, 88.5f, INFINITY, NAN}, 10 * sizeof *in);
    y = harness_dense(h, ELEMENT_F32, 1, count, FILL_ZERO, 0);
    cpu_of(h->backend)->simd.row_scaled_exp(out, in, count, 0, 1, 1);
    harness_set(h, y, out);
    harness_same(h, "exp", y);
    for (int i = 0; i < count; i++) {
        double want = exp((double)in[i]);
        bool tiny = in[i] < -87 && out[i] == 0 && want < 2e-38, large = in[i] >= 88 && isinf(out[i]);
        bool good = isnan(want) ? isnan(out[i]) : fabs(out[i] - want) <= 0x1p-22 * want;
        harness_hold(h, tiny || large || good, "exp(%.9g) = %.9g, not %.9g", (double)in[i], (double)out[i], want);
    }
}

static void check(struct harness *h) {
    for (int i = 0; i < 25; i++) {
        check_rmsnorm(h);
        check_rmsnorm_gradient(h);
        check_swiglu(h);
        check_gelu(h);
    }
    check_exp(h);
}

// ---- timing ----

struct timed {
    struct harness *h;
    struct tensor x, delta, out, scale, rstd, grad_scale, gate_up, grad_gate_up, gated;
};

static status run_rmsnorm(void *context) {
    struct timed *t = context;
    return t->h->ops->rmsnorm(t->h->backend, t->out, t->x, t->delta, t->scale, 1e-6f, t->rstd);
}

static status run_rmsnorm_gradient(void *context) {
    struct timed *t = context;
    return t->h->ops->rmsnorm_grad(t->h->backend, t->delta, t->grad_scale, t->out, t->x, t->scale, t->rstd);
}

static status run_swiglu(void *context) {
    struct timed *t = context;
    return t->h->ops->swiglu(t->h->backend, t->gated, t->gate_up);
}

static status run_swiglu_gradient(void *context) {
    struct timed *t = context;
    return t->h->ops->swiglu_grad(t->h->backend, t->grad_gate_up, t->gated, t->gate_up);
}

static status run_gelu(void *context) {
    struct timed *t = context;
    return t->h->ops->gelu(t->h->backend, t->grad_gate_up, t->gate_up);
}

static void time_type(struct harness *h, enum element type) {
    enum { rows = 2200, columns = 768, inner = 2560 };
    const char *name = type == ELEMENT_BF16 ? "bf16" : "f32";
    double size = (double)element_size(type), wide = (double)rows * columns * size, gated = (double)rows * inner * size;
    harness_case(h, "timing");
    struct timed t = {h,
                      harness_dense(h, type, rows, columns, FILL_NORMAL, 1),
                      harness_dense(h, type, rows, columns, FILL_ZERO, 0),
                      harness_dense(h, type, rows, columns, FILL_ZERO, 0),
                      harness_dense(h, type, 1, columns, FILL_NORMAL, 1),
                      harness_dense(h, ELEMENT_F32, rows, 1, FILL_NORMAL, 1),
                      harness_dense(h, ELEMENT_F32, 1, columns, FILL_ZERO, 0),
                      harness_dense(h, type, rows, 2 * inner, FILL_NORMAL, 1),
                      harness_dense(h, type, rows, 2 * inner, FILL_ZERO, 0),
                      harness_dense(h, type, rows, inner, FILL_NORMAL, 1)};
    harness_time(h, 0, 4 * wide, run_rmsnorm, &t, "%s rmsnorm 2200x768", name);
    harness_time(h, 0, 4 * wide, run_rmsnorm_gradient, &t, "%s rmsnorm_grad 2200x768", name);
    harness_time(h, 0, 3 * gated, run_swiglu, &t, "%s swiglu 2200x2560", name);
    harness_time(h, 0, 5 * gated, run_swiglu_gradient, &t, "%s swiglu_grad 2200x2560", name);
    harness_time(h, 0, 4 * gated, run_gelu, &t, "%s gelu 2200x5120", name);
}

static void time_all(struct harness *h) {
    time_type(h, ELEMENT_F32);
    time_type(h, ELEMENT_BF16);
}

const struct suite suite_norms = {"norms", check, time_all};
