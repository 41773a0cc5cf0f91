/* SPDX-License-Identifier: MIT
 *
 * turn_case.h: made-up work for the ops of shifting and of token trees, shared
 * by the tests of the reference and of the GPU's kernels.
 */
#ifndef TURN_CASE_H
#define TURN_CASE_H

#include "ops_ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROTATE_ROWS 5u
#define ROTATE_TURNS 3u

/* splitmix64 */
static inline uint64_t case_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static inline float case_value(uint64_t *r)
{
    return (float)((int64_t)(case_random(r) >> 40) - (1 << 23)) / (float)(1 << 22);
}

/* q of ROTATE_ROWS rows with gaps between heads and rows; rows 1 .. of it are
 * turned, each by every turn. */
typedef struct rotate_case {
    rkvi_rotate_args args;
    rkvi_turned_row rows[ROTATE_ROWS * ROTATE_TURNS];
    uint32_t n_rows;
    uint64_t q_bytes, angles_bytes, turned_bytes;
    double *angle; /* [turn][pair]: the exact one */
} rotate_case;

static inline void rotate_make(rotate_case *c, uint32_t q_heads, uint32_t dk, uint32_t n_pairs, uint32_t pairing,
                               rkv_type type, uint64_t *r)
{
    *c = (rotate_case){.n_rows = 0};
    const int64_t head_stride = dk + 5, row_stride = head_stride * q_heads + 3;
    c->q_bytes = (uint64_t)row_stride * ROTATE_ROWS * rkvi_tensor_type_bytes(type);
    c->angles_bytes = (uint64_t)ROTATE_TURNS * n_pairs * 2 * sizeof(float);
    c->turned_bytes = (uint64_t)ROTATE_TURNS * ROTATE_ROWS * q_heads * dk * sizeof(float);
    c->angle = malloc((size_t)ROTATE_TURNS * n_pairs * sizeof(double) + 1);
    float *angles = malloc(c->angles_bytes + 1), *turned = malloc(c->turned_bytes), x[1024];
    rkvi_tensor q = {.data = calloc(1, c->q_bytes), .row_stride = row_stride, .head_stride = head_stride, .type = type};
    memset(turned, 0xA5, c->turned_bytes);
    for (uint32_t row = 0; row < ROTATE_ROWS; row++)
        for (uint32_t h = 0; h < q_heads; h++) {
            for (uint32_t i = 0; i < dk; i++)
                x[i] = case_value(r);
            rkvi_tensor_put(&q, row, h, dk, x);
        }
    for (uint32_t i = 0; i < ROTATE_TURNS * n_pairs; i++) {
        c->angle[i] = (double)case_value(r) * 3;
        angles[2 * i] = (float)cos(c->angle[i]);
        angles[2 * i + 1] = (float)sin(c->angle[i]);
    }
    for (uint32_t t = 0; t < ROTATE_TURNS; t++)
        for (uint32_t row = 1; row < ROTATE_ROWS; row++)
            c->rows[c->n_rows++] = (rkvi_turned_row){.row = row, .turn = t, .angles = ROTATE_TURNS - 1 - t};
    c->args = (rkvi_rotate_args){.q = q, .rows = c->rows, .angles = angles, .turned = turned, .q_heads = q_heads,
                                .turned_stride = (uint64_t)ROTATE_ROWS * q_heads * dk, .dk = dk, .n_pairs = n_pairs,
                                .pairing = pairing};
}

static inline void rotate_free(rotate_case *c)
{
    free(c->args.q.data);
    free((void *)(uintptr_t)c->args.angles);
    free(c->args.turned);
    free(c->angle);
}

/* Two entries of n cells each over tiles of 16; masks are random trees with each
 * cell seeing itself, but row 1 of the first entry, which sees nothing. */
#define TREE_CELLS 64u
typedef struct tree_case {
    rkvi_tree_args args;
    rkvi_row rows[2 * TREE_CELLS];
    rkvi_new_cell cells[2 * TREE_CELLS];
    rkvi_tree_item items[2 * TREE_CELLS];
    uint64_t bases[2 * RKVI_MOVE_TILES_MAX];
    uint32_t n_rows;
    uint8_t *tiles;
    uint64_t tiles_bytes, q_bytes, partials_bytes;
} tree_case;

static inline void tree_rows(tree_case *c, uint32_t n, uint64_t *r)
{
    for (uint32_t e = 0; e < 2; e++)
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t parent = i ? (uint32_t)(case_random(r) % i) : 0;
            rkvi_tree_item *it = &c->items[e * n + i];
            *it = (rkvi_tree_item){.mask = 1ull << i, .slot = 3 + 2 * n - 1 - (e * n + i), .row0 = e * n, .row = i,
                                   .cell0 = e * n, .n_cells = n};
            if (i)
                it->mask |= c->items[e * n + parent].mask;
            c->rows[e * n + i] = (rkvi_row){
                .pos = i ? c->rows[e * n + parent].pos + 1 : 40, .from = e ? 41 : 0, .to = INT64_MAX};
            c->cells[e * n + i] = (rkvi_new_cell){.base = e * RKVI_MOVE_TILES_MAX + (i + 7) / 16, .cell = (i + 7) % 16};
        }
    if (n > 1) {
        c->items[1].mask = 0;
    }
}

static inline tree_case *tree_make(uint32_t n, uint32_t n_kv, uint32_t ratio, rkvi_geom g, rkvi_site_mask mask,
                                   uint64_t *r)
{
    tree_case *c = calloc(1, sizeof *c);
    float x[1024];
    g.n_heads = n_kv;
    g.tile_cells = 16;
    g.k_scale = g.v_scale = 1;
    if (rkvi_geom_init(&g) != RKV_OK)
        abort();
    c->n_rows = 2 * n;
    tree_rows(c, n, r);
    c->tiles_bytes = 2 * RKVI_MOVE_TILES_MAX * g.bytes;
    c->tiles = aligned_alloc(256, c->tiles_bytes);
    memset(c->tiles, 0xff, c->tiles_bytes);
    for (uint32_t t = 0; t < 2 * RKVI_MOVE_TILES_MAX; t++)
        c->bases[t] = (uintptr_t)(c->tiles + t * g.bytes);
    for (uint32_t i = 0; i < 2 * n; i++)
        for (uint32_t h = 0; h < n_kv; h++) {
            const rkvi_plane k = rkvi_plane_k(&g, c->bases[c->cells[i].base], h);
            const rkvi_plane v = rkvi_plane_v(&g, c->bases[c->cells[i].base], h);
            for (uint32_t d = 0; d < g.dk; d++)
                x[d] = case_value(r);
            rkvi_plane_put(&k, c->cells[i].cell, x);
            for (uint32_t d = 0; d < g.dv; d++)
                x[d] = case_value(r);
            rkvi_plane_put(&v, c->cells[i].cell, x);
        }
    const uint32_t heads = n_kv * ratio;
    c->q_bytes = (uint64_t)c->n_rows * heads * g.dk * sizeof(float);
    c->partials_bytes = (uint64_t)(c->n_rows + 5) * heads * (g.dv + 2) * sizeof(float);
    float *q = malloc(c->q_bytes), *partials = malloc(c->partials_bytes);
    memset(partials, 0xA5, c->partials_bytes);
    for (uint64_t i = 0; i < c->q_bytes / sizeof *q; i++)
        q[i] = case_value(r);
    c->args = (rkvi_tree_args){.geom = g, .rows = c->rows, .bases = c->bases, .cells = c->cells, .items = c->items,
                               .partials = partials, .mask = mask, .q_heads = heads, .scale = 0.3f,
                               .softcap = n % 2 ? 5.0f : 0.0f,
                               .q = {.data = q, .row_stride = heads * g.dk, .head_stride = g.dk, .type = RKV_TYPE_F32}};
    return c;
}

static inline void tree_free(tree_case *c)
{
    free(c->tiles);
    free(c->args.q.data);
    free(c->args.partials);
    free(c);
}

#endif
