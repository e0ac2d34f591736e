// The clamped gated unit of gpt-oss.
#pragma once
#include "glu.cuh"

// (U+1)·G·σ(αG), G = min(g, 7), U = max(−7, min(u, 7)). The comparisons let NaN through.
struct ClampedSiLU {
    static constexpr float LIMIT = 7.0f, ALPHA = 1.702f, REST = -2.1934509e-8f; // 1.702 = ALPHA + REST
    APR_METHOD static float below(float x) { return x > LIMIT ? LIMIT : x; }
    APR_METHOD static float within(float x) { return x < -LIMIT ? -LIMIT : below(x); }
    // minus returns e^−1.702g; for results in float with what the product lost. Below −60 e^88 is all the same.
    APR_METHOD static float minus(float g, bf16) { return exp_minus(ALPHA * g, bf16()); }
    APR_METHOD static float minus(float g, float) {
        g = max2(g, -60.0f);
        const float z = ALPHA * g, e = exp_minus(z, float());
        return fma_rn(-e, fma_rn(REST, g, fma_rn(ALPHA, g, -z)), e);
    }
    template <class T> APR_METHOD static float gated(float g, float u) {
        g = below(g);
        return (within(u) + 1.0f) * (g * rcp_approx(1.0f + minus(g, T())));
    }
    template <class T> APR_METHOD static void slopes(float g, float &u, float &d) {
        const float c = below(g), m = minus(c, T()), s = rcp_approx(1.0f + m), ds = d * s; // 1 − σ = m·s
        const float dg = ds * (within(u) + 1.0f) * fma_rn(ALPHA * c, m * s, 1.0f);
        d = u > LIMIT || u < -LIMIT ? 0.0f : ds * c;
        u = g > LIMIT ? 0.0f : dg;
    }
};
