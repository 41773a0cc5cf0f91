/* SPDX-License-Identifier: MIT
 *
 * One run: attention is set up, the prompt goes in by chunks, tokens come out one by one.
 */
#include <stdio.h>
#include <stdlib.h>

#include "engine.h"
#include "naive.h"
#include "sample.h"
#include "stopwatch.h"
#include "where.h"

struct run {
    struct engine *engine;
    const struct run_settings *settings;
    struct run_result *result;
    struct attention attention;
    struct kv *kv; /* one of these two is there */
    struct naive *naive;
    struct sampler sampler;
    float *all_logits; /* of a step, for the dump */
    int32_t best;      /* of the last step */
    struct gen_error *err;
};

/* The head is the one large matrix behind the last attention. */
static double output_fraction(const struct model_shape *s)
{
    const double head = (double)s->vocabulary * (double)s->embedding;
    const double layer = (double)s->embedding * (double)(2 * (s->heads + s->kv_heads) * s->head_dim) +
                         3.0 * (double)s->embedding * (double)s->feed_forward;
    return head / (head + layer * (double)s->layers);
}

struct kv_settings engine_kv_settings(const struct engine *e, const struct run_settings *s)
{
    const struct options *o = e->options;
    const bool is_resident = s->mode == GENERATE_RESIDENT;
    return (struct kv_settings){.device = e->backend.device,
                                .stream = e->backend.stream,
                                .out_type = e->backend.out_type,
                                .positions = e->positions,
                                .max_rows = o->chunk,
                                .type_k = o->type_k,
                                .type_v = o->type_v,
                                .mode =
                                    s->mode == GENERATE_OP_LEVEL ? RKV_MODE_OP_LEVEL : RKV_MODE_RING,
                                .tile_cells = o->tile_cells,
                                .ring_bytes = is_resident ? 0 : o->ring_bytes,
                                .resident_cells = is_resident ? RKV_RESIDENT_ALL : s->resident_cells,
                                .device_limit_bytes = is_resident ? 0 : s->device_limit_bytes,
                                .link_bytes_per_s = o->link_bytes_per_s,
                                .threads = (uint32_t)e->threads,
                                .step_ns = s->step_ns,
                                .output_fraction = output_fraction(&e->model.shape)};
}

static int open_attention(struct run *r)
{
    const struct engine *e = r->engine;
    if (e->options->naive) {
        if (!engine_is_host(e))
            return gen_fail(r->err, "--attention naive runs on the host.");
        r->naive = naive_create(&e->model.shape, e->positions, r->err);
        r->attention = r->naive != NULL ? naive_attention(r->naive) : (struct attention){0};
        return r->naive != NULL ? 0 : -1;
    }
    const struct kv_settings settings = engine_kv_settings(e, r->settings);
    r->kv = kv_create(&e->model.shape, &settings, r->err);
    r->attention = r->kv != NULL ? kv_attention(r->kv) : (struct attention){0};
    return r->kv != NULL ? 0 : -1;
}

static int streamed_bytes(const struct run *r, uint64_t *out)
{
    *out = 0;
    if (r->kv == NULL)
        return 0;
    rkv_cache_stats stats;
    if (kv_stats(r->kv, &stats, r->err) != 0)
        return -1;
    *out = stats.streamed_bytes;
    return 0;
}

static bool samples(const struct run *r)
{
    return r->settings->forced == NULL && r->sampler.temperature > 0.0f;
}

/* One step. Where logits are wanted they go into the record, and to *out_logits for sampling. */
static int step(struct run *r, const int32_t *tokens, size_t rows, size_t position, float **out_logits)
{
    struct engine *e = r->engine;
    const bool keeps = !r->settings->keeps_no_logits;
    *out_logits = keeps || samples(r) ? record_next(&r->result->record) : NULL;
    const struct forward_step s = {.tokens = tokens,
                                   .rows = rows,
                                   .first_position = position,
                                   .logits = *out_logits,
                                   .all_logits = r->all_logits,
                                   .best = &r->best};
    if (e->backend.run(e->backend.self, &r->attention, &s, r->err) != 0)
        return -1;
    if (keeps)
        record_done(&r->result->record);
    return r->all_logits == NULL ? 0
                                 : dump_rows(&e->dump, position, tokens, r->all_logits, rows, r->err);
}

/* How many of the prompt's tokens from `at` on make the next step. */
static size_t next_rows(const struct engine *e, size_t at)
{
    const size_t alone = e->prompt.count - e->options->decode_last, chunk = e->options->chunk;
    return at >= alone ? 1 : alone - at < chunk ? alone - at : chunk;
}

static int prefill(struct run *r, float **out_logits)
{
    struct engine *e = r->engine;
    const uint64_t started = stopwatch_now_ns();
    progress_start(&e->progress, "reading the prompt");
    for (size_t at = 0; at < e->prompt.count;) {
        const size_t rows = next_rows(e, at);
        if (step(r, e->prompt.ids + at, rows, at, out_logits) != 0)
            return -1;
        at += rows;
        r->result->prefill_steps++;
        progress_update(&e->progress, at, e->prompt.count, "tokens");
    }
    r->result->prefill_seconds = (double)(stopwatch_now_ns() - started) * 1e-9;
    return streamed_bytes(r, &r->result->prefill_streamed_bytes);
}

static void print_token(const struct run *r, int32_t id)
{
    char bytes[512];
    const size_t count = tokenizer_decode(r->engine->tokenizer, id, bytes, sizeof bytes);
    if (!r->settings->prints)
        return;
    fwrite(bytes, 1, count < sizeof bytes ? count : sizeof bytes, stdout);
    fflush(stdout);
}

/* Adds the next token; gives 1 where the text ends there, -1 on an error. */
static int choose(struct run *r, const float *logits, int32_t *out_id)
{
    const struct engine *e = r->engine;
    struct token_list *list = &r->result->generated;
    const struct token_list *forced = r->settings->forced;
    *out_id = forced != NULL ? forced->ids[list->count]
              : samples(r)   ? sample_next(&r->sampler, logits, e->model.shape.vocabulary)
                             : r->best;
    if (token_list_add(list, *out_id, r->err) != 0)
        return -1;
    print_token(r, *out_id);
    const bool is_end = *out_id == tokenizer_eos(e->tokenizer) && !e->options->ignore_eos;
    const size_t wanted = forced != NULL ? forced->count : e->options->tokens;
    return list->count == wanted || (forced == NULL && is_end);
}

static uint64_t spent(const struct run *r)
{
    return r->kv != NULL ? kv_spent_ns(r->kv) : 0;
}

static int decode(struct run *r, float *logits)
{
    struct engine *e = r->engine;
    const size_t wanted = r->settings->forced != NULL ? r->settings->forced->count : e->options->tokens;
    const bool shows = !(r->settings->prints && e->progress.is_terminal);
    const uint64_t started = stopwatch_now_ns();
    int32_t id;
    int rc;
    progress_start(&e->progress, "generating");
    while ((rc = choose(r, logits, &id)) == 0) {
        const size_t done = r->result->generated.count;
        const uint64_t step_started = stopwatch_now_ns(), spent_ns = spent(r);
        if (step(r, &id, 1, e->prompt.count + done - 1, &logits) != 0)
            return -1;
        const size_t at = r->result->decode_steps++;
        r->result->decode_ns[at] = stopwatch_now_ns() - step_started;
        r->result->attend_ns[at] = spent(r) - spent_ns;
        if (shows)
            progress_update(&e->progress, done, wanted, "tokens");
    }
    r->result->decode_seconds = (double)(stopwatch_now_ns() - started) * 1e-9;
    if (shows)
        progress_update(&e->progress, r->result->generated.count, r->result->generated.count, "tokens");
    return rc < 0 ? -1 : 0;
}

static int run_steps(struct run *r)
{
    float *logits = NULL;
    if (prefill(r, &logits) != 0)
        return -1;
    if (r->settings->prints && r->engine->progress.is_terminal)
        fputc('\n', stderr);
    const bool profiles = r->engine->options->profile;
    if (profiles && where_start(kv_cache(r->kv), r->err) != 0)
        return -1;
    if (decode(r, logits) != 0)
        return -1;
    if (r->kv == NULL)
        return 0;
    if (profiles && where_print(kv_cache(r->kv), r->engine->positions, stderr, r->err) != 0)
        return -1;
    struct run_result *result = r->result;
    if (kv_stats(r->kv, &result->stats, r->err) != 0 || kv_info(r->kv, &result->info, r->err) != 0)
        return -1;
    result->decode_streamed_bytes = result->stats.streamed_bytes - result->prefill_streamed_bytes;
    return 0;
}

static int alloc_buffers(struct run *r)
{
    const struct engine *e = r->engine;
    const struct options *o = e->options;
    const size_t vocabulary = e->model.shape.vocabulary;
    const size_t chunks = (e->prompt.count + o->chunk - 1) / o->chunk;
    r->sampler = (struct sampler){.temperature = (float)o->temperature, .state = o->seed};
    r->sampler.weights = malloc(vocabulary * sizeof *r->sampler.weights);
    r->result->decode_ns = calloc(o->tokens, sizeof *r->result->decode_ns);
    r->result->attend_ns = calloc(o->tokens, sizeof *r->result->attend_ns);
    if (e->dump.file != NULL)
        r->all_logits = malloc(o->chunk * vocabulary * sizeof *r->all_logits);
    if (r->sampler.weights == NULL || r->result->decode_ns == NULL || r->result->attend_ns == NULL ||
        (e->dump.file != NULL && r->all_logits == NULL))
        return gen_fail(r->err, "No memory for a run of %zu tokens.", o->tokens);
    return record_init(&r->result->record, vocabulary, chunks + o->decode_last + o->tokens, r->err);
}

int engine_run(struct engine *e, const struct run_settings *settings, struct run_result *out,
               struct gen_error *err)
{
    struct run r = {.engine = e, .settings = settings, .result = out, .err = err};
    *out = (struct run_result){0};
    int rc = alloc_buffers(&r);
    if (rc == 0)
        rc = open_attention(&r);
    if (rc == 0)
        rc = run_steps(&r);
    progress_break(&e->progress);
    kv_destroy(r.kv);
    naive_destroy(r.naive);
    free(r.sampler.weights);
    free(r.all_logits);
    if (rc != 0)
        run_result_free(out);
    return rc;
}

void run_result_free(struct run_result *result)
{
    free(result->decode_ns);
    free(result->attend_ns);
    token_list_free(&result->generated);
    record_free(&result->record);
}
