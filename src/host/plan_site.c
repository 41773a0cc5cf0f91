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
    uint32_t k;                  /* runs of 2^k leaves */
    uint64_t half_slots;         /* partial slots: two halves behind the prefill states */
    uint32_t half;               /* in use */
    uint64_t used_slots;
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

static void seen_leaves(const rkvi_span *s, uint64_t n, int64_t lo, int64_t hi, uint64_t *out_a, uint64_t *out_z)
{
    *out_a = first_leaf_after(s, 0, n, lo);
    *out_z = lo < hi ? first_leaf_after(s, 0, n, hi - 1) : *out_a;
    if (lo < hi && *out_z < n && s[*out_z].pos < hi)
        ++*out_z;
}

/* Launch of every leaf of the entry, into leaf_launch[span0 + leaf].  Leaves on
 * the device: launch 0, or, with many changes between device and tail, that of
 * the tail leaf before them. */
static void set_leaf_launches(site_plan *sp, uint32_t e, bool prefill)
{
    const uint64_t first = sp->span0[e], n = sp->span0[e + 1] - first;
    uint32_t *out = sp->p->leaf_launch + first;
    uint32_t changes = 0, last = 0;
    for (uint64_t i = 0; i < n; i++) {
        out[i] = sp->tile_launch[sp->w->base0[e] + sp->spans[first + i].tile];
        changes += i > 0 && (out[i] == RKVI_TILE_DEVICE) != (out[i - 1] == RKVI_TILE_DEVICE);
    }
    for (uint64_t i = 0; i < n; i++) {
        if (out[i] == RKVI_TILE_DEVICE)
            out[i] = changes > RKVI_CHANGES_MAX && !prefill ? last : 0;
        else if (out[i] != RKVI_TILE_UNSEEN)
            last = out[i];
    }
}

/* -------------------------------------------------------------------- items */

static bool add_item(site_plan *sp, const rkvi_item *item, uint32_t launch)
{
    rkvi_plan_work *w = sp->w;
    if (w->n_items == sp->v->cfg->max_items_site)
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

/* Leaves [a, z) of one launch as aligned runs of at most 2^k.  A run that holds
 * all that is seen ([la, lz)) of its aligned block is one item, short or not. */
static bool add_runs(site_plan *sp, uint32_t e, uint64_t a, uint64_t z, const uint64_t seen[2], uint32_t launch)
{
    const uint64_t run = (uint64_t)1 << sp->k;
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
        if (!add_run(sp, e, a, a + size, launch))
            return false;
        a += size;
    }
    return true;
}

static bool decode_items(site_plan *sp, uint32_t e, uint64_t a, uint64_t z)
{
    const uint32_t *launch = sp->p->leaf_launch + sp->span0[e];
    const uint64_t seen[2] = {a, z};
    while (a < z) {
        uint64_t end = a + 1;
        while (end < z && launch[end] == launch[a])
            end++;
        if (launch[a] != RKVI_TILE_UNSEEN && !add_runs(sp, e, a, end, seen, launch[a]))
            return false;
        a = end;
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
        a = end;
    }
    return true;
}

static bool entry_items(site_plan *sp, uint32_t e)
{
    const rkvi_batch *b = sp->v->batch;
    const rkvi_batch_entry *be = &b->entries[e];
    const rkvi_site_mask mask = sp->v->cfg->sites[sp->site - sp->p->sites].mask;
    int64_t lo, hi;
    uint64_t a, z;
    set_leaf_launches(sp, e, be->is_prefill);
    if (!be->is_prefill) {
        rkvi_plan_range(b, be, mask, &lo, &hi);
        seen_leaves(sp->spans + sp->span0[e], sp->span0[e + 1] - sp->span0[e], lo, hi, &a, &z);
        return decode_items(sp, e, a, z);
    }
    for (uint32_t row = 0; row < be->n_rows; row += RKVI_PREFILL_ROWS) {
        const uint32_t left = be->n_rows - row;
        if (!prefill_block(sp, e, row, left < RKVI_PREFILL_ROWS ? left : RKVI_PREFILL_ROWS))
            return false;
    }
    return true;
}

/* Run length: few enough runs for the room of partials and for the workers. */
static uint32_t choose_k(const site_plan *sp)
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
        if (runs <= sp->v->target_runs + n && slots <= RKVI_RUN_SLOTS / 4)
            return k;
    }
    return 31;
}

/* ----------------------------------------------------------- sort by launch */

static uint64_t kind_of(const site_plan *sp, uint64_t i)
{
    return sp->v->batch->entries[sp->w->items[i].entry].is_prefill;
}

/* Writes the items into the mirror by launch, decode before prefill, and sets
 * each launch's ranges. */
static void sort_items(site_plan *sp, rkvi_item *out)
{
    rkvi_plan_work *w = sp->w;
    const uint32_t n = sp->site->n_launches;
    for (uint32_t g = 0; g < n; g++)
        sp->launches[g] = (rkvi_plan_launch){0};
    for (uint64_t i = 0; i < w->n_items; i++) {
        rkvi_plan_launch *l = &sp->launches[w->item_launch[i]];
        kind_of(sp, i) ? l->n_prefill++ : l->n_decode++;
    }
    uint64_t at = 0;
    for (uint32_t g = 0; g < n; g++) {
        rkvi_plan_launch *l = &sp->launches[g];
        l->decode0 = at;
        l->prefill0 = at + l->n_decode;
        at += l->n_decode + l->n_prefill;
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

static int by_entry_and_leaf(const void *a, const void *b)
{
    const rkvi_live_node *x = a, *y = b;
    if (x->entry != y->entry)
        return x->entry < y->entry ? -1 : 1;
    return x->leaf0 < y->leaf0 ? -1 : x->leaf0 > y->leaf0;
}

static uint64_t slot_base(const site_plan *sp)
{
    return sp->v->cfg->max_rows + sp->half * sp->half_slots;
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
        sp->nodes[w->n_nodes++] = (rkvi_node){.leaf0 = live[i].leaf0, .slot = live[i].slot};
    return true;
}

/* Are there leaves of launches after g in [a, z)? */
static bool has_later(const site_plan *sp, uint32_t e, uint64_t a, uint64_t z, uint32_t g)
{
    const uint64_t n = sp->span0[e + 1] - sp->span0[e];
    const uint32_t *launch = sp->p->leaf_launch + sp->span0[e];
    for (uint64_t i = a; i < z && i < n; i++)
        if (launch[i] != RKVI_TILE_UNSEEN && launch[i] > g)
            return true;
    return false;
}

/* Brings the n nodes of one entry, all in the subtree of 2^level leaves from
 * `leaf`, down to one per subtree that is complete. */
static bool bring_together(site_plan *sp, rkvi_live_node *live, uint64_t n, uint64_t leaf, uint32_t level,
                           uint32_t g, uint64_t *n_out)
{
    if (n == 0)
        return true;
    const uint32_t e = live[0].entry, rows = sp->v->batch->entries[e].n_rows;
    if (n > 1 && has_later(sp, e, leaf, leaf + ((uint64_t)1 << level), g)) {
        const uint64_t mid = leaf + ((uint64_t)1 << (level - 1));
        uint64_t left = 0;
        while (left < n && live[left].leaf0 < mid)
            left++;
        return bring_together(sp, live, left, leaf, level - 1, g, n_out) &&
               bring_together(sp, live + left, n - left, mid, level - 1, g, n_out);
    }
    const rkvi_merge_item item = {.entry = e, .n_rows = rows, .n_nodes = (uint32_t)n,
                                  .dst = slot_base(sp) + sp->used_slots};
    if (sp->used_slots + rows > sp->half_slots || !add_merge(sp, &item, live))
        return false;
    sp->w->live[(*n_out)++] = (rkvi_live_node){.entry = e, .leaf0 = live[0].leaf0, .slot = item.dst};
    sp->used_slots += rows;
    return true;
}

/* After launch g: all pending partials into the other half, as few as can be. */
static bool compact(site_plan *sp, uint32_t g)
{
    rkvi_plan_work *w = sp->w;
    rkvi_plan_launch *l = &sp->launches[g];
    const uint64_t n = w->n_live;
    uint64_t n_out = 0;
    qsort(w->live, n, sizeof *w->live, by_entry_and_leaf);
    l->merge0 = w->n_merges;
    sp->half ^= 1;
    sp->used_slots = 0;
    for (uint64_t i = 0; i < n;) {
        uint64_t z = i;
        while (z < n && w->live[z].entry == w->live[i].entry)
            z++;
        if (!bring_together(sp, w->live + i, z - i, 0, 40, g, &n_out))
            return false;
        i = z;
    }
    w->n_live = n_out;
    l->n_merge = w->n_merges - l->merge0;
    return true;
}

static uint64_t launch_slots(const site_plan *sp, const rkvi_plan_launch *l, const rkvi_item *items)
{
    uint64_t n = 0;
    for (uint64_t i = l->decode0; i < l->decode0 + l->n_decode; i++)
        n += items[i].n_rows;
    (void)sp;
    return n;
}

/* Gives each decode item the slots of its partials. */
static bool give_slots(site_plan *sp, rkvi_item *items)
{
    rkvi_plan_work *w = sp->w;
    for (uint32_t g = 0; g < sp->site->n_launches; g++) {
        rkvi_plan_launch *l = &sp->launches[g];
        const uint64_t need = launch_slots(sp, l, items);
        if (sp->used_slots + need > sp->half_slots && g > 0 && !compact(sp, g - 1))
            return false;
        if (sp->used_slots + need > sp->half_slots || w->n_live + l->n_decode > w->live_room)
            return false;
        for (uint64_t i = l->decode0; i < l->decode0 + l->n_decode; i++) {
            items[i].slot = slot_base(sp) + sp->used_slots;
            sp->used_slots += items[i].n_rows;
            w->live[w->n_live++] = (rkvi_live_node){
                .entry = items[i].entry, .leaf0 = items[i].leaf0, .slot = items[i].slot};
        }
    }
    return true;
}

static bool seen_by_block(const site_plan *sp, uint32_t e, uint32_t row)
{
    for (uint64_t i = 0; i < sp->w->n_items; i++)
        if (sp->w->items[i].entry == e && sp->w->items[i].row == row)
            return true;
    return false;
}

/* The last merge: each decode entry's nodes, each prefill block's state. */
static bool final_merges(site_plan *sp)
{
    rkvi_plan_work *w = sp->w;
    const rkvi_batch *b = sp->v->batch;
    uint64_t at = 0;
    qsort(w->live, w->n_live, sizeof *w->live, by_entry_and_leaf);
    sp->site->merge0 = w->n_merges;
    for (uint32_t e = 0; e < b->n_entries; e++) {
        const rkvi_batch_entry *be = &b->entries[e];
        uint64_t z = at;
        while (z < w->n_live && w->live[z].entry == e)
            z++;
        rkvi_merge_item item = {.entry = e, .n_rows = be->n_rows, .n_nodes = (uint32_t)(z - at), .dst = RKVI_TO_OUT};
        if (!be->is_prefill && !add_merge(sp, &item, w->live + at))
            return false;
        at = z;
        for (uint32_t row = 0; be->is_prefill && row < be->n_rows; row += RKVI_PREFILL_ROWS) {
            const rkvi_live_node state = {.entry = e, .slot = (uint64_t)be->row0 + row};
            const uint32_t left = be->n_rows - row;
            item.row = row;
            item.n_rows = left < RKVI_PREFILL_ROWS ? left : RKVI_PREFILL_ROWS;
            item.n_nodes = seen_by_block(sp, e, row);
            if (!add_merge(sp, &item, &state))
                return false;
        }
    }
    sp->site->n_merge = w->n_merges - sp->site->merge0;
    return true;
}

static rkv_status too_small(const site_plan *sp)
{
    return rkvi_fail(RKV_E_CAPACITY,
                     "a batch of %u entries and %u rows over %llu launches of a site exceeds the step's tables "
                     "or its room for partials; use fewer rows a step or a larger ring",
                     sp->v->batch->n_entries, sp->v->batch->n_rows, (unsigned long long)sp->site->n_launches);
}

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
                    .half_slots = (cfg->partial_slots - cfg->max_rows) / 2};
    w->n_items = w->n_live = w->n_merges = w->n_nodes = 0;
    sp.k = choose_k(&sp);
    for (uint32_t e = 0; e < v->batch->n_entries; e++)
        if (!entry_items(&sp, e))
            return too_small(&sp);
    if (!rkvi_mirror_room(p, m, w->n_items, sizeof(rkvi_item), &sp.site->items_off) ||
        !rkvi_mirror_room(p, m, cfg->max_merges_site, sizeof(rkvi_merge_item), &sp.site->merges_off) ||
        !rkvi_mirror_room(p, m, cfg->max_nodes_site, sizeof(rkvi_node), &sp.site->nodes_off))
        return too_small(&sp);
    sp.merges = (rkvi_merge_item *)(m->host + sp.site->merges_off);
    sp.nodes = (rkvi_node *)(m->host + sp.site->nodes_off);
    rkvi_item *items = (rkvi_item *)(m->host + sp.site->items_off);
    sort_items(&sp, items);
    if (!give_slots(&sp, items) || !final_merges(&sp))
        return too_small(&sp);
    /* Give back what the merges and nodes did not need. */
    const uint64_t nodes_off = rkvi_align_up(sp.site->merges_off + w->n_merges * sizeof(rkvi_merge_item), 256);
    memmove(m->host + nodes_off, sp.nodes, w->n_nodes * sizeof(rkvi_node));
    sp.site->nodes_off = nodes_off;
    p->table_bytes = nodes_off + w->n_nodes * sizeof(rkvi_node);
    return RKV_OK;
}
