// calls_graph.cc: graphs of what a stream captured, one piece of work after the other.
#include "state.h"

EXPORT int cuStreamBeginCapture_v2(void *stream, int mode) {
    BEGIN_CONTEXT("cuStreamBeginCapture_v2");
    NEED_STREAM(s, stream);
    NEED(stream && !s->capturing, 900, "the default stream, and one that captures already, cannot begin");
    NEED(mode == 2, invalid_value, "only CU_STREAM_CAPTURE_MODE_RELAXED is emulated");
    graphs.insert(s->capturing = new Graph{current, {}});
    s->last = nullptr;
    return ok;
}
EXPORT int cuStreamEndCapture(void *stream, Graph **g) {
    BEGIN_CONTEXT("cuStreamEndCapture");
    NEED_STREAM(s, stream);
    NEED(s->capturing, invalid_value, "the stream does not capture");
    *g = s->capturing;
    s->capturing = nullptr;
    s->last = nullptr;
    return ok;
}
EXPORT int cuStreamGetCaptureInfo_v2(void *stream, int *status, u64 *id, Graph **g, Node *const **nodes, size_t *n) {
    BEGIN_CONTEXT("cuStreamGetCaptureInfo_v2");
    NEED_STREAM(s, stream);
    *status = s->capturing ? 1 : 0;
    *id = 1, *g = s->capturing, *nodes = &s->last, *n = s->last ? 1 : 0;
    return ok;
}

#define NEED_GRAPH(g) NEED(graphs.count(g) && g->context == current, invalid_handle, "%p is no graph of this context", (void *)g)
#define NEED_EXEC(e) NEED(execs.count(e) && e->context == current, invalid_handle, "%p is no instantiated graph of this context", (void *)e)

EXPORT int cuGraphInstantiateWithFlags(Exec **e, Graph *g, u64 flags) {
    BEGIN_CONTEXT("cuGraphInstantiateWithFlags");
    NEED_GRAPH(g);
    NEED(flags == 0, invalid_value, "no flags are emulated");
    Exec *x = new Exec{current, {}, {}};
    for (auto &n : g->nodes) {
        x->places[n.get()] = x->nodes.size();
        x->nodes.push_back(*n);
    }
    execs.insert(*e = x);
    return ok;
}

// A launch has the nodes as they are now: changes from here on are for later launches.
EXPORT int cuGraphLaunch(Exec *e, void *stream) {
    BEGIN_CONTEXT("cuGraphLaunch");
    NEED_EXEC(e);
    NEED_STREAM(s, stream);
    NEED(!s->capturing, 900, "graphs within graphs are not emulated");
    for (auto &n : e->nodes) {
        if (n.function) enqueue_grid(s, n.function, n.grid, n.args);
        else enqueue(s, n.work);
    }
    return ok;
}

// Params is CUDA_KERNEL_NODE_PARAMS_v2.
struct Params {
    Function *function;
    unsigned x, y, z, block, block_y, block_z, dynamic;
    void **params, **extra;
    void *kern, *context;
};

EXPORT int cuGraphExecKernelNodeSetParams_v2(Exec *e, Node *node, const Params *p) {
    BEGIN_CONTEXT("cuGraphExecKernelNodeSetParams_v2");
    NEED_EXEC(e);
    auto at = e->places.find(node);
    NEED(at != e->places.end(), invalid_value, "%p is no node of the graph", (void *)node);
    Node &n = e->nodes[at->second];
    NEED(n.function && n.function == p->function, invalid_value, "the node has another function");
    NEED(p->block_y == 1 && p->block_z == 1 && p->params && p->params[0] && !p->extra && !p->kern, invalid_value, "kernel %s: parameters that are not emulated", n.grid.kernel->name);
    Grid g = {n.grid.kernel, p->x, p->y, p->z, p->block, p->dynamic, n.function->allowed, nullptr, n.grid.together, false};
    if (int code = check_grid(g)) return noted = code;
    n.grid = g;
    n.args.assign((char *)p->params[0], (char *)p->params[0] + g.kernel->bytes);
    return ok;
}
EXPORT int cuGraphDestroy(Graph *g) {
    BEGIN_CONTEXT("cuGraphDestroy");
    NEED_GRAPH(g);
    graphs.erase(g);
    delete g;
    return ok;
}
EXPORT int cuGraphExecDestroy(Exec *e) {
    BEGIN_CONTEXT("cuGraphExecDestroy");
    NEED_EXEC(e);
    execs.erase(e);
    delete e;
    return ok;
}
