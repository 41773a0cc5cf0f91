/* pool.h: places of one KV layer, on the device or in host memory.
 *
 * A place is the room of one tile-layer.  Places come in extents: runs of
 * adjacent places.  The lowest free index is taken first, so that successive
 * tile-layers lie adjacent.  No device calls, no allocation after init.
 *
 * Extent e has the indices from e * extent_places on; where it is short or was
 * dropped, those without memory are never free.  */
#ifndef RKVI_POOL_H
#define RKVI_POOL_H

#include "diag.h"

#include <stdbool.h>

#define RKVI_NO_PLACE UINT32_MAX

typedef struct rkvi_pool {
    uint64_t place_bytes;
    uint64_t extent_places; /* per extent; one that completes max_places may be short */
    uint32_t n_places;      /* with memory behind them */
    uint32_t max_places;    /* how many there may be */
    uint32_t n_extents;     /* room in the tables */
    uint32_t n_free;
    uint32_t first_word;    /* no free place in words below it */
    uint64_t *free_bits;    /* 1: free */
    unsigned char **extents;
    uint32_t *counts;       /* [extent] places; 0: none there */
} rkvi_pool;

/* The tables have room for `most` places: set_max may raise max_places to it
 * later, whatever extents are dropped and added in between. */
rkv_status rkvi_pool_init(rkvi_pool *p, uint64_t place_bytes, uint32_t max_places, uint64_t extent_places,
                          uint32_t most);
void rkvi_pool_free(rkvi_pool *p);
void rkvi_pool_set_max(rkvi_pool *p, uint32_t max_places);
uint64_t rkvi_pool_indices(const rkvi_pool *p); /* all indices lie below it */
/* Adds an extent of extent_places places (fewer at the end of max_places). */
void rkvi_pool_add(rkvi_pool *p, void *extent);
uint64_t rkvi_pool_next_extent_bytes(const rkvi_pool *p); /* 0: complete */
uint32_t rkvi_pool_take(rkvi_pool *p);                    /* RKVI_NO_PLACE: none free */
void rkvi_pool_give(rkvi_pool *p, uint32_t place);
/* False: it is not free. */
bool rkvi_pool_take_at(rkvi_pool *p, uint32_t place);
/* All its places are taken, by the caller: they are no more. */
void rkvi_pool_drop(rkvi_pool *p, uint32_t extent);
/* Extents are blocks of their own, also where they happen to be adjacent.  True
 * of RKVI_NO_PLACE and itself. */
bool rkvi_pool_same_extent(const rkvi_pool *p, uint32_t a, uint32_t b);
void *rkvi_pool_at(const rkvi_pool *p, uint32_t place);

#endif
