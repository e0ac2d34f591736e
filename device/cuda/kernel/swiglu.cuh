// The gate of SwiGLU, which several kernels must compute in the same bits.
#pragma once
#include "apr.cuh"

// exp_minus returns e^−x, not beyond e⁸⁸: 1/(1+e⁸⁸) is 0 where denormals are flushed.
//
// For results in bfloat16: the rounding of x·log₂e is a relative error of |x|·2⁻²⁴.
APR_DEVICE float exp_minus(float x, bf16) { return exp_approx(min2(-x, 88.0f)); }
// For results in float: with what the product x·log₂e = hi+lo lost, 2^(hi+lo) ≈ 2^hi + 2^hi·lo·ln 2.
APR_DEVICE float exp_minus(float x, float) {
    x = min2(-x, 88.0f);
    const float hi = x * LOG2E, lo = fma_rn(x, 1.925963e-8f, fma_rn(x, LOG2E, -hi)), e = exp2_approx(hi);
    return fma_rn(e, lo * LN2, e);
}

// gated returns silu(g)·u for a result of type T.
template <class T> APR_DEVICE float gated(float g, float u) { return u * (g * rcp_approx(1.0f + exp_minus(g, T()))); }
