/* SPDX-License-Identifier: MIT
 *
 * bench_numerics.c: errors of attention by storage type and length, host
 * executor.  Measures, asserts nothing.
 *
 *   bench_numerics [--cells N] [--pairs N]
 *
 * K, V and q are normal; 'peaked' has q four times as large, so that few cells
 * carry the weight.  One KV head of 64, two query heads, rows that decode.  Two
 * references in f64: over the values as stored (the error of arithmetic), and as
 * given (the error of storage on top).  Errors are relative to the root mean
 * square of the reference's output; of lse, absolute.  'plain' is f32 code with
 * two passes over the stored values, in order.
 */
#include "options.h"
#include "rollkv/cells.h"
#include "rollkv/host.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DIM = 64, HEADS = 2, ROWS = 4, CHUNK = 4096, SEED = 1 };

typedef struct sums {
    double err2, max, ref2, lse;
    uint64_t n;
} sums;

static uint64_t state;

static double uniform(void)
{
    uint64_t x = state += 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return ((double)((x ^ x >> 31) >> 11) + 0.5) / 9007199254740992.0;
}

static float normal(void)
{
    return (float)(sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()));
}

static void must(rkv_status s, const char *what)
{
    if (s == RKV_OK)
        return;
    fprintf(stderr, "%s: %s\n", what, rkv_error_message());
    exit(1);
}

static rkv_cache *create(rkv_type k, rkv_type v, uint64_t cells)
{
    rkv_kv_layer_params l = RKV_KV_LAYER_PARAMS_INIT;
    rkv_site_params s = RKV_SITE_PARAMS_INIT;
    rkv_cache_params p = RKV_CACHE_PARAMS_INIT;
    rkv_cache *cache = NULL;
    l.n_kv_heads = 1;
    l.head_dim_k = DIM;
    l.type_k = k;
    l.type_v = v;
    l.k_scale = l.v_scale = 1.0f / 64; /* fp8: values to 7 */
    l.resident_cells = RKV_RESIDENT_ALL;
    s.n_q_heads = HEADS;
    p.device = RKV_DEVICE_HOST;
    p.kv_layers = &l;
    p.sites = &s;
    p.n_kv_layers = p.n_sites = 1;
    p.capacity_cells = cells + ROWS;
    p.max_rows = ROWS;
    must(rkv_cache_create(&p, &cache), "create");
    return cache;
}

static rkv_tensor tensor(float *at)
{
    return (rkv_tensor){.data = at, .type = RKV_TYPE_F32};
}

/* Cells in, and as stored out again. */
static void fill(rkv_cache *cache, float *k, float *v, float *k_stored, float *v_stored, uint64_t n)
{
    must(rkv_import_begin(cache, 0, n, NULL), "import");
    rkv_cells c = RKV_CELLS_INIT;
    for (c.first_cell = 0; c.first_cell < n; c.first_cell += c.n_cells) {
        c.n_cells = n - c.first_cell < CHUNK ? n - c.first_cell : CHUNK;
        c.k = tensor(k + c.first_cell * DIM);
        c.v = tensor(v + c.first_cell * DIM);
        must(rkv_import_cells(cache, &c, NULL), "import cells");
    }
    must(rkv_import_end(cache), "import end");
    const rkv_pos_range all = {0, RKV_POS_END};
    c.first_cell = 0;
    c.n_cells = n;
    c.k = tensor(k_stored);
    c.v = tensor(v_stored);
    must(rkv_export_cells(cache, 0, &all, &c, NULL), "export");
}

static void ask(rkv_cache *cache, float *q, float *out, float *lse, int64_t pos)
{
    int64_t at[ROWS];
    for (int i = 0; i < ROWS; i++)
        at[i] = pos + i; /* all see the whole sequence */
    rkv_batch_entry e = RKV_BATCH_ENTRY_INIT;
    e.n_rows = ROWS;
    e.positions = at;
    const rkv_batch b = {.struct_size = sizeof b, .n_entries = 1, .entries = &e};
    rkv_attend_params a = RKV_ATTEND_PARAMS_INIT;
    a.q = tensor(q);
    a.out = tensor(out);
    a.lse = lse;
    must(rkv_step_begin(cache, &b), "begin");
    must(rkv_step_attend(cache, &a, NULL), "attend");
    must(rkv_step_end(cache, NULL, NULL), "end");
    must(rkv_host_stream_sync(cache, NULL), "sync");
}

/* One row and head in f64; scores: room for n. */
static double exact(const float *q, const float *k, const float *v, uint64_t n, double *scores, double *out)
{
    double m = -INFINITY, l = 0;
    for (uint64_t i = 0; i < n; i++) {
        double s = 0;
        for (uint32_t d = 0; d < DIM; d++)
            s += (double)q[d] * (double)k[i * DIM + d];
        scores[i] = s / 8;
        m = fmax(m, scores[i]);
    }
    memset(out, 0, DIM * sizeof *out);
    for (uint64_t i = 0; i < n; i++) {
        const double p = exp(scores[i] - m);
        l += p;
        for (uint32_t d = 0; d < DIM; d++)
            out[d] += p * (double)v[i * DIM + d];
    }
    for (uint32_t d = 0; d < DIM; d++)
        out[d] /= l;
    return m + log(l);
}

static float plain(const float *q, const float *k, const float *v, uint64_t n, float *scores, float *out)
{
    float m = -INFINITY, l = 0;
    for (uint64_t i = 0; i < n; i++) {
        float s = 0;
        for (uint32_t d = 0; d < DIM; d++)
            s += q[d] * k[i * DIM + d];
        scores[i] = s * 0.125f;
        m = fmaxf(m, scores[i]);
    }
    memset(out, 0, DIM * sizeof *out);
    for (uint64_t i = 0; i < n; i++) {
        const float p = expf(scores[i] - m);
        l += p;
        for (uint32_t d = 0; d < DIM; d++)
            out[d] += p * v[i * DIM + d];
    }
    for (uint32_t d = 0; d < DIM; d++)
        out[d] /= l;
    return m + logf(l);
}

static void add(sums *t, const float *got, const double *want, float lse, double want_lse)
{
    for (uint32_t d = 0; d < DIM; d++) {
        const double e = fabs((double)got[d] - want[d]);
        t->err2 += e * e;
        t->ref2 += want[d] * want[d];
        t->max = fmax(t->max, e);
        t->n++;
    }
    t->lse = fmax(t->lse, fabs((double)lse - want_lse));
}

static void print_sums(const sums *t)
{
    printf(" %9.2e %9.2e %9.2e", sqrt(t->err2 / t->ref2), t->max / sqrt(t->ref2 / (double)t->n), t->lse);
}

static const char *const names[] = {"", "f32", "f16", "bf16", "fp8", "q8_0", "q4_0"};

static void run(rkv_type tk, rkv_type tv, uint64_t n, float peak, float *room[4], double *scores)
{
    float q[ROWS * HEADS * DIM], out[ROWS * HEADS * DIM], lse[ROWS * HEADS];
    sums stored = {0}, given = {0}, f32 = {0};
    rkv_cache *cache = create(tk, tv, n);
    state = SEED;
    for (uint64_t i = 0; i < n * DIM; i++) {
        room[0][i] = normal();
        room[1][i] = normal();
    }
    for (uint32_t i = 0; i < ROWS * HEADS * DIM; i++)
        q[i] = peak * normal();
    fill(cache, room[0], room[1], room[2], room[3], n);
    ask(cache, q, out, lse, (int64_t)n);
    for (uint32_t r = 0; r < ROWS * HEADS; r++) {
        double want[DIM];
        float f[DIM];
        double want_lse = exact(q + r * DIM, room[2], room[3], n, scores, want);
        add(&stored, out + r * DIM, want, lse[r], want_lse);
        const float f_lse = plain(q + r * DIM, room[2], room[3], n, (float *)scores, f);
        add(&f32, f, want, f_lse, want_lse);
        want_lse = exact(q + r * DIM, room[0], room[1], n, scores, want);
        add(&given, out + r * DIM, want, lse[r], want_lse);
    }
    printf("%-4s %-4s %8" PRIu64 " %6s", names[tk], names[tv], n, peak > 1 ? "peaked" : "flat");
    print_sums(&stored);
    print_sums(&f32);
    print_sums(&given);
    printf("\n");
    fflush(stdout);
    rkv_cache_destroy(cache);
}

static const char help[] =
    "bench_numerics: errors of attention by storage type and length, on the host executor\n\n"
    "  --cells N   the largest number of them; 256 and each 16 times as many before it (65536)\n"
    "  --pairs N   only the first pairs of types of K and V (6)\n";

int main(int argc, char **argv)
{
    static const rkv_type types[][2] = {
        {RKV_TYPE_F16, RKV_TYPE_F16},   {RKV_TYPE_BF16, RKV_TYPE_BF16}, {RKV_TYPE_FP8_E4M3, RKV_TYPE_FP8_E4M3},
        {RKV_TYPE_Q8_0, RKV_TYPE_Q8_0}, {RKV_TYPE_Q4_0, RKV_TYPE_Q4_0}, {RKV_TYPE_Q8_0, RKV_TYPE_Q4_0}};
    uint64_t most = 65536;
    uint32_t pairs = sizeof types / sizeof *types;
    option_of table[] = {{"cells", OPTION_LONG, &most, 256, 1 << 30, NULL, false},
                         {"pairs", OPTION_COUNT, &pairs, 1, sizeof types / sizeof *types, NULL, false},
                         {0}};
    const int go_on = options_parse("bench_numerics", help, table, argc, argv);
    if (go_on < 1)
        return go_on < 0 ? 2 : 0;
    float *room[4];
    double *scores = malloc(most * sizeof *scores);
    for (int i = 0; i < 4; i++)
        room[i] = malloc(most * DIM * sizeof(float));
    if (!scores || !room[3] || !room[2] || !room[1] || !room[0])
        return 1;
    printf("seed %d; rms, largest (both over the output's rms), lse; of the library and of plain f32 code against "
           "f64 on stored values, of the library against f64 on the values given\n", SEED);
    printf("%-4s %-4s %8s %6s %29s %29s %29s\n", "K", "V", "cells", "q", "library, stored", "plain f32, stored",
           "library, given");
    for (uint32_t t = 0; t < sizeof types / sizeof *types && t < pairs; t++)
        for (uint64_t n = 256; n <= most; n *= 16)
            for (uint32_t p = 0; p < 2; p++)
                run(types[t][0], types[t][1], n, p ? 4 : 1, room, scores);
    for (int i = 0; i < 4; i++)
        free(room[i]);
    free(scores);
    return 0;
}
