/* profile_mass.c: attention mass by distance.
 *
 * A row's runs have partials (m, l) over their cells; with M the largest m and
 * L the sum of l * exp(m - M), a run's share of the mass is l * exp(m - M) / L. */
#include "profile_mass.h"

#include "diag.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ life cycle */

rkv_status rkvi_profile_init(rkvi_profile *p, const rkvi_config *cfg)
{
    *p = (rkvi_profile){.n_layers = cfg->n_layers, .max_rows = cfg->max_rows};
    for (uint32_t l = 0; l < cfg->n_layers; l++)
        if (cfg->layers[l].geom.n_heads > p->most_heads)
            p->most_heads = cfg->layers[l].geom.n_heads;
    for (uint32_t s = 0; s < cfg->n_sites; s++)
        if (cfg->sites[s].n_q_heads > p->most_q_heads)
            p->most_q_heads = cfg->sites[s].n_q_heads;
    const size_t n = (size_t)p->max_rows * p->most_q_heads;
    p->mass = calloc((size_t)p->n_layers * p->most_heads, sizeof *p->mass);
    p->row_m = malloc(n * sizeof *p->row_m);
    p->row_l = malloc(n * sizeof *p->row_l);
    if (p->mass && p->row_m && p->row_l)
        return RKV_OK;
    rkvi_profile_free(p);
    return rkvi_fail(RKV_E_HOST_MEMORY, "no memory to profile %u KV layers and %u rows", cfg->n_layers,
                     cfg->max_rows);
}

void rkvi_profile_free(rkvi_profile *p)
{
    free(p->mass);
    free(p->runs);
    free(p->sums);
    free(p->row_m);
    free(p->row_l);
    *p = (rkvi_profile){0};
}

/* ------------------------------------------------------------------------ runs */

void rkvi_profile_site(rkvi_profile *p)
{
    p->n_runs = p->n_sums = 0;
    p->is_short = false;
}

static bool grow(void **list, uint64_t *room, uint64_t need, size_t item_bytes)
{
    if (need <= *room)
        return true;
    void *q = realloc(*list, 2 * need * item_bytes);
    if (!q)
        return false;
    *list = q;
    *room = 2 * need;
    return true;
}

void rkvi_profile_add(rkvi_profile *p, const rkvi_item *items, uint64_t n, const float *sums,
                      uint64_t slot0, uint32_t q_heads)
{
    uint64_t floats = 0;
    for (uint64_t i = 0; i < n; i++)
        floats += 2 * (uint64_t)items[i].n_rows * q_heads;
    if (!grow((void **)&p->runs, &p->runs_room, p->n_runs + n, sizeof *p->runs) ||
        !grow((void **)&p->sums, &p->sums_room, p->n_sums + floats, sizeof *p->sums)) {
        p->is_short = true;
        return;
    }
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t size = 2 * (uint64_t)items[i].n_rows * q_heads;
        p->runs[p->n_runs++] = (rkvi_mass_run){items[i], p->n_sums};
        memcpy(p->sums + p->n_sums, sums + (items[i].slot - slot0) * 2 * q_heads, size * sizeof *sums);
        p->n_sums += size;
    }
}

/* ------------------------------------------------------------------------ mass */

static uint32_t bucket_of(uint64_t distance)
{
    const uint32_t b = rkvi_bit_width(distance);
    return b < RKV_PROFILE_EDGES ? b : RKV_PROFILE_EDGES - 1;
}

/* `a_cell` of each of the cells at distances [from, to). */
static void spread(double *buckets, uint64_t from, uint64_t to, double a_cell)
{
    while (from < to) {
        const uint32_t b = bucket_of(from);
        const uint64_t edge = b + 1 == RKV_PROFILE_EDGES ? to : (uint64_t)1 << b;
        const uint64_t end = edge < to ? edge : to;
        buckets[b] += (double)(end - from) * a_cell;
        from = end;
    }
}

/* One row's share of a run, spread over the cells that it sees there. */
static void spread_run(rkvi_mass *mass, const rkvi_mass_tables *t, const rkvi_item *item, uint64_t row,
                       double share)
{
    const rkvi_entry *e = &t->entries[item->entry];
    const rkvi_span *spans = t->spans + e->span0;
    const int64_t pos = t->rows[row].pos, begin = t->begin[row];
    uint64_t n = 0;
    int64_t lo, hi;
    uint32_t a, z;
    rkvi_visible(&t->rows[row], t->mask, &lo, &hi);
    for (uint64_t leaf = item->leaf0; leaf < item->leaf1; leaf++) {
        rkvi_span_visible(&spans[leaf], lo, hi, &a, &z);
        n += z > a ? z - a : 0;
    }
    for (uint64_t leaf = item->leaf0; n && leaf < item->leaf1; leaf++) {
        rkvi_span_visible(&spans[leaf], lo, hi, &a, &z);
        if (a >= z)
            continue;
        const int64_t first = spans[leaf].pos + a, end = spans[leaf].pos + z;
        spread(mass->recent, (uint64_t)(pos - end + 1), (uint64_t)(pos - first + 1), share / (double)n);
        spread(mass->first, (uint64_t)(first - begin), (uint64_t)(end - begin), share / (double)n);
    }
}

typedef void (*run_fn)(rkvi_profile *p, const rkvi_mass_tables *t, const rkvi_item *item, uint64_t row,
                       const float *ml);

static void each_row(rkvi_profile *p, const rkvi_mass_tables *t, run_fn fn)
{
    for (uint64_t i = 0; i < p->n_runs; i++) {
        const rkvi_item *item = &p->runs[i].item;
        for (uint32_t r = 0; r < item->n_rows; r++) {
            const uint64_t row = rkvi_item_row(t->row_map, &t->entries[item->entry], item, r);
            fn(p, t, item, row, p->sums + p->runs[i].sums0 + 2 * (uint64_t)r * t->q_heads);
        }
    }
}

static void find_largest(rkvi_profile *p, const rkvi_mass_tables *t, const rkvi_item *item,
                         uint64_t row, const float *ml)
{
    (void)item;
    for (uint32_t h = 0; h < t->q_heads; h++)
        p->row_m[row * t->q_heads + h] = fmaxf(p->row_m[row * t->q_heads + h], ml[h]);
}

static double weight(const rkvi_profile *p, const rkvi_mass_tables *t, uint64_t row, uint32_t h,
                     const float *ml)
{
    const float l = ml[t->q_heads + h];
    return l > 0 ? (double)l * exp((double)ml[h] - (double)p->row_m[row * t->q_heads + h]) : 0;
}

static void sum_up(rkvi_profile *p, const rkvi_mass_tables *t, const rkvi_item *item, uint64_t row,
                   const float *ml)
{
    (void)item;
    for (uint32_t h = 0; h < t->q_heads; h++)
        p->row_l[row * t->q_heads + h] += weight(p, t, row, h, ml);
}

static rkvi_mass *mass_of(rkvi_profile *p, const rkvi_mass_tables *t, uint32_t h)
{
    return &p->mass[(size_t)t->layer * p->most_heads + h / (t->q_heads / t->kv_heads)];
}

static void share_out(rkvi_profile *p, const rkvi_mass_tables *t, const rkvi_item *item, uint64_t row,
                      const float *ml)
{
    for (uint32_t h = 0; h < t->q_heads; h++) {
        const double l = p->row_l[row * t->q_heads + h], w = weight(p, t, row, h, ml);
        if (l > 0 && w > 0)
            spread_run(mass_of(p, t, h), t, item, row, w / l);
    }
}

void rkvi_profile_finish(rkvi_profile *p, const rkvi_mass_tables *t)
{
    const size_t n = (size_t)p->max_rows * t->q_heads;
    if (p->is_short)
        return;
    for (size_t i = 0; i < n; i++) {
        p->row_m[i] = -INFINITY;
        p->row_l[i] = 0;
    }
    each_row(p, t, find_largest);
    each_row(p, t, sum_up);
    each_row(p, t, share_out);
    for (size_t i = 0; i < n; i++)
        if (p->row_l[i] > 0)
            mass_of(p, t, (uint32_t)(i % t->q_heads))->n_rows++;
}

void rkvi_profile_shares(const rkvi_profile *p, uint32_t layer, uint32_t head, rkv_profile_mass *out)
{
    const uint32_t first = head == RKV_PROFILE_ALL_HEADS ? 0 : head;
    const uint32_t end = head == RKV_PROFILE_ALL_HEADS ? p->most_heads : head + 1;
    double recent = 0, begin = 0;
    for (uint32_t h = first; h < end; h++)
        out->n_rows += p->mass[(size_t)layer * p->most_heads + h].n_rows;
    for (uint32_t b = 0; out->n_rows && b < RKV_PROFILE_EDGES; b++) {
        for (uint32_t h = first; h < end; h++) {
            recent += p->mass[(size_t)layer * p->most_heads + h].recent[b];
            begin += p->mass[(size_t)layer * p->most_heads + h].first[b];
        }
        out->recent[b] = recent / (double)out->n_rows;
        out->first[b] = begin / (double)out->n_rows;
    }
}
