/* SPDX-License-Identifier: MIT
 *
 * Saving and loading: a sequence goes on with the bits of a run that was never
 * interrupted, whatever the two caches' residencies, rings and executors; one
 * sequence or all; files.
 */
#include "rollkv/cells.h"
#include "state_fixture.h"

#include "state_hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* The same steps in both; each gives the same bits. */
static void second_half(fx *a, fx *b, uint32_t seq_a, uint32_t seq_b)
{
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t rows = i == 3 ? 40 : 1 + i;
        const uint32_t regime = i == 3 ? RKV_REGIME_PREFILL : RKV_REGIME_DECODE;
        fx_append(a, seq_a, rows, regime, 5000 + 50 * i);
        fx_append(b, seq_b, rows, regime, 5000 + 50 * i);
        assert_true(fx_same(a, b));
        if (i == 5) {
            fx_truncate(a, seq_a, 60);
            fx_truncate(b, seq_b, 60);
        }
    }
}

static void continue_in(fx *source, fx_bytes *state, const fx_model *m)
{
    fx w, whole;
    fx_open(&w, m);
    fx_open(&whole, &source->model);
    fx_first_half(&whole); /* goes on uninterrupted */
    fx_ok(fx_load(&w, 2, state, m->seed % 2), "load");
    fx_copy_record(&w, 2, source, 0);
    second_half(&whole, &w, 0, 2);
    fx_compare_fresh(&w, 2, 3);
    fx_check_empty(&w);
    fx_close(&whole);
    fx_close(&w);
}

static void test_continues_with_the_same_bits(void **state)
{
    (void)state;
    const uint64_t seed = fx_seed();
    const fx_executor executors[] = {FX_HOST, FX_CHECK, FX_SIM};
    for (uint32_t from = 0; from < 4; from++) {
        fx w;
        fx_bytes bytes;
        const fx_model m = fx_state_model(from, executors[from % 3], seed);
        fx_open(&w, &m);
        fx_first_half(&w);
        fx_save(&w, 0, &bytes);
        for (uint32_t to = 0; to < 4; to++) {
            fx_model n = fx_state_model(to, executors[(from + to) % 3], seed + to);
            n.params.mode = to == 2 ? RKV_MODE_OP_LEVEL : RKV_MODE_RING;
            n.params.flags |= to == 1 ? RKV_FLAG_NO_JOIN : 0;
            continue_in(&w, &bytes, &n);
        }
        fx_bytes_free(&bytes);
        fx_close(&w);
    }
}

/* The state does not tell from where it was saved. */
static void test_same_bytes_from_any_residency(void **state)
{
    (void)state;
    fx_bytes first = {0};
    for (uint32_t r = 0; r < 4; r++) {
        fx w;
        fx_bytes bytes;
        const fx_model m = fx_state_model(r, r % 2 ? FX_HOST : FX_CHECK, 1);
        fx_open(&w, &m);
        fx_first_half(&w);
        fx_save(&w, RKV_STATE_ALL, &bytes);
        if (r == 0)
            first = bytes;
        assert_int_equal(bytes.n, first.n);
        assert_memory_equal(bytes.at, first.at, first.n);
        if (r)
            fx_bytes_free(&bytes);
        fx_close(&w);
    }
    fx_bytes_free(&first);
}

static void test_whole_cache(void **state)
{
    (void)state;
    fx a, b;
    fx_bytes bytes, again;
    const fx_model m = fx_state_model(2, FX_CHECK, 3);
    fx_model n = fx_state_model(0, FX_CHECK, 4);
    n.params.n_sequences = 4;
    fx_open(&a, &m);
    fx_open(&b, &n);
    fx_first_half(&a);
    fx_append(&b, 0, 40, RKV_REGIME_PREFILL, 9000); /* replaced, and emptied */
    fx_append(&b, 3, 20, RKV_REGIME_PREFILL, 9100);
    fx_save(&a, RKV_STATE_ALL, &bytes);
    fx_ok(fx_load(&b, RKV_STATE_ALL, &bytes, true), "load");
    for (uint32_t s = 0; s < 3; s++)
        fx_copy_record(&b, s, &a, s);
    rkv_sequence_state info = {.struct_size = sizeof info};
    fx_ok(rkv_sequence_info(b.cache, 3, &info), "info");
    assert_int_equal(info.n_cells, 0);
    b.n_cells[3] = 0;
    second_half(&a, &b, 0, 0);
    second_half(&a, &b, 1, 1);
    fx_compare_fresh(&b, 1, 2);
    fx_ok(rkv_sequence_clear(b.cache, 0), "clear");
    fx_save(&b, 1, &again); /* saved again from where it was loaded */
    fx_ok(fx_load(&a, 0, &again, true), "load");
    fx_copy_record(&a, 0, &b, 1);
    fx_compare_fresh(&a, 0, 4);
    fx_check_empty(&a);
    fx_check_empty(&b);
    fx_bytes_free(&bytes);
    fx_bytes_free(&again);
    fx_close(&a);
    fx_close(&b);
}

/* What no row sees any more is not in the state; what this cache would give up
 * is not taken from one that kept it. */
static void test_sliding(void **state)
{
    (void)state;
    fx a, b, c;
    fx_bytes freed, kept;
    fx_model m = fx_state_model(3, FX_CHECK, 1), n = fx_state_model(0, FX_CHECK, 2);
    for (uint32_t l = 0; l < 4; l++)
        m.layers[l].keep_all = 0;
    fx_open(&a, &m);
    fx_open(&b, &n);
    fx_append(&a, 0, 150, RKV_REGIME_PREFILL, 1000);
    fx_append(&b, 0, 150, RKV_REGIME_PREFILL, 1000);
    fx_append(&a, 0, 2, RKV_REGIME_DECODE, 2000);
    fx_append(&b, 0, 2, RKV_REGIME_DECODE, 2000);
    fx_save(&a, 0, &freed);
    fx_save(&b, 0, &kept);
    assert_true(freed.n < kept.n);
    assert_int_equal(fx_load(&b, 1, &freed, true), RKV_E_DATA);
    assert_non_null(strstr(rkv_error_message(), "keep_all"));
    m.params.capacity_cells = 480;
    fx_open(&c, &m);
    fx_ok(fx_load(&c, 0, &kept, true), "load of all");
    fx_copy_record(&c, 0, &a, 0);
    fx_ok(fx_load(&c, 1, &freed, true), "load of what is seen");
    fx_copy_record(&c, 1, &a, 0);
    fx_bytes_free(&kept);
    fx_save(&c, 0, &kept); /* it was given up on the way */
    assert_int_equal(kept.n, freed.n);
    assert_memory_equal(kept.at, freed.at, freed.n);
    assert_int_equal(rkv_sequence_remove(c.cache, 1, 60, RKV_POS_END), RKV_E_SEQUENCE);
    fx_append(&a, 0, 5, RKV_REGIME_DECODE, 3000);
    for (uint32_t s = 0; s < 2; s++) {
        fx_append(&c, s, 5, RKV_REGIME_DECODE, 3000);
        assert_true(fx_same(&a, &c));
    }
    fx_append(&a, 0, 30, RKV_REGIME_PREFILL, 4000);
    fx_append(&c, 1, 30, RKV_REGIME_PREFILL, 4000);
    assert_true(fx_same(&a, &c));
    fx_check_empty(&c);
    fx_bytes_free(&freed);
    fx_bytes_free(&kept);
    fx_close(&a);
    fx_close(&b);
    fx_close(&c);
}

static void record_removed(fx *w, uint32_t seq, uint64_t from, uint64_t to)
{
    fx_ok(rkv_sequence_remove(w->cache, seq, w->cells[seq][from].pos, w->cells[seq][to].pos), "remove");
    memmove(w->cells[seq] + from, w->cells[seq] + to, (w->n_cells[seq] - to) * sizeof(fx_cell));
    w->n_cells[seq] -= to - from;
}

/* Shared tiles are in the state once, and shared again after a load; sequences
 * diverge within a tile, and lack cells in the middle. */
static void test_shared_tiles(void **state)
{
    (void)state;
    for (uint32_t run = 0; run < 4; run++) {
        fx a, b;
        fx_bytes one, all;
        const fx_model m = fx_state_model(run, FX_CHECK, run),
                       n = fx_state_model(3 - run, FX_CHECK, run + 7);
        fx_open(&a, &m);
        fx_open(&b, &n);
        fx_append(&a, 0, 75, RKV_REGIME_PREFILL, 1000);
        fx_save(&a, RKV_STATE_ALL, &one);
        fx_ok(rkv_sequence_fork(a.cache, 1, 0), "fork");
        fx_copy_record(&a, 1, &a, 0);
        fx_save(&a, RKV_STATE_ALL, &all);
        assert_true(all.n > one.n && all.n < one.n + 300); /* a description more, no cells */
        fx_bytes_free(&one);
        fx_bytes_free(&all);
        fx_append(&a, 0, 3, RKV_REGIME_DECODE, 2000); /* in the shared tile */
        fx_append(&a, 1, 9, RKV_REGIME_DECODE, 3000); /* in its copy, and on */
        record_removed(&a, 1, 20, 29);
        fx_save(&a, RKV_STATE_ALL, &all);
        fx_ok(fx_load(&b, RKV_STATE_ALL, &all, true), "load");
        assert_int_equal(fx_stats(&b).shared_tiles, fx_stats(&a).shared_tiles);
        assert_true(fx_stats(&b).shared_tiles > 0);
        for (uint32_t s = 0; s < 3; s++)
            fx_copy_record(&b, s, &a, s);
        fx_save(&b, RKV_STATE_ALL, &one);
        assert_int_equal(one.n, all.n);
        assert_memory_equal(one.at, all.at, one.n);
        second_half(&a, &b, 1, 1);
        fx_compare_fresh(&b, 0, 2);
        second_half(&a, &b, 0, 0);
        fx_check_empty(&a);
        fx_check_empty(&b);
        fx_bytes_free(&one);
        fx_bytes_free(&all);
        fx_close(&a);
        fx_close(&b);
    }
}

/* A sequence's own state has nothing of those that share its tiles. */
static void test_nothing_of_others(void **state)
{
    (void)state;
    fx a, b;
    fx_bytes x, y;
    const fx_model m = fx_state_model(3, FX_CHECK, 9);
    fx_open(&a, &m);
    fx_open(&b, &m);
    fx_append(&a, 0, 40, RKV_REGIME_PREFILL, 1000);
    fx_append(&b, 0, 40, RKV_REGIME_PREFILL, 1000);
    fx_ok(rkv_sequence_fork(a.cache, 1, 0), "fork");
    fx_copy_record(&a, 1, &a, 0);
    fx_append(&a, 0, 5, RKV_REGIME_DECODE, 2000); /* cells of the tile that 1 does not see */
    fx_save(&a, 1, &x);
    fx_save(&b, 0, &y);
    assert_int_equal(x.n, y.n);
    assert_memory_equal(x.at, y.at, x.n);
    fx_bytes_free(&x);
    fx_bytes_free(&y);
    fx_close(&a);
    fx_close(&b);
}

/* Shifted cells go on as shifted ones; where that can't be read rightly, the
 * state is refused; their K is not exported. */
static void test_shifted(void **state)
{
    (void)state;
    static const float frequencies[2][3] = {{1.0f, 0.25f, 0.0625f}, {1.0f, 0.5f, 0.0625f}};
    static uint8_t k[8192], v[8192];
    fx a, b;
    fx_bytes bytes;
    fx_model m = fx_state_model(3, FX_CHECK, 1), n = fx_state_model(0, FX_CHECK, 2);
    m.params.rope = n.params.rope =
        (rkv_rope_params){.frequencies = frequencies[0], .n_frequencies = 3};
    fx_open(&a, &m);
    fx_append(&a, 0, 70, RKV_REGIME_PREFILL, 1000);
    record_removed(&a, 0, 4, 25);
    fx_ok(rkv_sequence_shift(a.cache, 0, 25, RKV_POS_END, -21), "shift");
    for (uint64_t i = 4; i < a.n_cells[0]; i++)
        a.cells[0][i].pos -= 21;
    fx_append(&a, 0, 3, RKV_REGIME_DECODE, 2000);
    fx_save(&a, 0, &bytes);
    fx_open(&b, &n);
    fx_ok(fx_load(&b, 1, &bytes, true), "load");
    fx_copy_record(&b, 1, &a, 0);
    second_half(&a, &b, 0, 1);
    const rkv_pos_range range = {0, 10};
    rkv_cells c = {
        .struct_size = sizeof c, .form = RKV_CELLS_STORED, .n_cells = 10, .k = {.data = k}, .v = {.data = v}};
    assert_int_equal(rkv_export_cells(b.cache, 1, &range, &c, NULL), RKV_E_UNSUPPORTED);
    c.n_cells = 4; /* those that were not shifted */
    fx_ok(rkv_export_cells(b.cache, 1, &range, &c, NULL), "export");
    fx_close(&b);
    n.params.rope = (rkv_rope_params){0};
    fx_open(&b, &n);
    assert_int_equal(fx_load(&b, 1, &bytes, true), RKV_E_DATA);
    assert_non_null(strstr(rkv_error_message(), "shifted"));
    fx_close(&b);
    n.params.rope = (rkv_rope_params){.frequencies = frequencies[1], .n_frequencies = 3};
    fx_open(&b, &n);
    assert_int_equal(fx_load(&b, 1, &bytes, true), RKV_E_DATA);
    assert_non_null(
        strstr(rkv_error_message(), "RoPE frequency 1 is 0.25 in the state and 0.5 in this cache"));
    fx_close(&b);
    fx_bytes_free(&bytes);
    fx_close(&a);
}

static void test_positions_with_gaps(void **state)
{
    (void)state;
    fx a, b;
    fx_bytes bytes;
    int64_t positions[24];
    fx_model m = fx_state_model(3, FX_CHECK, 5);
    for (uint32_t i = 0; i < 24; i++)
        positions[i] = 10 + 3 * (int64_t)i / 2 + 100 * (i / 9);
    fx_open(&a, &m);
    fx_open(&b, &m);
    const fx_entry e = {
        .seq = 1, .rows = 24, .regime = RKV_REGIME_PREFILL, .tag = 50, .positions = positions};
    fx_step(&a, &e, 1);
    fx_save(&a, 1, &bytes);
    fx_ok(fx_load(&b, 0, &bytes, true), "load");
    fx_copy_record(&b, 0, &a, 1);
    fx_compare_fresh(&b, 0, 1);
    second_half(&a, &b, 1, 0);
    fx_bytes_free(&bytes);
    fx_close(&a);
    fx_close(&b);
}

static void test_empty(void **state)
{
    (void)state;
    fx w;
    fx_bytes bytes;
    const fx_model m = fx_state_model(0, FX_CHECK, 6);
    fx_open(&w, &m);
    fx_save(&w, 2, &bytes);
    fx_append(&w, 0, 20, RKV_REGIME_PREFILL, 1);
    fx_ok(fx_load(&w, 0, &bytes, true), "load");
    w.n_cells[0] = 0;
    fx_check_empty(&w);
    fx_bytes_free(&bytes);
    fx_close(&w);
}

/* ---------------------------------------------------------------------- files */

static uint64_t told_done, told_total, n_told;
static void progress(void *user, const char *what, uint64_t done_bytes, uint64_t total_bytes)
{
    (void)user;
    assert_non_null(what);
    assert_true(done_bytes <= total_bytes && (n_told == 0 || done_bytes > told_done));
    told_done = done_bytes;
    told_total = total_bytes;
    n_told++;
}

static uint64_t n_errors;
static void count_errors(void *user, int32_t level, const char *message)
{
    (void)user, (void)message;
    n_errors += level == 0;
}

static void cut_file(void *user, const char *what, uint64_t done_bytes, uint64_t total_bytes)
{
    (void)what, (void)done_bytes, (void)total_bytes;
    assert_int_equal(truncate(user, 1), 0);
}

/* Of a path that the message has no room for, the reason and the end are there. */
static void check_long_path(fx *w)
{
    const rkv_state_params p = {.struct_size = sizeof p};
    char path[3000];
    memset(path, 'x', sizeof path);
    memcpy(path + sizeof path - 8, "/a.bin", 7);
    path[sizeof path - 1] = 0;
    for (int i = 0; i < 2; i++) {
        const rkv_status s = i ? rkv_state_load_file(w->cache, &p, path) : rkv_state_save_file(w->cache, &p, path);
        const char *text = rkv_error_message();
        assert_int_equal(s, RKV_E_IO);
        assert_ptr_equal(strstr(text, "File name too long: "), text);
        assert_non_null(strstr(text, "...xxx"));
        assert_non_null(strstr(text, "xxx/a.bin"));
    }
}

/* A failure that the file has a reason for is told once, with that reason. */
static void check_told_once(fx *w, char *path)
{
    const rkv_state_params p = {.struct_size = sizeof p, .progress = cut_file, .progress_user = path};
    n_errors = 0;
    rkv_log_set(count_errors, NULL);
    assert_int_equal(rkv_state_load_file(w->cache, &p, path), RKV_E_IO);
    rkv_log_set(NULL, NULL);
    assert_non_null(strstr(rkv_error_message(), "became shorter"));
    assert_int_equal(n_errors, 1);
}

static void test_file(void **state)
{
    (void)state;
    fx a, b;
    char folder[] = "/tmp/rollkv_state_XXXXXX", path[128];
    struct stat st;
    uint64_t size = 0;
    const fx_model m = fx_state_model(2, FX_HOST, 12), n = fx_state_model(0, FX_HOST, 13);
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/state", folder);
    fx_open(&a, &m);
    fx_open(&b, &n);
    fx_first_half(&a);
    const rkv_state_params p = {.struct_size = sizeof p, .progress = progress};
    fx_ok(rkv_state_size(a.cache, 0, &size), "size");
    for (int i = 0; i < 2; i++) { /* the second one replaces the first */
        n_told = 0;
        fx_ok(rkv_state_save_file(a.cache, &p, path), "save_file");
        assert_true(told_done == size && told_total == size && n_told > 2);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_size, size);
    }
    n_told = 0;
    fx_ok(rkv_state_load_file(b.cache, &p, path), "load_file");
    assert_true(told_done == size && told_total == size && n_told > 2);
    fx_copy_record(&b, 0, &a, 0);
    check_long_path(&b);
    check_told_once(&b, path);
    n_told = 0;
    fx_ok(rkv_state_save_file(a.cache, &p, path), "save_file");
    second_half(&a, &b, 0, 0);
    assert_int_equal(truncate(path, (off_t)size - 1), 0);
    assert_int_equal(rkv_state_load_file(b.cache, &p, path), RKV_E_DATA);
    assert_non_null(strstr(rkv_error_message(), "truncated"));
    assert_int_equal(truncate(path, (off_t)size + 1), 0);
    assert_int_equal(rkv_state_load_file(b.cache, &p, path), RKV_E_DATA);
    assert_int_equal(truncate(path, 0), 0);
    assert_int_equal(rkv_state_load_file(b.cache, &p, path), RKV_E_DATA);
    assert_int_equal(rkv_state_load_file(b.cache, &p, folder), RKV_E_IO);
    fx_compare_fresh(&b, 0, 1);
    fx_close(&a);
    fx_close(&b);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0); /* nothing else was left there */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_continues_with_the_same_bits),
        cmocka_unit_test(test_same_bytes_from_any_residency),
        cmocka_unit_test(test_whole_cache),
        cmocka_unit_test(test_sliding),
        cmocka_unit_test(test_shared_tiles),
        cmocka_unit_test(test_nothing_of_others),
        cmocka_unit_test(test_shifted),
        cmocka_unit_test(test_positions_with_gaps),
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_file),
    };
    if (rkvi_state_hash_built() != RKV_OK)
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
