/* SPDX-License-Identifier: MIT
 *
 * rkvk_tensor.cuh: single elements: of an engine's tensor, and of a stored cell.
 */
#ifndef RKVK_TENSOR_CUH
#define RKVK_TENSOR_CUH

#include "ops_cuda.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

static __device__ __forceinline__ float rkvk_tensor_at(const rkvi_tensor &t, uint64_t row, uint32_t head, uint32_t i)
{
    const int64_t at = (int64_t)row * t.row_stride + (int64_t)head * t.head_stride + i;
    switch (t.type) {
    case RKV_TYPE_F32: return ((const float *)t.data)[at];
    case RKV_TYPE_F16: return __half2float(((const __half *)t.data)[at]);
    default: return __bfloat162float(((const __nv_bfloat16 *)t.data)[at]);
    }
}

/* A cell of K or of V: its numbers and its blocks' scales (layout: geometry.h). */
typedef struct rkvk_cell {
    const uint8_t *quants;
    const __half *scales;
    rkv_type type;
    float scale; /* fp8 */
} rkvk_cell;

static __device__ __forceinline__ rkvk_cell rkvk_cell_k(const rkvi_geom &g, uint64_t base, uint32_t head, uint32_t cell)
{
    const uint8_t *at = (const uint8_t *)base + head * g.head_bytes;
    const rkvk_cell c = {at + g.k_off + (uint64_t)cell * g.k_cell_bytes,
                         (const __half *)(at + g.k_scale_off + (uint64_t)cell * g.k_scale_cell_bytes), g.type_k,
                         g.k_scale};
    return c;
}

static __device__ __forceinline__ rkvk_cell rkvk_cell_v(const rkvi_geom &g, uint64_t base, uint32_t head, uint32_t cell)
{
    const uint8_t *at = (const uint8_t *)base + head * g.head_bytes;
    const rkvk_cell c = {at + g.v_off + (uint64_t)cell * g.v_cell_bytes,
                         (const __half *)(at + g.v_scale_off + (uint64_t)cell * g.v_scale_cell_bytes), g.type_v,
                         g.v_scale};
    return c;
}

static __device__ __forceinline__ float rkvk_e4m3(uint8_t bits)
{
    return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, __NV_E4M3)));
}

static __device__ __forceinline__ float rkvk_cell_at(const rkvk_cell &c, uint32_t i)
{
    const uint32_t block = i / RKVI_BLOCK, k = i % RKVI_BLOCK;
    switch (c.type) {
    case RKV_TYPE_F16: return __half2float(((const __half *)c.quants)[i]);
    case RKV_TYPE_BF16: return __bfloat162float(((const __nv_bfloat16 *)c.quants)[i]);
    case RKV_TYPE_FP8_E4M3: return __fmul_rn(rkvk_e4m3(c.quants[i]), c.scale);
    case RKV_TYPE_Q8_0: return __fmul_rn((float)((const int8_t *)c.quants)[i], __half2float(c.scales[block]));
    default: break; /* q4_0 */
    }
    const uint32_t pair = c.quants[block * 16 + k % 16], nibble = k < 16 ? pair & 15 : pair >> 4;
    return __fmul_rn((float)((int)nibble - 8), __half2float(c.scales[block]));
}

#endif
