// attention_plain.cu: attention in float32 arithmetic, every type and head width up to 256: see attention_plain.cuh.
//apr:module target=sm_80 types=bf16,f32 roles=attention
#include "attention_plain.cuh"

KERNEL(attention_plain_f32, AttentionArgs, 256, 1) { forward<float, AttentionArgs, 8>(a); }
KERNEL(attention_plain_bf16, AttentionArgs, 256, 1) { forward<bf16, AttentionArgs, 8>(a); }
KERNEL(attention_plain_dq_f32, AttentionArgs, 256, 1) { gradient_queries<float, AttentionArgs, 8>(a); }
KERNEL(attention_plain_dq_bf16, AttentionArgs, 256, 1) { gradient_queries<bf16, AttentionArgs, 8>(a); }
KERNEL(attention_plain_dkv_f32, AttentionArgs, 256, 1) { gradient_keys<float, AttentionArgs, 8>(a); }
KERNEL(attention_plain_dkv_bf16, AttentionArgs, 256, 1) { gradient_keys<bf16, AttentionArgs, 8>(a); }
