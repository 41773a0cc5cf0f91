/* step_residency.c: the window of a live cache, and the device memory behind it. */
#include "step_types.h"

#include "cache_park.h"
#include "cache_residency.h"

#include <stdlib.h>

/* -------------------------------------------------------------------- larger */

static rkv_status add_extent(rkv_cache *h, uint32_t layer)
{
    rkvi_pool *p = &h->cache.layers[layer].device;
    const uint64_t bytes = p->extent_places * p->place_bytes;
    if (bytes > h->cfg.device_limit_bytes || h->device_bytes > h->cfg.device_limit_bytes - bytes)
        return rkvi_fail(RKV_E_DEVICE_LIMIT,
                         "the device limit %llu does not hold %llu bytes more for KV layer %u: %llu are allocated; "
                         "ask for a smaller window, or make another KV layer's smaller first",
                         (unsigned long long)h->cfg.device_limit_bytes, (unsigned long long)bytes, layer,
                         (unsigned long long)h->device_bytes);
    rkvi_pool_set_max(p, p->n_places + (uint32_t)p->extent_places);
    return rkvi_handle_add_extent(h, layer);
}

/* Those that were not there before go again. */
static void drop_new(rkv_cache *h, uint32_t layer, const uint32_t *before)
{
    rkvi_pool *p = &h->cache.layers[layer].device;
    for (uint32_t e = 0; e < p->n_extents; e++) {
        if (before[e] || !p->counts[e])
            continue;
        for (uint32_t i = 0; i < p->counts[e]; i++)
            rkvi_pool_take_at(p, (uint32_t)(e * p->extent_places) + i);
        rkvi_handle_drop_extent(h, layer, e);
    }
}

static rkv_status grow(rkv_cache *h, uint32_t layer, uint64_t window_tiles)
{
    rkvi_pool *p = &h->cache.layers[layer].device;
    const uint64_t places = rkvi_config_device_places(&h->cfg.layers[layer], window_tiles);
    const uint32_t max = p->max_places;
    uint32_t *before = calloc(p->n_extents, sizeof *before);
    if (!before)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for a list of %u extents", p->n_extents);
    for (uint32_t e = 0; e < p->n_extents; e++)
        before[e] = p->counts[e];
    rkv_status s = RKV_OK;
    while (s == RKV_OK && p->n_places < places)
        s = add_extent(h, layer);
    if (s == RKV_OK) {
        rkvi_config_set_window(&h->cfg, layer, window_tiles, p->n_places);
    } else {
        drop_new(h, layer, before);
        rkvi_pool_set_max(p, max);
    }
    free(before);
    return s;
}

/* ------------------------------------------------------------------- smaller */

static rkv_status copy_places(rkv_cache *h, uint32_t layer, const rkvi_relocations *r)
{
    const rkvi_pool *p = &h->cache.layers[layer].device;
    rkv_status s = RKV_OK;
    for (uint32_t i = 0; i < r->n && s == RKV_OK; i++) {
        const rkvi_copy copy = {.direction = RKVI_D2D,
                                .dst = rkvi_pool_at(p, r->list[i].to),
                                .src = rkvi_pool_at(p, r->list[i].from),
                                .width_bytes = p->place_bytes,
                                .rows = 1};
        s = rkvi_dev(copy, h->dev, &copy, h->out_stream);
    }
    return s == RKV_OK ? rkvi_dev(stream_sync, h->dev, h->out_stream) : s;
}

/* Extents beyond what the new window needs go back to the engine. */
static rkv_status give_back(rkv_cache *h, uint32_t layer, uint64_t window_tiles)
{
    rkvi_pool *p = &h->cache.layers[layer].device;
    rkvi_relocations r;
    rkv_status s = rkvi_step_quiet(h);
    if (s == RKV_OK)
        s = rkvi_cache_relocate(&h->cache, layer, rkvi_config_device_places(&h->cfg.layers[layer], window_tiles), &r);
    if (s != RKV_OK)
        return s;
    s = copy_places(h, layer, &r);
    if (s == RKV_OK) {
        rkvi_cache_relocated(&h->cache, layer, &r);
        for (uint32_t e = 0; e < p->n_extents; e++)
            if (r.drops[e])
                rkvi_handle_drop_extent(h, layer, e);
        rkvi_pool_set_max(p, p->n_places);
        rkvi_config_set_window(&h->cfg, layer, window_tiles, p->n_places);
    } else {
        s = rkvi_step_failed(h, s);
        rkvi_cache_unrelocate(&h->cache, layer, &r);
    }
    rkvi_relocations_free(&r);
    return s;
}

static rkv_status shrink(rkv_cache *h, uint32_t layer, uint64_t window_tiles)
{
    rkvi_pool *host = &h->cache.layers[layer].host;
    const uint32_t max = host->max_places;
    const uint64_t places = rkvi_config_host_places(&h->cfg, &h->cfg.layers[layer], window_tiles);
    bool waited = false;
    if (places > max)
        rkvi_pool_set_max(host, (uint32_t)places);
    rkv_status s = rkvi_cache_demote(&h->cache, layer, window_tiles, &waited);
    h->stats.host_waits += waited;
    if (s == RKV_OK) {
        s = rkvi_step_leave(h, UINT32_MAX);
        if (s == RKV_OK) {
            rkvi_cache_enter_now(&h->cache);
            return give_back(h, layer, window_tiles);
        }
        s = rkvi_step_failed(h, s);
        rkvi_cache_unmove(&h->cache);
    }
    return s;
}

rkv_status rkvi_handle_set_window(rkv_cache *h, uint32_t layer, uint64_t window_tiles)
{
    const uint64_t now = h->cfg.layers[layer].window_tiles;
    rkv_status s = RKV_OK;
    h->cache.layout++;
    if (window_tiles > now)
        s = grow(h, layer, window_tiles);
    else if (window_tiles < now)
        s = shrink(h, layer, window_tiles);
    return rkvi_step_seen_status(h, s);
}
