/* SPDX-License-Identifier: MIT
 *
 * cliff_main.c: the command line of `rollkv-bench cliff`.
 */
#include "cliff.h"
#include "cliff_shape.h"
#include "diag.h"

#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_SIM 32u
#define STEPS_HOST 16u
#define WARM_STEPS 8u
#define WINDOW_TILES 16u

#define STEPS_CUDA 24u
#define GIB ((uint64_t)1 << 30)
#define MOST_TAIL_BYTES (16 * GIB)

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
    "                       and attention: a step's compute is then measured, and of\n"
    "                       the options below only those marked * count\n"
    "* --shape NAME         gemma-a4b (default): 5 of 30 sites stream, 14 ms;\n"
    "                       qwen14b: 48 of 48, 7 ms; custom\n"
    "  --sites N --every K --kv-heads H --head-dim D\n"
    "                       of the custom shape: each Kth of N sites streams;\n"
    "                       H * D is a multiple of 512\n"
    "  --compute-ms X       compute of a step (the shape's; host: twice that)\n"
    "  --head-share X       the part of it after the last attention, 0 to 0.9 (0)\n"
    "  --jitter X           sites differ in compute by up to this part, 0 to 0.9 (0)\n"
    "* --link-gbs X         link bandwidth between copies (55.8; host: 5.58; cuda: as\n"
    "                       it is, or slowed by repeating each copy)\n"
    "  --copy-us X          cost of a copy (2.9)\n"
    "  --launch-us X        time of a launch, sim (6)\n"
    "* --ring-mb X          size of the ring (by the library's rule)\n"
    "* --points A,B,...     tail time over compute, ascending\n"
    "                       (0.25,0.5,0.75,0.9,1,1.1,1.5,2,4,8; cuda: 0 before, 16 and\n"
    "                       the largest tail behind them)\n"
    "* --tail-gib X         largest tail, cuda; points beyond are cut to it (16, or\n"
    "                       what fits on the GPU when all is resident)\n"
    "* --window-tiles N      tiles of a streaming layer that stay on the device (16)\n"
    "* --graphs             the ring once more: products, and whole steps, as CUDA graphs; cuda\n"
    "* --kv-type T          of K and V: f16 (default), bf16, fp8, q8_0, q4_0; cuda\n"
    "* --cpu-threads N      the ring once more, with the CPU's share on so many threads; cuda\n"
    "* --cpu-gbs X          rate of theirs by which the share is chosen (measured)\n"
    "* --no-op-level        leave that mode out: it is slow where the tail is large; cuda\n"
    "* --wait               the host waits for each step before it begins the next\n"
    "* --steps N            measured steps a point (32; host: 16; cuda: 24)\n"
    "  --seed N             of the jitter (1)\n"
    "* --json FILE          all settings and figures\n"
    "* --svg FILE           the curves\n"
    "* --commit TEXT        to be written into them, where the build does not know it\n"
    "  --help\n";

typedef struct arguments {
    cliff_options options;
    cliff_custom custom;
    const char *shape, *json, *svg;
    rkv_type kv_type;
    double compute_ms, head_share, jitter;
} arguments;

enum {
    O_EXECUTOR = 1, O_SHAPE, O_SITES, O_EVERY, O_KV_HEADS, O_HEAD_DIM, O_COMPUTE, O_HEAD, O_JITTER, O_LINK,
    O_COPY, O_LAUNCH, O_RING, O_POINTS, O_STEPS, O_SEED, O_JSON, O_TAIL, O_COMMIT, O_SVG, O_WAIT, O_WINDOW, O_NO_OP, O_GRAPHS, O_CPU_THREADS, O_CPU_GBS, O_KV_TYPE, O_HELP
};

static const struct option long_options[] = {
    {"executor", 1, NULL, O_EXECUTOR},  {"shape", 1, NULL, O_SHAPE},     {"sites", 1, NULL, O_SITES},
    {"every", 1, NULL, O_EVERY},        {"kv-heads", 1, NULL, O_KV_HEADS}, {"head-dim", 1, NULL, O_HEAD_DIM},
    {"compute-ms", 1, NULL, O_COMPUTE}, {"head-share", 1, NULL, O_HEAD}, {"jitter", 1, NULL, O_JITTER},
    {"link-gbs", 1, NULL, O_LINK},      {"copy-us", 1, NULL, O_COPY},    {"launch-us", 1, NULL, O_LAUNCH},
    {"ring-mb", 1, NULL, O_RING},       {"points", 1, NULL, O_POINTS},   {"steps", 1, NULL, O_STEPS},
    {"seed", 1, NULL, O_SEED},          {"json", 1, NULL, O_JSON},       {"svg", 1, NULL, O_SVG},
    {"tail-gib", 1, NULL, O_TAIL},      {"commit", 1, NULL, O_COMMIT},
    {"window-tiles", 1, NULL, O_WINDOW}, {"no-op-level", 0, NULL, O_NO_OP},
    {"graphs", 0, NULL, O_GRAPHS},      {"cpu-threads", 1, NULL, O_CPU_THREADS}, {"cpu-gbs", 1, NULL, O_CPU_GBS},
    {"kv-type", 1, NULL, O_KV_TYPE},
    {"wait", 0, NULL, O_WAIT},          {"help", 0, NULL, O_HELP},       {NULL, 0, NULL, 0}};

/* A number in [low, high], or a sentence and false. */
static bool number(const char *name, const char *text, double low, double high, double *out)
{
    char *end;
    const double v = strtod(text, &end);
    if (end != text && *end == 0 && v >= low && v <= high) {
        *out = v;
        return true;
    }
    fprintf(stderr, "rollkv-bench: --%s %s: give a number from %g to %g\n", name, text, low, high);
    return false;
}

static bool count(const char *name, const char *text, uint32_t high, uint32_t *out)
{
    double v;
    if (!number(name, text, 1, high, &v))
        return false;
    *out = (uint32_t)v;
    return true;
}

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
    fprintf(stderr, "rollkv-bench: --points %s: give at most %u numbers from 0 up to 1000, ascending\n", text,
            CLIFF_POINTS_MAX);
    return false;
}

static bool executor(const char *text, cliff_machine *m)
{
    static const char *const names[] = {[CLIFF_SIM] = "sim", [CLIFF_HOST] = "host", [CLIFF_CUDA] = "cuda"};
    for (uint32_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(text, names[i]) == 0) {
            m->executor = (cliff_executor)i;
            return true;
        }
    fprintf(stderr, "rollkv-bench: --executor %s: there are sim, host and cuda\n", text);
    return false;
}

static bool kv_type(const char *text, rkv_type *out)
{
    static const rkv_type types[] = {RKV_TYPE_F16, RKV_TYPE_BF16, RKV_TYPE_FP8_E4M3, RKV_TYPE_Q8_0, RKV_TYPE_Q4_0};
    static const char *const names[] = {"f16", "bf16", "fp8", "q8_0", "q4_0"};
    for (uint32_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(text, names[i]) == 0) {
            *out = types[i];
            return true;
        }
    fprintf(stderr, "rollkv-bench: --kv-type %s: there are f16, bf16, fp8, q8_0 and q4_0\n", text);
    return false;
}

/* Of the machine: a value in the unit of its option. */
static bool machine_option(int o, const char *name, const char *text, cliff_options *c)
{
    double v;
    cliff_machine *m = &c->machine;
    switch (o) {
    case O_LINK:
        if (!number(name, text, 0.1, 1000, &v))
            return false;
        m->link_bytes_per_s = (uint64_t)(v * 1e9);
        return true;
    case O_COPY:
        if (!number(name, text, 0, 1000, &v))
            return false;
        m->copy_cost_ns = (int64_t)(v * 1e3);
        return true;
    case O_LAUNCH:
        if (!number(name, text, 0, 1000, &v))
            return false;
        m->launch_ns = (int64_t)(v * 1e3);
        return true;
    default:
        if (!number(name, text, 1, 1e6, &v))
            return false;
        c->ring_bytes = (uint64_t)(v * 1e6);
        return true;
    }
}

static bool one_option(int o, const char *name, const char *text, arguments *a)
{
    double v;
    switch (o) {
    case O_EXECUTOR: return executor(text, &a->options.machine);
    case O_SHAPE: a->shape = text; return true;
    case O_SITES: return count(name, text, CLIFF_SITES_MAX, &a->custom.n_sites);
    case O_EVERY: return count(name, text, CLIFF_SITES_MAX, &a->custom.every);
    case O_KV_HEADS: return count(name, text, 256, &a->custom.n_kv_heads);
    case O_HEAD_DIM: return count(name, text, 1024, &a->custom.head_dim);
    case O_COMPUTE: return number(name, text, 0.1, 10000, &a->compute_ms);
    case O_HEAD: return number(name, text, 0, 0.9, &a->head_share);
    case O_JITTER: return number(name, text, 0, 0.9, &a->jitter);
    case O_POINTS: return points(text, &a->options);
    case O_STEPS: return count(name, text, 150, &a->options.steps);
    case O_SEED:
        if (!number(name, text, 0, 1e15, &v))
            return false;
        a->options.seed = (uint64_t)v;
        return true;
    case O_JSON: a->json = text; return true;
    case O_SVG: a->svg = text; return true;
    case O_COMMIT: a->options.commit = text; return true;
    case O_TAIL:
        if (!number(name, text, 0.01, 1000, &v))
            return false;
        a->options.most_tail_bytes = (uint64_t)(v * (double)GIB);
        return true;
    case O_WAIT: a->options.waits = true; return true;
    case O_WINDOW: return count(name, text, 1 << 20, &a->options.window_tiles);
    case O_NO_OP: a->options.no_op_level = true; return true;
    case O_GRAPHS: a->options.graphs = true; return true;
    case O_CPU_THREADS: return count(name, text, 1024, &a->options.cpu_threads);
    case O_KV_TYPE: return kv_type(text, &a->kv_type);
    case O_CPU_GBS:
        if (!number(name, text, 0.1, 1000, &v))
            return false;
        a->options.cpu_bytes_per_s = v * 1e9;
        return true;
    default: return machine_option(o, name, text, &a->options);
    }
}

static bool choose_shape(arguments *a)
{
    cliff_shape *shape = &a->options.shape;
    if (strcmp(a->shape, "custom") == 0 && !cliff_shape_custom(&a->custom, shape)) {
        fprintf(stderr, "rollkv-bench: custom shape of %u sites, every %u, %u x %u: at most %u sites, every at "
                        "most sites, heads * dim a multiple of %u\n",
                a->custom.n_sites, a->custom.every, a->custom.n_kv_heads, a->custom.head_dim, CLIFF_SITES_MAX,
                8 * CLIFF_SCALE);
        return false;
    }
    if (strcmp(a->shape, "custom") && !cliff_shape_named(a->shape, shape)) {
        fprintf(stderr, "rollkv-bench: --shape %s: there are gemma-a4b, qwen14b and custom\n", a->shape);
        return false;
    }
    if (a->compute_ms > 0)
        shape->compute_ns = (int64_t)(a->compute_ms * 1e6);
    shape->head_share = a->head_share;
    shape->jitter = a->jitter;
    shape->seed = a->options.seed;
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
static void fill_defaults(arguments *a)
{
    cliff_machine *m = &a->options.machine;
    if (!a->options.n_points)
        default_set(&a->options, m->executor == CLIFF_CUDA);
    if (m->executor == CLIFF_CUDA) { /* measured, but for the link's speed if it is given */
        *m = (cliff_machine){.executor = CLIFF_CUDA, .link_bytes_per_s = m->link_bytes_per_s};
        a->options.shape.kv_type = a->kv_type;
        a->options.steps = a->options.steps ? a->options.steps : STEPS_CUDA;
        return;
    }
    const cliff_machine h200 = cliff_machine_h200(m->executor);
    const bool is_host = m->executor == CLIFF_HOST;
    if (is_host && a->compute_ms <= 0)
        a->options.shape.compute_ns *= 2;
    if (!a->options.steps)
        a->options.steps = is_host ? STEPS_HOST : STEPS_SIM;
    m->device_bytes_per_s = h200.device_bytes_per_s;
    m->row_cost_ns = h200.row_cost_ns;
    m->copy_cost_ns = m->copy_cost_ns < 0 ? h200.copy_cost_ns : m->copy_cost_ns;
    m->launch_ns = m->launch_ns < 0 || is_host ? h200.launch_ns : m->launch_ns;
    if (!m->link_bytes_per_s)
        m->link_bytes_per_s = is_host ? h200.link_bytes_per_s / 10 : h200.link_bytes_per_s;
}

/* 1: go on; 0: helped; -1: a mistake. */
static int parse(int argc, char **argv, arguments *a)
{
    int o, index = 0;
    *a = (arguments){.shape = "gemma-a4b", .custom = {.n_sites = 32, .every = 1, .n_kv_heads = 8, .head_dim = 128}};
    a->options = (cliff_options){.machine = {.copy_cost_ns = -1, .launch_ns = -1},
                                 .warm_steps = WARM_STEPS,
                                 .window_tiles = WINDOW_TILES,
                                 .most_tail_bytes = MOST_TAIL_BYTES,
                                 .seed = 1};
    while ((o = getopt_long(argc, argv, "", long_options, &index)) != -1) {
        if (o == O_HELP) {
            fputs(help, stdout);
            return 0;
        }
        if (o == '?' || !one_option(o, long_options[index].name, optarg, a))
            return -1;
    }
    if (optind < argc) {
        fprintf(stderr, "rollkv-bench: '%s' is no option; see --help\n", argv[optind]);
        return -1;
    }
    if (!choose_shape(a))
        return -1;
    fill_defaults(a);
    return 1;
}

static bool write_file(const cliff_curve *curve, const char *path, void (*write)(const cliff_curve *, FILE *))
{
    if (!path)
        return true;
    FILE *f = fopen(path, "w");
    if (f)
        write(curve, f);
    if (f && fclose(f) == 0)
        return true;
    perror(path);
    return false;
}

int cliff_main(int argc, char **argv)
{
    static cliff_curve curve;
    arguments a;
    const int go_on = parse(argc, argv, &a);
    if (go_on < 1)
        return go_on < 0 ? 2 : 0;
    const rkv_status s = cliff_run(&a.options, stderr, &curve);
    if (s != RKV_OK) {
        fprintf(stderr, "rollkv-bench: %s: %s\n", rkvi_status_name(s), rkvi_error_text());
        return 1;
    }
    cliff_print(&curve, stdout);
    if (a.options.machine.executor == CLIFF_CUDA)
        cliff_print_steps(&curve, stdout);
    const bool ok = write_file(&curve, a.json, cliff_write_json);
    return write_file(&curve, a.svg, cliff_write_svg) && ok ? 0 : 1;
}
