/* SPDX-License-Identifier: MIT
 *
 * json.h: writes JSON, a value at a time.  `key` is NULL in an array.
 */
#ifndef BENCH_JSON_H
#define BENCH_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define JSON_DEPTH_MAX 8u

typedef struct json {
    FILE *file;
    uint32_t depth;
    bool has_value[JSON_DEPTH_MAX];
} json;

void json_open(json *j, const char *key, char bracket);  /* '{' or '[' */
void json_close(json *j, char bracket);                  /* '}' or ']' */
void json_string(json *j, const char *key, const char *value);
void json_number(json *j, const char *key, double value); /* null where it is no number */
void json_count(json *j, const char *key, uint64_t value);
/* What every bench's file begins with: its name, the commit and the date. */
void json_head(json *j, const char *bench, const char *commit);

#endif
