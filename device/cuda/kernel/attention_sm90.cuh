// Attention's forward on compute capability 9.0, bfloat16 heads of 64, 128 or 256 columns. See attention_sm90.go. A is AttentionArgs, or
// LimitedArgs, of which it knows windows and soft-caps.
//
// A block takes item after item, each 64·GROUPS queries of a head, 64 for a warpgroup; one more warpgroup only fetches,
// key tile by key tile of 128 (of 64 with 256 columns), and runs ahead across items, too. A fetched tile, of queries, keys or values, has D/64
// panels of 64 columns; a panel's row is 128 bytes, in which the 16-byte chunk c stands at chunk
// c ^ (row mod 8), the pattern that the multiplication reads. Queries have two places (one with 256 columns), keys and values a ring of SLOTS in
// the order in which they are used: K0, K1, V0, K2, V1, ...
//
// Scores of the next tile are multiplied while the last tile's probabilities are multiplied with their values, and while
// the other warpgroup computes its probabilities: the groups take turns in starting their products.
#pragma once
#include "attention.cuh"

template <int D> constexpr int KEYS = D == 256 ? 64 : 128; // of a tile
#define PANEL 16384         // bytes from 64 columns of a tile to the next, where it has 128 rows
#define WARPGROUP 128       // threads
#define FETCHERS 4          // warps that write a tile

#include "attention_hopper.cuh"

#ifndef APR_HOST
// sync_group waits for all of a warpgroup.
APR_DEVICE void sync_group(u32 group) { asm volatile("bar.sync %0, 128;" : : "r"(8 + group) : "memory"); }

// keep_before keeps what x ≥ 0 is computed from before a wait that follows in the program; the assembler, to which they
// are unrelated, would begin with the wait.
APR_DEVICE void keep_before(float x, u32 at) {
    asm volatile("{ .reg .pred p; setp.lt.f32 p, %0, 0f00000000; @p st.shared.f32 [%1], %0; }" : : "f"(x), "r"(at) : "memory");
}

#define READS_32(x) \
        "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(x[4]), "r"(x[5]), "r"(x[6]), "r"(x[7]), \
        "r"(x[8]), "r"(x[9]), "r"(x[10]), "r"(x[11]), "r"(x[12]), "r"(x[13]), "r"(x[14]), "r"(x[15]), \
        "r"(x[16]), "r"(x[17]), "r"(x[18]), "r"(x[19]), "r"(x[20]), "r"(x[21]), "r"(x[22]), "r"(x[23]), \
        "r"(x[24]), "r"(x[25]), "r"(x[26]), "r"(x[27]), "r"(x[28]), "r"(x[29]), "r"(x[30]), "r"(x[31])
#define ON_AND_OFF ".reg .pred on, off, more; setp.eq.b32 on, 0, 0; setp.ne.b32 off, 0, 0;\n"
#define SCORE(n, registers, q, k, step, p) "add.s64 a, %" q ", " #step "; add.s64 b, %" k ", " #step ";\n" \
    "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" registers "}, a, b, " p ", 1, 1, 0, 0;\n"
#define SCORES(steps, changes) \
    asm volatile("{ .reg .b64 a, b; " ON_AND_OFF "wgmma.fence.sync.aligned;\n" steps "wgmma.commit_group.sync.aligned; }" \
        : changes(s) : "l"(q), "l"(k) : "memory")
#define SCORE_128(step, p) SCORE(128, REGISTERS_64, "64", "65", step, p)
// The same where a panel of keys has 64 rows: the steps of both operands.
#define SCORE_PAIR(a_step, b_step, p) "add.s64 a, %32, " #a_step "; add.s64 b, %33, " #b_step ";\n" \
    "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" REGISTERS_32 "}, a, b, " p ", 1, 1, 0, 0;\n"
#define STEPS_256 SCORE_PAIR(0, 0, "off") SCORE_PAIR(2, 2, "on") SCORE_PAIR(4, 4, "on") SCORE_PAIR(6, 6, "on") \
    SCORE_PAIR(1024, 512, "on") SCORE_PAIR(1026, 514, "on") SCORE_PAIR(1028, 516, "on") SCORE_PAIR(1030, 518, "on") \
    SCORE_PAIR(2048, 1024, "on") SCORE_PAIR(2050, 1026, "on") SCORE_PAIR(2052, 1028, "on") SCORE_PAIR(2054, 1030, "on") \
    SCORE_PAIR(3072, 1536, "on") SCORE_PAIR(3074, 1538, "on") SCORE_PAIR(3076, 1540, "on") SCORE_PAIR(3078, 1542, "on")
#define STEPS_64(score) score(0, "off") score(2, "on") score(4, "on") score(6, "on")
#define STEPS_128(score) STEPS_64(score) score(1024, "on") score(1026, "on") score(1028, "on") score(1030, "on")

// start_scores starts s = q·kᵀ for the group's 64 queries and the 128 keys of a tile.
template <int D> APR_DEVICE void start_scores(float (&s)[64], u64 q, u64 k) {
    static_assert(D == 64 || D == 128, "");
    if constexpr (D == 64) SCORES(STEPS_64(SCORE_128), CHANGES_64);
    else SCORES(STEPS_128(SCORE_128), CHANGES_64);
}

template <int D> APR_DEVICE void start_scores(float (&s)[32], u64 q, u64 k) {
    static_assert(D == 256, "");
    SCORES(STEPS_256, CHANGES_32);
}

#define OUTPUT(d, registers, p, step, a0, a1, a2, a3) "add.s64 b, %" p ", " #step ";\n" \
    "wgmma.mma_async.sync.aligned.m64n" #d "k16.f32.bf16.bf16 {" registers "}, {%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 "}, b, more, 1, 1, 1;\n" \
    "mov.pred more, on;\n"
#define OUTPUTS(steps, changes, last) \
    asm volatile("{ .reg .b64 b; " ON_AND_OFF "setp.ne.b32 more, %" last ", 0; wgmma.fence.sync.aligned;\n" steps \
        "wgmma.commit_group.sync.aligned; }" : changes(o) : READS_32(p), "l"(v), "r"(more) : "memory")
#define OUTPUT_128(step, a0, a1, a2, a3) OUTPUT(128, REGISTERS_64, "96", step, a0, a1, a2, a3)
#define OUTPUT_64(step, a0, a1, a2, a3) OUTPUT(64, REGISTERS_32, "64", step, a0, a1, a2, a3)

#define OUTPUTS_128 OUTPUT_128(0, 64, 65, 66, 67) OUTPUT_128(128, 68, 69, 70, 71) OUTPUT_128(256, 72, 73, 74, 75) OUTPUT_128(384, 76, 77, 78, 79)
#define OUTPUTS_128_MORE OUTPUT_128(512, 80, 81, 82, 83) OUTPUT_128(640, 84, 85, 86, 87) OUTPUT_128(768, 88, 89, 90, 91) OUTPUT_128(896, 92, 93, 94, 95)
#define OUTPUTS_64 OUTPUT_64(0, 32, 33, 34, 35) OUTPUT_64(128, 36, 37, 38, 39) OUTPUT_64(256, 40, 41, 42, 43) OUTPUT_64(384, 44, 45, 46, 47)
#define OUTPUTS_64_MORE OUTPUT_64(512, 48, 49, 50, 51) OUTPUT_64(640, 52, 53, 54, 55) OUTPUT_64(768, 56, 57, 58, 59) OUTPUT_64(896, 60, 61, 62, 63)

// start_outputs starts o (+)= p·v for the 128 keys of a tile; p are the left operand's registers of their probabilities.
APR_DEVICE void start_outputs(float (&o)[64], const u32 (&p)[32], u64 v, u32 more) { OUTPUTS(OUTPUTS_128 OUTPUTS_128_MORE, CHANGES_64, "97"); }
APR_DEVICE void start_outputs(float (&o)[32], const u32 (&p)[32], u64 v, u32 more) { OUTPUTS(OUTPUTS_64 OUTPUTS_64_MORE, CHANGES_32, "65"); }
#define OUTPUT_256(step, a0, a1, a2, a3) OUTPUT(256, REGISTERS_128, "144", step, a0, a1, a2, a3)
// The same for 256 columns and the 64 keys of a tile.
APR_DEVICE void start_outputs(float (&o)[128], const u32 (&p)[16], u64 v, u32 more) {
    asm volatile("{ .reg .b64 b; " ON_AND_OFF "setp.ne.b32 more, %145, 0; wgmma.fence.sync.aligned;\n"
        OUTPUT_256(0, 128, 129, 130, 131) OUTPUT_256(128, 132, 133, 134, 135) OUTPUT_256(256, 136, 137, 138, 139) OUTPUT_256(384, 140, 141, 142, 143)
        "wgmma.commit_group.sync.aligned; }" : CHANGES_128(o) : READS_16(p), "l"(v), "r"(more) : "memory");
}
#endif // APR_HOST

// ---- The kernel.

// Memory is where everything stands: one or two tiles of queries, the ring, and for each of these places a barrier `full` and
// a barrier `empty`.
template <int D, int GROUPS, int SLOTS> struct Memory {
    static constexpr int QUERIES = 64 * GROUPS, FIRST = D == 256 ? 1 : 2, PLACES = FIRST + SLOTS; // FIRST: place of the ring
    static_assert(QUERIES * 128 == PANEL, "the distance between panels of queries");
    u32 ring, queries, barriers;
    APR_METHOD void place(u32 base) {
        ring = (base + 1023) & ~1023u;
        queries = ring + SLOTS * (KEYS<D> * 2 * D);
        barriers = queries + FIRST * (QUERIES * 2 * D);
    }
    APR_METHOD u32 tile(u32 place) const { return place < FIRST ? queries + place * (QUERIES * 2 * D) : ring + (place - FIRST) * (KEYS<D> * 2 * D); }
    APR_METHOD u32 full(u32 place) const { return barriers + place * 8; }
    APR_METHOD u32 empty(u32 place) const { return barriers + (PLACES + place) * 8; }
};

// Items are a block's share of all items. The last queries see most keys and come first; blocks take items in ascending
// and descending order by turns, so that their sums differ little.
template <int QUERIES, int KEYS> struct Items {
    i32 round, h, b, first; // first: query
    APR_METHOD bool next(const AttentionArgs &a) {
        const i32 n = blocks(), i = round * n + (round & 1 ? n - 1 - (i32)block() : (i32)block());
        const i32 each = a.heads * a.batch, levels = (a.q_len + QUERIES - 1) / QUERIES;
        if (i >= each * levels) return false;
        h = i % each % a.heads;
        b = i % each / a.heads;
        first = (levels - 1 - i / each) * QUERIES;
        round++;
        return true;
    }
    // tiles returns behind which tile of keys the item's queries see none.
    APR_METHOD i32 begin(const AttentionArgs &) const { return 0; } // the first tile that they see
    APR_METHOD i32 begin(const LimitedArgs &a) const {
        const i32 key = a.q_offset + first - a.window + 1;
        return key > 0 ? key / KEYS : 0;
    }
    APR_METHOD i32 tiles(const AttentionArgs &a) const { return (i32)(min_of(a.k_len, a.q_offset + first + QUERIES) + KEYS - 1) / KEYS; }
};

// Fetcher is a thread of the warpgroup that fetches. A tile is announced when the next is on its way.
template <int D, class M> struct Fetcher {
    static constexpr int CHUNKS = D / 8, STEP = WARPGROUP / CHUNKS; // rows at a time: 4, or a multiple of 8
    M m;
    u32 offset; // of the thread's first chunk in a tile of keys
    u32 more;   // and, of queries, whose panels may be longer, so much more
    u32 pending; // barrier of the tile that is on its way, or 0

    template <int N> APR_METHOD void announce() {
        copy_async_wait<N>();
        publish();
        sync_warp();
        if (lane() == 0) barrier_arrive(pending);
        pending = 0;
    }
    // fetch takes the thread's first element of a tile of which `left` rows from the thread's first exist; others become zero.
    template <int ROWS> APR_METHOD void fetch(const Places &p, const bf16 *from, i32 stride, i32 left) {
        if (ballot(!barrier_ready(m.empty(p.at), p.parity ^ 1))) {
            if (pending) announce<0>();
            barrier_wait(m.empty(p.at), p.parity ^ 1);
        }
        const u32 to = m.tile(p.at) + offset + (ROWS == KEYS<D> ? 0 : more);
        UNROLL for (int n = 0; n < ROWS; n += STEP, from += (i64)STEP * stride)
            fetch16((STEP == 4 && n & 4 ? to ^ 64 : to) + n * 128, from, n < left); // four rows on, the pattern differs in bit 2 of the chunk
        copy_async_commit();
        if (pending) announce<1>();
        pending = m.full(p.at);
    }
};

template <int D, int GROUPS, int SLOTS, class A> APR_DEVICE void fetch_all(const A &a, const Memory<D, GROUPS, SLOTS> &m) {
    typedef Memory<D, GROUPS, SLOTS> M;
    typedef Fetcher<D, M> F;
    const i32 r = thread() / F::CHUNKS, c = thread() % F::CHUNKS;
    constexpr int N = KEYS<D>;
    F f = {m, (u32)(c / 8 * (N * 128) + r * 128 + ((c % 8 ^ r % 8) << 4)), (u32)(c / 8 * (PANEL - N * 128)), 0};
    Items<M::QUERIES, N> items = {};
    Places queries = {0, 0}, ring = {M::FIRST, 0};
    while (items.next(a)) {
        const i32 g = items.h / (a.heads / a.kv_heads), begin = items.begin(a), n = items.tiles(a);
        f.template fetch<M::QUERIES>(queries, head_rows<bf16>(a.q, a.q_stride, items.b, a.q_len, items.h, D) + (i64)(items.first + r) * a.q_stride + c * 8, a.q_stride,
            a.q_len - items.first - r);
        queries.next(0, M::FIRST);
        const bf16 *k = head_rows<bf16>(a.k, a.k_stride, items.b, a.k_rows, g, D) + (i64)(begin * N + r) * a.k_stride + c * 8;
        const bf16 *v = head_rows<bf16>(a.v, a.v_stride, items.b, a.k_rows, g, D) + (i64)(begin * N + r) * a.v_stride + c * 8;
        for (i32 j = begin; j <= n; j++) {
            if (j < n) {
                f.template fetch<N>(ring, k, a.k_stride, a.k_len - j * N - r);
                ring.next(M::FIRST, SLOTS);
                k += (i64)N * a.k_stride;
            }
            if (j > begin) {
                f.template fetch<N>(ring, v, a.v_stride, a.k_len - (j - 1) * N - r);
                ring.next(M::FIRST, SLOTS);
                v += (i64)N * a.v_stride;
            }
        }
    }
    if (f.pending) f.template announce<0>();
}

// The following take the N scores of a thread, of 2N keys.

// hide makes scores of keys from `key` that the warp's queries, at positions from `query`, do not see −∞.
template <int N> APR_DEVICE void hide(float (&s)[N], i32 query, i32 key) {
    const i32 l = lane(), over = key - query + (l & 3) * 2 - (l >> 2); // how far column 0 lies after row 0
    UNROLL for (int i = 0; i < N; i++)
        if (over + i / 4 * 8 + i % 2 > i / 2 % 2 * 8) s[i] = -INFINITY_F;
}

// hide_before does so of keys that lie `window` or more before a query.
template <int N> APR_DEVICE void hide_before(float (&s)[N], i32 query, i32 key, i32 window) {
    const i32 l = lane(), over = key - query + window + (l & 3) * 2 - (l >> 2); // 0 or less: hidden
    UNROLL for (int i = 0; i < N; i++)
        if (over + i / 4 * 8 + i % 2 <= i / 2 % 2 * 8) s[i] = -INFINITY_F;
}

// cap_all applies the soft-cap, if there is one.
template <int N> APR_DEVICE void cap_all(const AttentionArgs &, float (&)[N]) {}
template <int N> APR_DEVICE void cap_all(const LimitedArgs &a, float (&s)[N]) {
    if (a.cap_in > 0)
        UNROLL for (int i = 0; i < N; i++) s[i] = capped(a, s[i], bf16());
}

// highest returns the maxima of a thread's two rows, scaled.
template <int N> APR_DEVICE void highest(float (&t)[2], const float (&s)[N], float scale) {
    UNROLL for (int e = 0; e < 2; e++) {
        float x = max2(s[2 * e], s[2 * e + 1]), y = max2(s[2 * e + 4], s[2 * e + 5]);
        UNROLL for (int i = 8; i < N; i += 8) {
            x = max2(x, max2(s[i + 2 * e], s[i + 2 * e + 1]));
            y = max2(y, max2(s[i + 2 * e + 4], s[i + 2 * e + 5]));
        }
        x = max2(x, y);
        x = max2(x, shfl_xor(x, 1));
        t[e] = max2(x, shfl_xor(x, 2)) * scale;
    }
}

// raise makes scores s 2^(s·scale − top) and adds them to sum.
template <int N> APR_DEVICE void raise(float (&s)[N], float (&sum)[2], const float (&top)[2], float scale) {
    UNROLL for (int i = 0; i < N; i += 2) {
        const int e = i / 2 % 2;
        s[i] = exp2_approx(fma_rn(s[i], scale, -top[e]));
        s[i + 1] = exp2_approx(fma_rn(s[i + 1], scale, -top[e]));
        sum[e] += s[i] + s[i + 1];
    }
}

template <int N> APR_DEVICE void round_all(u32 (&p)[N / 2], const float (&s)[N]) {
    UNROLL for (int i = 0; i < N / 2; i++) p[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
}

// leave writes 16 rows of outputs, times f, from `first` on; they pass through the warp's own queries, `own`, which
// nobody reads any more.
template <int D> APR_DEVICE void leave(bf16 *head, i32 stride, i32 first, i32 rows, const float (&o)[D / 2], const float (&f)[2], u32 own) {
    const u32 l = lane(), r = l & 15, half = l >> 4;
    UNROLL for (int j = 0; j < D / 8; j += 2) {
        u32 x[4];
        UNROLL for (int e = 0; e < 4; e++) x[e] = pack_bf16(o[j * 4 + 2 * e] * f[e % 2], o[j * 4 + 2 * e + 1] * f[e % 2]);
        store_matrices(own + j / 8 * PANEL + r * 128 + (((j % 8 + half) ^ (r & 7)) << 4), x[0], x[1], x[2], x[3]);
    }
    sync_warp();
    constexpr int CHUNKS = D / 8, STEP = 32 / CHUNKS;
    const i32 c = l % CHUNKS;
    UNROLL for (int n = 0; n < 16; n += STEP) {
        const i32 q = n + l / CHUNKS;
        const u32x4 x = load_shared16(own + c / 8 * PANEL + q * 128 + ((c % 8 ^ q % 8) << 4));
        if (first + q < rows) store16(head + (i64)(first + q) * stride + c * 8, x);
    }
}

// top stays until a score of the warp exceeds it by SLACK, which costs no accuracy: then the outputs are rescaled.
#define SLACK 8.0f

// Computer is a thread of a warpgroup that computes.
template <int D, int GROUPS, int SLOTS, class A> struct Computer {
    typedef Memory<D, GROUPS, SLOTS> M;
    static constexpr int N = KEYS<D>, KEYS_PANEL = N * 128;
    const A &a;
    Memory<D, GROUPS, SLOTS> m;
    u32 group, w; // of the block, warp of the group
    Places queries, ring;
    float s[N / 2], o[D / 2]; // defined once, or the compiler would separate the instructions
    u32 p[N / 4];
    float top[2], sum[2];
    u64 q;   // the group's queries
    i32 low; // position of the warp's first query

    APR_METHOD void take(const Places &x) { barrier_wait(m.full(x.at), x.parity); }
    APR_METHOD void release(u32 place) {
        if (lane() == 0) barrier_arrive(m.empty(place));
    }
    APR_METHOD void take_turn() { turn_take(group); }
    APR_METHOD void pass_turn() { turn_pass(group + 1 < GROUPS ? group + 1 : 0); }

    // limit caps the scores of tile j and hides what the warp's queries do not see of it.
    APR_METHOD void limit(i32 j) {
        if constexpr (D == 256) cap_all(a, s); // narrower heads with a soft-cap take attention_flash.cuh
        if ((j + 1) * N - 1 > low) hide(s, low, j * N);
        if (A::LIMITED && low + 15 - j * N >= window_of(a)) hide_before(s, low, j * N, window_of(a));
    }

    // begin makes p the probabilities of the first keys, those of tile j.
    APR_METHOD void begin(i32 j) {
        sum[0] = sum[1] = 0;
        take(queries);
        take(ring);
        take_turn();
        start_scores<D>(s, q, operand(m.tile(ring.at), KEYS_PANEL));
        pass_turn();
        wait_products<0>(s);
        release(ring.at);
        ring.next(M::FIRST, SLOTS);
        limit(j);
        highest(top, s, a.log2_scale);
        if constexpr (A::LIMITED)
            UNROLL for (int e = 0; e < 2; e++) top[e] = max2(top[e], -1e30f); // a row may see nothing of the first tile
        raise(s, sum, top, a.log2_scale);
        round_all(p, s);
    }

    // step adds the values of tile j−1, or, of the first one, sets o to them, and makes p the probabilities of tile j.
    APR_METHOD void step(i32 j, bool second) {
        take(ring);
        const u32 keys = ring.at;
        ring.next(M::FIRST, SLOTS);
        take_turn();
        start_scores<D>(s, q, operand(m.tile(keys), KEYS_PANEL));
        take(ring);
        start_outputs(o, p, operand(m.tile(ring.at), KEYS_PANEL), !second);
        pass_turn();
        wait_products<1>(s);
        release(keys);
        limit(j);
        float t[2], shrink[2];
        highest(t, s, a.log2_scale);
        const bool grows = ballot(t[0] > top[0] + SLACK || t[1] > top[1] + SLACK);
        UNROLL for (int e = 0; e < 2; e++) {
            const float higher = grows ? max2(top[e], t[e]) : top[e];
            shrink[e] = exp2_approx(top[e] - higher);
            top[e] = higher;
            sum[e] *= shrink[e];
        }
        raise(s, sum, top, a.log2_scale);
        keep_before(sum[0] + sum[1], m.barriers);
        wait_products<0>(o);
        release(ring.at);
        ring.next(M::FIRST, SLOTS);
        if (grows)
            UNROLL for (int i = 0; i < D / 2; i++) o[i] *= shrink[i / 2 % 2];
        round_all(p, s);
    }

    // finish adds the last values, of n tiles in all, and writes the item's results.
    APR_METHOD void finish(i32 n, i32 h, i32 b, i32 row) {
        take(ring);
        start_outputs(o, p, operand(m.tile(ring.at), KEYS_PANEL), n > 1);
        UNROLL for (int e = 0; e < 2; e++) {
            sum[e] += shfl_xor(sum[e], 1);
            sum[e] += shfl_xor(sum[e], 2);
            const i32 i = row + e * 8 + (i32)(lane() >> 2);
            if (a.lse && (lane() & 3) == 0 && i < a.q_len)
                a.lse[((i64)b * a.q_len + i) * a.lse_stride + h] = (top[e] + log2_approx(sum[e])) * LN2;
            sum[e] = rcp_approx(sum[e]);
        }
        wait_products<0>(o);
        release(ring.at);
        ring.next(M::FIRST, SLOTS);
        sync_group(group); // all of it have multiplied the queries
        leave<D>(head_rows<bf16>(a.o, a.o_stride, b, a.q_len, h, D), a.o_stride, row, a.q_len, o, sum,
            m.tile(queries.at) + (group * 64 + w * 16) * 128);
        sync_warp();
        release(queries.at);
        queries.next(0, M::FIRST);
    }

    APR_METHOD void all() {
        Items<64 * GROUPS, N> items = {};
        if (group == GROUPS - 1) pass_turn();
        while (items.next(a)) {
            const i32 from = items.begin(a), n = items.tiles(a), first = items.first + group * 64, row = first + w * 16;
            q = operand(m.tile(queries.at) + group * (64 * 128));
            low = a.q_offset + row;
            begin(from);
            for (i32 j = from + 1; j < n; j++) step(j, j == from + 1);
            finish(n - from, items.h, items.b, row);
        }
    }
};

// Grid: as many blocks as run at once. Shared: 1024 bytes to align, the places, the barriers. Registers of the block's
// threads: KEEP for those that compute, LESS for those that fetch.
template <int D, int GROUPS, int SLOTS, int KEEP, int LESS, class A> APR_DEVICE void attention_forward(const A &a, u32 base) {
    Memory<D, GROUPS, SLOTS> m;
    m.place(base);
    if (thread() == 0) {
        for (u32 i = 0; i < m.PLACES; i++) {
            barrier_init(m.full(i), FETCHERS);
            barrier_init(m.empty(i), 4 * GROUPS); // every warp that computes reads every tile
        }
    }
    sync_block();
    if (thread() < WARPGROUP) {
        shrink_registers<LESS>();
        fetch_all(a, m);
    } else {
        grow_registers<KEEP>();
        Computer<D, GROUPS, SLOTS, A> c = {a, m, thread() / WARPGROUP - 1, warp() & 3, {0, 0}, {(u32)m.FIRST, 0}};
        c.all();
    }
}
