// attention_tf32_d64.cu: attention on tensor cores, float32 heads of 64 columns, products in tf32.
//apr:module target=sm_80 types=f32 roles=attention
#include "attention_tf32.cuh"

KERNEL(attention_tf32_d64, AttentionArgs, 128, 2) { tf32_forward<64, 2, 4, 32>(a); }
KERNEL(attention_tf32_d64_dq, AttentionArgs, 128, 2) { tf32_dq<64, 4, 32, true>(a); }
KERNEL(attention_tf32_d64_dkv, AttentionArgs, 128, 2) { tf32_dkv<64, 4, 32, true>(a); }
KERNEL(attention_tf32_d64_sum, AttentionArgs, 128, 8) { flash_sum<64, float>(a); }
