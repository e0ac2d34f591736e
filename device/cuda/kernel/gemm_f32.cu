// Matrix products of float32 operands. See gemm.go for the forms.
//apr:module target=sm_80 types=f32 roles=products
#include "gemm_f32.cuh"

#define GEMM_FLOATS(form, AK, BK) \
    KERNEL(gemm_f32_##form, GemmArgs, F32_THREADS, 3) { gemm_float<AK, BK, false, FloatSums>(a); } \
    KERNEL(gemm_tf32_##form, GemmArgs, F32_THREADS, 3) { gemm_float<AK, BK, true, TensorSums>(a); }

GEMM_FLOATS(nt, true, true)
GEMM_FLOATS(nn, true, false)
GEMM_FLOATS(tn, false, false)
