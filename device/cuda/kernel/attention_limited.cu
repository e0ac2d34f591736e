// attention_limited.cu: attention in float32 arithmetic with windows, documents and soft-caps, of heads of up to 512 columns: see
// attention_plain.cuh.
//apr:module target=sm_80 types=bf16,f32 roles=attention
#include "attention_plain.cuh"

KERNEL(attention_limited_f32, LimitedArgs, 256, 1) { forward<float, LimitedArgs, 8>(a); }
KERNEL(attention_limited_bf16, LimitedArgs, 256, 1) { forward<bf16, LimitedArgs, 8>(a); }
KERNEL(attention_limited_dq_f32, LimitedArgs, 256, 1) { gradient_queries<float, LimitedArgs, 8>(a); }
KERNEL(attention_limited_dq_bf16, LimitedArgs, 256, 1) { gradient_queries<bf16, LimitedArgs, 8>(a); }
KERNEL(attention_limited_dkv_f32, LimitedArgs, 256, 1) { gradient_keys<float, LimitedArgs, 8>(a); }
KERNEL(attention_limited_dkv_bf16, LimitedArgs, 256, 1) { gradient_keys<bf16, LimitedArgs, 8>(a); }
KERNEL(attention_limited_wide_f32, LimitedArgs, 256, 1) { forward<float, LimitedArgs, 16>(a); }
KERNEL(attention_limited_wide_bf16, LimitedArgs, 256, 1) { forward<bf16, LimitedArgs, 16>(a); }
KERNEL(attention_limited_wide_dq_f32, LimitedArgs, 256, 1) { gradient_queries<float, LimitedArgs, 16>(a); }
KERNEL(attention_limited_wide_dq_bf16, LimitedArgs, 256, 1) { gradient_queries<bf16, LimitedArgs, 16>(a); }
KERNEL(attention_limited_wide_dkv_f32, LimitedArgs, 256, 1) { gradient_keys<float, LimitedArgs, 16>(a); }
KERNEL(attention_limited_wide_dkv_bf16, LimitedArgs, 256, 1) { gradient_keys<bf16, LimitedArgs, 16>(a); }
