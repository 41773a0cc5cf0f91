/* SPDX-License-Identifier: MIT
 *
 * ops_merge.cu: the nodes of a row to one node, or to the output.
 *
 * A warp keeps a slice of 32 x VEC elements of o of one row and query head, each
 * lane VEC of them, and m and l in every lane alike; it takes nodes one after
 * another and merges them with a stack, as their leaf numbers say
 * (rkvk_tree_merges).  A block's warps are groups of the same slice.
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
 * The code is short on purpose: between two merges of a step other kernels stream
 * gigabytes through the caches, so each instruction comes from memory again.
 *
 * Blocks start while the kernel before ends: what they read of the step's
 * tables, which that kernel does not write, comes before rkvk_wait_before.
 *
 * Values are those of the plain C reference (ops_ref_merge.c), bit by bit.
 */
#include "ops_cuda.h"
#include "rkvk_launch.cuh"
#include "rkvk_merge_out.cuh"

#define SPLIT_BITS 4u
#define GROUPS (1u << SPLIT_BITS) /* warps of a block */
/* Levels strictly fall along the stack, so it holds no more nodes than a row's
 * leaf numbers have bits: enough for 2^35 leaves. */
#define STACK_DEPTH 36u
#define STACK_NEAR 4u /* of them in shared memory: a group's nodes seldom need more */
#define CHUNK 32u     /* nodes whose slots, m and l a warp's lanes load, one each */
#define LOT 4u        /* nodes whose o a lane loads at once */
#define ROWS_APART 4u /* blocks over the rows of an item, where it has so many: more wait for one another */
#define BLOCKS_FEW 256u /* that run side by side: so many rather have fewer rows each */
#define ALL_LANES 0xffffffffu

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

static __device__ __forceinline__ void store_vec(float *p, const float (&o)[4])
{
    *reinterpret_cast<float4 *>(p) = make_float4(o[0], o[1], o[2], o[3]);
}

static __device__ __forceinline__ void store_vec(float *p, const float (&o)[2])
{
    *reinterpret_cast<float2 *>(p) = make_float2(o[0], o[1]);
}

/* ------------------------------------------------------------------- stack */

/* A warp's: o of a lot that has arrived, each lane's own; the near end of its
 * stack, whose first place holds the group's root at the end. */
template <int VEC> struct __align__(16) room {
    float lot[LOT][32 * VEC], o[STACK_NEAR][32 * VEC];
    float2 ml[STACK_NEAR];
};

template <int VEC> static __device__ __forceinline__ void put_near(room<VEC> &at, uint32_t i, const value<VEC> &v)
{
    store_vec(&at.o[i][threadIdx.x * VEC], v.o);
    if (threadIdx.x == 0)
        at.ml[i] = make_float2(v.m, v.l);
}

template <int VEC> static __device__ __forceinline__ value<VEC> get_near(const room<VEC> &at, uint32_t i)
{
    value<VEC> v;
    v.m = at.ml[i].x;
    v.l = at.ml[i].y;
    load_vec(v.o, &at.o[i][threadIdx.x * VEC]);
    return v;
}

/* Pending nodes, the same in all lanes but for o.  Two neighbours a < b meet at
 * the level of the highest bit of a ^ b; levels fall along the stack, so the set
 * of their bits is its shape, and pushing a node first merges all levels below
 * the one at which it meets the node before it. */
template <int VEC> struct stack {
    uint64_t levels;
    uint32_t n; /* below the top; the top is empty at first */
    value<VEC> top, far_end[STACK_DEPTH - STACK_NEAR];
};

template <int VEC> static __device__ __forceinline__ void merge_top(stack<VEC> &s, const room<VEC> &at, uint32_t n)
{
#pragma unroll 1
    for (; n > 0; n--) {
        s.n--;
        s.top = merge(s.n < STACK_NEAR ? get_near(at, s.n) : s.far_end[s.n - STACK_NEAR], s.top);
    }
}

template <int VEC>
static __device__ __forceinline__ void push(stack<VEC> &s, room<VEC> &at, uint32_t level, const value<VEC> &v)
{
    if (s.top.m != rkvk_empty_m()) {
        const uint64_t bit = (uint64_t)1 << level;
        merge_top(s, at, (uint32_t)__popcll(s.levels & (bit - 1)));
        s.levels = (s.levels & ~(bit - 1)) | bit;
        __syncwarp(); /* m and l are lane 0's to write */
        if (s.n < STACK_NEAR)
            put_near(at, s.n, s.top);
        else
            s.far_end[s.n - STACK_NEAR] = s.top;
        s.n++;
        __syncwarp();
    }
    s.top = v;
}

/* ------------------------------------------------------------------- nodes */

/* What a warp reduces: one row and head, a slice of o. */
typedef struct place {
    const float *row; /* slot 0's partial of this row */
    uint64_t slot_floats;
    uint32_t o_at, m_at, q_heads; /* floats from a partial's begin: this lane's o, m */
    bool is_inside;               /* of dv */
} place;

/* A chunk's nodes, one a lane: what does not come from the kernel before. */
static __device__ __forceinline__ rkvi_node load_node(const rkvi_merge_args &a, uint64_t at, uint64_t to)
{
    rkvi_node node = {0, 0};
    if (at + threadIdx.x < to) {
        const ulonglong2 both = *reinterpret_cast<const ulonglong2 *>(a.nodes + at + threadIdx.x);
        node.leaf0 = both.x;
        node.slot = both.y;
    }
    return node;
}

/* The level at which each lane's node meets the live one before it. */
static __device__ __forceinline__ uint32_t level_of(uint64_t leaf, uint32_t live, uint64_t &last_leaf)
{
    const uint32_t earlier = live & ((1u << threadIdx.x) - 1);
    const uint64_t neighbour = __shfl_sync(ALL_LANES, leaf, earlier ? 31 - __clz((int)earlier) : 0);
    const uint64_t differ = leaf ^ (earlier ? neighbour : last_leaf);
    if (live)
        last_leaf = __shfl_sync(ALL_LANES, leaf, 31 - __clz((int)live));
    return 63u - (uint32_t)__clzll((long long)differ);
}

/* o of the nodes that lanes [first, first + LOT) know, as far as there are n.
 * `from`: floats from p.row to each lane's partial. */
template <int VEC>
static __device__ __forceinline__ void load_lot(float (&o)[LOT][VEC], const place &p, uint64_t from, uint32_t first,
                                                uint32_t n)
{
#pragma unroll
    for (uint32_t i = 0; i < LOT; i++) {
        const uint64_t at = __shfl_sync(ALL_LANES, from, (int)((first + i) % CHUNK)) + p.o_at;
#pragma unroll
        for (int k = 0; k < VEC; k++)
            o[i][k] = 0;
        if (first + i < n && p.is_inside)
            load_vec(o[i], p.row + at);
    }
}

/* Nodes [from, to) of one row; `node` is this lane's of the first chunk. */
template <int VEC>
static __device__ __forceinline__ value<VEC> reduce(const rkvi_merge_args &a, const place &p, uint64_t from,
                                                    uint64_t to, rkvi_node node, room<VEC> &at)
{
    stack<VEC> s;
    uint64_t last_leaf = 0;
    s.levels = 0;
    s.n = 0;
    s.top.m = rkvk_empty_m();
    s.top.l = 0;
#pragma unroll
    for (int k = 0; k < VEC; k++)
        s.top.o[k] = 0;
#pragma unroll 1
    for (uint64_t c = from; c < to; c += CHUNK) {
        const uint32_t n = to - c < CHUNK ? (uint32_t)(to - c) : CHUNK;
        float o[LOT][VEC], m = rkvk_empty_m(), l = 0;
        if (c > from)
            node = load_node(a, c, to);
        const uint64_t partial = node.slot * p.slot_floats;
        if (threadIdx.x < n) {
            m = p.row[partial + p.m_at];
            l = p.row[partial + p.m_at + p.q_heads];
        }
        load_lot(o, p, partial, 0, n);
        const uint32_t live = __ballot_sync(ALL_LANES, m != rkvk_empty_m());
        const uint32_t level = level_of(node.leaf0, live, last_leaf);
#pragma unroll 1
        for (uint32_t i = 0; i < n; i++) {
            if (i % LOT == 0) {
#pragma unroll
                for (uint32_t k = 0; k < LOT; k++)
                    store_vec(&at.lot[k][threadIdx.x * VEC], o[k]);
                load_lot(o, p, partial, i + LOT, n);
            }
            if (!(live >> i & 1))
                continue;
            value<VEC> v;
            const uint32_t meets = __shfl_sync(ALL_LANES, level, (int)i);
            v.m = __shfl_sync(ALL_LANES, m, (int)i);
            v.l = __shfl_sync(ALL_LANES, l, (int)i);
            load_vec(v.o, &at.lot[i % LOT][threadIdx.x * VEC]);
            push(s, at, meets, v);
        }
    }
    merge_top(s, at, s.n);
    return s.top;
}

/* ------------------------------------------------------------------ output */

template <int VEC>
static __device__ __forceinline__ void write(const rkvi_merge_args &a, uint64_t slot, uint32_t head, uint32_t x,
                                             const value<VEC> &v)
{
    float *at = a.partials + slot * ((uint64_t)a.q_heads * (a.dv + 2));
    float *m = at + (uint64_t)a.q_heads * a.dv + head;
    if (x < a.dv)
        store_vec(at + (uint64_t)head * a.dv + x, v.o);
    if (x == 0) {
        m[0] = v.m;
        m[a.q_heads] = v.l;
    }
}

/* ------------------------------------------------------------------- groups */

/* The first leaves of a node and of the one before it; 0 where there is none. */
typedef struct leaves {
    uint64_t before, at;
} leaves;

static __device__ __forceinline__ leaves leaves_at(const rkvi_node *nodes, uint32_t i, uint32_t n)
{
    const leaves l = {i > 0 && i <= n ? nodes[i - 1].leaf0 : 0, i < n ? nodes[i].leaf0 : 0};
    return l;
}

/* begin[y] = first node of group y, and at the end the number of nodes. */
static __device__ __forceinline__ void cut(const rkvi_merge_args &a, const rkvi_merge_item &item, uint32_t *begin)
{
    const uint32_t thread = threadIdx.y * blockDim.x + threadIdx.x, n_threads = blockDim.x * blockDim.y;
    const rkvi_node *nodes = a.nodes + item.node0;
    const uint32_t n = item.n_nodes;
    leaves l = leaves_at(nodes, thread, n); /* at once with the row's ends: each comes from memory */
    const uint64_t differ = n ? nodes[0].leaf0 ^ nodes[n - 1].leaf0 : 0;
    const uint32_t bits = 64u - (uint32_t)__clzll((long long)differ);
    const uint32_t shift = bits > SPLIT_BITS ? bits - SPLIT_BITS : 0;
#pragma unroll 1
    for (uint32_t i = thread; i <= n; i += n_threads, l = leaves_at(nodes, i, n)) {
        /* groups that begin at node i: after the one of node i - 1, up to i's own */
        const uint32_t from = i ? ((uint32_t)(l.before >> shift) & (GROUPS - 1)) + 1 : 0;
        const uint32_t to = i < n ? (uint32_t)(l.at >> shift) & (GROUPS - 1) : GROUPS;
#pragma unroll 1
        for (uint32_t g = from; g <= to; g++)
            begin[g] = i;
    }
}

/* The groups' roots in the tree's order: group 0 has the result. */
template <int VEC> static __device__ __forceinline__ void join(room<VEC> *rooms, value<VEC> &v)
{
    const uint32_t y = threadIdx.y;
    __syncwarp(); /* all lanes have taken m and l of what was pending */
#pragma unroll 1
    for (uint32_t step = 1; step < GROUPS; step *= 2) {
        if (y % (2 * step) == step)
            put_near(rooms[y], 0, v);
        __syncthreads();
        if (y % (2 * step) == 0) {
            const value<VEC> other = get_near(rooms[y + step], 0);
            if (v.m == rkvk_empty_m())
                v = other;
            else if (other.m != rkvk_empty_m())
                v = merge(v, other);
        }
    }
}

/* ------------------------------------------------------------------- kernel */

typedef struct merge_args {
    rkvi_merge_args a;
    uint32_t parts;
} merge_args;

/* What a block is about. */
typedef struct job {
    rkvi_merge_item item;
    uint32_t head, part, parts; /* block `part` of `parts` over the rows */
    bool is_split;
    uint64_t from, to; /* nodes of this warp's group */
    uint64_t row;      /* of the item's first, in the output */
    rkvi_node node;    /* this lane's of the first chunk */
} job;

/* One slice of one row, or of a row a group. */
template <int VEC>
static __device__ __forceinline__ void slice(const rkvi_merge_args &a, const job &j, uint32_t r0, uint32_t x0,
                                             room<VEC> *rooms)
{
    const uint32_t y = threadIdx.y, x = x0 + threadIdx.x * VEC;
    const uint32_t r = r0 + (j.is_split ? 0 : y * j.parts);
    const bool is_row = r < j.item.n_rows;
    const uint64_t slot_floats = (uint64_t)a.q_heads * (a.dv + 2);
    const place p = {a.partials + r * slot_floats, slot_floats, j.head * a.dv + x, a.q_heads * a.dv + j.head, a.q_heads,
                     x < a.dv};
    value<VEC> v = reduce<VEC>(a, p, j.from, is_row ? j.to : j.from, j.node, rooms[y]);
    if (j.is_split)
        join(rooms, v);
    else
        __syncthreads();
    if (!is_row || (j.is_split && y > 0))
        return;
    if (j.item.dst == RKVI_TO_OUT)
        rkvk_out_put(a, j.row + r, j.head, x, v.m, v.l, v.o);
    else
        write(a, j.item.dst + r, j.head, x, v);
}

/* Block (part, slice, (item, head)): rows part, part + parts, .. of the item.  Blocks that
 * have work where rows are few come first.
 * Outputs are written by one block a slice.  A merged node may take the slot of
 * one of the row's own: so one block has all its slices, all of a slice is read
 * before it is written, and m and l, which all slices read, come with the last one. */
template <int VEC>
static __global__ void __launch_bounds__(32 * GROUPS, 2) rkvk_merge(const merge_args d, const uint64_t n)
{
    const rkvi_merge_args &a = d.a;
    RKVK_SHARED(raw, 16);
    room<VEC> *rooms = reinterpret_cast<room<VEC> *>(raw);
    __shared__ uint32_t begin[GROUPS + 1];
    const uint32_t width = 32 * VEC, slices = (a.dv + width - 1) / width;
    uint64_t block = rkvk_block(); /* of n items times heads */
    uint32_t x0 = 0;
    job j;
    j.part = 0;
    j.parts = d.parts;
#pragma unroll 1
    for (; block >= n && j.part < d.parts; block -= n) {
        x0 = x0 + width < slices * width ? x0 + width : 0;
        j.part += x0 == 0;
    }
    const uint64_t item = j.part < d.parts ? block / a.q_heads : 0;
    j.item = a.items[item];
    j.head = (uint32_t)(block - item * a.q_heads);
    const bool is_out = j.item.dst == RKVI_TO_OUT;
    if (j.part >= d.parts || j.part >= j.item.n_rows || (!is_out && x0 > 0)) {
        rkvk_wait_before();
        return;
    }
    j.row = is_out ? (uint64_t)a.entries[j.item.entry].row0 + j.item.row : 0;
    j.is_split = j.item.n_nodes > 2 && j.item.n_rows < ROWS_APART * GROUPS;
    if (j.is_split)
        cut(a, j.item, begin);
    __syncthreads();
    j.from = j.item.node0 + (j.is_split ? begin[threadIdx.y] : 0);
    j.to = j.item.node0 + (j.is_split ? begin[threadIdx.y + 1] : j.item.n_nodes);
    j.node = load_node(a, j.from, j.to);
    rkvk_wait_before();
    rkvk_start_next();
    const uint32_t first = is_out ? x0 : (slices - 1) * width, last = is_out ? x0 : 0;
    const uint32_t rows = j.is_split ? 1 : GROUPS; /* of the block at a time */
#pragma unroll 1
    for (uint32_t r = j.part, x = first; r < j.item.n_rows;) {
        slice<VEC>(a, j, r, x, rooms);
        __syncthreads();
        r += x == last ? d.parts * rows : 0;
        x = x == last ? first : x - width;
    }
}

/* Partials of an odd number of heads begin at multiples of 8 bytes alone. */
static bool is_wide(const rkvi_merge_args *a)
{
    return a->q_heads % 2 == 0 && a->dv % 4 == 0;
}

/* Blocks over an item's rows: none without one, as far as is said. */
static uint32_t parts_of(const rkvi_merge_args *a, uint64_t n_slices)
{
    const uint64_t most = n_slices * ROWS_APART < BLOCKS_FEW ? BLOCKS_FEW / n_slices : ROWS_APART;
    if (a->max_rows == 0)
        return ROWS_APART;
    return a->max_rows < most ? a->max_rows : (uint32_t)most;
}

extern "C" int rkvk_launch_merge(const rkvi_merge_args *a, uint64_t grid, void *stream)
{
    const bool wide = is_wide(a);
    const uint32_t width = wide ? 128 : 64;
    const uint64_t n_slices = grid * ((a->dv + width - 1) / width);
    if (grid == 0)
        return 0;
    if (a->dv % 2 != 0)
        return (int)cudaErrorInvalidValue;
    const merge_args d = {*a, parts_of(a, n_slices)};
    return rkvk_run_early(wide ? rkvk_merge<4> : rkvk_merge<2>, &d, grid, rkvk_grid(n_slices * d.parts),
                          dim3(32, GROUPS), GROUPS * (wide ? sizeof(room<4>) : sizeof(room<2>)), stream);
}

extern "C" int rkvk_prepare_merge(void)
{
    const int e = rkvk_load((const void *)rkvk_merge<2>, GROUPS * sizeof(room<2>));
    return e ? e : rkvk_load((const void *)rkvk_merge<4>, GROUPS * sizeof(room<4>));
}
