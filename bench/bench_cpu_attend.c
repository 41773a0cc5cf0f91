/* SPDX-License-Identifier: MIT
 *
 * bench_cpu_attend: bandwidth of decode attention on several threads over K and
 * V in host memory, against a plain read of the same bytes by the same threads.
 *
 * A unit of work is one KV head of one tile.  Figures are GB/s of stored bytes,
 * best of samples by the wall clock, for one thread by its CPU time; with
 * --threads for that number alone.  With a --gib that fits the caches (0.002) they
 * are what arithmetic allows.
 *
 * --beside: alone, and while copies cross the link to a GPU (bench_link.h), with
 * the link's rate meanwhile.  Figures are then all that was read in so many
 * seconds, by the wall clock, since the best moment would be one of few copies. */
#include "bench_link.h"
#include "json.h"
#include "ops.h"
#include "options.h"
#include "rkvi_config.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { THREADS_MAX = 64, ROWS_MAX = 16, UNITS_ONE = 64 /* a sample of one thread */ };

typedef struct options {
    double gib, seconds;
    uint32_t dim, heads, rows, threads;
    uint32_t kernels; /* of kernel_names; 4: the fastest */
    bool beside;
    const char *json, *commit;
} options;

typedef struct load {
    rkvi_geom geom;
    rkvi_attend_args args;
    rkvi_entry entry;
    rkvi_row rows[ROWS_MAX];
    uint8_t *memory;
    uint64_t n_tiles, room;
    float *partials[THREADS_MAX];
} load;

/* What the threads do in a sample: units [0, n_units), taken one by one. */
typedef struct team {
    pthread_t thread[THREADS_MAX];
    pthread_barrier_t gate;
    const load *l;
    rkvi_op_fn decode; /* NULL: a plain read */
    uint64_t n_units, first; /* a sample's; of all, its first one */
    _Atomic uint64_t next;
    uint32_t n; /* that work in this sample */
    double until; /* 0: n_units are a sample; else all that begin before this */
    double cpu; /* of thread 0 in this sample */
    bool stop;
} team;

typedef struct member {
    team *t;
    uint32_t index;
} member;

static double clock_of(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double now(void)
{
    return clock_of(CLOCK_MONOTONIC);
}

static void *need(void *p)
{
    if (!p || p == MAP_FAILED) {
        fprintf(stderr, "bench_cpu_attend: out of memory\n");
        exit(1);
    }
    return p;
}

static volatile uint64_t sink;

static void read_plain(const void *at, uint64_t bytes)
{
    typedef uint64_t wide __attribute__((vector_size(32)));
    const wide *p = at;
    wide s[4] = {{0}};
    for (uint64_t i = 0; i + 4 <= bytes / sizeof *p; i += 4)
        for (int j = 0; j < 4; j++)
            s[j] ^= p[i + (uint64_t)j];
    const wide x = s[0] ^ s[1] ^ s[2] ^ s[3];
    sink = x[0] ^ x[1] ^ x[2] ^ x[3];
}

static void work(team *t, uint32_t index)
{
    const load *l = t->l;
    rkvi_attend_args args = l->args;
    const uint64_t all = l->n_tiles * l->geom.n_heads;
    const double start = clock_of(CLOCK_THREAD_CPUTIME_ID);
    args.partials = l->partials[index];
    for (uint64_t i; (t->until == 0 || now() < t->until) && (i = atomic_fetch_add(&t->next, 1)) < t->n_units;) {
        i = (t->first + i) % all;
        if (t->decode)
            t->decode(&args, i);
        else
            read_plain(l->memory + i * l->geom.head_bytes, l->geom.head_bytes);
    }
    if (index == 0)
        t->cpu = clock_of(CLOCK_THREAD_CPUTIME_ID) - start;
}

static void pin(uint32_t index)
{
    cpu_set_t allowed, one;
    uint32_t seen = 0;
    if (sched_getaffinity(0, sizeof allowed, &allowed))
        return;
    CPU_ZERO(&one);
    for (int c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &allowed) && seen++ == index % (uint32_t)CPU_COUNT(&allowed))
            CPU_SET(c, &one);
    sched_setaffinity(0, sizeof one, &one);
}

static void *thread_main(void *arg)
{
    const member m = *(member *)arg;
    pin(m.index);
    for (;;) {
        pthread_barrier_wait(&m.t->gate);
        if (m.t->stop)
            return NULL;
        if (m.index < m.t->n)
            work(m.t, m.index);
        pthread_barrier_wait(&m.t->gate);
    }
}

static double sample(team *t)
{
    atomic_store(&t->next, 0);
    const double a = now(); /* before the gate: this thread may be the last to leave it */
    pthread_barrier_wait(&t->gate);
    pthread_barrier_wait(&t->gate);
    return t->n == 1 ? t->cpu : now() - a;
}

/* GB/s, the best of samples. */
static double rate(team *t, const load *l, rkvi_op_fn decode, uint32_t n, double seconds)
{
    const double start = now();
    double best = 0;
    t->l = l;
    t->decode = decode;
    t->n = n;
    const uint64_t all = l->n_tiles * l->geom.n_heads;
    t->n_units = n == 1 && all > UNITS_ONE ? UNITS_ONE : all;
    t->first = 0;
    for (int i = 0; i < 2 || now() - start < seconds; i++, t->first = (t->first + t->n_units) % all) {
        const double r = (double)(t->n_units * l->geom.head_bytes) / sample(t) * 1e-9;
        best = r > best ? r : best;
    }
    return best;
}

/* Bytes that are fair as f16, as scales and as quants; the same for all types. */
static void fill(uint8_t *at, uint64_t bytes)
{
    enum { PIECE = 1 << 20 };
    uint64_t s = 88172645463325252u;
    for (uint64_t i = 0; i < PIECE; i += 2) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        const uint16_t x = (uint16_t)(0x3000 | (s & 0x83ff));
        memcpy(at + i, &x, 2);
    }
    for (uint64_t i = PIECE; i < bytes; i += PIECE)
        memcpy(at + i, at, PIECE);
}

static void load_make(load *l, const options *o, rkv_type k, rkv_type v, uint32_t ratio)
{
    l->geom = (rkvi_geom){.n_heads = o->heads, .dk = o->dim, .dv = o->dim, .type_k = k, .type_v = v,
                          .k_scale = 1, .v_scale = 1, .tile_cells = RKVI_TILE_DEFAULT};
    if (rkvi_geom_init(&l->geom) != RKV_OK)
        exit(1);
    const uint64_t per_tile = l->geom.tile_cells / l->geom.leaf_cells;
    l->n_tiles = l->room / l->geom.bytes;
    if (l->n_tiles == 0) {
        option_mistake("--gib %g has no room for a tile of %llu bytes", o->gib, (unsigned long long)l->geom.bytes);
        exit(2);
    }
    uint64_t *bases = need(calloc(l->n_tiles, sizeof *bases));
    rkvi_span *spans = need(calloc(l->n_tiles * per_tile, sizeof *spans));
    rkvi_item *items = need(calloc(l->n_tiles, sizeof *items));
    for (uint64_t t = 0; t < l->n_tiles; t++) {
        bases[t] = (uintptr_t)l->memory + t * l->geom.bytes;
        items[t] = (rkvi_item){.n_rows = o->rows, .leaf0 = t * per_tile, .leaf1 = (t + 1) * per_tile};
    }
    for (uint64_t i = 0; i < l->n_tiles * per_tile; i++)
        spans[i] = (rkvi_span){.pos = (int64_t)(i * l->geom.leaf_cells),
                               .tile = (uint32_t)(i / per_tile),
                               .first = (uint16_t)(i % per_tile * l->geom.leaf_cells),
                               .count = (uint16_t)l->geom.leaf_cells};
    l->entry = (rkvi_entry){.n_spans = l->n_tiles * per_tile, .n_rows = o->rows};
    for (uint32_t i = 0; i < o->rows; i++)
        l->rows[i] = (rkvi_row){.pos = INT64_MAX / 2, .to = INT64_MAX};
    const uint32_t q_heads = o->heads * ratio;
    const size_t q_elements = (size_t)o->rows * q_heads * o->dim;
    uint16_t *q = need(calloc(q_elements, sizeof *q));
    for (size_t i = 0; i < q_elements; i++)
        memcpy(&q[i], l->memory + i % 4096 * sizeof *q, sizeof *q);
    l->args = (rkvi_attend_args){.geom = l->geom, .entries = &l->entry, .rows = l->rows,
                                 .spans = spans, .bases = bases, .items = items,
                                 .q = {q, (int64_t)q_heads * o->dim, o->dim, RKV_TYPE_F16},
                                 .q_heads = q_heads, .scale = 0.1f};
    for (int i = 0; i < THREADS_MAX; i++)
        l->partials[i] = need(calloc((size_t)o->rows * q_heads * (o->dim + 2), sizeof(float)));
}

static void load_drop(load *l)
{
    free((void *)(uintptr_t)l->args.bases);
    free((void *)(uintptr_t)l->args.spans);
    free((void *)(uintptr_t)l->args.items);
    free(l->args.q.data);
    for (int i = 0; i < THREADS_MAX; i++)
        free(l->partials[i]);
}

/* K and V of a line, and what it came to: GB/s; of [1], beside the link. */
typedef struct figures {
    rkv_type k, v;
    uint32_t ratio, n;
    double read[2], attend[2], read_link, attend_link;
} figures;

/* All that n threads read in so many seconds, and the link meanwhile. */
static double rate_in(team *t, const load *l, rkvi_op_fn decode, uint32_t n, double seconds, bench_link *link,
                      double *out_link)
{
    t->l = l;
    t->decode = decode;
    t->n = n;
    t->first = 0;
    t->n_units = UINT64_MAX;
    double s = 0;
    for (int is_measured = 0; is_measured < 2; is_measured++) { /* a short one to warm up */
        const uint64_t bytes = link ? bench_link_bytes(link) : 0;
        const double from = now();
        t->until = from + (is_measured ? seconds : seconds / 8);
        sample(t);
        s = now() - from;
        if (link)
            *out_link = (double)(bench_link_bytes(link) - bytes) / s * 1e-9;
    }
    t->until = 0;
    return (double)(atomic_load(&t->next) * l->geom.head_bytes) / s * 1e-9;
}

static bool measure_beside(team *t, const load *l, const options *o, rkvi_op_fn decode, bench_link *link, figures *f)
{
    f->read[0] = rate_in(t, l, NULL, f->n, o->seconds, NULL, NULL);
    f->attend[0] = rate_in(t, l, decode, f->n, o->seconds, NULL, NULL);
    if (!bench_link_start(link))
        return false;
    f->read[1] = rate_in(t, l, NULL, f->n, o->seconds, link, &f->read_link);
    f->attend[1] = rate_in(t, l, decode, f->n, o->seconds, link, &f->attend_link);
    bench_link_stop(link);
    return true;
}

static void json_line(json *j, const figures *f, bool beside)
{
    json_open(j, NULL, '{');
    json_string(j, "k", rkvi_type_name(f->k));
    json_string(j, "v", rkvi_type_name(f->v));
    json_count(j, "ratio", f->ratio);
    json_count(j, "threads", f->n);
    json_number(j, "read_gb_s", f->read[0]);
    json_number(j, "attend_gb_s", f->attend[0]);
    if (beside) {
        json_number(j, "read_beside_gb_s", f->read[1]);
        json_number(j, "link_beside_read_gb_s", f->read_link);
        json_number(j, "attend_beside_gb_s", f->attend[1]);
        json_number(j, "link_beside_attend_gb_s", f->attend_link);
    }
    json_close(j, '}');
}

/* What lines have in common. */
typedef struct run {
    team *t;
    load *l;
    const options *o;
    const rkvi_ops *ops;
    bench_link *link; /* NULL: alone */
    json j;
    bool has_failed;
} run;

static void line(run *r, rkv_type k, rkv_type v, uint32_t ratio, uint32_t n)
{
    const rkvi_op_fn decode = r->ops->fn[RKVI_OP_DECODE];
    figures f = {.k = k, .v = v, .ratio = ratio, .n = n};
    if (r->has_failed)
        return;
    load_make(r->l, r->o, k, v, ratio);
    if (r->link) {
        r->has_failed = !measure_beside(r->t, r->l, r->o, decode, r->link, &f);
    } else {
        f.read[0] = rate(r->t, r->l, NULL, n, r->o->seconds);
        f.attend[0] = rate(r->t, r->l, decode, n, r->o->seconds);
    }
    load_drop(r->l);
    if (r->has_failed)
        return;
    printf("%-8s %-8s %5u %7u %8.2f %8.2f %6.3f", rkvi_type_name(k), rkvi_type_name(v), ratio, n, f.read[0],
           f.attend[0], f.attend[0] / f.read[0]);
    if (r->link)
        printf(" %8.2f %8.2f %8.2f %8.2f %8.3f", f.read[1], f.read_link, f.attend[1], f.attend_link,
               f.attend[1] / f.attend[0]);
    printf("\n");
    fflush(stdout);
    if (r->j.file)
        json_line(&r->j, &f, r->link != NULL);
}

static const char *const kernel_names[] = {"ref", "avx2", "avx512", "avx512vnni", NULL};

static const char help[] =
    "bench_cpu_attend: bandwidth of decode attention over K and V in host memory, against a plain read\n\n"
    "  --gib X         of K and V (2)\n"
    "  --dim N         of heads, a multiple of 32 (128)\n"
    "  --heads N       KV heads (8)\n"
    "  --rows N        at most 16 (1)\n"
    "  --seconds X     of samples for each figure (0.2)\n"
    "  --threads N     this number alone, at most 64\n"
    "  --kernels SET   ref, avx2, avx512 or avx512vnni (the fastest of this CPU)\n"
    "  --beside        alone and beside copies to the first GPU; ratios 1, 5, 8, threads 1, 4, 8, 15\n"
    "  --json FILE     the figures as JSON\n"
    "  --commit TEXT   to be written there, where the build does not know it\n";

static int parse(int argc, char **argv, options *o)
{
    option_of table[] = {{"gib", OPTION_NUMBER, &o->gib, 0.001, 4096, NULL, false},
                         {"dim", OPTION_COUNT, &o->dim, 32, RKVI_HEAD_DIM_MAX, NULL, false},
                         {"heads", OPTION_COUNT, &o->heads, 1, 1024, NULL, false},
                         {"rows", OPTION_COUNT, &o->rows, 1, ROWS_MAX, NULL, false},
                         {"seconds", OPTION_NUMBER, &o->seconds, 0.001, 1000, NULL, false},
                         {"threads", OPTION_COUNT, &o->threads, 1, THREADS_MAX, NULL, false},
                         {.name = "kernels", .kind = OPTION_NAME, .to = &o->kernels, .names = kernel_names},
                         {.name = "beside", .kind = OPTION_FLAG, .to = &o->beside},
                         {.name = "json", .kind = OPTION_TEXT, .to = &o->json},
                         {.name = "commit", .kind = OPTION_TEXT, .to = &o->commit},
                         {0}};
    const int go_on = options_parse("bench_cpu_attend", help, table, argc, argv);
    return go_on == 1 && o->dim % 32 && !option_mistake("--dim %u: give a multiple of 32", o->dim) ? -1 : go_on;
}

static const rkv_type all_types[] = {RKV_TYPE_F16, RKV_TYPE_BF16, RKV_TYPE_FP8_E4M3, RKV_TYPE_Q8_0, RKV_TYPE_Q4_0};

static void all_lines(run *r, uint32_t most)
{
    static const uint32_t ratios[] = {1, 4, 5, 8, 16};
    const uint32_t asked = r->o->threads, counts[] = {1, most / 4, most / 2, most - 1, most};
    for (int c = 0; c < 5 && !asked; c++)
        if (counts[c] && (c == 0 || counts[c] != counts[c - 1]))
            line(r, RKV_TYPE_F16, RKV_TYPE_F16, 5, counts[c]);
    const uint32_t n = asked ? asked : most > 1 ? most - 1 : 1;
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 5; k++)
            line(r, all_types[i], all_types[i], ratios[k], n);
    line(r, RKV_TYPE_Q8_0, RKV_TYPE_Q4_0, 5, n);
}

static void lines_beside(run *r, uint32_t most)
{
    static const uint32_t ratios[] = {1, 5, 8}, counts[] = {1, 4, 8, 15};
    for (int i = 0; i < 5; i++)
        for (int k = 0; k < 3; k++)
            for (int c = 0; c < 4; c++)
                if (r->o->threads ? c == 0 : counts[c] <= most)
                    line(r, all_types[i], all_types[i], ratios[k], r->o->threads ? r->o->threads : counts[c]);
}

static double link_alone(bench_link *link, double seconds)
{
    if (!bench_link_start(link))
        return 0;
    const uint64_t bytes = bench_link_bytes(link);
    const double from = now();
    while (now() - from < seconds)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    const double rate_gb = (double)(bench_link_bytes(link) - bytes) / (now() - from) * 1e-9;
    bench_link_stop(link);
    return rate_gb;
}

/* What stands above the lines; false: the link failed. */
static bool print_head(run *r)
{
    const options *o = r->o;
    const double alone = r->link ? link_alone(r->link, o->seconds > 0.2 ? o->seconds : 0.2) : 0;
    printf("decode, %s, %.3g GiB, %u KV heads of %u, rows %u; GB/s of stored bytes; commit %s\n", r->ops->name, o->gib,
           o->heads, o->dim, o->rows, bench_commit(o->commit));
    if (r->link)
        printf(
            "alone, and beside copies of 16 MiB to the GPU, which alone cross at %.2f GB/s; each figure over %.3g s\n",
            alone, o->seconds);
    printf("%-8s %-8s %5s %7s %8s %8s %6s", "K", "V", "ratio", "threads", "read", "attend", "share");
    if (r->link)
        printf(" %8s %8s %8s %8s %8s", "read b.", "link", "attend b.", "link", "of alone");
    printf("\n");
    if (r->j.file) {
        json_open(&r->j, NULL, '{');
        json_head(&r->j, "cpu_attend", bench_commit(o->commit));
        json_string(&r->j, "kernels", r->ops->name);
        json_number(&r->j, "gib", o->gib);
        json_count(&r->j, "kv_heads", o->heads);
        json_count(&r->j, "dim", o->dim);
        json_count(&r->j, "rows_of_a_step", o->rows);
        json_number(&r->j, "seconds", o->seconds);
        if (r->link)
            json_number(&r->j, "link_alone_gb_s", alone);
        json_open(&r->j, "rows", '[');
    }
    return !r->link || alone > 0;
}

static bool start_threads(team *t, uint32_t n)
{
    static member members[THREADS_MAX];
    pthread_barrier_init(&t->gate, NULL, n + 1);
    for (uint32_t i = 0; i < n; i++) {
        members[i] = (member){t, i};
        if (pthread_create(&t->thread[i], NULL, thread_main, &members[i]))
            return false;
    }
    return true;
}

static void stop_threads(team *t, uint32_t n)
{
    t->stop = true;
    pthread_barrier_wait(&t->gate);
    for (uint32_t i = 0; i < n; i++)
        pthread_join(t->thread[i], NULL);
}

static void make_memory(load *l, double gib)
{
    l->room = (uint64_t)(gib * 1024) << 20;
    l->memory = need(mmap(NULL, l->room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    madvise(l->memory, l->room, MADV_HUGEPAGE);
    fill(l->memory, l->room);
}

int main(int argc, char **argv)
{
    options o = {.gib = 2, .dim = 128, .heads = 8, .rows = 1, .seconds = 0.2, .kernels = 4};
    static team t;
    static load l;
    rkvi_ops ops;
    run r = {.t = &t, .l = &l, .o = &o, .ops = &ops};
    const char *none = NULL;
    const int go_on = parse(argc, argv, &o);
    if (go_on < 1)
        return go_on < 0 ? 2 : 0;
    rkvi_ops_best(&ops, kernel_names[o.kernels]);
    if (kernel_names[o.kernels] && strcmp(ops.name, kernel_names[o.kernels]) != 0)
        return option_mistake("--kernels %s: this build, or this CPU, is without", kernel_names[o.kernels]) ? 0 : 2;
    if (!option_file(o.json, &r.j.file))
        return 1;
    if (o.beside && !bench_link_open(&r.link, &none)) {
        if (none)
            printf("skipped: %s\n", none);
        return none ? 77 : 2;
    }
    cpu_set_t allowed;
    sched_getaffinity(0, sizeof allowed, &allowed);
    uint32_t most = (uint32_t)CPU_COUNT(&allowed);
    most = most > THREADS_MAX ? THREADS_MAX : most;
    const uint32_t n_threads = o.threads > most ? o.threads : most;
    make_memory(&l, o.gib);
    if (!start_threads(&t, n_threads))
        return 1;
    r.has_failed = !print_head(&r);
    if (r.link)
        lines_beside(&r, most);
    else
        all_lines(&r, most);
    if (r.j.file) {
        json_close(&r.j, ']');
        json_close(&r.j, '}');
    }
    stop_threads(&t, n_threads);
    munmap(l.memory, l.room);
    bench_link_close(r.link);
    return option_file_close(o.json, r.j.file) && !r.has_failed ? 0 : 1;
}
