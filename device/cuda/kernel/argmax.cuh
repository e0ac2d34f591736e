// The argmax of rows: a block has a slice of a row, and the last block of the launch to come joins the slices.
#pragma once
#include "apr.cuh"

struct ArgMaxArgs {
    i32 *ids;
    float *best; // zero: unwanted
    const void *x;
    u32x4 *part; // of Best::words, [rows, slices]
    Record *record;
    i64 id_stride, best_stride, stride;
    u32 cols, slice; // columns of a row, of a slice: a multiple of 8
};

// Best is the largest of some values, where it stands, and whether one of them is NaN or +∞.
struct Best {
    float value;
    u32 at; // ~0: there was none, or NaN only
    u32 unfit;
    APR_METHOD Best() : value(-INFINITY_F), at(~0u), unfit(0) {}
    APR_METHOD explicit Best(u32x4 w) : value(from_bits(w[0])), at(w[1]), unfit(w[2]) {}
    APR_METHOD u32x4 words() const { return u32x4{bits(value), at, unfit, 0}; }
    // larger takes the pair of the larger value, of equal values the lower index; NaN is never larger.
    APR_METHOD void larger(float v, u32 c) {
        if (v > value || (v == value && c < at)) { value = v; at = c; }
    }
    APR_METHOD void take(float v, u32 c) {
        larger(v, c);
        if (!(v < INFINITY_F)) unfit = 1;
    }
    APR_METHOD void join(const Best &b) {
        larger(b.value, b.at);
        unfit |= b.unfit;
    }
    // join_lanes leaves what all lanes have together in each of them.
    APR_METHOD void join_lanes() {
        UNROLL for (int m = 16; m; m >>= 1) {
            Best b;
            b.value = shfl_xor(value, m);
            b.at = shfl_xor(at, m);
            b.unfit = shfl_xor(unfit, m);
            join(b);
        }
    }
    // tell writes the row's results.
    APR_METHOD void tell(const ArgMaxArgs &a, i64 row) const {
        const u32 id = at == ~0u ? 0 : at;
        a.ids[row * a.id_stride] = (i32)id;
        if (!a.best) return;
        a.best[row * a.best_stride] = (float)id;
        a.best[row * a.best_stride + 1] = unfit ? from_bits(0x7fc00000u) : value;
    }
};

// of_slice is the best of columns [from, end) of a row as one thread meets them: it has 4 packs at a time, and one of the columns
// behind the last whole pack.
template <class T, int E> APR_DEVICE Best of_slice(const T *x, u32 from, u32 end) {
    Best b;
    const u32 whole = from + (end - from) / E * E;
    for (u32 base = from + thread() * E; base < whole; base += 4 * threads() * E) {
        Pack<T, E> v[4];
        UNROLL for (u32 k = 0; k < 4; k++)
            if (base + k * threads() * E < whole) load_pack(v[k], x + base + k * threads() * E);
        UNROLL for (u32 k = 0; k < 4; k++)
            if (base + k * threads() * E < whole) {
                float p[E];
                widen(p, v[k]);
                UNROLL for (u32 e = 0; e < E; e++) b.take(p[e], base + k * threads() * E + e);
            }
    }
    if (const u32 c = whole + thread(); c < end) b.take(load(x + c), c);
    return b;
}

// Grid: (rows, slices).
template <class T, int E> APR_DEVICE void argmax(const ArgMaxArgs &a) {
    SHARED(u32x4, parts, 32);
    SHARED(u32, last, 1);
    let_next();
    wait_before();
    const u32 slices = (a.cols + a.slice - 1) / a.slice, from = block_y() * a.slice;
    Best b = of_slice<T, E>((const T *)a.x + block() * a.stride, from, (u32)min_of(a.cols, from + a.slice));
    b.join_lanes();
    if (lane() == 0) parts[warp()] = b.words();
    sync_block();
    if (warp() == 0) {
        b = lane() < threads() / 32 ? Best(parts[lane()]) : Best();
        b.join_lanes();
    }
    if (slices == 1) {
        if (thread() == 0) b.tell(a, block());
        return;
    }
    if (thread() == 0) {
        store16(a.part + block() * slices + block_y(), b.words());
        last[0] = arrive_last(&a.record->arrived, blocks() * slices);
    }
    sync_block();
    if (!last[0]) return;
    for (u32 row = warp(); row < blocks(); row += threads() / 32) {
        Best all;
        for (u32 s = lane(); s < slices; s += 32) all.join(Best(load16(a.part + row * slices + s)));
        all.join_lanes();
        if (lane() == 0) all.tell(a, row);
    }
}
