/* SPDX-License-Identifier: MIT
 *
 * cliff_cuda.c: see cliff_cuda.h.
 */
#include "cliff_cuda.h"

#include "cliff_cuda_device.h"
#include "cliff_cuda_world.h"
#include "config.h"
#include "device_cuda.h"
#include "diag.h"

#include <string.h>
#include <unistd.h>

#define DEVICE_SHARE 0.82 /* of the free memory, for K and V with all resident */
#define HOST_SHARE 0.7    /* of the machine's, for the tail */

typedef struct run {
    cliff_curve *curve;
    cliff_engine *engine;
    uint64_t tiles[CLIFF_POINTS_MAX]; /* of each row */
    uint64_t most_tiles;
    FILE *progress;
} run;

static const char *const mode_names[CLIFF_MODES] = {"resident", "op-level", "ring"};

/* ----------------------------------------------------------------- the machine */

/* A line of a file without its newline, or "unknown". */
static void read_line(const char *path, char *out, size_t room)
{
    FILE *f = fopen(path, "r");
    if (!f || !fgets(out, (int)room, f))
        snprintf(out, room, "unknown");
    out[strcspn(out, "\n")] = 0;
    if (f)
        fclose(f);
}

static rkv_status describe(cliff_gpu *gpu, uint64_t *out_free_bytes)
{
    rkvi_device_info info;
    int driver = 0, runtime = 0;
    const rkv_status s = rkvi_device_cuda_info(0, &info);
    if (s != RKV_OK)
        return s;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    *out_free_bytes = info.memory_free_bytes;
    gpu->memory_bytes = info.memory_bytes;
    snprintf(gpu->name, sizeof gpu->name, "%s", info.name);
    snprintf(gpu->cuda, sizeof gpu->cuda, "driver %d.%d, runtime %d.%d", driver / 1000, driver % 1000 / 10,
             runtime / 1000, runtime % 1000 / 10);
    read_line("/sys/module/nvidia/version", gpu->driver, sizeof gpu->driver);
    return RKV_OK;
}

/* The link as it is, then as it was asked for. */
static rkv_status measure_link(cliff_curve *c)
{
    const uint64_t wanted = c->options.machine.link_bytes_per_s;
    rkv_status s = cliff_cuda_link(1, &c->gpu.plain_link_bytes_per_s);
    c->gpu.repeat = 1;
    c->link_bytes_per_s = c->gpu.plain_link_bytes_per_s;
    if (s != RKV_OK || !wanted)
        return s;
    c->gpu.repeat = c->gpu.plain_link_bytes_per_s / (double)wanted;
    if (c->gpu.repeat < 1)
        return rkvi_fail(RKV_E_ARGUMENT, "a link of %.2f GB/s was asked for; this one has %.2f GB/s",
                         (double)wanted * 1e-9, c->gpu.plain_link_bytes_per_s * 1e-9);
    return cliff_cuda_link(c->gpu.repeat, &c->link_bytes_per_s);
}

/* ---------------------------------------------------------------------- points */

static uint64_t tile_bytes(const cliff_shape *shape)
{
    return cliff_cuda_cell_bytes(shape, true) * cliff_tile_cells(shape);
}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static uint64_t tiles_at(const cliff_curve *c, double point, double compute_ns)
{
    const double bytes = point * compute_ns * 1e-9 * c->link_bytes_per_s;
    return (uint64_t)(bytes / (double)tile_bytes(&c->options.shape) + 0.5);
}

/* Most tail tiles: what was asked for, and what fits on the device when all of
 * it is resident, and in the host's memory. */
static uint64_t most_tiles(const cliff_curve *c, uint64_t free_bytes)
{
    const cliff_shape *shape = &c->options.shape;
    const double cells = (double)free_bytes * DEVICE_SHARE / (double)cliff_cuda_cell_bytes(shape, false);
    const double ram = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE) * HOST_SHARE;
    const double bytes = smaller((double)c->options.most_tail_bytes, ram);
    const double window = c->options.window_tiles + 2;
    return (uint64_t)larger(1, smaller(bytes / (double)tile_bytes(shape), cells / cliff_tile_cells(shape) - window));
}

/* The rows, once the compute is known. */
static void choose_rows(run *r)
{
    cliff_curve *c = r->curve;
    uint64_t last = UINT64_MAX;
    for (uint32_t i = 0; i < c->options.n_points; i++) {
        const double compute_ns = (double)c->options.shape.compute_ns;
        double point = c->options.points[i];
        uint64_t tiles = tiles_at(c, point, compute_ns);
        tiles = tiles == 0 && point > 0 ? 1 : tiles;
        const bool is_cut = tiles > r->most_tiles;
        if (is_cut) {
            tiles = r->most_tiles;
            point = (double)(tiles * tile_bytes(&c->options.shape)) * 1e9 / c->link_bytes_per_s / compute_ns;
        }
        if (tiles == last) {
            c->rows[c->n_rows - 1].n_points++;
            continue;
        }
        r->tiles[c->n_rows] = last = tiles;
        cliff_row *row = cliff_row_add(c, i);
        row->point = point;
        row->is_cut = is_cut;
    }
}

/* ----------------------------------------------------------------------- modes */

static cliff_cuda_setup setup_of(const run *r, cliff_mode mode)
{
    const cliff_options *o = &r->curve->options;
    return (cliff_cuda_setup){.engine = r->engine,
                              .shape = &o->shape,
                              .mode = mode,
                              .repeat = r->curve->gpu.repeat,
                              .link_bytes_per_s = (uint64_t)r->curve->link_bytes_per_s,
                              .ring_bytes = mode == CLIFF_RING ? o->ring_bytes : 0,
                              .most_tail_tiles = r->most_tiles,
                              .window_tiles = o->window_tiles,
                              .waits = o->waits};
}

static cliff_result *mode_result(cliff_row *row, uint32_t mode)
{
    return &row->modes[mode];
}

static rkv_status measure_rows(run *r, cliff_cuda_world *w, const char *name,
                               cliff_result *(*of)(cliff_row *, uint32_t), uint32_t which)
{
    cliff_curve *c = r->curve;
    rkv_status s = RKV_OK;
    for (uint32_t i = 0; i < c->n_rows && s == RKV_OK; i++) {
        if (r->progress)
            fprintf(r->progress, "\r%s, %s: point %u of %u, %.0f MB   ", c->options.shape.name, name,
                    i + 1, c->n_rows, (double)(r->tiles[i] * tile_bytes(&c->options.shape)) * 1e-6);
        s = cliff_cuda_world_grow(w, r->tiles[i]);
        if (s == RKV_OK)
            s = cliff_cuda_world_measure(w, c->options.warm_steps, c->options.steps, of(&c->rows[i], which));
    }
    if (r->progress)
        fputc('\n', r->progress);
    return s;
}

/* The compute of a step is what it takes with all resident and no tail. */
static rkv_status measure_compute(run *r, cliff_cuda_world *w)
{
    cliff_curve *c = r->curve;
    cliff_result base;
    rkv_status s = cliff_cuda_world_grow(w, 0);
    if (s == RKV_OK)
        s = cliff_cuda_world_measure(w, c->options.warm_steps, c->options.steps, &base);
    if (s == RKV_OK) {
        c->options.shape.compute_ns = (int64_t)base.step_ns;
        choose_rows(r);
    }
    return s;
}

static rkv_status run_mode(run *r, cliff_mode mode)
{
    const cliff_cuda_setup setup = setup_of(r, mode);
    cliff_cuda_world *w = NULL;
    rkv_status s = cliff_cuda_world_create(&setup, &w);
    if (s == RKV_OK && mode == CLIFF_RESIDENT)
        s = measure_compute(r, w);
    if (s == RKV_OK && mode == CLIFF_RING)
        s = cliff_cuda_world_sizes(w, &r->curve->sizes);
    if (s == RKV_OK)
        s = measure_rows(r, w, mode_names[mode], mode_result, mode);
    cliff_cuda_world_destroy(w);
    return s;
}

static cliff_result *graph_result(cliff_row *row, uint32_t graphs)
{
    return &row->graphs[graphs];
}

/* The ring's points once more, in a cache for graphs. */
static rkv_status run_graphs(run *r, cliff_graphs graphs)
{
    static const char *const names[CLIFF_GRAPHS] = {"ring for graphs", "ring, pieces", "ring, one graph"};
    cliff_cuda_setup setup = setup_of(r, CLIFF_RING);
    cliff_cuda_world *w = NULL;
    setup.for_graphs = true;
    setup.graphs = graphs;
    rkv_status s = cliff_cuda_world_create(&setup, &w);
    if (s == RKV_OK)
        s = measure_rows(r, w, names[graphs], graph_result, graphs);
    cliff_cuda_world_destroy(w);
    return s;
}

/* The ring's points once more, each with the share that is chosen there. */
static rkv_status run_cpu(run *r)
{
    cliff_curve *c = r->curve;
    cliff_cuda_setup setup = setup_of(r, CLIFF_RING);
    cliff_cuda_world *w = NULL;
    setup.cpu_threads = c->options.cpu_threads;
    rkv_status s = cliff_cuda_world_create(&setup, &w);
    for (uint32_t i = 0; i < c->n_rows && s == RKV_OK; i++) {
        cliff_row *row = &c->rows[i];
        row->cpu_rates = (rkvi_cpu_rates){.step_ns = (uint64_t)row->modes[CLIFF_RESIDENT].step_ns,
                                          .link_bytes_per_s = (uint64_t)c->link_bytes_per_s,
                                          .cpu_bytes_per_s = (uint64_t)c->options.cpu_bytes_per_s};
        if (r->progress)
            fprintf(r->progress, "\r%s, cpu-share: point %u of %u ", c->options.shape.name, i + 1, c->n_rows);
        s = cliff_cuda_world_grow(w, r->tiles[i]);
        if (s == RKV_OK)
            s = cliff_cuda_world_choose_cpu_share(w, &row->cpu_rates, &row->cpu_share, &row->cpu_free_bytes);
        if (s == RKV_OK)
            s = cliff_cuda_world_measure(w, c->options.warm_steps, c->options.steps, &row->cpu);
    }
    if (r->progress)
        fputc('\n', r->progress);
    cliff_cuda_world_destroy(w);
    return s;
}

/* ------------------------------------------------------------------ conclusions */

/* What the products lose beside the ring's copies. */
static double beside_ns(const cliff_curve *c, const cliff_row *row)
{
    const double share = smaller(1, row->tail_ns / row->modes[CLIFF_RESIDENT].step_ns);
    return larger(0, c->gpu.products_beside_ns - c->gpu.products_ns) * share;
}

/* Why the ring's step is longer than the bound: the first that explains it. */
static const char *cause_of(const cliff_curve *c, const cliff_row *row)
{
    const cliff_result *ring = &row->modes[CLIFF_RING], *resident = &row->modes[CLIFF_RESIDENT];
    const double excess_ns = ring->step_ns - row->bound_ns;
    const double kernels_ns = ring->store_ns + ring->attend_ns + ring->merge_ns - resident->store_ns -
                              resident->attend_ns - resident->merge_ns;
    if (ring->step_ns <= 1.03 * row->bound_ns)
        return row->tail_ns > resident->step_ns ? "at the bound: link" : "at the bound: compute";
    if (ring->issue_ns > 0.97 * ring->step_ns)
        return "host issue";
    if (ring->copy_in_ns > 0.97 * ring->step_ns)
        return "link: copies slower than a plain one";
    if (beside_ns(c, row) > 0.5 * excess_ns)
        return "device memory: copies slow the products";
    if (kernels_ns > 0.5 * excess_ns)
        return row->extra_launches > 0 ? "kernels: further launches" : "kernels";
    if ((double)ring->run_ahead_bytes > 0.9 * (double)ring->ring_bytes)
        return "ring too small";
    return "waits between streams";
}

static void work_out(const cliff_curve *c, cliff_row *row)
{
    const cliff_result *ring = &row->modes[CLIFF_RING], *resident = &row->modes[CLIFF_RESIDENT];
    row->tail_ns = (double)ring->list_bytes * 1e9 / c->link_bytes_per_s;
    row->bound_ns = larger(resident->step_ns, row->tail_ns);
    row->bound_launches_ns = larger(resident->step_ns + beside_ns(c, row), row->tail_ns);
    row->extra_launches = ring->launches - resident->launches;
    const double shown = ring->step_ns - resident->step_ns;
    row->hidden = row->tail_ns > 0 ? larger(0, smaller(1, 1 - shown / row->tail_ns)) : 1;
    row->cause = cause_of(c, row);
}

/* What the resident step reads, as fast as a plain read would. */
static double plain_ns(const cliff_curve *c, const cliff_result *resident)
{
    return (double)(c->gpu.weight_bytes + resident->kv_bytes) * 1e9 / c->gpu.read_bytes_per_s;
}

static void conclude(cliff_curve *c)
{
    double nearest = 1e9;
    for (uint32_t i = 0; i < c->n_rows; i++) {
        cliff_row *row = &c->rows[i];
        work_out(c, row);
        cliff_row_settle(c, row);
        const double compute_ns = row->modes[CLIFF_RESIDENT].step_ns;
        const double ratio = row->tail_ns / compute_ns;
        const double off = ratio > 1 ? ratio - 1 : 1 - ratio;
        row->over_plain = compute_ns / plain_ns(c, &row->modes[CLIFF_RESIDENT]);
        c->worst_over_bound = larger(c->worst_over_bound, row->modes[CLIFF_RING].step_ns / row->bound_ns);
        if (off < nearest) {
            nearest = off;
            c->knee_row = i;
        }
    }
}

/* The products alone, and while copies cross the link, which write to the device's memory. */
static rkv_status measure_engine(run *r)
{
    cliff_gpu *g = &r->curve->gpu;
    cliff_busy *busy = NULL;
    rkv_status s = cliff_engine_products(r->engine, &g->products_ns);
    if (s == RKV_OK)
        s = cliff_engine_read(r->engine, &g->read_bytes_per_s);
    if (s == RKV_OK)
        s = cliff_busy_start((int64_t)(1.5 * CLIFF_ENGINE_TURNS * g->products_ns), g->plain_link_bytes_per_s, &busy);
    if (s != RKV_OK)
        return s;
    s = cliff_engine_products(r->engine, &g->products_beside_ns);
    cliff_busy_stop(busy);
    return s;
}

static rkv_status start(run *r)
{
    cliff_curve *c = r->curve;
    uint64_t free_bytes = 0;
    rkv_status s = measure_link(c);
    if (s == RKV_OK)
        s = cliff_engine_create(&c->options.shape, &r->engine);
    if (s == RKV_OK)
        s = measure_engine(r);
    if (s == RKV_OK)
        s = describe(&c->gpu, &free_bytes);
    if (s != RKV_OK)
        return s;
    c->gpu.weight_bytes = cliff_engine_bytes(r->engine);
    c->gpu.n_products = cliff_engine_figures(r->engine, c->gpu.products);
    /* The compute is at most some more than the products; no larger cache than the points need. */
    const double most_point = c->options.points[c->options.n_points - 1];
    const uint64_t needed = tiles_at(c, most_point, 1.5 * c->gpu.products_ns + 1e6) + 1;
    r->most_tiles = most_tiles(c, free_bytes);
    r->most_tiles = needed < r->most_tiles ? needed : r->most_tiles;
    c->options.shape.compute_ns = 0;
    return RKV_OK;
}

/* All that has a ring, and the conclusions. */
static rkv_status run_ring(run *r)
{
    const cliff_options *o = &r->curve->options;
    rkv_status s = run_mode(r, CLIFF_RING);
    for (uint32_t g = 0; g < CLIFF_GRAPHS && o->graphs && s == RKV_OK; g++)
        s = run_graphs(r, (cliff_graphs)g);
    if (s == RKV_OK && o->cpu_threads)
        s = run_cpu(r);
    if (s == RKV_OK)
        conclude(r->curve);
    return s;
}

rkv_status cliff_cuda_run(const cliff_options *options, const uint64_t *ring_bytes, uint32_t n_rings, FILE *progress,
                          cliff_curve *out)
{
    run r = {.curve = out, .progress = progress};
    *out = (cliff_curve){.options = *options};
    if (options->n_points == 0)
        return rkvi_fail(RKV_E_ARGUMENT, "no points to measure");
    rkv_status s = start(&r);
    if (s == RKV_OK)
        s = run_mode(&r, CLIFF_RESIDENT);
    if (s == RKV_OK && !options->no_op_level)
        s = run_mode(&r, CLIFF_OP_LEVEL);
    for (uint32_t i = 0; i < n_rings && s == RKV_OK; i++) {
        r.curve = &out[i];
        if (i + 1 < n_rings)
            out[i + 1] = out[i]; /* as far as it is the same for all rings */
        r.curve->options.ring_bytes = ring_bytes[i];
        s = run_ring(&r);
    }
    cliff_engine_destroy(r.engine);
    return s;
}
