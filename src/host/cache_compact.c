/* cache_compact.c: see cache_compact.h. */
#include "cache_compact.h"

#include "cache_fill.h"
#include "cache_places.h"

#include <assert.h>
#include <stdlib.h>

/* ---------------------------------------------------------------------- runs */

/* Cells that a KV layer has freed don't come together with others in a tile:
 * it would look as if it held them. */
static bool alike(const rkvi_cache *c, uint32_t a, uint32_t b)
{
    for (uint32_t l = 0; l < c->cfg->n_layers; l++)
        if (rkvi_tile_layer_is_held(rkvi_cache_tile_layer(c, a, l)) !=
            rkvi_tile_layer_is_held(rkvi_cache_tile_layer(c, b, l)))
            return false;
    return true;
}

/* Items [t, *z) are to be rewritten, or item t stays. */
static bool next_run(const rkvi_cache *c, const rkvi_seq *s, const rkvi_compaction *k, uint32_t t, uint32_t *z)
{
    const uint32_t T = c->cfg->tile_cells;
    uint64_t cells = 0;
    *z = t;
    if (k->cells[t] < T)
        for (; *z < s->n_tiles && c->tiles.tiles[s->tiles[*z]].refs == 1 && alike(c, s->tiles[t], s->tiles[*z]); ++*z)
            cells += k->cells[*z];
    if (*z > t && rkvi_div_up(cells, T) < *z - t)
        return true;
    *z = t + 1;
    return false;
}

/* -------------------------------------------------------------------- result */

static rkv_status room(const rkvi_cache *c, const rkvi_seq *s, rkvi_compaction *k)
{
    const uint64_t n = (uint64_t)s->n_segments + s->n_tiles + 1;
    k->is_new = calloc(s->n_tiles + 1u, sizeof *k->is_new);
    k->pieces = malloc(n * sizeof *k->pieces);
    k->new_tiles = malloc((s->n_tiles + 1u) * sizeof *k->new_tiles);
    k->present = calloc((size_t)(s->n_tiles + 1) * c->cfg->n_layers, 1);
    k->cells = calloc(s->n_tiles + 1u, sizeof *k->cells);
    k->first = calloc(s->n_tiles + 1u, sizeof *k->first);
    if (k->is_new && k->pieces && k->new_tiles && k->present && k->cells && k->first)
        return rkvi_seq_reserve(&k->result, s->n_tiles, (uint32_t)n);
    return rkvi_fail(RKV_E_HOST_MEMORY, "no memory to compact a sequence of %u tiles", s->n_tiles);
}

static void count_cells(const rkvi_seq *s, rkvi_compaction *k)
{
    for (uint32_t i = s->n_segments; i-- > 0;) {
        k->cells[s->segments[i].tile_index] += s->segments[i].count;
        k->first[s->segments[i].tile_index] = i;
    }
}

/* A part of a segment goes to the result, on with the last one where it can. */
static void add_segment(rkvi_seq *r, const rkvi_segment *g)
{
    rkvi_segment *last = r->n_segments ? &r->segments[r->n_segments - 1] : NULL;
    assert(r->segments);
    r->n_cells += g->count;
    if (last && last->tile_index == g->tile_index && rkvi_segment_goes_on(last, g))
        last->count += g->count;
    else
        r->segments[r->n_segments++] = *g;
}

static void keep_item(const rkvi_seq *s, uint32_t t, rkvi_compaction *k)
{
    rkvi_seq *r = &k->result;
    for (uint32_t i = k->first[t]; i < s->n_segments && s->segments[i].tile_index == t; i++) {
        rkvi_segment g = s->segments[i];
        g.tile_index = r->n_tiles;
        add_segment(r, &g);
    }
    r->tiles[r->n_tiles++] = s->tiles[t];
}

static void add_piece(const rkvi_cache *c, const rkvi_seq *s, const rkvi_segment *part, uint32_t to_cell,
                      rkvi_compaction *k)
{
    const uint32_t from = s->tiles[part->tile_index], to = k->n_new - 1;
    k->pieces[k->n_pieces++] = (rkvi_compact_piece){
        .from = from, .to = to, .from_cell = part->first, .to_cell = to_cell, .count = part->count};
    for (uint32_t l = 0; l < c->cfg->n_layers; l++)
        if (rkvi_tile_layer_is_held(rkvi_cache_tile_layer(c, from, l)))
            k->present[(size_t)to * c->cfg->n_layers + l] = 1;
}

/* Items [a, z) dense: segments are split where a new tile is full. */
static void rewrite(const rkvi_cache *c, const rkvi_seq *s, uint32_t a, uint32_t z, rkvi_compaction *k)
{
    rkvi_seq *r = &k->result;
    uint32_t fill = c->cfg->tile_cells;
    for (uint32_t i = k->first[a]; i < s->n_segments && s->segments[i].tile_index < z; i++) {
        rkvi_segment left = s->segments[i];
        while (left.count) {
            if (fill == c->cfg->tile_cells) {
                k->is_new[r->n_tiles] = true;
                r->tiles[r->n_tiles++] = k->n_new++;
                fill = 0;
            }
            rkvi_segment part = left;
            if (part.count > c->cfg->tile_cells - fill)
                part.count = c->cfg->tile_cells - fill;
            add_piece(c, s, &part, fill, k);
            left.pos += part.count;
            left.first += part.count;
            left.count -= part.count;
            part.tile_index = r->n_tiles - 1;
            part.first = fill;
            fill += part.count;
            add_segment(r, &part);
        }
    }
}

rkv_status rkvi_cache_compaction(const rkvi_cache *c, uint32_t sequence, rkvi_compaction *out)
{
    const rkvi_seq *s = &c->seqs[sequence];
    *out = (rkvi_compaction){0};
    rkv_status st = room(c, s, out);
    if (st == RKV_OK)
        count_cells(s, out);
    for (uint32_t t = 0, z; t < s->n_tiles && st == RKV_OK; t = z) {
        if (next_run(c, s, out, t, &z))
            rewrite(c, s, t, z, out);
        else
            keep_item(s, t, out);
    }
    if (st != RKV_OK)
        rkvi_compaction_free(out);
    return st;
}

/* --------------------------------------------------------------------- apply */

rkv_status rkvi_cache_compact_take(rkvi_cache *c, rkvi_compaction *k)
{
    return rkvi_cache_fill_take(c, k->n_new, k->present, k->new_tiles);
}

void rkvi_cache_compacted(rkvi_cache *c, uint32_t sequence, rkvi_compaction *k)
{
    const bool is_parked = c->parked[sequence];
    for (uint32_t t = 0; t < k->result.n_tiles; t++) {
        uint32_t *tile = &k->result.tiles[t];
        if (k->is_new[t])
            *tile = k->new_tiles[*tile];
        else
            rkvi_cache_fill_keep(c, 1, tile);
    }
    rkvi_cache_fill_replace(c, sequence, &k->result);
    c->parked[sequence] = is_parked;
}

void rkvi_compaction_free(rkvi_compaction *k)
{
    rkvi_seq_free(&k->result);
    free(k->is_new);
    free(k->pieces);
    free(k->new_tiles);
    free(k->present);
    free(k->cells);
    free(k->first);
    *k = (rkvi_compaction){0};
}
