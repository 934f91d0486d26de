// The weights of an antialiased bicubic filter (a = -0.5) along one axis. When an image shrinks, the filter is widened
// by the scale. Used inside shared/media only.
#ifndef SHARED_MEDIA_RESIZE_FILTER_H
#define SHARED_MEDIA_RESIZE_FILTER_H

#include "shared/base/status.h"

// output[i] = sum over j of weights[i * taps + j] * input[first[i] + j], with j < taps. Every output has `taps`
// weights; those that it does not need are 0. first[i] + taps never exceeds `in`.
struct resize_filter {
    int in, out, taps;
    int *first;
    double *weights;
};

// Computes the weights from `in` to `out` pixels in float64, as Pillow does. UNAVAILABLE when memory is short. The
// caller releases the filter with resize_filter_release.
status resize_filter_init(struct resize_filter *filter, int in, int out);

// The same in float32, step by step as torchvision's native code: levels that lie on a half, which are 1 in 1,000, then
// round to the same side.
status resize_filter_init_f32(struct resize_filter *filter, int in, int out);

// Frees and zeroes; a zeroed filter is fine.
void resize_filter_release(struct resize_filter *filter);

#endif
