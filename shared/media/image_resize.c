// The image's resampler: coefficients in fixed point with 22 bits, levels rounded to 8 bits after each pass, the
// horizontal pass first. Whole numbers all the way: the result is exact.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "shared/base/memory.h"
#include "shared/media/resize.h"

enum { precision = 22 };

struct fixed_axis {
    struct kernel_axis axis;
    int32_t *weights;
};

static void fixed_release(struct fixed_axis *fixed) {
    kernel_axis_release(&fixed->axis);
    free(fixed->weights);
    *fixed = (struct fixed_axis){0};
}

static status fixed_init(struct fixed_axis *fixed, int in, int out) {
    *fixed = (struct fixed_axis){0};
    TRY(kernel_axis_init(&fixed->axis, in, out));
    size_t count = (size_t)out * (size_t)fixed->axis.taps;
    status result = NEW(&fixed->weights, count);
    if (result != OK) {
        fixed_release(fixed);
        return result;
    }
    // Halves go away from zero, by adding half and cutting off.
    for (size_t i = 0; i < count; i++) {
        double weight = fixed->axis.weights[i] * (1 << precision);
        fixed->weights[i] = (int32_t)(weight < 0 ? weight - 0.5 : weight + 0.5);
    }
    return OK;
}

static uint8_t to_byte(int32_t sum) {
    sum >>= precision;
    return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

static void across(uint8_t *out, const uint8_t *row, const struct fixed_axis *fixed) {
    int taps = fixed->axis.taps;
    for (int x = 0; x < fixed->axis.out; x++) {
        const int32_t *weights = fixed->weights + (size_t)x * (size_t)taps;
        const uint8_t *from = row + (size_t)fixed->axis.first[x] * 3;
        int32_t sum[3] = {1 << (precision - 1), 1 << (precision - 1), 1 << (precision - 1)};
        for (int j = 0; j < taps; j++) {
            for (int c = 0; c < 3; c++) sum[c] += weights[j] * from[j * 3 + c];
        }
        for (int c = 0; c < 3; c++) out[x * 3 + c] = to_byte(sum[c]);
    }
}

static void down(uint8_t *out, int32_t *sums, const uint8_t *narrow, const struct fixed_axis *fixed, int y,
                 size_t width) {
    const int32_t *weights = fixed->weights + (size_t)y * (size_t)fixed->axis.taps;
    for (size_t i = 0; i < width; i++) sums[i] = 1 << (precision - 1);
    for (int j = 0; j < fixed->axis.taps; j++) {
        const uint8_t *row = narrow + (size_t)(fixed->axis.first[y] + j) * width;
        int32_t weight = weights[j];
        for (size_t i = 0; i < width; i++) sums[i] += weight * row[i];
    }
    for (size_t i = 0; i < width; i++) out[i] = to_byte(sums[i]);
}

// narrow[height, out width, RGB] = every row resized along its length.
static status narrow_rows(const struct image_rows *rows, int out_width, uint8_t *narrow) {
    struct fixed_axis fixed;
    size_t bytes = (size_t)out_width * 3;
    TRY(fixed_init(&fixed, rows->width, out_width));
    status result = OK;
    for (int y = 0; result == OK && y < rows->height; y++) {
        const uint8_t *row = NULL;
        result = rows->row(rows->context, y, &row);
        if (result != OK) break;
        if (out_width == rows->width) {
            memcpy(narrow + (size_t)y * bytes, row, bytes);
        } else {
            across(narrow + (size_t)y * bytes, row, &fixed);
        }
    }
    fixed_release(&fixed);
    return result;
}

static status shorten(const uint8_t *narrow, int height, int out_height, size_t bytes, uint8_t *out) {
    struct fixed_axis fixed;
    int32_t *sums = NULL;
    TRY(fixed_init(&fixed, height, out_height));
    status result = NEW(&sums, bytes);
    for (int y = 0; result == OK && y < out_height; y++) down(out + (size_t)y * bytes, sums, narrow, &fixed, y, bytes);
    free(sums);
    fixed_release(&fixed);
    return result;
}

status image_resize(const struct image_rows *rows, int out_height, int out_width, uint8_t *out) {
    size_t bytes = (size_t)out_width * 3;
    if (out_height == rows->height) return narrow_rows(rows, out_width, out);
    uint8_t *narrow;
    TRY(NEW(&narrow, (size_t)rows->height * bytes));
    status result = narrow_rows(rows, out_width, narrow);
    if (result == OK) result = shorten(narrow, rows->height, out_height, bytes, out);
    free(narrow);
    return result;
}
