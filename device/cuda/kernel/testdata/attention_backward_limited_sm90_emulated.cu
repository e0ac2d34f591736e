// The kernels of attention_backward_limited_sm90.cu, which the emulator would leave out.
#define ATTENTION_ARGS LimitedArgs
#include "../attention_backward_sm90.cuh"

KERNEL(attention_limited_sm90_dq_d64, AttentionBackwardArgs, 384, 1) { attention_backward<64, false, 6, Queries>(a, apr_host::shared_offset(apr_host::dynamic_shared())); }
KERNEL(attention_limited_sm90_dkv_d64, AttentionBackwardArgs, 384, 1) { attention_backward<64, true, 6, Pieces>(a, apr_host::shared_offset(apr_host::dynamic_shared())); }
KERNEL(attention_limited_sm90_sum_d64, AttentionBackwardArgs, 128, 8) { attention_backward_sum<64>(a); }
KERNEL(attention_limited_sm90_dq_d128, AttentionBackwardArgs, 384, 1) { attention_backward<128, false, 3, Queries>(a, apr_host::shared_offset(apr_host::dynamic_shared())); }
KERNEL(attention_limited_sm90_dkv_d128, AttentionBackwardArgs, 384, 1) { attention_backward<128, true, 3, Pieces>(a, apr_host::shared_offset(apr_host::dynamic_shared())); }
KERNEL(attention_limited_sm90_sum_d128, AttentionBackwardArgs, 128, 8) { attention_backward_sum<128>(a); }
