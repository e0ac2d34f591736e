// Products of one row with dense matrices that do not change: see gemv_staged.cuh.
//apr:module target=sm_90a types=bf16 roles=few-rows emulated=yes
#include "gemv_staged.cuh"

KERNEL(gemv_staged, GemvArgs, 32 * STAGED_WARPS, 4) { gemv_staged_row(a); }
