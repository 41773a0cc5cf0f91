/* ring_slots.h: what the files of ring share.
 *
 *   ring         slots, matching with what was copied ahead, lists
 *   ring_laps    lists that lie in the ring in the same way in every step
 *   ring_copies  which copies may be enqueued, and what they join
 */
#ifndef RKVI_RING_SLOTS_H
#define RKVI_RING_SLOTS_H

#include "ring.h"

#define RKVI_NO_ITEM UINT32_MAX

/* The i-th oldest. */
static inline rkvi_ring_slot *rkvi_ring_slot_at(const rkvi_ring *r, uint32_t i)
{
    const uint32_t k = r->first_slot + i;
    return &r->slots[k < r->slots_room ? k : k - r->slots_room];
}

/* Is it the same tile-layer with the same cells, for the same site? */
static inline bool rkvi_ring_same(const rkvi_ring_item *a, const rkvi_ring_item *b)
{
    return a->site == b->site && a->layer == b->layer && a->serial == b->serial &&
           a->generation == b->generation;
}

/* Where the next slot goes. */
static inline uint64_t rkvi_ring_place_of(const rkvi_ring *r, uint64_t bytes)
{
    const uint64_t offset = r->head % r->bytes;
    const bool lap_ends = r->lap_bytes && offset >= r->lap_bytes;
    return offset + bytes > r->bytes || lap_ends ? r->head + (r->bytes - offset) : r->head;
}

/* The list is as long as that, and nothing of it was copied yet. */
static inline void rkvi_ring_begin_list(rkvi_ring *r, uint32_t n)
{
    r->n_list = r->n_items = n;
    r->next = r->counted_from = r->counted_to = 0;
    r->counted_bytes = 0;
    r->predict_cut = false;
}

/* Lays out one slot at the head, giving up the oldest slots that it covers.
 * False, and nothing changed, when one of them is read by `limit` or later. */
bool rkvi_ring_lay_out(rkvi_ring *r, uint64_t bytes, uint64_t limit, uint64_t *out_at);
/* The newest slot, at `at`, is the item's. */
void rkvi_ring_settle(rkvi_ring *r, uint32_t item, uint64_t at);
/* Those of the list's n items that have no slot with their cells yet. */
bool rkvi_ring_lay_out_list(rkvi_ring *r, uint32_t n);

/* rkvi_ring_plan and _predict where `laps` is set. */
void rkvi_laps_plan(rkvi_ring *r, uint32_t n);
void rkvi_laps_predict(rkvi_ring *r, uint32_t n, uint64_t last_launch);

#endif
