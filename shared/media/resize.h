// The two resamplers. Both are antialiased bicubic with a = -0.5, the kernel widened by the scale when shrinking; they
// differ in arithmetic: a clip's is in float32 without rounding between the passes, an image's in fixed point with
// rounding to 8 bits between them. Pixels are uint8 [height, width, RGB].
#ifndef SHARED_MEDIA_RESIZE_H
#define SHARED_MEDIA_RESIZE_H

#include <stddef.h>
#include <stdint.h>

#include "shared/base/status.h"

// Which inputs make an output, along one axis: output i is the sum over j of weights[i * taps + j] * input[first[i] +
// j]. Every output has `taps` weights, zeroes behind its own; first[i] + taps never passes the input's end.
struct kernel_axis {
    int in, out, taps;
    int *first;
    double *weights;
};

// The weights from `in` to `out` pixels, normalised to 1, computed in double. Release with kernel_axis_release.
status kernel_axis_init(struct kernel_axis *axis, int in, int out);

// The same computed in float32, step by step as torchvision's native code does: levels that lie on a half then fall to
// the same side, which is 1 in 1,000 of them.
status kernel_axis_init_single(struct kernel_axis *axis, int in, int out);

// Frees; a zeroed axis is fine.
void kernel_axis_release(struct kernel_axis *axis);

// The clip's resampler for one pair of sizes. Not to be used by two threads at once.
struct resizer;

// UNAVAILABLE when memory is short.
status resizer_new(struct resizer **out, int in_height, int in_width, int out_height, int out_width);

// NULL is fine; sets *resizer to NULL.
void resizer_free(struct resizer **resizer);

// Resizes one frame: rows of `stride` bytes in, rows without gaps out. Rounds half to even, clamps.
void resizer_run(struct resizer *resizer, const uint8_t *in, ptrdiff_t stride, uint8_t *out);

// Rows of an image, on demand, so that a large one need not stand in memory as RGB: *row = [width, RGB] of row y,
// valid until the next call. Rows are asked for once, in order.
struct image_rows {
    int height, width;
    status (*row)(void *context, int y, const uint8_t **row);
    void *context;
};

// The image's resampler: out[out_height, out_width, RGB]. Fails as `row` does.
status image_resize(const struct image_rows *rows, int out_height, int out_width, uint8_t *out);

// The inner loops of the clip's resampler. Each version gives the same bits: every sum is a chain of fused
// multiply-adds in the order of j.
struct resize_ops {
    const char *name;
    // out[i] = in[i], i < count.
    void (*widen)(float *out, const uint8_t *in, int count);
    // out[x, c] = sum over j of weights[x / 4][j][x % 4] * in[first[x] + j, c], x < width, width a multiple of 4; c <
    // 3, pixels 3 apart. `in` may be read, `out` written up to 4 floats past the end. Horizontal pass.
    void (*across)(float *out, const float *in, const int *first, const float *weights, int taps, int width);
    // out[i] = byte(sum over j of weights[j] * rows[j][i]), i < count, a multiple of 4: clamped, halves to even.
    void (*down)(uint8_t *out, const float *const *rows, const float *weights, int taps, int count);
};

// All versions that this processor can run, best last; *count of them. The first is the reference in plain C.
const struct resize_ops *const *resize_versions(int *count);

// Makes a resizer use one version: for tests and benchmarks.
void resizer_use(struct resizer *resizer, const struct resize_ops *ops);

extern const struct resize_ops resize_c, resize_avx2, resize_avx512;

#endif
