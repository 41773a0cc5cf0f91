/* ops_math.h: exp, tanh and log of the kernels.
 *
 * Not libm's, whose last bits differ from machine to machine.  exp and tanh
 * are chains of explicit fma in f32, so that their vector forms (ops_simd.h)
 * give the same bits lane by lane.
 */
#ifndef RKVI_OPS_MATH_H
#define RKVI_OPS_MATH_H

#include "ops_half.h"

/* exp(x) = 2^n * exp(r), n = round(x / ln 2), |r| <= ln 2 / 2 (+ rounding);
 * exp(r) = 1 + r + r^2 * (E0 + E1 r + .. + E4 r^4), interpolated at Chebyshev
 * points.  Below RKVI_EXP_MIN, where the result is no normal number, 0. */
#define RKVI_EXP_MIN (-87.33654f)
#define RKVI_LOG2E 0x1.715476p+0f
#define RKVI_LN2_HI 0x1.62ep-1f /* few bits: n * hi is exact */
#define RKVI_LN2_LO 0x1.0bfbe8p-15f
#define RKVI_ROUND 12582912.0f /* 1.5 * 2^23: the sum's low bits are the integer */
#define RKVI_E0 0x1p-1f
#define RKVI_E1 0x1.5554dcp-3f
#define RKVI_E2 0x1.555518p-5f
#define RKVI_E3 0x1.120be2p-7f
#define RKVI_E4 0x1.6d117cp-10f

/* At most 1.1 ulp off; exact at 0; 0 at -inf; for x up to 88. */
static inline float rkvi_expf(float x)
{
    const float t = __builtin_fmaf(x, RKVI_LOG2E, RKVI_ROUND), n = t - RKVI_ROUND;
    float r = __builtin_fmaf(n, -RKVI_LN2_HI, x);
    r = __builtin_fmaf(n, -RKVI_LN2_LO, r);
    float p = __builtin_fmaf(RKVI_E4, r, RKVI_E3);
    p = __builtin_fmaf(p, r, RKVI_E2);
    p = __builtin_fmaf(p, r, RKVI_E1);
    p = __builtin_fmaf(p, r, RKVI_E0);
    p = __builtin_fmaf(r * r, p, r) + 1.0f;
    return x < RKVI_EXP_MIN ? 0.0f : rkvi_from_bits(rkvi_bits(p) + (rkvi_bits(t) << 23));
}

/* tanh(x) = x + x^3 * (T0 + T1 x^2 + ..) near 0, 1 - 2 / (exp(2 |x|) + 1)
 * elsewhere, so that small scores keep their relative precision. */
#define RKVI_TANH_SMALL 0.625f
#define RKVI_TANH_ONE 10.0f /* from here on 1 */
#define RKVI_T0 (-0x1.555556p-2f)
#define RKVI_T1 0x1.1110e4p-3f
#define RKVI_T2 (-0x1.ba0718p-5f)
#define RKVI_T3 0x1.648e8ep-6f
#define RKVI_T4 (-0x1.10bbf4p-7f)
#define RKVI_T5 0x1.2977d8p-9f

static inline float rkvi_tanhf(float x)
{
    float a = rkvi_from_bits(rkvi_bits(x) & 0x7fffffffu);
    const float z = x * x;
    float p = __builtin_fmaf(RKVI_T5, z, RKVI_T4);
    p = __builtin_fmaf(p, z, RKVI_T3);
    p = __builtin_fmaf(p, z, RKVI_T2);
    p = __builtin_fmaf(p, z, RKVI_T1);
    p = __builtin_fmaf(p, z, RKVI_T0);
    const float small = __builtin_fmaf(p * z, x, x);
    if (a < RKVI_TANH_SMALL)
        return small;
    a = a > RKVI_TANH_ONE ? RKVI_TANH_ONE : a;
    const float large = 1.0f - 2.0f / (rkvi_expf(a + a) + 1.0f);
    return rkvi_from_bits(rkvi_bits(large) | (rkvi_bits(x) & 0x80000000u));
}

/* log of a normal x > 0, in f64 (NaN of NaN): e ln 2 + 2 artanh((f - 1) / (f + 1)). */
static inline double rkvi_log(double x)
{
    if (x != x)
        return x;
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    int64_t e = (int64_t)(u >> 52) - 1023;
    u = (u & 0xfffffffffffffu) | 0x3ff0000000000000u;
    double f;
    memcpy(&f, &u, sizeof f);
    if (f > 0x1.6a09e667f3bcdp0) {
        f *= 0.5;
        e++;
    }
    const double s = (f - 1.0) / (f + 1.0), z = s * s;
    double p = 0;
    for (int k = 19; k >= 1; k -= 2)
        p = p * z + 1.0 / k;
    return (double)e * 0x1.62e42fefa39efp-1 + 2.0 * s * p;
}

#endif
