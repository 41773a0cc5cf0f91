/* cache_sequence.c: sequence calls, and what sharing asks about tiles. */
#include "cache_places.h"
#include "cache_unseen.h"

#include <string.h>

rkv_status rkvi_cache_sequence_remove(rkvi_cache *c, uint32_t sequence, int64_t from, int64_t to)
{
    rkvi_seq *s = &c->seqs[sequence];
    rkv_status st = to < rkvi_seq_pos_end(s) ? rkvi_seq_take_ahead(s, 1) : RKV_OK;
    if (st != RKV_OK)
        return st;
    c->layout++;
    c->n_segments -= s->n_segments;
    const uint32_t gone = rkvi_seq_remove(s, from, to);
    c->n_segments += s->n_segments;
    rkvi_cache_look_from_start(c, sequence);
    c->parked[sequence] = c->parked[sequence] && s->n_tiles;
    s->n_tree = 0; /* api lets no part of a tree be cut */
    for (uint32_t i = 0; i < gone; i++)
        rkvi_cache_release_tile(c, s->tiles[s->n_tiles + i]);
    if (s->n_segments)
        rkvi_seq_reserve(s, 0, 0); /* ahead of the next one, if there is memory now */
    return RKV_OK;
}

void rkvi_cache_sequence_accept(rkvi_cache *c, uint32_t sequence, const uint32_t *cells, uint32_t n)
{
    rkvi_seq *s = &c->seqs[sequence];
    c->layout++;
    c->n_segments -= s->n_segments;
    const uint32_t gone = rkvi_seq_accept(s, cells, n, c->cfg->tile_cells);
    c->n_segments += s->n_segments;
    rkvi_cache_look_from_start(c, sequence);
    for (uint32_t i = 0; i < gone; i++)
        rkvi_cache_release_tile(c, s->tiles[s->n_tiles + i]);
}

rkv_status rkvi_cache_sequence_share(rkvi_cache *c, uint32_t dst, uint32_t src, int64_t from, int64_t to)
{
    rkvi_seq *d = &c->seqs[dst];
    const rkvi_seq *s = &c->seqs[src];
    const uint32_t most = rkvi_seq_count(s, from, to);
    const uint32_t turned = rkvi_seq_n_turned(d, INT64_MIN, INT64_MAX) + rkvi_seq_n_turned(s, from, to);
    if (turned > c->cfg->max_turns)
        return rkvi_fail(RKV_E_CAPACITY,
                         "sequence %u would have up to %u stretches of cells whose positions were shifted; a sequence "
                         "can have max_turns, %u: create the cache with a larger max_turns",
                         dst, turned, c->cfg->max_turns);
    rkv_status st = rkvi_seq_reserve(d, most, most);
    if (st != RKV_OK)
        return st;
    c->layout++;
    c->n_segments -= d->n_segments;
    const uint32_t added = rkvi_seq_share(d, s, from, to);
    c->n_segments += d->n_segments;
    for (uint32_t i = d->n_tiles - added; i < d->n_tiles; i++)
        rkvi_tiles_ref(&c->tiles, d->tiles[i]);
    c->decide_all = true;
    rkvi_cache_look_from_start(c, dst);
    return RKV_OK;
}

/* ------------------------------------------------------------- what is covered */

/* Where the last covered cell of a tile ends. */
static uint32_t covered_end(const rkvi_cache *c, uint32_t tile)
{
    uint32_t end = 0;
    for (uint32_t i = 0; i < c->cfg->n_sequences; i++) {
        const rkvi_seq *s = &c->seqs[i];
        for (uint32_t k = 0; k < s->n_segments; k++) {
            const rkvi_segment *g = &s->segments[k];
            if (s->tiles[g->tile_index] == tile && rkvi_segment_fill(g) > end)
                end = rkvi_segment_fill(g);
        }
    }
    return end;
}

bool rkvi_cache_needs_copy(rkvi_cache *c, uint32_t sequence)
{
    const rkvi_seq *s = &c->seqs[sequence];
    const uint32_t fill = rkvi_seq_last_fill(s);
    if (s->n_tiles == 0 || fill == c->cfg->tile_cells)
        return false;
    const uint32_t tile = s->tiles[s->n_tiles - 1];
    rkvi_tile *t = &c->tiles.tiles[tile];
    if (t->refs == 1 || fill >= t->end)
        return false;
    t->end = (uint16_t)covered_end(c, tile); /* cuts may have lowered it */
    return fill < t->end;
}

static void cover(rkvi_cache *c, uint32_t tile, const rkvi_segment *g)
{
    uint64_t *bits = c->cover + tile * rkvi_div_up(c->cfg->tile_cells, 64);
    for (uint32_t cell = g->first, end = rkvi_segment_fill(g); cell < end;) {
        const uint32_t bit = cell % 64, n = end - cell < 64 - bit ? end - cell : 64 - bit;
        bits[cell / 64] |= (n == 64 ? UINT64_MAX : ((uint64_t)1 << n) - 1) << bit;
        cell += n;
    }
}

/* Of the cells of shared tiles, those that another segment covers already. */
static uint64_t covered_again(rkvi_cache *c)
{
    const uint64_t words = c->cfg->capacity_tiles * rkvi_div_up(c->cfg->tile_cells, 64);
    uint64_t n = 0;
    memset(c->cover, 0, words * sizeof *c->cover);
    for (uint32_t i = 0; i < c->cfg->n_sequences; i++) {
        const rkvi_seq *s = &c->seqs[i];
        for (uint32_t k = 0; k < s->n_segments; k++) {
            const rkvi_segment *g = &s->segments[k];
            if (c->tiles.tiles[s->tiles[g->tile_index]].refs == 1)
                continue;
            cover(c, s->tiles[g->tile_index], g);
            n += g->count;
        }
    }
    for (uint64_t i = 0; i < words; i++)
        n -= (uint64_t)__builtin_popcountll(c->cover[i]);
    return n;
}

void rkvi_cache_count_cells(rkvi_cache *c, rkvi_cell_count *out)
{
    *out = (rkvi_cell_count){.shared_tiles = c->tiles.n_shared, .stored = c->tiles.n_stored};
    for (uint32_t i = 0; i < c->cfg->n_sequences; i++)
        out->covered += c->seqs[i].n_cells;
    if (c->tiles.n_shared > 0)
        out->covered -= covered_again(c);
}
