/* SPDX-License-Identifier: MIT
 *
 * attend_prefill.cuh: states of rows over leaves in order (RKVI_OP_PREFILL).
 *
 * A block of 128 threads takes ROWS rows of one query head of an item, on M, and
 * goes through cells, on N, in blocks of BC counted from the leaf's first cell in
 * the tile.  As in FlashAttention-2, each warp has 16 or 32 rows for itself, and P goes
 * from the accumulators of S straight into the fragments of A:
 *
 *   S (rows x BC)  = Q * K^T    Q from shared memory
 *   O (rows x DV) += P * V      state o, m, l in registers, f32
 *
 * With D 512 two warps share 16 rows: both make S, each has half of O.
 *
 * K of block i + 1 arrives during P * V of block i, V of a block during its
 * Q * K^T.  Types that the tensor cores don't take are copied raw, K and V
 * together, and dequantised into tiles of f16 before use.
 *
 * A state may be cut after any leaf: m is kept in natural units and l becomes one
 * number for a row there, so that what is stored in a partial is all there is.  m
 * is a row's maximum so far, so that the largest weight is 1, which P holds exactly:
 * with an m that may lag behind, a row that one cell rules had all of P's rounding.
 * A block or a leaf of which a row sees nothing leaves the row's bits alone.
 */
#ifndef RKVK_ATTEND_PREFILL_CUH
#define RKVK_ATTEND_PREFILL_CUH

#include "rkvk_launch.cuh"
#include "rkvk_leaves.cuh"
#include "rkvk_merge_out.cuh"
#include "rkvk_prefill_cells.cuh"
#include "rkvk_prefill_q.cuh"

#define RKVK_PREFILL_FILL 16u /* leaves from one fill of the queue to the next: it has twice as many and more */
#define RKVK_PREFILL_AHEAD 1  /* fragments of K and V under way before their product */

/* ---------------------------------------------------------------- constants */

template <rkv_type TYPE_K, rkv_type TYPE_V, int DIM_K, int DIM_V>
struct rkvk_prefill_shape {
    static constexpr rkv_type TK = TYPE_K, TV = TYPE_V;
    static constexpr int DK = DIM_K, DV = DIM_V;
    static constexpr int D = rkvk_max(DK, DV);
    static constexpr int SHARE = D > 256 ? 2 : 1; /* warps that share rows */
    /* Tiles of 16 rows of a warp: what it loads of K and V serves both.  Registers bound them. */
    static constexpr int MT = D <= 192 ? 2 : 1;
    static constexpr int ROWS = 16 * MT * RKVK_WARPS / SHARE;
    static constexpr int PARTS = (int)RKVI_PREFILL_ROWS / ROWS; /* blocks for an item's rows */
    static constexpr bool WIDE = D <= 256; /* sm_90a: attend_prefill_wg.cuh */
    static constexpr int BC = D <= 128 ? 64 : D <= 256 ? 32 : 16;
    static constexpr int STEPS = DK / 16;   /* of Q * K^T */
    static constexpr int NT = BC / 8;       /* tiles of cells of S */
    static constexpr int OT = DV / 8 / SHARE; /* tiles of dims of a warp's O */

    static constexpr bool BF16_K = TK == RKV_TYPE_BF16, BF16_V = TV == RKV_TYPE_BF16;
    /* Both as they are stored? */
    static constexpr bool DIRECT = (BF16_K || TK == RKV_TYPE_F16) && (BF16_V || TV == RKV_TYPE_F16);
    static constexpr int K_ROW = rkvk_row_bytes(TK, DK), V_ROW = rkvk_row_bytes(TV, DV);
    static constexpr int K_SCALE = rkvk_scale_bytes(TK, DK), V_SCALE = rkvk_scale_bytes(TV, DV);
    static constexpr int K_PITCH = rkvk_pitch(2 * DK), V_PITCH = rkvk_pitch(2 * DV);
    static constexpr int RAW_V_AT = BC * K_ROW, RAW_K_SCALE_AT = RAW_V_AT + BC * V_ROW;
    static constexpr int RAW_V_SCALE_AT = RAW_K_SCALE_AT + BC * K_SCALE;
    static constexpr int RAW = DIRECT ? 16 : RAW_V_SCALE_AT + BC * V_SCALE;

    static_assert(DK % 16 == 0 && DV % (16 * SHARE) == 0, "head dims");
};

/* ------------------------------------------------------------ shared memory */

template <typename S>
struct rkvk_prefill_smem {
    alignas(16) uint8_t q[S::ROWS * S::K_PITCH];
    alignas(16) uint8_t k[S::BC * S::K_PITCH];
    alignas(16) uint8_t v[S::BC * S::V_PITCH];
    alignas(16) uint8_t raw[S::RAW]; /* K, V, scales of K, of V, as stored */
    rkvk_queue queue;
    rkvk_reach reach[S::ROWS];
};

/* What all threads know of their work. */
struct rkvk_prefill_work {
    const rkvi_item *item;
    rkvk_walk walk;
    uint32_t q_head;
    uint32_t row0, n_rows; /* within the item */
};

/* A thread's share of the state: rows g and g + 8 of its warp's tiles of 16, columns
 * 2t and 2t + 1 of each tile of 8 dims.  m is alike in the lanes of a row, which add
 * up to its l: between leaves lane 0 has it all. */
template <typename S>
struct rkvk_prefill_state {
    float o[S::MT][S::OT][4];
    float m[S::MT][2], l[S::MT][2];
    uint32_t sees[S::MT][2]; /* c0 | c1 << 16 of the current leaf */
};

/* Of a block of cells. */
template <typename S>
struct rkvk_prefill_turn {
    float m2[S::MT][2];     /* what is subtracted from scores, in units of ln 2 */
    float factor[S::MT][2]; /* old weights to new ones */
    float sum[S::MT][2];    /* of the lane's weights */
};

/* --------------------------------------------------------------------- load */

template <typename S>
static __device__ __forceinline__ void rkvk_prefill_load_q(rkvk_prefill_smem<S> &sm, const rkvi_attend_args &a,
                                                           const rkvk_prefill_work &w)
{
    const rkvk_q_rows rows = {w.item, w.q_head, w.row0, w.n_rows, 0};
    rkvk_load_q_rows<S::BF16_K, S::ROWS, S::DK, RKVK_THREADS>(a, rows, [&](uint32_t row, uint32_t piece, uint4 x) {
        *reinterpret_cast<uint4 *>(sm.q + row * S::K_PITCH + piece * 16) = x;
    });
}

/* Warp 0: each row's reach, and the queue's first leaves.  A row that isn't there
 * sees all, so that it is in no other row's way. */
template <typename S>
static __device__ void rkvk_prefill_load_reach(rkvk_prefill_smem<S> &sm, const rkvi_attend_args &a,
                                               const rkvk_prefill_work &w)
{
    rkvk_reach all = rkvk_reach_none();
    for (uint32_t row = threadIdx.x; row < S::ROWS; row += 32) {
        rkvk_reach r = {INT64_MIN, INT64_MAX};
        if (row < w.n_rows) {
            r = rkvk_reach_of(a, rkvk_item_row(a, *w.item, w.row0 + row));
            all.lo = r.lo < all.lo ? r.lo : all.lo;
            all.hi = r.hi > all.hi ? r.hi : all.hi;
        }
        sm.reach[row] = r;
    }
    rkvk_queue_begin(sm.queue, w.walk, rkvk_reach_union(all));
    rkvk_queue_fill(sm.queue, a, w.walk, 0);
}

template <typename S>
static __device__ __forceinline__ void rkvk_prefill_copy_k(rkvk_prefill_smem<S> &sm, const rkvi_attend_args &a,
                                                           const rkvk_cursor &at)
{
    const rkvk_leaf &leaf = sm.queue.leaf[at.leaf % RKVK_QUEUE];
    const uint32_t raw = rkvk_smem_addr(sm.raw);
    rkvk_prefill_copy_rows<S::BC, S::K_ROW, S::DIRECT ? S::K_PITCH : S::K_ROW>(
        S::DIRECT ? rkvk_smem_addr(sm.k) : raw, leaf.head + a.geom.k_off, at.cell, leaf);
    rkvk_copy_scales<S::BC, S::K_SCALE>(raw + S::RAW_K_SCALE_AT, leaf.head + a.geom.k_scale_off, at.cell, leaf,
                                        a.geom.tile_cells);
}

template <typename S>
static __device__ __forceinline__ void rkvk_prefill_copy_v(rkvk_prefill_smem<S> &sm, const rkvi_attend_args &a,
                                                           const rkvk_cursor &at)
{
    const rkvk_leaf &leaf = sm.queue.leaf[at.leaf % RKVK_QUEUE];
    const uint32_t raw = rkvk_smem_addr(sm.raw);
    rkvk_prefill_copy_rows<S::BC, S::V_ROW, S::DIRECT ? S::V_PITCH : S::V_ROW>(
        S::DIRECT ? rkvk_smem_addr(sm.v) : raw + S::RAW_V_AT, leaf.head + a.geom.v_off, at.cell, leaf);
    rkvk_copy_scales<S::BC, S::V_SCALE>(raw + S::RAW_V_SCALE_AT, leaf.head + a.geom.v_scale_off, at.cell, leaf,
                                        a.geom.tile_cells);
}

/* ---------------------------------------------------------------- one block */

/* Fragments of Q and K come a few products ahead of their use. */
template <typename S>
static __device__ __forceinline__ void rkvk_prefill_scores(const rkvk_prefill_smem<S> &sm,
                                                           float (&s)[S::MT][S::NT][4], int row0)
{
    constexpr int PAIRS = S::NT / 2, ALL = S::STEPS * PAIRS, AHEAD = rkvk_min(RKVK_PREFILL_AHEAD, ALL - 1);
    const int lane = rkvk_lane();
    const uint32_t q = rkvk_smem_addr(sm.q + (row0 + (lane & 15)) * S::K_PITCH + (lane >> 4) * 16);
    const uint32_t k =
        rkvk_smem_addr(sm.k + ((lane & 7) + (lane >> 4) * 8) * S::K_PITCH + (lane >> 3 & 1) * 16);
    uint32_t x[2][S::MT][4], b[AHEAD + 1][4];
#pragma unroll
    for (int m = 0; m < S::MT; m++) {
        rkvk_ldmatrix_x4(x[0][m], q + m * 16 * S::K_PITCH);
#pragma unroll
        for (int n = 0; n < S::NT; n++)
            s[m][n][0] = s[m][n][1] = s[m][n][2] = s[m][n][3] = 0.0f;
    }
#pragma unroll
    for (int j = 0; j < AHEAD; j++)
        rkvk_ldmatrix_x4(b[j], k + j % PAIRS * 16 * S::K_PITCH + j / PAIRS * 32);
#pragma unroll
    for (int j = 0; j < ALL; j++) {
        const int i = j / PAIRS, n = j % PAIRS * 2, to = j + AHEAD;
        if (to < ALL)
            rkvk_ldmatrix_x4(b[to % (AHEAD + 1)], k + to % PAIRS * 16 * S::K_PITCH + to / PAIRS * 32);
        if (n == 0 && i + 1 < S::STEPS)
#pragma unroll
            for (int m = 0; m < S::MT; m++)
                rkvk_ldmatrix_x4(x[(i + 1) % 2][m], q + m * 16 * S::K_PITCH + (i + 1) * 32);
#pragma unroll
        for (int m = 0; m < S::MT; m++) {
            rkvk_mma<S::BF16_K>(s[m][n], x[i % 2][m], b[j % (AHEAD + 1)][0], b[j % (AHEAD + 1)][1]);
            rkvk_mma<S::BF16_K>(s[m][n + 1], x[i % 2][m], b[j % (AHEAD + 1)][2], b[j % (AHEAD + 1)][3]);
        }
    }
}

/* Softcap, then the mask: scores in units of `mul`. */
template <typename S>
static __device__ __forceinline__ void rkvk_prefill_mask(const rkvi_attend_args &a, const rkvk_prefill_state<S> &st,
                                                         float (&s)[S::MT][S::NT][4], uint32_t cell)
{
    const uint32_t c = cell + (uint32_t)(rkvk_lane() & 3) * 2;
    if (a.softcap != 0.0f) {
        const float scale = fabsf(__fmul_rn(a.scale, rkvk_unit<S::TK>(a.geom.k_scale)));
        const float per_cap = __fdiv_rn(scale, a.softcap);
#pragma unroll
        for (int i = 0; i < S::MT * S::NT * 4; i++) {
            float &x = s[i / 4 / S::NT][i / 4 % S::NT][i % 4];
            x = __fmul_rn(a.softcap, tanhf(__fmul_rn(x, per_cap)));
        }
    }
    bool all = true;
#pragma unroll
    for (int i = 0; i < 2 * S::MT; i++) {
        const uint32_t sees = st.sees[i / 2][i % 2];
        all = all && (sees & 0xffffu) <= cell && (sees >> 16) >= cell + S::BC;
    }
    if (!__all_sync(0xffffffffu, all))
#pragma unroll
        for (int i = 0; i < S::MT * S::NT * 4; i++) {
            const int m = i / 4 / S::NT, n = i / 4 % S::NT, j = i % 4;
            const uint32_t c0 = st.sees[m][j / 2] & 0xffffu, c1 = st.sees[m][j / 2] >> 16;
            if (c + (uint32_t)(n * 8 + j % 2) - c0 >= c1 - c0)
                s[m][n][j] = rkvk_empty_m();
        }
}

/* Each row's m, and what o and l are to be multiplied by for it. */
template <typename S>
static __device__ __forceinline__ void rkvk_prefill_maxima(rkvk_prefill_state<S> &st, rkvk_prefill_turn<S> &b,
                                                           const float (&s)[S::MT][S::NT][4], float mul)
{
#pragma unroll
    for (int m = 0; m < S::MT; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) { /* rows g, g + 8 */
            float top[2] = {rkvk_empty_m(), rkvk_empty_m()};
#pragma unroll
            for (int n = 0; n < S::NT; n++) {
                top[0] = fmaxf(top[0], s[m][n][2 * i]);
                top[1] = fmaxf(top[1], s[m][n][2 * i + 1]);
            }
            float x = fmaxf(top[0], top[1]);
            x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
            x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
            /* m is kept in natural units, and what is subtracted follows from it. */
            const float old = __fmul_rn(st.m[m][i], RKVK_LOG2E);
            st.m[m][i] = fmaxf(st.m[m][i], __fmul_rn(x, mul));
            b.m2[m][i] = st.m[m][i] == rkvk_empty_m() ? 0.0f : __fmul_rn(st.m[m][i], RKVK_LOG2E);
            b.factor[m][i] = rkvk_exp2(__fadd_rn(old, -b.m2[m][i]));
            b.sum[m][i] = 0.0f;
        }
}

/* o to the new maxima.  Where no row's has changed there is nothing to do. */
template <typename S>
static __device__ __forceinline__ void rkvk_prefill_scale(rkvk_prefill_state<S> &st, const rkvk_prefill_turn<S> &b)
{
    bool same = true;
#pragma unroll
    for (int i = 0; i < 2 * S::MT; i++)
        same = same && b.factor[i / 2][i % 2] == 1.0f;
    if (!__all_sync(0xffffffffu, same))
#pragma unroll
        for (int i = 0; i < S::MT * S::OT * 4; i++) {
            float &o = st.o[i / 4 / S::OT][i / 4 % S::OT][i % 4];
            o = __fmul_rn(o, b.factor[i / 4 / S::OT][i / 2 % 2]);
        }
}

/* Two weights of a fragment of P: register e of cells 16k .., tile e / 4. */
template <typename S>
static __device__ __forceinline__ void rkvk_prefill_weights(rkvk_prefill_turn<S> &b, uint32_t (&p)[S::MT][4],
                                                            const float (&s)[S::MT][S::NT][4], int k, int e,
                                                            float mul2)
{
    const int m = e / 4, j = e % 4, i = j % 2, n = 2 * k + j / 2;
    const float x = rkvk_exp2(__fmaf_rn(s[m][n][2 * i], mul2, -b.m2[m][i]));
    const float y = rkvk_exp2(__fmaf_rn(s[m][n][2 * i + 1], mul2, -b.m2[m][i]));
    b.sum[m][i] = __fadd_rn(b.sum[m][i], __fadd_rn(x, y));
    p[m][j] = rkvk_pack<S::BF16_V>(x, y);
}

/* Weights and their product with V.  The compiler puts the later weights between
 * the first products.  l is a lane's own share until the leaf's end. */
template <typename S>
static __device__ __forceinline__ void rkvk_prefill_output(const rkvk_prefill_smem<S> &sm, rkvk_prefill_state<S> &st,
                                                           rkvk_prefill_turn<S> &t,
                                                           const float (&s)[S::MT][S::NT][4], int dim0, float mul2)
{
    constexpr int KS = S::NT / 2, PAIRS = S::OT / 2, ALL = KS * PAIRS, E = S::MT * 4;
    constexpr int AHEAD = rkvk_min(RKVK_PREFILL_AHEAD, ALL - 1);
    const int lane = rkvk_lane();
    const uint32_t v = rkvk_smem_addr(sm.v + (lane & 15) * S::V_PITCH + (lane >> 4) * 16 + dim0 * 2);
    uint32_t p[KS][S::MT][4], b[AHEAD + 1][4];
#pragma unroll
    for (int e = 0; e < KS * E; e++)
        rkvk_prefill_weights(t, p[e / E], s, e / E, e % E, mul2);
#pragma unroll
    for (int j = 0; j < AHEAD; j++)
        rkvk_ldmatrix_x4_trans(b[j], v + j / PAIRS * 16 * S::V_PITCH + j % PAIRS * 32);
#pragma unroll
    for (int j = 0; j < ALL; j++) {
        const int k = j / PAIRS, n = j % PAIRS, to = j + AHEAD;
        if (to < ALL)
            rkvk_ldmatrix_x4_trans(b[to % (AHEAD + 1)], v + to / PAIRS * 16 * S::V_PITCH + to % PAIRS * 32);
#pragma unroll
        for (int m = 0; m < S::MT; m++) {
            rkvk_mma<S::BF16_V>(st.o[m][2 * n], p[k][m], b[j % (AHEAD + 1)][0], b[j % (AHEAD + 1)][1]);
            rkvk_mma<S::BF16_V>(st.o[m][2 * n + 1], p[k][m], b[j % (AHEAD + 1)][2], b[j % (AHEAD + 1)][3]);
        }
    }
#pragma unroll
    for (int i = 0; i < 2 * S::MT; i++)
        st.l[i / 2][i % 2] = __fmaf_rn(st.l[i / 2][i % 2], t.factor[i / 2][i % 2], t.sum[i / 2][i % 2]);
}

/* -------------------------------------------------------------------- state */

/* A lane's row g + 8 * i of a tile, counted within the work. */
template <typename S>
static __device__ __forceinline__ uint32_t rkvk_prefill_row(int m, int i)
{
    return (uint32_t)((rkvk_warp() / S::SHARE * S::MT + m) * 16 + (rkvk_lane() >> 2) + 8 * i);
}

/* Calls f(o, its two floats in the slot) for the pairs of elements of o, and
 * g(m, i, slot's m, slot's l). */
template <typename S, typename F, typename G>
static __device__ __forceinline__ void rkvk_prefill_slot(const rkvi_attend_args &a, const rkvk_prefill_work &w,
                                                         rkvk_prefill_state<S> &st, F f, G g)
{
    const uint64_t slot_floats = (uint64_t)a.q_heads * (S::DV + 2);
    const int dim0 = rkvk_warp() % S::SHARE * (S::DV / S::SHARE) + (rkvk_lane() & 3) * 2;
#pragma unroll
    for (int m = 0; m < S::MT; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t row = rkvk_prefill_row<S>(m, i);
            if (row >= w.n_rows)
                continue;
            float *slot = a.partials + (w.item->slot + w.row0 + row) * slot_floats;
#pragma unroll
            for (int n = 0; n < S::OT; n++)
                f(&st.o[m][n][2 * i],
                  reinterpret_cast<float2 *>(slot + (uint64_t)w.q_head * S::DV + (uint32_t)(dim0 + n * 8)));
            float *at = slot + (uint64_t)a.q_heads * S::DV + w.q_head;
            g(m, i, at, at + a.q_heads);
        }
}

/* fp8: o is kept in V's stored units within a leaf, and brought to true ones at
 * every leaf's end, whether or not the item ends there. */
template <typename S>
static __device__ __forceinline__ void rkvk_prefill_unit(rkvk_prefill_state<S> &st, float unit)
{
    if constexpr (S::TV == RKV_TYPE_FP8_E4M3)
#pragma unroll
        for (int m = 0; m < S::MT; m++)
#pragma unroll
            for (int i = 0; i < 2; i++)
                if ((st.sees[m][i] & 0xffffu) != st.sees[m][i] >> 16)
#pragma unroll
                    for (int n = 0; n < S::OT; n++) {
                        st.o[m][n][2 * i] = __fmul_rn(st.o[m][n][2 * i], unit);
                        st.o[m][n][2 * i + 1] = __fmul_rn(st.o[m][n][2 * i + 1], unit);
                    }
}

template <typename S>
static __device__ __forceinline__ void rkvk_prefill_begin(const rkvi_attend_args &a, const rkvk_prefill_work &w,
                                                          rkvk_prefill_state<S> &st)
{
#pragma unroll
    for (int m = 0; m < S::MT; m++) {
#pragma unroll
        for (int n = 0; n < S::OT; n++)
            st.o[m][n][0] = st.o[m][n][1] = st.o[m][n][2] = st.o[m][n][3] = 0.0f;
        st.m[m][0] = st.m[m][1] = rkvk_empty_m();
        st.l[m][0] = st.l[m][1] = 0.0f;
    }
    if (!(w.item->flags & RKVI_ITEM_FIRST))
        rkvk_prefill_slot<S>(
            a, w, st,
            [&](float *o, const float2 *at) {
                const float2 x = *at;
                o[0] = x.x;
                o[1] = x.y;
            },
            [&](int m, int i, const float *at_m, const float *at_l) {
                st.m[m][i] = *at_m;
                st.l[m][i] = (rkvk_lane() & 3) == 0 ? *at_l : 0.0f;
            });
}

template <typename S>
static __device__ __forceinline__ void rkvk_prefill_end(const rkvi_attend_args &a, const rkvk_prefill_work &w,
                                                        rkvk_prefill_state<S> &st)
{
    rkvk_prefill_slot<S>(
        a, w, st, [&](const float *o, float2 *at) { *at = make_float2(o[0], o[1]); },
        [&](int m, int i, float *at_m, float *at_l) {
            if ((rkvk_lane() & 3) == 0 && rkvk_warp() % S::SHARE == 0) {
                *at_m = st.m[m][i];
                *at_l = st.l[m][i];
            }
        });
}

/* The state to the caller's output; l lies in the row's first lane. */
template <typename S>
static __device__ __forceinline__ void rkvk_prefill_out(const rkvi_attend_args &a, const rkvk_prefill_work &w,
                                                        rkvk_prefill_state<S> &st)
{
    const int dim0 = rkvk_warp() % S::SHARE * (S::DV / S::SHARE) + (rkvk_lane() & 3) * 2;
#pragma unroll
    for (int m = 0; m < S::MT; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t row = rkvk_prefill_row<S>(m, i);
            const float l = __shfl_sync(0xffffffffu, st.l[m][i], rkvk_lane() & ~3);
            if (row >= w.n_rows)
                continue;
            const uint64_t out_row = rkvk_item_row(a, *w.item, w.row0 + row);
            const rkvk_out_row r = rkvk_out_begin(a.merge, w.q_head, st.m[m][i], l);
#pragma unroll
            for (int k = 0; k < 2 * S::OT; k++) {
                float &o = st.o[m][k / 2][2 * i + k % 2];
                o = rkvk_out_value(r, o);
            }
            rkvk_out_pairs<S::OT>(a.merge.out, out_row, w.q_head, (uint32_t)dim0,
                                  [&](int n, int k) { return st.o[m][n][2 * i + k]; });
            if (dim0 == 0)
                rkvk_out_lse(a.merge, out_row, w.q_head, r);
        }
}

/* A leaf ends for all rows alike: l to the first lane of the row. */
template <typename S>
static __device__ __forceinline__ void rkvk_prefill_gather(rkvk_prefill_state<S> &st)
{
#pragma unroll
    for (int i = 0; i < 2 * S::MT; i++) {
        float &l = st.l[i / 2][i % 2];
        l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 1));
        l = __fadd_rn(l, __shfl_xor_sync(0xffffffffu, l, 2));
        l = (rkvk_lane() & 3) == 0 ? l : 0.0f;
    }
}

template <typename S>
static __device__ __forceinline__ void rkvk_prefill_leaf(const rkvk_prefill_smem<S> &sm, rkvk_prefill_state<S> &st,
                                                         const rkvk_leaf &leaf)
{
#pragma unroll
    for (int m = 0; m < S::MT; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const rkvk_cells c =
                rkvk_span_cells(leaf.pos, leaf.first, leaf.count, sm.reach[rkvk_prefill_row<S>(m, i)]);
            st.sees[m][i] = c.c0 | c.c1 << 16;
        }
}

/* ------------------------------------------------------------------- kernel */

/* The rows of a work, over all leaves. */
template <typename S>
static __device__ __forceinline__ void rkvk_prefill_rows(rkvk_prefill_smem<S> &sm, const rkvi_attend_args &a,
                                                         const rkvk_prefill_work &w)
{
    const int row0 = rkvk_warp() / S::SHARE * S::MT * 16, dim0 = rkvk_warp() % S::SHARE * (S::DV / S::SHARE);
    const float unit = rkvk_unit<S::TV>(a.geom.v_scale), per_unit = __fdiv_rn(1.0f, unit);
    const float scale = fabsf(__fmul_rn(a.scale, rkvk_unit<S::TK>(a.geom.k_scale)));
    const float mul = a.softcap != 0.0f ? 1.0f : scale, mul2 = __fmul_rn(mul, RKVK_LOG2E);
    rkvk_cursor cur = {0, 0, 0}, next;
    rkvk_prefill_state<S> st;
    rkvk_prefill_turn<S> t;
    __syncthreads(); /* those before are done with what is set up here */
    rkvk_prefill_load_q(sm, a, w);
    if (threadIdx.x < 32)
        rkvk_prefill_load_reach(sm, a, w);
    rkvk_prefill_begin(a, w, st);
    __syncthreads();
    const bool any = sm.queue.n_queued != 0;
    if (any) {
        rkvk_cursor_enter<S::BC>(cur, sm.queue, a.geom.leaf_cells);
        rkvk_prefill_copy_k(sm, a, cur);
        if constexpr (!S::DIRECT)
            rkvk_prefill_copy_v(sm, a, cur);
        rkvk_copy_commit();
        rkvk_prefill_leaf(sm, st, sm.queue.leaf[0]);
        rkvk_prefill_unit(st, per_unit);
    }
    while (cur.leaf != sm.queue.n_queued) {
        const rkvk_leaf &leaf = sm.queue.leaf[cur.leaf % RKVK_QUEUE];
        float s[S::MT][S::NT][4];
        next = cur;
        const bool more_in_leaf = rkvk_cursor_next<S::BC>(next);
        const bool more = next.leaf != sm.queue.n_queued;
        if (more && !more_in_leaf)
            rkvk_cursor_enter<S::BC>(next, sm.queue, a.geom.leaf_cells);
        rkvk_copy_wait<0>();
        __syncthreads(); /* K (raw: and V) is here; V is no longer read */
        if constexpr (S::DIRECT) {
            rkvk_prefill_copy_v(sm, a, cur);
            rkvk_copy_commit();
        } else {
            rkvk_dequant_rows<S::BC, S::TK, S::DK, S::K_PITCH>(sm.k, sm.raw, sm.raw + S::RAW_K_SCALE_AT, leaf,
                                                               cur.cell);
            rkvk_dequant_rows<S::BC, S::TV, S::DV, S::V_PITCH>(sm.v, sm.raw + S::RAW_V_AT, sm.raw + S::RAW_V_SCALE_AT,
                                                           leaf, cur.cell);
            __syncthreads();
            if (more) {
                rkvk_prefill_copy_k(sm, a, next);
                rkvk_prefill_copy_v(sm, a, next);
                rkvk_copy_commit();
            }
        }
        rkvk_prefill_scores(sm, s, row0);
        rkvk_prefill_mask(a, st, s, cur.cell);
        rkvk_prefill_maxima(st, t, s, mul);
        if constexpr (S::DIRECT) {
            rkvk_copy_wait<0>();
            __syncthreads(); /* V is here; K is no longer read */
            if (more) {
                rkvk_prefill_copy_k(sm, a, next);
                rkvk_copy_commit();
            }
        }
        rkvk_prefill_scale(st, t);
        rkvk_prefill_output(sm, st, t, s, dim0, mul2);
        if (!more_in_leaf) {
            rkvk_prefill_gather(st);
            rkvk_prefill_unit(st, unit);
            if (cur.leaf % RKVK_PREFILL_FILL == RKVK_PREFILL_FILL - 1) {
                __syncthreads(); /* all have read the queue */
                if (threadIdx.x < 32)
                    rkvk_queue_fill(sm.queue, a, w.walk, cur.leaf);
                __syncthreads();
            }
            if (more) {
                rkvk_prefill_leaf(sm, st, sm.queue.leaf[next.leaf % RKVK_QUEUE]);
                rkvk_prefill_unit(st, per_unit);
            }
        }
        cur = next;
    }
    if (w.item->flags & RKVI_ITEM_LAST)
        rkvk_prefill_out(a, w, st);
    else
        rkvk_prefill_end(a, w, st);
}

/* Block = (item * query heads + head) * PARTS + part. */
template <typename S>
static __global__ void __launch_bounds__(RKVK_THREADS) rkvk_prefill(const rkvi_attend_args a, const uint64_t n_blocks)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if constexpr (S::WIDE)
        return;
#endif
    static_assert(sizeof(rkvk_prefill_smem<S>) <= RKVK_SMEM_MOST, "shared memory");
    RKVK_SHARED(raw, 16);
    rkvk_prefill_smem<S> &sm = *reinterpret_cast<rkvk_prefill_smem<S> *>(raw);
    const uint64_t block = rkvk_block();
    if (block >= n_blocks)
        return;
    const uint64_t index = (n_blocks - 1 - block) / S::PARTS; /* the last items are the longest */
    rkvk_prefill_work w;
    w.item = a.items + index / a.q_heads;
    w.q_head = (uint32_t)(index % a.q_heads);
    w.walk = {a.entries + w.item->entry, w.item->leaf0, w.item->leaf1, w.q_head / (a.q_heads / a.geom.n_heads)};
    const uint32_t n_rows = w.item->n_rows;
    const uint32_t part = (uint32_t)((n_blocks - 1 - block) % S::PARTS);
    for (w.row0 = part * S::ROWS; w.row0 < n_rows; w.row0 += S::PARTS * S::ROWS) {
        w.n_rows = n_rows - w.row0 < S::ROWS ? n_rows - w.row0 : S::ROWS;
        rkvk_prefill_rows(sm, a, w);
    }
}

#include "attend_prefill_choose.cuh"

#endif
