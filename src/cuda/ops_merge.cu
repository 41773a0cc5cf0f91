/* SPDX-License-Identifier: MIT
 *
 * ops_merge.cu: the nodes of a row to one node, or to the output.
 *
 * A block takes one row and query head at a time.  Thread (x, y) keeps element
 * x of o; y is one of 2^B groups of nodes.  The groups are the aligned parts
 * into which the top B bits in which the row's leaf numbers differ cut the
 * tree (B = 2 here), so each group's nodes are a subtree of their own: reducing them side by
 * side and then the groups' roots is the same tree, merge by merge.
 *
 *   nodes      0 1 2 3 | 8 9 | 17 | 25 26       leaf numbers, top bits xx...
 *   group y       0       1     2      3
 *   roots          \_____/       \____/
 *   row                 \________/
 *
 * The merges of a tree and what they multiply by follow from leaf numbers and m
 * alone.  So a group takes its nodes in chunks of 32: its first warp, a lane a
 * node, writes the chunk's merges down in shared memory (plan_chunk), while the
 * loads of o, which depend on none of it, are under way; then each thread runs
 * them on its element and on l (run_chunk).
 *
 * Values are those of the plain C reference (ops_ref_merge.c), bit by bit.
 */
#include "ops_cuda.h"
#include "rkvk_launch.cuh"
#include "rkvk_merge.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define SPLIT_BITS_MIN 2u /* for dv > 128; else there are threads for twice as many groups */
#define SPLIT_BITS_MAX 3u
#define SPLITS_MAX (1u << SPLIT_BITS_MAX)
#define MERGE_THREADS_MAX 1024u
/* Levels strictly fall along the stack, so below its top it holds one node less
 * than a group's leaf numbers have bits: enough for 2^35 leaves. */
#define STACK_DEPTH 32u
#define CHUNK 32u     /* nodes: a lane each */
#define AHEAD 8u      /* loads of o that a thread issues at once; two such lots are under way */
#define ROWS_APART 4u /* blocks over the rows of an item */
#define ALL_LANES 0xffffffffu
#define DEAD 0xffu /* in `before`: an empty node, or none */

typedef struct value {
    float m, l, o;
} value;

/* The merges of a chunk's nodes, and those of what is pending from before. */
typedef struct program {
    float2 factors[STACK_DEPTH + CHUNK]; /* of the lower and the upper side, in order */
    float l[CHUNK];
    uint8_t before[CHUNK]; /* merges before the node is pushed */
    uint32_t n_end;        /* merges after the last node: all that is left, at the group's end */
    float m;               /* of the top after all this */
} program;

/* The group's pending nodes as its first warp sees them, alike in all lanes but
 * for m: lane i keeps entry i's.  Two neighbours a < b of the stack meet at the
 * level of the highest bit of a ^ b; as levels fall along the stack, the set of
 * their bits is the stack's shape, and pushing a node first merges all levels
 * below the one at which it meets the node before it (rkvk_tree_merges). */
typedef struct shape {
    uint32_t n; /* the top included, which lies in `top` */
    uint64_t levels;
    uint64_t last_leaf; /* of the last node pushed */
    float top, m;
} shape;

/* A block's: chunks write to two programs by turns, so that one barrier a chunk
 * suffices; shapes wait here from chunk to chunk, a lane's each, to save registers. */
typedef struct plans {
    program programs[2][SPLITS_MAX];
    shape shapes[SPLITS_MAX][32];
} plans;

static __device__ __forceinline__ value merge(value a, value b)
{
    const rkvk_factors f = rkvk_merge_factors(a.m, b.m);
    const value v = {f.m, rkvk_merge_value(f, a.l, b.l), rkvk_merge_value(f, a.o, b.o)};
    return v;
}

static __device__ __forceinline__ const float *partial_at(const rkvi_merge_args &a, uint64_t slot)
{
    return a.partials + slot * ((uint64_t)a.q_heads * (a.dv + 2));
}

/* ------------------------------------------------------------- the program */

/* Sides of the chunk's merges: lane i has the i-th and the (i + 32)-th. */
typedef struct sides {
    uint32_t n;
    float lower[2], upper[2];
} sides;

static __device__ __forceinline__ void plan_merges(shape &s, sides &out, uint32_t n, uint32_t lane)
{
#pragma unroll 1
    for (; n > 0; n--) {
        const float below = __shfl_sync(ALL_LANES, s.m, (int)s.n - 2);
        if (lane == out.n % 32) {
            const bool second = out.n >= 32;
            out.lower[0] = second ? out.lower[0] : below;
            out.upper[0] = second ? out.upper[0] : s.top;
            out.lower[1] = below; /* until the second comes, of no meaning */
            out.upper[1] = s.top;
        }
        s.top = rkvk_merge_m(below, s.top);
        s.n--;
        out.n++;
    }
}

/* Pushes a node that meets the one before it at `level`; returns how many
 * merges come first. */
static __device__ __forceinline__ uint32_t plan_push(shape &s, sides &out, uint32_t level, float m,
                                                     uint32_t lane)
{
    uint32_t n = 0;
    if (s.n > 0) {
        const uint64_t bit = (uint64_t)1 << level;
        n = (uint32_t)__popcll(s.levels & (bit - 1));
        plan_merges(s, out, n, lane);
        s.levels = (s.levels & ~(bit - 1)) | bit;
        if (lane == s.n - 1)
            s.m = s.top;
    }
    s.n++;
    s.top = m;
    return n;
}

/* Nodes [at, at + CHUNK) of a group that ends at `to`: what a whole warp does. */
static __device__ void plan_chunk(const rkvi_merge_args &a, uint64_t at, uint64_t to, uint32_t r,
                                  uint32_t head, shape &kept, program &out)
{
    const uint32_t lane = threadIdx.x;
    shape s = kept;
    uint64_t leaf = 0;
    float m = rkvk_empty_m(), l = 0;
    if (at + lane < to) {
        const rkvi_node node = a.nodes[at + lane];
        const float *p = partial_at(a, node.slot + r) + (uint64_t)a.q_heads * a.dv + head;
        leaf = node.leaf0;
        m = p[0];
        l = p[a.q_heads];
    }
    const uint32_t live = __ballot_sync(ALL_LANES, m != rkvk_empty_m());
    const uint32_t earlier = live & ((1u << lane) - 1);
    const uint64_t neighbour = __shfl_sync(ALL_LANES, leaf, earlier ? 31 - __clz((int)earlier) : 0);
    const uint32_t level =
        63u - (uint32_t)__clzll((long long)(leaf ^ (earlier ? neighbour : s.last_leaf)));
    uint32_t before = DEAD;
    sides pairs = {0, {0, 0}, {0, 0}};
    for (uint32_t todo = live; todo; todo &= todo - 1) {
        const int j = __ffs((int)todo) - 1;
        const uint32_t n =
            plan_push(s, pairs, __shfl_sync(ALL_LANES, level, j), __shfl_sync(ALL_LANES, m, j), lane);
        before = (int)lane == j ? n : before;
    }
    if (live)
        s.last_leaf = __shfl_sync(ALL_LANES, leaf, 31 - __clz((int)live));
    const uint32_t n_end = at + CHUNK >= to && s.n > 1 ? s.n - 1 : 0;
    plan_merges(s, pairs, n_end, lane);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
        if (lane + 32 * i < pairs.n) {
            const rkvk_factors f = rkvk_merge_factors(pairs.lower[i], pairs.upper[i]);
            out.factors[lane + 32 * i] = make_float2(f.a, f.b);
        }
    kept = s;
    out.l[lane] = l;
    out.before[lane] = (uint8_t)before;
    if (lane == 0) {
        out.n_end = n_end;
        out.m = s.top;
    }
}

/* ----------------------------------------------------------------- elements */

/* A thread's pending nodes: its element of o, and l. */
typedef struct stack {
    uint32_t n; /* the top included, which lies in `top` */
    float2 top;
    float2 below[STACK_DEPTH];
} stack;

static __device__ __forceinline__ void run_merges(stack &s, const float2 *&factors, uint32_t n)
{
#pragma unroll 1
    for (; n > 0; n--) {
        const float2 ab = *factors++, low = s.below[s.n - 2];
        const rkvk_factors f = {0, ab.x, ab.y};
        s.top.x = rkvk_merge_value(f, low.x, s.top.x);
        s.top.y = rkvk_merge_value(f, low.y, s.top.y);
        s.n--;
    }
}

static __device__ __forceinline__ void run_nodes(stack &s, const float2 *&factors, const program &p,
                                                 uint32_t first, const float (&o)[AHEAD])
{
#pragma unroll
    for (uint32_t i = 0; i < AHEAD; i++) {
        const uint32_t before = p.before[first + i];
        if (before == DEAD)
            continue;
        run_merges(s, factors, before);
        if (s.n > 0)
            s.below[s.n - 1] = s.top;
        s.n++;
        s.top = make_float2(o[i], p.l[first + i]);
    }
}

/* Element x of nodes [first, first + AHEAD) of n, which are at `nodes`. */
static __device__ __forceinline__ void load_nodes(float (&o)[AHEAD], const rkvi_merge_args &a,
                                                  const rkvi_node *nodes, uint32_t first, uint32_t n,
                                                  uint64_t at)
{
#pragma unroll
    for (uint32_t i = 0; i < AHEAD; i++)
        o[i] = first + i < n ? partial_at(a, nodes[first + i].slot)[at] : 0.0f;
}

/* Nodes [from, to) of one row.  All of the block take part in n_chunks chunks. */
static __device__ value reduce(const rkvi_merge_args &a, uint64_t from, uint64_t to, uint32_t n_chunks,
                               uint32_t r, uint32_t head, uint32_t x, plans &plans)
{
    /* from row 0's partial on */
    const uint64_t element = r * ((uint64_t)a.q_heads * (a.dv + 2)) + (uint64_t)head * a.dv + x;
    stack s;
    float m = rkvk_empty_m();
    s.n = 0;
    s.top = make_float2(0, 0);
    if (threadIdx.x < 32)
        plans.shapes[threadIdx.y][threadIdx.x] = {0, 0, 0, rkvk_empty_m(), 0};
    for (uint32_t c = 0; c < n_chunks; c++) {
        const uint64_t at = from + (uint64_t)c * CHUNK;
        const uint32_t n = at >= to ? 0 : to - at < CHUNK ? (uint32_t)(to - at) : CHUNK;
        program &p = plans.programs[c % 2][threadIdx.y];
        const rkvi_node *nodes = a.nodes + at;
        const uint32_t n_loaded = x < a.dv ? n : 0;
        float even[AHEAD], odd[AHEAD];
        load_nodes(even, a, nodes, 0, n_loaded, element);
        load_nodes(odd, a, nodes, AHEAD, n_loaded, element);
        if (threadIdx.x < 32)
            plan_chunk(a, at, to, r, head, plans.shapes[threadIdx.y][threadIdx.x], p);
        __syncthreads();
        const float2 *factors = p.factors;
        for (uint32_t i = 0; i < n; i += 2 * AHEAD) {
            run_nodes(s, factors, p, i, even);
            load_nodes(even, a, nodes, i + 2 * AHEAD, n_loaded, element);
            run_nodes(s, factors, p, i + AHEAD, odd);
            load_nodes(odd, a, nodes, i + 3 * AHEAD, n_loaded, element);
        }
        run_merges(s, factors, p.n_end);
        m = p.m;
    }
    const value v = {m, s.top.y, s.top.x};
    return v;
}

/* ------------------------------------------------------------------ output */

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

/* The groups' roots, from shared memory, in the tree's order. */
template <uint32_t SPLITS> static __device__ value join(const value *roots, uint32_t x, uint32_t width)
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
template <uint32_t SPLIT_BITS>
static __global__ void __launch_bounds__(MERGE_THREADS_MAX)
    rkvk_merge(const rkvi_merge_args a, const uint64_t n_blocks)
{
    constexpr uint32_t SPLITS = 1u << SPLIT_BITS;
    extern __shared__ value roots[]; /* [SPLITS][blockDim.x] */
    __shared__ uint32_t begin[SPLITS + 1];
    __shared__ plans plans;
    const uint64_t block = rkvk_block();
    if (block >= n_blocks)
        return;
    const uint64_t index = block / ROWS_APART;
    const rkvi_merge_item item = a.items[index / a.q_heads];
    const uint32_t head = (uint32_t)(index % a.q_heads), y = threadIdx.y;
    const uint32_t part = (uint32_t)(block % ROWS_APART);
    if (part >= item.n_rows)
        return;
    cut(a, item, begin, SPLIT_BITS);
    __syncthreads();
    const uint64_t from = item.node0 + begin[y], to = item.node0 + begin[y + 1];
    uint32_t n_chunks = 0; /* of the longest group */
    for (uint32_t g = 0; g < SPLITS; g++)
        n_chunks = max(n_chunks, (begin[g + 1] - begin[g] + CHUNK - 1) / CHUNK);
    const uint64_t row0 = (uint64_t)a.entries[item.entry].row0 + item.row;
    for (uint32_t r = part; r < item.n_rows; r += ROWS_APART)
        for (uint32_t x0 = 0; x0 < a.dv; x0 += blockDim.x) {
            const uint32_t x = x0 + threadIdx.x;
            roots[y * blockDim.x + threadIdx.x] = reduce(a, from, to, n_chunks, r, head, x, plans);
            __syncthreads();
            if (y == 0) {
                const value v = join<SPLITS>(roots, threadIdx.x, blockDim.x);
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
    const uint32_t whole = (a->dv + 31) / 32 * 32, most = MERGE_THREADS_MAX >> SPLIT_BITS_MIN;
    const bool narrow = whole <= MERGE_THREADS_MAX >> SPLIT_BITS_MAX;
    const dim3 block(whole < most ? whole : most, 1u << (narrow ? SPLIT_BITS_MAX : SPLIT_BITS_MIN));
    const uint64_t n_blocks = grid * ROWS_APART;
    return rkvk_run(narrow ? rkvk_merge<SPLIT_BITS_MAX> : rkvk_merge<SPLIT_BITS_MIN>, a, n_blocks,
                    rkvk_grid(n_blocks), block, sizeof(value) * block.x * block.y, stream);
}

extern "C" int rkvk_prepare_merge(void)
{
    const int e = rkvk_load((const void *)rkvk_merge<SPLIT_BITS_MIN>, 0);
    return e ? e : rkvk_load((const void *)rkvk_merge<SPLIT_BITS_MAX>, 0);
}
