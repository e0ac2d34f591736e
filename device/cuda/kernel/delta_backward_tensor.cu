// The backward of the gated delta rule on tensor cores. See delta.go.
//apr:module target=sm_80 types=bf16 roles=optional
#include "delta_tensor.cuh"

struct DeltaStatesBackwardArgs {
    DeltaRule d;
    const void *mixed; // of BACKWARD_SQUARES
    const bf16 *dout;
    bf16 *du;
    float *after;      // [heads of all sequences, chunks of the launch, dk·dv]: the gradient of the state behind each chunk
    bf16 *w;           // [heads of all sequences, chunks of the launch, 2, CHUNK, dv]: two parts of βy, the gradient of v
    const float *from; // of the state behind the last chunk of the launch; zero: zeros
    float *to;         // of that before the first
    i64 dout_stride, du_stride;
    u32 stages;
};

// A block has SLICE columns of the gradient of a value head's state, and goes from the last chunk to the first:
//
//	z = end·K·dS + (m∘qkᵀ)ᵀ·do;  w = (A·β)ᵀ·z;  dS = through·dS + (e^G·Q)ᵀ·do − (e^G·K)ᵀ·w
template <u32 D> APR_DEVICE void delta_states_backward(const DeltaStatesBackwardArgs &a) {
    DYNAMIC_SHARED(memory);
    const DeltaRule d = sized<D>(a.d);
    const DeltaPlace at = place_of(d);
    const u32 bytes = stage_bytes(d.pitch), x_part = CHUNK * LINE16;
    bf16 *rest = (bf16 *)(memory + a.stages * bytes), *parts = rest + 3 * x_part; // of the state, then of w and do
    const u64 row0 = (u64)(at.task / d.value_heads) * d.len, first = (u64)at.task * d.chunks;
    const u32 column = at.head * d.dv + at.col;
    const auto come = [&](u32 chunk) {
        load_stage<2, true>(stage_at(memory + chunk % a.stages * bytes, d.pitch), d, row0 + chunk * CHUNK, positions(d, chunk), at.key, a.dout + column, a.dout_stride,
            at.wide, mixed_at(a.mixed, first + chunk - d.chunk, BACKWARD_SQUARES));
    };
    float state[2][4];
    load_state(state, a.from ? a.from + at.task * at.size : nullptr, d, at);
    come(d.chunk + d.chunks - 1);
    for (u32 chunk = d.chunk + d.chunks; chunk-- > d.chunk;) {
        const u32 n = positions(d, chunk);
        const u64 slot = first + chunk - d.chunk;
        const DeltaStage g = stage_at(memory + chunk % a.stages * bytes, d.pitch);
        const bool ahead = a.stages > 1 && chunk > d.chunk;
        if (ahead) come(chunk - 1);
        state_parts<2>(parts, state, d, at);
        store_chunk(a.after + slot * at.size, state, d, at);
        if (ahead) copy_async_wait<1>();
        else copy_async_wait<0>();
        sync_block();

        float z[4] = {}, w[4] = {};
        add_state<D, 2, false>(z, w, g.k, g.q, d, parts, at);
        UNROLL for (u32 e = 0; e < 4; e++) z[e] *= g.end_k[at.i0 + at.g + row_of(e)];
        add_lower<2, 1, true>(z, g.pairs, g.side, at);
        tile_parts<2>(rest, z, at);
        sync_block();
        add_lower<2, 2, true>(w, g.solve, rest, at);
        float dk[4], dq[4];
        UNROLL for (u32 e = 0; e < 4; e += 2) {
            const u32 i = at.i0 + at.g + row_of(e), j = at.j0 + at.t2;
            UNROLL for (u32 f = 0; f < 2; f++) {
                dk[e + f] = -g.decay_k[i] * w[e + f];
                dq[e + f] = g.decay_q[i] * load(g.side + i * LINE16 + j + f);
            }
            u32 part[2];
            parts_of(part, w[e], w[e + 1]);
            if (j >= at.wide) continue;
            if (i < n) *(u32 *)(a.du + (row0 + chunk * CHUNK + i) * a.du_stride + 2ull * d.key_heads * d.dk + column + j) = part[0];
            UNROLL for (u32 m = 0; m < 2; m++) *(u32 *)(a.w + ((2 * slot + m) * CHUNK + i) * d.dv + at.col + j) = part[m];
        }
        tile_parts<2>(parts, dk, at);
        tile_parts<2>(parts + 2 * x_part, dq, at);
        sync_block();
        if (at.live) {
            UNROLL for (u32 e = 0; e < 8; e++) state[e / 4][e % 4] *= g.through[n - 1];
            add_outer<2>(state, g.k, d.pitch, parts, at);
            add_outer<2>(state, g.q, d.pitch, parts + 2 * x_part, at);
        }
        sync_block();
        if (a.stages == 1 && chunk > d.chunk) come(chunk - 1);
    }
    store_state(a.to + at.task * at.size, state, d, at);
}

constexpr u32 WIDE = 64, WIDE16 = WIDE + 8; // columns of v that delta_gradients takes at a time

struct DeltaGradientsArgs {
    DeltaRule d;
    const void *mixed; // of BACKWARD_SQUARES
    const bf16 *dout, *w;
    bf16 *du, *dba;
    const float *states; // [heads of all sequences, all chunks, dk·dv]: at the begin of each chunk
    const float *after;  // [heads of all sequences, chunks of the launch, dk·dv]: gradients of the states behind chunks
    float *d_log_a, *d_dt; // [sequences · all chunks, value heads]
    i64 dout_stride, du_stride, dba_stride;
};

// DeltaRows are sums of positions: by the four warps that have a row, and by the four that have a column.
struct DeltaRows {
    float total[4][CHUNK], carried[4][CHUNK], columns[4][CHUNK];
    float beta[CHUNK];
    float whole[33], last;
};

struct DeltaTiles { // shared memory of delta_gradients
    bf16 *q, *k, *dout, *w, *x, *solve, *state, *after; // two parts of w, x, state and after
    u32 pitch, state_part;
};

// columns_at returns the first of a warp's 16 columns, where its rows are those from warp()/4·16 on: of the tiles on and
// below the diagonal each scheduler has two or three.
APR_DEVICE u32 columns_at() { return (warp() - (warp() / 4) * (warp() / 4 + 1) / 2) % 4 * 16; }

// state_slices writes two parts of `wide` columns of a state and of its gradient, zeros beyond their rows and columns, and returns what
// a thread has of ⟨S, dS⟩.
APR_DEVICE float state_slices(const DeltaTiles &m, const float *state, const float *after, const DeltaRule &d, u32 wide) {
    constexpr u32 PACKS = WIDE / 4, TOGETHER = 2; // packs of a thread on their way at a time
    float sum = 0;
    for (u32 e0 = thread(); e0 < m.state_part / WIDE16 * PACKS; e0 += TOGETHER * TEAM) {
        f32x4 v[TOGETHER][2] = {};
        UNROLL for (u32 n = 0; n < TOGETHER; n++) {
            const u32 e = e0 + n * TEAM, r = e / PACKS, c = e % PACKS * 4;
            if (r < d.dk && c < wide) {
                const u64 at = (u64)r * d.dv + c;
                v[n][0] = __builtin_bit_cast(f32x4, load16(state + at)), v[n][1] = __builtin_bit_cast(f32x4, load16(after + at));
            }
        }
        UNROLL for (u32 n = 0; n < TOGETHER; n++) { // rows are a multiple of 64, and so packs of what is taken at a time
            const u32 e = e0 + n * TEAM, at = e / PACKS * WIDE16 + e % PACKS * 4;
            UNROLL for (u32 i = 0; i < 4; i++) sum = fma_rn(v[n][0][i], v[n][1][i], sum);
            UNROLL for (u32 w = 0; w < 2; w++) {
                u32 lo[2], hi[2];
                parts_of(lo, v[n][w][0], v[n][w][1]);
                parts_of(hi, v[n][w][2], v[n][w][3]);
                UNROLL for (u32 o = 0; o < 2; o++) *(u32x2 *)((w ? m.after : m.state) + o * m.state_part + at) = u32x2{lo[o], hi[o]};
            }
        }
    }
    return sum;
}

// add_transposed adds a·bᵀ to 8·N columns of d from n0 on, over WIDE inner places; a of A parts and b of B, which lie as far from each other as
// said, without products below the last part.
template <int A, int B, int N> APR_DEVICE void add_transposed(float (&d)[N][4], const bf16 *a, u32 a_part, u32 i0, const bf16 *b, u32 b_part, u32 n0) {
    NO_UNROLL for (u32 c = 0; c < WIDE; c += 16) {
        u32 f[A][4];
        UNROLL for (int r = 0; r < A; r++) across(f[r], a + r * a_part + i0 * WIDE16 + c, WIDE16);
        UNROLL for (int n = 0; n < N; n += 2)
            UNROLL for (int s = B; s-- > 0;) {
                u32 g[4];
                columns_of(g, b + s * b_part, n0 + 8 * n, c, WIDE16);
                UNROLL for (int r = A; r-- > 0;)
                    if (r + s < (A > B ? A : B)) mma_bf16(d[n], f[r], g[0], g[1]), mma_bf16(d[n + 1], f[r], g[2], g[3]);
            }
    }
}
// two_of returns a pair of bfloat16.
APR_DEVICE f32x2 two_of(const bf16 *p) {
    const u32 pair = *(const u32 *)p;
    return f32x2{from_bits(pair << 16), from_bits(pair & 0xffff0000u)};
}
// add_scaled adds f_i·t_ij to to_ij, and x_ij·r_i·f_i·t_ij to the sums of a thread's two rows, or takes them away;
// columns beyond dk are left out.
template <bool LESS> APR_DEVICE void add_scaled(float (&to)[4][4], float (&sums)[2], const float (&t)[4][4], const bf16 *x, u32 pitch, const float *r,
    const float *f, u32 i0, u32 j0, u32 dk) {
    UNROLL for (u32 h = 0; h < 2; h++) {
        const u32 i = i0 + lane() / 4 + 8 * h;
        const float by = LESS ? -f[i] : f[i];
        float sum = 0;
        UNROLL for (u32 n = 0; n < 4; n++) {
            const u32 j = j0 + 8 * n + lane() % 4 * 2;
            if (j >= dk) continue;
            const f32x2 at = two_of(x + i * pitch + j);
            UNROLL for (u32 e = 0; e < 2; e++) {
                to[n][2 * h + e] = fma_rn(by, t[n][2 * h + e], to[n][2 * h + e]);
                sum = fma_rn(at[e], t[n][2 * h + e], sum);
            }
        }
        sums[h] = fma_rn(r[i] * by, sum, sums[h]);
    }
}

struct DeltaSums { // what a thread adds up over the columns of v
    float dp[2][4], da[2][4]; // do·xᵀ and w·xᵀ, 16 by 16 positions
    float total[2], carried[2], beta;
    float states; // ⟨S, dS⟩
};

// add_slice goes through WIDE columns of v, from col on.
APR_DEVICE void add_slice(const DeltaGradientsArgs &a, const DeltaRule &d, const DeltaScalars &s, const DeltaTiles &m, DeltaSums &sums,
    float (&dq)[4][4], float (&dk)[4][4], u64 row, u32 n, u32 head, u32 col, u64 before, u64 slot) {
    const u32 wide = (u32)min_of(WIDE, d.dv - col), i0 = warp() / 4 * 16, j0 = columns_at(), g = lane() / 4, t2 = lane() % 4 * 2, part = CHUNK * WIDE16;
    const u64 size = (u64)d.dk * d.dv, values = 2ull * d.key_heads * d.dk + head * d.dv + col;
    sync_block();
    for (u32 e = thread(); e < 4 * CHUNK * (WIDE / 8); e += TEAM) { // do, both parts of w, and v where x is to be
        const u32 what = e / (CHUNK * (WIDE / 8)), i = e / (WIDE / 8) % CHUNK, c = e % (WIDE / 8) * 8;
        const bool in = i < n && c < wide;
        if (what == 3) copy_async16(m.x + i * WIDE16 + c, (const bf16 *)d.u + (in ? (row + i) * d.u_stride + values + c : 0), in);
        else if (what == 0) copy_async16(m.dout + i * WIDE16 + c, a.dout + (in ? (row + i) * a.dout_stride + head * d.dv + col + c : 0), in);
        else copy_async16(m.w + (what - 1) * part + i * WIDE16 + c, a.w + (in ? ((2 * slot + what - 1) * CHUNK + i) * d.dv + col + c : 0), in);
    }
    copy_async_commit();
    sums.states += state_slices(m, a.states + before * size + col, a.after + slot * size + col, d, wide);
    copy_async_wait<0>();
    sync_block();

    // x = A·β(v − e^G·KS), 16 positions by 16 columns.
    float r[2][4] = {}, x[2][4] = {};
    for (u32 c = 0; c < d.dk; c += 16) {
        u32 f[4];
        across(f, m.k + i0 * m.pitch + c, m.pitch);
        mma_parts<2, WIDE16>(r, f, m.state + c * WIDE16 + j0, m.state_part);
    }
    const auto tile = [&](const float (&v)[2][4]) {
        UNROLL for (u32 e = 0; e < 8; e += 2) {
            u32 p[2];
            parts_of(p, v[e / 4][e % 4], v[e / 4][e % 4 + 1]);
            UNROLL for (u32 o = 0; o < 2; o++) *(u32 *)(m.x + o * part + (i0 + g + row_of(e)) * WIDE16 + j0 + col_of(e) + t2) = p[o];
        }
    };
    UNROLL for (u32 e = 0; e < 8; e++) {
        const u32 i = i0 + g + row_of(e), j = j0 + col_of(e) + t2 + e % 2;
        r[e / 4][e % 4] = fma_rn(-s.decay[i] * s.rk[i], r[e / 4][e % 4], load(m.x + i * WIDE16 + j));
    }
    tile(r);
    sync_block();
    for (u32 c = 0; c <= i0; c += 16) {
        u32 f[2][4];
        UNROLL for (u32 o = 0; o < 2; o++) across(f[o], m.solve + o * CHUNK * PAIR16 + i0 * PAIR16 + c, PAIR16);
        mma_parts<1, WIDE16>(x, f[1], m.x + c * WIDE16 + j0, part);
        mma_parts<2, WIDE16>(x, f[0], m.x + c * WIDE16 + j0, part);
    }
    sync_block();
    tile(x);
    sync_block();

    if (j0 <= i0) { // nothing is above the diagonal
        add_transposed<1, 2>(sums.dp, m.dout, 0, i0, m.x, part, j0);
        add_transposed<2, 2>(sums.da, m.w, part, i0, m.x, part, j0);
    }
    const u32 key = warp() % 4 * 32;
    if (key < d.dk) {
        float t[4][4] = {};
        add_transposed<1, 2>(t, m.dout, 0, i0, m.state, m.state_part, key);
        add_scaled<false>(dq, sums.total, t, m.q, m.pitch, s.rq, s.decay, i0, key, d.dk);
        UNROLL for (u32 e = 0; e < 16; e++) t[e / 4][e % 4] = 0;
        add_transposed<2, 2>(t, m.w, part, i0, m.state, m.state_part, key);
        add_scaled<true>(dk, sums.total, t, m.k, m.pitch, s.rk, s.decay, i0, key, d.dk);
        UNROLL for (u32 e = 0; e < 16; e++) t[e / 4][e % 4] = 0;
        add_transposed<2, 2>(t, m.x, part, i0, m.after, m.state_part, key);
        add_scaled<false>(dk, sums.carried, t, m.k, m.pitch, s.rk, s.end, i0, key, d.dk);
    }
    UNROLL for (u32 c = 0; c < WIDE; c += 16) { // of row thread()/8
        const u32 at = thread() / 8 * WIDE16 + thread() % 8 * 2 + c;
        const f32x2 w = two_of(m.w + at) + two_of(m.w + part + at), v = two_of(m.x + at) + two_of(m.x + part + at);
        sums.beta = fma_rn(w[0], v[0], fma_rn(w[1], v[1], sums.beta));
    }
}

// add_square adds a·b to columns j0 … j0+31 of d, over the positions of a chunk, with a a lower triangle, the sum of two
// parts, or its transposed.
template <bool TRANSPOSED> APR_DEVICE void add_square(float (&d)[4][4], const bf16 *a, u32 i0, const bf16 *b, u32 pitch, u32 j0, u32 dk) {
    NO_UNROLL for (u32 c = TRANSPOSED ? i0 : 0; c < (TRANSPOSED ? CHUNK : i0 + 16); c += 16) {
        u32 f[2][4];
        UNROLL for (u32 o = 0; o < 2; o++) {
            const bf16 *p = a + o * CHUNK * PAIR16;
            if (TRANSPOSED) down(f[o], p + c * PAIR16 + i0, PAIR16);
            else across(f[o], p + i0 * PAIR16 + c, PAIR16);
        }
        UNROLL for (u32 n = 0; n < 4; n += 2) {
            if (j0 + 8 * n >= dk) break;
            u32 g[4];
            ldmatrix4_trans(g, b + (c + lane() % 16) * pitch + j0 + 8 * n + lane() / 16 * 8);
            UNROLL for (u32 o = 2; o-- > 0;) mma_bf16(d[n], f[o], g[0], g[1]), mma_bf16(d[n + 1], f[o], g[2], g[3]);
        }
    }
}

// add_pairs goes back through the pairs of a head's positions: it adds to dq and dk, and leaves in rows what positions add to the decays.
APR_DEVICE void add_pairs(const DeltaScalars &s, DeltaRows &rows, const DeltaTiles &m, const DeltaSums &sums, float (&dq)[4][4], float (&dk)[4][4], u32 keys) {
    constexpr u32 NEXT = 2 * CHUNK * PAIR16;
    const u32 i0 = warp() / 4 * 16, j0 = columns_at(), g = lane() / 4, t2 = lane() % 4 * 2;
    float kk[2][4] = {}, qk[2][4] = {}, total[2] = {sums.total[0], sums.total[1]}, columns[2][2] = {};
    if (j0 <= i0) NO_UNROLL for (u32 c = 0; c < keys; c += 16) {
        u32 ka[4], qa[4], b[4];
        across(ka, m.k + i0 * m.pitch + c, m.pitch);
        across(qa, m.q + i0 * m.pitch + c, m.pitch);
        columns_of(b, m.k, j0, c, m.pitch);
        mma_bf16(kk[0], ka, b[0], b[1]), mma_bf16(kk[1], ka, b[2], b[3]);
        mma_bf16(qk[0], qa, b[0], b[1]), mma_bf16(qk[1], qa, b[2], b[3]);
    }
    sync_block(); // nobody reads states
    UNROLL for (u32 e = 0; e < 8; e += 2) {
        const u32 i = i0 + g + row_of(e), j = j0 + col_of(e) + t2;
        float gk[2], gp[2];
        UNROLL for (u32 f = 0; f < 2; f++) {
            const float between = decay_between(s, i, j + f), dp = sums.dp[e / 4][e % 4 + f], da = j + f < i ? sums.da[e / 4][e % 4 + f] : 0.0f;
            const float w = between * s.rk[j + f] * (dp * qk[e / 4][e % 4 + f] * s.rq[i] - da * kk[e / 4][e % 4 + f] * s.rk[i]);
            if (j + f < i) total[e / 2 % 2] += w, columns[e / 4][f] += w; // on the diagonal the decay is 1
            gk[f] = -da * between, gp[f] = dp * between;
        }
        bf16 *to = m.state + i * PAIR16 + j;
        const float by[4][2] = {{gp[0] * s.rk[j], gp[1] * s.rk[j + 1]}, {gp[0] * s.rq[i], gp[1] * s.rq[i]},
            {gk[0] * s.rk[j], gk[1] * s.rk[j + 1]}, {gk[0] * s.rk[i], gk[1] * s.rk[i]}};
        UNROLL for (u32 o = 0; o < 4; o++) {
            u32 part[2];
            parts_of(part, by[o][0], by[o][1]);
            *(u32 *)(to + o * NEXT) = part[0], *(u32 *)(to + o * NEXT + CHUNK * PAIR16) = part[1];
        }
    }
    UNROLL for (u32 r = 0; r < 2; r++) {
        float t = total[r], c = sums.carried[r];
        UNROLL for (int o = 1; o < 4; o *= 2) t += shfl_xor(t, o), c += shfl_xor(c, o);
        if (t2 == 0) rows.total[warp() % 4][i0 + g + 8 * r] = t, rows.carried[warp() % 4][i0 + g + 8 * r] = c;
    }
    UNROLL for (u32 n = 0; n < 2; n++)
        UNROLL for (u32 f = 0; f < 2; f++) {
            float c = columns[n][f];
            UNROLL for (int o = 4; o < 32; o *= 2) c += shfl_xor(c, o);
            if (g == 0) rows.columns[warp() / 4][j0 + 8 * n + t2 + f] = c;
        }
    float beta = sums.beta;
    UNROLL for (int o = 1; o < 8; o *= 2) beta += shfl_xor(beta, o);
    if (thread() % 8 == 0) rows.beta[thread() / 8] = beta;
    sync_block();
    const u32 key = warp() % 4 * 32;
    add_square<false>(dq, m.state, i0, m.k, m.pitch, key, keys);
    add_square<true>(dk, m.state + NEXT, i0, m.q, m.pitch, key, keys);
    add_square<false>(dk, m.state + 2 * NEXT, i0, m.k, m.pitch, key, keys);
    add_square<true>(dk, m.state + 3 * NEXT, i0, m.k, m.pitch, key, keys);
}

// add_decays writes dba and what logA and dt get.
APR_DEVICE void add_decays(const DeltaGradientsArgs &a, const DeltaScalars &s, DeltaRows &rows, float states, u64 row, u32 n, u32 head, u64 part) {
    const DeltaRule &d = a.d;
    const u32 i = thread();
    states = block_sum(states, rows.whole); // barriers
    float carried = 0;
    if (i < CHUNK) {
        float t = 0;
        UNROLL for (u32 w = 0; w < 4; w++) t += rows.total[w][i], carried += rows.carried[w][i];
        UNROLL for (u32 w = 0; w < 4; w++) t -= rows.columns[w][i];
        if (i + 1 >= n) carried = 0; // at the end nothing decays
        rows.total[0][i] = t - carried;
        carried = warp_sum(carried);
        if (lane() == 0) rows.whole[warp()] = carried;
    }
    sync_block();
    double log_a = 0, dt = 0, dg = 0;
    if (i < CHUNK) { // two warps: to the end of each position's document, and in the first what the second one has besides
        const i32 begin = s.begin[i];
        dg = i < n ? rows.total[0][i] : 0.0f;
        UNROLL for (u32 m = 1; m < 32; m *= 2) {
            const u32 from = (lane() + m) % 32;
            const double behind = shfl(dg, (int)from);
            const i32 other = shfl(begin, (int)from);
            if (lane() + m < 32 && other == begin) dg += behind;
        }
        const u32 late = CHUNK / 2 + lane();
        const i32 across = s.begin[CHUNK / 2 - 1]; // of the document that goes on in the second
        const double rest = warp_sum(late < n && s.begin[late] == across ? (double)rows.total[0][late] : 0.0);
        if (!warp() && begin == across) dg += rest;
    }
    if (i < n) {
        // Of the last position, and so of those of its document.
        if ((i32)i >= s.begin[n - 1]) dg += fma_rn(s.decay[n - 1], states, rows.whole[0] + rows.whole[1]);
        const float rate = exp_exact(d.log_a[head]), beta = s.beta[i], da = -(float)dg * rate * s.slope[i];
        bf16 *dba = a.dba + (row + i) * a.dba_stride + head;
        store(dba, beta > 0 ? rows.beta[i] * ((1.0f - beta) / beta) : 0.0f); // w·x = β²·y·ε
        store(dba + d.value_heads, da);
        log_a = dg * (double)s.g[i], dt = (double)da;
    }
    sync_block();
    if (i < CHUNK) { // both warps
        log_a = warp_sum(log_a), dt = warp_sum(dt);
        if (lane() == 0) rows.whole[2 * warp()] = (float)log_a, rows.whole[2 * warp() + 1] = (float)dt;
    }
    sync_block();
    if (i == 0) {
        a.d_log_a[part * d.value_heads + head] = rows.whole[0] + rows.whole[2];
        a.d_dt[part * d.value_heads + head] = rows.whole[1] + rows.whole[3];
    }
}

// store_units writes the gradient of q or k from that of its normalised rows: with ŷ = f·x·r it is f·r·(dy − ŷ⟨ŷ,dy⟩/f²). along is room for
// sums of rows.
APR_DEVICE void store_units(bf16 *to, i64 stride, const bf16 *x, u32 pitch, const float *factor, float inverse, const float (&dy)[4][4], float (&along)[4][CHUNK],
    u32 n, u32 dk) {
    const u32 i0 = warp() / 4 * 16 + lane() / 4, j0 = warp() % 4 * 32 + lane() % 4 * 2;
    float sum[2] = {};
    UNROLL for (u32 e = 0; e < 16; e++) {
        const u32 i = i0 + row_of(e), j = j0 + col_of(e) + e % 2;
        if (j < dk) sum[e / 2 % 2] = fma_rn(load(x + i * pitch + j) * factor[i], dy[e / 4][e % 4], sum[e / 2 % 2]);
    }
    sync_block();
    UNROLL for (u32 r = 0; r < 2; r++) {
        UNROLL for (int o = 1; o < 4; o *= 2) sum[r] += shfl_xor(sum[r], o);
        if (lane() % 4 == 0) along[warp() % 4][i0 + 8 * r] = sum[r];
    }
    sync_block();
    UNROLL for (u32 e = 0; e < 16; e += 2) {
        const u32 i = i0 + row_of(e), j = j0 + col_of(e);
        const float f = factor[i], by = (along[0][i] + along[1][i] + along[2][i] + along[3][i]) * inverse * f;
        if (i < n && j < dk)
            *(u32 *)(to + (i64)i * stride + j) =
                pack_bf16(f * (dy[e / 4][e % 4] - load(x + i * pitch + j) * by), f * (dy[e / 4][e % 4 + 1] - load(x + i * pitch + j + 1) * by));
    }
}

// A block has a chunk of a key head, with all value heads that read it. A warp has 16 rows and 32 columns of dq and dk.
template <u32 D> APR_DEVICE void delta_gradients(const DeltaGradientsArgs &a) {
    DYNAMIC_SHARED(memory);
    const DeltaRule d = sized<D>(a.d);
    DeltaScalars &s = *(DeltaScalars *)memory;
    DeltaRows &rows = *(DeltaRows *)(memory + sizeof(DeltaScalars));
    DeltaTiles m;
    m.pitch = d.pitch, m.state_part = (d.dk + 63) / 64 * 64 * WIDE16;
    m.q = (bf16 *)(memory + sizeof(DeltaScalars) + (sizeof(DeltaRows) + 15) / 16 * 16), m.k = m.q + CHUNK * d.pitch, m.dout = m.k + CHUNK * d.pitch;
    m.w = m.dout + CHUNK * WIDE16, m.x = m.w + 2 * CHUNK * WIDE16, m.solve = m.x + 2 * CHUNK * WIDE16, m.state = m.solve + 2 * CHUNK * PAIR16;
    m.after = m.state + 2 * m.state_part;
    const u32 chunk = d.chunk + block(), n = positions(d, chunk), key = block_y() % d.key_heads, seq = block_y() / d.key_heads;
    const u32 inside = d.value_heads / d.key_heads;
    const u64 row = (u64)seq * d.len + chunk * CHUNK;
    const auto ask = [&](u32 head) { // for the head's state, which lies in memory, to come to the second cache
        const float *state = a.states + (((u64)seq * d.value_heads + head) * d.total + chunk) * (u64)d.dk * d.dv;
        for (u32 at = 32 * thread(); at < d.dk * d.dv; at += 32 * TEAM) prefetch(state + at);
    };
    ask(key * inside);
    load_packs<TEAM>(d, s, m.q, m.k, row, n, key);
    float dq[4][4] = {}, dk[4][4] = {};
    NO_UNROLL for (u32 head = key * inside; head < (key + 1) * inside; head++) {
        const u64 task = (u64)seq * d.value_heads + head, slot = task * d.chunks + block();
        const DeltaMixed &mixed = mixed_at(a.mixed, slot, BACKWARD_SQUARES);
        sync_block();
        if (head + 1 < (key + 1) * inside) ask(head + 1);
        load_scalars<bf16>(d, s, row, chunk, n, head);
        for (u32 e = thread(); e < 2 * SQUARE / 8; e += TEAM) copy_async16(m.solve + e / (CHUNK / 8) * PAIR16 + e % (CHUNK / 8) * 8, mixed.solve + 8 * e);
        DeltaSums sums = {};
        NO_UNROLL for (u32 col = 0; col < d.dv; col += WIDE) add_slice(a, d, s, m, sums, dq, dk, row, n, head, col, task * d.total + chunk, slot);
        add_pairs(s, rows, m, sums, dq, dk, d.dk);
        add_decays(a, s, rows, sums.states, row, n, head, (u64)seq * d.total + chunk);
    }
    bf16 *du = a.du + row * a.du_stride + (u64)key * d.dk;
    store_units(du, a.du_stride, m.q, d.pitch, s.rq, (float)d.dk, dq, rows.total, n, d.dk);
    store_units(du + (u64)d.key_heads * d.dk, a.du_stride, m.k, d.pitch, s.rk, 1.0f, dk, rows.total, n, d.dk);
}

KERNEL(delta_states_backward_tensor_bf16, DeltaStatesBackwardArgs, TEAM, 1) { delta_states_backward<0>(a); }
KERNEL(delta_states_backward_tensor_bf16_128, DeltaStatesBackwardArgs, TEAM, 1) { delta_states_backward<128>(a); }
KERNEL(delta_gradients_tensor_bf16, DeltaGradientsArgs, TEAM, 1) { delta_gradients<0>(a); }
KERNEL(delta_gradients_tensor_bf16_128, DeltaGradientsArgs, TEAM, 1) { delta_gradients<128>(a); }
