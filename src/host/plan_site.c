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
    const uint64_t *span0;       /* [entry] */
    uint32_t class;
    const uint32_t *tile_launch; /* [base] */
    const uint8_t *leaf_turn;    /* [span]; NULL: the site's q is never turned */
    uint32_t n_rounds;           /* of a launch: launches[] and items count launches in rounds */
    uint64_t target;             /* decode items wanted of a launch */
    uint64_t slots_a_pair;       /* partial slots for each pair of launch and entry */
    bool in_order;               /* device leaves, else with launch 0 */
    bool decode_rounds;          /* decode leaves too come stretch by stretch */
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

/* Launches of leaves [a, z) of an entry, into leaf_launch[span0 + leaf].  Leaves
 * on the device: launch 0, or (in_order) that of the tail leaf before them, so
 * that launches never fall along the leaves; *last is that launch. */
static void set_leaf_launches(site_plan *sp, uint32_t e, uint64_t a, uint64_t z, bool in_order, uint32_t *last)
{
    const uint64_t first = sp->span0[e];
    uint32_t *out = sp->p->leaf_launch + first;
    for (uint64_t i = a; i < z; i++) {
        out[i] = sp->tile_launch[sp->spans[first + i].tile];
        if (out[i] == RKVI_TILE_DEVICE)
            out[i] = in_order ? *last : 0;
        else if (out[i] != RKVI_TILE_UNSEEN)
            *last = out[i];
    }
}

static uint32_t turn_of(const site_plan *sp, uint32_t e, uint64_t leaf)
{
    return sp->leaf_turn ? sp->leaf_turn[sp->span0[e] + leaf] : 0;
}

/* Where an item comes: its launch, and within it one round after the item
 * before it, if that is of another turn. */
typedef struct stretch {
    uint32_t launch, round, turn;
    bool any;
} stretch;

static uint32_t next_round(const site_plan *sp, stretch *s, uint32_t launch, uint32_t turn)
{
    if (!s->any || launch != s->launch)
        s->round = 0;
    else if (turn != s->turn)
        s->round++;
    s->any = true;
    s->launch = launch;
    s->turn = turn;
    return launch * sp->n_rounds + s->round;
}

/* ---------------------------------------------------------------------- stems */

static rkvi_stem *stem_at(const site_plan *sp, uint32_t stem)
{
    return &sp->w->share.stems[stem];
}

static uint64_t leaf0_of(const site_plan *sp, uint32_t stem)
{
    return stem_at(sp, stem)->leaf0[sp->class];
}

static uint64_t leaf1_of(const site_plan *sp, uint32_t stem)
{
    return stem_at(sp, stem)->leaf1[sp->class];
}

static uint64_t n_leaves_of(const site_plan *sp, uint32_t stem)
{
    return leaf1_of(sp, stem) - leaf0_of(sp, stem);
}

/* The stem's leaves are computed for these rows: none, of a prefill entry's. */
static bool has_rows(const site_plan *sp, uint32_t stem)
{
    return stem_at(sp, stem)->n_rows > 0;
}

/* Launches along a stem go on where its parent's ended. */
static void stem_launches(site_plan *sp, uint32_t stem, bool in_order)
{
    rkvi_stem *s = stem_at(sp, stem);
    s->last_launch = s->parent == RKVI_NONE ? 0 : stem_at(sp, s->parent)->last_launch;
    set_leaf_launches(sp, s->entry, leaf0_of(sp, stem), leaf1_of(sp, stem), in_order, &s->last_launch);
}

/* The leaves [a, z) of a stem that any of its rows sees. */
static void seen_by_stem(const site_plan *sp, uint32_t stem, uint64_t *out_a, uint64_t *out_z)
{
    const rkvi_stem *s = stem_at(sp, stem);
    const rkvi_site_mask mask = sp->v->cfg->sites[sp->site - sp->p->sites].mask;
    const uint32_t *map = sp->w->share.row_map + s->row0;
    int64_t lo = INT64_MAX, hi = INT64_MIN;
    for (uint32_t r = 0; r < s->n_rows; r++) {
        int64_t a, z;
        rkvi_visible(&sp->v->batch->rows[map[r]], mask, &a, &z);
        if (a >= z)
            continue; /* sees nothing, wherever its range lies */
        lo = a < lo ? a : lo;
        hi = z > hi ? z : hi;
    }
    const uint64_t first = leaf0_of(sp, stem);
    seen_leaves(sp->spans + sp->span0[s->entry] + first, n_leaves_of(sp, stem), lo, hi, out_a, out_z);
    *out_a += first;
    *out_z += first;
}

/* -------------------------------------------------------------------- items */

static bool add_item(site_plan *sp, const rkvi_item *item, uint32_t stem, uint32_t launch)
{
    rkvi_plan_work *w = sp->w;
    if (w->n_items == sp->most_items)
        return false;
    w->items[w->n_items] = *item;
    w->item_stem[w->n_items] = stem;
    w->item_launch[w->n_items++] = launch;
    return true;
}

/* Rows of a stem are named by the row map; without one by their entry. */
static bool add_run(site_plan *sp, uint32_t stem, uint64_t a, uint64_t z, uint32_t launch)
{
    const rkvi_stem *s = stem_at(sp, stem);
    const rkvi_item item = {.entry = s->entry,
                            .row = sp->w->share.is_mapped ? s->row0 : 0,
                            .n_rows = s->n_rows,
                            .flags = turn_of(sp, s->entry, a) << RKVI_ITEM_TURN_SHIFT,
                            .leaf0 = a,
                            .leaf1 = z};
    return add_item(sp, &item, stem, launch);
}

/* How a stem's leaves are cut into items. */
typedef struct cut {
    uint32_t stem;
    uint64_t most_items; /* of a launch, but for its two ends */
    uint64_t seen[2];    /* leaves [a, z) of the stem */
    uint64_t path[2];    /* the same with what rows may see of the stems around it */
} cut;

/* Items of a stem's launch that the site's tables hold, besides the 2k of its
 * ends: size_site_tables of config_sizes.c counts pairs of launch and stem. */
static uint64_t most_by_tables(const site_plan *sp, uint32_t k)
{
    const uint32_t bits = rkvi_bit_width(sp->v->cfg->max_spans);
    return sp->slots_a_pair + (bits > k ? 2 * (uint64_t)(bits - k) : 0);
}

/* Run length for n leaves of a stem's launch: the shortest that gives all of
 * the launch no more items than wanted, and the stem no more than have room. */
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
    const uint64_t run = (uint64_t)1 << choose_run(sp, c, z - a, launch), *seen = c->path;
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
        if (!add_run(sp, c->stem, a, a + size, launch))
            return false;
        a += size;
    }
    return true;
}

static bool decode_items(site_plan *sp, const cut *c)
{
    const uint32_t e = stem_at(sp, c->stem)->entry, *launch = sp->p->leaf_launch + sp->span0[e];
    stretch s = {0};
    for (uint64_t a = c->seen[0], end; a < c->seen[1]; a = end) {
        const uint32_t turn = turn_of(sp, e, a);
        end = a + 1;
        while (end < c->seen[1] && launch[end] == launch[a] && turn_of(sp, e, end) == turn)
            end++;
        if (launch[a] == RKVI_TILE_UNSEEN)
            continue;
        const uint32_t at = sp->decode_rounds ? next_round(sp, &s, launch[a], turn) : launch[a] * sp->n_rounds;
        if (!add_runs(sp, c, a, end, at))
            return false;
    }
    return true;
}

/* A block of rows goes through its leaves in order: launch g takes it up to the
 * first leaf that comes with a later launch, each round to the next turn. */
static bool prefill_block(site_plan *sp, uint32_t e, uint64_t n_leaves, uint32_t row, uint32_t n_rows)
{
    const rkvi_batch *b = sp->v->batch;
    const rkvi_batch_entry *be = &b->entries[e];
    const rkvi_batch_entry block = {.row0 = be->row0 + row, .n_rows = n_rows};
    const uint32_t *launch = sp->p->leaf_launch + sp->span0[e];
    const rkvi_site_mask mask = sp->v->cfg->sites[sp->site - sp->p->sites].mask;
    rkvi_item item = {.entry = e, .row = row, .n_rows = n_rows, .flags = RKVI_ITEM_FIRST,
                      .slot = (uint64_t)be->row0 + row};
    stretch s = {0};
    int64_t lo, hi;
    uint64_t a, z;
    rkvi_plan_range(b, &block, mask, &lo, &hi);
    seen_leaves(sp->spans + sp->span0[e], n_leaves, lo, hi, &a, &z);
    while (a < z) {
        uint64_t end = a + 1;
        uint32_t g = launch[a] == RKVI_TILE_UNSEEN ? 0 : launch[a];
        const uint32_t turn = turn_of(sp, e, a);
        g = s.any && s.launch > g ? s.launch : g; /* a device leaf after a stretch of the tail */
        while (end < z && (launch[end] == RKVI_TILE_UNSEEN || launch[end] <= g) && turn_of(sp, e, end) == turn)
            end++;
        item.leaf0 = a;
        item.leaf1 = end;
        item.flags |= turn << RKVI_ITEM_TURN_SHIFT;
        if (!add_item(sp, &item, RKVI_NONE, next_round(sp, &s, g, turn)))
            return false;
        item.flags = 0;
        sp->w->block_seen[be->row0 + row] = true;
        a = end;
    }
    return true;
}

/* Decode leaves of each launch, those on the device with launch 0. */
static void count_leaves(site_plan *sp)
{
    for (uint32_t g = 0; g < sp->site->n_launches * sp->n_rounds; g++)
        sp->launches[g].n_leaves = 0;
    for (uint32_t stem = 0; stem < sp->w->share.n_stems; stem++) {
        uint64_t a, z;
        if (!has_rows(sp, stem))
            continue;
        seen_by_stem(sp, stem, &a, &z);
        stem_launches(sp, stem, false);
        for (uint64_t i = a; i < z; i++) {
            const uint32_t g = sp->p->leaf_launch[sp->span0[stem_at(sp, stem)->entry] + i];
            if (g != RKVI_TILE_UNSEEN)
                sp->launches[g * sp->n_rounds].n_leaves++;
        }
    }
}

/* Partials of a stem that are pending while its launches come in order; at an
 * end where it meets another stem, subtrees stay apart. */
static uint64_t pending_nodes(const site_plan *sp, uint32_t stem)
{
    const uint64_t n = n_leaves_of(sp, stem);
    return rkvi_pending_nodes(n) + (leaf0_of(sp, stem) ? rkvi_bit_width(n) : 0);
}

/* A launch has the places that pending partials leave (least_room).  Those
 * after the tail's leaves are pending too where device leaves come first. */
static bool decode_stem(site_plan *sp, uint32_t stem)
{
    rkvi_stem_nodes *nodes = &sp->w->nodes[stem];
    const uint64_t first = sp->w->n_items;
    const uint64_t pending = pending_nodes(sp, stem) + (sp->in_order ? 0 : rkvi_bit_width(n_leaves_of(sp, stem)));
    cut c = {.stem = stem, .most_items = nodes->room > pending ? nodes->room - pending : 0};
    seen_by_stem(sp, stem, &c.seen[0], &c.seen[1]);
    c.path[0] = c.seen[0] == leaf0_of(sp, stem) ? 0 : c.seen[0];
    c.path[1] = c.seen[1] == leaf1_of(sp, stem) && stem_at(sp, stem)->child != RKVI_NONE ? UINT64_MAX : c.seen[1];
    stem_launches(sp, stem, sp->in_order);
    const bool ok = decode_items(sp, &c);
    nodes->n_items = sp->w->n_items - first;
    nodes->tail_end = 0;
    for (uint64_t i = first; i < sp->w->n_items; i++)
        if (sp->w->item_launch[i] > 0)
            nodes->tail_end = sp->w->items[i].leaf1;
    return ok;
}

static bool prefill_entry(site_plan *sp, uint32_t e)
{
    const rkvi_batch_entry *be = &sp->v->batch->entries[e];
    const uint64_t n_leaves = leaf1_of(sp, sp->w->share.entry_stem[e]); /* it shares none */
    uint32_t last = 0;
    set_leaf_launches(sp, e, 0, n_leaves, false, &last);
    for (uint32_t row = 0; row < be->n_rows; row += RKVI_PREFILL_ROWS) {
        const uint32_t left = be->n_rows - row;
        sp->w->block_seen[be->row0 + row] = false;
        if (!prefill_block(sp, e, n_leaves, row, left < RKVI_PREFILL_ROWS ? left : RKVI_PREFILL_ROWS))
            return false;
    }
    return true;
}

/* Parents come before their children, so that launches go on along a path. */
static bool all_items(site_plan *sp)
{
    const rkvi_share *share = &sp->w->share;
    for (uint32_t stem = share->root, next; stem != RKVI_NONE; stem = next) {
        if (has_rows(sp, stem) && !decode_stem(sp, stem))
            return false;
        for (next = share->stems[stem].child; next == RKVI_NONE && stem != RKVI_NONE;) {
            next = share->stems[stem].sibling;
            stem = share->stems[stem].parent;
        }
    }
    for (uint32_t e = 0; e < sp->v->batch->n_entries; e++)
        if (sp->v->batch->entries[e].is_prefill && !prefill_entry(sp, e))
            return false;
    return true;
}

/* Longest runs, which all launches together have room for. */
static uint32_t choose_most_k(const site_plan *sp)
{
    for (uint32_t k = 0; k < 31; k++) {
        uint64_t runs = 0, slots = 0, n = 0;
        for (uint32_t stem = 0; stem < sp->w->share.n_stems; stem++)
            if (has_rows(sp, stem)) {
                const uint64_t r = n_leaves_of(sp, stem) >> k;
                runs += r;
                slots += r * stem_at(sp, stem)->n_rows;
                n++;
            }
        if (runs <= sp->target + n && slots <= RKVI_RUN_SLOTS / 4)
            return k;
    }
    return 31;
}

/* Least places of a stem: what is pending, with a launch's runs (config has
 * the sum, choose_most_k the whole runs); or one a leaf. */
static uint64_t least_room(const site_plan *sp, uint32_t stem)
{
    const uint64_t n = n_leaves_of(sp, stem);
    const uint64_t least = pending_nodes(sp, stem) + (n >> sp->most_k);
    return least < n ? least : n;
}

/* Shares the slots behind the prefill states among the stems: the least for
 * each, the rest by rows. */
static bool share_slots(site_plan *sp)
{
    const rkvi_config *cfg = sp->v->cfg;
    uint64_t rows = 0, least = 0, slot = cfg->max_rows, at = 0;
    for (uint32_t stem = 0; stem < sp->w->share.n_stems; stem++) {
        const uint64_t n = stem_at(sp, stem)->n_rows;
        rows += n;
        least += n * least_room(sp, stem);
    }
    if (least > cfg->partial_slots - cfg->max_rows)
        return false;
    const uint64_t more = rows ? (cfg->partial_slots - cfg->max_rows - least) / rows : 0;
    for (uint32_t stem = 0; stem < sp->w->share.n_stems; stem++) {
        const uint64_t room = has_rows(sp, stem) ? least_room(sp, stem) + more : 0;
        sp->w->nodes[stem] = (rkvi_stem_nodes){
            .slot0 = slot, .room = room, .live = sp->w->live + at, .free = sp->w->free + at};
        slot += room * stem_at(sp, stem)->n_rows;
        at += room;
    }
    return true;
}

/* ----------------------------------------------------------- sort by launch */

static bool is_prefill(const site_plan *sp, uint64_t i)
{
    return sp->w->item_stem[i] == RKVI_NONE;
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
static void sort_items(site_plan *sp, rkvi_item *out)
{
    rkvi_plan_work *w = sp->w;
    for (uint32_t g = 0; g < sp->site->n_launches * sp->n_rounds; g++) {
        rkvi_plan_launch *l = &sp->launches[g];
        if (l->grid_decode > l->n_decode)
            memset(out + l->decode0 + l->n_decode, 0, (l->grid_decode - l->n_decode) * sizeof *out);
        l->n_decode = l->n_prefill = 0;
    }
    const rkvi_layer_config *lc = &sp->v->cfg->layers[sp->v->cfg->sites[sp->site - sp->p->sites].kv_layer];
    for (uint64_t i = 0; i < w->n_items; i++) {
        rkvi_plan_launch *l = &sp->launches[w->item_launch[i]];
        const rkvi_item *it = &w->items[i];
        const uint64_t slot = is_prefill(sp, i) ? l->prefill0 + l->n_prefill++ : l->decode0 + l->n_decode++;
        out[slot] = *it;
        w->sorted_stem[slot] = w->item_stem[i];
        l->cost_bytes += (it->leaf1 - it->leaf0) * lc->geom.leaf_cells * (lc->geom.bytes / lc->geom.tile_cells);
    }
}

/* ------------------------------------------------------------ slots, merges */

static int by_leaf(const void *a, const void *b)
{
    const rkvi_live_node *x = a, *y = b;
    return x->leaf0 < y->leaf0 ? -1 : x->leaf0 > y->leaf0;
}

static uint32_t take_place(rkvi_stem_nodes *n)
{
    return n->n_free ? n->free[--n->n_free] : (uint32_t)n->n_used++;
}

static uint64_t slot_of(const site_plan *sp, uint32_t stem, uint32_t place)
{
    return sp->w->nodes[stem].slot0 + (uint64_t)place * stem_at(sp, stem)->n_rows;
}

/* A merge of nodes that are to be written at *out. */
static bool add_merge(site_plan *sp, const rkvi_merge_item *item, rkvi_node **out)
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
static bool is_complete(const site_plan *sp, const compaction *c, uint64_t leaf, uint32_t level)
{
    const uint64_t end = leaf + ((uint64_t)1 << level);
    const bool is_last = stem_at(sp, c->stem)->child == RKVI_NONE;
    return (end <= c->later || leaf >= c->end) && leaf >= leaf0_of(sp, c->stem) &&
           (is_last || end <= leaf1_of(sp, c->stem));
}

/* Brings n nodes, all in the subtree of 2^level leaves from `leaf`, down to one
 * per subtree that is complete.  Merges run in parallel, so what they read
 * stays until all have run. */
static bool bring_together(site_plan *sp, compaction *c, const rkvi_live_node *live, uint64_t n, uint64_t leaf,
                           uint32_t level)
{
    rkvi_stem_nodes *nodes = &sp->w->nodes[c->stem];
    rkvi_node *out;
    if (n > 1 && !is_complete(sp, c, leaf, level)) {
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
    const rkvi_merge_item item = {.entry = stem_at(sp, c->stem)->entry,
                                  .n_rows = stem_at(sp, c->stem)->n_rows,
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
static bool compact(site_plan *sp, uint32_t stem, uint64_t later)
{
    rkvi_stem_nodes *nodes = &sp->w->nodes[stem];
    compaction c = {.stem = stem, .later = later, .end = nodes->tail_end};
    qsort(nodes->live, nodes->n_live, sizeof *nodes->live, by_leaf);
    if (!bring_together(sp, &c, nodes->live, nodes->n_live, 0, rkvi_bit_width(leaf1_of(sp, stem))))
        return false;
    memmove(nodes->free + nodes->n_free, nodes->free + nodes->room - c.n_free, c.n_free * sizeof *nodes->free);
    nodes->n_free += c.n_free;
    nodes->n_live = c.n_out;
    return true;
}

/* Gives n items of one stem and launch the slots of their partials. */
static bool place_items(site_plan *sp, uint32_t stem, rkvi_item *items, uint64_t n)
{
    rkvi_stem_nodes *nodes = &sp->w->nodes[stem];
    const uint64_t merged = rkvi_bit_width(n_leaves_of(sp, stem));
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
static rkvi_node tree_node(const site_plan *sp, uint32_t e, uint32_t row)
{
    return (rkvi_node){.leaf0 = leaf1_of(sp, sp->w->share.entry_stem[e]), .slot = sp->p->tree_slot0[e] + row};
}

/* The nodes of all stems of the entry's path, in order of leaves, at its rows'
 * slots. */
static bool merge_decode(site_plan *sp, uint32_t e)
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

/* A block's state is the one node, in the slot of its first row. */
static bool merge_prefill(site_plan *sp, uint32_t e)
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
        if (!add_merge(sp, &item, &out))
            return false;
        if (w->block_seen[be->row0 + row])
            *out++ = (rkvi_node){.slot = (uint64_t)be->row0 + row};
        if (be->is_tree)
            *out = tree_node(sp, e, row);
    }
    return true;
}

/* The last merge: each decode entry's nodes, each prefill block's state. */
static bool final_merges(site_plan *sp)
{
    const rkvi_batch *b = sp->v->batch;
    for (uint32_t stem = 0; stem < sp->w->share.n_stems; stem++)
        if (has_rows(sp, stem))
            qsort(sp->w->nodes[stem].live, sp->w->nodes[stem].n_live, sizeof(rkvi_live_node), by_leaf);
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
    if (!share_slots(sp) || !all_items(sp))
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
 * in order instead, which bounds what is pending; with cells of several turns
 * they come stretch by stretch as well. */
rkv_status rkvi_plan_site_items(rkvi_plan *p, const rkvi_plan_view *v, uint32_t site, rkvi_mirror *m)
{
    rkvi_plan_work *w = p->work;
    const rkvi_config *cfg = v->cfg;
    const uint32_t class = cfg->layers[cfg->sites[site].kv_layer].leaf_class;
    site_plan sp = {.p = p,
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
    sp.target = v->target_runs / cfg->layers[cfg->sites[site].kv_layer].geom.n_heads;
    sp.slots_a_pair = cfg->partial_slots / (sp.site->n_launches + 3 * (uint64_t)w->share.n_stems);
    sp.most_k = choose_most_k(&sp);
    /* Runs of about `target` in all (choose_run, choose_most_k), with their ends. */
    sp.pad_unit = v->fixed ? sp.target + 4 * (uint64_t)v->batch->n_entries : 0;
    count_leaves(&sp);
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
    }
    /* Give back what the merges and nodes did not need. */
    const uint64_t nodes_off = rkvi_align_up(sp.site->merges_off + w->n_merges * sizeof(rkvi_merge_item), 256);
    memmove(m->host + nodes_off, sp.nodes, w->n_nodes * sizeof(rkvi_node));
    sp.site->nodes_off = nodes_off;
    /* Fixed: what follows keeps its place.  Each item's result is a node, and each merge's. */
    p->table_bytes = nodes_off + (v->fixed ? sp.n_padded + w->n_merges : w->n_nodes) * sizeof(rkvi_node);
    return RKV_OK;
}
