/* SPDX-License-Identifier: MIT
 *
 * ops_store.cu: opening tile-layers, storing new cells, and the delay of tests.
 *
 * Stored bytes are those of the plain C reference (ops_rows.c), bit by bit, so
 * every operation that rounds is written out.
 */
#include "ops_cuda.h"
#include "rkvk_launch.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#define OPEN_THREADS 256u
#define OPEN_BLOCK_BYTES 16384u /* one block zeroes so much */
#define STORE_WARPS 4u
#define PATCH_THREADS 64u
#define UPLOAD_LOADS 4u /* a thread has under way at once: the link's latency */
#define UPLOAD_THREADS (RKVI_UPLOAD_BYTES / 16u / UPLOAD_LOADS)
#define FLOAT_MAX 0x1.fffffep127f

/* ------------------------------------------------------------------- open */

/* Block b zeroes piece b % pieces of tile-layer b / pieces. */
static __global__ void __launch_bounds__(OPEN_THREADS)
    rkvk_open(const rkvi_open_args a, const uint64_t n_blocks)
{
    const uint64_t block = rkvk_block();
    rkvk_wait_before();
    rkvk_start_next();
    if (block >= n_blocks)
        return;
    const uint64_t pieces = (a.bytes + OPEN_BLOCK_BYTES - 1) / OPEN_BLOCK_BYTES;
    const uint64_t from = block % pieces * OPEN_BLOCK_BYTES;
    const uint64_t to = from + OPEN_BLOCK_BYTES < a.bytes ? from + OPEN_BLOCK_BYTES : a.bytes;
    char *at = (char *)a.bases[a.base_index[block / pieces]];
    const uint64_t wide = from + (to - from) / 16 * 16;
    for (uint64_t i = from + threadIdx.x * 16u; i < wide; i += OPEN_THREADS * 16u)
        *(uint4 *)(at + i) = make_uint4(0, 0, 0, 0);
    for (uint64_t i = wide + threadIdx.x; i < to; i += OPEN_THREADS)
        at[i] = 0;
}

extern "C" int rkvk_launch_open(const rkvi_open_args *a, uint64_t grid, void *stream)
{
    const uint64_t n_blocks = grid * ((a->bytes + OPEN_BLOCK_BYTES - 1) / OPEN_BLOCK_BYTES);
    if (n_blocks == 0)
        return 0;
    return rkvk_run_early(rkvk_open, a, n_blocks, rkvk_grid(n_blocks), dim3(OPEN_THREADS), 0, stream);
}

/* ------------------------------------------------------------------ store */

/* A warp stores 32 elements of one cell's K or V: a block of the quantised
 * types; lane i holds element i.  Of a head dim that is no multiple of 32, the
 * last warp's upper lanes are idle. */
typedef struct chunk {
    uint8_t *quants; /* of the cell */
    uint8_t *scales;
    uint32_t index; /* in the cell */
    uint32_t lane;
} chunk;

static __device__ __forceinline__ float load(const rkvi_tensor &t, uint64_t row, uint32_t head,
                                             uint32_t i)
{
    const int64_t at = (int64_t)row * t.row_stride + (int64_t)head * t.head_stride + i;
    switch (t.type) {
    case RKV_TYPE_F32: return ((const float *)t.data)[at];
    case RKV_TYPE_F16: return __half2float(((const __half *)t.data)[at]);
    default: return __bfloat162float(((const __nv_bfloat16 *)t.data)[at]);
    }
}

/* NaN becomes 0. */
static __device__ __forceinline__ float saturate(float x, float max)
{
    if (x != x)
        return 0.0f;
    return x > max ? max : x < -max ? -max : x;
}

static __device__ __forceinline__ uint16_t f16_of(float x)
{
    return __half_as_ushort(__float2half_rn(saturate(x, 65504.0f)));
}

/* The scale, rounded to f16, from lane 0; returns the inverse of the scale
 * before rounding, or 0 where it has none. */
static __device__ __forceinline__ float put_scale(const chunk &c, float d)
{
    const float s = saturate(d, 65504.0f), inverse = __fdiv_rn(1.0f, s);
    if (c.lane == 0)
        ((uint16_t *)c.scales)[c.index] = f16_of(s);
    return isfinite(inverse) ? inverse : 0.0f;
}

static __device__ __forceinline__ void put_q8_0(const chunk &c, float x)
{
    x = saturate(x, FLOAT_MAX);
    float amax = fabsf(x);
    for (int step = 16; step > 0; step /= 2)
        amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, step));
    const float inverse = put_scale(c, __fdiv_rn(amax, 127.0f));
    const float y = roundf(saturate(__fmul_rn(x, inverse), 127.0f)); /* half away from zero */
    ((int8_t *)c.quants)[c.index * RKVI_BLOCK + c.lane] = (int8_t)(int)y;
}

/* The value of largest magnitude with its sign, the first of equals; zeros
 * count as +0. */
static __device__ __forceinline__ float largest_of(float x, uint32_t lane)
{
    float best = fabsf(x);
    uint32_t at = lane;
    for (int step = 16; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, best, step);
        const uint32_t other_at = __shfl_xor_sync(0xffffffffu, at, step);
        if (other > best || (other == best && other_at < at)) {
            best = other;
            at = other_at;
        }
    }
    const float largest = __shfl_sync(0xffffffffu, x, (int)at);
    return best > 0.0f ? largest : 0.0f;
}

static __device__ __forceinline__ void put_q4_0(const chunk &c, float x)
{
    x = saturate(x, FLOAT_MAX);
    const float inverse = put_scale(c, __fdiv_rn(largest_of(x, c.lane), -8.0f));
    const float y = __fadd_rn(__fmul_rn(x, inverse), 8.5f);
    const uint32_t nibble = (uint32_t)(y > 15.0f ? 15.0f : y > 0.0f ? y : 0.0f);
    const uint32_t high = __shfl_down_sync(0xffffffffu, nibble, 16);
    if (c.lane < 16)
        c.quants[c.index * 16 + c.lane] = (uint8_t)(nibble | high << 4);
}

static __device__ __forceinline__ void put_plain(const chunk &c, rkv_type type, float scale, float x)
{
    const uint32_t at = c.index * RKVI_BLOCK + c.lane;
    if (type == RKV_TYPE_F16)
        ((uint16_t *)c.quants)[at] = f16_of(x);
    else if (type == RKV_TYPE_BF16)
        ((uint16_t *)c.quants)[at] =
            __bfloat16_as_ushort(__float2bfloat16_rn(saturate(x, 0x1.fep127f)));
    else
        c.quants[at] =
            __nv_cvt_float_to_fp8(saturate(__fdiv_rn(x, scale), 448.0f), __NV_SATFINITE, __NV_E4M3);
}

static __device__ __forceinline__ void put(const chunk &c, rkv_type type, float scale, uint32_t dim,
                                           float x)
{
    if (type == RKV_TYPE_Q8_0)
        put_q8_0(c, x);
    else if (type == RKV_TYPE_Q4_0)
        put_q4_0(c, x);
    else if (c.index * RKVI_BLOCK + c.lane < dim)
        put_plain(c, type, scale, x);
}

static __host__ __device__ __forceinline__ uint32_t n_chunks(uint32_t dim)
{
    return (dim + RKVI_BLOCK - 1) / RKVI_BLOCK;
}

/* Warp w: chunk w % chunks of item w / chunks, the chunks of K before those of V. */
static __global__ void __launch_bounds__(STORE_WARPS * 32)
    rkvk_store(const rkvi_store_args a, const uint64_t n_warps)
{
    const uint64_t warp = rkvk_block() * STORE_WARPS + threadIdx.x / 32;
    if (warp >= n_warps) {
        rkvk_wait_before();
        return;
    }
    const rkvi_geom &g = a.geom;
    const uint32_t k_chunks = n_chunks(g.dk), chunks = k_chunks + n_chunks(g.dv);
    const uint64_t item = warp / chunks;
    const uint32_t part = (uint32_t)(warp % chunks), head = (uint32_t)(item % g.n_heads);
    const rkvi_new_cell cell = a.cells[item / g.n_heads];
    uint8_t *at = (uint8_t *)a.bases[cell.base] + head * g.head_bytes;
    const bool is_k = part < k_chunks;
    chunk c;
    c.quants = at + (is_k ? g.k_off + (uint64_t)cell.cell * g.k_cell_bytes
                          : g.v_off + (uint64_t)cell.cell * g.v_cell_bytes);
    c.scales = at + (is_k ? g.k_scale_off + (uint64_t)cell.cell * g.k_scale_cell_bytes
                          : g.v_scale_off + (uint64_t)cell.cell * g.v_scale_cell_bytes);
    c.index = is_k ? part : part - k_chunks;
    c.lane = threadIdx.x % 32;
    const uint32_t dim = is_k ? g.dk : g.dv, i = c.index * RKVI_BLOCK + c.lane;
    rkvk_wait_before(); /* so far tables alone were read */
    rkvk_start_next();
    const float x = i < dim ? load(is_k ? a.k : a.v, cell.row, head, i) : 0.0f;
    put(c, is_k ? g.type_k : g.type_v, is_k ? g.k_scale : g.v_scale, dim, x);
}

extern "C" int rkvk_launch_store(const rkvi_store_args *a, uint64_t grid, void *stream)
{
    const uint64_t n_warps = grid * (n_chunks(a->geom.dk) + n_chunks(a->geom.dv));
    if (n_warps == 0)
        return 0;
    const uint64_t n_blocks = (n_warps + STORE_WARPS - 1) / STORE_WARPS;
    return rkvk_run_early(rkvk_store, a, n_warps, rkvk_grid(n_blocks), dim3(STORE_WARPS * 32), 0, stream);
}

/* ------------------------------------------------------------------ patch */

static __global__ void __launch_bounds__(PATCH_THREADS)
    rkvk_patch(const rkvi_patch_args a, const uint64_t n_blocks)
{
    const uint64_t block = rkvk_block();
    if (block >= n_blocks)
        return;
    const rkvi_patch p = a.patches[block];
    for (uint64_t i = threadIdx.x * 16u; i < p.bytes; i += PATCH_THREADS * 16u)
        *(uint4 *)(a.dst + p.to + i) = *(const uint4 *)(a.src + p.from + i);
    __threadfence(); /* a kernel behind it may read tables before it waits for this one */
}

extern "C" int rkvk_launch_patch(const rkvi_patch_args *a, uint64_t grid, void *stream)
{
    return grid ? rkvk_run(rkvk_patch, a, grid, rkvk_grid(grid), dim3(PATCH_THREADS), 0, stream) : 0;
}

/* ----------------------------------------------------------------- upload */

static __global__ void __launch_bounds__(UPLOAD_THREADS)
    rkvk_upload(const rkvi_upload_args a, const uint64_t n_blocks)
{
    const uint64_t block = rkvk_block();
    if (block >= n_blocks)
        return;
    const uint64_t from = block * RKVI_UPLOAD_BYTES + threadIdx.x * 16u;
    uint4 x[UPLOAD_LOADS] = {};
#pragma unroll
    for (uint32_t i = 0; i < UPLOAD_LOADS; i++)
        if (from + i * UPLOAD_THREADS * 16u < a.bytes)
            x[i] = __ldcv((const uint4 *)(a.src + from + i * UPLOAD_THREADS * 16u)); /* not what was there a step ago */
#pragma unroll
    for (uint32_t i = 0; i < UPLOAD_LOADS; i++)
        if (from + i * UPLOAD_THREADS * 16u < a.bytes)
            *(uint4 *)(a.dst + from + i * UPLOAD_THREADS * 16u) = x[i];
}

extern "C" int rkvk_launch_upload(const rkvi_upload_args *a, uint64_t grid, void *stream)
{
    return grid ? rkvk_run(rkvk_upload, a, grid, rkvk_grid(grid), dim3(UPLOAD_THREADS), 0, stream) : 0;
}

/* ------------------------------------------------------------------ delay */

static __global__ void rkvk_delay(const int64_t ns, const uint64_t unused)
{
    (void)unused;
    const uint64_t begin = rkvk_now_ns();
    do {
        __nanosleep(200);
    } while ((int64_t)(rkvk_now_ns() - begin) < ns);
}

extern "C" int rkvk_launch_delay(int64_t ns, void *stream)
{
    return rkvk_run(rkvk_delay, &ns, 0, dim3(1), dim3(1), 0, stream);
}

extern "C" int rkvk_prepare_store(void)
{
    const void *const kernels[] = {(const void *)rkvk_open, (const void *)rkvk_store, (const void *)rkvk_patch,
                                   (const void *)rkvk_upload, (const void *)rkvk_delay};
    int e = 0;
    for (unsigned i = 0; i < sizeof kernels / sizeof *kernels && e == 0; i++)
        e = rkvk_load(kernels[i], 0);
    return e;
}
