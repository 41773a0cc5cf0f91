/* SPDX-License-Identifier: MIT
 *
 * rkvk_copy.cuh: asynchronous copies from device to shared memory, and barriers.
 *
 * A thread's copies are gathered into groups by commit; wait<N> returns when all
 * of its groups but the N latest have arrived.  Other threads' copies can be
 * seen after a barrier.
 */
#ifndef RKVK_COPY_CUH
#define RKVK_COPY_CUH

#include <stdint.h>

/* 16 bytes from src, or zeros where !valid: src is not read then, but must be an
 * address of device memory. */
static __device__ __forceinline__ void rkvk_copy16(uint32_t dst, const void *src, bool valid)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :
                 : "r"(dst), "l"(src), "r"(valid ? 16 : 0)
                 : "memory");
}

/* What is read once makes room in L2 first: tables, q and partials stay there. */
static __device__ __forceinline__ uint64_t rkvk_once_policy(void)
{
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

static __device__ __forceinline__ void rkvk_copy16_once(uint32_t dst, const void *src, bool valid, uint64_t policy)
{
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2, %3;"
                 :
                 : "r"(dst), "l"(src), "r"(valid ? 16 : 0), "l"(policy)
                 : "memory");
}

/* 16 bytes, all of them there. */
static __device__ __forceinline__ void rkvk_copy16_all(uint32_t dst, const void *src)
{
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
}

static __device__ __forceinline__ void rkvk_copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N>
static __device__ __forceinline__ void rkvk_copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* The same, n up to 7. */
static __device__ __forceinline__ void rkvk_copy_wait_but(uint32_t n)
{
    switch (n) {
    case 0: rkvk_copy_wait<0>(); break;
    case 1: rkvk_copy_wait<1>(); break;
    case 2: rkvk_copy_wait<2>(); break;
    case 3: rkvk_copy_wait<3>(); break;
    case 4: rkvk_copy_wait<4>(); break;
    case 5: rkvk_copy_wait<5>(); break;
    case 6: rkvk_copy_wait<6>(); break;
    default: rkvk_copy_wait<7>();
    }
}

/* Asks for the line at p, which is not waited for. */
static __device__ __forceinline__ void rkvk_prefetch(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" : : "l"(p));
}

/* Asks for a run of bytes: whole 16-byte chunks.  Only where kernels start early. */
static __device__ __forceinline__ void rkvk_prefetch_rows(const void *p, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" : : "l"(p), "r"(bytes) : "memory");
#else
    (void)p, (void)bytes;
#endif
}

/* Some warps of a block meet: `threads` in all, at barrier `id` (1 to 15). */
static __device__ __forceinline__ void rkvk_barrier(uint32_t id, uint32_t threads)
{
    asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(threads) : "memory");
}

#endif
