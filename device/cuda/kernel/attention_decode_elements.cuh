// Attention of a single query per batch row with heads that packs do not fit: the threads of a block share the keys, then its warps
// the values.
#pragma once
#include "attention_decode.cuh"

constexpr int COLUMNS = 8; // columns of a lane: 256/32
constexpr int CHUNK = 1024; // keys at a time

// score returns q · a row of k; wide: in pieces of 16 bytes.
APR_DEVICE float score(const float *q, const float *row, int d, bool wide) {
    float s = 0;
    if (!wide) {
        for (int c = 0; c < d; c++) s = fma_rn(q[c], row[c], s);
        return s;
    }
    for (int c = 0; c < d; c += 4) {
        f32x4 x = *(const f32x4 *)(q + c), y = __builtin_bit_cast(f32x4, load16(row + c));
        UNROLL for (int i = 0; i < 4; i++) s = fma_rn(x[i], y[i], s);
    }
    return s;
}
APR_DEVICE float score(const float *q, const bf16 *row, int d, bool wide) {
    float s = 0;
    if (!wide) {
        for (int c = 0; c < d; c++) s = fma_rn(q[c], load(row + c), s);
        return s;
    }
    for (int c = 0; c < d; c += 8) {
        u32x4 y = load16(row + c);
        UNROLL for (int i = 0; i < 4; i++) {
            s = fma_rn(q[c + 2 * i], from_bits(y[i] << 16), s);
            s = fma_rn(q[c + 2 * i + 1], from_bits(y[i] & 0xffff0000u), s);
        }
    }
    return s;
}

// Grid: (heads, batch); q_len is 1.
template <class T, class A> APR_DEVICE void decode(const A &a) {
    SHARED(float, query, 256);
    SHARED(float, weights, CHUNK);
    SHARED(float, parts, 8 * 256);
    SHARED(float, words, 33);
    int d = a.d, h = block(), b = block_y(), g = h / (a.heads / a.kv_heads), t = thread(), n = threads(), l = lane(), w = warp();
    const T *q = head_rows<T>(a.q, a.q_stride, b, 1, h, d);
    const T *k = head_rows<T>(a.k, a.k_stride, b, a.k_rows, g, d), *v = head_rows<T>(a.v, a.v_stride, b, a.k_rows, g, d);
    bool wide = ((u64)k | (u64)a.k_stride * sizeof(T)) % 16 == 0 && d * sizeof(T) % 16 == 0;
    for (int c = t; c < d; c += n) query[c] = load(q + c);
    float top = -INFINITY_F, sum = 0, acc[COLUMNS] = {}; // sum over this thread's keys, acc over this warp's
    int end = a.q_offset + 1;
    for (int first = 0; first < end; first += CHUNK) {
        int keys = (int)min_of(CHUNK, end - first);
        sync_block(); // the query is there, the weights before have been read
        float most = -INFINITY_F;
        for (int j = t; j < keys; j += n) {
            weights[j] = capped(a, score(query, k + (i64)(first + j) * a.k_stride, d, wide), float()) * a.log2_scale;
            most = max2(most, weights[j]);
        }
        most = warp_max(most);
        if (l == 0) words[w] = most;
        sync_block();
        float higher = top;
        for (int i = 0; i < n / 32; i++) higher = max2(higher, words[i]);
        float shrink = exp2_approx(top - higher); // 0 at first
        top = higher;
        sum *= shrink;
        for (int j = t; j < keys; j += n) sum += weights[j] = exp2_approx(weights[j] - top);
        sync_block();
        UNROLL for (int c = 0; c < COLUMNS; c++) acc[c] *= shrink;
        for (int j = w; j < keys; j += n / 32) {
            const T *row = v + (i64)(first + j) * a.v_stride;
            UNROLL for (int c = 0; c < COLUMNS; c++) {
                int column = c * 32 + l;
                if (column < d) acc[c] = fma_rn(weights[j], load(row + column), acc[c]);
            }
        }
    }
    UNROLL for (int c = 0; c < COLUMNS; c++) parts[w * 256 + c * 32 + l] = acc[c];
    sum = block_sum(sum, words); // also a barrier
    for (int c = t; c < d; c += n) {
        float all = 0;
        for (int i = 0; i < n / 32; i++) all += parts[i * 256 + c];
        store(head_rows<T>(a.o, a.o_stride, b, 1, h, d) + c, all / sum);
    }
    if (a.lse && t == 0) a.lse[(i64)b * a.lse_stride + h] = (top + log2_approx(sum)) * LN2;
}
