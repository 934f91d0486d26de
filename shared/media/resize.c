// The clip's resampler: each row across, then down over the rows that an output row needs; those are kept in a ring.
#include "shared/media/resize.h"

#include <math.h>
#include <stdlib.h>

#include "shared/base/memory.h"

enum { slack = 16 }; // floats that vector code may read or write past a row

struct resizer {
    const struct resize_ops *ops;
    struct kernel_axis down, across;
    float *down_weights;   // [out height][taps]
    float *across_weights; // [out width / 4][taps][4]
    float *wide;           // one input row as floats
    float *ring;           // [taps of down][out width, RGB], each row with slack behind
    const float **rows;    // [taps of down]: the ring in order
};

static void widen_c(float *out, const uint8_t *in, int count) {
    for (int i = 0; i < count; i++) out[i] = in[i];
}

static void across_c(float *out, const float *in, const int *first, const float *weights, int taps, int width) {
    for (int x = 0; x < width; x++) {
        const float *column = weights + (size_t)(x / 4) * (size_t)taps * 4 + x % 4;
        const float *from = in + (size_t)first[x] * 3;
        float sum[3] = {0};
        for (int j = 0; j < taps; j++) {
            for (int c = 0; c < 3; c++) sum[c] = fmaf(column[(size_t)j * 4], from[j * 3 + c], sum[c]);
        }
        for (int c = 0; c < 3; c++) out[x * 3 + c] = sum[c];
    }
}

static void down_c(uint8_t *out, const float *const *rows, const float *weights, int taps, int count) {
    for (int i = 0; i < count; i++) {
        float sum = 0;
        for (int j = 0; j < taps; j++) sum = fmaf(weights[j], rows[j][i], sum);
        out[i] = (uint8_t)rintf(fminf(fmaxf(sum, 0), 255));
    }
}

const struct resize_ops resize_c = {"c", widen_c, across_c, down_c};

const struct resize_ops *const *resize_versions(int *count) {
    static const struct resize_ops *const versions[] = {&resize_c, &resize_avx2, &resize_avx512};
    *count = 1;
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) *count = 2;
    if (*count == 2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
        *count = 3;
    }
#endif
    return versions;
}

void resizer_use(struct resizer *resizer, const struct resize_ops *ops) {
    resizer->ops = ops;
}

static size_t ring_stride(const struct resizer *resizer) {
    return (size_t)resizer->across.out * 3 + slack;
}

static status lay_out(struct resizer *resizer) {
    const struct kernel_axis *down = &resizer->down, *across = &resizer->across;
    size_t rows = (size_t)down->out * (size_t)down->taps, taps = (size_t)across->taps;
    TRY(NEW(&resizer->down_weights, rows));
    for (size_t i = 0; i < rows; i++) resizer->down_weights[i] = (float)down->weights[i];
    TRY(NEW(&resizer->across_weights, (size_t)across->out * taps));
    for (size_t x = 0; x < (size_t)across->out; x++) {
        for (size_t j = 0; j < taps; j++) {
            resizer->across_weights[(x / 4 * taps + j) * 4 + x % 4] = (float)across->weights[x * taps + j];
        }
    }
    TRY(NEW(&resizer->rows, (size_t)down->taps));
    TRY(NEW(&resizer->ring, (size_t)down->taps * ring_stride(resizer)));
    return NEW(&resizer->wide, (size_t)across->in * 3 + slack);
}

status resizer_new(struct resizer **out, int in_height, int in_width, int out_height, int out_width) {
    *out = NULL;
    if (out_width % 4) return fail(BUG, "a clip's width must be a multiple of 4, not %d", out_width);
    struct resizer *resizer;
    TRY(NEW(&resizer, 1));
    int count;
    const struct resize_ops *const *versions = resize_versions(&count);
    resizer->ops = versions[count - 1];
    status result = kernel_axis_init_single(&resizer->down, in_height, out_height);
    if (result == OK) result = kernel_axis_init_single(&resizer->across, in_width, out_width);
    if (result == OK) result = lay_out(resizer);
    *out = resizer;
    if (result != OK) resizer_free(out);
    return result;
}

void resizer_free(struct resizer **place) {
    struct resizer *resizer = *place;
    if (!resizer) return;
    kernel_axis_release(&resizer->down);
    kernel_axis_release(&resizer->across);
    free(resizer->down_weights);
    free(resizer->across_weights);
    free(resizer->wide);
    free(resizer->ring);
    free(resizer->rows);
    free(resizer);
    *place = NULL;
}

static float *ring_row(const struct resizer *resizer, int y) {
    return resizer->ring + (size_t)(y % resizer->down.taps) * ring_stride(resizer);
}

void resizer_run(struct resizer *resizer, const uint8_t *in, ptrdiff_t stride, uint8_t *out) {
    const struct kernel_axis *down = &resizer->down, *across = &resizer->across;
    const struct resize_ops *ops = resizer->ops;
    int next = 0; // the first input row that is not in the ring yet
    for (int y = 0; y < down->out; y++) {
        int first = down->first[y];
        for (next = next < first ? first : next; next < first + down->taps; next++) {
            ops->widen(resizer->wide, in + next * stride, across->in * 3);
            ops->across(ring_row(resizer, next), resizer->wide, across->first, resizer->across_weights, across->taps,
                        across->out);
        }
        for (int j = 0; j < down->taps; j++) resizer->rows[j] = ring_row(resizer, first + j);
        ops->down(out + (size_t)y * (size_t)across->out * 3, resizer->rows,
                  resizer->down_weights + (size_t)y * (size_t)down->taps, down->taps, across->out * 3);
    }
}
