// state.h: the state of the emulated driver, for the files that hold its functions.
//
// Streams are lazy: work is done when somebody waits for it, and then only what must come before. So work of another
// stream that nobody ordered has not happened yet, an asynchronous copy reads its source late and writes its target
// late, and a missing wait shows.
#pragma once
#include "driver.h"
#include "machine.h"
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <pthread.h>
#include <set>
#include <string>
#include <vector>

using namespace apr_host;
#define EXPORT extern "C" __attribute__((visibility("default")))

namespace apr_driver {

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

struct Function;

// Node is a piece of work of a graph; of a launch it has what may be changed.
struct Node {
    std::function<int()> work; // of what is not a launch
    Function *function;        // of a launch, or null
    Grid grid;
    std::vector<char> args;
};

struct Graph {
    Context *context;
    std::vector<std::unique_ptr<Node>> nodes; // each depends on the one before
};

// Exec has the nodes of a graph as they were at its instantiation, and what was changed since.
struct Exec {
    Context *context;
    std::map<const Node *, size_t> places;
    std::vector<Node> nodes;
};

struct Stream {
    Context *context;
    std::deque<std::function<int()>> work;
    u64 done, queued;
    Graph *capturing; // null: work is queued
    Node *last;       // what was captured last
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
    int devices, major, minor, driver, multiprocessors, integrated, managed, concurrent, pageable, host_tables, signals;
    size_t memory;
    std::string name;
    struct Failure { u64 call; bool always; int code; };
    std::map<std::string, std::vector<Failure>> failures;
};

extern Settings settings;
extern bool initialised; // cuInit was called
extern std::vector<Device> devices;
extern std::map<char *, Allocated> allocations;
extern std::set<Context *> contexts;
extern std::vector<Stream *> streams; // in the order of their creation
extern std::set<Event *> events;
extern std::set<Module *> modules;
extern std::set<Function *> functions;
extern std::set<Graph *> graphs;
extern std::set<Exec *> execs;
extern __thread Context *current; // of the calling thread
extern __thread int noted;        // code that message() explains

// Locked holds the driver's lock.
struct Locked {
    Locked();
    ~Locked();
};

// refuse sets what cuGetErrorString says and returns code.
template <class... T> int refuse(int code, const char *format, T... args) {
    noted = code;
    return note(code, format, args...);
}
void forget_calls();             // of all functions
int enter(const char *function); // begins a call: counts it and fails it if the settings say so
int with_context();              // an error unless the thread has a context that works
int stick(Context *c, int code); // makes a grave error one that no later call of the context survives

int advance(Stream *s, u64 number); // does the stream's work up to number
int finish(Stream *s);              // does all of it
int finish_all(Context *c);         // does that of all streams, the youngest first, and checks the memory's guards
void enqueue(Stream *s, std::function<int()> work);         // or captures it
void enqueue_grid(Stream *s, Function *f, Grid g, std::vector<char> args);
bool is_stream(Stream *s);
Stream *stream_of(void *handle); // null: no stream of the current context

const Allocated *block_of(const void *p, size_t bytes); // null: not in one allocation
bool on_device(const void *p, size_t bytes);
bool pinned(const void *p, size_t bytes);
int wild(const char *what, const void *p, size_t bytes); // refuses an address

} // namespace apr_driver

using namespace apr_driver;

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
#define NEED_STREAM(s, handle) \
    Stream *s = stream_of(handle); \
    NEED(s, invalid_handle, "%p is no stream of this context", handle)
