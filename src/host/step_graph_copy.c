/* SPDX-License-Identifier: MIT
 *
 * step_graph_copy.c: the tail's copies in captures and replays.
 *
 * The list lies in the ring as it does in every step of such a cache: from
 * offset 0, in equal laps.  A graph copies it on a stream of its own that is
 * forked off the captured one and joined to it at the end:
 *
 *   before   the first n_ahead items are in the ring: the replay before left
 *            them there, or rkv_step_replay copies them
 *   roots    the items behind them, as far as the first lap goes
 *   then     the others, each when the launches that read its slots are through
 *   end      the first n_ahead items again, where the graph ends with the last site
 *            (step_graph_ahead.c: how many)
 */
#include "step_types.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define CAPTURE_EVENTS 1024u

rkv_status rkvi_capture_init(rkv_cache *h)
{
    rkvi_step_capture *c = &h->capture;
    if (h->cfg.ring_bytes == 0)
        return RKV_OK;
    rkv_status s = rkvi_handle_make_ring(h, &c->ring);
    c->launch_marks = calloc(h->launch_room, sizeof *c->launch_marks);
    if (s == RKV_OK && !c->launch_marks)
        s = rkvi_fail(RKV_E_HOST_MEMORY, "no memory for the marks of captures");
    if (s == RKV_OK)
        s = rkvi_dev(stream_create, h->dev, "rollkv capture", &c->copy_stream);
    if (s == RKV_OK)
        s = rkvi_timeline_init(&c->in, h->dev, CAPTURE_EVENTS);
    if (s == RKV_OK)
        s = rkvi_timeline_init(&c->compute, h->dev, CAPTURE_EVENTS);
    return s;
}

void rkvi_capture_free(rkv_cache *h)
{
    rkvi_step_capture *c = &h->capture;
    rkvi_timeline_free(&c->in);
    rkvi_timeline_free(&c->compute);
    if (c->copy_stream)
        rkvi_dev(stream_destroy, h->dev, c->copy_stream);
    rkvi_ring_free(&c->ring);
    free(c->launch_marks);
    rkvi_capture_notes_free(h);
}

/* ------------------------------------------------------------------ captures */

static uint32_t first_item(const rkv_cache *h, uint32_t site)
{
    return site < h->cfg.n_sites ? h->plan.sites[site].list0 : h->ring.n_list;
}

/* What is copied ahead at the end.  Without hints: half a ring at most, in slots
 * that are free by three quarters of the step. */
static void lay_out(rkv_cache *h)
{
    rkvi_step_capture *c = &h->capture;
    const uint32_t n = h->ring.n_list, n_sites = h->cfg.n_sites, late = n_sites - n_sites / 4;
    const rkvi_plan_site *end = &h->plan.sites[n_sites - 1];
    uint64_t last = end->number0 + end->n_launches - 1, bytes = 0, step_ns = 0;
    uint32_t n_ahead = n;
    for (uint32_t i = 0; i < n_sites; i++)
        step_ns += rkvi_capture_gap_ns(h, i);
    const bool has_hints = step_ns && h->cfg.link_bytes_per_s;
    if (!has_hints) {
        last = late < n_sites ? h->plan.sites[late].number0 - 1 : 0;
        for (n_ahead = 0; n_ahead < n && (bytes += h->ring.items[n_ahead].bytes) <= h->ring.bytes / 2;)
            n_ahead++;
    }
    memcpy(rkvi_ring_new_items(&c->ring), h->ring.items, n * sizeof *h->ring.items);
    rkvi_ring_cycle(&c->ring, n, n_ahead, last);
    if (has_hints) {
        n_ahead = rkvi_capture_choose_ahead(h);
        memcpy(rkvi_ring_new_items(&c->ring), h->ring.items, n * sizeof *h->ring.items);
        rkvi_ring_cycle(&c->ring, n, n_ahead, last);
    }
}

static rkv_status copy_group(rkv_cache *h, const rkvi_copy_group *g)
{
    rkvi_step_capture *c = &h->capture;
    const rkvi_copy copy = {.direction = RKVI_H2D,
                            .dst = (unsigned char *)h->ring_memory + g->offset,
                            .src = (const void *)(uintptr_t)g->host_addr,
                            .width_bytes = g->width_bytes,
                            .rows = g->rows,
                            .dst_pitch_bytes = g->width_bytes,
                            .src_pitch_bytes = g->rows > 1 ? g->pitch_bytes : g->width_bytes};
    const bool is_within = g->dep >= h->plan.sites[c->first_site].number0; /* launches before: before the graph */
    const uint64_t mark = is_within ? c->launch_marks[g->dep % h->launch_room] : 0;
    rkv_status s = rkvi_timeline_wait(&c->compute, mark, c->copy_stream, &c->in_seen.compute);
    if (s == RKV_OK)
        s = rkvi_arena_copy(h->arena, &copy, c->copy_stream);
    if (s == RKV_OK)
        s = rkvi_timeline_record(&c->in, c->copy_stream);
    if (s == RKV_OK)
        rkvi_ring_issued(&c->ring, g, c->in.last);
    return s;
}

static rkv_status pump(rkv_cache *h, uint64_t needed)
{
    rkvi_step_capture *c = &h->capture;
    rkvi_copy_group g;
    rkv_status s = RKV_OK;
    while (s == RKV_OK && rkvi_ring_next_group(&c->ring, c->launched, needed, &g))
        s = copy_group(h, &g);
    return s;
}

static bool is_pinned(const rkv_cache *h)
{
    rkvi_arena_counters arena = {0};
    rkvi_arena_counters_get(h->arena, &arena);
    return arena.unpinned_bytes == 0;
}

/* Items before the captured sites, and those that are ahead, count as copied. */
static void skip(rkv_cache *h, uint32_t n)
{
    rkvi_step_capture *c = &h->capture;
    const rkvi_copy_group g = {.first = 0, .n_items = n};
    rkvi_ring_issued(&c->ring, &g, c->in.last);
}

rkv_status rkvi_capture_fork(rkv_cache *h, void *stream)
{
    rkvi_step_capture *c = &h->capture;
    const uint32_t from = first_item(h, c->first_site), end = first_item(h, c->end_site);
    const bool to_end = c->end_site == h->cfg.n_sites;
    c->is_forked = false;
    c->n_ahead = 0;
    if (h->ring.n_list == 0)
        return RKV_OK;
    rkvi_step_ring_now(h);
    lay_out(h);
    c->n_ahead = c->ring.n_items - c->ring.n_list;
    if (from == end && !(to_end && c->n_ahead))
        return RKV_OK;
    if (!is_pinned(h))
        return rkvi_fail(RKV_E_UNSUPPORTED, "a part of the tail could not be pinned: its copies can't be captured");
    skip(h, c->first_site > 0 ? from : c->n_ahead < end ? c->n_ahead : end);
    if (!to_end)
        c->ring.n_items = end;
    c->launched = h->plan.sites[c->first_site].number0 - 1;
    c->in_seen = c->compute_seen = (rkvi_seen){.in = c->in.last, .compute = c->compute.last};
    c->is_forked = true;
    rkv_status s = rkvi_timeline_record(&c->compute, stream);
    if (s == RKV_OK)
        s = rkvi_timeline_wait(&c->compute, c->compute.last, c->copy_stream, &c->in_seen.compute);
    return s == RKV_OK ? pump(h, 0) : s;
}

static bool reads(const rkv_cache *h, const rkvi_site_call *c, uint64_t number, uint64_t *out_mark)
{
    const rkvi_ring *r = &h->capture.ring;
    bool any = false;
    *out_mark = 0;
    for (uint32_t i = c->plan->list0; i < c->plan->list0 + c->plan->n_list; i++)
        if (r->items[i].launch == number) {
            any = true;
            *out_mark = r->items[i].in_mark > *out_mark ? r->items[i].in_mark : *out_mark;
        }
    return any;
}

rkv_status rkvi_capture_wait_filled(rkv_cache *h, const rkvi_site_call *c, uint64_t number)
{
    uint64_t mark;
    if (!h->capture.is_forked)
        return RKV_OK;
    rkv_status s = pump(h, number);
    if (s != RKV_OK || !reads(h, c, number, &mark))
        return s;
    return rkvi_timeline_wait(&h->capture.in, mark, c->stream, &h->capture.compute_seen.in);
}

rkv_status rkvi_capture_launched(rkv_cache *h, const rkvi_site_call *c, uint64_t number)
{
    rkvi_step_capture *k = &h->capture;
    uint64_t mark;
    if (!k->is_forked)
        return RKV_OK;
    if (reads(h, c, number, &mark)) {
        rkv_status s = rkvi_timeline_record(&k->compute, c->stream);
        if (s != RKV_OK)
            return s;
    }
    k->launch_marks[number % h->launch_room] = k->compute.last;
    k->launched = number;
    return pump(h, 0);
}

rkv_status rkvi_capture_join(rkv_cache *h, void *stream)
{
    rkvi_step_capture *c = &h->capture;
    uint64_t unseen = 0;
    if (!c->is_forked)
        return RKV_OK;
    rkv_status s = pump(h, UINT64_MAX); /* what is left of those for the next replay */
    assert(s != RKV_OK || c->ring.next == c->ring.n_items);
    /* Whatever the copy stream waited for last, not only the last copy. */
    if (s == RKV_OK)
        s = rkvi_timeline_record(&c->in, c->copy_stream);
    return s == RKV_OK ? rkvi_timeline_wait(&c->in, c->in.last, stream, &unseen) : s;
}

/* ------------------------------------------------------------------- replays */

static uint64_t mix(uint64_t hash, uint64_t x)
{
    hash = (hash ^ x) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 29;
}

void rkvi_graph_list(rkv_cache *h)
{
    const rkvi_ring *r = &h->ring;
    uint64_t hash = 0, out = 0;
    for (uint32_t i = 0; i < r->n_list; i++) {
        const rkvi_ring_item *it = &r->items[i];
        hash = mix(mix(mix(hash, it->serial), it->host_addr), it->at % r->bytes);
        hash = mix(hash, (it->launch - h->launched) << 32 ^ (uint64_t)it->site << 16 ^ it->generation);
        out = *it->out_mark > out ? *it->out_mark : out;
    }
    for (uint32_t i = 0; i < h->cfg.n_sites; i++)
        out = h->plan.sites[i].cpu_out_mark > out ? h->plan.sites[i].cpu_out_mark : out;
    h->list_hash = hash;
    h->list_out = out;
}

/* Items of the list up to n that are not copied yet: in front of the replay. */
static rkv_status copy_ahead(rkv_cache *h, uint32_t n)
{
    while (h->ring.next < n) {
        const uint32_t before = h->ring.next;
        const rkv_status s = rkvi_step_pump_next(h, h->ring.items[n - 1].launch);
        if (s != RKV_OK)
            return s;
        if (h->ring.next == before)
            break;
    }
    for (uint32_t i = 0; i < n; i++)
        assert(h->ring.items[i].in_mark);
    return RKV_OK;
}

static void count(rkv_cache *h, uint32_t from, uint32_t end)
{
    const bool is_all = end - from == h->ring.n_list;
    for (uint32_t i = from; i < end && !is_all; i++)
        h->stats.streamed_bytes += h->ring.items[i].bytes;
    h->stats.streamed_bytes += is_all ? h->plan.list_bytes : 0;
    h->stats.streamed_tile_layers += end - from;
}

rkv_status rkvi_replay_ring(rkv_cache *h, const rkvi_step_graph *graph, void *stream)
{
    const uint32_t end_site = graph->first_site + graph->n_sites;
    const uint32_t from = first_item(h, graph->first_site), end = first_item(h, end_site);
    const bool leaves = end_site == h->cfg.n_sites && graph->n_ahead;
    const bool is_ahead = h->n_ahead >= graph->n_ahead && h->ahead_hash == h->list_hash;
    const uint32_t n_needed = graph->n_ahead < end ? graph->n_ahead : end;
    rkv_status s = RKV_OK;
    if (from == end && !leaves)
        return RKV_OK;
    if (graph->first_site == 0 && !is_ahead) {
        rkvi_step_ring_now(h);
        s = copy_ahead(h, n_needed);
    }
    if (s == RKV_OK)
        s = rkvi_timeline_wait(&h->in, h->in.last, stream, &h->compute_seen.in);
    if (s == RKV_OK)
        s = rkvi_timeline_wait(&h->out, h->list_out, stream, &h->compute_seen.out);
    if (s != RKV_OK)
        return s;
    if (!h->ring_is_old && h->ring.next < end) { /* the graph copies them */
        const rkvi_copy_group g = {.first = h->ring.next, .n_items = end - h->ring.next};
        rkvi_ring_issued(&h->ring, &g, h->in.last);
    }
    count(h, from, end);
    h->ring_is_past = true;
    h->n_ahead = leaves ? graph->n_ahead : 0;
    h->ahead_hash = h->list_hash;
    return RKV_OK;
}
