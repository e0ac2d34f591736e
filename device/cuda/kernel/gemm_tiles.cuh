// Products of up to 64 rows of bfloat16 with matrices of blocks in tiles, y = x·Wᵀ (of more than 32:
// gemm_tiles_wide.cuh; of up to 16 with Q4_K, Q5_K and Q6_K: gemm_tiles_codes.cuh): see TileArgs of decode_layers.cuh.
// The blocks are read once, and codes become bfloat16 in registers, in the bits that Dequantize gives: s·q − off,
// rounded once.
//
// A warp has a tile, 16 rows of W, which are the operand A of tensor cores; 8 rows of x are the columns of B, up to 8
// times. Lane 4g + t has rows g and g+8 of the tile and, of every 256 columns (a span), 64 of its own. Which columns of
// a span meet in one instruction is free as long as A and B agree: so a lane takes its codes as they stand, four for an
// instruction, and x goes to shared memory in the order in which lanes ask for it, 16 bytes a lane for two
// instructions.
//
// A block has consecutive tiles of one part of W, a warp each, and a share of the spans of their rows: with a product,
// a tile of gate and the same of up, side by side. A stage is one span: x of it for the block, and each warp's tile;
// stages come by asynchronous copies, those of W before it is known what x is. Where spans are shared among blocks each
// leaves its sums, and tiles_join adds them in order.
//
// A block has so many warps because decoding, products and reads of shared memory wait for each other within a warp:
// with two tiles a warp and half as many warps products took a tenth to a fifth longer on an H200.
#pragma once
#include "decode_layers.cuh"

constexpr u32 TILES_PARTS = 4, TILES_WARPS = 18; // of a launch, of a block at most

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
    u32 parts, stages, shares, pitch; // shares of a row's spans; bytes of a stage
    u32 warps; // of a block that have tiles
    u32 chunk, split; // of products by codes: spans of x in shared memory at a time; warps that share a tile's spans
};

// Decoded makes bfloat16 of codes. A code is put into the mantissa of a float whose exponent is known, BASE: then s·(q
// − bias) − off is s·(BASE + q) − (s·(BASE + bias) + off), of which the subtrahend is exact: of Q4_K and Q5_K if d and
// dmin are not more than some 2¹⁰ apart. place moves the codes of a word, of unit k, to their place in the bytes; PICK,
// with i·STEP, picks byte i.
template <class B> struct Decoded : InTile<B> {
    static constexpr float base = 128;
    static constexpr u32 top = 0x43000000, pick = 0x7044, step = 0x100;
    APR_METHOD static u32 place(u32 w, u32) { return w; }
};
template <> struct Decoded<RowsQ4K> : InTile<RowsQ4K> { // units 2 and 3 are high nibbles
    static constexpr float base = 32; // of twice a code, with half its scale: as 16 + q it would need a bit of the exponent in each byte
    static constexpr u32 top = 0x42000000, pick = 0x7044, step = 0x100;
    APR_METHOD static u32 place(u32 w, u32 k) { return k < 2 ? w << 3 : w >> 1; }
    APR_METHOD static void scales(float (&s)[4], float (&off)[4], const u8 *span, u32 row, u32 t, u32) {
        pair_scales(s, off, load16(InTile<RowsQ4K>::of(span, row, 8)), t);
        s[0] *= 0.5f, s[1] *= 0.5f;
    }
};
template <> struct Decoded<RowsQ5K> : InTile<RowsQ5K> {
    static constexpr float base = 32;
    static constexpr u32 top = 0x42000000, pick = 0x7044, step = 0x100;
    APR_METHOD static u32 place(u32 w, u32) { return w << 2; }
};
template <> struct Decoded<RowsOfGroups<GroupQ8_0>> : InTile<RowsOfGroups<GroupQ8_0>> {
    static constexpr float base = 32768 + 128; // codes are signed: 128 more than their value, without a sign
    static constexpr u32 top = 0x47000000, pick = 0x7404, step = 0x10;
    APR_METHOD static u32 place(u32 w, u32) { return w ^ 0x80808080u; }
};

// decode makes four values of a word of codes: of x the first two, then the others.
template <class D> APR_DEVICE void decode(u32 &a, u32 &b, u32 word, u32 k, float s, float less) {
    const u32 w = D::place(word, k);
    float v[4];
    UNROLL for (u32 i = 0; i < 4; i++) v[i] = fma_rn(s, from_bits(byte_perm(w, D::top, D::pick + i * D::step)), -less);
    a = pack_bf16(v[0], v[1]), b = pack_bf16(v[2], v[3]);
}

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

// Stage is a place in shared memory: x of a span, then each warp's tile of it.
template <int N> struct Stage {
    u8 *x, *w;
    u32 size; // bytes of a tile's span
    APR_METHOD Stage(const TilesArgs &a, u8 *shared, u32 slot, u32 bytes) {
        x = shared + slot * a.pitch, size = TILE * bytes, w = x + N * 8 * 512 + warp() * size;
    }
    // fill_w begins to copy a span of the warp's tile. The last span of a row may have less than 256 columns.
    APR_METHOD void fill_w(const TilesArgs &a, const Tile &p, u32 span) const {
        const u32 n = (u32)min_of(size, (a.cols / 32 - 8 * span) * (size / 8));
        NO_UNROLL for (u32 at = 16 * lane(); p.there && at < n; at += 512) copy_async16(w + at, p.w + (u64)span * size + at);
    }
    // fill_x begins to copy x of a span: 16 bytes, 8 columns of a row, to where the lane is that asks for them: lane
    // 4·(row%8) + t of a unit. Zeros stand for columns that are not there; what becomes of rows that are not is not
    // written. 8 threads write 128 bytes that stand together, and a warp reads whole sectors.
    template <class D> APR_METHOD void fill_x(const TilesArgs &a, u32 span) const {
        NO_UNROLL for (u32 i = thread(); i < N * 8 * 32; i += threads()) {
            const u32 t = i & 3, unit = (i >> 3 & 1) | (i >> 3 & 6), token = (i >> 2 & 1) | (i >> 6) << 1;
            const u32 c = D::halves ? (t & 2) << 3 | (unit & 6) << 1 | (t & 1) << 1 | (unit & 1) : t << 3 | unit, column = 256 * span + 8 * c;
            const bool there = !D::partial || column < a.cols;
            const bf16 *from = (const bf16 *)a.x + token * a.x_stride + (there ? column : 0);
            if (token < a.tokens) copy_async16(x + 16 * ((unit * N + token / 8) * 32 + 4 * (token % 8) + t), from, there);
        }
    }
};

// TileRing is a warp's place for spans of its tile, by bulk copies: `stages` of a.pitch bytes, and what they arrive at.
// BYTES: of 256 values of a row, of which the last span may have less if PARTIAL.
template <u32 BYTES, bool PARTIAL = false> struct TileRing {
    static constexpr u32 size = TILE * BYTES, align = 128; // see lead of decode_layers.cuh
    u8 *slots;
    u64 *filled;
    u32 turn = 0, parity = 0;
    APR_METHOD TileRing(const TilesArgs &a, u8 *begin) {
        slots = begin + warp() * a.stages * a.pitch, filled = (u64 *)(begin + a.warps * a.stages * a.pitch) + warp() * a.stages;
        if (warp() < a.warps && lane() < a.stages) bulk_init(filled + lane(), 1);
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

// SpanScales are those of a lane's codes in a span, of rows g and g+8 of a tile.
template <class D> struct SpanScales {
    static constexpr u32 units = D::halves ? 1 : 2; // that share a scale
    float s[2][4], less[2][4];
    APR_METHOD SpanScales(const u8 *w, u32 g, u32 t, u32 groups) {
        UNROLL for (u32 r = 0; r < 2; r++) {
            float off[4];
            D::scales(s[r], off, w, g + 8 * r, t, groups);
            UNROLL for (u32 k = 0; k < 4 / units; k++)
                less[r][k] = D::bias < 0 ? fma_rn(s[r][k], D::base, off[k]) : mul_rn(s[r][k], D::base + D::bias);
        }
    }
    // decode makes four values of a word of codes of unit k and row g + 8r.
    APR_METHOD void decode(u32 &a, u32 &b, u32 word, u32 k, u32 r) const { ::decode<D>(a, b, word, k, s[r][k / units], less[r][k / units]); }
};

// multiply adds the products of a stage: acc[8 rows of x].
template <class D, int N> APR_DEVICE void multiply(float (&acc)[N][4], const u8 *x, const u8 *w, u32 groups) {
    const u32 l = lane(), g = l >> 2, t = l & 3;
    const SpanScales<D> of(w, g, t, groups);
    UNROLL for (u32 k = 0; k < 4; k++) {
        Words q[2][4];
        UNROLL for (u32 r = 0; r < 2; r++) D::words(q[r], w, g + 8 * r, t, groups); // of which unit k is used
        UNROLL for (u32 j = 0; j < 2; j++) {
            u32 rows[2][4]; // instruction
            UNROLL for (u32 r = 0; r < 2; r++)
                UNROLL for (u32 i = 0; i < 2; i++) of.decode(rows[i][r], rows[i][2 + r], q[r][k].w[2 * j + i], k, r);
            const u8 *from = x + 16 * ((2 * k + j) * N * 32 + l);
            UNROLL for (u32 n = 0; n < N; n++) {
                const u32x4 v = load16(from + 512 * n);
                UNROLL for (u32 i = 0; i < 2; i++) mma_bf16(acc[n], rows[i], v[2 * i], v[2 * i + 1]);
            }
        }
    }
}

// sum_tiles adds up the block's spans.
template <class D, int N> APR_DEVICE void sum_tiles(const TilesArgs &a, const Tile &p, u8 *shared, float (&acc)[N][4]) {
    const Spans s = spans_of(a);
    const u32 last = a.stages - 1;
    auto stage = [&](u32 slot) { return Stage<N>(a, shared, slot, D::bytes); };
    NO_UNROLL for (u32 i = 0; i < last; i++)
        if (s.first + i < s.end) stage(i).fill_w(a, p, s.first + i);
    wait_before(); // blocks of W do not change
    NO_UNROLL for (u32 i = 0; i < last; i++) {
        if (s.first + i < s.end) stage(i).template fill_x<D>(a, s.first + i);
        copy_async_commit();
    }
    u32 slot = 0;
    NO_UNROLL for (u32 span = s.first; span < s.end; span++) {
        if (a.stages == 2) copy_async_wait<0>();
        else if (a.stages == 3) copy_async_wait<1>();
        else copy_async_wait<2>();
        sync_block(); // the stage is there for all, and the one before has been read
        if (span + last < s.end) {
            const Stage<N> next = stage(slot == 0 ? last : slot - 1);
            next.fill_w(a, p, span + last);
            next.template fill_x<D>(a, span + last);
        }
        copy_async_commit();
        const Stage<N> now = stage(slot);
        multiply<D, N>(acc, now.x, now.w, (u32)min_of(8, a.cols / 32 - 8 * span));
        slot = slot == last ? 0 : slot + 1;
    }
}

// finish_gate writes y of a column of gate and of its column of up, and the product of both as they are stored.
APR_DEVICE void finish_gate(const TilesArgs &a, const Column &gate, const Column &up, u32 token, float g, float u) {
    const float of_gate = gate.put(a, token, g), of_up = up.put(a, token, u);
    store((bf16 *)a.product + token * a.product_stride + gate.at, gated<bf16>(of_gate, of_up));
}

// finish_tiles writes what a block has summed to y, or leaves it for tiles_join. Value v of a lane is of row g +
// 8·(v/2) of its warp's tile and token 2t + v%2 of eight; `split` warps that stand together have parts of a tile's
// sums. Sums go through shared memory, where warps see each other's and sixteen lanes find a token's 16 rows side by
// side, and are written in a loop: unrolled over a lane's sums it was 4,000 instructions, which came slower than the
// products were made.
template <int N> APR_DEVICE void finish_tiles(const TilesArgs &a, const Tile &p, u32 split, u8 *shared, const float (&acc)[N][4]) {
    constexpr u32 pitch = TILE + 4, size = 8 * N * pitch; // lanes of a warp write to different banks
    float *const own = (float *)shared + warp() * size;
    const u32 g = lane() >> 2, t = lane() & 3, row = lane() % TILE, of_part = TILE * p.tile + row;
    sync_block(); // the last stage has been read
    UNROLL for (u32 i = 0; i < 4 * N; i++)
        if (p.there) own[(i / 4 * 8 + 2 * t + (i & 1)) * pitch + g + 8 * (i >> 1 & 1)] = acc[i / 4][i % 4];
    sync_block();
    if (!p.there || of_part >= p.part.rows) return;
    const u32 together = a.product ? 2 * split : split, n = warp() % together; // warps that write the same sums, in turns
    const float *from = own - n * size + row;
    auto total = [&](u32 token, u32 first) {
        float v = from[first * size + token * pitch];
        NO_UNROLL for (u32 i = 1; i < split; i++) v += from[(first + i) * size + token * pitch];
        return v;
    };
    const u32 begin = 2 * n + lane() / TILE, step = 2 * together;
    if (a.shares > 1) {
        const u32 first = n / split * split;
        float *to = a.sums + (i64)block_y() * a.tokens * a.width + p.part.first + of_part;
        UNROLL_8 for (u32 token = begin % (2 * split); token < a.tokens; token += 2 * split) to[token * (i64)a.width] = total(token, first);
    } else if (!a.product) {
        const Column column(a, p.part.first + of_part);
        NO_UNROLL for (u32 token = begin; token < a.tokens; token += step) column.put(a, token, total(token, 0));
    } else {
        const Column gate(a, of_part), up(a, a.part[1].first + of_part);
        NO_UNROLL for (u32 token = begin; token < a.tokens; token += step)
            finish_gate(a, gate, up, token, total(token, 0), total(token, split));
    }
}

// The whole, for up to 8·N rows of x. K: the types are Q4_K, Q5_K and Q6_K, else the others. Grid: (groups of tiles of
// all parts, shares).
template <int N, bool K> APR_DEVICE void gemm_tiles(const TilesArgs &a) {
    DYNAMIC_SHARED(shared);
    let_next();
    const Tile p = tile_of(a, warp(), a.warps);
    float acc[N][4] = {};
    const u32 type = p.part.type;
    if constexpr (K) {
        if (type == 0) sum_tiles<Decoded<RowsQ4K>>(a, p, shared, acc);
        else if (type == 1) sum_tiles<Decoded<RowsQ5K>>(a, p, shared, acc);
        else sum_tiles<Decoded<RowsQ6K>>(a, p, shared, acc);
    } else {
        if (type == 3) sum_tiles<Decoded<RowsOfGroups<GroupQ8_0>>>(a, p, shared, acc);
        else if (type == 4) sum_tiles<Decoded<RowsOfGroups<GroupQ4_0>>>(a, p, shared, acc);
        else sum_tiles<Decoded<RowsOfGroups<GroupQ5_0>>>(a, p, shared, acc);
    }
    finish_tiles(a, p, 1, shared, acc);
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
