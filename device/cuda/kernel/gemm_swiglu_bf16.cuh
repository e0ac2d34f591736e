// The product under a gated layer's activation in bfloat16: see gemm_swiglu_sm90.go.
#pragma once
#define INNER 64
#define WGMMA(a, b, more) "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" SUMS "}, " a ", " b ", " more ", 1, 1, 0, 0;\n"
#include "gemm_swiglu.cuh"

struct __attribute__((aligned(64))) GemmSwigluArgs {
    u8 x[128], w[128], m[128], g[128], u[128]; // tensor maps; g and u with keep only
    i32 rows, f, k;
    i32 group; // row tiles that are walked column by column
    i32 lead;  // stages that the first warpgroup is ahead of the second, so that one multiplies while one writes
};
