/* cache_grow.h: what a step's begin takes and moves for one sequence. */
#ifndef RKVI_CACHE_GROW_H
#define RKVI_CACHE_GROW_H

#include "cache_places.h"

/* Entry e's new cells get tiles, and what lies on the device and beyond the lag
 * leaves or stays.  After a failure undo takes back what has moved. */
rkv_status rkvi_cache_grow(rkvi_cache *c, const rkvi_batch *b, uint32_t e, bool *waited);
/* Tiles that another sequence went on in, until now, are due in those that are
 * not in the batch. */
rkv_status rkvi_cache_decide_others(rkvi_cache *c, bool *waited);

#endif
