/* SPDX-License-Identifier: MIT
 *
 * The link's rate, measured at creation where nobody gives it: on device_sim, in
 * virtual time, whose info keeps its link's rate to itself as a GPU's does.  What
 * the rate makes of the ring, when nothing is measured, memory that is refused,
 * calls that fail, and that the device memory granted holds.
 */
#include "api_internal.h"
#include "device_check.h"
#include "device_host.h"
#include "device_sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MIB ((uint64_t)1 << 20)
#define TILE_BYTES MIB /* 256 cells of 4 KiB */
#define LAYERS 2u

static rkvi_ops ops;

typedef struct setup {
    rkv_kv_layer_params layers[LAYERS];
    rkv_site_params sites[LAYERS];
    rkv_cache_params params;
    rkvi_device_sim_settings sim;
    bool is_checked;
} setup;

/* A tail of some 40 MiB, all of the cache's cells; 2 ms between sites. */
static void set_up(setup *s, uint64_t link_bytes_per_s)
{
    memset(s, 0, sizeof *s);
    for (uint32_t i = 0; i < LAYERS; i++) {
        s->layers[i] = (rkv_kv_layer_params){.struct_size = sizeof s->layers[i], .n_kv_heads = 8, .head_dim_k = 128,
                                             .resident_cells = RKV_RESIDENT_NONE};
        s->sites[i] = (rkv_site_params){.struct_size = sizeof s->sites[i], .kv_layer = i, .n_q_heads = 8};
    }
    s->params = (rkv_cache_params){.struct_size = sizeof s->params, .kv_layers = s->layers, .sites = s->sites,
                                   .n_kv_layers = LAYERS, .n_sites = LAYERS, .capacity_cells = 20 * 256,
                                   .max_rows = 16, .step_ns = 400000, .host_limit_bytes = 256 * MIB};
    rkvi_device_sim_like_h200(&s->sim);
    s->sim.skip_fill = true;
    s->sim.hides_link = true;
    s->sim.limits.memory_bytes = 1024 * MIB;
    s->sim.h2d.bytes_per_s = link_bytes_per_s;
}

static rkvi_device *device_of(const setup *s)
{
    rkvi_device *sim = NULL, *checked = NULL;
    assert_int_equal(rkvi_device_sim_create(&s->sim, &ops, &sim), RKV_OK);
    if (!s->is_checked)
        return sim;
    assert_int_equal(rkvi_device_check_create(sim, NULL, &checked), RKV_OK);
    return checked;
}

static rkv_cache *create_on(const setup *s, rkvi_device *dev)
{
    rkv_cache *cache = NULL;
    if (rkvi_api_create_on(&s->params, dev, &cache) != RKV_OK)
        fail_msg("refused: %s", rkv_error_message());
    return cache;
}

static rkv_cache_info info_of(const rkv_cache *cache)
{
    rkv_cache_info info = {.struct_size = sizeof info};
    assert_int_equal(rkv_cache_info_get(cache, &info), RKV_OK);
    return info;
}

/* Creates, asks, destroys. */
static rkv_cache_info made(const setup *s)
{
    rkv_cache *cache = create_on(s, device_of(s));
    const rkv_cache_info info = info_of(cache);
    rkv_cache_destroy(cache);
    return info;
}

static void assert_near(uint64_t got, uint64_t want, double part)
{
    if ((double)got < (1 - part) * (double)want || (double)got > (1 + part) * (double)want)
        fail_msg("%llu, not about %llu", (unsigned long long)got, (unsigned long long)want);
}

static void assert_nothing_left(rkvi_device *dev)
{
    rkvi_device_usage u;
    rkvi_device_usage_get(dev, &u);
    assert_int_equal(u.device_bytes + u.registered_bytes, 0);
    assert_int_equal(u.allocations + u.registrations + u.streams + u.events, 0);
}

/* ----------------------------------------------------------------- the rate */

/* The ring and its copies are those of a cache that was given the rate. */
static void test_rate(void **state)
{
    (void)state;
    static const uint64_t rates[] = {400000000000, 55800000000, 25000000000, 6400000000, 200000000};
    for (uint32_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        setup s;
        set_up(&s, rates[i]);
        const rkv_cache_info measured = made(&s);
        s.params.link_bytes_per_s = rates[i];
        const rkv_cache_info given = made(&s);
        assert_int_equal(measured.link_is_measured, 1);
        assert_int_equal(given.link_is_measured, 0);
        assert_int_equal(given.link_bytes_per_s, rates[i]);
        assert_near(measured.link_bytes_per_s, rates[i], i ? 0.02 : 0.1); /* 2.9 us a copy are of the link */
        assert_near(measured.ring_rule_bytes, given.ring_rule_bytes, i ? 0.02 : 0.1);
        assert_near(measured.ring_bytes, given.ring_bytes, i ? 0.02 : 0.1);
        assert_near(measured.copy_bytes, given.copy_bytes, i ? 0.02 : 0.1);
    }
}

/* The wake, and 64 MiB; or, of a slow link, a wake and 60 ms.  Nothing of it is held. */
static void test_cost(void **state)
{
    (void)state;
    setup s;
    for (uint32_t i = 0; i < 2; i++) {
        rkvi_device_usage u;
        set_up(&s, i ? 200000000 : 55800000000);
        s.is_checked = true;
        rkvi_device *dev = device_of(&s), *sim = rkvi_device_check_inner(dev);
        rkv_cache *cache = create_on(&s, dev);
        rkvi_device_usage_get(sim, &u);
        assert_int_equal(u.copied_bytes[RKVI_H2D], i ? 28 * MIB - MIB : 80 * MIB);
        assert_int_equal(u.pageable_copies, 0);
        assert_true(rkvi_device_sim_link_busy_ns(sim, RKVI_H2D) < (i ? 160000000 : 1600000));
        assert_int_equal(u.device_bytes, info_of(cache).device_bytes);
        const uint64_t pinned_bytes = u.registered_bytes;
        assert_int_equal(rkvi_device_check_count(dev), 0);
        rkv_cache_destroy(cache);
        s.params.link_bytes_per_s = 1000000000;
        dev = device_of(&s);
        cache = create_on(&s, dev);
        rkvi_device_usage_get(rkvi_device_check_inner(dev), &u);
        assert_int_equal(u.copied_bytes[RKVI_H2D], 0);
        rkv_cache_destroy(cache);
        assert_true(pinned_bytes > 0);
    }
}

/* A tail of a few tile-layers: no more memory than the cache takes is tried. */
static void test_small_tail(void **state)
{
    (void)state;
    setup s;
    set_up(&s, 10000000000);
    s.params.capacity_cells = 4 * 16;
    s.params.tile_cells = 16;
    s.params.draft_rows = RKV_DRAFT_NONE;
    s.params.max_rows = 1;
    rkv_cache *cache = create_on(&s, device_of(&s));
    rkv_cache_info info = info_of(cache);
    assert_int_equal(info.link_is_measured, 1);
    assert_near(info.link_bytes_per_s, 10000000000, 0.1);
    assert_true(info.device_bytes < 16 * MIB);
    rkv_cache_destroy(cache);
}

/* ------------------------------------------------------------- not measured */

static uint64_t copies_of(const setup *s, rkvi_device *dev, rkv_cache_info *out)
{
    rkvi_device_usage u;
    rkv_cache *cache = create_on(s, dev);
    *out = info_of(cache);
    rkvi_device_usage_get(dev, &u);
    rkv_cache_destroy(cache);
    return u.copies[RKVI_H2D];
}

static void test_not_wanted(void **state)
{
    (void)state;
    setup s;
    rkv_cache_info info;
    rkvi_device *host = NULL;
    set_up(&s, 55800000000);
    s.params.link_bytes_per_s = RKV_LINK_UNKNOWN;
    assert_int_equal(copies_of(&s, device_of(&s), &info), 0);
    assert_int_equal(info.link_bytes_per_s + info.link_is_measured + info.ring_rule_bytes, 0);
    const uint64_t four_copies = info.ring_bytes;
    s.sim.hides_link = false; /* nor taken from the executor */
    assert_int_equal(copies_of(&s, device_of(&s), &info), 0);
    assert_int_equal(info.link_bytes_per_s, 0);
    assert_int_equal(info.ring_bytes, four_copies);

    s.params.link_bytes_per_s = 0; /* the executor's */
    assert_int_equal(copies_of(&s, device_of(&s), &info), 0);
    assert_int_equal(info.link_bytes_per_s, 55800000000);
    assert_int_equal(info.link_is_measured, 0);

    set_up(&s, 55800000000);
    s.params.mode = RKV_MODE_OP_LEVEL;
    assert_int_equal(copies_of(&s, device_of(&s), &info), 0);
    set_up(&s, 55800000000);
    s.layers[0].resident_cells = s.layers[1].resident_cells = RKV_RESIDENT_ALL;
    assert_int_equal(copies_of(&s, device_of(&s), &info), 0);

    set_up(&s, 0);
    const rkvi_device_host_settings settings = {.n_workers = 1};
    assert_int_equal(rkvi_device_host_create(&settings, &ops, &host), RKV_OK);
    assert_int_equal(copies_of(&s, host, &info), 0);
    assert_int_equal(info.link_bytes_per_s + info.link_is_measured, 0);
}

/* An estimate makes no executor. */
static void test_estimate(void **state)
{
    (void)state;
    setup s;
    rkv_estimate e = {.struct_size = sizeof e};
    set_up(&s, 0);
    s.params.device = RKV_DEVICE_HOST;
    s.params.host.link_bytes_per_s = 1000000000;
    assert_int_equal(rkv_cache_estimate(&s.params, &e), RKV_OK);
    assert_true(e.free_zone_cells > 0 || e.ring_rule_bytes > 0);
    s.params.link_bytes_per_s = RKV_LINK_UNKNOWN;
    assert_int_equal(rkv_cache_estimate(&s.params, &e), RKV_OK);
    assert_int_equal(e.free_zone_cells + e.ring_rule_bytes, 0);
    s.params.link_bytes_per_s = RKV_LINK_UNKNOWN - 1;
    assert_int_equal(rkv_cache_estimate(&s.params, &e), RKV_E_OVERFLOW);
}

/* ------------------------------------------------------------ what is refused */

typedef struct grants {
    uint64_t bytes, most_bytes, n, refuse_at;
} grants;

static void *grant(void *user, uint64_t bytes)
{
    grants *g = user;
    if (++g->n == g->refuse_at)
        return NULL;
    g->bytes += bytes;
    g->most_bytes = g->bytes > g->most_bytes ? g->bytes : g->most_bytes;
    return aligned_alloc(256, (bytes + 255) / 256 * 256);
}

static void take_back(void *user, void *ptr, uint64_t bytes)
{
    ((grants *)user)->bytes -= bytes;
    free(ptr);
}

static void test_allocator(void **state)
{
    (void)state;
    setup s;
    rkv_cache_info info;
    grants g = {0};
    set_up(&s, 55800000000);
    s.params.device_limit_bytes = 128 * MIB;
    s.params.device_allocator = (rkv_allocator){grant, take_back, &g};
    rkv_cache *cache = create_on(&s, device_of(&s));
    info = info_of(cache);
    assert_int_equal(info.link_is_measured, 1);
    assert_int_equal(g.bytes, info.device_bytes);
    assert_int_equal(g.most_bytes, info.device_bytes); /* given back before */
    rkv_cache_destroy(cache);
    assert_int_equal(g.bytes, 0);
    g = (grants){.refuse_at = 1};
    assert_true(copies_of(&s, device_of(&s), &info) == 0 && g.n > 1 && g.bytes == 0);
    assert_int_equal(info.link_bytes_per_s + info.link_is_measured + info.ring_rule_bytes, 0);
    assert_string_equal(rkv_error_message(), "");
}

/* Nothing can be pinned, or not by registration. */
static void test_pinning(void **state)
{
    (void)state;
    setup s;
    rkv_cache_info info;
    set_up(&s, 55800000000);
    s.sim.limits.register_max_bytes = 4096;
    (void)copies_of(&s, device_of(&s), &info);
    assert_int_equal(info.link_is_measured, 1);
    s.sim.limits.host_alloc_max_bytes = 8 * MIB; /* room for tables */
    assert_int_equal(copies_of(&s, device_of(&s), &info), 0);
    assert_int_equal(info.link_is_measured, 0);
    assert_int_equal(info.link_bytes_per_s, 0);
}

/* Each call of a kind in turn: a failure leaves nothing, and memory that is refused
 * costs the rate alone. */
static void fail_each(rkvi_device_call call, rkv_status status, uint64_t n_costs_rate)
{
    setup s;
    set_up(&s, 55800000000);
    s.params.capacity_cells = 6 * 256;
    for (uint64_t nth = 1;; nth++) {
        rkvi_device *dev = device_of(&s);
        rkv_cache *cache = NULL;
        rkvi_device_fail_call(dev, call, nth, status);
        const rkv_status st = rkvi_api_create_on(&s.params, dev, &cache);
        const bool hit = rkvi_device_calls(dev, call) >= nth;
        rkvi_device_fail_call(dev, call, 0, RKV_OK);
        if (st != RKV_OK) {
            assert_int_equal(st, status);
            assert_true(nth > n_costs_rate && strlen(rkv_error_message()) > 0);
            assert_nothing_left(dev);
            rkvi_dev_destroy(dev);
            continue;
        }
        if (nth <= n_costs_rate)
            assert_int_equal(info_of(cache).link_is_measured, 0);
        rkv_cache_destroy(cache);
        if (!hit)
            break;
    }
}

static void test_failures(void **state)
{
    (void)state;
    fail_each(RKVI_CALL_INFO, RKV_E_DEVICE_CALL, 0);
    fail_each(RKVI_CALL_MEM_ALLOC, RKV_E_DEVICE_MEMORY, 1);
    fail_each(RKVI_CALL_HOST_REGISTER, RKV_E_DEVICE_CALL, 0);
    fail_each(RKVI_CALL_STREAM_CREATE, RKV_E_SYSTEM, 0);
    fail_each(RKVI_CALL_STREAM_SYNC, RKV_E_DEVICE_CALL, 0);
    fail_each(RKVI_CALL_COPY, RKV_E_DEVICE_CALL, 0);
}

/* A copy that faults ends the device. */
static void test_fault(void **state)
{
    (void)state;
    for (uint64_t nth = 1; nth <= 3; nth++) {
        setup s;
        rkv_cache *cache = NULL;
        set_up(&s, 55800000000);
        rkvi_device *dev = device_of(&s);
        rkvi_device_fault_op(dev, nth);
        assert_int_equal(rkvi_api_create_on(&s.params, dev, &cache), RKV_E_POISONED);
        assert_null(cache);
        assert_nothing_left(dev);
        rkvi_dev_destroy(dev);
    }
}

/* ------------------------------------------------------------------ the limit */

/* From the least memory on, whatever the link: what is granted holds, and what fits
 * with an unknown link does with a measured one. */
static void test_limit(void **state)
{
    (void)state;
    static const uint64_t rates[] = {900000000000, 55800000000, 2000000000};
    setup s;
    rkv_estimate e = {.struct_size = sizeof e};
    set_up(&s, 0);
    s.params.step_ns = 20000000;
    s.params.device = RKV_DEVICE_HOST;
    s.params.device_limit_bytes = 1024 * MIB;
    assert_int_equal(rkv_cache_estimate(&s.params, &e), RKV_OK);
    const uint64_t least = e.smallest_device_bytes;
    for (uint32_t i = 0; i < sizeof rates / sizeof *rates; i++)
        for (uint32_t windows = 0; windows < 2; windows++)
            for (uint64_t limit = least; limit < least + 80 * MIB;
                 limit += limit < least + 4 * MIB ? MIB / 2 : 19 * MIB) {
                grants g = {0};
                s.sim.h2d.bytes_per_s = rates[i];
                s.layers[0].resident_cells = s.layers[1].resident_cells =
                    windows ? RKV_RESIDENT_AUTO : RKV_RESIDENT_NONE;
                s.params.device_limit_bytes = limit;
                s.params.device_allocator = (rkv_allocator){grant, take_back, &g};
                assert_int_equal(rkv_cache_estimate(&s.params, &e), RKV_OK);
                rkvi_device *dev = device_of(&s);
                rkv_cache *cache = NULL;
                const rkv_status st = rkvi_api_create_on(&s.params, dev, &cache);
                assert_int_equal(st == RKV_OK, e.fits);
                assert_true(g.most_bytes <= limit);
                if (st == RKV_OK)
                    rkv_cache_destroy(cache);
                else
                    rkvi_dev_destroy(dev);
                assert_int_equal(g.bytes, 0);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rate),      cmocka_unit_test(test_cost),      cmocka_unit_test(test_small_tail),
        cmocka_unit_test(test_not_wanted), cmocka_unit_test(test_estimate), cmocka_unit_test(test_allocator),
        cmocka_unit_test(test_pinning),   cmocka_unit_test(test_failures),  cmocka_unit_test(test_fault),
        cmocka_unit_test(test_limit),
    };
    rkvi_ops_best(&ops, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
