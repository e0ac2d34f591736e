// state.cc: the state of the emulated driver.
#include "state.h"
#include <algorithm>

namespace apr_driver {

Settings settings;
bool initialised;
std::vector<Device> devices;
std::map<char *, Allocated> allocations;
std::set<Context *> contexts;
std::vector<Stream *> streams;
std::set<Event *> events;
std::set<Module *> modules;
std::set<Function *> functions;
std::set<Graph *> graphs;
std::set<Exec *> execs;
__thread Context *current;
__thread int noted;

static std::map<std::string, u64> counts; // calls by function
static pthread_mutex_t lock;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_lock() {
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_settype(&a, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&lock, &a);
}

Locked::Locked() {
    pthread_once(&once, make_lock);
    pthread_mutex_lock(&lock);
}
Locked::~Locked() { pthread_mutex_unlock(&lock); }

static bool is_sticky(int code) {
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

int stick(Context *c, int code) {
    if (is_sticky(code) && c && !c->sticky) {
        c->sticky = code;
        c->why = message();
    }
    noted = code;
    return code;
}

void forget_calls() { counts.clear(); }

int enter(const char *function) {
    u64 n = ++counts[function];
    auto it = settings.failures.find(function);
    if (it == settings.failures.end()) return ok;
    for (auto &f : it->second)
        if (f.always || f.call == n) return stick(current, refuse(f.code, "call %llu of %s fails by APR_EMULATOR_FAIL", n, function));
    return ok;
}

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
    return advance(s, s->queued);
}

int finish_all(Context *c) {
    for (size_t i = streams.size(); i-- > 0;)
        if (streams[i]->context == c)
            if (int code = finish(streams[i])) return code;
    if (int code = check_guards()) return stick(c, code);
    return ok;
}

static void capture(Stream *s, Node n) {
    s->capturing->nodes.push_back(std::make_unique<Node>(std::move(n)));
    s->last = s->capturing->nodes.back().get();
}

void enqueue(Stream *s, std::function<int()> work) {
    if (s->capturing) return capture(s, Node{std::move(work), nullptr, {}, {}});
    s->work.push_back(std::move(work));
    s->queued++;
}

void enqueue_grid(Stream *s, Function *f, Grid g, std::vector<char> args) {
    if (s->capturing) return capture(s, Node{nullptr, f, g, std::move(args)});
    enqueue(s, [g, args = std::move(args)]() mutable {
        g.args = args.data();
        return run(g);
    });
}

bool is_stream(Stream *s) { return std::find(streams.begin(), streams.end(), s) != streams.end(); }

Stream *stream_of(void *handle) {
    if (!handle) return current->default_stream;
    Stream *s = (Stream *)handle;
    return is_stream(s) && s->context == current ? s : nullptr;
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

} // namespace apr_driver

// ---- for libcublasLt, libnccl and for Go

EXPORT int apr_emulator_enter(const char *function) {
    Locked locked;
    return enter(function);
}
EXPORT int apr_emulator_current() {
    Locked locked;
    return initialised && with_context() == ok;
}
EXPORT int apr_emulator_device() {
    Locked locked;
    return current ? current->device : -1;
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
