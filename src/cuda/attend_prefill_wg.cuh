/* SPDX-License-Identifier: MIT
 *
 * attend_prefill_wg.cuh: prefill on sm_90a (RKVI_OP_PREFILL), with the tensor-core
 * instructions of whole warpgroups.
 *
 * A block has three warpgroups and takes 128 rows of one query head of an item, or,
 * where that leaves fewer multiprocessors idle (rkvk_wg_halved), 64 of them:
 *
 *   feed   (rkvk_prefill_feed.cuh)  walks the leaves, brings blocks of BC cells
 *          into stages in shared memory, K and V apart; quantised ones as f16
 *   fold   (rkvk_prefill_fold.cuh)  two of them, 64 rows each (of 64 rows: one):
 *          S (64 x BC)  = Q * K^T   Q in shared memory or registers
 *          O (64 x DV) += P * V     P, O and the state in registers
 *
 *   feed    K0 K1 V0 K2 V1 K3 ..          barriers: k_full, v_full ->
 *   fold    S0 | S1, O0 | S2, O1 | ..                <- k_empty, v_empty
 *              weights 0   weights 1 ..   while the other group multiplies
 *
 * Blocks are counted from the leaf's first cell in the tile, and a row's weights
 * of cells that it doesn't see are zeros: so bits don't depend on the other rows.
 * m is kept in natural units and l is one number for a row, so that a state cut
 * after any leaf is all there is.
 */
#ifndef RKVK_ATTEND_PREFILL_WG_CUH
#define RKVK_ATTEND_PREFILL_WG_CUH

#include "rkvk_launch.cuh"
#include "rkvk_prefill_fold.cuh"

#define RKVK_WG_THREADS (RKVK_WG * (1 + RKVK_WG_FOLD))

/* A launch has n works, an item's query head each, from the last item on: those are
 * the longest under a causal mask.  All but the last n_halved are a block each, these
 * are two. */
struct rkvk_wg_args {
    rkvi_attend_args attend;
    uint64_t n_works, n_halved;
};

/* A block has a multiprocessor to itself, and is done sooner with 64 rows than with
 * 128.  So where the works of the last round are no more than half the
 * multiprocessors, they are cut in two, which takes no further round.  A row's bits are
 * the same either way. */
static inline uint64_t rkvk_wg_halved(uint64_t n_works, uint64_t n_multiprocessors, uint32_t max_rows)
{
    const uint64_t rest = n_works % n_multiprocessors;
    return 2 * rest <= n_multiprocessors && (max_rows == 0 || max_rows > 64) ? rest : 0;
}

/* Which rows of a work: [row0, row0 + most), and again 128 further on. */
struct rkvk_wg_part {
    uint64_t work;
    uint32_t row0, most;
};

static __device__ __forceinline__ rkvk_wg_part rkvk_wg_part_of(const rkvk_wg_args &x, uint64_t block)
{
    const uint64_t n_whole = x.n_works - x.n_halved;
    if (block < n_whole)
        return {block, 0, RKVK_WG_ROWS};
    return {n_whole + (block - n_whole) / 2, (uint32_t)((block - n_whole) % 2) * 64, 64};
}

template <typename S>
static __device__ __forceinline__ void rkvk_wg_bars(rkvk_wg_smem<S> &sm, uint32_t n_fold)
{
    if (threadIdx.x == 0)
        for (uint32_t i = 0; i < S::STAGES; i++) {
            rkvk_bar_init(rkvk_smem_addr(&sm.k_full[i]), RKVK_WG + 1); /* and who announces it */
            rkvk_bar_init(rkvk_smem_addr(&sm.v_full[i]), RKVK_WG);
            rkvk_bar_init(rkvk_smem_addr(&sm.k_empty[i]), 4 * n_fold);
            rkvk_bar_init(rkvk_smem_addr(&sm.v_empty[i]), 4 * n_fold);
        }
    __syncthreads();
}

template <typename S>
static __global__ void __launch_bounds__(RKVK_WG_THREADS, 1)
    rkvk_prefill_wg(const __grid_constant__ rkvk_wg_args x, const uint64_t n_blocks)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    static_assert(sizeof(rkvk_wg_smem<S>) <= RKVK_WG_SMEM, "shared memory");
    RKVK_SHARED(rkvk_wg_raw, 1024);
    rkvk_wg_smem<S> &sm = *reinterpret_cast<rkvk_wg_smem<S> *>(rkvk_wg_raw);
    const rkvi_attend_args &a = x.attend;
    const uint64_t block = rkvk_block();
    if (block >= n_blocks)
        return;
    const rkvk_wg_part part = rkvk_wg_part_of(x, block);
    rkvk_wg_work w;
    rkvk_turn n = {0, 0};
    w.item = a.items + (x.n_works - 1 - part.work) / a.q_heads;
    w.q_head = (uint32_t)(part.work % a.q_heads);
    w.walk = {a.entries + w.item->entry, w.item->leaf0, w.item->leaf1, w.q_head / (a.q_heads / a.geom.n_heads)};
    /* Said to be alike in a warp: wgmma stands in no path that may diverge. */
    const uint32_t n_rows = __shfl_sync(0xffffffffu, w.item->n_rows, 0);
    const uint32_t group = __shfl_sync(0xffffffffu, threadIdx.x / RKVK_WG, 0);
    if (part.row0 >= n_rows)
        return;
    w.alone = part.most == 64 || n_rows <= 64;
    rkvk_wg_bars(sm, w.alone ? 1 : RKVK_WG_FOLD);
    if (group == 0) {
        rkvk_fewer_registers<S::FEED_REGS>();
        for (w.row0 = part.row0; w.row0 < n_rows; w.row0 += RKVK_WG_ROWS) {
            w.n_rows = n_rows - w.row0 < part.most ? n_rows - w.row0 : part.most;
            rkvk_feed_rows(sm, a, w, n);
        }
    } else if (group == 1 || !w.alone) {
        rkvk_more_registers<S::FOLD_REGS>();
        if (group == 2)
            rkvk_fold_your_turn();
        for (w.row0 = part.row0; w.row0 < n_rows; w.row0 += RKVK_WG_ROWS) {
            w.n_rows = n_rows - w.row0 < part.most ? n_rows - w.row0 : part.most;
            rkvk_fold_rows(sm, a, w, n);
        }
    }
#endif
}

template <typename S>
static int rkvk_prefill_wg_prepare(void)
{
    return rkvk_load((const void *)rkvk_prefill_wg<S>, sizeof(rkvk_wg_smem<S>));
}

template <typename S>
static int rkvk_prefill_wg_launch(const rkvi_attend_args *a, uint64_t n, uint32_t n_multiprocessors, void *stream)
{
    const rkvk_wg_args x = {*a, n, rkvk_wg_halved(n, n_multiprocessors, a->max_rows)};
    const uint64_t n_blocks = n + x.n_halved;
    return rkvk_run(rkvk_prefill_wg<S>, &x, n_blocks, rkvk_grid(n_blocks), dim3(RKVK_WG_THREADS),
                    sizeof(rkvk_wg_smem<S>), stream);
}

#endif
