/* bench_cpu_attend: bandwidth of decode attention on several threads over K and
 * V in host memory, against a plain read of the same bytes by the same threads.
 *
 *   bench_cpu_attend [--gib N] [--dim D] [--heads H] [--rows R] [--seconds S] [--threads N]
 *                    [--kernels SET]
 *
 * A unit of work is one KV head of one tile.  Figures are GB/s of stored bytes,
 * best of samples by the wall clock, for one thread by its CPU time; with
 * --threads for that number alone.  With a --gib that fits the caches (0.002) they
 * are what arithmetic allows. */
#include "ops.h"
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
    const char *kernels; /* NULL: the fastest */
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
    for (uint64_t i; (i = atomic_fetch_add(&t->next, 1)) < t->n_units;) {
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

static void line(team *t, load *l, const options *o, const rkvi_ops *ops, rkv_type k, rkv_type v, uint32_t ratio,
                 uint32_t n)
{
    load_make(l, o, k, v, ratio);
    const double plain = rate(t, l, NULL, n, o->seconds);
    const double r = rate(t, l, ops->fn[RKVI_OP_DECODE], n, o->seconds);
    printf("%-8s %-8s %5u %7u %8.2f %8.2f %6.3f\n", rkvi_type_name(k), rkvi_type_name(v), ratio, n, plain, r,
           r / plain);
    fflush(stdout);
    load_drop(l);
}

static bool parse(int argc, char **argv, options *o)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--gib") == 0)
            o->gib = strtod(argv[i + 1], NULL);
        else if (strcmp(argv[i], "--dim") == 0)
            o->dim = (uint32_t)strtoul(argv[i + 1], NULL, 0);
        else if (strcmp(argv[i], "--heads") == 0)
            o->heads = (uint32_t)strtoul(argv[i + 1], NULL, 0);
        else if (strcmp(argv[i], "--rows") == 0)
            o->rows = (uint32_t)strtoul(argv[i + 1], NULL, 0);
        else if (strcmp(argv[i], "--kernels") == 0)
            o->kernels = argv[i + 1];
        else if (strcmp(argv[i], "--seconds") == 0)
            o->seconds = strtod(argv[i + 1], NULL);
        else if (strcmp(argv[i], "--threads") == 0)
            o->threads = (uint32_t)strtoul(argv[i + 1], NULL, 0);
        else
            return false;
    }
    return argc % 2 == 1 && o->gib > 0 && o->heads > 0 && o->dim % 32 == 0 && o->dim > 0 &&
           o->dim <= RKVI_HEAD_DIM_MAX && o->rows > 0 && o->rows <= ROWS_MAX && o->threads <= THREADS_MAX;
}

static void all_lines(team *t, load *l, const options *o, const rkvi_ops *ops, uint32_t most)
{
    static const rkv_type types[] = {RKV_TYPE_F16, RKV_TYPE_BF16, RKV_TYPE_FP8_E4M3, RKV_TYPE_Q8_0, RKV_TYPE_Q4_0};
    static const uint32_t ratios[] = {1, 4, 5, 8, 16};
    const uint32_t counts[] = {1, most / 4, most / 2, most - 1, most};
    for (int c = 0; c < 5 && !o->threads; c++)
        if (counts[c] && (c == 0 || counts[c] != counts[c - 1]))
            line(t, l, o, ops, RKV_TYPE_F16, RKV_TYPE_F16, 5, counts[c]);
    const uint32_t n = o->threads ? o->threads : most > 1 ? most - 1 : 1;
    for (int i = 0; i < 5; i++)
        for (int r = 0; r < 5; r++)
            line(t, l, o, ops, types[i], types[i], ratios[r], n);
    line(t, l, o, ops, RKV_TYPE_Q8_0, RKV_TYPE_Q4_0, 5, n);
}

int main(int argc, char **argv)
{
    options o = {.gib = 2, .dim = 128, .heads = 8, .rows = 1, .seconds = 0.2};
    static team t;
    static load l;
    static member members[THREADS_MAX];
    rkvi_ops ops;
    if (!parse(argc, argv, &o)) {
        fprintf(stderr, "bench_cpu_attend [--gib N] [--dim D, a multiple of 32] [--heads H] [--rows R, at most %d] "
                        "[--seconds S] [--threads N, at most %d] [--kernels SET]\n", ROWS_MAX, THREADS_MAX);
        return 2;
    }
    cpu_set_t allowed;
    sched_getaffinity(0, sizeof allowed, &allowed);
    uint32_t most = (uint32_t)CPU_COUNT(&allowed);
    most = most > THREADS_MAX ? THREADS_MAX : most;
    l.room = (uint64_t)(o.gib * 1024) << 20;
    l.memory = need(mmap(NULL, l.room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    madvise(l.memory, l.room, MADV_HUGEPAGE);
    fill(l.memory, l.room);
    rkvi_ops_best(&ops, o.kernels);
    const uint32_t n_threads = o.threads > most ? o.threads : most;
    pthread_barrier_init(&t.gate, NULL, n_threads + 1);
    for (uint32_t i = 0; i < n_threads; i++) {
        members[i] = (member){&t, i};
        if (pthread_create(&t.thread[i], NULL, thread_main, &members[i]))
            return 1;
    }
    printf("decode, %s, %.3g GiB, %u KV heads of %u, rows %u; GB/s of stored bytes\n", ops.name, o.gib, o.heads,
           o.dim, o.rows);
    printf("%-8s %-8s %5s %7s %8s %8s %6s\n", "K", "V", "ratio", "threads", "read", "attend", "share");
    all_lines(&t, &l, &o, &ops, most);
    t.stop = true;
    pthread_barrier_wait(&t.gate);
    for (uint32_t i = 0; i < n_threads; i++)
        pthread_join(t.thread[i], NULL);
    munmap(l.memory, l.room);
    return 0;
}
