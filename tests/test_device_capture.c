/* SPDX-License-Identifier: MIT
 *
 * Captures and graphs on each executor: what they refuse, as CUDA does, and
 * what a graph does when it is launched.
 */
#include "device_fixture.h"

/* a: dev0 = in, fork; b: dev1 = dev0 + 1, join; a: dev2 = dev1 + 1, out */
static void capture_fork_join(fixture *f, rkvi_event *fork, rkvi_event *join)
{
    ok(copy_1d(f->d, RKVI_H2D, f->dev[0], f->host[0], BYTES, f->a));
    ok(rkvi_dev(event_record, f->d, fork, f->a));
    ok(rkvi_dev(stream_wait, f->d, f->b, fork));
    ok(launch_add(f->d, f->dev[1], f->dev[0], 1, COUNT, f->b));
    ok(rkvi_dev(event_record, f->d, join, f->b));
    ok(rkvi_dev(stream_wait, f->d, f->a, join));
    ok(launch_add(f->d, f->dev[2], f->dev[1], 1, COUNT, f->a));
    ok(copy_1d(f->d, RKVI_D2H, f->host[1], f->dev[2], BYTES, f->a));
}

static void test_graph(void **state)
{
    fixture *f = *state;
    rkvi_event *fork, *join;
    rkvi_graph *graph;
    ok(rkvi_dev(event_create, f->d, &fork));
    ok(rkvi_dev(event_create, f->d, &join));
    ok(rkvi_dev(capture_begin, f->d, f->a, true));
    capture_fork_join(f, fork, join);
    ok(rkvi_dev(capture_end, f->d, f->a, &graph));
    ok(rkvi_dev(stream_sync, f->d, f->a));
    assert_int_equal(f->host[1][0], 10000); /* nothing ran */
    for (uint32_t round = 0; round < 5; round++) {
        for (uint32_t k = 0; k < COUNT; k++)
            f->host[0][k] = round * 100 + k;
        /* twice in a row, and from either stream */
        ok(rkvi_dev(graph_launch, f->d, graph, f->a));
        ok(rkvi_dev(graph_launch, f->d, graph, f->b));
        ok(rkvi_dev(stream_sync, f->d, f->b));
        for (uint32_t k = 0; k < COUNT; k++)
            assert_int_equal(f->host[1][k], round * 100 + k + 2);
    }
    ok(rkvi_dev(graph_launch, f->d, graph, f->a));
    ok(rkvi_dev(graph_destroy, f->d, graph)); /* waits */
    ok(rkvi_dev(event_destroy, f->d, fork));
    ok(rkvi_dev(event_destroy, f->d, join));
}

/* Launches of one graph come one after another, from whatever streams. */
static void test_graph_waits_for_its_former_launch(void **state)
{
    fixture *f = *state;
    rkvi_graph *graph;
    ok(rkvi_dev(fill, f->d, f->dev[0], 0, BYTES, f->a));
    ok(rkvi_dev(stream_sync, f->d, f->a));
    ok(rkvi_dev(capture_begin, f->d, f->a, true));
    ok(copy_1d(f->d, RKVI_D2D, f->dev[1], f->dev[0], BYTES, f->a));
    ok(launch_add(f->d, f->dev[0], f->dev[1], 1, COUNT, f->a));
    ok(rkvi_dev(capture_end, f->d, f->a, &graph));
    for (int i = 0; i < 10; i++)
        ok(rkvi_dev(graph_launch, f->d, graph, i % 2 ? f->a : f->b));
    ok(rkvi_dev(graph_destroy, f->d, graph));
    ok(copy_1d(f->d, RKVI_D2H, f->host[1], f->dev[0], BYTES, f->a));
    ok(rkvi_dev(stream_sync, f->d, f->a));
    for (uint32_t k = 0; k < COUNT; k++)
        assert_int_equal(f->host[1][k], 10);
}

static void test_capture_refusals(void **state)
{
    fixture *f = *state;
    rkvi_event *e, *outside;
    rkvi_graph *graph = NULL;
    bool is_done;
    ok(rkvi_dev(event_create, f->d, &e));
    ok(rkvi_dev(event_create, f->d, &outside));

    /* a wait on an event recorded outside: fails and kills the capture */
    ok(rkvi_dev(event_record, f->d, outside, f->b));
    ok(rkvi_dev(capture_begin, f->d, f->a, false));
    assert_int_equal(rkvi_dev(stream_wait, f->d, f->a, outside), RKV_E_DEVICE_CALL);
    assert_int_equal(rkvi_dev(fill, f->d, f->dev[0], 0, 16, f->a), RKV_E_DEVICE_CALL);
    assert_int_equal(rkvi_dev(capture_end, f->d, f->a, &graph), RKV_E_DEVICE_CALL);
    assert_null(graph);
    ok(rkvi_dev(fill, f->d, f->dev[0], 0, 16, f->a)); /* the stream is free again */
    ok(rkvi_dev(stream_sync, f->d, f->a));

    /* an event recorded inside can't be used outside, during and after */
    ok(rkvi_dev(capture_begin, f->d, f->a, false));
    ok(rkvi_dev(fill, f->d, f->dev[0], 0, 16, f->a));
    ok(rkvi_dev(event_record, f->d, e, f->a));
    ok(rkvi_dev(capture_end, f->d, f->a, &graph));
    assert_int_equal(rkvi_dev(stream_wait, f->d, f->b, e), RKV_E_DEVICE_CALL);
    assert_int_equal(rkvi_dev(event_query, f->d, e, &is_done), RKV_E_DEVICE_CALL);
    assert_int_equal(rkvi_dev(event_sync, f->d, e), RKV_E_DEVICE_CALL);
    ok(rkvi_dev(event_record, f->d, e, f->b));
    ok(rkvi_dev(event_sync, f->d, e));
    ok(rkvi_dev(graph_destroy, f->d, graph));
    ok(rkvi_dev(capture_begin, f->d, f->a, false));
    ok(rkvi_dev(event_record, f->d, e, f->a));
    assert_int_equal(rkvi_dev(event_query, f->d, e, &is_done), RKV_E_DEVICE_CALL);
    assert_int_equal(rkvi_dev(capture_end, f->d, f->a, &graph), RKV_E_DEVICE_CALL);

    /* synchronising a captured stream */
    ok(rkvi_dev(capture_begin, f->d, f->a, false));
    assert_int_equal(rkvi_dev(stream_sync, f->d, f->a), RKV_E_DEVICE_CALL);
    assert_int_equal(rkvi_dev(capture_end, f->d, f->a, &graph), RKV_E_DEVICE_CALL);

    /* a stream that is not joined back */
    ok(rkvi_dev(capture_begin, f->d, f->a, false));
    ok(rkvi_dev(event_record, f->d, e, f->a));
    ok(rkvi_dev(stream_wait, f->d, f->b, e));
    ok(rkvi_dev(fill, f->d, f->dev[0], 0, 16, f->b));
    assert_int_equal(rkvi_dev(capture_end, f->d, f->b, &graph), RKV_E_STATE);
    assert_int_equal(rkvi_dev(capture_end, f->d, f->a, &graph), RKV_E_DEVICE_CALL);
    ok(rkvi_dev(stream_sync, f->d, f->b));

    assert_int_equal(rkvi_dev(capture_begin, f->d, NULL, false), RKV_E_DEVICE_CALL);
    assert_int_equal(rkvi_dev(capture_end, f->d, f->a, &graph), RKV_E_STATE);
    ok(rkvi_dev(event_destroy, f->d, e));
    ok(rkvi_dev(event_destroy, f->d, outside));
}

/* Two captures, or a capture and what can't be within one. */
static void test_captures_that_meet(void **state)
{
    fixture *f = *state;
    rkvi_event *e, *never;
    rkvi_graph *graph = NULL, *other = NULL;
    ok(rkvi_dev(event_create, f->d, &e));
    ok(rkvi_dev(event_create, f->d, &never));

    /* the default stream can't join */
    ok(rkvi_dev(capture_begin, f->d, f->a, false));
    ok(rkvi_dev(event_record, f->d, e, f->a));
    assert_int_equal(rkvi_dev(stream_wait, f->d, NULL, e), RKV_E_DEVICE_CALL);
    assert_int_equal(rkvi_dev(event_record, f->d, never, f->a), RKV_E_DEVICE_CALL); /* it is dead */
    assert_int_equal(rkvi_dev(stream_wait, f->d, f->a, never), RKV_E_DEVICE_CALL);
    assert_int_equal(rkvi_dev(capture_end, f->d, f->a, &graph), RKV_E_DEVICE_CALL);

    /* a stream is captured once; an event never recorded is nothing to wait for */
    ok(rkvi_dev(capture_begin, f->d, f->a, false));
    ok(rkvi_dev(stream_wait, f->d, f->a, never));
    assert_int_equal(rkvi_dev(capture_begin, f->d, f->a, false), RKV_E_DEVICE_CALL);
    assert_int_equal(rkvi_dev(capture_end, f->d, f->a, &graph), RKV_E_DEVICE_CALL);

    /* one that waits on another's event ends both */
    ok(rkvi_dev(capture_begin, f->d, f->a, false));
    ok(rkvi_dev(capture_begin, f->d, f->b, false));
    ok(rkvi_dev(event_record, f->d, e, f->a));
    assert_int_equal(rkvi_dev(stream_wait, f->d, f->b, e), RKV_E_DEVICE_CALL);
    assert_int_equal(rkvi_dev(capture_end, f->d, f->a, &graph), RKV_E_DEVICE_CALL);
    assert_int_equal(rkvi_dev(capture_end, f->d, f->b, &other), RKV_E_DEVICE_CALL);

    /* a graph is not launched into a capture */
    ok(rkvi_dev(capture_begin, f->d, f->a, false));
    ok(rkvi_dev(fill, f->d, f->dev[0], 0, 16, f->a));
    ok(rkvi_dev(capture_end, f->d, f->a, &graph));
    ok(rkvi_dev(capture_begin, f->d, f->a, false));
    assert_int_equal(rkvi_dev(graph_launch, f->d, graph, f->a), RKV_E_DEVICE_CALL);
    assert_int_equal(rkvi_dev(capture_end, f->d, f->a, &other), RKV_E_DEVICE_CALL);
    assert_null(other);
    ok(rkvi_dev(graph_launch, f->d, graph, f->a));
    ok(rkvi_dev(stream_sync, f->d, f->a));
    ok(rkvi_dev(graph_destroy, f->d, graph));
    ok(rkvi_dev(event_destroy, f->d, e));
    ok(rkvi_dev(event_destroy, f->d, never));
}

typedef rkv_status (*forbidden_fn)(fixture *f, rkvi_event *e);

static rkv_status forbidden_alloc(fixture *f, rkvi_event *e)
{
    (void)e;
    void *p;
    const rkv_status st = rkvi_dev(mem_alloc, f->d, 16, &p);
    return st ? st : rkvi_dev(mem_free, f->d, p);
}

static rkv_status forbidden_free(fixture *f, rkvi_event *e)
{
    (void)e;
    return rkvi_dev(mem_free, f->d, NULL);
}

static uint32_t registered_here[64];

static rkv_status forbidden_register(fixture *f, rkvi_event *e)
{
    (void)e;
    const rkv_status st = rkvi_dev(host_register, f->d, registered_here, sizeof registered_here);
    return st ? st : rkvi_dev(host_unregister, f->d, registered_here);
}

static rkv_status forbidden_query(fixture *f, rkvi_event *e)
{
    bool is_done;
    return rkvi_dev(event_query, f->d, e, &is_done);
}

static void test_global_capture_forbids(void **state)
{
    fixture *f = *state;
    static const forbidden_fn calls[] = {forbidden_alloc, forbidden_free, forbidden_register,
                                         forbidden_query};
    rkvi_event *e;
    ok(rkvi_dev(event_create, f->d, &e));
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        rkvi_graph *graph = NULL;
        ok(rkvi_dev(capture_begin, f->d, f->a, true));
        assert_int_equal(calls[i](f, e), RKV_E_DEVICE_CALL);
        assert_int_equal(rkvi_dev(capture_end, f->d, f->a, &graph), RKV_E_DEVICE_CALL);
        /* not in relaxed mode, and not for a capture that isn't global */
        ok(rkvi_dev(capture_begin, f->d, f->a, true));
        assert_false(rkvi_dev(capture_relax, f->d, true));
        ok(calls[i](f, e));
        assert_true(rkvi_dev(capture_relax, f->d, false));
        ok(rkvi_dev(capture_end, f->d, f->a, &graph));
        ok(rkvi_dev(graph_destroy, f->d, graph));
        ok(rkvi_dev(capture_begin, f->d, f->a, false));
        ok(calls[i](f, e));
        ok(rkvi_dev(capture_end, f->d, f->a, &graph));
        ok(rkvi_dev(graph_destroy, f->d, graph));
    }
    ok(rkvi_dev(event_destroy, f->d, e));
}

static const struct CMUnitTest tests[] = {
    with_fixture(test_graph),
    with_fixture(test_graph_waits_for_its_former_launch),
    with_fixture(test_capture_refusals),
    with_fixture(test_captures_that_meet),
    with_fixture(test_global_capture_forbids),
};

int main(void)
{
    return run_on_all(tests, sizeof tests / sizeof tests[0]) != 0;
}
