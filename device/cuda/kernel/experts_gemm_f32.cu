// Products of experts in float32, with matrices of float32.
//apr:module target=sm_80 types=f32 roles=optional
#include "experts.cuh"
#include "gemm_f32.cuh"

template <bool BK> APR_DEVICE void experts_float(const ExpertArgs &x) {
    const i32 wide = (x.gemm.n + F32_N - 1) / F32_N;
    const Share s = share_of<F32_M>(x, (i32)block() / wide);
    if (s.expert < 0) return;
    const GemmArgs a = shift<4>(x, s);
    FloatSide<BK, F32_N> right;
    gemm_float_at<true, false, FloatSums>(a, right, s.tile * F32_M, (i32)block() % wide * F32_N);
}

KERNEL(experts_f32_nt, ExpertArgs, F32_THREADS, 3) { experts_float<true>(a); }
KERNEL(experts_f32_nn, ExpertArgs, F32_THREADS, 3) { experts_float<false>(a); }

// A block computes a tile of the gradient of an expert's matrix. Grid: (tiles, experts).
KERNEL(experts_f32_tn, ExpertArgs, F32_THREADS, 3) {
    const Share s = slots_of(a, (i32)block_y());
    if (s.rows == 0 && a.gemm.flags & GEMM_ADD) return;
    const i32 wide = (a.gemm.n + F32_N - 1) / F32_N;
    const GemmArgs g = shift_sums<4>(a, s);
    FloatSide<false, F32_N> right;
    gemm_float_at<false, false, FloatSums>(g, right, (i32)block() / wide * F32_M, (i32)block() % wide * F32_N);
}
