/* SPDX-License-Identifier: MIT
 *
 * The CPU's share in long use: steps run ahead and are given up, sequences are cut,
 * shared, shifted and parked, window and share change, threads are late or sleep;
 * beside a cache without a share that sees the same.
 *
 * ROLLKV_TEST_SEED sets the seed, ROLLKV_TEST_FULL=1 runs 40 times as long.
 */
#include "step_near.h"

#include "step_types.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include <cmocka.h>

#define T 16u
#define NEAR 4e-6f
#define DIM 32u
#define SEQS 3u
#define CELLS_MOST 700u
#define LATE_NS 300000u

static uint64_t seed;

typedef struct walk {
    fx w, plain;
    uint64_t random, tag;
    uint32_t in_flight;
    _Atomic uint64_t naps; /* of threads: 0, none; else a random state */
} walk;

static uint32_t below(walk *k, uint32_t n)
{
    return (uint32_t)(fx_random(&k->random) % n);
}

/* Some threads look late, some take long over a unit. */
static bool hook(void *arg, rkvi_cpu_stage stage)
{
    walk *k = arg;
    uint64_t state = atomic_fetch_add(&k->naps, 1);
    const uint64_t x = fx_random(&state);
    (void)stage;
    if (x % 64 == 0)
        nanosleep(&(struct timespec){.tv_nsec = (long)(x / 64 % (2 * LATE_NS))}, NULL);
    return true;
}

static fx_model model(fx_executor executor, uint64_t random, bool is_late)
{
    static float frequencies[DIM / 2];
    fx_model m = fx_model_make(T, 0, SEQS * (CELLS_MOST + 100));
    const uint32_t full = fx_add_layer(&m, 2, DIM, DIM, RKV_RESIDENT_NONE);
    const uint32_t local = fx_add_layer(&m, 1, DIM, DIM, 3 * T);
    for (uint32_t i = 0; i < DIM / 2; i++)
        frequencies[i] = (float)pow(10000, -2.0 * i / DIM);
    m.layers[local].type_k = m.layers[local].type_v = RKV_TYPE_Q8_0;
    m.sites[local].mask = RKV_MASK_SLIDING;
    m.sites[local].mask_width = 12 * T;
    m.layers[local].keep_all = 1;
    fx_add_site(&m, full, 8);
    m.params.rope = (rkv_rope_params){frequencies, DIM / 2, 0};
    m.params.n_sequences = SEQS;
    m.params.max_rows = 128;
    m.params.steps_ahead = 1 + (uint32_t)(random % 3);
    m.params.ring_bytes = random % 2 ? 64 * 1024 : 24 * 1024;
    m.params.copy_bytes = 16 * 1024;
    m.params.cpu_threads = 2;
    m.params.cpu_share = 8;
    m.params.cpu_wait_ns = is_late ? LATE_NS : (uint64_t)1000000000000;
    m.executor = executor;
    m.seed = random;
    m.delay_ns = executor == FX_HOST ? 5000 : 0;
    return m;
}

static void open_both(walk *k, fx_executor executor, bool is_late)
{
    *k = (walk){.random = seed, .tag = 1, .naps = seed};
    fx_model m = model(executor, seed, is_late);
    fx_open(&k->w, &m);
    m.params.cpu_threads = m.params.cpu_share = 0;
    m.params.cpu_wait_ns = 0;
    m.executor = FX_HOST;
    fx_open(&k->plain, &m);
    if (!is_late)
        return;
    k->w.cache->cpu.desk.hook_arg = k;
    atomic_store(&k->w.cache->cpu.desk.hook, hook);
}

/* ------------------------------------------------------------------------- steps */

/* What is in flight ends; the last step's results are alike. */
static void drain(walk *k)
{
    fx *const both[] = {&k->w, &k->plain};
    fx_ok(fx_sync(&k->w), "sync");
    fx_ok(fx_sync(&k->plain), "sync");
    assert_true(fx_near(&k->w, &k->plain, NEAR));
    for (uint32_t i = 0; i < 2; i++) {
        for (uint32_t o = 0; o < both[i]->n_old; o++)
            free(both[i]->old[o]);
        both[i]->n_old = 0;
    }
    k->in_flight = 0;
}

static void cut_to(walk *k, uint32_t seq, uint64_t n)
{
    fx_truncate(&k->w, seq, n);
    fx_truncate(&k->plain, seq, n);
}

/* Nobody waits for it. */
static void run(fx *w, const fx_entry *e, uint32_t n)
{
    fx_ok(fx_begin(w, e, n), "begin");
    for (uint32_t s = 0; s < w->model.n_sites; s++)
        fx_ok(fx_attend(w, s), "attend");
    fx_ok(fx_end(w, NULL, 0), "end");
}

static void walk_step(walk *k, bool is_prefill)
{
    fx_entry e[SEQS];
    uint32_t n = 0;
    for (uint32_t s = 0; s < SEQS; s++) {
        const uint32_t rows = is_prefill ? 1 + below(k, 60) : 1 + below(k, 5) / 4 * below(k, 6);
        if (k->w.n_cells[s] + rows > CELLS_MOST)
            cut_to(k, s, below(k, CELLS_MOST));
        if ((is_prefill || below(k, 3) == 0) && (n || s + 1 < SEQS))
            continue;
        e[n++] = (fx_entry){.seq = s, .rows = rows, .tag = k->tag,
                            .regime = is_prefill ? RKV_REGIME_PREFILL : RKV_REGIME_DECODE};
        k->tag += 64;
    }
    if (below(k, 8) == 0) { /* given up, at some site */
        const uint32_t sites = below(k, k->w.model.n_sites + 1);
        fx_ok(fx_begin(&k->w, e, n), "begin");
        for (uint32_t s = 0; s < sites; s++)
            fx_ok(fx_attend(&k->w, s), "attend");
        fx_ok(fx_abort(&k->w), "abort");
    }
    run(&k->w, e, n);
    run(&k->plain, e, n);
    if (++k->in_flight < 1 + below(k, 6))
        return;
    drain(k);
}

/* ------------------------------------------------------------------ between steps */

static void fork_of(walk *k, uint32_t dst, uint32_t src)
{
    const uint64_t n = k->w.n_cells[src];
    if (dst == src || n == 0)
        return;
    const int64_t to = k->w.cells[src][below(k, (uint32_t)n)].pos + 1;
    cut_to(k, dst, 0);
    fx_append_from(&k->w, dst, src, 0, to);
    fx_append_from(&k->plain, dst, src, 0, to);
}

static void shift(walk *k, uint32_t seq)
{
    fx *const both[] = {&k->w, &k->plain};
    const uint64_t n = k->w.n_cells[seq], at = n ? below(k, (uint32_t)n) : 0;
    const int64_t from = n ? k->w.cells[seq][at].pos : 0, delta = 1 + below(k, 50);
    for (uint32_t i = 0; i < 2 && n; i++) {
        const rkv_status s = rkv_sequence_shift(both[i]->cache, seq, from, RKV_POS_END, delta);
        if (s == RKV_E_CAPACITY) /* of stretches with turns: in both */
            return;
        fx_ok(s, "shift");
        for (uint64_t c = at; c < n; c++)
            both[i]->cells[seq][c].pos += delta;
    }
}

static void set_share(walk *k)
{
    const uint32_t share = below(k, 16);
    const rkv_cpu_share_params p = {.struct_size = sizeof p, .share = share ? share : RKV_CPU_SHARE_NONE,
                                    .free_bytes = share % 3 ? 0 : 64 * 1024};
    fx_ok(rkv_cache_set_cpu_share(k->w.cache, &p), "set");
}

static void remove_middle(walk *k, uint32_t seq)
{
    const uint64_t n = k->w.n_cells[seq];
    if (n < 3)
        return;
    const int64_t from = k->w.cells[seq][below(k, (uint32_t)n - 2)].pos, to = k->w.cells[seq][n - 1].pos;
    const int64_t end = from + 1 + below(k, 40);
    fx_remove(&k->w, seq, from, end < to ? end : to);
    fx_remove(&k->plain, seq, from, end < to ? end : to);
}

static void change(walk *k)
{
    const uint32_t seq = below(k, SEQS);
    switch (below(k, 8)) {
    case 0: cut_to(k, seq, below(k, (uint32_t)k->w.n_cells[seq] + 1)); break;
    case 1: fork_of(k, seq, below(k, SEQS)); break;
    case 2: shift(k, seq); break;
    case 3: set_share(k); break;
    case 4: remove_middle(k, seq); break;
    case 5: fx_park(&k->w, seq); break;
    case 6: fx_fetch(&k->w, seq); break;
    default: fx_ok(rkv_cache_set_residency(k->w.cache, 1, below(k, 8) * T), "residency");
    }
}

static void soak(fx_executor executor, bool is_late, uint32_t n_steps)
{
    static walk k;
    open_both(&k, executor, is_late);
    for (uint32_t i = 0; i < n_steps; i++) {
        if (i % 7 == 6)
            change(&k);
        walk_step(&k, i < 24 || below(&k, 12) == 0);
    }
    if (k.in_flight)
        drain(&k);
    const rkv_cache_stats s = fx_stats(&k.w);
    print_message("%u steps, %llu aborted, %llu KB by the CPU, %llu late\n", n_steps,
                  (unsigned long long)s.aborted_steps, (unsigned long long)s.cpu_bytes >> 10,
                  (unsigned long long)s.cpu_late_bytes >> 10);
    assert_true(s.cpu_bytes > 0 && (is_late || s.cpu_late_bytes == 0));
    fx_close(&k.w);
    fx_close(&k.plain);
}

static uint32_t length(uint32_t n)
{
    return fx_is_full() ? 40 * n : n;
}

static void test_in_time(void **state)
{
    (void)state;
    soak(FX_HOST, false, length(120));
    soak(FX_SIM, false, length(70));
    soak(FX_CHECK, false, length(70));
}

static void test_late(void **state)
{
    (void)state;
    soak(FX_HOST, true, length(120));
    soak(FX_CHECK, true, length(70));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_in_time), cmocka_unit_test(test_late)};
    seed = fx_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
