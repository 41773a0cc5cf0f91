/* tile.h: the tile table: serials, reference counts, and per KV layer where a
 * tile's cells lie.
 *
 * State of a tile-layer (owner: cache; the marks that guard each arrow are in
 * the comment beside it):
 *
 *            open                 keep                     release: from any
 *  ABSENT ---------> DEVICE ---------------> WINDOW        state to ABSENT
 *                    |  ^ ^                  |   ^
 *              leave |  | | reopen     leave |   | promote (reads a slot:
 *     (copy-out      v  | |                  v   |          its launch is done)
 *      enqueued)   LEAVING <-----------------+   |
 *                       | enter (2nd begin after; copy-out before copy-in)
 *                       v                        |
 *                     TAIL ----------------------+
 *                       | bring back (copy-in before store)
 *                       +-----> DEVICE
 *
 * free: from any state but ABSENT to FREED, when a step has ended and no later
 * row can see the tile in this KV layer; its places are given back, and only
 * release leads on.
 *
 * A tile-layer's generation rises when cells are stored into it after it had a
 * host copy; ring contents are matched by (KV layer, serial, generation). */
#ifndef RKVI_TILE_H
#define RKVI_TILE_H

#include "pool.h"

typedef enum { RKVI_ABSENT, RKVI_ON_DEVICE, RKVI_IN_WINDOW, RKVI_LEAVING, RKVI_IN_TAIL, RKVI_FREED } rkvi_tile_state;
typedef enum {
    RKVI_TILE_OPEN,
    RKVI_TILE_KEEP,
    RKVI_TILE_LEAVE,
    RKVI_TILE_ENTER,
    RKVI_TILE_REOPEN,
    RKVI_TILE_BRING_BACK,
    RKVI_TILE_PROMOTE,
    RKVI_TILE_FREE,
    RKVI_TILE_RELEASE,
    RKVI_TILE_EVENTS
} rkvi_tile_event;

typedef struct rkvi_tile_layer {
    uint64_t device_addr;   /* 0: none; a place, or transit room */
    uint64_t host_addr;     /* 0: none */
    uint64_t out_mark;      /* copy-out of the host copy (timeline out); RKVI_MARK_PENDING: planned */
    uint64_t enter_step;    /* LEAVING: the begin at which it enters the tail */
    uint32_t device_place;  /* RKVI_NO_PLACE: none, or in transit */
    uint32_t host_place;
    uint32_t generation;
    uint8_t state;          /* rkvi_tile_state */
    bool host_valid;        /* the host copy holds all cells stored (or will, at out_mark) */
    bool promoting;         /* TAIL: joins the window at the next begin */
    bool is_due;            /* a move of the open step decides where it goes */
} rkvi_tile_layer;

typedef struct rkvi_tile {
    uint64_t serial; /* never reused; 0: free record */
    uint32_t refs;   /* items of sequences' tiles[] */
    uint32_t next_free;
    uint16_t stored; /* cells [0, stored) were stored since it was opened */
    uint16_t end;    /* no segment covers cells from here on (an upper bound) */
    bool is_others;  /* cache's, in begin: a sequence other than the one that grows goes on in it */
} rkvi_tile;

typedef struct rkvi_tiles {
    rkvi_tile *tiles;
    rkvi_tile_layer *layers; /* [tile * n_layers + layer] */
    uint32_t n_layers, capacity, n_free, first_free;
    uint32_t n_shared; /* tiles with more than one reference */
    uint64_t n_stored; /* sum of `stored` */
    uint64_t last_serial;
} rkvi_tiles;

rkv_status rkvi_tiles_init(rkvi_tiles *t, uint32_t capacity, uint32_t n_layers);
void rkvi_tiles_free(rkvi_tiles *t);
/* A fresh tile with one reference, all its tile-layers ABSENT; UINT32_MAX: none free. */
uint32_t rkvi_tiles_take(rkvi_tiles *t);
/* One reference more. */
void rkvi_tiles_ref(rkvi_tiles *t, uint32_t tile);
/* One less; returns how many are left. */
uint32_t rkvi_tiles_unref(rkvi_tiles *t, uint32_t tile);
/* Cells [0, end) of the tile are stored. */
void rkvi_tiles_stored(rkvi_tiles *t, uint32_t tile, uint32_t end);
/* Gives the record back (its tile-layers were released by cache). */
void rkvi_tiles_give(rkvi_tiles *t, uint32_t tile);

static inline rkvi_tile_layer *rkvi_tile_layer_at(const rkvi_tiles *t, uint32_t tile, uint32_t layer)
{
    return &t->layers[(uint64_t)tile * t->n_layers + layer];
}

/* Are its cells anywhere?  Not those that no later row can see. */
static inline bool rkvi_tile_layer_is_held(const rkvi_tile_layer *l)
{
    return l->state != RKVI_ABSENT && l->state != RKVI_FREED;
}

/* The state machine as a table: false when the event is not legal in `from`. */
bool rkvi_tile_next(rkvi_tile_state from, rkvi_tile_event event, rkvi_tile_state *out_to);
/* Carries out a legal event (asserted). */
void rkvi_tile_apply(rkvi_tile_layer *l, rkvi_tile_event event);

#endif
