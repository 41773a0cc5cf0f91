/* SPDX-License-Identifier: MIT
 *
 * Many segments: states of caches whose sequences share most of what they
 * have, and extra_segments, the room for runs of positions beyond one a tile.
 */
#include "state_fixture.h"
#include "state_hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define T 16u
#define FORKS 60u

/* Sixty forks have more segments than the cache has tiles; all come back. */
static void test_shared(void **state)
{
    (void)state;
    if (rkvi_state_hash_built() != RKV_OK)
        skip();
    fx a, b;
    fx_bytes bytes;
    fx_model m = fx_model_make(T, 64, 200 * T);
    m.params.n_sequences = FORKS;
    m.params.extra_segments = 16;
    fx_open(&a, &m);
    m.layers[0].resident_cells = 10 * T;
    fx_open(&b, &m);
    fx_append(&a, 0, 90 * T, RKV_REGIME_PREFILL, 1000);
    for (uint32_t i = 1; i < FORKS; i++)
        fx_append_from(&a, i, 0, 0, RKV_POS_END);
    fx_append(&a, 7, 3, RKV_REGIME_DECODE, 50000);
    fx_save(&a, RKV_STATE_ALL, &bytes);
    fx_ok(fx_load(&b, RKV_STATE_ALL, &bytes, true), "load");
    fx_bytes_free(&bytes);
    for (uint32_t i = 0; i < FORKS; i++)
        fx_copy_record(&b, i, &a, i);
    assert_int_equal(fx_stats(&b).used_tiles, 91);
    const fx_entry e[2] = {{.seq = 7, .rows = 2, .tag = 60000}, {.seq = 8, .rows = 1, .tag = 61000}};
    fx_step(&a, e, 2);
    fx_step(&b, e, 2);
    assert_true(fx_same(&a, &b));
    fx_save(&a, 7, &bytes); /* into a cache that shares */
    fx_ok(fx_load(&b, 3, &bytes, true), "load");
    fx_bytes_free(&bytes);
    fx_close(&a);
    fx_close(&b);
}

/* n cells, each at a position of its own. */
static rkv_status scattered(fx *w, uint32_t n)
{
    static int64_t pos[FX_ROWS];
    for (uint32_t i = 0; i < n; i++)
        pos[i] = 3 * (int64_t)i;
    const fx_entry e = {.seq = 0, .rows = n, .regime = RKV_REGIME_PREFILL, .tag = 5, .positions = pos};
    const rkv_status want = fx_check(w, &e, 1), s = fx_try_step(w, &e, 1);
    assert_int_equal(s, want);
    if (s == RKV_OK)
        fx_clear(w, 0);
    return s;
}

/* The limit is as asked for, its sentence names it, and it can be read back. */
static void test_extra_segments(void **state)
{
    (void)state;
    fx w;
    fx_model m = fx_model_make(T, 64, 20 * T);
    rkv_cache_info info = {.struct_size = sizeof info};
    m.params.extra_segments = 50;
    fx_open(&w, &m);
    fx_ok(rkv_cache_info_get(w.cache, &info), "info");
    assert_int_equal(info.extra_segments, 50);
    assert_int_equal(scattered(&w, 70), RKV_OK);
    assert_int_equal(scattered(&w, 71), RKV_E_CAPACITY);
    assert_non_null(strstr(rkv_error_message(), "71 separate runs, at most 70"));
    assert_non_null(strstr(rkv_error_message(), "extra_segments"));
    fx_close(&w);
    m.params.extra_segments = 250;
    fx_open(&w, &m);
    assert_int_equal(scattered(&w, 270), RKV_OK);
    fx_close(&w);
    m.params.extra_segments = 0;
    fx_open(&w, &m);
    fx_ok(rkv_cache_info_get(w.cache, &info), "info");
    assert_int_equal(info.extra_segments, 4096);
    fx_close(&w);
}

/* Runs count where their sequence takes part: one that was cut to pieces stops no other. */
static void test_runs_of_a_step(void **state)
{
    (void)state;
    fx w;
    fx_model m = fx_model_make(T, 64, 20 * T);
    m.params.n_sequences = 3;
    m.params.extra_segments = 50; /* and 22 tiles */
    fx_open(&w, &m);
    for (uint32_t q = 0; q < 2; q++) {
        int64_t pos[60];
        for (uint32_t i = 0; i < 60; i++)
            pos[i] = 2 * (int64_t)i;
        const fx_entry e = {.seq = q, .rows = 60, .regime = RKV_REGIME_PREFILL, .tag = 100 * q, .positions = pos};
        assert_int_equal(fx_check(&w, &e, 1), RKV_OK);
        fx_step(&w, &e, 1);
    }
    const fx_entry e[3] = {{.seq = 0, .rows = 1, .tag = 500}, {.seq = 2, .rows = 2, .tag = 600},
                           {.seq = 1, .rows = 1, .tag = 700}};
    assert_int_equal(fx_check(&w, e, 3), RKV_E_CAPACITY);
    assert_int_equal(fx_begin(&w, e, 3), RKV_E_CAPACITY);
    assert_non_null(strstr(rkv_error_message(), "121 separate runs, at most 72"));
    assert_int_equal(fx_check(&w, e, 2), RKV_OK);
    fx_step(&w, e, 2);
    fx_step(&w, e + 2, 1);
    for (uint32_t q = 0; q < 3; q++)
        fx_compare_fresh(&w, q, 1);
    fx_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_shared), cmocka_unit_test(test_extra_segments),
                                       cmocka_unit_test(test_runs_of_a_step)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
