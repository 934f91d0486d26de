// exp and erf of sixteen lanes, the same bits on every processor.
//
// Polynomials fitted by iteratively reweighted least squares at 400 Chebyshev nodes towards the least greatest error.
#ifndef KERNELS_CPU_CURVES_H
#define KERNELS_CPU_CURVES_H

#include "kernels/cpu/v16.h"

// exp(x), at most 2 units in the last place; 0 below -87 (there exp is below 1.7e-38), infinite above 88; NaN stays.
V16 v16 v16_exp(v16 x) {
    const v16 magic = v16_all(0x1.8p23f); // x + magic has the rounded x in its lowest bits
    v16 shifted = v16_fma(x, v16_all(0x1.715476p0f), magic);
    v16 whole = v16_sub(shifted, magic);
    v16 rest = v16_fma(whole, v16_all(-0x1.62e4p-1f), x);
    rest = v16_fma(whole, v16_all(-0x1.7f7d1cp-20f), rest);
    v16 sum = v16_all(0.0013950496908208185f);
    sum = v16_fma(sum, rest, v16_all(0.00836889402990454f));
    sum = v16_fma(sum, rest, v16_all(0.041666205713515946f));
    sum = v16_fma(sum, rest, v16_all(0.16666518800306326f));
    sum = v16_fma(sum, rest, v16_all(0.5000000095214968f));
    sum = v16_fma(sum, rest, v16_all(1));
    sum = v16_fma(sum, rest, v16_all(1));
    sum = v16_exponent(sum, shifted);
    sum = v16_if_less(x, v16_all(-87), v16_all(0), sum);
    return v16_if_less(x, v16_all(88), sum, v16_add(x, v16_all(INFINITY)));
}

// erf(x), absolute error below 1.2e-7: x + x P(x^2) up to 1, 1 - exp(Q(|x|)) above.
V16 v16 v16_erf(v16 x) {
    v16 square = v16_mul(x, x);
    v16 near = v16_all(7.889119534620903e-05f);
    near = v16_fma(near, square, v16_all(-0.0008020841280728663f));
    near = v16_fma(near, square, v16_all(0.00518953533945285f));
    near = v16_fma(near, square, v16_all(-0.026854444591896613f));
    near = v16_fma(near, square, v16_all(0.11283600176229562f));
    near = v16_fma(near, square, v16_all(-0.37612627135905996f));
    near = v16_fma(near, square, v16_all(0.12837916591337528f));
    near = v16_fma(near, x, x);
    v16 size = v16_abs(x);
    v16 place = v16_if_less(v16_all(4), size, v16_all(4), size); // erf(4) rounds to 1
    v16 far = v16_all(-2.168684992703588e-05f);
    far = v16_fma(far, place, v16_all(0.00044133637680463585f));
    far = v16_fma(far, place, v16_all(-0.0042045618727046645f));
    far = v16_fma(far, place, v16_all(0.02520825673535758f));
    far = v16_fma(far, place, v16_all(-0.10841857733093149f));
    far = v16_fma(far, place, v16_all(-0.6332198930885701f));
    far = v16_fma(far, place, v16_all(-1.1295784242654119f));
    far = v16_fma(far, place, v16_all(0.00018804022941786708f));
    far = v16_sign_of(v16_sub(v16_all(1), v16_exp(far)), x);
    return v16_if_less(size, v16_all(1), near, far);
}

// 1 / (1 + exp(-x)).
V16 v16 v16_sigmoid(v16 x) {
    v16 one = v16_all(1);
    v16 small = v16_exp(v16_sub(v16_all(0), v16_abs(x)));
    v16 top = v16_if_less(x, v16_all(0), small, one);
    return v16_div(top, v16_add(one, small));
}

#endif
