/* SPDX-License-Identifier: MIT
 *
 * Shifted positions: against attention in f64 over K that are rotated explicitly,
 * with the same bits wherever the cells lie, in both regimes; what is refused.
 */
#include "state_fixture.h"

#include "ops_rows.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define T 16u
#define DIM 64u
#define SEQS 4u
#define CELLS 1024u

static uint64_t seed;
static float frequencies[2][DIM / 2];

/* What a sequence holds, with the turn of each cell: the record beside fx's. */
typedef struct world {
    fx a, b;              /* b: everything resident */
    int64_t turn[SEQS][CELLS * 2];
} world;

static void fill_frequencies(void)
{
    for (uint32_t i = 0; i < DIM / 2; i++) {
        frequencies[0][i] = (float)pow(10000, -2.0 * i / DIM);
        frequencies[1][i] = (float)(pow(500, -2.0 * i / DIM) / 8); /* a scaled base */
    }
}

/* Three KV layers: all dims by halves, half the dims interleaved and with
 * frequencies of its own, and one without positions in K. */
static fx_model shift_model(rkv_type type, uint64_t resident)
{
    fx_model m = fx_model_make(T, 0, CELLS);
    for (uint32_t i = 0; i < 3; i++) {
        const uint32_t l = fx_add_layer(&m, 1 + i % 2, DIM, DIM, resident);
        m.layers[l].type_k = m.layers[l].type_v = type;
    }
    m.layers[1].rope = (rkv_rope_params){frequencies[1], DIM / 4, 1};
    m.layers[2].k_form = RKV_K_PLAIN;
    m.params.rope = (rkv_rope_params){frequencies[0], DIM / 2, 0};
    m.sites[1].softcap = 20;
    m.params.n_sequences = SEQS;
    return m;
}

/* ------------------------------------------------------------------- oracle */

/* K as stored, turned on by `turn`, in f64. */
static void turned_k(const float *k, uint32_t layer, int64_t turn, double *out)
{
    const uint32_t n = layer == 0 ? DIM / 2 : layer == 1 ? DIM / 4 : 0;
    for (uint32_t i = 0; i < DIM; i++)
        out[i] = (double)k[i];
    for (uint32_t p = 0; p < n; p++) {
        const uint32_t i = layer ? 2 * p : p, j = layer ? i + 1 : i + n;
        const double a = (double)turn * (double)frequencies[layer][p], x = (double)k[i], y = (double)k[j];
        out[i] = x * cos(a) - y * sin(a);
        out[j] = x * sin(a) + y * cos(a);
    }
}

/* What a KV layer stores of a cell and gives back. */
static void stored(const fx_model *m, uint32_t layer, uint64_t tag, float *k, float *v)
{
    const rkv_kv_layer_params *lp = &m->layers[layer];
    rkvi_geom g = {.n_heads = lp->n_kv_heads, .dk = DIM, .dv = DIM, .type_k = lp->type_k, .type_v = lp->type_v,
                   .k_scale = 1, .v_scale = 1, .tile_cells = T};
    assert_int_equal(rkvi_geom_init(&g), RKV_OK);
    uint8_t *tile = aligned_alloc(256, g.bytes);
    fx_values(tag, layer, 'k', lp->n_kv_heads * DIM, k);
    fx_values(tag, layer, 'v', lp->n_kv_heads * DIM, v);
    for (uint32_t h = 0; h < lp->n_kv_heads; h++) {
        const rkvi_plane kp = rkvi_plane_k(&g, (uintptr_t)tile, h), vp = rkvi_plane_v(&g, (uintptr_t)tile, h);
        rkvi_plane_put(&kp, 0, k + h * DIM);
        rkvi_plane_get(&kp, 0, k + h * DIM);
        rkvi_plane_put(&vp, 0, v + h * DIM);
        rkvi_plane_get(&vp, 0, v + h * DIM);
    }
    free(tile);
}

/* The squared error of one row of the last step at one site. */
static double row_error(const world *w, uint32_t seq, uint32_t site, uint32_t row, uint64_t qtag)
{
    const fx *f = &w->a;
    const rkv_site_params *sp = &f->model.sites[site];
    const uint32_t group = sp->n_q_heads / f->model.layers[site].n_kv_heads;
    const uint64_t n_seen = f->n_cells[seq];
    static double s[2 * CELLS], kd[DIM];
    static float v[2 * CELLS][2 * DIM];
    float q[4 * DIM], k[2 * DIM];
    double error = 0;
    fx_values(qtag, site, 'q', sp->n_q_heads * DIM, q);
    for (uint32_t h = 0; h < sp->n_q_heads; h++) {
        double m = -INFINITY, sum = 0, out[DIM] = {0};
        for (uint64_t i = 0; i < n_seen; i++) {
            stored(&f->model, site, f->cells[seq][i].tag, k, v[i]);
            turned_k(k + h / group * DIM, site, w->turn[seq][i], kd);
            s[i] = 0;
            for (uint32_t j = 0; j < DIM; j++)
                s[i] += (double)q[h * DIM + j] * kd[j];
            s[i] /= sqrt(DIM);
            s[i] = sp->softcap != 0 ? (double)sp->softcap * tanh(s[i] / (double)sp->softcap) : s[i];
            m = s[i] > m ? s[i] : m;
        }
        for (uint64_t i = 0; i < n_seen; i++) {
            sum += exp(s[i] - m);
            for (uint32_t j = 0; j < DIM; j++)
                out[j] += exp(s[i] - m) * (double)v[i][h / group * DIM + j];
        }
        for (uint32_t j = 0; j < DIM; j++) {
            const double d = (double)fx_out(f, site, row, h, j) - out[j] / sum;
            error += d * d;
        }
    }
    return error / (sp->n_q_heads * DIM);
}

/* ---------------------------------------------------------------- operations */

static void append(world *w, uint32_t rows, uint32_t regime, uint64_t tag)
{
    const uint64_t n = w->a.n_cells[0];
    fx_append(&w->a, 0, rows, regime, tag);
    fx_append(&w->b, 0, rows, regime, tag);
    assert_true(fx_same(&w->a, &w->b));
    for (uint64_t i = n; i < w->a.n_cells[0]; i++)
        w->turn[0][i] = 0;
}

/* The last cell's row at all sites; the root of the mean squared error. */
static double last_row_error(const world *w, uint64_t tag)
{
    double e = 0;
    for (uint32_t site = 0; site < w->a.model.n_sites; site++)
        e += row_error(w, 0, site, w->a.n_rows - 1, tag);
    return sqrt(e / w->a.model.n_sites);
}

/* A GPU multiplies q and weights in f16. */
static double limit(void)
{
    return fx_gpu ? 1e-3 : 2e-6;
}

/* The same shift on both, and on the record. */
static rkv_status shift(world *w, int64_t from, int64_t to, int64_t delta)
{
    const rkv_status can = rkv_sequence_can_shift(w->a.cache, 0, from, to, delta);
    const rkv_status s = rkv_sequence_shift(w->a.cache, 0, from, to, delta);
    assert_int_equal(can, s);
    assert_int_equal(rkv_sequence_shift(w->b.cache, 0, from, to, delta), s);
    for (uint64_t i = 0; i < w->a.n_cells[0] && s == RKV_OK; i++)
        if (w->a.cells[0][i].pos >= from && w->a.cells[0][i].pos < to) {
            w->a.cells[0][i].pos = w->b.cells[0][i].pos += delta;
            w->turn[0][i] += delta;
        }
    return s;
}

static void truncate_to(world *w, uint64_t n)
{
    fx_truncate(&w->a, 0, n);
    fx_truncate(&w->b, 0, n);
}

static void remove_range(world *w, int64_t from, int64_t to)
{
    uint64_t n = 0;
    fx_ok(rkv_sequence_remove(w->a.cache, 0, from, to), "remove");
    fx_ok(rkv_sequence_remove(w->b.cache, 0, from, to), "remove");
    for (uint64_t i = 0; i < w->a.n_cells[0]; i++)
        if (w->a.cells[0][i].pos < from || w->a.cells[0][i].pos >= to) {
            w->turn[0][n] = w->turn[0][i];
            w->a.cells[0][n] = w->b.cells[0][n] = w->a.cells[0][i];
            n++;
        }
    w->a.n_cells[0] = w->b.n_cells[0] = n;
}

static void open_world(world *w, rkv_type type, uint32_t max_turns, fx_executor executor, uint64_t executor_seed)
{
    fx_model m = shift_model(type, RKV_RESIDENT_NONE);
    m.params.max_turns = max_turns;
    m.executor = executor;
    m.seed = executor_seed;
    fx_open(&w->a, &m);
    m = shift_model(type, RKV_RESIDENT_ALL);
    m.params.max_turns = max_turns;
    fx_open(&w->b, &m);
}

static void close_world(world *w)
{
    fx_close(&w->a);
    fx_close(&w->b);
    free(w);
}

/* -------------------------------------------------------------------- tests */

/* Random shifts up and down, with cells added and taken back. */
static void random_shifts(rkv_type type, fx_executor executor, uint64_t s, uint32_t rounds)
{
    world *w = calloc(1, sizeof *w);
    uint64_t r = s, tag = s << 20;
    uint32_t n_done = 0;
    double worst = 0;
    open_world(w, type, 40, executor, s);
    append(w, 150, RKV_REGIME_PREFILL, tag);
    tag += 150;
    for (uint32_t i = 0; i < rounds; i++) {
        const uint64_t n = w->a.n_cells[0];
        const int64_t from = w->a.cells[0][fx_random(&r) % n].pos, to = from + (int64_t)(fx_random(&r) % 200);
        const int64_t up = (int64_t)(fx_random(&r) % 90000);
        /* up for all that follow, or back down by as much as there is room for */
        rkv_status st = shift(w, from, i % 3 ? RKV_POS_END : to, i % 4 ? up : -up);
        n_done += st == RKV_OK;
        if (i % 5 == 2)
            remove_range(w, w->a.cells[0][n / 3].pos, w->a.cells[0][n / 3 + fx_random(&r) % 20].pos);
        if (i % 5 == 4)
            truncate_to(w, w->a.n_cells[0] - fx_random(&r) % 30);
        const uint32_t rows = 1 + (uint32_t)(fx_random(&r) % (i % 2 ? 16 : 60));
        append(w, rows, i % 2 ? RKV_REGIME_DECODE : RKV_REGIME_PREFILL, tag);
        tag += rows;
        const double e = last_row_error(w, tag - 1);
        worst = e > worst ? e : worst;
        if (w->a.n_cells[0] > 600)
            truncate_to(w, 200);
    }
    print_message("executor %d, type %u: %u of %u shifts, rms error at most %.1e\n", (int)executor, (unsigned)type,
                  n_done, rounds, worst);
    assert_true(n_done > rounds / 4);
    assert_true(worst < limit());
    close_world(w);
}

static void test_random(void **state)
{
    (void)state;
    random_shifts(RKV_TYPE_F16, FX_HOST, seed, 30);
    random_shifts(RKV_TYPE_Q8_0, FX_CHECK, seed + 1, 20);
    for (uint64_t s = 2; s < (fx_is_full() ? 40 : 5); s++)
        random_shifts(RKV_TYPE_Q8_0, FX_SIM, seed + s, 15);
}

/* Sixteen rows over so many stretches that their partials have no room at once,
 * on the device or through the ring: the bits are those of rows asked one by one. */
static void test_many_stretches(void **state)
{
    (void)state;
    fx w[2];
    uint64_t r = seed;
    for (uint32_t i = 0; i < 2; i++) {
        fx_model m = shift_model(RKV_TYPE_F16, i ? RKV_RESIDENT_ALL : RKV_RESIDENT_NONE);
        m.params.capacity_cells = 4096;
        m.params.max_turns = 100;
        m.params.n_sequences = 1;
        m.params.max_rows = 128;
        fx_open(&w[i], &m);
        fx_append(&w[i], 0, 4000, RKV_REGIME_PREFILL, 1000);
    }
    for (int64_t at = 3950; at > 0; at -= 41) {
        const int64_t up = 1 + (int64_t)(fx_random(&r) % 100);
        for (uint32_t i = 0; i < 2; i++)
            fx_ok(rkv_sequence_shift(w[i].cache, 0, at, RKV_POS_END, up), "shift");
    }
    rkv_sequence_state q = {.struct_size = sizeof q};
    fx_ok(rkv_sequence_info(w[0].cache, 0, &q), "info");
    int64_t pos[128];
    for (uint32_t k = 0; k < 128; k++)
        pos[k] = q.pos_end - 128 + k;
    fx_entry e = {.seq = 0, .rows = 16, .is_query = true, .tag = 5, .positions = pos + 112};
    const uint64_t before = fx_stats(&w[1]).extra_launches;
    for (uint32_t i = 0; i < 2; i++)
        fx_step(&w[i], &e, 1);
    assert_true(fx_same(&w[0], &w[1]));
    const uint64_t extra = fx_stats(&w[1]).extra_launches - before;
    for (uint32_t k = 0; k < 16; k++) {
        const fx_entry one = {.seq = 0, .rows = 1, .is_query = true, .tag = 5 + k, .positions = pos + 112 + k};
        fx_step(&w[1], &one, 1);
        for (uint32_t s = 0; s < w[0].model.n_sites; s++)
            for (uint32_t h = 0; h < w[0].model.sites[s].n_q_heads; h++)
                for (uint32_t i = 0; i < DIM; i++)
                    assert_true(fx_out(&w[0], s, k, h, i) == fx_out(&w[1], s, 0, h, i));
    }
    print_message("launches beyond one a site: %llu for sixteen rows\n", (unsigned long long)extra);
    e = (fx_entry){.seq = 0, .rows = 128, .is_query = true, .tag = 5, .positions = pos, .regime = RKV_REGIME_PREFILL};
    for (uint32_t i = 0; i < 2; i++)
        fx_step(&w[i], &e, 1);
    assert_true(fx_same(&w[0], &w[1]));
    fx_close(&w[0]);
    fx_close(&w[1]);
}

/* Twenty times: the first 20 cells stay, 150 after them go, the rest moves down,
 * and new ones fill up to 500.  The error is that of a sequence as long which was
 * never shifted, but for one rounding of q. */
static void context_shift(rkv_type type, fx_executor executor, uint32_t rounds)
{
    world *w = calloc(1, sizeof *w);
    double plain = 0, worst = 0;
    uint64_t tag = 100000;
    open_world(w, type, 0, executor, seed);
    append(w, 500, RKV_REGIME_PREFILL, tag);
    for (uint32_t i = 0; i < 4; i++) {
        append(w, 1, RKV_REGIME_DECODE, tag += 1000);
        plain = fmax(plain, last_row_error(w, tag));
    }
    for (uint32_t i = 0; i < rounds; i++) {
        remove_range(w, 20, 20 + 150);
        assert_int_equal(shift(w, 20 + 150, RKV_POS_END, -150), RKV_OK);
        assert_int_equal(w->a.cells[0][w->a.n_cells[0] - 1].pos, w->a.n_cells[0] - 1);
        append(w, 500 - (uint32_t)w->a.n_cells[0], i % 3 ? RKV_REGIME_PREFILL : RKV_REGIME_AUTO, tag += 1000);
        append(w, 1 + i % 4, RKV_REGIME_DECODE, tag += 1000);
        worst = fmax(worst, last_row_error(w, tag + i % 4));
    }
    const rkv_cache_stats s = fx_stats(&w->a);
    print_message("executor %d, type %u: rms error %.2e, %.2e over %u shifts; %llu bytes demoted, %llu brought back\n",
                  (int)executor, (unsigned)type, plain, worst, rounds, (unsigned long long)s.demoted_bytes,
                  (unsigned long long)s.brought_back_bytes);
    assert_true(fx_layer(&w->a, 0).tail_tiles > 20);
    assert_true(worst < 2 * plain + (fx_gpu ? 3e-4 : 2e-8));
    close_world(w);
}

static void test_context_shift(void **state)
{
    (void)state;
    context_shift(RKV_TYPE_Q8_0, FX_HOST, 20);
    context_shift(RKV_TYPE_F16, FX_HOST, 20);
    context_shift(RKV_TYPE_Q8_0, FX_CHECK, 5);
    context_shift(RKV_TYPE_Q8_0, FX_SIM, 5);
}

/* Sequences that share shifted cells, from the beginning or from the middle on,
 * and are shifted on by themselves. */
static void test_shared(void **state)
{
    (void)state;
    world *w = calloc(1, sizeof *w);
    fx *f[2] = {&w->a, &w->b};
    open_world(w, RKV_TYPE_F16, 0, FX_CHECK, seed);
    append(w, 210, RKV_REGIME_PREFILL, 1000);
    assert_int_equal(shift(w, 60, RKV_POS_END, 500), RKV_OK);
    append(w, 20, RKV_REGIME_PREFILL, 2000);
    for (uint32_t i = 0; i < 2; i++) {
        fx_ok(rkv_sequence_fork(f[i]->cache, 1, 0), "fork");
        fx_copy_record(f[i], 1, f[i], 0);
        fx_ok(rkv_sequence_append_from(f[i]->cache, 2, 0, 40, RKV_POS_END), "append_from");
        fx_copy_record(f[i], 2, f[i], 0);
        f[i]->n_cells[2] -= 40;
        memmove(f[i]->cells[2], f[i]->cells[2] + 40, f[i]->n_cells[2] * sizeof *f[i]->cells[2]);
        fx_ok(rkv_sequence_shift(f[i]->cache, 1, 600, RKV_POS_END, 7), "shift");
        for (uint64_t k = 100; k < f[i]->n_cells[1]; k++)
            f[i]->cells[1][k].pos += 7;
    }
    for (uint32_t k = 0; k < 230; k++) {
        w->turn[1][k] = w->turn[0][k] + (k >= 100 ? 7 : 0);
        w->turn[2][k] = k + 40 < 230 ? w->turn[0][k + 40] : 0;
    }
    for (uint32_t step = 0; step < 6; step++) {
        const uint32_t regime = step % 3 == 2 ? RKV_REGIME_PREFILL : RKV_REGIME_DECODE;
        const fx_entry e[3] = {{.seq = 2, .rows = 1 + step, .tag = 3000 + 100 * step, .regime = regime},
                               {.seq = 0, .rows = 2, .tag = 13000 + 100 * step, .regime = regime},
                               {.seq = 1, .rows = 1, .tag = 23000 + 100 * step, .regime = regime}};
        fx_step(&w->a, e, 3);
        fx_step(&w->b, e, 3);
        assert_true(fx_same(&w->a, &w->b));
        for (uint32_t i = 0, row = 0; i < 3; i++) {
            row += e[i].rows;
            for (uint32_t site = 0; site < 3; site++)
                assert_true(sqrt(row_error(w, e[i].seq, site, row - 1, e[i].tag + e[i].rows - 1)) < limit());
        }
    }
    close_world(w);
}

/* A shifted sequence is saved with its turns, and goes on in a cache of another
 * residency; caches that could not turn q as it asks refuse it. */
static void test_state(void **state)
{
    (void)state;
    world *w = calloc(1, sizeof *w);
    fx other;
    fx_bytes bytes = {0};
    open_world(w, RKV_TYPE_Q8_0, 0, FX_HOST, 1);
    append(w, 200, RKV_REGIME_PREFILL, 1000);
    assert_int_equal(shift(w, 150, RKV_POS_END, 3000), RKV_OK);
    assert_int_equal(shift(w, 50, 150, 77), RKV_OK);
    fx_save(&w->a, 0, &bytes);
    fx_clear(&w->b, 0);
    fx_ok(fx_load(&w->b, 0, &bytes, true), "load");
    fx_copy_record(&w->b, 0, &w->a, 0);
    append(w, 3, RKV_REGIME_DECODE, 2000);
    assert_true(last_row_error(w, 2002) < limit());
    static const char *const sentences[] = {"max_turns 1", "other RoPE frequencies", "k_form", "without the rotary"};
    for (uint32_t i = 0; i < 4; i++) {
        fx_model m = shift_model(RKV_TYPE_Q8_0, RKV_RESIDENT_ALL);
        m.params.max_turns = i == 0;
        if (i == 1)
            m.layers[1].rope.frequencies = frequencies[0];
        if (i == 2)
            m.layers[2].k_form = RKV_K_OTHER;
        if (i == 3)
            m.params.rope = (rkv_rope_params){0};
        fx_open(&other, &m);
        bytes.read = 0;
        assert_int_equal(fx_load(&other, 0, &bytes, true), RKV_E_DATA);
        assert_non_null(strstr(rkv_error_message(), sentences[i]));
        fx_close(&other);
    }
    fx_bytes_free(&bytes);
    close_world(w);
}

/* Turns that add up to nothing leave the bits of a sequence that was not shifted. */
static void test_back_again(void **state)
{
    (void)state;
    world *w = calloc(1, sizeof *w);
    open_world(w, RKV_TYPE_F16, 0, FX_HOST, 1);
    append(w, 200, RKV_REGIME_PREFILL, 1000);
    fx_ok(rkv_sequence_shift(w->a.cache, 0, 100, RKV_POS_END, 5000), "shift");
    fx_ok(rkv_sequence_shift(w->a.cache, 0, 5100, RKV_POS_END, -4000), "shift");
    fx_ok(rkv_sequence_shift(w->a.cache, 0, 1100, RKV_POS_END, -1000), "shift");
    append(w, 3, RKV_REGIME_DECODE, 2000);
    close_world(w);
}

static void test_refused(void **state)
{
    (void)state;
    world *w = calloc(1, sizeof *w);
    open_world(w, RKV_TYPE_F16, 0, FX_HOST, 1);
    append(w, 100, RKV_REGIME_PREFILL, 1000);
    assert_int_equal(shift(w, 50, 60, 1), RKV_E_ARGUMENT); /* onto the cell after it */
    assert_non_null(strstr(rkv_error_message(), "position 59 shifted by 1"));
    assert_int_equal(shift(w, 50, RKV_POS_END, -1), RKV_E_ARGUMENT);
    assert_non_null(strstr(rkv_error_message(), "position 49"));
    assert_int_equal(shift(w, 0, RKV_POS_END, -1), RKV_E_ARGUMENT);
    assert_non_null(strstr(rkv_error_message(), "negative"));
    assert_int_equal(shift(w, 0, RKV_POS_END, RKV_POS_END - 50), RKV_E_ARGUMENT);
    assert_int_equal(shift(w, 5, 4, 1), RKV_E_ARGUMENT);
    assert_int_equal(shift(w, 5, 6, RKV_POS_END), RKV_E_ARGUMENT);
    assert_int_equal(shift(w, 5, 6, -RKV_POS_END), RKV_E_ARGUMENT);
    assert_int_equal(rkv_sequence_shift(w->a.cache, SEQS, 0, 1, 1), RKV_E_SEQUENCE);
    assert_int_equal(shift(w, 200, 300, -100), RKV_OK); /* no cell there */
    for (int64_t i = 9; i > 1; i--) /* eight stretches, each by a delta of its own */
        assert_int_equal(shift(w, 10 * i, RKV_POS_END, 1), RKV_OK);
    assert_int_equal(shift(w, 10, RKV_POS_END, 1), RKV_E_CAPACITY);
    assert_non_null(strstr(rkv_error_message(), "max_turns, 8"));
    append(w, 20, RKV_REGIME_PREFILL, 3000);
    assert_true(last_row_error(w, 3019) < limit());
    append(w, 2, RKV_REGIME_DECODE, 4000);
    assert_true(last_row_error(w, 4001) < limit());
    const fx_entry e = {.seq = 0, .rows = 1, .tag = 5};
    fx_ok(fx_begin(&w->a, &e, 1), "begin");
    assert_int_equal(rkv_sequence_shift(w->a.cache, 0, 0, 1, 1), RKV_E_STATE);
    fx_ok(fx_abort(&w->a), "abort");
    close_world(w);
}

/* Stretches of both sequences count when one goes on with cells of the other. */
static void test_stretches_of_both(void **state)
{
    (void)state;
    fx w;
    fx_model m = shift_model(RKV_TYPE_F16, RKV_RESIDENT_ALL);
    m.params.max_turns = 2;
    fx_open(&w, &m);
    fx_append(&w, 0, 40, RKV_REGIME_PREFILL, 1);
    fx_append(&w, 1, 10, RKV_REGIME_PREFILL, 100);
    fx_ok(rkv_sequence_shift(w.cache, 0, 10, RKV_POS_END, 1), "shift");
    fx_ok(rkv_sequence_shift(w.cache, 0, 21, RKV_POS_END, 1), "shift");
    fx_ok(rkv_sequence_shift(w.cache, 1, 5, RKV_POS_END, 1), "shift");
    assert_int_equal(rkv_sequence_append_from(w.cache, 1, 0, 11, RKV_POS_END), RKV_E_CAPACITY);
    assert_non_null(strstr(rkv_error_message(), "sequence 1 would have up to 3 stretches"));
    fx_ok(rkv_sequence_append_from(w.cache, 1, 0, 22, RKV_POS_END), "one of its two");
    rkv_sequence_state q = {.struct_size = sizeof q};
    fx_ok(rkv_sequence_info(w.cache, 1, &q), "info");
    assert_int_equal(q.n_cells, 30);
    assert_int_equal(q.pos_end, 42);
    fx_close(&w);
}

/* More runs of positions than the tables of a step have room for. */
static void test_runs(void **state)
{
    (void)state;
    fx w;
    fx_model m = shift_model(RKV_TYPE_F16, RKV_RESIDENT_ALL);
    m.params.n_sequences = 1;
    m.params.capacity_cells = 4 * m.params.tile_cells;
    m.params.extra_segments = 1;
    fx_open(&w, &m);
    fx_append(&w, 0, (uint32_t)m.params.capacity_cells, RKV_REGIME_PREFILL, 1);
    fx_ok(rkv_sequence_shift(w.cache, 0, 10, RKV_POS_END, 1), "a tile in two");
    assert_int_equal(rkv_sequence_can_shift(w.cache, 0, 30, RKV_POS_END, 1), RKV_E_CAPACITY);
    assert_int_equal(rkv_sequence_shift(w.cache, 0, 30, RKV_POS_END, 1), RKV_E_CAPACITY);
    assert_non_null(
        strstr(rkv_error_message(), "the shift would make 6 separate runs of positions, at most 5 are kept"));
    fx_ok(rkv_sequence_shift(w.cache, 0, 0, 10, 1), "as many runs");
    fx_close(&w);
}

/* Each reason for which no position of a cache can be shifted. */
static void test_cannot(void **state)
{
    (void)state;
    static const char *const sentences[] = {"without the rotary frequencies", "RKV_K_OTHER", "RKV_TURNS_NONE"};
    for (uint32_t i = 0; i < 3; i++) {
        fx w;
        fx_model m = shift_model(RKV_TYPE_F16, RKV_RESIDENT_ALL);
        if (i == 0)
            m.params.rope = (rkv_rope_params){0};
        if (i == 1)
            m.layers[1].k_form = RKV_K_OTHER;
        if (i == 2)
            m.params.max_turns = RKV_TURNS_NONE;
        fx_open(&w, &m);
        fx_append(&w, 0, 20, RKV_REGIME_PREFILL, 1);
        assert_int_equal(rkv_sequence_can_shift(w.cache, 0, 10, RKV_POS_END, 5), RKV_E_UNSUPPORTED);
        assert_non_null(strstr(rkv_error_message(), sentences[i]));
        assert_int_equal(rkv_sequence_shift(w.cache, 0, 10, RKV_POS_END, 5), RKV_E_UNSUPPORTED);
        fx_append(&w, 0, 1, RKV_REGIME_DECODE, 100);
        fx_close(&w);
    }
}

int main(void)
{
#ifdef FX_ON_GPU
    fx_use_gpu();
#endif
    seed = fx_seed();
    fill_frequencies();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random),  cmocka_unit_test(test_context_shift), cmocka_unit_test(test_back_again),
        cmocka_unit_test(test_state),   cmocka_unit_test(test_shared),        cmocka_unit_test(test_many_stretches),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_cannot),        cmocka_unit_test(test_stretches_of_both),
        cmocka_unit_test(test_runs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
