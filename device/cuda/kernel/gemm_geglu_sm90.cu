// The product under a gated layer's GELU, approximated by tanh, in bfloat16. See gemm_swiglu_sm90.go.
//apr:module target=sm_90a types=bf16 roles=optional
#include "gemm_swiglu_bf16.cuh"

KERNEL(gemm_geglu, GemmSwigluArgs, 384, 1) {
    u64 maps;
    ARGUMENT(gemm_geglu, maps);
    gemm_swiglu<NoScales, false, GELUTanh>(a, maps);
}
KERNEL(gemm_geglu_keep, GemmSwigluArgs, 384, 1) {
    u64 maps;
    ARGUMENT(gemm_geglu_keep, maps);
    gemm_swiglu<NoScales, true, GELUTanh>(a, maps);
}
