// Scales of Q2_K and Q3_K: the search of quant.Quantize, a thread for each group of 16, sixteen threads for a block.
// Its steps are those of weighted.go of package quant with weights of 1, bit for bit.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "quantize.cuh"

enum { THREADS = 128, GROUP = 16, LEVELS = 3, BYTES_Q2K = 84, BYTES_Q3K = 110 };
#define PATIENCE 2.0
#define SINGULAR 1e-9

struct Trial { double s, m, gain; };
struct Ideal { double s, m, err; };

// Scales are those of a block, sc and m of this thread's group; err is the block's.
struct Scales { u32 halves; int sc, m; double err; };

// Q2K has scales 0 … 15 with minima; Q3K scales −32 … 31 of integers −4 … 3.
struct Q2K {
    static constexpr bool affine = true;
    static constexpr int least = 0, most = 3, top = 15, low = 0, high = 15;
};
struct Q3K {
    static constexpr bool affine = false;
    static constexpr int least = -4, most = 3, top = 32, low = -32, high = 31;
};

// code is the nearest integer to v, counted from the least one.
template <class S> APR_DEVICE int code(double v) { return rounded(v, 0.5 - (double)S::least, S::most - S::least); }
template <class S> APR_DEVICE double value(int code) { return small(code) - (double)-S::least; }

// try_affine rounds inv·(x−lo) to integers and solves for s and m ≥ 0. Without a positive s the gain is −∞.
APR_DEVICE Trial try_affine(const double (&x)[GROUP], double sum, double lo, double inv) {
    int q1 = 0, q2 = 0;
    double xq = 0;
    UNROLL for (int i = 0; i < GROUP; i++) {
        const int q = code<Q2K>(mul_rn(inv, x[i] - lo));
        q1 += q;
        q2 += q * q;
        xq += x[i] * small(q);
    }
    const double n1 = small(q1), n2 = small(q2);
    Trial t = {0, 0, -INFINITY_D};
    if (q2 == 0) return t;
    double s = xq / n2, m = 0;
    const double whole = GROUP * n2, det = whole - n1 * n1;
    if (det > mul_rn(SINGULAR, whole)) {
        const double free = (mul_rn(n1, xq) - mul_rn(n2, sum)) / det;
        if (free > 0) s = (GROUP * xq - mul_rn(sum, n1)) / det, m = free;
    }
    if (!(s > 0)) return t;
    t.s = s;
    t.m = m;
    t.gain = mul_rn(2, mul_rn(s, xq)) - mul_rn(2, mul_rn(m, sum)) - mul_rn(mul_rn(s, s), n2) + mul_rn(mul_rn(2, mul_rn(s, m)), n1) - mul_rn(mul_rn(m, m), GROUP);
    return t;
}

// try_symmetric rounds inv·x to integers and returns the best scale for them.
APR_DEVICE Trial try_symmetric(const double (&x)[GROUP], double inv) {
    int q2 = 0;
    double xq = 0;
    UNROLL for (int i = 0; i < GROUP; i++) {
        const int q = code<Q3K>(mul_rn(inv, x[i]));
        q2 += (q - 4) * (q - 4);
        xq += value<Q3K>(q) * x[i];
    }
    if (q2 == 0) return {0, 0, 0};
    const double s = xq / small(q2);
    return {s, 0, mul_rn(s, xq)};
}

APR_DEVICE void refine(Q2K, Trial &best, const double (&x)[GROUP], double sum) {
    NO_UNROLL for (int i = 0; i < 4; i++) {
        const Trial t = try_affine(x, sum, -best.m, inverse(best.s));
        if (!(t.gain > best.gain)) return;
        best = t;
    }
}

APR_DEVICE void refine(Q3K, Trial &best, const double (&x)[GROUP], double) {
    NO_UNROLL for (int i = 0; i < 4; i++) {
        const Trial t = try_symmetric(x, inverse(best.s));
        if (!(t.gain > best.gain)) return;
        best = t;
    }
}

// scan finds the best trials: those of the natural one begin at the least element, or reach the extreme one; false: the
// group has one value.
APR_DEVICE bool scan(Q2K, Trial &natural, Trial &wide, const double (&x)[GROUP], double sum) {
    double lo = smaller(0, x[0]), hi = x[0];
    UNROLL for (int i = 0; i < GROUP; i++) lo = smaller(lo, x[i]), hi = larger(hi, x[i]);
    natural = wide = {0, -lo, INFINITY_D};
    if (hi == lo) return false;
    natural.gain = wide.gain = -INFINITY_D;
    NO_UNROLL for (int part = 0; part < 4; part++) {
        const double phase = part == 0 ? 0 : part == 1 ? -0.3 : part == 2 ? 0.3 : 0.6;
        NO_UNROLL for (int k = -15; k <= 12; k += 3) {
            const double inv = (3 + mul_rn(0.1, (double)k)) / (hi - lo);
            const Trial t = try_affine(x, sum, lo - phase / inv, inv);
            if (t.gain > wide.gain) wide = t;
        }
        if (part == 0) natural = wide;
    }
    return true;
}

APR_DEVICE bool scan(Q3K, Trial &natural, Trial &wide, const double (&x)[GROUP], double) {
    natural = wide = {0, 0, 0};
    const double extreme = extreme_of(x);
    if (extreme == 0) return false;
    NO_UNROLL for (int k = -15; k <= 15; k++) {
        const Trial t = try_symmetric(x, (-4 - mul_rn(0.1, (double)k)) / extreme);
        if (t.gain > wide.gain) wide = t;
        if (k >= 0 && t.gain > natural.gain) natural = t;
    }
    return true;
}

// fit finds the ideal scales of a group, whatever its block can have.
template <class S> APR_DEVICE void fit(Ideal &natural, Ideal &wide, const double (&x)[GROUP]) {
    double sum = 0, squares = 0;
    UNROLL for (int i = 0; i < GROUP; i++) sum += x[i], squares += x[i] * x[i];
    Trial n, w;
    const bool several = scan(S(), n, w, x, sum);
    NO_UNROLL for (int of = 0; of < 2; of++) {
        Trial t = of ? w : n;
        if (several) refine(S(), t, x, sum);
        const Ideal found = {t.s, t.m, larger(squares - t.gain, 0)};
        if (of) wide = found;
        else natural = found;
    }
}

// error returns Σ(s·q − m − x)² with the nearest integers, and the m that would be best for these.
template <class S> APR_DEVICE double error(double &best_min, const double (&x)[GROUP], double s, double m) {
    const double inv = inverse(s);
    double sum = 0, err = 0;
    UNROLL for (int i = 0; i < GROUP; i++) {
        const double e = s * value<S>(code<S>(mul_rn(inv, x[i] + m))) - m - x[i];
        sum += e;
        err += mul_rn(e, e);
    }
    best_min = m + sum / GROUP;
    return err;
}

// choose finds sc and m of the group for the block's halves, and returns the error. It tries both sc next to the ideal
// scale, and where these leave much more error than that has, all from half to 3/2 of it.
template <class S> APR_DEVICE double choose(int &best_sc, int &best_m, const double (&x)[GROUP], const Ideal &ideal, u32 halves) {
    const double d = half_value(halves & 0xffff), dmin = half_value(halves >> 16), inv_min = inverse(dmin);
    const int center = to_int(__builtin_floor(smaller(larger(mul_rn(ideal.s, inverse(d)), S::low), S::high)));
    const int m0 = clamp(to_int(mul_rn(ideal.m, inv_min)), -S::top, S::top);
    double least = INFINITY_D;
    int from = center, to = center + 1;
    NO_UNROLL for (int round = 0; round < 2; round++) {
        NO_UNROLL for (int sc = from; sc <= to && sc <= S::high; sc++) {
            if (round == 1 && (sc == center || sc == center + 1 || (!S::affine && sc == 0))) continue;
            const double s = d * (double)sc;
            int m = m0, next = m0;
            NO_UNROLL for (int i = 0; i < (S::affine ? 3 : 1); i++) { // m0, the one above, and that below the minimum that is best for its integers
                if (i > 0) m = i == 1 ? m0 + 1 : next;
                if (i > 0 && (m == m0 || m > S::top)) continue;
                double best_min;
                const double err = error<S>(best_min, x, s, dmin * (double)m);
                if (i == 0) next = clamp(to_int(mul_rn(larger(best_min, 0), inv_min)), 0, S::top);
                if (err < least) least = err, best_sc = sc, best_m = m;
            }
        }
        if (!(least > PATIENCE * ideal.err)) break;
        const int reach = (center < 0 ? -center : center) / 2;
        from = center - reach < S::low ? S::low : center - reach;
        to = center + reach;
    }
    return least;
}

// refit returns the halves that are best for the integers which scales give.
template <class S> APR_DEVICE u32 refit(const Team<GROUP> &t, const Scales &b, const double (&x)[GROUP]) {
    const double m = half_value(b.halves >> 16) * (double)b.m, inv = inverse(half_value(b.halves & 0xffff) * (double)b.sc);
    Codes<GROUP> q;
    q.clear();
    int aa = 0, sum = 0;
    UNROLL for (int i = 0; i < GROUP; i++) {
        const int k = code<S>(mul_rn(inv, x[i] + m)), v = b.sc * (k + S::least);
        q.set(i, k);
        aa += v * v;
        sum += v;
    }
    Sums f;
    f.aa = small(t.sum(aa));
    f.ac = small(t.sum(b.m * sum));
    f.cc = small(t.sum(GROUP * b.m * b.m));
    const double c = (double)b.m;
    t.chain(f.xa, f.xc, [&] { UNROLL for (int i = 0; i < GROUP; i++) f.xa += (double)(b.sc * (q.get(i) + S::least)) * x[i], f.xc += c * x[i]; });
    const double ratio = f.xa / f.aa, det = mul_rn(f.aa, f.cc) - mul_rn(f.ac, f.ac);
    u32 found = b.halves;
    if (!S::affine) {
        if (f.aa > 0) found = half_of(absolute(ratio)) | (ratio < 0 ? 0x8000 : 0);
        return found;
    }
    const int center = (int)half_of(f.cc > 0 && det > 0 ? (mul_rn(f.xa, f.cc) - mul_rn(f.xc, f.ac)) / det : ratio);
    found = refit_pair(t, f, center, b.halves);
    return f.aa > 0 ? found : b.halves;
}

// scales finds the block's halves for ideal scales and minima, and replaces b where the error is less: trials of the
// largest scale's integer, then twice at most for the halves that are best for the integers found.
template <class S> APR_DEVICE void scales(const Team<GROUP> &t, Scales &b, const Ideal &ideal, const double (&x)[GROUP]) {
    const double largest = t.widest(ideal.s), largest_m = t.most(larger(ideal.m, 0)), perfect = t.sum(ideal.err);
    Scales best = {0, 0, 0, INFINITY_D};
    bool scanning = true, better = true;
    int fits = 0;
    NO_UNROLL for (int k = 0; fits < 2; k++) {
        scanning = scanning && k < S::top / 2 && !(k >= LEVELS && best.err <= PATIENCE * perfect);
        const bool fitting = !ballot(scanning); // all blocks of the warp
        Scales trial = {0, 0, 0, 0};
        if (fitting) {
            trial.halves = refit<S>(t, best, x);
            better = better && trial.halves != best.halves;
            fits++;
        } else {
            trial.halves = step_half(absolute(largest), S::top - k);
            if (S::affine) trial.halves |= step_half(largest_m, S::top - k) << 16;
            else if (largest > 0) trial.halves |= 0x8000; // the integers reach further down
        }
        double err = INFINITY_D;
        if (fitting ? better : scanning) err = choose<S>(trial.sc, trial.m, x, ideal, trial.halves);
        trial.err = t.sum(err);
        if (fitting) better = better && trial.err < best.err;
        if (trial.err < best.err) best = trial;
    }
    if (best.err < b.err) b = best;
}

template <class S> APR_DEVICE Scales search(const Team<GROUP> &t, const double (&x)[GROUP]) {
    Ideal natural, wide;
    fit<S>(natural, wide, x);
    Scales b = {0, 0, 0, INFINITY_D};
    NO_UNROLL for (int i = 0; i < 2; i++) scales<S>(t, b, i ? natural : wide, x);
    return b;
}

KERNEL(quantize_search_q2_k, SearchArgs, THREADS, 3) {
    if (refused(a.record)) return;
    const Team<GROUP> t;
    const u32 at = (block() * THREADS + thread()) / GROUP, mine = at < a.blocks ? at : a.blocks - 1;
    double x[GROUP];
    const bool ok = t.all(read(x, a.x + (u64)mine * 256 + GROUP * t.own));
    const Scales b = search<Q2K>(t, x);
    if (!ok || at >= a.blocks) return;
    u8 *to = a.stored + (u64)at * BYTES_Q2K;
    to[t.own] = (u8)(b.sc | b.m << 4);
    if (t.own == 0) put_word(to + 80, b.halves);
}

KERNEL(quantize_search_q3_k, SearchArgs, THREADS, 3) {
    if (refused(a.record)) return;
    const Team<GROUP> t;
    const u32 at = (block() * THREADS + thread()) / GROUP, mine = at < a.blocks ? at : a.blocks - 1;
    double x[GROUP];
    const bool ok = t.all(read(x, a.x + (u64)mine * 256 + GROUP * t.own));
    const Scales b = search<Q3K>(t, x);
    // Bytes 0 … 7 have the lower four bits of groups j and j+8, bytes 8 … 11 the upper two of j, j+4, j+8 and j+12.
    u32 byte = 0;
    NO_UNROLL for (int j = 0; j < GROUP; j++) {
        const u32 v = (u32)(t.of(b.sc, j) + 32);
        if (t.own < 8 && j % 8 == t.own) byte |= (v & 15) << 4 * (j / 8);
        if (t.own >= 8 && j % 4 == t.own - 8) byte |= v >> 4 << 2 * (j / 4);
    }
    if (!ok || at >= a.blocks) return;
    u8 *to = a.stored + (u64)at * BYTES_Q3K + 96;
    if (t.own < 12) to[t.own] = (u8)byte;
    if (t.own == 0) put_half(to + 12, b.halves);
}
