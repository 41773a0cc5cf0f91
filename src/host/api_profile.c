/* SPDX-License-Identifier: MIT
 *
 * api_profile.c: exported functions of profiles and advice.
 */
#include "api_internal.h"
#include "profile_advise.h"
#include "step_profile.h"

#include <stdlib.h>
#include <string.h>

static const rkvi_copy_spec mass_spec = {"rkv_profile_mass", sizeof(rkv_profile_mass),
                                         offsetof(rkv_profile_mass, recent)};
static const rkvi_copy_spec params_spec = {"rkv_advise_params", sizeof(rkv_advise_params),
                                           offsetof(rkv_advise_params, link_bytes_per_s)};
static const rkvi_copy_spec advice_spec = {"rkv_advice", sizeof(rkv_advice),
                                           offsetof(rkv_advice, streamed_bytes)};
static const rkvi_copy_spec sum_spec = {"rkv_advice_sum", sizeof(rkv_advice_sum),
                                        offsetof(rkv_advice_sum, streamed_bytes)};

static rkv_status enter_idle(rkv_cache *cache)
{
    rkv_status s = rkvi_api_enter(cache);
    if (s != RKV_OK)
        return s;
    s = rkvi_api_need_no_step(cache);
    if (s != RKV_OK)
        rkvi_handle_unlock(cache);
    return s;
}

rkv_status rkv_profile_start(rkv_cache *cache, uint32_t every)
{
    rkv_status s = enter_idle(cache);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    s = rkvi_profile_runs(cache) ? rkvi_fail(RKV_E_STATE, "a profile runs; stop it before the next one")
                                 : rkvi_profile_start(cache, every);
    return rkvi_api_leave(cache, __func__, s);
}

rkv_status rkv_profile_stop(rkv_cache *cache)
{
    rkv_status s = enter_idle(cache);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    s = rkvi_profile_runs(cache)
            ? rkvi_profile_stop(cache)
            : rkvi_fail(RKV_E_STATE, "no profile runs; call rkv_profile_start first");
    return rkvi_api_leave(cache, __func__, s);
}

static rkv_status check_head(const rkv_cache *cache, uint32_t kv_layer, uint32_t kv_head)
{
    const rkv_status s = rkvi_api_need_layer(cache, kv_layer);
    if (s != RKV_OK)
        return s;
    const uint32_t n = rkvi_handle_config(cache)->layers[kv_layer].geom.n_heads;
    if (kv_head >= n && kv_head != RKV_PROFILE_ALL_HEADS)
        return rkvi_fail(RKV_E_ARGUMENT, "kv_head is %u, but KV layer %u has %u", kv_head, kv_layer, n);
    return RKV_OK;
}

rkv_status rkv_profile_mass_get(rkv_cache *cache, uint32_t kv_layer, uint32_t kv_head,
                                rkv_profile_mass *out_mass)
{
    rkv_profile_mass mass = {.struct_size = sizeof mass};
    const rkvi_profile *p = NULL;
    rkv_status s = rkvi_copy_out_check(&mass_spec, out_mass);
    if (s == RKV_OK)
        s = enter_idle(cache);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    s = check_head(cache, kv_layer, kv_head);
    if (s == RKV_OK)
        s = rkvi_profile_sums(cache, &p);
    if (s == RKV_OK && p)
        rkvi_profile_shares(p, kv_layer, kv_head, &mass);
    if (s == RKV_OK)
        rkvi_copy_out(&mass_spec, &mass, out_mass);
    return rkvi_api_leave(cache, __func__, s);
}

/* Defaults, and sizes whose products fit. */
static rkv_status check_advise(const rkvi_config *cfg, rkv_advise_params *p)
{
    uint64_t all = 0, bytes;
    for (uint32_t i = 0; i < cfg->n_sites; i++)
        if (!rkvi_add(all, cfg->layers[cfg->sites[i].kv_layer].geom.bytes / cfg->tile_cells, &all))
            return rkvi_fail(RKV_E_OVERFLOW, "the sites' cells exceed 2^62 bytes");
    if (p->context_cells == 0)
        return rkvi_fail(RKV_E_ARGUMENT, "context_cells is 0; it must be given");
    if (!rkvi_mul(p->context_cells, all, &bytes) || p->device_bytes > RKVI_SIZE_MAX)
        return rkvi_fail(RKV_E_OVERFLOW,
                         "context_cells %llu or device_bytes %llu is too large: 2^62 bytes at most",
                         (unsigned long long)p->context_cells, (unsigned long long)p->device_bytes);
    if ((p->link_bytes_per_s > RKVI_SIZE_MAX && p->link_bytes_per_s != RKV_LINK_UNKNOWN) || p->step_ns > RKVI_SIZE_MAX)
        return rkvi_fail(RKV_E_OVERFLOW,
                         "link_bytes_per_s is %llu, step_ns %llu; at most 2^62 each, or RKV_LINK_UNKNOWN",
                         (unsigned long long)p->link_bytes_per_s, (unsigned long long)p->step_ns);
    if (p->link_bytes_per_s == RKV_LINK_UNKNOWN)
        p->link_bytes_per_s = 0;
    else if (p->link_bytes_per_s == 0)
        p->link_bytes_per_s = cfg->link_bytes_per_s;
    p->step_ns = p->step_ns ? p->step_ns : cfg->step_ns;
    return RKV_OK;
}

static rkv_status advise(rkv_cache *cache, const rkv_advise_params *params, rkv_advice *list,
                         rkv_advice_sum *sum)
{
    rkv_advise_params p;
    const rkvi_profile *profile = NULL;
    rkv_status s = rkvi_copy_in(&params_spec, params, &p);
    if (s == RKV_OK)
        s = check_advise(rkvi_handle_config(cache), &p);
    if (s == RKV_OK)
        s = rkvi_profile_sums(cache, &profile);
    return s == RKV_OK ? rkvi_advise(rkvi_handle_config(cache), profile, &p, list, sum) : s;
}

rkv_status rkv_profile_advise(rkv_cache *cache, const rkv_advise_params *params, rkv_advice *out_advice,
                              rkv_advice_sum *out_sum)
{
    rkv_advice_sum sum = {.struct_size = sizeof sum};
    rkv_status s = rkvi_copy_out_check(&advice_spec, out_advice);
    if (s == RKV_OK && out_sum)
        s = rkvi_copy_out_check(&sum_spec, out_sum);
    if (s == RKV_OK)
        s = enter_idle(cache);
    if (s != RKV_OK)
        return rkvi_api_told(__func__, s);
    const uint32_t n = rkvi_handle_config(cache)->n_layers, stride = out_advice->struct_size;
    rkv_advice *list = calloc(n, sizeof *list);
    s = list ? advise(cache, params, list, &sum)
             : rkvi_fail(RKV_E_HOST_MEMORY, "no memory for advice on %u KV layers", n);
    for (uint32_t i = 0; i < n && s == RKV_OK; i++) {
        void *out = (char *)out_advice + (size_t)i * stride; /* at any address */
        memcpy(out, &stride, sizeof stride);
        list[i].struct_size = sizeof *list;
        rkvi_copy_out(&advice_spec, &list[i], out);
    }
    if (s == RKV_OK && out_sum)
        rkvi_copy_out(&sum_spec, &sum, out_sum);
    free(list);
    return rkvi_api_leave(cache, __func__, s);
}
