// attention_flash.cuh: attention on tensor cores for bfloat16 heads of D columns, as templates for attention_d64.cu,
// attention_d128.cu, and with LimitedArgs for attention_limited_d*.cu.
//
// A block owns some rows (queries in the forward and for dq, keys for dk and dv), 16·MT of them per warp, and streams
// tiles of the other side through two stages of shared memory: while one is multiplied the next arrives. One barrier a
// tile separates both: behind it the new tile is there and the stage of the old one is free. All products are
// m16n8k16; scores live in registers only, where the accumulators of one product are the left operand of the next.
#pragma once
#include "attention.cuh"
#include "attention_tiles.cuh"

// online turns scores s into 2^(s·scale − top), where top is about the maximum of the row so far and sum and acc are of
// the same scale. top stays until a score of the warp exceeds it by SLACK, which costs no accuracy: then acc is rescaled,
// about once a row instead of in most tiles.
constexpr float SLACK = 8;
// Where top begins: with limits a tile may come of which a row sees nothing, and −∞ less −∞ is no number.
template <class A> constexpr float BOTTOM = A::LIMITED ? -1e30f : -INFINITY_F;
template <int D, int MT, int NT> APR_DEVICE void online(float (&s)[MT][NT][4], float (&top)[MT][2], float (&sum)[MT][2], float (&acc)[MT][D / 8][4], float scale) {
    float t[MT][2];
    bool grows = false;
    UNROLL for (int m = 0; m < MT; m++) {
        UNROLL for (int e = 0; e < 2; e++) {
            float x = max2(s[m][0][2 * e], s[m][0][2 * e + 1]);
            UNROLL for (int n = 1; n < NT; n++) x = max2(x, max2(s[m][n][2 * e], s[m][n][2 * e + 1]));
            x = max2(x, shfl_xor(x, 1));
            t[m][e] = max2(x, shfl_xor(x, 2)) * scale;
            grows = grows || t[m][e] > top[m][e] + SLACK;
        }
    }
    if (ballot(grows)) {
        UNROLL for (int m = 0; m < MT; m++) {
            UNROLL for (int e = 0; e < 2; e++) {
                float higher = max2(top[m][e], t[m][e]), shrink = exp2_approx(top[m][e] - higher);
                top[m][e] = higher;
                sum[m][e] *= shrink;
                UNROLL for (int n = 0; n < D / 8; n++) acc[m][n][2 * e] *= shrink, acc[m][n][2 * e + 1] *= shrink;
            }
        }
    }
    UNROLL for (int m = 0; m < MT; m++) {
        UNROLL for (int n = 0; n < NT; n++) {
            UNROLL for (int i = 0; i < 4; i++) {
                s[m][n][i] = exp2_approx(fma_rn(s[m][n][i], scale, -top[m][i / 2]));
                sum[m][i / 2] += s[m][n][i];
            }
        }
    }
}

// Lowest are the first keys that a lane's rows see; a warp's rows see nothing before `from`, and all of them from `all` on.
template <int MT> struct Lowest {
    i32 rows[MT][2], from, all;
    // of takes the rows of queries from row on.
    template <class A> APR_METHOD void of(const A &a, i32 b, i32 row) {
        from = 0x7fffffff, all = 0;
        UNROLL for (int m = 0; m < MT; m++) {
            UNROLL for (int e = 0; e < 2; e++) {
                const i32 low = rows[m][e] = lowest_key(a, b, row + m * 16 + e * 8 + (i32)(lane() >> 2));
                from = least(from, low), all = all < low ? low : all;
            }
        }
        UNROLL for (int m = 4; m < 32; m <<= 1) {
            const i32 low = shfl_xor(from, m), high = shfl_xor(all, m);
            from = least(from, low), all = all < high ? high : all;
        }
    }
};

// cap_all applies the soft-cap to the scores of a tile, if there is one.
template <int MT, int NT> APR_DEVICE void cap_all(const LimitedArgs &a, float (&s)[MT][NT][4]) {
    if (!(a.cap_in > 0)) return;
    UNROLL for (int m = 0; m < MT; m++)
        UNROLL for (int n = 0; n < NT; n++)
            UNROLL for (int i = 0; i < 4; i++) s[m][n][i] = capped(a, s[m][n][i], bf16());
}

// Grid: (heads, batch, tiles of queries). Shared: the queries, then two stages of KEYS keys and values.
template <int D, int MT, int WARPS, int KEYS, bool KEEP, class A> APR_DEVICE void flash_forward(const A &a) {
    constexpr int T = 32 * WARPS, ROWS = 16 * MT * WARPS, ROW = 2 * D, STAGE = 2 * KEYS * ROW;
    DYNAMIC_SHARED(queries);
    u8 *ring = queries + ROWS * ROW, *own = queries + (int)warp() * (16 * MT * ROW);
    int h = block(), b = block_y(), g = h / (a.heads / a.kv_heads);
    int first = ((a.q_len - 1) / ROWS - (int)block_z()) * ROWS; // the last queries see most keys and come first
    const bf16 *k = head_rows<bf16>(a.k, a.k_stride, b, a.k_rows, g, D), *v = head_rows<bf16>(a.v, a.v_stride, b, a.k_rows, g, D);
    fetch<D, ROWS, T>(queries, head_rows<bf16>(a.q, a.q_stride, b, a.q_len, h, D), a.q_stride, first, a.q_len);
    const int begin = lowest_of(a, b, first, ROWS) / KEYS * KEYS;
    fetch<D, KEYS, T>(ring + (begin & KEYS) / KEYS * STAGE, k, a.k_stride, begin, a.k_len);
    fetch<D, KEYS, T>(ring + (begin & KEYS) / KEYS * STAGE + KEYS * ROW, v, a.v_stride, begin, a.k_len);
    copy_async_commit();

    int row = first + (int)warp() * (16 * MT), low = a.q_offset + row, high = row < a.q_len ? low + 16 * MT - 1 : -1;
    int end = (int)min_of(a.k_len, a.q_offset + first + ROWS);
    float acc[MT][D / 8][4], top[MT][2], sum[MT][2];
    clear(acc);
    UNROLL for (int m = 0; m < MT; m++) UNROLL for (int e = 0; e < 2; e++) top[m][e] = BOTTOM<A>, sum[m][e] = 0;
    Lowest<MT> lowest;
    if constexpr (A::LIMITED) lowest.of(a, b, row);
    u32 x[MT][D / 16][4];
    if constexpr (KEEP) {
        copy_async_wait<0>();
        sync_block();
        take<D, MT>(x, own);
    }
    for (int key = begin; key < end; key += KEYS) {
        copy_async_wait<0>();
        sync_block();
        const u8 *tile = ring + (key & KEYS) / KEYS * STAGE;
        if (key + KEYS < end) {
            u8 *next = ring + (~key & KEYS) / KEYS * STAGE;
            fetch<D, KEYS, T>(next, k, a.k_stride, key + KEYS, a.k_len);
            fetch<D, KEYS, T>(next + KEYS * ROW, v, a.v_stride, key + KEYS, a.k_len);
        }
        copy_async_commit();
        if (key > high) continue;
        if constexpr (A::LIMITED)
            if (key + KEYS <= lowest.from) continue;
        float s[MT][KEYS / 8][4];
        clear(s);
        if constexpr (KEEP) products<D>(s, x, tile);
        else products<D>(s, own, tile);
        if constexpr (A::LIMITED) cap_all(a, s);
        if (key + KEYS - 1 > low) hide_keys(s, low, key);
        if constexpr (A::LIMITED)
            if (key < lowest.all) hide_before(s, lowest.rows, key);
        online<D>(s, top, sum, acc, a.log2_scale);
        accumulate<D>(acc, s, tile + KEYS * ROW);
    }

    float f[MT][2];
    UNROLL for (int m = 0; m < MT; m++) {
        UNROLL for (int e = 0; e < 2; e++) {
            float all = sum[m][e] + shfl_xor(sum[m][e], 1);
            all += shfl_xor(all, 2);
            f[m][e] = rcp_approx(all);
            int i = row + m * 16 + e * 8 + (int)(lane() >> 2);
            if (a.lse && (lane() & 3) == 0 && i < a.q_len)
                a.lse[((i64)b * a.q_len + i) * a.lse_stride + h] = (top[m][e] + log2_approx(all)) * LN2;
        }
    }
    put<D>(head_rows<bf16>(a.o, a.o_stride, b, a.q_len, h, D), a.o_stride, row, a.q_len, acc, f, own);
}

// gradient turns scores and dp = do·vᵀ of the same pairs into probabilities and p∘(dp−δ), the gradient of the scaled
// scores, given lse and δ of element i of square (m,n) by the functions' arguments.
APR_DEVICE void gradient(float &s, float &dp, float lse, float delta, float scale) {
    s = exp2_approx(fma_rn(s, scale, -lse));
    dp = s * (dp - delta);
}

// The same of a score that was capped, or hidden.
APR_DEVICE void gradient(const AttentionArgs &a, float &s, float &dp, float lse, float delta) { gradient(s, dp, lse, delta, a.log2_scale); }
APR_DEVICE void gradient(const LimitedArgs &a, float &s, float &dp, float lse, float delta) {
    const float f = slope(a, s);
    gradient(s, dp, lse, delta, a.log2_scale);
    dp *= f;
}

// Grid: (heads, batch, tiles of queries). Shared: the queries and dO, then two stages of KEYS keys and values, which are
// taken STEP at a time. Writes dq, and row_lse and row_delta, also of the rows that pad the last tile: with lse = ∞ their
// probabilities are 0.
template <int D, int MT, int WARPS, int KEYS, int STEP, bool KEEP, class A> APR_DEVICE void flash_dq(const A &a) {
    constexpr int T = 32 * WARPS, ROWS = 16 * MT * WARPS, ROW = 2 * D, STAGE = 2 * KEYS * ROW, CHUNKS = D / 8;
    DYNAMIC_SHARED(queries);
    SHARED(float, stats, 2 * ROWS);
    u8 *douts = queries + ROWS * ROW, *ring = douts + ROWS * ROW;
    int w = (int)warp() * (16 * MT), l = lane();
    u8 *own = queries + w * ROW, *own_douts = douts + w * ROW;
    int h = block(), b = block_y(), g = h / (a.heads / a.kv_heads);
    int first = ((a.q_len - 1) / ROWS - (int)block_z()) * ROWS, row = first + w;
    const bf16 *k = head_rows<bf16>(a.k, a.k_stride, b, a.k_rows, g, D), *v = head_rows<bf16>(a.v, a.v_stride, b, a.k_rows, g, D);
    constexpr bool ROOM = ROWS * ROW <= STAGE; // for O in a stage
    if constexpr (ROOM) fetch<D, ROWS, T>(queries, head_rows<bf16>(a.q, a.q_stride, b, a.q_len, h, D), a.q_stride, first, a.q_len);
    fetch<D, ROWS, T>(douts, head_rows<bf16>(a.dout, a.dout_stride, b, a.q_len, h, D), a.dout_stride, first, a.q_len);
    // O is needed only now, and the second stage, or the queries' place, is free until all warps are in the loop.
    const int begin = lowest_of(a, b, first, ROWS) / KEYS * KEYS, odd = (begin & KEYS) / KEYS;
    u8 *outs = ROOM ? ring + (odd ^ 1) * STAGE : queries;
    fetch<D, ROWS, T>(outs, head_rows<bf16>(a.o, a.o_stride, b, a.q_len, h, D), a.o_stride, first, a.q_len);
    copy_async_commit();
    fetch<D, KEYS, T>(ring + odd * STAGE, k, a.k_stride, begin, a.k_len);
    fetch<D, KEYS, T>(ring + odd * STAGE + KEYS * ROW, v, a.v_stride, begin, a.k_len);
    copy_async_commit();
    // A lane loads lse of one row; CHUNKS neighbouring lanes add a row of dO∘O.
    float rows_lse = INFINITY_F;
    if (l < 16 * MT && row + l < a.q_len) rows_lse = a.lse[((i64)b * a.q_len + row + l) * a.lse_stride + h] * LOG2E;
    copy_async_wait<1>();
    sync_block();
    UNROLL for (int n = 0; n < 16 * MT; n += 32 / CHUNKS) {
        int r = w + n + l / CHUNKS, c = l % CHUNKS, at = r * ROW + ((c ^ (r & 7)) << 4);
        u32x4 x = load16(outs + at), y = load16(douts + at);
        float sum = 0;
        UNROLL for (int i = 0; i < 4; i++) {
            sum = fma_rn(from_bits(x[i] << 16), from_bits(y[i] << 16), sum);
            sum = fma_rn(from_bits(x[i] & 0xffff0000u), from_bits(y[i] & 0xffff0000u), sum);
        }
        UNROLL for (int m = 1; m < CHUNKS; m <<= 1) sum += shfl_xor(sum, m);
        if (c == 0) stats[ROWS + r] = sum;
    }
    if (l < 16 * MT) stats[w + l] = rows_lse;
    sync_warp();
    if (l < 16 * MT) {
        i64 at = ((i64)b * a.heads + h) * a.padded + row + l;
        a.row_lse[at] = rows_lse;
        a.row_delta[at] = stats[ROWS + w + l];
    }
    if constexpr (!ROOM) {
        sync_block();
        fetch<D, ROWS, T>(queries, head_rows<bf16>(a.q, a.q_stride, b, a.q_len, h, D), a.q_stride, first, a.q_len);
        copy_async_commit();
    }
    float lse[MT][2], delta[MT][2], f[MT][2], acc[MT][D / 8][4];
    clear(acc);
    UNROLL for (int m = 0; m < MT; m++) {
        UNROLL for (int e = 0; e < 2; e++) {
            int r = w + m * 16 + e * 8 + (l >> 2);
            lse[m][e] = stats[r], delta[m][e] = stats[ROWS + r], f[m][e] = a.scale;
        }
    }
    static_assert(ROOM || !KEEP, "the queries come late");
    u32 x[MT][D / 16][4], y[MT][D / 16][4];
    if constexpr (KEEP) take<D, MT>(x, own), take<D, MT>(y, own_douts);

    int low = a.q_offset + row, high = row < a.q_len ? low + 16 * MT - 1 : -1;
    int end = (int)min_of(a.k_len, a.q_offset + first + ROWS);
    Lowest<MT> lowest;
    if constexpr (A::LIMITED) lowest.of(a, b, row);
    for (int key = begin; key < end; key += KEYS) {
        copy_async_wait<0>();
        sync_block();
        const u8 *keys = ring + (key & KEYS) / KEYS * STAGE, *values = keys + KEYS * ROW;
        if (key + KEYS < end) {
            u8 *next = ring + (~key & KEYS) / KEYS * STAGE;
            fetch<D, KEYS, T>(next, k, a.k_stride, key + KEYS, a.k_len);
            fetch<D, KEYS, T>(next + KEYS * ROW, v, a.v_stride, key + KEYS, a.k_len);
        }
        copy_async_commit();
        for (int j = 0; j < KEYS && key + j <= high; j += STEP) {
            if constexpr (A::LIMITED)
                if (key + j + STEP <= lowest.from) continue;
            float s[MT][STEP / 8][4], dp[MT][STEP / 8][4];
            clear(s);
            clear(dp);
            if constexpr (KEEP) products<D>(s, x, keys + j * ROW), products<D>(dp, y, values + j * ROW);
            else products<D>(s, own, keys + j * ROW), products<D>(dp, own_douts, values + j * ROW);
            if constexpr (A::LIMITED) cap_all(a, s);
            if (key + j + STEP - 1 > low) hide_keys(s, low, key + j);
            if constexpr (A::LIMITED)
                if (key + j < lowest.all) hide_before(s, lowest.rows, key + j);
            UNROLL for (int m = 0; m < MT; m++)
                UNROLL for (int n = 0; n < STEP / 8; n++)
                    UNROLL for (int i = 0; i < 4; i++) gradient(a, s[m][n][i], dp[m][n][i], lse[m][i / 2], delta[m][i / 2]);
            accumulate<D>(acc, dp, keys + j * ROW);
        }
    }
    put<D>(head_rows<bf16>(a.dq, a.dq_stride, b, a.q_len, h, D), a.dq_stride, row, a.q_len, acc, f, own);
}

// emit writes the accumulators of 16·MT keys, times f, to dk (which = 0) or dv (1), or as a part of them to scratch. They are C columns,
// part number `columns` of the head.
template <int D, int C, int MT> APR_DEVICE void emit(const AttentionArgs &a, int which, int split, int b, int g, int first, const float (&acc)[MT][C / 8][4], float f, u8 *own, int columns) {
    if (a.splits == 1) {
        float each[MT][2];
        UNROLL for (int m = 0; m < MT; m++) each[m][0] = each[m][1] = f;
        i32 stride = which ? a.dv_stride : a.dk_stride;
        put<D, C>(head_rows<bf16>(which ? a.dv : a.dk, stride, b, a.k_rows, g, D), stride, first, a.k_len, acc, each, own, columns);
        return;
    }
    int l = lane();
    float *part = a.part + ((((i64)split * 2 + which) * a.batch + b) * a.kv_heads + g) * a.k_len * D + columns * C;
    UNROLL for (int m = 0; m < MT; m++) {
        UNROLL for (int e = 0; e < 2; e++) {
            int key = first + m * 16 + e * 8 + (l >> 2);
            if (key >= a.k_len) continue;
            UNROLL for (int n = 0; n < C / 8; n++)
                *(f32x2 *)(part + (i64)key * D + n * 8 + (l & 3) * 2) = f32x2{acc[m][n][2 * e] * f, acc[m][n][2 * e + 1] * f};
        }
    }
}

// fetch_queries starts the copy of a stage of flash_dkv: queries and dO from row i of head h, their lse and δ.
template <int D, int QUERIES, int T> APR_DEVICE void fetch_queries(const AttentionArgs &a, u8 *stage, int b, int h, int i) {
    constexpr int ROW = 2 * D;
    fetch<D, QUERIES, T>(stage, head_rows<bf16>(a.q, a.q_stride, b, a.q_len, h, D), a.q_stride, i, a.q_len);
    fetch<D, QUERIES, T>(stage + QUERIES * ROW, head_rows<bf16>(a.dout, a.dout_stride, b, a.q_len, h, D), a.dout_stride, i, a.q_len);
    int t = thread();
    if (t < QUERIES / 2) { // 4 floats a thread
        const float *from = t < QUERIES / 4 ? a.row_lse : a.row_delta - QUERIES;
        copy_async16(stage + 2 * QUERIES * ROW + 16 * t, from + ((i64)b * a.heads + h) * a.padded + i + 4 * t);
    }
}

// some sets the first keys that the queries of a lane's columns see, i the first, and reports whether one of the queries sees a key at or
// before `last`.
template <int NT> APR_DEVICE bool some(const LimitedArgs &a, i32 (&lowest)[NT][2], i32 b, i32 i, i32 last) {
    bool sees = false;
    UNROLL for (int n = 0; n < NT; n++)
        UNROLL for (int e = 0; e < 2; e++) {
            lowest[n][e] = lowest_key(a, b, i + n * 8 + (i32)(lane() & 3) * 2 + e);
            sees = sees || lowest[n][e] <= last;
        }
    return ballot(sees);
}

// hide_after makes scores of queries that do not see a key because of their window or their document −∞; the rows are keys from `key`,
// lowest what the queries of the columns see first.
template <int MT, int NT> APR_DEVICE void hide_after(float (&s)[MT][NT][4], const i32 (&lowest)[NT][2], int key) {
    const int first = key + (lane() >> 2);
    UNROLL for (int m = 0; m < MT; m++)
        UNROLL for (int n = 0; n < NT; n++)
            UNROLL for (int i = 0; i < 4; i++)
                if (first + m * 16 + (i >> 1) * 8 < lowest[n][i & 1]) s[m][n][i] = -INFINITY_F;
}

// Grid: (kv heads · splits, batch, tiles of keys). Shared: the keys and values, then two stages of QUERIES queries, dO,
// lse and δ, which are taken STEP at a time. WK warps share the keys, and WQ such groups the queries of a tile; they add
// up at the end. Heads for which a warp has too few registers are cut into WD parts of columns, for each of which WK warps compute the
// same probabilities. A split takes an equal share of the tiles of queries of all heads of the group.
template <int D, int MT, int WK, int WQ, int QUERIES, int STEP, bool KEEP, int WD = 1, class A> APR_DEVICE void flash_dkv(const A &a) {
    constexpr int C = D / WD, T = 32 * WK * WQ * WD, ROWS = 16 * MT * WK, ROW = 2 * D, STAGE = 2 * QUERIES * ROW + 8 * QUERIES;
    DYNAMIC_SHARED(keys);
    u8 *values = keys + ROWS * ROW, *ring = values + ROWS * ROW;
    static_assert(WQ == 1 || WD == 1, "one of both");
    int wk = (int)warp() % WK, wq = WD == 1 ? (int)warp() / WK : 0, wd = WD == 1 ? 0 : (int)warp() / WK, l = lane();
    u8 *own = keys + wk * (16 * MT * ROW), *own_values = values + wk * (16 * MT * ROW);
    int g = (int)block() / a.splits, split = (int)block() % a.splits, b = block_y(), group = a.heads / a.kv_heads;
    int first = (int)block_z() * ROWS, low = first + wk * (16 * MT); // the first keys are seen by most queries
    fetch<D, ROWS, T>(keys, head_rows<bf16>(a.k, a.k_stride, b, a.k_rows, g, D), a.k_stride, first, a.k_len);
    fetch<D, ROWS, T>(values, head_rows<bf16>(a.v, a.v_stride, b, a.k_rows, g, D), a.v_stride, first, a.k_len);

    // Tiles from the first with a query that sees key `first`, head after head.
    int begin = first > a.q_offset ? (first - a.q_offset) / QUERIES * QUERIES : 0;
    const int until = A::LIMITED ? (int)min_of(a.q_len, (i64)first + ROWS - 1 + window_of(a) - a.q_offset) : a.q_len; // the last to see a key
    int count = until > begin ? (until - begin + QUERIES - 1) / QUERIES : 0, tile = group * count * split / a.splits;
    int left = group * count * (split + 1) / a.splits - tile;
    int h = g * group, i = begin; // of the tile that is fetched next
    if (left > 0) {
        h += tile / count, i += tile % count * QUERIES;
        fetch_queries<D, QUERIES, T>(a, ring, b, h, i);
    }
    copy_async_commit();
    float dk[MT][C / 8][4], dv[MT][C / 8][4];
    clear(dk);
    clear(dv);
    u32 x[MT][D / 16][4], y[MT][D / 16][4];
    if constexpr (KEEP) {
        copy_async_wait<0>();
        sync_block();
        take<D, MT>(x, own), take<D, MT>(y, own_values);
    }
    for (int odd = 0; left > 0; left--, odd ^= 1) {
        copy_async_wait<0>();
        sync_block();
        const u8 *queries = ring + odd * STAGE, *douts = queries + QUERIES * ROW;
        const float *lse = (const float *)(douts + QUERIES * ROW), *delta = lse + QUERIES;
        int now = i;
        if (left > 1) {
            i += QUERIES;
            if (i >= until) i = begin, h++;
            fetch_queries<D, QUERIES, T>(a, ring + (odd ^ 1) * STAGE, b, h, i);
        }
        copy_async_commit();
        for (int j = wq * (QUERIES / WQ); j < (wq + 1) * (QUERIES / WQ); j += STEP) {
            int query = a.q_offset + now + j; // position of the first
            if (query + STEP - 1 < low) continue;
            i32 lowest[STEP / 8][2];
            if constexpr (A::LIMITED)
                if (!some(a, lowest, b, now + j, low + 16 * MT - 1)) continue;
            float s[MT][STEP / 8][4], dp[MT][STEP / 8][4];
            clear(s);
            clear(dp);
            if constexpr (KEEP) products<D>(s, x, queries + j * ROW), products<D>(dp, y, douts + j * ROW);
            else products<D>(s, own, queries + j * ROW), products<D>(dp, own_values, douts + j * ROW);
            if constexpr (A::LIMITED) cap_all(a, s);
            if (query < low + 16 * MT - 1) hide_queries(s, query, low);
            if constexpr (A::LIMITED) hide_after(s, lowest, low);
            UNROLL for (int n = 0; n < STEP / 8; n++) {
                int c = j + n * 8 + (l & 3) * 2;
                f32x2 top = *(const f32x2 *)(lse + c), less = *(const f32x2 *)(delta + c);
                UNROLL for (int m = 0; m < MT; m++)
                    UNROLL for (int e = 0; e < 4; e++) gradient(a, s[m][n][e], dp[m][n][e], top[e & 1], less[e & 1]);
            }
            accumulate<D, C>(dv, s, douts + j * ROW, wd);
            accumulate<D, C>(dk, dp, queries + j * ROW, wd);
        }
    }
    copy_async_wait<0>();
    sync_block();
    if constexpr (WQ == 1) {
        emit<D, C>(a, 0, split, b, g, low, dk, a.scale, own, wd);
        emit<D, C>(a, 1, split, b, g, low, dv, 1.0f, own_values, wd);
    } else {
        // Group 0 hands over its dv and finishes dk, group 1 the other way round.
        static_assert(WQ == 2 && 2 * STAGE >= T * MT * (D / 8) * 16, "the exchange takes the place of the ring");
        f32x4 *mine = (f32x4 *)ring + warp() * (MT * (D / 8) * 32) + l;
        UNROLL for (int m = 0; m < MT; m++)
            UNROLL for (int n = 0; n < D / 8; n++) {
                const float(&r)[4] = wq ? dk[m][n] : dv[m][n];
                mine[(m * (D / 8) + n) * 32] = f32x4{r[0], r[1], r[2], r[3]};
            }
        sync_block();
        const f32x4 *other = (const f32x4 *)ring + (warp() ^ WK) * (MT * (D / 8) * 32) + l;
        UNROLL for (int m = 0; m < MT; m++)
            UNROLL for (int n = 0; n < D / 8; n++) {
                f32x4 r = other[(m * (D / 8) + n) * 32];
                UNROLL for (int e = 0; e < 4; e++) dk[m][n][e] = (wq ? dv[m][n][e] : dk[m][n][e]) + r[e];
            }
        emit<D, C>(a, wq, split, b, g, low, dk, wq ? 1.0f : a.scale, wq ? own_values : own, 0);
    }
}

// Grid: (8 columns a thread, 2·kv heads, batch): the parts of dk, then of dv, added in ascending order of the split.
template <int D, class T = bf16> APR_DEVICE void flash_sum(const AttentionArgs &a) {
    int piece = block() * threads() + thread(), key = piece / (D / 8), c = piece % (D / 8) * 8;
    int which = (int)block_y() / a.kv_heads, g = (int)block_y() % a.kv_heads, b = block_z();
    if (key >= a.k_len) return;
    i64 size = (i64)a.batch * a.kv_heads * a.k_len * D; // of dk or dv
    const float *part = a.part + which * size + (((i64)b * a.kv_heads + g) * a.k_len + key) * D + c;
    float sum[8] = {};
    for (int s = 0; s < a.splits; s++, part += 2 * size) {
        f32x4 x = *(const f32x4 *)part, y = *(const f32x4 *)(part + 4);
        UNROLL for (int i = 0; i < 4; i++) sum[i] += x[i], sum[4 + i] += y[i];
    }
    Pack<T, 8> out;
    narrow(out, sum);
    i32 stride = which ? a.dv_stride : a.dk_stride;
    store_pack(head_rows<T>(which ? a.dv : a.dk, stride, b, a.k_rows, g, D) + (i64)key * stride + c, out);
}
