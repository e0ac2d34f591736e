// hopper.h: the instructions of kernel/attention_hopper.cuh and of the files that include it, on a CPU. Products are computed where they are
// started; a wait is a barrier of the warp, since no lane goes on before its warp's product is complete. That a result is not read, nor an
// operand overwritten, before the wait is not seen here.
#pragma once

namespace apr_host {
void pause(); // lets other threads of the block run
}

// shared_at returns the pointer of an address in shared memory.
APR_DEVICE u8 *shared_at(u32 at) {
    unsigned char *p = apr_host::dynamic_shared();
    return p + (i32)(at - apr_host::shared_offset(p));
}

// A barrier in its 8 bytes.
struct HostBarrier {
    u16 count, arrived;
    u32 rounds;
};
// Barriers that have a number: how many have come, how often it was complete.
APR_DEVICE u32 *named_barriers() {
    SHARED(u32, state, 32);
    return state;
}
APR_DEVICE void barrier_init(u32 at, u32 count) {
    *(HostBarrier *)shared_at(at) = {(u16)count, 0, 0};
    for (int i = 0; i < 32; i++) named_barriers()[i] = 0; // by the thread that begins, before all others
}
APR_DEVICE void barrier_arrive(u32 at) {
    HostBarrier *b = (HostBarrier *)shared_at(at);
    if (++b->arrived == b->count) b->arrived = 0, b->rounds++;
}
APR_DEVICE bool barrier_ready(u32 at, u32 parity) { return (((HostBarrier *)shared_at(at))->rounds & 1) != parity; }
APR_DEVICE void barrier_wait(u32 at, u32 parity) {
    while (!barrier_ready(at, parity)) apr_host::pause();
}
APR_DEVICE void named_arrive(u32 number, u32 threads) {
    u32 *b = named_barriers() + 2 * number;
    if (++b[0] == threads) b[0] = 0, b[1]++;
}
APR_DEVICE void named_sync(u32 number, u32 threads) {
    const u32 *b = named_barriers() + 2 * number, before = b[1];
    named_arrive(number, threads);
    while (b[1] == before) apr_host::pause();
}
APR_DEVICE void turn_take(u32 group) { named_sync(1 + group, 256); }
APR_DEVICE void turn_pass(u32 group) { named_arrive(1 + group, 256); }
APR_DEVICE void sync_group(u32 group) { named_sync(8 + group, 128); }

APR_DEVICE void fetch16(u32 to, const void *from, bool valid) { apr_host::copy_async16(shared_at(to), from, valid); }
APR_DEVICE void fetch4(u32 to, const void *from, bool valid) { *(u32 *)shared_at(to) = valid ? *(const u32 *)from : 0; }
APR_DEVICE void publish() {}
APR_DEVICE void keep_before(float, u32) {}
APR_DEVICE void keep_before(u32, u32) {}
template <int N> APR_DEVICE void grow_registers() {}
template <int N> APR_DEVICE void shrink_registers() {}
APR_DEVICE u32x4 load_shared16(u32 at) { return *(const u32x4 *)shared_at(at); }
APR_DEVICE float load_float(u32 at) { return *(const float *)shared_at(at); }
APR_DEVICE f32x2 load_floats(u32 at) { return f32x2{load_float(at), load_float(at + 4)}; }
APR_DEVICE void load_matrices(u32 (&r)[4], u32 at) { ldmatrix4(r, shared_at(at)); }
// Lane l's address is that of row l%8 of matrix l/8; it has elements (l/4, 2(l%4)) and the next of each.
APR_DEVICE void store_matrices(u32 at, u32 a, u32 b, u32 c, u32 d) {
    const u32 l = thread() & 31, v[4] = {a, b, c, d};
    for (u32 m = 0; m < 4; m++) *(u32 *)(shared_at(shfl(at, (int)(8 * m + l / 4))) + l % 4 * 4) = v[m];
}

// An operand: its address, and the bytes from 64 columns to the next.
APR_DEVICE u64 operand(u32 at, u32 panel = PANEL) { return (u64)panel << 32 | at; }
struct HostOperand {
    const u8 *at;
    u32 panel;
    APR_METHOD HostOperand(u64 x) { at = shared_at((u32)x), panel = (u32)(x >> 32); }
    APR_METHOD float operator()(u32 row, u32 column) const {
        return from_bf16(*(const bf16 *)(at + column / 64 * panel + row * 128 + ((column % 64 / 8 ^ row % 8) << 4) + column % 8 * 2));
    }
};
template <int N, int D> APR_DEVICE void wait_products(float (&)[D]) { apr_host::sync_warp(); }

// Element i of a lane's part of 64 rows: row() and column() of the first.
struct HostPart {
    u32 l, w;
    APR_METHOD HostPart() { l = thread() & 31, w = thread() >> 5 & 3; }
    APR_METHOD u32 row(u32 i) const { return w * 16 + l / 4 + i / 2 % 2 * 8; }
    APR_METHOD u32 column(u32 i) const { return i / 4 * 8 + l % 4 * 2 + i % 2; }
};

// left_rows gathers a lane's two rows of a left operand in registers, K columns, from the four lanes that have them.
template <int K> APR_DEVICE void left_rows(float (&rows)[2][K], const u32 (&x)[K / 4]) {
    const u32 l = thread() & 31;
    for (u32 i = 0; i < K / 4; i++)
        for (u32 t = 0; t < 4; t++) {
            const u32 v = shfl(x[i], (int)((l & ~3u) | t));
            float *to = rows[i % 2] + i / 4 * 16 + i % 4 / 2 * 8 + 2 * t;
            to[0] = from_bits(v << 16), to[1] = from_bits(v & 0xffff0000u);
        }
}

// s = x·yᵀ of D columns, of two operands.
template <int D, int N> APR_DEVICE void host_scores(float (&s)[N], u64 x, u64 y, bool more) {
    const HostOperand left(x), right(y);
    const HostPart p;
    for (u32 i = 0; i < N; i++) {
        float sum = more ? s[i] : 0;
        for (u32 c = 0; c < D; c++) sum = fma_rn(left(p.row(i), c), right(p.column(i), c), sum);
        s[i] = sum;
    }
}
template <int D> APR_DEVICE void start_scores(float (&s)[64], u64 q, u64 k) { host_scores<D>(s, q, k, false); }
template <int MORE> APR_DEVICE void start_scores(float (&s)[32], u64 x, u64 y) { // with 256, of 256 columns; or of 128, added to s
    if (MORE == 256) host_scores<256>(s, x, y, false);
    else host_scores<128>(s, x, y, MORE);
}
template <int MORE> APR_DEVICE void start_scores(float (&s)[32], const u32 (&x)[16], u64 y) {
    const HostOperand right(y);
    const HostPart p;
    float rows[2][64];
    left_rows(rows, x);
    for (u32 i = 0; i < 32; i++) {
        float sum = MORE ? s[i] : 0;
        for (u32 c = 0; c < 64; c++) sum = fma_rn(rows[i / 2 % 2][c], right(p.column(i), c), sum);
        s[i] = sum;
    }
}

// s += w·xᵀ, w of columns 32·J … 32·J + 31 of a panel at x.
template <int J, int N> APR_DEVICE void start_tiles(float (&s)[N], const u32 (&w)[8], u32 x) {
    const HostOperand right(operand(x));
    const HostPart p;
    float rows[2][32];
    left_rows(rows, w);
    for (u32 i = 0; i < N; i++)
        for (u32 c = 0; c < 32; c++) s[i] = fma_rn(rows[i / 2 % 2][c], right(p.column(i), 32 * J + c), s[i]);
}

// o (+)= p·v.
template <int N, int P> APR_DEVICE void start_outputs(float (&o)[N], const u32 (&x)[P], u64 v, u32 more = 1) {
    const HostOperand right(v);
    const HostPart p;
    float rows[2][4 * P];
    left_rows(rows, x);
    for (u32 i = 0; i < N; i++) {
        float sum = more ? o[i] : 0;
        for (u32 k = 0; k < 4 * P; k++) sum = fma_rn(rows[i / 2 % 2][k], right(k, p.column(i)), sum);
        o[i] = sum;
    }
}
