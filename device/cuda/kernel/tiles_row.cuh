// Products of one row of bfloat16 with matrices of blocks in tiles, y = x·Wᵀ, whose time is that of reading W once: see TileArgs and TileLanes
// of decode_layers.cuh. x is rounded to integers as in gemv_blocks.cuh.
//
// A block has consecutive tiles of all parts, with a product one of gate and the same of up in turns. A span of a tile is an item, and warps
// take items in turns: each has its next ones on their way to shared memory while it multiplies one, the first before it is known what x is.
// The sums of items are added in the order of spans, so that bits depend on the columns of W alone.
#pragma once
#include "gemm_tiles.cuh"

struct TileRowArgs {
    void *y;
    const void *x;
    const float *bias; // zero: none
    void *product;     // silu(g)·u, g the columns of y by part 0, u those by part 1; zero: none
    i64 y_stride;
    TilesPart part[TILES_PARTS];
    RowNorm norm;      // with it x is that
    u32 cols, flags;               // as in RowsArgs
    u32 parts, tiles, each;        // of all parts; of a block
    u32 stages, pitch;             // items of a warp in shared memory, 2 … 5; bytes of one
};

struct RowTile {
    TilesPart part;
    u32 tile; // of the part
};

// row_tile returns tile n of all parts.
APR_DEVICE RowTile row_tile(const TileRowArgs &a, u32 n) {
    if (a.product) return {tiles_part(a, n & 1), n / 2};
    u32 p = 0;
    RowTile r{tiles_part(a, 0), n};
    NO_UNROLL while (p + 1 < a.parts && r.tile >= (r.part.rows + TILE - 1) / TILE) {
        r.tile -= (r.part.rows + TILE - 1) / TILE;
        r.part = tiles_part(a, ++p);
    }
    return r;
}

// ItemCursor walks over a warp's items.
struct ItemCursor {
    u32 item, tile, span; // tile of the block
    u32 step_tile, step_span, spans;
    APR_METHOD ItemCursor(u32 spans, u32 warps) : item(warp()), tile(warp() / spans), span(warp() % spans), step_tile(warps / spans), step_span(warps % spans), spans(spans) {}
    APR_METHOD void advance(u32 warps) {
        item += warps, tile += step_tile, span += step_span;
        if (span >= spans) span -= spans, tile++;
    }
};

// row_total adds the sums of a row of a tile of the block.
APR_DEVICE float row_total(const float *sums, u32 tile, u32 row, u32 spans) {
    const float *p = sums + (u64)tile * spans * TILE + row;
    float v = 0;
    u32 s = 0;
    NO_UNROLL for (; s + 8 <= spans; s += 8) {
        float w[8];
        UNROLL for (u32 i = 0; i < 8; i++) w[i] = p[(s + i) * TILE];
        UNROLL for (u32 i = 0; i < 8; i++) v += w[i];
    }
    NO_UNROLL for (; s < spans; s++) v += p[s * TILE];
    return v;
}

// write_row writes y of the block's rows, a thread each.
APR_DEVICE void write_row(const TileRowArgs &a, const float *sums, u32 first, u32 count, u32 spans) {
    const u32 all = (a.product ? count / 2 : count) * TILE;
    NO_UNROLL for (u32 i = thread(); i < all; i += threads()) {
        const u32 n = i / TILE, row = i % TILE;
        const RowTile t = row_tile(a, first + (a.product ? 2 * n : n));
        const u32 of_part = t.tile * TILE + row;
        if (of_part >= t.part.rows) continue;
        if (!a.product) {
            put(a, t.part.first + of_part, 0, row_total(sums, n, row, spans));
            continue;
        }
        const float g = put(a, of_part, 0, row_total(sums, 2 * n, row, spans));
        const float u = put(a, a.part[1].first + of_part, 0, row_total(sums, 2 * n + 1, row, spans));
        store((bf16 *)a.product + of_part, gated<bf16>(g, u));
    }
}

// K: the types are Q4_K, Q5_K and Q6_K, else Q8_0, Q4_0 and Q5_0.
template <bool K> APR_DEVICE void tiles_row(const TileRowArgs &a) {
    DYNAMIC_SHARED(shared);
    let_next();
    const u32 l = lane(), warps = threads() / 32, groups = a.cols / 32, spans = (a.cols + 255) / 256;
    const u32 first = block() * a.each, count = (u32)min_of(a.each, a.tiles - first);
    u8 *x = shared, *zeros = x + spans * SPAN_X, *ring = zeros + 256 + warp() * a.stages * a.pitch;
    float *sums = (float *)(zeros + 256 + warps * a.stages * a.pitch); // [items, TILE]
    ItemCursor next(spans, warps), now(spans, warps);
    auto copy_next = [&](u32 slot) {
        if (next.tile < count) {
            const RowTile t = row_tile(a, first + next.tile);
            const u32 size = TILE * t.part.bytes, n = (u32)min_of(size, (groups - 8 * next.span) * (size / 8));
            const u8 *from = t.part.w + (u64)t.tile * groups * (size / 8) + (u64)next.span * size + 16 * l;
            u8 *to = ring + slot * a.pitch + 16 * l;
            UNROLL for (u32 at = 0; at < TILE * 288; at += 512) // 288: of Q8_0, more than any
                if (at + 16 * l < n) copy_async16(to + at, from + at);
            next.advance(warps);
        }
        copy_async_commit();
    };
    NO_UNROLL for (u32 s = 0; s < a.stages; s++) copy_next(s);
    wait_before(); // blocks of W do not change
    const u32 packs = a.cols / 8;
    if (a.norm.x) norm_row(a.norm, a.cols, block() == 0, [&](u32 pack, const Pack<bf16, 8> &v, bool live) { round_pack<BySpan>(x, pack, v.v, live); });
    else NO_UNROLL for (u32 base = 32 * warp(); base < packs; base += threads()) {
        const u32 pack = base + l;
        u32x4 v = {};
        if (pack < packs) v = load16((const bf16 *)a.x + 8 * (u64)pack);
        round_pack<BySpan>(x, pack, v, pack < packs);
    }
    if (thread() < 64) ((u32 *)zeros)[thread()] = 0;
    sync_block();
    NO_UNROLL for (u32 slot = 0; now.tile < count; now.advance(warps)) {
        if (a.stages == 2) copy_async_wait<1>();
        else if (a.stages == 3) copy_async_wait<2>();
        else if (a.stages == 4) copy_async_wait<3>();
        else copy_async_wait<4>();
        sync_warp(); // every lane's copies are there
        const u8 *at = ring + slot * a.pitch;
        const u32 type = row_tile(a, first + now.tile).part.type, left = (u32)min_of(8, groups - 8 * now.span);
        float sum[2] = {};
        if constexpr (K) {
            if (type == 0) TileLanes<InTile<RowsQ4K>>(x, zeros, l).add(sum, at, now.span, 8);
            else if (type == 1) TileLanes<InTile<RowsQ5K>>(x, zeros, l).add(sum, at, now.span, 8);
            else TileLanes<InTile<RowsQ6K>>(x, zeros, l).add(sum, at, now.span, 8);
        } else {
            if (type == 3) TileLanes<InTile<RowsOfGroups<GroupQ8_0>>>(x, zeros, l).add(sum, at, now.span, left);
            else if (type == 4) TileLanes<InTile<RowsOfGroups<GroupQ4_0>>>(x, zeros, l).add(sum, at, now.span, left);
            else TileLanes<InTile<RowsOfGroups<GroupQ5_0>>>(x, zeros, l).add(sum, at, now.span, left);
        }
        sync_warp(); // every lane has read: the slot may be filled again
        copy_next(slot);
        slot = slot + 1 == a.stages ? 0 : slot + 1;
        UNROLL for (u32 r = 0; r < 2; r++) {
            sum[r] += shfl_xor(sum[r], 1);
            sum[r] += shfl_xor(sum[r], 2);
            if ((l & 3) == 0) sums[now.item * TILE + (l >> 2) + 8 * r] = sum[r];
        }
    }
    sync_block();
    write_row(a, sums, first, count, spans);
}
