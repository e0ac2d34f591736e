// The gated delta rule. See delta.go.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "delta.cuh"

constexpr u32 SLICE = 32; // columns of the state that a block has

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

// tensor_pairs computes the pairs on tensor cores, for dk a multiple of 16: products of bfloat16 are exact. A warp has 16×32 of each.
APR_DEVICE void tensor_pairs(float *out, const DeltaScalars &s, const bf16 *q, const bf16 *k, u32 pitch, u32 dk) {
    const u32 g = lane() / 4, t = lane() % 4 * 2, i0 = warp() % 4 * 16, j0 = warp() / 4 * 32;
    float kk[4][4] = {}, qk[4][4] = {};
    for (u32 c = t; c < dk; c += 16) {
        u32 ka[4], qa[4];
        UNROLL for (u32 e = 0; e < 4; e++) {
            const u32 from = (i0 + g + e % 2 * 8) * pitch + c + e / 2 * 8;
            ka[e] = *(const u32 *)(k + from), qa[e] = *(const u32 *)(q + from);
        }
        UNROLL for (u32 n = 0; n < 4; n++) {
            const bf16 *b = k + (j0 + 8 * n + g) * pitch + c;
            const u32 b0 = *(const u32 *)b, b1 = *(const u32 *)(b + 8);
            mma_bf16(kk[n], ka, b0, b1);
            mma_bf16(qk[n], qa, b0, b1);
        }
    }
    UNROLL for (u32 n = 0; n < 4; n++)
        UNROLL for (u32 e = 0; e < 4; e++) store_pair(out, s, i0 + g + e / 2 * 8, j0 + 8 * n + t + e % 2, kk[n][e], qk[n][e]);
}

// A block has the pairs of positions of a chunk of a value head: on plain cores threads have 4×4 of each matrix.
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
    if (sizeof(T) == sizeof(bf16) && d.dk % 16 == 0) {
        tensor_pairs(out, s, (const bf16 *)q, (const bf16 *)k, d.pitch, d.dk);
        return;
    }
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

struct DeltaForwardArgs {
    DeltaRule d;
    const float *pairs;
    void *o;           // zero: not wanted
    float *states;     // zero: not wanted; [heads of all sequences, chunks of the launch, dk·dv]: at the begin of each chunk
    const float *from; // zero: zeros
    float *to;         // zero: not wanted
    i64 o_stride, from_stride, to_stride;
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
        const u64 row = (u64)(task / d.value_heads) * d.len + chunk * CHUNK, slot = (u64)task * d.chunks + chunk - d.chunk;
        sync_block();
        load_units(d, s, q, k, row, n, key);
        load_pair(kk, a.pairs + slot * PAIRS);
        load_pair(p, a.pairs + slot * PAIRS + CHUNK * CHUNK);
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

// A number as the sum of bfloat16: of three terms, the difference is beyond float32's 24 bits.
template <int N> APR_DEVICE void split(bf16 (&part)[N], float v) {
    UNROLL for (int i = 0; i < N; i++) {
        part[i] = to_bf16(v);
        v -= from_bf16(part[i]);
    }
}

constexpr u32 TENSOR_LINE = SLICE + 8, TENSOR_PAIR = CHUNK + 8; // rows for ldmatrix: 16 bytes more than a multiple of 128, or 80

// mma_parts adds a·b to n 16 columns of d (two tiles of 8), with b the sum of PARTS matrices that lie `apart` values from each other.
template <int PARTS> APR_DEVICE void mma_parts(float (&d)[2][4], const u32 (&a)[4], const bf16 *b, u32 apart) {
    UNROLL for (int s = 0; s < PARTS; s++) {
        u32 f[4];
        ldmatrix4_trans(f, b + s * apart + lane() % 16 * TENSOR_LINE + lane() / 16 * 8);
        mma_bf16(d[0], a, f[0], f[1]);
        mma_bf16(d[1], a, f[2], f[3]);
    }
}

// delta_forward on tensor cores, for bfloat16 and dk a multiple of 16. q and k are exact; what is float32, S and x, is the sum of three
// bfloat16, so that sums are those of float32; of m∘qkᵀ·x, which is rounded to bfloat16, products of 16 bits remain. A warp has 16 rows
// of the state in registers.
APR_DEVICE void delta_forward_tensor(const DeltaForwardArgs &a) {
    constexpr u32 W = SLICE, LINE = W + 1;
    DYNAMIC_SHARED(memory);
    const DeltaRule &d = a.d;
    DeltaScalars &s = *(DeltaScalars *)memory;
    float *x = (float *)(memory + sizeof(DeltaScalars)), *kk = x + CHUNK * LINE;
    bf16 *p = (bf16 *)(kk + CHUNK * PAIR), *q = p + 2 * CHUNK * TENSOR_PAIR, *k = q + CHUNK * d.pitch, *parts = k + CHUNK * d.pitch;
    const u32 state_part = d.dk * TENSOR_LINE, x_part = CHUNK * TENSOR_LINE;
    const u32 task = block(), head = task % d.value_heads, key = head / (d.value_heads / d.key_heads);
    const u32 col = block_y() * W, wide = (u32)min_of(W, d.dv - col);
    const u64 size = (u64)d.dk * d.dv, values = 2ull * d.key_heads * d.dk + (u64)head * d.dv + col;
    const u32 g = lane() / 4, t2 = lane() % 4 * 2, own = 16 * warp(); // rows of the state
    const u32 i0 = warp() % 4 * 16, j0 = warp() / 4 * 16;            // a warp's tile of positions and columns
    const bool live = own < d.dk;
    float state[2][2][4] = {};
    UNROLL for (u32 e = 0; e < 16; e++) {
        const u32 r = own + g + e / 2 % 2 * 8, c = e / 4 * 8 + t2 + e % 2;
        if (a.from && live && c < wide) state[e / 8][e / 4 % 2][e % 4] = a.from[task * a.from_stride + (u64)r * d.dv + col + c];
    }
    for (u32 chunk = d.chunk; chunk < d.chunk + d.chunks; chunk++) {
        const u32 n = positions(d, chunk);
        const u64 row = (u64)(task / d.value_heads) * d.len + chunk * CHUNK, slot = (u64)task * d.chunks + chunk - d.chunk;
        sync_block();
        if (live) UNROLL for (u32 e = 0; e < 16; e++) {
            const u32 r = own + g + e / 2 % 2 * 8, c = e / 4 * 8 + t2 + e % 2;
            const float v = state[e / 8][e / 4 % 2][e % 4];
            bf16 part[3];
            split(part, v);
            UNROLL for (u32 m = 0; m < 3; m++) parts[m * state_part + r * TENSOR_LINE + c] = part[m];
            if (a.states && c < wide) a.states[slot * size + (u64)r * d.dv + col + c] = v;
        }
        load_units(d, s, q, k, row, n, key);
        load_pair(kk, a.pairs + slot * PAIRS);
        for (u32 e = thread(); e < CHUNK * CHUNK; e += THREADS) {
            bf16 part[2];
            split(part, a.pairs[slot * PAIRS + CHUNK * CHUNK + e]);
            UNROLL for (u32 m = 0; m < 2; m++) p[m * CHUNK * TENSOR_PAIR + e / CHUNK * TENSOR_PAIR + e % CHUNK] = part[m];
        }
        load_scalars<bf16>(d, s, row, chunk, n, head);

        // x = β(v − e^G·KS); o begins with e^G·QS.
        float ks[2][4] = {}, o[2][4] = {};
        const u32 at = (i0 + lane() % 16) * d.pitch + lane() / 16 * 8;
        for (u32 c = 0; c < d.dk; c += 16) {
            u32 f[4];
            ldmatrix4(f, k + at + c);
            mma_parts<3>(ks, f, parts + c * TENSOR_LINE + j0, state_part);
            if (!a.o) continue;
            ldmatrix4(f, q + at + c);
            mma_parts<3>(o, f, parts + c * TENSOR_LINE + j0, state_part);
        }
        UNROLL for (u32 e = 0; e < 8; e++) {
            const u32 i = i0 + g + e / 2 % 2 * 8, j = j0 + e / 4 * 8 + t2 + e % 2;
            const float v = i < n && j < wide ? load((const bf16 *)d.u + (row + i) * d.u_stride + values + j) : 0.0f;
            x[i * LINE + j] = s.beta[i] * fma_rn(-s.decay[i] * s.rk[i], ks[e / 4][e % 4], v);
            o[e / 4][e % 4] *= s.decay[i] * s.rq[i];
        }
        for (u32 r0 = 0; r0 < n; r0 += SOLVE) {
            sync_block();
            if (r0 > 0) forwards_others<W>(x, kk, s, r0, thread());
            sync_block();
            if (thread() < W) forwards_own<W>(x, kk, s, r0, thread());
        }
        sync_block();
        // In the place of the state's parts: three of end·rk·x, and two of x.
        for (u32 e = thread(); e < CHUNK * W; e += THREADS) {
            const u32 i = e / W, to = i * TENSOR_LINE + e % W;
            const float v = x[i * LINE + e % W];
            bf16 scaled[3], plain[2];
            split(scaled, s.end[i] * s.rk[i] * v);
            split(plain, v);
            UNROLL for (u32 m = 0; m < 3; m++) parts[m * x_part + to] = scaled[m];
            UNROLL for (u32 m = 0; m < 2; m++) parts[(3 + m) * x_part + to] = plain[m];
        }
        sync_block();
        if (a.o) {
            for (u32 c = 0; c <= i0; c += 16) { // m∘qkᵀ is zero to the right of its diagonal
                const bf16 *from = p + (i0 + lane() % 16) * TENSOR_PAIR + c + lane() / 16 * 8, *b = parts + 3 * x_part + c * TENSOR_LINE + j0;
                u32 f[4];
                ldmatrix4(f, from);
                mma_parts<2>(o, f, b, x_part);
                ldmatrix4(f, from + CHUNK * TENSOR_PAIR);
                mma_parts<1>(o, f, b, x_part);
            }
            UNROLL for (u32 e = 0; e < 8; e++) {
                const u32 i = i0 + g + e / 2 % 2 * 8, j = j0 + e / 4 * 8 + t2 + e % 2;
                if (i < n && j < wide) store((bf16 *)a.o + (row + i) * a.o_stride + (u64)head * d.dv + col + j, o[e / 4][e % 4]);
            }
        }
        // S = through·S + Σ_i k_i·(end_i·rk_i·x_i)ᵀ.
        if (!live) continue;
        UNROLL for (u32 e = 0; e < 16; e++) state[e / 8][e / 4 % 2][e % 4] *= s.decay[n - 1];
        for (u32 c = 0; c < n; c += 16) {
            u32 f[4];
            ldmatrix4_trans(f, k + (c + lane() % 8 + lane() / 16 * 8) * d.pitch + own + lane() / 8 % 2 * 8);
            mma_parts<3>(state[0], f, parts + c * TENSOR_LINE, x_part);
            mma_parts<3>(state[1], f, parts + c * TENSOR_LINE + 16, x_part);
        }
    }
    UNROLL for (u32 e = 0; e < 16; e++) {
        const u32 r = own + g + e / 2 % 2 * 8, c = e / 4 * 8 + t2 + e % 2;
        if (a.to && live && c < wide) a.to[task * a.to_stride + (u64)r * d.dv + col + c] = state[e / 8][e / 4 % 2][e % 4];
    }
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
KERNEL(delta_forward_bf16, DeltaForwardArgs, THREADS, 2) { delta_forward<bf16>(a); }
KERNEL(delta_forward_f32, DeltaForwardArgs, THREADS, 1) { delta_forward<float>(a); }
KERNEL(delta_forward_tensor_bf16, DeltaForwardArgs, THREADS, 2) { delta_forward_tensor(a); }
KERNEL(delta_steps_bf16, DeltaForwardArgs, THREADS, 4) { delta_steps<bf16>(a); }
KERNEL(delta_steps_f32, DeltaForwardArgs, THREADS, 4) { delta_steps<float>(a); }
