// Products of experts in bfloat16, with matrices of bfloat16.
//apr:module target=sm_80 types=bf16 roles=optional
#include "experts.cuh"
#include "gemm_bf16.cuh"

// A block computes a tile of BM slots of one expert by 64 columns; tiles of the same slots follow each other.
template <bool BK, int BM, int STAGES> APR_DEVICE void experts_bf16(const ExpertArgs &x) {
    const i32 wide = (x.gemm.n + 63) / 64;
    const Share s = share_of<BM>(x, (i32)block() / wide);
    if (s.expert < 0) return;
    const GemmArgs a = shift<2>(x, s);
    Side<BK, 64> right;
    gemm_bf16_at<true, BM, 64, STAGES>(a, right, s.tile * BM, (i32)block() % wide * 64);
}

KERNEL(experts_nt_128, ExpertArgs, GEMM_THREADS, 3) { experts_bf16<true, 128, 3>(a); }
KERNEL(experts_nt_32, ExpertArgs, GEMM_THREADS, 6) { experts_bf16<true, 32, 4>(a); }
KERNEL(experts_nn_128, ExpertArgs, GEMM_THREADS, 3) { experts_bf16<false, 128, 3>(a); }
KERNEL(experts_nn_32, ExpertArgs, GEMM_THREADS, 6) { experts_bf16<false, 32, 4>(a); }

// A block computes a tile of the gradient of an expert's matrix. Grid: (tiles, experts).
KERNEL(experts_tn, ExpertArgs, GEMM_THREADS, 3) {
    const Share s = slots_of(a, (i32)block_y());
    if (s.rows == 0 && a.gemm.flags & GEMM_ADD) return;
    const i32 wide = (a.gemm.n + 63) / 64;
    const GemmArgs g = shift_sums<2>(a, s);
    Side<false, 64> right;
    gemm_bf16_at<false, 128, 64, 3>(g, right, (i32)block() / wide * 128, (i32)block() % wide * 64);
}
