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
 * The leaf's O is summed up in registers, for all columns, sub after sub (the sums of
 * rkvk_leaf_join, bit by bit).  At its end it lies in the stages of the last sub, a chunk of 8
 * columns after another; these stay unfilled until the block has met: warp c takes column c of
 * each chunk, of all 8 leaves, through the tree.
 */
#ifndef RKVK_STREAM_ALONE_CUH
#define RKVK_STREAM_ALONE_CUH

#include "rkvk_alone_feed.cuh"

/* -------------------------------------------------------------------- a leaf */

/* What a warp has of a leaf: as rkvk_sub_state. */
template <typename P>
struct rkvk_alone_state {
    float o[P::NC][P::S::VT][4];
    float m[P::NC][2], l[P::NC][2];
};

template <typename P>
static __device__ __forceinline__ void rkvk_alone_clear(rkvk_alone_state<P> &leaf)
{
#pragma unroll
    for (int n = 0; n < P::NC; n++) {
        leaf.m[n][0] = leaf.m[n][1] = rkvk_empty_m();
        leaf.l[n][0] = leaf.l[n][1] = 0.0f;
#pragma unroll
        for (int v = 0; v < P::S::VT; v++)
            leaf.o[n][v][0] = leaf.o[n][v][1] = leaf.o[n][v][2] = leaf.o[n][v][3] = 0.0f;
    }
}

/* A sub's m and l join the leaf's, whose O is made relative to the maximum of both; `e`: what the sub's O is
 * multiplied by.  Most often the maximum stays, and all factors of the leaf are 1. */
template <typename P>
static __device__ __forceinline__ void rkvk_alone_weigh(rkvk_alone_state<P> &leaf, const rkvk_sub_state<P> &st,
                                                        float (&e)[P::NC][2])
{
#pragma unroll
    for (int n = 0; n < P::NC; n++) {
        float f[2];
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const float top = fmaxf(leaf.m[n][c], st.m[n][c]), base = top == rkvk_empty_m() ? 0.0f : top;
            f[c] = rkvk_exp2(__fadd_rn(leaf.m[n][c], -base));
            e[n][c] = rkvk_exp2(__fadd_rn(st.m[n][c], -base));
            leaf.l[n][c] = __fmaf_rn(st.l[n][c], e[n][c], __fmul_rn(leaf.l[n][c], f[c]));
            leaf.m[n][c] = top;
        }
        if (__any_sync(0xffffffffu, f[0] != 1.0f || f[1] != 1.0f))
#pragma unroll
            for (int v = 0; v < P::S::VT; v++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    leaf.o[n][v][j] = __fmul_rn(leaf.o[n][v][j], f[j & 1]);
    }
}

/* The sub's O; some tiles of dims at a time, where registers are few. */
template <typename P>
static __device__ __forceinline__ void rkvk_alone_output(rkvk_alone_state<P> &leaf, const uint2 (&p)[2][P::NC],
                                                         const uint8_t *stage, const float (&e)[P::NC][2])
{
    using S = typename P::S;
    constexpr int CT = P::NC == 1 && S::VT % 4 == 0 ? 4 : S::VT;
    const int lane = rkvk_lane();
#pragma unroll
    for (int c = 0; c < S::VT; c += CT) {
        float o[P::NC][CT][4];
#pragma unroll
        for (int n = 0; n < P::NC; n++)
#pragma unroll
            for (int v = 0; v < CT; v++)
                o[n][v][0] = o[n][v][1] = o[n][v][2] = o[n][v][3] = 0.0f;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint8_t *rows = stage + i * 16 * S::V_PITCH;
            if constexpr (S::V_HAS_SCALES)
                rkvk_quant_output<S::TV, CT / 2, S::V_PITCH, S::V_SCALE, P::NC, CT>(
                    o, {rows, stage + 32 * S::V_PITCH + i * 16 * S::V_SCALE + c}, p[i], c / 2, 0, lane);
            else
                rkvk_v_output<S::TV, CT, S::V_PITCH, P::NC, CT>(o, rows, p[i], c, 0, lane);
        }
#pragma unroll
        for (int n = 0; n < P::NC; n++)
#pragma unroll
            for (int v = 0; v < CT; v++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    leaf.o[n][c + v][j] = __fmaf_rn(o[n][v][j], e[n][j & 1], leaf.o[n][c + v][j]);
    }
}

/* The leaf's columns of a chunk to shared memory: dims 2g and 2g + 1 of a tile are the lane's. */
template <typename P>
static __device__ __forceinline__ void rkvk_alone_give(rkvk_stream_smem<P> &sm, const rkvk_alone_state<P> &leaf,
                                                       uint8_t *to, uint32_t chunk)
{
    static_assert(P::S::TV != RKV_TYPE_F16 && P::S::TV != RKV_TYPE_BF16, "rkvk_v_dim");
    const int lane = rkvk_lane(), g = lane >> 2;
#pragma unroll
    for (int n = 0; n < P::NC; n++) {
        if ((uint32_t)n != chunk) /* in a loop, lest what follows be there for each */
            continue;
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const int column = 2 * (lane & 3) + c;
            float *row = reinterpret_cast<float *>(to) + column * P::JOIN_PITCH + 2 * g;
#pragma unroll
            for (int v = 0; v < P::S::VT; v++)
                *reinterpret_cast<float2 *>(row + v * 16) = make_float2(leaf.o[n][v][c], leaf.o[n][v][c + 2]);
            if (g == 0)
                sm.ml[rkvk_warp()][n][column] = make_float2(leaf.m[n][c], leaf.l[n][c]);
        }
    }
}

/* Does each column that is there see all that is read? */
template <typename P>
static __device__ __forceinline__ bool rkvk_alone_all_seen(const rkvk_sub_state<P> &st, const rkvk_stream_work &w,
                                                           const rkvk_leaf &leaf)
{
    const uint32_t all = leaf.c0 | (uint32_t)leaf.c1 << 16, column = 2 * (uint32_t)(rkvk_lane() & 3);
    bool own = true;
#pragma unroll
    for (int n = 0; n < P::NC; n++)
#pragma unroll
        for (int c = 0; c < 2; c++)
            own = own && (st.sees[n][c] == all || (uint32_t)(8 * n + c) + column >= w.n_columns);
    return __all_sync(0xffffffffu, own);
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
    typename rkvk_either<P::NC == 1, rkvk_own_q<P::S::STEPS>, const uint2 *>::type q;
    float scale;
    bool is_last; /* the sub at hand */
};

/* What is known of a sub that is read, where not all of its leaf is, or not by all columns. */
struct rkvk_alone_part {
    rkvk_sub sub;
    const rkvk_leaf *leaf;
};

/* Both tiles of a sub. */
template <typename P>
static __device__ __forceinline__ void rkvk_alone_scores(float (&s)[2][P::NC][4], const uint8_t *k,
                                                         const rkvk_alone_own<P> &own)
{
    using S = typename P::S;
    const int lane = rkvk_lane();
#pragma unroll
    for (int i = 0; i < 2; i++)
        rkvk_scores_clear<P::NC>(s[i]);
    const uint8_t *scales = k + 32 * S::K_PITCH;
    if constexpr (S::K_HAS_SCALES && P::NC > 1) {
        const rkvk_quant_rows rows[2] = {{k, scales}, {k + 16 * S::K_PITCH, scales + 16 * S::K_SCALE}};
        rkvk_quant_scores<S::TK, S::STEPS / 2, S::K_PITCH, S::K_SCALE, P::NC, 2>(s, rows, own.q, lane);
    } else {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint8_t *rows = k + i * 16 * S::K_PITCH;
            if constexpr (S::K_HAS_SCALES)
                rkvk_quant_scores<S::TK, S::STEPS / 2, S::K_PITCH, S::K_SCALE, P::NC>(
                    s[i], {rows, scales + i * 16 * S::K_SCALE}, own.q, lane);
            else
                rkvk_scores<S::TK, S::K_PITCH, S::STEPS, P::NC>(s[i], rows, own.q, lane);
        }
    }
}

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
    float s[2][P::NC][4];
    uint2 p[2][P::NC];
    uint8_t *const ring = reinterpret_cast<uint8_t *>(sm.o);
    rkvk_alone_take(f);
    const uint8_t *k = ring + f.pair;
    rkvk_alone_scores<P>(s, k, own);
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
    float e[P::NC][2];
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

/* Where the warp's leaf goes. */
template <typename P>
static __device__ __forceinline__ uint8_t *rkvk_alone_place(rkvk_stream_smem<P> &sm, const rkvk_alone_feed &f)
{
    return reinterpret_cast<uint8_t *>(sm.o) + f.pair + rkvk_alone_room<P>::AT;
}

template <typename P>
static __device__ __forceinline__ void rkvk_alone_leaf(rkvk_alone_state<P> &sum, rkvk_stream_smem<P> &sm,
                                                       const rkvi_attend_args &a, const rkvk_stream_work &w,
                                                       rkvk_alone_feed &f, const rkvk_place<P> &at, uint32_t cur)
{
    using S = typename P::S;
    const rkvk_leaf &leaf = sm.queue.leaf[cur % RKVK_QUEUE];
    rkvk_sub_state<P> st;
    rkvk_alone_own<P> own = {{}, at.scale, false};
    if constexpr (P::NC == 1)
#pragma unroll
        for (int i = 0; i < S::STEPS; i++)
            own.q.b[i] = rkvk_q_part(at.q, i, rkvk_lane());
    else
        own.q = at.q;
    rkvk_leaf_sees<P>(st, sm, leaf, 0);
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
    if (rkvk_lane() == 0)
        sm.given[rkvk_warp()] = rkvk_alone_place<P>(sm, f);
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
static __device__ __forceinline__ void rkvk_leaf_take(rkvk_node_state<typename P::one> &x,
                                                      const rkvk_stream_smem<P> &sm, int from, uint32_t chunk)
{
    static_assert(P::J == 1 && P::H == 1, "all dims of a column in a row");
    const int column = rkvk_warp(), lane = rkvk_has_elements<P>() ? rkvk_lane() : 0;
    const float2 ml = sm.ml[from][chunk][column];
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
static __device__ __forceinline__ bool rkvk_alone_is_node(const rkvk_stream_smem<P> &sm, uint32_t cur, uint32_t left,
                                                          uint32_t chunk)
{
    constexpr uint32_t N = RKVK_STREAM_WARPS;
    const uint64_t first = sm.queue.leaf[cur % RKVK_QUEUE].number;
    if (left < N || first % N != 0 || sm.queue.leaf[(cur + N - 1) % RKVK_QUEUE].number != first + N - 1)
        return false;
    return __all_sync(0xffffffffu, sm.ml[rkvk_lane() % N][chunk][rkvk_warp()].x != rkvk_empty_m());
}

/* Such leaves. */
template <typename P>
static __device__ __forceinline__ void rkvk_leaves_take(rkvk_node_state<typename P::one> &x,
                                                        const rkvk_stream_smem<P> &sm, float unit, uint32_t chunk)
{
    using ONE = typename P::one;
    rkvk_node_state<ONE> y[RKVK_STREAM_WARPS];
#pragma unroll
    for (int i = 0; i < RKVK_STREAM_WARPS; i++) {
        rkvk_leaf_take<P>(y[i], sm, i, chunk);
        rkvk_leaf_finish<ONE>(y[i], unit);
    }
#pragma unroll
    for (int step = 1; step < RKVK_STREAM_WARPS; step *= 2)
#pragma unroll
        for (int i = 2 * step - 1; i < RKVK_STREAM_WARPS; i += 2 * step)
            rkvk_node_join<ONE>(y[i], y[i - step]);
    x = y[RKVK_STREAM_WARPS - 1];
}

/* A chunk of columns, as work of its own: its pending nodes have a part of the stack. */
template <typename P>
static __device__ __forceinline__ rkvk_stream_work rkvk_alone_chunk(const rkvk_stream_work &w, uint32_t chunk)
{
    rkvk_stream_work one = w;
    if (P::NC > 1) {
        one.column0 += 8 * chunk;
        one.n_columns = w.n_columns - 8 * chunk < 8 ? w.n_columns - 8 * chunk : 8;
        one.stack += w.depth * 8 * chunk * (uint32_t)rkvk_pending_floats<typename P::S>();
    }
    return one;
}

/* The warp's column of a chunk, of the leaves that the block has, which are queued from `cur` on; after the last one,
 * the item's node goes to its slot. */
template <typename P>
static __device__ __forceinline__ void rkvk_alone_tree(const rkvk_stream_smem<P> &sm, const rkvi_attend_args &a,
                                                       const rkvk_stream_work &w, rkvk_pending_list &list,
                                                       uint32_t cur, uint32_t chunk)
{
    using ONE = typename P::one;
    constexpr uint32_t N = RKVK_STREAM_WARPS;
    rkvk_node_state<ONE> x;
    const float unit = rkvk_unit<P::S::TV>(a.geom.v_scale);
    const uint32_t left = sm.queue.n_queued - cur, here = left < N ? left : N;
    const uint64_t first = sm.queue.leaf[cur % RKVK_QUEUE].number;
    const bool is_node = rkvk_alone_is_node<P>(sm, cur, left, chunk);
#pragma unroll 1
    for (uint32_t i = 0; i < here; i++) {
        if (is_node) {
            rkvk_leaves_take<P>(x, sm, unit, chunk);
            i = N - 1;
        } else {
            rkvk_leaf_take<P>(x, sm, (int)i, chunk);
            rkvk_leaf_finish<ONE>(x, unit);
        }
        const bool more = i + 1 < left;
        const uint64_t next = more ? sm.queue.leaf[(cur + i + 1) % RKVK_QUEUE].number : 0;
        const uint64_t number = is_node ? first : sm.queue.leaf[(cur + i) % RKVK_QUEUE].number;
        rkvk_pending_add<ONE>(x, a, w, list, number, more, next);
        if (!more)
            rkvk_node_put<ONE>(x, 0, 0, rkvk_slot_at<ONE>(a, w, (uint32_t)rkvk_warp()));
    }
}

/* The warps' leaves meet, chunk after chunk of columns. */
template <typename P>
static __device__ __forceinline__ void rkvk_alone_meet(rkvk_stream_smem<P> &sm, const rkvk_alone_state<P> &leaf,
                                                       const rkvi_attend_args &a, const rkvk_stream_work &w,
                                                       rkvk_pending_list &list, uint32_t cur, uint8_t *to)
{
    const rkvk_pending_list before = list;
    const uint32_t warp = (uint32_t)rkvk_warp();
#pragma unroll 1
    for (uint32_t chunk = 0; chunk < P::NC && 8 * chunk < w.n_columns; chunk++) {
        if (to)
            rkvk_alone_give<P>(sm, leaf, to, chunk);
        __syncthreads();
        if (chunk == 0)
            rkvk_queue_show(sm.queue);
        rkvk_pending_list after = before; /* the same for all chunks */
        if (8 * chunk + warp < w.n_columns) {
            rkvk_alone_tree<P>(sm, a, rkvk_alone_chunk<P>(w, chunk), after, cur, chunk);
            list = after;
        }
        __syncthreads();
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
        rkvk_alone_state<P> leaf;
        rkvk_alone_clear<P>(leaf);
        if (has_leaf)
            rkvk_alone_leaf<P>(leaf, sm, a, w, f, at, cur + warp);
        if (warp == 0)
            rkvk_queue_fill(sm.queue, a, w.walk, cur);
        rkvk_alone_meet<P>(sm, leaf, a, w, list, cur, has_leaf ? rkvk_alone_place<P>(sm, f) : nullptr);
        if (has_leaf)
            rkvk_alone_go_on<P>(sm, f, a);
    }
    return true;
}

#endif
