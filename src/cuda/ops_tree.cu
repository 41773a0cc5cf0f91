/* SPDX-License-Identifier: MIT
 *
 * ops_tree.cu: token trees: partials over a step's own new cells under a mask,
 * and the move of accepted cells.  Both are small: no tensor cores, no staging.
 */
#include "ops_cuda.h"
#include "rkvk_launch.cuh"
#include "rkvk_mask.cuh"
#include "rkvk_merge.cuh"
#include "rkvk_tensor.cuh"

#define TREE_WARPS 4u
#define MOVE_THREADS 256u
#define ALL_LANES 0xffffffffu

/* ------------------------------------------------------------------ tree */

/* Scores of a row's cells: lane i has those of cells i and i + 32, -inf where
 * the row does not see the cell. */
typedef struct scores {
    float s[2];
} scores;

/* Which new cells the row sees: the mask, cut by its range of positions. */
static __device__ __forceinline__ uint64_t seen_cells(const rkvi_tree_args &a, const rkvi_tree_item &it, uint32_t lane)
{
    const rkvk_reach r = rkvk_row_reach(a.rows[it.row0 + it.row], a.mask);
    uint64_t seen = 0;
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t j = half * 32 + lane;
        const int64_t pos = j < it.n_cells ? a.rows[it.row0 + j].pos : r.hi;
        seen |= (uint64_t)__ballot_sync(ALL_LANES, pos >= r.lo && pos < r.hi) << (half * 32);
    }
    return seen & it.mask;
}

static __device__ __forceinline__ float score(const rkvi_tree_args &a, const rkvi_tree_item &it, uint32_t head,
                                              uint32_t j, uint32_t lane)
{
    const rkvi_new_cell cell = a.cells[it.cell0 + j];
    const rkvk_cell k = rkvk_cell_k(a.geom, a.bases[cell.base], head / (a.q_heads / a.geom.n_heads), cell.cell);
    float sum = 0;
    for (uint32_t i = lane; i < a.geom.dk; i += 32)
        sum = __fmaf_rn(rkvk_tensor_at(a.q, it.row0 + it.row, head, i), rkvk_cell_at(k, i), sum);
    for (int step = 16; step > 0; step /= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(ALL_LANES, sum, step));
    const float s = __fmul_rn(sum, a.scale);
    return __fadd_rn(a.softcap != 0 ? a.softcap * tanhf(s / a.softcap) : s, 0.0f);
}

static __device__ __forceinline__ float weight_of(const scores &w, uint32_t j)
{
    return __shfl_sync(ALL_LANES, j < 32 ? w.s[0] : w.s[1], (int)(j % 32));
}

/* o over the cells in order, lanes over dims; l likewise. */
static __device__ void weigh(const rkvi_tree_args &a, const rkvi_tree_item &it, uint32_t head, uint64_t seen,
                             const scores &w, float *o, uint32_t lane)
{
    const uint32_t kv_head = head / (a.q_heads / a.geom.n_heads);
    for (uint32_t i = lane; i < (a.geom.dv + 31) / 32 * 32; i += 32) {
        float sum = 0;
        for (uint64_t left = seen; left; left &= left - 1) {
            const uint32_t j = (uint32_t)__ffsll((long long)left) - 1;
            const rkvi_new_cell cell = a.cells[it.cell0 + j];
            const float p = weight_of(w, j);
            if (i < a.geom.dv)
                sum = __fmaf_rn(p, rkvk_cell_at(rkvk_cell_v(a.geom, a.bases[cell.base], kv_head, cell.cell), i), sum);
        }
        if (i < a.geom.dv)
            o[i] = sum;
    }
}

/* A warp takes one query head of one row. */
static __global__ void __launch_bounds__(TREE_WARPS * 32)
    rkvk_tree_partial(const rkvi_tree_args a, const uint64_t n_warps)
{
    const uint64_t warp = rkvk_block() * TREE_WARPS + threadIdx.x / 32;
    if (warp >= n_warps)
        return;
    const uint32_t lane = threadIdx.x % 32, head = (uint32_t)(warp % a.q_heads);
    const rkvi_tree_item it = a.items[warp / a.q_heads];
    uint64_t seen = seen_cells(a, it, lane);
    scores w = {{rkvk_empty_m(), rkvk_empty_m()}};
    float m = rkvk_empty_m(), l = 0;
    for (uint64_t left = seen; left; left &= left - 1) {
        const uint32_t j = (uint32_t)__ffsll((long long)left) - 1;
        const float s = score(a, it, head, j, lane);
        w.s[0] = j == lane ? s : w.s[0];
        w.s[1] = j == lane + 32 ? s : w.s[1];
        m = s > m || s != s ? s : m;
    }
    seen = m == rkvk_empty_m() ? 0 : seen;
    for (int half = 0; half < 2; half++)
        w.s[half] = rkvk_expf(__fadd_rn(w.s[half], -m));
    for (uint64_t left = seen; left; left &= left - 1)
        l = __fadd_rn(l, weight_of(w, (uint32_t)__ffsll((long long)left) - 1));
    float *at = a.partials + it.slot * ((uint64_t)a.q_heads * (a.geom.dv + 2));
    weigh(a, it, head, seen, w, at + (uint64_t)head * a.geom.dv, lane);
    if (lane == 0) {
        at[(uint64_t)a.q_heads * a.geom.dv + head] = m;
        at[(uint64_t)a.q_heads * (a.geom.dv + 1) + head] = l;
    }
}

extern "C" int rkvk_launch_tree(const rkvi_tree_args *a, uint64_t grid, void *stream)
{
    if (grid == 0)
        return 0;
    const uint64_t n_blocks = (grid + TREE_WARPS - 1) / TREE_WARPS;
    return rkvk_run(rkvk_tree_partial, a, grid, rkvk_grid(n_blocks), dim3(TREE_WARPS * 32), 0, stream);
}

/* ------------------------------------------------------------------ move */

/* One of a head's planes, in units of two bytes.  A thread keeps to its place
 * within a cell and goes through the cells in order, so that what a later move
 * overwrites has been read by the same thread before. */
static __device__ void move_plane(const rkvi_move_args &a, uint32_t head, uint64_t off, uint32_t cell_bytes)
{
    const uint32_t t_cells = a.geom.tile_cells;
    for (uint32_t b = threadIdx.x; b < cell_bytes / 2; b += MOVE_THREADS)
        for (uint32_t i = 0; i < a.n; i++) {
            const uint32_t to = a.first + i, from = a.first + a.from[i];
            const char *src = (const char *)a.tiles[from / t_cells] + head * a.geom.head_bytes + off;
            char *dst = (char *)a.tiles[to / t_cells] + head * a.geom.head_bytes + off;
            ((uint16_t *)(dst + (uint64_t)(to % t_cells) * cell_bytes))[b] =
                ((const uint16_t *)(src + (uint64_t)(from % t_cells) * cell_bytes))[b];
        }
}

static __global__ void __launch_bounds__(MOVE_THREADS) rkvk_move(const rkvi_move_args a, const uint64_t n_heads)
{
    const uint64_t head = rkvk_block();
    if (head >= n_heads)
        return;
    move_plane(a, (uint32_t)head, a.geom.k_off, a.geom.k_cell_bytes);
    move_plane(a, (uint32_t)head, a.geom.k_scale_off, a.geom.k_scale_cell_bytes);
    move_plane(a, (uint32_t)head, a.geom.v_off, a.geom.v_cell_bytes);
    move_plane(a, (uint32_t)head, a.geom.v_scale_off, a.geom.v_scale_cell_bytes);
}

extern "C" int rkvk_launch_move(const rkvi_move_args *a, uint64_t grid, void *stream)
{
    return grid ? rkvk_run(rkvk_move, a, grid, rkvk_grid(grid), dim3(MOVE_THREADS), 0, stream) : 0;
}

extern "C" int rkvk_prepare_tree(void)
{
    const int e = rkvk_load((const void *)rkvk_tree_partial, 0);
    return e ? e : rkvk_load((const void *)rkvk_move, 0);
}
