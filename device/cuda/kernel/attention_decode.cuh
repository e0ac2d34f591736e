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

constexpr int AHEAD = 4;        // keys of a lane whose loads are in flight together
constexpr int WARPS = 16;       // of a block
constexpr int PART = 256 + 2;   // floats: sums of values, top, sum

// Grid: (heads, batch, splits); q_len is 1. As many lanes as a head has packs of 8 have a key; a block has one share of the
// keys, and with several their sums go to a.part [splits, batch, heads, PART].
template <class T> APR_DEVICE void decode_packs(const AttentionArgs &a) {
    SHARED(float, parts, WARPS * PART);
    let_next();
    wait_before();
    const int d = a.d, h = block(), b = block_y(), g = h / (a.heads / a.kv_heads), l = lane(), packs = d / 8;
    int per = 1; // lanes of a key
    while (per < packs) per *= 2;
    const int c = l & (per - 1), slots = 32 / per, slot = warp() * slots + l / per, all = WARPS * slots;
    const T *k = head_rows<T>(a.k, a.k_stride, b, a.k_rows, g, d) + 8 * c, *v = head_rows<T>(a.v, a.v_stride, b, a.k_rows, g, d) + 8 * c;
    const int share = (a.q_offset + a.splits) / a.splits, first = (int)block_z() * share, end = (int)min_of(a.q_offset + 1, first + share);
    float q[8] = {};
    if (c < packs) {
        Pack<T, 8> p;
        load_pack(p, head_rows<T>(a.q, a.q_stride, b, 1, h, d) + 8 * c);
        widen(q, p);
    }
    Softmax s = {-INFINITY_F, 0, {}};
    for (int base = first; base < end; base += AHEAD * all) {
        Pack<T, 8> pk[AHEAD] = {}, pv[AHEAD] = {};
        UNROLL for (int i = 0; i < AHEAD; i++) {
            const int key = base + i * all + slot;
            if (key < end && c < packs) load_pack(pk[i], k + (i64)key * a.k_stride), load_pack(pv[i], v + (i64)key * a.v_stride);
        }
        float score[AHEAD];
        UNROLL for (int i = 0; i < AHEAD; i++) {
            float x[8];
            widen(x, pk[i]);
            score[i] = 0;
            UNROLL for (int e = 0; e < 8; e++) score[i] = fma_rn(q[e], x[e], score[i]);
        }
        for (int m = per / 2; m; m >>= 1) UNROLL for (int i = 0; i < AHEAD; i++) score[i] += shfl_xor(score[i], m);
        float higher = s.top;
        UNROLL for (int i = 0; i < AHEAD; i++) {
            score[i] = base + i * all + slot < end ? score[i] * a.log2_scale : -INFINITY_F;
            higher = max2(higher, score[i]);
        }
        s.scale(higher);
        UNROLL for (int i = 0; i < AHEAD; i++) {
            const float w = Softmax::weight(score[i], higher);
            float x[8];
            widen(x, pv[i]);
            s.sum += w;
            UNROLL for (int e = 0; e < 8; e++) s.acc[e] = fma_rn(w, x[e], s.acc[e]);
        }
    }
    for (int m = per; m < 32; m *= 2) s.join(m);
    float *mine = parts + warp() * PART;
    if (l < packs) UNROLL for (int e = 0; e < 8; e++) mine[8 * c + e] = s.acc[e];
    if (l == 0) mine[256] = s.top, mine[257] = s.sum;
    sync_block();
    const int column = thread();
    if (column >= d) return;
    float top = -INFINITY_F, sum = 0, acc = 0;
    for (int w = 0; w < WARPS; w++) top = max2(top, parts[w * PART + 256]);
    for (int w = 0; w < WARPS; w++) {
        const float f = Softmax::weight(parts[w * PART + 256], top);
        sum = fma_rn(f, parts[w * PART + 257], sum);
        acc = fma_rn(f, parts[w * PART + column], acc);
    }
    if (a.splits > 1) {
        float *to = a.part + (((i64)block_z() * a.batch + b) * a.heads + h) * PART;
        to[column] = acc;
        if (column == 0) to[256] = top, to[257] = sum;
        return;
    }
    store(head_rows<T>(a.o, a.o_stride, b, 1, h, d) + column, acc / sum);
    if (a.lse && column == 0) a.lse[(i64)b * a.lse_stride + h] = (top + log2_approx(sum)) * LN2;
}
