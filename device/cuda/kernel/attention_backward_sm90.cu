// Attention's backward on compute capability 9.0: see attention_backward_sm90.cuh.
//apr:module target=sm_90a types=bf16 roles=attention,train
#define ATTENTION_ARGS AttentionArgs
#include "attention_backward_sm90.cuh"

KERNEL(attention_sm90_dq_d64, AttentionBackwardArgs, 384, 1) { attention_backward<64, false, 6, Queries>(a, shared_address(apr_dynamic_shared)); }
KERNEL(attention_sm90_dkv_d64, AttentionBackwardArgs, 384, 1) { attention_backward<64, true, 6, Pieces>(a, shared_address(apr_dynamic_shared)); }
KERNEL(attention_sm90_sum_d64, AttentionBackwardArgs, 128, 8) { attention_backward_sum<64>(a); }
KERNEL(attention_sm90_dq_d128, AttentionBackwardArgs, 384, 1) { attention_backward<128, false, 3, Queries>(a, shared_address(apr_dynamic_shared)); }
KERNEL(attention_sm90_dkv_d128, AttentionBackwardArgs, 384, 1) { attention_backward<128, true, 3, Pieces>(a, shared_address(apr_dynamic_shared)); }
KERNEL(attention_sm90_sum_d128, AttentionBackwardArgs, 128, 8) { attention_backward_sum<128>(a); }
