/* SPDX-License-Identifier: MIT */
/* Attention over K and V kept in f32 in plain memory, written to be read: no blocks, no library. */
#ifndef NAIVE_H
#define NAIVE_H

#include "attention.h"
#include "model.h"

struct naive;

struct naive *naive_create(const struct model_shape *shape, size_t positions, struct gen_error *err);
void naive_destroy(struct naive *naive);
struct attention naive_attention(struct naive *naive);

#endif
