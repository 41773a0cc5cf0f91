/* SPDX-License-Identifier: MIT
 *
 * Replayed and eager steps in turn, with the host ahead of both: nothing but
 * the library's own marks orders an eager step's copies into the ring behind
 * what a graph reads there, and behind what it has copied there ahead.  What is
 * refused in between.
 */
#include "step_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define T 16u
#define GRAPHS_MAX 8u

typedef struct graph {
    uint64_t key;
    rkv_graph graph;
    rkvi_graph *exec;
} graph;

typedef struct world {
    fx w;
    graph graphs[GRAPHS_MAX];
    uint32_t n_graphs;
} world;

static uint64_t seed;

static fx_model model(fx_executor executor, uint64_t resident, uint64_t ring_tiles)
{
    const uint32_t dim = fx_gpu ? 128 : 16;
    fx_model m = fx_model_make(T, 0, 2048);
    for (uint32_t i = 0; i < 3; i++)
        fx_add_layer(&m, 1, dim, dim, resident);
    m.executor = executor;
    m.seed = ++seed;
    m.delay_ns = executor == FX_HOST ? 20000 : 0;
    m.params.max_rows = 64;
    m.params.steps_ahead = 4;
    m.params.ring_bytes = ring_tiles * T * dim * 2 * 2;
    m.params.copy_bytes = 2 * T * dim * 2 * 2;
    return m;
}

/* The open step's, captured where there is none yet. */
static const graph *graph_of_step(world *x)
{
    fx *w = &x->w;
    uint64_t key = 0;
    fx_ok(rkv_step_graph_key(w->cache, &key), "key");
    for (uint32_t i = 0; i < x->n_graphs; i++)
        if (x->graphs[i].key == key)
            return &x->graphs[i];
    assert_true(x->n_graphs < GRAPHS_MAX);
    graph *g = &x->graphs[x->n_graphs++];
    *g = (graph){.key = key, .graph.struct_size = sizeof g->graph};
    fx_ok(rkv_step_start(w->cache, w->stream), "start");
    fx_ok(rkvi_dev(capture_begin, w->dev, w->stream, false), "capture");
    fx_ok(rkv_graph_capture(w->cache, 0, w->model.n_sites, w->stream), "rkv_graph_capture");
    for (uint32_t site = 0; site < w->model.n_sites; site++)
        fx_ok(fx_attend(w, site), "captured attend");
    fx_ok(rkv_graph_capture_end(w->cache, w->stream, &g->graph), "rkv_graph_capture_end");
    fx_ok(rkvi_dev(capture_end, w->dev, w->stream, &g->exec), "capture_end");
    return g;
}

/* The same values each time: earlier steps may still read them. */
static void step(world *x, fx *w, bool replays, bool fills)
{
    const fx_entry e = {.seq = 0, .rows = 1, .regime = RKV_REGIME_DECODE, .tag = 9000};
    fx_ok(fx_begin(w, &e, 1), "begin");
    if (fills)
        fx_fill(w);
    if (replays) {
        const graph *g = graph_of_step(x);
        fx_ok(rkv_step_replay(w->cache, &g->graph, w->stream), "replay");
        fx_ok(rkvi_dev(graph_launch, w->dev, g->exec, w->stream), "launch");
    } else {
        for (uint32_t site = 0; site < w->model.n_sites; site++)
            fx_ok(fx_attend(w, site), "attend");
    }
    fx_ok(fx_end(w, NULL, 0), "end");
}

/* `pattern`: bit s % 8 of it says whether step s is replayed. */
static void run(fx_executor executor, uint64_t ring_tiles, uint32_t pattern)
{
    world x = {0};
    fx resident;
    const fx_model all = model(FX_HOST, RKV_RESIDENT_ALL, ring_tiles);
    fx_model m = model(executor, RKV_RESIDENT_NONE, ring_tiles);
    m.params.flags |= RKV_FLAG_GRAPHS;
    fx_open(&resident, &all);
    fx_open(&x.w, &m);
    fx_ok(rkvi_dev(stream_create, x.w.dev, "engine", &x.w.stream), "stream");
    for (uint32_t i = 0; i < 3; i++) {
        fx_append(&x.w, 0, 64, RKV_REGIME_PREFILL, 1 + 64 * i);
        fx_append(&resident, 0, 64, RKV_REGIME_PREFILL, 1 + 64 * i);
    }
    fx_ok(fx_sync(&x.w), "sync");
    fx_ok(fx_sync(&resident), "sync");
    x.w.is_fixed = resident.is_fixed = true;
    for (uint32_t s = 0; s < 24; s++) {
        step(&x, &x.w, pattern >> s % 8 & 1, s == 0);
        step(&x, &resident, false, s == 0);
    }
    fx_ok(fx_sync(&x.w), "sync");
    fx_ok(fx_sync(&resident), "sync");
    assert_true(fx_same(&x.w, &resident));
    assert_true(fx_stats(&x.w).streamed_bytes > 0);
    for (uint32_t i = 0; i < x.n_graphs; i++)
        fx_ok(rkvi_dev(graph_destroy, x.w.dev, x.graphs[i].exec), "graph_destroy");
    fx_ok(rkvi_dev(stream_destroy, x.w.dev, x.w.stream), "stream");
    x.w.stream = NULL;
    fx_close(&x.w);
    fx_close(&resident);
}

static void test_mixed(void **state)
{
    (void)state;
    static const fx_executor executors[] = {FX_CHECK, FX_SIM, FX_HOST};
    static const uint32_t patterns[] = {0x55, 0x0f, 0x7f, 0x01};
    for (uint32_t i = 0; i < (fx_gpu ? 1 : 3); i++)
        for (uint32_t p = 0; p < 4; p++) {
            run(executors[i], 100, patterns[p]); /* the list fits twice */
            run(executors[i], 41, patterns[p]);  /* once, and a bit */
            run(executors[i], 7, patterns[p]);
        }
}

/* Calls that a known graph does not help, and a step that none can hold: each says
 * so, and the step goes on eagerly. */
static void test_refused(void **state)
{
    (void)state;
    if (fx_gpu)
        skip();
    world x = {0};
    uint64_t key;
    rkv_graph g = RKV_GRAPH_INIT;
    fx_model m = model(FX_HOST, RKV_RESIDENT_NONE, 7);
    m.params.flags |= RKV_FLAG_GRAPHS;
    m.delay_ns = 0;
    fx_open(&x.w, &m);
    rkv_cache *cache = x.w.cache;
    const fx_entry chunk = {.seq = 0, .rows = 64, .regime = RKV_REGIME_PREFILL, .tag = 1},
                   one = {.seq = 0, .rows = 1, .regime = RKV_REGIME_DECODE, .tag = 100};
    fx_ok(fx_begin(&x.w, &chunk, 1), "begin");
    fx_ok(rkv_step_start(cache, NULL), "start");
    assert_int_equal(rkv_graph_capture(cache, 0, 0, NULL), RKV_E_UNSUPPORTED); /* tiles leave within it */
    for (uint32_t site = 0; site < m.n_sites; site++)
        fx_ok(fx_attend(&x.w, site), "attend");
    fx_ok(fx_end(&x.w, NULL, 0), "end");
    fx_ok(fx_begin(&x.w, &one, 1), "begin");
    assert_int_equal(rkv_step_graph_key(cache, NULL), RKV_E_ARGUMENT);
    fx_ok(rkv_step_graph_key(cache, &key), "key");
    g.key = key;
    g.first_site = 1;
    g.n_sites = m.n_sites - 1;
    assert_int_equal(rkv_step_replay(cache, &g, NULL), RKV_E_STATE);
    assert_non_null(strstr(rkv_error_message(), "the graph begins with site 1: site 0 is next"));
    fx_ok(rkv_step_start(cache, NULL), "start");
    fx_ok(rkv_graph_capture(cache, 0, 0, NULL), "capture");
    g.first_site = 0;
    g.n_sites = m.n_sites;
    assert_int_equal(rkv_step_replay(cache, &g, NULL), RKV_E_STATE);
    assert_non_null(strstr(rkv_error_message(), "a capture is under way"));
    assert_int_equal(rkv_graph_capture_end(cache, NULL, &g), RKV_E_STATE); /* no site: it is dropped */
    for (uint32_t site = 0; site < m.n_sites; site++)
        fx_ok(fx_attend(&x.w, site), "attend");
    fx_ok(fx_end(&x.w, NULL, 0), "end");
    fx_compare_fresh(&x.w, 0, 2);
    fx_close(&x.w);
}

/* Copies through the bounce buffer are host calls: no capture of a tail that could not be pinned. */
static void test_unpinned(void **state)
{
    (void)state;
    if (fx_gpu)
        skip();
    uint64_t beside = 0;
    for (uint32_t i = 0; i < 2; i++) {
        fx w;
        fx_model m = model(FX_CHECK, RKV_RESIDENT_NONE, 7);
        m.params.flags |= RKV_FLAG_GRAPHS;
        m.limits.register_total_bytes = beside; /* first none */
        fx_open(&w, &m);
        if (i == 0) {
            rkvi_device_usage u;
            rkvi_device_usage_get(w.core, &u);
            beside = u.registered_bytes - fx_stats(&w).pinned_bytes + 8192;
        } else {
            fx_append(&w, 0, 64, RKV_REGIME_PREFILL, 1);
            fx_append(&w, 0, 16, RKV_REGIME_DECODE, 100);
            const fx_entry e = {.seq = 0, .rows = 1, .regime = RKV_REGIME_DECODE, .tag = 200};
            assert_true(fx_stats(&w).unpinned_bytes > 0);
            fx_ok(fx_begin(&w, &e, 1), "begin");
            fx_ok(rkv_step_start(w.cache, NULL), "start");
            assert_int_equal(rkv_graph_capture(w.cache, 0, 0, NULL), RKV_E_UNSUPPORTED);
            assert_non_null(strstr(rkv_error_message(), "could not be pinned"));
            for (uint32_t site = 0; site < m.n_sites; site++)
                fx_ok(fx_attend(&w, site), "attend");
            fx_ok(fx_end(&w, NULL, 0), "end");
            fx_compare_fresh(&w, 0, 2);
        }
        fx_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mixed), cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_unpinned)};
    seed = fx_seed();
#ifdef FX_ON_GPU
    fx_use_gpu();
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
