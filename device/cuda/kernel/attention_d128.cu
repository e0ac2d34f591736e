// attention_d128.cu: attention on tensor cores, bfloat16 heads of 128 columns.
//apr:module target=sm_80 types=bf16 roles=attention
#include "attention_flash.cuh"

KERNEL(attention_d128, AttentionArgs, 128, 2) { flash_forward<128, 2, 4, 64, false>(a); }
KERNEL(attention_d128_dq, AttentionArgs, 128, 2) { flash_dq<128, 1, 4, 64, 64, false>(a); }
KERNEL(attention_d128_dkv, AttentionArgs, 128, 2) { flash_dkv<128, 1, 4, 1, 64, 32, false>(a); }
KERNEL(attention_d128_sum, AttentionArgs, 128, 8) { flash_sum<128>(a); }
