// Sixteen float32 lanes as one value: the same arithmetic in plain C, AVX2 and AVX-512, to the bit; with exp, the
// normal distribution and sigmoid.
//
// The flags with which the including file is compiled select the version. Every function is static: with external
// linkage, the linker could pick the AVX-512 copy of a function for code that must run without AVX-512. v16_fma rounds
// once in all three.
#pragma once

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

// In plain C the compiler decides what to inline: forced inlining of sixteen unrolled lanes takes minutes to compile.
#if defined(__AVX2__)
#define V16 static inline __attribute__((always_inline, unused))
#else
#define V16 static inline __attribute__((unused))
#endif

// Sixteen floats.
#if defined(__AVX2__)
#include <immintrin.h>
#endif
#if defined(__AVX512F__)
typedef __m512 v16;
#else
typedef struct v16 {
#if defined(__AVX2__)
    __m256 low, high;
#else
    float lane[16];
#endif
} v16;
#endif

#if defined(__AVX512F__)

#define V16_OF_TWO(name, f)                                                                                            \
    V16 v16 name(v16 a, v16 b) {                                                                                       \
        return f(a, b);                                                                                                \
    }

V16 v16 v16_set1(float x) {
    return _mm512_set1_ps(x);
}
V16 v16 v16_load(const float *p) {
    return _mm512_loadu_ps(p);
}
V16 void v16_store(float *p, v16 x) {
    _mm512_storeu_ps(p, x);
}
V16 v16 v16_in_register(v16 x) {
    __asm__("" : "+v"(x));
    return x;
}
V16_OF_TWO(v16_add, _mm512_add_ps)
V16_OF_TWO(v16_sub, _mm512_sub_ps)
V16_OF_TWO(v16_mul, _mm512_mul_ps)
V16_OF_TWO(v16_div, _mm512_div_ps)
V16 v16 v16_sqrt(v16 a) {
    return _mm512_sqrt_ps(a);
}
V16 v16 v16_fma(v16 a, v16 b, v16 c) {
    return _mm512_fmadd_ps(a, b, c);
}
V16_OF_TWO(v16_max, _mm512_max_ps)
V16 v16 v16_abs(v16 a) {
    return _mm512_abs_ps(a);
}
V16 v16 v16_select_lt(v16 a, v16 b, v16 x, v16 y) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
V16 unsigned v16_cmp_ge(v16 a, v16 b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
}
V16 v16 v16_mask_first(int64_t n, v16 x, v16 y) {
    return n >= 16 ? x : _mm512_mask_blend_ps((__mmask16)((1u << (n < 0 ? 0 : n)) - 1), y, x);
}
V16 v16 v16_add_exponent(v16 x, v16 bits) {
    return _mm512_castsi512_ps(
        _mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(_mm512_castps_si512(bits), 23)));
}
V16 v16 v16_load_bf16(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p)), 16));
}
V16 v16 v16_round_bf16(v16 x) {
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    up = _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000));
    return _mm512_castsi512_ps(_mm512_and_si512(up, _mm512_set1_epi32((int)0xffff0000)));
}
V16 void v16_store_bf16(uint16_t *p, v16 x) {
    __m512i high = _mm512_srli_epi32(_mm512_castps_si512(v16_round_bf16(x)), 16);
    _mm256_storeu_si256((void *)p, _mm512_cvtepi32_epi16(high));
}
V16 float v16_reduce_add(v16 x) {
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#elif defined(__AVX2__)

#define V16_OF_TWO(name, f)                                                                                            \
    V16 v16 name(v16 a, v16 b) {                                                                                       \
        return (v16){f(a.low, b.low), f(a.high, b.high)};                                                              \
    }

V16 v16 v16_set1(float x) {
    return (v16){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
V16 v16 v16_load(const float *p) {
    return (v16){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
V16 void v16_store(float *p, v16 x) {
    _mm256_storeu_ps(p, x.low);
    _mm256_storeu_ps(p + 8, x.high);
}
V16 v16 v16_in_register(v16 x) {
    return x;
}
V16_OF_TWO(v16_add, _mm256_add_ps)
V16_OF_TWO(v16_sub, _mm256_sub_ps)
V16_OF_TWO(v16_mul, _mm256_mul_ps)
V16_OF_TWO(v16_div, _mm256_div_ps)
V16 v16 v16_sqrt(v16 a) {
    return (v16){_mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high)};
}
V16 v16 v16_fma(v16 a, v16 b, v16 c) {
    return (v16){_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
V16_OF_TWO(v16_max, _mm256_max_ps)
V16 v16 v16_abs(v16 a) {
    const v16 b = v16_set1(-0.0f);
    return (v16){_mm256_andnot_ps(b.low, a.low), _mm256_andnot_ps(b.high, a.high)};
}
V16 v16 v16_select_lt(v16 a, v16 b, v16 x, v16 y) {
    return (v16){_mm256_blendv_ps(y.low, x.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
                 _mm256_blendv_ps(y.high, x.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
}
V16 unsigned v16_cmp_ge(v16 a, v16 b) {
    return (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, _CMP_GE_OQ)) |
           (unsigned)_mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, _CMP_GE_OQ)) << 8;
}
V16 v16 v16_mask_first(int64_t n, v16 x, v16 y) {
    if (n >= 16) return x;
    const __m256i count = _mm256_set1_epi32(n < 0 ? 0 : (int)n), lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    __m256i low = _mm256_cmpgt_epi32(count, lane);
    __m256i high = _mm256_cmpgt_epi32(count, _mm256_add_epi32(lane, _mm256_set1_epi32(8)));
    return (v16){_mm256_blendv_ps(y.low, x.low, _mm256_castsi256_ps(low)),
                 _mm256_blendv_ps(y.high, x.high, _mm256_castsi256_ps(high))};
}
V16 __m256 v16_half_add_exponent(__m256 x, __m256 bits) {
    return _mm256_castsi256_ps(
        _mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_castps_si256(bits), 23)));
}
V16_OF_TWO(v16_add_exponent, v16_half_add_exponent)
V16 __m256 v16_half_load_bf16(const uint16_t *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p)), 16));
}
V16 v16 v16_load_bf16(const uint16_t *p) {
    return (v16){v16_half_load_bf16(p), v16_half_load_bf16(p + 8)};
}
// The high halves of the lanes are the rounded values, the low halves are undefined.
V16 __m256i v16_half_round_high(__m256 x) {
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    return _mm256_blendv_epi8(up, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
V16 __m256 v16_half_round_bf16(__m256 x) {
    return _mm256_castsi256_ps(_mm256_and_si256(v16_half_round_high(x), _mm256_set1_epi32((int)0xffff0000)));
}
V16 v16 v16_round_bf16(v16 x) {
    return (v16){v16_half_round_bf16(x.low), v16_half_round_bf16(x.high)};
}
V16 void v16_store_bf16(uint16_t *p, v16 x) {
    __m256i low = _mm256_srli_epi32(v16_half_round_high(x.low), 16);
    __m256i high = _mm256_srli_epi32(v16_half_round_high(x.high), 16);
    _mm256_storeu_si256((void *)p, _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8));
}
V16 float v16_reduce_add(v16 x) {
    __m256 eight = _mm256_add_ps(x.low, x.high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#else

#define V16_EACH(expression)                                                                                           \
    v16 out;                                                                                                           \
    for (int i = 0; i < 16; i++) out.lane[i] = (expression);                                                           \
    return out
#define V16_OF_TWO(name, expression)                                                                                   \
    V16 v16 name(v16 a, v16 b) {                                                                                       \
        V16_EACH(expression);                                                                                          \
    }

V16 uint32_t v16_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}
V16 float v16_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
V16 v16 v16_set1(float x) {
    V16_EACH(x);
}
V16 v16 v16_load(const float *p) {
    V16_EACH(p[i]);
}
V16 void v16_store(float *p, v16 x) {
    memcpy(p, x.lane, sizeof x.lane);
}
V16 v16 v16_in_register(v16 x) {
    return x;
}
V16_OF_TWO(v16_add, a.lane[i] + b.lane[i])
V16_OF_TWO(v16_sub, a.lane[i] - b.lane[i])
V16_OF_TWO(v16_mul, a.lane[i] * b.lane[i])
V16_OF_TWO(v16_div, a.lane[i] / b.lane[i])
V16 v16 v16_sqrt(v16 a) {
    V16_EACH(sqrtf(a.lane[i]));
}
V16 v16 v16_fma(v16 a, v16 b, v16 c) {
    V16_EACH(fmaf(a.lane[i], b.lane[i], c.lane[i]));
}
V16_OF_TWO(v16_max, a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i])
V16 v16 v16_abs(v16 a) {
    V16_EACH(fabsf(a.lane[i]));
}
V16 v16 v16_select_lt(v16 a, v16 b, v16 x, v16 y) {
    V16_EACH(a.lane[i] < b.lane[i] ? x.lane[i] : y.lane[i]);
}
V16 unsigned v16_cmp_ge(v16 a, v16 b) {
    unsigned bits = 0;
    for (int i = 0; i < 16; i++) bits |= (unsigned)(a.lane[i] >= b.lane[i]) << i;
    return bits;
}
V16 v16 v16_mask_first(int64_t n, v16 x, v16 y) {
    V16_EACH(i < n ? x.lane[i] : y.lane[i]);
}
V16 v16 v16_add_exponent(v16 x, v16 bits) {
    V16_EACH(v16_float(v16_bits(x.lane[i]) + (v16_bits(bits.lane[i]) << 23)));
}
V16 v16 v16_load_bf16(const uint16_t *p) {
    V16_EACH(v16_float((uint32_t)p[i] << 16));
}
V16 float v16_lane_round_bf16(float x) {
    uint32_t bits = v16_bits(x);
    uint32_t up = isnan(x) ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1);
    return v16_float(up & 0xffff0000u);
}
V16 v16 v16_round_bf16(v16 x) {
    V16_EACH(v16_lane_round_bf16(x.lane[i]));
}
V16 void v16_store_bf16(uint16_t *p, v16 x) {
    for (int i = 0; i < 16; i++) p[i] = (uint16_t)(v16_bits(v16_lane_round_bf16(x.lane[i])) >> 16);
}
V16 float v16_reduce_add(v16 x) {
    for (int half = 8; half; half /= 2) {
        for (int i = 0; i < half; i++) x.lane[i] += x.lane[i + half];
    }
    return x.lane[0];
}

#undef V16_EACH

#endif

#undef V16_OF_TWO

enum { V16_LANES = 16 };
static_assert(sizeof(v16) == V16_LANES * sizeof(float), "a v16 is stored as sixteen floats");
static_assert(sizeof(float) == sizeof(uint32_t), "a lane's bits are read as 32-bit integers");

// What the functions above return:
//   v16_set1(x)                sixteen times x
//   v16_load(p), v16_store     from and to memory at any alignment; _bf16: bfloat16, rounded to nearest even
//   v16_in_register(x)         x; keeps the compiler from loading it again at every use
//   v16_fma(a, b, c)           a b + c, rounded once
//   v16_max(a, b)              a > b ? a : b
//   v16_select_lt(a, b, x, y)  a < b ? x : y
//   v16_cmp_ge(a, b)           a bit for each lane: a >= b
//   v16_mask_first(n, x, y)    the first n lanes of x, the remaining lanes of y
//   v16_add_exponent(x, bits)  the integer in the low 9 bits of `bits` added to the exponent of x
//   v16_round_bf16(x)          x rounded to bfloat16
//   v16_reduce_add(x)          the sum of all lanes: lanes i and i + 8 are added first, then i and i + 4, and so on

// Loads p[0..n), n < 16; the remaining lanes are 0.
V16 v16 v16_load_n(const float *p, int64_t n) {
#if defined(__AVX512F__)
    return _mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#else
    float buf[16] = {0};
    memcpy(buf, p, (size_t)n * sizeof *p);
    return v16_load(buf);
#endif
}

// Stores the first n lanes to p[0..n), n < 16.
V16 void v16_store_n(float *p, v16 x, int64_t n) {
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), x);
#else
    float buf[16];
    v16_store(buf, x);
    memcpy(p, buf, (size_t)n * sizeof *p);
#endif
}

// The maximum of all lanes.
V16 float v16_reduce_max(v16 x) {
    float buf[16];
    v16_store(buf, x);
    for (int half = 8; half; half /= 2) {
        for (int i = 0; i < half; i++) buf[i] = buf[i] > buf[i + half] ? buf[i] : buf[i + half];
    }
    return buf[0];
}

// Loads min(n, 16) elements from index i of a row in float32 or bfloat16; the remaining lanes are 0.
V16 v16 v16_row_load(const void *row, bool bf16, int64_t i, int64_t n) {
    if (!bf16) return n >= 16 ? v16_load((const float *)row + i) : v16_load_n((const float *)row + i, n);
    const uint16_t *p = (const uint16_t *)row + i;
    if (n >= 16) return v16_load_bf16(p);
    uint16_t buf[16] = {0};
    memcpy(buf, p, (size_t)n * sizeof *p);
    return v16_load_bf16(buf);
}

// Stores min(n, 16) elements to index i of a row in float32 or bfloat16.
V16 void v16_row_store(void *row, bool bf16, int64_t i, int64_t n, v16 x) {
    if (!bf16) {
        if (n >= 16) {
            v16_store((float *)row + i, x);
        } else {
            v16_store_n((float *)row + i, x, n);
        }
        return;
    }
    uint16_t *p = (uint16_t *)row + i;
    if (n >= 16) {
        v16_store_bf16(p, x);
        return;
    }
    uint16_t buf[16];
    v16_store_bf16(buf, x);
    memcpy(p, buf, (size_t)n * sizeof *p);
}

// x after a round trip through float32 or bfloat16.
V16 v16 v16_round_to(v16 x, bool bf16) {
    return bf16 ? v16_round_bf16(x) : x;
}

// ---- exp, the normal distribution and sigmoid ----
//
// The polynomials minimize the maximum error. They were fitted by iteratively reweighted least squares at 400 Chebyshev
// nodes.

// exp(x) for x <= 88: 2^n exp(r), with an error of at most 2 ulp. Returns 0 below -87, where exp(x) < 1.7e-38, and
// anything for NaN.
V16 v16 v16_exp_bounded(v16 x) {
    const v16 magic = v16_set1(0x1.8p23f); // adding it rounds to an integer, in the low bits
    v16 shifted = v16_fma(x, v16_set1(0x1.715476p0f), magic);
    v16 n = v16_sub(shifted, magic);
    v16 r = v16_fma(n, v16_set1(-0x1.62e4p-1f), x);
    r = v16_fma(n, v16_set1(-0x1.7f7d1cp-20f), r);
    v16 sum = v16_set1(0.0013950496908208185f);
    sum = v16_fma(sum, r, v16_set1(0.00836889402990454f));
    sum = v16_fma(sum, r, v16_set1(0.041666205713515946f));
    sum = v16_fma(sum, r, v16_set1(0.16666518800306326f));
    sum = v16_fma(sum, r, v16_set1(0.5000000095214968f));
    sum = v16_fma(sum, r, v16_set1(1));
    sum = v16_fma(sum, r, v16_set1(1));
    sum = v16_add_exponent(sum, shifted);
    return v16_select_lt(x, v16_set1(-87), v16_set1(0), sum);
}

// exp(x). Returns infinity above 88, and NaN for NaN.
V16 v16 v16_exp(v16 x) {
    return v16_select_lt(x, v16_set1(88), v16_exp_bounded(x), v16_add(x, v16_set1(INFINITY)));
}

// The standard normal's cumulative distribution function Phi(x) with an absolute error below 1e-7: exp(P(|x|)) for
// negative x, 1 minus it for others. Anything for NaN.
V16 v16 v16_normal_cdf(v16 x) {
    v16 magnitude = v16_abs(x);
    v16 sum = v16_set1(-1.5775102610859904e-06f);
    sum = v16_fma(sum, magnitude, v16_set1(2.2851636458653957e-05f));
    sum = v16_fma(sum, magnitude, v16_set1(-0.00010901708446908742f));
    sum = v16_fma(sum, magnitude, v16_set1(-0.00014034839114174247f));
    sum = v16_fma(sum, magnitude, v16_set1(0.004951000213623047f));
    sum = v16_fma(sum, magnitude, v16_set1(-0.03642241656780243f));
    sum = v16_fma(sum, magnitude, v16_set1(-0.3182883858680725f));
    sum = v16_fma(sum, magnitude, v16_set1(-0.7978865504264832f));
    v16 tail = v16_exp_bounded(v16_fma(sum, magnitude, v16_set1(-0.6931471228599548f)));
    return v16_select_lt(x, v16_set1(0), tail, v16_sub(v16_set1(1), tail));
}

// 1 / (1 + exp(-x)).
V16 v16 v16_sigmoid(v16 x) {
    v16 one = v16_set1(1);
    v16 e = v16_exp(v16_sub(v16_set1(0), v16_abs(x)));
    v16 numerator = v16_select_lt(x, v16_set1(0), e, one);
    return v16_div(numerator, v16_add(one, e));
}
