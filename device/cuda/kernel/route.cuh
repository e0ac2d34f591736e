// The choice of experts of one token. See device.Routing for the words.
#pragma once
#include "apr.cuh"

struct RouteArgs {
    float *w;
    const float *z, *scale; // scale: may be null
    i32 *chosen, *slots, *rows, *starts;
    u32 *counts; // [pieces, experts]: choices of an expert in a piece, then the slot of the first of them
    i64 w_stride, z_stride;
    u32 tokens, experts, active, renorm;
    u32 pieces, piece; // of the choices; choices of one
};

// weigh returns e^(z−top) of one logit.
APR_DEVICE float weigh(float z, float top) { return exp_approx(z - top); }

// route_token is choose and sort of experts.cu for one token with up to 256 experts, of which up to 32 are chosen, in their bits: a lane keeps 8
// logits, and the choice of its number. A warp does it.
APR_DEVICE void route_token(const RouteArgs &a) {
    constexpr u32 N = 8;
    let_next();
    wait_before();
    const u32 l = lane();
    const i32 none = 0x7fffffff;
    float z[N], v[N];
    bool bad = false;
    UNROLL for (u32 i = 0; i < N; i++) z[i] = l + 32 * i < a.experts ? a.z[l + 32 * i] : -INFINITY_F;
    UNROLL for (u32 i = 0; i < N; i++) {
        const bool nan = z[i] != z[i];
        bad |= nan;
        v[i] = nan ? -INFINITY_F : z[i];
    }
    bad = ballot(bad) != 0;
    u32 left = 0; // bit i: expert l + 32i can be chosen
    UNROLL for (u32 i = 0; i < N; i++) left |= (l + 32 * i < a.experts ? 1u : 0u) << i;
    i32 mine = none; // choice l
    float logit = 0, top = 0;
    NO_UNROLL for (u32 s = 0; s < a.active; s++) {
        float best = -INFINITY_F;
        i32 expert = none;
        UNROLL for (u32 i = 0; i < N; i++)
            if ((left >> i & 1) && (v[i] > best || expert == none)) best = v[i], expert = (i32)(l + 32 * i);
        UNROLL for (int m = 16; m; m >>= 1) {
            const float u = shfl_xor(best, m);
            const i32 e = shfl_xor(expert, m);
            if (u > best || (u == best && e < expert)) best = u, expert = e;
        }
        if ((u32)expert % 32 == l) left &= ~(1u << ((u32)expert / 32 & 31));
        if (s == l) mine = expert, logit = best;
        if (s == 0) top = best;
    }
    const bool chose = l < a.active;
    float sum = 0;
    if (a.renorm) {
        if (chose) sum += weigh(logit, top);
    } else
        UNROLL for (u32 i = 0; i < N; i++)
            if (l + 32 * i < a.experts) sum += weigh(z[i], top);
    sum = warp_sum(sum);
    u32 slot = 0, before[N] = {};
    NO_UNROLL for (u32 s = 0; s < a.active; s++) {
        const i32 other = shfl(mine, (int)s);
        slot += other < mine;
        UNROLL for (u32 i = 0; i < N; i++) before[i] += (u32)other < l + 32 * i;
    }
    UNROLL for (u32 i = 0; i < N; i++)
        if (l + 32 * i < a.experts) a.starts[l + 32 * i] = (i32)before[i];
    if (l == 0) a.starts[a.experts] = (i32)a.active;
    if (!chose) return;
    a.chosen[l] = mine;
    a.slots[l] = (i32)slot;
    a.rows[l] = 0;
    float p = weigh(logit, top) / sum;
    if (a.scale) p *= a.scale[mine];
    a.w[l] = bad ? from_bits(0x7fffffffu) : p;
}
