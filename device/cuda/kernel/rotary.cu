// Rotary position embedding: see rotary.cuh.
//apr:module target=sm_80 types=bf16,f32
#include "rotary.cuh"

KERNEL(rotary_bf16_8, RotaryArgs, 256, 3) { rotary<bf16, 8, 4>(a); }
KERNEL(rotary_bf16_1, RotaryArgs, 256, 4) { rotary<bf16, 1, 4>(a); }
KERNEL(rotary_f32_8, RotaryArgs, 256, 2) { rotary<float, 8, 4>(a); }
KERNEL(rotary_f32_1, RotaryArgs, 256, 4) { rotary<float, 1, 4>(a); }
