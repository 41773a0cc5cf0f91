/* SPDX-License-Identifier: MIT
 *
 * step_graph_ahead.c: how much of the next replay's list a graph copies at its end.
 *
 * A graph copies as many bytes as its list has, whatever is copied ahead: the
 * first n_ahead items at its end, for the next replay, in place of those that the
 * replay before left in the ring.  With few of them the link rests while the step
 * runs on behind the last site that reads the tail; with many it waits at the end
 * for slots, and the graph for it.  So the capture is gone through in time, by the
 * hints, with several n_ahead.
 *
 *   compute   a launch, when its items are there; then the gap to the next site
 *   link      a copy, when the one before and the launches that read its slots are through
 *   step      both are through
 */
#include "step_types.h"

#define TRIES 32u
#define COPY_NS 3000u /* of a copy, beside its bytes: as measured on PCIe 5 */
#define ALIKE 512u    /* steps no longer than the shortest one by a part in so many count as short */

typedef struct trial {
    rkv_cache *h;
    double link_bytes_per_ns;
    uint64_t link_ns, compute_ns; /* when each is through with what it has so far */
} trial;

uint64_t rkvi_capture_gap_ns(const rkv_cache *h, uint32_t site)
{
    const uint64_t gap = h->cfg.sites[site].gap_ns;
    return gap ? gap : h->cfg.step_ns / h->cfg.n_sites;
}

/* The last site's gap goes on into the next step: what of it comes before the first
 * attention is the products of q, k and v, some quarter of a usual gap. */
static uint64_t before_first_ns(const rkv_cache *h)
{
    const uint32_t last = h->cfg.n_sites - 1;
    const uint64_t of_last = rkvi_capture_gap_ns(h, last);
    uint64_t ns = 0;
    for (uint32_t i = 0; i < last; i++)
        ns += rkvi_capture_gap_ns(h, i);
    ns = last ? ns / last / 4 : 0;
    return ns < of_last ? ns : of_last;
}

/* Marks of launches and of items are times here.  A copy waits for launches of this
 * capture alone, or for none. */
static void copies(trial *t, uint64_t needed)
{
    rkvi_step_capture *c = &t->h->capture;
    rkvi_copy_group g;
    while (rkvi_ring_next_group(&c->ring, c->launched, needed, &g)) {
        const uint64_t free_ns = g.dep ? c->launch_marks[g.dep % t->h->launch_room] : 0;
        const double bytes = (double)g.width_bytes * (double)g.rows;
        t->link_ns = (t->link_ns > free_ns ? t->link_ns : free_ns) + COPY_NS + (uint64_t)(bytes / t->link_bytes_per_ns);
        rkvi_ring_issued(&c->ring, &g, t->link_ns);
    }
}

static void launch(trial *t, uint64_t number, uint32_t *item)
{
    rkvi_step_capture *c = &t->h->capture;
    const rkvi_ring *r = &c->ring;
    copies(t, number);
    for (; *item < r->n_list && r->items[*item].launch == number; ++*item)
        if (r->items[*item].in_mark > t->compute_ns)
            t->compute_ns = r->items[*item].in_mark;
    c->launch_marks[number % t->h->launch_room] = t->compute_ns;
    c->launched = number;
    copies(t, 0);
}

/* The capture's ring is laid out with at least n_ahead items behind the list. */
static uint64_t step_with(rkv_cache *h, uint32_t n_ahead)
{
    rkvi_step_capture *c = &h->capture;
    rkvi_ring *r = &c->ring;
    const uint32_t n_items = r->n_items;
    const rkvi_copy_group ahead = {.n_items = n_ahead};
    trial t = {.h = h, .link_bytes_per_ns = (double)h->cfg.link_bytes_per_s * 1e-9};
    const uint64_t before_ns = before_first_ns(h);
    uint32_t item = 0;
    for (uint32_t i = 0; i < n_items; i++)
        r->items[i].in_mark = 0;
    r->n_items = r->n_list + n_ahead;
    rkvi_ring_issued(r, &ahead, 1);
    c->launched = h->plan.sites[0].number0 - 1;
    copies(&t, 0);
    t.compute_ns = before_ns;
    for (uint32_t i = 0; i < h->cfg.n_sites; i++) {
        for (uint32_t g = 0; g < h->plan.sites[i].n_launches; g++)
            launch(&t, h->plan.sites[i].number0 + g, &item);
        t.compute_ns += rkvi_capture_gap_ns(h, i);
    }
    t.compute_ns -= before_ns;
    copies(&t, UINT64_MAX);
    r->n_items = n_items;
    return t.compute_ns > t.link_ns ? t.compute_ns : t.link_ns;
}

/* The middle one of those with which the step is shortest, since hints are not exact. */
uint32_t rkvi_capture_choose_ahead(rkv_cache *h)
{
    const rkvi_ring *r = &h->capture.ring;
    const uint32_t most = r->n_items - r->n_list, n = most < TRIES ? most : TRIES;
    uint64_t ns[TRIES + 1], least = UINT64_MAX;
    uint32_t first = UINT32_MAX, last = 0;
    for (uint32_t i = 0; i <= n; i++) {
        ns[i] = step_with(h, n ? (uint32_t)((uint64_t)most * i / n) : 0);
        least = ns[i] < least ? ns[i] : least;
    }
    for (uint32_t i = 0; i <= n; i++)
        if (ns[i] - least <= least / ALIKE) { /* the shortest at least, whatever the hints */
            first = first == UINT32_MAX ? i : first;
            last = i;
        }
    return n ? (uint32_t)((uint64_t)most * (first + last) / 2 / n) : 0;
}
