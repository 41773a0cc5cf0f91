/* SPDX-License-Identifier: MIT
 *
 * Host memory, mappings and threads that the system refuses, within each call of
 * the API: an error with a sentence or a way around, nothing left, the cache as
 * before, and the same call then succeeds.
 *
 * The linker wraps malloc and its kin, and the API's own entry points: what is
 * asked for between a call's begin and end, on the calling thread, is counted.
 * Refused: the nth of it alone, or all from the nth on until the call ends.
 */
#include "rollkv/cells.h"
#include "rollkv/profile.h"
#include "fault_scripts.h"
#include "rollkv/state.h"

#include "api_internal.h"
#include "device_sim.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

/* ------------------------------------------------------------------- refusal */

static _Thread_local uint32_t depth; /* of API calls */
static _Thread_local uint64_t countdown; /* 0: nothing is refused */
static _Thread_local bool goes_on, was_hit;
static _Thread_local uint64_t n_asked;

static bool refused(void)
{
    if (depth == 0)
        return false;
    n_asked++;
    if (countdown == 0 || --countdown > 0)
        return false;
    was_hit = true;
    countdown = goes_on ? 1 : 0;
    errno = ENOMEM;
    return true;
}

static void arm(uint64_t nth, bool all)
{
    countdown = nth;
    goes_on = all;
    was_hit = false;
}

#define WRAP_MEMORY(type, name, params, args, none) \
    type __real_##name params;                      \
    type __wrap_##name params;                      \
    type __wrap_##name params                       \
    {                                               \
        return refused() ? none : __real_##name args; \
    }
WRAP_MEMORY(void *, malloc, (size_t n), (n), NULL)
WRAP_MEMORY(void *, calloc, (size_t n, size_t m), (n, m), NULL)
WRAP_MEMORY(void *, realloc, (void *p, size_t n), (p, n), NULL)
WRAP_MEMORY(char *, strdup, (const char *s), (s), NULL)
WRAP_MEMORY(char *, strndup, (const char *s, size_t n), (s, n), NULL)
WRAP_MEMORY(void *, mmap, (void *p, size_t n, int a, int b, int fd, off_t at), (p, n, a, b, fd, at), MAP_FAILED)
WRAP_MEMORY(int, pthread_create, (pthread_t *t, const pthread_attr_t *a, void *(*fn)(void *), void *arg),
            (t, a, fn, arg), EAGAIN)

/* A refusal that goes on ends with the call. */
static rkv_status leave(rkv_status s)
{
    if (--depth == 0 && was_hit)
        countdown = 0;
    return s;
}
#define WRAP_CALL(name, params, args)       \
    rkv_status __real_##name params;        \
    rkv_status __wrap_##name params;        \
    rkv_status __wrap_##name params         \
    {                                       \
        depth++;                            \
        return leave(__real_##name args);   \
    }
WRAP_CALL(rkvi_api_create_on, (const rkv_cache_params *p, rkvi_device *d, rkv_cache **out), (p, d, out))
WRAP_CALL(rkv_cache_create, (const rkv_cache_params *p, rkv_cache **out), (p, out))
WRAP_CALL(rkv_cache_estimate, (const rkv_cache_params *p, rkv_estimate *out), (p, out))
WRAP_CALL(rkv_cache_check, (const rkv_cache *c, const rkv_batch *b, uint32_t n), (c, b, n))
WRAP_CALL(rkv_cache_set_residency, (rkv_cache *c, uint32_t layer, uint64_t cells), (c, layer, cells))
WRAP_CALL(rkv_step_begin, (rkv_cache *c, const rkv_batch *b), (c, b))
WRAP_CALL(rkv_step_attend, (rkv_cache *c, const rkv_attend_params *p, void *s), (c, p, s))
WRAP_CALL(rkv_step_end, (rkv_cache *c, const rkv_batch *b, void *s), (c, b, s))
WRAP_CALL(rkv_step_abort, (rkv_cache *c), (c))
WRAP_CALL(rkv_sequence_remove, (rkv_cache *c, uint32_t q, int64_t from, int64_t to), (c, q, from, to))
WRAP_CALL(rkv_sequence_keep, (rkv_cache *c, uint32_t q), (c, q))
WRAP_CALL(rkv_sequence_clear, (rkv_cache *c, uint32_t q), (c, q))
WRAP_CALL(rkv_sequence_append_from, (rkv_cache *c, uint32_t dst, uint32_t src, int64_t from, int64_t to),
          (c, dst, src, from, to))
WRAP_CALL(rkv_sequence_shift, (rkv_cache *c, uint32_t q, int64_t from, int64_t to, int64_t d), (c, q, from, to, d))
WRAP_CALL(rkv_sequence_park, (rkv_cache *c, uint32_t q), (c, q))
WRAP_CALL(rkv_sequence_fetch, (rkv_cache *c, uint32_t q), (c, q))
WRAP_CALL(rkv_sequence_compact, (rkv_cache *c, uint32_t q), (c, q))
WRAP_CALL(rkv_sequence_accept, (rkv_cache *c, uint32_t q, const uint32_t *at, uint32_t n, void *s), (c, q, at, n, s))
WRAP_CALL(rkv_state_save, (rkv_cache *c, const rkv_state_params *p), (c, p))
WRAP_CALL(rkv_state_load, (rkv_cache *c, const rkv_state_params *p), (c, p))
WRAP_CALL(rkv_state_save_file, (rkv_cache *c, const rkv_state_params *p, const char *path), (c, p, path))
WRAP_CALL(rkv_state_load_file, (rkv_cache *c, const rkv_state_params *p, const char *path), (c, p, path))
WRAP_CALL(rkv_export_cells, (rkv_cache *c, uint32_t q, const rkv_pos_range *r, const rkv_cells *k, void *s),
          (c, q, r, k, s))
WRAP_CALL(rkv_import_begin, (rkv_cache *c, uint32_t q, uint64_t n, const int64_t *pos), (c, q, n, pos))
WRAP_CALL(rkv_import_cells, (rkv_cache *c, const rkv_cells *k, void *s), (c, k, s))

/* ---------------------------------------------------------------- the scripts */

static uint32_t n_failed, n_ended;
static bool failing_calls; /* device calls fail, not requests for memory */
static jmp_buf ended; /* moves of accept that stop halfway, or a refusal while another one is taken back */

/* True: it failed as it may, and is to be called again. */
static bool again(rkv_status s)
{
    if (s == RKV_OK)
        return false;
    if (s == RKV_E_POISONED)
        longjmp(ended, 1);
    if (s != (failing_calls ? RKV_E_DEVICE_CALL : RKV_E_HOST_MEMORY) && s != RKV_E_SYSTEM && s != RKV_E_IO)
        fail_msg("status %d: %s", s, rkv_error_message());
    assert_true(was_hit || failing_calls);
    assert_true(strlen(rkv_error_message()) > 10);
    n_failed++;
    return true;
}


/* Each request in turn; true: it was reached. */
static bool run(fs_script script, uint64_t nth, bool all)
{
    static fx w;
    const fx_model m = fs_model();
    fx_open(&w, &m);
    arm(nth, all);
    if (setjmp(ended)) {
        arm(0, false);
        depth = 0;
        n_ended++;
        assert_int_equal(rkv_cache_clear(w.cache), RKV_E_POISONED);
        fx_close(&w);
        return true;
    }
    script(&w);
    const bool hit = was_hit;
    arm(0, false);
    fx_compare_fresh(&w, 0, 4);
    fx_compare_fresh(&w, 1, 4);
    fx_check_empty(&w);
    fx_close(&w);
    return hit;
}

static void test_calls(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < FS_SCRIPTS; i++)
        for (int all = 0; all < 2; all++) {
            uint64_t nth = 1, runs = 0;
            n_failed = n_ended = 0;
            for (; run(fs_scripts[i], nth, all); runs++)
                nth += fx_is_full() || nth < 60 ? 1 : 1 + nth / 8;
            print_message("script %u: %llu requests refused in turn%s, %u calls failed, %u caches ended\n", i,
                          (unsigned long long)runs, all ? " and all after it" : "", n_failed, n_ended);
            assert_true(runs > 0);
        }
}

/* All that a call asks for is refused: remove, shift, keep and clear succeed, whatever
 * room a sequence has just left.  Memory is there again before the next round. */
static void test_needs_none(void **state)
{
    (void)state;
    fx w;
    fx_model m = fs_model();
    uint64_t n_hits = 0;
    m.params.max_turns = 200;
    fx_open(&w, &m);
    fx_append(&w, 0, 600, RKV_REGIME_PREFILL, 1);
    fx_append(&w, 1, 30, RKV_REGIME_PREFILL, 1000);
    rkv_sequence_state q = {.struct_size = sizeof q};
    for (int64_t at = 0; at + 12 < 600; at += 10) {
        arm(1, true);
        fx_ok(rkv_sequence_remove(w.cache, 0, at + 2, at + 4), "remove");
        n_hits += was_hit;
        arm(1, true);
        fx_ok(rkv_sequence_shift(w.cache, 0, at + 4, at + 7, -1), "shift");
        n_hits += was_hit;
        arm(1, true);
        fx_ok(rkv_sequence_remove(w.cache, 0, at + 8, at + 9), "remove");
        n_hits += was_hit;
        arm(0, false);
        fx_ok(rkv_sequence_remove(w.cache, 0, at + 2, at + 3), "remove"); /* nothing: takes room anew */
    }
    fx_ok(rkv_sequence_info(w.cache, 0, &q), "info");
    assert_int_equal(q.n_cells, 600 - 3 * 59);
    assert_true(q.n_segments > 3 * 59);
    assert_true(n_hits > 3);
    arm(1, true);
    fx_ok(rkv_sequence_keep(w.cache, 1), "keep");
    fx_ok(rkv_sequence_clear(w.cache, 1), "clear");
    assert_false(was_hit);
    arm(0, false);
    fx_close(&w);
}

/* The nth device call of a kind fails. */
static bool run_call(fs_script script, rkvi_device_call kind, uint64_t nth)
{
    static fx w;
    fx_model m = fs_model();
    m.executor = FX_CHECK;
    m.seed = nth;
    fx_open(&w, &m);
    const uint64_t before = rkvi_device_calls(w.core, kind);
    rkvi_device_fail_call(w.core, kind, nth, RKV_E_DEVICE_CALL);
    if (setjmp(ended)) {
        n_ended++;
        assert_int_equal(rkv_cache_clear(w.cache), RKV_E_POISONED);
        fx_close(&w);
        return true;
    }
    script(&w);
    const bool hit = rkvi_device_calls(w.core, kind) - before >= nth;
    rkvi_device_fail_call(w.core, kind, 0, RKV_OK);
    fx_compare_fresh(&w, 0, 4);
    fx_compare_fresh(&w, 1, 4);
    fx_check_empty(&w);
    fx_close(&w);
    return hit;
}

static void test_device_calls(void **state)
{
    (void)state;
    static const rkvi_device_call kinds[] = {RKVI_CALL_COPY,          RKVI_CALL_LAUNCH,      RKVI_CALL_EVENT_RECORD,
                                             RKVI_CALL_STREAM_WAIT,   RKVI_CALL_EVENT_SYNC,  RKVI_CALL_MEM_ALLOC,
                                             RKVI_CALL_HOST_REGISTER, RKVI_CALL_STREAM_SYNC, RKVI_CALL_HOST_ALLOC};
    failing_calls = true;
    for (uint32_t i = 0; i < FS_SCRIPTS; i++) {
        uint64_t runs = 0;
        n_failed = n_ended = 0;
        for (uint32_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            for (uint64_t nth = 1; run_call(fs_scripts[i], kinds[k], nth); runs++)
                nth += fx_is_full() ? 1 : 1 + nth / 4;
        print_message("script %u: %llu device calls failed in turn, %u calls failed, %u caches ended\n", i,
                      (unsigned long long)runs, n_failed, n_ended);
        assert_true(n_failed > 0);
    }
    failing_calls = false;
}

/* Creation leaves nothing: the executor, threads and all (LeakSanitizer sees the rest). */
static void test_create(void **state)
{
    (void)state;
    fx_model m = fs_model();
    m.params.kv_layers = m.layers;
    m.params.sites = m.sites;
    m.params.n_kv_layers = m.n_layers;
    m.params.n_sites = m.n_sites;
    m.params.device = RKV_DEVICE_HOST;
    m.params.host.n_threads = 2;
    for (int all = 0; all < 2; all++) {
        uint64_t nth = 1;
        n_failed = 0;
        for (bool hit = true; hit; nth += fx_is_full() || nth < 200 ? 1 : 1 + nth / 16) {
            rkv_cache *cache = NULL;
            arm(nth, all);
            const rkv_status s = rkv_cache_create(&m.params, &cache);
            hit = was_hit;
            if (again(s))
                assert_null(cache);
            else
                rkv_cache_destroy(cache);
        }
        print_message("create: %llu requests refused in turn, %u failed\n", (unsigned long long)nth, n_failed);
        assert_true(n_failed > 50);
    }
    rkv_estimate e = {.struct_size = sizeof e};
    for (uint64_t nth = 1; arm(nth, false), again(rkv_cache_estimate(&m.params, &e)) || was_hit; nth++) {
    }
    arm(0, false);
}

/* And of one whose link is measured first: what is refused for that costs the rate alone. */
static void test_create_measuring(void **state)
{
    (void)state;
    static rkvi_ops ops;
    fx_model m = fs_model();
    m.params.kv_layers = m.layers;
    m.params.sites = m.sites;
    m.params.n_kv_layers = m.n_layers;
    m.params.n_sites = m.n_sites;
    rkvi_ops_best(&ops, NULL);
    const rkvi_device_sim_settings settings = {.h2d.bytes_per_s = 1000000000, .hides_link = true};
    for (int all = 0; all < 2; all++) {
        uint64_t nth = 1, n_without = 0;
        n_failed = 0;
        for (bool hit = true; hit; nth += fx_is_full() || nth < 200 ? 1 : 1 + nth / 16) {
            rkvi_device *dev = NULL;
            rkv_cache *cache = NULL;
            rkv_cache_info info = {.struct_size = sizeof info};
            fx_ok(rkvi_device_sim_create(&settings, &ops, &dev), "device_sim");
            arm(nth, all);
            const rkv_status s = rkvi_api_create_on(&m.params, dev, &cache);
            hit = was_hit;
            arm(0, false);
            if (s != RKV_OK) {
                was_hit = hit;
                assert_true(again(s) && !cache);
                fx_nothing_left(dev);
                rkvi_dev_destroy(dev);
                continue;
            }
            fx_ok(rkv_cache_info_get(cache, &info), "info");
            n_without += !info.link_is_measured;
            assert_true(hit || info.link_is_measured);
            rkv_cache_destroy(cache);
        }
        print_message("create, measuring: %llu requests refused in turn, %u failed, %llu without the rate\n",
                      (unsigned long long)nth, n_failed, (unsigned long long)n_without);
        assert_true(n_failed > 20 && (all || n_without > 3));
    }
}

int main(void)
{
    fs_failed = again;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_create),
        cmocka_unit_test(test_create_measuring),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_needs_none),
        cmocka_unit_test(test_device_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
