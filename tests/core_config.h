/* SPDX-License-Identifier: MIT
 *
 * core_config.h: random but legal configurations for the tests of the core.
 */
#ifndef RKVT_CORE_CONFIG_H
#define RKVT_CORE_CONFIG_H

#include "config.h"
#include "core_random.h"
#include "diag.h"

enum { CONFIG_LAYERS_MAX = 4, CONFIG_SITES_MAX = 8 };

typedef struct core_params {
    rkv_kv_layer_params layers[CONFIG_LAYERS_MAX];
    rkv_site_params sites[CONFIG_SITES_MAX];
    rkv_cache_params p;
} core_params;

static inline void core_sites(core_params *c, bool masks)
{
    c->p.n_sites = between(c->p.n_kv_layers, CONFIG_SITES_MAX);
    for (uint32_t i = 0; i < c->p.n_sites; i++) {
        rkv_site_params *s = &c->sites[i];
        *s = (rkv_site_params){.struct_size = sizeof *s, .n_q_heads = 4};
        s->kv_layer = i < c->p.n_kv_layers ? i : below(c->p.n_kv_layers);
        if (masks && one_in(3)) {
            s->mask = one_in(2) ? RKV_MASK_SLIDING : RKV_MASK_CHUNKED;
            s->mask_width = between(1, 400);
        }
    }
}

/* Layers of one to three geometries; the caller sets capacity, rows, windows. */
static inline void core_params_init(core_params *c, bool masks)
{
    memset(c, 0, sizeof *c);
    c->p = (rkv_cache_params){.struct_size = sizeof c->p,
                              .device = RKV_DEVICE_HOST,
                              .kv_layers = c->layers,
                              .sites = c->sites,
                              .n_kv_layers = between(1, CONFIG_LAYERS_MAX)};
    for (uint32_t i = 0; i < c->p.n_kv_layers; i++)
        c->layers[i] = (rkv_kv_layer_params){.struct_size = sizeof c->layers[i],
                                             .n_kv_heads = one_in(3) ? 2 : 1,
                                             .head_dim_k = one_in(4) ? 256 : 64,
                                             .resident_cells = RKV_RESIDENT_NONE};
    core_sites(c, masks);
}

static inline uint64_t core_tile_layer_bytes(const core_params *c, uint32_t layer)
{
    rkvi_geom g = {.n_heads = c->layers[layer].n_kv_heads,
                   .dk = c->layers[layer].head_dim_k,
                   .dv = c->layers[layer].head_dim_k,
                   .type_k = RKV_TYPE_F16,
                   .type_v = RKV_TYPE_F16,
                   .k_scale = 1,
                   .v_scale = 1,
                   .tile_cells = c->p.tile_cells};
    assert_int_equal(rkvi_geom_init(&g), RKV_OK);
    return g.bytes;
}

static inline uint64_t core_largest_bytes(const core_params *c)
{
    uint64_t largest = 0;
    for (uint32_t i = 0; i < c->p.n_kv_layers; i++) {
        const uint64_t b = core_tile_layer_bytes(c, i);
        largest = b > largest ? b : largest;
    }
    return largest;
}

static inline void core_config_init(const core_params *c, rkvi_config *cfg)
{
    const rkvi_machine m = {.device_memory_bytes = (uint64_t)1 << 36, .host_memory_bytes = (uint64_t)1 << 38};
    rkv_status fit;
    if (rkvi_config_init(cfg, &c->p, &m, &fit) != RKV_OK || fit != RKV_OK)
        fail_msg("refused: %s", rkvi_error_text());
}

#endif
