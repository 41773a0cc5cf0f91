/* SPDX-License-Identifier: MIT
 *
 * plan_oracle.h: a plan carried out in leaves and rows instead of numbers: which
 * leaves are computed when and from which address, where their partials lie, and
 * what the merges make of them.
 */
#ifndef RKVT_PLAN_ORACLE_H
#define RKVT_PLAN_ORACLE_H

#include "plan_world.h"

static const void *table(uint64_t off)
{
    assert_true(off % 256 == 0 && off <= w.mirror.bytes);
    return w.mirror.host + off;
}

/* One site as the oracle sees it. */
typedef struct site_view {
    uint32_t site, layer;
    rkvi_site_mask mask;
    const rkvi_plan_site *ps;
    const rkvi_plan_launch *launches;
    const rkvi_entry *entries;
    const rkvi_span *spans;
    const uint64_t *bases;
    const rkvi_item *items;
    const rkvi_merge_item *merges;
    const rkvi_node *nodes;
} site_view;

static site_view view_site(uint32_t site)
{
    const rkvi_plan_site *ps = &w.plan.sites[site];
    const uint32_t layer = w.cfg.sites[site].kv_layer;
    const rkvi_plan_class *pc = &w.plan.classes[w.cfg.layers[layer].leaf_class];
    return (site_view){.site = site,
                       .layer = layer,
                       .mask = w.cfg.sites[site].mask,
                       .ps = ps,
                       .launches = &w.plan.launches[ps->launch0],
                       .entries = table(pc->entries_off),
                       .spans = table(pc->spans_off),
                       .bases = table(ps->bases_off),
                       .items = table(ps->items_off),
                       .merges = table(ps->merges_off),
                       .nodes = table(ps->nodes_off)};
}

static const rkvi_seq *seq_of(uint32_t e)
{
    return &w.seqs[w.batch.entries[e].sequence];
}

/* Does one of rows [row, row + n) of the entry lie so that the hull of what
 * they see touches the positions [pos, end)? */
static bool hull_sees(const site_view *v, uint32_t e, uint32_t row, uint32_t n, int64_t pos, int64_t end)
{
    int64_t lo = INT64_MAX, hi = INT64_MIN;
    for (uint32_t i = 0; i < n; i++) {
        int64_t a, z;
        rkvi_visible(&w.batch.rows[w.batch.entries[e].row0 + row + i], v->mask, &a, &z);
        if (a >= z)
            continue;
        lo = a < lo ? a : lo;
        hi = z > hi ? z : hi;
    }
    return lo < hi && pos < hi && end > lo;
}

static bool leaf_seen(const site_view *v, uint32_t e, uint32_t row, uint32_t n, uint64_t leaf)
{
    const rkvi_span *s = &w.own[e][leaf];
    return hull_sees(v, e, row, n, s->pos, s->pos + s->count);
}

static bool any_row_sees(const site_view *v, uint32_t e, uint64_t leaf)
{
    const rkvi_span *s = &w.own[e][leaf];
    for (uint32_t i = 0; i < w.batch.entries[e].n_rows; i++) {
        int64_t lo, hi;
        uint32_t c0, c1;
        rkvi_visible(&w.batch.rows[w.batch.entries[e].row0 + i], v->mask, &lo, &hi);
        rkvi_span_visible(s, lo, hi, &c0, &c1);
        if (c0 < c1)
            return true;
    }
    return false;
}

static uint32_t base_of(uint32_t e, uint32_t t)
{
    return rkvi_share_base(&w.plan.work->share, e, seq_of(e), t);
}

/* Bases rise along every entry, and those that entries share are one. */
static void mark_seen(const site_view *v, bool *seen)
{
    for (uint32_t e = 0; e < w.batch.n_entries; e++) {
        const rkvi_seq *s = seq_of(e);
        assert_int_equal(v->entries[e].base0, 0);
        for (uint32_t t = 0; t < s->n_tiles; t++) {
            assert_true(base_of(e, t) < w.plan.n_bases);
            assert_true(t == 0 || base_of(e, t - 1) < base_of(e, t));
            assert_int_equal(w.plan.work->share.base_tile[base_of(e, t)], s->tiles[t]);
        }
        for (uint32_t i = 0; i < s->n_segments; i++) {
            const rkvi_segment *g = &s->segments[i];
            if (hull_sees(v, e, 0, w.batch.entries[e].n_rows, g->pos, g->pos + g->count))
                seen[base_of(e, g->tile_index)] = true;
        }
    }
}

/* The launch that must read each tile (UINT32_MAX: on the device, or unseen);
 * checks list, order, launch sizes and bases on the way. */
static void check_list(const site_view *v, uint32_t *tile_launch)
{
    const rkvi_ring_item *it = &w.ring.items[v->ps->list0], *end = it + v->ps->n_list;
    const uint64_t last = v->ps->number0 + v->ps->n_launches - 1;
    uint64_t in_launch = 0, launch = v->ps->number0;
    bool *seen = calloc(w.plan.n_bases + 1, sizeof *seen);
    mark_seen(v, seen);
    for (uint32_t base = 0; base < w.plan.n_bases; base++) {
        const uint32_t tile = w.plan.work->share.base_tile[base];
        const rkvi_tile_layer *y = rkvi_tile_layer_at(&w.tiles, tile, v->layer);
        tile_launch[base] = UINT32_MAX;
        if (y->state != RKVI_IN_TAIL || !seen[base]) {
            assert_int_equal(v->bases[base], y->device_addr);
            continue;
        }
        assert_true(it < end);
        assert_int_equal(it->site, v->site);
        assert_int_equal(it->serial, w.tiles.tiles[tile].serial);
        assert_int_equal(v->bases[base], RING_ADDR + it->at % w.ring.bytes);
        assert_true(it->launch == launch || it->launch == launch + 1);
        in_launch = it->launch == launch ? in_launch + it->bytes : it->bytes;
        assert_true(in_launch == it->bytes || in_launch <= w.view.launch_bytes);
        launch = it->launch;
        tile_launch[base] = (uint32_t)(launch - v->ps->number0);
        it++;
    }
    free(seen);
    assert_ptr_equal(it, end);
    assert_int_equal(launch, last);
}

/* All seen leaves within the smallest aligned block around [a, z) lie in it:
 * so it is a node of the tree. */
static bool is_node(const site_view *v, uint32_t e, uint64_t a, uint64_t z, const bool *has)
{
    uint32_t k = 0;
    while (a >> k != (z - 1) >> k)
        k++;
    const uint64_t lo = a >> k << k, hi = lo + ((uint64_t)1 << k);
    const uint64_t n = v->entries[e].n_spans;
    for (uint64_t i = lo; i < hi && i < n; i++)
        if (any_row_sees(v, e, i) && !has[i])
            return false;
    return true;
}

/* What a partial slot holds: leaves of one row of the step, as a node. */
typedef struct slot {
    bool live;
    uint32_t row;
    uint64_t leaf0, node; /* node: index into the list of nodes */
} slot;

typedef struct node {
    bool *has; /* [leaf] */
    uint64_t first, end;
} node;

static slot *slots;
static node *nodes;
static uint64_t n_nodes, nodes_room, most_leaves;
static uint32_t *entry_of; /* [row of the step] */

static node *new_node(void)
{
    if (n_nodes == nodes_room) {
        nodes_room = 2 * nodes_room + 64;
        nodes = realloc(nodes, nodes_room * sizeof *nodes);
        assert_non_null(nodes);
    }
    nodes[n_nodes] = (node){.has = calloc(most_leaves + 1, 1), .first = UINT64_MAX};
    return &nodes[n_nodes++];
}

static void put_row(uint64_t at, uint32_t row, uint64_t leaf0)
{
    assert_true(at >= w.cfg.max_rows && at < w.cfg.partial_slots);
    assert_false(slots[at].live);
    slots[at] = (slot){.live = true, .row = row, .leaf0 = leaf0, .node = n_nodes - 1};
}

/* Leaves of an item come from where they lie during this launch. */
static void check_sources(const site_view *v, const rkvi_item *it, uint32_t g, const uint32_t *tile_launch)
{
    assert_true(it->leaf0 < it->leaf1 && it->leaf1 <= v->entries[it->entry].n_spans);
    for (uint64_t i = it->leaf0; i < it->leaf1; i++) {
        const rkvi_span *s = &v->spans[v->entries[it->entry].span0 + i];
        assert_true(v->bases[s->tile] != 0);
        assert_true(tile_launch[s->tile] == UINT32_MAX || tile_launch[s->tile] == g);
    }
}

static uint32_t item_row(const rkvi_item *it, uint32_t r)
{
    const uint32_t *map = w.plan.is_mapped ? table(w.plan.row_map_off) : NULL;
    return map ? map[it->row + r] : w.batch.entries[it->entry].row0 + it->row + r;
}

/* An entry's leaves are the item's, and its rows come all together. */
static void run_entry(const site_view *v, const rkvi_item *it, uint32_t e, const node *n, bool *done)
{
    const rkvi_span *spans = &v->spans[v->entries[it->entry].span0];
    assert_false(w.batch.entries[e].is_prefill);
    for (uint64_t i = it->leaf0; i < it->leaf1; i++) {
        assert_memory_equal(&w.own[e][i], &spans[i], sizeof *spans);
        assert_false(done[i]);
        done[i] = true;
    }
    assert_true(is_node(v, e, it->leaf0, it->leaf1, n->has));
}

static uint64_t n_mapped;

static void run_decode(const site_view *v, const rkvi_item *it, bool *const *done)
{
    node *n = new_node();
    n->first = it->leaf0;
    n->end = it->leaf1;
    for (uint64_t i = it->leaf0; i < it->leaf1; i++)
        n->has[i] = true;
    for (uint32_t r = 0; r < it->n_rows; r++) {
        const uint32_t row = item_row(it, r), e = entry_of[row], row0 = w.batch.entries[e].row0;
        if (row == row0)
            run_entry(v, it, e, n, done[e]);
        else
            assert_true(r > 0 && item_row(it, r - 1) == row - 1);
        assert_true(row - row0 + (it->n_rows - r) >= w.batch.entries[e].n_rows);
        put_row(it->slot + r, row, it->leaf0);
        n_mapped += e != it->entry;
    }
}

/* Progress of one block of prefill rows. */
typedef struct block {
    uint64_t next; /* leaf */
    uint32_t launch;
    bool begun, is_out; /* its output is written */
} block;

static void run_prefill(const site_view *v, const rkvi_item *it, uint32_t g, block *b)
{
    const rkvi_batch_entry *be = &w.batch.entries[it->entry];
    assert_true(be->is_prefill);
    assert_int_equal(it->row % RKVI_PREFILL_ROWS, 0);
    assert_int_equal(it->n_rows, be->n_rows - it->row < RKVI_PREFILL_ROWS ? be->n_rows - it->row : RKVI_PREFILL_ROWS);
    assert_int_equal(it->slot, be->row0 + it->row);
    assert_int_equal((it->flags & RKVI_ITEM_FIRST) != 0, !b->begun);
    assert_true(!b->begun || (b->launch < g && b->next == it->leaf0));
    assert_false(b->is_out);
    if (!b->begun)
        for (uint64_t i = 0; i < it->leaf0; i++)
            assert_false(leaf_seen(v, it->entry, it->row, it->n_rows, i));
    *b = (block){.next = it->leaf1, .launch = g, .begun = true, .is_out = it->flags & RKVI_ITEM_LAST};
}

/* Reads of all merges of a launch come with its writes: they are parallel.
 * Row r of the merge is row `rows[r]` of the step. */
static void take_node(const rkvi_merge_item *m, const rkvi_node *nd, const uint32_t *rows, node *into)
{
    const node *from = &nodes[slots[nd->slot].node];
    for (uint32_t r = 0; r < m->n_rows; r++) {
        const slot *p = &slots[nd->slot + r];
        assert_true(p->live && p->row == rows[r] && p->leaf0 == nd->leaf0);
        assert_int_equal(p->node, slots[nd->slot].node);
    }
    assert_true(into->first == UINT64_MAX || nd->leaf0 >= into->end);
    into->first = into->first == UINT64_MAX ? nd->leaf0 : into->first;
    into->end = from->end;
    for (uint64_t i = 0; i < most_leaves; i++)
        into->has[i] = into->has[i] || from->has[i];
}

static void kill(uint64_t at, uint32_t n)
{
    for (uint32_t r = 0; r < n; r++)
        slots[at + r].live = false;
}

static void run_merges(const site_view *v, const rkvi_plan_launch *l)
{
    uint32_t *rows = calloc(w.cfg.max_rows, sizeof *rows);
    for (uint64_t i = l->merge0; i < l->merge0 + l->n_merge; i++) {
        const rkvi_merge_item *m = &v->merges[i];
        if (m->n_rows == 0 && w.view.fixed) {
            assert_int_equal(m->n_nodes, 0);
            continue;
        }
        node *into = new_node();
        const uint64_t index = n_nodes - 1;
        assert_true(m->n_nodes > 0 && m->dst != RKVI_TO_OUT && m->n_rows <= w.cfg.max_rows);
        for (uint32_t r = 0; r < m->n_rows; r++)
            rows[r] = slots[v->nodes[m->node0].slot + r].row;
        for (uint32_t k = 0; k < m->n_nodes; k++)
            take_node(m, &v->nodes[m->node0 + k], rows, into);
        for (uint32_t r = 0; r < m->n_rows; r++) {
            const uint32_t e = entry_of[rows[r]];
            if (r == 0 || e != entry_of[rows[r - 1]])
                assert_true(is_node(v, e, nodes[index].first, nodes[index].end, nodes[index].has));
            put_row(m->dst + r, rows[r], nodes[index].first);
        }
    }
    for (uint64_t i = l->merge0; i < l->merge0 + l->n_merge; i++)
        for (uint32_t k = 0; k < v->merges[i].n_nodes; k++)
            kill(v->nodes[v->merges[i].node0 + k].slot, v->merges[i].n_rows);
    free(rows);
}

static void check_decode_output(const site_view *v, const rkvi_merge_item *m)
{
    uint32_t rows[RKV_DECODE_ROWS_MAX];
    node *all = new_node();
    assert_true(m->row == 0 && m->n_rows == w.batch.entries[m->entry].n_rows);
    for (uint32_t r = 0; r < m->n_rows; r++)
        rows[r] = w.batch.entries[m->entry].row0 + r;
    for (uint32_t k = 0; k < m->n_nodes; k++)
        take_node(m, &v->nodes[m->node0 + k], rows, all);
    for (uint64_t i = 0; i < v->entries[m->entry].n_spans; i++)
        if (any_row_sees(v, m->entry, i))
            assert_true(all->has[i]);
    for (uint32_t k = 0; k < m->n_nodes; k++)
        kill(v->nodes[m->node0 + k].slot, m->n_rows);
}

/* A block goes out with its last item; one of which nothing is seen with a merge. */
static void check_prefill_output(const site_view *v, uint32_t e, uint32_t row, const block *b, uint32_t *rows)
{
    const uint64_t n = v->entries[e].n_spans;
    const uint32_t left = w.batch.entries[e].n_rows - row, n_rows = left < RKVI_PREFILL_ROWS ? left : RKVI_PREFILL_ROWS;
    assert_int_equal(b->is_out, b->begun);
    for (uint64_t i = b->begun ? b->next : 0; i < n; i++)
        assert_false(leaf_seen(v, e, row, n_rows, i));
    for (uint32_t r = row; b->is_out && r < row + n_rows; r++)
        rows[w.batch.entries[e].row0 + r]++;
}

/* Every row to the output once; no partial is left over. */
static void check_output(const site_view *v, block *const *blocks)
{
    uint32_t *rows = calloc(w.batch.n_rows, sizeof *rows);
    for (uint64_t i = v->ps->merge0; i < v->ps->merge0 + v->ps->n_merge; i++) {
        const rkvi_merge_item *m = &v->merges[i];
        const rkvi_batch_entry *be = &w.batch.entries[m->entry];
        assert_true(m->dst == RKVI_TO_OUT);
        assert_true(m->row + m->n_rows <= be->n_rows);
        for (uint32_t r = 0; r < m->n_rows; r++)
            rows[be->row0 + m->row + r]++;
        if (!be->is_prefill)
            check_decode_output(v, m);
        else
            assert_true(m->row % RKVI_PREFILL_ROWS == 0 && m->n_nodes == 0);
    }
    for (uint32_t e = 0; e < w.batch.n_entries; e++)
        for (uint32_t row = 0; w.batch.entries[e].is_prefill && row < w.batch.entries[e].n_rows;
             row += RKVI_PREFILL_ROWS)
            check_prefill_output(v, e, row, &blocks[e][row / RKVI_PREFILL_ROWS], rows);
    for (uint32_t r = 0; r < w.batch.n_rows; r++)
        assert_int_equal(rows[r], 1);
    for (uint64_t s = 0; s < w.cfg.partial_slots; s++)
        assert_false(slots[s].live);
    free(rows);
}

/* Leaves of every entry, by the sequence alone. */
static void make_own(uint32_t layer)
{
    const uint32_t leaf = w.cfg.leaf_cells[w.cfg.layers[layer].leaf_class];
    w.own = calloc(w.batch.n_entries, sizeof *w.own);
    for (uint32_t e = 0; e < w.batch.n_entries; e++) {
        const uint64_t n = rkvi_seq_n_leaves(seq_of(e), leaf);
        w.own[e] = calloc(n + 1, sizeof **w.own);
        rkvi_seq_spans(seq_of(e), leaf, 0, w.own[e]);
        for (uint64_t i = 0; i < n; i++)
            w.own[e][i].tile = base_of(e, w.own[e][i].tile);
    }
}

static void check_site(const site_view *v)
{
    uint32_t *tile_launch = calloc(w.plan.n_bases + 1, sizeof *tile_launch);
    bool **done = calloc(w.batch.n_entries, sizeof *done);
    block **blocks = calloc(w.batch.n_entries, sizeof *blocks);
    slots = calloc(w.cfg.partial_slots, sizeof *slots);
    entry_of = calloc(w.batch.n_rows, sizeof *entry_of);
    make_own(v->layer);
    most_leaves = 0;
    for (uint32_t e = 0; e < w.batch.n_entries; e++) {
        const rkvi_batch_entry *be = &w.batch.entries[e];
        for (uint32_t r = 0; r < be->n_rows; r++)
            entry_of[be->row0 + r] = e;
        most_leaves = v->entries[e].n_spans > most_leaves ? v->entries[e].n_spans : most_leaves;
        done[e] = calloc(v->entries[e].n_spans + 1, 1);
        blocks[e] = calloc(w.batch.entries[e].n_rows / RKVI_PREFILL_ROWS + 1, sizeof **blocks);
    }
    check_list(v, tile_launch);
    for (uint32_t g = 0; g < v->ps->n_launches; g++) {
        const rkvi_plan_launch *l = &v->launches[g];
        for (uint64_t i = l->decode0; i < l->decode0 + l->n_decode; i++) {
            check_sources(v, &v->items[i], g, tile_launch);
            run_decode(v, &v->items[i], done);
        }
        assert_true(l->grid_decode == l->n_decode || (w.view.fixed && l->grid_decode > l->n_decode));
        for (uint64_t i = l->decode0 + l->n_decode; i < l->decode0 + l->grid_decode; i++)
            assert_int_equal(v->items[i].n_rows, 0);
        for (uint64_t i = l->prefill0; i < l->prefill0 + l->n_prefill; i++) {
            const rkvi_item *it = &v->items[i];
            check_sources(v, it, g, tile_launch);
            run_prefill(v, it, g, &blocks[it->entry][it->row / RKVI_PREFILL_ROWS]);
        }
        run_merges(v, l);
    }
    check_output(v, blocks);
    for (uint32_t e = 0; e < w.batch.n_entries; e++) {
        free(done[e]);
        free(blocks[e]);
        free(w.own[e]);
    }
    free(w.own);
    free(entry_of);
    for (uint64_t i = 0; i < n_nodes; i++)
        free(nodes[i].has);
    n_nodes = 0;
    free(done);
    free(blocks);
    free(slots);
    free(tile_launch);
}

/* New cells lie at the sequences' ends; tiles opened and not filled are listed. */
static void check_cells(void)
{
    const rkvi_new_cell *c = table(w.plan.cells_off);
    const uint64_t *open = table(w.plan.open_off);
    uint64_t n = 0, n_open = 0;
    for (uint32_t e = 0; e < w.batch.n_entries; e++) {
        const rkvi_seq *s = seq_of(e);
        const uint32_t n_new = w.batch.entries[e].n_new, fill = rkvi_seq_last_fill(s);
        uint32_t cell = fill, t = s->n_tiles; /* backwards from the end */
        for (uint32_t i = n_new; i-- > 0; cell--) {
            if (i == n_new - 1 || cell == 0)
                t--;
            cell = cell ? cell : w.cfg.tile_cells;
            assert_int_equal(c[n + i].base, base_of(e, t));
            assert_int_equal(c[n + i].cell, cell - 1);
            assert_int_equal(c[n + i].row, n + i);
        }
        n += n_new;
        if (n_new && fill < w.cfg.tile_cells && fill <= n_new)
            assert_int_equal(open[n_open++], base_of(e, s->n_tiles - 1));
    }
    assert_int_equal(w.plan.n_new_cells, n);
    assert_int_equal(w.plan.n_open, n_open);
}

/* Spans that an entry does not share are its own, behind those that it shares. */
static void check_rows_and_entries(void)
{
    const rkvi_share *share = &w.plan.work->share;
    assert_memory_equal(table(w.plan.rows_off), w.batch.rows, w.batch.n_rows * sizeof(rkvi_row));
    for (uint32_t c = 0; c < w.cfg.n_leaf_classes; c++) {
        const rkvi_entry *en = table(w.plan.classes[c].entries_off);
        const rkvi_span *all = table(w.plan.classes[c].spans_off);
        for (uint32_t e = 0; e < w.batch.n_entries; e++) {
            const uint64_t n = rkvi_seq_n_leaves(seq_of(e), w.cfg.leaf_cells[c]), skip = share->shared_leaves[c][e];
            rkvi_span *spans = calloc(n + 1, sizeof *spans);
            rkvi_seq_spans(seq_of(e), w.cfg.leaf_cells[c], 0, spans);
            assert_int_equal(rkvi_seq_spans(seq_of(e), w.cfg.leaf_cells[c], skip, spans + skip), n - skip);
            assert_int_equal(en[e].n_spans, n);
            assert_int_equal(en[e].row0, w.batch.entries[e].row0);
            assert_int_equal(en[e].n_rows, w.batch.entries[e].n_rows);
            assert_true(skip == 0 || w.shares);
            for (uint64_t i = skip; i < n; i++) {
                spans[i].tile = base_of(e, spans[i].tile);
                assert_memory_equal(&all[en[e].span0 + i], &spans[i], sizeof *spans);
            }
            free(spans);
        }
    }
}

static void check_all(void)
{
    check_rows_and_entries();
    check_cells();
    for (uint32_t site = 0; site < w.cfg.n_sites; site++) {
        const site_view v = view_site(site);
        check_site(&v);
    }
}

#endif
