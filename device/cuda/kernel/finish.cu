// What stands between the projections of q, k and v and attention, of a few positions: norms of heads, rotary embeddings, and the rows of a cache. In
// the bits of headnorm.cuh, rotary.cuh and copies.
//apr:module target=sm_80 types=bf16 roles=optional
#include "finish.cuh"

KERNEL(finish_bf16, FinishArgs, 256, 1) { finish_heads(a); }
