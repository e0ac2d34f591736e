// Products of 17 to 64 rows of bfloat16 with matrices of blocks in tiles, and of 2 to 64 with types whose blocks are one
// group: gemm_tiles.cuh has the form and the rest. The blocks are read once, and codes become bfloat16 in registers, in
// the bits that Dequantize gives: s·q − off, rounded once.
//
// The 64 rows of W that the four warps of a warpgroup have, a tile each, are one operand A of wgmma, in registers. B is x
// in shared memory, up to 64 rows of it, which the multiplication reads once for the four. Lane 4g + t has rows g and
// g+8 of its warp's tile and, of every 256 columns (a span), 64 of its own. Which columns of a span meet in one product
// is free as long as A and B agree: a lane takes its codes as they stand, and x is put in the order in which lanes hold
// them. A panel has 64 columns in that order: its row is a row of x, 128 bytes, in which the 16-byte chunk c stands at
// chunk c ^ (row mod 8), the pattern that wgmma reads.
//
// Warps that multiply do nothing else. Each copies spans of its tile by itself, in bulk (TileRing). Four warps more bring
// x, half a span at a time (Halves): they copy a half while they put the one before in order, where it stands. Nothing
// waits for the whole block, so that warpgroups drift apart: one decodes while tensor cores have another's products.
#pragma once
#include "gemm_tiles.cuh"
#define PANEL 8192 // bytes, of 64 rows of x
#include "attention_hopper.cuh"

constexpr u32 WIDE_WARPS = 20, X_THREADS = 128; // of a block: warps that multiply, at most, and threads that bring x
constexpr u32 WIDE_THREADS = 32 * WIDE_WARPS + X_THREADS;

#ifndef APR_HOST
template <int N> APR_DEVICE void wait_products(float (&d)[16]) {
    asm volatile("wgmma.wait_group.sync.aligned %16;" : SIXTEEN("+f", d, 0) : "n"(N) : "memory");
}
template <int N> APR_DEVICE void wait_products(float (&d)[4]) {
    asm volatile("wgmma.wait_group.sync.aligned %4;" : FOUR("+f", d, 0) : "n"(N) : "memory");
}
APR_DEVICE void named_sync(u32 number, u32 threads) { asm volatile("bar.sync %0, %1;" : : "r"(number), "r"(threads) : "memory"); }
// start_tiles<J> starts s += w·xᵀ for the group's 64 rows of W and 8, 32 or 64 rows of x. w are the left operand's
// registers, of columns 32·J … 32·J + 31 of a panel, which begins at x: see operand of attention_hopper.cuh. A descriptor
// is made of one register that changes, the same in all lanes as the compiler sees it.
#define EIGHT(c, x) FOUR(c, x, 0), FOUR(c, x, 4)
#define TILES_STEPS(n, sums, a0, a1, a2, a3, a4, a5, a6, a7, at, one) \
    "{ .reg .pred on; .reg .b32 c; .reg .b64 b; setp.ne.b32 on, %" #one ", 0; mov.b64 b, {%" #at ", 0x40000040}; wgmma.fence.sync.aligned;\n" \
    "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" sums "}, {%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 "}, b, on, 1, 1, 0;\n" \
    "add.u32 c, %" #at ", 2; mov.b64 b, {c, 0x40000040};\n" \
    "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" sums "}, {%" #a4 ",%" #a5 ",%" #a6 ",%" #a7 "}, b, on, 1, 1, 0;\n" END
template <int J> APR_DEVICE void start_tiles(float (&s)[32], const u32 (&w)[8], u32 x) {
    asm volatile(TILES_STEPS(64, REGISTERS_32, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41)
        : CHANGES_32(s) : EIGHT("r", w), "r"((x >> 4) + 4 * J), "r"(1) : "memory");
}
template <int J> APR_DEVICE void start_tiles(float (&s)[16], const u32 (&w)[8], u32 x) {
    asm volatile(TILES_STEPS(32, "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15", 16, 17, 18, 19, 20, 21, 22, 23, 24, 25)
        : SIXTEEN("+f", s, 0) : EIGHT("r", w), "r"((x >> 4) + 4 * J), "r"(1) : "memory");
}
template <int J> APR_DEVICE void start_tiles(float (&s)[4], const u32 (&w)[8], u32 x) {
    asm volatile(TILES_STEPS(8, "%0,%1,%2,%3", 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)
        : FOUR("+f", s, 0) : EIGHT("r", w), "r"((x >> 4) + 4 * J), "r"(1) : "memory");
}
#endif

// Decoded makes bfloat16 of codes. A code is put into the mantissa of a float whose exponent is known, BASE: then s·(q
// − bias) − off is s·(BASE + q) − (s·(BASE + bias) + off), of which the subtrahend is exact: of Q4_K and Q5_K if d and
// dmin are not more than some 2¹⁰ apart. place moves the codes of a word, of unit k, to their place in the bytes; PICK,
// with i·STEP, picks byte i.
template <class B> struct Headless : InTile<B> {
    struct Head {};
    APR_METHOD static Head head(const u8 *, u32) { return {}; }
    APR_METHOD static void scales(float (&s)[4], float (&off)[4], Head, const u8 *span, u32 row, u32 t, u32 groups) {
        InTile<B>::scales(s, off, span, row, t, groups);
    }
};
template <class B> struct Decoded : Headless<B> {
    static constexpr float base = 128;
    static constexpr u32 top = 0x43000000, pick = 0x7044, step = 0x100;
    APR_METHOD static u32 place(u32 w, u32) { return w; }
};
template <> struct Decoded<RowsQ4K> : InTile<RowsQ4K> {
    static constexpr float base = 32; // of twice a code, with half its scale: as 16 + q it would need a bit of the exponent in each byte
    static constexpr u32 top = 0x42000000, pick = 0x7044, step = 0x100;
    APR_METHOD static u32 place(u32 w, u32) { return w << 3; }
    using Head = u32x4;
    APR_METHOD static Head head(const u8 *span, u32 row) { return load16(InTile<RowsQ4K>::of(span, row, 8)); }
    APR_METHOD static void scales(float (&s)[4], float (&off)[4], Head head, const u8 *, u32, u32 t, u32) {
        pair_scales(s, off, head, t);
        s[0] *= 0.5f;
    }
};

template <> struct Decoded<RowsQ5K> : Headless<RowsQ5K> {
    static constexpr float base = 32;
    static constexpr u32 top = 0x42000000, pick = 0x7044, step = 0x100;
    APR_METHOD static u32 place(u32 w, u32) { return w << 2; }
};
template <> struct Decoded<RowsOfGroups<GroupQ8_0>> : Headless<RowsOfGroups<GroupQ8_0>> {
    static constexpr float base = 32768 + 128; // codes are signed: 128 more than their value, without a sign
    static constexpr u32 top = 0x47000000, pick = 0x7404, step = 0x10;
    APR_METHOD static u32 place(u32 w, u32) { return w ^ 0x80808080u; }
};

// small is not 0 if units with scale c become floats as halves below the least normal one, code·2⁻²⁴, two bytes at a time:
// an instruction more for four codes, but fewer of those that half as many lanes compute in a cycle. It is what their
// scale is multiplied by. High nibbles of Q4_K, which are worth 16 times theirs, would need one more to get to their place.
template <class D> constexpr float small(u32) { return 0; }
template <> constexpr float small<Decoded<RowsQ4K>>(u32 c) { return c == 1 ? 0x1p20f : 0; }
template <> constexpr float small<Decoded<RowsQ6K>>(u32) { return 0x1p24f; }

// decode makes four values of a word of codes: of x the first two, then the others.
template <class D> APR_DEVICE void decode(u32 &a, u32 &b, u32 word, u32 k, float s, float less) {
    float v[4];
    if (small<D>(k / 2) != 0) {
        UNROLL for (u32 i = 0; i < 4; i += 2) {
            const u32 two = byte_perm(word, 0, i ? 0x4342 : 0x4140);
            v[i] = fma_rn(s, from_f16((u16)two), -less), v[i + 1] = fma_rn(s, from_f16((u16)(two >> 16)), -less);
        }
    } else {
        const u32 w = D::place(word, k);
        UNROLL for (u32 i = 0; i < 4; i++) v[i] = fma_rn(s, from_bits(byte_perm(w, D::top, D::pick + i * D::step)), -less);
    }
    a = pack_bf16(v[0], v[1]), b = pack_bf16(v[2], v[3]);
}

// SpanScales are those of a lane's codes in a span, of rows g and g+8 of a tile.
template <class D> struct SpanScales {
    static constexpr u32 units = D::halves ? 1 : 2; // that share a scale
    float s[2][4], less[2][4];
    APR_METHOD SpanScales(const typename D::Head (&head)[2], const u8 *w, u32 g, u32 t, u32 groups) {
        UNROLL for (u32 r = 0; r < 2; r++) {
            float off[4];
            D::scales(s[r], off, head[r], w, g + 8 * r, t, groups);
            UNROLL for (u32 k = 0; k < 4 / units; k++) {
                const float base = small<D>(k) != 0 ? 0 : D::base;
                less[r][k] = D::bias >= 0 ? mul_rn(s[r][k], base + D::bias) : base != 0 ? fma_rn(s[r][k], base, off[k]) : off[k];
                if (small<D>(k) != 0) s[r][k] *= small<D>(k);
            }
        }
    }
    // decode makes four values of a word of codes of unit k and row g + 8r.
    APR_METHOD void decode(u32 &a, u32 &b, u32 word, u32 k, u32 r) const { ::decode<D>(a, b, word, k, s[r][k / units], less[r][k / units]); }
};

// Halves is a place in a ring of halves of spans of x, two panels of 8·N rows each: a.chunk of them, and two barriers for
// each: whether it is there, by the threads that bring it, and whether all warps have read it.
template <int N> struct Halves {
    static constexpr u32 panel = N * 1024, size = 2 * panel;
    u32 begin, barriers, slot = 0, parity = 0; // addresses of the first half and of its barrier; number of this one; of its round
    APR_METHOD Halves(u8 *first, u8 *after) : begin(shared_address(first)), barriers(shared_address(after)) {}
    // init is of one thread, before a barrier of the block.
    APR_METHOD void init(const TilesArgs &a) const {
        NO_UNROLL for (u32 i = 0; i < a.chunk; i++) barrier_init(barriers + 16 * i, X_THREADS), barrier_init(barriers + 16 * i + 8, a.warps);
    }
    APR_METHOD u32 there() const { return barriers + 16 * slot; }
    APR_METHOD u32 read() const { return there() + 8; }
    APR_METHOD u32 place() const { return begin + slot * size; }
    APR_METHOD void next(const TilesArgs &a) {
        if (++slot == a.chunk) slot = 0, parity ^= 1;
    }
};

// XShare is what a lane brings of x: of a half of a span, in every 32nd row, the 32 columns that the four lanes of a row
// hold in a unit, 8 each, in four chunks of a panel's row. Eight lanes that stand together have eight rows, so that they
// write to different banks; a warp reads whole sectors.
template <bool HALVES, bool PARTIAL, int N> struct XShare {
    static constexpr u32 panel = Halves<N>::panel;
    u32 column, at, row; // of a span; of chunk 0 in a half; the first
    APR_METHOD XShare(u32 warp) {
        const u32 unit = lane() >> 3;
        row = 8 * warp + (lane() & 7), column = 8 * (HALVES ? (unit & 2) << 1 | (unit & 1) : unit);
        at = unit / 2 * panel + 128 * row + ((4 * (unit & 1) ^ (row & 7)) << 4);
    }
    // fill begins to copy it, chunk t being of lane t of four. Zeros stand for columns that are not there; what becomes
    // of rows that are not is not written.
    APR_METHOD void fill(const TilesArgs &a, u32 x, u32 span, u32 half) const {
        const u32 first = 256 * span + (HALVES ? 64 : 32) * half + column;
        UNROLL for (u32 n = 0; n < N; n += 4) {
            if (row + 8 * n >= a.tokens) break;
            const bf16 *from = (const bf16 *)a.x + (row + 8 * n) * a.x_stride + first;
            UNROLL for (u32 t = 0; t < 4; t++) {
                const u32 after = HALVES ? (t & 2) << 6 | (t & 1) << 4 : t << 6; // columns
                const bool is = !PARTIAL || first + after < a.cols;
                fetch16(x + (at ^ t << 4) + 1024 * n, is ? from + after : (const bf16 *)a.x, is);
            }
        }
    }
    // turn puts the two values of each lane that meet in a product side by side, once the copies have come.
    APR_METHOD void turn(const TilesArgs &a, u8 *x) const {
        UNROLL for (u32 n = 0; n < N; n += 4) {
            if (row + 8 * n >= a.tokens) break;
            u32x4 v[4];
            UNROLL for (u32 t = 0; t < 4; t++) v[t] = load16(x + (at ^ t << 4) + 1024 * n);
            UNROLL for (u32 i = 0; i < 4; i++) store16(x + (at ^ i << 4) + 1024 * n, u32x4{v[0][i], v[1][i], v[2][i], v[3][i]});
        }
        publish();
    }
};

// bring is what the last four warps do: all halves of the block's spans of x, one on its way while the one before is turned.
template <bool HALVES, bool PARTIAL, int N> APR_DEVICE void bring(const TilesArgs &a, u8 *shared, Halves<N> filled) {
    const Spans s = spans_of(a);
    const XShare<HALVES, PARTIAL, N> mine(warp() - a.warps);
    Halves<N> turned = filled;
    const u32 n = 2 * (s.end - s.first);
    NO_UNROLL for (u32 i = 0; i <= n; i++) {
        if (i < n) {
            barrier_wait(filled.read(), filled.parity ^ 1);
            mine.fill(a, filled.place(), s.first + i / 2, i & 1);
            filled.next(a);
        }
        copy_async_commit();
        if (i == 0) continue;
        copy_async_wait<1>();
        mine.turn(a, shared + turned.slot * turned.size);
        barrier_arrive(turned.there());
        turned.next(a);
    }
}

// sum_wide adds up the block's spans. rings is where those of W begin.
template <class D, int N> APR_DEVICE void sum_wide(const TilesArgs &a, u32 own, const Tile &p, u8 *rings, Halves<N> x, float (&acc)[4 * N]) {
    const Spans s = spans_of(a);
    const u32 g = lane() >> 2, t = lane() & 3;
    TileRing<D::bytes, D::partial> ring(a, rings, own);
    NO_UNROLL for (u32 i = 0; i < a.stages; i++)
        if (p.there && s.first + i < s.end) ring.fill(a, p, s.first + i, i);
    const u8 *w = ring.wait(a, p, s.first);
    typename D::Head head[2]; // what scales are made of
    auto ask = [&] {
        UNROLL for (u32 r = 0; r < 2; r++) head[r] = D::head(w, g + 8 * r);
    };
    ask();
    u32 before = 0; // the barrier of the half before, which has been read once the first products of the next are under way
    NO_UNROLL for (u32 span = s.first; span < s.end; span++) {
        const u32 groups = D::partial ? (u32)min_of(8, a.cols / 32 - 8 * span) : 8;
        const SpanScales<D> of(head, w, g, t, groups);
        Words q[2]; // of a unit: one row's are asked for before products are waited for, the other's while those are decoded
        auto load = [&](u32 k, u32 r) {
            Words all[4];
            D::words(all, w, g + 8 * r, t, groups);
            q[r] = all[k];
        };
        load(0, 0);
        u32 rows[2][8];
        u32 half = 0;
        UNROLL for (u32 k = 0; k < 4; k++) {
            if (k % 2 == 0) half = shfl(x.place(), 0);
            load(k, 1);
            UNROLL for (u32 j = 0; j < 2; j++) {
                UNROLL for (u32 r = 0; r < 2; r++)
                    UNROLL for (u32 i = 0; i < 2; i++) of.decode(rows[j][4 * i + r], rows[j][4 * i + 2 + r], q[r].w[2 * j + i], k, r);
                const bool begins = k % 2 == 0 && j == 0; // a half
                if (begins) barrier_wait(x.there(), x.parity);
                if (j == 0) start_tiles<0>(acc, rows[j], half + k % 2 * x.panel);
                else start_tiles<1>(acc, rows[j], half + k % 2 * x.panel);
                if (j == 1 && k < 3) load(k + 1, 0);
                if (j == 1 && k == 3) {
                    ring.advance(a, p, span + a.stages, span + a.stages < s.end);
                    if (span + 1 < s.end) w = ring.wait(a, p, span + 1), ask();
                }
                wait_products<1>(acc);
                if (begins) {
                    if (before && lane() == 0) barrier_arrive(before);
                    before = x.read();
                }
            }
            if (k % 2 == 1) x.next(a);
        }
    }
    wait_products<0>(acc);
}

// The whole, for up to 8·N rows of x. K: the types are Q4_K, Q5_K and Q6_K, else the others. Grid: (groups of tiles of
// all parts, shares). Panels begin at multiples of 1024 bytes.
template <int N, bool K> APR_DEVICE void gemm_tiles_wide(const TilesArgs &a) {
    DYNAMIC_SHARED(begin);
    u8 *const shared = begin + (-shared_address(begin) & 1023), *const rings = shared + a.chunk * Halves<N>::size;
    let_next();
    const Halves<N> x(shared, rings + a.warps * a.stages * (a.pitch + 8));
    if (thread() == 0) x.init(a);
    sync_block();
    int own = (int)shfl(warp(), 0); // the warp's, as the compiler sees it
    Tile p = tile_of(a, own, a.warps);
    const u32 type = p.part.type;
    if ((u32)own >= a.warps) {
        shrink_registers<40>();
        wait_before();
        if (type == 2) return bring<true, false>(a, shared, x);
        return bring<false, !K>(a, shared, x);
    }
    grow_registers<88>();
    float acc[4 * N] = {};
    if constexpr (K) {
        if (type == 0) sum_wide<Decoded<RowsQ4K>>(a, own, p, rings, x, acc);
        else if (type == 1) sum_wide<Decoded<RowsQ5K>>(a, own, p, rings, x, acc);
        else sum_wide<Decoded<RowsQ6K>>(a, own, p, rings, x, acc);
    } else {
        if (type == 3) sum_wide<Decoded<RowsOfGroups<GroupQ8_0>>>(a, own, p, rings, x, acc);
        else if (type == 4) sum_wide<Decoded<RowsOfGroups<GroupQ4_0>>>(a, own, p, rings, x, acc);
        else sum_wide<Decoded<RowsOfGroups<GroupQ5_0>>>(a, own, p, rings, x, acc);
    }
    opaque(own); // the tile is found again, not kept in registers that products lack
    p = tile_of(a, own, a.warps);
    wait_before(); // y may be what the kernel before reads
    float sums[N][4];
    UNROLL for (u32 i = 0; i < 4 * N; i++) sums[i / 4][i % 4] = acc[i];
    finish_tiles(a, p, 1, shared, sums, [&] { named_sync(1, 32 * a.warps); });
}
