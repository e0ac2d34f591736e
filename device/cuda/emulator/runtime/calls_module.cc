// calls_module.cc: modules, functions and launches.
#include "state.h"
#include <cstdio>
#include <cstring>

// directive returns the text after a directive at the beginning of PTX, or null.
static const char *directive(const std::string &text, const char *name) {
    size_t at = text.find(name);
    if (at == std::string::npos || at > 4096) return nullptr;
    return text.c_str() + at + strlen(name);
}

// judge says whether the driver takes a module; *log becomes what its compiler says.
static int judge(const std::string &text, std::string *log) {
    int major, minor, target, here = 10 * settings.major + settings.minor;
    char only = 0; // a letter behind the target: for that device alone
    const char *v = directive(text, ".version"), *t = directive(text, ".target");
    if (!v || !t || sscanf(v, " %d.%d", &major, &minor) != 2 || sscanf(t, " sm_%d%c", &target, &only) < 1) {
        *log = "emulator: no .version and .target at the beginning";
        return invalid_ptx;
    }
    int serves = settings.driver / 1000 - 4, minors = settings.driver % 1000 / 10; // CUDA 12.0 reads PTX 8.0
    if (major > serves || (major == serves && minor > minors + 1)) {
        *log = "emulator: unsupported .version";
        return unsupported_ptx;
    }
    if (target > here || (only >= 'a' && only <= 'z' && target != here)) {
        *log = "emulator: the device is not one of the target's";
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

static int enqueue_launch(Function *f, unsigned x, unsigned y, unsigned z, unsigned block, unsigned block_y, unsigned block_z, unsigned dynamic,
    void *stream, void **params, void **extra, bool together) {
    NEED_FUNCTION(f);
    NEED_STREAM(s, stream);
    NEED(block_y == 1 && block_z == 1, invalid_value, "kernel %s: blocks have one dimension", f->kernel->name);
    NEED(params && params[0] && !extra, invalid_value, "kernel %s: arguments are passed by kernelParams", f->kernel->name);
    Grid g = {f->kernel, x, y, z, block, dynamic, f->allowed, nullptr, together, false};
    if (int code = check_grid(g)) return noted = code;
    std::vector<char> args((char *)params[0], (char *)params[0] + f->kernel->bytes);
    enqueue_grid(s, f, g, std::move(args));
    return ok;
}

EXPORT int cuLaunchKernel(Function *f, unsigned x, unsigned y, unsigned z, unsigned block, unsigned block_y, unsigned block_z,
    unsigned dynamic, void *stream, void **params, void **extra) {
    BEGIN_CONTEXT("cuLaunchKernel");
    return enqueue_launch(f, x, y, z, block, block_y, block_z, dynamic, stream, params, extra, false);
}

// Attribute is CUlaunchAttribute, Config CUlaunchConfig.
struct Attribute {
    unsigned id, pad, value[16];
};
struct Config {
    unsigned x, y, z, block, block_y, block_z, dynamic;
    void *stream;
    const Attribute *attributes;
    unsigned count;
};

EXPORT int cuLaunchKernelEx(const Config *c, Function *f, void **params, void **extra) {
    BEGIN_CONTEXT("cuLaunchKernelEx");
    NEED(c->count == 1 && c->attributes->id == 2 && c->attributes->value[0] == 1, invalid_value, "launch attributes other than cooperative are not emulated");
    return enqueue_launch(f, c->x, c->y, c->z, c->block, c->block_y, c->block_z, c->dynamic, c->stream, params, extra, true);
}
