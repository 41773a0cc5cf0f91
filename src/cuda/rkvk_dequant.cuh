/* SPDX-License-Identifier: MIT
 *
 * rkvk_dequant.cuh: stored K and V to fragments of the tensor cores, in
 * registers, out of rows in shared memory (layouts of a cell: geometry.h): types
 * without scales (for the others in decode see rkvk_quant.cuh), and numbers.
 *
 * K is A of S = K * Q^T: M cells, contraction over dims.  A step is one
 * mma: 16 dims.  Lane (g, t) holds cells g and g + 8, and of a step's dims those
 * with k = 2t, 2t+1, 2t+8, 2t+9.  Which dims these are is free, as long as
 * rkvk_k_dim, which lays out Q, says the same:
 *
 *   f16, bf16  dim = k                                           ldmatrix
 *   fp8        dims 4t .. 4t+3 of the step's 16                  ldmatrix, two steps at once
 *
 * V is A of O^T = V^T * P^T: M dims (tiles of 16), contraction over cells.
 * ldmatrix transposes 16-bit units.  With bytes, a unit is two neighbours in a
 * row, so rows g and g + 8 of the tile become dims 2g and 2g + 1 (rkvk_v_dim):
 *
 *   fp8, q8_0  unit g of a tile's 16 bytes: dims 2g (low byte), 2g+1 (high)
 *   q4_0       the 16 bytes of a block of 32 serve two tiles: low nibbles dims
 *              0 .. 15, high ones 16 .. 31
 *
 * Where no instruction converts fp8 (before 8.9), its bits, shifted into place, are its
 * value times 2^-8: the factor is given back in f32 (rkvk_unit).
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
    return TYPE == RKV_TYPE_FP8_E4M3 ? __fmul_rn(fp8_scale, RKVK_FP8_UNIT) : 1.0f;
}

/* The dim of element j (b0's two, then b1's two) of lane t in a step. */
template <rkv_type TYPE>
static __device__ __forceinline__ int rkvk_k_dim(int step, int t, int j)
{
    if constexpr (TYPE == RKV_TYPE_FP8_E4M3)
        return step * 16 + 4 * t + j;
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

/* Nibbles at bits 0 and 16. */
static __device__ __forceinline__ uint32_t rkvk_q4_low(uint32_t w)
{
    return rkvk_minus(rkvk_and_or<0x000f000fu>(w, 0x64006400u), 8.0f);
}

static __device__ __forceinline__ uint32_t rkvk_scaled(uint32_t x, __half2 d)
{
    return rkvk_bits2(__hmul2(rkvk_half2(x), d));
}

static __device__ __forceinline__ float rkvk_load_f16(const uint8_t *p)
{
    return __half2float(*reinterpret_cast<const __half *>(p));
}

/* ------------------------------------------------------------------------ K */

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
        a[0] = rkvk_fp8_low(w0);
        a[1] = rkvk_fp8_low(w1);
        a[2] = rkvk_fp8_high(w0);
        a[3] = rkvk_fp8_high(w1);
    } else {
        const int row = (lane & 7) + (lane >> 3 & 1) * 8, chunk = step * 2 + (lane >> 4);
        rkvk_ldmatrix_x4(a, rkvk_smem_addr(rows + row * PITCH + chunk * 16));
    }
}

/* Two steps' fragments of fp8, one and the next. */
template <int PITCH>
static __device__ __forceinline__ void rkvk_fp8_k_steps(uint32_t (&a)[2][4], const uint8_t *rows, int step, int lane)
{
    uint32_t w[4]; /* of cells g, g + 8; of both steps */
    rkvk_ldmatrix_x4(w, rkvk_smem_addr(rows + (lane & 15) * PITCH + (step + (lane >> 4)) * 16));
#pragma unroll
    for (int i = 0; i < 4; i++) {
        a[i / 2][i % 2] = rkvk_fp8_low(w[i]);
        a[i / 2][i % 2 + 2] = rkvk_fp8_high(w[i]);
    }
}

/* b0 and b1 of the lane: from [step][chunk][lane] in shared memory, or [step] in registers. */
static __device__ __forceinline__ uint2 rkvk_q_part(const uint2 *q, int i, int lane)
{
    return q[i * 32 + lane];
}

template <int STEPS>
struct rkvk_own_q {
    uint2 b[STEPS];
};

template <int STEPS>
static __device__ __forceinline__ uint2 rkvk_q_part(const rkvk_own_q<STEPS> &q, int i, int lane)
{
    (void)lane;
    return q.b[i];
}

/* s += K * Q^T over STEPS steps, for 16 cells and 8 * NC columns.  q: [step][NC][lane],
 * b0 and b1 of each. */
template <rkv_type TYPE, int PITCH, int STEPS, int NC, typename Q>
static __device__ __forceinline__ void rkvk_scores(float (&s)[NC][4], const uint8_t *rows, const Q &q, int lane)
{
#pragma unroll
    for (int i = 0; i < STEPS; i += 2) {
        uint32_t a[2][4];
        if (TYPE == RKV_TYPE_FP8_E4M3 && i + 1 < STEPS) {
            rkvk_fp8_k_steps<PITCH>(a, rows, i, lane);
        } else {
            rkvk_k_step<TYPE, PITCH>(a[0], rows, i, lane);
            if (i + 1 < STEPS)
                rkvk_k_step<TYPE, PITCH>(a[1], rows, i + 1, lane);
        }
#pragma unroll
        for (int j = 0; j < 2 && i + j < STEPS; j++)
#pragma unroll
            for (int n = 0; n < NC; n++) {
                const uint2 b = rkvk_q_part(q, (i + j) * NC + n, lane);
                rkvk_mma<TYPE == RKV_TYPE_BF16>(s[n], a[j], b.x, b.y);
            }
    }
}

/* ------------------------------------------------------------------------ V */

/* From two neighbouring bytes of each of cells 2t, 2t+1, and of 2t+8, 2t+9. */
static __device__ __forceinline__ void rkvk_fp8_v_tile(uint32_t (&a)[4], uint32_t w0, uint32_t w1)
{
    const uint32_t x0 = __byte_perm(w0, 0, 0x3120), x1 = __byte_perm(w1, 0, 0x3120); /* dims 2g, then 2g + 1 */
    a[0] = rkvk_fp8_low(x0);
    a[1] = rkvk_fp8_high(x0);
    a[2] = rkvk_fp8_low(x1);
    a[3] = rkvk_fp8_high(x1);
}

/* The fragment of one tile of 16 dims and 16 cells. */
template <rkv_type TYPE, int PITCH>
static __device__ __forceinline__ void rkvk_v_tile(uint32_t (&a)[4], const uint8_t *rows, int tile, int lane)
{
    if constexpr (TYPE == RKV_TYPE_F16 || TYPE == RKV_TYPE_BF16) {
        const int row = (lane & 7) + (lane >> 4) * 8, chunk = tile * 2 + (lane >> 3 & 1);
        rkvk_ldmatrix_x4_trans(a, rkvk_smem_addr(rows + row * PITCH + chunk * 16));
    } else {
        uint32_t w[2];
        rkvk_ldmatrix_x2_trans(w, rkvk_smem_addr(rows + (lane & 15) * PITCH + tile * 16));
        rkvk_fp8_v_tile(a, w[0], w[1]);
    }
}

/* Those of two tiles, one and the next. */
template <rkv_type TYPE, int PITCH>
static __device__ __forceinline__ void rkvk_v_tiles(uint32_t (&a)[2][4], const uint8_t *rows, int tile, int lane)
{
    if constexpr (TYPE == RKV_TYPE_FP8_E4M3) {
        uint32_t w[4];
        rkvk_ldmatrix_x4_trans(w, rkvk_smem_addr(rows + (lane & 15) * PITCH + (tile + (lane >> 4)) * 16));
        rkvk_fp8_v_tile(a[0], w[0], w[1]);
        rkvk_fp8_v_tile(a[1], w[2], w[3]);
    } else {
        rkvk_v_tile<TYPE, PITCH>(a[0], rows, tile, lane);
        rkvk_v_tile<TYPE, PITCH>(a[1], rows, tile + 1, lane);
    }
}

/* o += V^T * P^T for 16 cells and TILES tiles from tile0 on, which are o's from o_tile0 on. */
template <rkv_type TYPE, int TILES, int PITCH, int NC, int VT>
static __device__ __forceinline__ void rkvk_v_output(float (&o)[NC][VT][4], const uint8_t *rows, const uint2 (&p)[NC],
                                                     int tile0, int o_tile0, int lane)
{
#pragma unroll
    for (int v = 0; v < TILES; v += 2) {
        uint32_t x[2][4];
        if (v + 1 < TILES)
            rkvk_v_tiles<TYPE, PITCH>(x, rows, tile0 + v, lane);
        else
            rkvk_v_tile<TYPE, PITCH>(x[0], rows, tile0 + v, lane);
#pragma unroll
        for (int i = 0; i < 2 && v + i < TILES; i++)
#pragma unroll
            for (int n = 0; n < NC; n++)
                rkvk_mma<TYPE == RKV_TYPE_BF16>(o[n][o_tile0 + v + i], x[i], p[n].x, p[n].y);
    }
}

#endif
