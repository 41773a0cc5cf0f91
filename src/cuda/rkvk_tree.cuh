/* SPDX-License-Identifier: MIT
 *
 * rkvk_tree.cuh: decode's binary tree over leaves, fixed by leaf number.
 *
 * The partial at hand is spread over the registers of the block as the tensor
 * cores left it (attend_decode.cuh); pending nodes lie on a stack in shared
 * memory.  Each thread stores and takes back its own elements of o, so only m, l
 * and leaf numbers need barriers.  Merges are those of rkvk_merge.cuh.
 */
#ifndef RKVK_TREE_CUH
#define RKVK_TREE_CUH

#include "rkvk_decode.cuh"

/* Calls f(column, chunk n, j, index, dim, o) for each element of o that the
 * thread has, of the tiles that this pass is about.  index: the element's place
 * in a node. */
template <typename S, int NC, typename F>
static __device__ __forceinline__ void rkvk_each_o(rkvk_decode_state<S, NC> &st, const rkvk_decode_work &w, F f)
{
    const int lane = rkvk_lane(), warp = rkvk_warp();
#pragma unroll
    for (int n = 0; n < NC; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint32_t column = (uint32_t)(n * 8 + 2 * (lane & 3) + j);
            if (column < w.n_columns)
#pragma unroll
                for (int i = 0; i < S::VT; i++) {
                    const int tile = warp * S::VT + i;
                    if (i < w.tile0 || i >= w.tile1 || tile >= S::V_TILES)
                        continue;
#pragma unroll
                    for (int half = 0; half < 2; half++) {
                        const int dim = rkvk_v_dim<S::TV>(tile, half, lane >> 2);
                        const int index = (warp * (w.tile1 - w.tile0) + i - w.tile0) * 16 + dim - tile * 16;
                        f(column, n, j, index, dim, st.o[n][i][j + 2 * half]);
                    }
                }
        }
}

/* m and l of the columns, in threads 0 to 3. */
template <typename S, int NC, typename F>
static __device__ __forceinline__ void rkvk_each_column(const rkvk_decode_state<S, NC> &st, const rkvk_decode_work &w,
                                                        F f)
{
    if (threadIdx.x < 4)
#pragma unroll
        for (int n = 0; n < NC; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint32_t column = (uint32_t)n * 8 + 2 * threadIdx.x + (uint32_t)j;
                if (column < w.n_columns)
                    f(column, st.m[n][j], st.l[n][j]);
            }
}

/* A pending node: o's elements by index, then m, l.  Its 4 floats beyond a
 * multiple of 64 keep the columns of a fragment in different banks. */
static __host__ __device__ constexpr int rkvk_node_floats(int tiles)
{
    return tiles * 16 * RKVK_WARPS + 4;
}

static __device__ __forceinline__ float *rkvk_node(const rkvk_decode_work &w, uint32_t level, uint32_t column)
{
    return w.stack + (level * w.n_columns + column) * (uint32_t)rkvk_node_floats(w.tile1 - w.tile0);
}

static __device__ __forceinline__ uint32_t rkvk_node_m(const rkvk_decode_work &w)
{
    return (uint32_t)rkvk_node_floats(w.tile1 - w.tile0) - 4;
}

/* The node at `level` of the stack, whose leaves come before, joins the state.
 * Where one side is empty, the other one is taken, bit by bit. */
template <typename S, int NC>
static __device__ __forceinline__ void rkvk_tree_join(rkvk_decode_state<S, NC> &st, const rkvk_decode_work &w,
                                                      uint32_t level)
{
    rkvk_factors f[NC][2];
    bool keep[NC][2], take[NC][2];
    const float empty = rkvk_empty_m();
#pragma unroll
    for (int n = 0; n < NC; n++)
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const uint32_t column = (uint32_t)(n * 8 + 2 * (rkvk_lane() & 3) + j);
            const float *at = rkvk_node(w, level, column < w.n_columns ? column : 0) + rkvk_node_m(w);
            const float m = at[0], l = at[1];
            keep[n][j] = m == empty;
            take[n][j] = st.m[n][j] == empty;
            f[n][j] = rkvk_merge_factors(m, st.m[n][j]);
            if (keep[n][j])
                continue;
            st.l[n][j] = take[n][j] ? l : rkvk_merge_value(f[n][j], l, st.l[n][j]);
            st.m[n][j] = take[n][j] ? m : f[n][j].m;
        }
    rkvk_each_o<S, NC>(st, w, [&](uint32_t column, int n, int j, int index, int, float &o) {
        const float x = rkvk_node(w, level, column)[index];
        const float both = rkvk_merge_value(f[n][j], x, o);
        o = keep[n][j] ? o : take[n][j] ? x : both;
    });
}

template <typename S, int NC>
static __device__ void rkvk_tree_push(rkvk_decode_smem<S> &sm, rkvk_decode_state<S, NC> &st,
                                      const rkvk_decode_work &w, uint32_t level, uint64_t leaf)
{
    rkvk_each_o<S, NC>(st, w, [&](uint32_t column, int, int, int index, int, float &o) {
        rkvk_node(w, level, column)[index] = o;
    });
    rkvk_each_column<S, NC>(st, w, [&](uint32_t column, float m, float l) {
        float *at = rkvk_node(w, level, column) + rkvk_node_m(w);
        at[0] = m;
        at[1] = l;
    });
    if (threadIdx.x == 0)
        sm.stack_leaf[level] = leaf;
}

/* The leaf `done` is folded; `cur` stands at the next one.  What the tree joins
 * before the next leaf is joined, and the result put on the stack; after the last
 * leaf all is joined, and stays in the state. */
template <typename S, int NC>
static __device__ __forceinline__ void rkvk_tree_add(rkvk_decode_smem<S> &sm, rkvk_decode_state<S, NC> &st,
                                                     const rkvk_decode_work &w, uint64_t done, uint32_t cur,
                                                     uint32_t &level)
{
    const bool more = cur != sm.queue.n_queued;
    const uint64_t next = more ? sm.queue.leaf[cur % RKVK_QUEUE].number : 0;
    while (level > 0 && (!more || rkvk_tree_merges(sm.stack_leaf[level - 1], done, next))) {
        level--;
        rkvk_tree_join<S, NC>(st, w, level);
        done = sm.stack_leaf[level];
    }
    if (more) {
        __syncthreads(); /* all have read what is overwritten now */
        rkvk_tree_push<S, NC>(sm, st, w, level++, done);
    }
}

#endif
