// The kernels of attention_sm90.cu and attention_limited_sm90.cu, which the emulator would leave out.
#include "../attention_sm90.cuh"

#define BASE apr_host::shared_offset(apr_host::dynamic_shared())
KERNEL(attention_sm90_d64, AttentionArgs, 384, 1) { attention_forward<64, 2, 4, 232, 40>(a, BASE); }
KERNEL(attention_sm90_d128, AttentionArgs, 384, 1) { attention_forward<128, 2, 4, 232, 40>(a, BASE); }
KERNEL(attention_limited_sm90_d64, LimitedArgs, 384, 1) { attention_forward<64, 2, 4, 232, 40>(a, BASE); }
KERNEL(attention_limited_sm90_d128, LimitedArgs, 384, 1) { attention_forward<128, 2, 4, 232, 40>(a, BASE); }
KERNEL(attention_limited_sm90_d256, LimitedArgs, 384, 1) { attention_forward<256, 2, 5, 232, 40>(a, BASE); }
