/* step_compact.c: cells of a sequence move to dense tiles, by way of the host. */
#include "step_fill.h"

#include "cache_compact.h"
#include "cache_fill.h"

#include <string.h>

static uint64_t largest_cells(const rkvi_config *cfg)
{
    uint64_t most = 0;
    for (uint32_t l = 0; l < cfg->n_layers; l++)
        most = cfg->layers[l].geom.bytes > most ? cfg->layers[l].geom.bytes : most;
    return most;
}

/* Stored bytes as they are: K, its scales, V, its scales of each head. */
static void move_cells(const rkvi_geom *g, const rkvi_compact_piece *p, const uint8_t *from, uint8_t *to)
{
    const struct {
        uint64_t off;
        uint32_t cell_bytes;
    } planes[] = {{g->k_off, g->k_cell_bytes},
                  {g->k_scale_off, g->k_scale_cell_bytes},
                  {g->v_off, g->v_cell_bytes},
                  {g->v_scale_off, g->v_scale_cell_bytes}};
    for (uint32_t h = 0; h < g->n_heads; h++)
        for (uint32_t i = 0; i < 4; i++) {
            const uint64_t plane = h * g->head_bytes + planes[i].off, n = planes[i].cell_bytes;
            memcpy(to + plane + p->to_cell * n, from + plane + p->from_cell * n, p->count * n);
        }
}

/* Where it lies in host memory, or a copy of it in `room`. */
static rkv_status source(rkvi_mover *m, uint32_t tile, uint32_t layer, uint8_t *room, const uint8_t **out)
{
    const rkvi_geom *g = &m->h->cfg.layers[layer].geom;
    *out = rkvi_mover_host_cells(m, tile, layer);
    rkv_status s = RKV_OK;
    if (!*out) {
        *out = room;
        s = rkvi_mover_fetch(m, tile, layer, room);
        if (s == RKV_OK)
            s = rkvi_mover_wait(m);
    }
    if (s == RKV_OK)
        rkvi_mover_access(m, *out, rkvi_geom_cells_bytes(g), RKVI_READ);
    return s;
}

/* One new tile-layer, from pieces [first, end). */
static rkv_status fill(rkvi_mover *m, const rkvi_compaction *k, uint32_t first, uint32_t end, uint32_t layer)
{
    const rkvi_geom *g = &m->h->cfg.layers[layer].geom;
    const uint64_t bytes = rkvi_geom_cells_bytes(g);
    const uint32_t tile = k->new_tiles[k->pieces[first].to];
    uint8_t *to = rkvi_mover_host_cells(m, tile, layer), *at = to, *room = NULL;
    rkv_status s = rkvi_mover_sync(m);
    if (s == RKV_OK)
        s = rkvi_mover_room(m, bytes, &room);
    if (s == RKV_OK && !to)
        s = rkvi_mover_room(m, bytes, &at);
    if (s != RKV_OK)
        return s;
    rkvi_mover_access(m, at, bytes, RKVI_WRITE);
    memset(at, 0, bytes);
    const uint8_t *from = NULL; /* pieces of one tile follow each other */
    for (uint32_t i = first; i < end && s == RKV_OK; i++) {
        const rkvi_compact_piece *p = &k->pieces[i];
        if (!rkvi_tile_layer_is_held(rkvi_tile_layer_at(&m->h->cache.tiles, p->from, layer)))
            continue;
        if (i == first || p->from != p[-1].from)
            s = source(m, p->from, layer, room, &from);
        if (s == RKV_OK)
            move_cells(g, p, from, at);
    }
    return s == RKV_OK && !to ? rkvi_mover_put(m, tile, layer, at) : s;
}

static rkv_status fill_all(rkvi_mover *m, const rkvi_compaction *k)
{
    const uint32_t n_layers = m->h->cfg.n_layers;
    rkv_status s = RKV_OK;
    for (uint32_t first = 0, end; first < k->n_pieces && s == RKV_OK; first = end) {
        for (end = first + 1; end < k->n_pieces && k->pieces[end].to == k->pieces[first].to;)
            end++;
        for (uint32_t l = 0; l < n_layers && s == RKV_OK; l++)
            if (k->present[(size_t)k->pieces[first].to * n_layers + l])
                s = fill(m, k, first, end, l);
    }
    return s;
}

static rkv_status compact(rkv_cache *h, uint32_t sequence, rkvi_compaction *k)
{
    rkvi_mover m;
    rkv_status s = rkvi_mover_open(&m, h, 2 * largest_cells(&h->cfg));
    if (s != RKV_OK)
        return s;
    s = rkvi_cache_compact_take(&h->cache, k);
    const bool taken = s == RKV_OK;
    if (taken)
        s = fill_all(&m, k);
    s = rkvi_mover_close(&m, s);
    if (s == RKV_OK)
        rkvi_cache_compacted(&h->cache, sequence, k);
    else if (taken)
        rkvi_cache_fill_drop(&h->cache, k->n_new, k->new_tiles);
    return s;
}

rkv_status rkvi_handle_compact(rkv_cache *h, uint32_t sequence)
{
    rkvi_compaction k;
    h->cache.layout++;
    rkv_status s = rkvi_cache_compaction(&h->cache, sequence, &k);
    if (s != RKV_OK)
        return s;
    if (k.n_new)
        s = compact(h, sequence, &k);
    rkvi_compaction_free(&k);
    return s;
}
