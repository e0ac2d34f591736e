// fiber.cc: a block's threads as fibers.
//
// The lanes of a warp run in a ring: a lane runs until it must wait for the others, then the next lane runs. The last
// lane to arrive at an operation completes it and goes on at once, so that an operation costs one switch a lane. A warp
// of which no lane can go on gives way to the next warp. Every other block runs its threads in descending order, so that
// a missing barrier shows: a thread that writes is once ahead of the thread that reads, and once behind it.
#include "fiber.h"
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <ucontext.h>

#if defined(__x86_64__)
void *apr_first(char *top, void (*entry)()) {
    void **p = (void **)top;
    *--p = nullptr; // where entry would return to
    *--p = (void *)entry;
    return p;
}
void apr_land(void *context, char *top, void (*entry)()) {
    auto *c = (ucontext_t *)context;
    c->uc_mcontext.gregs[REG_RSP] = (greg_t)(top - 8);
    c->uc_mcontext.gregs[REG_RIP] = (greg_t)entry;
}
#else
void *apr_first(char *top, void (*entry)()) {
    void **p = (void **)(top - 32);
    p[2] = (void *)entry;
    return p;
}
void apr_land(void *context, char *top, void (*entry)()) {
    auto *c = (ucontext_t *)context;
    c->uc_mcontext.sp = (u64)top;
    c->uc_mcontext.pc = (u64)entry;
}
#endif

namespace apr_host {

__thread Place place __attribute__((tls_model("initial-exec")));
__thread Worker *worker __attribute__((tls_model("initial-exec")));

static bool runnable(const Fiber &f) { return *f.waits != f.gen; }

static const char *names[] = {"", "shfl_xor", "shfl", "shfl_up", "shfl_down", "ballot", "sync_warp", "mma_bf16", "mma_tf32", "mma_us", "mma_ss",
    "ldmatrix4", "ldmatrix4_trans", "ldmatrix2", "ldmatrix2_trans", "sync_block"};

static const char *whereabouts(const Worker &w, const Fiber &f) {
    if (f.waits == &idle) return f.gen ? "have not begun" : "left";
    if (runnable(f)) return "run";
    if (f.waits == &w.begun) return "bulk_wait";
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
    for (Fiber *n = f->ring; n != f; n = n->ring)
        if (runnable(*n)) return n;
    if (f->waits != &w.begun && (f->warp->arrived || (f->warp->left && f->warp->left != 32))) stuck(w);
    u32 warps = w.grid.threads / 32;
    for (u32 i = 1; i <= warps; i++) {
        u32 turn = (f->thread / 32 + (w.descending ? warps - i : i)) % warps;
        for (u32 lane = 0; lane < 32; lane++) {
            Fiber *n = &w.fibers[turn * 32 + (w.descending ? 31 - lane : lane)];
            if (runnable(*n)) return n;
        }
    }
    if (w.left != w.grid.threads) stuck(w);
    return nullptr;
}

static void enter();

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

// begin gives a fiber that has not begun a stack. Tops of stacks are shifted against each other, or they would share the
// same few sets of the caches.
static Fiber *begin(Worker &w, Fiber *f) {
    if (f->sp) return f;
    f->stack = take_stack(w);
    f->sp = apr_first(f->stack + page + stack_bytes - (f->thread * 7 % 16) * 192, enter);
    return f;
}

Fiber *other(Worker &w, Fiber *f) { return begin(w, next(w, f)); }

void start(Worker &w) {
    Fiber *f = begin(w, &w.fibers[w.descending ? w.grid.threads - 1 : 0]);
    become(w, f);
    apr_switch(&w.main_sp, f->sp);
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
        become(w, n);
        apr_switch(&nowhere, n->sp);
    }
}

bool yield() {
    Worker &w = *worker;
    Fiber *f = w.current;
    f->waits = &idle, f->gen = 1; // it can go on at any time
    for (u32 i = 1; i < w.grid.threads; i++) {
        Fiber *n = &w.fibers[(f->thread + i) % w.grid.threads];
        if (!runnable(*n)) continue;
        begin(w, n);
        become(w, n);
        apr_switch(&f->sp, n->sp);
        return true;
    }
    return false;
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
