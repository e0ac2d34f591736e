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
constexpr u32 ABREAST = 2;                        // pieces of a warp that are multiplied together, a power of two

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
    u32 stages, pitch;    // pieces of a warp in shared memory, bytes of one
    u32 ring_at, sums_at, own_at, layers_at; // bytes, of shared memory; x is at 0
    float eps, inv_hidden, log2_scale;
};

// type_bytes returns the bytes of 256 values. Without ALL the types are Q4_K, Q5_K and Q6_K.
template <bool ALL> APR_DEVICE u32 type_bytes(u32 type) {
    if (!ALL || type < 3) return type == 0 ? RowsQ4K::bytes : type == 1 ? RowsQ5K::bytes : RowsQ6K::bytes;
    return type == 3 ? RowsOfGroups<GroupQ8_0>::bytes : type == 4 ? RowsOfGroups<GroupQ4_0>::bytes : RowsOfGroups<GroupQ5_0>::bytes;
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

// Piece says what came to a slot: the bytes begin at `shift`, chunk is that of x, sum the place among the sums.
struct Piece { u16 shift, type, chunk, sum; };

// Slot is where pieces come to in shared memory, ABREAST of them or, at the end of a product, fewer.
struct Slot {
    u64 filled;
    u32 count, alike; // pieces; whether they are ABREAST, of one type and chunk
    Piece pieces[ABREAST];
    APR_METHOD u8 *bytes(u32 n, u32 pitch) { return (u8 *)(this + 1) + n * pitch; }
};

// Feed copies a warp's pieces of all products, one after the other, to the slots of its ring. A lane has the description of
// one piece of the next up to 32.
template <bool ALL> struct Feed {
    u32 layer, product; // of the pieces that are described next,
    u32 next, end;      // which are these of the product's
    u32 at, count;      // of those that are described
    const u8 *from;     // the lane's piece: a multiple of 16 bytes
    u32 size, alike;
    Piece piece;
    APR_METHOD void start(const Model &m) {
        layer = product = at = count = 0;
        m.pieces(0, next, end);
    }
    APR_METHOD void describe(const Model &m) {
        at = count = size = 0;
        NO_UNROLL while (next == end) {
            if (layer == m.a.count) return;
            if (++product == PRODUCTS) product = 0, layer++;
            if (layer < m.a.count) m.pieces(product, next, end);
        }
        const u32 number = next + lane(), rows = m.rows(product), chunks = m.chunks(product), groups = m.cols(product) / 32;
        count = (u32)min_of(32, end - next), next += count;
        u32 kind = ~0u;
        if (number < end) {
            const u32 chunk = number / rows, of_all = number - chunk * rows;
            u32 matrix = Model::begin(product), row = of_all;
            NO_UNROLL while (row >= m.shares[matrix].rows) row -= m.shares[matrix++].rows;
            const u32 type = m.layers[layer].type[matrix], bytes = type_bytes<ALL>(type);
            const u32 length = (u32)min_of(8 * bytes, (groups - 64 * chunk) * bytes / 8);
            from = m.layers[layer].w[matrix] + (u64)(m.shares[matrix].first + row) * (groups * bytes / 8) + chunk * 8 * bytes;
            const u32 shift = (u32)(u64)from & 15;
            from -= shift, size = (shift + length + 15) & ~15u, kind = type | chunk << 8;
            piece = {(u16)shift, (u16)type, (u16)chunk, (u16)(of_all * chunks + chunk)};
        }
        alike = 1;
        UNROLL for (u32 d = 1; d < ABREAST; d *= 2) {
            const u32 other = shfl_xor(kind, d), also = shfl_xor(alike, d);
            alike &= also & (other == kind);
        }
    }
    // fill begins to fill a slot with the next pieces, if there are any.
    APR_METHOD void fill(const Model &m, Slot *slot, u32 pitch) {
        if (at == count) describe(m);
        if (count == 0) return;
        const u32 n = lane() - at;
        if (n < ABREAST) {
            if (n == 0) slot->count = (u32)min_of(ABREAST, count - at), slot->alike = alike;
            slot->pieces[n] = piece;
            copy_bulk(&slot->filled, slot->bytes(n, pitch), from, size);
        }
        at = (u32)min_of(at + ABREAST, count);
    }
};

// Ring is a warp's slots and the one that is used next.
struct Ring {
    u8 *slots;
    u32 pitch, stages, turn, parity; // pitch: of a piece
    APR_METHOD Slot *slot(u32 n) const { return (Slot *)(slots + n * slot_bytes(pitch)); }
    APR_METHOD static u32 slot_bytes(u32 pitch) { return sizeof(Slot) + ABREAST * pitch; }
    APR_METHOD void advance() {
        if (++turn == stages) turn = 0, parity ^= 1;
    }
};

// dots are the products of lane l's 64 values of N pieces of one type and chunk. spans are where its spans of 256 are; groups
// are those of a row from there on.
template <class B, u32 N> APR_DEVICE void dots_of(float (&sum)[N], const u8 *const (&spans)[N], const InRegisters &x, u32 l, u32 groups) {
    UNROLL for (u32 n = 0; n < N; n++) {
        float one[1] = {0};
        B::template dot<1>(one, spans[n], x, l, groups);
        sum[n] = one[0];
    }
}
template <bool ALL, u32 N> APR_DEVICE void dots(u32 type, float (&sum)[N], const u8 *const (&spans)[N], const InRegisters &x, u32 l, u32 groups) {
    if (type == 0) dots_of<RowsQ4K, N>(sum, spans, x, l, groups);
    else if (type == 2) dots_of<RowsQ6K, N>(sum, spans, x, l, groups);
    else if (!ALL || type == 1) dots_of<RowsQ5K, N>(sum, spans, x, l, groups);
    else if (type == 3) dots_of<RowsOfGroups<GroupQ8_0>, N>(sum, spans, x, l, groups);
    else if (type == 4) dots_of<RowsOfGroups<GroupQ4_0>, N>(sum, spans, x, l, groups);
    else dots_of<RowsOfGroups<GroupQ5_0>, N>(sum, spans, x, l, groups);
}

// join adds N sums over the lanes of a warp, in the order of warp_sum: lanes 32n/N … have sum n.
template <u32 N> APR_DEVICE float join(float (&sum)[N], u32 l) {
    UNROLL for (u32 half = N / 2, m = 16; half > 0; half /= 2, m /= 2)
        UNROLL for (u32 n = 0; n < half; n++) {
            const bool upper = l & m;
            const float keep = upper ? sum[n + half] : sum[n], give = upper ? sum[n] : sum[n + half];
            sum[n] = keep + shfl_xor(give, m);
        }
    float v = sum[0];
    UNROLL for (u32 m = 16 / N; m; m /= 2) v += shfl_xor(v, m);
    return v;
}

// Work is what a warp needs at hand for a product.
struct Work {
    const Model &m;
    const u8 *x;
    float *sums;
    u32 l, groups, loaded; // groups of a row; chunk and kind of what is in values
    InRegisters values;
    // take multiplies N pieces of a slot from the first on, which are alike.
    template <bool ALL, u32 N> APR_METHOD void take(Slot *slot, u32 first, u32 pitch) {
        const Piece p = slot->pieces[first];
        const u32 wanted = 2 * p.chunk + (p.type == 2), before = 8 * (8 * p.chunk + (l >> 2)), at = (l >> 2) * type_bytes<ALL>(p.type);
        if (wanted != loaded) values.load(x + p.chunk * CHUNK_X, l, p.type == 2);
        loaded = wanted;
        float sum[N] = {};
        if (before < groups) {
            const u8 *spans[N];
            UNROLL for (u32 n = 0; n < N; n++) spans[n] = slot->bytes(first + n, pitch) + slot->pieces[first + n].shift + at;
            dots<ALL, N>(p.type, sum, spans, values, l, groups - before);
        }
        const float v = join<N>(sum, l);
        if (l % (32 / N) == 0) sums[slot->pieces[first + l / (32 / N)].sum] = v;
    }
};

// multiply writes the sums of the warp's pieces of a product to sums [rows, chunks]. x is the row in integers.
template <bool ALL> APR_DEVICE void multiply(const Model &m, Feed<ALL> &feed, Ring &ring, u32 product, const u8 *x, float *sums) {
    u32 next, end;
    m.pieces(product, next, end);
    Work work = {m, x, sums, lane(), m.cols(product) / 32, ~0u, {}};
    NO_UNROLL for (; next < end; next += ABREAST) {
        Slot *slot = ring.slot(ring.turn);
        bulk_wait(&slot->filled, ring.parity);
        if (slot->alike) work.take<ALL, ABREAST>(slot, 0, ring.pitch);
        else NO_UNROLL for (u32 n = 0; n < slot->count; n++) work.take<ALL, 1>(slot, n, ring.pitch);
        sync_warp(); // every lane has read: the slot may be filled again
        feed.fill(m, slot, ring.pitch);
        ring.advance();
    }
}

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

// finish_gated adds the sums of the block's rows of gate and up, in order, and writes silu(g)·u.
APR_DEVICE void finish_gated(const Model &m, const float *sums) {
    const u32 chunks = m.chunks(2);
    const Share gate = m.shares[4];
    NO_UNROLL for (u32 i = thread(); i < gate.rows; i += threads()) {
        float g = 0, u = 0;
        NO_UNROLL for (u32 c = 0; c < chunks; c++) g += sums[i * chunks + c], u += sums[(gate.rows + i) * chunks + c];
        m.a.product[gate.first + i] = to_bf16(gated<bf16>(from_bf16(to_bf16(g)), from_bf16(to_bf16(u))));
    }
}

// finish is that for the other products, by one warp: q, k and v with their bias, or what is added to x. own is x of the
// block's rows.
APR_DEVICE void finish(const Model &m, u32 layer, u32 product, const float *sums, float *own) {
    const DecodeArgs &a = m.a;
    const u32 chunks = m.chunks(product);
    const float *bias = m.layers[layer].bias;
    float squares = 0;
    u32 before = 0, column = 0; // rows of the block and of all in the matrices before
    NO_UNROLL for (u32 n = Model::begin(product); n < Model::end(product); n++) {
        const Share s = m.shares[n];
        NO_UNROLL for (u32 i = lane(); i < s.rows; i += 32) {
            const u32 at = column + s.first + i;
            float v = 0;
            NO_UNROLL for (u32 c = 0; c < chunks; c++) v += sums[(before + i) * chunks + c];
            if (product == 0) {
                a.qkv[at] = to_bf16(bias ? v + bias[at] : v);
                continue;
            }
            const bf16 x = to_bf16(v + own[i]);
            a.x[at] = x, own[i] = from_bf16(x);
            squares = fma_rn(own[i], own[i], squares);
        }
        before += s.rows, column += m.of_all(n);
    }
    squares = warp_sum(squares);
    if (product > 0 && lane() == 0) a.squares[block()] = squares;
}

// begin keeps x of the block's rows, by one warp.
APR_DEVICE void begin(const Model &m, float *own) {
    const Share s = m.shares[3];
    float squares = 0;
    for (u32 i = lane(); i < s.rows; i += 32) own[i] = from_bf16(m.a.x[s.first + i]), squares = fma_rn(own[i], own[i], squares);
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
    DecodeLayer *layers = (DecodeLayer *)(shared + a.layers_at);
    const Model m = {a, layers, shares};
    for (u32 i = thread(); i < a.count * (sizeof(DecodeLayer) / 16); i += threads()) store16((u8 *)layers + 16 * i, load16((const u8 *)a.layers + 16 * i));
    if (thread() < MATRICES) {
        const u32 all = m.of_all(thread()), each = (all + blocks() - 1) / blocks();
        shares[thread()].first = (u32)min_of((i64)each * block(), all);
        shares[thread()].rows = (u32)min_of(each, all - shares[thread()].first);
    }
    sync_block();
    float *sums = (float *)(shared + a.sums_at), *own = (float *)(shared + a.own_at);
    Ring ring = {shared + a.ring_at + warp() * a.stages * Ring::slot_bytes(a.pitch), a.pitch, a.stages, 0, 0};
    if (lane() < a.stages) bulk_init(&ring.slot(lane())->filled, ABREAST);
    sync_warp();
    Feed<ALL> feed;
    feed.start(m);
    NO_UNROLL for (u32 n = 0; n < a.stages; n++) feed.fill(m, ring.slot(n), a.pitch);
    const bool first_warp = warp() == 0;
    u32 round = 0;
    auto arrive = [&] { // by the first warp, which has written last, or of all after a barrier
        if (first_warp) grid_arrive(a.arrived);
        round++;
    };
    if (first_warp) begin(m, own);
    arrive();
    NO_UNROLL for (u32 layer = 0; layer < a.count; layer++)
        NO_UNROLL for (u32 product = 0; product < PRODUCTS; product++) {
            Pack<float, 8> w[MOST_HIDDEN] = {}; // of the norm, on their way during the wait
            if (product % 2 == 0)
                UNROLL for (u32 k = 0; k < MOST_HIDDEN; k++)
                    if (thread() + k * threads() < a.hidden / 8) load_pack(w[k], layers[layer].norm[product / 2] + 8 * (thread() + k * threads()));
            grid_wait(a.arrived, round);
            if (product % 2 == 0) normalised(a, w, shared);
            else rounded(product == 1 ? a.att : a.product, m.cols(product), shared);
            sync_block();
            multiply<ALL>(m, feed, ring, product, shared, sums);
            if (product == 0 && block() < a.heads * a.splits) expect(a, layers[layer], block());
            sync_block();
            if (product == 2) {
                finish_gated(m, sums);
                sync_block();
            } else if (first_warp) {
                finish(m, layer, product, sums, own);
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
