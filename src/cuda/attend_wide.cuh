/* SPDX-License-Identifier: MIT
 *
 * attend_wide.cuh: decode's partials where an item has more columns than one chunk of 8
 * (attend_stream.cuh has the others, the words, and the order of arithmetic: bits are the same).
 *
 * There, a warp computes all of a sub, and O of all subs meets in shared memory: with many
 * columns that is more than the leaf's K and V.  Here a block has two teams of 8 warps:
 *
 *   scores   warp u streams K of sub u: S, m, l, and P, which goes to shared memory
 *   output   a warp has a slice of V's dims for all columns and all subs: O of a sub, and the
 *            sums over subs, leaves and nodes of the tree, never leave its registers (pending
 *            nodes but one do).  Warp u loads V of sub u for all.
 *
 * While the output's team is at leaf i, the other one computes the scores of leaf i + 1:
 *
 *   scores:  K(i+1) here -> S, P -> EMPTY(i): wait -> put -> FULL(i+1): come
 *   output:  V(i) here, FULL(i): wait -> factors -> O -> EMPTY: come -> V(i+1) asked for -> tree
 *
 * K and V of one leaf are in shared memory, each asked for as soon as the last one was read: one
 * is on its way while the other one is used.
 */
#ifndef RKVK_ATTEND_WIDE_CUH
#define RKVK_ATTEND_WIDE_CUH

#include "rkvk_wide.cuh"

/* ------------------------------------------------------------------ the tree */

/* Pending nodes of a group of columns.  The last one is in registers, where `has_top`; before
 * these, the lowest one is in the item's slot, and the others are on the stack: [level][column]
 * [o by dims, m, l].  A thread's o is its own there; m and l are written by warp 0 for all. */
struct rkvk_wide_pending {
    bool has_top;
    rkvk_pending_list list;
};

/* Column `column` of the node at `level`, o by dims.  Where it lies comes from shared memory,
 * lest addresses be kept in registers. */
template <typename P>
static __device__ __forceinline__ float *rkvk_wide_node(const rkvk_wide_smem<P> &sm, const rkvk_stream_work &w,
                                                        uint32_t level, uint32_t column)
{
    float *slot = sm.slot[column];
    if (level == 0 || slot == nullptr)
        return slot;
    return w.stack + ((level - 1) * w.n_columns + column) * (uint32_t)rkvk_pending_floats<typename P::S>();
}

/* m of the same. */
template <typename P>
static __device__ __forceinline__ float *rkvk_wide_node_m(const rkvk_wide_smem<P> &sm, const rkvk_stream_work &w,
                                                          uint32_t level, uint32_t column)
{
    return level == 0 ? sm.slot_m[column] : rkvk_wide_node<P>(sm, w, level, column) + P::S::DV;
}

/* Calls f(node's, state's element) for the thread's elements. */
template <typename P, typename F>
static __device__ __forceinline__ void rkvk_wide_each(rkvk_wide_state<P> &x, const rkvk_wide_smem<P> &sm,
                                                      const rkvk_stream_work &w, const rkvk_wide_part &at,
                                                      uint32_t column0, uint32_t level, F f)
{
    const int lane = rkvk_lane(), g = lane >> 2;
#pragma unroll
    for (int n = 0; n < P::NW; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float *node = rkvk_wide_node<P>(sm, w, level, column0 + (uint32_t)((at.chunk + n) * 8 + 2 * (lane & 3) + c));
            if (node != nullptr)
#pragma unroll
                for (int v = 0; v < P::TW; v++)
#pragma unroll
                    for (int half = 0; half < 2; half++)
                        f(node[rkvk_v_dim<P::S::TV>(at.slice * P::TW + v, half, g)], x.o[n][v][2 * half + c]);
        }
}

template <typename P>
static __device__ __forceinline__ void rkvk_wide_store(rkvk_wide_state<P> &x, const rkvk_wide_smem<P> &sm,
                                                       const rkvi_attend_args &a, const rkvk_stream_work &w,
                                                       const rkvk_wide_part &at, uint32_t column0, uint32_t level)
{
    rkvk_wide_each<P>(x, sm, w, at, column0, level, [](float &node, float &o) { node = o; });
    const uint32_t lane = (uint32_t)rkvk_lane();
    if (rkvk_warp() == RKVK_SUBS && lane < P::GROUP && column0 + lane < w.n_columns) {
        float *m = rkvk_wide_node_m<P>(sm, w, level, column0 + lane);
        m[0] = x.m;
        m[level == 0 ? a.q_heads : 1] = x.l;
    }
}

template <typename P>
static __device__ __forceinline__ void rkvk_wide_load(rkvk_wide_state<P> &x, const rkvk_wide_smem<P> &sm,
                                                      const rkvi_attend_args &a, const rkvk_stream_work &w,
                                                      const rkvk_wide_part &at, uint32_t column0, uint32_t level)
{
    rkvk_wide_each<P>(x, sm, w, at, column0, level, [](float &node, float &o) { o = node; });
    const uint32_t lane = (uint32_t)rkvk_lane();
    if (lane < P::GROUP && column0 + lane < w.n_columns) {
        const float *m = rkvk_wide_node_m<P>(sm, w, level, column0 + lane);
        x.m = m[0];
        x.l = m[level == 0 ? a.q_heads : 1];
    }
}

/* y, whose leaves come before, joins x.  Where one is empty, the other one is taken, bit by bit. */
template <typename P>
static __device__ __forceinline__ void rkvk_wide_join(rkvk_wide_state<P> &x, const rkvk_wide_state<P> &y,
                                                      const rkvk_wide_part &at)
{
    const bool skip = y.m == rkvk_empty_m(), take = !skip && x.m == rkvk_empty_m();
    const rkvk_factors f = skip || take ? rkvk_factors{take ? y.m : x.m, skip ? -1.0f : 0.0f, take ? -1.0f : 0.0f}
                                        : rkvk_merge_factors(y.m, x.m);
    x.l = skip ? x.l : take ? y.l : rkvk_merge_value(f, y.l, x.l);
    x.m = f.m;
#pragma unroll
    for (int n = 0; n < P::NW; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const int column = (at.chunk + n) * 8 + 2 * (rkvk_lane() & 3) + c;
            const rkvk_factors own = {0.0f, __shfl_sync(0xffffffffu, f.a, column),
                                      __shfl_sync(0xffffffffu, f.b, column)};
#pragma unroll
            for (int v = 0; v < P::TW; v++)
#pragma unroll
                for (int j = c; j < 4; j += 2) {
                    const float sum = rkvk_merge_value(own, y.o[n][v][j], x.o[n][v][j]);
                    x.o[n][v][j] = own.a < 0.0f ? x.o[n][v][j] : own.b < 0.0f ? y.o[n][v][j] : sum;
                }
        }
}

/* As rkvk_pending_add. */
template <typename P>
static __device__ __forceinline__ rkvk_wide_pending
rkvk_wide_add(rkvk_wide_state<P> &x, rkvk_wide_state<P> &top, rkvk_wide_pending pending, const rkvk_wide_smem<P> &sm,
              const rkvi_attend_args &a, const rkvk_stream_work &w, const rkvk_wide_part &at, uint32_t column0,
              uint64_t done, bool more, uint64_t next)
{
    rkvk_pending_list &list = pending.list;
    while (list.n > 0) {
        const uint64_t first = __shfl_sync(0xffffffffu, list.leaf, (int)list.n - 1);
        if (more && !rkvk_tree_merges(first, done, next))
            break;
        list.n--;
        if (!pending.has_top)
            rkvk_wide_load<P>(top, sm, a, w, at, column0, list.n);
        rkvk_wide_join<P>(x, top, at);
        pending.has_top = false;
        done = first;
    }
    if (more) {
        if (pending.has_top)
            rkvk_wide_store<P>(top, sm, a, w, at, column0, list.n - 1);
        top = x;
        pending.has_top = true;
        list.leaf = rkvk_lane() == (int)list.n ? done : list.leaf;
        list.n++;
    }
    return pending;
}

/* --------------------------------------------------------------------- teams */

/* Groups of columns that are there: all but the last one are whole. */
template <typename P>
static __device__ __forceinline__ uint32_t rkvk_wide_groups(const rkvk_stream_work &w)
{
    return P::HC == 1 ? 1u : (w.n_columns + P::GROUP - 1) / P::GROUP;
}

/* m, l and P of a group's columns.  Behind the last group, the sub's K of the next leaf is asked
 * for.  (All in one branch: values that a path leaves open would keep registers all along.) */
template <typename P>
static __device__ __forceinline__ void rkvk_wide_sub(rkvk_sub_state<P> &st, uint2 (&p)[P::S::MT][P::NC],
                                                     rkvk_wide_smem<P> &sm, const rkvi_attend_args &a,
                                                     const rkvk_stream_work &w, uint32_t cur, uint32_t group,
                                                     bool then_feed)
{
    using S = typename P::S;
    const uint32_t u = (uint32_t)rkvk_warp();
    const rkvk_leaf &leaf = sm.queue.leaf[cur % RKVK_QUEUE];
    const rkvk_sub sub = rkvk_sub_of<S>(leaf, a.geom.leaf_cells, u);
    if (sub.n > 0) {
        float s[S::MT][P::NC][4];
        rkvk_wide_scores<P>(s, sm.k[u], w.q + group * S::STEPS * P::NC * 32);
        __syncwarp(); /* all have read it */
        if (then_feed)
            rkvk_wide_feed_k<P>(sm, a, cur + 1, u);
        rkvk_wide_sees<P>(st, sm, sm.reach + group * P::GROUP, leaf);
        rkvk_sub_weights<P>(st, s, p, a, __fmul_rn(a.scale, rkvk_unit<S::TK>(a.geom.k_scale)), sub);
        return;
    }
    if (then_feed)
        rkvk_wide_feed_k<P>(sm, a, cur + 1, u);
#pragma unroll
    for (int n = 0; n < P::NC; n++) {
        st.m[n][0] = st.m[n][1] = rkvk_empty_m();
        st.l[n][0] = st.l[n][1] = 0.0f;
#pragma unroll
        for (int i = 0; i < S::MT; i++)
            p[i][n] = make_uint2(0, 0);
    }
}

template <typename P>
static __device__ __forceinline__ void rkvk_wide_team_scores(rkvk_wide_smem<P> &sm, const rkvi_attend_args &a,
                                                             const rkvk_stream_work &w)
{
    const uint32_t u = (uint32_t)rkvk_warp(), groups = rkvk_wide_groups<P>(w);
    bool more = sm.queue.n_queued != 0;
    if (more)
        rkvk_wide_feed_k<P>(sm, a, 0, u);
#pragma unroll 1
    for (uint32_t cur = 0; more; cur++) {
        more = cur + 1 != sm.queue.n_queued;
        rkvk_wide_arrive<0>();
#pragma unroll 1
        for (uint32_t group = 0; group < groups; group++) {
            rkvk_sub_state<P> st;
            uint2 p[P::S::MT][P::NC];
            rkvk_wide_sub<P>(st, p, sm, a, w, cur, group, more && group + 1 == groups);
            if (cur + group > 0)
                rkvk_bar_sync<RKVK_WIDE_EMPTY, P::THREADS>();
            rkvk_wide_put<P>(sm, st, p, u);
            rkvk_bar_come<RKVK_WIDE_FULL, P::THREADS>();
        }
        if (threadIdx.x < 32) /* the other team may still ask for the number of the leaf before */
            rkvk_queue_fill(sm.queue, a, w.walk, cur > 0 ? cur - 1 : 0);
    }
}

/* The sub's V is here, and no scale of a cell that isn't read. */
template <typename P>
static __device__ __forceinline__ void rkvk_wide_arrive_v(rkvk_wide_smem<P> &sm, const rkvi_attend_args &a,
                                                          const rkvk_leaf &leaf, uint32_t cur, uint32_t u)
{
    using S = typename P::S;
    rkvk_wide_arrive<P::V_LEAVES - 1>();
    if constexpr (S::V_HAS_SCALES) {
        const rkvk_sub sub = rkvk_sub_of<S>(leaf, a.geom.leaf_cells, u);
        for (uint32_t i = 0; i < sub.n; i++)
            rkvk_quant_clear<S::DV / 32>(sm.v[cur % P::V_LEAVES][u] + P::CELLS * P::V_PITCH + i * 16 * S::V_SCALE,
                                         (int)leaf.c0 - (int)(sub.cell + i * 128),
                                         (int)leaf.c1 - (int)(sub.cell + i * 128), rkvk_lane());
    }
}

template <typename P>
static __device__ __forceinline__ void rkvk_wide_clear(rkvk_wide_state<P> &x)
{
    x.m = rkvk_empty_m();
    x.l = 0.0f;
#pragma unroll
    for (int n = 0; n < P::NW; n++)
#pragma unroll
        for (int v = 0; v < P::TW; v++)
            x.o[n][v][0] = x.o[n][v][1] = x.o[n][v][2] = x.o[n][v][3] = 0.0f;
}

template <typename P>
static __device__ __forceinline__ void rkvk_wide_team_output(rkvk_wide_smem<P> &sm, const rkvi_attend_args &a,
                                                             const rkvk_stream_work &w)
{
    using S = typename P::S;
    const uint32_t u = (uint32_t)rkvk_warp() - RKVK_SUBS, groups = rkvk_wide_groups<P>(w);
    const rkvk_wide_part at = {(int)u % P::SLICES, (int)u / P::SLICES * P::NW};
    const bool has_slice = u < P::SLICES * P::CH;
    const float unit = rkvk_unit<S::TV>(a.geom.v_scale);
    rkvk_wide_state<P> x, top[P::HC];
    rkvk_wide_pending pending = {false, {0, 0}};
    bool more = sm.queue.n_queued != 0;
    rkvk_wide_clear<P>(x);
#pragma unroll
    for (uint32_t group = 0; group < P::HC; group++)
        rkvk_wide_clear<P>(top[group]);
    for (uint32_t i = 0; i < P::V_LEAVES; i++)
        rkvk_wide_feed_v<P>(sm, a, i, u);
    if (!more && has_slice)
        for (uint32_t group = 0; group < groups; group++)
            rkvk_wide_store<P>(x, sm, a, w, at, group * P::GROUP, 0);
#pragma unroll 1
    for (uint32_t cur = 0; more; cur++) {
        const rkvk_leaf &leaf = sm.queue.leaf[cur % RKVK_QUEUE];
        rkvk_wide_pending after = pending;
        rkvk_wide_arrive_v<P>(sm, a, leaf, cur, u);
#pragma unroll
        for (uint32_t group = 0; group < P::HC; group++) {
            if (group >= groups)
                continue;
            rkvk_bar_sync<RKVK_WIDE_FULL, P::THREADS>();
            rkvk_wide_weigh<P>(sm, x, u);
            rkvk_bar_sync<RKVK_WIDE_WEIGHED, RKVK_WIDE_TEAM>();
            const bool is_last = group + 1 == groups;
            more = cur + 1 != sm.queue.n_queued;
            const uint64_t number = leaf.number, next = more ? sm.queue.leaf[(cur + 1) % RKVK_QUEUE].number : 0;
            if (has_slice) {
                if (u == 0)
                    rkvk_wide_total<P>(x, sm);
                rkvk_wide_output<P>(x, sm, at, cur, unit);
            }
            if (more || !is_last)
                rkvk_bar_come<RKVK_WIDE_EMPTY, P::THREADS>();
            if (is_last) {
                rkvk_bar_sync<RKVK_WIDE_READ, RKVK_WIDE_TEAM>();
                rkvk_wide_feed_v<P>(sm, a, cur + P::V_LEAVES, u);
            }
            if (has_slice)
                after = rkvk_wide_add<P>(x, top[group], pending, sm, a, w, at, group * P::GROUP, number, more, next);
            if (!more) {
                rkvk_bar_sync<RKVK_WIDE_READ, RKVK_WIDE_TEAM>(); /* all have read m and l of the lowest node */
                if (has_slice)
                    rkvk_wide_store<P>(x, sm, a, w, at, group * P::GROUP, 0);
            }
        }
        pending = after;
    }
}

/* -------------------------------------------------------------------- kernel */

/* Warp 0: as rkvk_stream_reach, and where columns end up. */
template <typename P>
static __device__ void rkvk_wide_reach(rkvk_wide_smem<P> &sm, const rkvi_attend_args &a, const rkvk_stream_work &w)
{
    rkvk_reach all = rkvk_reach_none(), ends = all; /* the first end and the last beginning */
#pragma unroll 1
    for (uint32_t column = threadIdx.x; column < P::COLUMNS; column += 32) {
        const bool is_there = column < w.n_columns;
        rkvk_reach r = rkvk_reach_none();
        if (is_there)
            r = rkvk_reach_of(a, rkvk_item_row(a, *w.item, (w.column0 + column) / w.group));
        sm.reach[column] = r;
        rkvk_node_at slot = {nullptr, nullptr, nullptr};
        if (is_there) {
            slot = rkvk_slot_at<P>(a, w, column);
            all.lo = r.lo < all.lo ? r.lo : all.lo;
            all.hi = r.hi > all.hi ? r.hi : all.hi;
            ends.lo = r.hi < ends.lo ? r.hi : ends.lo;
            ends.hi = r.lo > ends.hi ? r.lo : ends.hi;
        }
        sm.slot[column] = slot.o;
        sm.slot_m[column] = slot.m;
    }
    ends = rkvk_reach_union(ends);
    if (threadIdx.x == 0)
        sm.common = {ends.hi, ends.lo};
    rkvk_queue_begin(sm.queue, w.walk, rkvk_reach_union(all));
    rkvk_queue_fill(sm.queue, a, w.walk, 0);
}

/* Some columns, over all leaves of the item. */
template <typename P>
static __device__ __forceinline__ void rkvk_wide_columns(rkvk_wide_smem<P> &sm, const rkvi_attend_args &a,
                                                         rkvk_stream_work &w)
{
    w.q = reinterpret_cast<uint2 *>(w.region);
    w.stack = reinterpret_cast<float *>(w.region + P::Q_BYTES);
    __syncthreads(); /* those before are done with what is set up here */
    if (threadIdx.x < 32) {
        rkvk_wide_reach<P>(sm, a, w);
        rkvk_stream_near<P>(sm, a);
    } else if (threadIdx.x < 64) {
        rkvk_stream_warm(a, w);
    }
    rkvk_wait_before(); /* so far tables alone were read */
    if (threadIdx.x >= 32)
        rkvk_stream_q<P>(a, w);
    __syncthreads();
    if (threadIdx.x < RKVK_WIDE_TEAM)
        rkvk_wide_team_scores<P>(sm, a, w);
    else
        rkvk_wide_team_output<P>(sm, a, w);
}

/* Levels of the stack: without the lowest node and the last one. */
static __device__ __forceinline__ uint32_t rkvk_wide_levels(uint64_t leaf0, uint64_t leaf1)
{
    const uint32_t depth = rkvk_depth(leaf0, leaf1);
    return depth > 2 ? depth - 2 : 0;
}

/* Block = item * KV heads + head. */
template <typename P>
static __global__ void __launch_bounds__(P::THREADS, 1)
    rkvk_wide(const rkvk_stream_args d, const uint64_t n_blocks)
{
    using S = typename P::S;
    RKVK_SHARED(raw, 16);
    rkvk_wide_smem<P> &sm = *reinterpret_cast<rkvk_wide_smem<P> *>(raw);
    const rkvi_attend_args &a = d.a;
    const uint64_t index = rkvk_block();
    if (index >= n_blocks) {
        rkvk_wait_before();
        return;
    }
    rkvk_stream_work w;
    w.item = a.items + index / a.geom.n_heads;
    w.walk = {a.entries + w.item->entry, w.item->leaf0, w.item->leaf1, (uint32_t)(index % a.geom.n_heads)};
    w.group = a.q_heads / a.geom.n_heads;
    w.region = raw + sizeof(rkvk_wide_smem<P>);
    const uint32_t levels = rkvk_wide_levels(w.walk.leaf0, w.walk.leaf1);
    const uint32_t column_bytes = levels * (uint32_t)rkvk_pending_floats<S>() * 4;
    const uint32_t fit = levels ? (d.region_bytes - P::Q_BYTES) / column_bytes : P::COLUMNS;
    const uint32_t most = fit < 1 ? 1 : fit < P::COLUMNS ? fit : P::COLUMNS;
    const uint32_t n_columns = w.item->n_rows * w.group;
    if (n_columns == 0) /* an empty item, and there may be no others */
        rkvk_wait_before();
    for (w.column0 = 0; w.column0 < n_columns; w.column0 += most) {
        w.n_columns = n_columns - w.column0 < most ? n_columns - w.column0 : most;
        rkvk_wide_columns<P>(sm, a, w);
    }
}

/* Room for q, and for the pending nodes of runs of 16 leaves (of longer ones, columns go one
 * part after another). */
template <typename P>
static __host__ __device__ constexpr uint32_t rkvk_wide_least(void)
{
    return P::Q_BYTES + 2 * P::COLUMNS * (uint32_t)rkvk_pending_floats<typename P::S>() * 4;
}

/* 0 bytes: the device has too little shared memory. */
template <typename P>
static int rkvk_wide_prepare(uint32_t *region, int block_bytes)
{
    constexpr int fixed = (int)sizeof(rkvk_wide_smem<P>);
    const int room = (block_bytes - fixed) / 16 * 16;
    *region = 0;
    if (room < (int)rkvk_wide_least<P>())
        return 0;
    const int status = rkvk_load((const void *)rkvk_wide<P>, (size_t)(fixed + room));
    if (status == 0)
        *region = (uint32_t)room;
    return status;
}

template <typename P>
static int rkvk_wide_run(uint32_t region, const rkvi_attend_args *a, uint64_t grid, void *stream)
{
    const rkvk_stream_args d = {*a, region};
    return rkvk_run_early(rkvk_wide<P>, &d, grid, rkvk_grid(grid), dim3(P::THREADS),
                          sizeof(rkvk_wide_smem<P>) + region, stream);
}

#endif
