// attention_limited_d64.cu: attention on tensor cores with windows, documents and soft-caps, bfloat16 heads of 64 columns.
//apr:module target=sm_80 types=bf16 roles=attention
#include "attention_flash.cuh"

KERNEL(attention_limited_d64, LimitedArgs, 128, 2) { flash_forward<64, 2, 4, 64, true>(a); }
KERNEL(attention_limited_d64_dq, LimitedArgs, 128, 2) { flash_dq<64, 2, 4, 64, 32, true>(a); }
KERNEL(attention_limited_d64_dkv, LimitedArgs, 128, 2) { flash_dkv<64, 2, 2, 2, 64, 32, false>(a); }
KERNEL(attention_limited_d64_sum, LimitedArgs, 128, 8) { flash_sum<64>(a); }
