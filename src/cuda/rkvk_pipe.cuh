/* SPDX-License-Identifier: MIT
 *
 * rkvk_pipe.cuh: what hands blocks of cells from warps that load to warps that
 * compute, on sm_90: mbarriers, named barriers, registers moved between roles.
 *
 * A barrier in shared memory goes from phase to phase, each time that as many
 * arrivals as it was made for have come.  wait(bar, parity) returns once the phase
 * of that parity is over: 0, 1, 0, .. in turn; of parity 1 at once on a new one.
 */
#ifndef RKVK_PIPE_CUH
#define RKVK_PIPE_CUH

#include <stdint.h>

static __device__ __forceinline__ void rkvk_bar_init(uint32_t bar, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(arrivals) : "memory");
}

static __device__ __forceinline__ void rkvk_bar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

/* Arrives when all that the thread has asked cp.async for is there. */
static __device__ __forceinline__ void rkvk_bar_arrive_copied(uint32_t bar)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}

static __device__ __forceinline__ void rkvk_bar_wait(uint32_t bar, uint32_t parity)
{
    uint32_t over;
    do {
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                     : "=r"(over)
                     : "r"(bar), "r"(parity)
                     : "memory");
    } while (!over);
}

/* What was written to shared memory, before; what wgmma reads, after. */
static __device__ __forceinline__ void rkvk_fence_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* A barrier of some warps: ids 1 to 15. */
template <int ID, int THREADS>
static __device__ __forceinline__ void rkvk_bar_sync(void)
{
    asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}

/* Counts among its threads, and goes on. */
template <int ID, int THREADS>
static __device__ __forceinline__ void rkvk_bar_come(void)
{
    asm volatile("bar.arrive %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}

template <int N>
static __device__ __forceinline__ void rkvk_more_registers(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N>
static __device__ __forceinline__ void rkvk_fewer_registers(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

#endif
