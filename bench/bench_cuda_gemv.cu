/* SPDX-License-Identifier: MIT
 *
 * bench_cuda_gemv.cu: see bench_cuda_gemv.h.
 *
 * A block takes an equal share of the rows of W.  A thread keeps C pieces of 8
 * elements of x, at the same places of every row, and has U rows of W on their
 * way.  Sums go over a warp's lanes by shuffles, U rows at once, then over the
 * block's warps through shared memory, in a fixed order.  From sm_90 on, W may
 * come through shared memory by bulk copies instead, which keeps more of it on its
 * way without registers.
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

/* ------------------------------------------------- by bulk copies (sm_90 on) */

#define BULK_THREADS 256u
#define BULK_STAGES_MAX 24u

typedef struct bulk_args {
    bench_gemv g;
    uint32_t stage_rows, stages; /* a stage is so many whole rows, in shared memory */
} bulk_args;

[[maybe_unused]] static __device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* A copy of `bytes` into a stage, which completes its barrier's phase. */
static __device__ __forceinline__ void bulk_load(void *to, const void *from, uint32_t bytes, uint64_t *full)
{
#if __CUDA_ARCH__ >= 900
    uint64_t once;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(once));
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(full)), "r"(bytes)
                 : "memory");
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
                 " [%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
                 "l"(from), "r"(bytes), "r"(shared_address(full)), "l"(once)
                 : "memory");
#endif
}

static __device__ __forceinline__ void bulk_wait(uint64_t *full, uint32_t parity)
{
#if __CUDA_ARCH__ >= 900
    uint32_t done;
    do
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(shared_address(full)), "r"(parity)
                     : "memory");
    while (!done);
#endif
}

/* Thread t has pieces t, t + 256, .. of each row.  All stages but the one that
 * is read are on their way, the first ones before the kernel before has ended. */
template <int C> static __global__ void __launch_bounds__(BULK_THREADS, 2) gemv_bulk(const bulk_args a)
{
    extern __shared__ __align__(128) uint8_t stages[];
    __shared__ float sums[ROWS][WARPS_MAX + 1];
    __shared__ uint64_t full[BULK_STAGES_MAX];
    const bench_gemv &g = a.g;
    const uint32_t pieces = g.in / 8, row_bytes = g.in * 2, stage_bytes = a.stage_rows * row_bytes;
    const uint32_t row0 = (uint32_t)((uint64_t)g.out * blockIdx.x / gridDim.x);
    const uint32_t n = (uint32_t)((uint64_t)g.out * (blockIdx.x + 1) / gridDim.x) - row0;
    const uint32_t n_stages = (n + a.stage_rows - 1) / a.stage_rows;
    const uint8_t *const w = static_cast<const uint8_t *>(g.w) + (uint64_t)row0 * row_bytes;
    auto load_stage = [&](uint32_t i) {
        const uint32_t left = n - i * a.stage_rows, rows = left < a.stage_rows ? left : a.stage_rows;
        const uint32_t at = i % a.stages;
        bulk_load(stages + at * stage_bytes, w + (uint64_t)i * stage_bytes, rows * row_bytes, &full[at]);
    };
#if __CUDA_ARCH__ >= 900
    cudaTriggerProgrammaticLaunchCompletion();
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < a.stages; i++)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&full[i])) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        for (uint32_t i = 0; i < a.stages && i < n_stages; i++)
            load_stage(i);
    }
    cudaGridDependencySynchronize();
#endif
    float x[C][8];
#pragma unroll
    for (int c = 0; c < C; c++) {
        const uint32_t piece = threadIdx.x + (uint32_t)c * BULK_THREADS;
        uint4 raw = make_uint4(0, 0, 0, 0);
        if (piece < pieces)
            raw = static_cast<const uint4 *>(g.x)[piece];
        const __half2 *h = reinterpret_cast<const __half2 *>(&raw);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 f = __half22float2(h[i]);
            x[c][2 * i] = f.x;
            x[c][2 * i + 1] = f.y;
        }
    }
    __syncthreads();
    for (uint32_t i = 0, r = 0; i < n_stages; i++) {
        bulk_wait(&full[i % a.stages], i / a.stages & 1);
        const uint4 *stage = reinterpret_cast<const uint4 *>(stages + i % a.stages * stage_bytes);
        for (uint32_t k = 0; k < a.stage_rows && r < n; k++, r++) {
            float v[1] = {0};
#pragma unroll
            for (int c = 0; c < C; c++) {
                const uint32_t piece = threadIdx.x + (uint32_t)c * BULK_THREADS;
                if (piece < pieces)
                    v[0] = dot(stage[k * pieces + piece], x[c], v[0]);
            }
#pragma unroll
            for (uint32_t apart = 16; apart >= 1; apart /= 2)
                v[0] += __shfl_xor_sync(0xffffffffu, v[0], apart);
            if (threadIdx.x % 32 == 0)
                sums[r % ROWS][threadIdx.x / 32] = v[0];
            if (r % ROWS == ROWS - 1 || r + 1 == n) {
                __syncthreads();
                put(g, row0 + r / ROWS * ROWS, r % ROWS + 1, sums);
                __syncthreads();
            }
        }
        __syncthreads(); /* the stage has been read */
        if (threadIdx.x == 0 && i + a.stages < n_stages)
            load_stage(i + a.stages);
    }
}

typedef void (*bulk_fn)(bulk_args);

static bulk_fn bulk_of(uint32_t c)
{
    static const bulk_fn fns[] = {gemv_bulk<1>, gemv_bulk<2>, gemv_bulk<3>, gemv_bulk<4>,
                                  gemv_bulk<5>, gemv_bulk<6>, gemv_bulk<7>, gemv_bulk<8>};
    return c >= 1 && c <= 8 ? fns[c - 1] : nullptr;
}

static int run(const void *kernel, void *args, uint32_t blocks, uint32_t threads, size_t smem_bytes, void *stream)
{
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = smem_bytes;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &early;
    config.numAttrs = 1;
    void *params[] = {args};
    return (int)cudaLaunchKernelExC(&config, kernel, params);
}

/* `way`: how much shared memory a block takes, blocks a multiprocessor. */
static int run_bulk(const bench_gemv *g, uint32_t way, uint32_t n_sm, void *stream)
{
    static const uint32_t room_bytes[] = {104u << 10, 208u << 10, 52u << 10, 104u << 10}, blocks[] = {1, 1, 2, 2};
    static bool is_set[64][8];
    const uint32_t row_bytes = g->in * 2, c = (g->in / 8 + BULK_THREADS - 1) / BULK_THREADS;
    const bulk_fn kernel = bulk_of(c);
    int device = 0, major = 0;
    bulk_args a = {*g, row_bytes < 20480 ? 20480 / row_bytes : 1, 0};
    a.stages = room_bytes[way] / (a.stage_rows * row_bytes);
    a.stages = a.stages < BULK_STAGES_MAX ? a.stages : BULK_STAGES_MAX;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (!kernel || row_bytes % 16 != 0 || a.stages < 2 || major < 9 || device >= 64)
        return (int)cudaErrorInvalidValue;
    if (!is_set[device][c - 1]) {
        const cudaError_t e = cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel),
                                                   cudaFuncAttributeMaxDynamicSharedMemorySize, (int)(208u << 10));
        if (e != cudaSuccess)
            return (int)e;
        is_set[device][c - 1] = true;
    }
    return run(reinterpret_cast<const void *>(kernel), &a, n_sm * blocks[way], BULK_THREADS,
               (size_t)a.stages * a.stage_rows * row_bytes, stream);
}

#define PLAIN_WAYS 6u

extern "C" int bench_cuda_gemv(const bench_gemv *g, uint32_t way, uint32_t n_sm, void *stream)
{
    static const uint32_t blocks[PLAIN_WAYS] = {1, 2, 3, 1, 2, 3};
    const uint32_t pieces = g->in / 8;
    int c = 1;
    while (c <= 4 && (uint32_t)(c * threads_most(c)) < pieces)
        c++;
    if (g->in % 8 != 0 || g->in == 0 || way >= BENCH_GEMV_WAYS)
        return (int)cudaErrorInvalidValue;
    if (way >= PLAIN_WAYS)
        return run_bulk(g, way - PLAIN_WAYS, n_sm, stream);
    const kernel_fn kernel = kernel_of(c, way >= 3);
    if (!kernel)
        return (int)cudaErrorInvalidValue;
    const uint32_t each = (pieces + (uint32_t)c - 1) / (uint32_t)c, threads = (each + 31) / 32 * 32;
    return run(reinterpret_cast<const void *>(kernel), const_cast<bench_gemv *>(g), n_sm * blocks[way], threads, 0, stream);
}
