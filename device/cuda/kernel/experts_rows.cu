// Products of the few slots of a generation, in bfloat16, with their experts' matrices that are in no blocks, or in blocks of types that
// experts_pairs.cu has not.
//apr:module target=sm_80 types=bf16 roles=optional
#include "clampglu.cuh"
#include "experts_blocks.cuh"
#include "gemv.cuh"
#include "slots.cuh"

struct ExpertRowsArgs {
    GemvArgs gemv; // of all slots and the first expert's matrix
    const i32 *starts;
    i64 step, bias_stride; // from an expert's matrix to the next, bytes; from its bias
    u32 experts, type;     // 9: bfloat16
};

// one_column computes a column of y for one slot by a warp: see gemv.
APR_DEVICE void one_column(const GemvArgs &g, u32 type) {
    if (type == 9) return gemv<Plain<bf16>, bf16, 1>(g);
    with_blocks(type, [&](auto block) { gemv<decltype(block), bf16, 1>(g); });
}

// A block computes 8 columns of y of one slot. Grid: (columns / 8, slots). The sums of a slot do not depend on what others there are.
KERNEL(experts_rows, ExpertRowsArgs, 256, 2) {
    const u32 slot = block_y(), expert = expert_of(a.starts, a.experts, slot);
    if (expert >= a.experts) return;
    GemvArgs g = a.gemv;
    g.x = (const bf16 *)g.x + slot * g.x_stride;
    g.y = (u8 *)g.y + slot * g.y_stride * (g.flags & 2 ? 4 : 2);
    g.w += expert * a.step;
    if (g.bias) g.bias += expert * a.bias_stride;
    one_column(g, a.type);
}

struct ExpertGatedArgs {
    void *y;              // bf16
    const void *x;        // bf16, of tokens
    const u8 *gate, *up;
    const float *gate_bias, *up_bias; // zero: none
    const i32 *starts, *rows;
    i64 y_stride, x_stride;           // elements
    i64 gate_row, up_row;             // bytes of a row of a matrix
    i64 gate_step, up_step;           // bytes from an expert's matrix to the next
    i64 bias_stride;
    u32 experts, f, cols, act; // act: 0 SiLU, 1 GELU, 2 clamped
    u32 gate_type, up_type;
};

// A block computes 8 columns of act(gate·x)·up·x of one slot, in the bits of two products and a gated unit. Grid: (columns / 8, slots).
KERNEL(experts_gated_rows, ExpertGatedArgs, 256, 2) {
    SHARED(float, sums, 16); // of a warp: of gate and of up; its first lane alone uses them
    const u32 slot = block_y(), expert = expert_of(a.starts, a.experts, slot), column = block() * 8 + warp();
    if (expert >= a.experts || column >= a.f) return;
    GemvArgs g = {};
    g.rows = a.f, g.cols = a.cols, g.tokens = 1, g.flags = 2;
    g.x = (const bf16 *)a.x + a.rows[slot] * a.x_stride;
    NO_UNROLL for (u32 k = 0; k < 2; k++) { // one body of all types for both
        const float *bias = k ? a.up_bias : a.gate_bias;
        g.y = sums + 8 * k - (i64)block() * 8;
        g.w = k ? a.up + expert * a.up_step : a.gate + expert * a.gate_step;
        g.w_stride = k ? a.up_row : a.gate_row;
        g.bias = bias ? bias + expert * a.bias_stride : nullptr;
        one_column(g, k ? a.up_type : a.gate_type);
    }
    if (lane() > 0) return;
    const float z = from_bf16(to_bf16(sums[warp()])), u = from_bf16(to_bf16(sums[8 + warp()]));
    float m;
    if (a.act == 0) m = SiLU::gated<bf16>(z, u);
    else if (a.act == 1) m = GELUTanh::gated<bf16>(z, u);
    else m = ClampedSiLU::gated<bf16>(z, u);
    ((bf16 *)a.y)[slot * a.y_stride + column] = to_bf16(m);
}

struct ExpertMixArgs {
    void *y;        // bf16, of tokens
    const void *x;  // bf16, of slots
    const u8 *w;
    const float *bias, *weights; // of experts, or zero; of tokens' choices
    const i32 *starts, *slots;
    i64 y_stride, x_stride, weights_stride; // elements
    i64 w_stride, step;                     // bytes
    i64 bias_stride;
    u32 experts, h, cols, active;
    u32 type, add; // add: y += it
};

// A block computes a column of y of one token: a warp multiplies a slot's row, and their sums are added in the order of the choice, in the
// bits of a product and Combine. Grid: (columns, tokens), a warp for each choice.
KERNEL(experts_mix_rows, ExpertMixArgs, 256, 2) {
    SHARED(float, sums, 8);
    const u32 token = block_y(), column = block(), slot = (u32)a.slots[(u64)token * a.active + warp()];
    const u32 expert = expert_of(a.starts, a.experts, slot);
    if (expert < a.experts) {
        const i64 row = (i64)block() * (threads() / 32) + warp(); // that gemv takes, of which all warps of the block want one
        GemvArgs g = {};
        g.rows = ~0u, g.cols = a.cols, g.tokens = 1, g.flags = 2;
        g.x = (const bf16 *)a.x + slot * a.x_stride;
        g.y = sums + warp() - row;
        g.w = a.w + expert * a.step + (column - row) * a.w_stride, g.w_stride = a.w_stride;
        if (a.bias) g.bias = a.bias + expert * a.bias_stride + (column - row);
        one_column(g, a.type);
    }
    sync_block();
    if (thread() > 0) return;
    bf16 *y = (bf16 *)a.y + token * a.y_stride + column;
    float sum = a.add ? from_bf16(*y) : 0.0f;
    for (u32 s = 0; s < a.active; s++)
        sum = fma_rn(a.weights[token * a.weights_stride + s], from_bf16(to_bf16(sums[s])), sum);
    *y = to_bf16(sum);
}
