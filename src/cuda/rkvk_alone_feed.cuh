/* SPDX-License-Identifier: MIT
 *
 * rkvk_alone_feed.cuh: how a warp that has a leaf alone asks for its K and V (rkvk_stream_alone.cuh).
 */
#ifndef RKVK_ALONE_FEED_CUH
#define RKVK_ALONE_FEED_CUH

#include "rkvk_stream_sub.cuh"

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

#endif
