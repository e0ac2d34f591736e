// Products of few rows of bfloat16 with a matrix in blocks: see gemv_tile.cuh.
#include "gemv_tile.cuh"

#define TILES(type, B) \
    KERNEL(gemv_##type##_tile_1, TileArgs, 448, 2) { gemv_tiles<B, 1>(a); } \
    KERNEL(gemv_##type##_tile_4, TileArgs, 448, 1) { gemv_tiles<B, 4>(a); }

TILES(q4_k, TileQ4K)
TILES(q5_k, TileQ5K)
TILES(q6_k, TileQ6K)
TILES(q8_0, TileQ8_0)
TILES(q4_0, TileQ4_0)
TILES(q5_0, TileQ5_0)

KERNEL(gemv_mixed_tile_1, TileArgs, 448, 2) { gemv_mixed(a); }
