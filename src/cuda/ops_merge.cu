/* SPDX-License-Identifier: MIT
 *
 * ops_merge.cu: the nodes of a row to one node, or to the output.
 *
 * A block takes one row and query head at a time.  Thread (x, y) keeps element
 * x of o; y is one of SPLITS groups of nodes.  The groups are the aligned parts
 * into which the top two bits in which the row's leaf numbers differ cut the
 * tree, so each group's nodes are a subtree of their own: reducing them side by
 * side and then the groups' roots is the same tree, merge by merge.
 *
 *   nodes      0 1 2 3 | 8 9 | 17 | 25 26       leaf numbers, top bits xx...
 *   group y       0       1     2      3
 *   roots          \_____/       \____/
 *   row                 \________/
 *
 * Values are those of the plain C reference (ops_ref_merge.c), bit by bit.
 */
#include "ops_cuda.h"
#include "rkvk_launch.cuh"
#include "rkvk_merge.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define SPLIT_BITS 2u
#define SPLITS (1u << SPLIT_BITS)
#define MERGE_THREADS_MAX 1024u
/* Levels strictly fall along the stack, so below its top it holds one node less
 * than a group's leaf numbers have bits: enough for 2^35 leaves. */
#define STACK_DEPTH 32u
#define ROWS_APART 4u /* blocks over the rows of an item */

typedef struct value {
    float m, l, o;
} value;

/* Pending nodes of a group, alike in all lanes of a warp.  What does not depend
 * on the element is spread over the lanes: lane i keeps entry i's leaf, m, l. */
typedef struct stack {
    uint32_t n; /* the top included, which lies in `top` */
    uint64_t top_leaf;
    value top;
    uint64_t leaf;
    float m, l;
    float o[STACK_DEPTH];
} stack;

static __device__ __forceinline__ value merge(value a, value b)
{
    const rkvk_factors f = rkvk_merge_factors(a.m, b.m);
    const value v = {f.m, rkvk_merge_value(f, a.l, b.l), rkvk_merge_value(f, a.o, b.o)};
    return v;
}

static __device__ __forceinline__ uint64_t leaf_below(const stack &s)
{
    return __shfl_sync(0xffffffffu, s.leaf, (int)s.n - 2);
}

static __device__ __forceinline__ void merge_top(stack &s)
{
    const int i = (int)s.n - 2;
    const value a = {__shfl_sync(0xffffffffu, s.m, i), __shfl_sync(0xffffffffu, s.l, i), s.o[i]};
    s.top_leaf = leaf_below(s);
    s.top = merge(a, s.top);
    s.n--;
}

static __device__ __forceinline__ void push(stack &s, uint64_t leaf, value v)
{
    while (s.n >= 2 && rkvk_tree_merges(leaf_below(s), s.top_leaf, leaf))
        merge_top(s);
    if (s.n > 0) {
        const uint32_t lane = (threadIdx.y * blockDim.x + threadIdx.x) % 32;
        if (lane == s.n - 1) {
            s.leaf = s.top_leaf;
            s.m = s.top.m;
            s.l = s.top.l;
        }
        s.o[s.n - 1] = s.top.o;
    }
    s.n++;
    s.top_leaf = leaf;
    s.top = v;
}

/* Element x of a partial; beyond dv there is nothing to read. */
static __device__ __forceinline__ value read(const rkvi_merge_args &a, uint64_t slot, uint32_t head,
                                             uint32_t x)
{
    const float *at = a.partials + slot * ((uint64_t)a.q_heads * (a.dv + 2));
    const float *m = at + (uint64_t)a.q_heads * a.dv + head;
    const value v = {m[0], m[a.q_heads], x < a.dv ? at[(uint64_t)head * a.dv + x] : 0.0f};
    return v;
}

/* m and l come with the last turn's elements: until then the slot, which may be
 * one of the row's own nodes, is still read. */
static __device__ __forceinline__ void write(const rkvi_merge_args &a, uint64_t slot, uint32_t head,
                                             uint32_t x, value v)
{
    float *at = a.partials + slot * ((uint64_t)a.q_heads * (a.dv + 2));
    float *m = at + (uint64_t)a.q_heads * a.dv + head;
    if (x < a.dv)
        at[(uint64_t)head * a.dv + x] = v.o;
    if (threadIdx.x == 0 && x + blockDim.x >= a.dv) {
        m[0] = v.m;
        m[a.q_heads] = v.l;
    }
}

/* Nodes [from, to) of one row, loading one node ahead. */
static __device__ value reduce(const rkvi_merge_args &a, uint64_t from, uint64_t to, uint32_t r,
                               uint32_t head, uint32_t x)
{
    stack s;
    s.n = 0;
    s.top_leaf = s.leaf = 0;
    s.m = s.l = 0;
    s.top = {rkvk_empty_m(), 0.0f, 0.0f};
    value next = s.top;
    uint64_t next_leaf = 0;
    if (from < to) {
        next_leaf = a.nodes[from].leaf0;
        next = read(a, a.nodes[from].slot + r, head, x);
    }
    for (uint64_t i = from; i < to; i++) {
        const value v = next;
        const uint64_t leaf = next_leaf;
        if (i + 1 < to) {
            next_leaf = a.nodes[i + 1].leaf0;
            next = read(a, a.nodes[i + 1].slot + r, head, x);
        }
        if (v.m != rkvk_empty_m())
            push(s, leaf, v);
    }
    while (s.n >= 2)
        merge_top(s);
    return s.top;
}

/* log of a normal x > 0 in f64 (NaN of NaN): rkvi_log of ops_math.h, operation by operation. */
static __device__ double log_of(double x)
{
    if (x != x)
        return x;
    uint64_t u = (uint64_t)__double_as_longlong(x);
    int e = (int)(u >> 52) - 1023;
    u = (u & 0xfffffffffffffull) | 0x3ff0000000000000ull;
    double f = __longlong_as_double((long long)u);
    if (f > 0x1.6a09e667f3bcdp0) {
        f = __dmul_rn(f, 0.5);
        e++;
    }
    const double s = __ddiv_rn(__dadd_rn(f, -1.0), __dadd_rn(f, 1.0)), z = __dmul_rn(s, s);
    double p = 0;
#pragma unroll
    for (int k = 19; k >= 1; k -= 2)
        p = __dadd_rn(__dmul_rn(p, z), 1.0 / k);
    return __dadd_rn(__dmul_rn((double)e, 0x1.62e42fefa39efp-1), __dmul_rn(__dmul_rn(2.0, s), p));
}

/* Infinity stays infinity here: out is the caller's tensor, not storage. */
static __device__ __forceinline__ void put(const rkvi_tensor &t, uint64_t row, uint32_t head,
                                           uint32_t x, float o)
{
    const int64_t at = (int64_t)row * t.row_stride + (int64_t)head * t.head_stride + x;
    switch (t.type) {
    case RKV_TYPE_F32: ((float *)t.data)[at] = o; break;
    case RKV_TYPE_F16: ((__half *)t.data)[at] = __float2half_rn(o); break;
    default: ((__nv_bfloat16 *)t.data)[at] = __float2bfloat16_rn(o);
    }
}

/* The sink joins as a partial of one cell with V = 0; the output is o / l. */
static __device__ void put_out(const rkvi_merge_args &a, uint64_t row, uint32_t head, uint32_t x,
                               value v)
{
    const float empty = rkvk_empty_m(), sink = a.sinks ? a.sinks[head] : empty;
    float m = v.m, l = v.l, e = 1;
    if (sink > empty) {
        const float top = m > sink ? m : sink;
        e = m == empty ? 0.0f : rkvk_expf(__fadd_rn(m, -top));
        l = __fadd_rn(__fmul_rn(l, e), rkvk_expf(__fadd_rn(sink, -top)));
        m = top;
    }
    if (x < a.dv)
        put(a.out, row, head, x, v.m == empty ? 0.0f : __fdiv_rn(__fmul_rn(v.o, e), l));
    if (a.lse && x == 0)
        a.lse[(int64_t)row * a.lse_row_stride + head] =
            m == empty ? m : __double2float_rn(__dadd_rn((double)m, log_of((double)l)));
}

static __device__ __forceinline__ uint32_t group_of(uint64_t leaf, uint32_t shift)
{
    return (uint32_t)(leaf >> shift) & (SPLITS - 1);
}

/* begin[y] = first node of group y, begin[SPLITS] = number of nodes. */
static __device__ void cut(const rkvi_merge_args &a, const rkvi_merge_item &item, uint32_t *begin)
{
    const uint32_t thread = threadIdx.y * blockDim.x + threadIdx.x, n_threads = blockDim.x * blockDim.y;
    const rkvi_node *nodes = a.nodes + item.node0;
    const uint32_t n = item.n_nodes;
    const uint64_t differ = n ? nodes[0].leaf0 ^ nodes[n - 1].leaf0 : 0;
    const uint32_t bits = 64u - (uint32_t)__clzll((long long)differ);
    const uint32_t shift = bits > SPLIT_BITS ? bits - SPLIT_BITS : 0;
    for (uint32_t i = thread; i <= n; i += n_threads) {
        /* groups that begin at node i: after the one of node i - 1, up to i's own */
        const uint32_t from = i ? group_of(nodes[i - 1].leaf0, shift) + 1 : 0;
        const uint32_t to = i < n ? group_of(nodes[i].leaf0, shift) : SPLITS;
        for (uint32_t g = from; g <= to; g++)
            begin[g] = i;
    }
}

/* The groups' roots, from shared memory, in the tree's order. */
static __device__ value join(const value *roots, uint32_t x, uint32_t width)
{
    value v[SPLITS];
#pragma unroll
    for (uint32_t g = 0; g < SPLITS; g++)
        v[g] = roots[g * width + x];
#pragma unroll
    for (uint32_t step = 1; step < SPLITS; step *= 2)
#pragma unroll
        for (uint32_t g = 0; g < SPLITS; g += 2 * step) {
            if (v[g].m == rkvk_empty_m())
                v[g] = v[g + step];
            else if (v[g + step].m != rkvk_empty_m())
                v[g] = merge(v[g], v[g + step]);
        }
    return v[0];
}

/* Block (index, part): rows part, part + ROWS_APART, .. of the item.  Where dv
 * needs more than a block's threads over SPLITS, a thread does several
 * elements, one after another. */
static __global__ void __launch_bounds__(MERGE_THREADS_MAX)
    rkvk_merge(const rkvi_merge_args a, const uint64_t n_blocks)
{
    extern __shared__ value roots[]; /* [SPLITS][blockDim.x] */
    __shared__ uint32_t begin[SPLITS + 1];
    const uint64_t block = rkvk_block();
    if (block >= n_blocks)
        return;
    const uint64_t index = block / ROWS_APART;
    const rkvi_merge_item item = a.items[index / a.q_heads];
    const uint32_t head = (uint32_t)(index % a.q_heads), y = threadIdx.y;
    const uint32_t part = (uint32_t)(block % ROWS_APART);
    if (part >= item.n_rows)
        return;
    cut(a, item, begin);
    __syncthreads();
    const uint64_t from = item.node0 + begin[y], to = item.node0 + begin[y + 1];
    const uint64_t row0 = (uint64_t)a.entries[item.entry].row0 + item.row;
    for (uint32_t r = part; r < item.n_rows; r += ROWS_APART)
        for (uint32_t x0 = 0; x0 < a.dv; x0 += blockDim.x) {
            const uint32_t x = x0 + threadIdx.x;
            roots[y * blockDim.x + threadIdx.x] = reduce(a, from, to, r, head, x);
            __syncthreads();
            if (y == 0) {
                const value v = join(roots, threadIdx.x, blockDim.x);
                if (item.dst == RKVI_TO_OUT)
                    put_out(a, row0 + r, head, x, v);
                else
                    write(a, item.dst + r, head, x, v);
            }
            __syncthreads();
        }
}

extern "C" int rkvk_launch_merge(const rkvi_merge_args *a, uint64_t grid, void *stream)
{
    if (grid == 0)
        return 0;
    /* Whole warps, so that a warp's lanes are of one group. */
    uint32_t width = (a->dv + 31) / 32 * 32;
    if (width > MERGE_THREADS_MAX / SPLITS)
        width = MERGE_THREADS_MAX / SPLITS;
    const uint64_t n_blocks = grid * ROWS_APART;
    return rkvk_run(rkvk_merge, a, n_blocks, rkvk_grid(n_blocks), dim3(width, SPLITS),
                    sizeof(value) * width * SPLITS, stream);
}

extern "C" int rkvk_prepare_merge(void)
{
    return rkvk_load((const void *)rkvk_merge, 0);
}
