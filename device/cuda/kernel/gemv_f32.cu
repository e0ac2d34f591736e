// Products of few rows of float32 with a matrix.
//apr:module target=sm_80 types=f32 roles=few-rows
#include "gemv.cuh"

#define GEMV(type, B) \
    KERNEL(gemv_##type##_f32_1, GemvArgs, 256, 2) { gemv<B, float, 1>(a); } \
    KERNEL(gemv_##type##_f32_8, GemvArgs, 256, 2) { gemv<B, float, 8>(a); }

GEMV(q4_k, BlockQ4K)
GEMV(q5_k, BlockQ5K)
GEMV(q6_k, BlockQ6K)
GEMV(q8_0, BlockQ8_0)
GEMV(q4_0, BlockQ4_0)
GEMV(q5_0, BlockQ5_0)
GEMV(iq4_nl, BlockIQ4NL)
GEMV(iq4_xs, BlockIQ4XS)
GEMV(mxfp4, BlockMXFP4)
GEMV(bf16, Plain<bf16>)
GEMV(f32, Plain<float>)

KERNEL(gemv_bf16_f32_any, GemvArgs, 256, 4) { gemv_elements<bf16, float>(a); }
KERNEL(gemv_f32_f32_any, GemvArgs, 256, 4) { gemv_elements<float, float>(a); }
