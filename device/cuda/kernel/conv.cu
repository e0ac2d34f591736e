// A causal convolution of each channel with SiLU, and its backward. See conv.go for the equations.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "conv.cuh"

struct ConvBackwardArgs {
    const void *x, *dy;
    void *dx;
    const float *w;
    float *part; // [blocks in y, taps, channels]
    const i32 *first;
    i64 x_stride, dy_stride, dx_stride, w_stride;
    u32 len, channels, taps, rows;
};

// A thread goes over its channel's rows and some after them, which look back at these. d[j] collects the gradient of the input that
// stands at x[j].
template <class T> APR_DEVICE void conv_backward(const ConvBackwardArgs &a) {
    const u32 c = block() * threads() + thread(), pieces = (a.len + a.rows - 1) / a.rows;
    if (c >= a.channels) return;
    const u32 lo = block_y() % pieces * a.rows, hi = (u32)min_of(a.len, lo + a.rows), k = a.taps - 1;
    const u64 row = (u64)(block_y() / pieces) * a.len;
    const T *x = (const T *)a.x + row * a.x_stride + c, *dy = (const T *)a.dy + row * a.dy_stride + c;
    T *dx = (T *)a.dx + row * a.dx_stride + c;
    const i32 *first = a.first ? a.first + row : nullptr;
    ConvWindow v;
    conv_taps<T>(v, a.w + c * a.w_stride, a.taps);
    conv_before(v, x, a.x_stride, first, (const T *)nullptr, 0, lo, a.taps);
    float d[TAPS] = {}, dw[TAPS] = {};
    for (u32 t = lo; t < hi + k; t++) {
        UNROLL for (u32 j = 0; j + 1 < TAPS; j++) d[j] = d[j + 1];
        d[TAPS - 1] = 0;
        if (t < a.len) {
            if (first && t > 0 && conv_begins(first, t, t)) conv_forget(v);
            conv_shift(v);
            v.x[TAPS - 1] = load(x + t * a.x_stride);
            v.live++;
            const float z = conv_sum(v, a.taps), s = rcp_approx(1.0f + exp_minus(z, T()));
            const float dz = load(dy + t * a.dy_stride) * s * fma_rn(z, 1.0f - s, 1.0f);
            UNROLL for (u32 j = 0; j < TAPS; j++) {
                if (j + a.taps < TAPS) continue;
                if (TAPS - 1 - j < v.live) d[j] = fma_rn(v.w[j], dz, d[j]);
                if (t < hi) dw[j] = fma_rn(dz, v.x[j], dw[j]);
            }
        }
        if (t >= lo + k) {
            float done = 0;
            UNROLL for (u32 j = 0; j < TAPS; j++)
                if (j == TAPS - a.taps) done = d[j];
            store(dx + (i64)(t - k) * a.dx_stride, done);
        }
    }
    UNROLL for (u32 j = 0; j < TAPS; j++)
        if (j + a.taps >= TAPS) a.part[((u64)block_y() * a.taps + j + a.taps - TAPS) * a.channels + c] = dw[j];
}

// d[e][3+i] collects the gradient of row t+i of a step.
APR_DEVICE void conv_backward_four(const ConvBackwardArgs &a) {
    const u32 c = 2 * (block() * threads() + thread()), pieces = (a.len + a.rows - 1) / a.rows;
    if (c >= a.channels) return;
    const u32 lo = block_y() % pieces * a.rows, hi = (u32)min_of(a.len, lo + a.rows), end = (u32)min_of(a.len, hi + BEFORE);
    const u64 row = (u64)(block_y() / pieces) * a.len;
    const bf16 *x = (const bf16 *)a.x + row * a.x_stride + c, *dy = (const bf16 *)a.dy + row * a.dy_stride + c;
    bf16 *dx = (bf16 *)a.dx + row * a.dx_stride + c;
    const i32 *first = a.first ? a.first + row : nullptr;
    u32 next[STEP] = {}, next_dy[STEP] = {};
    conv_fetch(next, x, a.x_stride, lo, end);
    conv_fetch(next_dy, dy, a.dy_stride, lo, end);
    ConvPair v;
    v.before(a.w + c * a.w_stride, a.w_stride, x, a.x_stride, first, nullptr, 0, lo);
    float d[2][BEFORE + STEP] = {}, dw[2][FOUR] = {};
    NO_UNROLL for (u32 t = lo; t < hi + BEFORE; t += STEP) {
        u32 now[STEP];
        UNROLL for (u32 i = 0; i < STEP; i++) now[i] = next_dy[i];
        v.take(next);
        conv_fetch(next, x, a.x_stride, t + STEP, end);
        conv_fetch(next_dy, dy, a.dy_stride, t + STEP, end);
        UNROLL for (u32 i = 0; i < STEP; i++) {
            if (t + i >= hi + BEFORE) break;
            d[0][BEFORE + i] = d[1][BEFORE + i] = 0;
            if (t + i < end) {
                if (first && t + i > 0 && conv_begins(first, t + i, t + i)) v.forget(i);
                v.live++;
                UNROLL for (int e = 0; e < 2; e++) {
                    const float z = v.sum(e, i), s = rcp_approx(1.0f + exp_minus(z, bf16()));
                    const float dz = from_bits(e ? now[i] & 0xffff0000u : now[i] << 16) * s * fma_rn(z, 1.0f - s, 1.0f);
                    UNROLL for (u32 j = 0; j < FOUR; j++) {
                        if (BEFORE - j < v.live) d[e][i + j] = fma_rn(v.w[e][j], dz, d[e][i + j]);
                        if (t + i < hi) dw[e][j] = fma_rn(dz, v.x[e][i + j], dw[e][j]);
                    }
                }
            }
            if (t + i >= lo + BEFORE) *(u32 *)(dx + (i64)(t + i - BEFORE) * a.dx_stride) = pack_bf16(d[0][i], d[1][i]);
        }
        conv_shift_pair(v.x, STEP);
        conv_shift_pair(d, STEP);
    }
    UNROLL for (u32 j = 0; j < FOUR; j++)
        UNROLL for (int e = 0; e < 2; e++) a.part[((u64)block_y() * FOUR + j) * a.channels + c + e] = dw[e][j];
}

struct ConvWeightsArgs {
    float *dw;
    const float *part; // [groups, taps, channels]
    i64 dw_stride;
    u32 channels, taps, groups;
};

// dw[c][j] += Σ part[g][j][c], g ascending.
KERNEL(conv_weights, ConvWeightsArgs, 256, 4) {
    const u32 e = block() * threads() + thread(), size = a.taps * a.channels;
    if (e >= size) return;
    float sum = 0;
    u32 g = 0;
    NO_UNROLL for (; g + 16 <= a.groups; g += 16) { // loads in flight together
        float v[16];
        UNROLL for (u32 i = 0; i < 16; i++) v[i] = a.part[(u64)(g + i) * size + e];
        UNROLL for (u32 i = 0; i < 16; i++) sum += v[i];
    }
    NO_UNROLL for (; g < a.groups; g++) sum += a.part[(u64)g * size + e];
    a.dw[e % a.channels * a.dw_stride + e / a.channels] += sum;
}

KERNEL(conv_bf16, ConvArgs, 128, 8) { conv<bf16>(a); }
KERNEL(conv_bf16_four, ConvArgs, 128, 8) { conv_four(a); }
KERNEL(conv_f32, ConvArgs, 128, 8) { conv<float>(a); }
KERNEL(conv_backward_bf16, ConvBackwardArgs, 128, 4) { conv_backward<bf16>(a); }
KERNEL(conv_backward_bf16_four, ConvBackwardArgs, 128, 4) { conv_backward_four(a); }
KERNEL(conv_backward_f32, ConvBackwardArgs, 128, 4) { conv_backward<float>(a); }
