/* cache_unseen.h: what no later row can see under a KV layer's masks.
 *
 *   positions    0 ... freed | cells that a row at the end sees |      | end
 *                            |<-- width of the widest mask ---->| lag  |
 *
 * A tile-layer is freed when a step ends and every sequence that holds the
 * tile has gone on so far that neither its next row, nor one after a roll-back
 * of draft_rows cells, sees any of its cells there.  The last tile of a
 * sequence stays, as it may be appended to.  The record of the tile stays, with
 * its places in KV layers that see further. */
#ifndef RKVI_CACHE_UNSEEN_H
#define RKVI_CACHE_UNSEEN_H

#include "cache.h"

/* After a step's end, for the sequences of its batch. */
void rkvi_cache_free_unseen(rkvi_cache *c, const rkvi_batch *batch);
/* Will the step that is being begun (its cells appended) free this one of the
 * sequence's tiles in the KV layer when it ends? */
bool rkvi_cache_leaves_sight(const rkvi_cache *c, const rkvi_seq *s, uint32_t tile_index, uint32_t layer);

/* A sequence that is put together (a load, an import): what lies below is not
 * held in the KV layer, but in the sequence's last tile.  INT64_MIN: all is.
 * floor_at: where it ends at a position, the lag taken off. */
int64_t rkvi_cache_floor_at(const rkvi_config *cfg, uint32_t layer, int64_t end_pos);
int64_t rkvi_cache_floor(const rkvi_config *cfg, const rkvi_seq *s, uint32_t layer);

/* The sequence's segments are others than before. */
void rkvi_cache_look_from_start(rkvi_cache *c, uint32_t sequence);

/* RKV_E_SEQUENCE with the lowest position that is possible, where rows of the
 * batch would see cells that were freed. */
rkv_status rkvi_cache_batch_sees(const rkvi_cache *c, const rkvi_batch *batch);
/* The same, where cells from `end_pos` on are to be cut off: rows that go on
 * from there must find what they see. */
rkv_status rkvi_cache_can_end(const rkvi_cache *c, uint32_t sequence, int64_t end_pos);
/* The same, where dst is to go on with the cells [from, to) of src. */
rkv_status rkvi_cache_can_share(const rkvi_cache *c, uint32_t dst, uint32_t src, int64_t from, int64_t to);
/* The same, where positions [from, to) are to be shifted by delta. */
rkv_status rkvi_cache_can_move(const rkvi_cache *c, uint32_t sequence, int64_t from, int64_t to, int64_t delta);

#endif
