/* SPDX-License-Identifier: MIT
 *
 * cliff_report.c: a cliff curve as a table, as JSON and as a drawing.
 */
#include "cliff.h"
#include "json.h"
#include "options.h"
#include "svg.h"

#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#define MB 1e-6
#define MS 1e-6

static const char *executor_words(const cliff_curve *c)
{
    static const char *const words[] = {[CLIFF_SIM] = "simulated, virtual time",
                                        [CLIFF_HOST] = "host executor, wall time",
                                        [CLIFF_CUDA] = "GPU, events"};
    return words[c->options.machine.executor];
}

/* ---------------------------------------------------------------------- table */

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static const char *const kind_names[CLIFF_KINDS] = {"cuBLAS", "cuBLASLt", "gemv"};

static void print_gpu_head(const cliff_curve *c, FILE *f)
{
    const cliff_gpu *g = &c->gpu;
    fprintf(f, "%s, NVIDIA driver %s (CUDA %s); commit %s\n", g->name, g->driver, g->cuda,
            bench_commit(c->options.commit));
    fprintf(f, "weights %.2f GB, plain read of them %.2f TB/s; the products alone take %.3f ms, %.3f x "
               "a plain read; while the link is busy %.3f ms (+%.1f %%)\n",
            (double)g->weight_bytes * 1e-9, g->read_bytes_per_s * 1e-12, g->products_ns * MS,
            g->products_ns * 1e-9 * g->read_bytes_per_s / (double)g->weight_bytes, g->products_beside_ns * MS,
            100 * (g->products_beside_ns / g->products_ns - 1));
    fprintf(f, "product of  in x out:  TB/s by");
    for (uint32_t k = 0; k < CLIFF_KINDS; k++)
        fprintf(f, " %8s", kind_names[k]);
    fprintf(f, "  (several of a size one after another; ways tried)\n");
    for (uint32_t i = 0; i < g->n_products; i++) {
        const cliff_product_figures *p = &g->products[i];
        fprintf(f, "%14u x %6u %8s", p->in, p->out, "");
        for (uint32_t k = 0; k < CLIFF_KINDS; k++)
            fprintf(f, " %8.2f", p->bytes_per_s[k] * 1e-12);
        fprintf(f, "  by %s (%u)%s\n", kind_names[p->kind], p->n_tried, p->is_even ? "" : ", some disagree");
    }
    if (g->repeat > 1)
        fprintf(f, "the link is slowed from %.2f GB/s: each copy is carried out %.2f times\n",
                g->plain_link_bytes_per_s * 1e-9, g->repeat);
}

static void print_head(const cliff_curve *c, FILE *f)
{
    const cliff_options *o = &c->options;
    const cliff_machine *m = &o->machine;
    const bool is_cuda = m->executor == CLIFF_CUDA;
    if (is_cuda)
        print_gpu_head(c, f);
    fprintf(f, "%s: %u of %u sites stream, %.2f ms of compute; %s\n", o->shape.name,
            cliff_streaming_sites(&o->shape), o->shape.n_sites, (double)o->shape.compute_ns * MS,
            executor_words(c));
    fprintf(f,
            "link %.2f GB/s (best plain copy of %u MiB); ring %.1f MB "
            "(rule: %.1f MB), copies up to %.1f MB; window %u tiles a streaming layer\n",
            c->link_bytes_per_s * 1e-9, is_cuda ? 256u : 64u, (double)c->sizes.ring_bytes * MB,
            (double)c->sizes.rule_bytes * MB, (double)c->sizes.copy_bytes * MB, o->window_tiles);
    if (cliff_tile_cells(&o->shape) != CLIFF_TILE_CELLS)
        fprintf(f, "tiles of %u cells, not %u\n", cliff_tile_cells(&o->shape), CLIFF_TILE_CELLS);
    fprintf(f, "%u steps after %u to warm up, seed %llu; step time: %s%s\n", o->steps, o->warm_steps,
            (unsigned long long)o->seed, m->executor == CLIFF_SIM ? "mean" : "median",
            o->waits ? "; the host waits for each step" : "");
    if (is_cuda) {
        const double tile = cliff_tile_cells(&o->shape);
        const double tail_cells = larger(0, (double)c->sizes.free_zone_cells - (double)o->window_tiles * tile);
        const double cell_bytes = (double)cliff_tile_bytes(&o->shape) / tile * cliff_streaming_sites(&o->shape);
        fprintf(f, "estimate: the tail is free up to %llu cells, %.1f MB of tail\n",
                (unsigned long long)c->sizes.free_zone_cells, tail_cells * cell_bytes * MB);
        return;
    }
    fprintf(f, "%.1f us a copy, %.2f us a further row of it\n", (double)m->copy_cost_ns * 1e-3,
            (double)m->row_cost_ns * 1e-3);
    if (m->executor == CLIFF_SIM)
        fprintf(f, "a launch takes %.1f us; the ring's further ones: 'r/b apart' counts them as compute\n",
                (double)m->launch_ns * 1e-3);
    else
        fprintf(f, "small sizes: bytes and bandwidth are 1/%u of what is shown; the machine's noise is in it\n",
                CLIFF_SCALE);
}

static void print_row(const cliff_row *r, FILE *f)
{
    const cliff_result *ring = &r->modes[CLIFF_RING];
    const double resident_ns = r->modes[CLIFF_RESIDENT].step_ns, op_ns = r->modes[CLIFF_OP_LEVEL].step_ns;
    const double copy_mb = ring->copies > 0 ? (double)ring->tail_bytes / ring->copies * MB : 0;
    fprintf(f, "%9.1f %7.3f %9.3f %9.3f %9.3f %9.3f %7.3f %7.3f %8.3f %7.1f %7.1f %8.2f %7.1f %8.1f %7.1f\n",
            (double)ring->list_bytes * MB, r->tail_ns / resident_ns, resident_ns * MS, op_ns * MS,
            ring->step_ns * MS, r->bound_ns * MS, ring->step_ns / r->bound_ns,
            ring->step_ns / r->bound_launches_ns, op_ns / ring->step_ns, 100 * r->hidden, ring->copies, copy_mb,
            r->extra_launches, (double)ring->run_ahead_bytes * MB, (double)ring->ring_bytes * MB);
}

/* A line for each tail that several of the points asked come to. */
static void print_shared(const cliff_curve *c, FILE *f)
{
    const cliff_options *o = &c->options;
    for (uint32_t i = 0; i < c->n_rows; i++) {
        const cliff_row *row = &c->rows[i];
        if (row->n_points < 2)
            continue;
        const bool is_last = i + 1 == c->n_rows && row->is_cut;
        fprintf(f, "points");
        for (uint32_t k = 0; k < row->n_points; k++)
            fprintf(f, "%s %g", !k ? "" : k + 1 < row->n_points ? "," : " and", o->points[row->first_point + k]);
        fprintf(f, " come to the same tail, %.1f MB (%.2f of the compute), and were measured once; %s\n",
                (double)row->modes[CLIFF_RING].list_bytes * MB, cliff_row_came_out(row),
                is_last ? "it is the largest" : "--tile-cells gives finer tails");
    }
}

void cliff_print(const cliff_curve *c, FILE *f)
{
    print_head(c, f);
    print_shared(c, f);
    fprintf(f, "\n%9s %7s %9s %9s %9s %9s %7s %7s %8s %7s %7s %8s %7s %8s %7s\n", "tail", "tail/", "resident",
            "op-level", "ring", "bound", "ring/", "r/b", "op-lvl/", "hidden", "copies", "MB", "extra", "ahead",
            "ring");
    fprintf(f, "%9s %7s %9s %9s %9s %9s %7s %7s %8s %7s %7s %8s %7s %8s %7s\n", "MB", "compute", "ms", "ms", "ms", "ms",
            "bound", c->options.machine.executor == CLIFF_CUDA ? "beside" : "apart", "ring", "%", "a step", "a copy",
            "launch", "MB", "MB");
    for (uint32_t i = 0; i < c->n_rows; i++)
        print_row(&c->rows[i], f);
}

/* ----------------------------------------------------------------------- JSON */

static void cpu_name(char *out, size_t room)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(out, room, "unknown");
    while (f && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) || !colon)
            continue;
        line[strcspn(line, "\n")] = 0;
        snprintf(out, room, "%s", colon + 2);
        break;
    }
    if (f)
        fclose(f);
}

static void json_gpu(json *j, const cliff_gpu *g)
{
    json_open(j, "gpu", '{');
    json_string(j, "name", g->name);
    json_string(j, "driver", g->driver);
    json_string(j, "cuda", g->cuda);
    json_count(j, "memory_bytes", g->memory_bytes);
    json_number(j, "plain_link_bytes_per_s", g->plain_link_bytes_per_s);
    json_number(j, "copy_repeats", g->repeat);
    json_number(j, "plain_read_bytes_per_s", g->read_bytes_per_s);
    json_count(j, "weight_bytes", g->weight_bytes);
    json_number(j, "products_ns", g->products_ns);
    json_number(j, "products_beside_copies_ns", g->products_beside_ns);
    json_open(j, "products", '[');
    for (uint32_t i = 0; i < g->n_products; i++) {
        const cliff_product_figures *p = &g->products[i];
        json_open(j, NULL, '{');
        json_count(j, "in", p->in);
        json_count(j, "out", p->out);
        json_string(j, "by", kind_names[p->kind]);
        for (uint32_t k = 0; k < CLIFF_KINDS; k++) /* bytes a second */
            json_number(j, kind_names[k], p->bytes_per_s[k]);
        json_close(j, '}');
    }
    json_close(j, ']');
    json_close(j, '}');
}

static void json_machine(json *j)
{
    struct utsname u;
    char cpu[200];
    cpu_name(cpu, sizeof cpu);
    json_open(j, "machine", '{');
    json_string(j, "cpu", cpu);
    json_count(j, "cores", (uint64_t)sysconf(_SC_NPROCESSORS_ONLN));
    if (uname(&u) == 0) {
        json_string(j, "system", u.sysname);
        json_string(j, "release", u.release);
        json_string(j, "architecture", u.machine);
    }
    json_close(j, '}');
}

static void json_settings(json *j, const cliff_curve *c)
{
    const cliff_options *o = &c->options;
    json_open(j, "settings", '{');
    json_string(j, "shape", o->shape.name);
    json_count(j, "sites", o->shape.n_sites);
    json_count(j, "streaming_sites", cliff_streaming_sites(&o->shape));
    json_count(j, "tile_layer_bytes", cliff_tile_bytes(&o->shape));
    json_count(j, "compute_ns", (uint64_t)o->shape.compute_ns);
    json_number(j, "head_share", o->shape.head_share);
    json_number(j, "jitter", o->shape.jitter);
    static const char *const executors[] = {"sim", "host", "cuda"};
    json_string(j, "executor", executors[o->machine.executor]);
    json_count(j, "link_setting_bytes_per_s", o->machine.link_bytes_per_s);
    json_count(j, "copy_cost_ns", (uint64_t)o->machine.copy_cost_ns);
    json_count(j, "row_cost_ns", (uint64_t)o->machine.row_cost_ns);
    json_count(j, "device_bytes_per_s", o->machine.device_bytes_per_s);
    json_count(j, "launch_ns", (uint64_t)o->machine.launch_ns);
    json_count(j, "scale", o->machine.executor == CLIFF_CUDA ? 1 : CLIFF_SCALE);
    json_count(j, "hidden", o->shape.hidden);
    json_count(j, "feed_forward", o->shape.feed_forward);
    json_count(j, "vocabulary", o->shape.vocabulary);
    json_count(j, "most_tail_bytes", o->most_tail_bytes);
    json_count(j, "steps", o->steps);
    json_count(j, "warm_steps", o->warm_steps);
    json_count(j, "tile_cells", cliff_tile_cells(&o->shape));
    json_count(j, "window_tiles", o->window_tiles);
    json_count(j, "ring_bytes", c->sizes.ring_bytes);
    json_count(j, "ring_rule_bytes", c->sizes.rule_bytes);
    json_count(j, "copy_bytes", c->sizes.copy_bytes);
    json_count(j, "free_zone_cells", c->sizes.free_zone_cells);
    json_string(j, "kv_type", rkvi_type_name(o->shape.kv_type ? o->shape.kv_type : RKV_TYPE_F16));
    json_count(j, "cpu_threads", o->cpu_threads);
    json_count(j, "seed", o->seed);
    json_count(j, "host_waits_each_step", o->waits);
    json_open(j, "points", '[');
    for (uint32_t i = 0; i < o->n_points; i++)
        json_number(j, NULL, o->points[i]);
    json_close(j, ']');
    json_close(j, '}');
}

static void json_step(json *j, const cliff_result *r)
{
    json_number(j, "wall_ns", r->wall_ns);
    json_number(j, "issue_ns", r->issue_ns);
    json_number(j, "products_issue_ns", r->products_issue_ns);
    json_number(j, "store_ns", r->store_ns);
    json_number(j, "attend_ns", r->attend_ns);
    json_number(j, "merge_ns", r->merge_ns);
    json_number(j, "tables_ns", r->tables_ns);
    json_number(j, "copy_in_bytes_per_s", r->copy_in_bytes_per_s);
    json_number(j, "host_waits", r->host_waits);
    json_count(j, "kv_bytes", r->kv_bytes);
}

static void json_mode(json *j, const char *name, const cliff_result *r)
{
    json_open(j, name, '{');
    json_number(j, "step_ns", r->step_ns);
    json_number(j, "p10_ns", r->p10_ns);
    json_number(j, "p90_ns", r->p90_ns);
    json_number(j, "least_ns", r->least_ns);
    json_number(j, "most_ns", r->most_ns);
    json_number(j, "copies", r->copies);
    json_number(j, "launches", r->launches);
    json_number(j, "link_busy_ns", r->link_busy_ns);
    json_count(j, "tail_bytes", r->list_bytes);
    json_count(j, "streamed_bytes", r->tail_bytes);
    json_count(j, "run_ahead_bytes", r->run_ahead_bytes);
    json_count(j, "context_cells", r->context_cells);
    if (r->wall_ns > 0)
        json_step(j, r);
    json_close(j, '}');
}

static void json_cpu(json *j, const cliff_curve *c, const cliff_row *r)
{
    const cliff_cpu_model m = cliff_cpu_model_of(c, r);
    json_mode(j, "ring_with_cpu_share", &r->cpu);
    json_open(j, "cpu_share", '{');
    json_count(j, "share_16ths", r->cpu_share);
    json_count(j, "free_bytes", r->cpu_free_bytes);
    json_number(j, "cpu_bytes", r->cpu.cpu_bytes);
    json_number(j, "cpu_ns", r->cpu.cpu_ns);
    json_count(j, "cpu_bytes_per_s", r->cpu_rates.cpu_bytes_per_s);
    json_count(j, "link_beside_bytes_per_s", r->cpu_rates.beside_bytes_per_s);
    json_number(j, "model_ns", m.step_ns);
    json_number(j, "model_beside_ns", m.step_beside_ns);
    json_close(j, '}');
}

static void json_row(json *j, const cliff_curve *c, const cliff_row *r)
{
    json_open(j, NULL, '{');
    json_number(j, "point", r->point);
    json_open(j, "points_asked", '[');
    for (uint32_t i = 0; i < r->n_points; i++)
        json_number(j, NULL, c->options.points[r->first_point + i]);
    json_close(j, ']');
    json_number(j, "tail_over_compute", cliff_row_came_out(r));
    json_number(j, "tail_ns", r->tail_ns);
    json_number(j, "bound_ns", r->bound_ns);
    json_number(j, r->cause ? "bound_beside_copies_ns" : "bound_with_launches_ns", r->bound_launches_ns);
    json_number(j, "extra_launches", r->extra_launches);
    json_number(j, "hidden", r->hidden);
    if (r->cause) {
        json_string(j, "cause", r->cause);
        json_number(j, "resident_over_plain_read", r->over_plain);
    }
    json_mode(j, "resident", &r->modes[CLIFF_RESIDENT]);
    json_mode(j, "op_level", &r->modes[CLIFF_OP_LEVEL]);
    json_mode(j, "ring", &r->modes[CLIFF_RING]);
    if (r->cpu.step_ns > 0)
        json_cpu(j, c, r);
    if (r->graphs[CLIFF_WHOLE].step_ns > 0) {
        json_mode(j, "ring_for_graphs", &r->graphs[CLIFF_EAGER]);
        json_mode(j, "ring_in_pieces", &r->graphs[CLIFF_PIECES]);
        json_mode(j, "ring_as_graph", &r->graphs[CLIFF_WHOLE]);
    }
    json_close(j, '}');
}

void cliff_write_json(const cliff_curve *c, FILE *file)
{
    json j = {.file = file};
    json_open(&j, NULL, '{');
    json_head(&j, "cliff", bench_commit(c->options.commit));
    json_string(&j, "version", rkv_build_info());
    json_machine(&j);
    if (c->options.machine.executor == CLIFF_CUDA)
        json_gpu(&j, &c->gpu);
    json_settings(&j, c);
    json_number(&j, "link_bytes_per_s", c->link_bytes_per_s);
    json_open(&j, "rows", '[');
    for (uint32_t i = 0; i < c->n_rows; i++)
        json_row(&j, c, &c->rows[i]);
    json_close(&j, ']');
    json_close(&j, '}');
}

/* -------------------------------------------------------------------- drawing */

void cliff_write_svg(const cliff_curve *c, FILE *file)
{
    enum { BOUND = CLIFF_MODES, ALL };
    double x[CLIFF_POINTS_MAX], y[ALL][CLIFF_POINTS_MAX];
    char title[120], subtitle[240];
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->n_rows; i++) {
        if (c->rows[i].modes[CLIFF_RING].list_bytes == 0) /* no place on a logarithmic axis */
            continue;
        x[n] = (double)c->rows[i].modes[CLIFF_RING].list_bytes * MB;
        for (uint32_t m = 0; m < CLIFF_MODES; m++)
            y[m][n] = c->rows[i].modes[m].step_ns * MS;
        y[BOUND][n++] = c->rows[i].bound_ns * MS;
    }
    const svg_series series[ALL] = {
        {.label = "op-level", .colour = "#d1495b", .x = x, .y = y[CLIFF_OP_LEVEL]},
        {.label = "ring", .colour = "#1f77b4", .x = x, .y = y[CLIFF_RING]},
        {.label = "all resident", .colour = "#4a9a4a", .x = x, .y = y[CLIFF_RESIDENT]},
        {.label = "bound", .colour = "#111111", .is_dashed = true, .x = x, .y = y[BOUND]},
    };
    const bool is_cuda = c->options.machine.executor == CLIFF_CUDA;
    snprintf(title, sizeof title, "Step time against tail bytes: %s", c->options.shape.name);
    snprintf(subtitle, sizeof subtitle, "%u of %u sites stream, %.1f ms of compute, link %.1f GB/s, ring %.0f MB; %s",
             cliff_streaming_sites(&c->options.shape), c->options.shape.n_sites,
             (double)c->options.shape.compute_ns * MS, c->link_bytes_per_s * 1e-9,
             (double)c->sizes.ring_bytes * MB, is_cuda ? c->gpu.name : executor_words(c));
    svg_write(file, &(svg_chart){.title = title,
                                 .subtitle = subtitle,
                                 .x_label = "tail bytes a step (MB)",
                                 .y_label = "step time (ms)",
                                 .series = series + c->options.no_op_level,
                                 .n_series = ALL - c->options.no_op_level,
                                 .n_points = n});
}
