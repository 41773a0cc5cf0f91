/* SPDX-License-Identifier: MIT
 *
 * What the forward pass asks of attention: once per step begin and end, once per layer attend.
 * Two things provide it: kv.c (librollkv) and naive.c (a plain loop, the independent check).
 */
#ifndef ATTENTION_H
#define ATTENTION_H

#include <stddef.h>

#include "gen_error.h"

/* Rows of one layer. Head h of row r begins at x[r * stride + h * head_dim]; out likewise. */
struct attention_rows {
    const float *q, *k, *v;
    void *out; /* f32, or what the backend asked for (backend.h); pointers are the backend's too */
    size_t rows;
    size_t qkv_stride; /* elements from row to row, of q, k and v alike */
    size_t out_stride;
};

struct attention {
    void *self;
    /* The next `rows` positions of the sequence. Each gives 0, or -1 with a sentence in err. */
    int (*begin)(void *self, size_t rows, struct gen_error *err);
    /* Stores k and v, then writes out. On the host out is complete on return, on a GPU it is queued. */
    int (*attend)(void *self, size_t layer, const struct attention_rows *rows, struct gen_error *err);
    int (*end)(void *self, struct gen_error *err);
};

#endif
