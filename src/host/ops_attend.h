/* ops_attend.h: what the reference and the ISA kernels of attention share:
 * finding a work item's leaves, cells and partials, and the order of merges.
 */
#ifndef RKVI_OPS_ATTEND_H
#define RKVI_OPS_ATTEND_H

#include "ops_rows.h"

#include <math.h>
#include <string.h>

/* Pending partials of a tree over 64-bit leaf numbers, one more to be merged. */
#define RKVI_TREE_DEPTH 66u

/* One (item, KV head). */
typedef struct rkvi_job {
    const rkvi_attend_args *a;
    const rkvi_item *item;
    const rkvi_entry *entry;
    uint32_t head;         /* KV head */
    uint32_t group, head0; /* its query heads: head0 .. head0 + group - 1 */
} rkvi_job;

static inline rkvi_job rkvi_job_make(const rkvi_attend_args *a, uint64_t index)
{
    const uint32_t n = a->geom.n_heads, head = (uint32_t)(index % n);
    const rkvi_item *item = &a->items[index / n];
    const uint32_t group = a->q_heads / n;
    return (rkvi_job){.a = a,
                      .item = item,
                      .entry = &a->entries[item->entry],
                      .head = head,
                      .group = group,
                      .head0 = head * group};
}

/* A leaf's planes; false when it has no tile here (no row sees it). */
static inline bool rkvi_job_leaf(const rkvi_job *j, uint64_t leaf, rkvi_plane *k, rkvi_plane *v)
{
    const rkvi_span *s = &j->a->spans[j->entry->span0 + leaf];
    const uint64_t base = j->a->bases[j->entry->base0 + s->tile];
    if (base == 0)
        return false;
    *k = rkvi_plane_k(&j->a->geom, base, j->head);
    *v = rkvi_plane_v(&j->a->geom, base, j->head);
    return true;
}

/* The cells of a leaf, numbered within the tile, that row `row` of the item sees:
 * [*t0, *t1), empty when *t0 >= *t1. */
static inline void rkvi_job_cells(const rkvi_job *j, uint64_t leaf, uint32_t row, uint32_t *t0,
                                  uint32_t *t1)
{
    const rkvi_span *s = &j->a->spans[j->entry->span0 + leaf];
    int64_t lo, hi;
    uint32_t c0, c1;
    rkvi_visible(&j->a->rows[rkvi_item_row(j->a->row_map, j->entry, j->item, row)], j->a->mask, &lo, &hi);
    rkvi_span_visible(s, lo, hi, &c0, &c1);
    if (c0 >= c1)
        c0 = c1 = 0;
    *t0 = s->first + c0;
    *t1 = s->first + c1;
}

/* A partial of one row and query head, wherever it lies. */
typedef struct rkvi_partial {
    float *o, *m, *l;
} rkvi_partial;

static inline rkvi_partial rkvi_partial_at(float *partials, uint64_t slot, uint32_t q_heads,
                                           uint32_t dv, uint32_t head)
{
    float *at = partials + slot * ((uint64_t)q_heads * (dv + 2));
    float *m = at + (uint64_t)q_heads * dv + head;
    return (rkvi_partial){.o = at + (uint64_t)head * dv, .m = m, .l = m + q_heads};
}

static inline void rkvi_partial_clear(rkvi_partial p, uint32_t dv)
{
    *p.m = -INFINITY;
    *p.l = 0;
    memset(p.o, 0, dv * sizeof *p.o);
}

/* The tree's order.  Nodes come in ascending order and are kept on a stack,
 * where the levels at which neighbours meet strictly fall.  Before `next` is
 * pushed, the top two (first leaves a < b) are merged as long as they meet
 * below the level at which b's side meets `next`.  At the end all are merged
 * from the top down.  Empty nodes are left out: merging with them selects the
 * other one. */
static inline bool rkvi_tree_merges(uint64_t a, uint64_t b, uint64_t next)
{
    const uint64_t x = a ^ b, y = b ^ next;
    return x < y && x < (x ^ y); /* x's highest bit lies below y's */
}

#endif
