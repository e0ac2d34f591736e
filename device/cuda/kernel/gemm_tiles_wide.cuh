// Products of 33 to 64 rows of bfloat16 with matrices of blocks in tiles, by warpgroups: gemm_tiles.cuh has the form
// and the rest.
//
// What stands there for a warp holds for each of the four of a warpgroup, whose 64 rows of W are one operand A, in
// registers. B is x in shared memory, which the multiplication reads once for the four; there, warps read it for
// themselves, and those reads were what products waited for. Four panels of a stage have 64 columns each, in the order
// in which lanes hold codes: a panel's row is a row of x, 128 bytes, in which the 16-byte chunk c stands at chunk c ^
// (row mod 8).
//
// Each warp copies spans of its tile by itself (TileRing). x of two spans stands in shared memory: each of a block's
// first 512 threads, of which it has no fewer, copies 32 values of the next span and puts them in that order where they
// stand.
#pragma once
#define PANEL 8192 // bytes, 64 rows of x
#include "attention_hopper.cuh"

constexpr u32 WIDE_WARPS = 20;                       // of a block at most
constexpr u32 X_THREADS = 512, X_BYTES = 4 * PANEL; // that bring x of a span, its bytes

// XOfSpan is a thread's share of x of a span: of a row of x the 32 columns that lanes hold in a unit, 8 each, in four
// chunks of a panel's row. Eight threads that stand together have eight rows, so that they write to different banks; a
// warp reads whole sectors.
struct XOfSpan {
    u32 token, unit, at; // at: of chunk 0
    APR_METHOD XOfSpan() {
        int i = (int)thread();
        opaque(i); // places are computed where they are asked for, not kept in registers that products lack
        token = (i & 7) | i >> 6 << 3, unit = i >> 3 & 7, at = unit / 2 * PANEL + 128 * token + ((4 * (unit & 1) ^ (token & 7)) << 4);
    }
    APR_METHOD u8 *chunk(u8 *x, u32 i) const { return x + (at ^ i << 4); }
    // fill begins to copy it, chunk t being of lane t of four. Zeros stand for columns that are not there; what becomes
    // of rows that are not is not written.
    template <class D> APR_METHOD static void fill(const TilesArgs &a, u8 *x, u32 span) {
        const XOfSpan of;
        if (of.token >= a.tokens) return;
        const u32 first = D::halves ? (of.unit & 6) << 1 | (of.unit & 1) : of.unit;
        const bf16 *from = (const bf16 *)a.x + of.token * a.x_stride + 256 * span + 8 * first;
        UNROLL for (u32 t = 0; t < 4; t++) {
            const u32 after = D::halves ? (t & 2) << 6 | (t & 1) << 4 : t << 6; // columns
            if constexpr (D::partial) {
                const bool there = 256 * span + 8 * first + after < a.cols;
                copy_async16(of.chunk(x, t), there ? from + after : (const bf16 *)a.x, there);
            } else copy_async16(of.chunk(x, t), from + after);
        }
    }
    // turn puts the two values of each lane that meet in a product side by side, once the thread's copies have come.
    APR_METHOD static void turn(u8 *x) {
        if (thread() >= X_THREADS) return;
        const XOfSpan of;
        u32x4 v[4];
        UNROLL for (u32 t = 0; t < 4; t++) v[t] = load16(of.chunk(x, t));
        UNROLL for (u32 i = 0; i < 4; i++) store16(of.chunk(x, i), u32x4{v[0][i], v[1][i], v[2][i], v[3][i]});
        publish();
    }
};

// multiply_wide starts the products of a span, whose last are under way when it returns.
template <class D> APR_DEVICE void multiply_wide(float (&acc)[32], u32 x, const u8 *w, u32 groups) {
    const u32 g = lane() >> 2, t = lane() & 3;
    const SpanScales<D> of(w, g, t, groups);
    x = shfl(x, 0); // is of the warp, as the compiler does not see
    UNROLL for (u32 k = 0; k < 4; k++) {
        Words q[2][4];
        UNROLL for (u32 r = 0; r < 2; r++) D::words(q[r], w, g + 8 * r, t, groups); // of which unit k is used
        u32 rows[16];
        UNROLL for (u32 i = 0; i < 4; i++)
            UNROLL for (u32 r = 0; r < 2; r++) of.decode(rows[4 * i + r], rows[4 * i + 2 + r], q[r][k].w[i], k, r);
        start_scores<1>(acc, rows, operand(x + k * PANEL));
        if (k < 3) wait_products<1>(acc);
    }
}

// sum_wide adds up the block's spans. x of two is in shared memory, before the rings of W. Blocks begin at different
// spans: those that read the same x at the same time wait for each other.
template <class D> APR_DEVICE void sum_wide(const TilesArgs &a, const Tile &p, u8 *shared, float (&acc)[32]) {
    const Spans s = spans_of(a);
    const u32 n = s.end - s.first, turned = block() % n;
    auto at = [&](u32 i) { return s.first + (i + turned < n ? i + turned : i + turned - n); };
    TileRing<D::bytes, D::partial> ring(a, shared + 2 * X_BYTES);
    NO_UNROLL for (u32 i = 0; i < a.stages; i++)
        if (p.there && i < n) ring.fill(a, p, at(i), i);
    wait_before(); // blocks of W do not change
    auto panels = [&](u32 i) { return shared + (i & 1) * X_BYTES; };
    auto ask = [&](u32 i) {
        if (i < n) XOfSpan::fill<D>(a, panels(i), at(i));
        copy_async_commit();
    };
    auto arrive = [&](u32 i) {
        copy_async_wait<0>();
        if (i < n) XOfSpan::turn(panels(i));
    };
    ask(0);
    arrive(0);
    NO_UNROLL for (u32 i = 0; i < n; i++) {
        sync_block(); // x of the span is there for all, and that of the one before has been read
        ask(i + 1);
        if (warp() < a.warps) {
            const u32 span = at(i);
            multiply_wide<D>(acc, shared_address(panels(i)), ring.wait(a, p, span), D::partial ? (u32)min_of(8, a.cols / 32 - 8 * span) : 8);
            arrive(i + 1);
            wait_products<0>(acc);
            ring.advance(a, p, at(i + a.stages), i + a.stages < n);
        } else arrive(i + 1);
    }
}

// The whole. K and grid: as of gemm_tiles. Panels begin at multiples of 1024 bytes.
template <bool K> APR_DEVICE void gemm_tiles_wide(const TilesArgs &a) {
    DYNAMIC_SHARED(begin);
    u8 *shared = begin + (-shared_address(begin) & 1023);
    let_next();
    const Tile p = tile_of(a, warp(), a.warps);
    float acc[32] = {};
    const u32 type = p.part.type;
    if constexpr (K) {
        if (type == 0) sum_wide<Decoded<RowsQ4K>>(a, p, shared, acc);
        else if (type == 1) sum_wide<Decoded<RowsQ5K>>(a, p, shared, acc);
        else sum_wide<Decoded<RowsQ6K>>(a, p, shared, acc);
    } else {
        if (type == 3) sum_wide<Decoded<RowsOfGroups<GroupQ8_0>>>(a, p, shared, acc);
        else if (type == 4) sum_wide<Decoded<RowsOfGroups<GroupQ4_0>>>(a, p, shared, acc);
        else sum_wide<Decoded<RowsOfGroups<GroupQ5_0>>>(a, p, shared, acc);
    }
    float sums[8][4];
    UNROLL for (u32 i = 0; i < 32; i++) sums[i / 4][i % 4] = acc[i];
    finish_tiles(a, p, 1, shared, sums);
}
