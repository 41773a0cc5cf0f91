/* SPDX-License-Identifier: MIT
 *
 * options.h: the benches' command lines.  A table says what a program takes;
 * what is wrong with an argument is one sentence on stderr.
 */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef enum {
    OPTION_FLAG,   /* to: bool; takes no value */
    OPTION_COUNT,  /* to: uint32_t; a whole number from low to high */
    OPTION_LONG,   /* to: uint64_t; the same */
    OPTION_NUMBER, /* to: double, from low to high */
    OPTION_TEXT,   /* to: const char * */
    OPTION_NAME,   /* to: uint32_t, the index of one of `names` */
} option_kind;

typedef struct option_of {
    const char *name; /* without its -- */
    option_kind kind;
    void *to;
    double low, high;
    const char *const *names; /* up to a NULL */
    bool is_given;
} option_of;

/* `--name value` and `--name=value`; --help prints `help`.
 * 1: go on; 0: helped; -1: a mistake, which was said.  The table ends with a name of NULL. */
int options_parse(const char *program, const char *help, option_of *table, int argc, char **argv);

bool options_has(const option_of *table, const char *name);

/* A value by itself: false where it is none, and said. */
bool option_number(const char *name, const char *text, double low, double high, double *out);
bool option_count(const char *name, const char *text, uint64_t low, uint64_t high, uint64_t *out);

/* A mistake in what was given, as one line behind the program's name; returns false. */
bool option_mistake(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* A file to be written, opened before anything is measured.  path NULL: true, and no file. */
bool option_file(const char *path, FILE **out);
/* Closes it; false where it could not all be written, and said. */
bool option_file_close(const char *path, FILE *file);

/* What figures are noted as being of: what was given, else what the build knows, else "unknown". */
const char *bench_commit(const char *given);

#endif
