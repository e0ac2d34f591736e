// Attention sinks, behind attention without them: see sinks.go.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "sinks.cuh"

KERNEL(add_sinks_bf16_8, SinksArgs, 256, 4) { add_sinks<bf16, 8, 2>(a); }
KERNEL(add_sinks_bf16_1, SinksArgs, 256, 4) { add_sinks<bf16, 1, 4>(a); }
KERNEL(add_sinks_f32_8, SinksArgs, 256, 4) { add_sinks<float, 8, 2>(a); }
KERNEL(add_sinks_f32_1, SinksArgs, 256, 4) { add_sinks<float, 1, 4>(a); }

struct SinkTermsArgs {
    const void *o, *dout;
    const float *lse, *sinks;
    float *terms; // [rows, heads]
    i64 o_stride, dout_stride, lse_stride;
    u32 heads, d, units; // units: heads of all rows
};

// terms = −e^(b−lse)·Σ dO∘O of each row and head, which a warp has.
template <class T, int E> APR_DEVICE void sink_terms(const SinkTermsArgs &a) {
    const u32 unit = block() * (threads() / 32) + warp();
    if (unit >= a.units) return;
    const u32 row = unit / a.heads, h = unit - row * a.heads;
    const T *o = (const T *)a.o + row * a.o_stride + (u64)h * a.d, *dout = (const T *)a.dout + row * a.dout_stride + (u64)h * a.d;
    float dot = 0, x[E], y[E];
    for (u32 c = E * lane(); c < a.d; c += E * 32) {
        Pack<T, E> v, w;
        load_pack(v, o + c);
        load_pack(w, dout + c);
        widen(x, v);
        widen(y, w);
        UNROLL for (int e = 0; e < E; e++) dot = fma_rn(x[e], y[e], dot);
    }
    dot = warp_sum(dot);
    if (lane() == 0) a.terms[unit] = -exp_gap(a.lse[row * a.lse_stride + h] - a.sinks[h]) * dot;
}

KERNEL(sink_terms_bf16_8, SinkTermsArgs, 256, 4) { sink_terms<bf16, 8>(a); }
KERNEL(sink_terms_bf16_1, SinkTermsArgs, 256, 4) { sink_terms<bf16, 1>(a); }
KERNEL(sink_terms_f32_8, SinkTermsArgs, 256, 4) { sink_terms<float, 8>(a); }
KERNEL(sink_terms_f32_1, SinkTermsArgs, 256, 4) { sink_terms<float, 1>(a); }
