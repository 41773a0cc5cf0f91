/* SPDX-License-Identifier: MIT
 *
 * device_check.c: see device_check.h and device_check_impl.h.
 */
#include "device_check_impl.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

static check_device *check_of(rkvi_device *d)
{
    return (check_device *)d;
}

static check_event *event_of(rkvi_event *event)
{
    return (check_event *)(void *)event;
}

/* ---- host threads and streams ---- */

static uint64_t thread_id(void)
{
    static _Atomic uint64_t next = 1;
    static _Thread_local uint64_t mine;
    if (!mine)
        mine = atomic_fetch_add(&next, 1);
    return mine;
}

/* Made at creation for 0 (all threads as one), on first sight else. */
check_thread *rkvi_check_thread(check_device *c)
{
    const uint64_t id = c->settings.host_threads_apart ? thread_id() : 0;
    for (check_thread *t = c->threads; t; t = t->next)
        if (t->id == id)
            return t;
    check_thread *t = calloc(1, sizeof *t);
    if (!t || rkvi_check_lane_open(c, &t->lane, "host")) {
        free(t);
        return c->threads; /* too many: the first one stands in */
    }
    t->id = id;
    t->next = c->threads;
    c->threads = t;
    return t;
}

static rkv_status add_stream(check_device *c, void *handle, const char *name, check_stream **out)
{
    check_stream *s = calloc(1, sizeof *s);
    if (!s)
        return rkvi_fail(RKV_E_HOST_MEMORY, "device_check: no memory for a stream");
    const rkv_status st = rkvi_check_lane_open(c, &s->lane, name);
    if (st) {
        free(s);
        return st;
    }
    s->handle = handle;
    s->next = c->streams;
    c->streams = s;
    *out = s;
    return RKV_OK;
}

/* Streams that an engine brought are met here for the first time.  NULL with
 * an error text when there is no room for one more. */
check_stream *rkvi_check_stream(check_device *c, void *handle)
{
    for (check_stream *s = c->streams; s; s = s->next)
        if (s->handle == handle)
            return s;
    check_stream *s = NULL;
    add_stream(c, handle, handle ? "engine's" : "default", &s);
    return s;
}

static void remove_stream(check_device *c, check_stream *s)
{
    check_stream **link = &c->streams;
    while (*link != s)
        link = &(*link)->next;
    *link = s->next;
    rkvi_check_lane_close(c, &s->lane);
    free(s);
}

/* The calling thread now knows that all before `clock` has ended. */
static void host_waited(check_device *c, const check_clock *clock)
{
    pthread_mutex_lock(&c->lock);
    rkvi_clock_join(&rkvi_check_thread(c)->lane.clock, clock);
    pthread_mutex_unlock(&c->lock);
}

static bool is_released(rkv_status st)
{
    return st == RKV_OK || st == RKV_E_POISONED;
}

static rkv_status check_stream_create(rkvi_device *d, const char *name, void **out)
{
    check_device *c = check_of(d);
    void *handle;
    rkv_status st = c->inner->vt->stream_create(c->inner, name, &handle);
    if (st)
        return st;
    check_stream *s = NULL;
    pthread_mutex_lock(&c->lock);
    st = add_stream(c, handle, name, &s);
    if (!st) /* its lane may have belonged to another stream before */
        s->lane.clock = rkvi_check_thread(c)->lane.clock;
    pthread_mutex_unlock(&c->lock);
    if (st)
        c->inner->vt->stream_destroy(c->inner, handle);
    else
        *out = handle;
    return st;
}

static bool clock_of_stream(check_device *c, void *handle, check_clock *out)
{
    pthread_mutex_lock(&c->lock);
    check_stream *s = rkvi_check_stream(c, handle);
    if (s)
        *out = s->lane.clock;
    pthread_mutex_unlock(&c->lock);
    return s != NULL;
}

static rkv_status check_stream_destroy(rkvi_device *d, void *stream)
{
    check_device *c = check_of(d);
    const rkv_status st = c->inner->vt->stream_destroy(c->inner, stream);
    if (!is_released(st))
        return st;
    pthread_mutex_lock(&c->lock);
    check_stream *s = rkvi_check_stream(c, stream);
    if (s) {
        rkvi_clock_join(&rkvi_check_thread(c)->lane.clock, &s->lane.clock);
        remove_stream(c, s);
    }
    pthread_mutex_unlock(&c->lock);
    return st;
}

static rkv_status check_stream_sync(rkvi_device *d, void *stream)
{
    check_device *c = check_of(d);
    check_clock clock;
    if (!clock_of_stream(c, stream, &clock))
        return RKV_E_SYSTEM;
    const rkv_status st = c->inner->vt->stream_sync(c->inner, stream);
    if (!st)
        host_waited(c, &clock);
    return st;
}

static rkv_status check_stream_wait(rkvi_device *d, void *stream, rkvi_event *event)
{
    check_device *c = check_of(d);
    check_event *e = event_of(event);
    pthread_mutex_lock(&c->lock);
    check_stream *s = rkvi_check_stream(c, stream);
    rkv_status st = RKV_E_SYSTEM;
    if (s)
        st = c->inner->vt->stream_wait(c->inner, stream, e->inner);
    if (!st && (s->capture || e->capture_id))
        st = rkvi_check_capture_wait(c, s, e);
    else if (!st)
        rkvi_clock_join(&s->lane.clock, &e->clock);
    pthread_mutex_unlock(&c->lock);
    return st;
}

/* ---- events ---- */

static rkv_status check_event_create(rkvi_device *d, rkvi_event **out)
{
    check_device *c = check_of(d);
    check_event *e = calloc(1, sizeof *e);
    if (!e)
        return rkvi_fail(RKV_E_HOST_MEMORY, "device_check: no memory for an event");
    const rkv_status st = c->inner->vt->event_create(c->inner, &e->inner);
    if (st)
        free(e);
    else
        *out = (rkvi_event *)(void *)e;
    return st;
}

static rkv_status check_event_destroy(rkvi_device *d, rkvi_event *event)
{
    check_device *c = check_of(d);
    check_event *e = event_of(event);
    if (!e)
        return RKV_OK;
    const rkv_status st = c->inner->vt->event_destroy(c->inner, e->inner);
    if (is_released(st))
        free(e);
    return st;
}

static rkv_status check_event_record(rkvi_device *d, rkvi_event *event, void *stream)
{
    check_device *c = check_of(d);
    check_event *e = event_of(event);
    pthread_mutex_lock(&c->lock);
    check_stream *s = rkvi_check_stream(c, stream);
    rkv_status st = RKV_E_SYSTEM;
    if (s)
        st = c->inner->vt->event_record(c->inner, e->inner, stream);
    if (!st && s->capture) {
        st = rkvi_check_capture_record(s, e);
    } else if (!st) {
        e->capture_id = 0;
        rkvi_clock_join(&s->lane.clock, &rkvi_check_thread(c)->lane.clock);
        e->clock = s->lane.clock;
    }
    pthread_mutex_unlock(&c->lock);
    return st;
}

static rkv_status check_event_sync(rkvi_device *d, rkvi_event *event)
{
    check_device *c = check_of(d);
    check_event *e = event_of(event);
    pthread_mutex_lock(&c->lock);
    const check_clock clock = e->clock;
    rkvi_event *inner = e->inner;
    pthread_mutex_unlock(&c->lock);
    const rkv_status st = c->inner->vt->event_sync(c->inner, inner);
    if (!st)
        host_waited(c, &clock);
    return st;
}

static rkv_status check_event_query(rkvi_device *d, rkvi_event *event, bool *out_done)
{
    check_device *c = check_of(d);
    check_event *e = event_of(event);
    pthread_mutex_lock(&c->lock);
    const rkv_status st = c->inner->vt->event_query(c->inner, e->inner, out_done);
    if (!st && *out_done)
        rkvi_clock_join(&rkvi_check_thread(c)->lane.clock, &e->clock);
    pthread_mutex_unlock(&c->lock);
    return st;
}

static rkv_status check_event_elapsed(rkvi_device *d, rkvi_event *from, rkvi_event *to, int64_t *out_ns)
{
    check_device *c = check_of(d);
    return c->inner->vt->event_elapsed(c->inner, event_of(from)->inner, event_of(to)->inner, out_ns);
}

static uint64_t check_now_ns(rkvi_device *d)
{
    return rkvi_device_now_ns(check_of(d)->inner);
}

/* ---- memory ---- */

static rkv_status check_info(rkvi_device *d, rkvi_device_info *out)
{
    check_device *c = check_of(d);
    return c->inner->vt->info(c->inner, out);
}

static rkv_status note_block(check_device *c, void *ptr, size_t bytes, bool is_device)
{
    pthread_mutex_lock(&c->lock);
    const rkv_status st = rkvi_check_block_add(c, ptr, bytes, is_device);
    pthread_mutex_unlock(&c->lock);
    return st;
}

/* All use must be known to have ended when memory is given back; judged before
 * the call, so that another thread can't be given the same address meanwhile. */
static void judge_free(check_device *c, void *ptr, const char *what)
{
    const check_work work = {.what = what, .site = rkvi_call_site};
    pthread_mutex_lock(&c->lock);
    check_block *b = rkvi_check_block_of(c, ptr);
    if (b && b->ptr == ptr)
        rkvi_check_block_free_access(c, b, &rkvi_check_thread(c)->lane, &work);
    pthread_mutex_unlock(&c->lock);
}

typedef rkv_status (*free_fn)(rkvi_device *d, void *ptr);

static rkv_status free_with(check_device *c, free_fn fn, void *ptr, const char *what,
                            bool is_memory_gone)
{
    judge_free(c, ptr, what);
    pthread_mutex_lock(&c->lock);
    const rkv_status st = fn(c->inner, ptr);
    check_block *b = rkvi_check_block_of(c, ptr);
    if (is_released(st) && b && b->ptr == ptr)
        rkvi_check_block_remove(c, b, is_memory_gone ? rkvi_call_site : NULL);
    pthread_mutex_unlock(&c->lock);
    return st;
}

static rkv_status check_mem_alloc(rkvi_device *d, size_t bytes, void **out)
{
    check_device *c = check_of(d);
    void *ptr;
    rkv_status st = c->inner->vt->mem_alloc(c->inner, bytes, &ptr);
    if (st)
        return st;
    st = note_block(c, ptr, bytes, true);
    if (st)
        c->inner->vt->mem_free(c->inner, ptr);
    else
        *out = ptr;
    return st;
}

static rkv_status check_mem_free(rkvi_device *d, void *ptr)
{
    check_device *c = check_of(d);
    return free_with(c, c->inner->vt->mem_free, ptr, "mem_free", true);
}

static rkv_status check_host_register(rkvi_device *d, void *ptr, size_t bytes)
{
    check_device *c = check_of(d);
    rkv_status st = c->inner->vt->host_register(c->inner, ptr, bytes);
    if (st)
        return st;
    st = note_block(c, ptr, bytes, false);
    if (st)
        c->inner->vt->host_unregister(c->inner, ptr);
    return st;
}

static rkv_status check_host_unregister(rkvi_device *d, void *ptr)
{
    check_device *c = check_of(d);
    return free_with(c, c->inner->vt->host_unregister, ptr, "host_unregister", false);
}

static rkv_status check_host_alloc(rkvi_device *d, size_t bytes, void **out)
{
    check_device *c = check_of(d);
    void *ptr;
    rkv_status st = c->inner->vt->host_alloc(c->inner, bytes, &ptr);
    if (st)
        return st;
    st = note_block(c, ptr, bytes, false);
    if (st)
        c->inner->vt->host_free(c->inner, ptr);
    else
        *out = ptr;
    return st;
}

static rkv_status check_host_free(rkvi_device *d, void *ptr)
{
    check_device *c = check_of(d);
    return free_with(c, c->inner->vt->host_free, ptr, "host_free", true);
}

static void check_host_access(rkvi_device *d, const rkvi_range *ranges, size_t n_ranges)
{
    check_device *c = check_of(d);
    const check_work work = {
        .what = "host access", .site = rkvi_call_site, .ranges = ranges, .n_ranges = n_ranges};
    pthread_mutex_lock(&c->lock);
    rkvi_check_run(c, &rkvi_check_thread(c)->lane, &work);
    pthread_mutex_unlock(&c->lock);
    c->inner->vt->host_access(c->inner, ranges, n_ranges);
}

/* ---- work ---- */

/* With the lock; the inner executor has taken the operation. */
static rkv_status note_work(check_device *c, check_stream *s, const check_work *work)
{
    if (s->capture)
        return rkvi_check_capture_add(s, work);
    rkvi_clock_join(&s->lane.clock, &rkvi_check_thread(c)->lane.clock);
    rkvi_check_run(c, &s->lane, work);
    return RKV_OK;
}

static void check_pinned(check_device *c, const rkvi_copy *copy)
{
    const void *host = copy->direction == RKVI_H2D ? copy->src : copy->dst;
    if (c->settings.allow_pageable || copy->direction == RKVI_D2D || rkvi_check_block_of(c, host))
        return;
    char text[320];
    snprintf(text, sizeof text, "copy at %s: the host memory is not pinned", rkvi_call_site);
    rkvi_check_add_report(c, RKVI_CHECK_PAGEABLE, NULL, rkvi_call_site, text);
}

static rkv_status check_copy(rkvi_device *d, const rkvi_copy *copy, void *stream)
{
    static const char *const names[] = {"H2D copy", "D2H copy", "D2D copy"};
    check_device *c = check_of(d);
    pthread_mutex_lock(&c->lock);
    check_stream *s = rkvi_check_stream(c, stream);
    rkv_status st = RKV_E_SYSTEM;
    if (s)
        st = c->inner->vt->copy(c->inner, copy, stream);
    if (!st && copy->rows && copy->width_bytes) {
        const check_work work = {
            .what = names[copy->direction], .site = rkvi_call_site, .is_copy = true, .copy = *copy};
        check_pinned(c, copy);
        st = note_work(c, s, &work);
    }
    pthread_mutex_unlock(&c->lock);
    return st;
}

static rkv_status check_fill(rkvi_device *d, void *dst, int byte, size_t bytes, void *stream)
{
    check_device *c = check_of(d);
    pthread_mutex_lock(&c->lock);
    check_stream *s = rkvi_check_stream(c, stream);
    rkv_status st = RKV_E_SYSTEM;
    if (s)
        st = c->inner->vt->fill(c->inner, dst, byte, bytes, stream);
    if (!st && bytes) {
        const rkvi_range range = {.ptr = dst, .bytes = bytes, .access = RKVI_WRITE};
        const check_work work = {
            .what = "fill", .site = rkvi_call_site, .ranges = &range, .n_ranges = 1};
        st = note_work(c, s, &work);
    }
    pthread_mutex_unlock(&c->lock);
    return st;
}

static rkv_status check_launch(rkvi_device *d, const rkvi_launch *launch, void *stream)
{
    check_device *c = check_of(d);
    pthread_mutex_lock(&c->lock);
    check_stream *s = rkvi_check_stream(c, stream);
    rkv_status st = RKV_E_SYSTEM;
    if (s)
        st = c->inner->vt->launch(c->inner, launch, stream);
    if (!st && launch->grid) {
        const check_work work = {.what = "launch",
                                 .site = rkvi_call_site,
                                 .ranges = launch->ranges,
                                 .n_ranges = launch->ranges ? launch->n_ranges : 0,
                                 .ranges_now = launch->ranges_now,
                                 .ranges_arg = launch->ranges_arg};
        st = note_work(c, s, &work);
    }
    pthread_mutex_unlock(&c->lock);
    return st;
}

static rkv_status check_host_call(rkvi_device *d, rkvi_host_fn fn, void *arg, const rkvi_range *ranges,
                                  size_t n_ranges, void *stream)
{
    check_device *c = check_of(d);
    pthread_mutex_lock(&c->lock);
    check_stream *s = rkvi_check_stream(c, stream);
    rkv_status st = RKV_E_SYSTEM;
    if (s)
        st = c->inner->vt->host_call(c->inner, fn, arg, ranges, n_ranges, stream);
    if (!st) {
        const check_work work = {.what = "host call",
                                 .site = rkvi_call_site,
                                 .ranges = ranges,
                                 .n_ranges = ranges ? n_ranges : 0};
        st = note_work(c, s, &work);
    }
    pthread_mutex_unlock(&c->lock);
    return st;
}

static rkv_status check_delay(rkvi_device *d, int64_t ns, void *stream)
{
    check_device *c = check_of(d);
    return c->inner->vt->delay(c->inner, ns, stream);
}

static bool check_capture_relax(rkvi_device *d, bool relaxed)
{
    check_device *c = check_of(d);
    return c->inner->vt->capture_relax(c->inner, relaxed);
}

/* ---- life ---- */

static void free_check(check_device *c)
{
    rkvi_check_captures_drop(c);
    while (c->streams)
        remove_stream(c, c->streams);
    while (c->threads) {
        check_thread *t = c->threads;
        c->threads = t->next;
        free(t);
    }
    rkvi_check_blocks_drop(c);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

static void check_destroy(rkvi_device *d)
{
    check_device *c = check_of(d);
    if (!c)
        return;
    rkvi_dev_destroy(c->inner);
    free_check(c);
}

static const rkvi_device_vt check_vt = {
    .destroy = check_destroy,
    .info = check_info,
    .mem_alloc = check_mem_alloc,
    .mem_free = check_mem_free,
    .host_register = check_host_register,
    .host_unregister = check_host_unregister,
    .host_alloc = check_host_alloc,
    .host_free = check_host_free,
    .stream_create = check_stream_create,
    .stream_destroy = check_stream_destroy,
    .stream_sync = check_stream_sync,
    .stream_wait = check_stream_wait,
    .event_create = check_event_create,
    .event_destroy = check_event_destroy,
    .event_record = check_event_record,
    .event_sync = check_event_sync,
    .event_query = check_event_query,
    .now_ns = check_now_ns,
    .event_elapsed = check_event_elapsed,
    .copy = check_copy,
    .fill = check_fill,
    .launch = check_launch,
    .host_call = check_host_call,
    .delay = check_delay,
    .host_access = check_host_access,
    .capture_relax = check_capture_relax,
    .capture_begin = rkvi_check_capture_begin,
    .capture_end = rkvi_check_capture_end,
    .graph_launch = rkvi_check_graph_launch,
    .graph_destroy = rkvi_check_graph_destroy,
};

rkv_status rkvi_device_check_create(rkvi_device *inner, const rkvi_device_check_settings *s,
                                    rkvi_device **out)
{
    check_device *c = calloc(1, sizeof *c);
    if (!c) {
        rkvi_dev_destroy(inner);
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for the checking executor");
    }
    c->device.vt = &check_vt;
    c->device.wants_ranges = true;
    c->inner = inner;
    if (s)
        c->settings = *s;
    pthread_mutex_init(&c->lock, NULL);
    if (!rkvi_check_thread(c)) {
        check_destroy(&c->device);
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for the checking executor");
    }
    *out = &c->device;
    return RKV_OK;
}

rkvi_device *rkvi_device_check_inner(rkvi_device *d)
{
    return check_of(d)->inner;
}

size_t rkvi_device_check_count(rkvi_device *d)
{
    check_device *c = check_of(d);
    pthread_mutex_lock(&c->lock);
    const size_t n = c->n_reports;
    pthread_mutex_unlock(&c->lock);
    return n;
}

const rkvi_check_report *rkvi_device_check_report(rkvi_device *d, size_t i)
{
    check_device *c = check_of(d);
    return i < c->n_reports ? &c->reports[i] : NULL;
}

void rkvi_device_check_given(rkvi_device *d, const void *ptr, uint64_t bytes)
{
    check_device *c = check_of(d);
    pthread_mutex_lock(&c->lock);
    rkvi_check_freed_forget(c, ptr, bytes);
    pthread_mutex_unlock(&c->lock);
}

void rkvi_device_check_clear(rkvi_device *d)
{
    check_device *c = check_of(d);
    pthread_mutex_lock(&c->lock);
    c->n_reports = 0;
    pthread_mutex_unlock(&c->lock);
}
