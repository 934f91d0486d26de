// The inner loops of a video's resampler in AVX-512: four pixels at a time horizontally, 64 samples vertically.
#include "shared/media/resize.h"

#if defined(__x86_64__)
#include <immintrin.h>

static __mmask16 resize_first_lanes(int count) {
    return (__mmask16)(count >= 16 ? 0xffff : (1u << count) - 1);
}

static void resize_to_float(float *out, const uint8_t *in, int count) {
    for (int i = 0; i < count; i += 16) {
        __mmask16 mask = resize_first_lanes(count - i);
        __m512i ints = _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, in + i));
        _mm512_mask_storeu_ps(out + i, mask, _mm512_cvtepi32_ps(ints));
    }
}

static void resize_horizontal(float *out, const float *in, const int *first, const float *weights, int taps,
                              int width) {
    const __m512i spread = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    for (int x = 0; x < width; x += 4, weights += (size_t)taps * 4) {
        const float *from[4];
        for (int k = 0; k < 4; k++) from[k] = in + first[x + k] * 3;
        __m512 sum = _mm512_setzero_ps();
        for (int j = 0; j < taps; j++) {
            __m512 weight = _mm512_castps128_ps512(_mm_loadu_ps(weights + (size_t)j * 4));
            __m512 pixels = _mm512_castps128_ps512(_mm_loadu_ps(from[0] + j * 3));
            pixels = _mm512_insertf32x4(pixels, _mm_loadu_ps(from[1] + j * 3), 1);
            pixels = _mm512_insertf32x4(pixels, _mm_loadu_ps(from[2] + j * 3), 2);
            pixels = _mm512_insertf32x4(pixels, _mm_loadu_ps(from[3] + j * 3), 3);
            sum = _mm512_fmadd_ps(_mm512_permutexvar_ps(spread, weight), pixels, sum);
        }
        // In a register: compressing sequential to memory takes a hundred cycles on some processors.
        _mm512_mask_storeu_ps(out + (size_t)x * 3, 0x0fff, _mm512_maskz_compress_ps(0x7777, sum));
    }
}

static __m128i resize_to_bytes(__m512 level) {
    level = _mm512_min_ps(_mm512_max_ps(level, _mm512_setzero_ps()), _mm512_set1_ps(255));
    return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(level));
}

static void resize_vertical(uint8_t *out, const float *const *rows, const float *weights, int taps, int count) {
    int i = 0;
    for (; i + 64 <= count; i += 64) {
        __m512 sum[4] = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps()};
        for (int j = 0; j < taps; j++) {
            __m512 weight = _mm512_set1_ps(weights[j]);
            for (int k = 0; k < 4; k++) sum[k] = _mm512_fmadd_ps(weight, _mm512_loadu_ps(rows[j] + i + 16 * k), sum[k]);
        }
        for (int k = 0; k < 4; k++) _mm_storeu_si128((void *)(out + i + 16 * k), resize_to_bytes(sum[k]));
    }
    for (; i < count; i += 16) {
        __mmask16 mask = resize_first_lanes(count - i);
        __m512 sum = _mm512_setzero_ps();
        for (int j = 0; j < taps; j++) {
            sum = _mm512_fmadd_ps(_mm512_set1_ps(weights[j]), _mm512_maskz_loadu_ps(mask, rows[j] + i), sum);
        }
        _mm_mask_storeu_epi8(out + i, mask, resize_to_bytes(sum));
    }
}

const struct resize_ops resize_avx512 = {"avx512", resize_to_float, resize_horizontal, resize_vertical};
#else
const struct resize_ops resize_avx512 = {"avx512", 0, 0, 0};
#endif
