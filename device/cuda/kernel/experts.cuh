// experts.cuh: what the grouped products of experts share. A slot is a token at one of its experts; slots are sorted by expert, and
// starts, on the device, says where those of each begin. Grids are those of the worst split of slots: blocks that it does not need find
// that out from starts and end.
#pragma once
#include "gemm.cuh"

struct ExpertArgs {
    GemmArgs gemm;    // of all slots: c and a, or of a weight's gradient a and b, begin with those of the window
    const i32 *starts;
    i64 step;         // from an expert's matrix to the next: bytes
    i64 bias_stride;  // from an expert's bias to the next
    i32 experts;
    i32 first, end;   // the window: these slots alone are multiplied
    u32 type;         // of blocks: see with_blocks
};

// Share is a part of the slots of an expert, or all of them.
struct Share {
    i32 expert;      // below 0: there is none
    i32 first, rows; // of the expert's slots in the window
    i32 tile;        // of so many rows
};

// slots_of returns the slots of an expert in the window, whatever starts say.
APR_DEVICE Share slots_of(const ExpertArgs &a, i32 expert) {
    const i32 lo = (i32)min_of(a.end, a.starts[expert]), hi = (i32)min_of(a.end, a.starts[expert + 1]), first = lo < a.first ? a.first : lo;
    return {expert, first - a.first, hi > first ? hi - first : 0, 0};
}

// share_of finds tile number `item` of all tiles of BM slots, expert by expert.
template <i32 BM> APR_DEVICE Share share_of(const ExpertArgs &a, i32 item) {
    SHARED(Share, found, 1);
    if (warp() == 0) {
        if (lane() == 0) found[0] = {-1, 0, 0, 0};
        sync_warp();
        i32 before = 0;
        NO_UNROLL for (i32 base = 0; base < a.experts && before <= item; base += 32) {
            const i32 e = base + (i32)lane();
            Share s = {e, 0, 0, 0};
            if (e < a.experts) s = slots_of(a, e);
            const u32 tiles = (u32)(s.rows + BM - 1) / BM;
            u32 sum = tiles;
            UNROLL for (int d = 1; d < 32; d *= 2) {
                const u32 v = shfl_up(sum, d);
                if (lane() >= (u32)d) sum += v;
            }
            const i32 tile = item - before - (i32)(sum - tiles);
            if (tile >= 0 && tile < (i32)tiles) {
                s.tile = tile;
                found[0] = s;
            }
            before += (i32)shfl(sum, 31);
        }
    }
    sync_block();
    return found[0];
}

// shift moves the operands of all slots to those of a share: a and c to its rows, b and the bias to its expert's. ELEMENT is the bytes of
// an element of a.
template <int ELEMENT> APR_DEVICE GemmArgs shift(const ExpertArgs &x, const Share &s) {
    GemmArgs a = x.gemm;
    a.a = (const u8 *)a.a + s.first * a.lda * ELEMENT;
    a.b = (const u8 *)a.b + s.expert * x.step;
    a.c = (u8 *)a.c + s.first * a.ldc * (a.flags & GEMM_FLOAT ? 4 : 2);
    if (a.bias) a.bias += s.expert * x.bias_stride;
    a.m = s.rows;
    return a;
}

// shift_sums is shift for a weight's gradient, whose sums run over the slots of an expert.
template <int ELEMENT> APR_DEVICE GemmArgs shift_sums(const ExpertArgs &x, const Share &s) {
    GemmArgs a = x.gemm;
    a.a = (const u8 *)a.a + s.first * a.lda * ELEMENT;
    a.b = (const u8 *)a.b + s.first * a.ldb * ELEMENT;
    a.c = (u8 *)a.c + s.expert * x.step;
    a.k = s.rows;
    return a;
}
