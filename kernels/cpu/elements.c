// Loops over plain arrays: conversions, transposition, sums and the optimizer's streams, in plain C. elements_avx2.c
// and elements_avx512.c hold faster versions that give the same bits.
#include "kernels/cpu/simd_versions.h"

#include <math.h>

#include "kernels/cpu/cpu.h"

static void elements_f32_from_bf16(float *out, const uint16_t *in, size_t count) {
    for (size_t i = 0; i < count; i++) out[i] = f32_from_bf16(in[i]);
}

static void elements_bf16_from_f32(uint16_t *out, const float *in, size_t count) {
    for (size_t i = 0; i < count; i++) out[i] = bf16_from_f32(in[i]);
}

static void elements_transpose(uint32_t *out, int64_t out_stride, const uint32_t *in, int64_t in_stride, int64_t rows,
                               int64_t columns) {
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t column = 0; column < columns; column++) {
            out[column * out_stride + row] = in[row * in_stride + column];
        }
    }
}

static void elements_interleave(uint16_t *out, const uint16_t *even, const uint16_t *odd, size_t count) {
    for (size_t i = 0; i < count; i++) {
        out[2 * i] = even[i];
        out[2 * i + 1] = odd[i];
    }
}

static void elements_add(float *out, const float *in, size_t count) {
    for (size_t i = 0; i < count; i++) out[i] += in[i];
}

static double elements_square_sum(const float *in, size_t count) {
    double lanes[8] = {0};
    for (size_t i = 0; i < count; i++) lanes[i % 8] += (double)in[i] * in[i];
    double sum = 0;
    for (int lane = 0; lane < 8; lane++) sum += lanes[lane];
    return sum;
}

void simd_plain_adamw(float *param, const float *grad, float *exp_avg, float *exp_avg_sq, size_t count,
                      const struct adamw_factors *f) {
    for (size_t i = 0; i < count; i++) {
        float g = grad[i] * f->grad_scale;
        exp_avg[i] = exp_avg[i] * f->beta1 + g * f->one_minus_beta1;
        exp_avg_sq[i] = exp_avg_sq[i] * f->beta2 + g * g * f->one_minus_beta2;
        param[i] = param[i] * f->decay - exp_avg[i] * f->step_size / (sqrtf(exp_avg_sq[i]) * f->root_scale + f->eps);
    }
}

// In this form an average that equals `in` stays as it is.
static void elements_ema(float *average, const float *in, size_t count, float weight) {
    for (size_t i = 0; i < count; i++) average[i] += (in[i] - average[i]) * weight;
}

void simd_elements(struct simd *simd) {
    simd->f32_from_bf16 = elements_f32_from_bf16;
    simd->bf16_from_f32 = elements_bf16_from_f32;
    simd->transpose = elements_transpose;
    simd->interleave = elements_interleave;
    simd->add = elements_add;
    simd->square_sum = elements_square_sum;
    simd->adamw = simd_plain_adamw;
    simd->ema = elements_ema;
}
