/* SPDX-License-Identifier: MIT
 *
 * The example engine's own kernels. All pointers are device pointers; every call queues one kernel on
 * `stream` and returns its launch's cudaError_t. Sums are taken in an order that the sizes alone fix,
 * so the same inputs give the same bits.
 */
#ifndef GPU_KERNELS_H
#define GPU_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef uint16_t gpu_f16; /* the bits of a binary16 */

/* out[i] = in[i], rounded. */
int gpu_to_f16(void *stream, const float *in, size_t count, gpu_f16 *out);

/* out[r][i] = table[tokens[r]][i] */
struct gpu_embed {
    const gpu_f16 *table; /* [vocabulary][n] */
    const int32_t *tokens;
    float *out; /* [rows][n] */
    size_t rows, n;
};
int gpu_embed(void *stream, struct gpu_embed args);

/* out[r][i] = x[r][i] weight[i] / sqrt(mean of x[r]^2 + epsilon) */
struct gpu_norm {
    const float *x; /* [rows][n] */
    const float *weight;
    gpu_f16 *out; /* [rows][n] */
    size_t rows, n;
    float epsilon;
};
int gpu_norm(void *stream, struct gpu_norm args);

/* Turns the pairs (0, 1), (2, 3), ... of the first `heads` heads of each row, in place. */
struct gpu_rope {
    float *x;           /* row r begins at x + r * stride */
    const float *turns; /* of row 0's position: [rows][head_dim], cosine and sine of each pair */
    size_t rows, heads, head_dim, stride;
};
int gpu_rope(void *stream, struct gpu_rope args);

/* out[r][i] = silu(gate_up[r][i]) gate_up[r][n + i] */
struct gpu_swiglu {
    const float *gate_up; /* [rows][2 n] */
    gpu_f16 *out;         /* [rows][n] */
    size_t rows, n;
};
int gpu_swiglu(void *stream, struct gpu_swiglu args);

/* The index of the highest value; of equal ones the first. */
int gpu_argmax(void *stream, const float *values, size_t count, int32_t *out);

#ifdef __cplusplus
}
#endif
#endif
