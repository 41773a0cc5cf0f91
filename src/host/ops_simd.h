/* ops_simd.h: vectors of f32 in the width of the including file's instruction
 * set, and exp and tanh with the bits of ops_math.h in each lane.
 *
 * The including file sets RKVI_LANES: 16 (AVX-512) or 8 (AVX2, FMA, F16C).
 * Sums across lanes are fixed trees, so that they don't depend on what else is
 * computed in the same call.
 */
#ifndef RKVI_OPS_SIMD_H
#define RKVI_OPS_SIMD_H

#include "ops_math.h"

#include <cpuid.h>
#include <immintrin.h>
#include <math.h>
#include <stdbool.h>

#if defined(__clang__)
#define RKVI_UNROLL _Pragma("clang loop unroll(full)")
#else
#define RKVI_UNROLL _Pragma("GCC unroll 16")
#endif
#define RKVI_INLINE static inline __attribute__((always_inline))

#if RKVI_LANES == 16

typedef __m512 vf;
typedef __mmask16 vm;

RKVI_INLINE vf v_set(float x)
{
    return _mm512_set1_ps(x);
}

RKVI_INLINE vf v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

RKVI_INLINE void v_store(float *p, vf x)
{
    _mm512_storeu_ps(p, x);
}

RKVI_INLINE vf v_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* c - a * b */
RKVI_INLINE vf v_fnma(vf a, vf b, vf c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

/* The second where one is NaN. */
RKVI_INLINE vf v_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

RKVI_INLINE vf v_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

RKVI_INLINE vm v_less(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

RKVI_INLINE vf v_select(vm m, vf yes, vf no)
{
    return _mm512_mask_blend_ps(m, no, yes);
}

/* Lanes i with from <= first + i < to. */
RKVI_INLINE vm v_range(uint32_t first, uint32_t from, uint32_t to)
{
    const __m512i i = _mm512_add_epi32(
        _mm512_set1_epi32((int)first),
        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
    return _mm512_cmpge_epu32_mask(i, _mm512_set1_epi32((int)from)) &
           _mm512_cmplt_epu32_mask(i, _mm512_set1_epi32((int)to));
}

RKVI_INLINE vf v_and_sign(vf x)
{
    return _mm512_and_ps(x, _mm512_set1_ps(-0.0f));
}

RKVI_INLINE vf v_or(vf a, vf b)
{
    return _mm512_or_ps(a, b);
}

RKVI_INLINE vf v_abs(vf x)
{
    return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), x);
}

/* x * 2^n, n in the low bits of t (rkvi_expf). */
RKVI_INLINE vf v_scale2(vf x, vf t)
{
    return _mm512_castsi512_ps(_mm512_add_epi32(
        _mm512_castps_si512(x), _mm512_slli_epi32(_mm512_castps_si512(t), 23)));
}

/* The sums of four vectors, each by the same tree. */
RKVI_INLINE __m128 v_sum4(vf a, vf b, vf c, vf d)
{
    const vf ab = _mm512_shuffle_f32x4(a, b, 0x44) + _mm512_shuffle_f32x4(a, b, 0xee);
    const vf cd = _mm512_shuffle_f32x4(c, d, 0x44) + _mm512_shuffle_f32x4(c, d, 0xee);
    vf x = _mm512_shuffle_f32x4(ab, cd, 0x88) + _mm512_shuffle_f32x4(ab, cd, 0xdd);
    x += _mm512_permute_ps(x, 0x4e);
    x += _mm512_permute_ps(x, 0xb1);
    const __m512i every4th = _mm512_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12);
    return _mm512_castps512_ps128(_mm512_permutexvar_ps(every4th, x));
}

#else

typedef __m256 vf;
typedef __m256 vm;

RKVI_INLINE vf v_set(float x)
{
    return _mm256_set1_ps(x);
}

RKVI_INLINE vf v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

RKVI_INLINE void v_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x);
}

RKVI_INLINE vf v_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

RKVI_INLINE vf v_fnma(vf a, vf b, vf c)
{
    return _mm256_fnmadd_ps(a, b, c);
}

RKVI_INLINE vf v_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

RKVI_INLINE vf v_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}

RKVI_INLINE vm v_less(vf a, vf b)
{
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}

RKVI_INLINE vf v_select(vm m, vf yes, vf no)
{
    return _mm256_blendv_ps(no, yes, m);
}

RKVI_INLINE vm v_range(uint32_t first, uint32_t from, uint32_t to)
{
    const __m256i i = _mm256_add_epi32(_mm256_set1_epi32((int)first),
                                       _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    const __m256i below = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)from), i);
    const __m256i in = _mm256_cmpgt_epi32(_mm256_set1_epi32((int)to), i);
    return _mm256_castsi256_ps(_mm256_andnot_si256(below, in));
}

RKVI_INLINE vf v_and_sign(vf x)
{
    return _mm256_and_ps(x, _mm256_set1_ps(-0.0f));
}

RKVI_INLINE vf v_or(vf a, vf b)
{
    return _mm256_or_ps(a, b);
}

RKVI_INLINE vf v_abs(vf x)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}

RKVI_INLINE vf v_scale2(vf x, vf t)
{
    return _mm256_castsi256_ps(_mm256_add_epi32(
        _mm256_castps_si256(x), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
}

RKVI_INLINE __m128 v_sum4(vf a, vf b, vf c, vf d)
{
    const vf x = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
    return _mm256_castps256_ps128(x) + _mm256_extractf128_ps(x, 1);
}

#endif

/* Not a name that every compiler's __builtin_cpu_supports knows. */
static inline bool cpu_has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

RKVI_INLINE float v_sum(vf x)
{
    return _mm_cvtss_f32(v_sum4(x, x, x, x));
}

/* The largest lane; none is NaN. */
RKVI_INLINE float v_max_lane(vf x)
{
#if RKVI_LANES == 16
    return _mm512_reduce_max_ps(x);
#else
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
#endif
}

RKVI_INLINE vf v_exp(vf x)
{
    const vf t = v_fma(x, v_set(RKVI_LOG2E), v_set(RKVI_ROUND)), n = t - v_set(RKVI_ROUND);
    vf r = v_fnma(n, v_set(RKVI_LN2_HI), x);
    r = v_fnma(n, v_set(RKVI_LN2_LO), r);
    vf p = v_fma(v_set(RKVI_E4), r, v_set(RKVI_E3));
    p = v_fma(p, r, v_set(RKVI_E2));
    p = v_fma(p, r, v_set(RKVI_E1));
    p = v_fma(p, r, v_set(RKVI_E0));
    p = v_fma(r * r, p, r) + v_set(1.0f);
    return v_select(v_less(x, v_set(RKVI_EXP_MIN)), v_set(0), v_scale2(p, t));
}

RKVI_INLINE vf v_tanh(vf x)
{
    const vf z = x * x, a = v_abs(x), one = v_set(1.0f);
    vf p = v_fma(v_set(RKVI_T5), z, v_set(RKVI_T4));
    p = v_fma(p, z, v_set(RKVI_T3));
    p = v_fma(p, z, v_set(RKVI_T2));
    p = v_fma(p, z, v_set(RKVI_T1));
    p = v_fma(p, z, v_set(RKVI_T0));
    const vf small = v_fma(p * z, x, x);
    const vf b = v_min(v_set(RKVI_TANH_ONE), a); /* NaN stays */
    const vf large = v_or(one - v_set(2.0f) / (v_exp(b + b) + one), v_and_sign(x));
    return v_select(v_less(a, v_set(RKVI_TANH_SMALL)), small, large);
}

#endif
