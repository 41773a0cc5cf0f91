/* SPDX-License-Identifier: MIT
 *
 * rkvk_prefill_feed.cuh: the warpgroup that loads, of prefill on sm_90a
 * (attend_prefill_wg.cuh has the whole picture).
 *
 * Each of its warps walks the item's leaves by itself, a lane a leaf, and takes
 * those that some row here sees, block by block.  16-bit types are copied
 * straight to their places; the others are copied raw one block ahead, into places
 * that only the copying thread reads, and expanded to f16 from there.
 */
#ifndef RKVK_PREFILL_FEED_CUH
#define RKVK_PREFILL_FEED_CUH

#include "rkvk_leaves.cuh"
#include "rkvk_pipe.cuh"
#include "rkvk_plane.cuh"
#include "rkvk_wgmma.cuh"

#define RKVK_WG 128     /* threads of a warpgroup */
#define RKVK_WG_FOLD 2  /* warpgroups that compute, 64 rows each */
#define RKVK_WG_ROWS (64 * RKVK_WG_FOLD)
#define RKVK_WG_SMEM (227 * 1024) /* of a block */

/* Units of 16 stored bytes of a block's plane, and how many a thread takes. */
template <rkv_type TYPE, int DIM, int BC>
struct rkvk_raw {
    static constexpr bool DIRECT = TYPE == RKV_TYPE_F16 || TYPE == RKV_TYPE_BF16;
    static constexpr int ROW = rkvk_row_bytes(TYPE, DIM), SCALE = rkvk_scale_bytes(TYPE, DIM);
    static constexpr int PER_ROW = ROW / 16, UNITS = BC * PER_ROW, N = (UNITS + RKVK_WG - 1) / RKVK_WG;
    static constexpr int BYTES = DIRECT ? 0 : N * RKVK_WG * 16;
    static constexpr int CELLS = BC;
    static constexpr int SCALES = rkvk_has_scales(TYPE) ? N : 1;
    static_assert(ROW % 16 == 0, "whole units");
};

template <rkv_type TYPE_K, rkv_type TYPE_V, int DIM_K, int DIM_V>
struct rkvk_wg_shape {
    static constexpr rkv_type TK = TYPE_K, TV = TYPE_V;
    static constexpr int DK = DIM_K, DV = DIM_V, D = rkvk_max(DK, DV);
    static constexpr bool BF16_K = TK == RKV_TYPE_BF16, BF16_V = TV == RKV_TYPE_BF16;
    static constexpr bool DIRECT_K = BF16_K || TK == RKV_TYPE_F16, DIRECT_V = BF16_V || TV == RKV_TYPE_F16;
    static constexpr bool DIRECT = DIRECT_K && DIRECT_V;
    /* Shared memory bounds it: 227 KB. */
    static constexpr int BC = D <= 128 || (D <= 192 && DIRECT) ? 128 : 64;
    typedef rkvk_plane<64, DK> plane_q;
    typedef rkvk_plane<BC, DK> plane_k;
    typedef rkvk_plane<BC, DV> plane_v;
    typedef rkvk_raw<TK, DK, BC> raw_k;
    typedef rkvk_raw<TV, DV, BC> raw_v;
    /* Of K and of V, as many as there is room for. */
    static constexpr int FIXED = RKVK_WG_FOLD * plane_q::BYTES + raw_k::BYTES + raw_v::BYTES + 3 * 1024;
    static constexpr uint32_t STAGES = rkvk_min(4, (RKVK_WG_SMEM - FIXED) / (plane_k::BYTES + plane_v::BYTES));
    static_assert(STAGES >= 2, "shared memory");
    /* Q in registers, where there are some left: shared memory then serves K and V alone. */
    static constexpr bool Q_REGS = DIRECT && DK == 128 && DV == 128;
    static constexpr int FEED_REGS = DIRECT ? 40 : 88, FOLD_REGS = DIRECT ? 232 : 208; /* 64K in all */
};

/* A block as the computing warps see it: cells are counted from its first one. */
struct rkvk_info {
    int64_t pos;     /* of cell 0, if it were there */
    uint32_t cells;  /* c0 | c1 << 16: those that some row here sees */
    int16_t l0, l1;  /* the same of its whole leaf */
    uint32_t flags;
};
#define RKVK_INFO_FIRST 1u /* of its leaf */
#define RKVK_INFO_END 2u   /* no block: the rows are done */

template <typename S>
struct rkvk_wg_smem {
    alignas(1024) uint8_t q[RKVK_WG_FOLD][S::plane_q::BYTES];
    alignas(1024) uint8_t k[S::STAGES][S::plane_k::BYTES];
    alignas(1024) uint8_t v[S::STAGES][S::plane_v::BYTES];
    alignas(16) uint8_t raw[S::raw_k::BYTES + S::raw_v::BYTES + 16];
    rkvk_reach reach[RKVK_WG_ROWS];
    rkvk_info info[S::STAGES];
    uint64_t k_full[S::STAGES], k_empty[S::STAGES], v_full[S::STAGES], v_empty[S::STAGES];
};

/* What all threads know of their work. */
struct rkvk_wg_work {
    const rkvi_item *item;
    rkvk_walk walk;
    uint32_t q_head;
    uint32_t row0, n_rows; /* within the item */
    bool alone;            /* one warpgroup computes: 64 rows at most */
};

/* --------------------------------------------------------------------- walk */

struct rkvk_feed_leaf {
    const uint8_t *head; /* of its tile-layer, this KV head */
    int64_t pos;         /* of cell 0 of the tile, if it were there */
    uint32_t cells;      /* c0 | c1 << 16: cells of the tile that some row sees */
};

struct rkvk_feed {
    rkvk_reach all;
    uint64_t scan;       /* the next leaf to look at */
    uint32_t todo;       /* lanes whose leaf is still to come */
    rkvk_feed_leaf lane; /* this lane's */
    rkvk_feed_leaf leaf; /* the current one */
    uint32_t cell;       /* of the current block, in the tile */
    bool first;          /* of its leaf */
};

static __device__ __forceinline__ void rkvk_feed_scan(rkvk_feed &f, const rkvi_attend_args &a, const rkvk_walk &w)
{
    const uint64_t number = f.scan + (uint32_t)rkvk_lane();
    bool seen = false;
    if (number < w.leaf1) {
        const rkvi_span span = a.spans[w.entry->span0 + number];
        const uint64_t base = a.bases[w.entry->base0 + span.tile];
        const rkvk_cells c = rkvk_span_cells(span.pos, span.first, span.count, f.all);
        f.lane = {(const uint8_t *)base + w.head * a.geom.head_bytes, span.pos - span.first, c.c0 | c.c1 << 16};
        seen = base != 0 && c.c0 < c.c1;
    }
    f.todo = __ballot_sync(0xffffffffu, seen);
    f.scan += 32;
}

/* On to the next block; false: there is none. */
template <int BC>
static __device__ __forceinline__ bool rkvk_feed_next(rkvk_feed &f, const rkvi_attend_args &a, const rkvk_walk &w)
{
    f.cell += BC;
    f.first = false;
    if (f.cell < f.leaf.cells >> 16)
        return true;
    while (f.todo == 0 && f.scan < w.leaf1)
        rkvk_feed_scan(f, a, w);
    if (f.todo == 0)
        return false;
    const int lane = __ffs((int)f.todo) - 1;
    f.todo &= f.todo - 1;
    f.leaf.head = (const uint8_t *)__shfl_sync(0xffffffffu, (unsigned long long)f.lane.head, lane);
    f.leaf.pos = __shfl_sync(0xffffffffu, (long long)f.lane.pos, lane);
    f.leaf.cells = __shfl_sync(0xffffffffu, f.lane.cells, lane);
    const uint32_t c0 = f.leaf.cells & 0xffffu, leaf_at = c0 & ~(a.geom.leaf_cells - 1); /* a power of two */
    f.cell = leaf_at + (c0 - leaf_at) / BC * BC;
    f.first = true;
    return true;
}

/* Of all rows of the work; each warp by itself. */
static __device__ __forceinline__ void rkvk_feed_begin(rkvk_feed &f, const rkvi_attend_args &a, const rkvk_wg_work &w)
{
    rkvk_reach all = rkvk_reach_none();
    for (uint32_t row = (uint32_t)rkvk_lane(); row < w.n_rows; row += 32) {
        const rkvk_reach r = rkvk_reach_of(a, rkvk_item_row(a, *w.item, w.row0 + row));
        all.lo = r.lo < all.lo ? r.lo : all.lo;
        all.hi = r.hi > all.hi ? r.hi : all.hi;
    }
    f.all = rkvk_reach_union(all);
    f.scan = w.walk.leaf0;
    f.todo = 0;
    f.cell = 0;
    f.leaf.cells = 0;
}

/* ------------------------------------------------------------------- planes */

/* Is there, of every cell of the block, some row here that sees it? */
template <int BC>
static __device__ __forceinline__ bool rkvk_feed_whole(const rkvk_feed &f)
{
    return (f.leaf.cells & 0xffffu) <= f.cell && (f.leaf.cells >> 16) >= f.cell + BC;
}

/* Places of a thread's pieces, PIECES to a unit, of rows with PER_ROW units each:
 * unit i of the warpgroup's i-th turn lies ROWS_A_TURN rows further on.  Where
 * whole rows go into a turn, and their swizzle repeats after PERIOD turns, all
 * follows from a few addresses and constants: the loading warps issue little else
 * than copies. */
template <typename PLANE, uint32_t PER_ROW, uint32_t PIECES>
struct rkvk_places {
    static constexpr bool REGULAR = RKVK_WG % PER_ROW == 0;
    static constexpr uint32_t ROWS_A_TURN = REGULAR ? RKVK_WG / PER_ROW : 8;
    static constexpr uint32_t PERIOD = ROWS_A_TURN < 8 ? 8 / ROWS_A_TURN : 1;
    uint32_t place[PERIOD][PIECES];

    __device__ __forceinline__ rkvk_places()
    {
        const uint32_t t = threadIdx.x % RKVK_WG;
#pragma unroll
        for (uint32_t i = 0; i < PERIOD; i++)
#pragma unroll
            for (uint32_t p = 0; p < PIECES; p++)
                place[i][p] = PLANE::at(t / PER_ROW + i * ROWS_A_TURN, t % PER_ROW * PIECES + p);
    }
    __device__ __forceinline__ uint32_t at(uint32_t turn, uint32_t p) const
    {
        if constexpr (REGULAR)
            return place[turn % PERIOD][p] + turn / PERIOD * PERIOD * ROWS_A_TURN * PLANE::PITCH;
        const uint32_t i = turn * RKVK_WG + threadIdx.x % RKVK_WG;
        return PLANE::at(i / PER_ROW, i % PER_ROW * PIECES + p);
    }
};

/* A block's rows of a 16-bit plane, pieces of 16 bytes, to their places. */
template <typename PLANE>
static __device__ __forceinline__ void rkvk_feed_copy(uint32_t dst, const uint8_t *src, const rkvk_feed &f)
{
    constexpr uint32_t PER_ROW = PLANE::DIM / 8, ALL = PLANE::ROWS * PER_ROW;
    typedef rkvk_places<PLANE, PER_ROW, 1> places;
    constexpr int AT_ONCE = places::REGULAR ? 1 : 4;
    const uint32_t t = threadIdx.x % RKVK_WG;
    src += ((uint64_t)f.cell * PER_ROW + t) * 16;
    if constexpr (places::REGULAR)
        if (rkvk_feed_whole<PLANE::ROWS>(f)) {
            const places to;
            static_assert(ALL % RKVK_WG == 0, "whole turns");
#pragma unroll
            for (uint32_t i = 0; i < ALL / RKVK_WG; i++)
                rkvk_copy16_all(dst + to.at(i, 0), src + i * RKVK_WG * 16);
            return;
        }
    const uint32_t c0 = f.leaf.cells & 0xffffu, c1 = f.leaf.cells >> 16;
#pragma unroll AT_ONCE
    for (uint32_t i = t; i < ALL; i += RKVK_WG, src += RKVK_WG * 16) {
        const uint32_t row = i / PER_ROW, cell = f.cell + row;
        const bool valid = cell >= c0 && cell < c1;
        rkvk_copy16(dst + PLANE::at(row, i % PER_ROW), valid ? src : f.leaf.head, valid);
    }
}

/* The stored units of a plane to the thread's own places, scales to registers. */
template <typename RAW>
static __device__ __forceinline__ void rkvk_feed_copy_raw(uint32_t raw, uint16_t (&scale)[RAW::SCALES],
                                                          const uint8_t *rows, const uint8_t *scales,
                                                          const rkvk_feed &f)
{
    const uint32_t c0 = f.leaf.cells & 0xffffu, c1 = f.leaf.cells >> 16, t = threadIdx.x % RKVK_WG;
    rows += ((uint64_t)f.cell * RAW::PER_ROW + t) * 16;
    raw += t * 16;
    scales += f.cell * RAW::SCALE;
    const bool whole = rkvk_feed_whole<RAW::CELLS>(f);
#pragma unroll
    for (uint32_t n = 0; n < RAW::N; n++) {
        const uint32_t i = n * RKVK_WG + t, row = i / RAW::PER_ROW, cell = f.cell + row;
        const bool valid = whole || (i < RAW::UNITS && cell >= c0 && cell < c1);
        const bool none = RAW::UNITS % RKVK_WG != 0 && i >= RAW::UNITS;
        rkvk_copy16(raw + n * RKVK_WG * 16, valid && !none ? rows + n * RKVK_WG * 16 : f.leaf.head, valid && !none);
        if constexpr (RAW::SCALE > 0) { /* q8_0: two units to a block of 32; q4_0: one */
            const uint32_t at = row * RAW::SCALE + i % RAW::PER_ROW * (RAW::SCALE / 2) / RAW::PER_ROW * 2;
            scale[n] = valid && !none ? *reinterpret_cast<const uint16_t *>(scales + at) : (uint16_t)0;
        }
    }
}

/* Eight elements as f16: 8 bytes of fp8 (times 2^-8) or q8_0, or the low nibbles
 * of 8 bytes of q4_0. */
template <rkv_type TYPE>
static __device__ __forceinline__ uint4 rkvk_eight(uint32_t w0, uint32_t w1, __half2 d)
{
    uint4 x;
    if constexpr (TYPE == RKV_TYPE_FP8_E4M3) {
        x.x = rkvk_fp8_low(w0);
        x.y = rkvk_fp8_high(w0);
        x.z = rkvk_fp8_low(w1);
        x.w = rkvk_fp8_high(w1);
    } else if constexpr (TYPE == RKV_TYPE_Q8_0) {
        w0 ^= 0x80808080u;
        w1 ^= 0x80808080u;
        x.x = rkvk_scaled(rkvk_q8_pair<0, 1>(w0), d);
        x.y = rkvk_scaled(rkvk_q8_pair<2, 3>(w0), d);
        x.z = rkvk_scaled(rkvk_q8_pair<0, 1>(w1), d);
        x.w = rkvk_scaled(rkvk_q8_pair<2, 3>(w1), d);
    } else {
        const uint32_t e0 = rkvk_scaled(rkvk_q4_low(w0), d), o0 = rkvk_scaled(rkvk_q4_low(w0 >> 8), d);
        const uint32_t e1 = rkvk_scaled(rkvk_q4_low(w1), d), o1 = rkvk_scaled(rkvk_q4_low(w1 >> 8), d);
        x.x = __byte_perm(e0, o0, 0x5410); /* bytes 0, 1 */
        x.y = __byte_perm(e0, o0, 0x7632); /* bytes 2, 3 */
        x.z = __byte_perm(e1, o1, 0x5410);
        x.w = __byte_perm(e1, o1, 0x7632);
    }
    return x;
}

/* Beyond what f16 can hold of its elements a scale saturates: an infinity would
 * spoil rows that don't see the cell. */
template <rkv_type TYPE>
static __device__ __forceinline__ __half2 rkvk_scale2(uint16_t bits)
{
    const float most = TYPE == RKV_TYPE_Q8_0 ? 511.75f : 8188.0f;
    const float d = rkvk_has_scales(TYPE) ? __half2float(__ushort_as_half(bits)) : 0.0f;
    return __float2half2_rn(fminf(fmaxf(d, -most), most));
}

/* From the thread's own places to rows of f16. */
template <rkv_type TYPE, typename RAW, typename PLANE>
static __device__ __forceinline__ void rkvk_feed_expand(uint8_t *dst, const uint8_t *raw,
                                                        const uint16_t (&scale)[RAW::SCALES])
{
    constexpr uint32_t PIECES = TYPE == RKV_TYPE_Q4_0 ? 4 : 2;
    const uint32_t t = threadIdx.x % RKVK_WG;
    const rkvk_places<PLANE, RAW::PER_ROW, PIECES> places;
#pragma unroll
    for (uint32_t n = 0; n < RAW::N; n++) {
        const uint32_t i = n * RKVK_WG + t;
        if (RAW::UNITS % RKVK_WG != 0 && i >= RAW::UNITS)
            break;
        const uint4 w = *reinterpret_cast<const uint4 *>(raw + i * 16);
        const __half2 d = rkvk_scale2<TYPE>(scale[RAW::SCALES > 1 ? n : 0]);
        uint4 x[PIECES];
        x[0] = rkvk_eight<TYPE>(w.x, w.y, d);
        x[1] = rkvk_eight<TYPE>(w.z, w.w, d);
        if constexpr (TYPE == RKV_TYPE_Q4_0) {
            x[2] = rkvk_eight<TYPE>(w.x >> 4, w.y >> 4, d);
            x[3] = rkvk_eight<TYPE>(w.z >> 4, w.w >> 4, d);
        }
#pragma unroll
        for (uint32_t p = 0; p < PIECES; p++)
            *reinterpret_cast<uint4 *>(dst + places.at(n, p)) = x[p];
    }
}

/* ------------------------------------------------------------------- blocks */

/* The numbers of the next blocks of K and V, counted over all rows of the thread
 * block: which stage, and which phase of its barriers. */
struct rkvk_turn {
    uint32_t k, v;
};

template <typename S>
static __device__ __forceinline__ uint32_t rkvk_stage(uint32_t n)
{
    return n % S::STAGES;
}

template <typename S>
static __device__ __forceinline__ uint32_t rkvk_phase(uint32_t n)
{
    return n / S::STAGES & 1;
}

static __device__ __forceinline__ rkvk_info rkvk_feed_info(const rkvk_feed &f)
{
    const uint32_t c0 = f.leaf.cells & 0xffffu, c1 = f.leaf.cells >> 16;
    rkvk_info info;
    info.pos = f.leaf.pos + f.cell;
    info.l0 = (int16_t)(c0 - f.cell);
    info.l1 = (int16_t)(c1 - f.cell);
    info.cells = (c0 > f.cell ? c0 - f.cell : 0) | (c1 - f.cell) << 16;
    info.flags = f.first ? RKVK_INFO_FIRST : 0;
    return info;
}

/* K of the block is on its way into stage n; the block before it is long taken. */
template <typename S>
static __device__ __forceinline__ void rkvk_feed_announce(rkvk_wg_smem<S> &sm, uint32_t stage, const rkvk_info &info)
{
    if (threadIdx.x % RKVK_WG == 0) {
        sm.info[stage] = info;
        rkvk_bar_arrive(rkvk_smem_addr(&sm.k_full[stage]));
    }
}

/* K of the block at f into its stage, and what the block is. */
template <typename S>
static __device__ __forceinline__ void rkvk_feed_k(rkvk_wg_smem<S> &sm, const rkvi_attend_args &a, const rkvk_feed &f,
                                                   rkvk_turn &n, const uint16_t (&scale)[S::raw_k::SCALES])
{
    const uint32_t stage = rkvk_stage<S>(n.k), full = rkvk_smem_addr(&sm.k_full[stage]);
    rkvk_bar_wait(rkvk_smem_addr(&sm.k_empty[stage]), rkvk_phase<S>(n.k++) ^ 1);
    rkvk_feed_announce(sm, stage, rkvk_feed_info(f));
    if constexpr (S::DIRECT_K) {
        rkvk_feed_copy<typename S::plane_k>(rkvk_smem_addr(sm.k[stage]), f.leaf.head + a.geom.k_off, f);
        rkvk_bar_arrive_copied(full);
    } else {
        rkvk_copy_wait<1>();
        rkvk_feed_expand<S::TK, typename S::raw_k, typename S::plane_k>(sm.k[stage], sm.raw, scale);
        rkvk_fence_async();
        rkvk_bar_arrive(full);
    }
}

/* V likewise.  Of raw copies, all but the LATER latest groups are there. */
template <typename S, int LATER>
static __device__ __forceinline__ void rkvk_feed_v(rkvk_wg_smem<S> &sm, const rkvi_attend_args &a, const rkvk_feed &f,
                                                   rkvk_turn &n, const uint16_t (&scale)[S::raw_v::SCALES])
{
    const uint32_t stage = rkvk_stage<S>(n.v), full = rkvk_smem_addr(&sm.v_full[stage]);
    rkvk_bar_wait(rkvk_smem_addr(&sm.v_empty[stage]), rkvk_phase<S>(n.v++) ^ 1);
    if constexpr (S::DIRECT_V) {
        rkvk_feed_copy<typename S::plane_v>(rkvk_smem_addr(sm.v[stage]), f.leaf.head + a.geom.v_off, f);
        rkvk_bar_arrive_copied(full);
    } else {
        rkvk_copy_wait<LATER>();
        rkvk_feed_expand<S::TV, typename S::raw_v, typename S::plane_v>(sm.v[stage], sm.raw + S::raw_k::BYTES, scale);
        rkvk_fence_async();
        rkvk_bar_arrive(full);
    }
}

template <typename S>
static __device__ __forceinline__ void rkvk_feed_raw_k(rkvk_wg_smem<S> &sm, const rkvi_attend_args &a,
                                                       const rkvk_feed &f, uint16_t (&scale)[S::raw_k::SCALES])
{
    if constexpr (!S::DIRECT_K)
        rkvk_feed_copy_raw<typename S::raw_k>(rkvk_smem_addr(sm.raw), scale, f.leaf.head + a.geom.k_off,
                                              f.leaf.head + a.geom.k_scale_off, f);
}

template <typename S>
static __device__ __forceinline__ void rkvk_feed_raw_v(rkvk_wg_smem<S> &sm, const rkvi_attend_args &a,
                                                       const rkvk_feed &f, uint16_t (&scale)[S::raw_v::SCALES])
{
    if constexpr (!S::DIRECT_V)
        rkvk_feed_copy_raw<typename S::raw_v>(rkvk_smem_addr(sm.raw + S::raw_k::BYTES), scale,
                                              f.leaf.head + a.geom.v_off, f.leaf.head + a.geom.v_scale_off, f);
}

/* All the blocks of a work, in the order of their use: K0 K1 V0 K2 V1 ..  Raw
 * copies run ahead: of K by a block, of V until the next K is done; they are
 * committed as K1 V0 K2 V1 .., so what is needed is there when all but the latest
 * group are. */
template <typename S>
static __device__ __forceinline__ void rkvk_feed_blocks(rkvk_wg_smem<S> &sm, const rkvi_attend_args &a,
                                                        const rkvk_wg_work &w, rkvk_feed &f, rkvk_turn &n)
{
    uint16_t k_scale[S::raw_k::SCALES], v_scale[S::raw_v::SCALES];
    bool more = rkvk_feed_next<S::BC>(f, a, w.walk), any = false;
    rkvk_feed now, before;
    if (more)
        rkvk_feed_raw_k(sm, a, f, k_scale);
    rkvk_copy_commit();
    rkvk_copy_commit();
    while (more) {
        now = f;
        if constexpr (!S::DIRECT)
            more = rkvk_feed_next<S::BC>(f, a, w.walk);
        rkvk_feed_k(sm, a, now, n, k_scale);
        if (more)
            rkvk_feed_raw_k(sm, a, f, k_scale);
        rkvk_copy_commit();
        if (any)
            rkvk_feed_v<S, 1>(sm, a, before, n, v_scale);
        rkvk_feed_raw_v(sm, a, now, v_scale);
        rkvk_copy_commit();
        before = now;
        any = true;
        if constexpr (S::DIRECT)
            more = rkvk_feed_next<S::BC>(f, a, w.walk);
    }
    if (any)
        rkvk_feed_v<S, 0>(sm, a, before, n, v_scale);
}

/* The rows of a work, and the word that they are done. */
template <typename S>
static __device__ __forceinline__ void rkvk_feed_rows(rkvk_wg_smem<S> &sm, const rkvi_attend_args &a,
                                                      const rkvk_wg_work &w, rkvk_turn &n)
{
    rkvk_feed f;
    rkvk_feed_begin(f, a, w);
    rkvk_feed_blocks(sm, a, w, f, n);
    const uint32_t k = rkvk_stage<S>(n.k);
    rkvk_info end = {0, 0, 0, 0, RKVK_INFO_END};
    rkvk_bar_wait(rkvk_smem_addr(&sm.k_empty[k]), rkvk_phase<S>(n.k++) ^ 1);
    rkvk_feed_announce(sm, k, end);
    rkvk_bar_arrive(rkvk_smem_addr(&sm.k_full[k]));
}

#endif
