// Products of 33 to 64 rows of bfloat16 with matrices of blocks in tiles, by warpgroups: gemm_tiles.cuh has the form and the rest.
//
// What stands there for a warp holds for each of the four of a warpgroup, whose 64 rows of W are one operand A, in registers. B is x in shared
// memory, which the multiplication reads once for the four; there, warps read it for themselves, and those reads were what products waited for.
// Four panels of a stage have 64 columns each, in the order in which lanes hold codes: a panel's row is a row of x, 128 bytes, in which the 16-byte
// chunk c stands at chunk c ^ (row mod 8).
//
// A block has 512 threads, whatever tiles it has: each brings 32 values of x, a span ahead, through registers, where the order changes.
#pragma once
#define PANEL 8192 // bytes, 64 rows of x
#include "attention_hopper.cuh"

constexpr u32 WIDE_WARPS = 16;

// XOfSpan is a thread's share of x of a span: of a row of x the 32 columns that lanes hold in a unit, 8 each.
struct XOfSpan {
    u32x4 v[4]; // of lane t of four
    APR_METHOD void load(const TilesArgs &a, u32 span, bool halves) {
        const u32 token = thread() >> 3, unit = thread() & 7;
        UNROLL for (u32 t = 0; t < 4; t++) {
            const u32 c = halves ? (t & 2) << 3 | (unit & 6) << 1 | (t & 1) << 1 | (unit & 1) : t << 3 | unit, column = 256 * span + 8 * c;
            v[t] = u32x4{0, 0, 0, 0};
            if (token < a.tokens && column < a.cols) v[t] = *(const u32x4 *)((const bf16 *)a.x + token * a.x_stride + column);
        }
    }
    // store puts the two values of each lane that meet in a product side by side.
    APR_METHOD void store(u8 *x) const {
        const u32 token = thread() >> 3, unit = thread() & 7;
        u8 *row = x + unit / 2 * PANEL + 128 * token;
        UNROLL for (u32 i = 0; i < 4; i++)
            *(u32x4 *)(row + (((4 * (unit & 1) + i) ^ (token & 7)) << 4)) = u32x4{v[0][i], v[1][i], v[2][i], v[3][i]};
    }
};

// multiply_wide adds the products of a stage.
template <class D> APR_DEVICE void multiply_wide(float (&acc)[32], u32 x, const u8 *w, u32 groups) {
    const u32 g = lane() >> 2, t = lane() & 3;
    const SpanScales<D> of(w, g, t, groups);
    UNROLL for (u32 k = 0; k < 4; k++) {
        Words q[2][4];
        UNROLL for (u32 r = 0; r < 2; r++) D::words(q[r], w, g + 8 * r, t, groups); // of which unit k is used
        u32 rows[16];
        UNROLL for (u32 i = 0; i < 4; i++)
            UNROLL for (u32 r = 0; r < 2; r++) of.decode(rows[4 * i + r], rows[4 * i + 2 + r], q[r][k].w[i], k, r);
        start_scores<1>(acc, rows, operand(x + k * PANEL));
        if (k < 3) wait_products<1>(acc);
        else wait_products<0>(acc);
    }
}

// sum_wide adds up the block's spans: sum_tiles with x through registers.
template <class D> APR_DEVICE void sum_wide(const TilesArgs &a, const Tile &p, u8 *shared, float (&acc)[32]) {
    const Spans s = spans_of(a);
    const u32 last = a.stages - 1;
    auto stage = [&](u32 slot) { return Stage<8>(a, shared, slot, D::bytes); };
    NO_UNROLL for (u32 i = 0; i < last; i++)
        if (s.first + i < s.end) stage(i).fill_w(a, p, s.first + i);
    wait_before(); // blocks of W do not change
    XOfSpan x;
    NO_UNROLL for (u32 i = 0; i < last; i++) {
        if (s.first + i < s.end) x.load(a, s.first + i, D::halves), x.store(stage(i).x);
        copy_async_commit();
    }
    publish();
    u32 slot = 0;
    NO_UNROLL for (u32 span = s.first; span < s.end; span++) {
        if (a.stages == 2) copy_async_wait<0>();
        else if (a.stages == 3) copy_async_wait<1>();
        else copy_async_wait<2>();
        sync_block(); // the stage is there for all, and the one before has been read
        const u32 free = slot == 0 ? last : slot - 1;
        const bool more = span + last < s.end;
        if (more) stage(free).fill_w(a, p, span + last), x.load(a, span + last, D::halves);
        copy_async_commit();
        const Stage<8> now = stage(slot);
        if (warp() < a.warps) multiply_wide<D>(acc, shared_address(now.x), now.w, (u32)min_of(8, a.cols / 32 - 8 * span));
        if (more) x.store(shared + free * a.pitch), publish();
        slot = slot == last ? 0 : slot + 1;
    }
}

// The whole. K and grid: as of gemm_tiles. Panels begin at multiples of 1024 bytes.
template <bool K> APR_DEVICE void gemm_tiles_wide(const TilesArgs &a) {
    DYNAMIC_SHARED(begin);
    u8 *shared = begin + (-shared_address(begin) & 1023);
    let_next();
    const Tile p = tile_of(a);
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
    finish_tiles(a, p, shared, sums);
}
