// exp, the normal distribution and sigmoid of sixteen lanes; the results have the same bits on every processor.
//
// The polynomials minimize the maximum error. They were fitted by iteratively reweighted least squares at 400 Chebyshev
// nodes.
#ifndef KERNELS_CPU_V16_MATH_H
#define KERNELS_CPU_V16_MATH_H

#include "kernels/cpu/v16.h"

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

#endif
