// All layers of a model for one position, as one launch: the bytes of weights, which are what takes the time, keep coming
// while blocks wait for each other.
//
// A block has as many rows of every matrix as any other. It takes them in tiles of up to 16 rows and two chunks of 2048
// columns, in which a warp has the same chunk of two rows, so that what it needs of x stays in registers. Tiles of two
// columns follow those of the two before, for all of the block's rows. A warp of its own has them come to shared memory by
// bulk copies, as far ahead as there is room, also those of products whose x is still being computed: weights do not change.
#pragma once
#include "attention_decode.cuh"
#include "gemv_blocks.cuh"

constexpr u32 MATRICES = 7, PRODUCTS = 4;        // of a layer: q, k, v; o; gate, up; down
constexpr u32 WORKERS = 16, DECODE_WARPS = WORKERS + 1; // warps of a block that multiply, and all
constexpr u32 MOST_HIDDEN = 2;                           // packs of the hidden state that a thread has at most
constexpr u32 TILES = 8;                                 // that are in shared memory at most, a power of two

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
    u32 ring, ring_at, sums_at, own_at, steps_at, layers_at; // bytes, of shared memory; x is at 0, the ring has tiles
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
    // abreast is how many chunks of a row a tile has, tall how many rows at most.
    APR_METHOD u32 abreast(u32 product) const { return chunks(product) > 1 ? 2 : 1; }
    APR_METHOD u32 tall(u32 product) const { return 2 * WORKERS / abreast(product); }
    APR_METHOD u32 of_all(u32 matrix) const {
        return matrix == 0 ? a.heads * a.d : matrix < 3 ? a.kv_heads * a.d : matrix == 4 || matrix == 5 ? a.inter : a.hidden;
    }
};

// Tile is rows [first, first + rows) of those that a block has of a product, and chunks of them from `chunk` on. Row r of it
// begins at `at` + shift_of(r).
struct Tile {
    u32 at, pitch; // in the ring; bytes between rows, or 0: they are as in memory
    u32 low, row;  // address modulo 16 of the first row; bytes of a whole row
    u16 type, chunk, first, rows;
    APR_METHOD u32 shift_of(u32 r) const { return pitch ? r * pitch + ((low + r * row) & 15) : low + r * row; }
};

// Step is a tile as all layers have it: rows [row, row + rows) of the block's of a matrix.
struct Step { u16 product, matrix, chunk, row, rows, first, spare[2]; };

// list writes the steps of a layer, and where those of each product begin. A lane has a matrix.
APR_DEVICE void list(const Model &m, Step *steps, u32 *starts) {
    if (thread() >= MATRICES) return;
    const u32 matrix = thread();
    u32 at = 0, product = 0;
    NO_UNROLL for (;; product++) { // what comes before the product, and before the matrix in it
        u32 cut = 0, before = 0, first = 0, mine = 0;
        NO_UNROLL for (u32 n = Model::begin(product); n < Model::end(product); n++) {
            const u32 rows = m.shares[n].rows, tall = m.tall(product), here = (rows + tall - 1) / tall;
            if (n < matrix) before += here, first += rows;
            if (n == matrix) mine = here;
            cut += here;
        }
        const u32 abreast = m.abreast(product), passes = (m.chunks(product) + abreast - 1) / abreast;
        if (matrix == Model::begin(product)) starts[product] = at;
        if (matrix < Model::end(product)) {
            if (matrix == MATRICES - 1) starts[PRODUCTS] = at + cut * passes;
            const u32 all = m.shares[matrix].rows, each = mine ? (all + mine - 1) / mine : 0;
            NO_UNROLL for (u32 p = 0; p < passes; p++)
                NO_UNROLL for (u32 n = 0; n < mine; n++)
                    steps[at + p * cut + before + n] = {(u16)product, (u16)matrix, (u16)(p * abreast), (u16)(n * each), (u16)min_of(each, all - n * each), (u16)(first + n * each)};
            return;
        }
        at += cut * passes;
    }
}

// Feed has the tiles of all products come to the ring, one after the other. It is that of a warp. Between two calls it is
// kept in shared memory, since registers are all warps'.
struct Feed {
    u32 layer, step;        // of the next tile
    u32 number, done, head; // tiles that were begun, that were used; where the last one ends
    // room returns where n bytes have room behind the last tile, or ~0.
    APR_METHOD u32 room(const Tile *tiles, u32 ring, u32 n) const {
        if (number == done) return 0;
        const u32 tail = tiles[done % TILES].at;
        if (head > tail) return head + n <= ring ? head : n <= tail ? 0 : ~0u;
        return head + n <= tail ? head : ~0u;
    }
    // fill begins the copies of all tiles for which there is room.
    APR_METHOD void fill(const Model &m, const Step *steps, u32 count, Tile *tiles, u64 *filled, u8 *ring) {
        const u32 l = lane();
        NO_UNROLL while (layer < m.a.count && count > 0 && number - done < TILES) {
            const Step s = steps[step];
            const u32 type = m.layers[layer].type[s.matrix], bytes = type_bytes(type), begin = s.chunk * 8 * bytes;
            const u32 whole = m.cols(s.product) / 32 * bytes / 8, width = (u32)min_of(m.abreast(s.product) * 8 * bytes, whole - begin);
            const bool apart = width < whole; // rows come one by one
            const u32 pitch = apart ? (width + 15 & ~15u) + 16 : 0, n = apart ? s.rows * pitch : (s.rows * whole + 15 & ~15u) + 16;
            const u32 at = room(tiles, m.a.ring, n), slot = number % TILES;
            if (at == ~0u) return;
            const u8 *from = m.layers[layer].w[s.matrix] + (u64)(m.shares[s.matrix].first + s.row) * whole + begin;
            const u32 low = (u32)(u64)from & 15;
            if (l == 0) tiles[slot] = {at, pitch, low, whole, (u16)type, s.chunk, s.first, s.rows};
            const u32 copies = apart ? s.rows : 1;
            u32 shift = low, size = (low + s.rows * whole + 15) & ~15u, total = size;
            if (apart) {
                from += (u64)l * whole, shift = (u32)(u64)from & 15, size = (shift + width + 15) & ~15u;
                total = l < copies ? size : 0;
                UNROLL for (u32 d = 16; d; d /= 2) total += shfl_xor(total, d);
            }
            if (l == 0) bulk_expect(&filled[slot], total);
            sync_warp();
            if (l < copies) copy_bulk(&filled[slot], ring + at + l * pitch, from - shift, size);
            head = at + n, number++;
            if (++step == count) step = 0, layer++;
        }
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
template <u32 N> APR_DEVICE void dots(u32 type, float (&sum)[N], const u8 *const (&spans)[N], const InRegisters &x, u32 l, u32 groups) {
    if (type == 0) dots_of<RowsQ4K, N>(sum, spans, x, l, groups);
    else if (type == 2) dots_of<RowsQ6K, N>(sum, spans, x, l, groups);
    else if (type == 1) dots_of<RowsQ5K, N>(sum, spans, x, l, groups);
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
    const u8 *x;
    float *sums;
    u32 l, groups, chunks, loaded; // groups and chunks of a row; chunk and kind of what is in values
    InRegisters values;
    // take multiplies chunk c of N rows of a tile, from r on, step apart.
    template <u32 N> APR_METHOD void take(const Tile &t, const u8 *ring, u32 c, u32 r, u32 step) {
        const u32 chunk = t.chunk + c, wanted = 2 * chunk + (t.type == 2), before = 8 * (8 * chunk + (l >> 2)), bytes = type_bytes(t.type);
        if (wanted != loaded) values.load(x + chunk * CHUNK_X, l, t.type == 2);
        loaded = wanted;
        float sum[N] = {};
        if (before < groups) {
            const u8 *spans[N];
            UNROLL for (u32 n = 0; n < N; n++) spans[n] = ring + t.at + t.shift_of(r + n * step) + (8 * c + (l >> 2)) * bytes;
            dots<N>(t.type, sum, spans, values, l, groups - before);
        }
        const float v = join<N>(sum, l);
        if (l % (32 / N) == 0) sums[(t.first + r + l / (32 / N) * step) * chunks + chunk] = v;
    }
};

// Tiles are what warps share of them.
struct Tiles {
    Tile *tiles;  // [TILES]
    u64 *filled;  // [TILES]
    Feed *feed;
    const Step *steps;
    const u32 *starts; // [PRODUCTS + 1]
    u8 *ring;
    APR_METHOD void fill(const Model &m, u32 done) const { // by one warp
        Feed f = *feed;
        f.done = done;
        f.fill(m, steps, starts[PRODUCTS], tiles, filled, ring);
        sync_warp();
        if (lane() == 0) *feed = f;
        sync_warp();
    }
};

// multiply writes the sums of the chunks of a product's rows to sums [rows, chunks]. x is the row in integers; used counts
// tiles.
APR_DEVICE void multiply(const Model &m, const Tiles &t, u32 &used, u32 product, const u8 *x, float *sums) {
    const u32 abreast = m.abreast(product), step = WORKERS / abreast, c = warp() % abreast, r = warp() / abreast;
    Work work = {x, sums, lane(), m.cols(product) / 32, m.chunks(product), ~0u, {}};
    NO_UNROLL for (u32 n = t.starts[product + 1] - t.starts[product]; n; n--, used++) {
        const u32 slot = used % TILES;
        if (warp() < WORKERS) {
            bulk_wait(&t.filled[slot], used / TILES & 1);
            const Tile tile = t.tiles[slot];
            if (tile.chunk + c < work.chunks) {
                if (r + step < tile.rows) work.take<2>(tile, t.ring, c, r, step);
                else if (r < tile.rows) work.take<1>(tile, t.ring, c, r, step);
            }
        }
        sync_block(); // all have read
        if (warp() == WORKERS) t.fill(m, used + 1);
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
APR_DEVICE void decode_all(const DecodeArgs &a) {
    DYNAMIC_SHARED(shared);
    SHARED(Share, shares, 8);
    SHARED(bf16, fresh, 3 * 256);
    SHARED(Tile, tiles, TILES);
    SHARED(u64, filled, TILES);
    SHARED(Feed, feed, 1);
    SHARED(u32, starts, PRODUCTS + 1);
    Step *steps = (Step *)(shared + a.steps_at);
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
    const Tiles t = {tiles, filled, feed, steps, starts, shared + a.ring_at};
    if (thread() < TILES) bulk_init(&filled[thread()]);
    if (thread() == 0) *feed = {};
    list(m, steps, starts);
    sync_block();
    if (warp() == WORKERS) t.fill(m, 0);
    sync_block();
    u32 used = 0, round = 0;
    const bool first_warp = warp() == 0;
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
            multiply(m, t, used, product, shared, sums);
            if (product == 0 && block() < a.heads * a.splits) expect(a, layers[layer], block());
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
