// attention_decode.cu: attention of a single query per batch row, as generation asks for it: float32 arithmetic, every type
// and head width up to 256. Heads of whole packs have their keys and values read together by all lanes; for others the
// threads of a block share the keys, then its warps the values.
//apr:module target=sm_80 types=bf16,f32 roles=attention
#include "attention_decode_elements.cuh"

// Grid: (heads, batch). The shares of a head, in ascending order.
template <class T> APR_DEVICE void decode_join(const AttentionArgs &a) {
    const int h = block(), b = block_y(), column = thread();
    if (column >= a.d) return;
    const i64 step = (i64)a.batch * a.heads * PART;
    const Joined r = join_shares(a.part + ((i64)b * a.heads + h) * PART, step, a.splits, column);
    store(head_rows<T>(a.o, a.o_stride, b, 1, h, a.d) + column, r.acc / r.sum);
    if (a.lse && column == 0) a.lse[(i64)b * a.lse_stride + h] = (r.top + log2_approx(r.sum)) * LN2;
}

KERNEL(attention_decode_packs_f32, AttentionArgs, 32 * WARPS, 1) { decode_packs<float>(a); }
KERNEL(attention_decode_packs_bf16, AttentionArgs, 32 * WARPS, 1) { decode_packs<bf16>(a); }
KERNEL(attention_decode_join_f32, AttentionArgs, 256, 1) { decode_join<float>(a); }
KERNEL(attention_decode_join_bf16, AttentionArgs, 256, 1) { decode_join<bf16>(a); }
KERNEL(attention_decode_f32, AttentionArgs, 256, 1) { decode<float>(a); }
KERNEL(attention_decode_bf16, AttentionArgs, 256, 1) { decode<bf16>(a); }
