/* ops_vec_attend.h: decode and prefill in vectors, for one instruction set.
 *
 * A column is one query head of one row.  A chunk of columns shares each K and
 * V row, which is turned into f32 in registers, or, for many columns, once, in
 * blocks that stay in the L1 cache (ops_vec_source.h):
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

#include "ops_vec_merge.h"
#include "ops_vec_source.h"

#define COLUMNS 32u         /* of a chunk, at most */
#define BLOCK_FLOATS 4096u  /* of K or V: 16 KiB */
#define BLOCK_CELLS 64u     /* at most */
#define SCORE_PITCH 288u    /* a leaf of 256, aligned down by 15, up by 3 */
#define POOL_FLOATS 98304u  /* trees of a chunk: 384 KiB */

/* Columns in registers: 4 of them times 4 cells (or slices), inputs besides. */
#if RKVI_LANES == 16
#define MOST_TOGETHER 6u
#else
#define MOST_TOGETHER 2u
#endif
#define MOST_DIRECT (2 * MOST_TOGETHER) /* columns that read K and V as they lie */

typedef struct vec_column {
    uint32_t t0, t1; /* cells of the tile that it sees in this leaf */
    float m, l;      /* of the leaf; m = -inf: empty */
    float *o;
} vec_column;

typedef struct vec_chunk {
    uint32_t n, dk_pad, dv_pad;
    uint32_t cell0; /* tile cell of score 0 of a column */
    vec_column col[COLUMNS];
    _Alignas(64) float score[COLUMNS * SCORE_PITCH];
    _Alignas(64) float block[BLOCK_FLOATS];
    _Alignas(64) float q[COLUMNS * RKVI_HEAD_DIM_MAX];
} vec_chunk;

static inline uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Asks for cells [t, t + n) of a plane, so that memory works while those before
 * are computed; past the plane that is harmless. */
static void ask_ahead(const rkvi_plane *p, uint32_t t, uint32_t n)
{
    const uintptr_t next = (uintptr_t)p->quants + (uint64_t)t * p->cell_bytes;
    for (uint64_t b = 0; b < (uint64_t)n * p->cell_bytes; b += 64)
        __builtin_prefetch((const void *)(next + b));
}

static inline uint32_t block_cells(uint32_t pitch)
{
    return min_u32(BLOCK_FLOATS / pitch / 4 * 4, BLOCK_CELLS);
}

/* Scores of 4 cells for nh columns; of the cells behind `last` it is `last`
 * again, so that nothing behind it is read. */
RKVI_INLINE void qk_tile(const rkv_type type, const uint32_t nh, const float *q, const vec_source *k,
                         uint32_t last, uint32_t pitch, float *score)
{
    const uint8_t *row[4];
    vf acc[MOST_TOGETHER][4];
    RKVI_UNROLL for (uint32_t c = 0; c < 4; c++)
        row[c] = k->rows + min_u32(c, last) * k->pitch_bytes;
    RKVI_UNROLL for (uint32_t h = 0; h < nh; h++)
        RKVI_UNROLL for (uint32_t c = 0; c < 4; c++)
            acc[h][c] = v_set(0);
    for (uint32_t i = 0; i < pitch; i += RKVI_LANES) {
        vf x[4];
        RKVI_UNROLL for (uint32_t c = 0; c < 4; c++)
            x[c] = source_get(type, row[c], i);
        RKVI_UNROLL for (uint32_t h = 0; h < nh; h++) {
            const vf y = v_load(q + (size_t)h * pitch + i);
            RKVI_UNROLL for (uint32_t c = 0; c < 4; c++)
                acc[h][c] = v_fma(y, x[c], acc[h][c]);
        }
    }
    RKVI_UNROLL for (uint32_t h = 0; h < nh; h++)
        _mm_storeu_ps(score + h * SCORE_PITCH,
                      v_sum4(acc[h][0], acc[h][1], acc[h][2], acc[h][3]));
}

RKVI_INLINE void qk_of(const rkv_type type, const uint32_t nh, const float *q, const vec_source *k,
                       uint32_t pitch, uint32_t cells, float *score)
{
    for (uint32_t c = 0; c < cells; c += 4) {
        const vec_source at = source_at(*k, c);
        qk_tile(type, nh, q, &at, cells - c - 1, pitch, score + c);
    }
}

RKVI_INLINE void qk_type(const rkv_type type, uint32_t nh, const float *q, const vec_source *k,
                         uint32_t pitch, uint32_t cells, float *score)
{
    switch (nh) {
    case 1: qk_of(type, 1, q, k, pitch, cells, score); break;
    case 2: qk_of(type, 2, q, k, pitch, cells, score); break;
#if RKVI_LANES == 16
    case 3: qk_of(type, 3, q, k, pitch, cells, score); break;
    case 4: qk_of(type, 4, q, k, pitch, cells, score); break;
    case 5: qk_of(type, 5, q, k, pitch, cells, score); break;
    default: qk_of(type, 6, q, k, pitch, cells, score);
#endif
    }
}

static void qk_cells(uint32_t nh, const float *q, const vec_source *k, uint32_t pitch, uint32_t cells,
                     float *score)
{
    switch (k->type) {
#if RKVI_LANES == 16
    case RKV_TYPE_F16: qk_type(RKV_TYPE_F16, nh, q, k, pitch, cells, score); break;
    case RKV_TYPE_BF16: qk_type(RKV_TYPE_BF16, nh, q, k, pitch, cells, score); break;
#endif
    default: qk_type(RKV_TYPE_F32, nh, q, k, pitch, cells, score);
    }
}

/* Columns taken together: as even as their number allows. */
static inline uint32_t together(uint32_t n)
{
    const uint32_t parts = (n + MOST_TOGETHER - 1) / MOST_TOGETHER;
    return (n + parts - 1) / parts;
}

/* Cells [t, t + n) of a plane for the chunk: as they lie, or in the block. */
static vec_source chunk_source(vec_chunk *w, const rkvi_plane *p, uint32_t t, uint32_t n, uint32_t step,
                               uint32_t pitch)
{
    ask_ahead(p, t + step, n);
    if (source_is_direct(p->type) && w->n <= MOST_DIRECT && p->dim == pitch)
        return source_plane(p, t);
    vec_cells(p, t, n, w->block);
    return source_block(w->block, pitch);
}

static void chunk_scores(vec_chunk *w, const rkvi_plane *k, uint32_t t0, uint32_t t1)
{
    const uint32_t step = block_cells(w->dk_pad), nh = together(w->n);
    for (uint32_t t = t0; t < t1; t += step) {
        const uint32_t n = min_u32(step, t1 - t);
        const vec_source rows = chunk_source(w, k, t, n, step, w->dk_pad);
        for (uint32_t c = 0; c < w->n; c += nh)
            qk_cells(min_u32(nh, w->n - c), w->q + (size_t)c * w->dk_pad, &rows, w->dk_pad, n,
                     w->score + c * SCORE_PITCH + (t - w->cell0));
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
static void column_softmax(const rkvi_attend_args *a, float *score, uint32_t s0, uint32_t s1,
                           vec_column *col)
{
    const uint32_t first = s0 / RKVI_LANES * RKVI_LANES;
    const vf scale = v_set(a->scale), cap = v_set(a->softcap);
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

/* o += p x V over `cells` for nh columns and nd vectors of D. */
RKVI_INLINE void pv_tile(const rkv_type type, const uint32_t nh, const uint32_t nd, const float *p,
                         const vec_source *v, uint32_t cells, const vec_column *col, uint32_t d)
{
    const uint8_t *row = v->rows;
    vf acc[MOST_TOGETHER][4];
    RKVI_UNROLL for (uint32_t h = 0; h < nh; h++)
        RKVI_UNROLL for (uint32_t i = 0; i < nd; i++)
            acc[h][i] = v_load(col[h].o + d + i * RKVI_LANES);
    for (uint32_t c = 0; c < cells; c++, row += v->pitch_bytes) {
        vf x[4];
        RKVI_UNROLL for (uint32_t i = 0; i < nd; i++)
            x[i] = source_get(type, row, d + i * RKVI_LANES);
        RKVI_UNROLL for (uint32_t h = 0; h < nh; h++) {
            const vf y = v_set(p[h * SCORE_PITCH + c]);
            RKVI_UNROLL for (uint32_t i = 0; i < nd; i++)
                acc[h][i] = v_fma(y, x[i], acc[h][i]);
        }
    }
    RKVI_UNROLL for (uint32_t h = 0; h < nh; h++)
        RKVI_UNROLL for (uint32_t i = 0; i < nd; i++)
            v_store(col[h].o + d + i * RKVI_LANES, acc[h][i]);
}

RKVI_INLINE void pv_slices(const rkv_type type, const uint32_t nh, const float *p, const vec_source *v,
                           uint32_t pitch, uint32_t cells, const vec_column *col)
{
    uint32_t d = 0;
    for (; d + 4 * RKVI_LANES <= pitch; d += 4 * RKVI_LANES)
        pv_tile(type, nh, 4, p, v, cells, col, d);
    if (d + 2 * RKVI_LANES <= pitch) {
        pv_tile(type, nh, 2, p, v, cells, col, d);
        d += 2 * RKVI_LANES;
    }
    if (d < pitch)
        pv_tile(type, nh, 1, p, v, cells, col, d);
}

RKVI_INLINE void pv_type(const rkv_type type, uint32_t nh, const float *p, const vec_source *v,
                         uint32_t pitch, uint32_t cells, const vec_column *col)
{
    switch (nh) {
    case 1: pv_slices(type, 1, p, v, pitch, cells, col); break;
    case 2: pv_slices(type, 2, p, v, pitch, cells, col); break;
#if RKVI_LANES == 16
    case 3: pv_slices(type, 3, p, v, pitch, cells, col); break;
    case 4: pv_slices(type, 4, p, v, pitch, cells, col); break;
    case 5: pv_slices(type, 5, p, v, pitch, cells, col); break;
    default: pv_slices(type, 6, p, v, pitch, cells, col);
#endif
    }
}

static void pv_columns(uint32_t nh, const float *p, const vec_source *v, uint32_t pitch, uint32_t cells,
                       const vec_column *col)
{
    switch (v->type) {
#if RKVI_LANES == 16
    case RKV_TYPE_F16: pv_type(RKV_TYPE_F16, nh, p, v, pitch, cells, col); break;
    case RKV_TYPE_BF16: pv_type(RKV_TYPE_BF16, nh, p, v, pitch, cells, col); break;
#endif
    default: pv_type(RKV_TYPE_F32, nh, p, v, pitch, cells, col);
    }
}

/* What one column sees of the cells [from, to), a part of the rows from cell t on. */
static void pv_alone(const vec_chunk *w, const vec_source *v, uint32_t c, uint32_t t, uint32_t from, uint32_t to)
{
    const uint32_t a = max_u32(from, w->col[c].t0), b = min_u32(to, w->col[c].t1);
    if (a >= b)
        return;
    const vec_source rows = source_at(*v, a - t);
    pv_columns(1, w->score + c * SCORE_PITCH + (a - w->cell0), &rows, w->dv_pad, b - a, &w->col[c]);
}

/* nh columns over the cells [t, end): together over the cells that all of them
 * see, alone before and after, so that 0 x NaN never happens. */
static void pv_cells(const vec_chunk *w, const vec_source *v, uint32_t c, uint32_t nh, uint32_t t, uint32_t end)
{
    uint32_t a = t, b = end;
    for (uint32_t h = c; h < c + nh; h++) {
        a = max_u32(a, w->col[h].t0);
        b = min_u32(b, w->col[h].t1);
    }
    if (a >= b)
        a = b = end;
    for (uint32_t h = c; h < c + nh; h++)
        pv_alone(w, v, h, t, t, a);
    if (a < b) {
        const vec_source rows = source_at(*v, a - t);
        pv_columns(nh, w->score + c * SCORE_PITCH + (a - w->cell0), &rows, w->dv_pad, b - a, &w->col[c]);
    }
    for (uint32_t h = c; h < c + nh; h++)
        pv_alone(w, v, h, t, b, end);
}

static void chunk_values(vec_chunk *w, const rkvi_plane *v, uint32_t t0, uint32_t t1)
{
    const uint32_t step = block_cells(w->dv_pad), nh = together(w->n);
    for (uint32_t t = t0; t < t1; t += step) {
        const uint32_t n = min_u32(step, t1 - t);
        const vec_source rows = chunk_source(w, v, t, n, step, w->dv_pad);
        for (uint32_t c = 0; c < w->n; c += nh)
            pv_cells(w, &rows, c, min_u32(nh, w->n - c), t, t + n);
    }
}

/* Partials of a leaf for the chunk's columns, whose o is set: col[].m, l, o. */
static void chunk_leaf(vec_chunk *w, const rkvi_job *j, uint64_t leaf)
{
    rkvi_plane k, v;
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
    chunk_scores(w, &k, t0, t1);
    for (uint32_t c = 0; c < w->n; c++) {
        vec_column *col = &w->col[c];
        if (col->t0 < col->t1)
            column_softmax(j->a, w->score + c * SCORE_PITCH, col->t0 - w->cell0,
                           col->t1 - w->cell0, col);
        if (col->m == -INFINITY)
            col->t0 = col->t1 = 0; /* scores of -inf alone: as if it saw nothing */
        else
            memset(col->o, 0, w->dv_pad * sizeof *col->o);
    }
    chunk_values(w, &v, t0, t1);
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
}

#endif
