// All layers of a model for one position, as decode_layers.cuh, for layers of several kinds: norms after a branch or none before it,
// norms of rows of q and k and of v, GELU, soft-caps, biases of o, heads of 512 values, shared caches, per-layer embeddings.
//
// A branch leaves its result, not the sum with x. Every block keeps all of x in shared memory, reads the whole result, and computes
// the norm of the result, the sum and the norm before the next branch itself: no barrier is added to those of decode_layers.cuh.
#pragma once
#include "decode_layers.cuh"
#include "glu.cuh"

constexpr u32 ALL_MATRICES = 9, ALL_PRODUCTS = 6; // q, k, v; o; gate, up; down; gate of per-layer embeddings; their projection
constexpr u32 KINDS = 4, WIDE = 512;              // of layers; values of a head at most
constexpr u32 ROW_NORMS = 1, V_NORM = 2, SHARED_CACHE = 4, V_IS_K = 8, GELU = 16; // flags of a layer

// LayerMatrices is what a feed reads of a layer.
struct LayerMatrices {
    const u8 *w[ALL_MATRICES];
    u16 kind[ALL_MATRICES]; // as in DecodeLayer
    u16 of;                 // number of its LayerKind
    u16 none[2];
};

// LayerKind is the shape of layers.
struct LayerKind { u32 heads, kv_heads, d, inter, k_rows, v_rows, extra, none; }; // k_rows, v_rows: of k and v if they have matrices

// GeneralLayer is the rest of a layer.
struct GeneralLayer {
    const float *pre[2], *post[2]; // norms before and after attention and network; zero: none
    const float *bias, *o_bias;    // of q, k, v; of o; zero: none
    const float *q_norm, *k_norm;  // of heads, or of rows; zero: none
    const float *table;            // of the position, [half, 2]: cosine, sine
    bf16 *cache;                   // [capacity, 2·kv_heads·d]
    const bf16 *input;             // of per-layer embeddings, [extra]
    const float *extra_norm;
    u32 cache_stride, row, first, keys, half, splits, flags;
    float q_scale, log2_scale, cap_in, cap_out, residual, out_scale; // cap_in 0: no cap
    u32 none[3];
};
static_assert(sizeof(LayerMatrices) == 96 && sizeof(LayerKind) == 32 && sizeof(GeneralLayer) == 160, "as in decode_general_sm90.go");

struct GeneralArgs {
    const LayerMatrices *matrices; // [count]
    const GeneralLayer *layers;    // [count]
    const LayerKind *kinds;        // [kind_count]
    u32 *arrived;
    const bf16 *x; // [hidden]
    bf16 *y;       // [hidden]
    const float *norm;
    bf16 *between; // [2, qkv + att + 3·hidden + extra] and [4, inter]
    float *part;
    u32 count, kind_count, hidden;
    u32 qkv, att, extra, inter; // values of a layer at most
    u32 slots, pitch, spans, tiles;
    u32 ring_at, zeros_at, sums_at, row_at, bias_at, spans_at, tiles_at, layers_at;
    float eps;
    u32 none[2];
};

static_assert(sizeof(GeneralArgs) == 160, "as in decode_general_sm90.go");

// GeneralModel is Model for layers of several kinds; kind is that of the layer at hand.
struct GeneralModel {
    static constexpr u32 products = ALL_PRODUCTS;
    const GeneralArgs &a;
    const LayerMatrices *layers; // in shared memory, as is what follows
    const LayerKind *kinds;
    const Share *all;       // [KINDS, ALL_MATRICES]
    const u32 *totals;      // [KINDS, DECODE_WARPS]: spans of a warp
    const LayerKind *shape; // of kind
    const Share *shares;
    u32 kind;
    APR_METHOD void take(u32 n) { kind = n, shape = kinds + n, shares = all + n * ALL_MATRICES; }
    APR_METHOD static u32 begin(u32 product) { return product == 0 ? 0 : product == 1 ? 3 : product == 2 ? 4 : product + 3; }
    APR_METHOD static u32 end(u32 product) { return product == 0 ? 3 : product == 1 ? 4 : product == 2 ? 6 : product + 4; }
    APR_METHOD u32 cols(u32 product) const {
        return product == 1 ? shape->heads * shape->d : product == 3 ? shape->inter : product == 5 ? shape->extra : a.hidden;
    }
    APR_METHOD u32 groups(u32 product) const { return cols(product) / 32; }
    APR_METHOD u32 spans(u32 product) const { return (cols(product) + 255) / 256; }
    APR_METHOD u32 rows(u32 m) const {
        const u32 narrow = m == 0 ? shape->heads * shape->d : m == 1 ? shape->k_rows : m == 2 ? shape->v_rows : shape->extra;
        return m < 3 || m == 7 ? narrow : m == 4 || m == 5 ? shape->inter : a.hidden;
    }
    APR_METHOD u32 tiles(u32 product) const {
        u32 n = 0;
        NO_UNROLL for (u32 m = begin(product); m < end(product); m++) n += shares[m].tiles;
        return n;
    }
    APR_METHOD Share share(u32 m) const {
        const u32 q = rows(0) / TILE, k = rows(1) / TILE, v = rows(2) / TILE;
        const u32 before = m == 1 ? q : m == 2 ? q + k : 0, count = rows(m) / TILE, sum = m < 3 ? q + k + v : count;
        i64 first = (i64)sum * block() / blocks(), end = (i64)sum * (block() + 1) / blocks();
        first = min_of(before + count, first < before ? before : first), end = min_of(before + count, end < before ? before : end);
        return {(u32)first - before, (u32)(end - first)};
    }
    APR_METHOD u32 total(u32 layer) const { return totals[layers[layer].of * DECODE_WARPS + warp()]; }
};

// GeneralFeed is Feed for layers of several kinds.
struct GeneralFeed {
    const Span *spans; // of the warp, of the first kind
    u32 layer, next;   // of those after the lanes' spans
    u32 at;
    const u8 *from;
    u32 size;
    APR_METHOD void describe(const GeneralModel &m) {
        u32 number = next + lane(), of = layer;
        at = size = 0;
        NO_UNROLL while (of < m.a.count && number >= m.total(of)) number -= m.total(of), of++;
        if (of < m.a.count) {
            const LayerMatrices &l = m.layers[of];
            const Span s = spans[l.of * DECODE_WARPS * m.a.spans + number];
            const u32 bytes = 2 * (l.kind[s.matrix] & 4095);
            const u64 before = (u64)s.at * bytes;
            from = l.w[s.matrix] + before - lead(before), size = s.groups * bytes + lead(before);
        }
        next += 32;
        NO_UNROLL while (layer < m.a.count && next >= m.total(layer)) next -= m.total(layer), layer++;
    }
    APR_METHOD void fill(const GeneralModel &m, const Ring &ring) {
        if (lane() == at && size > 0) copy_bulk(ring.filled(), ring.slot(), from, size);
        if (++at == 32) describe(m);
    }
};

// GeneralExchange is Exchange; o, down and project are what branches add to x, before norms and factors.
struct GeneralExchange {
    bf16 *qkv, *att, *o, *down, *project, *extra, *product;
    APR_METHOD static u32 each(const GeneralArgs &a) { return a.qkv + a.att + 3 * a.hidden + a.extra; }
    APR_METHOD GeneralExchange(const GeneralArgs &a, u32 number) {
        int layer = (int)number;
        opaque(layer);
        qkv = a.between + (layer & 1) * each(a), att = qkv + a.qkv, o = att + a.att, down = o + a.hidden, project = down + a.hidden;
        extra = project + a.hidden, product = a.between + 2 * each(a) + (layer & (PRODUCTS_KEPT - 1)) * a.inter;
    }
};

// Branch is a result that has not been added to x: x = (x + factor·norm(z, post))·scale, without the norm if post is zero.
struct Branch {
    const bf16 *z; // zero: there is none
    const float *post;
    float factor, scale;
};

APR_DEVICE float rstd_of(float sum, u32 n, float eps, float *squares) {
    sum = warp_sum(sum);
    if (lane() == 0) squares[warp()] = sum;
    sync_block();
    sum = 0;
    UNROLL for (u32 k = 0; k < DECODE_WARPS; k++) sum += squares[k];
    return 1.0f / sqrt_rn(fma_rn(sum, 1.0f / (float)n, eps));
}

// added_up adds a branch to the block's x, row, and gives `write` norm(x, pre), or x if pre is zero. squares has two places for each warp.
template <class Write>
APR_DEVICE void added_up(const GeneralArgs &a, const Branch &b, const NormPacks &post, const float *pre, const NormPacks &w, bf16 *row, float *squares, const Write &write) {
    const u32 packs = a.hidden / 8;
    Pack<bf16, 8> v[MOST_HIDDEN] = {}, old = {};
    float p[8], q[8], sum = 0, rstd = 1;
    if (b.z) {
        UNROLL for (u32 k = 0; k < MOST_HIDDEN; k++)
            if (thread() + k * threads() < packs) v[k].v = strong_load16(b.z + 8 * (thread() + k * threads()));
        UNROLL for (u32 k = 0; k < MOST_HIDDEN; k++) {
            v[k].v = settled(v[k].v, b.z, 32 * warp() + k * threads(), packs);
            widen(p, v[k]);
            UNROLL for (int e = 0; e < 8; e++) sum = fma_rn(p[e], p[e], sum);
        }
        if (b.post) rstd = rstd_of(sum, a.hidden, a.eps, squares);
    }
    sum = 0;
    UNROLL for (u32 k = 0; k < MOST_HIDDEN; k++) {
        const u32 pack = thread() + k * threads();
        if (pack >= packs) continue;
        load_pack(old, row + 8 * pack);
        if (b.z) {
            widen(p, v[k]);
            if (b.post) {
                widen(q, post.w[k]);
                UNROLL for (int e = 0; e < 8; e++) p[e] = p[e] * rstd * q[e];
            }
            widen(q, old);
            UNROLL for (int e = 0; e < 8; e++) p[e] = fma_rn(p[e], b.factor, q[e]) * b.scale;
            narrow(old, p);
            store_pack(row + 8 * pack, old);
        }
        v[k] = old;
        widen(p, old);
        UNROLL for (int e = 0; e < 8; e++) sum = fma_rn(p[e], p[e], sum);
    }
    if (pre) rstd = rstd_of(sum, a.hidden, a.eps, squares + DECODE_WARPS);
    UNROLL for (u32 k = 0; k < MOST_HIDDEN; k++) {
        const u32 pack = thread() + k * threads();
        if (pack - lane() >= packs) continue; // of the whole warp
        if (pre) {
            widen(p, v[k]);
            widen(q, w.w[k]);
            UNROLL for (int e = 0; e < 8; e++) p[e] = p[e] * rstd * q[e];
            narrow(v[k], p);
        }
        write(v[k].v, pack, pack < packs);
    }
}

// finish_few writes f(sum, i) of the block's rows of a matrix, sixteen lanes a row, as many as may have a part of it.
template <class F> APR_DEVICE void finish_few(const Share &s, const Sums &sums, bf16 *to, const F &f) {
    NO_UNROLL for (u32 first = 0; first < s.tiles * TILE; first += threads() / 16) {
        const u32 i = first + thread() / 16, part = thread() % 16;
        const bool there = i < s.tiles * TILE;
        float v = there ? sums.part(i / TILE, i % TILE, part) : 0.0f;
        UNROLL for (u32 d = 8; d; d /= 2) v += shfl_xor(v, d);
        if (there && part == 0) strong_store(to + s.first * TILE + i, to_bf16(f(v, i)));
    }
}

APR_DEVICE void finish_glu(const GeneralModel &m, const Sums &sums, bool gelu, bf16 *to) {
    const Share gate = m.shares[4];
    NO_UNROLL for (u32 i = thread(); i < gate.tiles * TILE; i += threads()) {
        const float g = from_bf16(to_bf16(sums.row(i / TILE, i % TILE))), u = from_bf16(to_bf16(sums.row(gate.tiles + i / TILE, i % TILE)));
        strong_store(to + gate.first * TILE + i, to_bf16(gelu ? GELUTanh::gated<bf16>(g, u) : gated<bf16>(g, u)));
    }
}

APR_DEVICE void finish_heads(const GeneralModel &m, const Sums &sums, const float *bias, bf16 *to) {
    u32 column = 0, before = 0;
    NO_UNROLL for (u32 n = 0; n < 3; n++) {
        const Share s = m.shares[n];
        NO_UNROLL for (u32 i = thread(); i < s.tiles * TILE; i += threads())
            strong_store(to + column + s.first * TILE + i, to_bf16(sums.row(before + i / TILE, i % TILE) + bias[before * TILE + i]));
        before += s.tiles, column += m.rows(n);
    }
}

// general_bias returns that of row i of those that the block has of a product, or 0.
APR_DEVICE float general_bias(const GeneralModel &m, u32 product, const float *bias, u32 i) {
    u32 column = 0;
    NO_UNROLL for (u32 n = GeneralModel::begin(product); n < GeneralModel::end(product); n++) {
        const Share s = m.shares[n];
        if (i < s.tiles * TILE) return bias ? bias[column + s.first * TILE + i] : 0.0f;
        i -= s.tiles * TILE, column += m.rows(n);
    }
    return 0;
}

// forget_general is forget: what the block left in a layer up to o, and in the one before, of the model `last`, from gate·up on.
APR_DEVICE void unset_rows(bf16 *to, const Share &s) {
    NO_UNROLL for (u32 i = lane(); i < s.tiles * TILE; i += 32) strong_store(to + s.first * TILE + i, UNSET);
}
APR_DEVICE void forget_general(const GeneralModel &m, u32 layer) {
    const GeneralExchange e(m.a, layer), before(m.a, layer - 1);
    u32 column = 0;
    NO_UNROLL for (u32 n = 0; n < 3; n++) unset_rows(e.qkv + column, m.shares[n]), column += m.rows(n);
    const u32 d = m.shape->d;
    NO_UNROLL for (u32 h = block(); h < m.shape->heads; h += blocks())
        NO_UNROLL for (u32 i = lane(); i < d; i += 32) strong_store(e.att + h * d + i, UNSET);
    unset_rows(e.o, m.shares[3]);
    if (layer == 0) return;
    const Share *last = m.all + m.layers[layer - 1].of * ALL_MATRICES;
    unset_rows(before.product, last[4]), unset_rows(before.down, last[6]), unset_rows(before.extra, last[7]);
    if (m.kinds[m.layers[layer - 1].of].extra > 0) unset_rows(before.project, last[8]);
}

// SoftCap is what a soft-cap makes of a score before its factor.
struct SoftCap {
    float in, out;
    APR_METHOD float operator()(float s) const { return in > 0 ? out * tanh_of(s * in, bf16()) : s; }
};

// finish_head makes q, k or v of a head, each by a warp, from what the products left at `from`, d values: normalised with weights, if there
// are any or plain is set, with 1/σ `rstd` if that is not negative; turned and scaled. It writes them to row.
APR_DEVICE void finish_head(const u32x4 (&found)[2], const bf16 *from, const float *weights, bool plain, float rstd, u32 d, float eps,
    const float *table, u32 half, float scale, bf16 *row) {
    const u32 packs = d / 8;
    Pack<bf16, 8> v[2];
    Pack<float, 8> w[2] = {};
    float p[8], q[8], sum = 0;
    UNROLL for (u32 k = 0; k < 2; k++)
        if (weights && lane() + 32 * k < packs) load_pack(w[k], weights + 8 * (lane() + 32 * k));
    UNROLL for (u32 k = 0; k < 2; k++) {
        v[k].v = settled(found[k], from, 32 * k, packs);
        widen(p, v[k]);
        UNROLL for (int e = 0; e < 8; e++) sum = fma_rn(p[e], p[e], sum);
    }
    sum = warp_sum(sum);
    if (rstd < 0) rstd = 1.0f / sqrt_rn(fma_rn(sum, 1.0f / (float)d, eps));
    UNROLL for (u32 k = 0; k < 2; k++) {
        if (lane() + 32 * k >= packs) continue;
        widen(p, v[k]);
        widen(q, w[k]);
        if (weights || plain) UNROLL for (int e = 0; e < 8; e++) p[e] = p[e] * rstd * (plain ? 1.0f : q[e]);
        narrow(v[k], p);
        store_pack(row + 8 * (lane() + 32 * k), v[k]);
    }
    sync_warp();
    NO_UNROLL for (u32 i = lane(); i < half; i += 32) {
        const float x = from_bf16(row[i]), y = from_bf16(row[half + i]), c = table[2 * i], s = table[2 * i + 1];
        row[i] = to_bf16((x * c - y * s) * scale), row[half + i] = to_bf16((y * c + x * s) * scale);
    }
    if (scale == 1) return;
    NO_UNROLL for (u32 i = 2 * half + lane(); i < d; i += 32) row[i] = to_bf16(from_bf16(row[i]) * scale);
}

// attend_wide is attend_keys for heads of WIDE values: a warp has a key, a lane one pack of each half. ahead has WIDE_AHEAD keys: of each
// first the packs of first halves. parts has room for two PARTs of each warp; threads return the sums of the column of their number.
constexpr int WIDE_AHEAD = KEYS_AHEAD / 2;
template <class Rows> APR_DEVICE void load_wide(Ahead<KEYS_AHEAD, bf16> &ahead, const Lanes &lanes, const Rows &keys, const Rows &values, int base, int end) {
    UNROLL for (int i = 0; i < WIDE_AHEAD; i++) {
        const int key = base + i * lanes.all + lanes.slot;
        UNROLL for (int w = 0; w < 2; w++) {
            const int n = WIDE_AHEAD * w + i, column = WIDE / 2 * w + 8 * lanes.c;
            ahead.k[n] = ahead.v[n] = Pack<bf16, 8>{};
            if (key < end) load_pack(ahead.k[n], keys(key) + column), load_pack(ahead.v[n], values(key) + column);
        }
    }
}
APR_DEVICE Joined attend_wide(const Lanes &lanes, const bf16 *q, const LatestRow &k, const LatestRow &v, Ahead<KEYS_AHEAD, bf16> &ahead,
    int first, int end, float log2_scale, float *parts, const SoftCap &cap) {
    const int c = lanes.c;
    float x[8], query[2][8];
    Softmax s[2] = {{-INFINITY_F, 0, {}}, {-INFINITY_F, 0, {}}};
    UNROLL for (int w = 0; w < 2; w++) {
        Pack<bf16, 8> p;
        load_pack(p, q + WIDE / 2 * w + 8 * c);
        widen(query[w], p);
    }
    for (int base = first; base < end; base += WIDE_AHEAD * lanes.all) {
        if (base > first) load_wide(ahead, lanes, k, v, base, end);
        float score[WIDE_AHEAD], higher = s[0].top;
        UNROLL for (int i = 0; i < WIDE_AHEAD; i++) {
            score[i] = 0;
            UNROLL for (int w = 0; w < 2; w++) {
                widen(x, ahead.k[WIDE_AHEAD * w + i]);
                UNROLL for (int e = 0; e < 8; e++) score[i] = fma_rn(query[w][e], x[e], score[i]);
            }
            score[i] = warp_sum(score[i]);
            score[i] = base + i * lanes.all + lanes.slot < end ? cap(score[i]) * log2_scale : -INFINITY_F;
            higher = max2(higher, score[i]);
        }
        UNROLL for (int w = 0; w < 2; w++) {
            s[w].scale(higher);
            UNROLL for (int i = 0; i < WIDE_AHEAD; i++) {
                const float f = Softmax::weight(score[i], higher);
                widen(x, ahead.v[WIDE_AHEAD * w + i]);
                s[w].sum += f;
                UNROLL for (int e = 0; e < 8; e++) s[w].acc[e] = fma_rn(f, x[e], s[w].acc[e]);
            }
        }
    }
    UNROLL for (int w = 0; w < 2; w++) {
        float *mine = parts + (2 * warp() + w) * PART;
        UNROLL for (int e = 0; e < 8; e++) mine[8 * c + e] = s[w].acc[e];
        if (lane() == 0) mine[256] = s[w].top, mine[257] = s[w].sum;
    }
    sync_block();
    return join_shares(parts + thread() / 256 * PART, 2 * PART, WARPS, thread() % 256);
}

// row_rstd returns to warps 0 and 1 the 1/σ of the whole rows of q and of k; −1 to the others.
APR_DEVICE float row_rstd(const GeneralModel &m, const bf16 *qkv, float *squares) {
    const u32 rows[2] = {m.rows(0), m.rows(1)};
    UNROLL for (u32 r = 0; r < 2; r++) {
        const bf16 *from = qkv + (r ? rows[0] : 0);
        float p[8], sum = 0;
        NO_UNROLL for (u32 first = 32 * warp(); first < rows[r] / 8; first += threads()) {
            Pack<bf16, 8> v = {};
            if (first + lane() < rows[r] / 8) v.v = strong_load16(from + 8 * (u64)(first + lane()));
            v.v = settled(v.v, from, first, rows[r] / 8);
            widen(p, v);
            UNROLL for (int e = 0; e < 8; e++) sum = fma_rn(p[e], p[e], sum);
        }
        sum = warp_sum(sum);
        if (lane() == 0) squares[r * DECODE_WARPS + warp()] = sum;
    }
    sync_block();
    if (warp() > 1) return -1;
    float sum = 0;
    UNROLL for (u32 n = 0; n < DECODE_WARPS; n++) sum += squares[warp() * DECODE_WARPS + n];
    return 1.0f / sqrt_rn(fma_rn(sum, 1.0f / (float)(warp() ? rows[1] : rows[0]), m.a.eps));
}

// expect asks for keys and values of a layer to come to the cache of the device: a line a thread of the launch, the latest first.
APR_DEVICE void expect(const GeneralLayer &l, const LayerKind &s) {
    const u32 lines = s.kv_heads * s.d / 32, i = block() * threads() + thread(), before = l.keys - 1;
    if (i < lines * before) prefetch(l.cache + (i64)(l.first + before - 1 - i / lines) * l.cache_stride + i % lines * 64);
}

// attend_general is attend: fresh has three rows of WIDE; a Shared layer finds the position's key and value in the cache, which an earlier
// layer has written, before a barrier of the launch.
APR_DEVICE void attend_general(const GeneralModel &m, const GeneralLayer &l, u32 number, u32 item, bf16 *fresh, float *parts, float *squares) {
    const LayerKind &s = *m.shape;
    const u32 h = item % s.heads, split = item / s.heads, d = s.d, group = s.heads / s.kv_heads, g = h / group, which = warp();
    const bool own = !(l.flags & SHARED_CACHE), wide = d > 256, rows = l.flags & ROW_NORMS;
    const int seen = (int)l.keys, position = own ? (int)(l.row - l.first) : -1;
    const int share = (seen - 1 + (int)l.splits) / (int)l.splits, first = split * share, end = (int)min_of(seen, first + share);
    const bf16 *qkv = GeneralExchange(m.a, number).qkv, *from = qkv + h * d;
    if (which > 0) from = qkv + s.heads * d + g * d + (which == 2 && !(l.flags & V_IS_K) ? s.kv_heads * d : 0);
    const bool mine = which < (own ? 3u : 1u);
    u32x4 found[2] = {};
    UNROLL for (u32 k = 0; k < 2; k++)
        if (mine && lane() + 32 * k < d / 8) found[k] = strong_load16(from + 8 * (lane() + 32 * k));
    const i64 stride = l.cache_stride;
    const bf16 *keys = l.cache + (i64)l.first * stride + g * d, *values = keys + s.kv_heads * d;
    const Lanes lanes(wide ? (int)d / 2 : (int)d);
    const RowsFrom<bf16> all_keys = {keys, stride}, all_values = {values, stride};
    Ahead<KEYS_AHEAD, bf16> ahead; // on their way while q, k and v come
    if (wide) load_wide(ahead, lanes, all_keys, all_values, first, end);
    else ahead.load(lanes, all_keys, all_values, first, end);
    const float rstd = rows ? row_rstd(m, qkv, squares) : -1;
    if (mine) {
        const float *weights = which == 0 ? l.q_norm : which == 1 ? l.k_norm : nullptr;
        if (rows && weights) weights += which == 0 ? h * d : g * d;
        finish_head(found, from, weights, which == 2 && (l.flags & V_NORM), rstd, d, m.a.eps, l.table, which < 2 ? l.half : 0, which == 0 ? l.q_scale : 1.0f, fresh + WIDE * which);
    }
    sync_block();
    if (own && h % group == 0 && split == 0 && thread() < d) {
        bf16 *row = l.cache + (i64)l.row * stride + g * d + thread();
        row[0] = fresh[WIDE + thread()], row[s.kv_heads * d] = fresh[2 * WIDE + thread()];
    }
    UNROLL for (int n = 0; n < KEYS_AHEAD; n++) { // what was read of the position's row before it was written
        const int key = wide ? n % WIDE_AHEAD : n, column = 8 * lanes.c + (wide ? n / WIDE_AHEAD * (WIDE / 2) : 0);
        if (first + key * lanes.all + lanes.slot == position && lanes.c < lanes.packs)
            load_pack(ahead.k[n], fresh + WIDE + column), load_pack(ahead.v[n], fresh + 2 * WIDE + column);
    }
    const SoftCap cap = {l.cap_in, l.cap_out};
    const LatestRow k = {keys, fresh + WIDE, stride, position}, v = {values, fresh + 2 * WIDE, stride, position};
    Joined r;
    if (wide) r = attend_wide(lanes, fresh, k, v, ahead, first, end, l.log2_scale, parts, cap);
    else r = attend_keys(lanes, fresh, k, v, ahead, first, end, (int)d, l.log2_scale, parts, cap);
    if (thread() >= d) return;
    if (l.splits == 1) {
        strong_store(GeneralExchange(m.a, number).att + h * d + thread(), to_bf16(r.acc / r.sum));
        return;
    }
    float *to = m.a.part + ((i64)item * (wide ? 2 : 1) + thread() / 256) * PART;
    to[thread() % 256] = r.acc;
    if (thread() % 256 == 0) to[256] = r.top, to[257] = r.sum;
}

// decode_layers_of_kinds is decode_all. Grid: one block a multiprocessor, all at once.
template <bool ALL> APR_DEVICE void decode_layers_of_kinds(const GeneralArgs &a) {
    DYNAMIC_SHARED(shared);
    SHARED(LayerKind, kinds, KINDS);
    SHARED(Share, shares, KINDS * ALL_MATRICES);
    SHARED(GeneralLayer, records, 2); // of the layer at hand and the one before, then the next
    SHARED(bf16, fresh, 3 * WIDE);
    SHARED(u32, counts, KINDS * DECODE_WARPS * ALL_PRODUCTS);
    SHARED(u32, totals, KINDS * DECODE_WARPS);
    SHARED(u64, filled, DECODE_WARPS * SLOTS);
    SHARED(u32, meetings, 1);
    SHARED(float, squares, 2 * DECODE_WARPS);
    LayerMatrices *layers = (LayerMatrices *)(shared + a.layers_at);
    bf16 *row = (bf16 *)(shared + a.row_at); // x
    auto copy = [&](void *to, const void *from, u32 bytes) {
        for (u32 i = thread(); i < bytes / 16; i += threads()) store16((u8 *)to + 16 * i, load16((const u8 *)from + 16 * i));
    };
    copy(layers, a.matrices, a.count * sizeof(LayerMatrices)), copy(kinds, a.kinds, a.kind_count * sizeof(LayerKind));
    copy(records, a.layers, sizeof(GeneralLayer)), copy(row, a.x, 2 * a.hidden);
    for (u32 i = thread(); i < ZEROS / 16; i += threads()) store16(shared + a.zeros_at + 16 * i, u32x4{});
    const u32 between = (2 * GeneralExchange::each(a) + PRODUCTS_KEPT * a.inter) / 8;
    for (u32 i = block() * threads() + thread(); i < between; i += blocks() * threads()) store16(a.between + 8 * (u64)i, u32x4{~0u, ~0u, ~0u, ~0u});
    if (thread() == 0) meetings[0] = 0;
    sync_block();
    GeneralModel m = {a, layers, kinds, shares, totals, kinds, shares, 0};
    if (thread() < a.kind_count * ALL_MATRICES) m.take(thread() / ALL_MATRICES), shares[thread()] = m.share(thread() % ALL_MATRICES);
    sync_block();
    Span *all_spans = (Span *)(shared + a.spans_at);
    TileSums *all_tiles = (TileSums *)(shared + a.tiles_at);
    NO_UNROLL for (u32 n = 0; n < a.kind_count; n++) {
        m.take(n);
        u32 *of = counts + n * DECODE_WARPS * ALL_PRODUCTS, total = 0;
        const Work work = {all_spans + n * DECODE_WARPS * a.spans, all_tiles + n * ALL_PRODUCTS * a.tiles, of};
        work.describe(m);
        sync_warp();
        for (u32 product = 0; product < ALL_PRODUCTS; product++) total += of[warp() * ALL_PRODUCTS + product];
        if (lane() == 0) totals[n * DECODE_WARPS + warp()] = total;
    }
    sync_block();
    float *sums = (float *)(shared + a.sums_at), *bias = (float *)(shared + a.bias_at);
    const bool last_warp = warp() == DECODE_WARPS - 1;
    auto arrive = [&] {
        if (!last_warp) return;
        grid_arrive(a.arrived);
        if (lane() == 31) meetings[0]++;
    };
    arrive();
    if (lane() < a.slots) bulk_init(filled + warp() * SLOTS + lane(), 1);
    sync_warp();
    Product<GeneralModel, GeneralFeed> x = {m, shared, shared + a.zeros_at, {shared + a.ring_at + warp() * a.slots * a.pitch, filled + warp() * SLOTS, 0, 0, 0}, {all_spans + warp() * a.spans, 0, 0, 0, nullptr, 0}};
    x.feed.describe(m);
    NO_UNROLL for (u32 n = 0; n < a.slots; n++) x.feed.fill(m, x.ring), x.ring.advance(a);
    x.ring.parity = 0;
    grid_wait(a.arrived, meetings[0]);
    auto left = [&](u32 layer) -> Branch { // by a layer, at its end
        const GeneralLayer &l = records[layer & 1];
        const GeneralExchange e(a, layer);
        if (kinds[layers[layer].of].extra > 0) return {e.project, l.extra_norm, 1, l.out_scale};
        return {e.down, l.post[1], l.residual, l.out_scale};
    };
    auto integers = [&](u32x4 v, u32 pack, bool live) { round_pack<BySpan>(shared, pack, v, live); };
    NO_UNROLL for (u32 layer = 0; layer < a.count; layer++) {
        const GeneralLayer &l = records[layer & 1];
        m.take(layers[layer].of);
        const Span *spans = x.feed.spans + m.kind * DECODE_WARPS * a.spans;
        const u32 *count = counts + (m.kind * DECODE_WARPS + warp()) * ALL_PRODUCTS, products = m.shape->extra > 0 ? ALL_PRODUCTS : PRODUCTS;
        NO_UNROLL for (u32 product = 0; product < products; product++) {
            NormPacks post, pre;
            const GeneralExchange e(a, layer);
            const u32 rows = product < 2 ? m.tiles(product) * TILE : 0;
            const float of_row = thread() < rows ? general_bias(m, product, product ? l.o_bias : l.bias, thread()) : 0.0f;
            if (product == 0) expect(l, *m.shape);
            if (product % 2 == 0) {
                const float *norm = product < 4 ? l.pre[product / 2] : nullptr;
                Branch b = {product == 2 ? e.o : e.down, l.post[product / 4], l.residual, 1};
                if (product == 0) b = layer > 0 ? left(layer - 1) : Branch{nullptr, nullptr, 1, 1};
                if (b.post) post.load(a, b.post);
                if (norm) pre.load(a, norm);
                added_up(a, b, post, norm, pre, row, squares, integers);
            } else {
                rounded(product == 1 ? e.att : product == 3 ? e.product : e.extra, m.cols(product), shared);
            }
            if (product == 1 && layer + 1 < a.count) copy(records + ((layer + 1) & 1), a.layers + layer + 1, sizeof(GeneralLayer));
            sync_block();
            if (thread() < rows) bias[thread()] = of_row; // that of the product before has been read by now
            if (product == 2) arrive();
            if (product == 3 && last_warp) {
                if (lane() == 31) grid_see(a.arrived, meetings[0]);
                sync_warp();
                forget_general(m, layer);
            }
            x.template multiply<ALL>(layers[layer], product, spans, count[product], sums);
            spans += count[product];
            sync_block();
            const Sums found = {sums, all_tiles + (m.kind * ALL_PRODUCTS + product) * a.tiles};
            const Share mine = m.shares[GeneralModel::begin(product)];
            if (product == 0) finish_heads(m, found, bias, e.qkv);
            else if (product == 2) finish_glu(m, found, l.flags & GELU, e.product);
            else if (product == 4) finish_few(mine, found, e.extra, [&](float v, u32 i) { return GELUTanh::gated<bf16>(from_bf16(to_bf16(v)), from_bf16(l.input[mine.first * TILE + i])); });
            else finish_few(mine, found, product == 1 ? e.o : product == 3 ? e.down : e.project, [&](float v, u32 i) { return product == 1 ? v + bias[i] : v; });
            if (product > 0) continue;
            const u32 heads = m.shape->heads, d = m.shape->d, halves = d > 256 ? 2 : 1;
            NO_UNROLL for (u32 item = block(); item < heads * l.splits; item += blocks()) {
                attend_general(m, l, layer, item, fresh, (float *)shared, squares);
                sync_block();
            }
            if (l.splits == 1) continue;
            arrive();
            grid_wait(a.arrived, meetings[0]);
            NO_UNROLL for (u32 h = block(); h < heads; h += blocks()) {
                if (thread() >= d) continue;
                const Joined r = join_shares(a.part + ((i64)h * halves + thread() / 256) * PART, (i64)heads * halves * PART, l.splits, thread() % 256);
                strong_store(e.att + h * d + thread(), to_bf16(r.acc / r.sum));
            }
        }
    }
    if (block() > 0) return;
    NormPacks post, w;
    const Branch b = left(a.count - 1);
    if (b.post) post.load(a, b.post);
    w.load(a, a.norm);
    added_up(a, b, post, a.norm, w, row, squares, [&](u32x4 v, u32 pack, bool live) {
        if (live) store16(a.y + 8 * pack, v);
    });
}
