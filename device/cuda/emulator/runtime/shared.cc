// shared.cc: the shared memory of a block: areas of an arena, each between red zones.
#include "fiber.h"
#include <atomic>
#include <cstring>

namespace apr_host {

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

void check_red_zones(Worker &w) {
    for (auto &a : w.areas)
        for (u32 i = 0; i < red_zone; i += 2) {
            u32 after = a.bytes + (a.bytes & 1) + i;
            if (memcmp(a.begin + after, &poison, 2) != 0)
                fail(illegal_address, "shared memory was written %u bytes behind the end of an array of %u bytes", after - a.bytes, a.bytes);
            if (memcmp(a.begin - 2 - i, &poison, 2) != 0)
                fail(illegal_address, "shared memory was written %u bytes before an array of %u bytes", i + 2, a.bytes);
        }
}

} // namespace apr_host
