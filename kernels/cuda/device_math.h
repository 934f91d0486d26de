// exp, the normal distribution and sigmoid of float32 on the device, and random bits, in the same steps as the CPU's
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

// The standard normal's cumulative distribution function Phi(x) with an absolute error below 1e-7: exp(P(|x|)) for
// negative x, 1 minus it for others.
DEVICE float normal_cdf_f32(float x) {
    float magnitude = fabsf(x), sum = -1.5775102610859904e-06f;
    sum = fma_rn(sum, magnitude, 2.2851636458653957e-05f);
    sum = fma_rn(sum, magnitude, -0.00010901708446908742f);
    sum = fma_rn(sum, magnitude, -0.00014034839114174247f);
    sum = fma_rn(sum, magnitude, 0.004951000213623047f);
    sum = fma_rn(sum, magnitude, -0.03642241656780243f);
    sum = fma_rn(sum, magnitude, -0.3182883858680725f);
    sum = fma_rn(sum, magnitude, -0.7978865504264832f);
    float tail = exp_f32(fma_rn(sum, magnitude, -0.6931471228599548f));
    return x < 0 ? tail : add_rn(1.0f, -tail);
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
