// The gradient of an embedding: rows with the same id are added in ascending order, without atomics. Keys, an id above and
// a position below, are sorted in tiles, merged by rank, and each run of one id is added by one warp, or by one block if
// it is long.
//apr:module target=sm_80 types=bf16,f32 roles=train
#include "apr.cuh"

enum { TILE = 1024, LONG = 32 };

struct EmbedSortArgs {
    u64 *keys; // [tiles · TILE]
    const i32 *ids;
    Record *record;
    i64 id_stride;
    u32 count; // ids
    u32 limit; // rows of the gradient
};

// An id out of range gets the highest id, so that its position comes last; beyond the ids stand keys above all others.
APR_DEVICE u64 key_of(const EmbedSortArgs &a, u32 i) {
    if (i >= a.count) return ~0ull;
    const i32 id = a.ids[i * a.id_stride];
    if ((u32)id < a.limit) return (u64)(u32)id << 32 | i;
    first_fault(a.record, 1, id, a.limit);
    return 0xffffffffull << 32 | i;
}

// Sorts one tile a block: a bitonic network over shared memory; a thread has two keys.
KERNEL(embed_sort, EmbedSortArgs, TILE / 2, 2) {
    SHARED(u64, keys, TILE);
    const u32 t = thread(), base = block() * TILE;
    keys[t] = key_of(a, base + t);
    keys[t + TILE / 2] = key_of(a, base + t + TILE / 2);
    for (u32 size = 2; size <= TILE; size *= 2)
        for (u32 distance = size / 2; distance; distance /= 2) {
            sync_block();
            const u32 i = 2 * t - (t & (distance - 1)), j = i + distance;
            const u64 x = keys[i], y = keys[j];
            if ((x > y) == ((i & size) == 0)) { keys[i] = y; keys[j] = x; }
        }
    sync_block();
    a.keys[base + t] = keys[t];
    a.keys[base + t + TILE / 2] = keys[t + TILE / 2];
}

struct EmbedMergeArgs {
    const u64 *keys; // [tiles · TILE], sorted within tiles
    u64 *sorted;     // [count]
    u32 tiles, count;
};

// The place of a key is the number of smaller keys, found by bisection in every tile.
KERNEL(embed_merge, EmbedMergeArgs, 256, 4) {
    const u64 key = a.keys[block() * threads() + thread()];
    if (key == ~0ull) return;
    u32 rank = 0;
    for (u32 first = 0; first < a.tiles; first += 4) { // four searches at a time hide each other's latency
        u32 at[4] = {};
        for (u32 step = TILE / 2; step; step /= 2) {
            UNROLL for (u32 k = 0; k < 4; k++) {
                const u32 tile = first + k < a.tiles ? first + k : first;
                if (a.keys[tile * TILE + at[k] + step - 1] < key) at[k] += step;
            }
        }
        UNROLL for (u32 k = 0; k < 4; k++)
            if (first + k < a.tiles) rank += at[k] + (a.keys[(first + k) * TILE + at[k]] < key);
    }
    a.sorted[rank] = key;
}

struct EmbedAddArgs {
    float *grad;
    const void *dx;
    const u64 *sorted;
    i64 grad_stride, dx_stride;
    u32 count, cols;
};

APR_DEVICE u32 id_of(u64 key) { return (u32)(key >> 32); }

// add_rows adds the rows of dx at the positions of sorted keys [lo, hi), ascending, to s: E columns at column c.
template <class T, int E> APR_DEVICE void add_rows(float (&s)[E], const EmbedAddArgs &a, u32 c, u32 lo, u32 hi) {
    const T *dx = (const T *)a.dx + c;
    for (; lo < hi; lo += 4) {
        Pack<T, E> v[4] = {};
        UNROLL for (u32 k = 0; k < 4; k++)
            if (lo + k < hi) load_pack(v[k], dx + (u32)a.sorted[lo + k] * a.dx_stride);
        UNROLL for (u32 k = 0; k < 4; k++) {
            float x[E];
            widen(x, v[k]);
            UNROLL for (int e = 0; e < E; e++) s[e] += x[e];
        }
    }
}

template <int E> APR_DEVICE void add_to(float *p, const float (&s)[E]) {
    Pack<float, E> v;
    float x[E];
    load_pack(v, p);
    widen(x, v);
    UNROLL for (int e = 0; e < E; e++) x[e] += s[e];
    narrow(v, x);
    store_pack(p, v);
}

// Runs of at most LONG positions: a warp for every sorted key, which works if its key begins such a run, and 32·E columns
// for every block_y.
template <class T, int E> APR_DEVICE void embed_add_short(const EmbedAddArgs &a) {
    const u32 p = block() * (threads() / 32) + warp(), c = (block_y() * 32 + lane()) * E;
    if (p >= a.count) return;
    const u32 id = id_of(a.sorted[p]);
    const bool begins = p == 0 || id_of(a.sorted[p - 1]) != id;
    const bool is_long = p + LONG < a.count && id_of(a.sorted[p + LONG]) == id;
    if (!begins || is_long || id == ~0u) return;
    const u32 run = popcount(ballot(p + lane() < a.count && id_of(a.sorted[p + lane()]) == id));
    if (c >= a.cols) return;
    float s[E] = {};
    add_rows<T, E>(s, a, c, p, p + run);
    add_to<E>(a.grad + id * a.grad_stride + c, s);
}

// lower returns the first position whose key is not below key.
APR_DEVICE u32 lower(const u64 *sorted, u32 count, u64 key) {
    u32 lo = 0, hi = count;
    while (lo < hi) {
        const u32 mid = (lo + hi) / 2;
        if (sorted[mid] < key) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

// Longer runs: a block for every LONG-th sorted key, which works if it is the first of those in its run. Warp w adds the
// w-th eighth of the positions, and the warps' sums are added in ascending order.
template <class T, int E> APR_DEVICE void embed_add_long(const EmbedAddArgs &a) {
    SHARED(float, sums, 8 * 32 * E);
    const u32 p = block() * LONG, c = (block_y() * 32 + lane()) * E;
    const u32 id = id_of(a.sorted[p]);
    if (id == ~0u) return;
    const bool alone = p + LONG >= a.count || id_of(a.sorted[p + LONG]) != id; // no further LONG-th key in the run
    if (alone && (p == 0 || id_of(a.sorted[p - 1]) != id)) return; // begins here: at most LONG positions
    const u32 lo = lower(a.sorted, a.count, (u64)id << 32), hi = lower(a.sorted, a.count, (u64)(id + 1) << 32);
    if (hi - lo <= LONG || p >= lo + LONG) return;
    const u32 share = (hi - lo + 7) / 8, first = lo + warp() * share;
    float s[E] = {};
    if (c < a.cols) add_rows<T, E>(s, a, c, first, first + share < hi ? first + share : hi);
    UNROLL for (int e = 0; e < E; e++) sums[e * 256 + thread()] = s[e];
    sync_block();
    if (warp() > 0 || c >= a.cols) return;
    UNROLL for (int e = 0; e < E; e++) {
        UNROLL for (u32 w = 1; w < 8; w++) s[e] += sums[e * 256 + w * 32 + lane()];
    }
    add_to<E>(a.grad + id * a.grad_stride + c, s);
}

KERNEL(embed_add_short_bf16_8, EmbedAddArgs, 256, 4) { embed_add_short<bf16, 8>(a); }
KERNEL(embed_add_short_bf16_1, EmbedAddArgs, 256, 4) { embed_add_short<bf16, 1>(a); }
KERNEL(embed_add_short_f32_8, EmbedAddArgs, 256, 3) { embed_add_short<float, 8>(a); }
KERNEL(embed_add_short_f32_1, EmbedAddArgs, 256, 4) { embed_add_short<float, 1>(a); }
KERNEL(embed_add_long_bf16_8, EmbedAddArgs, 256, 4) { embed_add_long<bf16, 8>(a); }
KERNEL(embed_add_long_bf16_1, EmbedAddArgs, 256, 4) { embed_add_long<bf16, 1>(a); }
KERNEL(embed_add_long_f32_8, EmbedAddArgs, 256, 3) { embed_add_long<float, 8>(a); }
KERNEL(embed_add_long_f32_1, EmbedAddArgs, 256, 4) { embed_add_long<float, 1>(a); }
