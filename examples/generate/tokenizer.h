/* SPDX-License-Identifier: MIT
 *
 * Byte-level BPE from the metadata of a GGUF file (tokenizer.ggml.model = gpt2).
 *
 * Text is cut at special tokens, then into pieces (pretoken.h). A piece's bytes become one symbol
 * each, and neighbours that a merge rule names are joined, the lowest rank first.
 */
#ifndef TOKENIZER_H
#define TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gen_error.h"
#include "gguf.h"

struct tokenizer;

struct token_list {
    int32_t *ids;
    size_t count;
    size_t room;
};

/* Keeps pointers into `file`, which must outlive it. NULL with a sentence in err on failure. */
struct tokenizer *tokenizer_create(const struct gguf *file, struct gen_error *err);
void tokenizer_destroy(struct tokenizer *tok);

/* Appends to *out (which begins zeroed, and is freed by the caller through token_list_free).
 * With parse_special, special tokens spelled out in the text become that token. */
int tokenizer_encode(const struct tokenizer *tok, const char *text, size_t length, bool parse_special,
                     struct token_list *out, struct gen_error *err);
int token_list_add(struct token_list *list, int32_t id, struct gen_error *err);
void token_list_free(struct token_list *list);

/* Writes the token's bytes, at most room, and returns how many it has. Control tokens have none. */
size_t tokenizer_decode(const struct tokenizer *tok, int32_t id, char *out, size_t room);

size_t tokenizer_size(const struct tokenizer *tok);
/* -1 when the file names none. */
int32_t tokenizer_bos(const struct tokenizer *tok);
int32_t tokenizer_eos(const struct tokenizer *tok);
bool tokenizer_adds_bos(const struct tokenizer *tok);

#endif
