/* SPDX-License-Identifier: MIT
 *
 * The CPU's share of the tail: the same values as without it but for rounding,
 * the same bits when repeated, less over the link, and every edge in its place.
 */
#include "cpu_share_case.h"

#include "cpu_team.h"
#include "step_types.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Steps of one and of several rows and sequences, tiles entering the tail. */
static void like_without(fx_executor executor, uint32_t share)
{
    fx w, again, plain;
    const fx_model m = share_model(executor, 2, share), without = share_model(FX_HOST, 0, 0);
    fx_open(&w, &m);
    fx_open(&again, &m);
    fx_open(&plain, &without);
    share_text(&w, 34);
    share_text(&again, 34);
    share_text(&plain, 34);
    for (uint32_t i = 0; i < 7; i++) {
        const uint32_t n = i < 3 ? 1 : 3, rows = i % 3 == 2 ? 6 : 1;
        share_decode(&w, n, rows, 5000 + i);
        share_decode(&again, n, rows, 5000 + i);
        share_decode(&plain, n, rows, 5000 + i);
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
    fx_model m = share_model(FX_HOST, 1, 4);
    fx_open(&w, &m);
    share_text(&w, 34);
    for (uint32_t i = 0; i < 4; i++)
        share_decode(&w, 1, 1, 5000 + i);
    const rkv_cache_stats before = fx_stats(&w);
    share_decode(&w, 1, 1, 6000);
    fx_ok(fx_sync(&w), "sync");
    const rkv_cache_stats after = fx_stats(&w);
    const double cpu = (double)(after.cpu_bytes - before.cpu_bytes), link = (double)after.last_step_list_bytes;
    assert_true(cpu / (cpu + link) > 0.15 && cpu / (cpu + link) <= 0.25);
    rkv_cache_info info = {.struct_size = sizeof info};
    fx_ok(rkv_cache_info_get(w.cache, &info), "info");
    assert_int_equal(info.cpu_threads, 1);
    assert_int_equal(info.cpu_share, 4);
    assert_int_equal(info.cpu_wait_ns, EVER_NS);
    fx_close(&w);
}

/* The threads' kernels are those that the environment names, as the host executor's are. */
static void test_kernels(void **state)
{
    (void)state;
    static const char *const sets[] = {"ref", "avx2"};
    const fx_model m = share_model(FX_HOST, 2, 8);
    for (uint32_t i = 0; i < 2; i++) {
        fx w;
        rkv_cache_info info = {.struct_size = sizeof info};
        rkvi_ops ops;
        rkvi_ops_best(&ops, sets[i]);
        assert_int_equal(setenv("ROLLKV_KERNELS", sets[i], 1), 0);
        fx_open(&w, &m);
        share_text(&w, 34);
        share_decode(&w, 1, 1, 5000);
        fx_ok(rkv_cache_info_get(w.cache, &info), "info");
        fx_close(&w);
        assert_int_equal(unsetenv("ROLLKV_KERNELS"), 0);
        assert_string_equal(info.cpu_kernels, ops.name);
    }
}

/* What threads can't take is computed by the launch that others of the tail have,
 * on the tiles where they lie. */
static void test_left_to_device(void **state)
{
    (void)state;
    fx w, plain;
    const fx_model m = share_model(FX_CHECK, 2, 8), without = share_model(FX_HOST, 0, 0);
    fx_open(&w, &m);
    fx_open(&plain, &without);
    w.cache->cpu.partial_bytes = 0;
    share_text(&w, 34);
    share_text(&plain, 34);
    for (uint32_t i = 0; i < 3 * T; i++) { /* tiles enter the tail, and nobody waits */
        share_decode(&w, 3, 1, 5000 + i);
        share_decode(&plain, 3, 1, 5000 + i);
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
    const fx_model m = share_model(FX_CHECK, 2, 8);
    fx_open(&w, &m);
    share_text(&w, 34);
    for (uint32_t i = 0; i < 3; i++)
        share_decode(&w, 1, 1, 5000 + i);
    const fx_entry e = {.seq = 0, .rows = 1, .tag = 7000, .regime = RKV_REGIME_DECODE};
    fx_ok(fx_begin(&w, &e, 1), "begin");
    fx_ok(fx_attend(&w, 0), "attend");
    fx_ok(fx_abort(&w), "abort");
    share_decode(&w, 1, 1, 8000);
    fx_ok(fx_sync(&w), "sync");
    fx_close(&w);
}

static void test_refused(void **state)
{
    (void)state;
    fx w;
    fx_model m = share_model(FX_HOST, 2, 16);
    assert_int_equal(fx_try_open(&w, &m), RKV_E_ARGUMENT);
    m = share_model(FX_HOST, 0, 3);
    assert_int_equal(fx_try_open(&w, &m), RKV_E_ARGUMENT);
    m = share_model(FX_HOST, 0, 0);
    m.params.cpu_wait_ns = 1;
    assert_int_equal(fx_try_open(&w, &m), RKV_E_ARGUMENT);
    m = share_model(FX_HOST, 2, 8);
    m.params.mode = RKV_MODE_OP_LEVEL;
    assert_int_equal(fx_try_open(&w, &m), RKV_E_UNSUPPORTED);
}

static void test_model(void **state)
{
    (void)state;
    const double link = 50e9, cpu = 50e9;
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

/* Counts where the unit's partial would be. */
static void count_partial(const void *arg, uint64_t index)
{
    const rkvi_attend_args *a = arg;
    a->partials[a->items->slot] += 1.0f + (float)index;
}

/* Some threads fall behind with a ticket that they have read. */
static bool fall_behind(void *arg, rkvi_cpu_stage stage)
{
    _Atomic uint32_t *turn = arg;
    if (stage == RKVI_CPU_HAS_TICKET && atomic_fetch_add(turn, 1) % 3 == 0)
        nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
    return true;
}

/* Jobs follow each other at once, so that threads go on with old tickets: each unit once
 * all the same, and done when all are. */
static void test_desk(void **state)
{
    (void)state;
    rkvi_desk words = {0};
    rkvi_cpu_desk desk = {0};
    rkvi_cpu_team *team = NULL;
    enum { MOST = 7000 }; /* more than seats count one by one */
    static rkvi_item items[MOST];
    _Atomic uint32_t turn = 0;
    static float seen[MOST];
    fx_ok(rkvi_cpu_desk_init(&desk, &words, 2, 3, 6), "desk");
    fx_ok(rkvi_cpu_team_create(7, -1, &team), "team");
    const rkvi_cpu_watch watch = {.look = rkvi_cpu_desk_look, .is_due = rkvi_cpu_desk_is_due, .arg = &desk};
    desk.hook_arg = &turn;
    atomic_store(&desk.hook, fall_behind);
    atomic_store(&desk.expected, UINT64_MAX);
    rkvi_cpu_team_watch(team, &watch);
    rkvi_cpu_team_wake(team);
    for (uint64_t k = 0; k < 3000; k++) {
        const uint64_t ticket = rkvi_cpu_desk_ticket(&desk, k / 6, (uint32_t)(k / 3 % 2)) + k % 3;
        const uint32_t n = k % 500 == 250 ? MOST : 1 + (uint32_t)(k * 7 % 9);
        const rkvi_cpu_job job = {
            .args = {.geom = {.n_heads = 1}, .items = items, .partials = seen, .max_rows = 1}, .decode = count_partial};
        rkvi_cpu_desk_put(&desk, ticket, &job, n);
        __atomic_store_n(&words.sent, ticket, __ATOMIC_RELEASE);
        while (__atomic_load_n(&words.done, __ATOMIC_ACQUIRE) < ticket)
            sched_yield();
        for (uint32_t i = 0; i < MOST; i++) {
            assert_true(seen[i] == (i < n));
            seen[i] = 0;
        }
    }
    rkvi_cpu_team_destroy(team);
    rkvi_cpu_desk_free(&desk);
}

int main(void)
{
#ifdef FX_ON_GPU
    fx_use_gpu();
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_model),   cmocka_unit_test(test_team),           cmocka_unit_test(test_desk),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_host),           cmocka_unit_test(test_orders),
        cmocka_unit_test(test_edges),   cmocka_unit_test(test_left_to_device), cmocka_unit_test(test_part),
        cmocka_unit_test(test_kernels), cmocka_unit_test(test_abort),
    };
    seed = fx_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
