// gather, scatter, scatter_add and add, against loops.
#include "tests/ops/harness.h"

#include <string.h>

static void gather_scatter_check_gather(struct harness *h) {
    int64_t rows = harness_range(h, 1, 40), table_rows = harness_range(h, 1, 50), columns = harness_range(h, 1, 200);
    enum element from = harness_float_type(h), to = harness_float_type(h);
    harness_case(h, "gather %lld of %lld x %lld, types %d %d", (long long)rows, (long long)table_rows,
                 (long long)columns, from, to);
    struct tensor table = harness_tensor(h, from, table_rows, columns, FILL_EDGES, 1),
                  index = harness_index(h, rows, table_rows);
    struct tensor out = harness_tensor(h, to, rows, columns, FILL_NORMAL, 1);
    harness_ok(h, h->ops->gather(h->backend, out, table, index));
    double *want = NULL;
    if (h->first) {
        double *values = harness_doubles(h, table);
        int32_t *numbers = harness_numbers(h, index);
        want = harness_memory(h, (size_t)(rows * columns) * sizeof *want);
        for (int64_t i = 0; i < rows * columns; i++) want[i] = values[numbers[i / columns] * columns + i % columns];
    }
    harness_near(h, "out", out, want, 1e-38, 0);
}

static void gather_scatter_check_scatter(struct harness *h) {
    int64_t rows = harness_range(h, 1, 40), out_rows = rows + harness_range(h, 0, 20),
            columns = harness_range(h, 1, 200);
    enum element from = harness_float_type(h), to = harness_float_type(h);
    harness_case(h, "scatter %lld to %lld x %lld, types %d %d", (long long)rows, (long long)out_rows,
                 (long long)columns, from, to);
    struct tensor in = harness_tensor(h, from, rows, columns, FILL_EDGES, 1), index = harness_index(h, rows, out_rows);
    struct tensor out = harness_tensor(h, to, out_rows, columns, FILL_NORMAL, 1);
    int32_t *numbers = harness_numbers(h, index);
    for (int64_t i = 0; i < rows; i++)
        numbers[i] = (int32_t)((i * 7 + 3) % out_rows); // distinct unless 7 divides out_rows
    for (int64_t i = 0; i < rows && out_rows % 7 == 0; i++) numbers[i] = (int32_t)(out_rows - 1 - i);
    harness_set(h, index, numbers);
    double *want = harness_doubles(h, out);
    harness_ok(h, h->ops->scatter(h->backend, out, in, index));
    if (h->first) {
        float *values = harness_values(h, in);
        for (int64_t i = 0; i < rows * columns; i++) want[numbers[i / columns] * columns + i % columns] = values[i];
    }
    harness_near(h, "out", out, want, 1e-38, 0);
}

static void gather_scatter_check_scatter_add(struct harness *h, int64_t most_rows) {
    int64_t rows = harness_range(h, 1, most_rows), out_rows = harness_range(h, 1, 20),
            columns = harness_columns(h, 1, 1200);
    enum element from = harness_float_type(h), to = harness_float_type(h);
    harness_case(h, "scatter_add %lld to %lld x %lld, types %d %d", (long long)rows, (long long)out_rows,
                 (long long)columns, from, to);
    struct tensor in = harness_tensor(h, from, rows, columns, FILL_EDGES, 1), index = harness_index(h, rows, out_rows);
    struct tensor out = harness_tensor(h, to, out_rows, columns, FILL_NORMAL, 1);
    float *sums = harness_values(h, out);
    harness_ok(h, h->ops->scatter_add(h->backend, out, in, index));
    float *values = harness_values(h, in);
    int32_t *numbers = harness_numbers(h, index);
    for (int64_t i = 0; i < rows * columns; i++) sums[numbers[i / columns] * columns + i % columns] += values[i];
    double *want = harness_memory(h, (size_t)(out_rows * columns) * sizeof *want);
    for (int64_t i = 0; i < out_rows * columns; i++) want[i] = (double)harness_rounded(sums[i], to);
    harness_near(h, "out", out, want, 0, 0); // float32 in the order of i, rounded once: to the bit
}

static void gather_scatter_check_add(struct harness *h) {
    int64_t rows = harness_range(h, 1, 40), columns = harness_columns(h, 1, 700);
    enum element from = harness_float_type(h), to = harness_float_type(h);
    harness_case(h, "add %lld x %lld, types %d %d", (long long)rows, (long long)columns, from, to);
    struct tensor in = harness_tensor(h, from, rows, columns, FILL_EDGES, 1),
                  out = harness_tensor(h, to, rows, columns, FILL_EDGES, 1);
    double *want = harness_doubles(h, out);
    harness_ok(h, h->ops->add(h->backend, out, in));
    float *values = harness_values(h, in);
    for (int64_t i = 0; i < rows * columns; i++) want[i] = (float)(want[i] + values[i]);
    harness_near(h, "out", out, want, 1e-38, 0);
}

static void gather_scatter_check_refusals(struct harness *h) {
    harness_case(h, "refusals");
    struct tensor table = harness_dense(h, ELEMENT_F32, 4, 5, FILL_NORMAL, 1),
                  out = harness_dense(h, ELEMENT_F32, 2, 5, FILL_ZERO, 1);
    struct tensor index = harness_index(h, 2, 4);
    harness_set(h, index, (int32_t[]){1, 4});
    harness_broken(h, h->ops->gather(h->backend, out, table, index), "an index beyond the table");
    harness_broken(h, h->ops->scatter(h->backend, table, out, index), "an index beyond the output");
    harness_set(h, index, (int32_t[]){-1, 0});
    harness_broken(h, h->ops->scatter_add(h->backend, table, out, index), "a negative index");
}

static void gather_scatter_check(struct harness *h) {
    for (int i = 0; i < 25; i++) {
        gather_scatter_check_gather(h);
        gather_scatter_check_scatter(h);
        gather_scatter_check_scatter_add(h, i < 20 ? 60 : 400); // more rows than a block of a GPU looks at together
        gather_scatter_check_add(h);
    }
    while (harness_next_layout(h)) {
        gather_scatter_check_scatter_add(h, 60);
        gather_scatter_check_add(h);
    }
    gather_scatter_check_refusals(h);
}

struct gather_scatter_timing {
    struct harness *h;
    struct tensor out, in, index;
};

static status gather_scatter_run_add(void *context) {
    struct gather_scatter_timing *t = context;
    return t->h->ops->add(t->h->backend, t->out, t->in);
}

static status gather_scatter_run_gather(void *context) {
    struct gather_scatter_timing *t = context;
    return t->h->ops->gather(t->h->backend, t->out, t->in, t->index);
}

static status gather_scatter_run_scatter_add(void *context) {
    struct gather_scatter_timing *t = context;
    return t->h->ops->scatter_add(t->h->backend, t->out, t->in, t->index);
}

static void gather_scatter_time_all(struct harness *h) {
    harness_case(h, "timing");
    struct gather_scatter_timing t = {h, harness_dense(h, ELEMENT_F32, 2200, 2048, FILL_ZERO, 1),
                                      harness_dense(h, ELEMENT_F32, 2200, 2048, FILL_NORMAL, 1),
                                      harness_index(h, 2200, 2200)};
    double elements = 2200.0 * 2048;
    harness_time(h, 0, 12 * elements, gather_scatter_run_add, &t, "add f32 2200x2048");
    harness_time(h, 0, 8 * elements, gather_scatter_run_gather, &t, "gather f32 2200x2048");
    harness_time(h, 0, 12 * elements, gather_scatter_run_scatter_add, &t, "scatter_add f32 2200x2048");
}

const struct suite suite_gather_scatter = {"gather_scatter", gather_scatter_check, gather_scatter_time_all};
