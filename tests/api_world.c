/* SPDX-License-Identifier: MIT
 *
 * api_world.c: see api_world.h.
 */
#include "api_world.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void check(rkv_status s, const char *what)
{
    if (s != RKV_OK)
        fail_msg("%s: %s: %s", what, rkv_status_name(s), rkv_error_message());
}

void world_params_init(world_params *p)
{
    memset(p, 0, sizeof *p);
    for (uint32_t i = 0; i < 2; i++)
        p->layers[i] = (rkv_kv_layer_params){.struct_size = sizeof p->layers[i],
                                             .n_kv_heads = WORLD_KV_HEADS,
                                             .head_dim_k = WORLD_DIM,
                                             .resident_cells = i ? RKV_RESIDENT_NONE : 32};
    for (uint32_t i = 0; i < WORLD_SITES; i++)
        p->sites[i] = (rkv_site_params){
            .struct_size = sizeof p->sites[i], .kv_layer = i > 0, .n_q_heads = WORLD_Q_HEADS};
    p->params = (rkv_cache_params){.struct_size = sizeof p->params,
                                   .device = RKV_DEVICE_HOST,
                                   .kv_layers = p->layers,
                                   .sites = p->sites,
                                   .n_kv_layers = 2,
                                   .n_sites = WORLD_SITES,
                                   .capacity_cells = WORLD_CAPACITY,
                                   .n_sequences = WORLD_SEQUENCES,
                                   .max_rows = WORLD_MAX_ROWS,
                                   .tile_cells = WORLD_TILE,
                                   .draft_rows = 4,
                                   .ring_bytes = 64 << 10,
                                   .host.n_threads = 1};
}

void world_create(world *w)
{
    world_params p;
    world_params_init(&p);
    memset(w, 0, sizeof *w);
    check(rkv_cache_create(&p.params, &w->cache), "create");
}

void world_destroy(world *w)
{
    rkv_cache_destroy(w->cache);
    w->cache = NULL;
}

/* The same numbers in both worlds: they depend on the step and the place alone. */
static void fill(float *x, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)(int32_t)(seed >> 32) * 0x1p-30f;
    }
}

static void prepare(world *w)
{
    static const uint32_t n_rows[3] = {3, 20, 1};
    for (uint32_t i = 0; i < 3; i++) {
        w->entries[i] = (rkv_batch_entry){.struct_size = sizeof w->entries[i],
                                          .sequence = i,
                                          .n_rows = n_rows[i],
                                          .n_new_cells = n_rows[i]};
        if (i == 2 && w->step % 3 == 2)
            w->entries[i].n_new_cells = 0;
    }
    w->batch = (rkv_batch){.struct_size = sizeof w->batch, .n_entries = 3, .entries = w->entries};
    for (uint32_t i = 0; i < WORLD_SITES; i++) {
        world_rows *r = &w->sites[i];
        const uint64_t seed = w->step * 1000 + i * 10;
        fill(r->q, sizeof r->q / sizeof *r->q, seed);
        fill(r->k, sizeof r->k / sizeof *r->k, seed + 1);
        fill(r->v, sizeof r->v / sizeof *r->v, seed + 2);
        memset(r->out, 0xee, sizeof r->out);
        memset(w->lse[i], 0xee, sizeof w->lse[i]);
    }
}

rkv_attend_params world_attend(world *w, uint32_t site)
{
    world_rows *r = &w->sites[site];
    rkv_attend_params p = RKV_ATTEND_PARAMS_INIT;
    p.site = site;
    p.q = (rkv_tensor){.data = r->q, .type = RKV_TYPE_F32};
    p.out = (rkv_tensor){.data = r->out, .type = RKV_TYPE_F32};
    p.lse = w->lse[site];
    if (site < 2) {
        p.k = (rkv_tensor){.data = r->k, .type = RKV_TYPE_F32};
        p.v = (rkv_tensor){.data = r->v, .type = RKV_TYPE_F32};
    }
    return p;
}

/* Starts anew before the capacity is used up; then no sequence is left empty. */
static void make_room(world *w)
{
    uint64_t n_cells = 0;
    for (uint32_t i = 0; i < WORLD_SEQUENCES; i++) {
        rkv_sequence_state state = {.struct_size = sizeof state};
        check(rkv_sequence_info(w->cache, i, &state), "sequence info");
        n_cells += state.n_cells;
    }
    if (n_cells + WORLD_ROWS <= WORLD_CAPACITY)
        return;
    check(rkv_cache_clear(w->cache), "clear");
    w->step += 3 - w->step % 3; /* the next step adds cells to all */
    world_step(w, NULL, NULL);
}

void world_step(world *w, world_hook hook, void *arg)
{
    static const world_stage after[WORLD_SITES] = {WORLD_SITE_1, WORLD_SITE_2, WORLD_ATTENDED};
    make_room(w);
    prepare(w);
    if (hook)
        hook(w, WORLD_IDLE, arg);
    check(rkv_step_begin(w->cache, &w->batch), "begin");
    if (hook)
        hook(w, WORLD_BEGUN, arg);
    for (uint32_t site = 0; site < WORLD_SITES; site++) {
        const rkv_attend_params p = world_attend(w, site);
        check(rkv_step_attend(w->cache, &p, NULL), "attend");
        if (hook)
            hook(w, after[site], arg);
    }
    check(rkv_step_end(w->cache, NULL, NULL), "end");
    check(rkv_host_stream_sync(w->cache, NULL), "sync");
    w->step++;
}

void world_compare(const world *a, const world *b)
{
    rkv_cache_stats x = {.struct_size = sizeof x}, y = {.struct_size = sizeof y};
    for (uint32_t i = 0; i < WORLD_SITES; i++) {
        assert_memory_equal(a->sites[i].out, b->sites[i].out, sizeof a->sites[i].out);
        assert_memory_equal(a->lse[i], b->lse[i], sizeof a->lse[i]);
    }
    for (uint32_t i = 0; i < WORLD_SEQUENCES; i++) {
        rkv_sequence_state s = {.struct_size = sizeof s}, t = {.struct_size = sizeof t};
        check(rkv_sequence_info(a->cache, i, &s), "sequence info");
        check(rkv_sequence_info(b->cache, i, &t), "sequence info");
        assert_memory_equal(&s, &t, sizeof s);
    }
    check(rkv_cache_stats_get(a->cache, &x), "stats");
    check(rkv_cache_stats_get(b->cache, &y), "stats");
    assert_int_equal(x.steps, y.steps);
    assert_int_equal(x.demoted_bytes, y.demoted_bytes);
    assert_int_equal(x.last_step_list_bytes, y.last_step_list_bytes);
}
