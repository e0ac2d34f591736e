// Products of experts in float32, with matrices in quantised blocks.
//apr:module target=sm_80 types=f32 roles=optional
#include "experts.cuh"
#include "experts_blocks.cuh"
#include "gemm_f32.cuh"

// FloatBlocks is b, 64 columns of c, in blocks: a thread has a pack of 8 values of a tile.
template <bool KMAJOR> struct FloatBlocks {
    static constexpr int STRIDE = F32_N + F32_PAD;
    static_assert(F32_N * F32_K / 8 == F32_THREADS, "a pack for each thread");
    HeldBlocks<1> held;
    u32 type;

    APR_METHOD explicit FloatBlocks(u32 t) : type(t) {}
    APR_METHOD void load(const void *p, i64 ld, i32 n, i32 k, i32 first, i32 k0, bool) {
        const i32 row = KMAJOR ? first + (i32)thread() % F32_N : k0 + (i32)thread() / (F32_N / 8);
        const i32 col = KMAJOR ? k0 + (i32)thread() / F32_N * 8 : first + (i32)thread() % (F32_N / 8) * 8;
        held.load(type, (const u8 *)p + row * ld, (u32)col / 8, row < (KMAJOR ? n : k) && col < (KMAJOR ? k : n));
    }
    template <bool TF> APR_METHOD void put(float *tile) const {
        static_assert(!TF, "products of blocks are exact");
        held.decode(type, [&](const float (&x)[8], int) {
            if (KMAJOR) {
                float *to = tile + thread() / F32_N * 8 * STRIDE + thread() % F32_N;
                UNROLL for (int e = 0; e < 8; e++) to[e * STRIDE] = x[e];
            } else {
                Pack<float, 8> v;
                narrow(v, x);
                store_pack(tile + thread() / (F32_N / 8) * STRIDE + thread() % (F32_N / 8) * 8, v);
            }
        });
    }
};

template <bool BK> APR_DEVICE void experts_float_blocks(const ExpertArgs &x) {
    const i32 wide = (x.gemm.n + F32_N - 1) / F32_N;
    const Share s = share_of<F32_M>(x, (i32)block() / wide);
    if (s.expert < 0) return;
    const GemmArgs a = shift<4>(x, s);
    FloatBlocks<BK> right(x.type);
    gemm_float_at<true, false, FloatSums>(a, right, s.tile * F32_M, (i32)block() % wide * F32_N);
}

KERNEL(experts_f32_blocks_nt, ExpertArgs, F32_THREADS, 3) { experts_float_blocks<true>(a); }
KERNEL(experts_f32_blocks_nn, ExpertArgs, F32_THREADS, 3) { experts_float_blocks<false>(a); }
