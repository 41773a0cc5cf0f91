/* SPDX-License-Identifier: MIT
 *
 * rkvk_mask.cuh: which cells a row sees.  The device's side of rkvi_visible()
 * and rkvi_span_visible() of ops.h.
 */
#ifndef RKVK_MASK_CUH
#define RKVK_MASK_CUH

#include "ops_cuda.h"

/* Positions [lo, hi). */
typedef struct rkvk_reach {
    int64_t lo, hi;
} rkvk_reach;

static __device__ __forceinline__ rkvk_reach rkvk_row_reach(const rkvi_row &row, const rkvi_site_mask &mask)
{
    int64_t a = 0;
    if (mask.kind == RKV_MASK_SLIDING && row.pos >= mask.width)
        a = row.pos - mask.width + 1;
    if (mask.kind == RKV_MASK_CHUNKED)
        a = row.pos - row.pos % mask.width;
    const rkvk_reach r = {a > row.from ? a : row.from, row.pos + 1 < row.to ? row.pos + 1 : row.to};
    return r;
}

/* Cells [c0, c1) of a tile; none where c0 >= c1. */
typedef struct rkvk_cells {
    uint32_t c0, c1;
} rkvk_cells;

static __device__ __forceinline__ rkvk_cells rkvk_span_cells(int64_t pos, uint32_t first, uint32_t count, rkvk_reach r)
{
    const int64_t end = pos + count;
    const int64_t a = r.lo > pos ? r.lo : pos, b = r.hi < end ? r.hi : end;
    rkvk_cells c = {first, first};
    if (a < b) {
        c.c0 = first + (uint32_t)(a - pos);
        c.c1 = first + (uint32_t)(b - pos);
    }
    return c;
}

#endif
