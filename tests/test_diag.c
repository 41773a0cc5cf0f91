/* SPDX-License-Identifier: MIT
 *
 * Error text, status names and the log callback.
 */
#include "diag.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void test_text(void **state)
{
    (void)state;
    rkvi_error_clear();
    assert_string_equal(rkvi_error_text(), "");
    assert_int_equal(rkvi_fail(RKV_E_BATCH, "batch of %d, at most %d", 9, 4), RKV_E_BATCH);
    assert_string_equal(rkvi_error_text(), "batch of 9, at most 4");
    /* the former text may be an argument of the next one */
    assert_int_equal(rkvi_fail(RKV_E_RING, "ring: %s", rkvi_error_text()), RKV_E_RING);
    assert_string_equal(rkvi_error_text(), "ring: batch of 9, at most 4");
}

static void test_long_text_is_cut(void **state)
{
    (void)state;
    char text[2000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    rkvi_fail(RKV_E_ARGUMENT, "%s", text);
    const size_t n = strlen(rkvi_error_text());
    assert_true(n >= 255 && n < sizeof text - 1);
    assert_memory_equal(rkvi_error_text(), text, n);
}

static void *other_thread(void *arg)
{
    (void)arg;
    static char seen[16];
    snprintf(seen, sizeof seen, "%s", rkvi_error_text());
    rkvi_fail(RKV_E_STATE, "theirs");
    return seen;
}

static void test_text_is_of_the_thread(void **state)
{
    (void)state;
    rkvi_fail(RKV_E_STATE, "mine");
    pthread_t t;
    void *seen;
    assert_int_equal(pthread_create(&t, NULL, other_thread, NULL), 0);
    assert_int_equal(pthread_join(t, &seen), 0);
    assert_string_equal(seen, "");
    assert_string_equal(rkvi_error_text(), "mine");
}

static void test_names(void **state)
{
    (void)state;
    static const struct {
        rkv_status status;
        const char *name;
    } table[] = {
        {0, "RKV_OK"},
        {-1, "RKV_E_ARGUMENT"},
        {-2, "RKV_E_UNSUPPORTED"},
        {-3, "RKV_E_STATE"},
        {-4, "RKV_E_SEQUENCE"},
        {-5, "RKV_E_BATCH"},
        {-6, "RKV_E_OVERFLOW"},
        {-7, "RKV_E_NO_DEVICE"},
        {-20, "RKV_E_CAPACITY"},
        {-21, "RKV_E_DEVICE_LIMIT"},
        {-22, "RKV_E_HOST_LIMIT"},
        {-23, "RKV_E_DEVICE_MEMORY"},
        {-24, "RKV_E_HOST_MEMORY"},
        {-25, "RKV_E_RING"},
        {-26, "RKV_E_SYSTEM"},
        {-40, "RKV_E_DEVICE_CALL"},
        {-60, "RKV_E_POISONED"},
        {5, "unknown status"},
        {-1000, "unknown status"},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++)
        assert_string_equal(rkvi_status_name(table[i].status), table[i].name);
}

static void take_log(void *user, int32_t level, const char *message)
{
    snprintf(user, 64, "%d %s", (int)level, message);
}

static void test_log(void **state)
{
    (void)state;
    char line[64] = "";
    rkvi_log(RKVI_LOG_ERROR, "nobody listens");
    rkvi_log_set(take_log, line);
    rkvi_log(RKVI_LOG_WARNING, "slab %u", 3u);
    assert_string_equal(line, "1 slab 3");
    rkvi_log_set(NULL, NULL);
    rkvi_log(RKVI_LOG_ERROR, "nobody listens");
    assert_string_equal(line, "1 slab 3");
}

static void test_call_site(void **state)
{
    (void)state;
    rkvi_call_site = RKVI_HERE;
    assert_non_null(strstr(rkvi_call_site, "test_diag.c:"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_long_text_is_cut),
        cmocka_unit_test(test_text_is_of_the_thread),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_call_site),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
