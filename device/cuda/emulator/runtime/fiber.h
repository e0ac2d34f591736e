// fiber.h: the threads of a block, shared by fiber.cc, which switches between them, and warp.cc, where they meet.
#pragma once
#include "machine.h"
#include <vector>

// apr_switch(save, load) leaves the running stack, noting its pointer in *save, and goes on with the stack load. It is
// code in its caller and no function: a return that does not match the last call would be mispredicted.
#if defined(__x86_64__)
#define APR_SWITCH_CLOBBERS "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "xmm0", "xmm1", "xmm2", "xmm3", \
    "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "cc", "memory"
static inline __attribute__((always_inline)) void apr_switch(void **save, void *load) {
    asm volatile("lea -128(%%rsp), %%rsp\n" // the red zone
                 "push %%rbp\n"
                 "push %%rbx\n"
                 "lea 1f(%%rip), %%rax\n"
                 "push %%rax\n"
                 "mov %%rsp, (%0)\n"
                 "mov %1, %%rsp\n"
                 "pop %%rax\n"
                 "jmp *%%rax\n"
                 "1:\n"
                 "pop %%rbx\n"
                 "pop %%rbp\n"
                 "lea 128(%%rsp), %%rsp\n"
                 : "+D"(save), "+S"(load) : : APR_SWITCH_CLOBBERS);
}
#elif defined(__aarch64__)
#define APR_SWITCH_CLOBBERS "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15", "x16", "x17", "x18", "x20", \
    "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x30", "v0", "v1", "v2", "v3", "v4", "v5", "v6", "v7", "v8", "v9", "v10", "v11", \
    "v12", "v13", "v14", "v15", "v16", "v17", "v18", "v19", "v20", "v21", "v22", "v23", "v24", "v25", "v26", "v27", "v28", "v29", "v30", \
    "v31", "cc", "memory"
static inline __attribute__((always_inline)) void apr_switch(void **save, void *load) {
    register void **to asm("x0") = save;
    register void *from asm("x1") = load;
    asm volatile("stp x29, x19, [sp, #-32]!\n"
                 "adr x9, 1f\n"
                 "str x9, [sp, #16]\n"
                 "mov x9, sp\n"
                 "str x9, [%0]\n"
                 "mov sp, %1\n"
                 "ldr x9, [sp, #16]\n"
                 "br x9\n"
                 "1:\n"
                 "ldp x29, x19, [sp], #32\n"
                 : "+r"(to), "+r"(from) : : APR_SWITCH_CLOBBERS);
}
#else
#error "the emulator switches fibers on x86-64 and aarch64 only"
#endif
// apr_first makes the frame from which apr_switch starts entry on a fresh stack.
void *apr_first(char *top, void (*entry)());
// apr_land lets a signal handler return to entry on a fresh stack; context is its ucontext_t.
void apr_land(void *context, char *top, void (*entry)());

namespace apr_host {

constexpr size_t page = 4096;
constexpr size_t stack_bytes = 64 << 10; // of a fiber, above a page that nobody may touch
constexpr size_t arena_bytes = 1 << 20;

// Copy is a copy_async16 that was asked for and not yet done.
struct Copy {
    void *to;
    const void *from;
    bool valid;
    u32 group;
};

// Bulk is a copy_bulk that nobody has waited for yet.
struct Bulk {
    u64 *filled;
    void *to;
    const void *from;
    u32 bytes;
};

struct Warp;

// Fiber is a thread of the block. It can go on when *waits is no longer gen; see idle.
struct alignas(64) Fiber {
    void *sp; // where it was left; null: it has not begun
    const u32 *waits;
    u32 gen, thread;
    Warp *warp;
    Fiber *ring; // the lane that is next to run
    char *stack;
    u32 group; // number of the copies' open group
    std::vector<Copy> copies;
};

// idle is what fibers wait for that have not begun (gen 1) or have left (gen 0).
inline constexpr u32 idle = 0; // one object for all files

// Warp is where 32 lanes meet. What they deposit has two slots, used in turn: a lane can be one operation ahead of
// another, never two.
struct Warp {
    u32 gen, arrived, left; // gen: number of the operation to come
    Operation op;
    u32 v[2][32];
    u32 a[2][32][6]; // mma: a0..a3, b0, b1
    float d[2][32][4];
    const void *row[2][32];
    u32 r[2][32][4];
};

struct Worker {
    Grid grid;
    Fiber *current;
    Fiber fibers[max_threads];
    Warp warps[max_threads / 32];
    u32 gen, arrived, left; // of the block
    bool descending;        // the order of its threads
    void *main_sp;
    std::vector<char *> stacks, all_stacks;
    char *emergency; // stack for the fault handler
    char *arena;     // shared memory of the block
    u32 arena_used;
    std::vector<char *> sites;
    struct Area { char *begin; u32 bytes; };
    std::vector<Bulk> bulks;
    u32 begun; // bulk copies so far
    std::vector<Area> areas; // what is handed out of the arena
    char *dynamic;
    bool failed;
};

extern __thread Worker *worker __attribute__((tls_model("initial-exec")));

// start runs the block until all its fibers have left, or one failed.
void start(Worker &w);
// other returns a fiber that can go on when f and the lane after it cannot; without any it fails.
Fiber *other(Worker &w, Fiber *f);

inline void become(Worker &w, Fiber *f) {
    w.current = f;
    place.thread = f->thread;
}

// wait lets others run until *waits is no longer its present value.
inline __attribute__((always_inline)) void wait(Worker &w, Fiber *f, const u32 *waits) {
    f->waits = waits;
    f->gen = *waits;
    Fiber *n = f->ring;
    if (__builtin_expect(*n->waits == n->gen || !n->sp, false)) n = other(w, f);
    become(w, n);
    apr_switch(&f->sp, n->sp);
}

// yield lets another thread of the block run; false: there is none that can.
bool yield();
// catch_faults makes memory faults of fibers failures of their launch.
void catch_faults();
// map returns fresh memory, null if there is none.
char *map(size_t bytes);
// fail ends the launch with an error; it does not return.
[[noreturn]] void fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
[[noreturn]] void mixed(const Warp &p, Operation op); // fails: lanes meet at different operations

// together is one warp-wide operation of a lane that has deposited its operands: the last lane to come calls complete for
// all of them.
template <class Complete> inline __attribute__((always_inline)) void together(Worker &w, Fiber *f, Warp &p, Operation op, Complete complete) {
    if (p.arrived == 0) p.op = op;
    else if (p.op != op) mixed(p, op);
    if (++p.arrived < 32) {
        wait(w, f, &p.gen);
        return;
    }
    complete();
    p.arrived = 0;
    p.gen++;
}

// The arena has a red zone of this many bytes around each area.
constexpr u32 red_zone = 256;
bool in_shared(const void *p, u32 bytes);
void check_red_zones(Worker &w);

} // namespace apr_host
