// attention_limited_d128.cu: attention on tensor cores with windows, documents and soft-caps, bfloat16 heads of 128 columns.
//apr:module target=sm_80 types=bf16 roles=attention
#include "attention_flash.cuh"

KERNEL(attention_limited_d128, LimitedArgs, 128, 2) { flash_forward<128, 2, 4, 64, false>(a); }
KERNEL(attention_limited_d128_dq, LimitedArgs, 128, 2) { flash_dq<128, 1, 4, 64, 64, false>(a); }
KERNEL(attention_limited_d128_dkv, LimitedArgs, 128, 2) { flash_dkv<128, 1, 4, 1, 64, 32, false>(a); }
KERNEL(attention_limited_d128_sum, LimitedArgs, 128, 8) { flash_sum<128>(a); }
