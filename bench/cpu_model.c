/* SPDX-License-Identifier: MIT
 *
 * cpu_model.c: see cpu_model.h.
 */
#include "cpu_model.h"

#include "diag.h"
#include "plan_work.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TILE_CELLS 256u
#define WINDOW_CELLS (16u * TILE_CELLS)
#define STEPS 4u /* the last one is measured */
#define SWEEP 256u
#define MS 1e3
#define GIB ((double)((uint64_t)1 << 30))

/* ------------------------------------------------------------------ configuration */

static void fill_sites(const cliff_shape *shape, rkv_type type, rkv_kv_layer_params *layers, rkv_site_params *sites)
{
    for (uint32_t i = 0; i < shape->n_sites; i++) {
        const cliff_site *s = &shape->sites[i];
        layers[i] = (rkv_kv_layer_params){.struct_size = sizeof layers[i], .n_kv_heads = s->n_kv_heads,
                                          .head_dim_k = s->head_dim, .type_k = type, .type_v = type,
                                          .resident_cells = s->streams ? WINDOW_CELLS : RKV_RESIDENT_ALL};
        sites[i] = (rkv_site_params){.struct_size = sizeof sites[i], .kv_layer = i, .n_q_heads = s->n_q_heads,
                                     .mask = s->sliding_cells ? RKV_MASK_SLIDING : RKV_MASK_CAUSAL,
                                     .mask_width = s->sliding_cells};
    }
}

/* Tiles of a streaming site's tail; those of all sites are alike. */
static uint64_t tiles_of(const rkvi_config *cfg, uint64_t tail_bytes)
{
    uint64_t a_tile = 0;
    for (uint32_t i = 0; i < cfg->n_sites; i++)
        a_tile += rkvi_site_streams(cfg, i) ? cfg->layers[cfg->sites[i].kv_layer].geom.bytes : 0;
    return a_tile ? (tail_bytes + a_tile / 2) / a_tile : 0;
}

rkv_status cpu_model_config(const cliff_shape *shape, const cpu_model_machine *m, uint64_t most_tail_bytes,
                            rkvi_config *out)
{
    static rkv_kv_layer_params layers[CLIFF_SITES_MAX];
    static rkv_site_params sites[CLIFF_SITES_MAX];
    const rkvi_machine machine = {.device_memory_bytes = (uint64_t)1 << 48, .host_memory_bytes = (uint64_t)1 << 48};
    const uint64_t least_site_cell_bytes = 64; /* no cell of all sites is smaller */
    rkv_status fit = RKV_OK;
    fill_sites(shape, m->type, layers, sites);
    const rkv_cache_params p = {.struct_size = sizeof p,
                                .device = RKV_DEVICE_HOST,
                                .kv_layers = layers,
                                .sites = sites,
                                .n_kv_layers = shape->n_sites,
                                .n_sites = shape->n_sites,
                                .capacity_cells =
                                    most_tail_bytes / least_site_cell_bytes / shape->n_sites + WINDOW_CELLS,
                                .max_rows = 16,
                                .tile_cells = TILE_CELLS,
                                .step_ns = (uint64_t)shape->compute_ns,
                                .link_bytes_per_s = m->rates.link_bytes_per_s,
                                .cpu_threads = 15,
                                .cpu_bytes_per_s = m->rates.cpu_bytes_per_s,
                                .cpu_beside_bytes_per_s = m->rates.beside_bytes_per_s,
                                .cpu_handover_ns = m->rates.handover_ns};
    const rkv_status s = rkvi_config_init(out, &p, &machine, &fit);
    return s == RKV_OK ? fit : s;
}

/* --------------------------------------------------------------------- virtual time */

typedef struct world {
    const rkvi_config *cfg;
    double by_ring[CLIFF_SITES_MAX], by_cpu[CLIFF_SITES_MAX]; /* bytes of a site */
    double a_step;         /* bytes of the ring's list */
    double t;              /* now */
    double filled, read;   /* by the ring's copies and their readers, from the beginning */
} world;

/* The link goes on for a while, as far as the ring has room. */
static void pass(world *w, double s, double bytes_per_s)
{
    const double most = w->read + (double)w->cfg->ring_bytes;
    w->filled += s * bytes_per_s;
    w->filled = w->filled < most ? w->filled : most;
    w->t += s;
}

/* What lies in the ring up to `end` is read, its room filled anew. */
static void pass_reading(world *w, double s, double bytes_per_s, double end)
{
    const double to = w->filled + s * bytes_per_s; /* readers follow at once, up to `end` */
    w->read = to < end ? to : end;
    pass(w, s, bytes_per_s);
}

static void run_site(world *w, uint32_t site, double end)
{
    const rkvi_cpu_rates *r = &w->cfg->cpu_rates;
    const double link = (double)r->link_bytes_per_s, beside = (double)r->beside_bytes_per_s;
    if (w->by_cpu[site] > 0) {
        pass_reading(w, (double)r->handover_ns * 1e-9, link, end);
        pass_reading(w, w->by_cpu[site] / (double)r->cpu_bytes_per_s, beside, end);
    }
    if (w->filled < end)
        pass_reading(w, (end - w->filled) / link, link, end);
    w->read = end;
}

static void run_step(world *w)
{
    const double gap_s = (double)w->cfg->step_ns * 1e-9 / w->cfg->n_sites;
    double end = w->read;
    for (uint32_t i = 0; i < w->cfg->n_sites; i++) {
        end += w->by_ring[i];
        pass(w, gap_s, (double)w->cfg->cpu_rates.link_bytes_per_s);
        run_site(w, i, end);
    }
}

/* As the plan lists it. */
static void list(world *w, uint64_t tail_bytes)
{
    const rkvi_config *cfg = w->cfg;
    const uint64_t n = tiles_of(cfg, tail_bytes);
    uint32_t *bases = malloc((n + 1) * sizeof *bases);
    uint64_t all = 0;
    for (uint32_t i = 0; bases && i < n; i++)
        bases[i] = i;
    for (uint32_t i = 0; i < cfg->n_sites; i++)
        all += rkvi_site_streams(cfg, i) ? n * cfg->layers[cfg->sites[i].kv_layer].geom.bytes : 0;
    rkvi_cpu_cut cut = {.part = all > cfg->cpu_free_bytes ? 1 - (double)cfg->cpu_free_bytes / (double)all : 0,
                        .owed_bytes = (double)cfg->cpu_least_bytes / 2};
    for (uint32_t i = 0; bases && i < cfg->n_sites; i++) {
        const double bytes = (double)cfg->layers[cfg->sites[i].kv_layer].geom.bytes;
        const uint32_t k = rkvi_site_streams(cfg, i) ? (uint32_t)n : 0;
        const uint32_t first = rkvi_plan_cpu_first(cfg, &cut, i, bases, k);
        w->by_ring[i] = first * bytes;
        w->by_cpu[i] = (k - first) * bytes;
        w->a_step += w->by_ring[i];
    }
    free(bases);
}

static double share_of(const rkvi_config *cfg, uint64_t tail_bytes)
{
    world w = {.cfg = cfg};
    double by_cpu = 0;
    list(&w, tail_bytes);
    for (uint32_t i = 0; i < cfg->n_sites; i++)
        by_cpu += w.by_cpu[i];
    return by_cpu > 0 ? by_cpu / (by_cpu + w.a_step) : 0;
}

double cpu_model_step_s(const rkvi_config *cfg, uint64_t tail_bytes)
{
    world w = {.cfg = cfg};
    double before = 0;
    list(&w, tail_bytes);
    for (uint32_t i = 0; i < STEPS; i++) {
        before = w.t;
        run_step(&w);
    }
    return w.t - before;
}

/* ---------------------------------------------------------------------------- sweep */

double cpu_model_best_s(rkvi_config *cfg, uint64_t tail_bytes, double *out_share)
{
    uint32_t shares[CLIFF_SITES_MAX];
    double best = INFINITY;
    for (uint32_t x = 0; x < SWEEP; x++) {
        for (uint32_t i = 0; i < cfg->n_sites; i++)
            shares[i] = rkvi_config_cpu_parts(cfg, i, (double)x / SWEEP);
        rkvi_config_cpu_set(cfg, 0, shares, 0);
        const double s = cpu_model_step_s(cfg, tail_bytes);
        *out_share = s < best ? (double)x / SWEEP : *out_share;
        best = s < best ? s : best;
    }
    return best;
}

static const double links_gbs[] = {6.4, 25, 50};
static const double tails_gib[] = {1.5, 3, 8};

/* K and V that 15 threads got through beside the link, and what was left of it:
 * of an H200's machine; a slower link leaves memory enough. */
static cpu_model_machine machine_of(rkv_type type, double link_gbs)
{
    return (cpu_model_machine){.type = type,
                               .rates = {.link_bytes_per_s = (uint64_t)(link_gbs * 1e9),
                                         .beside_bytes_per_s = (uint64_t)((link_gbs > 45 ? 44 : link_gbs) * 1e9),
                                         .cpu_bytes_per_s = type == RKV_TYPE_F16 ? 52000000000u : 40000000000u,
                                         .handover_ns = 50000}};
}

static void line(const cliff_shape *shape, const cpu_model_machine *m, double tail_gib)
{
    const uint64_t bytes = (uint64_t)(tail_gib * GIB);
    rkvi_config cfg;
    if (cpu_model_config(shape, m, bytes, &cfg) != RKV_OK) {
        fprintf(stderr, "rollkv-bench: %s: %s\n", shape->name, rkvi_error_text());
        return;
    }
    const double chosen = cpu_model_step_s(&cfg, bytes), link = (double)bytes / (double)m->rates.link_bytes_per_s;
    const uint32_t share = cfg.cpu_share;
    const double x = share_of(&cfg, bytes);
    const uint64_t free_bytes = cfg.cpu_free_bytes;
    double best_share = 0;
    const double best = cpu_model_best_s(&cfg, bytes, &best_share);
    printf("%-10s %-5s %6.1f %6.2f %9.0f %6u %7.3f %9.3f %9.3f %7.3f %7.3f %7.3f\n", shape->name,
           rkvi_type_name(m->type), (double)m->rates.link_bytes_per_s * 1e-9, tail_gib, (double)free_bytes * 1e-6,
           share, x, chosen * MS, best * MS, best_share, chosen / best, chosen / link);
    rkvi_config_free(&cfg);
}

int cpu_model_main(int argc, char **argv)
{
    static const char *const shapes[] = {"qwen14b", "gemma-a4b"};
    static const rkv_type types[] = {RKV_TYPE_F16, RKV_TYPE_Q8_0};
    if (argc > 1 && strcmp(argv[1], "--help") == 0) {
        printf(
            "rollkv-bench cpu-model: the rule for the CPU's share against a sweep, simulated; it takes no options\n");
        return 0;
    }
    if (argc > 1) {
        fprintf(stderr, "rollkv-bench: '%s' is no option: cpu-model takes none\n", argv[1]);
        return 2;
    }
    printf("rollkv-bench cpu-model: simulated; the CPU's share by the rule, and the best of a sweep over %u shares "
           "of the whole tail\n\n"
           "%-10s %-5s %6s %6s %9s %6s %7s %9s %9s %7s %7s %7s\n",
           SWEEP, "shape", "type", "link", "tail", "free MB", "16ths", "x", "step ms", "best ms", "x", "/best",
           "/link");
    for (size_t i = 0; i < 2; i++)
        for (size_t t = 0; t < 2; t++)
            for (size_t l = 0; l < sizeof links_gbs / sizeof *links_gbs; l++)
                for (size_t k = 0; k < sizeof tails_gib / sizeof *tails_gib; k++) {
                    const cpu_model_machine m = machine_of(types[t], links_gbs[l]);
                    cliff_shape shape;
                    if (cliff_shape_named(shapes[i], &shape))
                        line(&shape, &m, tails_gib[k]);
                }
    return 0;
}
