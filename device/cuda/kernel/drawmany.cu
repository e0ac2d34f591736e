// drawmany.cu: ids drawn from softmax(z/T), as device.ManyDrawer says. See drawmany.go.
//
// A block takes a row. It reads the row for its maximum, and again for the weights, whose sums by tiles of columns it keeps: weights
// are integers, so that no order of addition changes them. A draw is looked for among the tiles, whose running sums are in shared
// memory, and then by a warp within its tile, which computes those weights again.
//
// Bytes moved per logit: 8, from memory. 21 operations of float64 a logit, of 42 instructions: on cards that have half
// as many of float64 as of float32, as H100's and H200's, they take as long as the reading, on others much longer.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "apr.cuh"
#include "random.cuh"

enum { THREADS = 512, WARPS = THREADS / 32, TILES = 2048 }; // at most
constexpr float LOWEST = -3.4028234e38f; // finite, so that −∞ alone is not finite
typedef unsigned __int128 u128;

struct DrawManyArgs {
    float *out;
    const float *z;
    const u32 *keys;
    i64 out_stride, z_stride;
    double k; // log₂e/T
    u32 cols, draws, tile;
    i32 bits;   // B
    u32 vector; // all rows start at multiples of 16 bytes
};

APR_DEVICE u64 bits64(double x) { return __builtin_bit_cast(u64, x); }
APR_DEVICE u64 shfl_xor64(u64 v, int m) { return (u64)shfl_xor((u32)(v >> 32), m) << 32 | shfl_xor((u32)v, m); }
APR_DEVICE u64 shfl64(u64 v, int l) { return (u64)shfl((u32)(v >> 32), l) << 32 | shfl((u32)v, l); }
APR_DEVICE u64 shfl_up64(u64 v, int d) { return (u64)shfl_up((u32)(v >> 32), d) << 32 | shfl_up((u32)v, d); }
APR_DEVICE u64 warp_sum64(u64 v) {
    UNROLL for (int m = 16; m > 0; m /= 2) v += shfl_xor64(v, m);
    return v;
}
// running64 returns the sum over the lanes up to this one.
APR_DEVICE u64 running64(u64 v) {
    UNROLL for (int d = 1; d < 32; d *= 2) {
        const u64 below = shfl_up64(v, d);
        if (lane() >= (u32)d) v += below;
    }
    return v;
}

// A float64 of [2⁵², 2⁵³) has these bits and an integer below.
constexpr u64 WHOLE = 0x433ull << 52;
APR_DEVICE u64 whole(u64 x) { return x & ~WHOLE; }

// weigh writes W and e of a logit t ≤ top, each WHOLE more, which sums are rid of at once. It does not branch, so that
// the chains of several logits are under way at a time: from x = −60 down W and e are 0 anyway.
APR_DEVICE void weigh(float t, double top, const DrawManyArgs &a, u64 &w, u64 &e) {
    const u64 far = bits64(mul_rn((double)t - top, a.k));
    const u32 high = (u32)(far >> 32), least = 0xc04e0000u; // that of −60; of numbers below it is larger
    const double x = __builtin_bit_cast(double, (u64)(high < least ? high : least) << 32 | (u32)far);
    const double nearest = x + 0x1.8p52;
    const i32 n = (i32)(u32)bits64(nearest);
    const double f = x - (nearest - 0x1.8p52);
    // (ln 2)^i/i!
    double p = 0x1.c3bd650fc2986p-36;
    p = __builtin_fma(p, f, 0x1.e8cac7351bb25p-32);
    p = __builtin_fma(p, f, 0x1.e4cf5158b8ecap-28);
    p = __builtin_fma(p, f, 0x1.b5253d395e7c4p-24);
    p = __builtin_fma(p, f, 0x1.62c0223a5c824p-20);
    p = __builtin_fma(p, f, 0x1.ffcbfc588b0c7p-17);
    p = __builtin_fma(p, f, 0x1.430912f86c787p-13);
    p = __builtin_fma(p, f, 0x1.5d87fe78a6731p-10);
    p = __builtin_fma(p, f, 0x1.3b2ab6fba4e77p-7);
    p = __builtin_fma(p, f, 0x1.c6b08d704a0c0p-5);
    p = __builtin_fma(p, f, 0x1.ebfbdff82c58fp-3);
    p = __builtin_fma(p, f, 0x1.62e42fefa39efp-1);
    p = __builtin_fma(p, f, 1.0);
    const double y = p * __builtin_bit_cast(double, (u64)(n + a.bits + 1023) << 52); // exact
    w = bits64(y + 0x1p52);
    e = bits64(mul_rn(y, -x) + 0x1p52);
}

// fraction is the number of draw k in units of 2⁻⁵³: two words of the block of counter (position, ⌊k/2⌋, 0, 0).
APR_DEVICE u64 fraction(u32 key0, u32 key1, u32 position, u32 k) {
    const u32x4 c = philox(key0, key1, position, k / 2);
    return (k % 2 ? (u64)c[2] << 32 | c[3] : (u64)c[0] << 32 | c[1]) >> 11;
}

// four reads columns c to c+3, of which those from `end` on are −∞.
APR_DEVICE f32x4 four(const float *t, u32 c, u32 end, u32 vector) {
    if (vector && c + 4 <= end) return __builtin_bit_cast(f32x4, load16(t + c));
    f32x4 v;
    UNROLL for (u32 e = 0; e < 4; e++) v[e] = c + e < end ? t[c + e] : -INFINITY_F;
    return v;
}

// largest takes four values into the largest so far, and notes a NaN.
APR_DEVICE void largest(float &m, bool &good, const f32x4 &v) {
    m = max2(m, max2(max2(v[0], v[1]), max2(v[2], v[3])));
    UNROLL for (u32 e = 0; e < 4; e++) good &= v[e] == v[e];
}

KERNEL(draw_many, DrawManyArgs, THREADS, 2) {
    SHARED(u64, sums, TILES); // of tiles, then running
    SHARED(u64, part, WARPS);
    SHARED(u64, both, 2); // S, which is 0 where there is no distribution, and E
    SHARED(float, tops, WARPS);
    SHARED(u32, bad, WARPS);
    const u32 warps = threads() / 32;
    const float *t = a.z + block() * a.z_stride;
    float *out = a.out + block() * a.out_stride;
    float m = -INFINITY_F;
    bool good = true;
    const u32 step = 4 * threads();
    u32 c = 4 * thread();
    for (; a.vector && c + 3 * step + 4 <= a.cols; c += 4 * step) { // four loads are under way
        f32x4 v[4];
        UNROLL for (u32 i = 0; i < 4; i++) v[i] = __builtin_bit_cast(f32x4, load16(t + c + i * step));
        UNROLL for (u32 i = 0; i < 4; i++) largest(m, good, v[i]);
    }
    for (; c < a.cols; c += step) largest(m, good, four(t, c, a.cols, a.vector));
    m = warp_max(m);
    if (lane() == 0) tops[warp()] = m;
    sync_block();
    m = warp_max(lane() < warps ? tops[lane()] : -INFINITY_F);
    const double top = m;

    u64 energy = 0;
    good &= m >= LOWEST && m <= -LOWEST;
    const u32 tiles = (a.cols + a.tile - 1) / a.tile;
    for (u32 i = warp(); i < tiles; i += warps) {
        u64 sum = 0;
        const u32 end = (i + 1) * a.tile < a.cols ? (i + 1) * a.tile : a.cols;
        for (u32 c = i * a.tile + 4 * lane(); c - 4 * lane() < end; c += 256) {
            const f32x4 v[2] = {four(t, c, end, a.vector), four(t, c + 128, end, a.vector)};
            UNROLL for (u32 e = 0; e < 8; e++) {
                u64 w, d;
                weigh(v[e / 4][e % 4], top, a, w, d);
                sum += w;
                energy += d;
            }
            sum -= 8 * WHOLE;
            energy -= 8 * WHOLE;
        }
        sum = warp_sum64(sum);
        if (lane() == 0) sums[i] = sum;
    }
    energy = warp_sum64(energy);
    const u32 fine = ballot(good);
    if (lane() == 0) {
        part[warp()] = energy;
        bad[warp()] = fine != 0xffffffffu;
    }
    sync_block();

    if (warp() == 0) { // running sums: a lane takes neighbouring tiles
        const u32 each = (tiles + 31) / 32, first = lane() * each;
        u64 own = 0;
        for (u32 i = first; i < first + each && i < tiles; i++) own += sums[i];
        const u64 upto = running64(own);
        u64 run = upto - own;
        for (u32 i = first; i < first + each && i < tiles; i++) sums[i] = run += sums[i];
        const u64 total = shfl64(upto, 31);
        energy = warp_sum64(lane() < warps ? part[lane()] : 0);
        const bool none = ballot(lane() < warps && bad[lane()]) != 0;
        if (lane() == 0) {
            both[0] = none ? 0 : total;
            both[1] = none ? 0 : energy;
        }
    }
    sync_block();
    const u64 total = both[0];
    if (thread() < 3) {
        out[a.draws + thread()] = (float)(u32)(total >> (21 * thread()) & 0x1fffff);
        out[a.draws + 3 + thread()] = (float)(u32)(both[1] >> (21 * thread()) & 0x1fffff);
    }
    const u32 *key = a.keys + 3 * (i64)block();
    for (u32 k = warp(); k < a.draws; k += warps) {
        if (total == 0) {
            if (lane() == 0) out[k] = 0;
            continue;
        }
        const u64 target = (u64)((u128)fraction(key[0], key[1], key[2], k) * total >> 53);
        u32 lo = 0, hi = tiles - 1; // the first tile whose running sum is above target
        while (lo < hi) {
            const u32 mid = (lo + hi) / 2;
            if (sums[mid] > target) hi = mid;
            else lo = mid + 1;
        }
        u64 run = lo > 0 ? sums[lo - 1] : 0;
        const u32 end = (lo + 1) * a.tile < a.cols ? (lo + 1) * a.tile : a.cols;
        for (u32 c0 = lo * a.tile; c0 < end; c0 += 128) {
            const u32 c = c0 + 4 * lane();
            const f32x4 v = four(t, c, end, a.vector);
            u64 w[4], d, mine = 0;
            UNROLL for (u32 e = 0; e < 4; e++) {
                weigh(v[e], top, a, w[e], d);
                mine += w[e] = whole(w[e]);
            }
            const u64 upto = run + running64(mine);
            const u32 above = ballot(upto > target);
            if (above == 0) {
                run = shfl64(upto, 31);
                continue;
            }
            if (lane() == (u32)__builtin_ctz(above)) {
                u64 sum = upto - mine;
                u32 e = 0; // how many running sums are not above target; no w[e], which would be in local memory
                UNROLL for (u32 i = 0; i < 3; i++) e += (sum += w[i]) <= target;
                out[k] = (float)(c + e);
            }
            break;
        }
    }
}
