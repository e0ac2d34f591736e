// nccl.cc: collectives with the interface of NCCL, between the emulated devices of one process or of several.
//
// The ranks of a communicator share a file in memory: a place for a piece of each rank's values, and a barrier. A call
// first waits for what its stream was given, then meets the others, and gives the stream a copy of the result: what is
// not ordered behind it sees the old values. Sums are binary trees of neighbours. All ranks have to make the same calls
// in the same order; one that does not gets ncclInvalidUsage, where the real library hangs.
#include "driver.h"
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

extern "C" int cuStreamSynchronize(void *stream);

namespace {

enum { success = 0, unhandled = 1, system_error = 2, invalid_argument = 4, invalid_usage = 5, remote_error = 6 };
enum { most_ranks = 16, piece_bytes = 1 << 18 };
enum { u8 = 1, f32 = 7, f64 = 8, bf16 = 9 };

struct Id {
    char name[64];
    char rest[64];
};
static_assert(sizeof(Id) == 128, "the size of ncclUniqueId");

// What lies in the file.
struct Shared {
    std::atomic<int> arrived, turn, dead;
    int device[most_ranks], pid[most_ranks];
    uint64_t call[most_ranks]; // a hash of what each rank asks for
    char piece[most_ranks][piece_bytes];
};

struct Comm {
    Shared *shared;
    int world, rank;
    std::atomic<int> aborted;
};

// Call is one that waits for GroupEnd.
struct Call {
    int kind, type, peer;
    size_t count;
    const char *from;
    char *to;
    Comm *comm;
    void *stream;
};
enum { all_reduce, reduce_scatter, all_gather, broadcast, send, receive };

__thread int depth;
__thread std::vector<Call> *waiting;

size_t size_of(int type) { return type == u8 ? 1 : type == bf16 ? 2 : type == f32 ? 4 : type == f64 ? 8 : 0; }

// meet waits until all ranks have come.
int meet(Comm *c) {
    Shared *s = c->shared;
    int turn = s->turn.load();
    if (s->arrived.fetch_add(1) + 1 == c->world) {
        s->arrived = 0;
        s->turn++;
        return success;
    }
    while (s->turn.load() == turn) {
        if (c->aborted) return unhandled;
        if (s->dead) return remote_error;
        timespec t = {0, 20000};
        nanosleep(&t, nullptr);
    }
    return success;
}

template <class T> void tree(std::vector<std::vector<T>> &parts) {
    for (size_t stride = 1; stride < parts.size(); stride *= 2)
        for (size_t i = 0; i + stride < parts.size(); i += 2 * stride)
            for (size_t k = 0; k < parts[i].size(); k++) parts[i][k] += parts[i + stride][k];
}

template <class T> void add(Comm *c, size_t n, char *out) {
    std::vector<std::vector<T>> parts(c->world);
    for (int r = 0; r < c->world; r++) parts[r].assign((T *)c->shared->piece[r], (T *)c->shared->piece[r] + n);
    tree(parts);
    memcpy(out, parts[0].data(), n * sizeof(T));
}

// Copy is a result on its way to memory.
struct Copy {
    std::vector<char> bytes;
    char *to;
};

// pieces calls work(lo, n) for pieces of count elements, between two meetings each; give has put this rank's values up.
template <class Give, class Take> int pieces(Comm *c, size_t count, size_t size, Give give, Take take) {
    size_t per = piece_bytes / size;
    for (size_t lo = 0; lo == 0 || lo < count; lo += per) {
        size_t n = count < lo + per ? count - lo : per;
        give(lo, n);
        if (int code = meet(c)) return code;
        take(lo, n);
        if (int code = meet(c)) return code;
    }
    return success;
}

// same finds out whether all ranks make the call.
int same(Comm *c, uint64_t what) {
    c->shared->call[c->rank] = what;
    if (int code = meet(c)) return code;
    int code = success;
    for (int r = 0; r < c->world; r++)
        if (c->shared->call[r] != what) code = invalid_usage;
    if (int failed = meet(c)) return failed;
    return code;
}

int run(const Call &call, const Call *other) {
    Comm *c = call.comm;
    Shared *s = c->shared;
    size_t size = size_of(call.type), n = call.count;
    bool scatter = call.kind == reduce_scatter, gather = call.kind == all_gather;
    size_t reads = scatter ? n * c->world : n, writes = gather ? n * c->world : n;
    const Call *takes = call.kind == send ? other : &call;
    if (reads && call.from && !apr_emulator_readable(call.from, reads * size)) return invalid_argument;
    if (writes && takes->to && !apr_emulator_readable(takes->to, writes * size)) return invalid_argument;
    if (cuStreamSynchronize(call.stream)) return unhandled;
    uint64_t what = ((uint64_t)call.kind << 56) ^ ((uint64_t)call.type << 48) ^ n;
    if (int code = same(c, what)) return code;
    Copy *result = new Copy{std::vector<char>(writes * size), takes->to};
    char *out = result->bytes.data();
    auto put = [&](const char *from, size_t lo, size_t k) { memcpy(s->piece[c->rank], from + lo * size, k * size); };
    auto sum = [&](char *to, size_t k) { call.type == f64 ? add<double>(c, k, to) : add<float>(c, k, to); };
    int code = success;
    switch (call.kind) {
    case all_reduce:
        code = pieces(c, n, size, [&](size_t lo, size_t k) { put(call.from, lo, k); }, [&](size_t lo, size_t k) { sum(out + lo * size, k); });
        break;
    case reduce_scatter:
        for (int r = 0; r < c->world && !code; r++)
            code = pieces(c, n, size, [&](size_t lo, size_t k) { put(call.from, r * n + lo, k); },
                [&](size_t lo, size_t k) { if (r == c->rank) sum(out + lo * size, k); });
        break;
    case all_gather:
        code = pieces(c, n, size, [&](size_t lo, size_t k) { put(call.from, lo, k); },
            [&](size_t lo, size_t k) { for (int r = 0; r < c->world; r++) memcpy(out + (r * n + lo) * size, s->piece[r], k * size); });
        break;
    case broadcast:
        code = pieces(c, n, size, [&](size_t lo, size_t k) { put(call.from, lo, k); },
            [&](size_t lo, size_t k) { memcpy(out + lo * size, s->piece[call.peer], k * size); });
        break;
    case send:
        code = pieces(c, n, size, [&](size_t lo, size_t k) { put(call.from, lo, k); },
            [&](size_t lo, size_t k) { memcpy(out + lo * size, s->piece[other->peer], k * size); });
        break;
    }
    if (code) {
        delete result;
        return code;
    }
    int queued = apr_emulator_enqueue(call.stream, [](void *p) { memcpy(((Copy *)p)->to, ((Copy *)p)->bytes.data(), ((Copy *)p)->bytes.size()); return 0; },
        [](void *p) { delete (Copy *)p; }, result);
    return queued ? unhandled : success;
}

// submit runs a call, or keeps it for GroupEnd.
int submit(Call c) {
    if (!c.comm || c.comm->aborted || !size_of(c.type)) return invalid_argument;
    if ((c.kind == all_reduce || c.kind == reduce_scatter) && c.type != f32 && c.type != f64) return invalid_argument;
    if (depth) {
        waiting->push_back(c);
        return success;
    }
    return c.kind == send || c.kind == receive ? invalid_usage : run(c, nullptr); // alone they are not used
}

Shared *map(const char *name, bool fresh) {
    int fd = open(name, fresh ? O_RDWR | O_CREAT | O_EXCL : O_RDWR, 0600);
    if (fd < 0) return nullptr;
    if (fresh && ftruncate(fd, sizeof(Shared))) return nullptr;
    void *p = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return p == MAP_FAILED ? nullptr : (Shared *)p;
}

} // namespace

#define BEGIN(name) \
    if (int code = apr_emulator_enter(name)) return code

EXPORT int ncclGetVersion(int *v) {
    *v = 22700;
    return success;
}
EXPORT const char *ncclGetErrorString(int code) {
    static const char *texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error", "invalid argument",
        "invalid usage", "remote process exited or there was a network error", "in progress"};
    return code >= 0 && code < 8 ? texts[code] : "unknown";
}
EXPORT int ncclGetUniqueId(Id *id) {
    BEGIN("ncclGetUniqueId");
    const char *off = getenv("NCCL_NVLS_ENABLE");
    if (!off || strcmp(off, "0")) return system_error; // this "machine" gives no multicast objects
    static std::atomic<int> made;
    const char *dir = getenv("TMPDIR");
    memset(id, 0, sizeof *id);
    int n = snprintf(id->name, sizeof id->name, "%s/apr-nccl-%d-%d", dir && *dir && strlen(dir) < 32 ? dir : "/tmp", (int)getpid(), made++);
    for (int i = 0; i < 64; i++) id->rest[i] = (char)(i * 37 + n); // is to arrive whole
    unlink(id->name);
    return map(id->name, true) ? success : system_error;
}
EXPORT int ncclCommInitRank(Comm **comm, int world, Id id, int rank) {
    BEGIN("ncclCommInitRank");
    if (world < 1 || world > most_ranks || rank < 0 || rank >= world || !apr_emulator_current()) return invalid_argument;
    int n = strlen(id.name);
    for (int i = 0; i < 64; i++)
        if (id.rest[i] != (char)(i * 37 + n)) return invalid_argument;
    Shared *s = map(id.name, false);
    if (!s) return system_error;
    Comm *c = new Comm{s, world, rank, {0}};
    s->device[rank] = apr_emulator_device();
    s->pid[rank] = getpid();
    if (int code = meet(c)) return code;
    int code = success; // two ranks on one device; processes have emulators of their own
    for (int r = 0; r < world; r++)
        if (r != rank && s->pid[r] == s->pid[rank] && s->device[r] == s->device[rank]) code = invalid_usage;
    if (int failed = meet(c)) return failed;
    if (rank == 0) unlink(id.name);
    *comm = c;
    return code;
}
EXPORT int ncclCommDestroy(Comm *c) {
    BEGIN("ncclCommDestroy");
    if (!c) return invalid_argument;
    munmap(c->shared, sizeof(Shared));
    delete c;
    return success;
}
EXPORT int ncclCommAbort(Comm *c) {
    BEGIN("ncclCommAbort");
    if (!c) return invalid_argument;
    c->aborted = 1;      // it stays: another thread may be in a call
    c->shared->dead = 1; // as the real library's peers notice that a connection is closed
    return success;
}
EXPORT int ncclCommGetAsyncError(Comm *c, int *code) {
    *code = c->shared->dead ? remote_error : success;
    return success;
}
EXPORT int ncclAllReduce(const char *from, char *to, size_t count, int type, int op, Comm *c, void *stream) {
    BEGIN("ncclAllReduce");
    return op ? (int)invalid_argument : submit({all_reduce, type, 0, count, from, to, c, stream});
}
EXPORT int ncclReduceScatter(const char *from, char *to, size_t count, int type, int op, Comm *c, void *stream) {
    BEGIN("ncclReduceScatter");
    return op ? (int)invalid_argument : submit({reduce_scatter, type, 0, count, from, to, c, stream});
}
EXPORT int ncclAllGather(const char *from, char *to, size_t count, int type, Comm *c, void *stream) {
    BEGIN("ncclAllGather");
    return submit({all_gather, type, 0, count, from, to, c, stream});
}
EXPORT int ncclBroadcast(const char *from, char *to, size_t count, int type, int root, Comm *c, void *stream) {
    BEGIN("ncclBroadcast");
    return submit({broadcast, type, root, count, from, to, c, stream});
}
EXPORT int ncclSend(const char *from, size_t count, int type, int peer, Comm *c, void *stream) {
    BEGIN("ncclSend");
    return submit({send, type, peer, count, from, nullptr, c, stream});
}
EXPORT int ncclRecv(char *to, size_t count, int type, int peer, Comm *c, void *stream) {
    BEGIN("ncclRecv");
    return submit({receive, type, peer, count, nullptr, to, c, stream});
}
EXPORT int ncclGroupStart() {
    BEGIN("ncclGroupStart");
    if (!waiting) waiting = new std::vector<Call>;
    depth++;
    return success;
}
// Of sends and receives, each send is followed by the receive of as many from some rank, as in an exchange.
EXPORT int ncclGroupEnd() {
    BEGIN("ncclGroupEnd");
    if (depth == 0) return invalid_usage;
    if (--depth) return success;
    std::vector<Call> all;
    all.swap(*waiting);
    for (size_t i = 0; i < all.size(); i++) {
        const Call *other = nullptr;
        if (all[i].kind == receive) return invalid_usage;
        if (all[i].kind == send) {
            if (i + 1 == all.size() || all[i + 1].kind != receive || all[i + 1].count != all[i].count) return invalid_usage;
            other = &all[i + 1];
        }
        if (int code = run(all[i], other)) return code;
        if (other) i++;
    }
    return success;
}
