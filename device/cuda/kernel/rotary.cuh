// Rotary position embedding, in place. See rotary.go for the equation.
#pragma once
#include "apr.cuh"

struct RotaryArgs {
    void *x;
    const float *table; // [positions, half, 2]: cosine, sine
    i64 stride;
    u32 rows, heads, half; // half: of a head
    u32 offset, seq_len;
    u32 packs;  // of half a head
    u32 groups; // of HEADS heads in a row
    u32 items;  // rows · groups · packs
    u32 inverse;
};

APR_DEVICE void load_angles(float (&cosine)[1], float (&sine)[1], const float *t) { cosine[0] = t[0]; sine[0] = t[1]; }
APR_DEVICE void load_angles(float (&cosine)[8], float (&sine)[8], const float *t) {
    UNROLL for (int half = 0; half < 2; half++) {
        Pack<float, 8> p;
        float v[8];
        load_pack(p, t + 8 * half);
        widen(v, p);
        UNROLL for (int j = 0; j < 4; j++) { cosine[4 * half + j] = v[2 * j]; sine[4 * half + j] = v[2 * j + 1]; }
    }
}

// A thread rotates the same pairs of up to HEADS heads of one row.
template <class T, int E, int HEADS> APR_DEVICE void rotary(const RotaryArgs &a) {
    let_next();
    wait_before();
    const u32 item = block() * threads() + thread();
    if (item >= a.items) return;
    const u32 group = item / a.packs, i = (item - group * a.packs) * E;
    const u32 row = group / a.groups, first = (group - row * a.groups) * HEADS;
    T *x = (T *)a.x + row * a.stride + (u64)first * 2 * a.half + i;
    const u32 heads = a.heads - first;
    Pack<T, E> lo[HEADS], hi[HEADS];
    UNROLL for (u32 h = 0; h < HEADS; h++)
        if (h < heads) {
            load_pack(lo[h], x + h * 2 * a.half);
            load_pack(hi[h], x + h * 2 * a.half + a.half);
        }
    const u32 position = a.offset + row % a.seq_len;
    float cosine[E], sine[E];
    load_angles(cosine, sine, a.table + ((u64)position * a.half + i) * 2);
    UNROLL for (int e = 0; e < E; e++) if (a.inverse) sine[e] = -sine[e];
    UNROLL for (u32 h = 0; h < HEADS; h++)
        if (h < heads) {
            float p[E], q[E];
            widen(p, lo[h]);
            widen(q, hi[h]);
            UNROLL for (int e = 0; e < E; e++) {
                const float re = p[e] * cosine[e] - q[e] * sine[e];
                q[e] = q[e] * cosine[e] + p[e] * sine[e];
                p[e] = re;
            }
            narrow(lo[h], p);
            narrow(hi[h], q);
            store_pack(x + h * 2 * a.half, lo[h]);
            store_pack(x + h * 2 * a.half + a.half, hi[h]);
        }
}

// RotaryPartArgs turn the first 2·half of the d values of a head, at positions of their own, and scale all of them.
struct RotaryPartArgs {
    void *x;
    const float *table;     // [positions, half, 2]: cosine, sine
    const float *scale;     // [positions]; zero: ones
    const i32 *positions;   // [rows]; zero: from offset on
    Record *record;         // of a position outside the table
    i64 stride;
    u32 heads, half, d;
    u32 offset, seq_len;
    u32 packs;     // of a head: those that turn, counted once for two, and those that do not
    u32 turning;   // of these
    u32 items;     // rows · heads · packs
    u32 limit;     // positions that there are
    u32 inverse;
};

// A thread has a pack of a head and its partner, or one that does not turn.
template <class T, int E> APR_DEVICE void rotary_part(const RotaryPartArgs &a) {
    const u32 item = block() * threads() + thread();
    if (item >= a.items) return;
    const u32 unit = item / a.packs, pack = item - unit * a.packs, row = unit / a.heads, h = unit - row * a.heads;
    T *x = (T *)a.x + row * a.stride + (u64)h * a.d;
    u32 position = a.offset + row % a.seq_len;
    if (a.positions) {
        position = (u32)a.positions[row];
        if (position >= a.limit) {
            if (pack == 0) first_fault(a.record, 4, (i32)position, a.limit);
            return;
        }
    }
    const float f = a.scale ? a.scale[position] : 1.0f;
    Pack<T, E> lo, hi;
    float p[E], q[E], cosine[E], sine[E];
    if (pack >= a.turning) {
        x += 2 * a.half + (pack - a.turning) * E;
        load_pack(lo, x);
        widen(p, lo);
        UNROLL for (int e = 0; e < E; e++) p[e] *= f;
        narrow(lo, p);
        store_pack(x, lo);
        return;
    }
    x += pack * E;
    load_pack(lo, x);
    load_pack(hi, x + a.half);
    widen(p, lo);
    widen(q, hi);
    load_angles(cosine, sine, a.table + ((u64)position * a.half + pack * E) * 2);
    UNROLL for (int e = 0; e < E; e++) {
        if (a.inverse) sine[e] = -sine[e];
        const float re = p[e] * cosine[e] - q[e] * sine[e];
        q[e] = (q[e] * cosine[e] + p[e] * sine[e]) * f;
        p[e] = re * f;
    }
    narrow(lo, p);
    narrow(hi, q);
    store_pack(x, lo);
    store_pack(x + a.half, hi);
}
