/* SPDX-License-Identifier: MIT
 *
 * attend_stream.cuh: partials of aligned runs of leaves (RKVI_OP_DECODE).
 *
 * A block of 8 warps takes one (item, KV head).  Its columns are the item's rows
 * times the query heads of the group: they go through the tensor cores as N,
 * cells as M, so that K and V are loaded once for all.  Columns are
 * arithmetically independent: a row's bits do not depend on the others.
 *
 * The leaf is cut into 8 subs (rkvk_stream.cuh), each a stream of its own that no
 * barrier of the block stops:
 *
 *   scores   S (16 cells x N) = K * Q^T for each tile of the sub
 *   weights  scale, softcap, mask; the column's maximum over the sub by shuffles;
 *            P = 2^(S - m), transposed in registers by movmatrix
 *   output   O^T (dims x N) = V^T * P^T, in the warp's registers
 *
 * At the leaf's end the subs' O, m and l meet in shared memory, a chunk of 8
 * columns and some dims at a time: warp c adds up column c, sub after sub, so
 * that the order, and with it the bits, is the same however many warps share a
 * sub, and goes on to the tree (rkvk_stream_tree.cuh).  Loads for the next leaves
 * stay under way all the while.
 *
 * Where cells are few bytes, the leaf's end would take longer than reading it.  So in
 * long runs each warp has a leaf alone, sub after sub, and the warps meet once for 8
 * leaves (rkvk_stream_alone.cuh): up to 16 columns.  Bits are the same.
 *
 * There is a kernel for each way to lay out columns (rkvk_stream_path), taken by the
 * most rows of an item: up to 8 columns, 16, 32; attend_wide.cuh has faster ones for 9 and
 * more, where a device has their shared memory (but for 16 in long runs of small cells).
 * Each is right for any number, in several goes, and all have the same bits.
 *
 * Cells outside the span, or seen by no row here, are not read: zeros stand for
 * them.  Masked scores are selected away before the maximum.  Cells that another
 * row sees are finite, since storing saturates; they count 0 times their V.
 */
#ifndef RKVK_ATTEND_STREAM_CUH
#define RKVK_ATTEND_STREAM_CUH

#include "rkvk_launch.cuh"
#include "rkvk_stream_alone.cuh"

/* --------------------------------------------------------------------- load */

/* All warps but the first: the columns' q as fragments of B; zeros where there is no column. */
template <typename P>
static __device__ void rkvk_stream_q(const rkvi_attend_args &a, const rkvk_stream_work &w)
{
    using S = typename P::S;
    const rkvi_tensor q = rkvk_item_q(a, *w.item);
    for (int i = (int)threadIdx.x - 32; i < S::STEPS * P::NC * P::HC * 32; i += P::THREADS - 32) {
        const int lane = i & 31, n = i / 32 % P::NC, step = i / 32 / P::NC % S::STEPS, hc = i / 32 / P::NC / S::STEPS;
        const uint32_t column = (uint32_t)((hc * P::NC + n) * 8 + (lane >> 2));
        float x[4] = {0, 0, 0, 0};
        if (column < w.n_columns) {
            const uint32_t c = w.column0 + column;
            const uint64_t row = rkvk_item_row(a, *w.item, c / w.group);
            const int64_t at = (int64_t)row * q.row_stride +
                               (int64_t)(w.walk.head * w.group + c % w.group) * q.head_stride;
#pragma unroll
            for (int j = 0; j < 4; j++)
                x[j] = rkvk_q_at(q, at + rkvk_quant_k_dim<S::TK>(step, lane & 3, j));
        }
        constexpr bool bf16 = S::TK == RKV_TYPE_BF16;
        w.q[i] = make_uint2(rkvk_pack<bf16>(x[0], x[1]), rkvk_pack<bf16>(x[2], x[3]));
    }
}

/* Warp 0: each column's reach, and the queue's first leaves.  A column that isn't
 * there sees nothing. */
template <typename P>
static __device__ void rkvk_stream_reach(rkvk_stream_smem<P> &sm, const rkvi_attend_args &a, const rkvk_stream_work &w)
{
    const uint32_t lane = threadIdx.x;
    rkvk_reach r = rkvk_reach_none();
    if (lane < w.n_columns)
        r = rkvk_reach_of(a, rkvk_item_row(a, *w.item, (w.column0 + lane) / w.group));
    if (lane < P::COLUMNS)
        sm.reach[lane] = r;
    rkvk_queue_begin(sm.queue, w.walk, rkvk_reach_union(r));
    rkvk_queue_fill(sm.queue, a, w.walk, 0);
    rkvk_queue_show(sm.queue);
}

/* Warp 1, while warp 0 waits for the rows: the first leaves' tables and cells come closer. */
static __device__ void rkvk_stream_warm(const rkvi_attend_args &a, const rkvk_stream_work &w)
{
    const uint64_t leaf = w.walk.leaf0 + (uint64_t)rkvk_lane();
    if (leaf >= w.walk.leaf1)
        return;
    const rkvi_span span = a.spans[w.walk.entry->span0 + leaf];
    const uint64_t base = a.bases[w.walk.entry->base0 + span.tile];
    if (base != 0)
        rkvk_prefetch((const uint8_t *)base + w.walk.head * a.geom.head_bytes);
}

/* Warp 0: the first leaf's K comes to L2 while the kernel before ends.  What that may
 * still write of it is seen, since nothing is read. */
template <typename P, typename M>
static __device__ void rkvk_stream_near(const M &sm, const rkvi_attend_args &a)
{
    constexpr uint32_t row = P::S::K_ROW;
    const rkvk_leaf &leaf = sm.queue.leaf[0];
    if (threadIdx.x == 0 && sm.queue.n_queued > 0)
        rkvk_prefetch_rows(leaf.head + a.geom.k_off + leaf.c0 * row, (leaf.c1 - leaf.c0) * row);
}

/* ------------------------------------------------------------------- kernel */

/* The owner's copies have nothing under way, since leaves without a tile here came between: from `leaf` on. */
template <typename P>
static __device__ __forceinline__ void rkvk_feed_resume(rkvk_feed &feed, const rkvk_stream_smem<P> &sm,
                                                        const rkvi_attend_args &a, const rkvk_place<P> &at,
                                                        uint32_t leaf, uint32_t round)
{
    feed.leaf = leaf;
    feed.round = round;
    feed.piece = feed.n;
    rkvk_feed_fill<P>(feed, sm.queue, a, at.owner, at.thread);
}

/* All subs of a leaf, and their sum in `sum`. */
template <typename P>
static __device__ __forceinline__ void rkvk_leaf_run(rkvk_node_state<P> &sum, rkvk_stream_smem<P> &sm,
                                                     const rkvi_attend_args &a, const rkvk_stream_work &w,
                                                     uint8_t *ring, rkvk_feed &feed, const rkvk_place<P> &at,
                                                     uint32_t cur)
{
    using S = typename P::S;
    const rkvk_leaf &leaf = sm.queue.leaf[cur % RKVK_QUEUE];
    rkvk_sub_state<P> st;
    rkvk_leaf_sees<P>(st, sm, leaf, at.part);
    rkvk_node_clear<P>(sum);
#pragma unroll 1
    for (uint32_t round = 0; round < P::ROUNDS; round++) {
        const rkvk_sub sub = rkvk_sub_of<S>(leaf, a.geom.leaf_cells, round * P::U + at.owner);
        if (sub.n > 0 && feed.ahead == 0)
            rkvk_feed_resume<P>(feed, sm, a, at, cur, round);
        rkvk_sub_run<P>(st, sm, a, ring, feed, at, leaf, sub);
        if (round == 0 && threadIdx.x < 32)
            rkvk_queue_fill(sm.queue, a, w.walk, cur);
#pragma unroll
        for (int n = 0; n < P::NC; n++) {
            rkvk_join_factors<P> factors;
#pragma unroll
            for (int j = 0; j < P::J; j++) {
                rkvk_sub_put<P>(sm, st, n, j);
                __syncthreads();
                rkvk_queue_show(sm.queue);
                if (rkvk_is_own<P>(w, n, 0)) { /* the first part's column is the lowest */
                    if (j == 0)
                        rkvk_leaf_weigh<P>(sum, factors, sm, n);
                    rkvk_leaf_join<P>(sum, factors, sm, n, j);
                }
                __syncthreads();
            }
        }
    }
    rkvk_leaf_finish<P>(sum, rkvk_unit<S::TV>(a.geom.v_scale));
}

template <typename P>
static __device__ __forceinline__ void rkvk_stream_together(rkvk_stream_smem<P> &sm, const rkvi_attend_args &a,
                                                            const rkvk_stream_work &w, const rkvk_place<P> &at)
{
    rkvk_node_state<P> x;
    rkvk_node_clear<P>(x);
    constexpr uint32_t stage = P::S::STAGE;
    const uint32_t stages = w.rings_bytes / stage / P::U;
    rkvk_feed feed = {};
    feed.n_stages = stages < RKVK_RING_MOST ? stages : RKVK_RING_MOST;
    feed.ring_bytes = feed.n_stages * stage;
    uint8_t *ring = w.region + at.owner * feed.ring_bytes;
    feed.ring = rkvk_smem_addr(ring);
    rkvk_feed_fill<P>(feed, sm.queue, a, at.owner, at.thread);
    rkvk_pending_list list = {0, 0};
#pragma unroll 1
    for (uint32_t cur = 0; cur != sm.queue.n_shown; cur++) {
        const uint64_t number = sm.queue.leaf[cur % RKVK_QUEUE].number;
        rkvk_leaf_run<P>(x, sm, a, w, ring, feed, at, cur);
        const bool more = cur + 1 != sm.queue.n_shown;
        rkvk_pending_add<P>(x, a, w, list, number, more, more ? sm.queue.leaf[(cur + 1) % RKVK_QUEUE].number : 0);
    }
    rkvk_each_own<P>(w, [&](uint32_t column, int n, int h) {
        rkvk_node_put<P>(x, n, h, rkvk_slot_at<P>(a, w, column));
    });
}

/* Some columns, over all leaves of the item. */
template <typename P>
static __device__ __forceinline__ void rkvk_stream_columns(rkvk_stream_smem<P> &sm,
                                                           const rkvi_attend_args &a, rkvk_stream_work &w)
{
    using S = typename P::S;
    const uint32_t warp = (uint32_t)rkvk_warp();
    constexpr uint32_t q_bytes = P::Q_BYTES;
    const uint32_t stack_bytes = w.depth * w.n_columns * (uint32_t)rkvk_pending_floats<S>() * 4;
    w.rings_bytes = w.region_bytes - q_bytes - stack_bytes;
    w.stack = reinterpret_cast<float *>(w.region + w.rings_bytes);
    w.q = reinterpret_cast<uint2 *>(w.region + w.rings_bytes + stack_bytes);
    __syncthreads(); /* those before are done with what is set up here */
    if (threadIdx.x < 32) {
        rkvk_stream_reach(sm, a, w);
        rkvk_stream_near<P>(sm, a);
    } else if (threadIdx.x < 64) {
        rkvk_stream_warm(a, w);
    }
    rkvk_wait_before(); /* so far tables alone were read */
    if (threadIdx.x >= 32)
        rkvk_stream_q<P>(a, w);
    __syncthreads();
    const uint32_t owner = warp % P::U;
    const int part = (int)(warp / P::U);
    const rkvk_place<P> at = {owner, part, part * 32 + rkvk_lane(), w.q + part % P::HC * S::STEPS * P::NC * 32,
                              __fmul_rn(a.scale, rkvk_unit<S::TK>(a.geom.k_scale))};
    if constexpr (P::ALONE) {
        if (rkvk_stream_alone<P>(sm, a, w, at))
            return;
    }
    rkvk_stream_together<P>(sm, a, w, at);
}

/* Nodes that may be pending: one for each level at which two of the leaves meet. */
static __device__ __forceinline__ uint32_t rkvk_depth(uint64_t leaf0, uint64_t leaf1)
{
    return leaf0 < leaf1 ? 64u - (uint32_t)__clzll((long long)(leaf0 ^ (leaf1 - 1))) : 0;
}

/* Least room of q and the rings: the rest of the region is for pending nodes. */
template <typename P>
static __host__ __device__ constexpr uint32_t rkvk_ring_least(void)
{
    return RKVK_RING_LEAST * RKVK_STREAM_WARPS * P::S::STAGE +
           P::Q_BYTES;
}

/* Block = item * KV heads + head. */
template <typename P>
static __global__ void __launch_bounds__(RKVK_STREAM_THREADS, P::BLOCKS)
    rkvk_stream(const rkvk_stream_args d, const uint64_t n_blocks)
{
    using S = typename P::S;
    RKVK_SHARED(raw, 16);
    rkvk_stream_smem<P> &sm = *reinterpret_cast<rkvk_stream_smem<P> *>(raw);
    const rkvi_attend_args &a = d.a;
    const uint64_t index = rkvk_block();
    if (index >= n_blocks) {
        rkvk_wait_before();
        return;
    }
    rkvk_stream_work w;
    w.item = a.items + index / a.geom.n_heads;
    if (threadIdx.x == 0) { /* what will be wanted next, where entries are few */
        rkvk_prefetch(a.entries);
        rkvk_prefetch(a.rows);
    }
    w.walk = {a.entries + w.item->entry, w.item->leaf0, w.item->leaf1, (uint32_t)(index % a.geom.n_heads)};
    w.group = a.q_heads / a.geom.n_heads;
    w.region = raw + sizeof(rkvk_stream_smem<P>);
    w.region_bytes = d.region_bytes;
    const uint32_t depth = rkvk_depth(w.walk.leaf0, w.walk.leaf1);
    w.depth = depth ? depth - 1 : 0;
    const uint32_t column_bytes = w.depth * (uint32_t)rkvk_pending_floats<S>() * 4;
    const uint32_t fit = w.depth ? (d.region_bytes - rkvk_ring_least<P>()) / column_bytes : P::COLUMNS;
    const uint32_t most = fit < 1 ? 1 : fit < P::COLUMNS ? fit : P::COLUMNS;
    const uint32_t n_columns = w.item->n_rows * w.group;
    if (n_columns == 0) /* an empty item, and there may be no others */
        rkvk_wait_before();
    for (w.column0 = 0; w.column0 < n_columns; w.column0 += most) {
        w.n_columns = n_columns - w.column0 < most ? n_columns - w.column0 : most;
        rkvk_stream_columns<P>(sm, a, w);
    }
}

#include "attend_wide.cuh"

/* ----------------------------------------------------------------- launcher */

/* `regions`: a variant's, by device and path. */
#define RKVK_DEVICES 64
enum { RKVK_NARROW, RKVK_MIDDLE, RKVK_MANY, RKVK_WIDE16, RKVK_WIDE32, RKVK_WIDE96, RKVK_PATHS };

/* As many blocks a multiprocessor as registers allow, where that leaves enough. */
template <typename P>
static int rkvk_stream_prepare(uint32_t *region, int sm_bytes, int block_bytes)
{
    constexpr int fixed = (int)sizeof(rkvk_stream_smem<P>), least = (int)rkvk_ring_least<P>() + 4 * 1024;
    static_assert(fixed + least <= RKVK_SMEM_MOST, "all devices have so much");
    const int share = rkvk_min(block_bytes, sm_bytes / P::BLOCKS - 1024);
    const int room = (share - fixed >= least ? share : block_bytes) - fixed;
    if (room < least)
        return (int)cudaErrorInvalidConfiguration;
    *region = (uint32_t)room / 16 * 16;
    return rkvk_load((const void *)rkvk_stream<P>, (size_t)fixed + *region);
}

template <typename S>
static int rkvk_stream_prepare_all(uint32_t (*regions)[RKVK_PATHS])
{
    int device, sm_bytes, block_bytes;
    uint32_t region[RKVK_PATHS];
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&sm_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&block_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (e != cudaSuccess || device >= RKVK_DEVICES)
        return e != cudaSuccess ? (int)e : (int)cudaErrorInvalidConfiguration;
    int status = rkvk_stream_prepare<typename S::narrow>(&region[RKVK_NARROW], sm_bytes, block_bytes);
    if (status == 0)
        status = rkvk_stream_prepare<typename S::middle>(&region[RKVK_MIDDLE], sm_bytes, block_bytes);
    if (status == 0)
        status = rkvk_stream_prepare<typename S::wide>(&region[RKVK_MANY], sm_bytes, block_bytes);
    region[RKVK_WIDE16] = region[RKVK_WIDE32] = region[RKVK_WIDE96] = 0;
    if constexpr (S::wide16::FITS) {
        if (status == 0)
            status = rkvk_wide_prepare<typename S::wide16>(&region[RKVK_WIDE16], block_bytes);
    }
    if constexpr (S::wide32::FITS) {
        if (status == 0)
            status = rkvk_wide_prepare<typename S::wide32>(&region[RKVK_WIDE32], block_bytes);
    }
    if constexpr (S::wide96::FITS) {
        if (status == 0)
            status = rkvk_wide_prepare<typename S::wide96>(&region[RKVK_WIDE96], block_bytes);
    }
    for (int i = 0; i < RKVK_PATHS && status == 0; i++)
        regions[device][i] = region[i];
    return status;
}

template <typename P>
static int rkvk_stream_run(uint32_t region, const rkvi_attend_args *a, uint64_t grid, void *stream)
{
    const rkvk_stream_args d = {*a, region};
    return rkvk_run_early(rkvk_stream<P>, &d, grid, rkvk_grid(grid), dim3(RKVK_STREAM_THREADS),
                    sizeof(rkvk_stream_smem<P>) + region, stream);
}

/* The path is a matter of speed: all have the same bits. */
template <typename S>
static int rkvk_stream_launch(const uint32_t (*regions)[RKVK_PATHS], const rkvi_attend_args *a, uint64_t grid,
                              void *stream)
{
    int device;
    const cudaError_t e = cudaGetDevice(&device);
    if (e != cudaSuccess)
        return (int)e;
    if (device >= RKVK_DEVICES || regions[device][RKVK_NARROW] == 0)
        return (int)cudaErrorInvalidConfiguration;
    const uint64_t columns = (uint64_t)a->max_rows * (a->q_heads / a->geom.n_heads);
    if (grid == 0)
        return 0;
    if (columns > 0 && columns <= S::narrow::COLUMNS)
        return rkvk_stream_run<typename S::narrow>(regions[device][RKVK_NARROW], a, grid, stream);
    if constexpr (S::middle::ALONE) { /* in long runs, a leaf a warp */
        if (columns > 0 && columns <= S::middle::COLUMNS && a->mean_leaves >= RKVK_ALONE_LEAST)
            return rkvk_stream_run<typename S::middle>(regions[device][RKVK_MIDDLE], a, grid, stream);
    }
    if constexpr (S::wide16::FITS) {
        if (columns > 0 && regions[device][RKVK_WIDE16] &&
            (columns <= S::wide16::COLUMNS || !regions[device][RKVK_WIDE32]))
            return rkvk_wide_run<typename S::wide16>(regions[device][RKVK_WIDE16], a, grid, stream);
    }
    if constexpr (S::wide96::FITS) {
        if (columns > S::wide32::COLUMNS && regions[device][RKVK_WIDE96])
            return rkvk_wide_run<typename S::wide96>(regions[device][RKVK_WIDE96], a, grid, stream);
    }
    if constexpr (S::wide32::FITS) {
        if (regions[device][RKVK_WIDE32])
            return rkvk_wide_run<typename S::wide32>(regions[device][RKVK_WIDE32], a, grid, stream);
    }
    if (columns > 0 && columns <= S::middle::COLUMNS)
        return rkvk_stream_run<typename S::middle>(regions[device][RKVK_MIDDLE], a, grid, stream);
    return rkvk_stream_run<typename S::wide>(regions[device][RKVK_MANY], a, grid, stream);
}

#define RKVK_STREAM_VARIANT(name, type_k, type_v, dk, dv)                                                      \
    static uint32_t regions_##name[RKVK_DEVICES][RKVK_PATHS];                                                  \
    extern "C" int rkvk_decode_##name(const rkvi_attend_args *a, uint64_t grid, void *stream)                  \
    {                                                                                                          \
        return rkvk_stream_launch<rkvk_stream_shape<type_k, type_v, dk, dv>>(regions_##name, a, grid, stream); \
    }                                                                                                          \
    extern "C" int rkvk_decode_##name##_prepare(void)                                                          \
    {                                                                                                          \
        return rkvk_stream_prepare_all<rkvk_stream_shape<type_k, type_v, dk, dv>>(regions_##name);             \
    }

#endif
