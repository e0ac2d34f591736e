// Element by element: a factor, a sum, a soft-cap. See pointwise.go.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "tanh.cuh"

struct PointwiseArgs {
    const void *x;
    void *y;
    i64 x_stride, y_stride;
    u32 packs, items; // packs of a row, of all rows
    float f, inv;     // the factor; the cap and its inverse
};

// The operations: y of x and of what y was.
struct Scale {
    static constexpr bool READS = false;
    APR_METHOD static float of(const PointwiseArgs &a, float x, float) { return a.f * x; }
};
struct Add {
    static constexpr bool READS = true;
    APR_METHOD static float of(const PointwiseArgs &, float x, float y) { return y + x; }
};
struct SoftCap {
    static constexpr bool READS = false;
    APR_METHOD static float of(const PointwiseArgs &a, float x, float) { return a.f * tanh_of(x * a.inv, float()); }
};

// A thread has U packs, at distances of the block's threads.
template <class T, int E, int U, class Of> APR_DEVICE void pointwise(const PointwiseArgs &a) {
    const u32 first = block() * threads() * U + thread();
    Pack<T, E> x[U], y[U];
    T *to[U];
    UNROLL for (int k = 0; k < U; k++) {
        const u32 item = first + k * threads();
        if (item >= a.items) continue;
        const u32 row = item / a.packs, c = (item - row * a.packs) * E;
        to[k] = (T *)a.y + row * a.y_stride + c;
        load_pack(x[k], (const T *)a.x + row * a.x_stride + c);
        if (Of::READS) load_pack(y[k], to[k]);
    }
    UNROLL for (int k = 0; k < U; k++) {
        if (first + k * threads() >= a.items) continue;
        float p[E], q[E] = {};
        widen(p, x[k]);
        if (Of::READS) widen(q, y[k]);
        UNROLL for (int e = 0; e < E; e++) p[e] = Of::of(a, p[e], q[e]);
        narrow(x[k], p);
        store_pack(to[k], x[k]);
    }
}

KERNEL(pointwise_scale_bf16_8, PointwiseArgs, 256, 4) { pointwise<bf16, 8, 2, Scale>(a); }
KERNEL(pointwise_scale_bf16_1, PointwiseArgs, 256, 4) { pointwise<bf16, 1, 4, Scale>(a); }
KERNEL(pointwise_scale_f32_8, PointwiseArgs, 256, 4) { pointwise<float, 8, 2, Scale>(a); }
KERNEL(pointwise_scale_f32_1, PointwiseArgs, 256, 4) { pointwise<float, 1, 4, Scale>(a); }
KERNEL(pointwise_add_bf16_8, PointwiseArgs, 256, 4) { pointwise<bf16, 8, 2, Add>(a); }
KERNEL(pointwise_add_bf16_1, PointwiseArgs, 256, 4) { pointwise<bf16, 1, 4, Add>(a); }
KERNEL(pointwise_add_f32_8, PointwiseArgs, 256, 4) { pointwise<float, 8, 2, Add>(a); }
KERNEL(pointwise_add_f32_1, PointwiseArgs, 256, 4) { pointwise<float, 1, 4, Add>(a); }
KERNEL(pointwise_cap_bf16_8, PointwiseArgs, 256, 4) { pointwise<bf16, 8, 2, SoftCap>(a); }
KERNEL(pointwise_cap_bf16_1, PointwiseArgs, 256, 4) { pointwise<bf16, 1, 4, SoftCap>(a); }
KERNEL(pointwise_cap_f32_8, PointwiseArgs, 256, 4) { pointwise<float, 8, 2, SoftCap>(a); }
KERNEL(pointwise_cap_f32_1, PointwiseArgs, 256, 4) { pointwise<float, 1, 4, SoftCap>(a); }
