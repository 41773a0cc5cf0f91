/* SPDX-License-Identifier: MIT
 *
 * json.c: see json.h.
 */
#include "json.h"

#include <math.h>
#include <time.h>

static void quoted(json *j, const char *text)
{
    putc('"', j->file);
    for (const char *c = text; *c; c++)
        if (*c == '"' || *c == '\\')
            fprintf(j->file, "\\%c", *c);
        else if ((unsigned char)*c < 0x20)
            fprintf(j->file, "\\u%04x", (unsigned)*c);
        else
            putc(*c, j->file);
    putc('"', j->file);
}

/* Comma, new line, indentation and key of the next value. */
static void begin(json *j, const char *key)
{
    if (j->depth) {
        fputs(j->has_value[j->depth] ? ",\n" : "\n", j->file);
        fprintf(j->file, "%*s", (int)(2 * j->depth), "");
        j->has_value[j->depth] = true;
    }
    if (key) {
        quoted(j, key);
        fputs(": ", j->file);
    }
}

void json_open(json *j, const char *key, char bracket)
{
    begin(j, key);
    putc(bracket, j->file);
    if (j->depth + 1 < JSON_DEPTH_MAX)
        j->depth++;
    j->has_value[j->depth] = false;
}

void json_close(json *j, char bracket)
{
    j->depth--;
    fprintf(j->file, "\n%*s%c%s", (int)(2 * j->depth), "", bracket, j->depth ? "" : "\n");
}

void json_string(json *j, const char *key, const char *value)
{
    begin(j, key);
    quoted(j, value);
}

void json_number(json *j, const char *key, double value)
{
    begin(j, key);
    if (isfinite(value))
        fprintf(j->file, "%.9g", value);
    else
        fputs("null", j->file);
}

void json_count(json *j, const char *key, uint64_t value)
{
    begin(j, key);
    fprintf(j->file, "%llu", (unsigned long long)value);
}

void json_head(json *j, const char *bench, const char *commit)
{
    char date[32] = "";
    const time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc))
        strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    json_string(j, "bench", bench);
    json_string(j, "commit", commit);
    json_string(j, "date", date);
}
