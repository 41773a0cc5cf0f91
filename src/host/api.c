/* SPDX-License-Identifier: MIT
 *
 * api.c: exported functions of a cache.  Each takes the
 * handle's lock for its whole length.
 */
#include "api_internal.h"
#include "step_cells.h"
#include "step_link.h"

static const rkvi_copy_spec info_spec = {"rkv_cache_info", sizeof(rkv_cache_info),
                                         offsetof(rkv_cache_info, device_name)};
static const rkvi_copy_spec layer_spec = {"rkv_kv_layer_info", sizeof(rkv_kv_layer_info),
                                          offsetof(rkv_kv_layer_info, head_dim_k)};
static const rkvi_copy_spec site_spec = {"rkv_site_info", sizeof(rkv_site_info), offsetof(rkv_site_info, scale)};
static const rkvi_copy_spec stats_spec = {"rkv_cache_stats", sizeof(rkv_cache_stats),
                                          offsetof(rkv_cache_stats, steps)};

rkv_status rkvi_api_enter(const rkv_cache *cache)
{
    if (!cache)
        return rkvi_fail(RKV_E_ARGUMENT, "cache is NULL");
    rkvi_handle_lock(cache);
    const rkv_status s = rkvi_handle_alive(cache);
    if (s != RKV_OK)
        rkvi_handle_unlock(cache);
    return s;
}

rkv_status rkvi_api_leave(const rkv_cache *cache, const char *call, rkv_status s)
{
    rkvi_handle_unlock(cache);
    return rkvi_api_told(call, s);
}

rkv_status rkvi_api_need_no_step(const rkv_cache *cache)
{
    if (rkvi_import_is_open(cache))
        return rkvi_fail(RKV_E_STATE, "an import is open; end or abort it first");
    if (!rkvi_step_is_open(cache))
        return RKV_OK;
    return rkvi_fail(RKV_E_STATE, "a step is open; end or abort it first");
}

rkv_status rkvi_api_need_step(const rkv_cache *cache)
{
    if (rkvi_step_is_open(cache))
        return RKV_OK;
    return rkvi_fail(RKV_E_STATE, "no step is open; call rkv_step_begin first");
}

/* ------------------------------------------------------------ create, destroy */

/* What fits, or the status of what does not; on failure cfg holds nothing. */
static rkv_status make_config(const rkv_cache_params *p, const rkvi_machine *machine, rkvi_config *cfg)
{
    rkv_status fit = RKV_OK;
    const rkv_status s = rkvi_config_init(cfg, p, machine, &fit);
    if (s == RKV_OK && fit != RKV_OK)
        rkvi_config_free(cfg);
    return s == RKV_OK ? fit : s;
}

/* The link's rate is measured, where nobody gives it, and the sizes follow from it;
 * those without it remain where the others don't come out (with a smaller ring the
 * tables are larger). */
static rkv_status measure_link(const rkv_cache_params *p, const rkvi_machine *machine, rkvi_device *dev,
                               rkvi_config *cfg)
{
    rkvi_config measured;
    rkvi_machine m = *machine;
    rkv_status s = rkvi_step_link_measure_new(dev, cfg, &m.link_bytes_per_s);
    if (s != RKV_OK || m.link_bytes_per_s == 0)
        return s;
    m.link_is_measured = true;
    if (make_config(p, &m, &measured) == RKV_OK) {
        rkvi_config_free(cfg);
        *cfg = measured;
    } else {
        rkvi_error_clear();
    }
    return RKV_OK;
}

/* The configuration stays the caller's where it fails. */
static rkv_status create_with(const rkv_cache_params *p, const rkvi_machine *machine, rkvi_device *dev,
                              rkvi_config *cfg, rkv_cache **out)
{
    rkv_status s = rkvi_api_supported(dev, cfg);
    if (s == RKV_OK)
        s = measure_link(p, machine, dev, cfg);
    return s == RKV_OK ? rkvi_handle_create(cfg, dev, out) : s;
}

rkv_status rkvi_api_create_on(const rkv_cache_params *params, rkvi_device *dev, rkv_cache **out)
{
    rkvi_machine machine;
    rkvi_config cfg;
    rkv_status s = rkvi_api_machine_of(dev, &machine);
    if (s == RKV_OK)
        s = make_config(params, &machine, &cfg);
    if (s != RKV_OK)
        return s;
    s = create_with(params, &machine, dev, &cfg, out);
    if (s != RKV_OK)
        rkvi_config_free(&cfg);
    return s;
}

/* Parameters are checked before the executor is made: that starts threads. */
static rkv_status create(const rkv_cache_params *params, rkv_cache **out)
{
    rkv_cache_params p;
    rkvi_machine machine;
    rkvi_config cfg;
    rkvi_device *dev = NULL;
    rkv_status s = rkvi_api_params(params, &p);
    if (s == RKV_OK)
        s = rkvi_api_machine(&p, &machine);
    if (s == RKV_OK)
        s = make_config(&p, &machine, &cfg);
    if (s != RKV_OK)
        return s;
    s = rkvi_api_device_create(&p, &dev);
    if (s != RKV_OK)
        goto free_config;
    s = create_with(&p, &machine, dev, &cfg, out);
    if (s != RKV_OK)
        goto destroy_device;
    return RKV_OK;

destroy_device:
    rkvi_dev_destroy(dev);
free_config:
    rkvi_config_free(&cfg);
    return s;
}

rkv_status rkv_cache_create(const rkv_cache_params *params, rkv_cache **out_cache)
{
    rkv_cache *made = NULL;
    rkv_status s;
    if (!out_cache)
        s = rkvi_fail(RKV_E_ARGUMENT, "out_cache is NULL");
    else
        s = create(params, &made);
    if (s == RKV_OK)
        *out_cache = made;
    return rkvi_api_told(__func__, s);
}

void rkv_cache_destroy(rkv_cache *cache)
{
    if (cache)
        rkvi_handle_destroy(cache);
}

rkv_status rkv_cache_clear(rkv_cache *cache)
{
    rkv_status s = rkvi_api_enter(cache);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    s = rkvi_api_need_no_step(cache);
    if (s == RKV_OK)
        rkvi_handle_clear(cache);
    return rkvi_api_leave(cache, __func__, s);
}

/* ------------------------------------------------------------------- answers */

/* Each answer: enter, fill a whole struct, leave with as much of it as the
 * caller knows. */
static rkv_status enter_asked(const rkv_cache *cache, const rkvi_copy_spec *spec, const void *out, const char *call)
{
    rkv_status s = rkvi_copy_out_check(spec, out);
    if (s == RKV_OK)
        s = rkvi_api_enter(cache);
    return s == RKV_OK ? RKV_OK : rkvi_api_told(call, s);
}

static rkv_status leave_answered(const rkv_cache *cache, const rkvi_copy_spec *spec, const void *answer, void *out,
                                 const char *call)
{
    rkvi_copy_out(spec, answer, out);
    return rkvi_api_leave(cache, call, RKV_OK);
}

rkv_status rkv_cache_info_get(const rkv_cache *cache, rkv_cache_info *out_info)
{
    rkv_cache_info info = {.struct_size = sizeof info};
    const rkv_status s = enter_asked(cache, &info_spec, out_info, __func__);
    if (s != RKV_OK)
        return s;
    rkvi_handle_info(cache, &info);
    return leave_answered(cache, &info_spec, &info, out_info, __func__);
}

rkv_status rkv_kv_layer_info_get(const rkv_cache *cache, uint32_t kv_layer, rkv_kv_layer_info *out_info)
{
    rkv_kv_layer_info info = {.struct_size = sizeof info};
    rkv_status s = enter_asked(cache, &layer_spec, out_info, __func__);
    if (s != RKV_OK)
        return s;
    s = rkvi_api_need_layer(cache, kv_layer);
    if (s != RKV_OK)
        return rkvi_api_leave(cache, __func__, s);
    rkvi_handle_layer_info(cache, kv_layer, &info);
    return leave_answered(cache, &layer_spec, &info, out_info, __func__);
}

rkv_status rkv_site_info_get(const rkv_cache *cache, uint32_t site, rkv_site_info *out_info)
{
    rkv_site_info info = {.struct_size = sizeof info};
    rkv_status s = enter_asked(cache, &site_spec, out_info, __func__);
    if (s != RKV_OK)
        return s;
    const uint32_t n = rkvi_handle_config(cache)->n_sites;
    if (site >= n)
        return rkvi_api_leave(cache, __func__,
                              rkvi_fail(RKV_E_ARGUMENT, "site is %u, but there are %u sites", site, n));
    rkvi_handle_site_info(cache, site, &info);
    return leave_answered(cache, &site_spec, &info, out_info, __func__);
}

rkv_status rkv_cache_stats_get(const rkv_cache *cache, rkv_cache_stats *out_stats)
{
    rkv_cache_stats stats = {.struct_size = sizeof stats};
    const rkv_status s = enter_asked(cache, &stats_spec, out_stats, __func__);
    if (s != RKV_OK)
        return s;
    rkvi_handle_stats(cache, &stats);
    return leave_answered(cache, &stats_spec, &stats, out_stats, __func__);
}
