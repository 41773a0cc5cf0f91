#include "cache_places.h"
#include "cache_unseen.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

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
        rkvi_tile_apply(l, RKVI_TILE_ENTER);
        rkvi_cache_give_device(c, v.layer, l);
        c->layers[v.layer].n_tail++;
    }
    c->n_leaving = kept;
}

/* ----------------------------------------------------------- begin: one entry */

typedef struct growth {
    const rkvi_batch_entry *entry; /* NULL: a sequence beside the batch */
    rkvi_seq *seq;
    uint32_t old_tiles; /* before the step */
    uint32_t joined;    /* tile that the first new cell joins, or UINT32_MAX */
    uint32_t copied;    /* of which that is a new copy, or UINT32_MAX */
    uint64_t due_tiles; /* tiles [0, due_tiles) lie beyond the lag when the step has ended */
    bool is_prefill;
    bool *waited;
} growth;

static void want_marks(rkvi_cache *c, uint32_t layer, uint32_t place)
{
    const rkvi_place_marks *m = &c->layers[layer].device_marks[place];
    rkvi_layer_state *ls = &c->layers[layer];
    ls->store_out = m->out > ls->store_out ? m->out : ls->store_out;
    ls->store_in = m->in > ls->store_in ? m->in : ls->store_in;
}

/* The tile that the first new cell joins must be on the device. */
static rkv_status reopen(rkvi_cache *c, const growth *g, uint32_t layer)
{
    const uint32_t tile = g->joined;
    rkvi_tile_layer *l = rkvi_cache_tile_layer(c, tile, layer);
    rkvi_move m = {.tile = tile, .layer = layer, .kind = RKVI_MOVE_REOPEN};
    if (l->device_place != RKVI_NO_PLACE)
        want_marks(c, layer, l->device_place); /* a bring-back of an aborted step may be in flight */
    if (l->state == RKVI_LEAVING && l->device_place != RKVI_NO_PLACE) {
        m.enter_step = l->enter_step;
        rkv_status s = rkvi_cache_add_move(c, &m);
        if (s == RKV_OK)
            rkvi_tile_apply(l, RKVI_TILE_REOPEN);
        return s;
    }
    if (l->state != RKVI_IN_TAIL)
        return RKV_OK;
    m.kind = RKVI_MOVE_BRING_BACK;
    rkv_status s = rkvi_cache_take_device(c, layer, &m.place);
    if (s != RKV_OK)
        return s;
    s = rkvi_cache_add_move(c, &m);
    if (s != RKV_OK) {
        rkvi_pool_give(&c->layers[layer].device, m.place);
        return s;
    }
    want_marks(c, layer, m.place);
    rkvi_tile_apply(l, RKVI_TILE_BRING_BACK);
    c->layers[layer].n_tail--;
    rkvi_cache_set_device(c, layer, l, m.place);
    return RKV_OK;
}

/* A copy of a shared tile-layer, at a place of its own. */
static rkv_status copy_tile(rkvi_cache *c, const growth *g, uint32_t layer)
{
    rkvi_tile_layer *l = rkvi_cache_tile_layer(c, g->joined, layer);
    rkvi_move m = {.kind = RKVI_MOVE_COPY, .tile = g->joined, .layer = layer, .from = g->copied};
    rkv_status s = rkvi_cache_take_device(c, layer, &m.place);
    if (s != RKV_OK)
        return s;
    s = rkvi_cache_add_move(c, &m);
    if (s != RKV_OK) {
        rkvi_pool_give(&c->layers[layer].device, m.place);
        return s;
    }
    want_marks(c, layer, m.place);
    rkvi_cache_set_device(c, layer, l, m.place);
    rkvi_tile_apply(l, RKVI_TILE_OPEN);
    return RKV_OK;
}

static bool window_has_room(const rkvi_cache *c, uint32_t layer)
{
    return c->layers[layer].n_window < c->cfg->layers[layer].window_tiles;
}

/* Room on the device for a new tile-layer; one that passes through the step
 * takes room of transit. */
static rkv_status open_tile(rkvi_cache *c, uint32_t tile, uint32_t layer, bool passes, uint32_t *n_transit)
{
    rkvi_tile_layer *l = rkvi_cache_tile_layer(c, tile, layer);
    const rkvi_move m = {.tile = tile, .layer = layer, .kind = RKVI_MOVE_OPEN};
    uint32_t place;
    if (passes && *n_transit < c->cfg->transit_tiles) {
        rkv_status s = rkvi_cache_add_move(c, &m);
        if (s != RKV_OK)
            return s;
        l->device_addr = c->transit[c->transit_of[layer]].addr + *n_transit * c->cfg->layers[layer].geom.bytes;
        ++*n_transit;
        rkvi_tile_apply(l, RKVI_TILE_OPEN);
        return RKV_OK;
    }
    rkv_status s = rkvi_cache_take_device(c, layer, &place);
    if (s != RKV_OK)
        return s;
    s = rkvi_cache_add_move(c, &m);
    if (s != RKV_OK) {
        rkvi_pool_give(&c->layers[layer].device, place);
        return s;
    }
    want_marks(c, layer, place);
    rkvi_cache_set_device(c, layer, l, place);
    rkvi_tile_apply(l, RKVI_TILE_OPEN);
    return RKV_OK;
}

/* What a tile-layer beyond the lag does at the end: stay, or leave. */
static rkv_status due(rkvi_cache *c, const growth *g, uint32_t tile, uint32_t layer)
{
    rkvi_tile_layer *l = rkvi_cache_tile_layer(c, tile, layer);
    rkvi_move m = {.tile = tile, .layer = layer, .kind = RKVI_MOVE_KEEP};
    if (window_has_room(c, layer) && l->device_place != RKVI_NO_PLACE) {
        rkv_status s = rkvi_cache_add_move(c, &m);
        c->layers[layer].n_window += s == RKV_OK;
        l->is_due = s == RKV_OK;
        return s;
    }
    m.kind = RKVI_MOVE_LEAVE;
    m.has_copy = l->host_valid;
    m.in_step = g->is_prefill;
    if (!m.has_copy) {
        rkv_status s = rkvi_cache_take_host(c, layer, l, g->waited);
        if (s != RKV_OK)
            return s;
        l->out_mark = RKVI_MARK_PENDING;
    }
    rkv_status s = rkvi_cache_leaving_room(c, c->n_moves + 1);
    if (s == RKV_OK)
        s = rkvi_cache_add_move(c, &m);
    if (s != RKV_OK && !m.has_copy)
        rkvi_cache_give_host(c, layer, l);
    if (s == RKV_OK) /* this step is c->step + 1: the next begin, for the prediction */
        l->enter_step = m.in_step ? c->step + 2 : 0;
    l->is_due = s == RKV_OK;
    return s;
}

/* Does another sequence store its next cell into this tile? */
static bool is_active_of_another(const rkvi_cache *c, const rkvi_seq *seq, uint32_t tile)
{
    if (c->tiles.tiles[tile].refs == 1)
        return false;
    for (uint32_t i = 0; i < c->cfg->n_sequences; i++) {
        const rkvi_seq *s = &c->seqs[i];
        if (s != seq && s->n_tiles && s->tiles[s->n_tiles - 1] == tile && rkvi_seq_last_fill(s) < c->cfg->tile_cells)
            return true;
    }
    return false;
}

/* Tiles that lie beyond the lag: behind each come draft_rows cells, or as many
 * tiles as those fill. */
static uint32_t due_tiles(const rkvi_cache *c, const rkvi_seq *s)
{
    const uint32_t T = c->cfg->tile_cells, draft = c->cfg->draft_rows;
    const uint64_t lag_tiles = rkvi_div_up(draft, T);
    uint64_t after = 0;
    uint32_t due = rkvi_seq_last_fill(s) == T && draft == 0 ? s->n_tiles : s->n_tiles ? s->n_tiles - 1 : 0;
    for (uint32_t i = s->n_segments; i-- > 0 && after < draft;) {
        const rkvi_segment *g = &s->segments[i];
        after += g->count;
        if (g->tile_index < due)
            due = g->tile_index;
    }
    const uint32_t most = s->n_tiles > 1 + lag_tiles ? s->n_tiles - 1 - (uint32_t)lag_tiles : 0;
    return due > most ? due : most;
}

/* One that the step's end frees needs no place beyond it. */
static bool leaves_sight(const rkvi_cache *c, const growth *g, uint32_t t, uint32_t layer)
{
    return g->entry && c->cfg->layers[layer].frees && rkvi_cache_leaves_sight(c, g->seq, t, layer);
}

/* Passes over the tiles that are not in window or tail yet. */
static rkv_status grow_layer(rkvi_cache *c, const growth *g, uint32_t layer, uint32_t *n_transit)
{
    const bool has_tail = c->cfg->layers[layer].has_tail;
    rkv_status s = RKV_OK;
    if (g->copied != UINT32_MAX)
        s = copy_tile(c, g, layer);
    else if (g->joined != UINT32_MAX)
        s = reopen(c, g, layer);
    uint64_t room = c->cfg->layers[layer].window_tiles - c->layers[layer].n_window;
    for (uint32_t t = g->seq->first_open; s == RKV_OK && t < g->seq->n_tiles; t++) {
        const uint32_t tile = g->seq->tiles[t];
        const rkvi_tile_layer *l = rkvi_cache_tile_layer(c, tile, layer);
        const bool is_due = t < g->due_tiles, is_freed = is_due && leaves_sight(c, g, t, layer);
        const bool passes = is_due && has_tail && g->is_prefill && (room == 0 || is_freed);
        if (t >= g->old_tiles)
            s = open_tile(c, tile, layer, passes, n_transit);
        if (s != RKV_OK || !is_due || is_freed || l->state != RKVI_ON_DEVICE || l->is_due)
            continue;
        if (is_active_of_another(c, g->seq, tile)) {
            c->decide_all = true;
            continue;
        }
        s = due(c, g, tile, layer);
        room -= room > 0;
    }
    return s;
}

static bool is_decided(const rkvi_cache *c, uint32_t tile)
{
    for (uint32_t layer = 0; layer < c->cfg->n_layers; layer++)
        if (rkvi_cache_tile_layer(c, tile, layer)->state == RKVI_ON_DEVICE)
            return false;
    return true;
}

/* A tile that comes back to the device is looked at again by all that have it. */
static void look_again(rkvi_cache *c, rkvi_seq *seq)
{
    const uint32_t last = seq->n_tiles - 1, tile = seq->tiles[last];
    bool comes_back = false;
    if (seq->first_open > last)
        seq->first_open = last;
    for (uint32_t layer = 0; layer < c->cfg->n_layers; layer++) {
        const uint8_t state = rkvi_cache_tile_layer(c, tile, layer)->state;
        comes_back = comes_back || state == RKVI_LEAVING || state == RKVI_IN_TAIL;
    }
    for (uint32_t i = 0; comes_back && c->tiles.tiles[tile].refs > 1 && i < c->cfg->n_sequences; i++)
        c->seqs[i].first_open = 0;
}

static void replace_last(rkvi_seq *seq, uint32_t tile)
{
    seq->tiles[seq->n_tiles - 1] = tile;
}

/* What the first new cell joins; a tile that it would write over is copied. */
static void join(rkvi_cache *c, growth *g, uint32_t e)
{
    rkvi_seq *seq = g->seq;
    const uint32_t fill = rkvi_seq_last_fill(seq);
    if (seq->n_tiles == 0 || fill == c->cfg->tile_cells)
        return;
    g->joined = seq->tiles[seq->n_tiles - 1];
    look_again(c, seq);
    if (rkvi_cache_needs_copy(c, g->entry->sequence)) {
        g->copied = g->joined;
        g->joined = rkvi_tiles_take(&c->tiles);
        c->tiles.tiles[g->joined].stored = c->tiles.tiles[g->joined].end = (uint16_t)fill;
        replace_last(seq, g->joined);
        rkvi_tiles_unref(&c->tiles, g->copied); /* others have it */
        c->copies[c->n_copies++] =
            (rkvi_tile_copy){.sequence = g->entry->sequence, .from = g->copied, .to = g->joined};
        c->decide_all = true;
    } else {
        c->joined[e] = g->joined;
    }
}

/* Cells [0, fill) of each tile from t on are stored. */
static void note_stored(rkvi_cache *c, const rkvi_seq *seq, uint32_t t)
{
    for (; t < seq->n_tiles; t++) {
        rkvi_tile *tile = &c->tiles.tiles[seq->tiles[t]];
        const uint16_t fill = (uint16_t)(t + 1 < seq->n_tiles ? c->cfg->tile_cells : rkvi_seq_last_fill(seq));
        tile->stored = tile->stored > fill ? tile->stored : fill;
        tile->end = tile->end > fill ? tile->end : fill;
    }
}

static void append(rkvi_cache *c, growth *g, const rkvi_batch *b, uint32_t e)
{
    rkvi_seq *seq = g->seq;
    const rkvi_row *rows = rkvi_batch_stored(b, &b->entries[e]);
    const uint32_t n_new = b->entries[e].n_new;
    uint32_t n_tiles, n_segments;
    join(c, g, e);
    rkvi_seq_need(seq, rows, n_new, c->cfg->tile_cells, &n_tiles, &n_segments);
    for (uint32_t i = 0; i < n_tiles; i++)
        c->new_tiles[c->n_new_tiles + i] = rkvi_tiles_take(&c->tiles);
    c->n_segments -= seq->n_segments;
    rkvi_seq_append(seq, rows, n_new, c->cfg->tile_cells, c->new_tiles + c->n_new_tiles);
    c->n_segments += seq->n_segments;
    c->n_new_tiles += n_tiles;
    if (b->entries[e].is_tree)
        rkvi_seq_tree_set(seq, b->rows + b->entries[e].row0, n_new);
    note_stored(c, seq, g->joined == UINT32_MAX ? g->old_tiles : g->old_tiles - 1);
}

static rkv_status grow_all_layers(rkvi_cache *c, growth *g, uint32_t *n_transit)
{
    g->due_tiles = due_tiles(c, g->seq);
    for (uint32_t layer = 0; layer < c->cfg->n_layers; layer++) {
        rkv_status s = grow_layer(c, g, layer, &n_transit[layer]);
        if (s != RKV_OK)
            return s;
    }
    return RKV_OK;
}

static growth growth_of(rkvi_cache *c, uint32_t sequence, bool *waited)
{
    rkvi_seq *seq = &c->seqs[sequence];
    while (seq->first_open < seq->n_tiles && is_decided(c, seq->tiles[seq->first_open]))
        seq->first_open++;
    return (growth){
        .seq = seq, .old_tiles = seq->n_tiles, .joined = UINT32_MAX, .copied = UINT32_MAX, .waited = waited};
}

static rkv_status grow_entry(rkvi_cache *c, const rkvi_batch *b, uint32_t e, uint32_t *n_transit, bool *waited)
{
    growth g = growth_of(c, b->entries[e].sequence, waited);
    g.entry = &b->entries[e];
    g.is_prefill = g.entry->is_prefill;
    c->joined[e] = UINT32_MAX;
    if (g.entry->n_new)
        append(c, &g, b, e);
    return grow_all_layers(c, &g, n_transit);
}

/* Tiles that another sequence went on in, until now, are due in those that are
 * not in the batch. */
static rkv_status decide_others(rkvi_cache *c, uint32_t *n_transit, bool *waited)
{
    rkv_status s = RKV_OK;
    if (!c->decide_all)
        return RKV_OK;
    c->decide_all = false;
    for (uint32_t i = 0; i < c->cfg->n_sequences && s == RKV_OK; i++) {
        growth g = growth_of(c, i, waited);
        if (g.seq->first_open < g.seq->n_tiles)
            s = grow_all_layers(c, &g, n_transit);
    }
    return s;
}

/* ----------------------------------------------------------- begin: the batch */

rkv_status rkvi_cache_begin(rkvi_cache *c, const rkvi_batch *batch, bool *out_waited)
{
    *out_waited = false;
    c->n_moves = c->n_new_tiles = c->n_copies = 0;
    c->next_promote = UINT32_MAX;
    rkv_status s = rkvi_cache_reserve(c, batch);
    if (s != RKV_OK)
        return s;
    enter(c, c->step + 1);
    uint32_t *n_transit = calloc(c->cfg->n_layers, sizeof *n_transit);
    if (!n_transit)
        return rkvi_fail(RKV_E_HOST_MEMORY, "no memory to begin a step over %u KV layers", c->cfg->n_layers);
    for (uint32_t l = 0; l < c->cfg->n_layers; l++)
        c->layers[l].store_out = c->layers[l].store_in = 0;
    uint32_t e = 0;
    for (; e < batch->n_entries && s == RKV_OK; e++)
        s = grow_entry(c, batch, e, n_transit, out_waited);
    if (s == RKV_OK)
        s = decide_others(c, n_transit, out_waited);
    free(n_transit);
    if (s == RKV_OK) {
        for (e = 0; e < batch->n_entries; e++)
            c->parked[batch->entries[e].sequence] = false;
        c->step++;
        return RKV_OK;
    }
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
        if (items[i].site != lc->last_site || !window_has_room(c, items[i].layer))
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
        if (window_has_room(c, found[i]->layer) && !rkvi_cache_tile_layer(c, found[i]->tile, found[i]->layer)->promoting)
            s = promote_item(c, found[i], (uint32_t)(found[i] - items));
    if (c->n_moves > c->next_promote)
        qsort(c->moves + c->next_promote, c->n_moves - c->next_promote, sizeof *c->moves, by_item);
    free(found);
    return s;
}

/* ------------------------------------------------------------- undo and end */

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
        replace_last(&c->seqs[copy->sequence], copy->from);
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
