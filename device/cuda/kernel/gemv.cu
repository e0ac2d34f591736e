// Products of few rows of bfloat16 with a matrix that is not in blocks; gemv_blocks.cu has those.
//apr:module target=sm_80 types=bf16 roles=few-rows
#include "gemv.cuh"

#define GEMV(type, B) \
    KERNEL(gemv_##type##_bf16_1, GemvArgs, 256, 3) { gemv<B, bf16, 1>(a); } \
    KERNEL(gemv_##type##_bf16_8, GemvArgs, 256, 2) { gemv<B, bf16, 8>(a); }

GEMV(bf16, Plain<bf16>)
GEMV(f32, Plain<float>)

KERNEL(gemv_bf16_bf16_wide_1, GemvArgs, 256, 4) { gemv_wide<bf16, bf16, 1>(a); }
KERNEL(gemv_bf16_bf16_wide_8, GemvArgs, 256, 2) { gemv_wide<bf16, bf16, 8>(a); }
KERNEL(gemv_f32_bf16_wide_1, GemvArgs, 256, 3) { gemv_wide<float, bf16, 1>(a); }
KERNEL(gemv_f32_bf16_wide_8, GemvArgs, 256, 2) { gemv_wide<float, bf16, 8>(a); }

KERNEL(gemv_bf16_bf16_any, GemvArgs, 256, 4) { gemv_elements<bf16, bf16>(a); }
KERNEL(gemv_f32_bf16_any, GemvArgs, 256, 4) { gemv_elements<float, bf16>(a); }

KERNEL(router_bf16, RouterArgs, 256, 2) { router<bf16>(a); }
