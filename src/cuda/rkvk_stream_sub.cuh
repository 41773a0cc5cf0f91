/* SPDX-License-Identifier: MIT
 *
 * rkvk_stream_sub.cuh: one sub of a leaf (attend_stream.cuh): scores, weights, output.
 */
#ifndef RKVK_STREAM_SUB_CUH
#define RKVK_STREAM_SUB_CUH

#include "rkvk_stream_tree.cuh"

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

/* What the warp's columns see of a leaf. */
template <typename P, typename M>
static __device__ __forceinline__ void rkvk_leaf_sees(rkvk_sub_state<P> &st, const M &sm, const rkvk_leaf &leaf,
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

/* What a warp needs to know of itself and of where it is. */
template <typename P>
struct rkvk_place {
    uint32_t owner;
    int part, thread; /* h; the thread among its owner's */
    const uint2 *q;
    float scale;
};

/* Out of the way of the loops: few models have it. */
static __device__ __noinline__ float rkvk_softcap(float x, float softcap)
{
    return __fmul_rn(__fmul_rn(softcap, RKVK_LOG2E), tanhf(__fdiv_rn(x, softcap)));
}

/* Scores in units of ln 2: softcap before the mask; -inf where masked. */
template <typename P>
static __device__ __forceinline__ void rkvk_sub_mask_by(const rkvk_sub_state<P> &st, float (&s)[P::S::MT][P::NC][4],
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
                    x = rkvk_softcap(x, softcap);
                s[i][n][j] = (uint32_t)i < sub.n && c - c0 < c1 - c0 ? x : rkvk_empty_m();
            }
}

template <typename P>
static __device__ __forceinline__ void rkvk_sub_mask(const rkvk_sub_state<P> &st, float (&s)[P::S::MT][P::NC][4],
                                                     const rkvi_attend_args &a, float scale, const rkvk_sub &sub)
{
    if (a.softcap == 0.0f)
        rkvk_sub_mask_by<P>(st, s, __fmul_rn(scale, RKVK_LOG2E), 0.0f, sub);
    else
        rkvk_sub_mask_by<P>(st, s, scale, a.softcap, sub);
}

/* The same where nothing is masked, and there is no softcap. */
template <typename P>
static __device__ __forceinline__ void rkvk_sub_scale(float (&s)[P::S::MT][P::NC][4], float scale)
{
#pragma unroll
    for (int i = 0; i < P::S::MT; i++)
#pragma unroll
        for (int n = 0; n < P::NC; n++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                s[i][n][j] = __fmul_rn(s[i][n][j], scale);
}

/* P of the sub's tiles, and its m and l, from masked scores. */
template <typename P>
static __device__ __forceinline__ void rkvk_sub_weigh(rkvk_sub_state<P> &st, float (&s)[P::S::MT][P::NC][4],
                                                      uint2 (&p)[P::S::MT][P::NC])
{
    using S = typename P::S;
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
static __device__ __forceinline__ void rkvk_sub_weights(rkvk_sub_state<P> &st, float (&s)[P::S::MT][P::NC][4],
                                                        uint2 (&p)[P::S::MT][P::NC], const rkvi_attend_args &a,
                                                        float scale, const rkvk_sub &sub)
{
    rkvk_sub_mask<P>(st, s, a, scale, sub);
    rkvk_sub_weigh<P>(st, s, p);
}

template <int NC>
static __device__ __forceinline__ void rkvk_scores_clear(float (&s)[NC][4])
{
#pragma unroll
    for (int n = 0; n < NC; n++)
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
}

/* Of a tile, piece k of its rows; all its scales. */
template <typename P>
static __device__ __forceinline__ void rkvk_piece_scores(float (&s)[P::NC][4], const uint8_t *rows,
                                                         const uint8_t *scales, const rkvk_place<P> &at, int k)
{
    using S = typename P::S;
    constexpr int STEPS = S::STEPS / S::KP;
    const uint2 *q = at.q + k * STEPS * P::NC * 32;
    if constexpr (S::K_HAS_SCALES)
        rkvk_quant_scores<S::TK, STEPS / 2, S::K_PITCH, S::K_SCALE, P::NC>(s, {rows, scales + k * STEPS}, q,
                                                                           rkvk_lane());
    else
        rkvk_scores<S::TK, S::K_PITCH, STEPS, P::NC>(s, rows, q, rkvk_lane());
}

template <typename P>
static __device__ __forceinline__ void rkvk_sub_scores(float (&s)[P::S::MT][P::NC][4],
                                                       const rkvk_stream_smem<P> &sm,
                                                       const rkvi_attend_args &a, uint8_t *ring, rkvk_feed &feed,
                                                       const rkvk_place<P> &at, uint32_t n_tiles)
{
    using S = typename P::S;
    if constexpr (S::KC == 2) {
        rkvk_feed_take<P>(feed, sm.queue, a, at.owner, at.thread);
        const uint8_t *stage = ring + feed.out;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            rkvk_scores_clear<P::NC>(s[i]);
            rkvk_piece_scores<P>(s[i], stage + i * 16 * S::K_PITCH,
                                 stage + 32 * S::K_PITCH + i * 16 * S::K_SCALE, at, 0);
        }
        rkvk_feed_release<P>(feed, sm.queue, a, at.owner, at.thread);
    } else {
#pragma unroll 1
        for (uint32_t i = 0; i < n_tiles; i++) {
            float x[P::NC][4];
            rkvk_scores_clear<P::NC>(x);
#pragma unroll 1
            for (int k = 0; k < S::KP; k++) {
                rkvk_feed_take<P>(feed, sm.queue, a, at.owner, at.thread);
                const uint8_t *stage = ring + feed.out;
                rkvk_piece_scores<P>(x, stage, stage + 16 * S::K_PITCH, at, k);
                rkvk_feed_release<P>(feed, sm.queue, a, at.owner, at.thread);
            }
#pragma unroll
            for (int n = 0; n < P::NC; n++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    s[S::MT - 1][n][j] = x[n][j]; /* i is below n_tiles: the last one ends up here */
                    if (i == 0)
                        s[0][n][j] = x[n][j];
                }
        }
    }
}

/* Tile i of a piece of V, piece k of its rows.  `leaf`: the sub isn't whole, its first cell
 * is `cell`; null: it is. */
template <typename P>
static __device__ __forceinline__ void rkvk_piece_output(rkvk_sub_state<P> &st, const uint2 (&b)[P::NC],
                                                         uint8_t *stage, const rkvk_place<P> &at, int k, int i,
                                                         const rkvk_leaf *leaf, uint32_t cell)
{
    using S = typename P::S;
    const int tile0 = at.part / P::HC * P::TW, lane = rkvk_lane(); /* of the piece */
    const uint8_t *rows = stage + i * 16 * S::V_PITCH;
    if constexpr (S::V_HAS_SCALES) {
        uint8_t *scales = stage + S::VC * 16 * S::V_PITCH + i * 16 * S::V_SCALE;
        if (leaf)
            rkvk_quant_clear<S::DV / 32>(scales, (int)leaf->c0 - (int)cell - i * 128,
                                         (int)leaf->c1 - (int)cell - i * 128, lane);
        rkvk_quant_output<S::TV, P::TW / 2, S::V_PITCH, S::V_SCALE, P::NC, S::VT>(
            st.o, {rows, scales + k * P::TP + tile0}, b, tile0 / 2, k * P::TW, lane);
    } else {
        rkvk_v_output<S::TV, P::TW, S::V_PITCH, P::NC, S::VT>(st.o, rows, b, tile0, k * P::TW, lane);
    }
}

template <typename P>
static __device__ __forceinline__ void rkvk_sub_output(rkvk_sub_state<P> &st, const uint2 (&p)[P::S::MT][P::NC],
                                                       const rkvk_stream_smem<P> &sm,
                                                       const rkvi_attend_args &a, uint8_t *ring, rkvk_feed &feed,
                                                       const rkvk_place<P> &at, const rkvk_leaf &leaf,
                                                       const rkvk_sub &sub)
{
    using S = typename P::S;
    const bool whole = rkvk_sub_is_whole<S>(sub, leaf);
    if constexpr (S::VC == 2) {
        rkvk_feed_take<P>(feed, sm.queue, a, at.owner, at.thread);
#pragma unroll
        for (int i = 0; i < 2; i++)
            rkvk_piece_output<P>(st, p[i], ring + feed.out, at, 0, i, whole ? nullptr : &leaf, sub.cell);
        rkvk_feed_release<P>(feed, sm.queue, a, at.owner, at.thread);
    } else {
#pragma unroll 1
        for (uint32_t i = 0; i < sub.n; i++) {
            uint2 b[P::NC];
#pragma unroll
            for (int n = 0; n < P::NC; n++)
                b[n] = i == 0 ? p[0][n] : p[S::MT - 1][n];
#pragma unroll
            for (int k = 0; k < S::VP; k++) {
                rkvk_feed_take<P>(feed, sm.queue, a, at.owner, at.thread);
                rkvk_piece_output<P>(st, b, ring + feed.out, at, k, 0, whole ? nullptr : &leaf, sub.cell + i * 128);
                rkvk_feed_release<P>(feed, sm.queue, a, at.owner, at.thread);
            }
        }
    }
}

/* Tiles of a sub: none is as good as tiles that no column sees. */
template <typename P>
static __device__ __forceinline__ void rkvk_sub_run(rkvk_sub_state<P> &st, const rkvk_stream_smem<P> &sm,
                                                    const rkvi_attend_args &a, uint8_t *ring, rkvk_feed &feed,
                                                    const rkvk_place<P> &at, const rkvk_leaf &leaf,
                                                    const rkvk_sub &sub)
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
    rkvk_sub_output<P>(st, p, sm, a, ring, feed, at, leaf, sub);
}

#endif
