// Products of 2 to 64 rows with matrices of Q4_K, Q5_K and Q6_K in tiles, by codes: see gemm_tiles_codes.cuh and, of more than 32, gemm_tiles_codes_wide.cuh.
//apr:module target=sm_90a types=bf16 roles=tiles,optional emulated=yes
#include "gemm_tiles_codes_wide.cuh"

KERNEL(gemm_tiles_c_8, TilesArgs, 32 * CODES_WARPS, 1) { gemm_tiles_codes<1>(a); }
KERNEL(gemm_tiles_c_16, TilesArgs, 32 * CODES_WARPS, 1) { gemm_tiles_codes<2>(a); }
KERNEL(gemm_tiles_c_32, TilesArgs, 32 * CODES_WARPS, 1) { gemm_tiles_codes<4>(a); }
KERNEL(gemm_tiles_c_64, TilesArgs, 32 * WIDE_WARPS, 1) { gemm_tiles_codes_wide(a); }
KERNEL(tiles_join_c, TilesArgs, 256, 4) { join(a); }
