/* SPDX-License-Identifier: MIT
 *
 * rkvk_stream.cuh: shapes, shared memory and streams of attend_stream.cuh.
 *
 * A leaf's tiles of 16 cells are dealt out to 8 subs: tile i to sub i % 8.  A
 * warp, or H warps together (an owner), streams the tiles of its subs through a
 * ring of its own in shared memory, leaf after leaf, by asynchronous copies in
 * pieces: 16 rows, 256 bytes of each at most.  Of each sub all K comes before
 * all V.  No other owner is waited for:
 *
 *     consumed ....... out (ahead pieces on their way or here) ....... in
 *
 * An owner of one warp fills a stage as soon as it has read it.  One of several
 * warps meets at a barrier of its own once a piece: behind it the piece is there
 * for all, and the stage of the piece before is free.
 */
#ifndef RKVK_STREAM_CUH
#define RKVK_STREAM_CUH

#include "rkvk_leaves.cuh"
#include "rkvk_quant.cuh"

#define RKVK_SUBS 8          /* of a leaf: part of the bits */
#define RKVK_STREAM_WARPS 8
#ifndef RKVK_ALONE_LEAST
#define RKVK_ALONE_LEAST RKVK_STREAM_WARPS /* leaves of a run whose warps take one each; tests set less */
#endif
#define RKVK_STREAM_THREADS (32 * RKVK_STREAM_WARPS)
#define RKVK_RING_MOST 8u    /* stages of an owner */
#define RKVK_RING_LEAST 1u   /* stages a warp: two for an owner of several */

/* Pieces of a row: a whole number of steps of 16 elements each. */
static __host__ __device__ constexpr int rkvk_pieces(int row_bytes, int step_bytes, int most_bytes)
{
    int n = (row_bytes + most_bytes - 1) / most_bytes;
    while (row_bytes / step_bytes % n != 0)
        n++;
    return n;
}

template <typename SHAPE, int CHUNKS_WARP, int WARPS_COLUMNS, int BLOCKS_SM, bool IS_ALONE>
struct rkvk_stream_path;

template <typename SHAPE, int CHUNKS, int GROUPS>
struct rkvk_wide_path;

template <bool FIRST, typename A, typename B>
struct rkvk_either {
    using type = A;
};

template <typename A, typename B>
struct rkvk_either<false, A, B> {
    using type = B;
};

template <rkv_type TYPE_K, rkv_type TYPE_V, int DIM_K, int DIM_V>
struct rkvk_stream_shape {
    static constexpr rkv_type TK = TYPE_K, TV = TYPE_V;
    static constexpr int DK = DIM_K, DV = DIM_V;
    static constexpr int D = rkvk_max(DK, DV);
    static constexpr int STEPS = DK / 16, V_TILES = DV / 16;
    static constexpr int MT = D <= 128 ? 2 : 1;  /* tiles of a sub, at most: leaves of 256 cells, else 128 */
    static constexpr int HD = D > 256 ? 2 : 1;   /* warps that share out the dims of O */

    static constexpr bool K_HAS_SCALES = rkvk_has_scales(TK), V_HAS_SCALES = rkvk_has_scales(TV);
    static constexpr int K_ROW = rkvk_row_bytes(TK, DK), V_ROW = rkvk_row_bytes(TV, DV);
    static constexpr int K_SCALE = rkvk_scale_bytes(TK, DK), V_SCALE = rkvk_scale_bytes(TV, DV);
    static constexpr int MOST = D > 192 ? 128 : 256; /* bytes of a row in a piece: smaller ones where stages are few */
    static constexpr int KP = rkvk_pieces(K_ROW, rkvk_row_bytes(TK, K_HAS_SCALES ? 32 : 16), MOST);
    static constexpr int VP = rkvk_pieces(V_ROW, rkvk_row_bytes(TV, V_HAS_SCALES ? 32 : 16), MOST);
    static constexpr int K_PIECE = K_ROW / KP, V_PIECE = V_ROW / VP;
    static constexpr int K_PITCH = rkvk_pitch(K_PIECE), V_PITCH = rkvk_pitch(V_PIECE);
    /* Tiles of cells in a piece: bytes and nibbles are few.  Scales, of all the row, lie behind the piece. */
    static constexpr bool K_IS_SMALL = TK != RKV_TYPE_F16 && TK != RKV_TYPE_BF16;
    static constexpr bool V_IS_SMALL = TV != RKV_TYPE_F16 && TV != RKV_TYPE_BF16;
    static constexpr int KC = K_IS_SMALL ? MT : 1, VC = V_IS_SMALL ? MT : 1;
    static constexpr int STAGE = 16 * rkvk_max(KC * (K_PITCH + K_SCALE), VC * (V_PITCH + V_SCALE));

    static constexpr int VT = V_TILES / HD; /* tiles of a warp's O */

    /* For up to 8, 16 and 32 columns in one go (16 for larger dims): O and what else there is must stay in
     * registers, so more columns have fewer blocks a multiprocessor, or warps side by side. */
    template <int NC, int HC, int BLOCKS, bool IS_ALONE = false>
    using path = rkvk_stream_path<rkvk_stream_shape, NC, HC, BLOCKS, IS_ALONE>;
    /* Long runs may have a leaf a warp (rkvk_stream_alone.cuh): where cells are few bytes, joining each leaf's
     * subs takes longer than reading them. */
    static constexpr bool MAY_BE_ALONE = K_IS_SMALL && V_IS_SMALL && D <= 128;
    /* Subs that are added up at a time, relative to their common maximum: part of the bits, and as many as
     * each path has at hand (rkvk_stream_path::U); one by one where a warp may have them all. */
    static constexpr int GROUP = MAY_BE_ALONE ? 1 : D <= 192 ? 8 : D <= 256 ? 4 : 2;
    /* Conversions of quants need the registers that a third block would take. */
    static constexpr int NARROW_BLOCKS = D <= 64 && !K_IS_SMALL && !V_IS_SMALL ? 3 : 2;
    using narrow = path<1, 1, NARROW_BLOCKS, MAY_BE_ALONE>;
    using middle = typename rkvk_either<D <= 192, path<2, 1, 1, MAY_BE_ALONE>, path<1, 2, 2>>::type;
    using wide = typename rkvk_either<D <= 192, path<4, 1, 1>, middle>::type;
    using wide16 = rkvk_wide_path<rkvk_stream_shape, 2, 1>; /* attend_wide.cuh */
    using wide32 = rkvk_wide_path<rkvk_stream_shape, 4, 1>;
    using wide96 = rkvk_wide_path<rkvk_stream_shape, 4, 3>;

    static_assert(DK % 16 == 0 && DV % (16 * HD) == 0, "head dims");
    static_assert(V_TILES / VP % HD == 0, "each piece is shared out");
    static_assert(!V_HAS_SCALES || V_TILES / VP / HD % 2 == 0, "by whole blocks");
    static_assert((KC == 1 || KP == 1) && (VC == 1 || VP == 1), "a piece is one tile, or all of the rows");
};

/* How columns are laid over warps: chunks of 8, NC in a warp, HC warps side by
 * side.  Warp w is part h = w / U of owner w % U. */
template <typename SHAPE, int CHUNKS_WARP, int WARPS_COLUMNS, int BLOCKS_SM, bool IS_ALONE>
struct rkvk_stream_path {
    using S = SHAPE;
    using one = rkvk_stream_path<SHAPE, 1, 1, BLOCKS_SM, IS_ALONE>; /* of one chunk */
    static constexpr int NC = CHUNKS_WARP, HC = WARPS_COLUMNS, HD = S::HD, H = HC * HD;
    static constexpr int U = RKVK_STREAM_WARPS / H;
    static constexpr int ROUNDS = RKVK_SUBS / U; /* subs of an owner, one after another */
    static constexpr int TP = S::V_TILES / S::VP, TW = TP / HD; /* tiles of a piece; of these, a warp's */
    static constexpr bool ALONE = IS_ALONE;
    /* O of a warp is exchanged so many tiles of dims at a time. */
    static constexpr bool IS_ROOMY = BLOCKS_SM == 1 || S::D == 256;
    static constexpr int CT = ALONE || S::VT % 4 != 0 ? S::VT : IS_ROOMY && S::VT % 8 == 0 ? 8 : 4;
    static constexpr int J = S::VT / CT;
    static constexpr int JOIN_PITCH = CT * 16 + 4;    /* columns of a fragment in different banks */
    static constexpr int VEC = CT * 16 <= 64 ? 2 : 4; /* of a row of CT * 16, a lane's */
    static constexpr uint32_t COLUMNS = 8 * NC * HC;
    static constexpr uint32_t Q_BYTES = S::STEPS * NC * HC * 32 * (uint32_t)sizeof(uint2);
    static constexpr int BLOCKS = BLOCKS_SM; /* of a multiprocessor */
    static constexpr int THREADS = RKVK_STREAM_THREADS;

    static_assert(U % S::GROUP == 0, "groups of subs");
};

/* Followed by the rings, the stack of pending nodes, and the columns' q.  With a leaf a warp, the rings begin
 * at o. */
template <typename P>
struct rkvk_stream_smem {
    float2 ml[RKVK_STREAM_WARPS][P::NC][8];               /* [warp][chunk][column] */
    rkvk_reach reach[P::COLUMNS];                         /* of each column */
    rkvk_queue queue;
    const uint8_t *given[RKVK_STREAM_WARPS];              /* rkvk_stream_alone.cuh: each warp's leaf */
    alignas(16) float o[RKVK_STREAM_WARPS][8][P::JOIN_PITCH]; /* of a chunk of columns, some tiles */
};

/* What all threads know of their work. */
struct rkvk_stream_work {
    const rkvi_item *item;
    rkvk_walk walk;
    uint32_t group;
    uint32_t column0, n_columns; /* of rows x group: this pass */
    uint8_t *region;
    uint32_t region_bytes;
    uint32_t depth;
    uint2 *q;                    /* [warp of columns][step][chunk][lane] */
    float *stack;
    uint32_t rings_bytes;
    /* attend_wide.cuh: the stack has room for all columns that there can be; 1: there are second places, 0: none */
    bool is_whole;
    uint32_t is_deep;
};

struct rkvk_stream_args {
    rkvi_attend_args a;
    uint32_t region_bytes; /* for q, stack and rings */
};

/* ------------------------------------------------------------------ streams */

/* The tiles of one sub of a leaf that are read. */
struct rkvk_sub {
    uint32_t cell; /* of the tile: the first one's first */
    uint32_t n;    /* 0, 1, 2: the second one 128 cells on */
};

template <typename S>
static __device__ __forceinline__ rkvk_sub rkvk_sub_of(const rkvk_leaf &leaf, uint32_t leaf_cells, uint32_t sub)
{
    const uint32_t leaf_at = leaf.c0 & ~(leaf_cells - 1); /* a power of two */
    const uint32_t first = leaf_at + sub * 16;
    const bool low = first < leaf.c1 && first + 16 > leaf.c0;
    const bool high = S::MT == 2 && first + 128 < leaf.c1 && first + 144 > leaf.c0;
    rkvk_sub s = {low ? first : first + 128, (uint32_t)low + (uint32_t)high};
    return s;
}

/* Are all its cells read, and is it as long as a piece? */
template <typename S>
static __device__ __forceinline__ bool rkvk_sub_is_whole(const rkvk_sub &sub, const rkvk_leaf &leaf)
{
    return sub.cell >= leaf.c0 && sub.cell + 16 + 128 * (sub.n - 1) <= leaf.c1 &&
           (rkvk_max(S::KC, S::VC) == 1 || sub.n == S::MT);
}

/* Where an owner's copies are. */
struct rkvk_feed {
    const uint8_t *k; /* of the sub's first tile */
    uint32_t to_v;    /* bytes from there to its V */
    uint32_t to_k_scales, to_v_scales; /* bytes from K to its scales, from V to its */
    uint32_t leaf;    /* counted as n_queued */
    uint32_t round;
    uint32_t piece, n_k, n; /* of the sub; 0 of 0: none entered */
    uint32_t cell;    /* of the tile: the sub's first */
    bool whole;       /* all the sub's cells are read */
    uint32_t ahead;   /* pieces under way or unread */
    uint32_t in, out; /* stages, in bytes from the owner's ring */
    uint32_t ring_bytes;
    uint32_t n_stages;
    uint32_t ring;    /* in shared memory */
};

/* A piece's 16 rows from `cell` on; cells outside [c0, c1) are zeros. */
template <int ROW, int PIECE, int PITCH, int THREADS, bool WHOLE>
static __device__ __forceinline__ void rkvk_feed_rows(uint32_t dst, const uint8_t *src, int thread, uint32_t cell,
                                                      uint32_t c0, uint32_t c1)
{
    constexpr int CHUNKS = PIECE / 16, ALL = 16 * CHUNKS, N = (ALL + THREADS - 1) / THREADS;
    constexpr bool even = THREADS % CHUNKS == 0; /* a thread stays in its place of the row */
#pragma unroll WHOLE ? N : 1
    for (int i = 0; i < N; i++) {
        const int at = i * THREADS + thread;
        const int row = even ? thread / CHUNKS + i * (THREADS / CHUNKS) : at / CHUNKS;
        const int chunk = even ? thread % CHUNKS : at % CHUNKS;
        const uint32_t c = cell + (uint32_t)row;
        const bool valid = WHOLE || (c >= c0 && c < c1);
        if (ALL % THREADS == 0 || at < ALL)
            rkvk_copy16_once(dst + (uint32_t)(row * PITCH + chunk * 16),
                             src + (valid ? (uint32_t)(row * ROW + chunk * 16) : 0u), valid, rkvk_once_policy());
    }
}

/* Scales of a tile: all of them, in one run. */
template <int BYTES, int THREADS>
static __device__ __forceinline__ void rkvk_feed_scales(uint32_t dst, const uint8_t *src, int thread, bool valid)
{
#pragma unroll
    for (int at = 0; at < BYTES; at += 16 * THREADS)
        if (BYTES - at >= 16 * THREADS || thread * 16 < BYTES - at)
            rkvk_copy16_once(dst + (uint32_t)(at + thread * 16), src + (valid ? (uint32_t)(at + thread * 16) : 0u),
                             valid, rkvk_once_policy());
}

/* To the owner's next sub. */
template <typename P>
static __device__ __forceinline__ void rkvk_feed_leave(rkvk_feed &f)
{
    if (++f.round == P::ROUNDS) {
        f.round = 0;
        f.leaf++;
    }
}

/* Enters the next sub that has tiles; false: none is queued. */
template <typename P>
static __device__ __forceinline__ bool rkvk_feed_enter(rkvk_feed &f, const rkvk_queue &q, const rkvi_attend_args &a,
                                                       uint32_t owner)
{
    using S = typename P::S;
    while ((int32_t)(q.n_shown - f.leaf) > 0) {
        const rkvk_leaf &leaf = q.leaf[f.leaf % RKVK_QUEUE];
        const rkvk_sub sub = rkvk_sub_of<S>(leaf, a.geom.leaf_cells, f.round * P::U + owner);
        if (sub.n > 0) {
            const uint64_t k = a.geom.k_off + (uint64_t)sub.cell * S::K_ROW;
            f.k = leaf.head + k;
            f.to_v = (uint32_t)(a.geom.v_off + (uint64_t)sub.cell * S::V_ROW - k);
            if (S::K_HAS_SCALES)
                f.to_k_scales = (uint32_t)(a.geom.k_scale_off + (uint64_t)sub.cell * S::K_SCALE - k);
            if (S::V_HAS_SCALES)
                f.to_v_scales = (uint32_t)(a.geom.v_scale_off - a.geom.v_off) - sub.cell * (S::V_ROW - S::V_SCALE);
            f.cell = sub.cell;
            f.piece = 0;
            f.n_k = S::KC == 2 ? 1 : sub.n * S::KP;
            f.n = f.n_k + (S::VC == 2 ? 1 : sub.n * S::VP);
            f.whole = rkvk_sub_is_whole<S>(sub, leaf);
            return true;
        }
        rkvk_feed_leave<P>(f);
    }
    return false;
}

/* A piece of ROW bytes a cell, or PARTS pieces to a row; TILES tiles. */
template <int ROW, int PITCH, int SCALE, int PARTS, int TILES, int THREADS>
static __device__ __forceinline__ void rkvk_feed_piece(const rkvk_feed &f, const rkvk_queue &q, const uint8_t *src,
                                                       uint32_t to_scales, uint32_t piece, int thread, uint32_t cell)
{
    constexpr int PIECE = ROW / PARTS;
    const rkvk_leaf &leaf = q.leaf[f.leaf % RKVK_QUEUE];
#pragma unroll
    for (int i = 0; i < TILES; i++) {
        const uint32_t tile = TILES == 1 ? piece / PARTS * 128 : (uint32_t)i * 128;
        const uint8_t *rows = src + tile * ROW + piece % PARTS * PIECE;
        const uint32_t dst = f.ring + f.in + (uint32_t)(i * 16 * PITCH), at = cell + tile;
        bool valid = true;
        if (f.whole) {
            rkvk_feed_rows<ROW, PIECE, PITCH, THREADS, true>(dst, rows, thread, 0, 0, 0);
        } else {
            rkvk_feed_rows<ROW, PIECE, PITCH, THREADS, false>(dst, rows, thread, at, leaf.c0, leaf.c1);
            valid = at < leaf.c1 && at + 16 > leaf.c0;
        }
        if constexpr (SCALE > 0)
            rkvk_feed_scales<16 * SCALE, THREADS>(f.ring + f.in + (uint32_t)(TILES * 16 * PITCH + i * 16 * SCALE),
                                                  src + to_scales + tile * SCALE, thread, valid);
    }
}

/* One piece more, if one is known. */
template <typename P>
static __device__ __forceinline__ void rkvk_feed_next(rkvk_feed &f, const rkvk_queue &q, const rkvi_attend_args &a,
                                                      uint32_t owner, int thread)
{
    using S = typename P::S;
    if (f.piece == f.n && !rkvk_feed_enter<P>(f, q, a, owner))
        return;
    const uint32_t cell = f.cell;
    const bool is_k = f.piece < f.n_k;
    if constexpr (S::K_ROW == S::V_ROW && S::K_SCALE == S::V_SCALE) /* less code */
        rkvk_feed_piece<S::K_ROW, S::K_PITCH, S::K_SCALE, S::KP, S::KC, 32 * P::H>(
            f, q, f.k + (is_k ? 0 : f.to_v), is_k ? f.to_k_scales : f.to_v_scales, f.piece - (is_k ? 0 : f.n_k),
            thread, cell);
    else if (is_k)
        rkvk_feed_piece<S::K_ROW, S::K_PITCH, S::K_SCALE, S::KP, S::KC, 32 * P::H>(f, q, f.k, f.to_k_scales, f.piece,
                                                                                  thread, cell);
    else
        rkvk_feed_piece<S::V_ROW, S::V_PITCH, S::V_SCALE, S::VP, S::VC, 32 * P::H>(
            f, q, f.k + f.to_v, f.to_v_scales, f.piece - f.n_k, thread, cell);
    rkvk_copy_commit();
    f.ahead++;
    f.in = f.in + S::STAGE == f.ring_bytes ? 0 : f.in + S::STAGE;
    if (++f.piece == f.n)
        rkvk_feed_leave<P>(f);
}

/* Fills what is free: with several warps, not the stage that others may still read. */
template <typename P>
static __device__ __forceinline__ void rkvk_feed_fill(rkvk_feed &f, const rkvk_queue &q, const rkvi_attend_args &a,
                                                      uint32_t owner, int thread)
{
    const uint32_t most = P::H == 1 ? f.n_stages : f.n_stages - 1;
    for (uint32_t before = f.ahead + 1; f.ahead < most && before != f.ahead;) {
        before = f.ahead;
        rkvk_feed_next<P>(f, q, a, owner, thread);
    }
}

/* The piece at `out` is here, for all the owner's warps. */
template <typename P>
static __device__ __forceinline__ void rkvk_feed_take(rkvk_feed &f, const rkvk_queue &q, const rkvi_attend_args &a,
                                                      uint32_t owner, int thread)
{
    rkvk_copy_wait_but(f.ahead - 1);
    if constexpr (P::H == 1) {
        __syncwarp();
    } else {
        rkvk_barrier(1 + owner, 32 * P::H);
        if (f.ahead < f.n_stages)
            rkvk_feed_next<P>(f, q, a, owner, thread);
    }
}

/* It has been read. */
template <typename P>
static __device__ __forceinline__ void rkvk_feed_release(rkvk_feed &f, const rkvk_queue &q, const rkvi_attend_args &a,
                                                         uint32_t owner, int thread)
{
    using S = typename P::S;
    f.ahead--;
    f.out = f.out + S::STAGE == f.ring_bytes ? 0 : f.out + S::STAGE;
    if constexpr (P::H == 1) {
        __syncwarp();
        rkvk_feed_next<P>(f, q, a, owner, thread);
    }
}

#endif
