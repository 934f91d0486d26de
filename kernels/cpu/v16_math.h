// exp, erf and sigmoid of sixteen lanes; the results have the same bits on every processor.
//
// The polynomials minimize the maximum error. They were fitted by iteratively reweighted least squares at 400 Chebyshev
// nodes.
#ifndef KERNELS_CPU_V16_MATH_H
#define KERNELS_CPU_V16_MATH_H

#include "kernels/cpu/v16.h"

// exp(x) = 2^n exp(r), with an error of at most 2 ulp. Returns 0 below -87, where exp(x) < 1.7e-38,
// infinity above 88, and NaN for NaN.
V16 v16 v16_exp(v16 x) {
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
    sum = v16_select_lt(x, v16_set1(-87), v16_set1(0), sum);
    return v16_select_lt(x, v16_set1(88), sum, v16_add(x, v16_set1(INFINITY)));
}

// erf(x) with an absolute error below 1.2e-7: x + x P(x^2) up to |x| = 1, 1 - exp(Q(|x|)) above.
V16 v16 v16_erf(v16 x) {
    v16 square = v16_mul(x, x);
    v16 near = v16_set1(7.889119534620903e-05f);
    near = v16_fma(near, square, v16_set1(-0.0008020841280728663f));
    near = v16_fma(near, square, v16_set1(0.00518953533945285f));
    near = v16_fma(near, square, v16_set1(-0.026854444591896613f));
    near = v16_fma(near, square, v16_set1(0.11283600176229562f));
    near = v16_fma(near, square, v16_set1(-0.37612627135905996f));
    near = v16_fma(near, square, v16_set1(0.12837916591337528f));
    near = v16_fma(near, x, x);
    v16 magnitude = v16_abs(x);
    v16 clamped = v16_select_lt(v16_set1(4), magnitude, v16_set1(4), magnitude); // erf(4) rounds to 1
    v16 far = v16_set1(-2.168684992703588e-05f);
    far = v16_fma(far, clamped, v16_set1(0.00044133637680463585f));
    far = v16_fma(far, clamped, v16_set1(-0.0042045618727046645f));
    far = v16_fma(far, clamped, v16_set1(0.02520825673535758f));
    far = v16_fma(far, clamped, v16_set1(-0.10841857733093149f));
    far = v16_fma(far, clamped, v16_set1(-0.6332198930885701f));
    far = v16_fma(far, clamped, v16_set1(-1.1295784242654119f));
    far = v16_fma(far, clamped, v16_set1(0.00018804022941786708f));
    far = v16_copysign(v16_sub(v16_set1(1), v16_exp(far)), x);
    return v16_select_lt(magnitude, v16_set1(1), near, far);
}

// 1 / (1 + exp(-x)).
V16 v16 v16_sigmoid(v16 x) {
    v16 one = v16_set1(1);
    v16 e = v16_exp(v16_sub(v16_set1(0), v16_abs(x)));
    v16 numerator = v16_select_lt(x, v16_set1(0), e, one);
    return v16_div(numerator, v16_add(one, e));
}

#endif
