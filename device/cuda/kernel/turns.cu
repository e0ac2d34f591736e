// Groups of columns that take turns in a row, apart and together. See turns.go.
//apr:module target=sm_80 types=bf16,f32 roles=optional
#include "apr.cuh"

struct TurnsArgs {
    void *x, *a, *b;
    i64 x_stride, a_stride, b_stride; // in units
    u32 width;                        // units of a group
    u32 units, items;                 // units of a row of x, of all rows
};

// A thread moves 4 units of x, at distances of the block's threads: to a or b, or from there.
template <class U, bool JOIN> APR_DEVICE void turns(const TurnsArgs &a) {
    const u32 first = block() * threads() * 4 + thread();
    U v[4] = {};
    U *to[4];
    UNROLL for (int k = 0; k < 4; k++) {
        const u32 item = first + k * threads();
        if (item >= a.items) continue;
        const u32 row = item / a.units, c = item - row * a.units, group = c / a.width;
        U *x = (U *)a.x + row * a.x_stride + c;
        U *part = group & 1 ? (U *)a.b + row * a.b_stride : (U *)a.a + row * a.a_stride;
        part += (group >> 1) * a.width + (c - group * a.width);
        to[k] = JOIN ? x : part;
        v[k] = JOIN ? *part : *x;
    }
    UNROLL for (int k = 0; k < 4; k++)
        if (first + k * threads() < a.items) *to[k] = v[k];
}

KERNEL(turns_apart_16, TurnsArgs, 256, 4) { turns<u32x4, false>(a); }
KERNEL(turns_apart_4, TurnsArgs, 256, 4) { turns<u32, false>(a); }
KERNEL(turns_apart_2, TurnsArgs, 256, 4) { turns<u16, false>(a); }
KERNEL(turns_together_16, TurnsArgs, 256, 4) { turns<u32x4, true>(a); }
KERNEL(turns_together_4, TurnsArgs, 256, 4) { turns<u32, true>(a); }
KERNEL(turns_together_2, TurnsArgs, 256, 4) { turns<u16, true>(a); }
