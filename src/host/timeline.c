#include "timeline.h"

#include <assert.h>
#include <stdlib.h>

rkv_status rkvi_timeline_init(rkvi_timeline *t, rkvi_device *dev, uint32_t n_events)
{
    *t = (rkvi_timeline){.dev = dev, .n_events = n_events};
    t->events = calloc(n_events, sizeof *t->events);
    if (!t->events)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for %u events", n_events);
    for (uint32_t i = 0; i < n_events; i++) {
        rkv_status s = rkvi_dev(event_create, dev, &t->events[i]);
        if (s != RKV_OK) {
            rkvi_timeline_free(t);
            return s;
        }
    }
    return RKV_OK;
}

void rkvi_timeline_free(rkvi_timeline *t)
{
    for (uint32_t i = 0; t->events && i < t->n_events; i++)
        if (t->events[i])
            rkvi_dev(event_destroy, t->dev, t->events[i]);
    free(t->events);
    *t = (rkvi_timeline){0};
}

static rkvi_event *event_of(const rkvi_timeline *t, uint64_t mark)
{
    return t->events[mark % t->n_events];
}

rkv_status rkvi_timeline_record(rkvi_timeline *t, void *stream)
{
    rkv_status s = rkvi_dev(event_record, t->dev, event_of(t, t->last + 1), stream);
    if (s == RKV_OK)
        t->last++;
    return s;
}

rkv_status rkvi_timeline_wait(rkvi_timeline *t, uint64_t mark, void *stream, uint64_t *seen)
{
    if (mark == 0 || mark <= *seen)
        return RKV_OK;
    assert(mark <= t->last);
    rkv_status s = rkvi_dev(stream_wait, t->dev, stream, event_of(t, mark));
    if (s == RKV_OK) {
        *seen = mark;
        t->n_waits++;
    }
    return s;
}

bool rkvi_timeline_is_done(rkvi_timeline *t, uint64_t mark)
{
    bool done = true;
    if (mark != 0 && rkvi_dev(event_query, t->dev, event_of(t, mark), &done) != RKV_OK)
        return true;
    return done;
}

rkv_status rkvi_timeline_sync(rkvi_timeline *t, uint64_t mark)
{
    if (mark == 0)
        return RKV_OK;
    assert(mark <= t->last);
    return rkvi_dev(event_sync, t->dev, event_of(t, mark));
}
