/* bench_cpu_job: jobs of the CPU's share as a step hands them over, without a GPU: this
 * thread sends tickets and waits, as the kernels do.
 *
 *   bench_cpu_job [--gib N] [--dim D] [--heads H] [--ratio Q] [--type T] [--threads N] [--pause-us P]
 *
 * One job reads `tiles` tile-layers of 256 cells that no cache has (they rotate over
 * N GiB), in runs of leaves of which there are at most so many units (a KV head of a run)
 * a thread; the plan has 24.  Figures: median of the time from ticket to done, and what
 * it is beyond the bytes at the rate of one long job. */
#include "cpu_desk.h"
#include "cpu_team.h"
#include "options.h"
#include "rkvi_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { SAMPLES = 61, LEAST_SAMPLES = 5, LONG_TILES = 768 };

typedef struct options {
    double gib;
    uint32_t dim, heads, ratio, threads, pause_us;
    rkv_type type;
} options;

typedef struct load {
    rkvi_geom geom;
    rkvi_entry entry;
    rkvi_row row;
    rkvi_attend_args args;
    uint8_t *memory;
    uint64_t room, n_tiles, at; /* bytes; tile-layers; the next job's first one */
    rkvi_span *spans;
    uint64_t *bases;
    rkvi_item *items;
    rkvi_ops ops;
    rkvi_desk words;
    rkvi_cpu_desk desk;
    uint64_t serial;
} load;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static void *need(void *p)
{
    if (!p || p == MAP_FAILED) {
        fprintf(stderr, "bench_cpu_job: out of memory\n");
        exit(1);
    }
    return p;
}

/* Bytes that are fair as f16, as scales and as quants. */
static void fill(uint8_t *at, uint64_t bytes)
{
    uint64_t s = 88172645463325252u;
    for (uint64_t i = 0; i + 2 <= bytes; i += 2) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        const uint16_t x = (uint16_t)(0x3000 | (s & 0x83ff));
        memcpy(at + i, &x, 2);
    }
}

static void load_make(load *l, const options *o)
{
    l->geom = (rkvi_geom){.n_heads = o->heads, .dk = o->dim, .dv = o->dim, .type_k = o->type, .type_v = o->type,
                          .k_scale = 1, .v_scale = 1, .tile_cells = RKVI_TILE_DEFAULT};
    if (rkvi_geom_init(&l->geom) != RKV_OK)
        exit(2);
    const uint64_t leaves = l->geom.tile_cells / l->geom.leaf_cells;
    const uint32_t q_heads = o->heads * o->ratio;
    l->room = (uint64_t)(o->gib * 1024) << 20;
    l->n_tiles = l->room / l->geom.bytes;
    l->memory = need(mmap(NULL, l->room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    madvise(l->memory, l->room, MADV_HUGEPAGE);
    fill(l->memory, l->room);
    l->spans = need(calloc(LONG_TILES * leaves, sizeof *l->spans));
    l->bases = need(calloc(LONG_TILES, sizeof *l->bases));
    l->items = need(calloc(LONG_TILES * leaves, sizeof *l->items));
    for (uint64_t i = 0; i < LONG_TILES * leaves; i++)
        l->spans[i] = (rkvi_span){.pos = (int64_t)(i * l->geom.leaf_cells), .tile = (uint32_t)(i / leaves),
                                  .first = (uint16_t)(i % leaves * l->geom.leaf_cells),
                                  .count = (uint16_t)l->geom.leaf_cells};
    l->entry = (rkvi_entry){.n_spans = LONG_TILES * leaves, .n_rows = 1};
    l->row = (rkvi_row){.pos = INT64_MAX / 2, .to = INT64_MAX};
    l->args = (rkvi_attend_args){.geom = l->geom, .entries = &l->entry, .rows = &l->row, .spans = l->spans,
                                 .bases = l->bases, .items = l->items, .max_rows = 1, .scale = 0.1f, .q_heads = q_heads,
                                 .partials = need(calloc(LONG_TILES * leaves * q_heads, (o->dim + 2) * sizeof(float))),
                                 .q = {need(calloc((size_t)q_heads * o->dim, sizeof(float))),
                                       (int64_t)q_heads * o->dim, o->dim, RKV_TYPE_F32}};
}

/* A job's bases and items: the shortest runs of 2^k leaves of which there are at most so many. */
static uint64_t put_items(load *l, uint64_t tiles, uint64_t most)
{
    const uint64_t leaves = tiles * (l->geom.tile_cells / l->geom.leaf_cells);
    uint64_t run = 1, n = 0;
    for (uint64_t i = 0; i < tiles; i++)
        l->bases[i] = (uintptr_t)l->memory + (l->at++ % l->n_tiles) * l->geom.bytes;
    while ((leaves + run - 1) / run > most)
        run *= 2;
    for (uint64_t leaf = 0; leaf < leaves; leaf += run)
        l->items[n++] = (rkvi_item){.n_rows = 1, .leaf0 = leaf, .leaf1 = leaf + run < leaves ? leaf + run : leaves};
    return n;
}

/* One job, in us. */
static double run_job(load *l, uint64_t tiles, uint64_t most_items)
{
    const rkvi_cpu_job job = {.args = l->args, .decode = l->ops.fn[RKVI_OP_DECODE]};
    const uint64_t n = put_items(l, tiles, most_items) * l->geom.n_heads;
    const uint64_t ticket = rkvi_cpu_desk_ticket(&l->desk, l->serial, (uint32_t)(l->serial % 2));
    l->serial++;
    rkvi_cpu_desk_put(&l->desk, ticket, &job, (uint32_t)n);
    const double from = now_us();
    __atomic_store_n(&l->words.sent, ticket, __ATOMIC_RELEASE);
    while (__atomic_load_n(&l->words.done, __ATOMIC_ACQUIRE) < ticket)
        relax();
    return now_us() - from;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_us(load *l, const options *o, uint64_t tiles, uint64_t most_items)
{
    double us[SAMPLES], all = 0;
    uint32_t n = 0;
    for (; n < SAMPLES && (n < LEAST_SAMPLES || all < 100000); n++) {
        const double until = now_us() + o->pause_us;
        while (now_us() < until)
            relax();
        us[n] = run_job(l, tiles, most_items);
        all += us[n];
    }
    qsort(us, n, sizeof *us, by_value);
    return us[n / 2];
}

static const char help[] =
    "bench_cpu_job: jobs of the CPU's share as a step hands them over, without a GPU\n\n"
    "  --gib X        of tile-layers that jobs rotate over, 1 or more (1)\n"
    "  --dim N        of heads, a multiple of 32 (128)\n"
    "  --heads N      KV heads (8)\n"
    "  --ratio N      query heads of each (5)\n"
    "  --type T       of K and V: f16 (default), bf16, fp8, q8_0, q4_0\n"
    "  --threads N    that work (1)\n"
    "  --pause-us N   between jobs (150)\n";

static int parse(int argc, char **argv, options *o)
{
    static const char *const names[] = {"f16", "bf16", "fp8", "q8_0", "q4_0", NULL};
    static const rkv_type types[] = {RKV_TYPE_F16, RKV_TYPE_BF16, RKV_TYPE_FP8_E4M3, RKV_TYPE_Q8_0, RKV_TYPE_Q4_0};
    uint32_t type = 0;
    option_of table[] = {{"gib", OPTION_NUMBER, &o->gib, 1, 4096, NULL, false},
                         {"dim", OPTION_COUNT, &o->dim, 32, RKVI_HEAD_DIM_MAX, NULL, false},
                         {"heads", OPTION_COUNT, &o->heads, 1, 1024, NULL, false},
                         {"ratio", OPTION_COUNT, &o->ratio, 1, 64, NULL, false},
                         {"threads", OPTION_COUNT, &o->threads, 1, 1024, NULL, false},
                         {"pause-us", OPTION_COUNT, &o->pause_us, 0, 1000000, NULL, false},
                         {.name = "type", .kind = OPTION_NAME, .to = &type, .names = names},
                         {0}};
    const int go_on = options_parse("bench_cpu_job", help, table, argc, argv);
    o->type = types[type];
    return go_on == 1 && o->dim % 32 && !option_mistake("--dim %u: give a multiple of 32", o->dim) ? -1 : go_on;
}

int main(int argc, char **argv)
{
    options o = {.gib = 1, .dim = 128, .heads = 8, .ratio = 5, .threads = 1, .pause_us = 150, .type = RKV_TYPE_F16};
    static const uint32_t tiles[] = {4, 8, 13, 14, 27, 52, 105}, units[] = {4, 8, 12, 16, 24, 32, 48};
    static load l;
    rkvi_cpu_team *team = NULL;
    const int go_on = parse(argc, argv, &o);
    if (go_on < 1)
        return go_on < 0 ? 2 : 0;
    load_make(&l, &o);
    rkvi_ops_best(&l.ops, NULL);
    if (rkvi_cpu_desk_init(&l.desk, &l.words, 2, 1, o.threads) != RKV_OK ||
        rkvi_cpu_team_create(o.threads + 1, -1, &team) != RKV_OK)
        return 1;
    const rkvi_cpu_watch watch = {.look = rkvi_cpu_desk_look, .is_due = rkvi_cpu_desk_is_due, .arg = &l.desk};
    atomic_store(&l.desk.expected, UINT64_MAX);
    rkvi_cpu_team_watch(team, &watch);
    rkvi_cpu_team_wake(team);
    const double us = median_us(&l, &o, LONG_TILES, LONG_TILES), rate = LONG_TILES * (double)l.geom.bytes / us;
    printf("%s, %s, %u query heads a KV head, %u KV heads of %u, %u threads, pause %u us; one job of %d tile-layers: "
           "%.2f GB/s\nus a job, and beyond the bytes at that rate, by units a thread\n%6s %8s", l.ops.name,
           rkvi_type_name(o.type), o.ratio, o.heads, o.dim, o.threads, o.pause_us, LONG_TILES, rate * 1e-3, "tiles",
           "MB");
    for (size_t k = 0; k < sizeof units / sizeof *units; k++)
        printf("  %8u      ", units[k]);
    for (size_t i = 0; i < sizeof tiles / sizeof *tiles; i++) {
        const double bytes = tiles[i] * (double)l.geom.bytes;
        printf("\n%6u %8.2f", tiles[i], bytes * 1e-6);
        for (size_t k = 0; k < sizeof units / sizeof *units; k++) {
            const double job = median_us(&l, &o, tiles[i], 1 + units[k] * o.threads / o.heads);
            printf("  %7.1f %+6.1f", job, job - bytes / rate);
        }
        fflush(stdout);
    }
    printf("\n");
    rkvi_cpu_team_destroy(team);
    rkvi_cpu_desk_free(&l.desk);
    free(l.args.partials);
    free(l.args.q.data);
    free(l.spans);
    free(l.bases);
    free(l.items);
    munmap(l.memory, l.room);
    return 0;
}
