/* SPDX-License-Identifier: MIT
 *
 * rkv_cache_estimate on the host executor: each line of the answer, what does
 * not fit and what would, the free zone, and that a cache takes what was said.
 */
#include "rollkv/rollkv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define N_LAYERS 4
#define MIB ((uint64_t)1 << 20)
#define TILE_LAYER ((uint64_t)256 * 2 * 2 * 64 * 2) /* T x heads x (K, V) x dim x f16: 128 KiB */

typedef struct setup {
    rkv_kv_layer_params layers[N_LAYERS];
    rkv_site_params sites[N_LAYERS];
    rkv_cache_params params;
} setup;

static void set_up(setup *s)
{
    memset(s, 0, sizeof *s);
    for (uint32_t i = 0; i < N_LAYERS; i++) {
        s->layers[i] = (rkv_kv_layer_params){
            .struct_size = sizeof s->layers[i], .n_kv_heads = 2, .head_dim_k = 64};
        s->sites[i] =
            (rkv_site_params){.struct_size = sizeof s->sites[i], .kv_layer = i, .n_q_heads = 4};
    }
    s->params = (rkv_cache_params){.struct_size = sizeof s->params,
                                   .device = RKV_DEVICE_HOST,
                                   .kv_layers = s->layers,
                                   .sites = s->sites,
                                   .n_kv_layers = N_LAYERS,
                                   .n_sites = N_LAYERS,
                                   .capacity_cells = 65536};
}

static void set_resident(setup *s, uint64_t cells)
{
    for (uint32_t i = 0; i < N_LAYERS; i++)
        s->layers[i].resident_cells = cells;
}

static rkv_estimate estimate(const setup *s)
{
    rkv_estimate e = {.struct_size = sizeof e};
    if (rkv_cache_estimate(&s->params, &e) != RKV_OK)
        fail_msg("refused: %s", rkv_error_message());
    assert_int_equal(e.device_bytes, e.device_window_bytes + e.device_ring_bytes +
                                         e.device_active_bytes + e.device_transit_bytes +
                                         e.device_workspace_bytes);
    assert_int_equal(e.fits, e.advice[0] == 0);
    return e;
}

static void test_all_resident(void **state)
{
    (void)state;
    setup s;
    set_up(&s);
    const rkv_estimate e = estimate(&s);
    assert_int_equal(e.fits, 1);
    assert_int_equal(e.capacity_cells, 65536);
    assert_int_equal(e.device_window_bytes, N_LAYERS * 256 * TILE_LAYER);
    assert_int_equal(e.device_ring_bytes, 0);
    assert_int_equal(e.device_active_bytes, 0);
    assert_int_equal(e.device_transit_bytes, 0);
    assert_int_equal(e.host_tail_bytes, 0);
    assert_true(e.device_workspace_bytes > e.host_mirror_bytes);
    assert_int_equal(e.largest_resident_cells, 65536);
    assert_true(e.largest_capacity_cells >= 65536);
    assert_int_equal(e.free_zone_cells, 0); /* no hints */
    assert_int_equal(e.ring_rule_bytes, 0);
    const uint64_t ram = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    assert_int_equal(e.device_limit_bytes, ram / 10 * 9);
    assert_int_equal(e.host_limit_bytes, ram / 10 * 9);
}

static void test_lines(void **state)
{
    (void)state;
    setup s;
    set_up(&s);
    set_resident(&s, 8192);
    s.params.ring_bytes = 4 * MIB;
    const rkv_estimate e = estimate(&s);
    assert_int_equal(e.fits, 1);
    assert_int_equal(e.device_window_bytes, N_LAYERS * 32 * TILE_LAYER);
    assert_int_equal(e.device_active_bytes, N_LAYERS * 5 * TILE_LAYER);
    assert_int_equal(e.device_ring_bytes, 4 * MIB);
    assert_int_equal(e.device_transit_bytes, 2 * 2 * TILE_LAYER);
    assert_int_equal(e.host_tail_bytes, N_LAYERS * (256 - 32 + 4) * TILE_LAYER);
}

/* Limits that promise what isn't there, and a ring of more slots than have numbers. */
static void test_absurd(void **state)
{
    (void)state;
    setup s;
    rkv_cache *cache = NULL;
    rkv_estimate e = {.struct_size = sizeof e};
    set_up(&s);
    set_resident(&s, RKV_RESIDENT_ALL);
    s.params.host.memory_bytes = 16 * MIB;
    s.params.device_limit_bytes = (uint64_t)1 << 61;
    e = estimate(&s);
    assert_int_equal(e.fits, 0);
    assert_int_equal(e.device_limit_bytes, 16 * MIB);
    assert_non_null(strstr(e.advice, "free device memory 16777216 does not hold"));
    assert_true(strlen(e.advice) < sizeof e.advice - 1);
    assert_int_equal(rkv_cache_create(&s.params, &cache), RKV_E_DEVICE_LIMIT);
    s.params.host.memory_bytes = 0;
    set_resident(&s, RKV_RESIDENT_NONE);
    s.params.ring_bytes = (uint64_t)1 << 50;
    assert_int_equal(rkv_cache_estimate(&s.params, &e), RKV_E_OVERFLOW);
    assert_int_equal(rkv_cache_create(&s.params, &cache), RKV_E_OVERFLOW);
    assert_null(cache);
}

/* What the advice says does fit. */
static void test_device_limit(void **state)
{
    (void)state;
    setup s;
    set_up(&s);
    set_resident(&s, RKV_RESIDENT_ALL);
    s.params.ring_bytes = 4 * MIB;
    s.params.device_limit_bytes = 100 * MIB;
    const rkv_estimate e = estimate(&s);
    assert_int_equal(e.fits, 0);
    assert_non_null(strstr(e.advice, "device limit 104857600 does not hold"));
    assert_true(strlen(e.advice) < sizeof e.advice - 1); /* not cut */
    printf("%s\n", e.advice);
    assert_true(e.largest_resident_cells > 0 && e.largest_capacity_cells > 0);

    set_resident(&s, e.largest_resident_cells);
    assert_int_equal(estimate(&s).fits, 1);
    set_resident(&s, e.largest_resident_cells + 1);
    assert_int_equal(estimate(&s).fits, 0);
    set_resident(&s, RKV_RESIDENT_ALL);
    s.params.capacity_cells = e.largest_capacity_cells;
    assert_int_equal(estimate(&s).fits, 1);
    s.params.capacity_cells = e.largest_capacity_cells + 1;
    assert_int_equal(estimate(&s).fits, 0);

    s.params.capacity_cells = 65536;
    set_resident(&s, RKV_RESIDENT_NONE);
    s.params.ring_bytes = TILE_LAYER;
    s.params.device_limit_bytes = e.smallest_device_bytes;
    assert_int_equal(estimate(&s).fits, 1);
    s.params.device_limit_bytes = e.smallest_device_bytes - 1;
    assert_int_equal(estimate(&s).fits, 0);
    /* nothing but a smaller capacity helps, and it does */
    const rkv_estimate least = estimate(&s);
    assert_int_equal(least.largest_resident_cells, 0);
    s.params.capacity_cells = least.largest_capacity_cells;
    assert_int_equal(estimate(&s).fits, 1);
}

/* 30 layers with heads of 512, of which 25 slide and stay whole. */
static rkv_estimate mixed(uint64_t resident, uint64_t capacity, uint64_t limit)
{
    rkv_kv_layer_params l[30];
    rkv_site_params s[30];
    for (uint32_t i = 0; i < 30; i++) {
        l[i] = (rkv_kv_layer_params){.struct_size = sizeof l[i], .n_kv_heads = 2, .head_dim_k = 512,
                                     .resident_cells = i % 6 == 5 ? resident : RKV_RESIDENT_ALL};
        s[i] = (rkv_site_params){.struct_size = sizeof s[i], .kv_layer = i, .n_q_heads = 8};
        if (i % 6 != 5) {
            s[i].mask = RKV_MASK_SLIDING;
            s[i].mask_width = 1024;
        }
    }
    const rkv_cache_params p = {.struct_size = sizeof p, .device = RKV_DEVICE_HOST, .kv_layers = l, .sites = s,
                                .n_kv_layers = 30, .n_sites = 30, .capacity_cells = capacity, .max_rows = 1,
                                .step_ns = 14000000, .link_bytes_per_s = 25000000000, .device_limit_bytes = limit,
                                .host.memory_bytes = (uint64_t)200 << 30, .host_limit_bytes = (uint64_t)500 << 30};
    rkv_estimate e = {.struct_size = sizeof e};
    if (rkv_cache_estimate(&p, &e) != RKV_OK)
        fail_msg("refused: %s", rkv_error_message());
    return e;
}

/* The advice names no choice that does not fit, and none that would be taken otherwise. */
static void test_choices(void **state)
{
    (void)state;
    rkv_estimate e = mixed(4096, 100000, 100000000);
    assert_int_equal(e.fits, 0);
    assert_int_equal(e.largest_resident_cells, 0);
    assert_null(strstr(e.advice, "resident"));
    assert_null(strstr(e.advice, "RESIDENT"));
    assert_non_null(strstr(e.advice, "fits: capacity 512; least"));
    assert_int_equal(mixed(4096, 512, 100000000).fits, 1);
    assert_int_equal(mixed(RKV_RESIDENT_NONE, 100000, 100000000).fits, 0);
    /* no window fits where more than none does not */
    const uint64_t none = mixed(RKV_RESIDENT_NONE, 100000, 0).device_bytes;
    e = mixed(65536, 100000, none);
    assert_int_equal(e.fits, 0);
    assert_int_equal(e.largest_resident_cells, 0);
    assert_non_null(strstr(e.advice, "fits: RKV_RESIDENT_NONE, or capacity "));
    assert_int_equal(mixed(RKV_RESIDENT_NONE, 100000, none).fits, 1);
    /* NONE is no budget that must stay: more fits, or not even that does */
    assert_int_equal(mixed(RKV_RESIDENT_NONE, 100000, 2 * none).largest_resident_cells,
                     mixed(65536, 100000, 2 * none).largest_resident_cells);
    e = mixed(RKV_RESIDENT_NONE, 100000, none / 2);
    assert_int_equal(e.fits, 0);
    assert_null(strstr(e.advice, "RESIDENT"));
    e = mixed(65536, 100000, 2 * none);
    assert_true(e.largest_resident_cells > 0);
    assert_non_null(strstr(e.advice, " resident cells a layer, or capacity "));
    assert_int_equal(mixed(e.largest_resident_cells, 100000, 2 * none).fits, 1);
}

/* The smallest is one that can be had, and never above what was asked for. */
static void test_smallest(void **state)
{
    (void)state;
    for (uint64_t capacity = 256; capacity <= 4096; capacity += 256) {
        const rkv_estimate e = mixed(4096, capacity, 0), none = mixed(RKV_RESIDENT_NONE, capacity, 0);
        assert_true(e.smallest_device_bytes <= e.device_bytes);
        assert_true(none.smallest_device_bytes <= none.device_bytes);
        assert_true(e.smallest_device_bytes > 0);
    }
    const rkv_estimate e = mixed(4096, 512, 0);
    assert_int_equal(e.smallest_device_bytes, e.device_bytes);
    assert_int_equal(mixed(4096, 512, e.smallest_device_bytes).fits, 1);
    assert_int_equal(mixed(4096, 512, e.smallest_device_bytes - 1).fits, 0);
}

/* Windows that were asked for come before a ring that nobody asked for. */
static void test_ring_gives_way(void **state)
{
    (void)state;
    setup s;
    set_up(&s);
    set_resident(&s, 8192);
    s.params.device_limit_bytes = (uint64_t)1 << 40;
    const rkv_estimate roomy = estimate(&s);
    s.params.device_limit_bytes = roomy.device_bytes - roomy.device_ring_bytes / 2;
    const rkv_estimate tight = estimate(&s);
    assert_int_equal(tight.fits, 1);
    assert_int_equal(tight.device_window_bytes, roomy.device_window_bytes);
    assert_true(tight.device_ring_bytes < roomy.device_ring_bytes);
    assert_true(tight.device_ring_bytes >= 2 * TILE_LAYER);
    s.params.ring_bytes = roomy.device_ring_bytes; /* asked for: stays, and does not fit */
    assert_int_equal(estimate(&s).fits, 0);
}

static void test_host_limit(void **state)
{
    (void)state;
    setup s;
    set_up(&s);
    set_resident(&s, RKV_RESIDENT_NONE);
    s.params.host_limit_bytes = 64 * MIB;
    const rkv_estimate e = estimate(&s);
    assert_int_equal(e.fits, 0);
    assert_non_null(strstr(e.advice, "host limit 67108864"));
    s.params.capacity_cells = e.largest_capacity_cells;
    const rkv_estimate would = estimate(&s);
    assert_int_equal(would.fits, 1);
    assert_true(would.host_tail_bytes <= 64 * MIB);
    assert_true(would.host_tail_bytes + N_LAYERS * TILE_LAYER > 60 * MIB);
}

static void test_ring_too_small(void **state)
{
    (void)state;
    setup s;
    set_up(&s);
    set_resident(&s, RKV_RESIDENT_NONE);
    s.params.ring_bytes = 1000;
    const rkv_estimate e = estimate(&s);
    assert_int_equal(e.fits, 0);
    assert_non_null(strstr(e.advice, "131072"));
    s.params.ring_bytes = 131072;
    assert_int_equal(estimate(&s).fits, 1);
}

/* 2^32 - 1 cells are a legal number that no machine here holds. */
static void test_absurd_capacity(void **state)
{
    (void)state;
    setup s;
    set_up(&s);
    for (uint32_t i = 0; i < N_LAYERS; i++)
        s.layers[i].n_kv_heads = s.sites[i].n_q_heads = 64;
    s.params.capacity_cells = UINT32_MAX;
    const rkv_estimate e = estimate(&s);
    assert_int_equal(e.fits, 0);
    assert_true(e.device_window_bytes > (uint64_t)1 << 45);
    rkv_estimate untouched = {.struct_size = sizeof untouched, .fits = 42};
    s.params.capacity_cells = (uint64_t)-1;
    assert_int_equal(rkv_cache_estimate(&s.params, &untouched), RKV_E_OVERFLOW);
    assert_int_equal(untouched.fits, 42);
    assert_non_null(strstr(rkv_error_message(), "capacity_cells"));
}

/* At 1 GB/s, 4 KV layers of 128 KiB a tile: 10 ms carry 19 tiles. */
static void test_free_zone(void **state)
{
    (void)state;
    setup s;
    set_up(&s);
    set_resident(&s, RKV_RESIDENT_NONE);
    s.params.step_ns = 10000000;
    s.params.link_bytes_per_s = 1000000000;
    rkv_estimate e = estimate(&s);
    assert_int_equal(e.free_zone_cells, 19 * 256);
    assert_int_equal(e.ring_rule_bytes, 2500000 + 2 * MIB);
    set_resident(&s, 2560);
    assert_int_equal(estimate(&s).free_zone_cells, (19 + 10) * 256);
    set_resident(&s, RKV_RESIDENT_ALL);
    assert_int_equal(estimate(&s).free_zone_cells, 65536);
    /* the executor's own link stands in for the hint */
    set_resident(&s, RKV_RESIDENT_NONE);
    s.params.link_bytes_per_s = 0;
    s.params.host.link_bytes_per_s = 1000000000;
    assert_int_equal(estimate(&s).free_zone_cells, 19 * 256);
    /* the gaps' sum stands in for the step's time */
    s.params.step_ns = 0;
    for (uint32_t i = 0; i < N_LAYERS; i++)
        s.sites[i].gap_ns = 2500000;
    assert_int_equal(estimate(&s).free_zone_cells, 19 * 256);
    /* what a sliding mask hides is not streamed */
    for (uint32_t i = 0; i < N_LAYERS; i++) {
        s.sites[i].mask = RKV_MASK_SLIDING;
        s.sites[i].mask_width = 1024;
    }
    e = estimate(&s);
    assert_int_equal(e.free_zone_cells, 65536);
}

static void test_arguments(void **state)
{
    (void)state;
    setup s;
    rkv_estimate e = {.struct_size = sizeof e};
    set_up(&s);
    assert_int_equal(rkv_cache_estimate(NULL, &e), RKV_E_ARGUMENT);
    assert_non_null(strstr(rkv_error_message(), "rkv_cache_params is NULL"));
    assert_int_equal(rkv_cache_estimate(&s.params, NULL), RKV_E_ARGUMENT);
    assert_non_null(strstr(rkv_error_message(), "rkv_estimate"));
    e.struct_size = 0;
    assert_int_equal(rkv_cache_estimate(&s.params, &e), RKV_E_ARGUMENT);
    e.struct_size = offsetof(rkv_estimate, device_ring_bytes); /* an older caller's */
    e.device_ring_bytes = 99;
    assert_int_equal(rkv_cache_estimate(&s.params, &e), RKV_OK);
    assert_int_equal(e.device_window_bytes, N_LAYERS * 256 * TILE_LAYER);
    assert_int_equal(e.device_ring_bytes, 99);
    e.struct_size = sizeof e;
    static const int32_t none[] = {-5, -2, 1000, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        s.params.device = none[i];
        assert_int_equal(rkv_cache_estimate(&s.params, &e), RKV_E_NO_DEVICE);
        assert_non_null(strstr(rkv_error_message(), "RKV_DEVICE_HOST"));
    }
}

static void test_library(void **state)
{
    (void)state;
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", RKV_VERSION_MAJOR, RKV_VERSION_MINOR,
             RKV_VERSION_PATCH);
    assert_int_equal(rkv_version(), RKV_VERSION);
    assert_string_equal(rkv_version_string(), version);
    assert_non_null(strstr(rkv_build_info(), "executors: host"));
    assert_string_equal(rkv_status_name(RKV_E_RING), "RKV_E_RING");
    assert_true(rkv_device_count() < 1000);
    rkv_device_info info = {.struct_size = sizeof info};
    assert_int_equal(rkv_device_info_get(RKV_DEVICE_HOST, &info), RKV_OK);
    assert_string_equal(info.name, "host");
    assert_true(info.memory_bytes >= info.memory_free_bytes && info.n_workers >= 1);
    assert_int_equal(rkv_device_info_get(1000, &info), RKV_E_NO_DEVICE);
}

static void test_settings(void **state)
{
    (void)state;
    rkv_setting setting = {.struct_size = sizeof setting};
    uint32_t n = 0;
    setenv("ROLLKV_THREADS", "3", 1);
    unsetenv("ROLLKV_KERNELS");
    for (; rkv_setting_at(n, &setting) == RKV_OK; n++) {
        assert_int_equal(strncmp(setting.name, "ROLLKV_", 7), 0);
        assert_true(strlen(setting.help) > 20);
        if (strcmp(setting.name, "ROLLKV_THREADS") == 0)
            assert_string_equal(setting.value, "3");
        else
            assert_null(setting.value);
    }
    assert_int_equal(n, 3);
    assert_int_equal(rkv_setting_at(n, &setting), RKV_E_ARGUMENT);
    assert_int_equal(rkv_setting_at(0, NULL), RKV_E_ARGUMENT);
    unsetenv("ROLLKV_THREADS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_resident),   cmocka_unit_test(test_lines),
        cmocka_unit_test(test_absurd),
        cmocka_unit_test(test_device_limit),   cmocka_unit_test(test_choices),
        cmocka_unit_test(test_smallest),
        cmocka_unit_test(test_ring_gives_way), cmocka_unit_test(test_host_limit),
        cmocka_unit_test(test_ring_too_small), cmocka_unit_test(test_absurd_capacity),
        cmocka_unit_test(test_free_zone),      cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_library),        cmocka_unit_test(test_settings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
