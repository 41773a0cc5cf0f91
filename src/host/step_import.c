/* step_import.c: cells from the caller's memory, appended to a sequence. */
#include "cache_fill.h"
#include "cache_unseen.h"
#include "step_cells_types.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define LL(x) ((long long)(x))

/* ------------------------------------------------------------------------ begin */

static rkv_status check_positions(const rkvi_seq *q, uint64_t n, const int64_t *positions)
{
    int64_t next = rkvi_seq_pos_end(q);
    if (!positions && n > (uint64_t)(RKV_POS_END - next))
        return rkvi_fail(RKV_E_ARGUMENT, "%llu cells from position %lld on exceed 2^62",
                         (unsigned long long)n, LL(next));
    for (uint64_t i = 0; positions && i < n; i++) {
        if (positions[i] < next || positions[i] >= RKV_POS_END)
            return rkvi_fail(RKV_E_ARGUMENT,
                             "positions[%llu] is %lld; it must be from %lld on, and below 2^62",
                             (unsigned long long)i, LL(positions[i]), LL(next));
        next = positions[i] + 1;
    }
    return RKV_OK;
}

/* Fresh tiles, without what no row sees once the cells are there. */
static rkv_status take_kept(rkv_cache *h, struct rkvi_import *m, const rkvi_row *rows)
{
    const rkvi_config *cfg = &h->cfg;
    const uint64_t n = m->n_cells, lag = cfg->draft_rows < n ? cfg->draft_rows : n;
    const int64_t end = n > lag ? rows[n - 1 - lag].pos + 1 : rows[0].pos;
    uint8_t *kept = malloc((size_t)m->n_tiles * cfg->n_layers + 1);
    if (!kept)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for %u tiles", m->n_tiles);
    for (uint32_t l = 0; l < cfg->n_layers; l++) {
        const int64_t floor = rkvi_cache_floor_at(cfg, l, end);
        for (uint32_t t = 0; t < m->n_tiles; t++) {
            const uint64_t last = (t + 1) * (uint64_t)cfg->tile_cells - m->base; /* of the rows, one past it */
            kept[(size_t)t * cfg->n_layers + l] =
                t + 1 == m->n_tiles || rows[last - 1].pos >= floor || !cfg->layers[l].frees;
        }
    }
    rkv_status s = rkvi_cache_fill_take(&h->cache, m->n_tiles, kept, m->tiles);
    free(kept);
    return s;
}

/* What the sequence becomes: its own parts, then the new cells in fresh tiles. */
static rkv_status grow_result(rkv_cache *h, struct rkvi_import *m, const int64_t *positions)
{
    const rkvi_seq *q = &h->cache.seqs[m->sequence];
    const uint32_t T = h->cfg.tile_cells, fill = rkvi_seq_last_fill(q) % T;
    rkvi_row *rows = calloc(m->n_cells, sizeof *rows);
    uint32_t n_tiles = 0, n_segments = 0;
    if (!rows)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory to import %llu cells",
                         (unsigned long long)m->n_cells);
    for (uint64_t i = 0; i < m->n_cells; i++)
        rows[i].pos = positions ? positions[i] : rkvi_seq_pos_end(q) + (int64_t)i;
    rkvi_seq_need(q, rows, (uint32_t)m->n_cells, T, &n_tiles, &n_segments);
    m->base = q->n_tiles ? fill : 0;
    m->replaced = m->base ? q->tiles[q->n_tiles - 1] : UINT32_MAX;
    m->n_tiles = n_tiles + (m->base > 0);
    m->tiles = malloc((m->n_tiles + (size_t)1) * sizeof *m->tiles);
    rkv_status s = m->tiles ? rkvi_cache_fill_fits(&h->cache, m->n_tiles, n_segments)
                            : rkvi_fail(RKV_E_HOST_MEMORY, "no memory for %u tiles", m->n_tiles);
    if (s == RKV_OK)
        s = rkvi_seq_copy(&m->result, q);
    if (s == RKV_OK)
        s = rkvi_seq_reserve(&m->result, n_tiles, n_segments);
    if (s == RKV_OK)
        s = take_kept(h, m, rows);
    if (s != RKV_OK) {
        m->n_tiles = 0; /* none was taken */
    } else {
        if (m->base)
            m->result.tiles[q->n_tiles - 1] = m->tiles[0];
        rkvi_seq_append(&m->result, rows, (uint32_t)m->n_cells, T, m->tiles + (m->base > 0));
    }
    free(rows);
    return s;
}

/* A fresh tile-layer holds zeros, or what the tile held that it replaces. */
static rkv_status open_layer(rkvi_mover *m, uint32_t tile, uint32_t from, uint32_t layer)
{
    if (!rkvi_tile_layer_is_held(rkvi_tile_layer_at(&m->h->cache.tiles, tile, layer)))
        return RKV_OK;
    const rkvi_geom *g = &m->h->cfg.layers[layer].geom;
    const uint64_t bytes = rkvi_geom_cells_bytes(g);
    uint8_t *to = rkvi_mover_host_cells(m, tile, layer), *room = to;
    const bool copies =
        from != UINT32_MAX && rkvi_tile_layer_is_held(rkvi_tile_layer_at(&m->h->cache.tiles, from, layer));
    const uint8_t *host = copies ? rkvi_mover_host_cells(m, from, layer) : NULL;
    rkv_status s = RKV_OK;
    if (!to || (copies && !host))
        s = rkvi_mover_room(m, bytes, &room);
    if (s == RKV_OK && copies && !host) {
        s = rkvi_mover_fetch(m, from, layer, room);
        if (s == RKV_OK)
            s = rkvi_mover_wait(m);
        host = room;
    }
    if (s != RKV_OK)
        return s;
    if (host)
        rkvi_mover_access(m, host, bytes, RKVI_READ);
    uint8_t *at = to ? to : room;
    assert(at);
    rkvi_mover_access(m, at, bytes, RKVI_WRITE);
    if (!host)
        memset(at, 0, bytes);
    else if (host != at)
        memcpy(at, host, bytes);
    return to ? RKV_OK : rkvi_mover_put(m, tile, layer, at);
}

/* All cells of the import's tile t come from outside. */
static bool is_whole(const rkv_cache *h, const struct rkvi_import *m, uint64_t t)
{
    const uint64_t T = h->cfg.tile_cells;
    return (t > 0 || m->base == 0) && (t + 1) * T <= m->base + m->n_cells;
}

static rkv_status open_tiles(rkv_cache *h, struct rkvi_import *m)
{
    rkv_status s = RKV_OK;
    for (uint32_t t = 0; t < m->n_tiles; t++)
        for (uint32_t l = 0; l < h->cfg.n_layers && s == RKV_OK && !is_whole(h, m, t); l++)
            s = open_layer(&m->mover, m->tiles[t], t ? UINT32_MAX : m->replaced, l);
    return s == RKV_OK ? rkvi_mover_sync(&m->mover) : s;
}

static void import_free(rkv_cache *h, struct rkvi_import *m)
{
    rkvi_cache_fill_drop(&h->cache, m->n_tiles, m->tiles);
    rkvi_seq_free(&m->result);
    free(m->tiles);
    free(m->done);
    free(m);
}

rkv_status rkvi_import_begin(rkv_cache *h, uint32_t sequence, uint64_t n, const int64_t *positions)
{
    rkv_status s = check_positions(&h->cache.seqs[sequence], n, positions);
    if (s == RKV_OK)
        s = rkvi_cache_fill_fits(&h->cache, n / h->cfg.tile_cells,
                                 0); /* bounds n before memory is taken for it */
    if (s != RKV_OK)
        return s;
    struct rkvi_import *m = calloc(1, sizeof *m);
    uint64_t *done = calloc(h->cfg.n_layers, sizeof *done);
    if (!m || !done) {
        free(m);
        free(done);
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory to import into %u KV layers", h->cfg.n_layers);
    }
    m->sequence = sequence;
    m->n_cells = n;
    m->done = done;
    s = rkvi_mover_open(&m->mover, h, rkvi_cells_room(h));
    if (s != RKV_OK)
        goto free_import;
    s = grow_result(h, m, positions);
    if (s == RKV_OK)
        s = open_tiles(h, m);
    if (s != RKV_OK) {
        s = rkvi_mover_close(&m->mover, s);
        goto free_import;
    }
    h->import = m;
    return RKV_OK;

free_import:
    import_free(h, m);
    return s;
}

/* ------------------------------------------------------------------------ cells */

/* The caller's rows of a part where the host can read them. */
static rkv_status take_side(rkvi_mover *m, const rkvi_cells_part *part, const rkvi_cells_call *c,
                            bool is_v, rkvi_outer *out)
{
    const rkvi_outer *o = is_v ? &c->v : &c->k;
    const rkvi_plane p = is_v ? rkvi_plane_v(part->geom, 0, 0) : rkvi_plane_k(part->geom, 0, 0);
    uint8_t *room;
    *out = *o;
    if (!c->is_device)
        return RKV_OK;
    const rkv_status s = rkvi_mover_room(m, rkvi_cells_side_bytes(part->geom, o, part->n, is_v), &room);
    if (s != RKV_OK)
        return s;
    *out = rkvi_outer_dense(o, &p, part->n, room);
    return rkvi_cells_cross(m, part, o, out, is_v);
}

/* The tile-layer's bytes in staging memory: what was stored so far. */
static rkv_status take_tile(rkvi_mover *m, const rkvi_cells_part *part, uint32_t layer, uint8_t **out)
{
    const uint64_t bytes = rkvi_geom_cells_bytes(part->geom);
    const rkv_status s = rkvi_mover_room(m, bytes, out);
    if (s != RKV_OK || !part->is_first)
        return s == RKV_OK ? rkvi_mover_fetch(m, part->tile, layer, *out) : s;
    rkvi_mover_access(m, *out, bytes, RKVI_WRITE);
    memset(*out, 0, bytes);
    return RKV_OK;
}

static rkv_status import_part(rkvi_mover *m, const rkvi_cells_part *part, const rkvi_cells_call *c)
{
    const uint64_t bytes = rkvi_geom_cells_bytes(part->geom);
    uint8_t *tile = rkvi_mover_host_cells(m, part->tile, c->layer);
    const bool is_host = tile != NULL;
    rkvi_outer k, v;
    if (!rkvi_tile_layer_is_held(rkvi_tile_layer_at(&m->h->cache.tiles, part->tile, c->layer)))
        return RKV_OK; /* no row sees them */
    rkv_status s = RKV_OK;
    if (!rkvi_mover_has_room(m, rkvi_cells_room(m->h)))
        s = rkvi_mover_sync(m);
    if (s == RKV_OK && !is_host)
        s = take_tile(m, part, c->layer, &tile);
    if (s == RKV_OK)
        s = take_side(m, part, c, false, &k);
    if (s == RKV_OK)
        s = take_side(m, part, c, true, &v);
    if (s == RKV_OK)
        s = rkvi_mover_wait(m);
    if (s != RKV_OK)
        return s;
    rkvi_mover_access(m, tile, bytes, RKVI_WRITE);
    rkvi_cells_convert(part, tile, &k, c->is_device ? 0 : part->row, false);
    rkvi_cells_convert(part, tile, &v, c->is_device ? 0 : part->row, true);
    return is_host ? RKV_OK : rkvi_mover_put(m, part->tile, c->layer, tile);
}

static rkv_status check_order(const struct rkvi_import *m, const rkvi_cells_call *c)
{
    const uint64_t done = m->done[c->layer];
    if (m->is_broken)
        return rkvi_fail(RKV_E_STATE, "an earlier call of this import failed: abort it");
    if (c->first != done)
        return rkvi_fail(RKV_E_STATE, "KV layer %u has %llu of the import's cells; first_cell is %llu",
                         c->layer, (unsigned long long)done, (unsigned long long)c->first);
    if (c->n > m->n_cells - done)
        return rkvi_fail(RKV_E_ARGUMENT, "n_cells is %llu; KV layer %u has %llu of %llu cells",
                         (unsigned long long)c->n, c->layer, (unsigned long long)done,
                         (unsigned long long)m->n_cells);
    return RKV_OK;
}

rkv_status rkvi_import_cells(rkv_cache *h, const rkvi_cells_call *c)
{
    struct rkvi_import *m = h->import;
    const uint32_t T = h->cfg.tile_cells;
    rkv_status s = check_order(m, c);
    if (s != RKV_OK)
        return s;
    if (c->is_device)
        s = rkvi_dev(stream_sync, h->dev, c->stream);
    for (uint64_t i = 0; i < c->n && s == RKV_OK;) {
        const uint64_t at = m->base + c->first + i;
        const uint64_t room = T - at % T, left = c->n - i;
        const rkvi_cells_part part = {.geom = &h->cfg.layers[c->layer].geom,
                                      .tile = m->tiles[at / T],
                                      .first = (uint32_t)(at % T),
                                      .is_first = at % T == 0 && is_whole(h, m, at / T),
                                      .n = (uint32_t)(left < room ? left : room),
                                      .row = i};
        s = import_part(&m->mover, &part, c);
        i += part.n;
    }
    if (s == RKV_OK)
        s = rkvi_mover_sync(&m->mover);
    if (s == RKV_OK)
        m->done[c->layer] += c->n;
    else
        m->is_broken = true;
    return rkvi_step_seen_status(h, s);
}

/* --------------------------------------------------------------------- end, abort */

bool rkvi_import_is_open(const rkv_cache *h)
{
    return h->import != NULL;
}

rkv_status rkvi_import_end(rkv_cache *h)
{
    struct rkvi_import *m = h->import;
    if (m->is_broken)
        return rkvi_fail(RKV_E_STATE, "an earlier call of this import failed: abort it");
    for (uint32_t l = 0; l < h->cfg.n_layers; l++)
        if (m->done[l] != m->n_cells)
            return rkvi_fail(RKV_E_STATE, "KV layer %u has %llu of %llu cells; the import stays open",
                             l, (unsigned long long)m->done[l], (unsigned long long)m->n_cells);
    const uint32_t n_before = h->cache.seqs[m->sequence].n_tiles - (m->base > 0);
    rkvi_cache_fill_keep(&h->cache, n_before, m->result.tiles);
    rkvi_cache_fill_replace(&h->cache, m->sequence, &m->result);
    m->n_tiles = 0; /* they are the sequence's */
    rkvi_import_abort(h);
    return RKV_OK;
}

void rkvi_import_abort(rkv_cache *h)
{
    struct rkvi_import *m = h->import;
    if (!m)
        return;
    h->import = NULL;
    rkvi_mover_close(&m->mover, RKV_OK);
    import_free(h, m);
}
