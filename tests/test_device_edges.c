/* SPDX-License-Identifier: MIT
 *
 * Each edge that the design lists, as a small program of operations that needs
 * it.  With the edge: right data on every executor and seed, and device_check is
 * silent.  With the edge left out: device_check reports it, and device_sim gives
 * wrong data under some seed.
 */
#include "device_check.h"
#include "device_host.h"
#include "device_kernels.h"
#include "device_sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#define ok(call) assert_int_equal(call, RKV_OK)
#define WORDS 600u /* more than a page, so that copies take a while */
#define BYTES (WORDS * sizeof(uint32_t))
#define SEEDS 64u

/* What a cache has: a device place, a ring slot, tables, partials; a host
 * place, a mirror; streams.  Device buffers start with 1000 * number + k, host
 * ones with 100000 * number + k. */
enum { SRC, PLACE, SLOT, TABLE, PARTIAL, OUT, N_DEV };
enum { HOST_PLACE, HOST_PLACE_2, MIRROR, RESULT, N_HOST };

typedef struct world {
    rkvi_device *d;
    void *compute, *side, *copy_in, *copy_out;
    rkvi_event *event;
    uint32_t *dev[N_DEV];
    uint32_t *host[N_HOST];
    bool leave_out; /* the edge under test */
} world;

static uint32_t dev_value(int buffer, uint32_t k)
{
    return 1000u * (uint32_t)buffer + k;
}

static uint32_t host_value(int buffer, uint32_t k)
{
    return 100000u * ((uint32_t)buffer + 1) + k;
}

static void host_write(world *w, int buffer, uint32_t add)
{
    host_touch(w->d, w->host[buffer], BYTES, RKVI_WRITE);
    for (uint32_t k = 0; k < WORDS; k++)
        w->host[buffer][k] = host_value(buffer, k) + add;
}

/* Macros, so that reports show the program's line. */
#define h2d(w, dst_, src_) \
    ok(copy_1d((w)->d, RKVI_H2D, (w)->dev[dst_], (w)->host[src_], BYTES, (w)->copy_in))
#define d2h(w, dst_, src_) \
    ok(copy_1d((w)->d, RKVI_D2H, (w)->host[dst_], (w)->dev[src_], BYTES, (w)->copy_out))
#define kernel(w, dst_, src_, add, stream) \
    ok(launch_add((w)->d, (w)->dev[dst_], (w)->dev[src_], add, WORDS, stream))

static void edge(world *w, void *first, void *then)
{
    ok(rkvi_dev(event_record, w->d, w->event, first));
    ok(rkvi_dev(stream_wait, w->d, then, w->event));
}

static void tested_edge(world *w, void *first, void *then)
{
    if (!w->leave_out)
        edge(w, first, then);
}

static void sync_all(world *w)
{
    ok(rkvi_dev(stream_sync, w->d, w->compute));
    ok(rkvi_dev(stream_sync, w->d, w->side));
    ok(rkvi_dev(stream_sync, w->d, w->copy_in));
    ok(rkvi_dev(stream_sync, w->d, w->copy_out));
}

static void world_open(world *w, rkvi_device *d, bool leave_out)
{
    void *p;
    *w = (world){.d = d, .leave_out = leave_out};
    ok(rkvi_dev(stream_create, d, "compute", &w->compute));
    ok(rkvi_dev(stream_create, d, "side", &w->side));
    ok(rkvi_dev(stream_create, d, "copy_in", &w->copy_in));
    ok(rkvi_dev(stream_create, d, "copy_out", &w->copy_out));
    ok(rkvi_dev(event_create, d, &w->event));
    for (int i = 0; i < N_HOST; i++) {
        ok(rkvi_dev(host_alloc, d, BYTES, &p));
        w->host[i] = p;
    }
    for (int i = 0; i < N_DEV; i++) {
        ok(rkvi_dev(mem_alloc, d, BYTES, &p));
        w->dev[i] = p;
        host_touch(d, w->host[0], BYTES, RKVI_WRITE);
        for (uint32_t k = 0; k < WORDS; k++)
            w->host[0][k] = dev_value(i, k);
        h2d(w, i, 0);
        sync_all(w);
    }
    for (int i = 0; i < N_HOST; i++)
        host_write(w, i, 0);
}

static void world_close(world *w)
{
    sync_all(w);
    for (int i = 0; i < N_HOST; i++)
        ok(rkvi_dev(host_free, w->d, w->host[i]));
    for (int i = 0; i < N_DEV; i++)
        ok(rkvi_dev(mem_free, w->d, w->dev[i]));
    ok(rkvi_dev(event_destroy, w->d, w->event));
    ok(rkvi_dev(stream_destroy, w->d, w->compute));
    ok(rkvi_dev(stream_destroy, w->d, w->side));
    ok(rkvi_dev(stream_destroy, w->d, w->copy_in));
    ok(rkvi_dev(stream_destroy, w->d, w->copy_out));
    rkvi_dev_destroy(w->d);
}

static bool host_is(world *w, int buffer, uint32_t first, uint32_t words, uint32_t from)
{
    sync_all(w);
    host_touch(w->d, w->host[buffer] + first, words * 4, RKVI_READ);
    for (uint32_t k = first; k < first + words; k++)
        if (w->host[buffer][k] != from + k)
            return false;
    return true;
}

/* Words [first, first + words) of a device buffer hold from + k. */
static bool part_is(world *w, int buffer, uint32_t first, uint32_t words, uint32_t from)
{
    sync_all(w);
    d2h(w, RESULT, buffer);
    return host_is(w, RESULT, first, words, from);
}

static bool dev_is(world *w, int buffer, uint32_t from)
{
    return part_is(w, buffer, 0, WORDS, from);
}

/* ---- the programs: each returns whether its data is right ---- */

static bool store_then_copy_out(world *w)
{
    kernel(w, PLACE, SRC, 5, w->compute);
    tested_edge(w, w->compute, w->copy_out);
    d2h(w, HOST_PLACE, PLACE);
    return host_is(w, HOST_PLACE, 0, WORDS, 5);
}

static bool store_then_reader(world *w)
{
    kernel(w, PLACE, SRC, 5, w->compute);
    tested_edge(w, w->compute, w->side);
    kernel(w, OUT, PLACE, 1, w->side);
    return dev_is(w, OUT, 6);
}

static bool copy_out_then_copy_in(world *w)
{
    d2h(w, HOST_PLACE, PLACE);
    tested_edge(w, w->copy_out, w->copy_in);
    h2d(w, SLOT, HOST_PLACE);
    return dev_is(w, SLOT, dev_value(PLACE, 0));
}

static bool copy_out_then_place_reused(world *w)
{
    d2h(w, HOST_PLACE, PLACE);
    tested_edge(w, w->copy_out, w->compute);
    ok(rkvi_dev(fill, w->d, w->dev[PLACE], 0, BYTES, w->compute)); /* another tile opens */
    return host_is(w, HOST_PLACE, 0, WORDS, dev_value(PLACE, 0));
}

static bool copy_out_then_new_store(world *w)
{
    d2h(w, HOST_PLACE, PLACE);
    tested_edge(w, w->copy_out, w->compute);
    const uint32_t cell = WORDS - 16; /* rolled back by a cell, then appended again */
    ok(launch_add(w->d, w->dev[PLACE] + cell, w->dev[SRC] + cell, 7, 16, w->compute));
    return host_is(w, HOST_PLACE, 0, WORDS, dev_value(PLACE, 0));
}

static bool copy_in_then_readers(world *w)
{
    h2d(w, SLOT, HOST_PLACE);
    tested_edge(w, w->copy_in, w->compute);
    kernel(w, OUT, SLOT, 1, w->compute);
    return dev_is(w, OUT, host_value(HOST_PLACE, 0) + 1);
}

static bool readers_then_copy_in(world *w)
{
    h2d(w, SLOT, HOST_PLACE);
    edge(w, w->copy_in, w->compute);
    kernel(w, OUT, SLOT, 1, w->compute);
    tested_edge(w, w->compute, w->copy_in);
    h2d(w, SLOT, HOST_PLACE_2);
    return dev_is(w, OUT, host_value(HOST_PLACE, 0) + 1);
}

static bool promotion_then_copy_in(world *w)
{
    h2d(w, SLOT, HOST_PLACE);
    edge(w, w->copy_in, w->compute);
    ok(copy_1d(w->d, RKVI_D2D, w->dev[PLACE], w->dev[SLOT], BYTES, w->compute));
    tested_edge(w, w->compute, w->copy_in);
    h2d(w, SLOT, HOST_PLACE_2);
    return dev_is(w, PLACE, host_value(HOST_PLACE, 0));
}

static bool copy_in_then_copy_out(world *w)
{
    h2d(w, SLOT, HOST_PLACE);
    tested_edge(w, w->copy_in, w->copy_out);
    d2h(w, HOST_PLACE, PLACE);
    return dev_is(w, SLOT, host_value(HOST_PLACE, 0));
}

static bool bring_back_then_store(world *w)
{
    const uint32_t half = WORDS / 2;
    h2d(w, PLACE, HOST_PLACE);
    tested_edge(w, w->copy_in, w->compute);
    ok(launch_add(w->d, w->dev[PLACE] + half, w->dev[SRC] + half, 7, half, w->compute));
    return part_is(w, PLACE, 0, half, host_value(HOST_PLACE, 0)) && part_is(w, PLACE, half, half, 7);
}

static bool bring_back_then_reader(world *w)
{
    h2d(w, PLACE, HOST_PLACE);
    tested_edge(w, w->copy_in, w->compute);
    kernel(w, OUT, PLACE, 1, w->compute);
    return dev_is(w, OUT, host_value(HOST_PLACE, 0) + 1);
}

static bool reader_then_store(world *w)
{
    kernel(w, OUT, PLACE, 1, w->side);
    tested_edge(w, w->side, w->compute);
    kernel(w, PLACE, SRC, 50, w->compute);
    return dev_is(w, OUT, dev_value(PLACE, 1));
}

static bool upload_then_host_write(world *w)
{
    h2d(w, TABLE, MIRROR);
    ok(rkvi_dev(event_record, w->d, w->event, w->copy_in));
    if (!w->leave_out)
        ok(rkvi_dev(event_sync, w->d, w->event));
    host_write(w, MIRROR, 77);
    return dev_is(w, TABLE, host_value(MIRROR, 0));
}

static bool table_reader_then_upload(world *w)
{
    kernel(w, OUT, TABLE, 1, w->compute);
    tested_edge(w, w->compute, w->copy_in);
    h2d(w, TABLE, MIRROR);
    return dev_is(w, OUT, dev_value(TABLE, 1));
}

static bool partials_reader_then_writer(world *w)
{
    kernel(w, PARTIAL, SRC, 3, w->compute);
    edge(w, w->compute, w->side);
    kernel(w, OUT, PARTIAL, 1, w->side);
    tested_edge(w, w->side, w->compute);
    kernel(w, PARTIAL, SRC, 900, w->compute);
    return dev_is(w, OUT, 4);
}

/* start on one stream, the attend on another one */
static bool call_then_call_on_another_stream(world *w)
{
    edge(w, w->compute, w->copy_in);
    h2d(w, TABLE, MIRROR);
    edge(w, w->copy_in, w->compute);
    kernel(w, PARTIAL, TABLE, 3, w->compute);
    tested_edge(w, w->compute, w->side);
    kernel(w, OUT, PARTIAL, 1, w->side);
    return dev_is(w, OUT, host_value(MIRROR, 0) + 4);
}

static bool last_use_then_free(world *w)
{
    void *scratch;
    ok(rkvi_dev(mem_alloc, w->d, BYTES, &scratch));
    ok(launch_add(w->d, scratch, w->dev[SRC], 3, WORDS, w->compute));
    ok(launch_add(w->d, w->dev[OUT], scratch, 1, WORDS, w->compute));
    if (!w->leave_out)
        ok(rkvi_dev(stream_sync, w->d, w->compute));
    ok(rkvi_dev(mem_free, w->d, scratch));
    return dev_is(w, OUT, 4);
}

static bool last_use_then_handing_on(world *w)
{
    kernel(w, PARTIAL, SRC, 3, w->compute);
    kernel(w, OUT, PARTIAL, 1, w->compute);
    tested_edge(w, w->compute, w->side);
    ok(rkvi_dev(fill, w->d, w->dev[PARTIAL], 0, BYTES, w->side));
    return dev_is(w, OUT, 4);
}

typedef struct program {
    const char *name;
    bool (*run)(world *w);
    rkvi_check_kind kind; /* of the report when the edge is left out */
} program;

#define PROGRAM(fn) \
    { \
#fn, fn, RKVI_CHECK_RACE \
    }
static const program programs[] = {
    PROGRAM(store_then_copy_out),
    PROGRAM(store_then_reader),
    PROGRAM(copy_out_then_copy_in),
    PROGRAM(copy_out_then_place_reused),
    PROGRAM(copy_out_then_new_store),
    PROGRAM(copy_in_then_readers),
    PROGRAM(readers_then_copy_in),
    PROGRAM(promotion_then_copy_in),
    PROGRAM(copy_in_then_copy_out),
    PROGRAM(bring_back_then_store),
    PROGRAM(bring_back_then_reader),
    PROGRAM(reader_then_store),
    PROGRAM(upload_then_host_write),
    PROGRAM(table_reader_then_upload),
    PROGRAM(partials_reader_then_writer),
    PROGRAM(call_then_call_on_another_stream),
    {"last_use_then_free", last_use_then_free, RKVI_CHECK_FREED},
    PROGRAM(last_use_then_handing_on),
};
#define N_PROGRAMS (sizeof programs / sizeof programs[0])

/* ---- running them ---- */

static rkvi_device *sim(rkvi_sim_order order, uint64_t seed)
{
    rkvi_device_sim_settings s = {.order = order, .seed = seed};
    rkvi_device_sim_like_h200(&s);
    rkvi_device *d;
    ok(rkvi_device_sim_create(&s, &test_ops, &d));
    return d;
}

static bool is_right(const program *p, rkvi_device *d, bool leave_out)
{
    world w;
    world_open(&w, d, leave_out);
    const bool right = p->run(&w);
    world_close(&w);
    return right;
}

static void test_with_the_edges(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_PROGRAMS; i++) {
        assert_true(is_right(&programs[i], sim(RKVI_SIM_TIME, 0), false));
        for (uint64_t seed = 0; seed < SEEDS; seed++)
            if (!is_right(&programs[i], sim(RKVI_SIM_SEEDED, seed), false))
                fail_msg("%s, seed %u", programs[i].name, (unsigned)seed);
        const rkvi_device_host_settings s = {.n_workers = 2, .delay_max_ns = 50000, .delay_seed = i};
        rkvi_device *d;
        ok(rkvi_device_host_create(&s, &test_ops, &d));
        if (!is_right(&programs[i], d, false))
            fail_msg("%s on device_host, delay seed %u", programs[i].name, (unsigned)i);
    }
}

static void test_sim_shows_a_missing_edge(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_PROGRAMS; i++) {
        unsigned n_wrong = 0, first = 0;
        for (unsigned seed = 0; seed < SEEDS; seed++) {
            if (is_right(&programs[i], sim(RKVI_SIM_SEEDED, seed), true))
                continue;
            if (n_wrong++ == 0)
                first = seed;
        }
        printf("%-34s left out: wrong under %2u of %u seeds, first %u\n", programs[i].name, n_wrong,
               SEEDS, first);
        if (n_wrong == 0)
            fail_msg("%s: no seed shows the missing edge", programs[i].name);
    }
}

static void test_check_reports_a_missing_edge(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_PROGRAMS; i++) {
        for (int leave_out = 0; leave_out < 2; leave_out++) {
            rkvi_device *d;
            world w;
            ok(rkvi_device_check_create(sim(RKVI_SIM_TIME, 0), NULL, &d));
            world_open(&w, d, leave_out);
            programs[i].run(&w);
            const size_t n = rkvi_device_check_count(d);
            const rkvi_check_report *r = n ? rkvi_device_check_report(d, 0) : NULL;
            if (leave_out && (n == 0 || r->kind != programs[i].kind))
                fail_msg("%s left out: %s", programs[i].name, n ? r->text : "no report");
            if (!leave_out && n)
                fail_msg("%s: %s", programs[i].name, r->text);
            if (n) {
                assert_non_null(strstr(r->text, r->first_site));
                assert_non_null(strstr(r->text, r->second_site));
                printf("%s\n", r->text);
            }
            world_close(&w);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_with_the_edges),
        cmocka_unit_test(test_sim_shows_a_missing_edge),
        cmocka_unit_test(test_check_reports_a_missing_edge),
    };
    printf("device_sim, seeds 0 to %u\n", SEEDS - 1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
