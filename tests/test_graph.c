/* SPDX-License-Identifier: MIT
 *
 * Steps whose attends are captured and replayed, beside eager ones: the same
 * bits, and no more captures than the keys' rules allow.
 */
#include "step_near.h"

#include "step_types.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define T 16u
#define GRAPHS_MAX 128u
#define PARTS_MAX 3u

static uint64_t seed;

/* A whole step's captures, found by its key and its entries' rows. */
typedef struct graph {
    uint64_t key;
    uint32_t n_parts;
    rkv_graph parts[PARTS_MAX];
    rkvi_graph *execs[PARTS_MAX];
} graph;

typedef struct world {
    fx w;           /* with graphs */
    fx eager;       /* without */
    graph graphs[GRAPHS_MAX];
    uint32_t n_graphs;
    uint32_t cuts[PARTS_MAX + 1]; /* sites at which the captures begin, and the end */
    uint32_t n_parts;
    uint32_t eager_part;          /* this one is never captured; PARTS_MAX: none */
    uint64_t tag;
    bool has_share;               /* the CPU's, with other bits than the device's */
    uint32_t n_same;              /* steps of the same bits */
} world;

static fx_model model(fx_executor executor, uint64_t resident_cells, uint64_t capacity)
{
    const uint32_t dim = fx_gpu ? 128 : 16;
    fx_model m = fx_model_make(T, 0, capacity);
    fx_add_layer(&m, 2, dim, dim, resident_cells);
    fx_add_layer(&m, 1, dim, dim, resident_cells);
    fx_add_site(&m, 0, 4);
    fx_add_layer(&m, 1, dim, dim, RKV_RESIDENT_ALL);
    m.sites[3].mask = RKV_MASK_SLIDING;
    m.sites[3].mask_width = 40;
    m.sinks[1] = true;
    m.executor = executor;
    m.seed = ++seed;
    m.delay_ns = executor == FX_HOST ? 20000 : 0;
    m.n_workers = executor == FX_HOST ? 2 : 1;
    m.params.n_sequences = FX_SEQS;
    m.params.max_rows = 64;
    m.params.draft_rows = 4;
    return m;
}

static void open_worlds(world *x, const fx_model *m, const fx_model *eager_model)
{
    fx_model eager = *eager_model, graphs = *m;
    memset(x, 0, sizeof *x);
    graphs.params.flags |= RKV_FLAG_GRAPHS;
    eager.executor = FX_HOST;
    eager.delay_ns = 0;
    fx_open(&x->eager, &eager);
    fx_open(&x->w, &graphs);
    fx_ok(rkvi_dev(stream_create, x->w.dev, "engine", &x->w.stream), "stream");
    x->w.is_fixed = x->eager.is_fixed = true;
    x->n_parts = 1;
    x->cuts[1] = m->n_sites;
    x->eager_part = PARTS_MAX;
}

static void open_world(world *x, const fx_model *m)
{
    open_worlds(x, m, m);
}

static void close_world(world *x)
{
    fx_ok(fx_sync(&x->w), "sync");
    for (uint32_t i = 0; i < x->n_graphs; i++)
        for (uint32_t p = 0; p < x->graphs[i].n_parts; p++)
            if (x->graphs[i].execs[p])
                fx_ok(rkvi_dev(graph_destroy, x->w.dev, x->graphs[i].execs[p]), "graph_destroy");
    fx_ok(rkvi_dev(stream_destroy, x->w.dev, x->w.stream), "stream");
    x->w.stream = NULL;
    fx_close(&x->w);
    fx_close(&x->eager);
}

static void capture_part(world *x, graph *g, uint32_t part)
{
    fx *w = &x->w;
    rkv_graph *out = &g->parts[part];
    out->struct_size = sizeof *out;
    fx_ok(rkvi_dev(capture_begin, w->dev, w->stream, false), "capture");
    fx_ok(rkv_graph_capture(w->cache, x->cuts[part], x->cuts[part + 1] - x->cuts[part], w->stream),
          "rkv_graph_capture");
    for (uint32_t site = x->cuts[part]; site < x->cuts[part + 1]; site++)
        fx_ok(fx_attend(w, site), "captured attend");
    fx_ok(rkv_graph_capture_end(w->cache, w->stream, out), "rkv_graph_capture_end");
    fx_ok(rkvi_dev(capture_end, w->dev, w->stream, &g->execs[part]), "capture_end");
    assert_int_equal(out->n_sites, x->cuts[part + 1] - x->cuts[part]);
}

static graph *graph_of_step(world *x)
{
    uint64_t key = 0;
    fx_ok(rkv_step_graph_key(x->w.cache, &key), "key");
    for (uint32_t i = 0; i < x->n_graphs; i++)
        if (x->graphs[i].key == key)
            return &x->graphs[i];
    assert_true(x->n_graphs < GRAPHS_MAX);
    graph *g = &x->graphs[x->n_graphs++];
    *g = (graph){.key = key, .n_parts = x->n_parts};
    fx_ok(rkv_step_start(x->w.cache, x->w.stream), "start");
    for (uint32_t p = 0; p < x->n_parts; p++)
        if (p != x->eager_part)
            capture_part(x, g, p);
    return g;
}

static void attend_part(world *x, uint32_t part)
{
    for (uint32_t site = x->cuts[part]; site < x->cuts[part + 1]; site++)
        fx_ok(fx_attend(&x->w, site), "attend");
}

static void replay_part(world *x, const graph *g, uint32_t part)
{
    if (!g || part == x->eager_part) {
        attend_part(x, part);
        return;
    }
    fx_ok(rkv_step_replay(x->w.cache, &g->parts[part], x->w.stream), "replay");
    fx_ok(rkvi_dev(graph_launch, x->w.dev, g->execs[part], x->w.stream), "launch");
}

/* With graphs tiles enter the tail by batches, so for some steps the CPU has other ones. */
static bool have_same_tail(const world *x)
{
    return fx_stats(&x->w).last_step_list_bytes == fx_stats(&x->eager).last_step_list_bytes;
}

/* One step of both worlds; their outputs have the same bits. */
static void step(world *x, const fx_entry *entries, uint32_t n, bool is_eager)
{
    fx_ok(fx_begin(&x->w, entries, n), "begin");
    if (x->w.is_fixed)
        fx_fill(&x->w);
    const graph *g = is_eager ? NULL : graph_of_step(x);
    for (uint32_t p = 0; p < x->n_parts; p++)
        replay_part(x, g, p);
    fx_ok(fx_end(&x->w, NULL, 0), "end");
    fx_ok(fx_begin(&x->eager, entries, n), "begin");
    if (x->w.is_fixed)
        fx_fill(&x->eager);
    for (uint32_t site = 0; site < x->eager.model.n_sites; site++)
        fx_ok(fx_attend(&x->eager, site), "attend");
    fx_ok(fx_end(&x->eager, NULL, 0), "end");
    fx_ok(fx_sync(&x->w), "sync");
    fx_ok(fx_sync(&x->eager), "sync");
    const bool same = fx_same(&x->w, &x->eager);
    assert_true(same || (x->has_share && !have_same_tail(x) && fx_near(&x->w, &x->eager, 2e-3f)));
    x->n_same += same;
}

static fx_entry entry_of(world *x, uint32_t seq, uint32_t rows)
{
    x->tag += rows;
    return (fx_entry){.seq = seq, .rows = rows, .regime = RKV_REGIME_DECODE, .tag = x->tag};
}

static void decode(world *x, uint32_t n_seqs, const uint32_t *rows, bool is_eager)
{
    fx_entry e[FX_SEQS];
    for (uint32_t i = 0; i < n_seqs; i++)
        e[i] = entry_of(x, i, rows[i]);
    step(x, e, n_seqs, is_eager);
}

static void take_tensors(fx *w, const fx *from)
{
    memcpy(w->q, from->q, sizeof w->q);
    memcpy(w->k, from->k, sizeof w->k);
    memcpy(w->v, from->v, sizeof w->v);
    memcpy(w->out, from->out, sizeof w->out);
    memcpy(w->lse, from->lse, sizeof w->lse);
    memcpy(w->site_sinks, from->site_sinks, sizeof w->site_sinks);
    w->is_fixed = true;
}

/* With tensors of its own: those that graphs hold stay. */
static void prefill(world *x, uint32_t seq, uint32_t rows)
{
    static fx w, eager;
    w = x->w;
    eager = x->eager;
    x->w.is_fixed = x->eager.is_fixed = false;
    for (uint32_t done = 0; done < rows; done += 64) {
        const uint32_t n = rows - done < 64 ? rows - done : 64;
        const fx_entry e = {.seq = seq, .rows = n, .regime = RKV_REGIME_PREFILL, .tag = x->tag};
        x->tag += n;
        step(x, &e, 1, true);
    }
    take_tensors(&x->w, &w);
    take_tensors(&x->eager, &eager);
}

static const fx_executor executors[] = {FX_HOST, FX_SIM, FX_CHECK};

static uint32_t n_executors(void)
{
    return fx_gpu ? 1 : 3;
}

/* ------------------------------------------------------------------ resident */

static void test_resident(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < n_executors(); i++) {
        static world x;
        const fx_model m = model(executors[i], RKV_RESIDENT_ALL, 4096);
        const uint32_t rows[] = {1, 1};
        const uint32_t n = fx_is_full() || (fx_gpu && !fx_gpu->is_fake) ? 600 : executors[i] == FX_HOST ? 120 : 70;
        open_world(&x, &m);
        prefill(&x, 0, 90);
        prefill(&x, 1, 7);
        for (uint32_t s = 0; s < n; s++)
            decode(&x, 2, rows, s % 50 == 49);
        assert_int_equal(x.n_graphs, 1);
        close_world(&x);
    }
}

/* Two graphs in one step, an eager attend between them; several rows. */
static void test_parts(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < n_executors(); i++) {
        static world x;
        const fx_model m = model(executors[i], RKV_RESIDENT_ALL, 4096);
        const uint32_t rows[] = {3, 1, 5};
        open_world(&x, &m);
        x.n_parts = 3;
        memcpy(x.cuts, (uint32_t[]){0, 2, 3, 4}, sizeof x.cuts);
        x.eager_part = 1;
        for (uint32_t s = 0; s < 25; s++)
            decode(&x, 3, rows, false);
        assert_int_equal(x.n_graphs, 1);
        close_world(&x);
    }
}

/* Captured over short dummy sequences, replayed with long ones. */
static void test_dummies(void **state)
{
    (void)state;
    static world x;
    const fx_model m = model(FX_CHECK, RKV_RESIDENT_ALL, 4096);
    open_world(&x, &m);
    const fx_entry dummies[] = {entry_of(&x, 2, 1), entry_of(&x, 3, 1)};
    step(&x, dummies, 2, false);
    prefill(&x, 0, 300);
    prefill(&x, 1, 33);
    for (uint32_t s = 0; s < 20; s++) {
        const fx_entry e[] = {entry_of(&x, s % 2, 1), entry_of(&x, 1 - s % 2, 1)};
        step(&x, e, 2, false);
    }
    assert_int_equal(x.n_graphs, 1);
    close_world(&x);
}

/* The host runs ahead: steps are begun while those before them still run. */
static void test_run_ahead(void **state)
{
    (void)state;
    static world x;
    fx_model m = model(FX_HOST, RKV_RESIDENT_ALL, 4096);
    m.params.steps_ahead = 4;
    open_world(&x, &m);
    prefill(&x, 0, 40);
    for (uint32_t s = 0; s < 40; s++) {
        const fx_entry e = {.seq = 0, .rows = 1, .regime = RKV_REGIME_DECODE, .tag = 9000};
        fx_ok(fx_begin(&x.w, &e, 1), "begin");
        if (s == 0)
            fx_fill(&x.w);
        replay_part(&x, graph_of_step(&x), 0);
        fx_ok(fx_end(&x.w, NULL, 0), "end");
        fx_ok(fx_begin(&x.eager, &e, 1), "begin");
        if (s == 0) /* the steps before may still read them */
            fx_fill(&x.eager);
        for (uint32_t site = 0; site < m.n_sites; site++)
            fx_ok(fx_attend(&x.eager, site), "attend");
        fx_ok(fx_end(&x.eager, NULL, 0), "end");
    }
    fx_ok(fx_sync(&x.w), "sync");
    fx_ok(fx_sync(&x.eager), "sync");
    assert_true(fx_same(&x.w, &x.eager));
    assert_int_equal(x.n_graphs, 1);
    close_world(&x);
}

/* ---------------------------------------------------------------------- tail */

/* Tile-layers of the first KV layer. */
static uint64_t tile_layer_bytes(void)
{
    return fx_gpu ? T * 128 * 2 * 2 * 2 : T * 16 * 2 * 2 * 2;
}

/* A gap of every site: the sum of the four is just below 2^64. */
#define ABSURD_NS (((uint64_t)1 << 62) - ((uint64_t)1 << 50))

/* One capture for each batch of tiles that enters the tail, at most. */
static void run_tail(fx_executor executor, uint64_t ring_tiles, uint32_t n_steps, uint32_t n_parts, uint64_t step_ns)
{
    static world x;
    fx_model m = model(executor, RKV_RESIDENT_NONE, 4096);
    const uint32_t rows[] = {1, 2};
    m.params.ring_bytes = ring_tiles * tile_layer_bytes();
    m.params.copy_bytes = 4 * tile_layer_bytes();
    m.params.step_ns = step_ns;
    m.params.link_bytes_per_s = step_ns ? (uint64_t)1 << 30 : 0;
    for (uint32_t i = 0; i < m.n_sites && step_ns == ABSURD_NS; i++)
        m.sites[i].gap_ns = step_ns;
    open_world(&x, &m);
    prefill(&x, 0, 230);
    prefill(&x, 1, 65);
    if (n_parts == 2) {
        x.n_parts = 2;
        memcpy(x.cuts, (uint32_t[]){0, 2, 4, 0}, sizeof x.cuts);
    }
    const uint64_t streamed = fx_stats(&x.w).streamed_bytes;
    for (uint32_t s = 0; s < n_steps; s++)
        decode(&x, 2, rows, s % 17 == 16);
    assert_true(fx_stats(&x.w).streamed_bytes > streamed);
    assert_true(fx_layer(&x.w, 0).tail_tiles > 0);
    assert_true(x.n_graphs <= 2 + n_steps / (T / 2));
    close_world(&x);
}

static void test_tail(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < n_executors(); i++) {
        const uint32_t n = fx_is_full() || (fx_gpu && !fx_gpu->is_fake) ? 600 : executors[i] == FX_HOST ? 100 : 40;
        run_tail(executors[i], 200, n, 1, 0); /* the list fits */
        run_tail(executors[i], 12, n, 1, 0);  /* several laps */
        run_tail(executors[i], 1, n / 4, 1, 0);
        run_tail(executors[i], 9, n / 2, 2, 0);
        run_tail(executors[i], 12, n / 2, 1, 40);            /* too short: the first lap is copied ahead */
        run_tail(executors[i], 12, n / 2, 2, 40);
        run_tail(executors[i], 12, 20, 1, ABSURD_NS);
        run_tail(executors[i], 16, n / 2, 1, fx_gpu ? 2000000 : 250000); /* what the time is enough for */
    }
}

static bool never_looks(void *arg, rkvi_cpu_stage stage)
{
    (void)arg;
    return stage != RKVI_CPU_LOOKS;
}

/* A graph without a share does not wait for a job that was given up; the next one with
 * a share does.  Which launches the CPU has is part of the key. */
static void given_up(world *x)
{
    const uint32_t rows[] = {1, 2}, shares[] = {RKV_CPU_SHARE_NONE, 8};
    rkv_cache *c = x->w.cache;
    for (uint32_t i = 0; i < 2; i++) {
        const rkv_cpu_share_params p = {.struct_size = sizeof p, .share = shares[i]};
        fx_ok(rkv_cache_set_cpu_share(c, &p), "set");
        fx_ok(rkv_cache_set_cpu_share(x->eager.cache, &p), "set");
        c->cpu.is_out = true;
        decode(x, 2, rows, false);
        assert_int_equal(c->cpu.is_out, i == 0);
    }
    const uint64_t key = rkvi_plan_hash(&c->plan, &c->cfg, &c->batch);
    c->plan.sites[0].cpu_is_mixed = !c->plan.sites[0].cpu_is_mixed;
    assert_true(rkvi_plan_hash(&c->plan, &c->cfg, &c->batch) != key);
    c->plan.sites[0].cpu_is_mixed = !c->plan.sites[0].cpu_is_mixed;
}

/* Measuring writes to the ring what no graph has left there; then the share is as before. */
static void measure_between(world *x)
{
    const rkv_cpu_share_params measured = {.struct_size = sizeof measured, .step_ns = 1000},
                               given = {.struct_size = sizeof given, .share = 8};
    const uint32_t n = x->n_graphs;
    const uint32_t rows[] = {1, 2};
    fx_ok(rkv_cache_set_cpu_share(x->w.cache, &measured), "set");
    fx_ok(rkv_cache_set_cpu_share(x->w.cache, &given), "set");
    decode(x, 2, rows, false);
    assert_true(x->n_graphs <= n + 1);
}

/* A part of the tail is the CPU's, also in replays; its threads come, or they don't
 * and the graph has the bits of one without a share. */
static void run_cpu(fx_executor executor, uint32_t n_steps, uint32_t n_parts, bool is_gone)
{
    static world x;
    fx_model m = model(executor, RKV_RESIDENT_NONE, 4096), eager = m;
    const uint32_t rows[] = {1, 2};
    m.params.ring_bytes = eager.params.ring_bytes = 12 * tile_layer_bytes();
    m.params.copy_bytes = eager.params.copy_bytes = 4 * tile_layer_bytes();
    m.params.cpu_threads = 2;
    m.params.cpu_share = 8;
    m.params.cpu_wait_ns = is_gone ? 2000000 : (uint64_t)1000000000000;
    m.params.steps_ahead = 2 + n_parts;
    open_worlds(&x, &m, is_gone ? &eager : &m);
    if (is_gone)
        atomic_store(&x.w.cache->cpu.desk.hook, never_looks);
    x.has_share = fx_gpu && !is_gone;
    prefill(&x, 0, 230);
    prefill(&x, 1, 65);
    if (n_parts == 2) {
        x.n_parts = 2;
        memcpy(x.cuts, (uint32_t[]){0, 2, 4, 0}, sizeof x.cuts);
    }
    for (uint32_t s = 0; s < n_steps; s++) {
        decode(&x, 2, rows, s % 17 == 16);
        if (!is_gone && s == n_steps / 2)
            measure_between(&x);
        if (s % 9 == 8) { /* a graph that may be launched, and counts for nothing */
            const fx_entry e[] = {entry_of(&x, 0, 1), entry_of(&x, 1, 2)};
            fx_ok(fx_begin(&x.w, e, 2), "begin");
            fx_ok(fx_abort(&x.w), "abort");
        }
    }
    const rkv_cache_stats s = fx_stats(&x.w);
    assert_true(s.cpu_bytes > 0);
    assert_true(x.n_same > n_steps / 8);
    assert_int_equal(s.cpu_late_bytes, is_gone ? s.cpu_bytes : 0);
    assert_true(x.n_graphs <= 2 + (n_steps + n_steps / 9) / (T / 2)); /* aborted steps count as well */
    if (!is_gone)
        given_up(&x);
    close_world(&x);
}

static void test_cpu_share(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < n_executors(); i++) {
        const uint32_t n = fx_is_full() || fx_gpu ? 300 : executors[i] == FX_HOST ? 60 : 30;
        run_cpu(executors[i], n, 1, false);
        run_cpu(executors[i], n, 2, false);
        run_cpu(executors[i], n / 2, 1, true);
    }
}

/* A list that changes by more than what enters: a sequence is cleared, another
 * rolled back into the tail. */
static void test_tail_changes(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < n_executors(); i++) {
        static world x;
        fx_model m = model(executors[i], 48, 4096);
        m.layers[2].keep_all = 1; /* so that a sequence can be rolled back */
        const uint32_t rows[] = {1, 1, 1};
        m.params.ring_bytes = 20 * tile_layer_bytes();
        open_world(&x, &m);
        prefill(&x, 0, 230);
        prefill(&x, 1, 130);
        prefill(&x, 2, 60);
        for (uint32_t s = 0; s < 60; s++) {
            decode(&x, 3, rows, s % 11 == 10);
            if (s == 20) {
                fx_clear(&x.w, 1);
                fx_clear(&x.eager, 1);
            }
            if (s == 35) {
                fx_truncate(&x.w, 0, 100);
                fx_truncate(&x.eager, 0, 100);
            }
        }
        close_world(&x);
    }
}

/* Forks, whose shared tiles are read once, in graphs of their own. */
static void test_forks(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < n_executors(); i++)
        for (uint32_t tail = 0; tail < 2; tail++) {
            static world x;
            fx_model m = model(executors[i], tail ? RKV_RESIDENT_NONE : RKV_RESIDENT_ALL, 4096);
            const uint32_t rows[] = {1, 1, 1};
            m.params.ring_bytes = tail ? 16 * tile_layer_bytes() : 0;
            open_world(&x, &m);
            prefill(&x, 0, 150);
            prefill(&x, 2, 40);
            for (uint32_t s = 0; s < 4; s++)
                decode(&x, 1, rows, false);
            fx_append_from(&x.w, 1, 0, 0, RKV_POS_END);
            fx_append_from(&x.eager, 1, 0, 0, RKV_POS_END);
            for (uint32_t s = 0; s < 40; s++)
                decode(&x, 3, rows, s % 13 == 12);
            close_world(&x);
        }
}

/* What many forks share is a node of each of them: a site's nodes are more than
 * its items and merges, and end before the next site's tables. */
static void test_many_forks(void **state)
{
    (void)state;
    for (uint32_t tail = 0; tail < 2; tail++) {
        static world x;
        const uint32_t rows[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, n = sizeof rows / sizeof *rows;
        fx_model m = model(fx_gpu ? FX_HOST : FX_CHECK, tail ? RKV_RESIDENT_NONE : RKV_RESIDENT_ALL, 4096);
        m.params.ring_bytes = tail ? 16 * tile_layer_bytes() : 0;
        open_world(&x, &m);
        prefill(&x, 0, 700);
        for (uint32_t seq = 1; seq < n; seq++) {
            fx_append_from(&x.w, seq, 0, 0, RKV_POS_END);
            fx_append_from(&x.eager, seq, 0, 0, RKV_POS_END);
        }
        for (uint32_t s = 0; s < 5; s++)
            decode(&x, n, rows, s == 4);
        close_world(&x);
    }
}

/* -------------------------------------------------------------------- errors */

static void test_refusals(void **state)
{
    (void)state;
    static world x;
    const fx_model m = model(FX_HOST, RKV_RESIDENT_ALL, 4096);
    const uint32_t rows[] = {1, 1};
    uint64_t key;
    open_world(&x, &m);
    rkv_graph g = RKV_GRAPH_INIT;
    assert_int_equal(rkv_step_graph_key(x.w.cache, &key), RKV_E_STATE);
    assert_int_equal(rkv_graph_capture(x.w.cache, 0, 0, x.w.stream), RKV_E_STATE);
    decode(&x, 2, rows, false);
    const fx_entry e[] = {entry_of(&x, 0, 1), entry_of(&x, 1, 2)};
    fx_ok(fx_begin(&x.w, e, 2), "begin");
    assert_int_equal(rkv_graph_capture(x.w.cache, 0, 0, x.w.stream), RKV_E_STATE); /* not started */
    assert_int_equal(rkv_step_replay(x.w.cache, &x.graphs[0].parts[0], x.w.stream), RKV_E_STATE); /* its key */
    assert_int_equal(rkv_step_replay(x.w.cache, &g, x.w.stream), RKV_E_ARGUMENT);
    assert_int_equal(rkv_step_replay(x.w.cache, NULL, x.w.stream), RKV_E_ARGUMENT);
    assert_int_equal(rkv_graph_capture_end(x.w.cache, x.w.stream, &g), RKV_E_STATE);
    fx_ok(rkv_step_start(x.w.cache, x.w.stream), "start");
    assert_int_equal(rkv_graph_capture(x.w.cache, m.n_sites, 0, x.w.stream), RKV_E_ARGUMENT);
    fx_ok(rkv_graph_capture(x.w.cache, 1, 0, x.w.stream), "capture");
    assert_int_equal(rkv_graph_capture(x.w.cache, 1, 0, x.w.stream), RKV_E_STATE);
    assert_int_equal(rkv_step_end(x.w.cache, NULL, x.w.stream), RKV_E_STATE);
    assert_int_equal(rkv_graph_capture_end(x.w.cache, x.w.stream, &g), RKV_E_STATE); /* no site */
    fx_ok(fx_abort(&x.w), "abort");
    assert_int_equal(rkv_step_graph_key(x.eager.cache, &key), RKV_E_UNSUPPORTED);
    for (uint32_t s = 0; s < 3; s++) /* after the abort */
        decode(&x, 2, rows, s == 1);
    close_world(&x);
}

/* Aborted before its start, after it, and after a replay. */
static void test_aborts(void **state)
{
    (void)state;
    static world x;
    const fx_model m = model(FX_CHECK, RKV_RESIDENT_ALL, 4096);
    const uint32_t rows[] = {1, 2};
    open_world(&x, &m);
    for (uint32_t s = 0; s < 40; s++) {
        const fx_entry e[] = {entry_of(&x, 0, 1), entry_of(&x, 1, 2)};
        decode(&x, 2, rows, false);
        fx_ok(fx_begin(&x.w, e, s % 4 ? 2 : 1), "begin");
        if (s % 3 > 0)
            fx_ok(rkv_step_start(x.w.cache, x.w.stream), "start");
        if (s % 3 == 2 && s % 4)
            replay_part(&x, &x.graphs[0], 0);
        fx_ok(fx_abort(&x.w), "abort");
        fx_ok(fx_sync(&x.w), "sync");
    }
    assert_int_equal(x.n_graphs, 1);
    close_world(&x);
}

int main(void)
{
#ifdef FX_ON_GPU
    fx_use_gpu();
#endif
    seed = fx_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resident),  cmocka_unit_test(test_parts),    cmocka_unit_test(test_dummies),
        cmocka_unit_test(test_run_ahead), cmocka_unit_test(test_refusals), cmocka_unit_test(test_aborts),
        cmocka_unit_test(test_tail),      cmocka_unit_test(test_tail_changes), cmocka_unit_test(test_cpu_share),
        cmocka_unit_test(test_forks),     cmocka_unit_test(test_many_forks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
