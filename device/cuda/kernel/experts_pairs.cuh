// Products of the few slots of a generation with their experts' matrices in blocks, two rows at a time that take the same x: see
// gemv_blocks.cuh for the arithmetic. A warp has its next pairs of rows on their way to shared memory while it multiplies one.
#pragma once
#include "clampglu.cuh"
#include "gemv_blocks.cuh"
#include "slots.cuh"

// PairOf is how pairs of rows of a type are multiplied, a piece of `values` columns at a time, whose blocks are `bytes` in full. x stands
// in shared memory as ByChunk has it.
template <class B> struct PairOf {
    static constexpr u32 values = CHUNK, bytes = 8 * B::bytes, group = B::bytes / 8; // group: of 32 values, where blocks may end early
    APR_METHOD static u32 row(u32 cols) { return B::partial ? cols / 32 * group : cols / 256 * B::bytes; }
    APR_METHOD static u32 x_bytes(u32 cols) { return (cols + CHUNK - 1) / CHUNK * CHUNK_X; }
    APR_METHOD static void round(u8 *x, u32 pack, u32x4 v, bool live, u32) { round_pack<ByChunk>(x, pack, v, live); }
    // add adds to sum the products of piece c of rows p[0] and p[1]. Each gets the bits that dot gives it.
    APR_METHOD static void add(float (&sum)[2], const u8 *const (&p)[2], const u8 *x, u32 c, u32 cols) {
        const u32 l = lane(), from = 8 * (8 * c + (l >> 2)), groups = cols / 32;
        if (from >= groups) return;
        const InShared v{x + c * CHUNK_X, 0, l};
        UNROLL for (int k = 0; k < (B::halves ? 4 : 2); k++) {
            if (B::partial && 2 * (l & 3) + k >= groups - from) break;
            const Unit a = B::halves ? v.half(0, k) : v.pair(0, 2 * k), b = B::halves ? a : v.pair(0, 2 * k + 1);
            const float scale = B::halves ? v.half_scale(0, k) : v.pair_scale(0, k), total = B::halves ? v.half_total(0, k) : v.pair_total(0, k);
            UNROLL for (int r = 0; r < 2; r++) {
                const u8 *at = p[r] + (l >> 2) * B::bytes;
                Words q[4];
                float s[4], off[4];
                B::words(q, at, l, groups - from);
                B::scales(s, off, at, l, groups - from);
                IntSum n;
                n.template add<B::is_signed>(q[B::halves ? k : 2 * k], a);
                if (!B::halves) n.template add<B::is_signed>(q[2 * k + 1], b);
                sum[r] = with_group<B>(sum[r], s[k], off[k], mul_rn(scale, n.value()), total);
            }
        }
    }
};

// MXFP4: a lane has every 32nd group. The two nibbles of a byte stand beside each other in x too: byte 2v of a group's hi is value v, byte
// 2v+1 value 16+v, so that words of blocks are selectors of their codes as they are. Four planes of 16 bytes of each group, of hi and of
// lo, then the powers of two.
struct PairOfMXFP4 {
    static constexpr u32 values = 4096, bytes = 17 * 128;
    APR_METHOD static u32 row(u32 cols) { return cols / 32 * 17; }
    APR_METHOD static u32 x_bytes(u32 cols) { return (cols / 32 * 68 + 15) & ~15u; }
    APR_METHOD static void round(u8 *x, u32 pack, u32x4 v, bool live, u32 cols) {
        const Rounded r = round8(v);
        const bool second = pack & 2; // of the two lanes that have the other halves of each other's bytes: it writes lo
        const u32x2 mine = second ? r.lo : r.hi, give = second ? r.hi : r.lo;
        const u32x2 got = {shfl_xor(give[0], 2), shfl_xor(give[1], 2)}, a = second ? got : mine, b = second ? mine : got;
        if (!live) return;
        const u32 groups = cols / 32;
        const u32x4 words = {byte_perm(a[0], b[0], 0x5140), byte_perm(a[0], b[0], 0x7362), byte_perm(a[1], b[1], 0x5140), byte_perm(a[1], b[1], 0x7362)};
        store16(x + 16 * ((u64)((pack & 1) + (second ? 2 : 0)) * groups + pack / 4), words);
        if ((pack & 3) == 0) ((float *)(x + 64 * groups))[pack / 4] = r.scale;
    }
    APR_METHOD static void add(float (&sum)[2], const u8 *const (&p)[2], const u8 *x, u32 c, u32 cols) {
        const u32 groups = cols / 32, end = (u32)min_of(groups, 128 * (c + 1));
        NO_UNROLL for (u32 g = 128 * c + lane(); g < end; g += 32) {
            u32x4 v[4];
            UNROLL for (u32 k = 0; k < 4; k++) v[k] = load16(x + 16 * ((u64)k * groups + g));
            const float scale = ((const float *)(x + 64 * groups))[g];
            UNROLL for (int r = 0; r < 2; r++) {
                const u8 *at = p[r] + 17 * (g - 128 * c);
                const u32 odd = (u32)(u64)at & 3, select = 0x4321 + 0x1111 * odd;
                const u32 *from = (const u32 *)(at - odd);
                u32 w[5];
                UNROLL for (int i = 0; i < 5; i++) w[i] = from[i];
                i32 hi = 0, lo = 0;
                UNROLL for (int i = 0; i < 4; i++) {
                    const u32x2 q = fp4_pairs(byte_perm(w[i], w[i + 1], select));
                    UNROLL for (int j = 0; j < 2; j++) {
                        hi = dot4_ss(q[j], v[i / 2][2 * (i & 1) + j], hi);
                        lo = dot4_ss(q[j], v[2 + i / 2][2 * (i & 1) + j], lo);
                    }
                }
                sum[r] = fma_rn(scale_mxfp4(w[0] >> 8 * odd & 255), mul_rn(scale, (float)(hi * 256 + lo)), sum[r]);
            }
        }
    }
};

// PairRing is a warp's place in shared memory of pairs of rows that are to come: `stages` pieces of both rows.
struct PairRing {
    u8 *at;
    u32 stages, pitch; // 1 … 4; bytes of a row's piece
};

// each_pair multiplies the pairs warp(), warp() + warps, … of `pairs`. address(pair, k) is where row k of a pair begins, zero if there is
// none; ready brings x to shared memory, by the whole block; x_of(pair) is where; done(pair, sum) takes the sums, in every lane. A lane
// adds in ascending order of its columns, lanes as a butterfly: bits depend on the columns alone.
template <class P, class Address, class Ready, class X, class Done>
APR_DEVICE void each_pair(const PairRing &ring, u32 pairs, u32 cols, Address address, Ready ready, X x_of, Done done) {
    const u32 l = lane(), warps = threads() / 32, pieces = (cols + P::values - 1) / P::values, row = P::row(cols);
    u32 next = warp(), piece = 0;
    auto start = [&](u32 pair, u32 c, u32 k) { const u8 *p = address(pair, k); return p ? p + c * P::bytes : p; };
    auto copy_next = [&](u32 slot) {
        if (next < pairs) {
            UNROLL for (u32 k = 0; k < 2; k++) {
                const u8 *from = start(next, piece, k);
                if (!from) continue;
                const u32 o = (u32)(u64)from & 15, end = o + (u32)min_of(P::bytes, row - piece * P::bytes);
                u8 *to = ring.at + (2 * slot + k) * ring.pitch;
                NO_UNROLL for (u32 n = 16 * l; n < end; n += 512) copy_async16(to + n, from - o + n);
            }
            if (++piece == pieces) piece = 0, next += warps;
        }
        copy_async_commit();
    };
    NO_UNROLL for (u32 s = 0; s < ring.stages; s++) copy_next(s);
    ready();
    u32 slot = 0;
    NO_UNROLL for (u32 pair = warp(); pair < pairs; pair += warps) {
        float sum[2] = {};
        NO_UNROLL for (u32 c = 0; c < pieces; c++) {
            if (ring.stages == 1) copy_async_wait<0>();
            else if (ring.stages == 2) copy_async_wait<1>();
            else if (ring.stages == 3) copy_async_wait<2>();
            else copy_async_wait<3>();
            sync_warp(); // every lane's copies are there
            const u8 *const p[2] = {
                ring.at + 2 * slot * ring.pitch + ((u32)(u64)start(pair, c, 0) & 15),
                ring.at + (2 * slot + 1) * ring.pitch + ((u32)(u64)start(pair, c, 1) & 15),
            };
            P::add(sum, p, x_of(pair), c, cols);
            sync_warp(); // every lane has read: the slot may be filled again
            copy_next(slot);
            slot = slot + 1 == ring.stages ? 0 : slot + 1;
        }
        UNROLL for (int k = 0; k < 2; k++) sum[k] = warp_sum(sum[k]);
        done(pair, sum);
    }
}

// round_rows brings n rows of x, from(i) the i-th, to shared memory: row i at x + i·P::x_bytes(cols).
template <class P, class From> APR_DEVICE void round_rows(u8 *x, u32 n, u32 cols, From from) {
    const u32 packs = cols / 8, runs = (packs + 31) / 32, each = P::x_bytes(cols);
    NO_UNROLL for (u32 i = warp(); i < n * runs; i += threads() / 32) {
        const u32 row = i / runs, pack = 32 * (i - row * runs) + lane();
        const bf16 *at = from(row); // by all lanes
        u32x4 v = {};
        if (pack < packs) v = load16(at + 8 * pack);
        P::round(x + row * each, pack, v, pack < packs, cols);
    }
    sync_block();
}

struct ExpertPairsArgs {
    void *y;          // bf16 or float
    const void *x;    // bf16, of tokens; of slots without chosen
    const u8 *w, *up; // up: zero where columns of y are products alone
    const float *bias, *up_bias;       // zero: none
    const i32 *chosen, *slots, *starts; // without chosen slots have experts by starts
    i64 y_stride, x_stride;            // elements
    i64 w_row, up_row, w_step, up_step; // bytes of a row, from an expert's matrix to the next
    i64 bias_stride;
    u32 experts, rows, cols, active; // rows: of a matrix
    u32 act, each;                   // 0 SiLU, 1 GELU, 2 clamped; columns of y of a block, even
    u32 stages, pitch, floats;       // floats: y is float
};

// gate_expert computes act(g)·u for a gated unit of experts.
APR_DEVICE float gate_expert(u32 act, float g, float u) {
    const float z = from_bf16(to_bf16(g)), v = from_bf16(to_bf16(u));
    if (act == 0) return SiLU::gated<bf16>(z, v);
    if (act == 1) return GELUTanh::gated<bf16>(z, v);
    return ClampedSiLU::gated<bf16>(z, v);
}

// A block computes `each` columns of y of a choice: act(gate·x)·up·x, a pair of rows being one of gate and one of up.
// Grid: (columns / each, choices).
template <class P> APR_DEVICE void experts_gated(const ExpertPairsArgs &a) {
    DYNAMIC_SHARED(shared);
    let_next();
    wait_before();
    const u32 choice = block_y(), expert = (u32)a.chosen[choice], slot = (u32)a.slots[choice], first = block() * a.each;
    if (expert >= a.experts || first >= a.rows) return;
    const u32 count = (u32)min_of(a.each, a.rows - first), x_bytes = P::x_bytes(a.cols);
    const u8 *gate = a.w + expert * a.w_step + first * a.w_row, *up = a.up + expert * a.up_step + first * a.up_row;
    const bf16 *x = (const bf16 *)a.x + choice / a.active * a.x_stride;
    each_pair<P>(
        PairRing{shared + x_bytes + 2 * warp() * a.stages * a.pitch, a.stages, a.pitch}, count, a.cols,
        [&](u32 pair, u32 k) { return k ? up + pair * a.up_row : gate + pair * a.w_row; },
        [&] { round_rows<P>(shared, 1, a.cols, [&](u32) { return x; }); }, [&](u32) { return shared; },
        [&](u32 pair, const float (&sum)[2]) {
            if (lane() > 0) return;
            const u32 column = first + pair;
            float g = sum[0], u = sum[1];
            if (a.bias) g += a.bias[expert * a.bias_stride + column], u += a.up_bias[expert * a.bias_stride + column];
            store((bf16 *)a.y + slot * a.y_stride + column, gate_expert(a.act, g, u));
        });
}

// A block computes `each` columns of y of a slot, a pair of rows being neighbours. Grid: (columns / each, slots).
template <class P> APR_DEVICE void experts_products(const ExpertPairsArgs &a) {
    DYNAMIC_SHARED(shared);
    const u32 slot = block_y(), expert = expert_of(a.starts, a.experts, slot), first = block() * a.each;
    if (expert >= a.experts || first >= a.rows) return;
    const u32 count = (u32)min_of(a.each, a.rows - first), x_bytes = P::x_bytes(a.cols);
    const u8 *w = a.w + expert * a.w_step + first * a.w_row;
    const bf16 *x = (const bf16 *)a.x + slot * a.x_stride;
    each_pair<P>(
        PairRing{shared + x_bytes + 2 * warp() * a.stages * a.pitch, a.stages, a.pitch}, (count + 1) / 2, a.cols,
        [&](u32 pair, u32 k) { return 2 * pair + k < count ? w + (2 * pair + k) * a.w_row : nullptr; },
        [&] { round_rows<P>(shared, 1, a.cols, [&](u32) { return x; }); }, [&](u32) { return shared; },
        [&](u32 pair, const float (&sum)[2]) {
            UNROLL for (u32 k = 0; k < 2; k++) {
                const u32 column = 2 * pair + k;
                if (lane() > 0 || column >= count) continue;
                const i64 at = slot * a.y_stride + first + column;
                const float v = a.bias ? sum[k] + a.bias[expert * a.bias_stride + first + column] : sum[k];
                if (a.floats) ((float *)a.y)[at] = v;
                else store((bf16 *)a.y + at, v);
            }
        });
}

struct ExpertMixedArgs {
    void *y;       // bf16, of tokens
    const void *x; // bf16, of slots
    const u8 *w;
    const float *bias, *weights; // of experts, or zero; of tokens' choices
    const i32 *chosen, *slots;
    i64 y_stride, x_stride, weights_stride; // elements
    i64 w_row, w_step;                      // bytes
    i64 bias_stride;
    u32 experts, h, cols, active;
    u32 each, stages, pitch; // each: even
    u32 add;                 // y += it
};

// A block computes `each` columns of y of one token: a pair of rows is two neighbours of one slot, and slots are added in the order of the
// choice. Grid: (columns / each, tokens).
template <class P> APR_DEVICE void experts_mix(const ExpertMixedArgs &a) {
    DYNAMIC_SHARED(shared);
    let_next();
    wait_before();
    const u32 token = block_y(), first = block() * a.each, l = lane(), x_bytes = P::x_bytes(a.cols);
    if (first >= a.h) return;
    const u32 count = (u32)min_of(a.each, a.h - first), warps = threads() / 32;
    const u32 choice = token * a.active + (u32)min_of(l, a.active - 1); // a lane knows one, of at most 32
    const u32 my_expert = (u32)a.chosen[choice], my_slot = (u32)a.slots[choice];
    float *sums = (float *)(shared + a.active * x_bytes + 2 * warps * a.stages * a.pitch); // [columns, active]
    each_pair<P>(
        PairRing{shared + a.active * x_bytes + 2 * warp() * a.stages * a.pitch, a.stages, a.pitch}, (count + 1) / 2 * a.active, a.cols,
        [&](u32 pair, u32 k) {
            const u32 columns = pair / a.active, column = 2 * columns + k, expert = shfl(my_expert, (int)(pair - columns * a.active));
            return column < count && expert < a.experts ? a.w + expert * a.w_step + (first + column) * a.w_row : nullptr;
        },
        [&] { round_rows<P>(shared, a.active, a.cols, [&](u32 s) { return (const bf16 *)a.x + shfl(my_slot, (int)s) * a.x_stride; }); },
        [&](u32 pair) { return shared + pair % a.active * x_bytes; },
        [&](u32 pair, const float (&sum)[2]) {
            const u32 columns = pair / a.active, s = pair - columns * a.active, expert = shfl(my_expert, (int)s);
            UNROLL for (u32 k = 0; k < 2; k++) {
                const u32 column = 2 * columns + k;
                if (l > 0 || column >= count) continue;
                const float v = a.bias ? sum[k] + a.bias[expert * a.bias_stride + first + column] : sum[k];
                sums[column * a.active + s] = v;
            }
        });
    sync_block();
    NO_UNROLL for (u32 c = thread(); c < count; c += threads()) {
        bf16 *y = (bf16 *)a.y + token * a.y_stride + first + c;
        float sum = a.add ? from_bf16(*y) : 0.0f;
        NO_UNROLL for (u32 s = 0; s < a.active; s++)
            sum = fma_rn(a.weights[token * a.weights_stride + s], from_bf16(to_bf16(sums[c * a.active + s])), sum);
        *y = to_bf16(sum);
    }
}
