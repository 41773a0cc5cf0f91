/* SPDX-License-Identifier: MIT
 *
 * rkvk_device.cuh: what a kernel asks of the GPU beside memory and arithmetic.
 *
 * Inline PTX stands in this file, rkvk_copy.cuh, rkvk_mma.cuh, rkvk_pipe.cuh and
 * rkvk_wgmma.cuh alone, and these hold little else: tests/emu/emu_ptx.hpp has
 * their like for a CPU.
 */
#ifndef RKVK_DEVICE_CUH
#define RKVK_DEVICE_CUH

#include <stdint.h>

/* The block's shared memory, as many bytes as the launch asks for. */
#define RKVK_SHARED(name, align) extern __shared__ __align__(align) uint8_t name[]

/* What the runtime knows a kernel by. */
template <typename Args>
static const void *rkvk_entry(void (*kernel)(Args, uint64_t))
{
    return reinterpret_cast<const void *>(kernel);
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
 *   - a kernel that fills the GPU does not call it, not even at its end: with the merge's
 *     blocks waiting beside decode's, a step of 48 sites took 8.9 ms in place of 7.8 (H200). */
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

/* The device's wall clock, which ticks coarsely (about a microsecond). */
static __device__ __forceinline__ uint64_t rkvk_now_ns(void)
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}

/* A word that threads of the host read and write as well, or the device: acquired,
 * and released with all that the thread has seen before. */
static __device__ __forceinline__ uint64_t rkvk_word(const uint64_t *p)
{
    uint64_t x;
    asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(x) : "l"(p) : "memory");
    return x;
}

static __device__ __forceinline__ void rkvk_set_word(uint64_t *p, uint64_t x)
{
    asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(p), "l"(x) : "memory");
}

#endif
