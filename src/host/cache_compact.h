/* cache_compact.h: a sequence's tiles with dead cells, rewritten dense.
 *
 *   tiles   [aa..aa..][..bbb...][shared  ][c.......][ccd.....]
 *           \____ run: 2 to 1 ___/          \__ run: 2 to 1 __/
 *   after   [aaaabbb ]           [shared  ][cccd    ]
 *
 * A run is of tiles that this sequence alone has, and that are held in the same
 * KV layers; it is rewritten where that saves a tile.  Cells keep their order, positions, turns and bytes. */
#ifndef RKVI_CACHE_COMPACT_H
#define RKVI_CACHE_COMPACT_H

#include "cache.h"

/* Cells [from_cell, + count) of a tile become cells [to_cell, + count) of new tile `to`. */
typedef struct rkvi_compact_piece {
    uint32_t from, to; /* record; index of a new tile */
    uint32_t from_cell, to_cell, count;
} rkvi_compact_piece;

typedef struct rkvi_compaction {
    rkvi_seq result;            /* new tiles: their index, until they are taken */
    bool *is_new;               /* [item of result.tiles] */
    rkvi_compact_piece *pieces; /* by rising `to` */
    uint32_t n_pieces, n_new;
    uint32_t *new_tiles;        /* records, once taken */
    uint8_t *present;           /* [new tile * n_layers + layer]: its cells are held */
    uint32_t *cells, *first;    /* [item of the sequence's tiles] how many it has, its first segment */
} rkvi_compaction;

/* Pure: what there is to do; n_new 0: nothing.  RKV_E_HOST_MEMORY. */
rkv_status rkvi_cache_compaction(const rkvi_cache *c, uint32_t sequence, rkvi_compaction *out);
/* Takes the new tiles: RKV_E_CAPACITY, RKV_E_HOST_LIMIT and so on; nothing changed. */
rkv_status rkvi_cache_compact_take(rkvi_cache *c, rkvi_compaction *k);
/* The cells are there: the sequence becomes `result`. */
void rkvi_cache_compacted(rkvi_cache *c, uint32_t sequence, rkvi_compaction *k);
void rkvi_compaction_free(rkvi_compaction *k);

#endif
