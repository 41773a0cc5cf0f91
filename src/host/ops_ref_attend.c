#include "ops_math.h"
#include "ops_ref.h"

#include <assert.h>

/* Bits of a row: each query head of each row is computed alone, over its own
 * visible cells, in order.  So nothing else that shares the item can matter. */

#define DIM RKVI_HEAD_DIM_MAX
#define LEAF_MAX 256u /* of rkvi_leaf_cells */

/* Sums of every eighth product, then pairs of those. */
static float dot(const float *a, const float *b, uint32_t dim)
{
    float s[8] = {0};
    for (uint32_t i = 0; i < dim; i += 8)
        for (uint32_t j = 0; j < 8; j++)
            s[j] += a[i + j] * b[i + j];
    return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}

static float score(float product, float scale, float softcap)
{
    const float s = product * scale;
    return softcap != 0 ? softcap * rkvi_tanhf(s / softcap) : s;
}

/* Partial of the cells [t0, t1) of a leaf; false when it is empty. */
static bool leaf_partial(const rkvi_job *j, uint64_t leaf, uint32_t row, const float *q,
                         rkvi_partial out)
{
    const uint32_t dv = j->a->geom.dv;
    rkvi_plane k, v;
    uint32_t t0, t1;
    rkvi_job_cells(j, leaf, row, &t0, &t1);
    if (t0 >= t1 || !rkvi_job_leaf(j, leaf, &k, &v))
        return false;
    assert(t1 - t0 <= LEAF_MAX);
    float s[LEAF_MAX], x[DIM], m = -INFINITY, l = 0;
    for (uint32_t t = t0; t < t1; t++) {
        rkvi_plane_get(&k, t, x);
        s[t - t0] = score(dot(q, x, k.dim), j->a->scale, j->a->softcap) + 0.0f; /* no -0: m is one value */
        m = s[t - t0] > m || s[t - t0] != s[t - t0] ? s[t - t0] : m; /* NaN stays */
    }
    if (m == -INFINITY)
        return false;
    memset(out.o, 0, dv * sizeof *out.o);
    for (uint32_t t = t0; t < t1; t++) {
        const float p = rkvi_expf(s[t - t0] - m);
        l += p;
        rkvi_plane_get(&v, t, x);
        for (uint32_t i = 0; i < dv; i++)
            out.o[i] += p * x[i];
    }
    *out.m = m;
    *out.l = l;
    return true;
}

static void decode_head(const rkvi_job *j, uint32_t row, const float *q, rkvi_partial out)
{
    rkvi_ref_tree t;
    t.n = 0;
    t.dv = j->a->geom.dv;
    for (uint64_t leaf = j->item->leaf0; leaf < j->item->leaf1; leaf++)
        if (leaf_partial(j, leaf, row, q, rkvi_ref_tree_next(&t, leaf)))
            t.n++;
    rkvi_ref_copy(out, rkvi_ref_tree_root(&t), t.dv);
}

static void prefill_head(const rkvi_job *j, uint32_t row, const float *q, rkvi_partial state)
{
    const uint32_t dv = j->a->geom.dv;
    float m, l, o[DIM];
    const rkvi_partial part = {.o = o, .m = &m, .l = &l};
    if (j->item->flags & RKVI_ITEM_FIRST)
        rkvi_partial_clear(state, dv);
    for (uint64_t leaf = j->item->leaf0; leaf < j->item->leaf1; leaf++) {
        if (!leaf_partial(j, leaf, row, q, part))
            continue;
        if (*state.m == -INFINITY)
            rkvi_ref_copy(state, part, dv);
        else
            rkvi_ref_merge_into(state, part, dv);
    }
}

typedef void (*head_fn)(const rkvi_job *j, uint32_t row, const float *q, rkvi_partial out);

static void attend(const rkvi_attend_args *a, uint64_t index, head_fn fn)
{
    const rkvi_job j = rkvi_job_make(a, index);
    const rkvi_tensor item_q = rkvi_item_q(a, j.item);
    float q[DIM];
    for (uint32_t r = 0; r < j.item->n_rows; r++) {
        for (uint32_t h = j.head0; h < j.head0 + j.group; h++) {
            rkvi_tensor_get(&item_q, rkvi_item_row(a->row_map, j.entry, j.item, r), h, a->geom.dk, q);
            fn(&j, r, q,
               rkvi_partial_at(a->partials, j.item->slot + r, a->q_heads, a->geom.dv, h));
        }
    }
}

void rkvi_ref_decode(const void *args, uint64_t index)
{
    attend(args, index, decode_head);
}

static void put_outputs(const rkvi_attend_args *a, const rkvi_job *j)
{
    for (uint32_t r = 0; r < j->item->n_rows; r++)
        for (uint32_t h = j->head0; h < j->head0 + j->group; h++)
            rkvi_ref_put_out(&a->merge, rkvi_item_row(a->row_map, j->entry, j->item, r), h,
                             rkvi_partial_at(a->partials, j->item->slot + r, a->q_heads, a->geom.dv, h));
}

void rkvi_ref_prefill(const void *args, uint64_t index)
{
    const rkvi_job j = rkvi_job_make(args, index);
    attend(args, index, prefill_head);
    if (j.item->flags & RKVI_ITEM_LAST)
        put_outputs(args, &j);
}

/* The new cells that a row of a token tree sees: their numbers; returns how many. */
static uint32_t tree_cells(const rkvi_tree_args *a, const rkvi_tree_item *it, uint32_t *out)
{
    int64_t lo, hi;
    uint32_t n = 0;
    rkvi_visible(&a->rows[it->row0 + it->row], a->mask, &lo, &hi);
    for (uint32_t j = 0; j < it->n_cells; j++) {
        const int64_t pos = a->rows[it->row0 + j].pos;
        if ((it->mask >> j & 1) && pos >= lo && pos < hi)
            out[n++] = j;
    }
    return n;
}

void rkvi_ref_tree_partial(const void *args, uint64_t index)
{
    const rkvi_tree_args *a = args;
    const rkvi_geom *g = &a->geom;
    const rkvi_tree_item *it = &a->items[index / a->q_heads];
    const uint32_t head = (uint32_t)(index % a->q_heads), kv_head = head / (a->q_heads / g->n_heads);
    const rkvi_partial out = rkvi_partial_at(a->partials, it->slot, a->q_heads, g->dv, head);
    uint32_t seen[RKVI_TREE_CELLS_MAX];
    const uint32_t n = tree_cells(a, it, seen);
    float s[RKVI_TREE_CELLS_MAX], q[DIM], x[DIM], m = -INFINITY;
    rkvi_tensor_get(&a->q, it->row0 + it->row, head, g->dk, q);
    for (uint32_t i = 0; i < n; i++) {
        const rkvi_new_cell *c = &a->cells[it->cell0 + seen[i]];
        const rkvi_plane k = rkvi_plane_k(g, a->bases[c->base], kv_head);
        rkvi_plane_get(&k, c->cell, x);
        s[i] = score(dot(q, x, g->dk), a->scale, a->softcap) + 0.0f;
        m = s[i] > m || s[i] != s[i] ? s[i] : m;
    }
    rkvi_partial_clear(out, g->dv);
    if (m == -INFINITY)
        return;
    *out.m = m;
    for (uint32_t i = 0; i < n; i++) {
        const rkvi_new_cell *c = &a->cells[it->cell0 + seen[i]];
        const rkvi_plane v = rkvi_plane_v(g, a->bases[c->base], kv_head);
        const float p = rkvi_expf(s[i] - m);
        *out.l += p;
        rkvi_plane_get(&v, c->cell, x);
        for (uint32_t d = 0; d < g->dv; d++)
            out.o[d] += p * x[d];
    }
}
