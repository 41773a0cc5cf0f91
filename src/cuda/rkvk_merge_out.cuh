/* SPDX-License-Identifier: MIT
 *
 * rkvk_merge_out.cuh: from a row's last node to the caller's output: the sink, the
 * division, the types of out, lse.
 *
 * Values are those of the plain C reference (rkvi_ref_put_out), bit by bit.
 */
#ifndef RKVK_MERGE_OUT_CUH
#define RKVK_MERGE_OUT_CUH

#include "ops.h"
#include "rkvk_merge.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/* log of a normal x > 0 in f64 (NaN of NaN): rkvi_log of ops_math.h, operation by operation. */
static __device__ __noinline__ double rkvk_out_log(double x)
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
template <typename T, int N> static __device__ __forceinline__ void rkvk_out_vec(T *at, const T (&v)[N])
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
template <rkv_type T, int VEC>
static __device__ __forceinline__ void rkvk_out_typed(void *data, int64_t at, const float (&o)[VEC])
{
    if constexpr (T == RKV_TYPE_F32) {
        rkvk_out_vec((float *)data + at, o);
    } else {
        uint16_t half[VEC];
#pragma unroll
        for (int i = 0; i < VEC; i++)
            half[i] = T == RKV_TYPE_F16 ? __half_as_ushort(__float2half_rn(o[i]))
                                        : __bfloat16_as_ushort(__float2bfloat16_rn(o[i]));
        rkvk_out_vec((uint16_t *)data + at, half);
    }
}

static __device__ __forceinline__ int64_t rkvk_out_at(const rkvi_tensor &t, uint64_t row, uint32_t head, uint32_t x)
{
    return (int64_t)row * t.row_stride + (int64_t)head * t.head_stride + x;
}

template <int VEC>
static __device__ __forceinline__ void rkvk_out_elements(const rkvi_tensor &t, uint64_t row, uint32_t head, uint32_t x,
                                                         const float (&o)[VEC])
{
    const int64_t at = rkvk_out_at(t, row, head, x);
    if (t.type == RKV_TYPE_F32)
        rkvk_out_typed<RKV_TYPE_F32>(t.data, at, o);
    else if (t.type == RKV_TYPE_F16)
        rkvk_out_typed<RKV_TYPE_F16>(t.data, at, o);
    else
        rkvk_out_typed<RKV_TYPE_BF16>(t.data, at, o);
}

/* What a row and head's o becomes its output by: o * e / l, zeros where nothing is seen. */
typedef struct rkvk_out_row {
    float m, l, e; /* with the sink */
    bool any;
} rkvk_out_row;

/* From its last node's m and l.  The sink joins as a partial of one cell with V = 0. */
static __device__ __forceinline__ rkvk_out_row rkvk_out_begin(const rkvi_merge_args &a, uint32_t head, float m, float l)
{
    const float empty = rkvk_empty_m(), sink = a.sinks ? a.sinks[head] : empty;
    rkvk_out_row r = {m, l, 1.0f, m != empty};
    if (sink > empty) {
        r.m = m > sink ? m : sink;
        r.e = r.any ? rkvk_expf(__fadd_rn(m, -r.m)) : 0.0f;
        r.l = __fadd_rn(__fmul_rn(l, r.e), rkvk_expf(__fadd_rn(sink, -r.m)));
    }
    return r;
}

static __device__ __forceinline__ float rkvk_out_value(const rkvk_out_row &r, float o)
{
    return r.any ? __fdiv_rn(__fmul_rn(o, r.e), r.l) : 0.0f;
}

static __device__ __forceinline__ void rkvk_out_lse(const rkvi_merge_args &a, uint64_t row, uint32_t head,
                                                    const rkvk_out_row &r)
{
    if (a.lse)
        a.lse[(int64_t)row * a.lse_row_stride + head] =
            r.m == rkvk_empty_m() ? r.m : __double2float_rn(__dadd_rn((double)r.m, rkvk_out_log((double)r.l)));
}

template <rkv_type T, int N, typename F>
static __device__ __forceinline__ void rkvk_out_typed_pairs(void *data, int64_t at, F value)
{
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float o[2] = {value(n, 0), value(n, 1)};
        rkvk_out_typed<T>(data, at + n * 8, o);
    }
}

/* Elements x, x + 1, x + 8, x + 9, .. of a row and head: N pairs, value(n, 0) and value(n, 1).  They are made
 * before, since this is there once for each type. */
template <int N, typename F>
static __device__ __forceinline__ void rkvk_out_pairs(const rkvi_tensor &t, uint64_t row, uint32_t head, uint32_t x,
                                                      F value)
{
    const int64_t at = rkvk_out_at(t, row, head, x);
    if (t.type == RKV_TYPE_F32)
        rkvk_out_typed_pairs<RKV_TYPE_F32, N>(t.data, at, value);
    else if (t.type == RKV_TYPE_F16)
        rkvk_out_typed_pairs<RKV_TYPE_F16, N>(t.data, at, value);
    else
        rkvk_out_typed_pairs<RKV_TYPE_BF16, N>(t.data, at, value);
}

/* Elements x .. of a row and head, from its last node's. */
template <int VEC>
static __device__ __forceinline__ void rkvk_out_put(const rkvi_merge_args &a, uint64_t row, uint32_t head, uint32_t x,
                                                    float node_m, float node_l, float (&o)[VEC])
{
    const rkvk_out_row r = rkvk_out_begin(a, head, node_m, node_l);
#pragma unroll
    for (int i = 0; i < VEC; i++)
        o[i] = rkvk_out_value(r, o[i]);
    if (x < a.dv)
        rkvk_out_elements(a.out, row, head, x, o);
    if (x == 0)
        rkvk_out_lse(a, row, head, r);
}

#endif
