/* plan_site.c: the launches, items, merges and nodes of one site. */
#include "plan_work.h"

#include <stdlib.h>
#include <string.h>

/* What the steps below pass to each other. */
typedef struct site_plan {
    rkvi_plan *p;
    const rkvi_plan_view *v;
    rkvi_plan_work *w;
    rkvi_plan_site *site;
    rkvi_plan_launch *launches;
    const rkvi_span *spans;      /* of the site's class */
    const uint64_t *span0;
    const uint32_t *tile_launch; /* [base] */
    uint64_t target;             /* decode items wanted of a launch */
    uint64_t slots_a_pair;       /* partial slots for each pair of launch and entry */
    bool in_order;               /* device leaves, else with launch 0 */
    uint32_t most_k;             /* runs of at most 2^most_k leaves: least_room counts on it */
    uint64_t most_items;         /* until now */
    uint64_t n_padded;           /* items, with empty ones */
    uint64_t pad_unit;           /* fixed: launch 0 has this many items, or 2^i times as many */
    rkvi_merge_item *merges;     /* in the mirror */
    rkvi_node *nodes;
} site_plan;

/* ------------------------------------------------------------------- leaves */

/* First leaf in [a, z) whose end is after pos (positions rise along spans). */
static uint64_t first_leaf_after(const rkvi_span *s, uint64_t a, uint64_t z, int64_t pos)
{
    while (a < z) {
        const uint64_t mid = a + (z - a) / 2;
        if (s[mid].pos + s[mid].count > pos)
            z = mid;
        else
            a = mid + 1;
    }
    return a;
}

uint64_t rkvi_plan_leaf_after(const rkvi_span *spans, uint64_t n, int64_t pos)
{
    return first_leaf_after(spans, 0, n, pos);
}

static void seen_leaves(const rkvi_span *s, uint64_t n, int64_t lo, int64_t hi, uint64_t *out_a, uint64_t *out_z)
{
    *out_a = first_leaf_after(s, 0, n, lo);
    *out_z = lo < hi ? first_leaf_after(s, 0, n, hi - 1) : *out_a;
    if (lo < hi && *out_z < n && s[*out_z].pos < hi)
        ++*out_z;
}

/* Launch of every leaf of the entry, into leaf_launch[span0 + leaf].  Leaves on
 * the device: launch 0, or (in_order) that of the tail leaf before them, so
 * that launches never fall along the leaves. */
static void set_leaf_launches(site_plan *sp, uint32_t e, bool in_order)
{
    const uint64_t first = sp->span0[e], n = sp->span0[e + 1] - first;
    uint32_t *out = sp->p->leaf_launch + first;
    uint32_t last = 0;
    for (uint64_t i = 0; i < n; i++) {
        out[i] = sp->tile_launch[sp->w->base0[e] + sp->spans[first + i].tile];
        if (out[i] == RKVI_TILE_DEVICE)
            out[i] = in_order ? last : 0;
        else if (out[i] != RKVI_TILE_UNSEEN)
            last = out[i];
    }
}

/* -------------------------------------------------------------------- items */

static bool add_item(site_plan *sp, const rkvi_item *item, uint32_t launch)
{
    rkvi_plan_work *w = sp->w;
    if (w->n_items == sp->most_items)
        return false;
    w->items[w->n_items] = *item;
    w->item_launch[w->n_items++] = launch;
    return true;
}

static bool add_run(site_plan *sp, uint32_t e, uint64_t a, uint64_t z, uint32_t launch)
{
    const rkvi_item item = {
        .entry = e, .n_rows = sp->v->batch->entries[e].n_rows, .leaf0 = a, .leaf1 = z};
    return add_item(sp, &item, launch);
}

/* How an entry's leaves are cut into items. */
typedef struct cut {
    uint32_t entry;
    uint64_t most_items; /* of a launch, but for its two ends */
    uint64_t seen[2];    /* leaves [a, z) */
} cut;

/* Items of an entry's launch that the site's tables hold, besides the 2k of its
 * ends: size_site_tables of config_sizes.c counts pairs of launch and entry. */
static uint64_t most_by_tables(const site_plan *sp, uint32_t k)
{
    const uint32_t bits = rkvi_bit_width(sp->v->cfg->max_spans);
    return sp->slots_a_pair + (bits > k ? 2 * (uint64_t)(bits - k) : 0);
}

/* Run length for n leaves of an entry's launch: the shortest that gives all of
 * the launch no more items than wanted, and the entry no more than have room. */
static uint32_t choose_run(const site_plan *sp, const cut *c, uint64_t n, uint32_t launch)
{
    const uint64_t listed = sp->launches[launch].n_leaves, all = listed > n ? listed : n;
    uint32_t k = 0;
    while (k < sp->most_k && (all >> k > sp->target || n >> k > c->most_items || n >> k > most_by_tables(sp, k)))
        k++;
    return k;
}

/* Leaves [a, z) of one launch as aligned runs of at most 2^k.  A run that holds
 * all that is seen of its aligned block is one item, short or not. */
static bool add_runs(site_plan *sp, const cut *c, uint64_t a, uint64_t z, uint32_t launch)
{
    const uint64_t run = (uint64_t)1 << choose_run(sp, c, z - a, launch), *seen = c->seen;
    while (a < z) {
        const uint64_t block = a & ~(run - 1), block_end = block + run;
        const uint64_t end = z < block_end ? z : block_end;
        const bool whole = (a == block || a == seen[0]) && (end == block_end || end == seen[1]);
        uint64_t size = end - a;
        if (!whole) {
            size = a == block ? run : a & -a;
            while (size > end - a)
                size /= 2;
        }
        if (!add_run(sp, c->entry, a, a + size, launch))
            return false;
        a += size;
    }
    return true;
}

static bool decode_items(site_plan *sp, const cut *c)
{
    const uint32_t *launch = sp->p->leaf_launch + sp->span0[c->entry];
    for (uint64_t a = c->seen[0], end; a < c->seen[1]; a = end) {
        end = a + 1;
        while (end < c->seen[1] && launch[end] == launch[a])
            end++;
        if (launch[a] != RKVI_TILE_UNSEEN && !add_runs(sp, c, a, end, launch[a]))
            return false;
    }
    return true;
}

/* A block of rows goes through its leaves in order: launch g takes it up to the
 * first leaf that comes with a later launch. */
static bool prefill_block(site_plan *sp, uint32_t e, uint32_t row, uint32_t n_rows)
{
    const rkvi_batch *b = sp->v->batch;
    const rkvi_batch_entry *be = &b->entries[e];
    const rkvi_batch_entry block = {.row0 = be->row0 + row, .n_rows = n_rows};
    const uint32_t *launch = sp->p->leaf_launch + sp->span0[e];
    const rkvi_site_mask mask = sp->v->cfg->sites[sp->site - sp->p->sites].mask;
    rkvi_item item = {.entry = e, .row = row, .n_rows = n_rows, .flags = RKVI_ITEM_FIRST,
                      .slot = (uint64_t)be->row0 + row};
    int64_t lo, hi;
    uint64_t a, z;
    rkvi_plan_range(b, &block, mask, &lo, &hi);
    seen_leaves(sp->spans + sp->span0[e], sp->span0[e + 1] - sp->span0[e], lo, hi, &a, &z);
    while (a < z) {
        uint64_t end = a + 1;
        const uint32_t g = launch[a] == RKVI_TILE_UNSEEN ? 0 : launch[a];
        while (end < z && (launch[end] == RKVI_TILE_UNSEEN || launch[end] <= g))
            end++;
        item.leaf0 = a;
        item.leaf1 = end;
        if (!add_item(sp, &item, g))
            return false;
        item.flags = 0;
        sp->w->block_seen[be->row0 + row] = true;
        a = end;
    }
    return true;
}

static void seen_by_entry(const site_plan *sp, uint32_t e, uint64_t seen[2])
{
    const rkvi_batch *b = sp->v->batch;
    int64_t lo, hi;
    rkvi_plan_range(b, &b->entries[e], sp->v->cfg->sites[sp->site - sp->p->sites].mask, &lo, &hi);
    seen_leaves(sp->spans + sp->span0[e], sp->span0[e + 1] - sp->span0[e], lo, hi, &seen[0], &seen[1]);
}

/* Decode leaves of each launch, those on the device with launch 0. */
static void count_leaves(site_plan *sp)
{
    for (uint32_t g = 0; g < sp->site->n_launches; g++)
        sp->launches[g].n_leaves = 0;
    for (uint32_t e = 0; e < sp->v->batch->n_entries; e++) {
        uint64_t seen[2];
        if (sp->v->batch->entries[e].is_prefill)
            continue;
        seen_by_entry(sp, e, seen);
        set_leaf_launches(sp, e, false);
        for (uint64_t i = seen[0]; i < seen[1]; i++) {
            const uint32_t g = sp->p->leaf_launch[sp->span0[e] + i];
            if (g != RKVI_TILE_UNSEEN)
                sp->launches[g].n_leaves++;
        }
    }
}

/* A launch has the places that pending partials leave (least_room).  Those
 * after the tail's leaves are pending too where device leaves come first. */
static bool decode_entry(site_plan *sp, uint32_t e)
{
    rkvi_entry_nodes *nodes = &sp->w->nodes[e];
    const uint64_t first = sp->w->n_items, n = sp->span0[e + 1] - sp->span0[e];
    const uint64_t pending = rkvi_pending_nodes(n) + (sp->in_order ? 0 : rkvi_bit_width(n));
    cut c = {.entry = e, .most_items = nodes->room > pending ? nodes->room - pending : 0};
    seen_by_entry(sp, e, c.seen);
    set_leaf_launches(sp, e, sp->in_order);
    const bool ok = decode_items(sp, &c);
    nodes->n_items = sp->w->n_items - first;
    nodes->tail_end = 0;
    for (uint64_t i = first; i < sp->w->n_items; i++)
        if (sp->w->item_launch[i] > 0)
            nodes->tail_end = sp->w->items[i].leaf1;
    return ok;
}

static bool entry_items(site_plan *sp, uint32_t e)
{
    const rkvi_batch_entry *be = &sp->v->batch->entries[e];
    if (!be->is_prefill)
        return decode_entry(sp, e);
    set_leaf_launches(sp, e, false);
    for (uint32_t row = 0; row < be->n_rows; row += RKVI_PREFILL_ROWS) {
        const uint32_t left = be->n_rows - row;
        sp->w->block_seen[be->row0 + row] = false;
        if (!prefill_block(sp, e, row, left < RKVI_PREFILL_ROWS ? left : RKVI_PREFILL_ROWS))
            return false;
    }
    return true;
}

/* Longest runs, which all launches together have room for. */
static uint32_t choose_most_k(const site_plan *sp)
{
    const rkvi_batch *b = sp->v->batch;
    for (uint32_t k = 0; k < 31; k++) {
        uint64_t runs = 0, slots = 0, n = 0;
        for (uint32_t e = 0; e < b->n_entries; e++)
            if (!b->entries[e].is_prefill) {
                const uint64_t r = (sp->span0[e + 1] - sp->span0[e]) >> k;
                runs += r;
                slots += r * b->entries[e].n_rows;
                n++;
            }
        if (runs <= sp->target + n && slots <= RKVI_RUN_SLOTS / 4)
            return k;
    }
    return 31;
}

/* Least places of an entry: what is pending, with a launch's runs (config has
 * the sum, choose_most_k the whole runs); or one a leaf. */
static uint64_t least_room(const site_plan *sp, uint32_t e)
{
    const uint64_t n = sp->span0[e + 1] - sp->span0[e];
    const uint64_t least = rkvi_pending_nodes(n) + (n >> sp->most_k);
    return least < n ? least : n;
}

/* Shares the slots behind the prefill states among the decode entries: the
 * least for each, the rest by rows. */
static bool share_slots(site_plan *sp)
{
    const rkvi_batch *b = sp->v->batch;
    const rkvi_config *cfg = sp->v->cfg;
    uint64_t rows = 0, least = 0, slot = cfg->max_rows, at = 0;
    for (uint32_t e = 0; e < b->n_entries; e++)
        if (!b->entries[e].is_prefill) {
            rows += b->entries[e].n_rows;
            least += b->entries[e].n_rows * least_room(sp, e);
        }
    if (least > cfg->partial_slots - cfg->max_rows)
        return false;
    const uint64_t more = rows ? (cfg->partial_slots - cfg->max_rows - least) / rows : 0;
    for (uint32_t e = 0; e < b->n_entries; e++) {
        const uint64_t room = b->entries[e].is_prefill ? 0 : least_room(sp, e) + more;
        sp->w->nodes[e] = (rkvi_entry_nodes){
            .slot0 = slot, .room = room, .live = sp->w->live + at, .free = sp->w->free + at};
        slot += room * b->entries[e].n_rows;
        at += room;
    }
    return true;
}

/* ----------------------------------------------------------- sort by launch */

static uint64_t kind_of(const site_plan *sp, uint64_t i)
{
    return sp->v->batch->entries[sp->w->items[i].entry].is_prefill;
}

/* Items of a launch with the empty ones that keep its size.  What lies on the
 * device grows, so launch 0 has room for what its work may be cut into; the
 * tail's leaves are the same from step to step. */
static uint64_t padded(const site_plan *sp, uint32_t launch, uint64_t n)
{
    uint64_t room = launch ? rkvi_align_up(n, 8) : sp->pad_unit;
    if (!sp->pad_unit || n == 0)
        return n;
    while (room < n)
        room *= 2;
    return room;
}

/* Sets each launch's ranges of items, decode before prefill; returns how many
 * there are, empty ones included. */
static uint64_t lay_out_launches(site_plan *sp)
{
    rkvi_plan_work *w = sp->w;
    const uint32_t n = sp->site->n_launches;
    uint64_t at = 0;
    for (uint32_t g = 0; g < n; g++)
        sp->launches[g] = (rkvi_plan_launch){.n_leaves = sp->launches[g].n_leaves};
    for (uint64_t i = 0; i < w->n_items; i++) {
        rkvi_plan_launch *l = &sp->launches[w->item_launch[i]];
        kind_of(sp, i) ? l->n_prefill++ : l->n_decode++;
    }
    for (uint32_t g = 0; g < n; g++) {
        rkvi_plan_launch *l = &sp->launches[g];
        l->decode0 = at;
        l->grid_decode = padded(sp, g, l->n_decode);
        l->prefill0 = at + l->grid_decode;
        at = l->prefill0 + l->n_prefill;
    }
    return at;
}

/* Writes the items into the mirror by launch. */
static void sort_items(site_plan *sp, rkvi_item *out)
{
    rkvi_plan_work *w = sp->w;
    for (uint32_t g = 0; g < sp->site->n_launches; g++) {
        rkvi_plan_launch *l = &sp->launches[g];
        if (l->grid_decode > l->n_decode)
            memset(out + l->decode0 + l->n_decode, 0, (l->grid_decode - l->n_decode) * sizeof *out);
        l->n_decode = l->n_prefill = 0;
    }
    const rkvi_layer_config *lc = &sp->v->cfg->layers[sp->v->cfg->sites[sp->site - sp->p->sites].kv_layer];
    for (uint64_t i = 0; i < w->n_items; i++) {
        rkvi_plan_launch *l = &sp->launches[w->item_launch[i]];
        const rkvi_item *it = &w->items[i];
        const uint64_t slot = kind_of(sp, i) ? l->prefill0 + l->n_prefill++ : l->decode0 + l->n_decode++;
        out[slot] = *it;
        l->cost_bytes += (it->leaf1 - it->leaf0) * lc->geom.leaf_cells * (lc->geom.bytes / lc->geom.tile_cells);
    }
}

/* ------------------------------------------------------------ slots, merges */

static int by_leaf(const void *a, const void *b)
{
    const rkvi_live_node *x = a, *y = b;
    return x->leaf0 < y->leaf0 ? -1 : x->leaf0 > y->leaf0;
}

static uint32_t take_place(rkvi_entry_nodes *n)
{
    return n->n_free ? n->free[--n->n_free] : (uint32_t)n->n_used++;
}

static uint64_t slot_of(const site_plan *sp, uint32_t e, uint32_t place)
{
    return sp->w->nodes[e].slot0 + (uint64_t)place * sp->v->batch->entries[e].n_rows;
}

static bool add_merge(site_plan *sp, const rkvi_merge_item *item, const rkvi_live_node *live)
{
    rkvi_plan_work *w = sp->w;
    const rkvi_config *cfg = sp->v->cfg;
    if (w->n_merges == cfg->max_merges_site || w->n_nodes + item->n_nodes > cfg->max_nodes_site)
        return false;
    rkvi_merge_item *m = &sp->merges[w->n_merges++];
    *m = *item;
    m->node0 = w->n_nodes;
    for (uint32_t i = 0; i < item->n_nodes; i++)
        sp->nodes[w->n_nodes++] =
            (rkvi_node){.leaf0 = live[i].leaf0, .slot = slot_of(sp, item->entry, live[i].place)};
    return true;
}

/* Merges of one entry between two launches. */
typedef struct compaction {
    uint32_t entry;
    uint64_t later; /* leaves from here on, */
    uint64_t end;   /* up to here, come with later launches */
    uint64_t n_out; /* nodes left */
    uint64_t n_free;/* places to be free once the merges have run */
} compaction;

/* Brings n nodes, all in the subtree of 2^level leaves from `leaf`, down to one
 * per subtree that is complete.  Merges run in parallel, so what they read
 * stays until all have run. */
static bool bring_together(site_plan *sp, compaction *c, const rkvi_live_node *live, uint64_t n, uint64_t leaf,
                           uint32_t level)
{
    rkvi_entry_nodes *nodes = &sp->w->nodes[c->entry];
    if (n > 1 && leaf + ((uint64_t)1 << level) > c->later && leaf < c->end) {
        const uint64_t mid = leaf + ((uint64_t)1 << (level - 1));
        uint64_t left = 0;
        while (left < n && live[left].leaf0 < mid)
            left++;
        return bring_together(sp, c, live, left, leaf, level - 1) &&
               bring_together(sp, c, live + left, n - left, mid, level - 1);
    }
    if (n <= 1) {
        if (n)
            nodes->live[c->n_out++] = live[0];
        return true;
    }
    const rkvi_live_node to = {.leaf0 = live[0].leaf0, .place = take_place(nodes)};
    const rkvi_merge_item item = {.entry = c->entry,
                                  .n_rows = sp->v->batch->entries[c->entry].n_rows,
                                  .n_nodes = (uint32_t)n,
                                  .dst = slot_of(sp, c->entry, to.place)};
    if (nodes->n_used > nodes->room || !add_merge(sp, &item, live))
        return false;
    for (uint64_t i = 0; i < n; i++) /* behind the free ones, of which others still take */
        nodes->free[nodes->room - ++c->n_free] = live[i].place;
    nodes->live[c->n_out++] = to;
    return true;
}

/* An entry's pending partials, as few as can be before leaf `later` comes. */
static bool compact(site_plan *sp, uint32_t e, uint64_t later)
{
    rkvi_entry_nodes *nodes = &sp->w->nodes[e];
    compaction c = {.entry = e, .later = later, .end = nodes->tail_end};
    qsort(nodes->live, nodes->n_live, sizeof *nodes->live, by_leaf);
    if (!bring_together(sp, &c, nodes->live, nodes->n_live, 0, rkvi_bit_width(sp->span0[e + 1] - sp->span0[e])))
        return false;
    memmove(nodes->free + nodes->n_free, nodes->free + nodes->room - c.n_free, c.n_free * sizeof *nodes->free);
    nodes->n_free += c.n_free;
    nodes->n_live = c.n_out;
    return true;
}

/* Gives n items of one entry and launch the slots of their partials. */
static bool place_items(site_plan *sp, rkvi_item *items, uint64_t n)
{
    const uint32_t e = items[0].entry;
    rkvi_entry_nodes *nodes = &sp->w->nodes[e];
    const uint64_t merged = rkvi_bit_width(sp->span0[e + 1] - sp->span0[e]);
    if (nodes->n_items > nodes->room && nodes->n_live + n + merged > nodes->room &&
        !compact(sp, e, items[0].leaf0))
        return false;
    if (nodes->n_live + n > nodes->room)
        return false;
    for (uint64_t i = 0; i < n; i++) {
        const rkvi_live_node node = {.leaf0 = items[i].leaf0, .place = take_place(nodes)};
        items[i].slot = slot_of(sp, e, node.place);
        nodes->live[nodes->n_live++] = node;
    }
    return true;
}

/* Empty merges, up to a power of two. */
static void pad_merges(site_plan *sp, uint64_t first)
{
    rkvi_plan_work *w = sp->w;
    const uint64_t n = w->n_merges - first;
    while (sp->pad_unit && n && ((w->n_merges - first) & (w->n_merges - first - 1)) &&
           w->n_merges < sp->v->cfg->max_merges_site)
        sp->merges[w->n_merges++] = (rkvi_merge_item){.n_rows = 0};
}

/* Merges that make room for a launch come after the launch before it. */
static bool give_slots(site_plan *sp, rkvi_item *items)
{
    rkvi_plan_work *w = sp->w;
    for (uint32_t g = 0; g < sp->site->n_launches; g++) {
        const rkvi_plan_launch *l = &sp->launches[g];
        const uint64_t first_merge = w->n_merges, end = l->decode0 + l->n_decode;
        for (uint64_t i = l->decode0, z; i < end; i = z) {
            for (z = i + 1; z < end && items[z].entry == items[i].entry;)
                z++;
            if (!place_items(sp, items + i, z - i))
                return false;
        }
        pad_merges(sp, first_merge);
        if (g > 0) {
            sp->launches[g - 1].merge0 = first_merge;
            sp->launches[g - 1].n_merge = w->n_merges - first_merge;
        }
    }
    return true;
}

static bool merge_decode(site_plan *sp, uint32_t e)
{
    rkvi_entry_nodes *nodes = &sp->w->nodes[e];
    const rkvi_merge_item item = {.entry = e,
                                  .n_rows = sp->v->batch->entries[e].n_rows,
                                  .n_nodes = (uint32_t)nodes->n_live,
                                  .dst = RKVI_TO_OUT};
    qsort(nodes->live, nodes->n_live, sizeof *nodes->live, by_leaf);
    return add_merge(sp, &item, nodes->live);
}

/* A block's state is the one node, in the slot of its first row. */
static bool merge_prefill(site_plan *sp, uint32_t e)
{
    rkvi_plan_work *w = sp->w;
    const rkvi_batch_entry *be = &sp->v->batch->entries[e];
    for (uint32_t row = 0; row < be->n_rows; row += RKVI_PREFILL_ROWS) {
        const uint32_t left = be->n_rows - row;
        const rkvi_live_node state = {.place = 0};
        const rkvi_merge_item item = {.entry = e,
                                      .row = row,
                                      .n_rows = left < RKVI_PREFILL_ROWS ? left : RKVI_PREFILL_ROWS,
                                      .n_nodes = w->block_seen[be->row0 + row],
                                      .dst = RKVI_TO_OUT};
        w->nodes[e].slot0 = (uint64_t)be->row0 + row;
        if (!add_merge(sp, &item, &state))
            return false;
    }
    return true;
}

/* The last merge: each decode entry's nodes, each prefill block's state. */
static bool final_merges(site_plan *sp)
{
    const rkvi_batch *b = sp->v->batch;
    sp->site->merge0 = sp->w->n_merges;
    for (uint32_t e = 0; e < b->n_entries; e++)
        if (!(b->entries[e].is_prefill ? merge_prefill(sp, e) : merge_decode(sp, e)))
            return false;
    sp->site->n_merge = sp->w->n_merges - sp->site->merge0;
    return true;
}

static rkv_status too_small(const site_plan *sp)
{
    return rkvi_fail(RKV_E_CAPACITY,
                     "a batch of %u entries and %u rows over %llu launches of a site exceeds the step's tables "
                     "or its room for partials; use fewer rows a step or a larger ring",
                     sp->v->batch->n_entries, sp->v->batch->n_rows, (unsigned long long)sp->site->n_launches);
}

static bool plan_items(site_plan *sp, rkvi_mirror *m)
{
    rkvi_plan *p = sp->p;
    rkvi_plan_work *w = sp->w;
    const rkvi_config *cfg = sp->v->cfg;
    w->n_items = w->n_merges = w->n_nodes = 0;
    if (!share_slots(sp))
        return false;
    for (uint32_t e = 0; e < sp->v->batch->n_entries; e++)
        if (!entry_items(sp, e))
            return false;
    uint64_t n_items = lay_out_launches(sp);
    if (n_items > cfg->max_items_site) { /* no room for empty ones */
        sp->pad_unit = 0;
        n_items = lay_out_launches(sp);
    }
    sp->n_padded = n_items;
    if (!rkvi_mirror_room(p, m, n_items, sizeof(rkvi_item), &sp->site->items_off) ||
        !rkvi_mirror_room(p, m, cfg->max_merges_site, sizeof(rkvi_merge_item), &sp->site->merges_off) ||
        !rkvi_mirror_room(p, m, cfg->max_nodes_site, sizeof(rkvi_node), &sp->site->nodes_off))
        return false;
    sp->merges = (rkvi_merge_item *)(m->host + sp->site->merges_off);
    sp->nodes = (rkvi_node *)(m->host + sp->site->nodes_off);
    rkvi_item *items = (rkvi_item *)(m->host + sp->site->items_off);
    sort_items(sp, items);
    return give_slots(sp, items) && final_merges(sp);
}

/* Device leaves come with launch 0, so that they are computed while the first
 * tail tiles cross.  Partials on both sides of the tail's leaves can be merged
 * between launches; where those among them don't have room, device leaves come
 * in order instead, which bounds what is pending. */
rkv_status rkvi_plan_site_items(rkvi_plan *p, const rkvi_plan_view *v, uint32_t site, rkvi_mirror *m)
{
    rkvi_plan_work *w = p->work;
    const rkvi_config *cfg = v->cfg;
    const uint32_t class = cfg->layers[cfg->sites[site].kv_layer].leaf_class;
    site_plan sp = {.p = p,
                    .v = v,
                    .w = w,
                    .site = &p->sites[site],
                    .launches = &p->launches[p->sites[site].launch0],
                    .spans = (const rkvi_span *)(m->host + p->classes[class].spans_off),
                    .span0 = w->span0[class],
                    .tile_launch = p->tile_launch + site * p->n_bases,
                    .most_items = cfg->max_items_site};
    const uint64_t table_bytes = p->table_bytes;
    sp.target = v->target_runs / cfg->layers[cfg->sites[site].kv_layer].geom.n_heads;
    sp.slots_a_pair = cfg->partial_slots / (sp.site->n_launches + 3 * (uint64_t)v->batch->n_entries);
    sp.most_k = choose_most_k(&sp);
    /* Runs of about `target` in all (choose_run, choose_most_k), with their ends. */
    sp.pad_unit = v->fixed ? sp.target + 4 * (uint64_t)v->batch->n_entries : 0;
    count_leaves(&sp);
    if (!plan_items(&sp, m)) {
        p->table_bytes = table_bytes;
        sp.in_order = true;
        if (!plan_items(&sp, m))
            return too_small(&sp);
    }
    /* Give back what the merges and nodes did not need. */
    const uint64_t nodes_off = rkvi_align_up(sp.site->merges_off + w->n_merges * sizeof(rkvi_merge_item), 256);
    memmove(m->host + nodes_off, sp.nodes, w->n_nodes * sizeof(rkvi_node));
    sp.site->nodes_off = nodes_off;
    /* Fixed: what follows keeps its place.  Each item's result is a node, and each merge's. */
    p->table_bytes = nodes_off + (v->fixed ? sp.n_padded + w->n_merges : w->n_nodes) * sizeof(rkvi_node);
    return RKV_OK;
}
