/* cache_unseen.c: see cache_unseen.h. */
#include "cache_unseen.h"

#include "cache_places.h"
#include "plan.h"

#include <assert.h>

/* First position that rows at `pos` or later see in the KV layer. */
int64_t rkvi_cache_floor_at(const rkvi_config *cfg, uint32_t layer, int64_t pos)
{
    const rkvi_layer_config *lc = &cfg->layers[layer];
    const rkvi_row row = {.pos = pos, .from = 0, .to = INT64_MAX};
    int64_t least = INT64_MAX, lo, hi;
    for (uint32_t i = lc->first_site; i <= lc->last_site; i++)
        if (cfg->sites[i].kv_layer == layer) {
            rkvi_visible(&row, cfg->sites[i].mask, &lo, &hi);
            least = lo < least ? lo : least;
        }
    return least;
}

/* Least position whose rows see nothing below `freed_end`, and append to a
 * tile that is there. */
static int64_t least_pos(const rkvi_config *cfg, uint32_t layer, int64_t freed_end)
{
    const rkvi_layer_config *lc = &cfg->layers[layer];
    int64_t least = freed_end + 1;
    for (uint32_t i = lc->first_site; i <= lc->last_site; i++) {
        const rkvi_site_mask m = cfg->sites[i].mask;
        if (cfg->sites[i].kv_layer != layer)
            continue;
        const int64_t pos = m.kind == RKV_MASK_SLIDING ? freed_end + m.width - 1
                                                       : (freed_end + m.width - 1) / m.width * m.width;
        least = pos > least ? pos : least;
    }
    return least;
}

/* Where the sequence would end with its last draft_rows cells cut off. */
static int64_t lagging_end(const rkvi_seq *s, uint64_t draft_rows)
{
    for (uint32_t i = s->n_segments; i-- > 0;) {
        const rkvi_segment *g = &s->segments[i];
        if (g->count > draft_rows)
            return g->pos + (int64_t)(g->count - draft_rows);
        draft_rows -= g->count;
    }
    return 0;
}

static bool is_freed(const rkvi_cache *c, const rkvi_seq *s, uint32_t segment, uint32_t layer)
{
    return rkvi_cache_tile_layer(c, s->tiles[s->segments[segment].tile_index], layer)->state == RKVI_FREED;
}

/* Position after the last cell that the sequence has lost in the KV layer, of
 * those at [from, to); 0: none. */
static int64_t freed_end(const rkvi_cache *c, const rkvi_seq *s, uint32_t layer, int64_t from, int64_t to)
{
    for (uint32_t i = s->n_segments; i-- > 0;) {
        const rkvi_segment *g = &s->segments[i];
        const int64_t end = rkvi_segment_end(g);
        if (g->pos < to && end > from && is_freed(c, s, i, layer))
            return end < to ? end : to;
    }
    return 0;
}

static bool may_miss(const rkvi_cache *c, uint32_t layer)
{
    return c->layers[layer].n_freed > 0;
}

int64_t rkvi_cache_floor(const rkvi_config *cfg, const rkvi_seq *s, uint32_t layer)
{
    return cfg->layers[layer].frees ? rkvi_cache_floor_at(cfg, layer, lagging_end(s, cfg->draft_rows)) : INT64_MIN;
}

/* ------------------------------------------------------------------- freeing */

/* Does any sequence hold the tile where a row to come sees it, or appends? */
static bool is_seen(const rkvi_cache *c, uint32_t tile, uint32_t layer)
{
    for (uint32_t q = 0; q < c->cfg->n_sequences; q++) {
        const rkvi_seq *s = &c->seqs[q];
        const int64_t floor = rkvi_cache_floor_at(c->cfg, layer, lagging_end(s, c->cfg->draft_rows));
        for (uint32_t i = s->n_segments; i-- > 0;) {
            const rkvi_segment *g = &s->segments[i];
            if (g->tile_index + 1 < s->n_tiles && rkvi_segment_end(g) <= floor)
                break;
            if (s->tiles[g->tile_index] == tile)
                return true;
        }
    }
    return false;
}

static void free_tile_layer(rkvi_cache *c, uint32_t tile, uint32_t layer)
{
    rkvi_tile_layer *l = rkvi_cache_tile_layer(c, tile, layer);
    rkvi_layer_state *ls = &c->layers[layer];
    if (l->state == RKVI_FREED)
        return;
    assert(!l->promoting);
    ls->n_window -= l->state == RKVI_IN_WINDOW;
    ls->n_tail -= l->state == RKVI_IN_TAIL;
    ls->n_freed++;
    rkvi_cache_give_device(c, layer, l);
    rkvi_cache_give_host(c, layer, l);
    rkvi_tile_apply(l, RKVI_TILE_FREE);
}

/* Each segment is looked at once, when it goes out of sight.  A tile that
 * another sequence still sees is freed when that one has gone on. */
static void free_layer(rkvi_cache *c, uint32_t sequence, uint32_t layer)
{
    const rkvi_seq *s = &c->seqs[sequence];
    uint32_t *passed = &c->passed[(size_t)sequence * c->cfg->n_layers + layer];
    const int64_t floor = rkvi_cache_floor_at(c->cfg, layer, lagging_end(s, c->cfg->draft_rows));
    uint32_t i = *passed < s->n_segments ? *passed : 0; /* 0: it was cut */
    for (; i < s->n_segments; i++) {
        const rkvi_segment *g = &s->segments[i];
        if (g->tile_index + 1 == s->n_tiles || rkvi_segment_end(g) > floor)
            break;
        const uint32_t tile = s->tiles[g->tile_index];
        if (g[1].tile_index != g->tile_index && (c->tiles.tiles[tile].refs == 1 || !is_seen(c, tile, layer)))
            free_tile_layer(c, tile, layer);
    }
    *passed = i;
}

void rkvi_cache_free_unseen(rkvi_cache *c, const rkvi_batch *batch)
{
    const uint32_t n = c->look_again ? c->cfg->n_sequences : batch->n_entries;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t sequence = c->look_again ? i : batch->entries[i].sequence;
        if (c->look_again)
            rkvi_cache_look_from_start(c, sequence);
        for (uint32_t l = 0; l < c->cfg->n_layers; l++)
            if (c->cfg->layers[l].frees)
                free_layer(c, sequence, l);
    }
    c->look_again = false;
}

void rkvi_cache_look_from_start(rkvi_cache *c, uint32_t sequence)
{
    for (uint32_t l = 0; l < c->cfg->n_layers; l++)
        c->passed[(size_t)sequence * c->cfg->n_layers + l] = 0;
}

bool rkvi_cache_leaves_sight(const rkvi_cache *c, const rkvi_seq *s, uint32_t tile_index, uint32_t layer)
{
    const uint32_t tile = s->tiles[tile_index];
    if (!c->cfg->layers[layer].frees || tile_index + 1 >= s->n_tiles)
        return false;
    if (c->tiles.tiles[tile].refs > 1)
        return !is_seen(c, tile, layer);
    const int64_t floor = rkvi_cache_floor_at(c->cfg, layer, lagging_end(s, c->cfg->draft_rows));
    for (uint32_t i = s->n_segments; i-- > 0;) {
        const rkvi_segment *g = &s->segments[i];
        if (rkvi_segment_end(g) <= floor)
            return g->tile_index >= tile_index; /* and so are all before it */
        if (g->tile_index == tile_index)
            return false;
    }
    return false;
}

/* ------------------------------------------------------------------ refusals */

/* The lowest position that the entry's rows see. */
static int64_t seen_from(const rkvi_cache *c, const rkvi_batch *b, const rkvi_batch_entry *e, uint32_t layer)
{
    const rkvi_layer_config *lc = &c->cfg->layers[layer];
    int64_t least = INT64_MAX, lo, hi;
    for (uint32_t i = lc->first_site; i <= lc->last_site; i++)
        if (c->cfg->sites[i].kv_layer == layer) {
            rkvi_plan_range(b, e, c->cfg->sites[i].mask, &lo, &hi);
            least = lo < hi && lo < least ? lo : least;
        }
    return least;
}

static rkv_status entry_sees(const rkvi_cache *c, const rkvi_batch *b, const rkvi_batch_entry *e, uint32_t layer)
{
    const rkvi_seq *s = &c->seqs[e->sequence];
    const int64_t lo = seen_from(c, b, e, layer);
    for (uint32_t i = s->n_segments; i-- > 0 && rkvi_segment_end(&s->segments[i]) > lo;)
        if (is_freed(c, s, i, layer)) {
            const int64_t end = rkvi_segment_end(&s->segments[i]);
            return rkvi_fail(RKV_E_SEQUENCE,
                             "sequence %u: rows would see cells from position %lld on in KV layer %u, which has "
                             "freed those below %lld; the lowest position of a row is %lld (or set keep_all)",
                             e->sequence, (long long)lo, layer, (long long)end,
                             (long long)least_pos(c->cfg, layer, end));
        }
    return RKV_OK;
}

rkv_status rkvi_cache_batch_sees(const rkvi_cache *c, const rkvi_batch *batch)
{
    rkv_status s = RKV_OK;
    for (uint32_t e = 0; e < batch->n_entries; e++)
        for (uint32_t l = 0; l < c->cfg->n_layers && s == RKV_OK; l++)
            if (may_miss(c, l))
                s = entry_sees(c, batch, &batch->entries[e], l);
    return s;
}

/* Where the sequence ends once it is cut at end_pos; 0: nothing is left. */
static int64_t cut_end(const rkvi_seq *s, int64_t end_pos)
{
    for (uint32_t i = s->n_segments; i-- > 0;) {
        const rkvi_segment *g = &s->segments[i];
        if (g->pos < end_pos)
            return rkvi_segment_end(g) < end_pos ? rkvi_segment_end(g) : end_pos;
    }
    return 0;
}

/* The least end over all KV layers, where src (NULL: none) gives its cells [from, to). */
static int64_t least_end(const rkvi_cache *c, uint32_t sequence, const rkvi_seq *src, int64_t from, int64_t to,
                         uint32_t *out_layer)
{
    int64_t least = 0;
    for (uint32_t l = 0; l < c->cfg->n_layers; l++) {
        int64_t freed = may_miss(c, l) && src ? freed_end(c, src, l, from, to) : 0;
        if (may_miss(c, l) && !freed)
            freed = freed_end(c, &c->seqs[sequence], l, 0, INT64_MAX);
        const int64_t pos = freed ? least_pos(c->cfg, l, freed) : 0;
        *out_layer = pos > least ? l : *out_layer;
        least = pos > least ? pos : least;
    }
    return least;
}

/* Where the sequence can be cut so that it ends at `least` or, where it has no
 * cell before that, behind the next one. */
static int64_t possible_end(const rkvi_seq *s, int64_t least)
{
    for (uint32_t i = 0; i < s->n_segments; i++)
        if (rkvi_segment_end(&s->segments[i]) >= least)
            return s->segments[i].pos < least ? least : s->segments[i].pos + 1;
    return least;
}

static rkv_status check_end(const rkvi_cache *c, uint32_t sequence, int64_t end, const rkvi_seq *src,
                            const rkv_pos_range *range)
{
    uint32_t layer = 0;
    if (end <= 0 || end >= least_end(c, sequence, src, src ? range->from : 0, src ? range->to : 0, &layer))
        return RKV_OK;
    /* With a later end, src would give more cells. */
    int64_t least = least_end(c, sequence, src, src ? range->from : 0, INT64_MAX, &layer);
    least = possible_end(src ? src : &c->seqs[sequence], least);
    return rkvi_fail(RKV_E_SEQUENCE,
                     "sequence %u can't end at position %lld: KV layer %u has freed what its mask hid; the lowest "
                     "end is %lld, or nothing at all (set keep_all to keep all)",
                     sequence, (long long)end, layer, (long long)least);
}

rkv_status rkvi_cache_can_end(const rkvi_cache *c, uint32_t sequence, int64_t end_pos)
{
    return check_end(c, sequence, cut_end(&c->seqs[sequence], end_pos), NULL, NULL);
}

rkv_status rkvi_cache_can_share(const rkvi_cache *c, uint32_t dst, uint32_t src, int64_t from, int64_t to)
{
    const rkvi_seq *s = &c->seqs[src];
    const rkv_pos_range range = {from, cut_end(s, to)};
    return range.to > from ? check_end(c, dst, range.to, s, &range) : RKV_OK;
}

/* Where a segment ends once positions [from, to) are shifted. */
static int64_t moved_end(const rkvi_segment *g, int64_t from, int64_t to, int64_t delta)
{
    const int64_t last = rkvi_segment_end(g) - 1;
    return last + 1 + (last >= from && last < to ? delta : 0);
}

rkv_status rkvi_cache_can_move(const rkvi_cache *c, uint32_t sequence, int64_t from, int64_t to, int64_t delta)
{
    const rkvi_seq *s = &c->seqs[sequence];
    const int64_t end = s->n_segments ? moved_end(&s->segments[s->n_segments - 1], from, to, delta) : 0;
    for (uint32_t l = 0; l < c->cfg->n_layers; l++) {
        uint32_t i = may_miss(c, l) ? s->n_segments : 0;
        while (i > 0 && !is_freed(c, s, i - 1, l))
            i--;
        const int64_t least = i ? least_pos(c->cfg, l, moved_end(&s->segments[i - 1], from, to, delta)) : 0;
        if (end < least)
            return rkvi_fail(RKV_E_SEQUENCE,
                             "sequence %u would end at position %lld: KV layer %u has freed cells that rows from there "
                             "see; the lowest end would be %lld (set keep_all to keep all)",
                             sequence, (long long)end, l, (long long)least);
    }
    return RKV_OK;
}
