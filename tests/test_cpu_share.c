/* SPDX-License-Identifier: MIT
 *
 * The CPU's share of the tail: the same values as without it but for rounding,
 * the same bits when repeated, less over the link, and every edge in its place.
 */
#include "step_fixture.h"

#include "cpu_team.h"
#include "step_types.h"

#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define T 16u

static uint64_t seed;

/* Two KV layers of unlike geometry, of which one is read twice and one by a
 * sliding mask as well. */
static fx_model model(fx_executor executor, uint32_t threads, uint32_t share)
{
    fx_model m = fx_model_make(T, 0, 4096);
    const uint32_t first = fx_add_layer(&m, 2, 64, 64, 4 * T);
    fx_add_unequal(&m, RKV_RESIDENT_NONE);
    fx_add_site(&m, first, 10);
    fx_add_layer(&m, 1, 64, 64, RKV_RESIDENT_NONE);
    m.sites[m.n_sites - 1].mask = RKV_MASK_SLIDING;
    m.sites[m.n_sites - 1].mask_width = 20 * T;
    m.params.n_sequences = 3;
    m.params.ring_bytes = 128 * 1024;
    m.params.copy_bytes = 16 * 1024;
    m.params.draft_rows = 4;
    m.params.cpu_threads = threads;
    m.params.cpu_share = share;
    m.executor = executor;
    m.seed = seed;
    return m;
}

static void text(fx *w)
{
    for (uint32_t s = 0; s < 2; s++)
        fx_append(w, s, 34 * T + 5, RKV_REGIME_PREFILL, 1000 + s * 100000);
    fx_append_from(w, 2, 0, 0, 34 * T);
}

static void decode(fx *w, uint32_t n_seqs, uint32_t rows, uint64_t tag)
{
    fx_entry e[3];
    for (uint32_t i = 0; i < n_seqs; i++)
        e[i] = (fx_entry){.seq = i, .rows = rows, .tag = tag + i * 1000000u, .regime = RKV_REGIME_DECODE};
    fx_step(w, e, n_seqs);
}

static void assert_near(const fx *a, const fx *b)
{
    for (uint32_t site = 0; site < a->model.n_sites; site++)
        for (uint32_t row = 0; row < a->n_rows; row++)
            for (uint32_t head = 0; head < a->out[site].heads; head++)
                for (uint32_t i = 0; i < a->out[site].dim; i++) {
                    const float x = fx_out(a, site, row, head, i), y = fx_out(b, site, row, head, i);
                    assert_true(fabsf(x - y) <= 2e-6f * (1.0f + fabsf(y)));
                }
}

/* Steps of one and of several rows and sequences, tiles entering the tail. */
static void like_without(fx_executor executor, uint32_t share)
{
    fx w, again, plain;
    const fx_model m = model(executor, 2, share), without = model(FX_HOST, 0, 0);
    fx_open(&w, &m);
    fx_open(&again, &m);
    fx_open(&plain, &without);
    text(&w);
    text(&again);
    text(&plain);
    for (uint32_t i = 0; i < 7; i++) {
        const uint32_t n = i < 3 ? 1 : 3, rows = i % 3 == 2 ? 6 : 1;
        decode(&w, n, rows, 5000 + i);
        decode(&again, n, rows, 5000 + i);
        decode(&plain, n, rows, 5000 + i);
        fx_ok(fx_sync(&w), "sync");
        fx_ok(fx_sync(&again), "sync");
        fx_ok(fx_sync(&plain), "sync");
        assert_true(fx_same(&w, &again));
        assert_near(&w, &plain);
    }
    assert_true(fx_stats(&w).cpu_bytes > 0);
    assert_int_equal(fx_stats(&plain).cpu_bytes, 0);
    assert_true(fx_stats(&w).streamed_bytes < fx_stats(&plain).streamed_bytes);
    fx_close(&w);
    fx_close(&again);
    fx_close(&plain);
}

static void test_host(void **state)
{
    (void)state;
    like_without(FX_HOST, 8);
    like_without(FX_HOST, 15);
}

static void test_orders(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++, seed++)
        like_without(FX_SIM, 5 + 6 * i);
}

static void test_edges(void **state)
{
    (void)state;
    like_without(FX_CHECK, 8);
}

/* The share is of the tail, to within the run that its beginning is rounded to. */
static void test_part(void **state)
{
    (void)state;
    fx w;
    fx_model m = model(FX_HOST, 1, 4);
    fx_open(&w, &m);
    text(&w);
    for (uint32_t i = 0; i < 4; i++)
        decode(&w, 1, 1, 5000 + i);
    const rkv_cache_stats before = fx_stats(&w);
    decode(&w, 1, 1, 6000);
    fx_ok(fx_sync(&w), "sync");
    const rkv_cache_stats after = fx_stats(&w);
    const double cpu = (double)(after.cpu_bytes - before.cpu_bytes), link = (double)after.last_step_list_bytes;
    assert_true(cpu / (cpu + link) > 0.15 && cpu / (cpu + link) <= 0.25);
    rkv_cache_info info = {.struct_size = sizeof info};
    fx_ok(rkv_cache_info_get(w.cache, &info), "info");
    assert_int_equal(info.cpu_threads, 1);
    assert_int_equal(info.cpu_share, 4);
    fx_close(&w);
}

/* What threads can't take is computed by the launch that others of the tail have,
 * on the tiles where they lie. */
static void test_left_to_device(void **state)
{
    (void)state;
    fx w, plain;
    const fx_model m = model(FX_CHECK, 2, 8), without = model(FX_HOST, 0, 0);
    fx_open(&w, &m);
    fx_open(&plain, &without);
    w.cache->cpu.partial_bytes = 0;
    text(&w);
    text(&plain);
    for (uint32_t i = 0; i < 3 * T; i++) { /* tiles enter the tail, and nobody waits */
        decode(&w, 3, 1, 5000 + i);
        decode(&plain, 3, 1, 5000 + i);
    }
    fx_ok(fx_sync(&w), "sync");
    fx_ok(fx_sync(&plain), "sync");
    assert_true(fx_same(&w, &plain));
    assert_int_equal(fx_stats(&w).cpu_bytes, 0);
    fx_close(&w);
    fx_close(&plain);
}

/* A step that was begun, attended in part and given up leaves nothing behind. */
static void test_abort(void **state)
{
    (void)state;
    fx w;
    const fx_model m = model(FX_CHECK, 2, 8);
    fx_open(&w, &m);
    text(&w);
    for (uint32_t i = 0; i < 3; i++)
        decode(&w, 1, 1, 5000 + i);
    const fx_entry e = {.seq = 0, .rows = 1, .tag = 7000, .regime = RKV_REGIME_DECODE};
    fx_ok(fx_begin(&w, &e, 1), "begin");
    fx_ok(fx_attend(&w, 0), "attend");
    fx_ok(fx_abort(&w), "abort");
    decode(&w, 1, 1, 8000);
    fx_ok(fx_sync(&w), "sync");
    fx_close(&w);
}

static void test_refused(void **state)
{
    (void)state;
    fx w;
    fx_model m = model(FX_HOST, 2, 16);
    assert_int_equal(fx_try_open(&w, &m), RKV_E_ARGUMENT);
    m = model(FX_HOST, 0, 3);
    assert_int_equal(fx_try_open(&w, &m), RKV_E_ARGUMENT);
    m = model(FX_HOST, 2, 0);
    assert_int_equal(fx_try_open(&w, &m), RKV_E_ARGUMENT);
    m = model(FX_HOST, 2, 8);
    m.params.flags |= RKV_FLAG_GRAPHS;
    assert_int_equal(fx_try_open(&w, &m), RKV_E_UNSUPPORTED);
    m = model(FX_HOST, 2, 8);
    m.params.mode = RKV_MODE_OP_LEVEL;
    assert_int_equal(fx_try_open(&w, &m), RKV_E_UNSUPPORTED);
}

static void test_model(void **state)
{
    (void)state;
    const double link = 50e9, cpu = 50e9;
    assert_int_equal(rkvi_config_cpu_best(0.01, 0.4e9, link, cpu), 0); /* hidden: 8 ms of copies in 10 */
    assert_int_equal(rkvi_config_cpu_best(0, 40e9, link, cpu), 8);
    assert_int_equal(rkvi_config_cpu_best(0, 40e9, link, cpu / 15), 1);
    /* x = (1/B - C/L) / (1/R + 1/B) = 0.4 */
    assert_int_equal(rkvi_config_cpu_best(0.004, 1e9, link, cpu), 6);
    assert_true(fabs(rkvi_config_cpu_step_s(0.5, 0.004, 1e9, link, cpu) - 0.014) < 1e-9);
}

typedef struct count {
    _Atomic uint64_t seen[257];
    int64_t delay_ns;
} count;

static void count_unit(const void *arg, uint64_t index)
{
    count *c = (count *)(uintptr_t)arg;
    if (c->delay_ns && index == 3) { /* one that is starved */
        const struct timespec ts = {.tv_nsec = c->delay_ns};
        nanosleep(&ts, NULL);
    }
    atomic_fetch_add(&c->seen[index], 1);
}

/* Each unit once, also with more threads than CPUs, two teams at once and pauses
 * in which threads fall asleep. */
static void test_team(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 9};
    for (uint32_t k = 0; k < 3; k++) {
        rkvi_cpu_team *t = NULL, *other = NULL;
        fx_ok(rkvi_cpu_team_create(sizes[k], k == 1 ? 0 : -1, &t), "team");
        fx_ok(rkvi_cpu_team_create(2, -1, &other), "team");
        for (uint32_t round = 0; round < 20; round++) {
            count c = {.delay_ns = round % 10 == 9 ? 3000000 : 0}, d = {.delay_ns = 0};
            const uint64_t n = round % 3 == 0 ? 257 : round;
            rkvi_cpu_team_run(t, count_unit, &c, n);
            rkvi_cpu_team_run(other, count_unit, &d, 5);
            for (uint64_t i = 0; i < 257; i++) {
                assert_int_equal(atomic_load(&c.seen[i]), i < n);
                assert_int_equal(atomic_load(&d.seen[i]), i < 5);
            }
        }
        rkvi_cpu_team_destroy(t);
        rkvi_cpu_team_destroy(other);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model), cmocka_unit_test(test_team),    cmocka_unit_test(test_refused),
        cmocka_unit_test(test_host),  cmocka_unit_test(test_orders),  cmocka_unit_test(test_edges),
        cmocka_unit_test(test_left_to_device),
        cmocka_unit_test(test_part),  cmocka_unit_test(test_abort),
    };
    seed = fx_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
