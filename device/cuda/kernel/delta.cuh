// The gated delta rule by chunks of 64 positions: what its forward and its backward share. See delta.go for the equations and
// for what each kernel does.
//
// q and k lie in shared memory as they are stored, and are normalised where they are used: the factors rq and rk of a position
// are taken out of each sum. With c = chunk, m_ij = e^(G_i−G_j) for positions j ≤ i of one document, else 0.
#pragma once
#include "delta_gates.cuh"

constexpr u32 CHUNK = 64, THREADS = 256;
constexpr u32 PAIR = CHUNK + 1;            // distance of rows of m∘kkᵀ and m∘qkᵀ in shared memory
constexpr u32 PAIRS = 2 * CHUNK * CHUNK; // floats of both in memory
constexpr u32 SOLVE = 8;                   // rows of a triangular system that are solved one after the other

struct DeltaRule {
    const void *u, *ba;
    const float *log_a, *dt;
    const i32 *first; // zero: documents are sequences
    i64 u_stride, ba_stride;
    u32 len, key_heads, value_heads, dk, dv;
    u32 goes_on;      // something is carried to the first position of a sequence
    u32 chunk, chunks; // those of the launch
    u32 total;         // chunks of a sequence
    u32 pitch;         // distance of rows of q and k in shared memory
};

// DeltaScalars are numbers of the positions of a chunk, at the begin of a kernel's shared memory.
struct DeltaScalars {
    double total[CHUNK]; // G
    float beta[CHUNK], g[CHUNK], slope[CHUNK]; // slope is σ(a + dt)
    float rq[CHUNK], rk[CHUNK];                // 1/√(Σq²+ε)/√dk and 1/√(Σk²+ε)
    float decay[CHUNK], end[CHUNK];            // from before the chunk, to its end; 0 across documents
    float f[CHUNK], h[CHUNK];                  // what a kernel makes of these
    i32 begin[CHUNK];                          // of the document; −1: before the chunk
};

// product adds Σ_t a_r[t·a_step]·b_c[t·b_step]·f[t] to each acc[r][c]; f zero: ones.
template <int R, int C, class A, class B>
APR_DEVICE void product(float (&acc)[R][C], const A *const (&a)[R], u32 a_step, const B *const (&b)[C], u32 b_step, u32 n, const float *f = nullptr) {
    for (u32 t = 0; t < n; t++) {
        float x[R], y[C];
        UNROLL for (int r = 0; r < R; r++) x[r] = load(a[r] + t * a_step);
        UNROLL for (int c = 0; c < C; c++) y[c] = load(b[c] + t * b_step);
        if (f) UNROLL for (int c = 0; c < C; c++) y[c] *= f[t];
        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int c = 0; c < C; c++) acc[r][c] = fma_rn(x[r], y[c], acc[r][c]);
    }
}
// places sets p[i] = base + (first + i·step)·stride, with numbers of rows beyond the last taken to be the last.
template <int N, class T> APR_DEVICE void places(const T *(&p)[N], const T *base, u32 first, u32 step, u32 stride, u32 rows) {
    UNROLL for (int i = 0; i < N; i++) p[i] = base + (u32)min_of(first + i * step, rows - 1) * stride;
}

APR_DEVICE u32 positions(const DeltaRule &d, u32 chunk) { return (u32)min_of(CHUNK, d.len - chunk * CHUNK); }

// load_units puts q and k of a key head into shared memory, zeros beyond n positions, and their factors. A warp has a row.
template <class T> APR_DEVICE void load_units(const DeltaRule &d, DeltaScalars &s, T *q, T *k, u64 row, u32 n, u32 key) {
    const float root = 1.0f / sqrt_rn((float)d.dk);
    for (u32 i = warp(); i < CHUNK; i += THREADS / 32) {
        const T *uq = (const T *)d.u + (row + i) * d.u_stride + (u64)key * d.dk, *uk = uq + (u64)d.key_heads * d.dk;
        float sq = 0, sk = 0;
        for (u32 c = lane(); c < d.dk; c += 32) {
            T x = 0, y = 0;
            if (i < n) x = uq[c], y = uk[c];
            q[i * d.pitch + c] = x;
            k[i * d.pitch + c] = y;
            sq = fma_rn(load(&x), load(&x), sq);
            sk = fma_rn(load(&y), load(&y), sk);
        }
        sq = warp_sum(sq), sk = warp_sum(sk);
        if (lane() == 0) s.rq[i] = root / sqrt_rn(sq + 1e-6f), s.rk[i] = 1.0f / sqrt_rn(sk + 1e-6f);
    }
}

// load_scalars computes β, the decays and where documents begin, for a value head. It ends with a barrier, and begins after
// one behind which nobody reads s.
template <class T> APR_DEVICE void load_scalars(const DeltaRule &d, DeltaScalars &s, u64 row, u32 chunk, u32 n, u32 head) {
    const u32 i = thread(), at = chunk * CHUNK + i;
    if (i < CHUNK) {
        float b = 0, soft = 0;
        if (i < n) {
            const T *ba = (const T *)d.ba + (row + i) * d.ba_stride + head;
            b = load(ba), soft = load(ba + d.value_heads) + d.dt[head];
        }
        s.beta[i] = i < n ? sigmoid(b) : 0.0f;
        s.g[i] = i < n ? -exp_exact(d.log_a[head]) * softplus(soft) : 0.0f;
        s.slope[i] = sigmoid(soft);
        s.begin[i] = i < n && ((at == 0 && !d.goes_on) || (d.first && d.first[row + i] >= (i32)at));
    }
    sync_block();
    double sum = 0;
    i32 begin = -1;
    if (i < CHUNK) { // two warps: up to each position, and in the second what the first one has besides
        sum = s.g[i], begin = s.begin[i] ? (i32)i : -1;
        UNROLL for (u32 m = 1; m < 32; m *= 2) {
            const u32 from = (lane() - m) % 32;
            const double before = shfl(sum, (int)from);
            const i32 earlier = shfl(begin, (int)from);
            if (lane() < m) continue;
            sum += before;
            if (earlier > begin) begin = earlier;
        }
        const double all = warp_sum((double)s.g[lane()]);
        i32 last = s.begin[lane()] ? (i32)lane() : -1;
        UNROLL for (int m = 16; m; m /= 2) {
            const i32 other = shfl_xor(last, m);
            if (other > last) last = other;
        }
        if (warp()) sum += all, begin = begin < 0 ? last : begin;
    }
    sync_block();
    if (i < CHUNK) {
        s.total[i] = sum;
        s.begin[i] = begin;
        s.decay[i] = begin < 0 ? exp_exact((float)sum) : 0.0f;
    }
    sync_block();
    if (i < CHUNK) s.end[i] = i < n && (i32)i >= s.begin[n - 1] ? exp_exact((float)(s.total[n - 1] - s.total[i])) : 0.0f;
    sync_block();
}

// decay_between returns m_ij, without branches, so that the exponentials of a thread go on beside each other.
APR_DEVICE float decay_between(const DeltaScalars &s, u32 i, u32 j) {
    const float x = (float)(s.total[i] - s.total[j]); // above 0 where j > i
    const float e = exp_exact<false>(x < -87.0f ? -87.0f : x > 0.0f ? 0.0f : x);
    const bool counts = (j <= i) & ((i32)j >= s.begin[i]) & !(x < -87.0f);
    return counts ? e : 0.0f;
}

// load_pair reads one of the matrices that delta_pairs wrote: m∘kkᵀ below the diagonal, or m∘qkᵀ.
APR_DEVICE void load_pair(float *to, const float *from) {
    for (u32 e = thread(); e < CHUNK * CHUNK; e += THREADS) to[e / CHUNK * PAIR + e % CHUNK] = from[e];
}

// load_slice reads rows of `wide` of W columns into rows of W+1; zeros beyond, and beyond rows of all.
template <u32 W, class T> APR_DEVICE void load_slice(float *to, const T *from, i64 stride, u32 rows, u32 all, u32 wide) {
    for (u32 e = thread(); e < all * W; e += THREADS) {
        const u32 r = e / W, c = e % W;
        to[r * (W + 1) + c] = r < rows && c < wide ? load(from + r * stride + c) : 0.0f;
    }
}
template <u32 W> APR_DEVICE void store_slice(float *to, const float *from, i64 stride, u32 rows, u32 wide) {
    for (u32 e = thread(); e < rows * W; e += THREADS) {
        const u32 r = e / W, c = e % W;
        if (c < wide) to[r * stride + c] = from[r * (W + 1) + c];
    }
}

// Rows r0 … r0+7 of x = β·(r − m∘kkᵀ·x), where x holds β·r: forwards_others takes the rows above, which are done, with SOLVE·W
// threads i, and after a barrier forwards_own those of the eight themselves, with W threads c.
template <u32 W> APR_DEVICE void forwards_others(float *x, const float *kk, const DeltaScalars &s, u32 r0, u32 i) {
    const u32 row = r0 + i / W, c = i % W;
    float sum = 0;
    for (u32 j = 0; j < r0; j++) sum = fma_rn(kk[row * PAIR + j], x[j * (W + 1) + c], sum);
    x[row * (W + 1) + c] -= s.beta[row] * sum;
}
template <u32 W> APR_DEVICE void forwards_own(float *x, const float *kk, const DeltaScalars &s, u32 r0, u32 c) {
    float v[SOLVE];
    UNROLL for (u32 i = 0; i < SOLVE; i++) {
        float sum = 0;
        UNROLL for (u32 j = 0; j < i; j++) sum = fma_rn(kk[(r0 + i) * PAIR + r0 + j], v[j], sum);
        v[i] = x[(r0 + i) * (W + 1) + c] - s.beta[r0 + i] * sum;
        x[(r0 + i) * (W + 1) + c] = v[i];
    }
}
// The same of y = z − (m∘kkᵀ)ᵀ·βy from the rows below.
template <u32 W> APR_DEVICE void backwards_others(float *y, const float *kk, const DeltaScalars &s, u32 r0, u32 n, u32 i) {
    const u32 row = r0 + i / W, c = i % W;
    float sum = 0;
    for (u32 j = r0 + SOLVE; j < n; j++) sum = fma_rn(kk[j * PAIR + row], s.beta[j] * y[j * (W + 1) + c], sum);
    y[row * (W + 1) + c] -= sum;
}
template <u32 W> APR_DEVICE void backwards_own(float *y, const float *kk, const DeltaScalars &s, u32 r0, u32 c) {
    float v[SOLVE];
    UNROLL for (i32 i = SOLVE - 1; i >= 0; i--) {
        float sum = 0;
        UNROLL for (u32 j = i + 1; j < SOLVE; j++) sum = fma_rn(kk[(r0 + j) * PAIR + r0 + i], v[j], sum);
        const float own = y[(r0 + i) * (W + 1) + c] - sum;
        y[(r0 + i) * (W + 1) + c] = own;
        v[i] = s.beta[r0 + i] * own;
    }
}
