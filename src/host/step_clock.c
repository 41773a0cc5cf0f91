/* SPDX-License-Identifier: MIT
 *
 * step_clock.c: see step_clock.h.
 */
#include "step_types.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static bool is_plain_decode(const rkv_cache *h)
{
    for (uint32_t e = 0; e < h->batch.n_entries; e++)
        if (h->batch.entries[e].is_prefill)
            return false;
    for (uint32_t site = 0; site < h->cfg.n_sites; site++)
        if (h->plan.sites[site].cpu_launch != RKVI_NO_LAUNCH)
            return false;
    return !h->is_profiled;
}

static bool is_hidden(const rkv_cache *h, uint64_t ns)
{
    const double link_ns = (double)h->clock.list_bytes * 1e9 / (double)h->cfg.cpu_rates.link_bytes_per_s;
    return h->clock.list_bytes == 0 || link_ns < 0.95 * (double)ns; /* no rate: infinite */
}

void rkvi_step_clock_begin(rkv_cache *h)
{
    rkvi_step_clock *c = &h->clock;
    if (h->cfg.cpu_threads == 0)
        return;
    const uint64_t now = now_ns();
    if (c->begun_ns && is_hidden(h, now - c->begun_ns))
        c->ns[c->n++ % RKVI_CLOCK_STEPS] = now - c->begun_ns;
    c->begun_ns = is_plain_decode(h) ? now : 0;
    c->list_bytes = h->plan.list_bytes;
}

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

uint64_t rkvi_step_clock_ns(const rkv_cache *h)
{
    uint64_t ns[RKVI_CLOCK_STEPS];
    const uint32_t n = h->clock.n < RKVI_CLOCK_STEPS ? (uint32_t)h->clock.n : RKVI_CLOCK_STEPS;
    if (n < RKVI_CLOCK_LEAST)
        return 0;
    memcpy(ns, h->clock.ns, n * sizeof *ns);
    qsort(ns, n, sizeof *ns, by_value);
    return ns[n / 2];
}
