// attention_hopper.cuh: what the kernels of attention for compute capability 9.0 share: barriers, copies, operands and
// products of warpgroups. PANEL, the bytes from 64 columns of a tile to the next where nothing else is said, is the including file's.
#pragma once

// ---- Instructions. Addresses are of shared memory. The emulator's stand in hopper.h.
#ifdef APR_HOST
#include "hopper.h"
#else

// Barriers: complete when `count` have arrived, and then begin anew; a wait names the parity of the round waited for.
APR_DEVICE void barrier_init(u32 at, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" : : "r"(at), "r"(count) : "memory"); }
APR_DEVICE void barrier_arrive(u32 at) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" : : "r"(at) : "memory"); }
APR_DEVICE bool barrier_ready(u32 at, u32 parity) {
    u32 ready;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
        : "=r"(ready) : "r"(at), "r"(parity) : "memory");
    return ready;
}
APR_DEVICE void barrier_wait(u32 at, u32 parity) {
    asm volatile("{ .reg .pred p;\nWAIT_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra DONE_%=;\nbra WAIT_%=;\nDONE_%=: }"
        : : "r"(at), "r"(parity) : "memory");
}
// Turns: take waits until it was passed to this group.
APR_DEVICE void turn_take(u32 group) { asm volatile("bar.sync %0, 256;" : : "r"(1 + group) : "memory"); }
APR_DEVICE void turn_pass(u32 group) { asm volatile("bar.arrive %0, 256;" : : "r"(1 + group) : "memory"); }

APR_DEVICE void fetch16(u32 to, const void *from, bool valid) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" : : "r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}
APR_DEVICE u32x4 load_shared16(u32 at) {
    u32 x, y, z, w;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(x), "=r"(y), "=r"(z), "=r"(w) : "r"(at) : "memory");
    return u32x4{x, y, z, w};
}
APR_DEVICE void store_matrices(u32 at, u32 a, u32 b, u32 c, u32 d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" : : "r"(at), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
template <int N> APR_DEVICE void grow_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" : : "n"(N)); }
template <int N> APR_DEVICE void shrink_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" : : "n"(N)); }

// An operand of 128-byte rows in the pattern: address, 1024 bytes from eight rows to the next, and, for an operand whose
// rows are inner positions (values), `panel` bytes from 64 columns to the next.
APR_DEVICE u64 operand(u32 at, u32 panel = PANEL) { return (u64)(at >> 4 & 0x3fff) | (u64)(panel >> 4) << 16 | (u64)64 << 32 | (u64)1 << 62; }

// Products of a warpgroup. Registers that a product writes are defined before, and read after wait_products only.
#define REGISTERS_32 \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15," \
    "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define REGISTERS_64 REGISTERS_32 "," \
    "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
    "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define REGISTERS_128 REGISTERS_64 "," \
    "%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79," \
    "%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95," \
    "%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111," \
    "%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define FOUR(c, x, i) c(x[i]), c(x[i + 1]), c(x[i + 2]), c(x[i + 3])
#define SIXTEEN(c, x, i) FOUR(c, x, i), FOUR(c, x, i + 4), FOUR(c, x, i + 8), FOUR(c, x, i + 12)
#define CHANGES_32(x) SIXTEEN("+f", x, 0), SIXTEEN("+f", x, 16)
#define CHANGES_64(x) CHANGES_32(x), SIXTEEN("+f", x, 32), SIXTEEN("+f", x, 48)
#define CHANGES_128(x) CHANGES_64(x), SIXTEEN("+f", x, 64), SIXTEEN("+f", x, 80), SIXTEEN("+f", x, 96), SIXTEEN("+f", x, 112)

// wait_products<N> waits until at most the N last started products are not complete; d is what is complete then.
template <int N> APR_DEVICE void wait_products(float (&d)[128]) {
    asm volatile("wgmma.wait_group.sync.aligned %128;" : CHANGES_128(d) : "n"(N) : "memory");
}
template <int N> APR_DEVICE void wait_products(float (&d)[64]) {
    asm volatile("wgmma.wait_group.sync.aligned %64;" : CHANGES_64(d) : "n"(N) : "memory");
}
template <int N> APR_DEVICE void wait_products(float (&d)[32]) {
    asm volatile("wgmma.wait_group.sync.aligned %32;" : CHANGES_32(d) : "n"(N) : "memory");
}

// publish makes this thread's writes to shared memory visible to multiplications that are started later.
APR_DEVICE void publish() { asm volatile("fence.proxy.async.shared::cta;" : : : "memory"); }

#define READS_16(x) SIXTEEN("r", x, 0)
#define BEGIN "{ .reg .pred on, more; .reg .b64 a, b; setp.eq.b32 on, 0, 0; setp.ne.b32 more, %"
#define BEGUN ", 0; wgmma.fence.sync.aligned;\n"
#define END "wgmma.commit_group.sync.aligned; }"
// A step of 16 inner positions: the left operand from registers, or from a second operand in shared memory.
#define STEP(n, sums, right, step, across, a0, a1, a2, a3) "add.s64 b, %" #right ", " #step ";\n" \
    "wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 {" sums "}, {%" #a0 ",%" #a1 ",%" #a2 ",%" #a3 "}, b, more, 1, 1, " #across ";\n" \
    "mov.pred more, on;\n"

// start_scores starts s = x·Xᵀ, or with MORE s += x·Xᵀ, for the group's 64 rows and the 64 of a tile. x are the left operand's registers, of 64
// columns.
template <int MORE> APR_DEVICE void start_scores(float (&s)[32], const u32 (&x)[16], u64 tile) {
    asm volatile(BEGIN "49" BEGUN
        STEP(64, REGISTERS_32, 48, 0, 0, 32, 33, 34, 35) STEP(64, REGISTERS_32, 48, 2, 0, 36, 37, 38, 39)
        STEP(64, REGISTERS_32, 48, 4, 0, 40, 41, 42, 43) STEP(64, REGISTERS_32, 48, 6, 0, 44, 45, 46, 47) END
        : CHANGES_32(s) : READS_16(x), "l"(tile), "r"(MORE) : "memory");
}

#endif // APR_HOST

// Places counts through n places from place `first`; parity is of the round.
struct Places {
    u32 at, parity;
    APR_METHOD void next(u32 first, u32 n) {
        if (++at == first + n) at = first, parity ^= 1;
    }
};
