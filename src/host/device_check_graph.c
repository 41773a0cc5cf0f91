/* SPDX-License-Identifier: MIT
 *
 * device_check_graph.c: captures and graphs of device_check.
 *
 * The inner executor decides what a capture refuses; here only what it took is
 * noted, and judged at each launch of the graph, where branches are lanes of
 * the graph's own.
 */
#include "device_check_impl.h"

#include <stdlib.h>
#include <string.h>

#define STREAMS_MAX CHECK_CAPTURE_STREAMS_MAX

typedef enum { COMMAND_WORK, COMMAND_RECORD, COMMAND_WAIT } command_kind;

typedef struct command {
    command_kind kind;
    uint32_t stream;
    size_t slot;
    check_work work; /* its ranges are owned */
} command;

typedef struct command_list {
    command *at;
    size_t n, cap;
} command_list;

struct check_capture {
    check_capture *next;
    uint64_t id;
    uint32_t n_streams;
    check_stream *streams[STREAMS_MAX];
    command_list list;
    size_t n_slots;
};

typedef struct check_graph {
    rkvi_graph *inner;
    uint32_t n_streams;
    uint32_t n_lanes; /* opened: [1, n_lanes) */
    check_lane lanes[STREAMS_MAX];
    command_list list;
    size_t n_slots;
    check_clock *slots; /* n_slots */
    check_clock done;   /* of the latest launch */
} check_graph;

static rkv_status short_of_memory(void)
{
    return rkvi_fail(RKV_E_HOST_MEMORY, "device_check: no memory for a capture");
}

static void free_list(command_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        free((void *)(uintptr_t)list->at[i].work.ranges);
    free(list->at);
    *list = (command_list){0};
}

static rkv_status add_command(command_list *list, command cmd)
{
    if (list->n == list->cap) {
        const size_t cap = list->cap ? 2 * list->cap : 32;
        command *at = realloc(list->at, cap * sizeof *at);
        if (!at)
            return short_of_memory();
        list->at = at;
        list->cap = cap;
    }
    list->at[list->n++] = cmd;
    return RKV_OK;
}

rkv_status rkvi_check_capture_add(check_stream *s, const check_work *work)
{
    command cmd = {.kind = COMMAND_WORK, .stream = s->capture_index, .work = *work};
    rkvi_range *ranges = NULL;
    if (work->n_ranges) {
        ranges = malloc(work->n_ranges * sizeof *ranges);
        if (!ranges)
            return short_of_memory();
        memcpy(ranges, work->ranges, work->n_ranges * sizeof *ranges);
    }
    cmd.work.ranges = ranges;
    const rkv_status st = add_command(&s->capture->list, cmd);
    if (st)
        free(ranges);
    return st; /* NOLINT(clang-analyzer-unix.Malloc): the list has the ranges */
}

rkv_status rkvi_check_capture_record(check_stream *s, check_event *e)
{
    check_capture *cap = s->capture;
    const command cmd = {.kind = COMMAND_RECORD, .stream = s->capture_index, .slot = cap->n_slots};
    const rkv_status st = add_command(&cap->list, cmd);
    if (st)
        return st;
    e->capture_id = cap->id;
    e->slot = cap->n_slots++;
    return RKV_OK;
}

static void attach(check_capture *cap, check_stream *s)
{
    s->capture = cap;
    s->capture_index = cap->n_streams;
    cap->streams[cap->n_streams++] = s;
}

/* The inner executor has accepted the wait. */
rkv_status rkvi_check_capture_wait(check_device *c, check_stream *s, check_event *e)
{
    if (!e->capture_id)
        return RKV_OK; /* never recorded */
    check_capture *cap = c->captures;
    while (cap && cap->id != e->capture_id)
        cap = cap->next;
    if (!cap)
        return RKV_OK;
    if (!s->capture) {
        if (cap->n_streams == STREAMS_MAX)
            return short_of_memory();
        attach(cap, s);
    }
    const command cmd = {.kind = COMMAND_WAIT, .stream = s->capture_index, .slot = e->slot};
    return add_command(&cap->list, cmd);
}

static void close_capture(check_device *c, check_capture *cap)
{
    check_capture **link = &c->captures;
    while (*link != cap)
        link = &(*link)->next;
    *link = cap->next;
    for (uint32_t i = 0; i < cap->n_streams; i++)
        cap->streams[i]->capture = NULL;
}

void rkvi_check_captures_drop(check_device *c)
{
    while (c->captures) {
        check_capture *cap = c->captures;
        close_capture(c, cap);
        free_list(&cap->list);
        free(cap);
    }
}

rkv_status rkvi_check_capture_begin(rkvi_device *d, void *stream, bool global)
{
    check_device *c = (check_device *)d;
    check_capture *cap = calloc(1, sizeof *cap);
    if (!cap)
        return short_of_memory();
    pthread_mutex_lock(&c->lock);
    check_stream *s = rkvi_check_stream(c, stream);
    rkv_status st = s ? c->inner->vt->capture_begin(c->inner, stream, global) : RKV_E_SYSTEM;
    if (!st) {
        cap->id = ++c->next_capture_id;
        attach(cap, s);
        cap->next = c->captures;
        c->captures = cap;
    }
    pthread_mutex_unlock(&c->lock);
    if (st)
        free(cap);
    return st;
}

static void free_graph(check_device *c, check_graph *g)
{
    for (uint32_t i = 1; i < g->n_lanes; i++)
        rkvi_check_lane_close(c, &g->lanes[i]);
    free_list(&g->list);
    free(g->slots);
    free(g);
}

static rkv_status new_graph(check_device *c, check_capture *cap, check_graph **out)
{
    check_graph *g = calloc(1, sizeof *g);
    if (!g)
        return short_of_memory();
    rkv_status st = RKV_OK;
    g->n_streams = cap->n_streams;
    g->n_slots = cap->n_slots;
    g->slots = calloc(g->n_slots + 1, sizeof *g->slots);
    if (!g->slots)
        st = short_of_memory();
    g->n_lanes = 1;
    while (!st && g->n_lanes < g->n_streams) {
        st = rkvi_check_lane_open(c, &g->lanes[g->n_lanes], "graph branch");
        g->n_lanes += !st;
    }
    if (st) {
        free_graph(c, g);
        return st;
    }
    g->list = cap->list;
    cap->list = (command_list){0};
    *out = g;
    return RKV_OK;
}

/* A capture_end that fails with RKV_E_STATE has ended nothing. */
rkv_status rkvi_check_capture_end(rkvi_device *d, void *stream, rkvi_graph **out)
{
    check_device *c = (check_device *)d;
    rkvi_graph *inner = NULL;
    check_graph *g = NULL;
    pthread_mutex_lock(&c->lock);
    check_stream *s = rkvi_check_stream(c, stream);
    check_capture *cap = s ? s->capture : NULL;
    rkv_status st = c->inner->vt->capture_end(c->inner, stream, &inner);
    if (cap && st != RKV_E_STATE) {
        if (!st)
            st = new_graph(c, cap, &g);
        close_capture(c, cap);
        free_list(&cap->list);
        free(cap);
    }
    if (st && inner)
        c->inner->vt->graph_destroy(c->inner, inner);
    if (g) {
        g->inner = inner;
        *out = (rkvi_graph *)(void *)g;
    }
    pthread_mutex_unlock(&c->lock);
    return st;
}

static void run_now(check_device *c, check_lane *lane, const check_work *captured)
{
    check_work work = *captured;
    if (work.ranges_now)
        work.ranges = work.ranges_now(work.ranges_arg, &work.n_ranges);
    rkvi_check_run(c, lane, &work);
}

static void replay(check_device *c, check_graph *g, check_stream *s)
{
    rkvi_clock_join(&s->lane.clock, &rkvi_check_thread(c)->lane.clock);
    rkvi_clock_join(&s->lane.clock, &g->done);
    for (size_t i = 0; i < g->list.n; i++) {
        const command *cmd = &g->list.at[i];
        check_lane *lane = cmd->stream ? &g->lanes[cmd->stream] : &s->lane;
        if (cmd->kind == COMMAND_WORK)
            run_now(c, lane, &cmd->work);
        else if (cmd->kind == COMMAND_RECORD)
            g->slots[cmd->slot] = lane->clock;
        else
            rkvi_clock_join(&lane->clock, &g->slots[cmd->slot]);
    }
    g->done = s->lane.clock;
}

rkv_status rkvi_check_graph_launch(rkvi_device *d, rkvi_graph *graph, void *stream)
{
    check_device *c = (check_device *)d;
    check_graph *g = (check_graph *)(void *)graph;
    pthread_mutex_lock(&c->lock);
    check_stream *s = rkvi_check_stream(c, stream);
    rkv_status st = RKV_E_SYSTEM;
    if (s)
        st = c->inner->vt->graph_launch(c->inner, g->inner, stream);
    if (!st)
        replay(c, g, s);
    pthread_mutex_unlock(&c->lock);
    return st;
}

rkv_status rkvi_check_graph_destroy(rkvi_device *d, rkvi_graph *graph)
{
    check_device *c = (check_device *)d;
    check_graph *g = (check_graph *)(void *)graph;
    if (!g)
        return RKV_OK;
    const rkv_status st = c->inner->vt->graph_destroy(c->inner, g->inner);
    if (st && st != RKV_E_POISONED)
        return st;
    pthread_mutex_lock(&c->lock);
    rkvi_clock_join(&rkvi_check_thread(c)->lane.clock, &g->done); /* it waited */
    free_graph(c, g);
    pthread_mutex_unlock(&c->lock);
    return st;
}
