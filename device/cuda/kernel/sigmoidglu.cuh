// A gated unit with σ alone: see glu.cuh.
#pragma once
#include "glu.cuh"

// σ(g)·u. What is approximated forgets NaN; the comparisons do not.
struct Sigmoid {
    template <class T> APR_METHOD static float gated(float g, float u) {
        const float s = rcp_approx(1.0f + exp_minus(g, T()));
        return u * (g == g ? s : g);
    }
    template <class T> APR_METHOD static void slopes(float g, float &u, float &d) {
        const float m = exp_minus(g, T()), s = rcp_approx(1.0f + m); // 1 − σ = m·s
        d *= g == g ? s : g;
        u *= d * (m * s);
    }
};
