/* SPDX-License-Identifier: MIT
 *
 * config_ring.c: sizes of the ring and of a copy.
 *
 * The rule: to keep the link busy, the ring holds what crosses during the
 * longest gap between two sites that read a tail, the step's edge included,
 * and two copy groups (one that is being read, one that is arriving).  Without
 * hints: four copy groups.  Where steps may have long chunks of a prompt, no less
 * than four launches of prefill read.
 */
#include "config_internal.h"

#include "diag.h"

#define COPY_DEFAULT ((uint64_t)16 << 20) /* where the measured links are at full speed */
/* On a slower link smaller copies reach full speed, and what comes behind one,
 * a step's tables above all, waits no longer. */
#define COPY_NS 320000u
/* Chunks so long may take longer than their tail's copies; then it counts that each
 * launch takes up the states of all rows and puts them down, as long as 600 cells take
 * (H200): 4 % of what a quarter of the ring holds (plan.c). */
#define CHUNK_ROWS 1024u
#define CHUNK_LAUNCHES 4u
#define CHUNK_LAUNCH_CELLS 16384u
#define SLOTS_MAX (((uint64_t)1 << 30) - 2) /* rkvi_ring_init keeps two more */
#define MIB ((uint64_t)1 << 20)
#define NS_PER_S 1000000000u

uint64_t rkvi_config_link_bytes(uint64_t link_bytes_per_s, uint64_t ns)
{
    const unsigned __int128 bytes = (unsigned __int128)link_bytes_per_s * ns / NS_PER_S;
    return bytes > RKVI_SIZE_MAX ? RKVI_SIZE_MAX : (uint64_t)bytes;
}

static uint64_t add_up(uint64_t a, uint64_t b)
{
    uint64_t r;
    return rkvi_add(a, b, &r) ? r : RKVI_SIZE_MAX;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* A mask lets a sequence see only so many tiles, wherever they begin. */
static uint64_t seen_tiles(const rkvi_config *cfg, const rkvi_site_config *site, uint64_t n_tiles)
{
    uint64_t seen;
    if (site->mask.kind == RKV_MASK_CAUSAL)
        return n_tiles;
    const uint64_t of_one = rkvi_div_up((uint64_t)site->mask.width, cfg->tile_cells) + 1;
    if (!rkvi_mul(of_one, cfg->active_sequences, &seen))
        return n_tiles;
    return seen < n_tiles ? seen : n_tiles;
}

rkv_status rkvi_config_list_bytes(const rkvi_config *cfg, uint64_t n_tiles, uint64_t *out_bytes)
{
    *out_bytes = 0;
    for (uint32_t i = 0; i < cfg->n_sites; i++) {
        const rkvi_layer_config *layer = &cfg->layers[cfg->sites[i].kv_layer];
        const uint64_t seen = seen_tiles(cfg, &cfg->sites[i], n_tiles);
        const uint64_t held = n_tiles < layer->most_tiles ? n_tiles : layer->most_tiles;
        const uint64_t tail = held > layer->window_tiles ? held - layer->window_tiles : 0;
        uint64_t bytes;
        if (!layer->has_tail)
            continue;
        if (!rkvi_mul(tail < seen ? tail : seen, layer->geom.bytes, &bytes) ||
            !rkvi_add(*out_bytes, bytes, out_bytes))
            return rkvi_fail(RKV_E_OVERFLOW, "a step would stream more than 2^62 bytes");
    }
    return RKV_OK;
}

/* Compute between site i and the next one: the hint of the site, or its share
 * of the step's when no site has one.  All 0: no hints. */
static uint64_t gap_after(const rkvi_config *cfg, uint32_t i, bool has_gaps)
{
    return has_gaps ? cfg->sites[i].gap_ns : cfg->step_ns / cfg->n_sites;
}

/* Longest time between two sites that read a tail.  The sites are a circle:
 * after the last one comes the first one of the next step.  We go round twice,
 * so that the gap over the edge is seen as a whole. */
static uint64_t longest_gap_ns(const rkvi_config *cfg)
{
    uint64_t longest = 0, gap = 0;
    bool has_gaps = false, is_open = false;
    for (uint32_t i = 0; i < cfg->n_sites; i++)
        has_gaps |= cfg->sites[i].gap_ns != 0;
    for (uint64_t i = 0; i < 2 * (uint64_t)cfg->n_sites; i++) {
        const uint32_t at = (uint32_t)(i % cfg->n_sites);
        if (cfg->layers[cfg->sites[at].kv_layer].has_tail) {
            longest = is_open && gap > longest ? gap : longest;
            is_open = true;
            gap = 0;
        }
        gap = add_up(gap, gap_after(cfg, at, has_gaps));
    }
    return longest;
}

uint64_t rkvi_config_step_ns(const rkvi_config *cfg)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < cfg->n_sites; i++)
        sum = add_up(sum, cfg->sites[i].gap_ns);
    return cfg->step_ns ? cfg->step_ns : sum;
}

static uint64_t default_copy(const rkvi_config *cfg)
{
    const uint64_t bytes =
        rkvi_align_up(rkvi_config_link_bytes(cfg->link_bytes_per_s, COPY_NS), MIB);
    return bytes && bytes < COPY_DEFAULT ? bytes : COPY_DEFAULT;
}

/* So many cells of the largest KV layer.  A window may be worth more than these. */
static uint64_t prefill_bytes(const rkvi_config *cfg)
{
    uint64_t bytes;
    const uint64_t tiles = rkvi_div_up(CHUNK_LAUNCH_CELLS, cfg->tile_cells), most = cfg->device_limit_bytes / 16;
    if (!rkvi_mul(CHUNK_LAUNCHES * tiles, cfg->largest_tile_layer_bytes, &bytes) || bytes > most)
        return most;
    return bytes;
}

static uint64_t choose_ring(const rkvi_config *cfg, uint64_t copy_bytes, uint64_t list_bytes)
{
    const uint64_t largest = cfg->largest_tile_layer_bytes;
    uint64_t ring =
        cfg->ring_rule_bytes ? cfg->ring_rule_bytes : add_up(2 * copy_bytes, 2 * copy_bytes);
    if (cfg->max_rows >= CHUNK_ROWS)
        ring = larger(ring, prefill_bytes(cfg));
    if (ring > list_bytes)
        ring = list_bytes; /* more would stay empty */
    if (ring < 2 * largest)
        ring = 2 * largest;
    const uint64_t quarter = cfg->device_limit_bytes / 4;
    if (ring > quarter)
        ring = quarter;
    if (ring < largest)
        ring = largest;
    return rkvi_align_up(ring, RKVI_PLACE_ALIGN);
}

/* Slots are numbered: at most 2^30 of the smallest tile-layer with a tail. */
static rkv_status check_slots(const rkvi_config *cfg)
{
    uint64_t smallest = cfg->largest_tile_layer_bytes;
    for (uint32_t i = 0; i < cfg->n_layers; i++)
        if (cfg->layers[i].has_tail && cfg->layers[i].geom.bytes < smallest)
            smallest = cfg->layers[i].geom.bytes;
    if (cfg->ring_bytes / smallest < SLOTS_MAX)
        return RKV_OK;
    return rkvi_fail(RKV_E_OVERFLOW,
                     "ring_bytes %llu hold %llu tile-layers of %llu bytes; at most 2^30 are numbered",
                     (unsigned long long)cfg->ring_bytes, (unsigned long long)(cfg->ring_bytes / smallest),
                     (unsigned long long)smallest);
}

rkv_status rkvi_config_ring(rkvi_config *cfg, const rkvi_wish *wish, const rkvi_trial *trial)
{
    const uint64_t largest = cfg->largest_tile_layer_bytes;
    uint64_t list_bytes, copy = wish->copy_bytes ? wish->copy_bytes : default_copy(cfg);
    cfg->ring_bytes = cfg->copy_bytes = cfg->ring_rule_bytes = 0;
    if (!largest) /* no tail anywhere */
        return RKV_OK;
    const rkv_status s = rkvi_config_list_bytes(cfg, cfg->capacity_tiles, &list_bytes);
    if (s != RKV_OK)
        return s;
    if (copy < largest)
        copy = largest; /* a copy moves whole tile-layers */
    const uint64_t gap_ns = longest_gap_ns(cfg);
    const uint64_t gap_bytes = rkvi_config_link_bytes(cfg->link_bytes_per_s, gap_ns);
    if (gap_bytes)
        cfg->ring_rule_bytes = add_up(gap_bytes, add_up(copy, copy));

    if (trial->smallest_ring)
        cfg->ring_bytes = largest;
    else if (wish->ring_bytes) /* below `largest` it does not fit: rkvi_config_fits says so */
        cfg->ring_bytes = wish->ring_bytes / RKVI_PLACE_ALIGN * RKVI_PLACE_ALIGN;
    else
        cfg->ring_bytes = choose_ring(cfg, copy, list_bytes);
    if (!wish->ring_bytes && trial->most_ring_bytes && cfg->ring_bytes > trial->most_ring_bytes)
        cfg->ring_bytes = larger(trial->most_ring_bytes / RKVI_PLACE_ALIGN * RKVI_PLACE_ALIGN, largest);

    /* A copy that was asked for may fill the ring; one of ours leaves room for
     * others to arrive while it is read: a quarter of the ring, or half of what
     * the gap leaves (a ring by the rule holds two whole ones). */
    uint64_t most = wish->copy_bytes ? cfg->ring_bytes : cfg->ring_bytes / 4;
    if (!wish->copy_bytes && gap_bytes && cfg->ring_bytes > gap_bytes)
        most = larger(most, (cfg->ring_bytes - gap_bytes) / 2);
    if (copy > most)
        copy = most > largest ? most : largest;
    cfg->copy_bytes = copy;
    return check_slots(cfg);
}
