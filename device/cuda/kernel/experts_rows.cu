// Products of few slots of bfloat16 with the matrices of their experts: see experts_rows.cuh.
//apr:module target=sm_80 types=bf16 roles=optional
#include "experts_rows.cuh"

KERNEL(experts_rows_bf16, ExpertRowsArgs, 256, 2) { experts_rows<bf16>(a); }
