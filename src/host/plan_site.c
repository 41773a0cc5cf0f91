/* plan_site.c: the launches, items, merges and nodes of one site. */
#include "plan_site.h"

#include <string.h>

static bool is_prefill(const rkvi_site_plan *sp, uint64_t i)
{
    return sp->w->item_stem[i] == RKVI_NONE;
}

/* Items of a launch with the empty ones that keep its size.  What lies on the
 * device grows, so launch 0 has room for what its work may be cut into; the
 * tail's leaves are the same from step to step. */
static uint64_t padded(const rkvi_site_plan *sp, uint32_t launch, uint64_t n)
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
static uint64_t lay_out_launches(rkvi_site_plan *sp)
{
    rkvi_plan_work *w = sp->w;
    const uint32_t n = sp->site->n_launches * sp->n_rounds;
    uint64_t at = 0;
    for (uint32_t g = 0; g < n; g++)
        sp->launches[g] = (rkvi_plan_launch){.n_leaves = sp->launches[g].n_leaves};
    for (uint64_t i = 0; i < w->n_items; i++) {
        rkvi_plan_launch *l = &sp->launches[w->item_launch[i]];
        is_prefill(sp, i) ? l->n_prefill++ : l->n_decode++;
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
static void sort_items(rkvi_site_plan *sp, rkvi_item *out)
{
    rkvi_plan_work *w = sp->w;
    for (uint32_t g = 0; g < sp->site->n_launches * sp->n_rounds; g++) {
        rkvi_plan_launch *l = &sp->launches[g];
        if (l->grid_decode > l->n_decode)
            memset(out + l->decode0 + l->n_decode, 0, (l->grid_decode - l->n_decode) * sizeof *out);
        l->n_decode = l->n_prefill = 0;
        l->decode_rows = 0;
        l->decode_leaves = 0;
    }
    const rkvi_layer_config *lc = &sp->v->cfg->layers[sp->v->cfg->sites[sp->site - sp->p->sites].kv_layer];
    for (uint64_t i = 0; i < w->n_items; i++) {
        rkvi_plan_launch *l = &sp->launches[w->item_launch[i]];
        const rkvi_item *it = &w->items[i];
        const uint64_t slot = is_prefill(sp, i) ? l->prefill0 + l->n_prefill++ : l->decode0 + l->n_decode++;
        out[slot] = *it;
        if (!is_prefill(sp, i)) {
            l->decode_rows = it->n_rows > l->decode_rows ? it->n_rows : l->decode_rows;
            l->decode_leaves += it->leaf1 - it->leaf0;
        }
        w->sorted_stem[slot] = w->item_stem[i];
        l->cost_bytes += (it->leaf1 - it->leaf0) * lc->geom.leaf_cells * (lc->geom.bytes / lc->geom.tile_cells);
    }
}

static rkv_status too_small(const rkvi_site_plan *sp)
{
    return rkvi_fail(RKV_E_CAPACITY,
                     "a batch of %u entries and %u rows over %llu launches of a site exceeds the step's tables "
                     "or its room for partials; use fewer rows a step or a larger ring",
                     sp->v->batch->n_entries, sp->v->batch->n_rows, (unsigned long long)sp->site->n_launches);
}

static bool plan_items(rkvi_site_plan *sp, rkvi_mirror *m)
{
    rkvi_plan *p = sp->p;
    rkvi_plan_work *w = sp->w;
    const rkvi_config *cfg = sp->v->cfg;
    w->n_items = w->n_merges = w->n_nodes = 0;
    if (!rkvi_site_share_slots(sp) || !rkvi_site_all_items(sp))
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
    return rkvi_site_give_slots(sp, items) && rkvi_site_final_merges(sp);
}

/* Fixed: what follows the nodes keeps its place.  Each item's result is a node,
 * and each merge's; those of a shared stem are nodes of each of its entries. */
static uint64_t nodes_room(const rkvi_site_plan *sp)
{
    const uint64_t n = sp->w->n_nodes, most = sp->v->cfg->max_nodes_site;
    uint64_t room = sp->n_padded + sp->w->n_merges;
    if (!sp->v->fixed)
        return n;
    while (room < n)
        room *= 2;
    return room < most ? room : most;
}

/* Items of a launch, for each KV head.  Kernels for many columns have a multiprocessor to themselves, and what does
 * not go in one wave takes two. */
static uint64_t wanted_runs(const rkvi_site_plan *sp, const rkvi_site_config *site)
{
    const rkvi_geom *g = &sp->v->cfg->layers[site->kv_layer].geom;
    uint64_t rows = 0;
    for (uint32_t stem = 0; stem < sp->w->share.n_stems; stem++)
        rows = sp->w->share.stems[stem].n_rows > rows ? sp->w->share.stems[stem].n_rows : rows;
    const bool is_wide = rkvi_decode_is_wide(rows * (site->n_q_heads / g->n_heads), g->dk, g->dv);
    return (is_wide && sp->v->wide_runs ? sp->v->wide_runs : sp->v->target_runs) / g->n_heads;
}

/* Device leaves come with launch 0, so that they are computed while the first
 * tail tiles cross.  Partials on both sides of the tail's leaves can be merged
 * between launches; where those among them don't have room, device leaves come
 * in order instead, which bounds what is pending; with cells of several turns
 * they come stretch by stretch as well. */
rkv_status rkvi_plan_site_items(rkvi_plan *p, const rkvi_plan_view *v, uint32_t site, rkvi_mirror *m)
{
    rkvi_plan_work *w = p->work;
    const rkvi_config *cfg = v->cfg;
    const uint32_t class = cfg->layers[cfg->sites[site].kv_layer].leaf_class;
    rkvi_site_plan sp = {.p = p,
                    .v = v,
                    .w = w,
                    .site = &p->sites[site],
                    .launches = &p->launches[p->sites[site].launch0 * p->n_rounds],
                    .n_rounds = p->n_rounds,
                    .leaf_turn = p->n_turned_rows && rkvi_site_turns(cfg, site) ? p->turns.leaf_turn[class] : NULL,
                    .spans = (const rkvi_span *)(m->host + p->classes[class].spans_off),
                    .span0 = w->span0[class],
                    .class = class,
                    .tile_launch = p->tile_launch + site * p->n_bases,
                    .most_items = cfg->max_items_site};
    const uint64_t table_bytes = p->table_bytes;
    sp.target = wanted_runs(&sp, &cfg->sites[site]);
    sp.slots_a_pair = cfg->partial_slots / (sp.site->n_launches + 3 * (uint64_t)w->share.n_stems);
    sp.most_k = rkvi_site_most_k(&sp);
    /* Runs of about `target` in all (choose_run, rkvi_site_most_k), with their ends. */
    sp.pad_unit = v->fixed ? sp.target + 4 * (uint64_t)v->batch->n_entries : 0;
    rkvi_site_count_leaves(&sp);
    if (!plan_items(&sp, m)) {
        p->table_bytes = table_bytes;
        sp.in_order = true;
        bool ok = plan_items(&sp, m);
        if (!ok && sp.leaf_turn) {
            p->table_bytes = table_bytes;
            sp.decode_rounds = true;
            ok = plan_items(&sp, m);
        }
        if (!ok)
            return too_small(&sp);
        sp.site->cpu_is_mixed = sp.site->cpu_launch != RKVI_NO_LAUNCH;
    }
    /* Give back what the merges and nodes did not need. */
    const uint64_t nodes_off = rkvi_align_up(sp.site->merges_off + w->n_merges * sizeof(rkvi_merge_item), 256);
    memmove(m->host + nodes_off, sp.nodes, w->n_nodes * sizeof(rkvi_node));
    sp.site->nodes_off = nodes_off;
    p->table_bytes = nodes_off + nodes_room(&sp) * sizeof(rkvi_node);
    return RKV_OK;
}
