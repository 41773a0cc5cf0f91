/* pool.h: places of one KV layer, on the device or in host memory.
 *
 * A place is the room of one tile-layer.  Places come in extents: runs of
 * adjacent places.  The lowest free index is taken first, so that successive
 * tile-layers lie adjacent.  No device calls, no allocation after init. */
#ifndef RKVI_POOL_H
#define RKVI_POOL_H

#include "diag.h"

#include <stdbool.h>

#define RKVI_NO_PLACE UINT32_MAX

typedef struct rkvi_pool {
    uint64_t place_bytes;
    uint64_t extent_places; /* per extent; the last one may be short */
    uint32_t n_places;      /* with memory behind them */
    uint32_t max_places;
    uint32_t n_free;
    uint32_t first_word;    /* no free place in words below it */
    uint64_t *free_bits;    /* 1: free */
    unsigned char **extents;
} rkvi_pool;

rkv_status rkvi_pool_init(rkvi_pool *p, uint64_t place_bytes, uint32_t max_places, uint64_t extent_places);
void rkvi_pool_free(rkvi_pool *p);
/* Adds an extent of extent_places places (fewer at the end of max_places). */
void rkvi_pool_add(rkvi_pool *p, void *extent);
uint64_t rkvi_pool_next_extent_bytes(const rkvi_pool *p); /* 0: complete */
uint32_t rkvi_pool_take(rkvi_pool *p);                    /* RKVI_NO_PLACE: none free */
void rkvi_pool_give(rkvi_pool *p, uint32_t place);
void *rkvi_pool_at(const rkvi_pool *p, uint32_t place);

#endif
