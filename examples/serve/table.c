/* SPDX-License-Identifier: MIT */
#include "table.h"

#include <inttypes.h>
#include <stdio.h>

static int read_stats(struct table *t, struct gen_error *err)
{
    t->before = t->now;
    t->now = (rkv_cache_stats){.struct_size = sizeof t->now};
    if (rkv_cache_stats_get(t->cache, &t->now) == RKV_OK)
        return 0;
    return gen_fail(err, "The cache's statistics: %s", rkv_error_message());
}

int table_start(struct table *t, const rkv_cache *cache, struct gen_error *err)
{
    *t = (struct table){.cache = cache};
    printf("%-52s %6s %9s %6s %7s %6s %7s %7s\n", "", "", "streamed,", "tiles", "of them", "dead",
           "device", "parked");
    printf("%-52s %6s %9s %6s %7s %6s %7s %7s\n\n", "", "steps", "MB a step", "used", "shared", "cells",
           "places", "chats");
    return read_stats(t, err);
}

double table_step_bytes(const struct table *t)
{
    const uint64_t steps = t->now.steps - t->before.steps;
    return steps == 0 ? 0.0
                      : (double)(t->now.streamed_bytes - t->before.streamed_bytes) / (double)steps;
}

int table_line(struct table *t, const char *what, struct gen_error *err)
{
    if (read_stats(t, err) != 0)
        return -1;
    const rkv_cache_stats *s = &t->now;
    printf("%-52s %6" PRIu64 " %9.2f %6" PRIu64 " %7" PRIu64 " %6" PRIu64 " %7" PRIu64 " %7" PRIu64
           "\n",
           what, s->steps - t->before.steps, table_step_bytes(t) * 1e-6, s->used_tiles, s->shared_tiles,
           s->dead_cells, s->used_device_places, s->parked_sequences);
    fflush(stdout);
    return 0;
}
