/* SPDX-License-Identifier: MIT */
#include "replay.h"

#include <math.h>
#include <stdio.h>

/* Of logits, where cells lie in other leaves: the sums' order differs. On a GPU, f16 rounds after
 * them in each layer. */
static const double most_on_host = 0.002, most_on_gpu = 0.25;

/* The cuts that came when so much had been fed. */
static int cut_again(struct chat *again, const struct server *server, const struct chat *chat,
                     size_t *next, struct gen_error *err)
{
    for (; *next < chat->cut_count && chat->cuts[*next].fed == again->fed; (*next)++)
        if (chat_cut(again, server, &chat->cuts[*next], err) != 0)
            return -1;
    return 0;
}

static int say_again(struct chat *again, struct server *server, const struct chat *chat,
                     struct gen_error *err)
{
    struct progress *p = &server->engine->progress;
    size_t next_cut = 0;
    for (size_t i = 0; i < chat->fed; i++)
        if (token_list_add(&again->said, chat->said.ids[i], err) != 0)
            return -1;
    progress_start(p, "checking a chat");
    while (again->fed < chat->fed) {
        if (cut_again(again, server, chat, &next_cut, err) != 0 ||
            chat_feed(server, &again, 1, 1, err) != 0)
            return -1;
        progress_update(p, again->fed, chat->fed, "tokens");
    }
    progress_break(p);
    return 0;
}

/* Steps from `exact` on may differ in rounding. */
static int compare(const struct chat *chat, const struct chat *again, size_t exact, double most)
{
    struct record_difference d;
    record_compare(&chat->logits, &again->logits, &d);
    const bool is_same = d.different_steps == 0 || d.first_different >= exact;
    const bool is_near = d.largest <= most;
    printf("  %s: %zu tokens, %zu logits: ", chat->name, d.steps, d.logits);
    if (!is_same)
        printf("DIFFERENT BITS at token %zu of the first %zu\n", d.first_different, exact);
    else if (exact >= d.steps)
        printf("all have the same bits\n");
    else
        printf("the first %zu tokens' have the same bits; after compacting they differ by %.2g at "
               "most%s\n",
               exact, d.largest, is_near ? "" : ": TOO MUCH");
    return is_same && is_near ? 0 : 1;
}

static int replay(const struct story *story, size_t index, struct engine *engine, struct gen_error *err)
{
    const struct chat *chat = &story->chats[index];
    const struct server_settings alone = {.sequences = 1,
                                          .capacity_cells = story->document.count + CHAT_MOST_FED,
                                          .resident_cells = RKV_RESIDENT_ALL};
    struct server server;
    struct chat again = {0};
    if (server_open(&server, engine, &alone, err) != 0)
        return -1;
    int rc = chat_open(&again, chat->name, 0, &server, err);
    if (rc == 0)
        rc = server_read(&server, 0, &story->document, err);
    if (rc == 0)
        rc = say_again(&again, &server, chat, err);
    if (rc == 0)
        rc = compare(chat, &again, story->exact_fed[index],
                     engine_is_host(engine) ? most_on_host : most_on_gpu);
    chat_close(&again);
    server_close(&server);
    return rc;
}

int replay_all(const struct story *story, struct engine *engine, struct gen_error *err)
{
    int result = 0;
    printf("each chat by itself, unshared, all on the device, a token a step:\n");
    for (size_t i = 0; i < CHATS; i++) {
        const int rc = replay(story, i, engine, err);
        if (rc < 0)
            return -1;
        result |= rc;
        fflush(stdout);
    }
    return result;
}
