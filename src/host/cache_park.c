/* cache_park.c: see cache_park.h. */
#include "cache_park.h"

#include "cache_places.h"

#include <stdlib.h>

void rkvi_cache_unmove(rkvi_cache *c)
{
    rkvi_batch none = {0};
    rkvi_cache_undo(c, &none);
}

/* ---------------------------------------------------------------------- park */

/* How many references to each tile are those of parked sequences, the one that
 * is parked now among them; NULL: no memory. */
static uint32_t *parked_refs(const rkvi_cache *c, uint32_t sequence)
{
    uint32_t *refs = calloc(c->tiles.capacity, sizeof *refs);
    for (uint32_t q = 0; refs && q < c->cfg->n_sequences; q++)
        for (uint32_t t = 0; (c->parked[q] || q == sequence) && t < c->seqs[q].n_tiles; t++)
            refs[c->seqs[q].tiles[t]]++;
    return refs;
}

/* One that is on its way out already only needs to enter. */
rkv_status rkvi_cache_leave(rkvi_cache *c, uint32_t tile, uint32_t layer, bool *out_waited)
{
    rkvi_tile_layer *l = rkvi_cache_tile_layer(c, tile, layer);
    const rkvi_move m = {.kind = RKVI_MOVE_LEAVE,
                         .tile = tile,
                         .layer = layer,
                         .has_copy = l->host_valid,
                         .done = l->state == RKVI_LEAVING};
    rkv_status s = RKV_OK;
    if (!m.has_copy)
        s = rkvi_cache_take_host(c, layer, l, out_waited);
    if (s != RKV_OK)
        return s;
    s = rkvi_cache_add_move(c, &m);
    l->is_due = s == RKV_OK;
    if (s == RKV_OK && !m.has_copy)
        l->out_mark = RKVI_MARK_PENDING;
    if (s != RKV_OK && !m.has_copy)
        rkvi_cache_give_host(c, layer, l);
    return s;
}

/* In order of tiles, so that copies out can be joined; those with a host copy
 * first, before their host places are given to others. */
static rkv_status leave_layer(rkvi_cache *c, const rkvi_seq *s, uint32_t layer, const uint32_t *refs, bool *out_waited)
{
    rkv_status st = RKV_OK;
    for (uint32_t pass = 0; pass < 2; pass++)
        for (uint32_t t = 0; t < s->n_tiles && st == RKV_OK; t++) {
            const uint32_t tile = s->tiles[t];
            const rkvi_tile_layer *l = rkvi_cache_tile_layer(c, tile, layer);
            const bool is_on_device =
                l->state == RKVI_ON_DEVICE || l->state == RKVI_IN_WINDOW || l->state == RKVI_LEAVING;
            if (is_on_device && !l->is_due && l->host_valid == (pass == 0) && refs[tile] == c->tiles.tiles[tile].refs)
                st = rkvi_cache_leave(c, tile, layer, out_waited);
        }
    return st;
}

rkv_status rkvi_cache_park(rkvi_cache *c, uint32_t sequence, bool *out_waited)
{
    uint32_t *refs = parked_refs(c, sequence);
    if (!refs)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory to count the references of %u tiles", c->tiles.capacity);
    rkv_status s = RKV_OK;
    c->n_moves = 0;
    for (uint32_t l = 0; l < c->cfg->n_layers && s == RKV_OK; l++)
        if (c->cfg->layers[l].has_tail)
            s = leave_layer(c, &c->seqs[sequence], l, refs, out_waited);
    free(refs);
    if (s == RKV_OK)
        s = rkvi_cache_leaving_room(c, c->n_moves);
    if (s != RKV_OK)
        rkvi_cache_unmove(c);
    return s;
}

void rkvi_cache_enter_now(rkvi_cache *c)
{
    for (uint32_t i = 0; i < c->n_moves; i++) {
        const rkvi_move *m = &c->moves[i];
        rkvi_tile_layer *l = rkvi_cache_tile_layer(c, m->tile, m->layer);
        l->is_due = false; /* of one that was leaving */
        rkvi_cache_enter_tail(c, m->layer, l);
    }
    c->n_moves = 0;
}

void rkvi_cache_parked(rkvi_cache *c, uint32_t sequence)
{
    rkvi_cache_enter_now(c);
    c->parked[sequence] = true;
}

/* --------------------------------------------------------------------- fetch */

/* A last tile that others hold too is left to begin, which may copy it. */
rkv_status rkvi_cache_fetch(rkvi_cache *c, uint32_t sequence)
{
    const rkvi_seq *seq = &c->seqs[sequence];
    rkv_status s = RKV_OK;
    c->n_moves = 0;
    if (seq->n_tiles == 0 || rkvi_seq_last_fill(seq) == c->cfg->tile_cells)
        return RKV_OK;
    const uint32_t tile = seq->tiles[seq->n_tiles - 1];
    for (uint32_t l = 0; l < c->cfg->n_layers && s == RKV_OK && c->tiles.tiles[tile].refs == 1; l++)
        if (rkvi_cache_tile_layer(c, tile, l)->state == RKVI_IN_TAIL) {
            rkvi_move m = {.kind = RKVI_MOVE_BRING_BACK, .tile = tile, .layer = l};
            s = rkvi_cache_move_in(c, &m, RKVI_TILE_BRING_BACK);
        }
    if (s != RKV_OK)
        rkvi_cache_unmove(c);
    return s;
}

void rkvi_cache_fetched(rkvi_cache *c, uint32_t sequence, uint64_t in_mark)
{
    rkvi_seq *s = &c->seqs[sequence];
    if (c->n_moves) {
        c->fetched_in = in_mark;
        s->first_open = s->first_open < s->n_tiles ? s->first_open : s->n_tiles - 1;
    }
    c->n_moves = 0;
    c->parked[sequence] = false;
}
