/* SPDX-License-Identifier: MIT
 *
 * NVTX ranges: each is closed by the call that opened it, on that thread, in
 * calls that succeed and in calls that are refused.  The steps' calls are
 * compiled for this test as in a build with -Dnvtx=enabled, over the counting
 * NVTX below (tests/fake_nvtx).
 */
#include "rkvi_config.h"
#include "step_fixture.h"

#include <nvtx3/nvToolsExt.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static uint32_t n_pushed, n_popped, deepest;
static uint32_t n_named[4];
static const char *const names[4] = {"rkv begin", "rkv start", "rkv attend", "rkv end"};

int nvtxRangePushA(const char *name)
{
    uint32_t i = 0;
    while (i < 4 && strcmp(name, names[i]))
        i++;
    assert_true(i < 4);
    n_named[i]++;
    n_pushed++;
    deepest = n_pushed - n_popped > deepest ? n_pushed - n_popped : deepest;
    return (int)(n_pushed - n_popped) - 1;
}

int nvtxRangePop(void)
{
    n_popped++;
    assert_true(n_popped <= n_pushed);
    return (int)(n_pushed - n_popped);
}

/* The ranges since the last call: so many of each, all closed, none within another. */
static void expect(uint32_t begin, uint32_t start, uint32_t attend, uint32_t end)
{
    assert_int_equal(n_pushed, n_popped);
    assert_int_equal(n_named[0], begin);
    assert_int_equal(n_named[1], start);
    assert_int_equal(n_named[2], attend);
    assert_int_equal(n_named[3], end);
    assert_int_equal(deepest, begin + start + attend + end > 0);
    memset(n_named, 0, sizeof n_named);
    deepest = 0;
}

static void test_ranges(void **state)
{
    (void)state;
    fx w;
    fx_model m = fx_model_make(16, 64, 1024);
    fx_add_layer(&m, 1, 64, 64, 64);
    fx_open(&w, &m);
    expect(0, 0, 0, 0);
    const fx_entry e = {.seq = 0, .rows = 16, .tag = 5};
    assert_int_equal(fx_begin(&w, &e, 1), RKV_OK);
    expect(1, 0, 0, 0);
    assert_int_equal(rkv_step_start(w.cache, w.stream), RKV_OK);
    expect(0, 1, 0, 0);
    assert_int_equal(fx_attend(&w, 0), RKV_OK);
    assert_int_equal(fx_attend(&w, 1), RKV_OK);
    expect(0, 0, 2, 0);
    assert_int_equal(fx_end(&w, NULL, 0), RKV_OK);
    expect(0, 0, 0, 1);
    fx_close(&w);
    expect(0, 0, 0, 0);
}

/* In calls that return early. */
static void test_refused(void **state)
{
    (void)state;
    fx w;
    const rkv_batch none = {0};
    const rkv_attend_params attend = RKV_ATTEND_PARAMS_INIT;
    fx_model m = fx_model_make(16, 64, 1024);
    fx_open(&w, &m);
    assert_int_equal(rkv_step_begin(w.cache, &none), RKV_E_ARGUMENT);
    assert_int_equal(rkv_step_begin(NULL, &none), RKV_E_ARGUMENT);
    expect(2, 0, 0, 0);
    assert_int_equal(rkv_step_start(w.cache, NULL), RKV_E_STATE);
    expect(0, 1, 0, 0);
    assert_int_equal(rkv_step_attend(w.cache, &attend, NULL), RKV_E_STATE);
    assert_int_equal(rkv_step_attend(NULL, &attend, NULL), RKV_E_ARGUMENT);
    expect(0, 0, 2, 0);
    assert_int_equal(rkv_step_end(w.cache, NULL, NULL), RKV_E_STATE);
    expect(0, 0, 0, 1);
    fx_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ranges), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
