// Products of few rows of bfloat16 with a matrix in blocks: see gemv_blocks.cuh.
//apr:module target=sm_80 types=bf16 roles=few-rows,few-row-blocks
#include "gemv_blocks.cuh"

#define ROWS(type, B) \
    KERNEL(gemv_##type##_rows_1, RowsArgs, 512, 2) { gemv_rows<1>(a, One<B>()); } \
    KERNEL(gemv_##type##_rows_4, RowsArgs, 512, 1) { gemv_rows<4>(a, One<B>()); }

ROWS(q4_k, RowsQ4K)
ROWS(q5_k, RowsQ5K)
ROWS(q6_k, RowsQ6K)
ROWS(q8_0, RowsOfGroups<GroupQ8_0>)
ROWS(q4_0, RowsOfGroups<GroupQ4_0>)
ROWS(q5_0, RowsOfGroups<GroupQ5_0>)
ROWS(iq4_nl, RowsOfGroups<GroupIQ4NL>)
ROWS(iq4_xs, RowsIQ4XS)
ROWS(mxfp4, RowsMXFP4)

KERNEL(gemv_mixed_rows_1, RowsArgs, 512, 1) { gemv_rows<1>(a, Mixed()); }
