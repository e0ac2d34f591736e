// A gated unit with σ alone, of attention that is gated, and its backward: see glu.cuh.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "sigmoidglu.cuh"

KERNEL(sigmoidglu_bf16_8, GLUArgs, 256, 4) { glu<bf16, 8, 2, Sigmoid>(a); }
KERNEL(sigmoidglu_bf16_1, GLUArgs, 256, 4) { glu<bf16, 1, 4, Sigmoid>(a); }
KERNEL(sigmoidglu_f32_8, GLUArgs, 256, 4) { glu<float, 8, 2, Sigmoid>(a); }
KERNEL(sigmoidglu_f32_1, GLUArgs, 256, 4) { glu<float, 1, 4, Sigmoid>(a); }
KERNEL(sigmoidglu_backward_bf16_8, GLUArgs, 256, 4) { glu_backward<bf16, 8, 2, Sigmoid>(a); }
KERNEL(sigmoidglu_backward_bf16_1, GLUArgs, 256, 4) { glu_backward<bf16, 1, 4, Sigmoid>(a); }
KERNEL(sigmoidglu_backward_f32_8, GLUArgs, 256, 3) { glu_backward<float, 8, 2, Sigmoid>(a); }
KERNEL(sigmoidglu_backward_f32_1, GLUArgs, 256, 4) { glu_backward<float, 1, 4, Sigmoid>(a); }
