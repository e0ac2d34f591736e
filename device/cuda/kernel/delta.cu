// The gated delta rule. See delta.go.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "delta_step.cuh"
#include "delta_tensor.cuh"

struct DeltaPairsArgs {
    DeltaRule d;
    float *pairs; // [heads of all sequences, chunks of the launch, PAIRS]
};

// store_pair writes an element of m∘kkᵀ and of m∘qkᵀ.
APR_DEVICE void store_pair(float *out, const DeltaScalars &s, u32 i, u32 j, float kk, float qk) {
    const float m = decay_between(s, i, j) * s.rk[j];
    out[i * CHUNK + j] = j < i ? kk * m * s.rk[i] : 0.0f;
    out[CHUNK * CHUNK + i * CHUNK + j] = j <= i ? qk * m * s.rq[i] : 0.0f;
}

// A block has the pairs of positions of a chunk of a value head, threads 4×4 of each matrix.
template <class T> APR_DEVICE void delta_pairs(const DeltaPairsArgs &a) {
    DYNAMIC_SHARED(memory);
    const DeltaRule &d = a.d;
    DeltaScalars &s = *(DeltaScalars *)memory;
    T *q = (T *)(memory + sizeof(DeltaScalars)), *k = q + CHUNK * d.pitch;
    const u32 chunk = d.chunk + block_y(), n = positions(d, chunk), head = block() % d.value_heads;
    const u64 row = (u64)(block() / d.value_heads) * d.len + chunk * CHUNK;
    load_units(d, s, q, k, row, n, head / (d.value_heads / d.key_heads));
    load_scalars<T>(d, s, row, chunk, n, head);
    float *out = a.pairs + ((u64)block() * d.chunks + block_y()) * PAIRS;
    const u32 i0 = thread() / 16, j0 = thread() % 16;
    const T *ak[4], *aq[4], *b[4];
    places(ak, k, i0, 16, d.pitch, CHUNK);
    places(aq, q, i0, 16, d.pitch, CHUNK);
    places(b, k, j0, 16, d.pitch, CHUNK);
    float kk[4][4] = {}, qk[4][4] = {};
    product(kk, ak, 1, b, 1, d.dk);
    product(qk, aq, 1, b, 1, d.dk);
    UNROLL for (u32 r = 0; r < 4; r++)
        UNROLL for (u32 c = 0; c < 4; c++) store_pair(out, s, i0 + 16 * r, j0 + 16 * c, kk[r][c], qk[r][c]);
}

struct DeltaMixArgs {
    DeltaRule d;
    void *mixed; // [heads of all sequences, chunks of the launch] DeltaMixed
    u32 squares;
};

// join_squares ends the inverse of squares of 2·H rows on the diagonal, of which both halves are inverted and the rest is a lower
// triangle:
//
//	[A 0; L B]⁻¹ = [A⁻¹ 0; −B⁻¹LA⁻¹ B⁻¹]
//
// A thread has H/8 elements of L. It begins behind a barrier.
template <u32 H> APR_DEVICE void join_squares(float *l, float *room) {
    constexpr u32 R = H > 16 ? 2 : 1, C = H > 8 ? 2 : 1, COLS = H / C; // a thread's rows and columns, which lie COLS apart
    const u32 square = thread() / (8 * H), q = thread() % (8 * H), i = q / COLS * R, j = q % COLS, at = 2 * H * square;
    float *lower = l + (at + H + i) * PAIR + at, *between = room + square * H * H;
    const float *upper = l + at * PAIR + at + j;
    float sum[R][C] = {};
    UNROLL for (u32 t = 0; t < H; t++)
        UNROLL for (u32 r = 0; r < R; r++)
            UNROLL for (u32 c = 0; c < C; c++) sum[r][c] = fma_rn(lower[r * PAIR + t], upper[t * PAIR + c * COLS], sum[r][c]);
    UNROLL for (u32 r = 0; r < R; r++)
        UNROLL for (u32 c = 0; c < C; c++) between[(i + r) * H + j + c * COLS] = sum[r][c], sum[r][c] = 0;
    sync_block();
    UNROLL for (u32 t = 0; t < H; t++)
        UNROLL for (u32 r = 0; r < R; r++)
            UNROLL for (u32 c = 0; c < C; c++) sum[r][c] = fma_rn(lower[r * PAIR + H + t], between[t * H + j + c * COLS], sum[r][c]);
    UNROLL for (u32 r = 0; r < R; r++)
        UNROLL for (u32 c = 0; c < C; c++) lower[r * PAIR + j + c * COLS] = -sum[r][c];
    sync_block();
}

// invert replaces a unit lower triangle, of which what is below the diagonal counts and what is above is zeros, by its inverse: first
// the squares of SOLVE rows on the diagonal, a thread a column, then always two of them and what lies between. room is for SQUARE/4
// numbers.
APR_DEVICE void invert(float *l, float *room) {
    float v[SOLVE] = {};
    const u32 c = thread() % SOLVE, r0 = thread() - c;
    if (thread() < CHUNK) UNROLL for (u32 i = 0; i < SOLVE; i++) {
        float sum = 0;
        UNROLL for (u32 j = 0; j < i; j++) sum = fma_rn(l[(r0 + i) * PAIR + r0 + j], v[j], sum);
        v[i] = i < c ? 0.0f : i == c ? 1.0f : -sum;
    }
    sync_block();
    if (thread() < CHUNK) UNROLL for (u32 i = 0; i < SOLVE; i++) l[(r0 + i) * PAIR + r0 + c] = v[i];
    sync_block();
    join_squares<SOLVE>(l, room);
    join_squares<2 * SOLVE>(l, room);
    join_squares<4 * SOLVE>(l, room);
}

// store_parts writes N parts of a number and its neighbour.
template <int N> APR_DEVICE void store_parts(bf16 *to, u32 at, float lo, float hi) {
    u32 part[N];
    parts_of(part, lo, hi);
    UNROLL for (u32 m = 0; m < N; m++) *(u32 *)(to + m * SQUARE + at) = part[m];
}

// A block has a chunk of a value head; products of bfloat16 are exact. A warp has 16×32 of each matrix.
template <u32 D> APR_DEVICE void delta_mix(const DeltaMixArgs &a) {
    DYNAMIC_SHARED(memory);
    const DeltaRule d = sized<D>(a.d);
    DeltaScalars &s = *(DeltaScalars *)memory;
    float *l = (float *)(memory + sizeof(DeltaScalars)), *room = l + CHUNK * PAIR;
    bf16 *q = (bf16 *)(room + SQUARE / 4), *k = q + CHUNK * d.pitch;
    const u32 chunk = d.chunk + block_y(), n = positions(d, chunk), head = block() % d.value_heads;
    const u64 row = (u64)(block() / d.value_heads) * d.len + chunk * CHUNK;
    DeltaMixed &m = mixed_at(a.mixed, (u64)block() * d.chunks + block_y(), a.squares);
    const bool pairs = a.squares > 2;
    load_packs<THREADS>(d, s, q, k, row, n, head / (d.value_heads / d.key_heads));
    load_scalars<bf16>(d, s, row, chunk, n, head);
    const u32 i0 = warp() % 4 * 16, j0 = warp() / 4 * 32, g = lane() / 4, t2 = lane() % 4 * 2;
    float kk[4][4] = {}, qk[4][4] = {};
    for (u32 c = 0; c < d.dk; c += 16) {
        u32 ka[4], qa[4];
        across(ka, k + i0 * d.pitch + c, d.pitch);
        if (pairs) across(qa, q + i0 * d.pitch + c, d.pitch);
        UNROLL for (u32 h = 0; h < 2; h++) {
            u32 b[4];
            columns_of(b, k, j0 + 16 * h, c, d.pitch);
            UNROLL for (u32 e = 0; e < 2; e++) {
                mma_bf16(kk[2 * h + e], ka, b[2 * e], b[2 * e + 1]);
                if (pairs) mma_bf16(qk[2 * h + e], qa, b[2 * e], b[2 * e + 1]);
            }
        }
    }
    UNROLL for (u32 e = 0; e < 16; e += 2) {
        const u32 i = i0 + g + row_of(e), j = j0 + col_of(e) + t2;
        float p[2];
        UNROLL for (u32 f = 0; f < 2; f++) {
            const float between = decay_between(s, i, j + f) * s.rk[j + f];
            l[i * PAIR + j + f] = j + f < i ? s.beta[i] * kk[e / 4][e % 4 + f] * between * s.rk[i] : 0.0f;
            p[f] = qk[e / 4][e % 4 + f] * between * s.rq[i];
        }
        if (pairs) store_parts<2>(m.pairs, i * CHUNK + j, p[0], p[1]);
    }
    sync_block();
    invert(l, room);
    for (u32 e = 2 * thread(); e < SQUARE; e += 2 * THREADS) {
        const u32 i = e / CHUNK, j = e % CHUNK;
        u32 part[3];
        parts_of(part, j <= i ? l[i * PAIR + j] * s.beta[j] : 0.0f, j < i ? l[i * PAIR + j + 1] * s.beta[j + 1] : 0.0f);
        *(u32 *)(m.solve + e) = part[0], *(u32 *)(m.solve + SQUARE + e) = part[1];
        if (a.squares > 4) *(u32 *)(m.third + e) = part[2];
    }
    if (thread() < CHUNK) {
        const u32 i = thread();
        m.decay_k[i] = s.decay[i] * s.rk[i], m.decay_q[i] = s.decay[i] * s.rq[i], m.end_k[i] = s.end[i] * s.rk[i], m.through[i] = s.decay[i];
    }
}

struct DeltaForwardArgs {
    DeltaRule d;
    const void *pairs; // those of delta_pairs, or as many squares of DeltaMixed
    void *o;           // zero: not wanted
    float *states;     // zero: not wanted; [heads of all sequences, all chunks, dk·dv]: at the begin of each chunk
    const float *from; // zero: zeros
    float *to;         // zero: not wanted
    i64 o_stride, from_stride, to_stride;
    u32 stages, squares; // chunks in shared memory, on tensor cores
};

// A block has SLICE columns of the state of a value head, and goes from chunk to chunk.
template <class T> APR_DEVICE void delta_forward(const DeltaForwardArgs &a) {
    constexpr u32 W = SLICE, LINE = W + 1;
    DYNAMIC_SHARED(memory);
    const DeltaRule &d = a.d;
    DeltaScalars &s = *(DeltaScalars *)memory;
    float *state = (float *)(memory + sizeof(DeltaScalars)), *x = state + d.dk * LINE, *kk = x + CHUNK * LINE, *p = kk + CHUNK * PAIR;
    T *q = (T *)(p + CHUNK * PAIR), *k = q + CHUNK * d.pitch;
    const u32 task = block(), head = task % d.value_heads, key = head / (d.value_heads / d.key_heads);
    const u32 col = block_y() * W, wide = (u32)min_of(W, d.dv - col);
    const u64 size = (u64)d.dk * d.dv, values = 2ull * d.key_heads * d.dk + (u64)head * d.dv + col;
    const u32 i0 = thread() / 16, j0 = thread() % 16, a0 = thread() / 8, c0 = thread() % 8;
    load_slice<W>(state, a.from + task * a.from_stride + col, d.dv, a.from ? d.dk : 0, d.dk, wide);
    for (u32 chunk = d.chunk; chunk < d.chunk + d.chunks; chunk++) {
        const u32 n = positions(d, chunk);
        const u64 row = (u64)(task / d.value_heads) * d.len + chunk * CHUNK, slot = (u64)task * d.total + chunk;
        const float *pairs = (const float *)a.pairs + ((u64)task * d.chunks + chunk - d.chunk) * PAIRS;
        sync_block();
        load_units(d, s, q, k, row, n, key);
        load_pair(kk, pairs);
        load_pair(p, pairs + CHUNK * CHUNK);
        if (a.states) store_slice<W>(a.states + slot * size + col, state, d.dv, d.dk, wide);
        load_scalars<T>(d, s, row, chunk, n, head);
        if (thread() < CHUNK) s.f[thread()] = s.end[thread()] * s.rk[thread()];

        // x = β(v − e^G·KS); o begins with e^G·QS.
        const T *ak[4], *aq[4];
        const float *b[2], *ap[4];
        places(ak, k, i0, 16, d.pitch, CHUNK);
        places(aq, q, i0, 16, d.pitch, CHUNK);
        places(b, state, j0, 16, 1, W);
        float ks[4][2] = {}, o[4][2] = {};
        product(ks, ak, 1, b, LINE, d.dk);
        if (a.o) product(o, aq, 1, b, LINE, d.dk);
        UNROLL for (u32 r = 0; r < 4; r++)
            UNROLL for (u32 c = 0; c < 2; c++) {
                const u32 i = i0 + 16 * r, j = j0 + 16 * c;
                const float v = i < n && j < wide ? load((const T *)d.u + (row + i) * d.u_stride + values + j) : 0.0f;
                x[i * LINE + j] = s.beta[i] * fma_rn(-s.decay[i] * s.rk[i], ks[r][c], v);
                o[r][c] *= s.decay[i] * s.rq[i];
            }
        for (u32 r0 = 0; r0 < n; r0 += SOLVE) {
            sync_block();
            if (r0 > 0) forwards_others<W>(x, kk, s, r0, thread());
            sync_block();
            if (thread() < W) forwards_own<W>(x, kk, s, r0, thread());
        }
        sync_block();
        if (a.o) {
            places(ap, p, i0, 16, PAIR, CHUNK);
            places(b, x, j0, 16, 1, W);
            product(o, ap, 1, b, LINE, n);
            UNROLL for (u32 r = 0; r < 4; r++)
                UNROLL for (u32 c = 0; c < 2; c++)
                    if (i0 + 16 * r < n && j0 + 16 * c < wide)
                        store((T *)a.o + (row + i0 + 16 * r) * a.o_stride + (u64)head * d.dv + col + j0 + 16 * c, o[r][c]);
        }
        // S = through·S + Σ_i end_i·k_i·x_iᵀ.
        const T *at[4];
        const float *bx[4];
        places(at, k, a0, 32, 1, d.dk);
        places(bx, x, c0, 8, 1, W);
        float add[4][4] = {};
        product(add, at, d.pitch, bx, LINE, n, s.f);
        UNROLL for (u32 r = 0; r < 4; r++)
            UNROLL for (u32 c = 0; c < 4; c++)
                if (a0 + 32 * r < d.dk) {
                    float *e = state + (a0 + 32 * r) * LINE + c0 + 8 * c;
                    *e = fma_rn(s.decay[n - 1], *e, add[r][c]);
                }
    }
    sync_block();
    if (a.to) store_slice<W>(a.to + task * a.to_stride + col, state, d.dv, d.dk, wide);
}

// delta_forward on tensor cores, with states, x and the inverse as N parts; O: with outputs. The state is in registers.
// While a chunk is computed the next one comes, if there is room for two.
template <u32 D, int N, bool O> APR_DEVICE void delta_forward_tensor(const DeltaForwardArgs &a) {
    DYNAMIC_SHARED(memory);
    const DeltaRule d = sized<D>(a.d);
    const DeltaPlace at = place_of(d);
    const u32 bytes = stage_bytes(d.pitch), x_part = CHUNK * LINE16, last = d.chunk + d.chunks;
    bf16 *rest = (bf16 *)(memory + a.stages * bytes), *parts = rest + 3 * x_part; // of the state, then of x
    const u64 row0 = (u64)(at.task / d.value_heads) * d.len, values = 2ull * d.key_heads * d.dk + (u64)at.head * d.dv + at.col;
    const auto come = [&](u32 chunk) {
        load_stage<N, O>(stage_at(memory + chunk % a.stages * bytes, d.pitch), d, row0 + chunk * CHUNK, positions(d, chunk), at.key,
            (const bf16 *)d.u + values, d.u_stride, at.wide, mixed_at(a.pairs, (u64)at.task * d.chunks + chunk - d.chunk, a.squares));
    };
    float state[2][4];
    load_state(state, a.from ? a.from + at.task * a.from_stride : nullptr, d, at);
    come(d.chunk);
    for (u32 chunk = d.chunk; chunk < last; chunk++) {
        const u32 n = positions(d, chunk);
        const DeltaStage g = stage_at(memory + chunk % a.stages * bytes, d.pitch);
        const bool ahead = a.stages > 1 && chunk + 1 < last;
        if (ahead) come(chunk + 1);
        state_parts<N>(parts, state, d, at);
        if (!O) store_chunk(a.states + ((u64)at.task * d.total + chunk) * at.size, state, d, at);
        if (ahead) copy_async_wait<1>();
        else copy_async_wait<0>();
        sync_block();

        // What v is beside what the state says, and e^G·QS.
        float r[4] = {}, o[4] = {}, x[4] = {};
        add_state<D, N, O>(r, o, g.k, g.q, d, parts, at);
        UNROLL for (u32 e = 0; e < 4; e++) {
            const u32 i = at.i0 + at.g + row_of(e), j = at.j0 + at.t2 + e % 2;
            r[e] = fma_rn(-g.decay_k[i], r[e], load(g.side + i * LINE16 + j));
            o[e] *= g.decay_q[i];
        }
        tile_parts<N>(rest, r, at);
        sync_block();
        add_lower<N, N, false>(x, g.solve, rest, at);
        float ends[4];
        UNROLL for (u32 e = 0; e < 4; e++) ends[e] = g.end_k[at.i0 + at.g + row_of(e)] * x[e];
        tile_parts<N>(parts, ends, at);
        if (O) tile_parts<2>(parts + 3 * x_part, x, at);
        sync_block();
        if (O) {
            add_lower<2, 2, false>(o, g.pairs, parts + 3 * x_part, at);
            bf16 *to = (bf16 *)a.o + (row0 + chunk * CHUNK) * a.o_stride + (u64)at.head * d.dv + at.col;
            UNROLL for (u32 e = 0; e < 4; e += 2) {
                const u32 i = at.i0 + at.g + row_of(e), j = at.j0 + at.t2;
                if (i < n && j < at.wide) *(u32 *)(to + i * a.o_stride + j) = pack_bf16(o[e], o[e + 1]);
            }
        }
        // S = through·S + Σ_i k_i·(end_i·rk_i·x_i)ᵀ.
        if (at.live) {
            UNROLL for (u32 e = 0; e < 8; e++) state[e / 4][e % 4] *= g.through[n - 1];
            add_outer<N>(state, g.k, d.pitch, parts, at);
        }
        sync_block();
        if (a.stages == 1 && chunk + 1 < last) come(chunk + 1);
    }
    if (a.to) store_state(a.to + at.task * a.to_stride, state, d, at);
}

// A few positions one after the other: a block has SLICE columns of the state of a value head in registers, a warp every eighth of
// its rows, a lane a column.
template <class T> APR_DEVICE void delta_steps(const DeltaForwardArgs &a) {
    constexpr u32 WARPS = THREADS / 32, R = MOST_KEYS / WARPS;
    SHARED(float, qk, 2 * MOST_KEYS);
    SHARED(float, sums, 2 * WARPS * 32);
    SHARED(float, scalar, 3); // e^g, β, whether a document begins
    const DeltaRule &d = a.d;
    const u32 task = block(), head = task % d.value_heads, key = head / (d.value_heads / d.key_heads), col = block_y() * SLICE + lane();
    const bool live = col < d.dv;
    float state[R];
    UNROLL for (u32 r = 0; r < R; r++) {
        const u32 i = warp() + WARPS * r;
        state[r] = a.from && live && i < d.dk ? a.from[task * a.from_stride + (u64)i * d.dv + col] : 0.0f;
    }
    for (u32 t = 0; t < d.len; t++) {
        const u64 row = (u64)(task / d.value_heads) * d.len + t;
        const T *u = (const T *)d.u + row * d.u_stride;
        if (warp() < 2) { // q, k
            const T *x = u + ((u64)warp() * d.key_heads + key) * d.dk;
            float squares = 0;
            for (u32 c = lane(); c < d.dk; c += 32) squares = fma_rn(load(x + c), load(x + c), squares);
            float f = 1.0f / sqrt_rn(warp_sum(squares) + 1e-6f);
            if (warp() == 0) f /= sqrt_rn((float)d.dk);
            for (u32 c = lane(); c < d.dk; c += 32) qk[warp() * MOST_KEYS + c] = load(x + c) * f;
        } else if (thread() == 64) {
            const T *ba = (const T *)d.ba + row * d.ba_stride + head;
            scalar[0] = exp_exact(-exp_exact(d.log_a[head]) * softplus(load(ba + d.value_heads) + d.dt[head]));
            scalar[1] = sigmoid(load(ba));
            scalar[2] = (t == 0 && !d.goes_on) || (d.first && d.first[row] >= (i32)t);
        }
        sync_block();
        const float decay = scalar[2] != 0 ? 0.0f : scalar[0];
        float ks = 0, o = 0;
        UNROLL for (u32 r = 0; r < R; r++) {
            const u32 i = warp() + WARPS * r;
            if (i >= d.dk) continue;
            state[r] *= decay;
            ks = fma_rn(state[r], qk[MOST_KEYS + i], ks);
        }
        sums[thread()] = ks;
        sync_block();
        ks = 0;
        UNROLL for (u32 w = 0; w < WARPS; w++) ks += sums[32 * w + lane()];
        const float v = live ? load(u + 2ull * d.key_heads * d.dk + (u64)head * d.dv + col) : 0.0f, x = scalar[1] * (v - ks);
        UNROLL for (u32 r = 0; r < R; r++) {
            const u32 i = warp() + WARPS * r;
            if (i >= d.dk) continue;
            state[r] = fma_rn(qk[MOST_KEYS + i], x, state[r]);
            o = fma_rn(state[r], qk[i], o);
        }
        sums[THREADS + thread()] = o;
        sync_block();
        if (warp() == 0 && live) {
            o = 0;
            UNROLL for (u32 w = 0; w < WARPS; w++) o += sums[THREADS + 32 * w + lane()];
            store((T *)a.o + row * a.o_stride + (u64)head * d.dv + col, o);
        }
    }
    UNROLL for (u32 r = 0; r < R; r++) {
        const u32 i = warp() + WARPS * r;
        if (a.to && live && i < d.dk) a.to[task * a.to_stride + (u64)i * d.dv + col] = state[r];
    }
}

KERNEL(delta_pairs_bf16, DeltaPairsArgs, THREADS, 2) { delta_pairs<bf16>(a); }
KERNEL(delta_pairs_f32, DeltaPairsArgs, THREADS, 2) { delta_pairs<float>(a); }
KERNEL(delta_mix_bf16, DeltaMixArgs, THREADS, 3) { delta_mix<0>(a); }
KERNEL(delta_mix_bf16_128, DeltaMixArgs, THREADS, 3) { delta_mix<128>(a); }
KERNEL(delta_forward_bf16, DeltaForwardArgs, THREADS, 2) { delta_forward<bf16>(a); }
KERNEL(delta_forward_f32, DeltaForwardArgs, THREADS, 1) { delta_forward<float>(a); }
KERNEL(delta_forward_tensor_bf16, DeltaForwardArgs, TEAM, 1) { delta_forward_tensor<0, 3, true>(a); }
KERNEL(delta_forward_tensor_bf16_128, DeltaForwardArgs, TEAM, 1) { delta_forward_tensor<128, 3, true>(a); }
KERNEL(delta_states_tensor_bf16, DeltaForwardArgs, TEAM, 1) { delta_forward_tensor<0, 2, false>(a); }
KERNEL(delta_states_tensor_bf16_128, DeltaForwardArgs, TEAM, 1) { delta_forward_tensor<128, 2, false>(a); }
KERNEL(delta_steps_bf16, DeltaForwardArgs, THREADS, 4) { delta_steps<bf16>(a); }
KERNEL(delta_steps_f32, DeltaForwardArgs, THREADS, 4) { delta_steps<float>(a); }
KERNEL(delta_step_bf16, DeltaStepArgs, STEP_THREADS, 1) { delta_step<bf16>(a); }
KERNEL(delta_step_f32, DeltaStepArgs, STEP_THREADS, 1) { delta_step<float>(a); }
