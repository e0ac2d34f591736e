// Values that are dropped by a counter generator. See dropout.go.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "apr.cuh"
#include "random.cuh"

struct DropoutArgs {
    const void *x;
    void *y;
    i64 x_stride, y_stride;
    u64 first, key; // the first element's number
    u32 cols, items, below;
    float scale;
};

// A thread has 4 elements, at distances of the block's threads.
template <class T> APR_DEVICE void dropout(const DropoutArgs &a) {
    const u32 first = block() * threads() * 4 + thread();
    UNROLL for (int k = 0; k < 4; k++) {
        const u32 item = first + k * threads();
        if (item >= a.items) continue;
        const u32 row = item / a.cols, c = item - row * a.cols;
        Pack<T, 1> p;
        load_pack(p, (const T *)a.x + row * a.x_stride + c);
        float v[1];
        widen(v, p);
        v[0] = split_mix(a.key, a.first + item) < a.below ? 0.0f : v[0] * a.scale;
        narrow(p, v);
        store_pack((T *)a.y + row * a.y_stride + c, p);
    }
}

KERNEL(dropout_bf16, DropoutArgs, 256, 4) { dropout<bf16>(a); }
KERNEL(dropout_f32, DropoutArgs, 256, 4) { dropout<float>(a); }
