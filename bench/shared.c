/* SPDX-License-Identifier: MIT
 *
 * shared.c: see shared.h.
 *
 * One prompt is stored, forked to N sequences, and each step decodes a row of
 * each.  Beside it, the time that N sequences would take that each read a
 * prefix of their own, measured too where --apart is given (it needs N times
 * the memory).  The engine's own work is a delay before each attention.
 *
 *   host   the host executor with its real kernels
 *   sim    virtual time, a link like that of a measured H200, empty kernels
 *   cuda   the first GPU
 */
#include "shared.h"

#include "api_internal.h"
#include "device_host.h"
#include "device_sim.h"
#include "diag.h"
#include "json.h"
#include "options.h"
#include "rkvi_config.h"
#if RKVI_HAVE_CUDA
#include "device_cuda.h"
#endif

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SEQUENCES_MAX 16u
#define GROW_ROWS 2048u
#define WARM 4u
#define DIM 128u

typedef struct setup {
    const char *executor;
    uint64_t cells, window_cells;
    uint32_t n_sites, n_kv_heads, group, steps;
    double compute_ms; /* of a step, without attention */
    double link_gbs;   /* hint; 0: what the executor knows, a GPU's nothing */
    bool apart;
} setup;

typedef struct world {
    const setup *s;
    rkvi_device *dev;
    rkv_cache *cache;
    void *stream, *rows; /* rows: zeros, for q, k, v and out */
    rkvi_event *from, *to;
    rkv_pos_range visible[GROW_ROWS];
} world;

typedef struct figures {
    double step_ns, streamed_bytes, tiles, copies;
} figures;

static bool ok(rkv_status s, const char *what)
{
    if (s != RKV_OK)
        fprintf(stderr, "rollkv-bench: %s: %s\n", what, rkvi_error_text());
    return s == RKV_OK;
}

/* -------------------------------------------------------------------- making */

static void nothing(const void *args, uint64_t index)
{
    (void)args;
    (void)index;
}

static rkv_status make_device(const setup *s, rkvi_device **out)
{
    static rkvi_ops ops;
    if (strcmp(s->executor, "sim") == 0) {
        rkvi_device_sim_settings sim = {.order = RKVI_SIM_TIME, .skip_fill = true, .n_workers = 132};
        rkvi_device_sim_like_h200(&sim);
        for (uint32_t i = 0; i < RKVI_OP_COUNT; i++)
            ops.fn[i] = nothing;
        ops.name = "empty";
        return rkvi_device_sim_create(&sim, &ops, out);
    }
    if (strcmp(s->executor, "host") == 0) {
        rkvi_ops_best(&ops, NULL);
        return rkvi_device_host_create(NULL, &ops, out);
    }
#if RKVI_HAVE_CUDA
    if (strcmp(s->executor, "cuda") == 0) {
        const rkvi_device_cuda_settings cuda = {.timed_events = true};
        return rkvi_device_cuda_create(&cuda, out);
    }
#endif
    return rkvi_fail(RKV_E_ARGUMENT, "no executor '%s' in this build: host, sim, cuda", s->executor);
}

static rkv_status make_cache(world *w, uint32_t n)
{
    const setup *s = w->s;
    rkv_kv_layer_params *layers = calloc(s->n_sites, sizeof *layers);
    rkv_site_params *sites = calloc(s->n_sites, sizeof *sites);
    for (uint32_t i = 0; i < s->n_sites; i++) {
        layers[i] = (rkv_kv_layer_params){.struct_size = sizeof *layers, .n_kv_heads = s->n_kv_heads, .head_dim_k = DIM,
                                          .resident_cells = s->window_cells ? s->window_cells : RKV_RESIDENT_NONE};
        sites[i] = (rkv_site_params){
            .struct_size = sizeof *sites, .kv_layer = i, .n_q_heads = s->group * s->n_kv_heads};
    }
    const rkv_cache_params p = {.struct_size = sizeof p, .kv_layers = layers, .sites = sites,
                                .n_kv_layers = s->n_sites, .n_sites = s->n_sites,
                                .capacity_cells = (s->apart ? n : 1) * (s->cells + 512) + 512 * SEQUENCES_MAX,
                                .n_sequences = SEQUENCES_MAX, .max_rows = GROW_ROWS,
                                .step_ns = (uint64_t)(s->compute_ms * 1e6),
                                .link_bytes_per_s = (uint64_t)(s->link_gbs * 1e9)};
    const rkv_status st = rkvi_api_create_on(&p, w->dev, &w->cache);
    free(layers);
    free(sites);
    return st;
}

static rkv_status open_world(world *w, uint32_t n)
{
    const uint64_t bytes = (uint64_t)GROW_ROWS * w->s->group * w->s->n_kv_heads * DIM * 2;
    rkv_status s = make_device(w->s, &w->dev);
    if (s != RKV_OK)
        return s;
    s = make_cache(w, n);
    if (s != RKV_OK) {
        rkvi_dev_destroy(w->dev);
        return s;
    }
    s = rkvi_dev(mem_alloc, w->dev, bytes, &w->rows);
    if (s == RKV_OK)
        s = rkvi_dev(stream_create, w->dev, "engine", &w->stream);
    if (s == RKV_OK)
        s = rkvi_dev(event_create, w->dev, &w->from);
    if (s == RKV_OK)
        s = rkvi_dev(event_create, w->dev, &w->to);
    return s == RKV_OK ? rkvi_dev(fill, w->dev, w->rows, 0, bytes, w->stream) : s;
}

static void close_world(world *w)
{
    if (!w->cache)
        return;
    rkvi_dev(stream_sync, w->dev, w->stream);
    rkvi_dev(event_destroy, w->dev, w->from);
    rkvi_dev(event_destroy, w->dev, w->to);
    rkvi_dev(stream_destroy, w->dev, w->stream);
    rkvi_dev(mem_free, w->dev, w->rows);
    rkv_cache_destroy(w->cache); /* with the device */
}

/* --------------------------------------------------------------------- steps */

static rkv_status run_step(world *w, const rkv_batch *batch, int64_t delay_ns)
{
    rkv_status s = rkv_step_begin(w->cache, batch);
    for (uint32_t i = 0; i < w->s->n_sites && s == RKV_OK; i++) {
        const rkv_attend_params a = {.struct_size = sizeof a, .site = i, .q = {.data = w->rows},
                                     .k = {.data = w->rows}, .v = {.data = w->rows}, .out = {.data = w->rows}};
        if (delay_ns)
            s = rkvi_dev(delay, w->dev, delay_ns, w->stream);
        if (s == RKV_OK)
            s = rkv_step_attend(w->cache, &a, w->stream);
    }
    return s == RKV_OK ? rkv_step_end(w->cache, NULL, w->stream) : s;
}

/* Rows of a prompt see themselves alone, so that they stream nothing. */
static rkv_status grow(world *w, uint32_t sequence)
{
    rkv_status s = RKV_OK;
    for (uint64_t at = 0; at < w->s->cells && s == RKV_OK;) {
        const uint64_t left = w->s->cells - at;
        const uint32_t rows = left < GROW_ROWS ? (uint32_t)left : GROW_ROWS;
        for (uint32_t i = 0; i < rows; i++)
            w->visible[i] = (rkv_pos_range){(int64_t)(at + i), (int64_t)(at + i + 1)};
        const rkv_batch_entry e = {.struct_size = sizeof e, .sequence = sequence, .n_rows = rows, .n_new_cells = rows,
                                   .regime = RKV_REGIME_PREFILL, .visible = w->visible};
        const rkv_batch batch = {.struct_size = sizeof batch, .n_entries = 1, .entries = &e};
        s = run_step(w, &batch, 0);
        at += rows;
    }
    return s;
}

static rkv_status decode(world *w, uint32_t n)
{
    rkv_batch_entry e[SEQUENCES_MAX];
    const rkv_batch batch = {.struct_size = sizeof batch, .n_entries = n, .entries = e};
    for (uint32_t i = 0; i < n; i++)
        e[i] = (rkv_batch_entry){.struct_size = sizeof *e, .sequence = i, .n_rows = 1, .n_new_cells = 1};
    return run_step(w, &batch, (int64_t)(w->s->compute_ms * 1e6 / w->s->n_sites));
}

static rkv_status measure(world *w, uint32_t n, figures *out)
{
    rkv_cache_stats a = {.struct_size = sizeof a}, b = a;
    int64_t ns = 0;
    rkv_status s = grow(w, 0);
    for (uint32_t i = 1; i < n && s == RKV_OK; i++)
        s = w->s->apart ? grow(w, i) : rkv_sequence_fork(w->cache, i, 0);
    for (uint32_t i = 0; i < WARM && s == RKV_OK; i++)
        s = decode(w, n);
    if (s == RKV_OK)
        s = rkv_cache_stats_get(w->cache, &a);
    if (s == RKV_OK)
        s = rkvi_dev(event_record, w->dev, w->from, w->stream);
    for (uint32_t i = 0; i < w->s->steps && s == RKV_OK; i++)
        s = decode(w, n);
    if (s == RKV_OK)
        s = rkvi_dev(event_record, w->dev, w->to, w->stream);
    if (s == RKV_OK)
        s = rkvi_dev(stream_sync, w->dev, w->stream);
    if (s == RKV_OK)
        s = rkvi_dev(event_elapsed, w->dev, w->from, w->to, &ns);
    if (s == RKV_OK)
        s = rkv_cache_stats_get(w->cache, &b);
    *out = (figures){.step_ns = (double)ns / w->s->steps,
                     .streamed_bytes = (double)(b.streamed_bytes - a.streamed_bytes) / w->s->steps,
                     .copies = (double)(b.copies_in - a.copies_in) / w->s->steps,
                     .tiles = (double)b.used_tiles};
    return s;
}

static bool run_one(const setup *s, uint32_t n, figures *out)
{
    world w = {.s = s};
    rkv_status st = open_world(&w, n);
    if (st == RKV_OK)
        st = measure(&w, n, out);
    const bool good = ok(st, "a step");
    close_world(&w);
    return good;
}

/* ------------------------------------------------------------------- options */

static const char help[] =
    "rollkv-bench shared: step time and bytes streamed of N = 1, 2, 4, 8, 16 sequences on one\n"
    "shared prefix\n\n"
    "  --executor NAME   host, sim or cuda (sim)\n"
    "  --cells N         of the prefix (100000)\n"
    "  --window N        cells of it that stay on the device, in each KV layer (0)\n"
    "  --sites N         KV layers, each with a site (8)\n"
    "  --heads N         KV heads x 128 of each (1)\n"
    "  --group N         query heads of each KV head (4)\n"
    "  --compute MS      the engine's own work, a step (0)\n"
    "  --link-gbs X      hint of the link's bandwidth, for the ring's size (else a GPU's is measured)\n"
    "  --steps N         measured ones (8)\n"
    "  --apart           N sequences with a prefix each instead\n"
    "  --json FILE       the figures as JSON\n"
    "  --commit TEXT     to be written there, where the build does not know it\n";

static int parse(setup *s, int argc, char **argv, const char **out_file, const char **out_commit)
{
#if RKVI_HAVE_CUDA
    static const char *const executors[] = {"sim", "host", "cuda", NULL};
#else
    static const char *const executors[] = {"sim", "host", NULL};
#endif
    uint32_t executor = 0;
    option_of table[] = {{.name = "executor", .kind = OPTION_NAME, .to = &executor, .names = executors},
                         {"cells", OPTION_LONG, &s->cells, 1, 1e12, NULL, false},
                         {"window", OPTION_LONG, &s->window_cells, 0, 1e12, NULL, false},
                         {"sites", OPTION_COUNT, &s->n_sites, 1, 1024, NULL, false},
                         {"heads", OPTION_COUNT, &s->n_kv_heads, 1, 1024, NULL, false},
                         {"group", OPTION_COUNT, &s->group, 1, 1024, NULL, false},
                         {"compute", OPTION_NUMBER, &s->compute_ms, 0, 10000, NULL, false},
                         {"link-gbs", OPTION_NUMBER, &s->link_gbs, 0.1, 1000, NULL, false},
                         {"steps", OPTION_COUNT, &s->steps, 1, 100000, NULL, false},
                         {.name = "apart", .kind = OPTION_FLAG, .to = &s->apart},
                         {.name = "json", .kind = OPTION_TEXT, .to = out_file},
                         {.name = "commit", .kind = OPTION_TEXT, .to = out_commit},
                         {0}};
    const int go_on = options_parse("rollkv-bench", help, table, argc, argv);
    s->executor = executors[executor];
    return go_on;
}

static void write_json(FILE *f, const setup *s, const char *commit, const figures *of, const uint32_t *ns,
                       uint32_t n_of)
{
    json j = {.file = f};
    json_open(&j, NULL, '{');
    json_head(&j, "shared", commit);
    json_string(&j, "executor", s->executor);
    json_count(&j, "cells", s->cells);
    json_count(&j, "window_cells", s->window_cells);
    json_count(&j, "sites", s->n_sites);
    json_count(&j, "kv_heads", s->n_kv_heads);
    json_count(&j, "group", s->group);
    json_number(&j, "compute_ms", s->compute_ms);
    json_number(&j, "link_gbs", s->link_gbs);
    json_count(&j, "apart", s->apart);
    json_open(&j, "sequences", '[');
    for (uint32_t i = 0; i < n_of; i++) {
        json_open(&j, NULL, '{');
        json_count(&j, "n", ns[i]);
        json_number(&j, "step_ns", of[i].step_ns);
        json_number(&j, "streamed_bytes", of[i].streamed_bytes);
        json_number(&j, "copies", of[i].copies);
        json_number(&j, "tiles", of[i].tiles);
        json_close(&j, '}');
    }
    json_close(&j, ']');
    json_close(&j, '}');
}

int shared_main(int argc, char **argv)
{
    static const uint32_t ns[] = {1, 2, 4, 8, 16};
    enum { N = sizeof ns / sizeof *ns };
    setup s = {.executor = "sim", .cells = 100000, .n_sites = 8, .n_kv_heads = 1, .group = 4, .steps = 8};
    const char *file = NULL, *commit = NULL;
    figures of[N];
    FILE *f;
    const int go_on = parse(&s, argc, argv, &file, &commit);
    if (go_on < 1)
        return go_on < 0 ? 2 : 0;
    if (!option_file(file, &f))
        return 1;
    commit = bench_commit(commit);
    printf("shared: %s, %llu cells, %u sites of %u x %u f16, %u query heads a KV head, %s; commit %s\n", s.executor,
           (unsigned long long)s.cells, s.n_sites, s.n_kv_heads, DIM, s.group,
           s.apart ? "a prefix each" : "one shared prefix", commit);
    printf("%10s %12s %14s %10s %8s\n", "sequences", "step ms", "streamed MB", "copies", "tiles");
    for (uint32_t i = 0; i < N; i++) {
        if (!run_one(&s, ns[i], &of[i]))
            return 1;
        printf("%10u %12.3f %14.2f %10.1f %8.0f\n", ns[i], of[i].step_ns * 1e-6, of[i].streamed_bytes * 1e-6,
               of[i].copies, of[i].tiles);
        fflush(stdout);
    }
    if (f)
        write_json(f, &s, commit, of, ns, N);
    return option_file_close(file, f) ? 0 : 1;
}
