// Products of few rows of bfloat16 with a matrix.
#include "gemv.cuh"

#define GEMV(type, B) \
    KERNEL(gemv_##type##_bf16_1, GemvArgs, 256, 3) { gemv<B, bf16, 1>(a); } \
    KERNEL(gemv_##type##_bf16_8, GemvArgs, 256, 2) { gemv<B, bf16, 8>(a); }

GEMV(q4_k, BlockQ4K)
GEMV(q5_k, BlockQ5K)
GEMV(q6_k, BlockQ6K)
GEMV(q8_0, BlockQ8_0)
GEMV(q4_0, BlockQ4_0)
GEMV(q5_0, BlockQ5_0)
GEMV(bf16, Plain<bf16>)
GEMV(f32, Plain<float>)

KERNEL(gemv_bf16_bf16_any, GemvArgs, 256, 4) { gemv_elements<bf16, bf16>(a); }
KERNEL(gemv_f32_bf16_any, GemvArgs, 256, 4) { gemv_elements<float, bf16>(a); }
