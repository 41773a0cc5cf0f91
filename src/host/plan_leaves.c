/* plan_leaves.c: which leaves a stem's rows see, and with which launch each comes. */
#include "plan_site.h"

/* First leaf in [a, z) whose end is after pos (positions rise along spans). */
static uint64_t first_leaf_after(const rkvi_span *s, uint64_t a, uint64_t z, int64_t pos)
{
    while (a < z) {
        const uint64_t mid = a + (z - a) / 2;
        if (s[mid].pos + s[mid].count > pos)
            z = mid;
        else
            a = mid + 1;
    }
    return a;
}

uint64_t rkvi_plan_leaf_after(const rkvi_span *spans, uint64_t n, int64_t pos)
{
    return first_leaf_after(spans, 0, n, pos);
}

void rkvi_leaves_seen(const rkvi_span *s, uint64_t n, int64_t lo, int64_t hi, uint64_t *out_a, uint64_t *out_z)
{
    *out_a = first_leaf_after(s, 0, n, lo);
    *out_z = lo < hi ? first_leaf_after(s, 0, n, hi - 1) : *out_a;
    if (lo < hi && *out_z < n && s[*out_z].pos < hi)
        ++*out_z;
}

void rkvi_leaves_set_launches(rkvi_site_plan *sp, uint32_t e, uint64_t a, uint64_t z, bool in_order, uint32_t *last)
{
    const uint64_t first = sp->span0[e];
    uint32_t *out = sp->p->leaf_launch + first;
    for (uint64_t i = a; i < z; i++) {
        out[i] = sp->tile_launch[sp->spans[first + i].tile];
        if (out[i] == RKVI_TILE_DEVICE)
            out[i] = in_order ? *last : 0;
        else if (out[i] != RKVI_TILE_UNSEEN)
            *last = out[i];
    }
}

void rkvi_stem_set_launches(rkvi_site_plan *sp, uint32_t stem, bool in_order)
{
    rkvi_stem *s = rkvi_stem_at(sp, stem);
    s->last_launch = s->parent == RKVI_NONE ? 0 : rkvi_stem_at(sp, s->parent)->last_launch;
    const uint64_t a = rkvi_stem_leaf0(sp, stem), z = rkvi_stem_leaf1(sp, stem);
    rkvi_leaves_set_launches(sp, s->entry, a, z, in_order, &s->last_launch);
}

void rkvi_stem_seen(const rkvi_site_plan *sp, uint32_t stem, uint64_t *out_a, uint64_t *out_z)
{
    const rkvi_stem *s = rkvi_stem_at(sp, stem);
    const rkvi_site_mask mask = sp->v->cfg->sites[sp->site - sp->p->sites].mask;
    const uint32_t *map = sp->w->share.row_map + s->row0;
    int64_t lo = INT64_MAX, hi = INT64_MIN;
    for (uint32_t r = 0; r < s->n_rows; r++) {
        int64_t a, z;
        rkvi_visible(&sp->v->batch->rows[map[r]], mask, &a, &z);
        if (a >= z)
            continue; /* sees nothing, wherever its range lies */
        lo = a < lo ? a : lo;
        hi = z > hi ? z : hi;
    }
    const uint64_t first = rkvi_stem_leaf0(sp, stem);
    rkvi_leaves_seen(sp->spans + sp->span0[s->entry] + first, rkvi_stem_n_leaves(sp, stem), lo, hi, out_a, out_z);
    *out_a += first;
    *out_z += first;
}
