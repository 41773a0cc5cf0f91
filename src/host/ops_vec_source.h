/* ops_vec_source.h: rows of K or V as the products read them.
 *
 * Where few columns share a row, turning it into f32 in registers each time is
 * cheaper than by way of the L1 cache; for many columns a block of rows is
 * turned once and read as f32.  fp8 goes by way of a block of f16, half as
 * large.  The values are the same, so the bits are too.
 */
#ifndef RKVI_OPS_VEC_SOURCE_H
#define RKVI_OPS_VEC_SOURCE_H

#include "ops_vec_rows.h"

/* Rows one after another from some cell of a tile on, or a block of f32 or f16. */
typedef struct vec_source {
    const uint8_t *rows;
    size_t pitch_bytes;
    const float *scales; /* of the first row's blocks; each row's after the one before */
    uint32_t scale_pitch;
    rkv_type type;
} vec_source;

static inline vec_source source_block(const float *block, uint32_t pitch)
{
    return (vec_source){(const uint8_t *)block, pitch * sizeof *block, block, 0, RKV_TYPE_F32};
}

static inline vec_source source_plane(const rkvi_plane *p, uint32_t cell, const float *scales)
{
    return (vec_source){p->quants + (uint64_t)cell * p->cell_bytes, p->cell_bytes, scales,
                        rkvi_type_is_quantised(p->type) ? p->dim / RKVI_BLOCK : 0, p->type};
}

static inline vec_source source_at(vec_source s, uint32_t cell)
{
    s.rows += cell * s.pitch_bytes;
    s.scales += (size_t)cell * s.scale_pitch;
    return s;
}

/* Vectors that a step along a row makes: a block's two halves come from the
 * same bytes. */
RKVI_INLINE uint32_t source_vectors(const rkv_type type)
{
    return type == RKV_TYPE_Q8_0 || type == RKV_TYPE_Q4_0 ? 2 : 1;
}

/* Of the first i elements of a row; of q4_0, whole blocks. */
RKVI_INLINE size_t source_bytes(const rkv_type type, size_t i)
{
    switch (type) {
    case RKV_TYPE_F16:
    case RKV_TYPE_BF16: return 2 * i;
    case RKV_TYPE_Q8_0: return i;
    case RKV_TYPE_Q4_0: return i / 2;
    default: return i * sizeof(float);
    }
}

#if RKVI_LANES == 16

/* Elements from i on of a row, as many as a vector has.  `half`: of i's block. */
RKVI_INLINE vf source_get(const rkv_type type, const uint8_t *row, const float *scales, uint32_t i,
                          const uint32_t half)
{
    switch (type) {
    case RKV_TYPE_F16: return get_f16((const uint16_t *)(const void *)row + i);
    case RKV_TYPE_BF16: return get_bf16((const uint16_t *)(const void *)row + i);
    case RKV_TYPE_Q8_0: return get_q8_0(row + i, scales[i / RKVI_BLOCK]);
    case RKV_TYPE_Q4_0:
        return get_q4_0(row + i / RKVI_BLOCK * (RKVI_BLOCK / 2), scales[i / RKVI_BLOCK], half);
    default: return v_load((const float *)(const void *)row + i);
    }
}

/* e4m3 as f16 (get8_e4m3) for `n` elements, a multiple of 16, padded to 32. */
static inline void source_f16(const uint8_t *p, size_t n, uint16_t *out)
{
    const __m512i keep = _mm512_set1_epi16((short)0xbf80);
    size_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const __m512i x = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)(p + i)));
        _mm512_storeu_si512(out + i, _mm512_and_si512(_mm512_slli_epi16(x, 7), keep));
    }
    if (i < n) {
        const __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(p + i)));
        _mm256_storeu_si256((__m256i *)(void *)(out + i),
                            _mm256_and_si256(_mm256_slli_epi16(x, 7), _mm512_castsi512_si256(keep)));
    }
}

#else

RKVI_INLINE vf source_get(const rkv_type type, const uint8_t *row, const float *scales, uint32_t i,
                          const uint32_t half)
{
    (void)type, (void)scales, (void)half;
    return v_load((const float *)(const void *)row + i);
}

#endif

/* Asking for what comes next, a line or two at each piece of work: asked for in
 * one go, lines queue for the core's few fill buffers, and work waits. */
typedef struct vec_ask {
    const uint8_t *at;
    size_t step; /* bytes asked for at each piece of work */
} vec_ask;

RKVI_INLINE void ask_bytes(const uint8_t *at, size_t bytes)
{
    for (size_t b = 0; b < bytes; b += 64)
        __builtin_prefetch(at + b);
}

#endif
