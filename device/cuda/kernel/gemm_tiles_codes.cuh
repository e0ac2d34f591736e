// Products of 2 to 16 rows of bfloat16 with matrices of Q4_K, Q5_K and Q6_K in tiles, y = x·Wᵀ, by codes:
// gemm_tiles.cuh has the tiles, the lanes and what becomes of sums.
//
// A value of Q4_K is d·sc·q − dmin·m, with a code sc and a code m of each group of 32 columns: that is d·sc·(q − 8) +
// (8·d·sc − dmin·m). The first part is what tensor cores multiply by x, as v = sc·(q − 8) rounded to bfloat16, which is
// exact up to 256: a code in the mantissa of a bfloat16 of known exponent is 8 + q/2, and one fused multiply-add of
// pairs makes v of it, since 24·sc is a bfloat16. The second is the same for all columns of a group, so that the sum of
// x over them is enough: Xg, which tensor cores add up too, with the columns of a group in one column of B, and which
// stands as two bfloat16, hi and lo, where they ask for it. In a span of 256 columns
//
//   y += d·(Σ v·x + Σ sc·8·Xg) − dmin/8·(Σ m·8·Xg),
//
// where the second sum and the third are one instruction each, of codes, exact. Q5_K has 16 instead of 8; Q6_K, d·sc·(q
// − 32), has no second part. A weight takes 1.5 instructions to decode (Q4_K), where gemm_tiles.cuh takes 3. Values are
// rounded as there, but before d and without the minimum: other bits. The error is smaller, except for groups that lie
// to one side of q = 8, as those with one large weight do: there it is up to 1/64 of a quantisation step.
//
// A tile has one warp or, where rows of W are few, several, which have its spans in turns. Warps copy spans of their
// tiles by themselves, each a bulk copy, `stages` ahead. x comes in chunks of spans for the block: one, if that is all
// of them, or two that are filled in turns, and then a barrier is between chunks instead of between spans.
#pragma once
#include "gemm_tiles.cuh"

constexpr u32 CODES_WARPS = 18; // of a block at most

// Pairs of bfloat16.
constexpr u32 PAIR_ONE = 0x3f803f80, PAIR_TWO = 0x40004000;
APR_DEVICE u32 pair_of(u32 pair, u32 i) { return byte_perm(pair, 0, i ? 0x3232 : 0x1010); } // element i twice
// of_codes makes integers of the bytes 2i and 2i + 1 of w, which are below 128.
APR_DEVICE u32 of_codes(u32 w, u32 i) { return fma_bf16(byte_perm(w, 0x43, i ? 0x4342 : 0x4140), PAIR_ONE, 0xc300c300); }
// halves_of makes pairs of bfloat16 of the bytes of w, the upper byte of each being top.
APR_DEVICE void halves_of(u32 &a, u32 &b, u32 w, u32 top) { a = byte_perm(w, top, 0x4140), b = byte_perm(w, top, 0x4342); }

// PairCodes is a lane's part of a row of a span of Q4_K or Q5_K: groups 2t and 2t + 1. MIDDLE is the code that becomes
// 0. Pairs of codes are multiplied by sc and get off: those of Q4_K stand for 8 + q/2, those of Q5_K for 32 + q.
template <u32 MIDDLE> struct PairCodes {
    static constexpr bool sums = true; // of x are asked for
    u32 shares, minima, sc[2], off[2]; // shares: MIDDLE/8·sc of both groups
    float d, dmin;                     // dmin: −dmin/8
    APR_METHOD void scales(u32x4 head, u32 t) {
        const u32 select = t & 1 ? 0x7632 : 0x5410, a = byte_perm(head[1], head[2], select), b = byte_perm(head[3], head[3] >> 4, select);
        const u32 codes = t >> 1 ? (b & 0x0f0f0f0fu) | (a >> 2 & 0x30303030u) : a & 0x3f3f3f3fu;
        const u32 once = of_codes(codes, 0), twice = fma_bf16(once, PAIR_TWO, 0);
        UNROLL for (u32 c = 0; c < 2; c++) {
            sc[c] = pair_of(MIDDLE == 8 ? twice : once, c);
            off[c] = fma_bf16(sc[c], MIDDLE == 8 ? 0xc140c140 : 0xc240c240, 0); // −12 or −48 times
        }
        shares = MIDDLE == 8 ? once : twice, minima = of_codes(codes, 1);
        d = from_f16((u16)head[0]), dmin = -0.125f * from_f16((u16)(head[0] >> 16));
    }
    // weigh makes values of codes of unit k.
    APR_METHOD void weigh(u32 &a, u32 &b, u32 k) const { a = fma_bf16(a, sc[k / 2], off[k / 2]), b = fma_bf16(b, sc[k / 2], off[k / 2]); }
};

template <class B> struct Codes;
template <> struct Codes<RowsQ4K> : PairCodes<8> {
    static constexpr u32 bytes = 144;
    static constexpr bool halves = false;
    struct Words { u32x4 q; };
    const u8 *at;
    APR_METHOD Codes(const u8 *span, u32 row, u32 t) {
        at = span + bytes * row + 16 + 32 * t;
        scales(load16(span + bytes * row), t);
    }
    // words loads what units i and i + 2 are of.
    APR_METHOD Words words(u32 i) const { return {load16(at + 16 * i)}; }
    // values makes the values of word i of unit k: a of its first two columns, b of the others.
    APR_METHOD void values(u32 &a, u32 &b, const Words &of, u32 k, u32 i) const {
        const u32 w = of.q[i];
        halves_of(a, b, (k < 2 ? w << 3 : w >> 1) & 0x78787878u, 0x41);
        weigh(a, b, k);
    }
};
template <> struct Codes<RowsQ5K> : PairCodes<16> {
    static constexpr u32 bytes = 176;
    static constexpr bool halves = false;
    struct Words { u32x4 q, fifth; };
    const u8 *at;
    u32 lane;
    APR_METHOD Codes(const u8 *span, u32 row, u32 t) {
        at = span + bytes * row + 16, lane = t;
        scales(load16(span + bytes * row), t);
    }
    APR_METHOD Words words(u32 i) const { return {load16(at + 32 + 32 * lane + 16 * i), load16(at + 16 * i)}; }
    APR_METHOD void values(u32 &a, u32 &b, const Words &of, u32 k, u32 i) const {
        const u32 w = of.q[i], fifth = of.fifth[i], by = (6 - 2 * lane - k / 2) & 31; // bit 2t + k/2 of a byte goes to bit 6
        halves_of(a, b, ((k < 2 ? w << 2 : w >> 2) & 0x3c3c3c3cu) | ((fifth << by | fifth >> (-by & 31)) & 0x40404040u), 0x42);
        weigh(a, b, k);
    }
};
template <> struct Codes<RowsQ6K> {
    static constexpr u32 bytes = 210;
    static constexpr bool halves = true, sums = false;
    struct Words { u32x4 q, upper; };
    const u8 *at;
    u32 half, sc[4]; // twice the codes of scales
    float d;
    APR_METHOD Codes(const u8 *span, u32 row, u32 t) {
        const u32x2 codes = *(const u32x2 *)(span + 192 * TILE + 16 * row + 8 * (t >> 1));
        d = from_f16(*(const u16 *)(span + 208 * TILE + 2 * row));
        UNROLL for (u32 k = 0; k < 4; k++) {
            const float code = from_bits(byte_perm(codes[k / 2] ^ 0x80808080u, 0x4b000000, 0x7440 + 2 * (k & 1) + (t & 1))) - 8388736.0f;
            sc[k] = pack_bf16(code + code, code + code);
        }
        at = span + 192 * row + 16 * (t & 1), half = t >> 1;
    }
    APR_METHOD Words words(u32 i) const { return {load16(at + 64 * half + 32 * i), load16(at + 128 + 32 * half)}; }
    APR_METHOD void values(u32 &a, u32 &b, const Words &of, u32 k, u32 i) const {
        const u32 w = of.q[i], h = of.upper[i], top = k == 0 ? h << 5 : k == 1 ? h << 3 : k == 2 ? h << 1 : h >> 1;
        halves_of(a, b, ((k < 2 ? w << 1 : w >> 3) & 0x1e1e1e1eu) | (top & 0x60606060u), 0x42);
        a = fma_bf16(fma_bf16(a, PAIR_ONE, 0xc240c240), sc[k], 0), b = fma_bf16(fma_bf16(b, PAIR_ONE, 0xc240c240), sc[k], 0); // 32 + q/2 − 48
    }
};

// Chunk is where x of several spans stands: of each as Stage has it, then the sums of each.
template <int N> struct Chunk {
    static_assert(N == 1 || N == 2);
    static constexpr u32 x_bytes = N * 8 * 512, sum_bytes = N * 256;
    u8 *x, *sums;
    APR_METHOD Chunk(const TilesArgs &a, u8 *shared, u32 turn) { x = shared + turn * a.chunk * (x_bytes + sum_bytes), sums = x + a.chunk * x_bytes; }
    // fill begins to copy x of spans [first, end), as Stage::fill_x does; 64 threads have two rows of x.
    APR_METHOD void fill(const TilesArgs &a, u32 first, u32 end, bool halves) const {
        const u32 i = thread() & 63, t = i & 3, unit = (i >> 3 & 1) | (i >> 3 & 6), step = threads() >> 6;
        const u32 c = halves ? (t & 2) << 3 | (unit & 6) << 1 | (t & 1) << 1 | (unit & 1) : t << 3 | unit;
        if (thread() >= step << 6) return;
        const u32 n = end - first;
        u32 span = first + block() % n; // blocks that read the same at the same time wait for each other
        NO_UNROLL for (u32 k = 0; k < n; k++, span = span + 1 < end ? span + 1 : first) {
            u8 *to = x + (span - first) * x_bytes + 16 * (unit * N * 32 + t);
            NO_UNROLL for (u32 token = (i >> 2 & 1) + 2 * (thread() >> 6); token < a.tokens; token += 2 * step)
                copy_async16(to + 512 * (token >> 3) + 64 * (token & 7), (const bf16 *)a.x + token * a.x_stride + 256 * span + 8 * c);
        }
    }
    // add_up makes 8·Xg of `spans` spans. A warp has two times 8 rows of x, which are the rows of A here; columns of B
    // are groups. What a lane gets, of a row groups 2t and 2t + 1, is what it holds of B where Xg is multiplied.
    APR_METHOD void add_up(u32 spans) const {
        const u32 l = lane(), g = l >> 2, t = l & 3;
        NO_UNROLL for (u32 span = warp(); span < spans; span += threads() / 32) {
            const u8 *from = x + span * x_bytes + 16 * l;
            float all[2][4] = {};
            UNROLL for (u32 step = 0; step < 8; step++) {
                const u32 eight = g == 2 * t + step / 4 ? 0x41004100u : 0;
                const u32x4 v = load16(from + 512 * N * step);
                u32x4 w = {};
                if (N > 1) w = load16(from + 512 * N * step + 512);
                UNROLL for (u32 j = 0; j < 2; j++) {
                    const u32 rows[4] = {v[2 * j], w[2 * j], v[2 * j + 1], w[2 * j + 1]};
                    mma_bf16(all[j], rows, eight, eight);
                }
            }
            UNROLL for (u32 r = 0; r < N; r++) {
                const float p = all[0][2 * r] + all[1][2 * r], q = all[0][2 * r + 1] + all[1][2 * r + 1];
                const u32 hi = pack_bf16(p, q);
                *(u32x2 *)(sums + span * sum_bytes + 256 * r + 8 * l) = u32x2{hi, pack_bf16(p - from_bits(hi << 16), q - from_bits(hi & 0xffff0000u))};
            }
        }
    }
};

// multiply_codes adds the products of a span.
template <class C, int N> APR_DEVICE void multiply_codes(float (&acc)[N][4], const u8 *x, const u8 *sums, const u8 *w) {
    const u32 l = lane(), g = l >> 2, t = l & 3;
    const C row[2] = {C(w, g, t), C(w, g + 8, t)};
    float part[N][4] = {};
    if constexpr (C::sums) {
        const u32 shares[4] = {row[0].shares, row[1].shares, row[0].shares, row[1].shares}, minima[4] = {row[0].minima, row[1].minima, row[0].minima, row[1].minima};
        UNROLL for (u32 n = 0; n < N; n++) {
            const u32x2 v = *(const u32x2 *)(sums + 256 * n + 8 * l);
            float off[4] = {};
            mma_bf16(part[n], shares, v[0], v[1]);
            mma_bf16(off, minima, v[0], v[1]);
            UNROLL for (u32 i = 0; i < 4; i++) acc[n][i] = fma_rn(row[i / 2].dmin, off[i], acc[n][i]);
        }
    }
    UNROLL for (u32 i = 0; i < 2; i++) {
        const typename C::Words words[2] = {row[0].words(i), row[1].words(i)};
        UNROLL for (u32 k = i; k < 4; k += 2)
            UNROLL for (u32 j = 0; j < 2; j++) {
                u32 rows[2][4]; // instruction
                UNROLL for (u32 r = 0; r < 2; r++)
                    UNROLL for (u32 m = 0; m < 2; m++) row[r].values(rows[m][r], rows[m][2 + r], words[r], k, 2 * j + m);
                const u8 *from = x + 16 * ((2 * k + j) * N * 32 + l);
                u32x4 v[N];
                UNROLL for (u32 n = 0; n < N; n++) v[n] = load16(from + 512 * n);
                UNROLL for (u32 m = 0; m < 2; m++)
                    UNROLL for (u32 n = 0; n < N; n++) mma_bf16(part[n], rows[m], v[n][2 * m], v[n][2 * m + 1]); // which do not wait for each other
            }
    }
    UNROLL for (u32 n = 0; n < N; n++)
        UNROLL for (u32 i = 0; i < 4; i++) acc[n][i] = fma_rn(row[i / 2].d, part[n][i], acc[n][i]);
}

// sum_codes adds up the warp's spans of the block's, every a.split-th.
template <class C, int N> APR_DEVICE void sum_codes(const TilesArgs &a, const Tile &p, u8 *shared, float (&acc)[N][4]) {
    const Spans s = spans_of(a);
    u32 span = s.first + warp() % a.split;
    const u32 buffers = a.chunk < s.end - s.first ? 2 : 1;
    TileRing<C::bytes> ring(a, shared + buffers * a.chunk * (Chunk<N>::x_bytes + Chunk<N>::sum_bytes), warp());
    NO_UNROLL for (u32 i = 0; i < a.stages; i++)
        if (p.there && span + i * a.split < s.end) ring.fill(a, p, span + i * a.split, i);
    wait_before(); // blocks of W do not change
    auto fill = [&](u32 first, u32 turn) {
        if (first < s.end) Chunk<N>(a, shared, turn).fill(a, first, (u32)min_of(s.end, first + a.chunk), C::halves);
        copy_async_commit();
    };
    fill(s.first, 0);
    if (buffers == 2) fill(s.first + a.chunk, 1);
    u32 turn = 0;
    NO_UNROLL for (u32 first = s.first; first < s.end; first += a.chunk) {
        const u32 end = (u32)min_of(s.end, first + a.chunk);
        const Chunk<N> now(a, shared, turn);
        if (buffers == 2) copy_async_wait<1>();
        else copy_async_wait<0>();
        sync_block(); // the chunk is there for all
        if constexpr (C::sums) {
            now.add_up(end - first);
            sync_block();
        }
        NO_UNROLL for (; p.there && span < end; span += a.split) {
            const u8 *w = ring.wait(a, p, span);
            multiply_codes<C, N>(acc, now.x + (span - first) * Chunk<N>::x_bytes, now.sums + (span - first) * Chunk<N>::sum_bytes, w);
            ring.advance(a, p, span + a.stages * a.split, span + a.stages * a.split < s.end);
        }
        if (end == s.end) break;
        sync_block(); // the chunk has been read
        fill(first + 2 * a.chunk, turn);
        turn ^= 1;
    }
}

// The whole, for up to 8·N rows of x. Grid: (groups of tiles of all parts, shares).
template <int N> APR_DEVICE void gemm_tiles_codes(const TilesArgs &a) {
    DYNAMIC_SHARED(shared);
    let_next();
    const Tile p = tile_of(a, warp() / a.split, a.warps / a.split);
    float acc[N][4] = {};
    if (p.part.type == 0) sum_codes<Codes<RowsQ4K>>(a, p, shared, acc);
    else if (p.part.type == 1) sum_codes<Codes<RowsQ5K>>(a, p, shared, acc);
    else sum_codes<Codes<RowsQ6K>>(a, p, shared, acc);
    finish_tiles(a, p, a.split, shared, acc, [] { sync_block(); });
}
