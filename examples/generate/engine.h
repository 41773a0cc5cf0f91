/* SPDX-License-Identifier: MIT
 *
 * A model that is ready to run, and runs of it: the prompt in chunks, then token by token.
 */
#ifndef ENGINE_H
#define ENGINE_H

#include "backend.h"
#include "dump.h"
#include "forward.h"
#include "gguf.h"
#include "kv.h"
#include "model.h"
#include "options.h"
#include "progress.h"
#include "record.h"
#include "tokenizer.h"

struct engine {
    const struct options *options;
    struct progress progress;
    struct gguf file;
    struct tokenizer *tokenizer;
    struct model model;
    struct backend backend;
    struct dump dump; /* of the next run, if it is open */
    struct token_list prompt;
    size_t positions; /* of prompt and generated text together */
    int threads;
};

/* Loads the model and the prompt. On failure nothing is left to close. */
int engine_open(struct engine *e, const struct options *options, struct gen_error *err);
void engine_close(struct engine *e);

struct run_settings {
    const char *name;
    enum generate_mode mode;
    uint64_t device_limit_bytes;     /* not in mode resident */
    uint64_t resident_cells;         /* likewise */
    uint64_t step_ns;                /* hint, 0: none */
    const struct token_list *forced; /* the tokens to generate; NULL: sample them */
    bool prints;                     /* the text, to stdout */
    bool keeps_no_logits;            /* the record stays empty, and steps are quicker */
};

struct run_result {
    double prefill_seconds, decode_seconds;
    size_t prefill_steps, decode_steps;
    uint64_t *decode_ns; /* of each decode step */
    uint64_t *attend_ns; /* the part of it in the library */
    uint64_t prefill_streamed_bytes, decode_streamed_bytes;
    rkv_cache_stats stats; /* zero under --attention naive, like info */
    rkv_cache_info info;
    struct token_list generated;
    struct record record;
};

bool engine_is_host(const struct engine *e);

/* How the cache of such a run is set up. */
struct kv_settings engine_kv_settings(const struct engine *e, const struct run_settings *settings);

/* On success the caller frees the result. */
int engine_run(struct engine *e, const struct run_settings *settings, struct run_result *out,
               struct gen_error *err);
void run_result_free(struct run_result *result);

#endif
