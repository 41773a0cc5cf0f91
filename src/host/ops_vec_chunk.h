/* ops_vec_chunk.h: columns of one item that share rows of K and V, and which rows
 * they work on next.
 */
#ifndef RKVI_OPS_VEC_CHUNK_H
#define RKVI_OPS_VEC_CHUNK_H

#include "ops_vec_product.h"

#define COLUMNS 32u         /* of a chunk, at most */
#define BLOCK_FLOATS 4096u  /* of K or V: 16 KiB */
#define BLOCK_CELLS 64u     /* at most */
#define SCALES 512u         /* of the cells at work: 16, or BLOCK_FLOATS / RKVI_BLOCK blocks */

typedef struct vec_chunk {
    uint32_t n, dk_pad, dv_pad;
    uint32_t cell0; /* tile cell of score 0 of a column */
    vec_column col[COLUMNS];
    _Alignas(64) float score[COLUMNS * SCORE_PITCH];
    _Alignas(64) float block[BLOCK_FLOATS];
    _Alignas(64) float scales[SCALES]; /* of the rows at work */
    _Alignas(64) float q[COLUMNS * RKVI_HEAD_DIM_MAX];
#if RKVI_VNNI
    _Alignas(64) float by_block[SCALES]; /* scales of 16 cells, block by block */
    float q_scale[COLUMNS];
    int32_t q_sums[COLUMNS][RKVI_HEAD_DIM_MAX / RKVI_BLOCK][4];
#endif
} vec_chunk;

static inline uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static inline uint32_t block_cells(uint32_t pitch)
{
    return min_u32(BLOCK_FLOATS / pitch / 4 * 4, BLOCK_CELLS);
}

/* Columns taken together: as even as their number allows. */
static inline uint32_t together(uint32_t n)
{
    const uint32_t parts = (n + MOST_TOGETHER - 1) / MOST_TOGETHER;
    return (n + parts - 1) / parts;
}

/* Cells [t, t + n) of a plane. */
typedef struct vec_cut {
    const rkvi_plane *p;
    uint32_t t, n;
} vec_cut;

/* The cut that is asked for while others are computed: scales at once, quants in
 * `parts`. */
static vec_ask ask_ahead(const vec_cut *next, uint32_t parts)
{
    if (next->n == 0)
        return (vec_ask){(const uint8_t *)next, 0};
    const rkvi_plane *p = next->p;
    ask_bytes(p->scales + (uint64_t)next->t * p->scale_cell_bytes, (size_t)next->n * p->scale_cell_bytes);
    return (vec_ask){p->quants + (uint64_t)next->t * p->cell_bytes, (size_t)next->n * p->cell_bytes / parts};
}

/* The cut after [t, t + n), or `follow` where [t, t + n) reaches t1. */
static vec_cut cut_after(const rkvi_plane *p, uint32_t t, uint32_t n, uint32_t t1, const vec_cut *follow)
{
    return t + n < t1 ? (vec_cut){p, t + n, min_u32(n, t1 - t - n)} : *follow;
}

#endif
