/* SPDX-License-Identifier: MIT
 *
 * device_check: what it reports, and what it doesn't.
 */
#include "device_check.h"
#include "device_kernels.h"
#include "device_sim.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define ok(call) assert_int_equal(call, RKV_OK)
#define BYTES 4096u
#define WORDS (BYTES / 4)

typedef struct fixture {
    rkvi_device *d;
    void *a, *b;
    rkvi_event *e;
    uint32_t *dev[2], *host[2];
} fixture;

static rkvi_device *make(rkvi_device_check_settings settings)
{
    const rkvi_device_sim_settings s = {.order = RKVI_SIM_TIME};
    rkvi_device *sim, *d;
    ok(rkvi_device_sim_create(&s, &test_ops, &sim));
    ok(rkvi_device_check_create(sim, &settings, &d));
    return d;
}

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->d = make((rkvi_device_check_settings){0});
    ok(rkvi_dev(stream_create, f->d, "a", &f->a));
    ok(rkvi_dev(stream_create, f->d, "b", &f->b));
    ok(rkvi_dev(event_create, f->d, &f->e));
    for (int i = 0; i < 2; i++) {
        void *p;
        ok(rkvi_dev(mem_alloc, f->d, BYTES, &p));
        f->dev[i] = p;
        ok(rkvi_dev(host_alloc, f->d, BYTES, &p));
        f->host[i] = p;
    }
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    ok(rkvi_dev(event_destroy, f->d, f->e));
    rkvi_dev_destroy(f->d);
    free(f);
    return 0;
}

/* Expects as many reports of that kind, no others, and forgets them. */
static void expect_reports(rkvi_device *d, rkvi_check_kind kind, size_t n, int line)
{
    size_t found = rkvi_device_check_count(d);
    if (found != n)
        fail_msg("line %d: %zu reports, not %zu: %s", line, found, n,
                 found ? rkvi_device_check_report(d, 0)->text : "");
    for (size_t i = 0; i < n; i++)
        if (rkvi_device_check_report(d, i)->kind != kind)
            fail_msg("line %d: %s", line, rkvi_device_check_report(d, i)->text);
    rkvi_device_check_clear(d);
}
#define expect(d, kind, n) expect_reports(d, RKVI_CHECK_##kind, n, __LINE__)
#define expect_none(d) expect_reports(d, RKVI_CHECK_RACE, 0, __LINE__)

static void fill_both(fixture *f)
{
    for (int i = 0; i < 2; i++)
        ok(rkvi_dev(fill, f->d, f->dev[i], 0, BYTES, f->a));
    ok(rkvi_dev(stream_sync, f->d, f->a));
    for (int i = 0; i < 2; i++) {
        host_touch(f->d, f->host[i], BYTES, RKVI_WRITE);
        memset(f->host[i], 0, BYTES);
    }
}

static void edge(fixture *f, void *first, void *then)
{
    ok(rkvi_dev(event_record, f->d, f->e, first));
    ok(rkvi_dev(stream_wait, f->d, then, f->e));
}

/* ---- races ---- */

static void test_sites_and_counts(void **state)
{
    fixture *f = *state;
    fill_both(f);
    for (int i = 0; i < 3; i++) {
        ok(launch_add(f->d, f->dev[0], f->dev[1], 1, WORDS, f->a));
        ok(launch_add(f->d, f->dev[0], f->dev[1], 1, WORDS, f->b));
    }
    const int line = __LINE__ - 2;
    char second[64];
    snprintf(second, sizeof second, "test_device_check.c:%d", line);
    /* a then b, and b then a: a pair of sites each */
    assert_int_equal(rkvi_device_check_count(f->d), 2);
    const rkvi_check_report *r = rkvi_device_check_report(f->d, 0);
    assert_non_null(strstr(r->second_site, second));
    assert_int_equal(r->times, 3);
    assert_non_null(strstr(r->text, r->first_site));
    assert_int_equal(rkvi_device_check_report(f->d, 1)->times, 2);
    assert_null(rkvi_device_check_report(f->d, 2));
    expect(f->d, RACE, 2);
}

static void test_reads_do_not_conflict(void **state)
{
    fixture *f = *state;
    fill_both(f);
    ok(copy_1d(f->d, RKVI_D2H, f->host[0], f->dev[0], BYTES, f->a));
    ok(copy_1d(f->d, RKVI_D2H, f->host[1], f->dev[0], BYTES, f->b));
    expect_none(f->d);
    /* each of the two readers must come before a writer */
    edge(f, f->b, f->a);
    ok(rkvi_dev(fill, f->d, f->dev[0], 1, BYTES, f->a));
    expect_none(f->d);
    ok(copy_1d(f->d, RKVI_D2H, f->host[1], f->dev[0], BYTES, f->b));
    expect(f->d, RACE, 1);
}

static void test_2d_ranges_are_exact(void **state)
{
    fixture *f = *state;
    fill_both(f);
    /* a writes the even pieces of 32 bytes, b the odd ones */
    rkvi_copy copy = {.direction = RKVI_H2D,
                      .dst = f->dev[0],
                      .src = f->host[0],
                      .width_bytes = 32,
                      .rows = 64,
                      .dst_pitch_bytes = 64,
                      .src_pitch_bytes = 32};
    ok(rkvi_dev(copy, f->d, &copy, f->a));
    copy.dst = (char *)f->dev[0] + 32;
    ok(rkvi_dev(copy, f->d, &copy, f->b));
    expect_none(f->d);
    /* one byte over, in the last row alone */
    const rkvi_range range = {
        .ptr = (char *)f->dev[0] + 64 * 63 + 31, .bytes = 1, .access = RKVI_WRITE};
    const add_args args = {.dst = f->dev[1]};
    const rkvi_launch launch = {.op = OP_COUNT_UP,
                                .args = &args,
                                .args_bytes = sizeof args,
                                .grid = 1,
                                .ranges = &range,
                                .n_ranges = 1};
    ok(rkvi_dev(launch, f->d, &launch, f->b));
    expect(f->d, RACE, 1);
}

static void test_waits_take_the_latest_record(void **state)
{
    fixture *f = *state;
    fill_both(f);
    /* a wait before the record is nothing */
    ok(rkvi_dev(stream_wait, f->d, f->b, f->e));
    ok(rkvi_dev(fill, f->d, f->dev[0], 1, BYTES, f->a));
    ok(rkvi_dev(event_record, f->d, f->e, f->a));
    ok(rkvi_dev(fill, f->d, f->dev[0], 1, BYTES, f->b));
    expect(f->d, RACE, 1);
    /* work after the record is not covered */
    ok(rkvi_dev(stream_sync, f->d, f->a));
    ok(rkvi_dev(stream_sync, f->d, f->b));
    ok(rkvi_dev(event_record, f->d, f->e, f->a));
    ok(rkvi_dev(fill, f->d, f->dev[0], 1, BYTES, f->a));
    ok(rkvi_dev(stream_wait, f->d, f->b, f->e));
    ok(rkvi_dev(fill, f->d, f->dev[0], 1, BYTES, f->b));
    expect(f->d, RACE, 1);
    /* a record on another stream replaces the former one */
    edge(f, f->b, f->a);
    ok(rkvi_dev(fill, f->d, f->dev[0], 1, BYTES, f->a));
    ok(rkvi_dev(event_record, f->d, f->e, f->a));
    ok(rkvi_dev(event_record, f->d, f->e, f->b));
    ok(rkvi_dev(stream_wait, f->d, f->b, f->e));
    ok(rkvi_dev(fill, f->d, f->dev[0], 1, BYTES, f->b));
    expect(f->d, RACE, 1);
}

static void test_edges_go_on_over_streams(void **state)
{
    fixture *f = *state;
    void *c;
    ok(rkvi_dev(stream_create, f->d, "c", &c));
    fill_both(f);
    ok(rkvi_dev(fill, f->d, f->dev[0], 1, BYTES, f->a));
    edge(f, f->a, f->b);
    edge(f, f->b, c);
    ok(rkvi_dev(fill, f->d, f->dev[0], 1, BYTES, c));
    expect_none(f->d);
    ok(rkvi_dev(stream_destroy, f->d, c));
}

/* A read over two writes makes neighbours that look alike: they are not. */
static void test_a_read_over_two_writes(void **state)
{
    fixture *f = *state;
    const size_t half = BYTES / 2;
    void *c;
    ok(rkvi_dev(stream_create, f->d, "c", &c));
    fill_both(f);
    ok(rkvi_dev(fill, f->d, f->dev[0], 1, half, f->a));
    edge(f, f->a, c);
    ok(rkvi_dev(fill, f->d, (char *)f->dev[0] + half, 1, half, f->b));
    edge(f, f->b, f->a);
    ok(copy_1d(f->d, RKVI_D2H, f->host[0], f->dev[0], BYTES, f->a));
    expect_none(f->d);
    ok(copy_1d(f->d, RKVI_D2H, f->host[1], f->dev[0], half, c)); /* knows of a's write */
    expect_none(f->d);
    ok(copy_1d(f->d, RKVI_D2H, f->host[1], f->dev[0] + half / 4, half, c)); /* not of b's */
    expect(f->d, RACE, 1);
}

static void test_host_waits(void **state)
{
    fixture *f = *state;
    bool is_done = false;
    fill_both(f);
    /* event_sync, event_query, stream_sync, stream_destroy order the host */
    for (int how = 0; how < 5; how++) {
        void *s;
        ok(rkvi_dev(stream_create, f->d, "s", &s));
        ok(copy_1d(f->d, RKVI_H2D, f->dev[0], f->host[0], BYTES, s));
        ok(rkvi_dev(event_record, f->d, f->e, s));
        if (how == 0)
            ok(rkvi_dev(event_sync, f->d, f->e));
        while (how == 1 && !is_done)
            ok(rkvi_dev(event_query, f->d, f->e, &is_done));
        if (how == 2)
            ok(rkvi_dev(stream_sync, f->d, s));
        if (how == 3)
            ok(rkvi_dev(stream_destroy, f->d, s));
        host_touch(f->d, f->host[0], BYTES, RKVI_WRITE);
        if (how == 4)
            expect(f->d, RACE, 1);
        else
            expect_none(f->d);
        if (how != 3)
            ok(rkvi_dev(stream_destroy, f->d, s));
    }
    /* a query that says no orders nothing */
    ok(rkvi_dev(delay, f->d, 1000000, f->a));
    ok(copy_1d(f->d, RKVI_H2D, f->dev[0], f->host[0], BYTES, f->a));
    ok(rkvi_dev(event_record, f->d, f->e, f->a));
    ok(rkvi_dev(event_query, f->d, f->e, &is_done));
    assert_false(is_done);
    host_touch(f->d, f->host[0], BYTES, RKVI_WRITE);
    expect(f->d, RACE, 1);
    /* the host reads what a pending copy writes */
    ok(copy_1d(f->d, RKVI_D2H, f->host[1], f->dev[0], BYTES, f->a));
    host_touch(f->d, f->host[1], 4, RKVI_READ);
    expect(f->d, RACE, 1);
}

static void bounce(void *arg)
{
    fixture *f = arg;
    memcpy(f->host[1], f->host[0], BYTES);
}

static void test_host_calls_run_on_the_stream(void **state)
{
    fixture *f = *state;
    fill_both(f);
    const rkvi_range ranges[] = {{.ptr = f->host[0], .bytes = BYTES, .access = RKVI_READ},
                                 {.ptr = f->host[1], .bytes = BYTES, .access = RKVI_WRITE}};
    ok(copy_1d(f->d, RKVI_D2H, f->host[0], f->dev[0], BYTES, f->a));
    ok(rkvi_dev(host_call, f->d, bounce, f, ranges, 2, f->a));
    ok(copy_1d(f->d, RKVI_H2D, f->dev[1], f->host[1], BYTES, f->a));
    expect_none(f->d);
    ok(rkvi_dev(host_call, f->d, bounce, f, ranges, 2, f->b));
    expect(f->d, RACE, 3); /* with the two copies and the call of stream a */
}

/* ---- memory ---- */

static void test_freed_memory(void **state)
{
    fixture *f = *state;
    void *p;
    static uint32_t mem[WORDS];
    fill_both(f);
    ok(rkvi_dev(mem_alloc, f->d, BYTES, &p));
    ok(rkvi_dev(fill, f->d, p, 0, BYTES, f->a));
    ok(rkvi_dev(mem_free, f->d, p));
    expect(f->d, FREED, 1);
    /* used after it was freed */
    const rkvi_range range = {.ptr = (char *)p + 100, .bytes = 4, .access = RKVI_WRITE};
    const add_args args = {.dst = f->dev[1]};
    const rkvi_launch launch = {.op = OP_COUNT_UP,
                                .args = &args,
                                .args_bytes = sizeof args,
                                .grid = 1,
                                .ranges = &range,
                                .n_ranges = 1};
    ok(rkvi_dev(launch, f->d, &launch, f->a));
    expect(f->d, FREED, 1);
    /* unregistered with a copy pending; with none it is well */
    ok(rkvi_dev(host_register, f->d, mem, BYTES));
    ok(copy_1d(f->d, RKVI_D2H, mem, f->dev[0], BYTES, f->a));
    ok(rkvi_dev(host_unregister, f->d, mem));
    expect(f->d, FREED, 1);
    ok(rkvi_dev(host_register, f->d, mem, BYTES));
    ok(copy_1d(f->d, RKVI_D2H, mem, f->dev[0], BYTES, f->a));
    ok(rkvi_dev(stream_sync, f->d, f->a));
    ok(rkvi_dev(host_unregister, f->d, mem));
    host_touch(f->d, mem, BYTES, RKVI_READ); /* the host's own again */
    expect_none(f->d);
    ok(copy_1d(f->d, RKVI_H2D, f->dev[0], mem, BYTES, f->a));
    expect(f->d, PAGEABLE, 1);
}

static void test_undefined_memory(void **state)
{
    fixture *f = *state;
    ok(launch_add(f->d, f->dev[0], f->dev[1], 1, 10, f->a));
    expect(f->d, UNDEFINED, 1);
    ok(launch_add(f->d, f->dev[1], f->dev[0], 1, 10, f->a)); /* written just now */
    expect_none(f->d);
    ok(launch_add(f->d, f->dev[1], f->dev[0], 1, 11, f->a));
    expect(f->d, UNDEFINED, 1);
    /* in place: what it writes does not define what it reads */
    ok(launch_add(f->d, f->dev[0] + 500, f->dev[0] + 500, 1, 1, f->a));
    expect(f->d, UNDEFINED, 1);
    /* host memory: undefined until the host says that it wrote */
    ok(rkvi_dev(stream_sync, f->d, f->a));
    host_touch(f->d, f->host[0], 4, RKVI_READ);
    expect(f->d, UNDEFINED, 1);
    host_touch(f->d, f->host[0], 40, RKVI_WRITE);
    host_touch(f->d, f->host[0], 40, RKVI_READ);
    expect_none(f->d);
}

static void test_copies_carry_definedness(void **state)
{
    fixture *f = *state;
    /* words [10, 20) of host 0 are defined; to the device and back, in two
     * hops, with a pitch: rows of 5 words */
    host_touch(f->d, f->host[0] + 10, 40, RKVI_WRITE);
    memset(f->host[0] + 10, 0, 40);
    ok(copy_1d(f->d, RKVI_H2D, f->dev[0], f->host[0], 120, f->a));
    ok(copy_1d(f->d, RKVI_D2D, f->dev[1], f->dev[0], 120, f->a));
    const rkvi_copy rows = {.direction = RKVI_D2H,
                            .dst = f->host[1],
                            .src = f->dev[1],
                            .width_bytes = 20,
                            .rows = 6,
                            .dst_pitch_bytes = 80,
                            .src_pitch_bytes = 20};
    ok(rkvi_dev(copy, f->d, &rows, f->a));
    ok(rkvi_dev(stream_sync, f->d, f->a));
    expect_none(f->d); /* a copy may carry what is undefined */
    for (uint32_t k = 0; k < 30; k++) {
        host_touch(f->d, f->host[1] + 20 * (k / 5) + k % 5, 4, RKVI_READ);
        if (k >= 10 && k < 20)
            expect_none(f->d);
        else
            expect(f->d, UNDEFINED, 1);
    }
    host_touch(f->d, f->host[1] + 40, 20, RKVI_READ);
    host_touch(f->d, f->host[1] + 60, 20, RKVI_READ);
    expect_none(f->d);
    host_touch(f->d, f->host[1] + 40, 21, RKVI_READ);
    expect(f->d, UNDEFINED, 1);
    /* a copy of undefined bytes takes definedness away */
    ok(copy_1d(f->d, RKVI_D2D, f->dev[1] + 10, f->dev[0] + 25, 4, f->a));
    ok(launch_add(f->d, f->dev[0] + 100, f->dev[1] + 11, 1, 9, f->a));
    expect_none(f->d);
    ok(launch_add(f->d, f->dev[0] + 100, f->dev[1] + 10, 1, 10, f->a));
    expect(f->d, UNDEFINED, 1);
}

static void test_bounds(void **state)
{
    fixture *f = *state;
    fill_both(f);
    const rkvi_range range = {.ptr = f->dev[0] + WORDS - 1, .bytes = 5, .access = RKVI_READ};
    const add_args args = {.dst = f->dev[1]};
    const rkvi_launch launch = {.op = OP_COUNT_UP,
                                .args = &args,
                                .args_bytes = sizeof args,
                                .grid = 1,
                                .ranges = &range,
                                .n_ranges = 1};
    ok(rkvi_dev(launch, f->d, &launch, f->a));
    expect(f->d, BOUNDS, 1);
}

/* The limit of what declarations can show; test_device_sim has the answer. */
static void test_an_under_declared_range_is_not_seen(void **state)
{
    fixture *f = *state;
    fill_both(f);
    ok(launch_add(f->d, f->dev[0], f->dev[1], 1, WORDS, f->a));
    const add_args args = {.dst = f->dev[0], .src = f->dev[1]};
    const rkvi_launch launch = {.op = OP_ADD, .args = &args, .args_bytes = sizeof args, .grid = 8};
    ok(rkvi_dev(launch, f->d, &launch, f->b));
    expect_none(f->d);
}

/* ---- graphs ---- */

static rkvi_graph *capture(fixture *f, bool leave_out_join)
{
    rkvi_graph *g;
    rkvi_event *join;
    ok(rkvi_dev(event_create, f->d, &join));
    ok(rkvi_dev(capture_begin, f->d, f->a, true));
    edge(f, f->a, f->b);
    ok(launch_add(f->d, f->dev[0], f->dev[1], 1, WORDS, f->b));
    if (leave_out_join)
        ok(rkvi_dev(fill, f->d, f->dev[0], 0, BYTES, f->a));
    ok(rkvi_dev(event_record, f->d, join, f->b));
    ok(rkvi_dev(stream_wait, f->d, f->a, join));
    ok(rkvi_dev(fill, f->d, f->dev[0], 0, 64, f->a));
    ok(rkvi_dev(capture_end, f->d, f->a, &g));
    ok(rkvi_dev(event_destroy, f->d, join));
    return g;
}

static void test_graphs(void **state)
{
    fixture *f = *state;
    fill_both(f);
    rkvi_graph *g = capture(f, false);
    expect_none(f->d); /* nothing ran yet */
    ok(rkvi_dev(graph_launch, f->d, g, f->a));
    ok(rkvi_dev(graph_launch, f->d, g, f->b)); /* after its former launch */
    expect_none(f->d);
    /* eager work on the other stream against the graph */
    ok(copy_1d(f->d, RKVI_D2H, f->host[0], f->dev[0], BYTES, f->b));
    ok(rkvi_dev(graph_launch, f->d, g, f->a));
    expect(f->d, RACE, 1); /* with the launch in its branch, which comes first */
    ok(rkvi_dev(graph_destroy, f->d, g));
    host_touch(f->d, f->host[1], BYTES, RKVI_WRITE);
    expect_none(f->d);
    /* two branches without an edge */
    ok(rkvi_dev(stream_sync, f->d, f->b));
    g = capture(f, true);
    expect_none(f->d);
    ok(rkvi_dev(graph_launch, f->d, g, f->a));
    expect(f->d, RACE, 1);
    ok(rkvi_dev(graph_destroy, f->d, g));
}

/* ---- host threads ---- */

static void *write_mirror(void *arg)
{
    fixture *f = arg;
    host_touch(f->d, f->host[0], BYTES, RKVI_WRITE);
    return NULL;
}

static void test_host_threads(void **state)
{
    (void)state;
    for (int apart = 0; apart < 2; apart++) {
        fixture f = {.d = make((rkvi_device_check_settings){.host_threads_apart = apart})};
        pthread_t t;
        void *p;
        ok(rkvi_dev(mem_alloc, f.d, BYTES, &p));
        f.dev[0] = p;
        ok(rkvi_dev(host_alloc, f.d, BYTES, &p));
        f.host[0] = p;
        host_touch(f.d, f.host[0], BYTES, RKVI_WRITE);
        ok(copy_1d(f.d, RKVI_H2D, f.dev[0], f.host[0], BYTES, NULL));
        ok(rkvi_dev(stream_sync, f.d, NULL)); /* this thread waits, the other one writes */
        assert_int_equal(pthread_create(&t, NULL, write_mirror, &f), 0);
        assert_int_equal(pthread_join(t, NULL), 0);
        if (apart)
            expect(f.d, RACE, 2); /* with the host write and the copy */
        else
            expect_none(f.d);
        rkvi_dev_destroy(f.d);
    }
}

/* ---- many operations ---- */

static void test_a_long_ring(void **state)
{
    fixture *f = *state;
    enum { SLOTS = 16, STEPS = 2500, SLOT_WORDS = WORDS / SLOTS };
    rkvi_event *filled[SLOTS], *consumed[SLOTS];
    fill_both(f);
    for (int i = 0; i < SLOTS; i++) {
        ok(rkvi_dev(event_create, f->d, &filled[i]));
        ok(rkvi_dev(event_create, f->d, &consumed[i]));
    }
    for (int k = 0; k < STEPS; k++) {
        const int i = k % SLOTS;
        uint32_t *slot = f->dev[0] + i * SLOT_WORDS;
        ok(rkvi_dev(stream_wait, f->d, f->a, consumed[i]));
        ok(copy_1d(f->d, RKVI_H2D, slot, f->host[0] + i, SLOT_WORDS * 4, f->a));
        ok(rkvi_dev(event_record, f->d, filled[i], f->a));
        ok(rkvi_dev(stream_wait, f->d, f->b, filled[i]));
        ok(launch_add(f->d, f->dev[1] + i, slot, 1, SLOT_WORDS, f->b));
        ok(rkvi_dev(event_record, f->d, consumed[i], f->b));
        if (k % 500 == 499)
            ok(rkvi_dev(event_sync, f->d, consumed[i]));
    }
    expect_none(f->d);
    for (int i = 0; i < SLOTS; i++) {
        ok(rkvi_dev(event_destroy, f->d, filled[i]));
        ok(rkvi_dev(event_destroy, f->d, consumed[i]));
    }
}

#define with_fixture(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        with_fixture(test_sites_and_counts),
        with_fixture(test_reads_do_not_conflict),
        with_fixture(test_2d_ranges_are_exact),
        with_fixture(test_waits_take_the_latest_record),
        with_fixture(test_edges_go_on_over_streams),
        with_fixture(test_a_read_over_two_writes),
        with_fixture(test_host_waits),
        with_fixture(test_host_calls_run_on_the_stream),
        with_fixture(test_freed_memory),
        with_fixture(test_undefined_memory),
        with_fixture(test_copies_carry_definedness),
        with_fixture(test_bounds),
        with_fixture(test_an_under_declared_range_is_not_seen),
        with_fixture(test_graphs),
        cmocka_unit_test(test_host_threads),
        with_fixture(test_a_long_ring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
