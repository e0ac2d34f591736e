// Attention's backward on compute capability 9.0, bfloat16 heads of 64 or 128 columns. See attention_backward_sm90.go. ATTENTION_ARGS is
// AttentionArgs, or LimitedArgs, of which it knows windows.
//
// Both kernels have one form. A block owns 128 rows of two matrices x and y, 64 for a warpgroup; one more warpgroup only
// fetches tiles of 64 rows of two other matrices X and Y, and runs ahead. With s = x·Xᵀ and t = y·Yᵀ
//
//     p = 2^(s·scale − lse), g = p∘(t − δ), first += g·X, second += p·Y
//
//     kernel   own x, y      streamed X, Y     first   second   lse and δ belong to
//     dq       queries, dO   keys, values      dq      -        rows
//     dkv      keys, values  queries, dO       dk      dv       columns
//
// so that p and g go from registers to the next products, and an X or Y that was fetched once is the right operand of
// both of its products. Those of a tile are started with the next tile's s and t, and run while p and g are computed.
//
// A tile in shared memory has D/64 panels of 64 columns; a panel's row is 128 bytes, in which the 16-byte chunk c stands
// at chunk c ^ (row mod 8), the pattern that the multiplication reads.
#pragma once
#include "attention.cuh"

#define ROWS 64            // of a tile
#define PANEL (ROWS * 128) // bytes from 64 columns of a tile to the next
#define WARPGROUP 128      // threads
#define GROUPS 2           // warpgroups that compute
#define OWN (ROWS * GROUPS)
#define FETCHERS 4 // warps that write a tile

#include "attention_hopper.cuh"

typedef ATTENTION_ARGS Args;
constexpr bool LIMITED = Args::LIMITED;

struct AttentionBackwardArgs {
    Args a;
    i32 line;   // dkv: steps, of a tile of queries and one of keys, of a key-value head of a batch row
    i32 chunks; // dkv: shares of all steps, one a block
    i32 turns;  // whether the groups take turns in starting products
};

#ifndef APR_HOST
// Copies of 16 and of 4 bytes; zero unless valid.
APR_DEVICE void fetch4(u32 to, const void *from, bool valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" : : "r"(to), "l"(from), "r"(valid ? 4 : 0) : "memory");
}
APR_DEVICE float load_float(u32 at) { float x; asm volatile("ld.shared.f32 %0, [%1];" : "=f"(x) : "r"(at) : "memory"); return x; }
APR_DEVICE f32x2 load_floats(u32 at) {
    float x, y;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x), "=f"(y) : "r"(at) : "memory");
    return f32x2{x, y};
}
APR_DEVICE void load_matrices(u32 (&r)[4], u32 at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
// keep_before keeps what x, whose sign is 0, is computed from before a wait that follows in the program; the assembler,
// to which they are unrelated, would begin with the wait.
APR_DEVICE void keep_before(u32 x, u32 at) {
    asm volatile("{ .reg .pred p; setp.lt.s32 p, %0, 0; @p st.shared.u32 [%1], %0; }" : : "r"(x), "r"(at) : "memory");
}

#define STEP_SHARED(step) "add.s64 a, %32, " #step "; add.s64 b, %33, " #step ";\n" \
    "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" REGISTERS_32 "}, a, b, more, 1, 1, 0, 0;\nmov.pred more, on;\n"

// start_scores of a left operand in shared memory, of 128 columns.
template <int MORE> APR_DEVICE void start_scores(float (&s)[32], u64 x, u64 tile) {
    asm volatile(BEGIN "34" BEGUN STEP_SHARED(0) STEP_SHARED(2) STEP_SHARED(4) STEP_SHARED(6)
        STEP_SHARED(512) STEP_SHARED(514) STEP_SHARED(516) STEP_SHARED(518) END
        : CHANGES_32(s) : "l"(x), "l"(tile), "r"(MORE) : "memory");
}
// start_outputs starts o += p·X for a tile X; p are the left operand's registers.
APR_DEVICE void start_outputs(float (&o)[32], const u32 (&p)[16], u64 tile) {
    asm volatile(BEGIN "49" BEGUN
        STEP(64, REGISTERS_32, 48, 0, 1, 32, 33, 34, 35) STEP(64, REGISTERS_32, 48, 128, 1, 36, 37, 38, 39)
        STEP(64, REGISTERS_32, 48, 256, 1, 40, 41, 42, 43) STEP(64, REGISTERS_32, 48, 384, 1, 44, 45, 46, 47) END
        : CHANGES_32(o) : READS_16(p), "l"(tile), "r"(1) : "memory");
}
APR_DEVICE void start_outputs(float (&o)[64], const u32 (&p)[16], u64 tile) {
    asm volatile(BEGIN "81" BEGUN
        STEP(128, REGISTERS_64, 80, 0, 1, 64, 65, 66, 67) STEP(128, REGISTERS_64, 80, 128, 1, 68, 69, 70, 71)
        STEP(128, REGISTERS_64, 80, 256, 1, 72, 73, 74, 75) STEP(128, REGISTERS_64, 80, 384, 1, 76, 77, 78, 79) END
        : CHANGES_64(o) : READS_16(p), "l"(tile), "r"(1) : "memory");
}

#endif // APR_HOST

// ---- Where everything stands, and what comes in which order.

// Memory: the block's own matrices (for dq also O), the ring of SLOTS stages of two tiles, a tile for each group's results,
// float32 numbers (for dq lse of the own queries, for dkv lse and −δ of every stage), and a barrier `full` and a barrier
// `empty` for each stage and for what the block owns.
template <int D, bool DKV, int SLOTS> struct Memory {
    static constexpr int MATRICES = DKV ? 2 : 3, TILE = 2 * D * ROWS, OWNED = SLOTS; // place of the block's own rows
    static constexpr int BYTES = (MATRICES * GROUPS + 2 * SLOTS + GROUPS) * TILE + SLOTS * 512 + 16 * (SLOTS + 1) + 1024;
    static_assert(BYTES <= 227 << 10, "a block has 227 KiB");
    u32 base, numbers, barriers;
    APR_METHOD void place(u32 from) {
        base = (from + 1023) & ~1023u;
        numbers = base + (MATRICES * GROUPS + 2 * SLOTS + GROUPS) * TILE;
        barriers = numbers + SLOTS * 512;
    }
    APR_METHOD u32 own(u32 matrix, u32 group) const { return base + (matrix * GROUPS + group) * TILE; }
    APR_METHOD u32 stage(u32 place) const { return base + (MATRICES * GROUPS + 2 * place) * TILE; }
    APR_METHOD u32 results(u32 group) const { return base + (MATRICES * GROUPS + 2 * SLOTS + group) * TILE; }
    APR_METHOD u32 stats(u32 place) const { return numbers + place * 512; }
    APR_METHOD u32 full(u32 place) const { return barriers + place * 8; }
    APR_METHOD u32 empty(u32 place) const { return barriers + (SLOTS + 1 + place) * 8; }
};

// own_lane is lane(), hidden from the compiler: addresses for the beginning and the end of an item are computed there,
// instead of before all items, for they would take registers that the products need.
APR_DEVICE u32 own_lane() {
    i32 l = lane();
    opaque(l);
    return l;
}

APR_DEVICE i32 up(i32 n, i32 d) { return (n + d - 1) / d; }

// tile_of returns the tile of a row, 0 of those before the first.
APR_DEVICE i32 tile_of(i32 row) { return row > 0 ? row / ROWS : 0; }

// Work of dq: items of 128 queries of a head. The last queries see most keys and come first; blocks take items in
// ascending and descending order by turns, so that their sums differ little.
struct Queries {
    i32 round, h, b, row, steps;
    i32 at; // first row of the step's tile
    APR_METHOD void begin(const AttentionBackwardArgs &) { round = 0; }
    APR_METHOD bool next(const AttentionBackwardArgs &args) {
        const Args &a = args.a;
        const i32 n = blocks(), i = round * n + (round & 1 ? n - 1 - (i32)block() : (i32)block());
        const i32 each = a.heads * a.batch, levels = up(a.q_len, OWN);
        if (i >= each * levels) return false;
        h = i % each % a.heads;
        b = i % each / a.heads;
        row = (levels - 1 - i / each) * OWN;
        round++;
        const i32 begin = LIMITED ? tile_of(a.q_offset + row - window_of(a) + 1) : 0;
        at = (begin - 1) * ROWS;
        steps = up((i32)min_of(a.k_len, a.q_offset + row + OWN), ROWS) - begin;
        return true;
    }
    APR_METHOD bool step(const AttentionArgs &) {
        at += ROWS;
        return steps-- > 0;
    }
    APR_METHOD i32 first() const { return row; } // query
};

// Work of dkv: for every key-value head of every batch row, tile of 128 keys, query head, and tile of queries that sees
// one of the keys (at least the last), a step, in this order. A block takes an equal share of all steps: pieces of one
// tile of keys each. A piece that is not a whole tile leaves its sums as a part.
struct Pieces {
    i32 left;             // steps of the share
    i32 line, tile, done; // of the piece: head and batch row, tile of keys, steps of them that are done
    i32 part, steps;      // the piece's place among the parts, or −1; its steps
    i32 low, h, at;       // of the step: first row of the head's first tile, head, first row
    i32 until;            // behind the rows of the head's last tile, where there are windows
    APR_METHOD static i32 lowest(const Args &a, i32 tile) {
        const i32 last = (a.q_len - 1) / ROWS, i = tile * OWN - a.q_offset;
        return i <= 0 ? 0 : i / ROWS < last ? i / ROWS : last;
    }
    // end is behind the last tile of queries that sees one of the keys, or the lowest.
    APR_METHOD static i32 end(const Args &a, i32 tile) {
        const i32 all = up(a.q_len, ROWS);
        if (!LIMITED) return all;
        const i32 last = (i32)min_of(a.q_len - 1, (i64)tile * OWN + OWN - 2 + window_of(a) - a.q_offset), low = lowest(a, tile);
        return tile_of(last) < low ? low + 1 : tile_of(last) + 1;
    }
    APR_METHOD static i32 length(const Args &a, i32 tile) { return a.heads / a.kv_heads * (end(a, tile) - lowest(a, tile)); }
    APR_METHOD static i32 start(const AttentionBackwardArgs &args, i32 chunk) { return (i32)((i64)args.line * args.a.batch * args.a.kv_heads * chunk / args.chunks); }
    // seek goes to the beginning of a share.
    APR_METHOD void seek(const AttentionBackwardArgs &args, i32 chunk) {
        const i32 from = start(args, chunk);
        left = start(args, chunk + 1) - from;
        line = from / args.line;
        done = from % args.line;
        for (tile = 0; done >= length(args.a, tile); tile++) done -= length(args.a, tile);
    }
    APR_METHOD void begin(const AttentionBackwardArgs &args) { seek(args, block()); }
    APR_METHOD bool next(const AttentionBackwardArgs &args) {
        if (left == 0) return false;
        const Args &a = args.a;
        i32 all = length(a, tile);
        if (done == all) {
            done = 0;
            if (++tile == up(a.k_len, OWN)) tile = 0, line++;
            all = length(a, tile);
        }
        steps = all - done < left ? all - done : left;
        part = steps == all ? -1 : 2 * (i32)block() + (done == 0);
        low = lowest(a, tile) * ROWS;
        const i32 each = end(a, tile) - lowest(a, tile);
        if (LIMITED) until = (i32)min_of(a.q_len, end(a, tile) * ROWS);
        h = g(a) * (a.heads / a.kv_heads) + done / each;
        at = low + (done % each - 1) * ROWS;
        left -= steps, done += steps;
        return true;
    }
    APR_METHOD bool step(const Args &a) {
        if (steps-- == 0) return false;
        at += ROWS;
        if (at >= (LIMITED ? until : a.q_len)) at = low, h++;
        return true;
    }
    APR_METHOD i32 g(const Args &a) const { return line % a.kv_heads; }
    APR_METHOD i32 b(const Args &a) const { return line / a.kv_heads; }
    APR_METHOD i32 first() const { return tile * OWN; } // key
};

// ---- Fetching.

// Fetcher is a thread of the warpgroup that fetches. A place is announced when the next is on its way.
template <int D, class M> struct Fetcher {
    static constexpr int CHUNKS = D / 8, STEP = WARPGROUP / CHUNKS; // rows at a time; a multiple of 8
    M m;
    i32 r, c; // the thread's first row and chunk of a tile
    u32 pending; // barrier of the place that is on its way, or 0

    template <int N> APR_METHOD void announce() {
        copy_async_wait<N>();
        publish();
        sync_warp();
        if (lane() == 0) barrier_arrive(pending);
        pending = 0;
    }
    APR_METHOD void begin(const Places &p) {
        if (ballot(!barrier_ready(m.empty(p.at), p.parity ^ 1))) {
            if (pending) announce<0>();
            barrier_wait(m.empty(p.at), p.parity ^ 1);
        }
    }
    // tiles fetches the tiles of N·64 rows of a head from `first` on; those from `rows` on become zero.
    template <int N> APR_METHOD void tiles(u32 to, const bf16 *head, i32 stride, i32 first, i32 rows) {
        const bf16 *from = head + (i64)(first + r) * stride + c * 8;
        const i32 left = rows - first - r;
        to += c / 8 * PANEL + r * 128 + ((c % 8 ^ r % 8) << 4);
        UNROLL for (int n = 0; n < N * ROWS; n += STEP, from += (i64)STEP * stride)
            fetch16(to + n / ROWS * M::TILE + n % ROWS * 128, from, n < left);
    }
    APR_METHOD void end(const Places &p) {
        copy_async_commit();
        if (pending) announce<1>();
        pending = m.full(p.at);
    }
};

template <int D, int SLOTS> APR_DEVICE void fetch_all(const AttentionBackwardArgs &args, const Memory<D, false, SLOTS> &m) {
    typedef Memory<D, false, SLOTS> M;
    typedef Fetcher<D, M> F;
    const Args &a = args.a;
    F f = {m, (i32)thread() / F::CHUNKS, (i32)thread() % F::CHUNKS, 0};
    Places own = {M::OWNED, 0}, ring = {0, 0};
    Queries w;
    for (w.begin(args); w.next(args);) {
        const i32 g = w.h / (a.heads / a.kv_heads), i = w.row + (i32)thread();
        f.begin(own);
        f.template tiles<GROUPS>(m.own(0, 0), head_rows<bf16>(a.q, a.q_stride, w.b, a.q_len, w.h, D), a.q_stride, w.row, a.q_len);
        f.template tiles<GROUPS>(m.own(1, 0), head_rows<bf16>(a.dout, a.dout_stride, w.b, a.q_len, w.h, D), a.dout_stride, w.row, a.q_len);
        f.template tiles<GROUPS>(m.own(2, 0), head_rows<bf16>(a.o, a.o_stride, w.b, a.q_len, w.h, D), a.o_stride, w.row, a.q_len);
        fetch4(m.stats(0) + 4 * thread(), a.lse + ((i64)w.b * a.q_len + i) * a.lse_stride + w.h, i < a.q_len);
        f.end(own);
        own.next(M::OWNED, 1);
        const bf16 *k = head_rows<bf16>(a.k, a.k_stride, w.b, a.k_rows, g, D), *v = head_rows<bf16>(a.v, a.v_stride, w.b, a.k_rows, g, D);
        while (w.step(a)) {
            f.begin(ring);
            f.template tiles<1>(m.stage(ring.at), k, a.k_stride, w.at, a.k_len);
            f.template tiles<1>(m.stage(ring.at) + M::TILE, v, a.v_stride, w.at, a.k_len);
            f.end(ring);
            ring.next(0, SLOTS);
        }
    }
    if (f.pending) f.template announce<0>();
}

template <int D, int SLOTS> APR_DEVICE void fetch_all(const AttentionBackwardArgs &args, const Memory<D, true, SLOTS> &m) {
    typedef Memory<D, true, SLOTS> M;
    typedef Fetcher<D, M> F;
    const Args &a = args.a;
    F f = {m, (i32)thread() / F::CHUNKS, (i32)thread() % F::CHUNKS, 0};
    Places own = {M::OWNED, 0}, ring = {0, 0};
    const i32 t = thread();
    Pieces w;
    for (w.begin(args); w.next(args);) {
        const i32 b = w.b(a), g = w.g(a);
        f.begin(own);
        f.template tiles<GROUPS>(m.own(0, 0), head_rows<bf16>(a.k, a.k_stride, b, a.k_rows, g, D), a.k_stride, w.first(), a.k_len);
        f.template tiles<GROUPS>(m.own(1, 0), head_rows<bf16>(a.v, a.v_stride, b, a.k_rows, g, D), a.v_stride, w.first(), a.k_len);
        f.end(own);
        own.next(M::OWNED, 1);
        while (w.step(a)) {
            f.begin(ring);
            f.template tiles<1>(m.stage(ring.at), head_rows<bf16>(a.q, a.q_stride, b, a.q_len, w.h, D), a.q_stride, w.at, a.q_len);
            f.template tiles<1>(m.stage(ring.at) + M::TILE, head_rows<bf16>(a.dout, a.dout_stride, b, a.q_len, w.h, D), a.dout_stride, w.at, a.q_len);
            if (t < 2 * ROWS / 4) // 4 numbers a thread: 64 of lse, 64 of −δ
                fetch16(m.stats(ring.at) + 16 * t, (t < ROWS / 4 ? a.row_lse : a.row_delta - ROWS) + ((i64)b * a.heads + w.h) * a.padded + w.at + 4 * t, true);
            f.end(ring);
            ring.next(0, SLOTS);
        }
    }
    if (f.pending) f.template announce<0>();
}

// ---- Computing.

// leave writes 16 rows of results, times f, from `first` on; they pass through the warp's part of a tile, `at`.
template <int D> APR_DEVICE void leave(bf16 *head, i32 stride, i32 first, i32 rows, const float (&o)[D / 2], float f, u32 at) {
    const u32 l = own_lane(), r = l & 15, half = l >> 4;
    sync_warp();
    UNROLL for (int j = 0; j < D / 8; j += 2) {
        u32 x[4];
        UNROLL for (int e = 0; e < 4; e++) x[e] = pack_bf16(o[j * 4 + 2 * e] * f, o[j * 4 + 2 * e + 1] * f);
        store_matrices(at + j / 8 * PANEL + r * 128 + (((j % 8 + half) ^ (r & 7)) << 4), x[0], x[1], x[2], x[3]);
    }
    sync_warp();
    constexpr int CHUNKS = D / 8, STEP = 32 / CHUNKS;
    const i32 c = l % CHUNKS;
    UNROLL for (int n = 0; n < 16; n += STEP) {
        const i32 q = n + l / CHUNKS;
        const u32x4 x = load_shared16(at + c / 8 * PANEL + q * 128 + ((c % 8 ^ q % 8) << 4));
        if (first + q < rows) store16(head + (i64)(first + q) * stride + c * 8, x);
    }
}

// leave_part writes 16 rows of sums, times f, from row `first` of a part on.
template <int D> APR_DEVICE void leave_part(float *part, i32 first, const float (&o)[D / 2], float f) {
    const u32 l = own_lane();
    float *to = part + (first + (i32)(l >> 2)) * D + (l & 3) * 2;
    UNROLL for (int i = 0; i < D / 2; i += 2) *(f32x2 *)(to + i / 2 % 2 * (8 * D) + i / 4 * 8) = f32x2{o[i] * f, o[i + 1] * f};
}

// Computer is a thread of a warpgroup that computes. KEEP: the own rows stay in registers; otherwise they are multiplied
// from shared memory. LEAN: only one of s and t exists while the last tile's products run. AHEAD: t begins with −δ.
template <int D, bool DKV, int SLOTS> struct Computer {
    typedef Memory<D, DKV, SLOTS> M;
    static constexpr bool KEEP = D == 64, LEAN = DKV && D == 128, AHEAD = DKV && !LEAN;
    static constexpr int OPERAND = KEEP ? D / 4 : 1;
    const AttentionBackwardArgs &args;
    const Args &a;
    M m;
    u32 group, w; // of the block, warp of the group
    Places ring, own;
    float s[32], t[32], first[D / 2], second[DKV ? D / 2 : 1]; // defined once, or the compiler would separate the instructions
    u32 p[16], g[16];            // left operands of the last tile's products
    u32 x[OPERAND], y[OPERAND];
    float lse[2], delta[2];      // dq: of the thread's two rows
    i32 low;                     // position of the group's first row
    i32 over;                    // how far the thread's first column lies after its first row; positive: hidden
    u32 now, before;             // stages of this tile and the last

    APR_METHOD void take(const Places &q) { barrier_wait(m.full(q.at), q.parity); }
    APR_METHOD void release(u32 place) {
        sync_warp();
        if (lane() == 0) barrier_arrive(m.empty(place));
    }
    APR_METHOD void take_turn() {
        if (args.turns) turn_take(group);
    }
    APR_METHOD void pass_turn() {
        if (args.turns) turn_pass(group ^ 1);
    }
    APR_METHOD u32 own_chunk(u32 matrix, u32 k, u32 l) const { // of lane l, for load_matrices of square k along the row
        const u32 r = w * 16 + (l & 15), c = 2 * k + (l >> 4);
        return m.own(matrix, group) + c / 8 * PANEL + r * 128 + ((c % 8 ^ r % 8) << 4);
    }

    // begin_queries takes queries and dO into registers, computes δ, and writes lse·log₂e and −δ for dkv, also of the rows
    // that pad the last tile: with lse = ∞ their probabilities are 0.
    APR_METHOD void begin_queries(const Queries &work) {
        float sum[2] = {0, 0};
        const u32 l = own_lane();
        UNROLL for (int k = 0; k < D / 16; k++) {
            u32 u[4], o[4];
            load_matrices(u, own_chunk(0, k, l));
            if constexpr (KEEP)
                UNROLL for (int i = 0; i < 4; i++) x[4 * k + i] = u[i];
            load_matrices(u, own_chunk(1, k, l));
            load_matrices(o, own_chunk(2, k, l));
            UNROLL for (int i = 0; i < 4; i++) {
                if constexpr (KEEP) y[4 * k + i] = u[i];
                sum[i % 2] = fma_rn(from_bits(u[i] << 16), from_bits(o[i] << 16), sum[i % 2]);
                sum[i % 2] = fma_rn(from_bits(u[i] & 0xffff0000u), from_bits(o[i] & 0xffff0000u), sum[i % 2]);
            }
        }
        UNROLL for (int e = 0; e < 2; e++) {
            const i32 r = group * ROWS + w * 16 + e * 8 + (i32)(l >> 2), i = work.row + r;
            sum[e] += shfl_xor(sum[e], 1);
            delta[e] = sum[e] + shfl_xor(sum[e], 2);
            const float kept = load_float(m.stats(0) + 4 * r) * LOG2E;
            lse[e] = i < a.q_len ? kept : INFINITY_F;
            if ((l & 3) == 0) {
                const i64 to = ((i64)work.b * a.heads + work.h) * a.padded + i;
                a.row_lse[to] = lse[e];
                a.row_delta[to] = -delta[e];
            }
        }
    }
    APR_METHOD void begin_keys() {
        if constexpr (KEEP) {
            const u32 l = own_lane();
            UNROLL for (int k = 0; k < D / 16; k++) {
                u32 u[4], v[4];
                load_matrices(u, own_chunk(0, k, l));
                load_matrices(v, own_chunk(1, k, l));
                UNROLL for (int i = 0; i < 4; i++) x[4 * k + i] = u[i], y[4 * k + i] = v[i];
            }
        }
    }

    // advance goes to the next tile of which the group's rows see something; others it only releases.
    template <class W> APR_METHOD bool advance(W &work) {
        while (work.step(a)) {
            now = ring.at;
            take(ring);
            ring.next(0, SLOTS);
            const i32 gap = DKV ? low - (a.q_offset + work.at) : work.at - low; // how far the tile lies after what sees it
            if (gap < ROWS && (!LIMITED || (i64)gap + ROWS - 1 + window_of(a) > 0)) {
                const i32 l = lane(), row = w * 16 + (l >> 2), col = (l & 3) * 2;
                over = gap + (DKV ? row - col : col - row);
                return true;
            }
            take_turn();
            pass_turn();
            release(now);
        }
        return false;
    }

    // forget ends what the registers hold, which a product would otherwise seem to read.
    APR_METHOD void forget(float (&r)[32]) {
        UNROLL for (int i = 0; i < 32; i++) r[i] = 0;
    }
    // less is where the thread's columns begin in this tile's lse, and 256 bytes later in −δ.
    APR_METHOD i32 less() const {
        i32 at = m.stats(now) + (lane() & 3) * 8;
        opaque(at);
        return at;
    }
    APR_METHOD void define_t() {
        if constexpr (LEAN) forget(t);
        if constexpr (AHEAD) {
            const i32 at = less() + 4 * ROWS;
            UNROLL for (int i = 0; i < 32; i += 2) {
                const f32x2 x = load_floats(at + i / 4 * 32);
                t[i] = x[0], t[i + 1] = x[1];
            }
        }
    }
    APR_METHOD void start_s() {
        if constexpr (KEEP) start_scores<0>(s, x, operand(m.stage(now)));
        else start_scores<0>(s, operand(m.own(0, group)), operand(m.stage(now)));
    }
    APR_METHOD void start_t() {
        if constexpr (KEEP) start_scores<AHEAD>(t, y, operand(m.stage(now) + M::TILE));
        else start_scores<AHEAD>(t, operand(m.own(1, group)), operand(m.stage(now) + M::TILE));
    }
    APR_METHOD void start_sums() {
        start_outputs(first, g, operand(m.stage(before)));
        if constexpr (DKV) start_outputs(second, p, operand(m.stage(before) + M::TILE));
    }
    APR_METHOD void wait_sums() {
        wait_products<0>(first);
        if constexpr (DKV) wait_products<0>(second);
    }

    // raise makes s p. The rows are queries for dq, keys for dkv.
    APR_METHOD void raise() {
        if (ballot(over + (DKV ? 8 : 57) > 0))
            UNROLL for (int i = 0; i < 32; i++) {
                const int row = i / 2 % 2 * 8, col = i / 4 * 8 + i % 2;
                if (over + (DKV ? row - col : col - row) > 0) s[i] = -INFINITY_F;
            }
        if (LIMITED && ballot(over - (DKV ? 57 : 8) <= -window_of(a)))
            UNROLL for (int i = 0; i < 32; i++) {
                const int row = i / 2 % 2 * 8, col = i / 4 * 8 + i % 2;
                if (over + (DKV ? row - col : col - row) <= -window_of(a)) s[i] = -INFINITY_F;
            }
        const i32 at = DKV ? less() : 0;
        UNROLL for (int n = 0; n < 8; n++) {
            f32x2 x = {0, 0};
            if constexpr (DKV) x = load_floats(at + n * 32);
            UNROLL for (int e = 0; e < 4; e++) s[4 * n + e] = exp2_approx(fma_rn(s[4 * n + e], a.log2_scale, -(DKV ? x[e % 2] : lse[e / 2])));
        }
    }
    // gradients makes t g.
    APR_METHOD void gradients() {
        const i32 at = LEAN ? less() + 4 * ROWS : 0;
        UNROLL for (int n = 0; n < 8; n++) {
            f32x2 x = {0, 0};
            if constexpr (LEAN) x = load_floats(at + n * 32);
            UNROLL for (int e = 0; e < 4; e++) t[4 * n + e] = s[4 * n + e] * (AHEAD ? t[4 * n + e] : t[4 * n + e] + (LEAN ? x[e % 2] : -delta[e / 2]));
        }
    }
    APR_METHOD u32 any(const float (&x)[32]) const {
        u32 all = 0;
        UNROLL for (int i = 0; i < 32; i++) all |= bits(x[i]);
        return all;
    }
    APR_METHOD void round_p() {
        if constexpr (DKV)
            UNROLL for (int i = 0; i < 16; i++) p[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
    }
    APR_METHOD void round_g() {
        UNROLL for (int i = 0; i < 16; i++) g[i] = pack_bf16(t[2 * i], t[2 * i + 1]);
    }

    APR_METHOD void begin() {
        define_t();
        take_turn();
        if constexpr (LEAN) forget(s);
        start_s();
        start_t();
        pass_turn();
        wait_products<1>(s);
        raise();
        wait_products<0>(t);
        gradients();
        round_p();
        round_g();
        before = now;
    }
    APR_METHOD void step() {
        if constexpr (!LEAN) define_t();
        take_turn();
        if constexpr (LEAN) forget(s);
        start_s();
        if constexpr (!LEAN) start_t();
        start_sums();
        pass_turn();
        if constexpr (!LEAN) {
            wait_products<DKV ? 3 : 2>(s);
            raise();
            const u32 raised = any(s);
            keep_before(raised, m.barriers);
            wait_products<DKV ? 2 : 1>(t);
            gradients();
            keep_before(any(t) & raised, m.barriers);
            wait_sums();
            release(before);
            round_p();
        } else {
            wait_products<0>(s);
            wait_sums();
            release(before);
            define_t();
            start_t();
            raise();
            wait_products<0>(t);
            gradients();
            round_p();
        }
        round_g();
        before = now;
    }
    APR_METHOD void finish() {
        start_sums();
        wait_sums();
        release(before);
    }
    APR_METHOD void clear() {
        UNROLL for (int i = 0; i < D / 2; i++) {
            first[i] = 0;
            if constexpr (DKV) second[i] = 0;
        }
    }

    APR_METHOD void end(const Queries &work) {
        leave<D>(head_rows<bf16>(a.dq, a.dq_stride, work.b, a.q_len, work.h, D), a.dq_stride, work.row + group * ROWS + w * 16, a.q_len,
            first, a.scale, m.results(group) + w * (16 * 128));
    }
    APR_METHOD void end(const Pieces &work) {
        const i32 row = group * ROWS + w * 16;
        if (work.part < 0) {
            const u32 at = m.results(group) + w * (16 * 128);
            leave<D>(head_rows<bf16>(a.dk, a.dk_stride, work.b(a), a.k_rows, work.g(a), D), a.dk_stride, work.first() + row, a.k_len, first, a.scale, at);
            if constexpr (DKV)
                leave<D>(head_rows<bf16>(a.dv, a.dv_stride, work.b(a), a.k_rows, work.g(a), D), a.dv_stride, work.first() + row, a.k_len, second, 1.0f, at);
            return;
        }
        float *part = a.part + (i64)work.part * (2 * OWN * D);
        leave_part<D>(part, row, first, a.scale);
        if constexpr (DKV) leave_part<D>(part + OWN * D, row, second, 1.0f);
    }

    template <class W> APR_METHOD void all(W &work) {
        if (group == GROUPS - 1) pass_turn();
        for (work.begin(args); work.next(args);) {
            low = (DKV ? 0 : a.q_offset) + work.first() + group * ROWS;
            take(own);
            if constexpr (DKV) begin_keys();
            else begin_queries(work);
            if constexpr (KEEP) release(M::OWNED);
            clear();
            if (advance(work)) {
                begin();
                while (advance(work)) step();
                finish();
            }
            if constexpr (!KEEP) release(M::OWNED);
            own.next(M::OWNED, 1);
            end(work);
        }
    }
};

// Grid: for dq as many blocks as run at once, for dkv as many as there are chunks. Shared: Memory::BYTES. Registers of
// the block's threads: 232 for those that compute, 40 for those that fetch.
template <int D, bool DKV, int SLOTS, class W> APR_DEVICE void attention_backward(const AttentionBackwardArgs &args, u32 base) {
    Memory<D, DKV, SLOTS> m;
    m.place(base);
    if (thread() == 0) {
        for (u32 i = 0; i <= SLOTS; i++) {
            barrier_init(m.full(i), FETCHERS);
            barrier_init(m.empty(i), 4 * GROUPS); // every warp that computes reads every place
        }
    }
    sync_block();
    if (thread() < WARPGROUP) {
        shrink_registers<40>();
        fetch_all<D, SLOTS>(args, m);
    } else {
        grow_registers<232>();
        Computer<D, DKV, SLOTS> c = {args, args.a, m, thread() / WARPGROUP - 1, warp() & 3, {0, 0}, {SLOTS, 0}};
        W work;
        c.all(work);
    }
}

// Grid: (chunks−1, 2, 128·D/8 pieces of 8 columns): the block of a chunk's beginning inside a tile, the first there, adds
// the tile's parts in ascending order of the chunk. y: dk or dv.
template <int D> APR_DEVICE void attention_backward_sum(const AttentionBackwardArgs &args) {
    const Args &a = args.a;
    const i32 chunk = (i32)block() + 1, which = block_y(), piece = block_z() * threads() + thread(), key = piece / (D / 8), c = piece % (D / 8) * 8;
    Pieces at;
    at.seek(args, chunk);
    const i32 begin = Pieces::start(args, chunk) - at.done, end = begin + Pieces::length(a, at.tile);
    const i32 row = at.first() + key;
    if (at.done == 0 || Pieces::start(args, chunk - 1) > begin || row >= a.k_len) return;
    const float *part = a.part + ((i64)(2 * (chunk - 1) + 1) * 2 + which) * (OWN * D) + key * D + c;
    f32x4 x = *(const f32x4 *)part, y = *(const f32x4 *)(part + 4);
    for (i32 i = chunk; i < args.chunks && Pieces::start(args, i) < end; i++) {
        part = a.part + ((i64)(2 * i) * 2 + which) * (OWN * D) + key * D + c;
        x += *(const f32x4 *)part, y += *(const f32x4 *)(part + 4);
    }
    const i32 stride = which ? a.dv_stride : a.dk_stride;
    store16(head_rows<bf16>(which ? a.dv : a.dk, stride, at.b(a), a.k_rows, at.g(a), D) + (i64)row * stride + c,
        u32x4{pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(y[0], y[1]), pack_bf16(y[2], y[3])});
}
