// attention_tf32_d128.cu: attention on tensor cores, float32 heads of 128 columns, products in tf32.
//apr:module target=sm_80 types=f32 roles=attention
#include "attention_tf32.cuh"

KERNEL(attention_tf32_d128, AttentionArgs, 256, 1) { tf32_forward<128, 1, 8, 32>(a); }
KERNEL(attention_tf32_d128_dq, AttentionArgs, 128, 2) { tf32_dq<128, 4, 16, false>(a); }
KERNEL(attention_tf32_d128_dkv, AttentionArgs, 128, 2) { tf32_dkv<128, 4, 16, false>(a); }
KERNEL(attention_tf32_d128_sum, AttentionArgs, 128, 8) { flash_sum<128, float>(a); }
