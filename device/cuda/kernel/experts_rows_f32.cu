// Products of few slots of float32 with the matrices of their experts: see experts_rows.cuh.
//apr:module target=sm_80 types=f32 roles=optional
#include "experts_rows.cuh"

KERNEL(experts_rows_f32, ExpertRowsArgs, 256, 2) { experts_rows<float>(a); }
