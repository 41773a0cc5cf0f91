/* SPDX-License-Identifier: MIT
 *
 * The CPU's share in steps of all kinds of rows: drafts, token trees, several
 * sequences, of which some share cells: beside a cache without a share, and
 * against attention in f64.
 */
#include "step_near.h"

#include "step_types.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define T 16u
#define NEAR 2e-6f
#define EVER_NS ((uint64_t)1000000000000) /* what threads do in time does not depend on the machine's load */
#define DIM 64u
#define SHARE 15u

static uint64_t seed;

static fx_model model(fx_executor executor, bool with_share)
{
    fx_model m = fx_model_make(T, 0, 4096);
    const uint32_t full = fx_add_layer(&m, 2, DIM, DIM, RKV_RESIDENT_NONE);
    const uint32_t local = fx_add_layer(&m, 1, DIM, DIM, 2 * T);
    m.layers[full].type_k = m.layers[full].type_v = RKV_TYPE_F16;
    m.layers[local].type_k = m.layers[local].type_v = RKV_TYPE_F16;
    m.sites[local].mask = RKV_MASK_SLIDING;
    m.sites[local].mask_width = 20 * T;
    m.sites[local].softcap = 15;
    m.sinks[full] = true;
    fx_add_site(&m, full, 8);
    m.params.n_sequences = 3;
    m.params.draft_rows = 16;
    m.params.ring_bytes = 64 * 1024;
    m.params.copy_bytes = 16 * 1024;
    m.params.cpu_threads = with_share ? 2 : 0;
    m.params.cpu_share = with_share ? SHARE : 0;
    m.params.cpu_wait_ns = with_share ? EVER_NS : 0;
    m.executor = executor;
    m.seed = seed;
    return m;
}

/* One row and head of the last step in f64: it sees the cells of its sequence up
 * to its position, of the step's own those in the mask. */
static double row_error(const fx *w, const fx_entry *e, uint32_t row0, uint32_t row, uint32_t site, uint32_t head)
{
    const rkv_site_params *sp = &w->model.sites[site];
    const rkv_kv_layer_params *lp = &w->model.layers[sp->kv_layer];
    const uint32_t group = sp->n_q_heads / lp->n_kv_heads;
    const fx_cell *cells = w->cells[e->seq];
    const uint64_t n = w->n_cells[e->seq];
    const int64_t at = w->row_pos[row0 + row],
                  width = sp->mask == RKV_MASK_SLIDING ? (int64_t)sp->mask_width : INT64_MAX;
    double sum = w->site_sinks[site] ? exp((double)w->site_sinks[site][head]) : 0, out[DIM] = {0}, error = 0;
    float q[8 * DIM], x[4 * DIM];
    fx_values(e->tag + row, site, 'q', sp->n_q_heads * DIM, q);
    for (uint64_t i = 0; i < n; i++) {
        const bool is_own = e->tree_mask && i >= n - e->rows;
        if (cells[i].pos > at || at - cells[i].pos >= width ||
            (is_own && !(e->tree_mask[row] >> (i - (n - e->rows)) & 1)))
            continue;
        double s = 0;
        fx_values(cells[i].tag, sp->kv_layer, 'k', lp->n_kv_heads * DIM, x);
        for (uint32_t j = 0; j < DIM; j++)
            s += (double)q[head * DIM + j] * (double)x[head / group * DIM + j];
        s /= sqrt(DIM);
        s = sp->softcap != 0 ? (double)sp->softcap * tanh(s / (double)sp->softcap) : s;
        fx_values(cells[i].tag, sp->kv_layer, 'v', lp->n_kv_heads * DIM, x);
        sum += exp(s);
        for (uint32_t j = 0; j < DIM; j++)
            out[j] += exp(s) * (double)x[head / group * DIM + j];
    }
    for (uint32_t j = 0; j < DIM; j++)
        error = fmax(error, fabs(out[j] / sum - (double)fx_out(w, site, row0 + row, head, j)));
    return error;
}

typedef struct pair {
    fx w, plain;
} pair;

/* The same step in both; the CPU has a part of it. */
static void step(pair *p, const fx_entry *e, uint32_t n)
{
    fx *const both[] = {&p->w, &p->plain};
    const uint64_t before = fx_stats(&p->w).cpu_bytes;
    double worst = 0;
    for (uint32_t k = 0; k < 2; k++) {
        fx_step(both[k], e, n);
        fx_ok(fx_sync(both[k]), "sync");
    }
    assert_true(fx_stats(&p->w).cpu_bytes > before);
    assert_true(fx_near(&p->w, &p->plain, NEAR));
    for (uint32_t i = 0, row0 = 0; i < n; row0 += e[i++].rows)
        for (uint32_t site = 0; site < p->w.model.n_sites; site++)
            worst = fmax(worst,
                         row_error(&p->w, &e[i], row0, e[i].rows - 1, site, site % p->w.model.sites[site].n_q_heads));
    if (worst > 2e-6)
        fail_msg("%.2e off", worst);
}

static void text(pair *p)
{
    fx *const both[] = {&p->w, &p->plain};
    for (uint32_t k = 0; k < 2; k++) {
        for (uint32_t s = 0; s < 2; s++)
            fx_append(both[k], s, 40 * T + 5, RKV_REGIME_PREFILL, 1000 + s * 100000);
        fx_append_from(both[k], 2, 0, 0, 40 * T);
        for (uint32_t i = 0; i < 3; i++) {
            const fx_entry e[3] = {{.seq = 0, .rows = 1, .tag = 2000 + i}, {.seq = 1, .rows = 1, .tag = 3000 + i},
                                   {.seq = 2, .rows = 1, .tag = 4000 + i}};
            fx_step(both[k], e, 3);
        }
    }
}

static int64_t end_of(const fx *w, uint32_t seq)
{
    return w->cells[seq][w->n_cells[seq] - 1].pos + 1;
}

/* A binary tree: node i hangs from (i - 1) / 2, and sees itself and those above. */
typedef struct tree {
    int64_t pos[16];
    uint64_t mask[16];
} tree;

static tree tree_at(int64_t pos)
{
    tree t = {.pos = {pos}, .mask = {1}};
    for (uint32_t i = 1; i < 16; i++) {
        t.pos[i] = t.pos[(i - 1) / 2] + 1;
        t.mask[i] = t.mask[(i - 1) / 2] | (uint64_t)1 << i;
    }
    return t;
}

static void accept(pair *p, uint32_t seq, const uint32_t *cells, uint32_t n)
{
    fx *const both[] = {&p->w, &p->plain};
    for (uint32_t k = 0; k < 2; k++) {
        fx *w = both[k];
        const fx_cell *own = w->cells[seq] + w->n_cells[seq] - 16;
        fx_cell taken[16];
        fx_ok(rkv_sequence_accept(w->cache, seq, cells, n, w->stream), "accept");
        for (uint32_t i = 0; i < n; i++)
            taken[i] = own[cells[i]];
        w->n_cells[seq] -= 16;
        memcpy(w->cells[seq] + w->n_cells[seq], taken, n * sizeof *taken);
        w->n_cells[seq] += n;
    }
}

static void all_kinds(fx_executor executor)
{
    static const uint32_t path[] = {0, 2, 5};
    pair p;
    const fx_model m = model(executor, true), without = model(FX_HOST, false);
    fx_open(&p.w, &m);
    fx_open(&p.plain, &without);
    text(&p);
    for (uint32_t rows = 1; rows <= 16; rows += 5) {
        const fx_entry one = {.seq = 1, .rows = rows, .tag = 50000 + 100 * rows};
        step(&p, &one, 1);
    }
    const fx_entry many[3] = {{.seq = 0, .rows = 5, .tag = 60000}, {.seq = 1, .rows = 1, .tag = 61000},
                              {.seq = 2, .rows = 3, .tag = 62000}};
    step(&p, many, 3);
    const tree t = tree_at(end_of(&p.w, 1));
    const fx_entry draft = {.seq = 1, .rows = 16, .tag = 70000, .positions = t.pos, .tree_mask = t.mask};
    step(&p, &draft, 1);
    accept(&p, 1, path, 3);
    const tree a = tree_at(end_of(&p.w, 0)), b = tree_at(end_of(&p.w, 2)); /* of what is shared */
    const fx_entry drafts[3] = {{.seq = 0, .rows = 16, .tag = 80000, .positions = a.pos, .tree_mask = a.mask},
                                {.seq = 1, .rows = 2, .tag = 81000},
                                {.seq = 2, .rows = 16, .tag = 82000, .positions = b.pos, .tree_mask = b.mask}};
    step(&p, drafts, 3);
    accept(&p, 0, path, 2);
    accept(&p, 2, path, 1);
    step(&p, many, 3);
    fx_close(&p.w);
    fx_close(&p.plain);
}

/* Positions of a stretch in the middle and of the end are shifted, by unlike turns. */
static void shifted(fx_executor executor)
{
    static float frequencies[DIM / 2];
    pair p;
    fx_model m = model(executor, true), without = model(FX_HOST, false);
    for (uint32_t i = 0; i < DIM / 2; i++)
        frequencies[i] = (float)pow(10000, -2.0 * i / DIM);
    m.params.rope = without.params.rope = (rkv_rope_params){frequencies, DIM / 2, 0};
    fx_open(&p.w, &m);
    fx_open(&p.plain, &without);
    text(&p);
    fx *const both[] = {&p.w, &p.plain};
    for (uint32_t k = 0; k < 2; k++) {
        fx_ok(rkv_sequence_shift(both[k]->cache, 1, 300, RKV_POS_END, 7), "shift");
        fx_ok(rkv_sequence_shift(both[k]->cache, 1, 500, RKV_POS_END, 1000), "shift");
        fx_ok(rkv_sequence_shift(both[k]->cache, 2, 100, RKV_POS_END, 50), "shift");
    }
    for (uint32_t i = 0; i < 4; i++) {
        const int64_t pos[3][4] = {{700 + 4 * i, 701 + 4 * i, 702 + 4 * i, 703 + 4 * i},
                                   {2000 + 4 * i, 2001 + 4 * i, 2002 + 4 * i, 2003 + 4 * i},
                                   {800 + 4 * i, 801 + 4 * i, 802 + 4 * i, 803 + 4 * i}};
        const uint32_t n = i % 2 ? 3 : 1, first = i % 2 ? 0 : 1, rows = 1 + i;
        fx_entry e[3];
        for (uint32_t s = 0; s < n; s++)
            e[s] = (fx_entry){
                .seq = first + s, .rows = rows, .tag = 90000 + 1000 * i + 100 * s, .positions = pos[first + s]};
        const uint64_t before = fx_stats(&p.w).cpu_bytes;
        for (uint32_t k = 0; k < 2; k++) {
            fx_step(both[k], e, n);
            fx_ok(fx_sync(both[k]), "sync");
        }
        assert_true(p.w.cache->plan.n_turned_rows > 0);
        assert_true(fx_stats(&p.w).cpu_bytes > before);
        assert_true(fx_near(&p.w, &p.plain, NEAR));
    }
    fx_close(&p.w);
    fx_close(&p.plain);
}

static void test_shifted(void **state)
{
    (void)state;
    shifted(FX_HOST);
    shifted(FX_CHECK);
    for (uint32_t i = 0; i < 2; i++, seed++)
        shifted(FX_SIM);
}

static void test_host(void **state)
{
    (void)state;
    all_kinds(FX_HOST);
}

static void test_edges(void **state)
{
    (void)state;
    all_kinds(FX_CHECK);
}

static void test_orders(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 3; i++, seed++)
        all_kinds(FX_SIM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host), cmocka_unit_test(test_edges), cmocka_unit_test(test_orders),
        cmocka_unit_test(test_shifted),
    };
    seed = fx_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
