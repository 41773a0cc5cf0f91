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
 *   scores:  K(i+1) here -> S, P -> EMPTY(i): wait -> put -> factors -> FULL(i+1): come
 *   output:  V(i) here, FULL(i): wait -> O -> EMPTY: come -> V(i+1) asked for -> tree
 *
 * The output has more to do: so what it can be spared (factors, where cells are few bytes the
 * loads of V) is the scores'.
 *
 * K and V of one leaf are in shared memory, V in two halves, each asked for as soon as the last
 * one was read: one is on its way while the other one is used.  Small V has two places; so do
 * small K, or the weights, where pending nodes leave room.
 */
#ifndef RKVK_ATTEND_WIDE_CUH
#define RKVK_ATTEND_WIDE_CUH

#include "rkvk_wide_tree.cuh"

/* --------------------------------------------------------------------- teams */

/* Groups of columns that are there: all but the last one are whole. */
template <typename P>
static __device__ __forceinline__ uint32_t rkvk_wide_groups(const rkvk_stream_work &w)
{
    return P::HC == 1 ? 1u : (w.n_columns + P::GROUP - 1) / P::GROUP;
}

/* Where a leaf's K, or weights, are. */
template <typename P>
static __device__ __forceinline__ uint32_t rkvk_wide_place(const rkvk_stream_work &w, uint32_t cur)
{
    return P::DEEP_K || P::DEEP_P ? cur & w.is_deep : 0;
}

/* Leaves whose K is here or on its way; whose weights are there or not yet read. */
template <typename P>
static __device__ __forceinline__ uint32_t rkvk_wide_k_leaves(const rkvk_stream_work &w)
{
    return P::DEEP_K ? 1 + w.is_deep : 1;
}

template <typename P>
static __device__ __forceinline__ uint32_t rkvk_wide_p_leaves(const rkvk_stream_work &w)
{
    return P::DEEP_P ? 1 + w.is_deep : 1;
}

/* Barriers of a place of the weights: ID's, or the next one's. */
template <typename P, int ID>
static __device__ __forceinline__ void rkvk_wide_sync(uint32_t place)
{
    if (!P::DEEP_P || place == 0)
        rkvk_bar_sync<ID, P::THREADS>();
    else
        rkvk_bar_sync<ID + 1, P::THREADS>();
}

template <typename P, int ID>
static __device__ __forceinline__ void rkvk_wide_come(uint32_t place)
{
    if (!P::DEEP_P || place == 0)
        rkvk_bar_come<ID, P::THREADS>();
    else
        rkvk_bar_come<ID + 1, P::THREADS>();
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
        rkvk_wide_scores<P>(s, rkvk_wide_k<P>(sm, rkvk_wide_place<P>(w, cur), u), w.q + group * S::STEPS * P::NC * 32);
        __syncwarp(); /* all have read it */
        if (then_feed)
            rkvk_wide_feed_k<P>(sm, a, cur + rkvk_wide_k_leaves<P>(w), rkvk_wide_place<P>(w, cur), u);
        const float scale = __fmul_rn(a.scale, rkvk_unit<S::TK>(a.geom.k_scale));
        if (a.softcap == 0.0f && rkvk_wide_all_seen<P>(sm, leaf, a.geom.leaf_cells)) {
            rkvk_sub_scale<P>(s, __fmul_rn(scale, RKVK_LOG2E));
        } else {
            rkvk_wide_sees<P>(st, sm, sm.reach + group * P::GROUP, leaf);
            rkvk_sub_mask<P>(st, s, a, scale, sub);
        }
        rkvk_sub_weigh<P>(st, s, p);
        return;
    }
    if (then_feed)
        rkvk_wide_feed_k<P>(sm, a, cur + rkvk_wide_k_leaves<P>(w), rkvk_wide_place<P>(w, cur), u);
#pragma unroll
    for (int n = 0; n < P::NC; n++) {
        st.m[n][0] = st.m[n][1] = rkvk_empty_m();
        st.l[n][0] = st.l[n][1] = 0.0f;
#pragma unroll
        for (int i = 0; i < S::MT; i++)
            p[i][n] = make_uint2(0, 0);
    }
}

/* The sub's V is here; its scales are turned. */
template <typename P, int BUT>
static __device__ __forceinline__ void rkvk_wide_arrive_v(rkvk_wide_smem<P> &sm, const rkvi_attend_args &a,
                                                          const rkvk_leaf &leaf, uint32_t cur, uint32_t u)
{
    using S = typename P::S;
    rkvk_wide_arrive<BUT>();
    if constexpr (S::V_HAS_SCALES) {
        const rkvk_sub sub = rkvk_sub_of<S>(leaf, a.geom.leaf_cells, u);
        rkvk_quant_turn<S::MT, S::DV / 32>(sm.v[cur % P::V_LEAVES][u] + P::CELLS * P::V_PITCH, sub.cell, leaf.c0,
                                           leaf.c1, rkvk_lane());
    }
}

/* The first leaves' K and V are asked for, as the teams will do with those after them. */
template <typename P>
static __device__ __forceinline__ void rkvk_wide_begin(rkvk_wide_smem<P> &sm, const rkvi_attend_args &a,
                                                       const rkvk_stream_work &w)
{
    const uint32_t u = (uint32_t)rkvk_warp() % RKVK_SUBS, k_leaves = rkvk_wide_k_leaves<P>(w);
    if (threadIdx.x < RKVK_WIDE_TEAM) {
#pragma unroll 1
        for (uint32_t i = 0; i < k_leaves; i++) {
            rkvk_wide_feed_k<P>(sm, a, i, i, u);
            if (P::V_BY_SCORES && i + 1 == k_leaves)
                rkvk_wide_feed_v<P>(sm, a, 0, u);
            else if (P::V_BY_SCORES)
                rkvk_copy_commit(); /* K and V in turn: groups are counted */
        }
    } else if (!P::V_BY_SCORES) {
        for (uint32_t i = 0; i < P::V_LEAVES; i++)
            rkvk_wide_feed_v<P>(sm, a, i, u);
    }
}

template <typename P>
static __device__ __forceinline__ void rkvk_wide_team_scores(rkvk_wide_smem<P> &sm, const rkvi_attend_args &a,
                                                             const rkvk_stream_work &w)
{
    const uint32_t u = (uint32_t)rkvk_warp(), groups = rkvk_wide_groups<P>(w), p_leaves = rkvk_wide_p_leaves<P>(w);
    bool more = sm.queue.n_queued != 0;
#pragma unroll 1
    for (uint32_t cur = 0; more; cur++) {
        more = cur + 1 != sm.queue.n_queued;
        if (rkvk_wide_k_leaves<P>(w) == 2)
            rkvk_wide_arrive<P::V_BY_SCORES ? 3 : 1>();
        else
            rkvk_wide_arrive<P::V_BY_SCORES ? 1 : 0>();
#pragma unroll 1
        for (uint32_t group = 0; group < groups; group++) {
            rkvk_sub_state<P> st;
            uint2 p[P::S::MT][P::NC];
            rkvk_wide_sub<P>(st, p, sm, a, w, cur, group, group + 1 == groups);
            if (P::V_BY_SCORES)
                rkvk_wide_arrive_v<P, 1>(sm, a, sm.queue.leaf[cur % RKVK_QUEUE], cur, u);
            const uint32_t place = rkvk_wide_place<P>(w, cur);
            rkvk_wide_weights<P> &weights = rkvk_wide_weights_at<P>(sm, place);
            if (cur + group >= p_leaves)
                rkvk_wide_sync<P, RKVK_WIDE_EMPTY>(place);
            rkvk_wide_put<P>(weights, st, p, u);
            rkvk_bar_sync<RKVK_WIDE_WEIGHED, RKVK_WIDE_TEAM>();
            rkvk_wide_weigh<P>(weights, u);
            if (u == RKVK_SUBS - 1)
                rkvk_wide_total<P>(weights);
            rkvk_wide_come<P, RKVK_WIDE_FULL>(place);
            if (P::V_BY_SCORES)
                rkvk_wide_feed_v<P>(sm, a, cur + 1, u);
        }
        if (threadIdx.x < 32) /* the other team may still ask for the number of a leaf before */
            rkvk_queue_fill(sm.queue, a, w.walk, cur > p_leaves ? cur - p_leaves : 0);
    }
}

template <typename P>
static __device__ __forceinline__ void rkvk_wide_zero(rkvk_wide_state<P> &x)
{
#pragma unroll
    for (int n = 0; n < P::NW; n++)
#pragma unroll
        for (int v = 0; v < P::TW; v++)
            x.o[n][v][0] = x.o[n][v][1] = x.o[n][v][2] = x.o[n][v][3] = 0.0f;
}

template <typename P>
static __device__ __forceinline__ void rkvk_wide_clear(rkvk_wide_state<P> &x)
{
    x.m = rkvk_empty_m();
    x.l = 0.0f;
    rkvk_wide_zero<P>(x);
}

/* A group of columns' turn at a leaf, in warp u. */
struct rkvk_wide_turn {
    uint32_t cur, u;
    bool is_first, is_last, has_slice; /* group; the warp */
};

/* O of a leaf, part of V after part: what has been read makes way for the next leaf's. */
template <typename P>
static __device__ __forceinline__ void rkvk_wide_leaf_output(rkvk_wide_state<P> &x, rkvk_wide_smem<P> &sm,
                                                             const rkvk_wide_weights<P> &weights,
                                                             const rkvi_attend_args &a, const rkvk_wide_part &at,
                                                             const rkvk_wide_turn &turn)
{
    const uint32_t cur = turn.cur, u = turn.u;
    rkvk_wide_zero<P>(x);
#pragma unroll
    for (uint32_t part = 0; part < P::V_PARTS; part++) {
        if (turn.has_slice)
            rkvk_wide_output<P>(x, weights, sm.v[cur % P::V_LEAVES], at, part);
        if (part + 1 == P::V_PARTS)
            break;
        if (turn.is_first && u / P::V_PART == part + 1)
            rkvk_wide_arrive_v<P, P::V_LEAVES - 1>(sm, a, sm.queue.leaf[cur % RKVK_QUEUE], cur, u);
        rkvk_bar_sync<RKVK_WIDE_READ, RKVK_WIDE_TEAM>();
        if (turn.is_last && u / P::V_PART == part)
            rkvk_wide_feed_v<P>(sm, a, cur + P::V_LEAVES, u);
    }
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
    if (!more && has_slice)
        for (uint32_t group = 0; group < groups; group++)
            rkvk_wide_store<P>(x, sm, a, w, at, group * P::GROUP, 0);
#pragma unroll 1
    for (uint32_t cur = 0; more; cur++) {
        const rkvk_leaf &leaf = sm.queue.leaf[cur % RKVK_QUEUE];
        rkvk_wide_pending after = pending;
        if (!P::V_BY_SCORES && u / P::V_PART == 0)
            rkvk_wide_arrive_v<P, P::V_LEAVES - 1>(sm, a, leaf, cur, u);
#pragma unroll
        for (uint32_t group = 0; group < P::HC; group++) {
            if (group >= groups)
                continue;
            const uint32_t place = rkvk_wide_place<P>(w, cur);
            const rkvk_wide_weights<P> &weights = rkvk_wide_weights_at<P>(sm, place);
            rkvk_wide_sync<P, RKVK_WIDE_FULL>(place);
            const bool is_last = group + 1 == groups;
            const uint32_t left = sm.queue.n_queued - cur;
            more = left > 1;
            const uint64_t number = leaf.number, next = more ? sm.queue.leaf[(cur + 1) % RKVK_QUEUE].number : 0;
            if ((uint32_t)rkvk_lane() < P::GROUP) {
                x.m = weights.m[rkvk_lane()];
                x.l = weights.l[rkvk_lane()];
            }
            rkvk_wide_leaf_output<P>(x, sm, weights, a, at, {cur, u, group == 0, is_last, has_slice});
            if (has_slice)
                rkvk_wide_finish<P>(x, weights, at, unit);
            if (!is_last || left > rkvk_wide_p_leaves<P>(w))
                rkvk_wide_come<P, RKVK_WIDE_EMPTY>(place);
            if (is_last && !P::V_BY_SCORES) {
                rkvk_bar_sync<RKVK_WIDE_READ, RKVK_WIDE_TEAM>();
                if (u / P::V_PART == P::V_PARTS - 1)
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
    uint8_t *const region = w.region + w.is_deep * rkvk_wide_second<P>();
    w.q = reinterpret_cast<uint2 *>(region);
    w.stack = reinterpret_cast<float *>(region + P::Q_BYTES);
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
    rkvk_wide_begin<P>(sm, a, w);
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
    const uint32_t n_columns = w.item->n_rows * w.group, room = d.region_bytes - P::Q_BYTES;
    const uint32_t wanted = (n_columns < P::COLUMNS ? n_columns : P::COLUMNS) * column_bytes;
    w.is_deep = (P::DEEP_K || P::DEEP_P) && room >= wanted + rkvk_wide_second<P>();
    const uint32_t fit = levels ? (room - w.is_deep * rkvk_wide_second<P>()) / column_bytes : P::COLUMNS;
    const uint32_t most = fit < 1 ? 1 : fit < P::COLUMNS ? fit : P::COLUMNS;
    w.is_whole = fit >= P::COLUMNS;
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
