// calls_device.cc: initialisation, devices, contexts and errors.
#include "state.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <signal.h>

// number reads a variable APR_EMULATOR_name; what is no number makes *understood false.
static long long number(const char *name, long long otherwise, bool *understood) {
    const char *v = getenv((std::string("APR_EMULATOR_") + name).c_str());
    if (!v || !*v) return otherwise;
    char *end;
    long long n = strtoll(v, &end, 0);
    if (*end) *understood = false;
    return n;
}

// read_failures parses "cuMemAlloc_v2:3=2,cuLaunchKernel:*=700".
static bool read_failures(const char *v) {
    while (v && *v) {
        char function[64], call[24];
        int code, length = 0;
        if (sscanf(v, "%63[a-zA-Z0-9_]:%23[0-9*]=%d%n", function, call, &code, &length) != 3) return false;
        settings.failures[function].push_back({strtoull(call, nullptr, 10), call[0] == '*', code});
        v += length;
        if (*v && *v++ != ',') return false;
    }
    return true;
}

static bool read_settings() {
    bool fine = true;
    settings = Settings{};
    settings.devices = number("DEVICES", 1, &fine);
    settings.memory = number("MEMORY", 8LL << 30, &fine);
    settings.driver = number("DRIVER", 13000, &fine);
    settings.multiprocessors = number("MULTIPROCESSORS", 6, &fine);
    settings.integrated = number("INTEGRATED", 0, &fine);
    settings.managed = number("MANAGED", 1, &fine);
    settings.concurrent = number("CONCURRENT_MANAGED", 1, &fine);
    settings.pageable = number("PAGEABLE", 0, &fine);
    settings.host_tables = number("PAGEABLE_TABLES", 0, &fine);
    settings.signals = number("SIGNALS", 0, &fine);
    const char *cc = getenv("APR_EMULATOR_CC");
    if (!cc || !*cc) cc = "8.0";
    if (sscanf(cc, "%d.%d", &settings.major, &settings.minor) != 2) fine = false;
    const char *name = getenv("APR_EMULATOR_NAME");
    settings.name = name && *name ? name : "Emulated GPU";
    return read_failures(getenv("APR_EMULATOR_FAIL")) && fine;
}

static void reset_contexts() {
    for (Context *c : contexts) c->sticky = 0;
}

static void on_signal(int) {}

EXPORT int cuInit(unsigned flags) {
    Locked locked;
    forget_calls();
    bool understood = read_settings();
    if (settings.signals) { // as some drivers do: handlers that need more stack than a goroutine has
        struct sigaction a = {};
        a.sa_handler = on_signal;
        sigaction(SIGINT, &a, nullptr);
        sigaction(SIGTERM, &a, nullptr);
    }
    if (int code = enter("cuInit")) return code;
    NEED(understood, invalid_value, "a variable APR_EMULATOR_… is not understood");
    NEED(flags == 0, invalid_value, "cuInit with flags %u", flags);
    if (settings.devices == 0) return refuse(no_device, "APR_EMULATOR_DEVICES is 0");
    initialised = true;
    reset_contexts();
    if (devices.size() < (size_t)settings.devices) devices.resize(settings.devices);
    return ok;
}

EXPORT int cuDriverGetVersion(int *version) {
    BEGIN("cuDriverGetVersion");
    bool fine = true;
    *version = number("DRIVER", 13000, &fine); // may be asked before cuInit
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
        primary->default_stream = new Stream{primary, {}, 0, 0, nullptr, nullptr};
        streams.push_back(primary->default_stream);
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
    for (size_t i = streams.size(); i-- > 0;)
        if (streams[i]->context == c) {
            delete streams[i];
            streams.erase(streams.begin() + i);
        }
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
