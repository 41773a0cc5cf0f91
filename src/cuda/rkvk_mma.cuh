/* SPDX-License-Identifier: MIT
 *
 * rkvk_mma.cuh: the tensor-core instructions of a warp, wrapped.
 *
 * Fragments of mma.m16n8k16, D = A * B + C, per lane, g = lane / 4, t = lane % 4;
 * a register of A and B holds two 16-bit elements, the lower index in its low half:
 *
 *   A (16 x 16)  a0 = A[g][2t, 2t+1]     a1 = A[g+8][2t, 2t+1]
 *                a2 = A[g][2t+8, 2t+9]   a3 = A[g+8][2t+8, 2t+9]
 *   B (16 x 8)   b0 = B[2t, 2t+1][g]     b1 = B[2t+8, 2t+9][g]
 *   C (16 x 8)   c0, c1 = C[g][2t, 2t+1] c2, c3 = C[g+8][2t, 2t+1]      f32
 *
 * The contraction index may be permuted freely, if A's and B's is alike.
 */
#ifndef RKVK_MMA_CUH
#define RKVK_MMA_CUH

#include <stdint.h>

static __device__ __forceinline__ uint32_t rkvk_smem_addr(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Four 8 x 8 matrices of 16-bit elements.  Lane i gives the address of row
 * i % 8 of matrix i / 8 (16 bytes); it gets M[g][2t, 2t+1] of each. */
static __device__ __forceinline__ void rkvk_ldmatrix_x4(uint32_t (&r)[4], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}

/* The same, transposed: the lane gets M[2t, 2t+1][g]. */
static __device__ __forceinline__ void rkvk_ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}

/* Two matrices: the addresses of lanes 0 to 15. */
static __device__ __forceinline__ void rkvk_ldmatrix_x2_trans(uint32_t (&r)[2], uint32_t addr)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1])
                 : "r"(addr)
                 : "memory");
}

/* From M[g][2t, 2t+1] in each lane to M[2t, 2t+1][g]. */
static __device__ __forceinline__ uint32_t rkvk_movmatrix(uint32_t x)
{
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

template <bool BF16>
static __device__ __forceinline__ void rkvk_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if constexpr (BF16)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* (x & mask) | bits, in one instruction: `bits` must be in a register for it, which the compiler forgoes. */
template <uint32_t MASK>
static __device__ __forceinline__ uint32_t rkvk_and_or(uint32_t x, uint32_t bits)
{
    uint32_t y;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(y) : "r"(x), "n"(MASK), "r"(bits));
    return y;
}

/* fp8 (e4m3): two in bytes 0, 1 or 2, 3 of a word as f16, times what RKVK_FP8_UNIT gives back. */
#if __CUDA_ARCH__ >= 890
#define RKVK_FP8_UNIT 1.0f

static __device__ __forceinline__ uint32_t rkvk_fp8_low(uint32_t w)
{
    uint32_t y;
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %1; cvt.rn.f16x2.e4m3x2 %0, a;}" : "=r"(y) : "r"(w));
    return y;
}

static __device__ __forceinline__ uint32_t rkvk_fp8_high(uint32_t w)
{
    uint32_t y;
    asm("{.reg .b16 a, b; mov.b32 {a, b}, %1; cvt.rn.f16x2.e4m3x2 %0, b;}" : "=r"(y) : "r"(w));
    return y;
}
#else
#define RKVK_FP8_UNIT 256.0f

/* In the high byte of each half. */
static __device__ __forceinline__ uint32_t rkvk_fp8_pair(uint32_t w)
{
    return (w & 0x80008000u) | (w >> 1 & 0x3f803f80u);
}

static __device__ __forceinline__ uint32_t rkvk_fp8_low(uint32_t w)
{
    return rkvk_fp8_pair(__byte_perm(w, 0, 0x1404));
}

static __device__ __forceinline__ uint32_t rkvk_fp8_high(uint32_t w)
{
    return rkvk_fp8_pair(__byte_perm(w, 0, 0x3424));
}
#endif

/* 2^x, within 2 ulp; 2^0 = 1, 2^-inf = 0. */
static __device__ __forceinline__ float rkvk_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

#endif
