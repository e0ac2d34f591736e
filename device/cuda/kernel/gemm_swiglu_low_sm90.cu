// The product under a gated layer's activation in bfloat16 with what adapters add to it. See gemm_swiglu_low_sm90.go.
//apr:module target=sm_90a types=bf16 roles=optional
#include "gemm_swiglu_bf16.cuh"

struct __attribute__((aligned(64))) GemmSwigluLowArgs {
    u8 x[128], w[128], m[128], g[128], u[128], thin[128], factor[128]; // tensor maps
    i32 rows, f, k;
    i32 group, lead; // as in GemmSwigluArgs
    i32 low;         // columns of thin and factor
};

KERNEL(gemm_swiglu_low, GemmSwigluLowArgs, 384, 1) {
    u64 maps;
    ARGUMENT(gemm_swiglu_low, maps);
    gemm_swiglu<NoScales, true, SiLU, true>(a, maps);
}
