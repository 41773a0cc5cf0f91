/* cache_grow.c: what a step's begin takes and moves for one sequence. */
#include "cache_grow.h"
#include "cache_unseen.h"

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

/* The step's store waits for what still happens at the place. */
static rkv_status move_in(rkvi_cache *c, rkvi_move *m, rkvi_tile_event event)
{
    const rkv_status s = rkvi_cache_move_in(c, m, event);
    if (s == RKV_OK)
        want_marks(c, m->layer, m->place);
    return s;
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
    return move_in(c, &m, RKVI_TILE_BRING_BACK);
}

/* A copy of a shared tile-layer, at a place of its own. */
static rkv_status copy_tile(rkvi_cache *c, const growth *g, uint32_t layer)
{
    rkvi_move m = {.kind = RKVI_MOVE_COPY, .tile = g->joined, .layer = layer, .from = g->copied};
    return move_in(c, &m, RKVI_TILE_OPEN);
}

/* Room on the device for a new tile-layer; one that passes through the step
 * takes room of transit. */
static rkv_status open_tile(rkvi_cache *c, uint32_t tile, uint32_t layer, bool passes)
{
    rkvi_tile_layer *l = rkvi_cache_tile_layer(c, tile, layer);
    rkvi_move m = {.tile = tile, .layer = layer, .kind = RKVI_MOVE_OPEN};
    rkvi_layer_state *ls = &c->layers[layer];
    if (passes && ls->n_transit < c->cfg->transit_tiles) {
        rkv_status s = rkvi_cache_add_move(c, &m);
        if (s != RKV_OK)
            return s;
        l->device_addr = c->transit[c->transit_of[layer]].addr + ls->n_transit++ * c->cfg->layers[layer].geom.bytes;
        rkvi_tile_apply(l, RKVI_TILE_OPEN);
        return RKV_OK;
    }
    return move_in(c, &m, RKVI_TILE_OPEN);
}

/* What a tile-layer beyond the lag does at the end: stay, or leave. */
static rkv_status due(rkvi_cache *c, const growth *g, uint32_t tile, uint32_t layer)
{
    rkvi_tile_layer *l = rkvi_cache_tile_layer(c, tile, layer);
    rkvi_move m = {.tile = tile, .layer = layer, .kind = RKVI_MOVE_KEEP};
    if (rkvi_cache_window_has_room(c, layer) && l->device_place != RKVI_NO_PLACE) {
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

/* Has the tile cells of the sequence's token tree?  accept will move some of them. */
static bool has_tree_cells(const rkvi_seq *s, uint32_t tile)
{
    for (uint32_t t = s->n_tree ? rkvi_seq_tree_begin(s).tile_index : s->n_tiles; t < s->n_tiles; t++)
        if (s->tiles[t] == tile)
            return true;
    return false;
}

/* Does another sequence store its next cell into this tile, or move cells of its token tree
 * within it?  For a parked one it is brought back. */
static bool is_active_of_another(const rkvi_cache *c, const rkvi_seq *seq, uint32_t tile)
{
    if (c->tiles.tiles[tile].refs == 1)
        return false;
    for (uint32_t i = 0; i < c->cfg->n_sequences; i++) {
        const rkvi_seq *s = &c->seqs[i];
        if (s != seq && has_tree_cells(s, tile))
            return true;
        if (s != seq && !c->parked[i] && s->n_tiles && s->tiles[s->n_tiles - 1] == tile &&
            rkvi_seq_last_fill(s) < c->cfg->tile_cells)
            return true;
    }
    return false;
}

/* Notes it of the tiles that are due, for all KV layers. */
static void find_active(rkvi_cache *c, const growth *g)
{
    for (uint32_t t = g->seq->first_open; t < g->due_tiles && t < g->seq->n_tiles; t++) {
        const uint32_t tile = g->seq->tiles[t];
        c->tiles.tiles[tile].is_others = is_active_of_another(c, g->seq, tile);
    }
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
static rkv_status grow_layer(rkvi_cache *c, const growth *g, uint32_t layer)
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
            s = open_tile(c, tile, layer, passes);
        if (s != RKV_OK || !is_due || is_freed || l->state != RKVI_ON_DEVICE || l->is_due)
            continue;
        if (c->tiles.tiles[tile].is_others) {
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
        rkvi_tiles_stored(&c->tiles, g->joined, fill);
        rkvi_cache_replace_last(seq, g->joined);
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
    for (; t < seq->n_tiles; t++)
        rkvi_tiles_stored(&c->tiles, seq->tiles[t],
                          t + 1 < seq->n_tiles ? c->cfg->tile_cells : rkvi_seq_last_fill(seq));
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

/* A parked sequence's tiles that others kept on the device when it was parked: once
 * those have let go, all leave. */
static bool only_parked_have(const rkvi_cache *c, const rkvi_seq *seq)
{
    for (uint32_t i = 0; i < c->cfg->n_sequences; i++) {
        const rkvi_seq *s = &c->seqs[i];
        for (uint32_t t = 0; t < s->n_tiles && !c->parked[i]; t++)
            for (uint32_t own = seq->first_open; own < seq->n_tiles; own++)
                if (seq->tiles[own] == s->tiles[t])
                    return false;
    }
    return true;
}

static rkv_status grow_all_layers(rkvi_cache *c, growth *g, bool is_parked)
{
    g->due_tiles = is_parked && only_parked_have(c, g->seq) ? g->seq->n_tiles : due_tiles(c, g->seq);
    find_active(c, g);
    for (uint32_t layer = 0; layer < c->cfg->n_layers; layer++) {
        rkv_status s = grow_layer(c, g, layer);
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

rkv_status rkvi_cache_grow(rkvi_cache *c, const rkvi_batch *b, uint32_t e, bool *waited)
{
    growth g = growth_of(c, b->entries[e].sequence, waited);
    g.entry = &b->entries[e];
    g.is_prefill = g.entry->is_prefill;
    c->joined[e] = UINT32_MAX;
    if (g.entry->n_new)
        append(c, &g, b, e);
    return grow_all_layers(c, &g, false);
}

rkv_status rkvi_cache_decide_others(rkvi_cache *c, bool *waited)
{
    rkv_status s = RKV_OK;
    if (!c->decide_all)
        return RKV_OK;
    c->decide_all = false;
    for (uint32_t i = 0; i < c->cfg->n_sequences && s == RKV_OK; i++) {
        growth g = growth_of(c, i, waited);
        if (g.seq->first_open < g.seq->n_tiles)
            s = grow_all_layers(c, &g, c->parked[i]);
    }
    return s;
}
