// Conversions, sums of rows and the optimizer's streams for AVX2. Every tail goes through the plain version.
#if defined(__x86_64__)
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/families.h"

#include <immintrin.h>

static void widen(float *out, const uint16_t *in, size_t count) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(in + i)));
        _mm256_storeu_ps(out + i, _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
    }
    for (; i < count; i++) out[i] = f32_from_bf16(in[i]);
}

static __m256i narrow8(__m256 value) {
    __m256i bits = _mm256_castps_si256(value), high = _mm256_srli_epi32(bits, 16);
    __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(_mm256_srli_epi32(rounded, 16), quiet, nan);
}

static void narrow(uint16_t *out, const float *in, size_t count) {
    size_t i = 0;
    for (; i + 16 <= count; i += 16) {
        __m256i low = narrow8(_mm256_loadu_ps(in + i)), high = narrow8(_mm256_loadu_ps(in + i + 8));
        __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
        _mm256_storeu_si256((__m256i *)(out + i), packed);
    }
    for (; i < count; i++) out[i] = bf16_from_f32(in[i]);
}

static void add(float *out, const float *in, size_t count) {
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        _mm256_storeu_ps(out + i, _mm256_add_ps(_mm256_loadu_ps(out + i), _mm256_loadu_ps(in + i)));
    }
    for (; i < count; i++) out[i] += in[i];
}

// The square of a float32 is exact in double, so fused and separate steps agree.
static double square_sum(const float *in, size_t count) {
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

static void average(float *average, const float *in, size_t count, float rest) {
    size_t i = 0;
    __m256 rests = _mm256_set1_ps(rest);
    for (; i + 8 <= count; i += 8) {
        __m256 old = _mm256_loadu_ps(average + i), step = _mm256_sub_ps(_mm256_loadu_ps(in + i), old);
        _mm256_storeu_ps(average + i, _mm256_add_ps(old, _mm256_mul_ps(step, rests)));
    }
    for (; i < count; i++) average[i] += (in[i] - average[i]) * rest;
}

static void adamw(float *x, const float *gradient, float *m, float *v, size_t count, const adamw_factors *f) {
    __m256 scale = _mm256_set1_ps(f->scale), m1 = _mm256_set1_ps(f->m1), m2 = _mm256_set1_ps(f->m2);
    __m256 v1 = _mm256_set1_ps(f->v1), v2 = _mm256_set1_ps(f->v2), keep = _mm256_set1_ps(f->keep);
    __m256 rate = _mm256_set1_ps(f->rate), root = _mm256_set1_ps(f->root), epsilon = _mm256_set1_ps(f->epsilon);
    size_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256 g = _mm256_mul_ps(_mm256_loadu_ps(gradient + i), scale);
        __m256 mi = _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(m + i), m1), _mm256_mul_ps(g, m2));
        __m256 vi = _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(v + i), v1), _mm256_mul_ps(_mm256_mul_ps(g, g), v2));
        __m256 under = _mm256_add_ps(_mm256_mul_ps(_mm256_sqrt_ps(vi), root), epsilon);
        __m256 step = _mm256_div_ps(_mm256_mul_ps(mi, rate), under);
        _mm256_storeu_ps(m + i, mi);
        _mm256_storeu_ps(v + i, vi);
        _mm256_storeu_ps(x + i, _mm256_sub_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), keep), step));
    }
    if (i < count) vectors_plain_adamw(x + i, gradient + i, m + i, v + i, count - i, f);
}

void vectors_elements_avx2(cpu_vectors *vectors) {
    vectors->widen = widen;
    vectors->narrow = narrow;
    vectors->add = add;
    vectors->square_sum = square_sum;
    vectors->adamw = adamw;
    vectors->average = average;
}
#endif
