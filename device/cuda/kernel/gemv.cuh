// Products of few rows with a matrix, y = x·Wᵀ, whose time is that of reading W once.
#pragma once
#include "dequant.cuh"
#include "norm.cuh"
#include "route.cuh"

struct GemvArgs {
    void *y;
    const void *x;
    const u8 *w;
    const float *bias;      // zero: none
    i64 y_stride, x_stride; // elements
    i64 w_stride;           // bytes
    u32 rows, cols, tokens; // of W, of W and x, of x and y
    u32 flags;              // 1: y += x·Wᵀ, 2: y is float
};

// Plain is W of 8 values of type T a lane, as Block… of dequant.cuh is of blocks.
template <class T> struct Plain {
    static constexpr u32 bytes = 256 * sizeof(T);
    template <int N> using Scales = NoScales;
    Pack<T, 8> v;
    APR_METHOD void load(const u8 *p, u32 l) { load_pack(v, (const T *)p + 8 * l); }
    APR_METHOD void decode(float (&x)[8], u32, NoScales, int) const { widen(x, v); }
};

// finish_one writes y of one column and token.
APR_DEVICE void finish_one(const GemvArgs &a, u32 row, u32 token, float sum) {
    const i64 at = token * a.y_stride + row;
    if (a.bias) sum += a.bias[row];
    if (a.flags & 1) sum += a.flags & 2 ? ((const float *)a.y)[at] : from_bf16(((const bf16 *)a.y)[at]);
    if (a.flags & 2) ((float *)a.y)[at] = sum;
    else ((bf16 *)a.y)[at] = to_bf16(sum);
}

template <int M> APR_DEVICE void finish(const GemvArgs &a, u32 row, const float (&sum)[M]) {
    UNROLL for (u32 m = 0; m < M; m++)
        if (m < a.tokens) finish_one(a, row, m, sum[m]);
}

// A warp computes one column of y for at most M tokens. Lane l adds the products of values [8l, 8l+8) of every span in
// ascending order, and the lanes' sums are added as a butterfly: the order depends on the columns of W alone.
template <class B, class T, int M> APR_DEVICE void gemv(const GemvArgs &a) {
    const u32 row = block() * (threads() / 32) + warp(), chunks = a.cols / 8;
    if (row >= a.rows) return;
    const u8 *p = a.w + row * a.w_stride;
    float sum[M] = {};
    auto add = [&](const float (&w)[8], u32 chunk) {
        UNROLL for (u32 m = 0; m < M; m++) {
            if (M > 1 && m >= a.tokens) continue;
            Pack<T, 8> v;
            float x[8];
            load_pack(v, (const T *)a.x + m * a.x_stride + (u64)chunk * 8);
            widen(x, v);
            UNROLL for (int i = 0; i < 8; i++) sum[m] = fma_rn(w[i], x[i], sum[m]);
        }
    };
    u32 c = 0;
    constexpr int N = M == 1 ? 4 : 1; // spans whose loads are in flight together
    NO_UNROLL for (; c + 32 * N <= chunks; c += 32 * N, p += N * B::bytes)
        spans<B, N>(p, [&](const float (&w)[8], int k) { add(w, c + 32 * k + lane()); });
    NO_UNROLL for (; c < chunks; c += 32, p += B::bytes)
        if (c + lane() < chunks) spans<B, 1>(p, [&](const float (&w)[8], int) { add(w, c + lane()); });
    UNROLL for (int m = 0; m < M; m++) sum[m] = warp_sum(sum[m]);
    if (lane() == 0) finish<M>(a, row, sum);
}

// The same of a matrix of few rows: a block computes a column of y, for at most M tokens. A thread adds packs of 8 values that stand
// threads() packs apart, in ascending order, all of whose loads are in flight together; lanes are added as a butterfly, then warps in
// order. The sums are those of one token, of blocks of 256 threads.
template <class T, class X, int M> APR_DEVICE void gemv_wide(const GemvArgs &a) {
    constexpr u32 N = 4; // packs of W of a thread that are loaded together
    SHARED(float, part, 8 * M);
    let_next();
    wait_before(); // W may be a student's, which changes
    const u32 row = block(), packs = a.cols / 8, l = lane();
    const T *w = (const T *)(a.w + row * a.w_stride);
    float sum[M] = {};
    NO_UNROLL for (u32 base = 0; base < packs; base += 256 * N) {
        Pack<T, 8> v[N];
        UNROLL for (u32 i = 0; i < N; i++)
            if (base + 256 * i + thread() < packs) load_pack(v[i], w + 8 * (base + 256 * i + thread()));
        UNROLL for (u32 m = 0; m < M; m++) {
            if (M > 1 && m >= a.tokens) break;
            const X *x = (const X *)a.x + m * a.x_stride;
            Pack<X, 8> u[N];
            UNROLL for (u32 i = 0; i < N; i++)
                if (base + 256 * i + thread() < packs) load_pack(u[i], x + 8 * (base + 256 * i + thread()));
            UNROLL for (u32 i = 0; i < N; i++) {
                if (base + 256 * i + thread() >= packs) continue;
                float p[8], q[8];
                widen(p, v[i]);
                widen(q, u[i]);
                UNROLL for (int e = 0; e < 8; e++) sum[m] = fma_rn(p[e], q[e], sum[m]);
            }
        }
    }
    UNROLL for (u32 m = 0; m < M; m++) {
        sum[m] = warp_sum(sum[m]);
        if (l == 0) part[warp() * M + m] = sum[m];
    }
    sync_block();
    if (thread() >= (u32)M || thread() >= a.tokens) return;
    float all = 0;
    UNROLL for (u32 k = 0; k < 8; k++) all += part[k * M + thread()];
    finish_one(a, row, thread(), all);
}

// The same of any columns and alignment, one element at a time.
template <class W, class T> APR_DEVICE void gemv_elements(const GemvArgs &a) {
    const u32 row = block() * (threads() / 32) + warp();
    if (row >= a.rows) return;
    const W *w = (const W *)(a.w + row * a.w_stride);
    float sum[8] = {};
    for (u32 c = lane(); c < a.cols; c += 32) {
        const float v = load(w + c);
        UNROLL for (u32 m = 0; m < 8; m++)
            if (m < a.tokens) sum[m] = fma_rn(v, load((const T *)a.x + m * a.x_stride + c), sum[m]);
    }
    UNROLL for (int m = 0; m < 8; m++) sum[m] = warp_sum(sum[m]);
    if (lane() == 0) finish<8>(a, row, sum);
}

// fetch asks for bytes of W to come to the second cache, whatever an earlier kernel may still write there.
APR_DEVICE void fetch(const u8 *p, u64 bytes) {
    NO_UNROLL for (u64 at = 128 * thread(); at < bytes; at += 128 * threads()) prefetch(p + at);
}

struct RouterArgs {
    GemvArgs a;
    RowNorm norm;
    RouteArgs route;
    Record *record;
};

// A router for one token: the norm of x, its products with the rows of W as gemv_wide has them, a block each, and by the last block to end
// the choice of experts.
template <class W> APR_DEVICE void router(const RouterArgs &r) {
    SHARED(bf16, x, 256 * 4 * 8);
    SHARED(u32, last, 1);
    let_next();
    fetch(r.a.w + block() * r.a.w_stride, r.a.cols * sizeof(W));
    wait_before();
    norm_row(r.norm, r.a.cols, block() == 0, [&](u32 pack, const Pack<bf16, 8> &v, bool live) {
        if (live) store_pack(x + 8 * pack, v);
    });
    GemvArgs a = r.a;
    a.x = x;
    gemv_wide<W, bf16, 1>(a);
    if (thread() == 0) last[0] = arrive_last(&r.record->arrived, blocks());
    sync_block();
    if (last[0] && warp() == 0) route_token(r.route);
}
