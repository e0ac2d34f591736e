// The product under a gated layer's activation on compute capability 9.0, for operands of bfloat16 and of e4m3.
//
// A cluster of two blocks computes 256 rows of m by 128 columns: each block 128 rows, of which each of two warpgroups
// takes 64 with both halves of the product in its registers, so that gate and up of one element meet in one thread. A
// third warpgroup only fetches: per 128 bytes of the inner dimension the block's own rows of x, and of W the gate rows
// (first block) or the up rows (second block), which the tensor memory unit writes to both blocks. Stages of 48 KiB run
// ahead, across tiles, too; a block takes tile after tile. Results leave through shared memory in pieces of 64 columns,
// 8 KiB each, while the next tile is multiplied.
//
// Who includes this says what the operands are:
//     INNER                inner positions of 128 bytes
//     WGMMA(a, b, more)    the instruction that multiplies 64 rows by 256 columns and 32 bytes of the inner dimension
// Act is the activation, of glu.cuh.
#pragma once
#include "glu.cuh"

#define ROWS 128               // of x and m, a block
#define COLUMNS 128            // of m, a cluster
#define PART (128 * 128)       // bytes of a stage's x, gate and up each
#define STAGE (3 * PART)
#define PIECE (64 * 64 * 2) // bytes of a piece of results
#define FETCHERS 128        // threads of the warpgroup that fetches, the first

// ARGUMENT(name) is the address of kernel `name`'s argument, where the tensor memory unit reads the tensor maps itself.
#define ARGUMENT(name, p) asm("{ .reg .b64 t; mov.b64 t, " #name "_param_0; cvta.param.u64 %0, t; }" : "=l"(p))

APR_DEVICE u32 cluster_rank() { u32 r; asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r)); return r; }
APR_DEVICE void sync_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" : : : "memory");
}
// Barriers of `threads` threads that all wait, or of which some only signal. Barrier 0 is the block's.
APR_DEVICE void sync_some(u32 id, u32 threads) { asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(threads) : "memory"); }
APR_DEVICE void signal_some(u32 id, u32 threads) { asm volatile("bar.arrive %0, %1;" : : "r"(id), "r"(threads) : "memory"); }

// Barriers in shared memory, by address.
APR_DEVICE void barrier_init(u32 at, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(at), "r"(count) : "memory"); }
APR_DEVICE void barrier_expect(u32 at, u32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" : : "r"(at), "r"(bytes) : "memory");
}
// barrier_signal arrives at the barrier of the same address in block `rank` of the cluster.
APR_DEVICE void barrier_signal(u32 at, u32 rank) {
    asm volatile("{ .reg .b32 t; mapa.shared::cluster.u32 t, %0, %1; mbarrier.arrive.shared::cluster.b64 _, [t]; }"
        : : "r"(at), "r"(rank) : "memory");
}
APR_DEVICE void barrier_wait(u32 at, u32 parity) {
    asm volatile("{ .reg .pred p;\nWAIT_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE_%=;\nbra WAIT_%=;\nDONE_%=: }"
        : : "r"(at), "r"(parity) : "memory");
}

// Boxes between global and shared memory.
APR_DEVICE void fetch_box(u32 to, u64 map, i32 col, i32 row, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2,%3}], [%4];"
        : : "r"(to), "l"(map), "r"(col), "r"(row), "r"(barrier) : "memory");
}
APR_DEVICE void fetch_box_both(u32 to, u64 map, i32 col, i32 row, u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%2,%3}], [%4], %5;"
        : : "r"(to), "l"(map), "r"(col), "r"(row), "r"(barrier), "h"((u16)3) : "memory");
}
APR_DEVICE void store_box(u64 map, i32 col, i32 row, u32 from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1,%2}], [%3];\ncp.async.bulk.commit_group;"
        : : "l"(map), "r"(col), "r"(row), "r"(from) : "memory");
}
// store_wait<N> waits until all boxes that this thread stored but the last N have been read from shared memory.
template <int N> APR_DEVICE void store_wait() { asm volatile("cp.async.bulk.wait_group.read %0;" : : "n"(N) : "memory"); }

// The sums of 64 rows and 256 columns, and what is between the braces of WGMMA.
#define SUMS \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63," \
    "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
    "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
    "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111," \
    "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define STEP(n, more) WGMMA("a" #n, "b" #n, more)
#define FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)
#define ALL_SUMS SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48), SIXTEEN(64), SIXTEEN(80), SIXTEEN(96), SIXTEEN(112)

// multiply computes d (+)= x·wᵀ for a stage: four instructions. Rows of both operands are 128 bytes in the pattern of the
// tensor maps.
APR_DEVICE void multiply(float (&d)[128], u64 x, u64 w, u32 more) {
    asm volatile(
        "{ .reg .pred p, q; .reg .b64 a0, a1, a2, a3, b0, b1, b2, b3;\n"
        "setp.ne.b32 p, %130, 0; setp.eq.b32 q, 0, 0;\n"
        "mov.b64 a0, %128; add.s64 a1, a0, 2; add.s64 a2, a0, 4; add.s64 a3, a0, 6;\n"
        "mov.b64 b0, %129; add.s64 b1, b0, 2; add.s64 b2, b0, 4; add.s64 b3, b0, 6;\n"
        "wgmma.fence.sync.aligned;\n" STEP(0, "p") STEP(1, "q") STEP(2, "q") STEP(3, "q")
        "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0; }"
        : ALL_SUMS : "l"(x), "l"(w), "r"(more) : "memory");
}
// multiply in two halves, so that the tensor cores do not wait between stages: begin starts the first instruction and
// waits until all of the stage before have ended, rest starts the others, finish waits for those of the last stage.
APR_DEVICE void multiply_begin(float (&d)[128], u64 x, u64 w, u32 more) {
    asm volatile(
        "{ .reg .pred p; setp.ne.b32 p, %130, 0;\n"
        "wgmma.fence.sync.aligned;\n" WGMMA("%128", "%129", "p") "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 1; }"
        : ALL_SUMS : "l"(x), "l"(w), "r"(more) : "memory");
}
APR_DEVICE void multiply_rest(float (&d)[128], u64 x, u64 w) {
    asm volatile(
        "{ .reg .pred q; .reg .b64 a1, a2, a3, b1, b2, b3; setp.eq.b32 q, 0, 0;\n"
        "add.s64 a1, %128, 2; add.s64 a2, %128, 4; add.s64 a3, %128, 6;\n"
        "add.s64 b1, %129, 2; add.s64 b2, %129, 4; add.s64 b3, %129, 6;\n"
        "wgmma.fence.sync.aligned;\n" STEP(1, "q") STEP(2, "q") STEP(3, "q") "wgmma.commit_group.sync.aligned; }"
        : ALL_SUMS : "l"(x), "l"(w) : "memory");
}
APR_DEVICE void multiply_finish(float (&d)[128]) { asm volatile("wgmma.wait_group.sync.aligned 0;" : ALL_SUMS : : "memory"); }
// operand describes rows of 128 bytes in shared memory: address, 1024 bytes from eight rows to the next, 128-byte pattern.
APR_DEVICE u64 operand(u32 at) { return (u64)(at >> 4 & 0x3fff) | (u64)1 << 16 | (u64)64 << 32 | (u64)1 << 62; }

APR_DEVICE void store_matrices(u32 at, const u32 (&v)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" : : "r"(at), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

APR_DEVICE void store_shared(u32 at, float v) { asm volatile("st.shared.f32 [%0], %1;" : : "r"(at), "f"(v) : "memory"); }
APR_DEVICE f32x2 load_shared(u32 at) {
    float x, y;
    asm volatile("ld.shared.v2.f32 {%0,%1}, [%2];" : "=f"(x), "=f"(y) : "r"(at) : "memory");
    return f32x2{x, y};
}

// Walk is the sequence of a cluster's tiles.
struct Walk {
    i32 high, wide, group, tile, row, col;
    APR_METHOD bool next(i32 rank) { // whether there is another; its place is row and col of m
        if (tile >= high * wide) return false;
        const i32 first = tile / (group * wide) * group, rest = tile - first * wide;
        const i32 rows = high - first < group ? high - first : group;
        row = (first + rest % rows) * (2 * ROWS) + rank * ROWS;
        col = rest / rows * COLUMNS;
        tile += (i32)blocks() / 2;
        return true;
    }
};

// The results of a product: what is stored of it, and the product of its gate.
enum Result { GATE, UP, GATED };
// pair returns results i and i+1 of a thread's sums, in bfloat16. GATED is of GATE and UP as they are stored.
template <Result WHAT, class Act> APR_DEVICE u32 pair(const float (&d)[128], int i) {
    if (WHAT == GATE) return pack_bf16(d[i], d[i + 1]);
    if (WHAT == UP) return pack_bf16(d[64 + i], d[65 + i]);
    const u32 g = pair<GATE, Act>(d, i), u = pair<UP, Act>(d, i);
    return pack_bf16(Act::template gated<bf16>(from_bits(g << 16), from_bits(u << 16)),
        Act::template gated<bf16>(from_bits(g & 0xffff0000u), from_bits(u & 0xffff0000u)));
}

// Staging is a warpgroup's ring of N pieces of results on their way to global memory.
template <int N> struct Staging {
    u32 at, id, slot; // address, barrier of the warpgroup, next piece
    // drain waits until all pieces have left.
    APR_METHOD void drain() {
        if ((thread() & 127) == 0) store_wait<0>();
        sync_some(id, 128);
    }
    // leave starts 64 columns of results, from half·64 on, on their way to (col, row) of a tensor map. The slot is free:
    // the thread that stores waited for that before the last barrier, or with two pieces in drain.
    template <Result WHAT, class Act> APR_METHOD void leave(const float (&d)[128], int half, u64 map, i32 row, i32 col) {
        const u32 l = lane(), r = (warp() & 3) * 16 + (l & 15), piece = at + slot * PIECE;
        const bool first = (thread() & 127) == 0;
        UNROLL for (int j = 0; j < 8; j += 2) {
            u32 v[4];
            UNROLL for (int e = 0; e < 4; e++) v[e] = pair<WHAT, Act>(d, (half * 8 + j + e / 2) * 4 + e % 2 * 2);
            store_matrices(piece + r * 128 + (((j + (l >> 4)) ^ (r & 7)) << 4), v);
        }
        asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
        if (N > 2 && first) store_wait<N - 2>();
        sync_some(id, 128);
        if (first) store_box(map, col + half * 64, row, piece);
        slot = slot + 1 == N ? 0 : slot + 1;
    }
};

// NoScales is what the sums of bfloat16 are multiplied by. E4M3 has others.
struct NoScales {
    static constexpr bool SPLIT = false; // whether stages are multiplied in two halves
    template <class A> APR_METHOD void load(const A &, i32, i32) {}
    template <class S> APR_METHOD void apply(float (&)[128], const S &) {}
};

// steps_of returns how many stages the inner dimension has, with LOW those of a low-rank term too.
template <bool LOW, class A> APR_DEVICE i32 steps_of(const A &a) {
    if constexpr (LOW) return (a.k + INNER - 1) / INNER + (a.low + INNER - 1) / INNER;
    else return (a.k + INNER - 1) / INNER;
}

// LOW adds a low-rank term: behind the inner dimension of x and w comes that of thin and factor, of a.low positions.
template <class Scales, bool KEEP, class Act = SiLU, bool LOW = false, class A> APR_DEVICE void gemm_swiglu(const A &a, u64 maps) {
    const int STAGES = KEEP ? 3 : 4, PIECES = KEEP ? 5 : 2; // what fits
    const u32 memory = (shared_address(apr_dynamic_shared) + 1023) & ~1023u;
    const u32 staging = memory + STAGES * STAGE, full = staging + 2 * PIECES * PIECE, empty = full + STAGES * 8;
    const u32 rank = cluster_rank();
    const i32 steps = steps_of<LOW>(a);
    if (thread() == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, 4); // two warpgroups of two blocks have read the stage
        }
        asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
    }
    sync_cluster();
    Walk walk = {(a.rows + 2 * ROWS - 1) / (2 * ROWS), (a.f + COLUMNS - 1) / COLUMNS, a.group, (i32)block() / 2, 0, 0};
    u32 stage = 0, phase = 0;
    if (thread() < FETCHERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (thread() == 0) {
            while (walk.next(rank)) {
                const i32 row = walk.col + (rank ? a.f : 0);
                for (i32 t = 0; t < steps; t++) {
                    const u32 at = memory + stage * STAGE, ready = full + stage * 8;
                    barrier_wait(empty + stage * 8, phase ^ 1);
                    barrier_expect(ready, STAGE);
                    if constexpr (LOW) {
                        const i32 beyond = t - steps_of<false>(a);
                        if (beyond >= 0) {
                            fetch_box(at, maps + 640, beyond * INNER, walk.row, ready);
                            fetch_box_both(at + PART + rank * PART, maps + 768, beyond * INNER, row, ready);
                            if (++stage == STAGES) stage = 0, phase ^= 1;
                            continue;
                        }
                    }
                    fetch_box(at, maps, t * INNER, walk.row, ready);
                    fetch_box_both(at + PART + rank * PART, maps + 128, t * INNER, row, ready);
                    if (++stage == STAGES) stage = 0, phase ^= 1;
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const u32 group = thread() / 128 - 1, peer = thread() & 1;
        const bool signals = (thread() & 127) < 2;
        Staging<PIECES> out = {staging + group * (PIECES * PIECE), 1 + group, 0};
        i32 lead = a.lead < steps ? a.lead : steps; // at most STAGES: more do not come before the second warpgroup reads
        if (group == 1 && lead > 0) sync_some(3, 256);
        float d[128] = {}; // defined once, or the compiler would separate the instructions
        Scales scales;
        while (walk.next(rank)) {
            u32 before = 0; // the stage that the instructions of the last one still read
            scales.load(a, walk.row + group * 64, walk.col);
            for (i32 t = 0; t < steps; t++) {
                const u32 at = memory + stage * STAGE;
                const u64 x = operand(at + group * (PART / 2)), w = operand(at + PART);
                barrier_wait(full + stage * 8, phase);
                if (Scales::SPLIT) {
                    multiply_begin(d, x, w, t);
                    if (signals && t) barrier_signal(empty + before * 8, peer);
                    multiply_rest(d, x, w);
                    before = stage;
                } else {
                    multiply(d, x, w, t);
                    if (signals) barrier_signal(empty + stage * 8, peer);
                }
                if (++stage == STAGES) stage = 0, phase ^= 1;
                if (--lead == 0 && group == 0) signal_some(3, 256);
            }
            if (Scales::SPLIT) {
                multiply_finish(d);
                if (signals) barrier_signal(empty + before * 8, peer);
            }
            if (PIECES == 2) out.drain(); // the last tile's: there is no waiting
            scales.apply(d, out);
            UNROLL for (int half = 0; half < 2; half++) {
                const i32 row = walk.row + group * 64;
                if (KEEP) {
                    out.template leave<GATE, Act>(d, half, maps + 384, row, walk.col);
                    out.template leave<UP, Act>(d, half, maps + 512, row, walk.col);
                }
                out.template leave<GATED, Act>(d, half, maps + 256, row, walk.col);
            }
        }
        if ((thread() & 127) == 0) asm volatile("cp.async.bulk.wait_group 0;" : : : "memory");
    }
    sync_cluster(); // no block ends while the other may signal to it or write there
}
