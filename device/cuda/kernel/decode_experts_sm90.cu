// A position through all layers of a model of experts: see decode_experts.cuh.
//apr:module target=sm_90a types=bf16 roles=few-row-blocks,optional emulated=yes
#include "decode_experts.cuh"

KERNEL(decode_experts, ExpertArgs, 32 * DECODE_WARPS, 1) { decode_all_experts<true>(a); }
KERNEL(decode_experts_k, ExpertArgs, 32 * DECODE_WARPS, 1) { decode_all_experts<false>(a); }
