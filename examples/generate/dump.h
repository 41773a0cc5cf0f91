/* SPDX-License-Identifier: MIT
 *
 * --dump-logits: a file with the logits of every position that a run went through.
 *
 *   | "RKVLOGIT" | u32 1 | u32 vocabulary |  then a record per position:
 *   | i32 position | i32 token at it | f32 logits[vocabulary] for the one that follows |
 *
 * In the order of the run and in the machine's byte order.
 */
#ifndef DUMP_H
#define DUMP_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "gen_error.h"

struct dump {
    FILE *file; /* NULL: not open */
    size_t vocabulary;
};

int dump_open(struct dump *d, const char *path, size_t vocabulary, struct gen_error *err);
int dump_rows(struct dump *d, size_t first_position, const int32_t *tokens, const float *logits,
              size_t rows, struct gen_error *err);
/* Legal for one that is not open. */
int dump_close(struct dump *d, struct gen_error *err);

#endif
