/* SPDX-License-Identifier: MIT
 *
 * Profiles: the mass of attention by distance against a plain sum in f64; steps
 * keep their bits; advice on budgets.
 */
#include "rollkv/profile.h"
#include "step_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define T 16u
#define DIM 64u
#define EDGES RKV_PROFILE_EDGES

/* Two f16 layers; layer 1 has two KV heads, two sites, of which one slides. */
static fx_model model(fx_executor executor, uint64_t resident)
{
    fx_model m = fx_model_make(T, 0, 400);
    m.executor = executor;
    m.params.n_sequences = 2;
    m.params.max_rows = 64;
    fx_add_layer(&m, 1, DIM, DIM, resident);
    fx_add_layer(&m, 2, DIM, DIM, resident);
    fx_add_site(&m, 1, 4);
    m.sites[2].mask = RKV_MASK_SLIDING;
    m.sites[2].mask_width = 29;
    return m;
}

/* ------------------------------------------------------------------- the oracle */

typedef struct oracle {
    double recent[EDGES], first[EDGES];
    uint64_t n_rows;
} oracle;

static uint32_t bucket(uint64_t d)
{
    uint32_t b = 0;
    for (; d; d >>= 1)
        b++;
    return b;
}

/* One row and query head: each leaf's mass, evenly over the cells seen there. */
static void add_row(oracle *o, const fx *w, uint32_t site, uint32_t q_head, const fx_cell *row,
                    const fx_cell *cells, uint64_t n)
{
    const rkv_site_params *sp = &w->model.sites[site];
    const rkv_kv_layer_params *lp = &w->model.layers[sp->kv_layer];
    const uint32_t head = q_head / (sp->n_q_heads / lp->n_kv_heads);
    float q[4 * DIM], k[2 * DIM];
    double e[512], sum = 0, most = -INFINITY;
    const int64_t lo = sp->mask == RKV_MASK_SLIDING ? row->pos - (int64_t)sp->mask_width + 1 : 0;
    fx_values(row->tag, site, 'q', sp->n_q_heads * DIM, q);
    for (uint64_t i = 0; i < n; i++) {
        fx_values(cells[i].tag, sp->kv_layer, 'k', lp->n_kv_heads * DIM, k);
        e[i] = 0;
        for (uint32_t j = 0; j < DIM; j++)
            e[i] += (double)q[q_head * DIM + j] * (double)k[head * DIM + j] / sqrt(DIM);
        if (cells[i].pos >= lo && cells[i].pos <= row->pos && e[i] > most)
            most = e[i];
    }
    for (uint64_t i = 0; i < n; i++) {
        e[i] = cells[i].pos >= lo && cells[i].pos <= row->pos ? exp(e[i] - most) : 0;
        sum += e[i];
    }
    o->n_rows++;
    for (uint64_t leaf = 0; leaf < n; leaf += T) {
        double mass = 0;
        uint32_t seen = 0;
        for (uint64_t i = leaf; i < leaf + T && i < n; i++) {
            mass += e[i] / sum;
            seen += e[i] > 0;
        }
        for (uint64_t i = leaf; i < leaf + T && i < n; i++)
            if (e[i] > 0) {
                o->recent[bucket((uint64_t)(row->pos - cells[i].pos))] += mass / seen;
                o->first[bucket((uint64_t)(cells[i].pos - cells[0].pos))] += mass / seen;
            }
    }
}

static void compare(fx *w, uint32_t layer, uint32_t head, const oracle *o)
{
    rkv_profile_mass m = {.struct_size = sizeof m};
    double recent = 0, first = 0;
    fx_ok(rkv_profile_mass_get(w->cache, layer, head, &m), "mass");
    assert_int_equal(m.n_rows, o->n_rows);
    for (uint32_t b = 0; b < EDGES; b++) {
        recent += o->recent[b];
        first += o->first[b];
        assert_true(fabs(m.recent[b] - recent / (double)o->n_rows) < 1e-4);
        assert_true(fabs(m.first[b] - first / (double)o->n_rows) < 1e-4);
    }
    assert_true(fabs(m.recent[EDGES - 1] - 1) < 1e-6);
}

/* The rows that the last step had of a sequence. */
static void add_step_of(oracle *all, oracle *heads, const fx *w, uint32_t seq, uint32_t layer,
                        uint32_t rows)
{
    const uint64_t n = w->n_cells[seq];
    for (uint32_t s = 0; s < w->model.n_sites; s++) {
        const rkv_site_params *sp = &w->model.sites[s];
        for (uint32_t r = 0; r < rows && sp->kv_layer == layer; r++)
            for (uint32_t h = 0; h < sp->n_q_heads; h++) {
                const uint32_t kv = h / (sp->n_q_heads / w->model.layers[layer].n_kv_heads);
                add_row(all, w, s, h, &w->cells[seq][n - rows + r], w->cells[seq], n);
                add_row(&heads[kv], w, s, h, &w->cells[seq][n - rows + r], w->cells[seq], n);
            }
    }
}

static void add_step(oracle *all, oracle *heads, const fx *w, uint32_t layer, uint32_t rows)
{
    add_step_of(all, heads, w, 0, layer, rows);
}

/* Rows of two sequences share items where they share cells. */
static void test_shared_items(void **state)
{
    (void)state;
    fx w;
    oracle all[2] = {{.n_rows = 0}}, heads[2][2] = {{{.n_rows = 0}}};
    const fx_model m = model(FX_CHECK, RKV_RESIDENT_NONE);
    fx_open(&w, &m);
    fx_append(&w, 0, 95, RKV_REGIME_PREFILL, 1);
    fx_ok(rkv_sequence_fork(w.cache, 1, 0), "fork");
    memcpy(w.cells[1], w.cells[0], w.n_cells[0] * sizeof(fx_cell));
    w.n_cells[1] = w.n_cells[0];
    fx_ok(rkv_profile_start(w.cache, 0), "start");
    for (uint32_t i = 0; i < 4; i++) {
        const fx_entry e[2] = {{.seq = 0, .rows = 1 + i, .tag = 300 + 10 * i},
                               {.seq = 1, .rows = 2, .tag = 400 + 10 * i}};
        fx_step(&w, e, 2);
        for (uint32_t l = 0; l < 2; l++) {
            add_step_of(&all[l], heads[l], &w, 0, l, 1 + i);
            add_step_of(&all[l], heads[l], &w, 1, l, 2);
        }
    }
    for (uint32_t l = 0; l < 2; l++)
        compare(&w, l, RKV_PROFILE_ALL_HEADS, &all[l]);
    compare(&w, 1, 1, &heads[1][1]);
    fx_close(&w);
}

static void test_mass(void **state)
{
    (void)state;
    const fx_executor executors[] = {FX_CHECK, FX_HOST, FX_SIM};
    for (uint32_t run = 0; run < 3; run++) {
        fx w, plain;
        oracle all[2] = {{.n_rows = 0}}, heads[2][2] = {{{.n_rows = 0}}};
        fx_model m = model(executors[run], run == 1 ? RKV_RESIDENT_ALL : RKV_RESIDENT_NONE);
        if (run == 2)
            m.params.ring_bytes = 3 * 16 * 2 * 2 * DIM * 2; /* several launches a site */
        fx_open(&w, &m);
        fx_open(&plain, &m);
        fx_append(&w, 0, 95, RKV_REGIME_PREFILL, 1);
        fx_append(&plain, 0, 95, RKV_REGIME_PREFILL, 1);
        fx_ok(rkv_profile_start(w.cache, 0), "start");
        assert_int_equal(rkv_profile_start(w.cache, 0), RKV_E_STATE);
        for (uint32_t i = 0; i < 5; i++) {
            fx_append(&w, 0, 1 + i, RKV_REGIME_DECODE, 500 + 10 * i);
            fx_append(&plain, 0, 1 + i, RKV_REGIME_DECODE, 500 + 10 * i);
            assert_true(fx_same(&w, &plain));
            for (uint32_t l = 0; l < 2; l++)
                add_step(&all[l], heads[l], &w, l, 1 + i);
        }
        fx_append(&w, 0, 7, RKV_REGIME_PREFILL, 800); /* prefill rows are not counted */
        compare(&w, 0, RKV_PROFILE_ALL_HEADS, &all[0]);
        fx_ok(rkv_profile_stop(w.cache), "stop");
        fx_append(&w, 0, 1, RKV_REGIME_DECODE, 900);
        compare(&w, 1, RKV_PROFILE_ALL_HEADS, &all[1]);
        compare(&w, 1, 0, &heads[1][0]);
        compare(&w, 1, 1, &heads[1][1]);
        fx_close(&w);
        fx_close(&plain);
    }
}

/* Two sequences, aborts, one step in three. */
static void test_in_use(void **state)
{
    (void)state;
    fx w;
    rkv_profile_mass m = {.struct_size = sizeof m};
    const fx_model n = model(FX_CHECK, 32);
    fx_open(&w, &n);
    fx_append(&w, 0, 60, RKV_REGIME_PREFILL, 1);
    fx_append(&w, 1, 40, RKV_REGIME_PREFILL, 100);
    assert_int_equal(rkv_profile_stop(w.cache), RKV_E_STATE);
    fx_ok(rkv_profile_mass_get(w.cache, 0, 0, &m), "mass");
    assert_int_equal(m.n_rows, 0);
    assert_int_equal(rkv_profile_mass_get(w.cache, 2, 0, &m), RKV_E_ARGUMENT);
    assert_int_equal(rkv_profile_mass_get(w.cache, 0, 1, &m), RKV_E_ARGUMENT);
    fx_ok(rkv_profile_start(w.cache, 3), "start");
    for (uint32_t i = 0; i < 9; i++) {
        const fx_entry e[2] = {{.seq = 0, .rows = 2, .tag = 1000 + 2 * i},
                               {.seq = 1, .rows = 1, .tag = 2000 + i}};
        fx_step(&w, e, 2);
    }
    fx_ok(rkv_profile_mass_get(w.cache, 0, 0, &m), "mass");
    assert_int_equal(m.n_rows, 3 * 3 * 2); /* steps, rows, query heads */
    const fx_entry e = {.seq = 0, .rows = 1, .tag = 1};
    for (uint32_t i = 0; i < 3; i++) { /* one of them is profiled */
        fx_ok(fx_begin(&w, &e, 1), "begin");
        assert_int_equal(rkv_profile_mass_get(w.cache, 0, 0, &m), RKV_E_STATE);
        fx_ok(fx_attend(&w, 0), "attend");
        fx_ok(fx_abort(&w), "abort");
        fx_step(&w, &e, 1);
    }
    fx_ok(rkv_profile_mass_get(w.cache, 0, 0, &m), "mass");
    assert_true(m.n_rows > 18);
    fx_compare_fresh(&w, 0, 2);
    fx_close(&w); /* with a profile */
    fx_model graphs = model(FX_HOST, 32);
    graphs.params.flags |= RKV_FLAG_GRAPHS;
    fx_open(&w, &graphs);
    assert_int_equal(rkv_profile_start(w.cache, 0), RKV_E_UNSUPPORTED);
    assert_int_equal(rkv_profile_stop(w.cache), RKV_E_STATE);
    fx_close(&w);
}

static void test_advice(void **state)
{
    (void)state;
    fx w;
    rkv_advice a[2] = {{.struct_size = sizeof a[0]}};
    rkv_advice_sum sum = {.struct_size = sizeof sum};
    fx_model m = model(FX_CHECK, 32);
    fx_open(&w, &m);
    const uint64_t cell0 = DIM * 2 * 2, cell1 = 2 * cell0; /* bytes */
    rkv_advise_params p = {
        .struct_size = sizeof p, .device_bytes = 100 * cell1, .link_bytes_per_s = 1000000000};
    assert_int_equal(rkv_profile_advise(w.cache, &p, a, &sum), RKV_E_ARGUMENT);
    p.context_cells = 320;
    fx_ok(rkv_profile_advise(w.cache, &p, a, &sum), "advise");
    /* layer 1 has two sites: first; 6 tiles of it fit, then nothing of layer 0 but one tile's bytes */
    assert_int_equal(a[1].rank, 0);
    assert_int_equal(a[1].resident_cells, 96);
    assert_int_equal(a[1].streamed_bytes, (320 - 96) * cell1);
    assert_int_equal(a[0].rank, 1);
    assert_int_equal(a[0].resident_cells, RKV_RESIDENT_NONE);
    assert_int_equal(a[0].streamed_bytes, 320 * cell0);
    assert_int_equal(sum.window_bytes, 96 * cell1);
    assert_int_equal(sum.streamed_bytes, a[0].streamed_bytes + a[1].streamed_bytes);
    assert_int_equal(sum.link_ns, sum.streamed_bytes);
    assert_int_equal(sum.is_hidden, 0);
    p.step_ns = 1000000;
    p.link_bytes_per_s = RKV_LINK_UNKNOWN;
    fx_ok(rkv_profile_advise(w.cache, &p, a, &sum), "advise");
    assert_int_equal(sum.link_ns, 0);
    assert_int_equal(sum.is_hidden, 0);
    p.link_bytes_per_s = 1000000000;
    p.device_bytes = 320 * (cell0 + cell1);
    fx_ok(rkv_profile_advise(w.cache, &p, a, &sum), "advise");
    assert_int_equal(sum.streamed_bytes, 0);
    assert_int_equal(sum.is_hidden, 1);
    fx_append(&w, 0, 200, RKV_REGIME_PREFILL, 1);
    fx_ok(rkv_profile_start(w.cache, 1), "start");
    fx_append(&w, 0, 3, RKV_REGIME_DECODE, 1000);
    fx_ok(rkv_profile_stop(w.cache), "stop");
    p.device_bytes = 64 * cell1;
    fx_ok(rkv_profile_advise(w.cache, &p, a, NULL), "advise");
    assert_int_equal(a[1].resident_cells, 64);
    assert_true(a[0].tail_mass == 1); /* nothing of it is resident */
    assert_true(a[1].tail_mass > 0.5 && a[1].tail_mass < 1);
    const rkv_advise_params good = p;
    const uint64_t negative = (uint64_t)-2, most = (uint64_t)1 << 62;
    p.context_cells = most;
    assert_int_equal(rkv_profile_advise(w.cache, &p, a, NULL), RKV_E_OVERFLOW);
    p = good;
    p.device_bytes = most + 1;
    assert_int_equal(rkv_profile_advise(w.cache, &p, a, NULL), RKV_E_OVERFLOW);
    p = good;
    p.link_bytes_per_s = negative;
    assert_int_equal(rkv_profile_advise(w.cache, &p, a, NULL), RKV_E_OVERFLOW);
    p = good;
    p.step_ns = negative;
    assert_int_equal(rkv_profile_advise(w.cache, &p, a, NULL), RKV_E_OVERFLOW);
    p = good;
    p.context_cells = (uint64_t)1 << 50;
    p.link_bytes_per_s = 1; /* takes longer than a number of ns can tell */
    assert_int_equal(rkv_profile_advise(w.cache, &p, a, NULL), RKV_E_OVERFLOW);
    p.link_bytes_per_s = most;
    p.step_ns = most;
    p.device_bytes = most;
    fx_ok(rkv_profile_advise(w.cache, &p, a, NULL), "advise");
    fx_close(&w);
}

/* Budgets as advised are taken as they stand, and hold what was to be spent. */
static void test_advice_taken(void **state)
{
    (void)state;
    fx w;
    fx_model m = model(FX_HOST, 32);
    fx_open(&w, &m);
    fx_append(&w, 0, 300, RKV_REGIME_PREFILL, 1);
    const uint64_t cell0 = DIM * 2 * 2, cell1 = 2 * cell0; /* bytes */
    const uint64_t tried[] = {0, 5 * T * cell1, 320 * cell1 + 3 * T * cell0};
    for (uint32_t i = 0; i < 3; i++) {
        rkv_advice a[2] = {{.struct_size = sizeof a[0]}};
        rkv_advice_sum sum = {.struct_size = sizeof sum};
        const rkv_advise_params p = {.struct_size = sizeof p, .context_cells = 320, .device_bytes = tried[i]};
        uint64_t window = 0;
        fx_ok(rkv_profile_advise(w.cache, &p, a, &sum), "advise");
        assert_int_equal(sum.window_bytes, tried[i]);
        for (uint32_t l = 0; l < 2; l++) {
            fx_ok(rkv_cache_set_residency(w.cache, l, a[l].resident_cells), "set_residency");
            window += fx_layer(&w, l).resident_cells * (l ? cell1 : cell0);
        }
        assert_int_equal(window, tried[i]);
        for (uint32_t l = 0; l < 2; l++)
            m.layers[l].resident_cells = a[l].resident_cells;
        fx created;
        fx_open(&created, &m);
        for (uint32_t l = 0; l < 2; l++)
            assert_int_equal(fx_layer(&created, l).resident_cells, fx_layer(&w, l).resident_cells);
        fx_close(&created);
    }
    fx_compare_fresh(&w, 0, 1);
    fx_close(&w);
}

/* KV layers alike but for where they look: first those that look far from a sequence's first
 * cells; in order without a profile, and where all of them would be resident. */
static void test_advice_by_mass(void **state)
{
    (void)state;
    fx w;
    rkv_advice a[2] = {{.struct_size = sizeof a[0]}};
    const uint64_t cell = 2 * DIM * 2 * 2; /* bytes, of both */
    rkv_advise_params p = {.struct_size = sizeof p, .context_cells = 320, .device_bytes = 64 * cell};
    fx_model m = fx_model_make(T, 0, 400);
    fx_add_layer(&m, 1, DIM, DIM, 32);
    fx_add_layer(&m, 1, DIM, DIM, 32);
    m.layers[1].keep_all = 1;
    m.sites[1].mask = RKV_MASK_SLIDING;
    m.sites[1].mask_width = 29;
    fx_open(&w, &m);
    fx_ok(rkv_profile_advise(w.cache, &p, a, NULL), "advise");
    assert_true(a[0].rank == 0 && a[1].rank == 1);
    fx_append(&w, 0, 200, RKV_REGIME_PREFILL, 1);
    fx_ok(rkv_profile_start(w.cache, 0), "start");
    fx_append(&w, 0, 3, RKV_REGIME_DECODE, 1000);
    fx_ok(rkv_profile_stop(w.cache), "stop");
    fx_ok(rkv_profile_advise(w.cache, &p, a, NULL), "advise");
    assert_true(a[1].rank == 0 && a[0].rank == 1);
    p.device_bytes = (uint64_t)1 << 60;
    fx_ok(rkv_profile_advise(w.cache, &p, a, NULL), "advise");
    assert_true(a[0].rank == 0 && a[1].rank == 1);
    assert_true(a[0].streamed_bytes == 0 && a[1].streamed_bytes == 0);
    fx_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mass), cmocka_unit_test(test_shared_items),
                                       cmocka_unit_test(test_in_use), cmocka_unit_test(test_advice),
                                       cmocka_unit_test(test_advice_taken),
                                       cmocka_unit_test(test_advice_by_mass)};
#ifdef FX_ON_GPU
    fx_use_gpu();
#endif
    return cmocka_run_group_tests(tests, NULL, NULL);
}
