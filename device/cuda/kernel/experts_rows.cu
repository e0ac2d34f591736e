// Products of the few slots of a generation, in bfloat16, with their experts' matrices, whose time is that of reading them once.
//apr:module target=sm_80 types=bf16 roles=optional
#include "experts_blocks.cuh"
#include "gemv.cuh"

struct ExpertRowsArgs {
    GemvArgs gemv; // of all slots and the first expert's matrix
    const i32 *starts;
    i64 step, bias_stride; // from an expert's matrix to the next, bytes; from its bias
    u32 experts, type;     // 9: bfloat16
};

// A block computes 8 columns of y of one slot. Grid: (columns / 8, slots). The sums of a slot do not depend on what others there are.
KERNEL(experts_rows, ExpertRowsArgs, 256, 2) {
    const u32 slot = block_y();
    u32 expert = 0; // as many as end at the slot or before
    NO_UNROLL for (u32 base = 0; base < a.experts; base += 32)
        expert += popcount(ballot(base + lane() < a.experts && (u32)a.starts[base + lane() + 1] <= slot));
    if (expert >= a.experts) return;
    GemvArgs g = a.gemv;
    g.x = (const bf16 *)g.x + slot * g.x_stride;
    g.y = (u8 *)g.y + slot * g.y_stride * (g.flags & 2 ? 4 : 2);
    g.w += expert * a.step;
    if (g.bias) g.bias += expert * a.bias_stride;
    if (a.type == 9) return gemv<Plain<bf16>, bf16, 1>(g);
    with_blocks(a.type, [&](auto block) { gemv<decltype(block), bf16, 1>(g); });
}
