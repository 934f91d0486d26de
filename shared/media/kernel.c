// The weights of both resamplers, along one axis.
#include <math.h>
#include <stdlib.h>

#include "shared/base/memory.h"
#include "shared/media/resize.h"

static double cubic(double x) {
    const double a = -0.5;
    x = fabs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
    return 0;
}

static int taps_for(int in, double support) {
    double taps = ceil(support) * 2 + 1;
    return taps > in ? in : (int)taps;
}

// Outputs near the end get their spare zero weights in front, so that no read passes the input.
static int start_of(const struct kernel_axis *axis, int first) {
    return first + axis->taps > axis->in ? axis->in - axis->taps : first;
}

static void weigh(struct kernel_axis *axis, int i, double scale, double widened) {
    double centre = (i + 0.5) * scale, support = 2 * widened;
    int first = (int)(centre - support + 0.5), end = (int)(centre + support + 0.5);
    if (first < 0) first = 0;
    if (end > axis->in) end = axis->in;
    int start = start_of(axis, first);
    double *weights = axis->weights + (size_t)i * (size_t)axis->taps;
    double narrowed = 1 / widened, sum = 0;
    for (int x = first; x < end; x++) {
        weights[x - start] = cubic((x - centre + 0.5) * narrowed);
        sum += weights[x - start];
    }
    double share = sum != 0 ? 1 / sum : 0;
    for (int j = 0; j < axis->taps; j++) weights[j] *= share;
    axis->first[i] = start;
}

// The same polynomials with fused multiply-adds.
static float cubic_single(float x) {
    const float a = -0.5F;
    x = fabsf(x);
    if (x < 1) return fmaf(fmaf(a + 2, x, -(a + 3)) * x, x, 1);
    if (x < 2) return fmaf(fmaf(fmaf(a, x, -(5 * a)), x, 8 * a), x, -(4 * a));
    return 0;
}

static void weigh_single(struct kernel_axis *axis, int i, float scale) {
    float support = scale >= 1 ? 2 * scale : 2, narrowed = scale >= 1 ? 1 / scale : 1;
    float centre = (float)(scale * (i + 0.5));
    int first = (int)((centre - support) + 0.5), end = (int)((centre + support) + 0.5);
    if (first < 0) first = 0;
    if (end > axis->in) end = axis->in;
    int start = start_of(axis, first);
    double *weights = axis->weights + (size_t)i * (size_t)axis->taps;
    float sum = 0;
    for (int x = first; x < end; x++) {
        float weight = cubic_single((float)(((float)x - centre + 0.5) * narrowed));
        weights[x - start] = weight;
        sum += weight;
    }
    for (int j = 0; j < axis->taps && sum != 0; j++) weights[j] = (float)weights[j] / sum;
    axis->first[i] = start;
}

static status reserve(struct kernel_axis *axis, int in, int out) {
    double scale = (double)in / out, widened = scale < 1 ? 1 : scale;
    *axis = (struct kernel_axis){.in = in, .out = out, .taps = taps_for(in, 2 * widened)};
    status result = NEW(&axis->first, (size_t)out);
    if (result == OK) result = NEW(&axis->weights, (size_t)out * (size_t)axis->taps);
    if (result != OK) kernel_axis_release(axis);
    return result;
}

status kernel_axis_init(struct kernel_axis *axis, int in, int out) {
    TRY(reserve(axis, in, out));
    double scale = (double)in / out;
    for (int i = 0; i < out; i++) weigh(axis, i, scale, scale < 1 ? 1 : scale);
    return OK;
}

status kernel_axis_init_single(struct kernel_axis *axis, int in, int out) {
    TRY(reserve(axis, in, out));
    for (int i = 0; i < out; i++) weigh_single(axis, i, (float)in / (float)out);
    return OK;
}

void kernel_axis_release(struct kernel_axis *axis) {
    free(axis->first);
    free(axis->weights);
    *axis = (struct kernel_axis){0};
}
