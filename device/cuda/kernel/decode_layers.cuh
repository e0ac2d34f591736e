// All layers of a model for one position, as one launch: the bytes of weights, which are what takes the time, keep coming
// while blocks wait for each other.
//
// Matrices stand in tiles of 16 rows: see TileArgs. A span of a tile is 256 columns, or what its rows end with. A block has whole
// tiles of every matrix, and a warp of it consecutive spans of each product, which are one stretch of memory. Spans come to
// shared memory by bulk copies, several of a warp ahead, also those of products whose x is still being computed: weights do
// not change.
//
// Tensor cores multiply a span's codes by x in integers, as gemv_blocks.cuh has them. Every group of columns has a scale of its
// own, so that sums of different groups must not mix: x is the matrix B with two columns, hi and lo, for each of the four groups
// that the lanes of a row hold at a time, and zeros elsewhere. Lane 4g+t gets the sums of rows g and g+8 for the group of lane t.
#pragma once
#include "attention_decode.cuh"
#include "gemv_blocks.cuh"

constexpr u32 MATRICES = 7, PRODUCTS = 4;        // of a layer: q, k, v; o; gate, up; down
constexpr u32 DECODE_WARPS = 16, MOST_HIDDEN = 2; // of a block; packs of the hidden state that a thread has at most
constexpr u32 SLOTS = 8;                          // spans of a warp in shared memory at most
constexpr u32 TILE = 16;                          // rows
constexpr int KEYS_AHEAD = 6;                     // of a lane, that are loaded together
constexpr u32 ZEROS = 3 * PLANE + 16;             // bytes of zeros that lanes without a column of x read

struct DecodeLayer {
    const u8 *w[MATRICES];
    const float *norm[2]; // of RMSNorm before q, k, v and before gate, up
    const float *bias;    // of q, k, v; zero: none
    bf16 *cache;          // [capacity, 2·kv_heads·d]: a rotated key, then its value
    u16 kind[8];          // of w: bytes of 256 values, and 4096 times a number of the type
    u64 none;
};

struct DecodeArgs {
    const DecodeLayer *layers; // [count]
    u32 *arrived;
    bf16 *x;                  // [hidden], in and out
    bf16 *qkv, *att, *product; // [(heads + 2·kv_heads)·d], [heads·d], [inter]
    const float *table;       // of the position, [d/2, 2]: cosine, sine
    float *part;              // [splits, heads, PART]
    float *squares;           // [blocks]: Σ x² of each block's rows of x
    i64 cache_stride;
    u32 count, hidden, inter, heads, kv_heads, d;
    u32 position, splits; // splits: shares that a head's keys are cut into
    u32 slots, pitch;     // spans of a warp in shared memory, bytes of one
    u32 spans, tiles;     // of a warp in a layer, of a block in a product, at most
    u32 ring_at, zeros_at, sums_at, own_at, bias_at, spans_at, tiles_at, layers_at; // bytes, of shared memory; x is at 0
    float eps, inv_hidden, log2_scale;
};

// TileArgs are those of tile_wide and tile_narrow, which copy a matrix of blocks from rows, one after the other, to tiles or, with
// back, the other way. A tile is 16 rows, in the place that they have in rows; in it come, for each span of 256 columns in turn,
// the blocks of the 16 rows. Bytes are counted in words of the kernel's width.
struct TileArgs {
    void *dst;
    const void *src;
    u32 row, span; // words of a row, of 256 columns
    u32 back;
};
// A thread has several words on their way together. Grid: (tiles, TILE_SPANS spans of each).
constexpr u32 TILE_SPANS = 8;
template <class W> APR_DEVICE void tile(const TileArgs &a) {
    constexpr u32 WORDS = 4;
    const u64 first = (u64)block() * TILE * a.row;
    const W *from = (const W *)a.src + first;
    W *to = (W *)a.dst + first;
    const u32 part = TILE_SPANS * TILE * a.span, end = (u32)min_of((block_y() + 1) * part, TILE * a.row);
    for (u32 base = block_y() * part + thread(); base < end; base += WORDS * threads()) {
        W v[WORDS];
        u32 in_rows[WORDS];
        UNROLL for (u32 k = 0; k < WORDS; k++) {
            const u32 i = base + k * threads(), span = i / (TILE * a.span), words = (u32)min_of(a.span, a.row - span * a.span);
            if (i >= end) break;
            const u32 at = i - span * TILE * a.span, row = at / words;
            in_rows[k] = row * a.row + span * a.span + (at - row * words);
            v[k] = from[a.back ? i : in_rows[k]];
        }
        UNROLL for (u32 k = 0; k < WORDS; k++)
            if (base + k * threads() < end) to[a.back ? in_rows[k] : base + k * threads()] = v[k];
    }
}

// Share is what a block has of a matrix: tiles from first on.
struct Share { u32 first, tiles; };

// Model is what all layers have in common, as a block sees it.
struct Model {
    const DecodeArgs &a;
    const DecodeLayer *layers; // in shared memory
    const Share *shares;       // [MATRICES]
    APR_METHOD static u32 begin(u32 product) { return product == 0 ? 0 : product == 1 ? 3 : product == 2 ? 4 : 6; } // its matrices
    APR_METHOD static u32 end(u32 product) { return product == 0 ? 3 : product == 1 ? 4 : product == 2 ? 6 : 7; }
    APR_METHOD u32 cols(u32 product) const { return product == 1 ? a.heads * a.d : product == 3 ? a.inter : a.hidden; }
    APR_METHOD u32 groups(u32 product) const { return cols(product) / 32; }
    APR_METHOD u32 spans(u32 product) const { return (cols(product) + 255) / 256; }
    APR_METHOD u32 tiles(u32 product) const { // of the block
        u32 n = 0;
        NO_UNROLL for (u32 m = begin(product); m < end(product); m++) n += shares[m].tiles;
        return n;
    }
    // share divides the tiles of the matrices [m, end) of a product among blocks, as if they were one.
    APR_METHOD Share share(u32 m) const {
        const u32 q = a.heads * a.d / TILE, kv = a.kv_heads * a.d / TILE, of_inter = a.inter / TILE, of_hidden = a.hidden / TILE;
        const u32 before = m == 1 ? q : m == 2 ? q + kv : 0, count = m == 0 ? q : m < 3 ? kv : m == 4 || m == 5 ? of_inter : of_hidden;
        const u32 all = m < 3 ? q + 2 * kv : count;
        i64 first = (i64)all * block() / blocks(), end = (i64)all * (block() + 1) / blocks();
        first = min_of(before + count, first < before ? before : first), end = min_of(before + count, end < before ? before : end);
        return {(u32)first - before, (u32)(end - first)};
    }
};

// Span is 256 columns of a tile, or those that its rows end with.
struct __attribute__((aligned(8))) Span {
    u32 at : 24, groups : 4; // groups of columns of a row that are before it in the matrix, and its own
    u32 last : 4;            // whether the warp has no more of the tile
    u16 number;              // of the row's
    u8 matrix, place;        // place of the sums of its tile: see Work
};

// TileSums says where the sums are that make a tile's rows: the first place, and how many.
struct TileSums { u8 place, count; };

// Work is what a block does in each layer, in shared memory. Warp w has spans [c·w, c·(w+1)) of those of a product's tiles. Its
// sums of the rows of a tile are at place w + tile: no two warps have the same one, since they have the tiles in order.
struct Work {
    Span *spans;     // [DECODE_WARPS, a.spans]
    TileSums *tiles; // [PRODUCTS, a.tiles]
    u32 *counts;     // [DECODE_WARPS, PRODUCTS]: spans
    // describe writes it, each warp its part.
    APR_METHOD void describe(const Model &m) const {
        Span *to = spans + warp() * m.a.spans;
        NO_UNROLL for (u32 product = 0; product < PRODUCTS; product++) {
            const u32 of_row = m.spans(product), groups = m.groups(product), all = m.tiles(product) * of_row;
            const u32 each = (all + DECODE_WARPS - 1) / DECODE_WARPS, begin = (u32)min_of(each * warp(), all), end = (u32)min_of(begin + each, all);
            NO_UNROLL for (u32 i = begin + lane(); i < end; i += 32) {
                const u32 tile = i / of_row, span = i - tile * of_row;
                u32 matrix = Model::begin(product), number = tile;
                NO_UNROLL while (number >= m.shares[matrix].tiles) number -= m.shares[matrix++].tiles;
                to[i - begin] = {
                    (m.shares[matrix].first + number) * groups + 8 * span, (u32)min_of(8, groups - 8 * span),
                    span + 1 == of_row || i + 1 == end, (u16)span, (u8)matrix, (u8)(warp() + tile),
                };
                if (span == 0) tiles[product * m.a.tiles + tile] = {(u8)(warp() + tile), (u8)((i + of_row - 1) / each - warp() + 1)};
            }
            if (lane() == 0) counts[warp() * PRODUCTS + product] = end - begin;
            to += end - begin;
        }
    }
};

// Ring is a warp's place for spans in shared memory, and the slot of the next.
struct Ring {
    u8 *slot;
    u64 *filled;
    u32 turn, parity;
    APR_METHOD void advance(const DecodeArgs &a) {
        slot += a.pitch, filled++;
        if (++turn < a.slots) return;
        slot -= a.slots * a.pitch, filled -= a.slots;
        turn = 0, parity ^= 1;
    }
};

// Feed copies a warp's spans of all layers, one after the other, to its ring. A lane has one of the next up to 32.
struct Feed {
    const Span *spans;
    u32 layer, next, count; // of those after the lanes' spans; of a layer
    u32 at;                 // the lane whose span is the next
    const u8 *from;         // the lane's span
    u32 size;               // 0: none
    APR_METHOD void describe(const Model &m) {
        u32 number = next + lane(), of = layer;
        at = size = 0;
        NO_UNROLL while (of < m.a.count && number >= count) number -= count, of++;
        if (of < m.a.count) {
            const Span s = spans[number];
            const u32 bytes = 2 * (m.layers[of].kind[s.matrix] & 4095); // TILE rows of a group
            from = m.layers[of].w[s.matrix] + (u64)s.at * bytes, size = s.groups * bytes;
        }
        next += 32;
        NO_UNROLL while (layer < m.a.count && next >= count) next -= count, layer++;
    }
    // fill begins to copy the next span, if there is one.
    APR_METHOD void fill(const Model &m, u64 *filled, u8 *slot) {
        if (lane() == at && size > 0) copy_bulk(filled, slot, from, size);
        if (++at == 32) describe(m);
    }
};

// Operand is x of a product as the lanes of a warp read it.
struct Operand {
    const u8 *x, *zeros;
    u32 l; // lane
    // lists are InShared's, loaded together.
    template <bool HALVES> APR_METHOD static void lists(float (&scale)[4], float (&total)[4], const u8 *chunk, u32 at) {
        const float *p = (const float *)(chunk + LISTS) + (HALVES ? 4 * (at >> 1) : 2 * at), *q = p + (HALVES ? 2 + (at & 1) : 1) * (LIST / 4);
        if (HALVES) {
            const f32x4 v = *(const f32x4 *)p, w = *(const f32x4 *)q;
            UNROLL for (int k = 0; k < 4; k++) scale[k] = v[k], total[k] = w[k];
        } else {
            const f32x2 v = *(const f32x2 *)p, w = *(const f32x2 *)q;
            UNROLL for (int k = 0; k < 2; k++) scale[k] = v[k], total[k] = w[k];
        }
    }
    // add_as adds the products of a span of type B to those of rows g and g+8. p is its first block of row g, that of g+8 is `below`
    // bytes after it; span is its number in the row, and it has so many groups.
    template <class B> APR_METHOD void add_as(float (&sum)[2], const u8 *p, u32 below, u32 span, u32 groups) const {
        const u32 g = l >> 2, t = l & 3, at = 4 * (span & 7) + t, i = t & 1;
        const u8 *chunk = x + (span >> 3) * CHUNK_X;
        const u8 *column = chunk + 4 * PLANE * (g & 1) + (B::halves ? i * PLANE + 16 * (at - i) : 16 * at);
        if (g >> 1 != t) column = zeros;
        constexpr u32 parts = B::halves ? 4 : 2; // of a row's codes, that have a scale
        i32 d[parts][4] = {};
        UNROLL for (u32 n = 0; n < 4; n++) {
            Words a[4], b[4]; // of which the compiler keeps number n
            B::words(a, p, t, groups);
            B::words(b, p + below, t, groups);
            const u32x4 v = load16(column + (B::halves ? 2 * (n & 1) * PLANE + 16 * (n >> 1) : n * PLANE));
            UNROLL for (u32 j = 0; j < 4; j += 2) {
                const u32 rows[4] = {a[n].w[j], b[n].w[j], a[n].w[j + 1], b[n].w[j + 1]};
                if (B::is_signed) mma_ss(d[n * parts / 4], rows, v[j], v[j + 1]);
                else mma_us(d[n * parts / 4], rows, v[j], v[j + 1]);
            }
        }
        float scale[4], total[4]; // of x
        lists<B::halves>(scale, total, chunk, at);
        UNROLL for (u32 r = 0; r < 2; r++) {
            float s[4], off[4];
            B::scales(s, off, p + r * below, t, groups);
            UNROLL for (u32 k = 0; k < parts; k++) {
                if (B::partial && 2 * t + k >= groups) continue; // a scale that is not there
                sum[r] = with_group<B>(sum[r], s[k], off[k], mul_rn(scale[k], (float)(d[k][2 * r] * 256 + d[k][2 * r + 1])), total[k]);
            }
        }
    }
    // add does it for the span at `first`. Without ALL there are no types but Q4_K, Q5_K and Q6_K.
    template <bool ALL> APR_METHOD void add(float (&sum)[2], u32 kind, const u8 *first, const Span &s) const {
        const u32 type = kind / 4096, row = (kind & 4095) * s.groups / 8;
        const u8 *p = first + (l >> 2) * row;
        if (type == 0) add_as<RowsQ4K>(sum, p, 8 * row, s.number, s.groups);
        else if (type == 2) add_as<RowsQ6K>(sum, p, 8 * row, s.number, s.groups);
        else if (!ALL || type == 1) add_as<RowsQ5K>(sum, p, 8 * row, s.number, s.groups);
        else if (type == 3) add_as<RowsOfGroups<GroupQ8_0>>(sum, p, 8 * row, s.number, s.groups);
        else if (type == 4) add_as<RowsOfGroups<GroupQ4_0>>(sum, p, 8 * row, s.number, s.groups);
        else add_as<RowsOfGroups<GroupQ5_0>>(sum, p, 8 * row, s.number, s.groups);
    }
};

// multiply writes the warp's sums of the rows of its tiles. spans are those of the product.
template <bool ALL> APR_DEVICE void multiply(const Model &m, Feed &feed, Ring &ring, u32 layer, const Span *spans, u32 count, const Operand &x, float *sums) {
    float sum[2] = {};
    if (count == 0) return;
    const DecodeLayer &l = m.layers[layer];
    Span next = spans[0];
    u32 after = l.kind[next.matrix];
    NO_UNROLL for (u32 i = 1; i <= count; i++) {
        const Span s = next;
        const u32 kind = after;
        if (i < count) next = spans[i], after = l.kind[next.matrix];
        bulk_wait(ring.filled, ring.parity);
        x.add<ALL>(sum, kind, ring.slot, s);
        sync_warp(); // every lane has read: the slot may be filled again
        feed.fill(m, ring.filled, ring.slot);
        ring.advance(m.a);
        if (!s.last) continue;
        UNROLL for (u32 r = 0; r < 2; r++) {
            sum[r] += shfl_xor(sum[r], 1);
            sum[r] += shfl_xor(sum[r], 2);
            if ((x.l & 3) == 0) sums[s.place * TILE + (x.l >> 2) + 8 * r] = sum[r];
            sum[r] = 0;
        }
    }
}

// Sums are the results of multiply.
struct Sums {
    const float *sums;
    const TileSums *tiles; // of the product
    // row is that of a row of a tile: what warps have of it, in order.
    APR_METHOD float row(u32 tile, u32 row) const {
        constexpr u32 TOGETHER = 4;
        const TileSums t = tiles[tile];
        const float *p = sums + t.place * TILE + row;
        float v = 0;
        NO_UNROLL for (u32 i = 0; i < t.count; i += TOGETHER)
            UNROLL for (u32 j = i; j < i + TOGETHER; j++) v += j < t.count ? p[j * TILE] : 0.0f;
        return v;
    }
    // part is one of at most DECODE_WARPS that make a row, or zero.
    APR_METHOD float part(u32 tile, u32 row, u32 n) const {
        const TileSums t = tiles[tile];
        return n < t.count ? sums[(t.place + n) * TILE + row] : 0.0f;
    }
};

// normalised writes RMSNorm of the hidden state, as rounded to bfloat16, to x in integers. w are the thread's packs of the
// norm's weights.
APR_DEVICE void normalised(const DecodeArgs &a, const Pack<float, 8> (&w)[MOST_HIDDEN], u8 *x) {
    const u32 packs = a.hidden / 8;
    Pack<bf16, 8> v[MOST_HIDDEN] = {};
    UNROLL for (u32 k = 0; k < MOST_HIDDEN; k++)
        if (thread() + k * threads() < packs) load_pack(v[k], a.x + 8 * (thread() + k * threads()));
    float p[8], q[8], squares = 0;
    for (u32 b = lane(); b < blocks(); b += 32) squares += a.squares[b];
    const float rstd = 1.0f / sqrt_rn(fma_rn(warp_sum(squares), a.inv_hidden, a.eps));
    UNROLL for (u32 k = 0; k < MOST_HIDDEN; k++) {
        const u32 pack = thread() + k * threads();
        if (pack - lane() >= packs) continue; // of the whole warp
        widen(p, v[k]);
        widen(q, w[k]);
        UNROLL for (int e = 0; e < 8; e++) p[e] = p[e] * rstd * q[e];
        narrow(v[k], p);
        round_pack(x, pack, v[k].v, pack < packs);
    }
}

// rounded writes a row that other blocks have computed to x in integers. A thread's loads are on their way together.
APR_DEVICE void rounded(const bf16 *row, u32 cols, u8 *x) {
    constexpr u32 LOADS = 5;
    NO_UNROLL for (u32 first = 32 * warp(); first < cols / 8; first += LOADS * threads()) {
        u32x4 v[LOADS] = {};
        UNROLL for (u32 k = 0; k < LOADS; k++) {
            const u32 pack = first + k * threads() + lane();
            if (pack < cols / 8) v[k] = load16(row + 8 * (u64)pack);
        }
        UNROLL for (u32 k = 0; k < LOADS; k++) {
            const u32 pack = first + k * threads() + lane();
            if (pack - lane() < cols / 8) round_pack(x, pack, v[k], pack < cols / 8);
        }
    }
}

// finish_gated writes silu(g)·u of the block's rows of gate and up.
APR_DEVICE void finish_gated(const Model &m, const Sums &sums) {
    const Share gate = m.shares[4];
    NO_UNROLL for (u32 i = thread(); i < gate.tiles * TILE; i += threads()) {
        const float g = sums.row(i / TILE, i % TILE), u = sums.row(gate.tiles + i / TILE, i % TILE);
        m.a.product[gate.first * TILE + i] = to_bf16(gated<bf16>(from_bf16(to_bf16(g)), from_bf16(to_bf16(u))));
    }
}

// finish_qkv writes the block's rows of q, k and v. bias are theirs.
APR_DEVICE void finish_qkv(const Model &m, const Sums &sums, const float *bias) {
    u32 column = 0, before = 0; // of the matrix, its first tile of the block
    NO_UNROLL for (u32 n = 0; n < 3; n++) {
        const Share s = m.shares[n];
        NO_UNROLL for (u32 i = thread(); i < s.tiles * TILE; i += threads())
            m.a.qkv[column + s.first * TILE + i] = to_bf16(sums.row(before + i / TILE, i % TILE) + bias[before * TILE + i]);
        before += s.tiles, column += (n == 0 ? m.a.heads : m.a.kv_heads) * m.a.d;
    }
}

// bias_of returns that of row i of those that the block has of q, k and v.
APR_DEVICE float bias_of(const Model &m, const float *bias, u32 i) {
    u32 column = 0;
    NO_UNROLL for (u32 n = 0; n < 3; n++) {
        const Share s = m.shares[n];
        if (i < s.tiles * TILE) return bias ? bias[column + s.first * TILE + i] : 0.0f;
        i -= s.tiles * TILE, column += (n == 0 ? m.a.heads : m.a.kv_heads) * m.a.d;
    }
    return 0;
}

// finish_added adds the block's rows of a product to x, sixteen lanes a row, as many as may have a part of it. own is x of these rows.
static_assert(DECODE_WARPS == 16);
APR_DEVICE void finish_added(const Model &m, const Sums &sums, float *own) {
    const Share s = m.shares[3];
    NO_UNROLL for (u32 first = 0; first < s.tiles * TILE; first += threads() / 16) {
        const u32 i = first + thread() / 16, part = thread() % 16;
        const bool there = i < s.tiles * TILE;
        float v = there ? sums.part(i / TILE, i % TILE, part) : 0.0f;
        UNROLL for (u32 d = 8; d; d /= 2) v += shfl_xor(v, d);
        if (!there || part > 0) continue;
        const bf16 x = to_bf16(v + own[i]);
        m.a.x[s.first * TILE + i] = x, own[i] = from_bf16(x);
    }
}

// square writes the sum of own² to the block's place, by one warp.
APR_DEVICE void square(const Model &m, const float *own) {
    float squares = 0;
    NO_UNROLL for (u32 i = lane(); i < m.shares[3].tiles * TILE; i += 32) squares = fma_rn(own[i], own[i], squares);
    squares = warp_sum(squares);
    if (lane() == 0) m.a.squares[block()] = squares;
}

// begin keeps x of the block's rows, by one warp.
APR_DEVICE void begin(const Model &m, float *own) {
    const Share s = m.shares[3];
    for (u32 i = lane(); i < s.tiles * TILE; i += 32) own[i] = from_bf16(m.a.x[s.first * TILE + i]);
    sync_warp();
    square(m, own);
}

// LatestRow are rows of a cache, but for the latest one, which stands elsewhere.
struct LatestRow {
    const bf16 *cache, *latest;
    i64 stride;
    int position;
    APR_METHOD const bf16 *operator()(int j) const { return j == position ? latest : cache + j * stride; }
};

// attend rotates q and k of one head and computes its attention over one share of the keys. One block of those that have a
// key writes it to the cache, with its value. fresh has three rows of 256; parts is that of attend_keys.
APR_DEVICE void attend(const DecodeArgs &a, const DecodeLayer &layer, u32 item, bf16 *fresh, float *parts) {
    const u32 h = item % a.heads, split = item / a.heads, d = a.d, half = d / 2, group = a.heads / a.kv_heads, g = h / group;
    const u32 i = thread() % half, kind = thread() / half; // q, k, v, which are asked for before the other keys
    const int position = (int)a.position, share = (position + (int)a.splits) / (int)a.splits, first = split * share, end = (int)min_of(position + 1, first + share);
    float p = 0, q = 0, cosine = 0, sine = 0;
    if (kind < 3) {
        const bf16 *from = a.qkv + (kind == 0 ? h : a.heads + (kind - 1) * a.kv_heads + g) * d;
        p = from_bf16(from[i]), q = from_bf16(from[half + i]);
        if (kind < 2) cosine = a.table[2 * i], sine = a.table[2 * i + 1];
    }
    const bf16 *keys = layer.cache + g * d, *values = keys + a.kv_heads * d;
    const Lanes lanes(d);
    Ahead<KEYS_AHEAD, bf16> ahead;
    ahead.load(lanes, RowsFrom<bf16>{keys, a.cache_stride}, RowsFrom<bf16>{values, a.cache_stride}, first, (int)min_of(end, position));
    if (kind < 3) {
        fresh[256 * kind + i] = to_bf16(kind < 2 ? p * cosine - q * sine : p);
        fresh[256 * kind + half + i] = to_bf16(kind < 2 ? q * cosine + p * sine : q);
    }
    sync_block();
    if (h % group == 0 && split == 0 && thread() < d) {
        bf16 *row = layer.cache + a.position * a.cache_stride + g * d + thread();
        row[0] = fresh[256 + thread()], row[a.kv_heads * d] = fresh[512 + thread()];
    }
    UNROLL for (int n = 0; n < KEYS_AHEAD; n++)
        if (first + n * lanes.all + lanes.slot == position && lanes.c < lanes.packs)
            load_pack(ahead.k[n], fresh + 256 + 8 * lanes.c), load_pack(ahead.v[n], fresh + 512 + 8 * lanes.c);
    const LatestRow k = {keys, fresh + 256, a.cache_stride, position}, v = {values, fresh + 512, a.cache_stride, position};
    const Joined r = attend_keys(lanes, fresh, k, v, ahead, first, end, d, a.log2_scale, parts);
    if (thread() >= d) return;
    if (a.splits == 1) {
        a.att[h * d + thread()] = to_bf16(r.acc / r.sum);
        return;
    }
    float *to = a.part + (i64)item * PART;
    to[thread()] = r.acc;
    if (thread() == 0) to[256] = r.top, to[257] = r.sum;
}

// expect asks for the keys and values of a share to come to the cache of the device. It needs nothing of the position.
APR_DEVICE void expect(const DecodeArgs &a, const DecodeLayer &layer, u32 item) {
    const u32 h = item % a.heads, split = item / a.heads, lines = a.d / 64, share = (a.position + a.splits) / a.splits;
    const u32 end = (u32)min_of(a.position, (split + 1) * share);
    const bf16 *keys = layer.cache + h / (a.heads / a.kv_heads) * a.d;
    NO_UNROLL for (u32 i = split * share * 2 * lines + thread(); i < end * 2 * lines; i += threads()) {
        const u32 line = i % lines, value = i / lines % 2, key = i / lines / 2;
        prefetch(keys + key * a.cache_stride + value * a.kv_heads * a.d + 64 * line);
    }
}

// The whole. Grid: one block a multiprocessor, all at once.
template <bool ALL> APR_DEVICE void decode_all(const DecodeArgs &a) {
    DYNAMIC_SHARED(shared);
    SHARED(Share, shares, 8);
    SHARED(bf16, fresh, 3 * 256);
    SHARED(u64, filled, DECODE_WARPS * SLOTS);
    SHARED(u32, counts, DECODE_WARPS * PRODUCTS);
    DecodeLayer *layers = (DecodeLayer *)(shared + a.layers_at);
    const Model m = {a, layers, shares};
    for (u32 i = thread(); i < a.count * (sizeof(DecodeLayer) / 16); i += threads()) store16((u8 *)layers + 16 * i, load16((const u8 *)a.layers + 16 * i));
    for (u32 i = thread(); i < ZEROS / 16; i += threads()) store16(shared + a.zeros_at + 16 * i, u32x4{});
    if (thread() < MATRICES) shares[thread()] = m.share(thread());
    sync_block();
    const Work work = {(Span *)(shared + a.spans_at), (TileSums *)(shared + a.tiles_at), counts};
    work.describe(m);
    sync_block();
    float *sums = (float *)(shared + a.sums_at), *own = (float *)(shared + a.own_at), *bias = (float *)(shared + a.bias_at);
    const Operand x = {shared, shared + a.zeros_at, lane()};
    Ring ring = {shared + a.ring_at + warp() * a.slots * a.pitch, filled + warp() * SLOTS, 0, 0};
    if (lane() < a.slots) bulk_init(&ring.filled[lane()], 1);
    sync_warp();
    const u32 *count = counts + warp() * PRODUCTS;
    Feed feed = {work.spans + warp() * a.spans, 0, 0, count[0] + count[1] + count[2] + count[3], 0, nullptr, 0};
    if (feed.count > 0) {
        feed.describe(m);
        NO_UNROLL for (u32 n = 0; n < a.slots; n++) feed.fill(m, ring.filled + n, ring.slot + n * a.pitch);
    }
    const bool first_warp = warp() == 0;
    u32 round = 0;
    auto arrive = [&] { // by the first warp, which has written last, or of all after a barrier
        if (first_warp) grid_arrive(a.arrived);
        round++;
    };
    if (first_warp) begin(m, own);
    arrive();
    NO_UNROLL for (u32 layer = 0; layer < a.count; layer++) {
        const Span *spans = feed.spans;
        NO_UNROLL for (u32 product = 0; product < PRODUCTS; product++) {
            Pack<float, 8> w[MOST_HIDDEN] = {}; // of the norm, on their way during the wait, as is the bias
            const u32 rows = product == 0 ? m.tiles(0) * TILE : 0;
            const float v = thread() < rows ? bias_of(m, layers[layer].bias, thread()) : 0.0f;
            if (product % 2 == 0)
                UNROLL for (u32 k = 0; k < MOST_HIDDEN; k++)
                    if (thread() + k * threads() < a.hidden / 8) load_pack(w[k], layers[layer].norm[product / 2] + 8 * (thread() + k * threads()));
            grid_wait(a.arrived, round);
            if (thread() < rows) bias[thread()] = v;
            if (product % 2 == 0) normalised(a, w, shared);
            else rounded(product == 1 ? a.att : a.product, m.cols(product), shared);
            sync_block();
            multiply<ALL>(m, feed, ring, layer, spans, count[product], x, sums);
            spans += count[product];
            sync_block();
            const Sums found = {sums, work.tiles + product * a.tiles};
            if (product == 0) finish_qkv(m, found, bias);
            else if (product == 2) finish_gated(m, found);
            else finish_added(m, found, own);
            sync_block();
            if (first_warp && product % 2 == 1) square(m, own);
            arrive();
            if (product > 0) continue;
            if (block() < a.heads * a.splits) expect(a, layers[layer], block());
            grid_wait(a.arrived, round);
            NO_UNROLL for (u32 item = block(); item < a.heads * a.splits; item += blocks()) {
                attend(a, layers[layer], item, fresh, (float *)shared);
                sync_block();
            }
            arrive();
            if (a.splits == 1) continue;
            grid_wait(a.arrived, round);
            NO_UNROLL for (u32 h = block(); h < a.heads; h += blocks()) {
                if (thread() >= a.d) continue;
                const Joined r = join_shares(a.part + (i64)h * PART, (i64)a.heads * PART, a.splits, thread());
                a.att[h * a.d + thread()] = to_bf16(r.acc / r.sum);
            }
            sync_block();
            arrive();
        }
    }
}
