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
constexpr int KEYS_AHEAD = 4;                     // of a lane, that are loaded together
constexpr u32 ZEROS = 256;                        // bytes of zeros that lanes without a column of x read

struct DecodeLayer {
    const u8 *w[MATRICES];
    const float *norm[2]; // of RMSNorm before q, k, v and before gate, up
    const float *bias;    // of q, k, v; zero: none
    bf16 *cache;          // [capacity, 2·kv_heads·d]: a rotated key, then its value
    u16 kind[8];          // of w: bytes of 256 values, and 4096 times a number of the type
    const bf16 *router;   // [experts, hidden], of a layer of experts: see decode_experts.cuh
};

// DecodeVariant is what a layer of a model with more than the least has: norms of heads, a rotary embedding of its own, a window.
struct DecodeVariant {
    const float *q_norm, *k_norm; // [d]; zero: none
    const float *table;           // of the position: [half, 2], cosine, sine
    u32 row, first, keys;         // of the cache: the position's, and those that it sees
    u32 half;                     // pairs of a head that turn
    float q_scale, none;
};
static_assert(sizeof(DecodeVariant) == 48, "as in decode_layers_sm90.go");

struct DecodeArgs {
    const DecodeLayer *layers; // [count]
    u32 *arrived;
    const bf16 *x;            // [hidden]
    bf16 *y;                  // [hidden]
    const float *norm;        // of y
    bf16 *between;            // what passes between blocks: see Exchange
    const float *table;       // of the position, [d/2, 2]: cosine, sine
    float *part;              // [splits, heads, PART]
    i64 cache_stride;
    u32 count, hidden, inter, heads, kv_heads, d;
    u32 position, splits; // splits: shares that a head's keys are cut into
    u32 slots, pitch;     // spans of a warp in shared memory, bytes of one
    u32 spans, tiles;     // of a warp in a layer, of a block in a product, at most
    u32 ring_at, zeros_at, sums_at, own_at, bias_at, spans_at, tiles_at, layers_at; // bytes, of shared memory; x is at 0
    float eps, inv_hidden, log2_scale;
};

// VariantArgs are those of models whose layers are DecodeVariants.
struct VariantArgs : DecodeArgs {
    const DecodeVariant *variants; // [count]
    float inv_d, residual;         // residual: factor of what is added to x
};
static_assert(sizeof(DecodeArgs) == 168 && sizeof(VariantArgs) == 184, "as in decode_layers_sm90.go");

// Place is where a layer's keys are: as VariantArgs have it, or of a cache of all positions.
struct Place {
    const float *table;
    u32 row, first, keys;
    APR_METHOD Place(const DecodeArgs &a, u32) : table(a.table), row(a.position), first(0), keys(a.position + 1) {}
    APR_METHOD Place(const VariantArgs &a, u32 layer) {
        const DecodeVariant &v = a.variants[layer];
        table = v.table, row = v.row, first = v.first, keys = v.keys;
    }
};

// NormedHead is how a layer finishes q and k of a head, with what it asks for before they are there.
struct NormedHead {
    const float *weights; // of the thread's row, or zero
    u32 half;             // pairs that turn
    float w_low, w_high, q_scale;
    APR_METHOD NormedHead(const DecodeArgs &, u32, u32, u32, u32) {}
    APR_METHOD NormedHead(const VariantArgs &a, u32 layer, u32 kind, u32 i, u32 high) {
        const DecodeVariant &v = a.variants[layer];
        weights = kind == 0 ? v.q_norm : kind == 1 ? v.k_norm : nullptr, half = v.half, q_scale = kind == 0 ? v.q_scale : 1.0f;
        w_low = w_high = 1;
        if (weights) w_low = weights[i], w_high = weights[high];
    }
    // finish writes the thread's values p and q, of row `kind` of fresh, d/2 apart, as they are normalised and turned. By the whole block;
    // squares has a place for each warp, which has a part of one row.
    APR_METHOD void finish(const DecodeArgs &, float, float, u32, u32, const float *, bf16 *, float *) const {}
    APR_METHOD void finish(const VariantArgs &a, float p, float q, u32 kind, u32 i, const float *table, bf16 *fresh, float *squares) const {
        const u32 part = a.d / 2;
        bf16 *row = fresh + 256 * kind;
        const float sum = warp_sum(fma_rn(p, p, q * q));
        if (lane() == 0) squares[warp()] = sum;
        sync_block();
        if (kind > 2) p = 0; // of no row
        else if (weights) {
            float all = 0;
            for (u32 n = 0; n < part / 32; n++) all += squares[kind * (part / 32) + n];
            const float rstd = 1.0f / sqrt_rn(fma_rn(all, a.inv_d, a.eps));
            p = from_bf16(to_bf16(p * rstd * w_low)), q = from_bf16(to_bf16(q * rstd * w_high));
        }
        if (kind < 3) row[i] = to_bf16(p), row[part + i] = to_bf16(q);
        sync_block();
        if (kind > 1) return;
        float c = 1, s = 0;
        u32 low = i, high = part + i; // the values that the thread turns, or scales
        if (i < half) c = table[2 * i], s = table[2 * i + 1], high = half + i;
        else low = half + i; // beyond those that turn, as are low and high + half in all
        p = from_bf16(row[low]), q = from_bf16(row[high]);
        row[low] = to_bf16((p * c - q * s) * q_scale), row[high] = to_bf16((q * c + p * s) * q_scale);
    }
};

// TileArgs are those of tile_wide and tile_narrow, which copy a matrix of blocks from rows, one after the other, to tiles or, with
// back, the other way. A tile is 16 rows, in the place that they have in rows; in it come the spans of 256 columns in turn. In a span
// come the first fields of all blocks, of one row after the other, then the second fields, then the third. Bytes are counted in words of
// the kernel's width.
struct TileArgs {
    void *dst;
    const void *src;
    u32 row, span;                // words of a row, of 256 columns
    u32 of_block, second, third; // words of a block, of those before its second and third field; of a type with one field 1 each
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
        u32 in_rows[WORDS], in_tile[WORDS];
        UNROLL for (u32 k = 0; k < WORDS; k++) {
            const u32 i = base + k * threads(), span = i / (TILE * a.span), words = (u32)min_of(a.span, a.row - span * a.span);
            if (i >= end) break;
            const u32 at = i - span * TILE * a.span, row = at / words;
            const u32 word = at - row * words, number = word / a.of_block, of_row = words / a.of_block, in_block = word - number * a.of_block;
            const u32 field = in_block < a.second ? 0 : in_block < a.third ? a.second : a.third;
            const u32 size = (in_block < a.second ? a.second : in_block < a.third ? a.third : a.of_block) - field;
            in_rows[k] = row * a.row + span * a.span + word;
            in_tile[k] = span * TILE * a.span + TILE * of_row * field + (row * of_row + number) * size + in_block - field;
            v[k] = from[a.back ? in_tile[k] : in_rows[k]];
        }
        UNROLL for (u32 k = 0; k < WORDS; k++)
            if (base + k * threads() < end) to[a.back ? in_rows[k] : in_tile[k]] = v[k];
    }
}

// Share is what a block has of a matrix: tiles from first on.
struct Share { u32 first, tiles; };

// Model is what all layers have in common, as a block sees it.
struct Model {
    static constexpr u32 products = PRODUCTS;
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
    template <class M> APR_METHOD void describe(const M &m) const {
        Span *to = spans + warp() * m.a.spans;
        NO_UNROLL for (u32 product = 0; product < M::products; product++) {
            const u32 of_row = m.spans(product), groups = m.groups(product), all = m.tiles(product) * of_row;
            const u32 each = (all + DECODE_WARPS - 1) / DECODE_WARPS, begin = (u32)min_of(each * warp(), all), end = (u32)min_of(begin + each, all);
            NO_UNROLL for (u32 i = begin + lane(); i < end; i += 32) {
                const u32 tile = i / of_row, span = i - tile * of_row;
                u32 matrix = M::begin(product), number = tile;
                NO_UNROLL while (number >= m.shares[matrix].tiles) number -= m.shares[matrix++].tiles;
                to[i - begin] = {
                    (m.shares[matrix].first + number) * groups + 8 * span, (u32)min_of(8, groups - 8 * span),
                    (u16)span, (u8)matrix, (u8)(warp() + tile),
                };
                if (span == 0) tiles[product * m.a.tiles + tile] = {(u8)(warp() + tile), (u8)((i + of_row - 1) / each - warp() + 1)};
            }
            if (lane() == 0) counts[warp() * M::products + product] = end - begin;
            to += end - begin;
        }
    }
};

// Ring is a warp's place for spans in shared memory: slots, at multiples of 128 bytes, and for each what its copies arrive at.
struct Ring {
    u8 *slots;
    u64 *all_filled;
    u32 at, turn, parity; // of the next span: bytes of the slots before it, their number
    APR_METHOD u8 *slot() const { return slots + at; }
    APR_METHOD u64 *filled() const { return all_filled + turn; }
    // wait returns the next span when it is there.
    APR_METHOD const u8 *wait() const {
        bulk_wait(filled(), parity);
        return slot();
    }
    template <class Args> APR_METHOD void advance(const Args &a) {
        at += a.pitch;
        if (++turn == a.slots) at = turn = 0, parity ^= 1;
    }
};

// lead is how many bytes a copy begins before its span, which has so many before it in its matrix: copies whose two places do not both
// begin at a multiple of 128 bytes are slower.
APR_DEVICE u32 lead(u64 before) { return (u32)before & 127; }

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
            const u64 before = (u64)s.at * bytes;
            from = m.layers[of].w[s.matrix] + before - lead(before), size = s.groups * bytes + lead(before);
        }
        next += 32;
        NO_UNROLL while (layer < m.a.count && next >= count) next -= count, layer++;
    }
    // fill begins to copy the next span, if there is one.
    APR_METHOD void fill(const Model &m, const Ring &ring) {
        if (lane() == at && size > 0) copy_bulk(ring.filled(), ring.slot(), from, size);
        if (++at == 32) describe(m);
    }
};

// How the 256 values of x of a span stand in shared memory: four planes of hi, of which plane k has values 64t + 16k … + 15 for t = 0 … 3,
// the lists of powers of two and of sums of the 8 groups, four planes of lo, the lists of sums of first and of second halves. Lanes that
// read hi and lo together read different banks.
constexpr u32 PLANE_X = 64, LOW_X = 320, SPAN_X = 640;
struct BySpan {
    static constexpr u32 low = LOW_X;
    APR_METHOD static u32 list_at(u32 n) { return (n < 2 ? 4 * PLANE_X : LOW_X + 4 * PLANE_X - 64) + 32 * n; }
    APR_METHOD static u8 *values(u8 *x, u32 pack) { return x + pack / 32 * SPAN_X + pack % 8 / 2 * PLANE_X + pack % 32 / 8 * 16 + 8 * (pack & 1); }
    APR_METHOD static float *list(u8 *x, u32 pack, u32 n) { return (float *)(x + pack / 32 * SPAN_X + list_at(n)) + pack % 32 / 4; }
};

// Types in tiles: words and scales of lane t's part of a row of a span, as gemv_blocks.cuh has them of rows.
template <class B> struct InTile : B {
    APR_METHOD static void words(Words (&q)[4], const u8 *span, u32 row, u32 t, u32 groups) { B::words(q, of(span, row, groups), t, groups); }
    APR_METHOD static void scales(float (&s)[4], float (&off)[4], const u8 *span, u32 row, u32 t, u32 groups) { B::scales(s, off, of(span, row, groups), t, groups); }
    APR_METHOD static const u8 *of(const u8 *span, u32 row, u32 groups) { return span + row * (B::partial ? B::bytes / 8 * groups : B::bytes); }
};
// Blocks of Q6_K have three fields: codes, scales, and the scale of scales.
template <> struct InTile<RowsQ6K> : RowsQ6K {
    APR_METHOD static void words(Words (&q)[4], const u8 *span, u32 row, u32 t, u32) {
        const u8 *p = span + 192 * row + 16 * (t & 1);
        const u32 h = t >> 1;
        const u32x4 q0 = load16(p + 64 * h), q1 = load16(p + 64 * h + 32), upper = load16(p + 128 + 32 * h);
        UNROLL for (int k = 0; k < 4; k++) q[k] = sixes(k & 1 ? q1 : q0, upper, k);
    }
    APR_METHOD static void scales(float (&s)[4], float (&)[4], const u8 *span, u32 row, u32 t, u32) {
        const u32x2 codes = *(const u32x2 *)(span + 192 * TILE + 16 * row + 8 * (t >> 1));
        const float d = from_f16(*(const u16 *)(span + 208 * TILE + 2 * row));
        UNROLL for (u32 k = 0; k < 4; k++) s[k] = mul_rn(d, from_bits(byte_perm(codes[k / 2] ^ 0x80808080u, 0x4b000000, 0x7440 + 2 * (k & 1) + (t & 1))) - 8388736.0f);
    }
};

// TileLanes is how the lanes of a warp multiply 16 rows × 256 columns of a type by x. A lane 4g + t has groups 2t and 2t+1, or the four halves
// t%2 of groups 4h … 4h+3, h = t/2, of rows g and g+8.
template <class B> struct TileLanes {
    static constexpr u32 parts = B::halves ? 4 : 2; // of a row's codes, that have a scale
    u32 l, step;              // lane; from a span's column of x to that of the next
    const u8 *column, *lists; // of the first span; a lane without a column has zeros
    APR_METHOD TileLanes(const u8 *x, const u8 *zeros, u32 lane) {
        l = lane;
        const u32 g = l >> 2, t = l & 3, i = t & 1;
        step = g >> 1 == t ? SPAN_X : 0;
        column = step ? x + LOW_X * (g & 1) + (B::halves ? i * PLANE_X + 16 * (t - i) : 16 * t) : zeros;
        lists = x + (B::halves ? 16 * (t >> 1) : 8 * t);
    }
    // add adds the products of a span, number `span` of the row, of which there are so many groups.
    APR_METHOD void add(float (&sum)[2], const u8 *first, u32 span, u32 groups) const {
        const u32 g = l >> 2, t = l & 3;
        const u8 *at = column + span * step, *list = lists + span * SPAN_X;
        i32 d[parts][4] = {};
        Words a[4], b[4];
        B::words(a, first, g, t, groups);
        B::words(b, first, g + 8, t, groups);
        UNROLL for (u32 n = 0; n < 4; n++) {
            const u32x4 v = load16(at + (B::halves ? 2 * (n & 1) * PLANE_X + 16 * (n >> 1) : n * PLANE_X));
            UNROLL for (u32 j = 0; j < 4; j += 2) {
                const u32 rows[4] = {a[n].w[j], b[n].w[j], a[n].w[j + 1], b[n].w[j + 1]};
                if (B::is_signed) mma_ss(d[n * parts / 4], rows, v[j], v[j + 1]);
                else mma_us(d[n * parts / 4], rows, v[j], v[j + 1]);
            }
        }
        float scale[4], total[4]; // of x
        if (B::halves) {
            const f32x4 v = *(const f32x4 *)(list + BySpan::list_at(0)), w = *(const f32x4 *)(list + BySpan::list_at(2) + 32 * (t & 1));
            UNROLL for (int k = 0; k < 4; k++) scale[k] = v[k], total[k] = w[k];
        } else {
            const f32x2 v = *(const f32x2 *)(list + BySpan::list_at(0)), w = *(const f32x2 *)(list + BySpan::list_at(1));
            UNROLL for (int k = 0; k < 2; k++) scale[k] = v[k], total[k] = w[k];
        }
        UNROLL for (u32 r = 0; r < 2; r++) {
            float s[4], off[4];
            B::scales(s, off, first, g + 8 * r, t, groups);
            UNROLL for (u32 k = 0; k < parts; k++) {
                if (B::partial && 2 * t + k >= groups) continue; // a scale that is not there
                sum[r] = with_group<B>(sum[r], s[k], off[k], mul_rn(scale[k], (float)(d[k][2 * r] * 256 + d[k][2 * r + 1])), total[k]);
            }
        }
    }
};

// Product is what a warp multiplies with: x and zeros, in shared memory; its ring, and what fills it.
template <class M, class Feed> struct Product {
    const M &m;
    const u8 *x, *zeros;
    Ring ring;
    Feed feed;
    // stretch adds n spans of a tile, of type B, from s on.
    template <class B> APR_METHOD void stretch(float (&sum)[2], const Span &s, u32 n, u32 groups) {
        const TileLanes<InTile<B>> tile(x, zeros, lane());
        u32 before = s.at * (TILE * B::bytes / 8);
        NO_UNROLL for (u32 span = s.number; span < s.number + n; span++, before += TILE * B::bytes) {
            tile.add(sum, ring.wait() + lead(before), span, B::partial ? (u32)min_of(8, groups - 8 * span) : 8);
            sync_warp(); // every lane has read: the slot may be filled again
            feed.fill(m, ring);
            ring.advance(m.a);
        }
    }
    // multiply writes the warp's sums of the rows of its tiles. spans are those of the product. Without ALL there are no types but Q4_K,
    // Q5_K and Q6_K.
    template <bool ALL, class Layer> APR_METHOD void multiply(const Layer &l, u32 product, const Span *spans, u32 count, float *sums) {
        const u32 of_row = m.spans(product), groups = m.groups(product);
        NO_UNROLL for (u32 i = 0; i < count;) {
            const Span s = spans[i];
            const u32 n = (u32)min_of(of_row - s.number, count - i), type = l.kind[s.matrix] / 4096;
            float sum[2] = {};
            if (type == 0) stretch<RowsQ4K>(sum, s, n, groups);
            else if (type == 2) stretch<RowsQ6K>(sum, s, n, groups);
            else if (!ALL || type == 1) stretch<RowsQ5K>(sum, s, n, groups);
            else if (type == 3) stretch<RowsOfGroups<GroupQ8_0>>(sum, s, n, groups);
            else if (type == 4) stretch<RowsOfGroups<GroupQ4_0>>(sum, s, n, groups);
            else stretch<RowsOfGroups<GroupQ5_0>>(sum, s, n, groups);
            UNROLL for (u32 r = 0; r < 2; r++) {
                sum[r] += shfl_xor(sum[r], 1);
                sum[r] += shfl_xor(sum[r], 2);
                if ((lane() & 3) == 0) sums[s.place * TILE + (lane() >> 2) + 8 * r] = sum[r];
            }
            i += n;
        }
    }
};

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

// What a layer's blocks exchange stands in memory that is unset before, which no result is: who reads it sees for himself what has
// come, and waits for no barrier and no fence. When it is unset again is ordered by a barrier that nobody has to wait long for: a block
// arrives at it when it has read x for gate and up, and sees in down that all have arrived. Then everything of the layer up to there, and
// of the layer before it, has been read by all and is unset. What is used again two layers later, or gate·up three, is used after
// the barrier of the layer between, at which blocks arrived after they had unset it.
constexpr u32 PRODUCTS_KEPT = 4; // of layers
constexpr bf16 UNSET = 0xffff;   // NaN, but not the one that to_bf16 and arithmetic give
APR_DEVICE bool unset(u32x4 v) { // any of 8 values
    u32 any = 0;
    UNROLL for (int i = 0; i < 4; i++) any |= (~v[i] - 0x00010001u) & v[i] & 0x80008000u;
    return any != 0;
}
// settled returns pack first + lane() of a row of so many once it is there, with v what was read of it before; 0 for those beyond the end.
// While packs of a warp are missing all its lanes read the last one of these, and only then their own again: what blocks read in vain
// takes from what brings them weights.
APR_DEVICE u32x4 settled(u32x4 v, const bf16 *row, u32 first, u32 packs) {
    const u32 own = first + lane();
    NO_UNROLL while (u32 missing = ballot(own < packs && unset(v))) {
        const bf16 *last = row + 8 * (u64)(first + 31 - leading_zeros(missing));
        NO_UNROLL while (unset(strong_load16(last))) relax();
        if (own < packs && unset(v)) v = strong_load16(row + 8 * (u64)own);
    }
    return v;
}
APR_DEVICE bf16 settled(bf16 v, const bf16 *p) {
    NO_UNROLL while (v == UNSET) relax(), v = strong_load(p);
    return v;
}

// Exchange is where a layer's blocks leave for others what they compute.
struct Exchange {
    bf16 *qkv, *att, *o, *down; // of layers of even and of odd number: [(heads + 2·kv_heads)·d], [heads·d], x after o [hidden], x after down
    bf16 *product;              // silu(gate)·up [inter], of four layers
    APR_METHOD Exchange(const DecodeArgs &a, u32 number) {
        int layer = (int)number;
        opaque(layer); // pointers are computed where they are used: they would take registers from products
        const u32 heads = a.heads * a.d, all = heads + 2 * a.kv_heads * a.d, each = all + heads + 2 * a.hidden;
        qkv = a.between + (layer & 1) * each, att = qkv + all, o = att + heads, down = o + a.hidden;
        product = a.between + 2 * each + (layer & (PRODUCTS_KEPT - 1)) * a.inter;
    }
};

// NormPacks are a thread's packs of a norm's weights.
struct NormPacks {
    Pack<float, 8> w[MOST_HIDDEN] = {};
    template <class Args> APR_METHOD void load(const Args &a, const float *norm) {
        UNROLL for (u32 k = 0; k < MOST_HIDDEN; k++)
            if (thread() + k * threads() < a.hidden / 8) load_pack(w[k], norm + 8 * (thread() + k * threads()));
    }
};

// normalised gives `write` RMSNorm of the hidden state at `from`, as rounded to bfloat16: a pack, its number, and whether there is such
// a pack; warps do it together. squares has a place for each warp.
// first is 32·warp().
template <class Write>
APR_DEVICE void normalised(const DecodeArgs &a, const bf16 *from, const NormPacks &norm, float *squares, u32 first, const Write &write) {
    const u32 packs = a.hidden / 8;
    Pack<bf16, 8> v[MOST_HIDDEN] = {};
    UNROLL for (u32 k = 0; k < MOST_HIDDEN; k++)
        if (thread() + k * threads() < packs) v[k].v = strong_load16(from + 8 * (thread() + k * threads()));
    float p[8], q[8], sum = 0;
    UNROLL for (u32 k = 0; k < MOST_HIDDEN; k++) {
        v[k].v = settled(v[k].v, from, first + k * threads(), packs);
        widen(p, v[k]);
        UNROLL for (int e = 0; e < 8; e++) sum = fma_rn(p[e], p[e], sum);
    }
    sum = warp_sum(sum);
    if (lane() == 0) squares[warp()] = sum;
    sync_block();
    sum = 0;
    UNROLL for (u32 k = 0; k < DECODE_WARPS; k++) sum += squares[k];
    const float rstd = 1.0f / sqrt_rn(fma_rn(sum, a.inv_hidden, a.eps));
    UNROLL for (u32 k = 0; k < MOST_HIDDEN; k++) {
        int at = (int)(thread() + k * threads());
        opaque(at); // places in shared memory are computed here, not kept in registers during products
        const u32 pack = (u32)at;
        if (pack - lane() >= packs) continue; // of the whole warp
        widen(p, v[k]);
        widen(q, norm.w[k]);
        UNROLL for (int e = 0; e < 8; e++) p[e] = p[e] * rstd * q[e];
        narrow(v[k], p);
        write(v[k].v, pack, pack < packs);
    }
}

template <class Write> APR_DEVICE void normalised(const DecodeArgs &a, const bf16 *from, const NormPacks &norm, float *squares, const Write &write) {
    normalised(a, from, norm, squares, 32 * warp(), write);
}

// rounded writes a row that other blocks have computed to x in integers. A thread's loads are on their way together.
template <u32 LOADS = 5> APR_DEVICE void rounded(const bf16 *row, u32 cols, u8 *x) {
    NO_UNROLL for (u32 first = 32 * warp(); first < cols / 8; first += LOADS * threads()) {
        u32x4 v[LOADS] = {};
        UNROLL for (u32 k = 0; k < LOADS; k++) {
            const u32 pack = first + k * threads() + lane();
            if (pack < cols / 8) v[k] = strong_load16(row + 8 * (u64)pack);
        }
        UNROLL for (u32 k = 0; k < LOADS; k++) {
            const u32 pack = first + k * threads() + lane();
            v[k] = settled(v[k], row, first + k * threads(), cols / 8);
            if (pack - lane() < cols / 8) round_pack<BySpan>(x, pack, v[k], pack < cols / 8);
        }
    }
}

// finish_gated writes silu(g)·u of the block's rows of gate and up.
APR_DEVICE void finish_gated(const Model &m, const Sums &sums, bf16 *to) {
    const Share gate = m.shares[4];
    NO_UNROLL for (u32 i = thread(); i < gate.tiles * TILE; i += threads()) {
        const float g = sums.row(i / TILE, i % TILE), u = sums.row(gate.tiles + i / TILE, i % TILE);
        strong_store(to + gate.first * TILE + i, to_bf16(gated<bf16>(from_bf16(to_bf16(g)), from_bf16(to_bf16(u)))));
    }
}

// finish_qkv writes the block's rows of q, k and v. bias are theirs.
APR_DEVICE void finish_qkv(const Model &m, const Sums &sums, const float *bias, bf16 *to) {
    u32 column = 0, before = 0; // of the matrix, its first tile of the block
    NO_UNROLL for (u32 n = 0; n < 3; n++) {
        const Share s = m.shares[n];
        NO_UNROLL for (u32 i = thread(); i < s.tiles * TILE; i += threads())
            strong_store(to + column + s.first * TILE + i, to_bf16(sums.row(before + i / TILE, i % TILE) + bias[before * TILE + i]));
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
APR_DEVICE float added(const DecodeArgs &, float v, float x) { return v + x; }
APR_DEVICE float added(const VariantArgs &a, float v, float x) { return fma_rn(v, a.residual, x); }
template <class Args> APR_DEVICE void finish_added(const Args &a, const Model &m, const Sums &sums, float *own, bf16 *to) {
    const Share s = m.shares[3];
    NO_UNROLL for (u32 first = 0; first < s.tiles * TILE; first += threads() / 16) {
        const u32 i = first + thread() / 16, part = thread() % 16;
        const bool there = i < s.tiles * TILE;
        float v = there ? sums.part(i / TILE, i % TILE, part) : 0.0f;
        UNROLL for (u32 d = 8; d; d /= 2) v += shfl_xor(v, d);
        if (!there || part > 0) continue;
        const bf16 x = to_bf16(added(a, v, own[i]));
        strong_store(to + s.first * TILE + i, x);
        own[i] = from_bf16(x);
    }
}

// forget unsets what the block left for others in a layer: q, k, v, attention, x after o; and before it: gate·up, x after down. By one warp.
APR_DEVICE void forget(const Model &m, u32 layer) {
    const Exchange e(m.a, layer), before(m.a, layer - 1);
    u32 column = 0;
    NO_UNROLL for (u32 n = 0; n < 3; n++) {
        const Share s = m.shares[n];
        NO_UNROLL for (u32 i = lane(); i < s.tiles * TILE; i += 32) strong_store(e.qkv + column + s.first * TILE + i, UNSET);
        column += (n == 0 ? m.a.heads : m.a.kv_heads) * m.a.d;
    }
    NO_UNROLL for (u32 h = block(); h < m.a.heads; h += blocks())
        NO_UNROLL for (u32 i = lane(); i < m.a.d; i += 32) strong_store(e.att + h * m.a.d + i, UNSET);
    const Share hidden = m.shares[3], inter = m.shares[4];
    NO_UNROLL for (u32 i = lane(); i < hidden.tiles * TILE; i += 32)
        strong_store(e.o + hidden.first * TILE + i, UNSET), strong_store(before.down + hidden.first * TILE + i, UNSET);
    NO_UNROLL for (u32 i = lane(); i < inter.tiles * TILE; i += 32) strong_store(before.product + inter.first * TILE + i, UNSET);
}

// begin keeps x of the block's rows and leaves it where a layer before the first one would. By one warp.
APR_DEVICE void begin(const Model &m, float *own) {
    const Share s = m.shares[3];
    bf16 *x = Exchange(m.a, -1).down;
    NO_UNROLL for (u32 i = lane(); i < s.tiles * TILE; i += 32) {
        own[i] = from_bf16(m.a.x[s.first * TILE + i]);
        strong_store(x + s.first * TILE + i, to_bf16(own[i])); // which makes one NaN of all
    }
}

// LatestRow are rows of a cache, but for the latest one, which stands elsewhere.
struct LatestRow {
    const bf16 *cache, *latest;
    i64 stride;
    int position;
    APR_METHOD const bf16 *operator()(int j) const { return j == position ? latest : cache + j * stride; }
};

// attend rotates q and k of one head and computes its attention over one share of the keys. One block of those that have a
// key writes it to the cache, with its value. fresh has three rows of 256; parts is that of attend_keys. With NORMS heads may be
// normalised before, by warps of which each has a part of one row; squares has a place for each warp.
template <bool NORMS, class Args> APR_DEVICE void attend(const Args &a, const DecodeLayer &layer, u32 number, u32 item, bf16 *fresh, float *parts, float *squares) {
    const Place place(a, number);
    const u32 h = item % a.heads, split = item / a.heads, d = a.d, half = d / 2, group = a.heads / a.kv_heads, g = h / group;
    const u32 i = thread() % half, kind = thread() / half; // q, k, v, which are asked for before the other keys
    const int position = (int)(place.row - place.first), keys_seen = (int)place.keys; // rows of the cache, from the first that is seen
    const int share = (keys_seen - 1 + (int)a.splits) / (int)a.splits, first = split * share, end = (int)min_of(keys_seen, first + share);
    int column = (int)((kind == 0 ? h : a.heads + (kind - 1) * a.kv_heads + g) * d + i);
    bf16 low = 0, high = 0;
    float cosine = 0, sine = 0;
    if (kind < 3) {
        low = strong_load(Exchange(a, number).qkv + column), high = strong_load(Exchange(a, number).qkv + column + half);
        if (!NORMS && kind < 2) cosine = place.table[2 * i], sine = place.table[2 * i + 1];
    }
    const NormedHead head(a, number, kind, i, i + half);
    const bf16 *keys = layer.cache + (i64)place.first * a.cache_stride + g * d, *values = keys + a.kv_heads * d;
    const Lanes lanes(d);
    Ahead<KEYS_AHEAD, bf16> ahead;
    ahead.load(lanes, RowsFrom<bf16>{keys, a.cache_stride}, RowsFrom<bf16>{values, a.cache_stride}, first, NORMS ? end : (int)min_of(end, position));
    if (NORMS) {
        opaque(column);
        const bf16 *from = Exchange(a, number).qkv + column;
        float p = 0, q = 0;
        if (kind < 3) p = from_bf16(settled(low, from)), q = from_bf16(settled(high, from + half));
        head.finish(a, p, q, kind, i, place.table, fresh, squares);
    } else if (kind < 3) {
        opaque(column); // or the addresses would take registers while keys come
        const bf16 *from = Exchange(a, number).qkv + column;
        const float p = from_bf16(settled(low, from)), q = from_bf16(settled(high, from + half));
        fresh[256 * kind + i] = to_bf16(kind < 2 ? p * cosine - q * sine : p);
        fresh[256 * kind + half + i] = to_bf16(kind < 2 ? q * cosine + p * sine : q);
    }
    sync_block();
    if (h % group == 0 && split == 0 && thread() < d) {
        bf16 *row = layer.cache + (i64)place.row * a.cache_stride + g * d + thread();
        row[0] = fresh[256 + thread()], row[a.kv_heads * d] = fresh[512 + thread()];
    }
    UNROLL for (int n = 0; n < KEYS_AHEAD; n++)
        if (first + n * lanes.all + lanes.slot == position && lanes.c < lanes.packs)
            load_pack(ahead.k[n], fresh + 256 + 8 * lanes.c), load_pack(ahead.v[n], fresh + 512 + 8 * lanes.c);
    const LatestRow k = {keys, fresh + 256, a.cache_stride, position}, v = {values, fresh + 512, a.cache_stride, position};
    const Joined r = attend_keys(lanes, fresh, k, v, ahead, first, end, d, a.log2_scale, parts);
    if (thread() >= d) return;
    if (a.splits == 1) {
        strong_store(Exchange(a, number).att + h * d + thread(), to_bf16(r.acc / r.sum));
        return;
    }
    float *to = a.part + (i64)item * PART;
    to[thread()] = r.acc;
    if (thread() == 0) to[256] = r.top, to[257] = r.sum;
}

// expect asks for keys and values of a layer to come to the cache of the device: a line a thread of the launch, those of the latest
// positions before this one.
APR_DEVICE void expect(const DecodeArgs &a, const DecodeLayer &layer, const Place &place) {
    const u32 lines = a.kv_heads * a.d / 32, i = block() * threads() + thread(); // of a position
    const u32 before = place.keys - 1;
    if (i >= lines * before) return;
    prefetch(layer.cache + (i64)(place.first + before - 1 - i / lines) * a.cache_stride + i % lines * 64);
}

// The whole. Grid: one block a multiprocessor, all at once.
template <bool ALL, bool NORMS = false, class Args> APR_DEVICE void decode_all(const Args &a) {
    DYNAMIC_SHARED(shared);
    SHARED(Share, shares, 8);
    SHARED(bf16, fresh, 3 * 256);
    SHARED(u32, counts, DECODE_WARPS * PRODUCTS);
    SHARED(u64, filled, DECODE_WARPS * SLOTS);
    SHARED(u32, meetings, 1);
    SHARED(float, squares, DECODE_WARPS);
    DecodeLayer *layers = (DecodeLayer *)(shared + a.layers_at);
    const Model m = {a, layers, shares};
    for (u32 i = thread(); i < a.count * (sizeof(DecodeLayer) / 16); i += threads()) store16((u8 *)layers + 16 * i, load16((const u8 *)a.layers + 16 * i));
    for (u32 i = thread(); i < ZEROS / 16; i += threads()) store16(shared + a.zeros_at + 16 * i, u32x4{});
    if (thread() < MATRICES) shares[thread()] = m.share(thread());
    if (thread() == threads() - 1) meetings[0] = 0;
    sync_block();
    if (warp() < PRODUCTS_KEPT) forget(m, warp());
    const Work work = {(Span *)(shared + a.spans_at), (TileSums *)(shared + a.tiles_at), counts};
    work.describe(m);
    sync_block();
    float *sums = (float *)(shared + a.sums_at), *own = (float *)(shared + a.own_at), *bias = (float *)(shared + a.bias_at);
    const bool last_warp = warp() == DECODE_WARPS - 1; // which alone arrives at barriers and waits there
    auto arrive = [&] {
        if (!last_warp) return;
        grid_arrive(a.arrived);
        if (lane() == 31) meetings[0]++;
    };
    if (last_warp) begin(m, own);
    arrive();
    if (lane() < a.slots) bulk_init(filled + warp() * SLOTS + lane(), 1);
    sync_warp();
    const u32 *count = counts + warp() * PRODUCTS;
    Product<Model, Feed> x = {m, shared, shared + a.zeros_at, {shared + a.ring_at + warp() * a.slots * a.pitch, filled + warp() * SLOTS, 0, 0, 0}, {work.spans + warp() * a.spans, 0, 0, count[0] + count[1] + count[2] + count[3], 0, nullptr, 0}};
    if (x.feed.count > 0) {
        x.feed.describe(m);
        NO_UNROLL for (u32 n = 0; n < a.slots; n++) x.feed.fill(m, x.ring), x.ring.advance(a);
        x.ring.parity = 0; // nothing has been waited for
    }
    grid_wait(a.arrived, meetings[0]);
    NO_UNROLL for (u32 layer = 0; layer < a.count; layer++) {
        const Span *spans = x.feed.spans;
        NO_UNROLL for (u32 product = 0; product < PRODUCTS; product++) {
            NormPacks w; // on their way while x comes, as is the bias
            const u32 rows = product == 0 ? m.tiles(0) * TILE : 0;
            const float v = thread() < rows ? bias_of(m, layers[layer].bias, thread()) : 0.0f;
            if (product == 0) expect(a, layers[layer], Place(a, layer));
            if (product % 2 == 0) w.load(a, layers[layer].norm[product / 2]);
            if (thread() < rows) bias[thread()] = v;
            if (product % 2 == 0) {
                const Exchange e(a, product == 0 ? layer - 1 : layer);
                normalised(a, product == 0 ? e.down : e.o, w, squares, [&](u32x4 v, u32 pack, bool live) { round_pack<BySpan>(shared, pack, v, live); });
            } else {
                const Exchange e(a, layer);
                rounded(product == 1 ? e.att : e.product, m.cols(product), shared);
            }
            sync_block();
            if (product == 2) arrive();
            if (product == 3 && last_warp) {
                if (lane() == 31) grid_see(a.arrived, meetings[0]);
                sync_warp();
                forget(m, layer);
            }
            x.multiply<ALL>(layers[layer], product, spans, count[product], sums);
            spans += count[product];
            sync_block();
            const Sums found = {sums, work.tiles + product * a.tiles};
            const Exchange e(a, layer);
            if (product == 0) finish_qkv(m, found, bias, e.qkv);
            else if (product == 2) finish_gated(m, found, e.product);
            else finish_added(a, m, found, own, product == 1 ? e.o : e.down);
            if (product > 0) continue;
            NO_UNROLL for (u32 item = block(); item < a.heads * a.splits; item += blocks()) {
                attend<NORMS>(a, layers[layer], layer, item, fresh, (float *)shared, squares);
                sync_block();
            }
            if (a.splits == 1) continue;
            arrive();
            grid_wait(a.arrived, meetings[0]);
            NO_UNROLL for (u32 h = block(); h < a.heads; h += blocks()) {
                if (thread() >= a.d) continue;
                const Joined r = join_shares(a.part + (i64)h * PART, (i64)a.heads * PART, a.splits, thread());
                strong_store(Exchange(a, layer).att + h * a.d + thread(), to_bf16(r.acc / r.sum));
            }
        }
    }
    if (block() > 0) return;
    NormPacks w;
    w.load(a, a.norm);
    normalised(a, Exchange(a, a.count - 1).down, w, squares, [&](u32x4 v, u32 pack, bool live) {
        if (live) store16(a.y + 8 * pack, v);
    });
}
