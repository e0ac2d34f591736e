// driver.cc: the CUDA driver's functions over the emulation.
//
// Streams are lazy: work is done when somebody waits for it, and then only what must come before. So work of another
// stream that nobody ordered has not happened yet, an asynchronous copy reads its source late and writes its target
// late, and a missing wait shows.
#include "driver.h"
#include "machine.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <pthread.h>
#include <set>
#include <signal.h>
#include <string>
#include <time.h>
#include <vector>

using namespace apr_host;
#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

struct Context;
struct Stream;

// Mark is one recording of an event: it has happened when the stream has done `number` pieces of work.
struct Mark {
    Stream *stream;
    u64 number;
    bool done, asked;
    double time;
};

struct Event {
    Context *context;
    bool timing;
    std::shared_ptr<Mark> mark; // null: never recorded
};

struct Stream {
    Context *context;
    std::deque<std::function<int()>> work;
    u64 done, queued;
};

struct Module {
    Context *context;
    std::string text;
};

struct Function {
    Module *module;
    const Kernel *kernel;
    u32 allowed;
};

struct Allocated {
    Context *context;
    size_t bytes;
    bool host;
};

struct Context {
    int device;
    int users;
    int sticky; // error after which nothing works
    std::string why;
    Stream *default_stream;
};

struct Device {
    Context *primary;
    size_t used;
};

// Settings are the environment's wishes, read by cuInit.
struct Settings {
    int devices, major, minor, driver, multiprocessors, integrated, managed, concurrent, pageable, host_tables;
    size_t memory;
    std::string name;
    struct Failure { u64 call; bool always; int code; };
    std::map<std::string, std::vector<Failure>> failures;
};

pthread_mutex_t lock;
pthread_once_t once = PTHREAD_ONCE_INIT;
Settings settings;
bool initialised;
std::map<std::string, u64> counts; // calls by function
std::vector<Device> devices;
std::map<char *, Allocated> allocations;
std::set<Context *> contexts;
std::set<Stream *> streams;
std::set<Event *> events;
std::set<Module *> modules;
std::set<Function *> functions;
__thread Context *current;
__thread int noted; // code that message() explains

void make_lock() {
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_settype(&a, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &a);
}

struct Locked {
    Locked() {
        pthread_once(&once, make_lock);
        pthread_mutex_lock(&lock);
    }
    ~Locked() { pthread_mutex_unlock(&lock); }
};

template <class... T> int refuse(int code, const char *format, T... args) {
    noted = code;
    return note(code, format, args...);
}

bool is_sticky(int code) {
    for (int s : {214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999})
        if (code == s) return true;
    return false;
}

int with_context() {
    if (!current) return refuse(invalid_context, "this thread has no current context");
    if (!contexts.count(current)) return refuse(709, "the current context was destroyed");
    if (current->sticky) return refuse(current->sticky, "%s", current->why.c_str());
    return ok;
}

// stick makes an error that no later call of the context survives.
int stick(Context *c, int code) {
    if (is_sticky(code) && c && !c->sticky) {
        c->sticky = code;
        c->why = message();
    }
    noted = code;
    return code;
}

int enter(const char *function) {
    u64 n = ++counts[function];
    auto it = settings.failures.find(function);
    if (it == settings.failures.end()) return ok;
    for (auto &f : it->second)
        if (f.always || f.call == n) return stick(current, refuse(f.code, "call %llu of %s fails by APR_EMULATOR_FAIL", n, function));
    return ok;
}

// ---- execution

double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

// advance does the stream's work up to number.
int advance(Stream *s, u64 number) {
    while (s->done < number) {
        if (s->context->sticky) return refuse(s->context->sticky, "%s", s->context->why.c_str());
        auto work = std::move(s->work.front());
        s->work.pop_front();
        int code = work();
        s->done++;
        if (code) return stick(s->context, code);
    }
    return ok;
}

int finish(Stream *s) {
    if (int code = advance(s, s->queued)) return code;
    return ok;
}

int finish_all(Context *c) {
    for (Stream *s : streams)
        if (s->context == c)
            if (int code = finish(s)) return code;
    if (int code = check_guards()) return stick(c, code);
    return ok;
}

void enqueue(Stream *s, std::function<int()> work) {
    s->work.push_back(std::move(work));
    s->queued++;
}

Stream *stream_of(void *handle) {
    if (!handle) return current->default_stream;
    Stream *s = (Stream *)handle;
    return streams.count(s) && s->context == current ? s : nullptr;
}

const Allocated *block_of(const void *p, size_t bytes) {
    auto it = allocations.upper_bound((char *)p);
    if (it == allocations.begin()) return nullptr;
    --it;
    bool inside = (char *)p >= it->first && bytes <= it->second.bytes && (size_t)((char *)p - it->first) <= it->second.bytes - bytes;
    return inside ? &it->second : nullptr;
}

bool on_device(const void *p, size_t bytes) {
    const Allocated *b = block_of(p, bytes);
    return b && !b->host && b->context == current;
}

bool pinned(const void *p, size_t bytes) {
    const Allocated *b = block_of(p, bytes);
    return b && b->host;
}

int wild(const char *what, const void *p, size_t bytes) {
    return refuse(invalid_value, "%s: %zu bytes at %p are not in one allocation", what, bytes, p);
}

// ---- settings

long long number(const char *name, long long otherwise) {
    const char *v = getenv((std::string("APR_EMULATOR_") + name).c_str());
    return v && *v ? strtoll(v, nullptr, 0) : otherwise;
}

// read_failures parses "cuMemAlloc_v2:3=2,cuLaunchKernel:*=700".
void read_failures(const char *v) {
    while (v && *v) {
        const char *colon = strchr(v, ':'), *equals = strchr(v, '=');
        if (!colon || !equals || colon > equals) return;
        Settings::Failure f = {strtoull(colon + 1, nullptr, 10), colon[1] == '*', atoi(equals + 1)};
        settings.failures[std::string(v, colon)].push_back(f);
        v = strchr(equals, ',');
        if (v) v++;
    }
}

void read_settings() {
    settings = Settings{};
    settings.devices = number("DEVICES", 1);
    settings.memory = number("MEMORY", 8LL << 30);
    settings.driver = number("DRIVER", 13000);
    settings.multiprocessors = number("MULTIPROCESSORS", 6);
    settings.integrated = number("INTEGRATED", 0);
    settings.managed = number("MANAGED", 1);
    settings.concurrent = number("CONCURRENT_MANAGED", 1);
    settings.pageable = number("PAGEABLE", 0);
    settings.host_tables = number("PAGEABLE_TABLES", 0);
    const char *cc = getenv("APR_EMULATOR_CC");
    if (!cc || sscanf(cc, "%d.%d", &settings.major, &settings.minor) != 2) settings.major = 9, settings.minor = 0;
    const char *name = getenv("APR_EMULATOR_NAME");
    settings.name = name && *name ? name : "Emulated GPU";
    read_failures(getenv("APR_EMULATOR_FAIL"));
}

void reset_contexts() {
    for (Context *c : contexts) c->sticky = 0;
}

void on_signal(int) {}

} // namespace

#define BEGIN(name) \
    Locked locked; \
    if (int code = enter(name)) return code;
#define BEGIN_READY(name) \
    BEGIN(name) \
    if (!initialised) return refuse(not_initialized, "cuInit was not called");
#define BEGIN_CONTEXT(name) \
    BEGIN_READY(name) \
    if (int code = with_context()) return code;
#define NEED(condition, code, ...) \
    if (!(condition)) return refuse(code, __VA_ARGS__)

// ---- initialisation, devices

EXPORT int cuInit(unsigned flags) {
    Locked locked;
    counts.clear();
    read_settings();
    if (number("SIGNALS", 0)) { // as some drivers do: handlers that need more stack than a goroutine has
        struct sigaction a = {};
        a.sa_handler = on_signal;
        sigaction(SIGINT, &a, nullptr);
        sigaction(SIGTERM, &a, nullptr);
    }
    if (int code = enter("cuInit")) return code;
    NEED(flags == 0, invalid_value, "cuInit with flags %u", flags);
    if (settings.devices == 0) return refuse(no_device, "APR_EMULATOR_DEVICES is 0");
    initialised = true;
    reset_contexts();
    if (devices.size() < (size_t)settings.devices) devices.resize(settings.devices);
    return ok;
}

EXPORT int cuDriverGetVersion(int *version) {
    BEGIN("cuDriverGetVersion");
    *version = number("DRIVER", 13000); // may be asked before cuInit
    return ok;
}

EXPORT int cuDeviceGetCount(int *n) {
    BEGIN_READY("cuDeviceGetCount");
    *n = settings.devices;
    return ok;
}

EXPORT int cuDeviceGet(int *device, int i) {
    BEGIN_READY("cuDeviceGet");
    NEED(i >= 0 && i < settings.devices, invalid_device, "no device %d", i);
    *device = i;
    return ok;
}

#define NEED_DEVICE(d) NEED(d >= 0 && d < settings.devices, invalid_device, "no device %d", d)

EXPORT int cuDeviceGetName(char *name, int length, int d) {
    BEGIN_READY("cuDeviceGetName");
    NEED_DEVICE(d);
    snprintf(name, length, "%s", settings.name.c_str());
    return ok;
}

static int uuid(unsigned char *u, int d) {
    for (int i = 0; i < 16; i++) u[i] = 0x10 * d + i;
    return ok;
}
EXPORT int cuDeviceGetUuid(unsigned char *u, int d) {
    BEGIN_READY("cuDeviceGetUuid");
    NEED_DEVICE(d);
    return uuid(u, d);
}
EXPORT int cuDeviceGetUuid_v2(unsigned char *u, int d) {
    BEGIN_READY("cuDeviceGetUuid_v2");
    NEED_DEVICE(d);
    return uuid(u, d);
}

EXPORT int cuDeviceGetPCIBusId(char *id, int length, int d) {
    BEGIN_READY("cuDeviceGetPCIBusId");
    NEED_DEVICE(d);
    snprintf(id, length, "0000:%02X:00.0", d + 1);
    return ok;
}

EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int d) {
    BEGIN_READY("cuDeviceTotalMem_v2");
    NEED_DEVICE(d);
    *bytes = settings.memory;
    return ok;
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int d) {
    BEGIN_READY("cuDeviceGetAttribute");
    NEED_DEVICE(d);
    const std::map<int, int> values = {
        {1, (int)max_threads}, {2, (int)max_threads}, {8, (int)default_shared}, {10, 32}, {12, 65536}, {13, 1000000},
        {16, settings.multiprocessors}, {18, settings.integrated}, {31, 1}, {36, 1000000}, {37, 1024}, {38, 4 << 20},
        {39, 2048}, {40, 2}, {41, 1}, {75, settings.major}, {76, settings.minor}, {81, (int)max_shared + 1024}, {82, 65536},
        {83, settings.managed}, {88, settings.pageable}, {89, settings.concurrent}, {97, (int)max_shared}, {100, settings.host_tables},
    };
    auto it = values.find(attribute);
    NEED(it != values.end(), invalid_value, "the emulator has no attribute %d", attribute);
    *value = it->second;
    return ok;
}

// ---- contexts

EXPORT int cuDevicePrimaryCtxRetain(Context **c, int d) {
    BEGIN_READY("cuDevicePrimaryCtxRetain");
    NEED_DEVICE(d);
    Context *&primary = devices[d].primary;
    if (!primary) {
        primary = new Context{d, 0, 0, "", nullptr};
        primary->default_stream = new Stream{primary, {}, 0, 0};
        streams.insert(primary->default_stream);
        contexts.insert(primary);
    }
    primary->users++;
    *c = primary;
    return ok;
}

template <class T> static void drop_all(std::set<T *> &all, Context *c, Context *(*of)(T *)) {
    for (auto it = all.begin(); it != all.end();)
        if (of(*it) == c) {
            delete *it;
            it = all.erase(it);
        } else ++it;
}

// destroy frees all that a context has, and says if memory around an allocation was written.
static int destroy(Context *c) {
    int result = c->sticky ? (int)ok : finish_all(c);
    drop_all<Function>(functions, c, [](Function *f) { return f->module->context; });
    drop_all<Module>(modules, c, [](Module *m) { return m->context; });
    drop_all<Event>(events, c, [](Event *e) { return e->context; });
    drop_all<Stream>(streams, c, [](Stream *s) { return s->context; });
    for (auto it = allocations.begin(); it != allocations.end();)
        if (it->second.context == c) {
            if (!it->second.host) devices[c->device].used -= it->second.bytes;
            if (int code = release(it->first); code && !result) result = code;
            it = allocations.erase(it);
        } else ++it;
    contexts.erase(c);
    devices[c->device].primary = nullptr;
    delete c;
    return result;
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int d) {
    BEGIN_READY("cuDevicePrimaryCtxRelease_v2");
    NEED_DEVICE(d);
    Context *c = devices[d].primary;
    NEED(c, invalid_context, "device %d has no primary context", d);
    if (--c->users) return ok;
    return destroy(c);
}

EXPORT int cuCtxSetCurrent(Context *c) {
    BEGIN_READY("cuCtxSetCurrent");
    NEED(!c || contexts.count(c), invalid_context, "%p is no context", (void *)c);
    current = c;
    return ok;
}

EXPORT int cuCtxSynchronize() {
    BEGIN_CONTEXT("cuCtxSynchronize");
    return finish_all(current);
}

// ---- memory

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

#define NEED_STREAM(s, handle) \
    Stream *s = stream_of(handle); \
    NEED(s, invalid_handle, "%p is no stream of this context", handle)

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

// Copy2D is CUDA_MEMCPY2D.
struct Copy2D {
    size_t src_x, src_y;
    unsigned src_type;
    const char *src_host, *src_device;
    void *src_array;
    size_t src_pitch;
    size_t dst_x, dst_y;
    unsigned dst_type;
    char *dst_host, *dst_device;
    void *dst_array;
    size_t dst_pitch;
    size_t width, height;
};
static_assert(sizeof(Copy2D) == 128, "the layout of CUDA_MEMCPY2D");

EXPORT int cuMemcpy2DAsync_v2(const Copy2D *p, void *stream) {
    BEGIN_CONTEXT("cuMemcpy2DAsync_v2");
    NEED_STREAM(s, stream);
    Copy2D c = *p;
    NEED(c.src_type == 2 && c.dst_type == 2, invalid_value, "2D copies are emulated within the device only");
    if (c.width == 0 || c.height == 0) return ok;
    NEED(c.src_pitch >= c.width && c.dst_pitch >= c.width, invalid_value, "a pitch is less than the width");
    const char *from = c.src_device + c.src_y * c.src_pitch + c.src_x;
    char *to = c.dst_device + c.dst_y * c.dst_pitch + c.dst_x;
    size_t reads = (c.height - 1) * c.src_pitch + c.width, writes = (c.height - 1) * c.dst_pitch + c.width;
    if (!on_device(from, reads)) return wild("2D copy from the device", from, reads);
    if (!on_device(to, writes)) return wild("2D copy to the device", to, writes);
    enqueue(s, [=] {
        for (size_t i = 0; i < c.height; i++) memcpy(to + i * c.dst_pitch, from + i * c.src_pitch, c.width);
        return (int)ok;
    });
    return ok;
}

EXPORT int cuMemsetD8Async(char *to, unsigned char v, size_t bytes, void *stream) {
    BEGIN_CONTEXT("cuMemsetD8Async");
    NEED_STREAM(s, stream);
    if (!on_device(to, bytes)) return wild("memset", to, bytes);
    enqueue(s, [=] { return memset(to, v, bytes), (int)ok; });
    return ok;
}
EXPORT int cuMemsetD2D8Async(char *to, size_t pitch, unsigned char v, size_t width, size_t height, void *stream) {
    BEGIN_CONTEXT("cuMemsetD2D8Async");
    NEED_STREAM(s, stream);
    if (width == 0 || height == 0) return ok;
    NEED(pitch >= width || height == 1, invalid_value, "the pitch is less than the width");
    if (!on_device(to, (height - 1) * pitch + width)) return wild("2D memset", to, (height - 1) * pitch + width);
    enqueue(s, [=] {
        for (size_t i = 0; i < height; i++) memset(to + i * pitch, v, width);
        return (int)ok;
    });
    return ok;
}

// ---- streams and events

EXPORT int cuStreamCreate(Stream **s, unsigned flags) {
    BEGIN_CONTEXT("cuStreamCreate");
    NEED(flags == 1, invalid_value, "only CU_STREAM_NON_BLOCKING is emulated");
    streams.insert(*s = new Stream{current, {}, 0, 0});
    return ok;
}
EXPORT int cuStreamDestroy_v2(void *stream) {
    BEGIN_CONTEXT("cuStreamDestroy_v2");
    NEED(stream, invalid_handle, "the default stream cannot be destroyed");
    NEED_STREAM(s, stream);
    int code = finish(s);
    streams.erase(s);
    delete s;
    return code;
}
EXPORT int cuStreamSynchronize(void *stream) {
    BEGIN_CONTEXT("cuStreamSynchronize");
    NEED_STREAM(s, stream);
    if (int code = finish(s)) return code;
    return stick(current, check_guards());
}
EXPORT int cuStreamQuery(void *stream) {
    BEGIN_CONTEXT("cuStreamQuery");
    NEED_STREAM(s, stream);
    return s->done == s->queued ? (int)ok : (int)not_ready;
}
EXPORT int cuStreamWaitEvent(void *stream, Event *e, unsigned) {
    BEGIN_CONTEXT("cuStreamWaitEvent");
    NEED_STREAM(s, stream);
    NEED(events.count(e), invalid_handle, "%p is no event", (void *)e);
    std::shared_ptr<Mark> mark = e->mark;
    if (mark && !mark->done) enqueue(s, [=] { return mark->done ? (int)ok : advance(mark->stream, mark->number); });
    return ok;
}

EXPORT int cuEventCreate(Event **e, unsigned flags) {
    BEGIN_CONTEXT("cuEventCreate");
    events.insert(*e = new Event{current, !(flags & 2), nullptr});
    return ok;
}

#define NEED_EVENT(e) NEED(events.count(e) && e->context == current, invalid_handle, "%p is no event of this context", (void *)e)

EXPORT int cuEventDestroy_v2(Event *e) {
    BEGIN_CONTEXT("cuEventDestroy_v2");
    NEED_EVENT(e);
    events.erase(e);
    delete e;
    return ok;
}
EXPORT int cuEventRecord(Event *e, void *stream) {
    BEGIN_CONTEXT("cuEventRecord");
    NEED_EVENT(e);
    NEED_STREAM(s, stream);
    auto mark = std::make_shared<Mark>(Mark{s, s->queued + 1, false, false, 0});
    e->mark = mark;
    enqueue(s, [=] { return mark->done = true, mark->time = now(), (int)ok; });
    return ok;
}
EXPORT int cuEventSynchronize(Event *e) {
    BEGIN_CONTEXT("cuEventSynchronize");
    NEED_EVENT(e);
    if (!e->mark || e->mark->done) return ok;
    if (int code = advance(e->mark->stream, e->mark->number)) return code;
    return stick(current, check_guards());
}
// The first question after a recording is answered with "not yet"; the second one finds the work done.
EXPORT int cuEventQuery(Event *e) {
    BEGIN_CONTEXT("cuEventQuery");
    NEED_EVENT(e);
    Mark *m = e->mark.get();
    if (!m || m->done) return ok;
    if (!m->asked) return m->asked = true, (int)not_ready;
    return advance(m->stream, m->number);
}
EXPORT int cuEventElapsedTime(float *ms, Event *a, Event *b) {
    BEGIN_CONTEXT("cuEventElapsedTime");
    NEED_EVENT(a);
    NEED_EVENT(b);
    NEED(a->timing && b->timing && a->mark && b->mark, invalid_handle, "an event without timing or never recorded");
    if (!a->mark->done || !b->mark->done) return not_ready;
    *ms = (float)((b->mark->time - a->mark->time) * 1e3);
    return ok;
}

// ---- modules

// directive returns the text after a directive at the beginning of PTX, or null.
static const char *directive(const std::string &text, const char *name) {
    size_t at = text.find(name);
    if (at == std::string::npos || at > 4096) return nullptr;
    return text.c_str() + at + strlen(name);
}

// judge says whether the driver takes a module; *log becomes what its compiler says.
static int judge(const std::string &text, std::string *log) {
    int major, minor, target;
    const char *v = directive(text, ".version"), *t = directive(text, ".target");
    if (!v || !t || sscanf(v, " %d.%d", &major, &minor) != 2 || sscanf(t, " sm_%d", &target) != 1) {
        *log = "emulator: no .version and .target at the beginning";
        return invalid_ptx;
    }
    int serves = settings.driver / 1000 - 4, minors = settings.driver % 1000 / 10; // CUDA 12.0 reads PTX 8.0
    if (major > serves || (major == serves && minor > minors + 1)) {
        *log = "emulator: unsupported .version";
        return unsupported_ptx;
    }
    if (target > 10 * settings.major + settings.minor) {
        *log = "emulator: the target is newer than the device";
        return 209;
    }
    if (text.find(".entry ") == std::string::npos) {
        *log = "emulator: no entry";
        return invalid_ptx;
    }
    return ok;
}

EXPORT int cuModuleLoadDataEx(Module **m, const char *image, unsigned n, const int *options, void **values) {
    BEGIN_CONTEXT("cuModuleLoadDataEx");
    NEED(image, invalid_value, "no image");
    std::string text = image, log;
    int code = judge(text, &log);
    char *buffer = nullptr;
    size_t size = 0;
    for (unsigned i = 0; i < n; i++) {
        if (options[i] == 5) buffer = (char *)values[i];
        if (options[i] == 6) size = (size_t)(unsigned)(size_t)values[i];
    }
    if (buffer && size) snprintf(buffer, size, "%s", log.c_str());
    if (code) return refuse(code, "%s", log.c_str());
    modules.insert(*m = new Module{current, text});
    return ok;
}

EXPORT int cuModuleUnload(Module *m) {
    BEGIN_CONTEXT("cuModuleUnload");
    NEED(modules.count(m), invalid_handle, "%p is no module", (void *)m);
    if (int code = finish_all(current)) return code;
    for (auto it = functions.begin(); it != functions.end();)
        if ((*it)->module == m) {
            delete *it;
            it = functions.erase(it);
        } else ++it;
    modules.erase(m);
    delete m;
    return ok;
}

EXPORT int cuModuleGetFunction(Function **f, Module *m, const char *name) {
    BEGIN_CONTEXT("cuModuleGetFunction");
    NEED(modules.count(m), invalid_handle, "%p is no module", (void *)m);
    NEED(m->text.find(std::string(".entry ") + name + "(") != std::string::npos, not_found, "the PTX has no entry %s", name);
    const Kernel *k = find_kernel(name);
    NEED(k, not_found, "the PTX has an entry %s, but no .cu file was compiled with it", name);
    functions.insert(*f = new Function{m, k, 0});
    return ok;
}

#define NEED_FUNCTION(f) NEED(functions.count(f), invalid_handle, "%p is no function", (void *)f)

EXPORT int cuFuncSetAttribute(Function *f, int attribute, int value) {
    BEGIN_CONTEXT("cuFuncSetAttribute");
    NEED_FUNCTION(f);
    NEED(attribute == 8 || attribute == 9, invalid_value, "the emulator has no function attribute %d", attribute);
    if (attribute == 8) {
        NEED(value >= 0 && value <= (int)max_shared, invalid_value, "kernel %s: %d bytes of dynamic shared memory, %u are possible", f->kernel->name, value, max_shared);
        f->allowed = value;
    }
    return ok;
}

EXPORT int cuFuncGetAttribute(int *value, int attribute, Function *f) {
    BEGIN_CONTEXT("cuFuncGetAttribute");
    NEED_FUNCTION(f);
    const std::map<int, int> values = {{0, (int)f->kernel->threads}, {1, 0}, {3, 0}, {4, 32}, {8, (int)f->allowed}};
    auto it = values.find(attribute);
    NEED(it != values.end(), invalid_value, "the emulator has no function attribute %d", attribute);
    *value = it->second;
    return ok;
}

EXPORT int cuLaunchKernel(Function *f, unsigned x, unsigned y, unsigned z, unsigned block, unsigned block_y, unsigned block_z,
    unsigned dynamic, void *stream, void **params, void **extra) {
    BEGIN_CONTEXT("cuLaunchKernel");
    NEED_FUNCTION(f);
    NEED_STREAM(s, stream);
    NEED(block_y == 1 && block_z == 1, invalid_value, "kernel %s: blocks have one dimension", f->kernel->name);
    NEED(params && params[0] && !extra, invalid_value, "kernel %s: arguments are passed by kernelParams", f->kernel->name);
    Grid g = {f->kernel, x, y, z, block, dynamic, f->allowed, nullptr};
    if (int code = check_grid(g)) return noted = code;
    std::vector<char> args((char *)params[0], (char *)params[0] + f->kernel->bytes);
    enqueue(s, [g, args]() mutable {
        g.args = args.data();
        return run(g);
    });
    return ok;
}

// Config is CUlaunchConfig.
struct Config {
    unsigned x, y, z, block, block_y, block_z, dynamic;
    void *stream, *attributes;
    unsigned count;
};

EXPORT int cuLaunchKernelEx(const Config *c, Function *f, void **params, void **extra) {
    Locked locked;
    NEED(c->count == 0, invalid_value, "launch attributes are not emulated");
    return cuLaunchKernel(f, c->x, c->y, c->z, c->block, c->block_y, c->block_z, c->dynamic, c->stream, params, extra);
}

// ---- errors

static const std::map<int, const char *> error_names = {
    {0, "CUDA_SUCCESS"}, {1, "CUDA_ERROR_INVALID_VALUE"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"}, {3, "CUDA_ERROR_NOT_INITIALIZED"},
    {34, "CUDA_ERROR_STUB_LIBRARY"}, {100, "CUDA_ERROR_NO_DEVICE"}, {101, "CUDA_ERROR_INVALID_DEVICE"}, {200, "CUDA_ERROR_INVALID_IMAGE"},
    {201, "CUDA_ERROR_INVALID_CONTEXT"}, {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"}, {214, "CUDA_ERROR_ECC_UNCORRECTABLE"},
    {218, "CUDA_ERROR_INVALID_PTX"}, {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"}, {400, "CUDA_ERROR_INVALID_HANDLE"},
    {500, "CUDA_ERROR_NOT_FOUND"}, {600, "CUDA_ERROR_NOT_READY"}, {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    {701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"}, {702, "CUDA_ERROR_LAUNCH_TIMEOUT"}, {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"},
    {716, "CUDA_ERROR_MISALIGNED_ADDRESS"}, {719, "CUDA_ERROR_LAUNCH_FAILED"}, {801, "CUDA_ERROR_NOT_SUPPORTED"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"}, {804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"}, {999, "CUDA_ERROR_UNKNOWN"},
};

EXPORT int cuGetErrorName(int code, const char **name) {
    auto it = error_names.find(code);
    *name = it == error_names.end() ? nullptr : it->second;
    return *name ? (int)ok : (int)invalid_value;
}
// The text is the emulator's account of this thread's last failure, if it had the code.
EXPORT int cuGetErrorString(int code, const char **text) {
    if (code == noted && *message()) return *text = message(), (int)ok;
    return cuGetErrorName(code, text);
}

// ---- for libcublasLt and for Go

EXPORT int apr_emulator_enter(const char *function) {
    Locked locked;
    return enter(function);
}
EXPORT int apr_emulator_current() {
    Locked locked;
    return initialised && with_context() == ok;
}
EXPORT int apr_emulator_enqueue(void *stream, int (*task)(void *), void (*drop)(void *), void *data) {
    Locked locked;
    std::shared_ptr<void> owned(data, drop);
    if (int code = with_context()) return code;
    NEED_STREAM(s, stream);
    enqueue(s, [=] { return task(owned.get()); });
    return ok;
}
EXPORT int apr_emulator_readable(const void *p, size_t bytes) {
    Locked locked;
    const Allocated *b = block_of(p, bytes);
    return b && !b->host;
}
EXPORT void apr_emulator_parallel(int n, void (*part)(void *, int), void *data) { parallel(n, part, data); }
EXPORT int apr_emulator_note(int code, const char *text) { return refuse(code, "%s", text); }
// apr_emulator_calls returns how often a function was called since cuInit.
EXPORT u64 apr_emulator_calls(const char *function) {
    Locked locked;
    return counts[function];
}
