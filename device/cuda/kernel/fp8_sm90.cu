// Conversions to e4m3, whose instruction compute capability 8.0 lacks.
//apr:module target=sm_90a types=bf16 roles=fp8
#include "fp8.cuh"
