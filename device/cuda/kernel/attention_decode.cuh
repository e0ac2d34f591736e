// Attention of a single query per batch row with heads of whole packs: all lanes read keys and values together.
#pragma once
#include "attention.cuh"

// Softmax is a softmax under way: the largest score so far, in binary logarithms, the sum of 2^(score − top) and that of
// values with these weights, of which a lane has 8 columns.
struct Softmax {
    float top, sum, acc[8];
    APR_METHOD static float weight(float score, float top) { return exp2_approx(score - (top == -INFINITY_F ? 0.0f : top)); }
    APR_METHOD void scale(float higher) {
        const float f = weight(top, higher);
        top = higher;
        sum *= f;
        UNROLL for (int e = 0; e < 8; e++) acc[e] *= f;
    }
    // join adds what the lane m away has. Both compute the same but for the order of the two.
    APR_METHOD void join(int m) {
        scale(max2(top, shfl_xor(top, m)));
        sum += shfl_xor(sum, m);
        UNROLL for (int e = 0; e < 8; e++) acc[e] += shfl_xor(acc[e], m);
    }
};


constexpr int WARPS = 16;       // of a block
constexpr int PART = 256 + 2;   // floats: sums of values, top, sum

// Sum of a softmax's shares for one column of a head's values: see Softmax.
struct Joined { float top, sum, acc; };

// join_shares joins a column's sums of several warps or blocks, in ascending order: they are `step` floats apart from `from` on.
APR_DEVICE Joined join_shares(const float *from, i64 step, int shares, int column) {
    Joined r = {-INFINITY_F, 0, 0};
    for (int i = 0; i < shares; i++) r.top = max2(r.top, from[i * step + 256]);
    for (int i = 0; i < shares; i++) {
        const float f = Softmax::weight(from[i * step + 256], r.top);
        r.sum = fma_rn(f, from[i * step + 257], r.sum);
        r.acc = fma_rn(f, from[i * step + column], r.acc);
    }
    return r;
}

// RowsFrom are rows of one matrix, stride elements apart.
template <class T> struct RowsFrom {
    const T *first;
    i64 stride;
    APR_METHOD const T *operator()(int j) const { return first + j * stride; }
};

// Lanes is how a block divides the keys of a head: as many lanes as it has packs of 8 have a key.
struct Lanes {
    int packs, per, c, slot, all; // of a head; lanes of a key; the lane's pack, its key, of so many at a time
    APR_METHOD Lanes(int d) {
        packs = d / 8, per = 1;
        while (per < packs) per *= 2;
        const int slots = 32 / per;
        c = lane() & (per - 1), slot = warp() * slots + lane() / per, all = threads() / 32 * slots;
    }
};

// Ahead are a lane's packs of N keys and values, from key `base` on, which are loaded together.
template <int N, class T> struct Ahead {
    Pack<T, 8> k[N], v[N];
    template <class Rows> APR_METHOD void load(const Lanes &l, const Rows &keys, const Rows &values, int base, int end) {
        UNROLL for (int i = 0; i < N; i++) {
            const int key = base + i * l.all + l.slot;
            k[i] = v[i] = Pack<T, 8>{};
            if (key < end && l.c < l.packs) load_pack(k[i], keys(key) + 8 * l.c), load_pack(v[i], values(key) + 8 * l.c);
        }
    }
};

// attend_keys is the softmax of a block's keys [first, end) for one query: q is its head, k(j) and v(j) are where the rows of key j
// begin, ahead has those of the first N keys of all lanes. Threads below d return the sums of the values' column of their number.
// parts is shared memory of WARPS · PART, and the block has WARPS warps.
// cap is what a soft-cap makes of a score.
struct NoCap {
    APR_METHOD float operator()(float s) const { return s; }
};
template <int N, class T, class Rows, class Cap = NoCap>
APR_DEVICE Joined attend_keys(const Lanes &lanes, const T *q, const Rows &k, const Rows &v, Ahead<N, T> &ahead, int first, int end, int d, float log2_scale, float *parts, const Cap &cap = Cap()) {
    const int c = lanes.c, packs = lanes.packs;
    float x[8], query[8] = {};
    if (c < packs) {
        Pack<T, 8> p;
        load_pack(p, q + 8 * c);
        widen(query, p);
    }
    Softmax s = {-INFINITY_F, 0, {}};
    for (int base = first; base < end; base += N * lanes.all) {
        if (base > first) ahead.load(lanes, k, v, base, end);
        float score[N];
        UNROLL for (int i = 0; i < N; i++) {
            widen(x, ahead.k[i]);
            score[i] = 0;
            UNROLL for (int e = 0; e < 8; e++) score[i] = fma_rn(query[e], x[e], score[i]);
        }
        for (int m = lanes.per / 2; m; m >>= 1) UNROLL for (int i = 0; i < N; i++) score[i] += shfl_xor(score[i], m);
        float higher = s.top;
        UNROLL for (int i = 0; i < N; i++) {
            score[i] = base + i * lanes.all + lanes.slot < end ? cap(score[i]) * log2_scale : -INFINITY_F;
            higher = max2(higher, score[i]);
        }
        s.scale(higher);
        UNROLL for (int i = 0; i < N; i++) {
            const float w = Softmax::weight(score[i], higher);
            widen(x, ahead.v[i]);
            s.sum += w;
            UNROLL for (int e = 0; e < 8; e++) s.acc[e] = fma_rn(w, x[e], s.acc[e]);
        }
    }
    for (int m = lanes.per; m < 32; m *= 2) s.join(m);
    float *mine = parts + warp() * PART;
    if ((int)lane() < packs) UNROLL for (int e = 0; e < 8; e++) mine[8 * c + e] = s.acc[e];
    if (lane() == 0) mine[256] = s.top, mine[257] = s.sum;
    sync_block();
    return (int)thread() < d ? join_shares(parts, PART, WARPS, thread()) : Joined{-INFINITY_F, 0, 0};
}

template <class A> struct Capped {
    const A &a;
    APR_METHOD float operator()(float s) const { return capped(a, s, float()); }
};

// Grid: (heads, batch, splits); q_len is 1. A block has one share of the keys, and with several their sums go to a.part
// [splits, batch, heads, PART].
template <class T, class A> APR_DEVICE void decode_packs(const A &a) {
    SHARED(float, parts, WARPS * PART);
    let_next();
    wait_before();
    const int d = a.d, h = block(), b = block_y(), g = h / (a.heads / a.kv_heads), column = thread();
    const int share = (a.q_offset + a.splits) / a.splits, first = (int)block_z() * share, end = (int)min_of(a.q_offset + 1, first + share);
    const RowsFrom<T> k = {head_rows<T>(a.k, a.k_stride, b, a.k_rows, g, d), a.k_stride}, v = {head_rows<T>(a.v, a.v_stride, b, a.k_rows, g, d), a.v_stride};
    const Lanes lanes(d);
    Ahead<4, T> ahead;
    ahead.load(lanes, k, v, first, end);
    const Joined r = attend_keys(lanes, head_rows<T>(a.q, a.q_stride, b, 1, h, d), k, v, ahead, first, end, d, a.log2_scale, parts, Capped<A>{a});
    if (column >= d) return;
    if (a.splits > 1) {
        float *to = a.part + (((i64)block_z() * a.batch + b) * a.heads + h) * PART;
        to[column] = r.acc;
        if (column == 0) to[256] = r.top, to[257] = r.sum;
        return;
    }
    store(head_rows<T>(a.o, a.o_stride, b, 1, h, d) + column, r.acc / r.sum);
    if (a.lse && column == 0) a.lse[(i64)b * a.lse_stride + h] = (r.top + log2_approx(r.sum)) * LN2;
}
