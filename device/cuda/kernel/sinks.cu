// Attention sinks, behind attention without them: see sinks.go.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "swiglu.cuh"

struct SinksArgs {
    void *o;
    const float *seen;  // [rows, heads], the log-sum-exp of scores alone
    float *lse;         // with the sink; zero: not kept
    const float *sinks; // [heads]
    i64 o_stride, lse_stride;
    u32 heads, d;
    u32 packs, items; // of a row of o, of all rows
};

// exp_gap returns e^−gap for |gap| up to where it is 0 or so large that 1/(1+e^−gap) is 0. What is approximated forgets NaN; this
// does not.
APR_DEVICE float exp_gap(float gap) {
    const float e = exp_minus(min2(gap, 200.0f), float());
    return gap == gap ? e : gap;
}

// o *= 1/(1+e^(b−l)), the share of the keys, and lse = l + ln(1+e^(b−l)). A thread has U packs, at distances of the block's threads.
template <class T, int E, int U> APR_DEVICE void add_sinks(const SinksArgs &a) {
    const u32 first = block() * threads() * U + thread();
    UNROLL for (int k = 0; k < U; k++) {
        const u32 item = first + k * threads();
        if (item >= a.items) continue;
        const u32 row = item / a.packs, c = (item - row * a.packs) * E, h = c / a.d;
        T *o = (T *)a.o + row * a.o_stride + c;
        Pack<T, E> v;
        load_pack(v, o);
        const float l = a.seen[(u64)row * a.heads + h], b = a.sinks[h], share = rcp_approx(1.0f + exp_gap(l - b));
        float x[E];
        widen(x, v);
        UNROLL for (int e = 0; e < E; e++) x[e] *= share;
        narrow(v, x);
        store_pack(o, v);
        if (a.lse && c == h * a.d) a.lse[row * a.lse_stride + h] = (l < b ? b : l) + LN2 * log2_approx(1.0f + exp_gap(l < b ? b - l : l - b));
    }
}

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
