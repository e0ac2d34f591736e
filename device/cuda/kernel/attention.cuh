// attention.cuh: what the attention kernels share: their arguments, and where a head's rows stand.
//
// Query i of batch row b is row b·q_len+i of q, o and their gradients and stands at position q_offset+i; key j of batch
// row b is row b·k_rows+j of k, v and their gradients and stands at position j; a query sees the keys at or before its
// position. Query head h reads key-value head h/(heads/kv_heads). Every element type is written T.
#pragma once
#include "apr.cuh"

struct AttentionArgs {
    const void *q, *k, *v;        // [batch·q_len, heads·d], [batch·k_rows, kv_heads·d] twice
    void *o;                      // like q; the forward writes it, the backward reads it
    float *lse;                   // [batch·q_len, heads], ln Σ e^(scaled score); 0: not kept
    const void *dout;             // like q
    void *dq, *dk, *dv;           // like q, k, v
    float *row_lse, *row_delta;   // scratch of the backward: [batch, heads, padded] lse·log₂e and Σ dO∘O
    float *part;                  // scratch of the backward: [splits, 2, batch, kv_heads, k_len, d], dk before dv
    i32 q_stride, k_stride, v_stride, o_stride, lse_stride, dout_stride, dq_stride, dk_stride, dv_stride; // elements between rows
    i32 batch, q_len, k_len, q_offset, k_rows, heads, kv_heads, d;
    i32 padded;  // rows of one head in row_lse and row_delta: q_len rounded up to a whole tile
    i32 splits;  // parts that a group of query heads is cut into for dk and dv; 1: written directly
    float scale, log2_scale; // 1/√d, log₂e/√d
};

// head_rows returns element (b·rows, head·d) of a matrix: row 0 of a batch row's head.
template <class T> APR_DEVICE T *head_rows(const void *p, i32 stride, i32 b, i32 rows, i32 head, i32 d) {
    return (T *)p + (i64)b * rows * stride + (i64)head * d;
}
