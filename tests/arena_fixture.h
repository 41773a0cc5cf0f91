/* SPDX-License-Identifier: MIT
 *
 * arena_fixture.h: an arena on the host executor, for the tests of the arena.
 */
#ifndef RKVT_ARENA_FIXTURE_H
#define RKVT_ARENA_FIXTURE_H

#include "arena.h"
#include "device_host.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#define ok(call) assert_int_equal(call, RKV_OK)
#define KIB ((uint64_t)1 << 10)
#define MIB ((uint64_t)1 << 20)

static const rkvi_ops no_ops; /* copies and host calls need no kernels */

static inline rkvi_device *make_device(const rkvi_device_limits *limits)
{
    rkvi_device_host_settings s = {.n_workers = 1};
    if (limits)
        s.limits = *limits;
    rkvi_device *d;
    ok(rkvi_device_host_create(&s, &no_ops, &d));
    return d;
}

/* All that the arena had from the executor was given back. */
static inline void end_device(rkvi_device *d)
{
    rkvi_device_usage usage;
    rkvi_device_usage_get(d, &usage);
    assert_int_equal(usage.registrations, 0);
    assert_int_equal(usage.registered_bytes, 0);
    assert_int_equal(usage.allocations, 0);
    rkvi_dev_destroy(d);
}

static inline rkvi_arena *make_arena(rkvi_device *d, uint64_t limit, uint64_t total, uint64_t slab)
{
    const rkvi_arena_settings s = {
        .dev = d, .limit_bytes = limit, .total_bytes = total, .slab_bytes = slab, .numa_node = -1};
    rkvi_arena *a;
    ok(rkvi_arena_create(&s, &a));
    return a;
}

static inline rkvi_arena_counters counters(const rkvi_arena *a)
{
    rkvi_arena_counters c;
    rkvi_arena_counters_get(a, &c);
    return c;
}

static inline unsigned char *take(rkvi_arena *a, uint64_t bytes)
{
    void *p = NULL;
    bool waited;
    ok(rkvi_arena_take(a, bytes, &p, &waited));
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 4096, 0);
    return p;
}

static inline void take_fails(rkvi_arena *a, uint64_t bytes, rkv_status status, const char *words)
{
    const rkvi_arena_counters before = counters(a);
    void *p = &p;
    bool waited;
    assert_int_equal(rkvi_arena_take(a, bytes, &p, &waited), status);
    assert_ptr_equal(p, &p);
    assert_non_null(strstr(rkvi_error_text(), words));
    assert_int_equal(counters(a).taken_bytes, before.taken_bytes);
}

static inline void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

/* The background thread gets its time: up to ten seconds, on a slow machine. */
static inline void wait_for_slabs(rkvi_arena *a, uint64_t n)
{
    for (uint32_t i = 0; i < 10000 && counters(a).n_slabs < n; i++)
        nap();
    assert_int_equal(counters(a).n_slabs, n);
}

#endif
