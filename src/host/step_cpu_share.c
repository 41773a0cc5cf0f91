/* SPDX-License-Identifier: MIT
 *
 * step_cpu_share.c: the CPU's share fixed, at creation and on request.
 */
#include "step_cpu_rates.h"
#include "step_types.h"

#include <stdlib.h>
#include <string.h>

/* Threads and their memory come with the first share. */
static rkv_status need_team(rkv_cache *h)
{
    rkvi_device_info info;
    if (h->cpu.team)
        return RKV_OK;
    rkv_status s = rkvi_dev(info, h->dev, &info);
    if (s == RKV_OK)
        s = rkvi_step_cpu_init(h, rkvi_handle_tail_node(&h->cfg, info.numa_node));
    if (s != RKV_OK) {
        rkvi_step_cpu_free(h);
        memset(&h->cpu, 0, sizeof h->cpu);
    }
    return s;
}

static bool has_tail(const rkvi_config *cfg)
{
    for (uint32_t i = 0; i < cfg->n_sites; i++)
        if (rkvi_site_streams(cfg, i))
            return true;
    return false;
}

/* Nothing is in flight, and nobody counts on what lies in the ring. */
static rkv_status leave_ring(rkv_cache *h)
{
    const rkv_status s = rkvi_step_quiet(h);
    h->n_ahead = 0;
    h->expects_replay = false;
    h->steady.is_valid = false;
    h->clock.begun_ns = 0; /* the next step begins late */
    if (h->ring.bytes)
        rkvi_ring_reset(&h->ring, h->launched);
    return s;
}

/* Missing rates are measured; *rates and the sites' as they came to be.  Unpinned
 * memory has none, and no share. */
static rkv_status measure(rkv_cache *h, rkvi_cpu_rates *rates, uint64_t *site_bytes_per_s)
{
    rkvi_arena_counters arena = {0};
    rkvi_arena_counters_get(h->arena, &arena);
    if (arena.unpinned_bytes)
        return RKV_OK;
    rkv_status s = leave_ring(h);
    if (s == RKV_OK)
        s = rkvi_step_cpu_measure(h, rates, site_bytes_per_s);
    return s == RKV_OK ? leave_ring(h) : rkvi_step_failed(h, s);
}

static void take_rates(rkv_cache *h, const rkvi_cpu_rates *rates, const uint64_t *site_bytes_per_s)
{
    rkvi_config *cfg = &h->cfg;
    for (uint32_t i = 0; i < cfg->n_sites; i++)
        cfg->sites[i].cpu_bytes_per_s = site_bytes_per_s[i];
    cfg->cpu_rates = *rates;
    if (rates->cpu_bytes_per_s && rates->link_bytes_per_s)
        rkvi_config_cpu_choose(cfg);
    else
        rkvi_config_cpu_set(cfg, 0, NULL, 0);
}

static rkv_status choose(rkv_cache *h, const rkvi_cpu_rates *given)
{
    rkvi_cpu_rates rates = *given;
    uint64_t *site_bytes_per_s = calloc(h->cfg.n_sites, sizeof *site_bytes_per_s);
    if (!site_bytes_per_s)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for the rates of %u sites", h->cfg.n_sites);
    rkv_status s = need_team(h);
    const bool is_known = rates.cpu_bytes_per_s && rates.link_bytes_per_s && rates.beside_bytes_per_s;
    if (s == RKV_OK && !is_known)
        s = measure(h, &rates, site_bytes_per_s);
    if (s == RKV_OK)
        take_rates(h, &rates, site_bytes_per_s);
    free(site_bytes_per_s);
    return s;
}

rkv_status rkvi_step_cpu_first_share(rkv_cache *h)
{
    const rkvi_config *cfg = &h->cfg;
    if (cfg->cpu_threads == 0 || !has_tail(cfg))
        return RKV_OK;
    if (cfg->cpu_share == 0 && cfg->cpu_rates.step_ns && !cfg->cpu_is_chosen)
        return choose(h, &cfg->cpu_rates);
    return cfg->cpu_share ? need_team(h) : RKV_OK;
}

static rkv_status fix(rkv_cache *h, const rkvi_cpu_wish *w)
{
    rkvi_cpu_rates rates = w->rates;
    if (!w->is_chosen) {
        rkv_status s = w->has_share ? need_team(h) : RKV_OK;
        if (s == RKV_OK)
            rkvi_config_cpu_set(&h->cfg, w->share, w->site_shares, w->free_bytes);
        return s;
    }
    if (rates.step_ns == 0)
        rates.step_ns = rkvi_step_clock_ns(h);
    if (rates.step_ns == 0)
        rates.step_ns = rkvi_config_step_ns(&h->cfg);
    if (rates.step_ns == 0)
        return rkvi_fail(RKV_E_STATE,
                         "no time of a step is known by which the CPU's share could be chosen: give step_ns, or run "
                         "%u decode steps while the tail is short, and call again",
                         RKVI_CLOCK_LEAST + 1);
    return choose(h, &rates);
}

rkv_status rkvi_handle_set_cpu_share(rkv_cache *h, const rkvi_cpu_wish *wish)
{
    if (!has_tail(&h->cfg))
        return RKV_OK;
    const rkv_status s = fix(h, wish);
    h->steady.is_valid = false;
    h->cache.layout++;
    return rkvi_step_seen_status(h, s);
}
