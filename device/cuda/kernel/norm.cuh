// RMSNorm with an optional residual, of rows that are kept in registers. See norm.go for the equation.
#pragma once
#include "apr.cuh"

struct RMSNormArgs {
    const void *x, *delta;
    void *sum, *y;
    const float *w;
    float *rstd;
    i64 x_stride, delta_stride, sum_stride, y_stride, rstd_stride;
    u32 rows, cols;
    u32 warps; // of a row
    float eps, inv_cols;
};

// row_sum adds v over the `warps` warps of a row, in a fixed order, and gives every thread of the row the same bits. The
// barrier is the block's: all threads call it. Callers alternate between two arrays of 32 values.
APR_DEVICE float row_sum(float v, u32 warps, float *part) {
    v = warp_sum(v);
    if (warps == 1) return v;
    if (lane() == 0) part[warp()] = v;
    sync_block();
    return warp_sum(lane() < warps ? part[warp() / warps * warps + lane()] : 0.0f);
}

template <class Args> APR_DEVICE float rms_rstd(float squares, const Args &a) { return 1.0f / sqrt_rn(fma_rn(squares, a.inv_cols, a.eps)); }

// RowNorm is the norm of a row of bfloat16 that a block makes of what it reads. One of them writes it too.
struct RowNorm {
    const void *x; // zero: there is none
    void *y;
    const float *w;
    float eps, inv_cols;
    u32 warps; // that add up squares, not more than the block has
};

// norm_row gives `take` every pack of the norm, that of thread() + n·threads() in thread(), in the bits of rmsnorm_packs. All
// lanes take part, those beyond the row with live false.
template <class Take> APR_DEVICE void norm_row(const RowNorm &a, u32 cols, bool writes, Take take) {
    SHARED(float, part, 32);
    const u32 packs = cols / 8, per = a.warps * 32, t = thread();
    const bf16 *x = (const bf16 *)a.x;
    Pack<bf16, 8> v = {}, all[4] = {};
    Pack<float, 8> w = {}; // on its way while the row is added up
    if (t < packs) load_pack(v, x + 8 * t), load_pack(w, a.w + 8 * t);
    float squares = 0, p[8], q[8];
    if (t < per) {
        UNROLL for (u32 k = 0; k < 4; k++)
            if (t + k * per < packs) load_pack(all[k], x + 8 * (t + k * per));
        UNROLL for (u32 k = 0; k < 4; k++) {
            widen(p, all[k]);
            UNROLL for (int e = 0; e < 8; e++) squares = fma_rn(p[e], p[e], squares);
        }
    }
    squares = warp_sum(squares);
    if (lane() == 0 && warp() < a.warps) part[warp()] = squares;
    sync_block();
    const float rstd = rms_rstd(warp_sum(lane() < a.warps ? part[lane()] : 0.0f), a);
    NO_UNROLL for (u32 first = 32 * warp(); first < packs; first += threads()) {
        const u32 pack = first + lane();
        if (first >= threads() && pack < packs) load_pack(v, x + 8 * pack), load_pack(w, a.w + 8 * pack);
        widen(p, v);
        widen(q, w);
        UNROLL for (int e = 0; e < 8; e++) p[e] = p[e] * rstd * q[e];
        narrow(v, p);
        if (writes && pack < packs) store_pack((bf16 *)a.y + 8 * pack, v);
        take(pack, v, pack < packs);
    }
}

// One row for every `warps` warps, kept in registers: a thread has up to 4 packs, at distances of the row's threads.
template <class T, bool DELTA> APR_DEVICE void rmsnorm_packs(const RMSNormArgs &a) {
    SHARED(float, part, 32);
    let_next();
    wait_before();
    const u32 per = a.warps * 32, i = thread() % per, packs = a.cols / 8;
    const u32 row = block() * (threads() / per) + thread() / per;
    const bool live = row < a.rows;
    const T *x = (const T *)a.x + row * a.x_stride;
    const T *delta = (const T *)a.delta + row * a.delta_stride;
    Pack<T, 8> v[4] = {}, d[4] = {};
    UNROLL for (u32 k = 0; k < 4; k++)
        if (live && i + k * per < packs) {
            load_pack(v[k], x + 8 * (i + k * per));
            if (DELTA) load_pack(d[k], delta + 8 * (i + k * per));
        }
    float squares = 0;
    UNROLL for (u32 k = 0; k < 4; k++) {
        float p[8], q[8];
        widen(p, v[k]);
        if (DELTA) {
            widen(q, d[k]);
            UNROLL for (int e = 0; e < 8; e++) p[e] += q[e];
            narrow(v[k], p);
            widen(p, v[k]);
            if (live && i + k * per < packs) store_pack((T *)a.sum + row * a.sum_stride + 8 * (i + k * per), v[k]);
        }
        UNROLL for (int e = 0; e < 8; e++) squares = fma_rn(p[e], p[e], squares);
    }
    if (!a.y && !a.rstd) return;
    Pack<float, 8> w[4] = {}; // on its way while the row is added up
    UNROLL for (u32 k = 0; k < 4; k++)
        if (a.y && live && i + k * per < packs) load_pack(w[k], a.w + 8 * (i + k * per));
    const float rstd = rms_rstd(row_sum(squares, a.warps, part), a);
    if (live && i == 0 && a.rstd) a.rstd[row * a.rstd_stride] = rstd;
    if (!a.y || !live) return;
    T *y = (T *)a.y + row * a.y_stride;
    UNROLL for (u32 k = 0; k < 4; k++) {
        float p[8], q[8];
        widen(p, v[k]);
        widen(q, w[k]);
        UNROLL for (int e = 0; e < 8; e++) p[e] = p[e] * rstd * q[e];
        narrow(v[k], p);
        if (i + k * per < packs) store_pack(y + 8 * (i + k * per), v[k]);
    }
}
