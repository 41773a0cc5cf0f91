#include "tile.h"

#include <assert.h>
#include <stdlib.h>

rkv_status rkvi_tiles_init(rkvi_tiles *t, uint32_t capacity, uint32_t n_layers)
{
    *t = (rkvi_tiles){.n_layers = n_layers, .capacity = capacity, .n_free = capacity};
    t->tiles = calloc(capacity, sizeof *t->tiles);
    t->layers = calloc((size_t)capacity * n_layers, sizeof *t->layers);
    if (!t->tiles || !t->layers) {
        rkvi_tiles_free(t);
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for a table of %u tiles in %u KV layers", capacity,
                         n_layers);
    }
    for (uint32_t i = 0; i < capacity; i++)
        t->tiles[i].next_free = i + 1;
    return RKV_OK;
}

void rkvi_tiles_free(rkvi_tiles *t)
{
    free(t->tiles);
    free(t->layers);
    *t = (rkvi_tiles){0};
}

uint32_t rkvi_tiles_take(rkvi_tiles *t)
{
    if (t->n_free == 0)
        return UINT32_MAX;
    uint32_t tile = t->first_free;
    t->first_free = t->tiles[tile].next_free;
    t->n_free--;
    t->tiles[tile] = (rkvi_tile){.serial = ++t->last_serial, .refs = 1};
    for (uint32_t l = 0; l < t->n_layers; l++)
        *rkvi_tile_layer_at(t, tile, l) =
            (rkvi_tile_layer){.device_place = RKVI_NO_PLACE, .host_place = RKVI_NO_PLACE};
    return tile;
}

void rkvi_tiles_ref(rkvi_tiles *t, uint32_t tile)
{
    assert(t->tiles[tile].serial != 0 && t->tiles[tile].refs < UINT32_MAX);
    t->n_shared += ++t->tiles[tile].refs == 2;
}

uint32_t rkvi_tiles_unref(rkvi_tiles *t, uint32_t tile)
{
    assert(t->tiles[tile].refs > 0);
    t->n_shared -= --t->tiles[tile].refs == 1;
    return t->tiles[tile].refs;
}

void rkvi_tiles_stored(rkvi_tiles *t, uint32_t tile, uint32_t end)
{
    rkvi_tile *r = &t->tiles[tile];
    if (end > r->stored) {
        t->n_stored += end - r->stored;
        r->stored = (uint16_t)end;
    }
    r->end = end > r->end ? (uint16_t)end : r->end;
}

void rkvi_tiles_give(rkvi_tiles *t, uint32_t tile)
{
    assert(t->tiles[tile].refs == 0 && t->tiles[tile].serial != 0);
    t->n_stored -= t->tiles[tile].stored;
    t->tiles[tile] = (rkvi_tile){.next_free = t->first_free};
    t->first_free = tile;
    t->n_free++;
}

bool rkvi_tile_next(rkvi_tile_state from, rkvi_tile_event event, rkvi_tile_state *out_to)
{
    enum { N = -1, A = RKVI_ABSENT, D = RKVI_ON_DEVICE, W = RKVI_IN_WINDOW, L = RKVI_LEAVING, T = RKVI_IN_TAIL,
           F = RKVI_FREED };
    static const signed char table[RKVI_TILE_EVENTS][6] = {
        /*                         ABSENT DEVICE WINDOW LEAVING TAIL FREED */
        [RKVI_TILE_OPEN] =        {D, N, N, N, N, N},
        [RKVI_TILE_KEEP] =        {N, W, W, N, N, N},
        [RKVI_TILE_LEAVE] =       {N, L, L, N, N, N},
        [RKVI_TILE_ENTER] =       {N, N, N, T, N, N},
        [RKVI_TILE_REOPEN] =      {N, D, W, D, N, N},
        [RKVI_TILE_BRING_BACK] =  {N, N, N, N, D, N},
        [RKVI_TILE_PROMOTE] =     {N, N, N, N, W, N},
        [RKVI_TILE_FREE] =        {N, F, F, F, F, N},
        [RKVI_TILE_RELEASE] =     {A, A, A, A, A, A},
    };
    const int to = table[event][from];
    if (to < 0)
        return false;
    *out_to = (rkvi_tile_state)to;
    return true;
}

void rkvi_tile_apply(rkvi_tile_layer *l, rkvi_tile_event event)
{
    rkvi_tile_state to = RKVI_ABSENT;
    const bool legal = rkvi_tile_next((rkvi_tile_state)l->state, event, &to);
    assert(legal);
    (void)legal;
    l->state = (uint8_t)to;
}
