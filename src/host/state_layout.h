/* state_layout.h: numbers of the format that writing and reading share. */
#ifndef RKVI_STATE_LAYOUT_H
#define RKVI_STATE_LAYOUT_H

#include <stdint.h>
#include <string.h>

#define RKVI_STATE_MAGIC "RKVSTATE"
#define RKVI_STATE_VERSION 1u
#define RKVI_STATE_SCOPE_SEQUENCE 1u
#define RKVI_STATE_SCOPE_CACHE 2u
#define RKVI_STATE_HASH_XXH3 1u  /* XXH3, 64 bits */
#define RKVI_STATE_K_AS_GIVEN 0u /* K is as the engine passed it: rotated for its own position */
#define RKVI_STATE_FIXED_BYTES 64u
#define RKVI_STATE_LAYER_BYTES 64u
#define RKVI_STATE_SEQ_BYTES 16u
#define RKVI_STATE_SEGMENT_BYTES 32u
#define RKVI_STATE_ROPE_MAX 4096u /* frequencies */

/* Little-endian, whatever the machine is. */
typedef struct rkvi_put {
    uint8_t *at;
} rkvi_put;

static inline void rkvi_put_u64(rkvi_put *p, uint64_t x)
{
    for (int i = 0; i < 8; i++)
        *p->at++ = (uint8_t)(x >> 8 * i);
}

static inline void rkvi_put_u32(rkvi_put *p, uint32_t x)
{
    for (int i = 0; i < 4; i++)
        *p->at++ = (uint8_t)(x >> 8 * i);
}

static inline void rkvi_put_f32(rkvi_put *p, float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    rkvi_put_u32(p, u);
}

static inline void rkvi_put_zeros(rkvi_put *p, uint64_t n)
{
    memset(p->at, 0, n);
    p->at += n;
}

/* Reading within [at, end): what lies beyond reads as 0, and is_short tells;
 * is_unknown: bytes that must be 0 are not. */
typedef struct rkvi_get {
    const uint8_t *at, *end;
    int is_short, is_unknown;
} rkvi_get;

static inline uint64_t rkvi_get_n(rkvi_get *g, int n)
{
    uint64_t x = 0;
    if (g->end - g->at < n) {
        g->is_short = 1;
        g->at = g->end;
        return 0;
    }
    for (int i = 0; i < n; i++)
        x |= (uint64_t)*g->at++ << 8 * i;
    return x;
}

static inline uint64_t rkvi_get_u64(rkvi_get *g)
{
    return rkvi_get_n(g, 8);
}

static inline uint32_t rkvi_get_u32(rkvi_get *g)
{
    return (uint32_t)rkvi_get_n(g, 4);
}

static inline void rkvi_get_zeros(rkvi_get *g, int n)
{
    while (n-- > 0)
        g->is_unknown |= rkvi_get_n(g, 1) != 0;
}

static inline float rkvi_get_f32(rkvi_get *g)
{
    const uint32_t u = rkvi_get_u32(g);
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline uint64_t rkvi_state_pad(uint64_t bytes)
{
    return (bytes + 7) / 8 * 8;
}

#endif
