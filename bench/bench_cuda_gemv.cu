/* SPDX-License-Identifier: MIT
 *
 * bench_cuda_gemv.cu: see bench_cuda_gemv.h.
 *
 * A block takes an equal share of the rows of W.  A thread keeps C pieces of 8
 * elements of x, at the same places of every row, and has U rows of W on their
 * way.  Sums go over a warp's lanes by shuffles, U rows at once, then over the
 * block's warps through shared memory, in a fixed order.
 */
#include "bench_cuda_gemv.h"

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define ROWS 64u /* sums kept in shared memory, then written */
#define WARPS_MAX 32u

static __device__ __forceinline__ uint4 load(const uint4 *p)
{
    return __ldcs(p);
}

static __device__ __forceinline__ float dot(uint4 w, const float (&x)[8], float sum)
{
    const uint32_t pairs[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 f = __half22float2(*reinterpret_cast<const __half2 *>(&pairs[i]));
        sum = __fmaf_rn(f.x, x[2 * i], sum);
        sum = __fmaf_rn(f.y, x[2 * i + 1], sum);
    }
    return sum;
}

/* U sums over the lanes of a warp: after it, v[0] of lanes that are alike in
 * their upper log2(U) bits is the sum of the row with that number. */
template <int U> static __device__ __forceinline__ void sum_lanes(float (&v)[U], uint32_t lane)
{
    uint32_t apart = 16;
#pragma unroll
    for (int n = U / 2; n >= 1; n /= 2, apart /= 2) {
        const bool upper = lane & apart;
#pragma unroll
        for (int i = 0; i < n; i++) {
            const float given = upper ? v[i] : v[i + n];
            v[i] = (upper ? v[i + n] : v[i]) + __shfl_xor_sync(0xffffffffu, given, apart);
        }
    }
    for (; apart >= 1; apart /= 2)
        v[0] += __shfl_xor_sync(0xffffffffu, v[0], apart);
}

/* Rows [from, from + n) of y, n <= ROWS, a thread each. */
static __device__ __forceinline__ void put(const bench_gemv &g, uint32_t from, uint32_t n,
                                           const float (*sums)[WARPS_MAX + 1])
{
    for (uint32_t r = threadIdx.x; r < n; r += blockDim.x) {
        float y = 0;
        for (uint32_t warp = 0; warp < blockDim.x / 32; warp++)
            y += sums[r][warp];
        if (g.is_f32)
            static_cast<float *>(g.y)[from + r] = y;
        else
            static_cast<__half *>(g.y)[from + r] = __float2half_rn(y);
    }
}

/* The most threads of a block with C pieces a thread. */
static constexpr int threads_most(int c)
{
    return c == 1 ? 640 : c == 3 ? 576 : 512;
}

/* Few rows in flight leave room on a multiprocessor for the next kernel's block. */
template <int C, int U>
static __global__ void __launch_bounds__(threads_most(C), C <= 2 && C * U <= 4 ? 2 : 1) gemv(const bench_gemv g)
{
    __shared__ float sums[ROWS][WARPS_MAX + 1];
    const uint32_t pieces = g.in / 8, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t row0 = (uint32_t)((uint64_t)g.out * blockIdx.x / gridDim.x);
    const uint32_t n = (uint32_t)((uint64_t)g.out * (blockIdx.x + 1) / gridDim.x) - row0;
    const uint4 *const w = static_cast<const uint4 *>(g.w) + (uint64_t)row0 * pieces + threadIdx.x;
    uint4 rows[U][C];
    float x[C][8];
    bool mine[C];
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
#endif
#pragma unroll
    for (int c = 0; c < C; c++)
        mine[c] = threadIdx.x + c * blockDim.x < pieces;
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
        for (int c = 0; c < C; c++)
            rows[u][c] = mine[c] && u < n ? load(w + (uint64_t)u * pieces + c * blockDim.x) : make_uint4(0, 0, 0, 0);
#if __CUDA_ARCH__ >= 900
    cudaGridDependencySynchronize();
#endif
#pragma unroll
    for (int c = 0; c < C; c++) {
        uint4 raw = make_uint4(0, 0, 0, 0);
        if (mine[c])
            raw = static_cast<const uint4 *>(g.x)[threadIdx.x + c * blockDim.x];
        const __half2 *h = reinterpret_cast<const __half2 *>(&raw);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 f = __half22float2(h[i]);
            x[c][2 * i] = f.x;
            x[c][2 * i + 1] = f.y;
        }
    }
    for (uint32_t r = 0; r < n; r += U) {
        float v[U];
#pragma unroll
        for (int u = 0; u < U; u++) {
            v[u] = 0;
#pragma unroll
            for (int c = 0; c < C; c++) {
                v[u] = dot(rows[u][c], x[c], v[u]);
                if (mine[c] && r + U + u < n)
                    rows[u][c] = load(w + (uint64_t)(r + U + u) * pieces + c * blockDim.x);
            }
        }
        sum_lanes<U>(v, lane);
        if (lane % (32 / U) == 0)
            sums[r % ROWS + lane / (32 / U)][warp] = v[0];
        if ((r + U) % ROWS == 0 || r + U >= n) {
            __syncthreads();
            const uint32_t from = r / ROWS * ROWS;
            put(g, row0 + from, n - from < ROWS ? n - from : ROWS, sums);
            __syncthreads();
        }
    }
}

typedef void (*kernel_fn)(bench_gemv);

static kernel_fn kernel_of(int c, bool many)
{
    switch (c) {
    case 1: return many ? gemv<1, 8> : gemv<1, 4>;
    case 2: return many ? gemv<2, 4> : gemv<2, 2>;
    case 3: return many ? gemv<3, 4> : gemv<3, 2>;
    case 4: return gemv<4, 2>;
    default: return nullptr;
    }
}

extern "C" int bench_cuda_gemv(const bench_gemv *g, uint32_t way, uint32_t n_sm, void *stream)
{
    static const uint32_t blocks[BENCH_GEMV_WAYS] = {1, 2, 3, 1, 2, 3};
    const uint32_t pieces = g->in / 8;
    int c = 1;
    while (c <= 4 && (uint32_t)(c * threads_most(c)) < pieces)
        c++;
    const kernel_fn kernel = way < BENCH_GEMV_WAYS ? kernel_of(c, way >= 3) : nullptr;
    if (!kernel || g->in % 8 != 0 || g->in == 0)
        return (int)cudaErrorInvalidValue;
    const uint32_t each = (pieces + (uint32_t)c - 1) / (uint32_t)c, threads = (each + 31) / 32 * 32;
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(n_sm * blocks[way]);
    config.blockDim = dim3(threads);
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &early;
    config.numAttrs = 1;
    void *params[] = {const_cast<bench_gemv *>(g)};
    return (int)cudaLaunchKernelExC(&config, reinterpret_cast<const void *>(kernel), params);
}
