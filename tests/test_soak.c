/* SPDX-License-Identifier: MIT
 *
 * Long use on the threaded executor: several steps in flight under random
 * delays, another thread asking all the time, two caches on two threads,
 * destroy with work pending, create and destroy again and again, and a fork.
 *
 * ROLLKV_TEST_SEED sets the seed, ROLLKV_TEST_FULL=1 runs 10,000 steps.
 */
#include "step_fixture.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define CELLS_MOST 400u

/* ASan keeps freed memory for a while, and looks for leaks at a child's exit,
 * where the threads' memory has no owner. */
#if defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#endif
#endif
#ifndef HAS_ASAN
#define HAS_ASAN 0
#endif

static uint64_t seed;

static fx_model model(uint64_t s)
{
    fx_model m = fx_model_make(16, 0, 3 * CELLS_MOST);
    fx_add_layer(&m, 1, 64, 64, RKV_RESIDENT_NONE);
    fx_add_layer(&m, 1, 32, 32, 5 * 16);
    fx_add_site(&m, 0, 1);
    m.layers[1].type_k = m.layers[1].type_v = RKV_TYPE_Q8_0;
    m.params.n_sequences = 3;
    m.params.max_rows = 100;
    m.params.steps_ahead = 1 + (uint32_t)(s % 4);
    m.params.ring_bytes = s % 2 ? 3 * 4096 : 40960;
    m.n_workers = 2;
    m.delay_ns = 20000;
    m.seed = s;
    return m;
}

static uint32_t below(uint64_t *r, uint32_t n)
{
    return (uint32_t)(fx_random(r) % n);
}

/* One random thing; up to 8 steps are in flight before the results are read. */
typedef struct walk {
    fx w;
    uint64_t random, tag;
    uint32_t in_flight;
} walk;

/* A failure on a second thread can't use CMocka's long jump. */
static void must(rkv_status s, const char *what)
{
    if (s == RKV_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, rkv_status_name(s), rkv_error_message());
    abort();
}

static void cut(walk *k, uint32_t seq)
{
    fx *w = &k->w;
    const uint64_t n = w->n_cells[seq];
    const uint64_t left = below(&k->random, 3) ? n - below(&k->random, (uint32_t)n + 1) : 0;
    must(rkv_sequence_remove(w->cache, seq, (int64_t)left, RKV_POS_END), "remove");
    w->n_cells[seq] = left;
}

static uint32_t choose(walk *k, fx_entry *e)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < 3; s++) {
        const uint32_t rows = below(&k->random, 6) ? 1 + below(&k->random, 3) : 1 + below(&k->random, 33);
        if (k->w.n_cells[s] + rows > CELLS_MOST)
            cut(k, s);
        if (below(&k->random, 4) == 0 || k->w.n_cells[s] + rows > CELLS_MOST)
            continue;
        e[n++] = (fx_entry){.seq = s, .rows = rows, .tag = k->tag};
        k->tag += 64;
    }
    return n;
}

static void drain(walk *k)
{
    must(fx_sync(&k->w), "sync");
    for (uint32_t i = 0; i < k->w.n_old; i++)
        free(k->w.old[i]);
    k->w.n_old = k->in_flight = 0;
}

static void walk_step(walk *k)
{
    fx_entry e[FX_SEQS];
    const uint32_t n = choose(k, e);
    if (n == 0)
        return;
    const bool aborts = below(&k->random, 10) == 0;
    const uint32_t n_sites = aborts ? below(&k->random, k->w.model.n_sites + 1) : k->w.model.n_sites;
    must(fx_begin(&k->w, e, n), "begin");
    for (uint32_t s = 0; s < n_sites; s++)
        must(fx_attend(&k->w, s), "attend");
    must(aborts ? fx_abort(&k->w) : fx_end(&k->w, NULL, 0), aborts ? "abort" : "end");
    if (++k->in_flight == 8)
        drain(k);
}

/* What a sequence holds gives the bits of a fresh cache. */
static void settle(walk *k)
{
    drain(k);
    for (uint32_t s = 0; s < 3; s++)
        if (k->w.n_cells[s])
            fx_compare_fresh(&k->w, s, 4);
    drain(k);
}

/* ---------------------------------------------------------------------- soak */

typedef struct asker {
    const rkv_cache *cache;
    atomic_bool stop;
    uint64_t asked;
} asker;

static void *ask(void *arg)
{
    asker *a = arg;
    uint64_t streamed = 0;
    while (!atomic_load(&a->stop)) {
        rkv_cache_stats s = {.struct_size = sizeof s};
        rkv_cache_info i = {.struct_size = sizeof i};
        rkv_kv_layer_info l = {.struct_size = sizeof l};
        rkv_sequence_state q = {.struct_size = sizeof q};
        must(rkv_cache_stats_get(a->cache, &s), "stats");
        must(rkv_cache_info_get(a->cache, &i), "info");
        must(rkv_kv_layer_info_get(a->cache, (uint32_t)(a->asked % 2), &l), "layer info");
        must(rkv_sequence_info(a->cache, (uint32_t)(a->asked % 3), &q), "sequence info");
        if (s.streamed_bytes < streamed || l.window_tiles > 5 || q.n_cells > 2 * CELLS_MOST)
            abort();
        streamed = s.streamed_bytes;
        a->asked++;
        usleep(50);
    }
    return NULL;
}

static void test_soak(void **state)
{
    (void)state;
    const uint32_t steps = fx_is_full() ? 10000 : 300;
    walk k = {.random = seed, .tag = 1};
    asker a = {0};
    pthread_t thread;
    const fx_model m = model(seed);
    fx_open(&k.w, &m);
    a.cache = k.w.cache;
    assert_int_equal(pthread_create(&thread, NULL, ask, &a), 0);
    for (uint32_t i = 0; i < steps; i++) {
        walk_step(&k);
        if (i % (steps / 6) == steps / 6 - 1)
            settle(&k);
    }
    settle(&k);
    atomic_store(&a.stop, true);
    pthread_join(thread, NULL);
    const rkv_cache_stats s = fx_stats(&k.w);
    print_message("%u steps, %llu aborted, %llu MB streamed, %llu tile-layers demoted, %llu promoted, %llu MB "
                  "brought back; asked %llu times\n",
                  steps, (unsigned long long)s.aborted_steps, (unsigned long long)(s.streamed_bytes >> 20),
                  (unsigned long long)s.demoted_tile_layers, (unsigned long long)s.promoted_tile_layers,
                  (unsigned long long)(s.brought_back_bytes >> 20), (unsigned long long)a.asked);
    assert_true(s.streamed_bytes > 0 && s.promoted_tile_layers > 0 && s.brought_back_bytes > 0);
    fx_check_empty(&k.w);
    fx_close(&k.w);
}

static void *walk_alone(void *arg)
{
    walk *k = arg;
    const uint32_t steps = fx_is_full() ? 2000 : 80;
    for (uint32_t i = 0; i < steps; i++)
        walk_step(k);
    drain(k);
    return NULL;
}

static void test_two_caches(void **state)
{
    (void)state;
    walk k[2];
    pthread_t threads[2];
    for (uint32_t i = 0; i < 2; i++) {
        const fx_model m = model(seed + 1 + i);
        k[i] = (walk){.random = seed + 10 + i, .tag = 1};
        fx_open(&k[i].w, &m);
    }
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, walk_alone, &k[i]), 0);
    for (uint32_t i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < 2; i++) {
        settle(&k[i]);
        fx_check_empty(&k[i].w);
        fx_close(&k[i].w);
    }
}

/* --------------------------------------------------------- create and destroy */

static uint64_t resident_bytes(void)
{
    unsigned long long total = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%llu %llu", &total, &resident), 2);
    fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* The executor checks that nothing is held when it is destroyed. */
static void test_cycles(void **state)
{
    (void)state;
    const uint32_t cycles = fx_is_full() ? 500 : 50;
    uint64_t warm = 0;
    for (uint32_t i = 0; i < cycles; i++) {
        const fx_model m = model(seed + i);
        walk k = {.random = seed + i, .tag = 1};
        fx_open(&k.w, &m);
        for (uint32_t j = 0; j < i % 6; j++)
            walk_step(&k);
        if (i % 3 == 0) { /* a step is open */
            const fx_entry e = {.rows = 2, .tag = 9};
            if (k.w.n_cells[0] + 2 <= CELLS_MOST) {
                fx_ok(fx_begin(&k.w, &e, 1), "begin");
                for (uint32_t s = 0; s < i % 4; s++)
                    fx_ok(fx_attend(&k.w, s), "attend");
            }
        }
        fx_close(&k.w); /* with work pending: nothing was waited for */
        if (i == cycles / 5)
            warm = resident_bytes();
    }
    const uint64_t now = resident_bytes();
    print_message("resident %llu KB, at first %llu KB\n", (unsigned long long)(now >> 10),
                  (unsigned long long)(warm >> 10));
    assert_true(HAS_ASAN || now < warm + (16 << 20));
}

/* ---------------------------------------------------------------------- fork */

static int wait_for(pid_t child)
{
    int status = -1;
    for (int ms = 0; ms < 20000; ms += 10) {
        if (waitpid(child, &status, WNOHANG) == child)
            return status;
        usleep(10000);
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return -1;
}

/* A child leaves by exit and so through all handlers, with a cache it does not
 * touch; the parent goes on with its bits. */
static void test_fork(void **state)
{
    (void)state;
    walk k = {.random = seed, .tag = 1};
    const fx_model m = model(seed);
    fx_open(&k.w, &m);
    for (uint32_t i = 0; i < 30; i++)
        walk_step(&k);
    for (uint32_t i = 0; i < 3; i++) {
        fflush(NULL);
        const pid_t child = fork(); /* with work in flight */
        assert_true(child >= 0);
        if (child == 0) {
            if (i == 1)
                _exit(strlen(rkv_version_string()) > 0 ? 7 : 1);
            if (i == 2 || HAS_ASAN)
                quick_exit(7);
            exit(7);
        }
        walk_step(&k);
        const int status = wait_for(child);
        assert_true(status >= 0 && WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 7);
    }
    for (uint32_t i = 0; i < 30; i++)
        walk_step(&k);
    settle(&k);
    fx_close(&k.w);
}

int main(void)
{
    seed = fx_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_soak), cmocka_unit_test(test_two_caches),
        cmocka_unit_test(test_cycles), cmocka_unit_test(test_fork),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
