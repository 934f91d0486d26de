// The two bicubic resamplers. They use the same filter in different arithmetic: a video's computes in float32 and
// rounds once, as torchvision does; an image's computes in fixed point and rounds to 8 bits after each pass, as Pillow
// does. Pixels are uint8 [height, width, RGB].
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "shared/base/status.h"

// A video's resampler for one pair of sizes. Not to be used by two threads at once.
struct resizer;

// Makes a resampler; out_width is a multiple of 4. UNAVAILABLE when memory is short. The caller frees it with
// resizer_free.
status resizer_new(struct resizer **out, int in_height, int in_width, int out_height, int out_width);

// Frees and sets *resizer to NULL; NULL is fine.
void resizer_free(struct resizer **resizer);

// Resizes one frame from rows of `stride` bytes to rows without gaps. Clamps, rounds halves to even.
void resizer_run(struct resizer *resizer, const uint8_t *in, ptrdiff_t stride, uint8_t *out);

// The rows of an image on demand, so that a large image need not be in memory as RGB. *row = [width, RGB] of row y,
// valid until the next call. Each row is asked for once, in order.
struct image_rows {
    int height, width;
    status (*row)(void *context, int y, const uint8_t **row);
    void *context;
};

// Resizes an image into out[out_height, out_width, RGB]. Returns what `row` returns when it fails, UNAVAILABLE when
// memory is short.
status image_resize(const struct image_rows *rows, int out_height, int out_width, uint8_t *out);

// The inner loops of a video's resampler. Every version gives the same bits: each sum is a chain of fused
// multiply-adds in the order of j.
struct resize_ops {
    const char *name;
    // row[i] = in[i], i < count; out[x, c] = sum over j of weights[x / 4][j][x % 4] * row[first[x] + j, c], for x <
    // width and c < 3; width is a multiple of 4. May read and write up to 4 floats past the end.
    void (*horizontal)(float *out, float *row, const uint8_t *in, int count, const int *first, const float *weights,
                       int taps, int width);
    // out[i] = sum over j of weights[j] * rows[j][i], clamped, halves rounded to even, for i < count; count is a
    // multiple of 4.
    void (*vertical)(uint8_t *out, const float *const *rows, const float *weights, int taps, int count);
};

// Returns the versions that this processor can run, *count of them, the fastest last. The first is plain C.
const struct resize_ops *const *resize_ops_available(int *count);

// Makes a resampler use one version. For tests and benchmarks.
void resizer_set_ops(struct resizer *resizer, const struct resize_ops *ops);

extern const struct resize_ops resize_c, resize_avx2;
