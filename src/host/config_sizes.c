/* SPDX-License-Identifier: MIT
 *
 * config_sizes.c: sizes of everything, for given windows.
 *
 * All sums and products go through a `sum`, which remembers that one of them
 * exceeded 2^62, so that the formulas below read as formulas.
 */
#include "config_layers.h"

#include "diag.h"
#include "ring.h"

#define TABLE_ALIGN 256u
#define EXTENT_ALIGN 4096u /* of the arena */
#define EXTENT_PLACES_MAX 256u
#define EXTENT_ROWS_BYTES ((uint64_t)4 << 20) /* of a sequence: fewer cost the link much */
#define EXTENT_SHARED_BYTES ((uint64_t)64 << 20)
#define DECODE_ROWS RKV_DECODE_ROWS_MAX

typedef struct sum {
    bool exceeded;
} sum;

static uint64_t mul(sum *x, uint64_t a, uint64_t b)
{
    uint64_t r;
    if (rkvi_mul(a, b, &r))
        return r;
    x->exceeded = true;
    return RKVI_SIZE_MAX;
}

static uint64_t add(sum *x, uint64_t a, uint64_t b)
{
    uint64_t r;
    if (rkvi_add(a, b, &r))
        return r;
    x->exceeded = true;
    return RKVI_SIZE_MAX;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* ------------------------------------------------------------------ places */

/* Most tiles of which a KV layer holds its part at once.  Where its masks hide
 * what lies further back, a sequence holds up to width - 1 cells before the row
 * after next and draft_rows more, wherever its tiles begin, with its last tile;
 * a step adds its own, which are freed when it ends. */
static uint64_t most_tiles(sum *x, const rkvi_config *cfg, uint32_t index)
{
    const rkvi_layer_config *layer = &cfg->layers[index];
    uint64_t width = 0;
    for (uint32_t i = layer->first_site; i <= layer->last_site && layer->frees; i++)
        if (cfg->sites[i].kv_layer == index)
            width = larger(width, (uint64_t)cfg->sites[i].mask.width);
    if (!layer->frees || width >= cfg->capacity_cells)
        return cfg->capacity_tiles;
    const uint64_t held = rkvi_div_up(add(x, width, cfg->draft_rows), cfg->tile_cells);
    const uint64_t all = add(x, mul(x, cfg->n_sequences, add(x, held, 3)), cfg->max_rows / cfg->tile_cells);
    return smaller(all, cfg->capacity_tiles);
}

static uint64_t window_tiles(const rkvi_config *cfg, const rkvi_layer_config *layer,
                             const rkvi_trial *trial)
{
    const uint64_t all = layer->most_tiles;
    if (trial->has_window && (trial->for_all || !rkvi_config_is_whole(cfg, layer)))
        return smaller(trial->window_tiles, all);
    switch (layer->resident_cells) {
    case RKV_RESIDENT_AUTO:
        return layer->frees && !trial->masked_too ? all : smaller(trial->auto_tiles, all);
    case RKV_RESIDENT_NONE: return 0;
    default: break;
    }
    if (layer->resident_cells >= cfg->capacity_cells) /* RESIDENT_ALL is far above any capacity */
        return all;
    return smaller(rkvi_div_up(layer->resident_cells, cfg->tile_cells), all);
}

/* Device places beyond the budget, so that a window of any size works
 * (invariant 2).  An active sequence can hold at once, in one KV layer:
 *   - its active tile, and a new one when a step crosses the tile's edge,
 *   - tiles that lag behind its head by draft_rows cells: ceil(draft/T) of them,
 *   - as many again that are leaving: demoted at the end of step n, they are
 *     read at their device place until the second begin after it,
 *   - one place for a tile that begin brings back while others still leave.
 * Tiles that a prefill step fills beyond the lag pass through transit. */
static uint64_t extra_places(sum *x, const rkvi_config *cfg)
{
    const uint64_t lag_tiles = rkvi_div_up(cfg->draft_rows, cfg->tile_cells);
    /* Graphs: the tail changes once in T/2 steps, so one more is leaving. */
    return mul(x, cfg->active_sequences, 2 * lag_tiles + 3 + ((cfg->flags & RKV_FLAG_GRAPHS) != 0));
}

/* Device memory of a KV layer with a tail comes in up to 16 extents, so that a
 * smaller window gives whole ones back; not in small ones, which allocators
 * round up. */
static uint64_t device_extent(const rkvi_config *cfg, const rkvi_layer_config *layer)
{
    const uint64_t most = larger(cfg->device_extent_bytes / layer->geom.bytes, 1);
    const uint64_t places = larger(rkvi_div_up(layer->device_places, 16), most);
    return layer->has_tail ? smaller(places, layer->device_places) : layer->device_places;
}

uint64_t rkvi_config_device_places(const rkvi_layer_config *layer, uint64_t window_tiles)
{
    return smaller(layer->most_tiles, window_tiles + layer->extra_places);
}

/* A promoted tile-layer keeps its host copy only while host places suffice;
 * those that are leaving need one each: 4 a sequence. */
uint64_t rkvi_config_host_places(const rkvi_config *cfg, const rkvi_layer_config *layer, uint64_t window_tiles)
{
    return smaller(layer->most_tiles, layer->most_tiles - window_tiles + 4 * (uint64_t)cfg->n_sequences);
}

void rkvi_config_set_window(rkvi_config *cfg, uint32_t layer, uint64_t window_tiles, uint64_t device_places)
{
    rkvi_layer_config *l = &cfg->layers[layer];
    const uint64_t before = l->device_places * l->geom.bytes;
    cfg->window_bytes += (window_tiles - l->window_tiles) * l->geom.bytes; /* wraps back where it falls */
    l->window_tiles = window_tiles;
    l->device_places = device_places;
    l->host_places = larger(l->host_places, rkvi_config_host_places(cfg, l, window_tiles));
    cfg->device_bytes += device_places * l->geom.bytes - before;
    cfg->active_bytes = 0;
    for (uint32_t i = 0; i < cfg->n_layers; i++)
        cfg->active_bytes += (cfg->layers[i].device_places - cfg->layers[i].window_tiles) * cfg->layers[i].geom.bytes;
}

static void size_places(sum *x, rkvi_config *cfg, const rkvi_trial *trial)
{
    const uint64_t extra = extra_places(x, cfg);
    cfg->window_bytes = cfg->active_bytes = cfg->largest_tile_layer_bytes = 0;
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        rkvi_layer_config *layer = &cfg->layers[i];
        const uint64_t all = layer->most_tiles = most_tiles(x, cfg, i);
        layer->window_tiles = window_tiles(cfg, layer, trial);
        layer->has_tail = layer->window_tiles < all;
        layer->extra_places = extra;
        layer->first_window_tiles = layer->window_tiles;
        /* A KV layer without a tail has a place for every tile that it holds. */
        layer->device_places =
            layer->has_tail ? smaller(all, add(x, layer->window_tiles, extra)) : all;
        layer->device_extent_places = device_extent(cfg, layer);
        layer->host_places = layer->has_tail ? rkvi_config_host_places(cfg, layer, layer->window_tiles) : 0;
        const uint64_t beyond = layer->device_places - layer->window_tiles;
        cfg->window_bytes = add(x, cfg->window_bytes, mul(x, layer->window_tiles, layer->geom.bytes));
        cfg->active_bytes = add(x, cfg->active_bytes, mul(x, beyond, layer->geom.bytes));
        if (layer->has_tail)
            cfg->largest_tile_layer_bytes = larger(cfg->largest_tile_layer_bytes, layer->geom.bytes);
    }
}

/* Host places are made in extents of a copy, so that a copy group is one run of
 * memory.  Sequences that grow together have their tiles by turns: of each a few MiB
 * lie in an extent then, at an equal pitch.  That is no more than a 16th of the
 * layer's host places, or 64 MiB, since an extent is pinned as a whole. */
static uint64_t extent_places(sum *x, const rkvi_config *cfg, const rkvi_layer_config *layer)
{
    const uint64_t bytes = layer->geom.bytes, copy = smaller(larger(cfg->copy_bytes / bytes, 1), EXTENT_PLACES_MAX);
    const uint64_t by_turns = mul(x, smaller(larger(EXTENT_ROWS_BYTES / bytes, 1), copy), cfg->active_sequences);
    const uint64_t most = larger(layer->host_places / 16, EXTENT_SHARED_BYTES / bytes);
    return smaller(larger(copy, smaller(by_turns, most)), layer->host_places);
}

/* The last extent of a KV layer is as long as it must be.
 * Rounding to the arena's alignment is counted; what a slab's end may waste is
 * the arena's. */
static void size_host(sum *x, rkvi_config *cfg)
{
    cfg->host_tail_bytes = 0;
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        rkvi_layer_config *layer = &cfg->layers[i];
        const uint64_t bytes = layer->geom.bytes;
        layer->extent_places = 0;
        if (!layer->has_tail)
            continue;
        layer->extent_places = extent_places(x, cfg, layer);
        const uint64_t n_full = layer->host_places / layer->extent_places;
        const uint64_t rest = layer->host_places % layer->extent_places;
        const uint64_t extent = rkvi_align_up(mul(x, layer->extent_places, bytes), EXTENT_ALIGN);
        const uint64_t last = rkvi_align_up(mul(x, rest, bytes), EXTENT_ALIGN);
        cfg->host_tail_bytes = add(x, cfg->host_tail_bytes, add(x, mul(x, n_full, extent), last));
    }
}

/* Tiles that fill up and leave within one prefill step: a ring of two KV
 * layers' worth for those with one site (a KV layer's copy-out overlaps the
 * next one's stores), and room of its own for each that is read again later. */
static void size_transit(sum *x, rkvi_config *cfg)
{
    uint64_t largest = 0, own = 0;
    cfg->transit_tiles = cfg->largest_tile_layer_bytes ? cfg->max_rows / cfg->tile_cells : 0;
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        const rkvi_layer_config *layer = &cfg->layers[i];
        if (layer->has_tail && layer->n_sites == 1)
            largest = larger(largest, layer->geom.bytes);
        else if (layer->has_tail)
            own = add(x, own, layer->geom.bytes);
    }
    cfg->transit_ring_bytes = mul(x, 2 * cfg->transit_tiles, largest);
    cfg->transit_bytes = add(x, cfg->transit_ring_bytes, mul(x, cfg->transit_tiles, own));
}

/* ------------------------------------------------- partials and step tables */

/* Tiles and leaves of a batch, those that several entries have counted once.
 * (What entries have alike beyond that is refused at begin, by these.) */
static void size_spans(sum *x, rkvi_config *cfg)
{
    uint32_t least_leaf = cfg->tile_cells;
    for (uint32_t c = 0; c < cfg->n_leaf_classes; c++)
        least_leaf = cfg->leaf_cells[c] < least_leaf ? cfg->leaf_cells[c] : least_leaf;
    cfg->max_bases = add(x, cfg->capacity_tiles, cfg->n_sequences > 1 ? cfg->capacity_tiles : 0);
    cfg->max_spans = add(x, mul(x, cfg->capacity_tiles, cfg->tile_cells / least_leaf),
                         (uint64_t)cfg->extra_segments);
}

static uint64_t decode_rows(sum *x, const rkvi_config *cfg)
{
    return smaller(cfg->max_rows, mul(x, DECODE_ROWS, cfg->active_sequences));
}

/* Prefill rows hold one state each; decode rows hold their pending partials.
 * Sequences share the capacity's leaves: with R decode rows the sum over rows
 * of bits(leaves of the row's sequence) is largest where R / 16 sequences share
 * them alike, as logarithms are concave. */
static void size_partials(sum *x, rkvi_config *cfg)
{
    const uint64_t rows = decode_rows(x, cfg);
    const uint64_t leaves = mul(x, DECODE_ROWS, cfg->max_spans) / rows;
    const uint64_t pending = rkvi_pending_nodes(larger(leaves, 1)) + rkvi_pending_nodes(1);
    uint64_t slot_bytes = 0;
    for (uint32_t i = 0; i < cfg->n_sites; i++) {
        const rkvi_site_config *site = &cfg->sites[i];
        const uint64_t dv = cfg->layers[site->kv_layer].geom.dv;
        slot_bytes = larger(slot_bytes, (uint64_t)site->n_q_heads * (dv + 2) * sizeof(float));
    }
    cfg->partial_slots = add(x, cfg->max_rows + (uint64_t)RKVI_RUN_SLOTS, mul(x, rows, pending));
    /* A token tree is never longer than the lag (api_batch.c). */
    cfg->tree_slots =
        smaller(cfg->max_rows, mul(x, cfg->active_sequences, smaller(cfg->draft_rows, RKVI_TREE_CELLS_MAX)));
    cfg->partial_bytes = rkvi_align_up(mul(x, add(x, cfg->partial_slots, cfg->tree_slots), slot_bytes), TABLE_ALIGN);
}

/* Room for q turned back, if positions can be shifted at all. */
static void size_turned(sum *x, rkvi_config *cfg)
{
    uint64_t row = 0;
    for (uint32_t i = 0; i < cfg->n_sites; i++)
        if (rkvi_site_turns(cfg, i))
            row = larger(row, (uint64_t)cfg->sites[i].n_q_heads * cfg->layers[cfg->sites[i].kv_layer].geom.dk);
    for (uint32_t i = 0; i < cfg->n_layers; i++)
        if (cfg->layers[i].k_form != RKV_K_PLAIN && cfg->layers[i].rope == RKVI_NO_ROPE)
            cfg->max_turns = 0;
    cfg->turned_floats = cfg->max_turns ? mul(x, cfg->max_rows, row) : 0;
    cfg->turned_bytes = rkvi_align_up(mul(x, cfg->max_turns, mul(x, cfg->turned_floats, sizeof(float))), TABLE_ALIGN);
}

/* Most attend launches of a site: one a tile in op-level, and where a launch may
 * not read half the ring; else one for as many whole tile-layers as a copy and
 * half the ring hold (as plan cuts them). */
static uint64_t max_launches(sum *x, const rkvi_config *cfg, const rkvi_layer_config *layer)
{
    const bool laps = cfg->flags & RKV_FLAG_GRAPHS;
    uint64_t group = 0;
    if (!layer->has_tail)
        return 1;
    if (cfg->mode == RKV_MODE_RING)
        group = smaller(cfg->copy_bytes,
                        rkvi_ring_launch_bytes(cfg->ring_bytes, cfg->largest_tile_layer_bytes, laps));
    return add(x, rkvi_div_up(cfg->capacity_tiles, larger(group / layer->geom.bytes, 1)), 2);
}

/* Rows don't count for decode: an item holds all rows of its entry.
 * A launch's tiles are those of neighbouring entries, so all entries together
 * take part in launches + 2 * n_seq pairs of (launch, entry), and as many again
 * as there are entries for what lies on the device. */
static void size_site_tables(sum *x, rkvi_config *cfg)
{
    const uint64_t n_seq = smaller(cfg->active_sequences, cfg->max_rows);
    /* Blocks of one entry, and of all: an entry's last block may hold one row. */
    const uint64_t entry_blocks = rkvi_div_up(cfg->max_rows, RKVI_PREFILL_ROWS);
    const uint64_t row_blocks = n_seq + rkvi_div_up(cfg->max_rows - n_seq, RKVI_PREFILL_ROWS);
    uint64_t launches = 1;
    for (uint32_t i = 0; i < cfg->n_layers; i++)
        launches = larger(launches, max_launches(x, cfg, &cfg->layers[i]));
    /* A stretch of one turn, and one without before it, are as good as launches. */
    const uint64_t stretches = mul(x, 2 * (uint64_t)cfg->max_turns, n_seq);
    const uint64_t stems = (cfg->active_sequences > 1 ? 6 : 3) * n_seq; /* 2 an entry */
    const uint64_t pairs = add(x, add(x, launches, stems), stretches);
    /* Either all partials of an entry have room at once, or each of its
     * launches cuts two ends into runs (rkvi_pending_nodes). */
    const uint64_t runs = add(x, cfg->partial_slots, mul(x, pairs, 2 * (uint64_t)rkvi_bit_width(cfg->max_spans)));
    const uint64_t decode_items = smaller(runs, cfg->max_spans); /* an item holds a leaf */
    cfg->max_items_site = add(x, decode_items, add(x, mul(x, entry_blocks, launches),
                                                     (3 + 2 * (uint64_t)cfg->max_turns) * row_blocks));
    /* A merge between launches makes one of two nodes or more, one per level. */
    const uint64_t merges = smaller(decode_items, mul(x, pairs, rkvi_bit_width(cfg->max_spans)));
    cfg->max_merges_site = add(x, merges, n_seq + row_blocks);
    /* A decode item's result is a node, and so is a merge's; a row block's state is one.
     * What entries share is a node of each of them: it has a slot for each, too. */
    const uint64_t shared = n_seq > 1 ? smaller(cfg->partial_slots, mul(x, n_seq, cfg->max_spans)) : 0;
    cfg->max_nodes_site = add(x, add(x, decode_items, shared), add(x, merges, row_blocks));
    cfg->max_nodes_site = add(x, cfg->max_nodes_site, smaller(cfg->tree_slots, n_seq + row_blocks));
    /* Launches that are captured are filled up with empty items and merges. */
    if (cfg->flags & RKV_FLAG_GRAPHS) {
        const uint64_t items = add(x, RKVI_GRAPH_ITEMS + 8 * n_seq, mul(x, launches, 8));
        cfg->max_items_site = add(x, cfg->max_items_site, items);
        cfg->max_merges_site = mul(x, cfg->max_merges_site, 2);
        cfg->max_nodes_site = add(x, cfg->max_nodes_site, add(x, items, cfg->max_merges_site));
    }
}

static uint64_t table(sum *x, uint64_t n, uint64_t element_bytes)
{
    return rkvi_align_up(mul(x, n, element_bytes), TABLE_ALIGN);
}

/* One step's tables, each aligned to TABLE_ALIGN:
 *   rows        max_rows                               rkvi_row
 *   new cells   max_rows                               rkvi_new_cell
 *   open        max_rows / T + 2 a sequence            u64, indices into bases
 *   row map     max_rows, with several sequences       u32
 *   per leaf class:
 *     entries   active_sequences                       rkvi_entry, and a word each
 *     spans     max_spans                              rkvi_span
 *   trees       tree_slots                             rkvi_tree_item
 *   turned rows max_turns * max_rows                   rkvi_turned_row
 *   angles      max_turns a sequence, each of ropes[]  f32 pairs
 *   ticket, bytes  1 + sites, with the CPU's share      u64
 *   per site:
 *     bases     max_bases                              u64
 *     items     max_items_site                         rkvi_item
 *     merges    max_merges_site                        rkvi_merge_item
 *     nodes     max_nodes_site                         rkvi_node
 * The plan holds itself against the same maxima. */
static void size_tables(sum *x, rkvi_config *cfg)
{
    const uint64_t n_seq = cfg->active_sequences;
    size_site_tables(x, cfg);

    uint64_t step = add(x, table(x, cfg->max_rows, sizeof(rkvi_row)),
                        table(x, cfg->max_rows, sizeof(rkvi_new_cell)));
    step = add(x, step, table(x, cfg->max_rows / cfg->tile_cells + 2 * n_seq, sizeof(uint64_t)));
    step = add(x, step, cfg->active_sequences > 1 ? table(x, cfg->max_rows, sizeof(uint32_t)) : 0);
    const uint64_t a_class =
        add(x, table(x, n_seq, RKVI_ENTRY_ROOM), table(x, cfg->max_spans, sizeof(rkvi_span)));
    uint64_t a_site = add(x, table(x, cfg->max_bases, sizeof(uint64_t)),
                          table(x, cfg->max_items_site, sizeof(rkvi_item)));
    a_site = add(x, a_site, table(x, cfg->max_merges_site, sizeof(rkvi_merge_item)));
    a_site = add(x, a_site, table(x, cfg->max_nodes_site, sizeof(rkvi_node)));
    step = add(x, step, table(x, cfg->tree_slots, sizeof(rkvi_tree_item)));
    step = add(x, step, mul(x, cfg->n_leaf_classes, a_class));
    if (cfg->turned_floats)
        step = add(x, step, table(x, mul(x, cfg->max_turns, cfg->max_rows), sizeof(rkvi_turned_row)));
    const uint64_t n_angles = mul(x, cfg->turned_floats ? cfg->max_turns : 0, smaller(n_seq, cfg->max_rows));
    for (uint32_t i = 0; i < cfg->n_ropes; i++)
        step = add(x, step, table(x, mul(x, n_angles, cfg->ropes[i].n), 2 * sizeof(float)));
    step = add(x, step, cfg->cpu_threads ? table(x, 1 + (uint64_t)cfg->n_sites, sizeof(uint64_t)) : 0);
    cfg->table_bytes = add(x, step, mul(x, cfg->n_sites, a_site));
    cfg->upload_bytes = cfg->device_table_bytes = cfg->table_bytes;
    if (cfg->flags & RKV_FLAG_GRAPHS) /* in pieces, each with its rkvi_patch */
        cfg->upload_bytes = add(x, cfg->table_bytes, table(x, cfg->table_bytes / RKVI_PIECE_BYTES, sizeof(rkvi_patch)));
    cfg->device_table_bytes = mul(x, cfg->steps_ahead, cfg->upload_bytes);
    if (cfg->flags & RKV_FLAG_GRAPHS)
        cfg->device_table_bytes = add(x, cfg->device_table_bytes, cfg->table_bytes);
    cfg->device_table_bytes = add(x, cfg->device_table_bytes, cfg->cpu_threads ? RKVI_CPU_DEVICE_BYTES : 0);
}

/* -------------------------------------------------------------------- all */

static rkv_status too_large(const rkvi_config *cfg)
{
    return rkvi_fail(
        RKV_E_OVERFLOW,
        "capacity_cells %llu with %u KV layers, %u sequences and %u rows: a size exceeds 2^62 bytes",
        (unsigned long long)cfg->capacity_cells, cfg->n_layers, cfg->n_sequences, cfg->max_rows);
}

static void size_sum(sum *x, rkvi_config *cfg)
{
    uint64_t bytes = add(x, cfg->window_bytes, cfg->active_bytes);
    bytes = add(x, bytes, cfg->ring_bytes);
    bytes = add(x, bytes, cfg->transit_bytes);
    bytes = add(x, bytes, add(x, cfg->partial_bytes, cfg->turned_bytes));
    cfg->device_bytes = add(x, bytes, cfg->device_table_bytes);
}

rkv_status rkvi_config_sizes(rkvi_config *cfg, const rkvi_wish *wish, const rkvi_trial *trial)
{
    sum x = {false};
    const uint64_t full_tiles = rkvi_div_up(cfg->capacity_cells, cfg->tile_cells);
    cfg->capacity_tiles = full_tiles + cfg->n_sequences - 1;
    if (cfg->capacity_tiles >= UINT32_MAX)
        return rkvi_fail(
            RKV_E_OVERFLOW,
            "capacity_cells %llu are %llu tiles of %u cells; at most 2^32 - 2 tiles can be numbered",
            (unsigned long long)cfg->capacity_cells, (unsigned long long)cfg->capacity_tiles,
            cfg->tile_cells);
    if ((cfg->n_sequences > 1 ? 2 : 1) * cfg->capacity_tiles * cfg->n_sites >= UINT32_MAX)
        return rkvi_fail(
            RKV_E_OVERFLOW,
            "a step at %llu tiles and %u sites could read 2^32 tile-layers or more, which can't be "
            "numbered; use larger tiles, or fewer cells",
            (unsigned long long)cfg->capacity_tiles, cfg->n_sites);
    size_places(&x, cfg, trial);
    const rkv_status s = x.exceeded ? too_large(cfg) : rkvi_config_ring(cfg, wish, trial);
    if (s != RKV_OK)
        return s;
    size_host(&x, cfg);
    size_transit(&x, cfg);
    size_spans(&x, cfg);
    size_partials(&x, cfg);
    rkvi_config_size_cpu(cfg);
    size_turned(&x, cfg);
    size_tables(&x, cfg);
    size_sum(&x, cfg);
    return x.exceeded ? too_large(cfg) : RKV_OK;
}
