/* cells_convert.h: K or V of one cell and KV head between a tile-layer and the
 * forms of rollkv/cells.h.  Pure. */
#ifndef RKVI_CELLS_CONVERT_H
#define RKVI_CELLS_CONVERT_H

#include "ops_rows.h"
#include "rollkv/cells.h"

/* K or V of cells outside: row r is the r-th cell. */
typedef struct rkvi_outer {
    uint32_t form; /* RKV_CELLS_ */
    uint32_t n_heads;
    rkvi_tensor t; /* TENSOR: whole; BLOCKS: data and type; STORED: data */
} rkvi_outer;

/* Bytes of a cell's heads where they lie dense. */
uint64_t rkvi_outer_row_bytes(const rkvi_outer *o, const rkvi_plane *plane);
/* The same cells lying dense at `data`: a tensor as (heads, n, dim). */
rkvi_outer rkvi_outer_dense(const rkvi_outer *o, const rkvi_plane *plane, uint64_t n, void *data);

void rkvi_cells_in(const rkvi_plane *plane, uint32_t cell, const rkvi_outer *o, uint64_t row,
                   uint32_t head);
void rkvi_cells_out(const rkvi_plane *plane, uint32_t cell, const rkvi_outer *o, uint64_t row,
                    uint32_t head);

#endif
