/* step_handle.c: making, destroying and asking a handle. */
#include "step_cells.h"
#include "step_profile.h"
#include "step_types.h"

#include "cache_unseen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IN_EVENTS 1024u /* more than copies the ring holds, so that a mark is itself */
#define EVENTS 256u

/* ------------------------------------------------------------------- memory */

rkv_status rkvi_allocator_take(rkvi_device *dev, const rkv_allocator *a, uint64_t bytes, void **out)
{
    if (!a->alloc)
        return rkvi_dev(mem_alloc, dev, bytes, out);
    *out = a->alloc(a->user, bytes);
    return *out ? RKV_OK
                : rkvi_fail(RKV_E_DEVICE_MEMORY, "the engine's device allocator refused %llu bytes",
                            (unsigned long long)bytes);
}

void rkvi_allocator_give(rkvi_device *dev, const rkv_allocator *a, void *ptr, uint64_t bytes)
{
    if (a->free)
        a->free(a->user, ptr, bytes);
    else if (!a->alloc)
        rkvi_dev(mem_free, dev, ptr);
}

rkv_status rkvi_handle_alloc(rkv_cache *h, uint64_t bytes, void **out)
{
    if (bytes == 0)
        return RKV_OK;
    const rkv_status s = rkvi_allocator_take(h->dev, &h->cfg.allocator, bytes, out);
    if (s == RKV_OK)
        h->device_bytes += bytes;
    return s;
}

void rkvi_handle_free(rkv_cache *h, void *ptr, uint64_t bytes)
{
    if (!ptr)
        return;
    rkvi_allocator_give(h->dev, &h->cfg.allocator, ptr, bytes);
    h->device_bytes -= bytes;
}

rkv_status rkvi_handle_add_extent(rkv_cache *h, uint32_t layer)
{
    rkvi_pool *p = &h->cache.layers[layer].device;
    void *extent = NULL;
    rkv_status s = rkvi_handle_alloc(h, rkvi_pool_next_extent_bytes(p), &extent);
    if (s == RKV_OK)
        rkvi_pool_add(p, extent);
    return s;
}

void rkvi_handle_drop_extent(rkv_cache *h, uint32_t layer, uint32_t extent)
{
    rkvi_pool *p = &h->cache.layers[layer].device;
    rkvi_handle_free(h, p->extents[extent], p->counts[extent] * p->place_bytes);
    rkvi_pool_drop(p, extent);
}

static rkv_status alloc_places(rkv_cache *h)
{
    rkv_status s = RKV_OK;
    for (uint32_t l = 0; l < h->cfg.n_layers; l++)
        while (s == RKV_OK && rkvi_pool_next_extent_bytes(&h->cache.layers[l].device))
            s = rkvi_handle_add_extent(h, l);
    return s;
}

static void free_places(rkv_cache *h)
{
    for (uint32_t l = 0; h->cache.layers && l < h->cfg.n_layers; l++)
        for (uint32_t e = 0; e < h->cache.layers[l].device.n_extents; e++)
            if (h->cache.layers[l].device.counts[e])
                rkvi_handle_drop_extent(h, l, e);
}

static rkv_status alloc_tables(rkv_cache *h)
{
    for (uint32_t i = 0; i < h->cfg.steps_ahead; i++) {
        rkvi_mirror *m = &h->tables[i].mirror;
        void *device = NULL, *host = NULL;
        rkv_status s = rkvi_handle_alloc(h, h->cfg.upload_bytes, &device);
        m->device_addr = (uint64_t)(uintptr_t)device;
        if (s == RKV_OK)
            s = rkvi_dev(host_alloc, h->dev, h->cfg.upload_bytes, &host);
        m->host = host;
        m->bytes = h->cfg.upload_bytes;
        if (s != RKV_OK)
            return s;
    }
    return h->graphs ? rkvi_handle_alloc(h, h->cfg.table_bytes, &h->image.device) : RKV_OK;
}

static rkv_status alloc_device(rkv_cache *h)
{
    rkv_status s = rkvi_handle_alloc(h, h->cfg.ring_bytes, &h->ring_memory);
    if (s == RKV_OK)
        s = rkvi_handle_alloc(h, h->cfg.transit_bytes, &h->transit_memory);
    if (s == RKV_OK)
        s = rkvi_handle_alloc(h, h->cfg.partial_bytes, &h->partials);
    if (s == RKV_OK)
        s = rkvi_handle_alloc(h, h->cfg.turned_bytes, (void **)&h->turned);
    return s == RKV_OK ? alloc_tables(h) : s;
}

static void free_device(rkv_cache *h)
{
    for (uint32_t i = 0; h->tables && i < h->cfg.steps_ahead; i++) {
        rkvi_handle_free(h, (void *)(uintptr_t)h->tables[i].mirror.device_addr, h->cfg.upload_bytes);
        if (h->tables[i].mirror.host)
            rkvi_dev(host_free, h->dev, h->tables[i].mirror.host);
    }
    rkvi_handle_free(h, h->image.device, h->cfg.table_bytes);
    rkvi_handle_free(h, h->ring_memory, h->cfg.ring_bytes);
    rkvi_handle_free(h, h->transit_memory, h->cfg.transit_bytes);
    rkvi_handle_free(h, h->partials, h->cfg.partial_bytes);
    rkvi_handle_free(h, h->turned, h->cfg.turned_bytes);
}

/* ------------------------------------------------------------------- create */

static rkv_status batch_room(rkvi_batch *b, const rkvi_config *cfg)
{
    b->entries = calloc(cfg->n_sequences, sizeof *b->entries);
    b->rows = calloc(cfg->max_rows, sizeof *b->rows);
    b->stored = calloc(cfg->max_rows, sizeof *b->stored);
    b->masks = calloc(cfg->max_rows, sizeof *b->masks);
    return b->entries && b->rows && b->stored && b->masks ? RKV_OK : RKV_E_HOST_MEMORY;
}

static void batch_free(rkvi_batch *b)
{
    free(b->entries);
    free(b->rows);
    free(b->stored);
    free(b->masks);
}

static rkv_status alloc_host(rkv_cache *h)
{
    const rkvi_config *cfg = &h->cfg;
    h->launch_room = 2 * cfg->n_sites * (cfg->capacity_tiles + 1);
    h->launch_room = h->launch_room < 65536 ? h->launch_room : 65536;
    h->tables = calloc(cfg->steps_ahead, sizeof *h->tables);
    h->launch_marks = calloc(h->launch_room, sizeof *h->launch_marks);
    if (h->tables && h->launch_marks && batch_room(&h->batch, cfg) == RKV_OK &&
        batch_room(&h->scratch, cfg) == RKV_OK && batch_room(&h->next, cfg) == RKV_OK)
        return RKV_OK;
    return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for a handle of %u sites and %u rows", cfg->n_sites, cfg->max_rows);
}

static rkv_status make_streams(rkv_cache *h)
{
    rkv_status s = rkvi_dev(stream_create, h->dev, "rollkv in", &h->in_stream);
    if (s == RKV_OK)
        s = rkvi_dev(stream_create, h->dev, "rollkv out", &h->out_stream);
    if (s == RKV_OK)
        s = rkvi_dev(stream_create, h->dev, "rollkv tables", &h->table_stream);
    if (s == RKV_OK)
        s = rkvi_timeline_init(&h->in, h->dev, IN_EVENTS);
    if (s == RKV_OK)
        s = rkvi_timeline_init(&h->out, h->dev, EVENTS);
    if (s == RKV_OK)
        s = rkvi_timeline_init(&h->compute, h->dev, IN_EVENTS);
    if (s == RKV_OK)
        s = rkvi_timeline_init(&h->uploads, h->dev, EVENTS);
    if (s == RKV_OK)
        s = rkvi_timeline_init(&h->ends, h->dev, 2 * h->cfg.steps_ahead);
    return s;
}

rkv_status rkvi_handle_make_ring(const rkv_cache *h, rkvi_ring *out)
{
    const rkvi_config *cfg = &h->cfg;
    uint64_t smallest = 0, tail_sites = 0;
    for (uint32_t s = 0; s < cfg->n_sites; s++) {
        const rkvi_layer_config *l = &cfg->layers[cfg->sites[s].kv_layer];
        if (!l->has_tail)
            continue;
        smallest = smallest == 0 || l->geom.bytes < smallest ? l->geom.bytes : smallest;
        tail_sites++;
    }
    if (cfg->ring_bytes == 0)
        return RKV_OK;
    rkv_status s =
        rkvi_ring_init(out, cfg->ring_bytes, cfg->copy_bytes, smallest, (uint32_t)(tail_sites * cfg->max_bases));
    out->laps = h->graphs;
    out->largest_bytes = cfg->largest_tile_layer_bytes;
    out->join = !(cfg->flags & RKV_FLAG_NO_JOIN) && cfg->mode == RKV_MODE_RING;
    return s;
}

int32_t rkvi_handle_tail_node(const rkvi_config *cfg, int32_t device_node)
{
    return cfg->numa > 0 ? cfg->numa - 1 : cfg->numa == RKV_NUMA_OFF ? -1 : device_node;
}

static rkv_status make_arena(rkv_cache *h, int32_t device_node)
{
    const rkvi_config *cfg = &h->cfg;
    rkvi_arena_class *classes = calloc(2 * (size_t)cfg->n_layers, sizeof *classes);
    uint32_t n = 0;
    if (!classes)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for %u KV layers", cfg->n_layers);
    for (uint32_t l = 0; l < cfg->n_layers; l++) {
        const rkvi_layer_config *lc = &cfg->layers[l];
        const uint64_t rest = lc->host_places ? lc->host_places % lc->extent_places : 0;
        if (lc->host_places)
            classes[n++] = (rkvi_arena_class){.extent_bytes = lc->extent_places * lc->geom.bytes,
                                              .n_extents = lc->host_places / lc->extent_places};
        if (rest) /* the last one */
            classes[n++] = (rkvi_arena_class){.extent_bytes = rest * lc->geom.bytes, .n_extents = 1};
    }
    const rkvi_arena_settings settings = {
        .dev = h->dev,
        .limit_bytes = cfg->host_limit_bytes,
        .total_bytes = cfg->host_tail_bytes,
        .classes = n ? classes : NULL,
        .n_classes = n,
        .numa_node = rkvi_handle_tail_node(cfg, device_node),
        .no_huge_pages = (cfg->flags & RKV_FLAG_NO_HUGE_PAGES) != 0,
        .progress = cfg->progress,
        .progress_user = cfg->progress_user,
    };
    rkv_status s = n ? rkvi_arena_create(&settings, &h->arena) : RKV_OK;
    free(classes);
    return s;
}

static rkv_status fill_handle(rkv_cache *h)
{
    rkvi_device_info info;
    rkv_status s = rkvi_dev(info, h->dev, &info);
    if (s == RKV_OK)
        s = alloc_host(h);
    if (s == RKV_OK && h->graphs)
        s = rkvi_step_image_init(h);
    if (s == RKV_OK)
        s = rkvi_step_steady_init(h);
    if (s == RKV_OK)
        s = rkvi_plan_init(&h->plan, &h->cfg);
    if (s == RKV_OK)
        s = rkvi_handle_make_ring(h, &h->ring);
    if (s == RKV_OK)
        s = make_streams(h);
    if (s == RKV_OK && h->graphs)
        s = rkvi_capture_init(h);
    if (s == RKV_OK)
        s = alloc_device(h);
    if (s == RKV_OK)
        s = make_arena(h, info.numa_node);
    if (s != RKV_OK)
        return s;
    /* A multiprocessor holds two blocks of the decode kernel; threads of the host even out. */
    h->target_runs = (info.is_host ? 4 : 2) * info.n_workers;
    h->wide_runs = info.is_host ? 0 : info.n_workers;
    const rkvi_cache_memory memory = {.transit = h->transit_memory};
    s = rkvi_cache_init(&h->cache, &h->cfg, &memory, h->arena);
    if (s == RKV_OK)
        s = alloc_places(h);
    return s == RKV_OK ? rkvi_step_cpu_first_share(h) : s;
}

static void release(rkv_cache *h)
{
    rkvi_profile_drop(h);
    rkvi_step_cpu_free(h);
    free_places(h);
    rkvi_cache_free(&h->cache);
    rkvi_arena_destroy(h->arena);
    free_device(h);
    rkvi_timeline_free(&h->in);
    rkvi_timeline_free(&h->out);
    rkvi_timeline_free(&h->compute);
    rkvi_timeline_free(&h->uploads);
    rkvi_timeline_free(&h->ends);
    void *const streams[] = {h->in_stream, h->out_stream, h->table_stream};
    for (int i = 0; i < 3; i++)
        if (streams[i])
            rkvi_dev(stream_destroy, h->dev, streams[i]);
    rkvi_ring_free(&h->ring);
    rkvi_plan_free(&h->plan);
    batch_free(&h->batch);
    batch_free(&h->scratch);
    batch_free(&h->next);
    free(h->tables);
    free(h->launch_marks);
    free(h->ranges);
    rkvi_step_image_free(h);
    rkvi_step_steady_free(h);
    rkvi_capture_free(h);
    if (h->lock_made)
        pthread_mutex_destroy(&h->lock);
    free(h);
}

rkv_status rkvi_handle_create(const rkvi_config *cfg, rkvi_device *dev, rkv_cache **out)
{
    rkv_cache *h = calloc(1, sizeof *h);
    if (!h)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for a handle of %zu bytes", sizeof *h);
    h->cfg = *cfg;
    h->dev = dev;
    h->graphs = (cfg->flags & RKV_FLAG_GRAPHS) != 0;
    h->lock_made = pthread_mutex_init(&h->lock, NULL) == 0;
    rkv_status s = h->lock_made ? fill_handle(h) : rkvi_fail(RKV_E_SYSTEM, "no mutex for a handle");
    if (s != RKV_OK) {
        release(h);
        return s;
    }
    *out = h;
    return RKV_OK;
}

/* A wait that failed has not waited: on a device that answers it is made again. */
static void settle(rkvi_timeline *t)
{
    if (rkvi_timeline_sync(t, t->last) != RKV_OK)
        rkvi_timeline_sync(t, t->last);
}

void rkvi_handle_destroy(rkv_cache *h)
{
    rkvi_device *dev = h->dev;
    rkvi_import_abort(h);
    /* Work in flight ends before its memory goes. */
    settle(&h->compute);
    settle(&h->in);
    settle(&h->out);
    settle(&h->uploads);
    rkvi_config cfg = h->cfg;
    release(h);
    rkvi_config_free(&cfg);
    rkvi_dev_destroy(dev);
}

/* ------------------------------------------------------------------ asking */

const rkvi_config *rkvi_handle_config(const rkv_cache *h)
{
    return &h->cfg;
}

rkvi_device *rkvi_handle_device(const rkv_cache *h)
{
    return h->dev;
}

rkvi_batch *rkvi_handle_batch(rkv_cache *h)
{
    return &h->scratch;
}

void rkvi_handle_lock(const rkv_cache *h)
{
    pthread_mutex_lock((pthread_mutex_t *)&h->lock);
}

void rkvi_handle_unlock(const rkv_cache *h)
{
    pthread_mutex_unlock((pthread_mutex_t *)&h->lock);
}

rkv_status rkvi_handle_alive(const rkv_cache *h)
{
    if (h->poison == RKV_OK)
        return RKV_OK;
    return rkvi_fail(RKV_E_POISONED, "a device fault ended this cache, only destroy is left; it was: %s",
                     h->poison_text);
}

void rkvi_handle_info(const rkv_cache *h, rkv_cache_info *out)
{
    const rkvi_config *c = &h->cfg;
    rkvi_device_info info;
    rkvi_arena_counters arena = {.numa_node = -1};
    if (rkvi_dev(info, h->dev, &info) == RKV_OK) {
        memcpy(out->device_name, info.name, sizeof out->device_name);
        memcpy(out->kernels, info.kernels, sizeof out->kernels);
        out->n_workers = info.n_workers;
    }
    if (h->arena)
        rkvi_arena_counters_get(h->arena, &arena);
    out->device = c->device;
    out->n_kv_layers = c->n_layers;
    out->n_sites = c->n_sites;
    out->n_sequences = c->n_sequences;
    out->max_rows = c->max_rows;
    out->tile_cells = c->tile_cells;
    out->draft_rows = c->draft_rows;
    out->steps_ahead = c->steps_ahead;
    out->mode = c->mode;
    out->flags = c->flags;
    out->numa_node = arena.numa_node;
    out->capacity_cells = c->capacity_cells;
    out->capacity_tiles = c->capacity_tiles;
    out->ring_bytes = c->ring_bytes;
    out->copy_bytes = c->copy_bytes;
    out->device_limit_bytes = c->device_limit_bytes;
    out->host_limit_bytes = c->host_limit_bytes;
    out->device_bytes = h->device_bytes;
    out->device_window_bytes = c->window_bytes;
    out->device_ring_bytes = c->ring_bytes;
    out->device_active_bytes = c->active_bytes;
    out->device_transit_bytes = c->transit_bytes;
    out->device_workspace_bytes = c->partial_bytes + c->turned_bytes + c->device_table_bytes;
    out->link_bytes_per_s = c->link_bytes_per_s;
    out->link_is_measured = c->link_is_measured;
    if (h->cpu.team)
        snprintf(out->cpu_kernels, sizeof out->cpu_kernels, "%s", h->cpu.ops.name);
    out->ring_rule_bytes = c->ring_rule_bytes;
    out->step_ns = c->step_ns;
    out->n_rope_frequencies = rkvi_config_rope(c).n;
    out->rope_pairing = rkvi_config_rope(c).pairing;
    out->max_turns = c->max_turns;
    out->extra_segments = c->extra_segments;
    out->active_sequences = c->active_sequences;
    out->cpu_threads = c->cpu_threads;
    out->cpu_share = c->cpu_share;
    out->cpu_free_bytes = c->cpu_free_bytes;
    out->cpu_step_ns = c->cpu_rates.step_ns;
    out->cpu_link_bytes_per_s = c->cpu_rates.link_bytes_per_s;
    out->cpu_beside_bytes_per_s = c->cpu_rates.beside_bytes_per_s;
    out->cpu_bytes_per_s = c->cpu_rates.cpu_bytes_per_s;
    out->cpu_handover_ns = c->cpu_rates.handover_ns;
    out->cpu_is_chosen = c->cpu_is_chosen;
    out->cpu_wait_ns = c->cpu_wait_ns;
    out->host_link_bytes_per_s = c->host.link_bytes_per_s;
    out->host_copy_cost_ns = c->host.copy_cost_ns;
    out->host_copy_latency_ns = c->host.copy_latency_ns;
}

void rkvi_handle_site_info(const rkv_cache *h, uint32_t site, rkv_site_info *out)
{
    const rkvi_site_config *s = &h->cfg.sites[site];
    out->kv_layer = s->kv_layer;
    out->n_q_heads = s->n_q_heads;
    out->is_storing = s->stores;
    out->scale = s->scale;
    out->softcap = s->softcap;
    out->mask = s->mask.kind;
    out->mask_width = (uint64_t)s->mask.width;
    out->gap_ns = s->gap_ns;
    out->cpu_share = s->cpu_share;
    out->cpu_bytes_per_s = s->cpu_bytes_per_s;
}

void rkvi_handle_layer_info(const rkv_cache *h, uint32_t layer, rkv_kv_layer_info *out)
{
    const rkvi_layer_config *l = &h->cfg.layers[layer];
    const rkvi_layer_state *s = &h->cache.layers[layer];
    out->n_kv_heads = l->geom.n_heads;
    out->head_dim_k = l->geom.dk;
    out->head_dim_v = l->geom.dv;
    out->type_k = l->geom.type_k;
    out->type_v = l->geom.type_v;
    out->k_scale = l->geom.k_scale;
    out->v_scale = l->geom.v_scale;
    out->leaf_cells = l->geom.leaf_cells;
    out->resident_cells = l->window_tiles * h->cfg.tile_cells;
    out->tile_layer_device_bytes = out->tile_layer_host_bytes = l->geom.bytes;
    out->window_tiles = s->n_window;
    out->tail_tiles = s->n_tail;
    out->most_tiles = l->most_tiles;
    out->freed_tiles = s->n_freed;
    out->has_tail = l->has_tail;
    out->keep_all = !l->frees;
}

void rkvi_handle_stats(const rkv_cache *h, rkv_cache_stats *out)
{
    rkvi_arena_counters arena = {0};
    if (h->arena)
        rkvi_arena_counters_get(h->arena, &arena);
    *out = h->stats;
    rkvi_step_cpu_stats(h, out);
    out->waits = h->in.n_waits + h->out.n_waits + h->compute.n_waits + h->uploads.n_waits;
    out->predicted_right = h->ring.predicted_right;
    out->predicted_wrong = h->ring.predicted_wrong;
    out->discarded_bytes = h->ring.discarded_bytes;
    rkvi_cell_count cells;
    rkvi_cache_count_cells(&((rkv_cache *)h)->cache, &cells); /* under the lock: its scratch is ours */
    out->shared_tiles = cells.shared_tiles;
    out->used_tiles = h->cfg.capacity_tiles - h->cache.tiles.n_free;
    out->stored_cells = cells.stored;
    out->dead_cells = cells.stored - cells.covered;
    out->pinned_bytes = arena.pinned_bytes;
    out->unpinned_bytes = arena.unpinned_bytes;
    for (uint32_t l = 0; l < h->cfg.n_layers; l++) {
        const rkvi_pool *p = &h->cache.layers[l].host;
        out->free_tail_places += p->n_free;
        out->used_tail_places += p->n_places - p->n_free;
        const rkvi_pool *d = &h->cache.layers[l].device;
        out->free_device_places += d->n_free;
        out->used_device_places += d->n_places - d->n_free;
        out->used_device_place_bytes += (d->n_places - d->n_free) * d->place_bytes;
    }
    for (uint32_t q = 0; q < h->cfg.n_sequences; q++)
        out->parked_sequences += h->cache.parked[q];
}

void rkvi_handle_sequence(const rkv_cache *h, uint32_t sequence, rkv_sequence_state *out)
{
    const rkvi_seq *s = &h->cache.seqs[sequence];
    out->n_tiles = s->n_tiles;
    out->n_cells = s->n_cells - s->n_tree;
    out->pos_begin = out->n_cells ? rkvi_seq_pos_begin(s) : 0;
    out->pos_end = rkvi_seq_accepted_end(s);
    out->n_segments = s->n_segments;
    out->n_tree_cells = s->n_tree;
}

uint32_t rkvi_handle_sequence_tree(const rkv_cache *h, uint32_t sequence, const int64_t **out_pos, int64_t *out_end)
{
    const rkvi_seq *s = &h->cache.seqs[sequence];
    if (out_pos)
        *out_pos = s->tree_pos;
    if (out_end)
        *out_end = rkvi_seq_accepted_end(s);
    return s->n_tree;
}

int64_t rkvi_handle_first_pos(const rkv_cache *h, uint32_t sequence, int64_t from, int64_t to)
{
    uint32_t at = 0;
    int64_t a, z;
    while (rkvi_seq_range(&h->cache.seqs[sequence], &at, &a, &z))
        if (z > from)
            return a >= to ? to : a > from ? a : from;
    return to;
}

uint64_t rkvi_handle_ranges(const rkv_cache *h, uint32_t sequence, rkv_pos_range *out, uint64_t room)
{
    const rkvi_seq s = rkvi_seq_before(&h->cache.seqs[sequence], h->cache.seqs[sequence].n_tree);
    rkv_pos_range r;
    uint32_t at = 0;
    uint64_t n = 0;
    for (; rkvi_seq_range(&s, &at, &r.from, &r.to); n++)
        if (n < room)
            out[n] = r;
    return n;
}

void rkvi_handle_clear(rkv_cache *h)
{
    for (uint32_t i = 0; i < h->cfg.n_sequences; i++)
        rkvi_cache_sequence_remove(&h->cache, i, INT64_MIN, INT64_MAX);
}

rkv_status rkvi_handle_can_remove(const rkv_cache *h, uint32_t sequence, int64_t from, int64_t to)
{
    const bool is_end = to >= rkvi_seq_pos_end(&h->cache.seqs[sequence]) && from < to;
    return is_end ? rkvi_cache_can_end(&h->cache, sequence, from) : RKV_OK;
}

rkv_status rkvi_handle_sequence_remove(rkv_cache *h, uint32_t sequence, int64_t from, int64_t to)
{
    return rkvi_cache_sequence_remove(&h->cache, sequence, from, to);
}

rkv_status rkvi_handle_sequence_share(rkv_cache *h, uint32_t dst, uint32_t src, int64_t from, int64_t to)
{
    rkv_status s = rkvi_cache_can_share(&h->cache, dst, src, from, to);
    return s == RKV_OK ? rkvi_cache_sequence_share(&h->cache, dst, src, from, to) : s;
}

rkv_status rkvi_handle_sequence_can_shift(const rkv_cache *h, uint32_t sequence, int64_t from, int64_t to,
                                          int64_t delta)
{
    return rkvi_cache_sequence_can_shift(&h->cache, sequence, from, to, delta);
}

rkv_status rkvi_handle_sequence_shift(rkv_cache *h, uint32_t sequence, int64_t from, int64_t to, int64_t delta)
{
    return rkvi_cache_sequence_shift(&h->cache, sequence, from, to, delta);
}

void rkvi_check_reset(rkv_cache *h)
{
    rkvi_cache_check_reset(&h->cache);
}

rkv_status rkvi_check_add(rkv_cache *h, const rkvi_batch *batch)
{
    return rkvi_cache_check_add(&h->cache, batch);
}
