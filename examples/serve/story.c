/* SPDX-License-Identifier: MIT */
#include "story.h"

#include <rollkv/state.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { A, B, C, D };
static const char *const names[CHATS] = {"A", "B", "C", "D"};

static rkv_cache *cache_of(const struct story *t)
{
    return kv_cache(t->server.kv);
}

static struct chat *chat_of(struct story *t, int which)
{
    return &t->chats[which];
}

/* What the figures must show: said where they don't, and counted. */
static void expect(struct story *t, bool holds, const char *what)
{
    if (holds)
        return;
    printf("  NOT AS IT SHOULD BE: %s\n", what);
    t->surprises++;
}

/* ---------------------------------------------------------------- questions */

struct question {
    int chat;
    size_t fact;
    enum { KEPT, DROPPED } part; /* of the document: whether the chat still has it */
};

struct round {
    size_t count;
    struct question questions[CHATS];
};

static void print_answer(struct story *t, const struct question *q, const char *text)
{
    const struct chat *c = chat_of(t, q->chat);
    char answer[64] = "";
    size_t length = 0;
    for (size_t i = c->said.count - ANSWER_LETTERS; i < c->said.count; i++)
        length += tokenizer_decode(t->server.engine->tokenizer, c->said.ids[i], answer + length,
                                   sizeof answer / 4);
    answer[length] = '\0';
    const bool is_right = strcmp(answer, t->facts.answers[q->fact]) == 0;
    t->asked++;
    t->answered += is_right;
    printf("    %s: \"%s\" -> \"%s\"  %s\n", c->name, text, answer,
           is_right             ? "as the document says"
           : q->part == DROPPED ? "not in the part that it kept"
                                : "not what the document says");
}

/* The chats' questions in one batch, until all have their answers. */
static int ask(struct story *t, const struct round *round, struct gen_error *err)
{
    const struct question *questions = round->questions;
    const size_t count = round->count;
    char texts[CHATS][FACTS_QUESTION];
    struct chat *chats[CHATS] = {NULL};
    for (size_t i = 0; i < count; i++) {
        chats[i] = chat_of(t, questions[i].chat);
        facts_question(&t->facts, questions[i].fact, t->asked + (unsigned)i, texts[i]);
        if (chat_say(chats[i], &t->server, texts[i], err) != 0)
            return -1;
        chats[i]->wanted = ANSWER_LETTERS;
    }
    if (chat_generate(&t->server, chats, count, err) != 0)
        return -1;
    char line[64];
    if (count == 1)
        snprintf(line, sizeof line, "%s asks alone", chats[0]->name);
    else
        snprintf(line, sizeof line, "%zu chats ask in one batch", count);
    if (table_line(&t->table, line, err) != 0)
        return -1;
    for (size_t i = 0; i < count; i++)
        print_answer(t, &questions[i], texts[i]);
    return 0;
}

/* --------------------------------------------------------------------- acts */

static int open_chats(struct story *t, struct gen_error *err)
{
    for (int i = 0; i < CHATS; i++) {
        struct chat *c = chat_of(t, i);
        if (chat_open(c, names[i], SEQUENCE_FIRST_CHAT + (uint32_t)i, &t->server, err) != 0 ||
            server_check(rkv_sequence_fork(cache_of(t), c->sequence, SEQUENCE_DOCUMENT),
                         "Forking the document", err) != 0)
            return -1;
    }
    const uint64_t tiles = t->table.now.used_tiles;
    if (table_line(&t->table, "A, B, C and D begin as forks of it", err) != 0)
        return -1;
    expect(t, t->table.now.used_tiles == tiles, "forks take no tiles");
    expect(t, t->table.now.shared_tiles == tiles, "forks share all tiles");
    return 0;
}

/* One chat, then four: what lies in the tail is read once a step for all. */
static int first_questions(struct story *t, struct gen_error *err)
{
    if (ask(t, &(struct round){1, {{A, 0, KEPT}}}, err) != 0)
        return -1;
    const double alone_bytes = table_step_bytes(&t->table);
    if (ask(t, &(struct round){4, {{A, 1, KEPT}, {B, 4, KEPT}, {C, 6, KEPT}, {D, 10, KEPT}}}, err) != 0)
        return -1;
    expect(t, table_step_bytes(&t->table) < 1.25 * alone_bytes,
           "four chats stream about what one does");
    return 0;
}

static int park(struct story *t, int which, struct gen_error *err)
{
    const uint64_t places = t->table.now.used_device_places;
    if (server_check(rkv_sequence_park(cache_of(t), chat_of(t, which)->sequence), "Parking", err) !=
            0 ||
        table_line(&t->table, "B is parked: it gives its device places back", err) != 0)
        return -1;
    expect(t, t->table.now.used_device_places < places, "parking gives device places back");
    return 0;
}

static int clear(struct story *t, int which, const char *line, struct gen_error *err)
{
    if (server_check(rkv_sequence_clear(cache_of(t), chat_of(t, which)->sequence), "Clearing", err) !=
        0)
        return -1;
    return table_line(&t->table, line, err);
}

/* To a file and back, into another sequence. The saved one has tiles of its own afterwards. */
static int save(struct story *t, const char *path, struct gen_error *err)
{
    struct chat *a = chat_of(t, A);
    const rkv_state_params params = {.struct_size = sizeof params, .sequence = a->sequence};
    uint64_t size_bytes = 0;
    char line[64];
    if (server_check(rkv_state_size(cache_of(t), a->sequence, &size_bytes), "Saving", err) != 0 ||
        server_check(rkv_state_save_file(cache_of(t), &params, path), "Saving", err) != 0)
        return -1;
    snprintf(line, sizeof line, "A is saved to a file of %.2f MB, and cleared",
             (double)size_bytes * 1e-6);
    return clear(t, A, line, err);
}

static int restore(struct story *t, const char *path, struct gen_error *err)
{
    struct chat *a = chat_of(t, A);
    const rkv_state_params params = {.struct_size = sizeof params, .sequence = SEQUENCE_RESTORED};
    if (server_check(rkv_state_load_file(cache_of(t), &params, path), "Restoring", err) != 0)
        return -1;
    a->sequence = SEQUENCE_RESTORED;
    return table_line(&t->table, "A comes back from the file, with tiles of its own", err);
}

/* Part of the document goes, the rest moves down; what B still has of it stays as it is. */
static int shift(struct story *t, int which, struct gen_error *err)
{
    const int64_t n = (int64_t)t->document.count;
    const struct chat_cut cut = {.from = n / 16 + 5, .to = n / 16 + n / 4 + 8, .is_shift = true};
    char line[64];
    if (chat_cut(chat_of(t, which), &t->server, &cut, err) != 0)
        return -1;
    snprintf(line, sizeof line, "C drops positions %lld to %lld and shifts the rest",
             (long long)cut.from, (long long)cut.to);
    return table_line(&t->table, line, err);
}

/* Eight paragraphs between facts are cut out. */
static int cut_paragraphs(struct story *t, int which, struct gen_error *err)
{
    const int64_t n = (int64_t)t->document.count;
    for (int64_t i = 1; i <= 8; i++) {
        const struct chat_cut cut = {.from = i * n / FACTS - 12, .to = i * n / FACTS + 12};
        if (chat_cut(chat_of(t, which), &t->server, &cut, err) != 0)
            return -1;
    }
    return table_line(&t->table, "A drops eight paragraphs of the document", err);
}

static int compact(struct story *t, int which, struct gen_error *err)
{
    const rkv_cache_stats before = t->table.now;
    const struct chat *c = chat_of(t, which);
    t->exact_fed[which] = c->fed; /* cells come together in other leaves from here on */
    if (server_check(rkv_sequence_compact(cache_of(t), c->sequence), "Compacting", err) != 0 ||
        table_line(&t->table, "A is compacted", err) != 0)
        return -1;
    expect(t,
           t->table.now.dead_cells < before.dead_cells && t->table.now.used_tiles < before.used_tiles,
           "compacting leaves fewer dead cells and tiles");
    return 0;
}

static int later_acts(struct story *t, struct gen_error *err)
{
    if (server_check(rkv_sequence_fetch(cache_of(t), chat_of(t, B)->sequence), "Fetching", err) != 0 ||
        table_line(&t->table, "B is fetched, ahead of its next step", err) != 0)
        return -1;
    if (ask(t, &(struct round){3, {{A, 3, KEPT}, {B, 7, KEPT}, {C, 2, DROPPED}}}, err) != 0 ||
        ask(t, &(struct round){3, {{A, 5, KEPT}, {B, 8, KEPT}, {C, 9, KEPT}}}, err) != 0)
        return -1;
    if (cut_paragraphs(t, A, err) != 0 || ask(t, &(struct round){1, {{A, 11, KEPT}}}, err) != 0 ||
        compact(t, A, err) != 0)
        return -1;
    return ask(t, &(struct round){1, {{A, 0, KEPT}}}, err);
}

static int acts(struct story *t, const char *path, struct gen_error *err)
{
    if (server_read(&t->server, SEQUENCE_DOCUMENT, &t->document, err) != 0 ||
        table_line(&t->table, "the document is read", err) != 0)
        return -1;
    if (open_chats(t, err) != 0 || first_questions(t, err) != 0 || park(t, B, err) != 0)
        return -1;
    if (clear(t, D, "D is removed", err) != 0 || save(t, path, err) != 0 || shift(t, C, err) != 0)
        return -1;
    return restore(t, path, err) != 0 ? -1 : later_acts(t, err);
}

/* The file's folder, made for this run alone. */
static int make_folder(char *folder, size_t room, struct gen_error *err)
{
    const char *parent = getenv("TMPDIR");
    const int length =
        snprintf(folder, room, "%s/rollkv-serve-XXXXXX", parent != NULL ? parent : "/tmp");
    if (length < 0 || (size_t)length >= room || mkdtemp(folder) == NULL)
        return gen_fail(err, "No folder for the saved chat can be made in '%s'.",
                        parent != NULL ? parent : "/tmp");
    return 0;
}

int story_run(struct story *t, struct engine *engine, uint64_t resident_cells, struct gen_error *err)
{
    /* The document, a restored chat's own, what compacting that one writes beside it; and what the
     * chats say. */
    const struct server_settings settings = {.sequences = SEQUENCES,
                                             .capacity_cells =
                                                 3 * t->document.count + CHATS * CHAT_MOST_FED,
                                             .resident_cells = resident_cells};
    char folder[512], path[600];
    if (server_open(&t->server, engine, &settings, err) != 0 ||
        table_start(&t->table, cache_of(t), err) != 0 || make_folder(folder, sizeof folder, err) != 0)
        return -1;
    snprintf(path, sizeof path, "%s/a.state", folder);
    const int rc = acts(t, path, err);
    unlink(path);
    rmdir(folder);
    for (int i = 0; i < CHATS; i++)
        if (i != A)
            t->exact_fed[i] = t->chats[i].fed;
    return rc;
}

void story_close(struct story *t)
{
    for (int i = 0; i < CHATS; i++)
        chat_close(&t->chats[i]);
    server_close(&t->server);
    token_list_free(&t->document);
    facts_free(&t->facts);
}
