/* SPDX-License-Identifier: MIT
 *
 * ops_merge.cu: the nodes of a row to one node, or to the output.
 *
 * A warp keeps 32 x VEC elements of o of one row and query head, each lane VEC
 * of them, and m and l in every lane alike; it takes nodes one after another and
 * merges them with a stack, as their leaf numbers say (rkvk_tree_merges).  The
 * warps of a block are [group][slice of o].
 *
 * Many nodes of few rows are shared among the groups: those are the aligned
 * parts into which the top bits in which the row's leaf numbers differ cut the
 * tree, so each group's nodes are a subtree of their own; reducing them side by
 * side and then the groups' roots is the same tree, merge by merge.
 *
 *   nodes      0 1 2 3 | 8 9 | 17 | 25 26       leaf numbers, top bits xx...
 *   group          0       1     2      3
 *   roots          \_____/       \____/
 *   row                 \________/
 *
 * Few nodes of many rows (a prefill's states): each group has a row of its own.
 *
 * Blocks start while the kernel before ends: what they read of the step's
 * tables, which that kernel does not write, comes before rkvk_wait_before.
 *
 * Values are those of the plain C reference (ops_ref_merge.c), bit by bit.
 */
#include "ops_cuda.h"
#include "rkvk_launch.cuh"
#include "rkvk_merge.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define MERGE_THREADS_MAX 512u
#define GROUPS_MAX 8u
#define SHARED_FLOATS 4096u /* the groups' roots: groups x dv at most */
/* Levels strictly fall along the stack, so it holds no more nodes than a row's
 * leaf numbers have bits: enough for 2^35 leaves. */
#define STACK_DEPTH 36u
#define CHUNK 32u     /* nodes whose slots, m and l a warp's lanes load, one each */
#define ROWS_APART 4u /* blocks over the rows of an item */
#define ALL_LANES 0xffffffffu

/* Loads of o that a lane issues at once; two such lots are under way. */
static __host__ __device__ constexpr uint32_t ahead(int vec)
{
    return 16u / (uint32_t)vec;
}

template <int VEC> struct value {
    float m, l, o[VEC];
};

template <int VEC>
static __device__ __forceinline__ value<VEC> merge(const value<VEC> &a, const value<VEC> &b)
{
    const rkvk_factors f = rkvk_merge_factors(a.m, b.m);
    value<VEC> v;
    v.m = f.m;
    v.l = rkvk_merge_value(f, a.l, b.l);
#pragma unroll
    for (int i = 0; i < VEC; i++)
        v.o[i] = rkvk_merge_value(f, a.o[i], b.o[i]);
    return v;
}

template <int VEC> static __device__ __forceinline__ value<VEC> empty_value(void)
{
    value<VEC> v;
    v.m = rkvk_empty_m();
    v.l = 0;
#pragma unroll
    for (int i = 0; i < VEC; i++)
        v.o[i] = 0;
    return v;
}

/* ------------------------------------------------------------------- stack */

/* Pending nodes, the same in all lanes but for o.  Two neighbours a < b meet at
 * the level of the highest bit of a ^ b; levels fall along the stack, so the set
 * of their bits is its shape, and pushing a node first merges all levels below
 * the one at which it meets the node before it. */
template <int VEC> struct stack {
    uint64_t levels, last_leaf;
    uint32_t n; /* below the top; the top is empty at first */
    value<VEC> top, below[STACK_DEPTH];
};

template <int VEC> static __device__ __forceinline__ void merge_top(stack<VEC> &s, uint32_t n)
{
#pragma unroll 1
    for (; n > 0; n--)
        s.top = merge(s.below[--s.n], s.top);
}

template <int VEC> static __device__ __forceinline__ void push(stack<VEC> &s, uint64_t leaf, const value<VEC> &v)
{
    if (v.m == rkvk_empty_m())
        return;
    if (s.top.m != rkvk_empty_m()) {
        const uint64_t bit = 0x8000000000000000ull >> __clzll((long long)(leaf ^ s.last_leaf));
        merge_top(s, (uint32_t)__popcll(s.levels & (bit - 1)));
        s.levels = (s.levels & ~(bit - 1)) | bit;
        s.below[s.n++] = s.top;
    }
    s.top = v;
    s.last_leaf = leaf;
}

/* ------------------------------------------------------------------- loads */

template <int VEC> struct lot {
    float o[ahead(VEC)][VEC];
};

static __device__ __forceinline__ void load_vec(float (&o)[4], const float *p)
{
    const float4 v = *reinterpret_cast<const float4 *>(p);
    o[0] = v.x, o[1] = v.y, o[2] = v.z, o[3] = v.w;
}

static __device__ __forceinline__ void load_vec(float (&o)[2], const float *p)
{
    const float2 v = *reinterpret_cast<const float2 *>(p);
    o[0] = v.x, o[1] = v.y;
}

/* What a warp reduces: one row and head, elements from x on; this lane's are
 * x .. x + VEC - 1 where is_inside. */
typedef struct place {
    const float *row; /* slot 0's partial of this row */
    uint64_t slot_floats;
    uint32_t o_at, m_at, q_heads, lane;
    bool is_inside;
} place;

/* o of the nodes that lanes [first, first + ahead) know. */
template <int VEC>
static __device__ __forceinline__ void load_lot(lot<VEC> &out, const place &p, uint64_t slot, uint32_t first,
                                                uint32_t n)
{
#pragma unroll
    for (uint32_t i = 0; i < ahead(VEC); i++) {
        const uint64_t at = __shfl_sync(ALL_LANES, slot, (int)((first + i) % CHUNK)) * p.slot_floats + p.o_at;
        if (first + i < n && p.is_inside)
            load_vec(out.o[i], p.row + at);
        else
#pragma unroll
            for (int k = 0; k < VEC; k++)
                out.o[i][k] = 0;
    }
}

/* A chunk's nodes, one a lane: what does not come from the kernel before. */
static __device__ __forceinline__ rkvi_node load_node(const rkvi_merge_args &a, uint64_t at, uint64_t to,
                                                      uint32_t lane)
{
    rkvi_node node = {0, 0};
    if (at + lane < to) {
        const ulonglong2 both = *reinterpret_cast<const ulonglong2 *>(a.nodes + at + lane);
        node.leaf0 = both.x;
        node.slot = both.y;
    }
    return node;
}

template <int VEC>
static __device__ __forceinline__ void push_lot(stack<VEC> &s, const lot<VEC> &lot, uint32_t first, uint32_t n,
                                                uint64_t leaf, float m, float l)
{
#pragma unroll
    for (uint32_t i = 0; i < ahead(VEC); i++) {
        if (first + i >= n)
            break;
        value<VEC> v;
        const uint64_t at = __shfl_sync(ALL_LANES, leaf, (int)(first + i));
        v.m = __shfl_sync(ALL_LANES, m, (int)(first + i));
        v.l = __shfl_sync(ALL_LANES, l, (int)(first + i));
#pragma unroll
        for (int k = 0; k < VEC; k++)
            v.o[k] = lot.o[i][k];
        push(s, at, v);
    }
}

/* Nodes [from, to) of one row; `node` is this lane's of the first chunk. */
template <int VEC>
static __device__ value<VEC> reduce(const rkvi_merge_args &a, const place &p, uint64_t from, uint64_t to,
                                    rkvi_node node)
{
    stack<VEC> s;
    s.levels = s.last_leaf = 0;
    s.n = 0;
    s.top = empty_value<VEC>();
    for (uint64_t at = from; at < to; at += CHUNK) {
        const uint32_t n = to - at < CHUNK ? (uint32_t)(to - at) : CHUNK;
        lot<VEC> even, odd;
        float m = rkvk_empty_m(), l = 0;
        if (at > from)
            node = load_node(a, at, to, p.lane);
        if (p.lane < n) {
            const float *ml = p.row + node.slot * p.slot_floats + p.m_at;
            m = ml[0];
            l = ml[p.q_heads];
        }
        load_lot(even, p, node.slot, 0, n);
        load_lot(odd, p, node.slot, ahead(VEC), n);
        for (uint32_t i = 0; i < n; i += 2 * ahead(VEC)) {
            push_lot(s, even, i, n, node.leaf0, m, l);
            load_lot(even, p, node.slot, i + 2 * ahead(VEC), n);
            push_lot(s, odd, i + ahead(VEC), n, node.leaf0, m, l);
            load_lot(odd, p, node.slot, i + 3 * ahead(VEC), n);
        }
    }
    merge_top(s, s.n);
    return s.top;
}

/* ------------------------------------------------------------------ output */

template <int VEC>
static __device__ __forceinline__ void write(const rkvi_merge_args &a, uint64_t slot, uint32_t head, uint32_t x,
                                             const value<VEC> &v)
{
    float *at = a.partials + slot * ((uint64_t)a.q_heads * (a.dv + 2));
    float *m = at + (uint64_t)a.q_heads * a.dv + head;
#pragma unroll
    for (int i = 0; i < VEC; i++)
        if (x < a.dv)
            at[(uint64_t)head * a.dv + x + i] = v.o[i];
    if (x == 0) {
        m[0] = v.m;
        m[a.q_heads] = v.l;
    }
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

/* N elements from `at` on, in one store where they lie so. */
template <typename T, int N> static __device__ __forceinline__ void put_vec(T *at, const T (&v)[N])
{
    struct __align__(sizeof(T) * N) whole {
        T v[N];
    };
    if (reinterpret_cast<uintptr_t>(at) % sizeof(whole) == 0) {
        whole w;
#pragma unroll
        for (int i = 0; i < N; i++)
            w.v[i] = v[i];
        *reinterpret_cast<whole *>(at) = w;
    } else
#pragma unroll
        for (int i = 0; i < N; i++)
            at[i] = v[i];
}

/* Infinity stays infinity here: out is the caller's tensor, not storage. */
template <int VEC>
static __device__ __forceinline__ void put(const rkvi_tensor &t, uint64_t row, uint32_t head, uint32_t x,
                                           const float (&o)[VEC])
{
    const int64_t at = (int64_t)row * t.row_stride + (int64_t)head * t.head_stride + x;
    uint16_t half[VEC];
    if (t.type == RKV_TYPE_F32) {
        put_vec((float *)t.data + at, o);
        return;
    }
#pragma unroll
    for (int i = 0; i < VEC; i++)
        half[i] = t.type == RKV_TYPE_F16 ? __half_as_ushort(__float2half_rn(o[i]))
                                         : __bfloat16_as_ushort(__float2bfloat16_rn(o[i]));
    put_vec((uint16_t *)t.data + at, half);
}

/* The sink joins as a partial of one cell with V = 0; the output is o / l. */
template <int VEC>
static __device__ void put_out(const rkvi_merge_args &a, uint64_t row, uint32_t head, uint32_t x, value<VEC> v)
{
    const float empty = rkvk_empty_m(), sink = a.sinks ? a.sinks[head] : empty;
    float m = v.m, l = v.l, e = 1;
    if (sink > empty) {
        const float top = m > sink ? m : sink;
        e = m == empty ? 0.0f : rkvk_expf(__fadd_rn(m, -top));
        l = __fadd_rn(__fmul_rn(l, e), rkvk_expf(__fadd_rn(sink, -top)));
        m = top;
    }
#pragma unroll
    for (int i = 0; i < VEC; i++)
        v.o[i] = v.m == empty ? 0.0f : __fdiv_rn(__fmul_rn(v.o[i], e), l);
    if (x < a.dv)
        put(a.out, row, head, x, v.o);
    if (a.lse && x == 0)
        a.lse[(int64_t)row * a.lse_row_stride + head] =
            m == empty ? m : __double2float_rn(__dadd_rn((double)m, log_of((double)l)));
}

/* ------------------------------------------------------------------- groups */

/* begin[y] = first node of group y of 2^split_bits, and at the end the number of nodes. */
static __device__ void cut(const rkvi_merge_args &a, const rkvi_merge_item &item, uint32_t *begin,
                           uint32_t split_bits)
{
    const uint32_t splits = 1u << split_bits;
    const uint32_t thread = threadIdx.y * blockDim.x + threadIdx.x, n_threads = blockDim.x * blockDim.y;
    const rkvi_node *nodes = a.nodes + item.node0;
    const uint32_t n = item.n_nodes;
    const uint64_t differ = n ? nodes[0].leaf0 ^ nodes[n - 1].leaf0 : 0;
    const uint32_t bits = 64u - (uint32_t)__clzll((long long)differ);
    const uint32_t shift = bits > split_bits ? bits - split_bits : 0;
    for (uint32_t i = thread; i <= n; i += n_threads) {
        /* groups that begin at node i: after the one of node i - 1, up to i's own */
        const uint32_t from = i ? ((uint32_t)(nodes[i - 1].leaf0 >> shift) & (splits - 1)) + 1 : 0;
        const uint32_t to = i < n ? (uint32_t)(nodes[i].leaf0 >> shift) & (splits - 1) : splits;
        for (uint32_t g = from; g <= to; g++)
            begin[g] = i;
    }
}

/* The groups' roots, in shared memory: o[group][dv], and m and l of each. */
typedef struct roots {
    float o[SHARED_FLOATS];
    float2 ml[GROUPS_MAX];
} roots;

template <int VEC>
static __device__ __forceinline__ void put_root(roots &r, uint32_t group, uint32_t dv, uint32_t x,
                                                const value<VEC> &v)
{
#pragma unroll
    for (int i = 0; i < VEC; i++)
        if (x < dv)
            r.o[group * dv + x + i] = v.o[i];
    if (x == 0)
        r.ml[group] = make_float2(v.m, v.l);
}

/* In the tree's order. */
template <int VEC, int GROUPS>
static __device__ __forceinline__ value<VEC> join(const roots &r, uint32_t dv, uint32_t x)
{
    value<VEC> v[GROUPS];
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        v[g].m = r.ml[g].x;
        v[g].l = r.ml[g].y;
#pragma unroll
        for (int i = 0; i < VEC; i++)
            v[g].o[i] = x < dv ? r.o[g * dv + x + i] : 0;
    }
#pragma unroll
    for (int step = 1; step < GROUPS; step *= 2)
#pragma unroll
        for (int g = 0; g < GROUPS; g += 2 * step) {
            if (v[g].m == rkvk_empty_m())
                v[g] = v[g + step];
            else if (v[g + step].m != rkvk_empty_m())
                v[g] = merge(v[g], v[g + step]);
        }
    return v[0];
}

/* ------------------------------------------------------------------- kernel */

template <int VEC>
static __device__ __forceinline__ void finish(const rkvi_merge_args &a, const rkvi_merge_item &item, uint32_t r,
                                              uint32_t head, uint32_t x, const value<VEC> &v)
{
    if (item.dst == RKVI_TO_OUT)
        put_out(a, (uint64_t)a.entries[item.entry].row0 + item.row + r, head, x, v);
    else
        write(a, item.dst + r, head, x, v);
}

/* Block (index, part): rows part, part + ROWS_APART, .. of the item.  A merged
 * node may take the slot of one of the row's own: all is read before it is written. */
template <int VEC, int GROUPS>
static __global__ void __launch_bounds__(MERGE_THREADS_MAX)
    rkvk_merge(const rkvi_merge_args a, const uint64_t n_blocks)
{
    __shared__ roots roots;
    __shared__ uint32_t begin[GROUPS + 1];
    const uint64_t block = rkvk_block(), index = block / ROWS_APART;
    const uint32_t part = (uint32_t)(block % ROWS_APART), y = threadIdx.y, x = threadIdx.x * VEC;
    const bool is_block = block < n_blocks;
    const rkvi_merge_item item = a.items[is_block ? index / a.q_heads : 0];
    const uint32_t head = (uint32_t)(index % a.q_heads);
    const bool is_split = item.n_nodes > 2 && item.n_rows < ROWS_APART * GROUPS;
    if (!is_block || part >= item.n_rows) {
        rkvk_wait_before();
        return;
    }
    if (is_split)
        cut(a, item, begin, (uint32_t)__ffs(GROUPS) - 1);
    __syncthreads();
    const uint64_t from = item.node0 + (is_split ? begin[y] : 0);
    const uint64_t to = item.node0 + (is_split ? begin[y + 1] : item.n_nodes);
    place p = {NULL, (uint64_t)a.q_heads * (a.dv + 2), head * a.dv + x, a.q_heads * a.dv + head, a.q_heads,
               threadIdx.x % 32, x < a.dv};
    const rkvi_node node = load_node(a, from, to, p.lane);
    rkvk_wait_before();
    rkvk_start_next();
    const uint32_t rows = is_split ? 1 : GROUPS; /* of the block at a time */
    for (uint32_t r0 = part; r0 < item.n_rows; r0 += ROWS_APART * rows) {
        const uint32_t r = r0 + (is_split ? 0 : y * ROWS_APART);
        value<VEC> v = empty_value<VEC>();
        p.row = a.partials + r * p.slot_floats;
        if (r < item.n_rows)
            v = reduce<VEC>(a, p, from, to, node);
        if (is_split)
            put_root(roots, y, a.dv, x, v);
        __syncthreads();
        if (is_split && y == 0)
            finish(a, item, r, head, x, join<VEC, GROUPS>(roots, a.dv, x));
        else if (!is_split && r < item.n_rows)
            finish(a, item, r, head, x, v);
        __syncthreads();
    }
}

typedef void (*merge_fn)(rkvi_merge_args, uint64_t);

/* [VEC / 4][log2(GROUPS)] */
#define WAYS 4
static const merge_fn merges[2][WAYS] = {
    {rkvk_merge<2, 1>, rkvk_merge<2, 2>, rkvk_merge<2, 4>, rkvk_merge<2, 8>},
    {rkvk_merge<4, 1>, rkvk_merge<4, 2>, rkvk_merge<4, 4>, rkvk_merge<4, 8>}};

/* Elements a lane: partials of an odd number of heads begin at multiples of 8
 * bytes alone.  As many groups as threads and shared memory have room for. */
static merge_fn choose(const rkvi_merge_args *a, dim3 *out_block)
{
    const bool is_wide = a->q_heads % 2 == 0 && a->dv % 4 == 0;
    const uint32_t vec = is_wide ? 4 : 2, threads = (a->dv / vec + 31) / 32 * 32;
    int way = WAYS - 1;
    while (way > 0 && (threads << way > MERGE_THREADS_MAX || a->dv << way > SHARED_FLOATS))
        way--;
    *out_block = dim3(threads, 1u << way);
    return a->dv % 2 == 0 && threads <= MERGE_THREADS_MAX ? merges[is_wide][way] : NULL;
}

extern "C" int rkvk_launch_merge(const rkvi_merge_args *a, uint64_t grid, void *stream)
{
    dim3 block;
    const merge_fn fn = choose(a, &block);
    const uint64_t n_blocks = grid * ROWS_APART;
    if (grid == 0)
        return 0;
    return fn ? rkvk_run_early(fn, a, n_blocks, rkvk_grid(n_blocks), block, 0, stream) : (int)cudaErrorInvalidValue;
}

extern "C" int rkvk_prepare_merge(void)
{
    int e = 0;
    for (int i = 0; i < 2 * WAYS && e == 0; i++)
        e = rkvk_load((const void *)merges[i / WAYS][i % WAYS], 0);
    return e;
}
