/* SPDX-License-Identifier: MIT
 *
 * sizing.c: see sizing.h.  docs/sizing.md says what the rule is.
 *
 * Each combination of ring bytes and copy size is a world of its own
 * (cliff_world.h, simulated), measured at a few tails around the knee.  A
 * combination's figure at a tail is its step over the bound there; the sweep's
 * best is taken at each tail apart, which is more than one setting can reach.
 */
#include "sizing.h"

#include "cliff.h"
#include "cliff_shape.h"
#include "diag.h"
#include "json.h"
#include "options.h"

#include <stdlib.h>

#define MB 1e-6
#define POINTS 4u
#define STEPS 20u
#define WARM 12u
#define WINDOW_TILES 16u

static const double points[POINTS] = {0.75, 0.95, 1.1, 2};
static const double rings_mb[] = {8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 384};
static const double copies_mib[] = {1, 2, 4, 8, 16};
static const double links_gbs[] = {6.4, 25, 55.8};

typedef struct measured {
    double ring_bytes, copy_bytes;
    double step_ns[POINTS];
} measured;

typedef struct sweep {
    cliff_shape shape;
    cliff_machine machine;
    double link;         /* measured, between copies and in them */
    double resident_ns, bound_ns[POINTS];
    measured rule, best; /* best: of each point, with the ring and copy of the best worst point */
    uint32_t n;
    double free_zone_over; /* step over resident at the end of the free zone that estimate names */
    uint64_t free_zone_cells;
} sweep;

static uint64_t tiles_at(const sweep *w, double point)
{
    const double bytes = point * (double)w->shape.compute_ns * 1e-9 * w->link;
    const double tiles = bytes / (double)(cliff_tile_bytes(&w->shape) * cliff_streaming_sites(&w->shape));
    return tiles < 1 ? 1 : (uint64_t)(tiles + 0.5);
}

static cliff_setup setup_of(const sweep *w, cliff_mode mode, double ring_mb, double copy_mib)
{
    return (cliff_setup){.shape = &w->shape, .machine = w->machine, .mode = mode,
                         .ring_bytes = (uint64_t)(ring_mb * 1e6), .copy_bytes = (uint64_t)(copy_mib * 1048576),
                         .most_tail_tiles = tiles_at(w, points[POINTS - 1]), .window_tiles = WINDOW_TILES};
}

/* Of all points; ring_mb and copy_mib 0: by the rule. */
static rkv_status measure(sweep *w, cliff_mode mode, double ring_mb, double copy_mib, measured *out)
{
    const cliff_setup setup = setup_of(w, mode, ring_mb, copy_mib);
    cliff_world *world = NULL;
    cliff_sizes sizes = {0};
    rkv_status s = cliff_sizes_get(&setup, &sizes);
    if (s == RKV_OK)
        s = cliff_world_create(&setup, &world);
    *out = (measured){.ring_bytes = (double)sizes.ring_bytes, .copy_bytes = (double)sizes.copy_bytes};
    w->free_zone_cells = sizes.free_zone_cells;
    for (uint32_t i = 0; i < POINTS && s == RKV_OK; i++) {
        cliff_result r;
        s = cliff_world_grow(world, tiles_at(w, points[i]));
        if (s == RKV_OK)
            s = cliff_world_measure(world, WARM, STEPS, &r);
        if (s != RKV_OK)
            break;
        out->step_ns[i] = r.step_ns;
        const double tail_ns = (double)r.list_bytes * 1e9 / w->link;
        if (mode == CLIFF_RING)
            w->bound_ns[i] = tail_ns > w->resident_ns ? tail_ns : w->resident_ns;
        else if (i == 0)
            w->resident_ns = r.step_ns;
    }
    cliff_world_destroy(world);
    return s;
}

static double worst(const sweep *w, const measured *m)
{
    double most = 0;
    for (uint32_t i = 0; i < POINTS; i++)
        most = m->step_ns[i] / w->bound_ns[i] > most ? m->step_ns[i] / w->bound_ns[i] : most;
    return most;
}

/* A ring that holds no two tile-layers is no candidate. */
static rkv_status try_all(sweep *w)
{
    double best_worst = 1e9;
    rkv_status s = RKV_OK;
    for (size_t r = 0; r < sizeof rings_mb / sizeof *rings_mb && s == RKV_OK; r++)
        for (size_t c = 0; c < sizeof copies_mib / sizeof *copies_mib && s == RKV_OK; c++) {
            measured m;
            if (copies_mib[c] * 1048576 > rings_mb[r] * 1e6 / 2 ||
                rings_mb[r] * 1e6 < 2 * (double)cliff_tile_bytes(&w->shape))
                continue;
            s = measure(w, CLIFF_RING, rings_mb[r], copies_mib[c], &m);
            if (s != RKV_OK)
                break;
            const bool is_best = worst(w, &m) < best_worst;
            for (uint32_t i = 0; i < POINTS; i++)
                if (w->n == 0 || m.step_ns[i] < w->best.step_ns[i])
                    w->best.step_ns[i] = m.step_ns[i];
            w->n++;
            if (is_best) {
                best_worst = worst(w, &m);
                w->best.ring_bytes = m.ring_bytes;
                w->best.copy_bytes = m.copy_bytes;
            }
        }
    return s;
}

/* The step where estimate says that the tail is still free. */
static rkv_status try_free_zone(sweep *w)
{
    const cliff_setup setup = setup_of(w, CLIFF_RING, 0, 0);
    const uint64_t tiles = w->free_zone_cells / cliff_tile_cells(&w->shape);
    cliff_world *world = NULL;
    cliff_result r = {0};
    rkv_status s = cliff_world_create(&setup, &world);
    if (s == RKV_OK)
        s = cliff_world_grow(world, tiles > WINDOW_TILES ? tiles - WINDOW_TILES : 0);
    if (s == RKV_OK)
        s = cliff_world_measure(world, WARM, STEPS, &r);
    w->free_zone_over = r.step_ns / w->resident_ns;
    cliff_world_destroy(world);
    return s;
}

static rkv_status run(sweep *w)
{
    measured resident;
    rkv_status s = cliff_link_measure(&w->machine, &w->link);
    if (s == RKV_OK)
        s = measure(w, CLIFF_RESIDENT, 0, 0, &resident);
    if (s == RKV_OK)
        s = measure(w, CLIFF_RING, 0, 0, &w->rule);
    if (s == RKV_OK)
        s = try_free_zone(w);
    if (s == RKV_OK)
        s = try_all(w);
    for (uint32_t i = 0; i < POINTS; i++) /* a large ring's head start may last beyond the warm-up */
        w->best.step_ns[i] = w->best.step_ns[i] > w->bound_ns[i] ? w->best.step_ns[i] : w->bound_ns[i];
    return s;
}

/* --------------------------------------------------------------------- report */

static void print_head(void)
{
    printf("rollkv-bench sizing: simulated; step over bound with a tail of");
    for (uint32_t i = 0; i < POINTS; i++)
        printf(" %.2f", points[i]);
    printf(" x the compute\n\n%-10s %6s %8s %7s  %-27s %8s %7s  %-27s %6s %9s %9s\n", "shape", "link", "ring", "copy",
           "by the rule", "best", "copy", "best of the sweep, each", "rule/", "free zone", "step over");
    printf("%-10s %6s %8s %7s  %-27s %8s %7s  %-27s %6s %9s %9s\n", "", "GB/s", "MB", "MiB", "", "ring MB", "MiB", "",
           "best", "cells", "resident");
}

static void print(const sweep *w, json *j)
{
    double most = 0;
    printf("%-10s %6.1f %8.1f %7.1f ", w->shape.name, w->link * 1e-9, w->rule.ring_bytes * MB,
           w->rule.copy_bytes / 1048576);
    for (uint32_t i = 0; i < POINTS; i++)
        printf(" %6.3f", w->rule.step_ns[i] / w->bound_ns[i]);
    printf(" %8.1f %7.1f ", w->best.ring_bytes * MB, w->best.copy_bytes / 1048576);
    for (uint32_t i = 0; i < POINTS; i++) {
        const double over = w->rule.step_ns[i] / w->best.step_ns[i];
        printf(" %6.3f", w->best.step_ns[i] / w->bound_ns[i]);
        most = over > most ? over : most;
    }
    printf(" %6.3f %9llu %9.3f\n", most, (unsigned long long)w->free_zone_cells, w->free_zone_over);
    fflush(stdout);
    if (!j->file)
        return;
    json_open(j, NULL, '{');
    json_string(j, "shape", w->shape.name);
    json_number(j, "link_bytes_per_s", w->link);
    json_number(j, "rule_ring_bytes", w->rule.ring_bytes);
    json_number(j, "rule_copy_bytes", w->rule.copy_bytes);
    json_number(j, "best_ring_bytes", w->best.ring_bytes);
    json_number(j, "best_copy_bytes", w->best.copy_bytes);
    json_number(j, "rule_over_best", most);
    json_count(j, "combinations", w->n);
    json_count(j, "free_zone_cells", w->free_zone_cells);
    json_number(j, "free_zone_step_over_resident", w->free_zone_over);
    json_open(j, "points", '[');
    for (uint32_t i = 0; i < POINTS; i++) {
        json_open(j, NULL, '{');
        json_number(j, "tail_over_compute", points[i]);
        json_number(j, "bound_ns", w->bound_ns[i]);
        json_number(j, "rule_ns", w->rule.step_ns[i]);
        json_number(j, "best_ns", w->best.step_ns[i]);
        json_close(j, '}');
    }
    json_close(j, ']');
    json_close(j, '}');
}

static bool run_shape(const char *name, double link_gbs, json *j)
{
    static sweep w;
    w = (sweep){.machine = cliff_machine_h200(CLIFF_SIM)};
    w.machine.link_bytes_per_s = (uint64_t)(link_gbs * 1e9);
    const rkv_status s = cliff_shape_named(name, &w.shape) ? run(&w) : RKV_E_ARGUMENT;
    if (s == RKV_OK)
        print(&w, j);
    else
        fprintf(stderr, "rollkv-bench: %s at %.1f GB/s: %s\n", name, link_gbs, rkvi_error_text());
    return s == RKV_OK;
}

static const char help[] =
    "rollkv-bench sizing: the rule for ring bytes and copy size against a sweep, simulated\n\n"
    "  --shape NAME    qwen14b or gemma-a4b alone (both)\n"
    "  --json FILE     the figures as JSON\n"
    "  --commit TEXT   to be written there, where the build does not know it\n";

int sizing_main(int argc, char **argv)
{
    static const char *const shapes[] = {"qwen14b", "gemma-a4b", NULL};
    const char *file = NULL, *commit = NULL;
    uint32_t only = 2; /* both */
    json j = {0};
    bool good = true;
    option_of table[] = {{.name = "shape", .kind = OPTION_NAME, .to = &only, .names = shapes},
                         {.name = "json", .kind = OPTION_TEXT, .to = &file},
                         {.name = "commit", .kind = OPTION_TEXT, .to = &commit},
                         {0}};
    const int go_on = options_parse("rollkv-bench", help, table, argc, argv);
    if (go_on < 1)
        return go_on < 0 ? 2 : 0;
    if (!option_file(file, &j.file))
        return 1;
    if (j.file) {
        json_open(&j, NULL, '{');
        json_head(&j, "sizing", bench_commit(commit));
        json_open(&j, "sweeps", '[');
    }
    print_head();
    for (uint32_t i = 0; i < 2; i++)
        for (size_t k = 0; k < sizeof links_gbs / sizeof *links_gbs && (only == 2 || only == i); k++)
            good = run_shape(shapes[i], links_gbs[k], &j) && good;
    if (j.file) {
        json_close(&j, ']');
        json_close(&j, '}');
    }
    return option_file_close(file, j.file) && good ? 0 : 1;
}
