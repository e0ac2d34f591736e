// Products of few rows of bfloat16 with a matrix in blocks, y = x·Wᵀ, whose time is that of reading W once.
//
// A warp takes 16 rows of W, a span of 256 values at a time: a matrix of 16 rows by 16 codes, times 16 values of x by 8
// columns, with tensor cores. A column is a group of 32 values of the span: the values of x of all other groups are zero in
// it, so that one accumulator has the sums of all groups, each for itself, for its scale to be multiplied in:
//
//     y += Σ_groups s·(Σ q·x) − off·(Σ x)
//
// Codes are exact in bfloat16, so the rounding is that of float32 sums alone. Blocks come to shared memory by asynchronous
// copies, several spans of a warp ahead, before it is known what x is: they may stand at any even address.
#pragma once
#include "dequant.cuh"
#include "swiglu.cuh"

// Part is a matrix of blocks and the columns of y that it makes.
struct TilePart {
    const u8 *w;
    i64 stride;      // bytes
    u32 rows, first; // of W, column of y of row 0
    u32 end;         // blocks of the grid up to this part's last
    u32 type;        // of mixed launches: see gemv_mixed
};

// Bits are numbers that the compiler must not know: of x & mask | base it would make two instructions.
struct Bits {
    u32 base;   // 0x43004300: 128, twice
    u32 minus;  // 0xc300c300: −128, twice
    u32 lower4; // 0x0f0f0f0f
};

struct TileArgs {
    void *y;
    const void *x;
    const float *bias;      // zero: none
    void *product;          // silu(g)·u, g the columns of y by part 0, u those by part 1; zero: none
    i64 y_stride, x_stride; // elements
    i64 product_stride;
    TilePart part[4];
    u32 cols, tokens; // of W and x, of x and y
    u32 flags;        // 1: y += x·Wᵀ, 2: y is float, 4: y is not kept
    u32 stages;       // spans of a warp that are in shared memory together, 2, 3 or 4
    u32 tiles;        // of all parts
    Bits bits;
};

// number returns byte j of w.
APR_DEVICE float number(u32 w, u32 j) { return from_bits(byte_perm(w, 0x4b000000u, 0x7440 + j)) - 8388608.0f; }

// word2 returns 4 bytes at a multiple of 2.
APR_DEVICE u32 word2(const u8 *p) { return byte_perm(((const u16 *)p)[0], ((const u16 *)p)[1], 0x5410); }

// pair makes two bfloat16 of codes 0 and 2 of the four bytes of w, of their lower BITS bits: 128 + q has q in its mantissa.
// base is 128, twice; less is −128 − bias, twice.
template <u32 BITS> APR_DEVICE u32 pair(u32 w, u32 base, u32 less) {
    constexpr u32 mask = ((1u << BITS) - 1) * 0x00010001u;
    return fma_bf16((w & mask) | base, 0x3f803f80u, less);
}

// above makes 128 + q of them.
template <u32 BITS> APR_DEVICE u32 above(u32 w, u32 base) { return (w & ((1u << BITS) - 1) * 0x00010001u) | base; }

// either returns the bits of x where mask has ones and those of y elsewhere.
APR_DEVICE u32 either(u32 mask, u32 x, u32 y) { return (x & mask) | (y & ~mask); }

// Scales of groups 2t and 2t+1 of a row: s of either half of 16 values, and off.
struct Scales {
    float s[2][2], off[2]; // s[group][half]
    APR_METHOD void both(int c, float v) { s[c][0] = s[c][1] = v; }
};

// A type says, of a span that stands at p in shared memory: word, the codes 32j+16i+4t … +3, one in the lower bits of each
// byte; pairs, which makes codes 0 and 2 of them one operand and 1 and 3 the other, as of x; scales. A type with
// offsets makes 128 + q of codes: Σ x of the group, which its offset needs, takes 128·Σ x away again. A whole type has blocks
// of 256 values, so that no span ends early. pitch is what rows of 16 spans are apart there: an odd multiple of 16, so that
// rows lie in different banks.

// scales_of_k computes those of Q4_K and Q5_K: see scales_k in dequant.cuh.
APR_DEVICE Scales scales_of_k(const u8 *p, u32 t) {
    const u32x4 head = load16(p);
    const u32 upper = t >> 1, j = 2 * (t & 1);
    const u32 sc = upper ? (head[3] & 0x0f0f0f0fu) | (head[1] >> 2 & 0x30303030u) : head[1] & 0x3f3f3f3fu;
    const u32 m = upper ? (head[3] >> 4 & 0x0f0f0f0fu) | (head[2] >> 2 & 0x30303030u) : head[2] & 0x3f3f3f3fu;
    const float d = from_f16((u16)head[0]), dmin = from_f16((u16)(head[0] >> 16));
    Scales r;
    UNROLL for (int c = 0; c < 2; c++) {
        r.both(c, mul_rn(d, number(sc, j + c)));
        r.off[c] = mul_rn(dmin, number(m, j + c));
    }
    return r;
}

struct TileQ4K {
    static constexpr u32 bytes = 144, align = 16, pitch = 144;
    static constexpr bool whole = true, offsets = true, halves = false;
    APR_METHOD static u32 word(const u8 *p, u32 j, u32 i, u32 t, const Bits &b) {
        return *(const u32 *)(p + 16 + 32 * (j >> 1) + 16 * i + 4 * t) >> 4 * (j & 1);
    }
    APR_METHOD static u32 pairs(u32 w, const Bits &b) { return above<4>(w, b.base); }
    APR_METHOD static Scales scales(const u8 *p, u32 t) { return scales_of_k(p, t); }
};

struct TileQ5K {
    static constexpr u32 bytes = 176, align = 16, pitch = 176;
    static constexpr bool whole = true, offsets = true, halves = false;
    APR_METHOD static u32 word(const u8 *p, u32 j, u32 i, u32 t, const Bits &b) {
        const u32 q = *(const u32 *)(p + 48 + 32 * (j >> 1) + 16 * i + 4 * t) >> 4 * (j & 1);
        const u32 h = *(const u32 *)(p + 16 + 16 * i + 4 * t);
        return either(b.lower4, q, j < 4 ? h << (4 - j) : h >> (j - 4));
    }
    APR_METHOD static u32 pairs(u32 w, const Bits &b) { return above<5>(w, b.base); }
    APR_METHOD static Scales scales(const u8 *p, u32 t) { return scales_of_k(p, t); }
};

struct TileQ6K { // each half of a group has a scale of its own
    static constexpr u32 bytes = 210, align = 2, pitch = 240;
    static constexpr bool whole = true, offsets = false, halves = true;
    APR_METHOD static u32 word(const u8 *p, u32 j, u32 i, u32 t, const Bits &b) {
        const u32 h = j >> 2, k = j & 3;
        const u32 low = word2(p + 64 * h + 32 * (k & 1) + 16 * i + 4 * t) >> 4 * (k >> 1);
        const u32 upper = word2(p + 128 + 32 * h + 16 * i + 4 * t);
        return either(b.lower4, low, k < 2 ? upper << (4 - 2 * k) : upper >> (2 * k - 4));
    }
    APR_METHOD static u32 pairs(u32 w, const Bits &b) { return pair<6>(w, b.base, 0xc320c320u); } // −128 − 32
    APR_METHOD static Scales scales(const u8 *p, u32 t) {
        const u32 w = word2(p + 192 + 4 * t) ^ 0x80808080u;
        const float d = from_f16(*(const u16 *)(p + 208));
        Scales r;
        UNROLL for (int c = 0; c < 4; c++) r.s[c >> 1][c & 1] = mul_rn(d, number(w, c) - 128.0f);
        return r;
    }
};

struct TileQ8_0 {
    static constexpr u32 bytes = 8 * 34, align = 2, pitch = 304;
    static constexpr bool whole = false, offsets = false, halves = false;
    APR_METHOD static u32 word(const u8 *p, u32 j, u32 i, u32 t, const Bits &b) { return word2(p + 34 * j + 2 + 16 * i + 4 * t); }
    // The lower 7 bits are q, or q + 128 where bit 7 is set.
    APR_METHOD static u32 pairs(u32 w, const Bits &b) { return pair<7>(w, b.base, (w & 0x00800080u) | b.minus); } // −128 or −256
    APR_METHOD static Scales scales(const u8 *p, u32 t) {
        Scales r;
        UNROLL for (int c = 0; c < 2; c++) r.both(c, from_f16(*(const u16 *)(p + 34 * (2 * t + c))));
        return r;
    }
};

struct TileQ4_0 {
    static constexpr u32 bytes = 8 * 18, align = 2, pitch = 176;
    static constexpr bool whole = false, offsets = false, halves = false;
    APR_METHOD static u32 word(const u8 *p, u32 j, u32 i, u32 t, const Bits &b) { return word2(p + 18 * j + 2 + 4 * t) >> 4 * i; }
    APR_METHOD static u32 pairs(u32 w, const Bits &b) { return pair<4>(w, b.base, 0xc308c308u); } // −128 − 8
    APR_METHOD static Scales scales(const u8 *p, u32 t) {
        Scales r;
        UNROLL for (int c = 0; c < 2; c++) r.both(c, from_f16(*(const u16 *)(p + 18 * (2 * t + c))));
        return r;
    }
};

struct TileQ5_0 {
    static constexpr u32 bytes = 8 * 22, align = 2, pitch = 208;
    static constexpr bool whole = false, offsets = false, halves = false;
    APR_METHOD static u32 word(const u8 *p, u32 j, u32 i, u32 t, const Bits &b) {
        p += 22 * j;
        const u32 h = ((const u16 *)p)[1 + i] >> 4 * t & 15;
        return either(b.lower4, word2(p + 6 + 4 * t) >> 4 * i, spread(h));
    }
    APR_METHOD static u32 pairs(u32 w, const Bits &b) { return pair<5>(w, b.base, 0xc310c310u); } // −128 − 16
    APR_METHOD static Scales scales(const u8 *p, u32 t) {
        Scales r;
        UNROLL for (int c = 0; c < 2; c++) r.both(c, from_f16(*(const u16 *)(p + 22 * (2 * t + c))));
        return r;
    }
};

// part_of returns the part of a tile, and makes the tile's number one of the part.
APR_DEVICE TilePart part_of(const TileArgs &a, u32 &tile) {
    const TilePart &p0 = a.part[0], &p1 = a.part[1], &p2 = a.part[2], &p3 = a.part[3];
    const u32 b = tile;
    auto pick = [&](auto v0, auto v1, auto v2, auto v3) { return b < p0.end ? v0 : b < p1.end ? v1 : b < p2.end ? v2 : v3; };
    tile -= pick(0u, p0.end, p1.end, p2.end);
    return {
        pick(p0.w, p1.w, p2.w, p3.w), pick(p0.stride, p1.stride, p2.stride, p3.stride), pick(p0.rows, p1.rows, p2.rows, p3.rows),
        pick(p0.first, p1.first, p2.first, p3.first), 0, pick(p0.type, p1.type, p2.type, p3.type),
    };
}

// row_at returns the place of row i of a tile: of 16 consecutive ones or, with a product, of 8 of part 0, then of the 8 of
// part 1 that belong to them.
APR_DEVICE const u8 *row_at(const TileArgs &a, u32 tile, u32 i) {
    if (a.product) {
        const i64 row = min_of(tile * 8 + (i & 7), a.part[0].rows - 1);
        return i < 8 ? a.part[0].w + row * a.part[0].stride : a.part[1].w + row * a.part[1].stride;
    }
    const TilePart w = part_of(a, tile);
    return w.w + (i64)min_of(tile * 16 + i, w.rows - 1) * w.stride;
}

// put writes y of one column and token, and returns it as it is stored.
APR_DEVICE float put(const TileArgs &a, u32 column, u32 token, float sum) {
    const i64 at = token * a.y_stride + column;
    if (a.bias) sum += a.bias[column];
    if (a.flags & 2) {
        if (a.flags & 1) sum += ((const float *)a.y)[at];
        if (!(a.flags & 4)) ((float *)a.y)[at] = sum;
        return sum;
    }
    if (a.flags & 1) sum += from_bf16(((const bf16 *)a.y)[at]);
    const bf16 v = to_bf16(sum);
    if (!(a.flags & 4)) ((bf16 *)a.y)[at] = v;
    return from_bf16(v);
}

// Copies is how a lane copies its part of spans to shared memory. Two lanes have a row: windows begin at a multiple of 32
// bytes, of which either copies a half, and what precedes or follows the blocks is left out.
template <class B> struct Copies {
    const u8 *from;
    u8 *to;
    u32 row_bytes, half;
    // span begins the copies of a span to a slot of the ring.
    APR_METHOD void span(u32 span, u32 slot) const {
        const u8 *at = from + (u64)span * B::bytes;
        const u32 o = (u32)(u64)at & 31, end = o + (B::whole ? B::bytes : (u32)min_of(B::bytes, row_bytes - span * B::bytes));
        const u8 *src = at - o + half;
        u8 *dst = to + slot * 16 * B::pitch + half - (o & 16);
        UNROLL for (u32 n = 0; n < 32 - B::align + B::bytes; n += 32)
            if (n + half + 16 > o && n + half < end) copy_async16(dst + n, src + n);
    }
};

// compute adds a span to the sums of rows g and g+8, of which p[0] and p[1] are the places, for M rows of x. mask[j] is 1 in
// lanes of group j, else 0: a product with it is not taken by the pipe of logical operations, which has the most to do.
template <class B, int M> APR_DEVICE void compute(float (&sum)[M][2], const u8 *const (&p)[2], const u32 (&x)[M][4], const u32 (&mask)[8], const Bits &b, u32 groups) {
    const u32 t = lane() & 3, ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
    float qx[M][2][4] = {}, ex[M][4] = {};
    UNROLL for (u32 j = 0; j < 8; j++) UNROLL for (u32 i = 0; i < 2; i++) {
        const u32 w0 = B::word(p[0], j, i, t, b), w1 = B::word(p[1], j, i, t, b);
        const u32 w[4] = {B::pairs(w0, b), B::pairs(w1, b), B::pairs(w0 >> 8, b), B::pairs(w1 >> 8, b)};
        UNROLL for (int m = 0; m < M; m++) mma_bf16(qx[m][i], w, x[m][2 * i] * mask[j], x[m][2 * i + 1] * mask[j]);
    }
    if (B::offsets) UNROLL for (int m = 0; m < M; m++) UNROLL for (int i = 0; i < 2; i++) mma_bf16(ex[m], ones, x[m][2 * i], x[m][2 * i + 1]);
    UNROLL for (int r = 0; r < 2; r++) {
        const Scales s = B::scales(p[r], t);
        UNROLL for (int c = 0; c < 2; c++) {
            if (!B::whole && 2 * t + c >= groups) continue; // behind the row's end: nothing that may be read
            UNROLL for (int m = 0; m < M; m++) {
                const float *q0 = &qx[m][0][2 * r + c], *q1 = &qx[m][1][2 * r + c];
                const float e = ex[m][2 * r + c];
                if (B::halves) sum[m][r] = fma_rn(s.s[c][1], *q1, fma_rn(s.s[c][0], *q0, sum[m][r]));
                else sum[m][r] = fma_rn(s.s[c][0], B::offsets ? fma_rn(-128.0f, e, *q0 + *q1) : *q0 + *q1, sum[m][r]);
                if (B::offsets) sum[m][r] = fma_rn(-s.off[c], e, sum[m][r]);
            }
        }
    }
}

// finish adds the sums of warps, [warps, M, 16], in order, and writes the columns of a tile. A warp does it.
template <int M> APR_DEVICE void finish(const TileArgs &a, u32 tile, const float *part) {
    const u32 e = lane() & 15, warps = threads() / 32;
    const TilePart w = part_of(a, tile);
    UNROLL for (int m = 0; m < M; m += 2) {
        const u32 token = m + (lane() >> 4);
        float v = 0;
        if (token < M) {
            v = part[token * 16 + e];
            UNROLL for (u32 k = 1; k < 16; k++) if (k < warps) v += part[(k * M + token) * 16 + e];
        }
        float up = shfl_down(v, 8);
        if (token < a.tokens) {
            if (!a.product) {
                if (tile * 16 + e < w.rows) put(a, w.first + tile * 16 + e, token, v);
            } else if (const u32 column = tile * 8 + e; e < 8 && column < w.rows) {
                v = put(a, column, token, v);
                up = put(a, w.rows + column, token, up);
                store((bf16 *)a.product + token * a.product_stride + column, gated<bf16>(v, up));
            }
        }
    }
}

// A block computes tiles of 16 columns of y for up to M rows of x: block(), block() + blocks(), …. Warp w has spans w,
// w + warps, … of each, and while it computes one, its next ones are on their way, be they of the next tile. The sums of
// lanes and then of warps are added in a fixed order: bits depend on the columns of W alone.
template <class B, int M> APR_DEVICE void gemv_tiles(const TileArgs &a) {
    DYNAMIC_SHARED(shared);
    let_next();
    const u32 l = lane(), g = l >> 2, t = l & 3, warps = threads() / 32, groups = a.cols / 32, spans = (groups + 7) / 8;
    float *part = (float *)shared + warp() * M * 16; // of [2, warps, M, 16]: a tile's and the next one's
    u8 *ring = shared + 2 * warps * M * 16 * sizeof(float) + warp() * a.stages * 16 * B::pitch;
    Copies<B> copies = {row_at(a, block(), l >> 1), ring + (l >> 1) * B::pitch, groups * (B::bytes / 8), (l & 1) * 16};
    u32 next_tile = block(), next_span = warp(); // to be copied
    auto copy_next = [&](u32 slot) {
        if (next_tile < a.tiles) {
            copies.span(next_span, slot);
            next_span += warps;
            if (next_span >= spans) {
                next_span = warp(), next_tile += blocks();
                if (next_tile < a.tiles) copies.from = row_at(a, next_tile, l >> 1);
            }
        }
        copy_async_commit();
    };
    NO_UNROLL for (u32 s = 0; s < a.stages; s++) copy_next(s);
    wait_before(); // blocks of W do not change
    u32 mask[8];
    UNROLL for (u32 j = 0; j < 8; j++) {
        int is = g == j;
        opaque(is);
        mask[j] = (u32)is;
    }
    u32 slot = 0, other = 0, turn = 0;
    NO_UNROLL for (u32 tile = block(); tile < a.tiles; tile += blocks()) {
        u32 at[2] = {};
        if (B::align < 16) UNROLL for (u32 r = 0; r < 2; r++) at[r] = (u32)(u64)row_at(a, tile, g + 8 * r);
        float sum[M][2] = {};
        NO_UNROLL for (u32 span = warp(); span < spans; span += warps) {
            u32 x[M][4] = {};
            UNROLL for (int m = 0; m < M; m++)
                if ((M == 1 || m < a.tokens) && (B::whole || 8 * span + g < groups)) {
                    const bf16 *v = (const bf16 *)a.x + m * a.x_stride + (u64)span * 256 + 32 * g + 4 * t;
                    UNROLL for (int i = 0; i < 2; i++) {
                        const u32x2 four = *(const u32x2 *)(v + 16 * i);
                        x[m][2 * i] = byte_perm(four[0], four[1], 0x5410);
                        x[m][2 * i + 1] = byte_perm(four[0], four[1], 0x7632);
                    }
                }
            if (a.stages == 2) copy_async_wait<1>();
            else if (a.stages == 3) copy_async_wait<2>();
            else copy_async_wait<3>();
            sync_warp(); // every lane's copies are there
            const u8 *p[2];
            UNROLL for (u32 r = 0; r < 2; r++) {
                p[r] = ring + (slot * 16 + g + 8 * r) * B::pitch;
                if (B::align < 16) p[r] += (at[r] + span * B::bytes) & 15;
            }
            compute<B, M>(sum, p, x, mask, a.bits, groups - 8 * span);
            sync_warp(); // every lane has read: the slot may be filled again
            copy_next(slot);
            slot = slot + 1 == a.stages ? 0 : slot + 1;
        }
        UNROLL for (int m = 0; m < M; m++) UNROLL for (int r = 0; r < 2; r++) {
            float v = sum[m][r];
            v += shfl_xor(v, 1);
            v += shfl_xor(v, 2);
            if (t == 0) part[other + m * 16 + g + 8 * r] = v;
        }
        sync_block(); // whoever reads these sums comes to the next barrier when it has: then they may be written over
        if (warp() == turn) finish<M>(a, tile, (const float *)shared + other);
        turn = turn + 1 == warps ? 0 : turn + 1;
        other = other ? 0 : warps * M * 16;
    }
}

// gemv_mixed is for parts of several types, as quantised files have among q, k and v. A block has one tile.
APR_DEVICE void gemv_mixed(const TileArgs &a) {
    u32 tile = block();
    const u32 type = part_of(a, tile).type;
    if (type == 0) gemv_tiles<TileQ4K, 1>(a);
    else if (type == 1) gemv_tiles<TileQ5K, 1>(a);
    else gemv_tiles<TileQ6K, 1>(a);
}
