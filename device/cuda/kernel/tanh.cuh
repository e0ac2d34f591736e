// The hyperbolic tangent, for soft-caps.
#pragma once
#include "apr.cuh"

// tanh_of returns tanh x, with an error of about two units in the last place for results in float; for results in bfloat16, 10⁻⁷.
APR_DEVICE float tanh_of(float x, bf16) {
    const float m = exp2_approx(-2.0f * LOG2E * __builtin_fabsf(x));
    return __builtin_copysignf((1.0f - m) * rcp_approx(1.0f + m), x);
}
APR_DEVICE float tanh_of(float x, float) {
    if (!(__builtin_fabsf(x) < 2.0f)) return tanh_of(x, bf16());
    // The seventh convergent of x/(1+x²/(3+x²/(5+…))).
    const float s = x * x;
    const float p = fma_rn(s, fma_rn(s, s + 378.0f, 17325.0f), 135135.0f), q = fma_rn(s, fma_rn(s, fma_rn(s, 28.0f, 3150.0f), 62370.0f), 135135.0f);
    return x * p * rcp_approx(q);
}
