/* SPDX-License-Identifier: MIT
 *
 * The contract of device.h, on each executor: memory, streams, events, copies,
 * launches, failures on demand.  test_device_capture has captures.
 */
#include "device_fixture.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- memory ---- */

static void test_info_and_memory(void **state)
{
    fixture *f = *state;
    rkvi_device_info info;
    ok(rkvi_dev(info, f->d, &info));
    assert_int_equal(info.memory_bytes, 64 << 20);
    assert_int_equal(info.memory_free_bytes, (64 << 20) - 3 * BYTES);
    assert_true(info.is_host && info.n_workers >= 1);
    assert_int_equal((uintptr_t)f->dev[0] % RKVI_DEVICE_ALIGN, 0);
    void *p = NULL;
    assert_int_equal(rkvi_dev(mem_alloc, f->d, 64 << 20, &p), RKV_E_DEVICE_MEMORY);
    assert_int_equal(rkvi_dev(mem_alloc, f->d, 0, &p), RKV_E_ARGUMENT);
    assert_int_equal(rkvi_dev(mem_alloc, f->d, (size_t)-1, &p), RKV_E_DEVICE_MEMORY);
    assert_null(p);
    assert_int_equal(rkvi_dev(mem_free, f->d, f->dev[0] + 1), RKV_E_ARGUMENT);
    assert_int_equal(rkvi_dev(mem_free, f->d, f->host[0]), RKV_E_ARGUMENT);
    ok(rkvi_dev(mem_free, f->d, NULL));
}

static void test_registration_caps(void **state)
{
    (void)state;
    const rkvi_device_limits limits = {
        .register_max_bytes = 4096, .register_total_bytes = 10000, .host_alloc_max_bytes = 2048};
    rkvi_device *d = make(&limits);
    unsigned char *mem = malloc(16384);
    void *p = NULL;
    assert_int_equal(rkvi_dev(host_register, d, mem, 0), RKV_E_ARGUMENT);
    assert_int_equal(rkvi_dev(host_register, d, mem, 4097), RKV_E_HOST_MEMORY);
    ok(rkvi_dev(host_register, d, mem, 4096));
    assert_int_equal(rkvi_dev(host_register, d, mem + 4000, 200), RKV_E_ARGUMENT);
    ok(rkvi_dev(host_register, d, mem + 4096, 4096));
    assert_int_equal(rkvi_dev(host_register, d, mem + 8192, 4096), RKV_E_HOST_MEMORY);
    assert_int_equal(rkvi_dev(host_alloc, d, 2049, &p), RKV_E_HOST_MEMORY);
    assert_int_equal(rkvi_dev(host_alloc, d, 2000, &p), RKV_E_HOST_MEMORY);
    ok(rkvi_dev(host_alloc, d, 1000, &p));
    assert_int_equal(rkvi_dev(host_unregister, d, p), RKV_E_ARGUMENT);
    assert_int_equal(rkvi_dev(host_unregister, d, mem + 1), RKV_E_ARGUMENT);
    ok(rkvi_dev(host_unregister, d, mem));
    ok(rkvi_dev(host_register, d, mem + 8192, 4096));
    ok(rkvi_dev(host_unregister, d, mem + 8192));
    ok(rkvi_dev(host_unregister, d, mem + 4096));
    ok(rkvi_dev(host_free, d, p));
    rkvi_dev_destroy(d);
    free(mem);
}

/* ---- streams and events ---- */

static void test_fifo(void **state)
{
    fixture *f = *state;
    ok(copy_1d(f->d, RKVI_H2D, f->dev[0], f->host[0], BYTES, f->a));
    /* thousands ahead: an enqueueing call must not block for ever */
    for (int i = 0; i < 2000; i++)
        ok(launch_add(f->d, f->dev[0], f->dev[0], 1, 3, f->a));
    ok(launch_add(f->d, f->dev[1], f->dev[0], 5, COUNT, f->a));
    ok(copy_1d(f->d, RKVI_D2D, f->dev[2], f->dev[1], BYTES, f->a));
    ok(copy_1d(f->d, RKVI_D2H, f->host[1], f->dev[2], BYTES, f->a));
    ok(rkvi_dev(stream_sync, f->d, f->a));
    for (uint32_t k = 0; k < COUNT; k++)
        assert_int_equal(f->host[1][k], k + 5 + (k < 3 ? 2000 : 0));
}

static void test_default_stream(void **state)
{
    fixture *f = *state;
    ok(copy_1d(f->d, RKVI_H2D, f->dev[0], f->host[2], BYTES, NULL));
    ok(rkvi_dev(fill, f->d, f->dev[0], 0xab, 8, NULL));
    ok(copy_1d(f->d, RKVI_D2H, f->host[0], f->dev[0], BYTES, NULL));
    ok(rkvi_dev(stream_sync, f->d, NULL));
    assert_int_equal(f->host[0][0], 0xabababab);
    assert_int_equal(f->host[0][1], 0xabababab);
    assert_int_equal(f->host[0][2], 20002);
    assert_int_equal(rkvi_dev(stream_sync, f->d, f), RKV_E_ARGUMENT);
}

/* Host calls that wait for each other across streams: independence. */
static atomic_int gate;

static void open_gate(void *arg)
{
    (void)arg;
    atomic_store(&gate, 1);
}

static void wait_at_gate(void *arg)
{
    (void)arg;
    while (!atomic_load(&gate))
        usleep(100);
}

static void test_streams_are_independent(void **state)
{
    fixture *f = *state;
    atomic_store(&gate, 0);
    rkvi_event *e;
    bool is_done = true;
    ok(rkvi_dev(event_create, f->d, &e));
    ok(rkvi_dev(host_call, f->d, wait_at_gate, NULL, NULL, 0, f->a));
    ok(rkvi_dev(event_record, f->d, e, f->a));
    ok(rkvi_dev(event_query, f->d, e, &is_done));
    assert_false(is_done);
    ok(rkvi_dev(host_call, f->d, open_gate, NULL, NULL, 0, f->b));
    ok(rkvi_dev(event_sync, f->d, e));
    ok(rkvi_dev(event_query, f->d, e, &is_done));
    assert_true(is_done);
    ok(rkvi_dev(event_destroy, f->d, e));
}

/* The child of a fork has no threads: destroying there must not wait for them. */
static void test_destroy_in_a_forked_child(void **state)
{
    fixture *f = *state;
    ok(rkvi_dev(delay, f->d, 20000000, f->a));
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(20);
        rkvi_dev_destroy(f->d);
        _exit(0);
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void test_event_takes_the_latest_record(void **state)
{
    fixture *f = *state;
    rkvi_event *e;
    ok(rkvi_dev(event_create, f->d, &e));
    /* never recorded: nothing to wait for */
    bool is_done = false;
    ok(rkvi_dev(stream_wait, f->d, f->b, e));
    ok(rkvi_dev(event_sync, f->d, e));
    ok(rkvi_dev(event_query, f->d, e, &is_done));
    assert_true(is_done);
    for (int round = 0; round < 20; round++) {
        /* b waits for the first record; the second one, on b itself, comes
         * later and must not stand in for it, nor make b wait for itself */
        ok(copy_1d(f->d, RKVI_H2D, f->dev[0], f->host[round % 2], BYTES, f->a));
        ok(rkvi_dev(delay, f->d, 300000, f->a));
        ok(launch_add(f->d, f->dev[1], f->dev[0], 7, COUNT, f->a));
        ok(rkvi_dev(event_record, f->d, e, f->a));
        ok(rkvi_dev(stream_wait, f->d, f->b, e));
        ok(rkvi_dev(event_record, f->d, e, f->b));
        ok(copy_1d(f->d, RKVI_D2H, f->host[2], f->dev[1], BYTES, f->b));
        ok(rkvi_dev(event_record, f->d, e, f->b));
        ok(rkvi_dev(event_sync, f->d, e));
        for (uint32_t k = 0; k < COUNT; k++)
            assert_int_equal(f->host[2][k], 10000u * (uint32_t)(round % 2) + k + 7);
        ok(rkvi_dev(stream_wait, f->d, f->a, e));
    }
    /* destroyed with a wait on it pending */
    ok(rkvi_dev(delay, f->d, 300000, f->a));
    ok(rkvi_dev(event_record, f->d, e, f->a));
    ok(rkvi_dev(stream_wait, f->d, f->b, e));
    ok(rkvi_dev(event_destroy, f->d, e));
    ok(rkvi_dev(stream_sync, f->d, f->b));
}

static void test_elapsed(void **state)
{
    fixture *f = *state;
    rkvi_event *from, *to;
    int64_t ns = 0;
    ok(rkvi_dev(event_create, f->d, &from));
    ok(rkvi_dev(event_create, f->d, &to));
    assert_int_equal(rkvi_dev(event_elapsed, f->d, from, to, &ns), RKV_E_STATE);
    ok(rkvi_dev(event_record, f->d, from, f->a));
    ok(rkvi_dev(delay, f->d, 1000000, f->a));
    ok(rkvi_dev(event_record, f->d, to, f->a));
    ok(rkvi_dev(event_sync, f->d, to));
    ok(rkvi_dev(event_elapsed, f->d, from, to, &ns));
    assert_true(ns >= 1000000);
    ok(rkvi_dev(event_destroy, f->d, from));
    ok(rkvi_dev(event_destroy, f->d, to));
}

/* ---- work ---- */

static void test_2d_copies(void **state)
{
    fixture *f = *state;
    /* 5 rows of 3 words: pitch 7 words in host memory, 11 on the device */
    rkvi_copy in = {.direction = RKVI_H2D,
                    .dst = f->dev[0] + 2,
                    .src = f->host[0] + 1,
                    .width_bytes = 12,
                    .rows = 5,
                    .dst_pitch_bytes = 44,
                    .src_pitch_bytes = 28};
    rkvi_copy out = in;
    out.direction = RKVI_D2H;
    out.dst = f->host[1];
    out.src = f->dev[0] + 2;
    out.dst_pitch_bytes = 16;
    out.src_pitch_bytes = 44;
    ok(rkvi_dev(copy, f->d, &in, f->a));
    ok(rkvi_dev(copy, f->d, &out, f->a));
    ok(rkvi_dev(stream_sync, f->d, f->a));
    for (uint32_t k = 0; k < 30; k++) {
        const uint32_t row = k / 4, i = k % 4;
        const bool is_copied = row < 5 && i < 3;
        assert_int_equal(f->host[1][k], is_copied ? 1 + 7 * row + i : 10000 + k);
    }
    in.src_pitch_bytes = 8;
    assert_int_equal(rkvi_dev(copy, f->d, &in, f->a), RKV_E_ARGUMENT);
    in.src_pitch_bytes = 28;
    in.dst_pitch_bytes = 1000;
    assert_int_equal(rkvi_dev(copy, f->d, &in, f->a), RKV_E_ARGUMENT); /* leaves the block */
    in.rows = (size_t)-1;
    assert_int_equal(rkvi_dev(copy, f->d, &in, f->a), RKV_E_ARGUMENT);
    in.rows = 0;
    ok(rkvi_dev(copy, f->d, &in, f->a));
}

static void test_launch_runs_each_item_once(void **state)
{
    fixture *f = *state;
    const add_args args = {.dst = f->dev[0]};
    const rkvi_range range = {.ptr = f->dev[0], .bytes = BYTES, .access = RKVI_READ | RKVI_WRITE};
    rkvi_launch launch = {
        .op = OP_COUNT_UP, .args = &args, .args_bytes = sizeof args, .ranges = &range, .n_ranges = 1};
    ok(rkvi_dev(fill, f->d, f->dev[0], 0, BYTES, f->a));
    static const uint64_t grids[] = {0, 1, 2, 3, 7, 64, 999, COUNT};
    for (size_t i = 0; i < sizeof grids / sizeof grids[0]; i++) {
        launch.grid = grids[i];
        ok(rkvi_dev(launch, f->d, &launch, f->a));
    }
    ok(copy_1d(f->d, RKVI_D2H, f->host[0], f->dev[0], BYTES, f->a));
    ok(rkvi_dev(stream_sync, f->d, f->a));
    for (uint32_t k = 0; k < COUNT; k++) {
        uint32_t want = 0;
        for (size_t i = 0; i < sizeof grids / sizeof grids[0]; i++)
            want += k < grids[i];
        assert_int_equal(f->host[0][k], want);
    }
    launch.op = RKVI_OP_COUNT;
    assert_int_equal(rkvi_dev(launch, f->d, &launch, f->a), RKV_E_ARGUMENT);
    launch.op = 0;
    launch.args_bytes = RKVI_ARGS_MAX + 1;
    assert_int_equal(rkvi_dev(launch, f->d, &launch, f->a), RKV_E_ARGUMENT);
}

static void test_destroy_waits_for_work(void **state)
{
    (void)state;
    rkvi_device *d = make(&test_limits);
    void *a, *b;
    rkvi_event *e;
    uint32_t host[4] = {1, 2, 3, 4}, back[4] = {0};
    void *dev;
    ok(rkvi_dev(stream_create, d, "a", &a));
    ok(rkvi_dev(stream_create, d, "b", &b));
    ok(rkvi_dev(mem_alloc, d, 16, &dev));
    ok(rkvi_dev(host_register, d, host, 16));
    ok(rkvi_dev(host_register, d, back, 16));
    ok(rkvi_dev(event_create, d, &e));
    ok(rkvi_dev(delay, d, 2000000, b));
    ok(copy_1d(d, RKVI_H2D, dev, host, 16, b));
    ok(rkvi_dev(event_record, d, e, b));
    ok(rkvi_dev(stream_wait, d, a, e));
    ok(copy_1d(d, RKVI_D2H, back, dev, 16, a));
    ok(rkvi_dev(event_destroy, d, e));
    rkvi_dev_destroy(d);
    assert_memory_equal(host, back, 16);
}

/* ---- failures ---- */

static void test_nth_call_fails(void **state)
{
    fixture *f = *state;
    rkvi_device_fail_call(core_of(f->d), RKVI_CALL_COPY, 3, RKV_E_DEVICE_CALL);
    for (int i = 1; i <= 5; i++) {
        const rkv_status st = copy_1d(f->d, RKVI_H2D, f->dev[i % 3], f->host[i % 3], BYTES, f->a);
        assert_int_equal(st, i == 3 ? RKV_E_DEVICE_CALL : RKV_OK);
    }
    ok(rkvi_dev(stream_sync, f->d, f->a));
    rkvi_device_usage u;
    rkvi_device_usage_get(core_of(f->d), &u);
    assert_int_equal(u.copies[RKVI_H2D], 4);
    assert_int_equal(u.copied_bytes[RKVI_H2D], 4 * BYTES);
    void *p;
    rkvi_device_fail_call(core_of(f->d), RKVI_CALL_MEM_ALLOC, 1, RKV_E_DEVICE_MEMORY);
    assert_int_equal(rkvi_dev(mem_alloc, f->d, 16, &p), RKV_E_DEVICE_MEMORY);
    rkvi_device_fail_call(core_of(f->d), RKVI_CALL_ANY, 2, RKV_E_DEVICE_CALL);
    ok(rkvi_dev(stream_sync, f->d, f->a));
    assert_int_equal(rkvi_dev(stream_sync, f->d, f->a), RKV_E_DEVICE_CALL);
    ok(rkvi_dev(stream_sync, f->d, f->a));
    assert_int_equal(rkvi_device_calls(core_of(f->d), RKVI_CALL_COPY), 5);
}

static void test_fault_poisons(void **state)
{
    fixture *f = *state;
    rkvi_device *d = make(&test_limits);
    void *p, *s;
    rkvi_event *e;
    uint32_t host[4] = {1, 2, 3, 4};
    ok(rkvi_dev(mem_alloc, d, 16, &p));
    ok(rkvi_dev(stream_create, d, "s", &s));
    ok(rkvi_dev(event_create, d, &e));
    rkvi_device_fault_op(core_of(d), 2);
    ok(copy_1d(d, RKVI_H2D, p, host, 16, s));
    ok(rkvi_dev(fill, d, p, 0, 16, s));
    assert_int_equal(rkvi_dev(stream_sync, d, s), RKV_E_POISONED);
    assert_non_null(strstr(rkvi_error_text(), "test_device_contract.c"));
    assert_int_equal(copy_1d(d, RKVI_D2H, host, p, 16, s), RKV_E_POISONED);
    assert_int_equal(rkvi_dev(event_record, d, e, s), RKV_E_POISONED);
    assert_int_equal(rkvi_dev(event_sync, d, e), RKV_E_POISONED);
    /* what gives back does so all the same */
    assert_int_equal(rkvi_dev(mem_free, d, p), RKV_E_POISONED);
    assert_int_equal(rkvi_dev(event_destroy, d, e), RKV_E_POISONED);
    assert_int_equal(rkvi_dev(stream_destroy, d, s), RKV_E_POISONED);
    rkvi_device_usage u;
    rkvi_device_usage_get(core_of(d), &u);
    assert_int_equal(u.device_bytes + u.streams + u.events, 0);
    rkvi_dev_destroy(d);
    ok(copy_1d(f->d, RKVI_H2D, f->dev[0], host, 16, f->a)); /* others are well */
    ok(rkvi_dev(stream_sync, f->d, f->a));
}

/* ---- steady work allocates nothing ---- */

static atomic_bool gate_is_open;

static void pass_gate(void *arg)
{
    (void)arg;
    while (!gate_is_open)
        sched_yield();
}

/* As many operations in flight as there ever will be: the gate holds them. */
static void enqueue_round(fixture *f, rkvi_event *e, rkvi_event *on_a)
{
    gate_is_open = false;
    ok(rkvi_dev(host_call, f->d, pass_gate, NULL, NULL, 0, f->a));
    ok(rkvi_dev(event_record, f->d, on_a, f->a));
    ok(rkvi_dev(stream_wait, f->d, f->b, on_a));
    for (int i = 0; i < 50; i++) {
        ok(copy_1d(f->d, RKVI_H2D, f->dev[0], f->host[0], BYTES, f->a));
        ok(rkvi_dev(event_record, f->d, e, f->a));
        ok(rkvi_dev(stream_wait, f->d, f->b, e));
        ok(rkvi_dev(fill, f->d, f->dev[1], i, BYTES, f->b));
    }
    gate_is_open = true;
    ok(rkvi_dev(stream_sync, f->d, f->a));
    ok(rkvi_dev(stream_sync, f->d, f->b));
}

static void test_steady_work_allocates_nothing(void **state)
{
    fixture *f = *state;
    rkvi_event *e, *on_a;
    rkvi_device_usage first, then;
    ok(rkvi_dev(event_create, f->d, &e));
    ok(rkvi_dev(event_create, f->d, &on_a));
    enqueue_round(f, e, on_a);
    rkvi_device_usage_get(core_of(f->d), &first);
    assert_true(first.op_allocations >= 200);
    for (int i = 0; i < 5; i++)
        enqueue_round(f, e, on_a);
    rkvi_device_usage_get(core_of(f->d), &then);
    assert_int_equal(then.op_allocations, first.op_allocations);
    ok(rkvi_dev(event_destroy, f->d, e));
    ok(rkvi_dev(event_destroy, f->d, on_a));
}

static const struct CMUnitTest tests[] = {
    with_fixture(test_info_and_memory),
    cmocka_unit_test(test_registration_caps),
    with_fixture(test_fifo),
    with_fixture(test_default_stream),
    with_fixture(test_event_takes_the_latest_record),
    with_fixture(test_elapsed),
    with_fixture(test_2d_copies),
    with_fixture(test_launch_runs_each_item_once),
    cmocka_unit_test(test_destroy_waits_for_work),
    with_fixture(test_nth_call_fails),
    with_fixture(test_fault_poisons),
};

/* device_sim runs one operation at a time: these would hang there. */
static const struct CMUnitTest host_tests[] = {
    with_fixture(test_streams_are_independent),
    with_fixture(test_destroy_in_a_forked_child),
    with_fixture(test_steady_work_allocates_nothing),
};

int main(void)
{
    const size_t n_host = sizeof host_tests / sizeof host_tests[0];
    int n_failed = run_on_all(tests, sizeof tests / sizeof tests[0]);
    n_failed += run_on("host", make_host, host_tests, n_host, 1);
    n_failed += run_on("check over host", make_check, host_tests, n_host, 1);
    return n_failed != 0;
}
