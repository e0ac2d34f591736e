// loss.cuh: what the kernels of loss.cu do to a slice or a row of logits.
#pragma once
#include "apr.cuh"

enum { THREADS = 256, WARPS = THREADS / 32, EACH = 16, SLICE = THREADS * EACH };

// What is computed of a row; CROSS_ENTROPY and DRAWS are gradients only. loss.go has the same numbers, but for DRAWS.
enum Kind { CROSS_ENTROPY, FORWARD_KL, REVERSE_KL, TOTAL_VARIATION, MIXTURE, DRAWS };

// State is what is known of a part of a row: its maxima mz and mt, the lowest columns where z and t have them, and sums:
// Σe^{z−mz}, Σe^{(t−mt)/T}, A = Σe^{(t−mt)/T}[(t−mt)−(z−mz)], E = Σe^{(t−mt)/T}(t−mt), Σe^{(z−mz)/T}.
enum Sum { S1, ST, SA, SE, SZ, SUMS };
struct State {
    double sum[SUMS];
    float mz, mt;
    u32 place[2];
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
    double alpha, temperature;
    i64 z_stride, t_stride, grad_stride, target_stride;
    i32 n, cols, slices, kind;
    i32 vector, narrow; // all rows start at multiples of four elements' size; the gradient is bfloat16
    float k, inv_t;     // log₂e/T, 1/T
    Mix mix;
};

// CappedLossArgs: the gradient is over what z was before its soft-cap.
struct CappedLossArgs : LossArgs {
    float inv_cap;
};

static_assert(sizeof(CappedLossArgs) == 176, "as in loss.go");
static_assert(sizeof(State) == 56 && sizeof(Terms) == 16 && sizeof(Row) == 72 && sizeof(LossArgs) == 168, "as in loss.go");

#define NONE 0xffffffffu
#define LOWEST (-3.402823466e38f) // maxima start here, not at −∞, so that differences from them are numbers

// Columns says where this thread's values stand in a row: four side by side, or every one THREADS after the other. The
// columns ascend. They are computed where they are used; kept in registers they would be too many.
struct Columns {
    i32 first, step;
    APR_METHOD i32 at(int i) const { return first + i / 4 * (4 * THREADS) + i % 4 * step; }
};

APR_DEVICE Columns columns(const LossArgs &a, i32 lo) {
    Columns c{lo + (i32)thread() * (a.vector ? 4 : 1), a.vector ? 1 : THREADS};
    opaque(c.first);
    opaque(c.step);
    return c;
}

// read loads this thread's values of a slice; columns outside the row read −∞. Last: nobody will read them again.
template <bool Last> APR_DEVICE void read(const LossArgs &a, float (&x)[EACH], const float *row, i32 lo) {
    Columns c = columns(a, lo);
    if (a.vector && lo + SLICE <= a.cols) {
        const float *p = row + c.first;
        UNROLL for (int i = 0; i < EACH; i += 4, p += 4 * THREADS) {
            u32x4 v = Last ? stream_load16(p) : load16(p);
            UNROLL for (int j = 0; j < 4; j++) x[i + j] = from_bits(v[j]);
        }
        return;
    }
    UNROLL for (int i = 0; i < EACH; i++) x[i] = c.at(i) < a.cols ? row[c.at(i)] : -INFINITY_F;
}

APR_DEVICE u32 warp_min(u32 x) {
    UNROLL for (int m = 16; m; m >>= 1) {
        u32 o = shfl_xor(x, m);
        x = o < x ? o : x;
    }
    return x;
}

// warp_sums returns in lanes 8i…8i+7 the sum of the warp's i-th arguments, with the bits of warp_sum.
APR_DEVICE float warp_sums(float x0, float x1, float x2, float x3) {
    bool second = lane() & 16, odd = lane() & 8;
    float x = (second ? x2 : x0) + shfl_xor(second ? x0 : x2, 16);
    float y = (second ? x3 : x1) + shfl_xor(second ? x1 : x3, 16);
    float s = (odd ? y : x) + shfl_xor(odd ? x : y, 8);
    UNROLL for (int m = 4; m; m >>= 1) s += shfl_xor(s, m);
    return s;
}

// warp_maxima returns the largest x of the warp in lanes 0…15, and the largest y in the others.
APR_DEVICE float warp_maxima(float x, float y) {
    bool second = lane() & 16;
    float m = max2(second ? y : x, shfl_xor(second ? x : y, 16));
    UNROLL for (int d = 8; d; d >>= 1) m = max2(m, shfl_xor(m, d));
    return m;
}

// maximum returns the largest of a thread's values. NaN is never the largest; the sums will show it.
APR_DEVICE float maximum(const float (&x)[EACH]) {
    float m[4] = {x[0], x[1], x[2], x[3]};
    UNROLL for (int i = 4; i < EACH; i++) m[i % 4] = max2(m[i % 4], x[i]);
    return max2(max2(max2(m[0], m[1]), max2(m[2], m[3])), LOWEST);
}

// place returns the lowest column where a value of the warp is m, if any; own is the thread's largest. Few warps search.
APR_DEVICE u32 place(const LossArgs &a, const float (&x)[EACH], i32 lo, float own, float m) {
    if (ballot(own == m) == 0) return NONE;
    Columns c = columns(a, lo);
    u32 lowest = NONE;
    UNROLL for (int i = EACH - 1; i >= 0; i--)
        if (x[i] == m) lowest = c.at(i);
    return warp_min(lowest);
}

// add adds this thread's values, centred at the maxima of their slice, to sums that are 0. Equal z and t give equal bits
// in sums of equal meaning: each is made by the same operations in the same order. SA or SE is NaN where a vanished
// probability met an infinity.
template <bool Teacher, bool Tempered> APR_DEVICE void add(const LossArgs &a, float (&s)[SUMS], const float (&z)[EACH], const float (&t)[EACH], float mz, float mt) {
    UNROLL for (int i = 0; i < EACH; i++) {
        float dz = z[i] - mz;
        s[S1] += exp2_approx(mul_rn(dz, LOG2E));
        if (!Tempered) continue;
        s[SZ] += exp2_approx(mul_rn(dz, a.k));
        if (!Teacher) continue;
        float dt = t[i] - mt, v = exp2_approx(mul_rn(dt, a.k));
        s[ST] += v;
        s[SA] = fma_rn(v, dt - dz, s[SA]);
        s[SE] = fma_rn(v, dt, s[SE]);
    }
}

// add_again is add for SA and SE alone, with 0·(−∞) = 0, of a slice of row r. It reads the values once more, lest they be
// kept in registers for the rare case that it is needed.
APR_DEVICE void add_again(const LossArgs &a, float (&s)[SUMS], i64 r, i32 lo, float mz, float mt) {
    Columns c = columns(a, lo);
    s[SA] = s[SE] = 0;
    NO_UNROLL for (int i = 0; i < EACH; i++) {
        if (c.at(i) >= a.cols) break;
        float z = a.z[r * a.z_stride + c.at(i)], t = a.t[r * a.t_stride + c.at(i)];
        float dt = t - mt, v = exp2_approx(mul_rn(dt, a.k));
        s[SA] = fma_rn(v, v == 0 ? 0 : dt - (z - mz), s[SA]);
        s[SE] = fma_rn(v, v == 0 ? 0 : dt, s[SE]);
    }
}

// stats computes the state of the block's slice; warp 0 writes it. Tempered: with Σe^{(z−mz)/T}.
template <bool Teacher, bool Tempered = Teacher> APR_DEVICE void stats(const LossArgs &a) {
    SHARED(float, most, 2 * WARPS);
    SHARED(float, part, SUMS * WARPS);
    SHARED(u32, places, 2 * WARPS);
    i64 r = block_y();
    i32 slice = (i32)block(), lo = slice * SLICE, l = (i32)lane(), w = (i32)warp();
    float z[EACH], t[EACH] = {};
    read<false>(a, z, a.z + r * a.z_stride, lo);
    if (Teacher) read<false>(a, t, a.t + r * a.t_stride, lo);
    float own_z = maximum(z), own_t = Teacher ? maximum(t) : LOWEST, m = warp_maxima(own_z, own_t);
    if (l % 16 == 0) most[l / 16 * WARPS + w] = m;
    sync_block();
    float mz = most[0], mt = most[WARPS], s[SUMS] = {};
    UNROLL for (int i = 1; i < WARPS; i++) {
        mz = max2(mz, most[i]);
        mt = max2(mt, most[WARPS + i]);
    }
    u32 iz = place(a, z, lo, own_z, mz), it = Teacher ? place(a, t, lo, own_t, mt) : NONE;
    if (l == 0) {
        places[w] = iz;
        places[WARPS + w] = it;
    }
    add<Teacher, Tempered>(a, s, z, t, mz, mt);
    if (!(s[SA] == s[SA] && s[SE] == s[SE])) add_again(a, s, r, lo, mz, mt);
    float sz = Tempered ? warp_sum(s[SZ]) : 0, sums = warp_sums(s[S1], s[ST], s[SA], s[SE]);
    if (l % 8 == 0) part[l / 8 * WARPS + w] = sums;
    if (l == 0) part[SZ * WARPS + w] = sz;
    sync_block();
    if (w != 0) return;
    State &state = a.states[r * a.slices + slice];
    if (l < SUMS) {
        double sum = 0;
        UNROLL for (int i = 0; i < WARPS; i++) sum += part[l * WARPS + i];
        state.sum[l] = sum;
    } else if (l < SUMS + 2) {
        u32 lowest = NONE;
        UNROLL for (int i = 0; i < WARPS; i++) {
            u32 p = places[(l - SUMS) * WARPS + i];
            lowest = p < lowest ? p : lowest;
        }
        state.place[l - SUMS] = lowest;
    } else if (l == SUMS + 2) {
        state.mz = mz;
        state.mt = mt;
    }
}

// merge returns the state of a row of which n slices' states are given, computed by one warp. The maxima come first, so
// that no exponential is scaled more than once. The sums of z and t are added by the same operations.
APR_DEVICE State merge(const State *slices, i32 n, float k) {
    State s{{}, LOWEST, LOWEST, {NONE, NONE}};
    NO_UNROLL for (i32 i = lane(); i < n; i += 32) {
        s.mz = max2(s.mz, slices[i].mz);
        s.mt = max2(s.mt, slices[i].mt);
    }
    s.mz = warp_max(s.mz);
    s.mt = warp_max(s.mt);
    NO_UNROLL for (i32 i = lane(); i < n; i += 32) {
        State x = slices[i];
        if (x.mz == s.mz && x.place[0] < s.place[0]) s.place[0] = x.place[0];
        if (x.mt == s.mt && x.place[1] < s.place[1]) s.place[1] = x.place[1];
        float down_z = x.mz - s.mz, down_t = x.mt - s.mt;
        double ft = exp2_approx(mul_rn(down_t, k)), fz = exp2_approx(mul_rn(down_z, k)), f1 = exp2_approx(mul_rn(down_z, LOG2E));
        s.sum[S1] = __builtin_fma(x.sum[S1], f1, s.sum[S1]);
        s.sum[SZ] = __builtin_fma(x.sum[SZ], fz, s.sum[SZ]);
        s.sum[ST] = __builtin_fma(x.sum[ST], ft, s.sum[ST]);
        if (x.sum[ST] == 0) continue; // the teacher gives none of its ids: A and E are 0, and the shift may be anything
        double dz = (double)s.mz - x.mz, dt = (double)s.mt - x.mt;
        s.sum[SA] += ft * (x.sum[SA] + x.sum[ST] * (dz - dt));
        s.sum[SE] += ft * (x.sum[SE] - x.sum[ST] * dt);
    }
    UNROLL for (int i = 0; i < SUMS; i++) s.sum[i] = warp_sum(s.sum[i]);
    s.place[0] = warp_min(s.place[0]);
    s.place[1] = warp_min(s.place[1]);
    return s;
}

// inverse returns 1/x to about a unit in the last place for x of float32's range, by two of Newton's steps: a division
// is a call that takes many registers. 0 and ∞ give NaN.
APR_DEVICE double inverse(double x) {
    double r = rcp_approx((float)x);
    r = __builtin_fma(r, __builtin_fma(-x, r, 1), r);
    return __builtin_fma(r, __builtin_fma(-x, r, 1), r);
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
    double s = (m - 1) * inverse(m + 1), s2 = s * s, sum = 0;
    UNROLL for (int i = 21; i >= 1; i -= 2) sum = __builtin_fma(sum, s2, 2.0 / i);
    return __builtin_fma((double)n, 0.6931471805599453, s * sum);
}

// The factors of the gradient of a row with these sums; weight1 = (1−α)/N, weight = αT/N.
APR_DEVICE void factors(const LossArgs &a, Row &row, const State &s) {
    double weight1 = (1 - a.alpha) * a.record->inv_n, weight = a.alpha * a.temperature * a.record->inv_n;
    row.mz = s.mz;
    row.mt = s.mt;
    row.f1 = (float)(weight1 * inverse(s.sum[S1]));
    row.at = (float)weight1;
    if (a.kind == CROSS_ENTROPY) return;
    row.f = (float)weight;
    double all = a.kind == FORWARD_KL ? weight : 1;
    row.ft = (float)(all * inverse(s.sum[ST]));
    row.fz = (float)(all * inverse(s.sum[SZ]));
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
    row.ce = s.mz + ln(s.sum[S1]) - a.z[r * a.z_stride + row.target];
    if (a.t) {
        double ln_st = ln(s.sum[ST]), ln_ratio = ln(s.sum[SZ]) - ln_st;
        double inv = inverse(a.temperature * s.sum[ST]);
        row.entropy = ln_st - s.sum[SE] * inv;
        row.d = s.sum[SA] * inv + ln_ratio;
        row.log_ratio = (float)ln_ratio;
        row.agree = s.place[0] == s.place[1] && s.place[0] != NONE;
    }
    factors(a, row, s);
    a.rows[r] = row;
}

// times returns x·y with 0·(±∞ or NaN) = 0: a vanished probability takes its logarithm with it.
APR_DEVICE float times(float x, float y) { return x == 0 ? 0 : x * y; }

// probability returns e^{(x−most)/T}·f. Nothing of it can become part of another operation, so that equal logits give
// equal bits wherever p and Q are compared or subtracted.
APR_DEVICE float probability(const LossArgs &a, float x, float most, float f) { return mul_rn(exp2_approx(mul_rn(x - most, a.k)), f); }

// term returns h of one pair of logits, adds its part of D to d, and gives Q = q.
template <int Kind> APR_DEVICE float term(const LossArgs &a, const Row &row, float z, float t, float &q, float &d) {
    float p = probability(a, t, row.mt, row.ft), ratio = fma_rn((t - row.mt) - (z - row.mz), a.inv_t, row.log_ratio); // ln(p/Q)
    q = probability(a, z, row.mz, row.fz);
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
    i64 r = block_y();
    i32 lo = (i32)block() * SLICE;
    float z[EACH], t[EACH], q, d = 0, h = 0;
    read<false>(a, z, a.z + r * a.z_stride, lo);
    read<false>(a, t, a.t + r * a.t_stride, lo);
    Row row = a.rows[r];
    UNROLL for (int i = 0; i < EACH; i++) h += term<Kind>(a, row, z[i], t[i], q, d);
    SHARED(double, part, 33);
    double sum_d = block_sum((double)d, part), sum_h = block_sum((double)h, part);
    if (thread() == 0) a.terms[r * a.slices + block()] = Terms{sum_d, sum_h};
}

// slope returns the gradient of one pair of logits, but for the target's part.
template <int Kind> APR_DEVICE float slope(const LossArgs &a, const Row &row, float z, float t) {
    float u = exp2_approx((z - row.mz) * LOG2E);
    if (Kind == CROSS_ENTROPY) return row.f1 * u;
    if (Kind == DRAWS) return fma_rn(row.f1, u, probability(a, z, row.mz, row.fz)); // but for the ids that were drawn
    if (Kind != FORWARD_KL) {
        float q, d = 0, h = term<Kind>(a, row, z, t, q, d);
        return fma_rn(row.f1, u, row.f * (h - mul_rn(q, row.h)));
    }
    // Equal logits give a gradient of exactly 0 where cross-entropy has no part, f1 = 0.
    return fma_rn(row.f1, u, probability(a, z, row.mz, row.fz) - probability(a, t, row.mt, row.ft));
}

// times_cap multiplies the gradient of z by the slope of the cap.
APR_DEVICE float times_cap(const LossArgs &, float g, float) { return g; }
APR_DEVICE float times_cap(const CappedLossArgs &a, float g, float z) {
    const float x = z * a.inv_cap;
    return g * fma_rn(-x, x, 1.0f);
}

// write4 computes and stores the gradient of values i to i+3 of this thread, rounding to bfloat16 once if that is its
// type. c is where the values stand in the row of the gradient that begins at element `row_at`. Plain: the slice is
// within the row, four values travel at once, and the target is elsewhere.
template <int Kind, class A> APR_DEVICE void write4(const A &a, const Row &row, bool plain, const Columns &c, i64 row_at, int i, const float (&z)[EACH], const float (&t)[EACH]) {
    float g[4];
    UNROLL for (int j = 0; j < 4; j++) g[j] = slope<Kind>(a, row, z[i + j], t[i + j]);
    if (plain) {
        UNROLL for (int j = 0; j < 4; j++) g[j] = times_cap(a, g[j], z[i + j]);
        i64 at = row_at + c.first + i * THREADS;
        if (a.narrow) {
            stream_store8((bf16 *)a.grad + at, u32x2{pack_bf16(g[0], g[1]), pack_bf16(g[2], g[3])});
        } else {
            stream_store16((float *)a.grad + at, u32x4{bits(g[0]), bits(g[1]), bits(g[2]), bits(g[3])});
        }
        return;
    }
    UNROLL for (int j = 0; j < 4; j++) {
        i32 col = c.at(i + j);
        float v = !row.valid ? 0 : times_cap(a, col == row.target ? g[j] - row.at : g[j], z[i + j]);
        if (col >= a.cols) continue;
        if (a.narrow) {
            store((bf16 *)a.grad + row_at + col, v);
        } else {
            store((float *)a.grad + row_at + col, v);
        }
    }
}

// gradient writes the gradient of the block's slice. It may lie over z: every thread has read its values before.
template <int Kind, class A> APR_DEVICE void gradient(const A &a) {
    i64 r = block_y();
    i32 lo = (i32)block() * SLICE;
    float z[EACH], t[EACH] = {};
    read<true>(a, z, a.z + r * a.z_stride, lo);
    if (Kind != CROSS_ENTROPY && Kind != DRAWS) read<true>(a, t, a.t + r * a.t_stride, lo);
    Row row = a.rows[r];
    Columns c = columns(a, lo);
    bool target = row.target >= lo && row.target < lo + SLICE;
    bool plain = a.vector && lo + SLICE <= a.cols && row.valid && !target;
    UNROLL for (int i = 0; i < EACH; i += 4) write4<Kind>(a, row, plain, c, r * a.grad_stride, i, z, t);
}
