// The inner loops of a video's resampler in AVX2: four pixels at a time horizontally, 32 samples vertically.
#include "shared/media/resize.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>
#include <string.h>

static __m256 resize_load_two(const float *a, const float *b) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(a)), _mm_loadu_ps(b), 1);
}

// Stores four floats of which three count; the next pixel's store overwrites the fourth.
static void resize_store_two(float *out, __m256 pixels) {
    _mm_storeu_ps(out, _mm256_castps256_ps128(pixels));
    _mm_storeu_ps(out + 3, _mm256_extractf128_ps(pixels, 1));
}

static void resize_horizontal(float *out, float *row, const uint8_t *in, int count, const int *first,
                              const float *weights, int taps, int width) {
    int i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256i ints = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(in + i)));
        _mm256_storeu_ps(row + i, _mm256_cvtepi32_ps(ints));
    }
    for (; i < count; i++) row[i] = in[i];
    for (int x = 0; x < width; x += 4, weights += (size_t)taps * 4) {
        const float *a = row + first[x] * 3, *b = row + first[x + 1] * 3;
        const float *c = row + first[x + 2] * 3, *d = row + first[x + 3] * 3;
        __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
        for (int j = 0; j < taps; j++) {
            __m256 four = _mm256_broadcast_ps((const void *)(weights + (size_t)j * 4));
            __m256 low_weights = _mm256_permutevar_ps(four, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1));
            __m256 high_weights = _mm256_permutevar_ps(four, _mm256_setr_epi32(2, 2, 2, 2, 3, 3, 3, 3));
            low = _mm256_fmadd_ps(low_weights, resize_load_two(a + j * 3, b + j * 3), low);
            high = _mm256_fmadd_ps(high_weights, resize_load_two(c + j * 3, d + j * 3), high);
        }
        resize_store_two(out + (size_t)x * 3, low);
        resize_store_two(out + (size_t)x * 3 + 6, high);
    }
}

static __m256i resize_to_int(__m256 level) {
    return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(level, _mm256_setzero_ps()), _mm256_set1_ps(255)));
}

static void resize_vertical(uint8_t *out, const float *const *rows, const float *weights, int taps, int count) {
    int i = 0;
    for (; i + 32 <= count; i += 32) {
        __m256 sum[4] = {_mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps(), _mm256_setzero_ps()};
        for (int j = 0; j < taps; j++) {
            __m256 weight = _mm256_set1_ps(weights[j]);
            for (int k = 0; k < 4; k++) sum[k] = _mm256_fmadd_ps(weight, _mm256_loadu_ps(rows[j] + i + 8 * k), sum[k]);
        }
        __m256i words = _mm256_packus_epi32(resize_to_int(sum[0]), resize_to_int(sum[1]));
        __m256i more = _mm256_packus_epi32(resize_to_int(sum[2]), resize_to_int(sum[3]));
        __m256i bytes = _mm256_packus_epi16(words, more);
        bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        _mm256_storeu_si256((void *)(out + i), bytes);
    }
    for (; i < count; i++) {
        float sum = 0;
        for (int j = 0; j < taps; j++) sum = fmaf(weights[j], rows[j][i], sum);
        out[i] = (uint8_t)rintf(fminf(fmaxf(sum, 0), 255));
    }
}

const struct resize_ops resize_avx2 = {"avx2", resize_horizontal, resize_vertical};
#else
const struct resize_ops resize_avx2 = {"avx2", 0, 0};
#endif
