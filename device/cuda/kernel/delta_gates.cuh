// The functions of Gated DeltaNet's gates β and g, exact to float32, and what bounds its heads.
#pragma once
#include "apr.cuh"

constexpr u32 MOST_KEYS = 128; // of a head

// exp_exact returns e^x within two units in the last place: 0 below −87, infinity above 88. Without ANY, x lies between.
template <bool ANY = true> APR_DEVICE float exp_exact(float x) {
    if (ANY && x < -87.0f) return 0;
    if (ANY && x > 88.0f) return INFINITY_F;
    const float n = __builtin_rintf(x * LOG2E);
    const float r = fma_rn(n, 2.12194440e-4f, fma_rn(n, -0.693359375f, x));
    float p = fma_rn(r, 1.9875691500e-4f, 1.3981999507e-3f);
    p = fma_rn(p, r, 8.3334519073e-3f);
    p = fma_rn(p, r, 4.1665795894e-2f);
    p = fma_rn(p, r, 1.6666665459e-1f);
    p = fma_rn(p, r, 5.0000001201e-1f);
    p = fma_rn(p, r * r, r) + 1.0f;
    return x == x ? p * from_bits((u32)((i32)n + 127) << 23) : x;
}
APR_DEVICE float sigmoid(float x) {
    const float z = exp_exact(-__builtin_fabsf(x)), r = 1.0f / (1.0f + z);
    return x >= 0 ? r : z * r;
}
// softplus returns ln(1+e^x) = max(x,0) + ln(1+z) with z = e^−|x|, and ln(1+z) = 2·artanh(z/(2+z)).
APR_DEVICE float softplus(float x) {
    const float z = exp_exact(-__builtin_fabsf(x)), s = z / (2.0f + z), t = s * s;
    float p = 1.0f / 15;
    UNROLL for (int k = 13; k > 0; k -= 2) p = fma_rn(p, t, 1.0f / (float)k);
    return (x > 0 ? x : 0.0f) + 2.0f * s * p;
}
