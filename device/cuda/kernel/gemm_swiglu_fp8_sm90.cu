// The product under a gated layer's activation in 8-bit floats. See gemm_swiglu_fp8_sm90.go.
//apr:module target=sm_90a types=bf16 roles=fp8
#define INNER 128
#define WGMMA(a, b, more) "wgmma.mma_async.sync.aligned.m64n256k32.f32.e4m3.e4m3 {" SUMS "}, " a ", " b ", " more ", 1, 1;\n"
#include "gemm_swiglu.cuh"

struct __attribute__((aligned(64))) GemmSwigluE4M3Args {
    u8 x[128], w[128], m[128];      // tensor maps
    const float *x_scale, *w_scale; // of rows of x and w
    i64 x_stride, w_stride;         // from one scale to the next
    i32 rows, f, k;
    i32 group, lead; // as of GemmSwigluArgs
};

// RowScales are the factors of a warpgroup's sums: those of its rows of x and of its rows of w. A thread reads two of each
// before the tile is multiplied.
struct RowScales {
    static constexpr bool SPLIT = true;
    float x[2], gate, up;
    // load reads for 64 rows from `row` on and 128 columns from `col` on: of x for rows r and r+8 of the thread's sums, of w
    // for one column of gate and of up.
    APR_METHOD void load(const GemmSwigluE4M3Args &a, i32 row, i32 col) {
        const u32 t = thread() & 127;
        const i32 r = row + (i32)((t >> 5) * 16 + (t & 31) / 4), c = col + (i32)t;
        x[0] = r < a.rows ? a.x_scale[r * a.x_stride] : 0.0f;
        x[1] = r + 8 < a.rows ? a.x_scale[(r + 8) * a.x_stride] : 0.0f;
        gate = c < a.f ? a.w_scale[c * a.w_stride] : 0.0f;
        up = c < a.f ? a.w_scale[(a.f + c) * a.w_stride] : 0.0f;
    }
    // apply multiplies the sums. The factors of columns pass through the second piece of results, which is free now and
    // which nobody writes before the barrier of the first.
    APR_METHOD void apply(float (&d)[128], const Staging<2> &out) {
        const u32 t = thread() & 127, at = out.at + PIECE;
        store_shared(at + t * 4, gate);
        store_shared(at + 512 + t * 4, up);
        sync_some(out.id, 128);
        UNROLL for (int i = 0; i < 128; i += 4) { // columns 2i and 2i+1 of 8, first of the gate
            const f32x2 w = load_shared(at + i * 8 + (lane() & 3) * 8);
            UNROLL for (int e = 0; e < 4; e++) d[i + e] = d[i + e] * x[e / 2] * w[e & 1];
        }
    }
};

KERNEL(gemm_swiglu_e4m3, GemmSwigluE4M3Args, 384, 1) {
    u64 maps;
    ARGUMENT(gemm_swiglu_e4m3, maps);
    gemm_swiglu<RowScales, false>(a, maps);
}
