/* cache_park.h: sequences that give their device places back.
 *
 *            park (copies out, or none where the host copy is good)
 *   [ active ] ----------------------------------------------> [ parked ]
 *        ^      fetch, or begin of a step with the sequence        |
 *        +--------------------------------------------------------+
 *
 * All tile-layers of a parked sequence are in the tail, but those that a
 * sequence which is not parked holds as well, and those of KV layers without a
 * tail.  They enter it at the call, not at the second begin after: nobody reads
 * them before a begin that brings the sequence back, and then the wait is for
 * this copy-out alone.  Their places are free at once; the next copy or store
 * into one waits for the copy-out by the place's marks. */
#ifndef RKVI_CACHE_PARK_H
#define RKVI_CACHE_PARK_H

#include "cache.h"

/* Plans LEAVE moves in moves[], with their host places.  RKV_E_HOST_LIMIT,
 * RKV_E_HOST_MEMORY: nothing changed. */
rkv_status rkvi_cache_park(rkvi_cache *c, uint32_t sequence, bool *out_waited);
/* All moves have left (rkvi_cache_left): the tile-layers enter the tail now. */
void rkvi_cache_enter_now(rkvi_cache *c);
/* The same, for a sequence that was parked. */
void rkvi_cache_parked(rkvi_cache *c, uint32_t sequence);

/* One such move; the tile-layer is on the device or leaving. */
rkv_status rkvi_cache_leave(rkvi_cache *c, uint32_t tile, uint32_t layer, bool *out_waited);

/* Plans BRING_BACK moves of the last tile, where cells will be appended to it.
 * RKV_E_DEVICE_LIMIT, RKV_E_HOST_MEMORY: nothing changed. */
rkv_status rkvi_cache_fetch(rkvi_cache *c, uint32_t sequence);
/* All copies in are enqueued, the last of them with this mark. */
void rkvi_cache_fetched(rkvi_cache *c, uint32_t sequence, uint64_t in_mark);

/* Takes the moves of either call back. */
void rkvi_cache_unmove(rkvi_cache *c);

#endif
