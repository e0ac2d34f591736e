// RMSNorm of heads, groups of columns of a row, and its backward. See headnorm.go for the equations.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "headnorm.cuh"

// A block has a unit, which it reads twice: for those of more columns than lanes have room for.
template <class T, int E> APR_DEVICE void head_norm_long(const HeadNormArgs &a) {
    SHARED(float, part, 33);
    const u32 unit = block(), row = unit / a.heads, h = unit - row * a.heads;
    const T *x = (const T *)a.x + row * a.x_stride + (u64)h * a.d;
    T *y = (T *)a.y + row * a.y_stride + (u64)h * a.d;
    float squares = 0, p[E], w[E];
    Pack<T, E> v;
    for (u32 c = E * thread(); c < a.d; c += E * threads()) {
        load_pack(v, x + c);
        widen(p, v);
        UNROLL for (int e = 0; e < E; e++) squares = fma_rn(p[e], p[e], squares);
    }
    const float rstd = 1.0f / sqrt_rn(fma_rn(block_sum(squares, part), a.inv_d, a.eps));
    if (thread() == 0 && a.rstd) a.rstd[row * a.rstd_stride + h] = rstd;
    for (u32 c = E * thread(); c < a.d; c += E * threads()) {
        load_pack(v, x + c);
        widen(p, v);
        load_weights(w, a.w, c);
        UNROLL for (int e = 0; e < E; e++) p[e] = p[e] * rstd * w[e];
        narrow(v, p);
        store_pack(y + c, v);
    }
}

struct HeadNormBackwardArgs {
    void *dx;
    const void *dy, *x;
    const float *rstd, *w;
    float *part; // [blocks, or warps of all blocks; d], sums of dy·x̂; zero: not wanted
    i64 dx_stride, dy_stride, x_stride, rstd_stride;
    u32 units, heads, d, lanes;
    u32 per_block; // units
    float inv_d;
};

template <class T, int E, int N> APR_DEVICE void head_norm_backward(const HeadNormBackwardArgs &a) {
    const u32 i = thread() % a.lanes, slot = thread() / a.lanes, slots = threads() / a.lanes, packs = a.d / E;
    const u32 first = block() * a.per_block, end = (u32)min_of(a.units, (i64)first + a.per_block);
    float w[N][E], dw[N][E] = {};
    UNROLL for (u32 k = 0; k < N; k++)
        if (i + k * a.lanes < packs) load_weights(w[k], a.w, E * (i + k * a.lanes));
    for (u32 base = first; base < end; base += slots) {
        const u32 unit = base + slot, row = unit / a.heads, h = unit - row * a.heads;
        const bool live = unit < end;
        const T *x = (const T *)a.x + row * a.x_stride + (u64)h * a.d, *dy = (const T *)a.dy + row * a.dy_stride + (u64)h * a.d;
        T *dx = (T *)a.dx + row * a.dx_stride + (u64)h * a.d;
        Pack<T, E> px[N] = {}, pdy[N] = {};
        UNROLL for (u32 k = 0; k < N; k++)
            if (live && i + k * a.lanes < packs) {
                load_pack(px[k], x + E * (i + k * a.lanes));
                load_pack(pdy[k], dy + E * (i + k * a.lanes));
            }
        const float rstd = live ? a.rstd[row * a.rstd_stride + h] : 0.0f;
        float dot = 0, p[E], q[E];
        UNROLL for (u32 k = 0; k < N; k++) {
            if (i + k * a.lanes >= packs) continue;
            widen(p, px[k]);
            widen(q, pdy[k]);
            UNROLL for (int e = 0; e < E; e++) dot = fma_rn(q[e] * w[k][e], p[e], dot);
        }
        const float mean = lanes_sum(dot, a.lanes) * rstd * a.inv_d;
        UNROLL for (u32 k = 0; k < N; k++) {
            if (!live || i + k * a.lanes >= packs) continue;
            widen(p, px[k]);
            widen(q, pdy[k]);
            UNROLL for (int e = 0; e < E; e++) {
                const float hat = p[e] * rstd;
                dw[k][e] = fma_rn(q[e], hat, dw[k][e]);
                q[e] = rstd * (q[e] * w[k][e] - hat * mean);
            }
            narrow(pdy[k], q);
            store_pack(dx + E * (i + k * a.lanes), pdy[k]);
        }
    }
    if (!a.part) return;
    float *part = a.part + ((u64)block() * (threads() / 32) + warp()) * a.d;
    UNROLL for (u32 k = 0; k < N; k++) { // the units of a warp, in the order of a butterfly
        for (u32 m = a.lanes; m < 32; m *= 2) UNROLL for (int e = 0; e < E; e++) dw[k][e] += shfl_xor(dw[k][e], (int)m);
        Pack<float, E> sum;
        narrow(sum, dw[k]);
        if (lane() < a.lanes && i + k * a.lanes < packs) store_pack(part + E * (i + k * a.lanes), sum);
    }
}

// A block has one unit after the other; its sums stand in memory.
template <class T, int E> APR_DEVICE void head_norm_backward_long(const HeadNormBackwardArgs &a) {
    SHARED(float, sums, 33);
    const u32 first = block() * a.per_block, end = (u32)min_of(a.units, (i64)first + a.per_block);
    float *part = a.part ? a.part + (u64)block() * a.d : nullptr, p[E], q[E], w[E], s[E] = {};
    Pack<T, E> px, pdy;
    Pack<float, E> sum;
    for (u32 unit = first; unit < end; unit++) {
        const u32 row = unit / a.heads, h = unit - row * a.heads;
        const T *x = (const T *)a.x + row * a.x_stride + (u64)h * a.d, *dy = (const T *)a.dy + row * a.dy_stride + (u64)h * a.d;
        T *dx = (T *)a.dx + row * a.dx_stride + (u64)h * a.d;
        const float rstd = a.rstd[row * a.rstd_stride + h];
        float dot = 0;
        for (u32 c = E * thread(); c < a.d; c += E * threads()) {
            load_pack(px, x + c);
            load_pack(pdy, dy + c);
            widen(p, px);
            widen(q, pdy);
            load_weights(w, a.w, c);
            UNROLL for (int e = 0; e < E; e++) dot = fma_rn(q[e] * w[e], p[e], dot);
        }
        const float mean = block_sum(dot, sums) * rstd * a.inv_d;
        for (u32 c = E * thread(); c < a.d; c += E * threads()) {
            load_pack(px, x + c);
            load_pack(pdy, dy + c);
            widen(p, px);
            widen(q, pdy);
            load_weights(w, a.w, c);
            if (part && unit > first) load_pack(sum, part + c), widen(s, sum);
            else UNROLL for (int e = 0; e < E; e++) s[e] = 0;
            UNROLL for (int e = 0; e < E; e++) {
                const float hat = p[e] * rstd;
                s[e] = fma_rn(q[e], hat, s[e]);
                q[e] = rstd * (q[e] * w[e] - hat * mean);
            }
            narrow(sum, s);
            if (part) store_pack(part + c, sum);
            narrow(pdy, q);
            store_pack(dx + c, pdy);
        }
    }
}

KERNEL(head_norm_bf16_8, HeadNormArgs, 256, 1) { head_norm<bf16, 8, 1>(a); }
KERNEL(head_norm_bf16_32, HeadNormArgs, 256, 1) { head_norm<bf16, 8, 4>(a); }
KERNEL(head_norm_bf16_1, HeadNormArgs, 256, 1) { head_norm<bf16, 1, 32>(a); }
KERNEL(head_norm_bf16_long_8, HeadNormArgs, 256, 1) { head_norm_long<bf16, 8>(a); }
KERNEL(head_norm_bf16_long_1, HeadNormArgs, 256, 1) { head_norm_long<bf16, 1>(a); }
KERNEL(head_norm_f32_8, HeadNormArgs, 256, 1) { head_norm<float, 8, 1>(a); }
KERNEL(head_norm_f32_32, HeadNormArgs, 256, 1) { head_norm<float, 8, 4>(a); }
KERNEL(head_norm_f32_1, HeadNormArgs, 256, 1) { head_norm<float, 1, 32>(a); }
KERNEL(head_norm_f32_long_8, HeadNormArgs, 256, 1) { head_norm_long<float, 8>(a); }
KERNEL(head_norm_f32_long_1, HeadNormArgs, 256, 1) { head_norm_long<float, 1>(a); }
KERNEL(head_norm_backward_bf16_8, HeadNormBackwardArgs, 256, 1) { head_norm_backward<bf16, 8, 1>(a); }
KERNEL(head_norm_backward_bf16_32, HeadNormBackwardArgs, 256, 1) { head_norm_backward<bf16, 8, 4>(a); }
KERNEL(head_norm_backward_bf16_1, HeadNormBackwardArgs, 256, 1) { head_norm_backward<bf16, 1, 32>(a); }
KERNEL(head_norm_backward_bf16_long_8, HeadNormBackwardArgs, 256, 1) { head_norm_backward_long<bf16, 8>(a); }
KERNEL(head_norm_backward_bf16_long_1, HeadNormBackwardArgs, 256, 1) { head_norm_backward_long<bf16, 1>(a); }
KERNEL(head_norm_backward_f32_8, HeadNormBackwardArgs, 256, 1) { head_norm_backward<float, 8, 1>(a); }
KERNEL(head_norm_backward_f32_32, HeadNormBackwardArgs, 256, 1) { head_norm_backward<float, 8, 4>(a); }
KERNEL(head_norm_backward_f32_1, HeadNormBackwardArgs, 256, 1) { head_norm_backward<float, 1, 32>(a); }
KERNEL(head_norm_backward_f32_long_8, HeadNormBackwardArgs, 256, 1) { head_norm_backward_long<float, 8>(a); }
KERNEL(head_norm_backward_f32_long_1, HeadNormBackwardArgs, 256, 1) { head_norm_backward_long<float, 1>(a); }
