/* SPDX-License-Identifier: MIT
 *
 * ops_carry.cu: rows of f32 to and from host memory, for the CPU's share.
 *
 * A block takes pieces of one row: each read that crosses the link takes a
 * microsecond or more, so all of a piece's are under way at once.
 */
#include "ops_cuda.h"
#include "rkvk_launch.cuh"
#include "rkvk_tensor.cuh"

#define CARRY_THREADS 256u
#define CARRY_EACH 4u /* floats of a thread in a piece */
#define CARRY_PIECES 8u

static __global__ void __launch_bounds__(CARRY_THREADS)
    rkvk_carry(const rkvi_carry_args a, const uint64_t grid)
{
    const uint64_t index = rkvk_block() / CARRY_PIECES, row = index / a.heads;
    if (index >= grid)
        return;
    uint64_t to = index;
    if (a.items) {
        const rkvi_item *item = &a.items[row / a.item_rows];
        if (row % a.item_rows >= item->n_rows)
            return;
        to = item->slot + row % a.item_rows;
    }
    float *out = a.to + to * a.dim;
    const uint32_t step = CARRY_PIECES * CARRY_EACH * CARRY_THREADS;
    for (uint32_t i0 = (uint32_t)(rkvk_block() % CARRY_PIECES) * CARRY_EACH * CARRY_THREADS; i0 < a.dim; i0 += step) {
        float x[CARRY_EACH];
#pragma unroll
        for (uint32_t k = 0; k < CARRY_EACH; k++) {
            const uint32_t i = i0 + k * CARRY_THREADS + threadIdx.x;
            x[k] = i < a.dim ? rkvk_tensor_at(a.from, row, (uint32_t)(index % a.heads), i) : 0.0f;
        }
#pragma unroll
        for (uint32_t k = 0; k < CARRY_EACH; k++) {
            const uint32_t i = i0 + k * CARRY_THREADS + threadIdx.x;
            if (i < a.dim)
                out[i] = x[k];
        }
    }
}

extern "C" int rkvk_launch_carry(const rkvi_carry_args *a, uint64_t grid, void *stream)
{
    if (grid == 0)
        return 0;
    return rkvk_run(rkvk_carry, a, grid, rkvk_grid(grid * CARRY_PIECES), dim3(CARRY_THREADS), 0, stream);
}

extern "C" int rkvk_prepare_carry(void)
{
    return rkvk_load((const void *)rkvk_carry, 0);
}
