/* SPDX-License-Identifier: MIT */
#include "engine.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "products.h"

static void show_loading(void *user, size_t done, size_t total)
{
    progress_update(user, done, total, "layers");
}

static int read_text(const char *path, char **out_text, size_t *out_length, struct gen_error *err)
{
    enum { STEP = 1 << 16, MOST = 1 << 28 };
    size_t length = 0, room = 0;
    char *text = NULL;
    FILE *f = fopen(path, "rb");
    if (f == NULL)
        return gen_fail(err, "Can't open '%s': %s.", path, strerror(errno));
    for (size_t got = 1; got > 0; length += got) {
        if (room - length < STEP) {
            room = 2 * room + STEP;
            char *more = room <= MOST ? realloc(text, room) : NULL;
            if (more == NULL) {
                gen_fail(err, "'%s' is too long.", path);
                goto fail;
            }
            text = more;
        }
        got = fread(text + length, 1, STEP, f);
    }
    if (ferror(f)) {
        gen_fail(err, "'%s' can't be read.", path);
        goto fail;
    }
    fclose(f);
    *out_text = text;
    *out_length = length;
    return 0;
fail:
    fclose(f);
    free(text);
    return -1;
}

static int encode_chat(struct engine *e, const char *text, size_t length, struct gen_error *err)
{
    static const char before[] =
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by "
        "Hugging Face<|im_end|>\n<|im_start|>user\n";
    static const char after[] = "<|im_end|>\n<|im_start|>assistant\n";
    if (tokenizer_encode(e->tokenizer, before, sizeof before - 1, true, &e->prompt, err) != 0 ||
        tokenizer_encode(e->tokenizer, text, length, false, &e->prompt, err) != 0)
        return -1;
    return tokenizer_encode(e->tokenizer, after, sizeof after - 1, true, &e->prompt, err);
}

static int encode_prompt(struct engine *e, const char *text, size_t length, struct gen_error *err)
{
    if (e->options->chat)
        return encode_chat(e, text, length, err);
    if (tokenizer_adds_bos(e->tokenizer) &&
        token_list_add(&e->prompt, tokenizer_bos(e->tokenizer), err) != 0)
        return -1;
    return tokenizer_encode(e->tokenizer, text, length, false, &e->prompt, err);
}

static int read_prompt(struct engine *e, struct gen_error *err)
{
    const struct options *o = e->options;
    int rc;
    if (o->prompt != NULL) {
        rc = encode_prompt(e, o->prompt, strlen(o->prompt), err);
    } else {
        char *text = NULL;
        size_t length = 0;
        if (read_text(o->prompt_path, &text, &length, err) != 0)
            return -1;
        rc = encode_prompt(e, text, length, err);
        free(text);
    }
    if (rc != 0)
        return -1;
    if (o->max_prompt_tokens != 0 && e->prompt.count > o->max_prompt_tokens)
        e->prompt.count = o->max_prompt_tokens;
    if (e->prompt.count == 0)
        return gen_fail(err, "The prompt is empty.");
    if (o->decode_last > e->prompt.count)
        return gen_fail(err, "--decode-last %zu: the prompt has %zu tokens.", o->decode_last,
                        e->prompt.count);
    /* The last token that is generated is not run through the model any more. */
    e->positions = e->prompt.count + o->tokens - 1;
    if (e->positions > e->model.shape.positions)
        return gen_fail(err,
                        "%zu prompt tokens and %zu more don't fit into the model's %zu positions; "
                        "use --max-prompt-tokens.",
                        e->prompt.count, o->tokens, e->model.shape.positions);
    return 0;
}

static int pick_threads(const struct options *o)
{
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return o->threads > 0 ? o->threads : cores < 1 ? 1 : cores > 8 ? 8 : (int)cores;
}

int engine_open(struct engine *e, const struct options *options, struct gen_error *err)
{
    *e = (struct engine){.options = options};
    progress_init(&e->progress, options->quiet);
    e->threads = pick_threads(options);
    products_set_threads(e->threads);
    if (gguf_open(&e->file, options->model_path, err) != 0)
        return -1;
    progress_start(&e->progress, "loading the model");
    e->tokenizer = tokenizer_create(&e->file, err);
    if (e->tokenizer == NULL || model_load(&e->model, &e->file, show_loading, &e->progress, err) != 0)
        goto fail;
    if (tokenizer_size(e->tokenizer) > e->model.shape.vocabulary) {
        gen_fail(err, "The tokenizer has %zu tokens, the model %zu.", tokenizer_size(e->tokenizer),
                 e->model.shape.vocabulary);
        goto fail;
    }
    if (read_prompt(e, err) != 0)
        goto fail;
    const struct backend_settings settings = {.model = &e->model,
                                              .max_rows = options->chunk,
                                              .positions = e->positions,
                                              .all_logits =
                                                  options->all_logits || options->dump_path != NULL};
    if (backend_open(&e->backend, options->device, &settings, err) != 0)
        goto fail;
    if (options->dump_path != NULL &&
        dump_open(&e->dump, options->dump_path, e->model.shape.vocabulary, err) != 0)
        goto fail;
    return 0;
fail:
    engine_close(e);
    return -1;
}

bool engine_is_host(const struct engine *e)
{
    return e->backend.device == RKV_DEVICE_HOST;
}

void engine_close(struct engine *e)
{
    progress_break(&e->progress);
    struct gen_error ignored;
    dump_close(&e->dump, &ignored);
    backend_close(&e->backend);
    model_free(&e->model);
    tokenizer_destroy(e->tokenizer);
    token_list_free(&e->prompt);
    gguf_close(&e->file);
    *e = (struct engine){0};
}
