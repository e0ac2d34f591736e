// The product under a gated layer's activation on compute capability 9.0. See gemm_swiglu_sm90.go.
//
// A cluster of two blocks computes 256 rows of m by 128 columns: each block 128 rows, of which each of two warpgroups
// takes 64 with both halves of the product in its registers, so that gate and up of one element meet in one thread. A
// third warpgroup only fetches: per 64 inner positions the block's own rows of x, and of W the gate rows (first block)
// or the up rows (second block), which the tensor memory unit writes to both blocks. Stages of 48 KiB run ahead, across
// tiles, too; a block takes tile after tile. Results leave through shared memory in pieces of 64 columns, 8 KiB each,
// while the next tile is multiplied.
#include "gemm_sm90.cuh"
#include "swiglu.cuh"

#define ROWS 128               // of x and m, a block
#define COLUMNS 128            // of m, a cluster
#define INNER 64               // inner positions of a stage
#define PART (128 * INNER * 2) // bytes of a stage's x, gate and up each
#define STAGE (3 * PART)
#define PIECE (64 * 64 * 2) // bytes of a piece of results
#define FETCHERS 128        // threads of the warpgroup that fetches, the first

struct __attribute__((aligned(64))) GemmSwigluArgs {
    u8 x[128], w[128], m[128], g[128], u[128]; // tensor maps; g and u with keep only
    i32 rows, f, k;
    i32 group; // row tiles that are walked column by column
    i32 lead;  // stages that the first warpgroup is ahead of the second, so that one multiplies while one writes
};

// The results of a product: what is stored of it, and the product of its gate.
enum Result { GATE, UP, GATED };
// pair returns results i and i+1 of a thread's sums, in bfloat16. GATED is of GATE and UP as they are stored.
template <Result WHAT> APR_DEVICE u32 pair(const float (&d)[128], int i) {
    if (WHAT == GATE) return pack_bf16(d[i], d[i + 1]);
    if (WHAT == UP) return pack_bf16(d[64 + i], d[65 + i]);
    const u32 g = pair<GATE>(d, i), u = pair<UP>(d, i);
    return pack_bf16(gated<bf16>(from_bits(g << 16), from_bits(u << 16)),
        gated<bf16>(from_bits(g & 0xffff0000u), from_bits(u & 0xffff0000u)));
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
    template <Result WHAT> APR_METHOD void leave(const float (&d)[128], int half, u64 map, i32 row, i32 col) {
        const u32 l = lane(), r = (warp() & 3) * 16 + (l & 15), piece = at + slot * PIECE;
        const bool first = (thread() & 127) == 0;
        UNROLL for (int j = 0; j < 8; j += 2) {
            u32 v[4];
            UNROLL for (int e = 0; e < 4; e++) v[e] = pair<WHAT>(d, (half * 8 + j + e / 2) * 4 + e % 2 * 2);
            store_matrices(piece + r * 128 + (((j + (l >> 4)) ^ (r & 7)) << 4), v);
        }
        asm volatile("fence.proxy.async.shared::cta;" : : : "memory");
        if (N > 2 && first) store_wait<N - 2>();
        sync_some(id, 128);
        if (first) store_box(map, col + half * 64, row, piece);
        slot = slot + 1 == N ? 0 : slot + 1;
    }
};

template <bool KEEP> APR_DEVICE void gemm_swiglu(const GemmSwigluArgs &a, u64 maps) {
    const int STAGES = KEEP ? 3 : 4, PIECES = KEEP ? 5 : 2; // what fits
    const u32 memory = (shared_address(apr_dynamic_shared) + 1023) & ~1023u;
    const u32 staging = memory + STAGES * STAGE, full = staging + 2 * PIECES * PIECE, empty = full + STAGES * 8;
    const u32 rank = cluster_rank();
    const i32 steps = (a.k + INNER - 1) / INNER;
    if (thread() == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, 4); // two warpgroups of two blocks have read the stage
        }
        asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
    }
    sync_cluster();
    Walk<ROWS, COLUMNS> walk = {(a.rows + 2 * ROWS - 1) / (2 * ROWS), (a.f + COLUMNS - 1) / COLUMNS, a.group, (i32)block() / 2, 0, 0};
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
        while (walk.next(rank)) {
            for (i32 t = 0; t < steps; t++) {
                const u32 at = memory + stage * STAGE;
                barrier_wait(full + stage * 8, phase);
                multiply(d, operand(at + group * (PART / 2)), operand(at + PART), t);
                if (signals) barrier_signal(empty + stage * 8, peer);
                if (++stage == STAGES) stage = 0, phase ^= 1;
                if (--lead == 0 && group == 0) signal_some(3, 256);
            }
            if (PIECES == 2) out.drain(); // the last tile's: there is no waiting
            UNROLL for (int half = 0; half < 2; half++) {
                const i32 row = walk.row + group * 64;
                if (KEEP) {
                    out.template leave<GATE>(d, half, maps + 384, row, walk.col);
                    out.template leave<UP>(d, half, maps + 512, row, walk.col);
                }
                out.template leave<GATED>(d, half, maps + 256, row, walk.col);
            }
        }
        if ((thread() & 127) == 0) asm volatile("cp.async.bulk.wait_group 0;" : : : "memory");
    }
    sync_cluster(); // no block ends while the other may signal to it or write there
}

KERNEL(gemm_swiglu, GemmSwigluArgs, 384, 1) {
    u64 maps;
    ARGUMENT(gemm_swiglu, maps);
    gemm_swiglu<false>(a, maps);
}
KERNEL(gemm_swiglu_keep, GemmSwigluArgs, 384, 1) {
    u64 maps;
    ARGUMENT(gemm_swiglu_keep, maps);
    gemm_swiglu<true>(a, maps);
}
