/* SPDX-License-Identifier: MIT
 *
 * rkvk_wgmma.cuh: the tensor-core instructions of sm_90a, which a warpgroup (four
 * warps) issues together.
 *
 * D (64 x N, f32, registers) += A (64 x 16) * B (16 x N), 16-bit operands.  A
 * thread's registers are those of mma.m16n8k16 (rkvk_mma.cuh), warp w having rows
 * 16w .. 16w + 15: d[4n ..] is C of columns 8n .. 8n + 7, a[0 .. 3] is A.
 */
#ifndef RKVK_WGMMA_CUH
#define RKVK_WGMMA_CUH

#include <stdint.h>

/* Ordinary writes to registers before, wgmma after. */
static __device__ __forceinline__ void rkvk_wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ __forceinline__ void rkvk_wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* All groups but the N latest are done. */
template <int N>
static __device__ __forceinline__ void rkvk_wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* The compiler moves no use of these across this place. */
template <int N>
static __device__ __forceinline__ void rkvk_wgmma_hold(float (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(x[i])::"memory");
}

template <int N>
static __device__ __forceinline__ void rkvk_wgmma_hold(uint32_t (&x)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+r"(x[i])::"memory");
}

/* What follows is not moved before x, which is never negative, is known: the
 * assembler would have a wait come first, and what it is to be hidden behind after. */
static __device__ __forceinline__ void rkvk_wgmma_after(float x)
{
    if (x < 0.0f)
        asm volatile("nanosleep.u32 0;" ::: "memory");
}

/* rkvk_wgmma<N, BF16>::both: A and B from shared memory, both K-major; first: D is
 * not read.  ::rows: A from registers, B K-major; ::weights: A from registers, B
 * N-major. */
template <int N, bool BF16>
struct rkvk_wgmma;

#define RKVK_R8(d, i)                                                                                     \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
        "+f"(d[i + 7])
#define RKVK_R32(d, i) RKVK_R8(d, i), RKVK_R8(d, i + 8), RKVK_R8(d, i + 16), RKVK_R8(d, i + 24)
#define RKVK_N0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define RKVK_N1 RKVK_N0 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define RKVK_N1A RKVK_N1 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define RKVK_N2 RKVK_N1A ", %40, %41, %42, %43, %44, %45, %46, %47"
#define RKVK_N2A RKVK_N2 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define RKVK_N3 RKVK_N2A ", %56, %57, %58, %59, %60, %61, %62, %63"
#define RKVK_N4 RKVK_N3 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
#define RKVK_N5 RKVK_N4 ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define RKVK_N6 RKVK_N5 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define RKVK_N7 RKVK_N6 ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

/* NAMES: the N / 2 accumulators; I0 .. I5: the operands that follow. */
#define RKVK_WGMMA_TYPE(N, IS_BF16, TYPE, NAMES, I0, I1, I2, I3, I4, I5)                                        \
    template <>                                                                                               \
    struct rkvk_wgmma<N, IS_BF16> {                                                                           \
        static __device__ __forceinline__ void both(float (&d)[N / 2], uint64_t a, uint64_t b, bool first)    \
        {                                                                                                     \
            asm volatile("{.reg .pred p; setp.eq.b32 p, %" #I2 ", 0;\n"                                       \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NAMES "}, %" #I0 \
                         ", %" #I1 ", p, 1, 1, 0, 0;}"                                                        \
                         : RKVK_D##N                                                                             \
                         : "l"(a), "l"(b), "r"((int)first));                                                  \
        }                                                                                                     \
        static __device__ __forceinline__ void weights(float (&d)[N / 2], const uint32_t *a, uint64_t b)      \
        {                                                                                                     \
            asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NAMES "}, {%" #I0 \
                         ", %" #I1 ", %" #I2 ", %" #I3 "}, %" #I4 ", 1, 1, 1, 1;"                             \
                         : RKVK_D##N                                                                             \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                               \
        }                                                                                                     \
        static __device__ __forceinline__ void rows(float (&d)[N / 2], const uint32_t *a, uint64_t b, bool first)\
        {                                                                                             \
            asm volatile("{.reg .pred p; setp.eq.b32 p, %" #I5 ", 0;\n"                               \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NAMES "}, {%" #I0\
                         ", %" #I1 ", %" #I2 ", %" #I3 "}, %" #I4 ", p, 1, 1, 0;}"                    \
                         : RKVK_D##N                                                                  \
                         : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)first));      \
        }                                                                                             \
    };
#define RKVK_WGMMA(N, NAMES, I0, I1, I2, I3, I4, I5)                    \
    RKVK_WGMMA_TYPE(N, false, "f16", NAMES, I0, I1, I2, I3, I4, I5) \
    RKVK_WGMMA_TYPE(N, true, "bf16", NAMES, I0, I1, I2, I3, I4, I5)

#define RKVK_D64 RKVK_R32(d, 0)
#define RKVK_D80 RKVK_D64, RKVK_R8(d, 32)
#define RKVK_D96 RKVK_D80, RKVK_R8(d, 40)
#define RKVK_D112 RKVK_D96, RKVK_R8(d, 48)
#define RKVK_D128 RKVK_D112, RKVK_R8(d, 56)
#define RKVK_D256 RKVK_D128, RKVK_R32(d, 64), RKVK_R32(d, 96)

RKVK_WGMMA(64, RKVK_N1, 32, 33, 34, 35, 36, 37)
RKVK_WGMMA(80, RKVK_N1A, 40, 41, 42, 43, 44, 45)
RKVK_WGMMA(96, RKVK_N2, 48, 49, 50, 51, 52, 53)
RKVK_WGMMA(112, RKVK_N2A, 56, 57, 58, 59, 60, 61)
RKVK_WGMMA(128, RKVK_N3, 64, 65, 66, 67, 68, 69)
RKVK_WGMMA(256, RKVK_N7, 128, 129, 130, 131, 132, 133)

#endif
