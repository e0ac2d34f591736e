// fiber.cc: a block's threads as fibers.
//
// The lanes of a warp run in a ring: a lane runs until it must wait for the others, then the next lane runs. The last
// lane to arrive at an operation completes it and goes on at once, so that an operation costs one switch a lane. A warp
// of which no lane can go on gives way to the next warp.
#include "fiber.h"
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
.globl apr_switch
.hidden apr_switch
.type apr_switch, @function
apr_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    popq %rcx
    jmp *%rcx
.size apr_switch, .-apr_switch
)");
void *apr_first(char *top, void (*entry)()) {
    void **p = (void **)top;
    *--p = nullptr; // where entry would return to
    *--p = (void *)entry;
    for (int i = 0; i < 6; i++) *--p = nullptr;
    return p;
}
void apr_land(void *context, char *top, void (*entry)()) {
    auto *c = (ucontext_t *)context;
    c->uc_mcontext.gregs[REG_RSP] = (greg_t)(top - 8);
    c->uc_mcontext.gregs[REG_RIP] = (greg_t)entry;
}
#elif defined(__aarch64__)
asm(R"(
.text
.p2align 4
.globl apr_switch
.hidden apr_switch
.type apr_switch, %function
apr_switch:
    stp x19, x20, [sp, #-160]!
    stp x21, x22, [sp, #16]
    stp x23, x24, [sp, #32]
    stp x25, x26, [sp, #48]
    stp x27, x28, [sp, #64]
    stp x29, x30, [sp, #80]
    stp d8, d9, [sp, #96]
    stp d10, d11, [sp, #112]
    stp d12, d13, [sp, #128]
    stp d14, d15, [sp, #144]
    mov x9, sp
    str x9, [x0]
    mov sp, x1
    ldp x21, x22, [sp, #16]
    ldp x23, x24, [sp, #32]
    ldp x25, x26, [sp, #48]
    ldp x27, x28, [sp, #64]
    ldp x29, x30, [sp, #80]
    ldp d8, d9, [sp, #96]
    ldp d10, d11, [sp, #112]
    ldp d12, d13, [sp, #128]
    ldp d14, d15, [sp, #144]
    ldp x19, x20, [sp], #160
    br x30
.size apr_switch, .-apr_switch
)");
void *apr_first(char *top, void (*entry)()) {
    void **p = (void **)(top - 160);
    memset(p, 0, 160);
    p[11] = (void *)entry; // x30
    return p;
}
void apr_land(void *context, char *top, void (*entry)()) {
    auto *c = (ucontext_t *)context;
    c->uc_mcontext.sp = (u64)top;
    c->uc_mcontext.pc = (u64)entry;
}
#else
#error "the emulator switches fibers on x86-64 and aarch64 only"
#endif

namespace apr_host {

__thread Place place __attribute__((tls_model("initial-exec")));
__thread Worker *worker __attribute__((tls_model("initial-exec")));

static bool runnable(const Fiber &f) { return *f.waits != f.gen; }

static const char *names[] = {"", "shfl_xor", "shfl", "shfl_up", "shfl_down", "ballot", "sync_warp", "mma_bf16", "mma_tf32",
    "ldmatrix4", "ldmatrix4_trans", "ldmatrix2", "ldmatrix2_trans", "sync_block"};

static const char *whereabouts(const Worker &w, const Fiber &f) {
    if (f.waits == &idle) return f.gen ? "have not begun" : "left";
    if (runnable(f)) return "run";
    return names[f.waits == &w.gen ? op_sync_block : f.warp->op];
}

// stuck ends a launch in which nothing can go on; what each thread waits for becomes part of the message.
[[noreturn]] static void stuck(const Worker &w) {
    char list[1024];
    size_t n = 0;
    list[0] = 0;
    for (u32 t = 0; t < w.grid.threads && n + 100 < sizeof list;) {
        const char *what = whereabouts(w, w.fibers[t]);
        u32 end = t + 1;
        while (end < w.grid.threads && strcmp(whereabouts(w, w.fibers[end]), what) == 0) end++;
        n += snprintf(list + n, sizeof list - n, "%s%u-%u: %s", t ? ", " : "", t, end - 1, what);
        t = end;
    }
    fail(launch_failed, "deadlock; threads %s", list);
}

// next returns the fiber to run after f stopped, null when all have left.
static Fiber *next(Worker &w, Fiber *f) {
    if (runnable(*f->ring)) return f->ring;
    if (f->warp->arrived || (f->warp->left && f->warp->left != 32)) stuck(w);
    u32 warps = w.grid.threads / 32;
    for (u32 i = 1; i <= warps; i++) {
        Fiber *n = &w.fibers[(f->thread / 32 + i) % warps * 32];
        if (runnable(*n)) return n;
    }
    if (w.left != w.grid.threads) stuck(w);
    return nullptr;
}

static char *take_stack(Worker &w) {
    if (w.stacks.empty()) {
        char *p = (char *)mmap(nullptr, page + stack_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) fail(launch_failed, "no memory for the stack of a thread");
        mprotect(p, page, PROT_NONE);
        w.all_stacks.push_back(p);
        w.stacks.push_back(p);
    }
    char *s = w.stacks.back();
    w.stacks.pop_back();
    return s;
}

static void enter();

static void become(Worker &w, Fiber *f) {
    w.current = f;
    place.thread = f->thread;
}

void resume(Worker &w, Fiber *f, void **save) {
    if (!f->sp) {
        f->stack = take_stack(w);
        // Tops of stacks are shifted against each other, or they would share the same few sets of the caches.
        f->sp = apr_first(f->stack + page + stack_bytes - (f->thread * 7 % 16) * 192, enter);
    }
    become(w, f);
    apr_switch(save, f->sp);
}

// enter is the life of a fiber's stack: when its thread has left it serves the next fresh one.
static void enter() {
    for (;;) {
        Worker &w = *worker;
        w.grid.kernel->body(w.grid.args);
        Fiber *f = w.current;
        f->waits = &idle;
        f->gen = 0;
        f->copies.clear();
        w.left++;
        f->warp->left++;
        Fiber *n = next(w, f);
        void *nowhere;
        if (!n) {
            w.stacks.push_back(f->stack);
            apr_switch(&nowhere, w.main_sp);
        }
        if (!n->sp) {
            n->stack = f->stack;
            n->sp = f->sp; // not null: it has begun
            become(w, n);
            continue;
        }
        w.stacks.push_back(f->stack);
        resume(w, n, &nowhere);
    }
}

void wait(Worker &w, Fiber *f, const u32 *waits) {
    f->waits = waits;
    f->gen = *waits;
    Fiber *n = f->ring;
    if (__builtin_expect(runnable(*n) && n->sp, true)) {
        become(w, n);
        apr_switch(&f->sp, n->sp);
    } else resume(w, next(w, f), &f->sp);
}

void mixed(const Warp &p, Operation op) {
    fail(launch_failed, "the lanes of a warp wait at different operations: thread %u at %s, %u before it at %s", place.thread, names[op],
        p.arrived, names[p.op]);
}

void sync_block() {
    Worker &w = *worker;
    if (++w.arrived < w.grid.threads) {
        wait(w, w.current, &w.gen);
        return;
    }
    w.arrived = 0;
    w.gen++;
}

} // namespace apr_host
