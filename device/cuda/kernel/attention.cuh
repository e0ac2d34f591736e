// attention.cuh: what the attention kernels share: their arguments, and where a head's rows stand.
//
// Query i of batch row b is row b·q_len+i of q, o and their gradients and stands at position q_offset+i; key j of batch
// row b is row b·k_rows+j of k, v and their gradients and stands at position j; a query sees the keys at or before its
// position. Query head h reads key-value head h/(heads/kv_heads). Every element type is written T.
#pragma once
#include "tanh.cuh"

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
    static constexpr bool LIMITED = false;
};

// LimitedArgs are those of the kernels that know windows, documents and soft-caps: see attention_limited.go.
struct LimitedArgs : AttentionArgs {
    const i32 *lowest;      // [batch·q_len], the first key that a query may see; 0: none is hidden
    i32 lowest_step;        // elements between two of them
    i32 window;             // keys that a query sees at most, itself the last
    float cap_in, cap_out;  // a score s before scaling becomes cap_out·tanh(s·cap_in), cap_in·cap_out = 1; cap_in 0: it stays
    static constexpr bool LIMITED = true;
};
static_assert(sizeof(AttentionArgs) == 184 && sizeof(LimitedArgs) == 208, "as in attention.go and attention_limited.go");

// window_of returns how many keys a query sees at most.
APR_DEVICE i32 window_of(const AttentionArgs &) { return 0x7fffffff; }
APR_DEVICE i32 window_of(const LimitedArgs &a) { return a.window; }

// lowest_key returns the first key that query i of batch row b sees. Every query sees itself.
APR_DEVICE i32 lowest_key(const AttentionArgs &, i32, i32) { return 0; }
APR_DEVICE i32 lowest_key(const LimitedArgs &a, i32 b, i32 i) {
    const i32 own = a.q_offset + i;
    i32 low = own - a.window + 1;
    if (a.lowest && i < a.q_len) {
        const i32 first = a.lowest[((i64)b * a.q_len + i) * a.lowest_step];
        low = low < first ? first : low;
    }
    return low < 0 ? 0 : low < own ? low : own;
}

// head_rows returns element (b·rows, head·d) of a matrix: row 0 of a batch row's head.
template <class T> APR_DEVICE T *head_rows(const void *p, i32 stride, i32 b, i32 rows, i32 head, i32 d) {
    return (T *)p + (i64)b * rows * stride + (i64)head * d;
}

APR_DEVICE i32 least(i32 x, i32 y) { return x < y ? x : y; }

// lowest_of returns the first key that one of n queries of batch row b sees, i the first. All lanes of a warp take part.
APR_DEVICE i32 lowest_of(const AttentionArgs &, i32, i32, i32) { return 0; }
APR_DEVICE i32 lowest_of(const LimitedArgs &a, i32 b, i32 i, i32 n) {
    i32 low = lowest_key(a, b, i);
    if (!a.lowest) return low;
    NO_UNROLL for (i32 k = lane(); k < n; k += 32) low = least(low, lowest_key(a, b, i + k));
    UNROLL for (int m = 16; m; m >>= 1) low = least(low, shfl_xor(low, m));
    return low;
}

// capped returns a score before scaling as the soft-cap leaves it; slope is the derivative there, of a score that may be hidden, −∞,
// and then anything finite.
template <class T> APR_DEVICE float capped(const AttentionArgs &, float s, T) { return s; }
template <class T> APR_DEVICE float capped(const LimitedArgs &a, float s, T) { return a.cap_in > 0 ? a.cap_out * tanh_of(s * a.cap_in, T()) : s; }
APR_DEVICE float slope(const AttentionArgs &, float) { return 1; }
APR_DEVICE float slope(const LimitedArgs &a, float s) {
    const float t = max2(s, -a.cap_out) * a.cap_in; // the tanh; 0 without a cap
    return fma_rn(-t, t, 1.0f);
}
