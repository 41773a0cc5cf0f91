/* SPDX-License-Identifier: MIT
 *
 * config_fit.c: the windows that are ours to choose, the limits, and what
 * would fit where something does not.
 */
#include "config_estimate.h"

#include "diag.h"

#include <stdio.h>

rkv_status rkvi_config_fits(const rkvi_config *cfg)
{
    if (cfg->ring_bytes < cfg->largest_tile_layer_bytes)
        return RKV_E_RING;
    if (cfg->device_bytes > cfg->device_limit_bytes)
        return RKV_E_DEVICE_LIMIT;
    if (cfg->host_tail_bytes > cfg->host_limit_bytes)
        return RKV_E_HOST_LIMIT;
    return RKV_OK;
}

/* Sizes for a trial, and whether they fit.  An overflow is 'no' here. */
static bool trial_fits(rkvi_config *cfg, const rkvi_wish *wish, const rkvi_trial *trial)
{
    return rkvi_config_sizes(cfg, wish, trial) == RKV_OK && rkvi_config_fits(cfg) == RKV_OK;
}

/* The device limit alone: a smaller window makes the tail larger, so that a
 * search for the largest window must not ask for the host's limit too. */
static bool trial_fits_device(rkvi_config *cfg, const rkvi_wish *wish, const rkvi_trial *trial)
{
    return rkvi_config_sizes(cfg, wish, trial) == RKV_OK &&
           cfg->device_bytes <= cfg->device_limit_bytes;
}

static bool has_auto(const rkvi_config *cfg)
{
    for (uint32_t i = 0; i < cfg->n_layers; i++)
        if (cfg->layers[i].resident_cells == RKV_RESIDENT_AUTO)
            return true;
    return false;
}

/* Largest value in [0, most] of *tiles for which `trial` fits the device; 0
 * also when none does. */
static uint64_t search_tiles(rkvi_config *cfg, const rkvi_wish *wish, rkvi_trial *trial,
                             uint64_t *tiles)
{
    uint64_t low = 0, high = cfg->capacity_tiles - 1;
    while (low < high) {
        *tiles = low + (high - low + 1) / 2;
        if (trial_fits_device(cfg, wish, trial))
            low = *tiles;
        else
            high = *tiles - 1;
    }
    return low;
}

/* Windows that were asked for come before a ring that is ours to choose: where
 * only the sum does not fit, the ring shrinks.  A smaller ring may take larger
 * tables (more launches a site), hence the trials. */
static rkv_status shrink_ring(rkvi_config *cfg, const rkvi_wish *wish, rkvi_trial *trial)
{
    const uint64_t least = 2 * cfg->largest_tile_layer_bytes;
    rkv_status s = RKV_OK;
    while (s == RKV_OK && cfg->device_bytes > cfg->device_limit_bytes && cfg->ring_bytes > least) {
        const uint64_t excess = cfg->device_bytes - cfg->device_limit_bytes;
        const uint64_t step = excess > cfg->ring_bytes / 16 ? excess : cfg->ring_bytes / 16;
        trial->most_ring_bytes = cfg->ring_bytes > least + step ? cfg->ring_bytes - step : least;
        s = rkvi_config_sizes(cfg, wish, trial);
    }
    return s;
}

/* AUTO: all where that fits; else what is left after all else, the same number
 * of tiles for each AUTO layer.  Layers that free what their masks hide come
 * first: they have all, unless not even that leaves room for the others. */
rkv_status rkvi_config_resolve(rkvi_config *cfg, const rkvi_wish *wish)
{
    rkvi_trial trial = {.auto_tiles = UINT64_MAX};
    rkv_status s = rkvi_config_sizes(cfg, wish, &trial);
    if (s != RKV_OK || cfg->device_bytes <= cfg->device_limit_bytes)
        return s;
    if (has_auto(cfg) && !wish->all_resident) {
        trial.auto_tiles = 0;
        trial.masked_too = !trial_fits_device(cfg, wish, &trial);
        trial.auto_tiles = search_tiles(cfg, wish, &trial, &trial.auto_tiles);
        s = rkvi_config_sizes(cfg, wish, &trial);
    }
    return s == RKV_OK && !wish->ring_bytes ? shrink_ring(cfg, wish, &trial) : s;
}

/* ------------------------------------------------------------ what would fit */

/* AUTO needs only that one of its ends fits. */
static bool capacity_fits(rkvi_config *cfg, const rkvi_wish *wish, uint64_t capacity_cells)
{
    rkvi_trial trial = {.auto_tiles = UINT64_MAX};
    cfg->capacity_cells = capacity_cells;
    if (trial_fits(cfg, wish, &trial))
        return true;
    trial.auto_tiles = 0;
    trial.masked_too = true;
    return !wish->all_resident && has_auto(cfg) && trial_fits(cfg, wish, &trial);
}

static uint64_t largest_capacity(rkvi_config *cfg, const rkvi_wish *wish)
{
    const uint64_t asked = cfg->capacity_cells;
    uint64_t low = 0, high = RKVI_SIZE_MAX;
    while (low < high) {
        const uint64_t middle = low + (high - low + 1) / 2;
        if (capacity_fits(cfg, wish, middle))
            low = middle;
        else
            high = middle - 1;
    }
    cfg->capacity_cells = asked;
    return low;
}

/* KV layers that were asked to be resident stay so, unless all of them were. */
static bool all_are_resident(const rkvi_config *cfg)
{
    for (uint32_t i = 0; i < cfg->n_layers; i++)
        if (!rkvi_config_is_whole(cfg, &cfg->layers[i]))
            return false;
    return true;
}

/* False: not even no window fits. */
static bool largest_resident(rkvi_config *cfg, const rkvi_wish *wish, uint64_t *out_cells)
{
    rkvi_trial trial = {
        .has_window = true, .window_tiles = UINT64_MAX, .for_all = all_are_resident(cfg)};
    *out_cells = cfg->capacity_cells;
    if (trial_fits_device(cfg, wish, &trial))
        return true;
    *out_cells = search_tiles(cfg, wish, &trial, &trial.window_tiles) * cfg->tile_cells;
    trial.window_tiles = 0;
    if (*out_cells || trial_fits_device(cfg, wish, &trial))
        return true;
    return !wish->ring_bytes && shrink_ring(cfg, wish, &trial) == RKV_OK &&
           cfg->device_bytes <= cfg->device_limit_bytes;
}

/* No window, and the smallest ring, or the one that was asked for: a tiny ring
 * needs more room for tables, since a site's tail then takes more launches.  Of
 * a small capacity all may take less than the tiles that any tail needs. */
static rkv_status smallest_device(rkvi_config *cfg, const rkvi_wish *wish, uint64_t *out_bytes)
{
    const rkvi_trial trials[] = {{.has_window = true, .for_all = true},
                                 {.has_window = true, .for_all = true, .smallest_ring = true},
                                 {.has_window = true, .for_all = true, .window_tiles = UINT64_MAX}};
    *out_bytes = UINT64_MAX;
    for (uint32_t i = 0; i < sizeof trials / sizeof *trials; i++) {
        const rkv_status s = rkvi_config_sizes(cfg, wish, &trials[i]);
        const bool is_all = trials[i].window_tiles > 0;
        if (s != RKV_OK && !is_all) /* all may be too much for a number */
            return s;
        if (s == RKV_OK && cfg->device_bytes < *out_bytes)
            *out_bytes = cfg->device_bytes;
    }
    return RKV_OK;
}

rkv_status rkvi_config_would_fit(rkvi_config *cfg, const rkvi_wish *wish, rkvi_would_fit *out)
{
    out->capacity_cells = largest_capacity(cfg, wish);
    out->has_resident = largest_resident(cfg, wish, &out->resident_cells);
    rkv_status s = smallest_device(cfg, wish, &out->device_bytes);
    if (s == RKV_OK)
        s = rkvi_config_resolve(cfg, wish);
    if (s == RKV_OK && cfg->device_bytes < out->device_bytes)
        out->device_bytes = cfg->device_bytes;
    return s;
}

/* ----------------------------------------------------------------- sentences */

#define U(x) ((unsigned long long)(x))

/* The choices that fit, alone. */
static void name_choices(const rkvi_would_fit *would, char *out, size_t bytes)
{
    char window[48] = "", capacity[48] = "";
    if (would->has_resident && would->resident_cells)
        snprintf(window, sizeof window, "%llu resident cells a layer", U(would->resident_cells));
    else if (would->has_resident)
        snprintf(window, sizeof window, "RKV_RESIDENT_NONE");
    if (would->capacity_cells)
        snprintf(capacity, sizeof capacity, "capacity %llu", U(would->capacity_cells));
    if (window[0] || capacity[0])
        snprintf(out, bytes, "%s%s%s", window, window[0] && capacity[0] ? ", or " : "", capacity);
    else
        snprintf(out, bytes, "smaller windows in all layers");
}

static rkv_status advise_device(const rkvi_config *cfg, const rkvi_would_fit *would)
{
    char choices[112];
    const uint64_t workspace = cfg->partial_bytes + cfg->turned_bytes + cfg->device_table_bytes;
    const char *what = cfg->asked_device_limit_bytes ? "free device memory" : "device limit";
    if (would->capacity_cells == 0 && would->device_bytes > cfg->device_limit_bytes)
        return rkvi_fail(
            RKV_E_DEVICE_LIMIT,
            "%s %llu does not hold these layers at any capacity_cells: %llu bytes are the least (here %llu: "
            "window %llu, ring %llu, workspace %llu)",
            what, U(cfg->device_limit_bytes), U(would->device_bytes), U(cfg->device_bytes), U(cfg->window_bytes),
            U(cfg->ring_bytes), U(workspace));
    name_choices(would, choices, sizeof choices);
    return rkvi_fail(
        RKV_E_DEVICE_LIMIT,
        "%s %llu does not hold %llu bytes (window %llu, ring %llu, active %llu for %u sequences, "
        "transit %llu, workspace %llu); fits: %s; least %llu bytes",
        what, U(cfg->device_limit_bytes), U(cfg->device_bytes), U(cfg->window_bytes), U(cfg->ring_bytes),
        U(cfg->active_bytes), cfg->active_sequences, U(cfg->transit_bytes), U(workspace), choices,
        U(would->device_bytes));
}

rkv_status rkvi_config_advise(const rkvi_config *cfg, rkv_status fit, const rkvi_would_fit *would)
{
    switch (fit) {
    case RKV_E_DEVICE_LIMIT: return advise_device(cfg, would);
    case RKV_E_HOST_LIMIT:
        return rkvi_fail(
            fit,
            "host limit %llu does not hold a tail of %llu bytes at capacity_cells %llu; fits: "
            "capacity_cells %llu, or more resident_cells",
            U(cfg->host_limit_bytes), U(cfg->host_tail_bytes), U(cfg->capacity_cells),
            U(would->capacity_cells));
    case RKV_E_RING:
        return rkvi_fail(
            fit,
            "ring_bytes %llu does not hold the largest tile-layer of %llu bytes; give at least "
            "that, or 0 to have it chosen",
            U(cfg->ring_bytes), U(cfg->largest_tile_layer_bytes));
    default: return fit;
    }
}

/* ------------------------------------------------------------------ estimate */

/* Largest context, whole tiles, whose tail crosses within the step. */
static uint64_t free_zone_cells(const rkvi_config *cfg)
{
    const uint64_t most_bytes = rkvi_config_link_bytes(cfg->link_bytes_per_s, rkvi_config_step_ns(cfg));
    uint64_t low = 0, high = cfg->capacity_tiles;
    if (!most_bytes)
        return 0;
    while (low < high) {
        const uint64_t middle = low + (high - low + 1) / 2;
        uint64_t bytes;
        if (rkvi_config_list_bytes(cfg, middle, &bytes) == RKV_OK && bytes <= most_bytes)
            low = middle;
        else
            high = middle - 1;
    }
    const uint64_t cells = low * cfg->tile_cells;
    return cells < cfg->capacity_cells ? cells : cfg->capacity_cells;
}

static void fill_estimate(const rkvi_config *cfg, const rkvi_would_fit *would, rkv_estimate *out)
{
    const uint64_t mirrors = cfg->steps_ahead * cfg->upload_bytes;
    *out = (rkv_estimate){
        .struct_size = sizeof *out,
        .device_window_bytes = cfg->window_bytes,
        .device_ring_bytes = cfg->ring_bytes,
        .device_active_bytes = cfg->active_bytes,
        .device_transit_bytes = cfg->transit_bytes,
        .device_workspace_bytes = cfg->partial_bytes + cfg->turned_bytes + cfg->device_table_bytes,
        .device_bytes = cfg->device_bytes,
        .device_limit_bytes = cfg->device_limit_bytes,
        .host_tail_bytes = cfg->host_tail_bytes,
        .host_mirror_bytes = mirrors,
        .host_limit_bytes = cfg->host_limit_bytes,
        .capacity_cells = cfg->capacity_cells,
        .largest_capacity_cells = would->capacity_cells,
        .largest_resident_cells = would->resident_cells,
        .smallest_device_bytes = would->device_bytes,
        .free_zone_cells = free_zone_cells(cfg),
        .ring_rule_bytes = cfg->ring_rule_bytes,
        .host_cpu_bytes = cfg->cpu_q_bytes + cfg->cpu_partial_bytes,
    };
}

static void fill_advice(const rkvi_config *cfg, rkv_status fit, const rkvi_would_fit *would,
                        rkv_estimate *out)
{
    out->fits = fit == RKV_OK;
    if (fit == RKV_OK)
        return;
    (void)rkvi_config_advise(cfg, fit, would);
    const char *text = rkvi_error_text();
    size_t i = 0;
    for (; i + 1 < sizeof out->advice && text[i]; i++)
        out->advice[i] = text[i];
    out->advice[i] = 0;
    rkvi_error_clear(); /* the call succeeds */
}

rkv_status rkvi_config_estimate(const rkv_cache_params *params, const rkvi_machine *machine,
                                rkv_estimate *out)
{
    rkvi_config cfg;
    rkvi_wish wish;
    rkvi_would_fit would;
    rkv_status s = rkvi_config_open(&cfg, params, machine, &wish);
    if (s != RKV_OK)
        return s;
    s = rkvi_config_resolve(&cfg, &wish);
    if (s == RKV_OK)
        s = rkvi_config_would_fit(&cfg, &wish, &would);
    if (s == RKV_OK) {
        fill_estimate(&cfg, &would, out);
        fill_advice(&cfg, rkvi_config_fits(&cfg), &would, out);
    }
    rkvi_config_free(&cfg);
    return s;
}
