// attention_limited_d256.cu: attention on tensor cores with windows, documents and soft-caps, bfloat16 heads of 256 columns.
//apr:module target=sm_80 types=bf16 roles=attention
#include "attention_flash.cuh"

KERNEL(attention_limited_d256, LimitedArgs, 128, 2) { flash_forward<256, 1, 4, 32, false>(a); }
KERNEL(attention_limited_d256_dq, LimitedArgs, 128, 2) { flash_dq<256, 1, 4, 16, 16, false>(a); }
KERNEL(attention_limited_d256_dkv, LimitedArgs, 128, 2) { flash_dkv<256, 1, 2, 1, 32, 16, false, 2>(a); }
KERNEL(attention_limited_d256_sum, LimitedArgs, 128, 8) { flash_sum<256>(a); }
