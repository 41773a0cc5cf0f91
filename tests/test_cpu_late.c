/* SPDX-License-Identifier: MIT
 *
 * Threads of the CPU's share that are late or don't come: no step hangs, and what they
 * don't compute has the device's own bits.
 */
#define CASE_DIM 16u
#include "cpu_share_case.h"

#include "step_types.h"

#include <stdatomic.h>
#include <time.h>

#define LIMIT_NS 2000000u
#define TILES 14u

/* What the threads of a cache are told to do. */
typedef struct absence {
    _Atomic bool is_gone;  /* they don't look for work */
    _Atomic bool holds;    /* the first that has a unit stays with it */
    _Atomic bool is_held;
    _Atomic int64_t most_ns; /* with one unit in 16 they sleep for up to so long */
    _Atomic uint64_t random;
} absence;

static void nap(int64_t ns)
{
    const struct timespec ts = {.tv_nsec = ns};
    nanosleep(&ts, NULL);
}

static bool hook(void *arg, rkvi_cpu_stage stage)
{
    absence *a = arg;
    if (stage != RKVI_CPU_HAS_UNIT)
        return !atomic_load(&a->is_gone);
    if (atomic_load(&a->holds) && !atomic_exchange(&a->is_held, true))
        while (atomic_load(&a->holds))
            nap(100000);
    if (atomic_load(&a->most_ns)) {
        uint64_t state = atomic_fetch_add(&a->random, 1);
        const uint64_t x = fx_random(&state);
        if (x % 16 == 0)
            nap((int64_t)(x / 16 % (uint64_t)atomic_load(&a->most_ns)));
    }
    return true;
}

static void set_hook(fx *w, absence *a)
{
    w->cache->cpu.desk.hook_arg = a;
    atomic_store(&w->cache->cpu.desk.hook, hook);
}

static void open_late(fx *w, fx *plain, fx_executor executor, absence *a)
{
    fx_model m = share_model(executor, 2, 8);
    const fx_model without = share_model(FX_HOST, 0, 0);
    m.params.cpu_wait_ns = LIMIT_NS;
    fx_open(w, &m);
    fx_open(plain, &without);
    set_hook(w, a);
    share_text(w, TILES);
    share_text(plain, TILES);
}

static void step_both(fx *w, fx *plain, uint32_t n_seqs, uint32_t rows, uint64_t tag)
{
    share_decode(w, n_seqs, rows, tag);
    share_decode(plain, n_seqs, rows, tag);
    fx_ok(fx_sync(w), "sync");
    fx_ok(fx_sync(plain), "sync");
}

/* Threads may come again: until a step has all of its share from them, and then on. */
static void back_again(fx *w, fx *plain)
{
    uint64_t before, i = 0;
    w->cache->cfg.cpu_wait_ns = EVER_NS;
    do {
        before = fx_stats(w).cpu_late_jobs;
        share_decode(w, 1, 1, 20000 + i);
        share_decode(plain, 1, 1, 20000 + i);
        fx_ok(fx_sync(w), "sync");
        fx_ok(fx_sync(plain), "sync");
        nap(100000);
        assert_true(++i < 1000);
    } while (fx_stats(w).cpu_late_jobs != before);
    const uint64_t late = fx_stats(w).cpu_late_bytes;
    for (uint32_t k = 0; k < 5; k++) {
        step_both(w, plain, 1 + 2 * (k % 2), 1 + k, 30000 + k);
        assert_near(w, plain);
    }
    assert_int_equal(fx_stats(w).cpu_late_bytes, late);
}

static const fx_executor executors[] = {FX_HOST, FX_SIM, FX_CHECK};

static uint32_t n_executors(void)
{
    return fx_gpu ? 1 : 3;
}

/* None looks: one wait, and none after that. */
static void test_killed(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < n_executors(); i++) {
        fx w, plain;
        absence a = {.is_gone = true};
        open_late(&w, &plain, executors[i], &a);
        for (uint32_t k = 0; k < 7; k++) {
            step_both(&w, &plain, k % 2 ? 3 : 1, k == 4 ? 6 : 1, 5000 + k);
            assert_true(fx_same(&w, &plain));
        }
        assert_true(fx_stats(&w).cpu_late_jobs > 7);
        assert_int_equal(fx_stats(&w).cpu_late_bytes, fx_stats(&w).cpu_bytes);
        atomic_store(&a.is_gone, false);
        back_again(&w, &plain);
        assert_true(fx_stats(&w).cpu_late_bytes < fx_stats(&w).cpu_bytes);
        fx_close(&w);
        fx_close(&plain);
    }
}

/* One is within a unit, whose job's tables no step may touch, for many steps. */
static void test_held(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < n_executors(); i++) {
        fx w, plain;
        absence a = {.holds = true};
        open_late(&w, &plain, executors[i], &a);
        w.cache->cfg.cpu_wait_ns = 100 * (uint64_t)LIMIT_NS; /* a busy machine starts threads late */
        for (uint32_t k = 0, held = 0; held < 12; k++) {
            step_both(&w, &plain, k % 2 ? 3 : 1, 1 + k % 2, 5000 + k);
            assert_true(fx_same(&w, &plain));
            held += atomic_load(&a.is_held);
            assert_true(k < 100);
        }
        assert_int_equal(fx_stats(&w).cpu_late_bytes, fx_stats(&w).cpu_bytes);
        atomic_store(&a.holds, false);
        back_again(&w, &plain);
        fx_close(&w);
        fx_close(&plain);
    }
}

/* About as long as the limit: some jobs come, some don't. */
static void test_delayed(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < n_executors(); i++) {
        fx w, plain;
        absence a = {.most_ns = LIMIT_NS, .random = seed};
        open_late(&w, &plain, executors[i], &a);
        for (uint32_t k = 0; k < 12; k++) {
            step_both(&w, &plain, k % 2 ? 3 : 1, k % 5 == 4 ? 6 : 1, 5000 + k);
            assert_near(&w, &plain);
        }
        print_message("%llu of %llu bytes late\n", (unsigned long long)fx_stats(&w).cpu_late_bytes,
                      (unsigned long long)fx_stats(&w).cpu_bytes);
        atomic_store(&a.most_ns, 0);
        back_again(&w, &plain);
        fx_close(&w);
        fx_close(&plain);
    }
}

/* Two caches with more threads than CPUs each, and steps that run ahead. */
static void test_crowded(void **state)
{
    (void)state;
    fx w[2], plain;
    fx_model m = share_model(FX_HOST, 6, 8);
    const fx_model without = share_model(FX_HOST, 0, 0);
    m.params.steps_ahead = 4;
    fx_open(&plain, &without);
    share_text(&plain, TILES);
    for (uint32_t i = 0; i < 2; i++) {
        fx_open(&w[i], &m);
        share_text(&w[i], TILES);
    }
    for (uint32_t k = 0; k < 5; k++) {
        share_decode(&w[0], 3, 1, 5000 + k);
        share_decode(&w[1], 3, 1, 5000 + k);
        share_decode(&plain, 3, 1, 5000 + k);
    }
    for (uint32_t i = 0; i < 2; i++)
        fx_ok(fx_sync(&w[i]), "sync");
    fx_ok(fx_sync(&plain), "sync");
    assert_near(&w[0], &plain);
    assert_true(fx_same(&w[0], &w[1]));
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(fx_stats(&w[i]).cpu_late_bytes, 0);
        fx_close(&w[i]);
    }
    fx_close(&plain);
}

/* Aborted with a job out: the next step's wait for it, and it comes to nothing. */
static void test_aborted(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < n_executors(); i++) {
        fx w, plain;
        const fx_model m = share_model(executors[i], 2, 8), without = share_model(FX_HOST, 0, 0);
        fx_open(&w, &m);
        fx_open(&plain, &without);
        share_text(&w, TILES);
        share_text(&plain, TILES);
        for (uint32_t k = 0; k < 6; k++) {
            const fx_entry e = {.seq = 0, .rows = 1, .tag = 7000, .regime = RKV_REGIME_DECODE};
            fx_ok(fx_begin(&w, &e, 1), "begin");
            if (k % 3)
                fx_ok(fx_attend(&w, 0), "attend");
            w.cache->cpu.is_out = w.cache->cpu.is_out || k % 3 == 1; /* as if a call had failed after publish */
            fx_ok(fx_abort(&w), "abort");
            step_both(&w, &plain, 1, 1, 8000 + k);
            assert_near(&w, &plain);
        }
        assert_int_equal(fx_stats(&w).cpu_late_bytes, 0);
        fx_close(&w);
        fx_close(&plain);
    }
}

/* Each launch of a step fails in turn: between publish and await too. */
static void test_failed_launches(void **state)
{
    (void)state;
    fx w, plain;
    const fx_model m = share_model(FX_CHECK, 2, 8), without = share_model(FX_HOST, 0, 0);
    if (fx_gpu)
        return;
    fx_open(&w, &m);
    fx_open(&plain, &without);
    share_text(&w, TILES);
    share_text(&plain, TILES);
    for (uint32_t nth = 1; nth < 36; nth += 1 + nth / 12) {
        const fx_entry e = {.seq = 0, .rows = 1, .tag = 7000, .regime = RKV_REGIME_DECODE};
        rkv_status s = RKV_OK;
        fx_ok(fx_begin(&w, &e, 1), "begin");
        rkvi_device_fail_call(w.core, RKVI_CALL_LAUNCH, nth, RKV_E_DEVICE_CALL);
        for (uint32_t site = 0; site < m.n_sites && s == RKV_OK; site++)
            s = fx_attend(&w, site);
        rkvi_device_fail_call(w.core, RKVI_CALL_LAUNCH, 0, RKV_OK);
        fx_ok(fx_abort(&w), "abort");
        step_both(&w, &plain, 1, 1, 8000 + nth);
        assert_near(&w, &plain);
    }
    assert_int_equal(fx_stats(&w).cpu_late_bytes, 0);
    fx_close(&w);
    fx_close(&plain);
}

/* Destroyed with jobs out, by threads that come, don't, or are slow. */
static void test_destroyed(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 3; k++) {
        fx w, plain;
        absence a = {.is_gone = k == 1, .most_ns = k == 2 ? LIMIT_NS : 0};
        open_late(&w, &plain, k ? FX_HOST : FX_CHECK, &a);
        for (uint32_t i = 0; i < 2; i++)
            share_decode(&w, 3, 1, 5000 + i);
        if (fx_gpu)
            fx_ok(fx_sync(&w), "sync"); /* the fixture's tensors go */
        fx_close(&w);
        fx_close(&plain);
    }
}

/* A fault in each of a step's operations: all calls say so, and nothing hangs. */
static void test_poisoned(void **state)
{
    (void)state;
    for (uint32_t nth = 1; nth < 16 && !fx_gpu; nth += 5) {
        fx w, plain;
        absence a = {.is_gone = nth == 6};
        rkv_status s = RKV_OK;
        const fx_entry e = {.seq = 0, .rows = 1, .tag = 7000, .regime = RKV_REGIME_DECODE};
        open_late(&w, &plain, nth % 3 ? FX_HOST : FX_SIM, &a);
        fx_ok(fx_sync(&w), "sync");
        rkvi_device_fault_op(w.core, nth);
        for (uint32_t k = 0; k < 5 && s == RKV_OK; k++) {
            s = fx_begin(&w, &e, 1);
            for (uint32_t site = 0; site < w.model.n_sites && s == RKV_OK; site++)
                s = fx_attend(&w, site);
            if (s == RKV_OK)
                s = fx_end(&w, NULL, 0);
            if (s == RKV_OK)
                s = fx_sync(&w);
        }
        assert_int_equal(s, RKV_E_POISONED);
        fx_close(&w);
        fx_close(&plain);
    }
}

int main(void)
{
#ifdef FX_ON_GPU
    fx_use_gpu();
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_killed),  cmocka_unit_test(test_held),           cmocka_unit_test(test_delayed),
        cmocka_unit_test(test_crowded), cmocka_unit_test(test_aborted),        cmocka_unit_test(test_failed_launches),
        cmocka_unit_test(test_destroyed), cmocka_unit_test(test_poisoned),
    };
    seed = fx_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
