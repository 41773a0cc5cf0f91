/* SPDX-License-Identifier: MIT
 *
 * The forward pass of one sequence: tokens in, logits out.
 *
 *   x = embedding;  per layer:  x += O attend(rope(Q n(x)), rope(K n(x)), V n(x))
 *                               x += Down (silu(Gate n(x)) * Up n(x))
 *   logits = Output n(x)        with n the RMS norm
 *
 * A step of the same rows at the same positions gives the same bits, given the same attention:
 * buffers are aligned alike, and OpenBLAS runs with a fixed number of threads.
 */
#ifndef FORWARD_H
#define FORWARD_H

#include <stddef.h>
#include <stdint.h>

#include "attention.h"
#include "model.h"

struct forward;

/* Steps have up to max_rows rows, at positions below `positions`. The model must live on. */
struct forward *forward_create(const struct model *model, size_t max_rows, size_t positions,
                               struct gen_error *err);
void forward_destroy(struct forward *f);

/* Runs tokens[0..rows) at positions first_position and on. Writes the last row's logits,
 * [vocabulary], unless logits is NULL. */
struct forward_step {
    const int32_t *tokens;
    size_t rows;
    size_t first_position;
    float *logits;
};
int forward_run(struct forward *f, const struct attention *attention, const struct forward_step *step,
                struct gen_error *err);

#endif
