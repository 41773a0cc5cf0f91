/* SPDX-License-Identifier: MIT
 *
 * prefill.c: see prefill.h.  Through the public API; the link's rate is measured as
 * the cliff's.
 *
 * Attention of 8 sites of 40 query heads on 8 KV heads x 128, f16, and nothing
 * else: so there is no other work for copies to hide behind.  A chunk's time is
 * from one step's end to the next one's, by events; the bound is the larger of
 * the resident chunk and of the tail's bytes at the rate of a plain copy.
 */
#include "prefill.h"

#include "cliff_cuda_device.h"
#include "json.h"
#include "options.h"
#include "rollkv/rollkv.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SITES 8u
#define KV_HEADS 8u
#define Q_HEADS 40u
#define DIM 128u
#define MOST_ROWS 8192u
#define WARM 2u
#define STEPS 7u /* at most, and unless asked otherwise */
#define MS 1e3

typedef struct chunk {
    uint64_t cells; /* before the first measured one */
    uint32_t rows;
    uint64_t ring_bytes; /* 0: the library's */
    uint32_t steps;      /* measured */
} chunk;

typedef struct figures {
    double resident_s, tail_s, link_bytes_per_s;
    double streamed_bytes, launches; /* a step; the latter: more than a launch a site, for the ring */
    uint64_t ring_bytes;
} figures;

typedef struct world {
    rkv_cache *cache;
    cudaStream_t stream;
    cudaEvent_t ended[WARM + STEPS + 1];
    void *rows; /* zeros: q, k and v of any rows; out */
    rkv_pos_range visible[MOST_ROWS];
    uint64_t n_cells;
} world;

static bool ok(rkv_status s, const char *what)
{
    if (s != RKV_OK)
        fprintf(stderr, "rollkv-bench: %s: %s\n", what, rkv_error_message());
    return s == RKV_OK;
}

static bool cuda_ok(cudaError_t e, const char *what)
{
    if (e != cudaSuccess)
        fprintf(stderr, "rollkv-bench: %s: %s\n", what, cudaGetErrorString(e));
    return e == cudaSuccess;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* --------------------------------------------------------------------- chunks */

static rkv_status make(const chunk *c, uint64_t resident, double link_bytes_per_s, rkv_cache **out)
{
    rkv_kv_layer_params layers[SITES];
    rkv_site_params sites[SITES];
    for (uint32_t i = 0; i < SITES; i++) {
        layers[i] = (rkv_kv_layer_params){.struct_size = sizeof *layers, .n_kv_heads = KV_HEADS, .head_dim_k = DIM,
                                          .resident_cells = resident};
        sites[i] = (rkv_site_params){.struct_size = sizeof *sites, .kv_layer = i, .n_q_heads = Q_HEADS};
    }
    const rkv_cache_params p = {.struct_size = sizeof p,
                                .kv_layers = layers,
                                .sites = sites,
                                .n_kv_layers = SITES,
                                .n_sites = SITES,
                                .capacity_cells = c->cells + (WARM + c->steps + 1) * (uint64_t)c->rows,
                                .n_sequences = 1,
                                .max_rows = MOST_ROWS,
                                .ring_bytes = c->ring_bytes,
                                .link_bytes_per_s = (uint64_t)link_bytes_per_s};
    return rkv_cache_create(&p, out);
}

static rkv_status append(world *w, uint32_t n_rows, bool sees_all)
{
    for (uint32_t i = 0; i < n_rows && !sees_all; i++) {
        const int64_t pos = (int64_t)(w->n_cells + i);
        w->visible[i] = (rkv_pos_range){.from = pos, .to = pos + 1};
    }
    const rkv_batch_entry entry = {.struct_size = sizeof entry, .n_rows = n_rows, .n_new_cells = n_rows,
                                   .regime = RKV_REGIME_PREFILL, .visible = sees_all ? NULL : w->visible};
    const rkv_batch batch = {.struct_size = sizeof batch, .n_entries = 1, .entries = &entry};
    rkv_status s = rkv_step_begin(w->cache, &batch);
    for (uint32_t i = 0; i < SITES && s == RKV_OK; i++) {
        const rkv_attend_params a = {.struct_size = sizeof a, .site = i, .q = {.data = w->rows},
                                     .k = {.data = w->rows}, .v = {.data = w->rows}, .out = {.data = w->rows}};
        s = rkv_step_attend(w->cache, &a, w->stream);
    }
    if (s == RKV_OK)
        s = rkv_step_end(w->cache, NULL, w->stream);
    w->n_cells += s == RKV_OK ? n_rows : 0;
    return s;
}

/* Rows of the text before see themselves alone: they cost little. */
static bool grow(world *w, const chunk *c)
{
    rkv_status s = RKV_OK;
    while (w->n_cells < c->cells && s == RKV_OK) {
        const uint64_t left = c->cells - w->n_cells;
        s = append(w, left < MOST_ROWS ? (uint32_t)left : MOST_ROWS, false);
    }
    cudaStreamSynchronize(w->stream);
    return ok(s, "growing");
}

/* The median chunk; they are enqueued one after another, as prompts are. */
static bool measure(world *w, const chunk *c, double *out_s, figures *out)
{
    rkv_cache_stats before = {.struct_size = sizeof before}, after = before;
    rkv_cache_info info = {.struct_size = sizeof info};
    double s[STEPS];
    rkv_cache_stats_get(w->cache, &before);
    cudaEventRecord(w->ended[0], w->stream);
    for (uint32_t i = 0; i < WARM + c->steps; i++) {
        if (!ok(append(w, c->rows, true), "a chunk"))
            return false;
        cudaEventRecord(w->ended[i + 1], w->stream);
    }
    if (!cuda_ok(cudaStreamSynchronize(w->stream), "the chunks"))
        return false;
    rkv_cache_stats_get(w->cache, &after);
    rkv_cache_info_get(w->cache, &info);
    for (uint32_t i = 0; i < c->steps; i++) {
        float ms = 0;
        cudaEventElapsedTime(&ms, w->ended[WARM + i], w->ended[WARM + i + 1]);
        s[i] = (double)ms * 1e-3;
    }
    qsort(s, c->steps, sizeof *s, by_value);
    *out_s = s[c->steps / 2];
    out->streamed_bytes = (double)(after.streamed_bytes - before.streamed_bytes) / (WARM + c->steps);
    out->launches = (double)(after.extra_launches - before.extra_launches) / (WARM + c->steps);
    out->ring_bytes = info.ring_bytes;
    return true;
}

static bool run_one(const chunk *c, uint64_t resident, double *out_s, figures *out)
{
    world *w = calloc(1, sizeof *w);
    const size_t bytes = (size_t)MOST_ROWS * Q_HEADS * DIM * 2;
    bool good = w && ok(make(c, resident, out->link_bytes_per_s, &w->cache), "create") &&
                cuda_ok(cudaStreamCreateWithFlags(&w->stream, cudaStreamNonBlocking), "a stream") &&
                cuda_ok(cudaMalloc(&w->rows, bytes), "device memory") && cudaMemset(w->rows, 0, bytes) == cudaSuccess;
    for (uint32_t i = 0; i <= WARM + STEPS && good; i++)
        good = cuda_ok(cudaEventCreate(&w->ended[i]), "an event");
    good = good && grow(w, c) && measure(w, c, out_s, out);
    if (!w)
        return false;
    rkv_cache_destroy(w->cache);
    cudaFree(w->rows);
    for (uint32_t i = 0; i <= WARM + STEPS; i++)
        if (w->ended[i])
            cudaEventDestroy(w->ended[i]);
    if (w->stream)
        cudaStreamDestroy(w->stream);
    free(w);
    return good;
}

/* --------------------------------------------------------------------- report */

static void print_line(const chunk *c, const figures *f, json *j)
{
    const double link_s = f->streamed_bytes / f->link_bytes_per_s;
    const double bound_s = f->resident_s > link_s ? f->resident_s : link_s;
    printf("%8llu %6u %11.3f %11.3f %10.1f %10.3f %10.3f %8.3f %8.1f %8.1f\n", (unsigned long long)c->cells, c->rows,
           f->resident_s * MS, f->tail_s * MS, f->streamed_bytes * 1e-6, link_s * MS, bound_s * MS, f->tail_s / bound_s,
           (double)f->ring_bytes * 1e-6, f->launches);
    fflush(stdout);
    if (!j->file)
        return;
    json_open(j, NULL, '{');
    json_count(j, "cells", c->cells);
    json_count(j, "rows", c->rows);
    json_number(j, "resident_s", f->resident_s);
    json_number(j, "tail_s", f->tail_s);
    json_number(j, "streamed_bytes", f->streamed_bytes);
    json_number(j, "link_s", link_s);
    json_count(j, "ring_bytes", f->ring_bytes);
    json_number(j, "extra_launches", f->launches);
    json_number(j, "over_bound", f->tail_s / bound_s);
    json_close(j, '}');
}

static bool run_chunk(const chunk *c, figures *f, json *j)
{
    if (!run_one(c, RKV_RESIDENT_ALL, &f->resident_s, f) || !run_one(c, c->cells / 4, &f->tail_s, f))
        return false;
    print_line(c, f, j);
    return true;
}

/* All chunks, or the one that was asked for. */
static bool run(const chunk *wanted, json *j)
{
    static const chunk all[] = {{32768, 512, 0, 0},  {32768, 2048, 0, 0},  {32768, 8192, 0, 0},
                                {131072, 512, 0, 0}, {131072, 2048, 0, 0}, {131072, 8192, 0, 0}};
    figures f = {0};
    bool good = ok(cliff_cuda_link(1, &f.link_bytes_per_s), "plain copies");
    printf("prefill, %u sites of %u query heads on %u KV heads x %u, f16, three quarters in the tail; link %.2f GB/s\n"
           "%8s %6s %11s %11s %10s %10s %10s %8s %8s %8s\n", SITES, Q_HEADS, KV_HEADS, DIM, f.link_bytes_per_s * 1e-9,
           "cells", "rows", "resident ms", "tail ms", "tail MB", "link ms", "bound ms", "/bound", "ring MB", "+launch");
    if (j->file)
        json_open(j, "chunks", '[');
    for (size_t i = 0; i < sizeof all / sizeof *all && good; i++) {
        chunk c = all[i];
        c.ring_bytes = wanted->ring_bytes;
        c.steps = wanted->steps;
        if ((wanted->cells && wanted->cells != c.cells) || (wanted->rows && wanted->rows != c.rows))
            continue;
        good = run_chunk(&c, &f, j);
    }
    if (j->file)
        json_close(j, ']');
    return good;
}

static const char help[] =
    "rollkv-bench prefill: chunks of a prompt, three quarters of the cache in the tail, on the first GPU\n\n"
    "  --cells N       32768 or 131072 before the chunk alone (both)\n"
    "  --rows N        chunks of 512, 2048 or 8192 rows alone (all)\n"
    "  --ring-mb X     size of the ring (0: by the library's rule)\n"
    "  --steps N       measured chunks, 1 to 7 (7)\n"
    "  --json FILE     the figures as JSON\n"
    "  --commit TEXT   to be written there, where the build does not know it\n";

int prefill_main(int argc, char **argv)
{
    static const char *const cells_names[] = {"32768", "131072", NULL};
    static const char *const rows_names[] = {"512", "2048", "8192", NULL};
    static const uint64_t cells[] = {32768, 131072, 0};
    static const uint32_t rows[] = {512, 2048, 8192, 0};
    json j = {0};
    chunk wanted = {.steps = STEPS};
    const char *file = NULL, *commit = NULL;
    uint32_t which_cells = 2, which_rows = 3; /* all */
    double ring_mb = 0;
    int n = 0;
    option_of table[] = {{.name = "cells", .kind = OPTION_NAME, .to = &which_cells, .names = cells_names},
                         {.name = "rows", .kind = OPTION_NAME, .to = &which_rows, .names = rows_names},
                         {"ring-mb", OPTION_NUMBER, &ring_mb, 0, 1e6, NULL, false},
                         {"steps", OPTION_COUNT, &wanted.steps, 1, STEPS, NULL, false},
                         {.name = "json", .kind = OPTION_TEXT, .to = &file},
                         {.name = "commit", .kind = OPTION_TEXT, .to = &commit},
                         {0}};
    const int go_on = options_parse("rollkv-bench", help, table, argc, argv);
    if (go_on < 1)
        return go_on < 0 ? 2 : 0;
    wanted.cells = cells[which_cells];
    wanted.rows = rows[which_rows];
    wanted.ring_bytes = (uint64_t)(ring_mb * 1e6);
    if (!option_file(file, &j.file))
        return 1;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        printf("skipped: no GPU\n");
        return 77;
    }
    if (j.file) {
        json_open(&j, NULL, '{');
        json_head(&j, "prefill", bench_commit(commit));
    }
    const bool good = run(&wanted, &j);
    if (j.file)
        json_close(&j, '}');
    return option_file_close(file, j.file) && good ? 0 : 1;
}
