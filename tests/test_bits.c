/* SPDX-License-Identifier: MIT
 *
 * Bit identity: one text of q, k, v through caches of every residency, ring,
 * joining, prediction, batch composition and executor; outputs and lse by
 * memcmp against a cache that keeps everything on the device.
 *
 * ROLLKV_TEST_SEED sets the seed, ROLLKV_TEST_FULL=1 runs the full product. */
#include "bits_setups.h"

static uint64_t seed;
static bool full;

static bits_executor random_executor(uint64_t *r)
{
    const uint64_t executor = bits_random(r) % 8;
    return executor < 2 ? BITS_HOST : executor < 5 ? BITS_SIM : BITS_CHECK;
}

static void test_pairs(void **state)
{
    (void)state;
    const uint32_t n = full ? 400 : 14;
    for (uint32_t i = 0; i < N_PAIRS; i++) {
        uint64_t r = seed + i;
        bits_text t;
        bits_result want;
        bits_text_make(&t, seed * 31 + i, pairs[i][0], pairs[i][1], i % 3 == 2 ? 32 : 16);
        const uint64_t largest = largest_tile_layer(&t, BITS_HOST);
        reference(&t, BITS_HOST, &want);
        for (uint32_t k = 0; k < n; k++) {
            const bits_executor executor = random_executor(&r);
            const bits_setup s = random_setup(&t, executor, largest, &r);
            compare(&t, &want, &s);
        }
        bits_result_free(&want);
    }
    /* What the runs are to go through did happen. */
    assert_true(brought_back_bytes > 0);
    assert_true(promoted_bytes > 0);
    assert_true(merged_early > 0);
}

int main(void)
{
    const char *text = getenv("ROLLKV_TEST_SEED");
    full = getenv("ROLLKV_TEST_FULL") != NULL;
    seed = text ? strtoull(text, NULL, 0) : 20261129;
    print_message("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pairs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
