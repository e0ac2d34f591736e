// Scales of Q6_K, and those of the types of 32 elements whose integers are multiples of one half: the searches of
// quant.Quantize, bit for bit. A thread has a group of 16 of a block of Q6_K, sixteen threads the block; of the others
// it has a block.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "quantize.cuh"

enum { THREADS = 128, TRIALS = 4, BYTES_Q6K = 210 };

struct Fit { double s, gain; };

// try_fit rounds inv·x to integers −n … n−1 and returns the best scale for them.
template <int N> APR_DEVICE Fit try_fit(const double (&x)[N], double inv, int n) {
    int q2 = 0;
    double even = 0, odd = 0;
    const double half_up = 0.5 + (double)n, bias = (double)n;
    UNROLL for (int i = 0; i < N; i += 2) {
        const int a = rounded(mul_rn(inv, x[i]), half_up, 2 * n - 1), b = rounded(mul_rn(inv, x[i + 1]), half_up, 2 * n - 1);
        q2 += (a - n) * (a - n) + (b - n) * (b - n);
        even += x[i] * (small(a) - bias);
        odd += x[i + 1] * (small(b) - bias);
    }
    const double xq = even + odd;
    if (q2 == 0) return {0, 0};
    const double s = xq / small(q2);
    return {s, mul_rn(s, xq)};
}

// fit returns the scale, of either sign, that nearly minimises Σ(s·q − x)²: trials make the extreme element −n steps
// and a few tenths more or less.
template <int N> APR_DEVICE double fit(const double (&x)[N], int n) {
    const double extreme = extreme_of(x);
    if (extreme == 0) return 0;
    Fit best = {0, 0};
    bool refining = false;
    NO_UNROLL for (int k = -9; k <= 9 + 4; k++) { // the last four with the scale that was found
        refining = k > 9;
        const double inv = refining ? inverse(best.s) : -((double)n + mul_rn(0.1, (double)k)) / extreme;
        const Fit t = try_fit(x, inv, n);
        if (t.gain > best.gain) best = t;
        else if (refining) break;
    }
    return best.s;
}

// error returns Σ(s·q − x)² with the nearest integers q in least … most.
template <int N> APR_DEVICE double error(const double (&x)[N], double s, int least, int most) {
    const double inv = inverse(s), half_up = 0.5 - (double)least, bias = (double)least;
    double err = 0;
    UNROLL for (int i = 0; i < N; i++) {
        const double e = s * (small(rounded(mul_rn(inv, x[i]), half_up, most - least)) + bias) - x[i];
        err += mul_rn(e, e);
    }
    return err;
}

// Scales are the half of a block and sc of this thread's group; err is the block's.
struct Scales { u32 d; int sc; double err; };

// choose finds sc for the half d, one of those beside the ideal scale s, and returns the error.
APR_DEVICE double choose(int &sc, const double (&x)[16], double s, u32 half) {
    const double d = half_value(half);
    const int first = clamp(to_int(__builtin_floor(mul_rn(s, inverse(d)))), -128, 127);
    double least = INFINITY_D;
    NO_UNROLL for (int k = first; k <= first + 1 && k <= 127; k++) {
        const double err = error(x, d * (double)k, -32, 31);
        if (err < least) least = err, sc = k;
    }
    return least;
}

// refit returns the half that is best for the integers which scales give.
APR_DEVICE u32 refit(const Team<16> &t, const Scales &b, const double (&x)[16]) {
    const double inv = inverse(half_value(b.d) * (double)b.sc);
    Codes<16> q;
    q.clear();
    int aa = 0;
    UNROLL for (int i = 0; i < 16; i++) {
        const int k = rounded(mul_rn(inv, x[i]), 32.5, 63), v = b.sc * (k - 32);
        q.set(i, k);
        aa += v * v;
    }
    const double all = t.sum((double)aa);
    double xa, none;
    t.chain(xa, none, [&] { UNROLL for (int i = 0; i < 16; i++) xa += x[i] * (double)(b.sc * (q.get(i) - 32)); });
    return all == 0 ? b.d : to_f16((float)(xa / all));
}

KERNEL(quantize_search_q6_k, SearchArgs, THREADS, 5) {
    if (refused(a.record)) return;
    const Team<16> t;
    const u32 at = (block() * THREADS + thread()) / 16, mine = at < a.blocks ? at : a.blocks - 1;
    double x[16];
    const bool ok = t.all(read(x, a.x + (u64)mine * 256 + 16 * t.own));
    const double s = fit(x, 32), largest = t.widest(s);
    Scales best = {0, 0, INFINITY_D};
    NO_UNROLL for (int k = 0; k <= TRIALS; k++) { // the last with the half that is best for the integers found
        Scales trial = {0, 0, 0};
        if (k == TRIALS) trial.d = refit(t, best, x);
        else trial.d = step_half(absolute(largest), 128 - k) | (largest > 0 ? 0x8000 : 0); // the integers reach further down
        trial.err = t.sum(choose(trial.sc, x, s, trial.d));
        if (trial.err < best.err) best = trial;
    }
    if (!ok || at >= a.blocks) return;
    u8 *to = a.stored + (u64)at * BYTES_Q6K + 192;
    to[t.own] = (u8)best.sc;
    if (t.own == 0) put_half(to + 16, best.d);
}

// encode32 writes the half d that leaves the least error, of the given scale, the next one above it, and those that
// make the extreme element the least integer or one or two above.
APR_DEVICE void encode32(const SearchArgs &a, u32 at, const double (&x)[32], double s, double extreme, u32 bytes) {
    const u32 first = to_f16((float)s);
    double least = INFINITY_D;
    u32 d = 0;
    NO_UNROLL for (int k = 0; k < 5; k++) {
        const u32 trial = k < 2 ? first + (u32)k : to_f16((float)(extreme / (double)(a.least + k - 2)));
        const double err = error(x, half_value(trial), a.least, a.most);
        if (err < least) least = err, d = trial;
    }
    put_half(a.stored + (u64)at * bytes, d);
}

KERNEL(quantize_search_q8_0, SearchArgs, THREADS, 4) {
    const u32 at = block() * THREADS + thread();
    if (refused(a.record) || at >= a.blocks) return;
    double x[32];
    if (!read(x, a.x + (u64)at * 32)) return;
    const double largest = absolute(extreme_of(x));
    encode32(a, at, x, largest / 127, -largest, 34);
}

// Q4_0 and Q5_0.
KERNEL(quantize_search_plain, SearchArgs, THREADS, 4) {
    const u32 at = block() * THREADS + thread();
    if (refused(a.record) || at >= a.blocks) return;
    double x[32];
    if (!read(x, a.x + (u64)at * 32)) return;
    encode32(a, at, x, fit(x, -a.least), extreme_of(x), a.least == -8 ? 18 : 22);
}

// IQ4_NL: trials make the extreme element any of the values near an end of the table, and the codes of each trial give
// the next one's scale.
KERNEL(quantize_search_iq4_nl, SearchArgs, THREADS, 3) {
    enum { ENDS = 2 * 19 * 2, ALL = ENDS + 4 };
    const u32 at = block() * THREADS + thread();
    if (refused(a.record) || at >= a.blocks) return;
    double x[32];
    if (!read(x, a.x + (u64)at * 32)) return;
    const double extreme = extreme_of(x);
    double least = INFINITY_D, better = 0;
    u32 d = 0;
    NO_UNROLL for (int k = 0; k < ALL; k++) {
        double s = better;
        if (k >= ENDS) {
            if ((k & 1) == 0) s = half_value(d);
        } else if ((k & 1) == 0) {
            s = extreme / ((k & 2 ? 113.0 : -127.0) + 2 * (double)(k / 4 - 9));
        }
        const u32 trial = half_of(absolute(s)) | (s < 0 ? 0x8000 : 0);
        const double scale = half_value(trial), inv = inverse(scale);
        double err = 0, xv = 0;
        int vv = 0;
        UNROLL for (int i = 0; i < 32; i++) {
            const int v = value_iq4(code_iq4(mul_rn(inv, x[i])));
            const double e = scale * (double)v - x[i];
            err += mul_rn(e, e);
            xv += x[i] * (double)v;
            vv += v * v;
        }
        better = mul_rn(xv, inverse((double)vv));
        if (err < least) least = err, d = trial;
    }
    put_half(a.stored + (u64)at * 18, d);
}
