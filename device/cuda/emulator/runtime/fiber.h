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

enum State : u8 { fresh, running, at_warp, at_block, left };

// Copy is a copy_async16 that was asked for and not yet done.
struct Copy {
    void *to;
    const void *from;
    bool valid;
    u32 group;
};

struct Fiber {
    void *sp; // where it was left
    char *stack;
    u32 thread, gen; // gen: of the barrier it waits at
    State state;
    u32 group; // number of the copies' open group
    std::vector<Copy> copies;
};

// Warp is where 32 lanes meet. What they deposit has two slots, used in turn: a lane can be one operation ahead of
// another, never two.
struct Warp {
    u32 gen, arrived, left;
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
// catch_faults makes memory faults of fibers failures of their launch.
void catch_faults();
// map returns fresh memory, null if there is none.
char *map(size_t bytes);
// fail ends the launch with an error; it does not return.
[[noreturn]] void fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
// arrive deposits at a warp-wide operation: it returns true to the last lane, which then must call meet, and false to
// the others, which must call await.
bool arrive(Worker &w, Warp &p, Operation op);
void meet(Warp &p);
void await(Worker &w, Warp &p);

// The arena has a red zone of this many bytes around each area.
constexpr u32 red_zone = 256;
bool in_shared(const void *p, u32 bytes);
void check_red_zones(Worker &w);

} // namespace apr_host
