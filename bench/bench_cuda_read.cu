/* SPDX-License-Identifier: MIT
 *
 * bench_cuda_read.cu: a plain read of device memory, 16 bytes a thread and turn:
 * what the attention bench compares with.
 */
#include <cuda_runtime.h>
#include <stdint.h>

/* Four loads in flight a thread; `sink` is never written, since bytes are not all ones. */
static __global__ void __launch_bounds__(512) bench_read(const uint4 *p, uint64_t n, uint32_t *sink)
{
    const uint64_t step = (uint64_t)gridDim.x * blockDim.x;
    uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x;
    uint32_t all = 0xffffffffu;
    for (; i + 3 * step < n; i += 4 * step) {
        uint4 x[4];
#pragma unroll
        for (int k = 0; k < 4; k++)
            x[k] = __ldcs(p + i + (uint64_t)k * step);
#pragma unroll
        for (int k = 0; k < 4; k++)
            all &= x[k].x & x[k].y & x[k].z & x[k].w;
    }
    for (; i < n; i += step) {
        const uint4 x = p[i];
        all &= x.x & x.y & x.z & x.w;
    }
    if (all == 0xffffffffu && n > 0)
        *sink = all;
}

extern "C" int bench_cuda_read(const void *p, uint64_t bytes, uint32_t *sink, uint32_t n_blocks, void *stream)
{
    const uint4 *x = static_cast<const uint4 *>(p);
    uint64_t n = bytes / 16;
    void *params[] = {&x, &n, &sink};
    return (int)cudaLaunchKernel(reinterpret_cast<const void *>(bench_read), dim3(n_blocks), dim3(512), params, 0,
                                 static_cast<cudaStream_t>(stream));
}
