// calls_memory.cc: memory, copies and fills.
#include "state.h"
#include <cstring>

static int allocate_block(void **p, size_t bytes, bool host) {
    NEED(bytes > 0, invalid_value, "an allocation of 0 bytes");
    size_t &used = devices[current->device].used;
    NEED(host || bytes <= settings.memory - used, out_of_memory, "%zu bytes are wanted, %zu of %zu are free", bytes, settings.memory - used, settings.memory);
    *p = allocate(bytes);
    NEED(*p, out_of_memory, "the machine has no %zu bytes", bytes);
    allocations[(char *)*p] = {current, bytes, host};
    if (!host) used += bytes;
    return ok;
}

static int free_block(void *p, bool host) {
    auto it = allocations.find((char *)p);
    NEED(it != allocations.end() && it->second.host == host && it->second.context == current, invalid_value, "%p was not allocated so", p);
    if (int code = finish_all(current)) return code;
    if (!host) devices[current->device].used -= it->second.bytes;
    allocations.erase(it);
    return stick(current, release(p));
}

EXPORT int cuMemGetInfo_v2(size_t *free, size_t *total) {
    BEGIN_CONTEXT("cuMemGetInfo_v2");
    *total = settings.memory;
    *free = settings.memory - devices[current->device].used;
    return ok;
}
EXPORT int cuMemAlloc_v2(void **p, size_t bytes) {
    BEGIN_CONTEXT("cuMemAlloc_v2");
    return allocate_block(p, bytes, false);
}
EXPORT int cuMemAllocManaged(void **p, size_t bytes, unsigned flags) {
    BEGIN_CONTEXT("cuMemAllocManaged");
    NEED(settings.managed, 801, "APR_EMULATOR_MANAGED is 0");
    NEED(flags == 1, invalid_value, "cuMemAllocManaged with flags %u", flags);
    return allocate_block(p, bytes, false);
}
EXPORT int cuMemFree_v2(void *p) {
    BEGIN_CONTEXT("cuMemFree_v2");
    return p ? free_block(p, false) : (int)ok;
}
EXPORT int cuMemHostAlloc(void **p, size_t bytes, unsigned) {
    BEGIN_CONTEXT("cuMemHostAlloc");
    return allocate_block(p, bytes, true);
}
EXPORT int cuMemFreeHost(void *p) {
    BEGIN_CONTEXT("cuMemFreeHost");
    return free_block(p, true);
}

EXPORT int cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t bytes, void *stream) {
    BEGIN_CONTEXT("cuMemcpyHtoDAsync_v2");
    NEED_STREAM(s, stream);
    if (!on_device(to, bytes)) return wild("copy to the device", to, bytes);
    if (!pinned(from, bytes)) return wild("copy from pinned memory", from, bytes);
    enqueue(s, [=] { return memcpy(to, from, bytes), (int)ok; });
    return ok;
}
EXPORT int cuMemcpyDtoHAsync_v2(void *to, const void *from, size_t bytes, void *stream) {
    BEGIN_CONTEXT("cuMemcpyDtoHAsync_v2");
    NEED_STREAM(s, stream);
    if (!pinned(to, bytes)) return wild("copy to pinned memory", to, bytes);
    if (!on_device(from, bytes)) return wild("copy from the device", from, bytes);
    enqueue(s, [=] { return memcpy(to, from, bytes), (int)ok; });
    return ok;
}
EXPORT int cuMemcpyDtoDAsync_v2(void *to, const void *from, size_t bytes, void *stream) {
    BEGIN_CONTEXT("cuMemcpyDtoDAsync_v2");
    NEED_STREAM(s, stream);
    if (!on_device(to, bytes)) return wild("copy to the device", to, bytes);
    if (!on_device(from, bytes)) return wild("copy from the device", from, bytes);
    enqueue(s, [=] { return memcpy(to, from, bytes), (int)ok; });
    return ok;
}

EXPORT int cuMemsetD8Async(char *to, unsigned char v, size_t bytes, void *stream) {
    BEGIN_CONTEXT("cuMemsetD8Async");
    NEED_STREAM(s, stream);
    if (!on_device(to, bytes)) return wild("memset", to, bytes);
    enqueue(s, [=] { return memset(to, v, bytes), (int)ok; });
    return ok;
}
