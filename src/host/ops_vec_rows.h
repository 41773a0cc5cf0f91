/* ops_vec_rows.h: vector form of ops_rows.h's reads; the same values exactly.
 *
 * Rows are padded with zeros to whole vectors, so that products need no tails.
 * Nothing is read past the row: the bytes there may be anything.
 */
#ifndef RKVI_OPS_VEC_ROWS_H
#define RKVI_OPS_VEC_ROWS_H

#include "ops_rows.h"
#include "ops_simd.h"

RKVI_INLINE uint32_t vec_pad(uint32_t dim)
{
    return (dim + RKVI_LANES - 1) / RKVI_LANES * RKVI_LANES;
}

/* Eight elements: also the tail of a row in 16 lanes. */

RKVI_INLINE __m256 get8_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

RKVI_INLINE __m256 get8_bf16(const uint16_t *p)
{
    const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}

/* e4m3 as f16 bits: sign extended and shifted, so that the sign stands in bits
 * 15 and 14, of which 14 is cut.  The f16 is 2^8 too small: vec_factor. */
RKVI_INLINE __m256 get8_e4m3(const uint8_t *p)
{
    const __m128i x = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)p));
    const __m128i h = _mm_and_si128(_mm_slli_epi16(x, 7), _mm_set1_epi16((short)0xbf80));
    return _mm256_cvtph_ps(h);
}

/* What a plane's values are still to be multiplied by, for fp8: one factor for
 * all of them, which scores take with their scale, and outputs once a leaf. */
RKVI_INLINE float vec_factor(const rkvi_plane *p)
{
    return p->type == RKV_TYPE_FP8_E4M3 ? 256.0f * p->scale : 1.0f;
}

RKVI_INLINE __m256 get8_i8(__m128i x)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x));
}

#if RKVI_LANES == 16

RKVI_INLINE vf get_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

RKVI_INLINE vf get_bf16(const uint16_t *p)
{
    const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
}

RKVI_INLINE vf get_e4m3(const uint8_t *p)
{
    const __m256i x = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    const __m256i h = _mm256_and_si256(_mm256_slli_epi16(x, 7), _mm256_set1_epi16((short)0xbf80));
    return _mm512_cvtph_ps(h);
}

RKVI_INLINE vf get_q8_0(const uint8_t *q, float scale)
{
    const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)q);
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x)) * v_set(scale);
}

/* The low nibbles of a block, or the high ones: each picks from the block's
 * sixteen values.  (Of the index the low four bits count.) */
RKVI_INLINE vf get_q4_0(const uint8_t *q, float scale, const uint32_t half)
{
    const vf table = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    const __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)q));
    return _mm512_permutexvar_ps(half ? _mm512_srli_epi32(x, 4) : x, table * v_set(scale));
}

RKVI_INLINE void get_block_q8_0(const uint8_t *q, float scale, float *out)
{
    v_store(out, get_q8_0(q, scale));
    v_store(out + 16, get_q8_0(q + 16, scale));
}

RKVI_INLINE void get_block_q4_0(const uint8_t *q, float scale, float *out)
{
    v_store(out, get_q4_0(q, scale, 0));
    v_store(out + 16, get_q4_0(q, scale, 1));
}

/* n f16 to f32. */
static inline void vec_scales(const uint16_t *d, uint32_t n, float *out)
{
    for (uint32_t i = 0; i < n; i += 16) {
        const __mmask16 m = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : (__mmask16)0xffff;
        v_store(out + i, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(m, d + i)));
    }
}

#else

#define get_f16 get8_f16
#define get_bf16 get8_bf16
#define get_e4m3 get8_e4m3

RKVI_INLINE void get_block_q8_0(const uint8_t *q, float scale, float *out)
{
    for (uint32_t i = 0; i < RKVI_BLOCK; i += 8) {
        const __m128i x = _mm_loadl_epi64((const __m128i *)(const void *)(q + i));
        v_store(out + i, get8_i8(x) * v_set(scale));
    }
}

RKVI_INLINE void get_block_q4_0(const uint8_t *q, float scale, float *out)
{
    const __m128i x = _mm_loadu_si128((const __m128i *)(const void *)q);
    const __m128i low = _mm_set1_epi8(15), eight = _mm_set1_epi8(8);
    const __m128i a = _mm_sub_epi8(_mm_and_si128(x, low), eight);
    const __m128i b = _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(x, 4), low), eight);
    v_store(out, get8_i8(a) * v_set(scale));
    v_store(out + 8, get8_i8(_mm_srli_si128(a, 8)) * v_set(scale));
    v_store(out + 16, get8_i8(b) * v_set(scale));
    v_store(out + 24, get8_i8(_mm_srli_si128(b, 8)) * v_set(scale));
}

/* n f16 to f32. */
static inline void vec_scales(const uint16_t *d, uint32_t n, float *out)
{
    uint32_t i = 0;
    for (; i + 8 <= n; i += 8)
        v_store(out + i, get_f16(d + i));
    for (; i < n; i++)
        out[i] = _cvtsh_ss(d[i]);
}

#endif

/* The last eight of a row whose dim is no multiple of 16, and eight zeros. */
RKVI_INLINE void put_tail(float *out, __m256 x)
{
    _mm256_storeu_ps(out, x);
    _mm256_storeu_ps(out + 8, _mm256_setzero_ps());
}

static inline void row_f16(const uint16_t *p, uint32_t dim, float *out)
{
    uint32_t i = 0;
    for (; i + RKVI_LANES <= dim; i += RKVI_LANES)
        v_store(out + i, get_f16(p + i));
    if (i < dim)
        put_tail(out + i, get8_f16(p + i));
}

static inline void row_bf16(const uint16_t *p, uint32_t dim, float *out)
{
    uint32_t i = 0;
    for (; i + RKVI_LANES <= dim; i += RKVI_LANES)
        v_store(out + i, get_bf16(p + i));
    if (i < dim)
        put_tail(out + i, get8_bf16(p + i));
}

static inline void row_e4m3(const uint8_t *p, uint32_t dim, float *out)
{
    uint32_t i = 0;
    for (; i + RKVI_LANES <= dim; i += RKVI_LANES)
        v_store(out + i, get_e4m3(p + i));
    if (i < dim)
        put_tail(out + i, get8_e4m3(p + i));
}

static inline void row_f32(const float *p, uint32_t dim, float *out)
{
    memcpy(out, p, dim * sizeof *out);
    memset(out + dim, 0, (vec_pad(dim) - dim) * sizeof *out);
}

static inline void row_q8_0(const uint8_t *q, const float *d, uint32_t dim, float *out)
{
    for (uint32_t b = 0; b < dim / RKVI_BLOCK; b++)
        get_block_q8_0(q + b * 32, d[b], out + b * 32);
}

static inline void row_q4_0(const uint8_t *q, const float *d, uint32_t dim, float *out)
{
    for (uint32_t b = 0; b < dim / RKVI_BLOCK; b++)
        get_block_q4_0(q + b * 16, d[b], out + b * 32);
}

/* Cells [t, t + n) of a plane, vec_pad(dim) floats each; `scales`: of their
 * blocks, one cell's after another's (vec_scales). */
static inline void vec_cells(const rkvi_plane *p, uint32_t t, uint32_t n, const float *scales, float *out)
{
    const uint32_t dim = p->dim, pitch = vec_pad(dim);
    const uint8_t *q = p->quants + (uint64_t)t * p->cell_bytes;
    for (uint32_t i = 0; i < n; i++, out += pitch, q += p->cell_bytes, scales += dim / RKVI_BLOCK) {
        const uint16_t *h = (const uint16_t *)(const void *)q;
        switch (p->type) {
        case RKV_TYPE_F16: row_f16(h, dim, out); break;
        case RKV_TYPE_BF16: row_bf16(h, dim, out); break;
        case RKV_TYPE_FP8_E4M3: row_e4m3(q, dim, out); break;
        case RKV_TYPE_Q8_0: row_q8_0(q, scales, dim, out); break;
        default: row_q4_0(q, scales, dim, out);
        }
    }
}

/* Row of q, as vec_pad(dim) floats. */
static inline void vec_tensor(const rkvi_tensor *t, uint64_t row, uint32_t head, uint32_t dim,
                              float *out)
{
    const int64_t at = (int64_t)row * t->row_stride + (int64_t)head * t->head_stride;
    if (t->type == RKV_TYPE_F32)
        row_f32((const float *)t->data + at, dim, out);
    else if (t->type == RKV_TYPE_F16)
        row_f16((const uint16_t *)t->data + at, dim, out);
    else
        row_bf16((const uint16_t *)t->data + at, dim, out);
}

#endif
