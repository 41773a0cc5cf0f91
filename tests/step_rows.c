/* SPDX-License-Identifier: MIT
 *
 * step_rows.c: rows of a step against attention in f64.
 */
#include "step_rows.h"

#include "ops_half.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static bool sees(const fx *w, const rkv_site_params *sp, uint32_t row, int64_t x)
{
    const int64_t p = w->row_pos[row], width = (int64_t)sp->mask_width;
    if (x > p || x < w->row_visible[row].from || x >= w->row_visible[row].to)
        return false;
    if (sp->mask == RKV_MASK_SLIDING)
        return x > p - width;
    return sp->mask != RKV_MASK_CHUNKED || x >= p - p % width;
}

/* Scores of one row and head over the n cells seen; K and V are exact in f16. */
typedef struct row_case {
    const fx *w;
    uint32_t site, row, head;
    uint64_t qtag, n;
    const fx_cell **cells;
} row_case;

static void row_in_f64(const row_case *c, double *out, double *lse)
{
    const rkv_site_params *sp = &c->w->model.sites[c->site];
    const rkv_kv_layer_params *lp = &c->w->model.layers[sp->kv_layer];
    const uint32_t dk = lp->head_dim_k, dv = lp->head_dim_v, group = sp->n_q_heads / lp->n_kv_heads;
    const double scale = sp->scale ? (double)sp->scale : 1 / sqrt(dk);
    const float *sinks = c->w->site_sinks[c->site];
    float *q = malloc(sizeof(float) * 65536), *x = malloc(sizeof(float) * 65536);
    double *s = malloc(sizeof(double) * (c->n + 1)), m = sinks ? (double)sinks[c->head] : -INFINITY, sum = 0;
    fx_values(c->qtag, c->site, 'q', sp->n_q_heads * dk, q);
    for (uint64_t i = 0; i < c->n; i++) {
        fx_values(c->cells[i]->tag, sp->kv_layer, 'k', lp->n_kv_heads * dk, x);
        s[i] = 0;
        for (uint32_t j = 0; j < dk; j++)
            s[i] += (double)q[c->head * dk + j] * (double)x[c->head / group * dk + j];
        s[i] *= scale;
        if (sp->softcap)
            s[i] = (double)sp->softcap * tanh(s[i] / (double)sp->softcap);
        m = s[i] > m ? s[i] : m;
    }
    for (uint32_t j = 0; j < dv; j++)
        out[j] = 0;
    for (uint64_t i = 0; i < c->n; i++) {
        fx_values(c->cells[i]->tag, sp->kv_layer, 'v', lp->n_kv_heads * dv, x);
        const double e = exp(s[i] - m);
        sum += e;
        for (uint32_t j = 0; j < dv; j++)
            out[j] += e * (double)x[c->head / group * dv + j];
    }
    sum += sinks ? exp((double)sinks[c->head] - m) : 0;
    for (uint32_t j = 0; j < dv; j++)
        out[j] = sum ? out[j] / sum : 0;
    *lse = m + log(sum);
    free(q), free(x), free(s);
}

/* The same in f32, one cell after another: what plain code does.  On a GPU the
 * weights are rounded to f16, in which tensor cores multiply; q and K are exact. */
static void row_in_f32(const row_case *c, float *out)
{
    const rkv_site_params *sp = &c->w->model.sites[c->site];
    const rkv_kv_layer_params *lp = &c->w->model.layers[sp->kv_layer];
    const uint32_t dk = lp->head_dim_k, dv = lp->head_dim_v, group = sp->n_q_heads / lp->n_kv_heads;
    const float scale = sp->scale ? sp->scale : 1 / sqrtf((float)dk);
    const float *sinks = c->w->site_sinks[c->site];
    float *q = malloc(sizeof(float) * 65536), *x = malloc(sizeof(float) * 65536);
    float *s = malloc(sizeof(float) * (c->n + 1)), m = sinks ? sinks[c->head] : -INFINITY, sum = 0;
    fx_values(c->qtag, c->site, 'q', sp->n_q_heads * dk, q);
    for (uint64_t i = 0; i < c->n; i++) {
        fx_values(c->cells[i]->tag, sp->kv_layer, 'k', lp->n_kv_heads * dk, x);
        s[i] = 0;
        for (uint32_t j = 0; j < dk; j++)
            s[i] += q[c->head * dk + j] * x[c->head / group * dk + j];
        s[i] *= scale;
        if (sp->softcap)
            s[i] = sp->softcap * tanhf(s[i] / sp->softcap);
        m = s[i] > m ? s[i] : m;
    }
    for (uint32_t j = 0; j < dv; j++)
        out[j] = 0;
    for (uint64_t i = 0; i < c->n; i++) {
        fx_values(c->cells[i]->tag, sp->kv_layer, 'v', lp->n_kv_heads * dv, x);
        const float e = expf(s[i] - m);
        sum += e;
        const float weight = fx_gpu ? rkvi_f16_to_f32(rkvi_f32_to_f16(e)) : e;
        for (uint32_t j = 0; j < dv; j++)
            out[j] += weight * x[c->head / group * dv + j];
    }
    sum += sinks ? expf(sinks[c->head] - m) : 0;
    for (uint32_t j = 0; j < dv; j++)
        out[j] = sum ? out[j] / sum : 0;
    free(q), free(x), free(s);
}

static void check_row(const row_case *c, fx_errors *sums)
{
    const rkv_site_params *sp = &c->w->model.sites[c->site];
    const uint32_t dv = c->w->model.layers[sp->kv_layer].head_dim_v;
    const float lse = c->w->lse[c->site][c->row * sp->n_q_heads + c->head];
    const double limit = fx_gpu ? 2e-3 : 1e-3, lse_limit = fx_gpu ? 1e-4 : 1e-5;
    double want[512], want_lse;
    float plain[512];
    row_in_f64(c, want, &want_lse);
    row_in_f32(c, plain);
    if (c->n == 0) {
        sums->n_empty++;
        for (uint32_t i = 0; i < dv; i++)
            assert_true(fx_out(c->w, c->site, c->row, c->head, i) == 0);
        const float *sinks = c->w->site_sinks[c->site];
        assert_true(lse == (sinks ? sinks[c->head] : -INFINITY));
        return;
    }
    assert_true(fabs((double)lse - want_lse) <= lse_limit * (1 + fabs(want_lse)));
    for (uint32_t i = 0; i < dv; i++) {
        const double got = (double)fx_out(c->w, c->site, c->row, c->head, i);
        if (!(fabs(got - want[i]) < limit))
            fail_msg("site %u row %u head %u element %u: %g, want %g", c->site, c->row, c->head, i, got, want[i]);
        sums->ours += (got - want[i]) * (got - want[i]);
        sums->plain += ((double)plain[i] - want[i]) * ((double)plain[i] - want[i]);
        sums->n++;
    }
}

void fx_check_rows(const fx *w, uint32_t stride, fx_errors *sums)
{
    uint32_t row0 = 0, count = 0;
    for (uint32_t e = 0; e < w->n_entries; row0 += w->entries[e++].rows) {
        const uint32_t seq = w->entries[e].seq;
        const fx_cell **seen = malloc((w->n_cells[seq] + 1) * sizeof *seen);
        for (uint32_t s = 0; s < w->model.n_sites; s++)
            for (uint32_t r = 0; r < w->entries[e].rows; r++) {
                if (count++ % stride)
                    continue;
                row_case c = {.w = w, .site = s, .row = row0 + r, .qtag = w->entries[e].tag + r, .cells = seen};
                c.head = count % w->model.sites[s].n_q_heads;
                for (uint64_t i = 0; i < w->n_cells[seq]; i++)
                    if (sees(w, &w->model.sites[s], c.row, w->cells[seq][i].pos))
                        seen[c.n++] = &w->cells[seq][i];
                check_row(&c, sums);
            }
        free(seen);
    }
}
