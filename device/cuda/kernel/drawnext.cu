// The next token of each row: an id of softmax(x + never) by Gumbel's numbers. See drawnext.go.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "apr.cuh"
#include "random.cuh"

struct DrawNextArgs {
    i32 *ids;
    float *out;
    const float *x, *never; // never: zero for none
    const i32 *keys;
    i64 id_stride, out_stride, stride;
    u32 cols;
};

// gumbel is −ln(−ln(1−y)), y = (k + ½)/2³² of the number k of split_mix. ln(1−y) is a
// series where y is small: there the logarithm of a number near 1 has few digits, and the largest numbers come from it.
APR_DEVICE float gumbel(u64 key, u64 i) {
    const float y = ((float)split_mix(key, i) + 0.5f) * 0x1p-32f;
    const float series = y * (1.0f + y * (0.5f + y * (0.33333334f + y * 0.25f)));
    const float e = y < 0.015625f ? series : -LN2 * log2_approx(max2(1.0f - y, 0x1p-33f));
    return -LN2 * log2_approx(e);
}

// Lot is the best score of some columns, and the sum of their exponentials.
struct Lot {
    float score, value; // the largest score, and the logit there
    u32 at;             // ~0: there was none
    u32 unfit;          // a logit is NaN or +∞
    float top, sum;     // the largest logit, Σ e^(x−top)
    APR_METHOD Lot() : score(-INFINITY_F), value(0), at(~0u), unfit(0), top(-INFINITY_F), sum(0) {}
    APR_METHOD void keep(u32x4 *w) const {
        w[0] = u32x4{bits(score), bits(value), at, unfit};
        w[1] = u32x4{bits(top), bits(sum), 0, 0};
    }
    APR_METHOD void read(const u32x4 *w) {
        score = from_bits(w[0][0]);
        value = from_bits(w[0][1]);
        at = w[0][2];
        unfit = w[0][3];
        top = from_bits(w[1][0]);
        sum = from_bits(w[1][1]);
    }
    APR_METHOD void take(float x, float never, u64 key, u32 c) {
        if (!(x < INFINITY_F)) unfit = 1;
        if (!(x > -INFINITY_F)) return;
        if (x > top) {
            sum *= exp_approx(top - x);
            top = x;
        }
        sum += exp_approx(x - top);
        const float s = x + never + gumbel(key, c);
        if (s > score) { score = s; at = c; value = x; }
    }
    APR_METHOD void join(const Lot &b) {
        if (b.score > score || (b.score == score && b.at < at)) { score = b.score; at = b.at; value = b.value; }
        unfit |= b.unfit;
        const float higher = max2(top, b.top);
        if (higher > -INFINITY_F) sum = sum * exp_approx(top - higher) + b.sum * exp_approx(b.top - higher);
        top = higher;
    }
    APR_METHOD void join_lanes() {
        UNROLL for (int m = 16; m; m >>= 1) {
            Lot b;
            b.score = shfl_xor(score, m);
            b.value = shfl_xor(value, m);
            b.at = shfl_xor(at, m);
            b.unfit = shfl_xor(unfit, m);
            b.top = shfl_xor(top, m);
            b.sum = shfl_xor(sum, m);
            join(b);
        }
    }
};

// Grid: rows. A thread takes packs of E columns, then one of those behind the last whole pack.
template <int E> APR_DEVICE void draw(const DrawNextArgs &a) {
    SHARED(u32x4, parts, 64); // a Lot of each warp
    const i64 row = block();
    const float *x = a.x + row * a.stride;
    const i32 *k = a.keys + row * 2;
    const u64 key = (u64)(u32)k[0] | (u64)(u32)k[1] << 32;
    Lot lot;
    const u32 whole = a.cols / E * E;
    for (u32 base = thread() * E; base < whole; base += threads() * E) {
        Pack<float, E> v;
        load_pack(v, x + base);
        float p[E];
        widen(p, v);
        UNROLL for (u32 e = 0; e < E; e++) lot.take(p[e], a.never ? a.never[base + e] : 0.0f, key, base + e);
    }
    if (const u32 c = whole + thread(); c < a.cols) lot.take(x[c], a.never ? a.never[c] : 0.0f, key, c);
    lot.join_lanes();
    if (lane() == 0) lot.keep(parts + 2 * warp());
    sync_block();
    if (warp() != 0) return;
    lot = Lot();
    if (lane() < threads() / 32) lot.read(parts + 2 * lane());
    lot.join_lanes();
    if (lane() != 0) return;
    const u32 id = lot.at == ~0u ? 0 : lot.at;
    a.ids[row * a.id_stride] = (i32)id;
    a.out[row * a.out_stride] = (float)id;
    const bool fit = !lot.unfit && lot.at != ~0u;
    a.out[row * a.out_stride + 1] = fit ? lot.value - lot.top - LN2 * log2_approx(lot.sum) : from_bits(0x7fc00000u);
}

KERNEL(draw_next_8, DrawNextArgs, 512, 2) { draw<8>(a); }
KERNEL(draw_next_1, DrawNextArgs, 512, 2) { draw<1>(a); }
