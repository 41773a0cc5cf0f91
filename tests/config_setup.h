/* SPDX-License-Identifier: MIT
 *
 * config_setup.h: parameters of two KV layers and three sites, to be changed.
 */
#ifndef RKVT_CONFIG_SETUP_H
#define RKVT_CONFIG_SETUP_H

#include "config.h"
#include "config_copy.h"
#include "diag.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

static const float some_frequencies[40];

/* Two KV layers; the second one is read by two sites. */
typedef struct setup {
    rkv_kv_layer_params layers[2];
    rkv_site_params sites[3];
    rkv_cache_params params;
    rkvi_machine machine;
} setup;

static void set_up(setup *s)
{
    memset(s, 0, sizeof *s);
    for (int i = 0; i < 2; i++)
        s->layers[i] = (rkv_kv_layer_params){.struct_size = sizeof s->layers[i],
                                             .n_kv_heads = 2,
                                             .head_dim_k = 64,
                                             .resident_cells = RKV_RESIDENT_NONE};
    for (uint32_t i = 0; i < 3; i++)
        s->sites[i] =
            (rkv_site_params){.struct_size = sizeof s->sites[i], .kv_layer = i > 0, .n_q_heads = 4};
    s->params = (rkv_cache_params){.struct_size = sizeof s->params,
                                   .device = RKV_DEVICE_HOST,
                                   .kv_layers = s->layers,
                                   .sites = s->sites,
                                   .n_kv_layers = 2,
                                   .n_sites = 3,
                                   .capacity_cells = 16384};
    s->machine =
        (rkvi_machine){.device_memory_bytes = 8 * GIB, .host_memory_bytes = 64 * GIB, .is_host = false};
}

static inline rkv_status init(const setup *s, rkvi_config *cfg, rkv_status *fit)
{
    *fit = 12345;
    return rkvi_config_init(cfg, &s->params, &s->machine, fit);
}

static inline void assert_init(const setup *s, rkvi_config *cfg)
{
    rkv_status fit;
    if (init(s, cfg, &fit) != RKV_OK || fit != RKV_OK)
        fail_msg("refused: %s", rkvi_error_text());
}

#endif
