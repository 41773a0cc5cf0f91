/* SPDX-License-Identifier: MIT
 *
 * The weights of a model of the llama architecture, turned into f32 at loading time.
 *
 * Matrices are row-major [outputs][inputs]. Those that read the same input lie behind each other
 * and so are one product: Q, K, V, and the two halves of the feed-forward's first stage.
 */
#ifndef MODEL_H
#define MODEL_H

#include <stddef.h>

#include "gen_error.h"
#include "gguf.h"

struct model_shape {
    size_t layers;
    size_t positions; /* the context length that the model was trained for */
    size_t embedding;
    size_t feed_forward;
    size_t heads; /* query heads */
    size_t kv_heads;
    size_t head_dim;
    size_t vocabulary;
    float norm_epsilon;
    float rope_base;
};

struct model_layer {
    const float *attention_norm; /* [embedding] */
    const float *qkv;            /* [(heads + 2 kv_heads) head_dim][embedding] */
    const float *attention_out;  /* [embedding][heads head_dim] */
    const float *ffn_norm;       /* [embedding] */
    const float *gate_up;        /* [2 feed_forward][embedding]: gate, then up */
    const float *down;           /* [embedding][feed_forward] */
};

struct model {
    struct model_shape shape;
    struct model_layer *layers;
    const float *token_embedding; /* [vocabulary][embedding] */
    const float *output_norm;     /* [embedding] */
    const float *output;          /* [vocabulary][embedding]; may be token_embedding */
    float *weights;               /* what all of the above point into */
    size_t weight_count;
};

/* Called after each layer that is loaded. */
typedef void model_progress(void *user, size_t done, size_t total);

/* 0, or -1 with a sentence in err and nothing to free. The file may be closed afterwards. */
int model_load(struct model *model, const struct gguf *file, model_progress *progress, void *user,
               struct gen_error *err);
void model_free(struct model *model);

#endif
