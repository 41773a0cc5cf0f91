/* SPDX-License-Identifier: MIT
 *
 * A live cache's window made smaller and larger: device memory really goes back
 * and is taken again, and calls that fail leave budget and memory as they were.
 */
#include "step_fixture.h"

#include "step_types.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { T = 16, TILES = 64 };
#define PLACE ((uint64_t)T * 64 * 2 * 2)

/* The engine's memory: how much is out, and how much may be. */
typedef struct engine {
    uint64_t used_bytes, most_bytes;
    const fx *w; /* has the executor */
} engine;

static void *engine_alloc(void *user, uint64_t bytes)
{
    engine *e = user;
    void *p = NULL;
    if (e->used_bytes + bytes > e->most_bytes || rkvi_dev(mem_alloc, e->w->dev, bytes, &p) != RKV_OK)
        return NULL;
    e->used_bytes += bytes;
    return p;
}

static void engine_free(void *user, void *p, uint64_t bytes)
{
    engine *e = user;
    e->used_bytes -= bytes;
    fx_ok(rkvi_dev(mem_free, e->w->dev, p), "mem_free");
}

static void open_with(fx *w, engine *e, uint64_t resident)
{
    fx_model m = fx_model_make(T, 0, TILES * T);
    fx_add_layer(&m, 1, 64, 64, resident);
    fx_add_layer(&m, 1, 64, 64, RKV_RESIDENT_ALL);
    m.params.max_rows = 200;
    m.params.ring_bytes = 16 * PLACE;
    *e = (engine){.most_bytes = UINT64_MAX, .w = w};
    m.params.device_allocator = (rkv_allocator){engine_alloc, engine_free, e};
    fx_open(w, &m);
    w->model.params.device_allocator = (rkv_allocator){0}; /* of the caches that it is compared with */
}

static uint64_t device_bytes(const fx *w)
{
    rkv_cache_info i = {.struct_size = sizeof i};
    fx_ok(rkv_cache_info_get(w->cache, &i), "info");
    assert_int_equal(i.device_bytes, i.device_window_bytes + i.device_active_bytes + i.device_ring_bytes +
                                         i.device_transit_bytes + i.device_workspace_bytes);
    return i.device_bytes;
}

static void test_memory(void **state)
{
    (void)state;
    fx w;
    engine e;
    open_with(&w, &e, 40 * T);
    const uint64_t full = device_bytes(&w);
    fx_append(&w, 0, 60 * T + 3, RKV_REGIME_PREFILL, 1);
    fx_append(&w, 0, 1, RKV_REGIME_DECODE, 4000); /* what leaves has entered the tail */
    assert_int_equal(fx_layer(&w, 0).window_tiles, 40);
    fx_ok(rkv_cache_set_residency(w.cache, 0, 10 * T - 1), "smaller");
    const rkv_kv_layer_info i = fx_layer(&w, 0);
    assert_int_equal(i.resident_cells, 10 * T);
    assert_int_equal(i.window_tiles, 10);
    assert_int_equal(i.tail_tiles, 49); /* one lags */
    /* 30 places less, in extents of 16 KiB */
    const uint64_t less = device_bytes(&w);
    assert_true(full - less >= 30 * PLACE - 16384 && full - less <= 30 * PLACE);
    assert_int_equal(e.used_bytes, less);
    /* the lowest serials stayed */
    const rkvi_cache *c = &w.cache->cache;
    for (uint32_t t = 0; t < 60; t++)
        assert_int_equal(rkvi_tile_layer_at(&c->tiles, c->seqs[0].tiles[t], 0)->state == RKVI_IN_WINDOW, t < 10);
    fx_compare_fresh(&w, 0, 4);
    fx_ok(rkv_cache_set_residency(w.cache, 0, RKV_RESIDENT_NONE), "none");
    assert_int_equal(fx_layer(&w, 0).window_tiles, 0);
    fx_compare_fresh(&w, 0, 4);
    fx_ok(rkv_cache_set_residency(w.cache, 0, RKV_RESIDENT_AUTO), "as at first");
    assert_true(device_bytes(&w) >= full && device_bytes(&w) < full + 16384);
    const uint64_t demoted = fx_stats(&w).demoted_bytes, streamed = fx_stats(&w).streamed_bytes;
    fx_append(&w, 0, 1, RKV_REGIME_DECODE, 5000); /* everything passes through the ring, and is promoted */
    assert_true(fx_stats(&w).streamed_bytes > streamed);
    fx_append(&w, 0, 1, RKV_REGIME_DECODE, 5001);
    assert_int_equal(fx_layer(&w, 0).window_tiles, 40);
    fx_compare_fresh(&w, 0, 4);
    fx_ok(rkv_cache_set_residency(w.cache, 0, 20 * T), "smaller again"); /* for nothing: host copies are good */
    assert_int_equal(fx_stats(&w).demoted_bytes, demoted);
    fx_ok(rkv_cache_set_residency(w.cache, 0, RKV_RESIDENT_ALL), "all");
    fx_append(&w, 0, 1, RKV_REGIME_DECODE, 5002);
    fx_append(&w, 0, 1, RKV_REGIME_DECODE, 5003);
    assert_int_equal(fx_layer(&w, 0).tail_tiles, 0);
    fx_compare_fresh(&w, 0, 4);
    fx_check_empty(&w);
    fx_close(&w);
}

/* Two sequences' tiles lie by turns; what is left of one is moved together before
 * memory goes back, and is there when the next step reads it. */
static void test_scattered(void **state)
{
    (void)state;
    static const fx_executor executors[] = {FX_CHECK, FX_SIM, FX_HOST};
    for (uint32_t i = 0; i < 3; i++) {
        fx w;
        fx_model m = fx_model_make(T, 64, TILES * T);
        m.layers[0].resident_cells = 40 * T;
        m.params.n_sequences = 2;
        m.params.max_rows = 64;
        m.executor = executors[i];
        m.seed = 1 + i;
        m.delay_ns = m.executor == FX_HOST ? 300000 : 0;
        fx_open(&w, &m);
        for (uint32_t k = 0; k < 18; k++)
            for (uint32_t seq = 0; seq < 2; seq++)
                fx_append(&w, seq, T, RKV_REGIME_PREFILL, 1 + 2000 * seq + T * k);
        fx_clear(&w, 0);
        const uint64_t moved = fx_copied(&w, RKVI_D2D);
        fx_ok(rkv_cache_set_residency(w.cache, 0, 20 * T), "smaller");
        assert_true(fx_copied(&w, RKVI_D2D) > moved);
        assert_int_equal(fx_layer(&w, 0).window_tiles + fx_layer(&w, 0).tail_tiles, 17); /* one lags */
        fx_compare_fresh(&w, 1, 4);
        fx_check_empty(&w);
        fx_close(&w);
    }
}

static void expect(rkv_status got, rkv_status want, const char *text)
{
    assert_int_equal(got, want);
    if (!strstr(rkv_error_message(), text))
        fail_msg("'%s' is not in: %s", text, rkv_error_message());
}

static void test_refusals(void **state)
{
    (void)state;
    fx w;
    engine e;
    open_with(&w, &e, 10 * T);
    fx_append(&w, 0, 40 * T + 3, RKV_REGIME_PREFILL, 1);
    expect(rkv_cache_set_residency(w.cache, 2, 0), RKV_E_ARGUMENT, "there are 2 KV layers");
    expect(rkv_cache_set_residency(w.cache, 0, (uint64_t)-16), RKV_E_OVERFLOW, "2^62");
    expect(rkv_cache_set_residency(w.cache, 1, T), RKV_E_UNSUPPORTED, "without a tail");
    fx_ok(rkv_cache_set_residency(w.cache, 1, RKV_RESIDENT_ALL), "as it is");
    fx_ok(rkv_cache_set_residency(w.cache, 1, RKV_RESIDENT_AUTO), "as it is");
    w.cache->cfg.device_limit_bytes = device_bytes(&w) + 17000; /* one extent more */
    const uint64_t before = device_bytes(&w);
    expect(rkv_cache_set_residency(w.cache, 0, RKV_RESIDENT_ALL), RKV_E_DEVICE_LIMIT, "device limit");
    assert_int_equal(device_bytes(&w), before);
    assert_int_equal(fx_layer(&w, 0).resident_cells, 10 * T);
    w.cache->cfg.device_limit_bytes = UINT64_MAX;
    e.most_bytes = e.used_bytes + 17000;
    expect(rkv_cache_set_residency(w.cache, 0, RKV_RESIDENT_ALL), RKV_E_DEVICE_MEMORY, "allocator refused");
    assert_int_equal(device_bytes(&w), before);
    assert_int_equal(e.used_bytes, before);
    assert_int_equal(fx_layer(&w, 0).resident_cells, 10 * T);
    const fx_entry en = {.seq = 0, .rows = 1, .tag = 5};
    fx_ok(fx_begin(&w, &en, 1), "begin");
    assert_int_equal(rkv_cache_set_residency(w.cache, 0, T), RKV_E_STATE);
    fx_ok(fx_abort(&w), "abort");
    fx_append(&w, 0, 1, RKV_REGIME_DECODE, 900);
    fx_compare_fresh(&w, 0, 4);
    fx_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_scattered),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
