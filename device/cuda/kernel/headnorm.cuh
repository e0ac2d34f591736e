// RMSNorm of heads, groups of columns of a row. See headnorm.go for the equations.
#pragma once
#include "apr.cuh"

struct HeadNormArgs {
    const void *x;
    void *y;
    const float *w; // zero: ones
    float *rstd;    // zero: not kept
    i64 x_stride, y_stride, rstd_stride;
    u32 units, heads, d; // units: heads of all rows
    u32 lanes;           // of a unit, a power of two up to 32
    float eps, inv_d;
};

// lanes_sum adds v over the neighbouring lanes of a unit.
APR_DEVICE float lanes_sum(float v, u32 lanes) {
    for (u32 m = lanes / 2; m; m >>= 1) v += shfl_xor(v, (int)m);
    return v;
}

template <int E> APR_DEVICE void load_weights(float (&w)[E], const float *from, u32 at) {
    UNROLL for (int e = 0; e < E; e++) w[e] = 1;
    if (!from) return;
    Pack<float, E> p;
    load_pack(p, from + at);
    widen(w, p);
}

// A unit's lanes have up to N packs of it each, at distances of the lanes.
template <class T, int E, int N> APR_DEVICE void head_norm(const HeadNormArgs &a) {
    const u32 i = thread() % a.lanes, unit = block() * (threads() / a.lanes) + thread() / a.lanes, packs = a.d / E;
    const bool live = unit < a.units;
    const u32 row = unit / a.heads, h = unit - row * a.heads;
    const T *x = (const T *)a.x + row * a.x_stride + (u64)h * a.d;
    Pack<T, E> v[N] = {};
    UNROLL for (u32 k = 0; k < N; k++)
        if (live && i + k * a.lanes < packs) load_pack(v[k], x + E * (i + k * a.lanes));
    float squares = 0, p[E], w[E];
    UNROLL for (u32 k = 0; k < N; k++) {
        widen(p, v[k]);
        UNROLL for (int e = 0; e < E; e++) squares = fma_rn(p[e], p[e], squares);
    }
    const float rstd = 1.0f / sqrt_rn(fma_rn(lanes_sum(squares, a.lanes), a.inv_d, a.eps));
    if (!live) return;
    if (i == 0 && a.rstd) a.rstd[row * a.rstd_stride + h] = rstd;
    T *y = (T *)a.y + row * a.y_stride + (u64)h * a.d;
    UNROLL for (u32 k = 0; k < N; k++) {
        if (i + k * a.lanes >= packs) continue;
        widen(p, v[k]);
        load_weights(w, a.w, E * (i + k * a.lanes));
        UNROLL for (int e = 0; e < E; e++) p[e] = p[e] * rstd * w[e];
        narrow(v[k], p);
        store_pack(y + E * (i + k * a.lanes), v[k]);
    }
}
