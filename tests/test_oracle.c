/* SPDX-License-Identifier: MIT
 *
 * Long random sequences of operations, as oracle.h says: on threads, in the
 * simulator's orders and under the checker.
 *
 * ROLLKV_TEST_SEED sets the first seed, ROLLKV_TEST_FULL=1 makes many long runs.
 */
#include "oracle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static uint64_t seed;

static void run(fx_executor executor, uint32_t runs, uint32_t n)
{
    for (uint32_t i = 0; i < (fx_is_full() ? 10 * runs : runs); i++)
        oracle_run(seed * 1000 + 100 * (uint64_t)executor + i, executor, fx_is_full() ? 5 * n : n);
}

static void test_host(void **state)
{
    (void)state;
    run(FX_HOST, 2, 150);
}

static void test_sim(void **state)
{
    (void)state;
    run(FX_SIM, 4, 150);
}

static void test_check(void **state)
{
    (void)state;
    run(FX_CHECK, 3, 150);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_host),
        cmocka_unit_test(test_sim),
        cmocka_unit_test(test_check),
    };
#ifdef FX_ON_GPU
    fx_use_gpu();
#endif
    seed = fx_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
