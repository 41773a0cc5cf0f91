/* SPDX-License-Identifier: MIT
 *
 * cache_world.h: a random cache and its batches, the invariants that hold after
 * every call, and a snapshot of all that a failed call must not change.
 */
#ifndef RKVT_CACHE_WORLD_H
#define RKVT_CACHE_WORLD_H

#include "arena_fixture.h"
#include "cache.h"
#include "cache_unseen.h"
#include "core_config.h"

enum { TILES_MAX = 512, ITEMS_MAX = TILES_MAX * CONFIG_SITES_MAX };

typedef struct world {
    core_params params;
    rkvi_config cfg;
    rkvi_cache cache;
    rkvi_device *dev;
    rkvi_arena *arena;
    void *layer_memory[CONFIG_LAYERS_MAX];
    rkvi_batch batch;
    uint64_t mark; /* of copies */
    uint64_t begun, refused, aborted, promoted, left, brought_back, passed, freed, not_cut;
} world;

static world w;

static void make_params(uint32_t draft_rows)
{
    rkv_cache_params *p = &w.params.p;
    core_params_init(&w.params, one_in(2));
    p->tile_cells = 16u << below(5);
    p->n_sequences = between(1, 6);
    p->capacity_cells = (uint64_t)p->tile_cells * between(1, 50);
    p->max_rows = one_in(4) ? between(1, 20) : between(16, 16 * p->tile_cells < 1000 ? 16 * p->tile_cells : 1000);
    p->draft_rows = draft_rows;
    p->ring_bytes = core_largest_bytes(&w.params) * between(1, 8);
    for (uint32_t l = 0; l < p->n_kv_layers; l++) {
        const uint64_t cells[] = {RKV_RESIDENT_NONE, p->tile_cells, p->capacity_cells / 2, RKV_RESIDENT_ALL,
                                  1 + below(p->capacity_cells)};
        w.params.layers[l].resident_cells = cells[below(5)];
        w.params.layers[l].keep_all = one_in(4);
    }
}

/* A share of the host memory that the tail can take, in tenths: 20 is enough
 * whatever a slab's end wastes. */
static void make_world(uint32_t draft_rows, uint32_t host_tenths)
{
    memset(&w, 0, sizeof w);
    make_params(draft_rows);
    core_config_init(&w.params, &w.cfg);
    assert_true(w.cfg.capacity_tiles <= TILES_MAX);
    const uint64_t host = (w.cfg.host_tail_bytes + 4096) * host_tenths / 10 / 4096 * 4096;
    w.dev = make_device(NULL);
    w.arena = make_arena(w.dev, host ? host : 4096, host ? host : 4096, 64 * KIB);
    for (uint32_t l = 0; l < w.cfg.n_layers; l++)
        w.layer_memory[l] = (void *)((uintptr_t)(l + 1) << 40);
    const rkvi_cache_memory memory = {.layers = w.layer_memory, .transit = (void *)((uintptr_t)1 << 45)};
    ok(rkvi_cache_init(&w.cache, &w.cfg, &memory, w.arena));
    w.batch.entries = calloc(w.cfg.n_sequences, sizeof *w.batch.entries);
    w.batch.rows = calloc(w.cfg.max_rows, sizeof *w.batch.rows);
}

static void free_world(void)
{
    rkvi_cache_free(&w.cache);
    rkvi_config_free(&w.cfg);
    rkvi_arena_destroy(w.arena);
    end_device(w.dev);
    free(w.batch.entries);
    free(w.batch.rows);
}

/* --------------------------------------------------------------- invariants */

static rkvi_tile_layer *tl(uint32_t tile, uint32_t layer)
{
    return rkvi_tile_layer_at(&w.cache.tiles, tile, layer);
}

static bool is_transit(uint32_t layer, uint64_t addr)
{
    const uint64_t room = w.cfg.transit_tiles * w.cfg.layers[layer].geom.bytes;
    const uint64_t at = w.cache.transit[w.cache.transit_of[layer]].addr;
    return w.cfg.layers[layer].has_tail && addr >= at && addr < at + room &&
           (addr - at) % w.cfg.layers[layer].geom.bytes == 0;
}

/* One legal residency: what each state has and has not. */
static void check_tile_layer(uint32_t layer, const rkvi_tile_layer *y, bool open)
{
    const rkvi_layer_state *ls = &w.cache.layers[layer];
    const bool has_place = y->device_place != RKVI_NO_PLACE, has_host = y->host_place != RKVI_NO_PLACE;
    if (has_place)
        assert_int_equal(y->device_addr, (uintptr_t)rkvi_pool_at(&ls->device, y->device_place));
    assert_int_equal(y->host_addr, has_host ? (uintptr_t)rkvi_pool_at(&ls->host, y->host_place) : 0);
    assert_true(has_host || !y->host_valid);
    assert_true(has_host || y->out_mark == 0);
    assert_true(open || !has_host || y->host_valid);
    assert_true(open || (y->out_mark != RKVI_MARK_PENDING && !y->promoting));
    assert_true(!y->promoting || y->state == RKVI_IN_TAIL);
    switch ((rkvi_tile_state)y->state) {
    case RKVI_ON_DEVICE: assert_true(has_place || (open && is_transit(layer, y->device_addr))); break;
    case RKVI_IN_WINDOW: assert_true(has_place); break;
    case RKVI_LEAVING:
        assert_true(has_place || is_transit(layer, y->device_addr));
        assert_true(has_host && y->host_valid);
        assert_true(y->enter_step > w.cache.step && y->enter_step <= w.cache.step + 2);
        break;
    case RKVI_IN_TAIL:
        assert_true(!has_place && y->device_addr == 0 && has_host && y->host_valid);
        break;
    case RKVI_FREED:
        assert_true(w.cfg.layers[layer].frees && !has_place && !has_host && y->device_addr == 0);
        break;
    default: fail_msg("a tile of a sequence is absent in KV layer %u", layer);
    }
}

typedef struct counts {
    uint32_t window, tail, device, host, promoting, freed;
} counts;

static void count_layer(uint32_t layer, bool open, counts *n)
{
    static bool device[TILES_MAX], host[TILES_MAX], transit[TILES_MAX];
    memset(device, 0, sizeof device);
    memset(host, 0, sizeof host);
    memset(transit, 0, sizeof transit);
    *n = (counts){0};
    for (uint32_t q = 0; q < w.cfg.n_sequences; q++)
        for (uint32_t t = 0; t < w.cache.seqs[q].n_tiles; t++) {
            const rkvi_tile_layer *y = tl(w.cache.seqs[q].tiles[t], layer);
            check_tile_layer(layer, y, open);
            n->window += y->state == RKVI_IN_WINDOW;
            n->tail += y->state == RKVI_IN_TAIL;
            n->promoting += y->promoting;
            n->freed += y->state == RKVI_FREED;
            if (y->device_place != RKVI_NO_PLACE) {
                assert_false(device[y->device_place]);
                device[y->device_place] = true;
                n->device++;
            } else if (y->device_addr && y->state == RKVI_ON_DEVICE) {
                const uint64_t k = (y->device_addr - w.cache.transit[w.cache.transit_of[layer]].addr) /
                                   w.cfg.layers[layer].geom.bytes;
                assert_false(transit[k]);
                transit[k] = true;
                w.passed++;
            }
            if (y->host_place != RKVI_NO_PLACE) {
                assert_false(host[y->host_place]);
                host[y->host_place] = true;
                n->host++;
            }
        }
}

static uint32_t moves_of(uint32_t layer, rkvi_move_kind kind)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w.cache.n_moves; i++)
        n += w.cache.moves[i].layer == layer && w.cache.moves[i].kind == kind;
    return n;
}

static void check_tiles(void)
{
    static uint32_t owners[TILES_MAX];
    uint32_t used = 0;
    uint64_t segments = 0;
    memset(owners, 0, sizeof owners);
    for (uint32_t q = 0; q < w.cfg.n_sequences; q++) {
        const rkvi_seq *s = &w.cache.seqs[q];
        segments += s->n_segments;
        used += s->n_tiles;
        for (uint32_t t = 0; t < s->n_tiles; t++)
            owners[s->tiles[t]]++;
    }
    for (uint32_t t = 0; t < w.cfg.capacity_tiles; t++) {
        assert_true(owners[t] <= 1);
        assert_int_equal(w.cache.tiles.tiles[t].refs, owners[t]);
        assert_int_equal(w.cache.tiles.tiles[t].serial != 0, owners[t]);
    }
    assert_int_equal(w.cache.tiles.n_free + used, w.cfg.capacity_tiles);
    assert_int_equal(w.cache.n_segments, segments);
}

/* `open`: between begin and end, when what moves is under way. */
static void check(bool open)
{
    check_tiles();
    for (uint32_t l = 0; l < w.cfg.n_layers; l++) {
        const rkvi_layer_state *ls = &w.cache.layers[l];
        counts n;
        count_layer(l, open, &n);
        const uint32_t joins = open ? moves_of(l, RKVI_MOVE_KEEP) + n.promoting : 0;
        assert_int_equal(ls->n_window, n.window + joins);
        assert_true(ls->n_window <= w.cfg.layers[l].window_tiles);
        assert_int_equal(ls->n_tail, n.tail);
        assert_int_equal(ls->n_freed, n.freed);
        assert_int_equal(ls->device.n_places - ls->device.n_free, n.device + n.promoting);
        assert_int_equal(ls->host.n_places - ls->host.n_free, n.host);
    }
}

/* -------------------------------------------------------------------- batch */

static void add_entry(uint32_t sequence, uint32_t n_rows)
{
    rkvi_batch *b = &w.batch;
    const rkvi_seq *s = &w.cache.seqs[sequence];
    rkvi_batch_entry e = {.sequence = sequence, .row0 = b->n_rows, .n_rows = n_rows, .n_new = n_rows};
    int64_t pos = rkvi_seq_pos_end(s);
    e.is_prefill = n_rows > RKV_DECODE_ROWS_MAX || one_in(5);
    if (s->n_cells > n_rows && one_in(8)) {
        e.n_new = 0;
        pos -= n_rows;
    }
    for (uint32_t i = 0; i < n_rows; i++) {
        pos += e.n_new && one_in(40) ? 3 : 0;
        b->rows[b->n_rows + i] = (rkvi_row){.pos = pos++, .from = 0, .to = (int64_t)1 << 62};
    }
    b->entries[b->n_entries++] = e;
    b->n_rows += n_rows;
}

static void make_batch(void)
{
    const uint32_t first = below(w.cfg.n_sequences), kind = below(4);
    w.batch.n_entries = w.batch.n_rows = 0;
    for (uint32_t i = 0; i < w.cfg.n_sequences; i++) {
        const uint32_t left = w.cfg.max_rows - w.batch.n_rows;
        uint32_t n = kind == 0 ? 1 : kind == 1 ? RKV_DECODE_ROWS_MAX : between(1, w.cfg.max_rows);
        n = kind == 3 && one_in(2) ? between(1, RKV_DECODE_ROWS_MAX) : n;
        if (left && (w.batch.n_entries == 0 || !one_in(3)))
            add_entry((first + i) % w.cfg.n_sequences, n < left ? n : left);
    }
}

/* ----------------------------------------------------------------- snapshot */

/* All that a failed begin must leave as it was. */
typedef struct snapshot {
    rkvi_tile_layer layers[TILES_MAX * CONFIG_LAYERS_MAX];
    uint64_t serials[TILES_MAX];
    uint64_t n_window[CONFIG_LAYERS_MAX], n_tail[CONFIG_LAYERS_MAX];
    uint64_t n_cells[8], step;
    uint32_t n_tiles[8];
} snapshot;

static void take_snapshot(snapshot *s)
{
    const uint64_t n = w.cfg.capacity_tiles;
    memcpy(s->layers, w.cache.tiles.layers, n * w.cfg.n_layers * sizeof *s->layers);
    for (uint32_t t = 0; t < n; t++)
        s->serials[t] = w.cache.tiles.tiles[t].serial;
    for (uint32_t l = 0; l < w.cfg.n_layers; l++) {
        s->n_window[l] = w.cache.layers[l].n_window;
        s->n_tail[l] = w.cache.layers[l].n_tail;
    }
    for (uint32_t q = 0; q < w.cfg.n_sequences; q++) {
        s->n_cells[q] = w.cache.seqs[q].n_cells;
        s->n_tiles[q] = w.cache.seqs[q].n_tiles;
    }
    s->step = w.cache.step;
}

/* A begin that has the capacity lets what is due enter the tail, whatever comes then. */
static void let_enter(snapshot *s)
{
    for (uint32_t t = 0; t < w.cfg.capacity_tiles; t++)
        for (uint32_t l = 0; l < w.cfg.n_layers; l++) {
            rkvi_tile_layer *y = &s->layers[(uint64_t)t * w.cfg.n_layers + l];
            if (s->serials[t] == 0 || y->state != RKVI_LEAVING || y->enter_step > s->step + 1)
                continue;
            y->state = RKVI_IN_TAIL;
            y->device_addr = 0;
            y->device_place = RKVI_NO_PLACE;
            s->n_tail[l]++;
        }
}

static void check_same_tile_layer(const rkvi_tile_layer *a, const rkvi_tile_layer *b)
{
    assert_int_equal(a->state, b->state);
    assert_int_equal(a->device_addr, b->device_addr);
    assert_int_equal(a->device_place, b->device_place);
    assert_int_equal(a->generation, b->generation);
    assert_int_equal(a->promoting, b->promoting);
    assert_true(a->state != RKVI_LEAVING || a->enter_step == b->enter_step);
    if (a->state == RKVI_IN_WINDOW && b->host_place == RKVI_NO_PLACE)
        return; /* a promoted one's spare copy gives way where host places are short */
    assert_int_equal(a->host_addr, b->host_addr);
    assert_int_equal(a->host_place, b->host_place);
    assert_int_equal(a->host_valid, b->host_valid);
    assert_int_equal(a->out_mark, b->out_mark);
}

static void check_unchanged(const snapshot *s)
{
    for (uint32_t t = 0; t < w.cfg.capacity_tiles; t++) {
        assert_int_equal(w.cache.tiles.tiles[t].serial, s->serials[t]);
        for (uint32_t l = 0; s->serials[t] && l < w.cfg.n_layers; l++)
            check_same_tile_layer(&s->layers[(uint64_t)t * w.cfg.n_layers + l], tl(t, l));
    }
    for (uint32_t l = 0; l < w.cfg.n_layers; l++) {
        assert_int_equal(w.cache.layers[l].n_window, s->n_window[l]);
        assert_int_equal(w.cache.layers[l].n_tail, s->n_tail[l]);
    }
    for (uint32_t q = 0; q < w.cfg.n_sequences; q++) {
        assert_int_equal(w.cache.seqs[q].n_cells, s->n_cells[q]);
        assert_int_equal(w.cache.seqs[q].n_tiles, s->n_tiles[q]);
    }
    assert_int_equal(w.cache.step, s->step);
}

#endif
