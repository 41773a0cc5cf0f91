/* SPDX-License-Identifier: MIT */
#include "bpe.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "unicode.h"

static bool spelled_as_itself(uint32_t byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || (byte >= 174 && byte <= 255);
}

uint32_t bpe_byte_to_code_point(unsigned byte)
{
    if (spelled_as_itself(byte))
        return byte;
    /* In order: 0 to 32, 127 to 160, 173. */
    return 256 + (byte <= 32 ? byte : byte <= 160 ? byte - 127 + 33 : 33 + 34);
}

int bpe_code_point_to_byte(uint32_t cp)
{
    if (cp < 256)
        return spelled_as_itself(cp) ? (int)cp : -1;
    const uint32_t n = cp - 256;
    return n < 33 ? (int)n : n < 67 ? (int)(n - 33 + 127) : n == 67 ? 173 : -1;
}

static uint64_t hash_text(const char *text, size_t length)
{
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < length; i++)
        h = (h ^ (unsigned char)text[i]) * 0x100000001b3u;
    return h ^ (h >> 29);
}

static uint64_t hash_pair(int32_t left, int32_t right)
{
    const uint64_t h = (((uint64_t)(uint32_t)left << 32) | (uint32_t)right) * 0x9e3779b97f4a7c15u;
    return h ^ (h >> 32);
}

int32_t bpe_find(const struct bpe *bpe, const char *text, size_t length)
{
    for (size_t slot = hash_text(text, length);; slot++) {
        const int32_t id = bpe->by_text[slot & bpe->by_text_mask];
        if (id < 0)
            return -1;
        const struct gguf_string s = bpe->tokens[id];
        if (s.length == length && memcmp(s.text, text, length) == 0)
            return id;
    }
}

static struct bpe_merge *merge_slot(const struct bpe *bpe, int32_t left, int32_t right)
{
    for (size_t slot = hash_pair(left, right);; slot++) {
        struct bpe_merge *m = &bpe->merges[slot & bpe->merges_mask];
        if (m->left < 0 || (m->left == left && m->right == right))
            return m;
    }
}

const struct bpe_merge *bpe_find_merge(const struct bpe *bpe, int32_t left, int32_t right)
{
    const struct bpe_merge *m = merge_slot(bpe, left, right);
    return m->left < 0 ? NULL : m;
}

static size_t table_size(size_t entries)
{
    size_t size = 16;
    while (size < 2 * entries)
        size *= 2;
    return size;
}

static void add_merges(struct bpe *bpe, const struct gguf_value *merges)
{
    const uint8_t *cursor = merges->data;
    for (uint64_t rank = 0; rank < merges->count; rank++) {
        const struct gguf_string rule = gguf_next_string(&cursor);
        /* The first character may be a blank's spelling but never a blank: look behind it. */
        const char *gap = rule.length > 1 ? memchr(rule.text + 1, ' ', rule.length - 1) : NULL;
        if (gap == NULL)
            continue;
        const size_t left_bytes = (size_t)(gap - rule.text), right_bytes = rule.length - left_bytes - 1;
        const int32_t left = bpe_find(bpe, rule.text, left_bytes);
        const int32_t right = bpe_find(bpe, gap + 1, right_bytes);
        char joined[512];
        if (left < 0 || right < 0 || left_bytes + right_bytes > sizeof joined)
            continue;
        memcpy(joined, rule.text, left_bytes);
        memcpy(joined + left_bytes, gap + 1, right_bytes);
        const int32_t id = bpe_find(bpe, joined, left_bytes + right_bytes);
        struct bpe_merge *m = merge_slot(bpe, left, right);
        if (id >= 0 && m->left < 0)
            *m = (struct bpe_merge){left, right, id, (uint32_t)rank};
    }
}

int bpe_init(struct bpe *bpe, const struct gguf_string *tokens, size_t token_count,
             const struct gguf_value *merges, struct gen_error *err)
{
    const size_t text_size = table_size(token_count), merge_size = table_size(merges->count);
    *bpe = (struct bpe){.tokens = tokens, .token_count = token_count};
    bpe->by_text_mask = text_size - 1;
    bpe->merges_mask = merge_size - 1;
    bpe->by_text = malloc(text_size * sizeof *bpe->by_text);
    bpe->merges = malloc(merge_size * sizeof *bpe->merges);
    if (bpe->by_text == NULL || bpe->merges == NULL) {
        bpe_free(bpe);
        return gen_fail(err, "No memory for a vocabulary of %zu tokens.", token_count);
    }
    memset(bpe->by_text, 0xff, text_size * sizeof *bpe->by_text);
    for (size_t i = 0; i < merge_size; i++)
        bpe->merges[i].left = -1;
    for (size_t id = 0; id < token_count; id++) {
        size_t slot = hash_text(tokens[id].text, tokens[id].length);
        while (bpe->by_text[slot & bpe->by_text_mask] >= 0)
            slot++;
        bpe->by_text[slot & bpe->by_text_mask] = (int32_t)id;
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        char spelling[4];
        bpe->byte_ids[byte] =
            bpe_find(bpe, spelling, unicode_encode(bpe_byte_to_code_point(byte), spelling));
    }
    add_merges(bpe, merges);
    return 0;
}

void bpe_free(struct bpe *bpe)
{
    free(bpe->by_text);
    free(bpe->merges);
    *bpe = (struct bpe){0};
}
