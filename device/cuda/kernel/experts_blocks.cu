// Products of experts in bfloat16, with matrices in quantised blocks.
//apr:module target=sm_80 types=bf16 roles=optional
#include "experts.cuh"
#include "experts_blocks.cuh"
#include "gemm_bf16.cuh"

// BlocksSide is b, 64 columns of c, in blocks, laid out in shared memory as Side has it. fetch loads what a tile needs of them, settle
// decodes it: loads are in flight while the tile before is multiplied.
template <bool KMAJOR> struct BlocksSide : Side<KMAJOR, 64> {
    typedef Side<KMAJOR, 64> Base;
    static constexpr int PACKS = 64 * TILE_K / 8 / GEMM_THREADS;             // of a thread, neighbours
    static constexpr int PER_ROW = (KMAJOR ? TILE_K : 64) / 8 / PACKS;       // threads of a row of the tile
    static_assert(4 % PACKS == 0, "a thread's packs are of one group");
    static constexpr bool SETTLES = true;
    HeldBlocks<PACKS> held;
    const u8 *w;
    u32 type, at; // of the operand as stored: first pack of the thread

    APR_METHOD explicit BlocksSide(u32 t) : type(t) {}
    APR_METHOD void begin(const void *p, i64 ld, i32 n, i32 k, i32 first, i32 part, bool left, bool vec) {
        Base::begin(p, 0, n, k, first, part, left, vec);
        const int r = thread() / PER_ROW;
        this->row = r + (KMAJOR ? first : 0), this->stride = ld;
        at = thread() % PER_ROW * PACKS + (KMAJOR ? 0 : first / 8);
        w = (const u8 *)p + this->row * ld;
    }
    APR_METHOD void fetch(u8 *) {
        held.load(type, w, at, this->row < this->rows && 8 * at < (u32)this->cols);
        if (KMAJOR) at += TILE_K / 8;
        else this->row += TILE_K, w += TILE_K * this->stride;
    }
    APR_METHOD void settle(u8 *tile) {
        const int r = thread() / PER_ROW, c = thread() % PER_ROW * PACKS;
        held.decode(type, [&](const float (&x)[8], int i) {
            Pack<bf16, 8> v;
            narrow(v, x);
            store_pack((bf16 *)(tile + r * Base::ROW_BYTES + (((c + i) ^ Base::swizzle(r)) << 4)), v);
        });
    }
};

template <bool BK, int BM, int STAGES> APR_DEVICE void experts_blocks(const ExpertArgs &x) {
    const i32 wide = (x.gemm.n + 63) / 64;
    const Share s = share_of<BM>(x, (i32)block() / wide);
    if (s.expert < 0) return;
    const GemmArgs a = shift<2>(x, s);
    BlocksSide<BK> right(x.type);
    gemm_bf16_at<true, BM, 64, STAGES>(a, right, s.tile * BM, (i32)block() % wide * 64);
}

KERNEL(experts_blocks_nt_128, ExpertArgs, GEMM_THREADS, 3) { experts_blocks<true, 128, 3>(a); }
KERNEL(experts_blocks_nt_32, ExpertArgs, GEMM_THREADS, 5) { experts_blocks<true, 32, 3>(a); }
KERNEL(experts_blocks_nn, ExpertArgs, GEMM_THREADS, 3) { experts_blocks<false, 128, 3>(a); }
