/* SPDX-License-Identifier: MIT
 *
 * cliff_cuda_world.c: see cliff_cuda_world.h.
 */
#include "cliff_cuda_world.h"

#include "api_internal.h"
#include "cliff_cuda_device.h"
#include "cliff_cuda_graph.h"
#include "cliff_shape.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GROW_ROWS 512u /* as in cliff_world.c; at most CLIFF_ENGINE_ROWS */
#define STEPS_MAX 200u  /* as in cliff_world.c */
#define ALONE_STEPS 4u  /* with the GPU idle, for the host's time */
#define PROBED_STEPS (CLIFF_CUDA_OTHER_STEPS - ALONE_STEPS)

struct cliff_cuda_world {
    cliff_cuda_setup setup;
    rkv_cache *cache;
    cliff_cuda_graphs *graphs; /* NULL: eager steps */
    cudaStream_t stream;
    cudaEvent_t ends[STEPS_MAX + 1];
    uint64_t n_cells;
    int64_t products_host_ns; /* the host's time in the products, since it was last set to 0 */
    rkv_pos_range visible[GROW_ROWS];
};

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

uint64_t cliff_cuda_cell_bytes(const cliff_shape *shape, bool streaming_alone)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < shape->n_sites; i++)
        if (shape->sites[i].streams || !streaming_alone)
            bytes += cliff_cell_bytes(shape, i);
    return bytes;
}

/* ---------------------------------------------------------------------- create */

typedef struct params {
    rkv_cache_params p;
    rkv_kv_layer_params layers[CLIFF_SITES_MAX];
    rkv_site_params sites[CLIFF_SITES_MAX];
} params;

/* A site's part of the compute, by the weights that are read until the next one. */
static uint64_t gap_ns(const cliff_cuda_setup *setup, uint32_t site)
{
    const double share =
        (double)cliff_engine_gap_bytes(setup->engine, site) / (double)cliff_engine_bytes(setup->engine);
    return (uint64_t)((double)setup->shape->compute_ns * share);
}

static void fill_params(const cliff_cuda_setup *setup, params *out)
{
    const cliff_shape *shape = setup->shape;
    const uint64_t window = (uint64_t)setup->window_tiles * cliff_tile_cells(shape);
    const uint64_t tiles = setup->most_tail_tiles + setup->window_tiles + 2;
    memset(out, 0, sizeof *out);
    for (uint32_t i = 0; i < shape->n_sites; i++) {
        const cliff_site *site = &shape->sites[i];
        const bool tail = site->streams && setup->mode != CLIFF_RESIDENT;
        out->layers[i] = (rkv_kv_layer_params){.struct_size = sizeof out->layers[i],
                                               .n_kv_heads = site->n_kv_heads,
                                               .head_dim_k = site->head_dim,
                                               .type_k = shape->kv_type,
                                               .type_v = shape->kv_type,
                                               .resident_cells = tail ? window : RKV_RESIDENT_ALL};
        out->sites[i] = (rkv_site_params){.struct_size = sizeof out->sites[i],
                                          .kv_layer = i,
                                          .n_q_heads = site->n_q_heads,
                                          .mask = site->sliding_cells ? RKV_MASK_SLIDING : RKV_MASK_CAUSAL,
                                          .mask_width = site->sliding_cells,
                                          .gap_ns = gap_ns(setup, i)};
    }
    out->p = (rkv_cache_params){.struct_size = sizeof out->p,
                                .kv_layers = out->layers,
                                .sites = out->sites,
                                .n_kv_layers = shape->n_sites,
                                .n_sites = shape->n_sites,
                                .capacity_cells = tiles * cliff_tile_cells(shape),
                                .n_sequences = 1,
                                .max_rows = GROW_ROWS,
                                .tile_cells = cliff_tile_cells(shape),
                                .mode = setup->mode == CLIFF_OP_LEVEL ? RKV_MODE_OP_LEVEL : RKV_MODE_RING,
                                .flags = setup->for_graphs ? RKV_FLAG_GRAPHS : 0,
                                .ring_bytes = setup->ring_bytes,
                                .cpu_threads = setup->cpu_threads,
                                .link_bytes_per_s = setup->link_bytes_per_s};
}

static rkv_status make_cache(cliff_cuda_world *w)
{
    rkvi_device *dev;
    params *p = malloc(sizeof *p);
    if (!p)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for parameters");
    fill_params(&w->setup, p);
    rkv_status s = cliff_cuda_device_create(w->setup.repeat, &dev);
    if (s == RKV_OK) {
        s = rkvi_api_create_on(&p->p, dev, &w->cache);
        if (s != RKV_OK)
            rkvi_dev_destroy(dev);
    }
    free(p);
    return s;
}

rkv_status cliff_cuda_world_create(const cliff_cuda_setup *setup, cliff_cuda_world **out)
{
    cliff_cuda_world *w = calloc(1, sizeof *w);
    if (!w)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for a world");
    w->setup = *setup;
    w->stream = cliff_engine_stream(setup->engine);
    rkv_status s = make_cache(w);
    if (s == RKV_OK && setup->graphs != CLIFF_EAGER)
        s = cliff_cuda_graphs_create(setup->graphs, setup->shape, setup->engine, w->cache, &w->graphs);
    for (uint32_t i = 0; i <= STEPS_MAX && s == RKV_OK; i++)
        s = CLIFF_CUDA(cudaEventCreate(&w->ends[i]));
    if (s != RKV_OK)
        cliff_cuda_world_destroy(w);
    else
        *out = w;
    return s;
}

void cliff_cuda_world_destroy(cliff_cuda_world *w)
{
    if (!w)
        return;
    cudaStreamSynchronize(w->stream);
    for (uint32_t i = 0; i <= STEPS_MAX; i++)
        if (w->ends[i])
            cudaEventDestroy(w->ends[i]);
    cliff_cuda_graphs_destroy(w->graphs);
    rkv_cache_destroy(w->cache); /* and the executor, which it owns */
    free(w);
}

rkv_status cliff_cuda_world_choose_cpu_share(cliff_cuda_world *w, rkvi_cpu_rates *rates, uint32_t *out_share,
                                              uint64_t *out_free_bytes)
{
    const rkv_cpu_share_params p = {.struct_size = sizeof p, .step_ns = rates->step_ns,
                                    .link_bytes_per_s = rates->link_bytes_per_s,
                                    .cpu_bytes_per_s = rates->cpu_bytes_per_s};
    rkv_cache_info info = {.struct_size = sizeof info};
    rkv_status s = rkv_cache_set_cpu_share(w->cache, &p);
    if (s == RKV_OK)
        s = rkv_cache_info_get(w->cache, &info);
    *rates = (rkvi_cpu_rates){.step_ns = info.cpu_step_ns,
                              .link_bytes_per_s = info.cpu_link_bytes_per_s,
                              .beside_bytes_per_s = info.cpu_beside_bytes_per_s,
                              .cpu_bytes_per_s = info.cpu_bytes_per_s,
                              .handover_ns = info.cpu_handover_ns};
    *out_share = info.cpu_share;
    *out_free_bytes = info.cpu_free_bytes;
    return s;
}

rkv_status cliff_cuda_world_sizes(const cliff_cuda_world *w, cliff_sizes *out)
{
    rkv_cache_info info = {.struct_size = sizeof info};
    rkv_estimate estimate = {.struct_size = sizeof estimate};
    params *p = malloc(sizeof *p);
    if (!p)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for parameters");
    fill_params(&w->setup, p);
    rkv_status s = rkv_cache_info_get(w->cache, &info);
    if (s == RKV_OK)
        s = rkv_cache_estimate(&p->p, &estimate);
    free(p);
    *out = (cliff_sizes){.rule_bytes = info.ring_rule_bytes,
                         .ring_bytes = info.ring_bytes,
                         .copy_bytes = info.copy_bytes,
                         .free_zone_cells = estimate.free_zone_cells};
    return s;
}

/* ----------------------------------------------------------------------- steps */

static rkv_status attend(cliff_cuda_world *w, uint32_t site, const cliff_qkv *x)
{
    const rkv_attend_params a = {.struct_size = sizeof a,
                                 .site = site,
                                 .q = {.data = x->q},
                                 .k = {.data = x->k},
                                 .v = {.data = x->v},
                                 .out = {.data = x->out}};
    return rkv_step_attend(w->cache, &a, w->stream);
}

static rkv_status decode_site(cliff_cuda_world *w, uint32_t site)
{
    cliff_qkv x;
    int64_t t = now_ns();
    rkv_status s = cliff_engine_before(w->setup.engine, site, &x);
    w->products_host_ns += now_ns() - t;
    if (s == RKV_OK)
        s = attend(w, site, &x);
    t = now_ns();
    if (s == RKV_OK)
        s = cliff_engine_after(w->setup.engine, site);
    w->products_host_ns += now_ns() - t;
    return s;
}

static rkv_status decode_sites(cliff_cuda_world *w)
{
    rkv_status s = RKV_OK;
    for (uint32_t i = 0; i < w->setup.shape->n_sites && s == RKV_OK; i++)
        s = decode_site(w, i);
    return s == RKV_OK ? cliff_engine_head(w->setup.engine) : s;
}

static rkv_status decode_step(cliff_cuda_world *w)
{
    const rkv_batch_entry entry = {.struct_size = sizeof entry, .n_rows = 1, .n_new_cells = 1};
    const rkv_batch batch = {.struct_size = sizeof batch, .n_entries = 1, .entries = &entry};
    rkv_status s = rkv_step_begin(w->cache, &batch);
    if (s == RKV_OK)
        s = w->graphs ? cliff_cuda_graphs_step(w->graphs, &w->products_host_ns) : decode_sites(w);
    if (s == RKV_OK)
        s = rkv_step_end(w->cache, NULL, w->stream);
    if (s == RKV_OK && w->setup.waits)
        s = CLIFF_CUDA(cudaStreamSynchronize(w->stream));
    w->n_cells += s == RKV_OK;
    return s;
}

/* Rows see themselves alone, so that they stream no tail and cost little. */
static rkv_status grow_step(cliff_cuda_world *w, uint32_t rows)
{
    const rkv_batch_entry entry = {.struct_size = sizeof entry,
                                   .n_rows = rows,
                                   .n_new_cells = rows,
                                   .regime = RKV_REGIME_PREFILL,
                                   .visible = w->visible};
    const rkv_batch batch = {.struct_size = sizeof batch, .n_entries = 1, .entries = &entry};
    for (uint32_t i = 0; i < rows; i++) {
        const int64_t pos = (int64_t)(w->n_cells + i);
        w->visible[i] = (rkv_pos_range){.from = pos, .to = pos + 1};
    }
    rkv_status s = rkv_step_begin(w->cache, &batch);
    for (uint32_t i = 0; i < w->setup.shape->n_sites && s == RKV_OK; i++) {
        cliff_qkv x;
        s = cliff_engine_rows(w->setup.engine, i, w->n_cells, &x);
        if (s == RKV_OK)
            s = attend(w, i, &x);
    }
    if (s == RKV_OK)
        s = rkv_step_end(w->cache, NULL, w->stream);
    w->n_cells += s == RKV_OK ? rows : 0;
    return s;
}

rkv_status cliff_cuda_world_grow(cliff_cuda_world *w, uint64_t tail_tiles)
{
    const cliff_shape *shape = w->setup.shape;
    const uint64_t cells = (w->setup.window_tiles + tail_tiles) * cliff_tile_cells(shape) + cliff_extra_cells(shape);
    rkv_status s = RKV_OK;
    while (w->n_cells < cells && s == RKV_OK) {
        const uint64_t left = cells - w->n_cells;
        s = grow_step(w, left < GROW_ROWS ? (uint32_t)left : GROW_ROWS);
    }
    return s == RKV_OK ? CLIFF_CUDA(cudaStreamSynchronize(w->stream)) : s;
}

/* --------------------------------------------------------------------- measure */

static int by_value(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static rkv_status read_clock(const cliff_cuda_world *w, uint32_t steps, cliff_result *out)
{
    int64_t ns[STEPS_MAX];
    for (uint32_t i = 0; i < steps; i++) {
        float ms = 0;
        const rkv_status s = CLIFF_CUDA(cudaEventElapsedTime(&ms, w->ends[i], w->ends[i + 1]));
        if (s != RKV_OK)
            return s;
        ns[i] = (int64_t)((double)ms * 1e6);
    }
    qsort(ns, steps, sizeof *ns, by_value);
    out->step_ns = (double)ns[steps / 2];
    out->least_ns = (double)ns[0];
    out->p10_ns = (double)ns[steps / 10];
    out->p90_ns = (double)ns[steps - 1 - steps / 10];
    out->most_ns = (double)ns[steps - 1];
    return RKV_OK;
}

/* The host's clock starts when the step before the first one is done, with the
 * first one queued already, so that it begins as the others do. */
static rkv_status clocked_steps(cliff_cuda_world *w, uint32_t steps, cliff_result *out)
{
    int64_t from_ns = 0;
    rkv_status s = CLIFF_CUDA(cudaEventRecord(w->ends[0], w->stream));
    for (uint32_t i = 0; i < steps && s == RKV_OK; i++) {
        s = decode_step(w);
        if (s == RKV_OK)
            s = CLIFF_CUDA(cudaEventRecord(w->ends[i + 1], w->stream));
        if (s == RKV_OK && i == 0) {
            s = CLIFF_CUDA(cudaEventSynchronize(w->ends[0]));
            from_ns = now_ns();
        }
    }
    if (s == RKV_OK)
        s = CLIFF_CUDA(cudaStreamSynchronize(w->stream));
    out->wall_ns = (double)(now_ns() - from_ns) / steps;
    return s == RKV_OK ? read_clock(w, steps, out) : s;
}

static double per_step(uint64_t before, uint64_t after, uint32_t steps)
{
    return (double)(after - before) / steps;
}

/* What a step reads: all of it, or what the sliding mask leaves. */
static uint64_t kv_bytes(const cliff_cuda_world *w)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < w->setup.shape->n_sites; i++) {
        const cliff_site *site = &w->setup.shape->sites[i];
        const uint64_t seen =
            site->sliding_cells && site->sliding_cells < w->n_cells ? site->sliding_cells : w->n_cells;
        bytes += seen * cliff_cell_bytes(w->setup.shape, i);
    }
    return bytes;
}

static rkv_status counted_steps(cliff_cuda_world *w, uint32_t steps, cliff_result *out)
{
    rkv_cache_stats a = {.struct_size = sizeof a}, b = a;
    rkv_cache_info info = {.struct_size = sizeof info};
    rkv_status s = rkv_cache_stats_get(w->cache, &a);
    if (s == RKV_OK)
        s = clocked_steps(w, steps, out);
    if (s == RKV_OK)
        s = rkv_cache_stats_get(w->cache, &b);
    if (s == RKV_OK)
        s = rkv_cache_info_get(w->cache, &info);
    out->copies = per_step(a.copies_in, b.copies_in, steps);
    out->launches = per_step(a.launches, b.launches, steps);
    out->extra_launches = per_step(a.extra_launches, b.extra_launches, steps);
    out->host_waits = per_step(a.host_waits, b.host_waits, steps);
    out->tail_bytes = (b.streamed_bytes - a.streamed_bytes) / steps;
    out->list_bytes = b.last_step_list_bytes;
    out->cpu_bytes = per_step(a.cpu_bytes, b.cpu_bytes, steps);
    out->cpu_ns = per_step(a.cpu_ns, b.cpu_ns, steps);
    out->run_ahead_bytes = b.run_ahead_bytes;
    out->ring_bytes = info.ring_bytes;
    out->context_cells = w->n_cells;
    out->kv_bytes = kv_bytes(w);
    return s;
}

/* The host's time for a step that finds the GPU idle, so that it never waits. */
static rkv_status alone_steps(cliff_cuda_world *w, cliff_result *out)
{
    int64_t all[ALONE_STEPS], products[ALONE_STEPS];
    rkv_status s = RKV_OK;
    for (uint32_t i = 0; i < ALONE_STEPS && s == RKV_OK; i++) {
        w->products_host_ns = 0;
        const int64_t from_ns = now_ns();
        s = decode_step(w);
        all[i] = now_ns() - from_ns;
        products[i] = w->products_host_ns;
        if (s == RKV_OK)
            s = CLIFF_CUDA(cudaDeviceSynchronize());
    }
    if (s != RKV_OK)
        return s;
    qsort(all, ALONE_STEPS, sizeof *all, by_value);
    qsort(products, ALONE_STEPS, sizeof *products, by_value);
    out->issue_ns = (double)all[ALONE_STEPS / 2];
    out->products_issue_ns = (double)products[ALONE_STEPS / 2];
    return RKV_OK;
}

static rkv_status probed_steps(cliff_cuda_world *w, cliff_result *out)
{
    cliff_probed probed;
    rkv_status s = cliff_probe_start();
    for (uint32_t i = 0; i < PROBED_STEPS && s == RKV_OK; i++)
        s = decode_step(w);
    const rkv_status stopped = cliff_probe_stop(&probed);
    for (uint32_t i = 0; i < CLIFF_PROBES && probed.is_part; i++)
        probed.ns[i] = NAN; /* a part of the operations is no figure */
    out->store_ns = probed.ns[CLIFF_PROBE_STORE] / PROBED_STEPS;
    out->attend_ns = probed.ns[CLIFF_PROBE_ATTEND] / PROBED_STEPS;
    out->merge_ns = probed.ns[CLIFF_PROBE_MERGE] / PROBED_STEPS;
    out->tables_ns = probed.ns[CLIFF_PROBE_TABLES] / PROBED_STEPS;
    out->link_busy_ns = out->copy_in_ns = probed.ns[CLIFF_PROBE_IN] / PROBED_STEPS;
    out->copy_in_bytes_per_s =
        probed.count[CLIFF_PROBE_IN] ? (double)probed.bytes[CLIFF_PROBE_IN] * 1e9 / probed.ns[CLIFF_PROBE_IN] : 0;
    return s == RKV_OK ? stopped : s;
}

rkv_status cliff_cuda_world_measure(cliff_cuda_world *w, uint32_t warm, uint32_t steps, cliff_result *out)
{
    rkv_status s = RKV_OK;
    *out = (cliff_result){0};
    const uint32_t most = cliff_most_steps(w->setup.shape);
    if (warm + steps + CLIFF_CUDA_OTHER_STEPS > most || steps == 0)
        return rkvi_fail(RKV_E_ARGUMENT, "%u warm, %u measured and %u other steps; at most %u in all, one measured",
                         warm, steps, CLIFF_CUDA_OTHER_STEPS, most);
    for (uint32_t i = 0; i < warm && s == RKV_OK; i++)
        s = decode_step(w);
    if (s == RKV_OK)
        s = counted_steps(w, steps, out);
    if (s == RKV_OK)
        s = alone_steps(w, out);
    return s == RKV_OK ? probed_steps(w, out) : s;
}
