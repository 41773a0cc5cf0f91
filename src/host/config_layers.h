/* SPDX-License-Identifier: MIT
 *
 * config_layers.h: kv_layers[] and sites[], copied in, checked and related.
 */
#ifndef RKVI_CONFIG_LAYERS_H
#define RKVI_CONFIG_LAYERS_H

#include "config_internal.h"

#define RKVI_LAYERS_MAX 65536u /* KV layers, and sites: far above any model, below a wrapped negative */

rkv_status rkvi_check_size(const char *name, uint64_t value);
rkv_status rkvi_check_count(const char *name, uint32_t value, uint32_t least, uint32_t most);

rkv_status rkvi_config_take_layers(rkvi_config *cfg, const rkv_cache_params *p);
/* config_rope.c: the cache's frequencies, before the layers; then each layer's. */
rkv_status rkvi_config_take_rope(rkvi_config *cfg, const rkv_cache_params *p);
rkv_status rkvi_config_layer_rope(rkvi_config *cfg, uint32_t i, const rkv_kv_layer_params *p);
void rkvi_config_free_ropes(rkvi_config *cfg);
/* Needs the layers. */
rkv_status rkvi_config_take_sites(rkvi_config *cfg, const rkv_cache_params *p);

rkv_status rkvi_config_take_cpu(rkvi_config *cfg, const rkv_cache_params *p);
void rkvi_config_size_cpu(rkvi_config *cfg);
/* Once all sizes are known: the share, if it was given or follows from what was. */
void rkvi_config_set_cpu(rkvi_config *cfg);

#endif
