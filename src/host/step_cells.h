/* step_cells.h: import and export of cells, between steps. */
#ifndef RKVI_STEP_CELLS_H
#define RKVI_STEP_CELLS_H

#include "cells_convert.h"
#include "step.h"

/* Checked by api: k and v are there, with strides filled in; device memory that
 * is read or written by 2D copies has a row_stride of dim at least. */
typedef struct rkvi_cells_call {
    uint32_t layer;
    uint64_t first, n;
    bool is_device;
    rkvi_outer k, v;
    void *stream; /* of device memory */
} rkvi_cells_call;

/* Cells of a sequence at positions [from, to), positions where out is not NULL. */
uint64_t rkvi_export_count(const rkv_cache *h, uint32_t sequence, const rkv_pos_range *range);
void rkvi_export_positions(const rkv_cache *h, uint32_t sequence, const rkv_pos_range *range,
                           int64_t *out);
rkv_status rkvi_export_cells(rkv_cache *h, uint32_t sequence, const rkv_pos_range *range,
                             const rkvi_cells_call *c);

/* One import at a time: it is open from begin to end or abort. */
bool rkvi_import_is_open(const rkv_cache *h);
rkv_status rkvi_import_begin(rkv_cache *h, uint32_t sequence, uint64_t n, const int64_t *positions);
rkv_status rkvi_import_cells(rkv_cache *h, const rkvi_cells_call *c);
rkv_status rkvi_import_end(rkv_cache *h);
/* Also with none open, and when the handle is destroyed. */
void rkvi_import_abort(rkv_cache *h);

#endif
