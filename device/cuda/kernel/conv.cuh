// A causal convolution of each channel with SiLU. See conv.go for the equations.
#pragma once
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

// Four taps, of two neighbouring channels of a thread in bfloat16: STEP rows are loaded together, ahead of those that are computed. Bits
// are those of conv and conv_backward.
constexpr u32 FOUR = 4, BEFORE = FOUR - 1, STEP = 8;

// ConvPair is what a thread knows of two channels: rows t−3 … t+STEP−1 of x.
struct ConvPair {
    float w[2][FOUR], x[2][BEFORE + STEP];
    u32 live; // positions of the document before the next one, at most

    // before fills in what stands before row at: see conv_before.
    APR_METHOD void before(const float *taps, i64 w_stride, const bf16 *rows, i64 stride, const i32 *first, const bf16 *from, i64 from_stride, u32 at) {
        UNROLL for (int e = 0; e < 2; e++) {
            ConvWindow v;
            conv_before(v, rows + e, stride, first, from ? from + e : from, from_stride, at, FOUR);
            UNROLL for (u32 j = 0; j < FOUR; j++) w[e][j] = taps[e * w_stride + j];
            UNROLL for (u32 j = 0; j < BEFORE; j++) x[e][j] = v.x[TAPS - BEFORE + j];
            live = v.live;
        }
    }
    APR_METHOD void take(const u32 (&rows)[STEP]) {
        UNROLL for (u32 i = 0; i < STEP; i++) x[0][BEFORE + i] = from_bits(rows[i] << 16), x[1][BEFORE + i] = from_bits(rows[i] & 0xffff0000u);
    }
    // forget drops what stands before row i of the step, where a document begins.
    APR_METHOD void forget(u32 i) {
        UNROLL for (int e = 0; e < 2; e++)
            UNROLL for (u32 j = 0; j < BEFORE; j++) x[e][i + j] = 0;
        live = 0;
    }
    APR_METHOD float sum(int e, u32 i) const {
        float z = 0;
        UNROLL for (u32 j = 0; j < FOUR; j++) z = fma_rn(w[e][j], x[e][i + j], z);
        return z;
    }
};

// conv_fetch loads rows t … t+STEP−1 of two channels, as far as they are below end.
APR_DEVICE void conv_fetch(u32 (&to)[STEP], const bf16 *x, i64 stride, u32 t, u32 end) {
    UNROLL for (u32 i = 0; i < STEP; i++)
        if (t + i < end) to[i] = *(const u32 *)(x + (i64)(t + i) * stride);
}

// conv_shift_pair moves the last values of n rows to where those before a step stand.
APR_DEVICE void conv_shift_pair(float (&x)[2][BEFORE + STEP], u32 n) {
    UNROLL for (int e = 0; e < 2; e++)
        UNROLL for (u32 j = 0; j < BEFORE; j++) {
            float v = x[e][STEP + j];
            if (n < STEP)
                UNROLL for (u32 i = 1; i < STEP; i++)
                    if (i == n) v = x[e][i + j];
            x[e][j] = v;
        }
}

APR_DEVICE void conv_four(const ConvArgs &a) {
    const u32 c = 2 * (block() * threads() + thread()), pieces = a.len ? (a.len + a.rows - 1) / a.rows : 1, seq = block_y() / pieces;
    if (c >= a.channels) return;
    const u32 lo = block_y() % pieces * a.rows, hi = (u32)min_of(a.len, lo + a.rows);
    const u64 row = (u64)seq * a.len;
    const bf16 *x = (const bf16 *)a.x + row * a.x_stride + c;
    bf16 *y = (bf16 *)a.y + row * a.y_stride + c;
    const i32 *first = a.first ? a.first + row : nullptr;
    u32 next[STEP] = {};
    conv_fetch(next, x, a.x_stride, lo, hi);
    ConvPair v;
    v.before(a.w + c * a.w_stride, a.w_stride, x, a.x_stride, first, a.from ? (const bf16 *)a.from + (u64)seq * BEFORE * a.from_stride + c : nullptr, a.from_stride, lo);
    NO_UNROLL for (u32 t = lo; t < hi; t += STEP) {
        v.take(next);
        conv_fetch(next, x, a.x_stride, t + STEP, hi);
        UNROLL for (u32 i = 0; i < STEP; i++) {
            if (t + i >= hi) break;
            if (first && t + i > 0 && conv_begins(first, t + i, t + i)) v.forget(i);
            *(u32 *)(y + (i64)(t + i) * a.y_stride) = pack_bf16(gated<bf16>(v.sum(0, i), 1.0f), gated<bf16>(v.sum(1, i), 1.0f));
        }
        conv_shift_pair(v.x, hi - t);
    }
    if (a.to && hi == a.len) {
        bf16 *to = (bf16 *)a.to + (u64)seq * BEFORE * a.to_stride + c;
        UNROLL for (u32 j = 0; j < BEFORE; j++)
            UNROLL for (int e = 0; e < 2; e++) store(to + j * a.to_stride + e, v.x[e][j]);
    }
}
