/* SPDX-License-Identifier: MIT */
/* The vocabulary's two tables, string to token and pair to merge, and merging inside one piece. */
#ifndef BPE_H
#define BPE_H

#include <stddef.h>
#include <stdint.h>

#include "gen_error.h"
#include "gguf.h"

struct bpe_merge {
    int32_t left, right; /* left < 0: the entry is free */
    int32_t joined;
    uint32_t rank;
};

struct bpe {
    const struct gguf_string *tokens; /* the caller's, by id */
    size_t token_count;
    int32_t *by_text; /* open hash, ids or -1; size is a power of two above token_count */
    size_t by_text_mask;
    struct bpe_merge *merges; /* open hash by pair */
    size_t merges_mask;
    int32_t byte_ids[256]; /* the token of each single byte; -1: none */
};

/* `merges` is an array of strings "left right" in the order of their ranks. */
int bpe_init(struct bpe *bpe, const struct gguf_string *tokens, size_t token_count,
             const struct gguf_value *merges, struct gen_error *err);
void bpe_free(struct bpe *bpe);

/* -1 when there is no such token. */
int32_t bpe_find(const struct bpe *bpe, const char *text, size_t length);

/* NULL when these two are never merged. */
const struct bpe_merge *bpe_find_merge(const struct bpe *bpe, int32_t left, int32_t right);

/* Tokens of one piece into ids (room for `length`); returns their count, or -1 with err set. */
int64_t bpe_encode_piece(const struct bpe *bpe, const char *text, size_t length, int32_t *ids,
                         struct gen_error *err);

/* Byte-level vocabularies spell each byte as one printable code point: bytes that are printable in
 * Latin-1 stand for themselves, the other 68 are numbered from 256 on. */
uint32_t bpe_byte_to_code_point(unsigned byte);
/* -1 when no byte is spelled so. */
int bpe_code_point_to_byte(uint32_t code_point);

#endif
