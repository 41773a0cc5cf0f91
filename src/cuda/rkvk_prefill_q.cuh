/* SPDX-License-Identifier: MIT
 *
 * rkvk_prefill_q.cuh: rows of q to shared memory, as the tensor cores' type, eight
 * elements at a time where the caller's tensor is aligned for it.  q gets the sign
 * of the scale, so that the scale may count as positive.
 */
#ifndef RKVK_PREFILL_Q_CUH
#define RKVK_PREFILL_Q_CUH

#include "rkvk_leaves.cuh"

/* Whose q: rows [row0 + first, ..) of an item, n of them in all from row0 on. */
struct rkvk_q_rows {
    const rkvi_item *item;
    uint32_t q_head, row0, n_rows, first;
};

template <rkv_type TYPE>
struct rkvk_type {
    static constexpr rkv_type value = TYPE;
};

template <rkv_type TYPE>
static __device__ __forceinline__ void rkvk_q_eight(float (&x)[8], const rkvi_tensor &q, int64_t at)
{
    if constexpr (TYPE == RKV_TYPE_F32) {
        const float4 *p = reinterpret_cast<const float4 *>((const float *)q.data + at);
        const float4 a = p[0], b = p[1];
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
        x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
    } else {
        const uint4 p = *reinterpret_cast<const uint4 *>((const uint16_t *)q.data + at);
        const uint32_t w[4] = {p.x, p.y, p.z, p.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if constexpr (TYPE == RKV_TYPE_F16) {
                const float2 f = __half22float2(rkvk_half2(w[i]));
                x[2 * i] = f.x;
                x[2 * i + 1] = f.y;
            } else {
                x[2 * i] = __uint_as_float(w[i] << 16);
                x[2 * i + 1] = __uint_as_float(w[i] & 0xffff0000u);
            }
        }
    }
}

/* put(row, piece, 16 bytes) for ROWS x DIM / 8 pieces, shared among THREADS;
 * zeros where there is no row.  AT_ONCE: pieces under way at a time. */
template <int AT_ONCE, bool BF16, int ROWS, int DIM, int THREADS, typename GET, typename PUT>
static __device__ __forceinline__ void rkvk_q_each(const rkvi_attend_args &a, const rkvi_tensor &q,
                                                   const rkvk_q_rows &w, GET get, PUT put)
{
    const float sign = a.scale < 0 ? -1.0f : 1.0f;
#pragma unroll AT_ONCE
    for (uint32_t i = threadIdx.x % THREADS; i < ROWS * DIM / 8; i += THREADS) {
        const uint32_t row = i / (DIM / 8), piece = i % (DIM / 8);
        float x[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (w.first + row < w.n_rows) {
            const uint64_t r = rkvk_item_row(a, *w.item, w.row0 + w.first + row);
            get(x, (int64_t)r * q.row_stride + (int64_t)w.q_head * q.head_stride + piece * 8);
        }
#pragma unroll
        for (int j = 0; j < 8; j++)
            x[j] = __fmul_rn(x[j], sign);
        put(row, piece,
            make_uint4(rkvk_pack<BF16>(x[0], x[1]), rkvk_pack<BF16>(x[2], x[3]), rkvk_pack<BF16>(x[4], x[5]),
                       rkvk_pack<BF16>(x[6], x[7])));
    }
}

template <bool BF16, int ROWS, int DIM, int THREADS, typename PUT>
static __device__ __forceinline__ void rkvk_load_q_rows(const rkvi_attend_args &a, const rkvk_q_rows &w, PUT put)
{
    const rkvi_tensor q = rkvk_item_q(a, *w.item);
    const int64_t unit = q.type == RKV_TYPE_F32 ? 4 : 2;
    const bool aligned = ((int64_t)(uintptr_t)q.data | q.row_stride * unit | q.head_stride * unit) % 16 == 0;
    const auto wide = [&](auto type) {
        constexpr rkv_type TYPE = decltype(type)::value;
        rkvk_q_each<4, BF16, ROWS, DIM, THREADS>(
            a, q, w, [&](float(&x)[8], int64_t at) { rkvk_q_eight<TYPE>(x, q, at); }, put);
    };
    if (!aligned)
        rkvk_q_each<1, BF16, ROWS, DIM, THREADS>(
            a, q, w,
            [&](float(&x)[8], int64_t at) {
                for (int j = 0; j < 8; j++)
                    x[j] = rkvk_q_at(q, at + j);
            },
            put);
    else if (q.type == RKV_TYPE_F32)
        wide(rkvk_type<RKV_TYPE_F32>());
    else if (q.type == RKV_TYPE_F16)
        wide(rkvk_type<RKV_TYPE_F16>());
    else
        wide(rkvk_type<RKV_TYPE_BF16>());
}

#endif
