/* SPDX-License-Identifier: MIT
 *
 * step_graph.c: captures of attends, and replays.
 *
 * A capture records the launches of some of the step's sites; nothing of it
 * runs, and the step stands where it stood.  A replay does what these attends
 * would have done besides their launches, before the engine launches its graph:
 * waits, new tiles, the ring's first copies.  What follows the graph on a
 * stream gets its mark with the library's next call (settle). */
#include "step_types.h"

#include <stdlib.h>

/* ------------------------------------------------------------------ captures */

struct rkvi_noted_launch {
    struct rkvi_noted_launch *next;
    rkv_cache *h;
    rkvi_attend a;
    uint32_t op;
    uint64_t first, n;
};

static rkvi_site_call call_of(rkv_cache *h, const rkvi_attend *a, uint32_t site, void *stream)
{
    const rkvi_site_config *sc = &h->cfg.sites[site];
    return (rkvi_site_call){
        .a = a, .site = sc, .layer = &h->cfg.layers[sc->kv_layer], .plan = &h->plan.sites[site], .stream = stream};
}

static const rkvi_range *ranges_now(void *arg, size_t *out_n)
{
    const rkvi_noted_launch *note = arg;
    rkv_cache *h = note->h;
    const rkvi_site_call c = call_of(h, &note->a, note->a.site, NULL);
    rkvi_launch_ranges(h, &c, note->op, note->first, note->n);
    *out_n = h->n_ranges;
    h->n_ranges = 0;
    return h->ranges;
}

void rkvi_capture_note(rkv_cache *h, const rkvi_site_call *c, rkvi_launch *l, uint64_t first, uint64_t n)
{
    if (!h->capture.is_on || !h->dev->wants_ranges)
        return;
    rkvi_noted_launch *note = malloc(sizeof *note);
    if (!note)
        return; /* the checker will name the missing range */
    *note = (rkvi_noted_launch){.next = h->capture.noted, .h = h, .a = *c->a, .op = l->op, .first = first, .n = n};
    h->capture.noted = note;
    l->ranges_now = ranges_now;
    l->ranges_arg = note;
}

void rkvi_capture_notes_free(rkv_cache *h)
{
    while (h->capture.noted) {
        rkvi_noted_launch *note = h->capture.noted;
        h->capture.noted = note->next;
        free(note);
    }
}

uint64_t rkvi_step_key(const rkv_cache *h)
{
    return h->key;
}

bool rkvi_step_captures(const rkv_cache *h)
{
    return h->capture.is_on;
}

uint32_t rkvi_step_capture_site(const rkv_cache *h)
{
    return h->capture.site;
}

/* New tiles that leave while the step runs: their room is handed on within it,
 * from KV layer to KV layer, behind copies that a graph does not have. */
static bool leaves_within(const rkv_cache *h)
{
    for (uint32_t i = 0; i < h->cache.n_moves; i++)
        if (h->cache.moves[i].kind == RKVI_MOVE_LEAVE && h->cache.moves[i].in_step)
            return true;
    return false;
}

static rkv_status may_graph(const rkv_cache *h, const char *what)
{
    if (h->state == RKVI_STEP_IDLE)
        return rkvi_fail(RKV_E_STATE, "no step is open: begin one before %s", what);
    if (h->state == RKVI_STEP_BROKEN)
        return rkvi_fail(RKV_E_STATE, "an earlier call of this step failed: abort the step");
    if (leaves_within(h))
        return rkvi_fail(RKV_E_UNSUPPORTED,
                         "tiles leave the device within this step (a prefill beyond the window): its attends must "
                         "be eager");
    return RKV_OK;
}

rkv_status rkvi_step_capture_begin(rkv_cache *h, uint32_t first_site, uint32_t n_sites, void *stream)
{
    rkvi_step_capture *c = &h->capture;
    rkv_status s = may_graph(h, "a capture");
    if (s == RKV_OK && h->state != RKVI_STEP_RUNNING)
        s = rkvi_fail(RKV_E_STATE, "the step was not started: start it before the stream's capture begins");
    if (s != RKV_OK)
        return s;
    c->first_site = c->site = first_site;
    c->end_site = first_site + n_sites;
    s = rkvi_capture_fork(h, stream);
    c->is_on = s == RKV_OK;
    return s == RKV_OK ? s : rkvi_step_seen_status(h, s);
}

rkv_status rkvi_capture_attend(rkv_cache *h, const rkvi_site_call *c)
{
    rkv_status s = RKV_OK;
    if (c->site->stores && h->plan.n_new_cells)
        s = rkvi_launch_store(h, c);
    if (s == RKV_OK)
        s = rkvi_launch_rotate(h, c);
    if (s == RKV_OK)
        s = rkvi_step_cpu_begin(h, c);
    for (uint32_t g = 0; g < c->plan->n_launches && s == RKV_OK; g++) {
        s = rkvi_capture_wait_filled(h, c, c->plan->number0 + g);
        if (s == RKV_OK)
            s = g == c->plan->cpu_launch && h->cpu.is_running ? rkvi_step_cpu_finish(h, c)
                                                              : rkvi_launch_attend(h, c, g);
        if (s == RKV_OK)
            s = rkvi_capture_launched(h, c, c->plan->number0 + g);
    }
    if (s == RKV_OK)
        s = rkvi_launch_output(h, c);
    h->capture.site += s == RKV_OK;
    h->capture.is_on = s == RKV_OK;
    return s;
}

rkv_status rkvi_step_capture_end(rkv_cache *h, void *stream, rkvi_step_graph *out)
{
    rkvi_step_capture *c = &h->capture;
    c->is_on = false;
    if (c->site < c->end_site)
        return rkvi_fail(RKV_E_STATE, "site %u of the capture's [%u, %u) was not attended: the capture is dropped",
                         c->site, c->first_site, c->end_site);
    *out = (rkvi_step_graph){.first_site = c->first_site,
                             .n_sites = c->site - c->first_site,
                             .n_ahead = c->n_ahead,
                             .key = h->key};
    return rkvi_step_seen_status(h, rkvi_capture_join(h, stream));
}

/* ------------------------------------------------------------------- replays */

rkv_status rkvi_step_settle(rkv_cache *h)
{
    if (!h->replay_open)
        return RKV_OK;
    rkv_status s = rkvi_step_mark_compute(h, h->stream);
    if (s != RKV_OK)
        return s;
    h->replay_open = false;
    for (uint64_t n = h->replay_first; n <= h->launched; n++)
        h->launch_marks[n % h->launch_room] = h->compute.last;
    /* Slots that the graph wrote are not known one by one. */
    return h->ring_is_past ? rkvi_timeline_wait(&h->compute, h->compute.last, h->in_stream, &h->in_seen.compute)
                           : RKV_OK;
}

/* What the site's attend does before its launches. */
static rkv_status before_site(rkv_cache *h, uint32_t site, void *stream)
{
    const rkvi_attend none = {.site = site};
    const rkvi_site_call c = call_of(h, &none, site, stream);
    if (!c.site->stores || h->plan.n_new_cells == 0)
        return RKV_OK;
    const rkv_status s = rkvi_step_before_store(h, &c);
    return s == RKV_OK ? rkvi_launch_open(h, &c) : s;
}

rkv_status rkvi_step_replay(rkv_cache *h, const rkvi_step_graph *graph, void *stream)
{
    rkv_status s = may_graph(h, "a replay");
    if (s == RKV_OK && h->state == RKVI_STEP_BEGUN)
        s = rkvi_step_start(h, stream);
    else if (s == RKV_OK)
        s = rkvi_step_order(h, stream);
    const uint32_t end = graph->first_site + graph->n_sites;
    if (s != RKV_OK)
        return s;
    for (uint32_t site = graph->first_site; site < end && s == RKV_OK; site++)
        s = before_site(h, site, stream);
    if (s == RKV_OK)
        s = rkvi_replay_ring(h, graph, stream);
    if (s == RKV_OK)
        s = rkvi_step_cpu_replay(h, graph->first_site, end, stream);
    if (s == RKV_OK)
        s = rkvi_step_mark_compute(h, stream);
    if (s != RKV_OK)
        return rkvi_step_broken(h, s, stream);
    const rkvi_plan_site *last = &h->plan.sites[end - 1];
    h->replay_open = h->replayed = true;
    h->replay_first = h->launched + 1;
    h->launched = last->number0 + last->n_launches - 1;
    h->next_site = end;
    return RKV_OK;
}
