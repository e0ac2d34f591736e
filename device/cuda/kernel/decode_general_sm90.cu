// A position through all layers of a model whose layers differ in shape, or have more than decode_variants knows: see decode_general.cuh.
//apr:module target=sm_90a types=bf16 roles=few-row-blocks,optional emulated=yes
#include "decode_general.cuh"

KERNEL(decode_general, GeneralArgs, 32 * DECODE_WARPS, 1) { decode_layers_of_kinds<true>(a); }
KERNEL(decode_general_k, GeneralArgs, 32 * DECODE_WARPS, 1) { decode_layers_of_kinds<false>(a); }
