/* SPDX-License-Identifier: MIT
 *
 * overheads.c: see overheads.h.  Through the public API alone.
 *
 *   create   time to create a cache (48 KV layers of 8 heads x 128, f16) with room
 *            for a large tail; memory beyond K and V, 4,096 rows a step
 *   steps    host time of begin, attend and end with the GPU idle, at 1M cells x
 *            1 sequence and 64K x 16, 48 sites of 5 query heads on 1 KV head x
 *            128, all resident and with half of it in the tail
 *   first    from begin's call until the first kernel could start: the tables
 *            are on the device and the caller's stream has got there
 */
#include "overheads.h"

#include "json.h"
#include "options.h"
#include "rollkv/rollkv.h"

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SITES 48u
#define DIM 128u
#define GROUP 5u
#define GROW_ROWS 4096u
#define SEQUENCES_MAX 16u
#define WARM 4u
#define STEPS 12u
#define GIB 1073741824.0
#define US 1e-3

typedef struct lengths {
    const char *name;
    uint64_t cells;
    uint32_t n_sequences;
    bool has_tail;
} lengths;

typedef struct figures {
    double begin_ns, attend_ns, end_ns, first_ns, copies, step_ns; /* attend: a site; copies: a step */
} figures;

typedef struct world {
    rkv_cache *cache;
    cudaStream_t stream;
    void *rows; /* zeros: q, k and v of any rows; out */
    rkv_pos_range visible[GROW_ROWS];
    uint64_t n_cells; /* of each sequence */
    const lengths *l;
} world;

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static bool ok(rkv_status s, const char *what)
{
    if (s != RKV_OK)
        fprintf(stderr, "rollkv-bench: %s: %s\n", what, rkv_error_message());
    return s == RKV_OK;
}

/* Bytes of this process's memory that are in RAM. */
static double resident_bytes(void)
{
    unsigned long long pages = 0, unused = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f && fscanf(f, "%llu %llu", &unused, &pages) != 2)
        pages = 0;
    if (f)
        fclose(f);
    return (double)pages * 4096;
}

static double device_used_bytes(void)
{
    size_t free_bytes = 0, all = 0;
    cudaMemGetInfo(&free_bytes, &all);
    return (double)(all - free_bytes);
}

/* --------------------------------------------------------------------- create */

static rkv_status make(uint32_t n_kv_heads, uint64_t capacity, uint64_t resident, uint32_t n_sequences, rkv_cache **out)
{
    rkv_kv_layer_params layers[SITES];
    rkv_site_params sites[SITES];
    for (uint32_t i = 0; i < SITES; i++) {
        layers[i] = (rkv_kv_layer_params){.struct_size = sizeof *layers, .n_kv_heads = n_kv_heads, .head_dim_k = DIM,
                                          .resident_cells = resident};
        sites[i] = (rkv_site_params){.struct_size = sizeof *sites, .kv_layer = i, .n_q_heads = GROUP * n_kv_heads};
    }
    const rkv_cache_params p = {.struct_size = sizeof p, .kv_layers = layers, .sites = sites, .n_kv_layers = SITES,
                                .n_sites = SITES, .capacity_cells = capacity, .n_sequences = n_sequences,
                                .max_rows = GROW_ROWS};
    return rkv_cache_create(&p, out);
}

typedef struct created {
    double create_s, ready_s, destroy_s, room_bytes, tail_bytes, window_bytes;
    double device_beyond, device_measured, host_beyond;
} created;

/* Slabs come in the background; all of the tail is there once no more of it has
 * come for a while.  Returns when the last of it came. */
static int64_t wait_for_tail(rkv_cache *cache)
{
    rkv_cache_stats st = {.struct_size = sizeof st};
    uint64_t bytes = 0;
    int64_t last = now_ns();
    while (now_ns() - last < 500000000) {
        if (rkv_cache_stats_get(cache, &st) != RKV_OK)
            break;
        last = st.pinned_bytes + st.unpinned_bytes > bytes ? now_ns() : last;
        bytes = st.pinned_bytes + st.unpinned_bytes;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    return last;
}

static bool bench_create(double tail_gib, created *out)
{
    const uint64_t cell_bytes = (uint64_t)SITES * 8 * DIM * 4, window = 4096;
    const uint64_t tail_cells = (uint64_t)(tail_gib * GIB) / cell_bytes;
    rkv_cache *cache = NULL;
    cudaFree(NULL);
    const double device = device_used_bytes(), host = resident_bytes();
    int64_t t = now_ns();
    if (!ok(make(8, tail_cells + window, window, 1, &cache), "create"))
        return false;
    out->create_s = (double)(now_ns() - t) * 1e-9;
    out->room_bytes = (double)(tail_cells * cell_bytes);
    out->ready_s = (double)(wait_for_tail(cache) - t) * 1e-9;
    rkv_cache_info info = {.struct_size = sizeof info};
    rkv_cache_stats st = {.struct_size = sizeof st};
    ok(rkv_cache_info_get(cache, &info), "info");
    ok(rkv_cache_stats_get(cache, &st), "stats");
    out->tail_bytes = (double)(st.pinned_bytes + st.unpinned_bytes);
    out->window_bytes = (double)info.device_window_bytes;
    out->device_beyond = (double)(info.device_bytes - info.device_window_bytes);
    out->device_measured = device_used_bytes() - device - out->window_bytes;
    out->host_beyond = resident_bytes() - host - out->tail_bytes;
    t = now_ns();
    rkv_cache_destroy(cache);
    out->destroy_s = (double)(now_ns() - t) * 1e-9;
    return true;
}

/* ---------------------------------------------------------------------- steps */

static rkv_status attend(world *w, uint32_t site)
{
    const rkv_attend_params a = {.struct_size = sizeof a, .site = site, .q = {.data = w->rows},
                                 .k = {.data = w->rows}, .v = {.data = w->rows}, .out = {.data = w->rows}};
    return rkv_step_attend(w->cache, &a, w->stream);
}

static rkv_status begin(world *w, uint32_t rows, uint32_t regime)
{
    rkv_batch_entry entries[SEQUENCES_MAX];
    for (uint32_t e = 0; e < w->l->n_sequences; e++)
        entries[e] = (rkv_batch_entry){.struct_size = sizeof *entries, .sequence = e, .n_rows = rows,
                                       .n_new_cells = rows, .regime = regime,
                                       .visible = regime == RKV_REGIME_PREFILL ? w->visible : NULL};
    const rkv_batch batch = {.struct_size = sizeof batch, .n_entries = w->l->n_sequences, .entries = entries};
    return rkv_step_begin(w->cache, &batch);
}

/* Rows see themselves alone, so that they stream nothing and cost little. */
static bool grow(world *w)
{
    const uint32_t most = GROW_ROWS / w->l->n_sequences;
    rkv_status s = RKV_OK;
    while (w->n_cells < w->l->cells && s == RKV_OK) {
        const uint64_t left = w->l->cells - w->n_cells;
        const uint32_t rows = left < most ? (uint32_t)left : most;
        for (uint32_t i = 0; i < rows; i++) {
            const int64_t pos = (int64_t)(w->n_cells + i);
            w->visible[i] = (rkv_pos_range){.from = pos, .to = pos + 1};
        }
        s = begin(w, rows, RKV_REGIME_PREFILL);
        for (uint32_t i = 0; i < SITES && s == RKV_OK; i++)
            s = attend(w, i);
        if (s == RKV_OK)
            s = rkv_step_end(w->cache, NULL, w->stream);
        w->n_cells += rows;
    }
    cudaStreamSynchronize(w->stream);
    return ok(s, "growing");
}

static void CUDART_CB note_time(void *at)
{
    *(volatile int64_t *)at = now_ns();
}

/* One step that finds the GPU idle. */
static bool step(world *w, figures *out)
{
    int64_t reached = 0, t[4];
    cudaDeviceSynchronize();
    t[0] = now_ns();
    rkv_status s = begin(w, 1, RKV_REGIME_AUTO);
    t[1] = now_ns();
    if (s == RKV_OK)
        s = rkv_step_start(w->cache, w->stream);
    cudaLaunchHostFunc(w->stream, note_time, &reached);
    const int64_t attends = now_ns();
    for (uint32_t i = 0; i < SITES && s == RKV_OK; i++)
        s = attend(w, i);
    t[2] = now_ns();
    if (s == RKV_OK)
        s = rkv_step_end(w->cache, NULL, w->stream);
    t[3] = now_ns();
    cudaStreamSynchronize(w->stream);
    *out = (figures){.begin_ns = (double)(t[1] - t[0]), .attend_ns = (double)(t[2] - attends) / SITES,
                     .end_ns = (double)(t[3] - t[2]), .first_ns = (double)(reached - t[0]),
                     .step_ns = (double)(now_ns() - t[0])};
    w->n_cells += s == RKV_OK;
    return ok(s, "a step");
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(const figures *f, size_t offset)
{
    double v[STEPS];
    for (uint32_t i = 0; i < STEPS; i++)
        v[i] = *(const double *)((const char *)&f[i] + offset);
    qsort(v, STEPS, sizeof *v, by_value);
    return v[STEPS / 2];
}

static bool measure(world *w, figures *out)
{
    figures f[STEPS];
    rkv_cache_stats a = {.struct_size = sizeof a}, b = a;
    bool good = true;
    for (uint32_t i = 0; i < WARM && good; i++)
        good = step(w, &f[0]);
    rkv_cache_stats_get(w->cache, &a);
    for (uint32_t i = 0; i < STEPS && good; i++)
        good = step(w, &f[i]);
    rkv_cache_stats_get(w->cache, &b);
    if (good)
        *out = (figures){.begin_ns = median(f, offsetof(figures, begin_ns)),
                         .attend_ns = median(f, offsetof(figures, attend_ns)),
                         .end_ns = median(f, offsetof(figures, end_ns)),
                         .first_ns = median(f, offsetof(figures, first_ns)),
                         .step_ns = median(f, offsetof(figures, step_ns)),
                         .copies = (double)(b.copies_in - a.copies_in) / STEPS};
    return good;
}

static bool bench_steps(const lengths *l, figures *out)
{
    world w = {.l = l};
    const uint64_t all = (l->cells + 256) * l->n_sequences;
    const size_t bytes = (size_t)GROW_ROWS * GROUP * DIM * 2;
    bool good =
        ok(make(1, all, l->has_tail ? l->cells * l->n_sequences / 2 : RKV_RESIDENT_ALL, l->n_sequences, &w.cache),
           l->name);
    good = good && cudaStreamCreateWithFlags(&w.stream, cudaStreamNonBlocking) == cudaSuccess &&
           cudaMalloc(&w.rows, bytes) == cudaSuccess && cudaMemset(w.rows, 0, bytes) == cudaSuccess;
    good = good && grow(&w) && measure(&w, out);
    rkv_cache_destroy(w.cache);
    cudaFree(w.rows);
    if (w.stream)
        cudaStreamDestroy(w.stream);
    return good;
}

/* --------------------------------------------------------------------- report */

static void print_created(const created *c, json *j)
{
    printf("create with room for a tail of %.1f GiB: %.2f s; %.1f GiB of it there after %.2f s, the rest comes ahead "
           "of need; destroy %.2f s\n",
           c->room_bytes / GIB, c->create_s, c->tail_bytes / GIB, c->ready_s, c->destroy_s);
    printf("beyond K and V: device %.1f MB by info (%.1f MB by what is free), host %.1f MB\n\n",
           c->device_beyond * 1e-6, c->device_measured * 1e-6, c->host_beyond * 1e-6);
    if (!j->file)
        return;
    json_open(j, "create", '{');
    json_number(j, "tail_room_bytes", c->room_bytes);
    json_number(j, "tail_bytes_there", c->tail_bytes);
    json_number(j, "create_s", c->create_s);
    json_number(j, "tail_ready_s", c->ready_s);
    json_number(j, "destroy_s", c->destroy_s);
    json_number(j, "device_bytes_beyond_kv", c->device_beyond);
    json_number(j, "device_bytes_beyond_kv_measured", c->device_measured);
    json_number(j, "host_bytes_beyond_kv", c->host_beyond);
    json_close(j, '}');
}

static void print_steps(const lengths *l, const figures *f, json *j)
{
    printf("%-24s %9.1f %9.2f %9.1f %9.1f %9.1f %9.0f\n", l->name, f->begin_ns * US, f->attend_ns * US, f->end_ns * US,
           f->first_ns * US, f->copies, f->step_ns * US);
    fflush(stdout);
    if (!j->file)
        return;
    json_open(j, NULL, '{');
    json_string(j, "lengths", l->name);
    json_number(j, "begin_ns", f->begin_ns);
    json_number(j, "attend_ns", f->attend_ns);
    json_number(j, "end_ns", f->end_ns);
    json_number(j, "first_kernel_ns", f->first_ns);
    json_number(j, "copies", f->copies);
    json_number(j, "step_ns", f->step_ns);
    json_close(j, '}');
}

static bool run(double tail_gib, json *j)
{
    static const lengths all[] = {{"1M x 1, resident", 1 << 20, 1, false},
                                  {"1M x 1, half in tail", 1 << 20, 1, true},
                                  {"64K x 16, resident", 1 << 16, 16, false},
                                  {"64K x 16, half in tail", 1 << 16, 16, true}};
    created c = {0};
    bool good = tail_gib <= 0 || bench_create(tail_gib, &c);
    if (good && tail_gib > 0)
        print_created(&c, j);
    printf("host time with the GPU idle (us), medians\n%-24s %9s %9s %9s %9s %9s %9s\n", "", "begin", "a site", "end",
           "1st kern.", "copies", "step");
    if (j->file)
        json_open(j, "steps", '[');
    for (size_t i = 0; i < sizeof all / sizeof *all && good; i++) {
        figures f = {0};
        good = bench_steps(&all[i], &f);
        if (good)
            print_steps(&all[i], &f, j);
    }
    if (j->file)
        json_close(j, ']');
    return good;
}

static const char help[] =
    "rollkv-bench overheads: what a cache costs beyond its bytes and copies, on the first GPU\n\n"
    "  --tail-gib X    tail of the cache whose creation is measured (32; 0: no creation)\n"
    "  --json FILE     the figures as JSON\n"
    "  --commit TEXT   to be written there, where the build does not know it\n";

int overheads_main(int argc, char **argv)
{
    json j = {0};
    double tail_gib = 32;
    const char *file = NULL, *commit = NULL;
    int n = 0;
    option_of table[] = {{"tail-gib", OPTION_NUMBER, &tail_gib, 0, 4096, NULL, false},
                         {.name = "json", .kind = OPTION_TEXT, .to = &file},
                         {.name = "commit", .kind = OPTION_TEXT, .to = &commit},
                         {0}};
    const int go_on = options_parse("rollkv-bench", help, table, argc, argv);
    if (go_on < 1)
        return go_on < 0 ? 2 : 0;
    if (!option_file(file, &j.file))
        return 1;
    setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) {
        printf("skipped: no GPU\n");
        return 77;
    }
    if (j.file) {
        json_open(&j, NULL, '{');
        json_head(&j, "overheads", bench_commit(commit));
    }
    const bool good = run(tail_gib, &j);
    if (j.file)
        json_close(&j, '}');
    return option_file_close(file, j.file) && good ? 0 : 1;
}
