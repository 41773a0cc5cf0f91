/* SPDX-License-Identifier: MIT
 *
 * emu_cuda.hpp: as much of CUDA C++ and of its runtime as the kernels use, for a
 * host compiler.  Rounding is that of the names: sums and products are not fused
 * (-ffp-contract=off), __fmaf_rn is.  Intrinsics with approximate results have
 * libm's, which are within what CUDA promises.
 */
#ifndef EMU_CUDA_HPP
#define EMU_CUDA_HPP

#include "emu_core.hpp"
#include "ops_half.h"

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

/* ------------------------------------------------------------------ language */

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
/* Of a block: blocks run one by one.  Filled with noise before each (emu_launch.cpp). */
#define __shared__ static __attribute__((section("emu_shared")))
#define __noinline__ __attribute__((noinline))

#define threadIdx (emu_self->index)
#define blockIdx emu_block_index
#define blockDim emu_block_dim
#define gridDim emu_grid_dim

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

#define EMU_VECTOR2(name, type, align) \
    struct alignas(align) name {       \
        type x, y;                     \
    };                                 \
    static inline name make_##name(type x, type y) { return {x, y}; }
#define EMU_VECTOR4(name, type)  \
    struct alignas(16) name {    \
        type x, y, z, w;         \
    };                           \
    static inline name make_##name(type x, type y, type z, type w) { return {x, y, z, w}; }
EMU_VECTOR2(float2, float, 8)
EMU_VECTOR2(uint2, unsigned, 8)
EMU_VECTOR2(ulonglong2, unsigned long long, 16)
EMU_VECTOR4(float4, float)
EMU_VECTOR4(uint4, unsigned)

/* ---------------------------------------------------------------- arithmetic */

static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline float __double2float_rn(double x) { return (float)x; }

/* libm's are calls. */
static inline float emu_fmaxf(float a, float b) { return a > b || b != b ? a : b; }
static inline float emu_fminf(float a, float b) { return a < b || b != b ? a : b; }
#define fmaxf emu_fmaxf
#define fminf emu_fminf

template <typename TO, typename FROM> static inline TO emu_bits(FROM x)
{
    static_assert(sizeof(TO) == sizeof(FROM), "as many bits");
    TO y;
    memcpy(&y, &x, sizeof y);
    return y;
}
static inline float __int_as_float(int x) { return emu_bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return emu_bits<float>(x); }
static inline int __float_as_int(float x) { return emu_bits<int>(x); }
static inline long long __double_as_longlong(double x) { return emu_bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return emu_bits<double>(x); }

static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }

static inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector)
{
    const uint64_t both = (uint64_t)y << 32 | x;
    unsigned out = 0;
    for (unsigned i = 0; i < 4; i++) {
        const unsigned pick = selector >> (4 * i) & 15, byte = (unsigned)(both >> (pick % 8 * 8)) & 255;
        out |= (pick & 8 ? (byte & 128 ? 255u : 0u) : byte) << (8 * i);
    }
    return out;
}

template <typename T> static inline T __ldcv(const T *p) { return *p; }
static inline void __threadfence(void) {}
static inline void __threadfence_system(void) {}
static inline unsigned long long atomicAdd(unsigned long long *p, unsigned long long x)
{
    return __atomic_fetch_add(p, x, __ATOMIC_RELAXED);
}
static inline void __nanosleep(unsigned) {}

/* --------------------------------------------------------------- 16 bits, fp8 */

struct __half {
    uint16_t bits;
};
struct __half2 {
    __half x, y;
};
struct __nv_bfloat16 {
    uint16_t bits;
};
struct __nv_bfloat162 {
    __nv_bfloat16 x, y;
};
typedef __half __half_raw;

#ifdef __F16C__
static inline float __half2float(__half h) { return _cvtsh_ss(h.bits); }
static inline __half __float2half_rn(float x) { return {(uint16_t)_cvtss_sh(x, 0)}; }
#else
static inline float __half2float(__half h) { return rkvi_f16_to_f32(h.bits); }
static inline __half __float2half_rn(float x) { return {rkvi_f32_to_f16(x)}; }
#endif
static inline __half __ushort_as_half(unsigned short x) { return {x}; }
static inline unsigned short __half_as_ushort(__half x) { return x.bits; }
static inline float __low2float(__half2 x) { return __half2float(x.x); }
static inline float __high2float(__half2 x) { return __half2float(x.y); }
static inline float2 __half22float2(__half2 x) { return {__half2float(x.x), __half2float(x.y)}; }
static inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
static inline __half2 __float2half2_rn(float x) { return __floats2half2_rn(x, x); }
/* f32 has more than twice the bits of f16: rounding twice is rounding once. */
static inline __half2 __hmul2(__half2 a, __half2 b)
{
    return __floats2half2_rn(__half2float(a.x) * __half2float(b.x), __half2float(a.y) * __half2float(b.y));
}
static inline __half2 __hsub2(__half2 a, __half2 b)
{
    return __floats2half2_rn(__half2float(a.x) - __half2float(b.x), __half2float(a.y) - __half2float(b.y));
}
/* Rounded twice, by fmaf and to f16: right where f32 holds the sum exactly, as it does here. */
static inline __half2 __hfma2(__half2 a, __half2 b, __half2 c)
{
    return __floats2half2_rn(fmaf(__half2float(a.x), __half2float(b.x), __half2float(c.x)),
                             fmaf(__half2float(a.y), __half2float(b.y), __half2float(c.y)));
}

static inline float __bfloat162float(__nv_bfloat16 x) { return rkvi_bf16_to_f32(x.bits); }
static inline __nv_bfloat16 __float2bfloat16_rn(float x) { return {rkvi_f32_to_bf16(x)}; }
static inline unsigned short __bfloat16_as_ushort(__nv_bfloat16 x) { return x.bits; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y)
{
    return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}

typedef uint8_t __nv_fp8_storage_t;
enum { __NV_SATFINITE, __NV_E4M3 };
static inline __half_raw __nv_cvt_fp8_to_halfraw(__nv_fp8_storage_t x, int)
{
    return __float2half_rn(rkvi_e4m3_to_f32(x));
}
static inline __nv_fp8_storage_t __nv_cvt_float_to_fp8(float x, int, int) { return rkvi_f32_to_e4m3_sat(x); }

/* ---------------------------------------------------------------------- warps */

struct emu_shuffle {
    uint64_t value, result;
    uint32_t from;
};

static inline void emu_all_lanes(unsigned mask)
{
    if (mask != 0xffffffffu)
        emu_fail("part of a warp (mask %#x): not emulated", mask);
}

template <typename T> static inline T emu_shuffle_from(unsigned mask, T value, uint32_t from)
{
    static_assert(sizeof(T) <= sizeof(uint64_t), "one register or two");
    emu_all_lanes(mask);
    emu_shuffle s = {0, 0, from};
    memcpy(&s.value, &value, sizeof value);
    emu_meet(EMU_SHUFFLE, &s);
    memcpy(&value, &s.result, sizeof value);
    return value;
}
template <typename T> static inline T __shfl_sync(unsigned mask, T value, int from)
{
    return emu_shuffle_from(mask, value, (uint32_t)from % EMU_LANES);
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T value, int with)
{
    return emu_shuffle_from(mask, value, (emu_self->lane ^ (uint32_t)with) % EMU_LANES);
}
template <typename T> static inline T __shfl_down_sync(unsigned mask, T value, unsigned by)
{
    const uint32_t from = emu_self->lane + by;
    return emu_shuffle_from(mask, value, from < EMU_LANES ? from : emu_self->lane);
}

struct emu_ballot {
    bool vote;
    uint32_t result;
};
static inline unsigned __ballot_sync(unsigned mask, bool vote)
{
    emu_all_lanes(mask);
    emu_ballot b = {vote, 0};
    emu_meet(EMU_BALLOT, &b);
    return b.result;
}
static inline int __any_sync(unsigned mask, bool vote) { return __ballot_sync(mask, vote) != 0; }
static inline int __all_sync(unsigned mask, bool vote) { return __ballot_sync(mask, vote) == 0xffffffffu; }
static inline void __syncwarp(void) { emu_meet(EMU_SYNC, nullptr); }
static inline void __syncthreads(void)
{
    emu_barrier(0, emu_block_dim.x * emu_block_dim.y * emu_block_dim.z, true);
}

/* -------------------------------------------------------------------- runtime */

typedef int cudaError_t;
enum { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorInvalidConfiguration = 9, cudaErrorInvalidDevice = 101 };
typedef void *cudaStream_t;
enum cudaDeviceAttr {
    cudaDevAttrComputeCapabilityMajor,
    cudaDevAttrComputeCapabilityMinor,
    cudaDevAttrMultiProcessorCount,
    cudaDevAttrMaxSharedMemoryPerMultiprocessor,
    cudaDevAttrMaxSharedMemoryPerBlockOptin,
};
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
struct cudaFuncAttributes {
    int unused;
};
enum cudaLaunchAttributeID { cudaLaunchAttributeProgrammaticStreamSerialization };
struct cudaLaunchAttribute {
    cudaLaunchAttributeID id;
    struct {
        int programmaticStreamSerializationAllowed;
    } val;
};
struct cudaLaunchConfig_t {
    dim3 gridDim, blockDim;
    size_t dynamicSmemBytes;
    cudaStream_t stream;
    cudaLaunchAttribute *attrs;
    unsigned numAttrs;
};

cudaError_t cudaGetDevice(int *device);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *kernel);
cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value);
cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **params, size_t smem_bytes,
                             cudaStream_t stream);
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **params);

#endif
