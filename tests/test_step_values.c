/* SPDX-License-Identifier: MIT
 *
 * Whole steps, by value: against attention in f64 over the stored cells, over
 * tensor types and strides, after roll-backs to every kind of place, and with
 * steps aborted at every call.
 */
#include "step_rows.h"

#include "ops_half.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed;

static uint32_t below(uint64_t *r, uint32_t n)
{
    return (uint32_t)(fx_random(r) % n);
}

/* A batch of anything: decode, prefill, queries; gaps in the positions; ranges. */
typedef struct any_batch {
    fx_entry e[FX_SEQS];
    uint32_t n;
    int64_t positions[FX_SEQS][64];
    rkv_pos_range visible[FX_SEQS][64];
} any_batch;

static void any_entry(any_batch *b, const fx *w, uint32_t seq, uint64_t *r)
{
    const uint64_t n = w->n_cells[seq];
    const int64_t end = n ? w->cells[seq][n - 1].pos + 1 : 0;
    fx_entry *e = &b->e[b->n];
    int64_t pos = end + (below(r, 3) ? 0 : below(r, 40));
    *e = (fx_entry){.seq = seq, .rows = 1 + below(r, below(r, 3) ? 8 : 60), .tag = fx_random(r) >> 8};
    e->regime = e->rows > 16 || below(r, 4) == 0 ? RKV_REGIME_PREFILL : RKV_REGIME_AUTO;
    e->is_query = n > 0 && below(r, 4) == 0;
    if (e->is_query)
        pos = below(r, (uint32_t)end + 30);
    for (uint32_t i = 0; i < e->rows; i++) {
        b->positions[b->n][i] = pos++;
        pos += below(r, 20) ? 0 : below(r, 30);
        const int64_t from = below(r, 2) ? 0 : below(r, (uint32_t)pos + 5);
        b->visible[b->n][i] = (rkv_pos_range){from, below(r, 2) ? RKV_POS_END : from + below(r, 200)};
    }
    e->positions = b->positions[b->n];
    e->visible = below(r, 2) ? b->visible[b->n] : NULL;
    b->n++;
}

static fx_model any_model(uint64_t resident)
{
    fx_model m = fx_model_make(16, 0, 4000);
    fx_add_layer(&m, 2, 64, 64, resident);
    fx_add_layer(&m, 1, 192, 128, resident ? resident : RKV_RESIDENT_NONE);
    fx_add_layer(&m, 1, 80, 80, resident == RKV_RESIDENT_NONE ? 64 : resident);
    fx_add_site(&m, 0, 6);
    fx_add_site(&m, 2, 1);
    m.layers[1].keep_all = 1; /* queries come anywhere */
    m.sites[1].mask = RKV_MASK_SLIDING;
    m.sites[1].mask_width = 37;
    m.sites[2].softcap = 3;
    m.sites[3].mask = RKV_MASK_CHUNKED;
    m.sites[3].mask_width = 50;
    m.sinks[1] = m.sinks[2] = true;
    m.sites[4].scale = 0.3f;
    m.params.n_sequences = 3;
    m.params.max_rows = 200;
    m.params.ring_bytes = 100 << 10;
    return m;
}

static void test_against_f64(void **state)
{
    (void)state;
    fx_errors sums = {0};
    for (uint32_t i = 0; i < (fx_is_full() ? 60u : 3u); i++) {
        fx w, resident;
        uint64_t r = seed * 100 + i;
        fx_model m = any_model(RKV_RESIDENT_NONE), all = any_model(RKV_RESIDENT_ALL);
        m.executor = (fx_executor)(i % 3);
        m.seed = seed + i;
        fx_open(&w, &m);
        fx_open(&resident, &all);
        for (uint32_t step = 0; step < 70; step++) {
            any_batch b = {.n = 0};
            for (uint32_t s = 0; s < 3; s++)
                if (below(&r, 3))
                    any_entry(&b, &w, s, &r);
            if (b.n == 0)
                continue;
            fx_step(&w, b.e, b.n);
            fx_step(&resident, b.e, b.n);
            assert_true(fx_same(&w, &resident));
            fx_check_rows(&w, 29, &sums);
        }
        assert_true(fx_stats(&w).streamed_bytes > 0);
        assert_int_equal(fx_stats(&resident).streamed_bytes, 0);
        fx_close(&resident);
        fx_close(&w);
    }
    print_message("errors: ours %.3g, plain code %.3g (rms over %llu elements); %llu empty rows\n",
                  sqrt(sums.ours / (double)sums.n), sqrt(sums.plain / (double)sums.n),
                  (unsigned long long)sums.n, (unsigned long long)sums.n_empty);
    assert_true(sums.n_empty > 0);
    assert_true(sqrt(sums.ours) <= 2 * sqrt(sums.plain));
}

/* ------------------------------------------------------------------- tensors */

/* Values are exact in all types, so only the last rounding differs. */
static void test_tensor_types(void **state)
{
    (void)state;
    static const rkv_type types[] = {RKV_TYPE_F16, RKV_TYPE_BF16, RKV_TYPE_F32};
    for (uint32_t i = 0; i < 6; i++) {
        fx a, b;
        uint64_t r = seed;
        fx_model m = any_model(RKV_RESIDENT_NONE);
        fx_open(&a, &m);
        m.executor = i % 2 ? FX_CHECK : FX_HOST;
        m.seed = seed + i;
        fx_open(&b, &m);
        b.tensor_type = types[i / 2];
        b.is_strided = i % 2;
        for (uint32_t step = 0; step < 25; step++) {
            any_batch batch = {.n = 0};
            for (uint32_t s = 0; s < 3; s++)
                any_entry(&batch, &a, s, &r);
            fx_step(&a, batch.e, batch.n);
            fx_step(&b, batch.e, batch.n);
            for (uint32_t s = 0; s < m.n_sites; s++)
                for (uint32_t k = 0; k < a.n_rows * m.sites[s].n_q_heads * 7; k++) {
                    const uint32_t row = below(&r, a.n_rows), head = below(&r, m.sites[s].n_q_heads);
                    const uint32_t e = below(&r, a.out[s].dim);
                    const float x = fx_out(&a, s, row, head, e), got = fx_out(&b, s, row, head, e);
                    const float want = types[i / 2] == RKV_TYPE_F16    ? rkvi_f16_to_f32(rkvi_f32_to_f16(x))
                                       : types[i / 2] == RKV_TYPE_BF16 ? rkvi_bf16_to_f32(rkvi_f32_to_bf16(x))
                                                                       : x;
                    assert_true(got == want);
                }
        }
        fx_close(&a);
        fx_close(&b);
    }
}

/* ----------------------------------------------------------------- roll-back */

static fx_model rollback_model(uint32_t i)
{
    fx_model m = fx_model_make(16, 64, 512);
    fx_add_unequal(&m, 3 * 16);
    m.params.n_sequences = 2;
    m.params.draft_rows = 20;
    m.params.max_rows = 70;
    m.params.ring_bytes = 40 << 10;
    m.executor = i % 4 == 0 ? FX_HOST : i % 4 == 1 ? FX_SIM : FX_CHECK;
    m.seed = seed + i;
    return m;
}

/* Cells [0, 13) of the last tiles: active, [16..) lagging, leaving, tail; the
 * first three tiles are one layer's window. */
static void test_rollback_everywhere(void **state)
{
    (void)state;
    uint64_t brought_back = 0;
    const uint32_t stride = fx_is_full() ? 1 : 5;
    for (uint32_t n = 0; n <= 173; n += n % 16 == 0 || n % 16 == 15 || n > 120 ? 1 : stride) {
        fx w;
        const fx_model m = rollback_model(n);
        fx_open(&w, &m);
        fx_append(&w, 1, 40, RKV_REGIME_PREFILL, 90000);
        fx_append(&w, 0, 140, RKV_REGIME_PREFILL, 1);
        for (uint32_t i = 0; i < 33; i++) {
            const fx_entry e[2] = {{.seq = 0, .rows = 1, .tag = 1000 + i}, {.seq = 1, .rows = 1, .tag = 2000 + i}};
            fx_step(&w, e, 2);
        }
        assert_int_equal(w.n_cells[0], 173);
        fx_truncate(&w, 0, n);
        if (n % 3 == 0)
            fx_append(&w, 1, 2, RKV_REGIME_DECODE, 3000); /* a step between */
        fx_append(&w, 0, 1 + n % 7, RKV_REGIME_DECODE, 4000);
        fx_compare_fresh(&w, 0, 9);
        fx_append(&w, 0, 60, RKV_REGIME_PREFILL, 5000);
        fx_append(&w, 0, 3, RKV_REGIME_DECODE, 6000);
        fx_compare_fresh(&w, 0, 9);
        fx_compare_fresh(&w, 1, 9);
        brought_back += fx_stats(&w).brought_back_bytes;
        fx_check_empty(&w);
        fx_close(&w);
    }
    assert_true(brought_back > 0);
}

/* A cut within a run of positions that has gaps. */
static void test_rollback_in_gaps(void **state)
{
    (void)state;
    for (int64_t from = 0; from < 420; from += fx_is_full() ? 1 : 17) {
        fx w;
        int64_t pos[60];
        const fx_model m = rollback_model((uint32_t)from);
        fx_open(&w, &m);
        for (uint32_t k = 0; k < 2; k++) {
            for (uint32_t i = 0; i < 60; i++)
                pos[i] = 3 + k * 200 + i * 3 / 2 + (i / 23) * 40;
            const fx_entry e = {.rows = 60, .regime = RKV_REGIME_PREFILL, .tag = 100 + 100 * k, .positions = pos};
            fx_step(&w, &e, 1);
        }
        fx_ok(rkv_sequence_remove(w.cache, 0, from, RKV_POS_END), "remove");
        while (w.n_cells[0] && w.cells[0][w.n_cells[0] - 1].pos >= from)
            w.n_cells[0]--;
        rkv_sequence_state s = {.struct_size = sizeof s};
        fx_ok(rkv_sequence_info(w.cache, 0, &s), "info");
        assert_int_equal(s.n_cells, w.n_cells[0]);
        assert_int_equal(s.pos_end, w.n_cells[0] ? w.cells[0][w.n_cells[0] - 1].pos + 1 : 0);
        fx_append(&w, 0, 20, RKV_REGIME_PREFILL, 900);
        fx_append(&w, 0, 2, RKV_REGIME_DECODE, 990);
        fx_compare_fresh(&w, 0, 9);
        fx_close(&w);
    }
}

/* -------------------------------------------------------------------- aborts */

static void abort_after(fx *w, const any_batch *b, uint32_t calls)
{
    fx_ok(fx_begin(w, b->e, b->n), "begin");
    if (calls > 0)
        fx_ok(rkv_step_start(w->cache, w->stream), "start");
    for (uint32_t s = 0; s + 1 < calls; s++)
        fx_ok(fx_attend(w, s), "attend");
    fx_ok(fx_abort(w), "abort");
    assert_int_equal(fx_abort(w), RKV_E_STATE);
}

/* A step aborted after each call, and again after the next one, and so on,
 * gives the bits of one that was not. */
static void test_abort_everywhere(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < (fx_is_full() ? 40u : 4u); i++) {
        fx w, untouched;
        uint64_t r = seed * 300 + i;
        fx_model m = any_model(RKV_RESIDENT_NONE), all = any_model(RKV_RESIDENT_ALL);
        m.params.capacity_cells = 900;
        m.params.draft_rows = i % 2 ? 3 : 20;
        m.executor = i % 4 == 0 ? FX_HOST : FX_CHECK;
        m.seed = seed + i;
        m.delay_ns = 20000;
        fx_open(&w, &m);
        fx_open(&untouched, &all);
        for (uint32_t step = 0; step < 26; step++) {
            any_batch b = {.n = 0};
            for (uint32_t s = 0; s < 3; s++)
                if (below(&r, 4) && w.n_cells[s] < 250)
                    any_entry(&b, &w, s, &r);
            if (b.n == 0)
                continue;
            const uint32_t seq = below(&r, 3), cut = below(&r, 40);
            if (below(&r, 4) == 0 && w.n_cells[seq] > cut) {
                const uint64_t left = w.n_cells[seq] - cut;
                fx_truncate(&w, seq, left);
                fx_truncate(&untouched, seq, left);
                continue;
            }
            for (uint32_t calls = 0; calls <= m.n_sites + 1; calls++)
                if (below(&r, 3))
                    abort_after(&w, &b, calls);
            fx_step(&w, b.e, b.n);
            fx_step(&untouched, b.e, b.n);
            assert_true(fx_same(&w, &untouched));
        }
        assert_true(fx_stats(&w).aborted_steps > 20);
        fx_check_empty(&w);
        fx_close(&untouched);
        fx_close(&w);
    }
}

int main(void)
{
#ifdef FX_ON_GPU
    fx_use_gpu();
#endif
    seed = fx_seed();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_f64),       cmocka_unit_test(test_tensor_types),
        cmocka_unit_test(test_rollback_everywhere), cmocka_unit_test(test_rollback_in_gaps),
        cmocka_unit_test(test_abort_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
