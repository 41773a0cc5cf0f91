/* SPDX-License-Identifier: MIT
 *
 * rkvk_quant.cuh: q8_0 and q4_0 in decode's stream: rows of quants in shared memory
 * to fragments of the tensor cores (layouts of a cell: geometry.h).
 *
 * Integers become f16 by putting their bits under an exponent (1024 + u) and
 * subtracting: exact, and normal numbers.  (Left as subnormals, u * 2^-24, they would
 * do without the exponent; but the tensor cores align sums by exponents as they stand,
 * and lose up to 10 bits.)
 *
 * K is A of S = K * Q^T (M cells, contraction over dims), used exactly.  A block of
 * 32 dims is two steps; ldmatrix brings bytes 4t .. 4t+3 of 16 to lane (g, t),
 * taken by pairs 0, 2 and 1, 3 (rkvk_quant_k_dim lays out Q):
 *
 *   q8_0  step s of a block: its bytes 16s .. 16s+15
 *   q4_0  both steps from the block's 16 bytes: low nibbles (dims 0 .. 15), high ones
 *
 * The block's f16 scale is applied to its f32 sum.
 *
 * V is A of O^T = V^T * P^T (M dims, contraction over cells), exact integers.  Its
 * scales belong to cells and blocks: they multiply P, in f16.  ldmatrix transposes
 * 16-bit units, of two neighbours in a row: see rkvk_v_dim.
 */
#ifndef RKVK_QUANT_CUH
#define RKVK_QUANT_CUH

#include "rkvk_dequant.cuh"

/* The dim of element j (b0's two, then b1's two) of lane t in a step. */
template <rkv_type TYPE>
static __device__ __forceinline__ int rkvk_quant_k_dim(int step, int t, int j)
{
    if constexpr (rkvk_has_scales(TYPE))
        return step * 16 + 4 * t + (j == 1 ? 2 : j == 2 ? 1 : j);
    else
        return rkvk_k_dim<TYPE>(step, t, j);
}

/* ------------------------------------------------------------------- numbers */

/* Bytes 0 and 2 of q8_0; 1 and 3. */
static __device__ __forceinline__ uint32_t rkvk_q8_even(uint32_t w)
{
    return rkvk_q8_pair<0, 2>(w ^ 0x80808080u);
}

static __device__ __forceinline__ uint32_t rkvk_q8_odd(uint32_t w)
{
    return rkvk_q8_pair<1, 3>(w ^ 0x80808080u);
}

/* Nibbles at bits 4 and 20. */
static __device__ __forceinline__ uint32_t rkvk_q4_high(uint32_t w)
{
    const __half2 x = rkvk_half2(rkvk_and_or<0x00f000f0u>(w, 0x64006400u)); /* 1024 + 16 u */
    return rkvk_bits2(__hfma2(x, __float2half2_rn(0.0625f), __float2half2_rn(-72.0f)));
}

/* -------------------------------------------------------------------- scales */

/* Blocks whose scales are loaded together: a whole number of words where it can be. */
static __host__ __device__ constexpr int rkvk_quant_group(int blocks)
{
    return blocks % 4 == 0 ? 4 : blocks % 2 == 0 ? 2 : blocks;
}

/* Of a cell: N blocks', two by two. */
template <int N>
struct rkvk_quant_scales {
    uint32_t x[(N + 1) / 2];
};

template <int N>
static __device__ __forceinline__ rkvk_quant_scales<N> rkvk_quant_load_scales(const uint8_t *p)
{
    rkvk_quant_scales<N> s;
    if constexpr (N == 4) {
        const uint2 v = *reinterpret_cast<const uint2 *>(p);
        s.x[0] = v.x;
        s.x[1] = v.y;
    } else if constexpr (N == 2) {
        s.x[0] = *reinterpret_cast<const uint32_t *>(p);
    } else {
        const uint16_t *h = reinterpret_cast<const uint16_t *>(p);
#pragma unroll
        for (int i = 0; i < (N + 1) / 2; i++)
            s.x[i] = h[2 * i] | (2 * i + 1 < N ? (uint32_t)h[2 * i + 1] << 16 : 0u);
    }
    return s;
}

template <int N>
static __device__ __forceinline__ float rkvk_quant_scale(const rkvk_quant_scales<N> &s, int block)
{
    const __half2 h = rkvk_half2(s.x[block / 2]);
    return block % 2 ? __high2float(h) : __low2float(h);
}

/* Two cells' scales of a block. */
template <int N>
static __device__ __forceinline__ __half2 rkvk_quant_pair(const rkvk_quant_scales<N> &low,
                                                          const rkvk_quant_scales<N> &high, int block)
{
    return rkvk_half2(__byte_perm(low.x[block / 2], high.x[block / 2], block % 2 ? 0x7632 : 0x5410));
}

/* ------------------------------------------------------------------------- K */

/* The words of block `block`: of cells g, g + 8; for q8_0 of both steps.  q4_0's come
 * for two blocks at once, if there are two: those of odd blocks are in w already. */
template <rkv_type TYPE, int PITCH, int BLOCKS>
static __device__ __forceinline__ void rkvk_quant_k_words(uint32_t (&w)[4], const uint8_t *rows, int block, int lane)
{
    const int row = (lane & 7) + (lane >> 3 & 1) * 8;
    if constexpr (TYPE == RKV_TYPE_Q8_0) {
        rkvk_ldmatrix_x4(w, rkvk_smem_addr(rows + row * PITCH + (2 * block + (lane >> 4)) * 16));
    } else if (block % 2 == 0) {
        if (block + 1 < BLOCKS) {
            rkvk_ldmatrix_x4(w, rkvk_smem_addr(rows + row * PITCH + (block + (lane >> 4)) * 16));
        } else {
            w[0] = rkvk_word(rows + (lane >> 2) * PITCH + block * 16 + (lane & 3) * 4);
            w[1] = rkvk_word(rows + ((lane >> 2) + 8) * PITCH + block * 16 + (lane & 3) * 4);
        }
    }
}

/* Both steps of a block. */
template <rkv_type TYPE>
static __device__ __forceinline__ void rkvk_quant_k_block(uint32_t (&a)[2][4], const uint32_t (&w)[4], int block)
{
#pragma unroll
    for (int i = 0; i < 2; i++) { /* cells g, g + 8 */
        if constexpr (TYPE == RKV_TYPE_Q8_0) {
#pragma unroll
            for (int s = 0; s < 2; s++) {
                a[s][i] = rkvk_q8_even(w[2 * s + i]);
                a[s][i + 2] = rkvk_q8_odd(w[2 * s + i]);
            }
        } else {
            const uint32_t x = w[block % 2 * 2 + i], y = x >> 8;
            a[0][i] = rkvk_q4_low(x);
            a[0][i + 2] = rkvk_q4_low(y);
            a[1][i] = rkvk_q4_high(x);
            a[1][i + 2] = rkvk_q4_high(y);
        }
    }
}

/* 16 rows of K or V in shared memory, and their scales. */
struct rkvk_quant_rows {
    const uint8_t *rows;
    const uint8_t *scales;
};

/* s += K * Q^T over BLOCKS blocks, for MT tiles of 16 cells and 8 * NC columns.  Scales: of the first
 * cell and block, SCALE bytes a cell.  q: [step][NC][lane], b0 and b1 of each. */
template <rkv_type TYPE, int BLOCKS, int PITCH, int SCALE, int NC, int MT, typename Q>
static __device__ __forceinline__ void rkvk_quant_scores(float (&s)[MT][NC][4], const rkvk_quant_rows (&k)[MT],
                                                         const Q &q, int lane)
{
    constexpr int G = rkvk_quant_group(BLOCKS);
    uint32_t w[MT][4];
#pragma unroll
    for (int b0 = 0; b0 < BLOCKS; b0 += G) {
        rkvk_quant_scales<G> d[MT][2];
#pragma unroll
        for (int m = 0; m < MT; m++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                d[m][i] = rkvk_quant_load_scales<G>(k[m].scales + ((lane >> 2) + 8 * i) * SCALE + 2 * b0);
#pragma unroll
        for (int i = 0; i < G; i++) {
            const int b = b0 + i;
            uint32_t a[MT][2][4];
            uint2 x[NC][2];
#pragma unroll
            for (int n = 0; n < NC; n++)
#pragma unroll
                for (int j = 0; j < 2; j++)
                    x[n][j] = rkvk_q_part(q, (2 * b + j) * NC + n, lane);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                rkvk_quant_k_words<TYPE, PITCH, BLOCKS>(w[m], k[m].rows, b, lane);
                rkvk_quant_k_block<TYPE>(a[m], w[m], b);
                const float y0 = rkvk_quant_scale<G>(d[m][0], i), y1 = rkvk_quant_scale<G>(d[m][1], i);
#pragma unroll
                for (int n = 0; n < NC; n++) {
                    float c[4] = {0, 0, 0, 0};
#pragma unroll
                    for (int j = 0; j < 2; j++)
                        rkvk_mma<false>(c, a[m][j], x[n][j].x, x[n][j].y);
                    s[m][n][0] = __fmaf_rn(c[0], y0, s[m][n][0]);
                    s[m][n][1] = __fmaf_rn(c[1], y0, s[m][n][1]);
                    s[m][n][2] = __fmaf_rn(c[2], y1, s[m][n][2]);
                    s[m][n][3] = __fmaf_rn(c[3], y1, s[m][n][3]);
                }
            }
        }
    }
}

/* The same of one tile. */
template <rkv_type TYPE, int BLOCKS, int PITCH, int SCALE, int NC, typename Q>
static __device__ __forceinline__ void rkvk_quant_scores(float (&s)[NC][4], const rkvk_quant_rows &k, const Q &q,
                                                         int lane)
{
    const rkvk_quant_rows rows[1] = {k};
    rkvk_quant_scores<TYPE, BLOCKS, PITCH, SCALE, NC, 1>(reinterpret_cast<float(&)[1][NC][4]>(s), rows, q, lane);
}

/* ------------------------------------------------------------------------- V */

/* The words of block `block`, number i of BLOCKS: cells 2t, 2t+1 and 2t+8, 2t+9; for q8_0 of both tiles.  q4_0's
 * come for two blocks at once, if there are two: those of odd i are in w already. */
template <rkv_type TYPE, int PITCH, int BLOCKS>
static __device__ __forceinline__ void rkvk_quant_v_words(uint32_t (&w)[4], const uint8_t *rows, int block, int i,
                                                          int lane)
{
    const uint8_t *row = rows + (lane & 15) * PITCH;
    if constexpr (TYPE == RKV_TYPE_Q8_0) {
        rkvk_ldmatrix_x4_trans(w, rkvk_smem_addr(row + (2 * block + (lane >> 4)) * 16));
    } else if (i % 2 == 0) {
        if (i + 1 < BLOCKS) {
            rkvk_ldmatrix_x4_trans(w, rkvk_smem_addr(row + (block + (lane >> 4)) * 16));
        } else {
            uint32_t x[2];
            rkvk_ldmatrix_x2_trans(x, rkvk_smem_addr(row + block * 16));
            w[0] = x[0];
            w[1] = x[1];
        }
    }
}

/* The fragments of a block: two tiles of 16 dims, 16 cells. */
template <rkv_type TYPE>
static __device__ __forceinline__ void rkvk_quant_v_block(uint32_t (&a)[2][4], const uint32_t (&w)[4], int i)
{
    if constexpr (TYPE == RKV_TYPE_Q8_0) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            a[j / 2][j % 2 * 2] = rkvk_q8_even(w[j]);
            a[j / 2][j % 2 * 2 + 1] = rkvk_q8_odd(w[j]);
        }
    } else {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint32_t x = w[i % 2 * 2 + j], y = x >> 8;
            a[0][2 * j] = rkvk_q4_low(x);
            a[0][2 * j + 1] = rkvk_q4_low(y);
            a[1][2 * j] = rkvk_q4_high(x);
            a[1][2 * j + 1] = rkvk_q4_high(y);
        }
    }
}

/* o += V^T * P^T for 16 cells and BLOCKS blocks from block0 of the rows on, whose tiles
 * are o's from tile0 on. */
template <rkv_type TYPE, int BLOCKS, int PITCH, int SCALE, int NC, int VT>
static __device__ __forceinline__ void rkvk_quant_output(float (&o)[NC][VT][4], const rkvk_quant_rows &v,
                                                         const uint2 (&p)[NC], int block0, int tile0, int lane)
{
    constexpr int G = rkvk_quant_group(BLOCKS);
    const uint8_t *scale = v.scales + 2 * (lane & 3) * SCALE;
    uint32_t w[4];
#pragma unroll
    for (int b0 = 0; b0 < BLOCKS; b0 += G) {
        rkvk_quant_scales<G> d[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            d[i] = rkvk_quant_load_scales<G>(scale + (i % 2 + i / 2 * 8) * SCALE + 2 * b0);
#pragma unroll
        for (int i = 0; i < G; i++) {
            uint32_t a[2][4];
            rkvk_quant_v_words<TYPE, PITCH, BLOCKS>(w, v.rows, block0 + b0 + i, b0 + i, lane);
            rkvk_quant_v_block<TYPE>(a, w, b0 + i);
            const __half2 d0 = rkvk_quant_pair<G>(d[0], d[1], i), d1 = rkvk_quant_pair<G>(d[2], d[3], i);
#pragma unroll
            for (int n = 0; n < NC; n++) {
                const uint32_t x = rkvk_scaled(p[n].x, d0), y = rkvk_scaled(p[n].y, d1);
                rkvk_mma<false>(o[n][tile0 + 2 * (b0 + i)], a[0], x, y);
                rkvk_mma<false>(o[n][tile0 + 2 * (b0 + i) + 1], a[1], x, y);
            }
        }
    }
}

/* The fragments of one tile of 16 dims, 16 cells. */
template <rkv_type TYPE, int PITCH>
static __device__ __forceinline__ void rkvk_quant_v_tile(uint32_t (&a)[4], const uint8_t *rows, int tile, int lane)
{
    const uint8_t *row = rows + (lane & 15) * PITCH;
    uint32_t w[2];
    if constexpr (TYPE == RKV_TYPE_Q8_0) {
        rkvk_ldmatrix_x2_trans(w, rkvk_smem_addr(row + tile * 16));
#pragma unroll
        for (int j = 0; j < 2; j++) {
            a[2 * j] = rkvk_q8_even(w[j]);
            a[2 * j + 1] = rkvk_q8_odd(w[j]);
        }
    } else {
        rkvk_ldmatrix_x2_trans(w, rkvk_smem_addr(row + tile / 2 * 16));
        /* As rkvk_q4_low, or as rkvk_q4_high: which of the block's nibbles is known when it runs. */
        const bool is_high = tile % 2 != 0;
        const uint32_t mask = is_high ? 0x00f000f0u : 0x000f000fu;
        const __half2 factor = __float2half2_rn(is_high ? 0.0625f : 1.0f);
        const __half2 offset = __float2half2_rn(is_high ? -72.0f : -1032.0f);
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                a[2 * j + i] = rkvk_bits2(__hfma2(rkvk_half2((w[j] >> 8 * i & mask) | 0x64006400u), factor, offset));
    }
}

/* o += V^T * P^T for 16 cells and TILES tiles from tile0 on, those of rkvk_quant_output bit by bit.  Scales: as
 * rkvk_quant_turn leaves them. */
template <rkv_type TYPE, int TILES, int PITCH, int NC>
static __device__ __forceinline__ void rkvk_quant_tiles_output(float (&o)[NC][TILES][4], const rkvk_quant_rows &v,
                                                               const uint2 (&p)[NC], int tile0, int lane)
{
    static_assert(TILES == 1 || TILES % 2 == 0, "scales are a block's");
    uint2 x[NC];
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        const uint8_t *scales = v.scales + (tile0 + i) / 2 * 32 + (lane & 3) * 4;
        if (i % 2 == 0) {
            const __half2 d0 = rkvk_half2(rkvk_word(scales)), d1 = rkvk_half2(rkvk_word(scales + 16));
#pragma unroll
            for (int n = 0; n < NC; n++)
                x[n] = make_uint2(rkvk_scaled(p[n].x, d0), rkvk_scaled(p[n].y, d1));
        }
        uint32_t a[4];
        rkvk_quant_v_tile<TYPE, PITCH>(a, v.rows, tile0 + i, lane);
#pragma unroll
        for (int n = 0; n < NC; n++)
            rkvk_mma<false>(o[n][i], a, x[n].x, x[n].y);
    }
}

/* By a warp: the scales of TILES tiles of cells, each of BLOCKS blocks to a cell, are turned to 16 cells to a block;
 * zeros for a cell, of tile i the one `cell` + 128 i on, outside [c0, c1): it may be anything. */
template <int TILES, int BLOCKS>
static __device__ __forceinline__ void rkvk_quant_turn(uint8_t *scales, uint32_t cell, uint32_t c0, uint32_t c1,
                                                       int lane)
{
    const int i = lane / 16, at = lane % 16;
    const uint32_t c = cell + (uint32_t)(i * 128 + at);
    uint16_t *tile = reinterpret_cast<uint16_t *>(scales) + i * 16 * BLOCKS;
    uint16_t x[BLOCKS];
    if (i < TILES)
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
            x[b] = c >= c0 && c < c1 ? tile[at * BLOCKS + b] : (uint16_t)0;
    __syncwarp();
    if (i < TILES)
#pragma unroll
        for (int b = 0; b < BLOCKS; b++)
            tile[b * 16 + at] = x[b];
}

/* Scales of cells outside [c0, c1), counted from the first of 16, become zeros: they may be anything. */
template <int BLOCKS>
static __device__ __forceinline__ void rkvk_quant_clear(uint8_t *scales, int c0, int c1, int lane)
{
    for (int i = lane; i < 16 * BLOCKS; i += 32)
        if (i / BLOCKS < c0 || i / BLOCKS >= c1)
            reinterpret_cast<uint16_t *>(scales)[i] = 0;
    __syncwarp();
}

#endif
