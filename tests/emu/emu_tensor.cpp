/* SPDX-License-Identifier: MIT
 *
 * emu_tensor.cpp: products of the tensor cores.
 *
 * Products are exact; an element's sum starts from C and takes them one by one in
 * the order of the contraction, rounded to f32 each time.  A GPU's sum has an order
 * and roundings of its own, about as good: bits differ from it, and agree among
 * themselves.
 *
 * wgmma: each warp's 16 rows.  What it asks for is done at once or when it is waited
 * for, by draw; until then D holds NaNs, and A and B are not yet read.
 */
#include "emu_ptx.hpp"

#include <stdlib.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

/* 16 elements to f32. */
static inline void widen(float *to, const uint16_t *from, bool bf16)
{
    if (bf16) {
        for (int i = 0; i < 16; i++)
            to[i] = rkvi_bf16_to_f32(from[i]);
        return;
    }
#ifdef __F16C__
    for (int i = 0; i < 16; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
#else
    for (int i = 0; i < 16; i++)
        to[i] = rkvi_f16_to_f32(from[i]);
#endif
}

/* d[16][8] += a[16][16] * b[16][8], rows of d and b 8 elements. */
static inline void multiply(float (*d)[8], const float (*a)[16], const float (*b)[8])
{
#ifdef __FMA__
    __m256 rows[16];
    for (int k = 0; k < 16; k++)
        rows[k] = _mm256_loadu_ps(b[k]);
    for (int i = 0; i < 16; i += 4) {
        __m256 x[4];
        for (int r = 0; r < 4; r++)
            x[r] = _mm256_loadu_ps(d[i + r]);
        for (int k = 0; k < 16; k++)
            for (int r = 0; r < 4; r++)
                x[r] = _mm256_fmadd_ps(_mm256_broadcast_ss(&a[i + r][k]), rows[k], x[r]);
        for (int r = 0; r < 4; r++)
            _mm256_storeu_ps(d[i + r], x[r]);
    }
#else
    for (int i = 0; i < 16; i++)
        for (int n = 0; n < 8; n++)
            for (int k = 0; k < 16; k++)
                d[i][n] = fmaf(a[i][k], b[k][n], d[i][n]);
#endif
}

/* The lanes' fragments of A, 4 registers each, to rows. */
static void gather_a(float (*a)[16], const uint32_t *const *lanes, bool bf16)
{
    uint32_t words[16][8];
    for (uint32_t i = 0; i < EMU_LANES; i++) {
        const uint32_t g = i / 4, t = i % 4;
        words[g][t] = lanes[i][0];
        words[g + 8][t] = lanes[i][1];
        words[g][t + 4] = lanes[i][2];
        words[g + 8][t + 4] = lanes[i][3];
    }
    for (int row = 0; row < 16; row++)
        widen(a[row], (const uint16_t *)words[row], bf16);
}

static void gather_d(float (*d)[8], float *const *lanes)
{
    for (uint32_t i = 0; i < EMU_LANES; i++) {
        const uint32_t g = i / 4, t = i % 4;
        memcpy(&d[g][2 * t], lanes[i], 8);
        memcpy(&d[g + 8][2 * t], lanes[i] + 2, 8);
    }
}

static void scatter_d(float *const *lanes, const float (*d)[8])
{
    for (uint32_t i = 0; i < EMU_LANES; i++) {
        const uint32_t g = i / 4, t = i % 4;
        memcpy(lanes[i], &d[g][2 * t], 8);
        memcpy(lanes[i] + 2, &d[g + 8][2 * t], 8);
    }
}

static void mma(emu_warp *w)
{
    const emu_mma *const *lanes = (const emu_mma *const *)w->slot;
    const bool bf16 = lanes[0]->bf16;
    const uint32_t *a_of[EMU_LANES];
    float *d_of[EMU_LANES], a[16][16], b[16][8], d[16][8];
    uint32_t words[8][8]; /* of B: columns */
    for (uint32_t i = 0; i < EMU_LANES; i++) {
        const uint32_t g = i / 4, t = i % 4;
        a_of[i] = lanes[i]->a;
        d_of[i] = lanes[i]->c;
        words[g][t] = lanes[i]->b0;
        words[g][t + 4] = lanes[i]->b1;
    }
    gather_a(a, a_of, bf16);
    for (int n = 0; n < 8; n++) {
        float column[16];
        widen(column, (const uint16_t *)words[n], bf16);
        for (int k = 0; k < 16; k++)
            b[k][n] = column[k];
    }
    gather_d(d, d_of);
    multiply(d, a, b);
    scatter_d(d_of, d);
}

/* ----------------------------------------------------------------------- wgmma */

/* One instruction of a warp, not done yet. */
struct pending {
    emu_wgmma lane[EMU_LANES];
    float *before[EMU_LANES]; /* what D held, where this is the first since a wait */
    uint32_t warp, group;
};

struct emu_wgmma_queue {
    pending *item;
    uint32_t first, end, room;
    uint32_t n_groups;
    bool is_late; /* of the group being filled */
};

void emu_wgmma_reset(emu_warp *w)
{
    if (!w->wgmma)
        w->wgmma = (emu_wgmma_queue *)calloc(1, sizeof *w->wgmma);
    emu_wgmma_queue *q = w->wgmma;
    if (!q)
        emu_fail("no memory for wgmma");
    if (q->first != q->end)
        emu_fail("a block ended with wgmma under way");
    q->n_groups = 0;
    q->is_late = emu_random() % 2;
}

/* A descriptor of shared memory: where, and how 16-byte pieces are exchanged. */
struct place {
    uint32_t at, leading, stride; /* bytes */
    uint32_t mask;                /* of bits 7 .. of an address, exchanged with bits 4 .. */
    uint32_t width;               /* bytes of a row of a swizzled chunk */
};

static place place_of(uint64_t descriptor)
{
    static const uint32_t pieces[] = {1, 8, 4, 2}; /* none, 128, 64, 32 bytes */
    const uint32_t n = pieces[descriptor >> 62];
    return {(uint32_t)(descriptor & 0x3fff) << 4, (uint32_t)(descriptor >> 16 & 0x3fff) << 4,
            (uint32_t)(descriptor >> 32 & 0x3fff) << 4, n - 1, n * 16};
}

/* Swizzling goes by addresses as they are. */
static uint16_t element(const place &p, uint32_t offset)
{
    const uint32_t x = p.at + offset;
    uint16_t u;
    memcpy(&u, emu_smem_at(x ^ (x >> 7 & p.mask) << 4, 2), sizeof u);
    return u;
}

/* Elements of row `row` with k in [0, 16): K-major, 8 rows to a stride. */
static void row_by_k(float *to, const place &p, uint32_t row, bool bf16)
{
    uint16_t x[16];
    for (uint32_t k = 0; k < 16; k++)
        x[k] = element(p, row / 8 * p.stride + row % 8 * p.width + k * 2);
    widen(to, x, bf16);
}

/* Column n of B, N-major: k runs over rows, n over dims. */
static void column_by_rows(float *to, const place &p, uint32_t n, bool bf16)
{
    const uint32_t dims = p.width / 2;
    uint16_t x[16];
    for (uint32_t k = 0; k < 16; k++)
        x[k] = element(p, n / dims * p.leading + k / 8 * p.stride + k % 8 * p.width + n % dims * 2);
    widen(to, x, bf16);
}

static void wgmma(const emu_wgmma *lane, float *const *before, uint32_t warp)
{
    const emu_wgmma &all = lane[0];
    const uint32_t *a_of[EMU_LANES];
    float a[16][16];
    if (all.a) {
        for (uint32_t i = 0; i < EMU_LANES; i++)
            a_of[i] = lane[i].a;
        gather_a(a, a_of, all.bf16);
    } else {
        const place p = place_of(all.a_at);
        for (uint32_t row = 0; row < 16; row++)
            row_by_k(a[row], p, warp % 4 * 16 + row, all.bf16);
    }
    const place p = place_of(all.b_at);
    for (uint32_t n0 = 0; n0 < all.n; n0 += 8) {
        float b[16][8], d[16][8], column[16];
        float *from[EMU_LANES], *to[EMU_LANES];
        for (uint32_t n = 0; n < 8; n++) {
            if (all.b_by_rows)
                column_by_rows(column, p, n0 + n, all.bf16);
            else
                row_by_k(column, p, n0 + n, all.bf16);
            for (int k = 0; k < 16; k++)
                b[k][n] = column[k];
        }
        for (uint32_t i = 0; i < EMU_LANES; i++) {
            to[i] = lane[i].d + n0 / 2;
            from[i] = before[i] ? before[i] + n0 / 2 : to[i];
        }
        if (all.first)
            memset(d, 0, sizeof d);
        else
            gather_d(d, from);
        multiply(d, a, b);
        scatter_d(to, d);
    }
}

static bool is_under_way(const emu_wgmma_queue *q, const float *d)
{
    for (uint32_t i = q->first; i < q->end; i++)
        if (q->item[i].lane[0].d == d)
            return true;
    return false;
}

/* D becomes NaNs, what it held is kept, where nothing under way writes it yet. */
static void hide_d(const emu_wgmma_queue *q, pending *p)
{
    const uint32_t floats = p->lane[0].n / 2;
    memset(p->before, 0, sizeof p->before);
    if (is_under_way(q, p->lane[0].d))
        return;
    for (uint32_t i = 0; i < EMU_LANES; i++) {
        p->before[i] = (float *)malloc(floats * sizeof(float));
        if (!p->before[i])
            emu_fail("no memory for wgmma");
        memcpy(p->before[i], p->lane[i].d, floats * sizeof(float));
        memset(p->lane[i].d, 0xff, floats * sizeof(float));
    }
}

static void issue(emu_warp *w)
{
    emu_wgmma_queue *q = w->wgmma;
    pending p;
    for (uint32_t i = 0; i < EMU_LANES; i++)
        p.lane[i] = *(const emu_wgmma *)w->slot[i];
    for (uint32_t i = 1; i < EMU_LANES; i++)
        if (p.lane[i].a_at != p.lane[0].a_at || p.lane[i].b_at != p.lane[0].b_at || p.lane[i].n != p.lane[0].n ||
            p.lane[i].first != p.lane[0].first)
            emu_fail("lanes of a warp at different wgmma");
    p.warp = w->number;
    p.group = q->n_groups;
    if (!q->is_late && q->first == q->end) {
        memset(p.before, 0, sizeof p.before);
        wgmma(p.lane, p.before, p.warp);
        return;
    }
    hide_d(q, &p);
    if (q->end == q->room) {
        q->room = q->room ? 2 * q->room : 32;
        q->item = (pending *)realloc(q->item, q->room * sizeof *q->item);
        if (!q->item)
            emu_fail("no memory for wgmma");
    }
    q->item[q->end++] = p;
}

static void wait(emu_warp *w)
{
    emu_wgmma_queue *q = w->wgmma;
    const uint32_t but = *(const uint32_t *)w->slot[0];
    while (q->first != q->end && q->n_groups - q->item[q->first].group > but) {
        pending *p = &q->item[q->first++];
        wgmma(p->lane, p->before, p->warp);
        for (uint32_t i = 0; i < EMU_LANES; i++)
            free(p->before[i]);
    }
    if (q->first == q->end)
        q->first = q->end = 0;
}

void emu_tensor_do(emu_warp *w)
{
    emu_wgmma_queue *q = w->wgmma;
    switch (w->op) {
    case EMU_MMA: mma(w); break;
    case EMU_WGMMA: issue(w); break;
    case EMU_WGMMA_COMMIT:
        q->n_groups++;
        q->is_late = emu_random() % 2;
        break;
    case EMU_WGMMA_WAIT: wait(w); break;
    default: emu_fail("instruction %u", w->op);
    }
}
