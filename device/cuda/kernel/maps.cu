// The divergence of attention maps and its gradient: see device.MapComparer for the formulas, maps.go for the order of launches.
//
// A block of 256 threads has a tile of 64 queries by 64 keys; thread (y, x) of 16 by 16 has the queries y+16i and the keys x+16j.
// Scores are sums of float32 products in float32. A rectangle of queries and keys of each batch row exists at a time: lp, the
// logarithms of the teacher's probabilities, −∞ where a query does not count or see, and l = ln Σ_h P_h of the student's heads.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "tanh.cuh"

enum { THREADS = 256, TILE = 64, SPLIT = 16, EACH = 4, DEPTH = 32, PITCH = DEPTH + 1, WIDE = TILE + 1, FAULT_ROW = 3 };

// One side of a comparison.
struct MapSide {
    const void *q, *k;
    const float *lse, *sinks; // [rows, heads], [heads] or zero
    i64 q_stride, k_stride, lse_stride;
    i32 heads, group, d, window; // group: query heads of a key/value head
    float scale, cap, uncap;     // cap 0: none; 1/cap
};

struct MapsArgs {
    MapSide own, big;          // student, teacher
    const i32 *first, *named;  // [rows] or zero; the rows that count, or zero
    u32 *counts;               // [rows]
    float *lp, *l;             // [batch, queries, keys]: the rectangle
    float *lp_sink, *l_sink;   // [rows]
    float *e;                  // [rows, heads of the student]
    float *sink_terms;         // the same, or zero; later rounds add to the first
    double *divergence;        // [rows]
    void *dq, *dk;
    Record *record;
    i64 dq_stride, dk_stride;
    double weight;
    i32 len, from_q, queries, from_k, keys; // the rectangle
    u32 rows, names, begin, all;            // rows of this launch; named rows are counted from −begin, of all
};

// counts = 1 for all, or 0 and then 1 for those that are named.
KERNEL(maps_begin, MapsArgs, THREADS, 4) {
    const u32 r = block() * threads() + thread();
    if (r < a.rows) a.counts[r] = a.named == nullptr;
}
KERNEL(maps_named, MapsArgs, THREADS, 4) {
    const u32 i = block() * threads() + thread();
    if (i >= a.names) return;
    const i64 r = a.named[i];
    if (r < 0 || r >= a.all) first_fault(a.record, FAULT_ROW, r, a.all);
    else if (r >= a.begin && r - a.begin < a.rows) a.counts[r - a.begin] = 1;
}

// lowest returns the first key that query i sees, whose place is row.
APR_DEVICE int lowest(const MapsArgs &a, const MapSide &s, i64 row, int i) {
    int low = 0;
    if (s.window > 0 && i - s.window + 1 > low) low = i - s.window + 1;
    if (a.first) {
        const int f = a.first[row] < i ? a.first[row] : i;
        if (f > low) low = f;
    }
    return low;
}

// fill copies columns [c, c+width) of up to 64 rows of a head to shared memory; what is not there is zero.
template <class T> APR_DEVICE void fill(float *tile, int pitch, int width, const T *head, i64 stride, int rows, int c, int d) {
    NO_UNROLL for (int t = thread(); t < TILE * width; t += THREADS) {
        const int r = t / width, at = t - r * width;
        tile[r * pitch + at] = r < rows && c + at < d ? load(head + (i64)r * stride + c + at) : 0.0f;
    }
}

// products returns q·k of a thread's queries and keys. memory has room for both tiles.
template <class T> APR_DEVICE void products(float (&x)[EACH][EACH], float *memory, const T *q, i64 q_stride, int q_rows, const T *k, i64 k_stride, int k_rows, int d) {
    float *sq = memory, *sk = memory + TILE * PITCH;
    const int y = thread() / SPLIT, z = thread() % SPLIT;
    UNROLL for (int i = 0; i < EACH; i++) UNROLL for (int j = 0; j < EACH; j++) x[i][j] = 0;
    NO_UNROLL for (int c = 0; c < d; c += DEPTH) {
        sync_block(); // what was there has been read
        fill(sq, PITCH, DEPTH, q, q_stride, q_rows, c, d);
        fill(sk, PITCH, DEPTH, k, k_stride, k_rows, c, d);
        sync_block();
        NO_UNROLL for (int e = 0; e < DEPTH; e++) {
            float u[EACH], v[EACH];
            UNROLL for (int i = 0; i < EACH; i++) u[i] = sq[(y + SPLIT * i) * PITCH + e], v[i] = sk[(z + SPLIT * i) * PITCH + e];
            UNROLL for (int i = 0; i < EACH; i++) UNROLL for (int j = 0; j < EACH; j++) x[i][j] = fma_rn(u[i], v[j], x[i][j]);
        }
    }
}

// score returns the scaled and capped score of a product, and its slope by the product.
APR_DEVICE float score(const MapSide &s, float x, float &slope) {
    x *= s.scale;
    slope = s.scale;
    if (s.cap > 0) {
        const float t = tanh_of(x * s.uncap, bf16()); // as exact as scores are, and short
        x = s.cap * t;
        slope *= fma_rn(-t, t, 1.0f);
    }
    return x;
}

// tile_of returns the products of head h of a side, for the queries from i0 and the keys from j0 of the batch row that begins at row.
template <class T> APR_DEVICE void tile_of(float (&x)[EACH][EACH], float *memory, const MapsArgs &a, const MapSide &s, i64 row, int h, int i0, int j0) {
    const T *q = (const T *)s.q + (row + i0) * s.q_stride + (i64)h * s.d, *k = (const T *)s.k + (row + j0) * s.k_stride + (i64)(h / s.group) * s.d;
    products(x, memory, q, s.q_stride, a.len - i0, k, s.k_stride, a.len - j0, s.d);
}

// joined adds e^z to the sum s of exponentials, whose largest is e^m.
APR_DEVICE void joined(float &m, float &s, float z) {
    const float gap = z - m, e = exp_approx(-__builtin_fabsf(gap));
    s = gap > 0 ? fma_rn(s, e, 1.0f) : s + e;
    m = gap > 0 ? z : m;
}

// average writes ln Σ_h P_h of one side over a tile; of the teacher the logarithm of the mean, for queries that count.
template <class T, bool BIG> APR_DEVICE void average(const MapsArgs &a, const MapSide &s, float *out, float *memory) {
    const int i0 = a.from_q + block_y() * TILE, j0 = a.from_k + block() * TILE, b = block_z();
    const i64 row = (i64)b * a.len;
    const int y = thread() / SPLIT, z = thread() % SPLIT;
    float m[EACH][EACH], sum[EACH][EACH], x[EACH][EACH];
    UNROLL for (int i = 0; i < EACH; i++) UNROLL for (int j = 0; j < EACH; j++) m[i][j] = -INFINITY_F, sum[i][j] = 0;
    const bool seen = j0 < i0 + TILE && lowest(a, a.own, row + i0, i0) < j0 + TILE; // by anyone: what the lowest query sees falls for none
    NO_UNROLL for (int h = 0; h < s.heads && seen; h++) {
        tile_of<T>(x, memory, a, s, row, h, i0, j0);
        UNROLL for (int i = 0; i < EACH; i++) {
            const int at = i0 + y + SPLIT * i;
            if (at >= a.from_q + a.queries) continue;
            const float lse = s.lse[(row + at) * s.lse_stride + h];
            UNROLL for (int j = 0; j < EACH; j++) {
                float slope;
                joined(m[i][j], sum[i][j], score(s, x[i][j], slope) - lse);
            }
        }
    }
    const float heads = BIG ? LN2 * log2_approx((float)s.heads) : 0;
    UNROLL for (int i = 0; i < EACH; i++) {
        const int at = i0 + y + SPLIT * i;
        if (at >= a.from_q + a.queries) continue;
        const int low = lowest(a, s, row + at, at);
        UNROLL for (int j = 0; j < EACH; j++) {
            const int key = j0 + z + SPLIT * j;
            if (key >= a.from_k + a.keys) continue;
            const bool sees = key >= low && key <= at && (!BIG || a.counts[row + at]);
            out[((i64)b * a.queries + at - a.from_q) * a.keys + key - a.from_k] = sees ? m[i][j] + LN2 * log2_approx(sum[i][j]) - heads : -INFINITY_F;
        }
    }
}

// Grid: (tiles of keys, tiles of queries, batch).
template <class T> APR_DEVICE void averages(const MapsArgs &a) {
    SHARED(float, memory, 2 * TILE * PITCH);
    average<T, true>(a, a.big, a.lp, memory);
    average<T, false>(a, a.own, a.l, memory);
}
KERNEL(maps_average_f32, MapsArgs, THREADS, 2) { averages<float>(a); }
KERNEL(maps_average_bf16, MapsArgs, THREADS, 2) { averages<bf16>(a); }

// sink_of returns ln Σ_h P_h of the sinks of a side.
APR_DEVICE float sink_of(const MapSide &s, i64 row) {
    float m = -INFINITY_F, sum = 0;
    for (int h = 0; h < s.heads; h++) joined(m, sum, s.sinks[h] - s.lse[row * s.lse_stride + h]);
    return m + LN2 * log2_approx(sum);
}

// maps_divergence writes the divergence of each query of a rectangle of all keys, and both logarithms of the sinks.
// Grid: (queries, 1, batch).
KERNEL(maps_divergence, MapsArgs, THREADS, 4) {
    SHARED(double, part, 33);
    const int i = a.from_q + block(), b = block_z();
    const i64 row = (i64)b * a.len + i, at = ((i64)b * a.queries + block()) * a.keys;
    const float heads = LN2 * log2_approx((float)a.own.heads);
    float sum = 0;
    for (int j = lowest(a, a.own, row, i) + (int)thread(); j <= i; j += THREADS) {
        const float lp = a.lp[at + j], p = exp_approx(lp);
        if (p != 0) sum = fma_rn(p, lp - a.l[at + j] + heads, sum); // NaN too
    }
    double all = block_sum((double)sum, part);
    if (thread() != 0) return;
    float own = 0, big = -INFINITY_F;
    if (a.own.sinks) own = sink_of(a.own, row);
    if (a.big.sinks && a.counts[row]) {
        big = sink_of(a.big, row) - LN2 * log2_approx((float)a.big.heads);
        const float p = exp_approx(big);
        if (p != 0) all += (double)(p * (big - own + heads));
    }
    a.l_sink[row] = own;
    a.lp_sink[row] = big;
    a.divergence[row] = all;
}

// grads turns products x of a head into the gradient over them, f·slope·(P·E − p·w).
APR_DEVICE void grads(float (&x)[EACH][EACH], const MapsArgs &a, i64 row, int b, int h, int i0, int j0, float f) {
    const int y = thread() / SPLIT, z = thread() % SPLIT;
    UNROLL for (int i = 0; i < EACH; i++) {
        const int at = i0 + y + SPLIT * i;
        const bool have = at < a.from_q + a.queries;
        const i64 r = row + (have ? at : 0);
        const int low = have ? lowest(a, a.own, r, at) : at + 1;
        const float lse = a.own.lse[r * a.own.lse_stride + h], e = have ? a.e[r * a.own.heads + h] : 0;
        UNROLL for (int j = 0; j < EACH; j++) {
            const int key = j0 + z + SPLIT * j;
            float slope, t = score(a.own, x[i][j], slope) - lse;
            x[i][j] = 0;
            if (key < low || key > at || key >= a.from_k + a.keys || (low == at && !a.own.sinks)) continue; // of one key P is 1 whatever the score
            const i64 place = ((i64)b * a.queries + at - a.from_q) * a.keys + key - a.from_k;
            const float p = exp_approx(a.lp[place]);
            const float w = p != 0 ? p * exp_approx(t - a.l[place]) : 0.0f;
            x[i][j] = f * slope * (exp_approx(t) * e - w);
        }
    }
}

// shares returns E of a thread's queries for one head, the sum over all keys and the sink, the same for all threads of a query.
template <class T> APR_DEVICE void shares(float (&e)[EACH], const MapsArgs &a, float *memory, i64 row, int b, int h, int i0, int end) {
    const int y = thread() / SPLIT, z = thread() % SPLIT;
    float x[EACH][EACH];
    UNROLL for (int i = 0; i < EACH; i++) e[i] = 0;
    for (int j0 = lowest(a, a.own, row + i0, i0) / TILE * TILE; j0 < end; j0 += TILE) {
        tile_of<T>(x, memory, a, a.own, row, h, i0, j0);
        UNROLL for (int i = 0; i < EACH; i++) {
            const int at = i0 + y + SPLIT * i;
            if (at >= a.from_q + a.queries) continue;
            const float lse = a.own.lse[(row + at) * a.own.lse_stride + h];
            UNROLL for (int j = 0; j < EACH; j++) {
                const int key = j0 + z + SPLIT * j;
                if (key > at) continue;
                const i64 place = ((i64)b * a.queries + at - a.from_q) * a.keys + key;
                const float p = exp_approx(a.lp[place]); // 0 of what is not seen
                float slope;
                const float t = score(a.own, x[i][j], slope) - lse;
                if (p != 0) e[i] = fma_rn(p, exp_approx(t - a.l[place]), e[i]);
            }
        }
    }
    UNROLL for (int i = 0; i < EACH; i++) UNROLL for (int m = SPLIT / 2; m; m >>= 1) e[i] += shfl_xor(e[i], m);
}

// Grid: (tiles of queries, heads, batch), of a rectangle of all keys. Adds to dq, and writes E and the terms of the sinks' gradient.
template <class T, int CHUNKS> APR_DEVICE void map_queries(const MapsArgs &a) {
    SHARED(float, memory, 2 * TILE * PITCH);
    SHARED(float, ds, TILE * WIDE);
    const int i0 = a.from_q + block() * TILE, h = block_y(), b = block_z(), y = thread() / SPLIT, z = thread() % SPLIT, d = a.own.d;
    const int last = (int)min_of(a.from_q + a.queries, i0 + TILE);
    const i64 row = (i64)b * a.len;
    const float f = (float)(a.weight * a.record->inv_n);
    float e[EACH], x[EACH][EACH], acc[CHUNKS][EACH][EACH] = {};
    shares<T>(e, a, memory, row, b, h, i0, last);
    UNROLL for (int i = 0; i < EACH; i++) {
        const i64 r = row + i0 + y + SPLIT * i;
        if (i0 + y + SPLIT * i >= last) continue;
        if (a.own.sinks) {
            const float t = a.own.sinks[h] - a.own.lse[r * a.own.lse_stride + h], p = exp_approx(a.lp_sink[r]);
            const float w = p != 0 ? p * exp_approx(t - a.l_sink[r]) : 0.0f;
            e[i] += w;
            if (a.sink_terms && z == 0) { // of all rounds
                float *to = a.sink_terms + r * a.own.heads + h;
                *to = (a.begin > 0 ? *to : 0.0f) + f * (exp_approx(t) * e[i] - w);
            }
        }
        if (z == 0) a.e[r * a.own.heads + h] = e[i];
    }
    for (int j0 = lowest(a, a.own, row + i0, i0) / TILE * TILE; j0 < last; j0 += TILE) {
        tile_of<T>(x, memory, a, a.own, row, h, i0, j0);
        sync_block(); // E is seen, and the ds before was read
        grads(x, a, row, b, h, i0, j0, f);
        UNROLL for (int i = 0; i < EACH; i++) UNROLL for (int j = 0; j < EACH; j++) ds[(y + SPLIT * i) * WIDE + z + SPLIT * j] = x[i][j];
        const T *k = (const T *)a.own.k + (row + j0) * a.own.k_stride + (i64)(h / a.own.group) * d;
        UNROLL for (int c = 0; c < CHUNKS; c++) {
            if (c * TILE >= d) break;
            sync_block();
            fill(memory, WIDE, TILE, k, a.own.k_stride, a.len - j0, c * TILE, d);
            sync_block();
            NO_UNROLL for (int n = 0; n < TILE; n++) {
                float u[EACH], v[EACH];
                UNROLL for (int i = 0; i < EACH; i++) u[i] = ds[(y + SPLIT * i) * WIDE + n], v[i] = memory[n * WIDE + z + SPLIT * i];
                UNROLL for (int i = 0; i < EACH; i++) UNROLL for (int j = 0; j < EACH; j++) acc[c][i][j] = fma_rn(u[i], v[j], acc[c][i][j]);
            }
        }
    }
    T *dq = (T *)a.dq + (row + i0) * a.dq_stride + (i64)h * d;
    UNROLL for (int c = 0; c < CHUNKS; c++) UNROLL for (int i = 0; i < EACH; i++) UNROLL for (int j = 0; j < EACH; j++) {
        const int r = y + SPLIT * i, col = c * TILE + z + SPLIT * j;
        if (i0 + r >= last || col >= d) continue;
        T *to = dq + r * a.dq_stride + col;
        store(to, load(to) + acc[c][i][j]);
    }
}

// Grid: (tiles of keys, key/value heads, batch), of a rectangle of the queries from its first key to the last. Adds to dk.
template <class T, int CHUNKS> APR_DEVICE void map_keys(const MapsArgs &a) {
    SHARED(float, memory, 2 * TILE * PITCH);
    SHARED(float, ds, TILE * WIDE);
    const int j0 = a.from_k + block() * TILE, g = block_y(), b = block_z(), y = thread() / SPLIT, z = thread() % SPLIT, d = a.own.d;
    const i64 row = (i64)b * a.len;
    const float f = (float)(a.weight * a.record->inv_n);
    float x[EACH][EACH], acc[CHUNKS][EACH][EACH] = {};
    for (int i0 = j0; i0 < a.len && lowest(a, a.own, row + i0, i0) < j0 + TILE; i0 += TILE) {
        for (int h = g * a.own.group; h < (g + 1) * a.own.group; h++) {
            tile_of<T>(x, memory, a, a.own, row, h, i0, j0);
            sync_block();
            grads(x, a, row, b, h, i0, j0, f);
            UNROLL for (int i = 0; i < EACH; i++) UNROLL for (int j = 0; j < EACH; j++) ds[(y + SPLIT * i) * WIDE + z + SPLIT * j] = x[i][j];
            const T *q = (const T *)a.own.q + (row + i0) * a.own.q_stride + (i64)h * d;
            UNROLL for (int c = 0; c < CHUNKS; c++) {
                if (c * TILE >= d) break;
                sync_block();
                fill(memory, WIDE, TILE, q, a.own.q_stride, a.len - i0, c * TILE, d);
                sync_block();
                NO_UNROLL for (int n = 0; n < TILE; n++) {
                    float u[EACH], v[EACH];
                    UNROLL for (int i = 0; i < EACH; i++) u[i] = ds[n * WIDE + y + SPLIT * i], v[i] = memory[n * WIDE + z + SPLIT * i];
                    UNROLL for (int i = 0; i < EACH; i++) UNROLL for (int j = 0; j < EACH; j++) acc[c][i][j] = fma_rn(u[i], v[j], acc[c][i][j]);
                }
            }
        }
    }
    T *dk = (T *)a.dk + (row + j0) * a.dk_stride + (i64)g * d;
    UNROLL for (int c = 0; c < CHUNKS; c++) UNROLL for (int i = 0; i < EACH; i++) UNROLL for (int j = 0; j < EACH; j++) {
        const int r = y + SPLIT * i, col = c * TILE + z + SPLIT * j;
        if (j0 + r >= a.from_k + a.keys || col >= d) continue;
        T *to = dk + r * a.dk_stride + col;
        store(to, load(to) + acc[c][i][j]);
    }
}

KERNEL(maps_queries_f32_128, MapsArgs, THREADS, 1) { map_queries<float, 2>(a); }
KERNEL(maps_queries_f32_512, MapsArgs, THREADS, 1) { map_queries<float, 8>(a); }
KERNEL(maps_queries_bf16_128, MapsArgs, THREADS, 1) { map_queries<bf16, 2>(a); }
KERNEL(maps_queries_bf16_512, MapsArgs, THREADS, 1) { map_queries<bf16, 8>(a); }
KERNEL(maps_keys_f32_128, MapsArgs, THREADS, 1) { map_keys<float, 2>(a); }
KERNEL(maps_keys_f32_512, MapsArgs, THREADS, 1) { map_keys<float, 8>(a); }
KERNEL(maps_keys_bf16_128, MapsArgs, THREADS, 1) { map_keys<bf16, 2>(a); }
KERNEL(maps_keys_bf16_512, MapsArgs, THREADS, 1) { map_keys<bf16, 8>(a); }

// maps_finish adds the divergences to the record: one block, thread i takes rows i, i+256, …
KERNEL(maps_finish, MapsArgs, THREADS, 1) {
    SHARED(double, part, 33);
    double sum = 0;
    for (u32 r = thread(); r < a.rows; r += THREADS) sum += a.divergence[r];
    sum = block_sum(sum, part);
    if (thread() == 0) a.record->sums[1] += sum;
}
