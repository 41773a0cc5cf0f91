/* SPDX-License-Identifier: MIT */
/* UTF-8 and the three character classes that pre-tokenisers ask for. */
#ifndef GEN_UNICODE_H
#define GEN_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The code point at text[0..length), length > 0, and its bytes in *used. A byte that begins no
 * valid sequence gives 0xfffd with *used = 1, so that any input is walked through to its end. */
uint32_t unicode_decode(const char *text, size_t length, size_t *used);
/* Writes 1 to 4 bytes and returns how many. */
size_t unicode_encode(uint32_t code_point, char out[4]);

bool unicode_is_letter(uint32_t code_point);
bool unicode_is_number(uint32_t code_point);
bool unicode_is_space(uint32_t code_point);

#endif
