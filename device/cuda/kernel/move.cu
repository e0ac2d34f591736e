// What moves values without changing them, but for rounding: zero, copy, gather, scatter; and the argmax of rows.
//apr:module target=sm_80 types=bf16,f32
#include "argmax.cuh"
#include "move.cuh"

KERNEL(zero_16, CopyArgs, 256, 4) { move_units<u32x4, true>(a); }
KERNEL(zero_4, CopyArgs, 256, 4) { move_units<u32, true>(a); }
KERNEL(zero_2, CopyArgs, 256, 4) { move_units<u16, true>(a); }
KERNEL(copy_16, CopyArgs, 256, 4) { move_units<u32x4, false>(a); }
KERNEL(copy_4, CopyArgs, 256, 4) { move_units<u32, false>(a); }
KERNEL(copy_2, CopyArgs, 256, 4) { move_units<u16, false>(a); }

template <class T, int E> APR_DEVICE void convert_pack(Pack<T, E> &r, const Pack<T, E> &v) { r = v; }
template <class D, class S, int E> APR_DEVICE void convert_pack(Pack<D, E> &r, const Pack<S, E> &v) {
    float x[E];
    widen(x, v);
    narrow(r, x);
}

// A thread converts 4 packs.
template <class D, class S, int E> APR_DEVICE void convert(const CopyArgs &a) {
    const u32 first = block() * threads() * 4 + thread();
    Pack<S, E> v[4];
    D *to[4];
    UNROLL for (int k = 0; k < 4; k++) {
        const u32 item = first + k * threads();
        if (item >= a.items) continue;
        const u32 row = item / a.packs, c = (item - row * a.packs) * E;
        to[k] = (D *)a.dst + row * a.dst_stride + c;
        load_pack(v[k], (const S *)a.src + row * a.src_stride + c);
    }
    UNROLL for (int k = 0; k < 4; k++) {
        if (first + k * threads() >= a.items) continue;
        Pack<D, E> r;
        convert_pack(r, v[k]);
        store_pack(to[k], r);
    }
}

KERNEL(convert_bf16_f32_8, CopyArgs, 256, 4) { convert<bf16, float, 8>(a); }
KERNEL(convert_bf16_f32_1, CopyArgs, 256, 4) { convert<bf16, float, 1>(a); }
KERNEL(convert_f32_bf16_8, CopyArgs, 256, 4) { convert<float, bf16, 8>(a); }
KERNEL(convert_f32_bf16_1, CopyArgs, 256, 4) { convert<float, bf16, 1>(a); }

struct GatherArgs {
    void *dst;
    const void *src;
    const i32 *ids;
    Record *record;
    i64 dst_stride, src_stride, id_stride;
    u32 limit;        // rows of src (gather) or dst (scatter)
    u32 packs, items; // packs of a row, of all ids
    u32 code;         // of the fault
};

// dst[i] = src[ids[i]]; a row whose id is out of range becomes zero. A thread has 4 packs.
template <class D, class S, int E> APR_DEVICE void gather(const GatherArgs &a) {
    const u32 first = block() * threads() * 4 + thread();
    Pack<S, E> v[4] = {};
    UNROLL for (int k = 0; k < 4; k++) {
        const u32 item = first + k * threads();
        if (item >= a.items) continue;
        const u32 row = item / a.packs, c = item - row * a.packs;
        const i32 id = a.ids[row * a.id_stride];
        if ((u32)id < a.limit) load_pack(v[k], (const S *)a.src + id * a.src_stride + c * E);
        else if (c == 0) first_fault(a.record, a.code, id, a.limit);
    }
    UNROLL for (int k = 0; k < 4; k++) {
        const u32 item = first + k * threads();
        if (item >= a.items) continue;
        const u32 row = item / a.packs, c = item - row * a.packs;
        Pack<D, E> r;
        convert_pack(r, v[k]);
        store_pack((D *)a.dst + row * a.dst_stride + c * E, r);
    }
}

KERNEL(gather_bf16_bf16_8, GatherArgs, 256, 4) { gather<bf16, bf16, 8>(a); }
KERNEL(gather_bf16_bf16_1, GatherArgs, 256, 4) { gather<bf16, bf16, 1>(a); }
KERNEL(gather_bf16_f32_8, GatherArgs, 256, 4) { gather<bf16, float, 8>(a); }
KERNEL(gather_bf16_f32_1, GatherArgs, 256, 4) { gather<bf16, float, 1>(a); }
KERNEL(gather_f32_bf16_8, GatherArgs, 256, 4) { gather<float, bf16, 8>(a); }
KERNEL(gather_f32_bf16_1, GatherArgs, 256, 4) { gather<float, bf16, 1>(a); }
KERNEL(gather_f32_f32_8, GatherArgs, 256, 4) { gather<float, float, 8>(a); }
KERNEL(gather_f32_f32_1, GatherArgs, 256, 4) { gather<float, float, 1>(a); }

// dst[ids[i]] = src[i] for the ids in range. A thread has 4 packs.
template <class T, int E> APR_DEVICE void scatter(const GatherArgs &a) {
    const u32 first = block() * threads() * 4 + thread();
    Pack<T, E> v[4] = {};
    UNROLL for (int k = 0; k < 4; k++) {
        const u32 item = first + k * threads();
        if (item >= a.items) continue;
        const u32 row = item / a.packs, c = item - row * a.packs;
        load_pack(v[k], (const T *)a.src + row * a.src_stride + c * E);
    }
    UNROLL for (int k = 0; k < 4; k++) {
        const u32 item = first + k * threads();
        if (item >= a.items) continue;
        const u32 row = item / a.packs, c = item - row * a.packs;
        const i32 id = a.ids[row * a.id_stride];
        if ((u32)id < a.limit) store_pack((T *)a.dst + id * a.dst_stride + c * E, v[k]);
        else if (c == 0) first_fault(a.record, a.code, id, a.limit);
    }
}

KERNEL(scatter_bf16_8, GatherArgs, 256, 4) { scatter<bf16, 8>(a); }
KERNEL(scatter_bf16_1, GatherArgs, 256, 4) { scatter<bf16, 1>(a); }
KERNEL(scatter_f32_8, GatherArgs, 256, 4) { scatter<float, 8>(a); }
KERNEL(scatter_f32_1, GatherArgs, 256, 4) { scatter<float, 1>(a); }

KERNEL(argmax_bf16_8, ArgMaxArgs, 512, 2) { argmax<bf16, 8>(a); }
KERNEL(argmax_bf16_1, ArgMaxArgs, 512, 2) { argmax<bf16, 1>(a); }
KERNEL(argmax_f32_8, ArgMaxArgs, 512, 2) { argmax<float, 8>(a); }
KERNEL(argmax_f32_1, ArgMaxArgs, 512, 2) { argmax<float, 1>(a); }
