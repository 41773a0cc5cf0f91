/* SPDX-License-Identifier: MIT
 *
 * attend_stream.cuh: partials of aligned runs of leaves (RKVI_OP_DECODE), for the
 * types without scales; the others' kernel is in attend_decode.cuh.
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
 * columns and 128 dims at a time: warp c adds up column c, sub after sub, so
 * that the order, and with it the bits, is the same however many warps share a
 * sub.  Warp c then takes its columns' leaf through the tree fixed by leaf number,
 * whose pending nodes lie on a stack in shared memory; nobody else touches them.
 * Loads for the next leaves stay under way all the while.
 *
 * Columns side by side (rkvk_stream_path): 8 or 16 in a warp; for more, warps share
 * the stream of an owner, each with its columns (or, for D 512, half of the dims).
 *
 * Cells outside the span, or seen by no row here, are not read: zeros stand for
 * them.  Masked scores are selected away before the maximum.  Cells that another
 * row sees are finite, since storing saturates; they count 0 times their V.
 */
#ifndef RKVK_ATTEND_STREAM_CUH
#define RKVK_ATTEND_STREAM_CUH

#include "rkvk_launch.cuh"
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

/* --------------------------------------------------------------------- load */

/* The columns' q as fragments of B; zeros where there is no column. */
template <typename P>
static __device__ void rkvk_stream_q(const rkvi_attend_args &a, const rkvk_stream_work &w)
{
    using S = typename P::S;
    const rkvi_tensor q = rkvk_item_q(a, *w.item);
    for (int i = (int)threadIdx.x; i < S::STEPS * P::NC * P::HC * 32; i += RKVK_STREAM_THREADS) {
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
                x[j] = rkvk_q_at(q, at + rkvk_k_dim<S::TK>(step, lane & 3, j));
        }
        constexpr bool bf16 = S::TK == RKV_TYPE_BF16;
        w.q[i] = make_uint2(rkvk_pack<bf16>(x[0], x[1]), rkvk_pack<bf16>(x[2], x[3]));
    }
}

/* Warp 0: each column's reach, and the queue's first leaves.  A column that isn't
 * there sees nothing. */
template <typename S>
static __device__ void rkvk_stream_reach(rkvk_stream_smem<S> &sm, const rkvi_attend_args &a, const rkvk_stream_work &w)
{
    const uint32_t lane = threadIdx.x;
    rkvk_reach r = rkvk_reach_none();
    if (lane < w.n_columns)
        r = rkvk_reach_of(a, rkvk_item_row(a, *w.item, (w.column0 + lane) / w.group));
    if (lane < S::CHUNKS * 8)
        sm.reach[lane] = r;
    rkvk_queue_begin(sm.queue, w.walk, rkvk_reach_union(r));
    rkvk_queue_fill(sm.queue, a, w.walk, 0);
}

/* ------------------------------------------------------------------ one sub */

/* The maximum over the 8 lanes that share t. */
static __device__ __forceinline__ float rkvk_top_of_g(float x)
{
#pragma unroll
    for (int step = 4; step < 32; step *= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

static __device__ __forceinline__ float rkvk_sum_of_g(float x)
{
#pragma unroll
    for (int step = 4; step < 32; step *= 2)
        x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* What a warp needs to know of itself and of where it is. */
template <typename P>
struct rkvk_place {
    uint32_t owner;
    int part, thread; /* h; the thread among its owner's */
    const uint2 *q;
    float scale;
};

/* Scores in units of ln 2: softcap before the mask; -inf where masked. */
template <typename P>
static __device__ __forceinline__ void rkvk_sub_mask(const rkvk_sub_state<P> &st, float (&s)[P::S::MT][P::NC][4],
                                                     float scale, float softcap, const rkvk_sub &sub)
{
    const uint32_t cell = sub.cell + (uint32_t)(rkvk_lane() >> 2);
#pragma unroll
    for (int i = 0; i < P::S::MT; i++)
#pragma unroll
        for (int n = 0; n < P::NC; n++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint32_t c = cell + (uint32_t)(i * 128 + j / 2 * 8), sees = st.sees[n][j & 1];
                const uint32_t c0 = sees & 0xffffu, c1 = sees >> 16;
                float x = __fmul_rn(s[i][n][j], scale);
                if (softcap != 0.0f)
                    x = __fmul_rn(__fmul_rn(softcap, RKVK_LOG2E), tanhf(__fdiv_rn(x, softcap)));
                s[i][n][j] = (uint32_t)i < sub.n && c - c0 < c1 - c0 ? x : rkvk_empty_m();
            }
}

/* P of the sub's tiles, and its m and l. */
template <typename P>
static __device__ __forceinline__ void rkvk_sub_weights(rkvk_sub_state<P> &st, float (&s)[P::S::MT][P::NC][4],
                                                        uint2 (&p)[P::S::MT][P::NC], const rkvi_attend_args &a,
                                                        float scale, const rkvk_sub &sub)
{
    using S = typename P::S;
    if (a.softcap == 0.0f)
        rkvk_sub_mask<P>(st, s, __fmul_rn(scale, RKVK_LOG2E), 0.0f, sub);
    else
        rkvk_sub_mask<P>(st, s, scale, a.softcap, sub);
#pragma unroll
    for (int n = 0; n < P::NC; n++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float top = fmaxf(s[0][n][j], s[0][n][j + 2]);
            if (S::MT == 2)
                top = fmaxf(top, fmaxf(s[S::MT - 1][n][j], s[S::MT - 1][n][j + 2]));
            st.m[n][j] = rkvk_top_of_g(top);
            const float m = st.m[n][j] == rkvk_empty_m() ? 0.0f : st.m[n][j];
            float l = 0.0f;
#pragma unroll
            for (int i = 0; i < S::MT; i++) {
                s[i][n][j] = rkvk_exp2(__fadd_rn(s[i][n][j], -m));
                s[i][n][j + 2] = rkvk_exp2(__fadd_rn(s[i][n][j + 2], -m));
                l = __fadd_rn(l, __fadd_rn(s[i][n][j], s[i][n][j + 2]));
            }
            st.l[n][j] = rkvk_sum_of_g(l);
        }
        constexpr bool bf16 = S::TV == RKV_TYPE_BF16;
#pragma unroll
        for (int i = 0; i < S::MT; i++)
            p[i][n] = make_uint2(rkvk_movmatrix(rkvk_pack<bf16>(s[i][n][0], s[i][n][1])),
                                 rkvk_movmatrix(rkvk_pack<bf16>(s[i][n][2], s[i][n][3])));
    }
}

template <typename P>
static __device__ __forceinline__ void rkvk_sub_scores(float (&s)[P::S::MT][P::NC][4],
                                                       const rkvk_stream_smem<typename P::S> &sm,
                                                       const rkvi_attend_args &a, const uint8_t *ring, rkvk_feed &feed,
                                                       const rkvk_place<P> &at, uint32_t n_tiles)
{
    using S = typename P::S;
    constexpr int STEPS = S::STEPS / S::KP;
#pragma unroll
    for (int i = 0; i < S::MT; i++) {
#pragma unroll
        for (int n = 0; n < P::NC; n++)
            s[i][n][0] = s[i][n][1] = s[i][n][2] = s[i][n][3] = 0.0f;
        if ((uint32_t)i < n_tiles)
#pragma unroll 1
            for (int k = 0; k < S::KP; k++) {
                rkvk_feed_take<P>(feed, sm.queue, a, at.owner, at.thread);
                const rkvk_k_rows rows = {ring + feed.out, nullptr};
                if (RKVK_PROBE != 1) rkvk_scores<S::TK, S::DK, S::K_PITCH, STEPS, P::NC>(s[i], rows, at.q + k * STEPS * P::NC * 32, 0,
                                                                   rkvk_lane());
                rkvk_feed_release<P>(feed, sm.queue, a, at.owner, at.thread);
            }
    }
}

template <typename P>
static __device__ __forceinline__ void rkvk_sub_output(rkvk_sub_state<P> &st, const uint2 (&p)[P::S::MT][P::NC],
                                                       const rkvk_stream_smem<typename P::S> &sm,
                                                       const rkvi_attend_args &a, const uint8_t *ring, rkvk_feed &feed,
                                                       const rkvk_place<P> &at, uint32_t n_tiles)
{
    using S = typename P::S;
    const int tile0 = at.part / P::HC * P::TW; /* of a piece */
#pragma unroll
    for (int i = 0; i < S::MT; i++)
        if ((uint32_t)i < n_tiles)
#pragma unroll
            for (int k = 0; k < S::VP; k++) {
                rkvk_feed_take<P>(feed, sm.queue, a, at.owner, at.thread);
                const rkvk_v_rows rows = {ring + feed.out, nullptr, 0, 16};
                if (RKVK_PROBE != 1)
#pragma unroll
                for (int v = 0; v < P::TW; v++) {
                    uint32_t x[4];
                    rkvk_v_tile<S::TV, S::DV, S::V_PITCH>(x, rows, tile0 + v, rkvk_lane());
#pragma unroll
                    for (int n = 0; n < P::NC; n++)
                        rkvk_mma<S::TV == RKV_TYPE_BF16>(st.o[n][k * P::TW + v], x, p[i][n].x, p[i][n].y);
                }
                rkvk_feed_release<P>(feed, sm.queue, a, at.owner, at.thread);
            }
}

/* Tiles of a sub: none is as good as tiles that no column sees. */
template <typename P>
static __device__ __forceinline__ void rkvk_sub_run(rkvk_sub_state<P> &st, const rkvk_stream_smem<typename P::S> &sm,
                                                    const rkvi_attend_args &a, const uint8_t *ring, rkvk_feed &feed,
                                                    const rkvk_place<P> &at, const rkvk_sub &sub)
{
    using S = typename P::S;
    float s[S::MT][P::NC][4];
    uint2 p[S::MT][P::NC];
#pragma unroll
    for (int n = 0; n < P::NC; n++) {
        st.m[n][0] = st.m[n][1] = rkvk_empty_m();
        st.l[n][0] = st.l[n][1] = 0.0f;
#pragma unroll
        for (int v = 0; v < S::VT; v++)
            st.o[n][v][0] = st.o[n][v][1] = st.o[n][v][2] = st.o[n][v][3] = 0.0f;
    }
    if (sub.n == 0)
        return;
    rkvk_sub_scores<P>(s, sm, a, ring, feed, at, sub.n);
    rkvk_sub_weights<P>(st, s, p, a, at.scale, sub);
    rkvk_sub_output<P>(st, p, sm, a, ring, feed, at, sub.n);
}

/* --------------------------------------------------------------- subs to leaf */

/* To shared memory: chunk n of the warp's columns, tiles [j * CT, (j + 1) * CT). */
template <typename P>
static __device__ __forceinline__ void rkvk_sub_put(rkvk_stream_smem<typename P::S> &sm, const rkvk_sub_state<P> &st,
                                                    int n, int j)
{
    using S = typename P::S;
    const int lane = rkvk_lane(), g = lane >> 2, warp = rkvk_warp();
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const int column = 2 * (lane & 3) + c;
        float *row = sm.o[warp][column];
#pragma unroll
        for (int v = 0; v < S::CT; v++) {
            row[v * 16 + rkvk_v_dim<S::TV>(0, 0, g)] = st.o[n][j * S::CT + v][c];
            row[v * 16 + rkvk_v_dim<S::TV>(0, 1, g)] = st.o[n][j * S::CT + v][c + 2];
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

template <int VEC>
static __device__ __forceinline__ void rkvk_vec_store(float *p, const float (&x)[VEC])
{
    if constexpr (VEC == 4)
        *reinterpret_cast<float4 *>(p) = make_float4(x[0], x[1], x[2], x[3]);
    else
        *reinterpret_cast<float2 *>(p) = make_float2(x[0], x[1]);
}

/* Does the lane have elements in a row of CT tiles?  Each row is 16-byte aligned. */
template <typename P>
static __device__ __forceinline__ bool rkvk_has_elements(void)
{
    return P::VEC * 32 == P::S::CT * 16 || rkvk_lane() * P::VEC < P::S::CT * 16;
}

/* The subs that the warps have put there join the leaf, in their order. */
template <typename P>
static __device__ __forceinline__ void rkvk_leaf_join(rkvk_node_state<P> &leaf,
                                                      const rkvk_stream_smem<typename P::S> &sm, int n, int j)
{
    const int column = rkvk_warp(), lane = rkvk_has_elements<P>() ? rkvk_lane() : 0;
#pragma unroll
    for (int h = 0; h < P::H; h++) {
        /* Where j > 0 or this is a further part of the dims, m and l have been joined. */
        float m = leaf.m[n][h % P::HC], l = leaf.l[n][h % P::HC];
#pragma unroll
        for (int u = 0; u < P::U; u++) {
            const float2 ml = sm.ml[h * P::U + u][n][column];
            float x[P::VEC];
            rkvk_vec_load<P::VEC>(x, &sm.o[h * P::U + u][column][lane * P::VEC]);
            const float top = fmaxf(m, ml.x), base = top == rkvk_empty_m() ? 0.0f : top;
            const float f = rkvk_exp2(__fadd_rn(m, -base)), e = rkvk_exp2(__fadd_rn(ml.x, -base));
            l = __fmaf_rn(ml.y, e, __fmul_rn(l, f));
#pragma unroll
            for (int i = 0; i < P::VEC; i++)
                leaf.o[n][j][h][i] = __fmaf_rn(x[i], e, __fmul_rn(leaf.o[n][j][h][i], f));
            m = top;
        }
        if (j == P::J - 1 && h / P::HC == P::HD - 1) {
            leaf.m[n][h % P::HC] = m;
            leaf.l[n][h % P::HC] = l;
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

template <typename P>
static __device__ __forceinline__ float *rkvk_pending(const rkvk_stream_work &w, uint32_t level, uint32_t column)
{
    return w.stack + (level * w.n_columns + column) * (uint32_t)rkvk_pending_floats<typename P::S>();
}

/* Calls f(column, n, h) for the warp's columns that are there. */
template <typename P, typename F>
static __device__ __forceinline__ void rkvk_each_own(const rkvk_stream_work &w, F f)
{
#pragma unroll
    for (int n = 0; n < P::NC; n++)
#pragma unroll
        for (int h = 0; h < P::HC; h++) {
            const uint32_t column = (uint32_t)((h * P::NC + n) * 8 + rkvk_warp());
            if (column < w.n_columns)
                f(column, n, h);
        }
}

/* First element of the lane's in a column's o, as pending nodes have them. */
template <typename P>
static __device__ __forceinline__ int rkvk_element(int j, int d)
{
    return (d * P::J + j) * P::S::CT * 16 + rkvk_lane() * P::VEC;
}

/* The node at `level` of the stack, whose leaves come before, joins the state.
 * Where one side is empty, the other one is taken, bit by bit. */
template <typename P>
static __device__ __forceinline__ void rkvk_pending_join(rkvk_node_state<P> &x, const rkvk_stream_work &w,
                                                         uint32_t level)
{
    rkvk_each_own<P>(w, [&](uint32_t column, int n, int h) {
        const float *node = rkvk_pending<P>(w, level, column);
        const float m = node[P::S::DV], l = node[P::S::DV + 1];
        if (m == rkvk_empty_m())
            return;
        const bool take = x.m[n][h] == rkvk_empty_m();
        const rkvk_factors f = rkvk_merge_factors(m, x.m[n][h]);
        x.l[n][h] = take ? l : rkvk_merge_value(f, l, x.l[n][h]);
        x.m[n][h] = take ? m : f.m;
        if (rkvk_has_elements<P>())
#pragma unroll
            for (int j = 0; j < P::J; j++)
#pragma unroll
                for (int d = 0; d < P::HD; d++) {
                    float (&o)[P::VEC] = x.o[n][j][d * P::HC + h], y[P::VEC];
                    rkvk_vec_load<P::VEC>(y, node + rkvk_element<P>(j, d));
#pragma unroll
                    for (int i = 0; i < P::VEC; i++)
                        o[i] = take ? y[i] : rkvk_merge_value(f, y[i], o[i]);
                }
    });
}

template <typename P>
static __device__ __forceinline__ void rkvk_pending_push(const rkvk_node_state<P> &x, const rkvk_stream_work &w,
                                                         uint32_t level)
{
    rkvk_each_own<P>(w, [&](uint32_t column, int n, int h) {
        float *node = rkvk_pending<P>(w, level, column);
        if (rkvk_lane() == 0)
            *reinterpret_cast<float2 *>(node + P::S::DV) = make_float2(x.m[n][h], x.l[n][h]);
        if (rkvk_has_elements<P>())
#pragma unroll
            for (int j = 0; j < P::J; j++)
#pragma unroll
                for (int d = 0; d < P::HD; d++)
                    rkvk_vec_store<P::VEC>(node + rkvk_element<P>(j, d), x.o[n][j][d * P::HC + h]);
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
static __device__ __forceinline__ void rkvk_pending_add(rkvk_node_state<P> &x, const rkvk_stream_work &w,
                                                        rkvk_pending_list &list, uint64_t done, bool more, uint64_t next)
{
    while (list.n > 0) {
        const uint64_t top = __shfl_sync(0xffffffffu, list.leaf, (int)list.n - 1);
        if (more && !rkvk_tree_merges(top, done, next))
            break;
        rkvk_pending_join<P>(x, w, --list.n);
        done = top;
    }
    if (more) {
        rkvk_pending_push<P>(x, w, list.n);
        list.leaf = rkvk_lane() == (int)list.n ? done : list.leaf;
        list.n++;
    }
}

/* ------------------------------------------------------------------- kernel */

/* The dim of element `at` of a column's o as pending nodes have them. */
template <typename P>
static __device__ __forceinline__ int rkvk_stream_dim(int d, int at)
{
    const int v = at / 16; /* of the warp's tiles */
    return (v / P::TW * P::TP + d * P::TW + v % P::TW) * 16 + at % 16;
}

template <typename P>
static __device__ __forceinline__ void rkvk_stream_write(const rkvi_attend_args &a, const rkvk_node_state<P> &x,
                                                         const rkvk_stream_work &w)
{
    constexpr int DV = P::S::DV;
    const uint64_t slot_floats = (uint64_t)a.q_heads * (DV + 2);
    rkvk_each_own<P>(w, [&](uint32_t column, int n, int h) {
        const uint32_t c = w.column0 + column, head = w.walk.head * w.group + c % w.group;
        float *slot = a.partials + (w.item->slot + c / w.group) * slot_floats;
        float *m = slot + (uint64_t)a.q_heads * DV + head;
        if (rkvk_lane() == 0) {
            m[0] = x.m[n][h];
            m[a.q_heads] = x.l[n][h];
        }
        if (rkvk_has_elements<P>())
#pragma unroll
            for (int j = 0; j < P::J; j++)
#pragma unroll
                for (int d = 0; d < P::HD; d++) {
                    const int dim = rkvk_stream_dim<P>(d, j * P::S::CT * 16 + rkvk_lane() * P::VEC);
#pragma unroll
                    for (int i = 0; i < P::VEC; i += 2) /* slots are 8-byte aligned */
                        *reinterpret_cast<float2 *>(slot + (uint64_t)head * DV + dim + i) =
                            make_float2(x.o[n][j][d * P::HC + h][i], x.o[n][j][d * P::HC + h][i + 1]);
                }
    });
}

template <typename P>
static __device__ __forceinline__ void rkvk_leaf_sees(rkvk_sub_state<P> &st,
                                                      const rkvk_stream_smem<typename P::S> &sm, const rkvk_leaf &leaf,
                                                      int part)
{
#pragma unroll
    for (int n = 0; n < P::NC; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int column = (part % P::HC * P::NC + n) * 8 + 2 * (rkvk_lane() & 3) + j;
            const rkvk_cells c = rkvk_span_cells(leaf.pos, leaf.first, leaf.count, sm.reach[column]);
            st.sees[n][j] = c.c0 | c.c1 << 16;
        }
}

/* All subs of a leaf, and their sum in `sum`. */
template <typename P>
static __device__ __forceinline__ void rkvk_leaf_run(rkvk_node_state<P> &sum, rkvk_stream_smem<typename P::S> &sm,
                                                     const rkvi_attend_args &a, const rkvk_stream_work &w,
                                                     const uint8_t *ring, rkvk_feed &feed, const rkvk_place<P> &at,
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
        if (sub.n > 0 && feed.ahead == 0) { /* leaves without a tile here may have come between */
            feed.leaf = cur;
            feed.round = round;
            feed.piece = feed.n;
            rkvk_feed_fill<P>(feed, sm.queue, a, at.owner, at.thread);
        }
        rkvk_sub_run<P>(st, sm, a, ring, feed, at, sub);
        if (round == 0 && threadIdx.x < 32)
            rkvk_queue_fill(sm.queue, a, w.walk, cur);
#pragma unroll
        for (int n = 0; n < P::NC; n++)
#pragma unroll
            for (int j = 0; j < P::J; j++) {
                if (RKVK_PROBE >= 1 && !(RKVK_PROBE == 3) && st.o[n][j * S::CT][0] != -12345.0f) continue;
                rkvk_sub_put<P>(sm, st, n, j);
                __syncthreads();
                rkvk_leaf_join<P>(sum, sm, n, j);
                __syncthreads();
            }
    }
    rkvk_leaf_finish<P>(sum, rkvk_unit<S::TV>(a.geom.v_scale));
}

/* Some columns, over all leaves of the item. */
template <typename P>
static __device__ __forceinline__ void rkvk_stream_columns(rkvk_stream_smem<typename P::S> &sm,
                                                           const rkvi_attend_args &a, rkvk_stream_work &w)
{
    using S = typename P::S;
    const uint32_t warp = (uint32_t)rkvk_warp();
    constexpr uint32_t q_bytes = S::STEPS * P::NC * P::HC * 32 * sizeof(uint2);
    const uint32_t stack_bytes = w.depth * w.n_columns * (uint32_t)rkvk_pending_floats<S>() * 4;
    w.q = reinterpret_cast<uint2 *>(w.region);
    w.stack = reinterpret_cast<float *>(w.region + q_bytes);
    __syncthreads(); /* those before are done with what is set up here */
    if (threadIdx.x < 32)
        rkvk_stream_reach(sm, a, w);
    rkvk_stream_q<P>(a, w);
    __syncthreads();
    const uint32_t stages = (w.region_bytes - q_bytes - stack_bytes) / S::STAGE / P::U;
    const uint32_t n_stages = stages < RKVK_RING_MOST ? stages : RKVK_RING_MOST, owner = warp % P::U;
    const int part = (int)(warp / P::U);
    const rkvk_place<P> at = {owner, part, part * 32 + rkvk_lane(), w.q + part % P::HC * S::STEPS * P::NC * 32,
                              __fmul_rn(a.scale, rkvk_unit<S::TK>(a.geom.k_scale))};
    uint8_t *ring = w.region + q_bytes + stack_bytes + owner * n_stages * S::STAGE;
    rkvk_feed feed = {};
    feed.n_stages = n_stages;
    feed.ring_bytes = n_stages * S::STAGE;
    feed.ring = rkvk_smem_addr(ring);
    rkvk_feed_fill<P>(feed, sm.queue, a, owner, at.thread);
    rkvk_node_state<P> x;
    rkvk_node_clear<P>(x);
    rkvk_pending_list list = {0, 0};
#pragma unroll 1
    for (uint32_t cur = 0; cur != sm.queue.n_queued; cur++) {
        const uint64_t number = sm.queue.leaf[cur % RKVK_QUEUE].number;
        rkvk_leaf_run<P>(x, sm, a, w, ring, feed, at, cur);
        const bool more = cur + 1 != sm.queue.n_queued;
        rkvk_pending_add<P>(x, w, list, number, more, more ? sm.queue.leaf[(cur + 1) % RKVK_QUEUE].number : 0);
    }
    rkvk_stream_write<P>(a, x, w);
}

template <typename S>
static __device__ __forceinline__ void rkvk_stream_pass(rkvk_stream_smem<S> &sm, const rkvi_attend_args &a,
                                                        rkvk_stream_work &w)
{
    if (S::CHUNKS == 1 || w.n_columns <= 8)
        rkvk_stream_columns<rkvk_stream_path<S, 1, 1>>(sm, a, w);
    else if constexpr (S::CHUNKS == 2)
        rkvk_stream_columns<rkvk_stream_path<S, 1, 2>>(sm, a, w);
    else if constexpr (S::CHUNKS == 4) {
        if (w.n_columns <= 16)
            rkvk_stream_columns<rkvk_stream_path<S, 2, 1>>(sm, a, w);
        else
            rkvk_stream_columns<rkvk_stream_path<S, 2, 2>>(sm, a, w);
    }
}

/* Nodes that may be pending: one for each level at which two of the leaves meet. */
static __device__ __forceinline__ uint32_t rkvk_depth(uint64_t leaf0, uint64_t leaf1)
{
    return leaf0 < leaf1 ? 64u - (uint32_t)__clzll((long long)(leaf0 ^ (leaf1 - 1))) : 0;
}

/* Least room of q and the rings: the rest of the region is for pending nodes. */
template <typename S>
static __host__ __device__ constexpr uint32_t rkvk_ring_least(void)
{
    return RKVK_RING_LEAST * RKVK_STREAM_WARPS * S::STAGE + S::STEPS * S::CHUNKS * 32 * sizeof(uint2);
}

/* Block = item * KV heads + head. */
template <typename S>
static __global__ void __launch_bounds__(RKVK_STREAM_THREADS, 2)
    rkvk_stream(const rkvk_stream_args d, const uint64_t n_blocks)
{
    extern __shared__ __align__(16) uint8_t raw[];
    rkvk_stream_smem<S> &sm = *reinterpret_cast<rkvk_stream_smem<S> *>(raw);
    const rkvi_attend_args &a = d.a;
    const uint64_t index = rkvk_block();
    if (index >= n_blocks)
        return;
    rkvk_stream_work w;
    w.item = a.items + index / a.geom.n_heads;
    w.walk = {a.entries + w.item->entry, w.item->leaf0, w.item->leaf1, (uint32_t)(index % a.geom.n_heads)};
    w.group = a.q_heads / a.geom.n_heads;
    w.region = raw + sizeof(rkvk_stream_smem<S>);
    w.region_bytes = d.region_bytes;
    w.depth = rkvk_depth(w.walk.leaf0, w.walk.leaf1);
    const uint32_t column_bytes = w.depth * (uint32_t)rkvk_pending_floats<S>() * 4;
    const uint32_t fit = w.depth ? (d.region_bytes - rkvk_ring_least<S>()) / column_bytes : 8 * S::CHUNKS;
    const uint32_t most = fit < 1 ? 1 : fit < 8 * S::CHUNKS ? fit : 8 * S::CHUNKS;
    const uint32_t n_columns = w.item->n_rows * w.group;
    for (w.column0 = 0; w.column0 < n_columns; w.column0 += most) {
        w.n_columns = n_columns - w.column0 < most ? n_columns - w.column0 : most;
        rkvk_stream_pass(sm, a, w);
    }
}

/* ----------------------------------------------------------------- launcher */

/* `regions`: a variant's, by device. */
#define RKVK_DEVICES 64

/* Two blocks a multiprocessor where that leaves enough, else one. */
template <typename S>
static int rkvk_stream_prepare(uint32_t *regions)
{
    int device, sm_bytes, block_bytes;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&sm_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&block_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (e != cudaSuccess)
        return (int)e;
    const int fixed = (int)sizeof(rkvk_stream_smem<S>), least = (int)rkvk_ring_least<S>() + 8 * 1024;
    const int half = rkvk_min(block_bytes, sm_bytes / 2 - 1024);
    const int room = (half - fixed >= least ? half : block_bytes) - fixed;
    if (device >= RKVK_DEVICES || room < least)
        return (int)cudaErrorInvalidConfiguration;
    const int region = room / 16 * 16, status = rkvk_load((const void *)rkvk_stream<S>, (size_t)(fixed + region));
    if (status == 0)
        regions[device] = (uint32_t)region;
    return status;
}

template <typename S>
static int rkvk_stream_launch(const uint32_t *regions, const rkvi_attend_args *a, uint64_t grid, void *stream)
{
    int device;
    const cudaError_t e = cudaGetDevice(&device);
    if (e != cudaSuccess)
        return (int)e;
    if (device >= RKVK_DEVICES || regions[device] == 0)
        return (int)cudaErrorInvalidConfiguration;
    const rkvk_stream_args d = {*a, regions[device]};
    return grid ? rkvk_run(rkvk_stream<S>, &d, grid, rkvk_grid(grid), dim3(RKVK_STREAM_THREADS),
                           sizeof(rkvk_stream_smem<S>) + d.region_bytes, stream)
                : 0;
}

#define RKVK_STREAM_VARIANT(name, type_k, type_v, dk, dv)                                                      \
    static uint32_t regions_##name[RKVK_DEVICES];                                                              \
    extern "C" int rkvk_decode_##name(const rkvi_attend_args *a, uint64_t grid, void *stream)                  \
    {                                                                                                          \
        return rkvk_stream_launch<rkvk_stream_shape<type_k, type_v, dk, dv>>(regions_##name, a, grid, stream); \
    }                                                                                                          \
    extern "C" int rkvk_decode_##name##_prepare(void)                                                          \
    {                                                                                                          \
        return rkvk_stream_prepare<rkvk_stream_shape<type_k, type_v, dk, dv>>(regions_##name);                 \
    }

#endif
