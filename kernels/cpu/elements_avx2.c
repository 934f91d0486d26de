// The loops of elements.c for AVX2. The last elements go through the plain expressions.
#if defined(__x86_64__)
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/simd_versions.h"

#include <immintrin.h>

static void elements_f32_from_bf16(float *out, const uint16_t *in, size_t count) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(in + i)));
        _mm256_storeu_ps(out + i, _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
    }
    for (; i < count; i++) out[i] = f32_from_bf16(in[i]);
}

static __m256i elements_round8(__m256 value) {
    __m256i bits = _mm256_castps_si256(value), high = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(_mm256_srli_epi32(rounded, 16), quiet, nan);
}

static void elements_bf16_from_f32(uint16_t *out, const float *in, size_t count) {
    size_t i = 0;
    for (; i + 16 <= count; i += 16) {
        __m256i low = elements_round8(_mm256_loadu_ps(in + i)), high = elements_round8(_mm256_loadu_ps(in + i + 8));
        __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
        _mm256_storeu_si256((void *)(out + i), packed);
    }
    for (; i < count; i++) out[i] = bf16_from_f32(in[i]);
}

static void elements_add(float *out, const float *in, size_t count) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        _mm256_storeu_ps(out + i, _mm256_add_ps(_mm256_loadu_ps(out + i), _mm256_loadu_ps(in + i)));
    }
    for (; i < count; i++) out[i] += in[i];
}

static void elements_interleave(uint16_t *out, const uint16_t *even, const uint16_t *odd, size_t count) {
    size_t i = 0;
    for (; i + 16 <= count; i += 16) {
        __m256i e = _mm256_loadu_si256((const void *)(even + i)), o = _mm256_loadu_si256((const void *)(odd + i));
        __m256i low = _mm256_unpacklo_epi16(e, o), high = _mm256_unpackhi_epi16(e, o);
        _mm256_storeu_si256((void *)(out + 2 * i), _mm256_permute2x128_si256(low, high, 0x20));
        _mm256_storeu_si256((void *)(out + 2 * i + 16), _mm256_permute2x128_si256(low, high, 0x31));
    }
    for (; i < count; i++) {
        out[2 * i] = even[i];
        out[2 * i + 1] = odd[i];
    }
}

// Transposes eight by eight elements: pairs, then fours, then halves.
static void elements_transpose8(uint32_t *out, int64_t out_stride, const uint32_t *in, int64_t in_stride) {
    __m256 r[8], s[8];
    for (int i = 0; i < 8; i++) r[i] = _mm256_loadu_ps((const float *)(in + i * in_stride));
    for (int i = 0; i < 8; i += 2) {
        s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {
        r[i] = _mm256_shuffle_ps(s[i], s[i + 2], 0x44);
        r[i + 1] = _mm256_shuffle_ps(s[i], s[i + 2], 0xee);
        r[i + 2] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0x44);
        r[i + 3] = _mm256_shuffle_ps(s[i + 1], s[i + 3], 0xee);
    }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps((float *)(out + i * out_stride), _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps((float *)(out + (i + 4) * out_stride), _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

static void elements_transpose(uint32_t *out, int64_t out_stride, const uint32_t *in, int64_t in_stride, int64_t rows,
                               int64_t columns) {
    int64_t whole_rows = rows / 8 * 8, whole_columns = columns / 8 * 8;
    for (int64_t column = 0; column < whole_columns; column += 8) {
        for (int64_t row = 0; row < whole_rows; row += 8) {
            elements_transpose8(out + column * out_stride + row, out_stride, in + row * in_stride + column, in_stride);
        }
    }
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t column = row < whole_rows ? whole_columns : 0; column < columns; column++) {
            out[column * out_stride + row] = in[row * in_stride + column];
        }
    }
}

// The square of a float32 is exact in double, so a fused step gives the same bits as two separate ones.
static double elements_square_sum(const float *in, size_t count) {
    __m256d low = _mm256_setzero_pd(), high = _mm256_setzero_pd();
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256d a = _mm256_cvtps_pd(_mm_loadu_ps(in + i)), b = _mm256_cvtps_pd(_mm_loadu_ps(in + i + 4));
        low = _mm256_fmadd_pd(a, a, low);
        high = _mm256_fmadd_pd(b, b, high);
    }
    double lanes[8], sum = 0;
    _mm256_storeu_pd(lanes, low);
    _mm256_storeu_pd(lanes + 4, high);
    for (; i < count; i++) lanes[i % 8] += (double)in[i] * in[i];
    for (int lane = 0; lane < 8; lane++) sum += lanes[lane];
    return sum;
}

static void elements_ema(float *average, const float *in, size_t count, float weight) {
    __m256 weights = _mm256_set1_ps(weight);
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256 old = _mm256_loadu_ps(average + i), step = _mm256_sub_ps(_mm256_loadu_ps(in + i), old);
        _mm256_storeu_ps(average + i, _mm256_add_ps(old, _mm256_mul_ps(step, weights)));
    }
    for (; i < count; i++) average[i] += (in[i] - average[i]) * weight;
}

static void elements_adamw(float *param, const float *grad, float *exp_avg, float *exp_avg_sq, size_t count,
                           const struct adamw_factors *f) {
    __m256 grad_scale = _mm256_set1_ps(f->grad_scale), decay = _mm256_set1_ps(f->decay);
    __m256 beta1 = _mm256_set1_ps(f->beta1), rest1 = _mm256_set1_ps(f->one_minus_beta1);
    __m256 beta2 = _mm256_set1_ps(f->beta2), rest2 = _mm256_set1_ps(f->one_minus_beta2);
    __m256 step_size = _mm256_set1_ps(f->step_size), root_scale = _mm256_set1_ps(f->root_scale);
    __m256 eps = _mm256_set1_ps(f->eps);
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256 g = _mm256_mul_ps(_mm256_loadu_ps(grad + i), grad_scale);
        __m256 m = _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(exp_avg + i), beta1), _mm256_mul_ps(g, rest1));
        __m256 v = _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(exp_avg_sq + i), beta2),
                                 _mm256_mul_ps(_mm256_mul_ps(g, g), rest2));
        __m256 divisor = _mm256_add_ps(_mm256_mul_ps(_mm256_sqrt_ps(v), root_scale), eps);
        __m256 step = _mm256_div_ps(_mm256_mul_ps(m, step_size), divisor);
        _mm256_storeu_ps(exp_avg + i, m);
        _mm256_storeu_ps(exp_avg_sq + i, v);
        _mm256_storeu_ps(param + i, _mm256_sub_ps(_mm256_mul_ps(_mm256_loadu_ps(param + i), decay), step));
    }
    if (i < count) simd_plain_adamw(param + i, grad + i, exp_avg + i, exp_avg_sq + i, count - i, f);
}

void simd_elements_avx2(struct simd *simd) {
    simd->f32_from_bf16 = elements_f32_from_bf16;
    simd->bf16_from_f32 = elements_bf16_from_f32;
    simd->transpose = elements_transpose;
    simd->interleave = elements_interleave;
    simd->add = elements_add;
    simd->square_sum = elements_square_sum;
    simd->adamw = elements_adamw;
    simd->ema = elements_ema;
}
#endif
