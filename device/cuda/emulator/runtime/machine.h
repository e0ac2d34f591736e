// machine.h: the parts of the emulator, for each other.
#pragma once
#include <cstddef>
#include <cstdint>

#define APR_HOST
#include "apr.cuh"

namespace apr_host {

// Codes of CUresult that the emulator gives.
enum {
    ok = 0,
    invalid_value = 1,
    out_of_memory = 2,
    not_initialized = 3,
    no_device = 100,
    invalid_device = 101,
    invalid_context = 201,
    invalid_ptx = 218,
    unsupported_ptx = 222,
    invalid_handle = 400,
    not_found = 500,
    not_ready = 600,
    illegal_address = 700,
    launch_out_of_resources = 701,
    misaligned_address = 716,
    launch_failed = 719,
    too_many_together = 720,
};

constexpr u32 max_threads = 1024;
constexpr u32 most_together = 16; // blocks that the emulator runs at the same time
constexpr u32 default_shared = 48 << 10, max_shared = 227 << 10;

// poison is what undefined memory holds: NaN as bf16, float and double, and no sensible integer.
constexpr u16 poison = 0x7fff;

// Grid is one launch.
struct Grid {
    const Kernel *kernel;
    u32 x, y, z, threads;
    u32 dynamic, allowed; // bytes of dynamic shared memory; allowed is 0 if the function's limit was never raised
    const void *args;     // read by all threads
    bool together;        // all blocks at the same time
    bool ascending;       // run threads in ascending order; else every other block runs them in descending order
};

Kernel *find_kernel(const char *name);
// check_grid says whether a GPU would take the launch.
int check_grid(const Grid &g);
// run executes all blocks and waits. A code other than ok is told in full by message().
int run(const Grid &g);

// parallel runs part(data, i) for i in [0, n) on both CPU threads.
void parallel(int n, void (*part)(void *data, int i), void *data);

// note sets message() and returns code.
int note(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));
const char *message();

// Memory of the device: addresses are those of the host. Fresh memory is poison, and so is the guard zone around it.
void *allocate(size_t bytes); // null: the system has none left
int release(void *p);         // illegal_address if the guards were overwritten, invalid_value if it is none
int check_guards();           // of all memory
size_t allocated();           // bytes in use

} // namespace apr_host
