/* SPDX-License-Identifier: MIT
 *
 * ring_laps.c: lists for graphs, which hold the addresses of slots.  Every list
 * begins at offset 0 and fills the ring in laps of equal length, so that offsets
 * follow from the list alone.
 */
#include "ring_slots.h"

#include <assert.h>
#include <string.h>

/* Laps as long as each other, each with room for the item that ends it.  In a
 * ring of a few slots a lap is as long as it gets. */
static uint64_t lap_of(const rkvi_ring *r, uint32_t n)
{
    const rkvi_ring_item *p = r->items + r->items_room;
    const uint64_t most = r->bytes - r->largest_bytes;
    uint64_t total = 0;
    for (uint32_t i = 0; i < n; i++)
        total += p[i].bytes;
    if (total <= r->bytes || r->bytes < 5 * r->largest_bytes)
        return 0;
    const uint64_t n_laps = (total + most - 1) / most;
    return (total + n_laps - 1) / n_laps;
}

/* Where the list begins: with what was copied ahead of it, or the next lap. */
static uint64_t lap_begin(const rkvi_ring *r)
{
    if (r->n_items > r->n_list)
        return r->items[r->n_list].at;
    return r->head % r->bytes ? r->head + (r->bytes - r->head % r->bytes) : r->head;
}

/* Items copied ahead that are the new list's first ones, in the slots that they
 * have in it.  Moves head from the list's begin to their end. */
static uint32_t match_head(rkvi_ring *r, uint32_t n)
{
    const rkvi_ring_item *p = rkvi_ring_new_items(r), *ahead = r->items + r->n_list;
    const uint32_t n_ahead = r->n_items - r->n_list;
    uint32_t i = 0;
    r->head = lap_begin(r);
    for (; i < n && i < n_ahead && rkvi_ring_same(&p[i], &ahead[i]) && rkvi_ring_place_of(r, p[i].bytes) == ahead[i].at;
         i++)
        r->head = ahead[i].at + p[i].bytes;
    return i;
}

static void take_ahead(rkvi_ring *r, uint32_t n)
{
    rkvi_ring_item *p = rkvi_ring_new_items(r);
    const rkvi_ring_item *ahead = r->items + r->n_list;
    const uint32_t n_ahead = r->n_items - r->n_list, k = match_head(r, n);
    for (uint32_t i = 0; i < k; i++) {
        p[i].at = ahead[i].at;
        p[i].in_mark = ahead[i].in_mark;
    }
    for (uint32_t i = 0; i < r->n_slots; i++) {
        rkvi_ring_slot *s = rkvi_ring_slot_at(r, i);
        const bool is_ahead = s->item != RKVI_NO_ITEM && s->item >= r->n_list;
        const uint32_t item = is_ahead ? s->item - r->n_list : RKVI_NO_ITEM;
        s->item = item < k ? item : RKVI_NO_ITEM;
        if (is_ahead)
            s->launch = item < k ? p[item].launch : 0;
        if (is_ahead && item >= k)
            r->discarded_bytes += s->bytes;
    }
    while (r->n_slots && rkvi_ring_slot_at(r, r->n_slots - 1)->at >= r->head)
        r->n_slots--;
    r->predicted_right += k;
    r->predicted_wrong += n_ahead - k;
}

void rkvi_laps_plan(rkvi_ring *r, uint32_t n)
{
    rkvi_ring_item *p = rkvi_ring_new_items(r);
    for (uint32_t i = 0; i < n; i++)
        p[i].in_mark = p[i].dep = 0;
    r->lap_bytes = lap_of(r, n);
    take_ahead(r, n);
    memcpy(r->items, p, n * sizeof *r->items);
    rkvi_ring_begin_list(r, n);
    const bool ok = rkvi_ring_lay_out_list(r, n);
    assert(ok);
    (void)ok;
}

/* The list's items from r->n_items - r->n_list on, behind those before them. */
static void add_ahead_laps(rkvi_ring *r, uint32_t n, uint64_t last_launch)
{
    const rkvi_ring_item *p = rkvi_ring_new_items(r);
    for (uint32_t i = r->n_items - r->n_list; i < n; i++) {
        uint64_t at;
        if (r->n_items == r->items_room || !rkvi_ring_lay_out(r, p[i].bytes, last_launch + 1, &at)) {
            r->predict_cut = true;
            return;
        }
        r->items[r->n_items] = p[i];
        rkvi_ring_settle(r, r->n_items++, at);
    }
}

void rkvi_laps_predict(rkvi_ring *r, uint32_t n, uint64_t last_launch)
{
    const uint64_t head = r->head, lap = r->lap_bytes;
    r->lap_bytes = lap_of(r, n);
    if (match_head(r, n) == r->n_items - r->n_list) {
        add_ahead_laps(r, n, last_launch);
        return;
    }
    r->head = head; /* another list than before: the next plan sorts that out */
    r->lap_bytes = lap;
}

void rkvi_ring_cycle(rkvi_ring *r, uint32_t n, uint32_t n_ahead, uint64_t last_launch)
{
    rkvi_ring_item *p = rkvi_ring_new_items(r);
    const uint64_t end = n ? p[n - 1].launch : 0, behind = (end > last_launch ? end : last_launch) + 1;
    r->n_slots = r->first_slot = r->n_list = r->n_items = 0;
    r->head = r->freed_launch = 0;
    rkvi_laps_plan(r, n);
    for (uint32_t i = 0; i < n_ahead; i++)
        p[i].launch = behind;
    r->head = lap_begin(r);
    add_ahead_laps(r, n_ahead, last_launch);
    r->predict_cut = false;
}
