/* ring.h: the device staging buffer: which tile-layer lies where, and which
 * copy may be enqueued when.  Pure bookkeeping: no device calls.
 *
 * The ring is a byte buffer of R bytes filled round.  Offsets are counted on
 * (`at`, never wrapping); the slot is at `at % R`; a slot never spans the wrap.
 *
 *        front (oldest)                                  head
 *   at ->  [a][b][c][d] . . . . . . . . . [m][n][o][p]    |
 *          \___ read, or to be read by launches ___/      next slot goes here
 *
 * A list has an item per (site, tile-layer) in order of use.  An item knows
 * the launch that reads it and, once laid out, `dep`: the newest launch that
 * reads any slot which its copy covers; that launch is always an earlier one
 * than its own, so copies issued in list order can't wait in a circle.
 *
 * Slot:   free -> laid out -> copied (in_mark) -> read (launch) -> free
 *                    |            |
 *                    +-- dropped -+  a predicted item that the next list lacks
 */
#ifndef RKVI_RING_H
#define RKVI_RING_H

#include "diag.h"
#include "marks.h"

#include <stdbool.h>

typedef struct rkvi_ring_item {
    uint32_t site, layer, tile;
    uint32_t generation;
    uint64_t serial;
    uint64_t bytes;
    uint64_t host_addr;
    const uint64_t *out_mark; /* of the tile-layer: its copy-out comes first */
    uint64_t launch;          /* number of the launch that reads it */
    /* filled by the ring */
    uint64_t at;
    uint64_t dep;
    uint64_t in_mark;         /* timeline in; 0: not copied yet */
} rkvi_ring_item;

typedef struct rkvi_ring_slot {
    uint64_t at, bytes;
    uint64_t launch; /* last reader; 0: none (dropped) */
    uint32_t item;   /* of the current list; UINT32_MAX: an earlier one's */
} rkvi_ring_slot;

typedef struct rkvi_ring {
    uint64_t bytes, copy_bytes;
    bool join;
    bool laps;              /* every list begins at offset 0 and fills the ring in equal laps: offsets
                             * follow from the list alone, so that graphs can hold them */
    uint64_t largest_bytes; /* of an item, where laps is set */
    uint64_t lap_bytes;     /* of the list laid out last; 0: as far as the ring goes */
    uint64_t head;
    uint64_t freed_launch;  /* newest launch whose slots were given up */
    rkvi_ring_slot *slots;  /* circular, oldest first */
    uint32_t slots_room, first_slot, n_slots;

    rkvi_ring_item *items;  /* the list, then the predicted one */
    uint32_t items_room;
    uint32_t n_list, n_items;
    uint32_t next;          /* first item not copied */
    bool predict_cut;       /* the predicted list goes on beyond the room */
    uint32_t counted_from, counted_to; /* items of ahead_bytes, as asked last */
    uint64_t counted_bytes;
    rkvi_ring_item *ahead;  /* scratch: what the last prediction copied */
    uint32_t *hash;         /* scratch, for matching */
    uint32_t hash_mask;

    uint64_t predicted_right, predicted_wrong, discarded_bytes;
} rkvi_ring;

/* max_items: most items of a step's list. */
rkv_status rkvi_ring_init(rkvi_ring *r, uint64_t bytes, uint64_t copy_bytes, uint64_t smallest_bytes,
                          uint32_t max_items);
void rkvi_ring_free(rkvi_ring *r);

/* Most bytes that one launch may read from a ring; 0: one tile-layer.  Half the
 * ring, so that the other half fills meanwhile; the wrap may waste up to one slot,
 * which must fit as well.  Of equal laps half the shortest one: a launch's slots
 * don't cover each other. */
static inline uint64_t rkvi_ring_launch_bytes(uint64_t ring_bytes, uint64_t largest_bytes, bool laps)
{
    if (laps)
        return ring_bytes / 5 >= largest_bytes ? (ring_bytes - 3 * largest_bytes) / 2 : 0;
    return ring_bytes / 2 >= largest_bytes ? ring_bytes / 2 : 0;
}

/* Where the caller writes the items of a list, or of a predicted one, that it
 * gives to plan or predict next (room for max_items). */
rkvi_ring_item *rkvi_ring_new_items(rkvi_ring *r);
/* The n items written there become the list: matched with what was copied
 * ahead, the rest laid out.  Launch numbers never fall along it. */
void rkvi_ring_plan(rkvi_ring *r, uint32_t n);
/* n further items, written there, are laid out as far as the slots they need are read by launches <= last_launch.
 * Those that an earlier prediction has copied already are left out. */
void rkvi_ring_predict(rkvi_ring *r, uint32_t n, uint64_t last_launch);
/* The same for a list that was planned before and is so once more, with launches
 * `more` further on: the n items that were planned, or forgotten by a reset; the
 * list that is. */
void rkvi_ring_plan_again(rkvi_ring *r, uint32_t n, uint64_t more);
void rkvi_ring_predict_again(rkvi_ring *r, uint64_t more, uint64_t last_launch);
/* Forgets the predicted items that are not copied yet. */
void rkvi_ring_unpredict(rkvi_ring *r);
/* The step was taken back after `launched` launches: forgets its list and all
 * that was copied ahead.  Launch numbers go on from launched + 1. */
void rkvi_ring_reset(rkvi_ring *r, uint64_t launched);

/* The list as if nothing had been copied ahead but its first n_ahead items, and
 * those of the next time behind it: what a graph of the step copies.  Of these
 * at most n_ahead, and only in slots that launches up to last_launch read. */
void rkvi_ring_cycle(rkvi_ring *r, uint32_t n, uint32_t n_ahead, uint64_t last_launch);

/* One copy: rows pieces of width_bytes, pitch_bytes apart in host memory,
 * adjacent in the ring. */
typedef struct rkvi_copy_group {
    uint32_t first, n_items;
    uint64_t offset; /* in the ring */
    uint64_t host_addr;
    uint64_t width_bytes, rows, pitch_bytes;
    uint64_t dep;      /* launch to wait for; 0: none */
    uint64_t out_mark; /* copy-out to wait for; 0: none */
} rkvi_copy_group;

/* The next copy that may be enqueued when launches up to `launched` are:
 * whole groups only, unless launch `needed` can't run without it. */
bool rkvi_ring_next_group(const rkvi_ring *r, uint64_t launched, uint64_t needed, rkvi_copy_group *out);
void rkvi_ring_issued(rkvi_ring *r, const rkvi_copy_group *group, uint64_t in_mark);

/* Bytes copied whose launch is after `launched`, which never falls along a list. */
uint64_t rkvi_ring_ahead_bytes(rkvi_ring *r, uint64_t launched);

#endif
