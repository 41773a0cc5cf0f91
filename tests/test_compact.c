/* SPDX-License-Identifier: MIT
 *
 * Compacting: after cuts, the tiles of a fresh sequence with the same cells, so
 * its bits; shared tiles stay; what fails changes nothing.
 */
#include "state_fixture.h"

#include "step_types.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { T = 16 };

static uint32_t below(uint64_t *r, uint32_t n)
{
    return (uint32_t)(fx_random(r) % n);
}

static fx_model model(uint64_t resident, fx_executor executor, uint64_t seed)
{
    fx_model m = fx_model_make(T, 0, 60 * T);
    fx_add_layer(&m, 2, 64, 64, resident);
    fx_add_layer(&m, 1, 64, 64, RKV_RESIDENT_ALL);
    fx_add_layer(&m, 1, 64, 64, 3 * T);
    fx_add_layer(&m, 1, 64, 64, RKV_RESIDENT_AUTO);
    m.layers[0].type_k = RKV_TYPE_Q8_0;
    m.layers[0].type_v = RKV_TYPE_Q4_0;
    m.layers[1].type_k = m.layers[1].type_v = RKV_TYPE_FP8_E4M3;
    m.layers[3].keep_all = 1; /* else runs end where it freed: test_oracle */
    m.sites[3].mask = RKV_MASK_SLIDING;
    m.sites[3].mask_width = 70;
    m.params.n_sequences = 3;
    m.params.max_rows = 128;
    m.executor = executor;
    m.seed = seed;
    return m;
}

/* Cells [a, z) of the record are cut out. */
static void cut_out(fx *w, uint32_t seq, uint64_t a, uint64_t z)
{
    fx_cell *c = w->cells[seq];
    fx_ok(rkv_sequence_remove(w->cache, seq, c[a].pos, c[z - 1].pos + 1), "remove");
    memmove(c + a, c + z, (w->n_cells[seq] - z) * sizeof *c);
    w->n_cells[seq] -= z - a;
}

static uint32_t n_tiles(const fx *w, uint32_t seq)
{
    rkv_sequence_state q = {.struct_size = sizeof q};
    fx_ok(rkv_sequence_info(w->cache, seq, &q), "info");
    assert_int_equal(q.n_cells, w->n_cells[seq]);
    return q.n_tiles;
}

static void compact(fx *w, uint32_t seq)
{
    fx_ok(rkv_sequence_compact(w->cache, seq), "compact");
}

/* What a row at the end sees: a few elements of each site's output. */
static void look(fx *w, uint32_t seq, double out[4][8])
{
    const int64_t pos = w->cells[seq][w->n_cells[seq] - 1].pos;
    const fx_entry e = {.seq = seq, .rows = 1, .is_query = true, .regime = RKV_REGIME_DECODE, .tag = 77777,
                        .positions = &pos};
    fx_step(w, &e, 1);
    for (uint32_t s = 0; s < 4; s++)
        for (uint32_t i = 0; i < 8; i++)
            out[s][i] = (double)fx_out(w, s, 0, 0, 8 * i);
}

static void expect_alike(double a[4][8], double b[4][8])
{
    for (uint32_t s = 0; s < 4; s++)
        for (uint32_t i = 0; i < 8; i++)
            if (!(fabs(a[s][i] - b[s][i]) < 1e-5))
                fail_msg("site %u element %u: %g, was %g", s, 8 * i, b[s][i], a[s][i]);
}

static void test_as_fresh(void **state)
{
    (void)state;
    const uint64_t seed = fx_seed();
    const uint64_t residents[] = {RKV_RESIDENT_NONE, 5 * T, RKV_RESIDENT_ALL};
    const uint32_t n = fx_is_full() ? 60 : 9;
    uint32_t n_dense = 0;
    for (uint32_t i = 0; i < n; i++) {
        fx w;
        double before[4][8], after[4][8];
        uint64_t r = seed * 1000 + i;
        const fx_model m = model(residents[i / 3 % 3], (fx_executor)(i % 3), r);
        fx_open(&w, &m);
        fx_append(&w, 1, 300 + below(&r, 100), RKV_REGIME_PREFILL, 1);
        for (uint32_t k = 0; k < 12 && w.n_cells[1] > 100; k++) {
            const uint64_t a = below(&r, (uint32_t)w.n_cells[1] - 100), z = a + 1 + below(&r, 30);
            if (z < w.n_cells[1])
                cut_out(&w, 1, a, z);
        }
        look(&w, 1, before);
        if (i % 2)
            fx_ok(rkv_sequence_park(w.cache, 1), "park");
        const uint64_t parked = fx_stats(&w).parked_sequences;
        compact(&w, 1);
        assert_int_equal(fx_stats(&w).parked_sequences, parked);
        /* Dead cells stay where rewriting would save no tile; then bits may be others. */
        assert_int_equal(n_tiles(&w, 1), (w.n_cells[1] + T - 1) / T);
        const uint64_t dead = fx_stats(&w).dead_cells;
        assert_true(dead < T);
        n_dense += dead == 0;
        look(&w, 1, after);
        expect_alike(before, after);
        if (dead == 0)
            fx_compare_fresh(&w, 1, 5);
        compact(&w, 1); /* nothing left to do */
        fx_append(&w, 1, 40, RKV_REGIME_PREFILL, 9000);
        for (uint32_t k = 0; k < 5; k++)
            fx_append(&w, 1, 1, RKV_REGIME_DECODE, 9900 + k);
        if (dead == 0)
            fx_compare_fresh(&w, 1, 5);
        fx_check_empty(&w);
        fx_close(&w);
    }
    assert_true(n_dense > n / 2);
}

/* Tiles that another sequence has stay where they are, and what it has of them. */
static void test_shared(void **state)
{
    (void)state;
    fx w;
    const fx_model m = model(4 * T, FX_CHECK, 1);
    fx_open(&w, &m);
    fx_append(&w, 0, 6 * T, RKV_REGIME_PREFILL, 1);
    fx_ok(rkv_sequence_fork(w.cache, 1, 0), "fork");
    fx_copy_record(&w, 1, &w, 0);
    fx_append(&w, 1, 6 * T + 4, RKV_REGIME_PREFILL, 500);
    cut_out(&w, 1, 2 * T + 1, 3 * T - 1);  /* in a shared tile: stays */
    cut_out(&w, 1, 6 * T, 7 * T - 1);
    cut_out(&w, 1, 8 * T, 9 * T + 3);
    const uint32_t before = n_tiles(&w, 1);
    compact(&w, 1);
    assert_true(n_tiles(&w, 1) < before);
    for (uint32_t t = 0; t < 6; t++)
        assert_int_equal(w.cache->cache.seqs[1].tiles[t], w.cache->cache.seqs[0].tiles[t]);
    fx_compare_fresh(&w, 0, 5);
    fx_clear(&w, 0);
    compact(&w, 1);
    fx_compare_fresh(&w, 1, 5);
    assert_int_equal(fx_stats(&w).dead_cells, 0);
    fx_check_empty(&w);
    fx_close(&w);
}

/* No tile is free: nothing changes. */
static void test_no_room(void **state)
{
    (void)state;
    fx w;
    fx_model m = model(4 * T, FX_HOST, 1);
    m.params.capacity_cells = 10 * T;
    m.params.n_sequences = 1;
    fx_open(&w, &m);
    fx_append(&w, 0, 10 * T, RKV_REGIME_PREFILL, 1);
    cut_out(&w, 0, T, 2 * T - 1);
    cut_out(&w, 0, 2 * T, 3 * T);
    const uint32_t before = n_tiles(&w, 0);
    const rkv_cache_stats a = fx_stats(&w);
    assert_int_equal(rkv_sequence_compact(w.cache, 0), RKV_E_CAPACITY);
    const rkv_cache_stats b = fx_stats(&w);
    assert_int_equal(n_tiles(&w, 0), before);
    assert_int_equal(a.used_device_places, b.used_device_places);
    assert_int_equal(a.used_tail_places, b.used_tail_places);
    assert_int_equal(a.dead_cells, b.dead_cells);
    assert_int_equal(rkv_sequence_compact(w.cache, 1), RKV_E_SEQUENCE);
    fx_close(&w);
}

/* Cells that a load or an import brought are covered like others: a fork from
 * further back does not write over them. */
static void test_fork_of_loaded(void **state)
{
    (void)state;
    fx w;
    fx_bytes b;
    const fx_model m = model(4 * T, FX_HOST, 1);
    fx_open(&w, &m);
    fx_append(&w, 0, 3 * T + 9, RKV_REGIME_PREFILL, 1);
    fx_save(&w, 0, &b);
    fx_ok(fx_load(&w, 1, &b, true), "load");
    fx_copy_record(&w, 1, &w, 0);
    fx_ok(rkv_sequence_append_from(w.cache, 2, 1, 0, 3 * T + 4), "append_from");
    fx_copy_record(&w, 2, &w, 1);
    w.n_cells[2] = 3 * T + 4;
    fx_append(&w, 2, 2, RKV_REGIME_DECODE, 700);
    fx_compare_fresh(&w, 1, 5);
    fx_compare_fresh(&w, 2, 5);
    fx_clear(&w, 0);
    fx_clear(&w, 1);
    assert_int_equal(fx_stats(&w).shared_tiles, 0);
    fx_check_empty(&w);
    fx_bytes_free(&b);
    fx_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_as_fresh),
        cmocka_unit_test(test_shared),
        cmocka_unit_test(test_no_room),
        cmocka_unit_test(test_fork_of_loaded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
