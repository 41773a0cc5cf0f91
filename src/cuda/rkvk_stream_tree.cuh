/* SPDX-License-Identifier: MIT
 *
 * rkvk_stream_tree.cuh: from subs to leaves, and on through the tree fixed by leaf
 * number (attend_stream.cuh).
 *
 * Warp c has column c of every chunk of 8, all dims of it: what it adds up and
 * merges, and its pending nodes, no other warp touches.  The lowest pending node,
 * which waits longest, lies in the item's slot of the partials; the others on a
 * stack in shared memory.  Merges are those of rkvk_merge.cuh.
 */
#ifndef RKVK_STREAM_TREE_CUH
#define RKVK_STREAM_TREE_CUH

#include "rkvk_stream.cuh"

/* A warp's share of a sub.  Columns of chunk n: 8n + 2t and the next one. */
template <typename P>
struct rkvk_sub_state {
    float o[P::NC][P::S::VT][4];
    float m[P::NC][2], l[P::NC][2]; /* m in units of ln 2 */
    uint32_t sees[P::NC][2];        /* c0 | c1 << 16 of the current leaf */
};

/* Column w of each chunk in warp w; [part] as in rkvk_stream_path, h. */
template <typename P>
struct rkvk_node_state {
    float o[P::NC][P::J][P::H][P::VEC];
    float m[P::NC][P::HC], l[P::NC][P::HC];
};

/* --------------------------------------------------------------- subs to leaf */

/* To shared memory: chunk n of the warp's columns, tiles [j * CT, (j + 1) * CT). */
template <typename P>
static __device__ __forceinline__ void rkvk_sub_put(rkvk_stream_smem<P> &sm, const rkvk_sub_state<P> &st,
                                                    int n, int j)
{
    using S = typename P::S;
    const int lane = rkvk_lane(), g = lane >> 2, warp = rkvk_warp();
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const int column = 2 * (lane & 3) + c;
        float *row = sm.o[warp][column];
#pragma unroll
        for (int v = 0; v < P::CT; v++) {
            row[v * 16 + rkvk_v_dim<S::TV>(0, 0, g)] = st.o[n][j * P::CT + v][c];
            row[v * 16 + rkvk_v_dim<S::TV>(0, 1, g)] = st.o[n][j * P::CT + v][c + 2];
        }
        if (j == 0 && g == 0)
            sm.ml[warp][n][column] = make_float2(st.m[n][c], st.l[n][c]);
    }
}

template <int VEC>
static __device__ __forceinline__ void rkvk_vec_load(float (&x)[VEC], const float *p)
{
    if constexpr (VEC == 4) {
        const float4 v = *reinterpret_cast<const float4 *>(p);
        x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
    } else {
        const float2 v = *reinterpret_cast<const float2 *>(p);
        x[0] = v.x, x[1] = v.y;
    }
}

/* Does the lane have elements in a row of CT tiles?  Each row is 16-byte aligned. */
template <typename P>
static __device__ __forceinline__ bool rkvk_has_elements(void)
{
    return P::VEC * 32 == P::CT * 16 || rkvk_lane() * P::VEC < P::CT * 16;
}

/* What a column's leaf so far, and each sub that joins it, are multiplied by: for each group of subs. */
template <typename P>
struct rkvk_join_factors {
    float leaf[P::HC][P::U / P::S::GROUP];
    float sub[P::HC][P::U];
};

/* Is column w of chunk n, warp w, of part h there? */
template <typename P>
static __device__ __forceinline__ bool rkvk_is_own(const rkvk_stream_work &w, int n, int h)
{
    return (uint32_t)((h * P::NC + n) * 8 + rkvk_warp()) < w.n_columns;
}

/* m and l of the subs that the warps have put there join the leaf.  A group's maximum is taken first, so
 * that no factor waits for another one. */
template <typename P>
static __device__ __forceinline__ void rkvk_leaf_weigh(rkvk_node_state<P> &leaf, rkvk_join_factors<P> &f,
                                                       const rkvk_stream_smem<P> &sm, int n)
{
    constexpr int N = P::S::GROUP;
    const int column = rkvk_warp();
#pragma unroll
    for (int h = 0; h < P::HC; h++) {
        float m = leaf.m[n][h], l = leaf.l[n][h];
#pragma unroll
        for (int i = 0; i < P::U / N; i++) {
            float2 ml[N];
            float top = m;
#pragma unroll
            for (int u = 0; u < N; u++) {
                ml[u] = sm.ml[h * P::U + i * N + u][n][column];
                top = fmaxf(top, ml[u].x);
            }
            const float base = top == rkvk_empty_m() ? 0.0f : top;
            f.leaf[h][i] = rkvk_exp2(__fadd_rn(m, -base));
            l = __fmul_rn(l, f.leaf[h][i]);
#pragma unroll
            for (int u = 0; u < N; u++) {
                f.sub[h][i * N + u] = rkvk_exp2(__fadd_rn(ml[u].x, -base));
                l = __fmaf_rn(ml[u].y, f.sub[h][i * N + u], l);
            }
            m = top;
        }
        leaf.m[n][h] = m;
        leaf.l[n][h] = l;
    }
}

/* The subs' O joins the leaf, in their order. */
template <typename P>
static __device__ __forceinline__ void rkvk_leaf_join(rkvk_node_state<P> &leaf, const rkvk_join_factors<P> &f,
                                                      const rkvk_stream_smem<P> &sm, int n, int j)
{
    constexpr int N = P::S::GROUP;
    const int column = rkvk_warp(), lane = rkvk_has_elements<P>() ? rkvk_lane() : 0;
#pragma unroll
    for (int h = 0; h < P::H; h++)
#pragma unroll
        for (int u = 0; u < P::U; u++) {
            float x[P::VEC];
            rkvk_vec_load<P::VEC>(x, &sm.o[h * P::U + u][column][lane * P::VEC]);
#pragma unroll
            for (int i = 0; i < P::VEC; i++) {
                float &sum = leaf.o[n][j][h][i];
                if (u % N == 0)
                    sum = __fmul_rn(sum, f.leaf[h % P::HC][u / N]);
                sum = __fmaf_rn(x[i], f.sub[h % P::HC][u], sum);
            }
        }
}

template <typename P>
static __device__ __forceinline__ void rkvk_node_clear(rkvk_node_state<P> &x)
{
#pragma unroll
    for (int n = 0; n < P::NC; n++) {
#pragma unroll
        for (int h = 0; h < P::HC; h++) {
            x.m[n][h] = rkvk_empty_m();
            x.l[n][h] = 0.0f;
        }
#pragma unroll
        for (int j = 0; j < P::J; j++)
#pragma unroll
            for (int h = 0; h < P::H; h++)
#pragma unroll
                for (int i = 0; i < P::VEC; i++)
                    x.o[n][j][h][i] = 0.0f;
    }
}

/* m in natural units, o and l relative to what it says after rounding; o in V's units. */
template <typename P>
static __device__ __forceinline__ void rkvk_leaf_finish(rkvk_node_state<P> &x, float unit)
{
#pragma unroll
    for (int n = 0; n < P::NC; n++)
#pragma unroll
        for (int h = 0; h < P::HC; h++) {
            const float m2 = x.m[n][h], m = __fmul_rn(m2, RKVK_LN2);
            const float f = m2 == rkvk_empty_m() ? 1.0f : rkvk_exp2(__fadd_rn(m2, -__fmul_rn(m, RKVK_LOG2E)));
            x.m[n][h] = m;
            x.l[n][h] = __fmul_rn(x.l[n][h], f);
#pragma unroll
            for (int j = 0; j < P::J; j++)
#pragma unroll
                for (int d = 0; d < P::HD; d++)
#pragma unroll
                    for (int i = 0; i < P::VEC; i++) {
                        float &o = x.o[n][j][d * P::HC + h][i];
                        o = __fmul_rn(o, __fmul_rn(f, unit));
                    }
        }
}

/* ----------------------------------------------------------------- the tree */

/* A pending node's column: o, m, l, and padding to 16 bytes. */
template <typename S>
static __host__ __device__ constexpr int rkvk_pending_floats(void)
{
    return S::DV + 4;
}

/* Calls f(column, n, h) for the warp's columns that are there. */
template <typename P, typename F>
static __device__ __forceinline__ void rkvk_each_own(const rkvk_stream_work &w, F f)
{
#pragma unroll
    for (int n = 0; n < P::NC; n++)
#pragma unroll
        for (int h = 0; h < P::HC; h++) {
            if (rkvk_is_own<P>(w, n, h))
                f((uint32_t)((h * P::NC + n) * 8 + rkvk_warp()), n, h);
        }
}

/* The dim of a warp's element `at` of a column, part d of the dims. */
template <typename P>
static __device__ __forceinline__ int rkvk_stream_dim(int d, int at)
{
    const int v = at / 16; /* of the warp's tiles */
    return (v / P::TW * P::TP + d * P::TW + v % P::TW) * 16 + at % 16;
}

/* Where a column's node lies: o by dims, m, l. */
struct rkvk_node_at {
    float *o, *m, *l;
};

template <typename P>
static __device__ __forceinline__ rkvk_node_at rkvk_slot_at(const rkvi_attend_args &a, const rkvk_stream_work &w,
                                                            uint32_t column)
{
    constexpr int DV = P::S::DV;
    const uint32_t c = w.column0 + column, head = w.walk.head * w.group + c % w.group;
    float *slot = a.partials + (w.item->slot + c / w.group) * ((uint64_t)a.q_heads * (DV + 2));
    float *m = slot + (uint64_t)a.q_heads * DV + head;
    return {slot + (uint64_t)head * DV, m, m + a.q_heads};
}

/* The lowest pending node waits in the item's slot, where the result comes in the end. */
template <typename P>
static __device__ __forceinline__ rkvk_node_at rkvk_pending_at(const rkvi_attend_args &a, const rkvk_stream_work &w,
                                                               uint32_t level, uint32_t column)
{
    if (level == 0)
        return rkvk_slot_at<P>(a, w, column);
    float *o = w.stack + ((level - 1) * w.n_columns + column) * (uint32_t)rkvk_pending_floats<typename P::S>();
    return {o, o + P::S::DV, o + P::S::DV + 1};
}

/* Calls f(first dim, elements) for the lane's elements of a column. */
template <typename P, typename F>
static __device__ __forceinline__ void rkvk_each_element(rkvk_node_state<P> &x, int n, int h, F f)
{
    if (rkvk_has_elements<P>())
#pragma unroll
        for (int j = 0; j < P::J; j++)
#pragma unroll
            for (int d = 0; d < P::HD; d++)
#pragma unroll
                for (int i = 0; i < P::VEC; i += 2) /* slots are 8-byte aligned */
                    f(rkvk_stream_dim<P>(d, j * P::CT * 16 + rkvk_lane() * P::VEC) + i,
                      *reinterpret_cast<float (*)[2]>(&x.o[n][j][d * P::HC + h][i]));
}

/* The node at `level` of the stack, whose leaves come before, joins the state.
 * Where one side is empty, the other one is taken, bit by bit. */
template <typename P>
static __device__ __forceinline__ void rkvk_pending_join(rkvk_node_state<P> &x, const rkvi_attend_args &a,
                                                         const rkvk_stream_work &w, uint32_t level)
{
    rkvk_each_own<P>(w, [&](uint32_t column, int n, int h) {
        const rkvk_node_at node = rkvk_pending_at<P>(a, w, level, column);
        const float m = *node.m, l = *node.l;
        __syncwarp(); /* lane 0 may write the next node there */
        if (m == rkvk_empty_m())
            return;
        const bool take = x.m[n][h] == rkvk_empty_m();
        const rkvk_factors f = rkvk_merge_factors(m, x.m[n][h]);
        x.l[n][h] = take ? l : rkvk_merge_value(f, l, x.l[n][h]);
        x.m[n][h] = take ? m : f.m;
        rkvk_each_element<P>(x, n, h, [&](int dim, float (&o)[2]) {
            const float2 y = *reinterpret_cast<const float2 *>(node.o + dim);
            o[0] = take ? y.x : rkvk_merge_value(f, y.x, o[0]);
            o[1] = take ? y.y : rkvk_merge_value(f, y.y, o[1]);
        });
    });
}

template <typename P>
static __device__ __forceinline__ void rkvk_node_put(rkvk_node_state<P> &x, int n, int h, rkvk_node_at node)
{
    if (rkvk_lane() == 0) {
        *node.m = x.m[n][h];
        *node.l = x.l[n][h];
    }
    rkvk_each_element<P>(x, n, h, [&](int dim, float (&o)[2]) {
        *reinterpret_cast<float2 *>(node.o + dim) = make_float2(o[0], o[1]);
    });
}

template <typename P>
static __device__ __forceinline__ void rkvk_pending_push(rkvk_node_state<P> &x, const rkvi_attend_args &a,
                                                         const rkvk_stream_work &w, uint32_t level)
{
    rkvk_each_own<P>(w, [&](uint32_t column, int n, int h) {
        rkvk_node_put<P>(x, n, h, rkvk_pending_at<P>(a, w, level, column));
    });
}

/* Which leaves are pending: lane i keeps the first one of the node at level i. */
struct rkvk_pending_list {
    uint32_t n;
    uint64_t leaf;
};

/* Leaf `done` is in the state; `next` is the one to come, where there is one.  What
 * the tree joins before it is joined, and the result put on the stack; after the
 * last leaf all is joined, and stays in the state. */
template <typename P>
static __device__ __forceinline__ void rkvk_pending_add(rkvk_node_state<P> &x, const rkvi_attend_args &a,
                                                        const rkvk_stream_work &w, rkvk_pending_list &list,
                                                        uint64_t done, bool more, uint64_t next)
{
    while (list.n > 0) {
        const uint64_t top = __shfl_sync(0xffffffffu, list.leaf, (int)list.n - 1);
        if (more && !rkvk_tree_merges(top, done, next))
            break;
        rkvk_pending_join<P>(x, a, w, --list.n);
        done = top;
    }
    if (more) {
        rkvk_pending_push<P>(x, a, w, list.n);
        __syncwarp(); /* m and l are lane 0's to write */
        list.leaf = rkvk_lane() == (int)list.n ? done : list.leaf;
        list.n++;
    }
}

#endif
