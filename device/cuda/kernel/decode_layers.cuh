// All layers of a model for one position, as one launch: the bytes of weights, which are what takes the time, keep coming
// while blocks wait for each other.
//
// Matrices stand in tiles of 16 rows: see TileArgs. A unit of a tile is a span of 256 columns, or what a row ends with. A block
// has whole tiles of every matrix, and a warp of it consecutive units of each product, which are one stretch of memory. Units
// come to shared memory by bulk copies, several of a warp ahead, also those of products whose x is still being computed:
// weights do not change.
//
// Tensor cores multiply a unit's codes by x in integers, as gemv_blocks.cuh has them. Every group of columns has a scale of its
// own, so that sums of different groups must not mix: x is the matrix B with two columns, hi and lo, for each of the four groups
// that the lanes of a row hold at a time, and zeros elsewhere. Lane 4g+t gets the sums of rows g and g+8 for the group of lane t.
#pragma once
#include "attention_decode.cuh"
#include "gemv_blocks.cuh"

constexpr u32 MATRICES = 7, PRODUCTS = 4;        // of a layer: q, k, v; o; gate, up; down
constexpr u32 DECODE_WARPS = 16, MOST_HIDDEN = 2; // of a block; packs of the hidden state that a thread has at most
constexpr u32 MOST_STAGES = 8;                    // units of a warp in shared memory at most
constexpr u32 TILE = 16;                          // rows
constexpr u32 ZEROS = 3 * PLANE + 16;             // bytes of zeros that lanes without a column of x read

struct DecodeLayer {
    const u8 *w[MATRICES];
    const float *norm[2]; // of RMSNorm before q, k, v and before gate, up
    const float *bias;    // of q, k, v; zero: none
    bf16 *cache;          // [capacity, 2·kv_heads·d]: a rotated key, then its value
    u8 type[8];           // of w: see type_bytes
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
    u32 stages, pitch;    // units of a warp in shared memory, bytes of one
    u32 spans, tiles;     // of a warp in a layer, of a block in a product, at most
    u32 ring_at, zeros_at, sums_at, own_at, spans_at, tiles_at, layers_at; // bytes, of shared memory; x is at 0
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
template <class W> APR_DEVICE void tile(const TileArgs &a) {
    const u64 first = (u64)block() * TILE * a.row;
    const W *from = (const W *)a.src + first;
    W *to = (W *)a.dst + first;
    for (u32 i = thread(); i < TILE * a.row; i += threads()) {
        const u32 span = i / (TILE * a.span), words = (u32)min_of(a.span, a.row - span * a.span), at = i - span * TILE * a.span;
        const u32 row = at / words, in_rows = row * a.row + span * a.span + (at - row * words);
        if (a.back) to[in_rows] = from[i];
        else to[i] = from[in_rows];
    }
}

// type_bytes returns the bytes of 256 values. Without ALL the types are Q4_K, Q5_K and Q6_K.
template <bool ALL> APR_DEVICE u32 type_bytes(u32 type) {
    if (!ALL || type < 3) return type == 0 ? RowsQ4K::bytes : type == 1 ? RowsQ5K::bytes : RowsQ6K::bytes;
    return type == 3 ? RowsOfGroups<GroupQ8_0>::bytes : type == 4 ? RowsOfGroups<GroupQ4_0>::bytes : RowsOfGroups<GroupQ5_0>::bytes;
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
    Span *spans;             // [DECODE_WARPS, a.spans]
    TileSums *tiles;         // [PRODUCTS, a.tiles]
    u32 *counts;             // [DECODE_WARPS, PRODUCTS]: spans
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

// Ring is a warp's place for units in shared memory, and the slot that is used next.
struct Ring {
    u8 *slots;
    u64 *filled; // of each slot
    u32 pitch, stages, turn, parity;
    APR_METHOD void advance() {
        if (++turn == stages) turn = 0, parity ^= 1;
    }
};

// Feed copies a warp's units of all layers, one after the other, to the slots of its ring.
template <bool ALL> struct Feed {
    const Span *spans;
    u32 layer, next, count; // of the span that comes after the next copy's; of a layer
    const u8 *from;         // the next copy: nothing if size is 0
    u32 size;
    // prepare finds the next copy.
    APR_METHOD void prepare(const Model &m) {
        size = 0;
        if (layer == m.a.count || count == 0) return;
        const Span u = spans[next];
        const u32 bytes = 2 * type_bytes<ALL>(m.layers[layer].type[u.matrix]); // TILE rows of a group
        from = m.layers[layer].w[u.matrix] + (u64)u.at * bytes, size = u.groups * bytes;
        if (++next == count) next = 0, layer++;
    }
    // fill begins to fill a slot with the next unit, if there is one.
    APR_METHOD void fill(const Model &m, const Ring &ring, u32 slot) {
        if (size > 0 && lane() == 0) copy_bulk(&ring.filled[slot], ring.slots + slot * ring.pitch, from, size);
        prepare(m);
    }
};

// Operand is x of a product as the lanes of a warp read it.
struct Operand {
    const u8 *x, *zeros;
    u32 l; // lane
    // unit adds a unit's products to those of rows g and g+8. p is the unit's first block of row g, that of g+8 is `below` bytes
    // after it; groups are those of the unit, which is number span of its row.
    template <class B> APR_METHOD void unit(float (&sum)[2], const u8 *p, u32 below, u32 span, u32 groups) const {
        const u32 g = l >> 2, t = l & 3, at = 4 * (span & 7) + t, i = t & 1;
        const u8 *chunk = x + (span >> 3) * CHUNK_X;
        const u8 *column = chunk + 4 * PLANE * (g & 1) + (B::halves ? i * PLANE + 16 * (at - i) : 16 * at);
        if (g >> 1 != t) column = zeros;
        constexpr u32 parts = B::halves ? 4 : 2; // of a row's codes, that have a scale
        i32 d[parts][4] = {};
        {
            UNROLL for (u32 n = 0; n < 4; n++) {
                Words a[4], b[4];
                B::words(a, p, t, groups);
                B::words(b, p + below, t, groups);
                const u32x4 v = load16(column + (B::halves ? 2 * (n & 1) * PLANE + 16 * (n >> 1) : n * PLANE));
                UNROLL for (u32 j = 0; j < 4; j += 2) {
                    const u32 rows[4] = {a[n].w[j], b[n].w[j], a[n].w[j + 1], b[n].w[j + 1]};
                    if (B::is_signed) mma_ss(d[n * parts / 4], rows, v[j], v[j + 1]);
                    else mma_us(d[n * parts / 4], rows, v[j], v[j + 1]);
                }
            }
        }
        const InShared list = {chunk, 0, at};
        UNROLL for (u32 r = 0; r < 2; r++) {
            float s[4], off[4];
            B::scales(s, off, p + r * below, t, groups);
            UNROLL for (u32 k = 0; k < parts; k++) {
                if (B::partial && 2 * t + k >= groups) continue; // a scale that is not there
                const float scale = B::halves ? list.half_scale(0, k) : list.pair_scale(0, k), total = B::halves ? list.half_total(0, k) : list.pair_total(0, k);
                sum[r] = with_group<B>(sum[r], s[k], off[k], mul_rn(scale, (float)(d[k][2 * r] * 256 + d[k][2 * r + 1])), total);
            }
        }
    }
    template <bool ALL> APR_METHOD void add(float (&sum)[2], u32 type, const u8 *slot, u32 span, u32 groups) const {
        const u32 row = type_bytes<ALL>(type) * groups / 8;
        const u8 *p = slot + (l >> 2) * row;
        if (type == 0) unit<RowsQ4K>(sum, p, 8 * row, span, groups);
        else if (type == 2) unit<RowsQ6K>(sum, p, 8 * row, span, groups);
        else if (!ALL || type == 1) unit<RowsQ5K>(sum, p, 8 * row, span, groups);
        else if (type == 3) unit<RowsOfGroups<GroupQ8_0>>(sum, p, 8 * row, span, groups);
        else if (type == 4) unit<RowsOfGroups<GroupQ4_0>>(sum, p, 8 * row, span, groups);
        else unit<RowsOfGroups<GroupQ5_0>>(sum, p, 8 * row, span, groups);
    }
};

// multiply writes the warp's sums of the rows of its tiles. units are those of the product.
template <bool ALL> APR_DEVICE void multiply(const Model &m, Feed<ALL> &feed, Ring &ring, u32 layer, const Span *spans, u32 count, const Operand &x, float *sums) {
    float sum[2] = {};
    NO_UNROLL for (u32 i = 0; i < count; i++) {
        const Span u = spans[i];
        bulk_wait(&ring.filled[ring.turn], ring.parity);
        x.add<ALL>(sum, m.layers[layer].type[u.matrix], ring.slots + ring.turn * ring.pitch, u.number, u.groups);
        sync_warp(); // every lane has read: the slot may be filled again
        feed.fill(m, ring, ring.turn);
        ring.advance();
        if (!u.last) continue;
        UNROLL for (u32 r = 0; r < 2; r++) {
            sum[r] += shfl_xor(sum[r], 1);
            sum[r] += shfl_xor(sum[r], 2);
            if ((x.l & 3) == 0) sums[u.place * TILE + (x.l >> 2) + 8 * r] = sum[r];
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
    constexpr u32 LOADS = 3;
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

// finish_rows is that for the other products, by one warp: q, k and v with their bias, or what is added to x. own is x of the
// block's rows.
APR_DEVICE void finish_rows(const Model &m, u32 layer, u32 product, const Sums &sums, float *own) {
    const DecodeArgs &a = m.a;
    const float *bias = m.layers[layer].bias;
    float squares = 0;
    u32 column = 0, before = 0; // of the matrix, its first tile of the block
    NO_UNROLL for (u32 n = Model::begin(product); n < Model::end(product); n++) {
        const Share s = m.shares[n];
        NO_UNROLL for (u32 i = lane(); i < s.tiles * TILE; i += 32) {
            const u32 at = column + s.first * TILE + i;
            const float v = sums.row(before + i / TILE, i % TILE);
            if (product == 0) {
                a.qkv[at] = to_bf16(bias ? v + bias[at] : v);
                continue;
            }
            const bf16 x = to_bf16(v + own[i]);
            a.x[at] = x, own[i] = from_bf16(x);
            squares = fma_rn(own[i], own[i], squares);
        }
        before += s.tiles, column += (n == 0 ? a.heads : a.kv_heads) * a.d;
    }
    squares = warp_sum(squares);
    if (product > 0 && lane() == 0) a.squares[block()] = squares;
}

// begin keeps x of the block's rows, by one warp.
APR_DEVICE void begin(const Model &m, float *own) {
    const Share s = m.shares[3];
    float squares = 0;
    for (u32 i = lane(); i < s.tiles * TILE; i += 32) own[i] = from_bf16(m.a.x[s.first * TILE + i]), squares = fma_rn(own[i], own[i], squares);
    squares = warp_sum(squares);
    if (lane() == 0) m.a.squares[block()] = squares;
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
    const u32 i = thread() % half, kind = thread() / half;
    if (kind < 2) { // q, k
        const bf16 *from = a.qkv + (kind == 0 ? h * d : (a.heads + g) * d);
        const float p = from_bf16(from[i]), q = from_bf16(from[half + i]), cosine = a.table[2 * i], sine = a.table[2 * i + 1];
        fresh[256 * kind + i] = to_bf16(p * cosine - q * sine);
        fresh[256 * kind + half + i] = to_bf16(q * cosine + p * sine);
    }
    if (thread() < d) fresh[512 + thread()] = a.qkv[(a.heads + a.kv_heads + g) * d + thread()];
    sync_block();
    const int share = (a.position + a.splits) / a.splits, first = split * share, end = (int)min_of(a.position + 1, first + share);
    if (h % group == 0 && split == 0 && thread() < d) {
        bf16 *row = layer.cache + a.position * a.cache_stride + g * d + thread();
        row[0] = fresh[256 + thread()], row[a.kv_heads * d] = fresh[512 + thread()];
    }
    const bf16 *keys = layer.cache + g * d;
    const LatestRow k = {keys, fresh + 256, a.cache_stride, (int)a.position}, v = {keys + a.kv_heads * d, fresh + 512, a.cache_stride, (int)a.position};
    const Joined r = attend_keys<2>(fresh, k, v, first, end, d, a.log2_scale, parts);
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
    SHARED(u64, filled, DECODE_WARPS * MOST_STAGES);
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
    float *sums = (float *)(shared + a.sums_at), *own = (float *)(shared + a.own_at);
    const Operand x = {shared, shared + a.zeros_at, lane()};
    Ring ring = {shared + a.ring_at + warp() * a.stages * a.pitch, filled + warp() * MOST_STAGES, a.pitch, a.stages, 0, 0};
    if (lane() < a.stages) bulk_init(&ring.filled[lane()], 1);
    sync_warp();
    const u32 *count = counts + warp() * PRODUCTS;
    Feed<ALL> feed = {work.spans + warp() * a.spans, 0, 0, count[0] + count[1] + count[2] + count[3], nullptr, 0};
    feed.prepare(m);
    NO_UNROLL for (u32 n = 0; n < a.stages; n++) feed.fill(m, ring, n);
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
            Pack<float, 8> w[MOST_HIDDEN] = {}; // of the norm, on their way during the wait
            if (product % 2 == 0)
                UNROLL for (u32 k = 0; k < MOST_HIDDEN; k++)
                    if (thread() + k * threads() < a.hidden / 8) load_pack(w[k], layers[layer].norm[product / 2] + 8 * (thread() + k * threads()));
            grid_wait(a.arrived, round);
            if (product % 2 == 0) normalised(a, w, shared);
            else rounded(product == 1 ? a.att : a.product, m.cols(product), shared);
            sync_block();
            multiply<ALL>(m, feed, ring, layer, spans, count[product], x, sums);
            spans += count[product];
            if (product == 0 && block() < a.heads * a.splits) expect(a, layers[layer], block());
            sync_block();
            const Sums found = {sums, work.tiles + product * a.tiles};
            if (product == 2) {
                finish_gated(m, found);
                sync_block();
            } else if (first_warp) {
                finish_rows(m, layer, product, found, own);
            }
            arrive();
            if (product > 0) continue;
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
