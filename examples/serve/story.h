/* SPDX-License-Identifier: MIT
 *
 * What the server goes through: four chats on one document, with everything that can happen to them.
 */
#ifndef STORY_H
#define STORY_H

#include "chat.h"
#include "facts.h"
#include "table.h"

/* Sequences: the document's own one, the chats', and one that a saved chat comes back to. */
enum {
    SEQUENCE_DOCUMENT,
    SEQUENCE_FIRST_CHAT,
    SEQUENCE_RESTORED = SEQUENCE_FIRST_CHAT + CHATS,
    SEQUENCES
};

struct story {
    struct server server;
    struct facts facts;
    struct token_list document;
    struct chat chats[CHATS];
    struct table table;
    size_t exact_fed[CHATS]; /* tokens fed up to where bits may begin to differ from a plain run's */
    unsigned asked, answered;
    unsigned surprises; /* figures that are not what sharing promises */
};

/* Both give 0, or -1 with a sentence in err; the story is to be closed in either case. `story` begins
 * with its facts and document filled in, the rest zero. */
int story_run(struct story *story, struct engine *engine, uint64_t resident_cells,
              struct gen_error *err);
void story_close(struct story *story);

#endif
