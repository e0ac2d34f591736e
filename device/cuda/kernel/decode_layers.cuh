// All layers of a model for one position, as one launch: the bytes of weights, which are what takes the time, keep coming
// while blocks wait for each other.
//
// Each product is cut into pieces, 2048 columns of a row. A block has as many rows of every matrix as any other, and a warp of
// it consecutive pieces. They come to shared memory by asynchronous copies while those before are multiplied, also those of
// products whose x is still being computed: weights do not change.
#pragma once
#include "attention_decode.cuh"
#include "gemv_blocks.cuh"

constexpr u32 MATRICES = 7, PRODUCTS = 4;        // of a layer: q, k, v; o; gate, up; down
constexpr u32 DECODE_WARPS = 32; // of a block
constexpr u32 SLOTS = 2;         // for pieces in a warp's shared memory
constexpr u32 BATCH = 16;        // pieces of a warp that are described together, at most 32

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
    u32 pitch;            // bytes of a piece in shared memory
    u32 plans_at, ring_at, sums_at, own_at, layers_at; // bytes, of shared memory; x is at 0
    float eps, inv_hidden, log2_scale;
};

// type_bytes returns the bytes of 256 values.
APR_DEVICE u32 type_bytes(u32 type) {
    return type == 0 ? RowsQ4K::bytes : type == 1 ? RowsQ5K::bytes : type == 2 ? RowsQ6K::bytes : type == 3 ? RowsOfGroups<GroupQ8_0>::bytes
        : type == 4 ? RowsOfGroups<GroupQ4_0>::bytes : RowsOfGroups<GroupQ5_0>::bytes;
}

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

// Piece says where one is, and where its sum goes.
struct Piece {
    const u8 *from; // a multiple of 16 bytes
    u16 size, shift; // bytes from there on, and before the piece's first
    u16 row, chunk, type, spare[3]; // row of the block's of the product
};

// Plan is what comes next in a warp's ring. It is kept in shared memory, since registers are few.
struct Plan {
    u32 layer, product, next, end; // the pieces that are described next: [next, end) of the product's
    Piece pieces[BATCH];
    u32 spare[4];
    // describe fills pieces with what follows, and returns how many.
    APR_METHOD u32 describe(const Model &m) {
        sync_warp(); // all have read the pieces before
        u32 count = 0, l = lane(), at_layer = layer, at_product = product, first = next, last = end;
        NO_UNROLL while (first == last && at_layer < m.a.count) {
            if (++at_product == PRODUCTS) at_product = 0, at_layer++;
            if (at_layer < m.a.count) m.pieces(at_product, first, last);
        }
        if (at_layer < m.a.count) {
            const u32 chunks = m.chunks(at_product), groups = m.cols(at_product) / 32;
            count = (u32)min_of(BATCH, last - first);
            if (l < count) {
                const u32 of_all = (first + l) / chunks, chunk = first + l - of_all * chunks;
                u32 matrix = Model::begin(at_product), row = of_all;
                NO_UNROLL while (row >= m.shares[matrix].rows) row -= m.shares[matrix++].rows;
                const u32 type = m.layers[at_layer].type[matrix], bytes = type_bytes(type);
                const u32 length = (u32)min_of(8 * bytes, (groups - 64 * chunk) * bytes / 8);
                const u8 *from = m.layers[at_layer].w[matrix] + (u64)(m.shares[matrix].first + row) * (groups * bytes / 8) + chunk * 8 * bytes;
                const u32 shift = (u32)(u64)from & 15;
                pieces[l] = {from - shift, (u16)(shift + length), (u16)shift, (u16)of_all, (u16)chunk, (u16)type};
            }
        }
        sync_warp(); // all have read
        if (l == 0) layer = at_layer, product = at_product, next = first + count, end = last;
        sync_warp();
        return count;
    }
};

// Feed copies a warp's pieces of all products, one after the other, to the slots of its ring. A slot has the piece's row,
// chunk, type and shift before the bytes.
struct Feed {
    Plan *plan;
    u32 at, count; // of the plan's pieces
    APR_METHOD void fill(const Model &m, u8 *slot) {
        if (at == count) at = 0, count = plan->describe(m);
        if (at < count) {
            const Piece &p = plan->pieces[at++];
            const u8 *from = p.from;
            const u32 size = p.size, o = 16 * lane();
            UNROLL for (u32 n = 0; n < 8 * RowsOfGroups<GroupQ8_0>::bytes + 15; n += 512)
                if (n + o < size) copy_async16(slot + 16 + n + o, from + n + o);
            if (lane() == 0) *(u32x2 *)slot = u32x2{p.row | (u32)p.chunk << 16, p.type | (u32)p.shift << 16};
        }
        copy_async_commit();
    }
};

APR_DEVICE float dot(u32 type, const u8 *span, const InShared &x, u32 l, u32 groups) {
    float sum[1] = {};
    if (type == 0) RowsQ4K::dot<1>(sum, span, x, l, groups);
    else if (type == 2) RowsQ6K::dot<1>(sum, span, x, l, groups);
    else if (type == 1) RowsQ5K::dot<1>(sum, span, x, l, groups);
    else if (type == 3) RowsOfGroups<GroupQ8_0>::dot<1>(sum, span, x, l, groups);
    else if (type == 4) RowsOfGroups<GroupQ4_0>::dot<1>(sum, span, x, l, groups);
    else RowsOfGroups<GroupQ5_0>::dot<1>(sum, span, x, l, groups);
    return sum[0];
}

// multiply writes the sums of the warp's pieces of a product to sums [rows, chunks]. x is the row in integers, slots the
// warp's ring, turn the slot that is used next.
APR_DEVICE void multiply(const Model &m, Feed &feed, u8 *slots, u32 &turn, u32 product, const u8 *x, float *sums) {
    const u32 l = lane(), groups = m.cols(product) / 32, chunks = m.chunks(product);
    u32 next, end;
    m.pieces(product, next, end);
    NO_UNROLL for (; next < end; next++) {
        u8 *slot = slots + turn * m.a.pitch;
        copy_async_wait<SLOTS - 1>();
        sync_warp(); // every lane's copies are there
        const u32x2 what = *(const u32x2 *)slot;
        const u32 chunk = what[0] >> 16, type = what[1] & 0xffff, before = 8 * (8 * chunk + (l >> 2));
        float sum = 0;
        if (before < groups) sum = dot(type, slot + 16 + (what[1] >> 16) + (l >> 2) * type_bytes(type), InShared{x + chunk * CHUNK_X, 0, l}, l, groups - before);
        sync_warp(); // every lane has read: the slot may be filled again
        feed.fill(m, slot);
        turn = turn + 1 == SLOTS ? 0 : turn + 1;
        sum = warp_sum(sum);
        if (l == 0) sums[(what[0] & 0xffff) * chunks + chunk] = sum;
    }
}

// normalised writes RMSNorm of the hidden state, as rounded to bfloat16, to x in integers. w is the thread's pack of the norm's
// weights.
APR_DEVICE void normalised(const DecodeArgs &a, const Pack<float, 8> &w, u8 *x) {
    const u32 packs = a.hidden / 8;
    Pack<bf16, 8> v = {};
    if (thread() < packs) load_pack(v, a.x + 8 * thread());
    float p[8], q[8], squares = 0;
    for (u32 b = lane(); b < blocks(); b += 32) squares += a.squares[b];
    const float rstd = 1.0f / sqrt_rn(fma_rn(warp_sum(squares), a.inv_hidden, a.eps));
    if (32 * warp() >= packs) return;
    widen(p, v);
    widen(q, w);
    UNROLL for (int e = 0; e < 8; e++) p[e] = p[e] * rstd * q[e];
    narrow(v, p);
    round_pack(x, thread(), v.v, thread() < packs);
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
    const Joined r = attend_keys<1>(fresh, k, v, first, end, d, a.log2_scale, parts);
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
APR_DEVICE void decode_all(const DecodeArgs &a) {
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
    Plan *plan = (Plan *)(shared + a.plans_at) + warp();
    if (lane() == 0) plan->layer = plan->product = plan->next = 0, m.pieces(0, plan->next, plan->end);
    sync_warp();
    Feed feed = {plan, 0, 0};
    u8 *slots = shared + a.ring_at + warp() * SLOTS * a.pitch;
    NO_UNROLL for (u32 n = 0; n < SLOTS; n++) feed.fill(m, slots + n * a.pitch);
    u32 turn = 0;
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
            Pack<float, 8> w = {}; // of the norm, on their way during the wait
            if (product % 2 == 0 && thread() < a.hidden / 8) load_pack(w, layers[layer].norm[product / 2] + 8 * thread());
            grid_wait(a.arrived, round);
            if (product % 2 == 0) normalised(a, w, shared);
            else rounded(product == 1 ? a.att : a.product, m.cols(product), shared);
            sync_block();
            multiply(m, feed, slots, turn, product, shared, sums);
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
