/* SPDX-License-Identifier: MIT
 *
 * rkvk_launch.cuh: launching a kernel and loading one ahead of time.
 *
 * The launch's own return value is taken, never cudaGetLastError: that would
 * report, and clear, an error that the engine left.
 */
#ifndef RKVK_LAUNCH_CUH
#define RKVK_LAUNCH_CUH

#include "rkvk_device.cuh"

#include <cuda_runtime.h>

/* Work of more blocks than a grid's x holds: kernels take their block's number
 * from x and y together (rkvk_block), and return where it is n_blocks or more. */
static inline dim3 rkvk_grid(uint64_t n_blocks)
{
    const uint64_t most = 1u << 30;
    if (n_blocks <= most)
        return dim3((unsigned)n_blocks, 1, 1);
    return dim3((unsigned)most, (unsigned)((n_blocks + most - 1) / most), 1);
}

static __device__ __forceinline__ uint64_t rkvk_block(void)
{
    return blockIdx.x + (uint64_t)blockIdx.y * gridDim.x;
}

template <typename Args>
static int rkvk_run(void (*kernel)(Args, uint64_t), const Args *args, uint64_t n, dim3 grid, dim3 block,
                    size_t smem_bytes, void *stream)
{
    void *params[] = {const_cast<Args *>(args), &n};
    return (int)cudaLaunchKernel(rkvk_entry(kernel), grid, block, params, smem_bytes,
                                 static_cast<cudaStream_t>(stream));
}

/* Whether the code that devices of capability 9.0 and later run waits: what was compiled
 * for older ones, and is translated for these, has no such instruction.  (A build has
 * intermediate code of its newest architecture alone.) */
static constexpr bool rkvk_can_wait(void)
{
#ifdef __CUDA_ARCH_LIST__
    const int archs[] = {__CUDA_ARCH_LIST__};
    for (int arch : archs)
        if (arch >= 900)
            return true;
    return false;
#else
    return true; /* tests/emu */
#endif
}

/* One that starts early: rkvk_device.cuh. */
template <typename Args>
static int rkvk_run_early(void (*kernel)(Args, uint64_t), const Args *args, uint64_t n, dim3 grid, dim3 block,
                          size_t smem_bytes, void *stream)
{
    int device, major;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess)
        e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (e != cudaSuccess)
        return (int)e;
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = smem_bytes;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &early;
    config.numAttrs = rkvk_can_wait() && major >= 9 ? 1 : 0;
    void *params[] = {const_cast<Args *>(args), &n};
    return (int)cudaLaunchKernelExC(&config, rkvk_entry(kernel), params);
}

/* Loads a kernel's module on the current device (a first launch inside a
 * capture would have to, and may not), and allows it so much shared memory. */
static inline int rkvk_load(const void *kernel, size_t smem_bytes)
{
    cudaFuncAttributes attributes;
    cudaError_t e = cudaFuncGetAttributes(&attributes, kernel);
    if (e == cudaSuccess && smem_bytes > 48 * 1024)
        e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem_bytes);
    return (int)e;
}

#endif
