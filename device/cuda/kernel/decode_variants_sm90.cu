// A position through all layers of a model with norms of heads, windows, or several rotary embeddings: see decode_layers.cuh.
//apr:module target=sm_90a types=bf16 roles=few-row-blocks,optional emulated=yes
#include "decode_layers.cuh"

KERNEL(decode_variants, VariantArgs, 32 * DECODE_WARPS, 1) { decode_all<true, true>(a); }
KERNEL(decode_variants_k, VariantArgs, 32 * DECODE_WARPS, 1) { decode_all<false, true>(a); }
