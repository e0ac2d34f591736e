// tensors.cu: tensor cores, matrix loads and asynchronous copies.
#include "apr.cuh"

struct TensorArgs {
    float *d;           // 16×8
    const void *a, *b;  // 16×16 and 16×8 bf16, or 16×8 and 8×8 float
};

// Fragments gathered element by element.
KERNEL(test_mma_bf16, TensorArgs, 32, 1) {
    const bf16 *x = (const bf16 *)a.a, *y = (const bf16 *)a.b;
    u32 g = lane() >> 2, t = lane() & 3;
    u32 f[4], b[2];
    for (u32 i = 0; i < 4; i++) {
        u32 r = g + (i & 1) * 8, c = 2 * t + (i >> 1) * 8;
        f[i] = x[r * 16 + c] | (u32)x[r * 16 + c + 1] << 16;
    }
    for (u32 i = 0; i < 2; i++) b[i] = y[(2 * t + 8 * i) * 8 + g] | (u32)y[(2 * t + 8 * i + 1) * 8 + g] << 16;
    float d[4];
    for (u32 i = 0; i < 4; i++) d[i] = a.d[(g + (i >> 1) * 8) * 8 + 2 * t + (i & 1)];
    mma_bf16(d, f, b[0], b[1]);
    for (u32 i = 0; i < 4; i++) a.d[(g + (i >> 1) * 8) * 8 + 2 * t + (i & 1)] = d[i];
}

KERNEL(test_mma_tf32, TensorArgs, 32, 1) {
    const u32 *x = (const u32 *)a.a, *y = (const u32 *)a.b;
    u32 g = lane() >> 2, t = lane() & 3;
    u32 f[4] = {x[g * 8 + t], x[(g + 8) * 8 + t], x[g * 8 + t + 4], x[(g + 8) * 8 + t + 4]};
    float d[4];
    for (u32 i = 0; i < 4; i++) d[i] = a.d[(g + (i >> 1) * 8) * 8 + 2 * t + (i & 1)];
    mma_tf32(d, f, y[t * 8 + g], y[(t + 4) * 8 + g]);
    for (u32 i = 0; i < 4; i++) a.d[(g + (i >> 1) * 8) * 8 + 2 * t + (i & 1)] = d[i];
}

// The same product with fragments loaded through shared memory, as kernels do it: A by ldmatrix4, B (K×N, row-major) by
// ldmatrix2_trans.
KERNEL(test_mma_loaded, TensorArgs, 32, 1) {
    SHARED(bf16, x, 256);
    SHARED(bf16, y, 128);
    copy_async16(x + 8 * lane(), (const bf16 *)a.a + 8 * lane());
    if (lane() < 16) copy_async16(y + 8 * lane(), (const bf16 *)a.b + 8 * lane());
    copy_async_commit();
    copy_async_wait<0>();
    sync_block();
    u32 f[4], b[2];
    ldmatrix4(f, x + lane() % 16 * 16 + lane() / 16 * 8);
    ldmatrix2_trans(b, y + lane() % 16 * 8);
    float d[4] = {};
    mma_bf16(d, f, b[0], b[1]);
    u32 g = lane() >> 2, t = lane() & 3;
    for (u32 i = 0; i < 4; i++) a.d[(g + (i >> 1) * 8) * 8 + 2 * t + (i & 1)] = d[i];
}

struct LoadArgs {
    u32 *out;       // 12 words a lane
    const void *in; // 4 matrices of 8×8
};

KERNEL(test_ldmatrix, LoadArgs, 32, 1) {
    unsigned char *s;
    DYNAMIC_SHARED(shared);
    s = shared;
    store16(s + 16 * lane(), load16((const char *)a.in + 16 * lane()));
    sync_warp();
    u32 r[4], q[2];
    u32 *o = a.out + 12 * lane();
    ldmatrix4(r, s + 16 * lane());
    for (int i = 0; i < 4; i++) o[i] = r[i];
    ldmatrix4_trans(r, s + 16 * lane());
    for (int i = 0; i < 4; i++) o[4 + i] = r[i];
    ldmatrix2(q, s + 16 * lane());
    o[8] = q[0], o[9] = q[1];
    ldmatrix2_trans(q, s + 16 * lane());
    o[10] = q[0], o[11] = q[1];
}

struct CopyArgs {
    u32x4 *out; // 4 vectors a thread
    const u32x4 *in;
};

// Three groups of copies: what is there after waiting for all but two, one, none; then a copy of nothing.
KERNEL(test_copies, CopyArgs, 64, 1) {
    SHARED(u32x4, s, 3 * 64);
    for (u32 i = 0; i < 3; i++) {
        copy_async16(s + i * 64 + thread(), a.in + i * 64 + thread());
        copy_async_commit();
    }
    copy_async_wait<2>();
    store16(a.out + 4 * thread(), s[thread()]);
    store16(a.out + 4 * thread() + 1, s[64 + thread()]);
    copy_async_wait<0>();
    store16(a.out + 4 * thread() + 2, s[128 + thread()]);
    copy_async16(s + thread(), (const void *)1, false);
    copy_async_commit();
    copy_async_wait<0>();
    store16(a.out + 4 * thread() + 3, s[thread()]);
}

// Bulk copies of 256 bytes in two parts, then another turn of the same place.
KERNEL(test_bulk_copies, CopyArgs, 32, 1) {
    SHARED(u64, filled, 1);
    SHARED(u32, s, 64);
    u32 *out = (u32 *)a.out + 4 * lane();
    const u32 *in = (const u32 *)a.in;
    if (lane() == 0) bulk_init(filled, 2);
    sync_warp();
    if (lane() < 2) copy_bulk(filled, s + 32 * lane(), in + 32 * lane(), 128);
    sync_warp();
    out[0] = s[lane()];
    sync_warp();
    bulk_wait(filled, 0);
    out[1] = s[lane()], out[2] = s[32 + lane()];
    sync_warp();
    if (lane() < 2) copy_bulk(filled, s, in + 64, lane() == 0 ? 128 : 0);
    sync_warp();
    bulk_wait(filled, 1);
    out[3] = s[lane()];
}

// Products of bytes: A 16×32 row-major, signed or not, B 32×8 row-major, signed; D of 32-bit integers.
template <class F> APR_DEVICE void product_of_bytes(const TensorArgs &a, F mma) {
    const u8 *x = (const u8 *)a.a, *y = (const u8 *)a.b;
    i32 *to = (i32 *)a.d;
    const u32 g = lane() >> 2, t = lane() & 3;
    u32 f[4], h[2] = {0, 0};
    for (u32 i = 0; i < 4; i++) f[i] = *(const u32 *)(x + (g + 8 * (i & 1)) * 32 + 16 * (i >> 1) + 4 * t);
    for (u32 i = 0; i < 2; i++)
        for (u32 k = 0; k < 4; k++) h[i] |= (u32)y[(16 * i + 4 * t + k) * 8 + g] << 8 * k;
    i32 d[4];
    for (u32 i = 0; i < 4; i++) d[i] = to[(g + (i >> 1) * 8) * 8 + 2 * t + (i & 1)];
    mma(d, f, h[0], h[1]);
    for (u32 i = 0; i < 4; i++) to[(g + (i >> 1) * 8) * 8 + 2 * t + (i & 1)] = d[i];
}
KERNEL(test_mma_us, TensorArgs, 32, 1) {
    product_of_bytes(a, [](i32 (&d)[4], const u32 (&f)[4], u32 b0, u32 b1) { mma_us(d, f, b0, b1); });
}
KERNEL(test_mma_ss, TensorArgs, 32, 1) {
    product_of_bytes(a, [](i32 (&d)[4], const u32 (&f)[4], u32 b0, u32 b1) { mma_ss(d, f, b0, b1); });
}
