/* SPDX-License-Identifier: MIT */
#include "quants.h"

#include <math.h>
#include <string.h>

float quant_f16_to_f32(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits >> 15) << 31;
    const uint32_t exponent = (bits >> 10) & 31, fraction = bits & 1023;
    float value;
    if (exponent == 0) { /* zero or subnormal: fraction * 2^-24 is exact in f32 */
        value = ldexpf((float)fraction, -24);
        return sign != 0 ? -value : value;
    }
    const uint32_t f32_exponent = exponent == 31 ? 255 : exponent + (127 - 15);
    const uint32_t out = sign | (f32_exponent << 23) | (fraction << 13);
    memcpy(&value, &out, sizeof value);
    return value;
}

static float load_f16(const uint8_t *p)
{
    uint16_t bits;
    memcpy(&bits, p, sizeof bits);
    return quant_f16_to_f32(bits);
}

static void f32_block(const uint8_t *block, float *out)
{
    memcpy(out, block, sizeof *out);
}

static void f16_block(const uint8_t *block, float *out)
{
    *out = load_f16(block);
}

static void bf16_block(const uint8_t *block, float *out)
{
    uint16_t bits;
    memcpy(&bits, block, sizeof bits);
    const uint32_t wide = (uint32_t)bits << 16;
    memcpy(out, &wide, sizeof *out);
}

/* | f16 d | 32 int8 q |, value = d q */
static void q8_0_block(const uint8_t *block, float *out)
{
    const float d = load_f16(block);
    for (int i = 0; i < 32; i++)
        out[i] = d * (float)(int8_t)block[2 + i];
}

/* | f16 d | 16 bytes |, byte i holds values i (low half) and i + 16; value = d (q - 8) */
static void q4_0_block(const uint8_t *block, float *out)
{
    const float d = load_f16(block);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)((block[2 + i] & 15) - 8);
        out[i + 16] = d * (float)((block[2 + i] >> 4) - 8);
    }
}

/* | f16 d | f16 m | 16 bytes | as above; value = d q + m */
static void q4_1_block(const uint8_t *block, float *out)
{
    const float d = load_f16(block), m = load_f16(block + 2);
    for (int i = 0; i < 16; i++) {
        out[i] = d * (float)(block[4 + i] & 15) + m;
        out[i + 16] = d * (float)(block[4 + i] >> 4) + m;
    }
}

/*
 * | 128 bytes low | 64 bytes high | 16 int8 scales | f16 d |, 256 values, value = d scale (q - 32).
 * Each half of 128 values has 64 low bytes, 32 high bytes and 8 scales: high byte i holds two bits
 * each for values i, i + 32, i + 64, i + 96 of the half; low byte i holds i and i + 64.
 */
static void q6_k_block(const uint8_t *block, float *out)
{
    const float d = load_f16(block + 208);
    for (int half = 0; half < 2; half++) {
        const uint8_t *low = block + 64 * half, *high = block + 128 + 32 * half;
        const int8_t *scale = (const int8_t *)block + 192 + 8 * half;
        for (int i = 0; i < 128; i++) {
            const int four = i < 64 ? low[i] & 15 : low[i - 64] >> 4;
            const int two = (high[i % 32] >> (2 * (i / 32))) & 3;
            out[128 * half + i] = d * (float)scale[i / 16] * (float)((four | (two << 4)) - 32);
        }
    }
}

static const struct quant_info infos[] = {
    {0, "F32", 1, 4, f32_block},     {1, "F16", 1, 2, f16_block},
    {2, "Q4_0", 32, 18, q4_0_block}, {3, "Q4_1", 32, 20, q4_1_block},
    {8, "Q8_0", 32, 34, q8_0_block}, {14, "Q6_K", 256, 210, q6_k_block},
    {30, "BF16", 1, 2, bf16_block},
};

const struct quant_info *quant_find(uint32_t type)
{
    for (size_t i = 0; i < sizeof infos / sizeof infos[0]; i++)
        if (infos[i].type == type)
            return &infos[i];
    return NULL;
}

const char *quant_names(void)
{
    return "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q6_K";
}

void quant_to_f32(const struct quant_info *info, const uint8_t *data, size_t count, float *out)
{
    for (size_t i = 0; i < count; i += info->block_values) {
        info->block_to_f32(data, out + i);
        data += info->block_bytes;
    }
}
