/* SPDX-License-Identifier: MIT */
#include "tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "bpe.h"
#include "pretoken.h"
#include "unicode.h"

enum { TYPE_NORMAL = 1, TYPE_CONTROL = 3, TYPE_USER_DEFINED = 4 };

struct tokenizer {
    struct bpe bpe;
    struct gguf_string *tokens;
    size_t token_count;
    const struct gguf_value *types; /* NULL: all are normal */
    int32_t *specials;              /* ids */
    size_t special_count;
    int32_t bos, eos;
    bool adds_bos;
    bool single_digits;
};

static int read_pre_tokeniser(struct tokenizer *tok, const struct gguf *file, struct gen_error *err)
{
    static const struct {
        const char *name;
        bool single_digits;
    } known[] = {{"smollm", true}, {"gpt-2", false}, {"gpt2", false}, {"default", false}};
    struct gguf_string pre = {"default", 7};
    gguf_get_string(file, "tokenizer.ggml.pre", &pre);
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (gguf_string_is(pre, known[i].name)) {
            tok->single_digits = known[i].single_digits;
            return 0;
        }
    }
    return gen_fail(err, "Pre-tokeniser '%.*s' is not supported; smollm, gpt-2 and default are.",
                    pre.length > 64 ? 64 : (int)pre.length, pre.text);
}

static int64_t token_type(const struct tokenizer *tok, size_t id)
{
    return tok->types == NULL ? TYPE_NORMAL : gguf_item_i64(tok->types, id);
}

static bool is_special(const struct tokenizer *tok, size_t id)
{
    const int64_t type = token_type(tok, id);
    return type == TYPE_CONTROL || type == TYPE_USER_DEFINED;
}

static int read_tokens(struct tokenizer *tok, const struct gguf *file, struct gen_error *err)
{
    const struct gguf_value *texts = gguf_find(file, "tokenizer.ggml.tokens");
    const struct gguf_value *merges = gguf_find(file, "tokenizer.ggml.merges");
    if (texts == NULL || texts->type != GGUF_ARRAY || texts->item_type != GGUF_STRING ||
        texts->count == 0 || texts->count > INT32_MAX)
        return gen_fail(err, "The file has no list tokenizer.ggml.tokens.");
    if (merges == NULL || merges->type != GGUF_ARRAY || merges->item_type != GGUF_STRING)
        return gen_fail(err, "The file has no list tokenizer.ggml.merges.");
    tok->types = gguf_find(file, "tokenizer.ggml.token_type");
    if (tok->types != NULL && (tok->types->type != GGUF_ARRAY || tok->types->count != texts->count))
        return gen_fail(err, "tokenizer.ggml.token_type has another length than the tokens.");
    tok->token_count = texts->count;
    tok->tokens = malloc(tok->token_count * sizeof *tok->tokens);
    tok->specials = malloc(tok->token_count * sizeof *tok->specials);
    if (tok->tokens == NULL || tok->specials == NULL)
        return gen_fail(err, "No memory for %zu tokens.", tok->token_count);
    const uint8_t *cursor = texts->data;
    for (size_t id = 0; id < tok->token_count; id++) {
        tok->tokens[id] = gguf_next_string(&cursor);
        if (is_special(tok, id) && tok->tokens[id].length > 0)
            tok->specials[tok->special_count++] = (int32_t)id;
    }
    return bpe_init(&tok->bpe, tok->tokens, tok->token_count, merges, err);
}

static int32_t read_id(const struct tokenizer *tok, const struct gguf *file, const char *key)
{
    uint64_t id;
    return gguf_get_u64(file, key, &id) && id < tok->token_count ? (int32_t)id : -1;
}

struct tokenizer *tokenizer_create(const struct gguf *file, struct gen_error *err)
{
    struct gguf_string model = {"", 0};
    gguf_get_string(file, "tokenizer.ggml.model", &model);
    if (!gguf_string_is(model, "gpt2")) {
        gen_fail(err, "Tokenizer model '%.*s' is not supported; gpt2 (byte-level BPE) is.",
                 model.length > 64 ? 64 : (int)model.length, model.text);
        return NULL;
    }
    struct tokenizer *tok = calloc(1, sizeof *tok);
    if (tok == NULL) {
        gen_fail(err, "No memory for the tokenizer.");
        return NULL;
    }
    if (read_pre_tokeniser(tok, file, err) != 0 || read_tokens(tok, file, err) != 0) {
        tokenizer_destroy(tok);
        return NULL;
    }
    tok->bos = read_id(tok, file, "tokenizer.ggml.bos_token_id");
    tok->eos = read_id(tok, file, "tokenizer.ggml.eos_token_id");
    gguf_get_bool(file, "tokenizer.ggml.add_bos_token", &tok->adds_bos);
    return tok;
}

void tokenizer_destroy(struct tokenizer *tok)
{
    if (tok == NULL)
        return;
    bpe_free(&tok->bpe);
    free(tok->tokens);
    free(tok->specials);
    free(tok);
}

static int reserve(struct token_list *list, size_t more, struct gen_error *err)
{
    if (list->room - list->count >= more)
        return 0;
    const size_t room = 2 * (list->count + more);
    int32_t *ids = realloc(list->ids, room * sizeof *ids);
    if (ids == NULL)
        return gen_fail(err, "No memory for %zu tokens.", room);
    list->ids = ids;
    list->room = room;
    return 0;
}

int token_list_add(struct token_list *list, int32_t id, struct gen_error *err)
{
    if (reserve(list, 1, err) != 0)
        return -1;
    list->ids[list->count++] = id;
    return 0;
}

void token_list_free(struct token_list *list)
{
    free(list->ids);
    *list = (struct token_list){0};
}

static int encode_plain(const struct tokenizer *tok, const char *text, size_t length,
                        struct token_list *out, struct gen_error *err)
{
    while (length > 0) {
        const size_t bytes = pretoken_next(text, length, tok->single_digits);
        if (reserve(out, bytes, err) != 0)
            return -1;
        const int64_t count = bpe_encode_piece(&tok->bpe, text, bytes, out->ids + out->count, err);
        if (count < 0)
            return -1;
        out->count += (size_t)count;
        text += bytes;
        length -= bytes;
    }
    return 0;
}

/* The longest special token spelled at the start of the text, or -1. */
static int32_t special_at(const struct tokenizer *tok, const char *text, size_t length)
{
    int32_t best = -1;
    for (size_t i = 0; i < tok->special_count; i++) {
        const int32_t id = tok->specials[i];
        const struct gguf_string s = tok->tokens[id];
        if (s.length <= length && memcmp(s.text, text, s.length) == 0 &&
            (best < 0 || s.length > tok->tokens[best].length))
            best = id;
    }
    return best;
}

int tokenizer_encode(const struct tokenizer *tok, const char *text, size_t length, bool parse_special,
                     struct token_list *out, struct gen_error *err)
{
    size_t plain_from = 0;
    for (size_t at = 0; parse_special && at < length;) {
        const int32_t id = special_at(tok, text + at, length - at);
        if (id < 0) {
            at++;
            continue;
        }
        if (encode_plain(tok, text + plain_from, at - plain_from, out, err) != 0 ||
            token_list_add(out, id, err) != 0)
            return -1;
        at += tok->tokens[id].length;
        plain_from = at;
    }
    return encode_plain(tok, text + plain_from, length - plain_from, out, err);
}

size_t tokenizer_decode(const struct tokenizer *tok, int32_t id, char *out, size_t room)
{
    if (id < 0 || (size_t)id >= tok->token_count || token_type(tok, (size_t)id) == TYPE_CONTROL)
        return 0;
    const struct gguf_string s = tok->tokens[id];
    if (token_type(tok, (size_t)id) == TYPE_USER_DEFINED) { /* spelled in plain UTF-8 */
        memcpy(out, s.text, s.length < room ? s.length : room);
        return s.length;
    }
    size_t bytes = 0;
    for (size_t at = 0, used; at < s.length; at += used) {
        const int byte = bpe_code_point_to_byte(unicode_decode(s.text + at, s.length - at, &used));
        if (byte >= 0 && bytes++ < room)
            out[bytes - 1] = (char)byte;
    }
    return bytes;
}

size_t tokenizer_size(const struct tokenizer *tok)
{
    return tok->token_count;
}

int32_t tokenizer_bos(const struct tokenizer *tok)
{
    return tok->bos;
}

int32_t tokenizer_eos(const struct tokenizer *tok)
{
    return tok->eos;
}

bool tokenizer_adds_bos(const struct tokenizer *tok)
{
    return tok->adds_bos && tok->bos >= 0;
}
