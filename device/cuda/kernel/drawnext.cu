// The next token of each row: an id of softmax((x + never)/T), of those that top-k and top-p leave, by Gumbel's numbers. See
// drawnext.go.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "apr.cuh"
#include "random.cuh"

// A row is cut into parts. Launches follow each other: scores, of which the best is the row's first candidate; whether limits leave
// it, by what is before it; of rows where they do not, the same for the best of what is before; and what remains, by a block a row.
enum { FIRST, FIRST_SHARE, SECOND, SECOND_SHARE, RECORDS }; // what launches leave of each part

struct DrawNextArgs {
    i32 *ids;
    float *out;
    const float *x, *never, *limits; // never, limits: zero for none
    const i32 *keys;
    u32x4 *records; // [RECORDS, rows, parts, 2]
    i64 id_stride, out_stride, stride, limits_stride;
    u32 cols, part, parts, rows; // part: columns of a part
    u32 second;                  // the launch is of the second candidate
};

APR_DEVICE u32x4 *record_of(const DrawNextArgs &a, u32 of, u32 row, u32 part) {
    return a.records + (((u64)of * a.rows + row) * a.parts + part) * 2;
}

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
APR_DEVICE Lot lot_of(const DrawNextArgs &a, u32 of, u32 row) {
    Lot lot;
    for (u32 i = lane(); i < a.parts; i += 32) {
        Lot b;
        b.read(record_of(a, of, row, i));
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
APR_DEVICE Share share_of(const DrawNextArgs &a, u32 of, u32 row) {
    double before = 0, all = 0, count = 0;
    for (u32 i = lane(); i < a.parts; i += 32) {
        const u32x4 *w = record_of(a, of, row, i);
        before += __builtin_bit_cast(double, (u64)w[0][0] | (u64)w[0][1] << 32);
        all += __builtin_bit_cast(double, (u64)w[0][2] | (u64)w[0][3] << 32);
        count += w[1][0];
    }
    return Share{warp_sum(before), warp_sum(all), (u32)warp_sum(count)};
}

// Whether limits leave a candidate. OPEN: with k and p, the weights of the first k are needed.
enum Verdict { LEFT, OUT, OPEN };

APR_DEVICE Verdict verdict(const Row &r, const Share &s, double all) {
    if (r.few && s.count >= r.k) return OUT;
    if (!r.part_of || s.count == 0) return LEFT;
    if (r.few) return OPEN;
    return s.before < r.p * all ? LEFT : OUT;
}

// first_verdict is that of the first candidate, from the records.
APR_DEVICE Verdict first_verdict(const DrawNextArgs &a, const Row &r) {
    if (!r.few && !r.part_of) return LEFT;
    const Share s = share_of(a, FIRST_SHARE, r.row);
    return verdict(r, s, s.all);
}

// Grid: (rows, parts). A thread takes packs of E columns.
template <int E> APR_DEVICE void draw_scores(const DrawNextArgs &a) {
    SHARED(u32x4, lots, 64); // a Lot of each warp
    const Row r(a, block());
    const u32 first = block_y() * a.part, end = (u32)min_of(a.cols, (i64)first + a.part);
    float bound = -INFINITY_F; // what stands before column `at` of this value is looked at
    u32 at = ~0u;
    if (a.second) {
        if (first_verdict(a, r) != OUT) return;
        at = lot_of(a, FIRST, r.row).at;
        bound = r.at(at);
    }
    Lot lot;
    float bar = -INFINITY_F; // the warp's best score
    for (u32 from = first; from < end; from += threads() * E) {
        const u32 base = from + thread() * E;
        float x[E], y[E];
        if (base + E <= end) {
            Pack<float, E> v;
            load_pack(v, r.x + base);
            widen(x, v);
            UNROLL for (u32 e = 0; e < E; e++) y[e] = r.never ? x[e] + r.never[base + e] : x[e];
        } else {
            UNROLL for (u32 e = 0; e < E; e++) {
                x[e] = y[e] = -INFINITY_F;
                if (base + e < end) x[e] = r.x[base + e], y[e] = r.at(base + e);
            }
        }
        lot.look(x);
        u32 k[E];
        bool may[E];
        UNROLL for (u32 e = 0; e < E; e++) { // without branches: E numbers at once
            const bool is = (y[e] > bound) | ((y[e] == bound) & (base + e < at) & (bound > -INFINITY_F));
            k[e] = split_mix(r.key, base + e);
            lot.most = max2(lot.most, is ? y[e] : -INFINITY_F);
            may[e] = is & Lot::may(k[e], mul_rn(y[e], r.inverse), bar);
        }
        UNROLL for (u32 e = 0; e < E; e++)
            if (may[e]) lot.score_of(x[e], mul_rn(y[e], r.inverse), k[e], base + e);
        bar = warp_max(lot.score);
    }
    lot = joined(lot, lots);
    if (thread() == 0) lot.keep(record_of(a, a.second ? SECOND : FIRST, r.row, block_y()));
}

// each calls f(x, x + never, column) for columns [first, end), of which a thread takes packs of E, and flush() behind every pack.
// first is a multiple of E.
template <int E, class F, class G> APR_DEVICE void each(const Row &r, u32 first, u32 end, F f, G flush) {
    const u32 whole = first + (end - first) / E * E;
    for (u32 base = first + thread() * E; base < whole; base += threads() * E) {
        Pack<float, E> v;
        load_pack(v, r.x + base);
        float p[E];
        widen(p, v);
        UNROLL for (u32 e = 0; e < E; e++) f(p[e], r.never ? p[e] + r.never[base + e] : p[e], base + e);
        flush();
    }
    if (const u32 c = whole + thread(); c < end) {
        f(r.x[c], r.at(c), c);
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

// before returns what of columns [first, end) stands before `at`, and if all, all weights.
template <int E>
APR_DEVICE Share before(const Row &r, u32 first, u32 end, u32 at, float bound, float top, bool whole, double *part) {
    u32 count = 0;
    Mass some, all;
    each<E>(r, first, end, [&](float, float y, u32 c) {
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

// Grid: (rows, parts): what stands before a row's candidate. The first time all weights are added up too.
template <int E> APR_DEVICE void draw_share(const DrawNextArgs &a) {
    SHARED(double, part, 33);
    const Row r(a, block());
    if ((!r.few && !r.part_of) || (a.second && first_verdict(a, r) != OUT)) return;
    const Lot one = lot_of(a, FIRST, r.row);
    const u32 at = a.second ? lot_of(a, SECOND, r.row).at : one.at, first = block_y() * a.part;
    const float bound = at == ~0u ? INFINITY_F : r.at(at);
    const Share s = before<E>(r, first, (u32)min_of(a.cols, (i64)first + a.part), at, bound, one.most, !a.second, part);
    if (thread() == 0) s.keep(record_of(a, a.second ? SECOND_SHARE : FIRST_SHARE, r.row, block_y()));
}

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
APR_DEVICE double of_first(const Row &r, u32 cols, float top, u32 lo, u32 hi, double *part) {
    SHARED(u32, table, 7 * 32);
    while (hi - lo > 1) {
        const u32 step = (hi - lo + 7) / 8;
        u32 counts[7] = {};
        each<E>(r, 0, cols, [&](float, float y, u32) {
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
    each<E>(r, 0, cols, [&](float, float y, u32) {
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
// Candidates that launches before have judged are not looked at again.
template <int E> APR_DEVICE void draw_end(const DrawNextArgs &a) {
    SHARED(u32x4, lots, 64); // a Lot of each warp
    SHARED(double, part, 33);
    const Row r(a, block());
    Lot lot = lot_of(a, FIRST, r.row);
    const float top = lot.most;
    const bool fit = lot.fit();
    bool open = fit && (r.few || r.part_of);
    double of = 0; // the weights of which p is a part; 0: not known
    u32 lo = 0;    // the place of a column that is not among the first k
    if (open && a.parts > 1) {
        const Share one = share_of(a, FIRST_SHARE, r.row);
        if (!r.few) of = one.all;
        const Verdict v = verdict(r, one, one.all);
        open = v == OPEN;
        if (v == OUT) {
            if (r.few && one.count >= r.k) lo = place(r.at(lot.at));
            const Lot next = lot_of(a, SECOND, r.row);
            lot.at = next.at;
            lot.value = next.value;
            open = verdict(r, share_of(a, SECOND_SHARE, r.row), of) != LEFT;
        }
    }
    while (open) {
        const u32 at = lot.at;
        const float bound = r.at(at);
        const bool whole = r.part_of && !r.few && of == 0;
        const Share s = before<E>(r, 0, a.cols, at, bound, top, whole, part);
        if (whole) of = s.all;
        Verdict v = verdict(r, s, of);
        if (v == OUT && r.few && s.count >= r.k) lo = place(bound);
        if (v == OPEN) {
            if (of == 0) of = of_first<E>(r, a.cols, top, lo, place(bound) + 1, part);
            v = s.before < r.p * of ? LEFT : OUT;
        }
        if (v == LEFT) break;
        Lot next;
        each<E>(r, 0, a.cols, [&](float x, float y, u32 c) {
            const u32 k = split_mix(r.key, c);
            const float t = mul_rn(y, r.inverse);
            if ((y > bound || (y == bound && c < at)) && Lot::may(k, t, next.score)) next.score_of(x, t, k, c);
        }, [] {});
        next = joined(next, lots);
        lot.at = next.at;
        lot.value = next.value;
    }
    if (thread() != 0) return;
    const u32 id = lot.at == ~0u ? 0 : lot.at;
    a.ids[r.row * a.id_stride] = (i32)id;
    a.out[r.row * a.out_stride] = (float)id;
    a.out[r.row * a.out_stride + 1] = fit ? lot.value - lot.top - LN2 * log2_approx(lot.sum) : from_bits(0x7fc00000u);
}

KERNEL(draw_scores_8, DrawNextArgs, 128, 8) { draw_scores<8>(a); }
KERNEL(draw_scores_1, DrawNextArgs, 128, 8) { draw_scores<1>(a); }
KERNEL(draw_share_8, DrawNextArgs, 128, 8) { draw_share<8>(a); }
KERNEL(draw_share_1, DrawNextArgs, 128, 8) { draw_share<1>(a); }
KERNEL(draw_end_8, DrawNextArgs, 1024, 1) { draw_end<8>(a); }
KERNEL(draw_end_1, DrawNextArgs, 1024, 1) { draw_end<1>(a); }
