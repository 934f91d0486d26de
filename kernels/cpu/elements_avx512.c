// The loops of elements.c for AVX-512, with masks for the last elements. The optimizer's loops wait for memory, so
// their AVX2 versions are fast enough.
#if defined(__x86_64__)
#include "kernels/cpu/simd_versions.h"

#include <immintrin.h>

static __mmask16 elements_mask(size_t count) {
    return (__mmask16)(count >= 16 ? 0xffff : (1u << count) - 1);
}

static void elements_f32_from_bf16(float *out, const uint16_t *in, size_t count) {
    for (size_t i = 0; i < count; i += 16) {
        __mmask16 lanes = elements_mask(count - i);
        __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(lanes, in + i));
        _mm512_mask_storeu_ps(out + i, lanes, _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)));
    }
}

static __m512i elements_round16(__m512 value) {
    __m512i bits = _mm512_castps_si512(value), high = _mm512_srli_epi32(bits, 16);
    __m512i odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    __m512i quiet = _mm512_or_si512(high, _mm512_set1_epi32(0x40));
    return _mm512_mask_mov_epi32(_mm512_srli_epi32(rounded, 16), nan, quiet);
}

// The processor's own conversion instruction would treat denormals as zero.
static void elements_bf16_from_f32(uint16_t *out, const float *in, size_t count) {
    for (size_t i = 0; i < count; i += 16) {
        __mmask16 lanes = elements_mask(count - i);
        __m512i half = elements_round16(_mm512_maskz_loadu_ps(lanes, in + i));
        _mm256_mask_storeu_epi16(out + i, lanes, _mm512_cvtepi32_epi16(half));
    }
}

static void elements_add(float *out, const float *in, size_t count) {
    for (size_t i = 0; i < count; i += 16) {
        __mmask16 lanes = elements_mask(count - i);
        __m512 sum = _mm512_add_ps(_mm512_maskz_loadu_ps(lanes, out + i), _mm512_maskz_loadu_ps(lanes, in + i));
        _mm512_mask_storeu_ps(out + i, lanes, sum);
    }
}

void simd_elements_avx512(struct simd *simd) {
    simd->f32_from_bf16 = elements_f32_from_bf16;
    simd->bf16_from_f32 = elements_bf16_from_f32;
    simd->add = elements_add;
}
#endif
