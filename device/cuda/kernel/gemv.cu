// Products of few rows of bfloat16 with a matrix.
#include "gemv.cuh"

// Scales of one row of a span of Q4_K or Q5_K, of four groups in a word.
struct RowScales {
    u32 sc[2], m[2];
    float d, dmin;
    APR_METHOD RowScales(u32x4 head) {
        sc[0] = head[1] & 0x3f3f3f3fu;
        m[0] = head[2] & 0x3f3f3f3fu;
        sc[1] = (head[3] & 0x0f0f0f0fu) | (head[1] >> 2 & 0x30303030u);
        m[1] = (head[3] >> 4 & 0x0f0f0f0fu) | (head[2] >> 2 & 0x30303030u);
        d = from_f16((u16)head[0]);
        dmin = from_f16((u16)(head[0] >> 16));
    }
    APR_METHOD float s(u32 j) const { return mul_rn(d, number(sc[j >> 2], j)); }
    APR_METHOD float off(u32 j) const { return mul_rn(dmin, number(m[j >> 2], j)); }
    APR_METHOD static float number(u32 w, u32 j) { return from_bits(byte_perm(w, 0x4b000000u, 0x7440 + (j & 3))) - 8388608.0f; }
};

// pairs converts codes below 128, one in each half of w, to bfloat16: 128 + q has q in its mantissa.
APR_DEVICE u32 pairs(u32 w) { return fma_bf16(w | 0x43004300u, 0x3f803f80u, 0xc300c300u); }

// TileRow is what a lane holds of one row of W in a span.
template <class B> struct TileRow {
    u32x4 head;
    B b[8];
    APR_METHOD void load(const u8 *p, u32 t) {
        head = load16(p);
        UNROLL for (u32 j = 0; j < 8; j++) b[j].load(p, 4 * j + t);
    }
};

// A block computes 16 columns of y for up to 8 tokens, with tensor cores: a matrix of 16 rows of W by 16 codes, times 16
// values of x by 8 tokens. Lane 4g+t has rows g and g+8 of W, values [8t, 8t+8) of a group of 32 values, as they stand in
// its block, and token g. What is the fragments' column does not matter as long as W and x agree: codes 0 and 2 of four
// are one pair, 1 and 3 the other. Codes are exact in bfloat16, so
//
//     y += s·(Σ q·x) − off·(Σ x)
//
// has the rounding of float32 sums alone; Σ x is a product with a matrix of ones. Warp w has spans w, w + warps, …, and
// the warps' sums are added in ascending order. With AHEAD the next span is on its way while one is computed, which takes
// more registers than Q5_K has.
template <class B, bool AHEAD> APR_DEVICE void gemv_tile(const GemvArgs &a) {
    SHARED(float, part, 8 * 128);
    const u32 g = lane() >> 2, t = lane() & 3, warps = threads() / 32, spans = a.cols / 256;
    const u8 *p[2];
    UNROLL for (u32 i = 0; i < 2; i++) p[i] = a.w + min_of(block() * 16 + g + 8 * i, a.rows - 1) * a.w_stride;
    const bf16 *x = (const bf16 *)a.x + (g < a.tokens ? g : 0) * a.x_stride + 8 * t;
    float sum[4] = {};
    TileRow<B> row[2], next[2];
    UNROLL for (int i = 0; i < 2; i++)
        if (AHEAD && warp() < spans) next[i].load(p[i] + warp() * B::bytes, t);
    NO_UNROLL for (u32 span = warp(); span < spans; span += warps) {
        UNROLL for (int i = 0; i < 2; i++) {
            const u8 *at = p[i] + (u64)span * B::bytes;
            if (!AHEAD) row[i].load(at, t);
            else row[i] = next[i];
            if (AHEAD && span + warps < spans) next[i].load(at + warps * B::bytes, t);
        }
        const RowScales r0(row[0].head), r1(row[1].head);
        UNROLL for (u32 j = 0; j < 8; j++) {
            u32x4 v = {};
            if (g < a.tokens) v = load16(x + span * 256 + 32 * j);
            const u32 lo0 = byte_perm(v[0], v[1], 0x5410), lo1 = byte_perm(v[0], v[1], 0x7632);
            const u32 hi0 = byte_perm(v[2], v[3], 0x5410), hi1 = byte_perm(v[2], v[3], 0x7632);
            const u32x2 w0 = row[0].b[j].words(4 * j + t), w1 = row[1].b[j].words(4 * j + t);
            const u32 lo[4] = {pairs(w0[0] & 0x00ff00ffu), pairs(w1[0] & 0x00ff00ffu), pairs(w0[0] >> 8 & 0x00ff00ffu), pairs(w1[0] >> 8 & 0x00ff00ffu)};
            const u32 hi[4] = {pairs(w0[1] & 0x00ff00ffu), pairs(w1[1] & 0x00ff00ffu), pairs(w0[1] >> 8 & 0x00ff00ffu), pairs(w1[1] >> 8 & 0x00ff00ffu)};
            const u32 ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
            float qx[4] = {}, ex[4] = {};
            mma_bf16(qx, lo, lo0, lo1);
            mma_bf16(qx, hi, hi0, hi1);
            mma_bf16(ex, ones, lo0, lo1);
            mma_bf16(ex, ones, hi0, hi1);
            const float s0 = r0.s(j), s1 = r1.s(j), m0 = -r0.off(j), m1 = -r1.off(j);
            UNROLL for (int c = 0; c < 2; c++) {
                sum[c] = fma_rn(m0, ex[c], fma_rn(s0, qx[c], sum[c]));
                sum[2 + c] = fma_rn(m1, ex[2 + c], fma_rn(s1, qx[2 + c], sum[2 + c]));
            }
        }
    }
    UNROLL for (u32 c = 0; c < 4; c++) part[warp() * 128 + c * 32 + lane()] = sum[c];
    sync_block();
    for (u32 e = thread(); e < 128; e += threads()) {
        const u32 l = e & 31, c = e >> 5, row = block() * 16 + (l >> 2) + 8 * (c >> 1), token = 2 * (l & 3) + (c & 1);
        float s = part[e];
        for (u32 w = 1; w < warps; w++) s += part[w * 128 + e];
        if (row < a.rows && token < a.tokens) finish_one(a, row, token, s);
    }
}

KERNEL(gemv_q4_k_tile, GemvArgs, 256, 2) { gemv_tile<BlockQ4K, true>(a); }
KERNEL(gemv_q5_k_tile, GemvArgs, 256, 2) { gemv_tile<BlockQ5K, false>(a); }

#define GEMV(type, B) \
    KERNEL(gemv_##type##_bf16_1, GemvArgs, 256, 3) { gemv<B, bf16, 1>(a); } \
    KERNEL(gemv_##type##_bf16_8, GemvArgs, 256, 2) { gemv<B, bf16, 8>(a); }

GEMV(q6_k, BlockQ6K)
GEMV(q8_0, BlockQ8_0)
GEMV(q4_0, BlockQ4_0)
GEMV(q5_0, BlockQ5_0)
GEMV(bf16, Plain<bf16>)
GEMV(f32, Plain<float>)

KERNEL(gemv_bf16_bf16_any, GemvArgs, 256, 4) { gemv_elements<bf16, bf16>(a); }
KERNEL(gemv_f32_bf16_any, GemvArgs, 256, 4) { gemv_elements<float, bf16>(a); }
