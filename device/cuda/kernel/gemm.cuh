// gemm.cuh: what the matrix products of gemm.cu and gemm_f32.cu share.
#pragma once
#include "apr.cuh"

struct GemmArgs {
    const void *a, *b;
    void *c;
    const float *bias; // may be null
    i64 lda, ldb, ldc;
    i32 m, n, k;
    u32 flags;
};

#define GEMM_ADD 1      // c is added to
#define GEMM_FLOAT 2    // c is float, else bfloat16
#define GEMM_VECTOR_A 4 // rows of a begin at multiples of 16 bytes
#define GEMM_VECTOR_B 8
#define GEMM_PAIRS 16 // rows of c begin at multiples of two elements

// gemm_tile gives the block its tile of c: eight rows of tiles are walked column by column, so that blocks that run at
// one time share rows of both operands.
APR_DEVICE void gemm_tile(const GemmArgs &a, i32 bm, i32 bn, i32 &m0, i32 &n0) {
    const i32 high = (a.m + bm - 1) / bm, wide = (a.n + bn - 1) / bn;
    const i32 first = (i32)block() / (8 * wide) * 8, rest = (i32)block() - first * wide;
    const i32 rows = high - first < 8 ? high - first : 8;
    m0 = (first + rest % rows) * bm;
    n0 = rest / rows * bn;
}

// gemm_put writes c(row, col) and c(row, col+1).
APR_DEVICE void gemm_put(const GemmArgs &a, i32 row, i32 col, float x, float y) {
    if (row >= a.m || col >= a.n) return;
    const i64 at = row * a.ldc + col;
    const bool both = col + 1 < a.n;
    if (a.flags & GEMM_FLOAT) {
        float *p = (float *)a.c + at;
        if (both && a.flags & GEMM_PAIRS) {
            f32x2 v = {x, y};
            if (a.flags & GEMM_ADD) v += *(const f32x2 *)p;
            *(f32x2 *)p = v;
            return;
        }
        p[0] = a.flags & GEMM_ADD ? p[0] + x : x;
        if (both) p[1] = a.flags & GEMM_ADD ? p[1] + y : y;
        return;
    }
    bf16 *p = (bf16 *)a.c + at;
    if (both && a.flags & GEMM_PAIRS) {
        if (a.flags & GEMM_ADD) {
            const u32 old = *(const u32 *)p;
            x += from_bf16((bf16)old);
            y += from_bf16((bf16)(old >> 16));
        }
        *(u32 *)p = pack_bf16(x, y);
        return;
    }
    p[0] = to_bf16(a.flags & GEMM_ADD ? from_bf16(p[0]) + x : x);
    if (both) p[1] = to_bf16(a.flags & GEMM_ADD ? from_bf16(p[1]) + y : y);
}

// gemm_flush adds the bias to 16×W sums of the warp, which lie in shared memory STRIDE apart, and writes them to c from
// (row, col) on. Every lane writes two columns.
template <int W, int STRIDE> APR_DEVICE void gemm_flush(const GemmArgs &a, const float *sums, i32 row, i32 col) {
    const int first = lane() / (W / 2), place = lane() % (W / 2) * 2;
    const i32 c = col + place;
    const float x = a.bias && c < a.n ? a.bias[c] : 0.0f, y = a.bias && c + 1 < a.n ? a.bias[c + 1] : 0.0f;
    sync_warp();
    _Pragma("unroll 2") for (int s = 0; s < W / 4; s++) {
        const int r = first + s * (64 / W);
        const f32x2 v = *(const f32x2 *)(sums + r * STRIDE + place);
        gemm_put(a, row + r, c, v[0] + x, v[1] + y);
    }
    sync_warp();
}

// gemm_write writes a warp's sums, in the layout of mma's accumulators: acc[i][j] is the 16×8 square i along the rows and
// j along the columns from (row, col) on. shared holds GEMM_STAGING(8·NT) bytes for each warp; all must have done with it.
#define GEMM_STAGING(W) (16 * ((W) + 8) * 4)
template <int MT, int NT> APR_DEVICE void gemm_write(const GemmArgs &a, const float (&acc)[MT][NT][4], u8 *shared, i32 row, i32 col) {
    constexpr int STRIDE = NT * 8 + 8;
    float *sums = (float *)(shared + warp() * GEMM_STAGING(NT * 8));
    float *mine = sums + lane() / 4 * STRIDE + lane() % 4 * 2;
    UNROLL for (int i = 0; i < MT; i++) {
        UNROLL for (int j = 0; j < NT; j++) {
            *(f32x2 *)(mine + j * 8) = f32x2{acc[i][j][0], acc[i][j][1]};
            *(f32x2 *)(mine + j * 8 + 8 * STRIDE) = f32x2{acc[i][j][2], acc[i][j][3]};
        }
        gemm_flush<NT * 8, STRIDE>(a, sums, row + i * 16, col);
    }
}
