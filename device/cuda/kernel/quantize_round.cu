// Weights to the blocks that a file will hold, under the scales that the blocks have, and to the values that these
// decode to: quant.Round and quant.Dequantize, bit for bit. A warp has 256 values, lane l those from 8l on. Also the
// power of two that MXFP4 begins with, and rows of floats.
//
// Bytes moved per value of Q4_K beside bfloat16 products: 10.6 = 4 read; 0.56, 4 and 2 written; scales, 0.06, read.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "quantize.cuh"

enum { THREADS = 256, SEARCH = 128, FAULT_WEIGHT = 5 };

struct RoundArgs {
    const float *x;
    u8 *stored;
    float *rounded;
    bf16 *copy; // of rounded, or 0
    Record *record;
    u64 n;          // values
    i64 first, name; // number of the first value in its parameter; what tells the parameter
    u32 asked;      // whether the verdict is
};

static_assert(sizeof(RoundArgs) == 72, "as in quantize.go");

// Span are the values of a lane.
struct Span {
    u32 l, j, p; // lane; group of 32, quarter of it
    u8 *b;       // the block
    float x[8];
    u32 lo, hi; // codes, a byte each
    APR_METHOD void set(int i, int q) { (i < 4 ? lo : hi) |= (u32)q << 8 * (i & 3); }
};

// Scale rounds x to multiples of s, from least to least+most of them, less off; s and off are once what the codes are
// found with, once what they are decoded with.
struct Scale {
    double inv, low;
    float s, off;
    APR_METHOD void affine(u32 d, u32 sc, u32 dmin, u32 m) {
        inv = inverse(half_value(d) * small((int)sc));
        low = half_value(dmin) * small((int)m);
        s = mul_rn(from_f16((u16)d), (float)sc);
        off = mul_rn(from_f16((u16)dmin), (float)m);
    }
    APR_METHOD void symmetric(u32 d, int sc) {
        inv = inverse(half_value(d) * (double)sc);
        low = 0;
        s = mul_rn(from_f16((u16)d), (float)sc);
        off = 0;
    }
    APR_METHOD void affine_codes(Span &v, int most) const {
        UNROLL for (int i = 0; i < 8; i++) {
            const int q = rounded(mul_rn(inv, (double)v.x[i] + low), 0.5, most);
            v.set(i, q);
            v.x[i] = mul_rn(s, (float)q) - off;
        }
    }
    APR_METHOD void symmetric_codes(Span &v, int least, int most) const {
        UNROLL for (int i = 0; i < 8; i++) {
            const int q = rounded(mul_rn(inv, (double)v.x[i]), 0.5 - (double)least, most);
            v.set(i, q);
            v.x[i] = mul_rn(s, (float)(q + least));
        }
    }
};

// put writes eight bytes.
APR_DEVICE void put(u8 *to, u32 lo, u32 hi) {
    put_word(to, lo);
    put_word(to + 4, hi);
}

// join ORs what the lanes have whose numbers differ in the bits of `lanes`.
APR_DEVICE void join(u32 &lo, u32 &hi, int lanes) {
    UNROLL for (int m = 1; m < 32; m <<= 1)
        if (lanes & m) lo |= shfl_xor(lo, m), hi |= shfl_xor(hi, m);
}

// put_nibbles writes the lower four bits of this lane's codes and, above them, those of the lane whose number differs
// by `lanes`.
APR_DEVICE void put_nibbles(const Span &v, u8 *to, int lanes, bool write) {
    const u32 lo = v.lo & 0x0f0f0f0fu, hi = v.hi & 0x0f0f0f0fu, up_lo = shfl_xor(lo, lanes), up_hi = shfl_xor(hi, lanes);
    if (write && (v.l & (u32)lanes) == 0) put(to, lo | up_lo << 4, hi | up_hi << 4);
}

// Each type has: bytes of a span of 256; codes, which sets codes and decoded values; and store, in which all lanes take
// part.

template <int TOP> struct AffineK { // Q4_K and Q5_K
    static constexpr u32 bytes = TOP == 15 ? 144 : 176, block = 256;
    APR_METHOD static void codes(Span &v) {
        const u32x4 head = load16_any(v.b);
        const u32 shift = 8 * (v.j & 3), a = head[1] >> shift, b = head[2] >> shift, c = head[3] >> shift;
        const u32 sc = v.j < 4 ? a & 63 : (c & 15) | (a >> 2 & 0x30), m = v.j < 4 ? b & 63 : (c >> 4 & 15) | (b >> 2 & 0x30);
        Scale s;
        s.affine(head[0] & 0xffff, sc, head[0] >> 16, m);
        s.affine_codes(v, TOP);
    }
    APR_METHOD static void store(const Span &v, bool write) {
        if (TOP == 31) {
            u32 lo = (v.lo >> 4 & 0x01010101u) << v.j, hi = (v.hi >> 4 & 0x01010101u) << v.j;
            join(lo, hi, 4 | 8 | 16);
            if (write && v.j == 0) put(v.b + 16 + 8 * v.p, lo, hi);
        }
        put_nibbles(v, v.b + bytes - 128 + 32 * (v.j >> 1) + 8 * v.p, 4, write);
    }
};

struct TypeQ6K {
    static constexpr u32 bytes = 210, block = 256;
    APR_METHOD static void codes(Span &v) {
        Scale s;
        s.symmetric(half_at(v.b + 208), (signed char)v.b[192 + (v.l >> 1)]);
        s.symmetric_codes(v, -32, 63);
    }
    APR_METHOD static void store(const Span &v, bool write) {
        const u32 h = v.j >> 2, k = v.j & 3;
        u32 lo = (v.lo >> 4) << 2 * k, hi = (v.hi >> 4) << 2 * k; // codes are below 64: their upper two bits
        lo &= 0x03030303u << 2 * k;
        hi &= 0x03030303u << 2 * k;
        join(lo, hi, 4 | 8);
        if (write && k == 0) put(v.b + 128 + 32 * h + 8 * v.p, lo, hi);
        put_nibbles(v, v.b + 64 * h + 32 * (k & 1) + 8 * v.p, 8, write);
    }
};

// put_pairs writes the lower two bits of codes, those of four groups of 32 to a byte.
APR_DEVICE void put_pairs(const Span &v, u8 *to, bool write) {
    const u32 shift = 2 * (v.j & 3);
    u32 lo = (v.lo & 0x03030303u) << shift, hi = (v.hi & 0x03030303u) << shift;
    join(lo, hi, 4 | 8);
    if (write && (v.j & 3) == 0) put(to + 32 * (v.j >> 2) + 8 * v.p, lo, hi);
}

struct TypeQ2K {
    static constexpr u32 bytes = 84, block = 256;
    APR_METHOD static void codes(Span &v) {
        const u32 both = v.b[v.l >> 1];
        Scale s;
        s.affine(half_at(v.b + 80), both & 15, half_at(v.b + 82), both >> 4);
        s.affine_codes(v, 3);
    }
    APR_METHOD static void store(const Span &v, bool write) { put_pairs(v, v.b + 16, write); }
};

struct TypeQ3K {
    static constexpr u32 bytes = 110, block = 256;
    APR_METHOD static void codes(Span &v) {
        const u32 g = v.l >> 1, low = v.b[96 + (g & 7)] >> 4 * (g >> 3) & 15, high = v.b[104 + (g & 3)] >> 2 * (g >> 2) & 3;
        Scale s;
        s.symmetric(half_at(v.b + 108), (int)(low | high << 4) - 32);
        s.symmetric_codes(v, -4, 7);
    }
    APR_METHOD static void store(const Span &v, bool write) {
        u32 lo = (v.lo >> 2 & 0x01010101u) << v.j, hi = (v.hi >> 2 & 0x01010101u) << v.j;
        join(lo, hi, 4 | 8 | 16);
        if (write && v.j == 0) put(v.b + 8 * v.p, lo, hi);
        put_pairs(v, v.b + 32, write);
    }
};

struct TypeQ8_0 {
    static constexpr u32 bytes = 34, block = 32;
    APR_METHOD static void codes(Span &v) {
        Scale s;
        s.symmetric(half_at(v.b), 1);
        s.symmetric_codes(v, -127, 254);
    }
    APR_METHOD static void store(const Span &v, bool write) {
        u32 lo = 0, hi = 0;
        UNROLL for (int i = 0; i < 4; i++) {
            lo |= ((v.lo >> 8 * i & 255) - 127 & 255) << 8 * i;
            hi |= ((v.hi >> 8 * i & 255) - 127 & 255) << 8 * i;
        }
        if (write) put(v.b + 2 + 8 * v.p, lo, hi);
    }
};

struct TypeQ4_0 {
    static constexpr u32 bytes = 18, block = 32;
    APR_METHOD static void codes(Span &v) {
        Scale s;
        s.symmetric(half_at(v.b), 1);
        s.symmetric_codes(v, -8, 15);
    }
    APR_METHOD static void store(const Span &v, bool write) { put_nibbles(v, v.b + 2 + 8 * v.p, 2, write); }
};

struct TypeQ5_0 {
    static constexpr u32 bytes = 22, block = 32;
    APR_METHOD static void codes(Span &v) {
        Scale s;
        s.symmetric(half_at(v.b), 1);
        s.symmetric_codes(v, -16, 31);
    }
    APR_METHOD static void store(const Span &v, bool write) {
        u32 fifth = 0;
        UNROLL for (int i = 0; i < 4; i++) fifth |= (v.lo >> (8 * i + 4) & 1) << i | (v.hi >> (8 * i + 4) & 1) << (4 + i);
        if (write) v.b[2 + v.p] = (u8)fifth;
        put_nibbles(v, v.b + 6 + 8 * v.p, 2, write);
    }
};

struct TypeIQ4NL {
    static constexpr u32 bytes = 18, block = 32;
    APR_METHOD static void codes(Span &v) {
        const u32 d = half_at(v.b);
        const double inv = inverse(half_value(d));
        UNROLL for (int i = 0; i < 8; i++) {
            const int q = code_iq4(mul_rn(inv, (double)v.x[i]));
            v.set(i, q);
            v.x[i] = mul_rn(from_f16((u16)d), (float)value_iq4(q));
        }
    }
    APR_METHOD static void store(const Span &v, bool write) { put_nibbles(v, v.b + 2 + 8 * v.p, 2, write); }
};

// scale_mxfp4 computes 2^(e−128), which the doubled floats of a block with scale e are multiplied by.
APR_DEVICE float scale_mxfp4(u32 e) { return from_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23); }

// twice_fp4 returns twice the float of a code: 0, 1, 2, 3, 4, 6, 8, 12, then their negatives.
APR_DEVICE float twice_fp4(int code) {
    const int v = (int)(0xc8643210u >> 4 * (code & 7) & 15);
    return (float)(code & 8 ? -v : v);
}

struct TypeMXFP4 {
    static constexpr u32 bytes = 17, block = 32;
    APR_METHOD static void codes(Span &v) {
        const float d = scale_mxfp4(v.b[0]);
        UNROLL for (int i = 0; i < 8; i++) {
            float least = INFINITY_F;
            int code = 0;
            UNROLL for (int c = 0; c < 16; c++) {
                const float off = __builtin_fabsf(mul_rn(twice_fp4(c), d) - v.x[i]);
                if (off < least) least = off, code = c;
            }
            v.set(i, code);
            v.x[i] = mul_rn(twice_fp4(code), d);
        }
    }
    APR_METHOD static void store(const Span &v, bool write) { put_nibbles(v, v.b + 1 + 8 * v.p, 2, write); }
};

APR_DEVICE void write(const RoundArgs &a, u64 at, const float (&x)[8]) {
    Pack<float, 8> all;
    narrow(all, x);
    store_pack(a.rounded + at, all);
    if (!a.copy) return;
    Pack<bf16, 8> half;
    narrow(half, x);
    store_pack(a.copy + at, half);
}

template <class T> APR_DEVICE void round_blocks(const RoundArgs &a) {
    if (a.asked && refused(a.record)) return;
    const u64 span = (u64)block() * (THREADS / 32) + warp(), at = span * 256 + 8 * lane();
    const bool mine = at < a.n;
    Span v = {lane(), lane() >> 2, lane() & 3, a.stored, {0, 0, 0, 0, 0, 0, 0, 0}, 0, 0};
    v.b += (mine ? at : 0) / T::block * T::bytes;
    bool ok = mine;
    if (mine) {
        Pack<float, 8> all;
        load_pack(all, a.x + at);
        widen(v.x, all);
        UNROLL for (int i = 0; i < 8; i++) {
            if (usable(v.x[i])) continue;
            first_fault(a.record, FAULT_WEIGHT, a.first + (i64)at + i, a.name);
            ok = false;
        }
    }
    if (ballot(mine && !ok)) return; // of the whole span nothing is written
    if (ok) T::codes(v);
    T::store(v, ok);
    if (ok) write(a, at, v.x);
}

#define ROUND(type, T) KERNEL(quantize_round_##type, RoundArgs, THREADS, 4) { round_blocks<T>(a); }

ROUND(q4_k, AffineK<15>)
ROUND(q5_k, AffineK<31>)
ROUND(q6_k, TypeQ6K)
ROUND(q2_k, TypeQ2K)
ROUND(q3_k, TypeQ3K)
ROUND(q8_0, TypeQ8_0)
ROUND(q4_0, TypeQ4_0)
ROUND(q5_0, TypeQ5_0)
ROUND(iq4_nl, TypeIQ4NL)
ROUND(mxfp4, TypeMXFP4)

// MXFP4's scale is 2^(⌊log₂ max|x|⌋ − 2), the logarithm rounded to float32 first: just below a power of two 2^k it is
// k. Below that, floats are 2^(k−24) apart and logarithms 1/ln 2 times 2^−24 for each, so that ⌊ln 2·2^m⌋ of them round
// up, 2^(m−24) being half the distance of the floats just below k if k > 0, just above |k| if not.
KERNEL(quantize_search_mxfp4, SearchArgs, SEARCH, 8) {
    const u32 at = block() * SEARCH + thread();
    if (refused(a.record) || at >= a.blocks) return;
    float most = 0;
    NO_UNROLL for (int i = 0; i < 32; i += 4) {
        const f32x4 v = __builtin_bit_cast(f32x4, load16(a.x + (u64)at * 32 + i));
        UNROLL for (int k = 0; k < 4; k++) {
            if (!usable(v[k])) return;
            most = max2(most, __builtin_fabsf(v[k]));
        }
    }
    int e = 0;
    if (bits(most) >= 0x01000000u) { // below 2^−125 the scale is the least one
        const int above = (int)(bits(most) >> 23) - 126, size = above < 0 ? -above : above; // k, |k|
        int m = -1;
        if (size > 0) m = 31 - (int)leading_zeros((u32)size) - (above > 0 && (size & (size - 1)) == 0);
        const u32 missing = 0x800000u - (bits(most) & 0x7fffffu);
        const u32 near = m < 0 ? 0 : (u32)(0.6931471805599453 * (double)(1 << m));
        e = above - (missing > near) - 2 + 127;
    }
    a.stored[(u64)at * 17] = (u8)clamp(e, 0, 254);
}

// Rows of floats.
template <class Narrow> APR_DEVICE void round_floats(const RoundArgs &a, Narrow narrowed) {
    if (a.asked && refused(a.record)) return;
    const u64 at = (u64)block() * THREADS + thread();
    if (at >= a.n) return;
    const float x = narrowed(at, a.x[at]);
    a.rounded[at] = x;
    if (a.copy) a.copy[at] = to_bf16(x);
}

KERNEL(quantize_round_f32, RoundArgs, THREADS, 4) {
    round_floats(a, [&](u64 at, float x) { put_word(a.stored + 4 * at, bits(x)); return x; });
}
KERNEL(quantize_round_bf16, RoundArgs, THREADS, 4) {
    round_floats(a, [&](u64 at, float x) { const bf16 v = to_bf16(x); put_half(a.stored + 2 * at, v); return from_bf16(v); });
}
KERNEL(quantize_round_f16, RoundArgs, THREADS, 4) {
    round_floats(a, [&](u64 at, float x) { const u16 v = to_f16(x); put_half(a.stored + 2 * at, v); return from_f16(v); });
}
