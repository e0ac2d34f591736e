// All layers of a model for one position, as one launch: the bytes of weights, which are what takes the time, keep coming
// while blocks wait for each other.
//
// Each product is cut into pieces of 2048 columns of a row. A block has as many rows of every matrix as any other, and a
// warp of it consecutive pieces, those of the first columns of all rows before those of the next, so that what it needs of
// x stays in registers. Pieces come to shared memory by bulk copies, several of a warp ahead, also those of products whose
// x is still being computed: weights do not change.
#pragma once
#include "attention_decode.cuh"
#include "gemv_blocks.cuh"

constexpr u32 MATRICES = 7, PRODUCTS = 4;        // of a layer: q, k, v; o; gate, up; down
constexpr u32 DECODE_WARPS = 16, MOST_HIDDEN = 2; // of a block; packs of the hidden state that a thread has at most

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
    i64 cache_stride;
    u32 count, hidden, inter, heads, kv_heads, d;
    u32 position, splits; // splits: shares that a head's keys are cut into
    u32 stages, pitch;    // pieces of a warp in shared memory, bytes of one
    u32 ring_at, sums_at, layers_at; // bytes, of shared memory; x is at 0
    float eps, inv_hidden, log2_scale;
};

// type_bytes returns the bytes of 256 values.
APR_DEVICE u32 type_bytes(u32 type) {
    return type == 0 ? RowsQ4K::bytes : type == 1 ? RowsQ5K::bytes : type == 2 ? RowsQ6K::bytes : type == 3 ? RowsOfGroups<GroupQ8_0>::bytes
        : type == 4 ? RowsOfGroups<GroupQ4_0>::bytes : RowsOfGroups<GroupQ5_0>::bytes;
}

// InRegisters is InShared for one row of x: units and lists of either kind, pairs or halves.
struct InRegisters {
    Unit units[4];
    float scale[4], total[4];
    APR_METHOD void load(const u8 *chunk, u32 l, bool halves) {
        const InShared x = {chunk, 0, l};
        if (halves) {
            UNROLL for (u32 k = 0; k < 4; k++) units[k] = x.half(0, k), scale[k] = x.half_scale(0, k), total[k] = x.half_total(0, k);
            return;
        }
        UNROLL for (u32 k = 0; k < 4; k++) units[k] = x.pair(0, k);
        UNROLL for (u32 c = 0; c < 2; c++) scale[c] = x.pair_scale(0, c), total[c] = x.pair_total(0, c);
    }
    APR_METHOD Unit pair(u32, u32 k) const { return units[k]; }
    APR_METHOD float pair_scale(u32, u32 c) const { return scale[c]; }
    APR_METHOD float pair_total(u32, u32 c) const { return total[c]; }
    APR_METHOD Unit half(u32, u32 k) const { return units[k]; }
    APR_METHOD float half_scale(u32, u32 k) const { return scale[k]; }
    APR_METHOD float half_total(u32, u32 k) const { return total[k]; }
};

// Share is what a block has of a matrix: rows from first on.
struct Share { u32 first, rows; };

// Model is what all layers have in common, as a block sees it.
struct Model {
    const DecodeArgs &a;
    const DecodeLayer *layers; // in shared memory
    const Share *shares;       // [MATRICES]
    APR_METHOD static u32 begin(u32 product) { return product == 0 ? 0 : product == 1 ? 3 : product == 2 ? 4 : 6; } // its matrices
    APR_METHOD static u32 end(u32 product) { return product == 0 ? 3 : product == 1 ? 4 : product == 2 ? 6 : 7; }
    APR_METHOD u32 cols(u32 product) const { return product == 1 ? a.heads * a.d : product == 3 ? a.inter : a.hidden; }
    APR_METHOD u32 chunks(u32 product) const { return (cols(product) + CHUNK - 1) / CHUNK; }
    APR_METHOD u32 rows(u32 product) const { // of the block
        u32 n = 0;
        NO_UNROLL for (u32 m = begin(product); m < end(product); m++) n += shares[m].rows;
        return n;
    }
    // pieces are numbers [next, end) of the product's rows·chunks: those of the warp.
    APR_METHOD void pieces(u32 product, u32 &next, u32 &end) const {
        const u32 all = rows(product) * chunks(product), warps = threads() / 32;
        next = all * warp() / warps, end = all * (warp() + 1) / warps;
    }
    APR_METHOD u32 of_all(u32 matrix) const {
        return matrix == 0 ? a.heads * a.d : matrix < 3 ? a.kv_heads * a.d : matrix == 4 || matrix == 5 ? a.inter : a.hidden;
    }
};

// Slot is where a piece comes to in shared memory. Its bytes follow, from `shift` on.
struct Slot {
    u64 filled;
    u16 shift, type;
    u16 chunk, sum; // of the piece: chunk of x, place among the sums
    APR_METHOD u8 *bytes() { return (u8 *)(this + 1); }
};

// Feed copies a warp's pieces of all products, one after the other, to the slots of its ring. A lane has the description of
// one piece of the next up to 32.
struct Feed {
    u32 layer, product; // of the pieces that are described next,
    u32 next, end;      // which are these of the product's
    u32 at, count;      // of those that are described
    const u8 *from;     // the lane's piece: a multiple of 16 bytes
    u32 size;
    u16 shift, type, chunk, sum;
    APR_METHOD void start(const Model &m) {
        layer = product = at = count = 0;
        m.pieces(0, next, end);
    }
    APR_METHOD void describe(const Model &m) {
        at = count = 0;
        NO_UNROLL while (next == end) {
            if (layer == m.a.count) return;
            if (++product == PRODUCTS) product = 0, layer++;
            if (layer < m.a.count) m.pieces(product, next, end);
        }
        const u32 piece = next + lane(), rows = m.rows(product), chunks = m.chunks(product), groups = m.cols(product) / 32;
        count = (u32)min_of(32, end - next), next += count;
        if (piece >= end) return;
        const u32 part = piece / rows, of_all = piece - part * rows;
        u32 matrix = Model::begin(product), row = of_all;
        NO_UNROLL while (row >= m.shares[matrix].rows) row -= m.shares[matrix++].rows;
        type = m.layers[layer].type[matrix];
        const u32 bytes = type_bytes(type), length = (u32)min_of(8 * bytes, (groups - 64 * part) * bytes / 8);
        from = m.layers[layer].w[matrix] + (u64)(m.shares[matrix].first + row) * (groups * bytes / 8) + part * 8 * bytes;
        shift = (u16)((u64)from & 15), from -= shift;
        size = (shift + length + 15) & ~15u;
        chunk = (u16)part, sum = (u16)(of_all * chunks + part);
    }
    // fill begins to fill a slot with the next piece, if there is one.
    APR_METHOD void fill(const Model &m, Slot *slot) {
        if (at == count) describe(m);
        if (at < count && lane() == at) {
            slot->shift = shift, slot->type = type, slot->chunk = chunk, slot->sum = sum;
            copy_bulk(&slot->filled, slot->bytes(), from, size);
        }
        at += at < count;
    }
};

// Ring is a warp's slots and the one that is used next.
struct Ring {
    u8 *slots;
    u32 pitch, stages, turn, parity;
    APR_METHOD Slot *slot(u32 n) const { return (Slot *)(slots + n * pitch); }
    APR_METHOD void advance() {
        if (++turn == stages) turn = 0, parity ^= 1;
    }
};

// dot is the product of lane l's 64 values of a piece.
APR_DEVICE float dot(u32 type, const u8 *span, const InRegisters &x, u32 l, u32 groups) {
    float sum[1] = {};
    if (type == 0) RowsQ4K::dot<1>(sum, span, x, l, groups);
    else if (type == 2) RowsQ6K::dot<1>(sum, span, x, l, groups);
    else if (type == 1) RowsQ5K::dot<1>(sum, span, x, l, groups);
    else if (type == 3) RowsOfGroups<GroupQ8_0>::dot<1>(sum, span, x, l, groups);
    else if (type == 4) RowsOfGroups<GroupQ4_0>::dot<1>(sum, span, x, l, groups);
    else RowsOfGroups<GroupQ5_0>::dot<1>(sum, span, x, l, groups);
    return sum[0];
}

// multiply writes the sums of the warp's pieces of a product to sums [rows, chunks]. x is the row in integers.
APR_DEVICE void multiply(const Model &m, Feed &feed, Ring &ring, u32 product, const u8 *x, float *sums) {
    const u32 l = lane(), groups = m.cols(product) / 32;
    u32 next, end, loaded = ~0u; // loaded: chunk and kind of what is in values
    m.pieces(product, next, end);
    InRegisters values;
    NO_UNROLL for (; next < end; next++) {
        Slot *slot = ring.slot(ring.turn);
        bulk_wait(&slot->filled, ring.parity);
        const u32 type = slot->type, chunk = slot->chunk, at = slot->sum, wanted = 2 * chunk + (type == 2), before = 8 * (8 * chunk + (l >> 2));
        if (wanted != loaded) values.load(x + chunk * CHUNK_X, l, type == 2);
        loaded = wanted;
        float sum = 0;
        if (before < groups) sum = dot(type, slot->bytes() + slot->shift + (l >> 2) * type_bytes(type), values, l, groups - before);
        sync_warp(); // every lane has read: the slot may be filled again
        feed.fill(m, slot);
        ring.advance();
        sum = warp_sum(sum);
        if (l == 0) sums[at] = sum;
    }
}

// normalised writes RMSNorm of the hidden state, as rounded to bfloat16, to x in integers. w are the thread's packs of the
// norm's weights.
APR_DEVICE void normalised(const DecodeArgs &a, const Pack<float, 8> (&w)[MOST_HIDDEN], u8 *x, float *words) {
    const u32 packs = a.hidden / 8;
    Pack<bf16, 8> v[MOST_HIDDEN] = {};
    float p[8], q[8], squares = 0;
    UNROLL for (u32 k = 0; k < MOST_HIDDEN; k++)
        if (thread() + k * threads() < packs) load_pack(v[k], a.x + 8 * (thread() + k * threads()));
    UNROLL for (u32 k = 0; k < MOST_HIDDEN; k++) {
        widen(p, v[k]);
        UNROLL for (int e = 0; e < 8; e++) squares = fma_rn(p[e], p[e], squares);
    }
    const float rstd = 1.0f / sqrt_rn(fma_rn(block_sum(squares, words), a.inv_hidden, a.eps));
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

// rounded writes a row that other blocks have computed to x in integers.
APR_DEVICE void rounded(const bf16 *row, u32 cols, u8 *x) {
    NO_UNROLL for (u32 first = 32 * warp(); first < cols / 8; first += threads()) {
        const u32 pack = first + lane();
        u32x4 v = {};
        if (pack < cols / 8) v = load16(row + 8 * (u64)pack);
        round_pack(x, pack, v, pack < cols / 8);
    }
}

// finish adds the sums of each of the block's rows, in order, and writes what the product makes.
APR_DEVICE void finish(const Model &m, u32 layer, u32 product, const float *sums) {
    const DecodeArgs &a = m.a;
    const u32 chunks = m.chunks(product);
    auto total = [&](u32 row) {
        float v = 0;
        NO_UNROLL for (u32 c = 0; c < chunks; c++) v += sums[row * chunks + c];
        return v;
    };
    if (product == 2) {
        const Share gate = m.shares[4];
        NO_UNROLL for (u32 i = thread(); i < gate.rows; i += threads()) {
            const float g = from_bf16(to_bf16(total(i))), u = from_bf16(to_bf16(total(gate.rows + i)));
            a.product[gate.first + i] = to_bf16(gated<bf16>(g, u));
        }
        return;
    }
    u32 before = 0, column = 0; // rows of the block and of all in the matrices before
    NO_UNROLL for (u32 n = Model::begin(product); n < Model::end(product); n++) {
        const Share s = m.shares[n];
        NO_UNROLL for (u32 i = thread(); i < s.rows; i += threads()) {
            const u32 at = column + s.first + i;
            const float v = total(before + i);
            if (product == 0) a.qkv[at] = to_bf16(m.layers[layer].bias ? v + m.layers[layer].bias[at] : v);
            else a.x[at] = to_bf16(v + from_bf16(a.x[at]));
        }
        before += s.rows, column += m.of_all(n);
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

// The whole. Grid: one block a multiprocessor, all at once.
APR_DEVICE void decode_all(const DecodeArgs &a) {
    DYNAMIC_SHARED(shared);
    SHARED(Share, shares, 8);
    SHARED(float, words, 33);
    SHARED(bf16, fresh, 3 * 256);
    DecodeLayer *layers = (DecodeLayer *)(shared + a.layers_at);
    const Model m = {a, layers, shares};
    for (u32 i = thread(); i < a.count * (sizeof(DecodeLayer) / 16); i += threads()) store16((u8 *)layers + 16 * i, load16((const u8 *)a.layers + 16 * i));
    if (thread() < MATRICES) {
        const u32 all = m.of_all(thread()), each = (all + blocks() - 1) / blocks();
        shares[thread()].first = (u32)min_of((i64)each * block(), all);
        shares[thread()].rows = (u32)min_of(each, all - shares[thread()].first);
    }
    sync_block();
    float *sums = (float *)(shared + a.sums_at);
    Ring ring = {shared + a.ring_at + warp() * a.stages * a.pitch, a.pitch, a.stages, 0, 0};
    if (lane() < a.stages) bulk_init(&ring.slot(lane())->filled);
    sync_warp();
    Feed feed;
    feed.start(m);
    NO_UNROLL for (u32 n = 0; n < a.stages; n++) feed.fill(m, ring.slot(n));
    sync_warp();
    u32 round = 0;
    NO_UNROLL for (u32 layer = 0; layer < a.count; layer++)
        NO_UNROLL for (u32 product = 0; product < PRODUCTS; product++) {
            Pack<float, 8> w[MOST_HIDDEN] = {}; // of the norm, on their way during the wait
            if (product % 2 == 0)
                UNROLL for (u32 k = 0; k < MOST_HIDDEN; k++)
                    if (thread() + k * threads() < a.hidden / 8) load_pack(w[k], layers[layer].norm[product / 2] + 8 * (thread() + k * threads()));
            if (round > 0) grid_wait(a.arrived, round);
            if (product % 2 == 0) normalised(a, w, shared, words);
            else rounded(product == 1 ? a.att : a.product, m.cols(product), shared);
            sync_block();
            multiply(m, feed, ring, product, shared, sums);
            sync_block();
            finish(m, layer, product, sums);
            grid_arrive(a.arrived), round++;
            if (product > 0) continue;
            grid_wait(a.arrived, round);
            NO_UNROLL for (u32 item = block(); item < a.heads * a.splits; item += blocks()) {
                sync_block(); // what the item before needed is done with
                attend(a, layers[layer], item, fresh, (float *)shared);
            }
            grid_arrive(a.arrived), round++;
            if (a.splits == 1) continue;
            grid_wait(a.arrived, round);
            NO_UNROLL for (u32 h = block(); h < a.heads; h += blocks()) {
                if (thread() >= a.d) continue;
                const Joined r = join_shares(a.part + (i64)h * PART, (i64)a.heads * PART, a.splits, thread());
                a.att[h * a.d + thread()] = to_bf16(r.acc / r.sum);
            }
            grid_arrive(a.arrived), round++;
        }
}
