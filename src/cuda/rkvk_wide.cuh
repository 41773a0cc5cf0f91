/* SPDX-License-Identifier: MIT
 *
 * rkvk_wide.cuh: shapes, shared memory, and the parts of a leaf in attend_wide.cuh.
 */
#ifndef RKVK_WIDE_CUH
#define RKVK_WIDE_CUH

#include "rkvk_alone_feed.cuh"
#include "rkvk_pipe.cuh"
#include "rkvk_stream_sub.cuh"

#define RKVK_WIDE_TEAM (32 * RKVK_SUBS) /* threads: a warp a sub */

/* Barriers: weights of a leaf are there; they have been read (both by place of the weights); one of the scores'
 * team, one of the output's. */
enum {
    RKVK_WIDE_FULL = 1,
    RKVK_WIDE_FULL_ODD,
    RKVK_WIDE_EMPTY,
    RKVK_WIDE_EMPTY_ODD,
    RKVK_WIDE_WEIGHED,
    RKVK_WIDE_READ
};

/* For up to HC groups of 8 * NC columns, which go through a leaf one after another. */
template <typename SHAPE, int CHUNKS, int GROUPS>
struct rkvk_wide_path {
    using S = SHAPE;
    static constexpr int NC = CHUNKS, HC = GROUPS;
    static constexpr int THREADS = 2 * RKVK_WIDE_TEAM;
    static constexpr uint32_t GROUP = 8 * NC, COLUMNS = GROUP * HC;
    static constexpr uint32_t Q_BYTES = S::STEPS * NC * HC * 32 * (uint32_t)sizeof(uint2);
    /* A sub in shared memory: whole rows, then scales. */
    static constexpr int K_PITCH = rkvk_pitch(S::K_ROW), V_PITCH = rkvk_pitch(S::V_ROW), CELLS = 16 * S::MT;
    static constexpr int K_BYTES = CELLS * (K_PITCH + S::K_SCALE), V_BYTES = CELLS * (V_PITCH + S::V_SCALE);
    /* Output: slices of TW tiles of dims; CH warps to a slice, of NW chunks of columns each. */
    static constexpr int TW = rkvk_max(1, S::V_TILES / 8), SLICES = (S::V_TILES + TW - 1) / TW;
    static constexpr int CH = SLICES <= 2 && NC % 4 == 0 ? 4 : SLICES <= 4 && NC % 2 == 0 ? 2 : 1, NW = NC / CH;
    static constexpr uint32_t SLOTS = 32 * SLICES * CH; /* threads that have a part of O */
    /* Leaves whose V is in shared memory or on its way: more where they are small, as output alone would wait. */
    static constexpr uint32_t V_LEAVES = V_BYTES <= 5 * 1024 ? 2 : 1;
    /* V of one leaf is read, and asked for again, in so many parts. */
    static constexpr uint32_t V_PARTS = V_LEAVES == 1 ? 2 : 1, V_PART = RKVK_SUBS / V_PARTS;
    /* V of two leaves is asked for by the scores' team, which has the time: else by the output's. */
    static constexpr bool V_BY_SCORES = HC == 1 && V_LEAVES == 2;
    /* What may have a second place, where pending nodes leave room (rkvk_stream_work::is_deep): small K; weights. */
    static constexpr bool DEEP_K = HC == 1 && K_BYTES <= 5 * 1024, DEEP_P = HC == 1 && V_LEAVES == 1;
    /* Where each sub is a group, both factors are read at once. */
    static constexpr bool PAIRED = S::GROUP == 1;
    static constexpr int UNROLL = V_LEAVES == 2 ? 4 : 2; /* subs */
    /* O of a slice, thrice (rkvk_wide_state), stays in registers. */
    static constexpr bool FITS = TW * NW <= 4 && (HC == 1 ? S::D <= 256 : S::D <= 128);

    static_assert(S::V_TILES % TW == 0, "slices");
};

/* Of a group's columns, for a leaf: from scores to output. */
template <typename P>
struct rkvk_wide_weights {
    using S = typename P::S;
    alignas(16) uint2 p[RKVK_SUBS][P::NC][32][S::MT]; /* fragments */
    alignas(16) float2 ml[RKVK_SUBS][P::GROUP];
    /* What O of a sub is multiplied by, and what the leaf so far is, before a group of subs joins.  PAIRED: both
     * lie in `sub`, two columns' `before` and then their own. */
    alignas(16) float sub[RKVK_SUBS][(P::PAIRED ? 2 : 1) * P::GROUP];
    float before[P::PAIRED ? 1 : RKVK_SUBS / S::GROUP][P::GROUP];
    float finish[P::GROUP];
    float m[P::GROUP], l[P::GROUP]; /* of the leaf */
};

/* Followed by second places, the columns' q and the stack of pending nodes. */
template <typename P>
struct rkvk_wide_smem {
    alignas(16) uint8_t k[RKVK_SUBS][P::K_BYTES];
    uint8_t v[P::V_LEAVES][RKVK_SUBS][P::V_BYTES];
    rkvk_wide_weights<P> weights;
    float *slot[P::COLUMNS]; /* o of each column in its item's slot; null: no column */
    float *slot_m[P::COLUMNS];
    rkvk_reach reach[P::COLUMNS];
    rkvk_reach common; /* what all columns see */
    rkvk_queue queue;
};

/* Bytes of second places. */
template <typename P>
static __host__ __device__ constexpr uint32_t rkvk_wide_second(void)
{
    return (P::DEEP_K ? RKVK_SUBS * (uint32_t)P::K_BYTES : 0u) +
           (P::DEEP_P ? (uint32_t)sizeof(rkvk_wide_weights<P>) : 0u);
}

/* Place 0 or 1 of a sub's K, and of weights. */
template <typename P>
static __device__ __forceinline__ uint8_t *rkvk_wide_k(rkvk_wide_smem<P> &sm, uint32_t place, uint32_t u)
{
    uint8_t *const second = reinterpret_cast<uint8_t *>(&sm + 1);
    return (P::DEEP_K && place ? second : sm.k[0]) + u * P::K_BYTES;
}

template <typename P>
static __device__ __forceinline__ rkvk_wide_weights<P> &rkvk_wide_weights_at(rkvk_wide_smem<P> &sm, uint32_t place)
{
    static_assert(!P::DEEP_K || !P::DEEP_P, "one of them comes first");
    return P::DEEP_P && place ? *reinterpret_cast<rkvk_wide_weights<P> *>(&sm + 1) : sm.weights;
}

/* --------------------------------------------------------------------- loads */

/* All of a sub's K or V, by a warp.  Both tiles' rows are zeros where there is no cell, as
 * are scales of tiles that aren't there. */
template <int MT, int ROW, int PITCH, int SCALE>
static __device__ __forceinline__ void rkvk_wide_feed(uint8_t *to, const rkvk_leaf &leaf, uint64_t off,
                                                      uint64_t scale_off, const rkvk_sub &sub)
{
    const uint32_t dst = rkvk_smem_addr(to);
    const int lane = rkvk_lane();
    const bool whole = sub.n == MT && sub.cell >= leaf.c0 && sub.cell + 128 * (MT - 1) + 16 <= leaf.c1;
#pragma unroll
    for (int i = 0; i < MT; i++) {
        const uint32_t cell = sub.cell + (uint32_t)i * 128, at = dst + (uint32_t)(i * 16 * PITCH);
        const uint8_t *src = leaf.head + off + (uint64_t)cell * ROW;
        const bool here = (uint32_t)i < sub.n;
        if (whole)
            rkvk_feed_rows<ROW, ROW, PITCH, 32, true>(at, src, lane, 0, 0, 0);
        else
            rkvk_feed_rows<ROW, ROW, PITCH, 32, false>(at, here ? src : leaf.head, lane, cell, here ? leaf.c0 : 0,
                                                       here ? leaf.c1 : 0);
        if constexpr (SCALE > 0) {
            rkvk_feed_scales<16 * SCALE, 32>(dst + (uint32_t)(MT * 16 * PITCH + i * 16 * SCALE),
                                             here ? leaf.head + scale_off + (uint64_t)cell * SCALE : leaf.head, lane,
                                             here);
        }
    }
    rkvk_copy_commit();
}

/* The same in few words, of a leaf of which all cells are read, and which is as long as leaves can be. */
template <int ROW, int PITCH, int SCALE>
static __device__ __forceinline__ void rkvk_wide_feed_whole(uint8_t *to, const rkvk_leaf &leaf, uint64_t off,
                                                            uint64_t scale_off, uint32_t u)
{
    const uint32_t cell = leaf.c0 + u * 16;
    rkvk_alone_copy<ROW, PITCH, SCALE>(rkvk_smem_addr(to), leaf.head + off + (cell * ROW + (uint32_t)rkvk_lane() * 16),
                                       leaf.head + scale_off + (cell * SCALE + rkvk_alone_scale_at<SCALE>()));
    rkvk_copy_commit();
}

template <typename P>
static __device__ __forceinline__ void rkvk_wide_feed_k(rkvk_wide_smem<P> &sm, const rkvi_attend_args &a,
                                                        uint32_t cur, uint32_t place, uint32_t u)
{
    using S = typename P::S;
    rkvk_sub sub = {0, 0};
    const rkvk_leaf &leaf = sm.queue.leaf[cur % RKVK_QUEUE];
    const bool is_there = (int32_t)(sm.queue.n_queued - cur) > 0;
    if constexpr (S::MT == 2 && S::K_IS_SMALL) {
        if (is_there && rkvk_leaf_is_whole<S>(leaf)) {
            rkvk_wide_feed_whole<S::K_ROW, P::K_PITCH, S::K_SCALE>(rkvk_wide_k<P>(sm, place, u), leaf, a.geom.k_off,
                                                                   a.geom.k_scale_off, u);
            return;
        }
    }
    if (is_there)
        sub = rkvk_sub_of<S>(leaf, a.geom.leaf_cells, u);
    if (sub.n > 0)
        rkvk_wide_feed<S::MT, S::K_ROW, P::K_PITCH, S::K_SCALE>(rkvk_wide_k<P>(sm, place, u), leaf, a.geom.k_off,
                                                                a.geom.k_scale_off, sub);
    else
        rkvk_copy_commit(); /* nothing: groups are counted */
}

template <typename P>
static __device__ __forceinline__ void rkvk_wide_feed_v(rkvk_wide_smem<P> &sm, const rkvi_attend_args &a,
                                                        uint32_t cur, uint32_t u)
{
    using S = typename P::S;
    if ((int32_t)(sm.queue.n_queued - cur) <= 0) {
        rkvk_copy_commit(); /* nothing: groups are counted */
        return;
    }
    const rkvk_leaf &leaf = sm.queue.leaf[cur % RKVK_QUEUE];
    if constexpr (S::MT == 2 && S::V_IS_SMALL) {
        if (rkvk_leaf_is_whole<S>(leaf)) {
            rkvk_wide_feed_whole<S::V_ROW, P::V_PITCH, S::V_SCALE>(sm.v[cur % P::V_LEAVES][u], leaf, a.geom.v_off,
                                                                   a.geom.v_scale_off, u);
            return;
        }
    }
    const rkvk_sub sub = rkvk_sub_of<S>(leaf, a.geom.leaf_cells, u);
    rkvk_wide_feed<S::MT, S::V_ROW, P::V_PITCH, S::V_SCALE>(sm.v[cur % P::V_LEAVES][u], leaf, a.geom.v_off,
                                                            a.geom.v_scale_off, sub);
}

/* What the warp asked for, but the last ones, is here, for the warp. */
template <int BUT>
static __device__ __forceinline__ void rkvk_wide_arrive(void)
{
    rkvk_copy_wait<BUT>();
    __syncwarp();
}

/* -------------------------------------------------------------------- scores */

/* Both tiles of a sub: those of rkvk_sub_scores, bit by bit. */
template <typename P>
static __device__ __forceinline__ void rkvk_wide_scores(float (&s)[P::S::MT][P::NC][4], const uint8_t *k,
                                                        const uint2 *q)
{
    using S = typename P::S;
    const int lane = rkvk_lane();
#pragma unroll
    for (int i = 0; i < S::MT; i++)
        rkvk_scores_clear<P::NC>(s[i]);
    if constexpr (S::K_HAS_SCALES) {
#pragma unroll
        for (int i = 0; i < S::MT; i++)
            rkvk_quant_scores<S::TK, S::DK / 32, P::K_PITCH, S::K_SCALE, P::NC>(
                s[i], {k + i * 16 * P::K_PITCH, k + P::CELLS * P::K_PITCH + i * 16 * S::K_SCALE}, q, lane);
    } else {
#pragma unroll
        for (int step = 0; step < S::STEPS; step++) {
            uint32_t x[S::MT][4];
#pragma unroll
            for (int i = 0; i < S::MT; i++)
                rkvk_k_step<S::TK, P::K_PITCH>(x[i], k + i * 16 * P::K_PITCH, step, lane);
#pragma unroll
            for (int n = 0; n < P::NC; n++) {
                const uint2 b = q[(step * P::NC + n) * 32 + lane];
#pragma unroll
                for (int i = 0; i < S::MT; i++)
                    rkvk_mma<S::TK == RKV_TYPE_BF16>(s[i][n], x[i], b.x, b.y);
            }
        }
    }
}

/* Does each column see all of the leaf, all of which is read?  (Columns that aren't there may, too.) */
template <typename P>
static __device__ __forceinline__ bool rkvk_wide_all_seen(const rkvk_wide_smem<P> &sm, const rkvk_leaf &leaf,
                                                          uint32_t leaf_cells)
{
    return (uint32_t)(leaf.c1 - leaf.c0) == leaf_cells && leaf_cells == RKVK_SUBS * P::CELLS &&
           sm.common.lo <= leaf.pos && leaf.pos + leaf.count <= sm.common.hi;
}

/* What the columns of a group see of a leaf.  Where all see all of it, so do columns that aren't there. */
template <typename P>
static __device__ __forceinline__ void rkvk_wide_sees(rkvk_sub_state<P> &st, const rkvk_wide_smem<P> &sm,
                                                      const rkvk_reach *reach, const rkvk_leaf &leaf)
{
    const uint32_t all = leaf.first | (uint32_t)(leaf.first + leaf.count) << 16;
    const bool is_common = sm.common.lo <= leaf.pos && leaf.pos + leaf.count <= sm.common.hi;
#pragma unroll
    for (int n = 0; n < P::NC; n++)
        st.sees[n][0] = st.sees[n][1] = all;
    if (is_common)
        return;
#pragma unroll
    for (int n = 0; n < P::NC; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const rkvk_cells c = rkvk_span_cells(leaf.pos, leaf.first, leaf.count,
                                                 reach[n * 8 + 2 * (rkvk_lane() & 3) + j]);
            st.sees[n][j] = c.c0 | c.c1 << 16;
        }
}

/* m, l and P of a sub, for the output's team.  A sub that isn't there has zeros. */
template <typename P>
static __device__ __forceinline__ void rkvk_wide_put(rkvk_wide_weights<P> &to, const rkvk_sub_state<P> &st,
                                                     const uint2 (&p)[P::S::MT][P::NC], uint32_t u)
{
    const int lane = rkvk_lane();
#pragma unroll
    for (int n = 0; n < P::NC; n++) {
        if (lane < 4)
            *reinterpret_cast<float4 *>(&to.ml[u][n * 8 + 2 * lane]) =
                make_float4(st.m[n][0], st.l[n][0], st.m[n][1], st.l[n][1]);
        if constexpr (P::S::MT == 2)
            *reinterpret_cast<uint4 *>(to.p[u][n][lane]) = make_uint4(p[0][n].x, p[0][n].y, p[1][n].x, p[1][n].y);
        else
            to.p[u][n][lane][0] = p[0][n];
    }
}

/* -------------------------------------------------------------------- output */

/* A warp's slice of dims, of a leaf or of a node; lane i has m and l of column i of the group (l: in warp 0 of
 * the team alone).  Columns of chunk n of part h: 8 (h * NW + n) + 2t and the next one. */
template <typename P>
struct rkvk_wide_state {
    float o[P::NW][P::TW][4];
    float m, l;
};

/* By warp u of the scores' team, behind the subs' m and l: what the columns of sub u, and the leaf before its group,
 * are multiplied by, as in rkvk_leaf_weigh; the leaf's m. */
template <typename P>
static __device__ __forceinline__ void rkvk_wide_weigh(rkvk_wide_weights<P> &f, uint32_t u)
{
    constexpr uint32_t N = P::S::GROUP;
    const uint32_t lane = (uint32_t)rkvk_lane();
    if (lane >= P::GROUP)
        return;
    float before = rkvk_empty_m(), top = before, all = before;
#pragma unroll
    for (uint32_t i = 0; i < RKVK_SUBS; i++) {
        const float m = f.ml[i][lane].x;
        before = i < u / N * N ? fmaxf(before, m) : before;
        top = i < u / N * N + N ? fmaxf(top, m) : top;
        all = fmaxf(all, m);
    }
    const float base = top == rkvk_empty_m() ? 0.0f : top;
    const float own = rkvk_exp2(__fadd_rn(f.ml[u][lane].x, -base));
    if constexpr (P::PAIRED) {
        f.sub[u][lane / 2 * 4 + lane % 2] = rkvk_exp2(__fadd_rn(before, -base));
        f.sub[u][lane / 2 * 4 + 2 + lane % 2] = own;
    } else {
        f.sub[u][lane] = own;
        if (u % N == 0)
            f.before[u / N][lane] = rkvk_exp2(__fadd_rn(before, -base));
    }
    if (u == 0) { /* rkvk_leaf_finish */
        const float m = __fmul_rn(all, RKVK_LN2);
        f.m[lane] = m;
        f.finish[lane] = all == rkvk_empty_m() ? 1.0f : rkvk_exp2(__fadd_rn(all, -__fmul_rn(m, RKVK_LOG2E)));
    }
}

/* By one warp, beside that: l of the leaf. */
template <typename P>
static __device__ __forceinline__ void rkvk_wide_total(rkvk_wide_weights<P> &f)
{
    constexpr uint32_t N = P::S::GROUP;
    const uint32_t lane = (uint32_t)rkvk_lane();
    if (lane >= P::GROUP)
        return;
    float l = 0.0f, top = rkvk_empty_m();
#pragma unroll
    for (uint32_t i = 0; i < RKVK_SUBS; i += N) {
        const float before = top;
#pragma unroll
        for (uint32_t u = i; u < i + N; u++)
            top = fmaxf(top, f.ml[u][lane].x);
        const float base = top == rkvk_empty_m() ? 0.0f : top;
        l = __fmul_rn(l, rkvk_exp2(__fadd_rn(before, -base)));
#pragma unroll
        for (uint32_t u = i; u < i + N; u++)
            l = __fmaf_rn(f.ml[u][lane].y, rkvk_exp2(__fadd_rn(f.ml[u][lane].x, -base)), l);
    }
    const float m = __fmul_rn(top, RKVK_LN2);
    const float finish = top == rkvk_empty_m() ? 1.0f : rkvk_exp2(__fadd_rn(top, -__fmul_rn(m, RKVK_LOG2E)));
    f.l[lane] = __fmul_rn(l, finish);
}

/* Where a warp of the team is. */
struct rkvk_wide_part {
    int slice, chunk; /* its first chunk of a group's columns */
};

/* O of a sub, of the slice. */
template <typename P>
static __device__ __forceinline__ void rkvk_wide_product(float (&o)[P::NW][P::TW][4],
                                                         const rkvk_wide_weights<P> &from, const rkvk_wide_part &at,
                                                         const uint8_t *v_rows, uint32_t u)
{
    using S = typename P::S;
    const int lane = rkvk_lane();
    uint2 p[S::MT][P::NW];
#pragma unroll
    for (int n = 0; n < P::NW; n++) {
        if constexpr (S::MT == 2) {
            const uint4 x = *reinterpret_cast<const uint4 *>(from.p[u][at.chunk + n][lane]);
            p[0][n] = make_uint2(x.x, x.y);
            p[1][n] = make_uint2(x.z, x.w);
        } else {
            p[0][n] = from.p[u][at.chunk + n][lane][0];
        }
#pragma unroll
        for (int v = 0; v < P::TW; v++)
            o[n][v][0] = o[n][v][1] = o[n][v][2] = o[n][v][3] = 0.0f;
    }
#pragma unroll
    for (int i = 0; i < S::MT; i++) {
        const uint8_t *rows = v_rows + i * 16 * P::V_PITCH;
        if constexpr (S::V_HAS_SCALES) {
            const uint8_t *scales = v_rows + P::CELLS * P::V_PITCH + i * 16 * S::V_SCALE;
            rkvk_quant_tiles_output<S::TV, P::TW, P::V_PITCH, P::NW>(o, {rows, scales}, p[i], at.slice * P::TW, lane);
        } else {
#pragma unroll
            for (int v = 0; v < P::TW; v++) {
                uint32_t x[4];
                rkvk_v_tile<S::TV, P::V_PITCH>(x, rows, at.slice * P::TW + v, lane);
#pragma unroll
                for (int n = 0; n < P::NW; n++)
                    rkvk_mma<S::TV == RKV_TYPE_BF16>(o[n][v], x, p[i][n].x, p[i][n].y);
            }
        }
    }
}

/* Of a row of factors, those of the lane's columns of chunk n. */
template <typename P>
static __device__ __forceinline__ float2 rkvk_wide_pair(const float *row, const rkvk_wide_part &at, int n)
{
    return *reinterpret_cast<const float2 *>(row + (at.chunk + n) * 8 + 2 * (rkvk_lane() & 3));
}

/* Part `part` of the leaf's O, of the slice: sub after sub, as in rkvk_leaf_join. */
template <typename P>
static __device__ __forceinline__ void rkvk_wide_output(rkvk_wide_state<P> &x, const rkvk_wide_weights<P> &from,
                                                        const uint8_t (&v)[RKVK_SUBS][P::V_BYTES],
                                                        const rkvk_wide_part &at, uint32_t part)
{
    using S = typename P::S;
    const int lane = rkvk_lane();
#pragma unroll P::UNROLL
    for (uint32_t i = 0; i < P::V_PART; i++) {
        const uint32_t u = part * P::V_PART + i;
        float o[P::NW][P::TW][4];
        rkvk_wide_product<P>(o, from, at, v[u], u);
#pragma unroll
        for (int n = 0; n < P::NW; n++) {
            float2 own;
            if constexpr (P::PAIRED) {
                const int column = (at.chunk + n) * 8 + 2 * (lane & 3);
                const float4 f = *reinterpret_cast<const float4 *>(from.sub[u] + 2 * column);
                own = make_float2(f.z, f.w);
#pragma unroll
                for (int v = 0; v < P::TW; v++)
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        x.o[n][v][j] = __fmul_rn(x.o[n][v][j], j & 1 ? f.y : f.x);
            } else {
                own = rkvk_wide_pair<P>(from.sub[u], at, n);
            }
            if (!P::PAIRED && u % S::GROUP == 0 && S::GROUP < RKVK_SUBS) {
                const float2 f = rkvk_wide_pair<P>(from.before[u / S::GROUP], at, n);
#pragma unroll
                for (int v = 0; v < P::TW; v++)
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        x.o[n][v][j] = __fmul_rn(x.o[n][v][j], j & 1 ? f.y : f.x);
            }
#pragma unroll
            for (int v = 0; v < P::TW; v++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    x.o[n][v][j] = __fmaf_rn(o[n][v][j], j & 1 ? own.y : own.x, x.o[n][v][j]);
        }
    }
}

template <typename P>
static __device__ __forceinline__ void rkvk_wide_finish(rkvk_wide_state<P> &x, const rkvk_wide_weights<P> &from,
                                                        const rkvk_wide_part &at, float unit)
{
#pragma unroll
    for (int n = 0; n < P::NW; n++) {
        const float2 f = rkvk_wide_pair<P>(from.finish, at, n);
#pragma unroll
        for (int v = 0; v < P::TW; v++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                x.o[n][v][j] = __fmul_rn(x.o[n][v][j], __fmul_rn(j & 1 ? f.y : f.x, unit));
    }
}

#endif
