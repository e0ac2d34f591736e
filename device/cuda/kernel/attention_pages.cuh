// Attention of one query a row over pages: see attention_pages.cu.
#pragma once
#include "attention_decode.cuh"

struct PagesArgs {
    const void *q, *k, *v;
    void *o;
    const i32 *table, *first, *keys; // see device.Paged
    const float *sinks;              // [heads]; 0: none
    float *part;                     // [splits, rows, heads, d+2]: sums of values, top, sum of a share of a row's keys
    Record *record;
    i64 q_stride, o_stride, k_stride, v_stride;
    u32 entries, pool;               // of the table; rows of k and v
    i32 rows, heads, kv_heads, d;
    i32 most, share, splits;         // keys of a row at most, of a share at least; shares of a row at most
    u32 code;                        // of the fault
    float log2_scale, cap_in, cap_out; // see AttentionArgs and LimitedArgs
};

// Part is a block's share of a row's keys: [first, end) of n, whose rows stand in the table from `rows` on. How many
// shares there are depends on n alone.
struct Part {
    const i32 *rows;
    i32 n, shares, first, end;
};

// part_of returns the share z.
APR_DEVICE Part part_of(const PagesArgs &a, i32 r, i32 z) {
    i32 n = a.keys[r];
    const i32 at = a.first[r];
    if (n < 0 || n > a.most || at < 0 || (i64)at + n > a.entries) {
        if (thread() == 0) first_fault(a.record, a.code, (i64)at + n, a.entries);
        n = 0;
    }
    i32 shares = (n + a.share - 1) / a.share;
    shares = shares < 1 ? 1 : shares < a.splits ? shares : a.splits;
    const i32 each = (n + shares - 1) / shares, first = z * each;
    return Part{a.table + at, n, shares, first, (i32)min_of(n, (i64)first + each)};
}

// look looks for rows that are not there: the blocks of head 0 do.
APR_DEVICE void look(const PagesArgs &a, const Part &p) {
    if (block() != 0) return;
    for (i32 j = p.first + (i32)thread(); j < p.end; j += threads())
        if ((u32)p.rows[j] >= a.pool) first_fault(a.record, a.code, p.rows[j], a.pool);
}

// RowsAt are rows of one matrix as a table lists them. One that is not there reads another's.
template <class T> struct RowsAt {
    const T *from;
    i64 stride;
    const i32 *rows;
    u32 last;
    APR_METHOD const T *operator()(int j) const {
        const u32 row = rows[j];
        return from + (i64)(row < last ? row : last) * stride;
    }
};

struct PagesCap {
    const PagesArgs &a;
    APR_METHOD float operator()(float s) const { return a.cap_in > 0 ? a.cap_out * tanh_of(s * a.cap_in, float()) : s; }
};

// joined joins shares of column c as join_shares does; top and sum follow their `width` columns.
APR_DEVICE Joined joined(const float *from, i64 step, int shares, int c, int width) {
    Joined r = {-INFINITY_F, 0, 0};
    for (int i = 0; i < shares; i++) r.top = max2(r.top, from[i * step + width]);
    for (int i = 0; i < shares; i++) {
        const float f = Softmax::weight(from[i * step + width], r.top);
        r.sum = fma_rn(f, from[i * step + width + 1], r.sum);
        r.acc = fma_rn(f, from[i * step + c], r.acc);
    }
    return r;
}

// settle writes column c of a head of row r, whose softmax the head's sink joins.
template <class T> APR_DEVICE void settle(const PagesArgs &a, i32 n, i32 r, i32 h, i32 c, Joined j) {
    if (a.sinks) {
        const float b = a.sinks[h] * LOG2E, top = max2(j.top, b), f = Softmax::weight(j.top, top);
        j.sum = fma_rn(j.sum, f, Softmax::weight(b, top));
        j.acc *= f;
    }
    store((T *)a.o + r * a.o_stride + (i64)h * a.d + c, n > 0 ? j.acc / j.sum : 0.0f);
}

// leave writes column c, or with several shares this one's sums.
template <class T> APR_DEVICE void leave(const PagesArgs &a, const Part &p, i32 r, i32 h, i32 z, i32 c, Joined j) {
    if (p.shares == 1) return settle<T>(a, p.n, r, h, c, j);
    float *to = a.part + (((i64)z * a.rows + r) * a.heads + h) * (a.d + 2);
    to[c] = j.acc;
    if (c == 0) to[a.d] = j.top, to[a.d + 1] = j.sum;
}

// Grid: (heads, rows, splits).
template <class T> APR_DEVICE void pages_packs(const PagesArgs &a) {
    SHARED(float, parts, WARPS * PART);
    const i32 h = block(), r = block_y(), z = block_z(), d = a.d, column = thread();
    const Part p = part_of(a, r, z);
    if (z >= p.shares) return;
    look(a, p);
    const i64 head = (i64)(h / (a.heads / a.kv_heads)) * d;
    const RowsAt<T> k = {(const T *)a.k + head, a.k_stride, p.rows, a.pool - 1}, v = {(const T *)a.v + head, a.v_stride, p.rows, a.pool - 1};
    const Lanes lanes(d);
    Ahead<4, T> ahead;
    ahead.load(lanes, k, v, p.first, p.end);
    const T *q = (const T *)a.q + r * a.q_stride + (i64)h * d;
    const Joined j = attend_keys(lanes, q, k, v, ahead, p.first, p.end, d, a.log2_scale, parts, PagesCap{a});
    if (column < d) leave<T>(a, p, r, h, z, column, j);
}

constexpr int QUERIES = 8, TILE = 16; // query heads of a block, keys of a tile

// Tiles<D> is what a warp has of a head: a tile's keys and values on their way, and the values' sums. Lane 4g+t has of a tile's
// key g, and g+8, packs t, t+4, … and of values 2t, 2t+1, 2t+8, 2t+9 packs g, g+8, …: the operands of products with queries in
// registers, since columns may come in any order that both operands share.
template <int D> struct Tiles {
    u32x4 keys[2][D / 32], values[4][D / 64];
    float acc[D / 16][4]; // of columns 8·pack+2j and 8·pack+2j+1 and queries 2t, 2t+1
    const bf16 *k, *v;    // the lane's first pack of the head
    i64 k_stride, v_stride;

    APR_METHOD void load_keys(u32 row) { // lane l has that of key l
        UNROLL for (int n = 0; n < 2; n++) {
            const bf16 *from = k + shfl(row, 8 * n + (int)(lane() >> 2)) * k_stride;
            UNROLL for (int i = 0; i < D / 32; i++) keys[n][i] = load16(from + 32 * i);
        }
    }
    APR_METHOD void load_values(u32 row) {
        UNROLL for (int n = 0; n < 4; n++) {
            const bf16 *from = v + shfl(row, n / 2 * 8 + (int)(lane() & 3) * 2 + n % 2) * v_stride;
            UNROLL for (int i = 0; i < D / 64; i++) values[n][i] = load16(from + 64 * i);
        }
    }
    // scores writes those of query g and keys 8n+2t and 8n+2t+1 to s[n]; the others of s are nobody's. Lane l's queries, as
    // keep_queries wrote them, are read anew for each tile: keys and values need the registers.
    APR_METHOD void scores(float (&s)[2][4], const u32x4 *q) const {
        int at = lane();
        opaque(at);
        UNROLL for (int n = 0; n < 2; n++)
            UNROLL for (int e = 0; e < 4; e++) s[n][e] = 0;
        UNROLL for (int i = 0; i < D / 16; i++) {
            const u32x4 y = q[32 * i + at];
            const u32 x[4] = {y[0], y[1], y[2], y[3]};
            UNROLL for (int n = 0; n < 2; n++) mma_bf16(s[n], x, keys[n][i / 2][i % 2 * 2], keys[n][i / 2][i % 2 * 2 + 1]);
        }
    }
    // add multiplies acc by f of query g, and adds the values by weights of keys 2t, 2t+1 and 2t+8, 2t+9 for query g.
    APR_METHOD void add(float f, u32 low, u32 high) {
        const float even = shfl(f, (int)(lane() & 3) * 8), odd = shfl(f, (int)(lane() & 3) * 8 + 4);
        UNROLL for (int i = 0; i < D / 64; i++)
            UNROLL for (int j = 0; j < 4; j++) {
                const u32 x[4] = {
                    byte_perm(values[0][i][j], values[1][i][j], 0x5410), byte_perm(values[0][i][j], values[1][i][j], 0x7632),
                    byte_perm(values[2][i][j], values[3][i][j], 0x5410), byte_perm(values[2][i][j], values[3][i][j], 0x7632),
                };
                float(&to)[4] = acc[4 * i + j];
                UNROLL for (int e = 0; e < 4; e++) to[e] *= e % 2 ? odd : even;
                mma_bf16(to, x, low, high);
            }
    }
};

// keep_queries writes operands of queries: of lane 4g+t words 2j and 2j+1 of pack 4i+t of query g, and none of query g+8, to
// to[32·(2i+j)+lane].
template <int D> APR_DEVICE void keep_queries(u32x4 *to, const bf16 *from, i32 queries) {
    for (i32 i = thread(); i < D; i += threads()) {
        const i32 l = i % 32, g = l / 4;
        const u32x4 v = g < queries ? load16(from + g * D + i / 32 * 32 + l % 4 * 8) : u32x4{};
        UNROLL for (int j = 0; j < 2; j++) to[32 * (i / 32 * 2 + j) + l] = u32x4{v[2 * j], 0, v[2 * j + 1], 0};
    }
}

// Grid: (kv heads · parts of QUERIES query heads, rows, splits). A block has the query heads of a part, so that a key is read once
// for all of them, and each of its warps every TEAM-th tile.
template <int D, int TEAM> APR_DEVICE void pages_tiles(const PagesArgs &a) {
    constexpr int LINE = D + 4; // sums of values, top, sum
    SHARED(float, sums, TEAM * QUERIES * LINE);
    SHARED(u32x4, q, 32 * D / 16);
    const i32 r = block_y(), z = block_z(), l = lane(), w = warp(), g = l / 4, t = l % 4;
    const Part p = part_of(a, r, z);
    if (z >= p.shares) return;
    const i32 group = a.heads / a.kv_heads, parts = (group + QUERIES - 1) / QUERIES, head = (i32)block() / parts;
    const i32 h = head * group + (i32)block() % parts * QUERIES, queries = (head + 1) * group - h;
    Tiles<D> x = {};
    x.k = (const bf16 *)a.k + head * D + 8 * t, x.v = (const bf16 *)a.v + head * D + 8 * g;
    x.k_stride = a.k_stride, x.v_stride = a.v_stride;
    const auto entry = [&](i32 j) { return (u32)p.rows[j < p.end ? j : p.end - 1]; }; // of a key; behind the last the last's
    const auto row = [&](u32 at) {
        if (at < a.pool) return at;
        if (block() == 0) first_fault(a.record, a.code, (i32)at, a.pool);
        return a.pool - 1;
    };
    i32 key = p.first + w * TILE + l % TILE; // the lane's, of the tile
    float top = -INFINITY_F, sum = 0;        // of query g; sum: of the keys of lanes t
    if (p.first + w * TILE < p.end) {
        const u32 first = row(entry(key));
        x.load_keys(first);
        x.load_values(first);
    }
    keep_queries<D>(q, (const bf16 *)a.q + r * a.q_stride + (i64)h * D, queries);
    sync_block();
    NO_UNROLL for (i32 left = p.end - p.first - w * TILE; left > 0; left -= TEAM * TILE) {
        key += TEAM * TILE;
        const u32 at = entry(key); // behind the last tile one key is read, and not used
        float s[2][4], higher = top;
        x.scores(s, q);
        const u32 next = row(at);
        x.load_keys(next);
        if (a.cap_in > 0)
            UNROLL for (int i = 0; i < 4; i++) s[i / 2][i % 2] = a.cap_out * tanh_of(s[i / 2][i % 2] * a.cap_in, float());
        UNROLL for (int n = 0; n < 2; n++)
            UNROLL for (int e = 0; e < 2; e++) {
                s[n][e] = 8 * n + 2 * t + e < left ? s[n][e] * a.log2_scale : -INFINITY_F;
                higher = max2(higher, s[n][e]);
            }
        higher = max2(higher, shfl_xor(higher, 1));
        higher = max2(higher, shfl_xor(higher, 2));
        const float f = Softmax::weight(top, higher);
        top = higher;
        sum *= f;
        UNROLL for (int n = 0; n < 2; n++)
            UNROLL for (int e = 0; e < 2; e++) sum += s[n][e] = Softmax::weight(s[n][e], higher);
        x.add(f, pack_bf16(s[0][0], s[0][1]), pack_bf16(s[1][0], s[1][1]));
        x.load_values(next);
    }
    sum += shfl_xor(sum, 1);
    sum += shfl_xor(sum, 2);
    float *mine = sums + w * QUERIES * LINE;
    if (t == 0) mine[g * LINE + D] = top, mine[g * LINE + D + 1] = sum;
    UNROLL for (int i = 0; i < D / 64; i++)
        UNROLL for (int e = 0; e < 2; e++) {
            float *to = mine + (2 * t + e) * LINE + 8 * (8 * i + g);
            const float(&v)[4] = x.acc[4 * i], (&y)[4] = x.acc[4 * i + 1], (&u)[4] = x.acc[4 * i + 2], (&o)[4] = x.acc[4 * i + 3];
            store16(to, __builtin_bit_cast(u32x4, f32x4{v[e], v[e + 2], y[e], y[e + 2]}));
            store16(to + 4, __builtin_bit_cast(u32x4, f32x4{u[e], u[e + 2], o[e], o[e + 2]}));
        }
    sync_block();
    for (i32 i = thread(); i < (queries < QUERIES ? queries : QUERIES) * D; i += threads())
        leave<bf16>(a, p, r, h + i / D, z, i % D, joined(sums + i / D * LINE, QUERIES * LINE, TEAM, i % D, D));
}

constexpr int WIDE = 512, TEAMS = 8; // columns of a head at most; warps of a block

// Grid: (heads, rows, splits).
template <class T> APR_DEVICE void pages_elements(const PagesArgs &a) {
    SHARED(float, sums, TEAMS * (WIDE + 2));
    const i32 h = block(), r = block_y(), z = block_z(), d = a.d, l = lane(), w = warp();
    const Part p = part_of(a, r, z);
    if (z >= p.shares) return;
    look(a, p);
    const i64 head = (i64)(h / (a.heads / a.kv_heads)) * d;
    const RowsAt<T> k = {(const T *)a.k + head, a.k_stride, p.rows, a.pool - 1}, v = {(const T *)a.v + head, a.v_stride, p.rows, a.pool - 1};
    const T *q = (const T *)a.q + r * a.q_stride + (i64)h * d;
    const PagesCap cap = {a};
    float query[WIDE / 32], acc[WIDE / 32] = {}, top = -INFINITY_F, sum = 0;
    UNROLL for (int i = 0; i < WIDE / 32; i++) query[i] = 32 * i + l < d ? load(q + 32 * i + l) : 0.0f;
    for (i32 j = p.first + w; j < p.end; j += TEAMS) {
        const T *key = k(j), *value = v(j);
        float s = 0;
        UNROLL for (int i = 0; i < WIDE / 32; i++) if (32 * i + l < d) s = fma_rn(query[i], load(key + 32 * i + l), s);
        s = cap(warp_sum(s)) * a.log2_scale;
        const float higher = max2(top, s), f = Softmax::weight(top, higher), x = Softmax::weight(s, higher);
        top = higher;
        sum = fma_rn(sum, f, x);
        UNROLL for (int i = 0; i < WIDE / 32; i++) if (32 * i + l < d) acc[i] = fma_rn(x, load(value + 32 * i + l), acc[i] * f);
    }
    float *mine = sums + w * (WIDE + 2);
    UNROLL for (int i = 0; i < WIDE / 32; i++) mine[32 * i + l] = acc[i];
    if (l == 0) mine[WIDE] = top, mine[WIDE + 1] = sum;
    sync_block();
    for (i32 c = thread(); c < d; c += threads()) leave<T>(a, p, r, h, z, c, joined(sums, WIDE + 2, TEAMS, c, WIDE));
}

// Grid: (heads, rows). The shares of a head, in ascending order, of rows that have several.
template <class T> APR_DEVICE void pages_join(const PagesArgs &a) {
    const i32 h = block(), r = block_y();
    const Part p = part_of(a, r, 0);
    if (p.shares == 1) return;
    const i64 step = (i64)a.rows * a.heads * (a.d + 2);
    const float *from = a.part + ((i64)r * a.heads + h) * (a.d + 2);
    for (i32 c = thread(); c < a.d; c += threads()) settle<T>(a, p.n, r, h, c, joined(from, step, p.shares, c, a.d));
}
