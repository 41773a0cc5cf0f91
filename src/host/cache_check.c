/* cache_check.c: what would fit: tiles, segments, and the tables of a step. */
#include "cache_places.h"
#include "cache_unseen.h"

void rkvi_cache_check_reset(rkvi_cache *c)
{
    c->check_tiles = 0;
    for (uint32_t i = 0; i < c->cfg->n_sequences; i++) {
        const rkvi_seq *s = &c->seqs[i];
        const uint32_t tile = s->n_tiles ? s->tiles[s->n_tiles - 1] : UINT32_MAX;
        rkvi_cache_end_of *end = &c->check[i];
        *end = (rkvi_cache_end_of){.pos = rkvi_seq_next_pos(s), .fill = c->cfg->tile_cells, .tile = UINT32_MAX};
        end->segments = s->n_segments;
        if (s->n_tiles)
            end->fill = rkvi_seq_last_fill(s);
        if (end->fill < c->cfg->tile_cells && c->tiles.tiles[tile].refs > 1)
            end->tile = tile;
    }
}

/* The first cell of a sequence that shares its last tile: is that copied? */
static bool first_cell_copies(rkvi_cache *c, uint32_t sequence)
{
    rkvi_cache_end_of *end = &c->check[sequence];
    const uint32_t tile = end->tile;
    bool copies = rkvi_cache_needs_copy(c, sequence);
    for (uint32_t i = 0; i < c->cfg->n_sequences; i++)
        copies = copies || (c->check[i].tile == tile && c->check[i].goes_on);
    if (copies)
        end->tile = UINT32_MAX;
    end->goes_on = !copies;
    return copies;
}

/* Leaves that the rows add: one at each block's beginning, and at each gap. */
static void count_leaves(rkvi_cache *c, const rkvi_batch *b, const rkvi_batch_entry *be)
{
    rkvi_cache_end_of *end = &c->check[be->sequence];
    const rkvi_row *rows = rkvi_batch_stored(b, be);
    uint32_t fill = end->fill % c->cfg->tile_cells;
    int64_t pos = end->pos;
    for (uint32_t r = 0; r < be->n_new; r++, fill = (fill + 1) % c->cfg->tile_cells) {
        const bool is_run = rows[r].pos != pos;
        for (uint32_t k = 0; k < c->cfg->n_leaf_classes; k++)
            end->leaves[k] += is_run || fill % c->cfg->leaf_cells[k] == 0;
        pos = rows[r].pos + 1;
    }
}

static void count_entry(rkvi_cache *c, const rkvi_batch *b, uint32_t e, uint32_t *out_tiles, uint32_t *out_segments)
{
    const rkvi_batch_entry *be = &b->entries[e];
    rkvi_cache_end_of *end = &c->check[be->sequence];
    const bool copies =
        be->n_new && end->tile != UINT32_MAX && !end->goes_on && first_cell_copies(c, be->sequence);
    rkvi_rows_need(&end->fill, &end->pos, rkvi_batch_stored(b, be), be->n_new, c->cfg->tile_cells, out_tiles,
                   out_segments);
    if (be->is_tree)
        *out_segments = be->n_new + 1; /* once accepted, each cell may be a run of its own */
    end->tiles += *out_tiles + copies;
    for (uint32_t k = 0; copies && k < c->cfg->n_leaf_classes; k++) /* no longer those of others */
        end->leaves[k] += c->cfg->tile_cells / c->cfg->leaf_cells[k];
    c->check_tiles += *out_tiles + copies;
    end->segments += *out_segments;
}

/* Where no tile is shared, its sequences' segments together bound what a batch
 * takes of the tables; else it is counted, or found out by planning. */
static rkv_status has_room(const rkvi_cache *c, const rkvi_batch *b)
{
    const rkvi_config *cfg = c->cfg;
    uint64_t segments = 0;
    for (uint32_t e = 0; e < b->n_entries; e++)
        segments += c->check[b->entries[e].sequence].segments;
    if (c->check_tiles > c->tiles.n_free)
        return rkvi_fail(RKV_E_CAPACITY,
                         "the step needs %llu new tiles of %u cells and %u of %llu are free; remove cells, clear "
                         "sequences, or create the cache with more capacity_cells",
                         (unsigned long long)c->check_tiles, cfg->tile_cells, c->tiles.n_free,
                         (unsigned long long)cfg->capacity_tiles);
    if (c->tiles.n_shared == 0 && segments > cfg->capacity_tiles + cfg->extra_segments)
        return rkvi_fail(RKV_E_CAPACITY,
                         "the step's positions make %llu separate runs, at most %llu are kept; use positions that "
                         "follow by one, compact sequences, or create the cache with more extra_segments",
                         (unsigned long long)segments,
                         (unsigned long long)(cfg->capacity_tiles + cfg->extra_segments));
    return RKV_OK;
}

static rkv_status too_much(const char *what, uint64_t n, uint64_t most, const char *more)
{
    return rkvi_fail(RKV_E_CAPACITY,
                     "the batch's sequences, what they share counted once, have %llu %s, a step at most %llu; use "
                     "smaller batches, compact sequences, or create the cache with more %s",
                     (unsigned long long)n, what, (unsigned long long)most, more);
}

/* The same for a batch of sequences that share tiles. */
static rkv_status has_tables(rkvi_cache *c, const rkvi_batch *b)
{
    const rkvi_config *cfg = c->cfg;
    rkvi_share *s = &c->share;
    uint64_t bases;
    if (c->tiles.n_shared == 0)
        return RKV_OK;
    if (!rkvi_share_bases(s, b, c->seqs, &c->tiles))
        return too_much("tiles, in different orders", cfg->max_bases + 1, cfg->max_bases, "capacity_cells");
    bases = s->n_bases;
    rkvi_share_stems(s, b, c->seqs, &c->tiles);
    for (uint32_t e = 0; e < b->n_entries; e++)
        bases += c->check[b->entries[e].sequence].tiles;
    if (bases > cfg->max_bases)
        return too_much("tiles, in different orders", bases, cfg->max_bases, "capacity_cells");
    for (uint32_t k = 0; k < cfg->n_leaf_classes; k++) {
        uint64_t spans = s->n_spans[k];
        for (uint32_t e = 0; e < b->n_entries; e++)
            spans += c->check[b->entries[e].sequence].leaves[k];
        if (spans > cfg->max_spans)
            return too_much("runs of cells and positions", spans, cfg->max_spans, "extra_segments");
    }
    return RKV_OK;
}

rkv_status rkvi_cache_check_add(rkvi_cache *c, const rkvi_batch *b)
{
    rkv_status sees = rkvi_cache_batch_sees(c, b);
    if (sees != RKV_OK)
        return sees;
    for (uint32_t e = 0; e < b->n_entries; e++) {
        uint32_t t, g;
        count_leaves(c, b, &b->entries[e]);
        count_entry(c, b, e, &t, &g);
    }
    const rkv_status s = has_room(c, b);
    return s == RKV_OK ? has_tables(c, b) : s;
}

rkv_status rkvi_cache_reserve(rkvi_cache *c, const rkvi_batch *b)
{
    rkv_status sees = rkvi_cache_batch_sees(c, b);
    if (sees != RKV_OK)
        return sees;
    rkvi_cache_check_reset(c);
    for (uint32_t e = 0; e < b->n_entries; e++) {
        uint32_t t, g;
        count_entry(c, b, e, &t, &g);
        rkv_status s = rkvi_seq_reserve(&c->seqs[b->entries[e].sequence], t, g);
        if (s == RKV_OK && b->entries[e].is_tree)
            s = rkvi_seq_tree_reserve(&c->seqs[b->entries[e].sequence]);
        if (s != RKV_OK)
            return s;
    }
    return has_room(c, b);
}
