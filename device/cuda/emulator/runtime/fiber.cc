// fiber.cc: a block's threads as fibers, and the launch of a grid.
//
// The lanes of a warp run in a ring: a lane runs until it must wait for the others, then the next lane runs. The last
// lane to arrive at an operation completes it and goes on at once, so that an operation costs one switch a lane. A warp
// of which no lane can go on gives way to the next warp.
#include "fiber.h"
#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>

// apr_switch(save, load) leaves the running stack, noting its pointer in *save, and goes on with the stack load. Only
// what a function must preserve is kept.
extern "C" void apr_switch(void **save, void *load);

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
// first makes the frame from which apr_switch starts entry on a fresh stack.
static void *first(char *top, void (*entry)()) {
    void **p = (void **)top;
    *--p = nullptr; // where entry would return to
    *--p = (void *)entry;
    for (int i = 0; i < 6; i++) *--p = nullptr;
    return p;
}
static void land(ucontext_t *c, char *top, void (*entry)()) {
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
static void *first(char *top, void (*entry)()) {
    void **p = (void **)(top - 160);
    memset(p, 0, 160);
    p[11] = (void *)entry; // x30
    return p;
}
static void land(ucontext_t *c, char *top, void (*entry)()) {
    c->uc_mcontext.sp = (u64)top;
    c->uc_mcontext.pc = (u64)entry;
}
#else
#error "the emulator switches fibers on x86-64 and aarch64 only"
#endif

namespace apr_host {

__thread Place place __attribute__((tls_model("initial-exec")));
__thread Worker *worker __attribute__((tls_model("initial-exec")));

constexpr size_t stack_bytes = 64 << 10, page = 4096;
constexpr size_t arena_bytes = 1 << 20;

// ---- messages

// Storage of a CPU thread is scarce in a library that is opened late, so it holds pointers only.
constexpr size_t text_bytes = 2048;
static __thread char *text;

int note(int code, const char *format, ...) {
    if (!text) text = new char[text_bytes];
    va_list args;
    va_start(args, format);
    vsnprintf(text, text_bytes, format, args);
    va_end(args);
    return code;
}
const char *message() { return text ? text : ""; }

// ---- one launch at a time

struct Launch {
    Grid grid;
    u64 total;
    std::atomic<u64> next{0};
    std::atomic<int> code{ok}; // of the first failure
    char text[text_bytes];
};
static Launch launch;

static void set_place(const Fiber *f) { place.thread = f->thread; }

static bool runnable(const Worker &w, const Fiber &f) {
    switch (f.state) {
    case fresh: return true;
    case at_warp: return f.gen != w.warps[f.thread / 32].gen;
    case at_block: return f.gen != w.gen;
    default: return false;
    }
}

static const char *names[] = {"", "shfl_xor", "shfl", "shfl_up", "shfl_down", "ballot", "sync_warp", "mma_bf16", "mma_tf32",
    "ldmatrix4", "ldmatrix4_trans", "ldmatrix2", "ldmatrix2_trans", "sync_block"};

static const char *whereabouts(const Worker &w, const Fiber &f) {
    switch (f.state) {
    case fresh: return "have not begun";
    case running: return "run";
    case at_warp: return f.gen == w.warps[f.thread / 32].gen ? names[w.warps[f.thread / 32].op] : "run";
    case at_block: return f.gen == w.gen ? "sync_block" : "run";
    default: return "left";
    }
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
    Fiber *n = &w.fibers[(f->thread & ~31u) | ((f->thread + 1) & 31)];
    if (runnable(w, *n)) return n;
    const Warp &p = w.warps[f->thread / 32];
    if (p.arrived || (p.left && p.left != 32)) stuck(w);
    u32 warps = w.grid.threads / 32;
    for (u32 i = 1; i <= warps; i++) {
        n = &w.fibers[(f->thread / 32 + i) % warps * 32];
        if (runnable(w, *n)) return n;
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

// resume makes f the running fiber; the caller's state goes to *save.
static void resume(Worker &w, Fiber *f, void **save) {
    if (f->state == fresh) {
        f->stack = take_stack(w);
        // Tops of stacks are shifted against each other, or they would share the same few sets of the caches.
        f->sp = first(f->stack + page + stack_bytes - (f->thread * 7 % 16) * 192, enter);
    }
    f->state = running;
    w.current = f;
    set_place(f);
    apr_switch(save, f->sp);
}

// enter is the life of a fiber's stack: when its thread has left it serves the next fresh one.
static void enter() {
    for (;;) {
        Worker &w = *worker;
        w.grid.kernel->body(w.grid.args);
        Fiber *f = w.current;
        f->state = left;
        f->copies.clear();
        w.left++;
        w.warps[f->thread / 32].left++;
        Fiber *n = next(w, f);
        void *nowhere;
        if (!n) {
            w.stacks.push_back(f->stack);
            apr_switch(&nowhere, w.main_sp);
        }
        if (n->state == fresh) {
            n->stack = f->stack;
            n->state = running;
            w.current = n;
            set_place(n);
            continue;
        }
        w.stacks.push_back(f->stack);
        resume(w, n, &nowhere);
    }
}

static void wait(Worker &w, Fiber *f) {
    Fiber *n = next(w, f);
    resume(w, n, &f->sp);
}

bool arrive(Worker &w, Warp &p, Operation op) {
    if (p.arrived == 0) p.op = op;
    else if (p.op != op) fail(launch_failed, "the lanes of a warp wait at different operations: thread %u at %s, %u before it at %s",
        w.current->thread, names[op], p.arrived, names[p.op]);
    return ++p.arrived == 32;
}

void meet(Warp &p) {
    p.arrived = 0;
    p.gen++;
}

void await(Worker &w, Warp &p) {
    Fiber *f = w.current;
    f->gen = p.gen;
    f->state = at_warp;
    wait(w, f);
}

void sync_block() {
    Worker &w = *worker;
    if (++w.arrived == w.grid.threads) {
        w.arrived = 0;
        w.gen++;
        return;
    }
    Fiber *f = w.current;
    f->gen = w.gen;
    f->state = at_block;
    wait(w, f);
}

// ---- shared memory

static void fill_poison(char *p, size_t bytes) {
    for (size_t i = 0; i + 2 <= bytes; i += 2) memcpy(p + i, &poison, 2);
}

static char *area(Worker &w, u32 bytes) {
    u32 begin = (w.arena_used + 127) & ~127u;
    if (begin + bytes + red_zone > arena_bytes) fail(invalid_value, "too much shared memory");
    char *p = w.arena + begin;
    w.areas.push_back({p, bytes});
    w.arena_used = begin + bytes + red_zone;
    fill_poison(w.arena + begin - red_zone, red_zone + ((bytes + 1) & ~1u) + red_zone);
    return p;
}

void *shared(Site *site, u32 bytes) {
    static std::atomic<u32> count{0};
    Worker &w = *worker;
    if (__atomic_load_n(&site->id, __ATOMIC_ACQUIRE) == 0) {
        u32 none = 0;
        __atomic_compare_exchange_n(&site->id, &none, ++count, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    }
    u32 id = site->id;
    if (id >= w.sites.size()) w.sites.resize(id + 16);
    if (w.sites[id]) return w.sites[id];
    u32 used = bytes;
    for (auto &a : w.areas)
        if (a.begin != w.dynamic) used += (a.bytes + 15) & ~15u;
    u32 limit = w.grid.allowed ? max_shared : default_shared;
    if (used > default_shared || used + w.grid.dynamic > limit)
        fail(invalid_value, "%u bytes of SHARED and %u bytes of dynamic shared memory, %u are allowed", used, w.grid.dynamic, limit);
    return w.sites[id] = area(w, bytes);
}

unsigned char *dynamic_shared() {
    Worker &w = *worker;
    if (!w.dynamic) w.dynamic = area(w, w.grid.dynamic);
    return (unsigned char *)w.dynamic;
}

u32 shared_offset(const void *p) {
    if (!in_shared(p, 1)) fail(illegal_address, "thread %u: %p is no address of shared memory", place.thread, p);
    return (u32)((const char *)p - worker->arena);
}

bool in_shared(const void *p, u32 bytes) {
    const Worker &w = *worker;
    const char *c = (const char *)p;
    for (auto &a : w.areas)
        if (c >= a.begin && c + bytes <= a.begin + a.bytes) return true;
    return false;
}

static void check_red_zones(Worker &w) {
    for (auto &a : w.areas)
        for (u32 i = 0; i < red_zone; i += 2) {
            u32 after = a.bytes + (a.bytes & 1) + i;
            if (memcmp(a.begin + after, &poison, 2) != 0)
                fail(illegal_address, "shared memory was written %u bytes behind the end of an array of %u bytes", after - a.bytes, a.bytes);
            if (memcmp(a.begin - 2 - i, &poison, 2) != 0)
                fail(illegal_address, "shared memory was written %u bytes before an array of %u bytes", i + 2, a.bytes);
        }
}

// ---- blocks

[[noreturn]] static void abandon(Worker &w) {
    w.failed = true;
    void *nowhere;
    apr_switch(&nowhere, w.main_sp);
    __builtin_unreachable();
}

void fail(int code, const char *format, ...) {
    Worker &w = *worker;
    int none = ok;
    if (launch.code.compare_exchange_strong(none, code)) {
        int n = snprintf(launch.text, sizeof launch.text, "kernel %s, block (%u,%u,%u): ", w.grid.kernel->name, place.block, place.block_y, place.block_z);
        va_list args;
        va_start(args, format);
        vsnprintf(launch.text + n, sizeof launch.text - n, format, args);
        va_end(args);
    }
    abandon(w);
}

void misaligned(const char *what, const void *p) {
    fail(misaligned_address, "thread %u: %s at %p, which is no multiple of 16", place.thread, what, p);
}

static void check_in_main(Worker &w) {
    // fail leaves through main_sp, so the check runs on a stack of its own, as a fiber would.
    check_red_zones(w);
    void *nowhere;
    apr_switch(&nowhere, w.main_sp);
}
static void enter_check() { check_in_main(*worker); }

static void run_block(Worker &w, u64 index) {
    const Grid &g = w.grid;
    place.block = (u32)(index % g.x);
    place.block_y = (u32)(index / g.x % g.y);
    place.block_z = (u32)(index / g.x / g.y);
    for (u32 t = 0; t < g.threads; t++) {
        w.fibers[t].state = fresh;
        w.fibers[t].thread = t;
        w.fibers[t].group = 0;
    }
    for (u32 i = 0; i < g.threads / 32; i++) w.warps[i].gen = w.warps[i].arrived = w.warps[i].left = 0;
    w.gen = w.arrived = w.left = 0;
    w.arena_used = red_zone;
    w.areas.clear();
    std::fill(w.sites.begin(), w.sites.end(), nullptr);
    w.dynamic = nullptr;
    resume(w, &w.fibers[0], &w.main_sp);
    if (!w.failed && !w.areas.empty()) apr_switch(&w.main_sp, first(w.emergency + stack_bytes, enter_check));
}

static void work(Worker &w, bool once) {
    w.grid = launch.grid;
    w.failed = false;
    worker = &w;
    place.threads = w.grid.threads;
    place.blocks = w.grid.x;
    do {
        if (launch.code.load(std::memory_order_relaxed) != ok) break;
        u64 i = launch.next.fetch_add(1);
        if (i >= launch.total) break;
        run_block(w, i);
    } while (!once && !w.failed);
    if (w.failed) { // fibers were left in the middle
        w.stacks = w.all_stacks;
        for (auto &f : w.fibers) f.copies.clear();
    }
    worker = nullptr;
}

static char *map(size_t bytes) {
    char *p = (char *)mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? nullptr : p;
}

static Worker *new_worker() {
    Worker *w = new Worker{};
    w->arena = map(arena_bytes);
    w->emergency = map(stack_bytes);
    if (!w->arena || !w->emergency) {
        fprintf(stderr, "emulator: no memory\n");
        abort();
    }
    return w;
}

// ---- memory faults

// A fault of a fiber becomes the failure of its launch; any other goes to the handler that was there before.
static struct sigaction before[2];
static struct sigaction &earlier(int sig) { return before[sig == SIGBUS]; }
static __thread void *fault_at;

static void faulted() {
    const char *at = (const char *)fault_at;
    const char *stack = worker->current->stack;
    if (at >= stack && at < stack + page) fail(launch_failed, "thread %u: its stack of %zu bytes is too small", place.thread, stack_bytes);
    fail(illegal_address, "thread %u: access to %p, which is no memory of the device", place.thread, fault_at);
}

static void on_fault(int sig, siginfo_t *info, void *context) {
    if (worker) {
        fault_at = info->si_addr;
        land((ucontext_t *)context, worker->emergency + stack_bytes, faulted);
        return;
    }
    struct sigaction &old = earlier(sig);
    if (old.sa_flags & SA_SIGINFO) old.sa_sigaction(sig, info, context);
    else if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) old.sa_handler(sig);
    else signal(sig, SIG_DFL);
}

static void catch_faults() {
    for (int sig : {SIGSEGV, SIGBUS}) {
        struct sigaction a = {};
        sigaction(sig, nullptr, &earlier(sig));
        a.sa_sigaction = on_fault;
        a.sa_mask = earlier(sig).sa_mask;
        a.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigaction(sig, &a, nullptr);
    }
}

// ---- the helper, a second CPU thread

static pthread_mutex_t one_launch = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER, asleep = PTHREAD_COND_INITIALIZER;
static bool wanted;

static void *help(void *) {
    Worker *w = new_worker();
    stack_t alternative = {};
    alternative.ss_sp = map(stack_bytes);
    alternative.ss_size = stack_bytes;
    sigaltstack(&alternative, nullptr);
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!wanted) pthread_cond_wait(&wake, &lock);
        pthread_mutex_unlock(&lock);
        work(*w, false);
        pthread_mutex_lock(&lock);
        wanted = false;
        pthread_cond_signal(&asleep);
    }
}

static bool start_helper() {
    sigset_t all, old; // signals are for the program's own threads, faults excepted
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    pthread_t t;
    bool started = pthread_create(&t, nullptr, help, nullptr) == 0;
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    return started;
}

static double seconds() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

int check_grid(const Grid &g) {
    const char *name = g.kernel->name;
    if (g.x < 1 || g.y < 1 || g.z < 1 || g.x > 0x7fffffff || g.y > 65535 || g.z > 65535)
        return note(invalid_value, "kernel %s: a grid of %u×%u×%u blocks", name, g.x, g.y, g.z);
    if (g.threads < 1 || g.threads > max_threads) return note(invalid_value, "kernel %s: blocks of %u threads", name, g.threads);
    if (g.threads % 32) return note(invalid_value, "kernel %s: blocks of %u threads, not a multiple of 32", name, g.threads);
    if (g.threads > g.kernel->threads)
        return note(launch_out_of_resources, "kernel %s: blocks of %u threads, its launch bound is %u", name, g.threads, g.kernel->threads);
    if (u32 most = g.allowed ? g.allowed : default_shared; g.dynamic > most)
        return note(invalid_value, "kernel %s: %u bytes of dynamic shared memory, %u are allowed", name, g.dynamic, most);
    return ok;
}

int run(const Grid &g) {
    static Worker *own;
    static bool helper;
    pthread_mutex_lock(&one_launch);
    if (!own) {
        own = new_worker();
        catch_faults();
        helper = start_helper();
    }
    launch.grid = g;
    launch.total = (u64)g.x * g.y * g.z;
    launch.next = 0;
    launch.code = ok;
    double begin = seconds();
    work(*own, true);
    // Waking the helper costs some microseconds, which have to be worth it.
    bool helped = helper && launch.total > 1 && (seconds() - begin) * (launch.total - 1) > 40e-6;
    if (helped) {
        pthread_mutex_lock(&lock);
        wanted = true;
        pthread_cond_signal(&wake);
        pthread_mutex_unlock(&lock);
    }
    work(*own, false);
    if (helped) {
        pthread_mutex_lock(&lock);
        while (wanted) pthread_cond_wait(&asleep, &lock);
        pthread_mutex_unlock(&lock);
    }
    int code = launch.code;
    if (code != ok) note(code, "%s", launch.text);
    pthread_mutex_unlock(&one_launch);
    return code;
}

// ---- registration

static Kernel *all_kernels;

Kernel::Kernel(const char *module, const char *name, void (*body)(const void *), u32 bytes, u32 threads)
    : module(module), name(name), body(body), bytes(bytes), threads(threads), next(all_kernels) {
    all_kernels = this;
}

const Kernel *kernels() { return all_kernels; }
Kernel *find_kernel(const char *name) {
    for (Kernel *k = all_kernels; k; k = k->next)
        if (strcmp(k->name, name) == 0) return k;
    return nullptr;
}

} // namespace apr_host
