// attention_tiles.cuh: tiles of bfloat16 rows of D columns in shared memory, and their products on tensor cores, for
// attention_flash.cuh.
//
// A row of a tile takes 2·D bytes; its 16-byte chunk c stands at chunk c ^ (row mod 8), so that the eight rows that
// ldmatrix reads at once are in different banks.
#pragma once
#include "apr.cuh"

// fetch starts the copy of rows [first, first+N) of a head to a tile, by T threads. Rows from `rows` on become zero.
template <int D, int N, int T> APR_DEVICE void fetch(u8 *tile, const bf16 *head, i32 stride, int first, int rows) {
    constexpr int CHUNKS = D / 8, STEP = T / CHUNKS;
    static_assert((STEP % 8 == 0 || STEP == 4) && N % STEP == 0, "a thread keeps its place in the pattern, or changes between two");
    int r = thread() / CHUNKS, c = thread() % CHUNKS;
    const bf16 *from = head + (i64)(first + r) * stride + c * 8;
    u8 *to = tile + r * (2 * D) + ((c ^ (r & 7)) << 4);
    int left = rows - first - r;
    i64 step = (i64)STEP * stride;
    opaque(step);
    if constexpr (STEP == 4) { // rows r and r+4 modulo 8 differ in bit 2, by which chunk c changes
        u8 *const odd = tile + r * (2 * D) + ((c ^ 4 ^ (r & 7)) << 4);
        UNROLL for (int n = 0; n < N; n += STEP, from += step) copy_async16((n & 4 ? odd : to) + n * (2 * D), from, n < left);
        return;
    }
    UNROLL for (int n = 0; n < N; n += STEP, from += step) copy_async16(to + n * (2 * D), from, n < left);
}

// Where a lane's row of the first 16×16 square of a tile begins, for ldmatrix4. Chunks 2k and 2k+1 are those of square k
// along the row: offset ^ k·32. RIGHT is for rows that become columns of the right operand; LEFT for the left operand,
// and, transposed, for rows that are the right operand's rows.
template <int D> APR_DEVICE int left_offset() {
    int l = lane();
    return (l & 15) * (2 * D) + (((l >> 4) ^ (l & 7)) << 4);
}
template <int D> APR_DEVICE int right_offset() {
    int l = lane();
    return ((l & 7) + ((l >> 4) << 3)) * (2 * D) + ((((l >> 3) & 1) ^ (l & 7)) << 4);
}

// take loads the left operand of 16·MT rows into registers.
template <int D, int MT> APR_DEVICE void take(u32 (&x)[MT][D / 16][4], const u8 *rows) {
    UNROLL for (int m = 0; m < MT; m++)
        UNROLL for (int k = 0; k < D / 16; k++) ldmatrix4(x[m][k], rows + m * (32 * D) + (left_offset<D>() ^ (k << 5)));
}

// Product is an operation of tensor cores.
typedef void Product(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1);

// products adds own rows · rows of the tile to s: s[m][n] is the square of own rows [16m, 16m+16) and tile rows
// [8n, 8n+8). The next piece of the right operand is on its way while one is multiplied.
template <int D, Product MMA = mma_bf16, int MT, int NT> APR_DEVICE void products(float (&s)[MT][NT][4], const u32 (&x)[MT][D / 16][4], const u8 *tile) {
    int right = right_offset<D>();
    opaque(right);
    u32 y[2][4];
    ldmatrix4(y[0], tile + right);
    UNROLL for (int k = 0; k < D / 16; k++) {
        UNROLL for (int n = 0; n < NT; n += 2) {
            int i = k * (NT / 2) + n / 2, next_k = n + 2 < NT ? k : k + 1, next_n = n + 2 < NT ? n + 2 : 0;
            if (next_k < D / 16) ldmatrix4(y[~i & 1], tile + next_n * (16 * D) + (right ^ (next_k << 5)));
            UNROLL for (int m = 0; m < MT; m++) {
                MMA(s[m][n], x[m][k], y[i & 1][0], y[i & 1][1]);
                MMA(s[m][n + 1], x[m][k], y[i & 1][2], y[i & 1][3]);
            }
        }
    }
}

// The same with own rows in shared memory, for lack of registers.
template <int D, Product MMA = mma_bf16, int MT, int NT> APR_DEVICE void products(float (&s)[MT][NT][4], const u8 *own, const u8 *tile) {
    int left = left_offset<D>(), right = right_offset<D>();
    opaque(left);
    opaque(right);
    u32 x[MT][4], y[2][4];
    UNROLL for (int m = 0; m < MT; m++) ldmatrix4(x[m], own + m * (32 * D) + left);
    ldmatrix4(y[0], tile + right);
    UNROLL for (int k = 0; k < D / 16; k++) {
        UNROLL for (int n = 0; n < NT; n += 2) {
            int i = k * (NT / 2) + n / 2, next_k = n + 2 < NT ? k : k + 1, next_n = n + 2 < NT ? n + 2 : 0;
            if (next_k < D / 16) ldmatrix4(y[~i & 1], tile + next_n * (16 * D) + (right ^ (next_k << 5)));
            UNROLL for (int m = 0; m < MT; m++) {
                MMA(s[m][n], x[m], y[i & 1][0], y[i & 1][1]);
                MMA(s[m][n + 1], x[m], y[i & 1][2], y[i & 1][3]);
                if (next_k > k && next_k < D / 16) ldmatrix4(x[m], own + m * (32 * D) + (left ^ (next_k << 5)));
            }
        }
    }
}

// accumulate adds p · tile to acc, p [16·MT, 8·NT] rounded to bfloat16: the accumulators of two neighbouring squares are
// the four registers of a left operand. acc are C columns, part number `part` of the tile's.
template <int D, int C = D, int MT, int NT> APR_DEVICE void accumulate(float (&acc)[MT][C / 8][4], const float (&p)[MT][NT][4], const u8 *tile, int part = 0) {
    static_assert((C & (C - 1)) == 0 && D % C == 0, "parts differ in bits of the chunk that squares do not change");
    int left = left_offset<D>() ^ part * (2 * C);
    opaque(left);
    u32 y[2][4];
    ldmatrix4_trans(y[0], tile + left);
    UNROLL for (int k = 0; k < NT / 2; k++) {
        u32 x[MT][4];
        UNROLL for (int m = 0; m < MT; m++) {
            UNROLL for (int i = 0; i < 4; i++) {
                const float *two = p[m][2 * k + i / 2] + i % 2 * 2;
                x[m][i] = pack_bf16(two[0], two[1]);
            }
        }
        UNROLL for (int n = 0; n < C / 16; n++) {
            int i = k * (C / 16) + n, next_k = n + 1 < C / 16 ? k : k + 1, next_n = n + 1 < C / 16 ? n + 1 : 0;
            if (next_k < NT / 2) ldmatrix4_trans(y[~i & 1], tile + next_k * (32 * D) + (left ^ (next_n << 5)));
            UNROLL for (int m = 0; m < MT; m++) {
                mma_bf16(acc[m][2 * n], x[m], y[i & 1][0], y[i & 1][1]);
                mma_bf16(acc[m][2 * n + 1], x[m], y[i & 1][2], y[i & 1][3]);
            }
        }
    }
}

// put writes the accumulators of 16·MT rows, times f of the row, as rows [first, rows) of a head. They pass through the
// warp's own rows of a tile, which nobody else reads any more, to be written in 16-byte pieces. acc are C columns, part number `part`.
template <int D, int C = D, int MT> APR_DEVICE void put(bf16 *head, i32 stride, int first, int rows, const float (&acc)[MT][C / 8][4], const float (&f)[MT][2], u8 *own, int part = 0) {
    const int l = lane(), base = part * (C / 8);
    sync_warp();
    UNROLL for (int m = 0; m < MT; m++) {
        UNROLL for (int e = 0; e < 2; e++) {
            int r = m * 16 + e * 8 + (l >> 2);
            UNROLL for (int n = 0; n < C / 8; n++)
                *(u32 *)(own + r * (2 * D) + (((n + base) ^ (r & 7)) << 4) + (l & 3) * 4) = pack_bf16(acc[m][n][2 * e] * f[m][e], acc[m][n][2 * e + 1] * f[m][e]);
        }
    }
    sync_warp();
    constexpr int CHUNKS = C / 8, STEP = 32 / CHUNKS;
    int c = l % CHUNKS + base;
    UNROLL for (int n = 0; n < 16 * MT; n += STEP) {
        int r = n + l / CHUNKS;
        if (first + r < rows) store16(head + (i64)(first + r) * stride + c * 8, load16(own + r * (2 * D) + ((c ^ (r & 7)) << 4)));
    }
}

template <int MT, int NT> APR_DEVICE void clear(float (&s)[MT][NT][4]) {
    UNROLL for (int m = 0; m < MT; m++)
        UNROLL for (int n = 0; n < NT; n++)
            UNROLL for (int i = 0; i < 4; i++) s[m][n][i] = 0;
}

// hide makes scores of keys that a query does not see −∞; the rows are queries at positions from `query`, the columns
// keys from `key`.
template <int MT, int NT> APR_DEVICE void hide_keys(float (&s)[MT][NT][4], int query, int key) {
    int l = lane(), over = key - query + (l & 3) * 2 - (l >> 2); // how far column 0 lies after row 0
    UNROLL for (int m = 0; m < MT; m++)
        UNROLL for (int n = 0; n < NT; n++)
            UNROLL for (int i = 0; i < 4; i++)
                if (over + n * 8 + (i & 1) > m * 16 + (i >> 1) * 8) s[m][n][i] = -INFINITY_F;
}
// The same where the rows are keys and the columns queries.
template <int MT, int NT> APR_DEVICE void hide_queries(float (&s)[MT][NT][4], int query, int key) {
    int l = lane(), over = key - query + (l >> 2) - (l & 3) * 2;
    UNROLL for (int m = 0; m < MT; m++)
        UNROLL for (int n = 0; n < NT; n++)
            UNROLL for (int i = 0; i < 4; i++)
                if (over + m * 16 + (i >> 1) * 8 > n * 8 + (i & 1)) s[m][n][i] = -INFINITY_F;
}

// hide_before makes scores of keys that a query does not see because of its window or its document −∞: lowest are the first keys that the
// lane's rows see, the columns keys from `key`.
template <int MT, int NT> APR_DEVICE void hide_before(float (&s)[MT][NT][4], const i32 (&lowest)[MT][2], int key) {
    const int first = key + (lane() & 3) * 2;
    UNROLL for (int m = 0; m < MT; m++)
        UNROLL for (int n = 0; n < NT; n++)
            UNROLL for (int i = 0; i < 4; i++)
                if (first + n * 8 + (i & 1) < lowest[m][i >> 1]) s[m][n][i] = -INFINITY_F;
}
