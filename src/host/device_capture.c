/* SPDX-License-Identifier: MIT
 *
 * device_capture.c: capture mode and graphs of device_host and device_sim.
 *
 *   stream:   free --capture_begin--> origin of a capture --capture_end--> free
 *             free --waits on an event recorded within--> joined --its end--> free
 *   capture:  open --refused call--> dead --capture_end (fails)--> gone
 *             open --capture_end--> graph
 *   event:    a record within a capture gives it a slot there; outside, it then
 *             can't be waited on or queried until it is recorded again.
 *
 * A captured list is what the streams were told, in order.  A launch tells it
 * again: commands of the origin go to the launching stream, those of the n-th
 * joined stream to the n-th stream of the graph's own; records and waits within
 * become fresh marks.  One launch of a graph waits for its former one, as in
 * CUDA.
 */
#include "device_core.h"

#include <stdlib.h>
#include <string.h>

#define STREAMS_MAX RKVI_CAPTURE_STREAMS_MAX

/* clock.at[t]: how many operations of captured stream t come before. */
typedef struct cap_clock {
    uint64_t at[STREAMS_MAX];
} cap_clock;

typedef struct command {
    rkvi_devop *op; /* records and waits name a slot */
    uint32_t stream;
} command;

typedef struct command_list {
    command *at;
    size_t n, cap;
} command_list;

struct rkvi_capture {
    rkvi_capture *next;
    uint64_t id;
    const char *why_dead; /* NULL: open */
    bool is_global;
    uint32_t n_streams;
    rkvi_stream *streams[STREAMS_MAX]; /* [0]: origin */
    cap_clock clocks[STREAMS_MAX];
    command_list list;
    cap_clock *slots; /* clock of each record */
    size_t n_slots, slots_cap;
};

struct rkvi_graph {
    uint32_t n_streams;
    rkvi_stream *streams[STREAMS_MAX]; /* [0]: NULL, the launching stream */
    command_list list;
    size_t n_slots;
    rkvi_mark *done; /* of the latest launch */
};

static _Thread_local bool thread_is_relaxed;

static rkvi_core *core_of(rkvi_device *d)
{
    return (rkvi_core *)d;
}

bool rkvi_core_capture_relax(rkvi_device *d, bool relaxed)
{
    (void)d;
    const bool former = thread_is_relaxed;
    thread_is_relaxed = relaxed;
    return former;
}

rkv_status rkvi_capture_kill(rkvi_capture *cap, const char *why)
{
    if (!cap->why_dead)
        cap->why_dead = why;
    return rkvi_fail(RKV_E_DEVICE_CALL, "the capture is dead: %s", cap->why_dead);
}

/* Calls that are forbidden during a global-mode capture, whoever makes them. */
rkv_status rkvi_capture_refuse(rkvi_core *c, const char *what)
{
    if (thread_is_relaxed)
        return RKV_OK;
    rkv_status st = RKV_OK;
    for (rkvi_capture *cap = c->captures; cap; cap = cap->next)
        if (cap->is_global)
            st = rkvi_capture_kill(cap, "a forbidden call during a global-mode capture");
    return st ? rkvi_fail(st, "%s during a global-mode capture: relax the thread first", what) : st;
}

static rkvi_capture *find_capture(rkvi_core *c, uint64_t id)
{
    rkvi_capture *cap = c->captures;
    while (cap && cap->id != id)
        cap = cap->next;
    return cap;
}

rkv_status rkvi_capture_event_refuse(rkvi_core *c, rkvi_event *event, const char *what)
{
    if (!event->capture_id)
        return RKV_OK;
    rkvi_capture *cap = find_capture(c, event->capture_id);
    if (cap)
        rkvi_capture_kill(cap, "a host call on an event that was recorded within");
    return rkvi_fail(RKV_E_DEVICE_CALL, "%s of an event that was recorded in a capture", what);
}

/* ---- recording ---- */

static bool grow(void **at, size_t n, size_t *cap, size_t item_bytes)
{
    if (n < *cap)
        return true;
    const size_t new_cap = *cap ? 2 * *cap : 16;
    void *p = realloc(*at, new_cap * item_bytes);
    if (!p) {
        rkvi_fail(RKV_E_HOST_MEMORY, "no memory for a capture's list");
        return false;
    }
    *at = p;
    *cap = new_cap;
    return true;
}

static bool add_command(command_list *list, rkvi_devop *op, uint32_t stream)
{
    void *at = list->at;
    if (!grow(&at, list->n, &list->cap, sizeof *list->at)) {
        rkvi_devop_free(op);
        return false;
    }
    list->at = at;
    list->at[list->n++] = (command){.op = op, .stream = stream};
    return true;
}

static void free_list(command_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        rkvi_devop_free(list->at[i].op);
    free(list->at);
    *list = (command_list){0};
}

rkv_status rkvi_capture_add(rkvi_stream *s, rkvi_devop *op)
{
    rkvi_capture *cap = s->capture;
    if (cap->why_dead) {
        rkvi_devop_free(op);
        return rkvi_capture_kill(cap, cap->why_dead);
    }
    if (!add_command(&cap->list, op, s->capture_index))
        return RKV_E_HOST_MEMORY;
    cap->clocks[s->capture_index].at[s->capture_index]++;
    return RKV_OK;
}

static rkv_status add_sync(rkvi_stream *s, rkvi_devop_kind kind, uint64_t slot)
{
    rkvi_devop *op = rkvi_devop_new(s->core, kind, 0, 0);
    if (!op)
        return RKV_E_HOST_MEMORY;
    op->u.slot = slot;
    return add_command(&s->capture->list, op, s->capture_index) ? RKV_OK : RKV_E_HOST_MEMORY;
}

rkv_status rkvi_capture_record(rkvi_event *event, rkvi_stream *s)
{
    rkvi_capture *cap = s->capture;
    if (cap->why_dead)
        return rkvi_capture_kill(cap, cap->why_dead);
    void *slots = cap->slots;
    if (!grow(&slots, cap->n_slots, &cap->slots_cap, sizeof *cap->slots))
        return RKV_E_HOST_MEMORY;
    cap->slots = slots;
    const rkv_status st = add_sync(s, RKVI_DEVOP_RECORD, cap->n_slots);
    if (st)
        return st;
    cap->slots[cap->n_slots] = cap->clocks[s->capture_index];
    event->capture_id = cap->id;
    event->capture_slot = cap->n_slots++;
    return RKV_OK;
}

static void attach(rkvi_capture *cap, rkvi_stream *s)
{
    s->capture = cap;
    s->capture_index = cap->n_streams;
    cap->streams[cap->n_streams++] = s;
}

static void detach_last(rkvi_capture *cap)
{
    cap->streams[--cap->n_streams]->capture = NULL;
}

/* A stream that waits on an event of an open capture joins it. */
static rkv_status wait_inside(rkvi_capture *cap, rkvi_stream *s, uint64_t slot)
{
    const bool joins = !s->capture;
    if (joins && s == s->core->default_stream)
        return rkvi_capture_kill(cap, "the default stream can't join a capture");
    if (joins && cap->n_streams == STREAMS_MAX)
        return rkvi_capture_kill(cap, "too many streams joined it");
    if (joins)
        attach(cap, s);
    const rkv_status st = add_sync(s, RKVI_DEVOP_WAIT, slot);
    if (st) {
        if (joins)
            detach_last(cap);
        return st;
    }
    cap_clock *mine = &cap->clocks[s->capture_index];
    for (uint32_t t = 0; t < STREAMS_MAX; t++)
        if (mine->at[t] < cap->slots[slot].at[t])
            mine->at[t] = cap->slots[slot].at[t];
    return RKV_OK;
}

/* A wait in which the stream, the event or both belong to a capture. */
rkv_status rkvi_capture_wait(rkvi_stream *s, rkvi_event *event)
{
    rkvi_capture *theirs = event->capture_id ? find_capture(s->core, event->capture_id) : NULL;
    rkvi_capture *mine = s->capture;
    if (mine && mine->why_dead)
        return rkvi_capture_kill(mine, mine->why_dead);
    if (theirs && theirs->why_dead)
        return rkvi_capture_kill(theirs, theirs->why_dead);
    if (theirs && (!mine || mine == theirs))
        return wait_inside(theirs, s, event->capture_slot);
    if (theirs)
        rkvi_capture_kill(theirs, "another capture waited on its event");
    if (mine && !event->capture_id && !event->latest)
        return RKV_OK; /* never recorded: nothing */
    if (mine)
        return rkvi_capture_kill(mine, "a wait on an event that was recorded outside it");
    return rkvi_fail(RKV_E_DEVICE_CALL, "stream_wait on an event that was recorded in a capture");
}

rkv_status rkvi_core_capture_begin(rkvi_device *d, void *stream, bool global)
{
    rkvi_core *c = core_of(d);
    rkv_status st = rkvi_core_enter(c, RKVI_CALL_CAPTURE_BEGIN);
    if (st)
        return st;
    rkvi_stream *s = rkvi_core_stream(c, stream);
    if (!s)
        st = RKV_E_ARGUMENT;
    else if (s == c->default_stream)
        st = rkvi_fail(RKV_E_DEVICE_CALL, "the default stream can't be captured");
    else if (s->capture)
        st = rkvi_capture_kill(s->capture, "capture_begin on a stream that is captured already");
    rkvi_capture *cap = st ? NULL : calloc(1, sizeof *cap);
    if (cap) {
        cap->id = ++c->next_capture_id;
        cap->is_global = global;
        attach(cap, s);
        cap->next = c->captures;
        c->captures = cap;
    } else if (!st) {
        st = rkvi_fail(RKV_E_HOST_MEMORY, "no memory for a capture");
    }
    return rkvi_core_leave(c, st);
}

/* ---- the end of a capture ---- */

/* Takes it off the device and its streams; the list stays. */
static void close_capture(rkvi_core *c, rkvi_capture *cap)
{
    rkvi_capture **link = &c->captures;
    while (*link != cap)
        link = &(*link)->next;
    *link = cap->next;
    while (cap->n_streams)
        detach_last(cap);
    free(cap->slots);
}

static bool is_joined(const rkvi_capture *cap)
{
    for (uint32_t s = 1; s < cap->n_streams; s++)
        if (cap->clocks[0].at[s] < cap->clocks[s].at[s])
            return false;
    return true;
}

static void free_graph(rkvi_graph *graph)
{
    for (uint32_t i = 1; i < graph->n_streams; i++)
        if (graph->streams[i])
            rkvi_core_stream_free(graph->streams[i]);
    rkvi_mark_unref(graph->done);
    free_list(&graph->list);
    free(graph);
}

/* A graph with streams of its own; the list is moved in by the caller. */
static rkv_status new_graph(rkvi_core *c, const rkvi_capture *cap, rkvi_graph **out)
{
    rkvi_graph *graph = calloc(1, sizeof *graph);
    if (!graph)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for a graph");
    graph->n_streams = cap->n_streams;
    graph->n_slots = cap->n_slots;
    for (uint32_t i = 1; i < graph->n_streams; i++) {
        const rkv_status st = rkvi_core_stream_new(c, "graph", &graph->streams[i]);
        if (st) {
            free_graph(graph);
            return st;
        }
        graph->streams[i]->is_internal = true;
    }
    *out = graph;
    return RKV_OK;
}

rkv_status rkvi_core_capture_end(rkvi_device *d, void *stream, rkvi_graph **out)
{
    rkvi_core *c = core_of(d);
    rkv_status st = rkvi_core_enter(c, RKVI_CALL_CAPTURE_END);
    if (st)
        return st;
    rkvi_stream *s = rkvi_core_stream(c, stream);
    rkvi_capture *cap = s ? s->capture : NULL;
    if (!cap || cap->streams[0] != s)
        return rkvi_core_leave(
            c, rkvi_fail(RKV_E_STATE, "capture_end on a stream on which no capture began"));
    rkvi_graph *graph = NULL;
    if (!cap->why_dead && !is_joined(cap))
        cap->why_dead = "a stream that joined it was not joined back at its end";
    if (cap->why_dead)
        st = rkvi_capture_kill(cap, cap->why_dead);
    else
        st = new_graph(c, cap, &graph);
    close_capture(c, cap);
    if (st) {
        free_list(&cap->list);
    } else {
        graph->list = cap->list;
        c->usage.graphs++;
        *out = graph;
    }
    free(cap);
    return rkvi_core_leave(c, st);
}

void rkvi_capture_drop_all(rkvi_core *c)
{
    while (c->captures) {
        rkvi_capture *cap = c->captures;
        close_capture(c, cap);
        free_list(&cap->list);
        free(cap);
    }
}

/* ---- graphs ---- */

static void free_marks(rkvi_mark **marks, size_t n)
{
    for (size_t i = 0; marks && i < n; i++)
        rkvi_mark_unref(marks[i]);
    free(marks);
}

static void free_ops(rkvi_devop **ops, size_t n)
{
    for (size_t i = 0; ops && i < n; i++)
        if (ops[i])
            rkvi_devop_free(ops[i]);
    free(ops);
}

/* A captured operation once more, with what it touches now. */
static rkvi_devop *clone_now(rkvi_core *c, const rkvi_devop *op)
{
    size_t n = 0;
    if (op->kind != RKVI_DEVOP_LAUNCH || !op->u.launch.ranges_now)
        return rkvi_devop_clone(c, op);
    const rkvi_range *ranges = op->u.launch.ranges_now(op->u.launch.ranges_arg, &n);
    rkvi_devop *copy = rkvi_devop_new(c, op->kind, op->args_bytes, n);
    if (!copy)
        return NULL;
    copy->site = op->site;
    copy->u = op->u;
    memcpy(copy->data, op->data, op->args_bytes);
    if (n)
        memcpy(rkvi_devop_ranges(copy), ranges, n * sizeof *ranges);
    return copy;
}

/* Room for a launch: the list's operations, a wait before and a record after
 * them; a mark per slot, and one for the end.  All or nothing. */
static bool prepare(rkvi_core *c, const rkvi_graph *graph, rkvi_devop ***out_ops, rkvi_mark ***out_marks)
{
    const size_t n = graph->list.n, n_slots = graph->n_slots;
    rkvi_devop **ops = calloc(n + 2, sizeof *ops);
    rkvi_mark **marks = calloc(n_slots + 1, sizeof *marks);
    bool ok = ops && marks;
    for (size_t i = 0; ok && i < n; i++)
        ok = (ops[i] = clone_now(c, graph->list.at[i].op)) != NULL;
    for (size_t i = 0; ok && i <= n_slots; i++)
        ok = (marks[i] = rkvi_mark_new(c)) != NULL;
    ok = ok && (ops[n] = rkvi_devop_new(c, RKVI_DEVOP_WAIT, 0, 0)) != NULL &&
         (ops[n + 1] = rkvi_devop_new(c, RKVI_DEVOP_RECORD, 0, 0)) != NULL;
    if (!ok) {
        free_ops(ops, n + 2);
        free_marks(marks, n_slots + 1);
        return false;
    }
    *out_ops = ops;
    *out_marks = marks;
    return true;
}

/* Cannot fail. */
static void push_graph(rkvi_graph *graph, rkvi_stream *s, rkvi_devop **ops, rkvi_mark **marks)
{
    const size_t n = graph->list.n;
    if (graph->done) {
        ops[n]->u.mark = rkvi_mark_ref(graph->done);
        rkvi_core_push(s, ops[n]);
    } else {
        rkvi_devop_free(ops[n]);
    }
    for (size_t i = 0; i < n; i++) {
        const command *cmd = &graph->list.at[i];
        if (ops[i]->kind == RKVI_DEVOP_RECORD || ops[i]->kind == RKVI_DEVOP_WAIT)
            ops[i]->u.mark = rkvi_mark_ref(marks[cmd->op->u.slot]);
        rkvi_core_push(cmd->stream ? graph->streams[cmd->stream] : s, ops[i]);
    }
    rkvi_mark_unref(graph->done);
    graph->done = rkvi_mark_ref(marks[graph->n_slots]);
    ops[n + 1]->u.mark = rkvi_mark_ref(graph->done);
    rkvi_core_push(s, ops[n + 1]);
}

rkv_status rkvi_core_graph_launch(rkvi_device *d, rkvi_graph *graph, void *stream)
{
    rkvi_core *c = core_of(d);
    rkv_status st = rkvi_core_enter(c, RKVI_CALL_GRAPH_LAUNCH);
    if (st)
        return st;
    rkvi_stream *s = rkvi_core_stream(c, stream);
    rkvi_devop **ops = NULL;
    rkvi_mark **marks = NULL;
    if (!s)
        st = RKV_E_ARGUMENT;
    else if (s->capture)
        st = rkvi_capture_kill(s->capture, "a graph was launched within it");
    else if (!prepare(c, graph, &ops, &marks))
        st = RKV_E_HOST_MEMORY;
    else
        push_graph(graph, s, ops, marks);
    if (!st) {
        free(ops);
        free_marks(marks, graph->n_slots + 1);
    }
    return rkvi_core_leave(c, st);
}

/* Waits for its latest launch: part of it runs on the graph's own streams. */
rkv_status rkvi_core_graph_destroy(rkvi_device *d, rkvi_graph *graph)
{
    rkvi_core *c = core_of(d);
    const rkv_status st = rkvi_core_enter(c, RKVI_CALL_GRAPH_DESTROY);
    if (st)
        return st;
    if (graph) {
        if (graph->done)
            c->backend->mark_wait(c, graph->done);
        free_graph(graph);
        c->usage.graphs--;
    }
    return rkvi_core_leave_poisoned(c, RKV_OK);
}
