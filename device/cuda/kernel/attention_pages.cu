// attention_pages.cu: attention of one query a row, whose keys and values lie in pages: see attention_pages.go. Heads of whole
// packs up to 256 values are read by all lanes together, in bfloat16 those of 64, 128 and 256 by tensor cores; of others a warp
// has every eighth key, and a lane every 32nd column.
//apr:module target=sm_80 types=bf16,f32 roles=attention
#include "attention_pages.cuh"

KERNEL(attention_pages_packs_f32, PagesArgs, 32 * WARPS, 1) { pages_packs<float>(a); }
KERNEL(attention_pages_packs_bf16, PagesArgs, 32 * WARPS, 1) { pages_packs<bf16>(a); }
KERNEL(attention_pages_tiles_64, PagesArgs, 32 * 8, 2) { pages_tiles<64, 8>(a); }
KERNEL(attention_pages_tiles_128, PagesArgs, 32 * 6, 2) { pages_tiles<128, 6>(a); }
KERNEL(attention_pages_tiles_256, PagesArgs, 32 * 4, 2) { pages_tiles<256, 4>(a); }
KERNEL(attention_pages_f32, PagesArgs, 32 * TEAMS, 1) { pages_elements<float>(a); }
KERNEL(attention_pages_bf16, PagesArgs, 32 * TEAMS, 1) { pages_elements<bf16>(a); }
KERNEL(attention_pages_join_f32, PagesArgs, 256, 1) { pages_join<float>(a); }
KERNEL(attention_pages_join_bf16, PagesArgs, 256, 1) { pages_join<bf16>(a); }
