// Products with the thin factors of low-rank adapters, at the speed of memory: see lowrank.go.
//
// A is [rank, cols] and B [cols, rank], cols being those of the wide matrix (x, y or their gradients), of which each element is read
// once and nothing passes through shared memory: which elements meet in one instruction is free as long as both operands agree, so
// that a lane loads 16 bytes that stand together and takes them as they are, or exchanges halves of two words. Lane 4g + t has rows g
// and g+8 of a tile; of 32 elements of the inner dimension those from 8t on, of 16 rows as inner dimension those from 4t on.
//apr:module target=sm_80 types=bf16 roles=optional
#include "glu.cuh"

constexpr u32 THIN_PARTS = 4;

struct ThinPart {
    const bf16 *w; // A or B
    float *d;      // its gradient
    i64 w_stride, d_stride;
    u32 lo, cols, from, rank; // columns of the wide and of the thin matrix
    u32 first;                // unit of the launch
    u32 add;                  // d is added to
    float scale;
    u32 chunks; // of 32 columns of the thin matrix
};

struct ThinArgs {
    bf16 *wide, *thin, *gated;
    float *sums;
    i64 wide_stride, thin_stride, gated_stride;
    ThinPart part[THIN_PARTS];
    u32 rows, parts, units;
    u32 each;   // rows that a block has, at most
    u32 splits; // blocks that share the rows of a unit
    u32 add;    // the wide matrix is added to
};

// thin_part is the part of a unit.
APR_DEVICE ThinPart thin_part(const ThinArgs &a, u32 unit) {
    ThinPart r = a.part[0];
    UNROLL for (u32 i = 1; i < THIN_PARTS; i++)
        if (i < a.parts && unit >= a.part[i].first) r = a.part[i];
    return r;
}

APR_DEVICE u32x4 load16_if(const bf16 *p, bool there) {
    u32x4 v = {0, 0, 0, 0};
    if (there) v = load16(p);
    return v;
}
APR_DEVICE u32x2 load8_if(const bf16 *p, bool there) {
    u32x2 v = {0, 0};
    if (there) v = *(const u32x2 *)p;
    return v;
}
// halves joins element e of a pair of words in both.
APR_DEVICE u32 halves(u32 x, u32 y, int e) { return byte_perm(x, y, e & 1 ? 0x7632 : 0x5410); }

// factor takes 8·NT columns of A or B from c on: of n-tile j column NT·g + j, of 32 of the rank 8 in 4 words.
template <int NT, int K, bool A> APR_DEVICE void factor(u32x4 (&b)[NT][K], const ThinPart &p, u32 c) {
    const u32 g = lane() >> 2, t = lane() & 3;
    UNROLL for (int k = 0; k < K; k++) {
        const u32 at = 32 * k + 8 * t;
        if constexpr (!A) {
            UNROLL for (int j = 0; j < NT; j++) {
                const u32 row = c + NT * g + j;
                b[j][k] = load16_if(p.w + row * p.w_stride + at, row < p.cols && at < p.rank);
            }
        } else {
            static_assert(NT == 8, "a lane has 8 columns of a row");
            u32x4 v[8];
            UNROLL for (int i = 0; i < 8; i++) v[i] = load16_if(p.w + (at + i) * p.w_stride + c + 8 * g, at < p.rank && c + 8 * g < p.cols);
            UNROLL for (int j = 0; j < 8; j++)
                UNROLL for (int h = 0; h < 4; h++) b[j][k][h] = halves(v[2 * h][j / 2], v[2 * h + 1][j / 2], j);
        }
    }
}

// times_factor adds u·factor for rows row and row+8 of the lane, u beginning at the part's columns. Value v of n-tile j is of row
// row + 8·(v/2) and column 2·NT·t + NT·(v%2) + j.
template <int NT, int K> APR_DEVICE void times_factor(float (&acc)[NT][4], const u32x4 (&b)[NT][K], const bf16 *u, i64 stride, u32 row, u32 end, u32 rank) {
    const u32 t = lane() & 3;
    UNROLL for (int k = 0; k < K; k++) {
        const u32 at = 32 * k + 8 * t;
        const u32x4 x = load16_if(u + row * stride + at, row < end && at < rank), y = load16_if(u + (row + 8) * stride + at, row + 8 < end && at < rank);
        UNROLL for (int h = 0; h < 2; h++) {
            const u32 rows[4] = {x[2 * h], y[2 * h], x[2 * h + 1], y[2 * h + 1]};
            UNROLL for (int j = 0; j < NT; j++) mma_bf16(acc[j], rows, b[j][k][2 * h], b[j][k][2 * h + 1]);
        }
    }
}

// plus adds a sum times a scale to 8 values; one of nothing but zeros leaves also −0 as it is.
APR_DEVICE Pack<bf16, 8> plus(const u32x4 &old, const float (&sum)[8], float scale) {
    Pack<bf16, 8> r = {old};
    float y[8];
    widen(y, r);
    UNROLL for (int e = 0; e < 8; e++) {
        const float s = mul_rn(sum[e], scale);
        y[e] += s == 0.0f ? -0.0f : s;
    }
    narrow(r, y);
    return r;
}

// y (+)= scale·u·factor. A warp has 64 columns of y, a unit, whose factor stays in registers, and a block the rows of one y of the grid.
template <int K, bool A> APR_DEVICE void thin_up(const ThinArgs &a) {
    const u32 unit = block() * (threads() / 32) + warp(), g = lane() >> 2, t = lane() & 3;
    if (unit >= a.units) return;
    const ThinPart p = thin_part(a, unit);
    const u32 c = (unit - p.first) * 64, end = (u32)min_of(a.rows, (i64)(block_y() + 1) * a.each);
    u32x4 b[8][K];
    factor<8, K, A>(b, p, c);
    NO_UNROLL for (u32 row = block_y() * a.each + g; row - g < end; row += 16) {
        bf16 *y = a.wide + row * a.wide_stride + p.lo + c + 16 * t;
        u32x4 old[2][2];
        UNROLL for (int h = 0; h < 2; h++)
            UNROLL for (int i = 0; i < 2; i++)
                old[h][i] = load16_if(y + 8 * h * a.wide_stride + 8 * i, a.add && row + 8 * h < end && c + 16 * t + 8 * i < p.cols);
        float acc[8][4] = {};
        times_factor<8, K>(acc, b, a.thin + p.from, a.thin_stride, row, end, p.rank);
        UNROLL for (int h = 0; h < 2; h++)
            UNROLL for (int i = 0; i < 2; i++) {
                float sum[8];
                UNROLL for (int e = 0; e < 8; e++) sum[e] = acc[e][2 * h + i];
                if (row + 8 * h < end && c + 16 * t + 8 * i < p.cols) store_pack(y + 8 * h * a.wide_stride + 8 * i, plus(old[h][i], sum, p.scale));
            }
    }
}

KERNEL(thin_up_b_1, ThinArgs, 128, 4) { thin_up<1, false>(a); }
KERNEL(thin_up_b_2, ThinArgs, 128, 3) { thin_up<2, false>(a); }
KERNEL(thin_up_b_3, ThinArgs, 128, 2) { thin_up<3, false>(a); }
KERNEL(thin_up_b_4, ThinArgs, 128, 2) { thin_up<4, false>(a); }
KERNEL(thin_up_a_1, ThinArgs, 128, 4) { thin_up<1, true>(a); }
KERNEL(thin_up_a_2, ThinArgs, 128, 3) { thin_up<2, true>(a); }
KERNEL(thin_up_a_3, ThinArgs, 128, 2) { thin_up<3, true>(a); }
KERNEL(thin_up_a_4, ThinArgs, 128, 2) { thin_up<4, true>(a); }

// The same of gate and up, parts 0 and 1, of which one may have no rank, and gated = act(g)·u of both as stored. A warp has 32 columns
// of each.
template <int K, class Act> APR_DEVICE void thin_glu(const ThinArgs &a) {
    const u32 unit = block() * (threads() / 32) + warp(), g = lane() >> 2, t = lane() & 3;
    if (unit >= a.units) return;
    const u32 c = unit * 32, end = (u32)min_of(a.rows, (i64)(block_y() + 1) * a.each);
    u32x4 b[2][4][K];
    UNROLL for (int q = 0; q < 2; q++) factor<4, K, false>(b[q], a.part[q], c);
    NO_UNROLL for (u32 row = block_y() * a.each + g; row - g < end; row += 16) {
        u32x4 old[2][2];
        bf16 *y[2];
        UNROLL for (int q = 0; q < 2; q++) {
            y[q] = a.wide + row * a.wide_stride + a.part[q].lo + c + 8 * t;
            UNROLL for (int h = 0; h < 2; h++) old[q][h] = load16_if(y[q] + 8 * h * a.wide_stride, row + 8 * h < end && c + 8 * t < a.part[0].cols);
        }
        float acc[2][4][4] = {};
        UNROLL for (int q = 0; q < 2; q++)
            times_factor<4, K>(acc[q], b[q], a.thin + a.part[q].from, a.thin_stride, row, end, a.part[q].rank);
        UNROLL for (int h = 0; h < 2; h++) {
            float x[2][8];
            UNROLL for (int q = 0; q < 2; q++) {
                UNROLL for (int e = 0; e < 8; e++) x[q][e] = acc[q][e % 4][2 * h + e / 4];
                const Pack<bf16, 8> r = plus(old[q][h], x[q], a.part[q].scale);
                widen(x[q], r);
                if (row + 8 * h < end && c + 8 * t < a.part[0].cols) store_pack(y[q] + 8 * h * a.wide_stride, r);
            }
            Pack<bf16, 8> m;
            UNROLL for (int e = 0; e < 8; e++) x[1][e] = Act::template gated<bf16>(x[0][e], x[1][e]);
            narrow(m, x[1]);
            if (row + 8 * h < end && c + 8 * t < a.part[0].cols) store_pack(a.gated + (row + 8 * h) * a.gated_stride + c + 8 * t, m);
        }
    }
}

KERNEL(thin_swiglu_1, ThinArgs, 128, 4) { thin_glu<1, SiLU>(a); }
KERNEL(thin_swiglu_2, ThinArgs, 128, 3) { thin_glu<2, SiLU>(a); }
KERNEL(thin_geglu_1, ThinArgs, 128, 4) { thin_glu<1, GELUTanh>(a); }
KERNEL(thin_geglu_2, ThinArgs, 128, 3) { thin_glu<2, GELUTanh>(a); }

// sum_warps gives warp 0 the sums of all 8 warps, in the order of a tree. part holds 4·2048 values.
APR_DEVICE void sum_warps(float (&acc)[4][4][4], float *part) {
    UNROLL for (u32 n = 4; n; n >>= 1) {
        if (warp() >= n && warp() < 2 * n)
            UNROLL for (int i = 0; i < 64; i++) part[(warp() - n) * 2048 + 32 * i + lane()] = acc[i >> 4][i >> 2 & 3][i & 3];
        sync_block();
        if (warp() < n)
            UNROLL for (int i = 0; i < 64; i++) acc[i >> 4][i >> 2 & 3][i & 3] += part[warp() * 2048 + 32 * i + lane()];
        sync_block();
    }
}

// u = scale·x·factor. A block has 64 rows and 32 columns of u, a unit of the grid's x; its 8 warps have columns of x in turns.
template <bool A> APR_DEVICE void thin_down(const ThinArgs &a) {
    SHARED(float, part, 4 * 2048);
    const u32 g = lane() >> 2, t = lane() & 3;
    const ThinPart p = thin_part(a, block());
    const u32 r = (block() - p.first) * 32, row = block_y() * 64 + g;
    float acc[4][4][4] = {};
    NO_UNROLL for (u32 k = 32 * warp(); k < p.cols; k += 256) {
        const u32 at = k + 8 * t;
        const bf16 *x = a.wide + row * a.wide_stride + p.lo + at;
        u32x4 v[4][2], b[4];
        UNROLL for (int i = 0; i < 4; i++)
            UNROLL for (int h = 0; h < 2; h++) v[i][h] = load16_if(x + (16 * i + 8 * h) * a.wide_stride, row + 16 * i + 8 * h < a.rows && at < p.cols);
        if constexpr (A) {
            UNROLL for (u32 j = 0; j < 4; j++) b[j] = load16_if(p.w + (r + 4 * g + j) * p.w_stride + at, r + 4 * g < p.rank && at < p.cols);
        } else {
            u32x2 w[8];
            UNROLL for (int i = 0; i < 8; i++) w[i] = load8_if(p.w + (at + i) * p.w_stride + r + 4 * g, r + 4 * g < p.rank && at < p.cols);
            UNROLL for (int j = 0; j < 4; j++)
                UNROLL for (int h = 0; h < 4; h++) b[j][h] = halves(w[2 * h][j / 2], w[2 * h + 1][j / 2], j);
        }
        UNROLL for (int h = 0; h < 2; h++)
            UNROLL for (int i = 0; i < 4; i++) {
                const u32 rows[4] = {v[i][0][2 * h], v[i][1][2 * h], v[i][0][2 * h + 1], v[i][1][2 * h + 1]};
                UNROLL for (int j = 0; j < 4; j++) mma_bf16(acc[i][j], rows, b[j][2 * h], b[j][2 * h + 1]);
            }
    }
    sum_warps(acc, part);
    if (warp() > 0 || r + 8 * t >= p.rank) return;
    UNROLL for (int i = 0; i < 4; i++)
        UNROLL for (int h = 0; h < 2; h++) {
            Pack<bf16, 8> y;
            float sum[8];
            UNROLL for (int e = 0; e < 8; e++) sum[e] = acc[i][e % 4][2 * h + e / 4] * p.scale;
            narrow(y, sum);
            if (row + 16 * i + 8 * h < a.rows) store_pack(a.thin + (row + 16 * i + 8 * h) * a.thin_stride + p.from + r + 8 * t, y);
        }
}

KERNEL(thin_down_a, ThinArgs, 256, 2) { thin_down<true>(a); }
KERNEL(thin_down_b, ThinArgs, 256, 2) { thin_down<false>(a); }

// wideᵀ·thin of 64 columns of the wide matrix and 32 of the thin one, a unit, and of the rows of one y of the grid, which the 8 warps have
// 16 at a time. Sums go to scratch.
KERNEL(thin_grad, ThinArgs, 256, 2) {
    SHARED(float, part, 4 * 2048);
    const u32 g = lane() >> 2, t = lane() & 3;
    const ThinPart p = thin_part(a, block());
    const u32 c = (block() - p.first) / p.chunks * 64 + 8 * g, r = (block() - p.first) % p.chunks * 32 + 4 * g;
    const u32 end = (u32)min_of(a.rows, (i64)(block_y() + 1) * a.each);
    float acc[4][4][4] = {};
    NO_UNROLL for (u32 from = block_y() * a.each + 16 * warp(); from < end; from += 128) {
        u32x4 x[4];
        u32x2 u[4];
        UNROLL for (u32 i = 0; i < 4; i++) {
            const u32 row = from + 4 * t + i;
            x[i] = load16_if(a.wide + row * a.wide_stride + p.lo + c, row < end && c < p.cols);
            u[i] = load8_if(a.thin + row * a.thin_stride + p.from + r, row < end && r < p.rank);
        }
        u32 b[4][2];
        UNROLL for (int j = 0; j < 4; j++)
            UNROLL for (int h = 0; h < 2; h++) b[j][h] = halves(u[2 * h][j / 2], u[2 * h + 1][j / 2], j);
        UNROLL for (int i = 0; i < 4; i++) { // its rows g and g+8 are columns 8g + 2i and the next
            const u32 rows[4] = {halves(x[0][i], x[1][i], 0), halves(x[0][i], x[1][i], 1), halves(x[2][i], x[3][i], 0), halves(x[2][i], x[3][i], 1)};
            UNROLL for (int j = 0; j < 4; j++) mma_bf16(acc[i][j], rows, b[j][0], b[j][1]);
        }
    }
    sum_warps(acc, part);
    if (warp() > 0) return;
    float *sums = a.sums + ((u64)block_y() * a.units + block()) * 2048 + lane();
    UNROLL for (int i = 0; i < 64; i++) sums[32 * i] = acc[i >> 4][i >> 2 & 3][i & 3];
}

// The sums of a unit, added in order, times the scale: to the gradient of B, or of A.
template <bool A> APR_DEVICE void thin_join(const ThinArgs &a) {
    const ThinPart p = thin_part(a, block());
    const u32 c = (block() - p.first) / p.chunks * 64, r = (block() - p.first) % p.chunks * 32;
    NO_UNROLL for (u32 at = thread(); at < 2048; at += threads()) {
        const u32 l = at & 31, v = at >> 5 & 3, j = at >> 7 & 3, i = at >> 9;
        const u32 col = c + 8 * (l >> 2) + 2 * i + (v >> 1), rank = r + 4 * (2 * (l & 3) + (v & 1)) + j;
        if (col >= p.cols || rank >= p.rank) continue;
        float sum = 0;
        for (u32 s = 0; s < a.splits; s++) sum += a.sums[((u64)s * a.units + block()) * 2048 + at];
        float *d = p.d + (A ? rank * p.d_stride + col : col * p.d_stride + rank);
        sum *= p.scale;
        *d = p.add ? *d + sum : sum;
    }
}

KERNEL(thin_join_a, ThinArgs, 256, 4) { thin_join<true>(a); }
KERNEL(thin_join_b, ThinArgs, 256, 4) { thin_join<false>(a); }
