// What products of up to 64 rows of bfloat16 with matrices of blocks in tiles, y = x·Wᵀ, have in common: by values
// (gemm_tiles_wide.cuh) and, of up to 16 rows with Q4_K, Q5_K and Q6_K, by codes (gemm_tiles_codes.cuh). For tiles see
// TileArgs of decode_layers.cuh.
//
// A block has consecutive tiles, 16 rows of W, of one part of W, and a share of the spans of their rows: with a product, a
// tile of gate and the same of up, side by side. Each warp copies spans of its tile by itself (TileRing), the first before
// it is known what x is. Where spans are shared among blocks each leaves its sums, and join adds them in order.
#pragma once
#include "decode_layers.cuh"

constexpr u32 TILES_PARTS = 4; // of a launch

// TilesPart is a matrix in tiles and the columns of y that it makes.
struct TilesPart {
    const u8 *w;
    u32 rows;  // those that are asked for: the last tile may have more
    u32 first; // column of y of row 0
    u32 type;  // as in decode_layers_sm90.go
    u32 bytes; // of 256 values
};

struct TilesArgs {
    void *y;
    const void *x;
    const float *bias; // zero: none
    void *product;     // silu(g)·u, g the columns of y by part 0, u those by part 1; zero: none
    float *sums;       // [shares, tokens, width] if there are several shares
    i64 y_stride, x_stride, product_stride; // elements
    TilesPart part[TILES_PARTS];
    u32 cols, tokens, width; // of W and x, of x and y, of y
    u32 flags;               // as in RowsArgs
    u32 parts, stages, shares, pitch; // spans of a warp in shared memory, shares of a row's spans, bytes of a span there
    u32 warps; // of a block that have tiles
    u32 chunk, split; // of x in shared memory at a time: halves of spans or, by codes, spans; warps that share a tile's spans
};

// Spans are those of a block: [first, end) of its rows.
struct Spans { u32 first, end; };
APR_DEVICE Spans spans_of(const TilesArgs &a) {
    const u32 all = (a.cols + 255) / 256;
    return {all * block_y() / a.shares, all * (block_y() + 1) / a.shares};
}

// Tile is where a warp's tile is; with a product those of warps 2i and 2i + 1 are the same tile of gate and of up.
struct Tile {
    TilesPart part;
    u32 tile; // of the part
    bool there;
    const u8 *w;
};

template <class Args> APR_DEVICE TilesPart tiles_part(const Args &a, u32 p) {
    const TilesPart &p0 = a.part[0], &p1 = a.part[1], &p2 = a.part[2], &p3 = a.part[3];
    auto pick = [&](auto v0, auto v1, auto v2, auto v3) { return p == 0 ? v0 : p == 1 ? v1 : p == 2 ? v2 : v3; };
    return {
        pick(p0.w, p1.w, p2.w, p3.w), pick(p0.rows, p1.rows, p2.rows, p3.rows), pick(p0.first, p1.first, p2.first, p3.first),
        pick(p0.type, p1.type, p2.type, p3.type), pick(p0.bytes, p1.bytes, p2.bytes, p3.bytes),
    };
}

// tile_of finds tile n of the block's `tiles`. Nothing is read of one that is not there, nor written.
APR_DEVICE Tile tile_of(const TilesArgs &a, u32 n, u32 tiles) {
    const u32 each = a.product ? tiles / 2 : tiles; // of a part
    u32 group = block(), p = a.product ? n & 1 : 0;
    Tile r;
    r.part = tiles_part(a, p);
    NO_UNROLL while (!a.product && p + 1 < a.parts) {
        const u32 groups = ((r.part.rows + TILE - 1) / TILE + each - 1) / each;
        if (group < groups) break;
        group -= groups;
        r.part = tiles_part(a, ++p);
    }
    r.tile = group * each + (a.product ? n / 2 : n);
    r.there = n < tiles && r.tile < (r.part.rows + TILE - 1) / TILE;
    r.w = r.part.w + r.tile * (u64)(a.cols / 32) * (TILE * r.part.bytes / 8);
    return r;
}

// TileRing is a warp's place for spans of its tile, by bulk copies: `stages` of a.pitch bytes, and what they arrive at.
// BYTES: of 256 values of a row, of which the last span may have less if PARTIAL.
template <u32 BYTES, bool PARTIAL = false> struct TileRing {
    static constexpr u32 size = TILE * BYTES, align = 128; // see lead of decode_layers.cuh
    u8 *slots;
    u64 *filled;
    u32 turn = 0, parity = 0;
    APR_METHOD TileRing(const TilesArgs &a, u8 *begin, u32 warp) {
        slots = begin + warp * a.stages * a.pitch, filled = (u64 *)(begin + a.warps * a.stages * a.pitch) + warp * a.stages;
        if (warp < a.warps && lane() < a.stages) bulk_init(filled + lane(), 1);
        sync_warp();
    }
    APR_METHOD static u32 lead_of(const Tile &p, u32 span) { return size % align ? lead((u64)(p.w - p.part.w) + (u64)span * size) : 0; }
    APR_METHOD void fill(const TilesArgs &a, const Tile &p, u32 span, u32 slot) const {
        const u32 before = lead_of(p, span), bytes = PARTIAL ? (u32)min_of(size, (a.cols / 32 - 8 * span) * (size / 8)) : size;
        if (lane() == 0) copy_bulk(filled + slot, slots + slot * a.pitch, p.w + (u64)span * size - before, bytes + before);
    }
    // wait returns the next span once it is there; nothing comes of a tile that is not.
    APR_METHOD const u8 *wait(const TilesArgs &a, const Tile &p, u32 span) const {
        if (p.there) bulk_wait(filled + turn, parity);
        return slots + turn * a.pitch + lead_of(p, span);
    }
    // advance goes on to the next span; this one, which every lane has read, gives its place to span `later`, if there is.
    APR_METHOD void advance(const TilesArgs &a, const Tile &p, u32 later, bool is) {
        sync_warp();
        if (p.there && is) fill(a, p, later, turn);
        if (++turn == a.stages) turn = 0, parity ^= 1;
    }
};

// finish_gate writes y of a column of gate and of its column of up, and the product of both as they are stored.
APR_DEVICE void finish_gate(const TilesArgs &a, const Column &gate, const Column &up, u32 token, float g, float u) {
    const float of_gate = gate.put(a, token, g), of_up = up.put(a, token, u);
    store((bf16 *)a.product + token * a.product_stride + gate.at, gated<bf16>(of_gate, of_up));
}

// Columns are up to four columns of y, of the product or of sums that a lane writes; whole: as one store.
struct Columns {
    i64 at;
    u32 count;
    bool whole;
    APR_METHOD Columns(const void *p, u32 size, i64 first, u32 n, i64 stride) : at(first), count(n) {
        whole = n == 4 && ((u64)p / size + first) % 4 == 0 && stride % 4 == 0;
    }
    APR_METHOD void write(bf16 *p, const float (&v)[4]) const {
        if (whole) *(u32x2 *)p = u32x2{pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3])};
        else
            UNROLL for (u32 i = 0; i < 4; i++)
                if (i < count) p[i] = to_bf16(v[i]);
    }
    APR_METHOD void write(float *p, const float (&v)[4]) const {
        if (whole) store16(p, u32x4{bits(v[0]), bits(v[1]), bits(v[2]), bits(v[3])});
        else
            UNROLL for (u32 i = 0; i < 4; i++)
                if (i < count) p[i] = v[i];
    }
};

// ColumnsOfY writes them as Column writes one.
struct ColumnsOfY : Columns {
    float bias[4];
    APR_METHOD ColumnsOfY(const TilesArgs &a, u32 first, u32 n) : Columns(a.y, a.flags & 2 ? 4 : 2, first, n, a.y_stride) {
        UNROLL for (u32 i = 0; i < 4; i++) bias[i] = a.bias && i < n ? a.bias[first + i] : -0.0f; // −0 changes no sum
    }
    // put leaves in v what is stored.
    APR_METHOD void put(const TilesArgs &a, u32 token, float (&v)[4]) const {
        const i64 to = token * a.y_stride + at;
        UNROLL for (u32 i = 0; i < 4; i++) v[i] += bias[i];
        if (a.flags & 1)
            UNROLL for (u32 i = 0; i < 4; i++)
                if (i < count) v[i] += a.flags & 2 ? ((const float *)a.y)[to + i] : from_bf16(((const bf16 *)a.y)[to + i]);
        if (a.flags & 2) {
            if (!(a.flags & 4)) write((float *)a.y + to, v);
            return;
        }
        if (!(a.flags & 4)) write((bf16 *)a.y + to, v);
        UNROLL for (u32 i = 0; i < 4; i++) v[i] = from_bf16(to_bf16(v[i]));
    }
};

// finish_tiles writes what a block has summed to y, or leaves it for tiles_join. Value v of a lane is of row g +
// 8·(v/2) of its warp's tile and token 2t + v%2 of eight; `split` warps that stand together have parts of a tile's
// sums. Sums go through shared memory, where warps see each other's and four lanes find a token's 16 rows side by side,
// and are written in a loop: unrolled over a lane's sums it was 4,000 instructions, which came slower than the products
// were made.
template <int N, class Sync>
APR_DEVICE void finish_tiles(const TilesArgs &a, const Tile &p, u32 split, u8 *shared, const float (&acc)[N][4], Sync sync) {
    constexpr u32 pitch = TILE + 4, size = 8 * N * pitch; // lanes of a warp write to different banks
    float *const own = (float *)shared + warp() * size;
    const u32 g = lane() >> 2, t = lane() & 3, of_part = TILE * p.tile + 4 * t;
    sync(); // the last stage has been read
    UNROLL for (u32 i = 0; i < 4 * N; i++)
        if (p.there) own[(i / 4 * 8 + 2 * t + (i & 1)) * pitch + g + 8 * (i >> 1 & 1)] = acc[i / 4][i % 4];
    sync();
    if (!p.there || of_part >= p.part.rows) return;
    const u32 count = (u32)min_of(4, p.part.rows - of_part);
    const u32 together = a.product ? 2 * split : split, n = warp() % together; // warps that write the same sums, in turns
    const float *from = own - n * size + 4 * t;
    struct Four { float v[4]; };
    auto total = [&](u32 token, u32 first) {
        Four sum;
        const float *q = from + first * size + token * pitch;
        u32x4 v = load16(q);
        UNROLL for (u32 i = 0; i < 4; i++) sum.v[i] = from_bits(v[i]);
        NO_UNROLL for (u32 part = 1; part < split; part++) {
            v = load16(q += size);
            UNROLL for (u32 i = 0; i < 4; i++) sum.v[i] += from_bits(v[i]);
        }
        return sum;
    };
    const u32 begin = 8 * n + g, step = 8 * together;
    if (a.shares > 1) {
        const u32 first = n / split * split;
        const Columns columns(a.sums, 4, p.part.first + of_part, count, a.width);
        float *to = a.sums + (i64)block_y() * a.tokens * a.width + columns.at;
        NO_UNROLL for (u32 token = begin % (8 * split); token < a.tokens; token += 8 * split)
            columns.write(to + token * (i64)a.width, total(token, first).v);
    } else if (!a.product) {
        const ColumnsOfY columns(a, p.part.first + of_part, count);
        NO_UNROLL for (u32 token = begin; token < a.tokens; token += step) {
            Four sum = total(token, 0);
            columns.put(a, token, sum.v);
        }
    } else {
        const ColumnsOfY gate(a, of_part, count), up(a, a.part[1].first + of_part, count);
        const Columns product(a.product, 2, of_part, count, a.product_stride);
        NO_UNROLL for (u32 token = begin; token < a.tokens; token += step) {
            Four z = total(token, 0), u = total(token, split);
            gate.put(a, token, z.v), up.put(a, token, u.v);
            UNROLL for (u32 i = 0; i < 4; i++) z.v[i] = gated<bf16>(z.v[i], u.v[i]);
            product.write((bf16 *)a.product + token * a.product_stride + of_part, z.v);
        }
    }
}

// join adds the shares of a column of y, or of gate and up, in order. Grid: (columns, rows of x).
APR_DEVICE void join(const TilesArgs &a) {
    let_next();
    wait_before();
    const u32 column = block() * threads() + thread(), token = block_y(), columns = a.product ? a.part[0].rows : a.width;
    if (column >= columns) return;
    auto total = [&](u32 column) {
        const float *p = a.sums + (i64)token * a.width + column;
        const i64 step = (i64)a.tokens * a.width;
        float v = 0;
        NO_UNROLL for (u32 first = 0; first < a.shares; first += 8) {
            float w[8];
            UNROLL for (u32 i = 0; i < 8; i++) w[i] = first + i < a.shares ? p[i * step] : 0.0f;
            UNROLL for (u32 i = 0; i < 8; i++) v += w[i];
            p += 8 * step;
        }
        return v;
    };
    if (a.product) finish_gate(a, {a, column}, {a, a.part[1].first + column}, token, total(column), total(a.part[1].first + column));
    else put(a, column, token, total(column));
}
