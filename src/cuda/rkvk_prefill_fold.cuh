/* SPDX-License-Identifier: MIT
 *
 * rkvk_prefill_fold.cuh: the warpgroups that compute, of prefill on sm_90a
 * (attend_prefill_wg.cuh has the whole picture).
 *
 * A warpgroup has 64 rows of one query head, a warp 16 of them, a thread rows g
 * and g + 8 of these, as wgmma has its registers (rkvk_wgmma.cuh).
 */
#ifndef RKVK_PREFILL_FOLD_CUH
#define RKVK_PREFILL_FOLD_CUH

#include "rkvk_merge_out.cuh"
#include "rkvk_prefill_feed.cuh"
#include "rkvk_prefill_q.cuh"

/* m and l are alike in the lanes of a row. */
template <typename S>
struct rkvk_fold {
    float o[S::DV / 2];
    float m[2], l[2];
    rkvk_reach common;         /* what all rows of the warp see; those that are not there count not */
    uint32_t q[S::Q_REGS ? S::DK / 4 : 1]; /* fragments of A, 4 to a step of 16 dims */
    float mul, mul2;           /* scores to natural units, to units of ln 2 */
    bool in_unit[2];           /* fp8: o is in V's stored units */
};

/* Which cells of a block a thread's two rows see. */
struct rkvk_seen {
    bool all; /* every one, all rows of the warp */
    uint32_t first[2], count[2];
};

static __device__ __forceinline__ uint32_t rkvk_fold_group(void)
{
    return threadIdx.x / RKVK_WG - 1;
}

/* The thread's row i (g, g + 8), counted within the work. */
static __device__ __forceinline__ uint32_t rkvk_fold_row(int i)
{
    return rkvk_fold_group() * 64 + threadIdx.x % RKVK_WG / 32 * 16 + (threadIdx.x % 32) / 4 + 8 * (uint32_t)i;
}

/* -------------------------------------------------------------------- begin */

template <typename S>
static __device__ __forceinline__ void rkvk_fold_load_q(rkvk_wg_smem<S> &sm, const rkvi_attend_args &a,
                                                        const rkvk_wg_work &w)
{
    uint8_t *dst = sm.q[rkvk_fold_group()];
    const rkvk_q_rows rows = {w.item, w.q_head, w.row0, w.n_rows, rkvk_fold_group() * 64};
    rkvk_load_q_rows<S::BF16_K, 64, S::DK, RKVK_WG>(a, rows, [&](uint32_t row, uint32_t piece, uint4 x) {
        *reinterpret_cast<uint4 *>(dst + S::plane_q::at(row, piece)) = x;
    });
    rkvk_fence_async();
    if (rkvk_fold_group() == 0)
        rkvk_bar_sync<1, RKVK_WG>();
    else
        rkvk_bar_sync<2, RKVK_WG>();
}

/* The warp's rows of it to registers. */
template <typename S>
static __device__ __forceinline__ void rkvk_fold_take_q(const rkvk_wg_smem<S> &sm, rkvk_fold<S> &st)
{
    const uint32_t row = threadIdx.x % RKVK_WG / 32 * 16 + threadIdx.x % 16, half = threadIdx.x % 32 / 16;
    if constexpr (S::Q_REGS)
#pragma unroll
        for (int i = 0; i < S::DK / 16; i++) {
            uint32_t x[4];
            rkvk_ldmatrix_x4(x, rkvk_smem_addr(sm.q[rkvk_fold_group()] + S::plane_q::at(row, 2 * i + half)));
#pragma unroll
            for (int j = 0; j < 4; j++)
                st.q[4 * i + j] = x[j];
        }
}

/* The warp's rows' reaches, and what they have in common. */
template <typename S>
static __device__ __forceinline__ void rkvk_fold_load_reach(rkvk_wg_smem<S> &sm, const rkvi_attend_args &a,
                                                            const rkvk_wg_work &w, rkvk_fold<S> &st)
{
    const uint32_t row = rkvk_fold_group() * 64 + threadIdx.x % RKVK_WG / 32 * 16 + threadIdx.x % 16;
    rkvk_reach r = rkvk_reach_none();
    st.common = {INT64_MIN, INT64_MAX};
    if (row < w.n_rows) {
        r = rkvk_reach_of(a, rkvk_item_row(a, *w.item, w.row0 + row));
        st.common = r;
    }
    __syncwarp();
    sm.reach[row] = r;
#pragma unroll
    for (int step = 8; step; step /= 2) {
        const int64_t lo = __shfl_xor_sync(0xffffffffu, st.common.lo, step);
        const int64_t hi = __shfl_xor_sync(0xffffffffu, st.common.hi, step);
        st.common.lo = lo > st.common.lo ? lo : st.common.lo;
        st.common.hi = hi < st.common.hi ? hi : st.common.hi;
    }
    __syncwarp();
}

/* Calls f(n, i, o pointer) for the pairs of elements of o, and g(i, m, l). */
template <typename S, typename F, typename G>
static __device__ __forceinline__ void rkvk_fold_slot(const rkvi_attend_args &a, const rkvk_wg_work &w, F f, G g)
{
    const uint64_t slot_floats = (uint64_t)a.q_heads * (S::DV + 2);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t row = rkvk_fold_row(i);
        if (row >= w.n_rows)
            continue;
        float *slot = a.partials + (w.item->slot + w.row0 + row) * slot_floats;
        float *o = slot + (uint64_t)w.q_head * S::DV + threadIdx.x % 4 * 2;
#pragma unroll
        for (int n = 0; n < S::DV / 8; n++)
            f(n, i, reinterpret_cast<float2 *>(o + n * 8));
        float *m = slot + (uint64_t)a.q_heads * S::DV + w.q_head;
        g(i, m, m + a.q_heads);
    }
}

template <typename S>
static __device__ __forceinline__ void rkvk_fold_begin(const rkvi_attend_args &a, const rkvk_wg_work &w,
                                                       rkvk_fold<S> &st)
{
#pragma unroll
    for (int n = 0; n < S::DV / 2; n++)
        st.o[n] = 0.0f;
    st.m[0] = st.m[1] = rkvk_empty_m();
    st.l[0] = st.l[1] = 0.0f;
    st.in_unit[0] = st.in_unit[1] = false;
    const float scale = fabsf(__fmul_rn(a.scale, rkvk_unit<S::TK>(a.geom.k_scale)));
    st.mul = a.softcap != 0.0f ? 1.0f : scale;
    st.mul2 = __fmul_rn(st.mul, RKVK_LOG2E);
    if (!(w.item->flags & RKVI_ITEM_FIRST))
        rkvk_fold_slot<S>(
            a, w,
            [&](int n, int i, const float2 *o) {
                const float2 x = *o;
                st.o[4 * n + 2 * i] = x.x;
                st.o[4 * n + 2 * i + 1] = x.y;
            },
            [&](int i, const float *m, const float *l) {
                st.m[i] = *m;
                st.l[i] = *l;
            });
}

/* ---------------------------------------------------------------- one block */

template <typename S>
static __device__ __forceinline__ rkvk_seen rkvk_fold_sees(const rkvk_wg_smem<S> &sm, const rkvk_fold<S> &st,
                                                           const rkvk_info &info)
{
    rkvk_seen s;
    const uint32_t c0 = info.cells & 0xffffu, c1 = info.cells >> 16;
    s.all = c0 == 0 && c1 >= S::BC && st.common.lo <= info.pos && st.common.hi >= info.pos + S::BC;
    s.first[0] = s.first[1] = 0;
    s.count[0] = s.count[1] = S::BC;
    if (!s.all)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const rkvk_reach r = sm.reach[rkvk_fold_row(i)];
            const int64_t lo = info.pos + c0, hi = info.pos + (c1 < S::BC ? c1 : S::BC);
            const int64_t from = r.lo > lo ? r.lo : lo, to = r.hi < hi ? r.hi : hi;
            s.first[i] = (uint32_t)(from - info.pos);
            s.count[i] = from < to ? (uint32_t)(to - from) : 0;
        }
    return s;
}

/* Softcap, then the mask: scores in the units of st.mul. */
template <typename S>
static __device__ __forceinline__ void rkvk_fold_mask(const rkvi_attend_args &a, const rkvk_seen &sees,
                                                      float (&s)[S::BC / 2])
{
    if (a.softcap != 0.0f) {
        const float scale = fabsf(__fmul_rn(a.scale, rkvk_unit<S::TK>(a.geom.k_scale)));
#pragma unroll
        for (int n = 0; n < S::BC / 2; n++)
            s[n] = __fmul_rn(a.softcap, tanhf(__fdiv_rn(__fmul_rn(s[n], scale), a.softcap)));
    }
    if (!sees.all)
#pragma unroll
        for (int n = 0; n < S::BC / 2; n++) {
            const uint32_t cell = (uint32_t)(n / 4 * 8 + n % 2) + threadIdx.x % 4 * 2, i = n / 2 % 2;
            s[n] = cell - sees.first[i] < sees.count[i] ? s[n] : rkvk_empty_m();
        }
}

/* Scores to weights; m and l go on.  What o is to be multiplied by: `factor`. */
template <typename S>
static __device__ __forceinline__ void rkvk_fold_weights(rkvk_fold<S> &st, float (&s)[S::BC / 2], float (&factor)[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float top[2] = {rkvk_empty_m(), rkvk_empty_m()}, sum[2] = {0, 0};
#pragma unroll
        for (int n = 0; n < S::BC / 8; n++) {
            top[0] = fmaxf(top[0], s[4 * n + 2 * i]);
            top[1] = fmaxf(top[1], s[4 * n + 2 * i + 1]);
        }
        float x = fmaxf(top[0], top[1]);
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
        /* m is kept in natural units, and what is subtracted follows from it. */
        const float old = __fmul_rn(st.m[i], RKVK_LOG2E);
        st.m[i] = fmaxf(st.m[i], __fmul_rn(x, st.mul));
        const float m2 = st.m[i] == rkvk_empty_m() ? 0.0f : __fmul_rn(st.m[i], RKVK_LOG2E);
        factor[i] = rkvk_exp2(__fadd_rn(old, -m2));
#pragma unroll
        for (int n = 0; n < S::BC / 8; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                float &y = s[4 * n + 2 * i + j];
                y = rkvk_exp2(__fmaf_rn(y, st.mul2, -m2));
                sum[j] = __fadd_rn(sum[j], y);
            }
        float all = __fadd_rn(sum[0], sum[1]);
        all = __fadd_rn(all, __shfl_xor_sync(0xffffffffu, all, 1));
        all = __fadd_rn(all, __shfl_xor_sync(0xffffffffu, all, 2));
        st.l[i] = __fmaf_rn(st.l[i], factor[i], all);
    }
}

/* o to the new maxima; where no row's has changed there is nothing to do. */
template <typename S>
static __device__ __forceinline__ void rkvk_fold_scale(rkvk_fold<S> &st, const float (&factor)[2])
{
    if (__any_sync(0xffffffffu, factor[0] != 1.0f || factor[1] != 1.0f))
#pragma unroll
        for (int n = 0; n < S::DV / 2; n++)
            st.o[n] = __fmul_rn(st.o[n], factor[n / 2 % 2]);
}

/* fp8: o is in V's stored units within a leaf, and brought to true ones at the
 * end of every leaf that the row sees, whether or not the item ends there. */
template <typename S>
static __device__ __forceinline__ void rkvk_fold_unit(rkvk_fold<S> &st, int i, float unit)
{
#pragma unroll
    for (int n = 0; n < S::DV / 8; n++) {
        st.o[4 * n + 2 * i] = __fmul_rn(st.o[4 * n + 2 * i], unit);
        st.o[4 * n + 2 * i + 1] = __fmul_rn(st.o[4 * n + 2 * i + 1], unit);
    }
}

template <typename S>
static __device__ __forceinline__ void rkvk_fold_leaf(const rkvk_wg_smem<S> &sm, const rkvi_attend_args &a,
                                                      rkvk_fold<S> &st, const rkvk_info &info)
{
    if constexpr (S::TV == RKV_TYPE_FP8_E4M3)
        if (info.flags) { /* of a leaf the first block, or the end */
            const float unit = rkvk_unit<S::TV>(a.geom.v_scale), per_unit = __fdiv_rn(1.0f, unit);
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const rkvk_reach r = sm.reach[rkvk_fold_row(i)];
                const int64_t lo = info.pos + info.l0, hi = info.pos + info.l1;
                const bool sees = info.flags == RKVK_INFO_FIRST && (r.lo > lo ? r.lo : lo) < (r.hi < hi ? r.hi : hi);
                if (st.in_unit[i])
                    rkvk_fold_unit(st, i, unit);
                if (sees)
                    rkvk_fold_unit(st, i, per_unit);
                st.in_unit[i] = sees;
            }
        }
}

template <typename S>
static __device__ __forceinline__ void rkvk_fold_pack(uint32_t (&p)[S::BC / 4], const float (&s)[S::BC / 2])
{
#pragma unroll
    for (int n = 0; n < S::BC / 4; n++)
        p[n] = rkvk_pack<S::BF16_V>(s[2 * n], s[2 * n + 1]);
}

/* ----------------------------------------------------------------- products */

/* A stage may be overwritten: an arrival a warp. */
static __device__ __forceinline__ void rkvk_fold_release(uint64_t *bar)
{
    __syncwarp();
    if (threadIdx.x % 32 == 0)
        rkvk_bar_arrive(rkvk_smem_addr(bar));
}

/* S = Q * K^T is asked for. */
template <typename S>
static __device__ __forceinline__ void rkvk_fold_scores(const rkvk_wg_smem<S> &sm, const rkvk_fold<S> &st,
                                                        float (&s)[S::BC / 2], uint32_t stage)
{
    typedef rkvk_wgmma<S::BC, S::BF16_K> wgmma;
    const uint32_t k = S::plane_k::low(rkvk_smem_addr(sm.k[stage]));
    if constexpr (S::Q_REGS) {
#pragma unroll
        for (int i = 0; i < S::DK / 16; i++)
            wgmma::rows(s, st.q + 4 * i, S::plane_k::descriptor(k, S::plane_k::dims(i)), i == 0);
    } else {
        const uint32_t q = S::plane_q::low(rkvk_smem_addr(sm.q[rkvk_fold_group()]));
#pragma unroll
        for (int i = 0; i < S::DK / 16; i++)
            wgmma::both(s, S::plane_q::descriptor(q, S::plane_q::dims(i)),
                        S::plane_k::descriptor(k, S::plane_k::dims(i)), i == 0);
    }
    rkvk_wgmma_commit();
}

/* O += P * V is asked for. */
template <typename S>
static __device__ __forceinline__ void rkvk_fold_output(const rkvk_wg_smem<S> &sm, rkvk_fold<S> &st,
                                                        const uint32_t (&p)[S::BC / 4], uint32_t stage)
{
    const uint32_t v = S::plane_v::low(rkvk_smem_addr(sm.v[stage]));
#pragma unroll
    for (int i = 0; i < S::BC / 16; i++)
        rkvk_wgmma<S::DV, S::BF16_V>::weights(st.o, p + 4 * i, S::plane_v::descriptor(v, S::plane_v::rows(i)));
    rkvk_wgmma_commit();
}

/* The next block's K and what it is; the end has no K. */
template <typename S>
static __device__ __forceinline__ rkvk_info rkvk_fold_next(rkvk_wg_smem<S> &sm, rkvk_turn &n, uint32_t &stage)
{
    stage = rkvk_stage<S>(n.k);
    rkvk_bar_wait(rkvk_smem_addr(&sm.k_full[stage]), rkvk_phase<S>(n.k++));
    rkvk_fence_async();
    rkvk_info info = sm.info[stage];
    info.flags = __shfl_sync(0xffffffffu, info.flags, 0);
    if (info.flags & RKVK_INFO_END)
        rkvk_fold_release(&sm.k_empty[stage]);
    return info;
}

template <typename S>
static __device__ __forceinline__ uint32_t rkvk_fold_wait_v(rkvk_wg_smem<S> &sm, rkvk_turn &n)
{
    const uint32_t stage = rkvk_stage<S>(n.v);
    rkvk_bar_wait(rkvk_smem_addr(&sm.v_full[stage]), rkvk_phase<S>(n.v++));
    rkvk_fence_async();
    return stage;
}

/* The groups multiply by turns, so that one's weights are made while the other
 * multiplies.  Group 0 begins (rkvk_fold_your_turn of group 1 at the start).  One
 * that is alone takes no turns. */
static __device__ __forceinline__ void rkvk_fold_my_turn(void)
{
    if (rkvk_fold_group() == 0)
        rkvk_bar_sync<3, RKVK_WG * RKVK_WG_FOLD>();
    else
        rkvk_bar_sync<4, RKVK_WG * RKVK_WG_FOLD>();
}

static __device__ __forceinline__ void rkvk_fold_your_turn(void)
{
    if (rkvk_fold_group() == 0)
        rkvk_bar_come<4, RKVK_WG * RKVK_WG_FOLD>();
    else
        rkvk_bar_come<3, RKVK_WG * RKVK_WG_FOLD>();
}

/* The blocks of a work.  S of a block is computed beside O of the one before. */
template <typename S>
static __device__ __forceinline__ void rkvk_fold_blocks(rkvk_wg_smem<S> &sm, const rkvi_attend_args &a,
                                                        rkvk_fold<S> &st, rkvk_turn &n, const bool alone)
{
    float s[S::BC / 2], factor[2];
    uint32_t p[S::BC / 4], k, v;
    rkvk_info info = rkvk_fold_next(sm, n, k);
    if (info.flags & RKVK_INFO_END)
        return;
    rkvk_wgmma_hold(s);
    rkvk_wgmma_fence();
    rkvk_fold_scores(sm, st, s, k);
    rkvk_wgmma_wait<0>();
    rkvk_wgmma_hold(s);
    rkvk_fold_release(&sm.k_empty[k]);
    rkvk_fold_mask<S>(a, rkvk_fold_sees(sm, st, info), s);
    rkvk_fold_weights(st, s, factor);
    rkvk_fold_leaf(sm, a, st, info);
    rkvk_fold_scale(st, factor);
    rkvk_fold_pack<S>(p, s);
    for (;;) {
        info = rkvk_fold_next(sm, n, k);
        if (info.flags & RKVK_INFO_END)
            break;
        rkvk_wgmma_hold(s);
        rkvk_wgmma_hold(p);
        rkvk_wgmma_hold(st.o);
        if (!alone)
            rkvk_fold_my_turn();
        rkvk_wgmma_fence();
        rkvk_fold_scores(sm, st, s, k);
        v = rkvk_fold_wait_v(sm, n);
        rkvk_wgmma_fence();
        rkvk_fold_output(sm, st, p, v);
        if (!alone)
            rkvk_fold_your_turn();
        rkvk_wgmma_wait<1>();
        rkvk_wgmma_hold(s);
        rkvk_fold_release(&sm.k_empty[k]);
        rkvk_fold_mask<S>(a, rkvk_fold_sees(sm, st, info), s);
        rkvk_fold_weights(st, s, factor);
        rkvk_wgmma_hold(s);
        rkvk_wgmma_after(fminf(st.l[0], st.l[1])); /* weights are made before O is waited for */
        rkvk_wgmma_wait<0>();
        rkvk_wgmma_hold(st.o);
        rkvk_wgmma_hold(p);
        rkvk_fold_release(&sm.v_empty[v]);
        rkvk_fold_leaf(sm, a, st, info);
        rkvk_fold_scale(st, factor);
        rkvk_fold_pack<S>(p, s);
    }
    v = rkvk_fold_wait_v(sm, n);
    rkvk_wgmma_hold(p);
    rkvk_wgmma_hold(st.o);
    rkvk_wgmma_fence();
    rkvk_fold_output(sm, st, p, v);
    rkvk_wgmma_wait<0>();
    rkvk_wgmma_hold(st.o);
    rkvk_fold_release(&sm.v_empty[v]);
    rkvk_fold_leaf(sm, a, st, info);
}

/* The state to the caller's output. */
template <typename S>
static __device__ __forceinline__ void rkvk_fold_out(const rkvi_attend_args &a, const rkvk_wg_work &w,
                                                     rkvk_fold<S> &st)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t row = rkvk_fold_row(i);
        if (row >= w.n_rows)
            continue;
        const uint64_t out_row = rkvk_item_row(a, *w.item, w.row0 + row);
        const rkvk_out_row r = rkvk_out_begin(a.merge, w.q_head, st.m[i], st.l[i]);
#pragma unroll
        for (int k = 0; k < S::DV / 4; k++) {
            float &o = st.o[4 * (k / 2) + 2 * i + k % 2];
            o = rkvk_out_value(r, o);
        }
        rkvk_out_pairs<S::DV / 8>(a.merge.out, out_row, w.q_head, threadIdx.x % 4 * 2,
                                  [&](int n, int k) { return st.o[4 * n + 2 * i + k]; });
        if (threadIdx.x % 4 == 0)
            rkvk_out_lse(a.merge, out_row, w.q_head, r);
    }
}

/* The rows of a work, over all leaves. */
template <typename S>
static __device__ __forceinline__ void rkvk_fold_rows(rkvk_wg_smem<S> &sm, const rkvi_attend_args &a,
                                                      const rkvk_wg_work &w, rkvk_turn &n)
{
    rkvk_fold<S> st;
    rkvk_fold_load_q(sm, a, w);
    rkvk_fold_take_q(sm, st);
    rkvk_fold_load_reach(sm, a, w, st);
    rkvk_fold_begin(a, w, st);
    rkvk_fold_blocks(sm, a, st, n, w.alone);
    if (w.item->flags & RKVI_ITEM_LAST) {
        rkvk_fold_out<S>(a, w, st);
        return;
    }
    rkvk_fold_slot<S>(
        a, w,
        [&](int i, int j, float2 *o) { *o = make_float2(st.o[4 * i + 2 * j], st.o[4 * i + 2 * j + 1]); },
        [&](int i, float *m, float *l) {
            if (threadIdx.x % 4 == 0) {
                *m = st.m[i];
                *l = st.l[i];
            }
        });
}

#endif
