/* SPDX-License-Identifier: MIT
 *
 * Sequences that share tiles, by whole steps: what streams, what is copied, and
 * that every row has the bits of a cache where nothing is shared or spilled.
 */
#include "step_fixture.h"

#include "step_types.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define T 16u

static uint64_t seed;

/* Two layers of unlike geometry and budget, one with a second site, one with a
 * sliding mask. */
static fx_model model(fx_executor executor, uint32_t n_sequences, uint64_t resident)
{
    fx_model m = fx_model_make(T, 0, 4096);
    const uint32_t first = fx_add_layer(&m, 1, 64, 64, resident);
    fx_add_unequal(&m, RKV_RESIDENT_NONE);
    fx_add_site(&m, first, 2);
    const uint32_t sliding = fx_add_layer(&m, 1, 64, 64, RKV_RESIDENT_NONE);
    m.sites[m.n_sites - 1].mask = RKV_MASK_SLIDING;
    m.sites[m.n_sites - 1].mask_width = 40;
    m.layers[sliding].keep_all = 1; /* forks and queries come anywhere */
    m.params.n_sequences = n_sequences;
    m.params.ring_bytes = 64 * 1024;
    m.params.copy_bytes = 12 * 1024;
    m.params.draft_rows = 4;
    m.executor = executor;
    m.seed = seed;
    return m;
}

static void decode(fx *w, const uint32_t *seqs, uint32_t n, uint64_t tag)
{
    fx_entry e[FX_SEQS];
    for (uint32_t i = 0; i < n; i++)
        e[i] = (fx_entry){.seq = seqs[i], .rows = 1, .tag = tag + seqs[i] * 1000000u, .regime = RKV_REGIME_DECODE};
    fx_step(w, e, n);
}

static void decode_first(fx *w, uint32_t n, uint64_t tag)
{
    uint32_t seqs[FX_SEQS];
    for (uint32_t i = 0; i < n; i++)
        seqs[i] = i;
    decode(w, seqs, n, tag);
}

static uint64_t used_tiles(const fx *w)
{
    return fx_stats(w).used_tiles;
}

/* The bytes of a step stay those of one sequence, however many share the prefix. */
static void streamed_once(fx_executor executor)
{
    uint64_t one = 0;
    for (uint32_t n = 1; n <= 16; n *= 2) {
        fx w;
        const fx_model m = model(executor, 17, RKV_RESIDENT_NONE);
        fx_open(&w, &m);
        fx_append(&w, 0, 40 * T, RKV_REGIME_PREFILL, 1000);
        for (uint32_t i = 0; i < 4; i++)
            decode_first(&w, 1, 5000 + i);
        for (uint32_t i = 1; i < n; i++)
            fx_append_from(&w, i, 0, 0, 40 * T);
        const uint64_t tiles = used_tiles(&w);
        for (uint32_t i = 0; i < 3; i++)
            decode_first(&w, n, 6000 + i);
        const rkv_cache_stats s = fx_stats(&w);
        one = n == 1 ? s.last_step_list_bytes : one;
        assert_true(one > 0);
        assert_int_equal(s.last_step_list_bytes, one);
        assert_int_equal(s.own_entries, 0);
        assert_int_equal(s.shared_copy_bytes, 0);
        assert_int_equal(s.used_tiles, tiles + n - 1);
        assert_int_equal(s.shared_tiles, n > 1 ? 40 : 0);
        assert_int_equal(s.dead_cells, 0);
        fx_compare_fresh(&w, 0, 3);
        fx_compare_fresh(&w, n - 1, 3);
        fx_close(&w);
    }
}

static void test_streamed_once(void **state)
{
    (void)state;
    streamed_once(FX_HOST);
    streamed_once(FX_SIM);
    streamed_once(FX_CHECK);
}

/* Bits of all rows of a step, asked together and one by one. */
static void compare_with_single(fx *w, uint32_t n)
{
    fx_entry e[FX_SEQS];
    float *all[FX_SEQS];
    int64_t pos[FX_SEQS];
    for (uint32_t i = 0; i < n; i++) {
        pos[i] = w->cells[i][w->n_cells[i] - 1].pos;
        e[i] = (fx_entry){.seq = i, .rows = 1, .is_query = true, .tag = 4242 + i, .positions = &pos[i]};
    }
    fx_step(w, e, n);
    for (uint32_t i = 0; i < n; i++) {
        all[i] = calloc(w->model.n_sites * 1024u, sizeof(float));
        for (uint32_t site = 0; site < w->model.n_sites; site++)
            for (uint32_t k = 0; k < w->out[site].heads * w->out[site].dim; k++)
                all[i][site * 1024 + k] = fx_out(w, site, i, k / w->out[site].dim, k % w->out[site].dim);
    }
    for (uint32_t i = 0; i < n; i++) {
        fx_step(w, &e[i], 1);
        for (uint32_t site = 0; site < w->model.n_sites; site++)
            for (uint32_t k = 0; k < w->out[site].heads * w->out[site].dim; k++) {
                const float x = fx_out(w, site, 0, k / w->out[site].dim, k % w->out[site].dim);
                assert_memory_equal(&all[i][site * 1024 + k], &x, sizeof x);
            }
        free(all[i]);
    }
}

/* Forks at any cell of a tile, continued in any order. */
static void fork_at(fx_executor executor, uint32_t cells, uint64_t resident)
{
    fx w;
    const fx_model m = model(executor, 4, resident);
    fx_open(&w, &m);
    fx_append(&w, 0, cells, RKV_REGIME_PREFILL, 1000);
    fx_append_from(&w, 1, 0, 0, RKV_POS_END);
    fx_append_from(&w, 2, 0, 0, RKV_POS_END);
    const uint64_t tiles = used_tiles(&w), bytes = fx_layer(&w, 0).tile_layer_device_bytes +
                                                   fx_layer(&w, 1).tile_layer_device_bytes +
                                                   fx_layer(&w, 2).tile_layer_device_bytes;
    const bool is_cut = cells % T != 0;
    decode(&w, (const uint32_t[]){1}, 1, 2000); /* in place: nobody has the next cell */
    assert_int_equal(used_tiles(&w), tiles + !is_cut);
    assert_int_equal(fx_stats(&w).shared_copy_bytes, 0);
    decode(&w, (const uint32_t[]){0, 1}, 2, 2100); /* 0 would write what 1 has: a copy, once */
    decode(&w, (const uint32_t[]){0, 1}, 2, 2200);
    assert_int_equal(used_tiles(&w), (cells + 3 + T - 1) / T + (cells + 2 + T - 1) / T - cells / T);
    assert_int_equal(fx_stats(&w).shared_copy_bytes, is_cut ? bytes : 0);
    decode(&w, (const uint32_t[]){2, 1, 0}, 3, 2300);
    assert_int_equal(fx_stats(&w).shared_copy_bytes, is_cut ? 2 * bytes : 0);
    for (uint32_t i = 0; i < 40; i++)
        decode(&w, (const uint32_t[]){1, 2, 0}, 3, 3000 + i);
    assert_int_equal(fx_stats(&w).shared_copy_bytes, is_cut ? 2 * bytes : 0);
    compare_with_single(&w, 3);
    for (uint32_t i = 0; i < 3; i++)
        fx_compare_fresh(&w, i, 5);
    fx_keep(&w, 2);
    assert_int_equal(fx_stats(&w).shared_tiles, 0);
    fx_compare_fresh(&w, 2, 5);
    fx_check_empty(&w);
    fx_close(&w);
}

static void test_fork(void **state)
{
    (void)state;
    static const uint32_t cells[] = {1, 15, 16, 17, 100, 6 * T, 200};
    for (uint32_t i = 0; i < sizeof cells / sizeof *cells; i++)
        for (uint32_t executor = FX_HOST; executor <= FX_CHECK; executor++) {
            fork_at(executor, cells[i], i % 2 ? 5 * T : RKV_RESIDENT_NONE);
            seed++;
        }
}

/* The last one that shares a tile writes in place. */
static void test_last_owner(void **state)
{
    (void)state;
    fx w;
    const fx_model m = model(FX_CHECK, 3, RKV_RESIDENT_NONE);
    fx_open(&w, &m);
    fx_append(&w, 0, 3 * T + 5, RKV_REGIME_PREFILL, 1000);
    fx_append_from(&w, 1, 0, 0, RKV_POS_END);
    decode(&w, (const uint32_t[]){0}, 1, 2000);
    fx_clear(&w, 0); /* what 0 wrote beyond the fork is dead: 1 may write over it */
    assert_int_equal(fx_stats(&w).dead_cells, 1);
    decode(&w, (const uint32_t[]){1}, 1, 2100);
    assert_int_equal(fx_stats(&w).shared_copy_bytes, 0);
    assert_int_equal(fx_stats(&w).dead_cells, 0);
    fx_compare_fresh(&w, 1, 4);
    /* The same with both there, cut back: nobody has the cell any more. */
    fx_append_from(&w, 2, 1, 0, RKV_POS_END);
    decode(&w, (const uint32_t[]){1}, 1, 2200);
    fx_truncate(&w, 1, 3 * T + 6);
    decode(&w, (const uint32_t[]){2}, 1, 2300);
    assert_int_equal(fx_stats(&w).shared_copy_bytes, 0);
    fx_compare_fresh(&w, 1, 4);
    fx_compare_fresh(&w, 2, 4);
    fx_close(&w);
}

/* Cut back deep into what lies in the tail, fork there, go on with both. */
static void fork_in_tail(fx_executor executor, bool source_first)
{
    fx w;
    const fx_model m = model(executor, 3, RKV_RESIDENT_NONE);
    fx_open(&w, &m);
    fx_append(&w, 0, 20 * T, RKV_REGIME_PREFILL, 1000);
    for (uint32_t i = 0; i < 20; i++)
        decode(&w, (const uint32_t[]){0}, 1, 2000 + i);
    fx_append_from(&w, 1, 0, 0, 7 * T + 9);
    fx_append_from(&w, 2, 0, 0, 7 * T + 9);
    const rkv_cache_stats s0 = fx_stats(&w);
    for (uint32_t i = 0; i < 40; i++)
        decode(&w, source_first ? (const uint32_t[]){0, 1, 2} : (const uint32_t[]){2, 1, 0}, 3, 3000 + i);
    const rkv_cache_stats s = fx_stats(&w);
    assert_true(s.brought_back_bytes > s0.brought_back_bytes); /* the copy came from the tail */
    assert_int_equal(s.shared_copy_bytes, 0);
    compare_with_single(&w, 3);
    for (uint32_t i = 0; i < 3; i++)
        fx_compare_fresh(&w, i, 5);
    fx_close(&w);
}

static void test_fork_in_tail(void **state)
{
    (void)state;
    for (uint32_t executor = FX_HOST; executor <= FX_CHECK; executor++) {
        fork_in_tail(executor, true);
        fork_in_tail(executor, false);
    }
}

static void assert_ranges(const fx *w, uint32_t seq, const rkv_pos_range *want, uint64_t n)
{
    rkv_pos_range got[8];
    uint64_t n_got;
    fx_ok(rkv_sequence_ranges(w->cache, seq, got, 8, &n_got), "ranges");
    assert_int_equal(n_got, n);
    for (uint64_t i = 0; i < n; i++) {
        assert_int_equal(got[i].from, want[i].from);
        assert_int_equal(got[i].to, want[i].to);
    }
}

/* Holes: what is left keeps its positions; tiles without a cell are free. */
static void test_remove(void **state)
{
    (void)state;
    fx w;
    const fx_model m = model(FX_CHECK, 3, 4 * T);
    fx_open(&w, &m);
    fx_append(&w, 0, 20 * T + 3, RKV_REGIME_PREFILL, 1000);
    for (uint32_t i = 0; i < 3; i++)
        decode(&w, (const uint32_t[]){0}, 1, 2000 + i);
    const uint64_t tiles = used_tiles(&w);
    fx_remove(&w, 0, 2 * T + 5, 5 * T + 1);
    assert_int_equal(used_tiles(&w), tiles - 2);
    assert_int_equal(fx_stats(&w).dead_cells, T - 5 + 1);
    assert_ranges(&w, 0, (const rkv_pos_range[]){{0, 2 * T + 5}, {5 * T + 1, 20 * T + 6}}, 2);
    fx_remove(&w, 0, 7 * T, 8 * T);
    fx_remove(&w, 0, 0, 3);
    assert_int_equal(used_tiles(&w), tiles - 3);
    assert_int_equal(fx_stats(&w).dead_cells, T - 5 + 1 + 3);
    rkv_sequence_state st = {.struct_size = sizeof st};
    fx_ok(rkv_sequence_info(w.cache, 0, &st), "info");
    assert_int_equal(st.n_cells, w.n_cells[0]);
    assert_int_equal(st.pos_begin, 3);
    assert_int_equal(st.n_tiles, used_tiles(&w));
    assert_ranges(&w, 0, (const rkv_pos_range[]){{3, 2 * T + 5}, {5 * T + 1, 7 * T}, {8 * T, 20 * T + 6}}, 3);
    /* Taken over in part by another sequence, which goes on. */
    fx_append_from(&w, 1, 0, 2 * T, 9 * T);
    assert_ranges(&w, 1, (const rkv_pos_range[]){{2 * T, 2 * T + 5}, {5 * T + 1, 7 * T}, {8 * T, 9 * T}}, 3);
    for (uint32_t i = 0; i < 30; i++)
        decode(&w, (const uint32_t[]){0, 1}, 2, 3000 + i);
    compare_with_single(&w, 2);
    fx_remove(&w, 0, 0, RKV_POS_END);
    fx_check_empty(&w);
    fx_close(&w);
}

/* A sequence of its own beginning and a shared document: its own tiles are read
 * before those that it shares, which are still read once. */
static void test_own_beginning(void **state)
{
    (void)state;
    fx w;
    const fx_model m = model(FX_CHECK, 4, RKV_RESIDENT_NONE);
    int64_t at = 10 * T;
    fx_open(&w, &m);
    for (uint32_t i = 0; i < 20 * T; i++, at++) {
        const fx_entry e = {.seq = 0, .rows = 1, .tag = 1000 + i, .positions = &at};
        fx_step(&w, &e, 1);
    }
    fx_append(&w, 1, 3 * T, RKV_REGIME_PREFILL, 7000);
    fx_append(&w, 2, T + 3, RKV_REGIME_PREFILL, 8000);
    fx_append_from(&w, 1, 0, 10 * T, 30 * T);
    fx_append_from(&w, 2, 0, 12 * T + 1, 30 * T);
    for (uint32_t i = 0; i < 20; i++)
        decode(&w, (const uint32_t[]){0, 1, 2}, 3, 9000 + i);
    const rkv_cache_stats s = fx_stats(&w);
    uint64_t tail = 0;
    for (uint32_t site = 0; site < 3; site++) { /* those that see all */
        const rkv_kv_layer_info i = fx_layer(&w, w.model.sites[site].kv_layer);
        tail += i.tail_tiles * i.tile_layer_host_bytes;
    }
    assert_true(s.last_step_list_bytes >= tail);
    assert_true(s.last_step_list_bytes <= tail + 9 * fx_layer(&w, 2).tile_layer_host_bytes);
    assert_int_equal(s.own_entries, 0);
    compare_with_single(&w, 3);
    fx_close(&w);
}

/* Tiles that every sequence has in an order of its own are listed for each, up to
 * twice as many as there can be; what lists more is refused, a smaller batch runs. */
static void test_orders_of_their_own(void **state)
{
    (void)state;
    static const float frequencies[32] = {1};
    static const uint32_t orders[4][4] = {{1, 0, 3, 2}, {2, 3, 0, 1}, {3, 1, 2, 0}, {2, 0, 3, 1}};
    fx w;
    fx_model m = fx_model_make(T, 0, 4 * T);
    rkv_batch_entry e[5];
    int64_t pos[5], at = 0;
    fx_add_layer(&m, 1, 64, 64, RKV_RESIDENT_ALL);
    m.params.n_sequences = 5;
    m.params.max_turns = 64;
    m.params.rope = (rkv_rope_params){.frequencies = frequencies, .n_frequencies = 32};
    fx_open(&w, &m);
    fx_append(&w, 0, 4 * T, RKV_REGIME_PREFILL, 1);
    for (uint32_t s = 1; s < 5; s++)
        for (uint32_t i = 0; i < 4; i++) { /* sequence 0 moves on, so that its cells come behind those taken */
            const int64_t from = at + 4 * T + orders[s - 1][i] * T;
            fx_ok(rkv_sequence_shift(w.cache, 0, at, RKV_POS_END, 4 * T), "shift");
            fx_ok(rkv_sequence_append_from(w.cache, s, 0, from, from + T), "append_from");
            at += 4 * T;
        }
    for (uint32_t s = 0; s < 5; s++) {
        pos[s] = at + 8 * T;
        e[s] = (rkv_batch_entry){.struct_size = sizeof *e, .sequence = s, .n_rows = 1, .positions = &pos[s]};
    }
    rkv_batch b = {.struct_size = sizeof b, .n_entries = 5, .entries = e};
    assert_int_equal(rkv_cache_check(w.cache, &b, 1), RKV_E_CAPACITY);
    assert_non_null(strstr(rkv_error_message(), "in different orders"));
    assert_int_equal(rkv_step_begin(w.cache, &b), RKV_E_CAPACITY);
    assert_non_null(strstr(rkv_error_message(), "smaller batches"));
    b.n_entries = 2;
    fx_ok(rkv_cache_check(w.cache, &b, 1), "check");
    fx_ok(rkv_step_begin(w.cache, &b), "begin");
    fx_ok(rkv_step_abort(w.cache), "abort");
    for (uint32_t s = 0; s < 5; s++)
        fx_ok(rkv_sequence_clear(w.cache, s), "clear");
    fx_close(&w);
}

/* Many rows of many sequences over a long shared tail, in a ring of one tile-layer: their
 * pending partials have no room. check does not see it; begin refuses, and fewer rows run. */
static void test_no_room_for_partials(void **state)
{
    (void)state;
    enum { N = 64, CELLS = 128 * T };
    if (fx_gpu)
        skip();
    fx w;
    fx_entry e[N];
    fx_model m = fx_model_make(T, 0, CELLS + N * 8 * T);
    fx_add_layer(&m, 1, 32, 32, RKV_RESIDENT_NONE);
    m.params.n_sequences = N;
    m.params.max_rows = 16 * N;
    m.params.ring_bytes = T * 32 * 2 * 2;
    m.params.draft_rows = RKV_DRAFT_NONE;
    m.params.host.n_threads = 1; /* room grows with them */
    fx_open(&w, &m);
    for (uint32_t i = 0; i < 2; i++)
        fx_append(&w, 0, CELLS / 2, RKV_REGIME_PREFILL, 1 + i * CELLS);
    for (uint32_t s = 1; s < N; s++)
        fx_append_from(&w, s, 0, 0, CELLS);
    for (uint32_t s = 0; s < N; s++)
        e[s] = (fx_entry){.seq = s, .rows = 16, .tag = 10000 + 100 * s, .regime = RKV_REGIME_DECODE};
    fx_step(&w, e, N); /* while they have no cells of their own */
    const uint64_t used = used_tiles(&w);
    fx_ok(fx_check(&w, e, N), "check");
    assert_int_equal(fx_begin(&w, e, N), RKV_E_CAPACITY);
    assert_non_null(strstr(rkv_error_message(), "room for partials; use fewer rows a step or a larger ring"));
    assert_int_equal(used_tiles(&w), used);
    for (uint32_t s = 0; s < N; s++)
        e[s].rows = 1;
    fx_step(&w, e, N);
    for (uint32_t s = 0; s < N; s += 21)
        fx_compare_fresh(&w, s, 2);
    fx_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orders_of_their_own),
        cmocka_unit_test(test_streamed_once), cmocka_unit_test(test_fork),
        cmocka_unit_test(test_last_owner),    cmocka_unit_test(test_fork_in_tail),
        cmocka_unit_test(test_remove),        cmocka_unit_test(test_own_beginning),
        cmocka_unit_test(test_no_room_for_partials),
    };
#ifdef FX_ON_GPU
    fx_use_gpu();
#endif
    seed = fx_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
