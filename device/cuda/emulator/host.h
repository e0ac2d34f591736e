// host.h: the other half of apr.cuh, for the emulator: every name that apr.cuh declares for the GPU, on a CPU. The
// threads of a block are fibers of one CPU thread; whatever they do together goes through namespace apr_host, which
// runtime/ implements. This file includes nothing, so that kernels see no names but those of apr.cuh.
#pragma once

namespace apr_host {

// Place is where the running thread stands. It belongs to the CPU thread and changes at every switch of fibers.
struct Place {
    u32 thread, threads, block, block_y, block_z, blocks;
};
extern __thread Place place __attribute__((tls_model("initial-exec")));

// Site is one SHARED declaration.
struct Site {
    u32 id;
};

// Kernel is what KERNEL registers.
struct Kernel {
    Kernel(const char *module, const char *name, void (*body)(const void *), u32 bytes, u32 threads);
    const char *module, *name;
    void (*body)(const void *args);
    u32 bytes, threads; // of the argument; most of a block
    Kernel *next;
};

enum Operation { none, op_shfl_xor, op_shfl, op_shfl_up, op_shfl_down, op_ballot, op_sync_warp, op_mma_bf16, op_mma_tf32, op_mma_us, op_mma_ss,
    op_ldmatrix4, op_ldmatrix4_trans, op_ldmatrix2, op_ldmatrix2_trans, op_sync_block };

void *shared(Site *site, u32 bytes);
unsigned char *dynamic_shared();
u32 shared_offset(const void *p);
void sync_block();
void grid_arrive(u32 *arrived);
void grid_wait(const u32 *arrived, u32 target);
void relax();
// exchange deposits v and returns what lane `from` deposited.
u32 exchange(Operation op, u32 v, u32 from);
u32 ballot(bool p);
void sync_warp();
void mma(Operation op, void *d, const u32 *a, u32 b0, u32 b1); // d: four floats or integers
void ldmatrix(Operation op, u32 *r, const void *row);
void copy_async16(void *shared, const void *global, bool valid);
void copy_async_commit();
void bulk_init(u64 *filled, u32 copies);
void copy_bulk(u64 *filled, void *shared, const void *global, u32 bytes);
void bulk_wait(u64 *filled, u32 parity);
void copy_async_wait(u32 pending);
[[noreturn]] void misaligned(const char *what, const void *p);

} // namespace apr_host

#define APR_DEVICE static inline __attribute__((always_inline, unused))
#define APR_METHOD inline __attribute__((always_inline))
#define APR_TEXT_(x) #x
#define APR_TEXT(x) APR_TEXT_(x)
#define APR_KERNEL_(name, Args, most) \
    static void name(const Args &a); \
    static apr_host::Kernel name##_kernel(APR_TEXT(APR_MODULE), #name, \
        [](const void *args) { name(*(const Args *)args); }, sizeof(Args), most); \
    static void name(const Args &a)
#define KERNEL(name, Args, threads, blocks) APR_KERNEL_(name, Args, threads)
#define SHARED(T, name, n) \
    static apr_host::Site name##_site; \
    T(&name)[n] = *(T(*)[n])apr_host::shared(&name##_site, sizeof(T[n]))
#define DYNAMIC_SHARED(name) unsigned char *name = apr_host::dynamic_shared()
#define UNROLL
#define UNROLL_8
#define NO_UNROLL
#define RESTRICT __restrict__

APR_DEVICE u32 thread() { return apr_host::place.thread; }
APR_DEVICE u32 threads() { return apr_host::place.threads; }
APR_DEVICE u32 block() { return apr_host::place.block; }
APR_DEVICE u32 block_y() { return apr_host::place.block_y; }
APR_DEVICE u32 block_z() { return apr_host::place.block_z; }
APR_DEVICE u32 blocks() { return apr_host::place.blocks; }

APR_DEVICE void sync_block() { apr_host::sync_block(); }
APR_DEVICE void sync_warp() { apr_host::sync_warp(); }
APR_DEVICE void grid_arrive(u32 *arrived) {
    apr_host::sync_warp();
    if ((thread() & 31) == 0) apr_host::grid_arrive(arrived);
}
APR_DEVICE void grid_wait(const u32 *arrived, u32 round) {
    sync_block(); // a thread that waits for other blocks keeps those of its own from running
    if (thread() == threads() - 1) apr_host::grid_wait(arrived, round * blocks());
    sync_block();
}
APR_DEVICE void strong_store(bf16 *p, bf16 v) { __atomic_store_n(p, v, __ATOMIC_RELAXED); }
APR_DEVICE void strong_store(float *p, float v) { __atomic_store_n((u32 *)p, __builtin_bit_cast(u32, v), __ATOMIC_RELAXED); }
APR_DEVICE bf16 strong_load(const bf16 *p) { return __atomic_load_n(p, __ATOMIC_RELAXED); }
APR_DEVICE u32x4 strong_load16(const void *p) {
    u32x4 v;
    for (int i = 0; i < 4; i++) v[i] = __atomic_load_n((const u32 *)p + i, __ATOMIC_RELAXED);
    return v;
}
APR_DEVICE void relax() { apr_host::relax(); }
APR_DEVICE void grid_see(const u32 *arrived, u32 round) {
    while (__atomic_load_n(arrived, __ATOMIC_ACQUIRE) < round * blocks()) relax();
}
APR_DEVICE bool arrive_last(u32 *arrived, u32 n) {
    if (__atomic_add_fetch(arrived, 1, __ATOMIC_ACQ_REL) != n) return false;
    __atomic_store_n(arrived, 0, __ATOMIC_RELAXED);
    return true;
}
APR_DEVICE void let_next() {}
APR_DEVICE void wait_before() {}

APR_DEVICE u32 bits(float x) { return __builtin_bit_cast(u32, x); }
APR_DEVICE float from_bits(u32 x) { return __builtin_bit_cast(float, x); }
APR_DEVICE int popcount(u32 x) { return __builtin_popcount(x); }
APR_DEVICE u32 leading_zeros(u32 x) { return (u32)__builtin_clz(x); }
APR_DEVICE void opaque(int &) {}
APR_DEVICE void opaque(i64 &) {}

APR_DEVICE u32 shfl_xor(u32 v, int m) { return apr_host::exchange(apr_host::op_shfl_xor, v, (thread() & 31) ^ (m & 31)); }
APR_DEVICE i32 shfl_xor(i32 v, int m) { return (i32)shfl_xor((u32)v, m); }
APR_DEVICE float shfl_xor(float v, int m) { return from_bits(shfl_xor(bits(v), m)); }
APR_DEVICE u32 shfl(u32 v, int lane) { return apr_host::exchange(apr_host::op_shfl, v, lane & 31); }
APR_DEVICE i32 shfl(i32 v, int lane) { return (i32)shfl((u32)v, lane); }
APR_DEVICE float shfl(float v, int lane) { return from_bits(shfl(bits(v), lane)); }
// Lanes whose partner would lie outside the warp keep their own value.
APR_DEVICE u32 shfl_up(u32 v, int d) {
    int l = (int)(thread() & 31);
    return apr_host::exchange(apr_host::op_shfl_up, v, l - (d & 31) < 0 ? l : l - (d & 31));
}
APR_DEVICE float shfl_down(float v, int d) {
    int l = (int)(thread() & 31);
    return from_bits(apr_host::exchange(apr_host::op_shfl_down, bits(v), l + (d & 31) > 31 ? l : l + (d & 31)));
}
APR_DEVICE u32 ballot(bool p) { return apr_host::ballot(p); }
APR_DEVICE u32 warp_max(u32 v) {
    for (int m = 16; m; m /= 2) {
        const u32 other = shfl_xor(v, m);
        v = other > v ? other : v;
    }
    return v;
}

// flush makes a denormal zero of the same sign.
APR_DEVICE float apr_flush(float x) { return (bits(x) & 0x7f800000u) ? x : from_bits(bits(x) & 0x80000000u); }
APR_DEVICE float exp2_approx(float x) { return apr_flush(__builtin_exp2f(apr_flush(x))); }
APR_DEVICE float log2_approx(float x) { return apr_flush(__builtin_log2f(apr_flush(x))); }
APR_DEVICE float rsqrt_approx(float x) { return (float)(1 / __builtin_sqrt((double)apr_flush(x))); }
APR_DEVICE float rcp_approx(float x) { return apr_flush(1 / apr_flush(x)); }
APR_DEVICE float sqrt_rn(float x) { return __builtin_sqrtf(x); }
APR_DEVICE double sqrt_rn(double x) { return __builtin_sqrt(x); }
APR_DEVICE float fma_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
APR_DEVICE float mul_rn(float x, float y) {
    float r = x * y;
    asm("" : "+m"(r)); // keeps the compiler from fusing
    return r;
}
APR_DEVICE double mul_rn(double x, double y) {
    double r = x * y;
    asm("" : "+m"(r));
    return r;
}
APR_DEVICE int to_int(double x) {
    if (x != x) return 0;
    return x <= -2147483648.0 ? -2147483647 - 1 : x >= 2147483647.0 ? 2147483647 : (int)x;
}
// If one of two values is NaN the other is the result; -0 < +0.
APR_DEVICE float max2(float x, float y) {
    if (x != x) return y;
    if (y != y) return x;
    return x == y ? from_bits(bits(x) & bits(y)) : x > y ? x : y;
}
APR_DEVICE float min2(float x, float y) {
    if (x != x) return y;
    if (y != y) return x;
    return x == y ? from_bits(bits(x) | bits(y)) : x < y ? x : y;
}

APR_DEVICE bf16 to_bf16(float x) {
    u32 u = bits(x);
    if (x != x) return 0x7fff;
    return (bf16)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
APR_DEVICE float from_bf16(bf16 x) { return from_bits((u32)x << 16); }
APR_DEVICE u32 pack_bf16(float lo, float hi) { return (u32)to_bf16(lo) | (u32)to_bf16(hi) << 16; }
APR_DEVICE u32 max_bf16(u32 x, u32 y) {
    u32 r = 0;
    for (int i = 0; i < 32; i += 16) {
        const float a = from_bits(x >> i << 16), b = from_bits(y >> i << 16);
        r |= (a != a || b != b ? 0x7fffu : (a > b ? x : y) >> i & 0xffff) << i;
    }
    return r;
}
APR_DEVICE u32 fma_bf16(u32 x, u32 y, u32 z) {
    const double lo = (double)from_bits(x << 16) * from_bits(y << 16) + from_bits(z << 16);
    const double hi = (double)from_bits(x & 0xffff0000u) * from_bits(y & 0xffff0000u) + from_bits(z & 0xffff0000u);
    return pack_bf16((float)lo, (float)hi);
}
APR_DEVICE float from_f16(u16 x) {
    const u32 sign = (u32)(x & 0x8000) << 16, man = x & 0x3ff, exp = x >> 10 & 31;
    if (exp == 0) return from_bits(bits((float)man * 0x1p-24f) | sign);
    return from_bits(sign | (exp == 31 ? 0x7f800000u : (exp + 112) << 23) | man << 13);
}
APR_DEVICE u16 to_f16(float x) {
    const u32 u = bits(x) & 0x7fffffffu, sign = bits(x) >> 16 & 0x8000;
    if (x != x) return (u16)(sign | 0x7fff);
    if (u >= 0x477ff000u) return (u16)(sign | 0x7c00);                                    // 65520 and beyond
    if (u < 0x38800000u) return (u16)(sign | (bits(from_bits(u) + 0.5f) - 0x3f000000u)); // below 2⁻¹⁴: multiples of 2⁻²⁴
    return (u16)(sign | ((u + 0xfff + (u >> 13 & 1)) >> 13) - (112 << 10));
}
APR_DEVICE u8 apr_e4m3(float x) {
    u32 u = bits(x) & 0x7fffffffu, sign = bits(x) >> 24 & 0x80;
    if (x != x) return 0x7f;
    if (u >= 0x43e00000u) return (u8)(sign | 0x7e);                                        // 448 and beyond
    if (u < 0x3c800000u) return (u8)(sign | (bits(from_bits(u) + 16384.0f) - 0x46800000u)); // below 2⁻⁶: multiples of 2⁻⁹
    return (u8)(sign | ((u + 0x7ffff + (u >> 20 & 1)) >> 20) - (120 << 3));
}
APR_DEVICE u16 pack_e4m3(float lo, float hi) { return (u16)(apr_e4m3(lo) | apr_e4m3(hi) << 8); }
template <class A, class B> APR_DEVICE i32 dot4(u32 a, u32 b, i32 c) {
    for (int i = 0; i < 4; i++) c += (i32)(A)(a >> 8 * i) * (i32)(B)(b >> 8 * i);
    return c;
}
APR_DEVICE i32 dot4_us(u32 a, u32 b, i32 c) { return dot4<u8, signed char>(a, b, c); }
APR_DEVICE i32 dot4_ss(u32 a, u32 b, i32 c) { return dot4<signed char, signed char>(a, b, c); }
APR_DEVICE u32 byte_perm(u32 x, u32 y, u32 select) {
    const u64 all = (u64)y << 32 | x;
    u32 r = 0;
    for (int i = 0; i < 4; i++) r |= (u32)(all >> 8 * (select >> 4 * i & 7) & 0xff) << 8 * i;
    return r;
}
// To nearest, ties away from zero.
APR_DEVICE u32 to_tf32(float x) {
    u32 u = bits(x);
    if (x != x) return 0x7fffffff;
    return (u & 0x7f800000u) == 0x7f800000u ? u : (u + 0x1000) & ~0x1fffu;
}

APR_DEVICE void mma_bf16(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { apr_host::mma(apr_host::op_mma_bf16, d, a, b0, b1); }
APR_DEVICE void mma_tf32(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { apr_host::mma(apr_host::op_mma_tf32, d, a, b0, b1); }
APR_DEVICE void mma_us(i32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { apr_host::mma(apr_host::op_mma_us, d, a, b0, b1); }
APR_DEVICE void mma_ss(i32 (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) { apr_host::mma(apr_host::op_mma_ss, d, a, b0, b1); }

APR_DEVICE u32 shared_address(const void *p) { return apr_host::shared_offset(p); }
APR_DEVICE void ldmatrix4(u32 (&r)[4], const void *row) { apr_host::ldmatrix(apr_host::op_ldmatrix4, r, row); }
APR_DEVICE void ldmatrix4_trans(u32 (&r)[4], const void *row) { apr_host::ldmatrix(apr_host::op_ldmatrix4_trans, r, row); }
APR_DEVICE void ldmatrix2(u32 (&r)[2], const void *row) { apr_host::ldmatrix(apr_host::op_ldmatrix2, r, row); }
APR_DEVICE void ldmatrix2_trans(u32 (&r)[2], const void *row) { apr_host::ldmatrix(apr_host::op_ldmatrix2_trans, r, row); }
APR_DEVICE void copy_async16(void *shared, const void *global, bool valid = true) { apr_host::copy_async16(shared, global, valid); }
APR_DEVICE void copy_async_commit() { apr_host::copy_async_commit(); }
APR_DEVICE void bulk_init(u64 *filled, u32 copies) { apr_host::bulk_init(filled, copies); }
APR_DEVICE void copy_bulk(u64 *filled, void *shared, const void *global, u32 bytes) { apr_host::copy_bulk(filled, shared, global, bytes); }
APR_DEVICE void bulk_wait(u64 *filled, u32 parity) { apr_host::bulk_wait(filled, parity); }
template <int N> APR_DEVICE void copy_async_wait() { apr_host::copy_async_wait(N); }

#define APR_ALIGNED(what, p) \
    if ((u64)(p)&15) apr_host::misaligned(what, p)
APR_DEVICE u32x4 load16(const void *p) {
    APR_ALIGNED("load16", p);
    return *(const u32x4 *)p;
}
APR_DEVICE u32x4 whole(u32x4 v) { return v; }
APR_DEVICE u32x4 stream_load16(const void *p) {
    APR_ALIGNED("stream_load16", p);
    return *(const u32x4 *)p;
}
APR_DEVICE void store16(void *p, u32x4 v) {
    APR_ALIGNED("store16", p);
    *(u32x4 *)p = v;
}
APR_DEVICE void stream_store16(void *p, u32x4 v) {
    APR_ALIGNED("stream_store16", p);
    *(u32x4 *)p = v;
}
APR_DEVICE void stream_store8(void *p, u32x2 v) {
    if ((u64)p & 7) apr_host::misaligned("stream_store8", p);
    *(u32x2 *)p = v;
}
APR_DEVICE void prefetch(const void *) {}
APR_DEVICE void first_fault(Record *r, i64 code, i64 value, i64 limit) {
    i64 old = 0;
    if (__atomic_compare_exchange_n(&r->fault, &old, code, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
        r->fault_value = value;
        r->fault_limit = limit;
    }
}
