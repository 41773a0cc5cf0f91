/* SPDX-License-Identifier: MIT
 *
 * attend_decode.cuh: partials of aligned runs of leaves (RKVI_OP_DECODE).
 *
 * A block of 128 threads takes one (item, KV head).  Its columns are the item's
 * rows times the query heads of the group; they go through the tensor cores as
 * N, 8 to 8 * NC at a time, cells as M, so that K and V are loaded once for all.
 * Columns are arithmetically independent: a row's bits do not depend on the
 * others.
 *
 * Cells come in blocks of BC, counted from the leaf's first cell in the tile,
 * through a ring of STAGES blocks in shared memory.  Of each block:
 *
 *   scores   S (BC cells x N) = K * Q^T.  Warp (m, p): tile m of 16 cells, part p
 *            of the dims.  With more than one part, sums meet in shared memory.
 *   weights  scale, softcap, mask; the column's maximum over the block by
 *            shuffles and shared memory; P = 2^(S - m), transposed in registers
 *            by movmatrix into fragments of B, which all warps read.
 *   output   O^T (dims x N) = V^T * P^T: each warp has its own tiles of 16 dims,
 *            over all cells.  So O is never exchanged between warps.
 *
 * A leaf's partial is folded block by block; a block of which a column sees
 * nothing leaves the column's bits alone (weights 0, factor 1).  At a leaf's end
 * the partial goes into the tree fixed by leaf number, whose pending nodes lie
 * on a stack in shared memory; few columns at a time where the run is long.
 *
 * Cells outside the span, or seen by no row here, are not read: zeros stand for
 * them.  Masked scores are selected away before the maximum.  Cells that another
 * row sees are finite, since storing saturates; they count 0 times their V.
 */
#ifndef RKVK_ATTEND_DECODE_CUH
#define RKVK_ATTEND_DECODE_CUH

#include "rkvk_launch.cuh"
#include "rkvk_tree.cuh"

/* --------------------------------------------------------------------- load */

/* The columns' q as fragments of B; zeros where there is no column. */
template <typename S, int NC>
static __device__ void rkvk_load_q(rkvk_decode_smem<S> &sm, const rkvi_attend_args &a, const rkvk_decode_work &w)
{
    const rkvi_tensor q = rkvk_item_q(a, *w.item);
    for (int i = (int)threadIdx.x; i < S::STEPS * NC * 32; i += RKVK_THREADS) {
        const int lane = i & 31, n = i / 32 % NC, step = i / 32 / NC;
        const uint32_t column = (uint32_t)(n * 8 + (lane >> 2));
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
        sm.q[i] = make_uint2(rkvk_pack<bf16>(x[0], x[1]), rkvk_pack<bf16>(x[2], x[3]));
    }
}

/* Warp 0: each column's reach, and the queue's first leaves.  A column that isn't
 * there sees nothing. */
template <typename S>
static __device__ void rkvk_load_reach(rkvk_decode_smem<S> &sm, const rkvi_attend_args &a, const rkvk_decode_work &w)
{
    const uint32_t lane = threadIdx.x;
    rkvk_reach r = rkvk_reach_none();
    if (lane < w.n_columns)
        r = rkvk_reach_of(a, rkvk_item_row(a, *w.item, (w.column0 + lane) / w.group));
    if (lane < S::NC_MAX * 8)
        sm.reach[lane] = r;
    rkvk_queue_begin(sm.queue, w.walk, rkvk_reach_union(r));
    rkvk_queue_fill(sm.queue, a, w.walk, 0);
}

/* Enqueues the block at the cursor, if there is one, and commits in any case. */
template <typename S>
static __device__ __forceinline__ void rkvk_load_block(rkvk_decode_smem<S> &sm, const rkvi_attend_args &a,
                                                       rkvk_cursor &at, uint8_t *stage)
{
    if (at.leaf != sm.queue.n_queued) {
        if (at.end == 0)
            rkvk_cursor_enter<S::BC>(at, sm.queue, a.geom.leaf_cells);
        const rkvk_leaf &leaf = sm.queue.leaf[at.leaf % RKVK_QUEUE];
        const uint32_t dst = rkvk_smem_addr(stage);
        rkvk_copy_rows<S::BC, S::K_ROW, S::K_PITCH>(dst, leaf.head + a.geom.k_off, at.cell, leaf);
        rkvk_copy_scales<S::BC, S::K_SCALE>(dst + S::K_SCALE_AT, leaf.head + a.geom.k_scale_off, at.cell, leaf,
                                        a.geom.tile_cells);
        rkvk_copy_rows<S::BC, S::V_ROW, S::V_PITCH>(dst + S::V_AT, leaf.head + a.geom.v_off, at.cell, leaf);
        rkvk_copy_scales<S::BC, S::V_SCALE>(dst + S::V_SCALE_AT, leaf.head + a.geom.v_scale_off, at.cell, leaf,
                                        a.geom.tile_cells);
        rkvk_cursor_next<S::BC>(at);
    }
    rkvk_copy_commit();
}

/* ------------------------------------------------------------------- scores */

/* Sums of the parts of the dims, in their order, in every warp of the tile. */
template <typename S, int NC>
static __device__ __forceinline__ void rkvk_sum_parts(rkvk_decode_smem<S> &sm, float (&s)[NC][4], int tile, int part)
{
    const int lane = rkvk_lane();
#pragma unroll
    for (int n = 0; n < NC; n++)
        sm.s[((part * S::MT + tile) * NC + n) * 32 + lane] = make_float4(s[n][0], s[n][1], s[n][2], s[n][3]);
    __syncthreads();
#pragma unroll
    for (int n = 0; n < NC; n++) {
        float4 sum = sm.s[(tile * NC + n) * 32 + lane];
#pragma unroll
        for (int p = 1; p < S::PARTS; p++) {
            const float4 x = sm.s[((p * S::MT + tile) * NC + n) * 32 + lane];
            sum.x = __fadd_rn(sum.x, x.x);
            sum.y = __fadd_rn(sum.y, x.y);
            sum.z = __fadd_rn(sum.z, x.z);
            sum.w = __fadd_rn(sum.w, x.w);
        }
        s[n][0] = sum.x;
        s[n][1] = sum.y;
        s[n][2] = sum.z;
        s[n][3] = sum.w;
    }
}

/* The maximum over the 8 lanes that share t. */
static __device__ __forceinline__ float rkvk_top_of_g(float x)
{
#pragma unroll
    for (int step = 4; step < 32; step *= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* ---------------------------------------------------------------- one block */

template <typename S, int NC>
static __device__ __forceinline__ void rkvk_block_scores(rkvk_decode_smem<S> &sm, const rkvi_attend_args &a,
                                                         const rkvk_decode_state<S, NC> &st, float (&s)[NC][4],
                                                         const uint8_t *stage, uint32_t cell)
{
    const int lane = rkvk_lane(), tile = rkvk_warp() % S::MT, part = rkvk_warp() / S::MT;
    const rkvk_k_rows k = {stage + tile * 16 * S::K_PITCH, stage + S::K_SCALE_AT + tile * 16 * S::K_SCALE};
#pragma unroll
    for (int n = 0; n < NC; n++)
        s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0.0f;
    rkvk_scores<S::TK, S::DK, S::K_PITCH, S::PART_STEPS, NC>(s, k, sm.q, part * S::PART_STEPS, lane);
    if constexpr (S::PARTS > 1)
        rkvk_sum_parts<S, NC>(sm, s, tile, part);
    const float scale = __fmul_rn(a.scale, rkvk_unit<S::TK>(a.geom.k_scale));
    const uint32_t c = cell + (uint32_t)(tile * 16 + (lane >> 2));
#pragma unroll
    for (int n = 0; n < NC; n++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            s[n][j] = rkvk_score(s[n][j], scale, a.softcap, c + (uint32_t)(j / 2 * 8), st.sees[n][j & 1]);
}

/* Each column's new maximum; o and l so far are brought to it. */
template <typename S, int NC>
static __device__ __forceinline__ void rkvk_block_top(rkvk_decode_smem<S> &sm, rkvk_decode_state<S, NC> &st,
                                                      const float (&s)[NC][4], float (&m2)[NC][2])
{
    const int lane = rkvk_lane(), tile = rkvk_warp() % S::MT, part = rkvk_warp() / S::MT;
#pragma unroll
    for (int n = 0; n < NC; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float top = rkvk_top_of_g(fmaxf(s[n][j], s[n][j + 2]));
            if (part == 0 && lane < 4)
                sm.top[tile][n * 8 + 2 * lane + j] = top;
        }
    __syncthreads();
#pragma unroll
    for (int n = 0; n < NC; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float top = sm.top[0][n * 8 + 2 * (lane & 3) + j];
#pragma unroll
            for (int i = 1; i < S::MT; i++)
                top = fmaxf(top, sm.top[i][n * 8 + 2 * (lane & 3) + j]);
            /* m is kept in natural units, and what is subtracted follows from it. */
            const float old = __fmul_rn(st.m[n][j], RKVK_LOG2E);
            st.m[n][j] = fmaxf(st.m[n][j], __fmul_rn(top, RKVK_LN2));
            m2[n][j] = st.m[n][j] == rkvk_empty_m() ? 0.0f : __fmul_rn(st.m[n][j], RKVK_LOG2E);
            const float factor = rkvk_exp2(__fadd_rn(old, -m2[n][j]));
            st.l[n][j] = __fmul_rn(st.l[n][j], factor);
#pragma unroll
            for (int v = 0; v < S::VT; v++) {
                st.o[n][v][j] = __fmul_rn(st.o[n][v][j], factor);
                st.o[n][v][j + 2] = __fmul_rn(st.o[n][v][j + 2], factor);
            }
        }
}

/* P to shared memory, as fragments of B for a step of 16 cells. */
template <typename S, int NC>
static __device__ __forceinline__ void rkvk_block_weights(rkvk_decode_smem<S> &sm, rkvk_decode_state<S, NC> &st,
                                                          const float (&s)[NC][4], const float (&m2)[NC][2])
{
    const int tile = rkvk_warp() % S::MT, part = rkvk_warp() / S::MT;
    constexpr bool bf16 = S::TV == RKV_TYPE_BF16;
    if (part == 0)
#pragma unroll
        for (int n = 0; n < NC; n++) {
            float p[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                p[j] = rkvk_exp2(__fadd_rn(s[n][j], -m2[n][j & 1]));
            st.l[n][0] = __fadd_rn(st.l[n][0], __fadd_rn(p[0], p[2]));
            st.l[n][1] = __fadd_rn(st.l[n][1], __fadd_rn(p[1], p[3]));
            sm.p[(tile * NC + n) * 32 + rkvk_lane()] =
                make_uint2(rkvk_movmatrix(rkvk_pack<bf16>(p[0], p[1])), rkvk_movmatrix(rkvk_pack<bf16>(p[2], p[3])));
        }
    __syncthreads();
}

template <typename S, int NC>
static __device__ __forceinline__ void rkvk_block_output(const rkvk_decode_smem<S> &sm, rkvk_decode_state<S, NC> &st,
                                                         const uint8_t *stage, uint32_t cell, const rkvk_leaf &leaf)
{
    const int lane = rkvk_lane(), tile0 = rkvk_warp() * S::VT;
#pragma unroll
    for (int k = 0; k < S::MT; k++) {
        const int at = (int)cell + k * 16;
        const rkvk_v_rows v = {stage + S::V_AT + k * 16 * S::V_PITCH, stage + S::V_SCALE_AT + k * 16 * S::V_SCALE,
                               leaf.c0 - at, leaf.c1 - at};
        uint2 b[NC];
#pragma unroll
        for (int n = 0; n < NC; n++)
            b[n] = sm.p[(k * NC + n) * 32 + lane];
#pragma unroll
        for (int i = 0; i < S::VT; i++) {
            if (S::V_TILES % S::VT != 0 || S::V_TILES / S::VT != RKVK_WARPS)
                if (tile0 + i >= S::V_TILES)
                    break;
            uint32_t x[4];
            rkvk_v_tile<S::TV, S::DV, S::V_PITCH>(x, v, tile0 + i, lane);
#pragma unroll
            for (int n = 0; n < NC; n++)
                rkvk_mma<S::TV == RKV_TYPE_BF16>(st.o[n][i], x, b[n].x, b[n].y);
        }
    }
}

/* ------------------------------------------------------------------- leaves */

template <typename S, int NC>
static __device__ __forceinline__ void rkvk_leaf_begin(const rkvk_decode_smem<S> &sm, rkvk_decode_state<S, NC> &st,
                                                       const rkvk_leaf &leaf)
{
#pragma unroll
    for (int n = 0; n < NC; n++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const rkvk_cells c =
                rkvk_span_cells(leaf.pos, leaf.first, leaf.count, sm.reach[n * 8 + 2 * (rkvk_lane() & 3) + j]);
            st.sees[n][j] = c.c0 | c.c1 << 16;
            st.m[n][j] = rkvk_empty_m();
            st.l[n][j] = 0.0f;
        }
#pragma unroll
        for (int i = 0; i < S::VT; i++)
            st.o[n][i][0] = st.o[n][i][1] = st.o[n][i][2] = st.o[n][i][3] = 0.0f;
    }
}

/* l over all cells, in every lane; o in V's units.  Holds a barrier. */
template <typename S, int NC>
static __device__ __forceinline__ void rkvk_leaf_end(rkvk_decode_smem<S> &sm, const rkvi_attend_args &a,
                                                     rkvk_decode_state<S, NC> &st)
{
    const int lane = rkvk_lane(), tile = rkvk_warp() % S::MT, part = rkvk_warp() / S::MT;
#pragma unroll
    for (int n = 0; n < NC; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float l = st.l[n][j];
#pragma unroll
            for (int step = 4; step < 32; step *= 2)
                l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, step));
            if (part == 0 && lane < 4)
                sm.sum[tile][n * 8 + 2 * lane + j] = l;
        }
    __syncthreads();
    const float unit = rkvk_unit<S::TV>(a.geom.v_scale);
#pragma unroll
    for (int n = 0; n < NC; n++) {
#pragma unroll
        for (int j = 0; j < 2; j++) {
            float l = sm.sum[0][n * 8 + 2 * (lane & 3) + j];
#pragma unroll
            for (int i = 1; i < S::MT; i++)
                l = __fadd_rn(l, sm.sum[i][n * 8 + 2 * (lane & 3) + j]);
            st.l[n][j] = l;
        }
        if constexpr (S::TV == RKV_TYPE_FP8_E4M3)
#pragma unroll
            for (int i = 0; i < S::VT; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    st.o[n][i][j] = __fmul_rn(st.o[n][i][j], unit);
    }
}

/* ------------------------------------------------------------------- kernel */

template <typename S, int NC>
static __device__ __forceinline__ void rkvk_write(const rkvi_attend_args &a, rkvk_decode_state<S, NC> &st,
                                                  const rkvk_decode_work &w)
{
    const uint64_t slot_floats = (uint64_t)a.q_heads * (S::DV + 2);
    float *slots = a.partials + w.item->slot * slot_floats;
    const uint32_t head0 = w.walk.head * w.group;
    rkvk_each_o<S, NC>(st, w, [&](uint32_t column, int, int, int, int dim, float &o) {
        const uint32_t c = w.column0 + column;
        slots[c / w.group * slot_floats + (uint64_t)(head0 + c % w.group) * S::DV + (uint32_t)dim] = o;
    });
    rkvk_each_column<S, NC>(st, w, [&](uint32_t column, float m, float l) {
        const uint32_t c = w.column0 + column;
        float *at = slots + c / w.group * slot_floats + (uint64_t)a.q_heads * S::DV + head0 + c % w.group;
        at[0] = m;
        at[a.q_heads] = l;
    });
}

/* Some columns, over all leaves of the item. */
template <typename S, int NC>
static __device__ __forceinline__ void rkvk_decode_columns(rkvk_decode_smem<S> &sm, const rkvi_attend_args &a,
                                                        const rkvk_decode_work &w)
{
    rkvk_cursor load = {0, 0, 0}, cur = {0, 0, 0};
    rkvk_decode_state<S, NC> st;
    __syncthreads(); /* those before are done with what is set up here */
    rkvk_load_q<S, NC>(sm, a, w);
    if (threadIdx.x < 32)
        rkvk_load_reach(sm, a, w);
    __syncthreads();
    uint8_t *in = w.stages, *out = w.stages, *const end = w.stages + w.n_stages * S::STAGE;
    for (; in + S::STAGE != end; in += S::STAGE)
        rkvk_load_block(sm, a, load, in);
    rkvk_leaf_begin<S, NC>(sm, st, sm.queue.leaf[0]); /* empty, should there be no leaf */
    uint32_t level = 0;
    while (cur.leaf != sm.queue.n_queued) {
        const uint32_t taken = cur.leaf;
        const rkvk_leaf &leaf = sm.queue.leaf[taken % RKVK_QUEUE];
        const uint64_t number = leaf.number;
        if (cur.end == 0) {
            rkvk_cursor_enter<S::BC>(cur, sm.queue, a.geom.leaf_cells);
            rkvk_leaf_begin<S, NC>(sm, st, leaf);
        }
        rkvk_copy_wait_but(w.n_stages - 2);
        __syncthreads(); /* block `out` is here, block `in` is no longer read */
        rkvk_load_block(sm, a, load, in);
        float s[NC][4], m2[NC][2];
        rkvk_block_scores<S, NC>(sm, a, st, s, out, cur.cell);
        rkvk_block_top<S, NC>(sm, st, s, m2);
        rkvk_block_weights<S, NC>(sm, st, s, m2);
        rkvk_block_output<S, NC>(sm, st, out, cur.cell, leaf);
        in = in + S::STAGE == end ? w.stages : in + S::STAGE;
        out = out + S::STAGE == end ? w.stages : out + S::STAGE;
        if (!rkvk_cursor_next<S::BC>(cur)) {
            if (threadIdx.x < 32)
                rkvk_queue_fill(sm.queue, a, w.walk, taken);
            rkvk_leaf_end<S, NC>(sm, a, st);
            rkvk_tree_add<S, NC>(sm, st, w, number, cur.leaf, level);
        }
    }
    rkvk_copy_wait<0>();
    rkvk_write<S, NC>(a, st, w);
}

template <typename S>
static __device__ __forceinline__ void rkvk_decode_chunk(rkvk_decode_smem<S> &sm, const rkvi_attend_args &a,
                                                         const rkvk_decode_work &w)
{
    if (S::NC_MAX == 1 || w.n_columns <= 8)
        rkvk_decode_columns<S, 1>(sm, a, w);
    else if (S::NC_MAX == 2 || w.n_columns <= 16)
        rkvk_decode_columns<S, rkvk_min(2, S::NC_MAX)>(sm, a, w);
    else
        rkvk_decode_columns<S, rkvk_min(4, S::NC_MAX)>(sm, a, w);
}

/* Nodes that may be pending: one for each level at which two of the leaves meet. */
static __device__ __forceinline__ uint32_t rkvk_depth(uint64_t leaf0, uint64_t leaf1)
{
    return leaf0 < leaf1 ? 64u - (uint32_t)__clzll((long long)(leaf0 ^ (leaf1 - 1))) : 0;
}

/* Block = item * KV heads + head. */
template <typename S>
static __global__ void __launch_bounds__(RKVK_THREADS, S::BLOCKS)
    rkvk_decode(const rkvk_decode_args d, const uint64_t n_blocks)
{
    extern __shared__ __align__(16) uint8_t raw[];
    rkvk_decode_smem<S> &sm = *reinterpret_cast<rkvk_decode_smem<S> *>(raw);
    const rkvi_attend_args &a = d.a;
    const uint64_t index = rkvk_block();
    if (index >= n_blocks)
        return;
    rkvk_decode_work w;
    w.item = a.items + index / a.geom.n_heads;
    w.walk = {a.entries + w.item->entry, w.item->leaf0, w.item->leaf1, (uint32_t)(index % a.geom.n_heads)};
    w.group = a.q_heads / a.geom.n_heads;
    w.stack = reinterpret_cast<float *>(raw + sizeof(rkvk_decode_smem<S>));
    w.stages = raw + sizeof(rkvk_decode_smem<S>) + d.room.stack_floats * 4;
    w.n_stages = d.room.stages;
    const uint32_t depth = rkvk_depth(w.walk.leaf0, w.walk.leaf1);
    const uint32_t whole = d.room.stack_floats / (uint32_t)rkvk_node_floats(S::VT);
    const int tiles = depth > whole ? 1 : S::VT; /* a run too long: a part of the dims at a time */
    const uint32_t nodes = d.room.stack_floats / (uint32_t)rkvk_node_floats(tiles);
    const uint32_t most = depth * (8 * S::NC_MAX) > nodes ? nodes / depth : 8 * S::NC_MAX;
    const uint32_t n_columns = w.item->n_rows * w.group;
    for (w.column0 = 0; w.column0 < n_columns; w.column0 += most) {
        w.n_columns = n_columns - w.column0 < most ? n_columns - w.column0 : most;
        for (w.tile0 = 0; w.tile0 < S::VT; w.tile0 += tiles) {
            w.tile1 = w.tile0 + tiles;
            rkvk_decode_chunk(sm, a, w);
        }
    }
}

/* ----------------------------------------------------------------- launcher */

/* The most blocks a multiprocessor that still keep 48 KB on their way; else what
 * keeps the most. */
static inline rkvk_decode_room rkvk_divide(int sm_bytes, int block_bytes, int fixed, int stage, int blocks)
{
    rkvk_decode_room best = {0, 0, 0};
    int most = 0;
    for (; blocks >= 1 && most < 48 * 1024; blocks--) {
        const int room = rkvk_min(block_bytes, sm_bytes / blocks - 1024) - fixed;
        const int stages = rkvk_min((int)RKVK_STAGES_MAX, (room - RKVK_STACK_MIN) / stage);
        if (stages < 2 || room < 0 || blocks * (stages - 1) * stage <= most)
            continue;
        most = blocks * (stages - 1) * stage;
        const int stack = rkvk_min(RKVK_STACK_MAX, room - stages * stage) / 16 * 16;
        best = {(uint32_t)stages, (uint32_t)(stack / 4), (uint32_t)(fixed + stack + stages * stage)};
    }
    return best;
}

/* `rooms`: a variant's, by device. */
#define RKVK_DEVICES 64

template <typename S>
static int rkvk_decode_prepare(rkvk_decode_room *rooms)
{
    int device, sm_bytes, block_bytes;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&sm_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&block_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (e != cudaSuccess)
        return (int)e;
    const rkvk_decode_room room =
        rkvk_divide(sm_bytes, block_bytes, (int)sizeof(rkvk_decode_smem<S>), S::STAGE, S::BLOCKS);
    if (device >= RKVK_DEVICES || room.bytes == 0)
        return (int)cudaErrorInvalidConfiguration;
    const int status = rkvk_load((const void *)rkvk_decode<S>, room.bytes);
    if (status == 0)
        rooms[device] = room;
    return status;
}

template <typename S>
static int rkvk_decode_launch(const rkvk_decode_room *rooms, const rkvi_attend_args *a, uint64_t grid, void *stream)
{
    int device;
    const cudaError_t e = cudaGetDevice(&device);
    if (e != cudaSuccess)
        return (int)e;
    if (device >= RKVK_DEVICES || rooms[device].bytes == 0)
        return (int)cudaErrorInvalidConfiguration;
    const rkvk_decode_args d = {*a, rooms[device]};
    return grid ? rkvk_run(rkvk_decode<S>, &d, grid, rkvk_grid(grid), dim3(RKVK_THREADS), d.room.bytes, stream) : 0;
}

#define RKVK_DECODE_VARIANT(name, type_k, type_v, dk, dv)                                                      \
    static rkvk_decode_room rooms_##name[RKVK_DEVICES];                                                        \
    extern "C" int rkvk_decode_##name(const rkvi_attend_args *a, uint64_t grid, void *stream)                  \
    {                                                                                                          \
        return rkvk_decode_launch<rkvk_decode_shape<type_k, type_v, dk, dv>>(rooms_##name, a, grid, stream);   \
    }                                                                                                          \
    extern "C" int rkvk_decode_##name##_prepare(void)                                                          \
    {                                                                                                          \
        return rkvk_decode_prepare<rkvk_decode_shape<type_k, type_v, dk, dv>>(rooms_##name);                   \
    }

#endif
