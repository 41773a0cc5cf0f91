/* cache_fill.c: tiles that are filled from outside. */
#include "cache_fill.h"

#include "cache_places.h"

static bool to_window(rkvi_cache *c, uint32_t layer, rkvi_tile_layer *l)
{
    if (c->layers[layer].n_window >= c->cfg->layers[layer].window_tiles)
        return false;
    const uint32_t place = rkvi_pool_take(&c->layers[layer].device);
    if (place == RKVI_NO_PLACE)
        return false; /* active tiles hold the room: to the tail */
    rkvi_cache_set_device(c, layer, l, place);
    rkvi_tile_apply(l, RKVI_TILE_OPEN);
    rkvi_tile_apply(l, RKVI_TILE_KEEP);
    c->layers[layer].n_window++;
    return true;
}

/* A tile-layer that goes through all of a tail tile-layer's life at once. */
static rkv_status to_tail(rkvi_cache *c, uint32_t layer, rkvi_tile_layer *l)
{
    bool waited = false;
    rkv_status s = rkvi_cache_take_host(c, layer, l, &waited);
    if (s != RKV_OK)
        return s;
    rkvi_tile_apply(l, RKVI_TILE_OPEN);
    rkvi_tile_apply(l, RKVI_TILE_LEAVE);
    rkvi_cache_enter_tail(c, layer, l);
    l->host_valid = true;
    return RKV_OK;
}

static rkv_status take_places(rkvi_cache *c, uint32_t tile, const uint8_t *present)
{
    for (uint32_t layer = 0; layer < c->cfg->n_layers; layer++) {
        rkvi_tile_layer *l = rkvi_cache_tile_layer(c, tile, layer);
        if (present && !present[layer]) {
            rkvi_tile_apply(l, RKVI_TILE_OPEN);
            rkvi_tile_apply(l, RKVI_TILE_FREE);
            c->layers[layer].n_freed++;
            continue;
        }
        if (to_window(c, layer, l))
            continue;
        if (!c->cfg->layers[layer].has_tail)
            return rkvi_fail(
                RKV_E_DEVICE_LIMIT,
                "KV layer %u has no device place left of %u and keeps no tail; clear sequences first",
                layer, c->layers[layer].device.max_places);
        const rkv_status s = to_tail(c, layer, l);
        if (s != RKV_OK)
            return s;
    }
    return RKV_OK;
}

rkv_status rkvi_cache_fill_take(rkvi_cache *c, uint32_t n, const uint8_t *present, uint32_t *out_tiles)
{
    rkv_status s = rkvi_cache_fill_fits(c, n, 0);
    for (uint32_t i = 0; i < n && s == RKV_OK; i++) {
        out_tiles[i] = rkvi_tiles_take(&c->tiles);
        s = take_places(c, out_tiles[i], present ? present + (size_t)i * c->cfg->n_layers : NULL);
        if (s != RKV_OK)
            rkvi_cache_fill_drop(c, i + 1, out_tiles);
    }
    return s;
}

void rkvi_cache_fill_drop(rkvi_cache *c, uint32_t n, const uint32_t *tiles)
{
    for (uint32_t i = 0; i < n; i++)
        rkvi_cache_release_tile(c, tiles[i]);
}

void rkvi_cache_fill_keep(rkvi_cache *c, uint32_t n, const uint32_t *tiles)
{
    for (uint32_t i = 0; i < n; i++)
        rkvi_tiles_ref(&c->tiles, tiles[i]);
}

rkv_status rkvi_cache_fill_fits(const rkvi_cache *c, uint64_t tiles, uint64_t segments)
{
    const uint64_t most = c->cfg->capacity_tiles + c->cfg->extra_segments;
    if (tiles > c->tiles.n_free)
        return rkvi_fail(
            RKV_E_CAPACITY,
            "%llu new tiles of %u cells are needed and %u of %llu are free; remove cells or clear sequences first, "
            "or create the cache with more capacity_cells",
            (unsigned long long)tiles, c->cfg->tile_cells, c->tiles.n_free,
            (unsigned long long)c->cfg->capacity_tiles);
    if (c->tiles.n_shared == 0 && segments && c->n_segments + segments > most)
        return rkvi_fail(RKV_E_CAPACITY,
                         "there would be %llu separate runs of cells, at most %llu are kept; clear or "
                         "compact sequences first, or create the cache with more extra_segments",
                         (unsigned long long)(c->n_segments + segments), (unsigned long long)most);
    return RKV_OK;
}

/* What the sequence covers of its tiles was stored there. */
static void cover(rkvi_cache *c, const rkvi_seq *s)
{
    for (uint32_t i = 0; i < s->n_segments; i++)
        rkvi_tiles_stored(&c->tiles, s->tiles[s->segments[i].tile_index], rkvi_segment_fill(&s->segments[i]));
}

void rkvi_cache_fill_replace(rkvi_cache *c, uint32_t sequence, rkvi_seq *with)
{
    rkvi_seq *s = &c->seqs[sequence];
    c->layout++;
    c->n_segments += with->n_segments;
    c->n_segments -= s->n_segments;
    cover(c, with);
    for (uint32_t t = 0; t < s->n_tiles; t++)
        rkvi_cache_release_tile(c, s->tiles[t]);
    rkvi_seq_free(s);
    c->look_again = true;
    c->parked[sequence] = false;
    *s = *with;
    *with = (rkvi_seq){0};
}
