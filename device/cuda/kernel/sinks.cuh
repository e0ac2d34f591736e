// Attention sinks, behind attention without them: see sinks.go.
#pragma once
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
