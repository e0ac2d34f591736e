// attention_tf32.cuh: attention on tensor cores for float32 heads of D columns whose products may round their operands to tf32,
// as templates for attention_tf32_d64.cu and attention_tf32_d128.cu. Sums, statistics and results are float32.
//
// A block is that of attention_flash.cuh: it owns 16·MT rows a warp and streams tiles of the other side through two stages of
// shared memory. A tile passes through registers, where it is rounded to nearest once, to tf32; all products are m16n8k8.
// A row of D floats lies in shared memory as a row of 2·D bfloat16 does there, and ldmatrix and m16n8k16 take the same bytes of it as
// ldmatrix and m16n8k8 do here.
#pragma once
#include "attention_flash.cuh"

// Coming is a tile on its way, N rows of a head, by T threads.
template <int D, int N, int T> struct Coming {
    static constexpr int CHUNKS = D / 4, STEP = T / CHUNKS, LOADS = N / STEP;
    static_assert(N % STEP == 0, "threads have equal shares");
    f32x4 next[LOADS];

    // load starts to read rows [first, first+N). Rows from `rows` on become zero.
    APR_METHOD void load(const float *head, i32 stride, int first, int rows) {
        const int left = rows - first - (int)thread() / CHUNKS;
        const float *from = head + (i64)(rows - left) * stride + thread() % CHUNKS * 4;
        i64 step = (i64)STEP * stride;
        opaque(step);
        UNROLL for (int i = 0; i < LOADS; i++, from += step) {
            next[i] = f32x4{0, 0, 0, 0};
            if (i * STEP < left) next[i] = __builtin_bit_cast(f32x4, load16(from));
        }
    }
    // put writes the tile, rounded.
    APR_METHOD void put(u8 *tile) const {
        const int r = thread() / CHUNKS, c = thread() % CHUNKS;
        UNROLL for (int i = 0; i < LOADS; i++) {
            const int row = r + i * STEP;
            u32x4 v;
            UNROLL for (int e = 0; e < 4; e++) v[e] = to_tf32(next[i][e]);
            store16(tile + row * (4 * D) + ((c ^ (row & 7)) << 4), v);
        }
    }
    // dots writes the products of its rows with those of y, as they came.
    APR_METHOD void dots(float *sums, const Coming &y) const {
        UNROLL for (int i = 0; i < LOADS; i++) {
            float sum = 0;
            UNROLL for (int e = 0; e < 4; e++) sum = fma_rn(next[i][e], y.next[i][e], sum);
            UNROLL for (int m = 1; m < CHUNKS; m <<= 1) sum += shfl_xor(sum, m);
            if (thread() % CHUNKS == 0) sums[thread() / CHUNKS + i * STEP] = sum;
        }
    }
};

// accumulate_tf32 adds p · tile to acc, p [16·MT, 8·NT] rounded to tf32. The order of the inner dimension is any that both operands
// share: that of keys 2t and 2t+1 makes the accumulators of a square the registers of a left operand. Columns 2g and 2g+1 of 16 are those
// of two squares of acc, so that a lane reads both at once, and has four neighbours of the result: see quad.
template <int D, int MT, int NT> APR_DEVICE void accumulate_tf32(float (&acc)[MT][D / 8][4], const float (&p)[MT][NT][4], const u8 *tile) {
    const int l = lane(), r = (l & 3) * 2, c = l >> 3;
    int even = r * (4 * D) + ((c ^ r) << 4) + (l >> 2 & 1) * 8, odd = (r + 1) * (4 * D) + ((c ^ (r + 1)) << 4) + (l >> 2 & 1) * 8;
    opaque(even);
    opaque(odd);
    UNROLL for (int k = 0; k < NT; k++) {
        u32 x[MT][4];
        UNROLL for (int m = 0; m < MT; m++)
            UNROLL for (int i = 0; i < 4; i++) x[m][i] = to_tf32(p[m][k][(i & 1) * 2 + (i >> 1)]);
        UNROLL for (int n = 0; n < D / 16; n++) {
            const u32x2 low = *(const u32x2 *)(tile + k * (32 * D) + (even ^ (n << 6)));
            const u32x2 high = *(const u32x2 *)(tile + k * (32 * D) + (odd ^ (n << 6)));
            UNROLL for (int m = 0; m < MT; m++) {
                mma_tf32(acc[m][2 * n], x[m], low[0], high[0]);
                mma_tf32(acc[m][2 * n + 1], x[m], low[1], high[1]);
            }
        }
    }
}

// quad is the four columns from 16n + 4·(lane mod 4) of row e·8 + lane/4 of a square of acc, times f.
template <int N> APR_DEVICE u32x4 quad(const float (&acc)[N][4], int n, int e, float f) {
    const float(&x)[4] = acc[2 * n], (&y)[4] = acc[2 * n + 1];
    return __builtin_bit_cast(u32x4, f32x4{x[2 * e] * f, y[2 * e] * f, x[2 * e + 1] * f, y[2 * e + 1] * f});
}

// put_tf32 writes the accumulators of 16·MT rows, times f of the row, as rows [first, rows) of a matrix.
template <int D, int MT> APR_DEVICE void put_tf32(float *to, i64 stride, int first, int rows, const float (&acc)[MT][D / 8][4], const float (&f)[MT][2]) {
    UNROLL for (int m = 0; m < MT; m++) {
        UNROLL for (int e = 0; e < 2; e++) {
            const int r = first + m * 16 + e * 8 + (int)(lane() >> 2);
            if (r >= rows) continue;
            UNROLL for (int n = 0; n < D / 16; n++) store16(to + r * stride + n * 16 + (lane() & 3) * 4, quad(acc[m], n, e, f[m][e]));
        }
    }
}

// Grid: (heads, batch, tiles of queries). Shared: two stages of KEYS keys and values, through which the queries pass first.
template <int D, int MT, int WARPS, int KEYS> APR_DEVICE void tf32_forward(const AttentionArgs &a) {
    constexpr int T = 32 * WARPS, ROWS = 16 * MT * WARPS, ROW = 4 * D, STAGE = 2 * KEYS * ROW;
    static_assert(ROWS * ROW <= 2 * STAGE, "the queries fit the stages");
    DYNAMIC_SHARED(ring);
    const int h = block(), b = block_y(), g = h / (a.heads / a.kv_heads);
    const int first = ((a.q_len - 1) / ROWS - (int)block_z()) * ROWS; // the last queries see most keys and come first
    const float *k = head_rows<float>(a.k, a.k_stride, b, a.k_rows, g, D), *v = head_rows<float>(a.v, a.v_stride, b, a.k_rows, g, D);
    const int row = first + (int)warp() * (16 * MT), low = a.q_offset + row, high = row < a.q_len ? low + 16 * MT - 1 : -1;
    const int end = (int)min_of(a.k_len, a.q_offset + first + ROWS);
    u32 x[MT][D / 8][4];
    {
        Coming<D, ROWS, T> queries;
        queries.load(head_rows<float>(a.q, a.q_stride, b, a.q_len, h, D), a.q_stride, first, a.q_len);
        queries.put(ring);
    }
    Coming<D, KEYS, T> keys, values;
    keys.load(k, a.k_stride, 0, a.k_len);
    values.load(v, a.v_stride, 0, a.k_len);
    sync_block();
    take<2 * D, MT>(x, ring + (int)warp() * (16 * MT * ROW));
    sync_block();
    float acc[MT][D / 8][4], top[MT][2], sum[MT][2];
    clear(acc);
    UNROLL for (int m = 0; m < MT; m++) UNROLL for (int e = 0; e < 2; e++) top[m][e] = -INFINITY_F, sum[m][e] = 0;
    NO_UNROLL for (int key = 0; key < end; key += KEYS) {
        u8 *tile = ring + (key & KEYS) / KEYS * STAGE;
        keys.put(tile);
        values.put(tile + KEYS * ROW);
        sync_block(); // a thread is at most one tile ahead of another, which reads the other stage
        if (key + KEYS < end) {
            keys.load(k, a.k_stride, key + KEYS, a.k_len);
            values.load(v, a.v_stride, key + KEYS, a.k_len);
        }
        if (key > high) continue;
        float s[MT][KEYS / 8][4];
        clear(s);
        products<2 * D, mma_tf32>(s, x, tile);
        if (key + KEYS - 1 > low) hide_keys(s, low, key);
        online<D>(s, top, sum, acc, a.log2_scale);
        accumulate_tf32<D>(acc, s, tile + KEYS * ROW);
    }
    float f[MT][2];
    UNROLL for (int m = 0; m < MT; m++) {
        UNROLL for (int e = 0; e < 2; e++) {
            float all = sum[m][e] + shfl_xor(sum[m][e], 1);
            all += shfl_xor(all, 2);
            f[m][e] = 1.0f / all;
            const int i = row + m * 16 + e * 8 + (int)(lane() >> 2);
            if (a.lse && (lane() & 3) == 0 && i < a.q_len)
                a.lse[((i64)b * a.q_len + i) * a.lse_stride + h] = (top[m][e] + log2_approx(all)) * LN2;
        }
    }
    put_tf32<D>(head_rows<float>(a.o, a.o_stride, b, a.q_len, h, D), a.o_stride, row, a.q_len, acc, f);
}

// Own is the left operand of 16 rows a warp of a block of 16·WARPS rows, in registers if KEEP, else where they are in shared memory.
template <int D, bool KEEP> struct Own;
template <int D> struct Own<D, true> {
    u32 x[1][D / 8][4];
    APR_METHOD void take(const u8 *rows) { ::take<2 * D, 1>(x, rows); }
    template <int NT> APR_METHOD void multiply(float (&s)[1][NT][4], const u8 *tile) const { products<2 * D, mma_tf32>(s, x, tile); }
};
template <int D> struct Own<D, false> {
    const u8 *own;
    APR_METHOD void take(const u8 *rows) { own = rows; }
    template <int NT> APR_METHOD void multiply(float (&s)[1][NT][4], const u8 *tile) const { products<2 * D, mma_tf32>(s, own, tile); }
};

// Grid: (heads, batch, tiles of queries). Shared: the queries and dO, which with KEEP pass through the stages, then two stages of KEYS
// keys and values. Writes dq, and row_lse and row_delta, also of the rows that pad the last tile: with lse = ∞ their probabilities are 0.
template <int D, int WARPS, int KEYS, bool KEEP> APR_DEVICE void tf32_dq(const AttentionArgs &a) {
    constexpr int T = 32 * WARPS, ROWS = 16 * WARPS, ROW = 4 * D, STAGE = 2 * KEYS * ROW;
    static_assert(!KEEP || ROWS <= 2 * KEYS, "queries and dO fit the stages");
    DYNAMIC_SHARED(queries);
    SHARED(float, stats, 2 * ROWS);
    u8 *douts = queries + ROWS * ROW, *ring = KEEP ? queries : douts + ROWS * ROW;
    const int h = block(), b = block_y(), g = h / (a.heads / a.kv_heads), w = (int)warp() * 16;
    const int first = ((a.q_len - 1) / ROWS - (int)block_z()) * ROWS, row = first + w;
    const float *k = head_rows<float>(a.k, a.k_stride, b, a.k_rows, g, D), *v = head_rows<float>(a.v, a.v_stride, b, a.k_rows, g, D);
    {
        Coming<D, ROWS, T> x, y;
        x.load(head_rows<float>(a.q, a.q_stride, b, a.q_len, h, D), a.q_stride, first, a.q_len);
        x.put(queries);
        x.load(head_rows<float>(a.dout, a.dout_stride, b, a.q_len, h, D), a.dout_stride, first, a.q_len);
        y.load(head_rows<float>(a.o, a.o_stride, b, a.q_len, h, D), a.o_stride, first, a.q_len);
        x.put(douts);
        x.dots(stats + ROWS, y);
    }
    Coming<D, KEYS, T> keys, values;
    keys.load(k, a.k_stride, 0, a.k_len);
    values.load(v, a.v_stride, 0, a.k_len);
    sync_block();
    if (thread() < ROWS) {
        const int i = first + (int)thread();
        const float lse = i < a.q_len ? a.lse[((i64)b * a.q_len + i) * a.lse_stride + h] * LOG2E : INFINITY_F;
        const i64 at = ((i64)b * a.heads + h) * a.padded + i;
        stats[thread()] = a.row_lse[at] = lse;
        a.row_delta[at] = stats[ROWS + thread()];
    }
    Own<D, KEEP> query, dout;
    query.take(queries + w * ROW);
    dout.take(douts + w * ROW);
    sync_block();
    float lse[2], delta[2], f[1][2], acc[1][D / 8][4];
    clear(acc);
    UNROLL for (int e = 0; e < 2; e++) {
        const int r = w + e * 8 + (int)(lane() >> 2);
        lse[e] = stats[r], delta[e] = stats[ROWS + r], f[0][e] = a.scale;
    }
    const int low = a.q_offset + row, high = row < a.q_len ? low + 15 : -1;
    const int end = (int)min_of(a.k_len, a.q_offset + first + ROWS);
    NO_UNROLL for (int key = 0; key < end; key += KEYS) {
        u8 *tile = ring + (key & KEYS) / KEYS * STAGE;
        keys.put(tile);
        values.put(tile + KEYS * ROW);
        sync_block(); // a thread is at most one tile ahead of another, which reads the other stage
        if (key + KEYS < end) {
            keys.load(k, a.k_stride, key + KEYS, a.k_len);
            values.load(v, a.v_stride, key + KEYS, a.k_len);
        }
        if (key > high) continue;
        float s[1][KEYS / 8][4], dp[1][KEYS / 8][4];
        clear(s);
        clear(dp);
        query.multiply(s, tile);
        dout.multiply(dp, tile + KEYS * ROW);
        if (key + KEYS - 1 > low) hide_keys(s, low, key);
        UNROLL for (int n = 0; n < KEYS / 8; n++)
            UNROLL for (int i = 0; i < 4; i++) gradient(a, s[0][n][i], dp[0][n][i], lse[i / 2], delta[i / 2]);
        accumulate_tf32<D>(acc, dp, tile);
    }
    put_tf32<D>(head_rows<float>(a.dq, a.dq_stride, b, a.q_len, h, D), a.dq_stride, row, a.q_len, acc, f);
}

// emit_tf32 writes the accumulators of 16 keys, times f, to dk (which = 0) or dv (1), or as a part of them to scratch.
template <int D> APR_DEVICE void emit_tf32(const AttentionArgs &a, int which, int split, int b, int g, int first, const float (&acc)[1][D / 8][4], float f) {
    const float each[1][2] = {{f, f}};
    float *part = a.part + ((((i64)split * 2 + which) * a.batch + b) * a.kv_heads + g) * a.k_len * D;
    const i32 stride = which ? a.dv_stride : a.dk_stride;
    if (a.splits == 1) part = head_rows<float>(which ? a.dv : a.dk, stride, b, a.k_rows, g, D);
    put_tf32<D>(part, a.splits == 1 ? stride : D, first, a.k_len, acc, each);
}

// ComingQueries is a stage of tf32_dkv on its way: queries and dO from row i of head h, their lse and δ.
template <int D, int QUERIES, int T> struct ComingQueries {
    Coming<D, QUERIES, T> queries, douts;
    u32x4 stats; // four lse or δ, of the first threads
    APR_METHOD void load(const AttentionArgs &a, int b, int h, int i) {
        queries.load(head_rows<float>(a.q, a.q_stride, b, a.q_len, h, D), a.q_stride, i, a.q_len);
        douts.load(head_rows<float>(a.dout, a.dout_stride, b, a.q_len, h, D), a.dout_stride, i, a.q_len);
        const float *from = thread() < QUERIES / 4 ? a.row_lse : a.row_delta - QUERIES;
        if (thread() < QUERIES / 2) stats = load16(from + ((i64)b * a.heads + h) * a.padded + i + 4 * thread());
    }
    APR_METHOD void put(u8 *stage) const {
        queries.put(stage);
        douts.put(stage + QUERIES * 4 * D);
        if (thread() < QUERIES / 2) store16(stage + 2 * QUERIES * 4 * D + 16 * thread(), stats);
    }
};

// Grid: (kv heads · splits, batch, tiles of keys). Shared: the keys and values, which with KEEP pass through the stages, then two stages
// of QUERIES queries, dO, lse and δ. A split takes an equal share of the tiles of queries of all heads of the group.
template <int D, int WARPS, int QUERIES, bool KEEP> APR_DEVICE void tf32_dkv(const AttentionArgs &a) {
    constexpr int T = 32 * WARPS, ROWS = 16 * WARPS, ROW = 4 * D, STAGE = 2 * QUERIES * ROW + 8 * QUERIES;
    static_assert(!KEEP || ROWS <= 2 * QUERIES, "keys and values fit the stages");
    DYNAMIC_SHARED(keys);
    u8 *values = keys + ROWS * ROW, *ring = KEEP ? keys : values + ROWS * ROW;
    const int g = (int)block() / a.splits, split = (int)block() % a.splits, b = block_y(), group = a.heads / a.kv_heads;
    const int first = (int)block_z() * ROWS, low = first + (int)warp() * 16; // the first keys are seen by most queries
    {
        Coming<D, ROWS, T> x;
        x.load(head_rows<float>(a.k, a.k_stride, b, a.k_rows, g, D), a.k_stride, first, a.k_len);
        x.put(keys);
        x.load(head_rows<float>(a.v, a.v_stride, b, a.k_rows, g, D), a.v_stride, first, a.k_len);
        x.put(values);
    }
    // Tiles from the first with a query that sees key `first`, head after head.
    const int begin = first > a.q_offset ? (first - a.q_offset) / QUERIES * QUERIES : 0;
    const int count = a.q_len > begin ? (a.q_len - begin + QUERIES - 1) / QUERIES : 0, tile = group * count * split / a.splits;
    int left = group * count * (split + 1) / a.splits - tile;
    int h = g * group, i = begin; // of the tile that is fetched next
    ComingQueries<D, QUERIES, T> next;
    if (left > 0) {
        h += tile / count, i += tile % count * QUERIES;
        next.load(a, b, h, i);
    }
    sync_block();
    Own<D, KEEP> key, value;
    key.take(keys + (int)warp() * (16 * ROW));
    value.take(values + (int)warp() * (16 * ROW));
    sync_block();
    float dk[1][D / 8][4], dv[1][D / 8][4];
    clear(dk);
    clear(dv);
    NO_UNROLL for (int odd = 0; left > 0; left--, odd ^= 1) {
        u8 *stage = ring + odd * STAGE, *second = stage + QUERIES * ROW;
        const float *lse = (const float *)(second + QUERIES * ROW), *delta = lse + QUERIES;
        next.put(stage);
        sync_block(); // a thread is at most one tile ahead of another, which reads the other stage
        const int query = a.q_offset + i; // position of the first
        if (left > 1) {
            i += QUERIES;
            if (i >= a.q_len) i = begin, h++;
            next.load(a, b, h, i);
        }
        if (query + QUERIES - 1 < low) continue;
        float s[1][QUERIES / 8][4], dp[1][QUERIES / 8][4];
        clear(s);
        clear(dp);
        key.multiply(s, stage);
        value.multiply(dp, second);
        if (query < low + 15) hide_queries(s, query, low);
        UNROLL for (int n = 0; n < QUERIES / 8; n++) {
            const int c = n * 8 + (int)(lane() & 3) * 2;
            const f32x2 top = *(const f32x2 *)(lse + c), less = *(const f32x2 *)(delta + c);
            UNROLL for (int e = 0; e < 4; e++) gradient(a, s[0][n][e], dp[0][n][e], top[e & 1], less[e & 1]);
        }
        accumulate_tf32<D>(dv, s, second);
        accumulate_tf32<D>(dk, dp, stage);
    }
    emit_tf32<D>(a, 0, split, b, g, low, dk, a.scale);
    emit_tf32<D>(a, 1, split, b, g, low, dv, 1.0f);
}
