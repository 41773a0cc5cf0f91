/* SPDX-License-Identifier: MIT
 *
 * Whole steps, counted: what crosses the link in steady decode, the lag of
 * demotion, freed window room filled by promotion, several compute streams,
 * hints, a begin beside a long step, and no byte of one sequence left where another's cells are.
 */
#include "step_fixture.h"

#include "device_check.h"
#include "step_types.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

static uint64_t seed;

static uint64_t largest_tile_layer(const fx_model *m)
{
    fx w;
    uint64_t most = 0;
    fx_open(&w, m);
    for (uint32_t l = 0; l < m->n_layers; l++) {
        const uint64_t bytes = fx_layer(&w, l).tile_layer_host_bytes;
        most = bytes > most ? bytes : most;
    }
    fx_close(&w);
    return most;
}

/* Bytes of the list, from what lies in the tail: all sites see everything. */
static uint64_t tail_bytes(const fx *w)
{
    uint64_t bytes = 0;
    for (uint32_t s = 0; s < w->model.n_sites; s++) {
        const rkv_kv_layer_info i = fx_layer(w, w->model.sites[s].kv_layer);
        bytes += i.tail_tiles * i.tile_layer_host_bytes;
    }
    return bytes;
}

static uint64_t ahead_bytes(const fx *w)
{
    return rkvi_ring_ahead_bytes(&w->cache->ring, w->cache->launched);
}

/* All that was copied over the link is in the stats. */
static void check_link(fx *w)
{
    rkvi_device_usage u;
    const rkv_cache_stats s = fx_stats(w);
    fx_ok(rkvi_dev(stream_sync, w->dev, w->cache->in_stream), "sync");
    fx_ok(rkvi_dev(stream_sync, w->dev, w->cache->table_stream), "sync");
    fx_ok(rkvi_dev(stream_sync, w->dev, w->cache->out_stream), "sync");
    assert_int_equal(fx_copied(w, RKVI_H2D), s.streamed_bytes + s.brought_back_bytes);
    assert_int_equal(fx_copied(w, RKVI_D2H), s.demoted_bytes);
    assert_int_equal(fx_copied(w, RKVI_D2D), s.promoted_bytes);
    if (fx_gpu)
        return;
    rkvi_device_usage_get(w->core, &u);
    assert_int_equal(u.pageable_copies, 0);
}

/* -------------------------------------------------------------- steady decode */

static void decode(fx *w, uint32_t n_seqs, uint64_t tag)
{
    fx_entry e[FX_SEQS];
    for (uint32_t s = 0; s < n_seqs; s++)
        e[s] = (fx_entry){.seq = s, .rows = 1, .tag = tag + s * 1000000};
    fx_step(w, e, n_seqs);
}

static void steady(fx *w, uint32_t n_seqs, uint32_t steps)
{
    static const uint32_t prompt[3] = {1020, 500, 740}; /* near tiles' edges */
    for (uint32_t s = 0; s < n_seqs; s++)
        fx_append(w, s, prompt[s], RKV_REGIME_PREFILL, 1000 + s * 1000000);
    for (uint32_t i = 0; i < 4; i++)
        decode(w, n_seqs, 5000 + i); /* warm-up */
    const rkv_cache_stats s0 = fx_stats(w);
    const uint64_t ahead0 = ahead_bytes(w);
    const bool predicts = !(w->model.params.flags & RKV_FLAG_NO_PREDICT) && w->model.params.mode == RKV_MODE_RING;
    uint64_t lists = 0, demoted = s0.demoted_tile_layers;
    for (uint32_t i = 0; i < steps; i++) {
        decode(w, n_seqs, 6000 + i);
        const rkv_cache_stats s = fx_stats(w);
        lists += s.last_step_list_bytes;
        assert_int_equal(s.last_step_list_bytes, tail_bytes(w));
        assert_true(s.last_step_list_bytes > 0);
        assert_int_equal(s.streamed_bytes - s0.streamed_bytes, lists + ahead_bytes(w) - ahead0);
        assert_true(predicts || ahead_bytes(w) == 0);
        assert_int_equal(s.predicted_wrong, s0.predicted_wrong);
        assert_int_equal(s.discarded_bytes, s0.discarded_bytes);
        demoted = s.demoted_tile_layers;
    }
    const rkv_cache_stats s = fx_stats(w);
    assert_true(demoted > s0.demoted_tile_layers); /* it grew over a tile's edge */
    assert_true(!predicts || s.predicted_right > s0.predicted_right);
    assert_int_equal(s.brought_back_bytes, 0);
    check_link(w);
    fx_compare_fresh(w, n_seqs - 1, 4);
}

static void test_steady_decode(void **state)
{
    (void)state;
    static const uint32_t dims[4][2] = {{128, 128}, {192, 128}, {256, 256}, {512, 512}};
    const uint32_t steps = fx_is_full() ? 1500 : 40;
    for (uint32_t i = 0; i < 8; i++) {
        fx w;
        const uint32_t n_seqs = i % 2 ? 3 : 1;
        fx_model m = fx_model_make(256, 0, 3300 + (uint64_t)n_seqs * steps);
        const uint32_t *d = dims[i / 2];
        fx_add_layer(&m, 1, d[0], d[1], RKV_RESIDENT_NONE);
        fx_add_layer(&m, 1, d[0], d[1], 512);
        fx_add_layer(&m, 1, d[0], d[1], RKV_RESIDENT_ALL);
        fx_add_site(&m, 0, 1);
        m.params.n_sequences = n_seqs;
        m.executor = i % 4 == 1 ? FX_SIM : FX_HOST;
        m.seed = seed + i;
        m.params.flags |= i == 6 ? RKV_FLAG_NO_PREDICT : i == 7 ? RKV_FLAG_NO_JOIN : 0;
        m.params.mode = i == 2 ? RKV_MODE_OP_LEVEL : RKV_MODE_RING;
        const uint64_t largest = largest_tile_layer(&m);
        m.params.ring_bytes = i % 3 == 0 ? 8 * largest : i % 3 == 1 ? largest : 7 * largest / 2 / 256 * 256;
        fx_open(&w, &m);
        assert_int_equal(fx_layer(&w, 0).leaf_cells, d[0] == 512 ? 64 : d[0] == 128 ? 256 : 128);
        steady(&w, n_seqs, steps);
        fx_close(&w);
    }
}

/* Tiles of sequences that grow together leave by turns: copies still take many of each. */
static void test_grown_together(void **state)
{
    (void)state;
    enum { SEQS = 8, TILES = 25, T = 16 };
    fx w;
    fx_model m = fx_model_make(T, 0, SEQS * (TILES + 4) * T);
    for (uint32_t l = 0; l < 3; l++) /* whose extents come by turns, too */
        fx_add_layer(&m, 1, 64, 64, RKV_RESIDENT_NONE);
    m.params.n_sequences = SEQS;
    m.params.ring_bytes = (uint64_t)1 << 20;
    m.params.copy_bytes = (uint64_t)1 << 18;
    m.seed = seed;
    fx_open(&w, &m);
    for (uint32_t i = 0; i < TILES; i++) {
        fx_entry e[SEQS];
        for (uint32_t s = 0; s < SEQS; s++)
            e[s] = (fx_entry){.seq = s, .rows = T, .tag = 1000 + i * T + s * 1000000, .regime = RKV_REGIME_PREFILL};
        fx_step(&w, e, SEQS);
    }
    for (uint32_t i = 0; i < 4; i++)
        decode(&w, SEQS, 5000 + i);
    const rkv_cache_stats s0 = fx_stats(&w);
    for (uint32_t i = 0; i < 8; i++)
        decode(&w, SEQS, 6000 + i);
    const rkv_cache_stats s1 = fx_stats(&w);
    const uint64_t tile_layers = (s1.streamed_bytes - s0.streamed_bytes) / largest_tile_layer(&m);
    assert_true(tile_layers >= 3 * 8 * SEQS * (TILES - 2));
    assert_true((s1.copies_in - s0.copies_in) * 12 <= tile_layers);
    fx_compare_fresh(&w, SEQS - 1, 4);
    fx_close(&w);
}

/* ----------------------------------------------------------------------- lag */

/* Rolling back up to draft_rows cells right after a step costs nothing. */
static void test_lag_covers_drafts(void **state)
{
    (void)state;
    fx w;
    uint64_t r = seed, tag = 100000, most = 0;
    fx_model m = fx_model_make(16, 64, 1024);
    fx_add_layer(&m, 1, 64, 64, 32);
    m.params.draft_rows = 16;
    m.executor = FX_CHECK;
    m.seed = seed;
    fx_open(&w, &m);
    fx_append(&w, 0, 50, RKV_REGIME_PREFILL, 1);
    for (uint32_t i = 0; i < 150 && w.n_cells[0] < 1000; i++, tag += 100) {
        fx_append(&w, 0, 1 + (uint32_t)(fx_random(&r) % 16), RKV_REGIME_DECODE, tag);
        most = w.n_cells[0] > most ? w.n_cells[0] : most;
        const uint64_t least = most - (i % 4 == 3 ? 16 : fx_random(&r) % 17);
        if (least < w.n_cells[0])
            fx_truncate(&w, 0, least);
    }
    const rkv_cache_stats s = fx_stats(&w);
    assert_int_equal(s.brought_back_bytes, 0);
    assert_true(s.demoted_tile_layers > 10);
    fx_truncate(&w, 0, (w.n_cells[0] - 60) / 16 * 16 + 7); /* further back it does cost */
    fx_append(&w, 0, 1, RKV_REGIME_DECODE, tag);
    assert_true(fx_stats(&w).brought_back_bytes > 0);
    fx_compare_fresh(&w, 0, 8);
    fx_close(&w);
}

/* What leaves at the end of step n is read from the tail from step n+2 on. */
static void test_lag_is_a_count(void **state)
{
    (void)state;
    fx w;
    fx_model m = fx_model_make(16, 64, 256);
    m.params.draft_rows = 5;
    fx_open(&w, &m);
    uint64_t left_before = 0, left_now = 0, tail = 0;
    for (uint32_t i = 0; i < 120; i++) {
        const fx_entry e = {.rows = 1, .tag = 1000 + i};
        fx_ok(fx_begin(&w, &e, 1), "begin");
        tail += left_before;
        assert_int_equal(fx_layer(&w, 0).tail_tiles, tail);
        fx_ok(fx_attend(&w, 0), "attend");
        const uint64_t demoted = fx_stats(&w).demoted_tile_layers;
        fx_ok(fx_end(&w, NULL, 0), "end");
        left_before = left_now;
        left_now = fx_stats(&w).demoted_tile_layers - demoted;
        /* A tile leaves in the step in which its last cell is draft_rows behind. */
        assert_int_equal(left_now, (i + 1) % 16 == 5 && i > 16);
    }
    fx_ok(fx_sync(&w), "sync");
    assert_int_equal(tail, 7);
    fx_close(&w);
}

/* ----------------------------------------------------------------- promotion */

static void test_promotion_after_clear(void **state)
{
    (void)state;
    fx w;
    fx_model m = fx_model_make(32, 0, 1024);
    fx_add_layer(&m, 1, 64, 64, 8 * 32);
    fx_add_layer(&m, 2, 64, 64, 4 * 32);
    fx_add_site(&m, 1, 4);
    m.params.n_sequences = 2;
    m.params.ring_bytes = 6 * 16384;
    m.executor = FX_CHECK;
    m.seed = seed;
    fx_open(&w, &m);
    fx_append(&w, 0, 8 * 32 + 20, RKV_REGIME_PREFILL, 1); /* takes the windows */
    fx_append(&w, 1, 12 * 32 + 5, RKV_REGIME_PREFILL, 5000);
    for (uint32_t i = 0; i < 6; i++)
        decode(&w, 2, 20000 + i);
    assert_int_equal(fx_stats(&w).promoted_tile_layers, 0);
    const fx_entry e = {.seq = 1, .rows = 1, .tag = 30000};
    fx_step(&w, &e, 1);
    const rkv_cache_stats s0 = fx_stats(&w);
    fx_clear(&w, 0);
    for (uint32_t i = 0; i < 4; i++) {
        const fx_entry d = {.seq = 1, .rows = 1, .tag = 30001 + i};
        fx_step(&w, &d, 1);
        if (i == 0) /* what is promoted crosses once more, as in any step */
            assert_int_equal(fx_stats(&w).last_step_list_bytes, s0.last_step_list_bytes);
    }
    const rkv_cache_stats s = fx_stats(&w);
    const uint64_t b0 = fx_layer(&w, 0).tile_layer_host_bytes, b1 = fx_layer(&w, 1).tile_layer_host_bytes;
    assert_int_equal(s.promoted_tile_layers, 8 + 4);
    assert_int_equal(s.promoted_bytes, 8 * b0 + 4 * b1);
    assert_int_equal(s.last_step_list_bytes, s0.last_step_list_bytes - 8 * b0 - 2 * 4 * b1);
    assert_int_equal(s.last_step_list_bytes, tail_bytes(&w));
    assert_int_equal(fx_layer(&w, 0).window_tiles, 8);
    assert_int_equal(fx_layer(&w, 1).window_tiles, 4);
    assert_int_equal(s.brought_back_bytes, 0);
    check_link(&w);
    fx_compare_fresh(&w, 1, 8);
    /* The new text of sequence 0 finds the window taken, and comes right too. */
    fx_append(&w, 0, 5 * 32, RKV_REGIME_PREFILL, 70000);
    for (uint32_t i = 0; i < 4; i++)
        decode(&w, 2, 80000 + i);
    check_link(&w);
    fx_compare_fresh(&w, 0, 8);
    fx_close(&w);
}

/* Cells are stored into promoted tiles, whose host copies are thereby stale. */
static void test_rollback_into_promoted(void **state)
{
    (void)state;
    fx w;
    fx_model m = fx_model_make(16, 64, 512);
    m.layers[0].resident_cells = 4 * 16;
    m.params.n_sequences = 2;
    m.executor = FX_CHECK;
    m.seed = seed;
    fx_open(&w, &m);
    fx_append(&w, 0, 100, RKV_REGIME_PREFILL, 1);
    fx_append(&w, 1, 120, RKV_REGIME_PREFILL, 1000);
    fx_clear(&w, 0);
    for (uint32_t i = 0; i < 4; i++) {
        const fx_entry d = {.seq = 1, .rows = 1, .tag = 2000 + i};
        fx_step(&w, &d, 1);
    }
    assert_int_equal(fx_stats(&w).promoted_tile_layers, 4);
    fx_truncate(&w, 1, 40); /* in the middle of a promoted tile */
    fx_append(&w, 1, 5, RKV_REGIME_DECODE, 3000);
    assert_int_equal(fx_stats(&w).brought_back_bytes, 0);
    fx_append(&w, 1, 70, RKV_REGIME_PREFILL, 4000);
    fx_append(&w, 0, 130, RKV_REGIME_PREFILL, 5000);
    decode(&w, 2, 9000);
    decode(&w, 2, 9001);
    fx_compare_fresh(&w, 0, 8);
    fx_compare_fresh(&w, 1, 8);
    fx_close(&w);
}

/* ------------------------------------------------------------ streams, hints */

typedef enum { NO_HINTS, RIGHT_HINTS, WRONG_HINTS } hints;

static uint32_t batch_of(uint32_t i, fx_entry *e)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < 3; s++)
        if (i % 2 ? s != 1 : s != 2)
            e[n++] = (fx_entry){.seq = s, .rows = 1 + s, .tag = 50000 + i * 100 + s * 10};
    return n;
}

/* Batches take turns; the calls of a step go to streams in turn. */
static void run_hinted(fx *w, void *const streams[2], hints h, uint64_t *digest)
{
    fx_entry e[FX_SEQS], next[FX_SEQS];
    for (uint32_t s = 0; s < 3; s++)
        fx_append(w, s, 70 + 30 * s, RKV_REGIME_PREFILL, 1000 * s);
    uint64_t wrong = 0, discarded = 0;
    for (uint32_t i = 0; i < 40; i++) {
        const uint32_t n = batch_of(i, e), n_next = batch_of(h == RIGHT_HINTS ? i + 1 : i, next);
        fx_ok(fx_begin(w, e, n), "begin");
        if (i % 3 == 0)
            fx_ok(rkv_step_start(w->cache, streams[i % 2]), "start");
        for (uint32_t s = 0; s < w->model.n_sites; s++) {
            w->stream = streams[(i + s) % 2];
            fx_ok(fx_attend(w, s), "attend");
        }
        w->stream = streams[i / 2 % 2];
        fx_ok(fx_end(w, next, h == NO_HINTS ? 0 : n_next), "end");
        fx_ok(rkv_host_stream_sync(w->cache, streams[0]), "sync");
        fx_ok(rkv_host_stream_sync(w->cache, streams[1]), "sync");
        for (uint32_t s = 0; s < w->model.n_sites; s++)
            for (uint64_t b = 0; b < w->out[s].size_bytes; b++)
                *digest = (*digest ^ w->out[s].bytes[b]) * 0x100000001b3u;
        const rkv_cache_stats st = fx_stats(w);
        if (i == 3) {
            wrong = st.predicted_wrong;
            discarded = st.discarded_bytes;
        }
        if (i > 3 && h == RIGHT_HINTS) {
            assert_int_equal(st.predicted_wrong, wrong);
            assert_int_equal(st.discarded_bytes, discarded);
        }
    }
    assert_true(h != WRONG_HINTS || fx_stats(w).predicted_wrong > wrong);
    assert_true(h != RIGHT_HINTS || fx_stats(w).predicted_right > 100);
    w->stream = NULL;
    for (uint32_t s = 0; s < 3; s++)
        fx_compare_fresh(w, s, 4);
}

static void test_streams_and_hints(void **state)
{
    (void)state;
    uint64_t want = 0;
    for (uint32_t i = 0; i < 9; i++) {
        fx w;
        uint64_t digest = 1;
        void *streams[2] = {NULL, NULL};
        fx_model m = fx_model_make(16, 64, 1024);
        fx_add_unequal(&m, 48);
        fx_add_site(&m, 0, 3);
        m.params.n_sequences = 3;
        m.params.ring_bytes = 64 << 10;
        m.executor = (fx_executor)(i / 3);
        m.seed = seed + i;
        m.delay_ns = 30000;
        fx_open(&w, &m);
        if (i) { /* the first run: all on the default stream */
            fx_ok(rkv_host_stream_create(w.cache, &streams[0]), "stream");
            fx_ok(rkv_host_stream_create(w.cache, &streams[1]), "stream");
        }
        run_hinted(&w, streams, (hints)(i % 3), &digest);
        want = i ? want : digest;
        assert_int_equal(digest, want);
        if (i) {
            fx_ok(rkv_host_stream_destroy(w.cache, streams[0]), "stream");
            fx_ok(rkv_host_stream_destroy(w.cache, streams[1]), "stream");
        }
        fx_close(&w);
    }
}

/* ------------------------------------------------------------------- secrets */

/* K rows of the secret sequence, as stored in f16 layers. */
static bool holds_secret(const unsigned char *bytes, uint64_t n, const uint16_t (*rows)[64], uint32_t n_rows)
{
    for (uint32_t r = 0; r < n_rows; r++)
        if (memmem(bytes, n, rows[r], 32)) /* a piece of a row is as bad */
            return true;
    return false;
}

static void secret_rows(uint16_t (*rows)[64], uint32_t n)
{
    float x[64];
    rkvi_tensor t = {.data = x, .row_stride = 64, .head_stride = 64, .type = RKV_TYPE_F32};
    rkvi_geom g = {.n_heads = 1, .dk = 64, .dv = 64, .type_k = RKV_TYPE_F16, .type_v = RKV_TYPE_F16,
                   .k_scale = 1, .v_scale = 1, .tile_cells = 16};
    rkvi_ops ops;
    rkvi_ops_ref(&ops);
    fx_ok(rkvi_geom_init(&g), "geometry");
    unsigned char *tile = calloc(1, g.bytes);
    const uint64_t base = (uint64_t)(uintptr_t)tile;
    const rkvi_new_cell cell = {0};
    const rkvi_store_args args = {.geom = g, .bases = &base, .cells = &cell, .k = t, .v = t};
    for (uint32_t r = 0; r < n; r++) {
        fx_values(1000 + r, 2, 'k', 64, x);
        ops.fn[RKVI_OP_STORE](&args, 0);
        memcpy(rows[r], tile, sizeof rows[r]);
    }
    free(tile);
}

/* Host copies of all tiles now in use, and their places on the device. */
static void check_no_secret(fx *w, const uint16_t (*rows)[64], uint32_t n_rows)
{
    const rkvi_cache *c = &w->cache->cache;
    static unsigned char buffer[1 << 16];
    uint32_t n_tail = 0;
    for (uint32_t t = 0; t < c->tiles.capacity; t++)
        for (uint32_t l = 0; l < w->model.n_layers && c->tiles.tiles[t].serial; l++) {
            const rkvi_tile_layer *tl = rkvi_tile_layer_at(&c->tiles, t, l);
            const uint64_t bytes = c->cfg->layers[l].geom.bytes;
            assert_true(bytes <= sizeof buffer);
            n_tail += tl->state == RKVI_IN_TAIL;
            if (tl->host_valid)
                assert_false(holds_secret((const unsigned char *)(uintptr_t)tl->host_addr, bytes, rows, n_rows));
            if (tl->device_place != RKVI_NO_PLACE)
                assert_false(holds_secret(fx_device_bytes(w, tl->device_addr, bytes, buffer), bytes, rows, n_rows));
        }
    assert_true(n_tail > 4);
}

static void test_secret_is_gone(void **state)
{
    (void)state;
    static uint16_t rows[200][64];
    secret_rows(rows, 200);
    for (uint32_t i = 0; i < 4; i++) {
        fx w;
        fx_model m = fx_model_make(16, 0, 512);
        const uint32_t dim = fx_gpu ? 64 : 32;
        fx_add_layer(&m, 1, dim, dim, RKV_RESIDENT_NONE); /* its tile-layers end in padding */
        fx_add_unequal(&m, RKV_RESIDENT_NONE);
        fx_add_layer(&m, 1, 64, 64, i % 2 ? 32 : RKV_RESIDENT_NONE);
        m.layers[0].type_k = m.layers[0].type_v = RKV_TYPE_Q8_0;
        m.params.n_sequences = 2;
        m.params.max_rows = i < 2 ? 100 : 300;
        m.seed = seed + i;
        fx_open(&w, &m);
        fx_append(&w, 0, 200, RKV_REGIME_PREFILL, 1000);
        fx_append(&w, 0, 8, RKV_REGIME_DECODE, 2000);
        fx_append(&w, 1, 30, RKV_REGIME_PREFILL, 5000);
        fx_clear(&w, 0);
        fx_append(&w, 1, 150, RKV_REGIME_PREFILL, 6000);
        for (uint32_t k = 0; k < 3; k++)
            fx_append(&w, 0, 37, k % 2 ? RKV_REGIME_PREFILL : RKV_REGIME_AUTO, 7000 + 100 * k);
        fx_append(&w, 1, 9, RKV_REGIME_DECODE, 8000);
        fx_ok(rkvi_dev(stream_sync, w.dev, w.cache->out_stream), "sync");
        check_no_secret(&w, rows, 200);
        fx_close(&w);
    }
}

/* --------------------------------------------------- bring-back, then abort */

/* A roll-back into the tail, a step that brings the tile back and is aborted
 * with the copy in flight, then a step that only reads it: all in order. */
static void test_bring_back_aborted(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 6; i++) {
        fx w;
        fx_model m = fx_model_make(16, 64, 256);
        m.params.n_sequences = 2;
        m.params.draft_rows = RKV_DRAFT_NONE;
        m.executor = i < 3 ? FX_CHECK : (fx_executor)(i % 2);
        m.seed = seed + i;
        m.delay_ns = 300000;
        fx_open(&w, &m);
        fx_append(&w, 0, 16, RKV_REGIME_DECODE, 1);
        fx_truncate(&w, 0, 8);
        for (uint32_t k = 0; k < 3; k++)
            fx_append(&w, 1, 1, RKV_REGIME_DECODE, 100 + k);
        assert_int_equal(fx_layer(&w, 0).tail_tiles, 1);
        const fx_entry e = {.seq = 0, .rows = 1, .tag = 50};
        fx_ok(fx_begin(&w, &e, 1), "begin");
        assert_true(fx_stats(&w).brought_back_bytes > 0);
        assert_int_equal(fx_layer(&w, 0).tail_tiles, 0);
        fx_ok(fx_abort(&w), "abort");
        assert_int_equal(fx_layer(&w, 0).tail_tiles, 1);
        fx_compare_fresh(&w, 0, 4);
        fx_append(&w, 0, 3, RKV_REGIME_DECODE, 60);
        fx_compare_fresh(&w, 0, 4);
        fx_close(&w);
    }
}

/* ------------------------------------------- begin beside a very long step */

/* Holds a stream until it is opened; gives up after seconds, so that a begin
 * that waits for it fails the test instead of hanging. */
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open;
} gate;

static void pass_gate(void *arg)
{
    gate *g = arg;
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 20;
    pthread_mutex_lock(&g->lock);
    while (!g->open && pthread_cond_timedwait(&g->changed, &g->lock, &until) == 0)
        ;
    pthread_mutex_unlock(&g->lock);
}

static void open_gate(gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

/* A step with more launches than the compute timeline has events runs; the
 * next begin waits for the step before it alone, which has ended.  Not on GPUs:
 * behind a gate, CUDA itself blocks the host at about a thousand launches. */
static void test_begin_beside_long_step(void **state)
{
    (void)state;
    fx w;
    if (fx_gpu)
        skip();
    gate g = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    fx_model m = fx_model_make(16, 8, 16 * 240);
    while (m.n_sites < FX_SITES)
        fx_add_site(&m, 0, 1);
    m.params.ring_bytes = 16 * 8 * 2 * 2; /* a tile-layer: a launch for each */
    fx_open(&w, &m);
    fx_append(&w, 0, 16 * 225, RKV_REGIME_PREFILL, 1);
    for (uint32_t i = 0; i < 3; i++)
        fx_append(&w, 0, 1, RKV_REGIME_DECODE, 5000 + i);
    const fx_entry e[2] = {{.rows = 1, .tag = 6000}, {.rows = 1, .tag = 6001}};
    const uint64_t marks = w.cache->compute.last, waits = fx_stats(&w).host_waits;
    fx_ok(rkv_host_stream_call(w.cache, w.stream, pass_gate, &g), "gate");
    fx_ok(fx_begin(&w, &e[0], 1), "begin");
    for (uint32_t s = 0; s < m.n_sites; s++)
        fx_ok(fx_attend(&w, s), "attend");
    fx_ok(fx_end(&w, NULL, 0), "end");
    assert_true(w.cache->compute.last - marks > w.cache->compute.n_events);
    fx_ok(fx_begin(&w, &e[1], 1), "begin");
    assert_int_equal(fx_stats(&w).host_waits, waits);
    open_gate(&g);
    for (uint32_t s = 0; s < m.n_sites; s++)
        fx_ok(fx_attend(&w, s), "attend");
    fx_ok(fx_end(&w, NULL, 0), "end");
    fx_ok(fx_sync(&w), "sync");
    fx_compare_fresh(&w, 0, 4);
    fx_close(&w);
}

int main(void)
{
#ifdef FX_ON_GPU
    fx_use_gpu();
#endif
    seed = fx_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_steady_decode),         cmocka_unit_test(test_grown_together),
        cmocka_unit_test(test_lag_covers_drafts),
        cmocka_unit_test(test_lag_is_a_count),        cmocka_unit_test(test_promotion_after_clear),
        cmocka_unit_test(test_rollback_into_promoted), cmocka_unit_test(test_streams_and_hints),
        cmocka_unit_test(test_secret_is_gone),        cmocka_unit_test(test_bring_back_aborted),
        cmocka_unit_test(test_begin_beside_long_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
