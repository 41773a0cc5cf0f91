/* SPDX-License-Identifier: MIT
 *
 * Which share of the tail the CPU has: by rates or as given, measured, fixed
 * anew and read back; and what it costs where there is none.
 */
#include "step_near.h"

#include "device_check.h"
#include "step_types.h"

#include <setjmp.h>
#include <stdarg.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define T 16u
#define NEAR 2e-6f
#define EVER_NS ((uint64_t)1000000000000) /* what threads do in time does not depend on the machine's load */
#define MIB ((uint64_t)1 << 20)
#define KIB ((uint64_t)1 << 10)

static uint64_t seed;

/* -------------------------------------------------------------------- the cache */

/* Two KV layers, three sites; a short step beside a slow link. */
static fx_model model(fx_executor executor, uint32_t threads, uint32_t share)
{
    fx_model m = fx_model_make(T, 0, 4096);
    const uint32_t first = fx_add_layer(&m, 2, 64, 64, RKV_RESIDENT_NONE);
    fx_add_unequal(&m, RKV_RESIDENT_NONE);
    fx_add_site(&m, first, 4);
    m.params.n_sequences = 3;
    m.params.ring_bytes = 64 * KIB;
    m.params.copy_bytes = 16 * KIB;
    m.params.draft_rows = 4;
    m.params.cpu_threads = threads;
    m.params.cpu_share = share;
    m.params.cpu_wait_ns = threads ? EVER_NS : 0;
    m.executor = executor;
    m.seed = seed;
    return m;
}

/* Rates by which `free_bytes` of a step's tail are hidden, and half of the rest is
 * the CPU's. */
static void give_rates(fx_model *m, uint64_t free_bytes)
{
    m->params.step_ns = 1000000;
    m->params.cpu_handover_ns = 1;
    m->params.link_bytes_per_s = m->params.cpu_beside_bytes_per_s = m->params.cpu_bytes_per_s = free_bytes * 1000;
}

static void decode(fx *w, uint32_t n_seqs, uint64_t tag)
{
    fx_entry e[3];
    for (uint32_t i = 0; i < n_seqs; i++)
        e[i] = (fx_entry){.seq = i, .rows = 1, .tag = tag + i * 1000000u, .regime = RKV_REGIME_DECODE};
    fx_step(w, e, n_seqs);
}

static void text(fx *w, uint32_t seq, uint32_t n_tiles)
{
    fx_append(w, seq, n_tiles * T + 5, RKV_REGIME_PREFILL, 1000 + seq * 100000);
    decode(w, 1, 2000);
    decode(w, 1, 2001);
}

static rkv_cache_info info_of(const fx *w)
{
    rkv_cache_info info = {.struct_size = sizeof info};
    fx_ok(rkv_cache_info_get(w->cache, &info), "info");
    return info;
}

static uint32_t share_of(const fx *w, uint32_t site)
{
    rkv_site_info info = {.struct_size = sizeof info};
    fx_ok(rkv_site_info_get(w->cache, site, &info), "site info");
    return info.cpu_share;
}

/* Nothing while the tail is hidden; then the part of what lies beyond. */
static void test_hidden(void **state)
{
    (void)state;
    fx w;
    fx_model m = model(FX_HOST, 2, 0);
    give_rates(&m, 2 * MIB);
    fx_open(&w, &m);
    const rkv_cache_info info = info_of(&w);
    assert_int_equal(info.cpu_is_chosen, 1);
    assert_int_equal(info.cpu_share, 8);
    assert_int_equal(info.cpu_free_bytes, 2 * MIB);
    text(&w, 0, 40);
    while (fx_stats(&w).last_step_list_bytes < 2 * MIB && w.n_cells[0] < 1900) {
        assert_int_equal(fx_stats(&w).cpu_bytes, 0);
        fx_append(&w, 0, 4 * T, RKV_REGIME_PREFILL, 5000 + w.n_cells[0]);
        decode(&w, 1, 9000 + w.n_cells[0]);
    }
    fx_append(&w, 0, 800, RKV_REGIME_PREFILL, 7000);
    decode(&w, 1, 9000);
    decode(&w, 1, 9001);
    const rkv_cache_stats before = fx_stats(&w);
    decode(&w, 1, 9002);
    const rkv_cache_stats after = fx_stats(&w);
    const uint64_t cpu = after.cpu_bytes - before.cpu_bytes, all = cpu + after.last_step_list_bytes;
    assert_true(all > 2 * MIB && cpu > 0);
    const uint64_t wanted = (all - 2 * MIB) / 2, off = w.cache->cfg.cpu_least_bytes / 2 + 64 * KIB;
    if (cpu > wanted + off || cpu + off < wanted)
        fail_msg("%llu of %llu bytes, not %llu", (unsigned long long)cpu, (unsigned long long)all,
                 (unsigned long long)wanted);
    fx_close(&w);
}

/* Rates as large as they may be: all of any tail is hidden. */
static void test_largest_rates(void **state)
{
    (void)state;
    fx w;
    const fx_model m = model(FX_HOST, 2, 8);
    const uint64_t most = RKVI_SIZE_MAX;
    const rkv_cpu_share_params p = {.struct_size = sizeof p, .step_ns = most, .link_bytes_per_s = most,
                                    .beside_bytes_per_s = most, .cpu_bytes_per_s = most, .handover_ns = most};
    fx_open(&w, &m);
    fx_ok(rkv_cache_set_cpu_share(w.cache, &p), "set");
    assert_int_equal(info_of(&w).cpu_free_bytes, most);
    assert_int_equal(info_of(&w).cpu_share, 8);
    text(&w, 0, 40);
    decode(&w, 1, 9000);
    assert_int_equal(fx_stats(&w).cpu_bytes, 0);
    fx_close(&w);
}

/* What was chosen, read back and given to another cache, repeats its bits. */
static void test_repeat(void **state)
{
    (void)state;
    fx w, again, plain;
    fx_model m = model(FX_HOST, 2, 0), given = model(FX_HOST, 3, 0), without = model(FX_HOST, 0, 0);
    give_rates(&m, MIB);
    m.params.cpu_bytes_per_s = m.params.cpu_bytes_per_s / 15 * 17; /* 8.5 sixteenths */
    fx_open(&w, &m);
    fx_open(&again, &given);
    fx_open(&plain, &without);
    const rkv_cache_info info = info_of(&w);
    uint32_t shares[3];
    for (uint32_t i = 0; i < 3; i++)
        shares[i] = share_of(&w, i);
    assert_int_equal(shares[0] + shares[2], 17); /* sites alike */
    const rkv_cpu_share_params p = {.struct_size = sizeof p, .site_shares = shares, .free_bytes = info.cpu_free_bytes};
    assert_int_equal(info_of(&again).cpu_share, 0); /* no time of a step is known there */
    fx_ok(rkv_cache_set_cpu_share(again.cache, &p), "set");
    assert_int_equal(info_of(&again).cpu_share, info.cpu_share);
    assert_int_equal(info_of(&again).cpu_free_bytes, info.cpu_free_bytes);
    assert_int_equal(info_of(&again).cpu_is_chosen, 0);
    fx *const all[] = {&w, &again, &plain};
    for (uint32_t k = 0; k < 3; k++) {
        text(all[k], 0, 90);
        for (uint32_t i = 0; i < 6; i++)
            decode(all[k], 1, 9000 + i);
        fx_ok(fx_sync(all[k]), "sync");
    }
    assert_true(fx_stats(&w).cpu_bytes > 0);
    assert_int_equal(fx_stats(&w).cpu_bytes, fx_stats(&again).cpu_bytes);
    assert_true(fx_same(&w, &again));
    assert_true(fx_near(&w, &plain, NEAR));
    for (uint32_t k = 0; k < 3; k++)
        fx_close(all[k]);
}

static void expect(rkv_status got, rkv_status wanted, const char *text_part)
{
    assert_int_equal(got, wanted);
    if (!strstr(rkv_error_message(), text_part))
        fail_msg("'%s' is not in: %s", text_part, rkv_error_message());
}

static void test_refused(void **state)
{
    (void)state;
    fx w, none;
    const fx_model m = model(FX_HOST, 2, 5), without = model(FX_HOST, 0, 0);
    uint32_t shares[3] = {1, 2, 16};
    fx_open(&w, &m);
    fx_open(&none, &without);
    expect(rkv_cache_set_cpu_share(none.cache, NULL), RKV_E_UNSUPPORTED, "without cpu_threads");
    rkv_cpu_share_params p = {.struct_size = sizeof p, .share = 16};
    expect(rkv_cache_set_cpu_share(w.cache, &p), RKV_E_ARGUMENT, "share is 16");
    p = (rkv_cpu_share_params){.struct_size = sizeof p, .site_shares = shares};
    expect(rkv_cache_set_cpu_share(w.cache, &p), RKV_E_ARGUMENT, "site_shares[2] is 16");
    shares[2] = 3;
    p.share = 1;
    expect(rkv_cache_set_cpu_share(w.cache, &p), RKV_E_ARGUMENT, "exclude each other");
    p = (rkv_cpu_share_params){.struct_size = sizeof p, .share = 1, .step_ns = 1};
    expect(rkv_cache_set_cpu_share(w.cache, &p), RKV_E_ARGUMENT, "exclude each other");
    p = (rkv_cpu_share_params){.struct_size = sizeof p, .free_bytes = 1};
    expect(rkv_cache_set_cpu_share(w.cache, &p), RKV_E_ARGUMENT, "no share");
    p = (rkv_cpu_share_params){.struct_size = sizeof p, .step_ns = UINT64_MAX};
    expect(rkv_cache_set_cpu_share(w.cache, &p), RKV_E_OVERFLOW, "step_ns");
    expect(rkv_cache_set_cpu_share(w.cache, NULL), RKV_E_STATE, "give step_ns");
    assert_int_equal(info_of(&w).cpu_share, 5); /* as before all of them */
    const fx_entry e = {.seq = 0, .rows = 1, .tag = 7000, .regime = RKV_REGIME_DECODE};
    fx_ok(fx_begin(&w, &e, 1), "begin");
    p = (rkv_cpu_share_params){.struct_size = sizeof p, .share = 1};
    assert_int_equal(rkv_cache_set_cpu_share(w.cache, &p), RKV_E_STATE);
    fx_ok(fx_abort(&w), "abort");
    fx_close(&w);
    fx_close(&none);
}

/* From one step to the next: other shares, none, and some again. */
static void changing(fx_executor executor, uint32_t flags)
{
    static const uint32_t shares[] = {3, RKV_CPU_SHARE_NONE, 10, 15, 1};
    fx w, plain;
    fx_model m = model(executor, 2, 8), without = model(FX_HOST, 0, 0);
    m.params.flags |= flags;
    fx_open(&w, &m);
    fx_open(&plain, &without);
    text(&w, 0, 40);
    text(&plain, 0, 40);
    for (uint32_t i = 0; i < 5; i++) {
        const rkv_cpu_share_params p = {.struct_size = sizeof p, .share = shares[i]};
        fx_ok(rkv_cache_set_cpu_share(w.cache, &p), "set");
        assert_int_equal(info_of(&w).cpu_share, shares[i] == RKV_CPU_SHARE_NONE ? 0 : shares[i]);
        const uint64_t before = fx_stats(&w).cpu_bytes;
        decode(&w, 1, 9000 + i);
        decode(&plain, 1, 9000 + i);
        assert_true((fx_stats(&w).cpu_bytes > before) == (shares[i] != RKV_CPU_SHARE_NONE));
        fx_ok(fx_sync(&w), "sync");
        fx_ok(fx_sync(&plain), "sync");
        assert_true(fx_near(&w, &plain, NEAR));
    }
    fx_close(&w);
    fx_close(&plain);
}

static void test_changing(void **state)
{
    (void)state;
    changing(FX_HOST, 0);
    changing(FX_CHECK, 0);
    changing(FX_SIM, 0);
    changing(FX_CHECK, RKV_FLAG_GRAPHS);
}

/* -------------------------------------------------------------------- measuring */

static void measured(fx_executor executor, uint32_t flags)
{
    fx w, plain;
    fx_model m = model(executor, 2, 0);
    const fx_model without = model(FX_HOST, 0, 0);
    m.params.step_ns = 1000;
    m.params.flags |= flags;
    fx_open(&w, &m);
    fx_open(&plain, &without);
    rkv_cache_info info = info_of(&w);
    assert_int_equal(info.cpu_is_chosen, 1);
    assert_int_equal(info.cpu_step_ns, 1000);
    assert_true(info.cpu_bytes_per_s > 0 && info.cpu_beside_bytes_per_s > 0 && info.cpu_link_bytes_per_s > 0);
    assert_true(info.cpu_share < 16);
    text(&w, 0, 40);
    text(&plain, 0, 40);
    for (uint32_t i = 0; i < 2; i++) { /* what lies in the ring is lost, no more */
        decode(&w, 2, 9000 + 10 * i);
        decode(&plain, 2, 9000 + 10 * i);
        const rkv_cpu_share_params p = {.struct_size = sizeof p, .step_ns = 2000 + i};
        fx_ok(rkv_cache_set_cpu_share(w.cache, &p), "set");
        assert_int_equal(info_of(&w).cpu_step_ns, 2000 + i);
    }
    decode(&w, 2, 9900);
    decode(&plain, 2, 9900);
    fx_ok(fx_sync(&w), "sync");
    fx_ok(fx_sync(&plain), "sync");
    assert_true(fx_near(&w, &plain, NEAR));
    fx_close(&w);
    fx_close(&plain);
}

static void test_measured(void **state)
{
    (void)state;
    measured(FX_HOST, 0);
    measured(FX_CHECK, RKV_FLAG_GRAPHS);
    measured(FX_SIM, 0);
}

/* Whatever call to the executor fails: the share is as before, and so are results. */
static void test_faults(void **state)
{
    (void)state;
    fx w, plain;
    const fx_model m = model(FX_HOST, 2, 8), without = model(FX_HOST, 0, 0);
    const rkv_cpu_share_params p = {.struct_size = sizeof p, .step_ns = 2000};
    rkv_status s = RKV_E_DEVICE_CALL;
    uint32_t n_failed = 0;
    fx_open(&w, &m);
    fx_open(&plain, &without);
    text(&w, 0, 40);
    text(&plain, 0, 40);
    for (uint32_t nth = 1; s != RKV_OK; nth = nth < 6 ? nth + 1 : 2 * nth) {
        rkvi_device_fail_call(w.core, RKVI_CALL_ANY, nth, RKV_E_DEVICE_CALL);
        s = rkv_cache_set_cpu_share(w.cache, &p);
        rkvi_device_fail_call(w.core, RKVI_CALL_ANY, 0, RKV_OK);
        n_failed += s != RKV_OK;
        assert_true(s == RKV_OK || info_of(&w).cpu_share == 8);
        assert_true(s == RKV_OK || !info_of(&w).cpu_is_chosen);
        decode(&w, 1, 9000 + nth);
        decode(&plain, 1, 9000 + nth);
        fx_ok(fx_sync(&w), "sync");
        fx_ok(fx_sync(&plain), "sync");
        assert_true(fx_near(&w, &plain, NEAR));
    }
    assert_true(n_failed > 3);
    assert_true(info_of(&w).cpu_is_chosen);
    fx_close(&w);
    fx_close(&plain);
}

/* A step's time comes from steps whose tail is hidden. */
static void test_clock(void **state)
{
    (void)state;
    fx w;
    fx_model m = model(FX_HOST, 2, 0);
    fx_open(&w, &m);
    for (uint32_t i = 0; i < RKVI_CLOCK_LEAST; i++)
        decode(&w, 1, 100 + i);
    assert_int_equal(rkvi_step_clock_ns(w.cache), 0);
    decode(&w, 1, 200);
    assert_true(rkvi_step_clock_ns(w.cache) > 0);
    for (uint32_t i = 0; i < 3; i++) { /* given up: no step ends there */
        const fx_entry e = {.seq = 0, .rows = 1, .tag = 250, .regime = RKV_REGIME_DECODE};
        fx_ok(fx_begin(&w, &e, 1), "begin");
        fx_ok(fx_abort(&w), "abort");
    }
    text(&w, 0, 40); /* prefill, and decode that streams at an unknown rate */
    for (uint32_t i = 0; i < 8; i++)
        decode(&w, 1, 300 + i);
    assert_int_equal(w.cache->clock.n, RKVI_CLOCK_LEAST + 1); /* the last one before those given up ended, too */
    fx_ok(rkv_cache_set_cpu_share(w.cache, NULL), "set");
    assert_int_equal(info_of(&w).cpu_step_ns, rkvi_step_clock_ns(w.cache));
    fx_close(&w);
}

/* ------------------------------------------------------------------------- costs */

static rkvi_device_usage usage_of(const fx *w)
{
    rkvi_device_usage u;
    rkvi_device_usage_get(w->core, &u);
    return u;
}

/* A cache with threads and no share takes no memory and launches nothing for it;
 * with one, what estimate says. */
static void test_costs(void **state)
{
    (void)state;
    fx w, plain, sharing;
    const fx_model m = model(FX_HOST, 2, 0), without = model(FX_HOST, 0, 0), with = model(FX_HOST, 2, 8);
    fx_open(&w, &m);
    fx_open(&plain, &without);
    fx_open(&sharing, &with);
    fx *const all[] = {&w, &plain, &sharing};
    const uint64_t tables = 256 * (uint64_t)w.cache->cfg.steps_ahead; /* each with room for a ticket */
    assert_int_equal(usage_of(&w).registered_bytes, usage_of(&plain).registered_bytes + tables);
    assert_int_equal(usage_of(&w).device_bytes, usage_of(&plain).device_bytes + tables);
    assert_int_equal(usage_of(&w).streams, usage_of(&plain).streams);
    assert_int_equal(usage_of(&w).events, usage_of(&plain).events);
    assert_null(w.cache->cpu.team);
    rkv_estimate e = {.struct_size = sizeof e};
    rkv_cache_params params = with.params;
    params.kv_layers = with.layers;
    params.sites = with.sites;
    params.n_kv_layers = with.n_layers;
    params.n_sites = with.n_sites;
    params.device = RKV_DEVICE_HOST;
    fx_ok(rkv_cache_estimate(&params, &e), "estimate");
    const uint64_t pinned = usage_of(&sharing).registered_bytes - usage_of(&plain).registered_bytes;
    assert_true(e.host_cpu_bytes > 0 && pinned >= e.host_cpu_bytes && pinned < e.host_cpu_bytes + 64 * KIB);
    for (uint32_t k = 0; k < 3; k++) {
        text(all[k], 0, 40);
        for (uint32_t i = 0; i < 4; i++)
            decode(all[k], 1, 9000 + i);
        fx_ok(fx_sync(all[k]), "sync");
    }
    assert_int_equal(fx_stats(&w).launches, fx_stats(&plain).launches);
    assert_int_equal(fx_stats(&w).waits, fx_stats(&plain).waits);
    assert_int_equal(fx_stats(&w).streamed_bytes, fx_stats(&plain).streamed_bytes);
    assert_true(fx_same(&w, &plain));
    assert_true(fx_stats(&sharing).cpu_bytes > 0);
    for (uint32_t k = 0; k < 3; k++)
        fx_close(all[k]);
}

typedef struct engine {
    uint64_t n_allocs, bytes, refuse_at;
} engine;

static void *engine_alloc(void *user, uint64_t size_bytes)
{
    engine *e = user;
    if (++e->n_allocs == e->refuse_at)
        return NULL;
    e->bytes += size_bytes;
    return aligned_alloc(256, (size_bytes + 255) / 256 * 256);
}

static void engine_free(void *user, void *ptr, uint64_t size_bytes)
{
    ((engine *)user)->bytes -= size_bytes;
    free(ptr);
}

/* The first share of a cache asks the engine's allocator, which may refuse. */
static void test_first_share(void **state)
{
    (void)state;
    fx w;
    engine e = {0};
    fx_model m = model(FX_HOST, 2, 0);
    const rkv_cpu_share_params p = {.struct_size = sizeof p, .share = 8};
    m.params.device_allocator = (rkv_allocator){engine_alloc, engine_free, &e};
    fx_open(&w, &m);
    const uint64_t before = e.bytes;
    e.refuse_at = e.n_allocs + 1;
    expect(rkv_cache_set_cpu_share(w.cache, &p), RKV_E_DEVICE_MEMORY, "allocator refused");
    assert_int_equal(info_of(&w).cpu_share, 0);
    assert_true(e.bytes == before && info_of(&w).device_bytes == before);
    fx_ok(rkv_cache_set_cpu_share(w.cache, &p), "set");
    assert_int_equal(e.bytes, before + RKVI_CPU_DEVICE_BYTES);
    text(&w, 0, 40);
    decode(&w, 1, 9000);
    assert_true(fx_stats(&w).cpu_bytes > 0);
    fx_ok(fx_sync(&w), "sync");
    fx_close(&w);
    assert_int_equal(e.bytes, 0);
}

/* Two caches, and more threads than CPUs. */
static void test_crowd(void **state)
{
    (void)state;
    fx a, b, plain;
    const fx_model m = model(FX_HOST, 9, 8), without = model(FX_HOST, 0, 0);
    fx_open(&a, &m);
    fx_open(&b, &m);
    fx_open(&plain, &without);
    fx *const all[] = {&a, &b, &plain};
    for (uint32_t k = 0; k < 3; k++)
        text(all[k], 0, 40);
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t k = 0; k < 3; k++)
            decode(all[k], 1, 9000 + i);
    for (uint32_t k = 0; k < 3; k++)
        fx_ok(fx_sync(all[k]), "sync");
    assert_true(fx_same(&a, &b));
    assert_true(fx_near(&a, &plain, NEAR));
    for (uint32_t k = 0; k < 3; k++)
        fx_close(all[k]);
}

/* The checker knows what threads read: the host may not write there meanwhile. */
static void test_violation(void **state)
{
    (void)state;
    fx w;
    const fx_model m = model(FX_CHECK, 2, 15);
    fx_open(&w, &m);
    text(&w, 0, 40);
    fx_ok(fx_sync(&w), "sync");
    const fx_entry e = {.seq = 0, .rows = 1, .tag = 7000, .regime = RKV_REGIME_DECODE};
    fx_ok(fx_begin(&w, &e, 1), "begin");
    fx_ok(fx_attend(&w, 0), "attend");
    const rkvi_plan *p = &w.cache->plan;
    uint64_t addr = 0;
    for (uint64_t base = 0; base < p->n_bases; base++)
        if (p->tile_launch[base] == p->sites[0].cpu_launch)
            addr = ((const uint64_t *)(const void *)(w.cache->now->mirror.host + p->sites[0].bases_off))[base];
    assert_true(addr);
    const rkvi_range write = {.ptr = (const void *)(uintptr_t)addr, .bytes = 64, .rows = 1, .access = RKVI_WRITE};
    assert_int_equal(rkvi_device_check_count(w.dev), 0);
    w.dev->vt->host_access(w.dev, &write, 1);
    assert_true(rkvi_device_check_count(w.dev) > 0);
    assert_int_equal(rkvi_device_check_report(w.dev, 0)->kind, RKVI_CHECK_RACE);
    rkvi_device_check_clear(w.dev);
    for (uint32_t site = 1; site < w.model.n_sites; site++)
        fx_ok(fx_attend(&w, site), "attend");
    fx_ok(fx_end(&w, NULL, 0), "end");
    fx_ok(fx_sync(&w), "sync");
    w.dev->vt->host_access(w.dev, &write, 1); /* now it may */
    assert_int_equal(rkvi_device_check_count(w.dev), 0);
    fx_close(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hidden),   cmocka_unit_test(test_repeat), cmocka_unit_test(test_refused),
        cmocka_unit_test(test_largest_rates), cmocka_unit_test(test_first_share),
        cmocka_unit_test(test_changing), cmocka_unit_test(test_measured), cmocka_unit_test(test_faults),
        cmocka_unit_test(test_clock),
        cmocka_unit_test(test_costs),    cmocka_unit_test(test_crowd),  cmocka_unit_test(test_violation),
    };
    seed = fx_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
