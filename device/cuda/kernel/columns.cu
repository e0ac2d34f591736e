// Sums over the rows of a matrix, in a fixed order that depends on its shape alone.
//apr:module target=sm_80 types=bf16,f32 roles=train
#include "apr.cuh"

struct ColumnSumArgs {
    float *sum;
    const float *part; // [groups, cols]
    u32 groups, cols;
};

// sum[c] += Σ_g part[g][c]. A block has 32 columns; warp w adds groups w, w+8, w+16, …, and the warps' sums are added in
// ascending order.
KERNEL(column_sum, ColumnSumArgs, 256, 4) {
    SHARED(float, sums, 8 * 32);
    const u32 c = block() * 32 + lane();
    float s = 0;
    if (c < a.cols) {
        const float *p = a.part + c;
        u32 g = warp();
        for (; g + 56 < a.groups; g += 64) {
            float v[8];
            UNROLL for (u32 k = 0; k < 8; k++) v[k] = p[(u64)(g + 8 * k) * a.cols];
            UNROLL for (u32 k = 0; k < 8; k++) s += v[k];
        }
        for (; g < a.groups; g += 8) s += p[(u64)g * a.cols];
    }
    sums[thread()] = s;
    sync_block();
    if (warp() == 0 && c < a.cols) {
        float all = sums[lane()];
        UNROLL for (u32 w = 1; w < 8; w++) all += sums[w * 32 + lane()];
        a.sum[c] += all;
    }
}

struct BiasGradArgs {
    const void *dy;
    float *part; // [groups, cols]
    i64 stride;
    u32 rows, cols, per_group;
};

// part[g][c] = Σ dy[r][c] over the rows of group g = block_y. A block has 32·E columns; warp w adds rows w, w+8, … of the
// group, and the warps' sums are added in ascending order.
template <class T, int E> APR_DEVICE void bias_grad(const BiasGradArgs &a) {
    SHARED(float, sums, 8 * 32 * E);
    const u32 c = (block() * 32 + lane()) * E;
    const u32 end = (u32)min_of(a.rows, (i64)(block_y() + 1) * a.per_group);
    float s[E] = {};
    if (c < a.cols) {
        const T *p = (const T *)a.dy + c;
        u32 r = block_y() * a.per_group + warp();
        for (; r + 24 < end; r += 32) {
            Pack<T, E> v[4];
            UNROLL for (u32 k = 0; k < 4; k++) load_pack(v[k], p + (r + 8 * k) * a.stride);
            UNROLL for (u32 k = 0; k < 4; k++) {
                float x[E];
                widen(x, v[k]);
                UNROLL for (int e = 0; e < E; e++) s[e] += x[e];
            }
        }
        for (; r < end; r += 8) {
            Pack<T, E> v;
            float x[E];
            load_pack(v, p + r * a.stride);
            widen(x, v);
            UNROLL for (int e = 0; e < E; e++) s[e] += x[e];
        }
    }
    UNROLL for (int e = 0; e < E; e++) sums[e * 256 + thread()] = s[e];
    sync_block();
    if (warp() == 0 && c < a.cols) {
        float *out = a.part + (u64)block_y() * a.cols + c;
        UNROLL for (int e = 0; e < E; e++) {
            float all = sums[e * 256 + lane()];
            UNROLL for (u32 w = 1; w < 8; w++) all += sums[e * 256 + w * 32 + lane()];
            out[e] = all;
        }
    }
}

KERNEL(bias_grad_bf16_8, BiasGradArgs, 256, 4) { bias_grad<bf16, 8>(a); }
KERNEL(bias_grad_bf16_1, BiasGradArgs, 256, 4) { bias_grad<bf16, 1>(a); }
KERNEL(bias_grad_f32_8, BiasGradArgs, 256, 3) { bias_grad<float, 8>(a); }
KERNEL(bias_grad_f32_1, BiasGradArgs, 256, 4) { bias_grad<float, 1>(a); }
