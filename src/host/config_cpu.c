/* SPDX-License-Identifier: MIT
 *
 * config_cpu.c: the CPU's share of the tail.
 *
 * The link can run ahead of a step, the CPU can't: it waits for q.  With C the
 * compute of a step, L its tail, B and R the rates of link and CPU, and the
 * share x on the CPU, a step takes
 *
 *   T(x) = max(C + x L / R, (1 - x) L / B)
 *
 * A hand-over of h at each of n sites lengthens C.  While the threads read host
 * memory the link has B' of it, else B, so that the two are even where
 *
 *   L - x L = B (C + n h) + B' x L / R,   x L = (L - F) R / (R + B'),   F = B (C + n h)
 *
 * F is what the link brings while the CPU has nothing to do: of a tail below it
 * the CPU takes nothing.  What lies beyond is shared by R / (R + B'), whatever
 * its length, so these two are what is frozen: F in whole MiB, and each site's
 * share in sixteenths.  What a site has too little or too much by them is owed to
 * the next one alike, so that of n of them the mean is within a 16 n-th; and steps
 * have that mean at each of them.
 */
#include "config_layers.h"

#include "diag.h"

#define CPU_THREADS_MAX 1024u
#define MIB ((uint64_t)1 << 20)
#define LEAST_BYTES (4 * MIB)
#define PARTIAL_BYTES (32 * MIB) /* a launch of more is left to the GPU */
#define CPU_WAIT_NS 250000000u

double rkvi_config_cpu_step_s(double x, double compute_s, double bytes, double link_bytes_per_s, double cpu_bytes_per_s)
{
    const double by_cpu = compute_s + x * bytes / cpu_bytes_per_s, by_link = (1 - x) * bytes / link_bytes_per_s;
    return by_cpu > by_link ? by_cpu : by_link;
}

/* ------------------------------------------------------------------- choosing */

static uint32_t n_streaming(const rkvi_config *cfg)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < cfg->n_sites; i++)
        n += rkvi_site_streams(cfg, i);
    return n;
}

static void set_mean(rkvi_config *cfg)
{
    uint32_t sum = 0, n = n_streaming(cfg);
    for (uint32_t i = 0; i < cfg->n_sites; i++)
        sum += cfg->sites[i].cpu_share;
    cfg->cpu_share = n ? (sum + n / 2) / n : 0;
    if (sum && !cfg->cpu_share)
        cfg->cpu_share = 1;
}

bool rkvi_sites_alike(const rkvi_config *cfg, uint32_t a, uint32_t b)
{
    const rkvi_geom *x = &cfg->layers[cfg->sites[a].kv_layer].geom, *y = &cfg->layers[cfg->sites[b].kv_layer].geom;
    return rkvi_site_streams(cfg, a) && rkvi_site_streams(cfg, b) && rkvi_geom_is_alike(x, y) &&
           cfg->sites[a].n_q_heads == cfg->sites[b].n_q_heads;
}

/* Sites alike whose shares are a sixteenth apart have their mean: the ring seldom has
 * the room in which the one could wait for the other.  A site with none has none. */
static double part_of(const rkvi_config *cfg, uint32_t site)
{
    const uint32_t own = cfg->sites[site].cpu_share;
    uint32_t sum = 0, n = 0, least = own, most = own;
    for (uint32_t i = 0; i < cfg->n_sites; i++) {
        const uint32_t share = cfg->sites[i].cpu_share;
        if (share == 0 || !rkvi_sites_alike(cfg, i, site))
            continue;
        least = share < least ? share : least;
        most = share > most ? share : most;
        sum += share;
        n++;
    }
    return (own && most - least <= 1 ? (double)sum / n : own) / RKVI_CPU_PARTS;
}

/* Where a site's part would be small, sites take turns: it must be worth the
 * hand-over. */
static void set_free(rkvi_config *cfg, uint64_t free_bytes)
{
    const uint64_t n = n_streaming(cfg), least = n ? free_bytes / (2 * n) : 0;
    cfg->cpu_free_bytes = free_bytes;
    cfg->cpu_least_bytes = least < LEAST_BYTES ? least : LEAST_BYTES;
    set_mean(cfg);
    for (uint32_t i = 0; i < cfg->n_sites; i++)
        cfg->sites[i].cpu_part = part_of(cfg, i);
}

void rkvi_config_cpu_set(rkvi_config *cfg, uint32_t share, const uint32_t *shares, uint64_t free_bytes)
{
    for (uint32_t i = 0; i < cfg->n_sites; i++)
        cfg->sites[i].cpu_share = !rkvi_site_streams(cfg, i) ? 0 : shares ? shares[i] : share;
    cfg->cpu_is_chosen = false;
    set_free(cfg, free_bytes);
}

/* A sixteenth too few costs the link's time for it, one too many the CPU's: as
 * 1 / (1 - share) to 1 / share, where both end alike.  So each is rounded not to
 * the nearest, but to the side that costs less: down from below 1 - share. */
uint32_t rkvi_config_cpu_parts(const rkvi_config *cfg, uint32_t site, double share)
{
    const double most = RKVI_CPU_PARTS - 1, wanted = share < most / RKVI_CPU_PARTS ? share * RKVI_CPU_PARTS : most;
    double owed = 0;
    uint32_t n = 0;
    for (uint32_t i = 0; i <= site; i++)
        if (rkvi_sites_alike(cfg, i, site)) {
            owed += wanted;
            n = owed + share < most + 1 ? (uint32_t)(owed + share) : RKVI_CPU_PARTS - 1;
            owed -= n;
        }
    return n;
}

void rkvi_config_cpu_choose(rkvi_config *cfg)
{
    const rkvi_cpu_rates *r = &cfg->cpu_rates;
    const double link = (double)r->link_bytes_per_s;
    const double beside = r->beside_bytes_per_s ? (double)r->beside_bytes_per_s : link;
    const double handover_ns = (double)(r->handover_ns ? r->handover_ns : RKVI_CPU_HANDOVER_NS);
    const double idle_s = 1e-9 * ((double)r->step_ns + n_streaming(cfg) * handover_ns);
    const double free_bytes = link * idle_s, most = (double)RKVI_SIZE_MAX; /* beyond it, any tail is hidden */
    for (uint32_t i = 0; i < cfg->n_sites; i++) {
        rkvi_site_config *site = &cfg->sites[i];
        const double rate = (double)(site->cpu_bytes_per_s ? site->cpu_bytes_per_s : r->cpu_bytes_per_s);
        site->cpu_share = rkvi_config_cpu_parts(cfg, i, rate / (rate + beside));
    }
    cfg->cpu_is_chosen = true;
    set_free(cfg, (uint64_t)(free_bytes < most ? free_bytes : most) / MIB * MIB);
}

/* ------------------------------------------------------------------ parameters */

static rkv_status check_rates(const rkv_cache_params *p)
{
    rkv_status s = rkvi_check_size("cpu_bytes_per_s", p->cpu_bytes_per_s);
    if (s == RKV_OK)
        s = rkvi_check_size("cpu_beside_bytes_per_s", p->cpu_beside_bytes_per_s);
    if (s == RKV_OK)
        s = rkvi_check_size("cpu_free_bytes", p->cpu_free_bytes);
    return s == RKV_OK ? rkvi_check_size("cpu_handover_ns", p->cpu_handover_ns) : s;
}

rkv_status rkvi_config_take_cpu(rkvi_config *cfg, const rkv_cache_params *p)
{
    const bool rates = p->cpu_bytes_per_s || p->cpu_beside_bytes_per_s || p->cpu_handover_ns;
    cfg->cpu_threads = p->cpu_threads;
    cfg->cpu_share = p->cpu_share;
    cfg->cpu_free_bytes = p->cpu_free_bytes;
    cfg->cpu_rates = (rkvi_cpu_rates){.beside_bytes_per_s = p->cpu_beside_bytes_per_s,
                                      .cpu_bytes_per_s = p->cpu_bytes_per_s,
                                      .handover_ns = p->cpu_handover_ns};
    cfg->cpu_wait_ns = p->cpu_wait_ns ? p->cpu_wait_ns : CPU_WAIT_NS;
    if (p->cpu_threads > CPU_THREADS_MAX)
        return rkvi_fail(RKV_E_ARGUMENT, "cpu_threads is %u; it must be from 0 (no share for the CPU) to %u",
                         p->cpu_threads, CPU_THREADS_MAX);
    if (p->cpu_share >= RKVI_CPU_PARTS)
        return rkvi_fail(RKV_E_ARGUMENT, "cpu_share is %u; it counts sixteenths of the tail, from 0 to %u",
                         p->cpu_share, RKVI_CPU_PARTS - 1);
    if (p->cpu_threads == 0 && (p->cpu_share || p->cpu_free_bytes || p->cpu_wait_ns || rates))
        return rkvi_fail(RKV_E_ARGUMENT,
                         "cpu_share, cpu_wait_ns or a rate of the CPU is given, and no cpu_threads to compute it");
    if (p->cpu_free_bytes && !p->cpu_share)
        return rkvi_fail(RKV_E_ARGUMENT, "cpu_free_bytes is given, and no cpu_share that it goes with");
    if (p->cpu_threads && p->mode == RKV_MODE_OP_LEVEL)
        return rkvi_fail(RKV_E_UNSUPPORTED, "cpu_threads with RKV_MODE_OP_LEVEL: the CPU's share needs the ring");
    const rkv_status s = rkvi_check_size("cpu_wait_ns", p->cpu_wait_ns);
    return s == RKV_OK ? check_rates(p) : s;
}

/* Pinned memory that the hand-over takes. */
void rkvi_config_size_cpu(rkvi_config *cfg)
{
    uint64_t q_bytes = 0, slot_bytes = 0;
    cfg->cpu_q_bytes = cfg->cpu_partial_bytes = cfg->cpu_slot_bytes = 0;
    if (cfg->cpu_threads == 0)
        return;
    for (uint32_t i = 0; i < cfg->n_sites; i++) { /* bounded as the device's partials are */
        const rkvi_geom *g = &cfg->layers[cfg->sites[i].kv_layer].geom;
        const uint64_t row = (uint64_t)cfg->sites[i].n_q_heads * g->dk * sizeof(float);
        const uint64_t slot = (uint64_t)cfg->sites[i].n_q_heads * (g->dv + 2) * sizeof(float);
        q_bytes = row > q_bytes ? row : q_bytes;
        slot_bytes = slot > slot_bytes ? slot : slot_bytes;
    }
    cfg->cpu_slot_bytes = slot_bytes;
    cfg->cpu_q_bytes = q_bytes * cfg->max_rows;
    cfg->cpu_partial_bytes = cfg->partial_bytes < PARTIAL_BYTES ? cfg->partial_bytes : PARTIAL_BYTES;
}

/* What was given decides at once; what is to be measured, once there is memory. */
void rkvi_config_set_cpu(rkvi_config *cfg)
{
    if (cfg->cpu_threads == 0)
        return;
    cfg->cpu_rates.step_ns = rkvi_config_step_ns(cfg);
    cfg->cpu_rates.link_bytes_per_s = cfg->link_bytes_per_s;
    if (cfg->cpu_share)
        rkvi_config_cpu_set(cfg, cfg->cpu_share, NULL, cfg->cpu_free_bytes);
    else if (cfg->cpu_rates.cpu_bytes_per_s && cfg->cpu_rates.beside_bytes_per_s && cfg->link_bytes_per_s &&
             cfg->cpu_rates.step_ns)
        rkvi_config_cpu_choose(cfg);
}
