// A position through all layers of a model: see decode_layers.cuh. Where all matrices are of Q4_K, Q5_K and Q6_K, a kernel that
// knows no other types is faster.
//apr:module target=sm_90a types=bf16 roles=few-row-blocks emulated=yes
#include "decode_layers.cuh"

KERNEL(decode_layers, DecodeArgs, 32 * DECODE_WARPS, 1) { decode_all<true>(a); }
KERNEL(decode_layers_k, DecodeArgs, 32 * DECODE_WARPS, 1) { decode_all<false>(a); }

// Matrices to tiles and back, 16 or 2 bytes at a time.
KERNEL(tile_wide, TileArgs, 256, 4) { tile<u32x4>(a); }
KERNEL(tile_narrow, TileArgs, 256, 4) { tile<u16>(a); }
