/* SPDX-License-Identifier: MIT
 *
 * The command line.
 */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <rollkv/rollkv.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gen_error.h"

enum generate_mode { GENERATE_RESIDENT, GENERATE_RING, GENERATE_OP_LEVEL, GENERATE_MODES };

/* Who runs the model and keeps the cache. */
enum generate_device { DEVICE_AUTO, DEVICE_HOST, DEVICE_CUDA };

struct options {
    const char *model_path;
    const char *prompt;
    const char *prompt_path;
    const char *dump_path;    /* NULL: no dump of logits */
    size_t max_prompt_tokens; /* 0: all */
    size_t decode_last;       /* so many of the prompt's tokens go in one by one */
    enum generate_device device;
    size_t tokens;
    size_t chunk;
    double temperature;
    uint64_t seed;
    enum generate_mode mode;
    uint64_t device_limit_bytes; /* 0: not given */
    uint64_t resident_cells;     /* RKV_RESIDENT_AUTO: not given */
    uint64_t ring_bytes;
    uint64_t link_bytes_per_s; /* of the host executor */
    bool link_given;
    rkv_type type_k, type_v;
    uint32_t tile_cells;
    int threads;
    bool naive;
    bool chat;
    bool compare;
    bool logits_hash;
    bool ignore_eos;
    bool profile;    /* say where attention looked */
    bool all_logits; /* no option: steps of other programs may ask for the logits of all rows */
    bool quiet;
    bool which_device; /* say which one it is, and end */
    bool help;
};

/* 0, or -1 with a sentence in err. The strings point into argv. */
int options_parse(struct options *o, int argc, char **argv, struct gen_error *err);
void options_print_help(const char *program);

const char *options_mode_name(enum generate_mode mode);
const char *options_type_name(rkv_type type);

#endif
