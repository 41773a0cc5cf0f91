/* SPDX-License-Identifier: MIT
 *
 * bench_issue: the host's time for decode steps: what begin, start, the attends
 * (or a replay) and end take of the caller's thread.  On an executor that does
 * nothing, so without the driver's part; or on a GPU, which is idle when a step
 * begins.
 *
 *   bench_issue [--cells N] [--sequences N] [--sites N] [--tail-share X] [--steps N] [--only NAME] [--cuda 1]
 *
 * Medians, in microseconds: eager in a plain cache, eager-g in one for graphs, and
 * replayed, where the graph's own launch has a column; NAME: one of them alone.
 * Instructions don't depend on the machine's load:
 *
 *   valgrind --tool=callgrind --toggle-collect='rkv_step_*' bench_issue --only eager --steps 276
 *
 * less those of --steps 20 are a tile's 256 steps. */
#include "api_internal.h"
#include "device.h"
#include "options.h"
#include "rkvi_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SITES_MAX 128u
#define STEPS_MAX 2000u
#define ROWS 8192u

/* -------------------------------------------------------------- null executor */

static rkv_status null_alloc(rkvi_device *d, size_t bytes, void **out)
{
    (void)d;
    *out = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    return *out ? RKV_OK : rkvi_fail(RKV_E_DEVICE_MEMORY, "no memory for %zu bytes", bytes);
}

static rkv_status null_free(rkvi_device *d, void *ptr)
{
    (void)d;
    free(ptr);
    return RKV_OK;
}

static rkv_status null_register(rkvi_device *d, void *ptr, size_t bytes)
{
    (void)d, (void)ptr, (void)bytes;
    return RKV_OK;
}

static rkv_status null_unregister(rkvi_device *d, void *ptr)
{
    (void)d, (void)ptr;
    return RKV_OK;
}

static rkv_status null_stream_create(rkvi_device *d, const char *name, void **out)
{
    (void)d, (void)name;
    *out = malloc(1);
    return RKV_OK;
}

static rkv_status null_stream(rkvi_device *d, void *stream)
{
    (void)d, (void)stream;
    return RKV_OK;
}

static rkv_status null_stream_destroy(rkvi_device *d, void *stream)
{
    (void)d;
    free(stream);
    return RKV_OK;
}

static rkv_status null_wait(rkvi_device *d, void *stream, rkvi_event *event)
{
    (void)d, (void)stream, (void)event;
    return RKV_OK;
}

static rkv_status null_event_create(rkvi_device *d, rkvi_event **out)
{
    (void)d;
    *out = malloc(1);
    return RKV_OK;
}

static rkv_status null_event_destroy(rkvi_device *d, rkvi_event *event)
{
    (void)d;
    free(event);
    return RKV_OK;
}

static rkv_status null_record(rkvi_device *d, rkvi_event *event, void *stream)
{
    (void)d, (void)event, (void)stream;
    return RKV_OK;
}

static rkv_status null_event(rkvi_device *d, rkvi_event *event)
{
    (void)d, (void)event;
    return RKV_OK;
}

static rkv_status null_query(rkvi_device *d, rkvi_event *event, bool *out_done)
{
    (void)d, (void)event;
    *out_done = true;
    return RKV_OK;
}

static uint64_t n_copies, n_launches;

static rkv_status null_copy(rkvi_device *d, const rkvi_copy *copy, void *stream)
{
    (void)d, (void)copy, (void)stream;
    n_copies++;
    return RKV_OK;
}

static rkv_status null_launch(rkvi_device *d, const rkvi_launch *launch, void *stream)
{
    (void)d, (void)stream;
    n_launches += launch->grid > 0;
    return RKV_OK;
}

static void null_access(rkvi_device *d, const rkvi_range *ranges, size_t n)
{
    (void)d, (void)ranges, (void)n;
}

static bool null_relax(rkvi_device *d, bool relaxed)
{
    (void)d, (void)relaxed;
    return false;
}

static rkv_status null_capture_begin(rkvi_device *d, void *stream, bool global)
{
    (void)d, (void)stream, (void)global;
    return RKV_OK;
}

static rkv_status null_capture_end(rkvi_device *d, void *stream, rkvi_graph **out)
{
    (void)d, (void)stream;
    *out = NULL;
    return RKV_OK;
}

static rkv_status null_graph_launch(rkvi_device *d, rkvi_graph *graph, void *stream)
{
    (void)d, (void)graph, (void)stream;
    return RKV_OK;
}

static rkv_status null_graph_destroy(rkvi_device *d, rkvi_graph *graph)
{
    (void)d, (void)graph;
    return RKV_OK;
}

static rkv_status null_info(rkvi_device *d, rkvi_device_info *out)
{
    (void)d;
    *out = (rkvi_device_info){.name = "null", .kernels = "none", .n_workers = 132, .numa_node = -1,
                              .memory_bytes = (uint64_t)1 << 40, .memory_free_bytes = (uint64_t)1 << 40};
    return RKV_OK;
}

static void null_destroy(rkvi_device *d)
{
    (void)d;
}

static const rkvi_device_vt null_vt = {
    .destroy = null_destroy,
    .info = null_info,
    .mem_alloc = null_alloc,
    .mem_free = null_free,
    .host_register = null_register,
    .host_unregister = null_unregister,
    .host_alloc = null_alloc,
    .host_free = null_free,
    .stream_create = null_stream_create,
    .stream_destroy = null_stream_destroy,
    .stream_sync = null_stream,
    .stream_wait = null_wait,
    .event_create = null_event_create,
    .event_destroy = null_event_destroy,
    .event_record = null_record,
    .event_sync = null_event,
    .event_query = null_query,
    .copy = null_copy,
    .launch = null_launch,
    .host_access = null_access,
    .capture_relax = null_relax,
    .capture_begin = null_capture_begin,
    .capture_end = null_capture_end,
    .graph_launch = null_graph_launch,
    .graph_destroy = null_graph_destroy,
};
static rkvi_device null_device = {.vt = &null_vt};

/* --------------------------------------------------------------------- a step */

typedef struct options {
    uint64_t cells;
    uint32_t sequences, sites, steps;
    double tail_share;
    uint32_t only; /* of names; 3: all */
    bool is_cuda;
} options;

typedef struct times {
    double begin[STEPS_MAX], start[STEPS_MAX], attends[STEPS_MAX], launch[STEPS_MAX], end[STEPS_MAX],
        library[STEPS_MAX];
} times;

/* A cache, and what its steps use. */
typedef struct world {
    const options *o;
    rkv_cache *cache;
    rkvi_device *dev;
    void *stream, *tensor;
    bool replays;
    rkv_graph graph;
    rkvi_graph *exec;
    rkv_pos_range visible[ROWS];
    uint64_t n_cells; /* of each sequence */
} world;

static clockid_t clock_used = CLOCK_THREAD_CPUTIME_ID; /* other load on the machine counts less */

static double now_us(void)
{
    struct timespec t;
    clock_gettime(clock_used, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void must(rkv_status s, const char *what)
{
    if (s == RKV_OK)
        return;
    fprintf(stderr, "bench_issue: %s: %s\n", what, rkv_error_message());
    exit(1);
}

static void attends(world *w)
{
    for (uint32_t i = 0; i < w->o->sites; i++) {
        rkv_attend_params p = {.struct_size = sizeof p, .site = i};
        p.q.data = p.k.data = p.v.data = p.out.data = w->tensor;
        must(rkv_step_attend(w->cache, &p, w->stream), "attend");
    }
}

static void capture(world *w)
{
    rkvi_graph *former = w->exec;
    must(rkvi_dev(capture_begin, w->dev, w->stream, false), "capture_begin");
    must(rkv_graph_capture(w->cache, 0, 0, w->stream), "capture");
    attends(w);
    must(rkv_graph_capture_end(w->cache, w->stream, &w->graph), "capture_end");
    must(rkvi_dev(capture_end, w->dev, w->stream, &w->exec), "capture_end");
    must(rkvi_dev(graph_destroy, w->dev, former), "graph_destroy");
}

/* Rows of growing steps see themselves alone. */
static void fill_batch(world *w, uint32_t rows, rkv_batch_entry *e)
{
    for (uint32_t r = 0; r < rows; r++)
        w->visible[r] = (rkv_pos_range){.from = (int64_t)(w->n_cells + r), .to = (int64_t)(w->n_cells + r + 1)};
    for (uint32_t i = 0; i < w->o->sequences; i++)
        e[i] = (rkv_batch_entry){.struct_size = sizeof e[0], .sequence = i, .n_rows = rows, .n_new_cells = rows,
                                 .visible = rows > 1 ? w->visible : NULL};
    w->n_cells += rows;
}

static void step(world *w, uint32_t rows, times *t, uint32_t at)
{
    static rkv_batch_entry e[4096];
    uint64_t key = 0;
    const bool replays = w->replays && rows == 1;
    fill_batch(w, rows, e);
    const rkv_batch b = {.struct_size = sizeof b, .n_entries = w->o->sequences, .entries = e};
    const double t0 = now_us();
    must(rkv_step_begin(w->cache, &b), "begin");
    const double t1 = now_us();
    must(rkv_step_start(w->cache, w->stream), "start");
    double t2 = now_us();
    const double start = t2 - t1;
    if (replays) {
        must(rkv_step_graph_key(w->cache, &key), "key");
        if (w->graph.key != key)
            capture(w);
        t2 = now_us();
        must(rkv_step_replay(w->cache, &w->graph, w->stream), "replay");
    } else {
        attends(w);
    }
    const double t3 = now_us();
    if (replays)
        must(rkvi_dev(graph_launch, w->dev, w->exec, w->stream), "launch");
    const double t4 = now_us();
    must(rkv_step_end(w->cache, NULL, w->stream), "end");
    const double t5 = now_us();
    must(rkvi_dev(stream_sync, w->dev, w->stream), "sync");
    if (!t)
        return;
    t->begin[at] = t1 - t0;
    t->start[at] = start;
    t->attends[at] = t3 - t2;
    t->launch[at] = t4 - t3;
    t->end[at] = t5 - t4;
    t->library[at] = t->begin[at] + start + t->attends[at] + t->end[at];
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, uint32_t n, double *out_p90)
{
    qsort(v, n, sizeof *v, by_value);
    *out_p90 = v[n * 9 / 10];
    return v[n / 2];
}

/* The tail is copied in pieces of 16 tile-layers through a ring of 256. */
static rkv_cache *make_cache(const options *o, bool graphs)
{
    static rkv_kv_layer_params layers[SITES_MAX];
    static rkv_site_params sites[SITES_MAX];
    rkv_cache *cache = NULL;
    const uint64_t tail = (uint64_t)((double)o->cells * o->tail_share);
    const uint32_t dim = o->is_cuda ? 128 : 8;
    const uint64_t tile_bytes = 256 * (uint64_t)dim * 4;
    /* Each sequence grows by whole steps. */
    const uint64_t rows = ROWS / o->sequences, each = o->cells / o->sequences;
    const uint64_t grown = (each + rows - 1) / rows * rows * o->sequences;
    for (uint32_t i = 0; i < o->sites; i++) {
        layers[i] = (rkv_kv_layer_params){.struct_size = sizeof layers[0], .n_kv_heads = 1, .head_dim_k = dim,
                                          .resident_cells = tail ? o->cells - tail : RKV_RESIDENT_ALL};
        sites[i] = (rkv_site_params){.struct_size = sizeof sites[0], .kv_layer = i, .n_q_heads = 5};
    }
    const rkv_cache_params p = {.struct_size = sizeof p, .kv_layers = layers, .sites = sites,
                                .n_kv_layers = o->sites, .n_sites = o->sites,
                                .capacity_cells = grown + (uint64_t)o->sequences * 4096,
                                .n_sequences = o->sequences, .max_rows = ROWS,
                                .ring_bytes = tail ? 256 * tile_bytes : 0, .copy_bytes = 16 * tile_bytes,
                                .flags = RKV_FLAG_NO_HUGE_PAGES | (graphs ? RKV_FLAG_GRAPHS : 0)};
    must(o->is_cuda ? rkv_cache_create(&p, &cache) : rkvi_api_create_on(&p, &null_device, &cache), "create");
    return cache;
}

static void print_column(const char *name, double *v, uint32_t n)
{
    double p90;
    printf("  %s %7.1f", name, median(v, n, &p90));
    printf(" (p90 %7.1f)", p90);
}

static const char *const names[] = {"eager", "eager-g", "replayed", NULL};

static void run(const options *o, uint32_t which, bool graphs, bool replays)
{
    static times t;
    static world w;
    if (o->only < 3 && o->only != which)
        return;
    w = (world){.o = o, .replays = replays, .graph = RKV_GRAPH_INIT, .cache = make_cache(o, graphs)};
    w.dev = rkvi_handle_device(w.cache);
    must(rkvi_dev(stream_create, w.dev, "engine", &w.stream), "stream");
    must(rkvi_dev(mem_alloc, w.dev, (size_t)ROWS * 5 * 128 * 4, &w.tensor), "memory");
    const uint32_t rows = ROWS / o->sequences;
    while (w.n_cells < o->cells / o->sequences)
        step(&w, rows, NULL, 0);
    for (uint32_t i = 0; i < 20; i++)
        step(&w, 1, NULL, 0);
    n_copies = n_launches = 0;
    for (uint32_t i = 0; i < o->steps; i++)
        step(&w, 1, &t, i);
    printf("%-8s", names[which]);
    print_column("begin", t.begin, o->steps);
    print_column("start", t.start, o->steps);
    print_column(replays ? "replay" : "attends", t.attends, o->steps);
    if (replays)
        print_column("(launch)", t.launch, o->steps);
    print_column("end", t.end, o->steps);
    print_column("all", t.library, o->steps);
    printf("\n");
    must(rkvi_dev(graph_destroy, w.dev, w.exec), "graph_destroy");
    must(rkvi_dev(mem_free, w.dev, w.tensor), "memory");
    must(rkvi_dev(stream_destroy, w.dev, w.stream), "stream");
    rkv_cache_destroy(w.cache);
}

static const char help[] =
    "bench_issue: the host's time for decode steps, on an executor that does nothing\n\n"
    "  --cells N        of all sequences (1048576)\n"
    "  --sequences N    1 to 4096 (1)\n"
    "  --sites N        1 to 128 (48)\n"
    "  --tail-share X   the part of the cells that is in the tail, 0 to 1 (0)\n"
    "  --steps N        measured, 1 to 2000 (600)\n"
    "  --only NAME      eager, eager-g or replayed alone\n"
    "  --cuda 1         on the first GPU\n";

int main(int argc, char **argv)
{
    options o = {.cells = 1 << 20, .sequences = 1, .sites = 48, .steps = 600, .only = 3};
    uint32_t cuda = 0;
    option_of table[] = {{"cells", OPTION_LONG, &o.cells, 1, 1e12, NULL, false},
                         {"sequences", OPTION_COUNT, &o.sequences, 1, 4096, NULL, false},
                         {"sites", OPTION_COUNT, &o.sites, 1, SITES_MAX, NULL, false},
                         {"tail-share", OPTION_NUMBER, &o.tail_share, 0, 1, NULL, false},
                         {"steps", OPTION_COUNT, &o.steps, 1, STEPS_MAX, NULL, false},
                         {.name = "only", .kind = OPTION_NAME, .to = &o.only, .names = names},
                         {"cuda", OPTION_COUNT, &cuda, 0, 1, NULL, false},
                         {0}};
    const int go_on = options_parse("bench_issue", help, table, argc, argv);
    if (go_on < 1)
        return go_on < 0 ? 2 : 0;
    o.is_cuda = cuda != 0;
#if !RKVI_HAVE_CUDA
    if (o.is_cuda)
        return option_mistake("--cuda: this build has no CUDA executor") ? 0 : 2;
#endif
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (o.is_cuda)
        clock_used = CLOCK_MONOTONIC;
    printf("%llu cells, %u sequences, %u sites, %.2f of it tail; microseconds\n", (unsigned long long)o.cells,
           o.sequences, o.sites, o.tail_share);
    run(&o, 0, false, false);
    run(&o, 1, true, false);
    run(&o, 2, true, true);
    return 0;
}
