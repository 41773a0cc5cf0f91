/* ops_half.h: scalar conversions between f32 and the 16- and 8-bit types.
 *
 * Written on bits, so that they give the same values with any compiler, any
 * rounding of libm and with denormals-are-zero set.  To a narrow type they
 * round to nearest, ties to even.
 */
#ifndef RKVI_OPS_HALF_H
#define RKVI_OPS_HALF_H

#include <stdint.h>
#include <string.h>

#define RKVI_F16_MAX 65504.0f
#define RKVI_BF16_MAX 0x1.fep127f
#define RKVI_E4M3_MAX 448.0f

static inline uint32_t rkvi_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static inline float rkvi_from_bits(uint32_t u)
{
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline float rkvi_f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, mag = h & 0x7fffu;
    uint32_t u;
    if (mag < 0x400u)
        u = rkvi_bits((float)mag * 0x1p-24f);
    else if (mag < 0x7c00u)
        u = (mag << 13) + (112u << 23);
    else
        u = 0x7f800000u | (mag << 13);
    return rkvi_from_bits(u | sign);
}

/* Too large becomes infinity, NaN a quiet NaN: for tensors of the caller. */
static inline uint16_t rkvi_f32_to_f16(float x)
{
    const uint32_t u = rkvi_bits(x), sign = u >> 16 & 0x8000u;
    uint32_t mag = u & 0x7fffffffu, h;
    if (mag > 0x7f800000u)
        h = 0x7e00u;
    else if (mag >= 0x477ff000u) /* 65520: half way above the largest */
        h = 0x7c00u;
    else if (mag < 0x38800000u) /* a last place of 0.5f is 2^-24, as a subnormal's */
        h = rkvi_bits(rkvi_from_bits(mag) + 0.5f) - 0x3f000000u;
    else
        h = (mag + 0xfffu + (mag >> 13 & 1u) - (112u << 23)) >> 13;
    return (uint16_t)(sign | h);
}

static inline float rkvi_bf16_to_f32(uint16_t b)
{
    return rkvi_from_bits((uint32_t)b << 16);
}

static inline uint16_t rkvi_f32_to_bf16(float x)
{
    const uint32_t u = rkvi_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static inline float rkvi_e4m3_to_f32(uint8_t b)
{
    const uint32_t sign = (uint32_t)(b & 0x80u) << 24, mag = b & 0x7fu;
    uint32_t u;
    if (mag < 8u)
        u = rkvi_bits((float)mag * 0x1p-9f);
    else if (mag < 0x7fu)
        u = (mag << 20) + (120u << 23);
    else
        u = 0x7fc00000u;
    return rkvi_from_bits(u | sign);
}

/* NaN becomes 0, what is beyond [-max, max] its end: for stored values, where
 * one bad value must not spoil rows that share its tile. */
static inline float rkvi_saturate(float x, float max)
{
    if (x != x)
        return 0.0f;
    return x > max ? max : x < -max ? -max : x;
}

static inline uint16_t rkvi_f32_to_f16_sat(float x)
{
    return rkvi_f32_to_f16(rkvi_saturate(x, RKVI_F16_MAX));
}

static inline uint16_t rkvi_f32_to_bf16_sat(float x)
{
    return rkvi_f32_to_bf16(rkvi_saturate(x, RKVI_BF16_MAX));
}

static inline uint8_t rkvi_f32_to_e4m3_sat(float x)
{
    const uint32_t u = rkvi_bits(rkvi_saturate(x, RKVI_E4M3_MAX));
    const uint32_t sign = u >> 24 & 0x80u, mag = u & 0x7fffffffu;
    uint32_t e;
    if (mag < 0x3c800000u) /* 2^-6: a last place of 2^14 is 2^-9, as a subnormal's */
        e = rkvi_bits(rkvi_from_bits(mag) + 0x1p14f) - 0x46800000u;
    else
        e = (mag + 0x7ffffu + (mag >> 20 & 1u) - (120u << 23)) >> 20;
    return (uint8_t)(sign | e);
}

#endif
