/* SPDX-License-Identifier: MIT
 *
 * Kinds of faults that others met (docs/faults.md), where no other test is about
 * them: outputs with a closed form over head dims and ratios of heads, sinks and
 * masks, batches of several sequences over a streamed tail, arguments that the
 * caller changes as soon as a call has returned.
 */
#include "step_fixture.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { T = 16 };

typedef struct shape {
    uint32_t dk, dv, kv_heads, ratio;
    rkv_mask mask;
    uint64_t mask_width;
    float sink; /* 0: none */
    uint64_t resident_cells;
} shape;

/* One cache, tensors of `rows` rows. */
typedef struct world {
    rkv_cache *cache;
    float *q, *k, *v, *out, *lse, *sinks;
    uint32_t rows, q_heads, dk, dv;
    uint64_t n;
} world;

static void open_world(world *w, const shape *s, uint32_t rows)
{
    rkv_kv_layer_params l = RKV_KV_LAYER_PARAMS_INIT;
    rkv_site_params site = RKV_SITE_PARAMS_INIT;
    rkv_cache_params p = RKV_CACHE_PARAMS_INIT;
    *w = (world){.rows = rows, .q_heads = s->kv_heads * s->ratio, .dk = s->dk, .dv = s->dv};
    l.n_kv_heads = s->kv_heads;
    l.head_dim_k = s->dk;
    l.head_dim_v = s->dv;
    l.resident_cells = s->resident_cells;
    l.keep_all = 1;
    site.n_q_heads = w->q_heads;
    site.mask = s->mask;
    site.mask_width = s->mask_width;
    p.device = RKV_DEVICE_HOST;
    p.kv_layers = &l;
    p.sites = &site;
    p.n_kv_layers = p.n_sites = 1;
    p.capacity_cells = 20 * T;
    p.tile_cells = T;
    p.draft_rows = 1;
    p.max_rows = rows;
    p.host.n_threads = 1;
    fx_ok(rkv_cache_create(&p, &w->cache), "create");
    w->q = calloc((size_t)rows * w->q_heads * s->dk, sizeof(float));
    w->k = calloc((size_t)rows * s->kv_heads * s->dk, sizeof(float));
    w->v = calloc((size_t)rows * s->kv_heads * s->dv, sizeof(float));
    w->out = calloc((size_t)rows * w->q_heads * s->dv, sizeof(float));
    w->lse = calloc((size_t)rows * w->q_heads, sizeof(float));
    w->sinks = s->sink ? calloc(w->q_heads, sizeof(float)) : NULL;
    for (uint32_t i = 0; w->sinks && i < w->q_heads; i++)
        w->sinks[i] = s->sink;
    for (size_t i = 0; i < (size_t)rows * s->kv_heads * s->dv; i++)
        w->v[i] = 1;
    for (size_t i = 0; i < (size_t)rows * s->kv_heads * s->dk; i++)
        w->k[i] = (float)(i % 7) - 3; /* q is zero: no score depends on it */
}

static void close_world(world *w)
{
    rkv_cache_destroy(w->cache);
    free(w->q);
    free(w->k);
    free(w->v);
    free(w->out);
    free(w->lse);
    free(w->sinks);
}

static void step(world *w, uint32_t rows, const rkv_pos_range *visible)
{
    const rkv_batch_entry e = {.struct_size = sizeof e, .n_rows = rows, .n_new_cells = rows, .visible = visible};
    const rkv_batch b = {.struct_size = sizeof b, .n_entries = 1, .entries = &e};
    rkv_attend_params a = RKV_ATTEND_PARAMS_INIT;
    a.q = (rkv_tensor){.data = w->q, .type = RKV_TYPE_F32};
    a.k = (rkv_tensor){.data = w->k, .type = RKV_TYPE_F32};
    a.v = (rkv_tensor){.data = w->v, .type = RKV_TYPE_F32};
    a.out = (rkv_tensor){.data = w->out, .type = RKV_TYPE_F32};
    a.lse = w->lse;
    a.sinks = w->sinks;
    fx_ok(rkv_step_begin(w->cache, &b), "begin");
    fx_ok(rkv_step_attend(w->cache, &a, NULL), "attend");
    fx_ok(rkv_step_end(w->cache, NULL, NULL), "end");
    fx_ok(rkv_host_stream_sync(w->cache, NULL), "sync");
    w->n += rows;
}

static double seen(const shape *s, uint64_t pos)
{
    uint64_t from = 0;
    if (s->mask == RKV_MASK_SLIDING && pos + 1 > s->mask_width)
        from = pos + 1 - s->mask_width;
    if (s->mask == RKV_MASK_CHUNKED)
        from = pos - pos % s->mask_width;
    return (double)(pos + 1 - from);
}

/* q . k = 0, V = 1: n / (n + exp(sink)), and log(n + exp(sink)), with n the cells seen. */
static void check_rows(const world *w, const shape *s, uint32_t rows)
{
    for (uint32_t r = 0; r < rows; r++)
        for (uint32_t h = 0; h < w->q_heads; h++) {
            const double n = seen(s, w->n - rows + r), sum = n + (s->sink ? exp((double)s->sink) : 0);
            const float *out = &w->out[((size_t)r * w->q_heads + h) * w->dv];
            assert_true(fabs((double)w->lse[r * w->q_heads + h] - log(sum)) < 1e-5);
            for (uint32_t i = 0; i < w->dv; i++)
                if (!(fabs((double)out[i] - n / sum) < 1e-5))
                    fail_msg("dims %u/%u, ratio %u, row %u, head %u, element %u: %.8g, not %.8g", s->dk, s->dv,
                             s->ratio, r, h, i, (double)out[i], n / sum);
        }
}

static void run_shape(const shape *s)
{
    world w;
    open_world(&w, s, 24);
    step(&w, 24, NULL);
    check_rows(&w, s, 24);
    for (uint32_t i = 0; i < 30; i += 3) {
        step(&w, 3, NULL);
        check_rows(&w, s, 3);
    }
    close_world(&w);
}

/* Every head dim with every ratio: right, never a slow path or an abort. */
static void test_dims_and_ratios(void **state)
{
    (void)state;
    static const uint32_t dims[] = {64, 72, 80, 96, 112, 128, 192, 256, 512, 576};
    static const uint32_t ratios[] = {1, 2, 3, 5, 6, 7, 12, 16, 20, 32, 64};
    for (uint32_t d = 0; d < sizeof dims / sizeof *dims; d++)
        for (uint32_t r = 0; r < sizeof ratios / sizeof *ratios; r++) {
            const shape s = {.dk = dims[d], .dv = r % 3 == 2 && dims[d] > 64 ? dims[d] - 64 : dims[d],
                             .kv_heads = ratios[r] > 8 ? 1 : 2, .ratio = ratios[r],
                             .resident_cells = r % 2 ? RKV_RESIDENT_NONE : T};
            run_shape(&s);
        }
}

/* A sink counts once, however many leaves, masks and tiers there are. */
static void test_sinks(void **state)
{
    (void)state;
    static const rkv_mask masks[] = {RKV_MASK_CAUSAL, RKV_MASK_SLIDING, RKV_MASK_CHUNKED};
    static const float sinks[] = {0.83925f, -20, 3, 30};
    static const uint64_t budgets[] = {RKV_RESIDENT_NONE, T, RKV_RESIDENT_ALL};
    for (uint32_t m = 0; m < 3; m++)
        for (uint32_t k = 0; k < 4; k++)
            for (uint32_t b = 0; b < 3; b++) {
                const shape s = {.dk = 64, .dv = 32, .kv_heads = 2, .ratio = 3, .mask = masks[m],
                                 .mask_width = m ? 19 : 0, .sink = sinks[k], .resident_cells = budgets[b]};
                run_shape(&s);
            }
}

/* Rows that see nothing: zeros, and the sink's lse or -inf; beside rows that see. */
static void test_nothing_seen(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        const shape s = {.dk = 64, .dv = 64, .kv_heads = 1, .ratio = 2, .sink = i % 2 ? 0.5f : 0,
                         .resident_cells = i / 2 ? RKV_RESIDENT_ALL : RKV_RESIDENT_NONE};
        const rkv_pos_range visible[3] = {{5, 5}, {0, RKV_POS_END}, {1000, 2000}};
        world w;
        open_world(&w, &s, 24);
        step(&w, 24, NULL);
        step(&w, 24, NULL);
        memset(w.out, 0xff, 3 * 2 * 64 * sizeof(float)); /* NaN */
        step(&w, 3, visible);
        for (uint32_t r = 0; r < 3; r++)
            for (uint32_t h = 0; h < 2; h++) {
                const double n = r == 1 ? 50 : 0, sum = n + (s.sink ? exp(0.5) : 0);
                for (uint32_t x = 0; x < 64; x++)
                    assert_true(fabs((double)w.out[(r * 2 + h) * 64 + x] - (n > 0 ? n / sum : 0)) < 1e-5);
                const float lse = w.lse[r * 2 + h];
                assert_true(sum > 0 ? fabs((double)lse - log(sum)) < 1e-5 : isinf(lse) && lse < 0);
            }
        close_world(&w);
    }
}

/* Several rows of several sequences in one launch: each row's own cells. */
static void test_batches_over_the_tail(void **state)
{
    (void)state;
    for (uint32_t n_seq = 2; n_seq < 5; n_seq++)
        for (uint32_t rows = 1; rows < 6; rows += 3) {
            fx w;
            fx_entry e[4];
            fx_model m = fx_model_make(T, 64, 40 * T);
            m.layers[0].resident_cells = RKV_RESIDENT_NONE;
            m.params.n_sequences = n_seq;
            m.params.max_rows = 128;
            m.params.draft_rows = 1;
            m.executor = FX_CHECK;
            fx_open(&w, &m);
            for (uint32_t q = 0; q < n_seq; q++) /* the last one has no tail */
                fx_append(&w, q, q == n_seq - 1 ? 5 : 40 + 20 * q, RKV_REGIME_PREFILL, 1000 * (q + 1));
            for (uint32_t i = 0; i < 4; i++) {
                for (uint32_t q = 0; q < n_seq; q++)
                    e[q] = (fx_entry){.seq = q, .rows = rows, .tag = 9000 + 100 * i + 10 * q};
                fx_step(&w, e, n_seq);
            }
            for (uint32_t q = 0; q < n_seq; q++)
                fx_compare_fresh(&w, q, rows);
            fx_close(&w);
        }
}

/* ------------------------------------------------ arguments that change at once */

/* One step whose arguments are overwritten as soon as each call has returned. */
static void scribbled_step(rkv_cache *cache, uint32_t rows, int64_t at, float *t, float *out)
{
    rkv_batch_entry *e = calloc(1, sizeof *e);
    rkv_batch *b = calloc(1, sizeof *b);
    int64_t *pos = calloc(rows, sizeof *pos);
    rkv_attend_params *a = calloc(1, sizeof *a);
    for (uint32_t i = 0; i < rows; i++)
        pos[i] = at + i;
    *e = (rkv_batch_entry){.struct_size = sizeof *e, .n_rows = rows, .n_new_cells = rows, .positions = pos};
    *b = (rkv_batch){.struct_size = sizeof *b, .n_entries = 1, .entries = e};
    fx_ok(rkv_step_begin(cache, b), "begin");
    memset(pos, 0xa5, rows * sizeof *pos);
    memset(e, 0xa5, sizeof *e);
    memset(b, 0xa5, sizeof *b);
    *a = (rkv_attend_params)RKV_ATTEND_PARAMS_INIT;
    a->q = a->k = a->v = (rkv_tensor){.data = t, .type = RKV_TYPE_F32};
    a->out = (rkv_tensor){.data = out, .type = RKV_TYPE_F32};
    fx_ok(rkv_step_attend(cache, a, NULL), "attend");
    memset(a, 0xa5, sizeof *a);
    fx_ok(rkv_step_end(cache, NULL, NULL), "end");
    free(e);
    free(b);
    free(pos);
    free(a);
}

/* Steps run ahead of a slow executor, with arguments that are gone: as with a quick one. */
static void test_arguments_change_at_once(void **state)
{
    (void)state;
    enum { STEPS = 40, DIM = 64 };
    static float t[STEPS + 3][16 * DIM], out[2][STEPS + 3][16 * DIM];
    for (uint32_t i = 0; i < STEPS + 3; i++)
        fx_values(100 + i, 0, 'q', 16 * DIM, t[i]);
    for (uint32_t slow = 0; slow < 2; slow++) {
        fx w;
        fx_model m = fx_model_make(T, DIM, 20 * T);
        m.layers[0].resident_cells = RKV_RESIDENT_NONE;
        m.params.draft_rows = 1;
        m.delay_ns = slow ? 300000 : 0;
        m.seed = 7;
        fx_open(&w, &m);
        int64_t at = 0;
        for (uint32_t i = 0; i < STEPS; i++) {
            const uint32_t rows = i < 6 ? 16 : 1;
            scribbled_step(w.cache, rows, at, t[i], out[slow][i]);
            at += rows;
        }
        fx_ok(rkv_host_stream_sync(w.cache, NULL), "sync");
        fx_close(&w);
    }
    assert_memory_equal(out[0], out[1], sizeof out[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dims_and_ratios),       cmocka_unit_test(test_sinks),
        cmocka_unit_test(test_nothing_seen),          cmocka_unit_test(test_batches_over_the_tail),
        cmocka_unit_test(test_arguments_change_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
