// Gated linear units and their backward: see swiglu.go.
#pragma once
#include "swiglu.cuh"

// Activations: gated returns act(g)·u, and slopes makes u the gradient of g and d, that of the product, the gradient of u.

struct SiLU {
    template <class T> APR_METHOD static float gated(float g, float u) { return ::gated<T>(g, u); }
    template <class T> APR_METHOD static void slopes(float g, float &u, float &d) {
        const float m = exp_minus(g, T()), s = rcp_approx(1.0f + m), ds = d * s; // 1 − σ = m·s
        u *= ds * fma_rn(g, m * s, 1.0f);
        d = ds * g;
    }
};

// ½g(1+tanh z) = g·σ(2z), z = √(2/π)(g + 0.044715g³): without the difference in which tanh would lose what is small.
struct GELUTanh {
    static constexpr float TWICE = 1.5957691216057308f; // 2√(2/π)
    APR_METHOD static float inner(float g) { return TWICE * fma_rn(0.044715f * g * g, g, g); }
    template <class T> APR_METHOD static float gated(float g, float u) { return u * (g * rcp_approx(1.0f + exp_minus(inner(g), T()))); }
    // The derivative is σ + g·σ(1−σ)·2√(2/π)(1 + 0.134145g²). Beyond where the square overflows σ(1−σ) is 0.
    template <class T> APR_METHOD static void slopes(float g, float &u, float &d) {
        const float m = exp_minus(inner(g), T()), s = rcp_approx(1.0f + m), c = max2(min2(g, 1e3f), -1e3f);
        u *= d * s * fma_rn(c * TWICE * fma_rn(0.134145f * c, c, 1.0f), m * s, 1.0f);
        d *= s * g;
    }
};

struct GLUArgs {
    const void *gu;
    void *m; // the product, or its gradient dm
    void *dgu;
    i64 gu_stride, m_stride, dgu_stride;
    u32 cols;  // f
    u32 packs; // of a row of m
    u32 items; // packs of all rows
};

// A thread has U packs, at distances of the block's threads.
template <class T, int E, int U, class Act> APR_DEVICE void glu(const GLUArgs &a) {
    const u32 first = block() * threads() * U + thread();
    Pack<T, E> g[U], u[U];
    T *m[U];
    UNROLL for (int k = 0; k < U; k++) {
        const u32 item = first + k * threads();
        if (item >= a.items) continue;
        const u32 row = item / a.packs, c = (item - row * a.packs) * E;
        const T *p = (const T *)a.gu + row * a.gu_stride + c;
        m[k] = (T *)a.m + row * a.m_stride + c;
        load_pack(g[k], p);
        load_pack(u[k], p + a.cols);
    }
    UNROLL for (int k = 0; k < U; k++) {
        if (first + k * threads() >= a.items) continue;
        float x[E], y[E];
        widen(x, g[k]);
        widen(y, u[k]);
        UNROLL for (int e = 0; e < E; e++) y[e] = Act::template gated<T>(x[e], y[e]);
        narrow(u[k], y);
        store_pack(m[k], u[k]);
    }
}

template <class T, int E, int U, class Act> APR_DEVICE void glu_backward(const GLUArgs &a) {
    const u32 first = block() * threads() * U + thread();
    Pack<T, E> g[U], u[U], d[U];
    T *dg[U];
    UNROLL for (int k = 0; k < U; k++) {
        const u32 item = first + k * threads();
        if (item >= a.items) continue;
        const u32 row = item / a.packs, c = (item - row * a.packs) * E;
        const T *p = (const T *)a.gu + row * a.gu_stride + c;
        dg[k] = (T *)a.dgu + row * a.dgu_stride + c;
        load_pack(g[k], p);
        load_pack(u[k], p + a.cols);
        load_pack(d[k], (const T *)a.m + row * a.m_stride + c);
    }
    UNROLL for (int k = 0; k < U; k++) {
        if (first + k * threads() >= a.items) continue;
        float x[E], y[E], z[E];
        widen(x, g[k]);
        widen(y, u[k]);
        widen(z, d[k]);
        UNROLL for (int e = 0; e < E; e++) Act::template slopes<T>(x[e], y[e], z[e]);
        narrow(g[k], y);
        narrow(u[k], z);
        store_pack(dg[k], g[k]);
        store_pack(dg[k] + a.cols, u[k]);
    }
}
