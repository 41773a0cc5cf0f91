/* SPDX-License-Identifier: MIT
 *
 * rkvk_leaves.cuh: what decode and prefill share: the queue of an item's leaves,
 * where an item's rows and their q lie, and what the rows see.
 *
 * Leaves that some row here sees are queued by one warp, a warp's worth at a time,
 * well ahead of their use.  Decode takes whole leaves; prefill by mma.sync
 * (attend_prefill.cuh) walks their blocks of cells with cursors, and copies blocks
 * into shared memory by the calls below:
 *
 *     taken ........ cur (leaf, cell) .... load (leaf, cell) ........ n_queued
 *
 * Blocks are BC cells, counted from the leaf's first cell in the tile, so that
 * they are the same however a sequence's cells are cut.
 */
#ifndef RKVK_LEAVES_CUH
#define RKVK_LEAVES_CUH

#include "rkvk_copy.cuh"
#include "rkvk_dequant.cuh"
#include "rkvk_mask.cuh"
#include "rkvk_merge.cuh"

#define RKVK_WARPS 4
#define RKVK_THREADS (32 * RKVK_WARPS)
#define RKVK_QUEUE 64u /* leaves known ahead: a power of two, twice a warp */
#define RKVK_LOG2E 0x1.715476p+0f
#define RKVK_LN2 0x1.62e430p-1f
#define RKVK_SMEM_MOST (99 * 1024) /* of a block, on sm_86, 89 and 120 */

static __host__ __device__ constexpr int rkvk_max(int a, int b)
{
    return a > b ? a : b;
}

static __host__ __device__ constexpr int rkvk_min(int a, int b)
{
    return a < b ? a : b;
}

/* Rows an odd number of 16-byte chunks apart: eight rows' chunks at the same
 * place, and eight rows' 4 words, lie in different banks. */
static __host__ __device__ constexpr int rkvk_pitch(int row_bytes)
{
    return (row_bytes / 16 | 1) * 16;
}

static __device__ __forceinline__ int rkvk_lane(void)
{
    return (int)(threadIdx.x & 31);
}

static __device__ __forceinline__ int rkvk_warp(void)
{
    return (int)(threadIdx.x >> 5);
}

/* A leaf of which some row here sees cells. */
struct rkvk_leaf {
    const uint8_t *head; /* of its tile-layer, this KV head */
    uint64_t number;
    int64_t pos; /* of its first cell */
    uint16_t first, count;
    uint16_t c0, c1; /* what the rows here see, all together: cells of the tile */
};

struct rkvk_queue {
    rkvk_leaf leaf[RKVK_QUEUE];
    rkvk_reach all;    /* of all rows here together */
    uint64_t scan;     /* the next leaf to look at */
    uint32_t n_queued; /* ever */
    /* Of these, what all warps may read while warp 0 queues more.  It is raised between two barriers,
     * where nobody reads it (rkvk_queue_show). */
    uint32_t n_shown;
};

/* The leaves of an item, of one KV head. */
struct rkvk_walk {
    const rkvi_entry *entry;
    uint64_t leaf0, leaf1;
    uint32_t head;
};

/* Warp 0, before a barrier. */
static __device__ __forceinline__ void rkvk_queue_begin(rkvk_queue &q, const rkvk_walk &w, rkvk_reach all)
{
    if (threadIdx.x == 0) {
        q.all = all;
        q.n_queued = 0;
        q.scan = w.leaf0;
    }
    __syncwarp();
}

/* Warp 0: looks at further leaves until more than a warp's worth is queued from
 * `taken` on, or none is left. */
static __device__ __forceinline__ void rkvk_queue_fill(rkvk_queue &q, const rkvi_attend_args &a, const rkvk_walk &w,
                                                       uint32_t taken)
{
    const uint32_t lane = threadIdx.x;
    uint32_t n = q.n_queued;
    uint64_t scan = q.scan;
    const rkvk_reach all = q.all;
    while (scan < w.leaf1 && n - taken <= RKVK_QUEUE / 2) {
        rkvk_leaf leaf = {}; /* left open it would keep registers all along */
        bool seen = false;
        if (lane < w.leaf1 - scan) {
            leaf.number = scan + lane;
            const rkvi_span span = a.spans[w.entry->span0 + leaf.number];
            const uint64_t base = a.bases[w.entry->base0 + span.tile];
            const rkvk_cells c = rkvk_span_cells(span.pos, span.first, span.count, all);
            leaf.head = (const uint8_t *)base + w.head * a.geom.head_bytes;
            leaf.pos = span.pos;
            leaf.first = span.first;
            leaf.count = span.count;
            leaf.c0 = (uint16_t)c.c0;
            leaf.c1 = (uint16_t)c.c1;
            seen = base != 0 && c.c0 < c.c1;
        }
        const uint32_t ballot = __ballot_sync(0xffffffffu, seen);
        if (seen)
            q.leaf[(n + __popc(ballot & ((1u << lane) - 1))) % RKVK_QUEUE] = leaf;
        n += __popc(ballot);
        scan += 32;
    }
    __syncwarp();
    if (lane == 0) {
        q.n_queued = n;
        q.scan = scan;
    }
}

static __device__ __forceinline__ void rkvk_queue_show(rkvk_queue &q)
{
    if (threadIdx.x == 0)
        q.n_shown = q.n_queued;
}

/* A place in the list of blocks of the queued leaves: leaf, cell of the tile. */
struct rkvk_cursor {
    uint32_t leaf; /* counted as n_queued */
    uint32_t cell;
    uint32_t end; /* of the leaf, c1; 0: not yet looked up */
};

template <int BC>
static __device__ __forceinline__ void rkvk_cursor_enter(rkvk_cursor &c, const rkvk_queue &q, uint32_t leaf_cells)
{
    const rkvk_leaf &leaf = q.leaf[c.leaf % RKVK_QUEUE];
    const uint32_t leaf_at = leaf.c0 - leaf.c0 % leaf_cells; /* leaf_cells: a power of two */
    c.cell = leaf_at + (leaf.c0 - leaf_at) / BC * BC;
    c.end = leaf.c1;
}

/* To the next block of the leaf; false: that was the last one. */
template <int BC>
static __device__ __forceinline__ bool rkvk_cursor_next(rkvk_cursor &c)
{
    c.cell += BC;
    if (c.cell < c.end)
        return true;
    c.leaf++;
    c.end = 0;
    return false;
}

/* Rows of K or V of a block: 16-byte chunks, thread by thread. */
template <int BC, int ROW_BYTES, int PITCH>
static __device__ __forceinline__ void rkvk_copy_rows(uint32_t dst, const uint8_t *src, uint32_t cell,
                                                      const rkvk_leaf &leaf)
{
    constexpr int CHUNKS = ROW_BYTES / 16, ALL = BC * CHUNKS;
#pragma unroll
    for (int i0 = 0; i0 < ALL; i0 += RKVK_THREADS) {
        const int i = i0 + (int)threadIdx.x, row = i / CHUNKS, chunk = i % CHUNKS;
        if (ALL % RKVK_THREADS == 0 || i < ALL) {
            const uint32_t c = cell + (uint32_t)row;
            const bool valid = c >= leaf.c0 && c < leaf.c1;
            rkvk_copy16(dst + (uint32_t)(row * PITCH + chunk * 16),
                        valid ? src + (uint64_t)c * ROW_BYTES + chunk * 16 : leaf.head, valid);
        }
    }
}

/* Scales of a block: one run of bytes, the end of the plane apart. */
template <int BC, int SCALE_BYTES>
static __device__ __forceinline__ void rkvk_copy_scales(uint32_t dst, const uint8_t *src, uint32_t cell,
                                                        const rkvk_leaf &leaf, uint32_t tile_cells)
{
    if constexpr (SCALE_BYTES > 0) {
        const uint32_t end = tile_cells * SCALE_BYTES;
        for (uint32_t i = threadIdx.x * 16; i < BC * SCALE_BYTES; i += RKVK_THREADS * 16) {
            const uint32_t at = cell * SCALE_BYTES + i;
            rkvk_copy16(dst + i, at < end ? src + at : leaf.head, at < end);
        }
    }
}

/* rkvi_item_row() and rkvi_item_q() of ops.h. */
static __device__ __forceinline__ uint64_t rkvk_item_row(const rkvi_attend_args &a, const rkvi_item &item, uint32_t r)
{
    return a.row_map ? a.row_map[(uint64_t)item.row + r] : (uint64_t)a.entries[item.entry].row0 + item.row + r;
}

static __device__ __forceinline__ rkvi_tensor rkvk_item_q(const rkvi_attend_args &a, const rkvi_item &item)
{
    const uint32_t turn = item.flags >> RKVI_ITEM_TURN_SHIFT;
    rkvi_tensor q = a.q;
    if (turn) {
        q.data = const_cast<float *>(a.turned + (turn - 1) * a.turned_stride);
        q.type = RKV_TYPE_F32;
        q.head_stride = a.geom.dk;
        q.row_stride = (int64_t)a.q_heads * a.geom.dk;
    }
    return q;
}

/* q's element, in f32. */
static __device__ __forceinline__ float rkvk_q_at(const rkvi_tensor &t, int64_t at)
{
    switch (t.type) {
    case RKV_TYPE_F32: return ((const float *)t.data)[at];
    case RKV_TYPE_F16: return __half2float(((const __half *)t.data)[at]);
    default: return __bfloat162float(((const __nv_bfloat16 *)t.data)[at]);
    }
}

template <bool BF16>
static __device__ __forceinline__ uint32_t rkvk_pack(float low, float high)
{
    if constexpr (BF16) {
        __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
        return *reinterpret_cast<uint32_t *>(&x);
    } else {
        return rkvk_bits2(__floats2half2_rn(low, high));
    }
}

/* The union of the lanes' reaches: an empty one is {INT64_MAX, INT64_MIN}. */
static __device__ __forceinline__ rkvk_reach rkvk_reach_union(rkvk_reach r)
{
#pragma unroll
    for (int step = 16; step; step /= 2) {
        const int64_t lo = __shfl_xor_sync(0xffffffffu, r.lo, step), hi = __shfl_xor_sync(0xffffffffu, r.hi, step);
        r.lo = lo < r.lo ? lo : r.lo;
        r.hi = hi > r.hi ? hi : r.hi;
    }
    return r;
}

static __device__ __forceinline__ rkvk_reach rkvk_reach_none(void)
{
    const rkvk_reach r = {INT64_MAX, INT64_MIN};
    return r;
}

/* Of a row of the step; what sees nothing has no part in a union. */
static __device__ __forceinline__ rkvk_reach rkvk_reach_of(const rkvi_attend_args &a, uint64_t row)
{
    const rkvk_reach r = rkvk_row_reach(a.rows[row], a.mask);
    return r.lo < r.hi ? r : rkvk_reach_none();
}

#endif
