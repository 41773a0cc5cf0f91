/* SPDX-License-Identifier: MIT
 *
 * The logits of every step of a run, to be compared with another run's: a 64-bit hash each, and
 * the logits themselves as long as they fit into the room set.
 */
#ifndef RECORD_H
#define RECORD_H

#include <stddef.h>
#include <stdint.h>

#include "gen_error.h"

struct record {
    size_t vocabulary;
    size_t steps, max_steps;
    size_t kept_steps; /* whose logits are kept: the first ones */
    uint64_t *hashes;
    float *logits;
};

int record_init(struct record *r, size_t vocabulary, size_t max_steps, struct gen_error *err);
void record_free(struct record *r);

/* Where the next step's logits go; record_done takes them in. */
float *record_next(struct record *r);
void record_done(struct record *r);

/* One hash over all steps so far. */
uint64_t record_hash(const struct record *r);

struct record_difference {
    size_t steps, logits;  /* compared */
    size_t bytewise_steps; /* of these, by memcmp; the others by their hash */
    size_t different_steps, first_different;
    double largest; /* difference of two logits; 0 where only hashes are there */
};
void record_compare(const struct record *a, const struct record *b, struct record_difference *out);

#endif
