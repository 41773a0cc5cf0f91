/* SPDX-License-Identifier: MIT
 *
 * cliff_shape.c: see cliff_shape.h.
 */
#include "cliff_shape.h"

#include "geometry.h"

#include <stdio.h>
#include <string.h>

#define NS_PER_MS 1000000

static void fill(cliff_shape *s, const char *name, uint32_t n_sites, int64_t compute_ns)
{
    memset(s, 0, sizeof *s);
    snprintf(s->name, sizeof s->name, "%s", name);
    s->n_sites = n_sites;
    s->compute_ns = compute_ns;
}

uint64_t cliff_cell_bytes(const cliff_shape *shape, uint32_t site)
{
    const cliff_site *s = &shape->sites[site];
    const rkv_type type = shape->kv_type ? shape->kv_type : RKV_TYPE_F16;
    rkvi_geom g = {.n_heads = s->n_kv_heads, .dk = s->head_dim, .dv = s->head_dim, .type_k = type, .type_v = type,
                   .k_scale = 1, .v_scale = 1, .tile_cells = cliff_tile_cells(shape)};
    return rkvi_geom_init(&g) == RKV_OK ? g.bytes / g.tile_cells : 0;
}

bool cliff_shape_named(const char *name, cliff_shape *out)
{
    if (strcmp(name, "qwen14b") == 0) {
        fill(out, name, 48, 7 * NS_PER_MS);
        out->hidden = 5120;
        out->feed_forward = 13824;
        out->vocabulary = 152064;
        for (uint32_t i = 0; i < out->n_sites; i++)
            out->sites[i] = (cliff_site){.n_kv_heads = 8, .head_dim = 128, .n_q_heads = 40, .streams = true};
        return true;
    }
    if (strcmp(name, "gemma-a4b") == 0) {
        fill(out, name, 30, 14 * NS_PER_MS);
        out->hidden = 2816;
        out->feed_forward = 7680; /* of the experts that a token takes: 3.8e9 parameters a step */
        out->vocabulary = 262144;
        for (uint32_t i = 0; i < out->n_sites; i++)
            out->sites[i] = i % 6 == 5
                                ? (cliff_site){.n_kv_heads = 2, .head_dim = 512, .n_q_heads = 16, .streams = true}
                                : (cliff_site){
                                      .n_kv_heads = 8, .head_dim = 256, .n_q_heads = 16, .sliding_cells = 1024};
        return true;
    }
    return false;
}

bool cliff_shape_custom(const cliff_custom *custom, cliff_shape *out)
{
    const uint64_t elements = (uint64_t)custom->n_kv_heads * custom->head_dim;
    if (custom->n_sites == 0 || custom->n_sites > CLIFF_SITES_MAX || custom->every == 0 ||
        custom->every > custom->n_sites || elements == 0 || elements % (8 * CLIFF_SCALE))
        return false;
    fill(out, "custom", custom->n_sites, 10 * NS_PER_MS);
    for (uint32_t i = 0; i < out->n_sites; i++)
        out->sites[i] = (cliff_site){.n_kv_heads = custom->n_kv_heads,
                                     .head_dim = custom->head_dim,
                                     .streams = i % custom->every == custom->every - 1};
    return true;
}
