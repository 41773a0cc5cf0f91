/* SPDX-License-Identifier: MIT
 *
 * rkvk_launch.cuh: launching a kernel and loading one ahead of time.
 *
 * The launch's own return value is taken, never cudaGetLastError: that would
 * report, and clear, an error that the engine left.
 */
#ifndef RKVK_LAUNCH_CUH
#define RKVK_LAUNCH_CUH

#include <cuda_runtime.h>
#include <stdint.h>

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
    return (int)cudaLaunchKernel(reinterpret_cast<const void *>(kernel), grid, block, params,
                                 smem_bytes, static_cast<cudaStream_t>(stream));
}

/* Kernels that start early (compute capability 9.0 and later).  Of a launch by
 * rkvk_run_early, blocks start once each block of the kernel before it in the
 * stream has called rkvk_start_next or ended, and that kernel's results can be
 * read after rkvk_wait_before alone.  Rules, for the order to hold along a stream:
 *   - each block of such a kernel calls rkvk_wait_before, before it returns,
 *     before it reads what any kernel wrote, and before it writes anything;
 *   - what it may read earlier: parameters and the step's tables, whose upload
 *     is an edge of the step's first kernel;
 *   - rkvk_start_next comes after rkvk_wait_before, so that two neighbours of a
 *     stream overlap, never three;
 *   - a kernel that fills the GPU does not call it: with the merge's blocks waiting
 *     beside decode's, a step of 48 sites took 8.9 ms in place of 7.8 (H200). */
static __device__ __forceinline__ void rkvk_wait_before(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

static __device__ __forceinline__ void rkvk_start_next(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" :::);
#endif
}

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
    config.numAttrs = major >= 9 ? 1 : 0;
    void *params[] = {const_cast<Args *>(args), &n};
    return (int)cudaLaunchKernelExC(&config, reinterpret_cast<const void *>(kernel), params);
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
