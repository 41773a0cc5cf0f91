/* SPDX-License-Identifier: MIT
 *
 * config_layers.c: see config_layers.h.
 */
#include "config_layers.h"

#include "config_copy.h"
#include "diag.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const rkvi_copy_spec layer_spec = {"kv_layers", sizeof(rkv_kv_layer_params),
                                          offsetof(rkv_kv_layer_params, head_dim_k)};
static const rkvi_copy_spec site_spec = {"sites", sizeof(rkv_site_params),
                                         offsetof(rkv_site_params, n_q_heads)};

/* Layers of one L share their spans: gives the layer the index of its L. */
static uint32_t leaf_class(rkvi_config *cfg, uint32_t leaf_cells)
{
    for (uint32_t c = 0; c < cfg->n_leaf_classes; c++)
        if (cfg->leaf_cells[c] == leaf_cells)
            return c;
    assert(cfg->n_leaf_classes < RKVI_LEAF_CLASSES_MAX); /* the table of geometry has three values */
    cfg->leaf_cells[cfg->n_leaf_classes] = leaf_cells;
    return cfg->n_leaf_classes++;
}

static rkv_status check_scale(uint32_t layer, const char *name, float scale)
{
    if (isfinite(scale) && scale >= 0)
        return RKV_OK;
    return rkvi_fail(RKV_E_ARGUMENT,
                     "kv_layers[%u]: %s is %g; it must be finite and positive, or 0 for 1", layer, name,
                     (double)scale);
}

static rkv_status check_layer(uint32_t i, const rkv_kv_layer_params *p)
{
    char name[48];
    if (p->n_kv_heads == 0 || p->n_kv_heads > RKVI_LAYERS_MAX)
        return rkvi_fail(RKV_E_ARGUMENT, "kv_layers[%u]: n_kv_heads is %u; it must be from 1 to %u", i,
                         p->n_kv_heads, RKVI_LAYERS_MAX);
    if (p->v_source != RKV_V_OWN)
        return rkvi_fail(
            RKV_E_UNSUPPORTED,
            "kv_layers[%u]: v_source is %u; only RKV_V_OWN (0) is built: V from a prefix of K, "
            "or none, is not",
            i, p->v_source);
    if (p->keep_all > 1)
        return rkvi_fail(RKV_E_ARGUMENT, "kv_layers[%u]: keep_all is %u; it is 0 or 1", i, p->keep_all);
    rkv_status s = check_scale(i, "k_scale", p->k_scale);
    if (s == RKV_OK)
        s = check_scale(i, "v_scale", p->v_scale);
    if (s != RKV_OK)
        return s;
    snprintf(name, sizeof name, "kv_layers[%u]: resident_cells", i);
    return rkvi_check_size(name, p->resident_cells);
}

static float scale_of(rkv_type type, float scale)
{
    return type == RKV_TYPE_FP8_E4M3 && scale > 0 ? scale : 1;
}

static rkv_status take_layer(rkvi_config *cfg, uint32_t i, const rkv_kv_layer_params *p)
{
    rkvi_layer_config *layer = &cfg->layers[i];
    rkvi_geom *g = &layer->geom;
    rkv_status s = check_layer(i, p);
    if (s != RKV_OK)
        return s;
    g->n_heads = p->n_kv_heads;
    g->dk = p->head_dim_k;
    g->dv = p->head_dim_v ? p->head_dim_v : p->head_dim_k;
    g->type_k = p->type_k ? p->type_k : RKV_TYPE_F16;
    g->type_v = p->type_v ? p->type_v : RKV_TYPE_F16;
    g->k_scale = scale_of(g->type_k, p->k_scale);
    g->v_scale = scale_of(g->type_v, p->v_scale);
    g->tile_cells = cfg->tile_cells;
    s = rkvi_geom_init(g);
    if (s != RKV_OK)
        return rkvi_fail(s, "kv_layers[%u]: %s", i, rkvi_error_text());
    layer->leaf_class = leaf_class(cfg, g->leaf_cells);
    layer->resident_cells = p->resident_cells;
    layer->frees = !p->keep_all; /* and no site that is causal: take_site */
    return rkvi_config_layer_rope(cfg, i, p);
}

rkv_status rkvi_config_take_layers(rkvi_config *cfg, const rkv_cache_params *p)
{
    rkv_status s = rkvi_check_count("n_kv_layers", p->n_kv_layers, 1, RKVI_LAYERS_MAX);
    if (s != RKV_OK)
        return s;
    cfg->n_layers = p->n_kv_layers;
    cfg->layers = calloc(cfg->n_layers, sizeof *cfg->layers);
    if (!cfg->layers)
        return rkvi_fail(RKV_E_HOST_MEMORY, "memory for %u KV layers was refused", cfg->n_layers);
    for (uint32_t i = 0; i < cfg->n_layers && s == RKV_OK; i++) {
        rkv_kv_layer_params layer;
        s = rkvi_copy_in_at(&layer_spec, p->kv_layers, i, &layer);
        if (s == RKV_OK)
            s = take_layer(cfg, i, &layer);
    }
    return s;
}

static rkv_status check_mask(uint32_t i, const rkv_site_params *p)
{
    if (p->mask > RKV_MASK_CHUNKED)
        return rkvi_fail(RKV_E_ARGUMENT,
                         "sites[%u]: mask is %u; use RKV_MASK_CAUSAL (0), _SLIDING (1) or _CHUNKED (2)",
                         i, p->mask);
    if (p->mask == RKV_MASK_CAUSAL && p->mask_width)
        return rkvi_fail(RKV_E_ARGUMENT, "sites[%u]: mask_width is %llu, but a causal mask has none", i,
                         (unsigned long long)p->mask_width);
    if (p->mask != RKV_MASK_CAUSAL && p->mask_width == 0)
        return rkvi_fail(RKV_E_ARGUMENT, "sites[%u]: mask_width is 0; a %s mask needs at least 1 cell",
                         i, p->mask == RKV_MASK_SLIDING ? "sliding" : "chunked");
    return RKV_OK;
}

static rkv_status check_site(const rkvi_config *cfg, uint32_t i, const rkv_site_params *p)
{
    char name[48];
    if (p->kv_layer >= cfg->n_layers)
        return rkvi_fail(RKV_E_ARGUMENT, "sites[%u]: kv_layer is %u, but there are %u KV layers", i,
                         p->kv_layer, cfg->n_layers);
    const uint32_t n_kv = cfg->layers[p->kv_layer].geom.n_heads;
    if (p->n_q_heads == 0 || p->n_q_heads > RKVI_LAYERS_MAX || p->n_q_heads % n_kv)
        return rkvi_fail(RKV_E_ARGUMENT,
                         "sites[%u]: n_q_heads is %u; it must be a whole multiple of the KV layer's %u "
                         "n_kv_heads, at most %u",
                         i, p->n_q_heads, n_kv, RKVI_LAYERS_MAX);
    if (!isfinite(p->scale))
        return rkvi_fail(RKV_E_ARGUMENT, "sites[%u]: scale is not finite; 0 means 1 / sqrt(head_dim_k)",
                         i);
    if (!isfinite(p->softcap) || p->softcap < 0)
        return rkvi_fail(RKV_E_ARGUMENT,
                         "sites[%u]: softcap is %g; it must be finite and positive, or 0 for none", i,
                         (double)p->softcap);
    rkv_status s = check_mask(i, p);
    if (s != RKV_OK)
        return s;
    snprintf(name, sizeof name, "sites[%u]: mask_width", i);
    s = rkvi_check_size(name, p->mask_width);
    if (s != RKV_OK)
        return s;
    snprintf(name, sizeof name, "sites[%u]: gap_ns", i);
    return rkvi_check_size(name, p->gap_ns);
}

/* The first site of a KV layer stores its new cells. */
static void take_site(rkvi_config *cfg, uint32_t i, const rkv_site_params *p)
{
    rkvi_layer_config *layer = &cfg->layers[p->kv_layer];
    rkvi_site_config *site = &cfg->sites[i];
    site->kv_layer = p->kv_layer;
    site->n_q_heads = p->n_q_heads;
    site->scale = p->scale != 0 ? p->scale : (float)(1 / sqrt((double)layer->geom.dk));
    site->softcap = p->softcap;
    site->mask.kind = p->mask;
    site->mask.width = (int64_t)p->mask_width;
    site->gap_ns = p->gap_ns;
    site->stores = layer->n_sites == 0;
    if (site->stores)
        layer->first_site = i;
    layer->frees = layer->frees && p->mask != RKV_MASK_CAUSAL;
    layer->last_site = i;
    layer->n_sites++;
}

static rkv_status check_layers_are_used(const rkvi_config *cfg)
{
    for (uint32_t i = 0; i < cfg->n_layers; i++)
        if (cfg->layers[i].n_sites == 0)
            return rkvi_fail(RKV_E_ARGUMENT,
                             "kv_layers[%u] has no site: nothing would store or read it", i);
    return RKV_OK;
}

rkv_status rkvi_config_take_sites(rkvi_config *cfg, const rkv_cache_params *p)
{
    rkv_status s = rkvi_check_count("n_sites", p->n_sites, 1, RKVI_LAYERS_MAX);
    if (s != RKV_OK)
        return s;
    cfg->n_sites = p->n_sites;
    cfg->sites = calloc(cfg->n_sites, sizeof *cfg->sites);
    if (!cfg->sites)
        return rkvi_fail(RKV_E_HOST_MEMORY, "memory for %u sites was refused", cfg->n_sites);
    for (uint32_t i = 0; i < cfg->n_sites; i++) {
        rkv_site_params site;
        s = rkvi_copy_in_at(&site_spec, p->sites, i, &site);
        if (s == RKV_OK)
            s = check_site(cfg, i, &site);
        if (s != RKV_OK)
            return s;
        take_site(cfg, i, &site);
    }
    return check_layers_are_used(cfg);
}
