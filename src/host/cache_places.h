/* cache_places.h: what the files of cache share: taking and giving back places
 * and tiles, and whether there is capacity. */
#ifndef RKVI_CACHE_PLACES_H
#define RKVI_CACHE_PLACES_H

#include "cache.h"

static inline rkvi_tile_layer *rkvi_cache_tile_layer(const rkvi_cache *c, uint32_t tile, uint32_t layer)
{
    return rkvi_tile_layer_at(&c->tiles, tile, layer);
}

static inline bool rkvi_cache_window_has_room(const rkvi_cache *c, uint32_t layer)
{
    return c->layers[layer].n_window < c->cfg->layers[layer].window_tiles;
}

static inline void rkvi_cache_replace_last(rkvi_seq *seq, uint32_t tile)
{
    seq->tiles[seq->n_tiles - 1] = tile;
}

/* Places are free at once; their marks order who takes them next. */
void rkvi_cache_give_device(rkvi_cache *c, uint32_t layer, rkvi_tile_layer *l);
void rkvi_cache_give_host(rkvi_cache *c, uint32_t layer, rkvi_tile_layer *l);
/* One that is leaving: it has no device place from now on. */
void rkvi_cache_enter_tail(rkvi_cache *c, uint32_t layer, rkvi_tile_layer *l);
rkv_status rkvi_cache_take_device(rkvi_cache *c, uint32_t layer, uint32_t *out_place);
void rkvi_cache_set_device(rkvi_cache *c, uint32_t layer, rkvi_tile_layer *l, uint32_t place);
/* May add an extent; *waited is set where that had to wait for a slab. */
rkv_status rkvi_cache_take_host(rkvi_cache *c, uint32_t layer, rkvi_tile_layer *l, bool *waited);
/* moves[] and leaving[] get one more, and room for so many more. */
rkv_status rkvi_cache_add_move(rkvi_cache *c, const rkvi_move *m);
rkv_status rkvi_cache_leaving_room(rkvi_cache *c, uint32_t more);
/* A move by which its tile-layer gets a device place (m->place): OPEN, or
 * BRING_BACK out of the tail.  Fails whole. */
rkv_status rkvi_cache_move_in(rkvi_cache *c, rkvi_move *m, rkvi_tile_event event);
/* One reference less; the last one gives all places of the tile back. */
void rkvi_cache_release_tile(rkvi_cache *c, uint32_t tile);

/* Must the sequence's last tile be copied before its next cell is stored? */
bool rkvi_cache_needs_copy(rkvi_cache *c, uint32_t sequence);

/* cache_check.c: counts what a batch takes before anything changes; lists get
 * their room.  RKV_E_CAPACITY when tiles or runs of positions are too many. */
rkv_status rkvi_cache_reserve(rkvi_cache *c, const rkvi_batch *b);

#endif
