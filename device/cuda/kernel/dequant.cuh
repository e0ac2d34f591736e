// Blocks of quantised weights, eight values at a time. A span is 256 consecutive values of a row: one block of Q4_K, Q5_K
// Q6_K or IQ4_XS, eight blocks of the others. Lane l of a warp has values [8l, 8l+8) of a span, which belong to one group of 32
// values, or half of one, and so share their scales: load reads what it needs of the span at p, decode computes the values.
//
//     x = s·(q − bias) − off    each operation rounded to float32
//
// STAGED says whether four spans first go to shared memory, in large units: direct reads would be many small ones.
//
// with s = d·sc and off = dmin·m in Q4_K and Q5_K; the others have no off.
#pragma once
#include "apr.cuh"

struct DequantArgs {
    void *dst;
    const u8 *src;
    float *scale;                             // of e4m3
    i64 dst_stride, src_stride, scale_stride; // elements, bytes, elements
    u32 chunks;                               // of 8 values in a row
    u32 spans, all;                           // of 256 values in a row, in all rows
    u32 per_scale;                            // chunks of a row that share a scale
};

// integer converts u < 2²³ exactly: 2²³ + u has u in its mantissa.
APR_DEVICE float integer(u32 u) { return from_bits(0x4b000000u | u) - 8388608.0f; }

// codes computes x[i] = s·(q[i] − BIAS), q[i] byte i of hi:lo.
template <int BIAS> APR_DEVICE void codes(float (&x)[8], u32 lo, u32 hi, float s) {
    UNROLL for (int i = 0; i < 8; i++) {
        const float q = from_bits(byte_perm(i < 4 ? lo : hi, 0x4b000000u, 0x7440 + (i & 3))) - (8388608.0f + BIAS);
        x[i] = mul_rn(s, q);
    }
}

// load2 returns 4 bytes at a multiple of 2.
APR_DEVICE u32 load2(const u8 *p) { return ((const u16 *)p)[0] | (u32)((const u16 *)p)[1] << 16; }

// scales_k computes s and off of group j of Q4_K or Q5_K from the block's first 16 bytes: halves d and dmin, then eight
// 6-bit sc and eight 6-bit m. Groups 0–3 have theirs in the low bits of words 1 and 2; groups 4–7 have 4 bits each in
// word 3 and the upper 2 on top of those.
APR_DEVICE void scales_k(float &s, float &off, u32x4 head, u32 j) {
    const u32 shift = 8 * (j & 3), a = head[1] >> shift, b = head[2] >> shift, c = head[3] >> shift;
    const u32 sc = j < 4 ? a & 63 : (c & 15) | (a >> 2 & 0x30);
    const u32 m = j < 4 ? b & 63 : (c >> 4 & 15) | (b >> 2 & 0x30);
    s = mul_rn(from_f16((u16)head[0]), integer(sc));
    off = mul_rn(from_f16((u16)(head[0] >> 16)), integer(m));
}

// Scales are s and off of N consecutive spans. Those of Q4_K and Q5_K take some twenty instructions: a lane computes them
// for its group in span lane%N, and the four lanes of a group exchange them.
template <int N> struct ScalesK {
    u32x4 head;
    float s, off;
    APR_METHOD void load(const u8 *p, u32 bytes, u32 l) { head = load16(p + (l & (N - 1)) * bytes); }
    APR_METHOD void prepare(u32 l) { scales_k(s, off, head, l >> 2); }
    APR_METHOD float get(float v, u32 l, int k) const { return N == 1 ? v : shfl(v, (int)((l & 28) | k)); }
};

struct BlockQ4K { // d, dmin, 12 bytes of sc and m, q[128]: groups 2k and 2k+1 are the low and high nibbles of q[32k:]
    static constexpr u32 bytes = 144;
    static constexpr bool STAGED = false;
    template <int N> using Scales = ScalesK<N>;
    u32x2 q;
    APR_METHOD void load(const u8 *p, u32 l) { q = *(const u32x2 *)(p + 16 + 32 * (l >> 3) + 8 * (l & 3)); }
    APR_METHOD u32x2 words(u32 l) const { return q >> (l & 4) & 0x0f0f0f0fu; } // eight codes of a byte
    template <int N> APR_METHOD void decode(float (&x)[8], u32 l, const ScalesK<N> &scales, int k) const {
        const float s = scales.get(scales.s, l, k), off = scales.get(scales.off, l, k);
        const u32x2 w = words(l);
        codes<0>(x, w[0], w[1], s);
        UNROLL for (int i = 0; i < 8; i++) x[i] -= off;
    }
};

struct BlockQ5K { // as Q4_K with h[32] before q: bit j of h[i] is worth 16 in value i of group j
    static constexpr u32 bytes = 176;
    static constexpr bool STAGED = false;
    template <int N> using Scales = ScalesK<N>;
    u32x2 q, h;
    APR_METHOD void load(const u8 *p, u32 l) {
        h = *(const u32x2 *)(p + 16 + 8 * (l & 3));
        q = *(const u32x2 *)(p + 48 + 32 * (l >> 3) + 8 * (l & 3));
    }
    APR_METHOD u32x2 words(u32 l) const { return (q >> (l & 4) & 0x0f0f0f0fu) | (h >> (l >> 2) & 0x01010101u) << 4; }
    template <int N> APR_METHOD void decode(float (&x)[8], u32 l, const ScalesK<N> &scales, int k) const {
        const float s = scales.get(scales.s, l, k), off = scales.get(scales.off, l, k);
        const u32x2 w = words(l);
        codes<0>(x, w[0], w[1], s);
        UNROLL for (int i = 0; i < 8; i++) x[i] -= off;
    }
};

// NoScales is Scales of the others, whose lanes read their own.
struct NoScales {
    APR_METHOD void load(const u8 *, u32, u32) {}
    APR_METHOD void prepare(u32) {}
};

// ql[128], qh[64], i8 s[16], d: group 4h+k has the nibbles (low for k < 2) of ql[64h+32(k%2):], bits 2k and 2k+1 of
// qh[32h:] on top, and a scale for each half. Blocks are 210 bytes, so that nothing but halves is aligned.
struct BlockQ6K {
    static constexpr u32 bytes = 210;
    static constexpr bool STAGED = true;
    template <int N> using Scales = NoScales;
    u32 l0, l1, h0, h1;
    u16 d;
    signed char s;
    APR_METHOD void load(const u8 *p, u32 l) {
        const u8 *ql = p + 64 * (l >> 4) + 32 * (l >> 2 & 1) + 8 * (l & 3), *qh = p + 128 + 32 * (l >> 4) + 8 * (l & 3);
        l0 = load2(ql);
        l1 = load2(ql + 4);
        h0 = load2(qh);
        h1 = load2(qh + 4);
        s = (signed char)p[192 + (l >> 1)];
        d = *(const u16 *)(p + 208);
    }
    APR_METHOD void decode(float (&x)[8], u32 l, NoScales, int) const {
        const u32 k = l >> 2 & 3, shift = 4 * (k >> 1);
        codes<32>(x, (l0 >> shift & 0x0f0f0f0fu) | (h0 >> 2 * k & 0x03030303u) << 4,
            (l1 >> shift & 0x0f0f0f0fu) | (h1 >> 2 * k & 0x03030303u) << 4,
            mul_rn(from_f16(d), integer((u32)(s + 128)) - 128.0f));
    }
};

struct BlockQ8_0 { // d, i8 q[32]
    static constexpr u32 bytes = 8 * 34;
    static constexpr bool STAGED = false;
    template <int N> using Scales = NoScales;
    u32 q0, q1;
    u16 d;
    APR_METHOD void load(const u8 *p, u32 l) {
        p += 34 * (l >> 2);
        d = *(const u16 *)p;
        q0 = load2(p + 2 + 8 * (l & 3));
        q1 = load2(p + 6 + 8 * (l & 3));
    }
    APR_METHOD void decode(float (&x)[8], u32, NoScales, int) const { codes<128>(x, q0 ^ 0x80808080u, q1 ^ 0x80808080u, from_f16(d)); }
};

struct BlockQ4_0 { // d, q[16]: values 0–15 are the low nibbles, 16–31 the high ones
    static constexpr u32 bytes = 8 * 18;
    static constexpr bool STAGED = false;
    template <int N> using Scales = NoScales;
    u32 q0, q1;
    u16 d;
    APR_METHOD void load(const u8 *p, u32 l) {
        p += 18 * (l >> 2);
        d = *(const u16 *)p;
        q0 = load2(p + 2 + 8 * (l & 1));
        q1 = load2(p + 6 + 8 * (l & 1));
    }
    APR_METHOD void decode(float (&x)[8], u32 l, NoScales, int) const {
        const u32 shift = 2 * (l & 2);
        codes<8>(x, q0 >> shift & 0x0f0f0f0fu, q1 >> shift & 0x0f0f0f0fu, from_f16(d));
    }
};

// spread puts bit i of h < 16 on bit 4 of byte i. The partial products of the multiplication do not overlap.
APR_DEVICE u32 spread(u32 h) { return (h * 0x00204081u & 0x01010101u) << 4; }

struct BlockQ5_0 { // d, u32 h, q[16]: as Q4_0, and bit i of h is worth 16 in value i
    static constexpr u32 bytes = 8 * 22;
    static constexpr bool STAGED = false;
    template <int N> using Scales = NoScales;
    u32 q0, q1;
    u16 d;
    u8 h;
    APR_METHOD void load(const u8 *p, u32 l) {
        p += 22 * (l >> 2);
        d = *(const u16 *)p;
        h = p[2 + (l & 3)];
        q0 = load2(p + 6 + 8 * (l & 1));
        q1 = load2(p + 10 + 8 * (l & 1));
    }
    APR_METHOD void decode(float (&x)[8], u32 l, NoScales, int) const {
        const u32 shift = 2 * (l & 2);
        codes<16>(x, (q0 >> shift & 0x0f0f0f0fu) | spread(h & 15), (q1 >> shift & 0x0f0f0f0fu) | spread(h >> 4), from_f16(d));
    }
};

// look_up returns four of the sixteen bytes of d:c:b:a; a code, a byte of w below 16, is the number of one. A selector takes one of
// eight bytes by three bits.
APR_DEVICE u32 look_up(u32 w, u32 a, u32 b, u32 c, u32 d) {
    const u32 n = byte_perm(w | w >> 4, 0, 0x4420), three = n & 0x7777; // four nibbles
    return byte_perm(byte_perm(a, b, three), byte_perm(c, d, three), 0x3210 | (n >> 1 & 0x4444));
}

// iq4 returns the values that four codes of IQ4_NL and IQ4_XS stand for, signed bytes.
APR_DEVICE u32 iq4(u32 w) { return look_up(w, 0xbfad9881u, 0xf6eaddcfu, 0x26190d01u, 0x71594535u); }

// codes_iq4 computes x[i] = s·v[q[i]], q[i] a nibble of byte i of hi:lo, the one that begins at bit `shift`.
APR_DEVICE void codes_iq4(float (&x)[8], u32 lo, u32 hi, u32 shift, float s) {
    codes<128>(x, iq4(lo >> shift & 0x0f0f0f0fu) ^ 0x80808080u, iq4(hi >> shift & 0x0f0f0f0fu) ^ 0x80808080u, s);
}

struct BlockIQ4NL { // d, q[16]: nibbles as in Q4_0, codes of a table
    static constexpr u32 bytes = 8 * 18;
    static constexpr bool STAGED = false;
    template <int N> using Scales = NoScales;
    u32 q0, q1;
    u16 d;
    APR_METHOD void load(const u8 *p, u32 l) {
        p += 18 * (l >> 2);
        d = *(const u16 *)p;
        q0 = load2(p + 2 + 8 * (l & 1));
        q1 = load2(p + 6 + 8 * (l & 1));
    }
    APR_METHOD void decode(float (&x)[8], u32 l, NoScales, int) const { codes_iq4(x, q0, q1, 2 * (l & 2), from_f16(d)); }
};

// scale_iq4_xs computes s of group j from the block's first 8 bytes: d, two upper bits of each 6-bit sc, four lower bits of each.
APR_DEVICE float scale_iq4_xs(u32x2 head, u32 j) {
    return mul_rn(from_f16((u16)head[0]), integer((head[1] >> 4 * j & 15) | (head[0] >> (16 + 2 * j) & 3) << 4) - 32.0f);
}

struct BlockIQ4XS { // d, sc, q[128]: group j has the nibbles of q[16j:], as in IQ4_NL
    static constexpr u32 bytes = 136;
    static constexpr bool STAGED = false;
    template <int N> using Scales = NoScales;
    u32x2 head, q;
    APR_METHOD void load(const u8 *p, u32 l) {
        head = *(const u32x2 *)p;
        q = *(const u32x2 *)(p + 8 + 16 * (l >> 2) + 8 * (l & 1));
    }
    APR_METHOD void decode(float (&x)[8], u32 l, NoScales, int) const { codes_iq4(x, q[0], q[1], 2 * (l & 2), scale_iq4_xs(head, l >> 2)); }
};

// fp4 returns twice the floats that four codes of MXFP4 stand for, signed bytes: 0, 1, 2, 3, 4, 6, 8, 12, then the negatives.
APR_DEVICE u32 fp4(u32 w) { return look_up(w, 0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu); }

// fp4_pairs is fp4 of the eight codes of a word, in the order of its nibbles, which are selectors as they are: three bits take one of eight
// bytes, the fourth says of which eight.
APR_DEVICE u32x2 fp4_pairs(u32 w) {
    const u32 three = w & 0x77777777u, sign = (w >> 1 & 0x44444444u) | 0x32103210u;
    u32x2 r;
    UNROLL for (int j = 0; j < 2; j++) {
        const u32 s = three >> 16 * j;
        r[j] = byte_perm(byte_perm(0x03020100u, 0x0c080604u, s), byte_perm(0xfdfeff00u, 0xf4f8fafcu, s), sign >> 16 * j);
    }
    return r;
}

// scale_mxfp4 computes 2^(e−128), which the doubled floats of a block with scale e are multiplied by; 255 is NaN.
APR_DEVICE float scale_mxfp4(u32 e) {
    if (e == 255) return from_bits(0x7fffffffu);
    return from_bits(e < 2 ? 0x00200000u << e : (e - 1) << 23);
}

// load8_any returns 8 bytes at any address. It reads the words that have any of them.
APR_DEVICE u32x2 load8_any(const u8 *p) {
    const u32 odd = (u32)(u64)p & 3, select = 0x3210 + 0x1111 * odd;
    const u32 *at = (const u32 *)(p - odd);
    const u32 a = at[0], b = at[1], c = at[odd ? 2 : 1];
    const u32x2 r = {byte_perm(a, b, select), byte_perm(b, c, select)};
    return r;
}

struct BlockMXFP4 { // u8 e, q[16]: nibbles as in Q4_0, floats of 4 bits. Blocks are 17 bytes: nothing is aligned
    static constexpr u32 bytes = 8 * 17;
    static constexpr bool STAGED = false;
    template <int N> using Scales = NoScales;
    u32x2 q;
    u8 e;
    APR_METHOD void load(const u8 *p, u32 l) {
        p += 17 * (l >> 2);
        e = *p;
        q = load8_any(p + 1 + 8 * (l & 1));
    }
    APR_METHOD void decode(float (&x)[8], u32 l, NoScales, int) const {
        const u32x2 w = q >> 2 * (l & 2) & 0x0f0f0f0fu;
        codes<128>(x, fp4(w[0]) ^ 0x80808080u, fp4(w[1]) ^ 0x80808080u, scale_mxfp4(e));
    }
};

// stage copies the BYTES bytes at `from` to shared memory, as units of type W; a warp does it together.
template <class W, u32 BYTES> APR_DEVICE void stage(u8 *to, const u8 *from) {
    const u32 units = BYTES / sizeof(W), rounds = (units + 31) / 32;
    W v[rounds];
    UNROLL for (u32 i = 0; i < rounds; i++)
        if (i * 32 + lane() < units) v[i] = ((const W *)from)[i * 32 + lane()];
    UNROLL for (u32 i = 0; i < rounds; i++)
        if (i * 32 + lane() < units) ((W *)to)[i * 32 + lane()] = v[i];
}

// spans decodes N consecutive spans at p and calls use(x, k) for the lane's values of span k. All loads are in flight
// together. All lanes of the warp take part, but where the type's spans may end early.
template <class B, int N, class F> APR_DEVICE void spans(const u8 *p, F use) {
    const u32 l = lane();
    typename B::template Scales<N> scales;
    B b[N];
    scales.load(p, B::bytes, l);
    UNROLL for (int k = 0; k < N; k++) b[k].load(p + k * B::bytes, l);
    scales.prepare(l);
    UNROLL for (int k = 0; k < N; k++) {
        float x[8];
        b[k].decode(x, l, scales, k);
        use(x, k);
    }
}

// each_chunk calls use(x, row, chunk, k) for the lane's values in spans item … item+3: chunk number chunk + 32·k of the row.
template <class B, class F> APR_DEVICE void each_chunk(const DequantArgs &a, u32 item, F use) {
    if (item >= a.all) return;
    u32 row = a.spans == a.all ? 0 : item / a.spans, span = item - row * a.spans;
    const u8 *p = a.src + row * a.src_stride + (u64)span * B::bytes;
    if (span * 32 + 128 <= a.chunks) {
        if constexpr (B::STAGED) { // blocks of 256 threads
            const u32 size = 4 * B::bytes, room = (size + 15) & ~15u;
            SHARED(u8, staged, 8 * room);
            u8 *mine = staged + warp() * room;
            sync_warp();
            if (((u64)p & 7) == 0) stage<u32x2, size>(mine, p);
            else stage<u16, size>(mine, p);
            sync_warp();
            spans<B, 4>(mine, [&](const float (&x)[8], int k) { use(x, row, span * 32 + lane(), k); });
        } else {
            spans<B, 4>(p, [&](const float (&x)[8], int k) { use(x, row, span * 32 + lane(), k); });
        }
        return;
    }
    const u32 end = (u32)min_of(a.all, item + 4);
    NO_UNROLL for (; item < end; item++) { // where rows end
        if (span * 32 + lane() < a.chunks) spans<B, 1>(p, [&](const float (&x)[8], int) { use(x, row, span * 32 + lane(), 0); });
        p += B::bytes;
        if (++span == a.spans) row++, span = 0, p = a.src + row * a.src_stride;
    }
}
