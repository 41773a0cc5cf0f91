/* SPDX-License-Identifier: MIT
 *
 * KV layers that free what no later row sees, beside full ones of another
 * geometry: the same bits as with all of it kept, and clear refusals.
 */
#include "state_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { T = 16, WIDTH = 40, CHUNK = 50, MOST = 1500, DRAFT_ROWS = 16 };

/* One full layer in the tail, one with a sliding mask, one with both kinds. */
static fx_model model(bool keep_all, uint64_t full_resident, uint64_t masked_resident)
{
    fx_model m = fx_model_make(T, 0, 3 * MOST);
    fx_add_layer(&m, 2, 64, 64, full_resident);
    fx_add_unequal(&m, masked_resident);
    fx_add_layer(&m, 1, 80, 80, masked_resident);
    fx_add_site(&m, 2, 1);
    m.sites[1].mask = m.sites[2].mask = RKV_MASK_SLIDING;
    m.sites[1].mask_width = WIDTH;
    m.sites[2].mask_width = 7;
    m.sites[3].mask = RKV_MASK_CHUNKED;
    m.sites[3].mask_width = CHUNK;
    for (uint32_t l = 0; l < m.n_layers; l++)
        m.layers[l].keep_all = keep_all;
    m.params.n_sequences = 3;
    m.params.max_rows = 200;
    m.params.draft_rows = DRAFT_ROWS;
    m.params.ring_bytes = 100 << 10;
    return m;
}

static uint32_t below(uint64_t *r, uint32_t n)
{
    return (uint32_t)(fx_random(r) % n);
}

/* Cuts both alike, where the one that frees lets it be cut: always within
 * DRAFT_ROWS cells of the highest end that the sequence had since it was empty. */
static void cut(fx *w, fx *all, uint64_t *highest, uint64_t *r)
{
    const uint32_t q = below(r, 3);
    const uint64_t n = w->n_cells[q];
    const uint64_t left = below(r, 4) == 0 ? 0 : n - (n < 16 ? 0 : below(r, 17));
    if (left + DRAFT_ROWS < highest[q] && left > 0) {
        const int64_t from = w->cells[q][left - 1].pos + 1;
        const rkv_status s = rkv_sequence_remove(w->cache, q, from, RKV_POS_END);
        if (s == RKV_E_SEQUENCE && strstr(rkv_error_message(), "the lowest end is"))
            return;
        fx_ok(s, "remove");
    }
    fx_truncate(w, q, left);
    fx_truncate(all, q, left);
    highest[q] = left ? highest[q] : 0;
}

static void walk(fx *w, fx *all, uint64_t seed, uint32_t n_steps)
{
    uint64_t r = seed, tag = 1, highest[3] = {0};
    for (uint32_t i = 0; i < n_steps; i++) {
        fx_entry e[FX_SEQS];
        uint32_t n = 0, left = 200;
        for (uint32_t q = 0; q < 3; q++) {
            uint32_t rows = below(&r, 3) ? 1 + below(&r, 3) : 1 + below(&r, 90);
            rows = rows < left ? rows : left;
            if ((below(&r, 4) == 0 && n) || w->n_cells[q] + rows > MOST || rows == 0)
                continue;
            e[n++] = (fx_entry){.seq = q, .rows = rows, .tag = tag};
            left -= rows;
            tag += 200;
        }
        if (n) {
            fx_step(w, e, n);
            fx_step(all, e, n);
            if (!fx_same(w, all))
                fail_msg("step %u differs, seed %llu", i, (unsigned long long)seed);
        }
        for (uint32_t q = 0; q < 3; q++)
            highest[q] = w->n_cells[q] > highest[q] ? w->n_cells[q] : highest[q];
        if (below(&r, 5) == 0)
            cut(w, all, highest, &r);
    }
}

static void check_books(fx *w, bool has_tail)
{
    for (uint32_t l = 0; l < 3; l++) {
        const rkv_kv_layer_info i = fx_layer(w, l);
        rkv_sequence_state q = {.struct_size = sizeof q};
        uint64_t tiles = 0;
        for (uint32_t s = 0; s < 3; s++) {
            fx_ok(rkv_sequence_info(w->cache, s, &q), "info");
            tiles += q.n_tiles;
        }
        assert_int_equal(i.keep_all, l == 0);
        assert_int_equal(i.has_tail, l == 0 || has_tail);
        assert_true(l == 0 ? i.freed_tiles == 0 : i.freed_tiles > 0);
        /* what is neither freed, in the window nor in the tail is active, lagging or leaving */
        assert_true(i.freed_tiles + i.window_tiles + i.tail_tiles <= tiles);
        assert_true(l == 0 || tiles - i.freed_tiles <= i.most_tiles);
    }
}

static void test_bits(void **state)
{
    (void)state;
    const uint64_t seed = fx_seed();
    const uint32_t n_rounds = fx_is_full() ? 30 : 6;
    for (uint32_t i = 0; i < n_rounds; i++) {
        const bool tail = i % 2;
        fx w, all;
        fx_model m = model(false, RKV_RESIDENT_NONE, tail ? i % 4 == 1 ? RKV_RESIDENT_NONE : T : RKV_RESIDENT_AUTO);
        fx_model k = model(true, RKV_RESIDENT_ALL, RKV_RESIDENT_ALL);
        m.executor = (fx_executor)(i % 3); /* host, sim, check */
        m.seed = seed * 1000 + i;
        fx_open(&w, &m);
        fx_open(&all, &k);
        walk(&w, &all, m.seed, fx_is_full() ? 120 : 40);
        check_books(&w, tail);
        assert_int_equal(fx_layer(&all, 1).freed_tiles, 0);
        fx_check_empty(&w);
        assert_int_equal(fx_layer(&w, 1).freed_tiles, 0);
        fx_close(&w);
        fx_close(&all);
    }
}

/* A layer without a tail streams nothing, and holds what the mask sees. */
static void test_held(void **state)
{
    (void)state;
    fx w;
    fx_model m = model(false, RKV_RESIDENT_NONE, RKV_RESIDENT_AUTO);
    m.params.n_sequences = 1;
    fx_open(&w, &m);
    fx_append(&w, 0, 400, RKV_REGIME_PREFILL, 1);
    for (uint32_t i = 0; i < 100; i++)
        fx_append(&w, 0, 1, RKV_REGIME_DECODE, 1000 + i);
    /* 500 cells; after a roll-back of 16 the next row is at 484 and sees from 445 (sliding, 40) or 450 (chunks of
     * 50) on */
    assert_int_equal(fx_layer(&w, 1).freed_tiles, 445 / T);
    assert_int_equal(fx_layer(&w, 2).freed_tiles, 450 / T);
    assert_int_equal(fx_layer(&w, 0).freed_tiles, 0);
    assert_int_equal(fx_layer(&w, 1).tail_tiles + fx_layer(&w, 2).tail_tiles, 0);
    assert_int_equal(fx_layer(&w, 1).most_tiles, 4 + 3 + 200 / T);
    const rkv_kv_layer_info full = fx_layer(&w, 0);
    assert_int_equal(fx_stats(&w).last_step_list_bytes, full.tail_tiles * full.tile_layer_host_bytes);
    fx_close(&w);
}

static void expect(rkv_status s, const char *text)
{
    assert_int_equal(s, RKV_E_SEQUENCE);
    if (!strstr(rkv_error_message(), text))
        fail_msg("'%s' is not in: %s", text, rkv_error_message());
}

static void test_refusals(void **state)
{
    (void)state;
    fx w;
    fx_model m = model(false, RKV_RESIDENT_NONE, RKV_RESIDENT_AUTO);
    fx_open(&w, &m);
    fx_append(&w, 0, 500, RKV_REGIME_PREFILL, 1);
    /* Tiles below 432 (layer 1) and 448 (layer 2) are gone: rows from 471, and from the chunk at 450, on. */
    const rkv_sequence_state before = {.struct_size = sizeof before};
    rkv_sequence_state q = before;
    expect(rkv_sequence_remove(w.cache, 0, 470, RKV_POS_END), "the lowest end is 471");
    expect(rkv_sequence_remove(w.cache, 0, 1, 500), "the lowest end is 471");
    fx_ok(rkv_sequence_info(w.cache, 0, &q), "info");
    assert_int_equal(q.n_cells, 500);
    int64_t pos = 460;
    fx_entry e = {.seq = 0, .rows = 1, .is_query = true, .tag = 9, .positions = &pos};
    expect(fx_begin(&w, &e, 1), "the lowest position of a row is 471");
    const rkv_batch_entry be = {.struct_size = sizeof be, .n_rows = 1, .positions = &pos};
    const rkv_batch b = {.struct_size = sizeof b, .n_entries = 1, .entries = &be};
    expect(rkv_cache_check(w.cache, &b, 1), "the lowest position of a row is 471");
    /* A visible range that leaves out what is gone makes the row legal, and so does a later position. */
    const rkv_pos_range seen = {448, RKV_POS_END};
    e.visible = &seen;
    fx_step(&w, &e, 1);
    fx_truncate(&w, 0, 472);
    fx_compare_fresh(&w, 0, 1);
    fx_truncate(&w, 0, 471);
    fx_append(&w, 0, 90, RKV_REGIME_PREFILL, 7000);
    fx_compare_fresh(&w, 0, 4);
    fx_truncate(&w, 0, 0); /* always */
    fx_append(&w, 0, 90, RKV_REGIME_PREFILL, 8000);
    fx_compare_fresh(&w, 0, 4);
    fx_close(&w);
}

/* An aborted step frees nothing, and a roll-back of draft_rows stays free. */
static void test_lag(void **state)
{
    (void)state;
    fx w;
    fx_model m = model(false, RKV_RESIDENT_ALL, RKV_RESIDENT_AUTO);
    fx_open(&w, &m);
    fx_append(&w, 1, 300, RKV_REGIME_PREFILL, 1);
    const uint64_t freed = fx_layer(&w, 1).freed_tiles;
    const fx_entry e = {.seq = 1, .rows = 150, .tag = 5000};
    fx_ok(fx_begin(&w, &e, 1), "begin");
    for (uint32_t s = 0; s < w.model.n_sites; s++)
        fx_ok(fx_attend(&w, s), "attend");
    fx_ok(fx_abort(&w), "abort");
    assert_int_equal(fx_layer(&w, 1).freed_tiles, freed);
    fx_truncate(&w, 1, 300 - 16);
    fx_compare_fresh(&w, 1, 1);
    fx_append(&w, 1, 33, RKV_REGIME_PREFILL, 6000);
    fx_compare_fresh(&w, 1, 4);
    fx_close(&w);
}

/* Forks at the same place, and from further back: a tile goes when the last one
 * that sees it has gone on. */
static void test_shared(void **state)
{
    (void)state;
    fx w, all;
    fx_model m = model(false, RKV_RESIDENT_NONE, RKV_RESIDENT_AUTO);
    fx_model k = model(true, RKV_RESIDENT_ALL, RKV_RESIDENT_ALL);
    m.executor = FX_CHECK;
    fx_open(&w, &m);
    fx_open(&all, &k);
    fx *both[] = {&w, &all};
    for (uint32_t i = 0; i < 2; i++) {
        fx_append(both[i], 0, 300, RKV_REGIME_PREFILL, 1);
        fx_ok(rkv_sequence_fork(both[i]->cache, 1, 0), "fork");
        fx_copy_record(both[i], 1, both[i], 0);
    }
    const uint64_t freed = fx_layer(&w, 1).freed_tiles;
    assert_true(freed > 0);
    expect(rkv_sequence_append_from(w.cache, 2, 0, 0, 200), "the lowest end is");
    fx_append(&w, 0, 200, RKV_REGIME_PREFILL, 7000);
    fx_append(&all, 0, 200, RKV_REGIME_PREFILL, 7000);
    /* sequence 1 still sees from 245 on; of the tiles of its own, sequence 0 has lost some */
    const uint64_t held = fx_layer(&w, 1).freed_tiles;
    assert_true(held >= freed);
    for (uint32_t i = 0; i < 60; i++) {
        const fx_entry e[] = {{.seq = 0, .rows = 1, .tag = 100 + i}, {.seq = 1, .rows = 3, .tag = 3000 + 3 * i}};
        fx_step(&w, e, 2);
        fx_step(&all, e, 2);
        assert_true(fx_same(&w, &all));
    }
    fx_clear(&w, 1);
    fx_append(&w, 0, 1, RKV_REGIME_DECODE, 9999); /* now sequence 0 alone decides */
    const rkv_kv_layer_info i = fx_layer(&w, 1);
    rkv_sequence_state q = {.struct_size = sizeof q};
    fx_ok(rkv_sequence_info(w.cache, 0, &q), "info");
    assert_int_equal(i.freed_tiles, (561 - 16 - WIDTH + 1) / T);
    fx_check_empty(&w);
    assert_int_equal(fx_layer(&w, 1).freed_tiles, 0);
    fx_close(&w);
    fx_close(&all);
}

static int64_t named_end(void)
{
    static const char before[] = "the lowest end is ";
    const char *at = strstr(rkv_error_message(), before);
    if (!at)
        fail_msg("no end is named: %s", rkv_error_message());
    return strtoll(at + strlen(before), NULL, 10);
}

/* The end that a refusal names is the lowest one that is taken, with gaps in the positions too. */
static void test_named_end(void **state)
{
    (void)state;
    for (uint32_t has_gap = 0; has_gap < 2; has_gap++) {
        fx w;
        fx_model m = model(false, RKV_RESIDENT_NONE, RKV_RESIDENT_AUTO);
        m.params.capacity_cells = 6 * MOST;
        fx_open(&w, &m);
        fx_append(&w, 0, has_gap ? 740 : 760, RKV_REGIME_PREFILL, 1);
        int64_t pos[17];
        for (uint32_t i = 0; i < 17; i++)
            pos[i] = 760 + i;
        const fx_entry e = {.seq = 0, .rows = 17, .regime = RKV_REGIME_PREFILL, .tag = 4000, .positions = pos};
        fx_step(&w, &e, 1);
        assert_int_equal(rkv_sequence_append_from(w.cache, 1, 0, 0, 500), RKV_E_SEQUENCE);
        const int64_t end = named_end();
        assert_int_equal(end, has_gap ? 761 : 759); /* 720 freed, and a width of 40 */
        assert_int_equal(rkv_sequence_append_from(w.cache, 1, 0, 0, end - 1), RKV_E_SEQUENCE);
        assert_int_equal(named_end(), end);
        fx_ok(rkv_sequence_append_from(w.cache, 1, 0, 0, end), "append_from");
        fx_note_append_from(&w, 1, 0, 0, end);
        fx_append(&w, 1, 5, RKV_REGIME_PREFILL, 5000);
        fx_compare_fresh(&w, 1, 4);
        assert_int_equal(rkv_sequence_remove(w.cache, 0, 500, RKV_POS_END), RKV_E_SEQUENCE);
        assert_int_equal(named_end(), end);
        assert_int_equal(rkv_sequence_remove(w.cache, 0, end - 1, RKV_POS_END), RKV_E_SEQUENCE);
        fx_truncate(&w, 0, (uint64_t)(has_gap ? end - 20 : end));
        fx_append(&w, 0, 5, RKV_REGIME_PREFILL, 6000);
        fx_compare_fresh(&w, 0, 4);
        fx_close(&w);
    }
}

/* Shifted down, rows must still find what they see. */
static void test_shifted(void **state)
{
    (void)state;
    static const float frequencies[] = {1, 0.3f, 0.1f, 0.03f};
    fx w, all;
    fx_model m = model(false, RKV_RESIDENT_NONE, RKV_RESIDENT_AUTO);
    fx_model k = model(true, RKV_RESIDENT_ALL, RKV_RESIDENT_ALL);
    m.params.rope = k.params.rope = (rkv_rope_params){.frequencies = frequencies, .n_frequencies = 4};
    fx_open(&w, &m);
    fx_open(&all, &k);
    fx *both[] = {&w, &all};
    for (uint32_t i = 0; i < 2; i++) {
        fx_append(both[i], 0, 400, RKV_REGIME_PREFILL, 1);
        fx_ok(rkv_sequence_remove(both[i]->cache, 0, 4, 104), "remove");
        fx_ok(rkv_sequence_shift(both[i]->cache, 0, 104, RKV_POS_END, -100), "shift");
        both[i]->n_cells[0] = 0; /* the record does not go with it */
    }
    for (uint32_t i = 0; i < 60; i++) {
        const int64_t pos = 300 + i;
        const fx_entry e = {.seq = 0, .rows = 1, .tag = 900 + i, .positions = &pos};
        fx_step(&w, &e, 1);
        fx_step(&all, &e, 1);
        assert_true(fx_same(&w, &all));
    }
    /* Few cells behind those that are kept: rows would see these, which are gone. */
    fx_append(&w, 1, 100, RKV_REGIME_PREFILL, 5000);
    fx_ok(rkv_sequence_remove(w.cache, 1, 16, 90), "remove");
    expect(rkv_sequence_can_shift(w.cache, 1, 90, RKV_POS_END, -74), "the lowest end would be");
    expect(rkv_sequence_shift(w.cache, 1, 90, RKV_POS_END, -74), "the lowest end would be");
    fx_close(&w);
    fx_close(&all);
}

/* A saved state lacks what was freed, and goes on with the same bits. */
static void test_saved(void **state)
{
    (void)state;
    fx w, to;
    fx_bytes b;
    fx_model m = model(false, RKV_RESIDENT_NONE, RKV_RESIDENT_AUTO), k = model(false, 6 * T, RKV_RESIDENT_NONE);
    fx_open(&w, &m);
    fx_open(&to, &k);
    fx_append(&w, 0, 300, RKV_REGIME_PREFILL, 1);
    fx_save(&w, 0, &b);
    assert_true(b.n < 300 * (fx_layer(&w, 0).tile_layer_host_bytes + fx_layer(&w, 1).tile_layer_host_bytes) / T);
    fx_ok(fx_load(&to, 2, &b, true), "load");
    fx_copy_record(&to, 2, &w, 0);
    assert_int_equal(fx_layer(&to, 1).freed_tiles, fx_layer(&w, 1).freed_tiles);
    expect(rkv_sequence_remove(to.cache, 2, 200, RKV_POS_END), "the lowest end is");
    for (uint32_t i = 0; i < 50; i++) {
        const fx_entry e = {.seq = 0, .rows = 1 + i % 5, .tag = 500 + 8 * i};
        fx_entry f = e;
        f.seq = 2;
        fx_step(&w, &e, 1);
        fx_step(&to, &f, 1);
        assert_true(fx_same(&w, &to));
    }
    fx_check_empty(&to);
    fx_bytes_free(&b);
    fx_close(&w);
    fx_close(&to);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_held),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_lag),
        cmocka_unit_test(test_shared),
        cmocka_unit_test(test_named_end),
        cmocka_unit_test(test_shifted),
        cmocka_unit_test(test_saved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
