// memory.cc: the device's memory, and the functions that Go's Machine calls.
#include "machine.h"
#include <cstring>
#include <map>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace apr_host {

constexpr size_t page = 4096;
constexpr size_t chunk = 4 << 20;

struct Allocation {
    char *map;
    size_t map_bytes, bytes;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static std::map<char *, Allocation> all; // by address
static size_t in_use;

struct Locked {
    Locked() { pthread_mutex_lock(&lock); }
    ~Locked() { pthread_mutex_unlock(&lock); }
};

// poison_file is a file of poison: mapped privately it is memory that costs nothing until it is touched.
static int poison_file() {
    static int fd = -1;
    if (fd >= 0) return fd;
    fd = memfd_create("apr-poison", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, chunk) != 0) return -1;
    char *p = (char *)mmap(nullptr, chunk, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) return -1;
    for (size_t i = 0; i < chunk; i += 2) memcpy(p + i, &poison, 2);
    munmap(p, chunk);
    return fd;
}

// allocate lays memory out as: an inaccessible page, a page of guard, the bytes, guard to the end of the following
// page, an inaccessible page.
void *allocate(size_t bytes) {
    Locked l;
    int fd = poison_file();
    if (fd < 0 || bytes > (size_t)1 << 46) return nullptr;
    size_t usable = page + (bytes + page - 1) / page * page + page;
    size_t total = usable + 2 * page;
    char *map = (char *)mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) return nullptr;
    for (size_t at = 0; at < usable; at += chunk) {
        size_t n = usable - at < chunk ? usable - at : chunk;
        if (mmap(map + page + at, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED) {
            munmap(map, total);
            return nullptr;
        }
    }
    char *p = map + 2 * page;
    all[p] = {map, total, bytes};
    in_use += bytes;
    return p;
}

// intact looks for a byte of the guards that was overwritten; *where is its offset from the beginning.
static bool intact(const char *p, const Allocation &a, ptrdiff_t *where) {
    static const std::vector<u16> sound(page / 2 + page, poison);
    auto damaged = [&](const char *from, const char *to) {
        const char *expected = (const char *)sound.data() + ((size_t)from & 1);
        if (memcmp(from, expected, to - from) == 0) return false;
        while (*from == *expected) from++, expected++;
        return *where = from - p, true;
    };
    return !damaged(p - page, p) && !damaged(p + a.bytes, a.map + a.map_bytes - page);
}

static int check(const char *p, const Allocation &a) {
    ptrdiff_t where;
    if (intact(p, a, &where)) return ok;
    return note(illegal_address, "memory was written outside an allocation of %zu bytes: at byte %td", a.bytes, where);
}

int release(void *p) {
    Locked l;
    auto it = all.find((char *)p);
    if (it == all.end()) return note(invalid_value, "%p is no allocation", p);
    int code = check(it->first, it->second);
    munmap(it->second.map, it->second.map_bytes);
    in_use -= it->second.bytes;
    all.erase(it);
    return code;
}

int check_guards() {
    Locked l;
    for (auto &it : all)
        if (int code = check(it.first, it.second)) return code;
    return ok;
}

size_t allocated() {
    Locked l;
    return in_use;
}

} // namespace apr_host

// ---- for Go's Machine

using namespace apr_host;
#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT void *apr_emulator_allocate(size_t bytes) { return allocate(bytes); }
EXPORT int apr_emulator_release(void *p) { return release(p); }
EXPORT int apr_emulator_check() { return check_guards(); }
EXPORT const char *apr_emulator_message() { return message(); }
// apr_emulator_module returns the .cu file of a kernel, null if there is none.
EXPORT const char *apr_emulator_module(const char *kernel) {
    const Kernel *k = find_kernel(kernel);
    return k ? k->module : nullptr;
}

// Request is what Go passes to apr_emulator_run.
struct Request {
    const char *kernel;
    const void *args;
    u32 x, y, z, threads, dynamic, ascending;
};

EXPORT int apr_emulator_run(const Request *r) {
    const Kernel *k = find_kernel(r->kernel);
    if (!k) return note(not_found, "no kernel %s", r->kernel);
    Grid g = {k, r->x, r->y, r->z, r->threads, r->dynamic, r->dynamic > default_shared ? max_shared : 0, r->args, false, r->ascending != 0};
    if (int code = check_grid(g)) return code;
    return run(g);
}
