/* SPDX-License-Identifier: MIT
 *
 * Device calls that fail: a script of prefill, decode with demotion, roll-back
 * with bringing back, an aborted step, clear and refill is run while calls of
 * one kind fail.  Each failure gives an error with a sentence, the step is
 * aborted where one is open and then run again, and every output has the bits
 * of an untouched run.  A fault of enqueued work ends the cache instead.
 *
 * ROLLKV_TEST_SEED sets the seed, ROLLKV_TEST_FULL=1 fails each call in turn.
 */
#include "step_fixture.h"

#include "device_check.h"
#include "rollkv/cells.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define STEPS_MAX 128u
static uint64_t seed;

/* ---------------------------------------------------------------- the script */

typedef struct script {
    fx w;
    uint64_t digests[STEPS_MAX];
    uint32_t n;             /* steps done */
    rkvi_device_call kind;  /* that fails */
    uint64_t random;        /* 0: the order was given by the caller, once */
    uint32_t failures;
    bool poisoned;          /* the script ends early */
} script;

static fx_model model(fx_executor executor, uint64_t s)
{
    fx_model m = fx_model_make(16, 0, 512);
    fx_add_layer(&m, 2, 64, 64, RKV_RESIDENT_NONE);
    fx_add_layer(&m, 1, 96, 64, 16);
    fx_add_site(&m, 0, 2);
    m.params.n_sequences = 2;
    m.params.max_rows = 48;
    m.params.draft_rows = 4;
    m.params.ring_bytes = 40960;
    m.executor = executor;
    m.seed = s;
    return m;
}

static void digest(script *t)
{
    uint64_t x = 0xcbf29ce484222325u;
    for (uint32_t s = 0; s < t->w.model.n_sites; s++) {
        for (uint64_t i = 0; i < t->w.out[s].size_bytes; i++)
            x = (x ^ t->w.out[s].bytes[i]) * 0x100000001b3u;
        const unsigned char *lse = (const unsigned char *)t->w.lse[s];
        for (uint64_t i = 0; i < sizeof(float) * t->w.n_rows * t->w.model.sites[s].n_q_heads; i++)
            x = (x ^ lse[i]) * 0x100000001b3u;
    }
    assert_true(t->n < STEPS_MAX);
    t->digests[t->n++] = x;
}

static void arm(script *t)
{
    if (t->random)
        rkvi_device_fail_call(t->w.core, t->kind, 1 + fx_random(&t->random) % 60, RKV_E_DEVICE_CALL);
}

/* True: the call failed as it should, and the step is to be run again. */
static bool failed(script *t, rkv_status s)
{
    if (s == RKV_OK)
        return false;
    assert_true(strlen(rkv_error_message()) > 10);
    t->failures++;
    if (s == RKV_E_POISONED)
        t->poisoned = true;
    else
        assert_int_equal(s, RKV_E_DEVICE_CALL);
    return true;
}

static rkv_status run_sites(script *t, uint32_t n_sites)
{
    rkv_status s = RKV_OK;
    for (uint32_t site = 0; site < n_sites && s == RKV_OK; site++)
        s = fx_attend(&t->w, site);
    return s;
}

/* A step, again and again until it works; n_sites less than all: aborted. */
static void step(script *t, const fx_entry *e, uint32_t n, uint32_t n_sites)
{
    const bool aborts = n_sites < t->w.model.n_sites;
    for (bool again = true; again && !t->poisoned;) {
        again = failed(t, fx_begin(&t->w, e, n));
        if (again)
            continue;
        again = failed(t, run_sites(t, n_sites));
        if (!again && !aborts)
            again = failed(t, fx_end(&t->w, NULL, 0));
        if (again || aborts) {
            const rkv_status s = fx_abort(&t->w);
            assert_true(s == RKV_OK || (s == RKV_E_POISONED && t->poisoned));
        }
    }
    if (t->poisoned || aborts)
        return;
    while (failed(t, fx_sync(&t->w)))
        if (t->poisoned)
            return;
    digest(t);
    if (t->failures)
        arm(t);
}

static void append(script *t, uint32_t seq, uint32_t rows, uint32_t regime, uint64_t tag)
{
    const fx_entry e = {.seq = seq, .rows = rows, .regime = regime, .tag = tag};
    if (!t->poisoned)
        step(t, &e, 1, t->w.model.n_sites);
}

static void decode_both(script *t, uint32_t steps, uint64_t tag)
{
    for (uint32_t i = 0; i < steps && !t->poisoned; i++) {
        const fx_entry e[2] = {{.seq = 0, .rows = 1 + i % 3, .tag = tag + 10 * i},
                               {.seq = 1, .rows = 1, .tag = tag + 5000 + i}};
        step(t, e, 2, t->w.model.n_sites);
    }
}

static void run(script *t)
{
    arm(t);
    append(t, 0, 48, RKV_REGIME_PREFILL, 100);
    append(t, 1, 37, RKV_REGIME_PREFILL, 200);
    append(t, 0, 40, RKV_REGIME_PREFILL, 300);
    decode_both(t, 12, 1000);
    if (!t->poisoned)
        fx_truncate(&t->w, 0, 40); /* into a demoted tile */
    const fx_entry e = {.seq = 0, .rows = 3, .tag = 400};
    if (!t->poisoned)
        step(t, &e, 1, 1); /* brought back, stored in one layer, aborted */
    decode_both(t, 12, 2000);
    if (!t->poisoned)
        fx_clear(&t->w, 1);
    append(t, 1, 48, RKV_REGIME_PREFILL, 500);
    append(t, 1, 30, RKV_REGIME_PREFILL, 600);
    decode_both(t, 16, 3000);
    if (!t->poisoned)
        rkvi_device_fail_call(t->w.core, t->kind, 0, RKV_OK);
}

static void reference(script *t)
{
    const fx_model m = model(FX_HOST, 1);
    *t = (script){0};
    fx_open(&t->w, &m);
    run(t);
    const rkv_cache_stats s = fx_stats(&t->w);
    assert_true(s.streamed_bytes > 0 && s.demoted_bytes > 0 && s.brought_back_bytes > 0 && s.aborted_steps == 1);
    fx_check_empty(&t->w);
    fx_close(&t->w);
}

static void compare(const script *want, const script *got)
{
    assert_int_equal(got->n, want->n);
    for (uint32_t i = 0; i < want->n; i++)
        if (got->digests[i] != want->digests[i])
            fail_msg("kind %d: step %u has other bits", (int)got->kind, i);
}

/* ------------------------------------------------------------------ failures */

static const rkvi_device_call kinds[] = {RKVI_CALL_COPY,       RKVI_CALL_LAUNCH,     RKVI_CALL_EVENT_RECORD,
                                         RKVI_CALL_STREAM_WAIT, RKVI_CALL_EVENT_SYNC, RKVI_CALL_ANY};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* Many failures in one run. */
static void test_failures_at_random(void **state)
{
    (void)state;
    static const fx_executor executors[] = {FX_HOST, FX_SIM, FX_CHECK};
    script want;
    reference(&want);
    for (uint32_t k = 0; k < N_KINDS; k++) {
        uint32_t failures = 0;
        for (uint32_t i = 0; i < (fx_is_full() ? 200u : 9u); i++) {
            const fx_model m = model(executors[i % 3], seed + i);
            script t = {.kind = kinds[k], .random = seed * 1000 + k * 100 + i};
            fx_open(&t.w, &m);
            run(&t);
            if (!t.poisoned) { /* a failure while a failure is taken back */
                compare(&want, &t);
                fx_check_empty(&t.w);
                failures += t.failures;
            } else {
                assert_int_equal(kinds[k], RKVI_CALL_ANY);
            }
            fx_close(&t.w);
        }
        print_message("kind %d: %u failures\n", (int)kinds[k], failures);
        assert_true(failures > 0);
    }
}

/* One failure a run, at the nth call. */
static void test_each_call_in_turn(void **state)
{
    (void)state;
    script want;
    reference(&want);
    for (uint32_t k = 0; k < N_KINDS; k++) {
        uint64_t nth = 1, runs = 0;
        for (bool hit = true; hit; runs++) {
            const fx_model m = model(runs % 2 ? FX_SIM : FX_CHECK, seed + runs);
            script t = {.kind = kinds[k]};
            fx_open(&t.w, &m);
            rkvi_device_fail_call(t.w.core, kinds[k], nth, RKV_E_DEVICE_CALL);
            run(&t);
            hit = t.failures > 0;
            compare(&want, &t);
            fx_check_empty(&t.w);
            fx_close(&t.w);
            nth += fx_is_full() ? 1 : 1 + nth / 3;
        }
        print_message("kind %d: %llu runs, up to call %llu\n", (int)kinds[k], (unsigned long long)runs,
                      (unsigned long long)nth);
    }
}

/* A step that brings tiles back: every call of it fails in turn, and the step
 * is run again. */
static bool run_brought_back(fx_executor executor, rkvi_device_call kind, uint64_t nth)
{
    const fx_model m = model(executor, seed + nth);
    script t = {.kind = kind};
    fx_open(&t.w, &m);
    append(&t, 0, 48, RKV_REGIME_PREFILL, 100);
    append(&t, 0, 48, RKV_REGIME_PREFILL, 200);
    append(&t, 0, 12, RKV_REGIME_DECODE, 300);
    append(&t, 0, 1, RKV_REGIME_DECODE, 400);
    fx_truncate(&t.w, 0, 40);
    rkvi_device_fail_call(t.w.core, kind, nth, RKV_E_DEVICE_CALL);
    append(&t, 0, 3, RKV_REGIME_DECODE, 500);
    rkvi_device_fail_call(t.w.core, kind, 0, RKV_OK);
    assert_true(fx_stats(&t.w).brought_back_bytes > 0);
    fx_compare_fresh(&t.w, 0, 8);
    append(&t, 0, 48, RKV_REGIME_PREFILL, 600);
    fx_compare_fresh(&t.w, 0, 8);
    fx_close(&t.w);
    return t.failures > 0;
}

static void test_bring_back_fails(void **state)
{
    (void)state;
    for (uint32_t k = 0; k + 1 < N_KINDS; k++) { /* one failure at a time */
        uint64_t nth = 1;
        while (run_brought_back(nth % 2 ? FX_CHECK : FX_SIM, kinds[k], nth))
            nth++;
        print_message("kind %d: %llu calls\n", (int)kinds[k], (unsigned long long)nth - 1);
        assert_true(nth > 3 || kinds[k] == RKVI_CALL_EVENT_SYNC);
    }
}

/* Each copy of end fails in turn, those of the hinted batch too, while a tile joins the window, or
 * one is promoted to it. */
static void test_end_fails(void **state)
{
    (void)state;
    uint32_t failures = 0;
    for (uint32_t i = 0; i < 2; i++) {
        fx w;
        fx_model m = model(FX_CHECK, seed + i);
        m.layers[1].resident_cells = 8 * 16;
        m.params.draft_rows = 1;
        m.params.ring_bytes = 400 << 10;
        fx_open(&w, &m);
        fx_append(&w, 0, 40, RKV_REGIME_PREFILL, 100);
        fx_append(&w, 1, 48, RKV_REGIME_PREFILL, 200);
        for (uint32_t step = 0; step < 60; step++) {
            const fx_entry e = {.rows = 2, .tag = 1000 + 10 * step}, next = {.seq = 1, .rows = 1};
            bool again = true;
            for (uint32_t tries = 0; again; tries++) {
                fx_ok(fx_begin(&w, &e, 1), "begin");
                for (uint32_t s = 0; s < m.n_sites; s++)
                    fx_ok(fx_attend(&w, s), "attend");
                rkvi_device_fail_call(w.core, RKVI_CALL_COPY, 1 + tries, RKV_E_DEVICE_CALL);
                again = fx_end(&w, i || step % 2 ? &next : NULL, i || step % 2) != RKV_OK;
                rkvi_device_fail_call(w.core, RKVI_CALL_COPY, 0, RKV_OK);
                failures += again;
                if (again)
                    fx_ok(fx_abort(&w), "abort");
            }
            fx_ok(fx_sync(&w), "sync");
        }
        fx_compare_fresh(&w, 0, 8);
        fx_compare_fresh(&w, 1, 8);
        assert_int_equal(fx_layer(&w, 1).window_tiles, 8);
        fx_check_empty(&w);
        fx_close(&w);
    }
    assert_true(failures > 20);
}

/* start fails in the middle; then the first attend, on another stream, starts
 * the step: that stream has its own edge to the step's tables. */
static void test_start_fails(void **state)
{
    (void)state;
    static const rkvi_device_call calls[] = {RKVI_CALL_STREAM_WAIT, RKVI_CALL_EVENT_RECORD};
    uint32_t failures = 0;
    for (uint32_t k = 0; k < 2; k++) {
        fx w;
        void *streams[2];
        const fx_model m = model(FX_CHECK, seed + k);
        fx_open(&w, &m);
        for (uint32_t i = 0; i < 2; i++)
            fx_ok(rkv_host_stream_create(w.cache, &streams[i]), "stream");
        fx_append(&w, 0, 48, RKV_REGIME_PREFILL, 100);
        bool fails = true;
        for (uint32_t nth = 1; fails; nth++) {
            const fx_entry e = {.rows = 1, .tag = 200 + nth};
            fx_ok(fx_begin(&w, &e, 1), "begin");
            rkvi_device_fail_call(w.core, calls[k], nth, RKV_E_DEVICE_CALL);
            fails = rkv_step_start(w.cache, streams[0]) != RKV_OK;
            rkvi_device_fail_call(w.core, calls[k], 0, RKV_OK);
            failures += fails;
            w.stream = streams[1];
            for (uint32_t s = 0; s < m.n_sites; s++)
                fx_ok(fx_attend(&w, s), "attend");
            fx_ok(fx_end(&w, NULL, 0), "end");
            fx_ok(fx_sync(&w), "sync");
            w.stream = NULL;
        }
        fx_compare_fresh(&w, 0, 8);
        for (uint32_t i = 0; i < 2; i++)
            fx_ok(rkv_host_stream_destroy(w.cache, streams[i]), "stream");
        fx_close(&w);
    }
    assert_true(failures >= 3);
}

/* Enqueued work faults: every later call says so, and destroy works. */
static void test_fault_poisons(void **state)
{
    (void)state;
    uint32_t poisoned = 0;
    for (uint32_t i = 0; i < (fx_is_full() ? 300u : 24u); i++) {
        const fx_model m = model(i % 2 ? FX_SIM : FX_HOST, seed + i);
        script t = {0};
        fx_open(&t.w, &m);
        rkvi_device_fault_op(t.w.core, 1 + 41 * i);
        run(&t);
        if (t.poisoned) {
            const fx_entry e = {.rows = 1};
            rkv_cache_stats s = {.struct_size = sizeof s};
            assert_int_equal(fx_begin(&t.w, &e, 1), RKV_E_POISONED);
            assert_int_equal(fx_begin(&t.w, &e, 1), RKV_E_POISONED);
            assert_non_null(strstr(rkv_error_message(), "destroy"));
            assert_int_equal(fx_abort(&t.w), RKV_E_POISONED);
            assert_int_equal(rkv_sequence_clear(t.w.cache, 0), RKV_E_POISONED);
            assert_int_equal(rkv_cache_clear(t.w.cache), RKV_E_POISONED);
            assert_int_equal(rkv_cache_stats_get(t.w.cache, &s), RKV_E_POISONED);
            poisoned++;
        }
        fx_close(&t.w);
    }
    assert_true(poisoned > 10);
}

/* ----------------------------------------------------------- refused memory */

/* Registration refused, wholly or beyond a cap: the tail is host_alloc'd or
 * copied through a bounce buffer. */
static void test_refused_registration(void **state)
{
    (void)state;
    script want, t;
    rkvi_device_usage u;
    reference(&want);
    fx_model m = model(FX_HOST, 1);
    fx_open(&t.w, &m);
    rkvi_device_usage_get(t.w.core, &u);
    const uint64_t beside = u.registered_bytes - fx_stats(&t.w).pinned_bytes;
    fx_close(&t.w);
    for (uint32_t i = 0; i < 6; i++) {
        m = model((fx_executor)(i / 2), seed + i);
        if (i % 2 == 0)
            m.limits.register_max_bytes = 1;
        else
            m.limits.register_total_bytes = beside + 8192;
        t = (script){0};
        fx_open(&t.w, &m);
        run(&t);
        const rkv_cache_stats s = fx_stats(&t.w);
        compare(&want, &t);
        print_message("pinned %llu, unpinned %llu bytes\n", (unsigned long long)s.pinned_bytes,
                      (unsigned long long)s.unpinned_bytes);
        assert_true(i % 2 == 0 ? s.pinned_bytes > 0 : s.unpinned_bytes > 0);
        fx_close(&t.w);
    }
}

/* Failures of host calls, on the way through the bounce buffer. */
static void test_failures_of_the_bounce(void **state)
{
    (void)state;
    script want, t = {0};
    rkvi_device_usage u;
    uint32_t failures = 0;
    reference(&want);
    fx_model m = model(FX_HOST, 1);
    fx_open(&t.w, &m);
    rkvi_device_usage_get(t.w.core, &u);
    const uint64_t beside = u.registered_bytes - fx_stats(&t.w).pinned_bytes;
    fx_close(&t.w);
    for (uint32_t i = 0; i < 12; i++) {
        m = model((fx_executor)(i % 3), seed + i);
        m.limits.register_total_bytes = beside + 8192;
        t = (script){.kind = i % 2 ? RKVI_CALL_HOST_CALL : RKVI_CALL_COPY, .random = seed * 77 + i};
        fx_open(&t.w, &m);
        run(&t);
        compare(&want, &t);
        failures += t.failures;
        fx_close(&t.w);
    }
    assert_true(failures > 20);
}

/* -------------------------------------------------------------------- limits */

static void test_limits(void **state)
{
    (void)state;
    fx w;
    fx_model m = model(FX_HOST, 1);
    m.params.device_limit_bytes = 4096;
    assert_int_equal(fx_try_open(&w, &m), RKV_E_DEVICE_LIMIT);
    assert_non_null(strstr(rkv_error_message(), "4096"));
    m = model(FX_HOST, 1);
    m.params.host_limit_bytes = 4096;
    assert_int_equal(fx_try_open(&w, &m), RKV_E_HOST_LIMIT);
    assert_non_null(strstr(rkv_error_message(), "4096"));
    m = model(FX_HOST, 1);
    m.params.ring_bytes = 256;
    assert_int_equal(fx_try_open(&w, &m), RKV_E_RING);
}

/* Capacity reached in the middle of decode: begin fails whole, again and
 * again; a clear makes room, and the other sequence has its old bits. */
static void test_capacity(void **state)
{
    (void)state;
    fx w;
    fx_model m = model(FX_CHECK, seed);
    m.params.capacity_cells = 128;
    fx_open(&w, &m);
    fx_append(&w, 0, 60, RKV_REGIME_PREFILL, 1);
    fx_append(&w, 1, 60, RKV_REGIME_PREFILL, 1000);
    const fx_entry e[2] = {{.seq = 0, .rows = 16, .tag = 5000}, {.seq = 1, .rows = 20, .tag = 6000}};
    const rkv_batch_entry two[2] = {{.struct_size = sizeof *two, .n_rows = 16, .n_new_cells = 16},
                                    {.struct_size = sizeof *two, .sequence = 1, .n_rows = 20, .n_new_cells = 20}};
    const rkv_batch batch = {.struct_size = sizeof batch, .n_entries = 2, .entries = two};
    const uint64_t tail = fx_layer(&w, 0).tail_tiles; /* more are due at the next begin that works */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(rkv_cache_check(w.cache, &batch, 1), RKV_E_CAPACITY);
        assert_int_equal(fx_begin(&w, e, 2), RKV_E_CAPACITY);
        assert_true(strlen(rkv_error_message()) > 10);
        assert_int_equal(fx_layer(&w, 0).tail_tiles, tail);
    }
    const fx_entry query = {.rows = 1, .is_query = true, .tag = 7000};
    fx_step(&w, &query, 1);
    assert_true(fx_layer(&w, 0).tail_tiles > tail);
    fx_compare_fresh(&w, 0, 2);
    fx_compare_fresh(&w, 1, 2);
    fx_clear(&w, 1);
    fx_ok(rkv_cache_check(w.cache, &batch, 1), "check");
    fx_step(&w, e, 2);
    fx_compare_fresh(&w, 0, 2);
    fx_compare_fresh(&w, 1, 2);
    fx_close(&w);
}

/* Positions with gaps: check counts the separate runs too, over all batches. */
static void test_segments(void **state)
{
    (void)state;
    fx w;
    enum { ROWS = 1000, BATCHES = 5 };
    static int64_t positions[BATCHES][ROWS];
    rkv_batch_entry e[BATCHES];
    rkv_batch b[BATCHES];
    fx_model m = fx_model_make(16, 8, 16 * 320);
    fx_open(&w, &m);
    for (uint32_t i = 0; i < BATCHES; i++) {
        for (uint32_t r = 0; r < ROWS; r++)
            positions[i][r] = 2 * (int64_t)(i * ROWS + r);
        e[i] = (rkv_batch_entry){.struct_size = sizeof *e, .n_rows = ROWS, .n_new_cells = ROWS,
                                 .positions = positions[i]};
        b[i] = (rkv_batch){.struct_size = sizeof *b, .n_entries = 1, .entries = &e[i]};
    }
    fx_ok(rkv_cache_check(w.cache, b, BATCHES - 1), "check");
    assert_int_equal(rkv_cache_check(w.cache, b, BATCHES), RKV_E_CAPACITY);
    assert_non_null(strstr(rkv_error_message(), "separate runs"));
    for (uint32_t i = 0; i < BATCHES; i++) {
        const fx_entry step = {.rows = ROWS, .tag = 1 + i * ROWS, .positions = positions[i]};
        if (i < BATCHES - 1)
            fx_step(&w, &step, 1);
        else
            assert_int_equal(fx_begin(&w, &step, 1), RKV_E_CAPACITY);
    }
    assert_int_equal(rkv_import_begin(w.cache, 0, ROWS, positions[BATCHES - 1]), RKV_E_CAPACITY);
    assert_non_null(strstr(rkv_error_message(), "separate runs of cells"));
    fx_close(&w);
}

int main(void)
{
    seed = fx_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_failures_at_random),     cmocka_unit_test(test_each_call_in_turn),
        cmocka_unit_test(test_bring_back_fails),       cmocka_unit_test(test_end_fails),
        cmocka_unit_test(test_fault_poisons),          cmocka_unit_test(test_refused_registration),
        cmocka_unit_test(test_failures_of_the_bounce), cmocka_unit_test(test_limits),
        cmocka_unit_test(test_capacity),               cmocka_unit_test(test_segments),
        cmocka_unit_test(test_start_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
