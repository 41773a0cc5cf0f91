/* SPDX-License-Identifier: MIT
 *
 * The forward pass: tokens in, logits out.
 *
 *   x = embedding;  per layer:  x += O attend(rope(Q n(x)), rope(K n(x)), V n(x))
 *                               x += Down (silu(Gate n(x)) * Up n(x))
 *   logits = Output n(x)        with n the RMS norm
 *
 * A step of the same rows at the same positions gives the same bits, given the same attention:
 * buffers are aligned alike, and OpenBLAS runs with a fixed number of threads. This is the host's;
 * gpu_backend.c has the same for a GPU.
 */
#ifndef FORWARD_H
#define FORWARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attention.h"
#include "model.h"

struct forward;

/* Steps have up to max_rows rows, at positions below `positions`. The model must live on. */
struct forward *forward_create(const struct model *model, size_t max_rows, size_t positions,
                               struct gen_error *err);
void forward_destroy(struct forward *f);

/* Runs tokens[0..rows) at positions first_position and on. What is NULL of the rest isn't wanted. */
struct forward_step {
    const int32_t *tokens;
    size_t rows;
    size_t first_position;
    float *logits;     /* [vocabulary]: of the last row */
    float *all_logits; /* [rows][vocabulary] */
    int32_t *best;     /* the likeliest token behind the last row */
    /* For rows of several sequences: a position each, instead of first_position and on. */
    const int64_t *positions;
    bool rows_apart; /* each row has products of its own: then no other row changes its bits */
};
static inline size_t forward_position(const struct forward_step *step, size_t row)
{
    return step->positions != NULL ? (size_t)step->positions[row] : step->first_position + row;
}

int forward_run(struct forward *f, const struct attention *attention, const struct forward_step *step,
                struct gen_error *err);

/* What all backends share. */
struct forward_limits {
    size_t max_rows, positions, vocabulary;
};
int forward_check_step(const struct forward_limits *limits, const struct forward_step *step,
                       struct gen_error *err);
/* turns[positions][head_dim]: cosine and sine for each pair of a head. */
void forward_fill_turns(float *turns, const struct model_shape *shape, size_t positions);

#endif
