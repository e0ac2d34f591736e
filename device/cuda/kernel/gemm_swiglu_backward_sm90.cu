// The product under a gated layer's gradient, and that gradient, on compute capability 9.0. See
// gemm_swiglu_backward_sm90.go.
//
// A cluster of two blocks takes 256 rows by 256 columns of dprod after the other, each block 128 rows. Of a block's three
// warpgroups two multiply, 64 rows each, and leave dprod in shared memory, rounded. Of the first one, a warp only fetches:
// per 64 inner positions the block's own rows of dy, and half of the columns of W, which the tensor memory unit writes to
// both blocks. Its other three warps, while the next tile is multiplied, read dprod there and gate and up from global
// memory, where they write the gradients. What they read next is on its way before: eleven rows for each warp, across
// tiles, too. Of the last tile those who multiplied take three rows in four.
#include "gemm_sm90.cuh"
#include "swiglu.cuh"

#define ROWS 128               // of dprod, a block
#define COLUMNS 256            // of dprod, a cluster
#define INNER 64               // inner positions of a stage
#define LEFT (ROWS * INNER * 2) // bytes of a stage's dy
#define PANEL (INNER * 64 * 2) // bytes of 64 columns of a stage's W: a row is one inner position
#define STAGE (LEFT + COLUMNS / 64 * PANEL)
#define STAGES 3
#define PIECE (64 * 64 * 2)          // bytes of 64 rows and columns of dprod
#define HALF (COLUMNS / 64 * PIECE)  // what a warpgroup leaves of it
#define READERS 3           // warps that turn dprod into gradients
#define AHEAD 11            // rows that each reads ahead: 2·READERS·AHEAD are at least 64
#define SHARE 16            // rows of 64 that are theirs in the last tile
#define OTHERS 12           // rows of the last tile of each warp that multiplied

// Barriers between a warpgroup that multiplies, 0 or 1, and those who read what it leaves.
#define FREE(group) (1 + (group)) // it has been read
#define FULL(group) (3 + (group)) // it is there
#define OWN(group) (5 + (group))  // of the warpgroup alone
#define MEETING (128 + 32 * READERS)

struct __attribute__((aligned(64))) GemmSwigluBackwardArgs {
    u8 dy[128], w[128]; // tensor maps
    const bf16 *gu;
    bf16 *dgu;
    i64 gu_stride, dgu_stride; // in elements
    i32 rows, f, k;
    i32 group; // row tiles that are walked column by column
    i32 help;  // whether those who multiply take part in the gradients of the last tile
};

APR_DEVICE u32x4 load_shared16(u32 at) {
    u32 x, y, z, w;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "r"(at) : "memory");
    return u32x4{x, y, z, w};
}

typedef Walk<ROWS, COLUMNS> Tiles;

// fetch fills stages, tile after tile; one thread does.
APR_DEVICE void fetch(Tiles tiles, u64 maps, u32 memory, u32 full, u32 empty, i32 steps, u32 rank) {
    u32 stage = 0, phase = 0;
    while (tiles.next(rank)) {
        for (i32 t = 0; t < steps; t++) {
            const u32 at = memory + stage * STAGE, ready = full + stage * 8;
            barrier_wait(empty + stage * 8, phase ^ 1);
            barrier_expect(ready, STAGE);
            fetch_box(at, maps, t * INNER, tiles.row, ready);
            UNROLL for (u32 p = 0; p < 2; p++) {
                const u32 panel = rank * 2 + p;
                fetch_box_both(at + LEFT + panel * PANEL, maps + 128, tiles.col + panel * 64, t * INNER, ready);
            }
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
    }
}

// leave writes a warpgroup's 64 rows of dprod to shared memory: pieces of 64 columns, whose rows are 128 bytes with the
// 16-byte units permuted by the row's number modulo 8.
APR_DEVICE void leave(const float (&d)[128], u32 at) {
    const u32 l = lane(), r = (warp() & 3) * 16 + (l & 15);
    UNROLL for (int p = 0; p < COLUMNS / 64; p++) {
        UNROLL for (int j = 0; j < 8; j += 2) {
            u32 v[4];
            UNROLL for (int e = 0; e < 4; e++) {
                const int i = (p * 8 + j + e / 2) * 4 + e % 2 * 2;
                v[e] = pack_bf16(d[i], d[i + 1]);
            }
            store_matrices(at + p * PIECE + r * 128 + (((j + (l >> 4)) ^ (r & 7)) << 4), v);
        }
    }
}

// Gates is gate and up of N rows of a thread, eight columns of each.
template <int N> struct Gates {
    Pack<bf16, 8> g[N], u[N];
    APR_METHOD void read(const GemmSwigluBackwardArgs &a, int k, i32 row, i32 col) {
        if (row >= a.rows || col >= a.f) return;
        const bf16 *p = a.gu + row * a.gu_stride + col;
        g[k].v = stream_load16(p);
        u[k].v = stream_load16(p + a.f);
    }
    // write replaces pack k by its gradients and stores them.
    APR_METHOD void write(const GemmSwigluBackwardArgs &a, int k, i32 row, i32 col, u32x4 dprod) {
        if (row >= a.rows || col >= a.f) return;
        Pack<bf16, 8> d = {dprod};
        float x[8], y[8], z[8];
        widen(x, g[k]);
        widen(y, u[k]);
        widen(z, d);
        UNROLL for (int e = 0; e < 8; e++) gated_gradients<bf16>(y[e], z[e], x[e], y[e], z[e]);
        narrow(g[k], y);
        narrow(u[k], z);
        bf16 *p = a.dgu + row * a.dgu_stride + col;
        store_pack(p, g[k]);
        store_pack(p + a.f, u[k]);
    }
};

// left returns a lane's eight columns of row r of what was left at `at`.
APR_DEVICE u32x4 left(u32 at, i32 r) { return load_shared16(at + lane() / 8 * PIECE + r * 128 + ((lane() ^ r) & 7) * 16); }

// help turns rows SHARE and up of 64 of the last tile, left at `in`, into gradients: a warp of four every fourth.
APR_DEVICE void help(const GemmSwigluBackwardArgs &a, const Tiles &tiles, u32 in, u32 group) {
    const i32 first = SHARE + (warp() & 3), row = tiles.row + group * 64 + first, col = tiles.col + lane() * 8;
    Gates<OTHERS> gates;
    UNROLL for (int k = 0; k < OTHERS; k++) gates.read(a, k, row + 4 * k, col);
    UNROLL for (int k = 0; k < OTHERS; k++) gates.write(a, k, row + 4 * k, col, left(in, first + 4 * k));
}

// product multiplies tile after tile: warpgroup `group` of two its 64 rows, left at `out`.
APR_DEVICE void product(const GemmSwigluBackwardArgs &a, Tiles tiles, u32 memory, u32 full, u32 empty, u32 out, i32 steps, u32 rank, u32 group) {
    const u32 peer = thread() & 1;
    const bool signals = (thread() & 127) < 2;
    u32 stage = 0, phase = 0;
    float d[128] = {}; // defined once, or the compiler would separate the instructions
    if (!tiles.next(rank)) return;
    for (;;) {
        for (i32 t = 0; t < steps; t++) {
            const u32 at = memory + stage * STAGE;
            barrier_wait(full + stage * 8, phase);
            multiply_across(d, operand(at + group * (LEFT / 2)), operand(at + LEFT, PANEL), t);
            if (signals) barrier_signal(empty + stage * 8, peer);
            if (++stage == STAGES) stage = 0, phase ^= 1;
        }
        sync_some(FREE(group), MEETING);
        leave(d, out);
        signal_some(FULL(group), MEETING);
        if (tiles.last()) break;
        tiles.next(rank);
    }
    if (!a.help) return;
    sync_some(OWN(group), 128);
    help(a, tiles, out, group);
}

// gradients turns dprod at `in` into dgu, tile after tile: warp w of READERS every READERS-th row.
APR_DEVICE void gradients(const GemmSwigluBackwardArgs &a, Tiles tiles, u32 in, u32 rank, u32 w) {
    Gates<AHEAD> gates;
    bool more = tiles.next(rank);
    i32 row = tiles.row, col = tiles.col + lane() * 8, limit = a.help && tiles.last() ? SHARE : 64;
    if (more) {
        UNROLL for (int k = 0; k < AHEAD; k++) {
            if ((i32)w + READERS * k < limit) gates.read(a, k, row + w + READERS * k, col);
        }
    }
    while (more) {
        signal_some(FREE(0), MEETING);
        signal_some(FREE(1), MEETING);
        more = tiles.next(rank);
        const i32 next_limit = !more ? 0 : a.help && tiles.last() ? SHARE : 64;
        NO_UNROLL for (int part = 0; part < 4; part++) { // two for the rows of each warpgroup
            const int half = part / 2, after = (part + 1) % 4;
            if (part % 2 == 0) sync_some(FULL(half), MEETING);
            const i32 r = part % 2 * (READERS * AHEAD) + w, r_next = after % 2 * (READERS * AHEAD) + w;
            const i32 row_next = after ? row : tiles.row, col_next = after ? col : tiles.col + (i32)lane() * 8, limit_next = after ? limit : next_limit;
            UNROLL for (int k = 0; k < AHEAD; k++) {
                const i32 at = r + READERS * k, then = r_next + READERS * k;
                if (at < limit) gates.write(a, k, row + half * 64 + at, col, left(in + half * HALF, at));
                if (then < limit_next) gates.read(a, k, row_next + after / 2 * 64 + then, col_next);
            }
        }
        row = tiles.row, col = tiles.col + lane() * 8, limit = next_limit;
    }
}

KERNEL(gemm_swiglu_backward, GemmSwigluBackwardArgs, 384, 1) {
    u64 maps;
    ARGUMENT(gemm_swiglu_backward, maps);
    const u32 memory = (shared_address(apr_dynamic_shared) + 1023) & ~1023u;
    const u32 dprod = memory + STAGES * STAGE, full = dprod + 2 * HALF, empty = full + STAGES * 8;
    const u32 rank = cluster_rank(), group = thread() / 128;
    const i32 steps = (a.k + INNER - 1) / INNER;
    if (thread() == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(full + s * 8, 1);
            barrier_init(empty + s * 8, 4); // two warpgroups of two blocks have read the stage
        }
        asm volatile("fence.mbarrier_init.release.cluster;" : : : "memory");
    }
    sync_cluster();
    const Tiles tiles = {(a.rows + 2 * ROWS - 1) / (2 * ROWS), (a.f + COLUMNS - 1) / COLUMNS, a.group, (i32)block() / 2, 0, 0};
    if (group > 0) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 176;");
        product(a, tiles, memory, full, empty, dprod + (group - 1) * HALF, steps, rank, group - 1);
    } else {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 152;");
        if (warp() > 0) gradients(a, tiles, dprod, rank, warp() - 1);
        else if (thread() == 0) fetch(tiles, maps, memory, full, empty, steps, rank);
    }
    sync_cluster(); // no block ends while the other may signal to it or write there
}
