// What moves values as they are.
#pragma once
#include "apr.cuh"

struct CopyArgs {
    const void *src; // zero: unused
    void *dst;
    i64 src_stride, dst_stride; // in units, or elements
    u32 packs, items;           // units or packs of a row, of all rows
};

// A thread has 4 units of U, at distances of the block's threads; a unit is moved as it is, whatever its type.
template <class U, bool ZERO> APR_DEVICE void move_units(const CopyArgs &a) {
    let_next();
    wait_before();
    const u32 first = block() * threads() * 4 + thread();
    U v[4] = {};
    U *to[4];
    UNROLL for (int k = 0; k < 4; k++) {
        const u32 item = first + k * threads();
        if (item >= a.items) continue;
        const u32 row = item / a.packs, c = item - row * a.packs;
        to[k] = (U *)a.dst + row * a.dst_stride + c;
        if (!ZERO) v[k] = ((const U *)a.src)[row * a.src_stride + c];
    }
    UNROLL for (int k = 0; k < 4; k++)
        if (first + k * threads() < a.items) *to[k] = v[k];
}
