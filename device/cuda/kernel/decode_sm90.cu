// The kernels of generation's step for one position, launched so that each begins while the one before ends: products have
// their first blocks of W on the way by the time that x is there. See let_next and wait_before in apr.cuh.
//apr:module target=sm_90a types=bf16 roles=few-rows twins=_early
#include "argmax.cuh"
#include "attention_decode.cuh"
#include "attention_pages.cuh"
#include "conv.cuh"
#include "delta_step.cuh"
#include "experts_pairs.cuh"
#include "finish.cuh"
#include "gemv.cuh"
#include "gemv_blocks.cuh"
#include "headnorm.cuh"
#include "move.cuh"
#include "norm.cuh"
#include "rotary.cuh"
#include "route.cuh"
#include "sigmoidglu.cuh"
#include "sinks.cuh"

KERNEL(gemv_q4_k_rows_1_early, RowsArgs, 512, 2) { gemv_rows<1>(a, One<RowsQ4K>()); }
KERNEL(gemv_q5_k_rows_1_early, RowsArgs, 512, 2) { gemv_rows<1>(a, One<RowsQ5K>()); }
KERNEL(gemv_q6_k_rows_1_early, RowsArgs, 512, 2) { gemv_rows<1>(a, One<RowsQ6K>()); }
KERNEL(gemv_q8_0_rows_1_early, RowsArgs, 512, 2) { gemv_rows<1>(a, One<RowsOfGroups<GroupQ8_0>>()); }
KERNEL(gemv_q4_0_rows_1_early, RowsArgs, 512, 2) { gemv_rows<1>(a, One<RowsOfGroups<GroupQ4_0>>()); }
KERNEL(gemv_q5_0_rows_1_early, RowsArgs, 512, 2) { gemv_rows<1>(a, One<RowsOfGroups<GroupQ5_0>>()); }
KERNEL(gemv_iq4_nl_rows_1_early, RowsArgs, 512, 2) { gemv_rows<1>(a, One<RowsOfGroups<GroupIQ4NL>>()); }
KERNEL(gemv_iq4_xs_rows_1_early, RowsArgs, 512, 2) { gemv_rows<1>(a, One<RowsIQ4XS>()); }
KERNEL(gemv_mxfp4_rows_1_early, RowsArgs, 512, 2) { gemv_rows<1>(a, One<RowsMXFP4>()); }
KERNEL(gemv_mixed_rows_1_early, RowsArgs, 512, 1) { gemv_rows<1>(a, Mixed()); }
KERNEL(attention_decode_packs_bf16_early, AttentionArgs, 32 * WARPS, 1) { decode_packs<bf16>(a); }
KERNEL(rmsnorm_bf16_8_early, RMSNormArgs, 512, 1) { rmsnorm_packs<bf16, false>(a); }
KERNEL(rmsnorm_bf16_8_add_early, RMSNormArgs, 512, 1) { rmsnorm_packs<bf16, true>(a); }
KERNEL(rotary_bf16_8_early, RotaryArgs, 256, 3) { rotary<bf16, 8, 4>(a); }
KERNEL(copy_16_early, CopyArgs, 256, 4) { move_units<u32x4, false>(a); }
KERNEL(argmax_f32_8_early, ArgMaxArgs, 512, 2) { argmax<float, 8>(a); }
KERNEL(experts_gated_q4_k_early, ExpertPairsArgs, 512, 2) { experts_gated<PairOf<RowsQ4K>>(a); }
KERNEL(experts_mix_q4_k_early, ExpertMixedArgs, 512, 2) { experts_mix<PairOf<RowsQ4K>>(a); }
KERNEL(experts_gated_q5_k_early, ExpertPairsArgs, 512, 2) { experts_gated<PairOf<RowsQ5K>>(a); }
KERNEL(experts_mix_q5_k_early, ExpertMixedArgs, 512, 2) { experts_mix<PairOf<RowsQ5K>>(a); }
KERNEL(experts_gated_q6_k_early, ExpertPairsArgs, 512, 2) { experts_gated<PairOf<RowsQ6K>>(a); }
KERNEL(experts_mix_q6_k_early, ExpertMixedArgs, 512, 2) { experts_mix<PairOf<RowsQ6K>>(a); }
KERNEL(experts_gated_q8_0_early, ExpertPairsArgs, 512, 2) { experts_gated<PairOf<RowsOfGroups<GroupQ8_0>>>(a); }
KERNEL(experts_mix_q8_0_early, ExpertMixedArgs, 512, 2) { experts_mix<PairOf<RowsOfGroups<GroupQ8_0>>>(a); }
KERNEL(experts_gated_mxfp4_early, ExpertPairsArgs, 512, 2) { experts_gated<PairOfMXFP4>(a); }
KERNEL(experts_mix_mxfp4_early, ExpertMixedArgs, 512, 2) { experts_mix<PairOfMXFP4>(a); }
KERNEL(gemv_bf16_bf16_wide_1_early, GemvArgs, 256, 4) { gemv_wide<bf16, bf16, 1>(a); }
KERNEL(gemv_f32_bf16_wide_1_early, GemvArgs, 256, 3) { gemv_wide<float, bf16, 1>(a); }
KERNEL(router_bf16_early, RouterArgs, 256, 2) { router<bf16>(a); }
KERNEL(route_one_early, RouteArgs, 32, 1) { route_token(a); }
KERNEL(delta_step_bf16_early, DeltaStepArgs, STEP_THREADS, 1) { delta_step<bf16>(a); }
KERNEL(finish_bf16_early, FinishArgs, 256, 1) { finish_heads(a); }

// Those that do not wait by themselves.
APR_DEVICE void begin_early() {
    let_next();
    wait_before();
}
KERNEL(attention_pages_tiles_64_early, PagesArgs, 32 * 8, 2) { begin_early(); pages_tiles<64, 8>(a); }
KERNEL(attention_pages_tiles_128_early, PagesArgs, 32 * 6, 2) { begin_early(); pages_tiles<128, 6>(a); }
KERNEL(attention_pages_tiles_256_early, PagesArgs, 32 * 4, 2) { begin_early(); pages_tiles<256, 4>(a); }
KERNEL(conv_bf16_four_early, ConvArgs, 128, 8) { begin_early(); conv_four(a); }
KERNEL(head_norm_bf16_8_early, HeadNormArgs, 256, 1) { begin_early(); head_norm<bf16, 8, 1>(a); }
KERNEL(sigmoidglu_bf16_8_early, GLUArgs, 256, 4) { begin_early(); glu<bf16, 8, 2, Sigmoid>(a); }
KERNEL(add_sinks_bf16_8_early, SinksArgs, 256, 4) { begin_early(); add_sinks<bf16, 8, 2>(a); }
