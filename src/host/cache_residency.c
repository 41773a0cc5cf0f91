/* cache_residency.c: see cache_residency.h. */
#include "cache_residency.h"

#include "cache_park.h"
#include "cache_places.h"

#include <assert.h>
#include <stdlib.h>

/* -------------------------------------------------------------------- demote */

typedef struct ranked {
    uint64_t serial;
    uint32_t tile;
} ranked;

static int highest_first(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    return x->serial > y->serial ? -1 : x->serial < y->serial;
}

static uint64_t window_of(const rkvi_cache *c, uint32_t layer, ranked *out)
{
    uint64_t n = 0;
    for (uint32_t t = 0; t < c->tiles.capacity; t++)
        if (c->tiles.tiles[t].serial && rkvi_cache_tile_layer(c, t, layer)->state == RKVI_IN_WINDOW)
            out[n++] = (ranked){c->tiles.tiles[t].serial, t};
    qsort(out, n, sizeof *out, highest_first);
    return n;
}

rkv_status rkvi_cache_demote(rkvi_cache *c, uint32_t layer, uint64_t window_tiles, bool *out_waited)
{
    const uint64_t n_window = c->layers[layer].n_window;
    rkv_status s = RKV_OK;
    c->n_moves = 0;
    if (n_window <= window_tiles)
        return RKV_OK;
    ranked *list = malloc(n_window * sizeof *list);
    if (!list)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory to order %llu tiles", (unsigned long long)n_window);
    const uint64_t n = window_of(c, layer, list);
    assert(n == n_window);
    for (uint64_t i = 0; i < n - window_tiles && s == RKV_OK; i++)
        s = rkvi_cache_leave(c, list[i].tile, layer, out_waited);
    free(list);
    if (s == RKV_OK)
        s = rkvi_cache_leaving_room(c, c->n_moves);
    if (s != RKV_OK)
        rkvi_cache_unmove(c);
    return s;
}

/* ------------------------------------------------------------------ relocate */

static uint32_t extent_of(const rkvi_pool *p, uint32_t place)
{
    return (uint32_t)(place / p->extent_places);
}

/* Marks extents in drops[], fewest used places first; returns how many of their
 * places are used. */
static uint32_t choose(const rkvi_pool *p, const uint32_t *used, uint64_t places, bool *drops)
{
    const uint64_t all_used = p->n_places - p->n_free, keep = places > all_used ? places : all_used;
    uint64_t left = p->n_places;
    uint32_t moved = 0;
    for (;;) {
        uint32_t best = UINT32_MAX;
        for (uint32_t e = 0; e < p->n_extents; e++)
            if (p->counts[e] && !drops[e] && left - p->counts[e] >= keep &&
                (best == UINT32_MAX || used[e] < used[best]))
                best = e;
        if (best == UINT32_MAX)
            return moved;
        drops[best] = true;
        left -= p->counts[best];
        moved += used[best];
    }
}

/* The free places of extents that go are free no more. */
static void withdraw(rkvi_pool *p, const bool *drops)
{
    for (uint32_t e = 0; e < p->n_extents; e++)
        for (uint32_t i = 0; drops[e] && i < p->counts[e]; i++)
            rkvi_pool_take_at(p, (uint32_t)(e * p->extent_places) + i);
}

/* A place for each tile-layer in them. */
static void take_places(rkvi_cache *c, uint32_t layer, rkvi_relocations *r)
{
    rkvi_pool *p = &c->layers[layer].device;
    for (uint32_t t = 0; t < c->tiles.capacity; t++) {
        const rkvi_tile_layer *l = rkvi_cache_tile_layer(c, t, layer);
        if (c->tiles.tiles[t].serial && l->device_place != RKVI_NO_PLACE && r->drops[extent_of(p, l->device_place)])
            r->list[r->n++] = (rkvi_relocation){t, l->device_place, rkvi_pool_take(p)};
    }
}

rkv_status rkvi_cache_relocate(rkvi_cache *c, uint32_t layer, uint64_t places, rkvi_relocations *out)
{
    rkvi_pool *p = &c->layers[layer].device;
    uint32_t *used = calloc(p->n_extents, sizeof *used);
    *out = (rkvi_relocations){.drops = calloc(p->n_extents, sizeof *out->drops)};
    for (uint32_t t = 0; used && t < c->tiles.capacity; t++) {
        const uint32_t place = rkvi_cache_tile_layer(c, t, layer)->device_place;
        if (c->tiles.tiles[t].serial && place != RKVI_NO_PLACE)
            used[extent_of(p, place)]++;
    }
    if (used && out->drops)
        out->list = malloc((choose(p, used, places, out->drops) + 1u) * sizeof *out->list);
    free(used);
    if (!out->list) {
        rkvi_relocations_free(out);
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory to rearrange %u places", p->n_places);
    }
    assert(out->drops);
    withdraw(p, out->drops);
    take_places(c, layer, out);
    return RKV_OK;
}

void rkvi_cache_relocated(rkvi_cache *c, uint32_t layer, const rkvi_relocations *r)
{
    for (uint32_t i = 0; i < r->n; i++)
        rkvi_cache_set_device(c, layer, rkvi_cache_tile_layer(c, r->list[i].tile, layer), r->list[i].to);
}

/* All places of the extents but those that tile-layers are still at. */
void rkvi_cache_unrelocate(rkvi_cache *c, uint32_t layer, const rkvi_relocations *r)
{
    rkvi_pool *p = &c->layers[layer].device;
    for (uint32_t e = 0; e < p->n_extents; e++)
        for (uint32_t i = 0; r->drops[e] && i < p->counts[e]; i++)
            rkvi_pool_give(p, (uint32_t)(e * p->extent_places) + i);
    for (uint32_t i = 0; i < r->n; i++) {
        rkvi_pool_take_at(p, r->list[i].from);
        rkvi_pool_give(p, r->list[i].to);
    }
}

void rkvi_relocations_free(rkvi_relocations *r)
{
    free(r->list);
    free(r->drops);
    *r = (rkvi_relocations){0};
}
