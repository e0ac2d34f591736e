// The backward of the gated delta rule. See delta.go.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "delta.cuh"

constexpr u32 SLICE = 32; // columns of the state's gradient that a block of delta_states_backward has
constexpr u32 PART = 16;  // columns that delta_gradients takes at a time

struct DeltaStatesBackwardArgs {
    DeltaRule d;
    const float *pairs;
    const void *dout;
    float *after;      // [heads of all sequences, chunks of the launch, dk·dv]: the gradient of the state behind each chunk
    const float *from; // of that behind the last chunk of the launch; zero: zeros
    float *to;         // of that before the first
    i64 dout_stride;
};

// A block has SLICE columns of the gradient of a value head's state, and goes from the last chunk to the first.
template <class T> APR_DEVICE void delta_states_backward(const DeltaStatesBackwardArgs &a) {
    constexpr u32 W = SLICE, LINE = W + 1;
    DYNAMIC_SHARED(memory);
    const DeltaRule &d = a.d;
    DeltaScalars &s = *(DeltaScalars *)memory;
    float *state = (float *)(memory + sizeof(DeltaScalars)), *y = state + d.dk * LINE, *dout = y + CHUNK * LINE, *kk = dout + CHUNK * LINE;
    T *q = (T *)(kk + CHUNK * PAIR), *k = q + CHUNK * d.pitch;
    const u32 task = block(), head = task % d.value_heads, key = head / (d.value_heads / d.key_heads);
    const u32 col = block_y() * W, wide = (u32)min_of(W, d.dv - col);
    const u64 size = (u64)d.dk * d.dv;
    const u32 i0 = thread() / 16, j0 = thread() % 16, a0 = thread() / 8, c0 = thread() % 8;
    load_slice<W>(state, a.from + task * size + col, d.dv, a.from ? d.dk : 0, d.dk, wide);
    for (u32 chunk = d.chunk + d.chunks; chunk-- > d.chunk;) {
        const u32 n = positions(d, chunk);
        const u64 row = (u64)(task / d.value_heads) * d.len + chunk * CHUNK;
        sync_block();
        load_units(d, s, q, k, row, n, key);
        const u64 slot = (u64)task * d.chunks + chunk - d.chunk;
        const float *pairs = a.pairs + slot * PAIRS; // m∘qkᵀ stays there
        load_pair(kk, pairs);
        load_slice<W>(dout, (const T *)a.dout + row * a.dout_stride + (u64)head * d.dv + col, a.dout_stride, n, CHUNK, wide);
        store_slice<W>(a.after + slot * size + col, state, d.dv, d.dk, wide);
        load_scalars<T>(d, s, row, chunk, n, head);
        if (thread() < CHUNK) {
            const u32 i = thread();
            s.f[i] = s.rq[i] * s.decay[i];
            s.h[i] = -s.rk[i] * s.decay[i] * s.beta[i];
        }
        // The gradient of x, to which o and the state behind the chunk contribute.
        const T *ak[4];
        const float *b[2], *ap[4];
        places(ak, k, i0, 16, d.pitch, CHUNK);
        places(b, state, j0, 16, 1, W);
        float z[4][2] = {};
        product(z, ak, 1, b, LINE, d.dk);
        UNROLL for (u32 r = 0; r < 4; r++)
            UNROLL for (u32 c = 0; c < 2; c++) z[r][c] *= s.end[i0 + 16 * r] * s.rk[i0 + 16 * r];
        places(ap, pairs + CHUNK * CHUNK, i0, 16, 1, CHUNK);
        places(b, dout, j0, 16, 1, W);
        product(z, ap, CHUNK, b, LINE, n);
        UNROLL for (u32 r = 0; r < 4; r++)
            UNROLL for (u32 c = 0; c < 2; c++) y[(i0 + 16 * r) * LINE + j0 + 16 * c] = z[r][c];
        for (u32 r0 = (n - 1) / SOLVE * SOLVE + SOLVE; r0 > 0;) {
            r0 -= SOLVE;
            sync_block();
            backwards_others<W>(y, kk, s, r0, n, thread());
            sync_block();
            if (thread() < W) backwards_own<W>(y, kk, s, r0, thread());
        }
        sync_block();
        // dS = through·dS + Σ_i q_i·(e^G·do_i)ᵀ − k_i·(e^G·β·y_i)ᵀ.
        const T *at[4];
        const float *bx[4];
        float add[4][4] = {};
        places(at, q, a0, 32, 1, d.dk);
        places(bx, dout, c0, 8, 1, W);
        product(add, at, d.pitch, bx, LINE, n, s.f);
        places(at, k, a0, 32, 1, d.dk);
        places(bx, y, c0, 8, 1, W);
        product(add, at, d.pitch, bx, LINE, n, s.h);
        UNROLL for (u32 r = 0; r < 4; r++)
            UNROLL for (u32 c = 0; c < 4; c++)
                if (a0 + 32 * r < d.dk) {
                    float *e = state + (a0 + 32 * r) * LINE + c0 + 8 * c;
                    *e = fma_rn(s.decay[n - 1], *e, add[r][c]);
                }
    }
    sync_block();
    store_slice<W>(a.to + task * size + col, state, d.dv, d.dk, wide);
}

struct DeltaGradientsArgs {
    DeltaRule d;
    const float *pairs;
    const void *dout;
    void *du, *dba;
    const float *states; // [heads of all sequences, all chunks, dk·dv]: at the begin of each chunk
    const float *after;  // [heads of all sequences, chunks of the launch, dk·dv]: gradients of the states behind chunks
    float *d_log_a, *d_dt; // [sequences · all chunks, value heads]
    i64 dout_stride, du_stride, dba_stride;
};

// Gradients of the numbers of positions, in the place of x and what follows it.
struct DeltaGradient {
    float beta[CHUNK], total[CHUNK], carried[CHUNK];
    float columns[THREADS / 32][CHUNK];
    float whole[33];
};

// sum16 adds over 16 neighbouring lanes.
APR_DEVICE float sum16(float v) {
    UNROLL for (int m = 8; m; m >>= 1) v += shfl_xor(v, m);
    return v;
}

// What a thread adds up over the columns of v.
struct DeltaSums {
    float dp[4][4], da[4][4];              // do·xᵀ and y·xᵀ
    float beta[4], total[4], carried[4]; // of rows i0 + 16·r
    float states;                          // ⟨S, dS⟩
};

// parts3 makes three pairs of bfloat16 whose sums are two numbers.
APR_DEVICE void parts3(u32 (&part)[3], float lo, float hi) {
    UNROLL for (int s = 0; s < 3; s++) {
        part[s] = pack_bf16(lo, hi);
        lo -= from_bits(part[s] << 16);
        hi -= from_bits(part[s] & 0xffff0000u);
    }
}

// state_fragment reads rows t and t+1, t+8 and t+9 of column j of a state.
APR_DEVICE void state_fragment(u32 (&b)[2][3], const float *state, u32 line, u32 t, u32 j) {
    const float *p = state + t * line + j;
    parts3(b[0], p[0], p[line]);
    parts3(b[1], p[8 * line], p[9 * line]);
}

// state_products computes KS, QS and K·dS on tensor cores, a warp 16 positions by 8 columns, in the fragments of mma_bf16: k and q are
// exact, S and dS sums of three bfloat16.
APR_DEVICE void state_products(float (&ks)[4], float (&qs)[4], float (&kd)[4], const bf16 *q, const bf16 *k, u32 pitch, const float *state, const float *after,
    u32 line, u32 dk) {
    const u32 at = (16 * (warp() % 4) + lane() / 4) * pitch, j = 8 * (warp() / 4) + lane() / 4;
    for (u32 c = lane() % 4 * 2; c < dk; c += 16) {
        u32 ka[4], qa[4], s[2][3], d[2][3];
        UNROLL for (u32 e = 0; e < 4; e++) {
            const u32 from = at + e % 2 * 8 * pitch + c + e / 2 * 8;
            ka[e] = *(const u32 *)(k + from), qa[e] = *(const u32 *)(q + from);
        }
        state_fragment(s, state, line, c, j);
        state_fragment(d, after, line, c, j);
        UNROLL for (int m = 0; m < 3; m++) {
            mma_bf16(ks, ka, s[0][m], s[1][m]);
            mma_bf16(qs, qa, s[0][m], s[1][m]);
            mma_bf16(kd, ka, d[0][m], d[1][m]);
        }
    }
}

// from_fragment returns what a thread has in rows i0 + 16·r of column j0 of a matrix whose fragments state_products left, by way of
// room in shared memory that nobody reads before the next barrier.
APR_DEVICE void from_fragment(float (&to)[4][1], const float (&from)[4], float *room, u32 line) {
    UNROLL for (u32 e = 0; e < 4; e++)
        room[(16 * (warp() % 4) + lane() / 4 + e / 2 * 8) * line + 8 * (warp() / 4) + lane() % 4 * 2 + e % 2] = from[e];
    sync_block();
    UNROLL for (u32 r = 0; r < 4; r++) to[r][0] = room[(thread() / 16 + 16 * r) * line + thread() % 16];
    sync_block();
}

struct DeltaPart { // shared memory of delta_gradients
    float *state, *after, *x, *y, *dout, *kk, *p;
};

// delta_part goes through PART columns of v, from col on: it solves for x and y, writes dv, and adds to the gradients of q and
// k through the state.
template <class T>
APR_DEVICE void delta_part(const DeltaGradientsArgs &a, const DeltaScalars &s, const DeltaPart &m, const T *q, const T *k, DeltaSums &sums,
    float (&dq)[8][4], float (&dk)[8][4], u64 row, u32 n, u32 head, u32 col, u64 before, u64 slot) {
    constexpr u32 W = PART, LINE = W + 1;
    const DeltaRule &d = a.d;
    const u32 wide = (u32)min_of(W, d.dv - col), i0 = thread() / 16, j0 = thread() % 16;
    const u64 size = (u64)d.dk * d.dv, values = 2ull * d.key_heads * d.dk + (u64)head * d.dv + col;
    sync_block();
    load_slice<W>(m.state, a.states + before * size + col, d.dv, d.dk, d.dk, wide);
    load_slice<W>(m.after, a.after + slot * size + col, d.dv, d.dk, d.dk, wide);
    load_slice<W>(m.dout, (const T *)a.dout + row * a.dout_stride + (u64)head * d.dv + col, a.dout_stride, n, CHUNK, wide);
    sync_block();
    const float *b[1], *ap[4];
    float ks[4][1] = {}, qs[4][1] = {}, kd[4][1] = {}, z[4][1] = {}, rest[4];
    if (sizeof(T) == sizeof(bf16) && d.dk % 16 == 0) {
        float fk[4] = {}, fq[4] = {}, fd[4] = {};
        state_products(fk, fq, fd, (const bf16 *)q, (const bf16 *)k, d.pitch, m.state, m.after, LINE, d.dk);
        from_fragment(ks, fk, m.x, LINE);
        from_fragment(qs, fq, m.x, LINE);
        from_fragment(kd, fd, m.x, LINE);
    } else {
        const T *ak[4], *aq[4];
        places(ak, k, i0, 16, d.pitch, CHUNK);
        places(aq, q, i0, 16, d.pitch, CHUNK);
        b[0] = m.state + j0;
        product(ks, ak, 1, b, LINE, d.dk);
        product(qs, aq, 1, b, LINE, d.dk);
        b[0] = m.after + j0;
        product(kd, ak, 1, b, LINE, d.dk);
    }
    places(ap, m.p, i0, 16, 1, CHUNK);
    b[0] = m.dout + j0;
    product(z, ap, PAIR, b, LINE, n);
    UNROLL for (u32 r = 0; r < 4; r++) {
        const u32 i = i0 + 16 * r;
        const float v = i < n && j0 < wide ? load((const T *)d.u + (row + i) * d.u_stride + values + j0) : 0.0f;
        ks[r][0] *= s.decay[i] * s.rk[i];
        qs[r][0] *= s.decay[i] * s.rq[i];
        kd[r][0] *= s.end[i] * s.rk[i];
        rest[r] = v - ks[r][0];
        m.x[i * LINE + j0] = s.beta[i] * rest[r];
        m.y[i * LINE + j0] = z[r][0] + kd[r][0];
    }
    // Half of the threads solve for x, from the first row on, the others for y, from the last.
    const u32 rounds = (n + SOLVE - 1) / SOLVE, t = thread() % (THREADS / 2);
    for (u32 i = 0; i < rounds; i++) {
        const bool x = thread() < THREADS / 2;
        const u32 r0 = SOLVE * (x ? i : rounds - 1 - i);
        sync_block();
        if (x) forwards_others<W>(m.x, m.kk, s, r0, t);
        else backwards_others<W>(m.y, m.kk, s, r0, n, t);
        sync_block();
        if (t < W) {
            if (x) forwards_own<W>(m.x, m.kk, s, r0, t);
            else backwards_own<W>(m.y, m.kk, s, r0, t);
        }
    }
    sync_block();
    UNROLL for (u32 r = 0; r < 4; r++) {
        const u32 i = i0 + 16 * r;
        const float x = m.x[i * LINE + j0], y = m.y[i * LINE + j0], dv = s.beta[i] * y;
        sums.beta[r] = fma_rn(y, rest[r], sums.beta[r]);
        sums.total[r] += m.dout[i * LINE + j0] * qs[r][0] - dv * ks[r][0];
        sums.carried[r] = fma_rn(x, kd[r][0], sums.carried[r]);
        if (i < n && j0 < wide) store((T *)a.du + (row + i) * a.du_stride + values + j0, dv);
    }
    for (u32 e = thread(); e < d.dk * LINE; e += THREADS)
        if (e % LINE < W) sums.states = fma_rn(m.state[e], m.after[e], sums.states);
    const float *bx[4];
    places(bx, m.x, j0, 16, LINE, CHUNK);
    places(ap, m.dout, i0, 16, LINE, CHUNK);
    product(sums.dp, ap, 1, bx, 1, W);
    places(ap, m.y, i0, 16, LINE, CHUNK);
    product(sums.da, ap, 1, bx, 1, W);
    // dq += e^G·do·Sᵀ and dk += end·x·dSᵀ − e^G·β·y·Sᵀ. A warp has rows warp + 8·r, a lane columns lane + 32·c.
    const float *bs[4], *bd[4];
    places(bs, m.state, lane(), 32, LINE, d.dk);
    places(bd, m.after, lane(), 32, LINE, d.dk);
    for (u32 t = 0; t < W; t++) {
        float st[4], dt[4];
        UNROLL for (u32 c = 0; c < 4; c++) st[c] = bs[c][t], dt[c] = bd[c][t];
        UNROLL for (u32 r = 0; r < 8; r++) {
            const u32 i = warp() + 8 * r;
            const float o = s.decay[i] * m.dout[i * LINE + t], x = s.end[i] * m.x[i * LINE + t], y = -s.decay[i] * s.beta[i] * m.y[i * LINE + t];
            UNROLL for (u32 c = 0; c < 4; c++) {
                dq[r][c] = fma_rn(o, st[c], dq[r][c]);
                dk[r][c] = fma_rn(y, st[c], fma_rn(x, dt[c], dk[r][c]));
            }
        }
    }
}

// delta_decays goes back through the pairs of a head's positions, to its decays and β: kk becomes the gradient of kkᵀ and p that of
// qkᵀ. It writes dba and what logA and dt get.
template <class T>
APR_DEVICE void delta_decays(const DeltaGradientsArgs &a, const DeltaScalars &s, DeltaGradient &g, float *kk, float *p, DeltaSums &sums,
    u64 row, u32 n, u32 head, u64 part) {
    const DeltaRule &d = a.d;
    const u32 i0 = thread() / 16, j0 = thread() % 16;
    sync_block();
    float columns[4] = {};
    UNROLL for (u32 r = 0; r < 4; r++) {
        const u32 i = i0 + 16 * r;
        UNROLL for (u32 c = 0; c < 4; c++) {
            const u32 j = j0 + 16 * c, at = i * PAIR + j;
            const float m = decay_between(s, i, j), t = j < i ? -sums.da[r][c] * kk[at] : 0.0f;
            const float w = j < i ? fma_rn(t, s.beta[i], sums.dp[r][c] * p[at]) : 0.0f; // on the diagonal the decay is 1
            sums.beta[r] += t;
            sums.total[r] += w;
            columns[c] += w;
            kk[at] = j < i ? -sums.da[r][c] * s.beta[i] * m : 0.0f;
            p[at] = j <= i ? sums.dp[r][c] * m : 0.0f;
        }
        const float beta = sum16(sums.beta[r]), total = sum16(sums.total[r]), carried = sum16(sums.carried[r]);
        if (j0 == 0) g.beta[i] = beta, g.total[i] = total, g.carried[i] = i + 1 < n ? carried : 0.0f; // at the end nothing decays
    }
    UNROLL for (u32 c = 0; c < 4; c++) {
        columns[c] += shfl_xor(columns[c], 16);
        if (lane() < 16) g.columns[warp()][j0 + 16 * c] = columns[c];
    }
    const float states = block_sum(sums.states, g.whole); // barriers
    if (thread() < CHUNK) {
        float t = g.total[thread()] - g.carried[thread()];
        UNROLL for (u32 w = 0; w < THREADS / 32; w++) t -= g.columns[w][thread()];
        g.total[thread()] = t;
    }
    if (warp() == 0) {
        const float all = warp_sum(g.carried[lane()] + g.carried[lane() + 32]);
        if (lane() == 0) g.columns[0][0] = fma_rn(s.decay[n - 1], states, all); // lane 0 has read it
    }
    sync_block();
    double log_a = 0, dt = 0;
    if (thread() < n) {
        const u32 i = thread();
        double dg = g.columns[0][0]; // of the last position, and so of those of its document
        if ((i32)i < s.begin[n - 1]) dg = 0;
        for (u32 j = i; j < n && (j == i || s.begin[j] != (i32)j); j++) dg += (double)g.total[j];
        const float rate = exp_exact(d.log_a[head]), beta = s.beta[i], da = -(float)dg * rate * s.slope[i];
        T *dba = (T *)a.dba + (row + i) * a.dba_stride + head;
        store(dba, g.beta[i] * beta * (1.0f - beta));
        store(dba + d.value_heads, da);
        log_a = dg * (double)s.g[i], dt = (double)da;
    }
    if (thread() < CHUNK) { // both warps
        log_a = warp_sum(log_a), dt = warp_sum(dt);
        if (lane() == 0) g.whole[2 * warp()] = (float)log_a, g.whole[2 * warp() + 1] = (float)dt;
    }
    sync_block();
    if (thread() == 0) {
        a.d_log_a[part * d.value_heads + head] = g.whole[0] + g.whole[2];
        a.d_dt[part * d.value_heads + head] = g.whole[1] + g.whole[3];
    }
}

// store_units writes the gradient of q or k from that of its normalised rows: with ŷ = f·x·r it is f·r·(dy − ŷ⟨ŷ,dy⟩/f²).
template <class T> APR_DEVICE void store_units(T *to, i64 stride, const T *x, u32 pitch, const float *factor, float inverse, const float (&dy)[8][4], u32 n, u32 dk) {
    UNROLL for (u32 r = 0; r < 8; r++) {
        const u32 i = warp() + 8 * r;
        float along = 0;
        UNROLL for (u32 c = 0; c < 4; c++)
            if (lane() + 32 * c < dk) along = fma_rn(load(x + i * pitch + lane() + 32 * c) * factor[i], dy[r][c], along);
        along = warp_sum(along) * inverse;
        if (i >= n) continue;
        UNROLL for (u32 c = 0; c < 4; c++) {
            const u32 at = lane() + 32 * c;
            if (at < dk) store(to + (i64)i * stride + at, factor[i] * (dy[r][c] - load(x + i * pitch + at) * factor[i] * along));
        }
    }
}

// A block has a chunk of a key head, with all value heads that read it.
template <class T> APR_DEVICE void delta_gradients(const DeltaGradientsArgs &a) {
    constexpr u32 LINE = PART + 1;
    DYNAMIC_SHARED(memory);
    const DeltaRule &d = a.d;
    DeltaScalars &s = *(DeltaScalars *)memory;
    DeltaPart m;
    m.state = (float *)(memory + sizeof(DeltaScalars)), m.after = m.state + d.dk * LINE, m.x = m.after + d.dk * LINE, m.y = m.x + CHUNK * LINE;
    m.dout = m.y + CHUNK * LINE, m.kk = m.dout + CHUNK * LINE, m.p = m.kk + CHUNK * PAIR;
    T *q = (T *)(m.p + CHUNK * PAIR), *k = q + CHUNK * d.pitch;
    const u32 chunk = d.chunk + block(), n = positions(d, chunk), key = block_y() % d.key_heads, seq = block_y() / d.key_heads;
    const u32 inside = d.value_heads / d.key_heads;
    const u64 row = (u64)seq * d.len + chunk * CHUNK;
    load_units(d, s, q, k, row, n, key);
    float dq[8][4] = {}, dk[8][4] = {};
    for (u32 head = key * inside; head < (key + 1) * inside; head++) {
        const u64 task = (u64)seq * d.value_heads + head, slot = task * d.chunks + block();
        sync_block();
        load_pair(m.kk, a.pairs + slot * PAIRS);
        load_pair(m.p, a.pairs + slot * PAIRS + CHUNK * CHUNK);
        load_scalars<T>(d, s, row, chunk, n, head);
        DeltaSums sums = {};
        for (u32 col = 0; col < d.dv; col += PART)
            delta_part<T>(a, s, m, q, k, sums, dq, dk, row, n, head, col, task * d.total + chunk, slot);
        delta_decays<T>(a, s, *(DeltaGradient *)m.x, m.kk, m.p, sums, row, n, head, (u64)seq * d.total + chunk);
        const float *across[8], *down[8];
        const T *units[4];
        places(across, m.p, warp(), 8, PAIR, CHUNK);
        places(down, m.p, warp(), 8, 1, CHUNK);
        places(units, k, lane(), 32, 1, d.dk);
        product(dq, across, 1, units, d.pitch, n, s.rk);
        places(units, q, lane(), 32, 1, d.dk);
        product(dk, down, PAIR, units, d.pitch, n, s.rq);
        places(across, m.kk, warp(), 8, PAIR, CHUNK);
        places(down, m.kk, warp(), 8, 1, CHUNK);
        places(units, k, lane(), 32, 1, d.dk);
        product(dk, across, 1, units, d.pitch, n, s.rk);
        product(dk, down, PAIR, units, d.pitch, n, s.rk);
    }
    T *du = (T *)a.du + row * a.du_stride + (u64)key * d.dk;
    store_units(du, a.du_stride, q, d.pitch, s.rq, (float)d.dk, dq, n, d.dk);
    store_units(du + (u64)d.key_heads * d.dk, a.du_stride, k, d.pitch, s.rk, 1.0f, dk, n, d.dk);
}

KERNEL(delta_states_backward_bf16, DeltaStatesBackwardArgs, THREADS, 2) { delta_states_backward<bf16>(a); }
KERNEL(delta_states_backward_f32, DeltaStatesBackwardArgs, THREADS, 1) { delta_states_backward<float>(a); }
KERNEL(delta_gradients_bf16, DeltaGradientsArgs, THREADS, 1) { delta_gradients<bf16>(a); }
KERNEL(delta_gradients_f32, DeltaGradientsArgs, THREADS, 1) { delta_gradients<float>(a); }
