// The sums of tensor cores for bfloat16, to the bit.
//
// A tensor core adds c and several products as one sum. Each term is cut, towards zero, to a number of fractional bits
// relative to the largest exponent among the terms; a product's exponent is the sum of its factors' exponents. The cut
// terms are added exactly, and the sum is rounded to float32 towards zero. sm_90 adds 16 products at once and keeps 25
// bits; sm_80 adds 8 and then the next 8, and keeps 24. (After X. Li and others, "MMA-Sim", 2025; compared with
// hardware by the tests that need a GPU.)
#include "emulate_internal.h"

#ifdef __x86_64__
#define VECTORIZED __attribute__((target_clones("avx2", "default"), optimize("O3")))
#else
#define VECTORIZED
#endif

namespace emulate {

enum { columns = 8, product_fraction = 14, f32_fraction = 23 };
enum { zero_exponent = -1000 }; // of a zero: so small that neither it nor a product with it is the largest

// mantissa * 2^(exponent - fraction), with the sign in the mantissa.
struct term {
    int32_t mantissa, exponent;
};

static inline struct term term_of(uint32_t sign, int32_t exponent, int32_t fraction, int32_t hidden_bit, int bias) {
    struct term term = {fraction, fraction ? 1 - bias : zero_exponent}; // zero, or below the normal numbers
    if (exponent) term = {fraction | hidden_bit, exponent - bias};
    if (sign) term.mantissa = -term.mantissa;
    return term;
}

static inline struct term term_of_bf16(uint16_t bits) {
    return term_of(bits >> 15, bits >> 7 & 255, bits & 127, 128, 127);
}

static inline struct term term_of_f32(float value) {
    uint32_t bits = bits_from_f32(value);
    return term_of(bits >> 31, (int32_t)(bits >> 23 & 255), (int32_t)(bits & 0x7fffff), 0x800000, 127);
}

static inline float rounded_towards_zero(double value) {
    auto nearest = (float)value;
    return fabs((double)nearest) > fabs(value) ? f32_from_bits(bits_from_f32(nearest) - 1) : nearest;
}

// 2^exponent of a normal double.
static inline double power_of_two(int exponent) {
    uint64_t bits = (uint64_t)(1023 + exponent) << 52;
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// |mantissa| moved up by `up` and down by `down`, cut, with its sign.
static inline int32_t cut(int32_t mantissa, int up, int down) {
    int32_t size = (mantissa < 0 ? -mantissa : mantissa) << up >> (down > 31 ? 31 : down);
    return mantissa < 0 ? -size : size;
}

VECTORIZED static void add_sum(float c[columns], const struct term *a, const int32_t (*b_mantissas)[columns],
                               const int32_t (*b_exponents)[columns], int count, int sum_bits) {
    int32_t largest[columns], sum[columns];
    struct term old[columns];
    for (int j = 0; j < columns; j++) {
        old[j] = term_of_f32(c[j]);
        largest[j] = old[j].exponent;
        sum[j] = 0;
    }
    for (int k = 0; k < count; k++) {
        for (int j = 0; j < columns; j++) {
            int32_t exponent = a[k].exponent + b_exponents[k][j];
            largest[j] = exponent > largest[j] ? exponent : largest[j];
        }
    }
    for (int k = 0; k < count; k++) {
        for (int j = 0; j < columns; j++) {
            int32_t product = a[k].mantissa * b_mantissas[k][j], exponent = a[k].exponent + b_exponents[k][j];
            sum[j] += cut(product, sum_bits - product_fraction, largest[j] - exponent);
        }
    }
    for (int j = 0; j < columns; j++) {
        int64_t all = (int64_t)sum[j] + cut(old[j].mantissa, sum_bits - f32_fraction, largest[j] - old[j].exponent);
        c[j] = all ? rounded_towards_zero((double)all * power_of_two(largest[j] - sum_bits)) : 0;
    }
}

static bool finite_bf16(uint16_t bits) {
    return (bits & 0x7f80) != 0x7f80;
}

// What is not finite gives infinity or NaN, whatever the order.
static float add_one_by_one(float c, const uint16_t a[16], const uint16_t b[16][columns], int j) {
    for (int k = 0; k < 16; k++) c += f32_from_bits((uint32_t)a[k] << 16) * f32_from_bits((uint32_t)b[k][j] << 16);
    return std::isnan(c) ? f32_from_bits(0x7fffffff) : c;
}

// A matrix of 16 x 8, and what is found out about it once for all rows.
struct factor {
    const uint16_t (*bits)[columns];
    int32_t mantissas[16][columns], exponents[16][columns];
    bool zero, odd[columns]; // all of it is zero; a column that is not finite
};

VECTORIZED static struct factor factor_of(const uint16_t b[16][columns]) {
    struct factor factor = {b, {}, {}, true, {}};
    for (int k = 0; k < 16; k++) {
        for (int j = 0; j < columns; j++) {
            struct term term = term_of_bf16(b[k][j]);
            factor.mantissas[k][j] = term.mantissa;
            factor.exponents[k][j] = term.exponent;
            factor.zero &= !(b[k][j] & 0x7fff);
            factor.odd[j] |= !finite_bf16(b[k][j]);
        }
    }
    return factor;
}

static void add_row(float c[columns], const uint16_t a[16], const struct factor &b, int products_at_once,
                    int sum_bits) {
    float odd[columns];
    bool is_odd[columns], a_odd = false;
    struct term terms[16];
    uint16_t any = 0;
    for (int k = 0; k < 16; k++) {
        terms[k] = term_of_bf16(a[k]);
        any |= a[k] & 0x7fff;
        a_odd |= !finite_bf16(a[k]);
    }
    for (int j = 0; j < columns; j++) {
        is_odd[j] = a_odd || b.odd[j] || !std::isfinite(c[j]);
        if (is_odd[j]) odd[j] = add_one_by_one(c[j], a, b.bits, j);
    }
    if (b.zero || !any) { // much of a tile that is not full
        for (int j = 0; j < columns; j++) c[j] += 0.0f;
    } else {
        for (int k = 0; k < 16; k += products_at_once)
            add_sum(c, terms + k, b.mantissas + k, b.exponents + k, products_at_once, sum_bits);
    }
    for (int j = 0; j < columns; j++)
        if (is_odd[j]) c[j] = odd[j];
}

void add_products(float c[][columns], const uint16_t a[][16], int rows, const uint16_t b[16][columns],
                  int products_at_once, int sum_bits) {
    const struct factor factor = factor_of(b);
    for (int row = 0; row < rows; row++) add_row(c[row], a[row], factor, products_at_once, sum_bits);
}

} // namespace emulate
