// Products of 2 to 16 rows with matrices of Q4_K, Q5_K and Q6_K in tiles, by codes: see gemm_tiles_codes.cuh.
//apr:module target=sm_90a types=bf16 roles=tiles,optional emulated=yes
#include "gemm_tiles_codes.cuh"

KERNEL(gemm_tiles_c_8, TilesArgs, 32 * CODES_WARPS, 1) { gemm_tiles_codes<1>(a); }
KERNEL(gemm_tiles_c_16, TilesArgs, 32 * CODES_WARPS, 1) { gemm_tiles_codes<2>(a); }
KERNEL(tiles_join_c, TilesArgs, 256, 4) { join(a); }
