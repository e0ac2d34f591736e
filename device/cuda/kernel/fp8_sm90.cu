// Conversions to e4m3, whose instruction compute capability 8.0 lacks.
#include "fp8.cuh"
