// Attention's forward on compute capability 9.0 with windows, and soft-caps of heads of 256 columns: see attention_sm90.cuh.
//apr:module target=sm_90a types=bf16 roles=attention
#include "attention_sm90.cuh"

KERNEL(attention_limited_sm90_d64, LimitedArgs, 384, 1) { attention_forward<64, 2, 4, 232, 40>(a, shared_address(apr_dynamic_shared)); }
KERNEL(attention_limited_sm90_d128, LimitedArgs, 384, 1) { attention_forward<128, 2, 4, 232, 40>(a, shared_address(apr_dynamic_shared)); }
KERNEL(attention_limited_sm90_d256, LimitedArgs, 384, 1) { attention_forward<256, 2, 5, 232, 40>(a, shared_address(apr_dynamic_shared)); }
