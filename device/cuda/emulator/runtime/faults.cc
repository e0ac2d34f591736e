// faults.cc: memory faults of kernels.
#include "fiber.h"
#include <signal.h>
#include <sys/mman.h>

namespace apr_host {

// A fault of a fiber becomes the failure of its launch; any other goes to the handler that was there before.
static struct sigaction before[2];
static struct sigaction &earlier(int sig) { return before[sig == SIGBUS]; }
static __thread void *fault_at;

static void faulted() {
    const char *at = (const char *)fault_at;
    const char *stack = worker->current->stack;
    if (at >= stack && at < stack + page) fail(launch_failed, "thread %u: its stack of %zu bytes is too small", place.thread, stack_bytes);
    fail(illegal_address, "thread %u: access to %p, which is no memory of the device", place.thread, fault_at);
}

static void on_fault(int sig, siginfo_t *info, void *context) {
    if (worker) {
        fault_at = info->si_addr;
        apr_land(context, worker->emergency + stack_bytes, faulted);
        return;
    }
    struct sigaction &old = earlier(sig);
    if (old.sa_flags & SA_SIGINFO) old.sa_sigaction(sig, info, context);
    else if (old.sa_handler != SIG_DFL && old.sa_handler != SIG_IGN) old.sa_handler(sig);
    else signal(sig, SIG_DFL);
}

void catch_faults() {
    for (int sig : {SIGSEGV, SIGBUS}) {
        struct sigaction a = {};
        sigaction(sig, nullptr, &earlier(sig));
        a.sa_sigaction = on_fault;
        a.sa_mask = earlier(sig).sa_mask;
        a.sa_flags = SA_SIGINFO | SA_ONSTACK;
        sigaction(sig, &a, nullptr);
    }
}

} // namespace apr_host
