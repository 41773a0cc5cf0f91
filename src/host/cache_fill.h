/* cache_fill.h: tiles that are filled from outside (a saved state, an import)
 * before any sequence has them.
 *
 *   take ----> the caller writes the cells of each place ----> give to a sequence
 *     |                                                             (can't fail)
 *     +------> drop: as if nothing had been taken
 *
 * Nothing in flight may touch a place that is taken here: the caller has waited
 * for all of the library's work before it writes. */
#ifndef RKVI_CACHE_FILL_H
#define RKVI_CACHE_FILL_H

#include "cache.h"

/* n fresh tiles, one reference each; a tile-layer with present[i * n_layers +
 * layer] (NULL: all; else it is one that no row sees any more) joins the window
 * while its KV layer's budget has room, else it gets a host place.  RKV_E_CAPACITY, RKV_E_HOST_LIMIT, RKV_E_HOST_MEMORY:
 * nothing was taken. */
rkv_status rkvi_cache_fill_take(rkvi_cache *c, uint32_t n, const uint8_t *present, uint32_t *out_tiles);
void rkvi_cache_fill_drop(rkvi_cache *c, uint32_t n, const uint32_t *tiles);

/* One reference more for each of these tiles, since `replace` releases those of
 * the sequence as it was. */
void rkvi_cache_fill_keep(rkvi_cache *c, uint32_t n, const uint32_t *tiles);

/* Would so many more tiles and segments fit, beside those that there are? */
rkv_status rkvi_cache_fill_fits(const rkvi_cache *c, uint64_t tiles, uint64_t segments);

/* The sequence becomes `with`, whose tiles[] are records, and whose lists are
 * taken over (it is empty then).  Each tile of `with` has one reference for each
 * time that a sequence names it.  What the sequence had is released. */
void rkvi_cache_fill_replace(rkvi_cache *c, uint32_t sequence, rkvi_seq *with);

#endif
