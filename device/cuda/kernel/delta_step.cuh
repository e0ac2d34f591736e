// What a DeltaNet does for one position between its projections and that of its output, by one kernel: the convolution, the delta rule,
// the norm of heads and their gate. See DeltaStep in delta_step.go.
#pragma once
#include "conv.cuh"
#include "delta_gates.cuh"
#include "headnorm.cuh"

struct DeltaStepArgs {
    const void *x, *z, *ba; // q, k, v as projected; the gate of the output; b, then a
    void *y;
    const float *taps, *log_a, *dt, *norm;
    const float *from; // a head's state in each row; zero: zeros
    float *to;
    const void *inputs; // of the convolution, before this position; zero: zeros
    void *next;         // the same behind it; not inputs, which several blocks read
    i64 taps_stride, from_stride, to_stride, inputs_stride, next_stride;
    u32 key_heads, value_heads, dk, dv, conv; // conv: taps
    u32 lanes;                                // of the norm of a head, a power of two
    float eps, inv_d;
};

constexpr u32 STEP_THREADS = 1024, STEP_SLICE = 32, STEP_ROWS = 8; // a warp has every eighth row of 32 columns of the state

// step_input returns a channel behind the convolution, as Conv stores it.
template <class T> APR_DEVICE float step_input(const DeltaStepArgs &a, u32 channel, bool keeps) {
    const T *inputs = (const T *)a.inputs + channel;
    T *next = (T *)a.next + channel, x[FOUR] = {}; // the latest last
    const float *taps = a.taps + channel * a.taps_stride;
    const u32 first = FOUR - a.conv;
    float w[FOUR], sum = 0;
    UNROLL for (u32 j = 0; j < FOUR; j++) {
        if (j < first) continue;
        w[j] = taps[j - first];
        if (j == FOUR - 1) x[j] = ((const T *)a.x)[channel];
        else if (a.inputs) x[j] = inputs[(j - first) * a.inputs_stride];
    }
    UNROLL for (u32 j = 0; j < FOUR; j++) {
        if (j < first) continue;
        sum = fma_rn(w[j], load(&x[j]), sum);
        if (j > first && keeps) next[(j - first - 1) * a.next_stride] = x[j];
    }
    T u;
    store(&u, gated<T>(sum, 1.0f));
    return load(&u);
}

// A block has a value head. Sums are added in the order of delta_steps, and of head_norm.
template <class T> APR_DEVICE void delta_step(const DeltaStepArgs &a) {
    constexpr u32 R = MOST_KEYS / STEP_ROWS;
    SHARED(float, u, 3 * MOST_KEYS);  // q, k, v
    SHARED(float, qk, 2 * MOST_KEYS); // of length 1
    SHARED(float, sums, 2 * STEP_THREADS);
    SHARED(float, gate, 2); // e^g, β
    SHARED(T, z, MOST_KEYS);
    SHARED(float, norm, MOST_KEYS);
    SHARED(T, out, MOST_KEYS);
    let_next();
    const u32 head = block(), group = a.value_heads / a.key_heads, key = head / group;
    const u32 row0 = warp() % STEP_ROWS, col = warp() / STEP_ROWS * STEP_SLICE + lane(), i = thread();
    const float *from = a.from + head * a.from_stride;
    if (a.from) // a line of 128 bytes each
        for (u32 at = 32 * i; at < a.dk * a.dv; at += 32 * STEP_THREADS) prefetch(from + at);
    wait_before();
    const bool live = col < a.dv;
    float state[R];
    const u32 rows = live ? (u32)min_of(R, (a.dk + STEP_ROWS - 1 - row0) / STEP_ROWS) : 0;
    u32 at = row0 * a.dv + col;
    UNROLL for (u32 r = 0; r < R; r++, at += STEP_ROWS * a.dv) state[r] = a.from && r < rows ? from[at] : 0.0f;
    if (i < 2 * a.dk + a.dv) {
        const u32 part = i < a.dk ? 0 : i < 2 * a.dk ? 1 : 2, c = i - part * a.dk;
        const u32 channel = part < 2 ? (part * a.key_heads + key) * a.dk + c : 2 * a.key_heads * a.dk + head * a.dv + c;
        u[part * MOST_KEYS + c] = step_input<T>(a, channel, part == 2 || head % group == 0);
    } else if (i < 2 * (a.dk + a.dv)) {
        const u32 c = i - 2 * a.dk - a.dv;
        z[c] = ((const T *)a.z)[head * a.dv + c], norm[c] = a.norm[c];
    } else if (i == STEP_THREADS - 1) {
        const T *ba = (const T *)a.ba + head;
        gate[0] = exp_exact(-exp_exact(a.log_a[head]) * softplus(load(ba + a.value_heads) + a.dt[head]));
        gate[1] = sigmoid(load(ba));
    }
    sync_block();
    if (warp() < 2) {
        const float *x = u + warp() * MOST_KEYS;
        float squares = 0;
        for (u32 c = lane(); c < a.dk; c += 32) squares = fma_rn(x[c], x[c], squares);
        float f = 1.0f / sqrt_rn(warp_sum(squares) + 1e-6f);
        if (warp() == 0) f /= sqrt_rn((float)a.dk);
        for (u32 c = lane(); c < a.dk; c += 32) qk[warp() * MOST_KEYS + c] = x[c] * f;
    }
    sync_block();
    const float decay = gate[0];
    float ks = 0, o = 0;
    UNROLL for (u32 r = 0; r < R; r++) {
        if (r >= rows) continue;
        const u32 k = row0 + STEP_ROWS * r;
        state[r] *= decay;
        ks = fma_rn(state[r], qk[MOST_KEYS + k], ks);
    }
    sums[i] = ks;
    sync_block();
    const u32 slice = warp() / STEP_ROWS * (32 * STEP_ROWS) + lane();
    ks = 0;
    UNROLL for (u32 n = 0; n < STEP_ROWS; n++) ks += sums[slice + 32 * n];
    const float x = gate[1] * ((live ? u[2 * MOST_KEYS + col] : 0.0f) - ks);
    UNROLL for (u32 r = 0; r < R; r++) {
        if (r >= rows) continue;
        const u32 k = row0 + STEP_ROWS * r;
        state[r] = fma_rn(qk[MOST_KEYS + k], x, state[r]);
        o = fma_rn(state[r], qk[k], o);
    }
    sums[STEP_THREADS + i] = o;
    sync_block();
    if (row0 == 0 && live) {
        o = 0;
        UNROLL for (u32 n = 0; n < STEP_ROWS; n++) o += sums[STEP_THREADS + slice + 32 * n];
        store(out + col, o);
    }
    float *to = a.to + head * a.to_stride;
    at = row0 * a.dv + col;
    UNROLL for (u32 r = 0; r < R; r++, at += STEP_ROWS * a.dv)
        if (r < rows) to[at] = state[r];
    sync_block();
    if (warp() > 0) return;
    at = 8 * lane();
    Pack<T, 8> v = {};
    if (at < a.dv) load_pack(v, out + at);
    float squares = 0, p[8], q[8];
    widen(p, v);
    UNROLL for (int e = 0; e < 8; e++) squares = fma_rn(p[e], p[e], squares);
    const float rstd = 1.0f / sqrt_rn(fma_rn(lanes_sum(squares, a.lanes), a.inv_d, a.eps));
    if (at >= a.dv) return;
    load_weights(q, norm, at);
    UNROLL for (int e = 0; e < 8; e++) p[e] = p[e] * rstd * q[e];
    narrow(v, p);
    widen(p, v);
    load_pack(v, z + at);
    widen(q, v);
    UNROLL for (int e = 0; e < 8; e++) p[e] = gated<T>(q[e], p[e]);
    narrow(v, p);
    store_pack((T *)a.y + head * a.dv + at, v);
}
