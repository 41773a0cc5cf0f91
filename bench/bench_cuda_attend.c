/* SPDX-License-Identifier: MIT
 *
 * bench_cuda_attend: attention kernels on a GPU.
 *
 *   bench_cuda_attend [--json FILE] [--only decode|prefill] [--seconds S]
 *                     [--runs N] [--variant TEXT] [--rest-ms R] [--commit TEXT]
 *
 * decode   GB/s of stored K and V, one launch of decode and one of merge a turn,
 *          beside a plain 16-byte read of as many bytes in the same run.  Turns
 *          rotate over caches of at least 4 x L2 in all.
 * prefill  TFLOP/s of a chunk of rows at the end of so many cells, causal: 4 x
 *          dim x unmasked pairs x query heads; one launch of prefill, which writes the
 *          output; beside it one that writes states, and that with a merge.
 *
 * Medians over samples with their spread.  Before each figure the GPU rests (20 ms):
 * under power limits long tensor work lowers the clock for what is measured next.
 * --runs: work items a KV head of
 * decode (0: 2 a multiprocessor over all heads, or 1 of more than 8 columns). */
#include "device_cuda.h"
#include "json.h"
#include "options.h"
#include "ops_cuda.h"
#include "plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

int bench_cuda_read(const void *p, uint64_t bytes, uint32_t *sink, uint32_t n_blocks, void *stream);

#define L2_BYTES ((uint64_t)64 << 20) /* more than any of today's data-centre GPUs have a partition of */
#define SAMPLES_MAX 400u
#define CACHES_MAX 64u

typedef struct options {
    const char *json, *commit, *variant;
    uint32_t only; /* 0: decode, 1: prefill, 2: both */
    double seconds;
    uint64_t runs, rest_ms;
} options;

typedef struct shape {
    uint32_t q_heads, kv_heads, dim;
    uint64_t cells;
    rkv_type type_k, type_v;
    uint32_t rows; /* decode: of the one sequence; prefill: of the chunk */
} shape;

typedef struct world {
    rkvi_device *gpu;
    rkvi_event *from, *to;
    void *stream;
    uint32_t n_sm;
    uint32_t *sink;
    json j;
    bool has_json;
    uint32_t n_shapes; /* that were wanted */
    options o;
} world;

/* A site's caches and tables on the device. */
typedef struct site {
    rkvi_geom geom;
    rkvi_attend_args attend[CACHES_MAX];
    rkvi_merge_args merge;
    rkvi_item *out_items; /* prefill's, which write the output themselves */
    uint64_t n_items, n_merges, cache_bytes, bytes;
    uint32_t n_caches;
    uint8_t *memory;
    void *pieces[16];
    uint32_t n_pieces;
} site;

static void must(rkv_status s)
{
    if (s != RKV_OK) {
        fprintf(stderr, "bench_cuda_attend: %s\n", rkvi_error_text());
        exit(1);
    }
}

static void *need(void *p)
{
    if (!p) {
        fprintf(stderr, "bench_cuda_attend: out of memory\n");
        exit(1);
    }
    return p;
}

static void copy(world *w, rkvi_direction direction, void *dst, const void *src, size_t bytes)
{
    const rkvi_copy c = {.direction = direction, .dst = dst, .src = src, .width_bytes = bytes, .rows = 1};
    must(rkvi_dev(copy, w->gpu, &c, w->stream));
    must(rkvi_dev(stream_sync, w->gpu, w->stream));
}

static void *put(world *w, site *s, const void *bytes, size_t n)
{
    void *p;
    must(rkvi_dev(mem_alloc, w->gpu, n, &p));
    s->pieces[s->n_pieces++] = p;
    if (bytes)
        copy(w, RKVI_H2D, p, bytes, n);
    return p;
}

/* About +-0.2 as f16, small numbers as fp8; a sane scale. */
static void fill_pattern(uint16_t *p, size_t n)
{
    uint64_t s = 88172645463325252u;
    for (size_t i = 0; i < n; i++) {
        s ^= s << 13;
        s ^= s >> 7;
        s ^= s << 17;
        p[i] = (uint16_t)(0x2800 | (s & 0x87ff));
    }
}

static void fill_caches(world *w, site *s)
{
    const size_t piece = (size_t)16 << 20;
    uint16_t *pattern = need(malloc(piece));
    fill_pattern(pattern, piece / 2);
    for (uint64_t at = 0; at < s->bytes; at += piece)
        copy(w, RKVI_H2D, s->memory + at, pattern, s->bytes - at < piece ? (size_t)(s->bytes - at) : piece);
    free(pattern);
}

/* Spans of all leaves, bases of each cache; one entry. */
static void make_tables(world *w, site *s, const shape *x, bool prefill)
{
    const rkvi_geom *g = &s->geom;
    const uint64_t leaves = rkvi_div_up(x->cells, g->leaf_cells), tiles = rkvi_div_up(x->cells, g->tile_cells);
    const uint64_t per_tile = g->tile_cells / g->leaf_cells;
    rkvi_span *spans = need(calloc(leaves, sizeof *spans));
    rkvi_row *rows = need(calloc(x->rows, sizeof *rows));
    uint64_t *bases = need(calloc(tiles, sizeof *bases));
    for (uint64_t i = 0; i < leaves; i++)
        spans[i] = (rkvi_span){.pos = (int64_t)(i * g->leaf_cells), .tile = (uint32_t)(i / per_tile),
                               .first = (uint16_t)(i % per_tile * g->leaf_cells), .count = (uint16_t)g->leaf_cells};
    for (uint32_t r = 0; r < x->rows; r++)
        rows[r] = (rkvi_row){.pos = (int64_t)(x->cells - x->rows + r), .to = INT64_MAX};
    const rkvi_entry entry = {.n_spans = leaves, .n_rows = x->rows};
    s->cache_bytes = tiles * g->bytes;
    s->n_caches = prefill ? 1 : (uint32_t)rkvi_div_up(4 * L2_BYTES, s->cache_bytes);
    s->n_caches = s->n_caches < 2 && !prefill ? 2 : s->n_caches > CACHES_MAX ? CACHES_MAX : s->n_caches;
    s->bytes = s->n_caches * s->cache_bytes;
    s->memory = put(w, s, NULL, s->bytes);
    fill_caches(w, s);
    const size_t q_elements = (size_t)x->rows * x->q_heads * x->dim;
    uint16_t *q = need(malloc(q_elements * sizeof *q));
    fill_pattern(q, q_elements);
    rkvi_attend_args a = {
        .geom = *g,
        .entries = put(w, s, &entry, sizeof entry),
        .rows = put(w, s, rows, x->rows * sizeof *rows),
        .spans = put(w, s, spans, leaves * sizeof *spans),
        .q = {put(w, s, q, q_elements * sizeof *q), (int64_t)x->q_heads * x->dim, x->dim, RKV_TYPE_F16},
        .q_heads = x->q_heads,
        .scale = 1 / sqrtf((float)x->dim),
        .max_rows = x->rows};
    uint64_t *table = put(w, s, NULL, s->n_caches * tiles * sizeof *table);
    for (uint32_t c = 0; c < s->n_caches; c++) {
        for (uint64_t t = 0; t < tiles; t++)
            bases[t] = (uintptr_t)s->memory + c * s->cache_bytes + t * g->bytes;
        copy(w, RKVI_H2D, table + c * tiles, bases, tiles * sizeof *bases);
        a.bases = table + c * tiles;
        s->attend[c] = a;
    }
    free(spans);
    free(rows);
    free(bases);
    free(q);
}

/* Partials, output and the merge of items [0, n), whose slots are `slots` in all. */
static void make_merge(world *w, site *s, const shape *x, const rkvi_item *items, uint64_t n, uint64_t slots,
                       const rkvi_merge_item *merges, const rkvi_node *nodes, uint64_t n_nodes)
{
    rkvi_item *device_items = put(w, s, items, n * sizeof *items);
    float *partials = put(w, s, NULL, slots * x->q_heads * (x->dim + 2) * sizeof(float));
    for (uint32_t c = 0; c < s->n_caches; c++) {
        s->attend[c].items = device_items;
        s->attend[c].partials = partials;
    }
    void *out = put(w, s, NULL, (size_t)x->rows * x->q_heads * x->dim * 2);
    s->n_items = n;
    s->merge = (rkvi_merge_args){.entries = s->attend[0].entries,
                                 .items = put(w, s, merges, s->n_merges * sizeof *merges),
                                 .nodes = put(w, s, nodes, n_nodes * sizeof *nodes), .partials = partials,
                                 .out = {out, (int64_t)x->q_heads * x->dim, x->dim, RKV_TYPE_F16},
                                 .q_heads = x->q_heads, .dv = x->dim, .max_rows = x->rows};
}

static void make_decode(world *w, site *s, const shape *x)
{
    const uint64_t leaves = rkvi_div_up(x->cells, s->geom.leaf_cells);
    const bool is_wide = rkvi_decode_is_wide(x->rows * (x->q_heads / x->kv_heads), x->dim, x->dim);
    const uint64_t want = w->o.runs ? w->o.runs : (is_wide ? 1 : 2) * (uint64_t)w->n_sm / s->geom.n_heads;
    uint64_t k = 0;
    while ((leaves >> k) > want)
        k++;
    const uint64_t n = rkvi_div_up(leaves, (uint64_t)1 << k);
    rkvi_item *items = need(calloc(n, sizeof *items));
    rkvi_node *nodes = need(calloc(n, sizeof *nodes));
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t end = (i + 1) << k;
        items[i] = (rkvi_item){.n_rows = x->rows, .leaf0 = i << k, .leaf1 = end < leaves ? end : leaves,
                               .slot = i * x->rows};
        nodes[i] = (rkvi_node){.leaf0 = i << k, .slot = i * x->rows};
    }
    const rkvi_merge_item merge = {.n_rows = x->rows, .n_nodes = (uint32_t)n, .dst = RKVI_TO_OUT};
    s->n_merges = 1;
    make_merge(w, s, x, items, n, n * x->rows, &merge, nodes, n);
    for (uint32_t c = 0; c < s->n_caches; c++)
        s->attend[c].mean_leaves = (uint32_t)rkvi_div_up(leaves, n);
    free(items);
    free(nodes);
}

static void make_prefill(world *w, site *s, const shape *x)
{
    const uint64_t leaves = rkvi_div_up(x->cells, s->geom.leaf_cells), n = rkvi_div_up(x->rows, RKVI_PREFILL_ROWS);
    rkvi_item *items = need(calloc(n, sizeof *items));
    rkvi_merge_item *merges = need(calloc(n, sizeof *merges));
    rkvi_node *nodes = need(calloc(n, sizeof *nodes));
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t row = (uint32_t)(i * RKVI_PREFILL_ROWS);
        const uint32_t rows = x->rows - row < RKVI_PREFILL_ROWS ? x->rows - row : RKVI_PREFILL_ROWS;
        items[i] = (rkvi_item){.row = row, .n_rows = rows, .leaf1 = leaves, .slot = row, .flags = RKVI_ITEM_FIRST};
        merges[i] = (rkvi_merge_item){.row = row, .n_rows = rows, .n_nodes = 1, .node0 = i, .dst = RKVI_TO_OUT};
        nodes[i] = (rkvi_node){.slot = row};
    }
    s->n_merges = n;
    make_merge(w, s, x, items, n, x->rows, merges, nodes, n);
    for (uint64_t i = 0; i < n; i++)
        items[i].flags |= RKVI_ITEM_LAST;
    s->out_items = put(w, s, items, n * sizeof *items);
    free(items);
    free(merges);
    free(nodes);
}

static bool site_make(world *w, site *s, const shape *x, bool prefill)
{
    memset(s, 0, sizeof *s);
    s->geom = (rkvi_geom){.n_heads = x->kv_heads, .dk = x->dim, .dv = x->dim, .type_k = x->type_k,
                          .type_v = x->type_v, .k_scale = 1, .v_scale = 1, .tile_cells = RKVI_TILE_DEFAULT};
    must(rkvi_geom_init(&s->geom));
    if (!rkvk_find(&s->geom))
        return false;
    if (rkvk_prepare_geom(&s->geom) != 0)
        exit(1);
    make_tables(w, s, x, prefill);
    if (prefill)
        make_prefill(w, s, x);
    else
        make_decode(w, s, x);
    return true;
}

static void site_free(world *w, site *s)
{
    for (uint32_t i = 0; i < s->n_pieces; i++)
        must(rkvi_dev(mem_free, w->gpu, s->pieces[i]));
}

/* ------------------------------------------------------------------- timing */

typedef enum { READ, DECODE, DECODE_MERGE, PREFILL, PREFILL_MERGE, PREFILL_OUT, MERGE } work;

static void turn(world *w, const site *s, work kind, uint32_t cache)
{
    if (kind == READ) {
        if (bench_cuda_read(s->memory + cache * s->cache_bytes, s->cache_bytes, w->sink, w->n_sm * 4, w->stream) != 0)
            exit(1);
        return;
    }
    const bool prefill = kind == PREFILL || kind == PREFILL_MERGE || kind == PREFILL_OUT;
    rkvi_attend_args args = s->attend[cache];
    if (kind == PREFILL_OUT) {
        args.items = s->out_items;
        args.merge = s->merge;
    }
    const rkvi_launch attend = {.op = prefill ? RKVI_OP_PREFILL : RKVI_OP_DECODE, .args = &args,
                                .args_bytes = sizeof args, .grid = s->n_items * s->geom.n_heads};
    const rkvi_launch merge = {.op = RKVI_OP_MERGE, .args = &s->merge, .args_bytes = sizeof s->merge,
                               .grid = s->n_merges * s->merge.q_heads};
    if (kind != MERGE)
        must(rkvi_dev(launch, w->gpu, &attend, w->stream));
    if (kind == DECODE_MERGE || kind == PREFILL_MERGE || kind == MERGE)
        must(rkvi_dev(launch, w->gpu, &merge, w->stream));
}

/* Seconds of one turn: median, and the spread between the quartiles. */
typedef struct timing {
    double median, spread;
    uint32_t samples;
} timing;

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double sample(world *w, const site *s, work kind, uint32_t *cache, uint32_t turns)
{
    int64_t ns;
    must(rkvi_dev(event_record, w->gpu, w->from, w->stream));
    for (uint32_t i = 0; i < turns; i++) {
        turn(w, s, kind, *cache);
        *cache = (*cache + 1) % s->n_caches;
    }
    must(rkvi_dev(event_record, w->gpu, w->to, w->stream));
    must(rkvi_dev(event_sync, w->gpu, w->to));
    must(rkvi_dev(event_elapsed, w->gpu, w->from, w->to, &ns));
    return (double)ns * 1e-9 / turns;
}

/* Samples of several turns, so that the host's issuing stays ahead. */
static timing measure(world *w, const site *s, work kind)
{
    double t[SAMPLES_MAX], total = 0;
    uint32_t n = 0, cache = 0;
    nanosleep(&(struct timespec){.tv_sec = (time_t)(w->o.rest_ms / 1000),
                                 .tv_nsec = (long)(w->o.rest_ms % 1000) * 1000000}, NULL);
    sample(w, s, kind, &cache, 2);
    const double first = sample(w, s, kind, &cache, 4);
    const uint32_t turns = first > 5e-3 ? 1 : first > 5e-4 ? 8 : 40;
    while (n < SAMPLES_MAX && (n < 7 || total < w->o.seconds)) {
        t[n] = sample(w, s, kind, &cache, turns);
        total += t[n++] * turns;
    }
    qsort(t, n, sizeof *t, by_value);
    return (timing){t[n / 2], t[n * 3 / 4] - t[n / 4], n};
}

/* ------------------------------------------------------------------ reports */

static void json_shape(world *w, const shape *x, const char *regime)
{
    json_open(&w->j, NULL, '{');
    json_string(&w->j, "regime", regime);
    json_string(&w->j, "k", rkvi_type_name(x->type_k));
    json_string(&w->j, "v", rkvi_type_name(x->type_v));
    json_count(&w->j, "q_heads", x->q_heads);
    json_count(&w->j, "kv_heads", x->kv_heads);
    json_count(&w->j, "dim", x->dim);
    json_count(&w->j, "cells", x->cells);
    json_count(&w->j, "rows", x->rows);
}

static void json_timing(world *w, const char *name, timing t)
{
    char key[64];
    snprintf(key, sizeof key, "%s_us", name);
    json_number(&w->j, key, t.median * 1e6);
    snprintf(key, sizeof key, "%s_spread_us", name);
    json_number(&w->j, key, t.spread * 1e6);
}

static bool wanted(world *w, const shape *x)
{
    char name[64];
    snprintf(name, sizeof name, "%s_%s_d%u_r%u", rkvi_type_name(x->type_k), rkvi_type_name(x->type_v), x->dim, x->rows);
    const bool is = !w->o.variant || strstr(name, w->o.variant);
    w->n_shapes += is;
    return is;
}

static void print_shape(const shape *x)
{
    char heads[32];
    snprintf(heads, sizeof heads, "%u/%u/%u", x->q_heads, x->kv_heads, x->dim);
    printf("%-8s %-8s %-10s %7llu %5u", rkvi_type_name(x->type_k), rkvi_type_name(x->type_v), heads,
           (unsigned long long)x->cells, x->rows);
}

static void bench_decode(world *w, const shape *x)
{
    static site s;
    if (!wanted(w, x) || !site_make(w, &s, x, false))
        return;
    const timing read = measure(w, &s, READ), attend = measure(w, &s, DECODE), both = measure(w, &s, DECODE_MERGE);
    const timing merge = measure(w, &s, MERGE); /* with its input in the cache */
    const double mb = (double)s.cache_bytes * 1e-6, gb = mb * 1e-3;
    print_shape(x);
    printf(" %8.1f %8.1f %8.1f %8.1f %6.1f %8.0f %8.0f %8.0f %6.3f %6.3f\n", mb, read.median * 1e6, attend.median * 1e6,
           both.median * 1e6, merge.median * 1e6, gb / read.median, gb / attend.median, gb / both.median,
           read.median / attend.median, read.median / both.median);
    fflush(stdout);
    if (w->has_json) {
        json_shape(w, x, "decode");
        json_count(&w->j, "bytes", s.cache_bytes);
        json_count(&w->j, "items", s.n_items);
        json_timing(w, "read", read);
        json_timing(w, "attend", attend);
        json_timing(w, "attend_merge", both);
        json_timing(w, "merge", merge);
        json_number(&w->j, "of_read", read.median / both.median);
        json_close(&w->j, '}');
    }
    site_free(w, &s);
}

static void bench_prefill(world *w, const shape *x)
{
    static site s;
    if (!wanted(w, x) || !site_make(w, &s, x, true))
        return;
    const timing attend = measure(w, &s, PREFILL), both = measure(w, &s, PREFILL_MERGE);
    const timing out = measure(w, &s, PREFILL_OUT);
    const double pairs = (double)x->rows * ((double)x->cells - (double)x->rows + ((double)x->rows + 1) / 2);
    const double flop = 4.0 * x->dim * x->q_heads * pairs;
    print_shape(x);
    printf(" %10.1f %10.1f %10.1f %8.1f %8.1f\n", attend.median * 1e6, both.median * 1e6, out.median * 1e6,
           flop / attend.median * 1e-12, flop / out.median * 1e-12);
    fflush(stdout);
    if (w->has_json) {
        json_shape(w, x, "prefill");
        json_timing(w, "attend", attend);
        json_timing(w, "attend_merge", both);
        json_timing(w, "attend_out", out);
        json_number(&w->j, "tflops", flop / out.median * 1e-12);
        json_close(&w->j, '}');
    }
    site_free(w, &s);
}

#define K 1024u

static void all_decode(world *w)
{
    static const uint32_t shapes[][4] = {{40, 8, 128, 256 * K}, {40, 8, 128, 64 * K}, {16, 2, 256, 128 * K},
                                         {9, 3, 64, 128 * K},   {64, 8, 128, 32 * K}, {32, 32, 128, 32 * K},
                                         {8, 1, 512, 64 * K}};
    static const rkv_type pairs[][2] = {{RKV_TYPE_Q8_0, RKV_TYPE_Q8_0}, {RKV_TYPE_Q4_0, RKV_TYPE_Q4_0},
                                        {RKV_TYPE_FP8_E4M3, RKV_TYPE_FP8_E4M3}, {RKV_TYPE_BF16, RKV_TYPE_BF16},
                                        {RKV_TYPE_Q8_0, RKV_TYPE_Q4_0}, {RKV_TYPE_F16, RKV_TYPE_Q8_0},
                                        {RKV_TYPE_F16, RKV_TYPE_Q4_0}};
    static const uint32_t rows[] = {2, 3, 6, 16};
    printf("%-8s %-8s %-10s %7s %5s %8s %8s %8s %8s %6s %8s %8s %8s %6s %6s\n", "K", "V", "heads/D", "cells", "rows",
           "MB", "read us", "decode", "+merge", "merge", "GB/s", "decode", "+merge", "of rd", "+merge");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        bench_decode(w,
                     &(shape){shapes[i][0], shapes[i][1], shapes[i][2], shapes[i][3], RKV_TYPE_F16, RKV_TYPE_F16, 1});
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        for (size_t k = 0; k < 2; k++)
            bench_decode(w, &(shape){40, 8, 128, shapes[k][3], pairs[i][0], pairs[i][1], 1});
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        bench_decode(w, &(shape){40, 8, 128, 64 * K, RKV_TYPE_F16, RKV_TYPE_F16, rows[i]});
    for (size_t i = 0; i < 2; i++) { /* types with scales: also small heads, and several rows */
        bench_decode(w, &(shape){9, 3, 64, 128 * K, pairs[i][0], pairs[i][1], 1});
        bench_decode(w, &(shape){40, 8, 128, 64 * K, pairs[i][0], pairs[i][1], 3});
        bench_decode(w, &(shape){40, 8, 128, 64 * K, pairs[i][0], pairs[i][1], 6});
    }
}

static void all_prefill(world *w)
{
    static const uint32_t heads[][3] = {{40, 8, 128}, {9, 3, 64}, {16, 8, 256}};
    static const uint32_t chunks[][2] = {{512, 8 * K},   {2048, 8 * K},  {2048, 32 * K},
                                         {8192, 32 * K}, {512, 128 * K}, {2048, 128 * K}};
    printf("\n%-8s %-8s %-10s %7s %5s %10s %10s %10s %8s %8s\n", "K", "V", "heads/D", "cells", "rows", "prefill us",
           "+merge", "to output", "TFLOP/s", "output");
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        for (size_t k = 0; k < sizeof chunks / sizeof *chunks; k++)
            bench_prefill(w, &(shape){heads[i][0], heads[i][1], heads[i][2], chunks[k][1], RKV_TYPE_F16, RKV_TYPE_F16,
                                      chunks[k][0]});
    bench_prefill(w, &(shape){40, 8, 128, 32 * K, RKV_TYPE_Q8_0, RKV_TYPE_Q8_0, 2048});
    bench_prefill(w, &(shape){40, 8, 128, 32 * K, RKV_TYPE_Q4_0, RKV_TYPE_Q4_0, 2048});
}

static const char help[] =
    "bench_cuda_attend: attention kernels on a GPU, beside a plain read of device memory\n\n"
    "  --only NAME      decode or prefill alone (both)\n"
    "  --variant TEXT   only figures with it in their name, like f16_f16_d128_r1 (r: rows)\n"
    "  --seconds X      of samples for each figure (0.15)\n"
    "  --runs N         work items a KV head of decode (0: 2 a multiprocessor over all heads,\n"
    "                   or 1 of more than 8 columns)\n"
    "  --rest-ms N      of rest before each figure (20)\n"
    "  --json FILE      the figures as JSON\n"
    "  --commit TEXT    to be written there, where the build does not know it\n";

static int parse(int argc, char **argv, options *o)
{
    static const char *const regimes[] = {"decode", "prefill", NULL};
    option_of table[] = {{.name = "json", .kind = OPTION_TEXT, .to = &o->json},
                         {.name = "commit", .kind = OPTION_TEXT, .to = &o->commit},
                         {.name = "only", .kind = OPTION_NAME, .to = &o->only, .names = regimes},
                         {.name = "variant", .kind = OPTION_TEXT, .to = &o->variant},
                         {"seconds", OPTION_NUMBER, &o->seconds, 0, 1000, NULL, false},
                         {"runs", OPTION_LONG, &o->runs, 0, 1e6, NULL, false},
                         {"rest-ms", OPTION_LONG, &o->rest_ms, 0, 60000, NULL, false},
                         {0}};
    return options_parse("bench_cuda_attend", help, table, argc, argv);
}

static void world_open(world *w)
{
    const rkvi_device_cuda_settings settings = {.timed_events = true};
    rkvi_device_info info;
    void *sink;
    must(rkvi_device_cuda_create(&settings, &w->gpu));
    must(rkvi_dev(info, w->gpu, &info));
    must(rkvi_dev(event_create, w->gpu, &w->from));
    must(rkvi_dev(event_create, w->gpu, &w->to));
    must(rkvi_dev(stream_create, w->gpu, "bench", &w->stream));
    must(rkvi_dev(mem_alloc, w->gpu, 256, &sink));
    w->sink = sink;
    w->n_sm = info.n_workers;
    printf("%s, %u multiprocessors\n\n", info.name, info.n_workers);
    if (w->has_json) {
        json_open(&w->j, NULL, '{');
        json_head(&w->j, "cuda_attend", bench_commit(w->o.commit));
        json_string(&w->j, "device", info.name);
        json_open(&w->j, "attention", '[');
    }
}

int main(int argc, char **argv)
{
    static world w = {.o = {.seconds = 0.15, .rest_ms = 20, .only = 2}};
    const char *why;
    const int go_on = parse(argc, argv, &w.o);
    if (go_on < 1)
        return go_on < 0 ? 2 : 0;
    if (!option_file(w.o.json, &w.j.file))
        return 1;
    w.has_json = w.j.file != NULL;
    if (rkvi_device_cuda_count(&why) == 0) {
        printf("skipped: %s\n", why);
        return 77;
    }
    world_open(&w);
    if (w.o.only != 1)
        all_decode(&w);
    if (w.o.only != 0)
        all_prefill(&w);
    if (w.has_json) {
        json_close(&w.j, ']');
        json_close(&w.j, '}');
    }
    if (!w.n_shapes)
        fprintf(stderr, "bench_cuda_attend: --variant %s: no figure has that in its name\n", w.o.variant);
    return option_file_close(w.o.json, w.j.file) ? 0 : 1;
}
