// experts_rows.cuh: products of the few slots of a generation with their experts' matrices, whose time is that of reading them once.
#pragma once
#include "experts_blocks.cuh"
#include "gemv.cuh"

struct ExpertRowsArgs {
    GemvArgs gemv; // of all slots and the first expert's matrix
    const i32 *starts;
    i64 step, bias_stride; // from an expert's matrix to the next, bytes; from its bias
    u32 experts, type;     // 8: elements of the type of x
};

// A block computes 8 columns of y of one slot. Grid: (columns / 8, slots). The sums of a slot do not depend on what others there are.
template <class T> APR_DEVICE void experts_rows(const ExpertRowsArgs &a) {
    const u32 slot = block_y();
    u32 expert = 0; // as many as end at the slot or before
    NO_UNROLL for (u32 base = 0; base < a.experts; base += 32)
        expert += popcount(ballot(base + lane() < a.experts && (u32)a.starts[base + lane() + 1] <= slot));
    if (expert >= a.experts) return;
    GemvArgs g = a.gemv;
    g.x = (const T *)g.x + slot * g.x_stride;
    g.y = (u8 *)g.y + slot * g.y_stride * (g.flags & 2 ? 4 : 2);
    g.w += expert * a.step;
    if (g.bias) g.bias += expert * a.bias_stride;
    if (a.type == 8) return gemv<Plain<T>, T, 1>(g);
    with_blocks(a.type, [&](auto block) { gemv<decltype(block), T, 1>(g); });
}
