// gemm_f32.cuh: products of float32.
#pragma once
#include "gemm.cuh"

// A block of 128 threads computes a tile of 128×64 of c. Tiles of 16 along the inner dimension stand in shared memory
// with the inner position first, twice: while one is multiplied, the next waits in registers. The rows of the tiles are
// padded so that the lanes that read four of them at once are in different banks.
#define F32_THREADS 128
#define F32_M 128
#define F32_N 64
#define F32_K 16
#define F32_PAD 8

// FloatSide is one operand as one thread sees it: KMAJOR as in gemm.cu, ROWS elements of the tile along c.
template <bool KMAJOR, int ROWS> struct FloatSide {
    static constexpr int LOADS = ROWS * F32_K / 4 / F32_THREADS, STRIDE = ROWS + F32_PAD;
    f32x4 next[LOADS];

    // load reads the tile that begins at `first` along c and at k0; elements outside become zero.
    APR_METHOD void load(const void *p, i64 ld, i32 mn, i32 k, i32 first, i32 k0, bool vector) {
        UNROLL for (int i = 0; i < LOADS; i++) {
            const int item = thread() + i * F32_THREADS;
            const i32 along = first + (KMAJOR ? item % ROWS : item % (ROWS / 4) * 4);
            const i32 inner = k0 + (KMAJOR ? item / ROWS * 4 : item / (ROWS / 4));
            const i32 row = KMAJOR ? along : inner, col = KMAJOR ? inner : along;
            const i32 rows = KMAJOR ? mn : k, cols = KMAJOR ? k : mn;
            const float *from = (const float *)p + row * ld + col;
            f32x4 v = {0, 0, 0, 0};
            if (row < rows) {
                if (vector && col + 4 <= cols) {
                    v = __builtin_bit_cast(f32x4, load16(from));
                } else {
                    UNROLL for (int e = 0; e < 4; e++)
                        if (col + e < cols) v[e] = from[e];
                }
            }
            next[i] = v;
        }
    }
    // put writes it to shared memory, rounded if TF32.
    template <bool TF> APR_METHOD void put(float *tile) const {
        UNROLL for (int i = 0; i < LOADS; i++) {
            const int item = thread() + i * F32_THREADS;
            f32x4 v = next[i];
            if (TF) {
                UNROLL for (int e = 0; e < 4; e++) v[e] = from_bits(to_tf32(v[e]));
            }
            if (KMAJOR) {
                float *to = tile + item / ROWS * 4 * STRIDE + item % ROWS;
                UNROLL for (int e = 0; e < 4; e++) to[e * STRIDE] = v[e];
            } else {
                store16(tile + item / (ROWS / 4) * STRIDE + item % (ROWS / 4) * 4, __builtin_bit_cast(u32x4, v));
            }
        }
    }
};

// FloatSums are the sums of a thread in float32: rows r, r+1, r+2, r+3 and 64 more of the tile, columns likewise with 32.
// Every one adds its products in order of the inner dimension, each with one rounding.
struct FloatSums {
    float sum[8][8] = {};
    APR_METHOD void add(const float *x, const float *y) {
        const int r = thread() / 8 * 4, c = thread() % 8 * 4;
        _Pragma("unroll 2") for (int k = 0; k < F32_K; k++) { // more would not fit the registers
            const float *p = x + k * (F32_M + F32_PAD) + r, *q = y + k * (F32_N + F32_PAD) + c;
            const f32x4 u0 = *(const f32x4 *)p, u1 = *(const f32x4 *)(p + 64);
            const f32x4 v0 = *(const f32x4 *)q, v1 = *(const f32x4 *)(q + 32);
            UNROLL for (int i = 0; i < 8; i++)
                UNROLL for (int j = 0; j < 8; j++)
                    sum[i][j] = fma_rn(i < 4 ? u0[i % 4] : u1[i % 4], j < 4 ? v0[j % 4] : v1[j % 4], sum[i][j]);
        }
    }
    APR_METHOD void write(const GemmArgs &a, float *shared, i32 m0, i32 n0) const {
        constexpr int STRIDE = F32_N + 4;
        float *sums = shared + warp() * 16 * STRIDE, *mine = sums + lane() / 8 * 4 * STRIDE + lane() % 8 * 4;
        UNROLL for (int half = 0; half < 2; half++) {
            UNROLL for (int i = 0; i < 4; i++)
                UNROLL for (int j = 0; j < 8; j += 4) {
                    const float *s = sum[half * 4 + i] + j;
                    *(f32x4 *)(mine + i * STRIDE + j * 8) = f32x4{s[0], s[1], s[2], s[3]};
                }
            gemm_flush<F32_N, STRIDE>(a, sums, m0 + half * 64 + (i32)warp() * 16, n0);
        }
    }
};

// TensorSums are the sums of a warp in tf32: 64×32 of the tile.
struct TensorSums {
    float sum[4][4][4] = {};
    APR_METHOD void add(const float *x, const float *y) {
        const u32 *p = (const u32 *)x + lane() % 4 * (F32_M + F32_PAD) + warp() / 2 * 64 + lane() / 4;
        const u32 *q = (const u32 *)y + lane() % 4 * (F32_N + F32_PAD) + warp() % 2 * 32 + lane() / 4;
        UNROLL for (int k = 0; k < F32_K; k += 8) {
            u32 u[4][4], v[4][2];
            UNROLL for (int i = 0; i < 4; i++)
                UNROLL for (int e = 0; e < 4; e++) u[i][e] = p[(k + e / 2 * 4) * (F32_M + F32_PAD) + i * 16 + e % 2 * 8];
            UNROLL for (int j = 0; j < 4; j++)
                UNROLL for (int e = 0; e < 2; e++) v[j][e] = q[(k + e * 4) * (F32_N + F32_PAD) + j * 8];
            UNROLL for (int i = 0; i < 4; i++)
                UNROLL for (int j = 0; j < 4; j++) mma_tf32(sum[i][j], u[i], v[j][0], v[j][1]);
        }
    }
    APR_METHOD void write(const GemmArgs &a, float *shared, i32 m0, i32 n0) const {
        gemm_write(a, sum, (u8 *)shared, m0 + (i32)warp() / 2 * 64, n0 + (i32)warp() % 2 * 32);
    }
};

// gemm_float_at computes the tile of c that begins at (m0, n0). y is b, as FloatSide has it or with the same methods.
template <bool AK, bool TF, class Sums, class Right> APR_DEVICE void gemm_float_at(const GemmArgs &a, Right &y, i32 m0, i32 n0) {
    SHARED(float, left, 2 * F32_K * (F32_M + F32_PAD));
    SHARED(float, right, 2 * F32_K * (F32_N + F32_PAD));
    const bool va = a.flags & GEMM_VECTOR_A, vb = a.flags & GEMM_VECTOR_B;
    FloatSide<AK, F32_M> x;
    Sums sums;
    x.load(a.a, a.lda, a.m, a.k, m0, 0, va);
    y.load(a.b, a.ldb, a.n, a.k, n0, 0, vb);
    const int tiles = (a.k + F32_K - 1) / F32_K;
    _Pragma("unroll 1") for (int t = 0; t < tiles; t++) {
        float *l = left + t % 2 * F32_K * (F32_M + F32_PAD), *r = right + t % 2 * F32_K * (F32_N + F32_PAD);
        x.template put<TF>(l);
        y.template put<TF>(r);
        sync_block(); // a thread is at most one tile ahead of another, which reads the other half
        if (t + 1 < tiles) {
            x.load(a.a, a.lda, a.m, a.k, m0, (t + 1) * F32_K, va);
            y.load(a.b, a.ldb, a.n, a.k, n0, (t + 1) * F32_K, vb);
        }
        sums.add(l, r);
    }
    sync_block();
    static_assert(4 * 16 * (F32_N + 4) <= 2 * F32_K * (F32_M + F32_PAD) && GEMM_STAGING(32) <= 16 * (F32_N + 4) * 4, "");
    sums.write(a, left, m0, n0);
}

template <bool AK, bool BK, bool TF, class Sums> APR_DEVICE void gemm_float(const GemmArgs &a) {
    i32 m0, n0;
    gemm_tile(a, F32_M, F32_N, m0, n0);
    FloatSide<BK, F32_N> right;
    gemm_float_at<AK, TF, Sums>(a, right, m0, n0);
}
