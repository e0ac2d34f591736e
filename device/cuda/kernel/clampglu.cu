// The clamped gated unit of gpt-oss, and its backward: see glu.cuh.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "clampglu.cuh"

KERNEL(clampglu_bf16_8, GLUArgs, 256, 4) { glu<bf16, 8, 2, ClampedSiLU>(a); }
KERNEL(clampglu_bf16_1, GLUArgs, 256, 4) { glu<bf16, 1, 4, ClampedSiLU>(a); }
KERNEL(clampglu_f32_8, GLUArgs, 256, 4) { glu<float, 8, 2, ClampedSiLU>(a); }
KERNEL(clampglu_f32_1, GLUArgs, 256, 4) { glu<float, 1, 4, ClampedSiLU>(a); }
KERNEL(clampglu_backward_bf16_8, GLUArgs, 256, 4) { glu_backward<bf16, 8, 2, ClampedSiLU>(a); }
KERNEL(clampglu_backward_bf16_1, GLUArgs, 256, 4) { glu_backward<bf16, 1, 4, ClampedSiLU>(a); }
KERNEL(clampglu_backward_f32_8, GLUArgs, 256, 3) { glu_backward<float, 8, 2, ClampedSiLU>(a); }
KERNEL(clampglu_backward_f32_1, GLUArgs, 256, 4) { glu_backward<float, 1, 4, ClampedSiLU>(a); }
