// What products on compute capability 9.0 share: a cluster of two blocks, stages of operands that the tensor memory unit
// writes, warpgroups that multiply them. See gemm_swiglu_sm90.go.
#pragma once
#include "apr.cuh"

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

// MULTIPLY computes d (+)= x·wᵀ for 64 rows, 256 columns and 64 inner positions: four instructions. x and w describe
// operands in shared memory; inner positions 16, 32 and 48 of w are 16·s1, 16·s2 and 16·s3 bytes on, and across says that a
// row of memory is one inner position of w.
#define SUMS \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63," \
    "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
    "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
    "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111," \
    "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define STEP(n, p, across) "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" SUMS "}, a" #n ", b" #n ", " p ", 1, 1, 0, " across ";\n"
#define FOUR(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define SIXTEEN(i) FOUR(i), FOUR(i + 4), FOUR(i + 8), FOUR(i + 12)
#define MULTIPLY(s1, s2, s3, across) \
    asm volatile( \
        "{ .reg .pred p, q; .reg .b64 a0, a1, a2, a3, b0, b1, b2, b3;\n" \
        "setp.ne.b32 p, %130, 0; setp.eq.b32 q, 0, 0;\n" \
        "mov.b64 a0, %128; add.s64 a1, a0, 2; add.s64 a2, a0, 4; add.s64 a3, a0, 6;\n" \
        "mov.b64 b0, %129; add.s64 b1, b0, " s1 "; add.s64 b2, b0, " s2 "; add.s64 b3, b0, " s3 ";\n" \
        "wgmma.fence.sync.aligned;\n" STEP(0, "p", across) STEP(1, "q", across) STEP(2, "q", across) STEP(3, "q", across) \
        "wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0; }" \
        : SIXTEEN(0), SIXTEEN(16), SIXTEEN(32), SIXTEEN(48), SIXTEEN(64), SIXTEEN(80), SIXTEEN(96), SIXTEEN(112) \
        : "l"(x), "l"(w), "r"(more) : "memory")
// multiply is of w with inner positions in a row, 128 bytes; multiply_across of w with 64 columns in a row, a row for every
// inner position: 16 of them are 2048 bytes.
APR_DEVICE void multiply(float (&d)[128], u64 x, u64 w, u32 more) { MULTIPLY("2", "4", "6", "0"); }
APR_DEVICE void multiply_across(float (&d)[128], u64 x, u64 w, u32 more) { MULTIPLY("128", "256", "384", "1"); }
// operand describes rows of 128 bytes in shared memory: address, 1024 bytes from eight rows to the next, 128-byte pattern;
// panel is the number of bytes from 64 columns to the next of an operand of multiply_across, others have none.
APR_DEVICE u64 operand(u32 at, u32 panel = 16) { return (u64)(at >> 4 & 0x3fff) | (u64)(panel >> 4) << 16 | (u64)64 << 32 | (u64)1 << 62; }

APR_DEVICE void store_matrices(u32 at, const u32 (&v)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" : : "r"(at), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}

// Walk is the sequence of a cluster's tiles, two blocks of ROWS rows by COLUMNS columns.
template <int ROWS, int COLUMNS> struct Walk {
    i32 high, wide, group, tile, row, col;
    APR_METHOD bool next(i32 rank) { // whether there is another; its place is row and col of the result
        if (tile >= high * wide) return false;
        const i32 first = tile / (group * wide) * group, rest = tile - first * wide;
        const i32 rows = high - first < group ? high - first : group;
        row = (first + rest % rows) * (2 * ROWS) + rank * ROWS;
        col = rest / rows * COLUMNS;
        tile += (i32)blocks() / 2;
        return true;
    }
    APR_METHOD bool last() const { return tile >= high * wide; } // whether there is none after the one last given
};
