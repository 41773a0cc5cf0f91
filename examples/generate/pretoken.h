/* SPDX-License-Identifier: MIT
 *
 * The pre-tokeniser: cuts text into the pieces inside which byte pairs are merged.
 *
 * The pattern is GPT-2's: an English contraction ('s 't 're 've 'm 'll 'd); letters, numbers, or
 * what is neither, each with an optional space before; white space up to the last blank before
 * something else. With `single_digits` every number character is a piece of its own and is cut off
 * first, so a blank before it stands alone.
 */
#ifndef PRETOKEN_H
#define PRETOKEN_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes of the first piece of text[0..length); length > 0. */
size_t pretoken_next(const char *text, size_t length, bool single_digits);

#endif
