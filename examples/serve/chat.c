/* SPDX-License-Identifier: MIT */
#include "chat.h"

#include <stdlib.h>
#include <string.h>

#include "sample.h"

int server_check(rkv_status status, const char *what, struct gen_error *err)
{
    if (status == RKV_OK)
        return 0;
    return gen_fail(err, "%s: %s (%s)", what, rkv_error_message(), rkv_status_name(status));
}

int server_open(struct server *s, struct engine *engine, const struct server_settings *settings,
                struct gen_error *err)
{
    const struct run_settings ring = {.mode = GENERATE_RING,
                                      .resident_cells = settings->resident_cells};
    struct kv_settings kv = engine_kv_settings(engine, &ring);
    kv.positions = settings->capacity_cells;
    kv.sequences = settings->sequences;
    kv.shifts = true;
    *s = (struct server){.engine = engine};
    s->logits = malloc(CHATS * CHAT_MOST_ROWS * engine->model.shape.vocabulary * sizeof *s->logits);
    if (s->logits == NULL)
        return gen_fail(err, "No memory for the logits of a step.");
    s->kv = kv_create(&engine->model.shape, &kv, err);
    if (s->kv == NULL) {
        server_close(s);
        return -1;
    }
    s->attention = kv_attention(s->kv);
    return 0;
}

void server_close(struct server *s)
{
    kv_destroy(s->kv);
    free(s->logits);
    *s = (struct server){0};
}

int server_read(struct server *s, uint32_t sequence, const struct token_list *document,
                struct gen_error *err)
{
    struct engine *e = s->engine;
    progress_start(&e->progress, "reading the document");
    for (size_t at = 0; at < document->count;) {
        const size_t left = document->count - at;
        const size_t rows = left < e->options->chunk ? left : e->options->chunk;
        rkv_batch_entry entry = RKV_BATCH_ENTRY_INIT;
        entry.sequence = sequence;
        entry.n_rows = entry.n_new_cells = (uint32_t)rows;
        entry.regime = RKV_REGIME_PREFILL;
        kv_set_batch(s->kv, &entry, 1);
        const struct forward_step step = {
            .tokens = document->ids + at, .rows = rows, .first_position = at};
        if (e->backend.run(e->backend.self, &s->attention, &step, err) != 0)
            return -1;
        at += rows;
        progress_update(&e->progress, at, document->count, "tokens");
    }
    progress_break(&e->progress);
    return 0;
}

/* -------------------------------------------------------------------- chats */

int chat_open(struct chat *c, const char *name, uint32_t sequence, const struct server *server,
              struct gen_error *err)
{
    *c = (struct chat){.name = name, .sequence = sequence};
    return record_init(&c->logits, server->engine->model.shape.vocabulary, CHAT_MOST_FED, err);
}

void chat_close(struct chat *c)
{
    token_list_free(&c->said);
    record_free(&c->logits);
    *c = (struct chat){0};
}

int chat_say(struct chat *c, const struct server *server, const char *text, struct gen_error *err)
{
    return tokenizer_encode(server->engine->tokenizer, text, strlen(text), false, &c->said, err);
}

int chat_cut(struct chat *c, const struct server *server, const struct chat_cut *cut,
             struct gen_error *err)
{
    rkv_cache *cache = kv_cache(server->kv);
    if (c->cut_count == CHAT_CUTS)
        return gen_fail(err, "More than %d cuts in a chat.", CHAT_CUTS);
    rkv_status status = RKV_OK;
    /* Asked first: once the range is out, it would be too late to be refused the shift. (Upwards, as
     * the range is still in the way.) */
    if (cut->is_shift)
        status = rkv_sequence_can_shift(cache, c->sequence, cut->to, RKV_POS_END, cut->to - cut->from);
    if (status == RKV_OK)
        status = rkv_sequence_remove(cache, c->sequence, cut->from, cut->to);
    if (status == RKV_OK && cut->is_shift)
        status = rkv_sequence_shift(cache, c->sequence, cut->to, RKV_POS_END, cut->from - cut->to);
    c->cuts[c->cut_count] = *cut;
    c->cuts[c->cut_count++].fed = c->fed;
    return server_check(status, "Cutting a chat", err);
}

/* -------------------------------------------------------------------- steps */

/* A step's rows, entry after entry. */
struct rows {
    int32_t tokens[CHATS * CHAT_MOST_ROWS];
    int64_t positions[CHATS * CHAT_MOST_ROWS];
    rkv_batch_entry entries[CHATS];
    size_t count;
};

static int add_rows(struct rows *rows, const struct server *s, const struct chat *c, size_t most_rows,
                    rkv_batch_entry *entry, struct gen_error *err)
{
    const size_t pending = c->said.count - c->fed, count = pending < most_rows ? pending : most_rows;
    rkv_sequence_state state = {.struct_size = sizeof state};
    if (c->fed + count > CHAT_MOST_FED)
        return gen_fail(err, "A chat of more than %d tokens.", CHAT_MOST_FED);
    if (server_check(rkv_sequence_info(kv_cache(s->kv), c->sequence, &state), "A chat", err) != 0)
        return -1;
    for (size_t i = 0; i < count; i++) {
        rows->tokens[rows->count + i] = c->said.ids[c->fed + i];
        rows->positions[rows->count + i] = state.pos_end + (int64_t)i;
    }
    *entry = (rkv_batch_entry){.struct_size = sizeof *entry,
                               .sequence = c->sequence,
                               .n_rows = (uint32_t)count,
                               .n_new_cells = (uint32_t)count,
                               .regime = RKV_REGIME_DECODE};
    rows->count += count;
    return 0;
}

/* The chats' shares of the step's logits. */
static void keep_logits(const struct server *s, struct chat *const *chats, const struct rows *rows)
{
    const size_t vocabulary = s->engine->model.shape.vocabulary;
    const float *logits = s->logits;
    for (size_t i = 0, at = 0; at < rows->count; i++) {
        for (uint32_t r = 0; r < rows->entries[i].n_rows; r++, at++, logits += vocabulary) {
            memcpy(record_next(&chats[i]->logits), logits, vocabulary * sizeof *logits);
            record_done(&chats[i]->logits);
        }
        chats[i]->fed += rows->entries[i].n_rows;
    }
}

int chat_feed(struct server *s, struct chat *const *chats, size_t count, size_t most_rows,
              struct gen_error *err)
{
    const struct backend *b = &s->engine->backend;
    struct rows rows = {.count = 0};
    for (size_t i = 0; i < count; i++)
        if (add_rows(&rows, s, chats[i], most_rows, &rows.entries[i], err) != 0)
            return -1;
    kv_set_batch(s->kv, rows.entries, (uint32_t)count);
    const struct forward_step step = {.tokens = rows.tokens,
                                      .rows = rows.count,
                                      .all_logits = s->logits,
                                      .positions = rows.positions,
                                      .rows_apart = true};
    if (b->run(b->self, &s->attention, &step, err) != 0)
        return -1;
    keep_logits(s, chats, &rows);
    return 0;
}

static int choose(const struct server *s, struct chat *c, const float *logits, struct gen_error *err)
{
    if (c->fed < c->said.count)
        return 0;
    c->wanted--;
    return token_list_add(&c->said, (int32_t)sample_highest(logits, s->engine->model.shape.vocabulary),
                          err);
}

int chat_generate(struct server *s, struct chat *const *chats, size_t count, struct gen_error *err)
{
    for (;;) {
        struct chat *busy[CHATS];
        size_t n = 0;
        for (size_t i = 0; i < count; i++)
            if (chats[i]->wanted > 0)
                busy[n++] = chats[i];
        if (n == 0)
            return 0;
        size_t fed_before[CHATS];
        for (size_t i = 0; i < n; i++)
            fed_before[i] = busy[i]->fed;
        if (chat_feed(s, busy, n, CHAT_MOST_ROWS, err) != 0)
            return -1;
        const float *last = s->logits; /* behind a chat's last row of this step */
        for (size_t i = 0; i < n; i++) {
            last += (busy[i]->fed - fed_before[i]) * s->engine->model.shape.vocabulary;
            if (choose(s, busy[i], last - s->engine->model.shape.vocabulary, err) != 0)
                return -1;
        }
    }
}
