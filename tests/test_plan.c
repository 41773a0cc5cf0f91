/* SPDX-License-Identifier: MIT
 *
 * Plans of random batches against an oracle, launch by launch: which leaves
 * are computed when and from which address, where their partials lie, and what
 * the merges make of them.
 */
#include "core_config.h"
#include "plan_work.h"

#define ok(call) assert_int_equal(call, RKV_OK)
#define RING_ADDR ((uint64_t)1 << 50)
#define MIRROR_ADDR ((uint64_t)1 << 52)

typedef struct world {
    core_params params;
    rkvi_config cfg;
    rkvi_tiles tiles;
    rkvi_seq *seqs;
    uint32_t *n_old; /* whole tiles of each sequence before the batch */
    rkvi_batch batch;
    rkvi_ring ring;
    rkvi_plan plan;
    rkvi_plan_view view;
    rkvi_mirror mirror;
    uint64_t n_segments;
    bool full, few_rows;
    bool shares; /* sequences have tiles of others */
    rkvi_span **own; /* [entry] leaves of one class, with bases for tiles */
} world;

static world w;

/* ------------------------------------------------------------------- making */

static void make_params(void)
{
    rkv_cache_params *p = &w.params.p;
    core_params_init(&w.params, true);
    p->tile_cells = 16u << below(one_in(3) ? 6 : 3);
    p->n_sequences = one_in(3) ? between(20, 60) : one_in(8) ? between(100, 300) : between(1, 6);
    w.full = one_in(3); /* long sequences, many rows */
    w.few_rows = one_in(3);
    w.shares = p->n_sequences > 1 && one_in(2);
    p->capacity_cells = (uint64_t)p->tile_cells * between(1, w.full ? 1500 : one_in(3) ? 300 : 60);
    p->max_rows = one_in(3) ? between(1, 20) : between(20, 700);
    if (w.full)
        p->max_rows = w.few_rows ? p->n_sequences + 15 : 16 * p->n_sequences;
    p->mode = one_in(6) ? RKV_MODE_OP_LEVEL : RKV_MODE_RING;
    const uint64_t largest = core_largest_bytes(&w.params);
    p->ring_bytes = largest * (one_in(3) ? 1 : between(1, 20)) + (one_in(2) ? 0 : largest / 2);
    p->copy_bytes = one_in(2) ? 0 : largest * between(1, 8) + below(largest);
}

static void open_world(void)
{
    core_config_init(&w.params, &w.cfg);
    const rkvi_config *c = &w.cfg;
    if (w.few_rows) /* what is spare for parallel runs: the bound holds without it */
        w.cfg.partial_slots -= RKVI_RUN_SLOTS - RKVI_RUN_SLOTS / 4;
    ok(rkvi_tiles_init(&w.tiles, (uint32_t)c->capacity_tiles, c->n_layers));
    w.seqs = calloc(c->n_sequences, sizeof *w.seqs);
    w.n_old = calloc(c->n_sequences, sizeof *w.n_old);
    w.batch.entries = calloc(c->n_sequences, sizeof *w.batch.entries);
    w.batch.rows = calloc(c->max_rows, sizeof *w.batch.rows);
    ok(rkvi_ring_init(&w.ring, c->ring_bytes ? c->ring_bytes : 1, c->copy_bytes ? c->copy_bytes : 1,
                      c->ring_bytes ? 256 : 1, (uint32_t)(c->n_sites * c->max_bases)));
    ok(rkvi_plan_init(&w.plan, c));
    w.mirror = (rkvi_mirror){.host = malloc(c->table_bytes), .device_addr = MIRROR_ADDR, .bytes = c->table_bytes};
    assert_non_null(w.mirror.host);
}

static void make_world(void)
{
    memset(&w, 0, sizeof w);
    make_params();
    open_world();
}

static void free_world(void)
{
    for (uint32_t i = 0; i < w.cfg.n_sequences; i++)
        rkvi_seq_free(&w.seqs[i]);
    free(w.seqs);
    free(w.n_old);
    free(w.batch.entries);
    free(w.batch.rows);
    free(w.mirror.host);
    rkvi_ring_free(&w.ring);
    rkvi_plan_free(&w.plan);
    rkvi_tiles_free(&w.tiles);
    rkvi_config_free(&w.cfg);
}

/* A shared tile that is appended to is copied. */
static void copy_last(rkvi_seq *s)
{
    uint32_t *last = s->n_tiles ? &s->tiles[s->n_tiles - 1] : NULL;
    if (!last || rkvi_seq_last_fill(s) == w.cfg.tile_cells || w.tiles.tiles[*last].refs == 1)
        return;
    rkvi_tiles_unref(&w.tiles, *last);
    *last = rkvi_tiles_take(&w.tiles);
}

/* Goes on with a part of another sequence, near its end or anywhere. */
static void share(rkvi_seq *s, const rkvi_seq *src)
{
    const int64_t begin = rkvi_seq_pos_end(s), end = rkvi_seq_pos_end(src);
    if (s == src || begin >= end)
        return;
    const int64_t from = one_in(2) ? begin : begin + below((uint64_t)(end - begin));
    const int64_t to = one_in(3) ? end : one_in(2) ? end - below(3) : from + below((uint64_t)(end - from) + 1);
    const uint32_t n = rkvi_seq_count(src, from, to);
    ok(rkvi_seq_reserve(s, n, n));
    const uint32_t added = rkvi_seq_share(s, src, from, to), before = s->n_tiles - added;
    for (uint32_t t = before; t < s->n_tiles; t++)
        rkvi_tiles_ref(&w.tiles, s->tiles[t]);
    w.n_segments += n;
}

/* The end of another sequence moved to the beginning, then what comes before it:
 * tiles in another order. */
static void share_turned(rkvi_seq *s, const rkvi_seq *src)
{
    const int64_t end = rkvi_seq_pos_end(src), from = end - end / 4;
    if (s->n_tiles || end < 8 || s == src)
        return;
    const uint32_t n = rkvi_seq_count(src, from, end);
    ok(rkvi_seq_reserve(s, n, n));
    rkvi_seq_share(s, src, from, end);
    for (uint32_t t = 0; t < s->n_tiles; t++)
        rkvi_tiles_ref(&w.tiles, s->tiles[t]);
    for (uint32_t i = 0; i < s->n_segments; i++) {
        s->segments[i].pos -= from;
        s->segments[i].turn -= from;
    }
    w.n_segments += n;
    share(s, src);
}

/* Appends n cells where tiles and segments suffice. */
static bool append(rkvi_seq *s, const rkvi_row *rows, uint32_t n)
{
    uint32_t need_tiles, need_segments, tiles[2048];
    rkvi_seq_need(s, rows, n, w.cfg.tile_cells, &need_tiles, &need_segments);
    if (need_tiles + 1 > w.tiles.n_free + !w.shares ||
        w.n_segments + need_segments > w.cfg.capacity_tiles + RKVI_SEGMENTS_EXTRA)
        return false;
    copy_last(s);
    for (uint32_t i = 0; i < need_tiles; i++)
        tiles[i] = rkvi_tiles_take(&w.tiles);
    ok(rkvi_seq_reserve(s, need_tiles, need_segments));
    rkvi_seq_append(s, rows, n, w.cfg.tile_cells, tiles);
    w.n_segments += need_segments;
    return true;
}

static void next_rows(const rkvi_seq *s, rkvi_row *rows, uint32_t n, uint32_t gaps_one_in)
{
    int64_t pos = rkvi_seq_pos_end(s);
    for (uint32_t i = 0; i < n; i++) {
        pos += gaps_one_in && one_in(gaps_one_in) ? between(1, 90) : 0;
        rows[i] = (rkvi_row){.pos = pos++, .from = 0, .to = (int64_t)1 << 62};
    }
}

/* Sequences of any length, long or short; some with many gaps. */
static void fill_sequences(void)
{
    rkvi_row rows[1024];
    const uint32_t gaps = one_in(2) ? 0 : between(1, 60);
    const uint64_t fair = w.cfg.capacity_tiles * w.cfg.tile_cells / w.cfg.n_sequences;
    for (uint32_t i = 0; i < w.cfg.n_sequences; i++) {
        if (w.shares && i && one_in(5))
            share_turned(&w.seqs[i], &w.seqs[below(i)]);
        if (w.shares && i && one_in(3)) {
            share(&w.seqs[i], &w.seqs[below(i)]); /* in the middle of one, or all of it */
            if (one_in(3))
                share(&w.seqs[i], &w.seqs[below(i)]);
        }
        uint64_t left = w.full ? fair : one_in(5) ? 0 : one_in(3) ? fair * 3 : below(fair + 1);
        while (left) {
            const uint32_t n = left < 1024 ? (uint32_t)left : 1024;
            next_rows(&w.seqs[i], rows, n, gaps);
            if (!append(&w.seqs[i], rows, n))
                break;
            left -= n;
        }
        if (w.shares && i && one_in(3))
            share(&w.seqs[i], &w.seqs[below(i)]);
        w.n_old[i] = w.seqs[i].n_tiles - (w.seqs[i].n_tiles && rkvi_seq_last_fill(&w.seqs[i]) < w.cfg.tile_cells);
    }
}

static void narrow(rkvi_row *row)
{
    row->from = below((uint64_t)row->pos + 20);
    row->to = row->from + (one_in(4) ? 0 : below((uint64_t)row->pos + 20));
}

static void add_entry(uint32_t sequence, uint32_t n_rows)
{
    rkvi_batch *b = &w.batch;
    rkvi_seq *s = &w.seqs[sequence];
    rkvi_row *rows = b->rows + b->n_rows;
    rkvi_batch_entry e = {.sequence = sequence, .row0 = b->n_rows, .n_rows = n_rows, .n_new = n_rows};
    e.is_prefill = n_rows > RKV_DECODE_ROWS_MAX || (!w.full && one_in(6));
    next_rows(s, rows, n_rows, one_in(4) ? 3 : 0);
    if (one_in(6)) { /* a query alone, anywhere */
        const int64_t end = rkvi_seq_pos_end(s);
        e.n_new = 0;
        for (uint32_t i = 0; i < n_rows; i++)
            rows[i].pos = (i ? rows[i - 1].pos + 1 : (int64_t)below((uint64_t)end + 1)) + below(3);
    } else if (!append(s, rows, n_rows)) {
        return;
    }
    if (one_in(4))
        for (uint32_t i = 0; i < n_rows; i++)
            narrow(&rows[i]);
    b->entries[b->n_entries++] = e;
    b->n_rows += n_rows;
}

static void make_batch(void)
{
    const uint32_t first = below(w.cfg.n_sequences);
    const bool wide = w.full || one_in(2); /* as many rows as there may be */
    for (uint32_t i = 0; i < w.cfg.n_sequences; i++) {
        const uint32_t left = w.cfg.max_rows - w.batch.n_rows;
        uint32_t n = wide ? RKV_DECODE_ROWS_MAX : between(1, 4);
        if (one_in(5) && !w.full)
            n = between(1, w.cfg.max_rows);
        if (w.full && w.few_rows) /* one of 16, the others of one */
            n = i ? 1 : RKV_DECODE_ROWS_MAX;
        if (left == 0)
            break;
        if (wide || !one_in(3))
            add_entry((first + i) % w.cfg.n_sequences, n < left ? n : left);
    }
}

static bool in_tail_by(uint32_t pattern, uint32_t i, uint32_t n)
{
    switch (pattern) {
    case 0: return true;
    case 1: return i >= n / 3;
    case 2: return i % 2;
    case 3: return i % 7 < 3;
    case 4: return i < n / 2;
    case 5: return false;
    default: return one_in(2);
    }
}

/* Any residency; tiles with new cells are on the device. */
static void make_residency(void)
{
    uint64_t addr = (uint64_t)1 << 20;
    bool *is_new = calloc(w.cfg.capacity_tiles, sizeof *is_new), *is_set = calloc(w.cfg.capacity_tiles, sizeof *is_set);
    for (uint32_t q = 0; q < w.cfg.n_sequences; q++)
        for (uint32_t t = w.n_old[q]; t < w.seqs[q].n_tiles; t++)
            is_new[w.seqs[q].tiles[t]] = true;
    for (uint32_t l = 0; l < w.cfg.n_layers; l++) {
        memset(is_set, 0, w.cfg.capacity_tiles * sizeof *is_set);
        for (uint32_t q = 0; q < w.cfg.n_sequences; q++) {
            const uint32_t pattern = below(7);
            for (uint32_t t = 0; t < w.seqs[q].n_tiles; t++) {
                const uint32_t tile = w.seqs[q].tiles[t];
                rkvi_tile_layer *y = rkvi_tile_layer_at(&w.tiles, tile, l);
                const bool tail =
                    w.cfg.layers[l].has_tail && in_tail_by(pattern, t, w.seqs[q].n_tiles) && !is_new[tile];
                if (is_set[tile])
                    continue;
                is_set[tile] = true;
                y->state = tail ? RKVI_IN_TAIL : one_in(3) ? RKVI_IN_WINDOW : RKVI_ON_DEVICE;
                y->device_addr = tail ? 0 : (addr += 256);
                y->host_addr = tail ? (addr += 256) : 0;
            }
        }
    }
    free(is_new);
    free(is_set);
}

/* False: what the entries have in common exceeds a table. */
static bool make_plan(uint32_t target_runs)
{
    const uint64_t most = rkvi_ring_launch_bytes(w.ring.bytes, w.cfg.largest_tile_layer_bytes, w.ring.laps);
    w.view = (rkvi_plan_view){.cfg = &w.cfg,
                              .tiles = &w.tiles,
                              .seqs = w.seqs,
                              .batch = &w.batch,
                              .step = 1,
                              .launch_base = 1,
                              .launch_bytes = w.cfg.mode == RKV_MODE_OP_LEVEL ? 0 : most,
                              .group_bytes = w.cfg.copy_bytes < most ? w.cfg.copy_bytes : most,
                              .target_runs = target_runs};
    uint32_t n;
    rkv_status s = rkvi_plan_list(&w.plan, &w.view, rkvi_ring_new_items(&w.ring), &n);
    if (s != RKV_OK && w.shares)
        return false;
    ok(s);
    rkvi_ring_plan(&w.ring, n);
    memset(w.mirror.host, 0xAA, w.mirror.bytes);
    s = rkvi_plan_tables(&w.plan, &w.view, w.ring.items, RING_ADDR, w.ring.bytes, &w.mirror);
    if (s != RKV_OK && w.shares && w.plan.work->share.is_mapped)
        return false;
    if (s != RKV_OK)
        fail_msg("T %u, %u sequences, %llu tiles, %u entries, %u rows: %s", w.cfg.tile_cells, w.cfg.n_sequences,
                 (unsigned long long)w.cfg.capacity_tiles, w.batch.n_entries, w.batch.n_rows, rkvi_error_text());
    assert_true(w.plan.table_bytes <= w.mirror.bytes);
    return true;
}

/* -------------------------------------------------------------- the oracle */

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
    bool begun;
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
    if (!b->begun)
        for (uint64_t i = 0; i < it->leaf0; i++)
            assert_false(leaf_seen(v, it->entry, it->row, it->n_rows, i));
    *b = (block){.next = it->leaf1, .launch = g, .begun = true};
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

static void check_prefill_output(const site_view *v, const rkvi_merge_item *m, const block *b)
{
    const uint64_t n = v->entries[m->entry].n_spans;
    assert_int_equal(m->row % RKVI_PREFILL_ROWS, 0);
    assert_int_equal(m->n_nodes, b->begun);
    for (uint64_t i = b->begun ? b->next : 0; i < n; i++)
        assert_false(leaf_seen(v, m->entry, m->row, m->n_rows, i));
    if (b->begun)
        assert_int_equal(v->nodes[m->node0].slot, w.batch.entries[m->entry].row0 + m->row);
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
        if (be->is_prefill)
            check_prefill_output(v, m, &blocks[m->entry][m->row / RKVI_PREFILL_ROWS]);
        else
            check_decode_output(v, m);
    }
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

static void count(uint64_t *sites, uint64_t *launches, uint64_t *compactions)
{
    *sites += w.cfg.n_sites;
    *launches += w.plan.n_launches;
    for (uint32_t g = 0; g < w.plan.n_launches; g++)
        *compactions += w.plan.launches[g].n_merge > 0;
}

static void test_random(void **state)
{
    (void)state;
    start_random();
    uint64_t launches = 0, compactions = 0, sites = 0, refused = 0, shared = 0, repeats = 0;
    for (uint32_t round = 0; round < rounds(60, 60); round++) {
        make_world();
        fill_sequences();
        make_batch();
        if (w.batch.n_entries) {
            make_residency();
            shared += w.shares;
            if (make_plan(one_in(2) ? between(1, 8) : between(8, 300))) {
                check_all();
                count(&sites, &launches, &compactions);
                repeats += w.plan.own_entries;
            } else {
                refused++;
            }
        }
        free_world();
    }
    print_message("%llu sites, %llu launches, %llu compactions\n", (unsigned long long)sites,
                  (unsigned long long)launches, (unsigned long long)compactions);
    print_message("%llu of %llu batches with shared tiles refused, %llu rows shared items, %llu own entries\n",
                  (unsigned long long)refused, (unsigned long long)shared, (unsigned long long)n_mapped,
                  (unsigned long long)repeats);
    assert_true(launches > sites && compactions > 0);
    assert_true(n_mapped > 0 && repeats > 0 && refused * 4 < shared);
    free(nodes);
    nodes = NULL;
    nodes_room = 0;
}

/* One sequence of n_tiles, all but its last tile in the tail, and one entry of n_rows. */
static void make_one(uint32_t n_tiles, uint32_t n_rows, bool is_prefill)
{
    rkvi_row rows[16];
    open_world();
    while (w.seqs[0].n_tiles < n_tiles) {
        next_rows(&w.seqs[0], rows, 16, 0);
        assert_true(append(&w.seqs[0], rows, 16));
    }
    next_rows(&w.seqs[0], w.batch.rows, n_rows, 0);
    assert_true(append(&w.seqs[0], w.batch.rows, n_rows));
    w.batch.n_rows = n_rows;
    w.batch.n_entries = 1;
    w.batch.entries[0] = (rkvi_batch_entry){.n_rows = n_rows, .n_new = n_rows, .is_prefill = is_prefill};
    for (uint32_t t = 0; t < w.seqs[0].n_tiles; t++)
        for (uint32_t l = 0; l < w.cfg.n_layers; l++) {
            rkvi_tile_layer *y = rkvi_tile_layer_at(&w.tiles, w.seqs[0].tiles[t], l);
            y->state = t < n_tiles - 1 ? RKVI_IN_TAIL : RKVI_ON_DEVICE;
            y->device_addr = t < n_tiles - 1 ? 0 : 256 * (t + 1);
        }
    make_plan(one_in(2) ? between(1, 8) : between(8, 300));
}

static void simple_params(uint32_t n_sites)
{
    memset(&w, 0, sizeof w);
    core_params_init(&w.params, false);
    w.params.p.n_kv_layers = 1;
    w.params.p.n_sites = n_sites;
    for (uint32_t i = 0; i < n_sites; i++)
        w.params.sites[i] = (rkv_site_params){.struct_size = sizeof w.params.sites[i], .n_q_heads = 4};
    w.params.p.tile_cells = 16;
    w.params.p.n_sequences = 1;
}

/* A copy that holds a little less than two tile-layers: a launch for each. */
static void test_most_launches(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        simple_params(1);
        const uint64_t bytes = core_largest_bytes(&w.params);
        w.params.p.capacity_cells = 16 * 1600;
        w.params.p.max_rows = 700;
        w.params.p.ring_bytes = i % 2 ? bytes * 20 : bytes * 3;
        w.params.p.copy_bytes = i % 2 ? bytes * 2 - 256 : bytes * 3;
        make_one(1550, i < 2 ? 700 : 16, i < 2);
        assert_int_equal(w.plan.sites[0].n_launches, 1549);
        check_all();
        free_world();
    }
}

/* Sites alike share their work; other masks have their own. */
static void test_shared_items(void **state)
{
    (void)state;
    simple_params(4);
    w.params.sites[2].mask = RKV_MASK_SLIDING;
    w.params.sites[2].mask_width = 40;
    w.params.p.capacity_cells = 16 * 40;
    w.params.p.ring_bytes = 6 * core_largest_bytes(&w.params);
    make_one(30, 1, false);
    check_all();
    const rkvi_plan_site *s = w.plan.sites;
    assert_int_equal(s[1].items_off, s[0].items_off);
    assert_int_equal(s[1].merges_off, s[0].merges_off);
    assert_true(s[2].items_off != s[0].items_off);
    assert_int_equal(s[3].items_off, s[0].items_off);
    assert_int_equal(s[2].n_list, 2);
    assert_int_equal(s[3].n_list, 29);
    assert_true(s[1].bases_off != s[0].bases_off); /* other slots */
    free_world();
}

/* The step after: what enters the tail by then has entered, what joins the
 * window has joined. */
static void test_predicted_list(void **state)
{
    static const struct {
        rkvi_tile_layer layer;
        bool now, then;
    } cases[] = {
        {{.state = RKVI_IN_TAIL}, true, true},
        {{.state = RKVI_IN_TAIL, .promoting = true}, true, false},
        {{.state = RKVI_LEAVING, .enter_step = 8}, false, true},
        {{.state = RKVI_LEAVING, .enter_step = 9}, false, false},
        {{.state = RKVI_ON_DEVICE, .enter_step = 8, .out_mark = RKVI_MARK_PENDING}, false, true},
        {{.state = RKVI_ON_DEVICE, .out_mark = RKVI_MARK_PENDING}, false, false},
        {{.state = RKVI_ON_DEVICE, .enter_step = 8}, false, false},
        {{.state = RKVI_IN_WINDOW}, false, false},
    };
    enum { N = sizeof cases / sizeof cases[0] };
    rkvi_ring_item items[2 * N];
    (void)state;
    simple_params(2);
    w.params.p.capacity_cells = 16 * 20;
    make_one(N + 1, 1, false);
    for (uint32_t i = 0; i < N; i++)
        *rkvi_tile_layer_at(&w.tiles, w.seqs[0].tiles[i], 0) = cases[i].layer;
    w.view.step = 7;
    for (int predict = 0; predict < 2; predict++) {
        w.view.predict = predict;
        uint32_t n;
        ok(rkvi_plan_list(&w.plan, &w.view, items, &n));
        for (uint32_t i = 0, k = 0; i < N; i++)
            if (predict ? cases[i].then : cases[i].now) {
                assert_true(2 * k < n);
                assert_int_equal(items[k].tile, w.seqs[0].tiles[i]);
                assert_int_equal(items[n / 2 + k].tile, w.seqs[0].tiles[i]);
                k++;
            }
        assert_int_equal(n, predict ? 2 * 3 : 2 * 2);
    }
    free_world();
}

/* One sequence, its first half in the tail: each launch of many has the work
 * items wanted, and merges make room between few of them. */
static void test_items_a_launch(void **state)
{
    (void)state;
    enum { TILES = 1024, TILE_CELLS = 256, TARGET = 24 };
    memset(&w, 0, sizeof w);
    rkv_cache_params *p = &w.params.p;
    core_params_init(&w.params, false);
    p->n_kv_layers = p->n_sites = 1;
    w.params.layers[0].n_kv_heads = 2;
    w.params.layers[0].head_dim_k = 512;
    w.params.sites[0].kv_layer = 0;
    p->tile_cells = TILE_CELLS;
    p->n_sequences = 1;
    p->capacity_cells = (TILES + 2) * TILE_CELLS;
    p->max_rows = 1024;
    p->copy_bytes = 8 * core_largest_bytes(&w.params);
    p->ring_bytes = 4 * p->copy_bytes;
    open_world();
    rkvi_row rows[1024];
    for (uint32_t i = 0; i < TILES * TILE_CELLS / 1024; i++) {
        next_rows(&w.seqs[0], rows, 1024, 0);
        assert_true(append(&w.seqs[0], rows, 1024));
    }
    next_rows(&w.seqs[0], w.batch.rows, 1, 0);
    assert_true(append(&w.seqs[0], w.batch.rows, 1));
    w.batch.entries[w.batch.n_entries++] = (rkvi_batch_entry){.n_rows = 1, .n_new = 1};
    w.batch.n_rows = 1;
    for (uint32_t t = 0; t < w.seqs[0].n_tiles; t++)
        *rkvi_tile_layer_at(&w.tiles, w.seqs[0].tiles[t], 0) = (rkvi_tile_layer){
            .state = t < TILES / 2 ? RKVI_IN_TAIL : RKVI_IN_WINDOW, .device_addr = 256, .host_addr = 256};
    make_plan(2 * TARGET);
    const rkvi_plan_site *s = &w.plan.sites[0];
    uint32_t n_stops = 0;
    assert_true(s->n_launches >= TILES / 2 / 8);
    for (uint32_t g = 0; g < s->n_launches; g++) {
        const rkvi_plan_launch *l = &w.plan.launches[s->launch0 + g];
        assert_true(l->n_decode > TARGET / 2 && l->n_decode <= (g ? TARGET : 2 * TARGET + 2));
        n_stops += l->n_merge > 0;
    }
    assert_true(n_stops <= 4);
    free_world();
}

static void test_range(void **state)
{
    (void)state;
    rkvi_row rows[3] = {{.pos = 100, .from = 0, .to = 1000}, {.pos = 300, .from = 0, .to = 250}, {.pos = 500, .from = 7, .to = 7}};
    const rkvi_batch b = {.rows = rows, .n_rows = 3, .n_entries = 1};
    rkvi_batch_entry e = {.n_rows = 2};
    int64_t lo, hi;
    rkvi_plan_range(&b, &e, (rkvi_site_mask){.kind = RKV_MASK_SLIDING, .width = 60}, &lo, &hi);
    assert_int_equal(lo, 41);
    assert_int_equal(hi, 250);
    e.n_rows = 1;
    rkvi_plan_range(&b, &e, (rkvi_site_mask){.kind = RKV_MASK_CHUNKED, .width = 64}, &lo, &hi);
    assert_int_equal(lo, 64);
    assert_int_equal(hi, 101);
    e.row0 = 2; /* nothing, wherever it lies */
    rkvi_plan_range(&b, &e, (rkvi_site_mask){.kind = RKV_MASK_CAUSAL}, &lo, &hi);
    assert_true(lo >= hi);
    e.row0 = 0;
    e.n_rows = 3;
    rkvi_plan_range(&b, &e, (rkvi_site_mask){.kind = RKV_MASK_CAUSAL}, &lo, &hi);
    assert_int_equal(lo, 0);
    assert_int_equal(hi, 250);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_range),
        cmocka_unit_test(test_shared_items),
        cmocka_unit_test(test_predicted_list),
        cmocka_unit_test(test_most_launches),
        cmocka_unit_test(test_items_a_launch),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
