// fiber.h: the threads of a block, shared by fiber.cc, which switches between them, and warp.cc, where they meet.
#pragma once
#include "machine.h"
#include <vector>

// apr_switch(save, load) leaves the running stack, noting its pointer in *save, and goes on with the stack load. Only
// what a function must preserve is kept.
extern "C" void apr_switch(void **save, void *load);
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

struct Warp;

// Fiber is a thread of the block. It can go on when *waits is no longer gen; see idle.
struct alignas(64) Fiber {
    void *sp; // where it was left; null: it has not begun
    const u32 *waits;
    u32 gen, thread;
    Warp *warp;
    Fiber *ring; // the next lane
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
    void *main_sp;
    std::vector<char *> stacks, all_stacks;
    char *emergency; // stack for the fault handler
    char *arena;     // shared memory of the block
    u32 arena_used;
    std::vector<char *> sites;
    struct Area { char *begin; u32 bytes; };
    std::vector<Area> areas; // what is handed out of the arena
    char *dynamic;
    bool failed;
};

extern __thread Worker *worker __attribute__((tls_model("initial-exec")));

// resume makes f the running fiber; the caller's state goes to *save.
void resume(Worker &w, Fiber *f, void **save);
// wait lets others run until *waits is no longer its present value.
void wait(Worker &w, Fiber *f, const u32 *waits);
// catch_faults makes memory faults of fibers failures of their launch.
void catch_faults();
// map returns fresh memory, null if there is none.
char *map(size_t bytes);
// fail ends the launch with an error; it does not return.
[[noreturn]] void fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
[[noreturn]] void mixed(const Warp &p, Operation op); // fails: lanes meet at different operations

// together is one warp-wide operation of a lane that has deposited its operands: the last lane to come calls complete for
// all of them.
template <class Complete> inline void together(Worker &w, Fiber *f, Operation op, Complete complete) {
    Warp &p = *f->warp;
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
