/* SPDX-License-Identifier: MIT
 *
 * Making and destroying caches: what is taken is what was estimated, a create
 * that fails at any call leaves nothing behind, and a device fault ends the
 * cache but not the process.
 */
#include "api_internal.h"
#include "api_world.h"
#include "device_host.h"
#include "step_types.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static rkvi_ops ops;

static rkvi_device *make_device(void)
{
    const rkvi_device_host_settings settings = {.n_workers = 1};
    rkvi_device *dev = NULL;
    assert_int_equal(rkvi_device_host_create(&settings, &ops, &dev), RKV_OK);
    return dev;
}

static void assert_nothing_left(rkvi_device *dev)
{
    rkvi_device_usage u;
    rkvi_device_usage_get(dev, &u);
    assert_int_equal(u.device_bytes, 0);
    assert_int_equal(u.registered_bytes, 0);
    assert_int_equal(u.allocations, 0);
    assert_int_equal(u.registrations, 0);
    assert_int_equal(u.streams, 0);
    assert_int_equal(u.events, 0);
}

static void test_takes_what_was_estimated(void **state)
{
    (void)state;
    world_params p;
    rkv_cache *cache = NULL;
    rkv_estimate e = {.struct_size = sizeof e};
    rkv_cache_info info = {.struct_size = sizeof info};
    rkvi_device_usage u;
    rkvi_device *dev = make_device();
    world_params_init(&p);
    assert_int_equal(rkv_cache_estimate(&p.params, &e), RKV_OK);
    assert_int_equal(rkvi_api_create_on(&p.params, dev, &cache), RKV_OK);
    assert_int_equal(rkv_cache_info_get(cache, &info), RKV_OK);
    rkvi_device_usage_get(dev, &u);
    assert_int_equal(info.device_bytes, e.device_bytes);
    assert_int_equal(u.device_bytes, e.device_bytes);
    assert_int_equal(info.device_window_bytes, e.device_window_bytes);
    assert_int_equal(info.device_ring_bytes, e.device_ring_bytes);
    assert_int_equal(info.device_active_bytes, e.device_active_bytes);
    assert_int_equal(info.device_transit_bytes, e.device_transit_bytes);
    assert_int_equal(info.device_workspace_bytes, e.device_workspace_bytes);
    assert_int_equal(info.capacity_cells, WORLD_CAPACITY);
    assert_int_equal(info.tile_cells, WORLD_TILE);
    assert_int_equal(info.steps_ahead, 2);
    assert_string_equal(info.device_name, "host");
    for (uint32_t i = 0; i < 2; i++) {
        rkv_kv_layer_info layer = {.struct_size = sizeof layer};
        assert_int_equal(rkv_kv_layer_info_get(cache, i, &layer), RKV_OK);
        assert_int_equal(layer.resident_cells, i ? 0 : 32);
        assert_int_equal(layer.tile_layer_device_bytes,
                         WORLD_TILE * WORLD_KV_HEADS * WORLD_DIM * 2 * 2);
        assert_int_equal(layer.leaf_cells, WORLD_TILE);
        assert_int_equal(layer.type_v, RKV_TYPE_F16);
    }
    for (uint32_t i = 0; i < info.n_sites; i++) {
        rkv_site_info site = {.struct_size = sizeof site};
        assert_int_equal(rkv_site_info_get(cache, i, &site), RKV_OK);
        assert_int_equal(site.kv_layer, p.params.sites[i].kv_layer);
        assert_int_equal(site.mask, p.params.sites[i].mask);
        assert_int_equal(site.mask_width, p.params.sites[i].mask_width);
        assert_true(site.scale > 0); /* chosen where none was given */
    }
    rkv_cache_destroy(cache);
}

/* Every call of a kind in turn, fewer of those that come by the hundred.
 * Registrations may fall back to other memory. */
static void fail_each(rkvi_device_call call, rkv_status status)
{
    rkvi_device *dev = make_device();
    uint64_t n_failed = 0;
    for (uint64_t nth = 1;; nth += 1 + nth / 16) {
        const uint64_t before = rkvi_device_calls(dev, call);
        rkv_cache *cache = NULL;
        world_params p;
        world_params_init(&p);
        rkvi_device_fail_call(dev, call, nth, status);
        const rkv_status s = rkvi_api_create_on(&p.params, dev, &cache);
        const bool was_hit = rkvi_device_calls(dev, call) - before >= nth;
        rkvi_device_fail_call(dev, call, 0, RKV_OK);
        if (s == RKV_OK) { /* it owns the device now */
            rkv_cache_destroy(cache);
            if (!was_hit)
                break;
            dev = make_device();
            continue;
        }
        assert_int_equal(s, status);
        assert_null(cache);
        assert_true(strlen(rkv_error_message()) > 0);
        assert_nothing_left(dev);
        n_failed++;
    }
    printf("call %d: %d creates failed and left nothing\n", (int)call, (int)n_failed);
    assert_true(n_failed > 0 || call == RKVI_CALL_HOST_REGISTER);
}

static void test_failed_creates(void **state)
{
    (void)state;
    fail_each(RKVI_CALL_INFO, RKV_E_DEVICE_CALL);
    fail_each(RKVI_CALL_MEM_ALLOC, RKV_E_DEVICE_MEMORY);
    fail_each(RKVI_CALL_HOST_ALLOC, RKV_E_HOST_MEMORY);
    fail_each(RKVI_CALL_HOST_REGISTER, RKV_E_DEVICE_CALL);
    fail_each(RKVI_CALL_STREAM_CREATE, RKV_E_SYSTEM);
    fail_each(RKVI_CALL_EVENT_CREATE, RKV_E_DEVICE_CALL);
}

static void test_cycles(void **state)
{
    (void)state;
    static world w;
    for (int i = 0; i < 10; i++) {
        world_create(&w);
        for (int k = 0; k < i % 4; k++)
            world_step(&w, NULL, NULL);
        if (i % 2) /* with a step open, the step is dropped */
            assert_int_equal(rkv_step_begin(w.cache, &w.batch), RKV_OK);
        world_destroy(&w);
    }
}

/* --------------------------------------------------------- asking meanwhile */

typedef struct asking {
    rkv_cache *cache;
    atomic_bool stop;
    uint64_t n_asked;
} asking;

static void *ask(void *arg)
{
    asking *a = arg;
    rkv_cache_stats stats = {.struct_size = sizeof stats};
    rkv_cache_info info = {.struct_size = sizeof info};
    rkv_kv_layer_info layer = {.struct_size = sizeof layer};
    rkv_sequence_state seq = {.struct_size = sizeof seq};
    do { /* once at least, however late a busy machine starts this thread */
        const uint64_t before = stats.streamed_bytes;
        if (rkv_cache_stats_get(a->cache, &stats) || rkv_cache_info_get(a->cache, &info) ||
            rkv_kv_layer_info_get(a->cache, 1, &layer) || rkv_sequence_info(a->cache, 1, &seq) ||
            stats.streamed_bytes < before)
            return a;
        a->n_asked++;
        sched_yield();
    } while (!atomic_load(&a->stop));
    return NULL;
}

/* The four calls that may run beside any other one. */
static void test_asking_beside_steps(void **state)
{
    (void)state;
    static world w;
    asking a = {0};
    pthread_t thread;
    void *failed;
    world_create(&w);
    a.cache = w.cache;
    assert_int_equal(pthread_create(&thread, NULL, ask, &a), 0);
    for (int i = 0; i < 40; i++)
        world_step(&w, NULL, NULL);
    atomic_store(&a.stop, true);
    assert_int_equal(pthread_join(thread, &failed), 0);
    assert_null(failed);
    assert_true(a.n_asked > 0);
    world_destroy(&w);
}

/* ------------------------------------------------------------------ in words */

typedef struct lines {
    uint32_t n, n_reads; /* those that read the tail */
} lines;

static void take_line(void *user, const char *line)
{
    lines *l = user;
    unsigned long long bytes = 0;
    const char *reads = strstr(line, "reads ");
    l->n += strstr(line, "site ") == line && reads;
    l->n_reads += reads && sscanf(reads, "reads %llu", &bytes) == 1 && bytes > 0;
}

/* A plan can be printed, a line a launch. */
static void test_plan_in_words(void **state)
{
    (void)state;
    static world w;
    lines l = {0};
    world_create(&w);
    for (int i = 0; i < 6; i++)
        world_step(&w, NULL, NULL);
    assert_int_equal(rkv_step_begin(w.cache, &w.batch), RKV_OK);
    rkvi_plan_print(&w.cache->plan, &w.cache->cfg, take_line, &l);
    assert_int_equal(l.n, w.cache->plan.n_launches * w.cache->plan.n_rounds);
    assert_true(l.n >= WORLD_SITES && l.n_reads > 0);
    assert_int_equal(rkv_step_abort(w.cache), RKV_OK);
    world_destroy(&w);
}

/* ------------------------------------------------------------ beside a capture */

typedef struct capturing {
    rkvi_device *dev;
    void *stream;
    atomic_bool has_begun, may_end;
    rkv_status begun, ended;
    rkvi_graph *graph;
} capturing;

/* An engine's thread; in the mode in which CUDA forbids other threads most. */
static void *capture(void *arg)
{
    capturing *c = arg;
    c->begun = rkvi_dev(capture_begin, c->dev, c->stream, true);
    atomic_store(&c->has_begun, true);
    while (!atomic_load(&c->may_end))
        sched_yield();
    c->ended = rkvi_dev(capture_end, c->dev, c->stream, &c->graph);
    return NULL;
}

/* A cache is made and used while another thread captures on the same device:
 * neither disturbs the other.  The CUDA executor relaxes each call itself, the
 * host's model of it wants the thread to be; the arena's own thread sees to that. */
static void test_beside_capture(void **state)
{
    (void)state;
    static world w, alone;
    world_params p;
    pthread_t thread;
    capturing c = {.dev = make_device()};
    assert_int_equal(rkvi_dev(stream_create, c.dev, "engine", &c.stream), RKV_OK);
    assert_int_equal(pthread_create(&thread, NULL, capture, &c), 0);
    while (!atomic_load(&c.has_begun))
        sched_yield();
    assert_int_equal(c.begun, RKV_OK);
    rkvi_dev(capture_relax, c.dev, true);
    world_params_init(&p);
    assert_int_equal(rkvi_api_create_on(&p.params, c.dev, &w.cache), RKV_OK);
    world_create(&alone);
    for (int i = 0; i < 12; i++) {
        world_step(&w, NULL, NULL);
        world_step(&alone, NULL, NULL);
        world_compare(&w, &alone);
    }
    assert_int_equal(rkv_sequence_park(w.cache, 0), RKV_OK);
    assert_int_equal(rkv_cache_set_residency(w.cache, 0, 16), RKV_OK);
    rkvi_dev(capture_relax, c.dev, false);
    atomic_store(&c.may_end, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(c.ended, RKV_OK);
    assert_int_equal(rkvi_dev(graph_launch, c.dev, c.graph, c.stream), RKV_OK);
    assert_int_equal(rkvi_dev(stream_sync, c.dev, c.stream), RKV_OK);
    assert_int_equal(rkvi_dev(graph_destroy, c.dev, c.graph), RKV_OK);
    assert_int_equal(rkvi_dev(stream_destroy, c.dev, c.stream), RKV_OK);
    rkv_cache_destroy(w.cache);
    world_destroy(&alone);
}

/* ----------------------------------------------------------------- allocator */

typedef struct counted {
    uint64_t n_allocs, n_frees, bytes, refuse_at;
} counted;

static void *count_alloc(void *user, uint64_t size_bytes)
{
    counted *c = user;
    if (++c->n_allocs == c->refuse_at)
        return NULL;
    c->bytes += size_bytes;
    return aligned_alloc(256, (size_bytes + 255) / 256 * 256);
}

static void count_free(void *user, void *ptr, uint64_t size_bytes)
{
    counted *c = user;
    c->n_frees++;
    c->bytes -= size_bytes;
    free(ptr);
}

static void test_allocator(void **state)
{
    (void)state;
    rkv_estimate e = {.struct_size = sizeof e};
    rkv_cache *cache = NULL;
    world_params p;
    counted c = {0};
    world_params_init(&p);
    p.params.device_allocator = (rkv_allocator){count_alloc, count_free, &c};
    assert_int_equal(rkv_cache_estimate(&p.params, &e), RKV_OK);
    assert_int_equal(c.n_allocs, 0);
    assert_int_equal(rkv_cache_create(&p.params, &cache), RKV_OK);
    assert_int_equal(c.bytes, e.device_bytes);
    const uint64_t n_allocs = c.n_allocs;
    rkv_cache_destroy(cache);
    assert_true(c.bytes == 0 && c.n_frees == n_allocs);
    for (uint64_t at = 1; at <= n_allocs; at++) {
        c = (counted){.refuse_at = at};
        cache = NULL;
        assert_int_equal(rkv_cache_create(&p.params, &cache), RKV_E_DEVICE_MEMORY);
        assert_non_null(strstr(rkv_error_message(), "allocator refused"));
        assert_null(cache);
        assert_true(c.bytes == 0 && c.n_allocs == at && c.n_frees == at - 1);
    }
}

/* --------------------------------------------------------------------- fault */

/* Steps until something fails. */
static rkv_status run_on(world *w)
{
    for (int i = 0; i < 50; i++) {
        rkv_status s = rkv_step_begin(w->cache, &w->batch);
        for (uint32_t site = 0; site < WORLD_SITES && s == RKV_OK; site++) {
            const rkv_attend_params a = world_attend(w, site);
            s = rkv_step_attend(w->cache, &a, NULL);
        }
        if (s == RKV_OK)
            s = rkv_step_end(w->cache, NULL, NULL);
        if (s == RKV_OK)
            s = rkv_host_stream_sync(w->cache, NULL);
        if (s == RKV_OK)
            s = rkv_cache_clear(w->cache);
        if (s != RKV_OK)
            return s;
    }
    return RKV_OK;
}

static void test_fault(void **state)
{
    (void)state;
    static world w;
    for (uint64_t nth = 1; nth < 40; nth += 3) {
        world_params p;
        rkvi_device *dev = make_device();
        memset(&w, 0, sizeof w);
        world_params_init(&p);
        assert_int_equal(rkvi_api_create_on(&p.params, dev, &w.cache), RKV_OK);
        world_step(&w, NULL, NULL);
        rkvi_device_fault_op(dev, nth);
        assert_int_equal(run_on(&w), RKV_E_POISONED);
        /* from now on, whatever is asked */
        rkv_cache_info info = {.struct_size = sizeof info};
        assert_int_equal(rkv_step_begin(w.cache, &w.batch), RKV_E_POISONED);
        assert_int_equal(rkv_cache_info_get(w.cache, &info), RKV_E_POISONED);
        assert_int_equal(rkv_cache_clear(w.cache), RKV_E_POISONED);
        assert_int_equal(rkv_step_abort(w.cache), RKV_E_POISONED);
        assert_int_equal(rkv_host_stream_sync(w.cache, NULL), RKV_E_POISONED);
        assert_true(strlen(rkv_error_message()) > 0);
        rkv_cache_destroy(w.cache);
    }
}

int main(void)
{
    rkvi_ops_best(&ops, NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_takes_what_was_estimated),
        cmocka_unit_test(test_failed_creates),
        cmocka_unit_test(test_cycles),
        cmocka_unit_test(test_asking_beside_steps),
        cmocka_unit_test(test_plan_in_words),
        cmocka_unit_test(test_beside_capture),
        cmocka_unit_test(test_allocator),
        cmocka_unit_test(test_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
