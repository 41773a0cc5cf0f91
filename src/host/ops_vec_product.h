/* ops_vec_product.h: q x K and p x V of some columns with some rows, in registers.
 *
 * A score is one chain over D and one tree over lanes, wherever its cell stands
 * among the four of a tile; an element of o is one chain over cells.
 */
#ifndef RKVI_OPS_VEC_PRODUCT_H
#define RKVI_OPS_VEC_PRODUCT_H

#include "ops_vec_source.h"

#define SCORE_PITCH 288u /* a leaf of 256, aligned down by 15, up by 3 */

/* Columns in registers: 4 of them times 4 cells (or slices), inputs besides. */
#if RKVI_LANES == 16
#define MOST_TOGETHER 6u
#else
#define MOST_TOGETHER 2u
#endif

typedef struct vec_column {
    uint32_t t0, t1; /* cells of the tile that it sees in this leaf */
    float m, l;      /* of the leaf; m = -inf: empty */
    float *o;
} vec_column;

typedef struct vec_product {
    vec_source rows;
    uint32_t cells, pitch; /* rows; elements of a row, padded */
    const float *q;        /* K: of the first column, the others `pitch` apart */
    float *score;          /* its first cell's; the others' SCORE_PITCH apart */
    const vec_column *col; /* V */
    vec_ask ask;
} vec_product;

/* Scores of 4 cells for nh columns; of the cells behind the last it is the last
 * again, so that nothing behind it is read. */
RKVI_INLINE void qk_tile(const rkv_type type, const uint32_t nh, const vec_product *x, uint32_t cell)
{
    const uint32_t last = x->cells - cell - 1, pitch = x->pitch;
    const vec_source k = source_at(x->rows, cell);
    const uint8_t *row[4];
    const float *scales[4];
    vf acc[MOST_TOGETHER][4];
    RKVI_UNROLL for (uint32_t c = 0; c < 4; c++) {
        row[c] = k.rows + (c < last ? c : last) * k.pitch_bytes;
        scales[c] = k.scales + (c < last ? c : last) * k.scale_pitch;
    }
    RKVI_UNROLL for (uint32_t h = 0; h < nh; h++)
        RKVI_UNROLL for (uint32_t c = 0; c < 4; c++)
            acc[h][c] = v_set(0);
    for (uint32_t i = 0; i < pitch; i += source_vectors(type) * RKVI_LANES)
        RKVI_UNROLL for (uint32_t half = 0; half < source_vectors(type); half++) {
            const uint32_t at = i + half * RKVI_LANES;
            vf y[4];
            RKVI_UNROLL for (uint32_t c = 0; c < 4; c++)
                y[c] = source_get(type, row[c], scales[c], at, half);
            RKVI_UNROLL for (uint32_t h = 0; h < nh; h++) {
                const vf q = v_load(x->q + (size_t)h * pitch + at);
                RKVI_UNROLL for (uint32_t c = 0; c < 4; c++)
                    acc[h][c] = v_fma(q, y[c], acc[h][c]);
            }
        }
    RKVI_UNROLL for (uint32_t h = 0; h < nh; h++)
        _mm_storeu_ps(x->score + cell + h * SCORE_PITCH,
                      v_sum4(acc[h][0], acc[h][1], acc[h][2], acc[h][3]));
}

RKVI_INLINE void qk_of(const rkv_type type, const uint32_t nh, const vec_product *x)
{
    const uint8_t *ask = x->ask.at;
    for (uint32_t c = 0; c < x->cells; c += 4, ask += x->ask.step) {
        ask_bytes(ask, x->ask.step);
        qk_tile(type, nh, x, c);
    }
}

RKVI_INLINE void qk_type(const rkv_type type, uint32_t nh, const vec_product *x)
{
    switch (nh) {
    case 1: qk_of(type, 1, x); break;
    case 2: qk_of(type, 2, x); break;
#if RKVI_LANES == 16
    case 3: qk_of(type, 3, x); break;
    case 4: qk_of(type, 4, x); break;
    case 5: qk_of(type, 5, x); break;
    default: qk_of(type, 6, x);
#endif
    }
}

static void qk_cells(uint32_t nh, const vec_product *x)
{
    switch (x->rows.type) {
#if RKVI_LANES == 16
    case RKV_TYPE_F16: qk_type(RKV_TYPE_F16, nh, x); break;
    case RKV_TYPE_BF16: qk_type(RKV_TYPE_BF16, nh, x); break;
    case RKV_TYPE_Q8_0: qk_type(RKV_TYPE_Q8_0, nh, x); break;
    case RKV_TYPE_Q4_0: qk_type(RKV_TYPE_Q4_0, nh, x); break;
#endif
    default: qk_type(RKV_TYPE_F32, nh, x);
    }
}

/* o += p x V for nh columns and nd vectors of D from d on; returns what to ask
 * for next. */
RKVI_INLINE const uint8_t *pv_tile(const rkv_type type, const uint32_t nh, const uint32_t nd,
                                   const vec_product *x, uint32_t d, const uint8_t *ask)
{
    const uint8_t *row = x->rows.rows + source_bytes(type, d);
    const float *scales = x->rows.scales + d / RKVI_BLOCK;
    const float *weights = x->score, *end = weights + x->cells;
    const size_t pitch_bytes = x->rows.pitch_bytes, scale_pitch = x->rows.scale_pitch, step = x->ask.step;
    vf acc[MOST_TOGETHER][4];
    RKVI_UNROLL for (uint32_t h = 0; h < nh; h++)
        RKVI_UNROLL for (uint32_t i = 0; i < nd; i++)
            acc[h][i] = v_load(x->col[h].o + d + i * RKVI_LANES);
    for (; weights < end; weights++, row += pitch_bytes, scales += scale_pitch) {
        vf y[4];
        __builtin_prefetch(ask);
        if (type == RKV_TYPE_F16 || type == RKV_TYPE_BF16) /* two lines at most: nd vectors of it */
            __builtin_prefetch(ask + 64);
        ask += step;
        RKVI_UNROLL for (uint32_t i = 0; i < nd; i++)
            y[i] = source_get(type, row, scales, i * RKVI_LANES, i % 2);
        RKVI_UNROLL for (uint32_t h = 0; h < nh; h++) {
            const vf p = v_set(weights[(size_t)h * SCORE_PITCH]);
            RKVI_UNROLL for (uint32_t i = 0; i < nd; i++)
                acc[h][i] = v_fma(p, y[i], acc[h][i]);
        }
    }
    RKVI_UNROLL for (uint32_t h = 0; h < nh; h++)
        RKVI_UNROLL for (uint32_t i = 0; i < nd; i++)
            v_store(x->col[h].o + d + i * RKVI_LANES, acc[h][i]);
    return ask;
}

/* Slices of D that pv_of makes of a row. */
static inline uint32_t pv_slices(uint32_t pitch)
{
    return pitch / (4 * RKVI_LANES) + (uint32_t)__builtin_popcount(pitch / RKVI_LANES % 4);
}

RKVI_INLINE void pv_of(const rkv_type type, const uint32_t nh, const vec_product *x)
{
    const uint8_t *ask = x->ask.at;
    uint32_t d = 0;
    for (; d + 4 * RKVI_LANES <= x->pitch; d += 4 * RKVI_LANES)
        ask = pv_tile(type, nh, 4, x, d, ask);
    if (d + 2 * RKVI_LANES <= x->pitch) {
        ask = pv_tile(type, nh, 2, x, d, ask);
        d += 2 * RKVI_LANES;
    }
    if (source_vectors(type) == 1 && d < x->pitch)
        pv_tile(type, nh, 1, x, d, ask);
}

RKVI_INLINE void pv_type(const rkv_type type, uint32_t nh, const vec_product *x)
{
    switch (nh) {
    case 1: pv_of(type, 1, x); break;
    case 2: pv_of(type, 2, x); break;
#if RKVI_LANES == 16
    case 3: pv_of(type, 3, x); break;
    case 4: pv_of(type, 4, x); break;
    case 5: pv_of(type, 5, x); break;
    default: pv_of(type, 6, x);
#endif
    }
}

static void pv_columns(uint32_t nh, const vec_product *x)
{
    switch (x->rows.type) {
#if RKVI_LANES == 16
    case RKV_TYPE_F16: pv_type(RKV_TYPE_F16, nh, x); break;
    case RKV_TYPE_BF16: pv_type(RKV_TYPE_BF16, nh, x); break;
    case RKV_TYPE_Q8_0: pv_type(RKV_TYPE_Q8_0, nh, x); break;
    case RKV_TYPE_Q4_0: pv_type(RKV_TYPE_Q4_0, nh, x); break;
#endif
    default: pv_type(RKV_TYPE_F32, nh, x);
    }
}

#endif
