/* SPDX-License-Identifier: MIT
 *
 * options.c: see options.h.
 */
#include "options.h"

#include "bench_commit.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static const char *program_name = "bench";

bool option_mistake(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "%s: ", program_name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    return false;
}

bool option_number(const char *name, const char *text, double low, double high, double *out)
{
    char *end;
    const double v = strtod(text, &end);
    if (end == text || *end || !(v >= low && v <= high))
        return option_mistake("--%s %s: give a number from %g to %g", name, text, low, high);
    *out = v;
    return true;
}

bool option_count(const char *name, const char *text, uint64_t low, uint64_t high, uint64_t *out)
{
    errno = 0;
    const uint64_t v = strtoull(text, NULL, 10);
    if (!*text || text[strspn(text, "0123456789")] || errno || v < low || v > high)
        return option_mistake("--%s %s: give a whole number from %llu to %llu", name, text, (unsigned long long)low,
                              (unsigned long long)high);
    *out = v;
    return true;
}

/* "a, b and c" */
static bool one_of(const option_of *o, const char *text)
{
    char list[400] = "";
    for (uint32_t i = 0; o->names[i]; i++) {
        if (strcmp(text, o->names[i]) == 0) {
            *(uint32_t *)o->to = i;
            return true;
        }
        const size_t at = strlen(list);
        snprintf(list + at, sizeof list - at, "%s%s", !i ? "" : o->names[i + 1] ? ", " : " and ", o->names[i]);
    }
    return option_mistake("--%s %s: there are %s", o->name, text, list);
}

static bool put(option_of *o, const char *text)
{
    uint64_t n = 0;
    o->is_given = true;
    switch (o->kind) {
    case OPTION_FLAG: *(bool *)o->to = true; return true;
    case OPTION_NUMBER: return option_number(o->name, text, o->low, o->high, o->to);
    case OPTION_TEXT: *(const char **)o->to = text; return true;
    case OPTION_NAME: return one_of(o, text);
    default: break;
    }
    if (!option_count(o->name, text, (uint64_t)o->low, (uint64_t)o->high, &n))
        return false;
    if (o->kind == OPTION_LONG)
        *(uint64_t *)o->to = n;
    else
        *(uint32_t *)o->to = (uint32_t)n;
    return true;
}

static option_of *find(option_of *table, const char *name, size_t length)
{
    for (option_of *o = table; o->name; o++)
        if (strlen(o->name) == length && strncmp(o->name, name, length) == 0)
            return o;
    return NULL;
}

int options_parse(const char *program, const char *help, option_of *table, int argc, char **argv)
{
    program_name = program;
    for (int i = 1; i < argc; i++) {
        const char *text = argv[i], *equals = strchr(text, '=');
        const size_t length = equals ? (size_t)(equals - text) : strlen(text);
        if (strcmp(text, "--help") == 0) {
            fputs(help, stdout);
            return 0;
        }
        option_of *o = strncmp(text, "--", 2) == 0 ? find(table, text + 2, length - 2) : NULL;
        const char *value = equals ? equals + 1 : NULL;
        if (!o) {
            option_mistake("'%s' is no option; see --help", text);
            return -1;
        }
        if (o->kind == OPTION_FLAG && value) {
            option_mistake("--%s takes no value", o->name);
            return -1;
        }
        if (o->kind != OPTION_FLAG && !value && i + 1 == argc) {
            option_mistake("--%s needs a value; see --help", o->name);
            return -1;
        }
        if (o->kind != OPTION_FLAG && !value)
            value = argv[++i];
        if (!put(o, value))
            return -1;
    }
    return 1;
}

bool options_has(const option_of *table, const char *name)
{
    for (const option_of *o = table; o->name; o++)
        if (strcmp(o->name, name) == 0)
            return o->is_given;
    return false;
}

bool option_file(const char *path, FILE **out)
{
    *out = path ? fopen(path, "w") : NULL;
    return !path || *out || option_mistake("'%s' can't be written: %s", path, strerror(errno));
}

bool option_file_close(const char *path, FILE *file)
{
    if (!file)
        return true;
    const bool is_bad = ferror(file) != 0;
    return (fclose(file) == 0 && !is_bad) || option_mistake("'%s' could not be written: %s", path, strerror(errno));
}

const char *bench_commit(const char *given)
{
    return given ? given : BENCH_COMMIT;
}
