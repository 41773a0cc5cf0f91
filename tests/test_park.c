/* SPDX-License-Identifier: MIT
 *
 * Sequences that are parked and fetched, windows that change: the same bits as
 * if they never were, places that others get, books right after each call.
 */
#include "step_fixture.h"

#include "step_types.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { T = 16, SEQS = 4, MOST = 300 };

static fx_model model(uint64_t resident)
{
    fx_model m = fx_model_make(T, 0, SEQS * MOST);
    fx_add_layer(&m, 2, 64, 64, resident);
    fx_add_unequal(&m, resident == RKV_RESIDENT_ALL ? resident : RKV_RESIDENT_NONE);
    fx_add_layer(&m, 1, 80, 80, RKV_RESIDENT_ALL); /* no tail: stays where it is */
    fx_add_site(&m, 0, 4);
    m.params.n_sequences = SEQS;
    m.params.max_rows = 200;
    m.params.ring_bytes = 100 << 10;
    return m;
}

static uint32_t below(uint64_t *r, uint32_t n)
{
    return (uint32_t)(fx_random(r) % n);
}

/* Free and used places make up all, and no tile-layer is in two states. */
static void check_books(const fx *w)
{
    const rkvi_cache *c = &w->cache->cache;
    for (uint32_t l = 0; l < w->model.n_layers; l++) {
        const rkvi_layer_state *ls = &c->layers[l];
        uint32_t device = 0, host = 0, window = 0, tail = 0;
        for (uint32_t t = 0; t < c->tiles.capacity; t++) {
            const rkvi_tile_layer *y = rkvi_tile_layer_at(&c->tiles, t, l);
            if (c->tiles.tiles[t].serial == 0)
                continue;
            device += y->device_place != RKVI_NO_PLACE;
            host += y->host_place != RKVI_NO_PLACE;
            window += y->state == RKVI_IN_WINDOW;
            tail += y->state == RKVI_IN_TAIL;
            assert_true(y->state != RKVI_IN_TAIL || (y->device_addr == 0 && y->host_valid));
            assert_true(y->out_mark != RKVI_MARK_PENDING);
        }
        assert_int_equal(ls->device.n_places - ls->device.n_free, device);
        assert_int_equal(ls->host.n_places - ls->host.n_free, host);
        assert_int_equal(ls->n_window, window);
        assert_true(window <= w->cache->cfg.layers[l].window_tiles);
        assert_int_equal(w->cache->cfg.layers[l].device_places, ls->device.n_places);
        assert_int_equal(ls->n_tail, tail);
    }
}

/* A sequence alone has no tile-layer on the device where there is a tail. */
static void check_parked(const fx *w, uint32_t seq)
{
    const rkvi_cache *c = &w->cache->cache;
    const rkvi_seq *s = &c->seqs[seq];
    for (uint32_t t = 0; t < s->n_tiles; t++)
        for (uint32_t l = 0; l < w->model.n_layers; l++)
            assert_int_equal(rkvi_tile_layer_at(&c->tiles, s->tiles[t], l)->state == RKVI_IN_TAIL,
                             w->cache->cfg.layers[l].has_tail);
}

static void move(fx *w, uint64_t *r)
{
    const uint32_t q = below(r, SEQS), layer = below(r, 2);
    if (below(r, 4) == 0) {
        const uint64_t cells[] = {RKV_RESIDENT_NONE, RKV_RESIDENT_AUTO, RKV_RESIDENT_ALL, below(r, 40) * T};
        fx_ok(rkv_cache_set_residency(w->cache, layer, cells[below(r, 4)]), "set_residency");
    } else if (below(r, 3)) {
        fx_park(w, q);
        check_parked(w, q);
    } else {
        fx_fetch(w, q);
    }
    check_books(w);
}

static void walk(fx *w, fx *all, uint64_t seed, uint32_t n_steps)
{
    uint64_t r = seed, tag = 1;
    for (uint32_t i = 0; i < n_steps; i++) {
        fx_entry e[SEQS];
        uint32_t n = 0, left = 200;
        for (uint32_t q = 0; q < SEQS; q++) {
            uint32_t rows = below(&r, 3) ? 1 + below(&r, 3) : 1 + below(&r, 90);
            rows = rows < left ? rows : left;
            if ((below(&r, 2) == 0 && n) || w->n_cells[q] + rows > MOST || rows == 0)
                continue;
            e[n] = (fx_entry){.seq = q, .rows = rows, .tag = tag};
            e[n].is_query = w->n_cells[q] > rows && below(&r, 5) == 0;
            n++;
            left -= rows;
            tag += 200;
        }
        if (n && below(&r, 8) == 0) { /* one that is taken back */
            fx_ok(fx_begin(w, e, n), "begin");
            for (uint32_t s = 0; s < below(&r, w->model.n_sites + 1); s++)
                fx_ok(fx_attend(w, s), "attend");
            fx_ok(fx_abort(w), "abort");
        }
        if (n) {
            fx_step(w, e, n);
            fx_step(all, e, n);
            if (!fx_same(w, all))
                fail_msg("step %u differs, seed %llu", i, (unsigned long long)seed);
        }
        for (uint32_t k = below(&r, 4); k > 0; k--)
            move(w, &r);
        const uint32_t q = below(&r, SEQS);
        if (w->n_cells[q] > MOST / 2 || below(&r, 9) == 0) {
            const uint64_t cells = w->n_cells[q] ? below(&r, (uint32_t)w->n_cells[q]) : 0;
            fx_truncate(w, q, cells);
            fx_truncate(all, q, cells);
            check_books(w);
        }
    }
}

static void test_bits(void **state)
{
    (void)state;
    const uint64_t seed = fx_seed();
    for (uint32_t i = 0; i < (fx_is_full() ? 60u : 9u); i++) {
        fx w, all;
        fx_model m = model(i % 2 ? RKV_RESIDENT_NONE : 6 * T), k = model(RKV_RESIDENT_ALL);
        m.executor = (fx_executor)(i % 3); /* host, sim, check */
        m.seed = seed + i;
        m.delay_ns = i % 3 == FX_HOST ? 20000 : 0;
        fx_open(&w, &m);
        fx_open(&all, &k);
        walk(&w, &all, seed + i, fx_is_full() ? 120 : 30);
        for (uint32_t q = 0; q < SEQS; q++)
            fx_park(&w, q);
        assert_int_equal(fx_stats(&w).parked_sequences, SEQS);
        fx_check_empty(&w);
        assert_int_equal(fx_stats(&w).parked_sequences, 0);
        assert_int_equal(fx_stats(&w).used_device_places, 0);
        fx_close(&w);
        fx_close(&all);
    }
}

/* A fetched tile that is all that a step reads: no copy into the ring, whose edge would do, comes after it. */
static void test_fetched_alone(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        fx w;
        fx_model m = model(RKV_RESIDENT_NONE);
        m.executor = i % 2 ? FX_CHECK : FX_SIM;
        m.seed = i;
        fx_open(&w, &m);
        fx_append(&w, 1, 5, RKV_REGIME_PREFILL, 100);
        fx_park(&w, 1);
        fx_fetch(&w, 1);
        const fx_entry e = {.seq = 1, .rows = 1, .is_query = i < 2, .regime = RKV_REGIME_DECODE, .tag = 200};
        fx_step(&w, &e, 1);
        fx_compare_fresh(&w, 1, 2);
        fx_close(&w);
    }
}

/* Copies out what has no good host copy, each tile-layer once; a sequence that
 * comes back unchanged is parked again for nothing. */
static void test_cost(void **state)
{
    (void)state;
    fx w;
    fx_model m = model(6 * T);
    fx_open(&w, &m);
    fx_append(&w, 0, 200, RKV_REGIME_PREFILL, 1);
    fx_append(&w, 0, 1, RKV_REGIME_DECODE, 900);
    const rkv_cache_stats a = fx_stats(&w);
    assert_true(a.used_device_places > 13); /* 13 tiles in the layer without a tail */
    fx_park(&w, 0);
    const rkv_cache_stats b = fx_stats(&w);
    assert_int_equal(b.used_device_places, 13);
    assert_int_equal(b.free_device_places + b.used_device_places, a.free_device_places + a.used_device_places);
    assert_int_equal(b.used_device_place_bytes, 13 * fx_layer(&w, 2).tile_layer_device_bytes);
    assert_int_equal(b.demoted_tile_layers + 0, 26 + 0); /* all in all: 13 tiles in two layers */
    assert_int_equal(fx_layer(&w, 0).tail_tiles, 13);
    fx_park(&w, 0);
    fx_fetch(&w, 0);
    const rkv_cache_stats c = fx_stats(&w);
    assert_int_equal(c.demoted_bytes, b.demoted_bytes);
    assert_int_equal(c.used_device_places, 15); /* the last tile, in two layers */
    assert_true(c.brought_back_bytes > b.brought_back_bytes);
    fx_park(&w, 0);
    assert_int_equal(fx_stats(&w).demoted_bytes, c.demoted_bytes);
    assert_int_equal(fx_stats(&w).demoted_free_tile_layers, a.demoted_free_tile_layers + 2);
    fx_append(&w, 0, 1, RKV_REGIME_DECODE, 901); /* begin brings it back */
    assert_int_equal(fx_stats(&w).parked_sequences, 0);
    fx_compare_fresh(&w, 0, 4);
    fx_fetch(&w, 0); /* nothing to do */
    assert_int_equal(rkv_sequence_park(w.cache, SEQS), RKV_E_SEQUENCE);
    assert_int_equal(rkv_sequence_fetch(w.cache, SEQS), RKV_E_SEQUENCE);
    const fx_entry e = {.seq = 0, .rows = 1, .tag = 5};
    fx_ok(fx_begin(&w, &e, 1), "begin");
    assert_int_equal(rkv_sequence_park(w.cache, 1), RKV_E_STATE);
    assert_int_equal(rkv_sequence_fetch(w.cache, 1), RKV_E_STATE);
    fx_ok(fx_abort(&w), "abort");
    fx_close(&w);
}

/* A hundred idle sequences beside two active ones, whose room on the device is that of two. */
static void test_hundred(void **state)
{
    (void)state;
    enum { N = 102, CELLS = 40 };
    fx w, two;
    fx_model m = fx_model_make(T, 0, N * CELLS);
    fx_add_layer(&m, 1, 64, 64, 6 * T); /* a window for two */
    fx_add_layer(&m, 2, 80, 80, 6 * T);
    m.params.n_sequences = 2;
    m.params.max_rows = 64;
    fx_open(&two, &m);
    m.params.n_sequences = N;
    m.params.active_sequences = 2;
    m.executor = FX_CHECK;
    fx_open(&w, &m);
    rkv_cache_info of_two = {.struct_size = sizeof of_two}, info = {.struct_size = sizeof info};
    fx_ok(rkv_cache_info_get(two.cache, &of_two), "info");
    fx_ok(rkv_cache_info_get(w.cache, &info), "info");
    fx_close(&two);
    assert_int_equal(of_two.active_sequences, 2);
    assert_int_equal(info.active_sequences, 2);
    assert_int_equal(info.device_window_bytes, of_two.device_window_bytes);
    assert_int_equal(info.device_active_bytes, of_two.device_active_bytes);
    assert_true(info.device_active_bytes > 0);
    for (uint32_t q = 2; q < N; q++) {
        fx_append(&w, q, CELLS - 2, RKV_REGIME_PREFILL, 1000 * q);
        fx_append(&w, q, 1, RKV_REGIME_DECODE, 1000 * q + 100);
        fx_park(&w, q);
    }
    assert_int_equal(fx_stats(&w).used_device_places, 0);
    for (uint32_t i = 0; i < CELLS - 8; i++) {
        const fx_entry e[] = {{.seq = 0, .rows = 1, .tag = 1 + i}, {.seq = 1, .rows = 1, .tag = 101 + i}};
        fx_step(&w, e, 2);
    }
    /* two sequences of two tiles, in two layers; all of them on the device */
    assert_int_equal(fx_stats(&w).used_device_places, 2 * 2 * 2);
    assert_int_equal(fx_stats(&w).parked_sequences, 100);
    assert_int_equal(fx_stats(&w).last_step_list_bytes, 0);
    check_books(&w);
    for (uint32_t q = 2; q < N; q += 33) {
        fx_fetch(&w, q);
        fx_append(&w, q, 1, RKV_REGIME_DECODE, 1000 * q + 101);
        fx_compare_fresh(&w, q, 3);
        fx_park(&w, q);
    }
    fx_check_empty(&w);
    fx_close(&w);
}

/* More than active_sequences go on while there are places; then begin and fetch say
 * what to do, and nothing has changed. */
static void test_active(void **state)
{
    (void)state;
    enum { N = 20 };
    fx w;
    fx_model m = fx_model_make(T, 0, N * 4 * T);
    fx_add_layer(&m, 1, 64, 64, RKV_RESIDENT_NONE);
    m.params.n_sequences = N;
    m.params.active_sequences = 2;
    m.params.draft_rows = RKV_DRAFT_NONE; /* 3 places a sequence */
    m.executor = FX_CHECK;
    fx_open(&w, &m);
    uint32_t n = 0;
    rkv_status s = RKV_OK;
    for (; n < N && s == RKV_OK; n += s == RKV_OK) {
        const fx_entry e = {.seq = n, .rows = 5, .tag = 100 * n};
        s = fx_try_step(&w, &e, 1);
    }
    assert_int_equal(n, 6);
    assert_int_equal(s, RKV_E_DEVICE_LIMIT);
    assert_non_null(strstr(rkv_error_message(), "no device place left of 6"));
    assert_non_null(strstr(rkv_error_message(), "rkv_sequence_park"));
    assert_non_null(strstr(rkv_error_message(), "active_sequences (2)"));
    check_books(&w);
    assert_int_equal(fx_stats(&w).used_tiles, 6);
    fx_park(&w, 3);
    fx_append(&w, 6, 5, RKV_REGIME_DECODE, 600);
    assert_int_equal(rkv_sequence_fetch(w.cache, 3), RKV_E_DEVICE_LIMIT);
    const fx_entry e[] = {{.seq = 3, .rows = 1, .tag = 900}, {.seq = 0, .rows = 1, .tag = 901}, {.seq = 1, .rows = 1}};
    assert_int_equal(fx_try_step(&w, e, 1), RKV_E_DEVICE_LIMIT);
    assert_int_equal(fx_stats(&w).parked_sequences, 1); /* as before */
    check_parked(&w, 3);
    check_books(&w);
    assert_int_equal(fx_check(&w, e, 3), RKV_E_BATCH);
    assert_int_equal(fx_try_step(&w, e, 3), RKV_E_BATCH);
    assert_non_null(strstr(rkv_error_message(), "3 entries, a step at most active_sequences, 2"));
    fx_park(&w, 6);
    fx_step(&w, e, 2);
    for (uint32_t q = 0; q < 7; q++) {
        fx_park(&w, (q + 6) % 7);
        fx_compare_fresh(&w, q, 1);
    }
    fx_check_empty(&w);
    fx_close(&w);
}

/* In caches for graphs, tiles enter the tail together, once in T/2 steps. Where others need
 * their places, those of the KV layer enter it there and then. */
static void test_early(void **state)
{
    (void)state;
    enum { N = 9 };
    static const fx_executor executors[] = {FX_CHECK, FX_SIM, FX_HOST};
    for (uint32_t x = 0; x < 3; x++) {
        fx w;
        fx_model m = fx_model_make(T, 0, N * 2 * T);
        fx_add_layer(&m, 1, 64, 64, RKV_RESIDENT_NONE);
        m.params.n_sequences = N;
        m.params.active_sequences = 1;
        m.params.draft_rows = RKV_DRAFT_NONE; /* 4 places in a cache for graphs */
        m.params.flags |= RKV_FLAG_GRAPHS;
        m.executor = executors[x];
        fx_open(&w, &m);
        for (uint32_t q = 0; q < N; q++) { /* as many whole tiles in as many steps */
            fx_append(&w, q, T, RKV_REGIME_DECODE, 100 * q);
            check_books(&w);
        }
        assert_int_equal(fx_stats(&w).used_tiles, N);
        assert_int_equal(fx_stats(&w).demoted_tile_layers, N);
        assert_int_equal(w.cache->cfg.layers[0].device_places, 4);
        for (uint32_t q = 0; q < N; q++)
            fx_compare_fresh(&w, q, 1);
        fx_check_empty(&w);
        fx_close(&w);
    }
}

static void fork(fx *w, uint32_t dst, uint32_t src)
{
    fx_ok(rkv_sequence_fork(w->cache, dst, src), "fork");
    w->n_cells[dst] = w->n_cells[src];
    memcpy(w->cells[dst], w->cells[src], w->n_cells[src] * sizeof(fx_cell));
}

/* Parked forks of a document that goes on, then is cleared: what it had kept on the device
 * leaves, and what a parked sequence ends with does not keep a tile there. */
static void test_let_go(void **state)
{
    (void)state;
    fx w;
    fx_model m = fx_model_make(T, 0, 300);
    fx_add_layer(&m, 2, 64, 64, RKV_RESIDENT_NONE);
    m.params.n_sequences = SEQS;
    m.params.draft_rows = 4;
    m.executor = FX_CHECK;
    fx_open(&w, &m);
    fx_append(&w, 0, 3 * T + 5, RKV_REGIME_PREFILL, 1);
    fork(&w, 1, 0);
    fork(&w, 2, 0);
    fx_park(&w, 1);
    fx_park(&w, 2);
    for (uint32_t i = 0; i < 2 * T; i++) /* in the shared tile, and beyond it */
        fx_append(&w, 0, 1, RKV_REGIME_DECODE, 100 + i);
    check_parked(&w, 1);
    fork(&w, 3, 0);
    fx_park(&w, 3);
    fx_clear(&w, 0);
    assert_true(fx_stats(&w).used_device_places > 0);
    for (uint32_t i = 0; i < 4; i++) {
        fx_append(&w, 0, 1, RKV_REGIME_DECODE, 400 + i);
        check_books(&w);
    }
    assert_int_equal(fx_stats(&w).used_device_places, 1);
    assert_int_equal(fx_stats(&w).parked_sequences, 3);
    for (uint32_t q = 1; q < SEQS; q++) {
        check_parked(&w, q);
        fx_append(&w, q, 2, RKV_REGIME_DECODE, 500 * q);
        fx_compare_fresh(&w, q, 2);
    }
    fx_check_empty(&w);
    fx_close(&w);
}

/* What an active sequence shares stays; when all that have it are parked, it goes. */
static void test_shared(void **state)
{
    (void)state;
    fx w;
    fx_model m = model(10 * T);
    m.executor = FX_CHECK;
    fx_open(&w, &m);
    fx_append(&w, 0, 5 * T + 3, RKV_REGIME_PREFILL, 1);
    fork(&w, 1, 0);
    fx_append(&w, 1, 2 * T, RKV_REGIME_PREFILL, 500); /* on in the shared tile, then in two of its own */
    const rkvi_cache *c = &w.cache->cache;
    fx_park(&w, 1);
    check_books(&w);
    for (uint32_t t = 0; t < 5; t++)
        assert_int_equal(rkvi_tile_layer_at(&c->tiles, c->seqs[1].tiles[t], 0)->state, RKVI_IN_WINDOW);
    for (uint32_t t = 6; t < 8; t++) /* sequence 0 has cells of tile 5 */
        assert_int_equal(rkvi_tile_layer_at(&c->tiles, c->seqs[1].tiles[t], 0)->state, RKVI_IN_TAIL);
    fx_append(&w, 0, 1, RKV_REGIME_DECODE, 900);
    fork(&w, 2, 0);
    fork(&w, 3, 0); /* three share a partly filled tile */
    fx_park(&w, 0);
    fx_park(&w, 2);
    fx_fetch(&w, 2); /* begin will copy its last tile, from the tail */
    fx_park(&w, 2);
    assert_int_equal(rkvi_tile_layer_at(&c->tiles, c->seqs[0].tiles[0], 0)->state, RKVI_IN_WINDOW);
    fx_park(&w, 3);
    fx_park(&w, 1); /* sequence 0 has a copy of tile 5 now: it goes too */
    for (uint32_t q = 0; q < SEQS; q++)
        check_parked(&w, q);
    check_books(&w);
    for (uint32_t q = 0; q < SEQS; q++) {
        fx_append(&w, q, 1, RKV_REGIME_DECODE, 1000 + q);
        fx_park(&w, (q + 1) % SEQS);
        check_books(&w);
    }
    for (uint32_t q = 0; q < SEQS; q++)
        fx_compare_fresh(&w, q, 4);
    fx_check_empty(&w);
    fx_close(&w);
}

/* Host places are short: the call fails whole. */
static void test_no_host_room(void **state)
{
    (void)state;
    fx w;
    fx_model m = fx_model_make(T, 64, 20 * T);
    m.layers[0].resident_cells = 15 * T; /* 5 tiles of tail, and 4 that may leave */
    fx_open(&w, &m);
    fx_append(&w, 0, 15 * T + 3, RKV_REGIME_PREFILL, 1);
    const rkv_cache_stats a = fx_stats(&w);
    const rkv_kv_layer_info la = fx_layer(&w, 0);
    assert_int_equal(rkv_sequence_park(w.cache, 0), RKV_E_HOST_LIMIT);
    const rkv_cache_stats b = fx_stats(&w);
    const rkv_kv_layer_info lb = fx_layer(&w, 0);
    assert_int_equal(a.used_device_places, b.used_device_places);
    assert_int_equal(a.used_tail_places, b.used_tail_places);
    assert_int_equal(a.copies_out, b.copies_out);
    assert_int_equal(la.window_tiles, lb.window_tiles);
    assert_int_equal(b.parked_sequences, 0);
    check_books(&w);
    fx_append(&w, 0, 1, RKV_REGIME_DECODE, 900);
    fx_compare_fresh(&w, 0, 3);
    fx_close(&w);
}

static rkv_status call(fx *w, uint32_t which)
{
    switch (which) {
    case 0: return rkv_sequence_park(w->cache, 0);
    case 1: return rkv_sequence_fetch(w->cache, 0);
    case 2: return rkv_cache_set_residency(w->cache, 0, 2 * T);
    case 3: return rkv_cache_set_residency(w->cache, 0, 40 * T);
    default: return rkv_sequence_compact(w->cache, 0);
    }
}

/* Each device call of each of them fails in turn: the books are right, and the
 * call can be made again. */
static void test_failed_calls(void **state)
{
    (void)state;
    static const rkvi_device_call kinds[] = {RKVI_CALL_COPY, RKVI_CALL_EVENT_RECORD, RKVI_CALL_STREAM_WAIT,
                                             RKVI_CALL_MEM_ALLOC, RKVI_CALL_EVENT_SYNC};
    uint32_t n_failed = 0;
    for (uint32_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        fx w;
        fx_model m = model(6 * T);
        m.executor = FX_CHECK;
        fx_open(&w, &m);
        fx_append(&w, 0, 12 * T + 3, RKV_REGIME_PREFILL, 1);
        fx_append(&w, 0, 1, RKV_REGIME_DECODE, 900);
        fx_remove(&w, 0, 3 * T + 8, 4 * T + 8);
        for (uint32_t which = 0; which < 5; which++) {
            rkv_status s = RKV_E_DEVICE_CALL;
            for (uint64_t nth = 1; s != RKV_OK; nth++) {
                rkvi_device_fail_call(w.core, kinds[k], nth, RKV_E_DEVICE_CALL);
                s = call(&w, which);
                rkvi_device_fail_call(w.core, kinds[k], 0, RKV_OK);
                assert_true(s == RKV_OK || s == RKV_E_DEVICE_CALL);
                check_books(&w);
                n_failed += s != RKV_OK;
            }
        }
        fx_compare_fresh(&w, 0, 4);
        fx_append(&w, 0, 20, RKV_REGIME_PREFILL, 2000);
        fx_compare_fresh(&w, 0, 4);
        fx_check_empty(&w);
        fx_close(&w);
    }
    print_message("%u calls failed\n", n_failed);
    assert_true(n_failed > 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_fetched_alone),
        cmocka_unit_test(test_cost),
        cmocka_unit_test(test_hundred),
        cmocka_unit_test(test_active),
        cmocka_unit_test(test_early),
        cmocka_unit_test(test_shared),
        cmocka_unit_test(test_let_go),
        cmocka_unit_test(test_no_host_room),
        cmocka_unit_test(test_failed_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
