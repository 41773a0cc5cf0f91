/* SPDX-License-Identifier: MIT
 *
 * Pinned host memory and the system: refused registrations and what they fall
 * back to, progress, forks, huge pages, NUMA.
 */
#include "arena_fixture.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---------------------------------------------------------------- refusals */

/* Slabs beyond a cap per call: host_alloc takes over, and the refused size is
 * asked for once only. */
static void test_refused_registration(void **state)
{
    (void)state;
    rkvi_device *d = make_device(&(rkvi_device_limits){.register_max_bytes = MIB});
    rkvi_arena *a = make_arena(d, 8 * MIB, 8 * MIB, 2 * MIB);
    for (uint32_t i = 0; i < 8; i++)
        memset(take(a, MIB), 1, MIB);
    const rkvi_arena_counters c = counters(a);
    assert_int_equal(c.n_refused, 1);
    assert_int_equal(c.pinned_bytes, 8 * MIB);
    assert_int_equal(c.unpinned_bytes, 0);
    assert_int_equal(rkvi_device_calls(d, RKVI_CALL_HOST_REGISTER), 2); /* bounce buffer, first slab */
    assert_int_equal(rkvi_device_calls(d, RKVI_CALL_HOST_ALLOC), 4);
    rkvi_arena_destroy(a);
    end_device(d);
}

static void test_refused_both(void **state)
{
    (void)state;
    rkvi_device *d =
        make_device(&(rkvi_device_limits){.register_max_bytes = MIB, .host_alloc_max_bytes = MIB});
    rkvi_arena *a = make_arena(d, 8 * MIB, 8 * MIB, 2 * MIB);
    for (uint32_t i = 0; i < 8; i++)
        memset(take(a, MIB), 1, MIB);
    const rkvi_arena_counters c = counters(a);
    assert_int_equal(c.n_refused, 1);
    assert_int_equal(c.pinned_bytes, 0);
    assert_int_equal(c.unpinned_bytes, 8 * MIB);
    assert_int_equal(c.bounce_bytes, 2 * 128 * KIB); /* a 64th of the total, each way */
    assert_int_equal(rkvi_device_calls(d, RKVI_CALL_HOST_ALLOC), 1);
    rkvi_arena_destroy(a);
    end_device(d);
}

/* A wall for all that is pinned: pinned up to it, unpinned beyond. */
static void test_refused_total(void **state)
{
    (void)state;
    rkvi_device *d = make_device(&(rkvi_device_limits){.register_total_bytes = 5 * MIB});
    rkvi_arena *a = make_arena(d, 8 * MIB, 8 * MIB, 2 * MIB);
    for (uint32_t i = 0; i < 8; i++)
        memset(take(a, MIB), 1, MIB);
    const rkvi_arena_counters c = counters(a);
    assert_int_equal(c.n_refused, 1);
    assert_int_equal(c.pinned_bytes, 4 * MIB);
    assert_int_equal(c.unpinned_bytes, 4 * MIB);
    assert_int_equal(c.bounce_bytes, 256 * KIB);
    rkvi_arena_destroy(a);
    end_device(d);
}

static void test_nothing_can_be_pinned(void **state)
{
    (void)state;
    rkvi_device *d = make_device(&(rkvi_device_limits){.register_total_bytes = 1});
    rkvi_arena *a = make_arena(d, 2 * MIB, 2 * MIB, MIB);
    take(a, MIB);
    take(a, MIB);
    const rkvi_arena_counters c = counters(a);
    assert_int_equal(c.n_refused, 1);
    assert_int_equal(c.unpinned_bytes, 2 * MIB);
    assert_int_equal(c.bounce_bytes, 0);
    rkvi_arena_destroy(a);
    end_device(d);
}

/* Each call that creation makes fails in turn; nothing stays behind. */
static void test_failed_creation(void **state)
{
    (void)state;
    for (uint64_t nth = 1; nth <= 3; nth++) {
        rkvi_device *d = make_device(NULL);
        const rkvi_arena_class classes[] = {{64 * KIB, 4}, {96 * KIB, 4}};
        const rkvi_arena_settings s = {
            .dev = d, .limit_bytes = MIB, .classes = classes, .n_classes = 2, .numa_node = -1};
        rkvi_device_fail_call(d, RKVI_CALL_HOST_REGISTER, nth, RKV_E_POISONED);
        rkvi_arena *a = NULL;
        assert_int_equal(rkvi_arena_create(&s, &a), RKV_E_POISONED);
        assert_null(a);
        end_device(d);
    }
    rkvi_device *d = make_device(NULL);
    const rkvi_arena_class huge[] = {{(uint64_t)1 << 40, (uint64_t)1 << 40}};
    const rkvi_arena_settings s = {.dev = d, .classes = huge, .n_classes = 1, .numa_node = -1};
    rkvi_arena *a = NULL;
    assert_int_equal(rkvi_arena_create(&s, &a), RKV_E_OVERFLOW);
    assert_null(a);
    end_device(d);
}

/* ---------------------------------------------------------------- progress */

typedef struct seen {
    pthread_t thread;
    uint64_t n_calls, n_complete, last_bytes, total_bytes;
    bool is_wrong;
} seen;

static void on_progress(void *user, const char *what, uint64_t done_bytes, uint64_t total_bytes)
{
    seen *s = user;
    s->is_wrong |=
        !what || !what[0] || done_bytes > total_bytes || !pthread_equal(s->thread, pthread_self());
    s->is_wrong |= s->n_calls && (done_bytes <= s->last_bytes || total_bytes != s->total_bytes);
    s->n_calls++;
    s->n_complete += done_bytes == total_bytes;
    s->last_bytes = done_bytes;
    s->total_bytes = total_bytes;
}

static void check_progress(const rkvi_device_limits *limits, uint32_t n_threads)
{
    rkvi_device *d = make_device(limits);
    seen seen_here = {.thread = pthread_self()};
    const rkvi_arena_class classes[] = {{12 * MIB, 4}, {MIB, 100}};
    const rkvi_arena_settings s = {.dev = d,
                                   .limit_bytes = 148 * MIB,
                                   .slab_bytes = 30 * MIB,
                                   .classes = classes,
                                   .n_classes = 2,
                                   .numa_node = -1,
                                   .n_touch_threads = n_threads,
                                   .progress = on_progress,
                                   .progress_user = &seen_here};
    rkvi_arena *a;
    ok(rkvi_arena_create(&s, &a));
    take(a, 12 * MIB);
    rkvi_arena_destroy(a);
    assert_false(seen_here.is_wrong);
    assert_int_equal(seen_here.n_complete, 1);
    assert_int_equal(seen_here.total_bytes, 54 * MIB); /* 2 x 12 and 30 x 1 */
    assert_int_equal(seen_here.last_bytes, 54 * MIB);
    assert_true(seen_here.n_calls >= 2);
    end_device(d);
}

static void test_progress(void **state)
{
    (void)state;
    check_progress(NULL, 1);
    check_progress(NULL, 3);
    check_progress(NULL, 0);
    /* touched twice, told once */
    check_progress(&(rkvi_device_limits){.register_max_bytes = MIB, .host_alloc_max_bytes = MIB}, 2);
}

/* ------------------------------------------------------- what the system says */

/* Whether the mapping of p has the flag, in the words of /proc/PID/smaps. */
static bool has_flag(const void *p, const char *flag)
{
    FILE *f = fopen("/proc/self/smaps", "r");
    assert_non_null(f);
    char line[1024];
    bool is_here = false, found = false;
    while (fgets(line, sizeof line, f)) {
        uintptr_t from, to;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &from, &to) == 2)
            is_here = (uintptr_t)p >= from && (uintptr_t)p < to;
        if (is_here && !strncmp(line, "VmFlags:", 8))
            found = strstr(line, flag) != NULL;
    }
    fclose(f);
    return found;
}

static int run_child(const unsigned char *p)
{
    const pid_t child = fork();
    if (child == 0) {
        unsigned char resident;
        _exit(mincore((void *)(uintptr_t)p, 4096, &resident) == -1 && errno == ENOMEM ? 0 : 1);
    }
    int status = -1;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void check_fork(const rkvi_device_limits *limits)
{
    rkvi_device *d = make_device(limits);
    rkvi_arena *a = make_arena(d, 4 * MIB, 4 * MIB, 4 * MIB);
    unsigned char *p = take(a, 4 * MIB);
    memset(p, 77, 4 * MIB);
    assert_true(has_flag(p, " dc "));
    assert_true(has_flag(p + 4 * MIB - 4096, " dc "));
    assert_int_equal(run_child(p), 0);
    assert_int_equal(p[4 * MIB - 1], 77);
    rkvi_arena_destroy(a);
    end_device(d);
}

static void test_fork(void **state)
{
    (void)state;
    check_fork(NULL);
    check_fork(&(rkvi_device_limits){.register_max_bytes = MIB});
    check_fork(&(rkvi_device_limits){.register_max_bytes = MIB, .host_alloc_max_bytes = MIB});
}

static void test_huge_pages(void **state)
{
    (void)state;
    const bool has_huge = access("/sys/kernel/mm/transparent_hugepage/enabled", F_OK) == 0;
    rkvi_device *d = make_device(NULL);
    for (uint32_t off = 0; off < 2; off++) {
        const rkvi_arena_settings s = {.dev = d,
                                       .limit_bytes = 4 * MIB,
                                       .total_bytes = 4 * MIB,
                                       .numa_node = -1,
                                       .no_huge_pages = off};
        rkvi_arena *a;
        ok(rkvi_arena_create(&s, &a));
        unsigned char *p = take(a, 4 * MIB);
        assert_int_equal((uintptr_t)p % (2 * MIB), 0);
        if (has_huge)
            assert_int_equal(has_flag(p, " hg "), !off);
        rkvi_arena_destroy(a);
    }
    end_device(d);
}

/* The policy of p's mapping as /proc/PID/numa_maps tells it; "" if it does not. */
static void numa_policy(const void *p, char *out, size_t out_bytes)
{
    out[0] = 0;
    FILE *f = fopen("/proc/self/numa_maps", "r");
    if (!f)
        return;
    char line[1024];
    while (fgets(line, sizeof line, f)) {
        uintptr_t from;
        char policy[64];
        /* mappings come by rising address: the last one at or below p */
        if (sscanf(line, "%" SCNxPTR " %63s", &from, policy) == 2 && from <= (uintptr_t)p)
            snprintf(out, out_bytes, "%s", policy);
    }
    fclose(f);
}

/* A node that does not exist is told in the log, and is no error. */
static void count_line(void *user, int32_t level, const char *message)
{
    (void)level;
    *(uint32_t *)user += strstr(message, "NUMA node") != NULL;
}

static void test_numa(void **state)
{
    (void)state;
    rkvi_device *d = make_device(NULL);
    static const int32_t nodes[] = {-1, 0, 4000};
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t n_lines = 0;
        rkvi_log_set(count_line, &n_lines);
        const rkvi_arena_settings s = {
            .dev = d, .limit_bytes = MIB, .total_bytes = MIB, .numa_node = nodes[i]};
        rkvi_arena *a;
        ok(rkvi_arena_create(&s, &a));
        rkvi_log_set(NULL, NULL);
        const unsigned char *p = take(a, MIB);
        char policy[64];
        numa_policy(p, policy, sizeof policy);
        const int32_t node = counters(a).numa_node;
        print_message("node %d asked for, bound to %d, policy '%s'\n", (int)nodes[i], (int)node,
                      policy);
        assert_true(node == -1 || node == nodes[i]);
        if (node == 0 && policy[0])
            assert_memory_equal(policy, "prefer", 6);
        if (nodes[i] == 4000) {
            assert_int_equal(node, -1);
            assert_int_equal(n_lines, 1);
        }
        rkvi_arena_destroy(a);
    }
    end_device(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused_registration),
        cmocka_unit_test(test_refused_both),
        cmocka_unit_test(test_refused_total),
        cmocka_unit_test(test_nothing_can_be_pinned),
        cmocka_unit_test(test_failed_creation),
        cmocka_unit_test(test_progress),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_huge_pages),
        cmocka_unit_test(test_numa),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
