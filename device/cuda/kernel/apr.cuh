// apr.cuh: everything that a kernel of this folder may use. Kernels include this file and nothing else.
//
// Two programs compile a kernel: clang for the GPU (PTX, no CUDA headers, no libdevice), and a C++ compiler for the
// emulator of device/cuda/emulator, which defines APR_HOST and gives every name below the same meaning on a CPU: the
// threads of a block are fibers, and a warp's 32 lanes meet at every warp-wide operation.
//
// Rules that keep both programs right: blocks are one-dimensional, of a multiple of 32 threads; warp-wide operations
// and barriers are reached by all lanes (all threads); every kernel takes exactly one struct of arguments, with members
// in descending order of size so that C and Go lay it out alike; sums have a fixed order and no float is added
// atomically.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef int i32;
typedef long long i64;
typedef u16 bf16; // the bits of a bfloat16
// Four 32-bit words that are loaded and stored by one instruction; the address must be a multiple of 16.
typedef u32 u32x4 __attribute__((vector_size(16)));
typedef float f32x4 __attribute__((vector_size(16)));
typedef u32 u32x2 __attribute__((vector_size(8)));
typedef float f32x2 __attribute__((vector_size(8)));

enum { OBJECTIVES = 2 }; // device.NumObjectives

// Record is the device's record of one step; the Go struct of the same members is kernel.Record.
struct Record {
    double lr, inv_n, bias1, bias2, max_norm; // set by the host: see device.Scalars
    double ce_weight, d_weight, max_loss;
    double ce, d, entropy; // sums over rows, by the loss
    i64 positions, agree;
    double loss, grad_norm, scale; // by the verdict
    i64 finite;                    // 1: Σ CE, Σ D and the norm are finite
    i64 diverged;                  // 1: they are, and the loss is above max_loss
    i64 fault;                     // first error that a kernel saw: 0 none, else a code of kernel.Fault
    i64 fault_value, fault_limit;
    u32 arrived; // blocks of the launch that have come to arrive_last; 0 between launches
    double weights[OBJECTIVES], sums[OBJECTIVES]; // of the terms of the loss beside CE and D: set by the host; summed
};

#ifdef APR_HOST
#include "host.h"
#else

#define APR_DEVICE __attribute__((device)) static inline __attribute__((always_inline))
#define APR_METHOD __attribute__((device)) inline __attribute__((always_inline)) // the same for members of a struct
// KERNEL(name, Args, threads, blocks) { body } defines a kernel whose argument is `const Args a`, launched with at most
// `threads` threads a block, of which the compiler arranges registers so that `blocks` blocks fit a multiprocessor.
#define KERNEL(name, Args, threads, blocks) \
    extern "C" __attribute__((global)) __attribute__((launch_bounds(threads, blocks))) void name(const Args a)
// SHARED(T, name, n) declares n values of T shared by the block, 16-byte aligned, undefined at first.
#define SHARED(T, name, n) __attribute__((shared)) __attribute__((aligned(16))) static T name[n]
// DYNAMIC_SHARED(name) declares the shared bytes that the launch asked for, 16-byte aligned (128 for launches above 48 KiB).
extern "C" __attribute__((shared)) __attribute__((aligned(128))) unsigned char apr_dynamic_shared[];
#define DYNAMIC_SHARED(name) unsigned char *name = apr_dynamic_shared
#define UNROLL _Pragma("unroll")
#define UNROLL_8 _Pragma("unroll 8")
#define NO_UNROLL _Pragma("nounroll") // before loops whose copies would take registers that others need
#define RESTRICT __restrict__

// Place of a thread. Blocks are one-dimensional, grids three-dimensional.
APR_DEVICE u32 thread() { return __nvvm_read_ptx_sreg_tid_x(); }
APR_DEVICE u32 threads() { return __nvvm_read_ptx_sreg_ntid_x(); }
APR_DEVICE u32 block() { return __nvvm_read_ptx_sreg_ctaid_x(); }
APR_DEVICE u32 block_y() { return __nvvm_read_ptx_sreg_ctaid_y(); }
APR_DEVICE u32 block_z() { return __nvvm_read_ptx_sreg_ctaid_z(); }
APR_DEVICE u32 blocks() { return __nvvm_read_ptx_sreg_nctaid_x(); }

// Barriers.
APR_DEVICE void sync_block() { __nvvm_bar_sync(0); }
APR_DEVICE void sync_warp() { __nvvm_bar_warp_sync(0xffffffffu); }

// Overlap of a kernel with the one before it in the stream, where that is launched so (Launch.Early) on compute capability
// 9.0. let_next says that the next kernel's blocks may start as soon as all blocks of this one have said so and there is
// room. wait_before waits until the kernel before has ended and what it wrote is seen: nothing that an earlier kernel
// writes may be read before, nor anything be written that it reads. Elsewhere both do nothing.
#if __CUDA_ARCH__ >= 900
APR_DEVICE void let_next() { asm volatile("griddepcontrol.launch_dependents;" : : : "memory"); }
APR_DEVICE void wait_before() { asm volatile("griddepcontrol.wait;" : : : "memory"); }
#else
APR_DEVICE void let_next() {}
APR_DEVICE void wait_before() {}
#endif

// Barriers of all blocks of a launch that is Together. One warp of a block arrives; what it wrote before, or other warps before
// a barrier of the block, is seen after grid_wait, in which all threads take part. arrived is 0 at the beginning of the
// launch; round is 1, 2, … at successive barriers.
APR_DEVICE void grid_arrive(u32 *arrived) {
    sync_warp();
    if ((thread() & 31) == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" : : "l"(arrived) : "memory");
}
// grid_see is what one thread does for it.
APR_DEVICE void grid_see(const u32 *arrived, u32 round) {
    u32 seen;
    do asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(arrived) : "memory");
    while (seen < round * blocks());
}
APR_DEVICE void grid_wait(const u32 *arrived, u32 round) {
    if (thread() == threads() - 1) grid_see(arrived, round);
    sync_block();
}

// Memory that several blocks of a launch write and read at the same time, without order between different places. relax is called
// where a thread reads again and again.
APR_DEVICE void strong_store(bf16 *p, bf16 v) { asm volatile("st.relaxed.gpu.global.u16 [%0], %1;" : : "l"(p), "h"(v) : "memory"); }
APR_DEVICE void strong_store(float *p, float v) { asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" : : "l"(p), "f"(v) : "memory"); }
APR_DEVICE bf16 strong_load(const bf16 *p) { bf16 v; asm volatile("ld.relaxed.gpu.global.u16 %0, [%1];" : "=h"(v) : "l"(p) : "memory"); return v; }
APR_DEVICE u32x4 strong_load16(const void *p) {
    u32 x, y, z, w;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "l"(p) : "memory");
    return u32x4{x, y, z, w};
}
APR_DEVICE void relax() {} // pauses made nothing faster

// arrive_last is how the last of n blocks finds out that it is: the others get false. One thread of a block calls it; what it
// wrote before, or others of its block before a barrier, is seen by that last thread, and by its block after a barrier. *arrived is
// 0 before the first block comes and again after the last.
APR_DEVICE bool arrive_last(u32 *arrived, u32 n) {
    u32 before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(arrived), "r"(n - 1) : "memory");
    return before == n - 1;
}

// Exchange between the lanes of a warp; all 32 take part.
APR_DEVICE u32 shfl_xor(u32 v, int m) { return __nvvm_shfl_sync_bfly_i32(0xffffffffu, (int)v, m, 31); }
APR_DEVICE i32 shfl_xor(i32 v, int m) { return __nvvm_shfl_sync_bfly_i32(0xffffffffu, v, m, 31); }
APR_DEVICE float shfl_xor(float v, int m) { return __nvvm_shfl_sync_bfly_f32(0xffffffffu, v, m, 31); }
APR_DEVICE u32 shfl(u32 v, int lane) { return __nvvm_shfl_sync_idx_i32(0xffffffffu, (int)v, lane, 31); }
APR_DEVICE i32 shfl(i32 v, int lane) { return __nvvm_shfl_sync_idx_i32(0xffffffffu, v, lane, 31); }
APR_DEVICE float shfl(float v, int lane) { return __nvvm_shfl_sync_idx_f32(0xffffffffu, v, lane, 31); }
APR_DEVICE u32 shfl_up(u32 v, int d) { return __nvvm_shfl_sync_up_i32(0xffffffffu, (int)v, d, 0); }
APR_DEVICE float shfl_down(float v, int d) { return __nvvm_shfl_sync_down_f32(0xffffffffu, v, d, 31); }
APR_DEVICE u32 ballot(bool p) { return __nvvm_vote_ballot_sync(0xffffffffu, p); }
APR_DEVICE u32 warp_max(u32 v) { return (u32)__nvvm_redux_sync_umax((int)v, -1); }

// Arithmetic. The approximations flush denormals; their errors are about two units in the last place.
APR_DEVICE float exp2_approx(float x) { float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
APR_DEVICE float log2_approx(float x) { float r; asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
APR_DEVICE float rsqrt_approx(float x) { float r; asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
APR_DEVICE float rcp_approx(float x) { float r; asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
APR_DEVICE float sqrt_rn(float x) { float r; asm("sqrt.rn.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
APR_DEVICE double sqrt_rn(double x) { double r; asm("sqrt.rn.f64 %0, %1;" : "=d"(r) : "d"(x)); return r; }
APR_DEVICE float fma_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
// mul_rn is a product that is rounded before anything is added to it; x * y may become part of a fused multiply-add.
APR_DEVICE float mul_rn(float x, float y) { return __nvvm_mul_rn_f(x, y); }
APR_DEVICE double mul_rn(double x, double y) { return __nvvm_mul_rn_d(x, y); }
// to_int converts toward zero; what no int holds becomes the nearest one, NaN 0.
APR_DEVICE int to_int(double x) { int r; asm("cvt.rzi.s32.f64 %0, %1;" : "=r"(r) : "d"(x)); return r; }
APR_DEVICE float max2(float x, float y) { return __builtin_fmaxf(x, y); }
APR_DEVICE float min2(float x, float y) { return __builtin_fminf(x, y); }
APR_DEVICE u32 bits(float x) { return __builtin_bit_cast(u32, x); }
APR_DEVICE float from_bits(u32 x) { return __builtin_bit_cast(float, x); }
APR_DEVICE int popcount(u32 x) { return __builtin_popcount(x); }
APR_DEVICE u32 leading_zeros(u32 x) { return (u32)__builtin_clz(x); } // of x > 0
// opaque hides from the compiler what it knows about x: what is computed from x stays where it is written, instead of
// being moved out of a loop into registers that the loop lacks.
APR_DEVICE void opaque(int &x) { asm volatile("" : "+r"(x)); }
APR_DEVICE void opaque(i64 &x) { asm volatile("" : "+l"(x)); }

// bfloat16: to nearest, ties to even; NaN stays NaN.
APR_DEVICE bf16 to_bf16(float x) { bf16 r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r; }
APR_DEVICE float from_bf16(bf16 x) { return from_bits((u32)x << 16); }
// pack_bf16 returns lo in the low half and hi in the high half.
APR_DEVICE u32 pack_bf16(float lo, float hi) { u32 r; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo)); return r; }
// max_bf16 and fma_bf16 compute with pairs of bfloat16: the larger, and x·y + z rounded once.
APR_DEVICE u32 max_bf16(u32 x, u32 y) { u32 r; asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(r) : "r"(x), "r"(y)); return r; } // NaN if one is
APR_DEVICE u32 fma_bf16(u32 x, u32 y, u32 z) { u32 r; asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z)); return r; }
// from_f16 widens the bits of an IEEE half, exactly.
APR_DEVICE float from_f16(u16 x) { float r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x)); return r; }
// to_f16 rounds to the bits of an IEEE half: to nearest, ties to even, infinity beyond.
APR_DEVICE u16 to_f16(float x) { u16 r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r; }
// pack_e4m3 rounds to two e4m3 numbers, lo in the low byte: to nearest, ties to even, ±448 beyond. Compute capability 9.0.
APR_DEVICE u16 pack_e4m3(float lo, float hi) { u16 r; asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(hi), "f"(lo)); return r; }
// byte_perm returns four of the eight bytes of y:x; nibble i of select is the number of byte i, 0 … 7.
APR_DEVICE u32 byte_perm(u32 x, u32 y, u32 select) { return __nvvm_prmt(x, y, select); }
// dot4_XY returns c + Σ a_i·b_i of the four bytes of a and b, exactly: a signed (s) or not (u), then b.
APR_DEVICE i32 dot4_us(u32 a, u32 b, i32 c) { i32 r; asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c)); return r; }
APR_DEVICE i32 dot4_ss(u32 a, u32 b, i32 c) { i32 r; asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(c)); return r; }
// to_tf32 rounds to the 10-bit mantissa that mma_tf32 reads.
APR_DEVICE u32 to_tf32(float x) { u32 r; asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x)); return r; }

// Tensor cores: d += a·b for one warp, in the fragment layouts of the PTX manual (mma.m16n8k16, row.col).
APR_DEVICE void mma_bf16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// d += a·b with a and b of tf32 bits (mma.m16n8k8, row.col).
APR_DEVICE void mma_tf32(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// d += a·b in integers, a of bytes that are signed (s) or not (u), b of signed ones (mma.m16n8k32, row.col).
APR_DEVICE void mma_us(i32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
APR_DEVICE void mma_ss(i32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Shared memory. Pointers are generic pointers into it.
APR_DEVICE u32 shared_address(const void *p) { return (u32)(u64)(const __attribute__((address_space(3))) void *)p; }
// ldmatrix: four (two) 8×8 matrices of 16-bit elements; lane l gives the address of row l%8 of matrix l/8.
APR_DEVICE void ldmatrix4(u32 (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
APR_DEVICE void ldmatrix4_trans(u32 (&r)[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
}
APR_DEVICE void ldmatrix2(u32 (&r)[2], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)) : "memory");
}
APR_DEVICE void ldmatrix2_trans(u32 (&r)[2], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)) : "memory");
}
// Asynchronous 16-byte copy from global to shared memory; with !valid 16 zero bytes are written and nothing is read.
APR_DEVICE void copy_async16(void *shared, const void *global, bool valid = true) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(shared_address(shared)), "l"(global), "r"(valid ? 16 : 0) : "memory");
}
APR_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" : : : "memory"); }
// copy_async_wait<N> waits until at most N committed groups of this thread are pending.
template <int N> APR_DEVICE void copy_async_wait() { asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory"); }

// Bulk copies from global to shared memory, of compute capability 9.0. filled, in shared memory, counts them: after
// bulk_init, as many copies and then, with parity 0, 1, 0, … a bulk_wait, again and again. Addresses and bytes, which may be
// 0, are multiples of 16; what lanes read of the place before has to be done with.
#if __CUDA_ARCH__ >= 900
APR_DEVICE void bulk_init(u64 *filled, u32 copies) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\nfence.proxy.async.shared::cta;" : : "r"(shared_address(filled)), "r"(copies) : "memory");
}
APR_DEVICE void copy_bulk(u64 *filled, void *shared, const void *global, u32 bytes) {
    if (bytes == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(shared_address(filled)) : "memory");
    else asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %3;\n"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%1], [%2], %3, [%0];"
        : : "r"(shared_address(filled)), "r"(shared_address(shared)), "l"(global), "r"(bytes) : "memory");
}
APR_DEVICE void bulk_wait(u64 *filled, u32 parity) {
    asm volatile("{ .reg .pred p;\nWAIT_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE_%=;\nbra WAIT_%=;\nDONE_%=: }"
        : : "r"(shared_address(filled)), "r"(parity) : "memory");
}
#endif

// Global memory. stream_* are for data that is used once: they leave the caches to others.
APR_DEVICE u32x4 load16(const void *p) { return *(const u32x4 *)p; }
// whole keeps the compiler from loading parts of v where they are used, each by an instruction of its own.
APR_DEVICE u32x4 whole(u32x4 v) {
    u32 x = v[0], y = v[1], z = v[2], w = v[3];
    asm("" : "+r"(x), "+r"(y), "+r"(z), "+r"(w));
    return u32x4{x, y, z, w};
}
APR_DEVICE u32x4 stream_load16(const void *p) {
    u32x4 r; u32 x, y, z, w;
    asm volatile("ld.global.cs.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "l"(p) : "memory");
    r[0] = x; r[1] = y; r[2] = z; r[3] = w; return r;
}
APR_DEVICE void store16(void *p, u32x4 v) { *(u32x4 *)p = v; }
APR_DEVICE void stream_store16(void *p, u32x4 v) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1,%2,%3,%4};" : : "l"(p), "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3]) : "memory");
}
APR_DEVICE void stream_store8(void *p, u32x2 v) {
    asm volatile("st.global.cs.v2.u32 [%0], {%1,%2};" : : "l"(p), "r"(v[0]), "r"(v[1]) : "memory");
}
// prefetch asks for the line of an address to come to the second cache.
APR_DEVICE void prefetch(const void *p) { asm volatile("prefetch.global.L2 [%0];" : : "l"(p)); }
// first_fault notes an error for the host, if none was noted before. Which of several wins is not determined.
APR_DEVICE void first_fault(Record *r, i64 code, i64 value, i64 limit) {
    u64 old;
    asm volatile("atom.global.cas.b64 %0, [%1], 0, %2;" : "=l"(old) : "l"(&r->fault), "l"((u64)code) : "memory");
    if (old == 0) { r->fault_value = value; r->fault_limit = limit; }
}

#endif // APR_HOST

#define LOG2E 1.4426950408889634f
#define LN2 0.6931471805599453f
#define INFINITY_F (__builtin_inff())

// exp_approx(x) = 2^(x·log₂e).
APR_DEVICE float exp_approx(float x) { return exp2_approx(x * LOG2E); }
APR_DEVICE u32 lane() { return thread() & 31; }
APR_DEVICE u32 warp() { return thread() >> 5; }
APR_DEVICE i64 min_of(i64 x, i64 y) { return x < y ? x : y; }

// Element access for kernels that are written once for float and bf16.
APR_DEVICE float load(const float *p) { return *p; }
APR_DEVICE float load(const bf16 *p) { return from_bf16(*p); }
APR_DEVICE void store(float *p, float v) { *p = v; }
APR_DEVICE void store(bf16 *p, float v) { *p = to_bf16(v); }

// Sums over a warp, in the fixed order of a butterfly; every lane gets the same bits.
APR_DEVICE float warp_sum(float v) {
    UNROLL for (int m = 16; m; m >>= 1) v += shfl_xor(v, m);
    return v;
}
APR_DEVICE float warp_max(float v) {
    UNROLL for (int m = 16; m; m >>= 1) v = max2(v, shfl_xor(v, m));
    return v;
}
APR_DEVICE double shfl_xor(double v, int m) {
    u64 b = __builtin_bit_cast(u64, v);
    u64 r = (u64)shfl_xor((u32)b, m) | (u64)shfl_xor((u32)(b >> 32), m) << 32;
    return __builtin_bit_cast(double, r);
}
APR_DEVICE double shfl(double v, int lane) {
    u64 b = __builtin_bit_cast(u64, v);
    return __builtin_bit_cast(double, (u64)shfl((u32)b, lane) | (u64)shfl((u32)(b >> 32), lane) << 32);
}
APR_DEVICE double warp_sum(double v) {
    UNROLL for (int m = 16; m; m >>= 1) v += shfl_xor(v, m);
    return v;
}
// block_sum adds over the block in a fixed order; part holds 33 values, every thread gets the sum. It begins and ends
// with a barrier, so part may be used again at once.
template <class T> APR_DEVICE T block_sum(T v, T *part) {
    v = warp_sum(v);
    sync_block();
    if (lane() == 0) part[warp()] = v;
    sync_block();
    if (warp() == 0) {
        T s = lane() < threads() / 32 ? part[lane()] : T(0);
        s = warp_sum(s);
        if (lane() == 0) part[32] = s;
    }
    sync_block();
    T s = part[32];
    sync_block();
    return s;
}

// Pack<T, E> is E consecutive elements as they lie in memory, E 1 or 8: kernels load several before they convert any, so
// that the loads are in flight together. A pack of 8 stands at a multiple of 16 bytes.
template <class T, int E> struct Pack { T v; };
template <> struct Pack<bf16, 8> { u32x4 v; };
template <> struct Pack<float, 8> { f32x4 v, w; };

template <class T> APR_DEVICE void load_pack(Pack<T, 1> &r, const T *p) { r.v = *p; }
APR_DEVICE void load_pack(Pack<bf16, 8> &r, const bf16 *p) { r.v = load16(p); }
APR_DEVICE void load_pack(Pack<float, 8> &r, const float *p) {
    r.v = __builtin_bit_cast(f32x4, load16(p));
    r.w = __builtin_bit_cast(f32x4, load16(p + 4));
}
template <class T> APR_DEVICE void store_pack(T *p, const Pack<T, 1> &r) { *p = r.v; }
APR_DEVICE void store_pack(bf16 *p, const Pack<bf16, 8> &r) { store16(p, r.v); }
APR_DEVICE void store_pack(float *p, const Pack<float, 8> &r) {
    store16(p, __builtin_bit_cast(u32x4, r.v));
    store16(p + 4, __builtin_bit_cast(u32x4, r.w));
}
// widen converts a pack to float; narrow rounds to the nearest value of the pack's type.
template <class T> APR_DEVICE void widen(float (&x)[1], const Pack<T, 1> &r) { x[0] = load(&r.v); }
APR_DEVICE void widen(float (&x)[8], const Pack<bf16, 8> &r) {
    UNROLL for (int i = 0; i < 4; i++) { x[2 * i] = from_bits(r.v[i] << 16); x[2 * i + 1] = from_bits(r.v[i] & 0xffff0000u); }
}
APR_DEVICE void widen(float (&x)[8], const Pack<float, 8> &r) {
    UNROLL for (int i = 0; i < 4; i++) { x[i] = r.v[i]; x[4 + i] = r.w[i]; }
}
template <class T> APR_DEVICE void narrow(Pack<T, 1> &r, const float (&x)[1]) { store(&r.v, x[0]); }
APR_DEVICE void narrow(Pack<bf16, 8> &r, const float (&x)[8]) {
    UNROLL for (int i = 0; i < 4; i++) r.v[i] = pack_bf16(x[2 * i], x[2 * i + 1]);
}
APR_DEVICE void narrow(Pack<float, 8> &r, const float (&x)[8]) {
    UNROLL for (int i = 0; i < 4; i++) { r.v[i] = x[i]; r.w[i] = x[4 + i]; }
}
