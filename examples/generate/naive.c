/* SPDX-License-Identifier: MIT */
#include "naive.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct naive {
    size_t layers, heads, kv_heads, head_dim, positions;
    size_t stored; /* positions before this step */
    size_t rows;   /* of this step */
    float *k, *v;  /* [layers][positions][kv_heads][head_dim] */
    float *scores; /* [positions] */
};

struct naive *naive_create(const struct model_shape *shape, size_t positions, struct gen_error *err)
{
    struct naive *n = calloc(1, sizeof *n);
    if (n != NULL) {
        const size_t values = shape->layers * positions * shape->kv_heads * shape->head_dim;
        *n = (struct naive){.layers = shape->layers,
                            .heads = shape->heads,
                            .kv_heads = shape->kv_heads,
                            .head_dim = shape->head_dim,
                            .positions = positions};
        n->k = malloc(values * sizeof(float));
        n->v = malloc(values * sizeof(float));
        n->scores = malloc(positions * sizeof(float));
    }
    if (n == NULL || n->k == NULL || n->v == NULL || n->scores == NULL) {
        naive_destroy(n);
        gen_fail(err, "No memory for K and V of %zu positions.", positions);
        return NULL;
    }
    return n;
}

void naive_destroy(struct naive *n)
{
    if (n == NULL)
        return;
    free(n->k);
    free(n->v);
    free(n->scores);
    free(n);
}

static int begin(void *self, size_t rows, struct gen_error *err)
{
    struct naive *n = self;
    if (rows > n->positions - n->stored)
        return gen_fail(err, "%zu positions are stored, %zu more don't fit into %zu.", n->stored, rows,
                        n->positions);
    n->rows = rows;
    return 0;
}

/* One query head over `visible` positions. k and v point at this head of position 0. */
static void one_head(struct naive *n, const float *q, const float *k, const float *v, size_t visible,
                     float *out)
{
    const size_t dim = n->head_dim, stride = n->kv_heads * dim;
    const float scale = 1.0f / sqrtf((float)dim);
    float highest = -INFINITY, sum = 0.0f;
    for (size_t p = 0; p < visible; p++) {
        float dot = 0.0f;
        for (size_t d = 0; d < dim; d++)
            dot += q[d] * k[p * stride + d];
        n->scores[p] = dot * scale;
        highest = fmaxf(highest, n->scores[p]);
    }
    memset(out, 0, dim * sizeof *out);
    for (size_t p = 0; p < visible; p++) {
        const float weight = expf(n->scores[p] - highest);
        sum += weight;
        for (size_t d = 0; d < dim; d++)
            out[d] += weight * v[p * stride + d];
    }
    for (size_t d = 0; d < dim; d++)
        out[d] /= sum;
}

static int attend(void *self, size_t layer, const struct attention_rows *x, struct gen_error *err)
{
    (void)err;
    struct naive *n = self;
    const size_t dim = n->head_dim, stride = n->kv_heads * dim;
    float *k = n->k + layer * n->positions * stride, *v = n->v + layer * n->positions * stride;
    for (size_t r = 0; r < x->rows; r++) {
        memcpy(k + (n->stored + r) * stride, x->k + r * x->qkv_stride, stride * sizeof *k);
        memcpy(v + (n->stored + r) * stride, x->v + r * x->qkv_stride, stride * sizeof *v);
    }
    for (size_t r = 0; r < x->rows; r++)
        for (size_t h = 0; h < n->heads; h++) {
            const size_t kv_head = h / (n->heads / n->kv_heads);
            one_head(n, x->q + r * x->qkv_stride + h * dim, k + kv_head * dim, v + kv_head * dim,
                     n->stored + r + 1, (float *)x->out + r * x->out_stride + h * dim);
        }
    return 0;
}

static int end(void *self, struct gen_error *err)
{
    (void)err;
    struct naive *n = self;
    n->stored += n->rows;
    return 0;
}

struct attention naive_attention(struct naive *n)
{
    return (struct attention){n, begin, attend, end};
}
