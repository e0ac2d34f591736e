// mistakes.cu: kernels that are wrong, each in its own way.
#include "apr.cuh"

struct MistakeArgs {
    u32 *p;
    i64 n;
};

KERNEL(test_diverged_operations, MistakeArgs, 64, 1) {
    if (lane() < 4) ballot(true);
    else shfl_xor(1u, 1);
}
KERNEL(test_lane_left, MistakeArgs, 64, 1) {
    if (thread() == 40) return;
    sync_warp();
}
KERNEL(test_thread_left, MistakeArgs, 128, 1) {
    if (thread() >= 96) return;
    sync_block();
}
KERNEL(test_barrier_against_warp, MistakeArgs, 64, 1) {
    if (lane() == 7) sync_block();
    else sync_warp();
}
KERNEL(test_misaligned_load, MistakeArgs, 32, 1) {
    u32x4 v = load16((char *)a.p + a.n);
    a.p[0] = v[0];
}
KERNEL(test_misaligned_copy, MistakeArgs, 32, 1) {
    SHARED(u32, s, 256);
    copy_async16(s + 1, a.p);
}
KERNEL(test_copy_outside_shared, MistakeArgs, 32, 1) { copy_async16(a.p, a.p); }
KERNEL(test_ldmatrix_misaligned, MistakeArgs, 32, 1) {
    SHARED(u32, s, 256);
    u32 r[4];
    ldmatrix4(r, s + 4 * lane() + (lane() == 3 ? 2 : 0));
}
KERNEL(test_shared_behind, MistakeArgs, 32, 1) {
    SHARED(u32, s, 32);
    s[32] = 1;
    a.p[0] = s[0];
}
KERNEL(test_shared_before, MistakeArgs, 32, 1) {
    SHARED(u32, s, 32);
    s[a.n] = 1;
    a.p[0] = s[0];
}
KERNEL(test_shared_too_much, MistakeArgs, 32, 1) {
    SHARED(u32, s, 12288);
    SHARED(u32, more, 1);
    s[0] = 1, more[0] = 2;
}
KERNEL(test_null, MistakeArgs, 32, 1) {
    if (block() == 5 && thread() == 9) *(volatile u32 *)a.n = 1;
}
KERNEL(test_stack, MistakeArgs, 32, 1) {
    volatile u32 big[30000];
    for (i64 i = 29999; i >= 0; i--) big[i] = (u32)i;
    a.p[0] = big[a.n];
}
KERNEL(test_write, MistakeArgs, 32, 1) { ((unsigned char *)a.p)[a.n] = 1; }
// What shared memory holds before it is written, and the target of a copy that nobody waited for.
KERNEL(test_undefined, MistakeArgs, 32, 1) {
    SHARED(u32, s, 4);
    DYNAMIC_SHARED(d);
    a.p[0] = s[3];
    a.p[1] = ((u32 *)d)[1];
    s[0] = 5;
    sync_warp();
    if (lane() == 0) {
        copy_async16(s, a.p + 4);
        copy_async_commit();
        copy_async_wait<1>();
        a.p[2] = s[0];
    }
    sync_warp();
}
KERNEL(test_missing_barrier, MistakeArgs, 128, 1) {
    SHARED(u32, s, 128);
    s[thread()] = thread();
    a.p[block() * 128 + thread()] = s[(thread() + 128 + (i32)a.n) % 128];
}
KERNEL(test_bulk_unbegun, MistakeArgs, 32, 1) {
    SHARED(u64, filled, 1);
    if (lane() == 0) bulk_init(filled, 1);
    sync_warp();
    bulk_wait(filled, 0);
}
KERNEL(test_bulk_twice, MistakeArgs, 32, 1) {
    SHARED(u64, filled, 1);
    SHARED(u32, s, 64);
    if (lane() != 0) return;
    bulk_init(filled, 1);
    copy_bulk(filled, s, a.p, 64);
    copy_bulk(filled, s + 16, a.p, 64);
}
KERNEL(test_bulk_misaligned, MistakeArgs, 32, 1) {
    SHARED(u64, filled, 1);
    SHARED(u32, s, 64);
    if (lane() != 0) return;
    bulk_init(filled, 1);
    copy_bulk(filled, s, (const u8 *)a.p + a.n, 64);
}
KERNEL(test_bulk_outside_shared, MistakeArgs, 32, 1) {
    SHARED(u64, filled, 1);
    SHARED(u32, s, 64);
    if (lane() != 0) return;
    bulk_init(filled, 1);
    copy_bulk(filled, s + 60, a.p, 64);
}
KERNEL(test_blocks_apart, MistakeArgs, 32, 1) {
    grid_arrive(a.p);
    grid_wait(a.p, 1);
}
KERNEL(test_polls_apart, MistakeArgs, 32, 1) {
    while (strong_load((const bf16 *)a.p) != 1) relax();
}
