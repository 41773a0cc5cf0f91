/* step_cells_types.h: what import and export share. */
#ifndef RKVI_STEP_CELLS_TYPES_H
#define RKVI_STEP_CELLS_TYPES_H

#include "step_cells.h"
#include "step_fill.h"

/* Cells [first, first + n) of a tile-layer are rows [row, row + n) outside. */
typedef struct rkvi_cells_part {
    const rkvi_geom *geom;
    uint32_t tile; /* record */
    uint32_t first, n;
    uint64_t row;
    bool is_export;
    bool is_first; /* import: nothing was stored in the tile-layer yet, and all of it will be */
} rkvi_cells_part;

struct rkvi_import {
    uint32_t sequence;
    uint64_t n_cells;
    uint64_t base;   /* cells that the first of `tiles` held before */
    uint32_t *tiles; /* fresh; the first one replaces the sequence's last one where base > 0 */
    uint32_t n_tiles;
    rkvi_seq result;   /* what the sequence becomes */
    uint32_t replaced; /* the tile that the first one replaces; UINT32_MAX: none */
    uint64_t *done;    /* [layer] cells so far */
    rkvi_mover mover;
    bool is_broken;
};

/* Staging memory for the largest tile-layer and its cells outside, dense. */
uint64_t rkvi_cells_room(const rkv_cache *h);
uint64_t rkvi_cells_side_bytes(const rkvi_geom *g, const rkvi_outer *o, uint64_t n, bool is_v);
/* Copies the part between the caller's device memory and `dense`; enqueued. */
rkv_status rkvi_cells_cross(rkvi_mover *m, const rkvi_cells_part *part, const rkvi_outer *o,
                            const rkvi_outer *dense, bool is_v);
/* The part's K or V between a tile-layer's bytes and rows [row, row + n) of o. */
void rkvi_cells_convert(const rkvi_cells_part *part, uint8_t *tile, const rkvi_outer *o, uint64_t row,
                        bool is_v);

#endif
