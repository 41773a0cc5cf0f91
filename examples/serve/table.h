/* SPDX-License-Identifier: MIT
 *
 * The transcript's table: a line of figures for each thing that was done, by the cache's stats.
 */
#ifndef TABLE_H
#define TABLE_H

#include <rollkv/rollkv.h>

#include "gen_error.h"

struct table {
    const rkv_cache *cache;
    rkv_cache_stats now, before; /* at the last line, and at the one before it */
};

int table_start(struct table *table, const rkv_cache *cache, struct gen_error *err);
int table_line(struct table *table, const char *what, struct gen_error *err);
/* Bytes that a step streamed, over the steps of the last line. */
double table_step_bytes(const struct table *table);

#endif
