// Products of 33 to 64 rows of bfloat16 with matrices of Q4_K, Q5_K and Q6_K in tiles, by codes and by warpgroups: gemm_tiles_codes.cuh has the
// arithmetic, gemm_tiles_wide.cuh what warpgroups read of x.
//
// A thread asks for its 64 bytes of x of the next span while it multiplies one, in a place of its own; then it brings them into the order that
// multiplications read, and adds up groups by the way. Nothing of x is in registers while products are, which need 32 more of them than by values:
// the sums of a span are apart until d is applied.
#pragma once
#include "gemm_tiles_codes.cuh"
#include "gemm_tiles_wide.cuh"

constexpr u32 WIDE_SUMS = 8 * 256, WIDE_STAGE = 4 * PANEL + WIDE_SUMS, WIDE_OWN = 4 * 512 * 16; // bytes: of sums, of x with them, of what is on its way

// NextX is a thread's share of x of the next span, as XOfSpan has it.
struct NextX {
    u8 *own; // four times 16 bytes
    APR_METHOD explicit NextX(u8 *place) : own(place + 16 * thread()) {}
    APR_METHOD void ask(const TilesArgs &a, u32 span, bool halves) const {
        const u32 token = thread() >> 3, unit = thread() & 7;
        const bool there = token < a.tokens;
        const bf16 *row = (const bf16 *)a.x + (there ? token * a.x_stride + 256 * span : 0);
        UNROLL for (u32 t = 0; t < 4; t++) {
            const u32 c = halves ? (t & 2) << 3 | (unit & 6) << 1 | (t & 1) << 1 | (unit & 1) : t << 3 | unit;
            copy_async16(own + t * 512 * 16, row + 8 * c, there);
        }
        copy_async_commit();
    }
    // store waits for it and leaves it, and 8·Xg if SUMS, at a stage. A warp has four rows of x, of which lanes 4g … 4g + 3 have one half of each
    // lane's columns: they are row g of A, and what lane t of four holds is added up in column t of B.
    template <bool SUMS> APR_METHOD void store(u8 *stage) const {
        XOfSpan x;
        copy_async_wait<0>();
        UNROLL for (u32 t = 0; t < 4; t++) x.v[t] = load16(own + t * 512 * 16);
        x.store(stage);
        if (!SUMS) return;
        const u32 g = lane() >> 2, t = lane() & 3, token = 4 * warp() + (g >> 1);
        float all[4] = {};
        UNROLL for (u32 i = 0; i < 4; i++) {
            const u32 rows[4] = {x.v[i][0], x.v[i][2], x.v[i][1], x.v[i][3]}, eight = g == i ? 0x41004100u : 0;
            mma_bf16(all, rows, eight, eight);
        }
        if (t > 1) return;
        u8 *at = stage + 4 * PANEL + 256 * (token / 8) + 32 * (token % 8) + 16 * t + 2 * (g & 1); // of groups 4t + g%2 and, 8 bytes on, 4t + 2 + g%2
        UNROLL for (u32 i = 0; i < 2; i++) {
            const float sum = all[i] + all[2 + i];
            const bf16 hi = to_bf16(sum);
            *(bf16 *)(at + 8 * i) = hi, *(bf16 *)(at + 8 * i + 4) = to_bf16(sum - from_bf16(hi));
        }
    }
};

// multiply_codes_wide adds the products of a span.
template <class C> APR_DEVICE void multiply_codes_wide(float (&acc)[32], const u8 *x, const u8 *w) {
    const u32 l = lane(), g = l >> 2, t = l & 3;
    const C row[2] = {C(w, g, t), C(w, g + 8, t)};
    float part[32] = {};
    if constexpr (C::sums) {
        const u32 shares[4] = {row[0].shares, row[1].shares, row[0].shares, row[1].shares}, minima[4] = {row[0].minima, row[1].minima, row[0].minima, row[1].minima};
        UNROLL for (u32 n = 0; n < 8; n++) {
            const u32x2 v = *(const u32x2 *)(x + 4 * PANEL + 256 * n + 8 * l);
            float share[4] = {}, off[4] = {};
            mma_bf16(share, shares, v[0], v[1]);
            mma_bf16(off, minima, v[0], v[1]);
            UNROLL for (u32 i = 0; i < 4; i++) part[4 * n + i] = share[i], acc[4 * n + i] = fma_rn(row[i / 2].dmin, off[i], acc[4 * n + i]);
        }
    }
    UNROLL for (u32 i = 0; i < 2; i++) {
        const typename C::Words words[2] = {row[0].words(i), row[1].words(i)};
        UNROLL for (u32 k = i; k < 4; k += 2) {
            u32 rows[16];
            UNROLL for (u32 m = 0; m < 4; m++)
                UNROLL for (u32 r = 0; r < 2; r++) row[r].values(rows[4 * m + r], rows[4 * m + 2 + r], words[r], k, m);
            start_scores<1>(part, rows, operand(shared_address(x) + k * PANEL));
            wait_products<0>(part);
        }
    }
    UNROLL for (u32 i = 0; i < 32; i++) acc[i] = fma_rn(row[i / 2 & 1].d, part[i], acc[i]);
}

// sum_codes_wide adds up the block's spans.
template <class C> APR_DEVICE void sum_codes_wide(const TilesArgs &a, const Tile &p, u8 *shared, float (&acc)[32]) {
    const Spans s = spans_of(a);
    CodesRing<C> ring(a, shared + 2 * WIDE_STAGE + WIDE_OWN);
    if (lane() < a.stages && warp() < a.warps) bulk_init(ring.filled + lane(), 1);
    sync_warp();
    NO_UNROLL for (u32 i = 0; i < a.stages; i++)
        if (p.there && s.first + i < s.end) ring.fill(a, p, s.first + i, i);
    wait_before(); // blocks of W do not change
    const NextX x(shared + 2 * WIDE_STAGE);
    x.ask(a, s.first, C::halves);
    x.template store<C::sums>(shared);
    publish();
    u32 now = 0;
    NO_UNROLL for (u32 span = s.first; span < s.end; span++) {
        const bool more = span + 1 < s.end;
        sync_block(); // x is there for all, and the one before has been read
        if (more) x.ask(a, span + 1, C::halves);
        if (warp() < a.warps) {
            const u8 *w = ring.slots; // of a tile that is not there anything
            if (p.there) w = ring.wait(a, p, span);
            multiply_codes_wide<C>(acc, shared + now * WIDE_STAGE, w);
            sync_warp(); // every lane has read
            if (p.there && span + a.stages < s.end) ring.fill(a, p, span + a.stages, ring.turn);
            ring.advance(a);
        }
        now ^= 1;
        if (more) x.template store<C::sums>(shared + now * WIDE_STAGE), publish();
    }
}

// The whole. Grid: as of gemm_tiles_codes. Panels begin at multiples of 1024 bytes.
APR_DEVICE void gemm_tiles_codes_wide(const TilesArgs &a) {
    DYNAMIC_SHARED(begin);
    u8 *shared = begin + (-shared_address(begin) & 1023);
    let_next();
    const Tile p = tile_of(a);
    float acc[32] = {};
    if (p.part.type == 0) sum_codes_wide<Codes<RowsQ4K>>(a, p, shared, acc);
    else if (p.part.type == 1) sum_codes_wide<Codes<RowsQ5K>>(a, p, shared, acc);
    else sum_codes_wide<Codes<RowsQ6K>>(a, p, shared, acc);
    float sums[8][4];
    UNROLL for (u32 i = 0; i < 32; i++) sums[i / 4][i % 4] = acc[i];
    finish_tiles(a, p, shared, sums);
}
