// The gated delta rule on tensor cores, for bfloat16 and keys of whole fragments: what its forward and its backward share.
//
// q, k, v and do are exact in bfloat16. What is float32 (states, x, the inverse) is a sum of three bfloat16, so that sums are those of
// float32; two parts are enough for what is rounded to bfloat16 and carried nowhere: m∘qkᵀ, and all of the backward.
#pragma once
#include "delta.cuh"

constexpr u32 SLICE = 32;           // columns of a state that a block has
constexpr u32 LINE16 = SLICE + 8;   // rows of so many columns for ldmatrix: eight begin in different banks
constexpr u32 PAIR16 = CHUNK + 8;
constexpr u32 SQUARE = CHUNK * CHUNK;
constexpr u32 TEAM = 512;           // threads of kernels whose block fills a multiprocessor: four warps hide each other's waits

// sized returns a rule whose heads have D keys and values, as the compiler then knows, or any with D = 0.
template <u32 D> APR_DEVICE DeltaRule sized(DeltaRule d) {
    if (D) d.dk = d.dv = D, d.pitch = D + 8;
    return d;
}

// DeltaMixed is what positions of a chunk of a value head have to do with each other, in memory: rows beyond the last
// position are zeros but for the diagonal of A. Of the squares there are as many as a pass reads: a forward all five, a
// backward four, and what goes through states for a backward the first two.
struct DeltaMixed {
    float decay_k[CHUNK], decay_q[CHUNK], end_k[CHUNK]; // e^G·rk, e^G·rq, end·rk
    float through[CHUNK];                               // what is left of the state behind each position
    bf16 solve[2 * SQUARE]; // of A·diag(β), A = (I + strictlower(βKKᵀ∘M))⁻¹, so that x = A·β(v − e^G·KS)
    bf16 pairs[2 * SQUARE]; // m∘qkᵀ
    bf16 third[SQUARE];     // part of A·diag(β)
};
constexpr u32 BACKWARD_SQUARES = 4;

APR_DEVICE DeltaMixed &mixed_at(const void *mixed, u64 slot, u32 squares) {
    return *(DeltaMixed *)((u8 *)mixed + slot * (sizeof(float) * 4 * CHUNK + sizeof(bf16) * SQUARE * squares));
}

// parts_of makes N pairs of bfloat16 whose sums are two numbers: of three parts, the difference is beyond float32's 24 bits.
template <int N> APR_DEVICE void parts_of(u32 (&part)[N], float lo, float hi) {
    UNROLL for (int s = 0; s < N; s++) {
        part[s] = pack_bf16(lo, hi);
        lo -= from_bits(part[s] << 16);
        hi -= from_bits(part[s] & 0xffff0000u);
    }
}

// DeltaStage is what a block has of a chunk in shared memory; side is v or do, SLICE columns.
struct DeltaStage {
    bf16 *q, *k, *side, *solve, *pairs;
    float *decay_k, *decay_q, *end_k, *through;
};
constexpr u32 STAGE_REST = 2 * CHUNK * LINE16 + 2 * 5 * CHUNK * PAIR16 + 4 * 4 * CHUNK; // bytes of a stage besides q and k

APR_DEVICE u32 stage_bytes(u32 pitch) { return 4 * CHUNK * pitch + STAGE_REST; }
APR_DEVICE DeltaStage stage_at(u8 *memory, u32 pitch) {
    DeltaStage g;
    g.q = (bf16 *)memory, g.k = g.q + CHUNK * pitch, g.side = g.k + CHUNK * pitch;
    g.solve = g.side + CHUNK * LINE16, g.pairs = g.solve + 3 * CHUNK * PAIR16;
    g.decay_k = (float *)(g.pairs + 2 * CHUNK * PAIR16), g.decay_q = g.decay_k + CHUNK, g.end_k = g.decay_q + CHUNK, g.through = g.end_k + CHUNK;
    return g;
}

// load_stage begins to fill a stage with n positions from row on of a key head, of side, whose rows have `wide` columns, and of mixed: N
// parts of solve, and pairs with PAIRS.
template <int N, bool PAIRS> APR_DEVICE void load_stage(const DeltaStage &g, const DeltaRule &d, u64 row, u32 n, u32 key, const bf16 *side, i64 stride, u32 wide, const DeltaMixed &mixed) {
    const u32 packs = d.dk / 8;
    for (u32 e = thread(); e < CHUNK * packs; e += TEAM) {
        const u32 i = e / packs, c = e % packs * 8;
        const bf16 *q = (const bf16 *)d.u + (row + min_of(i, n - 1)) * d.u_stride + (u64)key * d.dk + c;
        copy_async16(g.q + i * d.pitch + c, q, i < n);
        copy_async16(g.k + i * d.pitch + c, q + (u64)d.key_heads * d.dk, i < n);
    }
    for (u32 e = thread(); e < CHUNK * SLICE / 8; e += TEAM) {
        const u32 i = e / (SLICE / 8), c = e % (SLICE / 8) * 8;
        const bool in = i < n && c < wide;
        copy_async16(g.side + i * LINE16 + c, side + (in ? (row + i) * stride + c : 0), in);
    }
    UNROLL for (u32 part = 0; part < 5; part++) { // of solve, and of pairs behind it
        if (part < 3 ? part >= N : !PAIRS) continue;
        const bf16 *from = part == 2 ? mixed.third : mixed.solve + (part < 2 ? part : part - 1) * SQUARE;
        UNROLL for (u32 e = thread(); e < SQUARE / 8; e += TEAM)
            copy_async16(g.solve + part * CHUNK * PAIR16 + e / (CHUNK / 8) * PAIR16 + e % (CHUNK / 8) * 8, from + 8 * e);
    }
    if (thread() < CHUNK) copy_async16(g.decay_k + 4 * thread(), mixed.decay_k + 4 * thread()); // and what is behind it
    copy_async_commit();
}

// load_packs is load_units where rows are packs of eight, for a block of ALL threads. A warp has rows as far apart as
// there are warps: half its lanes q, half k.
template <u32 ALL> APR_DEVICE void load_packs(const DeltaRule &d, DeltaScalars &s, bf16 *q, bf16 *k, u64 row, u32 n, u32 key) {
    constexpr u32 WARPS = ALL / 32, ROWS = CHUNK / WARPS;
    const u32 which = lane() / 16, c = lane() % 16 * 8; // of q and k
    const bf16 *from = (const bf16 *)d.u + row * d.u_stride + ((u64)which * d.key_heads + key) * d.dk + c;
    Pack<bf16, 8> v[ROWS] = {};
    UNROLL for (u32 r = 0; r < ROWS; r++) {
        const u32 i = warp() + WARPS * r;
        if (i < n && c < d.dk) load_pack(v[r], from + i * d.u_stride);
    }
    const u32 mine = lane() % 16; // a row whose factor this lane computes
    float squares = 0;
    UNROLL for (u32 r = 0; r < ROWS; r++) {
        const u32 i = warp() + WARPS * r;
        float x[8], sum = 0;
        widen(x, v[r]);
        UNROLL for (int e = 0; e < 8; e++) sum = fma_rn(x[e], x[e], sum);
        UNROLL for (int m = 8; m; m /= 2) sum += shfl_xor(sum, m);
        if (c < d.dk) store_pack((which ? k : q) + i * d.pitch + c, v[r]);
        if (mine == r) squares = sum;
    }
    const float root = which ? 1.0f : 1.0f / sqrt_rn((float)d.dk);
    if (mine < ROWS) (which ? s.rk : s.rq)[warp() + WARPS * mine] = root / sqrt_rn(squares + 1e-6f);
}

// mma_parts adds a·b to 16 columns of d (two tiles of 8), with b the sum of PARTS matrices of LINE values a row, which
// lie `apart` values from each other.
template <int PARTS, u32 LINE> APR_DEVICE void mma_parts(float (&d)[2][4], const u32 (&a)[4], const bf16 *b, u32 apart) {
    UNROLL for (int s = PARTS; s-- > 0;) {
        u32 f[4];
        ldmatrix4_trans(f, b + s * apart + lane() % 16 * LINE + lane() / 16 * 8);
        mma_bf16(d[0], a, f[0], f[1]);
        mma_bf16(d[1], a, f[2], f[3]);
    }
}
// eights reads the fragments of 16 rows and 8 columns of N matrices of LINE16 values a row, which lie `apart` values from
// each other.
template <int N> APR_DEVICE void eights(u32 (&f)[N][2], const bf16 *b, u32 apart) {
    UNROLL for (int s = 0; s < N; s += 2)
        if (s + 1 < N) {
            u32 two[4];
            ldmatrix4_trans(two, b + (s + lane() / 16) * apart + lane() % 16 * LINE16);
            f[s][0] = two[0], f[s][1] = two[1], f[s + 1][0] = two[2], f[s + 1][1] = two[3];
        } else ldmatrix2_trans(f[s], b + s * apart + lane() % 16 * LINE16);
}
// mma_squares adds a·b to 8 columns of sums, with a the sum of A matrices and b of B, without products below the last
// part. The products that come to the same size have a sum of their own, so that they need not wait for the others.
template <int A, int B, int N> APR_DEVICE void mma_squares(float (&sums)[N][4], const u32 (&a)[A][4], const u32 (&b)[B][2]) {
    UNROLL for (int s = 0; s < B; s++)
        UNROLL for (int r = 0; r < A; r++)
            if (r + s < N) mma_bf16(sums[r + s], a[r], b[s][0], b[s][1]);
}
// summed adds sums of N parts to d, the least first.
template <int N> APR_DEVICE void summed(float (&d)[4], const float (&sums)[N][4]) {
    UNROLL for (u32 e = 0; e < 4; e++) {
        float v = sums[N - 1][e];
        UNROLL for (int s = N - 1; s-- > 0;) v += sums[s][e];
        d[e] += v;
    }
}
// across reads the fragment of 16 rows and columns that begins at p; down that of the transposed matrix.
APR_DEVICE void across(u32 (&f)[4], const bf16 *p, u32 line) { ldmatrix4(f, p + lane() % 16 * line + lane() / 16 * 8); }
APR_DEVICE void down(u32 (&f)[4], const bf16 *p, u32 line) { ldmatrix4_trans(f, p + (lane() % 8 + lane() / 16 * 8) * line + lane() / 8 % 2 * 8); }

// columns_of reads the fragments of two tiles of columns from n0 on of bᵀ, b having a row for each.
APR_DEVICE void columns_of(u32 (&f)[4], const bf16 *b, u32 n0, u32 c, u32 line) {
    ldmatrix4(f, b + (n0 + lane() % 8 + lane() / 16 * 8) * line + c + lane() / 8 % 2 * 8);
}

// A block's place: a value head of a sequence, SLICE columns of its state, and what a thread has: 16 positions from i0 on
// by 8 columns from j0 on, and of the state rows own … own+15 by 16 columns from half on. The four warps of a scheduler
// have all rows of a triangle.
struct DeltaPlace {
    u32 task, head, key, col, wide, g, t2, own, half, i0, j0;
    bool live;
    u64 size;
};
APR_DEVICE DeltaPlace place_of(const DeltaRule &d) {
    DeltaPlace p;
    p.task = block(), p.head = p.task % d.value_heads, p.key = p.head / (d.value_heads / d.key_heads);
    p.col = block_y() * SLICE, p.wide = (u32)min_of(SLICE, d.dv - p.col), p.size = (u64)d.dk * d.dv;
    p.g = lane() / 4, p.t2 = lane() % 4 * 2, p.own = warp() % 8 * 16, p.half = warp() / 8 * 16, p.live = p.own < d.dk;
    p.i0 = warp() / 4 * 16, p.j0 = warp() % 4 * 8;
    return p;
}

// Of the elements of a thread in 16 rows by 8 columns, or by more: pairs of neighbours e, e+1.
APR_DEVICE u32 row_of(u32 e) { return e / 2 % 2 * 8; }
APR_DEVICE u32 col_of(u32 e) { return e / 4 * 8; }

// load_state and store_state move a warp's part of a state; columns beyond the last are zeros.
APR_DEVICE void load_state(float (&state)[2][4], const float *from, const DeltaRule &d, const DeltaPlace &p) {
    UNROLL for (u32 e = 0; e < 8; e++) {
        const u32 r = p.own + p.g + row_of(e), c = p.half + col_of(e) + p.t2 + e % 2;
        state[e / 4][e % 4] = from && p.live && c < p.wide ? from[(u64)r * d.dv + p.col + c] : 0.0f;
    }
}
APR_DEVICE void store_state(float *to, const float (&state)[2][4], const DeltaRule &d, const DeltaPlace &p) {
    UNROLL for (u32 e = 0; e < 8; e++) {
        const u32 r = p.own + p.g + row_of(e), c = p.half + col_of(e) + p.t2 + e % 2;
        if (p.live && c < p.wide) to[(u64)r * d.dv + p.col + c] = state[e / 4][e % 4];
    }
}
// store_chunk is store_state where states are at addresses of packs, and their columns multiples of eight.
APR_DEVICE void store_chunk(float *to, const float (&state)[2][4], const DeltaRule &d, const DeltaPlace &p) {
    UNROLL for (u32 e = 0; e < 8; e += 2) {
        const u32 r = p.own + p.g + row_of(e), c = p.half + col_of(e) + p.t2;
        if (p.live && c < p.wide) *(f32x2 *)(to + (u64)r * d.dv + p.col + c) = f32x2{state[e / 4][e % 4], state[e / 4][e % 4 + 1]};
    }
}
// state_parts writes a warp's part as N parts.
template <int N> APR_DEVICE void state_parts(bf16 *to, const float (&state)[2][4], const DeltaRule &d, const DeltaPlace &p) {
    if (!p.live) return;
    UNROLL for (u32 e = 0; e < 8; e += 2) {
        u32 part[N];
        parts_of(part, state[e / 4][e % 4], state[e / 4][e % 4 + 1]);
        UNROLL for (u32 m = 0; m < N; m++) *(u32 *)(to + m * d.dk * LINE16 + (p.own + p.g + row_of(e)) * LINE16 + p.half + col_of(e) + p.t2) = part[m];
    }
}
// tile_parts writes a warp's tile of positions and columns as N parts, which lie CHUNK·LINE16 values from each other.
template <int N> APR_DEVICE void tile_parts(bf16 *to, const float (&x)[4], const DeltaPlace &p) {
    UNROLL for (u32 e = 0; e < 4; e += 2) {
        u32 part[N];
        parts_of(part, x[e], x[e + 1]);
        UNROLL for (u32 m = 0; m < N; m++) *(u32 *)(to + m * CHUNK * LINE16 + (p.i0 + p.g + row_of(e)) * LINE16 + p.j0 + p.t2) = part[m];
    }
}
// add_outer adds kᵀ·b to a warp's part of the state, with b the sum of N parts, whose rows beyond the last position are
// zeros.
template <int N> APR_DEVICE void add_outer(float (&state)[2][4], const bf16 *k, u32 pitch, const bf16 *b, const DeltaPlace &p) {
    float sums[N][2][4] = {};
    UNROLL for (u32 c = 0; c < CHUNK; c += 16) {
        u32 f[4];
        down(f, k + c * pitch + p.own, pitch);
        UNROLL for (u32 s = 0; s < N; s++) mma_parts<1, LINE16>(sums[s], f, b + s * CHUNK * LINE16 + c * LINE16 + p.half, 0);
    }
    UNROLL for (u32 e = 0; e < 8; e++) {
        float v = sums[N - 1][e / 4][e % 4];
        UNROLL for (int s = N - 1; s-- > 0;) v += sums[s][e / 4][e % 4];
        state[e / 4][e % 4] += v;
    }
}
// add_state adds k·S, and q·S with BOTH, to a warp's tiles of positions and columns, with S the sum of N parts, of which
// q·S, rounded to bfloat16 and carried nowhere, takes two.
template <u32 D, int N, bool BOTH> APR_DEVICE void add_state(float (&ks)[4], float (&qs)[4], const bf16 *k, const bf16 *q, const DeltaRule &d, const bf16 *parts,
    const DeltaPlace &p) {
    float ksum[N][4] = {}, qsum[2][4] = {};
    const auto step = [&](u32 c) {
        u32 f[1][4], b[N][2];
        eights<N>(b, parts + c * LINE16 + p.j0, d.dk * LINE16);
        across(f[0], k + p.i0 * d.pitch + c, d.pitch);
        mma_squares(ksum, f, b);
        if (!BOTH) return;
        across(f[0], q + p.i0 * d.pitch + c, d.pitch);
        mma_squares(qsum, f, b);
    };
    if constexpr (D > 0) UNROLL for (u32 c = 0; c < D; c += 16) step(c);
    else for (u32 c = 0; c < d.dk; c += 16) step(c);
    summed(ks, ksum);
    if (BOTH) summed(qs, qsum);
}
// add_lower adds A·b to a warp's tile, or Aᵀ·b, with A a lower triangle of N parts and b of B.
template <int N, int B, bool TRANSPOSED> APR_DEVICE void add_lower(float (&x)[4], const bf16 *a, const bf16 *b, const DeltaPlace &p) {
    float sums[N][4] = {};
    for (u32 c = TRANSPOSED ? p.i0 : 0; c < (TRANSPOSED ? CHUNK : p.i0 + 16); c += 16) {
        u32 f[N][4], g[B][2];
        UNROLL for (u32 m = 0; m < N; m++) {
            const bf16 *from = a + m * CHUNK * PAIR16;
            if (TRANSPOSED) down(f[m], from + c * PAIR16 + p.i0, PAIR16);
            else across(f[m], from + p.i0 * PAIR16 + c, PAIR16);
        }
        eights<B>(g, b + c * LINE16 + p.j0, CHUNK * LINE16);
        mma_squares(sums, f, g);
    }
    summed(x, sums);
}
