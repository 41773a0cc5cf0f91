/* SPDX-License-Identifier: MIT
 *
 * rollkv-serve: what a server does with its chats' KV caches, on a real model.
 *
 * Four chats talk about one long document, which is read and stored once. They are forked, continued
 * in one batch, parked and fetched, removed, shifted, saved and restored, cut and compacted; a table
 * says what each of that did to the cache. Most of the cache lies in host memory.
 */
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "products.h"
#include "replay.h"

struct arguments {
    struct options engine;
    uint64_t cells; /* of the document, about */
    bool check, help;
};

static void print_help(const char *program)
{
    printf(
        "usage: %s [--model FILE] [options]\n\n"
        "Four chats on one long document, whose KV cache is kept by librollkv.\n"
        "Exit status: 0; 1: it failed, or a check did; 2: wrong usage.\n\n"
        "  --model FILE         GGUF file ($ROLLKV_MODEL): the recall model (tools/train_recall.py), "
        "or\n"
        "                       another llama model, which may not know the answers\n"
        "  --cells N            letters of the document, at least 1024 (2100)\n"
        "  --resident-cells N   cells per layer kept on the device, of all chats (an eighth of N)\n"
        "  --device WHICH       0 or cuda: the first GPU; host: the CPU; auto (auto)\n"
        "  --threads N          of the CPU (one per core, at most 8)\n"
        "  --check              run each chat by itself too, unshared and resident, and compare bits\n"
        "  --quiet              no progress\n"
        "  --help               this text\n",
        program);
}

static int read_count(const char *text, unsigned long long least, uint64_t *out)
{
    char *end;
    *out = strtoull(text, &end, 10);
    return end != text && *end == '\0' && *out >= least && *out <= 1000000 ? 0 : -1;
}

static int read_device(const char *text, enum generate_device *out)
{
    if (strcmp(text, "0") == 0 || strcmp(text, "cuda") == 0)
        *out = DEVICE_CUDA;
    else if (strcmp(text, "host") == 0)
        *out = DEVICE_HOST;
    else if (strcmp(text, "auto") == 0)
        *out = DEVICE_AUTO;
    else
        return -1;
    return 0;
}

static int apply(struct arguments *a, int id, const char *text)
{
    uint64_t count = 0;
    switch (id) {
    case 'm': a->engine.model_path = text; return 0;
    case 'n': return read_count(text, 1024, &a->cells);
    case 'r': return read_count(text, 1, &a->engine.resident_cells);
    case 'd': return read_device(text, &a->engine.device);
    case 't':
        if (read_count(text, 1, &count) != 0 || count > 64)
            return -1;
        a->engine.threads = (int)count;
        return 0;
    case 'c': a->check = true; return 0;
    case 'q': a->engine.quiet = true; return 0;
    case 'h': a->help = true; return 0;
    default: return -1;
    }
}

static int parse(struct arguments *a, int argc, char **argv)
{
    static const struct option list[] = {{"model", required_argument, NULL, 'm'},
                                         {"cells", required_argument, NULL, 'n'},
                                         {"resident-cells", required_argument, NULL, 'r'},
                                         {"device", required_argument, NULL, 'd'},
                                         {"threads", required_argument, NULL, 't'},
                                         {"check", no_argument, NULL, 'c'},
                                         {"quiet", no_argument, NULL, 'q'},
                                         {"help", no_argument, NULL, 'h'},
                                         {0}};
    /* The chats' tokens come on top of the document's. */
    *a = (struct arguments){.cells = 2100,
                            .engine = {.model_path = getenv("ROLLKV_MODEL"),
                                       .tokens = CHAT_MOST_FED,
                                       .chunk = 256,
                                       .tile_cells = 32,
                                       .type_k = RKV_TYPE_F16,
                                       .type_v = RKV_TYPE_F16,
                                       .all_logits = true}};
    int id;
    while ((id = getopt_long(argc, argv, "", list, NULL)) != -1)
        if (apply(a, id, optarg) != 0) {
            if (id != '?')
                fprintf(stderr, "%s: '%s' is not possible there; see --help.\n", argv[0], optarg);
            return -1;
        }
    if (optind < argc || (a->engine.model_path == NULL && !a->help)) {
        fprintf(stderr, "%s: %s; see --help.\n", argv[0],
                optind < argc ? "too many arguments" : "--model FILE is missing");
        return -1;
    }
    return 0;
}

static void print_head(const struct story *t, const struct engine *e)
{
    printf("%zu tokens of document, %zu layers, tiles of %u cells, a window of %llu cells; %s\n\n",
           t->document.count, e->model.shape.layers, e->options->tile_cells,
           (unsigned long long)e->options->resident_cells,
           engine_is_host(e) ? "host executor (no GPU is used)" : "the first GPU");
}

static int serve(const struct arguments *a, struct facts *facts, struct gen_error *err)
{
    struct engine engine;
    if (engine_open(&engine, &a->engine, err) != 0) {
        facts_free(facts);
        return -1;
    }
    struct story story = {.facts = *facts, .document = engine.prompt};
    engine.prompt = (struct token_list){0};
    print_head(&story, &engine);
    int rc = story_run(&story, &engine, a->engine.resident_cells, err);
    if (rc == 0) {
        printf("\n%u of %u answers are the document's\n", story.answered, story.asked);
        rc = story.surprises > 0;
    }
    if (rc >= 0 && a->check) {
        const int differs = replay_all(&story, &engine, err);
        rc = differs < 0 ? -1 : rc | differs;
    }
    story_close(&story);
    engine_close(&engine);
    return rc;
}

int main(int argc, char **argv)
{
    struct arguments a;
    struct facts facts;
    struct gen_error err;
    if (parse(&a, argc, argv) != 0)
        return 2;
    if (a.help) {
        print_help(argv[0]);
        return 0;
    }
    products_start(argv);
    if (a.engine.resident_cells == 0)
        a.engine.resident_cells = a.cells / 8;
    if (!facts_make(&facts, a.cells)) {
        fprintf(stderr, "rollkv-serve: No memory for the document.\n");
        return 1;
    }
    a.engine.prompt = facts.text;
    const int rc = serve(&a, &facts, &err);
    if (rc < 0)
        fprintf(stderr, "rollkv-serve: %s\n", err.text);
    return rc == 0 ? 0 : 1;
}
