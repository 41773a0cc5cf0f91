/* SPDX-License-Identifier: MIT
 *
 * rkvk_stream_alone.cuh: a leaf a warp (attend_stream.cuh), for types whose cells are few
 * bytes, in long runs.
 *
 * Warp w of 8 takes leaves w, w + 8, ...  Its ring is two pairs of stages (or one), K
 * and V of a sub.  Where a sub has been read, the one after the next (or the next) is asked for
 * in its place.  A group of copies is closed even where there is nothing to copy, so each piece
 * waited for is three groups old (or one).
 *
 *     pair:   [K of s | V of s]  [K of s+1 | V of s+1]        s read: s+2 takes its place
 *
 * The leaf's O is summed up in registers, sub after sub (the sums of rkvk_leaf_join, bit by bit).
 * At its end it lies in the stages of the last sub, which stay unfilled until the block has met:
 * then warp c takes column c of all 8 leaves through the tree.
 */
#ifndef RKVK_STREAM_ALONE_CUH
#define RKVK_STREAM_ALONE_CUH

#include "rkvk_stream_sub.cuh"

#define RKVK_PAIRS_MOST 2u

/* ------------------------------------------------------------------ streams */

/* A warp's copies, and its place in the ring: few words, since registers are. */
struct rkvk_alone_feed {
    const uint8_t *k;           /* the lane's first bytes of K of the sub to come */
    uint32_t to_scales;         /* bytes from there to those of its scales */
    uint32_t cell;              /* its first one */
    uint32_t leaf, round;       /* of that sub; leaves counted as n_queued */
    bool is_known, is_whole;    /* there is one; all its leaf's cells are read */
    uint32_t pair, pairs;       /* the current pair, and the sum of both places, from sm.o on; one place: twice that */
    bool is_double;
};

/* A leaf of which all cells are read, and as long as leaves of these dims can be. */
template <typename S>
static __device__ __forceinline__ bool rkvk_leaf_is_whole(const rkvk_leaf &leaf)
{
    return (uint32_t)(leaf.c1 - leaf.c0) == 16u * RKVK_SUBS * S::MT;
}

/* The lane's part of a sub's scales: SCALE chunks of 16 bytes for each of two tiles. */
template <int SCALE>
static __device__ __forceinline__ uint32_t rkvk_alone_scale_at(void)
{
    if constexpr (SCALE == 0)
        return 0;
    else
        return (uint32_t)(rkvk_lane() / SCALE * 128 * SCALE + rkvk_lane() % SCALE * 16);
}

/* Bytes from the lane's K to its V, from K's scales to V's. */
template <typename S>
static __device__ __forceinline__ uint32_t rkvk_alone_to_v(const rkvi_geom &g, uint32_t cell)
{
    return (uint32_t)(g.v_off - g.k_off) + (S::V_ROW == S::K_ROW ? 0u : cell * (uint32_t)(S::V_ROW - S::K_ROW));
}

template <typename S>
static __device__ __forceinline__ uint32_t rkvk_alone_to_v_scales(const rkvi_geom &g, uint32_t cell)
{
    uint32_t to = (uint32_t)(g.v_scale_off - g.k_scale_off);
    if constexpr (S::V_SCALE != S::K_SCALE)
        to += cell * (uint32_t)(S::V_SCALE - S::K_SCALE) + rkvk_alone_scale_at<S::V_SCALE>() -
              rkvk_alone_scale_at<S::K_SCALE>();
    return to;
}

/* From f.leaf and f.round on, the next sub that has tiles. */
template <typename P>
static __device__ __forceinline__ void rkvk_alone_enter(rkvk_alone_feed &f, const rkvk_queue &q,
                                                        const rkvi_attend_args &a)
{
    using S = typename P::S;
    f.is_known = false;
    while ((int32_t)(q.n_shown - f.leaf) > 0) {
        const rkvk_leaf &leaf = q.leaf[f.leaf % RKVK_QUEUE];
        const rkvk_sub sub = rkvk_sub_of<S>(leaf, a.geom.leaf_cells, f.round);
        if (sub.n > 0) {
            const uint64_t k = a.geom.k_off + (uint64_t)sub.cell * S::K_ROW + (uint64_t)rkvk_lane() * 16;
            f.is_known = true;
            f.is_whole = rkvk_leaf_is_whole<S>(leaf);
            f.k = leaf.head + k;
            f.cell = sub.cell;
            f.to_scales = (uint32_t)(a.geom.k_scale_off + (uint64_t)sub.cell * S::K_SCALE +
                                     rkvk_alone_scale_at<S::K_SCALE>() - k);
            return;
        }
        if (++f.round == RKVK_SUBS) {
            f.round = 0;
            f.leaf += RKVK_STREAM_WARPS;
        }
    }
}

template <typename P>
static __device__ __forceinline__ void rkvk_alone_next(rkvk_alone_feed &f, const rkvk_queue &q,
                                                       const rkvi_attend_args &a)
{
    using S = typename P::S;
    if (++f.round == RKVK_SUBS) {
        f.round = 0;
        f.leaf += RKVK_STREAM_WARPS;
    } else if (f.is_known && f.is_whole) {
        f.k += 16 * S::K_ROW;
        f.to_scales += (uint32_t)(16 * (S::K_SCALE - S::K_ROW));
        f.cell += 16;
        return;
    }
    rkvk_alone_enter<P>(f, q, a);
}

/* Both tiles of a sub, from the lane's first bytes on. */
template <int ROW, int PITCH, int SCALE>
static __device__ __forceinline__ void rkvk_alone_copy(uint32_t dst, const uint8_t *rows, const uint8_t *scales)
{
    constexpr int CHUNKS = ROW / 16, ALL = 16 * CHUNKS;
    const int lane = rkvk_lane();
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int at = 0; at < ALL; at += 32) {
            const int row = 32 % CHUNKS == 0 ? lane / CHUNKS + at / CHUNKS : (at + lane) / CHUNKS;
            const int chunk = 32 % CHUNKS == 0 ? lane % CHUNKS : (at + lane) % CHUNKS;
            if (ALL % 32 == 0 || at + lane < ALL)
                rkvk_copy16_once(dst + (uint32_t)((i * 16 + row) * PITCH + chunk * 16), rows + i * 128 * ROW + at * 16,
                                 true, rkvk_once_policy());
        }
    if constexpr (SCALE > 0) {
        static_assert(2 * SCALE <= 32, "a warp's worth");
        if (lane < 2 * SCALE)
            rkvk_copy16_once(dst + (uint32_t)(32 * PITCH + lane * 16), scales, true, rkvk_once_policy());
    }
}

/* The same from the sub's first bytes on, where some cells aren't read: zeros stand for them.  Inline,
 * since out of line ptxas 13.0 gave a copy no cache policy (fp8, 96 dims: an illegal instruction). */
template <int ROW, int PITCH, int SCALE>
static __device__ __forceinline__ void rkvk_alone_copy_some(uint32_t dst, const uint8_t *rows, const uint8_t *scales,
                                                         uint32_t cell, uint32_t c0, uint32_t c1)
{
    const int lane = rkvk_lane();
#pragma unroll 1
    for (int i = 0; i < 2; i++) {
        const uint32_t at = cell + (uint32_t)i * 128;
        rkvk_feed_rows<ROW, ROW, PITCH, 32, false>(dst + (uint32_t)(i * 16 * PITCH), rows + i * 128 * ROW, lane, at, c0,
                                                   c1);
        if constexpr (SCALE > 0)
            rkvk_feed_scales<16 * SCALE, 32>(dst + (uint32_t)(32 * PITCH + i * 16 * SCALE), scales + i * 128 * SCALE,
                                             lane, at < c1 && at + 16 > c0);
    }
}

/* K, or V, of the sub to come takes the current pair's place. */
template <typename P, bool IS_K>
static __device__ __forceinline__ void rkvk_alone_put(rkvk_stream_smem<P> &sm, rkvk_alone_feed &f,
                                                      const rkvi_attend_args &a)
{
    using S = typename P::S;
    constexpr int ROW = IS_K ? S::K_ROW : S::V_ROW, PITCH = IS_K ? S::K_PITCH : S::V_PITCH;
    constexpr int SCALE = IS_K ? S::K_SCALE : S::V_SCALE;
    if (f.is_known) {
        const uint32_t dst = rkvk_smem_addr(sm.o) + f.pair + (IS_K ? 0 : S::STAGE);
        const uint8_t *rows = f.k, *scales = f.k;
        if (!IS_K)
            rows += rkvk_alone_to_v<S>(a.geom, f.cell);
        if (SCALE > 0)
            scales += f.to_scales + (IS_K ? 0 : rkvk_alone_to_v_scales<S>(a.geom, f.cell));
        if (f.is_whole) {
            rkvk_alone_copy<ROW, PITCH, SCALE>(dst, rows, scales);
        } else {
            const rkvk_leaf &leaf = sm.queue.leaf[f.leaf % RKVK_QUEUE];
            rkvk_alone_copy_some<ROW, PITCH, SCALE>(dst, rows - rkvk_lane() * 16, scales - rkvk_alone_scale_at<SCALE>(),
                                                    f.cell, leaf.c0, leaf.c1);
        }
    }
    rkvk_copy_commit();
}

template <typename P>
static __device__ __forceinline__ void rkvk_alone_step(rkvk_alone_feed &f)
{
    f.pair = f.pairs - f.pair;
}

template <typename P>
static __device__ __forceinline__ void rkvk_alone_begin(rkvk_stream_smem<P> &sm, rkvk_alone_feed &f,
                                                        const rkvi_attend_args &a)
{
    f.leaf = (uint32_t)rkvk_warp();
    f.round = 0;
    rkvk_alone_enter<P>(f, sm.queue, a);
#pragma unroll 1
    for (uint32_t i = 0; i <= (uint32_t)f.is_double; i++) {
        rkvk_alone_put<P, true>(sm, f, a);
        rkvk_alone_put<P, false>(sm, f, a);
        rkvk_alone_next<P>(f, sm.queue, a);
        rkvk_alone_step<P>(f);
    }
}

/* The piece to read next is here. */
static __device__ __forceinline__ void rkvk_alone_take(const rkvk_alone_feed &f)
{
    if (f.is_double)
        rkvk_copy_wait<3>();
    else
        rkvk_copy_wait<1>();
    __syncwarp();
}

/* -------------------------------------------------------------------- a leaf */

/* What a warp has of a leaf: as rkvk_sub_state. */
template <typename P>
struct rkvk_alone_state {
    float o[P::S::VT][4];
    float m[2], l[2];
};

template <typename P>
static __device__ __forceinline__ void rkvk_alone_clear(rkvk_alone_state<P> &leaf)
{
    leaf.m[0] = leaf.m[1] = rkvk_empty_m();
    leaf.l[0] = leaf.l[1] = 0.0f;
#pragma unroll
    for (int v = 0; v < P::S::VT; v++)
        leaf.o[v][0] = leaf.o[v][1] = leaf.o[v][2] = leaf.o[v][3] = 0.0f;
}

/* A sub's m and l join the leaf's, whose O is made relative to the maximum of both; `e`: what the sub's O is
 * multiplied by.  Most often the maximum stays, and all factors of the leaf are 1. */
template <typename P>
static __device__ __forceinline__ void rkvk_alone_weigh(rkvk_alone_state<P> &leaf, const rkvk_sub_state<P> &st,
                                                        float (&e)[2])
{
    float f[2];
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const float top = fmaxf(leaf.m[c], st.m[0][c]), base = top == rkvk_empty_m() ? 0.0f : top;
        f[c] = rkvk_exp2(__fadd_rn(leaf.m[c], -base));
        e[c] = rkvk_exp2(__fadd_rn(st.m[0][c], -base));
        leaf.l[c] = __fmaf_rn(st.l[0][c], e[c], __fmul_rn(leaf.l[c], f[c]));
        leaf.m[c] = top;
    }
    if (__any_sync(0xffffffffu, f[0] != 1.0f || f[1] != 1.0f))
#pragma unroll
        for (int v = 0; v < P::S::VT; v++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                leaf.o[v][j] = __fmul_rn(leaf.o[v][j], f[j & 1]);
}

/* The sub's O, some tiles of dims at a time, for registers' sake. */
template <typename P>
static __device__ __forceinline__ void rkvk_alone_output(rkvk_alone_state<P> &leaf, const uint2 (&p)[2][1],
                                                         const uint8_t *stage, const float (&e)[2])
{
    using S = typename P::S;
    constexpr int CT = S::VT % 4 == 0 ? 4 : S::VT;
    const int lane = rkvk_lane();
#pragma unroll
    for (int c = 0; c < S::VT; c += CT) {
        float o[1][CT][4];
#pragma unroll
        for (int v = 0; v < CT; v++)
            o[0][v][0] = o[0][v][1] = o[0][v][2] = o[0][v][3] = 0.0f;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint8_t *rows = stage + i * 16 * S::V_PITCH;
            if constexpr (S::V_HAS_SCALES)
                rkvk_quant_output<S::TV, CT / 2, S::V_PITCH, S::V_SCALE, 1, CT>(
                    o, {rows, stage + 32 * S::V_PITCH + i * 16 * S::V_SCALE + c}, p[i], c / 2, 0, lane);
            else
                rkvk_v_output<S::TV, CT, S::V_PITCH, 1, CT>(o, rows, p[i], c, 0, lane);
        }
#pragma unroll
        for (int v = 0; v < CT; v++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                leaf.o[c + v][j] = __fmaf_rn(o[0][v][j], e[j & 1], leaf.o[c + v][j]);
    }
}

/* The leaf's columns to shared memory: dims 2g and 2g + 1 of a tile are the lane's. */
template <typename P>
static __device__ __forceinline__ void rkvk_alone_give(rkvk_stream_smem<P> &sm, const rkvk_alone_state<P> &leaf,
                                                       uint8_t *to)
{
    static_assert(P::S::TV != RKV_TYPE_F16 && P::S::TV != RKV_TYPE_BF16, "rkvk_v_dim");
    const int lane = rkvk_lane(), g = lane >> 2;
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const int column = 2 * (lane & 3) + c;
        float *row = reinterpret_cast<float *>(to) + column * P::JOIN_PITCH + 2 * g;
#pragma unroll
        for (int v = 0; v < P::S::VT; v++)
            *reinterpret_cast<float2 *>(row + v * 16) = make_float2(leaf.o[v][c], leaf.o[v][c + 2]);
        if (g == 0)
            sm.ml[rkvk_warp()][0][column] = make_float2(leaf.m[c], leaf.l[c]);
    }
}

/* Does each column that is there see all that is read? */
template <typename P>
static __device__ __forceinline__ bool rkvk_alone_all_seen(const rkvk_sub_state<P> &st, const rkvk_stream_work &w,
                                                           const rkvk_leaf &leaf)
{
    const uint32_t all = leaf.c0 | (uint32_t)leaf.c1 << 16, column = 2 * (uint32_t)(rkvk_lane() & 3);
    return __all_sync(0xffffffffu, (st.sees[0][0] == all || column >= w.n_columns) &&
                                       (st.sees[0][1] == all || column + 1 >= w.n_columns));
}

/* The last sub of the leaf that has tiles. */
template <typename S>
static __device__ __forceinline__ uint32_t rkvk_alone_last(const rkvk_leaf &leaf, uint32_t leaf_cells)
{
    uint32_t last = RKVK_SUBS - 1;
    if (!rkvk_leaf_is_whole<S>(leaf))
        while (rkvk_sub_of<S>(leaf, leaf_cells, last).n == 0)
            last--;
    return last;
}

/* Where O of a leaf lies in a pair; both stages, or V's alone. */
template <typename P>
struct rkvk_alone_room {
    static constexpr int BYTES = 8 * P::JOIN_PITCH * (int)sizeof(float);
    static constexpr bool NEEDS_K = BYTES > P::S::STAGE;
    static constexpr int AT = NEEDS_K ? 0 : P::S::STAGE;
    static_assert(BYTES <= 2 * P::S::STAGE, "O of a leaf");
};

/* What the warp has at hand for the subs of a leaf. */
template <typename P>
struct rkvk_alone_own {
    rkvk_own_q<P::S::STEPS> q;
    float scale;
    bool is_last; /* the sub at hand */
};

/* What is known of a sub that is read, where not all of its leaf is, or not by all columns. */
struct rkvk_alone_part {
    rkvk_sub sub;
    const rkvk_leaf *leaf;
};

/* One sub: its K and V are read, and, but for the leaf's last one, the next ones asked for.  `part`: null where
 * each column sees all cells, and there is no softcap. */
template <typename P, bool ALL>
static __device__ __forceinline__ void rkvk_alone_sub(rkvk_stream_smem<P> &sm, rkvk_alone_state<P> &sum,
                                                      const rkvi_attend_args &a, rkvk_alone_feed &f,
                                                      const rkvk_alone_own<P> &own, const rkvk_alone_part *part)
{
    using S = typename P::S;
    const bool is_last = own.is_last;
    rkvk_sub_state<P> st;
    float s[2][1][4];
    uint2 p[2][1];
    uint8_t *const ring = reinterpret_cast<uint8_t *>(sm.o);
    rkvk_alone_take(f);
    const uint8_t *k = ring + f.pair;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        rkvk_scores_clear<1>(s[i]);
        if constexpr (S::K_HAS_SCALES)
            rkvk_quant_scores<S::TK, S::STEPS / 2, S::K_PITCH, S::K_SCALE, 1>(
                s[i], {k + i * 16 * S::K_PITCH, k + 32 * S::K_PITCH + i * 16 * S::K_SCALE}, own.q, rkvk_lane());
        else
            rkvk_scores<S::TK, S::K_PITCH, S::STEPS, 1>(s[i], k + i * 16 * S::K_PITCH, own.q, rkvk_lane());
    }
    if (!is_last || !rkvk_alone_room<P>::NEEDS_K) {
        __syncwarp();
        rkvk_alone_put<P, true>(sm, f, a);
    } else {
        rkvk_copy_commit();
    }
    if constexpr (ALL) {
        rkvk_sub_scale<P>(s, __fmul_rn(own.scale, RKVK_LOG2E));
    } else {
        rkvk_leaf_sees<P>(st, sm, *part->leaf, 0);
        rkvk_sub_mask<P>(st, s, a, own.scale, part->sub);
    }
    rkvk_sub_weigh<P>(st, s, p);
    float e[2];
    rkvk_alone_weigh<P>(sum, st, e);
    rkvk_alone_take(f);
    uint8_t *const v = ring + f.pair + S::STAGE;
    if constexpr (!ALL && S::V_HAS_SCALES)
#pragma unroll
        for (int i = 0; i < 2; i++)
            rkvk_quant_clear<S::DV / 32>(v + 32 * S::V_PITCH + i * 16 * S::V_SCALE,
                                         (int)part->leaf->c0 - (int)part->sub.cell - i * 128,
                                         (int)part->leaf->c1 - (int)part->sub.cell - i * 128, rkvk_lane());
    rkvk_alone_output<P>(sum, p, v, e);
    __syncwarp();
    if (!is_last) {
        rkvk_alone_put<P, false>(sm, f, a);
        rkvk_alone_next<P>(f, sm.queue, a);
        rkvk_alone_step<P>(f);
    }
}

template <typename P>
static __device__ __forceinline__ void rkvk_alone_leaf(rkvk_stream_smem<P> &sm, const rkvi_attend_args &a,
                                                       const rkvk_stream_work &w, rkvk_alone_feed &f,
                                                       const rkvk_place<P> &at, uint32_t cur)
{
    using S = typename P::S;
    const rkvk_leaf &leaf = sm.queue.leaf[cur % RKVK_QUEUE];
    rkvk_sub_state<P> st;
    rkvk_alone_state<P> sum;
    rkvk_alone_own<P> own = {{}, at.scale, false};
#pragma unroll
    for (int i = 0; i < S::STEPS; i++)
        own.q.b[i] = rkvk_q_part(at.q, i, rkvk_lane());
    rkvk_leaf_sees<P>(st, sm, leaf, 0);
    rkvk_alone_clear<P>(sum);
    if (a.softcap == 0.0f && rkvk_leaf_is_whole<S>(leaf) && rkvk_alone_all_seen<P>(st, w, leaf)) {
#pragma unroll 1
        for (uint32_t round = 0; round < RKVK_SUBS; round++) {
            own.is_last = round == RKVK_SUBS - 1;
            rkvk_alone_sub<P, true>(sm, sum, a, f, own, nullptr);
        }
    } else {
        const uint32_t last = rkvk_alone_last<S>(leaf, a.geom.leaf_cells);
#pragma unroll 1
        for (uint32_t round = 0; round <= last; round++) {
            const rkvk_alone_part part = {rkvk_sub_of<S>(leaf, a.geom.leaf_cells, round), &leaf};
            if (part.sub.n == 0)
                continue;
            own.is_last = round == last;
            rkvk_alone_sub<P, false>(sm, sum, a, f, own, &part);
        }
    }
    uint8_t *const to = reinterpret_cast<uint8_t *>(sm.o) + f.pair + rkvk_alone_room<P>::AT;
    rkvk_alone_give<P>(sm, sum, to);
    if (rkvk_lane() == 0)
        sm.given[rkvk_warp()] = to;
}

/* The stages that the leaf was in are free again. */
template <typename P>
static __device__ __forceinline__ void rkvk_alone_go_on(rkvk_stream_smem<P> &sm, rkvk_alone_feed &f,
                                                        const rkvi_attend_args &a)
{
    if (rkvk_alone_room<P>::NEEDS_K)
        rkvk_alone_put<P, true>(sm, f, a);
    rkvk_alone_put<P, false>(sm, f, a);
    rkvk_alone_next<P>(f, sm.queue, a);
    rkvk_alone_step<P>(f);
}

/* ----------------------------------------------------------------- all leaves */

/* The warp's column of the leaf that warp `from` has given. */
template <typename P>
static __device__ __forceinline__ void rkvk_leaf_take(rkvk_node_state<P> &x, const rkvk_stream_smem<P> &sm, int from)
{
    static_assert(P::J == 1 && P::H == 1 && P::NC == 1, "all dims of a column in a row");
    const int column = rkvk_warp(), lane = rkvk_has_elements<P>() ? rkvk_lane() : 0;
    const float2 ml = sm.ml[from][0][column];
    x.m[0][0] = ml.x;
    x.l[0][0] = ml.y;
    rkvk_vec_load<P::VEC>(x.o[0][0][0], reinterpret_cast<const float *>(sm.given[from]) + column * P::JOIN_PITCH +
                                            lane * P::VEC);
}

/* x = the node before, and x: as rkvk_pending_join, where neither is empty. */
template <typename P>
static __device__ __forceinline__ void rkvk_node_join(rkvk_node_state<P> &x, const rkvk_node_state<P> &before)
{
    const rkvk_factors f = rkvk_merge_factors(before.m[0][0], x.m[0][0]);
    x.l[0][0] = rkvk_merge_value(f, before.l[0][0], x.l[0][0]);
    x.m[0][0] = f.m;
#pragma unroll
    for (int i = 0; i < P::VEC; i++)
        x.o[0][0][0][i] = rkvk_merge_value(f, before.o[0][0][0][i], x.o[0][0][0][i]);
}

/* Do the leaves from `cur` on make a node of the tree, and has each something of the warp's column? */
template <typename P>
static __device__ __forceinline__ bool rkvk_alone_is_node(const rkvk_stream_smem<P> &sm, uint32_t cur, uint32_t left)
{
    constexpr uint32_t N = RKVK_STREAM_WARPS;
    const uint64_t first = sm.queue.leaf[cur % RKVK_QUEUE].number;
    if (left < N || first % N != 0 || sm.queue.leaf[(cur + N - 1) % RKVK_QUEUE].number != first + N - 1)
        return false;
    return __all_sync(0xffffffffu, sm.ml[rkvk_lane() % N][0][rkvk_warp()].x != rkvk_empty_m());
}

/* Such leaves. */
template <typename P>
static __device__ __forceinline__ void rkvk_leaves_take(rkvk_node_state<P> &x, const rkvk_stream_smem<P> &sm,
                                                        float unit)
{
    rkvk_node_state<P> y[RKVK_STREAM_WARPS];
#pragma unroll
    for (int i = 0; i < RKVK_STREAM_WARPS; i++) {
        rkvk_leaf_take<P>(y[i], sm, i);
        rkvk_leaf_finish<P>(y[i], unit);
    }
#pragma unroll
    for (int step = 1; step < RKVK_STREAM_WARPS; step *= 2)
#pragma unroll
        for (int i = 2 * step - 1; i < RKVK_STREAM_WARPS; i += 2 * step)
            rkvk_node_join<P>(y[i], y[i - step]);
    x = y[RKVK_STREAM_WARPS - 1];
}

/* The warp's column of the leaves that the block has, which are queued from `cur` on; after the last one, the
 * item's node goes to its slot. */
template <typename P>
static __device__ __forceinline__ void rkvk_alone_tree(const rkvk_stream_smem<P> &sm, const rkvi_attend_args &a,
                                                       const rkvk_stream_work &w, rkvk_pending_list &list,
                                                       uint32_t cur)
{
    constexpr uint32_t N = RKVK_STREAM_WARPS;
    rkvk_node_state<P> x;
    const float unit = rkvk_unit<P::S::TV>(a.geom.v_scale);
    const uint32_t left = sm.queue.n_queued - cur, here = left < N ? left : N;
    const uint64_t first = sm.queue.leaf[cur % RKVK_QUEUE].number;
    const bool is_node = rkvk_alone_is_node<P>(sm, cur, left);
#pragma unroll 1
    for (uint32_t i = 0; i < here; i++) {
        if (is_node) {
            rkvk_leaves_take<P>(x, sm, unit);
            i = N - 1;
        } else {
            rkvk_leaf_take<P>(x, sm, (int)i);
            rkvk_leaf_finish<P>(x, unit);
        }
        const bool more = i + 1 < left;
        const uint64_t next = more ? sm.queue.leaf[(cur + i + 1) % RKVK_QUEUE].number : 0;
        rkvk_pending_add<P>(x, a, w, list, is_node ? first : sm.queue.leaf[(cur + i) % RKVK_QUEUE].number, more, next);
        if (!more)
            rkvk_node_put<P>(x, 0, 0, rkvk_slot_at<P>(a, w, (uint32_t)rkvk_warp()));
    }
}

/* All leaves of the item.  False: they are too few, or there is no room, and nothing is done. */
template <typename P>
static __device__ __forceinline__ bool rkvk_stream_alone(rkvk_stream_smem<P> &sm, const rkvi_attend_args &a,
                                                         const rkvk_stream_work &w, const rkvk_place<P> &at)
{
    constexpr uint32_t pair = 2 * P::S::STAGE;
    const uint32_t warp = (uint32_t)rkvk_warp();
    const uint32_t room = (w.rings_bytes + (uint32_t)sizeof(sm.o)) / RKVK_STREAM_WARPS;
    if (room < pair || w.walk.leaf1 - w.walk.leaf0 < RKVK_ALONE_LEAST || sm.queue.n_shown == 0)
        return false;
    rkvk_alone_feed f = {};
    f.is_double = room >= 2 * pair;
    f.pair = warp * (f.is_double ? 2 * pair : pair);
    f.pairs = 2 * f.pair + (f.is_double ? pair : 0);
    rkvk_pending_list list = {0, 0};
    rkvk_alone_begin<P>(sm, f, a);
#pragma unroll 1
    for (uint32_t cur = 0; (int32_t)(sm.queue.n_shown - cur) > 0; cur += RKVK_STREAM_WARPS) {
        const bool has_leaf = (int32_t)(sm.queue.n_shown - cur - warp) > 0;
        if (has_leaf)
            rkvk_alone_leaf<P>(sm, a, w, f, at, cur + warp);
        if (warp == 0)
            rkvk_queue_fill(sm.queue, a, w.walk, cur);
        __syncthreads();
        rkvk_queue_show(sm.queue);
        if (warp < w.n_columns)
            rkvk_alone_tree<P>(sm, a, w, list, cur);
        __syncthreads();
        if (has_leaf)
            rkvk_alone_go_on<P>(sm, f, a);
    }
    return true;
}

#endif
