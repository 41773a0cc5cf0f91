/* The storage types, element by element.  Everything that writes stored values
 * goes through rkvi_plane_put, in all kernel sets, so that the bytes of a tile
 * do not depend on the set; the vector reads (ops_vec_rows.h) give the values
 * of rkvi_plane_get exactly. */
#include "ops_rows.h"

#include "ops_half.h"

#include <assert.h>
#include <math.h>

rkvi_plane rkvi_plane_k(const rkvi_geom *g, uint64_t base, uint32_t head)
{
    uint8_t *at = (uint8_t *)(uintptr_t)base + head * g->head_bytes;
    return (rkvi_plane){.quants = at + g->k_off,
                        .scales = at + g->k_scale_off,
                        .cell_bytes = g->k_cell_bytes,
                        .scale_cell_bytes = g->k_scale_cell_bytes,
                        .dim = g->dk,
                        .type = g->type_k,
                        .scale = g->k_scale};
}

rkvi_plane rkvi_plane_v(const rkvi_geom *g, uint64_t base, uint32_t head)
{
    uint8_t *at = (uint8_t *)(uintptr_t)base + head * g->head_bytes;
    return (rkvi_plane){.quants = at + g->v_off,
                        .scales = at + g->v_scale_off,
                        .cell_bytes = g->v_cell_bytes,
                        .scale_cell_bytes = g->v_scale_cell_bytes,
                        .dim = g->dv,
                        .type = g->type_v,
                        .scale = g->v_scale};
}

/* Blocks: 32 elements, one f16 scale (the layout is in geometry.h). */

static void get_q8_0(const int8_t *q, const uint16_t *d, uint32_t dim, float *out)
{
    for (uint32_t b = 0; b < dim / RKVI_BLOCK; b++) {
        const float scale = rkvi_f16_to_f32(d[b]);
        for (uint32_t i = 0; i < RKVI_BLOCK; i++)
            out[b * RKVI_BLOCK + i] = (float)q[b * RKVI_BLOCK + i] * scale;
    }
}

static void get_q4_0(const uint8_t *q, const uint16_t *d, uint32_t dim, float *out)
{
    for (uint32_t b = 0; b < dim / RKVI_BLOCK; b++, q += 16, out += RKVI_BLOCK) {
        const float scale = rkvi_f16_to_f32(d[b]);
        for (uint32_t i = 0; i < 16; i++) {
            out[i] = (float)((q[i] & 15) - 8) * scale;
            out[16 + i] = (float)((q[i] >> 4) - 8) * scale;
        }
    }
}

/* The block's scale, saturated.  Its inverse is taken before the scale is
 * rounded to f16, as ggml does; a scale so small that it has no inverse
 * stands for zeros. */
static float put_scale(float d, uint16_t *out)
{
    const float s = rkvi_saturate(d, RKVI_F16_MAX), inverse = 1.0f / s;
    *out = rkvi_f32_to_f16(s);
    return isfinite(inverse) ? inverse : 0.0f;
}

/* Infinite inputs come as the largest f32: inf * 0 would be NaN. */
static void put_q8_0(const float *in, uint32_t dim, int8_t *q, uint16_t *d)
{
    for (uint32_t b = 0; b < dim / RKVI_BLOCK; b++, in += RKVI_BLOCK, q += RKVI_BLOCK) {
        float amax = 0;
        for (uint32_t i = 0; i < RKVI_BLOCK; i++)
            amax = fmaxf(amax, fabsf(rkvi_saturate(in[i], 0x1.fffffep127f)));
        const float inverse = put_scale(amax / 127.0f, &d[b]);
        for (uint32_t i = 0; i < RKVI_BLOCK; i++) {
            const float x = rkvi_saturate(in[i], 0x1.fffffep127f) * inverse;
            q[i] = (int8_t)roundf(rkvi_saturate(x, 127.0f));
        }
    }
}

/* (x / d + 8.5) cut to whole numbers, from 0 to 15. */
static uint8_t nibble(float x, float inverse)
{
    const float y = rkvi_saturate(x, 0x1.fffffep127f) * inverse + 8.5f;
    return (uint8_t)(y > 15.0f ? 15.0f : y > 0.0f ? y : 0.0f);
}

static void put_q4_0(const float *in, uint32_t dim, uint8_t *q, uint16_t *d)
{
    for (uint32_t b = 0; b < dim / RKVI_BLOCK; b++, in += RKVI_BLOCK, q += 16) {
        float largest = 0; /* with its sign; the first of equals */
        for (uint32_t i = 0; i < RKVI_BLOCK; i++) {
            const float x = rkvi_saturate(in[i], 0x1.fffffep127f);
            if (fabsf(x) > fabsf(largest))
                largest = x;
        }
        const float inverse = put_scale(largest / -8.0f, &d[b]);
        for (uint32_t i = 0; i < 16; i++)
            q[i] = (uint8_t)(nibble(in[i], inverse) | nibble(in[16 + i], inverse) << 4);
    }
}

void rkvi_plane_get(const rkvi_plane *plane, uint32_t cell, float *out)
{
    const uint8_t *q = plane->quants + (uint64_t)cell * plane->cell_bytes;
    const uint16_t *h = (const uint16_t *)(const void *)q;
    const uint16_t *d =
        (const uint16_t *)(const void *)(plane->scales + (uint64_t)cell * plane->scale_cell_bytes);
    switch (plane->type) {
    case RKV_TYPE_F16:
        for (uint32_t i = 0; i < plane->dim; i++)
            out[i] = rkvi_f16_to_f32(h[i]);
        break;
    case RKV_TYPE_BF16:
        for (uint32_t i = 0; i < plane->dim; i++)
            out[i] = rkvi_bf16_to_f32(h[i]);
        break;
    case RKV_TYPE_FP8_E4M3:
        for (uint32_t i = 0; i < plane->dim; i++)
            out[i] = rkvi_e4m3_to_f32(q[i]) * plane->scale;
        break;
    case RKV_TYPE_Q8_0:
        get_q8_0((const int8_t *)q, d, plane->dim, out);
        break;
    default:
        assert(plane->type == RKV_TYPE_Q4_0);
        get_q4_0(q, d, plane->dim, out);
    }
}

void rkvi_plane_put(const rkvi_plane *plane, uint32_t cell, const float *in)
{
    uint8_t *q = plane->quants + (uint64_t)cell * plane->cell_bytes;
    uint16_t *h = (uint16_t *)(void *)q;
    uint16_t *d = (uint16_t *)(void *)(plane->scales + (uint64_t)cell * plane->scale_cell_bytes);
    switch (plane->type) {
    case RKV_TYPE_F16:
        for (uint32_t i = 0; i < plane->dim; i++)
            h[i] = rkvi_f32_to_f16_sat(in[i]);
        break;
    case RKV_TYPE_BF16:
        for (uint32_t i = 0; i < plane->dim; i++)
            h[i] = rkvi_f32_to_bf16_sat(in[i]);
        break;
    case RKV_TYPE_FP8_E4M3:
        for (uint32_t i = 0; i < plane->dim; i++)
            q[i] = rkvi_f32_to_e4m3_sat(in[i] / plane->scale);
        break;
    case RKV_TYPE_Q8_0:
        put_q8_0(in, plane->dim, (int8_t *)q, d);
        break;
    default:
        assert(plane->type == RKV_TYPE_Q4_0);
        put_q4_0(in, plane->dim, q, d);
    }
}

static int64_t element(const rkvi_tensor *t, uint64_t row, uint32_t head)
{
    return (int64_t)row * t->row_stride + (int64_t)head * t->head_stride;
}

void rkvi_tensor_get(const rkvi_tensor *t, uint64_t row, uint32_t head, uint32_t dim, float *out)
{
    const int64_t at = element(t, row, head);
    const uint16_t *h = (const uint16_t *)t->data + at;
    if (t->type == RKV_TYPE_F32)
        memcpy(out, (const float *)t->data + at, dim * sizeof *out);
    else if (t->type == RKV_TYPE_F16)
        for (uint32_t i = 0; i < dim; i++)
            out[i] = rkvi_f16_to_f32(h[i]);
    else
        for (uint32_t i = 0; i < dim; i++)
            out[i] = rkvi_bf16_to_f32(h[i]);
}

void rkvi_tensor_put(const rkvi_tensor *t, uint64_t row, uint32_t head, uint32_t dim,
                     const float *in)
{
    const int64_t at = element(t, row, head);
    uint16_t *h = (uint16_t *)t->data + at;
    if (t->type == RKV_TYPE_F32)
        memcpy((float *)t->data + at, in, dim * sizeof *in);
    else if (t->type == RKV_TYPE_F16)
        for (uint32_t i = 0; i < dim; i++)
            h[i] = rkvi_f32_to_f16(in[i]);
    else
        for (uint32_t i = 0; i < dim; i++)
            h[i] = rkvi_f32_to_bf16(in[i]);
}
