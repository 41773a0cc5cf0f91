/* cache.c: a step begins: what enters the tail, what grows, what is promoted. */
#include "cache_grow.h"

#include <stdlib.h>

/* Whose count has come enters the tail; its device place is free. */
static void enter(rkvi_cache *c, uint64_t step)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < c->n_leaving; i++) {
        const rkvi_leaving v = c->leaving[i];
        rkvi_tile_layer *l = rkvi_cache_tile_layer(c, v.tile, v.layer);
        if (c->tiles.tiles[v.tile].serial != v.serial || l->state != RKVI_LEAVING)
            continue;
        if (l->enter_step > step) {
            c->leaving[kept++] = v;
            continue;
        }
        rkvi_cache_enter_tail(c, v.layer, l);
    }
    c->n_leaving = kept;
}

/* Before anything grows: tiles that a parked sequence ends with may leave. */
static void unpark(rkvi_cache *c, const rkvi_batch *batch)
{
    for (uint32_t e = 0; e < batch->n_entries; e++) {
        const uint32_t q = batch->entries[e].sequence;
        c->check[q].was_parked = c->parked[q];
        c->parked[q] = false;
    }
}

void rkvi_cache_repark(rkvi_cache *c, const rkvi_batch *batch)
{
    for (uint32_t e = 0; e < batch->n_entries; e++)
        c->parked[batch->entries[e].sequence] = c->check[batch->entries[e].sequence].was_parked;
}

rkv_status rkvi_cache_begin(rkvi_cache *c, const rkvi_batch *batch, bool *out_waited)
{
    *out_waited = false;
    c->n_moves = c->n_new_tiles = c->n_copies = 0;
    c->next_promote = UINT32_MAX;
    rkv_status s = rkvi_cache_reserve(c, batch);
    if (s != RKV_OK)
        return s;
    enter(c, c->step + 1);
    for (uint32_t l = 0; l < c->cfg->n_layers; l++) {
        c->layers[l].store_out = c->layers[l].store_in = 0;
        c->layers[l].n_transit = 0;
    }
    unpark(c, batch);
    uint32_t e = 0;
    for (; e < batch->n_entries && s == RKV_OK; e++)
        s = rkvi_cache_grow(c, batch, e, out_waited);
    if (s == RKV_OK)
        s = rkvi_cache_decide_others(c, out_waited);
    if (s == RKV_OK) {
        c->step++;
        return RKV_OK;
    }
    rkvi_cache_repark(c, batch);
    rkvi_batch begun = *batch;
    begun.n_entries = e;
    c->step++;
    rkvi_cache_undo(c, &begun);
    c->step--;
    return s;
}

/* ------------------------------------------------------------------- promote */

static int by_serial(const void *a, const void *b)
{
    const rkvi_ring_item *x = *(rkvi_ring_item *const *)a, *y = *(rkvi_ring_item *const *)b;
    return x->serial < y->serial ? -1 : x->serial > y->serial;
}

static int by_item(const void *a, const void *b)
{
    const rkvi_move *x = a, *y = b;
    return x->item < y->item ? -1 : x->item > y->item;
}

static rkv_status promote_item(rkvi_cache *c, const rkvi_ring_item *it, uint32_t index)
{
    rkvi_move m = {.kind = RKVI_MOVE_PROMOTE, .tile = it->tile, .layer = it->layer, .item = index};
    rkvi_pool *pool = &c->layers[it->layer].device;
    m.place = rkvi_pool_take(pool);
    if (m.place == RKVI_NO_PLACE)
        return RKV_OK; /* active tiles hold the room: another time */
    rkv_status s = rkvi_cache_add_move(c, &m);
    if (s != RKV_OK) {
        rkvi_pool_give(pool, m.place);
        return s;
    }
    rkvi_cache_tile_layer(c, it->tile, it->layer)->promoting = true;
    c->layers[it->layer].n_window++;
    return RKV_OK;
}

rkv_status rkvi_cache_promote(rkvi_cache *c, const rkvi_ring_item *items, uint32_t n)
{
    rkv_status s = RKV_OK;
    uint32_t n_found = 0;
    const rkvi_ring_item **found = NULL;
    c->next_promote = c->n_moves;
    for (uint32_t i = 0; i < n && s == RKV_OK; i++) {
        const rkvi_layer_config *lc = &c->cfg->layers[items[i].layer];
        if (items[i].site != lc->last_site || !rkvi_cache_window_has_room(c, items[i].layer))
            continue;
        if (!found)
            found = malloc(n * sizeof *found);
        if (!found)
            return RKV_OK; /* a step without promotions is as good */
        found[n_found++] = &items[i];
    }
    if (found)
        qsort(found, n_found, sizeof *found, by_serial);
    for (uint32_t i = 0; i < n_found && s == RKV_OK; i++)
        if (rkvi_cache_window_has_room(c, found[i]->layer) &&
            !rkvi_cache_tile_layer(c, found[i]->tile, found[i]->layer)->promoting)
            s = promote_item(c, found[i], (uint32_t)(found[i] - items));
    if (c->n_moves > c->next_promote)
        qsort(c->moves + c->next_promote, c->n_moves - c->next_promote, sizeof *c->moves, by_item);
    free(found);
    return s;
}
