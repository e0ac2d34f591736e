// RMSNorm with an optional residual, and its backward. See norm.go for the equations.
//apr:module target=sm_80 types=bf16,f32
#include "norm.cuh"

// One row a block, element by element, read twice: for widths and places that packs do not fit.
template <class T> APR_DEVICE void rmsnorm_elements(const RMSNormArgs &a) {
    SHARED(float, part, 33);
    const i64 row = block();
    const T *v = (const T *)a.x + row * a.x_stride;
    float squares = 0;
    if (a.delta) {
        const T *delta = (const T *)a.delta + row * a.delta_stride;
        T *sum = (T *)a.sum + row * a.sum_stride;
        for (u32 c = thread(); c < a.cols; c += threads()) {
            store(sum + c, load(v + c) + load(delta + c));
            const float p = load(sum + c);
            squares = fma_rn(p, p, squares);
        }
        v = sum;
    } else {
        for (u32 c = thread(); c < a.cols; c += threads()) {
            const float p = load(v + c);
            squares = fma_rn(p, p, squares);
        }
    }
    const float rstd = rms_rstd(block_sum(squares, part), a);
    if (thread() == 0 && a.rstd) a.rstd[row * a.rstd_stride] = rstd;
    if (!a.y) return;
    T *y = (T *)a.y + row * a.y_stride;
    for (u32 c = thread(); c < a.cols; c += threads()) store(y + c, load(v + c) * rstd * a.w[c]);
}

KERNEL(rmsnorm_bf16_8, RMSNormArgs, 512, 1) { rmsnorm_packs<bf16, false>(a); }
KERNEL(rmsnorm_bf16_8_add, RMSNormArgs, 512, 1) { rmsnorm_packs<bf16, true>(a); }
KERNEL(rmsnorm_bf16_1, RMSNormArgs, 256, 1) { rmsnorm_elements<bf16>(a); }
KERNEL(rmsnorm_f32_8, RMSNormArgs, 512, 1) { rmsnorm_packs<float, false>(a); }
KERNEL(rmsnorm_f32_8_add, RMSNormArgs, 512, 1) { rmsnorm_packs<float, true>(a); }
KERNEL(rmsnorm_f32_1, RMSNormArgs, 256, 1) { rmsnorm_elements<float>(a); }

struct RMSNormBackwardArgs {
    void *dx;
    const void *dy, *x;
    const float *rstd, *w;
    float *part; // [blocks, cols], sums of dy·x̂ over the rows of a block
    i64 dx_stride, dy_stride, x_stride, rstd_stride;
    u32 rows, cols;
    u32 warps;     // of a row
    u32 per_block; // rows
    float inv_cols;
};

// A block takes per_block rows, as many at a time as it has `warps` warps; a thread has up to V packs of each.
template <class T, int V> APR_DEVICE void rmsnorm_backward_packs(const RMSNormBackwardArgs &a) {
    SHARED(float, part, 2 * 32);
    SHARED(float, sums, V == 2 ? 256 * 16 : 4);
    const u32 per = a.warps * 32, i = thread() % per, slot = thread() / per, slots = threads() / per, packs = a.cols / 8;
    const u32 first = block() * a.per_block, end = (u32)min_of(a.rows, (i64)first + a.per_block);
    float w[V][8] = {}, dw[V][8] = {};
    UNROLL for (u32 k = 0; k < V; k++)
        if (i + k * per < packs) {
            Pack<float, 8> p;
            load_pack(p, a.w + 8 * (i + k * per));
            widen(w[k], p);
        }
    u32 turn = 0;
    for (u32 base = first; base < end; base += slots, turn ^= 32) {
        const u32 row = base + slot;
        const bool live = row < end;
        const T *x = (const T *)a.x + row * a.x_stride + 8 * i;
        const T *dy = (const T *)a.dy + row * a.dy_stride + 8 * i;
        T *dx = (T *)a.dx + row * a.dx_stride + 8 * i;
        Pack<T, 8> px[V] = {}, pdy[V] = {}, pdx[V] = {};
        UNROLL for (u32 k = 0; k < V; k++)
            if (live && i + k * per < packs) {
                load_pack(px[k], x + 8 * k * per);
                load_pack(pdy[k], dy + 8 * k * per);
                load_pack(pdx[k], dx + 8 * k * per);
            }
        const float rstd = live ? a.rstd[row * a.rstd_stride] : 0.0f;
        float dot = 0;
        UNROLL for (u32 k = 0; k < V; k++) {
            float p[8], q[8];
            widen(p, px[k]);
            widen(q, pdy[k]);
            UNROLL for (int e = 0; e < 8; e++) dot = fma_rn(q[e] * w[k][e], p[e], dot);
        }
        const float mean = row_sum(dot, a.warps, part + turn) * rstd * a.inv_cols;
        UNROLL for (u32 k = 0; k < V; k++) {
            float p[8], q[8], d[8];
            widen(p, px[k]);
            widen(q, pdy[k]);
            widen(d, pdx[k]);
            UNROLL for (int e = 0; e < 8; e++) {
                const float hat = p[e] * rstd;
                d[e] = fma_rn(rstd, q[e] * w[k][e] - hat * mean, d[e]);
                dw[k][e] = fma_rn(q[e], hat, dw[k][e]);
            }
            narrow(pdx[k], d);
            if (live && i + k * per < packs) store_pack(dx + 8 * k * per, pdx[k]);
        }
    }
    if (V == 2 && slots > 1) { // the first slot adds the others, in ascending order
        sync_block();
        UNROLL for (int j = 0; j < 16; j++) sums[j * 256 + thread()] = dw[j / 8][j % 8];
        sync_block();
        if (slot == 0)
            for (u32 s = 1; s < slots; s++) {
                UNROLL for (int j = 0; j < 16; j++) dw[j / 8][j % 8] += sums[j * 256 + s * per + i];
            }
    }
    if (slot > 0) return;
    UNROLL for (u32 k = 0; k < V; k++)
        if (i + k * per < packs) {
            Pack<float, 8> p;
            narrow(p, dw[k]);
            store_pack(a.part + (u64)block() * a.cols + 8 * (i + k * per), p);
        }
}

// A block takes per_block rows one after the other, element by element, reading each twice; dw stands in memory.
template <class T> APR_DEVICE void rmsnorm_backward_elements(const RMSNormBackwardArgs &a) {
    SHARED(float, part, 33);
    const u32 first = block() * a.per_block, end = (u32)min_of(a.rows, (i64)first + a.per_block);
    float *dw = a.part + (u64)block() * a.cols;
    for (u32 c = thread(); c < a.cols; c += threads()) dw[c] = 0;
    for (u32 row = first; row < end; row++) {
        const T *x = (const T *)a.x + row * a.x_stride;
        const T *dy = (const T *)a.dy + row * a.dy_stride;
        T *dx = (T *)a.dx + row * a.dx_stride;
        const float rstd = a.rstd[row * a.rstd_stride];
        float dot = 0;
        for (u32 c = thread(); c < a.cols; c += threads()) dot = fma_rn(load(dy + c) * a.w[c], load(x + c), dot);
        const float mean = block_sum(dot, part) * rstd * a.inv_cols;
        for (u32 c = thread(); c < a.cols; c += threads()) {
            const float hat = load(x + c) * rstd, d = load(dy + c);
            store(dx + c, fma_rn(rstd, d * a.w[c] - hat * mean, load(dx + c)));
            dw[c] = fma_rn(d, hat, dw[c]);
        }
    }
}

KERNEL(rmsnorm_backward_bf16_16, RMSNormBackwardArgs, 256, 2) { rmsnorm_backward_packs<bf16, 2>(a); }
KERNEL(rmsnorm_backward_bf16_32, RMSNormBackwardArgs, 256, 1) { rmsnorm_backward_packs<bf16, 4>(a); }
KERNEL(rmsnorm_backward_bf16_1, RMSNormBackwardArgs, 256, 2) { rmsnorm_backward_elements<bf16>(a); }
KERNEL(rmsnorm_backward_f32_16, RMSNormBackwardArgs, 256, 2) { rmsnorm_backward_packs<float, 2>(a); }
KERNEL(rmsnorm_backward_f32_32, RMSNormBackwardArgs, 256, 1) { rmsnorm_backward_packs<float, 4>(a); }
KERNEL(rmsnorm_backward_f32_1, RMSNormBackwardArgs, 256, 2) { rmsnorm_backward_elements<float>(a); }
