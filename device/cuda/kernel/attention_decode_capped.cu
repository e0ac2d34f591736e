// attention_decode_capped.cu: the kernels of attention_decode.cu with a soft-cap of the scores.
//apr:module target=sm_80 types=bf16,f32 roles=attention
#include "attention_decode_elements.cuh"

KERNEL(attention_decode_capped_packs_f32, LimitedArgs, 32 * WARPS, 1) { decode_packs<float>(a); }
KERNEL(attention_decode_capped_packs_bf16, LimitedArgs, 32 * WARPS, 1) { decode_packs<bf16>(a); }
KERNEL(attention_decode_capped_f32, LimitedArgs, 256, 1) { decode<float>(a); }
KERNEL(attention_decode_capped_bf16, LimitedArgs, 256, 1) { decode<bf16>(a); }
