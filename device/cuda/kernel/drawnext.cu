// The next token of each row: an id of softmax((x + never)/T), of those that top-k and top-p leave, by Gumbel's numbers. See
// drawnext.go.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "apr.cuh"
#include "random.cuh"

// A row is cut into parts, a block each. Launches follow each other: scores, of which the best is the row's first candidate;
// what stands before it, by which limits leave it or not; of rows where they do not, the same for the best of what stands before;
// and what remains, by a block a row. The last block of a row to end joins what all left.
struct DrawNextArgs {
    i32 *ids;
    float *out;
    const float *x, *never, *limits; // never, limits: zero for none
    const i32 *keys;
    u32x4 *records; // [rows, parts, 2]: of each part a Lot or a Share
    u32x4 *states;  // [rows, 3]
    u32 *arrived;   // [rows]: blocks of a row that have ended; 0 between launches
    i64 id_stride, out_stride, stride, limits_stride;
    u32 cols, part, parts, rows; // part: columns of a part
    u32 again;                   // the launch is of a row's second candidate
};

APR_DEVICE u32x4 *record_of(const DrawNextArgs &a, u32 row, u32 part) { return a.records + ((u64)row * a.parts + part) * 2; }

// What has to be done about a row: nothing; to add up what stands before its candidate; to find another; and, where there are a k
// and a p, to add up the first k.
enum Mode { DONE, SHARE, SCORES, FIRST_K };

// State is what is known of a row.
struct State {
    u32 mode, at;     // the candidate's column
    float value;      // its logit
    u32 fit;          // the row has a probability
    float most;       // the largest x + never
    float top, sum;   // the largest logit, Σ e^(x−top)
    u32 lo;           // the place of a column that is not among the first k
    double of;        // the weights of which p is a part; 0: not known
    APR_METHOD void keep(u32x4 *w) const {
        const u64 v = __builtin_bit_cast(u64, of);
        w[0] = u32x4{mode, at, bits(value), fit};
        w[1] = u32x4{bits(most), bits(top), bits(sum), lo};
        w[2] = u32x4{(u32)v, (u32)(v >> 32), 0, 0};
    }
    APR_METHOD void read(const u32x4 *w) {
        mode = w[0][0], at = w[0][1], value = from_bits(w[0][2]), fit = w[0][3];
        most = from_bits(w[1][0]), top = from_bits(w[1][1]), sum = from_bits(w[1][2]), lo = w[1][3];
        of = __builtin_bit_cast(double, (u64)w[2][0] | (u64)w[2][1] << 32);
    }
};

// Row is a row with its limits.
struct Row {
    const float *x, *never;
    u64 key;
    float inverse, scale; // 1/T, and in binary logarithms
    double p, k;
    bool few, part_of; // there is a k, a p
    u32 row;
    APR_METHOD Row(const DrawNextArgs &a, u32 row) : x(a.x + row * a.stride), never(a.never), inverse(1), p(0), k(0), row(row) {
        const i32 *h = a.keys + row * 2;
        key = (u64)(u32)h[0] | (u64)(u32)h[1] << 32;
        if (a.limits) {
            const float *limits = a.limits + row * a.limits_stride;
            inverse = 1.0f / limits[0], p = limits[1], k = limits[2];
        }
        scale = inverse * LOG2E;
        few = k > 0 && k < a.cols, part_of = p > 0 && p < 1;
    }
    APR_METHOD float at(u32 c) const { return never ? x[c] + never[c] : x[c]; }
};

// gumbel is −ln(−ln(1−y)), y = (k + ½)/2³² of a number k of split_mix. ln(1−y) is a
// series where y is small: there the logarithm of a number near 1 has few digits, and the largest numbers come from it.
APR_DEVICE float gumbel(u32 k) {
    const float y = ((float)k + 0.5f) * 0x1p-32f;
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
    float most;         // the largest x + never
    APR_METHOD Lot() : score(-INFINITY_F), value(0), at(~0u), unfit(0), top(-INFINITY_F), sum(0), most(-INFINITY_F) {}
    APR_METHOD bool fit() const { return !unfit && at != ~0u; }
    APR_METHOD void keep(u32x4 *w) const {
        w[0] = u32x4{bits(score), bits(value), at, unfit};
        w[1] = u32x4{bits(top), bits(sum), bits(most), 0};
    }
    APR_METHOD void read(const u32x4 *w) {
        score = from_bits(w[0][0]);
        value = from_bits(w[0][1]);
        at = w[0][2];
        unfit = w[0][3];
        top = from_bits(w[1][0]);
        sum = from_bits(w[1][1]);
        most = from_bits(w[1][2]);
    }
    // look takes logits into the sum.
    template <int E> APR_METHOD void look(const float (&x)[E]) {
        float higher = top;
        UNROLL for (int e = 0; e < E; e++) {
            if (!(x[e] < INFINITY_F)) unfit = 1;
            higher = max2(higher, x[e]);
        }
        if (!(higher > -INFINITY_F)) return;
        sum *= exp_approx(top - higher);
        top = higher;
        UNROLL for (int e = 0; e < E; e++) sum += exp_approx(x[e] - top);
    }
    // may reports whether t + g may be above bar, g being Gumbel's number of k: g ≤ −ln y, so that no logarithm is needed.
    APR_METHOD static bool may(u32 k, float t, float bar) { return (float)k * 0x1p-32f <= exp_approx(t - bar) * 1.01f; }
    // score_of takes the score of a column alone; t is (x + never)/T.
    APR_METHOD void score_of(float x, float t, u32 k, u32 c) {
        const float s = t + gumbel(k);
        if (s > score) { score = s; at = c; value = x; }
    }
    APR_METHOD void join(const Lot &b) {
        if (b.score > score || (b.score == score && b.at < at)) { score = b.score; at = b.at; value = b.value; }
        unfit |= b.unfit;
        const float higher = max2(top, b.top);
        if (higher > -INFINITY_F) sum = sum * exp_approx(top - higher) + b.sum * exp_approx(b.top - higher);
        top = higher;
        most = max2(most, b.most);
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
            b.most = shfl_xor(most, m);
            join(b);
        }
    }
};

// lot_of returns what the lots of a row have together, in lane 0; all but top and sum in every lane.
APR_DEVICE Lot lot_of(const DrawNextArgs &a, u32 row) {
    Lot lot;
    for (u32 i = lane(); i < a.parts; i += 32) {
        Lot b;
        b.read(record_of(a, row, i));
        lot.join(b);
    }
    lot.join_lanes();
    return lot;
}

// joined returns the same of the lots of a block's threads.
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

// Share is what stands before a candidate in the order of x + never, and all weights.
struct Share {
    double before, all;
    u32 count;
    APR_METHOD void keep(u32x4 *w) const {
        const u64 x = __builtin_bit_cast(u64, before), y = __builtin_bit_cast(u64, all);
        w[0] = u32x4{(u32)x, (u32)(x >> 32), (u32)y, (u32)(y >> 32)};
        w[1] = u32x4{count, 0, 0, 0};
    }
};

// share_of returns the sum of the shares of a row's parts.
APR_DEVICE Share share_of(const DrawNextArgs &a, u32 row) {
    double before = 0, all = 0, count = 0;
    for (u32 i = lane(); i < a.parts; i += 32) {
        const u32x4 *w = record_of(a, row, i);
        before += __builtin_bit_cast(double, (u64)w[0][0] | (u64)w[0][1] << 32);
        all += __builtin_bit_cast(double, (u64)w[0][2] | (u64)w[0][3] << 32);
        count += w[1][0];
    }
    return Share{warp_sum(before), warp_sum(all), (u32)warp_sum(count)};
}

// place is the order of floats as that of numbers; −0 is 0.
APR_DEVICE u32 place(float y) {
    const u32 u = y == 0.0f ? 0 : bits(y);
    return u >> 31 ? ~u : u | 0x80000000u;
}
APR_DEVICE float from_place(u32 p) { return from_bits(p >> 31 ? p & 0x7fffffffu : ~p); }

// judge sets what has to be done about a candidate with a share before it.
APR_DEVICE void judge(const Row &r, State &state, const Share &s) {
    const bool first_k = r.few && s.count < r.k;
    if (r.few && !first_k) state.mode = SCORES, state.lo = place(r.at(state.at));
    else if (!r.part_of || s.count == 0) state.mode = DONE;
    else if (first_k) state.mode = FIRST_K;
    else state.mode = s.before < r.p * state.of ? DONE : SCORES;
}

// last reports to all threads of a block whether it is a row's last to end. What thread 0 of the others wrote is seen.
APR_DEVICE bool last(const DrawNextArgs &a, u32 row, u32 *flag) {
    if (thread() == 0) flag[0] = arrive_last(a.arrived + row, a.parts);
    sync_block();
    return flag[0];
}

constexpr u32 COLUMNS = 8; // that a thread loads at a time, as many apart as a block has threads

// Grid: rows / threads.
APR_DEVICE void begin_rows(const DrawNextArgs &a) {
    const u32 row = block() * threads() + thread();
    if (row < a.rows) a.arrived[row] = 0;
}

// Grid: (rows, parts).
APR_DEVICE void scores_of_parts(const DrawNextArgs &a) {
    SHARED(u32x4, lots, 64); // a Lot of each warp
    SHARED(u32, flag, 1);
    const u32 first = block_y() * a.part, end = (u32)min_of(a.cols, (i64)first + a.part);
    u32x4 *known = a.states + 3 * block();
    State state = {};
    if (a.again) state.read(known);
    if (a.again && state.mode != SCORES) return;
    const Row r(a, block());
    const u32 at = a.again ? state.at : ~0u;
    const float bound = a.again ? r.at(at) : -INFINITY_F; // what stands before column `at` of this value is looked at
    Lot lot;
    float bar = -INFINITY_F; // the warp's best score
    for (u32 from = first; from < end; from += threads() * COLUMNS) {
        float x[COLUMNS], y[COLUMNS];
        u32 k[COLUMNS];
        bool may[COLUMNS];
        UNROLL for (u32 e = 0; e < COLUMNS; e++) {
            const u32 c = from + e * threads() + thread();
            x[e] = c < end ? r.x[c] : -INFINITY_F;
        }
        UNROLL for (u32 e = 0; e < COLUMNS; e++) {
            const u32 c = from + e * threads() + thread();
            y[e] = r.never && c < end ? x[e] + r.never[c] : x[e];
        }
        lot.look(x);
        UNROLL for (u32 e = 0; e < COLUMNS; e++) { // without branches: all numbers at once
            const u32 c = from + e * threads() + thread();
            const bool is = (y[e] > bound) | ((y[e] == bound) & (c < at) & (bound > -INFINITY_F));
            k[e] = split_mix(r.key, c);
            lot.most = max2(lot.most, is ? y[e] : -INFINITY_F);
            may[e] = is & Lot::may(k[e], mul_rn(y[e], r.inverse), bar);
        }
        UNROLL for (u32 e = 0; e < COLUMNS; e++)
            if (may[e]) lot.score_of(x[e], mul_rn(y[e], r.inverse), k[e], from + e * threads() + thread());
        bar = warp_max(lot.score);
    }
    lot = joined(lot, lots);
    if (thread() == 0) lot.keep(record_of(a, r.row, block_y()));
    if (!last(a, r.row, flag) || warp() != 0) return;
    lot = lot_of(a, r.row);
    if (a.again) {
        state.read(known); // once more: it would have taken registers
    } else {
        state.fit = lot.fit();
        state.most = lot.most, state.top = lot.top, state.sum = lot.sum;
    }
    state.at = lot.at, state.value = lot.value;
    state.mode = state.fit && (r.few || r.part_of) ? SHARE : DONE;
    if (lane() == 0) state.keep(known);
}

// each calls f(x, x + never, column) for columns [first, end), and flush() behind every COLUMNS of a thread.
template <class F, class G> APR_DEVICE void each(const Row &r, u32 first, u32 end, F f, G flush) {
    for (u32 from = first; from < end; from += threads() * COLUMNS) {
        float x[COLUMNS], y[COLUMNS];
        UNROLL for (u32 e = 0; e < COLUMNS; e++) {
            const u32 c = from + e * threads() + thread();
            x[e] = c < end ? r.x[c] : 0.0f;
        }
        UNROLL for (u32 e = 0; e < COLUMNS; e++) {
            const u32 c = from + e * threads() + thread();
            y[e] = r.never && c < end ? x[e] + r.never[c] : x[e];
        }
        UNROLL for (u32 e = 0; e < COLUMNS; e++) {
            const u32 c = from + e * threads() + thread();
            if (c < end) f(x[e], y[e], c);
        }
        flush();
    }
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

// before returns what of columns [first, end) stands before `at`, and if whole, all weights.
APR_DEVICE Share before(const Row &r, u32 first, u32 end, u32 at, float bound, float top, bool whole, double *part) {
    u32 count = 0;
    Mass some, all;
    each(r, first, end, [&](float, float y, u32 c) {
        const bool is = y > bound || (y == bound && c < at);
        count += is;
        if (r.part_of && (is || whole)) {
            const float w = exp2_approx((y - top) * r.scale);
            all.near += w;
            some.near += is ? w : 0.0f;
        }
    }, [&] {
        some.flush();
        all.flush();
    });
    Share s = {0, 0, (u32)block_sum((double)count, part)};
    if (r.part_of) s.before = block_sum(some.sum, part), s.all = block_sum(all.sum, part);
    return s;
}

// Grid: (rows, parts): what stands before a row's candidate, and the first time all weights.
APR_DEVICE void shares_of_parts(const DrawNextArgs &a) {
    SHARED(double, part, 33);
    SHARED(u32, flag, 1);
    State state;
    state.read(a.states + 3 * block());
    if (state.mode != SHARE) return;
    const Row r(a, block());
    const u32 first = block_y() * a.part, end = (u32)min_of(a.cols, (i64)first + a.part);
    Share s = before(r, first, end, state.at, r.at(state.at), state.most, !a.again, part);
    if (thread() == 0) s.keep(record_of(a, r.row, block_y()));
    if (!last(a, r.row, flag) || warp() != 0) return;
    s = share_of(a, r.row);
    if (!a.again && !r.few) state.of = s.all;
    judge(r, state, s);
    if (lane() == 0) state.keep(a.states + 3 * r.row);
}

APR_DEVICE u32 warp_sum(u32 v) {
    UNROLL for (int m = 16; m; m >>= 1) v += shfl_xor(v, m);
    return v;
}

// of_first returns the sum of the weights of the first k columns, of which the last has a place in [lo, hi): eight parts
// of what is left are told apart by one reading, and of equal logits it does not matter which are the first. It ends where
// a place has just k columns from there on, mostly long before the last bit.
APR_DEVICE double of_first(const Row &r, u32 cols, float top, u32 lo, u32 hi, double *part) {
    SHARED(u32, table, 7 * 32);
    while (hi - lo > 1) {
        const u32 step = (hi - lo + 7) / 8;
        u32 counts[7] = {};
        each(r, 0, cols, [&](float, float y, u32) {
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
            if (n > r.k) from = at;
            else if (n == r.k) { from = at - 1; to = at; } // these are the first
            else if (at < to) to = at;
        }
        lo = from;
        hi = to;
    }
    Mass above;
    u32 count = 0;
    each(r, 0, cols, [&](float, float y, u32) {
        if (place(y) > lo) {
            above.near += exp2_approx((y - top) * r.scale);
            count++;
        }
    }, [&] { above.flush(); });
    const double n = block_sum((double)count, part);
    return block_sum(above.sum, part) + (r.k - n) * exp2_approx((from_place(lo) - top) * r.scale);
}

// Grid: rows. The column of the best score of all is that of the best of those which the limits leave, if they leave it. So it is
// looked for whether they do: whether fewer than k columns are before it in the order, and weigh less than p. If not, neither it
// nor what is behind it is left, and the best of those before it comes next. No order has to be made, and of a column that is drawn
// with probability p, once in 1/p times is looked again; from flat logits, with k = 20, about ten times.
// Launches before have done this for two candidates.
APR_DEVICE void end_rows(const DrawNextArgs &a) {
    SHARED(u32x4, lots, 64); // a Lot of each warp
    SHARED(double, part, 33);
    State state;
    state.read(a.states + 3 * block());
    const Row r(a, block());
    while (state.mode != DONE) {
        const u32 at = state.at;
        const float bound = r.at(at);
        if (state.mode != SCORES) {
            const bool whole = r.part_of && !r.few && state.of == 0;
            const Share s = before(r, 0, a.cols, at, bound, state.most, whole, part);
            if (whole) state.of = s.all;
            judge(r, state, s);
            if (state.mode == FIRST_K) {
                if (state.of == 0) state.of = of_first(r, a.cols, state.most, state.lo, place(bound) + 1, part);
                state.mode = s.before < r.p * state.of ? DONE : SCORES;
            }
            if (state.mode == DONE) break;
        }
        Lot next;
        each(r, 0, a.cols, [&](float x, float y, u32 c) {
            const u32 k = split_mix(r.key, c);
            const float t = mul_rn(y, r.inverse);
            if ((y > bound || (y == bound && c < at)) && Lot::may(k, t, next.score)) next.score_of(x, t, k, c);
        }, [] {});
        next = joined(next, lots);
        state.at = next.at, state.value = next.value;
        state.mode = SHARE;
    }
    if (thread() != 0) return;
    const u32 id = state.at == ~0u ? 0 : state.at;
    a.ids[r.row * a.id_stride] = (i32)id;
    a.out[r.row * a.out_stride] = (float)id;
    a.out[r.row * a.out_stride + 1] = state.fit ? state.value - state.top - LN2 * log2_approx(state.sum) : from_bits(0x7fc00000u);
}

KERNEL(draw_begin, DrawNextArgs, 256, 1) { begin_rows(a); }
KERNEL(draw_scores, DrawNextArgs, 128, 8) { scores_of_parts(a); }
KERNEL(draw_share, DrawNextArgs, 128, 8) { shares_of_parts(a); }
KERNEL(draw_end, DrawNextArgs, 1024, 1) { end_rows(a); }
