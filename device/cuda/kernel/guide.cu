// What several teachers and hidden states need beside the loss: the mixture of distributions, and squared errors. See guide.go.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "apr.cuh"

enum { THREADS = 512 };
constexpr float LOWEST = -3.4028234e38f; // finite, so that −∞ is as far below it as below anything

struct MixArgs {
    float *y;
    const float *t;
    i64 y_stride, t_stride;
    u32 cols, vector;    // vector: all rows start at multiples of 16 bytes
    float k, temperature; // log₂e/T, T
    float log_w;          // ln w
};

// each_column calls `of` with the columns of a row and their values, those of this thread in ascending order.
template <class Of> APR_DEVICE void each_column(const float *t, const MixArgs &a, Of of) {
    const u32 whole = a.vector ? a.cols / 4 * 4 : 0;
    for (u32 c = 4 * thread(); c < whole; c += 4 * THREADS) {
        const u32x4 v = load16(t + c);
        UNROLL for (u32 e = 0; e < 4; e++) of(c + e, from_bits(v[e]));
    }
    for (u32 c = whole + thread(); c < a.cols; c += THREADS) of(c, t[c]);
}

// A block takes a row and reads it twice: once for its maximum and the sum of its exponentials, which follows the maximum so far, and
// once for the logarithms, to which ADD joins what y has.
template <bool ADD> APR_DEVICE void mix(const MixArgs &a) {
    SHARED(float, tops, 33);
    SHARED(double, part, 33);
    const float *t = a.t + block() * a.t_stride;
    float *y = a.y + block() * a.y_stride;
    float m = LOWEST, sum = 0;
    each_column(t, a, [&](u32, float v) {
        if (v > m) {
            sum *= exp2_approx((m - v) * a.k);
            m = v;
        }
        sum += exp2_approx((v - m) * a.k);
    });
    const float own = m;
    m = warp_max(m);
    if (lane() == 0) tops[warp()] = m;
    sync_block();
    m = warp_max(lane() < THREADS / 32 ? tops[lane()] : LOWEST);
    const float all = (float)block_sum((double)(sum * exp2_approx((own - m) * a.k)), part);
    const float c0 = a.temperature * (a.log_w - log2_approx(all) * LN2);
    each_column(t, a, [&](u32 c, float v) {
        v = v - m + c0;
        if (ADD) {
            const float was = y[c], big = max2(was, v);
            // ln(1+e^{−d}); of equal ones, two −∞ too, ln 2. A NaN in either stays one.
            const float d = was == v ? 0 : (was > v ? was - v : v - was);
            v = big + a.temperature * (log2_approx(1 + exp2_approx(-d * a.k)) * LN2) + (was - was == 0 || was == -INFINITY_F ? 0 : was);
        }
        y[c] = v;
    });
}

KERNEL(mix_first, MixArgs, THREADS, 2) { mix<false>(a); }
KERNEL(mix_add, MixArgs, THREADS, 2) { mix<true>(a); }

struct SquaredArgs {
    void *grad;
    const float *u;
    const void *t;
    double *sums; // [n]
    Record *record;
    i64 grad_stride, u_stride, t_stride;
    double f; // weight·2/m
    u32 cols, n;
};

// A block takes a row. What it reads of u it writes to grad afterwards, which may be u.
template <class G, class T> APR_DEVICE void squared(const SquaredArgs &a) {
    SHARED(double, part, 33);
    const i64 row = block();
    const float *u = a.u + row * a.u_stride;
    const T *t = (const T *)a.t + row * a.t_stride;
    G *grad = (G *)a.grad + row * a.grad_stride;
    const float f = (float)(a.f * a.record->inv_n);
    float sum = 0;
    for (u32 c = thread(); c < a.cols; c += threads()) {
        const float d = u[c] - load(t + c);
        sum = fma_rn(d, d, sum);
        store(grad + c, f * d);
    }
    const double all = block_sum((double)sum, part);
    if (thread() == 0) a.sums[row] = all;
}

KERNEL(squared_f32_f32, SquaredArgs, 256, 4) { squared<float, float>(a); }
KERNEL(squared_f32_bf16, SquaredArgs, 256, 4) { squared<float, bf16>(a); }
KERNEL(squared_bf16_f32, SquaredArgs, 256, 4) { squared<bf16, float>(a); }
KERNEL(squared_bf16_bf16, SquaredArgs, 256, 4) { squared<bf16, bf16>(a); }

// squared_finish adds the rows to the record: one block, thread i takes rows i, i+256, …
KERNEL(squared_finish, SquaredArgs, 256, 1) {
    SHARED(double, part, 33);
    double sum = 0;
    for (u32 r = thread(); r < a.n; r += 256) sum += a.sums[r];
    sum = block_sum(sum, part);
    if (thread() == 0) a.record->sums[0] += sum / a.cols;
}
