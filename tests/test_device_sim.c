/* SPDX-License-Identifier: MIT
 *
 * device_sim: virtual time, seeded orders, poison.
 */
#include "device_kernels.h"
#include "device_poison.h"
#include "device_sim.h"

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define ok(call) assert_int_equal(call, RKV_OK)
#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static rkvi_device *sim(rkvi_device_sim_settings s)
{
    rkvi_device *d;
    s.skip_fill = true; /* large buffers that nobody reads */
    ok(rkvi_device_sim_create(&s, &test_ops, &d));
    return d;
}

static rkvi_device_sim_settings h200(void)
{
    rkvi_device_sim_settings s = {.order = RKVI_SIM_TIME};
    rkvi_device_sim_like_h200(&s);
    return s;
}

static void *new_stream(rkvi_device *d)
{
    void *s;
    ok(rkvi_dev(stream_create, d, "", &s));
    return s;
}

static rkvi_event *new_event(rkvi_device *d)
{
    rkvi_event *e;
    ok(rkvi_dev(event_create, d, &e));
    return e;
}

static void *dev_alloc(rkvi_device *d, size_t bytes)
{
    void *p;
    ok(rkvi_dev(mem_alloc, d, bytes, &p));
    return p;
}

static void *pinned_alloc(rkvi_device *d, size_t bytes)
{
    void *p;
    ok(rkvi_dev(host_alloc, d, bytes, &p));
    return p;
}

/* When all that a stream holds has ended: on the host's clock. */
static int64_t end_of(rkvi_device *d, void *stream)
{
    ok(rkvi_dev(stream_sync, d, stream));
    return rkvi_device_sim_now_ns(d);
}

/* ---- time ---- */

static void test_copy_curve(void **state)
{
    (void)state;
    static const struct {
        size_t bytes;
        double gb_per_s; /* measured */
    } curve[] = {{64 * KIB, 17}, {256 * KIB, 34}, {MIB, 48}, {4 * MIB, 52}, {16 * MIB, 55}};
    rkvi_device *d = sim(h200());
    void *dev = dev_alloc(d, 16 * MIB), *host = pinned_alloc(d, 16 * MIB), *s = new_stream(d);
    int64_t before = 0;
    for (size_t i = 0; i < sizeof curve / sizeof curve[0]; i++) {
        ok(copy_1d(d, RKVI_H2D, dev, host, curve[i].bytes, s));
        const int64_t now = end_of(d, s);
        const double rate = (double)curve[i].bytes / (double)(now - before);
        printf("%8zu bytes: %.1f GB/s, measured %.0f\n", curve[i].bytes, rate, curve[i].gb_per_s);
        assert_true(rate > 0.92 * curve[i].gb_per_s && rate < 1.08 * curve[i].gb_per_s);
        before = now;
    }
    /* 16 pieces of 256 KiB in one copy: 51 GB/s measured */
    const rkvi_copy pieces = {.direction = RKVI_H2D,
                              .dst = dev,
                              .src = host,
                              .rows = 16,
                              .width_bytes = 256 * KIB,
                              .dst_pitch_bytes = 256 * KIB,
                              .src_pitch_bytes = MIB};
    ok(rkvi_dev(copy, d, &pieces, s));
    const double rate = 16.0 * 256 * KIB / (double)(end_of(d, s) - before);
    assert_true(rate > 0.95 * 51 && rate < 1.05 * 51);
    rkvi_dev_destroy(d);
}

/* Numbers that are easy to add: 1 byte a ns, 100 ns a copy. */
static rkvi_device_sim_settings simple(void)
{
    return (rkvi_device_sim_settings){
        .order = RKVI_SIM_TIME,
        .h2d = {.bytes_per_s = 1000000000, .cost_ns = 100, .row_cost_ns = 10, .latency_ns = 7},
        .d2h = {.bytes_per_s = 1000000000, .cost_ns = 100, .row_cost_ns = 10, .latency_ns = 7},
        .device_bytes_per_s = 10000000000u,
        .launch_ns = 50};
}

static void test_links(void **state)
{
    (void)state;
    rkvi_device *d = sim(simple());
    void *a = new_stream(d), *b = new_stream(d), *c = new_stream(d);
    unsigned char *dev = dev_alloc(d, 10000), *host = pinned_alloc(d, 10000);
    /* two streams share a link, the other direction is apart */
    ok(copy_1d(d, RKVI_H2D, dev, host, 1000, a));
    ok(copy_1d(d, RKVI_H2D, dev + 1000, host + 1000, 1000, b));
    ok(copy_1d(d, RKVI_D2H, host + 2000, dev + 2000, 3000, c));
    assert_int_equal(end_of(d, a), 1107);
    assert_int_equal(end_of(d, b), 2207);
    assert_int_equal(end_of(d, c), 3107);
    assert_int_equal(rkvi_device_sim_link_busy_ns(d, RKVI_H2D), 2200);
    assert_int_equal(rkvi_device_sim_link_busy_ns(d, RKVI_D2H), 3100);
    /* FIFO by readiness, not by enqueueing: a's copy is ready after b's */
    ok(rkvi_dev(delay, d, 500, a));
    ok(copy_1d(d, RKVI_H2D, dev, host, 1000, a));
    ok(copy_1d(d, RKVI_H2D, dev + 1000, host + 1000, 900, b));
    assert_int_equal(end_of(d, a) - 3107, 1000 + 1100 + 7);
    /* D2D uses no link: launch, then read and write at 10 bytes a ns */
    const int64_t now = rkvi_device_sim_now_ns(d);
    ok(copy_1d(d, RKVI_D2D, dev + 5000, dev, 1000, a));
    assert_int_equal(end_of(d, a) - now, 50 + 200);
    rkvi_dev_destroy(d);
}

static void test_copies_hide_behind_compute(void **state)
{
    (void)state;
    rkvi_device *d = sim(simple());
    void *compute = new_stream(d), *copies = new_stream(d);
    unsigned char *dev = dev_alloc(d, 10000), *host = pinned_alloc(d, 10000);
    rkvi_event *start = new_event(d), *end = new_event(d), *filled[4];
    ok(rkvi_dev(event_record, d, start, compute));
    /* a copy takes 900, a site 1000: after the first copy, only compute counts */
    for (int i = 0; i < 4; i++) {
        filled[i] = new_event(d);
        ok(copy_1d(d, RKVI_H2D, dev + 1000 * i, host + 1000 * i, 793, copies));
        ok(rkvi_dev(event_record, d, filled[i], copies));
    }
    for (int i = 0; i < 4; i++) {
        ok(rkvi_dev(stream_wait, d, compute, filled[i]));
        ok(rkvi_dev(delay, d, 1000, compute));
    }
    ok(rkvi_dev(event_record, d, end, compute));
    ok(rkvi_dev(event_sync, d, end));
    int64_t ns;
    ok(rkvi_dev(event_elapsed, d, start, end, &ns));
    assert_int_equal(ns, 900 + 4 * 1000);
    for (int i = 0; i < 4; i++)
        ok(rkvi_dev(event_destroy, d, filled[i]));
    ok(rkvi_dev(event_destroy, d, start));
    ok(rkvi_dev(event_destroy, d, end));
    rkvi_dev_destroy(d);
}

static void test_kernels_and_the_host_clock(void **state)
{
    (void)state;
    rkvi_device_sim_settings s = simple();
    s.enqueue_ns = 30;
    s.host_call_ns = 400;
    rkvi_device *d = sim(s);
    void *a = new_stream(d), *b = new_stream(d);
    uint32_t *dev = dev_alloc(d, 4000);
    rkvi_event *e = new_event(d);
    bool is_done = true;
    ok(launch_add(d, dev, dev, 0, 500, a));             /* [0, 250): 2000 bytes at 10 a ns */
    ok(launch_add(d, dev + 500, dev + 500, 0, 500, b)); /* enqueued at 30: [30, 280) */
    ok(rkvi_dev(event_record, d, e, b));
    assert_int_equal(rkvi_device_sim_now_ns(d), 90);
    ok(rkvi_dev(event_query, d, e, &is_done));
    assert_false(is_done);
    rkvi_device_sim_host_work(d, 10000);
    ok(rkvi_dev(event_query, d, e, &is_done));
    assert_true(is_done);
    assert_true(end_of(d, a) >= 10090); /* the host's clock never goes back */
    /* an operation starts no earlier than it was enqueued */
    const int64_t now = rkvi_device_sim_now_ns(d);
    ok(rkvi_dev(delay, d, 5, a));
    assert_int_equal(end_of(d, a), now + 30);
    ok(rkvi_dev(delay, d, 500, a));
    assert_int_equal(end_of(d, a), now + 30 + 500);
    /* a host that only polls comes to an end */
    ok(rkvi_dev(delay, d, 1000000, a));
    ok(rkvi_dev(event_record, d, e, a));
    unsigned n_polls = 0;
    do
        ok(rkvi_dev(event_query, d, e, &is_done));
    while (!is_done && ++n_polls < 100000);
    assert_true(is_done && n_polls > 10);
    ok(rkvi_dev(event_destroy, d, e));
    rkvi_dev_destroy(d);
}

/* ---- orders ---- */

#define ORDER_STREAMS 3
#define ORDER_EACH 4
static char order_seen[ORDER_STREAMS * ORDER_EACH + 1];
static size_t order_n;

static void note_order(void *arg)
{
    order_seen[order_n++] = (char)(uintptr_t)arg;
}

/* Streams a, b, c with four host calls each; c's last two wait for a's second. */
static const char *run_order(rkvi_sim_order order, uint64_t seed)
{
    rkvi_device *d = sim((rkvi_device_sim_settings){.order = order, .seed = seed});
    void *streams[ORDER_STREAMS];
    rkvi_event *e = new_event(d);
    order_n = 0;
    for (int i = 0; i < ORDER_STREAMS; i++)
        streams[i] = new_stream(d);
    for (uintptr_t k = 0; k < ORDER_EACH; k++)
        for (uintptr_t i = 0; i < ORDER_STREAMS; i++) {
            if (i == 2 && k == 2)
                ok(rkvi_dev(stream_wait, d, streams[i], e));
            ok(rkvi_dev(host_call, d, note_order, (void *)('a' + i), NULL, 0, streams[i]));
            if (i == 0 && k == 1)
                ok(rkvi_dev(event_record, d, e, streams[i]));
        }
    rkvi_device_sim_run(d);
    ok(rkvi_dev(event_destroy, d, e));
    rkvi_dev_destroy(d);
    return order_seen;
}

static void test_seeded_orders(void **state)
{
    (void)state;
    char seen[64][sizeof order_seen];
    size_t n_distinct = 0;
    for (unsigned seed = 0; seed < 64; seed++) {
        strcpy(seen[seed], run_order(RKVI_SIM_SEEDED, seed));
        assert_int_equal(strlen(seen[seed]), ORDER_STREAMS * ORDER_EACH);
        /* the edge holds: two of a before the third of c */
        int n_a = 0, n_c = 0;
        for (const char *p = seen[seed]; *p; p++) {
            n_a += *p == 'a';
            n_c += *p == 'c';
            assert_true(n_c < 3 || n_a >= 2);
        }
        assert_string_equal(seen[seed], run_order(RKVI_SIM_SEEDED, seed)); /* repeatable */
        bool is_new = true;
        for (unsigned k = 0; k < seed; k++)
            is_new = is_new && strcmp(seen[k], seen[seed]);
        n_distinct += is_new;
    }
    printf("%zu orders under 64 seeds, as %s, %s, %s\n", n_distinct, seen[1], seen[2], seen[3]);
    assert_true(n_distinct > 20);
}

static void test_laziness(void **state)
{
    (void)state;
    /* in RKVI_SIM_TIME nothing runs before the host waits */
    rkvi_device *d = sim((rkvi_device_sim_settings){.order = RKVI_SIM_TIME});
    uint32_t *dev = dev_alloc(d, 4), *host = pinned_alloc(d, 4);
    *host = 1;
    ok(copy_1d(d, RKVI_H2D, dev, host, 4, NULL));
    *host = 2; /* too early */
    ok(copy_1d(d, RKVI_D2H, host, dev, 4, NULL));
    ok(rkvi_dev(stream_sync, d, NULL));
    assert_int_equal(*host, 2);
    assert_int_equal(*dev, 2);
    rkvi_dev_destroy(d);
}

static void test_fresh_and_freed_memory(void **state)
{
    (void)state;
    const rkvi_device_sim_settings s = {.order = RKVI_SIM_TIME};
    rkvi_device *d;
    ok(rkvi_device_sim_create(&s, &test_ops, &d));
    uint32_t *dev = dev_alloc(d, 4096), *host = pinned_alloc(d, 4096);
    ok(copy_1d(d, RKVI_D2H, host, dev, 4096, NULL));
    ok(rkvi_dev(stream_sync, d, NULL));
    for (size_t k = 0; k < 1024; k++)
        assert_int_equal(host[k], 0xffffffff); /* NaN in f32, f16, bf16, fp8 */
    ok(rkvi_dev(fill, d, dev, 0, 4096, NULL));
    ok(rkvi_dev(stream_sync, d, NULL));
    ok(copy_1d(d, RKVI_D2H, host, dev, 4096, NULL));
    ok(rkvi_dev(mem_free, d, dev)); /* too early */
    ok(rkvi_dev(stream_sync, d, NULL));
    assert_int_equal(host[0], 0xffffffff);
    rkvi_dev_destroy(d);
}

/* ---- poison ---- */

#define POISON_WORDS 3072u /* three pages */

/* A launch of dst = src + 1 over all words that declares the given bytes. */
typedef struct poison_case {
    rkvi_sim_poison poison;
    bool is_src_host; /* the source is pinned host memory */
    size_t dst_bytes, src_bytes;
    bool dies_exact, dies_pages;
} poison_case;

static void run_poison_case(const poison_case *p)
{
    rkvi_device *d = sim((rkvi_device_sim_settings){.order = RKVI_SIM_TIME, .poison = p->poison});
    uint32_t *dst = dev_alloc(d, POISON_WORDS * 4);
    uint32_t *dev = dev_alloc(d, POISON_WORDS * 4), *host = pinned_alloc(d, POISON_WORDS * 4);
    uint32_t *src = p->is_src_host ? host : dev;
    ok(rkvi_dev(fill, d, dev, 1, POISON_WORDS * 4, NULL));
    memset(host, 1, POISON_WORDS * 4);
    const add_args args = {.dst = dst, .src = src, .add = 1};
    const rkvi_range ranges[] = {{.ptr = dst, .bytes = p->dst_bytes, .access = RKVI_WRITE},
                                 {.ptr = src, .bytes = p->src_bytes, .access = RKVI_READ}};
    const rkvi_launch launch = {.op = OP_ADD,
                                .args = &args,
                                .args_bytes = sizeof args,
                                .grid = POISON_WORDS,
                                .ranges = ranges,
                                .n_ranges = 2};
    ok(rkvi_dev(launch, d, &launch, NULL));
    ok(copy_1d(d, RKVI_D2H, host, dst, POISON_WORDS * 4, NULL));
    ok(rkvi_dev(stream_sync, d, NULL));
    assert_int_equal(host[POISON_WORDS - 1], 0x01010102);
    rkvi_dev_destroy(d);
}

static bool dies(const poison_case *p)
{
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        const int null = open("/dev/null", O_WRONLY);
        dup2(null, 1);
        dup2(null, 2);
        signal(SIGSEGV, SIG_DFL); /* not the test runner's */
        signal(SIGBUS, SIG_DFL);
        run_poison_case(p);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static void test_poison(void **state)
{
    (void)state;
    const size_t all = POISON_WORDS * 4, short_by_word = all - 4, one_page = 4096;
    const poison_case cases[] = {
        {RKVI_SIM_POISON_OFF, false, one_page, one_page, false, false},
        {RKVI_SIM_POISON_DEVICE, false, all, all, false, false},
        {RKVI_SIM_POISON_DEVICE, false, one_page, all, true, true},
        {RKVI_SIM_POISON_DEVICE, false, all, one_page, true, true},
        {RKVI_SIM_POISON_DEVICE, false, all, 0, true, true},
        {RKVI_SIM_POISON_DEVICE, false, short_by_word, all, true, false},
        {RKVI_SIM_POISON_DEVICE, false, all, short_by_word, true, false},
        {RKVI_SIM_POISON_DEVICE, true, all, 0, false, false},
        {RKVI_SIM_POISON_ALL, true, all, all, false, false},
        {RKVI_SIM_POISON_ALL, true, all, one_page, true, true},
        {RKVI_SIM_POISON_ALL, true, all, short_by_word, true, false},
    };
    printf("poison is exact to %s\n", rkvi_poison_is_exact() ? "bytes" : "pages");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const bool want = rkvi_poison_is_exact() ? cases[i].dies_exact : cases[i].dies_pages;
        if (dies(&cases[i]) != want)
            fail_msg("case %zu should %s", i, want ? "die" : "live");
    }
}

/* 2D ranges: the gaps between their rows are closed. */
static void test_poison_leaves_rows_open(void **state)
{
    (void)state;
    rkvi_device *d =
        sim((rkvi_device_sim_settings){.order = RKVI_SIM_TIME, .poison = RKVI_SIM_POISON_ALL});
    unsigned char *dev = dev_alloc(d, 65536), *host = pinned_alloc(d, 65536);
    for (size_t k = 0; k < 65536; k++)
        host[k] = (unsigned char)(k * 7);
    rkvi_copy copy = {.direction = RKVI_H2D,
                      .dst = dev + 16,
                      .src = host,
                      .width_bytes = 1000,
                      .rows = 20,
                      .dst_pitch_bytes = 3000,
                      .src_pitch_bytes = 1000};
    ok(rkvi_dev(copy, d, &copy, NULL));
    copy = (rkvi_copy){.direction = RKVI_D2H,
                       .dst = host + 32768,
                       .src = dev + 16,
                       .width_bytes = 1000,
                       .rows = 20,
                       .dst_pitch_bytes = 1000,
                       .src_pitch_bytes = 3000};
    ok(rkvi_dev(copy, d, &copy, NULL));
    ok(rkvi_dev(stream_sync, d, NULL));
    assert_memory_equal(host, host + 32768, 20000);
    rkvi_dev_destroy(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copy_curve),
        cmocka_unit_test(test_links),
        cmocka_unit_test(test_copies_hide_behind_compute),
        cmocka_unit_test(test_kernels_and_the_host_clock),
        cmocka_unit_test(test_seeded_orders),
        cmocka_unit_test(test_laziness),
        cmocka_unit_test(test_fresh_and_freed_memory),
        cmocka_unit_test(test_poison),
        cmocka_unit_test(test_poison_leaves_rows_open),
    };
    printf("device_sim, seeds 0 to 63\n");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
