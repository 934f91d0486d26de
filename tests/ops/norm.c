// The norms and their gradients.
#include "tests/ops/harness.h"

#include <math.h>

// ---- rmsnorm ----
//
// rmsnorm and its gradient, against double precision.

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
        for (int64_t i = 0; i < n.rows * n.columns; i++) want_x[i] = harness_rounded(x[i] + more[i], n.type);
    }
    harness_ok(h, h->ops->rmsnorm(h->backend, out, n.x, delta, n.scale, 1e-6f, n.rstd));
    for (int64_t row = 0; row < n.rows; row++) {
        double sum = 0;
        for (int64_t c = 0; c < n.columns; c++) sum += want_x[row * n.columns + c] * want_x[row * n.columns + c];
        want_rstd[row] = 1 / sqrt(sum / (double)n.columns + 1e-6);
        for (int64_t c = 0; c < n.columns; c++)
            want[row * n.columns + c] =
                want_x[row * n.columns + c] * want_rstd[row] * (double)harness_rounded(scale[c], n.type);
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
            want_scale[c] += g[i] * (double)harness_rounded((float)(x[i] * r[row]), n.type);
            g[i] *= (double)harness_rounded((float)scale[c], n.type);
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

static void rmsnorm_time_all(struct harness *h) {
    enum { rows = 2200, columns = 768 };
    for (enum element type = ELEMENT_F32; type <= ELEMENT_BF16; type++) {
        const char *name = type == ELEMENT_BF16 ? "bf16" : "f32";
        double bytes = (double)rows * columns * (double)element_size(type);
        harness_case(h, "timing");
        const struct tensor x = harness_dense(h, type, rows, columns, FILL_NORMAL, 1);
        const struct tensor delta = harness_dense(h, type, rows, columns, FILL_ZERO, 0);
        const struct tensor out = harness_dense(h, type, rows, columns, FILL_ZERO, 0);
        const struct tensor scale = harness_dense(h, type, 1, columns, FILL_NORMAL, 1);
        const struct tensor rstd = harness_dense(h, ELEMENT_F32, rows, 1, FILL_NORMAL, 1);
        const struct tensor grad_scale = harness_dense(h, ELEMENT_F32, 1, columns, FILL_ZERO, 0);
        HARNESS_TIME(h, 0, 4 * bytes, h->ops->rmsnorm(h->backend, out, x, delta, scale, 1e-6f, rstd),
                     "%s rmsnorm 2200x768", name);
        HARNESS_TIME(h, 0, 4 * bytes, h->ops->rmsnorm_grad(h->backend, delta, grad_scale, out, x, scale, rstd),
                     "%s rmsnorm_grad 2200x768", name);
    }
}

const struct suite suite_rmsnorm = {"rmsnorm", rmsnorm_check, rmsnorm_time_all};

// ---- layernorm ----
//
// layernorm and its gradient, against double precision.

static const double layernorm_epsilon = 1e-5;

struct layernorm_case {
    enum element type;
    int64_t rows, columns;
    struct tensor x, scale, bias, statistics;
};

// A row's mean may be much larger than its deviation.
static struct layernorm_case layernorm_set_up(struct harness *h, const char *what, int64_t rows, int64_t columns) {
    struct layernorm_case n = {.type = harness_float_type(h), .rows = rows, .columns = columns};
    enum element scale = harness_float_type(h);
    bool biased = harness_unit(h) < 0.5;
    harness_case(h, "%s: %lld x %lld, type %d, scale %d, bias %d", what, (long long)rows, (long long)columns, n.type,
                 scale, biased);
    n.x = harness_tensor(h, n.type, rows, columns, FILL_NORMAL, harness_unit(h) < 0.2 ? 1e-3 : 2);
    n.scale = harness_tensor(h, scale, 1, columns, FILL_NORMAL, 1);
    if (biased) n.bias = harness_tensor(h, scale, 1, columns, FILL_NORMAL, 1);
    n.statistics = harness_dense(h, ELEMENT_F32, rows, 2, FILL_ZERO, 0);
    if (harness_unit(h) < 0.3) {
        float *x = harness_values(h, n.x);
        for (int64_t i = 0; i < rows * columns; i++) x[i] += 30;
        harness_set(h, n.x, x);
    }
    return n;
}

// statistics [T,2] = mean, rstd of the rows of x.
static void layernorm_statistics(double *statistics, const double *x, int64_t rows, int64_t columns) {
    for (int64_t row = 0; row < rows; row++) {
        double sum = 0, squares = 0, mean;
        for (int64_t c = 0; c < columns; c++) sum += x[row * columns + c];
        mean = sum / (double)columns;
        for (int64_t c = 0; c < columns; c++) squares += (x[row * columns + c] - mean) * (x[row * columns + c] - mean);
        statistics[2 * row] = mean;
        statistics[2 * row + 1] = 1 / sqrt(squares / (double)columns + layernorm_epsilon);
    }
}

static status layernorm_call(struct harness *h, struct layernorm_case n, struct tensor out, struct tensor delta) {
    return h->ops->layernorm(h->backend, out, n.x, delta, n.scale, n.bias, (float)layernorm_epsilon, n.statistics);
}

static void layernorm_check_layernorm(struct harness *h, int64_t rows, int64_t columns) {
    struct layernorm_case n = layernorm_set_up(h, "layernorm", rows, columns);
    struct tensor delta = {0}, out = harness_tensor(h, n.type, rows, columns, FILL_NORMAL, 1);
    double *want = harness_doubles(h, out), *want_x = harness_doubles(h, n.x);
    double *want_statistics = harness_doubles(h, n.statistics), *scale = harness_doubles(h, n.scale), *bias = NULL;
    if (!n.bias.buffer || harness_unit(h) < 0.6) {
        float *x = harness_values(h, n.x), *more;
        delta = harness_tensor(h, n.type, rows, columns, FILL_NORMAL, 1);
        more = harness_values(h, delta);
        for (int64_t i = 0; i < rows * columns; i++) want_x[i] = (double)harness_rounded(x[i] + more[i], n.type);
    }
    if (n.bias.buffer) bias = harness_doubles(h, n.bias);
    harness_ok(h, layernorm_call(h, n, out, delta));
    layernorm_statistics(want_statistics, want_x, rows, columns);
    double most = 0, most_mean = 0; // an error of the mean counts by rstd
    for (int64_t i = 0; i < rows * columns; i++) {
        double mean = want_statistics[i / columns * 2], rstd = want_statistics[i / columns * 2 + 1];
        want[i] = scale[i % columns] * (want_x[i] - mean) * rstd + (bias ? bias[i % columns] : 0);
        most = fmax(most, fabs(scale[i % columns]) * (1 + fabs(mean) * rstd));
        most_mean = fmax(most_mean, fabs(mean));
    }
    harness_near(h, "x", n.x, want_x, 0, 0);
    harness_near(h, "statistics", n.statistics, want_statistics, 1e-6 * (1 + most_mean), 2e-6);
    harness_near(h, "out", out, want, 1e-6 * (1 + most), 1e-6);

    int64_t row = harness_range(h, 0, rows - 1); // x has had its delta
    struct tensor alone = harness_tensor(h, n.type, 1, columns, FILL_ZERO, 0), none = {0};
    struct layernorm_case one = n;
    one.x = tensor_rows(n.x, row, 1);
    one.statistics = none;
    harness_ok(h, layernorm_call(h, one, alone, none));
    harness_equal(h, "a row alone", alone, tensor_rows(out, row, 1));
    n.statistics = none;
    harness_ok(h, layernorm_call(h, n, n.x, none));
    harness_equal(h, "out in place of x", n.x, out);
}

// With n = (x - mean) rstd and g = grad_out scale: rstd (g - mean(g) - n mean(g n)).
static void layernorm_check_layernorm_grad(struct harness *h, int64_t rows, int64_t columns) {
    struct layernorm_case n = layernorm_set_up(h, "layernorm_grad", rows, columns);
    struct tensor out = harness_dense(h, n.type, rows, columns, FILL_ZERO, 0), none = {0};
    struct tensor grad_out = harness_tensor(h, n.type, rows, columns, FILL_NORMAL, 1);
    struct tensor grad_x = harness_tensor(h, n.type, rows, columns, FILL_NORMAL, 1);
    struct tensor grad_scale = harness_tensor(h, ELEMENT_F32, 1, columns, FILL_NORMAL, 1);
    struct tensor grad_bias = harness_tensor(h, ELEMENT_F32, 1, columns, FILL_NORMAL, 1);
    harness_ok(h, layernorm_call(h, n, out, none));
    double *want = harness_doubles(h, grad_x), *want_scale = harness_doubles(h, grad_scale);
    double *want_bias = harness_doubles(h, grad_bias), *scale = harness_doubles(h, n.scale);
    double *normal = harness_doubles(h, n.x), *g = harness_doubles(h, grad_out);
    double *statistics = harness_doubles(h, n.statistics), most = 0;
    for (int64_t row = 0; row < rows; row++) {
        double sum = 0, products = 0, mean = statistics[2 * row], rstd = statistics[2 * row + 1];
        for (int64_t i = row * columns; i < (row + 1) * columns; i++) {
            normal[i] = (normal[i] - mean) * rstd;
            want_scale[i % columns] += g[i] * normal[i];
            want_bias[i % columns] += g[i];
            g[i] *= scale[i % columns];
            sum += g[i] / (double)columns;
            products += g[i] * normal[i] / (double)columns;
        }
        for (int64_t i = row * columns; i < (row + 1) * columns; i++) {
            want[i] += rstd * (g[i] - sum - normal[i] * products);
            most = fmax(most, rstd * (fabs(g[i]) + fabs(sum) + fabs(normal[i] * products)));
        }
    }
    bool scaled = harness_unit(h) < 0.8, biased = n.bias.buffer;
    harness_ok(h, h->ops->layernorm_grad(h->backend, grad_x, scaled ? grad_scale : none, biased ? grad_bias : none,
                                         grad_out, n.x, n.scale, n.statistics));
    harness_near(h, "grad_x", grad_x, want, 1e-6 * (1 + most), 1e-6);
    double summed = rows < 150 ? 1e-5 : 1e-5 * (double)rows / 150;
    if (scaled) harness_near(h, "grad_scale", grad_scale, want_scale, summed, 1e-5);
    if (biased) harness_near(h, "grad_bias", grad_bias, want_bias, summed, 1e-5);
}

static void layernorm_check_refusals(struct harness *h) {
    harness_case(h, "refusals");
    struct tensor x = harness_dense(h, ELEMENT_F32, 4, 6, FILL_NORMAL, 1), none = {0};
    struct tensor out = harness_dense(h, ELEMENT_F32, 4, 6, FILL_ZERO, 0);
    struct tensor scale = harness_dense(h, ELEMENT_F32, 1, 6, FILL_NORMAL, 1);
    struct tensor statistics = harness_dense(h, ELEMENT_F32, 4, 2, FILL_ZERO, 0), five = tensor_columns(scale, 0, 5);
    struct layernorm_case good = {.x = x, .scale = scale, .bias = scale, .statistics = statistics}, bad = good;
    harness_broken(h, layernorm_call(h, good, tensor_rows(out, 0, 3), none), "an output of fewer rows");
    harness_broken(h, layernorm_call(h, good, out, tensor_columns(x, 0, 5)), "a delta of fewer columns");
    bad.scale = five;
    harness_broken(h, layernorm_call(h, bad, out, none), "a scale of fewer columns");
    bad = good;
    bad.bias = five;
    harness_broken(h, layernorm_call(h, bad, out, none), "a bias of fewer columns");
    bad = good;
    bad.statistics = tensor_columns(statistics, 0, 1);
    harness_broken(h, layernorm_call(h, bad, out, none), "one column of statistics");
    status (*grad)(struct backend *, struct tensor, struct tensor, struct tensor, struct tensor, struct tensor,
                   struct tensor, struct tensor) = h->ops->layernorm_grad;
    harness_broken(h, grad(h->backend, out, none, none, x, x, scale, none), "no statistics");
    harness_broken(h, grad(h->backend, out, five, none, x, x, scale, statistics), "a short gradient of scale");
    harness_broken(h, grad(h->backend, out, none, five, x, x, scale, statistics), "a short gradient of bias");
}

static void layernorm_check(struct harness *h) {
    for (int i = harness_repeats(h, 25); i > 0; i--) {
        int64_t rows = harness_range(h, 1, harness_unit(h) < 0.2 ? 150 : 20), columns = harness_range(h, 1, 300);
        layernorm_check_layernorm(h, rows, columns);
        layernorm_check_layernorm_grad(h, rows, columns);
    }
    // Rows that several warps of a GPU share, and rows whose gradient of scale a block adds one after the other.
    layernorm_check_layernorm(h, 3, harness_range(h, 600, 1500));
    layernorm_check_layernorm_grad(h, 3, harness_range(h, 600, 1500));
    layernorm_check_layernorm_grad(h, harness_range(h, 3000, 4000), harness_range(h, 1, 20));
    while (harness_next_layout(h)) {
        layernorm_check_layernorm(h, 7, harness_columns(h, 1, 300));
        layernorm_check_layernorm_grad(h, 7, harness_columns(h, 1, 300));
    }
    layernorm_check_refusals(h);
}

// ---- timing ----

static void layernorm_time_all(struct harness *h) {
    enum { rows = 5600, columns = 1024 };
    for (enum element type = ELEMENT_F32; type <= ELEMENT_BF16; type++) {
        const char *name = type == ELEMENT_BF16 ? "bf16" : "f32";
        double bytes = (double)rows * columns * (double)element_size(type);
        harness_case(h, "timing");
        const struct tensor x = harness_dense(h, type, rows, columns, FILL_NORMAL, 1), none = {0};
        const struct tensor delta = harness_dense(h, type, rows, columns, FILL_ZERO, 0);
        const struct tensor out = harness_dense(h, type, rows, columns, FILL_ZERO, 0);
        const struct tensor scale = harness_dense(h, type, 1, columns, FILL_NORMAL, 1);
        const struct tensor statistics = harness_dense(h, ELEMENT_F32, rows, 2, FILL_NORMAL, 1);
        const struct tensor grad_scale = harness_dense(h, ELEMENT_F32, 1, columns, FILL_ZERO, 0);
        HARNESS_TIME(h, 0, 4 * bytes, h->ops->layernorm(h->backend, out, x, delta, scale, none, 1e-5f, statistics),
                     "%s layernorm 5600x1024", name);
        HARNESS_TIME(h, 0, 4 * bytes,
                     h->ops->layernorm_grad(h->backend, delta, grad_scale, none, out, x, scale, statistics),
                     "%s layernorm_grad 5600x1024", name);
    }
}

const struct suite suite_layernorm = {"layernorm", layernorm_check, layernorm_time_all};
