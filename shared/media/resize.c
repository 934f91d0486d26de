#include "shared/media/resize.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/memory.h"

// ---- the filter ----

// The weights of an antialiased bicubic filter (a = -0.5) along one axis; when an image shrinks, the filter is widened
// by the scale. output[i] = sum over j of weights[i * taps + j] * input[first[i] + j], with j < taps. Every output has
// `taps` weights; those that it does not need are 0. first[i] + taps never exceeds `in`.
struct resize_filter {
    int in, out, taps;
    int *first;
    float *weights; // of a video
    int32_t *fixed; // of an image: the weights x 2^FIXED_BITS, rounded
};

enum { FIXED_BITS = 22, FIXED_HALF = 1 << (FIXED_BITS - 1) };

// The sum of 255 times the weights of a pixel, some of which are negative, stays below 2^31.
static_assert(255LL << FIXED_BITS < INT32_MAX / 2, "the sums of an image's resampler fit 32 bits");

static void resize_filter_release(struct resize_filter *filter) {
    free(filter->first);
    free(filter->weights);
    free(filter->fixed);
    *filter = (struct resize_filter){0};
}

static void resize_filter_alloc(struct resize_filter *filter, int in, int out) {
    assert(in > 0 && out > 0);
    double scale = (double)in / out, support = 2 * (scale < 1 ? 1 : scale), taps = ceil(support) * 2 + 1;
    *filter = (struct resize_filter){.in = in, .out = out, .taps = taps > in ? in : (int)taps};
    NEW(&filter->first, (size_t)out);
}

// Returns and sets first[i]: `begin`, or lower near the end of the input, so that no read passes it. The spare weights,
// which are 0, then come first.
static int resize_filter_set_first(struct resize_filter *filter, int i, int begin) {
    filter->first[i] = begin + filter->taps > filter->in ? filter->in - filter->taps : begin;
    assert(filter->first[i] >= 0 && filter->first[i] <= begin);
    return filter->first[i];
}

// The weights from `in` to `out` pixels in float32, step by step and with fused multiply-adds as torchvision's native
// code: levels that lie on a half, which are 1 in 1,000, then round to the same side.
static void resize_filter_init_f32(struct resize_filter *filter, int in, int out) {
    const float a = -0.5F;
    resize_filter_alloc(filter, in, out);
    NEW(&filter->weights, (size_t)out * (size_t)filter->taps);
    float scale = (float)in / (float)out;
    float support = scale >= 1 ? 2 * scale : 2, inverse = scale >= 1 ? 1 / scale : 1;
    for (int i = 0; i < out; i++) {
        float center = (float)(scale * (i + 0.5));
        int begin = (int)((center - support) + 0.5), end = (int)((center + support) + 0.5);
        if (begin < 0) begin = 0;
        if (end > in) end = in;
        int first = resize_filter_set_first(filter, i, begin);
        float *weights = filter->weights + (size_t)i * (size_t)filter->taps;
        float sum = 0;
        for (int x = begin; x < end; x++) {
            float d = fabsf((float)(((float)x - center + 0.5) * inverse)), weight = 0;
            if (d < 1)
                weight = fmaf(fmaf(a + 2, d, -(a + 3)) * d, d, 1);
            else if (d < 2)
                weight = fmaf(fmaf(fmaf(a, d, -(5 * a)), d, 8 * a), d, -(4 * a));
            weights[x - first] = weight;
            sum += weight;
        }
        for (int x = begin; x < end && sum != 0; x++) weights[x - first] /= sum;
    }
}

// The weights from `in` to `out` pixels in float64, as Pillow computes them, then rounded.
static void resize_filter_init_fixed(struct resize_filter *filter, int in, int out) {
    const double a = -0.5;
    double *weights;
    resize_filter_alloc(filter, in, out);
    NEW(&filter->fixed, (size_t)out * (size_t)filter->taps);
    NEW(&weights, (size_t)filter->taps);
    double scale = (double)in / out, filter_scale = scale < 1 ? 1 : scale;
    for (int i = 0; i < out; i++) {
        double center = (i + 0.5) * scale, support = 2 * filter_scale;
        int begin = (int)(center - support + 0.5), end = (int)(center + support + 0.5);
        if (begin < 0) begin = 0;
        if (end > in) end = in;
        int first = resize_filter_set_first(filter, i, begin);
        int32_t *fixed = filter->fixed + (size_t)i * (size_t)filter->taps;
        double inverse = 1 / filter_scale, sum = 0;
        for (int x = begin; x < end; x++) {
            double d = fabs((x - center + 0.5) * inverse), weight = 0;
            if (d < 1)
                weight = ((a + 2) * d - (a + 3)) * d * d + 1;
            else if (d < 2)
                weight = (((d - 5) * d + 8) * d - 4) * a;
            weights[x - begin] = weight;
            sum += weight;
        }
        double norm = sum != 0 ? 1 / sum : 0;
        for (int x = begin; x < end; x++) { // halves are rounded away from zero
            double weight = weights[x - begin] * norm * (1 << FIXED_BITS);
            fixed[x - first] = (int32_t)(weight < 0 ? weight - 0.5 : weight + 0.5);
        }
    }
    free(weights);
}

// ---- videos: float32 ----

enum { RESIZE_PADDING = 16 }; // floats that vector code may read or write past a row

// Each input row is filtered horizontally once. The results that the next output row needs are kept in a ring.
struct resizer {
    const struct resize_ops *ops;
    struct resize_filter vertical, horizontal;
    float *horizontal_weights; // [out width / 4][taps][4]
    float *in_row;             // one input row as floats
    float *ring;               // [vertical taps][ring_stride]
    size_t ring_stride;        // out width, RGB, padding
    const float **rows;        // [vertical taps]: the ring's rows in order
};

static void resize_horizontal_c(float *out, float *row, const uint8_t *in, int count, const int *first,
                                const float *weights, int taps, int width) {
    for (int i = 0; i < count; i++) row[i] = in[i];
    for (int x = 0; x < width; x++) {
        const float *column = weights + (size_t)(x / 4) * (size_t)taps * 4 + x % 4;
        const float *from = row + (size_t)first[x] * 3;
        float sum[3] = {0};
        for (int j = 0; j < taps; j++) {
            for (int c = 0; c < 3; c++) sum[c] = fmaf(column[(size_t)j * 4], from[j * 3 + c], sum[c]);
        }
        for (int c = 0; c < 3; c++) out[x * 3 + c] = sum[c];
    }
}

static void resize_vertical_c(uint8_t *out, const float *const *rows, const float *weights, int taps, int count) {
    for (int i = 0; i < count; i++) {
        float sum = 0;
        for (int j = 0; j < taps; j++) sum = fmaf(weights[j], rows[j][i], sum);
        out[i] = (uint8_t)rintf(fminf(fmaxf(sum, 0), 255));
    }
}

const struct resize_ops resize_c = {"c", resize_horizontal_c, resize_vertical_c};

const struct resize_ops *const *resize_ops_available(int *count) {
    static const struct resize_ops *const versions[] = {&resize_c, &resize_avx2};
    *count = 1;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) *count = 2;
#endif
    return versions;
}

void resizer_set_ops(struct resizer *resizer, const struct resize_ops *ops) {
    resizer->ops = ops;
}

static float *resizer_ring_row(const struct resizer *resizer, int y) {
    return resizer->ring + (size_t)(y % resizer->vertical.taps) * resizer->ring_stride;
}

status resizer_new(struct resizer **out, int in_height, int in_width, int out_height, int out_width) {
    *out = NULL;
    if (out_width % 4) return fail(BUG, "a video's width must be a multiple of 4, not %d", out_width);
    struct resizer *resizer;
    status result;
    NEW(&resizer, 1);
    int count;
    const struct resize_ops *const *versions = resize_ops_available(&count);
    resizer->ops = versions[count - 1];
    const struct resize_filter *vertical = &resizer->vertical, *horizontal = &resizer->horizontal;
    resize_filter_init_f32(&resizer->vertical, in_height, out_height);
    resize_filter_init_f32(&resizer->horizontal, in_width, out_width);
    size_t rows = (size_t)vertical->taps, taps = (size_t)horizontal->taps;
    NEW(&resizer->horizontal_weights, (size_t)out_width * taps);
    NEW(&resizer->rows, rows);
    resizer->ring_stride = (size_t)out_width * 3 + RESIZE_PADDING;
    TRY_TO(result, failure, NEW_LARGE(&resizer->ring, rows * resizer->ring_stride));
    NEW(&resizer->in_row, (size_t)in_width * 3 + RESIZE_PADDING);
    for (size_t x = 0; x < (size_t)out_width; x++) {
        for (size_t j = 0; j < taps; j++) {
            resizer->horizontal_weights[(x / 4 * taps + j) * 4 + x % 4] = horizontal->weights[x * taps + j];
        }
    }
    *out = resizer;
    return OK;
failure:
    resizer_free(&resizer);
    return result;
}

void resizer_free(struct resizer **out) {
    struct resizer *resizer = *out;
    if (!resizer) return;
    resize_filter_release(&resizer->vertical);
    resize_filter_release(&resizer->horizontal);
    free(resizer->horizontal_weights);
    free(resizer->in_row);
    free(resizer->ring);
    free(resizer->rows);
    free(resizer);
    *out = NULL;
}

void resizer_run(struct resizer *resizer, const uint8_t *in, ptrdiff_t stride, uint8_t *out) {
    const struct resize_filter *vertical = &resizer->vertical, *horizontal = &resizer->horizontal;
    const struct resize_ops *ops = resizer->ops;
    int next = 0; // the first input row that is not in the ring yet
    for (int y = 0; y < vertical->out; y++) {
        int first = vertical->first[y];
        assert(first + vertical->taps <= vertical->in);
        for (next = next < first ? first : next; next < first + vertical->taps; next++) {
            ops->horizontal(resizer_ring_row(resizer, next), resizer->in_row, in + next * stride, horizontal->in * 3,
                            horizontal->first, resizer->horizontal_weights, horizontal->taps, horizontal->out);
        }
        for (int j = 0; j < vertical->taps; j++) resizer->rows[j] = resizer_ring_row(resizer, first + j);
        ops->vertical(out + (size_t)y * (size_t)horizontal->out * 3, resizer->rows,
                      vertical->weights + (size_t)y * (size_t)vertical->taps, vertical->taps, horizontal->out * 3);
    }
}

// ---- images: fixed point ----

static uint8_t resize_to_byte(int32_t sum) {
    sum >>= FIXED_BITS;
    return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

// out[height, out_width, RGB] = every row filtered horizontally.
static status resize_image_rows(const struct image_rows *rows, int out_width, uint8_t *out) {
    struct resize_filter filter = {0};
    size_t bytes = (size_t)out_width * 3;
    status result = OK;
    resize_filter_init_fixed(&filter, rows->width, out_width);
    const int taps = filter.taps;
    for (int y = 0; result == OK && y < rows->height; y++) {
        const uint8_t *row = NULL;
        result = rows->row(rows->context, y, &row);
        if (result != OK) break;
        uint8_t *out_row = out + (size_t)y * bytes;
        if (out_width == rows->width) memcpy(out_row, row, bytes);
        for (int x = 0; x < out_width && out_width != rows->width; x++) {
            const int32_t *weights = filter.fixed + (size_t)x * (size_t)taps;
            const uint8_t *from = row + (size_t)filter.first[x] * 3;
            int32_t sum[3] = {FIXED_HALF, FIXED_HALF, FIXED_HALF};
            for (int j = 0; j < taps; j++) {
                for (int c = 0; c < 3; c++) sum[c] += weights[j] * from[j * 3 + c];
            }
            for (int c = 0; c < 3; c++) out_row[x * 3 + c] = resize_to_byte(sum[c]);
        }
    }
    resize_filter_release(&filter);
    return result;
}

status image_resize(const struct image_rows *rows, int out_height, int out_width, uint8_t *out) {
    if (out_height == rows->height) return resize_image_rows(rows, out_width, out);
    struct resize_filter filter = {0};
    size_t bytes = (size_t)out_width * 3;
    uint8_t *filtered = NULL;
    int32_t *sums = NULL;
    status result;
    TRY_TO(result, done, NEW_LARGE(&filtered, (size_t)rows->height * bytes));
    TRY_TO(result, done, resize_image_rows(rows, out_width, filtered));
    resize_filter_init_fixed(&filter, rows->height, out_height);
    NEW(&sums, bytes);
    for (int y = 0; y < out_height; y++) {
        const int32_t *weights = filter.fixed + (size_t)y * (size_t)filter.taps;
        for (size_t i = 0; i < bytes; i++) sums[i] = FIXED_HALF;
        for (int j = 0; j < filter.taps; j++) {
            const uint8_t *row = filtered + (size_t)(filter.first[y] + j) * bytes;
            int32_t weight = weights[j];
            for (size_t i = 0; i < bytes; i++) sums[i] += weight * row[i];
        }
        for (size_t i = 0; i < bytes; i++) out[(size_t)y * bytes + i] = resize_to_byte(sums[i]);
    }
done:
    free(sums);
    free(filtered);
    resize_filter_release(&filter);
    return result;
}
