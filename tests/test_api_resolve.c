/* SPDX-License-Identifier: MIT
 *
 * What the API makes of correct batches and tensors: regimes, positions,
 * visible ranges, strides.  Mistakes are in test_api_errors.c.
 */
#include "api_internal.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MAX_ROWS 64u
#define N_SEQUENCES 4u

/* Sequences: 0 empty; 1 cells at [0, 100); 2 cells at [50, 60); 3 ten cells with gaps, up to 99. */
static const rkvi_api_end ends[N_SEQUENCES] = {
    {0, 0, 0, 0}, {100, 0, 100, 0}, {10, 50, 60, 0}, {10, 0, 100, 0}};

static void end_of(const void *from, uint32_t sequence, rkvi_api_end *out)
{
    *out = ((const rkvi_api_end *)from)[sequence];
}

static rkvi_batch_entry entries[N_SEQUENCES];
static rkvi_row rows[MAX_ROWS];
static rkvi_batch batch = {.entries = entries, .rows = rows};

static rkv_status resolve(const rkv_batch_entry *in, uint32_t n)
{
    const rkvi_config cfg = {.n_sequences = N_SEQUENCES, .active_sequences = N_SEQUENCES, .max_rows = MAX_ROWS};
    const rkvi_api_batch_source source = {&cfg, end_of, ends};
    const rkv_batch b = {.struct_size = sizeof b, .n_entries = n, .entries = in};
    const rkv_status s = rkvi_api_batch(&source, &b, 0, &batch);
    if (s != RKV_OK)
        print_message("%s\n", rkvi_error_text());
    return s;
}

static rkv_batch_entry entry(uint32_t sequence, uint32_t n_rows, uint32_t n_new)
{
    rkv_batch_entry e = RKV_BATCH_ENTRY_INIT;
    e.sequence = sequence;
    e.n_rows = n_rows;
    e.n_new_cells = n_new;
    return e;
}

static void test_regimes(void **state)
{
    (void)state;
    static const struct {
        uint32_t rows, regime;
        bool is_prefill;
    } table[] = {
        {1, RKV_REGIME_AUTO, false},    {16, RKV_REGIME_AUTO, false},   {17, RKV_REGIME_AUTO, true},
        {1, RKV_REGIME_PREFILL, true},  {16, RKV_REGIME_PREFILL, true}, {1, RKV_REGIME_DECODE, false},
        {16, RKV_REGIME_DECODE, false}, {64, RKV_REGIME_PREFILL, true},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        rkv_batch_entry e = entry(1, table[i].rows, table[i].rows);
        e.regime = table[i].regime;
        assert_int_equal(resolve(&e, 1), RKV_OK);
        assert_int_equal(batch.entries[0].is_prefill, table[i].is_prefill);
        assert_int_equal(batch.n_rows, table[i].rows);
    }
}

static void test_default_positions(void **state)
{
    (void)state;
    /* in any order of sequences; ragged; new cells and queries mixed */
    const rkv_batch_entry in[4] = {entry(2, 3, 3), entry(0, 2, 2), entry(1, 4, 0), entry(3, 1, 1)};
    static const int64_t want[10] = {60, 61, 62, 0, 1, 96, 97, 98, 99, 100};
    assert_int_equal(resolve(in, 4), RKV_OK);
    assert_int_equal(batch.n_entries, 4);
    assert_int_equal(batch.n_rows, 10);
    for (uint32_t r = 0; r < 10; r++) {
        assert_int_equal(batch.rows[r].pos, want[r]);
        assert_int_equal(batch.rows[r].from, 0);
        assert_int_equal(batch.rows[r].to, RKV_POS_END);
    }
    static const uint32_t row0[4] = {0, 3, 5, 9}, n_new[4] = {3, 2, 0, 1};
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(batch.entries[i].sequence, in[i].sequence);
        assert_int_equal(batch.entries[i].row0, row0[i]);
        assert_int_equal(batch.entries[i].n_new, n_new[i]);
    }
}

static void test_given_positions(void **state)
{
    (void)state;
    const int64_t positions[3] = {100, 500, ((int64_t)1 << 62) - 1};
    const rkv_pos_range visible[3] = {{0, 0}, {7, 90}, {0, RKV_POS_END}};
    rkv_batch_entry e = entry(3, 3, 3);
    e.positions = positions;
    e.visible = visible;
    assert_int_equal(resolve(&e, 1), RKV_OK);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(batch.rows[r].pos, positions[r]);
        assert_int_equal(batch.rows[r].from, visible[r].from);
        assert_int_equal(batch.rows[r].to, visible[r].to);
    }
    const int64_t early[2] = {0, 3}; /* a query may look from anywhere */
    e = entry(1, 2, 0);
    e.positions = early;
    assert_int_equal(resolve(&e, 1), RKV_OK);
    assert_int_equal(batch.rows[1].pos, 3);
    e = entry(0, 1, 0); /* also over an empty sequence: it sees nothing */
    e.positions = early;
    assert_int_equal(resolve(&e, 1), RKV_OK);
}

/* What rkv_cache_check goes by: batches one after another. */
static void test_end_goes_on(void **state)
{
    (void)state;
    rkvi_api_end end = ends[0];
    const rkv_batch_entry first = entry(0, 5, 5), query = entry(1, 5, 0);
    assert_int_equal(resolve(&first, 1), RKV_OK);
    rkvi_api_end_add(&end, &batch, &batch.entries[0]);
    assert_true(end.n_cells == 5 && end.pos_begin == 0 && end.pos_end == 5);
    assert_int_equal(resolve(&query, 1), RKV_OK);
    rkvi_api_end_add(&end, &batch, &batch.entries[0]);
    assert_int_equal(end.n_cells, 5);
}

static void test_array_of_batches(void **state)
{
    (void)state;
    struct {
        rkv_batch batch;
        uint64_t unknown;
    } many[2] = {0};
    const rkv_batch_entry e[2] = {entry(1, 1, 1), entry(2, 7, 7)};
    const rkvi_config cfg = {.n_sequences = N_SEQUENCES, .active_sequences = N_SEQUENCES, .max_rows = MAX_ROWS};
    const rkvi_api_batch_source source = {&cfg, end_of, ends};
    for (int i = 0; i < 2; i++)
        many[i].batch = (rkv_batch){.struct_size = sizeof many[0], .n_entries = 1, .entries = &e[i]};
    assert_int_equal(rkvi_api_batch(&source, &many[0].batch, 1, &batch), RKV_OK);
    assert_int_equal(batch.entries[0].n_rows, 7);
}

/* ------------------------------------------------------------------- tensors */

/* A KV layer of 2 heads, K 64 and V 32 wide; its second site only reads. */
static rkvi_layer_config layer = {.geom = {.n_heads = 2, .dk = 64, .dv = 32}};
static rkvi_site_config sites[2] = {{.n_q_heads = 6, .stores = true}, {.n_q_heads = 4}};
static const rkvi_config cfg2 = {.layers = &layer, .sites = sites, .n_layers = 1, .n_sites = 2};

static rkv_attend_params attend_params(uint32_t site, void *memory)
{
    rkv_attend_params p = RKV_ATTEND_PARAMS_INIT;
    p.site = site;
    p.q.data = p.out.data = memory;
    if (site == 0)
        p.k.data = p.v.data = memory;
    return p;
}

static void test_dense_strides(void **state)
{
    (void)state;
    static float memory[4096];
    const rkv_batch_entry in[2] = {entry(1, 3, 3), entry(2, 2, 0)};
    assert_int_equal(resolve(in, 2), RKV_OK);
    rkv_attend_params p = attend_params(0, memory);
    rkvi_attend a;
    p.out.type = RKV_TYPE_F32;
    p.lse = memory;
    assert_int_equal(rkvi_api_attend(&cfg2, &batch, &p, &a), RKV_OK);
    assert_true(a.q.head_stride == 64 && a.q.row_stride == 6 * 64 && a.q.type == RKV_TYPE_F16);
    assert_true(a.k.head_stride == 64 && a.k.row_stride == 2 * 64);
    assert_true(a.v.head_stride == 32 && a.v.row_stride == 2 * 32);
    assert_true(a.out.head_stride == 32 && a.out.row_stride == 6 * 32 && a.out.type == RKV_TYPE_F32);
    assert_int_equal(a.lse_row_stride, 6);
    assert_null(a.sinks);
    p = attend_params(1, memory);
    assert_int_equal(rkvi_api_attend(&cfg2, &batch, &p, &a), RKV_OK);
    assert_int_equal(a.q.row_stride, 4 * 64);
    assert_true(a.k.data == NULL && a.v.data == NULL);
}

static void test_given_strides(void **state)
{
    (void)state;
    static float memory[4096];
    const rkv_batch_entry in = entry(1, 3, 3);
    assert_int_equal(resolve(&in, 1), RKV_OK);
    rkvi_attend a;
    rkv_attend_params p = attend_params(0, memory);
    p.q.head_stride = 80;       /* padded heads, and rows that follow from them */
    p.out.head_stride = 3 * 32; /* heads outside, rows inside */
    p.out.row_stride = 32;
    p.k.row_stride = 1000;
    p.lse = memory;
    p.lse_row_stride = 17;
    assert_int_equal(rkvi_api_attend(&cfg2, &batch, &p, &a), RKV_OK);
    assert_true(a.q.head_stride == 80 && a.q.row_stride == 480);
    assert_true(a.out.head_stride == 96 && a.out.row_stride == 32);
    assert_true(a.k.head_stride == 64 && a.k.row_stride == 1000);
    assert_int_equal(a.lse_row_stride, 17);
    p.out.head_stride = 2 * 32; /* three rows don't fit between heads */
    assert_int_equal(rkvi_api_attend(&cfg2, &batch, &p, &a), RKV_E_ARGUMENT);
    assert_non_null(strstr(rkvi_error_text(), "overlap"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_regimes),          cmocka_unit_test(test_default_positions),
        cmocka_unit_test(test_given_positions),  cmocka_unit_test(test_end_goes_on),
        cmocka_unit_test(test_array_of_batches), cmocka_unit_test(test_dense_strides),
        cmocka_unit_test(test_given_strides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
