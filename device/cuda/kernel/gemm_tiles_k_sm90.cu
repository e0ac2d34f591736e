// Products of 17 to 64 rows, and of one, with matrices in tiles, of Q4_K, Q5_K and Q6_K: see gemm_tiles_wide.cuh and, of
// one row, tiles_row.cuh.
//apr:module target=sm_90a types=bf16 roles=tiles,optional emulated=yes
#include "tiles_row.cuh"
#include "gemm_tiles_wide.cuh"

KERNEL(gemm_tiles_k_32, TilesArgs, WIDE_THREADS, 1) { gemm_tiles_wide<4, true>(a); }
KERNEL(gemm_tiles_k_64, TilesArgs, WIDE_THREADS, 1) { gemm_tiles_wide<8, true>(a); }
KERNEL(tiles_join_k, TilesArgs, 256, 4) { join(a); }
KERNEL(tiles_row_k, TileRowArgs, 256, 2) { tiles_row<true>(a); }
