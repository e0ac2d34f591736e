// loss.cuh: what the kernels of loss.cu do to a slice or a row of logits.
#pragma once
#include "apr.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, EACH = 16, SLICE = THREADS * EACH };

// What is computed of a row; CROSS_ENTROPY is a gradient only. The same numbers are in loss.go.
enum Kind { CROSS_ENTROPY, FORWARD_KL, REVERSE_KL, TOTAL_VARIATION, MIXTURE };

// State is what is known of a part of a row: m its maxima of z and t, at columns iz and it; s1 = Σe^{z−mz},
// sz = Σe^{(z−mz)/T}, st = Σe^{(t−mt)/T}, a = Σe^{(t−mt)/T}[(t−mt)−(z−mz)], e = Σe^{(t−mt)/T}(t−mt).
struct State {
    double s1, sz, st, a, e;
    float mz, mt;
    u32 iz, it;
};

// Terms are the sums of a slice that need the sums of the whole row: D and Σh.
struct Terms {
    double d, h;
};

// Row is a row's part of the record, and what its gradient needs: p = e^{(t−mt)/T}·ft, Q = e^{(z−mz)/T}·fz,
// ln p − ln Q = [(t−mt)−(z−mz)]/T + log_ratio, and for cross-entropy and forward KL all factors of the gradient.
struct Row {
    double ce, d, entropy;
    float mz, mt, f1, fz, ft, log_ratio, f, h; // f1·e^{z−mz} − at the target `at` + f·(hᵢ − Q·h)
    float at;
    i32 target, agree, valid;
};

// Mix holds the coefficients of the divergences from a mixture M = βp + (1−β)Q:
// D = Σ dp·p·ln(p/M) + dq·Q·ln(Q/M), h = h_log·Q·ln(Q/M) + h_p·pQ/M + h_q·Q²/M.
struct Mix {
    float beta, dp, dq, h_log, h_p, h_q;
};

struct LossArgs {
    const float *z, *t; // t: 0 without teacher
    void *grad;
    const i32 *targets;
    Record *record;
    State *states; // [rows·slices]
    Terms *terms;  // [rows·slices]
    Row *rows;     // [rows]
    u32 *counters; // [1+rows], for loss_forward: tasks taken; slices of each row whose state is there, and 1 for the row
    double alpha, temperature;
    i64 z_stride, t_stride, grad_stride, target_stride;
    i32 n, cols, slices, kind;
    i32 lag;            // of loss_forward: rows between the sums of a row and its gradient
    i32 vector, narrow; // all rows start at multiples of four elements' size; the gradient is bfloat16
    float k, inv_t;     // log₂e/T, 1/T
    Mix mix;
};

static_assert(sizeof(State) == 56 && sizeof(Terms) == 16 && sizeof(Row) == 72 && sizeof(LossArgs) == 184, "as in loss.go");

#define NONE 0xffffffffu
#define LOWEST (-3.402823466e38f) // maxima start here, not at −∞, so that differences from them are numbers

// column returns where value i of this thread stands in its row: four values side by side, or every one THREADS after
// the other. It ascends with i.
APR_DEVICE i32 column(const LossArgs &a, i32 lo, int i) {
    i32 first = lo + (i32)thread() * (a.vector ? 4 : 1), step = a.vector ? 1 : THREADS;
    return first + i / 4 * (4 * THREADS) + i % 4 * step;
}

// read loads this thread's values of a slice; columns outside the row read −∞. Last: nobody will read them again.
template <bool Last> APR_DEVICE void read(const LossArgs &a, float (&x)[EACH], const float *row, i32 lo) {
    if (a.vector && lo + SLICE <= a.cols) {
        UNROLL for (int i = 0; i < EACH; i += 4) {
            const float *p = row + column(a, lo, i);
            u32x4 v = Last ? stream_load16(p) : load16(p);
            UNROLL for (int j = 0; j < 4; j++) x[i + j] = from_bits(v[j]);
        }
        return;
    }
    UNROLL for (int i = 0; i < EACH; i++) {
        i32 c = column(a, lo, i);
        x[i] = c < a.cols ? row[c] : -INFINITY_F;
    }
}

// recentre refers s to the maxima mz and mt, which are not smaller than its own.
APR_DEVICE void recentre(State &s, float mz, float mt, float k) {
    double dz = (double)mz - s.mz, dt = (double)mt - s.mt;
    double ft = exp2_approx((s.mt - mt) * k);
    s.s1 *= exp2_approx((s.mz - mz) * LOG2E);
    s.sz *= exp2_approx((s.mz - mz) * k);
    if (s.st != 0) { // else a and e are 0, and the shift may be anything
        s.a = ft * (s.a + s.st * (dz - dt));
        s.e = ft * (s.e - s.st * dt);
        s.st *= ft;
    }
}

APR_DEVICE State nothing() { return State{0, 0, 0, 0, 0, LOWEST, LOWEST, NONE, NONE}; }

APR_DEVICE u32 warp_min(u32 x) {
    UNROLL for (int m = 16; m; m >>= 1) {
        u32 o = shfl_xor(x, m);
        x = o < x ? o : x;
    }
    return x;
}

// merge returns the state of n parts together, computed by one warp. The maxima come first, so that no exponential is
// scaled more than once.
APR_DEVICE State merge(const State *parts, i32 n, float k) {
    State s = nothing();
    for (i32 i = lane(); i < n; i += 32) {
        s.mz = max2(s.mz, parts[i].mz);
        s.mt = max2(s.mt, parts[i].mt);
    }
    s.mz = warp_max(s.mz);
    s.mt = warp_max(s.mt);
    for (i32 i = lane(); i < n; i += 32) {
        State x = parts[i];
        if (x.mz == s.mz && x.iz < s.iz) s.iz = x.iz;
        if (x.mt == s.mt && x.it < s.it) s.it = x.it;
        recentre(x, s.mz, s.mt, k);
        s.s1 += x.s1;
        s.sz += x.sz;
        s.st += x.st;
        s.a += x.a;
        s.e += x.e;
    }
    s.s1 = warp_sum(s.s1);
    s.sz = warp_sum(s.sz);
    s.st = warp_sum(s.st);
    s.a = warp_sum(s.a);
    s.e = warp_sum(s.e);
    s.iz = warp_min(s.iz);
    s.it = warp_min(s.it);
    return s;
}

// maximum returns the largest of a warp's values and, in place, its lowest column. NaN is never the largest; the sums
// will show it.
APR_DEVICE float maximum(const LossArgs &a, const float (&x)[EACH], i32 lo, u32 &place) {
    float m = LOWEST;
    UNROLL for (int i = 0; i < EACH; i++) m = max2(m, x[i]);
    m = warp_max(m);
    place = NONE;
    UNROLL for (int i = EACH - 1; i >= 0; i--)
        if (x[i] == m) place = column(a, lo, i);
    place = warp_min(place);
    return m;
}

// stats computes the state of a slice of row r. Unit: the temperature is 1.
template <bool Teacher, bool Unit> APR_DEVICE void stats(const LossArgs &a, i64 r, i32 slice) {
    i32 lo = slice * SLICE;
    float z[EACH], t[EACH];
    read<false>(a, z, a.z + r * a.z_stride, lo);
    if (Teacher) read<false>(a, t, a.t + r * a.t_stride, lo);
    State s = nothing();
    s.mz = maximum(a, z, lo, s.iz);
    if (Teacher) s.mt = maximum(a, t, lo, s.it);
    float s1 = 0, sz = 0, st = 0, sa = 0, se = 0;
    UNROLL for (int i = 0; i < EACH; i++) {
        float dz = z[i] - s.mz;
        s1 += exp2_approx(dz * LOG2E);
        if (!Teacher) continue;
        float dt = t[i] - s.mt, et = exp2_approx(dt * a.k);
        if (!Unit) sz += exp2_approx(dz * a.k);
        st += et;
        sa = fma_rn(et, et == 0 ? 0 : dt - dz, sa); // 0·(−∞) is 0 here
        se = fma_rn(et, et == 0 ? 0 : dt, se);
    }
    s.s1 = warp_sum(s1);
    if (Teacher) {
        s.sz = Unit ? s.s1 : (double)warp_sum(sz);
        s.st = warp_sum(st);
        s.a = warp_sum(sa);
        s.e = warp_sum(se);
    }
    SHARED(State, part, WARPS);
    if (lane() == 0) part[warp()] = s;
    sync_block();
    if (warp() != 0) return;
    s = merge(part, WARPS, a.k);
    if (lane() == 0) a.states[r * a.slices + slice] = s;
}

// ln returns the natural logarithm of a sum of exponentials, which no approximation of a float would keep: it has the
// accuracy of float64. x = 2ⁿ·m with m in [√½, √2): ln x = n·ln 2 + 2·artanh((m−1)/(m+1)).
APR_DEVICE double ln(double x) {
    if (!(x > 0)) return x == 0 ? -(double)INFINITY_F : x; // NaN
    if (x - x != 0) return x;                              // +∞
    u64 b = __builtin_bit_cast(u64, x);
    i64 n = (i64)(b >> 52) - 1023;
    double m = __builtin_bit_cast(double, (b & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
    if (m > 1.4142135623730951) { m *= 0.5; n++; }
    double s = (m - 1) / (m + 1), s2 = s * s, sum = 0;
    UNROLL for (int i = 21; i >= 1; i -= 2) sum = sum * s2 + 2.0 / i;
    return (double)n * 0.6931471805599453 + s * sum;
}

// The factors of the gradient of a row with these sums; weight1 = (1−α)/N, weight = αT/N.
APR_DEVICE void factors(const LossArgs &a, Row &row, const State &s) {
    double weight1 = (1 - a.alpha) * a.record->inv_n, weight = a.alpha * a.temperature * a.record->inv_n;
    row.mz = s.mz;
    row.mt = s.mt;
    row.f1 = (float)(weight1 / s.s1);
    row.at = (float)weight1;
    if (a.kind == CROSS_ENTROPY) return;
    bool forward = a.kind == FORWARD_KL;
    row.f = (float)weight;
    row.fz = (float)((forward ? weight : 1) / s.sz);
    row.ft = (float)((forward ? weight : 1) / s.st);
    if (forward && a.inv_t == 1) row.fz = (float)((weight1 + weight) / s.sz); // one exponential serves both
}

// merge_row merges the slices of row r, by one warp.
APR_DEVICE void merge_row(const LossArgs &a, i64 r) {
    State s = merge(a.states + r * a.slices, a.slices, a.k);
    if (lane() != 0) return;
    Row row{};
    row.target = a.targets[r * a.target_stride];
    row.valid = row.target >= 0 && row.target < a.cols;
    if (!row.valid) {
        first_fault(a.record, 2, row.target, a.cols);
        a.rows[r] = row;
        return;
    }
    row.ce = s.mz + ln(s.s1) - a.z[r * a.z_stride + row.target];
    if (a.t) {
        double ln_st = ln(s.st), ln_ratio = ln(s.sz) - ln_st;
        row.entropy = ln_st - s.e / (a.temperature * s.st);
        row.d = s.a / (a.temperature * s.st) + ln_ratio;
        row.log_ratio = (float)ln_ratio;
        row.agree = s.iz == s.it && s.iz != NONE;
    }
    factors(a, row, s);
    a.rows[r] = row;
}

// times returns x·y with 0·(±∞ or NaN) = 0: a vanished probability takes its logarithm with it.
APR_DEVICE float times(float x, float y) { return x == 0 ? 0 : x * y; }

// term returns h of one pair of logits, adds its part of D to d, and gives Q = q.
template <int Kind> APR_DEVICE float term(const LossArgs &a, const Row &row, float z, float t, float &q, float &d) {
    float dz = z - row.mz, dt = t - row.mt;
    float p = exp2_approx(dt * a.k) * row.ft, ratio = (dt - dz) * a.inv_t + row.log_ratio; // ln(p/Q)
    q = exp2_approx(dz * a.k) * row.fz;
    if (Kind == REVERSE_KL) {
        float h = times(q, -ratio);
        d += h;
        return h;
    }
    if (Kind == TOTAL_VARIATION) {
        float x = q - p;
        d += 0.5f * __builtin_fabsf(x);
        return x > 0 ? 0.5f * q : x < 0 ? -0.5f * q : 0 * x; // NaN stays
    }
    // With e = e^{−|ln(p/Q)|}, M/Q = (1−β)+βe where p ≤ Q, and (β+(1−β)e)/e elsewhere. Below the floor of e the smaller
    // probability has vanished.
    float e = max2(exp2_approx(-__builtin_fabsf(ratio) * LOG2E), 1e-37f), beta = a.mix.beta;
    bool above = ratio > 0;
    float big = above ? beta + (1 - beta) * e : (1 - beta) + beta * e;
    float log = log2_approx(big) * LN2, q_m = (above ? e : 1) * rcp_approx(big);
    float ln_pm = min2(ratio, 0) - log, ln_qm = min2(-ratio, 0) - log;
    d += times(a.mix.dp * p, ln_pm) + times(a.mix.dq * q, ln_qm);
    return times(a.mix.h_log * q, ln_qm) + times(a.mix.h_p * p, q_m) + times(a.mix.h_q * q, q_m);
}

// terms computes D and Σh of the block's slice.
template <int Kind> APR_DEVICE void terms(const LossArgs &a) {
    i64 r = block() / a.slices;
    i32 lo = (i32)(block() % a.slices) * SLICE;
    float z[EACH], t[EACH], q, d = 0, h = 0;
    read<false>(a, z, a.z + r * a.z_stride, lo);
    read<false>(a, t, a.t + r * a.t_stride, lo);
    Row row = a.rows[r];
    UNROLL for (int i = 0; i < EACH; i++) h += term<Kind>(a, row, z[i], t[i], q, d);
    SHARED(double, part, 33);
    double sum_d = block_sum((double)d, part), sum_h = block_sum((double)h, part);
    if (thread() == 0) a.terms[block()] = Terms{sum_d, sum_h};
}

// write stores this thread's values of a slice of the gradient, rounding to bfloat16 once if that is its type.
APR_DEVICE void write(const LossArgs &a, i64 r, i32 lo, const float (&g)[EACH]) {
    float *wide = (float *)a.grad + r * a.grad_stride;
    bf16 *narrow = (bf16 *)a.grad + r * a.grad_stride;
    if (a.vector && lo + SLICE <= a.cols) {
        UNROLL for (int i = 0; i < EACH; i += 4) {
            i32 c = column(a, lo, i);
            if (a.narrow) {
                stream_store8(narrow + c, u32x2{pack_bf16(g[i], g[i + 1]), pack_bf16(g[i + 2], g[i + 3])});
            } else {
                stream_store16(wide + c, u32x4{bits(g[i]), bits(g[i + 1]), bits(g[i + 2]), bits(g[i + 3])});
            }
        }
        return;
    }
    UNROLL for (int i = 0; i < EACH; i++) {
        i32 c = column(a, lo, i);
        if (c >= a.cols) continue;
        if (a.narrow) {
            store(narrow + c, g[i]);
        } else {
            store(wide + c, g[i]);
        }
    }
}

// await returns when the row is merged.
APR_DEVICE void await(const LossArgs &a, i64 r) {
    if (thread() == 0)
        while (load_acquire(&a.counters[1 + r]) != (u32)a.slices + 1) {}
    sync_block();
}

// gradient writes the gradient of a slice of row r. It may lie over z: every thread has read its values before. Early:
// the row may not be merged yet.
template <int Kind, bool Unit, bool Early = false> APR_DEVICE void gradient(const LossArgs &a, i64 r, i32 slice) {
    i32 lo = slice * SLICE;
    float z[EACH], t[EACH], g[EACH], q, d = 0;
    read<true>(a, z, a.z + r * a.z_stride, lo);
    if (Kind != CROSS_ENTROPY) read<true>(a, t, a.t + r * a.t_stride, lo);
    if (Early) await(a, r);
    Row row = a.rows[r];
    UNROLL for (int i = 0; i < EACH; i++) {
        float dz = z[i] - row.mz;
        g[i] = Unit && Kind == FORWARD_KL ? 0 : row.f1 * exp2_approx(dz * LOG2E);
        if (Kind == FORWARD_KL) {
            // Both products are rounded before they are subtracted, so that equal logits give a gradient of exactly 0.
            float student = mul_rn(row.fz, exp2_approx(dz * a.k)), teacher = mul_rn(row.ft, exp2_approx((t[i] - row.mt) * a.k));
            g[i] += student - teacher;
        } else if (Kind != CROSS_ENTROPY) {
            float h = term<Kind>(a, row, z[i], t[i], q, d);
            g[i] += row.f * (h - mul_rn(q, row.h));
        }
    }
    i32 y = row.target;
    if (y >= lo && y < lo + SLICE) {
        UNROLL for (int i = 0; i < EACH; i++)
            if (column(a, lo, i) == y) g[i] -= row.at;
    }
    if (!row.valid) {
        UNROLL for (int i = 0; i < EACH; i++) g[i] = 0;
    }
    write(a, r, lo, g);
}
