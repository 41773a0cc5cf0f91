/* SPDX-License-Identifier: MIT
 *
 * device_fixture.h: executors of each kind, with streams and memory, for the
 * tests that run on all of them.
 */
#ifndef DEVICE_FIXTURE_H
#define DEVICE_FIXTURE_H

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
#define COUNT 1000u
#define BYTES (COUNT * sizeof(uint32_t))

/* ---- fixture: an executor, two streams, pinned and device memory ---- */

typedef struct fixture {
    rkvi_device *d;
    void *a, *b;       /* streams */
    uint32_t *dev[3];  /* BYTES each */
    uint32_t *host[3]; /* BYTES each, pinned */
} fixture;

static rkvi_device *make_host(const rkvi_device_limits *limits)
{
    const rkvi_device_host_settings s = {
        .n_workers = 3, .delay_max_ns = 20000, .delay_seed = 7, .limits = *limits};
    rkvi_device *d;
    ok(rkvi_device_host_create(&s, &test_ops, &d));
    return d;
}

static rkvi_device *make_sim(const rkvi_device_limits *limits, rkvi_device_sim_settings s)
{
    s.limits = *limits;
    rkvi_device *d;
    ok(rkvi_device_sim_create(&s, &test_ops, &d));
    return d;
}

static rkvi_device *make_sim_time(const rkvi_device_limits *limits)
{
    rkvi_device_sim_settings s = {.order = RKVI_SIM_TIME, .poison = RKVI_SIM_POISON_DEVICE};
    rkvi_device_sim_like_h200(&s);
    return make_sim(limits, s);
}

static uint64_t sim_seed; /* another one for each executor that is made */

static rkvi_device *make_sim_seeded(const rkvi_device_limits *limits)
{
    const rkvi_device_sim_settings s = {.order = RKVI_SIM_SEEDED, .seed = sim_seed++};
    return make_sim(limits, s);
}

typedef rkvi_device *(*make_fn)(const rkvi_device_limits *limits);
static make_fn make = make_host;

static rkvi_device *make_check(const rkvi_device_limits *limits)
{
    rkvi_device *d;
    ok(rkvi_device_check_create(make_host(limits), NULL, &d));
    return d;
}

/* What failures are ordered from. */
static rkvi_device *core_of(rkvi_device *d)
{
    return make == make_check ? rkvi_device_check_inner(d) : d;
}

static const rkvi_device_limits test_limits = {.memory_bytes = 64 << 20};

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->d = make(&test_limits);
    ok(rkvi_dev(stream_create, f->d, "a", &f->a));
    ok(rkvi_dev(stream_create, f->d, "b", &f->b));
    for (int i = 0; i < 3; i++) {
        void *p;
        ok(rkvi_dev(mem_alloc, f->d, BYTES, &p));
        f->dev[i] = p;
        ok(rkvi_dev(host_alloc, f->d, BYTES, &p));
        f->host[i] = p;
        for (uint32_t k = 0; k < COUNT; k++)
            f->host[i][k] = 10000u * (uint32_t)i + k;
    }
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    ok(rkvi_dev(stream_sync, f->d, f->a));
    ok(rkvi_dev(stream_sync, f->d, f->b));
    for (int i = 0; i < 3; i++) {
        ok(rkvi_dev(mem_free, f->d, f->dev[i]));
        ok(rkvi_dev(host_free, f->d, f->host[i]));
    }
    ok(rkvi_dev(stream_destroy, f->d, f->a));
    ok(rkvi_dev(stream_destroy, f->d, f->b));
    rkvi_device_usage u;
    rkvi_device_usage_get(core_of(f->d), &u);
    assert_int_equal(u.device_bytes + u.registered_bytes, 0);
    assert_int_equal(u.streams + u.events + u.graphs + u.allocations + u.registrations, 0);
    rkvi_dev_destroy(f->d);
    free(f);
    return 0;
}

#define with_fixture(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

/* Runs a table of tests on one kind of executor, so many times. */
static int run_on(const char *name, make_fn fn, const struct CMUnitTest *tests, size_t n, int times)
{
    int n_failed = 0;
    make = fn;
    printf("on %s\n", name);
    for (int i = 0; i < times; i++)
        n_failed += _cmocka_run_group_tests(name, tests, n, NULL, NULL);
    return n_failed;
}

/* The seeds of device_sim go on from 0. */
static int run_on_all(const struct CMUnitTest *tests, size_t n)
{
    printf("device_host: delay seed 7; device_sim: seeds from 0\n");
    return run_on("host", make_host, tests, n, 1) + run_on("check over host", make_check, tests, n, 1) +
           run_on("sim by time", make_sim_time, tests, n, 1) +
           run_on("sim by seed", make_sim_seeded, tests, n, 8);
}

#endif
