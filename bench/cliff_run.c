/* SPDX-License-Identifier: MIT
 *
 * cliff_run.c: measures the points of a cliff curve.
 */
#include "cliff.h"

#include "cliff_cuda.h"
#include "diag.h"

#include <math.h>

static const char *const mode_names[CLIFF_MODES] = {"resident", "op-level", "ring"};

/* Tail tiles of each streaming site at a point. */
static uint64_t tiles_at(const cliff_curve *c, double point)
{
    const cliff_shape *shape = &c->options.shape;
    const double bytes = point * (double)shape->compute_ns * 1e-9 * c->link_bytes_per_s;
    const double tiles = bytes / (double)(cliff_tile_bytes(shape) * cliff_streaming_sites(shape));
    return point > 0 && tiles < 1 ? 1 : (uint64_t)(tiles + 0.5);
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double within_one(double x)
{
    return x < 0 ? 0 : x > 1 ? 1 : x;
}

static void work_out(const cliff_curve *c, cliff_row *row)
{
    const cliff_result *ring = &row->modes[CLIFF_RING], *resident = &row->modes[CLIFF_RESIDENT];
    const double launch_ns = (double)c->options.machine.launch_ns;
    row->tail_ns = (double)ring->list_bytes * 1e9 / c->link_bytes_per_s;
    row->bound_ns = larger(resident->step_ns, row->tail_ns);
    row->extra_launches = ring->launches - resident->launches;
    const double compute_ns = resident->step_ns + row->extra_launches * launch_ns;
    row->bound_launches_ns = larger(compute_ns, row->tail_ns);
    row->hidden = ring->link_busy_ns > 0 ? within_one(1 - (ring->step_ns - compute_ns) / ring->link_busy_ns) : 1;
}

static rkv_status measure(const cliff_curve *c, cliff_world *const worlds[], uint64_t tiles, FILE *progress,
                          cliff_row *row)
{
    rkv_status s = RKV_OK;
    for (uint32_t m = 0; m < CLIFF_MODES && s == RKV_OK; m++) {
        if (progress)
            fprintf(progress, "\r%s: point %u of %u (%.2f of the compute), %-8s ", c->options.shape.name,
                    row->first_point + 1, c->options.n_points, row->point, mode_names[m]);
        s = cliff_world_grow(worlds[m], tiles);
        if (s == RKV_OK)
            s = cliff_world_measure(worlds[m], c->options.warm_steps, c->options.steps, &row->modes[m]);
    }
    if (s == RKV_OK)
        work_out(c, row);
    return s;
}

cliff_row *cliff_row_add(cliff_curve *c, uint32_t first_point)
{
    cliff_row *row = &c->rows[c->n_rows++];
    *row = (cliff_row){.point = c->options.points[first_point], .first_point = first_point, .n_points = 1};
    return row;
}

double cliff_row_came_out(const cliff_row *row)
{
    return row->modes[CLIFF_RESIDENT].step_ns > 0 ? row->tail_ns / row->modes[CLIFF_RESIDENT].step_ns : 0;
}

void cliff_row_settle(const cliff_curve *c, cliff_row *row)
{
    const double *points = &c->options.points[row->first_point], came_out = cliff_row_came_out(row);
    for (uint32_t i = 0; i < row->n_points && !row->is_cut; i++)
        if (fabs(points[i] - came_out) < fabs(row->point - came_out))
            row->point = points[i];
}

static rkv_status run_points(cliff_curve *c, cliff_world *const worlds[], FILE *progress)
{
    uint64_t done = UINT64_MAX;
    for (uint32_t i = 0; i < c->options.n_points; i++) {
        const uint64_t tiles = tiles_at(c, c->options.points[i]);
        if (tiles == done) {
            c->rows[c->n_rows - 1].n_points++;
            continue;
        }
        const rkv_status s = measure(c, worlds, tiles, progress, cliff_row_add(c, i));
        if (s != RKV_OK)
            return s;
        done = tiles;
    }
    for (uint32_t i = 0; i < c->n_rows; i++)
        cliff_row_settle(c, &c->rows[i]);
    return RKV_OK;
}

/* One world a mode; their contexts grow from point to point. */
rkv_status cliff_run(const cliff_options *options, FILE *progress, cliff_curve *out)
{
    cliff_world *worlds[CLIFF_MODES] = {NULL};
    if (options->machine.executor == CLIFF_CUDA)
        return cliff_cuda_run(options, &options->ring_bytes, 1, progress, out);
    *out = (cliff_curve){.options = *options};
    if (options->n_points == 0)
        return rkvi_fail(RKV_E_ARGUMENT, "no points to measure");
    rkv_status s = cliff_link_measure(&options->machine, &out->link_bytes_per_s);
    if (s != RKV_OK)
        return s;
    cliff_setup setup = {.shape = &out->options.shape,
                         .machine = options->machine,
                         .ring_bytes = options->ring_bytes,
                         .most_tail_tiles = tiles_at(out, options->points[options->n_points - 1]),
                         .window_tiles = options->window_tiles,
                         .waits = options->waits};
    s = cliff_sizes_get(&setup, &out->sizes);
    for (uint32_t m = 0; m < CLIFF_MODES && s == RKV_OK; m++) {
        setup.mode = (cliff_mode)m;
        s = cliff_world_create(&setup, &worlds[m]);
    }
    if (s == RKV_OK)
        s = run_points(out, worlds, progress);
    if (progress)
        fputc('\n', progress);
    for (uint32_t m = 0; m < CLIFF_MODES; m++)
        cliff_world_destroy(worlds[m]);
    return s;
}

rkv_status cliff_run_rings(const cliff_options *options, const uint64_t *ring_bytes, uint32_t n, FILE *progress,
                           cliff_curve *out)
{
    rkv_status s = RKV_OK;
    if (options->machine.executor == CLIFF_CUDA)
        return cliff_cuda_run(options, ring_bytes, n, progress, out);
    for (uint32_t i = 0; i < n && s == RKV_OK; i++) {
        cliff_options o = *options;
        o.ring_bytes = ring_bytes[i];
        s = cliff_run(&o, progress, &out[i]);
    }
    return s;
}
