/* SPDX-License-Identifier: MIT
 *
 * api_park.c: exported functions that move tile-layers between device and host.
 */
#include "api_internal.h"

static rkv_status enter_idle(const rkv_cache *cache, uint32_t sequence, const char *call)
{
    rkv_status s = rkvi_api_enter_change(cache, sequence, call);
    if (s != RKV_OK)
        return s;
    s = rkvi_api_need_accepted(cache, sequence); /* accept works on the device */
    return s == RKV_OK ? RKV_OK : rkvi_api_leave(cache, call, s);
}

rkv_status rkv_sequence_park(rkv_cache *cache, uint32_t sequence)
{
    const rkv_status s = enter_idle(cache, sequence, __func__);
    return s == RKV_OK ? rkvi_api_leave(cache, __func__, rkvi_handle_park(cache, sequence)) : s;
}

rkv_status rkv_sequence_fetch(rkv_cache *cache, uint32_t sequence)
{
    const rkv_status s = enter_idle(cache, sequence, __func__);
    return s == RKV_OK ? rkvi_api_leave(cache, __func__, rkvi_handle_fetch(cache, sequence)) : s;
}

rkv_status rkv_sequence_compact(rkv_cache *cache, uint32_t sequence)
{
    const rkv_status s = enter_idle(cache, sequence, __func__);
    return s == RKV_OK ? rkvi_api_leave(cache, __func__, rkvi_handle_compact(cache, sequence)) : s;
}

/* The budget in tiles; a KV layer without a tail can't get one. */
static rkv_status window_tiles(const rkvi_config *cfg, uint32_t layer, uint64_t cells, uint64_t *out)
{
    const rkvi_layer_config *l = &cfg->layers[layer];
    const uint64_t asked = rkvi_div_up(cells, cfg->tile_cells);
    *out = cells >= cfg->capacity_cells || asked > l->most_tiles ? l->most_tiles : asked;
    if (cells == RKV_RESIDENT_AUTO)
        *out = l->first_window_tiles;
    if (cells == RKV_RESIDENT_NONE)
        *out = 0;
    if (l->has_tail || *out == l->window_tiles)
        return RKV_OK;
    return rkvi_fail(RKV_E_UNSUPPORTED,
                     "KV layer %u was created with all of it resident, and so without a tail: its window stays; "
                     "create the cache with fewer resident_cells there",
                     layer);
}

static rkv_status set_residency(rkv_cache *cache, uint32_t layer, uint64_t cells)
{
    const rkvi_config *cfg = rkvi_handle_config(cache);
    uint64_t tiles = 0;
    rkv_status s = rkvi_api_need_layer(cache, layer);
    if (s != RKV_OK)
        return s;
    if (cells > RKVI_SIZE_MAX)
        return rkvi_fail(RKV_E_OVERFLOW, "resident_cells is %llu, which is above 2^62", (unsigned long long)cells);
    s = rkvi_api_need_no_step(cache);
    for (uint32_t i = 0; i < cfg->n_sequences && s == RKV_OK; i++)
        s = rkvi_api_need_accepted(cache, i);
    if (s == RKV_OK)
        s = window_tiles(cfg, layer, cells, &tiles);
    return s == RKV_OK ? rkvi_handle_set_window(cache, layer, tiles) : s;
}

rkv_status rkv_cache_set_residency(rkv_cache *cache, uint32_t kv_layer, uint64_t resident_cells)
{
    const rkv_status s = rkvi_api_enter(cache);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    return rkvi_api_leave(cache, __func__, set_residency(cache, kv_layer, resident_cells));
}
