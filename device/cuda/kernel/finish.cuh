// What stands between the projections and attention, of a few positions: see finish.cu.
#pragma once
#include "apr.cuh"

struct FinishArgs {
    const void *x;              // [rows, heads·d + 2·kv·d]: q, k, v; with gates one behind each head of q
    void *q, *gate, *cache;     // [rows, heads·d]; the same or zero; [rows, 2·kv·d]: k, v
    const float *q_norm, *k_norm; // [d]; zero: no norm
    const float *table;         // [positions, half, 2]: cosine, sine
    const i32 *positions;       // [rows]; zero: from position on
    const i32 *places;          // [rows], rows of cache; zero: those of x
    Record *record;             // of a position outside the table, or a place outside the cache
    i64 x_stride, q_stride, gate_stride, cache_stride;
    u32 rows, heads, kv, d, half; // half: pairs that turn
    u32 lanes;                  // of a head, a power of two
    u32 position;               // of the first row
    u32 pool, limit;            // rows of cache and table
    float eps, inv_d;
};

// load8 reads 8 floats.
APR_DEVICE void load8(float (&v)[8], const float *p) {
    Pack<float, 8> pack;
    load_pack(pack, p);
    widen(v, pack);
}

// A warp has a head of a row, a lane 8 of its values. Grid: (heads of q, k, v and gates / 8, rows).
APR_DEVICE void finish_heads(const FinishArgs &a) {
    let_next();
    wait_before();
    const u32 head = block() * 8 + warp(), row = block_y(), packs = a.d / 8, l = lane(), turning = a.half / 8;
    const u32 all = a.heads + 2 * a.kv, place = !a.gate ? head : head < a.heads ? 2 * head : head < all ? head + a.heads : 2 * (head - all) + 1;
    if (head >= (a.gate ? all + a.heads : all)) return;
    const bool live = l < packs, is_q = head < a.heads;
    Pack<bf16, 8> v = {};
    if (live) load_pack(v, (const bf16 *)a.x + row * a.x_stride + (u64)place * a.d + 8 * l);
    const u32 at = a.places ? (u32)a.places[row] : row, position = a.positions ? (u32)a.positions[row] : a.position + row;
    if (position >= a.limit || at >= a.pool) {
        if (head == 0 && l == 0) first_fault(a.record, at < a.pool ? 4 : 3, (i32)(at < a.pool ? position : at), at < a.pool ? a.limit : a.pool);
        return;
    }
    bf16 *to = (bf16 *)a.cache + (u64)at * a.cache_stride + (u64)(head - a.heads) * a.d;
    if (is_q) to = (bf16 *)a.q + row * a.q_stride + (u64)head * a.d;
    if (head >= all) to = (bf16 *)a.gate + row * a.gate_stride + (u64)(head - all) * a.d;
    const float *norm = is_q ? a.q_norm : a.k_norm;
    float p[8], w[8];
    if (head < a.heads + a.kv && norm) {
        float squares = 0;
        widen(p, v);
        UNROLL for (int e = 0; e < 8; e++) squares = fma_rn(p[e], p[e], squares);
        for (u32 m = a.lanes / 2; m; m >>= 1) squares += shfl_xor(squares, (int)m);
        const float rstd = 1.0f / sqrt_rn(fma_rn(squares, a.inv_d, a.eps));
        if (live) {
            load8(w, norm + 8 * l);
            UNROLL for (int e = 0; e < 8; e++) p[e] = p[e] * rstd * w[e];
            narrow(v, p);
        }
    }
    if (head < a.heads + a.kv && a.half) {
        const bool turns = l < 2 * turning, low = l < turning;
        const u32 i = turns ? (low ? l : l - turning) : 0, other = turns ? (low ? l + turning : l - turning) : l;
        float q[8], own[8], cosine[8], sine[8];
        widen(own, v);
        UNROLL for (int e = 0; e < 8; e++) {
            const float there = shfl(own[e], (int)other);
            p[e] = low ? own[e] : there;
            q[e] = low ? there : own[e];
        }
        UNROLL for (int k = 0; k < 2; k++) {
            load8(w, a.table + ((u64)position * a.half + 8 * i) * 2 + 8 * k);
            UNROLL for (int j = 0; j < 4; j++) cosine[4 * k + j] = w[2 * j], sine[4 * k + j] = w[2 * j + 1];
        }
        UNROLL for (int e = 0; e < 8; e++) {
            const float re = p[e] * cosine[e] - q[e] * sine[e];
            q[e] = q[e] * cosine[e] + p[e] * sine[e];
            p[e] = low ? re : q[e];
        }
        if (turns) narrow(v, p);
    }
    if (live) store_pack(to + 8 * l, v);
}
