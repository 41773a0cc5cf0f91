/* SPDX-License-Identifier: MIT
 *
 * The contract of device.h on a GPU: memory, streams, events, copies, host
 * calls, captures, also while another thread captures.
 */
#include "cuda_streams.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

/* ---- info, memory ---- */

static void test_info(void **state)
{
    fixture *f = *state;
    rkvi_device_info info, without;
    ok(rkvi_dev(info, f->d, &info));
    printf("%s, %u multiprocessors, node %d, %llu of %llu MB free\n", info.name, info.n_workers,
           info.numa_node, (unsigned long long)(info.memory_free_bytes >> 20),
           (unsigned long long)(info.memory_bytes >> 20));
    assert_true(info.name[0] && info.n_workers > 0 && !info.is_host && info.numa_node >= -1);
    assert_true(info.memory_free_bytes > 0 && info.memory_free_bytes <= info.memory_bytes);
    assert_string_equal(info.kernels, "cuda");
    ok(rkvi_device_cuda_info(0, &without));
    assert_string_equal(info.name, without.name);
    assert_int_equal(rkvi_device_cuda_info(100000, &without), RKV_E_NO_DEVICE);
}

static void test_memory(void **state)
{
    fixture *f = *state;
    void *p = NULL;
    for (int i = 0; i < 3; i++)
        assert_int_equal((uintptr_t)f->dev[i] % 256, 0);
    assert_int_equal(rkvi_dev(mem_alloc, f->d, 0, &p), RKV_E_ARGUMENT);
    assert_int_equal(rkvi_dev(mem_alloc, f->d, (size_t)1 << 50, &p), RKV_E_DEVICE_MEMORY);
    assert_int_equal(rkvi_dev(mem_alloc, f->d, (size_t)-1, &p), RKV_E_DEVICE_MEMORY);
    assert_null(p);
    assert_int_equal(cudaPeekAtLastError(), cudaSuccess);
    ok(rkvi_dev(mem_free, f->d, NULL));
    assert_int_equal(rkvi_dev(mem_free, f->d, (char *)f->dev[0] + 3), RKV_E_ARGUMENT);
    assert_int_equal(cudaPeekAtLastError(), cudaSuccess);
    assert_int_equal(rkvi_dev(host_alloc, f->d, (size_t)1 << 50, &p), RKV_E_HOST_MEMORY);
    assert_int_equal(cudaPeekAtLastError(), cudaSuccess);
}

static void test_registration(void **state)
{
    fixture *f = *state;
    const size_t bytes = 1 << 20;
    unsigned char *mem = aligned_alloc(4096, bytes);
    assert_int_equal(rkvi_dev(host_register, f->d, mem, 0), RKV_E_ARGUMENT);
    assert_int_equal(rkvi_dev(host_register, f->d, NULL, 4096), RKV_E_ARGUMENT);
    assert_int_not_equal(rkvi_dev(host_register, f->d, (void *)(uintptr_t)4096, 4096),
                         RKV_OK); /* not mapped */
    assert_int_equal(cudaPeekAtLastError(), cudaSuccess);
    ok(rkvi_dev(host_register, f->d, mem, bytes));
    assert_int_equal(rkvi_dev(host_register, f->d, mem, bytes), RKV_E_ARGUMENT);
    assert_int_equal(cudaPeekAtLastError(), cudaSuccess);
    memcpy(mem, f->host[1], BYTES);
    ok(copy(f, RKVI_H2D, f->dev[0], mem, f->a));
    ok(copy(f, RKVI_D2H, mem + bytes / 2, f->dev[0], f->a));
    ok(rkvi_dev(stream_sync, f->d, f->a));
    assert_memory_equal(mem + bytes / 2, f->host[1], BYTES);
    ok(rkvi_dev(host_unregister, f->d, mem));
    assert_int_equal(rkvi_dev(host_unregister, f->d, mem), RKV_E_ARGUMENT);
    free(mem);
}

/* ---- streams, events ---- */

static atomic_int gate;

static void open_gate(void *arg)
{
    atomic_store(&gate, arg ? 2 : 1);
}

static void wait_at_gate(void *arg)
{
    (void)arg;
    while (!atomic_load(&gate))
        usleep(100);
}

/* Its own streams are independent of each other and of the legacy one. */
static void test_streams_are_independent(void **state)
{
    fixture *f = *state;
    void *const others[] = {f->b, NULL};
    rkvi_event *e;
    bool is_done = true;
    ok(rkvi_dev(event_create, f->d, &e));
    for (int i = 0; i < 2; i++) {
        atomic_store(&gate, 0);
        ok(rkvi_dev(host_call, f->d, wait_at_gate, NULL, NULL, 0, f->a));
        ok(rkvi_dev(event_record, f->d, e, f->a));
        ok(rkvi_dev(event_query, f->d, e, &is_done));
        assert_false(is_done);
        assert_int_equal(cudaPeekAtLastError(), cudaSuccess);
        ok(copy(f, RKVI_H2D, f->dev[1], f->host[1], others[i]));
        ok(copy(f, RKVI_D2H, f->host[2], f->dev[1], others[i]));
        ok(rkvi_dev(stream_sync, f->d, others[i])); /* while a is held up */
        assert_memory_equal(f->host[2], f->host[1], BYTES);
        open_gate(NULL);
        ok(rkvi_dev(event_sync, f->d, e));
        ok(rkvi_dev(event_query, f->d, e, &is_done));
        assert_true(is_done);
    }
    ok(rkvi_dev(event_destroy, f->d, e));
}

static void test_event_takes_the_latest_record(void **state)
{
    fixture *f = *state;
    rkvi_event *e;
    bool is_done = false;
    ok(rkvi_dev(event_create, f->d, &e));
    ok(rkvi_dev(stream_wait, f->d, f->b, e)); /* never recorded */
    ok(rkvi_dev(event_sync, f->d, e));
    ok(rkvi_dev(event_query, f->d, e, &is_done));
    assert_true(is_done);
    for (uint32_t round = 0; round < 20; round++) {
        ok(rkvi_dev(fill, f->d, f->dev[0], 0xee, BYTES, f->a));
        ok(rkvi_dev(delay, f->d, 300000, f->a));
        ok(copy(f, RKVI_H2D, f->dev[0], f->host[round % 2], f->a));
        ok(rkvi_dev(event_record, f->d, e, f->a));
        ok(rkvi_dev(stream_wait, f->d, f->b, e));
        ok(rkvi_dev(event_record, f->d, e, f->b)); /* does not stand in for the first */
        ok(copy(f, RKVI_D2D, f->dev[1], f->dev[0], f->b));
        ok(copy(f, RKVI_D2H, f->host[2], f->dev[1], f->b));
        ok(rkvi_dev(event_record, f->d, e, f->b));
        ok(rkvi_dev(event_sync, f->d, e));
        assert_memory_equal(f->host[2], f->host[round % 2], BYTES);
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
    const rkvi_device_cuda_settings untimed = {0};
    rkvi_device *d;
    rkvi_event *from, *to;
    int64_t ns = 0;
    ok(rkvi_dev(event_create, f->d, &from));
    ok(rkvi_dev(event_create, f->d, &to));
    assert_int_equal(rkvi_dev(event_elapsed, f->d, from, to, &ns), RKV_E_STATE);
    assert_int_equal(cudaPeekAtLastError(), cudaSuccess);
    ok(rkvi_dev(event_record, f->d, from, f->a));
    ok(rkvi_dev(delay, f->d, 3000000, f->a));
    ok(rkvi_dev(event_record, f->d, to, f->a));
    ok(rkvi_dev(event_sync, f->d, to));
    ok(rkvi_dev(event_elapsed, f->d, from, to, &ns));
    assert_true(ns >= 2000000); /* another clock, which may tick coarsely */
    ok(rkvi_device_cuda_create(&untimed, &d));
    assert_int_equal(rkvi_dev(event_elapsed, d, from, to, &ns), RKV_E_UNSUPPORTED);
    rkvi_dev_destroy(d);
    ok(rkvi_dev(event_destroy, f->d, from));
    ok(rkvi_dev(event_destroy, f->d, to));
}

static void test_destroying_a_stream_waits(void **state)
{
    fixture *f = *state;
    void *s;
    ok(rkvi_dev(stream_create, f->d, "s", &s));
    ok(copy(f, RKVI_H2D, f->dev[0], f->host[1], s));
    ok(rkvi_dev(delay, f->d, 2000000, s));
    ok(copy(f, RKVI_D2H, f->host[2], f->dev[0], s));
    ok(rkvi_dev(stream_destroy, f->d, s));
    assert_memory_equal(f->host[2], f->host[1], BYTES);
}

/* ---- work ---- */

static void test_2d_copies(void **state)
{
    fixture *f = *state;
    rkvi_copy in = {.direction = RKVI_H2D,
                    .dst = f->dev[0] + 2,
                    .src = f->host[0] + 1,
                    .width_bytes = 12,
                    .rows = 5,
                    .dst_pitch_bytes = 44,
                    .src_pitch_bytes = 28};
    rkvi_copy between = in, out = in;
    between.direction = RKVI_D2D;
    between.dst = f->dev[1];
    between.src = f->dev[0] + 2;
    between.dst_pitch_bytes = 12;
    between.src_pitch_bytes = 44;
    out.direction = RKVI_D2H;
    out.dst = f->host[1];
    out.src = f->dev[1];
    out.dst_pitch_bytes = 16;
    out.src_pitch_bytes = 12;
    ok(rkvi_dev(copy, f->d, &in, f->a));
    ok(rkvi_dev(copy, f->d, &between, f->a));
    ok(rkvi_dev(copy, f->d, &out, f->a));
    ok(rkvi_dev(stream_sync, f->d, f->a));
    for (uint32_t k = 0; k < 30; k++) {
        const uint32_t row = k / 4, i = k % 4;
        assert_int_equal(f->host[1][k], row < 5 && i < 3 ? 1 + 7 * row + i : 10000 + k);
    }
    in.src_pitch_bytes = 8;
    assert_int_equal(rkvi_dev(copy, f->d, &in, f->a), RKV_E_ARGUMENT);
    in.rows = 0;
    in.src_pitch_bytes = 28;
    ok(rkvi_dev(copy, f->d, &in, f->a));
}

/* Beyond the largest pitch of CUDA's 2D copies. */
static void test_far_rows(void **state)
{
    fixture *f = *state;
    rkvi_device_info info;
    void *p;
    const size_t pitch = ((size_t)1 << 31) + 256;
    ok(rkvi_dev(info, f->d, &info));
    if (info.memory_free_bytes < 2 * pitch) {
        print_message("no room for rows %zu bytes apart\n", pitch);
        return;
    }
    ok(rkvi_dev(mem_alloc, f->d, pitch + 4096, &p));
    rkvi_copy c = {.direction = RKVI_H2D,
                   .dst = p,
                   .src = f->host[0],
                   .width_bytes = 400,
                   .rows = 2,
                   .dst_pitch_bytes = pitch,
                   .src_pitch_bytes = 400};
    ok(rkvi_dev(copy, f->d, &c, f->a));
    c = (rkvi_copy){.direction = RKVI_D2H,
                    .dst = f->host[1],
                    .src = p,
                    .width_bytes = 400,
                    .rows = 2,
                    .dst_pitch_bytes = 400,
                    .src_pitch_bytes = pitch};
    ok(rkvi_dev(copy, f->d, &c, f->a));
    ok(rkvi_dev(stream_sync, f->d, f->a));
    assert_memory_equal(f->host[1], f->host[0], 800);
    ok(rkvi_dev(mem_free, f->d, p));
}

static void test_launch_arguments(void **state)
{
    fixture *f = *state;
    const rkvi_open_args a = {0};
    rkvi_launch l = {.op = RKVI_OP_COUNT, .args = &a, .args_bytes = sizeof a, .grid = 1};
    assert_int_equal(rkvi_dev(launch, f->d, &l, f->a), RKV_E_ARGUMENT);
    l.op = RKVI_OP_OPEN;
    l.args_bytes = RKVI_ARGS_MAX + 1;
    assert_int_equal(rkvi_dev(launch, f->d, &l, f->a), RKV_E_ARGUMENT);
    l.args_bytes = sizeof a;
    l.grid = 0;
    ok(rkvi_dev(launch, f->d, &l, f->a));
}

static void test_geometry_left_out(void **state)
{
    fixture *f = *state;
    rkvi_geom g = {.n_heads = 1,
                   .dk = 72,
                   .dv = 72,
                   .type_k = RKV_TYPE_F16,
                   .type_v = RKV_TYPE_F16,
                   .tile_cells = 16};
    ok(rkvi_geom_init(&g));
    assert_int_equal(rkvi_dev(geom_prepare, f->d, &g), RKV_E_UNSUPPORTED);
    printf("%s\n", rkvi_error_text());
    assert_non_null(strstr(rkvi_error_text(), "72"));
    assert_non_null(strstr(rkvi_error_text(), "it has "));
}

/* ---- captures ---- */

static void test_graph(void **state)
{
    fixture *f = *state;
    rkvi_event *fork, *join;
    rkvi_graph *graph;
    ok(rkvi_dev(event_create, f->d, &fork));
    ok(rkvi_dev(event_create, f->d, &join));
    ok(rkvi_dev(capture_begin, f->d, f->a, true));
    ok(copy(f, RKVI_H2D, f->dev[0], f->host[0], f->a));
    ok(rkvi_dev(event_record, f->d, fork, f->a));
    ok(rkvi_dev(stream_wait, f->d, f->b, fork));
    ok(copy(f, RKVI_D2D, f->dev[1], f->dev[0], f->b));
    ok(rkvi_dev(event_record, f->d, join, f->b));
    ok(rkvi_dev(delay, f->d, 10000, f->a));
    ok(rkvi_dev(stream_wait, f->d, f->a, join));
    ok(copy(f, RKVI_D2H, f->host[1], f->dev[1], f->a));
    ok(rkvi_dev(capture_end, f->d, f->a, &graph));
    ok(rkvi_dev(stream_sync, f->d, f->a));
    assert_int_equal(f->host[1][0], 10000); /* nothing ran */
    for (uint32_t round = 0; round < 5; round++) {
        f->host[0][7] = round;
        ok(rkvi_dev(graph_launch, f->d, graph, f->a));
        ok(rkvi_dev(graph_launch, f->d, graph, f->b));
        ok(rkvi_dev(stream_sync, f->d, f->b));
        ok(rkvi_dev(stream_sync, f->d, f->a));
        assert_memory_equal(f->host[1], f->host[0], BYTES);
    }
    f->host[0][7] = 77;
    ok(rkvi_dev(graph_launch, f->d, graph, f->a));
    ok(rkvi_dev(graph_destroy, f->d, graph)); /* while it runs */
    ok(rkvi_dev(stream_sync, f->d, f->a));
    assert_int_equal(f->host[1][7], 77);
    ok(rkvi_dev(event_destroy, f->d, fork));
    ok(rkvi_dev(event_destroy, f->d, join));
}

static void test_capture_refusals(void **state)
{
    fixture *f = *state;
    rkvi_event *outside, *inside;
    rkvi_graph *graph = NULL;
    ok(rkvi_dev(event_create, f->d, &outside));
    ok(rkvi_dev(event_create, f->d, &inside));
    ok(rkvi_dev(event_record, f->d, outside, f->b));
    ok(rkvi_dev(capture_begin, f->d, f->a, false));
    assert_int_equal(rkvi_dev(stream_wait, f->d, f->a, outside), RKV_E_DEVICE_CALL); /* kills it */
    assert_int_not_equal(rkvi_dev(capture_end, f->d, f->a, &graph), RKV_OK);
    assert_null(graph);
    /* a stream that did not come back */
    ok(rkvi_dev(capture_begin, f->d, f->a, false));
    ok(rkvi_dev(event_record, f->d, inside, f->a));
    ok(rkvi_dev(stream_wait, f->d, f->b, inside));
    ok(rkvi_dev(fill, f->d, f->dev[0], 0, BYTES, f->b));
    assert_int_not_equal(rkvi_dev(capture_end, f->d, f->a, &graph), RKV_OK);
    assert_null(graph);
    assert_int_not_equal(rkvi_dev(capture_end, f->d, f->a, &graph), RKV_OK); /* none is open */
    assert_int_equal(cudaPeekAtLastError(), cudaSuccess);
    /* all are well afterwards */
    ok(copy(f, RKVI_H2D, f->dev[0], f->host[1], f->a));
    ok(copy(f, RKVI_D2H, f->host[2], f->dev[0], f->a));
    ok(rkvi_dev(stream_sync, f->d, f->a));
    ok(rkvi_dev(stream_sync, f->d, f->b));
    assert_memory_equal(f->host[2], f->host[1], BYTES);
    ok(rkvi_dev(event_destroy, f->d, outside));
    ok(rkvi_dev(event_destroy, f->d, inside));
}

/* What would fail, and break the capture, were it not made in relaxed mode. */
static void *work_beside_a_capture(void *arg)
{
    fixture *f = arg;
    rkvi_event *e;
    void *p, *s;
    bool is_done;
    unsigned char *mem = aligned_alloc(4096, 65536);
    ok(rkvi_dev(mem_alloc, f->d, 65536, &p));
    ok(rkvi_dev(host_register, f->d, mem, 65536));
    ok(rkvi_dev(event_create, f->d, &e));
    ok(rkvi_dev(stream_create, f->d, "s", &s));
    ok(rkvi_dev(event_record, f->d, e, s));
    ok(rkvi_dev(event_query, f->d, e, &is_done));
    ok(rkvi_dev(event_sync, f->d, e));
    ok(rkvi_dev(stream_sync, f->d, s));
    ok(rkvi_dev(stream_destroy, f->d, s));
    ok(rkvi_dev(event_destroy, f->d, e));
    ok(rkvi_dev(host_unregister, f->d, mem));
    ok(rkvi_dev(mem_free, f->d, p));
    /* relaxing is told and put back */
    assert_false(rkvi_dev(capture_relax, f->d, true));
    assert_true(rkvi_dev(capture_relax, f->d, true));
    assert_true(rkvi_dev(capture_relax, f->d, false));
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
    assert_int_equal(cudaThreadExchangeStreamCaptureMode(&mode), cudaSuccess);
    assert_int_equal(mode, cudaStreamCaptureModeGlobal);
    free(mem);
    return f;
}

static void test_beside_another_threads_capture(void **state)
{
    fixture *f = *state;
    rkvi_graph *graph;
    pthread_t thread;
    void *done = NULL;
    ok(rkvi_dev(capture_begin, f->d, f->a, true));
    ok(copy(f, RKVI_H2D, f->dev[0], f->host[1], f->a));
    assert_int_equal(pthread_create(&thread, NULL, work_beside_a_capture, f), 0);
    pthread_join(thread, &done);
    assert_ptr_equal(done, f);
    ok(rkvi_dev(capture_end, f->d, f->a, &graph));
    ok(rkvi_dev(graph_launch, f->d, graph, f->a));
    ok(rkvi_dev(stream_sync, f->d, f->a));
    ok(rkvi_dev(graph_destroy, f->d, graph));
}

int main(void)
{
    gpu_or_skip();
    const struct CMUnitTest tests[] = {
        with_fixture(test_info),
        with_fixture(test_memory),
        with_fixture(test_registration),
        with_fixture(test_streams_are_independent),
        with_fixture(test_event_takes_the_latest_record),
        with_fixture(test_elapsed),
        with_fixture(test_destroying_a_stream_waits),
        with_fixture(test_2d_copies),
        with_fixture(test_far_rows),
        with_fixture(test_launch_arguments),
        with_fixture(test_geometry_left_out),
        with_fixture(test_graph),
        with_fixture(test_capture_refusals),
        with_fixture(test_beside_another_threads_capture),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
