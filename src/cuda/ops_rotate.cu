/* SPDX-License-Identifier: MIT
 *
 * ops_rotate.cu: q turned back, for leaves whose positions were shifted after
 * their K was stored.
 *
 * A warp takes one query head of one row: lanes over pairs, then over the
 * elements that belong to none.  Bits are those of the plain C reference.
 */
#include "ops_cuda.h"
#include "rkvk_launch.cuh"
#include "rkvk_tensor.cuh"

#define ROTATE_WARPS 4u

static __global__ void __launch_bounds__(ROTATE_WARPS * 32)
    rkvk_rotate(const rkvi_rotate_args a, const uint64_t n_warps)
{
    const uint64_t warp = rkvk_block() * ROTATE_WARPS + threadIdx.x / 32;
    if (warp >= n_warps)
        return;
    const uint32_t lane = threadIdx.x % 32, head = (uint32_t)(warp % a.q_heads);
    const rkvi_turned_row r = a.rows[warp / a.q_heads];
    const float2 *angles = (const float2 *)a.angles + (uint64_t)r.angles * a.n_pairs;
    float *out = a.turned + r.turn * a.turned_stride + ((uint64_t)r.row * a.q_heads + head) * a.dk;
    for (uint32_t p = lane; p < a.n_pairs; p += 32) {
        const uint32_t i = a.pairing ? 2 * p : p, j = a.pairing ? i + 1 : i + a.n_pairs;
        const float x = rkvk_tensor_at(a.q, r.row, head, i), y = rkvk_tensor_at(a.q, r.row, head, j);
        const float c = angles[p].x, s = angles[p].y;
        out[i] = __fsub_rn(__fmul_rn(x, c), __fmul_rn(y, s));
        out[j] = __fadd_rn(__fmul_rn(x, s), __fmul_rn(y, c));
    }
    for (uint32_t i = 2 * a.n_pairs + lane; i < a.dk; i += 32)
        out[i] = rkvk_tensor_at(a.q, r.row, head, i);
}

extern "C" int rkvk_launch_rotate(const rkvi_rotate_args *a, uint64_t grid, void *stream)
{
    if (grid == 0)
        return 0;
    const uint64_t n_blocks = (grid + ROTATE_WARPS - 1) / ROTATE_WARPS;
    return rkvk_run(rkvk_rotate, a, grid, rkvk_grid(n_blocks), dim3(ROTATE_WARPS * 32), 0, stream);
}

extern "C" int rkvk_prepare_rotate(void)
{
    return rkvk_load((const void *)rkvk_rotate, 0);
}
