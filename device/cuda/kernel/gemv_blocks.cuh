// Products of few rows of bfloat16 with a matrix in blocks, y = x·Wᵀ, whose time is that of reading W once.
//
// A row of x is rounded to integers of 16 bits, in groups of 32 that share a power of two: the largest magnitude of a group
// is below 127.5·256 of them, so that whatever is at least 1/128 of it is exact. An integer is 256·hi + lo with signed bytes
// hi and lo, and codes of W are bytes too, so that four products and their sum are one instruction for hi and one for lo:
//
//     y += Σ_groups s·xs·(256·Σ q·hi + Σ q·lo) − off·xs·Σ v        xs the group's power of two, v = 256·hi + lo
//
// Sums of integers are exact; those of groups are rounded to float32.
//
// A block has consecutive rows of each part of W, and a warp a piece of a row at a time, two chunks of 2048 values, of which
// a lane has 64 each. Chunks come to shared memory by asynchronous copies, several of a warp ahead, before it is known what
// x is. Blocks of W may stand at any even address, those of MXFP4 at any.
#pragma once
#include "dequant.cuh"
#include "norm.cuh"
#include "swiglu.cuh"

// RowsPart is a matrix of blocks and the columns of y that it makes.
struct RowsPart {
    const u8 *w;
    i64 stride; // bytes
    u32 rows, each; // of all, of a block
    u32 first;      // column of y of row 0
    u32 type;       // of mixed launches: see Mixed
    APR_METHOD u32 begin() const { return (u32)min_of((i64)each * block(), rows); } // the block's rows
    APR_METHOD u32 count() const { return (u32)min_of(each, rows - begin()); }
};

struct RowsArgs {
    void *y;
    const void *x;
    const float *bias;      // zero: none
    void *product;          // silu(g)·u, g the columns of y by part 0, u those by part 1; zero: none
    i64 y_stride, x_stride; // elements
    i64 product_stride;
    RowsPart part[4];
    RowNorm norm;     // with it, of one row, x is that
    u32 cols, tokens; // of W and x, of x and y
    u32 flags;        // 1: y += x·Wᵀ, 2: y is float, 4: y is not kept
    u32 stages;       // chunks of a warp that are in shared memory together, 2, 3 or 4
    u32 pitch;        // bytes that one takes there
    u32 parts;
};

// How a chunk of x stands in shared memory: four planes of hi, then four of lo; plane k has values 64l + 16k … + 15 for
// l = 0 … 31, 16 bytes each. Then, of the groups, four lists of floats: powers of two, sums, sums of first and of second
// halves. Planes and lists are as far apart as keeps lanes that read different ones at different banks.
constexpr u32 CHUNK = 2048, PLANE = 33 * 16, LIST = 80 * 4, LISTS = 8 * PLANE, CHUNK_X = LISTS + 4 * LIST;
struct ByChunk {
    static constexpr u32 low = 4 * PLANE; // from hi to lo
    // values is where those of hi of 8 values stand, number `pack` of a row; list is the place of their group in list n.
    APR_METHOD static u8 *values(u8 *x, u32 pack) { return x + pack / 256 * CHUNK_X + pack % 8 / 2 * PLANE + 16 * (pack % 256 / 8) + 8 * (pack & 1); }
    APR_METHOD static float *list(u8 *x, u32 pack, u32 n) { return (float *)(x + pack / 256 * CHUNK_X + LISTS + n * LIST) + pack % 256 / 4; }
};

struct Words { u32 w[4]; }; // 16 codes

// Unit is 16 values of x: the parts hi and lo of each.
struct Unit { u32x4 hi, lo; };

// IntSum is Σ q·v of up to 32 values, in its two parts.
struct IntSum {
    i32 hi = 0, lo = 0;
    template <bool SIGNED> APR_METHOD void add(const Words &q, const Unit &x) {
        UNROLL for (int i = 0; i < 4; i++) {
            hi = SIGNED ? dot4_ss(q.w[i], x.hi[i], hi) : dot4_us(q.w[i], x.hi[i], hi);
            lo = SIGNED ? dot4_ss(q.w[i], x.lo[i], lo) : dot4_us(q.w[i], x.lo[i], lo);
        }
    }
    APR_METHOD float value() const { return (float)(hi * 256 + lo); }
};

// InShared is what lane l needs of a chunk of each of several rows of x, read from shared memory where it is used. The
// values of a lane are units 0 … 3: of groups 2t and 2t+1 of its span in pair_…, t = l%4; of the halves t%2 of groups
// 4h … 4h+3 in half_…, h = t/2.
struct InShared {
    const u8 *chunk;
    u32 pitch, l;
    APR_METHOD Unit unit(u32 m, u32 at) const {
        const u8 *p = chunk + m * pitch + at;
        return {load16(p), load16(p + 4 * PLANE)};
    }
    APR_METHOD const float *list(u32 m, u32 n) const { return (const float *)(chunk + m * pitch + LISTS + n * LIST); }
    APR_METHOD Unit pair(u32 m, u32 k) const { return unit(m, k * PLANE + 16 * l); }
    APR_METHOD float pair_scale(u32 m, u32 c) const { return list(m, 0)[2 * l + c]; }
    APR_METHOD float pair_total(u32 m, u32 c) const { return list(m, 1)[2 * l + c]; }
    APR_METHOD Unit half(u32 m, u32 k) const {
        const u32 i = l & 1;
        return unit(m, (2 * (k & 1) + i) * PLANE + 16 * (l - i + (k >> 1)));
    }
    APR_METHOD float half_scale(u32 m, u32 k) const { return list(m, 0)[4 * (l >> 1) + k]; }
    APR_METHOD float half_total(u32 m, u32 k) const { return list(m, 2 + (l & 1))[4 * (l >> 1) + k]; }
};

// low and high make codes of nibbles: those of high are worth 16 times theirs.
APR_DEVICE Words low(u32x4 w) { return {w[0] & 0x0f0f0f0fu, w[1] & 0x0f0f0f0fu, w[2] & 0x0f0f0f0fu, w[3] & 0x0f0f0f0fu}; }
APR_DEVICE Words high(u32x4 w) { return {w[0] & 0xf0f0f0f0u, w[1] & 0xf0f0f0f0u, w[2] & 0xf0f0f0f0u, w[3] & 0xf0f0f0f0u}; }

// load16_2 returns 16 bytes at a multiple of 2.
APR_DEVICE u32x4 load16_2(const u8 *p) {
    const u32 odd = (u32)(u64)p & 2, select = odd ? 0x5432 : 0x3210;
    const u32 *at = (const u32 *)(p - odd);
    u32 w[5];
    UNROLL for (int i = 0; i < 4; i++) w[i] = at[i];
    w[4] = at[3 + odd / 2]; // the last word that has any of the bytes
    u32x4 r;
    UNROLL for (int i = 0; i < 4; i++) r[i] = byte_perm(w[i], w[i + 1], select);
    return r;
}

// Scales of groups 2t and 2t+1 of a block of Q4_K or Q5_K: see scales_k in dequant.cuh.
// The bytes of two words are picked before their codes are made: those of scales, then those of minima. 2²³ + code is a float whose
// bits are known, and products of 11 bits by 6 are exact however they are computed.
APR_DEVICE void pair_scales(float (&s)[4], float (&off)[4], u32x4 head, u32 t) {
    const u32 select = t & 1 ? 0x7632 : 0x5410, a = byte_perm(head[1], head[2], select), b = byte_perm(head[3], head[3] >> 4, select);
    const u32 codes = t >> 1 ? (b & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u) : a & 0x3f3f3f3fu;
    const float d = from_f16((u16)head[0]), dmin = from_f16((u16)(head[0] >> 16)), two23 = 8388608;
    UNROLL for (int c = 0; c < 2; c++) {
        s[c] = fma_rn(d, from_bits(byte_perm(codes, 0x4b000000, 0x7440 + c)), -two23 * d);
        off[c] = fma_rn(dmin, from_bits(byte_perm(codes, 0x4b000000, 0x7442 + c)), -two23 * dmin);
    }
}

// Of a span a lane has 64 codes of a row in units of 16: words gets those of lane l from the span at p. They stand for
// s·code − off, which scales gets, or s·(code − bias) if bias is not negative: units 2c and 2c+1 with s[c] and off[c] or, in a
// type with halves, unit k with s[k] and off[k]. groups are those of the row from the span's first on, which matter in a type
// with partial spans.

struct RowsQ4K {
    static constexpr u32 bytes = 144;
    static constexpr bool aligned = true; // to 16 bytes
    static constexpr bool halves = false, is_signed = false, partial = false;
    static constexpr float bias = -1;
    APR_METHOD static void words(Words (&q)[4], const u8 *p, u32 l, u32) {
        const u32x4 q0 = whole(load16(p + 16 + 32 * (l & 3))), q1 = whole(load16(p + 32 + 32 * (l & 3)));
        q[0] = low(q0), q[1] = low(q1), q[2] = high(q0), q[3] = high(q1);
    }
    APR_METHOD static void scales(float (&s)[4], float (&off)[4], const u8 *p, u32 l, u32) {
        pair_scales(s, off, load16(p), l & 3);
        s[1] *= 0.0625f;
    }
};

struct RowsQ5K {
    static constexpr u32 bytes = 176;
    static constexpr bool aligned = true; // to 16 bytes
    // fifth puts bit j of each byte of h on bit 4.
    APR_METHOD static Words fifth(u32x4 q, u32x4 h, u32 j) {
        Words r;
        UNROLL for (int i = 0; i < 4; i++) r.w[i] = (q[i] & 0x0f0f0f0fu) | (h[i] >> j & 0x01010101u) << 4;
        return r;
    }
    static constexpr bool halves = false, is_signed = false, partial = false;
    static constexpr float bias = -1;
    APR_METHOD static void words(Words (&q)[4], const u8 *p, u32 l, u32) {
        const u32 t = l & 3;
        const u32x4 h0 = load16(p + 16), h1 = load16(p + 32), q0 = load16(p + 48 + 32 * t), q1 = load16(p + 64 + 32 * t);
        q[0] = fifth(q0, h0, 2 * t), q[1] = fifth(q1, h1, 2 * t);
        q[2] = fifth(q0 >> 4, h0, 2 * t + 1), q[3] = fifth(q1 >> 4, h1, 2 * t + 1);
    }
    APR_METHOD static void scales(float (&s)[4], float (&off)[4], const u8 *p, u32 l, u32) { pair_scales(s, off, load16(p), l & 3); }
};

// A lane has half t%2 of groups 4h … 4h+3, h = t/2: those whose upper bits stand together. Codes are biased by 32.
struct RowsQ6K {
    static constexpr u32 bytes = 210;
    static constexpr bool aligned = false;
    APR_METHOD static Words sixes(u32x4 q, u32x4 h, int k) {
        Words r;
        UNROLL for (int i = 0; i < 4; i++) {
            const u32 upper = k < 2 ? h[i] << (4 - 2 * k) : h[i] >> (2 * k - 4);
            r.w[i] = (q[i] >> 4 * (k >> 1) & 0x0f0f0f0fu) | (upper & 0x30303030u);
        }
        return r;
    }
    static constexpr bool halves = true, is_signed = false, partial = false;
    static constexpr float bias = 32;
    APR_METHOD static void words(Words (&q)[4], const u8 *p, u32 l, u32) {
        const u32 h = l >> 1 & 1, i = l & 1;
        const u32x4 q0 = load16_2(p + 64 * h + 16 * i), q1 = load16_2(p + 64 * h + 32 + 16 * i), upper = load16_2(p + 128 + 32 * h + 16 * i);
        UNROLL for (int k = 0; k < 4; k++) q[k] = sixes(k & 1 ? q1 : q0, upper, k);
    }
    APR_METHOD static void scales(float (&s)[4], float (&)[4], const u8 *p, u32 l, u32) {
        const float d = from_f16(*(const u16 *)(p + 208));
        UNROLL for (int k = 0; k < 4; k++) s[k] = mul_rn(d, (float)(signed char)p[192 + 8 * (l >> 1 & 1) + 2 * k + (l & 1)]);
    }
};

// The others have blocks of one group each.
template <class B> struct RowsOfGroups {
    static constexpr u32 bytes = 8 * B::group;
    static constexpr bool aligned = false, halves = false, is_signed = B::is_signed, partial = true;
    static constexpr float bias = B::bias;
    // group is where a lane's group is or, beyond the row's end, the last one.
    APR_METHOD static const u8 *group(const u8 *p, u32 l, u32 c, u32 groups) { return p + B::group * (u32)min_of(2 * (l & 3) + c, groups - 1); }
    APR_METHOD static void words(Words (&q)[4], const u8 *p, u32 l, u32 groups) {
        UNROLL for (u32 c = 0; c < 2; c++) B::codes(q[2 * c], q[2 * c + 1], group(p, l, c, groups));
    }
    APR_METHOD static void scales(float (&s)[4], float (&)[4], const u8 *p, u32 l, u32 groups) {
        UNROLL for (u32 c = 0; c < 2; c++) s[c] = from_f16(*(const u16 *)group(p, l, c, groups));
    }
};

struct GroupQ8_0 {
    static constexpr u32 group = 34;
    static constexpr bool is_signed = true;
    static constexpr float bias = 0;
    APR_METHOD static void codes(Words &a, Words &b, const u8 *p) {
        const u32x4 v = load16_2(p + 2), w = load16_2(p + 18);
        UNROLL for (int i = 0; i < 4; i++) a.w[i] = v[i], b.w[i] = w[i];
    }
};

struct GroupQ4_0 {
    static constexpr u32 group = 18;
    static constexpr bool is_signed = false;
    static constexpr float bias = 8;
    APR_METHOD static void codes(Words &a, Words &b, const u8 *p) {
        const u32x4 v = load16_2(p + 2);
        a = low(v), b = low(v >> 4);
    }
};

struct GroupQ5_0 {
    static constexpr u32 group = 22;
    static constexpr bool is_signed = false;
    static constexpr float bias = 16;
    APR_METHOD static void codes(Words &a, Words &b, const u8 *p) {
        const u32 h = load2(p + 2);
        const u32x4 v = load16_2(p + 6);
        a = low(v), b = low(v >> 4);
        UNROLL for (int i = 0; i < 4; i++) a.w[i] |= spread(h >> 4 * i & 15), b.w[i] |= spread(h >> (16 + 4 * i) & 15);
    }
};

// by_table replaces codes of IQ4_NL and IQ4_XS by their values.
APR_DEVICE Words by_table(Words q) { return {iq4(q.w[0]), iq4(q.w[1]), iq4(q.w[2]), iq4(q.w[3])}; }

struct GroupIQ4NL {
    static constexpr u32 group = 18;
    static constexpr bool is_signed = true;
    static constexpr float bias = 0;
    APR_METHOD static void codes(Words &a, Words &b, const u8 *p) {
        const u32x4 v = load16_2(p + 2);
        a = by_table(low(v)), b = by_table(low(v >> 4));
    }
};

// load16_any returns 16 bytes at any address. It reads the words that have any of them.
APR_DEVICE u32x4 load16_any(const u8 *p) {
    const u32 odd = (u32)(u64)p & 3, select = 0x3210 + 0x1111 * odd;
    const u32 *at = (const u32 *)(p - odd);
    u32 w[5];
    UNROLL for (int i = 0; i < 4; i++) w[i] = at[i];
    w[4] = at[odd ? 4 : 3];
    u32x4 r;
    UNROLL for (int i = 0; i < 4; i++) r[i] = byte_perm(w[i], w[i + 1], select);
    return r;
}

struct GroupMXFP4 {
    static constexpr u32 group = 17;
    static constexpr bool is_signed = true;
    static constexpr float bias = 0;
    APR_METHOD static void codes(Words &a, Words &b, const u8 *p) {
        const u32x4 v = load16_any(p + 1);
        UNROLL for (int i = 0; i < 4; i++) {
            const u32x2 q = fp4_pairs(v[i]); // the low code of a byte, then its high one
            a.w[i] = byte_perm(q[0], q[1], 0x6420), b.w[i] = byte_perm(q[0], q[1], 0x7531);
        }
    }
};

// MXFP4's groups have a power of two instead of a half.
struct RowsMXFP4 : RowsOfGroups<GroupMXFP4> {
    APR_METHOD static void scales(float (&s)[4], float (&)[4], const u8 *p, u32 l, u32 groups) {
        UNROLL for (u32 c = 0; c < 2; c++) s[c] = scale_mxfp4(*group(p, l, c, groups));
    }
};

struct RowsIQ4XS {
    static constexpr u32 bytes = 136;
    static constexpr bool aligned = false, halves = false, is_signed = true, partial = false;
    static constexpr float bias = 0;
    APR_METHOD static void words(Words (&q)[4], const u8 *p, u32 l, u32) {
        UNROLL for (u32 c = 0; c < 2; c++) {
            const u32x4 v = load16_2(p + 8 + 16 * (2 * (l & 3) + c));
            q[2 * c] = by_table(low(v)), q[2 * c + 1] = by_table(low(v >> 4));
        }
    }
    APR_METHOD static void scales(float (&s)[4], float (&)[4], const u8 *p, u32 l, u32) {
        const u32x2 head = {load2(p), load2(p + 4)}; // blocks may stand at any even address
        UNROLL for (u32 c = 0; c < 2; c++) s[c] = scale_iq4_xs(head, 2 * (l & 3) + c);
    }
};

// with_group adds to sum what a group of x makes of it: its products with codes, and the sum of its values.
template <class B> APR_DEVICE float with_group(float sum, float s, float off, float products, float total) {
    if (B::bias < 0) return fma_rn(s, products, fma_rn(-off, total, sum));
    return fma_rn(s, fma_rn(-B::bias, total, products), sum);
}

// dot adds to sum[m] the products of lane l's 64 values of a span with M rows of x.
template <class B, int M, class X> APR_DEVICE void dot(float (&sum)[M], const u8 *p, const X &x, u32 l, u32 groups) {
    UNROLL for (int k = 0; k < (B::halves ? 4 : 2); k++) {
        if (B::partial && 2 * (l & 3) + k >= groups) break;
        Words q[4]; // of which the compiler keeps those that are used
        float s[4], off[4];
        B::words(q, p, l, groups);
        B::scales(s, off, p, l, groups);
        UNROLL for (int m = 0; m < M; m++) {
            IntSum v;
            float scale, total;
            if (B::halves) {
                v.add<B::is_signed>(q[k], x.half(m, k));
                scale = x.half_scale(m, k), total = x.half_total(m, k);
            } else {
                v.add<B::is_signed>(q[2 * k], x.pair(m, 2 * k));
                v.add<B::is_signed>(q[2 * k + 1], x.pair(m, 2 * k + 1));
                scale = x.pair_scale(m, k), total = x.pair_total(m, k);
            }
            sum[m] = with_group<B>(sum[m], s[k], off[k], mul_rn(scale, v.value()), total);
        }
    }
}

// Column is a column of y that a thread writes.
struct Column {
    i64 at;
    float bias;
    template <class Args> APR_METHOD Column(const Args &a, u32 column) : at(column), bias(a.bias ? a.bias[column] : -0.0f) {} // −0 changes no sum
    // put writes y of a token, and returns it as it is stored.
    template <class Args> APR_METHOD float put(const Args &a, u32 token, float sum) const {
        sum += bias;
        if ((a.flags & 7) == 4) return from_bf16(to_bf16(sum)); // y is not there
        const i64 to = token * a.y_stride + at;
        if (a.flags & 2) {
            if (a.flags & 1) sum += ((const float *)a.y)[to];
            if (!(a.flags & 4)) ((float *)a.y)[to] = sum;
            return sum;
        }
        if (a.flags & 1) sum += from_bf16(((const bf16 *)a.y)[to]);
        const bf16 v = to_bf16(sum);
        if (!(a.flags & 4)) ((bf16 *)a.y)[to] = v;
        return from_bf16(v);
    }
};
// put writes y of one column and token, and returns it as it is stored.
template <class Args> APR_DEVICE float put(const Args &a, u32 column, u32 token, float sum) { return Column(a, column).put(a, token, sum); }

// Rounded are 8 values of bfloat16 as integers, four lanes having a group.
struct Rounded {
    u32x2 hi, lo;
    float scale; // of the group; not finite if one of its values is not
    i32 sum;     // of the 8
};

// round8 rounds 8 values; all lanes take part.
APR_DEVICE Rounded round8(u32x4 v) {
    u32 mags = v[0] & 0x7fff7fffu;
    UNROLL for (int i = 1; i < 4; i++) mags = max_bf16(mags, v[i] & 0x7fff7fffu);
    mags = max_bf16(mags, shfl_xor(mags, 1));
    mags = max_bf16(mags, shfl_xor(mags, 2));
    const u32 even = mags << 16, odd = mags & 0x7fff0000u, most = even > odd ? even : odd; // bits of magnitudes ascend with them
    const u32 e = (most + 0x10000) >> 23, at = e < 15 ? 15 : e; // magnitudes are below 255/256·2^(at − 126)
    const float up = from_bits((268 - at) << 23);             // to below 127.5·256
    Rounded r;
    r.scale = most >> 23 == 255 ? from_bits(0x7fc00000u) : from_bits((at - 14) << 23);
    u32 n[8];
    UNROLL for (int i = 0; i < 4; i++) { // 1.5·2²³ + n has n in its mantissa
        n[2 * i] = bits(fma_rn(from_bits(v[i] << 16), up, 12582912.0f));
        n[2 * i + 1] = bits(fma_rn(from_bits(v[i] & 0xffff0000u), up, 12582912.0f));
    }
    r.sum = 0;
    UNROLL for (int i = 0; i < 2; i++) {
        r.lo[i] = byte_perm(byte_perm(n[4 * i], n[4 * i + 1], 0x0040), byte_perm(n[4 * i + 2], n[4 * i + 3], 0x0040), 0x5410);
        UNROLL for (int j = 4 * i; j < 4 * i + 4; j++) n[j] += 128; // lo is signed: hi is n/256 to nearest
        r.hi[i] = byte_perm(byte_perm(n[4 * i], n[4 * i + 1], 0x0051), byte_perm(n[4 * i + 2], n[4 * i + 3], 0x0051), 0x5410);
        r.sum += dot4_us(0x01010101u, r.hi[i], 0) * 256 + dot4_us(0x01010101u, r.lo[i], 0);
    }
    return r;
}

// round_pack rounds 8 values of bfloat16, those of number pack of a row, to their place at x, as Place has it. All lanes take part; those
// that are not live write nothing.
template <class Place> APR_DEVICE void round_pack(u8 *x, u32 pack, u32x4 v, bool live) {
    Rounded r = round8(v);
    r.sum += shfl_xor(r.sum, 1);
    const i32 rest = shfl_xor(r.sum, 2);
    if (!live) return;
    u8 *to = Place::values(x, pack);
    *(u32x2 *)to = r.hi;
    *(u32x2 *)(to + Place::low) = r.lo;
    if ((pack & 3) == 0) {
        *Place::list(x, pack, 0) = r.scale;
        *Place::list(x, pack, 1) = mul_rn(r.scale, (float)(r.sum + rest));
        *Place::list(x, pack, 2) = mul_rn(r.scale, (float)r.sum);
        *Place::list(x, pack, 3) = mul_rn(r.scale, (float)rest);
    }
}

// integers rounds rows of x to shared memory.
APR_DEVICE void integers(const RowsArgs &a, u8 *shared, u32 x_pitch) {
    const u32 packs = a.cols / 8;
    if (a.norm.x) {
        norm_row(a.norm, a.cols, block() == 0, [&](u32 pack, const Pack<bf16, 8> &v, bool live) { round_pack<ByChunk>(shared, pack, v.v, live); });
        return;
    }
    for (u32 token = 0; token < a.tokens; token++)
        for (u32 first = 32 * warp(); first < packs; first += threads()) {
            const u32 pack = first + lane();
            u32x4 v = {};
            if (pack < packs) v = load16((const bf16 *)a.x + token * a.x_stride + 8 * (u64)pack);
            round_pack<ByChunk>(shared + token * x_pitch, pack, v, pack < packs);
        }
}

// part_of returns a.part[p]; arguments cannot be indexed.
APR_DEVICE RowsPart part_of(const RowsArgs &a, u32 p) {
    const RowsPart &p0 = a.part[0], &p1 = a.part[1], &p2 = a.part[2], &p3 = a.part[3];
    auto pick = [&](auto v0, auto v1, auto v2, auto v3) { return p == 0 ? v0 : p == 1 ? v1 : p == 2 ? v2 : v3; };
    return {
        pick(p0.w, p1.w, p2.w, p3.w), pick(p0.stride, p1.stride, p2.stride, p3.stride), pick(p0.rows, p1.rows, p2.rows, p3.rows),
        pick(p0.each, p1.each, p2.each, p3.each), pick(p0.first, p1.first, p2.first, p3.first), pick(p0.type, p1.type, p2.type, p3.type),
    };
}

// Cursor walks over the chunks of W that are a warp's: pieces w, w + warps, … of the block's rows, part by part.
struct Cursor {
    const u8 *w; // of the block's first row of a part
    i64 stride;
    u32 row, rows, piece, half, part, type;
    APR_METHOD void enter(const RowsArgs &a, u32 p) {
        const RowsPart now = part_of(a, p);
        w = now.w + now.begin() * now.stride, stride = now.stride, rows = now.count(), part = p, type = now.type;
    }
    // settle finds the part of a row beyond the last of one.
    APR_METHOD void settle(const RowsArgs &a) {
        NO_UNROLL while (row >= rows && part + 1 < a.parts) {
            row -= rows;
            enter(a, part + 1);
        }
    }
    APR_METHOD bool done() const { return row >= rows; }
};

// finish adds the sums of a row's pieces, in order, and writes y. A thread does it for a row, or a pair with a product.
template <int M> APR_DEVICE void finish(const RowsArgs &a, const float *sums, u32 pieces) {
    auto total = [&](u32 row, u32 token) {
        float v = 0;
        NO_UNROLL for (u32 c = 0; c < pieces; c++) v += sums[(row * pieces + c) * M + token];
        return v;
    };
    if (a.product) {
        const u32 rows = a.part[0].count();
        NO_UNROLL for (u32 i = thread(); i < rows * a.tokens; i += threads()) {
            const u32 token = M == 1 ? 0 : i % a.tokens, n = M == 1 ? i : i / a.tokens, column = a.part[0].begin() + n;
            const float gate = put(a, column, token, total(n, token));
            const float up = put(a, a.part[1].first + column, token, total(rows + n, token));
            store((bf16 *)a.product + token * a.product_stride + column, gated<bf16>(gate, up));
        }
        return;
    }
    u32 before = 0; // rows of the parts before
    NO_UNROLL for (u32 p = 0; p < a.parts; p++) {
        const RowsPart w = part_of(a, p);
        const u32 rows = w.count();
        NO_UNROLL for (u32 i = thread(); i < rows * a.tokens; i += threads()) {
            const u32 token = M == 1 ? 0 : i % a.tokens, n = M == 1 ? i : i / a.tokens;
            put(a, w.first + w.begin() + n, token, total(before + n, token));
        }
        before += rows;
    }
}

// A block computes its rows of all parts, for up to M rows of x. A lane adds its values of a piece, lanes add theirs as a
// butterfly, and pieces are added in order: bits depend on the columns of W alone.
template <int M, class Dot> APR_DEVICE void gemv_rows(const RowsArgs &a, const Dot &dot) {
    DYNAMIC_SHARED(shared);
    let_next();
    const u32 l = lane(), warps = threads() / 32, groups = a.cols / 32, chunks = (a.cols + CHUNK - 1) / CHUNK, pieces = (chunks + 1) / 2;
    const u32 x_pitch = chunks * CHUNK_X, step_rows = warps / pieces, step_pieces = warps % pieces;
    u8 *ring = shared + M * x_pitch + warp() * a.stages * a.pitch;
    float *sums = (float *)(shared + M * x_pitch + warps * a.stages * a.pitch); // [rows of all parts, pieces, M]
    Cursor next;
    next.enter(a, 0);
    next.row = warp() / pieces, next.piece = warp() % pieces, next.half = 0;
    next.settle(a);
    u32 marks = 0; // of the chunks in shared memory, the oldest in the lowest byte: address modulo 16, type
    auto copy_next = [&](u32 slot) {
        u32 mark = 0;
        if (!next.done()) {
            const u32 bytes = dot.bytes(next.type), chunk = 2 * next.piece + next.half;
            const u8 *from = next.w + next.row * next.stride + chunk * 8 * bytes;
            const u32 o = dot.aligned ? 0 : (u32)(u64)from & 15, end = o + (u32)min_of(8 * bytes, groups * bytes / 8 - chunk * 8 * bytes);
            u8 *to = ring + slot * a.pitch;
            UNROLL for (u32 n = 0; n < 8 * dot.most + 15; n += 512)
                if (n + 16 * l < end) copy_async16(to + n + 16 * l, from - o + n + 16 * l);
            mark = o | next.type << 4;
            next.half++;
            if (next.half == 2 || chunk + 1 == chunks) {
                next.half = 0, next.row += step_rows, next.piece += step_pieces;
                if (next.piece >= pieces) next.piece -= pieces, next.row++;
                next.settle(a);
            }
        }
        copy_async_commit();
        if (!dot.aligned) marks = marks >> 8 | mark << 8 * (a.stages - 1);
    };
    NO_UNROLL for (u32 s = 0; s < a.stages; s++) copy_next(s);
    wait_before(); // blocks of W do not change
    integers(a, shared, x_pitch);
    sync_block();
    u32 items = 0, slot = 0, piece = warp() % pieces;
    NO_UNROLL for (u32 p = 0; p < a.parts; p++) items += part_of(a, p).count() * pieces;
    NO_UNROLL for (u32 item = warp(); item < items; item += warps) {
        float sum[M] = {};
        const u32 last = min_of(2 * piece + 2, chunks);
        NO_UNROLL for (u32 chunk = 2 * piece; chunk < last; chunk++) {
            if (a.stages == 2) copy_async_wait<1>();
            else if (a.stages == 3) copy_async_wait<2>();
            else copy_async_wait<3>();
            sync_warp(); // every lane's copies are there
            const u32 type = marks >> 4 & 15, from = 8 * (8 * chunk + (l >> 2)); // group
            if (from < groups) {
                const u8 *p = ring + slot * a.pitch + (marks & 15) + (l >> 2) * dot.bytes(type);
                dot.template add<M>(sum, type, p, InShared{shared + chunk * CHUNK_X, x_pitch, l}, l, groups - from);
            }
            sync_warp(); // every lane has read: the slot may be filled again
            copy_next(slot);
            slot = slot + 1 == a.stages ? 0 : slot + 1;
        }
        UNROLL for (int m = 0; m < M; m++) {
            const float v = warp_sum(sum[m]);
            if (l == 0) sums[item * M + m] = v;
        }
        piece += step_pieces;
        if (piece >= pieces) piece -= pieces;
    }
    sync_block();
    finish<M>(a, sums, pieces);
}

// One is the dot of one type, Mixed that of several, as quantised files have among q, k and v.
template <class B> struct One {
    static constexpr u32 most = B::bytes;
    static constexpr bool aligned = B::aligned;
    APR_METHOD u32 bytes(u32) const { return B::bytes; }
    template <int M, class X> APR_METHOD void add(float (&sum)[M], u32, const u8 *p, const X &x, u32 l, u32 groups) const {
        dot<B, M>(sum, p, x, l, groups);
    }
};

struct Mixed {
    static constexpr u32 most = RowsQ6K::bytes;
    static constexpr bool aligned = false;
    APR_METHOD u32 bytes(u32 type) const { return type == 0 ? RowsQ4K::bytes : type == 1 ? RowsQ5K::bytes : RowsQ6K::bytes; }
    template <int M, class X> APR_METHOD void add(float (&sum)[M], u32 type, const u8 *p, const X &x, u32 l, u32 groups) const {
        if (type == 0) dot<RowsQ4K, M>(sum, p, x, l, groups);
        else if (type == 1) dot<RowsQ5K, M>(sum, p, x, l, groups);
        else dot<RowsQ6K, M>(sum, p, x, l, groups);
    }
};
