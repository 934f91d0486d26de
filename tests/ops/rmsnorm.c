// rmsnorm and its gradient, against double precision.
#include "tests/ops/harness.h"

#include <math.h>

#include "kernels/cpu/cpu.h"

static float rmsnorm_rounded(float value, enum element type) {
    return type == ELEMENT_BF16 ? f32_from_bf16(bf16_from_f32(value)) : value;
}

struct rmsnorm_case {
    enum element type;
    int64_t rows, columns;
    struct tensor x, scale, rstd;
};

static struct rmsnorm_case rmsnorm_set_up(struct harness *h, const char *what, int64_t rows, int64_t columns) {
    struct rmsnorm_case n = {.type = harness_float_type(h), .rows = rows, .columns = columns};
    enum element scale = n.type == ELEMENT_F32 ? ELEMENT_F32 : harness_float_type(h);
    harness_case(h, "%s: %lld x %lld, type %d, scale %d", what, (long long)n.rows, (long long)n.columns, n.type, scale);
    n.x = harness_tensor(h, n.type, n.rows, n.columns, FILL_NORMAL, harness_unit(h) < 0.2 ? 1e-3 : 2);
    n.scale = harness_tensor(h, scale, 1, n.columns, FILL_NORMAL, 1);
    n.rstd = harness_dense(h, ELEMENT_F32, n.rows, 1, FILL_ZERO, 0);
    return n;
}

static void rmsnorm_check_rmsnorm(struct harness *h, int64_t rows, int64_t columns) {
    struct rmsnorm_case n = rmsnorm_set_up(h, "rmsnorm", rows, columns);
    bool moved = harness_unit(h) < 0.6;
    struct tensor delta = {0}, out = harness_tensor(h, n.type, n.rows, n.columns, FILL_NORMAL, 1);
    float *x = harness_values(h, n.x), *scale = harness_values(h, n.scale);
    double *want = harness_doubles(h, n.x), *want_x = harness_doubles(h, n.x), *want_rstd = harness_doubles(h, n.rstd);
    if (moved) {
        delta = harness_tensor(h, n.type, n.rows, n.columns, FILL_EDGES, 1);
        float *more = harness_values(h, delta);
        for (int64_t i = 0; i < n.rows * n.columns; i++) want_x[i] = rmsnorm_rounded(x[i] + more[i], n.type);
    }
    harness_ok(h, h->ops->rmsnorm(h->backend, out, n.x, delta, n.scale, 1e-6f, n.rstd));
    for (int64_t row = 0; row < n.rows; row++) {
        double sum = 0;
        for (int64_t c = 0; c < n.columns; c++) sum += want_x[row * n.columns + c] * want_x[row * n.columns + c];
        want_rstd[row] = 1 / sqrt(sum / (double)n.columns + 1e-6);
        for (int64_t c = 0; c < n.columns; c++)
            want[row * n.columns + c] =
                want_x[row * n.columns + c] * want_rstd[row] * (double)rmsnorm_rounded(scale[c], n.type);
    }
    harness_near(h, "x", n.x, want_x, 0, 0);
    harness_near(h, "rstd", n.rstd, want_rstd, 0, 1e-6);
    harness_near(h, "out", out, want, 1e-7, n.type == ELEMENT_BF16 ? 0x1p-8 : 1e-6);
}

// With g = grad_out * scale: r g - x r^3 mean(g x).
static void rmsnorm_check_rmsnorm_grad(struct harness *h, int64_t rows, int64_t columns) {
    struct rmsnorm_case n = rmsnorm_set_up(h, "rmsnorm_grad", rows, columns);
    struct tensor out = harness_dense(h, n.type, n.rows, n.columns, FILL_ZERO, 0);
    struct tensor grad_out = harness_tensor(h, n.type, n.rows, n.columns, FILL_NORMAL, 1);
    struct tensor grad_x = harness_tensor(h, n.type, n.rows, n.columns, FILL_NORMAL, 1);
    struct tensor grad_scale = harness_tensor(h, ELEMENT_F32, 1, n.columns, FILL_NORMAL, 1);
    harness_ok(h, h->ops->rmsnorm(h->backend, out, n.x, (struct tensor){0}, n.scale, 1e-6f, n.rstd));
    double *want = harness_doubles(h, grad_x), *want_scale = harness_doubles(h, grad_scale);
    double *x = harness_doubles(h, n.x), *g = harness_doubles(h, grad_out), *scale = harness_doubles(h, n.scale),
           *r = harness_doubles(h, n.rstd);
    double most = 0;
    for (int64_t row = 0; row < n.rows; row++) {
        double sum = 0;
        for (int64_t c = 0; c < n.columns; c++) {
            int64_t i = row * n.columns + c;
            want_scale[c] += g[i] * (double)rmsnorm_rounded((float)(x[i] * r[row]), n.type);
            g[i] *= (double)rmsnorm_rounded((float)scale[c], n.type);
            sum += g[i] * x[i];
        }
        for (int64_t c = 0; c < n.columns; c++) {
            int64_t i = row * n.columns + c;
            double mean = sum / (double)n.columns * r[row] * r[row];
            want[i] += r[row] * (g[i] - x[i] * mean);
            most = fmax(most, r[row] * (fabs(g[i]) + fabs(x[i] * mean)));
        }
    }
    harness_ok(h, h->ops->rmsnorm_grad(h->backend, grad_x, grad_scale, grad_out, n.x, n.scale, n.rstd));
    harness_near(h, "grad_x", grad_x, want, 1e-6 * (1 + most), 1e-6);
    double summed = n.rows < 150 ? 1e-5 : 1e-5 * (double)n.rows / 150;
    harness_near(h, "grad_scale", grad_scale, want_scale, n.type == ELEMENT_BF16 ? 0.05 : summed, 1e-5);
}

static void rmsnorm_check(struct harness *h) {
    for (int i = 0; i < 25; i++) {
        int64_t rows = harness_range(h, 1, harness_unit(h) < 0.2 ? 150 : 20), columns = harness_range(h, 1, 300);
        rmsnorm_check_rmsnorm(h, rows, columns);
        rmsnorm_check_rmsnorm_grad(h, rows, columns);
    }
    // Rows that several warps of a GPU share, and rows whose gradient of scale a block adds one after the other.
    rmsnorm_check_rmsnorm(h, 3, harness_range(h, 600, 1500));
    rmsnorm_check_rmsnorm_grad(h, 3, harness_range(h, 600, 1500));
    rmsnorm_check_rmsnorm_grad(h, harness_range(h, 3000, 6000), harness_range(h, 1, 40));
    rmsnorm_check_rmsnorm_grad(h, 1500, harness_range(h, 520, 600)); // both
    while (harness_next_layout(h)) {
        rmsnorm_check_rmsnorm(h, 7, harness_columns(h, 1, 300));
        rmsnorm_check_rmsnorm_grad(h, 7, harness_columns(h, 1, 300));
    }
}

// ---- timing ----

struct rmsnorm_timing {
    struct harness *h;
    struct tensor x, delta, out, scale, rstd, grad_scale;
};

static status rmsnorm_run(void *context) {
    struct rmsnorm_timing *t = context;
    return t->h->ops->rmsnorm(t->h->backend, t->out, t->x, t->delta, t->scale, 1e-6f, t->rstd);
}

static status rmsnorm_run_grad(void *context) {
    struct rmsnorm_timing *t = context;
    return t->h->ops->rmsnorm_grad(t->h->backend, t->delta, t->grad_scale, t->out, t->x, t->scale, t->rstd);
}

static void rmsnorm_time_all(struct harness *h) {
    enum { rows = 2200, columns = 768 };
    for (enum element type = ELEMENT_F32; type <= ELEMENT_BF16; type++) {
        const char *name = type == ELEMENT_BF16 ? "bf16" : "f32";
        double bytes = (double)rows * columns * (double)element_size(type);
        harness_case(h, "timing");
        struct rmsnorm_timing t = {h,
                                   harness_dense(h, type, rows, columns, FILL_NORMAL, 1),
                                   harness_dense(h, type, rows, columns, FILL_ZERO, 0),
                                   harness_dense(h, type, rows, columns, FILL_ZERO, 0),
                                   harness_dense(h, type, 1, columns, FILL_NORMAL, 1),
                                   harness_dense(h, ELEMENT_F32, rows, 1, FILL_NORMAL, 1),
                                   harness_dense(h, ELEMENT_F32, 1, columns, FILL_ZERO, 0)};
        harness_time(h, 0, 4 * bytes, rmsnorm_run, &t, "%s rmsnorm 2200x768", name);
        harness_time(h, 0, 4 * bytes, rmsnorm_run_grad, &t, "%s rmsnorm_grad 2200x768", name);
    }
}

const struct suite suite_rmsnorm = {"rmsnorm", rmsnorm_check, rmsnorm_time_all};
