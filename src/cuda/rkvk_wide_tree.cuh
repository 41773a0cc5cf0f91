/* SPDX-License-Identifier: MIT
 *
 * rkvk_wide_tree.cuh: from leaves on through the tree fixed by leaf number, in attend_wide.cuh.
 */
#ifndef RKVK_WIDE_TREE_CUH
#define RKVK_WIDE_TREE_CUH

#include "rkvk_wide.cuh"

/* Pending nodes of a group of columns.  The last one is in registers, where `has_top`; before
 * these, the lowest one is in the item's slot, and the others are on the stack: as the warps have
 * them, if there is room for all columns (rkvk_wide_own); else [level][column][o by dims, m, l].
 * A thread's o is its own there; m and l are written by warp 0 for all. */
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
            float *node =
                rkvk_wide_node<P>(sm, w, level, column0 + (uint32_t)((at.chunk + n) * 8 + 2 * (lane & 3) + c));
            if (node != nullptr)
#pragma unroll
                for (int v = 0; v < P::TW; v++)
#pragma unroll
                    for (int half = 0; half < 2; half++)
                        f(node[rkvk_v_dim<P::S::TV>(at.slice * P::TW + v, half, g)], x.o[n][v][2 * half + c]);
        }
}

/* Of a group whose nodes lie whole on the stack: o of the thread, SLOTS to the next tile; m and l, by column. */
template <typename P>
struct rkvk_wide_own {
    float4 *o;
    float *ml;
};

template <typename P>
static __device__ __forceinline__ rkvk_wide_own<P> rkvk_wide_own_at(const rkvk_stream_work &w, uint32_t column0,
                                                                    uint32_t level)
{
    const uint32_t column = (level - 1) * P::COLUMNS + column0;
    float *node = w.stack + column * (uint32_t)rkvk_pending_floats<typename P::S>();
    return {reinterpret_cast<float4 *>(node) + threadIdx.x % RKVK_WIDE_TEAM,
            node + P::GROUP * P::S::DV + rkvk_lane()};
}

template <typename P>
static __device__ __forceinline__ void rkvk_wide_store(rkvk_wide_state<P> &x, const rkvk_wide_smem<P> &sm,
                                                       const rkvi_attend_args &a, const rkvk_stream_work &w,
                                                       const rkvk_wide_part &at, uint32_t column0, uint32_t level)
{
    const uint32_t lane = (uint32_t)rkvk_lane();
    if (level > 0 && w.is_whole) {
        const rkvk_wide_own<P> own = rkvk_wide_own_at<P>(w, column0, level);
#pragma unroll
        for (int i = 0; i < P::NW * P::TW; i++) {
            const float(&o)[4] = x.o[i / P::TW][i % P::TW];
            own.o[i * P::SLOTS] = make_float4(o[0], o[1], o[2], o[3]);
        }
        if (rkvk_warp() == RKVK_SUBS && lane < P::GROUP) {
            own.ml[0] = x.m;
            own.ml[P::GROUP] = x.l;
        }
        return;
    }
    rkvk_wide_each<P>(x, sm, w, at, column0, level, [](float &node, float &o) { node = o; });
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
    const uint32_t lane = (uint32_t)rkvk_lane();
    if (level > 0 && w.is_whole) {
        const rkvk_wide_own<P> own = rkvk_wide_own_at<P>(w, column0, level);
#pragma unroll
        for (int i = 0; i < P::NW * P::TW; i++) {
            float(&o)[4] = x.o[i / P::TW][i % P::TW];
            const float4 y = own.o[i * P::SLOTS];
            o[0] = y.x, o[1] = y.y, o[2] = y.z, o[3] = y.w;
        }
        if (lane < P::GROUP) {
            x.m = own.ml[0];
            x.l = own.ml[P::GROUP];
        }
        return;
    }
    rkvk_wide_each<P>(x, sm, w, at, column0, level, [](float &node, float &o) { o = node; });
    if (lane < P::GROUP && column0 + lane < w.n_columns) {
        const float *m = rkvk_wide_node_m<P>(sm, w, level, column0 + lane);
        x.m = m[0];
        x.l = m[level == 0 ? a.q_heads : 1];
    }
}

/* y's elements join x's.  `f`: of each column, in its lane; CHECKED: of some, one side is taken (rkvk_wide_join). */
template <typename P, bool CHECKED>
static __device__ __forceinline__ void rkvk_wide_join_values(rkvk_wide_state<P> &x, const rkvk_wide_state<P> &y,
                                                             const rkvk_wide_part &at, const rkvk_factors &f)
{
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
                    if constexpr (CHECKED)
                        x.o[n][v][j] = own.a < 0.0f ? x.o[n][v][j] : own.b < 0.0f ? y.o[n][v][j] : sum;
                    else
                        x.o[n][v][j] = sum;
                }
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
    if (__any_sync(0xffffffffu, (uint32_t)rkvk_lane() < P::GROUP && (skip || take)))
        rkvk_wide_join_values<P, true>(x, y, at, f);
    else
        rkvk_wide_join_values<P, false>(x, y, at, f);
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

#endif
