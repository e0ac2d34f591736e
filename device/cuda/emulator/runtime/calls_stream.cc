// calls_stream.cc: streams and events.
#include "state.h"
#include <algorithm>
#include <time.h>

static double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

EXPORT int cuStreamCreate(Stream **s, unsigned flags) {
    BEGIN_CONTEXT("cuStreamCreate");
    NEED(flags == 1, invalid_value, "only CU_STREAM_NON_BLOCKING is emulated");
    streams.push_back(*s = new Stream{current, {}, 0, 0, nullptr, nullptr});
    return ok;
}
// Priorities choose between what could begin, which here is one thing at a time.
EXPORT int cuStreamCreateWithPriority(Stream **s, unsigned flags, int) {
    BEGIN_CONTEXT("cuStreamCreateWithPriority");
    NEED(flags == 1, invalid_value, "only CU_STREAM_NON_BLOCKING is emulated");
    streams.push_back(*s = new Stream{current, {}, 0, 0, nullptr, nullptr});
    return ok;
}
EXPORT int cuStreamDestroy_v2(void *stream) {
    BEGIN_CONTEXT("cuStreamDestroy_v2");
    NEED(stream, invalid_handle, "the default stream cannot be destroyed");
    NEED_STREAM(s, stream);
    int code = finish(s);
    streams.erase(std::find(streams.begin(), streams.end(), s));
    delete s;
    return code;
}
EXPORT int cuStreamSynchronize(void *stream) {
    BEGIN_CONTEXT("cuStreamSynchronize");
    NEED_STREAM(s, stream);
    NEED(!s->capturing, 900, "the stream is capturing");
    if (int code = finish(s)) return code;
    return stick(current, check_guards());
}
EXPORT int cuStreamQuery(void *stream) {
    BEGIN_CONTEXT("cuStreamQuery");
    NEED_STREAM(s, stream);
    return s->done == s->queued ? (int)ok : (int)not_ready;
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
    NEED(!s->capturing, 900, "events are not captured by the emulator");
    auto mark = std::make_shared<Mark>(Mark{s, s->queued + 1, false, false, 0});
    e->mark = mark;
    enqueue(s, [=] { return mark->done = true, mark->time = now(), (int)ok; });
    return ok;
}
EXPORT int cuStreamWaitEvent(void *stream, Event *e, unsigned flags) {
    BEGIN_CONTEXT("cuStreamWaitEvent");
    NEED_STREAM(s, stream);
    NEED_EVENT(e);
    NEED(!s->capturing && !flags, 900, "events are not captured by the emulator");
    if (auto mark = e->mark; mark && !mark->done) enqueue(s, [=] { return mark->done ? (int)ok : advance(mark->stream, mark->number); });
    return ok;
}
EXPORT int cuEventSynchronize(Event *e) {
    BEGIN_CONTEXT("cuEventSynchronize");
    NEED_EVENT(e);
    if (!e->mark || e->mark->done) return ok;
    if (int code = advance(e->mark->stream, e->mark->number)) return code;
    return stick(current, check_guards());
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
