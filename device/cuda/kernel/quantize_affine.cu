// Scales and minima of Q4_K and Q5_K: the search of quant.Quantize, a thread for each group of 32, eight threads for a
// block. See package quant for the search; its steps are those of encodek.go and fit.go, bit for bit.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "quantize.cuh"

enum { THREADS = 128, GROUP = 32, TOP_SCALE = 63, TRIALS = 4 };
#define MUCH_MORE 2.0
#define NEARLY_EXACT 0.25

// Group are the elements of a thread's group, in shared memory: all of them take more registers than there are beside
// what a search keeps.
struct Group {
    double *at;
    APR_METHOD double &operator[](int i) const { return at[i * THREADS]; }
};

struct Trial { double s, m, gain; };
struct Ideal { double s, m, err; };

// Scales are those of a block, sc and m of this thread's group; err is the block's.
struct Scales { u32 halves; int sc, m; double err; };

// try_fit rounds inv·(x−lo) to integers 0 … top and solves for s and m ≥ 0. Without a positive s the gain is −∞.
APR_DEVICE Trial try_fit(const Group &x, double sum, double lo, double inv, int top) {
    int q1 = 0, q2 = 0;
    double even = 0, odd = 0;
    UNROLL_8 for (int i = 0; i < GROUP; i += 2) {
        const int a = clamp(to_int(mul_rn(inv, x[i] - lo) + 0.5), 0, top), b = clamp(to_int(mul_rn(inv, x[i + 1] - lo) + 0.5), 0, top);
        q1 += a + b;
        q2 += a * a + b * b;
        even += x[i] * small(a);
        odd += x[i + 1] * small(b);
    }
    const double xq = even + odd, n1 = small(q1), n2 = small(q2);
    Trial t = {0, 0, -INFINITY_D};
    if (q2 == 0) return t;
    double s = xq / n2, m = 0;
    const int det = GROUP * q2 - q1 * q1;
    if (det > 0) {
        const double free = (mul_rn(n1, xq) - mul_rn(n2, sum)) / small(det);
        if (free > 0) s = (GROUP * xq - mul_rn(sum, n1)) / small(det), m = free;
    }
    if (!(s > 0)) return t;
    t.s = s;
    t.m = m;
    t.gain = mul_rn(2, mul_rn(s, xq)) - mul_rn(2, mul_rn(m, sum)) - mul_rn(mul_rn(s, s), n2) + mul_rn(mul_rn(2, mul_rn(s, m)), n1) - mul_rn(GROUP * m, m);
    return t;
}

APR_DEVICE void refine(Trial &best, const Group &x, double sum, int top) {
    NO_UNROLL for (int i = 0; i < 4; i++) {
        const Trial t = try_fit(x, sum, -best.m, inverse(best.s), top);
        if (!(t.gain > best.gain)) return;
        best = t;
    }
}

// fit finds the best scale and minimum of a group, whatever its block can have; trials of the wide one begin at several
// parts of a step.
APR_DEVICE void fit(Ideal &natural, Ideal &wide, const Group &x, int top) {
    double lo = smaller(0, x[0]), hi = x[0], sum = 0, squares = 0;
    UNROLL_8 for (int i = 0; i < GROUP; i++) lo = smaller(lo, x[i]), hi = larger(hi, x[i]), sum += x[i], squares += x[i] * x[i];
    natural = {0, -lo, 0};
    wide = natural;
    if (hi == lo) return; // zeros, or one negative number
    Trial w = {0, 0, -INFINITY_D}, n = w;
    NO_UNROLL for (int part = 0; part < 4; part++) {
        const double phase = part == 0 ? 0 : part == 1 ? -0.3 : part == 2 ? 0.3 : 0.6;
        NO_UNROLL for (int k = -12; k <= 12; k += 3) {
            const double inv = ((double)top + mul_rn(0.1, (double)k)) / (hi - lo);
            const Trial t = try_fit(x, sum, lo - phase / inv, inv, top);
            if (t.gain > w.gain) w = t;
        }
        if (part == 0) n = w;
    }
    NO_UNROLL for (int of = 0; of < 2; of++) {
        Trial t = of ? w : n;
        refine(t, x, sum, top);
        const Ideal found = {t.s, t.m, squares - t.gain};
        if (of) wide = found;
        else natural = found;
    }
}

// below returns ⌊v/step⌋, at most 63; 0 if step is 0.
APR_DEVICE int below(double v, double inv_step) { return to_int(smaller(mul_rn(v, inv_step), TOP_SCALE)); }

// code is the nearest integer of (x+m)·inv in 0 … top.
APR_DEVICE int code(double x, double m, double inv, int top) { return clamp(to_int(mul_rn(inv, x + m) + 0.5), 0, top); }

// error returns Σ(s·q − m − x)² with the nearest integers, and the m that would be best for these.
APR_DEVICE double error(double &best_min, const Group &x, double s, double m, int top) {
    const double inv = inverse(s);
    double sum = 0, err0 = 0, err1 = 0;
    UNROLL_8 for (int i = 0; i < GROUP; i += 2) {
        const double e0 = s * small(code(x[i], m, inv, top)) - m - x[i], e1 = s * small(code(x[i + 1], m, inv, top)) - m - x[i + 1];
        sum += e0 + e1;
        err0 += mul_rn(e0, e0);
        err1 += mul_rn(e1, e1);
    }
    best_min = m + sum / GROUP;
    return err0 + err1;
}

// tolerable returns the error of a group after rounding its scale, from which it is worth trying more.
APR_DEVICE double tolerable(const Ideal &ideal) {
    return MUCH_MORE * larger(ideal.err, NEARLY_EXACT * mul_rn(ideal.s, ideal.s));
}

// choose finds sc and m of the group for the block's halves d and dmin, and returns the error. It tries both sc next to
// the ideal scale, and where these leave much more error than that has, all from 2/3 to 3/2 of it.
APR_DEVICE double choose(int &best_sc, int &best_m, const Group &x, const Ideal &ideal, u32 halves, int top) {
    const double d = half_value(halves & 0xffff), dmin = half_value(halves >> 16), inv_min = inverse(dmin);
    const int sc0 = below(ideal.s, inverse(d)), m0 = below(ideal.m, inv_min);
    double least = INFINITY_D;
    int from = sc0, to = sc0 + 1;
    NO_UNROLL for (int round = 0; round < 2; round++) {
        NO_UNROLL for (int sc = from; sc <= to && sc <= TOP_SCALE; sc++) {
            if (round == 1 && (sc == sc0 || sc == sc0 + 1)) continue;
            const double s = d * small(sc);
            double lowest = INFINITY_D;
            int start = m0, next = m0;
            NO_UNROLL for (int i = 0; i < 4; i++) { // m0 and the next, then those at the minimum that is best for their integers
                if (i == 2) start = next;
                const int m = start + (i & 1);
                if (m > TOP_SCALE || (i >= 2 && (m == m0 || m == m0 + 1))) continue;
                double best_min;
                const double err = error(best_min, x, s, dmin * small(m), top);
                if (i < 2 && err < lowest) lowest = err, next = below(larger(best_min, 0), inv_min);
                if (err < least) least = err, best_sc = sc, best_m = m;
            }
        }
        if (!(least > tolerable(ideal))) break;
        from = sc0 - sc0 / 3;
        to = sc0 + sc0 / 2;
    }
    return least;
}

// refit returns the halves that are best for the integers which scales give.
APR_DEVICE u32 refit(const Team<8> &t, const Scales &b, const Group &x, int top) {
    const double s = half_value(b.halves & 0xffff) * small(b.sc), m = half_value(b.halves >> 16) * small(b.m), inv = inverse(s);
    Codes<GROUP> q;
    q.clear();
    int aa = 0, sum = 0;
    UNROLL for (int i = 0; i < GROUP; i++) {
        const int k = code(x[i], m, inv, top), a = b.sc * k;
        q.set(i, k);
        aa += a * a;
        sum += a;
    }
    Sums f;
    f.aa = small(t.sum(aa));
    f.ac = small(t.sum(b.m * sum));
    f.cc = small(t.sum(GROUP * b.m * b.m));
    const double c = small(b.m);
    t.chain(f.xa, f.xc, [&] {
        UNROLL_8 for (int i = 0; i < GROUP; i++) f.xa += x[i] * small(b.sc * q.get(i)), f.xc += x[i] * c;
    });
    int center = (int)(b.halves & 0xffff);
    if (f.cc > 0) {
        const double det = mul_rn(f.aa, f.cc) - mul_rn(f.ac, f.ac);
        if (det > 0) center = (int)half_of((mul_rn(f.xa, f.cc) - mul_rn(f.xc, f.ac)) / det);
    } else if (f.aa > 0) {
        center = (int)half_of(f.xa / f.aa);
    }
    return refit_pair(t, f, center, b.halves);
}

// scales finds the block's halves for ideal scales and minima, and replaces b where the error is less: trials of the
// largest scale's integer, then once more for the halves that are best for the integers found.
APR_DEVICE void scales(const Team<8> &t, Scales &b, const Ideal &ideal, const Group &x, int top) {
    const double largest_s = t.most(larger(ideal.s, 0)), largest_m = t.most(larger(ideal.m, 0)), enough = t.sum(tolerable(ideal));
    Scales best = {0, 0, 0, INFINITY_D};
    bool scanning = true;
    NO_UNROLL for (int levels = TOP_SCALE;; levels--) {
        scanning = scanning && levels > TOP_SCALE / 2 && !(levels <= TOP_SCALE - TRIALS && best.err <= enough);
        const bool last = !ballot(scanning); // of all blocks of the warp
        Scales trial = {0, 0, 0, 0};
        if (last) trial.halves = refit(t, best, x, top);
        else trial.halves = step_half(largest_s, levels) | step_half(largest_m, levels) << 16;
        double err = INFINITY_D;
        if (last || scanning) err = choose(trial.sc, trial.m, x, ideal, trial.halves, top);
        trial.err = t.sum(err);
        if (trial.err < best.err) best = trial;
        if (last) break;
    }
    if (best.err < b.err) b = best;
}

KERNEL(quantize_search_affine, SearchArgs, THREADS, 4) {
    if (refused(a.record)) return;
    const Team<8> t;
    const u32 at = (block() * THREADS + thread()) / 8, mine = at < a.blocks ? at : a.blocks - 1;
    SHARED(double, groups, GROUP * THREADS);
    const Group x = {groups + thread()};
    bool ok = true;
    NO_UNROLL for (int i = 0; i < GROUP; i += 8) {
        double v[8];
        ok = read(v, a.x + (u64)mine * 256 + GROUP * t.own + i) && ok;
        UNROLL for (int k = 0; k < 8; k++) x[i + k] = v[k];
    }
    ok = t.all(ok);
    Ideal natural, wide;
    fit(natural, wide, x, a.most);
    Scales b = {0, 0, 0, INFINITY_D};
    NO_UNROLL for (int i = 0; i < 2; i++) scales(t, b, i ? natural : wide, x, a.most);
    // d, dmin, then 6 bits of sc and m: those of the first four groups, and above them the upper two bits of the
    // others, whose lower four follow.
    u32 sc = 0, m = 0, low = 0;
    UNROLL for (int j = 0; j < 4; j++) {
        const u32 s0 = (u32)t.of(b.sc, j), s1 = (u32)t.of(b.sc, j + 4), m0 = (u32)t.of(b.m, j), m1 = (u32)t.of(b.m, j + 4);
        sc |= (s0 | (s1 & 0x30) << 2) << 8 * j;
        m |= (m0 | (m1 & 0x30) << 2) << 8 * j;
        low |= ((s1 & 15) | (m1 & 15) << 4) << 8 * j;
    }
    if (t.own != 0 || !ok || at >= a.blocks) return;
    u8 *to = a.stored + (u64)at * (a.most == 15 ? 144 : 176);
    put_word(to, b.halves);
    put_word(to + 4, sc);
    put_word(to + 8, m);
    put_word(to + 12, low);
}
