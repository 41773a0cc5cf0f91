/* SPDX-License-Identifier: MIT
 *
 * cliff_world.c: see cliff_world.h.
 */
#include "cliff_world.h"

#include "api_internal.h"
#include "cliff_device.h"
#include "cliff_shape.h"
#include "config_estimate.h"

#include <stdlib.h>
#include <string.h>

#define GROW_ROWS 512u      /* few, so that the ring is as the rule for decode has it */
#define LAG_CELLS 16u       /* of the library: by so many cells a tile lags before it enters the tail */
#define STEPS_MAX 200u    /* of any tile */
#define SITE_LAUNCHES 3   /* store, attend, merge: part of the compute */

struct cliff_world {
    cliff_setup setup;
    rkvi_device *dev;
    rkv_cache *cache;
    void *stream;
    rkvi_event *ends[STEPS_MAX + 1];
    rkv_graph graph; /* of the decode steps, where they are replayed */
    rkvi_graph *exec;
    uint64_t n_cells;
    rkv_pos_range visible[GROW_ROWS];
    _Alignas(64) unsigned char tensor[64]; /* no kernel looks at it */
};

/* ---------------------------------------------------------------- parameters */

static int64_t head_ns(const cliff_shape *shape)
{
    return (int64_t)((double)shape->compute_ns * shape->head_share);
}

/* splitmix64, as a number in [-1, 1) */
static double random_at(uint64_t seed, uint32_t i)
{
    uint64_t z = seed + (i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (double)(z >> 11) * 0x1p-52 - 1.0;
}

/* Compute of a site, its own launches included: a quarter of it before its attention. */
static int64_t site_ns(const cliff_shape *shape, uint32_t site)
{
    const double even = (double)(shape->compute_ns - head_ns(shape)) / shape->n_sites;
    return (int64_t)(even * (1.0 + shape->jitter * random_at(shape->seed, site)));
}

static int64_t before_ns(const cliff_shape *shape, uint32_t site)
{
    return site_ns(shape, site) / 4;
}

uint32_t cliff_tile_cells(const cliff_shape *shape)
{
    return shape->tile_cells ? shape->tile_cells : CLIFF_TILE_CELLS;
}

/* Beyond the lag. */
uint32_t cliff_extra_cells(const cliff_shape *shape)
{
    return cliff_tile_cells(shape) >= 128 ? 2 * LAG_CELLS : LAG_CELLS + 1;
}

uint32_t cliff_most_steps(const cliff_shape *shape)
{
    const uint32_t cells = cliff_tile_cells(shape);
    const uint32_t room = cells >= 64 ? cells - cliff_extra_cells(shape) : cells - 1;
    return room < STEPS_MAX ? room : STEPS_MAX;
}

uint64_t cliff_tile_bytes(const cliff_shape *shape)
{
    for (uint32_t i = 0; i < shape->n_sites; i++)
        if (shape->sites[i].streams)
            return cliff_cell_bytes(shape, i) * cliff_tile_cells(shape);
    return 0;
}

uint32_t cliff_streaming_sites(const cliff_shape *shape)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < shape->n_sites; i++)
        n += shape->sites[i].streams;
    return n;
}

typedef struct cliff_params {
    rkv_cache_params p;
    rkv_kv_layer_params layers[CLIFF_SITES_MAX];
    rkv_site_params sites[CLIFF_SITES_MAX];
} cliff_params;

/* `scale` divides what is stored: a KV layer becomes one head. */
static void fill_layers(const cliff_setup *setup, uint32_t scale, cliff_params *out)
{
    const cliff_shape *shape = setup->shape;
    for (uint32_t i = 0; i < shape->n_sites; i++) {
        const cliff_site *site = &shape->sites[i];
        const bool tail = site->streams && setup->mode != CLIFF_RESIDENT;
        const uint64_t window = (uint64_t)setup->window_tiles * cliff_tile_cells(shape);
        out->layers[i] = (rkv_kv_layer_params){
            .struct_size = sizeof out->layers[i],
            .n_kv_heads = scale == 1 ? site->n_kv_heads : 1,
            .head_dim_k = scale == 1 ? site->head_dim : site->n_kv_heads * site->head_dim / scale,
            .resident_cells = !tail ? RKV_RESIDENT_ALL : window ? window : RKV_RESIDENT_NONE};
        out->sites[i] = (rkv_site_params){.struct_size = sizeof out->sites[i],
                                          .kv_layer = i,
                                          .n_q_heads = out->layers[i].n_kv_heads,
                                          .mask = site->sliding_cells ? RKV_MASK_SLIDING : RKV_MASK_CAUSAL,
                                          .mask_width = site->sliding_cells,
                                          .gap_ns = (uint64_t)(site_ns(shape, i) - before_ns(shape, i) +
                                                               before_ns(shape, (i + 1) % shape->n_sites))};
    }
    out->sites[shape->n_sites - 1].gap_ns += (uint64_t)head_ns(shape);
}

static void fill_params(const cliff_setup *setup, uint32_t scale, cliff_params *out)
{
    const uint64_t tiles = setup->most_tail_tiles + setup->window_tiles + 2;
    memset(out, 0, sizeof *out);
    fill_layers(setup, scale, out);
    out->p = (rkv_cache_params){.struct_size = sizeof out->p,
                                .device = RKV_DEVICE_HOST,
                                .kv_layers = out->layers,
                                .sites = out->sites,
                                .n_kv_layers = setup->shape->n_sites,
                                .n_sites = setup->shape->n_sites,
                                .capacity_cells = tiles * cliff_tile_cells(setup->shape),
                                .n_sequences = 1,
                                .max_rows = GROW_ROWS,
                                .tile_cells = cliff_tile_cells(setup->shape),
                                .mode = setup->mode == CLIFF_OP_LEVEL ? RKV_MODE_OP_LEVEL : RKV_MODE_RING,
                                .flags = RKV_FLAG_NO_HUGE_PAGES | (setup->graphs ? RKV_FLAG_GRAPHS : 0),
                                .numa = RKV_NUMA_OFF,
                                .ring_bytes = setup->ring_bytes / scale,
                                .copy_bytes = setup->copy_bytes / scale,
                                .link_bytes_per_s = setup->machine.link_bytes_per_s / scale};
}

/* A machine whose memory is no limit. */
rkv_status cliff_sizes_get(const cliff_setup *setup, cliff_sizes *out)
{
    const rkvi_machine machine = {.device_memory_bytes = (uint64_t)1 << 48,
                                  .host_memory_bytes = (uint64_t)1 << 48};
    cliff_params params;
    rkvi_config cfg;
    rkv_status fit = RKV_OK;
    cliff_setup ring = *setup;
    ring.mode = CLIFF_RING;
    fill_params(&ring, 1, &params);
    const rkv_status s = rkvi_config_init(&cfg, &params.p, &machine, &fit);
    if (s != RKV_OK)
        return s;
    *out = (cliff_sizes){
        .rule_bytes = cfg.ring_rule_bytes, .ring_bytes = cfg.ring_bytes, .copy_bytes = cfg.copy_bytes};
    rkvi_config_free(&cfg);
    rkv_estimate estimate = {.struct_size = sizeof estimate};
    if (fit == RKV_OK)
        fit = rkvi_config_estimate(&params.p, &machine, &estimate);
    out->free_zone_cells = estimate.free_zone_cells;
    return fit;
}

/* -------------------------------------------------------------------- create */

rkv_status cliff_world_create(const cliff_setup *setup, cliff_world **out)
{
    cliff_params params;
    cliff_world *w = calloc(1, sizeof *w);
    if (!w)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for a world");
    w->setup = *setup;
    cliff_sizes sizes;
    rkv_status s = cliff_sizes_get(setup, &sizes);
    if (s == RKV_OK)
        s = cliff_device_create(&setup->machine, &w->dev);
    if (s != RKV_OK) {
        free(w);
        return s;
    }
    w->setup.ring_bytes = sizes.ring_bytes;
    w->setup.copy_bytes = sizes.copy_bytes;
    fill_params(&w->setup, CLIFF_SCALE, &params);
    s = rkvi_api_create_on(&params.p, w->dev, &w->cache);
    if (s == RKV_OK)
        s = rkvi_dev(stream_create, w->dev, "engine", &w->stream);
    for (uint32_t i = 0; i <= STEPS_MAX && s == RKV_OK; i++)
        s = rkvi_dev(event_create, w->dev, &w->ends[i]);
    if (s != RKV_OK) {
        cliff_world_destroy(w);
        return s;
    }
    *out = w;
    return RKV_OK;
}

void cliff_world_destroy(cliff_world *w)
{
    if (!w)
        return;
    for (uint32_t i = 0; i <= STEPS_MAX; i++)
        if (w->ends[i])
            rkvi_dev(event_destroy, w->dev, w->ends[i]);
    if (w->exec)
        rkvi_dev(graph_destroy, w->dev, w->exec);
    if (w->stream)
        rkvi_dev(stream_destroy, w->dev, w->stream);
    if (w->cache)
        rkv_cache_destroy(w->cache); /* and the executor, which it owns */
    else
        rkvi_dev_destroy(w->dev);
    free(w);
}

/* --------------------------------------------------------------------- steps */

static rkv_status delay(cliff_world *w, int64_t ns)
{
    return ns > 0 ? rkvi_dev(delay, w->dev, ns, w->stream) : RKV_OK;
}

static rkv_status attend(cliff_world *w, uint32_t site)
{
    const rkv_tensor t = {.data = w->tensor, .type = RKV_TYPE_F32};
    const rkv_attend_params a = {
        .struct_size = sizeof a, .site = site, .q = t, .k = t, .v = t, .out = t};
    return rkv_step_attend(w->cache, &a, w->stream);
}

/* The engine's own work, where it has some, is between them and behind them. */
static rkv_status run_sites(cliff_world *w, bool has_compute)
{
    const cliff_shape *shape = w->setup.shape;
    const int64_t own_ns = SITE_LAUNCHES * w->setup.machine.launch_ns;
    rkv_status s = RKV_OK;
    for (uint32_t i = 0; i < shape->n_sites && s == RKV_OK; i++) {
        s = delay(w, has_compute ? before_ns(shape, i) : 0);
        if (s == RKV_OK)
            s = attend(w, i);
        if (s == RKV_OK)
            s = delay(w, has_compute ? site_ns(shape, i) - before_ns(shape, i) - own_ns : 0);
    }
    return s == RKV_OK && has_compute ? delay(w, head_ns(shape)) : s;
}

static rkv_status capture(cliff_world *w)
{
    rkv_status s = w->exec ? rkvi_dev(graph_destroy, w->dev, w->exec) : RKV_OK;
    w->exec = NULL;
    w->graph = (rkv_graph)RKV_GRAPH_INIT;
    if (s == RKV_OK)
        s = rkvi_dev(capture_begin, w->dev, w->stream, false);
    if (s == RKV_OK)
        s = rkv_graph_capture(w->cache, 0, 0, w->stream);
    if (s == RKV_OK)
        s = run_sites(w, true);
    if (s == RKV_OK)
        s = rkv_graph_capture_end(w->cache, w->stream, &w->graph);
    return s == RKV_OK ? rkvi_dev(capture_end, w->dev, w->stream, &w->exec) : s;
}

static rkv_status replay(cliff_world *w)
{
    uint64_t key = 0;
    rkv_status s = rkv_step_start(w->cache, w->stream);
    if (s == RKV_OK)
        s = rkv_step_graph_key(w->cache, &key);
    if (s == RKV_OK && (!w->exec || w->graph.key != key))
        s = capture(w);
    if (s == RKV_OK)
        s = rkv_step_replay(w->cache, &w->graph, w->stream);
    return s == RKV_OK ? rkvi_dev(graph_launch, w->dev, w->exec, w->stream) : s;
}

static rkv_status run_step(cliff_world *w, const rkv_batch_entry *entry, bool is_decode)
{
    const rkv_batch batch = {.struct_size = sizeof batch, .n_entries = 1, .entries = entry};
    rkv_status s = rkv_step_begin(w->cache, &batch);
    if (s == RKV_OK)
        s = is_decode && w->setup.graphs ? replay(w) : run_sites(w, is_decode);
    if (s == RKV_OK)
        s = rkv_step_end(w->cache, NULL, w->stream);
    if (s == RKV_OK && w->setup.waits)
        s = rkvi_dev(stream_sync, w->dev, w->stream);
    w->n_cells += s == RKV_OK ? entry->n_new_cells : 0;
    return s;
}

static rkv_status decode_step(cliff_world *w)
{
    const rkv_batch_entry entry = {.struct_size = sizeof entry, .n_rows = 1, .n_new_cells = 1};
    return run_step(w, &entry, true);
}

/* Rows see themselves alone, so that lengthening streams no tail. */
rkv_status cliff_world_grow(cliff_world *w, uint64_t tail_tiles)
{
    const cliff_shape *shape = w->setup.shape;
    const uint64_t cells = (w->setup.window_tiles + tail_tiles) * cliff_tile_cells(shape) + cliff_extra_cells(shape);
    rkv_status s = RKV_OK;
    while (w->n_cells < cells && s == RKV_OK) {
        const uint64_t left = cells - w->n_cells;
        const uint32_t rows = left < GROW_ROWS ? (uint32_t)left : GROW_ROWS;
        const rkv_batch_entry entry = {.struct_size = sizeof entry,
                                       .n_rows = rows,
                                       .n_new_cells = rows,
                                       .regime = RKV_REGIME_PREFILL,
                                       .visible = w->visible};
        for (uint32_t i = 0; i < rows; i++) {
            const int64_t pos = (int64_t)(w->n_cells + i);
            w->visible[i] = (rkv_pos_range){.from = pos, .to = pos + 1};
        }
        s = run_step(w, &entry, false);
    }
    return s;
}

/* ------------------------------------------------------------------- measure */

static int by_value(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static rkv_status read_clock(cliff_world *w, uint32_t steps, cliff_result *out)
{
    int64_t ns[STEPS_MAX], sum = 0;
    for (uint32_t i = 0; i < steps; i++) {
        const rkv_status s = rkvi_dev(event_elapsed, w->dev, w->ends[i], w->ends[i + 1], &ns[i]);
        if (s != RKV_OK)
            return s;
        sum += ns[i];
    }
    qsort(ns, steps, sizeof *ns, by_value);
    out->least_ns = (double)ns[0];
    out->most_ns = (double)ns[steps - 1];
    out->p10_ns = (double)ns[steps / 10];
    out->p90_ns = (double)ns[steps - 1 - steps / 10];
    out->step_ns = w->setup.machine.executor == CLIFF_SIM ? (double)sum / steps : (double)ns[steps / 2];
    return RKV_OK;
}

static double per_step(uint64_t before, uint64_t after, uint32_t steps)
{
    return (double)(after - before) / steps;
}

static void read_stats(const cliff_world *w, const rkv_cache_stats *a, const rkv_cache_stats *b,
                       uint32_t steps, cliff_result *out)
{
    const cliff_machine *m = &w->setup.machine;
    out->copies = per_step(a->copies_in, b->copies_in, steps);
    out->launches = per_step(a->launches, b->launches, steps);
    out->extra_launches = per_step(a->extra_launches, b->extra_launches, steps);
    out->tail_bytes = (b->streamed_bytes - a->streamed_bytes) * CLIFF_SCALE / steps;
    out->list_bytes = b->last_step_list_bytes * CLIFF_SCALE;
    out->run_ahead_bytes = b->run_ahead_bytes * CLIFF_SCALE;
    out->link_busy_ns = out->copies * (double)m->copy_cost_ns +
                        (double)out->tail_bytes * 1e9 / (double)m->link_bytes_per_s;
    out->context_cells = w->n_cells;
}

rkv_status cliff_world_measure(cliff_world *w, uint32_t warm, uint32_t steps, cliff_result *out)
{
    rkv_cache_stats before = {.struct_size = sizeof before}, after = before;
    rkv_cache_info info = {.struct_size = sizeof info};
    rkv_status s = RKV_OK;
    const uint32_t most = cliff_most_steps(w->setup.shape);
    if (warm + steps > most || steps == 0)
        return rkvi_fail(RKV_E_ARGUMENT, "%u warm and %u measured steps; at most %u in all, and one measured",
                         warm, steps, most);
    for (uint32_t i = 0; i < warm && s == RKV_OK; i++)
        s = decode_step(w);
    *out = (cliff_result){0};
    if (s == RKV_OK)
        s = rkv_cache_stats_get(w->cache, &before);
    if (s == RKV_OK)
        s = rkvi_dev(event_record, w->dev, w->ends[0], w->stream);
    for (uint32_t i = 0; i < steps && s == RKV_OK; i++) {
        s = decode_step(w);
        if (s == RKV_OK)
            s = rkvi_dev(event_record, w->dev, w->ends[i + 1], w->stream);
    }
    if (s == RKV_OK)
        s = rkvi_dev(stream_sync, w->dev, w->stream);
    if (s == RKV_OK)
        s = read_clock(w, steps, out);
    if (s == RKV_OK)
        s = rkv_cache_stats_get(w->cache, &after);
    if (s == RKV_OK)
        s = rkv_cache_info_get(w->cache, &info);
    if (s != RKV_OK)
        return s;
    read_stats(w, &before, &after, steps, out);
    out->ring_bytes = info.ring_bytes * CLIFF_SCALE;
    return RKV_OK;
}
