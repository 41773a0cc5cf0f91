/* SPDX-License-Identifier: MIT
 *
 * config_internal.h: what the files of config share.
 *
 *   params -> config_check: checked, defaults        -> layers, sites, scalars
 *          -> config_sizes: sizes for given windows   (pure, repeatable)
 *          -> config_fit:   the AUTO windows, limits, advice, estimate
 *
 * Sizes are a pure function of what was checked and of a trial, so that the
 * search for what would fit runs the same code as the creation.
 */
#ifndef RKVI_CONFIG_INTERNAL_H
#define RKVI_CONFIG_INTERNAL_H

#include "config.h"

/* What sizes are worked out for. */
typedef struct rkvi_trial {
    uint64_t auto_tiles;   /* window of KV layers that left the choice to us, */
    bool masked_too;       /* those that free what their masks hide too: else they have all */
    bool has_window;       /* windows are overridden: */
    uint64_t window_tiles; /* for all KV layers that are not RESIDENT_ALL, or for all of them */
    bool for_all;
    bool smallest_ring;
    uint64_t most_ring_bytes; /* of a ring that is ours to choose; 0: no such bound */
} rkvi_trial;

/* Was all of it asked to be resident?  (RESIDENT_NONE is a large number, too.) */
static inline bool rkvi_config_is_whole(const rkvi_config *cfg, const rkvi_layer_config *layer)
{
    return layer->resident_cells >= cfg->capacity_cells && layer->resident_cells != RKV_RESIDENT_NONE;
}

/* What was asked, where the effective value takes its place in cfg. */
typedef struct rkvi_wish {
    uint64_t ring_bytes, copy_bytes;
    bool all_resident; /* nobody set a limit on the host executor: AUTO is ALL */
} rkvi_wish;

rkv_status rkvi_config_check(rkvi_config *cfg, const rkv_cache_params *p);

/* Fills all sizes; RKV_E_OVERFLOW when one exceeds 2^62. */
rkv_status rkvi_config_sizes(rkvi_config *cfg, const rkvi_wish *wish, const rkvi_trial *trial);

/* Ring and copy size; needs windows. */
rkv_status rkvi_config_ring(rkvi_config *cfg, const rkvi_wish *wish, const rkvi_trial *trial);
/* Bytes that the link carries in `ns`; saturates at 2^62. */
uint64_t rkvi_config_link_bytes(uint64_t link_bytes_per_s, uint64_t ns);
/* Most bytes that a step streams when n_tiles tiles are in use. */
rkv_status rkvi_config_list_bytes(const rkvi_config *cfg, uint64_t n_tiles, uint64_t *out_bytes);

/* Which limit the sizes in cfg exceed: RKV_OK or the status; no text. */
rkv_status rkvi_config_fits(const rkvi_config *cfg);
/* Chooses the AUTO windows and fills all sizes. */
rkv_status rkvi_config_resolve(rkvi_config *cfg, const rkvi_wish *wish);
/* What would fit; cfg's sizes are as before on return. */
typedef struct rkvi_would_fit {
    uint64_t capacity_cells, resident_cells, device_bytes;
    bool has_resident; /* resident_cells fit, 0 of them too */
} rkvi_would_fit;
rkv_status rkvi_config_would_fit(rkvi_config *cfg, const rkvi_wish *wish, rkvi_would_fit *out);
/* Records the sentence of a cfg that does not fit, and returns `fit`. */
rkv_status rkvi_config_advise(const rkvi_config *cfg, rkv_status fit, const rkvi_would_fit *would);

rkvi_wish rkvi_config_wish(const rkvi_config *cfg, const rkv_cache_params *p, const rkvi_machine *m);
/* Copies the parameters in, checks them, fills limits; sizes are not yet filled. */
rkv_status rkvi_config_open(rkvi_config *cfg, const rkv_cache_params *params,
                            const rkvi_machine *machine, rkvi_wish *out_wish);

#endif
