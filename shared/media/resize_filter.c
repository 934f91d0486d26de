#include "shared/media/resize_filter.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "shared/base/memory.h"

static status resize_filter_alloc(struct resize_filter *filter, int in, int out) {
    assert(in > 0 && out > 0);
    double scale = (double)in / out, support = 2 * (scale < 1 ? 1 : scale), taps = ceil(support) * 2 + 1;
    *filter = (struct resize_filter){.in = in, .out = out, .taps = taps > in ? in : (int)taps};
    status result = NEW(&filter->first, (size_t)out);
    if (result == OK) result = NEW(&filter->weights, (size_t)out * (size_t)filter->taps);
    if (result != OK) resize_filter_release(filter);
    return result;
}

// Returns and sets first[i]: `begin`, or lower near the end of the input, so that no read passes it. The spare weights,
// which are 0, then come first.
static int resize_filter_set_first(struct resize_filter *filter, int i, int begin) {
    filter->first[i] = begin + filter->taps > filter->in ? filter->in - filter->taps : begin;
    assert(filter->first[i] >= 0 && filter->first[i] <= begin);
    return filter->first[i];
}

static double cubic(double x) {
    const double a = -0.5;
    x = fabs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
    return 0;
}

status resize_filter_init(struct resize_filter *filter, int in, int out) {
    TRY(resize_filter_alloc(filter, in, out));
    double scale = (double)in / out, filter_scale = scale < 1 ? 1 : scale;
    for (int i = 0; i < out; i++) {
        double center = (i + 0.5) * scale, support = 2 * filter_scale;
        int begin = (int)(center - support + 0.5), end = (int)(center + support + 0.5);
        if (begin < 0) begin = 0;
        if (end > in) end = in;
        int first = resize_filter_set_first(filter, i, begin);
        double *weights = filter->weights + (size_t)i * (size_t)filter->taps;
        double inverse = 1 / filter_scale, sum = 0;
        for (int x = begin; x < end; x++) {
            weights[x - first] = cubic((x - center + 0.5) * inverse);
            sum += weights[x - first];
        }
        double norm = sum != 0 ? 1 / sum : 0;
        for (int x = begin; x < end; x++) weights[x - first] *= norm;
    }
    return OK;
}

// The same polynomials with fused multiply-adds.
static float cubic_f32(float x) {
    const float a = -0.5F;
    x = fabsf(x);
    if (x < 1) return fmaf(fmaf(a + 2, x, -(a + 3)) * x, x, 1);
    if (x < 2) return fmaf(fmaf(fmaf(a, x, -(5 * a)), x, 8 * a), x, -(4 * a));
    return 0;
}

status resize_filter_init_f32(struct resize_filter *filter, int in, int out) {
    TRY(resize_filter_alloc(filter, in, out));
    float scale = (float)in / (float)out;
    float support = scale >= 1 ? 2 * scale : 2, inverse = scale >= 1 ? 1 / scale : 1;
    for (int i = 0; i < out; i++) {
        float center = (float)(scale * (i + 0.5));
        int begin = (int)((center - support) + 0.5), end = (int)((center + support) + 0.5);
        if (begin < 0) begin = 0;
        if (end > in) end = in;
        int first = resize_filter_set_first(filter, i, begin);
        double *weights = filter->weights + (size_t)i * (size_t)filter->taps;
        float sum = 0;
        for (int x = begin; x < end; x++) {
            float weight = cubic_f32((float)(((float)x - center + 0.5) * inverse));
            weights[x - first] = weight;
            sum += weight;
        }
        for (int x = begin; x < end && sum != 0; x++) weights[x - first] = (float)weights[x - first] / sum;
    }
    return OK;
}

void resize_filter_release(struct resize_filter *filter) {
    free(filter->first);
    free(filter->weights);
    *filter = (struct resize_filter){0};
}
