/* SPDX-License-Identifier: MIT
 *
 * Export and import of cells: every form, host and device memory, into the
 * window and the tail; what comes back has the same bits, or the same values.
 */
#include "ops_half.h"
#include "rollkv/cells.h"
#include "state_fixture.h"
#include "state_hash.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CELLS 64u
#define SIDE_BYTES (CELLS * 2u * 64u * 4u)

/* K and V of cells outside the cache; `as` says how they lie. */
typedef struct outside {
    rkv_cells as;
    uint8_t k[SIDE_BYTES], v[SIDE_BYTES];
} outside;

static void outside_init(outside *o, uint32_t layer, uint32_t form, rkv_type k, rkv_type v)
{
    memset(o, 0xA5, sizeof *o);
    o->as = (rkv_cells){.struct_size = sizeof o->as, .kv_layer = layer, .form = form};
    o->as.k = (rkv_tensor){.data = o->k, .type = k};
    o->as.v = (rkv_tensor){.data = o->v, .type = v};
}

static const rkv_pos_range everything = {0, RKV_POS_END};

static void export_all(fx *w, uint32_t seq, outside *o)
{
    fx_ok(rkv_export_positions(w->cache, seq, &everything, 0, NULL, &o->as.n_cells), "positions");
    assert_true(o->as.n_cells <= CELLS);
    o->as.first_cell = 0;
    fx_ok(rkv_export_cells(w->cache, seq, &everything, &o->as, w->stream), "export");
}

static void text(fx *w, uint32_t seq)
{
    fx_append(w, seq, 45, RKV_REGIME_PREFILL, 1000);
    fx_append(w, seq, 3, RKV_REGIME_DECODE, 2000);
    fx_append(w, seq, 5, RKV_REGIME_DECODE, 2500);
}

/* The next rows give the same bits in both. */
static void go_on(fx *a, fx *b, uint32_t seq_a, uint32_t seq_b)
{
    for (uint32_t i = 0; i < 6; i++) {
        fx_append(a, seq_a, 1 + 3 * i, i == 3 ? RKV_REGIME_PREFILL : RKV_REGIME_DECODE, 7000 + 100 * i);
        fx_append(b, seq_b, 1 + 3 * i, i == 3 ? RKV_REGIME_PREFILL : RKV_REGIME_DECODE, 7000 + 100 * i);
        assert_true(fx_same(a, b));
    }
}

static void same_state(fx *a, fx *b, uint32_t seq_a, uint32_t seq_b)
{
    fx_bytes x, y;
    fx_save(a, seq_a, &x);
    fx_save(b, seq_b, &y);
    assert_int_equal(x.n, y.n);
    assert_memory_equal(x.at, y.at, x.n);
    fx_bytes_free(&x);
    fx_bytes_free(&y);
}

/* Moves `o`'s buffers on to a chunk: rows of `bytes` each. */
static void import_chunks(fx *w, outside *o, uint64_t k_row, uint64_t v_row, uint64_t chunk)
{
    const uint64_t n = o->as.n_cells;
    for (uint64_t at = 0; at < n; at += chunk) {
        rkv_cells c = o->as;
        c.first_cell = at;
        c.n_cells = n - at < chunk ? n - at : chunk;
        c.k.data = o->k + at * k_row;
        c.v.data = o->v + at * v_row;
        fx_ok(rkv_import_cells(w->cache, &c, w->stream), "import_cells");
    }
}

/* ---------------------------------------------------------------- stored, blocks */

static const uint32_t type_bytes_half[] = {0, 8, 4, 4,
                                           2, 2, 1}; /* of an element, in halves of a byte */

static uint64_t stored_row(const rkv_kv_layer_params *p, bool is_v)
{
    const rkv_type type = is_v ? p->type_v : p->type_k;
    const uint32_t dim = is_v ? p->head_dim_v : p->head_dim_k;
    return p->n_kv_heads *
           (dim * type_bytes_half[type] / 2 + (type >= RKV_TYPE_Q8_0 ? dim / 32 * 2 : 0));
}

static void test_stored_form_keeps_the_bits(void **state)
{
    (void)state;
    static outside o;
    for (uint32_t run = 0; run < 8; run++) {
        fx a, b;
        const fx_model m = fx_state_model(run % 4, run % 2 ? FX_HOST : FX_CHECK, run);
        const fx_model n =
            fx_state_model((run + 1 + run / 4) % 4, run % 3 ? FX_CHECK : FX_SIM, run + 50);
        fx_open(&a, &m);
        fx_open(&b, &n);
        text(&a, 0);
        fx_ok(rkv_import_begin(b.cache, 1, a.n_cells[0], NULL), "import_begin");
        for (uint32_t l = 0; l < 4; l++) {
            outside_init(&o, l, RKV_CELLS_STORED, 0, 0);
            o.as.memory = run / 4 ? RKV_MEMORY_DEVICE : RKV_MEMORY_HOST;
            export_all(&a, 0, &o);
            import_chunks(&b, &o, stored_row(&m.layers[l], false), stored_row(&m.layers[l], true),
                          1 + 19 * run);
        }
        fx_ok(rkv_import_end(b.cache), "import_end");
        fx_copy_record(&b, 1, &a, 0);
        same_state(&a, &b, 0, 1);
        go_on(&a, &b, 0, 1);
        fx_compare_fresh(&b, 1, 2);
        fx_check_empty(&b);
        fx_close(&a);
        fx_close(&b);
    }
}

static float block_value(const uint8_t *row, rkv_type type, uint32_t i)
{
    const uint8_t *b = row + i / 32 * (type == RKV_TYPE_Q8_0 ? 34 : 18);
    uint16_t d;
    memcpy(&d, b, 2);
    const uint32_t e = i % 32;
    const int q =
        type == RKV_TYPE_Q8_0 ? (int8_t)b[2 + e] : (int)(b[2 + e % 16] >> (e / 16 * 4) & 15) - 8;
    return (float)q * rkvi_f16_to_f32(d);
}

/* Blocks of the stored type have the values of the f32 export, and come back
 * with the same bits; those of another type are close. */
static void test_blocks(void **state)
{
    (void)state;
    static outside f, o;
    fx a, b;
    const fx_model m = fx_state_model(3, FX_CHECK, 1), n = fx_state_model(0, FX_CHECK, 2);
    fx_open(&a, &m);
    fx_open(&b, &n);
    text(&a, 0);
    outside_init(&f, 1, RKV_CELLS_TENSOR, RKV_TYPE_F32, RKV_TYPE_F32);
    outside_init(&o, 1, RKV_CELLS_BLOCKS, RKV_TYPE_Q8_0, RKV_TYPE_Q4_0);
    export_all(&a, 0, &f);
    export_all(&a, 0, &o);
    for (uint32_t row = 0; row < o.as.n_cells * 2; row++)
        for (uint32_t i = 0; i < 64; i++) {
            assert_true(block_value(o.k + row * 68, RKV_TYPE_Q8_0, i) ==
                        ((float *)(void *)f.k)[row * 64 + i]);
            assert_true(block_value(o.v + row * 36, RKV_TYPE_Q4_0, i) ==
                        ((float *)(void *)f.v)[row * 64 + i]);
        }
    fx_ok(rkv_import_begin(b.cache, 0, a.n_cells[0], NULL), "begin");
    import_chunks(&b, &o, 2 * 68, 2 * 36, 10);
    for (uint32_t l = 0; l < 4; l++) {
        if (l == 1)
            continue;
        outside_init(&o, l, RKV_CELLS_STORED, 0, 0);
        export_all(&a, 0, &o);
        import_chunks(&b, &o, 0, 0, CELLS);
    }
    fx_ok(rkv_import_end(b.cache), "end");
    same_state(&a, &b, 0, 0);
    /* f16 as q8_0 and back: within half a step of amax / 127 */
    outside_init(&f, 0, RKV_CELLS_TENSOR, RKV_TYPE_F32, RKV_TYPE_F32);
    outside_init(&o, 0, RKV_CELLS_BLOCKS, RKV_TYPE_Q8_0, RKV_TYPE_Q8_0);
    export_all(&a, 0, &f);
    export_all(&a, 0, &o);
    for (uint32_t row = 0; row < o.as.n_cells; row++)
        for (uint32_t i = 0; i < 64; i++)
            assert_true(fabsf(block_value(o.k + row * 68, RKV_TYPE_Q8_0, i) -
                              ((float *)(void *)f.k)[row * 64 + i]) < 2.0f / 127 * 0.51f);
    fx_close(&a);
    fx_close(&b);
}

/* ------------------------------------------------------------------------ tensors */

static void put_value(rkv_type type, uint8_t *to, uint64_t i, float x)
{
    uint16_t *h = (uint16_t *)(void *)to;
    if (type == RKV_TYPE_F32)
        memcpy(to + 4 * i, &x, 4);
    else
        h[i] = type == RKV_TYPE_F16 ? rkvi_f32_to_f16(x) : rkvi_f32_to_bf16(x);
}

/* The record's cells [first, first + n) of a KV layer, dense or head by head. */
static void fill(const fx *w, uint32_t seq, uint64_t first, uint64_t n, outside *o, bool by_head)
{
    const rkv_kv_layer_params *p = &w->model.layers[o->as.kv_layer];
    float x[128];
    o->as.first_cell = 0;
    o->as.n_cells = n;
    for (int is_v = 0; is_v < 2; is_v++) {
        rkv_tensor *t = is_v ? &o->as.v : &o->as.k;
        const uint32_t dim = is_v ? p->head_dim_v : p->head_dim_k;
        t->row_stride = by_head ? dim + 8 : 0;
        t->head_stride = by_head ? (int64_t)n * (dim + 8) : 0;
        for (uint64_t c = 0; c < n; c++) {
            fx_values(w->cells[seq][first + c].tag, o->as.kv_layer, is_v ? 'v' : 'k',
                      p->n_kv_heads * dim, x);
            for (uint32_t h = 0; h < p->n_kv_heads; h++)
                for (uint32_t i = 0; i < dim; i++)
                    put_value(t->type, t->data,
                              by_head ? h * (uint64_t)t->head_stride + c * (uint64_t)t->row_stride + i
                                      : (c * p->n_kv_heads + h) * dim + i,
                              x[h * dim + i]);
        }
    }
}

/* Importing the text's values is the same as storing them by steps: from
 * nothing, and on from the middle of a tile. */
static void test_tensors_store_as_steps_do(void **state)
{
    (void)state;
    static outside o;
    const rkv_type types[] = {RKV_TYPE_F32, RKV_TYPE_F16, RKV_TYPE_BF16};
    for (uint32_t run = 0; run < 12; run++) {
        fx a, b;
        const fx_model m = fx_state_model(run % 4, FX_HOST, run),
                       n = fx_state_model(run / 3, FX_CHECK, run);
        const uint64_t had = run % 2 ? 0 : 21;
        fx_open(&a, &m);
        fx_open(&b, &n);
        text(&a, 0);
        if (had)
            fx_append(&b, 2, had, RKV_REGIME_PREFILL, 1000);
        fx_append(&b, 1, 30, RKV_REGIME_PREFILL, 555); /* another sequence */
        fx_ok(rkv_import_begin(b.cache, 2, a.n_cells[0] - had, NULL), "begin");
        for (uint32_t l = 4; l-- > 0;) {
            outside_init(&o, l, RKV_CELLS_TENSOR, types[run % 3], types[(run + l) % 3]);
            o.as.memory = run % 4 == 1 ? RKV_MEMORY_DEVICE : RKV_MEMORY_HOST;
            fill(&a, 0, had, a.n_cells[0] - had, &o, run % 3 == 1);
            fx_ok(rkv_import_cells(b.cache, &o.as, b.stream), "cells");
        }
        fx_ok(rkv_import_end(b.cache), "end");
        fx_copy_record(&b, 2, &a, 0);
        same_state(&a, &b, 0, 2);
        go_on(&a, &b, 0, 2);
        fx_compare_fresh(&b, 2, 2);
        fx_compare_fresh(&b, 1, 2);
        fx_check_empty(&b);
        fx_close(&a);
        fx_close(&b);
    }
}

/* Ranges and chunks of an export, by strides too, and from device memory. */
static void test_export_of_parts(void **state)
{
    (void)state;
    static outside o, want;
    fx w;
    const fx_model m = fx_state_model(3, FX_CHECK, 3);
    int64_t positions[CELLS];
    uint64_t n = 0;
    fx_open(&w, &m);
    text(&w, 0);
    const rkv_pos_range range = {7, 50};
    fx_ok(rkv_export_positions(w.cache, 0, &range, CELLS, positions, &n), "positions");
    assert_int_equal(n, 43);
    for (uint64_t i = 0; i < n; i++)
        assert_int_equal(positions[i], 7 + i);
    for (uint32_t run = 0; run < 4; run++) {
        outside_init(&want, 0, RKV_CELLS_TENSOR, RKV_TYPE_F32, RKV_TYPE_F16);
        outside_init(&o, 0, RKV_CELLS_TENSOR, RKV_TYPE_F32, RKV_TYPE_F16);
        fill(&w, 0, 7 + 5, 30, &want, run % 2); /* f16 holds the values exactly */
        o.as.n_cells = 30;
        o.as.first_cell = 5;
        o.as.memory = run / 2;
        o.as.k.row_stride = want.as.k.row_stride;
        o.as.k.head_stride = want.as.k.head_stride;
        o.as.v.row_stride = want.as.v.row_stride;
        o.as.v.head_stride = want.as.v.head_stride;
        fx_ok(rkv_export_cells(w.cache, 0, &range, &o.as, w.stream), "export");
        assert_memory_equal(o.k, want.k, sizeof o.k);
        assert_memory_equal(o.v, want.v, sizeof o.v);
    }
    fx_close(&w);
}

/* What no cell may hold comes in as 0 or as the largest value. */
static void test_no_nan_comes_in(void **state)
{
    (void)state;
    static outside o;
    fx w;
    const fx_model m = fx_state_model(0, FX_CHECK, 4);
    fx_open(&w, &m);
    for (uint32_t form = 0; form < 3; form++) {
        fx_ok(rkv_import_begin(w.cache, form, 2, NULL), "begin");
        for (uint32_t l = 0; l < 4; l++) {
            const bool tensor =
                form == RKV_CELLS_TENSOR || (form == RKV_CELLS_BLOCKS && (l == 0 || l == 2));
            outside_init(&o, l,
                         form == RKV_CELLS_STORED ? form
                         : tensor                 ? RKV_CELLS_TENSOR
                                                  : RKV_CELLS_BLOCKS,
                         form == RKV_CELLS_STORED ? 0
                         : tensor                 ? RKV_TYPE_F32
                                                  : RKV_TYPE_Q8_0,
                         form == RKV_CELLS_STORED ? 0
                         : tensor                 ? RKV_TYPE_F32
                                                  : RKV_TYPE_Q8_0);
            o.as.n_cells = 2;
            memset(o.k, 0xff, sizeof o.k);                    /* NaN in every type */
            memset(o.v, form == 0 ? 0xff : 0x7c, sizeof o.v); /* and an infinite f16 */
            fx_ok(rkv_import_cells(w.cache, &o.as, w.stream), "cells");
        }
        fx_ok(rkv_import_end(w.cache), "end");
        for (uint32_t l = 0; l < 4; l++) {
            outside_init(&o, l, RKV_CELLS_TENSOR, RKV_TYPE_F32, RKV_TYPE_F32);
            export_all(&w, form, &o);
            for (uint32_t i = 0; i < 2 * m.layers[l].n_kv_heads * 32; i++) {
                assert_true(isfinite(((float *)(void *)o.k)[i]));
                assert_true(isfinite(((float *)(void *)o.v)[i]));
            }
        }
    }
    fx_close(&w);
}

/* Cells whose KV layer has no window room do not cross the link. */
static void test_straight_into_the_tail(void **state)
{
    (void)state;
    static outside o;
    fx w;
    const fx_model m = fx_state_model(0, FX_CHECK, 5);
    fx_open(&w, &m);
    const uint64_t in = fx_copied(&w, RKVI_H2D), out = fx_copied(&w, RKVI_D2H);
    fx_ok(rkv_import_begin(w.cache, 0, 50, NULL), "begin");
    for (uint32_t l = 0; l < 4; l++) {
        outside_init(&o, l, RKV_CELLS_STORED, 0, 0);
        o.as.n_cells = 50;
        fx_ok(rkv_import_cells(w.cache, &o.as, NULL), "cells");
    }
    fx_ok(rkv_import_end(w.cache), "end");
    assert_int_equal(fx_copied(&w, RKVI_H2D), in);
    assert_int_equal(fx_copied(&w, RKVI_D2H), out);
    assert_int_equal(fx_layer(&w, 0).tail_tiles, 4);
    fx_close(&w);
}

/* ---------------------------------------------------------------------- refusals */

static void test_order_of_calls(void **state)
{
    (void)state;
    static outside o;
    fx w;
    uint64_t size;
    const fx_model m = fx_state_model(2, FX_CHECK, 6);
    fx_open(&w, &m);
    text(&w, 0);
    outside_init(&o, 0, RKV_CELLS_TENSOR, RKV_TYPE_F32, RKV_TYPE_F32);
    o.as.n_cells = 10;
    assert_int_equal(rkv_import_cells(w.cache, &o.as, NULL), RKV_E_STATE);
    assert_int_equal(rkv_import_end(w.cache), RKV_E_STATE);
    assert_int_equal(rkv_import_abort(w.cache), RKV_E_STATE);
    fx_ok(rkv_import_begin(w.cache, 0, 20, NULL), "begin");
    assert_int_equal(rkv_import_begin(w.cache, 1, 1, NULL), RKV_E_STATE);
    const fx_entry e = {.seq = 1, .rows = 1, .tag = 1};
    assert_int_equal(fx_begin(&w, &e, 1), RKV_E_STATE);
    assert_int_equal(rkv_sequence_clear(w.cache, 0), RKV_E_STATE);
    assert_int_equal(rkv_state_size(w.cache, 0, &size), RKV_E_STATE);
    memset(o.k, 0, sizeof o.k);
    memset(o.v, 0, sizeof o.v);
    fx_ok(rkv_import_cells(w.cache, &o.as, NULL), "cells");
    assert_int_equal(rkv_import_cells(w.cache, &o.as, NULL), RKV_E_STATE); /* these are there */
    o.as.first_cell = 10;
    o.as.n_cells = 11;
    assert_int_equal(rkv_import_cells(w.cache, &o.as, NULL), RKV_E_ARGUMENT);
    assert_int_equal(rkv_import_end(w.cache), RKV_E_STATE);
    assert_non_null(strstr(rkv_error_message(), "KV layer 0 has 10 of 20"));
    fx_ok(rkv_import_abort(w.cache), "abort");
    fx_ok(fx_begin(&w, &e, 1), "begin");
    assert_int_equal(rkv_import_begin(w.cache, 0, 1, NULL), RKV_E_STATE);
    assert_int_equal(rkv_export_cells(w.cache, 0, &everything, &o.as, NULL), RKV_E_STATE);
    fx_ok(fx_abort(&w), "abort");
    fx_compare_fresh(&w, 0, 2);
    fx_ok(rkv_import_begin(w.cache, 0, 3, NULL), "begin"); /* dropped by destroy */
    fx_close(&w);
}

static void test_arguments(void **state)
{
    (void)state;
    static outside o;
    fx w;
    uint64_t n;
    int64_t one[1] = {0};
    const int64_t falling[2] = {90, 90}, early[1] = {52}, gap[2] = {60, 99};
    const fx_model m = fx_state_model(2, FX_CHECK, 7);
    fx_open(&w, &m);
    text(&w, 0);
    const rkv_pos_range bad = {5, 4};
    outside_init(&o, 0, RKV_CELLS_TENSOR, RKV_TYPE_F32, RKV_TYPE_F32);
    o.as.n_cells = 10;
    assert_int_equal(rkv_export_positions(w.cache, 3, &everything, 0, NULL, &n), RKV_E_SEQUENCE);
    assert_int_equal(rkv_export_positions(w.cache, 0, &bad, 0, NULL, &n), RKV_E_ARGUMENT);
    assert_int_equal(rkv_export_positions(w.cache, 0, NULL, 0, NULL, &n), RKV_E_ARGUMENT);
    assert_int_equal(rkv_export_positions(w.cache, 0, &everything, 1, one, &n), RKV_E_ARGUMENT);
    assert_int_equal(rkv_export_positions(w.cache, 0, &everything, 0, NULL, NULL), RKV_E_ARGUMENT);
    assert_int_equal(rkv_export_positions(w.cache, 0, &everything, (uint64_t)-1, one, &n), RKV_E_ARGUMENT);
    assert_non_null(strstr(rkv_error_message(), "above 2^62"));
    assert_int_equal(rkv_export_cells(w.cache, 0, &everything, NULL, NULL), RKV_E_ARGUMENT);
    void *k = o.as.k.data;
    o.as.k.data = NULL;
    assert_int_equal(rkv_export_cells(w.cache, 0, &everything, &o.as, NULL), RKV_E_ARGUMENT);
    assert_non_null(strstr(rkv_error_message(), "k: data is NULL, but n_cells is 10"));
    o.as.k.data = k;
    o.as.first_cell = 50;
    assert_int_equal(rkv_export_cells(w.cache, 0, &everything, &o.as, NULL), RKV_E_SEQUENCE);
    o.as.first_cell = 0;
    o.as.n_cells = 0;
    assert_int_equal(rkv_export_cells(w.cache, 0, &everything, &o.as, NULL), RKV_E_ARGUMENT);
    o.as.n_cells = 2;
    o.as.kv_layer = 4;
    assert_int_equal(rkv_export_cells(w.cache, 0, &everything, &o.as, NULL), RKV_E_ARGUMENT);
    o.as.kv_layer = 0;
    o.as.form = 3;
    assert_int_equal(rkv_export_cells(w.cache, 0, &everything, &o.as, NULL), RKV_E_ARGUMENT);
    o.as.form = RKV_CELLS_BLOCKS; /* of f32 */
    assert_int_equal(rkv_export_cells(w.cache, 0, &everything, &o.as, NULL), RKV_E_ARGUMENT);
    o.as.form = RKV_CELLS_STORED;
    assert_int_equal(rkv_export_cells(w.cache, 0, &everything, &o.as, NULL), RKV_E_ARGUMENT);
    o.as.k.type = o.as.v.type = 0;
    o.as.v.row_stride = 64;
    assert_int_equal(rkv_export_cells(w.cache, 0, &everything, &o.as, NULL), RKV_E_ARGUMENT);
    o.as.v = (rkv_tensor){0};
    assert_int_equal(rkv_export_cells(w.cache, 0, &everything, &o.as, NULL), RKV_E_ARGUMENT);
    outside_init(&o, 0, RKV_CELLS_TENSOR, RKV_TYPE_F32, RKV_TYPE_F32);
    o.as.n_cells = 2;
    o.as.memory = RKV_MEMORY_DEVICE;
    o.as.k.row_stride = 8;
    o.as.k.head_stride = 800;
    assert_int_equal(rkv_export_cells(w.cache, 0, &everything, &o.as, NULL),
                     RKV_E_ARGUMENT); /* rows overlap */
    assert_int_equal(rkv_import_begin(w.cache, 5, 1, NULL), RKV_E_SEQUENCE);
    assert_int_equal(rkv_import_begin(w.cache, 0, 0, NULL), RKV_E_ARGUMENT);
    assert_int_equal(rkv_import_begin(w.cache, 0, (uint64_t)-1, NULL), RKV_E_ARGUMENT);
    assert_int_equal(rkv_import_begin(w.cache, 0, 2, falling), RKV_E_ARGUMENT);
    assert_int_equal(rkv_import_begin(w.cache, 0, 1, early), RKV_E_ARGUMENT);
    assert_int_equal(rkv_import_begin(w.cache, 0, 5000, NULL), RKV_E_CAPACITY);
    assert_int_equal(rkv_import_begin(w.cache, 0, UINT32_MAX, NULL), RKV_E_CAPACITY);
    fx_ok(rkv_import_begin(w.cache, 0, 2, gap), "positions with gaps");
    assert_int_equal(rkv_import_cells(w.cache, &o.as, NULL),
                     RKV_E_UNSUPPORTED); /* rows of the device overlap */
    for (uint32_t l = 0; l < 4; l++) {
        outside_init(&o, l, RKV_CELLS_STORED, 0, 0);
        o.as.n_cells = 2;
        fx_ok(rkv_import_cells(w.cache, &o.as, NULL), "cells");
    }
    fx_ok(rkv_import_end(w.cache), "end");
    rkv_sequence_state q = {.struct_size = sizeof q};
    fx_ok(rkv_sequence_info(w.cache, 0, &q), "info");
    assert_int_equal(q.pos_end, 100);
    assert_int_equal(q.n_cells, 55);
    fx_check_empty(&w);
    fx_close(&w);
}

/* Blocks of dims that have none; cells beyond the last position there is. */
static void test_limits(void **state)
{
    (void)state;
    static outside o;
    fx w;
    fx_model m = fx_model_make(16, 0, 320);
    const int64_t last[1] = {RKV_POS_END - 1};
    m.executor = FX_CHECK;
    fx_add_layer(&m, 1, 80, 80, RKV_RESIDENT_NONE);
    fx_open(&w, &m);
    fx_append(&w, 0, 5, RKV_REGIME_PREFILL, 1);
    outside_init(&o, 0, RKV_CELLS_BLOCKS, RKV_TYPE_Q8_0, RKV_TYPE_Q8_0);
    o.as.n_cells = 1;
    assert_int_equal(rkv_export_cells(w.cache, 0, &everything, &o.as, NULL), RKV_E_UNSUPPORTED);
    assert_non_null(strstr(rkv_error_message(), "head dim 80 is no multiple of 32"));
    outside_init(&o, 0, RKV_CELLS_STORED, 0, 0);
    o.as.n_cells = 1;
    fx_ok(rkv_import_begin(w.cache, 0, 1, last), "begin");
    fx_ok(rkv_import_cells(w.cache, &o.as, NULL), "cells");
    fx_ok(rkv_import_end(w.cache), "end");
    assert_int_equal(rkv_import_begin(w.cache, 0, 1, NULL), RKV_E_ARGUMENT);
    assert_non_null(strstr(rkv_error_message(), "exceed 2^62"));
    fx_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stored_form_keeps_the_bits),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_tensors_store_as_steps_do),
        cmocka_unit_test(test_export_of_parts),
        cmocka_unit_test(test_no_nan_comes_in),
        cmocka_unit_test(test_straight_into_the_tail),
        cmocka_unit_test(test_order_of_calls),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_limits),
    };
    if (rkvi_state_hash_built() != RKV_OK)
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
