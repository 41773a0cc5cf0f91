/* plan_nodes.c: slots of a site's partials, and the merges that bring them together. */
#include "plan_site.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static int by_leaf(const void *a, const void *b)
{
    const rkvi_live_node *x = a, *y = b;
    return x->leaf0 < y->leaf0 ? -1 : x->leaf0 > y->leaf0;
}

static uint32_t take_place(rkvi_stem_nodes *n)
{
    return n->n_free ? n->free[--n->n_free] : (uint32_t)n->n_used++;
}

static uint64_t slot_of(const rkvi_site_plan *sp, uint32_t stem, uint32_t place)
{
    return sp->w->nodes[stem].slot0 + (uint64_t)place * rkvi_stem_at(sp, stem)->n_rows;
}

/* A merge of nodes that are to be written at *out. */
static bool add_merge(rkvi_site_plan *sp, const rkvi_merge_item *item, rkvi_node **out)
{
    rkvi_plan_work *w = sp->w;
    const rkvi_config *cfg = sp->v->cfg;
    if (w->n_merges == cfg->max_merges_site || w->n_nodes + item->n_nodes > cfg->max_nodes_site)
        return false;
    rkvi_merge_item *m = &sp->merges[w->n_merges++];
    *m = *item;
    m->node0 = w->n_nodes;
    *out = sp->nodes + w->n_nodes;
    w->n_nodes += item->n_nodes;
    return true;
}

/* Merges of one stem between two launches. */
typedef struct compaction {
    uint32_t stem;
    uint64_t later; /* leaves from here on, */
    uint64_t end;   /* up to here, come with later launches */
    uint64_t n_out; /* nodes left */
    uint64_t n_free;/* places to be free once the merges have run */
} compaction;

/* Have all leaves of a subtree that anyone sees come, and lie in this stem? */
static bool is_complete(const rkvi_site_plan *sp, const compaction *c, uint64_t leaf, uint32_t level)
{
    const uint64_t end = leaf + ((uint64_t)1 << level);
    return (end <= c->later || leaf >= c->end) && leaf >= rkvi_stem_leaf0(sp, c->stem) &&
           (rkvi_stem_is_path_end(sp, c->stem) || end <= rkvi_stem_leaf1(sp, c->stem));
}

/* Brings n nodes, all in the subtree of 2^level leaves from `leaf`, down to one
 * per subtree that is complete.  Merges run in parallel, so what they read
 * stays until all have run. */
static bool bring_together(rkvi_site_plan *sp, compaction *c, const rkvi_live_node *live, uint64_t n, uint64_t leaf,
                           uint32_t level)
{
    rkvi_stem_nodes *nodes = &sp->w->nodes[c->stem];
    rkvi_node *out;
    if (n > 1 && !is_complete(sp, c, leaf, level)) {
        assert(level > 0); /* no two nodes have a leaf in common */
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
    const rkvi_merge_item item = {.entry = rkvi_stem_at(sp, c->stem)->entry,
                                  .n_rows = rkvi_stem_at(sp, c->stem)->n_rows,
                                  .n_nodes = (uint32_t)n,
                                  .dst = slot_of(sp, c->stem, to.place)};
    if (nodes->n_used > nodes->room || !add_merge(sp, &item, &out))
        return false;
    for (uint64_t i = 0; i < n; i++) { /* places behind the free ones, of which others still take */
        out[i] = (rkvi_node){.leaf0 = live[i].leaf0, .slot = slot_of(sp, c->stem, live[i].place)};
        nodes->free[nodes->room - ++c->n_free] = live[i].place;
    }
    nodes->live[c->n_out++] = to;
    return true;
}

/* A stem's pending partials, as few as can be before leaf `later` comes. */
static bool compact(rkvi_site_plan *sp, uint32_t stem, uint64_t later)
{
    rkvi_stem_nodes *nodes = &sp->w->nodes[stem];
    compaction c = {.stem = stem, .later = later, .end = nodes->tail_end};
    qsort(nodes->live, nodes->n_live, sizeof *nodes->live, by_leaf);
    if (!bring_together(sp, &c, nodes->live, nodes->n_live, 0, rkvi_bit_width(rkvi_stem_leaf1(sp, stem))))
        return false;
    memmove(nodes->free + nodes->n_free, nodes->free + nodes->room - c.n_free, c.n_free * sizeof *nodes->free);
    nodes->n_free += c.n_free;
    nodes->n_live = c.n_out;
    return true;
}

/* Gives n items of one stem and launch the slots of their partials. */
static bool place_items(rkvi_site_plan *sp, uint32_t stem, rkvi_item *items, uint64_t n)
{
    rkvi_stem_nodes *nodes = &sp->w->nodes[stem];
    const uint64_t merged = rkvi_bit_width(rkvi_stem_n_leaves(sp, stem));
    if (nodes->n_items > nodes->room && nodes->n_live + n + merged > nodes->room &&
        !compact(sp, stem, items[0].leaf0))
        return false;
    if (nodes->n_live + n > nodes->room)
        return false;
    for (uint64_t i = 0; i < n; i++) {
        const rkvi_live_node node = {.leaf0 = items[i].leaf0, .place = take_place(nodes)};
        items[i].slot = slot_of(sp, stem, node.place);
        nodes->live[nodes->n_live++] = node;
    }
    return true;
}

/* Empty merges, up to a power of two. */
static void pad_merges(rkvi_site_plan *sp, uint64_t first)
{
    rkvi_plan_work *w = sp->w;
    const uint64_t n = w->n_merges - first;
    while (sp->pad_unit && n && ((w->n_merges - first) & (w->n_merges - first - 1)) &&
           w->n_merges < sp->v->cfg->max_merges_site)
        sp->merges[w->n_merges++] = (rkvi_merge_item){.n_rows = 0};
}

bool rkvi_site_give_slots(rkvi_site_plan *sp, rkvi_item *items)
{
    rkvi_plan_work *w = sp->w;
    for (uint32_t g = 0; g < sp->site->n_launches * sp->n_rounds; g++) {
        const rkvi_plan_launch *l = &sp->launches[g];
        const uint64_t first_merge = w->n_merges, end = l->decode0 + l->n_decode;
        for (uint64_t i = l->decode0, z; i < end; i = z) {
            for (z = i + 1; z < end && w->sorted_stem[z] == w->sorted_stem[i];)
                z++;
            if (!place_items(sp, w->sorted_stem[i], items + i, z - i))
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

/* A token tree's node comes behind all leaves of its rows. */
static rkvi_node tree_node(const rkvi_site_plan *sp, uint32_t e, uint32_t row)
{
    return (rkvi_node){.leaf0 = rkvi_stem_leaf1(sp, sp->w->share.entry_stem[e]), .slot = sp->p->tree_slot0[e] + row};
}

/* The nodes of all stems of the entry's path, in order of leaves, at its rows'
 * slots. */
static bool merge_decode(rkvi_site_plan *sp, uint32_t e)
{
    const rkvi_share *share = &sp->w->share;
    const rkvi_batch_entry *be = &sp->v->batch->entries[e];
    rkvi_merge_item item = {.entry = e, .n_rows = be->n_rows, .n_nodes = be->is_tree, .dst = RKVI_TO_OUT};
    rkvi_node *out;
    for (uint32_t stem = share->entry_stem[e]; stem != RKVI_NONE; stem = share->stems[stem].parent)
        item.n_nodes += (uint32_t)sp->w->nodes[stem].n_live;
    if (!add_merge(sp, &item, &out))
        return false;
    out += item.n_nodes;
    if (be->is_tree)
        *--out = tree_node(sp, e, 0);
    for (uint32_t stem = share->entry_stem[e]; stem != RKVI_NONE; stem = share->stems[stem].parent) {
        const rkvi_stem_nodes *nodes = &sp->w->nodes[stem];
        const uint64_t row = share->row_at[e] - share->stems[stem].row0;
        for (uint64_t i = nodes->n_live; i-- > 0;)
            *--out = (rkvi_node){.leaf0 = nodes->live[i].leaf0, .slot = slot_of(sp, stem, nodes->live[i].place) + row};
    }
    return true;
}

/* A block's state, in the slot of its first row, with the node of a token tree; or
 * nothing at all.  A state that is the one node was put out by its last item. */
static bool merge_prefill(rkvi_site_plan *sp, uint32_t e)
{
    rkvi_plan_work *w = sp->w;
    const rkvi_batch_entry *be = &sp->v->batch->entries[e];
    for (uint32_t row = 0; row < be->n_rows; row += RKVI_PREFILL_ROWS) {
        const uint32_t left = be->n_rows - row;
        rkvi_node *out;
        const rkvi_merge_item item = {.entry = e,
                                      .row = row,
                                      .n_rows = left < RKVI_PREFILL_ROWS ? left : RKVI_PREFILL_ROWS,
                                      .n_nodes = w->block_seen[be->row0 + row] + (uint32_t)be->is_tree,
                                      .dst = RKVI_TO_OUT};
        if (w->block_seen[be->row0 + row] && !be->is_tree)
            continue;
        if (!add_merge(sp, &item, &out))
            return false;
        if (w->block_seen[be->row0 + row])
            *out++ = (rkvi_node){.slot = (uint64_t)be->row0 + row};
        if (be->is_tree)
            *out = tree_node(sp, e, row);
    }
    return true;
}

bool rkvi_site_final_merges(rkvi_site_plan *sp)
{
    const rkvi_batch *b = sp->v->batch;
    for (uint32_t stem = 0; stem < sp->w->share.n_stems; stem++)
        if (rkvi_stem_has_rows(sp, stem))
            qsort(sp->w->nodes[stem].live, sp->w->nodes[stem].n_live, sizeof(rkvi_live_node), by_leaf);
    sp->site->merge0 = sp->w->n_merges;
    for (uint32_t e = 0; e < b->n_entries; e++)
        if (!(b->entries[e].is_prefill ? merge_prefill(sp, e) : merge_decode(sp, e)))
            return false;
    sp->site->n_merge = sp->w->n_merges - sp->site->merge0;
    return true;
}
