// Numbers of type e4m3: sign, 4 bits of exponent, 3 of mantissa; the largest is 448.
#pragma once
#include "clampglu.cuh"
#include "dequant.cuh"
#include "sigmoidglu.cuh"

// pack8 rounds eight numbers.
APR_DEVICE u32x2 pack8(const float (&x)[8], float scale) {
    u32x2 r;
    UNROLL for (int i = 0; i < 2; i++)
        r[i] = pack_e4m3(x[4 * i] * scale, x[4 * i + 1] * scale) | (u32)pack_e4m3(x[4 * i + 2] * scale, x[4 * i + 3] * scale) << 16;
    return r;
}

// E4M3Scale is what e4m3 numbers of values up to amax are multiplied by to get the values back, and its inverse; both are 1
// for zeros, and for numbers so small that the inverse would overflow, which become zeros.
struct E4M3Scale {
    float scale, inverse;
    APR_METHOD E4M3Scale(float amax) : scale(1), inverse(1) {
        if (amax >= 0x1p-100f) scale = amax / 448, inverse = 1 / scale;
    }
};

APR_DEVICE float absmax8(const float (&x)[8], float amax) {
    UNROLL for (int i = 0; i < 8; i++) amax = max2(amax, __builtin_fabsf(x[i]));
    return amax;
}

// warps_max returns the maximum of v in N neighbouring warps, a power of two, of those of the thread.
APR_DEVICE float warps_max(float v, float *part, u32 n) {
    v = warp_max(v);
    sync_block();
    if (lane() == 0) part[warp()] = v;
    sync_block();
    float s = 0;
    for (u32 i = warp() & ~(n - 1), end = i + n; i < end; i++) s = max2(s, part[i]);
    return s;
}

// block_max is block_sum of apr.cuh for maxima.
APR_DEVICE float block_max(float v, float *part) { return warps_max(v, part, threads() / 32); }

struct QuantizeRowsArgs {
    u8 *dst;
    float *scale;
    const bf16 *x;
    i64 dst_stride, x_stride, scale_stride;
    u32 rows, packs; // packs: of 8 values in a row
    u32 shift;       // 2^shift warps have a row together, at most 8
};

// Plain is a pack of x, Gated one of act(g)·u, rounded to bfloat16, of rows [g|u].
struct Plain {
    Pack<bf16, 8> x;
    APR_METHOD void load(const QuantizeRowsArgs &, const bf16 *p) { load_pack(x, p); }
    APR_METHOD Pack<bf16, 8> value() const { return x; }
};
template <class Act> struct Gated {
    Pack<bf16, 8> g, u;
    APR_METHOD void load(const QuantizeRowsArgs &a, const bf16 *p) {
        load_pack(g, p);
        load_pack(u, p + a.packs * 8);
    }
    APR_METHOD Pack<bf16, 8> value() const {
        float x[8], y[8];
        widen(x, g);
        widen(y, u);
        UNROLL for (int i = 0; i < 8; i++) y[i] = Act::template gated<bf16>(x[i], y[i]);
        Pack<bf16, 8> v;
        narrow(v, y);
        return v;
    }
};

// quantize_row converts the row of a team of threads, the first N packs of each of which stay in registers between the
// two passes. Where there are no N, or no row, what is loaded is there and is not written: so that loads wait for
// nothing, not even for each other's conditions.
template <class SOURCE, u32 N> APR_DEVICE void quantize_row(const QuantizeRowsArgs &a, u32 team) {
    SHARED(float, part, 8);
    const u32 first = thread() & (team - 1), row = block() << (3 - a.shift) | warp() >> a.shift;
    const u64 at = min_of(row, a.rows - 1);
    const bf16 *x = a.x + at * a.x_stride;
    u8 *dst = a.dst + at * a.dst_stride;
    SOURCE in[N];
    Pack<bf16, 8> kept[N];
    float amax = 0, v[8];
    UNROLL for (u32 k = 0; k < N; k++) in[k].load(a, x + min_of(k * team + first, a.packs - 1) * 8);
    UNROLL for (u32 k = 0; k < N; k++) {
        kept[k] = in[k].value();
        widen(v, kept[k]);
        amax = absmax8(v, amax);
    }
    for (u32 c = N * team + first; c < a.packs; c += team) {
        in[0].load(a, x + c * 8);
        widen(v, in[0].value());
        amax = absmax8(v, amax);
    }
    const E4M3Scale s(warps_max(amax, part, 1u << a.shift));
    if (row >= a.rows) return;
    if (first == 0) a.scale[at * a.scale_stride] = s.scale;
    UNROLL for (u32 k = 0; k < N; k++) {
        if (k * team + first >= a.packs) continue;
        widen(v, kept[k]);
        *(u32x2 *)(dst + (k * team + first) * 8) = pack8(v, s.inverse);
    }
    for (u32 c = N * team + first; c < a.packs; c += team) {
        in[0].load(a, x + c * 8);
        widen(v, in[0].value());
        *(u32x2 *)(dst + c * 8) = pack8(v, s.inverse);
    }
}

// quantize_rows: a block has as many rows as its 8 warps serve. Few threads have a short row, or it would be blocks that
// begin and end that take the time.
template <class SOURCE> APR_DEVICE void quantize_rows(const QuantizeRowsArgs &a) {
    const u32 team = 32u << a.shift;
    if (a.packs <= 3 * team) quantize_row<SOURCE, 3>(a, team);
    else quantize_row<SOURCE, 4>(a, team);
}

KERNEL(quantize_rows_e4m3, QuantizeRowsArgs, 256, 4) { quantize_rows<Plain>(a); }
KERNEL(quantize_swiglu_e4m3, QuantizeRowsArgs, 256, 3) { quantize_rows<Gated<SiLU>>(a); }
KERNEL(quantize_geglu_e4m3, QuantizeRowsArgs, 256, 3) { quantize_rows<Gated<GELUTanh>>(a); }
KERNEL(quantize_clampglu_e4m3, QuantizeRowsArgs, 256, 3) { quantize_rows<Gated<ClampedSiLU>>(a); }
KERNEL(quantize_sigmoidglu_e4m3, QuantizeRowsArgs, 256, 3) { quantize_rows<Gated<Sigmoid>>(a); }

struct ScaleRowsArgs {
    void *y;
    const float *scale, *bias; // bias zero: none
    i64 y_stride, scale_stride;
    u32 packs, items; // packs of 8 values of a row, of all rows
};

// A thread has 4 packs.
template <class T> APR_DEVICE void scale_rows(const ScaleRowsArgs &a) {
    const u32 first = block() * 1024 + thread();
    Pack<T, 8> v[4];
    UNROLL for (u32 k = 0; k < 4; k++) {
        const u32 item = first + k * 256, row = item / a.packs;
        if (item < a.items) load_pack(v[k], (const T *)a.y + row * a.y_stride + (item - row * a.packs) * 8);
    }
    UNROLL for (u32 k = 0; k < 4; k++) {
        const u32 item = first + k * 256, row = item / a.packs, c = (item - row * a.packs) * 8;
        if (item >= a.items) continue;
        const float s = a.scale[row * a.scale_stride];
        Pack<float, 8> b = {};
        if (a.bias) load_pack(b, a.bias + c);
        float x[8], y[8];
        widen(x, v[k]);
        widen(y, b);
        UNROLL for (int i = 0; i < 8; i++) x[i] = fma_rn(x[i], s, y[i]);
        narrow(v[k], x);
        store_pack((T *)a.y + row * a.y_stride + c, v[k]);
    }
}

KERNEL(scale_rows_bf16, ScaleRowsArgs, 256, 4) { scale_rows<bf16>(a); }
KERNEL(scale_rows_f32, ScaleRowsArgs, 256, 4) { scale_rows<float>(a); }

struct ScaleE4M3Args {
    float *scale;
    const float *part;
    u32 n;
};

// scale = max part/448.
KERNEL(scale_e4m3, ScaleE4M3Args, 256, 1) {
    SHARED(float, all, 8);
    float amax = 0;
    for (u32 i = thread(); i < a.n; i += 256) amax = max2(amax, a.part[i]);
    amax = block_max(amax, all);
    if (thread() == 0) *a.scale = E4M3Scale(amax).scale;
}

// dst[block] = max |x| of the block's share of all spans.
template <class B> APR_DEVICE void absmax(const DequantArgs &a) {
    SHARED(float, part, 8);
    float amax = 0;
    for (u64 item = (block() * 8 + warp()) * 4; item < a.all; item += blocks() * 32)
        each_chunk<B>(a, (u32)item, [&](const float (&x)[8], u32, u32, int) { amax = absmax8(x, amax); });
    amax = block_max(amax, part);
    if (thread() == 0) ((float *)a.dst)[block()] = amax;
}

// scale[r] = max |x[r]|/448; a block has one row.
template <class B> APR_DEVICE void row_scales(const DequantArgs &a) {
    SHARED(float, part, 8);
    float amax = 0;
    const u32 end = (block() + 1) * a.spans;
    for (u32 item = block() * a.spans + warp() * 4; item < end; item += 32) {
        DequantArgs row = a;
        row.all = end;
        each_chunk<B>(row, item, [&](const float (&x)[8], u32, u32, int) { amax = absmax8(x, amax); });
    }
    amax = block_max(amax, part);
    if (thread() == 0) a.scale[block() * a.scale_stride] = E4M3Scale(amax).scale;
}

// A warp decodes 4 spans, as to bfloat16.
template <class B> APR_DEVICE void dequant_e4m3(const DequantArgs &a) {
    const u32 item = (block() * 8 + warp()) * 4;
    if (a.all == a.spans && item * 32 + 128 <= a.chunks && a.per_scale % 32 == 0) {
        // Each span has one scale: a lane asks for one before it asks for blocks, and all four are there with these.
        const float scale = a.scale[(item + (lane() & 3)) / (a.per_scale / 32) * a.scale_stride];
        float inverse = 0;
        each_chunk<B>(a, item, [&](const float (&x)[8], u32, u32 chunk, int k) {
            if (k == 0) inverse = 1 / scale;
            *(u32x2 *)((u8 *)a.dst + (u64)(chunk + 32 * k) * 8) = pack8(x, shfl(inverse, k));
        });
        return;
    }
    float inverse = 0;
    u32 of = ~0u, end = 0; // inverse is that of chunks before end of row `of`: it is computed once for four spans
    each_chunk<B>(a, item, [&](const float (&x)[8], u32 row, u32 chunk, int k) {
        const u32 c = chunk + 32 * k;
        if (row != of || c >= end) {
            const u32 r = c / a.per_scale;
            inverse = 1 / a.scale[(row + r) * a.scale_stride], of = row, end = (r + 1) * a.per_scale;
        }
        *(u32x2 *)((u8 *)a.dst + row * a.dst_stride + (u64)c * 8) = pack8(x, inverse);
    });
}

#define E4M3(type, B) \
    KERNEL(absmax_##type, DequantArgs, 256, 4) { absmax<B>(a); } \
    KERNEL(row_scales_##type, DequantArgs, 256, 4) { row_scales<B>(a); } \
    KERNEL(dequant_e4m3_##type, DequantArgs, 256, 4) { dequant_e4m3<B>(a); }

E4M3(q4_k, BlockQ4K)
E4M3(q5_k, BlockQ5K)
E4M3(q6_k, BlockQ6K)
E4M3(q8_0, BlockQ8_0)
E4M3(q4_0, BlockQ4_0)
E4M3(q5_0, BlockQ5_0)
E4M3(iq4_nl, BlockIQ4NL)
E4M3(iq4_xs, BlockIQ4XS)
E4M3(mxfp4, BlockMXFP4)
