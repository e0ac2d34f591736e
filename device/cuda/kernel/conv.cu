// A causal convolution of each channel with SiLU, and its backward. See conv.go for the equations.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "swiglu.cuh"

constexpr u32 TAPS = 8; // most of them; inputs of a thread's window, the latest last

struct ConvArgs {
    const void *x;
    void *y;
    const float *w;
    const void *from; // zero: zeros
    void *to;         // zero: not wanted
    const i32 *first; // zero: documents are sequences
    i64 x_stride, y_stride, w_stride, from_stride, to_stride;
    u32 len, channels, taps;
    u32 rows; // of a block
};

// ConvWindow is what a thread knows of its channel: the taps and the latest inputs, which are zero before a document.
struct ConvWindow {
    float w[TAPS], x[TAPS];
    u32 live; // positions of the document in x
};

template <class T> APR_DEVICE void conv_taps(ConvWindow &v, const float *w, u32 taps) {
    UNROLL for (u32 j = 0; j < TAPS; j++) v.w[j] = j + taps >= TAPS ? w[j + taps - TAPS] : 0.0f;
}

// conv_shift makes room for the next input.
APR_DEVICE void conv_shift(ConvWindow &v) {
    UNROLL for (u32 j = 0; j + 1 < TAPS; j++) v.x[j] = v.x[j + 1];
}
// conv_forget drops what lies before a document's begin.
APR_DEVICE void conv_forget(ConvWindow &v) {
    UNROLL for (u32 j = 0; j < TAPS; j++) v.x[j] = 0;
    v.live = 0;
}
APR_DEVICE bool conv_begins(const i32 *first, u64 row, u32 at) { return at == 0 || (first && first[row] >= (i32)at); }

// conv_before fills the window with the inputs before position at of a sequence whose rows begin at x; first is that of the sequence.
template <class T> APR_DEVICE void conv_before(ConvWindow &v, const T *x, i64 stride, const i32 *first, const T *from, i64 from_stride, u32 at, u32 taps) {
    conv_forget(v);
    for (u32 back = taps - 1; back > 0; back--) { // the oldest first
        conv_shift(v);
        v.x[TAPS - 1] = 0;
        if (at >= back) {
            if (conv_begins(first, at - back, at - back) && (at > back || !from)) conv_forget(v);
            v.x[TAPS - 1] = load(x + (i64)(at - back) * stride);
            v.live++;
        } else if (from) {
            v.x[TAPS - 1] = load(from + (i64)(taps - 1 + at - back) * from_stride);
            v.live++;
        }
    }
}

APR_DEVICE float conv_sum(const ConvWindow &v, u32 taps) {
    float z = 0;
    UNROLL for (u32 j = 0; j < TAPS; j++)
        if (j + taps >= TAPS) z = fma_rn(v.w[j], v.x[j], z);
    return z;
}

// A thread has a channel of a block's rows.
template <class T> APR_DEVICE void conv(const ConvArgs &a) {
    const u32 c = block() * threads() + thread(), pieces = a.len ? (a.len + a.rows - 1) / a.rows : 1, seq = block_y() / pieces;
    if (c >= a.channels) return;
    const u32 lo = block_y() % pieces * a.rows, hi = (u32)min_of(a.len, lo + a.rows), k = a.taps - 1;
    const u64 row = (u64)seq * a.len;
    const T *x = (const T *)a.x + row * a.x_stride + c;
    const T *from = a.from ? (const T *)a.from + (u64)seq * k * a.from_stride + c : nullptr;
    const i32 *first = a.first ? a.first + row : nullptr;
    ConvWindow v;
    conv_taps<T>(v, a.w + c * a.w_stride, a.taps);
    conv_before(v, x, a.x_stride, first, from, a.from_stride, lo, a.taps);
    for (u32 t = lo; t < hi; t++) {
        if (first && t > 0 && conv_begins(first, t, t)) conv_forget(v);
        conv_shift(v);
        v.x[TAPS - 1] = load(x + t * a.x_stride);
        store((T *)a.y + (row + t) * a.y_stride + c, gated<T>(conv_sum(v, a.taps), 1.0f));
    }
    if (a.to && hi == a.len) {
        T *to = (T *)a.to + (u64)seq * k * a.to_stride + c;
        UNROLL for (u32 j = 1; j < TAPS; j++)
            if (j + k >= TAPS) store(to + (j + k - TAPS) * a.to_stride, v.x[j]);
    }
}

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
    for (u32 g = 0; g < a.groups; g++) sum += a.part[(u64)g * size + e];
    a.dw[e % a.channels * a.dw_stride + e / a.channels] += sum;
}

KERNEL(conv_bf16, ConvArgs, 128, 8) { conv<bf16>(a); }
KERNEL(conv_f32, ConvArgs, 128, 8) { conv<float>(a); }
KERNEL(conv_backward_bf16, ConvBackwardArgs, 128, 4) { conv_backward<bf16>(a); }
KERNEL(conv_backward_f32, ConvBackwardArgs, 128, 4) { conv_backward<float>(a); }
