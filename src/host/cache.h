/* cache.h: owns sequences, tiles and memory.  Plans, then applies; returns
 * moves and enqueues nothing.
 *
 * begin works in this order, so that a failure can be taken back whole:
 *   1. what left two begins ago enters the tail (places are freed)
 *   2. tiles, places and host room for all that the step needs are taken
 *   3. the sequences grow
 * Each thing taken is a move; undo walks them backwards.
 *
 * A tile may lie in several sequences.  The next cell of a sequence is stored
 * into its last tile unless a segment of another one covers that cell: then the
 * tile is copied first, and the copy takes its place in this sequence alone.
 * So of those that share a partly filled tile, one goes on in it.  A tile-layer
 * is demoted when one sequence of the batch is beyond it by the lag, but not
 * while another sequence goes on in it.
 *
 * Marks (numbers on timelines, see timeline.h) follow each place, because a
 * place is handed on while work on it is still in flight:
 *   device place   out: last copy-out that reads it;  in: last copy into it;
 *                  used: last compute that read or wrote it
 *   host place     in: last copy-in that reads it (copy-outs share a stream)
 */
#ifndef RKVI_CACHE_H
#define RKVI_CACHE_H

#include "arena.h"
#include "batch.h"
#include "config.h"
#include "plan_share.h"
#include "pool.h"
#include "ring.h"
#include "seq.h"
#include "tile.h"

typedef struct rkvi_place_marks {
    uint64_t out, in, used;
} rkvi_place_marks;

typedef struct rkvi_layer_state {
    rkvi_pool device, host;
    rkvi_place_marks *device_marks;
    uint64_t *host_in;
    uint64_t n_window;  /* WINDOW, and those that join it at this step's end */
    uint64_t n_tail;
    uint64_t n_freed;   /* tile-layers that no later row can see */
    uint64_t store_out, store_in; /* marks that this step's store waits for */
    uint32_t n_transit;           /* tile-layers of this step in the room of transit */
} rkvi_layer_state;

typedef enum {
    RKVI_MOVE_OPEN,      /* a new tile-layer has room on the device */
    RKVI_MOVE_REOPEN,    /* was leaving: stays */
    RKVI_MOVE_BRING_BACK,/* copy in before the step's store */
    RKVI_MOVE_COPY,      /* a shared tile-layer's copy: from the device at start, or from the tail */
    RKVI_MOVE_KEEP,      /* joins the window at the step's end */
    RKVI_MOVE_LEAVE,     /* copied out: within the step, or at its end */
    RKVI_MOVE_PROMOTE    /* copied from its slot after launch `launch` */
} rkvi_move_kind;

typedef struct rkvi_move {
    rkvi_move_kind kind;
    uint32_t tile, layer;
    bool in_step;    /* LEAVE: after the last site of the KV layer */
    bool has_copy;   /* LEAVE: the host copy is still good */
    bool done;
    uint32_t item;   /* PROMOTE: of the ring's list */
    uint32_t place;  /* BRING_BACK, COPY, PROMOTE: the device place */
    uint32_t from;   /* COPY: the tile that is copied */
    uint64_t enter_step; /* REOPEN: of its leaving, for undo */
} rkvi_move;

/* A sequence's last tile was replaced by a copy. */
typedef struct rkvi_tile_copy {
    uint32_t sequence, from, to;
} rkvi_tile_copy;

/* Where a sequence will end, and what it will have more of, for counting ahead
 * of begin. */
typedef struct rkvi_cache_end_of {
    int64_t pos;
    uint32_t fill;
    uint32_t tile; /* partly filled and shared; else UINT32_MAX */
    bool goes_on;  /* in that tile */
    bool was_parked; /* before the begin that has it in its batch */
    uint64_t tiles, segments;
    uint64_t leaves[RKVI_LEAF_CLASSES_MAX];
} rkvi_cache_end_of;

/* Room for tiles that only pass through a prefill step. */
typedef struct rkvi_transit {
    uint64_t addr;
    uint64_t out_mark; /* last copy-out that reads it */
} rkvi_transit;

typedef struct rkvi_leaving {
    uint32_t tile, layer;
    uint64_t serial;
} rkvi_leaving;

typedef struct rkvi_cache {
    const rkvi_config *cfg;
    rkvi_tiles tiles;
    rkvi_seq *seqs;
    rkvi_layer_state *layers;
    rkvi_arena *arena;
    uint64_t step;           /* begins so far; the open step's number */
    uint64_t layout;         /* rises with whatever changes in sequences and addresses, but for cells
                              * that a step appends */
    uint64_t compute_mark;   /* newest mark of the compute timeline */
    rkvi_transit *transit;   /* 2 halves of the ring of transit, then one per shared KV layer */
    uint32_t *transit_of;    /* [layer] which, this step */
    rkvi_move *moves;
    uint32_t n_moves, moves_room;
    uint32_t next_promote;   /* moves[] from here on: promotions to come, in order of launches */
    rkvi_leaving *leaving;
    uint32_t n_leaving, leaving_room;
    uint32_t *new_tiles;     /* of the open step, in order of entries */
    uint32_t n_new_tiles;
    uint32_t *joined;        /* [entry of the open step] tile that its first new cell joins, or UINT32_MAX */
    rkvi_tile_copy *copies;  /* of the open step */
    uint32_t n_copies;
    bool decide_all;         /* sequences beside the batch may hold tiles that are due */
    uint64_t n_segments;     /* of all sequences */
    uint32_t *passed;        /* [sequence * n_layers + layer]: segments seen to be out of sight */
    bool *parked;            /* [sequence] */
    uint64_t fetched_in;     /* newest copy in of a tile fetched ahead of its step (timeline in) */
    bool look_again;         /* a shared tile lost a sequence that may have been the last to see it */
    rkvi_cache_end_of *check;/* [sequence], rkvi_cache_check_* */
    uint64_t check_tiles;
    rkvi_share share;        /* scratch of the check */
    uint64_t *cover;         /* scratch: a bit for each cell of each tile */
} rkvi_cache;

/* Device memory: the room for transit, and one block per KV layer; or (NULL) the
 * caller adds extents to the pools of device places. */
typedef struct rkvi_cache_memory {
    void **layers;
    void *transit;
} rkvi_cache_memory;

rkv_status rkvi_cache_init(rkvi_cache *c, const rkvi_config *cfg, const rkvi_cache_memory *mem, rkvi_arena *arena);
void rkvi_cache_free(rkvi_cache *c);

/* Steps 1 to 3 above, for a resolved batch.  Errors: RKV_E_CAPACITY,
 * RKV_E_DEVICE_LIMIT, RKV_E_HOST_LIMIT, RKV_E_HOST_MEMORY: nothing changed. */
rkv_status rkvi_cache_begin(rkvi_cache *c, const rkvi_batch *batch, bool *out_waited);
/* Tail tile-layers of the ring's list that take free window room, lowest
 * serial first; adds moves, in the list's order, from next_promote on. */
rkv_status rkvi_cache_promote(rkvi_cache *c, const rkvi_ring_item *items, uint32_t n);
/* Takes back what begin did, but for moves that are done: their copies are in
 * flight, and good. */
void rkvi_cache_undo(rkvi_cache *c, const rkvi_batch *batch);
/* A begin that failed: its sequences are parked as before it. */
void rkvi_cache_repark(rkvi_cache *c, const rkvi_batch *batch);
/* The step ended: moves that were done or wait for nothing are final. */
void rkvi_cache_end(rkvi_cache *c);
/* A LEAVE move's copy-out is enqueued (out_mark 0: none was needed). */
void rkvi_cache_left(rkvi_cache *c, rkvi_move *m, uint64_t out_mark);

/* Cells are about to be stored into a tile that held some before the step: its
 * host copy is given up, its generation rises.  Returns the copy-out mark that
 * the store waits for. */
uint64_t rkvi_cache_drop_host_copy(rkvi_cache *c, uint32_t tile, uint32_t layer);

/* Sequence calls, between steps.  A removal that reaches the end can't fail; nor
 * another, but where memory for a segment was refused before, and is again. */
rkv_status rkvi_cache_sequence_remove(rkvi_cache *c, uint32_t sequence, int64_t from, int64_t to);
/* dst goes on with cells [from, to) of src, by reference: RKV_E_HOST_MEMORY,
 * RKV_E_CAPACITY (stretches of shifted cells). */
rkv_status rkvi_cache_sequence_share(rkvi_cache *c, uint32_t dst, uint32_t src, int64_t from, int64_t to);

/* Cells stored in tiles, and those that segments cover: known, but where tiles
 * are shared, whose segments are gone through. */
typedef struct rkvi_cell_count {
    uint64_t stored, covered, shared_tiles;
} rkvi_cell_count;
void rkvi_cache_count_cells(rkvi_cache *c, rkvi_cell_count *out);

/* The cells of the sequence's token tree that stay, moved or not; can't fail. */
void rkvi_cache_sequence_accept(rkvi_cache *c, uint32_t sequence, const uint32_t *cells, uint32_t n);
/* cache_shift.c */
rkv_status rkvi_cache_sequence_can_shift(const rkvi_cache *c, uint32_t sequence, int64_t from, int64_t to,
                                         int64_t delta);
rkv_status rkvi_cache_sequence_shift(rkvi_cache *c, uint32_t sequence, int64_t from, int64_t to, int64_t delta);

void rkvi_cache_check_reset(rkvi_cache *c);
rkv_status rkvi_cache_check_add(rkvi_cache *c, const rkvi_batch *batch);

#endif
