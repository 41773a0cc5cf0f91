/* ops_vec_int.h: q x K of q8_0 and q4_0 in integers, where the CPU multiplies
 * bytes and adds the products in 32 bits (AVX-512 VNNI).
 *
 * q becomes an integer of 24 bits, relative to its largest element (f32 has as
 * many), in three digits of 8 bits.  16 cells are transposed, so that a lane is
 * a cell: over a block of 32 elements a cell's products add up exactly, in
 * integers; then the block's scale is applied, in one chain over blocks.  That
 * takes no more multiplications than f32 would, saves turning quants into f32
 * and adding across lanes, and is exact but for q's own rounding.
 *
 *   digits of q    in place of its f32: 4 elements' 16 bytes become dwords
 *                  d0, d1, d2, (unused), byte i of each of element i
 *   rows of K      dword e of 16 cells (4 elements each), e = 0, 1, ..
 *
 * Quants are made unsigned by adding 128 (q4_0 stores 8 more than it means);
 * sums begin at what that adds, negated.
 */
#ifndef RKVI_OPS_VEC_INT_H
#define RKVI_OPS_VEC_INT_H

#include "ops_vec_chunk.h"

#if RKVI_VNNI

#define INT_CELLS 16u
#define INT_STEP 32u /* cells that are asked for together */

/* Adds products of bytes, unsigned times signed, those of `digits` the same for
 * all lanes.  (By intrinsics, gcc 12 copies and spills the sums.) */
RKVI_INLINE void int_dot(__m512i *sum, __m512i bytes, const int32_t *digits)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(*sum) : "v"(bytes), "m"(*digits));
}

/* The largest integer that q becomes: its top digit is at most 127. */
#define INT_TOP 8355000.0f

/* Digits of one column's q in place; `sums`: of each block, times -offset. */
static float int_digits(float *q, uint32_t dim, int offset, int32_t (*sums)[4])
{
    const __m512i bytes = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m512i middle = _mm512_set1_epi32(0x00808080), flip = _mm512_set1_epi32((int)0x80808080);
    vf top = v_set(0), rest = v_set(0);
    for (uint32_t i = 0; i < dim; i += 16) {
        top = v_max(v_abs(v_load(q + i)), top);
        rest += v_load(q + i) * v_set(0); /* NaN where q is NaN or infinite */
    }
    const float most = v_max_lane(top) + v_sum(rest);
    const vf factor = v_set(most > 0x1p-100f ? INT_TOP / most : 0);
    for (uint32_t b = 0; b < dim / RKVI_BLOCK; b++) {
        __m512i sum = _mm512_setzero_si512();
        for (uint32_t i = 32 * b; i < 32 * b + 32; i += 16) {
            __m512i x = _mm512_add_epi32(_mm512_cvtps_epi32(v_load(q + i) * factor), middle);
            x = _mm512_shuffle_epi8(_mm512_xor_si512(x, flip), bytes);
            sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8((char)offset), x);
            _mm512_storeu_si512(q + i, x);
        }
        const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64(sum, 1));
        const __m128i all = _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
        _mm_storeu_si128((__m128i *)(void *)sums[b], _mm_sub_epi32(_mm_setzero_si128(), all));
    }
    return most / INT_TOP;
}

/* 16 rows of up to 16 dwords to 16 dwords of 16 rows. */
RKVI_INLINE void int_transpose(const uint8_t *row, size_t pitch_bytes, __mmask16 dwords, __m512i out[16])
{
    __m512i a[16], b[16];
    RKVI_UNROLL for (uint32_t i = 0; i < 16; i++)
        a[i] = _mm512_maskz_loadu_epi32(dwords, row + i * pitch_bytes);
    RKVI_UNROLL for (uint32_t i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_epi32(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_epi32(a[i], a[i + 1]);
    }
    RKVI_UNROLL for (uint32_t i = 0; i < 16; i += 4) {
        a[i] = _mm512_unpacklo_epi64(b[i], b[i + 2]);
        a[i + 1] = _mm512_unpackhi_epi64(b[i], b[i + 2]);
        a[i + 2] = _mm512_unpacklo_epi64(b[i + 1], b[i + 3]);
        a[i + 3] = _mm512_unpackhi_epi64(b[i + 1], b[i + 3]);
    }
    RKVI_UNROLL for (uint32_t i = 0; i < 4; i++) { /* by 128 bits: rows 0-3, 4-7, .. */
        const __m512i even0 = _mm512_shuffle_i32x4(a[i], a[i + 4], 0x88);
        const __m512i odd0 = _mm512_shuffle_i32x4(a[i], a[i + 4], 0xdd);
        const __m512i even1 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0x88);
        const __m512i odd1 = _mm512_shuffle_i32x4(a[i + 8], a[i + 12], 0xdd);
        out[i] = _mm512_shuffle_i32x4(even0, even1, 0x88);
        out[i + 4] = _mm512_shuffle_i32x4(odd0, odd1, 0x88);
        out[i + 8] = _mm512_shuffle_i32x4(even0, even1, 0xdd);
        out[i + 12] = _mm512_shuffle_i32x4(odd0, odd1, 0xdd);
    }
}

/* Dwords of 16 cells from t on, unsigned, 4 elements each, in order. */
static void int_rows(const rkvi_plane *p, uint32_t t, __m512i *out)
{
    const uint8_t *row = p->quants + (uint64_t)t * p->cell_bytes;
    const __m512i low = _mm512_set1_epi8(15), offset = _mm512_set1_epi8((char)0x80);
    for (uint32_t at = 0; at < p->cell_bytes; at += 64) {
        const uint32_t n = min_u32((p->cell_bytes - at) / 4, 16);
        __m512i x[16];
        int_transpose(row + at, p->cell_bytes, (__mmask16)((1u << n) - 1), x);
        if (p->type == RKV_TYPE_Q8_0) {
            for (uint32_t i = 0; i < n; i++)
                *out++ = _mm512_xor_si512(x[i], offset);
            continue;
        }
        for (uint32_t i = 0; i < n; i += 4, out += 8)
            RKVI_UNROLL for (uint32_t j = 0; j < 4; j++) {
                out[j] = _mm512_and_si512(x[i + j], low);
                out[j + 4] = _mm512_and_si512(_mm512_srli_epi16(x[i + j], 4), low);
            }
    }
}

/* Scales of 16 cells from t on, block by block. */
static void int_scales(const rkvi_plane *p, uint32_t t, float *room, float *out)
{
    const uint32_t n = p->dim / RKVI_BLOCK;
    const uint16_t *d = (const uint16_t *)(const void *)(p->scales + (uint64_t)t * p->scale_cell_bytes);
    const __m512i cell = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i first = _mm512_mullo_epi32(cell, _mm512_set1_epi32((int)n));
    if (n > 4) {
        vec_scales(d, n * INT_CELLS, room);
        for (uint32_t b = 0; b < n; b++)
            v_store(out + b * INT_CELLS, _mm512_i32gather_ps(first, room + b, 4));
        return;
    }
    const __m512i low = _mm512_maskz_loadu_epi16(n == 1 ? 0xffff : 0xffffffff, d);
    const __m512i high = _mm512_maskz_loadu_epi16(n == 4 ? 0xffffffff : n == 3 ? 0xffff : 0, d + 32);
    const __m512i from = _mm512_castsi256_si512(_mm512_cvtepi32_epi16(first));
    for (uint32_t b = 0; b < n; b++) {
        const __m512i at = _mm512_add_epi16(from, _mm512_set1_epi16((short)b));
        const __m256i x = _mm512_castsi512_si256(_mm512_permutex2var_epi16(low, at, high));
        v_store(out + b * INT_CELLS, _mm512_cvtph_ps(x));
    }
}

typedef struct int_product {
    const int32_t *digits;    /* of the first column, the others `pitch` apart */
    const int32_t (*sums)[4]; /* likewise, RKVI_HEAD_DIM_MAX / RKVI_BLOCK apart */
    const float *scale;       /* of q */
    const __m512i *rows;
    const float *scales; /* of the cells, block by block */
    uint32_t pitch, blocks;
    vec_ask ask; /* for each block */
    float *score;
} int_product;

/* A block's part of the scores of 16 cells. */
RKVI_INLINE void int_tile(const uint32_t nh, const int_product *x, uint32_t b)
{
    const __m512i *rows = x->rows + 8 * b;
    const int32_t *digits[MOST_TOGETHER];
    __m512i a[MOST_TOGETHER][3];
    RKVI_UNROLL for (uint32_t h = 0; h < nh; h++) {
        digits[h] = x->digits + (size_t)h * x->pitch + 32 * b;
        RKVI_UNROLL for (uint32_t k = 0; k < 3; k++)
            a[h][k] = _mm512_set1_epi32(x->sums[h * (RKVI_HEAD_DIM_MAX / RKVI_BLOCK) + b][k]);
    }
    for (size_t e = 0; e < 8; e++)
        RKVI_UNROLL for (uint32_t h = 0; h < nh; h++)
            RKVI_UNROLL for (uint32_t k = 0; k < 3; k++)
                int_dot(&a[h][k], rows[e], digits[h] + 4 * e + k);
    const vf d = v_load(x->scales + b * INT_CELLS);
    RKVI_UNROLL for (uint32_t h = 0; h < nh; h++) {
        float *score = x->score + h * SCORE_PITCH;
        const __m512i high = _mm512_add_epi32(_mm512_slli_epi32(a[h][2], 8), a[h][1]);
        const vf sum = v_fma(_mm512_cvtepi32_ps(high), v_set(256), _mm512_cvtepi32_ps(a[h][0]));
        v_store(score, v_fma(sum, d, b ? v_load(score) : v_set(0)));
    }
}

RKVI_INLINE void int_blocks(const uint32_t nh, const int_product *x)
{
    const uint8_t *ask = x->ask.at;
    for (uint32_t b = 0; b < x->blocks; b++, ask += x->ask.step) {
        ask_bytes(ask, x->ask.step);
        int_tile(nh, x, b);
    }
    RKVI_UNROLL for (uint32_t h = 0; h < nh; h++)
        v_store(x->score + h * SCORE_PITCH, v_load(x->score + h * SCORE_PITCH) * v_set(x->scale[h]));
}

static void int_columns(uint32_t nh, const int_product *x)
{
    switch (nh) {
    case 1: int_blocks(1, x); break;
    case 2: int_blocks(2, x); break;
    case 3: int_blocks(3, x); break;
    case 4: int_blocks(4, x); break;
    case 5: int_blocks(5, x); break;
    default: int_blocks(6, x);
    }
}

static void int_begin(vec_chunk *w, rkv_type type_k)
{
    for (uint32_t c = 0; c < w->n; c++)
        w->q_scale[c] = int_digits(w->q + (size_t)c * w->dk_pad, w->dk_pad, type_k == RKV_TYPE_Q8_0 ? 128 : 8,
                                   w->q_sums[c]);
}

/* 16 cells, aligned: those outside of the columns' ranges are selected away by
 * the softmax. */
static void int_cells(vec_chunk *w, const rkvi_plane *k, uint32_t t, vec_ask ask)
{
    const uint32_t nh = together(w->n), blocks = w->dk_pad / RKVI_BLOCK;
    int_product x = {.rows = (const __m512i *)(const void *)w->block, .scales = w->by_block, .pitch = w->dk_pad,
                     .blocks = blocks, .ask = ask};
    int_rows(k, t, (__m512i *)(void *)w->block);
    int_scales(k, t, w->scales, w->by_block);
    for (uint32_t c = 0; c < w->n; c += nh) {
        x.digits = (const int32_t *)(const void *)w->q + (size_t)c * w->dk_pad;
        x.sums = (const int32_t (*)[4])w->q_sums[c];
        x.scale = w->q_scale + c;
        x.score = w->score + c * SCORE_PITCH + (t - w->cell0);
        int_columns(min_u32(nh, w->n - c), &x);
        x.ask.at += x.ask.step * blocks;
    }
}

static void int_scores(vec_chunk *w, const rkvi_plane *k, uint32_t t1, const vec_cut *follow)
{
    const uint32_t nh = together(w->n), groups = (w->n + nh - 1) / nh, blocks = w->dk_pad / RKVI_BLOCK;
    for (uint32_t t = w->cell0; t < t1; t += INT_STEP) {
        const uint32_t n = min_u32(INT_STEP, t1 - t), tiles = (n + INT_CELLS - 1) / INT_CELLS;
        const vec_cut next = cut_after(k, t, n, t1, follow);
        vec_ask ask = ask_ahead(&next, tiles * groups * blocks);
        for (uint32_t i = 0; i < tiles; i++, ask.at += ask.step * groups * blocks)
            int_cells(w, k, t + i * INT_CELLS, ask);
    }
}

#endif
#endif
