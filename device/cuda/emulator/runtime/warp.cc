// warp.cc: what the lanes of a warp do together, and asynchronous copies.
#include "fiber.h"
#include <algorithm>
#include <cstring>

namespace apr_host {

u32 exchange(Operation op, u32 v, u32 from) {
    Worker &w = *worker;
    Fiber *f = w.current;
    Warp &p = *f->warp;
    u32 *slot = p.v[p.gen & 1];
    slot[f->thread & 31] = v;
    together(w, f, p, op, [] {});
    return slot[from];
}

u32 ballot(bool b) {
    Worker &w = *worker;
    Fiber *f = w.current;
    Warp &p = *f->warp;
    u32 *slot = p.v[p.gen & 1];
    slot[f->thread & 31] = b;
    together(w, f, p, op_ballot, [=] {
        u32 mask = 0;
        for (u32 i = 0; i < 32; i++) mask |= slot[i] << i;
        for (u32 i = 0; i < 32; i++) slot[i] = mask;
    });
    return slot[0];
}

void sync_warp() {
    Worker &w = *worker;
    Fiber *f = w.current;
    together(w, f, *f->warp, op_sync_warp, [] {});
}

typedef float f32x8 __attribute__((vector_size(32)));

// product does D[16][8] += A[16][K]·B[K][8] in float, terms in order of k.
template <int K> static void product(const float (&a)[16][K], const f32x8 (&b)[K], f32x8 (&d)[16]) {
    for (int i = 0; i < 16; i++) {
        f32x8 sum = {};
        for (int k = 0; k < K; k++) sum += a[i][k] * b[k];
        d[i] += sum;
    }
}

static float half(u32 pair, int i) { return __builtin_bit_cast(float, i ? pair & 0xffff0000u : pair << 16); }

// Fragments of m16n8k16 with 16-bit elements: lane 4g+t holds, of A, the pairs (g, 2t), (g+8, 2t), (g, 2t+8),
// (g+8, 2t+8); of B (K×N) the pairs of rows (2t, g), (2t+8, g); of D the pairs (g, 2t), (g+8, 2t).
static void product_bf16(Warp &p, u32 slot, f32x8 (&d)[16]) {
    float a[16][16];
    f32x8 b[16];
    for (int lane = 0; lane < 32; lane++) {
        const u32 *in = p.a[slot][lane];
        int g = lane >> 2, t = lane & 3;
        for (int i = 0; i < 2; i++) {
            a[g][2 * t + i] = half(in[0], i);
            a[g + 8][2 * t + i] = half(in[1], i);
            a[g][2 * t + 8 + i] = half(in[2], i);
            a[g + 8][2 * t + 8 + i] = half(in[3], i);
            b[2 * t + i][g] = half(in[4], i);
            b[2 * t + 8 + i][g] = half(in[5], i);
        }
    }
    product<16>(a, b, d);
}

static float tf32(u32 x) { return __builtin_bit_cast(float, x & ~0x1fffu); }

// Fragments of m16n8k8 with 32-bit elements: A (g, t), (g+8, t), (g, t+4), (g+8, t+4); B (t, g), (t+4, g).
static void product_tf32(Warp &p, u32 slot, f32x8 (&d)[16]) {
    float a[16][8];
    f32x8 b[8];
    for (int lane = 0; lane < 32; lane++) {
        const u32 *in = p.a[slot][lane];
        int g = lane >> 2, t = lane & 3;
        a[g][t] = tf32(in[0]);
        a[g + 8][t] = tf32(in[1]);
        a[g][t + 4] = tf32(in[2]);
        a[g + 8][t + 4] = tf32(in[3]);
        b[t][g] = tf32(in[4]);
        b[t + 4][g] = tf32(in[5]);
    }
    product<8>(a, b, d);
}

// Fragments of m16n8k32 with bytes: A the fours (g, 4t), (g+8, 4t), (g, 4t+16), (g+8, 4t+16); B of rows (4t, g), (4t+16, g); D as
// above.
template <class A> static void multiply_bytes(Warp &p, u32 slot) {
    int a[16][32], b[32][8];
    for (int lane = 0; lane < 32; lane++) {
        const u32 *in = p.a[slot][lane];
        const int g = lane >> 2, t = lane & 3;
        for (int i = 0; i < 4; i++) {
            for (int k = 0; k < 4; k++) a[g + 8 * (k & 1)][4 * t + 16 * (k >> 1) + i] = (A)(in[k] >> 8 * i);
            for (int k = 0; k < 2; k++) b[4 * t + 16 * k + i][g] = (signed char)(in[4 + k] >> 8 * i);
        }
    }
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++) {
            const int row = (lane >> 2) + (i >> 1) * 8, column = (lane & 3) * 2 + (i & 1);
            u32 sum = __builtin_bit_cast(u32, p.d[slot][lane][i]);
            for (int k = 0; k < 32; k++) sum += (u32)(a[row][k] * b[k][column]);
            p.d[slot][lane][i] = __builtin_bit_cast(float, sum);
        }
}

static void multiply(Warp &p, u32 slot, Operation op) {
    if (op == op_mma_us) return multiply_bytes<u8>(p, slot);
    if (op == op_mma_ss) return multiply_bytes<signed char>(p, slot);
    f32x8 d[16];
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++) d[(lane >> 2) + (i >> 1) * 8][(lane & 3) * 2 + (i & 1)] = p.d[slot][lane][i];
    if (op == op_mma_bf16) product_bf16(p, slot, d);
    else product_tf32(p, slot, d);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < 4; i++) p.d[slot][lane][i] = d[(lane >> 2) + (i >> 1) * 8][(lane & 3) * 2 + (i & 1)];
}

void mma(Operation op, void *d, const u32 *a, u32 b0, u32 b1) {
    Worker &w = *worker;
    Fiber *f = w.current;
    Warp &p = *f->warp;
    u32 slot = p.gen & 1, lane = f->thread & 31;
    memcpy(p.a[slot][lane], a, 16);
    p.a[slot][lane][4] = b0;
    p.a[slot][lane][5] = b1;
    memcpy(p.d[slot][lane], d, 16);
    together(w, f, p, op, [&] { multiply(p, slot, op); });
    memcpy(d, p.d[slot][lane], 16);
}

// Matrix m has its rows at the addresses of lanes 8m..8m+7; lane 4i+j receives the pair (i, 2j), or of the transposed
// matrix, that is elements (2j, i) and (2j+1, i).
static void load_matrices(Warp &p, u32 slot, int matrices, bool transposed) {
    for (int m = 0; m < matrices; m++)
        for (int lane = 0; lane < 32; lane++) {
            int i = lane >> 2, j = lane & 3;
            u16 pair[2];
            for (int k = 0; k < 2; k++) {
                int r = transposed ? 2 * j + k : i, c = transposed ? i : 2 * j + k;
                memcpy(&pair[k], (const char *)p.row[slot][8 * m + r] + 2 * c, 2);
            }
            p.r[slot][lane][m] = (u32)pair[0] | (u32)pair[1] << 16;
        }
}

void ldmatrix(Operation op, u32 *r, const void *row) {
    Worker &w = *worker;
    Fiber *f = w.current;
    Warp &p = *f->warp;
    u32 slot = p.gen & 1, lane = f->thread & 31;
    int matrices = op == op_ldmatrix4 || op == op_ldmatrix4_trans ? 4 : 2;
    if (lane < 8u * matrices) {
        if ((u64)row & 15) misaligned("ldmatrix", row);
        if (!in_shared(row, 16)) fail(illegal_address, "thread %u: ldmatrix at %p, which is outside the arrays in shared memory", place.thread, row);
    }
    p.row[slot][lane] = row;
    together(w, f, p, op, [&] { load_matrices(p, slot, matrices, op == op_ldmatrix4_trans || op == op_ldmatrix2_trans); });
    memcpy(r, p.r[slot][lane], 4 * matrices);
}

// A copy is done as late as it may be, and its target is undefined until then: both a missing wait and a target that
// others still read show.
void copy_async16(void *to, const void *from, bool valid) {
    if ((u64)to & 15) misaligned("copy_async16 to shared memory", to);
    if (valid && ((u64)from & 15)) misaligned("copy_async16 from global memory", from);
    if (!in_shared(to, 16)) fail(illegal_address, "thread %u: copy_async16 to %p, which is outside the arrays in shared memory", place.thread, to);
    for (int i = 0; i < 8; i++) memcpy((char *)to + 2 * i, &poison, 2);
    Fiber *f = worker->current;
    f->copies.push_back({to, from, valid, f->group});
}

void copy_async_commit() { worker->current->group++; }

void copy_async_wait(u32 pending) {
    Fiber *f = worker->current;
    size_t n = 0;
    while (n < f->copies.size() && f->copies[n].group + pending < f->group) {
        const Copy &c = f->copies[n++];
        if (c.valid) memcpy(c.to, c.from, 16);
        else memset(c.to, 0, 16);
    }
    f->copies.erase(f->copies.begin(), f->copies.begin() + n);
}

// ---- bulk copies: done when somebody waits for them, so that who does not wait reads what was there before. filled has the
// number of times that it was waited for, and above the copies of each time.

void bulk_init(u64 *filled, u32 copies) {
    if (!in_shared(filled, 8)) fail(illegal_address, "thread %u: bulk_init of %p, which is no shared memory", place.thread, (void *)filled);
    *filled = (u64)copies << 32;
}

void copy_bulk(u64 *filled, void *to, const void *from, u32 bytes) {
    if (((u64)to | (u64)from | bytes) & 15 && bytes) misaligned("copy_bulk", (u64)to & 15 ? to : from);
    if (!in_shared(to, bytes) || !in_shared(filled, 8)) fail(illegal_address, "thread %u: copy_bulk of %u bytes to %p", place.thread, bytes, to);
    u32 begun = 1;
    for (const Bulk &b : worker->bulks) begun += b.filled == filled;
    if (begun > *filled >> 32) fail(launch_failed, "thread %u: copy_bulk while those before were not waited for", place.thread);
    worker->bulks.push_back({filled, to, from, bytes});
    worker->begun++;
}

void bulk_wait(u64 *filled, u32 parity) {
    Worker &w = *worker;
    auto &all = w.bulks;
    auto begun = [&] { return (u64)std::count_if(all.begin(), all.end(), [&](const Bulk &b) { return b.filled == filled; }); };
    while ((*filled & 1) == parity && begun() < *filled >> 32) wait(w, w.current, &w.begun); // for another thread to begin them
    if ((*filled & 1) != parity) return;
    for (size_t i = 0; i < all.size();)
        if (all[i].filled == filled) {
            memcpy(all[i].to, all[i].from, all[i].bytes);
            all.erase(all.begin() + i);
        } else i++;
    ++*filled;
}

} // namespace apr_host
