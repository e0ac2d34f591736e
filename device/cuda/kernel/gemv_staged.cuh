// The product of one row with a dense matrix, all of which stands in shared memory before the row is known: a block has
// consecutive rows of W, and asks for them before it waits for the kernel before it. So their time is that of what
// generation does meanwhile, which is mostly waiting.
#pragma once
#include "gemv.cuh"

// Beside a block of 8 warps with 64 registers one of attention has room on a multiprocessor.
constexpr u32 STAGED_WARPS = 8, STAGED_PACKS = 2;    // packs of columns of a thread at most
constexpr u32 STAGED_ROWS = 64, STAGED_TOGETHER = 8; // of a block at most; of a copy

// fold adds up one half of 2·N values over a lane and lane ^ M, which adds up the other half.
template <u32 N, u32 M> APR_DEVICE void fold(float (&v)[STAGED_TOGETHER]) {
    const bool upper = lane() & M;
    UNROLL for (u32 i = 0; i < N; i++) {
        const float low = v[i], high = v[i + N]; // or an address would be chosen, and the values stand in memory
        v[i] = (upper ? high : low) + shfl_xor(upper ? low : high, (int)M);
    }
}
// transposed adds up 8 values over the warp: lane l gets the sum of number l/4.
APR_DEVICE float transposed(float (&v)[STAGED_TOGETHER]) {
    fold<4, 16>(v), fold<2, 8>(v), fold<1, 4>(v);
    v[0] += shfl_xor(v[0], 2);
    return v[0] + shfl_xor(v[0], 1);
}

// W does not change while kernels run. A thread's packs are added up in turn, lanes as a tree, then warps in order: bits
// depend on the columns alone.
// Grid: at most one block a multiprocessor, with room for the rows of W that it has.
APR_DEVICE void gemv_staged_row(const GemvArgs &a) {
    DYNAMIC_SHARED(shared);
    SHARED(u64, filled, STAGED_ROWS / STAGED_TOGETHER);
    SHARED(float, sums, STAGED_ROWS * STAGED_WARPS);
    const u32 first = (u32)((u64)a.rows * block() / blocks()), count = (u32)((u64)a.rows * (block() + 1) / blocks()) - first;
    const u32 bytes = 2 * a.cols, part = thread();
    if (part * STAGED_TOGETHER < count) {
        const u32 from = part * STAGED_TOGETHER, n = (u32)min_of(STAGED_TOGETHER, count - from);
        bulk_init(filled + part, 1);
        copy_bulk(filled + part, shared + from * bytes, a.w + (u64)(first + from) * bytes, n * bytes);
    }
    sync_block();
    let_next();
    wait_before();
    float x[STAGED_PACKS][8], w[8], v[STAGED_TOGETHER];
    auto live = [&](u32 k) { return 8 * (thread() + k * threads()) < a.cols; };
    UNROLL for (u32 k = 0; k < STAGED_PACKS; k++) {
        Pack<bf16, 8> p = {};
        if (live(k)) load_pack(p, (const bf16 *)a.x + 8 * (thread() + k * threads()));
        widen(x[k], p);
    }
    NO_UNROLL for (u32 from = 0; from < count; from += STAGED_TOGETHER) {
        bulk_wait(filled + from / STAGED_TOGETHER, 0);
        UNROLL for (u32 r = 0; r < STAGED_TOGETHER; r++) v[r] = 0;
        UNROLL for (u32 k = 0; k < STAGED_PACKS; k++) {
            if (!live(k)) continue;
            Pack<bf16, 8> p[STAGED_TOGETHER];
            UNROLL for (u32 r = 0; r < STAGED_TOGETHER; r++) { // for rows beyond the last one the first: nobody reads their sums
                const u32 row = from + (from + r < count ? r : 0);
                load_pack(p[r], (const bf16 *)(shared + row * bytes) + 8 * (thread() + k * threads()));
            }
            UNROLL for (u32 r = 0; r < STAGED_TOGETHER; r++) {
                widen(w, p[r]);
                UNROLL for (int i = 0; i < 8; i++) v[r] = fma_rn(w[i], x[k][i], v[r]);
            }
        }
        const float sum = transposed(v);
        if ((lane() & 3) == 0) sums[warp() * STAGED_ROWS + from + lane() / 4] = sum;
    }
    sync_block();
    if (thread() >= count) return;
    float sum = 0;
    UNROLL for (u32 k = 0; k < STAGED_WARPS; k++) sum += sums[k * STAGED_ROWS + thread()];
    finish_one(a, first + thread(), 0, sum);
}
