/* SPDX-License-Identifier: MIT */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum option_id {
    ID_MODEL = 256,
    ID_PROMPT,
    ID_PROMPT_FILE,
    ID_MAX_PROMPT,
    ID_DECODE_LAST,
    ID_TOKENS,
    ID_CHUNK,
    ID_CHAT,
    ID_TEMPERATURE,
    ID_SEED,
    ID_IGNORE_EOS,
    ID_MODE,
    ID_DEVICE,
    ID_WHICH_DEVICE,
    ID_DEVICE_LIMIT,
    ID_RESIDENT,
    ID_RING,
    ID_LINK,
    ID_KV_TYPE,
    ID_K_TYPE,
    ID_V_TYPE,
    ID_TILE,
    ID_THREADS,
    ID_ATTENTION,
    ID_COMPARE,
    ID_LOGITS_HASH,
    ID_DUMP_LOGITS,
    ID_PROFILE,
    ID_QUIET,
    ID_HELP
};

#define INDENT "                           "
static const struct {
    enum option_id id;
    const char *name;
    const char *value; /* NULL: takes none */
    const char *help;
} table[] = {
    {ID_MODEL, "model", "FILE", "GGUF file of a llama model with a byte-level BPE tokenizer"},
    {ID_PROMPT, "prompt", "TEXT", "text to continue"},
    {ID_PROMPT_FILE, "prompt-file", "FILE", "the same, from a file"},
    {ID_MAX_PROMPT, "max-prompt-tokens", "N", "cut the prompt to its first N tokens"},
    {ID_DECODE_LAST, "decode-last", "N", "the prompt's last N tokens go in one by one (0)"},
    {ID_CHAT, "chat", NULL, "wrap the prompt as a question to a chat model (ChatML)"},
    {ID_TOKENS, "tokens", "N", "tokens to generate (64)"},
    {ID_CHUNK, "chunk", "N", "prompt tokens per step (256)"},
    {ID_TEMPERATURE, "temperature", "X", "0 takes the likeliest token (0)"},
    {ID_SEED, "seed", "N", "of the random choice at temperatures above 0 (1)"},
    {ID_IGNORE_EOS, "ignore-eos", NULL, "go on behind an end-of-text token"},
    {ID_MODE, "mode", "MODE", "resident (all of the cache on the device), ring, oplevel (ring)"},
    {ID_DEVICE, "device", "WHICH",
     "cuda: the first GPU; host: the CPU, with the library's host executor;\n" INDENT
     "auto: the GPU where there is one (auto)"},
    {ID_WHICH_DEVICE, "which-device", NULL, "print which device it comes to, and end"},
    {ID_DEVICE_LIMIT, "device-limit-mb", "N", "device memory for the cache; not in mode resident"},
    {ID_RESIDENT, "resident-cells", "N", "cells per layer kept on the device, or 'none', 'all'"},
    {ID_RING, "ring-mb", "X", "size of the ring (chosen by the library)"},
    {ID_LINK, "link-gbs", "X",
     "speed of the host executor's link in GB/s (4 under --compare, else as fast\n" INDENT
     "as it copies)"},
    {ID_KV_TYPE, "kv-type", "TYPE", "storage of K and V: f16, bf16, fp8, q8_0, q4_0 (f16)"},
    {ID_K_TYPE, "k-type", "TYPE", "of K alone"},
    {ID_V_TYPE, "v-type", "TYPE", "of V alone"},
    {ID_TILE, "tile", "N", "cells per tile (chosen by the library)"},
    {ID_THREADS, "threads", "N", "threads of the matrix products (one per core, at most 8)"},
    {ID_ATTENTION, "attention", "WHO",
     "rollkv, or naive: a plain loop in f32, to check against (rollkv)"},
    {ID_COMPARE, "compare", NULL,
     "run resident, oplevel and ring, the latter two within the device limit\n" INDENT
     "(unless given: what a window of an eighth of the cells needs); check\n" INDENT
     "that all logits have the same bits, and print a table"},
    {ID_LOGITS_HASH, "logits-hash", NULL, "print a hash over the logits of all steps"},
    {ID_DUMP_LOGITS, "dump-logits", "FILE", "write the logits of all positions (layout: dump.h)"},
    {ID_PROFILE, "profile", NULL, "at the end, print where the generated tokens' attention looked"},
    {ID_QUIET, "quiet", NULL, "no progress"},
    {ID_HELP, "help", NULL, "this text"},
};
enum { TABLE_SIZE = sizeof table / sizeof table[0] };

static const struct {
    const char *name;
    rkv_type type;
} types[] = {{"f16", RKV_TYPE_F16},
             {"bf16", RKV_TYPE_BF16},
             {"fp8", RKV_TYPE_FP8_E4M3},
             {"q8_0", RKV_TYPE_Q8_0},
             {"q4_0", RKV_TYPE_Q4_0}};

static const char *const mode_names[GENERATE_MODES] = {"resident", "ring", "oplevel"};

const char *options_mode_name(enum generate_mode mode)
{
    return mode_names[mode];
}

const char *options_type_name(rkv_type type)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i].type == type)
            return types[i].name;
    return "?";
}

void options_print_help(const char *program)
{
    printf("usage: %s --model FILE (--prompt TEXT | --prompt-file FILE) [options]\n\n"
           "Continues a text with a language model whose KV cache is kept by librollkv.\n"
           "The text goes to stdout, progress and figures to stderr. Exit status: 0; 1: it failed, or\n"
           "logits differed under --compare; 2: wrong usage.\n\n",
           program);
    for (size_t i = 0; i < TABLE_SIZE; i++) {
        char left[64];
        snprintf(left, sizeof left, "--%s%s%s", table[i].name, table[i].value ? " " : "",
                 table[i].value ? table[i].value : "");
        printf("  %-24s %s\n", left, table[i].help);
    }
}

static int read_number(const char *name, const char *text, double least, double most, double *out,
                       struct gen_error *err)
{
    char *end;
    errno = 0;
    const double number = strtod(text, &end);
    if (end == text || *end != '\0' || errno != 0 || !(number >= least && number <= most))
        return gen_fail(err, "--%s %s: a number from %g to %g is needed.", name, text, least, most);
    *out = number;
    return 0;
}

static int read_count(const char *name, const char *text, double least, uint64_t *out,
                      struct gen_error *err)
{
    double number = 0;
    if (read_number(name, text, least, 1e12, &number, err) != 0)
        return -1;
    if (number != floor(number))
        return gen_fail(err, "--%s %s: a whole number is needed.", name, text);
    *out = (uint64_t)number;
    return 0;
}

static int read_size(const char *name, const char *text, double unit_bytes, uint64_t *out,
                     struct gen_error *err)
{
    double number = 0;
    if (read_number(name, text, 0, 1e6, &number, err) != 0)
        return -1;
    *out = (uint64_t)(number * unit_bytes);
    return 0;
}

static int read_type(const char *name, const char *text, rkv_type *out, struct gen_error *err)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i].name, text) == 0) {
            *out = types[i].type;
            return 0;
        }
    return gen_fail(err, "--%s %s: f16, bf16, fp8, q8_0 and q4_0 are supported.", name, text);
}

static int read_mode(const char *text, enum generate_mode *out, struct gen_error *err)
{
    for (int i = 0; i < GENERATE_MODES; i++)
        if (strcmp(mode_names[i], text) == 0) {
            *out = (enum generate_mode)i;
            return 0;
        }
    return gen_fail(err, "--mode %s: resident, ring and oplevel are supported.", text);
}

static int read_device(const char *text, enum generate_device *out, struct gen_error *err)
{
    static const char *const names[] = {"auto", "host", "cuda"}; /* in the order of the enum */
    for (int i = 0; i < 3; i++)
        if (strcmp(names[i], text) == 0) {
            *out = (enum generate_device)i;
            return 0;
        }
    return gen_fail(err, "--device %s: 'auto', 'host' and 'cuda' are supported.", text);
}

static int read_resident(const char *text, uint64_t *out, struct gen_error *err)
{
    if (strcmp(text, "none") == 0)
        *out = RKV_RESIDENT_NONE;
    else if (strcmp(text, "all") == 0)
        *out = RKV_RESIDENT_ALL;
    else
        return read_count("resident-cells", text, 1, out, err);
    return 0;
}

static int read_attention(const char *text, bool *out_naive, struct gen_error *err)
{
    *out_naive = strcmp(text, "naive") == 0;
    if (!*out_naive && strcmp(text, "rollkv") != 0)
        return gen_fail(err, "--attention %s: rollkv and naive are supported.", text);
    return 0;
}

/* Options that choose; see apply for the plain ones. */
static int apply_choice(struct options *o, enum option_id id, const char *name, const char *text,
                        struct gen_error *err)
{
    switch (id) {
    case ID_MODE: return read_mode(text, &o->mode, err);
    case ID_DEVICE: return read_device(text, &o->device, err);
    case ID_RESIDENT: return read_resident(text, &o->resident_cells, err);
    case ID_KV_TYPE:
        if (read_type(name, text, &o->type_k, err) != 0)
            return -1;
        o->type_v = o->type_k;
        return 0;
    case ID_K_TYPE: return read_type(name, text, &o->type_k, err);
    case ID_V_TYPE: return read_type(name, text, &o->type_v, err);
    case ID_ATTENTION: return read_attention(text, &o->naive, err);
    default: return gen_fail(err, "--%s is not known.", name);
    }
}

static int apply(struct options *o, enum option_id id, const char *name, const char *text,
                 struct gen_error *err)
{
    uint64_t count = 0;
    double number = 0;
    int rc = 0;
    switch (id) {
    case ID_MODEL: o->model_path = text; return 0;
    case ID_PROMPT: o->prompt = text; return 0;
    case ID_PROMPT_FILE: o->prompt_path = text; return 0;
    case ID_CHAT: o->chat = true; return 0;
    case ID_IGNORE_EOS: o->ignore_eos = true; return 0;
    case ID_COMPARE: o->compare = true; return 0;
    case ID_LOGITS_HASH: o->logits_hash = true; return 0;
    case ID_WHICH_DEVICE: o->which_device = true; return 0;
    case ID_DUMP_LOGITS: o->dump_path = text; return 0;
    case ID_PROFILE: o->profile = true; return 0;
    case ID_QUIET: o->quiet = true; return 0;
    case ID_HELP: o->help = true; return 0;
    case ID_MAX_PROMPT: return read_count(name, text, 1, &o->max_prompt_tokens, err);
    case ID_DECODE_LAST: return read_count(name, text, 0, &o->decode_last, err);
    case ID_TOKENS: return read_count(name, text, 1, &o->tokens, err);
    case ID_CHUNK: return read_count(name, text, 1, &o->chunk, err);
    case ID_SEED: return read_count(name, text, 0, &o->seed, err);
    case ID_TEMPERATURE: return read_number(name, text, 0, 100, &o->temperature, err);
    case ID_DEVICE_LIMIT: return read_size(name, text, 1e6, &o->device_limit_bytes, err);
    case ID_RING: return read_size(name, text, 1e6, &o->ring_bytes, err);
    case ID_LINK: o->link_given = true; return read_size(name, text, 1e9, &o->link_bytes_per_s, err);
    case ID_TILE:
        rc = read_count(name, text, 16, &count, err);
        o->tile_cells = (uint32_t)count;
        return rc;
    case ID_THREADS:
        rc = read_number(name, text, 1, 64, &number, err);
        o->threads = rc == 0 ? (int)number : 0;
        return rc;
    default: return apply_choice(o, id, name, text, err);
    }
}

static int check_together(const struct options *o, struct gen_error *err)
{
    if (o->model_path == NULL)
        return gen_fail(err, "--model FILE is missing; see --help.");
    if ((o->prompt == NULL) == (o->prompt_path == NULL))
        return gen_fail(err, "Either --prompt TEXT or --prompt-file FILE is needed; see --help.");
    if (o->chunk > 4096)
        return gen_fail(err, "--chunk %zu: at most 4096.", o->chunk);
    if (o->naive && o->compare)
        return gen_fail(err, "--compare compares modes of the library: not with --attention naive.");
    if (o->profile && (o->naive || o->compare))
        return gen_fail(err, "--profile is for a single run of the library's attention.");
    if (o->naive && o->device == DEVICE_CUDA)
        return gen_fail(err, "--attention naive runs on the host: not with --device cuda.");
    if (o->link_given && o->device == DEVICE_CUDA)
        return gen_fail(err, "--link-gbs is for the host executor: not with --device cuda.");
    if (o->compare && o->dump_path != NULL)
        return gen_fail(err, "--dump-logits is for a single run: not with --compare.");
    if (o->tile_cells > 4096)
        return gen_fail(err, "--tile %u: at most 4096.", o->tile_cells);
    return 0;
}

int options_parse(struct options *o, int argc, char **argv, struct gen_error *err)
{
    struct option list[TABLE_SIZE + 1] = {0};
    for (size_t i = 0; i < TABLE_SIZE; i++)
        list[i] = (struct option){table[i].name, table[i].value ? required_argument : no_argument, NULL,
                                  (int)table[i].id};
    static const uint64_t compare_link_bytes_per_s = 4000000000;
    *o = (struct options){.tokens = 64,
                          .chunk = 256,
                          .seed = 1,
                          .mode = GENERATE_RING,
                          .type_k = RKV_TYPE_F16,
                          .type_v = RKV_TYPE_F16};
    opterr = 0;
    optind = 1;
    int id, index = 0;
    while ((id = getopt_long(argc, argv, "", list, &index)) != -1) {
        if (id == '?')
            return gen_fail(err, "Option '%s' is not known or lacks its value; see --help.",
                            argv[optind - 1]);
        if (apply(o, (enum option_id)id, table[index].name, optarg, err) != 0)
            return -1;
    }
    if (optind < argc)
        return gen_fail(err, "'%s' is no option; see --help.", argv[optind]);
    if (!o->link_given && o->compare)
        o->link_bytes_per_s = compare_link_bytes_per_s;
    /* Both are the host's, so they choose it. */
    if (o->device == DEVICE_AUTO && (o->naive || o->link_given))
        o->device = DEVICE_HOST;
    return o->help || o->which_device ? 0 : check_together(o, err);
}
