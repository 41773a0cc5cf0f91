/* SPDX-License-Identifier: MIT */
/* Picks the next token from logits: the highest one, or at random by temperature. */
#ifndef SAMPLE_H
#define SAMPLE_H

#include <stddef.h>
#include <stdint.h>

struct sampler {
    float temperature; /* 0: greedy */
    uint64_t state;    /* of the random numbers; begins as the seed */
    double *weights;   /* room for as many values as there are logits */
};

/* The index of the highest one; of equal ones the first. */
size_t sample_highest(const float *logits, size_t count);
int32_t sample_next(struct sampler *s, const float *logits, size_t count);

#endif
