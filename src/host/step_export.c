/* step_export.c: cells of a sequence to the caller's memory. */
#include "step_cells_types.h"

/* The segment's cells within the range: [*first, *first + n) of its tile. */
static uint32_t cut(const rkvi_segment *g, const rkv_pos_range *range, uint32_t *first, int64_t *pos)
{
    const int64_t end = rkvi_segment_end(g);
    const int64_t a = range->from > g->pos ? range->from : g->pos,
                  b = range->to < end ? range->to : end;
    *first = g->first + (uint32_t)(a > g->pos ? a - g->pos : 0);
    *pos = a;
    return b > a ? (uint32_t)(b - a) : 0;
}

uint64_t rkvi_export_count(const rkv_cache *h, uint32_t sequence, const rkv_pos_range *range)
{
    const rkvi_seq *s = &h->cache.seqs[sequence];
    uint64_t n = 0;
    uint32_t first;
    int64_t pos;
    for (uint32_t i = 0; i < s->n_segments; i++)
        n += cut(&s->segments[i], range, &first, &pos);
    return n;
}

void rkvi_export_positions(const rkv_cache *h, uint32_t sequence, const rkv_pos_range *range,
                           int64_t *out)
{
    const rkvi_seq *s = &h->cache.seqs[sequence];
    uint32_t first;
    int64_t pos;
    for (uint32_t i = 0; i < s->n_segments; i++)
        for (uint32_t n = cut(&s->segments[i], range, &first, &pos); n > 0; n--)
            *out++ = pos++;
}

/* K and V of one part, by way of staging memory where the caller's is the device's. */
static rkv_status give(rkvi_mover *m, const rkvi_cells_part *part, uint8_t *tile,
                       const rkvi_cells_call *c)
{
    rkv_status s = RKV_OK;
    for (int is_v = 0; is_v < 2 && s == RKV_OK; is_v++) {
        const rkvi_outer *o = is_v ? &c->v : &c->k;
        const rkvi_plane p = is_v ? rkvi_plane_v(part->geom, 0, 0) : rkvi_plane_k(part->geom, 0, 0);
        const uint64_t bytes = rkvi_cells_side_bytes(part->geom, o, part->n, is_v);
        uint8_t *room;
        if (!c->is_device) {
            rkvi_cells_convert(part, tile, o, part->row, is_v);
            continue;
        }
        s = rkvi_mover_room(m, bytes, &room);
        if (s != RKV_OK)
            return s;
        const rkvi_outer dense = rkvi_outer_dense(o, &p, part->n, room);
        rkvi_mover_access(m, room, bytes, RKVI_WRITE);
        rkvi_cells_convert(part, tile, &dense, 0, is_v);
        s = rkvi_cells_cross(m, part, o, &dense, is_v);
    }
    return s;
}

static rkv_status export_part(rkvi_mover *m, const rkvi_cells_part *part, const rkvi_cells_call *c)
{
    const uint64_t bytes = rkvi_geom_cells_bytes(part->geom);
    uint8_t *tile = rkvi_mover_host_cells(m, part->tile, c->layer);
    rkv_status s = RKV_OK;
    if (!rkvi_mover_has_room(m, rkvi_cells_room(m->h)))
        s = rkvi_mover_sync(m);
    if (!tile && s == RKV_OK) {
        s = rkvi_mover_room(m, bytes, &tile);
        if (s == RKV_OK)
            s = rkvi_mover_fetch(m, part->tile, c->layer, tile);
        if (s == RKV_OK)
            s = rkvi_mover_wait(m);
    }
    if (s != RKV_OK)
        return s;
    rkvi_mover_access(m, tile, bytes, RKVI_READ);
    return give(m, part, tile, c);
}

static rkv_status check_part(const rkvi_segment *g, const rkvi_tile_layer *l, uint32_t layer)
{
    if (g->turn)
        return rkvi_fail(
            RKV_E_UNSUPPORTED,
            "the cells at positions [%lld, %lld) were shifted by %lld: their K is that of other "
            "positions; export before shifting, or save the sequence",
            (long long)g->pos, (long long)rkvi_segment_end(g), (long long)g->turn);
    if (!rkvi_tile_layer_is_held(l))
        return rkvi_fail(
            RKV_E_SEQUENCE,
            "KV layer %u holds no cells any more at positions [%lld, %lld): its sites' masks do not "
            "see them",
            layer, (long long)g->pos, (long long)rkvi_segment_end(g));
    return RKV_OK;
}

static rkv_status export_range(rkvi_mover *m, const rkvi_seq *q, const rkv_pos_range *range,
                               const rkvi_cells_call *c, bool check_alone)
{
    uint64_t at = 0; /* cells of the range so far */
    rkv_status s = RKV_OK;
    for (uint32_t i = 0; i < q->n_segments && s == RKV_OK; i++) {
        rkvi_cells_part part = {.geom = &m->h->cfg.layers[c->layer].geom, .is_export = true};
        int64_t pos;
        uint64_t n = cut(&q->segments[i], range, &part.first, &pos);
        const uint64_t skip = c->first > at ? c->first - at : 0, end = c->first + c->n;
        at += n;
        if (skip >= n || at - n >= end)
            continue;
        part.first += (uint32_t)skip;
        part.row = at - n + skip - c->first;
        part.n = (uint32_t)((at < end ? n : end - (at - n)) - skip);
        part.tile = q->tiles[q->segments[i].tile_index];
        s = check_alone
                ? check_part(&q->segments[i],
                             rkvi_tile_layer_at(&m->h->cache.tiles, part.tile, c->layer), c->layer)
                : export_part(m, &part, c);
    }
    return s;
}

rkv_status rkvi_export_cells(rkv_cache *h, uint32_t sequence, const rkv_pos_range *range,
                             const rkvi_cells_call *c)
{
    const rkvi_seq *q = &h->cache.seqs[sequence];
    rkvi_mover m = {.h = h};
    rkv_status s = export_range(&m, q, range, c, true);
    if (s != RKV_OK)
        return s;
    s = rkvi_mover_open(&m, h, rkvi_cells_room(h));
    if (s != RKV_OK)
        return s;
    if (c->is_device)
        s = rkvi_dev(stream_sync, h->dev, c->stream);
    if (s == RKV_OK)
        s = export_range(&m, q, range, c, false);
    return rkvi_mover_close(&m, s);
}
