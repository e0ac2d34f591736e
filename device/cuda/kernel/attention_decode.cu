// attention_decode.cu: attention of a single query per batch row, as generation asks for it: float32 arithmetic, every type
// and head width up to 256. Heads of whole packs have their keys and values read together by all lanes; for others the
// threads of a block share the keys, then its warps the values.
#include "attention.cuh"

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
template <class T> APR_DEVICE void decode(const AttentionArgs &a) {
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
            weights[j] = score(query, k + (i64)(first + j) * a.k_stride, d, wide) * a.log2_scale;
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

// Grid: (heads, batch). The shares of a head, in ascending order.
template <class T> APR_DEVICE void decode_join(const AttentionArgs &a) {
    const int h = block(), b = block_y(), column = thread();
    if (column >= a.d) return;
    const i64 step = (i64)a.batch * a.heads * PART;
    const float *from = a.part + ((i64)b * a.heads + h) * PART;
    float top = -INFINITY_F, sum = 0, acc = 0;
    for (int i = 0; i < a.splits; i++) top = max2(top, from[i * step + 256]);
    for (int i = 0; i < a.splits; i++) {
        const float f = Softmax::weight(from[i * step + 256], top);
        sum = fma_rn(f, from[i * step + 257], sum);
        acc = fma_rn(f, from[i * step + column], acc);
    }
    store(head_rows<T>(a.o, a.o_stride, b, 1, h, a.d) + column, acc / sum);
    if (a.lse && column == 0) a.lse[(i64)b * a.lse_stride + h] = (top + log2_approx(sum)) * LN2;
}

KERNEL(attention_decode_packs_f32, AttentionArgs, 32 * WARPS, 1) { decode_packs<float>(a); }
KERNEL(attention_decode_packs_bf16, AttentionArgs, 32 * WARPS, 1) { decode_packs<bf16>(a); }
KERNEL(attention_decode_join_f32, AttentionArgs, 256, 1) { decode_join<float>(a); }
KERNEL(attention_decode_join_bf16, AttentionArgs, 256, 1) { decode_join<bf16>(a); }
KERNEL(attention_decode_f32, AttentionArgs, 256, 1) { decode<float>(a); }
KERNEL(attention_decode_bf16, AttentionArgs, 256, 1) { decode<bf16>(a); }
