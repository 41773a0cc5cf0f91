/* SPDX-License-Identifier: MIT
 *
 * step_cpu_rates.c: see step_cpu_rates.h.
 */
#include "step_cpu_rates.h"

#include "step_link.h"
#include "step_types.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MIB ((uint64_t)1 << 20)
#define SCRATCH_BYTES (1024 * MIB) /* of the tail's memory: far beyond what CPUs keep of it */
#define COPIED_NS 25000000u       /* of copies, at least */
#define MOST_NS 60000000u         /* that the threads are at it */
#define ROUNDS 3u                 /* of both; what disturbs one of them is not the cache's */
#define NAP_NS 200000
#define MOST_UNITS 100000u /* more than threads get through in MOST_NS, but of tiny heads */
#define GEOMETRIES 3u             /* measured; further ones have the first one's rate */

/* Places of the tails of all KV layers alike, as a step reads them, and the attention
 * over them: a unit is a KV head of a place. */
typedef struct load {
    rkvi_attend_args args;
    rkvi_op_fn decode;
    rkvi_entry entry;
    rkvi_row row;
    rkvi_span *spans;
    uint64_t *bases;
    rkvi_item *items;
    float *partials, *q;
    _Atomic bool *taken; /* [n_slots] rooms for partials */
    bool *is_free;       /* [n_places] */
    uint64_t n_places, n_slots, most_places;
    rkvi_step_link link; /* of adjacent places, from bases[0] on, into the ring */
} load;

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* ----------------------------------------------------------------- tail memory */

/* The tail of a KV layer like this one; NULL: it is none, or has no tail. */
static rkvi_pool *pool_like(rkv_cache *h, uint32_t layer, uint32_t like)
{
    rkvi_pool *p = &h->cache.layers[layer].host;
    if (!rkvi_geom_is_alike(&h->cfg.layers[layer].geom, &h->cfg.layers[like].geom))
        return NULL;
    return p->n_places || rkvi_pool_next_extent_bytes(p) ? p : NULL;
}

static uint64_t n_pools_like(rkv_cache *h, uint32_t like)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < h->cfg.n_layers; i++)
        n += pool_like(h, i, like) != NULL;
    return n;
}

/* Extents that the tail comes to need anyway. */
static rkv_status need_places(rkv_cache *h, uint32_t like)
{
    const uint64_t n = n_pools_like(h, like);
    rkv_status s = RKV_OK;
    for (uint32_t i = 0; i < h->cfg.n_layers; i++) {
        rkvi_pool *p = pool_like(h, i, like);
        while (s == RKV_OK && p && p->n_places * p->place_bytes < SCRATCH_BYTES / n && rkvi_pool_next_extent_bytes(p)) {
            void *extent;
            bool waited = false;
            s = rkvi_arena_take(h->arena, rkvi_pool_next_extent_bytes(p), &extent, &waited);
            if (s == RKV_OK)
                rkvi_pool_add(p, extent);
        }
    }
    return s;
}

/* Free places, which may never have been written, are to become zeros; others are
 * tile-layers of the tail, and read. */
static void list_pool(rkv_cache *h, const rkvi_pool *p, uint64_t end, load *l)
{
    for (uint32_t e = 0; e < p->n_extents; e++)
        for (uint32_t i = 0; i < p->counts[e] && l->n_places < end; i++) {
            const uint64_t place = e * p->extent_places + i;
            unsigned char *at = p->extents[e] + i * p->place_bytes;
            const bool is_free = p->free_bits[place / 64] >> place % 64 & 1;
            const rkvi_range access = {.ptr = at, .bytes = p->place_bytes, .rows = 1,
                                       .access = is_free ? RKVI_WRITE : RKVI_READ};
            h->dev->vt->host_access(h->dev, &access, 1);
            l->is_free[l->n_places] = is_free;
            l->bases[l->n_places++] = (uint64_t)(uintptr_t)at;
        }
}

static void zero_place(const void *arg, uint64_t index)
{
    const load *l = arg;
    if (l->is_free[index])
        memset((void *)(uintptr_t)l->bases[index], 0, l->args.geom.bytes);
}

/* From `like` on, whose first extent is copied from. */
static void list_places(rkv_cache *h, uint32_t like, load *l)
{
    const rkvi_pool *first = &h->cache.layers[like].host;
    const uint64_t n_layers = h->cfg.n_layers, each = l->most_places / n_pools_like(h, like);
    for (uint64_t i = 0; i < n_layers; i++) {
        const rkvi_pool *p = pool_like(h, (uint32_t)((like + i) % n_layers), like);
        if (p)
            list_pool(h, p, l->n_places + each, l);
    }
    rkvi_cpu_team_run(h->cpu.team, zero_place, l, l->n_places);
    const uint64_t ring = h->cfg.ring_bytes / first->place_bytes, adjacent = first->counts[0];
    l->link = (rkvi_step_link){.dev = h->dev, .stream = h->in_stream, .dst = h->ring_memory,
                               .src = (const void *)(uintptr_t)l->bases[0],
                               .copy_bytes = (ring < adjacent ? ring : adjacent) * first->place_bytes};
}

static void free_load(load *l)
{
    free(l->spans);
    free(l->bases);
    free(l->items);
    free(l->partials);
    free(l->q);
    free((void *)l->taken);
    free(l->is_free);
}

static rkv_status alloc_load(rkv_cache *h, uint32_t site, load *l)
{
    const rkvi_site_config *s = &h->cfg.sites[site];
    const rkvi_geom *g = &h->cfg.layers[s->kv_layer].geom;
    const uint64_t leaves = g->tile_cells / g->leaf_cells;
    const uint64_t most = SCRATCH_BYTES / g->bytes + n_pools_like(h, s->kv_layer); /* of each a place, at least */
    l->most_places = most;
    l->is_free = calloc(most, sizeof *l->is_free);
    l->spans = calloc(most * leaves, sizeof *l->spans);
    l->bases = calloc(most, sizeof *l->bases);
    l->items = calloc(most, sizeof *l->items);
    l->n_slots = h->cfg.cpu_threads + 1;
    l->taken = calloc(l->n_slots, sizeof *l->taken);
    l->partials = calloc(l->n_slots * s->n_q_heads, (g->dv + 2) * sizeof(float));
    l->q = calloc((uint64_t)s->n_q_heads * g->dk, sizeof(float));
    if (l->spans && l->bases && l->items && l->partials && l->q && l->taken && l->is_free)
        return RKV_OK;
    return rkvi_fail(RKV_E_HOST_MEMORY, "no memory to measure the CPU's rate over %llu tile-layers",
                     (unsigned long long)most);
}

/* One row over all places, an item each. */
static void fill_load(rkv_cache *h, uint32_t site, load *l)
{
    const rkvi_site_config *s = &h->cfg.sites[site];
    const rkvi_geom *g = &h->cfg.layers[s->kv_layer].geom;
    const uint64_t leaves = g->tile_cells / g->leaf_cells;
    l->args.geom = *g;
    list_places(h, s->kv_layer, l);
    for (uint64_t i = 0; i < l->n_places * leaves; i++)
        l->spans[i] = (rkvi_span){.pos = (int64_t)(i * g->leaf_cells), .tile = (uint32_t)(i / leaves),
                                  .first = (uint16_t)(i % leaves * g->leaf_cells), .count = (uint16_t)g->leaf_cells};
    for (uint64_t i = 0; i < l->n_places; i++)
        l->items[i] = (rkvi_item){.n_rows = 1, .leaf0 = i * leaves, .leaf1 = (i + 1) * leaves};
    l->decode = h->cpu.ops.fn[RKVI_OP_DECODE];
    l->entry = (rkvi_entry){.n_spans = l->n_places * leaves, .n_rows = 1};
    l->row = (rkvi_row){.pos = INT64_MAX / 2, .to = INT64_MAX};
    l->args = (rkvi_attend_args){.geom = *g, .entries = &l->entry, .rows = &l->row, .spans = l->spans,
                                 .bases = l->bases, .items = l->items, .partials = l->partials,
                                 .q = {l->q, (int64_t)s->n_q_heads * g->dk, g->dk, RKV_TYPE_F32},
                                 .q_heads = s->n_q_heads, .scale = s->scale, .softcap = s->softcap, .max_rows = 1};
}

/* ------------------------------------------------------------- threads and link */

/* Threads go through the places again and again, until the copies have ended. */
typedef struct race {
    const load *l;
    rkv_cache *h;
    pthread_t caller; /* of the job: none of the threads that have the share */
    uint64_t from_ns;
    _Atomic uint64_t bytes, all_bytes; /* of units that ended before the copies; of all */
} race;

static void stamp(void *at)
{
    atomic_store((_Atomic uint64_t *)at, now_ns());
}

static bool is_over(const race *r)
{
    return atomic_load(&r->h->clock.stamp_ns) != 0 || now_ns() - r->from_ns > MOST_NS;
}

/* Partials of one unit: nobody else's meanwhile. */
static uint64_t take_slot(const load *l)
{
    for (uint64_t i = 0;; i = i + 1 < l->n_slots ? i + 1 : 0)
        if (!atomic_exchange(&l->taken[i], true))
            return i;
}

static void race_unit(const void *arg, uint64_t index)
{
    race *r = (race *)(uintptr_t)arg;
    const rkvi_geom *g = &r->l->args.geom;
    while (pthread_equal(pthread_self(), r->caller) && !is_over(r))
        nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
    if (is_over(r) && atomic_load(&r->all_bytes))
        return;
    rkvi_attend_args args = r->l->args;
    rkvi_item item = args.items[index / g->n_heads % r->l->n_places];
    item.slot = take_slot(r->l);
    args.items = &item;
    r->l->decode(&args, index % g->n_heads);
    atomic_store(&r->l->taken[item.slot], false);
    atomic_fetch_add(&r->all_bytes, g->head_bytes);
    if (!is_over(r))
        atomic_fetch_add(&r->bytes, g->head_bytes);
}

static rkv_status measure_both(rkv_cache *h, const load *l, uint64_t link_bytes_per_s, uint64_t *out_cpu,
                               uint64_t *out_beside)
{
    const uint64_t n = rkvi_step_link_count(l->link.copy_bytes, link_bytes_per_s, COPIED_NS);
    race r = {.l = l, .h = h, .caller = pthread_self(), .from_ns = now_ns()};
    atomic_store(&h->clock.stamp_ns, 0);
    rkv_status s = rkvi_step_link_copy(&l->link, n);
    if (s == RKV_OK)
        s = rkvi_dev(host_call, h->dev, stamp, &h->clock.stamp_ns, NULL, 0, h->in_stream);
    if (s == RKV_OK)
        rkvi_cpu_team_run(h->cpu.team, race_unit, &r, MOST_UNITS);
    const uint64_t ended_ns = now_ns(), bytes = atomic_load(&r.bytes);
    const rkv_status synced = rkvi_dev(stream_sync, h->dev, h->in_stream);
    const uint64_t copied_ns = atomic_load(&h->clock.stamp_ns);
    const uint64_t until_ns = copied_ns < ended_ns && bytes ? copied_ns : ended_ns;
    *out_cpu = rkvi_step_link_rate(bytes ? bytes : atomic_load(&r.all_bytes), until_ns - r.from_ns);
    *out_beside = rkvi_step_link_rate(n * l->link.copy_bytes, copied_ns - r.from_ns);
    return s == RKV_OK ? synced : s;
}

/* The round that got most through. */
static rkv_status measure_rounds(rkv_cache *h, const load *l, uint64_t link_bytes_per_s, uint64_t *out_cpu,
                                 uint64_t *out_beside)
{
    rkv_status s = RKV_OK;
    *out_cpu = *out_beside = 0;
    for (uint32_t i = 0; i < ROUNDS && s == RKV_OK; i++) {
        uint64_t cpu = 0, beside = 0;
        s = measure_both(h, l, link_bytes_per_s, &cpu, &beside);
        if (cpu + beside > *out_cpu + *out_beside) {
            *out_cpu = cpu;
            *out_beside = beside;
        }
    }
    return s;
}

/* ------------------------------------------------------------------------- all */

static rkv_status measure_site(rkv_cache *h, uint32_t site, rkvi_cpu_rates *rates, uint64_t *out_cpu,
                               uint64_t *out_beside)
{
    load l = {0};
    const uint64_t place_bytes = h->cfg.layers[h->cfg.sites[site].kv_layer].geom.bytes;
    rkv_status s = need_places(h, h->cfg.sites[site].kv_layer);
    if (s == RKV_OK)
        s = alloc_load(h, site, &l);
    if (s == RKV_OK)
        fill_load(h, site, &l);
    if (s == RKV_OK && rates->link_bytes_per_s == 0)
        s = rkvi_step_link_measure(&l.link, place_bytes, place_bytes, COPIED_NS, &rates->link_bytes_per_s);
    if (s == RKV_OK)
        rkvi_step_link_cut(&l.link, place_bytes, rates->link_bytes_per_s);
    if (s == RKV_OK)
        s = measure_rounds(h, &l, rates->link_bytes_per_s, out_cpu, out_beside);
    free_load(&l);
    return s;
}

/* The rate of a step that goes through all sites. */
static uint64_t mean_rate(const rkvi_config *cfg, const uint64_t *site_bytes_per_s)
{
    double bytes = 0, s = 0;
    for (uint32_t i = 0; i < cfg->n_sites; i++)
        if (site_bytes_per_s[i]) {
            bytes += (double)cfg->layers[cfg->sites[i].kv_layer].geom.bytes;
            s += (double)cfg->layers[cfg->sites[i].kv_layer].geom.bytes / (double)site_bytes_per_s[i];
        }
    return s > 0 ? (uint64_t)(bytes / s) : 0;
}

rkv_status rkvi_step_cpu_measure(rkv_cache *h, rkvi_cpu_rates *rates, uint64_t *site_bytes_per_s)
{
    const rkvi_config *cfg = &h->cfg;
    uint32_t first = UINT32_MAX, n_measured = 0;
    uint64_t cpu = 0, beside = 0;
    rkv_status s = RKV_OK;
    memset(site_bytes_per_s, 0, cfg->n_sites * sizeof *site_bytes_per_s);
    for (uint32_t i = 0; i < cfg->n_sites && s == RKV_OK; i++) {
        uint32_t like = 0;
        if (!rkvi_site_streams(cfg, i))
            continue;
        while (like < i && !(site_bytes_per_s[like] && rkvi_sites_alike(cfg, like, i)))
            like++;
        first = first < i ? first : i;
        like = like == i && n_measured == GEOMETRIES ? first : like;
        if (like < i) {
            site_bytes_per_s[i] = site_bytes_per_s[like];
            continue;
        }
        uint64_t while_computing = 0;
        s = measure_site(h, i, rates, &site_bytes_per_s[i], &while_computing);
        site_bytes_per_s[i] = site_bytes_per_s[i] ? site_bytes_per_s[i] : 1;
        beside = beside ? beside : while_computing;
        n_measured++;
    }
    cpu = mean_rate(cfg, site_bytes_per_s);
    rates->beside_bytes_per_s = rates->beside_bytes_per_s ? rates->beside_bytes_per_s : beside;
    if (rates->cpu_bytes_per_s) /* given: for all geometries */
        memset(site_bytes_per_s, 0, cfg->n_sites * sizeof *site_bytes_per_s);
    else
        rates->cpu_bytes_per_s = cpu;
    return s;
}
