// attention_pages.cu: attention of one query a row, whose keys and values lie in pages: see attention_pages.go. Heads of whole
// packs up to 256 values are read by all lanes together; of others a warp has every eighth key, and a lane every 32nd column.
//apr:module target=sm_80 types=bf16,f32 roles=attention
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

// part_of returns the share z. The blocks of head 0 look for rows that are not there.
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
    Part p = {a.table + at, n, shares, first, (i32)min_of(n, (i64)first + each)};
    if (block() == 0)
        for (i32 j = p.first + (i32)thread(); j < p.end; j += threads())
            if ((u32)p.rows[j] >= a.pool) first_fault(a.record, a.code, p.rows[j], a.pool);
    return p;
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
    const i64 head = (i64)(h / (a.heads / a.kv_heads)) * d;
    const RowsAt<T> k = {(const T *)a.k + head, a.k_stride, p.rows, a.pool - 1}, v = {(const T *)a.v + head, a.v_stride, p.rows, a.pool - 1};
    const Lanes lanes(d);
    Ahead<4, T> ahead;
    ahead.load(lanes, k, v, p.first, p.end);
    const T *q = (const T *)a.q + r * a.q_stride + (i64)h * d;
    const Joined j = attend_keys(lanes, q, k, v, ahead, p.first, p.end, d, a.log2_scale, parts, PagesCap{a});
    if (column < d) leave<T>(a, p, r, h, z, column, j);
}

constexpr int WIDE = 512, TEAMS = 8; // columns of a head at most; warps of a block

// Grid: (heads, rows, splits).
template <class T> APR_DEVICE void pages_elements(const PagesArgs &a) {
    SHARED(float, sums, TEAMS * (WIDE + 2));
    const i32 h = block(), r = block_y(), z = block_z(), d = a.d, l = lane(), w = warp();
    const Part p = part_of(a, r, z);
    if (z >= p.shares) return;
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

KERNEL(attention_pages_packs_f32, PagesArgs, 32 * WARPS, 1) { pages_packs<float>(a); }
KERNEL(attention_pages_packs_bf16, PagesArgs, 32 * WARPS, 1) { pages_packs<bf16>(a); }
KERNEL(attention_pages_f32, PagesArgs, 32 * TEAMS, 1) { pages_elements<float>(a); }
KERNEL(attention_pages_bf16, PagesArgs, 32 * TEAMS, 1) { pages_elements<bf16>(a); }
KERNEL(attention_pages_join_f32, PagesArgs, 256, 1) { pages_join<float>(a); }
KERNEL(attention_pages_join_bf16, PagesArgs, 256, 1) { pages_join<bf16>(a); }
