/* SPDX-License-Identifier: MIT
 *
 * bench_issue: the host's time for decode steps, on an executor that does
 * nothing: what begin, start, the attends (or a replay) and end take of the
 * caller's thread, without the driver's part.
 *
 *   bench_issue [--cells N] [--sequences N] [--sites N] [--tail-share X] [--steps N]
 *
 * Medians, in microseconds: eager in a plain cache, eager in one for graphs, and
 * replayed. */
#include "api_internal.h"
#include "device.h"

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
};
static rkvi_device null_device = {.vt = &null_vt};

/* --------------------------------------------------------------------- a step */

typedef struct options {
    uint64_t cells;
    uint32_t sequences, sites, steps;
    double tail_share;
} options;

typedef struct times {
    double begin[STEPS_MAX], start[STEPS_MAX], attends[STEPS_MAX], end[STEPS_MAX], all[STEPS_MAX];
} times;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* other load on the machine counts less */
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void must(rkv_status s, const char *what)
{
    if (s == RKV_OK)
        return;
    fprintf(stderr, "bench_issue: %s: %s\n", what, rkv_error_message());
    exit(1);
}

static void attends(rkv_cache *cache, const options *o)
{
    static char tensor[4096];
    for (uint32_t i = 0; i < o->sites; i++) {
        rkv_attend_params p = {.struct_size = sizeof p, .site = i};
        p.q.data = p.k.data = p.v.data = p.out.data = tensor;
        must(rkv_step_attend(cache, &p, NULL), "attend");
    }
}

static void step(rkv_cache *cache, const options *o, uint32_t rows, rkv_graph *graph, times *t, uint32_t at)
{
    static rkv_batch_entry e[4096];
    uint64_t key = 0;
    for (uint32_t i = 0; i < o->sequences; i++)
        e[i] = (rkv_batch_entry){.struct_size = sizeof e[0], .sequence = i, .n_rows = rows, .n_new_cells = rows};
    const rkv_batch b = {.struct_size = sizeof b, .n_entries = o->sequences, .entries = e};
    const double t0 = now_us();
    must(rkv_step_begin(cache, &b), "begin");
    const double t1 = now_us();
    must(rkv_step_start(cache, NULL), "start");
    double t2 = now_us();
    if (graph) {
        must(rkv_step_graph_key(cache, &key), "key");
        if (graph->key != key) {
            must(rkv_graph_capture(cache, 0, 0, NULL), "capture");
            attends(cache, o);
            must(rkv_graph_capture_end(cache, NULL, graph), "capture_end");
            t2 = now_us();
        }
        must(rkv_step_replay(cache, graph, NULL), "replay");
    } else {
        attends(cache, o);
    }
    const double t3 = now_us();
    must(rkv_step_end(cache, NULL, NULL), "end");
    const double t4 = now_us();
    if (!t)
        return;
    t->begin[at] = t1 - t0;
    t->start[at] = t2 - t1;
    t->attends[at] = t3 - t2;
    t->end[at] = t4 - t3;
    t->all[at] = t4 - t0;
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

static void run(const options *o, const char *name, bool graphs, bool replays)
{
    static rkv_kv_layer_params layers[SITES_MAX];
    static rkv_site_params sites[SITES_MAX];
    static times t;
    rkv_graph graph = RKV_GRAPH_INIT;
    rkv_cache *cache = NULL;
    const uint64_t tail = (uint64_t)((double)o->cells * o->tail_share);
    for (uint32_t i = 0; i < o->sites; i++) {
        layers[i] = (rkv_kv_layer_params){.struct_size = sizeof layers[0], .n_kv_heads = 1, .head_dim_k = 8,
                                          .resident_cells = tail ? o->cells - tail : RKV_RESIDENT_ALL};
        sites[i] = (rkv_site_params){.struct_size = sizeof sites[0], .kv_layer = i, .n_q_heads = 5};
    }
    const rkv_cache_params p = {.struct_size = sizeof p, .kv_layers = layers, .sites = sites,
                                .n_kv_layers = o->sites, .n_sites = o->sites,
                                .capacity_cells = o->cells + (uint64_t)o->sequences * 4096,
                                .n_sequences = o->sequences, .max_rows = ROWS,
                                .ring_bytes = tail ? 256 * (uint64_t)8192 : 0, .copy_bytes = 16 * 8192,
                                .flags = RKV_FLAG_NO_HUGE_PAGES | (graphs ? RKV_FLAG_GRAPHS : 0)};
    must(rkvi_api_create_on(&p, &null_device, &cache), "create");
    const uint32_t rows = ROWS / o->sequences;
    for (uint64_t done = 0; done < o->cells / o->sequences; done += rows)
        step(cache, o, rows, NULL, NULL, 0);
    for (uint32_t i = 0; i < 20; i++)
        step(cache, o, 1, replays ? &graph : NULL, NULL, 0);
    n_copies = n_launches = 0;
    for (uint32_t i = 0; i < o->steps; i++)
        step(cache, o, 1, replays ? &graph : NULL, &t, i);
    double p90, rest;
    printf("%-8s", name);
    printf(" begin %7.1f", median(t.begin, o->steps, &p90));
    printf(" (p90 %7.1f)", p90);
    printf("  start %6.1f", median(t.start, o->steps, &rest));
    printf("  %s %7.1f", replays ? "replay " : "attends", median(t.attends, o->steps, &rest));
    printf("  end %6.1f", median(t.end, o->steps, &rest));
    printf("  all %7.1f", median(t.all, o->steps, &p90));
    printf(" (p90 %7.1f)  copies %.1f launches %.1f a step\n", p90, (double)n_copies / o->steps,
           (double)n_launches / o->steps);
    rkv_cache_destroy(cache);
}

int main(int argc, char **argv)
{
    options o = {.cells = 1 << 20, .sequences = 1, .sites = 48, .steps = 600};
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--cells") == 0)
            o.cells = strtoull(argv[i + 1], NULL, 0);
        else if (strcmp(argv[i], "--sequences") == 0)
            o.sequences = (uint32_t)strtoul(argv[i + 1], NULL, 0);
        else if (strcmp(argv[i], "--sites") == 0)
            o.sites = (uint32_t)strtoul(argv[i + 1], NULL, 0);
        else if (strcmp(argv[i], "--tail-share") == 0)
            o.tail_share = strtod(argv[i + 1], NULL);
        else if (strcmp(argv[i], "--steps") == 0)
            o.steps = (uint32_t)strtoul(argv[i + 1], NULL, 0);
    }
    if (o.steps == 0 || o.steps > STEPS_MAX || o.sites == 0 || o.sites > SITES_MAX || o.sequences == 0 ||
        o.sequences > 4096) {
        fprintf(stderr, "usage: bench_issue [--cells N] [--sequences N] [--sites N] [--tail-share X] [--steps N]\n");
        return 2;
    }
    printf("%llu cells, %u sequences, %u sites, %.2f of it tail; microseconds\n", (unsigned long long)o.cells,
           o.sequences, o.sites, o.tail_share);
    run(&o, "eager", false, false);
    run(&o, "eager-g", true, false);
    run(&o, "replayed", true, true);
    return 0;
}
