/* SPDX-License-Identifier: MIT
 *
 * emu_ptx.hpp: the instructions that src/cuda wraps in inline PTX, for a CPU.
 *
 * Included before the kernels' own headers, whose guards it takes: rkvk_device.cuh,
 * rkvk_copy.cuh, rkvk_mma.cuh, rkvk_pipe.cuh and rkvk_wgmma.cuh, where each function
 * is described.
 */
#ifndef EMU_PTX_HPP
#define EMU_PTX_HPP

#include "emu_cuda.hpp"

/* ----------------------------------------------------------- rkvk_device.cuh */
#define RKVK_DEVICE_CUH

#define RKVK_SHARED(name, align)                                                              \
    uint8_t *const name = emu_smem;                                                           \
    if ((uintptr_t)name % (align) != 0)                                                       \
    emu_fail("shared memory is not aligned to " #align)

template <typename Args> static void emu_go_as(const void *kernel, const void *args, uint64_t n)
{
    reinterpret_cast<void (*)(Args, uint64_t)>(const_cast<void *>(kernel))(*static_cast<const Args *>(args), n);
}

template <typename Args> static const void *rkvk_entry(void (*kernel)(Args, uint64_t))
{
    const void *entry = reinterpret_cast<const void *>(kernel);
    emu_register(entry, emu_go_as<Args>);
    return entry;
}

static inline void rkvk_wait_before(void) { emu_self->waited = true; }
static inline void rkvk_start_next(void)
{
    if (!emu_self->waited)
        emu_fail("the next kernel is started before the one before is waited for");
}
uint64_t rkvk_now_ns(void);
static inline uint64_t rkvk_word(const uint64_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }
static inline void rkvk_set_word(uint64_t *p, uint64_t x) { __atomic_store_n(p, x, __ATOMIC_RELEASE); }

/* ------------------------------------------------------------- rkvk_copy.cuh */
#define RKVK_COPY_CUH

static inline void rkvk_copy16(uint32_t dst, const void *src, bool valid) { emu_copy_16(dst, src, valid); }
static inline uint64_t rkvk_once_policy(void) { return 0; }
static inline void rkvk_copy16_once(uint32_t dst, const void *src, bool valid, uint64_t)
{
    emu_copy_16(dst, src, valid);
}
static inline void rkvk_copy16_all(uint32_t dst, const void *src) { emu_copy_16(dst, src, true); }
static inline void rkvk_copy_commit(void) { emu_copy_commit(); }
template <int N> static inline void rkvk_copy_wait(void) { emu_copy_wait(N); }
static inline void rkvk_copy_wait_but(uint32_t n) { emu_copy_wait(n < 7 ? n : 7); }
static inline void rkvk_prefetch(const void *) {}
static inline void rkvk_prefetch_rows(const void *p, uint32_t bytes)
{
    if (((uintptr_t)p | bytes) % 16 != 0)
        emu_fail("a prefetch of %u bytes at %p: no whole pieces of 16", bytes, p);
}
static inline void rkvk_barrier(uint32_t id, uint32_t threads) { emu_barrier(id, threads, true); }

/* -------------------------------------------------------------- rkvk_mma.cuh */
#define RKVK_MMA_CUH

static inline uint32_t rkvk_smem_addr(const void *p) { return emu_smem_address(p); }

struct emu_ldmatrix {
    uint32_t *r;
    uint32_t address;
    uint8_t n;
    bool trans;
};
static inline void rkvk_ldmatrix_x4(uint32_t (&r)[4], uint32_t addr)
{
    emu_ldmatrix m = {r, addr, 4, false};
    emu_meet(EMU_LDMATRIX, &m);
}
static inline void rkvk_ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t addr)
{
    emu_ldmatrix m = {r, addr, 4, true};
    emu_meet(EMU_LDMATRIX, &m);
}
static inline void rkvk_ldmatrix_x2_trans(uint32_t (&r)[2], uint32_t addr)
{
    emu_ldmatrix m = {r, addr, 2, true};
    emu_meet(EMU_LDMATRIX, &m);
}
static inline uint32_t rkvk_movmatrix(uint32_t x)
{
    emu_meet(EMU_MOVMATRIX, &x);
    return x;
}

struct emu_mma {
    float *c;
    const uint32_t *a;
    uint32_t b0, b1;
    bool bf16;
};
template <bool BF16>
static inline void rkvk_mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    emu_mma m = {c, a, b0, b1, BF16};
    emu_meet(EMU_MMA, &m);
}

template <uint32_t MASK> static inline uint32_t rkvk_and_or(uint32_t x, uint32_t bits) { return (x & MASK) | bits; }

#define RKVK_FP8_UNIT 1.0f
static inline uint32_t rkvk_fp8_low(uint32_t w)
{
    const __half2 x = __floats2half2_rn(rkvi_e4m3_to_f32((uint8_t)w), rkvi_e4m3_to_f32((uint8_t)(w >> 8)));
    return *reinterpret_cast<const uint32_t *>(&x);
}
static inline uint32_t rkvk_fp8_high(uint32_t w) { return rkvk_fp8_low(w >> 16); }

/* What is below the least normal number is 0, before and after. */
static inline float rkvk_exp2(float x)
{
    const float y = exp2f(x);
    return y < 0x1p-126f ? 0.0f : y;
}

/* ------------------------------------------------------------- rkvk_pipe.cuh */
#define RKVK_PIPE_CUH

void rkvk_bar_init(uint32_t bar, uint32_t arrivals);
void rkvk_bar_arrive(uint32_t bar);
static inline void rkvk_bar_arrive_copied(uint32_t bar) { emu_copy_arrive(bar); }
void rkvk_bar_wait(uint32_t bar, uint32_t parity);
static inline void rkvk_fence_async(void) {}
template <int ID, int THREADS> static inline void rkvk_bar_sync(void) { emu_barrier(ID, THREADS, true); }
template <int ID, int THREADS> static inline void rkvk_bar_come(void) { emu_barrier(ID, THREADS, false); }
template <int N> static inline void rkvk_more_registers(void) { emu_meet(EMU_SYNC, nullptr); }
template <int N> static inline void rkvk_fewer_registers(void) { emu_meet(EMU_SYNC, nullptr); }

/* ------------------------------------------------------------ rkvk_wgmma.cuh */
#define RKVK_WGMMA_CUH

struct emu_wgmma {
    float *d;
    const uint32_t *a; /* null: from shared memory, at a_at */
    uint64_t a_at, b_at;
    uint32_t n; /* columns of D */
    bool bf16, first, b_by_rows;
};

static inline void rkvk_wgmma_fence(void) { emu_meet(EMU_SYNC, nullptr); }
static inline void rkvk_wgmma_commit(void) { emu_meet(EMU_WGMMA_COMMIT, nullptr); }
template <int N> static inline void rkvk_wgmma_wait(void)
{
    uint32_t but = N;
    emu_meet(EMU_WGMMA_WAIT, &but);
}
template <int N> static inline void rkvk_wgmma_hold(float (&)[N]) {}
template <int N> static inline void rkvk_wgmma_hold(uint32_t (&)[N]) {}
static inline void rkvk_wgmma_after(float) {}

template <int N, bool BF16> struct rkvk_wgmma {
    static void both(float (&d)[N / 2], uint64_t a, uint64_t b, bool first)
    {
        emu_wgmma m = {d, nullptr, a, b, N, BF16, first, false};
        emu_meet(EMU_WGMMA, &m);
    }
    static void weights(float (&d)[N / 2], const uint32_t *a, uint64_t b)
    {
        emu_wgmma m = {d, a, 0, b, N, BF16, false, true};
        emu_meet(EMU_WGMMA, &m);
    }
    static void rows(float (&d)[N / 2], const uint32_t *a, uint64_t b, bool first)
    {
        emu_wgmma m = {d, a, 0, b, N, BF16, first, false};
        emu_meet(EMU_WGMMA, &m);
    }
};

#endif
