/* SPDX-License-Identifier: MIT
 *
 * attend_prefill_choose.cuh: which of prefill's two kernels a device gets, and the
 * functions of a variant (the end of attend_prefill.cuh).
 */
#ifndef RKVK_ATTEND_PREFILL_CHOOSE_CUH
#define RKVK_ATTEND_PREFILL_CHOOSE_CUH

#ifdef RKVK_SM90A
#include "attend_prefill_wg.cuh"
#endif

#define RKVK_PREFILL_DEVICES 64

/* sm_90a has a kernel of its own up to head dims of 256, when the build has
 * machine code for it (RKVK_SM90A, from Meson).  `wide`: by device, its number of
 * multiprocessors where its variant takes that one, else 0. */
template <rkv_type TK, rkv_type TV, int DK, int DV>
static int rkvk_prefill_prepare(uint32_t *wide)
{
    typedef rkvk_prefill_shape<TK, TV, DK, DV> shape;
#ifdef RKVK_SM90A
    if constexpr (shape::WIDE) {
        int device, major, minor, n;
        cudaError_t e = cudaGetDevice(&device);
        if (e == cudaSuccess)
            e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
        if (e == cudaSuccess)
            e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
        if (e == cudaSuccess)
            e = cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, device);
        if (e != cudaSuccess)
            return (int)e;
        if (device >= RKVK_PREFILL_DEVICES)
            return (int)cudaErrorInvalidDevice;
        wide[device] = major == 9 && minor == 0 ? (uint32_t)n : 0;
        if (wide[device])
            return rkvk_prefill_wg_prepare<rkvk_wg_shape<TK, TV, DK, DV>>();
    }
#endif
    (void)wide;
    return rkvk_load((const void *)rkvk_prefill<shape>, sizeof(rkvk_prefill_smem<shape>));
}

template <rkv_type TK, rkv_type TV, int DK, int DV>
static int rkvk_prefill_launch(const uint32_t *wide, const rkvi_attend_args *a, uint64_t grid, void *stream)
{
    typedef rkvk_prefill_shape<TK, TV, DK, DV> shape;
    const uint64_t n = grid / a->geom.n_heads * a->q_heads;
    if (n == 0)
        return 0;
#ifdef RKVK_SM90A
    if constexpr (shape::WIDE) {
        int device;
        const cudaError_t e = cudaGetDevice(&device);
        if (e != cudaSuccess)
            return (int)e;
        if (device < RKVK_PREFILL_DEVICES && wide[device])
            return rkvk_prefill_wg_launch<rkvk_wg_shape<TK, TV, DK, DV>>(a, n, wide[device], stream);
    }
#endif
    (void)wide;
    return rkvk_run(rkvk_prefill<shape>, a, n * shape::PARTS, rkvk_grid(n * shape::PARTS), dim3(RKVK_THREADS),
                    sizeof(rkvk_prefill_smem<shape>), stream);
}

#define RKVK_PREFILL_VARIANT(name, type_k, type_v, dk, dv)                                                     \
    static uint32_t wide_##name[RKVK_PREFILL_DEVICES];                                                         \
    extern "C" int rkvk_prefill_##name(const rkvi_attend_args *a, uint64_t grid, void *stream)                 \
    {                                                                                                          \
        return rkvk_prefill_launch<type_k, type_v, dk, dv>(wide_##name, a, grid, stream);                      \
    }                                                                                                          \
    extern "C" int rkvk_prefill_##name##_prepare(void)                                                         \
    {                                                                                                          \
        return rkvk_prefill_prepare<type_k, type_v, dk, dv>(wide_##name);                                      \
    }

#endif
