// launch.cc: the blocks of a grid on two CPU threads, the caller's and a helper's.
#include "fiber.h"
#include <algorithm>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>

namespace apr_host {

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
    u64 total, number; // blocks; launches before this one
    std::atomic<u64> next{0};
    std::atomic<int> code{ok}; // of the first failure
    char text[text_bytes];
};
static Launch launch;

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

// A failing check leaves through main_sp, so it runs on a stack of its own, as a fiber would.
static void enter_check() {
    check_red_zones(*worker);
    void *nowhere;
    apr_switch(&nowhere, worker->main_sp);
}

static void run_block(Worker &w, u64 index) {
    const Grid &g = w.grid;
    place.block = (u32)(index % g.x);
    place.block_y = (u32)(index / g.x % g.y);
    place.block_z = (u32)(index / g.x / g.y);
    w.descending = !g.ascending && ((index + launch.number) & 1);
    for (u32 t = 0; t < g.threads; t++) {
        Fiber &f = w.fibers[t];
        f.sp = nullptr;
        f.waits = &idle;
        f.gen = 1;
        f.thread = t;
        f.warp = &w.warps[t / 32];
        f.ring = &w.fibers[(t & ~31u) | ((t + (w.descending ? 31 : 1)) & 31)];
        f.group = 0;
    }
    for (u32 i = 0; i < g.threads / 32; i++) w.warps[i].gen = w.warps[i].arrived = w.warps[i].left = 0;
    w.gen = w.arrived = w.left = 0;
    w.arena_used = red_zone;
    w.areas.clear();
    w.bulks.clear();
    std::fill(w.sites.begin(), w.sites.end(), nullptr);
    w.dynamic = nullptr;
    start(w);
    if (!w.failed && !w.areas.empty()) apr_switch(&w.main_sp, apr_first(w.emergency + stack_bytes, enter_check));
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

char *map(size_t bytes) {
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

// ---- the helper, a second CPU thread

static pthread_mutex_t one_launch = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER, asleep = PTHREAD_COND_INITIALIZER;
static void (*job)(Worker &w); // for the helper

static void *help(void *) {
    Worker *w = new_worker();
    stack_t alternative = {};
    alternative.ss_sp = map(stack_bytes);
    alternative.ss_size = stack_bytes;
    sigaltstack(&alternative, nullptr);
    pthread_mutex_lock(&lock);
    for (;;) {
        while (!job) pthread_cond_wait(&wake, &lock);
        pthread_mutex_unlock(&lock);
        job(*w);
        pthread_mutex_lock(&lock);
        job = nullptr;
        pthread_cond_signal(&asleep);
    }
}

// Waking the helper costs some microseconds, which have to be worth it.
constexpr double worth = 40e-6;

static void wake_helper(void (*f)(Worker &w)) {
    pthread_mutex_lock(&lock);
    job = f;
    pthread_cond_signal(&wake);
    pthread_mutex_unlock(&lock);
}

static void join() {
    pthread_mutex_lock(&lock);
    while (job) pthread_cond_wait(&asleep, &lock);
    pthread_mutex_unlock(&lock);
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
    if (u64 all = (u64)g.x * g.y * g.z; g.together && all > most_together)
        return note(too_many_together, "kernel %s: %llu blocks together, %u are possible", name, (unsigned long long)all, most_together);
    return ok;
}

// ---- barriers of all blocks

void grid_arrive(u32 *arrived) { __atomic_add_fetch(arrived, 1, __ATOMIC_RELEASE); }

void grid_wait(const u32 *arrived, u32 target) {
    if (!worker->grid.together) fail(launch_failed, "a barrier of all blocks in a launch that is not cooperative");
    for (double begin = seconds(); __atomic_load_n(arrived, __ATOMIC_ACQUIRE) < target;) {
        if (seconds() - begin > 60) fail(launch_failed, "a barrier of all blocks that %u of them do not reach", target - *arrived);
        if (launch.code.load(std::memory_order_relaxed) != ok) fail(launch_failed, "another block failed");
        sched_yield();
    }
}

void relax() {
    if (!worker->grid.together) fail(launch_failed, "a thread waits for other blocks in a launch that is not cooperative");
    if (launch.code.load(std::memory_order_relaxed) != ok) fail(launch_failed, "another block failed");
    if (!yield()) sched_yield();
}

void pause() {
    if (launch.code.load(std::memory_order_relaxed) != ok) fail(launch_failed, "another block failed");
    if (!yield()) fail(launch_failed, "thread %u waits for what no other thread of its block will do", place.thread);
}

static Worker *own;
static bool helper; // there is one

static void prepare() {
    if (own) return;
    own = new_worker();
    catch_faults();
    helper = start_helper();
}

// Blocks that may wait for each other have a CPU thread each.
static void *work_alone(void *w) {
    stack_t alternative = {};
    alternative.ss_sp = map(stack_bytes);
    alternative.ss_size = stack_bytes;
    sigaltstack(&alternative, nullptr);
    work(*(Worker *)w, true);
    alternative.ss_flags = SS_DISABLE;
    sigaltstack(&alternative, nullptr);
    munmap(alternative.ss_sp, stack_bytes);
    return nullptr;
}

static void work_together() {
    static std::vector<Worker *> others; // they stay: stacks of fibers are costly
    sigset_t all, old;
    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    std::vector<pthread_t> threads(launch.total - 1);
    for (size_t i = 0; i < threads.size(); i++) {
        if (others.size() <= i) others.push_back(new_worker());
        if (pthread_create(&threads[i], nullptr, work_alone, others[i])) {
            fprintf(stderr, "emulator: no thread for a block\n");
            abort();
        }
    }
    pthread_sigmask(SIG_SETMASK, &old, nullptr);
    work(*own, true);
    for (pthread_t t : threads) pthread_join(t, nullptr);
}

int run(const Grid &g) {
    pthread_mutex_lock(&one_launch);
    prepare();
    launch.grid = g;
    launch.total = (u64)g.x * g.y * g.z;
    launch.number++;
    launch.next = 0;
    launch.code = ok;
    double begin = seconds();
    if (g.together) work_together();
    else work(*own, true);
    bool helped = helper && launch.total > 1 && !g.together && (seconds() - begin) * (launch.total - 1) > worth;
    if (helped) wake_helper([](Worker &w) { work(w, false); });
    work(*own, false);
    if (helped) join();
    int code = launch.code;
    if (code != ok) note(code, "%s", launch.text);
    pthread_mutex_unlock(&one_launch);
    return code;
}

static struct {
    int n;
    void (*part)(void *data, int i);
    void *data;
    std::atomic<int> next;
} parts;

static void do_parts(Worker &) {
    for (int i; (i = parts.next.fetch_add(1)) < parts.n;) parts.part(parts.data, i);
}

void parallel(int n, void (*part)(void *data, int i), void *data) {
    pthread_mutex_lock(&one_launch);
    prepare();
    parts.n = n;
    parts.part = part;
    parts.data = data;
    parts.next = 1;
    double begin = seconds();
    if (n > 0) part(data, 0);
    bool helped = helper && n > 1 && (seconds() - begin) * (n - 1) > worth;
    if (helped) wake_helper(do_parts);
    do_parts(*own);
    if (helped) join();
    pthread_mutex_unlock(&one_launch);
}

// ---- registration

static Kernel *all_kernels;

Kernel::Kernel(const char *module, const char *name, void (*body)(const void *), u32 bytes, u32 threads)
    : module(module), name(name), body(body), bytes(bytes), threads(threads), next(all_kernels) {
    all_kernels = this;
}

Kernel *find_kernel(const char *name) {
    for (Kernel *k = all_kernels; k; k = k->next)
        if (strcmp(k->name, name) == 0) return k;
    return nullptr;
}

} // namespace apr_host
