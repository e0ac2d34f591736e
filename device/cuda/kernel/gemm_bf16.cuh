// gemm_bf16.cuh: products of bfloat16 on tensor cores.
#pragma once
#include "gemm.cuh"

// bfloat16 operands on tensor cores: a block of 4 warps computes a tile of c, BM×BN, each warp a quarter of it.
//
// Tiles of 32 along the inner dimension pass through STAGES stages of shared memory, filled by asynchronous copies that
// run ahead. An operand is stored in one of two ways, and stays so in shared memory; ldmatrix turns it if need be.
//   KMAJOR   rows of the tile are rows of c (columns, for b), 32 inner elements each: 64 bytes. 16-byte chunk c of row r
//            stands at chunk c ^ (r/2 mod 4).
//   else     rows are the 32 inner positions, ROWS elements each. Chunk c of row r stands at chunk c ^ (r mod 8).
// So the eight rows that ldmatrix reads at once are in different banks.
#define TILE_K 32
#define GEMM_THREADS 128

// Side is one operand as one thread sees it.
template <bool KMAJOR, int ROWS> struct Side {
    static constexpr int CHUNKS = KMAJOR ? TILE_K / 8 : ROWS / 8;                  // of a row of the tile
    static constexpr int STEP = GEMM_THREADS / CHUNKS;                             // rows between the thread's chunks
    static constexpr int COPIES = ROWS * TILE_K / 8 / GEMM_THREADS;                // chunks of a thread
    static constexpr int ROW_BYTES = CHUNKS * 16, BYTES = ROWS * TILE_K * 2;
    static_assert(STEP % 8 == 0, "every thread keeps its place in the pattern");

    const bf16 *from; // the thread's first chunk of the next tile to fetch
    i64 stride;
    u32 to;       // its place in a tile
    i32 row, col; // its place in the operand as stored
    i32 rows, cols;
    bool vector;
    u32 place; // in a tile, of the row that the lane gives ldmatrix

    // The operand is rows×cols as stored; the block's tile begins at `first` along c, the warp's part `part` behind it.
    // LEFT is for a: its four matrices of 8×8 lie rows first; those of b inner positions first.
    APR_METHOD void begin(const void *p, i64 ld, i32 mn, i32 k, i32 first, i32 part, bool left, bool vec) {
        const int r = thread() / CHUNKS, c = thread() % CHUNKS, l = lane();
        rows = KMAJOR ? mn : k;
        cols = KMAJOR ? k : mn;
        row = r + (KMAJOR ? first : 0);
        col = c * 8 + (KMAJOR ? 0 : first);
        stride = ld;
        vector = vec;
        from = (const bf16 *)p + row * ld + col;
        to = r * ROW_BYTES + ((c ^ swizzle(r)) << 4);
        // Along c or along the inner dimension: which half of the lanes goes 8 further.
        const int inner = left ? l >> 4 : (l >> 3) & 1, along = left ? (l >> 3) & 1 : l >> 4;
        const int x = KMAJOR ? part + (l & 7) + along * 8 : (l & 7) + inner * 8; // row of the tile
        const int y = KMAJOR ? inner : part / 8 + along;                         // chunk of the row
        place = x * ROW_BYTES + ((y ^ swizzle(x)) << 4);
    }
    APR_METHOD static int swizzle(int r) { return KMAJOR ? (r >> 1) & 3 : r & 7; }

    // fetch starts the copy of the next tile. Elements outside the operand become zero.
    APR_METHOD void fetch(u8 *tile) {
        const bool whole = KMAJOR ? col - (thread() % CHUNKS) * 8 + TILE_K <= cols : col - (thread() % CHUNKS) * 8 + ROWS <= cols;
        if (vector && whole) {
            UNROLL for (int i = 0; i < COPIES; i++)
                copy_async16(tile + to + i * STEP * ROW_BYTES, from + i * STEP * stride, row + i * STEP < rows);
        } else {
            _Pragma("unroll 1") for (int i = 0; i < COPIES; i++) {
                u32x4 v = {0, 0, 0, 0};
                const bf16 *p = from + i * STEP * stride;
                if (row + i * STEP < rows) {
                    UNROLL for (int e = 0; e < 8; e++)
                        if (col + e < cols) v[e / 2] |= (u32)p[e] << (e % 2 * 16);
                }
                store16(tile + to + i * STEP * ROW_BYTES, v);
            }
        }
        if (KMAJOR) col += TILE_K, from += TILE_K;
        else row += TILE_K, from += TILE_K * stride;
    }

    // Where it SETTLES, settle ends what fetch began for a tile, which is multiplied after the next barrier at the earliest.
    static constexpr bool SETTLES = false;
    APR_METHOD void settle(u8 *) {}

    // take reads the 16×16 square i along c, inner step k.
    APR_METHOD void take(u32 (&x)[4], const u8 *tile, int i, int k) const {
        if (KMAJOR) ldmatrix4(x, tile + (place ^ (k << 5)) + i * 16 * ROW_BYTES);
        else ldmatrix4_trans(x, tile + (place ^ (i << 5)) + k * 16 * ROW_BYTES);
    }
};

// gemm_bf16_at computes the tile of c that begins at (m0, n0). right is b, as Side has it or with the same methods.
template <bool AK, int BM, int BN, int STAGES, class Right> APR_DEVICE void gemm_bf16_at(const GemmArgs &a, Right &right, i32 m0, i32 n0) {
    constexpr int WM = BM / 2, WN = BN / 2, MT = WM / 16, NT = WN / 16;
    constexpr int STAGE = Side<AK, BM>::BYTES + Right::BYTES;
    DYNAMIC_SHARED(shared);
    const i32 wm = warp() / 2 * WM, wn = warp() % 2 * WN;
    Side<AK, BM> left;
    left.begin(a.a, a.lda, a.m, a.k, m0, wm, true, a.flags & GEMM_VECTOR_A);
    right.begin(a.b, a.ldb, a.n, a.k, n0, wn, false, a.flags & GEMM_VECTOR_B);
    float acc[MT][2 * NT][4] = {};
    const int tiles = (a.k + TILE_K - 1) / TILE_K;
    int stage = 0, free = 0;
    _Pragma("unroll 1") for (int t = 1 - STAGES; t < tiles; t++) { // the first rounds only fetch
        copy_async_wait<STAGES - 2>();
        sync_block(); // tile t is there, and all have read tile t-1, whose stage is the free one
        u8 *next = shared + free * STAGE + Side<AK, BM>::BYTES;
        if (t + STAGES - 1 < tiles) {
            left.fetch(shared + free * STAGE);
            right.fetch(next);
        }
        copy_async_commit();
        free = free + 1 < STAGES ? free + 1 : 0;
        if (t >= 0) {
            const u8 *tile = shared + stage * STAGE, *other = tile + Side<AK, BM>::BYTES;
            UNROLL for (int k = 0; k < TILE_K / 16; k++) {
                u32 x[MT][4], y[NT][4];
                UNROLL for (int i = 0; i < MT; i++) left.take(x[i], tile, i, k);
                UNROLL for (int j = 0; j < NT; j++) right.take(y[j], other, j, k);
                UNROLL for (int i = 0; i < MT; i++)
                    UNROLL for (int j = 0; j < NT; j++) {
                        mma_bf16(acc[i][2 * j], x[i], y[j][0], y[j][1]);
                        mma_bf16(acc[i][2 * j + 1], x[i], y[j][2], y[j][3]);
                    }
            }
            stage = stage + 1 < STAGES ? stage + 1 : 0;
        }
        if (Right::SETTLES && t + STAGES - 1 < tiles) right.settle(next);
    }
    copy_async_wait<0>();
    sync_block();
    static_assert(4 * GEMM_STAGING(WN) <= STAGES * STAGE, "the sums pass through the stages");
    gemm_write(a, acc, shared, m0 + wm, n0 + wn);
}

template <bool AK, bool BK, int BM, int BN, int STAGES> APR_DEVICE void gemm_bf16(const GemmArgs &a) {
    i32 m0, n0;
    gemm_tile(a, BM, BN, m0, n0);
    Side<BK, BN> right;
    gemm_bf16_at<AK, BM, BN, STAGES>(a, right, m0, n0);
}
