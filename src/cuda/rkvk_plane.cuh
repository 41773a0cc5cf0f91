/* SPDX-License-Identifier: MIT
 *
 * rkvk_plane.cuh: the shared-memory layout that the tensor-core instructions of
 * sm_90a read (rkvk_wgmma.cuh).
 *
 * A plane of rows (Q, K, V: a row a position, its elements dims) lies in chunks of
 * W dims, W = 64, 32 or 16, the largest that divides the dims; in a chunk, rows
 * are 2 W bytes apart and their 16-byte pieces exchanged (swizzled):
 *
 *   byte(row, dim) = dim / W * CHUNK + x ^ (x >> 7 & W / 8 - 1) << 4,
 *   x = row * 2 W + dim % W * 2,   CHUNK = rows * 2 W
 *
 * One layout serves as A and B with dims contracted (K-major: Q, K) and as B with
 * rows contracted (N-major: V).  Planes begin at multiples of 1024 bytes.
 */
#ifndef RKVK_PLANE_CUH
#define RKVK_PLANE_CUH

#include <stdint.h>

template <int ROWS_, int DIM_>
struct rkvk_plane {
    static constexpr int ROWS = ROWS_, DIM = DIM_;
    static constexpr int W = DIM % 64 == 0 ? 64 : DIM % 32 == 0 ? 32 : 16;
    static constexpr int PITCH = 2 * W, CHUNK = ROWS * PITCH, PIECES = W / 8;
    static constexpr int BYTES = ROWS * DIM * 2;
    static_assert(DIM % 16 == 0 && ROWS % 8 == 0, "fragments");

    /* Of the 16 bytes of dims 8 * piece .. of a row. */
    static __device__ __forceinline__ uint32_t at(uint32_t row, uint32_t piece)
    {
        const uint32_t x = row * PITCH + piece % PIECES * 16;
        return piece / PIECES * CHUNK + (x ^ (x >> 7 & (PIECES - 1)) << 4);
    }
    /* Descriptors (start, leading and stride offsets in 16 bytes, swizzle mode).
     * K-major: the stride goes from 8 rows to the next 8.  N-major: leading from
     * chunk to chunk, stride from 8 rows to the next 8.  The low half of one, alike
     * in a warp, and one that begins `add` (below) further on. */
    static __device__ __forceinline__ uint32_t low(uint32_t smem)
    {
        return __shfl_sync(0xffffffffu, (smem >> 4 & 0x3fff) | (uint32_t)(CHUNK >> 4) << 16, 0);
    }
    static __device__ __forceinline__ uint64_t descriptor(uint32_t low, uint32_t add)
    {
        constexpr uint32_t mode = W == 64 ? 1 : W == 32 ? 2 : 3, high = (8 * PITCH >> 4) | mode << 30;
        return (uint64_t)high << 32 | (low + add);
    }
    /* For dims 16 * step .., and for rows 16 * step .. */
    static __device__ constexpr uint32_t dims(int step)
    {
        return (uint32_t)((step * 16 / W * CHUNK + step * 16 % W * 2) >> 4);
    }
    static __device__ constexpr uint32_t rows(int step)
    {
        return (uint32_t)(step * 16 * PITCH >> 4);
    }
};

#endif
