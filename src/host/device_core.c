/* SPDX-License-Identifier: MIT
 *
 * device_core.c: calls, streams, events and operations of device_host and
 * device_sim; see device_core.h.
 */
#include "device_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static rkvi_core *core_of(rkvi_device *d)
{
    return (rkvi_core *)d;
}

/* ---- entering and leaving a call ---- */

static const char *const call_names[RKVI_CALL_COUNT] = {
    "any call",        "info",          "mem_alloc",     "mem_free",      "host_register",
    "host_unregister", "host_alloc",    "host_free",     "stream_create", "stream_destroy",
    "stream_sync",     "stream_wait",   "event_create",  "event_destroy", "event_record",
    "event_sync",      "event_query",   "event_elapsed", "copy",          "fill",
    "launch",          "host_call",     "delay",         "capture_begin", "capture_end",
    "graph_launch",    "graph_destroy",
};

/* Calls that give back go on when the device is poisoned: nothing may leak. */
static bool gives_back(rkvi_device_call call)
{
    return call == RKVI_CALL_MEM_FREE || call == RKVI_CALL_HOST_FREE ||
           call == RKVI_CALL_HOST_UNREGISTER || call == RKVI_CALL_STREAM_DESTROY ||
           call == RKVI_CALL_EVENT_DESTROY || call == RKVI_CALL_GRAPH_DESTROY;
}

static rkv_status count_call(rkvi_core *c, rkvi_device_call kind, rkvi_device_call call)
{
    c->n_calls[kind]++;
    if (c->orders[kind].nth == 0 || --c->orders[kind].nth > 0)
        return RKV_OK;
    return rkvi_fail(c->orders[kind].status, "%s failed as a test asked", call_names[call]);
}

static rkv_status poisoned(rkvi_core *c)
{
    return rkvi_fail(RKV_E_POISONED, "device fault in the operation enqueued at %s", c->poison_site);
}

/* Nothing can be waited for once the device is poisoned, but what had begun by
 * then still runs: memory goes after it. */
static void settle(rkvi_core *c, rkvi_device_call call)
{
    if (call == RKVI_CALL_MEM_FREE || call == RKVI_CALL_HOST_FREE || call == RKVI_CALL_HOST_UNREGISTER)
        for (rkvi_stream *s = c->streams; s; s = s->next)
            c->backend->drain(s, s->n_pushed);
}

rkv_status rkvi_core_enter(rkvi_core *c, rkvi_device_call call)
{
    pthread_mutex_lock(&c->lock);
    rkv_status st = RKV_OK;
    if (c->is_poisoned && !gives_back(call))
        st = poisoned(c);
    if (!st)
        st = count_call(c, RKVI_CALL_ANY, call);
    if (!st)
        st = count_call(c, call, call);
    if (st)
        pthread_mutex_unlock(&c->lock);
    else if (c->is_poisoned)
        settle(c, call);
    return st;
}

rkv_status rkvi_core_leave(rkvi_core *c, rkv_status st)
{
    pthread_mutex_unlock(&c->lock);
    return st;
}

/* For calls that wait or give back.  Not for those that enqueue: their fault
 * may come at once, but a call that fails has enqueued nothing. */
rkv_status rkvi_core_leave_poisoned(rkvi_core *c, rkv_status st)
{
    if (!st && c->is_poisoned)
        st = poisoned(c);
    return rkvi_core_leave(c, st);
}

void rkvi_device_fail_call(rkvi_device *d, rkvi_device_call call, uint64_t nth, rkv_status status)
{
    rkvi_core *c = core_of(d);
    pthread_mutex_lock(&c->lock);
    c->orders[call] = (rkvi_fault_order){.nth = nth, .status = status};
    pthread_mutex_unlock(&c->lock);
}

uint64_t rkvi_device_calls(rkvi_device *d, rkvi_device_call call)
{
    rkvi_core *c = core_of(d);
    pthread_mutex_lock(&c->lock);
    const uint64_t n = c->n_calls[call];
    pthread_mutex_unlock(&c->lock);
    return n;
}

void rkvi_device_fault_op(rkvi_device *d, uint64_t nth)
{
    rkvi_core *c = core_of(d);
    pthread_mutex_lock(&c->lock);
    c->fault_in = nth;
    pthread_mutex_unlock(&c->lock);
}

void rkvi_device_usage_get(rkvi_device *d, rkvi_device_usage *out)
{
    rkvi_core *c = core_of(d);
    pthread_mutex_lock(&c->lock);
    *out = c->usage;
    out->device_bytes = c->device_blocks.bytes;
    out->registered_bytes = c->pinned_blocks.bytes;
    out->allocations = (uint32_t)c->device_blocks.n;
    out->registrations = (uint32_t)c->pinned_blocks.n;
    pthread_mutex_unlock(&c->lock);
}

static uint64_t core_now_ns(rkvi_device *d)
{
    rkvi_core *c = core_of(d);
    pthread_mutex_lock(&c->lock);
    const int64_t ns = c->backend->now_ns(c);
    pthread_mutex_unlock(&c->lock);
    return (uint64_t)ns;
}

static rkv_status core_info(rkvi_device *d, rkvi_device_info *out)
{
    rkvi_core *c = core_of(d);
    const rkv_status st = rkvi_core_enter(c, RKVI_CALL_INFO);
    if (st)
        return st;
    *out = (rkvi_device_info){
        .memory_bytes = c->limits.memory_bytes,
        .memory_free_bytes = c->limits.memory_bytes - c->device_blocks.bytes,
        .n_workers = c->n_workers,
        .numa_node = -1,
        .link_bytes_per_s = c->link_bytes_per_s,
        .has_link = c->has_link,
        .is_host = true,
    };
    snprintf(out->name, sizeof out->name, "%s", c->backend->name);
    snprintf(out->kernels, sizeof out->kernels, "%s", c->ops->name ? c->ops->name : "");
    return rkvi_core_leave(c, RKV_OK);
}

/* ---- streams ---- */

void rkvi_stream_append(rkvi_stream *s, rkvi_devop *op)
{
    op->next = NULL;
    if (s->tail)
        s->tail->next = op;
    else
        s->head = op;
    s->tail = op;
}

rkvi_devop *rkvi_stream_pop(rkvi_stream *s)
{
    rkvi_devop *op = s->head;
    s->head = op->next;
    if (!s->head)
        s->tail = NULL;
    return op;
}

void rkvi_core_push(rkvi_stream *s, rkvi_devop *op)
{
    rkvi_core *c = s->core;
    op->serial = c->next_serial++;
    op->enqueue_ns = c->backend->now_ns(c);
    s->n_pushed++;
    c->backend->push(s, op);
}

/* NULL with an error text when the handle is none of ours. */
rkvi_stream *rkvi_core_stream(rkvi_core *c, void *handle)
{
    if (!handle)
        return c->default_stream;
    for (rkvi_stream *s = c->streams; s; s = s->next)
        if (s == handle && !s->is_internal && !s->is_closing)
            return s;
    rkvi_fail(RKV_E_ARGUMENT, "%p is no stream of this executor", handle);
    return NULL;
}

rkv_status rkvi_core_stream_new(rkvi_core *c, const char *name, rkvi_stream **out)
{
    rkvi_stream *s = calloc(1, c->backend->stream_bytes);
    if (!s)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for a stream");
    s->core = c;
    snprintf(s->name, sizeof s->name, "%s", name ? name : "");
    const rkv_status st = c->backend->stream_open(s);
    if (st) {
        free(s);
        return st;
    }
    s->next = c->streams;
    c->streams = s;
    *out = s;
    return RKV_OK;
}

/* Waits for its work. */
void rkvi_core_stream_free(rkvi_stream *s)
{
    rkvi_core *c = s->core;
    s->is_closing = true;
    c->backend->drain(s, s->n_pushed);
    c->backend->stream_close(s);
    rkvi_stream **link = &c->streams;
    while (*link != s)
        link = &(*link)->next;
    *link = s->next;
    free(s);
}

static rkv_status core_stream_create(rkvi_device *d, const char *name, void **out)
{
    rkvi_core *c = core_of(d);
    rkv_status st = rkvi_core_enter(c, RKVI_CALL_STREAM_CREATE);
    if (st)
        return st;
    rkvi_stream *s = NULL;
    st = rkvi_core_stream_new(c, name, &s);
    if (!st) {
        c->usage.streams++;
        *out = s;
    }
    return rkvi_core_leave(c, st);
}

static rkv_status core_stream_destroy(rkvi_device *d, void *stream)
{
    rkvi_core *c = core_of(d);
    rkv_status st = rkvi_core_enter(c, RKVI_CALL_STREAM_DESTROY);
    if (st)
        return st;
    rkvi_stream *s = rkvi_core_stream(c, stream);
    if (!s)
        st = RKV_E_ARGUMENT;
    else if (s == c->default_stream)
        st = rkvi_fail(RKV_E_ARGUMENT, "the default stream can't be destroyed");
    else if (s->capture)
        st = rkvi_capture_kill(s->capture, "one of its streams was destroyed");
    if (!st) {
        c->usage.streams--;
        rkvi_core_stream_free(s);
    }
    return rkvi_core_leave_poisoned(c, st);
}

static rkv_status core_stream_sync(rkvi_device *d, void *stream)
{
    rkvi_core *c = core_of(d);
    rkv_status st = rkvi_core_enter(c, RKVI_CALL_STREAM_SYNC);
    if (st)
        return st;
    rkvi_stream *s = rkvi_core_stream(c, stream);
    if (!s)
        st = RKV_E_ARGUMENT;
    else if (s->capture)
        st = rkvi_capture_kill(s->capture, "stream_sync of a stream that is being captured");
    else
        c->backend->drain(s, s->n_pushed);
    return rkvi_core_leave_poisoned(c, st);
}

/* ---- events ---- */

static rkv_status core_event_create(rkvi_device *d, rkvi_event **out)
{
    rkvi_core *c = core_of(d);
    rkv_status st = rkvi_core_enter(c, RKVI_CALL_EVENT_CREATE);
    if (st)
        return st;
    rkvi_event *event = calloc(1, sizeof *event);
    if (event) {
        c->usage.events++;
        *out = event;
    } else {
        st = rkvi_fail(RKV_E_HOST_MEMORY, "no memory for an event");
    }
    return rkvi_core_leave(c, st);
}

/* Waits on it that are pending hold its mark and go on. */
static rkv_status core_event_destroy(rkvi_device *d, rkvi_event *event)
{
    rkvi_core *c = core_of(d);
    const rkv_status st = rkvi_core_enter(c, RKVI_CALL_EVENT_DESTROY);
    if (st)
        return st;
    if (event) {
        rkvi_mark_unref(event->latest);
        free(event);
        c->usage.events--;
    }
    return rkvi_core_leave_poisoned(c, RKV_OK);
}

static rkv_status record_now(rkvi_event *event, rkvi_stream *s)
{
    rkvi_mark *mark = rkvi_mark_new(s->core);
    rkvi_devop *op = mark ? rkvi_devop_new(s->core, RKVI_DEVOP_RECORD, 0, 0) : NULL;
    if (!op) {
        rkvi_mark_unref(mark);
        return RKV_E_HOST_MEMORY;
    }
    op->u.mark = rkvi_mark_ref(mark);
    rkvi_mark_unref(event->latest);
    event->latest = mark;
    event->capture_id = 0;
    rkvi_core_push(s, op);
    return RKV_OK;
}

static rkv_status core_event_record(rkvi_device *d, rkvi_event *event, void *stream)
{
    rkvi_core *c = core_of(d);
    rkv_status st = rkvi_core_enter(c, RKVI_CALL_EVENT_RECORD);
    if (st)
        return st;
    rkvi_stream *s = rkvi_core_stream(c, stream);
    if (!s)
        st = RKV_E_ARGUMENT;
    else
        st = s->capture ? rkvi_capture_record(event, s) : record_now(event, s);
    return rkvi_core_leave(c, st);
}

static rkv_status wait_now(rkvi_stream *s, rkvi_event *event)
{
    if (!event->latest)
        return RKV_OK;
    rkvi_devop *op = rkvi_devop_new(s->core, RKVI_DEVOP_WAIT, 0, 0);
    if (!op)
        return RKV_E_HOST_MEMORY;
    op->u.mark = rkvi_mark_ref(event->latest);
    rkvi_core_push(s, op);
    return RKV_OK;
}

static rkv_status core_stream_wait(rkvi_device *d, void *stream, rkvi_event *event)
{
    rkvi_core *c = core_of(d);
    rkv_status st = rkvi_core_enter(c, RKVI_CALL_STREAM_WAIT);
    if (st)
        return st;
    rkvi_stream *s = rkvi_core_stream(c, stream);
    if (!s)
        st = RKV_E_ARGUMENT;
    else if (s->capture || event->capture_id)
        st = rkvi_capture_wait(s, event);
    else
        st = wait_now(s, event);
    return rkvi_core_leave(c, st);
}

static rkv_status core_event_sync(rkvi_device *d, rkvi_event *event)
{
    rkvi_core *c = core_of(d);
    rkv_status st = rkvi_core_enter(c, RKVI_CALL_EVENT_SYNC);
    if (st)
        return st;
    st = rkvi_capture_event_refuse(c, event, "event_sync");
    if (!st && event->latest) {
        /* the event may be recorded again, or destroyed, meanwhile */
        rkvi_mark *mark = rkvi_mark_ref(event->latest);
        c->backend->mark_wait(c, mark);
        rkvi_mark_unref(mark);
    }
    return rkvi_core_leave_poisoned(c, st);
}

static rkv_status core_event_query(rkvi_device *d, rkvi_event *event, bool *out_done)
{
    rkvi_core *c = core_of(d);
    rkv_status st = rkvi_core_enter(c, RKVI_CALL_EVENT_QUERY);
    if (st)
        return st;
    st = rkvi_capture_refuse(c, "event_query");
    if (!st)
        st = rkvi_capture_event_refuse(c, event, "event_query");
    if (!st)
        *out_done = !event->latest || c->backend->mark_poll(c, event->latest);
    return rkvi_core_leave(c, st);
}

static rkv_status core_event_elapsed(rkvi_device *d, rkvi_event *from, rkvi_event *to, int64_t *out_ns)
{
    rkvi_core *c = core_of(d);
    rkv_status st = rkvi_core_enter(c, RKVI_CALL_EVENT_ELAPSED);
    if (st)
        return st;
    const bool is_done = from->latest && to->latest && from->latest->is_done && to->latest->is_done;
    if (from->capture_id || to->capture_id || !is_done)
        st = rkvi_fail(RKV_E_STATE, "event_elapsed: both events must be recorded and done");
    else
        *out_ns = to->latest->time_ns - from->latest->time_ns;
    return rkvi_core_leave(c, st);
}

static void core_host_access(rkvi_device *d, const rkvi_range *ranges, size_t n_ranges)
{
    (void)d, (void)ranges, (void)n_ranges; /* device_check's business */
}

/* ---- life ---- */

static void core_destroy(rkvi_device *d)
{
    rkvi_core *c = core_of(d);
    if (!c || c->pid != getpid())
        return;
    pthread_mutex_lock(&c->lock);
    rkvi_capture_drop_all(c);
    /* waits cross streams, so all are drained before the first is closed */
    for (rkvi_stream *s = c->streams; s; s = s->next)
        c->backend->drain(s, s->n_pushed);
    while (c->streams)
        rkvi_core_stream_free(c->streams); /* NOLINT(clang-analyzer-unix.Malloc): it leaves the list */
    rkvi_core_memory_drop(c);
    rkvi_core_drop_kept(c);
    pthread_mutex_unlock(&c->lock);
    pthread_mutex_destroy(&c->lock);
    c->backend->destroy(c);
}

static const rkvi_device_vt core_vt = {
    .destroy = core_destroy,
    .info = core_info,
    .mem_alloc = rkvi_core_mem_alloc,
    .mem_free = rkvi_core_mem_free,
    .host_register = rkvi_core_host_register,
    .host_unregister = rkvi_core_host_unregister,
    .host_alloc = rkvi_core_host_alloc,
    .host_free = rkvi_core_host_free,
    .stream_create = core_stream_create,
    .stream_destroy = core_stream_destroy,
    .stream_sync = core_stream_sync,
    .stream_wait = core_stream_wait,
    .event_create = core_event_create,
    .event_destroy = core_event_destroy,
    .event_record = core_event_record,
    .event_sync = core_event_sync,
    .event_query = core_event_query,
    .now_ns = core_now_ns,
    .event_elapsed = core_event_elapsed,
    .copy = rkvi_core_copy,
    .fill = rkvi_core_fill,
    .launch = rkvi_core_launch,
    .host_call = rkvi_core_host_call,
    .delay = rkvi_core_delay,
    .host_access = core_host_access,
    .capture_relax = rkvi_core_capture_relax,
    .capture_begin = rkvi_core_capture_begin,
    .capture_end = rkvi_core_capture_end,
    .graph_launch = rkvi_core_graph_launch,
    .graph_destroy = rkvi_core_graph_destroy,
};

static uint64_t machine_memory_bytes(void)
{
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* On failure nothing is left to release but the struct itself. */
rkv_status rkvi_core_init(rkvi_core *c, const rkvi_core_backend *backend, const rkvi_ops *ops,
                          const rkvi_device_limits *limits)
{
    c->device.vt = &core_vt;
    c->backend = backend;
    c->ops = ops;
    c->limits = *limits;
    if (!c->limits.memory_bytes)
        c->limits.memory_bytes = machine_memory_bytes();
    c->pid = getpid();
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_lock(&c->lock);
    const rkv_status st = rkvi_core_stream_new(c, "default", &c->default_stream);
    pthread_mutex_unlock(&c->lock);
    if (st)
        pthread_mutex_destroy(&c->lock);
    return st;
}
