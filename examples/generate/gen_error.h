/* SPDX-License-Identifier: MIT */
/* Errors of the example engine: one sentence, kept where the caller asked for it. */
#ifndef GEN_ERROR_H
#define GEN_ERROR_H

struct gen_error {
    char text[320];
};

/* Writes the sentence and returns -1, so that a check reads `return gen_fail(...)`. */
int gen_fail(struct gen_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
