/* SPDX-License-Identifier: MIT */
#include "gpu_kernels.h"

#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace {

constexpr unsigned THREADS = 256;
constexpr unsigned WARPS = THREADS / 32;
constexpr unsigned MOST_BLOCKS = 4096; /* of kernels that stride over their elements */

unsigned blocks_for(size_t count)
{
    const size_t blocks = (count + THREADS - 1) / THREADS;
    return blocks < 1 ? 1 : blocks > MOST_BLOCKS ? MOST_BLOCKS : (unsigned)blocks;
}

cudaStream_t as_stream(void *stream)
{
    return static_cast<cudaStream_t>(stream);
}

/* Beyond f16's range the largest value stands, or one activation would make a row infinite. */
__device__ gpu_f16 saturated(float x)
{
    return __half_as_ushort(__float2half_rn(fminf(fmaxf(x, -65504.0f), 65504.0f)));
}

__global__ void to_f16(const float *in, size_t count, gpu_f16 *out)
{
    const size_t step = (size_t)gridDim.x * THREADS;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += step)
        out[i] = saturated(in[i]);
}

/* One block a row, in the kernels below. */
__global__ void embed(struct gpu_embed a)
{
    const gpu_f16 *from = a.table + (size_t)a.tokens[blockIdx.x] * a.n;
    float *to = a.out + (size_t)blockIdx.x * a.n;
    for (size_t i = threadIdx.x; i < a.n; i += THREADS)
        to[i] = __half2float(__ushort_as_half(from[i]));
}

/* The sum over a block's threads, in all of them: by halves within a warp, then warp by warp. */
__device__ float block_sum(float x)
{
    __shared__ float parts[WARPS];
    for (unsigned offset = 16; offset > 0; offset /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, offset);
    if (threadIdx.x % 32 == 0)
        parts[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0.0f;
    for (unsigned w = 0; w < WARPS; w++)
        sum += parts[w];
    return sum;
}

__global__ void norm(struct gpu_norm a)
{
    const float *x = a.x + (size_t)blockIdx.x * a.n;
    gpu_f16 *out = a.out + (size_t)blockIdx.x * a.n;
    float squares = 0.0f;
    for (size_t i = threadIdx.x; i < a.n; i += THREADS)
        squares = __fmaf_rn(x[i], x[i], squares);
    const float factor = 1.0f / sqrtf(block_sum(squares) / (float)a.n + a.epsilon);
    for (size_t i = threadIdx.x; i < a.n; i += THREADS)
        out[i] = saturated(x[i] * factor * a.weight[i]);
}

__global__ void rope(struct gpu_rope a)
{
    float *x = a.x + (size_t)blockIdx.x * a.stride;
    const float *turn = a.turns + (size_t)blockIdx.x * a.head_dim;
    for (size_t i = 2 * threadIdx.x; i < a.heads * a.head_dim; i += 2 * THREADS) {
        const float c = turn[i % a.head_dim], s = turn[i % a.head_dim + 1];
        const float even = x[i], odd = x[i + 1];
        x[i] = even * c - odd * s;
        x[i + 1] = even * s + odd * c;
    }
}

__global__ void swiglu(struct gpu_swiglu a)
{
    const size_t step = (size_t)gridDim.x * THREADS;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < a.rows * a.n; i += step) {
        const float *row = a.gate_up + i / a.n * 2 * a.n;
        const float gate = row[i % a.n], up = row[a.n + i % a.n];
        a.out[i] = saturated(gate / (1.0f + expf(-gate)) * up);
    }
}

struct best {
    float value;
    size_t index;
};

/* NaN loses, so that an index always comes out. */
__device__ bool is_better(best a, best b)
{
    return a.value > b.value || (a.value == b.value && a.index < b.index);
}

/* One block. */
__global__ void argmax(const float *values, size_t count, int32_t *out)
{
    __shared__ best found[THREADS];
    best mine = {-INFINITY, count - 1};
    for (size_t i = threadIdx.x; i < count; i += THREADS)
        if (is_better({values[i], i}, mine))
            mine = {values[i], i};
    found[threadIdx.x] = mine;
    for (unsigned half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half && is_better(found[threadIdx.x + half], found[threadIdx.x]))
            found[threadIdx.x] = found[threadIdx.x + half];
    }
    if (threadIdx.x == 0)
        *out = (int32_t)found[0].index;
}

} // namespace

int gpu_to_f16(void *stream, const float *in, size_t count, gpu_f16 *out)
{
    to_f16<<<blocks_for(count), THREADS, 0, as_stream(stream)>>>(in, count, out);
    return cudaGetLastError();
}

int gpu_embed(void *stream, struct gpu_embed args)
{
    embed<<<(unsigned)args.rows, THREADS, 0, as_stream(stream)>>>(args);
    return cudaGetLastError();
}

int gpu_norm(void *stream, struct gpu_norm args)
{
    norm<<<(unsigned)args.rows, THREADS, 0, as_stream(stream)>>>(args);
    return cudaGetLastError();
}

int gpu_rope(void *stream, struct gpu_rope args)
{
    rope<<<(unsigned)args.rows, THREADS, 0, as_stream(stream)>>>(args);
    return cudaGetLastError();
}

int gpu_swiglu(void *stream, struct gpu_swiglu args)
{
    swiglu<<<blocks_for(args.rows * args.n), THREADS, 0, as_stream(stream)>>>(args);
    return cudaGetLastError();
}

int gpu_argmax(void *stream, const float *values, size_t count, int32_t *out)
{
    argmax<<<1, THREADS, 0, as_stream(stream)>>>(values, count, out);
    return cudaGetLastError();
}
