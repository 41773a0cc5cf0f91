/* SPDX-License-Identifier: MIT
 *
 * bench_cuda_gemv.h: product of a matrix and one row, y[out] = W[out][in] x[in],
 * f16 with f32 sums, made to come near a plain read of W: what engines use at
 * one row, where a general matrix product has too little to do.
 *
 * Launches are programmatic: a kernel's blocks start while the one before it in
 * the stream ends, load their first rows of W, and only then wait for it.
 */
#ifndef BENCH_CUDA_GEMV_H
#define BENCH_CUDA_GEMV_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct bench_gemv {
    const void *w, *x;
    void *y;
    uint32_t in, out; /* in: a multiple of 8, at most 16,384; W and x aligned to 16 bytes */
    uint32_t is_f32;  /* y; else f16 */
} bench_gemv;

/* Ways to carry it out, from 0 on: rows in flight and blocks a multiprocessor. */
#define BENCH_GEMV_WAYS 6u

/* A cudaError_t; cudaErrorInvalidValue where this way can't do this size. */
int bench_cuda_gemv(const bench_gemv *g, uint32_t way, uint32_t n_sm, void *stream);

#ifdef __cplusplus
}
#endif
#endif
