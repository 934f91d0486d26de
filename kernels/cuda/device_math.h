// exp, erf and sigmoid of float32 on the device, and random bits, in the same steps as the CPU's
// (kernels/cpu/v16_math.h).
//
// Every step is one operation that IEEE 754 rounds. So a GPU, the emulator and the CPU give the same bits, whatever
// version of CUDA's or the host's library of functions there is.
#ifndef KERNELS_CUDA_DEVICE_MATH_H
#define KERNELS_CUDA_DEVICE_MATH_H

#include "kernels/cuda/device.h"

// exp(x), with an error of at most 2 ulp. Returns 0 below -87, where exp(x) < 1.7e-38, infinity above 88, and NaN for
// NaN.
DEVICE float exp_f32(float x) {
    const float magic = 0x1.8p23f; // adding it rounds to an integer, in the low bits
    float shifted = fma_rn(x, 0x1.715476p0f, magic), n = add_rn(shifted, -magic);
    float r = fma_rn(n, -0x1.7f7d1cp-20f, fma_rn(n, -0x1.62e4p-1f, x));
    float sum = 0.0013950496908208185f;
    sum = fma_rn(sum, r, 0.00836889402990454f);
    sum = fma_rn(sum, r, 0.041666205713515946f);
    sum = fma_rn(sum, r, 0.16666518800306326f);
    sum = fma_rn(sum, r, 0.5000000095214968f);
    sum = fma_rn(sum, r, 1.0f);
    sum = fma_rn(sum, r, 1.0f);
    sum = f32_from_bits(bits_from_f32(sum) + (bits_from_f32(shifted) << 23)); // 2^n exp(r)
    if (x < -87.0f) sum = 0;
    return x < 88.0f ? sum : add_rn(x, f32_from_bits(0x7f800000));
}

// erf(x) with an absolute error below 1.2e-7: x + x P(x^2) up to |x| = 1, 1 - exp(Q(|x|)) above.
DEVICE float erf_f32(float x) {
    float magnitude = fabsf(x);
    if (magnitude < 1.0f) {
        float square = mul_rn(x, x), sum = 7.889119534620903e-05f;
        sum = fma_rn(sum, square, -0.0008020841280728663f);
        sum = fma_rn(sum, square, 0.00518953533945285f);
        sum = fma_rn(sum, square, -0.026854444591896613f);
        sum = fma_rn(sum, square, 0.11283600176229562f);
        sum = fma_rn(sum, square, -0.37612627135905996f);
        sum = fma_rn(sum, square, 0.12837916591337528f);
        return fma_rn(sum, x, x);
    }
    float clamped = 4.0f < magnitude ? 4.0f : magnitude; // erf(4) rounds to 1; NaN stays
    float sum = -2.168684992703588e-05f;
    sum = fma_rn(sum, clamped, 0.00044133637680463585f);
    sum = fma_rn(sum, clamped, -0.0042045618727046645f);
    sum = fma_rn(sum, clamped, 0.02520825673535758f);
    sum = fma_rn(sum, clamped, -0.10841857733093149f);
    sum = fma_rn(sum, clamped, -0.6332198930885701f);
    sum = fma_rn(sum, clamped, -1.1295784242654119f);
    sum = fma_rn(sum, clamped, 0.00018804022941786708f);
    return copysignf(add_rn(1.0f, -exp_f32(sum)), x);
}

// 1 / (1 + exp(-x)).
DEVICE float sigmoid_f32(float x) {
    float e = exp_f32(-fabsf(x));
    return div_rn(x < 0 ? e : 1.0f, add_rn(1.0f, e));
}

// The mixer ops_mix64 of kernels/ops.h.
DEVICE uint64_t mix64(uint64_t x) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

#endif
