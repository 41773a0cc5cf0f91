/* cache_end.c: a step is taken back, or ends; what becomes of its moves. */
#include "cache_places.h"

#include <assert.h>

/* Promotions whose copies are enqueued: later readers on the compute stream
 * find them at the device place. */
static void settle_promotions(rkvi_cache *c)
{
    for (uint32_t i = 0; i < c->n_moves; i++) {
        rkvi_move *m = &c->moves[i];
        if (m->kind != RKVI_MOVE_PROMOTE || !m->done)
            continue;
        rkvi_tile_layer *l = rkvi_cache_tile_layer(c, m->tile, m->layer);
        if (!l->promoting)
            continue;
        l->promoting = false;
        rkvi_tile_apply(l, RKVI_TILE_PROMOTE);
        rkvi_cache_set_device(c, m->layer, l, m->place);
        c->layers[m->layer].n_tail--;
    }
}

static bool has_left(const rkvi_cache *c, uint32_t layer)
{
    for (uint32_t i = 0; i < c->n_moves; i++)
        if (c->moves[i].kind == RKVI_MOVE_LEAVE && c->moves[i].layer == layer && c->moves[i].done)
            return true;
    return false;
}

static void undo_move(rkvi_cache *c, rkvi_move *m)
{
    rkvi_tile_layer *l = rkvi_cache_tile_layer(c, m->tile, m->layer);
    rkvi_layer_state *ls = &c->layers[m->layer];
    l->is_due = false;
    switch (m->kind) {
    case RKVI_MOVE_KEEP:
        if (has_left(c, m->layer)) /* a later tile may be on its way out: no gap below it */
            rkvi_tile_apply(l, RKVI_TILE_KEEP);
        else
            ls->n_window--;
        break;
    case RKVI_MOVE_LEAVE:
        if (!m->done && !m->has_copy)
            rkvi_cache_give_host(c, m->layer, l);
        break;
    case RKVI_MOVE_BRING_BACK:
        /* Not stored to yet: back to the tail, also when the copy is in flight;
         * the place's mark orders who takes it next.  (Left on the device, it
         * would be read without a wait for that copy.) */
        if (l->state == RKVI_ON_DEVICE && l->host_valid) {
            rkvi_cache_give_device(c, m->layer, l);
            l->state = RKVI_IN_TAIL;
            ls->n_tail++;
        }
        break;
    case RKVI_MOVE_PROMOTE:
        if (m->done)
            break; /* settled as in a step that ends */
        l->promoting = false;
        ls->n_window--;
        rkvi_pool_give(&ls->device, m->place);
        break;
    case RKVI_MOVE_REOPEN:
        if (l->host_valid && l->state == RKVI_ON_DEVICE) { /* nothing was stored: it leaves, as before */
            l->state = RKVI_LEAVING;
            l->enter_step = m->enter_step;
        }
        break;
    case RKVI_MOVE_OPEN: /* released with their tiles */
    case RKVI_MOVE_COPY:
        break;
    }
}

void rkvi_cache_undo(rkvi_cache *c, const rkvi_batch *batch)
{
    c->layout++;
    for (uint32_t i = c->n_moves; i-- > 0;)
        undo_move(c, &c->moves[i]);
    settle_promotions(c);
    c->decide_all = true;
    for (uint32_t e = 0; e < batch->n_entries; e++) {
        const rkvi_batch_entry *be = &batch->entries[e];
        if (be->n_new)
            rkvi_cache_sequence_remove(c, be->sequence, rkvi_batch_stored(batch, be)->pos, INT64_MAX);
    }
    for (; c->n_copies; c->n_copies--) {
        const rkvi_tile_copy *copy = &c->copies[c->n_copies - 1];
        rkvi_tiles_ref(&c->tiles, copy->from);
        rkvi_cache_replace_last(&c->seqs[copy->sequence], copy->from);
        rkvi_cache_release_tile(c, copy->to);
    }
    c->n_moves = 0;
}

/* Steps whose attends are captured name the tail's tile-layers: so those with a
 * place of their own enter it together, once in T/2 steps. */
static uint64_t enter_step(const rkvi_cache *c, const rkvi_move *m, const rkvi_tile_layer *l)
{
    const uint64_t step = c->step + (m->in_step ? 1 : 2);
    if (!(c->cfg->flags & RKV_FLAG_GRAPHS) || m->in_step || l->device_place == RKVI_NO_PLACE)
        return step;
    return rkvi_align_up(step, c->cfg->tile_cells / 2);
}

void rkvi_cache_left(rkvi_cache *c, rkvi_move *m, uint64_t out_mark)
{
    rkvi_tile_layer *l = rkvi_cache_tile_layer(c, m->tile, m->layer);
    c->layers[m->layer].n_window -= l->state == RKVI_IN_WINDOW;
    rkvi_tile_apply(l, RKVI_TILE_LEAVE);
    l->is_due = false;
    l->enter_step = enter_step(c, m, l);
    l->host_valid = true;
    if (!m->has_copy)
        l->out_mark = out_mark;
    if (!m->has_copy && l->device_place != RKVI_NO_PLACE)
        c->layers[m->layer].device_marks[l->device_place].out = out_mark;
    m->done = true;
    assert(c->n_leaving < c->leaving_room);
    c->leaving[c->n_leaving++] = (rkvi_leaving){m->tile, m->layer, c->tiles.tiles[m->tile].serial};
}

void rkvi_cache_end(rkvi_cache *c)
{
    c->n_copies = 0; /* theirs for good: a call between steps that is undone leaves them */
    for (uint32_t i = 0; i < c->n_moves; i++) {
        rkvi_move *m = &c->moves[i];
        rkvi_tile_layer *l = rkvi_cache_tile_layer(c, m->tile, m->layer);
        if (m->kind != RKVI_MOVE_KEEP)
            continue;
        rkvi_tile_apply(l, RKVI_TILE_KEEP);
        l->is_due = false;
    }
    settle_promotions(c);
}

uint64_t rkvi_cache_drop_host_copy(rkvi_cache *c, uint32_t tile, uint32_t layer)
{
    rkvi_tile_layer *l = rkvi_cache_tile_layer(c, tile, layer);
    /* A host place taken for leaving later in this step is no copy yet. */
    if (!l->host_valid)
        return 0;
    const uint64_t mark = l->out_mark;
    bool leaves = false;
    for (uint32_t i = 0; i < c->n_moves; i++) {
        rkvi_move *m = &c->moves[i];
        if (m->kind == RKVI_MOVE_LEAVE && m->tile == tile && m->layer == layer) {
            m->has_copy = false; /* it leaves with new cells: copy into the same host place */
            leaves = true;
        }
    }
    l->generation++;
    l->host_valid = false;
    if (leaves)
        l->out_mark = RKVI_MARK_PENDING;
    else
        rkvi_cache_give_host(c, layer, l);
    return mark;
}
