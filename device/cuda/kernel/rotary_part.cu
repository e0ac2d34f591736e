// Rotary position embedding of a part of a head, at given positions, or with a scale: see rotary.cuh.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "rotary.cuh"

KERNEL(rotary_part_bf16_8, RotaryPartArgs, 256, 3) { rotary_part<bf16, 8>(a); }
KERNEL(rotary_part_bf16_1, RotaryPartArgs, 256, 4) { rotary_part<bf16, 1>(a); }
KERNEL(rotary_part_f32_8, RotaryPartArgs, 256, 2) { rotary_part<float, 8>(a); }
KERNEL(rotary_part_f32_1, RotaryPartArgs, 256, 4) { rotary_part<float, 1>(a); }
