/* SPDX-License-Identifier: MIT
 *
 * Chats: sequences of one cache that all begin with the same document, and steps that continue
 * several of them in one batch.
 *
 *   said   | fed to the model ............ | pending |
 *            a question, its answer, the next question, ...
 *
 * What a chat is fed has products of its own in each step (forward.h), so that a chat's logits have
 * the same bits whichever others are in the batch: the library's part has that anyway.
 */
#ifndef CHAT_H
#define CHAT_H

#include "engine.h"

enum {
    CHAT_MOST_ROWS = 8, /* of a chat in a step */
    CHATS = 4,
    CHAT_MOST_FED = 512,
    CHAT_CUTS = 16
};

/* A range of positions that was taken out when `fed` tokens had been fed; what follows moved down
 * where it is a shift. */
struct chat_cut {
    size_t fed;
    int64_t from, to;
    bool is_shift;
};

struct chat {
    const char *name;
    uint32_t sequence;
    struct token_list said;
    size_t fed;
    struct record logits; /* behind each token fed */
    struct chat_cut cuts[CHAT_CUTS];
    size_t cut_count;
    size_t wanted; /* tokens to generate */
};

/* A cache, and the model that works with it. */
struct server {
    struct engine *engine;
    struct kv *kv;
    struct attention attention;
    float *logits; /* [CHATS * CHAT_MOST_ROWS][vocabulary] */
};

struct server_settings {
    uint32_t sequences;
    uint64_t capacity_cells, resident_cells;
};

/* All give 0, or -1 with a sentence in err. */
int server_open(struct server *s, struct engine *engine, const struct server_settings *settings,
                struct gen_error *err);
void server_close(struct server *s); /* legal for one that is all zero */
/* The document into an empty sequence, in chunks. */
int server_read(struct server *s, uint32_t sequence, const struct token_list *document,
                struct gen_error *err);
/* What a library call gave, as 0 or -1 with its sentence. */
int server_check(rkv_status status, const char *what, struct gen_error *err);

int chat_open(struct chat *chat, const char *name, uint32_t sequence, const struct server *server,
              struct gen_error *err);
void chat_close(struct chat *chat);
int chat_say(struct chat *chat, const struct server *server, const char *text, struct gen_error *err);
/* Takes positions out of the chat's sequence, and notes that. */
int chat_cut(struct chat *chat, const struct server *server, const struct chat_cut *cut,
             struct gen_error *err);

/* One step: each chat is fed its next pending tokens, at most `most_rows`. All must have some. */
int chat_feed(struct server *s, struct chat *const *chats, size_t count, size_t most_rows,
              struct gen_error *err);
/* Steps until each chat has generated what it wants; whoever has enough leaves the batch. */
int chat_generate(struct server *s, struct chat *const *chats, size_t count, struct gen_error *err);

#endif
