// SwiGLU and its backward. See swiglu.go for the equations.
//apr:module target=sm_80 types=bf16,f32
#include "swiglu.cuh"

struct SwiGLUArgs {
    const void *gu;
    void *m; // the product, or its gradient dm
    void *dgu;
    i64 gu_stride, m_stride, dgu_stride;
    u32 cols;  // f
    u32 packs; // of a row of m
    u32 items; // packs of all rows
};

// A thread has U packs, at distances of the block's threads.
template <class T, int E, int U> APR_DEVICE void swiglu(const SwiGLUArgs &a) {
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
        UNROLL for (int e = 0; e < E; e++) y[e] = gated<T>(x[e], y[e]);
        narrow(u[k], y);
        store_pack(m[k], u[k]);
    }
}

template <class T, int E, int U> APR_DEVICE void swiglu_backward(const SwiGLUArgs &a) {
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
        UNROLL for (int e = 0; e < E; e++) {
            const float m = exp_minus(x[e], T()), s = rcp_approx(1.0f + m), zs = z[e] * s; // 1 − σ = m·s
            y[e] *= zs * fma_rn(x[e], m * s, 1.0f);
            z[e] = zs * x[e];
        }
        narrow(g[k], y);
        narrow(u[k], z);
        store_pack(dg[k], g[k]);
        store_pack(dg[k] + a.cols, u[k]);
    }
}

KERNEL(swiglu_bf16_8, SwiGLUArgs, 256, 4) { swiglu<bf16, 8, 2>(a); }
KERNEL(swiglu_bf16_1, SwiGLUArgs, 256, 4) { swiglu<bf16, 1, 4>(a); }
KERNEL(swiglu_f32_8, SwiGLUArgs, 256, 4) { swiglu<float, 8, 2>(a); }
KERNEL(swiglu_f32_1, SwiGLUArgs, 256, 4) { swiglu<float, 1, 4>(a); }
KERNEL(swiglu_backward_bf16_8, SwiGLUArgs, 256, 4) { swiglu_backward<bf16, 8, 2>(a); }
KERNEL(swiglu_backward_bf16_1, SwiGLUArgs, 256, 4) { swiglu_backward<bf16, 1, 4>(a); }
KERNEL(swiglu_backward_f32_8, SwiGLUArgs, 256, 3) { swiglu_backward<float, 8, 2>(a); }
KERNEL(swiglu_backward_f32_1, SwiGLUArgs, 256, 4) { swiglu_backward<float, 1, 4>(a); }
