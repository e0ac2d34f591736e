// What the searches for scales and the rounding of quantize_*.cu share. They do what package quant does, in float64,
// every operation in the same order and rounded on its own, so that the bytes are the same: a product is mul_rn where
// it could be fused with a sum, and plain where it is exact, of a float32 or a half and a small integer.
#pragma once
#include "apr.cuh"

// SearchArgs are those of a search for the scales of blocks that stand one after the other.
struct SearchArgs {
    const float *x;
    u8 *stored;
    const Record *record; // 0: whatever the verdict
    u32 blocks;
    i32 least, most; // integers of an element
};

static_assert(sizeof(SearchArgs) == 40, "as in quantize.go");

// refused reports whether nothing is to be done, since the verdict refused the step.
APR_DEVICE bool refused(const Record *r) { return r && (!r->finite || r->diverged); }

// MAX_ABS is the largest magnitude that a block can hold.
#define MAX_ABS 65504.0f
APR_DEVICE bool usable(float x) { return x <= MAX_ABS && x >= -MAX_ABS; }

#define INFINITY_D (__builtin_inf())

APR_DEVICE double inverse(double s) { return s == 0 ? 0 : 1 / s; }
APR_DEVICE double half_value(u32 bits) { return (double)from_f16((u16)bits); }
APR_DEVICE double absolute(double v) { return __builtin_fabs(v); }

// small converts an integer 0 … 2³¹ exactly, by a sum: conversions are slower.
APR_DEVICE double small(int q) { return __builtin_bit_cast(double, 0x4330000000000000ull | (u64)(u32)q) - 4503599627370496.0; }

APR_DEVICE int clamp(int v, int least, int most) { return v < least ? least : v > most ? most : v; }
APR_DEVICE double larger(double a, double b) { return a > b ? a : b; }
APR_DEVICE double smaller(double a, double b) { return a < b ? a : b; }

// rounded is quant.roundSymmetric less `least`: the nearest integer to v in 0 … most, v ≥ 0 counted from there.
APR_DEVICE int rounded(double v, double half_up, int most) { return clamp(to_int(v + half_up), 0, most); }

// Blocks begin at any address: where rows of several types follow each other in a parameter, as in a file, some begin
// at odd ones. Most do not.
APR_DEVICE u32 half_at(const u8 *p) { return (u64)p & 1 ? p[0] | (u32)p[1] << 8 : *(const u16 *)p; }
APR_DEVICE void put_half(u8 *to, u32 v) {
    if (((u64)to & 1) == 0) *(u16 *)to = (u16)v;
    else to[0] = (u8)v, to[1] = (u8)(v >> 8);
}
APR_DEVICE void put_word(u8 *to, u32 v) {
    put_half(to, v);
    put_half(to + 2, v >> 16);
}
APR_DEVICE u32x4 load16_any(const u8 *p) {
    if (((u64)p & 15) == 0) return load16(p);
    u32x4 v;
    UNROLL for (int i = 0; i < 4; i++) v[i] = half_at(p + 4 * i) | half_at(p + 4 * i + 2) << 16;
    return v;
}

// half_of returns the half nearest to v in 0 … MAX_ABS.
APR_DEVICE u32 half_of(double v) { return to_f16((float)smaller(larger(v, 0), 65504)); }

// step_half returns the half nearest to largest/top, or the next larger one if top steps of it would not reach largest
// ≥ 0.
APR_DEVICE u32 step_half(double largest, int top) {
    const u32 h = to_f16((float)(largest / (double)top));
    return half_value(h) * ((double)top + 0.5) < largest ? h + 1 : h;
}

// read converts N consecutive values at a multiple of 16 bytes, and reports whether a block can hold them all.
template <int N> APR_DEVICE bool read(double (&x)[N], const float *from) {
    bool ok = true;
    UNROLL for (int i = 0; i < N; i += 4) {
        const f32x4 v = __builtin_bit_cast(f32x4, load16(from + i));
        UNROLL for (int k = 0; k < 4; k++) {
            ok = ok && usable(v[k]);
            x[i + k] = (double)v[k];
        }
    }
    return ok;
}

// extreme_of returns the element of largest magnitude, the first of several. It begins with the first: of
// |x₀| > 0 ? x₀ : 0 clang 19 believes that it has no sign, and leaves its next absolute value out.
template <int N> APR_DEVICE double extreme_of(const double (&x)[N]) {
    double extreme = x[0];
    UNROLL for (int i = 1; i < N; i++)
        if (absolute(x[i]) > absolute(extreme)) extreme = x[i];
    return extreme;
}

// code_iq4 returns the code of the value of IQ4_NL nearest to x, the lower of two: how many of the middles between
// values are below x. Twice the middles are integers, so twice x, rounded up, is compared.
APR_DEVICE int code_iq4(double x) {
    const double twice = smaller(larger(2 * x, -1000), 1000);
    int up = to_int(twice);
    if ((double)up < twice) up++;
    int c = 0;
    c += (up > -231) + (up > -187) + (up > -148) + (up > -114) + (up > -84) + (up > -57) + (up > -32) + (up > -9);
    c += (up > 14) + (up > 38) + (up > 63) + (up > 91) + (up > 122) + (up > 158) + (up > 202);
    return c;
}

// value_iq4 returns the value of a code: −127, −104, −83, −65, −49, −35, −22, −10, 1, 13, 25, 38, 53, 69, 89 or 113.
APR_DEVICE int value_iq4(int code) {
    const u64 values = code < 8 ? 0xf6eaddcfbfad9881ull : 0x7159453526190d01ull;
    return (signed char)(values >> 8 * (code & 7));
}

// Lanes side by side have the groups of a block, LANES of them; a warp has several blocks, and all its lanes take part
// in what follows.
template <int LANES> struct Team {
    int first, own; // lane of the first group; number of this group
    APR_METHOD Team() : first((int)(lane() & ~(LANES - 1u))), own((int)(lane() & (LANES - 1u))) {}
    template <class T> APR_METHOD T of(T v, int j) const { return shfl(v, first + j); }
    // sum adds in the order of the groups.
    APR_METHOD double sum(double v) const {
        double s = 0;
        NO_UNROLL for (int j = 0; j < LANES; j++) s += of(v, j);
        return s;
    }
    APR_METHOD int sum(int v) const {
        UNROLL for (int m = LANES / 2; m; m >>= 1) v += shfl_xor(v, m);
        return v;
    }
    APR_METHOD double most(double v) const {
        UNROLL for (int m = LANES / 2; m; m >>= 1) v = larger(v, shfl_xor(v, m));
        return v;
    }
    // widest returns the value of largest magnitude, the first of several.
    APR_METHOD double widest(double v) const {
        double w = of(v, 0);
        NO_UNROLL for (int j = 1; j < LANES; j++) {
            const double other = of(v, j);
            if (absolute(other) > absolute(w)) w = other;
        }
        return w;
    }
    APR_METHOD bool all(bool p) const { return (ballot(p) >> first & (u32)((1ull << LANES) - 1)) == (u32)((1ull << LANES) - 1); }
    // chain calls add of one group after the other, with what the groups before have made of v and w; both are then
    // those of the last.
    template <class F> APR_METHOD void chain(double &v, double &w, F add) const {
        v = w = 0;
        NO_UNROLL for (int j = 0; j < LANES; j++) {
            const double before = of(v, j ? j - 1 : 0), beside = of(w, j ? j - 1 : 0);
            if (own == j) {
                if (j) v = before, w = beside;
                add();
            }
        }
        v = of(v, LANES - 1);
        w = of(w, LANES - 1);
    }
};

// Codes are the integers 0 … 255 of a group, four to a word.
template <int N> struct Codes {
    u32 word[N / 4];
    APR_METHOD void clear() { UNROLL for (int i = 0; i < N / 4; i++) word[i] = 0; }
    APR_METHOD void set(int i, int q) { word[i / 4] |= (u32)q << 8 * (i & 3); } // once for each i, i a constant
    APR_METHOD int get(int i) const { return (int)(word[i / 4] >> 8 * (i & 3) & 255); }
};

// Sums are what least squares of d and dmin need: of Σ(d·a − dmin·c − x)², a = sc·q and c = m.
struct Sums { double aa, ac, cc, xa, xc; };

// VALLEY is the number of halves that refit_pair tries on each side.
enum { VALLEY = 16 };

// refit_pair returns, of the halves around center and for each those around the dmin that is best for it, the pair of
// least error, d in the low half of the word; `before`, if none has any. The lanes of a team try some each; of equal
// errors the first in order counts.
template <int LANES> APR_DEVICE u32 refit_pair(const Team<LANES> &t, const Sums &s, int center, u32 before) {
    double least = INFINITY_D;
    u32 best = before;
    int order = 0x7fffffff;
    NO_UNROLL for (int i = t.own; i <= 2 * VALLEY; i += LANES) {
        const u32 d = (u32)clamp(center - VALLEY + i, 0, 0x7bff);
        const double u = half_value(d);
        int middle = (int)(before >> 16);
        if (s.cc > 0) middle = (int)half_of((mul_rn(s.ac, u) - s.xc) / s.cc);
        NO_UNROLL for (int k = 0; k < 3; k++) {
            const u32 m = (u32)clamp(middle - 1 + k, 0, 0x7bff);
            const double w = half_value(m);
            const double err = mul_rn(u, mul_rn(u, s.aa) - mul_rn(2, s.xa)) + mul_rn(w, mul_rn(w, s.cc) + mul_rn(2, s.xc)) - mul_rn(mul_rn(mul_rn(2, u), w), s.ac);
            if (err < least) least = err, best = d | m << 16, order = 3 * i + k;
        }
    }
    UNROLL for (int m = LANES / 2; m; m >>= 1) {
        const double err = shfl_xor(least, m);
        const u32 other = shfl_xor(best, m);
        const int at = shfl_xor(order, m);
        if (err < least || (err == least && at < order)) least = err, best = other, order = at;
    }
    return best;
}
