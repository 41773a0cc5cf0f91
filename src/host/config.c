/* SPDX-License-Identifier: MIT
 *
 * config.c: parameters made effective.  See config.h and config_internal.h.
 */
#include "config_internal.h"

#include "config_copy.h"
#include "config_layers.h"
#include "diag.h"

#include <stdlib.h>
#include <string.h>

static const rkvi_copy_spec params_spec = {"rkv_cache_params", sizeof(rkv_cache_params),
                                           offsetof(rkv_cache_params, kv_layers)};

/* cudaMalloc rounds up to 2 MiB; malloc to nothing that counts. */
#define DEVICE_EXTENT_BYTES ((uint64_t)32 << 20)
#define HOST_EXTENT_BYTES ((uint64_t)16 << 10)

/* Nine tenths: the rest is for what we don't know of. */
static uint64_t limit_or_default(uint64_t asked, uint64_t memory_bytes)
{
    return asked ? asked : memory_bytes / 10 * 9;
}

rkvi_wish rkvi_config_wish(const rkvi_config *cfg, const rkv_cache_params *p, const rkvi_machine *m)
{
    return (rkvi_wish){
        .ring_bytes = p->ring_bytes,
        .copy_bytes = p->copy_bytes,
        .all_resident = m->is_host && p->device_limit_bytes == 0 && cfg->host.memory_bytes == 0,
    };
}

rkv_status rkvi_config_open(rkvi_config *cfg, const rkv_cache_params *params,
                            const rkvi_machine *machine, rkvi_wish *out_wish)
{
    rkv_cache_params p;
    memset(cfg, 0, sizeof *cfg);
    rkv_status s = rkvi_copy_in(&params_spec, params, &p);
    if (s == RKV_OK)
        s = rkvi_config_check(cfg, &p);
    if (s != RKV_OK) {
        rkvi_config_free(cfg);
        return s;
    }
    if (!cfg->link_bytes_per_s && !cfg->link_is_unknown) {
        cfg->link_bytes_per_s = machine->link_bytes_per_s;
        cfg->link_is_measured = machine->link_is_measured;
    }
    cfg->device_extent_bytes = machine->is_host ? HOST_EXTENT_BYTES : DEVICE_EXTENT_BYTES;
    cfg->device_limit_bytes = limit_or_default(p.device_limit_bytes, machine->device_memory_bytes);
    /* What an engine's allocator gives may be taken already, so not free now. */
    const uint64_t memory_bytes = p.device_allocator.alloc ? 0 : machine->device_memory_bytes;
    if (memory_bytes && cfg->device_limit_bytes > memory_bytes) {
        cfg->asked_device_limit_bytes = cfg->device_limit_bytes;
        cfg->device_limit_bytes = memory_bytes;
    }
    cfg->host_limit_bytes = limit_or_default(p.host_limit_bytes, machine->host_memory_bytes);
    *out_wish = rkvi_config_wish(cfg, &p, machine);
    return RKV_OK;
}

rkv_status rkvi_config_init(rkvi_config *cfg, const rkv_cache_params *params,
                            const rkvi_machine *machine, rkv_status *out_fit)
{
    rkvi_wish wish;
    rkvi_would_fit would;
    rkv_status s = rkvi_config_open(cfg, params, machine, &wish);
    if (s != RKV_OK)
        return s;
    s = rkvi_config_resolve(cfg, &wish);
    if (s != RKV_OK)
        goto free_config;
    rkvi_config_set_cpu(cfg);
    *out_fit = rkvi_config_fits(cfg);
    if (*out_fit == RKV_OK)
        return RKV_OK;
    s = rkvi_config_would_fit(cfg, &wish, &would);
    if (s != RKV_OK)
        goto free_config;
    *out_fit = rkvi_config_advise(cfg, *out_fit, &would);
    return RKV_OK;

free_config:
    rkvi_config_free(cfg);
    return s;
}

void rkvi_config_free(rkvi_config *cfg)
{
    free(cfg->layers);
    free(cfg->sites);
    rkvi_config_free_ropes(cfg);
    cfg->layers = NULL;
    cfg->sites = NULL;
}
