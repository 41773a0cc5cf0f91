/* SPDX-License-Identifier: MIT
 *
 * Drafts and token trees: rows that verify have the bits of rows decoded one by
 * one, in many sequences of which each accepts another number; trees against
 * attention in f64; accepted cells are those of a sequence that never had the rest.
 */
#include "step_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define T 16u
#define DIM 64u
#define SEQS 4u

static uint64_t seed;

static uint32_t below(uint64_t *r, uint32_t n)
{
    return (uint32_t)(fx_random(r) % n);
}

static fx_model tree_model(uint64_t resident, fx_executor executor, uint64_t executor_seed)
{
    fx_model m = fx_model_make(T, 0, 2048);
    const uint32_t full = fx_add_layer(&m, 2, DIM, DIM, resident), local = fx_add_layer(&m, 1, DIM, DIM, resident);
    m.layers[full].type_k = m.layers[full].type_v = RKV_TYPE_F16;
    m.sites[local].mask = RKV_MASK_SLIDING;
    m.sites[local].mask_width = 40;
    m.sites[local].softcap = 15;
    m.sinks[full] = true;
    fx_add_site(&m, full, 2);
    m.params.n_sequences = SEQS;
    m.params.draft_rows = 64;
    m.executor = executor;
    m.seed = executor_seed;
    return m;
}

/* ------------------------------------------------------------------- drafts */

/* The bits of row `row` of a's last step are those of b's only row. */
static void same_row(const fx *a, uint32_t row, const fx *b)
{
    for (uint32_t s = 0; s < a->model.n_sites; s++)
        for (uint32_t h = 0; h < a->model.sites[s].n_q_heads; h++) {
            for (uint32_t i = 0; i < DIM; i++) {
                const float x = fx_out(a, s, row, h, i), y = fx_out(b, s, 0, h, i);
                assert_memory_equal(&x, &y, sizeof x);
            }
            const uint32_t n = a->model.sites[s].n_q_heads;
            assert_memory_equal(&a->lse[s][row * n + h], &b->lse[s][h], sizeof(float));
        }
}

/* Steps of several sequences with up to 16 drafts each, of which each sequence
 * accepts as many as come out; `b` decodes what was accepted, cell by cell. */
static void drafts(fx_executor executor, uint64_t s, uint32_t n_steps)
{
    fx a, b;
    uint64_t r = s;
    fx_model ma = tree_model(RKV_RESIDENT_NONE, executor, s), mb = tree_model(RKV_RESIDENT_ALL, FX_HOST, s);
    fx_open(&a, &ma);
    fx_open(&b, &mb);
    for (uint32_t q = 0; q < SEQS; q++) {
        fx_append(&a, q, 70 + 13 * q, RKV_REGIME_PREFILL, 1000 * (q + 1));
        fx_append(&b, q, 70 + 13 * q, RKV_REGIME_PREFILL, 1000 * (q + 1));
    }
    for (uint32_t i = 0; i < n_steps; i++) {
        fx_entry e[SEQS];
        uint32_t row = 0;
        for (uint32_t q = 0; q < SEQS; q++)
            e[q] = (fx_entry){.seq = q, .rows = 1 + below(&r, 16), .tag = (s + i) * 4096 + q * 64};
        fx_step(&a, e, SEQS);
        for (uint32_t q = 0; q < SEQS; row += e[q++].rows) {
            const uint32_t accepted = below(&r, e[q].rows + 1);
            for (uint32_t k = 0; k < accepted; k++) {
                const fx_entry one = {.seq = q, .rows = 1, .tag = e[q].tag + k};
                fx_step(&b, &one, 1);
                same_row(&a, row + k, &b);
            }
            fx_truncate(&a, q, a.n_cells[q] - e[q].rows + accepted);
            assert_int_equal(a.n_cells[q], b.n_cells[q]);
        }
    }
    fx_close(&a);
    fx_close(&b);
}

static void test_drafts(void **state)
{
    (void)state;
    drafts(FX_HOST, seed, 12);
    drafts(FX_CHECK, seed + 1, 6);
    for (uint64_t s = 2; s < (fx_is_full() ? 30 : 5); s++)
        drafts(FX_SIM, seed + s, 4);
}

/* Rows that see parts of the sequence: each has the bits of a step that asks for
 * that part alone. */
static void test_visible(void **state)
{
    (void)state;
    fx a, b;
    fx_model ma = tree_model(RKV_RESIDENT_NONE, FX_HOST, 1), mb = tree_model(RKV_RESIDENT_ALL, FX_HOST, 1);
    fx_open(&a, &ma);
    fx_open(&b, &mb);
    fx_append(&a, 0, 300, RKV_REGIME_PREFILL, 1000);
    fx_append(&b, 0, 300, RKV_REGIME_PREFILL, 1000);
    const rkv_pos_range part[] = {{0, 20}, {17, 300}, {290, 299}, {0, 0}, {0, RKV_POS_END}};
    const int64_t pos[] = {295, 296, 297, 298, 299};
    const fx_entry e = {.seq = 0, .rows = 5, .is_query = true, .tag = 5000, .positions = pos, .visible = part};
    fx_step(&a, &e, 1);
    for (uint32_t k = 0; k < 5; k++) {
        const fx_entry one = {
            .seq = 0, .rows = 1, .is_query = true, .tag = 5000 + k, .positions = &pos[k], .visible = &part[k]};
        fx_step(&b, &one, 1);
        same_row(&a, k, &b);
    }
    fx_close(&a);
    fx_close(&b);
}

/* -------------------------------------------------------------------- trees */

typedef struct tree {
    uint32_t n;
    uint64_t mask[64];
    int64_t pos[64];
    uint64_t tag;
} tree;

static tree random_tree(uint64_t *r, uint32_t most, int64_t end)
{
    tree t = {.n = 1 + below(r, most), .tag = fx_random(r) >> 20};
    for (uint32_t i = 0; i < t.n; i++) {
        const bool root = i == 0 || below(r, 8) == 0;
        const uint32_t parent = root ? 0 : below(r, i);
        t.mask[i] = (root ? 0 : t.mask[parent]) | 1ull << i;
        t.pos[i] = root ? end : t.pos[parent] + 1;
    }
    return t;
}

/* One row and head of a tree's step in f64, against what came out. */
static double row_error(const fx *w, uint32_t row0, uint32_t seq, const tree *t, uint32_t row, uint32_t site,
                        uint32_t head)
{
    const rkv_site_params *sp = &w->model.sites[site];
    const rkv_kv_layer_params *lp = &w->model.layers[sp->kv_layer];
    const uint32_t group = sp->n_q_heads / lp->n_kv_heads;
    const fx_cell *cells = w->cells[seq];
    const uint64_t n = w->n_cells[seq];
    const int64_t width = sp->mask == RKV_MASK_SLIDING ? (int64_t)sp->mask_width : INT64_MAX;
    double sum = 0, out[DIM] = {0}, error = 0;
    float q[8 * DIM], x[4 * DIM];
    fx_values(t->tag + row, site, 'q', sp->n_q_heads * DIM, q);
    if (w->site_sinks[site])
        sum = exp((double)w->site_sinks[site][head]);
    for (uint64_t i = 0; i < n + t->n; i++) {
        const bool is_new = i >= n;
        const int64_t pos = is_new ? t->pos[i - n] : cells[i].pos;
        const uint64_t tag = is_new ? t->tag + (i - n) : cells[i].tag;
        if (t->pos[row] - pos >= width || (is_new && !(t->mask[row] >> (i - n) & 1)))
            continue;
        double s = 0;
        fx_values(tag, sp->kv_layer, 'k', lp->n_kv_heads * DIM, x);
        for (uint32_t j = 0; j < DIM; j++)
            s += (double)q[head * DIM + j] * (double)x[head / group * DIM + j];
        s /= sqrt(DIM);
        s = sp->softcap != 0 ? (double)sp->softcap * tanh(s / (double)sp->softcap) : s;
        fx_values(tag, sp->kv_layer, 'v', lp->n_kv_heads * DIM, x);
        sum += exp(s);
        for (uint32_t j = 0; j < DIM; j++)
            out[j] += exp(s) * (double)x[head / group * DIM + j];
    }
    for (uint32_t j = 0; j < DIM; j++)
        error = fmax(error, fabs(out[j] / sum - (double)fx_out(w, site, row0 + row, head, j)));
    return error;
}

/* fx's step, with the mask; the record of cells is the caller's. */
static void tree_step(fx *w, uint32_t seq, const tree *t, uint32_t regime)
{
    fx_entry e = {.seq = seq, .rows = t->n, .tag = t->tag, .positions = t->pos, .regime = regime, .tree_mask = t->mask};
    const uint64_t n = w->n_cells[seq];
    fx_step(w, &e, 1);
    w->n_cells[seq] = n;
}

static void accept(fx *w, uint32_t seq, const tree *t, const uint32_t *cells, uint32_t n)
{
    fx_ok(rkv_sequence_accept(w->cache, seq, cells, n, w->stream), "accept");
    for (uint32_t i = 0; i < n; i++)
        w->cells[seq][w->n_cells[seq]++] = (fx_cell){t->tag + cells[i], t->pos[cells[i]]};
}

/* A path from a root of the tree to some node, or a part of it. */
static uint32_t random_path(uint64_t *r, const tree *t, uint32_t *cells)
{
    const uint64_t mask = t->mask[below(r, t->n)];
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n; i++)
        if (mask >> i & 1)
            cells[n++] = i;
    return below(r, n + 1);
}

static void trees(fx_executor executor, uint64_t s, uint32_t n_steps)
{
    fx a, b;
    uint64_t r = s;
    double worst = 0;
    fx_model ma = tree_model(RKV_RESIDENT_NONE, executor, s), mb = tree_model(RKV_RESIDENT_ALL, FX_HOST, s);
    fx_open(&a, &ma);
    fx_open(&b, &mb);
    for (uint32_t i = 0; i < n_steps; i++) {
        const uint32_t q = below(&r, 2), rows = 1 + below(&r, 60);
        const uint64_t tag = fx_random(&r) >> 20;
        fx_append(&a, q, rows, RKV_REGIME_PREFILL, tag);
        fx_append(&b, q, rows, RKV_REGIME_PREFILL, tag);
        const uint64_t n = a.n_cells[q];
        const tree t = random_tree(&r, i % 2 ? 16 : 64, a.cells[q][n - 1].pos + 1 + (i % 3 == 0));
        const uint32_t regime = t.n > 16 || i % 3 == 2 ? RKV_REGIME_PREFILL : RKV_REGIME_DECODE;
        tree_step(&a, q, &t, regime);
        tree_step(&b, q, &t, regime);
        assert_true(fx_same(&a, &b));
        for (uint32_t k = 0; k < 3; k++) {
            const uint32_t row = below(&r, t.n), site = below(&r, a.model.n_sites);
            worst = fmax(worst, row_error(&a, 0, q, &t, row, site, below(&r, a.model.sites[site].n_q_heads)));
        }
        uint32_t cells[64];
        const uint32_t n_accepted = random_path(&r, &t, cells);
        accept(&a, q, &t, cells, n_accepted);
        accept(&b, q, &t, cells, n_accepted);
        rkv_sequence_state state = {.struct_size = sizeof state};
        fx_ok(rkv_sequence_info(a.cache, q, &state), "info");
        assert_int_equal(state.n_cells, a.n_cells[q]);
        assert_int_equal(state.pos_end, a.cells[q][a.n_cells[q] - 1].pos + 1);
        if (i % 4 == 3 && executor == FX_HOST)
            fx_compare_fresh(&a, q, 3);
    }
    print_message("executor %d: error at most %.1e\n", (int)executor, worst);
    assert_true(worst < (fx_gpu ? 3e-3 : 2e-6));
    fx_check_empty(&a);
    fx_close(&a);
    fx_close(&b);
}

static void test_trees(void **state)
{
    (void)state;
    trees(FX_HOST, seed, 24);
    trees(FX_CHECK, seed + 1, 10);
    for (uint64_t s = 2; s < (fx_is_full() ? 30 : 5); s++)
        trees(FX_SIM, seed + s, 8);
}

/* Trees of two forks and a plain row in one step, which share all but their own
 * cells, a partly filled tile included. */
static void test_forks(void **state)
{
    (void)state;
    uint64_t r = seed;
    for (uint32_t round = 0; round < 6; round++) {
        fx w[2];
        tree t[2] = {random_tree(&r, 16, 100 + round), random_tree(&r, 16, 100 + round)};
        const uint32_t regime = round % 3 == 2 ? RKV_REGIME_PREFILL : RKV_REGIME_DECODE;
        double worst = 0;
        for (uint32_t i = 0; i < 2; i++) {
            const fx_model m = tree_model(i ? RKV_RESIDENT_ALL : RKV_RESIDENT_NONE, i ? FX_HOST : FX_CHECK, seed);
            fx_open(&w[i], &m);
            fx_append(&w[i], 0, 100 + round, RKV_REGIME_PREFILL, 1000);
            for (uint32_t q = 1; q < 3; q++) {
                fx_ok(rkv_sequence_fork(w[i].cache, q, 0), "fork");
                memcpy(w[i].cells[q], w[i].cells[0], w[i].n_cells[0] * sizeof *w[i].cells[0]);
                w[i].n_cells[q] = w[i].n_cells[0];
            }
            const fx_entry e[3] = {{.seq = 0,
                                    .rows = t[0].n,
                                    .tag = t[0].tag,
                                    .positions = t[0].pos,
                                    .tree_mask = t[0].mask,
                                    .regime = regime},
                                   {.seq = 1, .rows = 1, .tag = 5000, .regime = regime},
                                   {.seq = 2,
                                    .rows = t[1].n,
                                    .tag = t[1].tag,
                                    .positions = t[1].pos,
                                    .tree_mask = t[1].mask,
                                    .regime = regime}};
            fx_step(&w[i], e, 3);
            w[i].n_cells[0] = w[i].n_cells[2] = 100 + round;
        }
        assert_true(fx_same(&w[0], &w[1]));
        for (uint32_t k = 0; k < t[0].n; k++)
            worst = fmax(worst, row_error(&w[0], 0, 0, &t[0], k, k % 3, 0));
        for (uint32_t k = 0; k < t[1].n; k++)
            worst = fmax(worst, row_error(&w[0], t[0].n + 1, 2, &t[1], k, k % 3, 0));
        assert_true(worst < (fx_gpu ? 3e-3 : 2e-6));
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t cells[64];
            uint64_t path = round;
            accept(&w[i], 0, &t[0], cells, random_path(&path, &t[0], cells));
            accept(&w[i], 2, &t[1], cells, random_path(&path, &t[1], cells));
        }
        for (uint32_t q = 0; q < 3; q++)
            fx_compare_fresh(&w[0], q, 2);
        fx_close(&w[0]);
        fx_close(&w[1]);
    }
}

/* ------------------------------------------------------------------ refusals */

static void begin_fails(fx *w, const fx_entry *e, rkv_status want, const char *sentence)
{
    assert_int_equal(fx_begin(w, e, 1), want);
    assert_non_null(strstr(rkv_error_message(), sentence));
}

/* The tree fills a tile of which another sequence has the first cells, far behind its end, or goes
 * on in the next tile: it is not demoted before the accepted cells have moved. */
static void test_shared_tile(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {4, 6};
    for (uint32_t k = 0; k < 2; k++) {
        fx w[2];
        const uint32_t n = sizes[k], last = n - 1;
        uint64_t mask[6];
        int64_t pos[6], far[40];
        for (uint32_t r = 0; r < 6; r++)
            mask[r] = 1ull << r, pos[r] = 12;
        for (uint32_t r = 0; r < 40; r++)
            far[r] = 100 + r;
        for (uint32_t i = 0; i < 2; i++) {
            fx_model m = tree_model(i ? RKV_RESIDENT_ALL : RKV_RESIDENT_NONE, i ? FX_HOST : FX_CHECK, seed);
            m.params.draft_rows = 6;
            fx_open(&w[i], &m);
            const fx_entry e = {.seq = 2, .rows = 40, .regime = RKV_REGIME_PREFILL, .tag = 500, .positions = far};
            fx_append(&w[i], 0, 12, RKV_REGIME_PREFILL, 1);
            fx_step(&w[i], &e, 1);
            fx_append_from(&w[i], 1, 0, 0, 9);
            fx_append_from(&w[i], 1, 2, 100, 140);
            const fx_entry both[] = {
                {.seq = 0, .rows = n, .tag = 1000, .positions = pos, .tree_mask = mask, .regime = RKV_REGIME_DECODE},
                {.seq = 1, .rows = 1, .tag = 2000}};
            fx_step(&w[i], both, 2);
            fx_append(&w[i], 1, 1, RKV_REGIME_DECODE, 2001); /* the tree waits */
            fx_ok(rkv_sequence_accept(w[i].cache, 0, &last, 1, w[i].stream), "accept");
            w[i].n_cells[0] = 13;
            w[i].cells[0][12] = (fx_cell){1000 + last, 12};
        }
        for (uint32_t s = 0; s < 6; s++) {
            const fx_entry e[] = {{.seq = 0, .rows = 1, .tag = 3000 + s}, {.seq = 1, .rows = 1, .tag = 4000 + s}};
            fx_step(&w[0], e, 2);
            fx_step(&w[1], e, 2);
            assert_true(fx_same(&w[0], &w[1]));
        }
        fx_compare_fresh(&w[0], 0, 4);
        fx_close(&w[0]);
        fx_close(&w[1]);
    }
}

static void test_refused(void **state)
{
    (void)state;
    fx w;
    fx_model m = tree_model(RKV_RESIDENT_ALL, FX_HOST, 1);
    m.params.draft_rows = 4;
    fx_open(&w, &m);
    fx_append(&w, 0, 10, RKV_REGIME_PREFILL, 1);
    uint64_t mask[] = {1, 3, 5, 16, 1};
    int64_t pos[] = {10, 11, 11, 12, 12};
    fx_entry e = {.seq = 0, .rows = 4, .positions = pos, .tree_mask = mask, .tag = 100};
    begin_fails(&w, &e, RKV_E_BATCH, "tree_mask[3] is 0x10");
    mask[3] = 11;
    e.rows = 5;
    begin_fails(&w, &e, RKV_E_BATCH, "at most draft_rows, 4");
    e.rows = 4;
    pos[1] = 9;
    begin_fails(&w, &e, RKV_E_BATCH, "position 9");
    pos[1] = 11;
    e.positions = NULL;
    begin_fails(&w, &e, RKV_E_BATCH, "positions must be given");
    e.positions = pos;
    e.is_query = true;
    begin_fails(&w, &e, RKV_E_BATCH, "there is no tree");
    e.is_query = false;
    const uint32_t good[] = {0, 2}, both[] = {1, 2}, falling[] = {2, 0}, none[] = {4};
    assert_int_equal(rkv_sequence_accept(w.cache, 0, good, 2, NULL), RKV_E_STATE);
    fx_step(&w, &e, 1);
    assert_int_equal(rkv_sequence_remove(w.cache, 0, 5, RKV_POS_END), RKV_E_STATE);
    const fx_entry next = {.seq = 0, .rows = 1, .tag = 200};
    begin_fails(&w, &next, RKV_E_BATCH, "rkv_sequence_accept");
    assert_int_equal(rkv_sequence_accept(w.cache, 0, both, 2, NULL), RKV_E_ARGUMENT);
    assert_int_equal(rkv_sequence_accept(w.cache, 0, falling, 2, NULL), RKV_E_ARGUMENT);
    assert_int_equal(rkv_sequence_accept(w.cache, 0, none, 1, NULL), RKV_E_ARGUMENT);
    assert_int_equal(rkv_sequence_accept(w.cache, 0, good, 5, NULL), RKV_E_ARGUMENT);
    assert_int_equal(rkv_sequence_accept(w.cache, 0, NULL, 2, NULL), RKV_E_ARGUMENT);
    assert_int_equal(rkv_sequence_accept(w.cache, 9, good, 2, NULL), RKV_E_SEQUENCE);
    fx_ok(rkv_sequence_accept(w.cache, 0, good, 2, NULL), "accept");
    assert_int_equal(rkv_sequence_accept(w.cache, 0, good, 2, NULL), RKV_E_STATE);
    rkv_sequence_state q = {.struct_size = sizeof q};
    fx_ok(rkv_sequence_info(w.cache, 0, &q), "info");
    assert_int_equal(q.n_cells, 12);
    assert_int_equal(q.pos_end, 12);
    assert_int_equal(q.n_tree_cells, 0);
    fx_close(&w);
}

/* A tree's step that is aborted leaves nothing; clear takes a tree as well. */
static void test_abort(void **state)
{
    (void)state;
    fx w;
    uint64_t r = seed;
    const fx_model m = tree_model(RKV_RESIDENT_NONE, FX_HOST, 1);
    fx_open(&w, &m);
    fx_append(&w, 0, 100, RKV_REGIME_PREFILL, 1);
    tree t = random_tree(&r, 40, 100);
    const fx_entry e = {.seq = 0, .rows = t.n, .positions = t.pos, .tree_mask = t.mask, .tag = t.tag,
                        .regime = RKV_REGIME_PREFILL};
    fx_ok(fx_begin(&w, &e, 1), "begin");
    fx_ok(fx_attend(&w, 0), "attend");
    fx_ok(fx_abort(&w), "abort");
    fx_ok(fx_sync(&w), "sync");
    fx_compare_fresh(&w, 0, 3);
    tree_step(&w, 0, &t, RKV_REGIME_PREFILL);
    fx_check_empty(&w);
    fx_append(&w, 0, 30, RKV_REGIME_PREFILL, 500);
    fx_compare_fresh(&w, 0, 3);
    fx_close(&w);
}

int main(void)
{
#ifdef FX_ON_GPU
    fx_use_gpu();
#endif
    seed = fx_seed();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_drafts),      cmocka_unit_test(test_visible),
                                       cmocka_unit_test(test_trees),       cmocka_unit_test(test_forks),
                                       cmocka_unit_test(test_shared_tile), cmocka_unit_test(test_refused),
                                       cmocka_unit_test(test_abort)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
