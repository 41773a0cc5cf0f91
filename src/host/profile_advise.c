/* profile_advise.c: which KV layers to make resident first.
 *
 * What a byte on the device saves is that byte on the link, once for each site
 * that reads it in a step.  A KV layer whose sites all have sliding masks holds
 * and reads its width alone. */
#include "profile_advise.h"

#include "diag.h"

#include <stdlib.h>

typedef struct choice {
    uint32_t layer, n_sites;
    uint64_t held_cells, cell_bytes;
    double outside; /* mass beyond an equal share of the memory */
} choice;

static uint64_t site_cells(const rkvi_config *cfg, uint32_t site, uint64_t context)
{
    const rkvi_site_mask *m = &cfg->sites[site].mask;
    return m->kind != RKV_MASK_CAUSAL && (uint64_t)m->width < context ? (uint64_t)m->width : context;
}

static uint64_t to_tiles(const rkvi_config *cfg, uint64_t cells)
{
    return rkvi_align_up(cells, cfg->tile_cells);
}

/* Mass beyond the first n cells, between the edges around n. */
static double beyond(const rkvi_profile *p, uint32_t layer, uint64_t n)
{
    rkv_profile_mass m = {.n_rows = 0};
    if (!p)
        return 0;
    rkvi_profile_shares(p, layer, RKV_PROFILE_ALL_HEADS, &m);
    if (m.n_rows == 0 || n == 0)
        return m.n_rows ? 1 : 0;
    uint32_t b = rkvi_bit_width(n) - 1; /* 2^b <= n */
    if (b + 1 >= RKV_PROFILE_EDGES)
        return 0;
    const double low = (double)((uint64_t)1 << b), part = ((double)n - low) / low;
    const double inside = m.first[b] + (m.first[b + 1] - m.first[b]) * part;
    return inside < 1 ? 1 - inside : 0;
}

static void fill(const rkvi_config *cfg, const rkvi_profile *p, const rkv_advise_params *want,
                 choice *c)
{
    uint64_t all = 0;
    for (uint32_t l = 0; l < cfg->n_layers; l++) {
        c[l] = (choice){.layer = l, .cell_bytes = cfg->layers[l].geom.bytes / cfg->tile_cells};
        for (uint32_t s = 0; s < cfg->n_sites; s++) {
            const uint64_t cells = site_cells(cfg, s, want->context_cells);
            if (cfg->sites[s].kv_layer != l)
                continue;
            c[l].n_sites++;
            c[l].held_cells = cells > c[l].held_cells ? cells : c[l].held_cells;
        }
        all += c[l].cell_bytes;
    }
    for (uint32_t l = 0; l < cfg->n_layers; l++)
        c[l].outside = beyond(p, l, want->device_bytes / all);
}

static int by_worth(const void *a, const void *b)
{
    const choice *x = a, *y = b;
    if (x->n_sites != y->n_sites)
        return x->n_sites > y->n_sites ? -1 : 1;
    if (x->outside != y->outside)
        return x->outside > y->outside ? -1 : 1;
    return x->layer < y->layer ? -1 : x->layer > y->layer;
}

static uint64_t streamed(const rkvi_config *cfg, const choice *c, uint64_t context, uint64_t resident)
{
    uint64_t cells = 0;
    for (uint32_t s = 0; s < cfg->n_sites; s++) {
        const uint64_t n = cfg->sites[s].kv_layer == c->layer ? site_cells(cfg, s, context) : 0;
        cells += n > resident ? n - resident : 0;
    }
    return cells * c->cell_bytes;
}

rkv_status rkvi_advise(const rkvi_config *cfg, const rkvi_profile *p, const rkv_advise_params *want,
                       rkv_advice *out, rkv_advice_sum *sum)
{
    choice *c = calloc(cfg->n_layers, sizeof *c);
    uint64_t left = want->device_bytes;
    if (!c)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for advice on %u KV layers", cfg->n_layers);
    fill(cfg, p, want, c);
    qsort(c, cfg->n_layers, sizeof *c, by_worth);
    for (uint32_t i = 0; i < cfg->n_layers; i++) {
        const uint64_t tile_bytes = c[i].cell_bytes * cfg->tile_cells;
        const uint64_t wanted = to_tiles(cfg, c[i].held_cells) / cfg->tile_cells;
        const uint64_t tiles = wanted < left / tile_bytes ? wanted : left / tile_bytes;
        const uint64_t cells = tiles * cfg->tile_cells;
        rkv_advice *o = &out[c[i].layer];
        left -= tiles * tile_bytes;
        o->rank = i;
        o->resident_cells = cells ? cells : RKV_RESIDENT_NONE; /* 0 would be AUTO */
        o->streamed_bytes = streamed(cfg, &c[i], want->context_cells, cells);
        o->tail_mass = o->streamed_bytes ? beyond(p, c[i].layer, cells) : 0;
        sum->window_bytes += tiles * tile_bytes;
        sum->streamed_bytes += o->streamed_bytes;
    }
    const double seconds =
        want->link_bytes_per_s ? (double)sum->streamed_bytes / (double)want->link_bytes_per_s : 0;
    free(c);
    if (seconds * 1e9 > (double)RKVI_SIZE_MAX)
        return rkvi_fail(RKV_E_OVERFLOW, "%llu bytes a step at %llu bytes/s take more than 2^62 ns",
                         (unsigned long long)sum->streamed_bytes, (unsigned long long)want->link_bytes_per_s);
    sum->link_ns = (uint64_t)(seconds * 1e9);
    sum->is_hidden =
        sum->streamed_bytes == 0 || (want->link_bytes_per_s && sum->link_ns <= want->step_ns);
    return RKV_OK;
}
