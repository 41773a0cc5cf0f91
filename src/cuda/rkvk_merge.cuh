/* SPDX-License-Identifier: MIT
 *
 * rkvk_merge.cuh: merging partials, and the exp that goes with it.
 *
 * The one place where partials are merged: decode reduces runs of leaves with
 * it, and the merge kernel goes on from there.  The tree's bits must not depend
 * on which of the two did a merge, so neither may write its own.  Roundings are
 * those of the plain C reference (rkvi_ref_merge_into), operation by operation.
 */
#ifndef RKVK_MERGE_CUH
#define RKVK_MERGE_CUH

#include <stdint.h>

/* -infinity, without a header that differs between host and device. */
static __device__ __forceinline__ float rkvk_empty_m(void)
{
    return __int_as_float((int)0xff800000u);
}

/* exp(x) of ops_math.h (rkvi_expf), bit by bit: 0 at -inf, exact at 0. */
static __device__ __forceinline__ float rkvk_expf(float x)
{
    const float round = 12582912.0f; /* 1.5 * 2^23: the sum's low bits are the integer */
    const float t = __fmaf_rn(x, 0x1.715476p+0f, round), n = __fadd_rn(t, -round);
    float r = __fmaf_rn(n, -0x1.62ep-1f, x);
    r = __fmaf_rn(n, -0x1.0bfbe8p-15f, r);
    float p = __fmaf_rn(0x1.6d117cp-10f, r, 0x1.120be2p-7f);
    p = __fmaf_rn(p, r, 0x1.555518p-5f);
    p = __fmaf_rn(p, r, 0x1.5554dcp-3f);
    p = __fmaf_rn(p, r, 0x1p-1f);
    p = __fadd_rn(__fmaf_rn(__fmul_rn(r, r), p, r), 1.0f);
    const uint32_t bits = (uint32_t)__float_as_int(p) + ((uint32_t)__float_as_int(t) << 23);
    return x < -87.33654f ? 0.0f : __int_as_float((int)bits);
}

/* What the sides of a merge are multiplied by. */
typedef struct rkvk_factors {
    float m, a, b;
} rkvk_factors;

static __device__ __forceinline__ float rkvk_merge_m(float ma, float mb)
{
    return ma > mb ? ma : mb;
}

/* Neither side is empty (m = -inf): where one is, take the other one, bit by bit. */
static __device__ __forceinline__ rkvk_factors rkvk_merge_factors(float ma, float mb)
{
    const float m = rkvk_merge_m(ma, mb);
    const bool a_tops = ma > mb; /* what tops is multiplied by exp(0), which is 1 */
    const float e = rkvk_expf(__fadd_rn(a_tops ? mb : ma, -m));
    const rkvk_factors f = {m, a_tops ? 1.0f : e, a_tops ? e : 1.0f};
    return f;
}

/* For l, and for each element of o. */
static __device__ __forceinline__ float rkvk_merge_value(rkvk_factors f, float a, float b)
{
    return __fadd_rn(__fmul_rn(a, f.a), __fmul_rn(b, f.b));
}

/* The tree's order (ops_attend.h, rkvi_tree_merges): are the top two of the
 * stack, with first leaves a < b, merged before `next` is pushed? */
static __device__ __forceinline__ bool rkvk_tree_merges(uint64_t a, uint64_t b, uint64_t next)
{
    const uint64_t x = a ^ b, y = b ^ next;
    return x < y && x < (x ^ y);
}

#endif
