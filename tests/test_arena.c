/* SPDX-License-Identifier: MIT
 *
 * Pinned host memory: sizes, limits, growth ahead of need.  Refusals are in
 * test_arena_refused.c, copies in test_arena_copy.c.
 */
#include "arena_fixture.h"

#include <pthread.h>

/* ------------------------------------------------------------ sizes, limits */

static void test_limit_is_exact(void **state)
{
    (void)state;
    rkvi_device *d = make_device(NULL);
    rkvi_arena *a = make_arena(d, 10 * MIB, 10 * MIB, 4 * MIB);
    assert_int_equal(counters(a).limit_bytes, 10 * MIB);
    assert_true(counters(a).n_slabs >= 1);
    unsigned char *at[10];
    for (uint32_t i = 0; i < 10; i++) {
        at[i] = take(a, MIB);
        memset(at[i], (int)i + 1, MIB);
    }
    for (uint32_t i = 0; i < 10; i++)
        for (uint64_t k = 0; k < MIB; k += 511)
            assert_int_equal(at[i][k], i + 1);
    assert_int_equal(counters(a).taken_bytes, 10 * MIB);
    assert_int_equal(counters(a).pinned_bytes, 10 * MIB); /* 4 + 4 + 2 */
    assert_int_equal(counters(a).n_slabs, 3);
    take_fails(a, 1, RKV_E_HOST_LIMIT, "host_limit_bytes 10485760");
    rkvi_arena_destroy(a);
    end_device(d);
}

static void test_whole_pages(void **state)
{
    (void)state;
    assert_int_equal(rkvi_arena_extent_bytes(1), 4096);
    assert_int_equal(rkvi_arena_extent_bytes(4096), 4096);
    assert_int_equal(rkvi_arena_extent_bytes(4097), 8192);
    rkvi_device *d = make_device(NULL);
    rkvi_arena *a = make_arena(d, 5 * 4096 + 100, 5 * 4096 + 100, 0);
    static const uint64_t bytes[] = {1, 4097, 8192};
    for (uint32_t i = 0; i < 3; i++)
        take(a, bytes[i]);
    assert_int_equal(counters(a).taken_bytes, 5 * 4096);
    assert_int_equal(counters(a).pinned_bytes, 5 * 4096);
    take_fails(a, 1, RKV_E_HOST_LIMIT, "4096 bytes more");
    rkvi_arena_destroy(a);
    end_device(d);
}

static void test_nothing(void **state)
{
    (void)state;
    rkvi_device *d = make_device(NULL);
    rkvi_arena_destroy(NULL);
    rkvi_arena *a = make_arena(d, 0, 0, 0);
    assert_int_equal(counters(a).n_slabs, 0);
    assert_int_equal(rkvi_device_calls(d, RKVI_CALL_HOST_REGISTER), 0);
    take_fails(a, 4096, RKV_E_HOST_LIMIT, "host_limit_bytes 0");
    rkvi_arena_destroy(a);
    /* a total of nothing, and a take all the same: the limit alone counts */
    a = make_arena(d, MIB, 0, 0);
    take(a, MIB);
    take_fails(a, 1, RKV_E_HOST_LIMIT, "1048576");
    rkvi_arena_destroy(a);
    end_device(d);
}

static void test_extent_larger_than_slab(void **state)
{
    (void)state;
    rkvi_device *d = make_device(NULL);
    rkvi_arena *a = make_arena(d, 12 * MIB, 12 * MIB, MIB);
    unsigned char *p = take(a, 5 * MIB);
    memset(p, 1, 5 * MIB);
    assert_true(rkvi_arena_same_slab(a, p, p + 5 * MIB - 1));
    assert_false(rkvi_arena_same_slab(a, p, p + 5 * MIB));
    assert_false(rkvi_arena_same_slab(a, &a, &a));
    assert_true(counters(a).pinned_bytes <= 12 * MIB);
    rkvi_arena_destroy(a);
    end_device(d);
}

/* Room that the system refuses: a sentence with the value, and nothing lost. */
static void test_system_refuses(void **state)
{
    (void)state;
    rkvi_device *d = make_device(NULL);
    rkvi_arena *a = make_arena(d, (uint64_t)1 << 60, MIB, MIB);
    take_fails(a, (uint64_t)1 << 56, RKV_E_HOST_MEMORY, "refused 72057594037927936 bytes");
    take(a, MIB);
    assert_int_equal(counters(a).pinned_bytes, MIB);
    rkvi_arena_destroy(a);
    const rkvi_arena_settings s = {.dev = d,
                                   .limit_bytes = (uint64_t)1 << 60,
                                   .total_bytes = (uint64_t)1 << 57,
                                   .slab_bytes = (uint64_t)1 << 56,
                                   .classes = &(rkvi_arena_class){(uint64_t)1 << 55, 4},
                                   .n_classes = 1,
                                   .numa_node = -1};
    a = NULL;
    assert_int_equal(rkvi_arena_create(&s, &a), RKV_E_HOST_MEMORY);
    assert_null(a);
    end_device(d);
}

/* Unlike KV layers: the exact sum is enough, in any order, with extents that
 * divide no slab. */
static void test_classes(void **state)
{
    (void)state;
    const rkvi_arena_class classes[] = {{100 * KIB, 40}, {300 * KIB, 20}, {100 * KIB, 10},
                                        {0, 3},          {7 * KIB, 31},   {2 * MIB, 3}};
    const uint64_t sizes[] = {100 * KIB, 300 * KIB, 7 * KIB, 2 * MIB};
    uint32_t left[] = {50, 20, 31, 3};
    const uint64_t sum = 50 * 100 * KIB + 20 * 300 * KIB + 31 * 8 * KIB + 3 * 2 * MIB;
    unsigned seed = 4711;
    print_message("seed %u\n", seed);
    rkvi_device *d = make_device(NULL);
    const rkvi_arena_settings s = {.dev = d,
                                   .limit_bytes = sum,
                                   .slab_bytes = MIB,
                                   .classes = classes,
                                   .n_classes = 6,
                                   .numa_node = -1};
    rkvi_arena *a;
    ok(rkvi_arena_create(&s, &a));
    for (uint32_t n = 104; n > 0; n--) {
        uint32_t i = (uint32_t)rand_r(&seed) % 4;
        while (left[i] == 0)
            i = (i + 1) % 4;
        left[i]--;
        unsigned char *p = take(a, sizes[i]);
        memset(p, (int)n, sizes[i]);
        assert_true(rkvi_arena_same_slab(a, p, p + sizes[i] - 1));
        assert_true(counters(a).pinned_bytes <= sum);
    }
    assert_int_equal(counters(a).taken_bytes, sum);
    assert_int_equal(counters(a).pinned_bytes, sum);
    take_fails(a, 7 * KIB, RKV_E_HOST_LIMIT, "8192 bytes more");
    take_fails(a, 3 * MIB, RKV_E_HOST_LIMIT, "3145728 bytes more");
    rkvi_arena_destroy(a);
    end_device(d);
}

/* A size that is not listed has the room of the smallest class that holds it. */
static void test_size_not_listed(void **state)
{
    (void)state;
    rkvi_device *d = make_device(NULL);
    const rkvi_arena_class classes[] = {{64 * KIB, 2}, {16 * KIB, 1}};
    const rkvi_arena_settings s = {
        .dev = d, .limit_bytes = 144 * KIB, .classes = classes, .n_classes = 2, .numa_node = -1};
    rkvi_arena *a;
    ok(rkvi_arena_create(&s, &a));
    take(a, 20 * KIB);
    assert_int_equal(counters(a).taken_bytes, 64 * KIB);
    take(a, 4 * KIB);
    take(a, 64 * KIB);
    assert_int_equal(counters(a).taken_bytes, 144 * KIB);
    rkvi_arena_destroy(a);
    end_device(d);
}

/* --------------------------------------------------------- ahead of need */

static void test_background_growth(void **state)
{
    (void)state;
    rkvi_device *d = make_device(NULL);
    rkvi_arena *a = make_arena(d, 64 * MIB, 8 * MIB, MIB);
    assert_int_equal(counters(a).n_slabs, 1);
    for (uint64_t n = 1; n <= 8; n++) {
        wait_for_slabs(a, n);
        void *p;
        bool waited;
        ok(rkvi_arena_take(a, MIB / 2, &p, &waited));
        assert_false(waited);
        assert_int_equal(counters(a).n_slabs >= n, 1);
        ok(rkvi_arena_take(a, MIB / 2, &p, &waited));
        assert_false(waited);
    }
    /* the total is reached: nothing more ahead of need */
    for (uint32_t i = 0; i < 20; i++)
        nap();
    assert_int_equal(counters(a).n_slabs, 8);
    assert_int_equal(counters(a).pinned_bytes, 8 * MIB);
    rkvi_arena_destroy(a);
    end_device(d);
}

/* Takes come faster than slabs: they wait, and lose nothing. */
static void test_take_in_a_hurry(void **state)
{
    (void)state;
    rkvi_device *d = make_device(NULL);
    rkvi_arena *a = make_arena(d, 24 * MIB, 24 * MIB, MIB);
    uint32_t n_waited = 0;
    for (uint32_t i = 0; i < 24; i++) {
        void *p;
        bool waited;
        ok(rkvi_arena_take(a, MIB, &p, &waited));
        memset(p, 1, MIB);
        n_waited += waited;
    }
    print_message("%u of 24 takes waited\n", n_waited);
    assert_int_equal(counters(a).pinned_bytes, 24 * MIB);
    take_fails(a, 1, RKV_E_HOST_LIMIT, "25165824");
    rkvi_arena_destroy(a);
    end_device(d);
}

/* Destroyed while the thread is at work. */
static void test_destroy_at_once(void **state)
{
    (void)state;
    rkvi_device *d = make_device(NULL);
    for (uint32_t i = 0; i < 10; i++) {
        rkvi_arena *a = make_arena(d, 64 * MIB, 64 * MIB, 8 * MIB);
        take(a, 5 * MIB);
        if (i % 2)
            nap();
        rkvi_arena_destroy(a);
    }
    end_device(d);
}

typedef struct taker {
    rkvi_arena *a;
    uint64_t bytes;
    unsigned char *at[16];
} taker;

static void *take_all(void *arg)
{
    taker *t = arg;
    for (uint32_t i = 0; i < 16; i++) {
        void *p = NULL;
        bool waited;
        if (rkvi_arena_take(t->a, t->bytes, &p, &waited) == RKV_OK)
            memset(p, (int)(t->bytes >> 12), t->bytes);
        t->at[i] = p;
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    rkvi_device *d = make_device(NULL);
    const rkvi_arena_class classes[] = {{64 * KIB, 16}, {96 * KIB, 16}, {128 * KIB, 16}};
    const rkvi_arena_settings s = {.dev = d,
                                   .limit_bytes = 16 * 288 * KIB,
                                   .slab_bytes = 256 * KIB,
                                   .classes = classes,
                                   .n_classes = 3,
                                   .numa_node = -1};
    rkvi_arena *a;
    ok(rkvi_arena_create(&s, &a));
    pthread_t threads[3];
    taker takers[3];
    for (uint32_t i = 0; i < 3; i++) {
        takers[i] = (taker){.a = a, .bytes = classes[i].extent_bytes};
        ok(pthread_create(&threads[i], NULL, take_all, &takers[i]));
    }
    for (uint32_t i = 0; i < 3; i++)
        ok(pthread_join(threads[i], NULL));
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t k = 0; k < 16; k++) {
            assert_non_null(takers[i].at[k]);
            for (uint64_t byte = 0; byte < takers[i].bytes; byte += 1000)
                assert_int_equal(takers[i].at[k][byte], takers[i].bytes >> 12);
        }
    assert_int_equal(counters(a).pinned_bytes, 16 * 288 * KIB);
    rkvi_arena_destroy(a);
    end_device(d);
}

/* A device fault ahead of need is not lost on the way: the take that needs the
 * memory tries itself, and its caller is told. */
static void test_background_failure(void **state)
{
    (void)state;
    rkvi_device *d = make_device(NULL);
    rkvi_arena *a = make_arena(d, 2 * MIB, 2 * MIB, MIB);
    const uint64_t calls = rkvi_device_calls(d, RKVI_CALL_HOST_REGISTER);
    rkvi_device_fail_call(d, RKVI_CALL_HOST_REGISTER, 1, RKV_E_POISONED);
    take(a, 900 * KIB);
    for (uint32_t i = 0; i < 10000 && rkvi_device_calls(d, RKVI_CALL_HOST_REGISTER) == calls; i++)
        nap();
    assert_int_equal(rkvi_device_calls(d, RKVI_CALL_HOST_REGISTER), calls + 1);
    for (uint32_t i = 0; i < 20; i++)
        nap();
    /* it does not try again and again */
    assert_int_equal(rkvi_device_calls(d, RKVI_CALL_HOST_REGISTER), calls + 1);
    rkvi_device_fail_call(d, RKVI_CALL_HOST_REGISTER, 1, RKV_E_POISONED);
    take_fails(a, 900 * KIB, RKV_E_POISONED, "");
    take(a, 100 * KIB); /* what there is can still be had */
    void *p;
    bool waited;
    ok(rkvi_arena_take(a, 900 * KIB, &p, &waited));
    assert_true(waited);
    assert_int_equal(counters(a).n_refused, 0);
    rkvi_arena_destroy(a);
    end_device(d);
}

/* A stack that no system grants: threads can't be created. */
static void test_no_threads(void **state)
{
    (void)state;
    rkvi_device *d = make_device(NULL);
    pthread_attr_t usual, absurd;
    ok(pthread_getattr_default_np(&usual));
    ok(pthread_getattr_default_np(&absurd));
    ok(pthread_attr_setstacksize(&absurd, (size_t)1 << 56));
    ok(pthread_setattr_default_np(&absurd));
    pthread_t none;
    assert_int_not_equal(pthread_create(&none, NULL, take_all, NULL), 0);
    rkvi_arena *a = make_arena(d, 24 * MIB, 24 * MIB, 8 * MIB);
    for (uint32_t i = 0; i < 24; i++)
        memset(take(a, MIB), 1, MIB);
    ok(pthread_setattr_default_np(&usual));
    assert_int_equal(counters(a).pinned_bytes, 24 * MIB);
    take_fails(a, 1, RKV_E_HOST_LIMIT, "25165824");
    rkvi_arena_destroy(a);
    end_device(d);
    pthread_attr_destroy(&usual);
    pthread_attr_destroy(&absurd);
}

/* What CUDA forbids while another thread captures must not kill its capture. */
static void test_beside_capture(void **state)
{
    (void)state;
    rkvi_device *d = make_device(NULL);
    rkvi_arena *a = make_arena(d, 6 * MIB, 6 * MIB, MIB);
    void *stream;
    rkvi_graph *graph;
    ok(rkvi_dev(stream_create, d, "captured", &stream));
    ok(rkvi_dev(capture_begin, d, stream, true));
    take(a, 900 * KIB);
    wait_for_slabs(a, 2);
    for (uint32_t i = 0; i < 4; i++)
        take(a, MIB);
    ok(rkvi_dev(capture_end, d, stream, &graph));
    ok(rkvi_dev(graph_destroy, d, graph));
    assert_int_equal(counters(a).n_refused, 0);
    ok(rkvi_dev(stream_destroy, d, stream));
    rkvi_arena_destroy(a);
    end_device(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limit_is_exact),  cmocka_unit_test(test_whole_pages),
        cmocka_unit_test(test_nothing),         cmocka_unit_test(test_extent_larger_than_slab),
        cmocka_unit_test(test_system_refuses),  cmocka_unit_test(test_classes),
        cmocka_unit_test(test_size_not_listed),    cmocka_unit_test(test_background_growth),
        cmocka_unit_test(test_take_in_a_hurry), cmocka_unit_test(test_destroy_at_once),
        cmocka_unit_test(test_threads),         cmocka_unit_test(test_background_failure),
        cmocka_unit_test(test_no_threads),      cmocka_unit_test(test_beside_capture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
