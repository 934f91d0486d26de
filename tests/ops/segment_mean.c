// segment_mean and its gradient, against double precision.
#include "tests/ops/harness.h"

#include <math.h>

// Lengths of segments, and where they begin.
static struct tensor segment_mean_begins(struct harness *h, int64_t segments, int64_t most, int64_t *rows) {
    struct tensor begins = harness_index(h, segments + 1, 1);
    int32_t *numbers = harness_numbers(h, begins), at = 0;
    *rows = 0;
    for (int64_t s = 0; s <= segments; s++) {
        numbers[s] = at;
        *rows = at;
        at += (int32_t)harness_range(h, 1, most);
    }
    harness_set(h, begins, numbers);
    return begins;
}

static void segment_mean_check_mean(struct harness *h, int64_t segments, int64_t most) {
    int64_t rows, columns = harness_columns(h, 1, 600);
    enum element from = harness_float_type(h), to = harness_float_type(h);
    harness_case(h, "segment_mean %lld of up to %lld rows x %lld, types %d %d", (long long)segments, (long long)most,
                 (long long)columns, from, to);
    struct tensor begins = segment_mean_begins(h, segments, most, &rows);
    struct tensor in = harness_tensor(h, from, rows, columns, FILL_NORMAL, 1);
    struct tensor out = harness_tensor(h, to, segments, columns, FILL_NORMAL, 1);
    const int32_t *begin = harness_numbers(h, begins);
    double *x = harness_doubles(h, in), *want = harness_doubles(h, out);
    harness_ok(h, h->ops->segment_mean(h->backend, out, in, begins));
    for (int64_t s = 0; s < segments; s++) {
        for (int64_t c = 0; c < columns; c++) {
            double sum = 0;
            for (int64_t t = begin[s]; t < begin[s + 1]; t++) sum += x[t * columns + c];
            want[s * columns + c] = sum / (begin[s + 1] - begin[s]);
        }
    }
    harness_near(h, "out", out, want, 2e-6, 1e-6);

    int64_t s = harness_range(h, 0, segments - 1), count = begin[s + 1] - begin[s];
    struct tensor alone = harness_tensor(h, to, 1, columns, FILL_ZERO, 0), ends = harness_index(h, 2, 1);
    harness_set(h, ends, (int32_t[]){0, (int32_t)count});
    harness_ok(h, h->ops->segment_mean(h->backend, alone, tensor_rows(in, begin[s], count), ends));
    harness_equal(h, "a segment alone", alone, tensor_rows(out, s, 1));
}

static void segment_mean_check_grad(struct harness *h, int64_t segments, int64_t most) {
    int64_t rows, columns = harness_columns(h, 1, 600);
    enum element from = harness_float_type(h), to = harness_float_type(h);
    harness_case(h, "segment_mean_grad %lld of up to %lld rows x %lld, types %d %d", (long long)segments,
                 (long long)most, (long long)columns, from, to);
    struct tensor begins = segment_mean_begins(h, segments, most, &rows);
    struct tensor grad_out = harness_tensor(h, from, segments, columns, FILL_NORMAL, 1);
    struct tensor grad_in = harness_tensor(h, to, rows, columns, FILL_NORMAL, 1);
    const int32_t *begin = harness_numbers(h, begins);
    double *grad = harness_doubles(h, grad_out), *want = harness_doubles(h, grad_in);
    harness_ok(h, h->ops->segment_mean_grad(h->backend, grad_in, grad_out, begins));
    for (int64_t s = 0; s < segments; s++) {
        for (int64_t i = begin[s] * columns; i < begin[s + 1] * columns; i++)
            want[i] = grad[s * columns + i % columns] / (begin[s + 1] - begin[s]);
    }
    harness_near(h, "grad_in", grad_in, want, 1e-38, 1e-7);
}

static void segment_mean_check_refusals(struct harness *h) {
    static const int32_t broken[][4] = {{1, 2, 4, 6}, {0, 2, 4, 5},  {0, 2, 4, 7}, {0, 2, 2, 6},
                                        {0, 4, 2, 6}, {0, -1, 4, 6}, {0, 7, 8, 6}, {-1, 2, 4, 6}};
    harness_case(h, "refusals");
    struct tensor begins = harness_index(h, 4, 1), out = harness_dense(h, ELEMENT_F32, 3, 5, FILL_ZERO, 0);
    struct tensor in = harness_dense(h, ELEMENT_F32, 6, 5, FILL_NORMAL, 1);
    harness_set(h, begins, (int32_t[]){0, 2, 4, 6});
    harness_broken(h, h->ops->segment_mean(h->backend, tensor_rows(out, 0, 2), in, begins), "a segment too few");
    harness_broken(h, h->ops->segment_mean(h->backend, tensor_columns(out, 0, 4), in, begins), "a column too few");
    harness_broken(h, h->ops->segment_mean_grad(h->backend, in, tensor_rows(out, 0, 2), begins), "a segment too few");
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        harness_set(h, begins, broken[i]);
        harness_broken(h, h->ops->segment_mean(h->backend, out, in, begins), "begins that are no segments");
        harness_broken(h, h->ops->segment_mean_grad(h->backend, in, out, begins), "begins that are no segments");
    }
}

static void segment_mean_check(struct harness *h) {
    for (int i = harness_repeats(h, 16); i > 0; i--) {
        int64_t segments = harness_range(h, 1, 6), most = i == 1 ? 300 : 40;
        segment_mean_check_mean(h, segments, most);
        segment_mean_check_grad(h, segments, most);
    }
    while (harness_next_layout(h)) {
        segment_mean_check_mean(h, 3, 40);
        segment_mean_check_grad(h, 3, 40);
    }
    segment_mean_check_refusals(h);
}

const struct suite suite_segment_mean = {"segment_mean", segment_mean_check, NULL};
