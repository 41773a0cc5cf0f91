/* SPDX-License-Identifier: MIT
 *
 * Saving and loading that is refused, or stopped by a callback: what the calls say,
 * states of other caches, and room that is lacking.
 */
#include "state_fixture.h"

#include "state_hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void test_calls(void **state)
{
    (void)state;
    fx w;
    fx_bytes bytes, none = {0};
    uint64_t size = 77;
    const fx_model m = fx_state_model(3, FX_CHECK, 7);
    fx_open(&w, &m);
    fx_first_half(&w);
    fx_save(&w, 0, &bytes);
    rkv_state_params p = {.struct_size = sizeof p, .write = fx_write_bytes, .user = &none};
    assert_int_equal(rkv_state_size(NULL, 0, &size), RKV_E_ARGUMENT);
    assert_int_equal(rkv_state_size(w.cache, 3, &size), RKV_E_SEQUENCE);
    assert_int_equal(rkv_state_size(w.cache, 0, NULL), RKV_E_ARGUMENT);
    assert_int_equal(rkv_state_load(w.cache, &p), RKV_E_ARGUMENT);
    p.read = fx_read_bytes;
    assert_int_equal(rkv_state_save(w.cache, &p), RKV_E_ARGUMENT);
    p.write = NULL;
    p.size_bytes = (uint64_t)-1;
    assert_int_equal(rkv_state_load(w.cache, &p), RKV_E_ARGUMENT);
    assert_int_equal(rkv_state_save(w.cache, NULL), RKV_E_ARGUMENT);
    assert_int_equal(rkv_state_load_file(w.cache, &p, "x"), RKV_E_ARGUMENT);
    p = (rkv_state_params){.struct_size = sizeof p, .write = fx_write_bytes, .user = &none, .size_bytes = 1};
    assert_int_equal(rkv_state_save(w.cache, &p), RKV_E_ARGUMENT);
    p = (rkv_state_params){.struct_size = sizeof p};
    assert_int_equal(rkv_state_save_file(w.cache, &p, NULL), RKV_E_ARGUMENT);
    assert_int_equal(rkv_state_save_file(w.cache, &p, ""), RKV_E_ARGUMENT);
    assert_int_equal(rkv_state_load_file(w.cache, &p, "/nowhere/at/all"), RKV_E_IO);
    assert_int_equal(rkv_state_save_file(w.cache, &p, "/nowhere/at/all"), RKV_E_IO);
    const fx_entry e = {.seq = 0, .rows = 1, .tag = 1};
    fx_ok(fx_begin(&w, &e, 1), "begin");
    assert_int_equal(rkv_state_size(w.cache, 0, &size), RKV_E_STATE);
    assert_int_equal(fx_load(&w, 0, &bytes, true), RKV_E_STATE);
    fx_ok(fx_abort(&w), "abort");
    assert_int_equal(size, 77);
    assert_int_equal(none.n, 0);
    fx_bytes_free(&bytes);
    fx_close(&w);
}

/* A function that stops the call; the cache is as it was. */
static void test_stopped(void **state)
{
    (void)state;
    fx w;
    fx_bytes bytes, part = {0};
    const fx_model m = fx_state_model(2, FX_CHECK, 8);
    fx_open(&w, &m);
    fx_first_half(&w);
    fx_save(&w, 0, &bytes);
    for (uint64_t at = 1; at < bytes.n; at += bytes.n / 7) {
        const rkv_state_params p = {.struct_size = sizeof p, .write = fx_write_bytes, .user = &part};
        part.n = 0;
        part.stop_after = at;
        assert_int_equal(rkv_state_save(w.cache, &p), RKV_E_IO);
        assert_non_null(strstr(rkv_error_message(), "gave 7"));
        bytes.stop_after = at;
        assert_int_equal(fx_load(&w, 1, &bytes, true), RKV_E_IO);
    }
    bytes.stop_after = 0;
    fx_compare_fresh(&w, 0, 2);
    fx_compare_fresh(&w, 1, 2);
    fx_check_empty(&w);
    fx_bytes_free(&bytes);
    fx_bytes_free(&part);
    fx_close(&w);
}

typedef struct foreign {
    const char *says;
    rkv_status status;
    void (*change)(fx_model *m);
} foreign;

static void other_tile(fx_model *m)
{
    m->params.tile_cells = 32;
}
static void other_layers(fx_model *m)
{
    m->n_layers--;
    m->n_sites--;
}
static void other_heads(fx_model *m)
{
    m->layers[1].n_kv_heads = 1;
}
static void other_dim(fx_model *m)
{
    m->layers[3].head_dim_v = 64;
}
static void other_type(fx_model *m)
{
    m->layers[0].type_v = RKV_TYPE_BF16;
}
static void other_scale(fx_model *m)
{
    m->layers[2].k_scale = 0.25f;
}
static void small(fx_model *m)
{
    m->params.capacity_cells = 64;
    m->params.n_sequences = 1;
}

static void test_foreign(void **state)
{
    (void)state;
    const foreign list[] = {
        {"tiles of 16 cells, this cache of 32", RKV_E_DATA, other_tile},
        {"4 KV layers, this cache has 3", RKV_E_DATA, other_layers},
        {"KV layer 1 has n_kv_heads 2 in the state and 1", RKV_E_DATA, other_heads},
        {"KV layer 3 has head_dim_v 32 in the state and 64", RKV_E_DATA, other_dim},
        {"KV layer 0 stores V as f16 in the state and as bf16", RKV_E_DATA, other_type},
        {"KV layer 2 scales K by 0.5 in the state and by 0.25", RKV_E_DATA, other_scale},
        {"tiles", RKV_E_CAPACITY, small},
    };
    fx w;
    fx_bytes bytes, all;
    const fx_model m = fx_state_model(1, FX_HOST, 9);
    fx_open(&w, &m);
    fx_first_half(&w);
    fx_save(&w, 0, &bytes);
    fx_save(&w, RKV_STATE_ALL, &all);
    assert_int_equal(fx_load(&w, RKV_STATE_ALL, &bytes, true), RKV_E_DATA);
    assert_int_equal(fx_load(&w, 0, &all, true), RKV_E_DATA);
    fx_close(&w);
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        fx_model n = fx_state_model(0, FX_CHECK, 10);
        list[i].change(&n);
        fx_open(&w, &n);
        fx_append(&w, 0, 20, RKV_REGIME_PREFILL, 1);
        const rkv_status s = fx_load(&w, 0, &bytes, true);
        if (s != list[i].status || !strstr(rkv_error_message(), list[i].says))
            fail_msg("%s: %d, %s", list[i].says, s, rkv_error_message());
        fx_compare_fresh(&w, 0, 1);
        fx_check_empty(&w);
        fx_close(&w);
    }
    fx_bytes_free(&bytes);
    fx_bytes_free(&all);
}

/* No room beside what the cache holds, then room. */
static void test_capacity(void **state)
{
    (void)state;
    fx w;
    fx_bytes bytes;
    fx_model m = fx_state_model(0, FX_CHECK, 11);
    m.params.n_sequences = 2;
    m.params.capacity_cells = 160;
    fx_open(&w, &m);
    fx_append(&w, 0, 100, RKV_REGIME_PREFILL, 1);
    fx_save(&w, 0, &bytes);
    assert_int_equal(fx_load(&w, 0, &bytes, true), RKV_E_CAPACITY);
    fx_compare_fresh(&w, 0, 2);
    fx_clear(&w, 0);
    fx_ok(fx_load(&w, 1, &bytes, false), "load");
    for (uint32_t i = 0; i < 100; i++)
        w.cells[1][w.n_cells[1]++] = (fx_cell){.tag = 1 + i, .pos = i};
    fx_compare_fresh(&w, 1, 2);
    fx_bytes_free(&bytes);
    fx_save(&w, RKV_STATE_ALL, &bytes); /* of two sequences */
    fx_check_empty(&w);
    fx_close(&w);
    m.params.n_sequences = 1;
    fx_open(&w, &m);
    assert_int_equal(fx_load(&w, RKV_STATE_ALL, &bytes, true), RKV_E_CAPACITY);
    assert_non_null(strstr(rkv_error_message(), "the state has 2 sequences, this cache has room for 1"));
    fx_bytes_free(&bytes);
    fx_close(&w);
}

/* A KV layer without a tail has places for what its mask sees, once: a load comes beside
 * what the sequence holds, so it is cleared first. */
static void test_no_place(void **state)
{
    (void)state;
    fx w;
    fx_bytes bytes;
    fx_model m = fx_model_make(16, 0, 640);
    m.executor = FX_CHECK;
    fx_add_layer(&m, 1, 64, 64, RKV_RESIDENT_NONE);
    fx_add_layer(&m, 1, 64, 64, RKV_RESIDENT_AUTO);
    m.sites[1].mask = RKV_MASK_SLIDING;
    m.sites[1].mask_width = 70;
    m.params.max_rows = 16;
    fx_open(&w, &m);
    assert_false(fx_layer(&w, 1).has_tail);
    for (uint32_t i = 0; i < 10; i++)
        fx_append(&w, 0, 16, RKV_REGIME_DECODE, 1 + 100 * i);
    fx_save(&w, 0, &bytes);
    const uint64_t used = fx_stats(&w).used_tiles;
    assert_int_equal(fx_load(&w, 0, &bytes, true), RKV_E_DEVICE_LIMIT);
    assert_non_null(strstr(rkv_error_message(), "KV layer 1 has no device place left"));
    assert_int_equal(fx_stats(&w).used_tiles, used);
    fx_compare_fresh(&w, 0, 2);
    fx_ok(rkv_sequence_clear(w.cache, 0), "clear");
    fx_ok(fx_load(&w, 0, &bytes, true), "load");
    fx_compare_fresh(&w, 0, 2);
    fx_check_empty(&w);
    fx_bytes_free(&bytes);
    fx_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_stopped),
        cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_capacity),
        cmocka_unit_test(test_no_place),
    };
    if (rkvi_state_hash_built() != RKV_OK)
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
