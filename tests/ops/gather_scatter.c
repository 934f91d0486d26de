// Rows that are copied or added, and patches.
#include "tests/ops/harness.h"

#include <math.h>
#include <string.h>

// ---- gather_scatter ----
//
// gather, scatter, scatter_add, add and scale, against loops.

static void gather_scatter_check_gather(struct harness *h) {
    int64_t rows = harness_range(h, 1, 40), table_rows = harness_range(h, 1, 50), columns = harness_columns(h, 1, 200);
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

static void gather_scatter_check_scale(struct harness *h) {
    int64_t rows = harness_range(h, 1, 40), columns = harness_columns(h, 1, 700);
    enum element from = harness_float_type(h), to = harness_float_type(h);
    const float factor = (float)harness_unit(h) * 3;
    const bool in_place = from == to && harness_unit(h) < 0.5;
    harness_case(h, "scale %lld x %lld, types %d %d%s", (long long)rows, (long long)columns, from, to,
                 in_place ? ", in place" : "");
    struct tensor in = harness_tensor(h, from, rows, columns, FILL_EDGES, 1),
                  out = in_place ? in : harness_tensor(h, to, rows, columns, FILL_NORMAL, 1);
    float *values = harness_values(h, in);
    double *want = harness_memory(h, (size_t)(rows * columns) * sizeof *want);
    for (int64_t i = 0; i < rows * columns; i++) want[i] = (double)harness_rounded(factor * values[i], to);
    harness_ok(h, h->ops->scale(h->backend, out, in, factor));
    harness_near(h, "out", out, want, 0, 0); // rounded once: to the bit
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
        gather_scatter_check_scale(h);
    }
    while (harness_next_layout(h)) {
        gather_scatter_check_gather(h);
        gather_scatter_check_scatter_add(h, 60);
        gather_scatter_check_add(h);
        gather_scatter_check_scale(h);
    }
    gather_scatter_check_refusals(h);
}

static void gather_scatter_time_all(struct harness *h) {
    harness_case(h, "timing");
    const struct tensor out = harness_dense(h, ELEMENT_F32, 2200, 2048, FILL_ZERO, 1);
    const struct tensor in = harness_dense(h, ELEMENT_F32, 2200, 2048, FILL_NORMAL, 1);
    const struct tensor index = harness_index(h, 2200, 2200);
    const double elements = 2200.0 * 2048;
    HARNESS_TIME(h, 0, 12 * elements, h->ops->add(h->backend, out, in), "add f32 2200x2048");
    HARNESS_TIME(h, 0, 8 * elements, h->ops->gather(h->backend, out, in, index), "gather f32 2200x2048");
    HARNESS_TIME(h, 0, 12 * elements, h->ops->scatter_add(h->backend, out, in, index), "scatter_add f32 2200x2048");
}

const struct suite suite_gather_scatter = {"gather_scatter", gather_scatter_check, gather_scatter_time_all};

// ---- segment_mean ----
//
// segment_mean and its gradient, against double precision.

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

// ---- patchify ----
//
// Frames to patches, against loops over every index in the order of Hugging Face's reshape and transpose.

static double patchify_expected_value(const struct patch_shape *s, int channel, int byte) {
    return ((double)((float)byte * s->rescale_factor) - s->image_mean[channel]) / s->image_std[channel];
}

// Order of rows: time, block row, block column, row in the block, column in the block.
static double *patchify_reference(struct harness *h, const struct patch_shape *s, const uint8_t *frames) {
    int times = (s->frames + s->temporal_patch_size - 1) / s->temporal_patch_size, unit = s->patch_size * s->merge_size;
    double *want = harness_memory(h, (size_t)times * (size_t)(s->temporal_patch_size * s->height * s->width * 3) *
                                         sizeof *want),
           *at = want;
    for (int t = 0; t < times; t++)
        for (int block_y = 0; block_y < s->height / unit; block_y++)
            for (int block_x = 0; block_x < s->width / unit; block_x++)
                for (int y = 0; y < s->merge_size; y++)
                    for (int x = 0; x < s->merge_size; x++)
                        for (int c = 0; c < 3; c++)
                            for (int dt = 0; dt < s->temporal_patch_size; dt++)
                                for (int dy = 0; dy < s->patch_size; dy++)
                                    for (int dx = 0; dx < s->patch_size; dx++) {
                                        int frame = t * s->temporal_patch_size + dt < s->frames
                                                        ? t * s->temporal_patch_size + dt
                                                        : s->frames - 1;
                                        int row = block_y * unit + y * s->patch_size + dy;
                                        int column = block_x * unit + x * s->patch_size + dx;
                                        *at++ = patchify_expected_value(
                                            s, c, frames[((frame * s->height + row) * s->width + column) * 3 + c]);
                                    }
    return want;
}

static void patchify_check(struct harness *h) {
    for (int i = 0; i < 12; i++) {
        struct patch_shape s = {.patch_size = (int)harness_range(h, 1, 14),
                                .temporal_patch_size = 2,
                                .merge_size = 2,
                                .rescale_factor = 1.0f / 255,
                                .image_mean = {0.48145466f, 0.4578275f, 0.40821073f},
                                .image_std = {0.26862954f, 0.26130258f, 0.27577711f}};
        s.frames = harness_unit(h) < 0.3 ? 1 : 2 * (int)harness_range(h, 1, 3);
        s.height = s.patch_size * 2 * (int)harness_range(h, 1, 4);
        s.width = s.patch_size * 2 * (int)harness_range(h, 1, 4);
        harness_case(h, "%d frames %d x %d, patch %d", s.frames, s.height, s.width, s.patch_size);
        int64_t bytes = (int64_t)s.height * s.width * 3;
        struct tensor frames =
            harness_dense(h, ELEMENT_F32, s.frames, (bytes + 3) / 4, FILL_ZERO, 0); // memory for the bytes
        frames = (struct tensor){frames.buffer, frames.offset, ELEMENT_U8, s.frames, bytes, bytes};
        uint8_t *pixels = harness_memory(h, (size_t)(s.frames * bytes));
        for (int64_t j = 0; j < s.frames * bytes; j++) pixels[j] = (uint8_t)harness_range(h, 0, 255);
        harness_ok(h, h->ops->upload(h->backend, frames, pixels, ELEMENT_U8));
        int64_t patches = (int64_t)((s.frames + 1) / 2) * (s.height / s.patch_size) * (s.width / s.patch_size);
        struct tensor out = harness_tensor(h, i % 2 ? ELEMENT_BF16 : ELEMENT_F32, patches,
                                           (int64_t)6 * s.patch_size * s.patch_size, FILL_ZERO, 0);
        harness_ok(h, h->ops->patchify(h->backend, out, frames, &s));
        harness_near(h, "patches", out, h->first ? patchify_reference(h, &s, pixels) : NULL, 1e-6, 1e-6);
    }
}

const struct suite suite_patchify = {"patchify", patchify_check, NULL};
