// The product under a gated layer's activation in bfloat16. See gemm_swiglu_sm90.go.
//apr:module target=sm_90a types=bf16
#include "gemm_swiglu_bf16.cuh"

KERNEL(gemm_swiglu, GemmSwigluArgs, 384, 1) {
    u64 maps;
    ARGUMENT(gemm_swiglu, maps);
    gemm_swiglu<NoScales, false>(a, maps);
}
KERNEL(gemm_swiglu_keep, GemmSwigluArgs, 384, 1) {
    u64 maps;
    ARGUMENT(gemm_swiglu_keep, maps);
    gemm_swiglu<NoScales, true>(a, maps);
}
