/* SPDX-License-Identifier: MIT
 *
 * Device calls that fail within save, load, import and export: an error with a
 * sentence, the sequences as before, and the same call then succeeds.  A fault
 * of enqueued work ends the cache.  Files that can't be written.
 */
#include "rollkv/cells.h"
#include "state_fixture.h"
#include "state_hash.h"

#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static uint8_t k_bytes[64 * 512], v_bytes[64 * 512];
static fx_bytes saved;

static rkv_status save(fx *w)
{
    fx_bytes out = {0};
    const rkv_state_params p = {.struct_size = sizeof p, .write = fx_write_bytes, .user = &out};
    const rkv_status s = rkv_state_save(w->cache, &p);
    if (s == RKV_OK)
        assert_memory_equal(out.at, saved.at, saved.n);
    fx_bytes_free(&out);
    return s;
}

static rkv_status load(fx *w)
{
    return fx_load(w, 1, &saved, true);
}

static const rkv_pos_range all = {0, RKV_POS_END};

static rkv_cells cells(uint32_t layer)
{
    rkv_cells c = {.struct_size = sizeof c, .kv_layer = layer, .form = RKV_CELLS_STORED, .n_cells = 50};
    c.memory = RKV_MEMORY_DEVICE;
    c.k.data = k_bytes;
    c.v.data = v_bytes;
    return c;
}

static rkv_status export_layer(fx *w)
{
    const rkv_cells c = cells(1);
    return rkv_export_cells(w->cache, 0, &all, &c, w->stream);
}

static rkv_status import_all(fx *w)
{
    rkv_status s = rkv_import_begin(w->cache, 2, 50, NULL); /* sequence 2 ends within a tile */
    if (s != RKV_OK)
        return s;
    for (uint32_t l = 0; l < 4 && s == RKV_OK; l++) {
        const rkv_cells c = cells(l);
        s = rkv_import_cells(w->cache, &c, w->stream);
    }
    if (s == RKV_OK)
        return rkv_import_end(w->cache);
    assert_int_equal(rkv_import_end(w->cache), RKV_E_STATE);
    const rkv_status aborted = rkv_import_abort(w->cache);
    assert_true(aborted == RKV_OK);
    return s;
}

typedef rkv_status (*call_fn)(fx *w);
static const call_fn calls[] = {save, load, export_layer, import_all};
static const rkvi_device_call kinds[] = {RKVI_CALL_COPY, RKVI_CALL_HOST_ALLOC, RKVI_CALL_STREAM_SYNC,
                                         RKVI_CALL_EVENT_SYNC};

static void open_with_text(fx *w, uint32_t residency, fx_executor executor)
{
    const fx_model m = fx_state_model(residency, executor, 3);
    fx_open(w, &m);
    fx_append(w, 0, 47, RKV_REGIME_PREFILL, 1000);
    fx_append(w, 0, 3, RKV_REGIME_DECODE, 2000);
    fx_append(w, 2, 21, RKV_REGIME_PREFILL, 3000);
    fx_append(w, 1, 20, RKV_REGIME_PREFILL, 4000);
}

static void check_as_before(fx *w)
{
    for (uint32_t s = 0; s < 3; s++)
        fx_compare_fresh(w, s, 1);
}

/* Each call of a kind fails in turn, until the whole goes well. */
static void fail_each(uint32_t residency, call_fn call, rkvi_device_call kind)
{
    fx w;
    uint32_t failures = 0;
    open_with_text(&w, residency, FX_CHECK);
    for (uint64_t nth = 1;; nth++) {
        rkvi_device_fail_call(w.core, kind, nth, RKV_E_DEVICE_CALL);
        const rkv_status s = call(&w);
        rkvi_device_fail_call(w.core, kind, 0, RKV_OK);
        if (s == RKV_OK)
            break;
        assert_int_equal(s, RKV_E_DEVICE_CALL);
        assert_true(strlen(rkv_error_message()) > 10);
        check_as_before(&w);
        failures++;
    }
    assert_true(failures > 0 || kind != RKVI_CALL_HOST_ALLOC);
    fx_close(&w);
}

static void test_calls_that_fail(void **state)
{
    (void)state;
    for (uint32_t residency = 0; residency < 3; residency += 2)
        for (size_t c = 0; c < sizeof calls / sizeof *calls; c++)
            for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
                fail_each(residency, calls[c], kinds[k]);
}

static void test_faults(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof calls / sizeof *calls; c++)
        for (uint64_t nth = 1; nth < 4; nth++) {
            fx w;
            open_with_text(&w, 1, FX_HOST);
            rkvi_device_fault_op(w.core, nth);
            assert_int_equal(calls[c](&w), RKV_E_POISONED);
            assert_int_equal(save(&w), RKV_E_POISONED);
            fx_close(&w);
        }
}

/* ------------------------------------------------------------------- files */

static uint32_t files_in(const char *folder)
{
    uint32_t n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

/* What is half written is gone, and what was there stays. */
static void test_files_that_fail(void **state)
{
    (void)state;
    char folder[] = "/tmp/rollkv-test-XXXXXX", path[64], taken[64];
    struct rlimit usual, small;
    rkv_state_params p = RKV_STATE_PARAMS_INIT;
    fx w;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/state", folder);
    snprintf(taken, sizeof taken, "%s/taken", folder);
    assert_int_equal(mkdir(taken, 0700), 0);
    open_with_text(&w, 0, FX_CHECK);

    /* no room on the disk: the system stops the file at a size */
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &usual), 0);
    small = (struct rlimit){saved.n / 2, usual.rlim_max};
    fflush(NULL);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const rkv_status full = rkv_state_save_file(w.cache, &p, path);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &usual), 0);
    assert_int_equal(full, RKV_E_IO);
    assert_non_null(strstr(rkv_error_message(), "writing"));
    assert_int_equal(files_in(folder), 1);

    /* a folder has that name */
    assert_int_equal(rkv_state_save_file(w.cache, &p, taken), RKV_E_IO);
    assert_non_null(strstr(rkv_error_message(), "renaming"));
    assert_int_equal(files_in(folder), 1);
    assert_int_equal(rkv_state_load_file(w.cache, &p, taken), RKV_E_IO);

    /* the file takes the place of functions */
    p.write = fx_write_bytes;
    assert_int_equal(rkv_state_save_file(w.cache, &p, path), RKV_E_ARGUMENT);
    p.write = NULL;
    p.size_bytes = 1;
    assert_int_equal(rkv_state_load_file(w.cache, &p, path), RKV_E_ARGUMENT);
    p.size_bytes = 0;

    assert_int_equal(rkv_state_save_file(w.cache, &p, path), RKV_OK);
    assert_int_equal(files_in(folder), 2);
    p.sequence = 1;
    assert_int_equal(rkv_state_load_file(w.cache, &p, path), RKV_OK);
    fx_copy_record(&w, 1, &w, 0);
    check_as_before(&w);
    fx_close(&w);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(taken), 0);
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_calls_that_fail),
                                       cmocka_unit_test(test_faults),
                                       cmocka_unit_test(test_files_that_fail)};
    if (rkvi_state_hash_built() != RKV_OK)
        return 77;
    fx w;
    open_with_text(&w, 1, FX_HOST);
    fx_save(&w, 0, &saved);
    fx_close(&w);
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fx_bytes_free(&saved);
    return failed;
}
