/* cache_places.c: a cache's life cycle, its places, and its list of moves. */
#include "cache_places.h"

#include <stdlib.h>

/* ---------------------------------------------------------------- life cycle */

static rkv_status layer_init(rkvi_layer_state *l, const rkvi_layer_config *lc, void *memory)
{
    const uint32_t places = (uint32_t)lc->device_places, host = (uint32_t)lc->host_places;
    const uint32_t most = (uint32_t)lc->most_tiles; /* a live cache's window may grow and shrink */
    rkv_status s = rkvi_pool_init(&l->device, lc->geom.bytes, places, lc->device_extent_places, most);
    for (unsigned char *at = memory; s == RKV_OK && memory && rkvi_pool_next_extent_bytes(&l->device);) {
        const uint64_t bytes = rkvi_pool_next_extent_bytes(&l->device);
        rkvi_pool_add(&l->device, at);
        at += bytes;
    }
    if (s == RKV_OK && host)
        s = rkvi_pool_init(&l->host, lc->geom.bytes, host, lc->extent_places, most);
    if (s != RKV_OK)
        return s;
    l->device_marks = calloc(rkvi_pool_indices(&l->device), sizeof *l->device_marks);
    l->host_in = calloc(rkvi_pool_indices(&l->host) + 1, sizeof *l->host_in);
    if (l->device_marks && l->host_in)
        return RKV_OK;
    return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for the marks of %u places", places + host);
}

static void transit_init(rkvi_cache *c, unsigned char *room)
{
    const rkvi_config *cfg = c->cfg;
    uint32_t n = 2;
    c->transit[0].addr = (uint64_t)(uintptr_t)room;
    c->transit[1].addr = c->transit[0].addr + cfg->transit_ring_bytes / 2;
    uint64_t at = c->transit[0].addr + cfg->transit_ring_bytes;
    uint32_t half = 0;
    for (uint32_t l = 0; l < cfg->n_layers; l++) {
        const rkvi_layer_config *lc = &cfg->layers[l];
        if (lc->has_tail && lc->n_sites > 1) {
            c->transit[n].addr = at;
            c->transit_of[l] = n++;
            at += cfg->transit_tiles * lc->geom.bytes;
        } else if (lc->has_tail) {
            c->transit_of[l] = half;
            half ^= 1;
        }
    }
}

rkv_status rkvi_cache_init(rkvi_cache *c, const rkvi_config *cfg, const rkvi_cache_memory *mem, rkvi_arena *arena)
{
    *c = (rkvi_cache){.cfg = cfg, .arena = arena};
    rkv_status s = rkvi_tiles_init(&c->tiles, (uint32_t)cfg->capacity_tiles, cfg->n_layers);
    if (s != RKV_OK)
        return s;
    c->seqs = calloc(cfg->n_sequences, sizeof *c->seqs);
    c->layers = calloc(cfg->n_layers, sizeof *c->layers);
    c->transit = calloc(cfg->n_layers + 2u, sizeof *c->transit);
    c->transit_of = calloc(cfg->n_layers, sizeof *c->transit_of);
    c->new_tiles = calloc(cfg->capacity_tiles, sizeof *c->new_tiles);
    c->passed = calloc((size_t)cfg->n_sequences * cfg->n_layers, sizeof *c->passed);
    c->parked = calloc(cfg->n_sequences, sizeof *c->parked);
    c->check = calloc(cfg->n_sequences, sizeof *c->check);
    c->joined = calloc(cfg->n_sequences, sizeof *c->joined);
    c->copies = calloc(cfg->n_sequences, sizeof *c->copies);
    c->cover = calloc(cfg->capacity_tiles, rkvi_div_up(cfg->tile_cells, 64) * sizeof *c->cover);
    if (!c->seqs || !c->layers || !c->transit || !c->transit_of || !c->new_tiles || !c->passed || !c->parked ||
        !c->check || !c->joined || !c->copies || !c->cover) {
        rkvi_cache_free(c);
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for the state of %u sequences", cfg->n_sequences);
    }
    s = rkvi_share_init(&c->share, cfg);
    if (s != RKV_OK) {
        rkvi_cache_free(c);
        return s;
    }
    transit_init(c, mem->transit);
    for (uint32_t l = 0; l < cfg->n_layers; l++) {
        s = layer_init(&c->layers[l], &cfg->layers[l], mem->layers ? mem->layers[l] : NULL);
        if (s != RKV_OK) {
            rkvi_cache_free(c);
            return s;
        }
    }
    return RKV_OK;
}

void rkvi_cache_free(rkvi_cache *c)
{
    for (uint32_t i = 0; c->seqs && i < c->cfg->n_sequences; i++)
        rkvi_seq_free(&c->seqs[i]);
    for (uint32_t l = 0; c->layers && l < c->cfg->n_layers; l++) {
        rkvi_pool_free(&c->layers[l].device);
        rkvi_pool_free(&c->layers[l].host);
        free(c->layers[l].device_marks);
        free(c->layers[l].host_in);
    }
    rkvi_tiles_free(&c->tiles);
    rkvi_share_free(&c->share);
    free(c->seqs);
    free(c->layers);
    free(c->transit);
    free(c->transit_of);
    free(c->new_tiles);
    free(c->passed);
    free(c->parked);
    free(c->check);
    free(c->joined);
    free(c->copies);
    free(c->cover);
    free(c->moves);
    free(c->leaving);
    *c = (rkvi_cache){0};
}

/* -------------------------------------------------------------------- places */

void rkvi_cache_give_device(rkvi_cache *c, uint32_t layer, rkvi_tile_layer *l)
{
    if (l->device_place != RKVI_NO_PLACE) {
        c->layers[layer].device_marks[l->device_place].used = c->compute_mark;
        rkvi_pool_give(&c->layers[layer].device, l->device_place);
    }
    l->device_place = RKVI_NO_PLACE;
    l->device_addr = 0;
    c->layout++;
}

void rkvi_cache_enter_tail(rkvi_cache *c, uint32_t layer, rkvi_tile_layer *l)
{
    rkvi_tile_apply(l, RKVI_TILE_ENTER);
    rkvi_cache_give_device(c, layer, l);
    c->layers[layer].n_tail++;
}

void rkvi_cache_give_host(rkvi_cache *c, uint32_t layer, rkvi_tile_layer *l)
{
    if (l->host_place != RKVI_NO_PLACE)
        rkvi_pool_give(&c->layers[layer].host, l->host_place);
    l->host_place = RKVI_NO_PLACE;
    l->host_addr = 0;
    l->host_valid = false;
    l->out_mark = 0;
}

/* What waits for others to enter the tail with gives its place when it is
 * needed; marks order who takes it. */
static void enter_early(rkvi_cache *c, uint32_t layer)
{
    for (uint32_t i = 0; i < c->n_leaving; i++) {
        const rkvi_leaving v = c->leaving[i];
        rkvi_tile_layer *l = rkvi_cache_tile_layer(c, v.tile, v.layer);
        if (v.layer != layer || c->tiles.tiles[v.tile].serial != v.serial || l->state != RKVI_LEAVING)
            continue;
        rkvi_cache_enter_tail(c, layer, l);
    }
}

rkv_status rkvi_cache_take_device(rkvi_cache *c, uint32_t layer, uint32_t *out_place)
{
    *out_place = rkvi_pool_take(&c->layers[layer].device);
    if (*out_place == RKVI_NO_PLACE && (c->cfg->flags & RKV_FLAG_GRAPHS)) {
        enter_early(c, layer);
        *out_place = rkvi_pool_take(&c->layers[layer].device);
    }
    if (*out_place != RKVI_NO_PLACE)
        return RKV_OK;
    return rkvi_fail(RKV_E_DEVICE_LIMIT,
                     "KV layer %u has no device place left of %u; park sequences that rest (rkv_sequence_park), or "
                     "create the cache with more active_sequences (%u) or resident_cells",
                     layer, c->layers[layer].device.max_places, c->cfg->active_sequences);
}

void rkvi_cache_set_device(rkvi_cache *c, uint32_t layer, rkvi_tile_layer *l, uint32_t place)
{
    c->layout++;
    l->device_place = place;
    l->device_addr = (uint64_t)(uintptr_t)rkvi_pool_at(&c->layers[layer].device, place);
}

/* A promoted tile-layer's host copy gives way: it is in the window as well. */
static bool reclaim_host(rkvi_cache *c, uint32_t layer)
{
    for (uint32_t t = 0; t < c->tiles.capacity; t++) {
        rkvi_tile_layer *l = rkvi_cache_tile_layer(c, t, layer);
        if (c->tiles.tiles[t].serial && l->state == RKVI_IN_WINDOW && !l->is_due &&
            l->host_place != RKVI_NO_PLACE) {
            rkvi_cache_give_host(c, layer, l);
            return true;
        }
    }
    return false;
}

rkv_status rkvi_cache_take_host(rkvi_cache *c, uint32_t layer, rkvi_tile_layer *l, bool *waited)
{
    rkvi_pool *p = &c->layers[layer].host;
    uint32_t place = rkvi_pool_take(p);
    while (place == RKVI_NO_PLACE) {
        const uint64_t bytes = rkvi_pool_next_extent_bytes(p);
        void *extent;
        bool w = false;
        if (bytes) {
            rkv_status s = rkvi_arena_take(c->arena, bytes, &extent, &w);
            *waited = *waited || w;
            if (s != RKV_OK)
                return s;
            rkvi_pool_add(p, extent);
        } else if (!reclaim_host(c, layer)) {
            return rkvi_fail(RKV_E_HOST_LIMIT, "KV layer %u has no host place left of %u for its tail", layer,
                             p->max_places);
        }
        place = rkvi_pool_take(p);
    }
    l->host_place = place;
    l->host_addr = (uint64_t)(uintptr_t)rkvi_pool_at(p, place);
    return RKV_OK;
}

void rkvi_cache_release_tile(rkvi_cache *c, uint32_t tile)
{
    if (rkvi_tiles_unref(&c->tiles, tile) > 0) {
        c->decide_all = c->look_again = true;
        return;
    }
    for (uint32_t layer = 0; layer < c->cfg->n_layers; layer++) {
        rkvi_tile_layer *l = rkvi_cache_tile_layer(c, tile, layer);
        c->layers[layer].n_window -= l->state == RKVI_IN_WINDOW;
        c->layers[layer].n_tail -= l->state == RKVI_IN_TAIL;
        c->layers[layer].n_freed -= l->state == RKVI_FREED;
        rkvi_cache_give_device(c, layer, l);
        rkvi_cache_give_host(c, layer, l);
        rkvi_tile_apply(l, RKVI_TILE_RELEASE);
    }
    rkvi_tiles_give(&c->tiles, tile);
}

/* --------------------------------------------------------------------- moves */

rkv_status rkvi_cache_add_move(rkvi_cache *c, const rkvi_move *m)
{
    if (c->n_moves == c->moves_room) {
        const uint32_t room = 2 * c->moves_room + 64;
        rkvi_move *p = realloc(c->moves, room * sizeof *p);
        if (!p)
            return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for %u moves of a step", room);
        c->moves = p;
        c->moves_room = room;
    }
    c->moves[c->n_moves++] = *m;
    return RKV_OK;
}

rkv_status rkvi_cache_move_in(rkvi_cache *c, rkvi_move *m, rkvi_tile_event event)
{
    rkvi_tile_layer *l = rkvi_cache_tile_layer(c, m->tile, m->layer);
    rkv_status s = rkvi_cache_take_device(c, m->layer, &m->place);
    if (s != RKV_OK)
        return s;
    s = rkvi_cache_add_move(c, m);
    if (s != RKV_OK) {
        rkvi_pool_give(&c->layers[m->layer].device, m->place);
        return s;
    }
    rkvi_tile_apply(l, event);
    c->layers[m->layer].n_tail -= event == RKVI_TILE_BRING_BACK;
    rkvi_cache_set_device(c, m->layer, l, m->place);
    return RKV_OK;
}

rkv_status rkvi_cache_leaving_room(rkvi_cache *c, uint32_t more)
{
    if (c->n_leaving + more <= c->leaving_room)
        return RKV_OK;
    const uint32_t room = 2 * (c->n_leaving + more) + 64;
    rkvi_leaving *p = realloc(c->leaving, room * sizeof *p);
    if (!p)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for %u leaving tile-layers", room);
    c->leaving = p;
    c->leaving_room = room;
    return RKV_OK;
}
