/* cache_residency.h: the window of a live cache, made smaller between steps.
 *
 *   demote     window tile-layers beyond the new budget, highest serial first
 *              (promotion takes the lowest first: the window keeps those)
 *   relocate   what lies in the extents of device memory that are given back
 *              goes to free places of the others
 *
 * A larger window needs nothing from here: its room is filled by promotion. */
#ifndef RKVI_CACHE_RESIDENCY_H
#define RKVI_CACHE_RESIDENCY_H

#include "cache.h"

/* Plans LEAVE moves in moves[]; undone by rkvi_cache_unmove, carried out like a
 * park.  RKV_E_HOST_LIMIT, RKV_E_HOST_MEMORY: nothing changed. */
rkv_status rkvi_cache_demote(rkvi_cache *c, uint32_t layer, uint64_t window_tiles, bool *out_waited);

typedef struct rkvi_relocation {
    uint32_t tile, from, to; /* places */
} rkvi_relocation;

typedef struct rkvi_relocations {
    rkvi_relocation *list;
    uint32_t n;
    bool *drops; /* [extent] that is given back: all its places are taken */
} rkvi_relocations;

/* Chooses whole extents to give back so that at least `places` stay, those with
 * the fewest tile-layers first.  RKV_E_HOST_MEMORY: nothing changed. */
rkv_status rkvi_cache_relocate(rkvi_cache *c, uint32_t layer, uint64_t places, rkvi_relocations *out);
/* The copies are done: tile-layers lie at their new places. */
void rkvi_cache_relocated(rkvi_cache *c, uint32_t layer, const rkvi_relocations *r);
void rkvi_cache_unrelocate(rkvi_cache *c, uint32_t layer, const rkvi_relocations *r);
void rkvi_relocations_free(rkvi_relocations *r);

#endif
