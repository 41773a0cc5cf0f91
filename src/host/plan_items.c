/* plan_items.c: a site's leaves cut into work items, and room for their partials. */
#include "plan_site.h"

/* Where an item comes: its launch, and within it one round after the item
 * before it, if that is of another turn. */
typedef struct stretch {
    uint32_t launch, round, turn;
    bool any;
} stretch;

static uint32_t next_round(const rkvi_site_plan *sp, stretch *s, uint32_t launch, uint32_t turn)
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

static bool add_item(rkvi_site_plan *sp, const rkvi_item *item, uint32_t stem, uint32_t launch)
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
static bool add_run(rkvi_site_plan *sp, uint32_t stem, uint64_t a, uint64_t z, uint32_t launch)
{
    const rkvi_stem *s = rkvi_stem_at(sp, stem);
    const rkvi_item item = {.entry = s->entry,
                            .row = sp->w->share.is_mapped ? s->row0 : 0,
                            .n_rows = s->n_rows,
                            .flags = rkvi_leaf_turn(sp, s->entry, a) << RKVI_ITEM_TURN_SHIFT,
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
static uint64_t most_by_tables(const rkvi_site_plan *sp, uint32_t k)
{
    const uint32_t bits = rkvi_bit_width(sp->v->cfg->max_spans);
    return sp->slots_a_pair + (bits > k ? 2 * (uint64_t)(bits - k) : 0);
}

/* Run length for n leaves of a stem's launch, `all` those of the launch: the
 * shortest that gives the launch no more items than wanted, and the stem no more
 * than have room. */
static uint32_t choose_run(const rkvi_site_plan *sp, const cut *c, uint64_t n, uint64_t all, uint64_t target,
                           uint32_t most_k)
{
    uint32_t k = 0;
    while (k < most_k && (all >> k > target || n >> k > c->most_items || n >> k > most_by_tables(sp, k)))
        k++;
    return k;
}

/* Leaves [a, z) of one launch as aligned runs of at most 2^k.  A run that holds
 * all that is seen of its aligned block is one item, short or not. */
static bool add_runs(rkvi_site_plan *sp, const cut *c, uint64_t a, uint64_t z, uint32_t launch, uint32_t k)
{
    const uint64_t run = (uint64_t)1 << k, *seen = c->path;
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

static uint64_t leaves_of_launch(const rkvi_site_plan *sp, uint32_t launch, uint64_t least)
{
    const uint64_t listed = sp->launches[launch].n_leaves;
    return listed > least ? listed : least;
}

static bool add_launch(rkvi_site_plan *sp, const cut *c, uint64_t a, uint64_t z, uint32_t launch)
{
    const uint64_t n = z - a, all = leaves_of_launch(sp, launch, n);
    return add_runs(sp, c, a, z, launch, choose_run(sp, c, n, all, sp->target, sp->most_k));
}

/* In runs of one length, as each thread has as many of the items (cpu_desk.h). */
static bool add_cpu_launch(rkvi_site_plan *sp, const cut *c, uint64_t a, uint64_t z, uint32_t launch)
{
    const uint64_t n = z - a, all = leaves_of_launch(sp, launch, n);
    const uint64_t target = rkvi_plan_cpu_items(sp->v, (uint32_t)(sp->site - sp->p->sites), all);
    return add_runs(sp, c, a, z, launch, choose_run(sp, c, n, all, target, 31));
}

static bool decode_items(rkvi_site_plan *sp, const cut *c)
{
    const uint32_t e = rkvi_stem_at(sp, c->stem)->entry, *launch = sp->p->leaf_launch + sp->span0[e];
    stretch s = {0};
    for (uint64_t a = c->seen[0], end; a < c->seen[1]; a = end) {
        const uint32_t turn = rkvi_leaf_turn(sp, e, a);
        end = a + 1;
        while (end < c->seen[1] && launch[end] == launch[a] && rkvi_leaf_turn(sp, e, end) == turn)
            end++;
        if (launch[a] == RKVI_TILE_UNSEEN)
            continue;
        const uint32_t at = sp->decode_rounds ? next_round(sp, &s, launch[a], turn) : launch[a] * sp->n_rounds;
        const bool is_cpu = launch[a] == sp->site->cpu_launch;
        if (!(is_cpu ? add_cpu_launch(sp, c, a, end, at) : add_launch(sp, c, a, end, at)))
            return false;
    }
    return true;
}

/* A block of rows goes through its leaves in order: launch g takes it up to the
 * first leaf that comes with a later launch, each round to the next turn. */
static bool prefill_block(rkvi_site_plan *sp, uint32_t e, uint64_t n_leaves, uint32_t row, uint32_t n_rows)
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
    rkvi_leaves_seen(sp->spans + sp->span0[e], n_leaves, lo, hi, &a, &z);
    while (a < z) {
        uint64_t end = a + 1;
        uint32_t g = launch[a] == RKVI_TILE_UNSEEN ? 0 : launch[a];
        const uint32_t turn = rkvi_leaf_turn(sp, e, a);
        g = s.any && s.launch > g ? s.launch : g; /* a device leaf after a stretch of the tail */
        while (end < z && (launch[end] == RKVI_TILE_UNSEEN || launch[end] <= g) && rkvi_leaf_turn(sp, e, end) == turn)
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
    if (sp->w->block_seen[be->row0 + row] && !be->is_tree)
        sp->w->items[sp->w->n_items - 1].flags |= RKVI_ITEM_LAST;
    return true;
}

void rkvi_site_count_leaves(rkvi_site_plan *sp)
{
    for (uint32_t g = 0; g < sp->site->n_launches * sp->n_rounds; g++)
        sp->launches[g].n_leaves = 0;
    for (uint32_t stem = 0; stem < sp->w->share.n_stems; stem++) {
        uint64_t a, z;
        if (!rkvi_stem_has_rows(sp, stem))
            continue;
        rkvi_stem_seen(sp, stem, &a, &z);
        rkvi_stem_set_launches(sp, stem, false);
        for (uint64_t i = a; i < z; i++) {
            const uint32_t g = sp->p->leaf_launch[sp->span0[rkvi_stem_at(sp, stem)->entry] + i];
            if (g != RKVI_TILE_UNSEEN)
                sp->launches[g * sp->n_rounds].n_leaves++;
        }
    }
}

/* Partials of a stem that are pending while its launches come in order; at an
 * end where it meets another stem, subtrees stay apart. */
static uint64_t pending_nodes(const rkvi_site_plan *sp, uint32_t stem)
{
    const uint64_t n = rkvi_stem_n_leaves(sp, stem);
    return rkvi_pending_nodes(n) + (rkvi_stem_leaf0(sp, stem) ? rkvi_bit_width(n) : 0);
}

/* A launch has the places that pending partials leave (least_room).  Those
 * after the tail's leaves are pending too where device leaves come first. */
static bool decode_stem(rkvi_site_plan *sp, uint32_t stem)
{
    rkvi_stem_nodes *nodes = &sp->w->nodes[stem];
    const uint64_t first = sp->w->n_items;
    const uint64_t more = sp->in_order ? 0 : rkvi_bit_width(rkvi_stem_n_leaves(sp, stem));
    const uint64_t pending = pending_nodes(sp, stem) + more;
    cut c = {.stem = stem, .most_items = nodes->room > pending ? nodes->room - pending : 0};
    rkvi_stem_seen(sp, stem, &c.seen[0], &c.seen[1]);
    c.path[0] = c.seen[0] == rkvi_stem_leaf0(sp, stem) ? 0 : c.seen[0];
    const bool goes_on = c.seen[1] == rkvi_stem_leaf1(sp, stem) && !rkvi_stem_is_path_end(sp, stem);
    c.path[1] = goes_on ? UINT64_MAX : c.seen[1];
    rkvi_stem_set_launches(sp, stem, sp->in_order);
    const bool ok = decode_items(sp, &c);
    nodes->n_items = sp->w->n_items - first;
    nodes->tail_end = 0;
    for (uint64_t i = first; i < sp->w->n_items; i++)
        if (sp->w->item_launch[i] > 0)
            nodes->tail_end = sp->w->items[i].leaf1;
    return ok;
}

static bool prefill_entry(rkvi_site_plan *sp, uint32_t e)
{
    const rkvi_batch_entry *be = &sp->v->batch->entries[e];
    const uint64_t n_leaves = rkvi_stem_leaf1(sp, sp->w->share.entry_stem[e]); /* it shares none */
    uint32_t last = 0;
    rkvi_leaves_set_launches(sp, e, 0, n_leaves, false, &last);
    for (uint32_t row = 0; row < be->n_rows; row += RKVI_PREFILL_ROWS) {
        const uint32_t left = be->n_rows - row;
        sp->w->block_seen[be->row0 + row] = false;
        if (!prefill_block(sp, e, n_leaves, row, left < RKVI_PREFILL_ROWS ? left : RKVI_PREFILL_ROWS))
            return false;
    }
    return true;
}

/* Parents come before their children, so that launches go on along a path. */
bool rkvi_site_all_items(rkvi_site_plan *sp)
{
    const rkvi_share *share = &sp->w->share;
    for (uint32_t stem = share->root, next; stem != RKVI_NONE; stem = next) {
        if (rkvi_stem_has_rows(sp, stem) && !decode_stem(sp, stem))
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

uint32_t rkvi_site_most_k(const rkvi_site_plan *sp)
{
    for (uint32_t k = 0; k < 31; k++) {
        uint64_t runs = 0, slots = 0, n = 0;
        for (uint32_t stem = 0; stem < sp->w->share.n_stems; stem++)
            if (rkvi_stem_has_rows(sp, stem)) {
                const uint64_t r = rkvi_stem_n_leaves(sp, stem) >> k;
                runs += r;
                slots += r * rkvi_stem_at(sp, stem)->n_rows;
                n++;
            }
        if (runs <= sp->target + n && slots <= RKVI_RUN_SLOTS / 4)
            return k;
    }
    return 31;
}

/* Least places of a stem: what is pending, with a launch's runs (config has
 * the sum, rkvi_site_most_k the whole runs); or one a leaf. */
static uint64_t least_room(const rkvi_site_plan *sp, uint32_t stem)
{
    const uint64_t n = rkvi_stem_n_leaves(sp, stem);
    const uint64_t least = pending_nodes(sp, stem) + (n >> sp->most_k);
    return least < n ? least : n;
}

bool rkvi_site_share_slots(rkvi_site_plan *sp)
{
    const rkvi_config *cfg = sp->v->cfg;
    uint64_t rows = 0, least = 0, slot = cfg->max_rows, at = 0;
    for (uint32_t stem = 0; stem < sp->w->share.n_stems; stem++) {
        const uint64_t n = rkvi_stem_at(sp, stem)->n_rows;
        rows += n;
        least += n * least_room(sp, stem);
    }
    if (least > cfg->partial_slots - cfg->max_rows)
        return false;
    const uint64_t more = rows ? (cfg->partial_slots - cfg->max_rows - least) / rows : 0;
    for (uint32_t stem = 0; stem < sp->w->share.n_stems; stem++) {
        const uint64_t room = rkvi_stem_has_rows(sp, stem) ? least_room(sp, stem) + more : 0;
        sp->w->nodes[stem] = (rkvi_stem_nodes){
            .slot0 = slot, .room = room, .live = sp->w->live + at, .free = sp->w->free + at};
        slot += room * rkvi_stem_at(sp, stem)->n_rows;
        at += room;
    }
    return true;
}
