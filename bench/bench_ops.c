/* bench_ops: bandwidth of decode attention on one thread, by kernel set, type
 * pair and head ratio, against a plain read of the same bytes.
 *
 *   bench_ops [--mib N] [--dim D] [--seconds S] [--set NAME] [--json FILE] [--commit TEXT]
 *
 * Figures are GB/s of stored K and V bytes: median of samples, in the
 * thread's CPU time.  The default 512 MiB come from memory; --mib 1 shows the rate from cache. */
#include "json.h"
#include "ops.h"
#include "options.h"
#include "rkvi_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct options {
    uint64_t mib;
    uint32_t dim;
    double seconds; /* of a figure */
    const char *json, *commit;
    uint32_t set; /* this of set_names alone; 3: all */
} options;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* other load on the machine counts less */
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* One sequence of one KV head; an item is four leaves. */
typedef struct load {
    rkvi_geom geom;
    rkvi_attend_args args;
    rkvi_entry entry;
    rkvi_row row;
    uint64_t n_items, bytes;
} load;

enum { RUN = 4 };

static void *need(void *p)
{
    if (!p) {
        fprintf(stderr, "bench_ops: out of memory\n");
        exit(1);
    }
    return p;
}

static void fill(void *at, size_t bytes)
{
    uint64_t s = 88172645463325252u;
    uint16_t *p = at;
    for (size_t i = 0; i < bytes / 2; i++) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        p[i] = (uint16_t)(0x3000 | (s & 0x83ff)); /* about 0.2 as f16; a sane scale */
    }
}

static void load_make(load *l, const options *o, rkv_type k, rkv_type v, uint32_t ratio)
{
    memset(l, 0, sizeof *l);
    l->geom = (rkvi_geom){.n_heads = 1, .dk = o->dim, .dv = o->dim, .type_k = k, .type_v = v,
                          .k_scale = 1, .v_scale = 1, .tile_cells = RKVI_TILE_DEFAULT};
    if (rkvi_geom_init(&l->geom) != RKV_OK)
        exit(1);
    const uint64_t per_tile = l->geom.tile_cells / l->geom.leaf_cells;
    const uint64_t tiles = rkvi_div_up(o->mib << 20, l->geom.bytes), leaves = tiles * per_tile;
    l->bytes = tiles * l->geom.head_bytes;
    l->n_items = rkvi_div_up(leaves, RUN);
    uint8_t *mem = need(aligned_alloc(256, tiles * l->geom.bytes));
    uint64_t *bases = need(calloc(tiles, sizeof *bases));
    rkvi_span *spans = need(calloc(leaves, sizeof *spans));
    rkvi_item *items = need(calloc(l->n_items, sizeof *items));
    fill(mem, tiles * l->geom.bytes);
    for (uint64_t t = 0; t < tiles; t++)
        bases[t] = (uintptr_t)mem + t * l->geom.bytes;
    for (uint64_t i = 0; i < leaves; i++)
        spans[i] = (rkvi_span){.pos = (int64_t)(i * l->geom.leaf_cells),
                               .tile = (uint32_t)(i / per_tile),
                               .first = (uint16_t)(i % per_tile * l->geom.leaf_cells),
                               .count = (uint16_t)l->geom.leaf_cells};
    for (uint64_t i = 0; i < l->n_items; i++)
        items[i] = (rkvi_item){.n_rows = 1, .leaf0 = i * RUN,
                               .leaf1 = (i + 1) * RUN < leaves ? (i + 1) * RUN : leaves, .slot = i};
    l->entry = (rkvi_entry){.n_spans = leaves, .n_rows = 1};
    l->row = (rkvi_row){.pos = INT64_MAX / 2, .to = INT64_MAX};
    uint16_t *q = need(calloc((size_t)ratio * o->dim, sizeof *q));
    fill(q, (size_t)ratio * o->dim * sizeof *q);
    l->args = (rkvi_attend_args){.geom = l->geom, .entries = &l->entry, .rows = &l->row,
                                 .spans = spans, .bases = bases, .items = items,
                                 .q = {q, (int64_t)ratio * o->dim, o->dim, RKV_TYPE_F16},
                                 .q_heads = ratio, .scale = 0.1f};
    l->args.partials = need(calloc(l->n_items * ratio * (o->dim + 2), sizeof(float)));
}

static void load_free(load *l)
{
    free((void *)(uintptr_t)l->args.bases[0]);
    free((void *)(uintptr_t)l->args.bases);
    free((void *)(uintptr_t)l->args.spans);
    free((void *)(uintptr_t)l->args.items);
    free(l->args.q.data);
    free(l->args.partials);
}

static volatile uint64_t sink;

static void read_plain(const load *l)
{
    typedef uint64_t wide __attribute__((vector_size(32)));
    const wide *p = (const wide *)(uintptr_t)l->args.bases[0];
    wide s[4] = {{0}};
    for (uint64_t i = 0; i + 4 <= l->bytes / sizeof *p; i += 4)
        for (int j = 0; j < 4; j++)
            s[j] ^= p[i + (uint64_t)j];
    for (int j = 0; j < 4; j++)
        sink ^= s[j][0] ^ s[j][1] ^ s[j][2] ^ s[j][3];
}

/* Items of a sample; samples go round through all of them. */
enum { SLICE = 16 };

static void decode(const load *l, const rkvi_ops *ops, uint64_t first)
{
    for (uint64_t i = 0; i < SLICE; i++)
        ops->fn[RKVI_OP_DECODE](&l->args, (first + i) % l->n_items);
}

/* GB/s: median of samples. */
static double rate(const load *l, const rkvi_ops *ops, double seconds)
{
    double t[999];
    const double start = now();
    const double bytes = (double)l->bytes * (ops ? (double)SLICE / (double)l->n_items : 1);
    int n = 0;
    do {
        const double a = now();
        if (ops)
            decode(l, ops, (uint64_t)n * SLICE);
        else
            read_plain(l);
        t[n++] = now() - a;
    } while (n < 999 && (n < 3 || now() - start < seconds));
    qsort(t, (size_t)n, sizeof *t, by_value);
    return bytes / t[n / 2] * 1e-9;
}

static const char *const set_names[] = {"ref", "avx2", "avx512", NULL};

/* Those of this build and CPU; with `only`, the one of that name; 0: there is none. */
static uint32_t kernel_sets(rkvi_ops sets[3], const char *only)
{
    uint32_t n = 1;
    for (int i = 0; i < 3; i++)
        rkvi_ops_ref(&sets[i]);
#if RKVI_HAVE_AVX2
    n += rkvi_ops_avx2(&sets[n]);
#endif
#if RKVI_HAVE_AVX512
    n += rkvi_ops_avx512(&sets[n]);
#endif
    for (uint32_t i = 0; only && i < n; i++)
        if (strcmp(sets[i].name, only) == 0) {
            sets[0] = sets[i];
            return 1;
        }
    return only ? 0 : n;
}

static void line(json *j, const options *o, const rkvi_ops *sets, uint32_t n_sets, rkv_type k,
                 rkv_type v, uint32_t ratio)
{
    load l;
    load_make(&l, o, k, v, ratio);
    const double plain = rate(&l, NULL, o->seconds);
    printf("%-9s %-9s %5u %8.2f", rkvi_type_name(k), rkvi_type_name(v), ratio, plain);
    if (j->file) {
        json_open(j, NULL, '{');
        json_string(j, "k", rkvi_type_name(k));
        json_string(j, "v", rkvi_type_name(v));
        json_count(j, "ratio", ratio);
        json_number(j, "read_gb_s", plain);
    }
    for (uint32_t s = 0; s < n_sets; s++) {
        const double r = rate(&l, &sets[s], o->seconds);
        printf(" %8.2f", r);
        char key[64];
        snprintf(key, sizeof key, "%s_gb_s", sets[s].name);
        if (j->file)
            json_number(j, key, r);
        fflush(stdout);
    }
    printf("\n");
    if (j->file)
        json_close(j, '}');
    load_free(&l);
}

static const char help[] =
    "bench_ops: bandwidth of decode attention on one thread, by kernel set, against a plain read\n\n"
    "  --mib N         of K and V (512)\n"
    "  --dim N         of heads, a multiple of 32 (128)\n"
    "  --seconds X     of samples for each figure (0.5)\n"
    "  --set NAME      ref, avx2 or avx512 alone\n"
    "  --json FILE     the figures as JSON\n"
    "  --commit TEXT   to be written there, where the build does not know it\n";

static int parse(int argc, char **argv, options *o)
{
    option_of table[] = {{"mib", OPTION_LONG, &o->mib, 1, 1e6, NULL, false},
                         {"dim", OPTION_COUNT, &o->dim, 32, RKVI_HEAD_DIM_MAX, NULL, false},
                         {"seconds", OPTION_NUMBER, &o->seconds, 0, 1000, NULL, false},
                         {.name = "set", .kind = OPTION_NAME, .to = &o->set, .names = set_names},
                         {.name = "json", .kind = OPTION_TEXT, .to = &o->json},
                         {.name = "commit", .kind = OPTION_TEXT, .to = &o->commit},
                         {0}};
    const int go_on = options_parse("bench_ops", help, table, argc, argv);
    return go_on == 1 && o->dim % 32 && !option_mistake("--dim %u: give a multiple of 32", o->dim) ? -1 : go_on;
}

int main(int argc, char **argv)
{
    options o = {.mib = 512, .dim = 128, .seconds = 0.5, .set = 3};
    static const uint32_t ratios[] = {1, 5, 8};
    static const rkv_type types[] = {RKV_TYPE_F16, RKV_TYPE_BF16, RKV_TYPE_FP8_E4M3, RKV_TYPE_Q8_0,
                                     RKV_TYPE_Q4_0};
    const int go_on = parse(argc, argv, &o);
    if (go_on < 1)
        return go_on < 0 ? 2 : 0;
    rkvi_ops sets[3];
    json j = {0};
    const uint32_t n_sets = kernel_sets(sets, set_names[o.set]);
    if (n_sets == 0)
        return option_mistake("--set %s: this build, or this CPU, is without", set_names[o.set]) ? 0 : 2;
    if (!option_file(o.json, &j.file))
        return 1;
    printf("decode, one thread, %llu MiB, head dim %u; GB/s of stored bytes\n",
           (unsigned long long)o.mib, o.dim);
    printf("%-9s %-9s %5s %8s", "K", "V", "ratio", "read");
    for (uint32_t s = 0; s < n_sets; s++)
        printf(" %8s", sets[s].name);
    printf("\n");
    if (j.file) {
        json_open(&j, NULL, '{');
        json_head(&j, "ops", bench_commit(o.commit));
        json_count(&j, "mib", o.mib);
        json_count(&j, "dim", o.dim);
        json_open(&j, "rows", '[');
    }
    for (int t = 0; t < 5; t++)
        for (int r = 0; r < 3; r++)
            line(&j, &o, sets, n_sets, types[t], types[t], ratios[r]);
    line(&j, &o, sets, n_sets, RKV_TYPE_Q8_0, RKV_TYPE_Q4_0, 5);
    if (j.file) {
        json_close(&j, ']');
        json_close(&j, '}');
    }
    return option_file_close(o.json, j.file) ? 0 : 1;
}
