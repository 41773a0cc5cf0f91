/* SPDX-License-Identifier: MIT
 *
 * step_tensor.h: reads and writes the tensors of step_fixture.h, in f32, and looks
 * at the bytes between their rows.  For step_fixture.c.
 */
#ifndef STEP_TENSOR_H
#define STEP_TENSOR_H

#include "ops_half.h"
#include "step_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define FX_CANARY 0xC5 /* all bytes of a new tensor */

static inline uint64_t tensor_offset(const fx_tensor *x, uint32_t row, uint32_t head)
{
    return row * (uint64_t)x->t.row_stride + head * (uint64_t)x->t.head_stride;
}

static inline void tensor_put(fx_tensor *x, uint32_t row, const float *values)
{
    for (uint32_t h = 0; h < x->heads; h++)
        for (uint32_t i = 0; i < x->dim; i++) {
            const uint64_t at = tensor_offset(x, row, h) + i;
            const float f = values[h * x->dim + i];
            if (x->t.type == RKV_TYPE_F32)
                ((float *)x->t.data)[at] = f;
            else
                ((uint16_t *)x->t.data)[at] = x->t.type == RKV_TYPE_F16 ? rkvi_f32_to_f16(f) : rkvi_f32_to_bf16(f);
        }
}

static inline float tensor_get(const fx_tensor *x, uint32_t row, uint32_t head, uint32_t i)
{
    const uint64_t at = tensor_offset(x, row, head) + i;
    if (x->t.type == RKV_TYPE_F32)
        return ((const float *)x->t.data)[at];
    const uint16_t u = ((const uint16_t *)x->t.data)[at];
    return x->t.type == RKV_TYPE_F16 ? rkvi_f16_to_f32(u) : rkvi_bf16_to_f32(u);
}

/* Bytes between the rows of a strided output are as they were. */
static inline void tensor_check_canaries(const fx_tensor *x)
{
    const uint64_t size = x->t.type == RKV_TYPE_F32 ? 4 : 2;
    bool *used = calloc(x->size_bytes + 1, sizeof *used);
    for (uint32_t r = 0; r < x->rows; r++)
        for (uint32_t h = 0; h < x->heads; h++)
            memset(used + tensor_offset(x, r, h) * size, 1, x->dim * size);
    for (uint64_t i = 0; i < x->size_bytes; i++)
        if (!used[i] && x->bytes[i] != FX_CANARY)
            fail_msg("byte %llu of an output was written over", (unsigned long long)i);
    free(used);
}

#endif
