/* SPDX-License-Identifier: MIT
 *
 * rkvk_prefill_cells.cuh: a block's rows of K or V, for prefill by warps: copied
 * to shared memory as they are stored, and dequantised there to rows of f16.
 */
#ifndef RKVK_PREFILL_CELLS_CUH
#define RKVK_PREFILL_CELLS_CUH

#include "rkvk_leaves.cuh"

/* Rows of a block: where all its cells are seen, no cell is asked about. */
template <int BC, int ROW_BYTES, int PITCH>
static __device__ __forceinline__ void rkvk_prefill_copy_rows(uint32_t dst, const uint8_t *src, uint32_t cell,
                                                              const rkvk_leaf &leaf)
{
    constexpr int CHUNKS = ROW_BYTES / 16, STEP = RKVK_THREADS / CHUNKS;
    if constexpr (RKVK_THREADS % CHUNKS == 0 && BC % STEP == 0)
        if (cell >= leaf.c0 && cell + BC <= leaf.c1) {
            const uint32_t row = threadIdx.x / CHUNKS, at = threadIdx.x % CHUNKS * 16;
            src += (uint64_t)cell * ROW_BYTES + row * ROW_BYTES + at;
            dst += row * PITCH + at;
#pragma unroll
            for (int i = 0; i < BC / STEP; i++)
                rkvk_copy16_all(dst + i * STEP * PITCH, src + i * STEP * ROW_BYTES);
            return;
        }
    rkvk_copy_rows<BC, ROW_BYTES, PITCH>(dst, src, cell, leaf);
}

/* The leaf's rows in this block that are seen: the scales of others are not read. */
static __device__ __forceinline__ uint32_t rkvk_raw_scale(const uint8_t *scales, int at, bool seen, float most)
{
    float d = seen ? rkvk_load_f16(scales + at) : 0.0f;
    d = fminf(fmaxf(d, -most), most);
    return rkvk_bits2(__float2half2_rn(d));
}

/* Dequantises a plane of a block, 8 elements a turn, into rows of f16. */
template <int BC, rkv_type TYPE, int DIM, int PITCH>
static __device__ __forceinline__ void rkvk_dequant_rows(uint8_t *dst, const uint8_t *src, const uint8_t *scales,
                                                         const rkvk_leaf &leaf, uint32_t cell)
{
    constexpr int TURNS = DIM / 8;
    for (int i = (int)threadIdx.x; i < BC * TURNS; i += RKVK_THREADS) {
        const int row = i / TURNS, turn = i % TURNS, first = turn * 8;
        const uint32_t c = cell + (uint32_t)row;
        const bool seen = c >= leaf.c0 && c < leaf.c1;
        uint4 x;
        if constexpr (TYPE == RKV_TYPE_F16 || TYPE == RKV_TYPE_BF16) {
            x = *reinterpret_cast<const uint4 *>(src + row * 2 * DIM + first * 2);
        } else if constexpr (TYPE == RKV_TYPE_FP8_E4M3) {
            const uint2 w = *reinterpret_cast<const uint2 *>(src + row * DIM + first);
            x.x = rkvk_fp8_low(w.x);
            x.y = rkvk_fp8_high(w.x);
            x.z = rkvk_fp8_low(w.y);
            x.w = rkvk_fp8_high(w.y);
        } else if constexpr (TYPE == RKV_TYPE_Q8_0) {
            uint2 w = *reinterpret_cast<const uint2 *>(src + row * DIM + first);
            const __half2 d =
                rkvk_half2(rkvk_raw_scale(scales, row * rkvk_scale_bytes(TYPE, DIM) + first / 32 * 2, seen, 511.75f));
            w.x ^= 0x80808080u;
            w.y ^= 0x80808080u;
            x.x = rkvk_scaled(rkvk_q8_pair<0, 1>(w.x), d);
            x.y = rkvk_scaled(rkvk_q8_pair<2, 3>(w.x), d);
            x.z = rkvk_scaled(rkvk_q8_pair<0, 1>(w.y), d);
            x.w = rkvk_scaled(rkvk_q8_pair<2, 3>(w.y), d);
        } else { /* elements 8i .. of a block: nibbles of bytes 8 (i % 2) .., low ones for i < 2 */
            const int block = first / 32, part = turn % 4;
            uint2 w = *reinterpret_cast<const uint2 *>(src + row * (DIM / 2) + block * 16 + part % 2 * 8);
            const __half2 d =
                rkvk_half2(rkvk_raw_scale(scales, row * rkvk_scale_bytes(TYPE, DIM) + block * 2, seen, 8188.0f));
            w.x = part < 2 ? w.x : w.x >> 4;
            w.y = part < 2 ? w.y : w.y >> 4;
            const uint32_t e0 = rkvk_scaled(rkvk_q4_low(w.x), d), o0 = rkvk_scaled(rkvk_q4_low(w.x >> 8), d);
            const uint32_t e1 = rkvk_scaled(rkvk_q4_low(w.y), d), o1 = rkvk_scaled(rkvk_q4_low(w.y >> 8), d);
            x.x = __byte_perm(e0, o0, 0x5410); /* bytes 0, 1 */
            x.y = __byte_perm(e0, o0, 0x7632); /* bytes 2, 3 */
            x.z = __byte_perm(e1, o1, 0x5410);
            x.w = __byte_perm(e1, o1, 0x7632);
        }
        *reinterpret_cast<uint4 *>(dst + row * PITCH + first * 2) = x;
    }
}

#endif
