// Matrix products without cublasLt. See gemm.go for the forms.
//apr:module target=sm_80 types=bf16 roles=products
#include "gemm_bf16.cuh"

#define GEMM_BF16(form, AK, BK) \
    KERNEL(gemm_##form##_128, GemmArgs, GEMM_THREADS, 2) { gemm_bf16<AK, BK, 128, 128, 3>(a); } \
    KERNEL(gemm_##form##_64, GemmArgs, GEMM_THREADS, 4) { gemm_bf16<AK, BK, 64, 64, 4>(a); }

GEMM_BF16(nt, true, true)
GEMM_BF16(nn, true, false)
GEMM_BF16(tn, false, false)
