/* SPDX-License-Identifier: MIT
 *
 * rkvk_dequant.cuh: stored K and V to fragments of the tensor cores, in
 * registers, out of rows in shared memory (layouts of a cell: geometry.h).
 *
 * K is A of S = K * Q^T: M cells, contraction over dims.  A step is one
 * mma: 16 dims.  Lane (g, t) holds cells g and g + 8, and of a step's dims those
 * with k = 2t, 2t+1, 2t+8, 2t+9.  Which dims these are is free, as long as
 * rkvk_k_dim, which lays out Q, says the same:
 *
 *   f16, bf16  dim = k                                           ldmatrix
 *   fp8, q8_0  dims 4t .. 4t+3 of the step's 16: one 4-byte load
 *   q4_0       two steps to a block of 32: bytes 4t .. 4t+3 hold elements 4t .. 4t+3
 *              (low nibbles: the even step) and 16+4t .. (high: the odd one),
 *              taken by pairs of bytes 0, 2 and 1, 3
 *
 * V is A of O^T = V^T * P^T: M dims (tiles of 16), contraction over cells.
 * ldmatrix transposes 16-bit units.  With bytes, a unit is two neighbours in a
 * row, so rows g and g + 8 of the tile become dims 2g and 2g + 1 (rkvk_v_dim):
 *
 *   fp8, q8_0  unit g of a tile's 16 bytes: dims 2g (low byte), 2g+1 (high)
 *   q4_0       the 16 bytes of a block of 32 serve two tiles: low nibbles dims
 *              0 .. 15, high ones 16 .. 31
 *
 * K's integers stay exact: each block of 32 is summed apart and its f16 scale
 * applied to the f32 sum.  V's are multiplied by the scale in f16.  Integers
 * become f16 by putting their bits under an exponent (1024 + u) and subtracting.
 * fp8's bits, shifted into place, are its value times 2^-8: the factor is given
 * back in f32 (rkvk_unit).
 */
#ifndef RKVK_DEQUANT_CUH
#define RKVK_DEQUANT_CUH

#include "ops_cuda.h"
#include "rkvk_mma.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

static __host__ __device__ constexpr bool rkvk_has_scales(rkv_type type)
{
    return type == RKV_TYPE_Q8_0 || type == RKV_TYPE_Q4_0;
}

static __host__ __device__ constexpr int rkvk_row_bytes(rkv_type type, int dim)
{
    return type == RKV_TYPE_F16 || type == RKV_TYPE_BF16 ? 2 * dim : type == RKV_TYPE_Q4_0 ? dim / 2 : dim;
}

static __host__ __device__ constexpr int rkvk_scale_bytes(rkv_type type, int dim)
{
    return rkvk_has_scales(type) ? dim / 32 * 2 : 0;
}

/* What numbers, as they stand in the fragments, are multiplied by. */
template <rkv_type TYPE>
static __device__ __forceinline__ float rkvk_unit(float fp8_scale)
{
    return TYPE == RKV_TYPE_FP8_E4M3 ? __fmul_rn(fp8_scale, 256.0f) : 1.0f;
}

/* The dim of element j (b0's two, then b1's two) of lane t in a step. */
template <rkv_type TYPE>
static __device__ __forceinline__ int rkvk_k_dim(int step, int t, int j)
{
    if constexpr (TYPE == RKV_TYPE_FP8_E4M3 || TYPE == RKV_TYPE_Q8_0)
        return step * 16 + 4 * t + j;
    else if constexpr (TYPE == RKV_TYPE_Q4_0)
        return step * 16 + 4 * t + (j == 1 ? 2 : j == 2 ? 1 : j);
    else
        return step * 16 + 2 * t + (j & 1) + (j >> 1) * 8;
}

/* The dim of row g + 8 * half of a tile of V. */
template <rkv_type TYPE>
static __device__ __forceinline__ int rkvk_v_dim(int tile, int half, int g)
{
    if constexpr (TYPE == RKV_TYPE_F16 || TYPE == RKV_TYPE_BF16)
        return tile * 16 + half * 8 + g;
    else
        return tile * 16 + 2 * g + half;
}

/* ------------------------------------------------------- numbers, two by two */

static __device__ __forceinline__ uint32_t rkvk_bits2(__half2 x)
{
    return *reinterpret_cast<uint32_t *>(&x);
}

static __device__ __forceinline__ __half2 rkvk_half2(uint32_t u)
{
    return *reinterpret_cast<__half2 *>(&u);
}

/* 1024 + u in both halves to u - offset: exact. */
static __device__ __forceinline__ uint32_t rkvk_minus(uint32_t u, float offset)
{
    return rkvk_bits2(__hsub2(rkvk_half2(u), __float2half2_rn(1024.0f + offset)));
}

/* Bytes of q8_0 with their sign bit flipped: bytes `pick` (two nibbles of a
 * selector) to two f16. */
template <int LOW, int HIGH>
static __device__ __forceinline__ uint32_t rkvk_q8_pair(uint32_t flipped)
{
    return rkvk_minus(__byte_perm(flipped, 0x64646464u, LOW | 0x40 | HIGH << 8 | 0x4000), 128.0f);
}

/* Nibbles at bits 0 and 16, or 4 and 20. */
static __device__ __forceinline__ uint32_t rkvk_q4_low(uint32_t w)
{
    return rkvk_minus((w & 0x000f000fu) | 0x64006400u, 8.0f);
}

static __device__ __forceinline__ uint32_t rkvk_q4_high(uint32_t w)
{
    const __half2 x = rkvk_half2((w & 0x00f000f0u) | 0x64006400u); /* 1024 + 16 u */
    return rkvk_bits2(__hfma2(x, __float2half2_rn(0.0625f), __float2half2_rn(-72.0f)));
}

/* fp8 in the high byte of each half (the low ones are ignored): value * 2^-8. */
static __device__ __forceinline__ uint32_t rkvk_fp8_pair(uint32_t w)
{
    return (w & 0x80008000u) | (w >> 1 & 0x3f803f80u);
}

static __device__ __forceinline__ float rkvk_load_f16(const uint8_t *p)
{
    return __half2float(*reinterpret_cast<const __half *>(p));
}

/* ------------------------------------------------------------------------ K */

/* 16 rows of K in shared memory, and their scales. */
struct rkvk_k_rows {
    const uint8_t *rows;
    const uint8_t *scales;
};

static __device__ __forceinline__ uint32_t rkvk_word(const uint8_t *p)
{
    return *reinterpret_cast<const uint32_t *>(p);
}

/* One step's fragment of the types without scales. */
template <rkv_type TYPE, int PITCH>
static __device__ __forceinline__ void rkvk_k_step(uint32_t (&a)[4], const uint8_t *rows, int step, int lane)
{
    if constexpr (TYPE == RKV_TYPE_FP8_E4M3) {
        const uint8_t *p = rows + (lane >> 2) * PITCH + step * 16 + (lane & 3) * 4;
        const uint32_t w0 = rkvk_word(p), w1 = rkvk_word(p + 8 * PITCH);
        a[0] = rkvk_fp8_pair(__byte_perm(w0, 0, 0x1404)); /* bytes 0, 1 to the halves' high bytes */
        a[1] = rkvk_fp8_pair(__byte_perm(w1, 0, 0x1404));
        a[2] = rkvk_fp8_pair(__byte_perm(w0, 0, 0x3424));
        a[3] = rkvk_fp8_pair(__byte_perm(w1, 0, 0x3424));
    } else {
        const int row = (lane & 7) + (lane >> 3 & 1) * 8, chunk = step * 2 + (lane >> 4);
        rkvk_ldmatrix_x4(a, rkvk_smem_addr(rows + row * PITCH + chunk * 16));
    }
}

/* Both steps of a block of 32 of the types with scales. */
template <rkv_type TYPE, int PITCH>
static __device__ __forceinline__ void rkvk_k_block(uint32_t (&a)[2][4], const uint8_t *rows, int block, int lane)
{
    const uint8_t *p = rows + (lane >> 2) * PITCH + block * rkvk_row_bytes(TYPE, 32) + (lane & 3) * 4;
    if constexpr (TYPE == RKV_TYPE_Q8_0) {
#pragma unroll
        for (int s = 0; s < 2; s++) {
            const uint32_t w0 = rkvk_word(p + s * 16) ^ 0x80808080u;
            const uint32_t w1 = rkvk_word(p + s * 16 + 8 * PITCH) ^ 0x80808080u;
            a[s][0] = rkvk_q8_pair<0, 1>(w0);
            a[s][1] = rkvk_q8_pair<0, 1>(w1);
            a[s][2] = rkvk_q8_pair<2, 3>(w0);
            a[s][3] = rkvk_q8_pair<2, 3>(w1);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 2; i++) { /* cells g, g + 8 */
            const uint32_t w = rkvk_word(p + i * 8 * PITCH);
            a[0][i] = rkvk_q4_low(w);
            a[0][i + 2] = rkvk_q4_low(w >> 8);
            a[1][i] = rkvk_q4_high(w);
            a[1][i + 2] = rkvk_q4_high(w >> 8);
        }
    }
}

/* s += K * Q^T over STEPS steps from step0 on, for 16 cells and 8 * NC columns.
 * q: [step][NC][lane], b0 and b1 of each. */
template <rkv_type TYPE, int DIM, int PITCH, int STEPS, int NC>
static __device__ __forceinline__ void rkvk_scores(float (&s)[NC][4], const rkvk_k_rows &k, const uint2 *q, int step0,
                                                   int lane)
{
    if constexpr (rkvk_has_scales(TYPE)) {
        const uint8_t *scale = k.scales + (lane >> 2) * rkvk_scale_bytes(TYPE, DIM) + step0;
#pragma unroll
        for (int i = 0; i < STEPS; i += 2) {
            uint32_t a[2][4];
            rkvk_k_block<TYPE, PITCH>(a, k.rows, (step0 + i) / 2, lane);
            const float d0 = rkvk_load_f16(scale + i);
            const float d1 = rkvk_load_f16(scale + i + 8 * rkvk_scale_bytes(TYPE, DIM));
#pragma unroll
            for (int n = 0; n < NC; n++) {
                float c[4] = {0, 0, 0, 0};
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const uint2 b = q[((step0 + i + j) * NC + n) * 32 + lane];
                    rkvk_mma<false>(c, a[j], b.x, b.y);
                }
                s[n][0] = __fmaf_rn(c[0], d0, s[n][0]);
                s[n][1] = __fmaf_rn(c[1], d0, s[n][1]);
                s[n][2] = __fmaf_rn(c[2], d1, s[n][2]);
                s[n][3] = __fmaf_rn(c[3], d1, s[n][3]);
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            uint32_t a[4];
            rkvk_k_step<TYPE, PITCH>(a, k.rows, step0 + i, lane);
#pragma unroll
            for (int n = 0; n < NC; n++) {
                const uint2 b = q[((step0 + i) * NC + n) * 32 + lane];
                rkvk_mma<TYPE == RKV_TYPE_BF16>(s[n], a, b.x, b.y);
            }
        }
    }
}

/* ------------------------------------------------------------------------ V */

/* 16 rows of V in shared memory, and their scales.  Cells outside [c0, c1),
 * counted from the first of the 16, are not the caller's: their quants are
 * zeros, their scales anything. */
struct rkvk_v_rows {
    const uint8_t *rows;
    const uint8_t *scales;
    int c0, c1;
};

/* Scales of block `block`: of cells 2t, 2t+1 and 2t+8, 2t+9.  Beyond what f16 can
 * hold of its elements (65504 / 128, / 8) a scale saturates: an infinity would
 * spoil rows that don't see the cell. */
template <rkv_type TYPE, int DIM>
static __device__ __forceinline__ void rkvk_v_scales(__half2 (&d)[2], const rkvk_v_rows &v, int block, int lane)
{
    const __half2 most = __float2half2_rn(TYPE == RKV_TYPE_Q8_0 ? 511.75f : 8188.0f);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int cell = 2 * (lane & 3) + 8 * i;
        const uint8_t *p = v.scales + cell * rkvk_scale_bytes(TYPE, DIM) + 2 * block;
        uint32_t low = *reinterpret_cast<const uint16_t *>(p);
        uint32_t high = *reinterpret_cast<const uint16_t *>(p + rkvk_scale_bytes(TYPE, DIM));
        low = cell >= v.c0 && cell < v.c1 ? low : 0;
        high = cell + 1 >= v.c0 && cell + 1 < v.c1 ? high : 0;
        d[i] = __hmax2(__hmin2(rkvk_half2(low | high << 16), most), __hneg2(most));
    }
}

static __device__ __forceinline__ uint32_t rkvk_scaled(uint32_t x, __half2 d)
{
    return rkvk_bits2(__hmul2(rkvk_half2(x), d));
}

/* The fragment of one tile of 16 dims and 16 cells. */
template <rkv_type TYPE, int DIM, int PITCH>
static __device__ __forceinline__ void rkvk_v_tile(uint32_t (&a)[4], const rkvk_v_rows &v, int tile, int lane)
{
    if constexpr (TYPE == RKV_TYPE_F16 || TYPE == RKV_TYPE_BF16) {
        const int row = (lane & 7) + (lane >> 4) * 8, chunk = tile * 2 + (lane >> 3 & 1);
        rkvk_ldmatrix_x4_trans(a, rkvk_smem_addr(v.rows + row * PITCH + chunk * 16));
    } else {
        uint32_t w[2]; /* cells 2t, 2t+1 and 2t+8, 2t+9: two neighbouring bytes of each */
        const int chunk = TYPE == RKV_TYPE_Q4_0 ? tile / 2 : tile;
        rkvk_ldmatrix_x2_trans(w, rkvk_smem_addr(v.rows + (lane & 15) * PITCH + chunk * 16));
        __half2 d[2];
        if constexpr (rkvk_has_scales(TYPE))
            rkvk_v_scales<TYPE, DIM>(d, v, tile / 2, lane);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if constexpr (TYPE == RKV_TYPE_FP8_E4M3) {
                a[2 * i] = rkvk_fp8_pair(w[i] << 8);
                a[2 * i + 1] = rkvk_fp8_pair(w[i]);
            } else if constexpr (TYPE == RKV_TYPE_Q8_0) {
                const uint32_t flipped = w[i] ^ 0x80808080u;
                a[2 * i] = rkvk_scaled(rkvk_q8_pair<0, 2>(flipped), d[i]);
                a[2 * i + 1] = rkvk_scaled(rkvk_q8_pair<1, 3>(flipped), d[i]);
            } else {
                const bool high = tile & 1;
                a[2 * i] = rkvk_scaled(high ? rkvk_q4_high(w[i]) : rkvk_q4_low(w[i]), d[i]);
                a[2 * i + 1] = rkvk_scaled(high ? rkvk_q4_high(w[i] >> 8) : rkvk_q4_low(w[i] >> 8), d[i]);
            }
        }
    }
}

#endif
