/* SPDX-License-Identifier: MIT
 *
 * Places: lowest first, extents, exhaustion, and random use against a model.
 */
#include "pool.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t seed = 20261129;

static uint64_t next_random(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static void test_empty(void **state)
{
    (void)state;
    rkvi_pool p;
    assert_int_equal(rkvi_pool_init(&p, 256, 0, 0, 0), RKV_OK);
    assert_int_equal(rkvi_pool_next_extent_bytes(&p), 0);
    assert_int_equal(rkvi_pool_take(&p), RKVI_NO_PLACE);
    rkvi_pool_free(&p);
    rkvi_pool_free(&p);
}

static void test_lowest_first(void **state)
{
    (void)state;
    static unsigned char memory[200 * 16];
    rkvi_pool p;
    assert_int_equal(rkvi_pool_init(&p, 16, 200, 200, 200), RKV_OK);
    rkvi_pool_add(&p, memory);
    for (uint32_t i = 0; i < 200; i++) {
        assert_int_equal(rkvi_pool_take(&p), i);
        assert_ptr_equal(rkvi_pool_at(&p, i), memory + 16 * i);
    }
    assert_int_equal(rkvi_pool_take(&p), RKVI_NO_PLACE);
    static const uint32_t given[] = {199, 64, 63, 128, 5};
    static const uint32_t taken[] = {5, 63, 64, 128, 199};
    for (size_t i = 0; i < 5; i++)
        rkvi_pool_give(&p, given[i]);
    assert_int_equal(p.n_free, 5);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(rkvi_pool_take(&p), taken[i]);
    assert_int_equal(rkvi_pool_take(&p), RKVI_NO_PLACE);
    rkvi_pool_free(&p);
}

/* 10 places in extents of 4: 4, 4 and 2. */
static void test_extents(void **state)
{
    (void)state;
    static unsigned char memory[3][4 * 512];
    rkvi_pool p;
    assert_int_equal(rkvi_pool_init(&p, 512, 10, 4, 10), RKV_OK);
    assert_int_equal(rkvi_pool_take(&p), RKVI_NO_PLACE);
    static const uint64_t bytes[] = {2048, 2048, 1024};
    /* out of address order: what counts is the order of adding */
    unsigned char *const at[] = {memory[2], memory[0], memory[1]};
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(rkvi_pool_next_extent_bytes(&p), bytes[i]);
        rkvi_pool_add(&p, at[i]);
        assert_int_equal(p.n_places, i < 2 ? 4 * (i + 1) : 10);
    }
    assert_int_equal(rkvi_pool_next_extent_bytes(&p), 0);
    for (uint32_t i = 0; i < 10; i++) {
        assert_int_equal(rkvi_pool_take(&p), i);
        assert_ptr_equal(rkvi_pool_at(&p, i), at[i / 4] + 512 * (i % 4));
    }
    assert_int_equal(rkvi_pool_take(&p), RKVI_NO_PLACE);
    rkvi_pool_free(&p);
}

/* A place that comes back counts before the places of a newer extent. */
static void test_growth_between(void **state)
{
    (void)state;
    static unsigned char memory[2][3];
    rkvi_pool p;
    assert_int_equal(rkvi_pool_init(&p, 1, 6, 3, 6), RKV_OK);
    rkvi_pool_add(&p, memory[0]);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(rkvi_pool_take(&p), i);
    rkvi_pool_add(&p, memory[1]);
    rkvi_pool_give(&p, 1);
    assert_int_equal(rkvi_pool_take(&p), 1);
    assert_int_equal(rkvi_pool_take(&p), 3);
    rkvi_pool_free(&p);
}

static void test_one_extent_larger_than_all(void **state)
{
    (void)state;
    rkvi_pool p;
    assert_int_equal(rkvi_pool_init(&p, 4096, 7, UINT64_MAX, 7), RKV_OK);
    assert_int_equal(rkvi_pool_next_extent_bytes(&p), 7 * 4096);
    rkvi_pool_free(&p);
}

static void test_sizes(void **state)
{
    (void)state;
    rkvi_pool p;
    assert_int_equal(rkvi_pool_init(&p, (uint64_t)1 << 40, 1u << 30, 1u << 30, 1u << 30), RKV_E_OVERFLOW);
    assert_non_null(strstr(rkvi_error_text(), "1073741824 places"));
    /* offsets beyond 32 bits; the address is only worked out */
    assert_int_equal(rkvi_pool_init(&p, (uint64_t)3 << 30, 8, 8, 8), RKV_OK);
    unsigned char byte;
    rkvi_pool_add(&p, &byte);
    assert_true((uintptr_t)rkvi_pool_at(&p, 7) - (uintptr_t)&byte == (uintptr_t)21 << 30);
    rkvi_pool_free(&p);
}

enum { N = 1000, EXTENT = 77, PLACE = 32 };

static void compare(const rkvi_pool *p, const bool *is_free)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_places; i++)
        n += is_free[i];
    assert_int_equal(p->n_free, n);
}

static void take_and_compare(rkvi_pool *p, bool *is_free)
{
    uint32_t lowest = 0;
    while (lowest < p->n_places && !is_free[lowest])
        lowest++;
    const uint32_t place = rkvi_pool_take(p);
    assert_int_equal(place, lowest < p->n_places ? lowest : RKVI_NO_PLACE);
    if (place != RKVI_NO_PLACE)
        is_free[place] = false;
}

static void give_random(rkvi_pool *p, bool *is_free)
{
    const uint32_t place = (uint32_t)(next_random() % p->n_places);
    if (is_free[place])
        return;
    rkvi_pool_give(p, place);
    is_free[place] = true;
}

static void test_random(void **state)
{
    (void)state;
    print_message("seed %llu\n", (unsigned long long)seed);
    static unsigned char memory[N * PLACE];
    static bool is_free[N];
    rkvi_pool p;
    assert_int_equal(rkvi_pool_init(&p, PLACE, N, EXTENT, N), RKV_OK);
    for (uint32_t i = 0; i < 40000; i++) {
        const uint64_t what = next_random() % 100;
        const uint32_t before = p.n_places;
        if (before == 0 || (what == 0 && rkvi_pool_next_extent_bytes(&p))) {
            rkvi_pool_add(&p, memory + (size_t)before * PLACE);
            for (uint32_t k = before; k < p.n_places; k++)
                is_free[k] = true;
        } else if (what < 48 + 8 * (i / 5000 % 2)) {
            take_and_compare(&p, is_free);
        } else {
            give_random(&p, is_free);
        }
        if (i % 64 == 0)
            compare(&p, is_free);
    }
    assert_int_equal(p.n_places, N);
    compare(&p, is_free);
    for (uint32_t i = 0; i < N; i++)
        assert_ptr_equal(rkvi_pool_at(&p, i), memory + (size_t)i * PLACE);
    rkvi_pool_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_empty),
        cmocka_unit_test(test_lowest_first),
        cmocka_unit_test(test_extents),
        cmocka_unit_test(test_growth_between),
        cmocka_unit_test(test_one_extent_larger_than_all),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
