// Products of up to 64 rows with matrices in tiles, of types whose blocks are one group: Q8_0, Q4_0 and Q5_0: see
// gemm_tiles_wide.cuh and, of one row, tiles_row.cuh.
//apr:module target=sm_90a types=bf16 roles=tiles,optional emulated=yes
#include "tiles_row.cuh"
#include "gemm_tiles_wide.cuh"

KERNEL(gemm_tiles_g_8, TilesArgs, WIDE_THREADS, 1) { gemm_tiles_wide<1, false>(a); }
KERNEL(gemm_tiles_g_32, TilesArgs, WIDE_THREADS, 1) { gemm_tiles_wide<4, false>(a); }
KERNEL(gemm_tiles_g_64, TilesArgs, WIDE_THREADS, 1) { gemm_tiles_wide<8, false>(a); }
KERNEL(tiles_join_g, TilesArgs, 256, 4) { join(a); }
KERNEL(tiles_row_g, TileRowArgs, 256, 2) { tiles_row<false>(a); }
