/* cells_convert.c: cells between a tile-layer and the outside. */
#include "cells_convert.h"

#include "ops_half.h"

#include <string.h>

/* One cell of one head in a storage type, apart from any tile. */
typedef struct one_cell {
    rkvi_plane plane;
    uint16_t scales[RKVI_HEAD_DIM_MAX / RKVI_BLOCK];
    uint16_t quants[RKVI_HEAD_DIM_MAX]; /* of 2 bytes at most, aligned */
} one_cell;

static void one_cell_init(one_cell *c, rkv_type type, uint32_t dim)
{
    c->plane = (rkvi_plane){.quants = (uint8_t *)c->quants,
                            .scales = (uint8_t *)c->scales,
                            .cell_bytes = type == RKV_TYPE_Q4_0 ? dim / 2 : dim,
                            .scale_cell_bytes = dim / RKVI_BLOCK * 2,
                            .dim = dim,
                            .type = type,
                            .scale = 1};
}

static uint64_t block_bytes(rkv_type type)
{
    return type == RKV_TYPE_Q4_0 ? 18 : 34;
}

static uint64_t head_bytes(const rkvi_outer *o, const rkvi_plane *plane)
{
    if (o->form == RKV_CELLS_BLOCKS)
        return plane->dim / RKVI_BLOCK * block_bytes(o->t.type);
    if (o->form == RKV_CELLS_STORED)
        return (uint64_t)plane->cell_bytes + plane->scale_cell_bytes;
    return (uint64_t)plane->dim * rkvi_tensor_type_bytes(o->t.type);
}

uint64_t rkvi_outer_row_bytes(const rkvi_outer *o, const rkvi_plane *plane)
{
    return head_bytes(o, plane) * o->n_heads;
}

rkvi_outer rkvi_outer_dense(const rkvi_outer *o, const rkvi_plane *plane, uint64_t n, void *data)
{
    rkvi_outer dense = *o;
    dense.t.data = data;
    dense.t.row_stride = plane->dim;
    dense.t.head_stride = (int64_t)(n * plane->dim);
    return dense;
}

static uint8_t *dense_at(const rkvi_outer *o, const rkvi_plane *plane, uint64_t row, uint32_t head)
{
    return (uint8_t *)o->t.data + (row * o->n_heads + head) * head_bytes(o, plane);
}

/* ------------------------------------------------------------------- as stored */

/* Values with all bits of `exponent` set are NaN or infinite: they are found
 * first, as there are hardly ever any. */
static bool has_wild(const uint16_t *x, uint32_t n, uint16_t exponent)
{
    uint32_t wild = 0;
    for (uint32_t i = 0; i < n; i++)
        wild += (x[i] & exponent) == exponent;
    return wild > 0;
}

static void tame_f16(uint16_t *x, uint32_t n)
{
    if (has_wild(x, n, 0x7c00u))
        for (uint32_t i = 0; i < n; i++)
            x[i] = rkvi_f32_to_f16_sat(rkvi_f16_to_f32(x[i]));
}

static void tame_bf16(uint16_t *x, uint32_t n)
{
    if (has_wild(x, n, 0x7f80u))
        for (uint32_t i = 0; i < n; i++)
            x[i] = rkvi_f32_to_bf16_sat(rkvi_bf16_to_f32(x[i]));
}

static void tame_e4m3(uint8_t *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        x[i] = (x[i] & 0x7fu) == 0x7fu ? 0 : x[i];
}

/* No NaN and no infinity is ever stored, whatever comes from outside. */
static void tame(const rkvi_plane *plane, uint8_t *quants, uint8_t *scales)
{
    tame_f16((uint16_t *)(void *)scales, plane->scale_cell_bytes / 2);
    if (plane->type == RKV_TYPE_F16)
        tame_f16((uint16_t *)(void *)quants, plane->dim);
    else if (plane->type == RKV_TYPE_BF16)
        tame_bf16((uint16_t *)(void *)quants, plane->dim);
    else if (plane->type == RKV_TYPE_FP8_E4M3)
        tame_e4m3(quants, plane->dim);
}

static uint8_t *quants_of(const rkvi_plane *plane, uint32_t cell)
{
    return plane->quants + (uint64_t)cell * plane->cell_bytes;
}

static uint8_t *scales_of(const rkvi_plane *plane, uint32_t cell)
{
    return plane->scales + (uint64_t)cell * plane->scale_cell_bytes;
}

/* ---------------------------------------------------------------------- blocks */

static void blocks_to_cell(const uint8_t *from, const rkvi_plane *to, uint32_t cell)
{
    const uint64_t n = block_bytes(to->type) - 2;
    uint8_t *quants = quants_of(to, cell), *scales = scales_of(to, cell);
    for (uint32_t b = 0; b < to->dim / RKVI_BLOCK; b++, from += 2 + n) {
        memcpy(scales + 2 * (size_t)b, from, 2);
        memcpy(quants + n * b, from + 2, n);
    }
    tame(to, quants, scales);
}

static void cell_to_blocks(const rkvi_plane *from, uint32_t cell, uint8_t *to)
{
    const uint64_t n = block_bytes(from->type) - 2;
    const uint8_t *quants = quants_of(from, cell), *scales = scales_of(from, cell);
    for (uint32_t b = 0; b < from->dim / RKVI_BLOCK; b++, to += 2 + n) {
        memcpy(to, scales + 2 * (size_t)b, 2);
        memcpy(to + 2, quants + n * b, n);
    }
}

/* ------------------------------------------------------------------ in and out */

void rkvi_cells_in(const rkvi_plane *plane, uint32_t cell, const rkvi_outer *o, uint64_t row,
                   uint32_t head)
{
    float x[RKVI_HEAD_DIM_MAX];
    one_cell block;
    if (o->form == RKV_CELLS_TENSOR) {
        rkvi_tensor_get(&o->t, row, head, plane->dim, x);
        rkvi_plane_put(plane, cell, x);
        return;
    }
    const uint8_t *from = dense_at(o, plane, row, head);
    if (o->form == RKV_CELLS_STORED) {
        memcpy(quants_of(plane, cell), from, plane->cell_bytes);
        memcpy(scales_of(plane, cell), from + plane->cell_bytes, plane->scale_cell_bytes);
        tame(plane, quants_of(plane, cell), scales_of(plane, cell));
    } else if (o->t.type == plane->type) {
        blocks_to_cell(from, plane, cell);
    } else {
        one_cell_init(&block, o->t.type, plane->dim);
        blocks_to_cell(from, &block.plane, 0);
        rkvi_plane_get(&block.plane, 0, x);
        rkvi_plane_put(plane, cell, x);
    }
}

void rkvi_cells_out(const rkvi_plane *plane, uint32_t cell, const rkvi_outer *o, uint64_t row,
                    uint32_t head)
{
    float x[RKVI_HEAD_DIM_MAX];
    one_cell block;
    if (o->form == RKV_CELLS_TENSOR) {
        rkvi_plane_get(plane, cell, x);
        rkvi_tensor_put(&o->t, row, head, plane->dim, x);
        return;
    }
    uint8_t *to = dense_at(o, plane, row, head);
    if (o->form == RKV_CELLS_STORED) {
        memcpy(to, quants_of(plane, cell), plane->cell_bytes);
        memcpy(to + plane->cell_bytes, scales_of(plane, cell), plane->scale_cell_bytes);
    } else if (o->t.type == plane->type) {
        cell_to_blocks(plane, cell, to);
    } else {
        one_cell_init(&block, o->t.type, plane->dim);
        rkvi_plane_get(plane, cell, x);
        rkvi_plane_put(&block.plane, 0, x);
        cell_to_blocks(&block.plane, 0, to);
    }
}
