/* ops_vec_attend.h: decode and prefill in vectors, for one instruction set.
 *
 * A column is one query head of one row.  A chunk of columns shares each K and
 * V row, which is turned into f32 in registers, or, for many columns, once, in
 * blocks that stay in the L1 cache (ops_vec_source.h).  While a block of rows is
 * computed the next one is asked for, piece by piece (vec_ask):
 *
 *   K rows x q           4 cells x some columns in registers -> scores
 *   softmax of a leaf    a column at a time: maximum, exp, sum
 *   p x V rows           some columns x a slice of D in registers -> o
 *
 * Why a column's bits depend on itself alone: a score is one chain over D and
 * one tree over lanes, wherever the cell stands in its block; maximum and sum
 * run over vectors counted from a cell of the tile that is a multiple of 16,
 * unseen cells selected to -inf and 0; each element of o is one chain over the
 * column's own cells in order.  Cells that a column does not see enter no
 * product with its o: see pv_cells.
 */
#ifndef RKVI_OPS_VEC_ATTEND_H
#define RKVI_OPS_VEC_ATTEND_H

#include "ops_vec_int.h"
#include "ops_vec_merge.h"

#define POOL_FLOATS 98304u  /* trees of a chunk: 384 KiB */
#define MOST_DIRECT (2 * MOST_TOGETHER) /* columns that read f16 as it lies; of quantised rows, half as many */

/* A cut of a plane for the chunk: as it lies, or in the block. */
static vec_source chunk_source(vec_chunk *w, const vec_cut *cut, uint32_t pitch)
{
    const rkvi_plane *p = cut->p;
    const bool quantised = rkvi_type_is_quantised(p->type);
    const bool direct = RKVI_LANES == 16 && w->n <= (quantised ? MOST_TOGETHER : MOST_DIRECT) && p->dim == pitch;
    if (quantised)
        vec_scales((const uint16_t *)(const void *)(p->scales + (uint64_t)cut->t * p->scale_cell_bytes),
                   cut->n * (p->dim / RKVI_BLOCK), w->scales);
#if RKVI_LANES == 16
    if (direct && p->type == RKV_TYPE_FP8_E4M3) {
        source_f16(p->quants + (uint64_t)cut->t * p->cell_bytes, (size_t)cut->n * p->dim, (uint16_t *)(void *)w->block);
        return (vec_source){(const uint8_t *)w->block, p->dim * sizeof(uint16_t), w->scales, 0, RKV_TYPE_F16};
    }
#endif
    if (direct)
        return source_plane(p, cut->t, w->scales);
    vec_cells(p, cut->t, cut->n, w->scales, w->block);
    return source_block(w->block, pitch);
}

static void chunk_scores(vec_chunk *w, const rkvi_plane *k, uint32_t t0, uint32_t t1, const vec_cut *follow)
{
#if RKVI_VNNI
    if (rkvi_type_is_quantised(k->type)) {
        int_scores(w, k, t1, follow);
        return;
    }
#endif
    const uint32_t step = block_cells(w->dk_pad), nh = together(w->n), groups = (w->n + nh - 1) / nh;
    for (uint32_t t = t0; t < t1; t += step) {
        const vec_cut cut = {k, t, min_u32(step, t1 - t)}, next = cut_after(k, t, cut.n, t1, follow);
        const uint32_t tiles = (cut.n + 3) / 4;
        vec_product x = {.ask = ask_ahead(&next, tiles * groups), .cells = cut.n, .pitch = w->dk_pad};
        x.rows = chunk_source(w, &cut, w->dk_pad);
        for (uint32_t c = 0; c < w->n; c += nh) {
            x.q = w->q + (size_t)c * w->dk_pad;
            x.score = w->score + c * SCORE_PITCH + (t - w->cell0);
            qk_cells(min_u32(nh, w->n - c), &x);
            x.ask.at += x.ask.step * tiles;
        }
    }
}

/* The maximum where no score is above -inf: NaN if there is one, so that a NaN
 * in q shows in its row's output. */
static float empty_max(const float *score, uint32_t s0, uint32_t s1)
{
    for (uint32_t i = s0; i < s1; i++)
        if (score[i] != score[i])
            return score[i];
    return -INFINITY;
}

/* Scores [s0, s1) of a column become exp(score - m). */
static void column_softmax(const rkvi_attend_args *a, float k_factor, float *score, uint32_t s0, uint32_t s1,
                           vec_column *col)
{
    const uint32_t first = s0 / RKVI_LANES * RKVI_LANES;
    const vf scale = v_set(a->scale * k_factor), cap = v_set(a->softcap);
    vf top = v_set(-INFINITY), sum = v_set(0);
    for (uint32_t i = first; i < s1; i += RKVI_LANES) {
        vf x = v_load(score + i) * scale;
        if (a->softcap != 0)
            x = cap * v_tanh(x / cap);
        x += v_set(0); /* no -0: m is one value */
        if (i < s0 || i + RKVI_LANES > s1)
            x = v_select(v_range(i, s0, s1), x, v_set(-INFINITY));
        v_store(score + i, x);
        top = v_max(x, top); /* a NaN leaves it as it is */
    }
    col->m = v_max_lane(top);
    if (col->m == -INFINITY)
        col->m = empty_max(score, s0, s1);
    if (col->m == -INFINITY)
        return;
    for (uint32_t i = first; i < s1; i += RKVI_LANES) {
        const vf p = v_exp(v_load(score + i) - v_set(col->m));
        v_store(score + i, p);
        sum += p;
    }
    col->l = v_sum(sum);
}

/* What one column sees of the cells [from, to), a part of the rows from cell t on. */
static void pv_alone(const vec_chunk *w, const vec_product *x, uint32_t c, uint32_t t, uint32_t from, uint32_t to)
{
    const uint32_t a = max_u32(from, w->col[c].t0), b = min_u32(to, w->col[c].t1);
    if (a >= b)
        return;
    vec_product y = {.rows = source_at(x->rows, a - t), .cells = b - a, .pitch = x->pitch, .ask.at = x->ask.at};
    y.col = &w->col[c];
    y.score = (float *)(uintptr_t)w->score + c * SCORE_PITCH + (a - w->cell0);
    pv_columns(1, &y);
}

/* nh columns over the cells [t, end): together over the cells that all of them
 * see, alone before and after, so that 0 x NaN never happens. */
static void pv_cells(vec_chunk *w, const vec_product *x, uint32_t c, uint32_t nh, uint32_t t, uint32_t end)
{
    uint32_t a = t, b = end;
    for (uint32_t h = c; h < c + nh; h++) {
        a = max_u32(a, w->col[h].t0);
        b = min_u32(b, w->col[h].t1);
    }
    if (a >= b)
        a = b = end;
    for (uint32_t h = c; h < c + nh; h++)
        pv_alone(w, x, h, t, t, a);
    if (a < b) {
        vec_product y = {.rows = source_at(x->rows, a - t), .cells = b - a, .pitch = x->pitch, .ask = x->ask};
        y.col = &w->col[c];
        y.score = w->score + c * SCORE_PITCH + (a - w->cell0);
        pv_columns(nh, &y);
    }
    for (uint32_t h = c; h < c + nh; h++)
        pv_alone(w, x, h, t, b, end);
}

static void chunk_values(vec_chunk *w, const rkvi_plane *v, uint32_t t0, uint32_t t1, const vec_cut *follow)
{
    const uint32_t step = block_cells(w->dv_pad), nh = together(w->n), groups = (w->n + nh - 1) / nh;
    const uint32_t slices = pv_slices(w->dv_pad);
    for (uint32_t t = t0; t < t1; t += step) {
        const vec_cut cut = {v, t, min_u32(step, t1 - t)}, next = cut_after(v, t, cut.n, t1, follow);
        const uint32_t pieces = cut.n * slices;
        vec_product x = {.ask = ask_ahead(&next, pieces * groups), .cells = cut.n, .pitch = w->dv_pad};
        x.rows = chunk_source(w, &cut, w->dv_pad);
        for (uint32_t c = 0; c < w->n; c += nh) {
            pv_cells(w, &x, c, min_u32(nh, w->n - c), t, t + cut.n);
            x.ask.at += x.ask.step * pieces;
        }
    }
}

static void column_times(const vec_chunk *w, const vec_column *col, float factor)
{
    for (uint32_t i = 0; i < w->dv_pad && col->m != -INFINITY; i += RKVI_LANES)
        v_store(col->o + i, v_load(col->o + i) * v_set(factor));
}

/* The first rows of K that the leaf after this one wants, if the item has one. */
static vec_cut cut_of_next(const vec_chunk *w, const rkvi_job *j, uint64_t leaf, rkvi_plane *k, rkvi_plane *v)
{
    if (leaf + 1 >= j->item->leaf1 || !rkvi_job_leaf(j, leaf + 1, k, v))
        return (vec_cut){0};
    const rkvi_span *s = &j->a->spans[j->entry->span0 + leaf + 1];
    return (vec_cut){k, s->first, min_u32(s->count, block_cells(w->dk_pad))};
}

/* Partials of a leaf for the chunk's columns, whose o is set: col[].m, l, o. */
static void chunk_leaf(vec_chunk *w, const rkvi_job *j, uint64_t leaf)
{
    rkvi_plane k, v, next_k, next_v;
    const bool here = rkvi_job_leaf(j, leaf, &k, &v);
    uint32_t t0 = UINT32_MAX, t1 = 0;
    for (uint32_t c = 0; c < w->n; c++) {
        vec_column *col = &w->col[c];
        col->m = -INFINITY;
        if (here && col->t0 < col->t1) {
            t0 = min_u32(t0, col->t0);
            t1 = max_u32(t1, col->t1);
        }
    }
    if (t0 >= t1)
        return;
    w->cell0 = t0 / 16 * 16;
    const vec_cut values = {&v, t0, min_u32(t1 - t0, block_cells(w->dv_pad))};
    chunk_scores(w, &k, t0, t1, &values);
    for (uint32_t c = 0; c < w->n; c++) {
        vec_column *col = &w->col[c];
        if (col->t0 < col->t1)
            column_softmax(j->a, vec_factor(&k), w->score + c * SCORE_PITCH, col->t0 - w->cell0,
                           col->t1 - w->cell0, col);
        if (col->m == -INFINITY)
            col->t0 = col->t1 = 0; /* scores of -inf alone: as if it saw nothing */
        else
            memset(col->o, 0, w->dv_pad * sizeof *col->o);
    }
    const vec_cut follow = cut_of_next(w, j, leaf, &next_k, &next_v);
    chunk_values(w, &v, t0, t1, &follow);
    if (v.type == RKV_TYPE_FP8_E4M3)
        for (uint32_t c = 0; c < w->n; c++)
            column_times(w, &w->col[c], vec_factor(&v));
}

/* Columns [first, first + n) of the item: their q. */
static void chunk_begin(vec_chunk *w, const rkvi_job *j, uint64_t first, uint32_t n)
{
    const rkvi_attend_args *a = j->a;
    const rkvi_tensor q = rkvi_item_q(a, j->item);
    w->n = n;
    w->dk_pad = vec_pad(a->geom.dk);
    w->dv_pad = vec_pad(a->geom.dv);
    for (uint32_t c = 0; c < n; c++) {
        const uint32_t row = (uint32_t)((first + c) / j->group);
        const uint32_t head = j->head0 + (uint32_t)((first + c) % j->group);
        vec_tensor(&q, rkvi_item_row(a->row_map, j->entry, j->item, row), head, a->geom.dk,
                   w->q + (size_t)c * w->dk_pad);
    }
#if RKVI_VNNI
    if (rkvi_type_is_quantised(a->geom.type_k))
        int_begin(w, a->geom.type_k);
#endif
}

/* The cells of a leaf that each column sees. */
static void chunk_cells(vec_chunk *w, const rkvi_job *j, uint64_t first, uint64_t leaf)
{
    for (uint32_t c = 0; c < w->n; c++) {
        rkvi_job_cells(j, leaf, (uint32_t)((first + c) / j->group), &w->col[c].t0, &w->col[c].t1);
    }
}

static inline rkvi_partial column_partial(const rkvi_job *j, uint64_t column)
{
    return rkvi_partial_at(j->a->partials, j->item->slot + column / j->group, j->a->q_heads,
                           j->a->geom.dv, j->head0 + (uint32_t)(column % j->group));
}

/* The tree's depth over the item's leaves, one more for the leaf at work. */
static uint32_t item_depth(const rkvi_item *item)
{
    const uint64_t x = item->leaf1 > item->leaf0 ? item->leaf0 ^ (item->leaf1 - 1) : 0;
    return x ? 66u - (uint32_t)__builtin_clzll(x) : 2u;
}

static void decode_chunk(vec_chunk *w, const rkvi_job *j, uint64_t first, float *pool)
{
    const uint32_t dv = j->a->geom.dv, depth = item_depth(j->item);
    vec_tree tree[COLUMNS];
    for (uint32_t c = 0; c < w->n; c++) {
        tree[c].n = 0;
        tree[c].dv = dv;
        tree[c].pitch = w->dv_pad;
        tree[c].room = pool + (size_t)c * depth * w->dv_pad;
    }
    for (uint64_t leaf = j->item->leaf0; leaf < j->item->leaf1; leaf++) {
        chunk_cells(w, j, first, leaf);
        for (uint32_t c = 0; c < w->n; c++) {
            tree_before(&tree[c], leaf);
            w->col[c].o = tree_room(&tree[c], tree[c].n);
        }
        chunk_leaf(w, j, leaf);
        for (uint32_t c = 0; c < w->n; c++) {
            const vec_column *col = &w->col[c];
            if (col->m != -INFINITY)
                tree_push(&tree[c], leaf, (vec_node){.o = col->o, .m = col->m, .l = col->l});
        }
    }
    for (uint32_t c = 0; c < w->n; c++) {
        vec_node root;
        if (tree_root(&tree[c], &root))
            vec_put(column_partial(j, first + c), root, dv);
        else
            rkvi_partial_clear(column_partial(j, first + c), dv);
    }
}

static void vec_op_decode(const void *args, uint64_t index)
{
    const rkvi_job j = rkvi_job_make(args, index);
    const uint64_t all = (uint64_t)j.item->n_rows * j.group;
    const uint64_t column_floats = (uint64_t)item_depth(j.item) * vec_pad(j.a->geom.dv);
    const uint64_t most = POOL_FLOATS / column_floats < COLUMNS ? POOL_FLOATS / column_floats
                                                                : COLUMNS;
    const uint64_t parts = rkvi_div_up(all, most), n = parts ? rkvi_div_up(all, parts) : 0;
    _Alignas(64) float pool[POOL_FLOATS];
    vec_chunk w;
    for (uint64_t first = 0; first < all; first += n) {
        chunk_begin(&w, &j, first, (uint32_t)(all - first < n ? all - first : n));
        decode_chunk(&w, &j, first, pool);
    }
}

/* States of the chunk's columns go on through a leaf. */
static void prefill_chunk(vec_chunk *w, const rkvi_job *j, uint64_t first, uint64_t leaf,
                          float *pool)
{
    const uint32_t dv = j->a->geom.dv;
    chunk_cells(w, j, first, leaf);
    for (uint32_t c = 0; c < w->n; c++)
        w->col[c].o = pool + (size_t)c * w->dv_pad;
    chunk_leaf(w, j, leaf);
    for (uint32_t c = 0; c < w->n; c++) {
        const vec_column *col = &w->col[c];
        if (col->m == -INFINITY)
            continue;
        const rkvi_partial p = column_partial(j, first + c);
        vec_node node = {.o = col->o, .m = col->m, .l = col->l};
        if (*p.m != -INFINITY)
            node = vec_merge((vec_node){.o = p.o, .m = *p.m, .l = *p.l}, node, p.o, dv);
        vec_put(p, node, dv);
    }
}

static void prefill_outputs(const rkvi_job *j, uint64_t n_columns)
{
    for (uint64_t c = 0; c < n_columns; c++) {
        const rkvi_partial p = column_partial(j, c);
        const vec_node root = {.o = p.o, .m = *p.m, .l = *p.l};
        merge_out(&j->a->merge, rkvi_item_row(j->a->row_map, j->entry, j->item, (uint32_t)(c / j->group)),
                  j->head0 + (uint32_t)(c % j->group), *p.m == -INFINITY ? NULL : &root);
    }
}

static void vec_op_prefill(const void *args, uint64_t index)
{
    const rkvi_job j = rkvi_job_make(args, index);
    const uint64_t all = (uint64_t)j.item->n_rows * j.group;
    const uint64_t parts = rkvi_div_up(all, COLUMNS), n = parts ? rkvi_div_up(all, parts) : 0;
    _Alignas(64) float pool[COLUMNS * RKVI_HEAD_DIM_MAX];
    vec_chunk w;
    if (j.item->flags & RKVI_ITEM_FIRST)
        for (uint64_t c = 0; c < all; c++)
            rkvi_partial_clear(column_partial(&j, c), j.a->geom.dv);
    for (uint64_t leaf = j.item->leaf0; leaf < j.item->leaf1; leaf++)
        for (uint64_t first = 0; first < all; first += n) {
            chunk_begin(&w, &j, first, (uint32_t)(all - first < n ? all - first : n));
            prefill_chunk(&w, &j, first, leaf, pool);
        }
    if (j.item->flags & RKVI_ITEM_LAST)
        prefill_outputs(&j, all);
}

#endif
