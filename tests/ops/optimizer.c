// square_sum, adamw over several steps, ema.
#include "tests/ops/harness.h"

#include <math.h>
#include <stdio.h>

static void optimizer_check_square_sum(struct harness *h) {
    int64_t rows = harness_range(h, 1, 5), columns = harness_range(h, 1, harness_unit(h) < 0.3 ? 70000 : 300);
    harness_case(h, "square_sum %lld x %lld", (long long)rows, (long long)columns);
    struct tensor in = harness_dense(h, ELEMENT_F32, rows, columns, FILL_EDGES, 1);
    double sum = 0.25, want = 0.25;
    harness_ok(h, h->ops->square_sum(h->backend, &sum, in));
    float *values = harness_values(h, in);
    for (int64_t i = 0; i < rows * columns; i++) want += (double)values[i] * values[i];
    harness_hold(h, fabs(sum - want) <= 1e-12 * want, "%.17g, not %.17g", sum, want);
    struct tensor both =
        harness_dense(h, ELEMENT_F32, 1, 2, FILL_ZERO, 0); // the bits of the double must be the same in all versions
    union {
        double sum;
        float halves[2];
    } bits = {sum};
    harness_set(h, both, bits.halves);
    harness_same(h, "sum", both);
}

struct adamw_reference {
    double *x, *m, *v;
    float *gradient;
    int64_t count;
};

static void optimizer_adamw_reference_step(const struct adamw_reference *r, const struct adamw_options *options,
                                           bool decay) {
    double first = 1 - pow(options->beta1, (double)options->step),
           second = 1 - pow(options->beta2, (double)options->step);
    for (int64_t i = 0; i < r->count; i++) {
        double g = r->gradient[i] * options->grad_scale;
        r->m[i] = options->beta1 * r->m[i] + (1 - options->beta1) * g;
        r->v[i] = options->beta2 * r->v[i] + (1 - options->beta2) * g * g;
        if (decay) r->x[i] -= options->lr * options->weight_decay * r->x[i];
        r->x[i] -= options->lr * (r->m[i] / first) / (sqrt(r->v[i] / second) + options->eps);
    }
}

static void optimizer_check_adamw(struct harness *h) {
    enum { ranges = 2, steps = 3 };
    harness_case(h, "adamw");
    struct adamw_range range[ranges];
    struct adamw_reference want[ranges];
    double scales[] = {1, 1e-3, 1e3, 1e-7};
    for (int i = 0; i < ranges; i++) {
        int64_t rows = harness_range(h, 1, 3), columns = harness_range(h, 1, harness_unit(h) < 0.2 ? 70000 : 200);
        range[i].param = harness_dense(h, ELEMENT_F32, rows, columns, FILL_NORMAL, 1);
        range[i].grad = harness_dense(h, ELEMENT_F32, rows, columns, FILL_EDGES, scales[harness_range(h, 0, 3)]);
        range[i].exp_avg = harness_dense(h, ELEMENT_F32, rows, columns, FILL_ZERO, 0);
        range[i].exp_avg_sq = harness_dense(h, ELEMENT_F32, rows, columns, FILL_ZERO, 0);
        range[i].decay = i % 2 == 0;
        want[i] = (struct adamw_reference){harness_doubles(h, range[i].param), harness_doubles(h, range[i].exp_avg),
                                           harness_doubles(h, range[i].exp_avg_sq), harness_values(h, range[i].grad),
                                           rows * columns};
    }
    for (int step = 1; step <= steps; step++) {
        struct adamw_options options = {.lr = 1e-2,
                                        .beta1 = 0.9,
                                        .beta2 = 0.999,
                                        .eps = 1e-8,
                                        .weight_decay = 0.01,
                                        .grad_scale = step == 2 ? 0.37 : 1,
                                        .step = step};
        harness_ok(h, h->ops->adamw(h->backend, range, ranges, &options));
        for (int i = 0; i < ranges; i++) optimizer_adamw_reference_step(&want[i], &options, range[i].decay);
    }
    for (int i = 0; i < ranges; i++) {
        harness_near(h, "parameter", range[i].param, want[i].x, 1e-6, 1e-6);
        harness_near(h, "exp_avg", range[i].exp_avg, want[i].m, 1e-30, 2e-6);
        harness_near(h, "exp_avg_sq", range[i].exp_avg_sq, want[i].v, 1e-37, 2e-6);
    }
}

static void optimizer_check_ema(struct harness *h) {
    int64_t columns = harness_range(h, 1, harness_unit(h) < 0.2 ? 70000 : 500);
    harness_case(h, "ema of %lld", (long long)columns);
    struct tensor average = harness_dense(h, ELEMENT_F32, 2, columns, FILL_EDGES, 1),
                  in = harness_dense(h, ELEMENT_F32, 2, columns, FILL_EDGES, 1);
    double *want = harness_doubles(h, average);
    float *values = harness_values(h, in);
    harness_ok(h, h->ops->ema(h->backend, average, in, 0.995));
    for (int64_t i = 0; i < 2 * columns; i++) want[i] = 0.995 * want[i] + 0.005 * values[i];
    harness_near(h, "ema", average, want, 5e-7, 1e-6);
    harness_set(h, in, values = harness_values(h, average)); // apart from -0, which becomes 0, nothing changes
    harness_ok(h, h->ops->ema(h->backend, average, in, 0.995));
    for (int64_t i = 0; i < 2 * columns; i++) want[i] = values[i];
    harness_near(h, "the ema of equal tensors", average, want, 0, 0);
}

static void optimizer_check(struct harness *h) {
    for (int i = 0; i < 15; i++) {
        optimizer_check_square_sum(h);
        optimizer_check_adamw(h);
        optimizer_check_ema(h);
    }
}

struct optimizer_timing {
    struct harness *h;
    struct adamw_range range;
};

static status optimizer_run_adamw(void *context) {
    struct optimizer_timing *t = context;
    struct adamw_options options = {
        .lr = 1e-6, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01, .grad_scale = 1, .step = 3};
    return t->h->ops->adamw(t->h->backend, &t->range, 1, &options);
}

static status optimizer_run_ema(void *context) {
    struct optimizer_timing *t = context;
    return t->h->ops->ema(t->h->backend, t->range.exp_avg, t->range.grad, 0.995);
}

static status optimizer_run_square_sum(void *context) {
    struct optimizer_timing *t = context;
    double sum = 0;
    return t->h->ops->square_sum(t->h->backend, &sum, t->range.grad);
}

static void optimizer_time_all(struct harness *h) {
    harness_case(h, "timing");
    struct optimizer_timing t = {.h = h, .range.decay = true};
    struct tensor *parts[] = {&t.range.param, &t.range.grad, &t.range.exp_avg, &t.range.exp_avg_sq};
    for (int i = 0; i < 4; i++)
        *parts[i] = harness_dense(h, ELEMENT_F32, 4096, 4096, i == 3 ? FILL_ZERO : FILL_NORMAL, 1);
    double elements = 4096.0 * 4096;
    harness_time(h, 0, 28 * elements, optimizer_run_adamw, &t, "adamw 16 M");
    harness_time(h, 0, 12 * elements, optimizer_run_ema, &t, "ema 16 M");
    harness_time(h, 0, 4 * elements, optimizer_run_square_sum, &t, "square_sum 16 M");
}

const struct suite suite_optimizer = {"optimizer", optimizer_check, optimizer_time_all};
