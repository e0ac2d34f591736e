// The choice of experts, the order of slots, and what goes between tokens and slots. See device.Routing for the words.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "route.cuh"

#define ROUTE_EXPERTS 4096 // most of a layer

// sum_of is what the weights of a token are divided by: of its chosen logits with renorm, else of all. Every lane gets it.
APR_DEVICE float sum_of(const float *z, const i32 *chosen, u32 experts, u32 active, bool renorm) {
    const float top = z[chosen[0]];
    float sum = 0;
    if (renorm)
        for (u32 s = lane(); s < active; s += 32) sum += weigh(z[chosen[s]], top);
    else
        for (u32 e = lane(); e < experts; e += 32) sum += weigh(z[e], top);
    return warp_sum(sum);
}

// A warp chooses the experts of a token: in each round the largest logit, of equal ones the lowest expert, of those behind the choice
// before in this order. NaN counts as −∞ and makes the weights NaN.
APR_DEVICE void choose(const RouteArgs &a, u32 token) {
    const float *z = a.z + token * a.z_stride;
    i32 *chosen = a.chosen + (u64)token * a.active;
    const i32 none = 0x7fffffff;
    float last = 0;
    i32 at = -1;
    bool bad = false;
    NO_UNROLL for (u32 s = 0; s < a.active; s++) {
        float best = -INFINITY_F;
        i32 expert = none;
        for (u32 e = lane(); e < a.experts; e += 32) {
            float v = z[e];
            if (v != v) v = -INFINITY_F, bad = true;
            const bool left = s == 0 || v < last || (v == last && (i32)e > at);
            if (left && (v > best || (v == best && (i32)e < expert))) best = v, expert = (i32)e;
        }
        UNROLL for (int m = 16; m; m >>= 1) {
            const float v = shfl_xor(best, m);
            const i32 e = shfl_xor(expert, m);
            if (v > best || (v == best && e < expert)) best = v, expert = e;
        }
        last = best, at = expert;
        if (lane() == 0) chosen[s] = expert;
    }
    bad = ballot(bad) != 0;
    sync_warp();
    const float top = z[chosen[0]], sum = sum_of(z, chosen, a.experts, a.active, a.renorm);
    for (u32 s = lane(); s < a.active; s += 32) {
        float p = weigh(z[chosen[s]], top) / sum;
        if (a.scale) p *= a.scale[chosen[s]];
        a.w[token * a.w_stride + s] = bad ? from_bits(0x7fffffffu) : p;
    }
}

KERNEL(route_choose, RouteArgs, 256, 4) {
    const u32 token = block() * 8 + warp();
    if (token < a.tokens) choose(a, token);
}

// matches calls use(i, m) for runs of 32 choices of a piece, of which those of the expert are the bits of m; a warp does it together.
template <class F> APR_DEVICE void matches(const RouteArgs &a, u32 expert, u32 piece, F use) {
    const u32 first = piece * a.piece, end = (u32)min_of(first + a.piece, a.tokens * a.active);
    for (u32 i = first; i < end; i += 32) use(i, ballot(i + lane() < end && (u32)a.chosen[i + lane()] == expert));
}

APR_DEVICE void count(const RouteArgs &a, u32 *counts, u32 expert, u32 piece) {
    u32 n = 0;
    matches(a, expert, piece, [&](u32, u32 m) { n += popcount(m); });
    if (lane() == 0) counts[(u64)piece * a.experts + expert] = n;
}

// add_up makes slots of counts: those of an expert begin behind those of the experts before, and of a piece behind those of the pieces
// before. The block does it together; a thread has neighbouring experts.
APR_DEVICE void add_up(const RouteArgs &a, u32 *counts) {
    SHARED(u32, part, 32);
    const u32 per = (a.experts + threads() - 1) / threads(), first = thread() * per, end = (u32)min_of(first + per, a.experts);
    u32 mine = 0;
    for (u32 e = first; e < end; e++)
        for (u32 p = 0; p < a.pieces; p++) mine += counts[(u64)p * a.experts + e];
    u32 sum = mine;
    UNROLL for (int d = 1; d < 32; d *= 2) {
        const u32 v = shfl_up(sum, d);
        if (lane() >= (u32)d) sum += v;
    }
    if (lane() == 31) part[warp()] = sum;
    sync_block();
    u32 at = sum - mine;
    for (u32 w = 0; w < warp(); w++) at += part[w];
    for (u32 e = first; e < end; e++) {
        a.starts[e] = (i32)at;
        for (u32 p = 0; p < a.pieces; p++) {
            u32 *c = counts + (u64)p * a.experts + e;
            const u32 n = *c;
            *c = at;
            at += n;
        }
    }
    if (thread() == 0) a.starts[a.experts] = (i32)(a.tokens * a.active);
}

APR_DEVICE void place(const RouteArgs &a, const u32 *counts, u32 expert, u32 piece) {
    u32 at = counts[(u64)piece * a.experts + expert];
    matches(a, expert, piece, [&](u32 i, u32 m) {
        if (m >> lane() & 1) {
            const u32 slot = at + popcount(m & ((1u << lane()) - 1));
            a.slots[i + lane()] = (i32)slot;
            a.rows[slot] = (i32)((i + lane()) / a.active);
        }
        at += popcount(m);
    });
}

// Slots of all choices, sorted by expert and then by choice: counts of pieces, their sums, places. Grid of count and place: (experts / 8,
// pieces), of add_up one block.
KERNEL(route_count, RouteArgs, 256, 4) {
    const u32 expert = block() * 8 + warp();
    if (expert < a.experts) count(a, a.counts, expert, block_y());
}
KERNEL(route_add_up, RouteArgs, 512, 1) { add_up(a, a.counts); }
KERNEL(route_place, RouteArgs, 256, 4) {
    const u32 expert = block() * 8 + warp();
    if (expert < a.experts) place(a, a.counts, expert, block_y());
}

// All three, of one piece, by one block.
APR_DEVICE void sort(const RouteArgs &a, u32 *counts) {
    NO_UNROLL for (u32 e = warp(); e < a.experts; e += threads() / 32) count(a, counts, e, 0);
    sync_block();
    add_up(a, counts);
    sync_block();
    NO_UNROLL for (u32 e = warp(); e < a.experts; e += threads() / 32) place(a, counts, e, 0);
}

KERNEL(route_sort, RouteArgs, 512, 1) {
    SHARED(u32, counts, ROUTE_EXPERTS);
    sort(a, counts);
}

// Choice and sorting of up to 16 tokens, a warp each.
KERNEL(route_few, RouteArgs, 512, 1) {
    SHARED(u32, counts, ROUTE_EXPERTS);
    if (warp() < a.tokens) choose(a, warp());
    sync_block();
    sort(a, counts);
}

// One token's, by a warp.
KERNEL(route_one, RouteArgs, 32, 1) { route_token(a); }

struct RouteBackArgs {
    void *dz;
    float *dscale;
    const float *dw, *z, *scale; // scale: may be null, and dscale with it
    float *plain;                // of slots: p·dw
    const i32 *chosen, *slots, *starts;
    i64 dz_stride, dw_stride, z_stride;
    u32 tokens, experts, active, renorm;
};

// A warp goes back through the weights of a token: dz = p·(d − Σ p·d), d = dw·scale of those chosen and 0 of others.
template <class T> APR_DEVICE void route_back(const RouteBackArgs &a) {
    const u32 token = block() * 8 + warp();
    if (token >= a.tokens) return;
    const float *z = a.z + token * a.z_stride, *dw = a.dw + token * a.dw_stride;
    const i32 *chosen = a.chosen + (u64)token * a.active;
    T *dz = (T *)a.dz + token * a.dz_stride;
    const float top = z[chosen[0]], sum = sum_of(z, chosen, a.experts, a.active, a.renorm);
    float mean = 0;
    for (u32 s = lane(); s < a.active; s += 32) {
        const float p = weigh(z[chosen[s]], top) / sum;
        if (a.scale) a.plain[a.slots[(u64)token * a.active + s]] = p * dw[s];
        mean += p * (a.scale ? dw[s] * a.scale[chosen[s]] : dw[s]);
    }
    mean = warp_sum(mean);
    for (u32 e = lane(); e < a.experts; e += 32) store(dz + e, a.renorm ? 0.0f : -(weigh(z[e], top) / sum) * mean);
    sync_warp();
    for (u32 s = lane(); s < a.active; s += 32) {
        const float d = a.scale ? dw[s] * a.scale[chosen[s]] : dw[s];
        store(dz + chosen[s], weigh(z[chosen[s]], top) / sum * (d - mean));
    }
}

KERNEL(route_back_bf16, RouteBackArgs, 256, 4) { route_back<bf16>(a); }
KERNEL(route_back_f32, RouteBackArgs, 256, 4) { route_back<float>(a); }

// dscale[e] += Σ p·dw over the expert's slots. A warp has an expert.
KERNEL(route_scale, RouteBackArgs, 256, 4) {
    const u32 expert = block() * 8 + warp();
    if (expert >= a.experts) return;
    float sum = 0;
    for (i32 j = a.starts[expert] + (i32)lane(); j < a.starts[expert + 1]; j += 32) sum += a.plain[j];
    sum = warp_sum(sum);
    if (lane() == 0) a.dscale[expert] += sum;
}

struct BalanceArgs {
    void *dz;
    const float *z, *c;
    i64 dz_stride, z_stride;
    double f;
    u32 tokens, experts;
};

// A warp has a token: dz += f·p·(c − Σ p·c), p the softmax of its logits.
template <class T> APR_DEVICE void balance(const BalanceArgs &a) {
    const u32 token = block() * 8 + warp();
    if (token >= a.tokens) return;
    const float *z = a.z + token * a.z_stride;
    T *dz = (T *)a.dz + token * a.dz_stride;
    float top = -INFINITY_F, sum = 0, mean = 0;
    bool bad = false;
    for (u32 e = lane(); e < a.experts; e += 32) top = max2(top, z[e]), bad |= z[e] != z[e];
    top = ballot(bad) ? from_bits(0x7fffffffu) : warp_max(top);
    for (u32 e = lane(); e < a.experts; e += 32) {
        const float p = weigh(z[e], top);
        sum += p;
        mean = fma_rn(p, a.c[e], mean);
    }
    sum = warp_sum(sum);
    mean = warp_sum(mean) / sum;
    for (u32 e = lane(); e < a.experts; e += 32)
        store(dz + e, load(dz + e) + (float)(a.f * (double)(weigh(z[e], top) / sum * (a.c[e] - mean))));
}

KERNEL(balance_bf16, BalanceArgs, 256, 4) { balance<bf16>(a); }
KERNEL(balance_f32, BalanceArgs, 256, 4) { balance<float>(a); }

struct CountArgs {
    float *c;
    const i32 *starts;
    u32 experts;
};

// c[e] += the slots of expert e. A thread has an expert.
KERNEL(count_slots, CountArgs, 256, 4) {
    const u32 e = block() * threads() + thread();
    if (e < a.experts) a.c[e] += (float)(a.starts[e + 1] - a.starts[e]);
}

struct CombineArgs {
    void *y;
    const void *x;
    const float *w; // null: ones
    const i32 *slots;
    Record *record;
    i64 y_stride, x_stride, w_stride;
    u32 active, limit;       // of a token, rows of x
    u32 packs, items;        // of a row of y, of all
    u32 add, code;           // of the fault
};

// A thread sums a pack of a token's slots, in the order of its choices.
template <class T, int E> APR_DEVICE void combine(const CombineArgs &a) {
    const u32 item = block() * threads() + thread();
    if (item >= a.items) return;
    const u32 token = item / a.packs, c = (item - token * a.packs) * E;
    T *y = (T *)a.y + token * a.y_stride + c;
    float sum[E] = {};
    Pack<T, E> v;
    if (a.add) {
        load_pack(v, y);
        widen(sum, v);
    }
    for (u32 s = 0; s < a.active; s++) {
        const i32 slot = a.slots[(u64)token * a.active + s];
        if ((u32)slot >= a.limit) {
            if (c == 0) first_fault(a.record, a.code, slot, a.limit);
            continue;
        }
        float x[E];
        load_pack(v, (const T *)a.x + slot * a.x_stride + c);
        widen(x, v);
        const float w = a.w ? a.w[token * a.w_stride + s] : 1.0f;
        UNROLL for (int e = 0; e < E; e++) sum[e] = fma_rn(w, x[e], sum[e]);
    }
    narrow(v, sum);
    store_pack(y, v);
}

KERNEL(combine_bf16_8, CombineArgs, 256, 4) { combine<bf16, 8>(a); }
KERNEL(combine_bf16_1, CombineArgs, 256, 4) { combine<bf16, 1>(a); }
KERNEL(combine_f32_8, CombineArgs, 256, 4) { combine<float, 8>(a); }
KERNEL(combine_f32_1, CombineArgs, 256, 4) { combine<float, 1>(a); }

struct CombineBackArgs {
    void *dx;
    float *dw;
    const void *dy, *x;
    const float *w;
    const i32 *slots;
    Record *record;
    i64 dx_stride, dw_stride, dy_stride, x_stride, w_stride;
    u32 active, limit; // of a token, rows of x
    u32 packs, code;   // of a row; of the fault
};

// A warp has a slot: dx[j] = w·dy[t], dw = dy[t]·x[j]; dx may be x.
template <class T, int E> APR_DEVICE void combine_back(const CombineBackArgs &a) {
    const u32 i = block() * 8 + warp();
    if (i >= a.limit) return;
    const u32 token = i / a.active, s = i - token * a.active;
    const i32 slot = a.slots[i];
    if ((u32)slot >= a.limit) {
        if (lane() == 0) first_fault(a.record, a.code, slot, a.limit);
        return;
    }
    const T *dy = (const T *)a.dy + token * a.dy_stride, *x = (const T *)a.x + slot * a.x_stride;
    T *dx = (T *)a.dx + slot * a.dx_stride;
    const float w = a.w[token * a.w_stride + s];
    float sum = 0;
    for (u32 c = lane(); c < a.packs; c += 32) {
        Pack<T, E> v, u;
        float p[E], q[E];
        load_pack(v, dy + c * E);
        load_pack(u, x + c * E);
        widen(p, v);
        widen(q, u);
        UNROLL for (int e = 0; e < E; e++) sum = fma_rn(p[e], q[e], sum), p[e] *= w;
        narrow(v, p);
        store_pack(dx + c * E, v);
    }
    sum = warp_sum(sum);
    if (lane() == 0) a.dw[token * a.dw_stride + s] = sum;
}

KERNEL(combine_back_bf16_8, CombineBackArgs, 256, 4) { combine_back<bf16, 8>(a); }
KERNEL(combine_back_bf16_1, CombineBackArgs, 256, 4) { combine_back<bf16, 1>(a); }
KERNEL(combine_back_f32_8, CombineBackArgs, 256, 4) { combine_back<float, 8>(a); }
KERNEL(combine_back_f32_1, CombineBackArgs, 256, 4) { combine_back<float, 1>(a); }

struct ExpertBiasArgs {
    float *dbias;
    const void *dy;
    const i32 *starts;
    i64 dbias_stride, dy_stride;
    i32 first, end; // the window: dy begins with slot `first`
    u32 cols;
};

// dbias[e] += Σ dy[j] over the slots of an expert. A block has 32 columns of an expert; warp w adds slots w, w+8, …, and the warps' sums
// are added in ascending order. Grid: (columns / 32, experts).
template <class T> APR_DEVICE void experts_bias(const ExpertBiasArgs &a) {
    SHARED(float, sums, 256);
    const u32 c = block() * 32 + lane(), expert = block_y();
    const i32 lo = a.starts[expert] < a.first ? a.first : a.starts[expert], hi = (i32)min_of(a.starts[expert + 1], a.end);
    float s = 0;
    if (c < a.cols)
        for (i32 j = lo + (i32)warp(); j < hi; j += 8) s += load((const T *)a.dy + (j - a.first) * a.dy_stride + c);
    sums[thread()] = s;
    sync_block();
    if (warp() > 0 || c >= a.cols || lo >= hi) return;
    UNROLL for (u32 w = 1; w < 8; w++) s += sums[w * 32 + lane()];
    a.dbias[expert * a.dbias_stride + c] += s;
}

KERNEL(experts_bias_bf16, ExpertBiasArgs, 256, 4) { experts_bias<bf16>(a); }
KERNEL(experts_bias_f32, ExpertBiasArgs, 256, 4) { experts_bias<float>(a); }
