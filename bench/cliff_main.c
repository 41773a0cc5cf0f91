/* SPDX-License-Identifier: MIT
 *
 * cliff_main.c: the command line of `rollkv-bench cliff`.
 */
#include "cliff.h"
#include "cliff_shape.h"
#include "diag.h"
#include "options.h"

#include <stdlib.h>
#include <string.h>

#define STEPS_SIM 32u
#define STEPS_HOST 16u
#define WARM_STEPS 8u
#define WINDOW_TILES 16u

#define STEPS_CUDA 24u
#define GIB ((uint64_t)1 << 30)
#define MOST_TAIL_GIB 16

static const double default_points[] = {0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.5, 2, 4, 8};
/* The last one is cut to the largest tail. */
static const double cuda_points[] = {0, 0.25, 0.5, 0.75, 0.9, 1, 1.1, 1.5, 2, 4, 8, 16, 1000};

static const char help[] =
    "rollkv-bench cliff: step time against tail bytes\n"
    "\n"
    "A synthetic step (delays stand for the engine's work, kernels are empty) at\n"
    "several tail sizes: all resident, copies op by op, the ring, and the bound\n"
    "max(resident step, tail bytes / link).  Table on stdout.\n"
    "\n"
    "  --executor sim|host|cuda\n"
    "                       virtual time (default); wall time on threads, whose sizes\n"
    "                       are 1/64; the first GPU, at full size, with real products\n"
    "                       and attention: a step's compute is then measured, and only\n"
    "                       the options marked * may be given\n"
    "* --shape NAME         gemma-a4b (default): 5 of 30 sites stream, 14 ms;\n"
    "                       qwen14b: 48 of 48, 7 ms; custom\n"
    "  --sites N --every K --kv-heads H --head-dim D\n"
    "                       of the custom shape: each Kth of N sites streams;\n"
    "                       H * D is a multiple of 512; not for cuda\n"
    "  --compute-ms X       compute of a step (the shape's; host: twice that)\n"
    "  --head-share X       the part of it after the last attention, 0 to 0.9 (0)\n"
    "  --jitter X           sites differ in compute by up to this part, 0 to 0.9 (0)\n"
    "* --link-gbs X         link bandwidth between copies (55.8; host: 5.58; cuda: as\n"
    "                       it is, or slowed by repeating each copy)\n"
    "  --copy-us X          cost of a copy (2.9)\n"
    "  --launch-us X        time of a launch, sim (6)\n"
    "* --ring-mb A,B,...    size of the ring (0: by the library's rule); several: a curve each, and\n"
    "                       --json is a list of them\n"
    "* --tile-cells N       cells of a tile, a power of two from 16 to 4096 (256): points are whole\n"
    "                       tiles on all streaming sites, so small ones give finer tails\n"
    "* --points A,B,...     tail time over compute, ascending\n"
    "                       (0.25,0.5,0.75,0.9,1,1.1,1.5,2,4,8; cuda: 0 before, 16 and\n"
    "                       the largest tail behind them)\n"
    "* --tail-gib X         largest tail, cuda; points beyond are cut to it (16, or\n"
    "                       what fits on the GPU when all is resident)\n"
    "* --window-tiles N     tiles of a streaming layer that stay on the device (16)\n"
    "* --graphs             the ring once more: products, and whole steps, as CUDA graphs; cuda\n"
    "* --kv-type T          of K and V: f16 (default), bf16, fp8, q8_0, q4_0; cuda\n"
    "* --cpu-threads N      the ring once more, with the CPU's share on so many threads; cuda\n"
    "* --cpu-gbs X          rate of theirs by which the share is chosen (measured); with --cpu-threads\n"
    "* --no-op-level        leave that mode out: it is slow where the tail is large; cuda\n"
    "* --wait               the host waits for each step before it begins the next\n"
    "* --steps N            measured steps a point (32; host: 16; cuda: 24; fewer with small tiles)\n"
    "  --seed N             of the jitter (1)\n"
    "* --json FILE          all settings and figures\n"
    "* --svg FILE           the curves\n"
    "* --commit TEXT        to be written into them, where the build does not know it\n"
    "  --help\n";

/* As given: options that are 0 or NULL have a default. */
typedef struct arguments {
    cliff_options options;
    cliff_custom custom;
    const char *points, *rings, *json, *svg;
    uint64_t ring_bytes[CLIFF_RINGS_MAX];
    uint32_t n_rings;
    uint32_t executor, shape, kv_type, tile_cells;
    double compute_ms, head_share, jitter, link_gbs, copy_us, launch_us, tail_gib, cpu_gbs;
} arguments;

static const char *const executor_names[] = {[CLIFF_SIM] = "sim", [CLIFF_HOST] = "host", [CLIFF_CUDA] = "cuda", NULL};
static const char *const shape_names[] = {"gemma-a4b", "qwen14b", "custom", NULL};
static const char *const type_names[] = {"f16", "bf16", "fp8", "q8_0", "q4_0", NULL};
static const rkv_type types[] = {RKV_TYPE_F16, RKV_TYPE_BF16, RKV_TYPE_FP8_E4M3, RKV_TYPE_Q8_0, RKV_TYPE_Q4_0};

/* Where an option has no effect it is refused. */
enum { IN_SIM = 1 << CLIFF_SIM, IN_HOST = 1 << CLIFF_HOST, IN_CUDA = 1 << CLIFF_CUDA };
static const struct {
    const char *name;
    uint32_t executors;
} partly[] = {{"compute-ms", IN_SIM | IN_HOST}, {"head-share", IN_SIM | IN_HOST}, {"jitter", IN_SIM | IN_HOST},
              {"seed", IN_SIM | IN_HOST},       {"copy-us", IN_SIM | IN_HOST},    {"launch-us", IN_SIM},
              {"tail-gib", IN_CUDA},            {"graphs", IN_CUDA},              {"kv-type", IN_CUDA},
              {"cpu-threads", IN_CUDA},         {"cpu-gbs", IN_CUDA},             {"no-op-level", IN_CUDA}};
static const char *const of_custom[] = {"sites", "every", "kv-heads", "head-dim"};

static bool points(const char *text, cliff_options *o)
{
    o->n_points = 0;
    for (const char *at = text; o->n_points < CLIFF_POINTS_MAX; at++) {
        char *end;
        const double v = strtod(at, &end);
        const bool rises = o->n_points ? v > o->points[o->n_points - 1] : v >= 0;
        if (end == at || !(rises && v <= 1000) || (*end && *end != ','))
            break;
        o->points[o->n_points++] = v;
        if (!*end)
            return true;
        at = end;
    }
    return option_mistake("--points %s: give at most %u numbers from 0 up to 1000, ascending", text, CLIFF_POINTS_MAX);
}

static bool rings(const char *text, arguments *a)
{
    for (const char *at = text; a->n_rings < CLIFF_RINGS_MAX; at++) {
        char *end;
        const double mb = strtod(at, &end);
        if (end == at || !(mb == 0 || (mb >= 1 && mb <= 1e6)) || (*end && *end != ','))
            break;
        a->ring_bytes[a->n_rings++] = (uint64_t)(mb * 1e6);
        if (!*end)
            return true;
        at = end;
    }
    return option_mistake("--ring-mb %s: give 0, for the rule's, or a number from 1 to 1e+06; at most %u of them", text,
                          CLIFF_RINGS_MAX);
}

/* What was given and would count for nothing. */
static bool all_count(const option_of *table, const arguments *a)
{
    const char *executor = executor_names[a->executor];
    for (size_t i = 0; i < sizeof partly / sizeof *partly; i++)
        if (options_has(table, partly[i].name) && !(partly[i].executors >> a->executor & 1))
            return option_mistake("--%s has no effect with --executor %s", partly[i].name, executor);
    for (size_t i = 0; i < sizeof of_custom / sizeof *of_custom; i++)
        if (options_has(table, of_custom[i]) && strcmp(shape_names[a->shape], "custom") != 0)
            return option_mistake("--%s has no effect with --shape %s: it is of custom", of_custom[i],
                                  shape_names[a->shape]);
    if (options_has(table, "cpu-gbs") && !a->options.cpu_threads)
        return option_mistake("--cpu-gbs has no effect without --cpu-threads");
    return true;
}

static bool choose_shape(arguments *a)
{
    cliff_shape *shape = &a->options.shape;
    if (cliff_shape_named(shape_names[a->shape], shape)) {
        /* it is one of those */
    } else if (a->executor == CLIFF_CUDA) {
        return option_mistake("--shape custom has no products: --executor cuda measures gemma-a4b and qwen14b");
    } else if (!cliff_shape_custom(&a->custom, shape)) {
        return option_mistake("custom shape of %u sites, every %u, %u x %u: at most %u sites, every at most sites, "
                              "heads * dim a multiple of %u",
                              a->custom.n_sites, a->custom.every, a->custom.n_kv_heads, a->custom.head_dim,
                              CLIFF_SITES_MAX, 8 * CLIFF_SCALE);
    }
    if (a->compute_ms > 0)
        shape->compute_ns = (int64_t)(a->compute_ms * 1e6);
    shape->head_share = a->head_share;
    shape->jitter = a->jitter;
    shape->seed = a->options.seed;
    shape->kv_type = a->executor == CLIFF_CUDA ? types[a->kv_type] : 0;
    shape->tile_cells = a->tile_cells;
    if (a->tile_cells < 16 || a->tile_cells > 4096 || a->tile_cells & (a->tile_cells - 1))
        return option_mistake("--tile-cells %u: give a power of two from 16 to 4096", a->tile_cells);
    return true;
}

/* No tile may enter the tail in a point's steps, so small tiles have room for few. */
static bool choose_steps(arguments *a)
{
    static const uint32_t usual[] = {[CLIFF_SIM] = STEPS_SIM, [CLIFF_HOST] = STEPS_HOST, [CLIFF_CUDA] = STEPS_CUDA};
    cliff_options *o = &a->options;
    const uint32_t others = a->executor == CLIFF_CUDA ? CLIFF_CUDA_OTHER_STEPS : 0;
    const uint32_t most = cliff_most_steps(&o->shape) - others, warm = WARM_STEPS < most / 3 ? WARM_STEPS : most / 3;
    if (o->steps > most - warm)
        return option_mistake("--steps %u: with tiles of %u cells at most %u, beside %u to warm up%s", o->steps,
                              cliff_tile_cells(&o->shape), most - warm, warm,
                              others ? " and a few of other kinds" : "");
    if (!o->steps)
        o->steps = usual[a->executor] < most - warm ? usual[a->executor] : most - warm;
    o->warm_steps = warm;
    return true;
}

static void default_set(cliff_options *o, bool is_cuda)
{
    const double *points = is_cuda ? cuda_points : default_points;
    o->n_points = is_cuda ? sizeof cuda_points / sizeof *cuda_points : sizeof default_points / sizeof *default_points;
    memcpy(o->points, points, o->n_points * sizeof *points);
}

/* What was not asked for: on the host executor kernels take what they take, the
 * link is ten times slower and the step twice as long, so that a thread's waking
 * up is short beside a copy and a site. */
static void fill_machine(arguments *a)
{
    cliff_machine *m = &a->options.machine;
    *m = (cliff_machine){.executor = (cliff_executor)a->executor, .link_bytes_per_s = (uint64_t)(a->link_gbs * 1e9)};
    if (m->executor == CLIFF_CUDA) /* measured, but for the link's speed if it is given */
        return;
    const cliff_machine h200 = cliff_machine_h200(m->executor);
    const bool is_host = m->executor == CLIFF_HOST;
    if (is_host && a->compute_ms <= 0)
        a->options.shape.compute_ns *= 2;
    m->device_bytes_per_s = h200.device_bytes_per_s;
    m->row_cost_ns = h200.row_cost_ns;
    m->copy_cost_ns = a->copy_us < 0 ? h200.copy_cost_ns : (int64_t)(a->copy_us * 1e3);
    m->launch_ns = a->launch_us < 0 ? h200.launch_ns : (int64_t)(a->launch_us * 1e3);
    if (!m->link_bytes_per_s)
        m->link_bytes_per_s = is_host ? h200.link_bytes_per_s / 10 : h200.link_bytes_per_s;
}

static bool fill(const option_of *table, arguments *a)
{
    cliff_options *o = &a->options;
    if (!all_count(table, a) || !choose_shape(a) || !choose_steps(a))
        return false;
    if (a->points && !points(a->points, o))
        return false;
    if (!a->points)
        default_set(o, a->executor == CLIFF_CUDA);
    if (!rings(a->rings, a))
        return false;
    if (a->n_rings > 1 && a->svg)
        return option_mistake("--svg draws one curve: give one --ring-mb");
    o->most_tail_bytes = (uint64_t)(a->tail_gib * (double)GIB);
    o->cpu_bytes_per_s = a->cpu_gbs * 1e9;
    fill_machine(a);
    return true;
}

static int parse(int argc, char **argv, arguments *a)
{
    cliff_options *o = &a->options;
    *a = (arguments){.custom = {.n_sites = 32, .every = 1, .n_kv_heads = 8, .head_dim = 128},
                     .options = {.window_tiles = WINDOW_TILES, .seed = 1},
                     .rings = "0", .tile_cells = CLIFF_TILE_CELLS, .copy_us = -1, .launch_us = -1,
                     .tail_gib = MOST_TAIL_GIB};
    option_of table[] = {
        {.name = "executor", .kind = OPTION_NAME, .to = &a->executor, .names = executor_names},
        {.name = "shape", .kind = OPTION_NAME, .to = &a->shape, .names = shape_names},
        {"sites", OPTION_COUNT, &a->custom.n_sites, 1, CLIFF_SITES_MAX, NULL, false},
        {"every", OPTION_COUNT, &a->custom.every, 1, CLIFF_SITES_MAX, NULL, false},
        {"kv-heads", OPTION_COUNT, &a->custom.n_kv_heads, 1, 256, NULL, false},
        {"head-dim", OPTION_COUNT, &a->custom.head_dim, 1, 1024, NULL, false},
        {"compute-ms", OPTION_NUMBER, &a->compute_ms, 0.1, 10000, NULL, false},
        {"head-share", OPTION_NUMBER, &a->head_share, 0, 0.9, NULL, false},
        {"jitter", OPTION_NUMBER, &a->jitter, 0, 0.9, NULL, false},
        {"link-gbs", OPTION_NUMBER, &a->link_gbs, 0.1, 1000, NULL, false},
        {"copy-us", OPTION_NUMBER, &a->copy_us, 0, 1000, NULL, false},
        {"launch-us", OPTION_NUMBER, &a->launch_us, 0, 1000, NULL, false},
        {.name = "ring-mb", .kind = OPTION_TEXT, .to = &a->rings},
        {"tile-cells", OPTION_COUNT, &a->tile_cells, 16, 4096, NULL, false},
        {.name = "points", .kind = OPTION_TEXT, .to = &a->points},
        {"tail-gib", OPTION_NUMBER, &a->tail_gib, 0.01, 1000, NULL, false},
        {"window-tiles", OPTION_COUNT, &o->window_tiles, 1, 1 << 20, NULL, false},
        {.name = "graphs", .kind = OPTION_FLAG, .to = &o->graphs},
        {.name = "kv-type", .kind = OPTION_NAME, .to = &a->kv_type, .names = type_names},
        {"cpu-threads", OPTION_COUNT, &o->cpu_threads, 1, 1024, NULL, false},
        {"cpu-gbs", OPTION_NUMBER, &a->cpu_gbs, 0.1, 1000, NULL, false},
        {.name = "no-op-level", .kind = OPTION_FLAG, .to = &o->no_op_level},
        {.name = "wait", .kind = OPTION_FLAG, .to = &o->waits},
        {"steps", OPTION_COUNT, &o->steps, 1, 150, NULL, false},
        {"seed", OPTION_LONG, &o->seed, 0, 1e15, NULL, false},
        {.name = "json", .kind = OPTION_TEXT, .to = &a->json},
        {.name = "svg", .kind = OPTION_TEXT, .to = &a->svg},
        {.name = "commit", .kind = OPTION_TEXT, .to = &o->commit},
        {0}};
    const int go_on = options_parse("rollkv-bench", help, table, argc, argv);
    return go_on == 1 && !fill(table, a) ? -1 : go_on;
}

/* Several are a list. */
static void write_curves(const cliff_curve *curves, uint32_t n, FILE *file)
{
    for (uint32_t i = 0; i < n && file; i++) {
        if (n > 1)
            fputs(i ? "," : "[", file);
        cliff_write_json(&curves[i], file);
    }
    if (n > 1 && file)
        fputs("]\n", file);
}

static int run(const arguments *a, cliff_curve *curves, FILE *json, FILE *svg)
{
    const rkv_status s = cliff_run_rings(&a->options, a->ring_bytes, a->n_rings, stderr, curves);
    if (s != RKV_OK) {
        option_mistake("%s: %s", rkvi_status_name(s), rkvi_error_text());
        return 1;
    }
    for (uint32_t i = 0; i < a->n_rings; i++) {
        if (i)
            putchar('\n');
        cliff_print(&curves[i], stdout);
        if (a->options.machine.executor == CLIFF_CUDA)
            cliff_print_steps(&curves[i], stdout);
    }
    write_curves(curves, a->n_rings, json);
    if (svg)
        cliff_write_svg(&curves[0], svg);
    const bool ok = option_file_close(a->json, json);
    return option_file_close(a->svg, svg) && ok ? 0 : 1;
}

int cliff_main(int argc, char **argv)
{
    static arguments a;
    FILE *json, *svg;
    const int go_on = parse(argc, argv, &a);
    if (go_on < 1)
        return go_on < 0 ? 2 : 0;
    if (!option_file(a.json, &json) || !option_file(a.svg, &svg))
        return 1;
    cliff_curve *curves = calloc(a.n_rings, sizeof *curves);
    const int status = curves ? run(&a, curves, json, svg) : 1;
    free(curves);
    return status;
}
