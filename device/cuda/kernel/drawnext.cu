// The next token of each row: an id of softmax((x + never)/T), of those that top-k and top-p leave, by Gumbel's numbers. See
// drawnext.go.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "apr.cuh"
#include "random.cuh"

struct DrawNextArgs {
    i32 *ids;
    float *out;
    const float *x, *never, *limits; // never: zero for none
    const i32 *keys;
    i64 id_stride, out_stride, stride, limits_stride;
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
        look(x);
        if (x > -INFINITY_F) score_of(x, x + never, key, c);
    }
    // look takes a logit into the sum.
    APR_METHOD void look(float x) {
        if (!(x < INFINITY_F)) unfit = 1;
        if (!(x > -INFINITY_F)) return;
        if (x > top) {
            sum *= exp_approx(top - x);
            top = x;
        }
        sum += exp_approx(x - top);
    }
    // score_of takes the score of a column alone; t is (x + never)/T.
    APR_METHOD void score_of(float x, float t, u64 key, u32 c) {
        const float s = t + gumbel(key, c);
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

// each calls f(x, x + never, column) for the columns of a thread, those of draw, and flush() behind every pack.
template <int E, class F, class G> APR_DEVICE void each(const DrawNextArgs &a, const float *x, F f, G flush) {
    const u32 whole = a.cols / E * E;
    for (u32 base = thread() * E; base < whole; base += threads() * E) {
        Pack<float, E> v;
        load_pack(v, x + base);
        float p[E];
        widen(p, v);
        UNROLL for (u32 e = 0; e < E; e++) f(p[e], a.never ? p[e] + a.never[base + e] : p[e], base + e);
        flush();
    }
    if (const u32 c = whole + thread(); c < a.cols) {
        f(x[c], a.never ? x[c] + a.never[c] : x[c], c);
        flush();
    }
}

// joined returns what the lots of all threads have together, in lane 0; score, column and fitness in every thread.
APR_DEVICE Lot joined(Lot lot, u32x4 *parts) {
    lot.join_lanes();
    sync_block();
    if (lane() == 0) lot.keep(parts + 2 * warp());
    sync_block();
    lot = Lot();
    if (lane() < threads() / 32) lot.read(parts + 2 * lane());
    lot.join_lanes();
    return lot;
}

// Mass is a sum of weights: in float32 over a pack, in float64 beyond.
struct Mass {
    double sum;
    float near;
    APR_METHOD Mass() : sum(0), near(0) {}
    APR_METHOD void flush() {
        sum += near;
        near = 0;
    }
};

// place is the order of floats as that of numbers; −0 is 0.
APR_DEVICE u32 place(float y) {
    const u32 u = y == 0.0f ? 0 : bits(y);
    return u >> 31 ? ~u : u | 0x80000000u;
}
APR_DEVICE float from_place(u32 p) { return from_bits(p >> 31 ? p & 0x7fffffffu : ~p); }

APR_DEVICE u32 warp_sum(u32 v) {
    UNROLL for (int m = 16; m; m >>= 1) v += shfl_xor(v, m);
    return v;
}

// of_first returns the sum of the weights of the first k columns, of which the last has a place in [lo, hi): eight parts
// of what is left are told apart by one reading, and of equal logits it does not matter which are the first. It ends where
// a place has just k columns from there on, mostly long before the last bit.
template <int E>
APR_DEVICE double of_first(const DrawNextArgs &a, const float *x, double k, float top, float scale, u32 lo, u32 hi, double *part) {
    SHARED(u32, table, 7 * 32);
    while (hi - lo > 1) {
        const u32 step = (hi - lo + 7) / 8;
        u32 counts[7] = {};
        each<E>(a, x, [&](float, float y, u32) {
            const u32 p = place(y);
            UNROLL for (u32 i = 0; i < 7; i++) counts[i] += p >= lo + (i + 1) * step;
        }, [] {});
        sync_block();
        UNROLL for (u32 i = 0; i < 7; i++) {
            const u32 n = warp_sum(counts[i]);
            if (lane() == 0) table[32 * i + warp()] = n;
        }
        sync_block();
        u32 from = lo, to = hi;
        UNROLL for (u32 i = 0; i < 7; i++) {
            const u32 at = lo + (i + 1) * step; // no place is near 2³²
            const u32 n = warp_sum(lane() < threads() / 32 ? table[32 * i + lane()] : 0u);
            if (at >= hi) continue;
            if (n > k) from = at;
            else if (n == k) { from = at - 1; to = at; } // these are the first
            else if (at < to) to = at;
        }
        lo = from;
        hi = to;
    }
    Mass above;
    u32 count = 0;
    each<E>(a, x, [&](float, float y, u32) {
        if (place(y) > lo) {
            above.near += exp2_approx((y - top) * scale);
            count++;
        }
    }, [&] { above.flush(); });
    const double n = block_sum((double)count, part);
    return block_sum(above.sum, part) + (k - n) * exp2_approx((from_place(lo) - top) * scale);
}

// Grid: rows. The column of the best score of all is that of the best of those which the limits leave, if they leave it. So it is
// looked for whether they do: whether fewer than k columns are before it in the order, and weigh less than p. If not, neither it
// nor what is behind it is left, and the best of those before it comes next. No order has to be made, and of a column that is drawn
// with probability p, once in 1/p times is looked again; from flat logits, with k = 20, about ten times.
template <int E> APR_DEVICE void draw_limited(const DrawNextArgs &a) {
    SHARED(u32x4, parts, 64); // a Lot of each warp
    SHARED(double, part, 33);
    SHARED(float, tops, 32);
    const i64 row = block();
    const float *x = a.x + row * a.stride, *limits = a.limits + row * a.limits_stride;
    const i32 *h = a.keys + row * 2;
    const u64 key = (u64)(u32)h[0] | (u64)(u32)h[1] << 32;
    const float inverse = 1.0f / limits[0], scale = inverse * LOG2E;
    const double p = limits[1], k = limits[2], cols = a.cols;
    const bool few = k > 0 && k < cols, part_of = p > 0 && p < 1;

    Lot lot;
    float top = -INFINITY_F; // of x + never
    each<E>(a, x, [&](float v, float y, u32 c) {
        lot.look(v);
        if (!(v > -INFINITY_F)) return;
        lot.score_of(v, mul_rn(y, inverse), key, c);
        top = max2(top, y);
    }, [] {});
    top = warp_max(top);
    if (lane() == 0) tops[warp()] = top;
    lot = joined(lot, parts);
    top = warp_max(lane() < threads() / 32 ? tops[lane()] : -INFINITY_F);

    const bool fit = !lot.unfit && lot.at != ~0u;
    double of = 0; // the weights of which p is a part; 0: not known
    u32 lo = 0;    // the place of a column that is not among the first k
    while (fit && (few || part_of)) {
        const u32 at = lot.at;
        const float bound = a.never ? x[at] + a.never[at] : x[at];
        u32 count = 0;
        Mass before, all;
        const bool whole = part_of && !few && of == 0;
        each<E>(a, x, [&](float, float y, u32 c) {
            const bool is = y > bound || (y == bound && c < at);
            count += is;
            if (part_of && (is || whole)) {
                const float w = exp2_approx((y - top) * scale);
                all.near += w;
                before.near += is ? w : 0.0f;
            }
        }, [&] {
            before.flush();
            all.flush();
        });
        const double n = block_sum((double)count, part);
        if (few && n >= k) {
            lo = place(bound);
        } else if (!part_of) {
            break;
        } else {
            const double mass = block_sum(before.sum, part);
            if (whole) of = block_sum(all.sum, part);
            if (few && of == 0) of = of_first<E>(a, x, k, top, scale, lo, place(bound) + 1, part);
            if (mass < p * of || n == 0) break;
        }
        Lot next;
        each<E>(a, x, [&](float v, float y, u32 c) {
            if (y > bound || (y == bound && c < at)) next.score_of(v, mul_rn(y, inverse), key, c);
        }, [] {});
        next = joined(next, parts);
        lot.at = next.at;
        lot.value = next.value;
    }
    if (thread() != 0) return;
    const u32 id = lot.at == ~0u ? 0 : lot.at;
    a.ids[row * a.id_stride] = (i32)id;
    a.out[row * a.out_stride] = (float)id;
    a.out[row * a.out_stride + 1] = fit ? lot.value - lot.top - LN2 * log2_approx(lot.sum) : from_bits(0x7fc00000u);
}

KERNEL(draw_next_8, DrawNextArgs, 512, 2) { draw<8>(a); }
KERNEL(draw_next_1, DrawNextArgs, 512, 2) { draw<1>(a); }
KERNEL(draw_limited_8, DrawNextArgs, 512, 2) { draw_limited<8>(a); }
KERNEL(draw_limited_1, DrawNextArgs, 512, 2) { draw_limited<1>(a); }
