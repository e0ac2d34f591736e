// attention_plain.cuh: attention in float32 arithmetic without tensor cores, for every type, head width up to 32·COLUMNS,
// and shape. It is what the faster kernels are compared with, and what serves float32 and odd widths. A is AttentionArgs, or LimitedArgs.
//
// A block has 4 rows of its own per warp: queries in the forward and for dq, keys for dk and dv. It passes over the other
// side in tiles of 32 rows. A lane takes one row of the tile to multiply it with the warp's 4 rows, and then one column
// in 32 of the head for the sum over the tile. Tiles are float32 in shared memory, with columns zero up to a multiple of
// 32 and 4 more between rows, so that 16-byte reads of 8 neighbouring rows touch all banks once.
#pragma once
#include "attention.cuh"

constexpr int ROWS = 4;    // own rows of a warp
constexpr int TILE = 32;   // rows of a tile
constexpr float LOWEST = -1e30f;

APR_DEVICE int padded_columns(int d) { return (d + 31) / 32 * 32; }
APR_DEVICE int tile_stride(int d) { return padded_columns(d) + 4; }

// fill copies n rows of a head to shared memory, warp by warp; rows from `rows` on and columns from d on are zero.
template <class T> APR_DEVICE void fill(float *tile, int n, const T *head, i32 stride, int first, int rows, int d) {
    int ld = tile_stride(d), wide = padded_columns(d);
    for (int r = warp(); r < n; r += threads() / 32) {
        const T *row = head + (i64)(first + r) * stride;
        bool have = first + r < rows;
        for (int c = lane(); c < wide; c += 32) tile[r * ld + c] = have && c < d ? load(row + c) : 0.0f;
    }
}

// multiply returns s[r] = own row r · the lane's row of the tile.
APR_DEVICE void multiply(float (&s)[ROWS], const float *own, const float *tile, int d) {
    int ld = tile_stride(d), wide = padded_columns(d);
    const float *row = tile + lane() * ld;
    UNROLL for (int r = 0; r < ROWS; r++) s[r] = 0;
    for (int c = 0; c < wide; c += 4) {
        f32x4 x = *(const f32x4 *)(row + c);
        UNROLL for (int r = 0; r < ROWS; r++) {
            f32x4 y = *(const f32x4 *)(own + r * ld + c);
            UNROLL for (int i = 0; i < 4; i++) s[r] = fma_rn(x[i], y[i], s[r]);
        }
    }
}

// accumulate adds Σ over the tile's rows of p·row to acc, where lane j holds p of row j.
template <int COLUMNS> APR_DEVICE void accumulate(float (&acc)[ROWS][COLUMNS], const float (&p)[ROWS], const float *tile, int d) {
    int ld = tile_stride(d);
    for (int j = 0; j < TILE; j++) {
        float w[ROWS];
        UNROLL for (int r = 0; r < ROWS; r++) w[r] = shfl(p[r], j);
        UNROLL for (int c = 0; c < COLUMNS; c++) {
            if (c * 32 >= d) break;
            float x = tile[j * ld + c * 32 + lane()];
            UNROLL for (int r = 0; r < ROWS; r++) acc[r][c] = fma_rn(w[r], x, acc[r][c]);
        }
    }
}

// put writes the warp's rows that exist, times f[r].
template <class T, int COLUMNS> APR_DEVICE void put(T *head, i32 stride, int first, int rows, int d, const float (&acc)[ROWS][COLUMNS], const float (&f)[ROWS]) {
    UNROLL for (int r = 0; r < ROWS; r++) {
        UNROLL for (int c = 0; c < COLUMNS; c++) {
            int col = c * 32 + lane();
            if (first + r < rows && col < d) store(head + (i64)(first + r) * stride + col, acc[r][c] * f[r]);
        }
    }
}

// Grid: (blocks of queries, heads, batch). Shared: keys and values of a tile, the block's queries.
template <class T, class A, int COLUMNS> APR_DEVICE void forward(const A &a) {
    constexpr bool ONE = COLUMNS > 8; // tile at a time
    DYNAMIC_SHARED(memory);
    int d = a.d, ld = tile_stride(d), rows = threads() / 32 * ROWS, h = block_y(), b = block_z(), g = h / (a.heads / a.kv_heads);
    float *keys = (float *)memory, *values = ONE ? keys : keys + TILE * ld, *queries = values + TILE * ld;
    // The last queries see most keys and come first.
    int first = (blocks() - 1 - block()) * rows, own = warp() * ROWS;
    const T *k = head_rows<T>(a.k, a.k_stride, b, a.k_rows, g, d), *v = head_rows<T>(a.v, a.v_stride, b, a.k_rows, g, d);
    fill(queries, rows, head_rows<T>(a.q, a.q_stride, b, a.q_len, h, d), a.q_stride, first, a.q_len, d);
    float top[ROWS], sum[ROWS], acc[ROWS][COLUMNS] = {}, s[ROWS]; // top in units of log₂, sum over this lane's keys
    int lowest[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) top[r] = -INFINITY_F, sum[r] = 0, lowest[r] = lowest_key(a, b, first + own + r);
    int end = (int)min_of(a.k_len, a.q_offset + min_of(a.q_len, first + rows));
    for (int j = lowest_of(a, b, first, rows) / TILE * TILE; j < end; j += TILE) {
        sync_block(); // the tile before has been read
        fill(keys, TILE, k, a.k_stride, j, a.k_len, d);
        if (!ONE) fill(values, TILE, v, a.v_stride, j, a.k_len, d);
        sync_block();
        multiply(s, queries + own * ld, keys, d);
        if (ONE) {
            sync_block();
            fill(values, TILE, v, a.v_stride, j, a.k_len, d);
            sync_block();
        }
        UNROLL for (int r = 0; r < ROWS; r++) {
            int key = j + (int)lane();
            bool sees = key < end && key <= a.q_offset + first + own + r && (!A::LIMITED || key >= lowest[r]);
            float x = sees ? capped(a, s[r], float()) * a.log2_scale : -INFINITY_F;
            float t = max2(top[r], warp_max(x)); // finite: every query sees key 0
            if (A::LIMITED) t = max2(t, LOWEST); // or not yet any
            float shrink = exp2_approx(top[r] - t);
            s[r] = exp2_approx(x - t);
            sum[r] = sum[r] * shrink + s[r];
            top[r] = t;
            UNROLL for (int c = 0; c < COLUMNS; c++) acc[r][c] *= shrink;
        }
        accumulate(acc, s, values, d);
    }
    UNROLL for (int r = 0; r < ROWS; r++) {
        float all = warp_sum(sum[r]);
        sum[r] = 1.0f / all;
        int i = first + own + r;
        if (a.lse && lane() == 0 && i < a.q_len)
            a.lse[((i64)b * a.q_len + i) * a.lse_stride + h] = (top[r] + log2_approx(all)) * LN2;
    }
    put(head_rows<T>(a.o, a.o_stride, b, a.q_len, h, d), a.o_stride, first + own, a.q_len, d, acc, sum);
}

// Grid and shared memory of the forward, and dO of the block's queries after them. Writes dq, and the scratch of
// gradient_keys for these queries.
template <class T, class A, int COLUMNS> APR_DEVICE void gradient_queries(const A &a) {
    constexpr bool ONE = COLUMNS > 8; // tile at a time
    DYNAMIC_SHARED(memory);
    int d = a.d, ld = tile_stride(d), rows = threads() / 32 * ROWS, h = block_y(), b = block_z(), g = h / (a.heads / a.kv_heads);
    float *keys = (float *)memory, *values = ONE ? keys : keys + TILE * ld, *queries = values + TILE * ld, *douts = queries + rows * ld;
    int first = (blocks() - 1 - block()) * rows, own = warp() * ROWS;
    const T *k = head_rows<T>(a.k, a.k_stride, b, a.k_rows, g, d), *v = head_rows<T>(a.v, a.v_stride, b, a.k_rows, g, d);
    const T *o = head_rows<T>(a.o, a.o_stride, b, a.q_len, h, d);
    fill(queries, rows, head_rows<T>(a.q, a.q_stride, b, a.q_len, h, d), a.q_stride, first, a.q_len, d);
    fill(douts, rows, head_rows<T>(a.dout, a.dout_stride, b, a.q_len, h, d), a.dout_stride, first, a.q_len, d);
    sync_block();
    float lse[ROWS], delta[ROWS], acc[ROWS][COLUMNS] = {}, s[ROWS], dp[ROWS], scale[ROWS];
    int lowest[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) {
        int i = first + own + r;
        bool have = i < a.q_len;
        float sum = 0;
        if constexpr (A::LIMITED) { // in the order of multiply: of a query that sees itself alone dp − δ is 0
            for (int c = 0; have && c < d; c++) sum = fma_rn(load(o + (i64)i * a.o_stride + c), douts[(own + r) * ld + c], sum);
            delta[r] = sum;
        } else {
            for (int c = lane(); have && c < d; c += 32) sum += load(o + (i64)i * a.o_stride + c) * douts[(own + r) * ld + c];
            delta[r] = warp_sum(sum);
        }
        lse[r] = have ? a.lse[((i64)b * a.q_len + i) * a.lse_stride + h] * LOG2E : INFINITY_F; // no query: probability 0
        i64 at = ((i64)b * a.heads + h) * a.padded + i;
        if (lane() == 0) a.row_lse[at] = lse[r], a.row_delta[at] = delta[r];
        scale[r] = a.scale;
        lowest[r] = lowest_key(a, b, i);
    }
    int end = (int)min_of(a.k_len, a.q_offset + min_of(a.q_len, first + rows));
    for (int j = lowest_of(a, b, first, rows) / TILE * TILE; j < end; j += TILE) {
        sync_block(); // the tile before has been read
        if (ONE) {
            fill(values, TILE, v, a.v_stride, j, a.k_len, d);
            sync_block();
            multiply(dp, douts + own * ld, values, d);
            sync_block();
        }
        fill(keys, TILE, k, a.k_stride, j, a.k_len, d);
        if (!ONE) fill(values, TILE, v, a.v_stride, j, a.k_len, d);
        sync_block();
        multiply(s, queries + own * ld, keys, d);
        if (!ONE) multiply(dp, douts + own * ld, values, d);
        UNROLL for (int r = 0; r < ROWS; r++) {
            int key = j + (int)lane();
            bool sees = key < end && key <= a.q_offset + first + own + r && (!A::LIMITED || key >= lowest[r]);
            float x = capped(a, s[r], float());
            float p = sees ? exp2_approx(x * a.log2_scale - lse[r]) : 0.0f;
            s[r] = p * (dp[r] - delta[r]);
            if (A::LIMITED) s[r] *= slope(a, x);
        }
        accumulate(acc, s, keys, d);
    }
    put(head_rows<T>(a.dq, a.dq_stride, b, a.q_len, h, d), a.dq_stride, first + own, a.q_len, d, acc, scale);
}

// Grid: (blocks of keys, kv heads, batch). Shared: queries and dO of a tile, the block's keys and values.
template <class T, class A, int COLUMNS> APR_DEVICE void gradient_keys(const A &a) {
    constexpr bool ONE = COLUMNS > 8; // tile at a time
    DYNAMIC_SHARED(memory);
    int d = a.d, ld = tile_stride(d), rows = threads() / 32 * ROWS, g = block_y(), b = block_z(), group = a.heads / a.kv_heads;
    float *queries = (float *)memory, *douts = ONE ? queries : queries + TILE * ld, *keys = douts + TILE * ld, *values = keys + rows * ld;
    int first = block() * rows, own = warp() * ROWS; // the first keys are seen by most queries
    fill(keys, rows, head_rows<T>(a.k, a.k_stride, b, a.k_rows, g, d), a.k_stride, first, a.k_len, d);
    fill(values, rows, head_rows<T>(a.v, a.v_stride, b, a.k_rows, g, d), a.v_stride, first, a.k_len, d);
    float dk[ROWS][COLUMNS] = {}, dv[ROWS][COLUMNS] = {}, s[ROWS], dp[ROWS];
    int begin = first > a.q_offset ? (first - a.q_offset) / TILE * TILE : 0;
    int until = A::LIMITED ? (int)min_of(a.q_len, (i64)first + rows - 1 + window_of(a) - a.q_offset) : a.q_len; // the last to see a key
    for (int h = g * group; h < (g + 1) * group; h++) {
        const T *q = head_rows<T>(a.q, a.q_stride, b, a.q_len, h, d), *dout = head_rows<T>(a.dout, a.dout_stride, b, a.q_len, h, d);
        i64 at = ((i64)b * a.heads + h) * a.padded;
        for (int i = begin; i < until; i += TILE) {
            sync_block(); // the tile before has been read
            fill(queries, TILE, q, a.q_stride, i, a.q_len, d);
            if (!ONE) fill(douts, TILE, dout, a.dout_stride, i, a.q_len, d);
            sync_block();
            int query = i + (int)lane();
            bool have = query < a.q_len;
            float lse = have ? a.row_lse[at + query] : 0, delta = have ? a.row_delta[at + query] : 0;
            multiply(s, keys + own * ld, queries, d);
            if (ONE) {
                sync_block();
                fill(douts, TILE, dout, a.dout_stride, i, a.q_len, d);
                sync_block();
            }
            multiply(dp, values + own * ld, douts, d);
            int lowest = lowest_key(a, b, query);
            UNROLL for (int r = 0; r < ROWS; r++) {
                bool sees = have && first + own + r <= a.q_offset + query && (!A::LIMITED || first + own + r >= lowest);
                float x = capped(a, s[r], float());
                s[r] = sees ? exp2_approx(x * a.log2_scale - lse) : 0.0f;
                dp[r] = s[r] * (dp[r] - delta);
                if (A::LIMITED) dp[r] *= slope(a, x);
            }
            accumulate(dv, s, douts, d);
            if (ONE) {
                sync_block();
                fill(queries, TILE, q, a.q_stride, i, a.q_len, d);
                sync_block();
            }
            accumulate(dk, dp, queries, d);
        }
    }
    float one[ROWS], scale[ROWS];
    UNROLL for (int r = 0; r < ROWS; r++) one[r] = 1, scale[r] = a.scale;
    put(head_rows<T>(a.dk, a.dk_stride, b, a.k_rows, g, d), a.dk_stride, first + own, a.k_len, d, dk, scale);
    put(head_rows<T>(a.dv, a.dv_stride, b, a.k_rows, g, d), a.dv_stride, first + own, a.k_len, d, dv, one);
}
