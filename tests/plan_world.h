/* SPDX-License-Identifier: MIT
 *
 * plan_world.h: random sequences, some of which share tiles, batches and
 * residencies, and their plans.  One world at a time: w.
 */
#ifndef RKVT_PLAN_WORLD_H
#define RKVT_PLAN_WORLD_H

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
    if (p->mode == RKV_MODE_RING && one_in(4)) /* fixed plans, a ring in laps */
        p->flags = RKV_FLAG_GRAPHS;
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
    w.ring.laps = c->flags & RKV_FLAG_GRAPHS;
    w.ring.largest_bytes = c->largest_tile_layer_bytes;
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

static uint32_t wide_runs; /* of the next plans */

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
                              .target_runs = target_runs,
                              .wide_runs = wide_runs,
                              .fixed = w.ring.laps};
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

#endif
