/* state_format.c: a state in memory: made from sequences, and which cells it holds. */
#include "state_format.h"

#include "state_hash.h"
#include "state_layout.h"

#include <stdlib.h>

void rkvi_state_free(rkvi_state *st)
{
    for (uint32_t i = 0; st->seqs && i < st->n_seqs; i++)
        rkvi_seq_free(&st->seqs[i]);
    free(st->seqs);
    free(st->records);
    free(st->present);
    free(st->covers);
    *st = (rkvi_state){0};
}

static rkv_status no_memory(const rkvi_state *st)
{
    return rkvi_fail(RKV_E_HOST_MEMORY, "no memory for the description of a state of %u tiles",
                     st->n_tiles);
}

/* ------------------------------------------------------------------- covers */

static int by_cell(const void *a, const void *b)
{
    const rkvi_state_cover *x = a, *y = b;
    if (x->tile != y->tile)
        return x->tile < y->tile ? -1 : 1;
    return x->first < y->first ? -1 : x->first > y->first;
}

rkv_status rkvi_state_cover_make(rkvi_state *st)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < st->n_seqs; i++)
        n += st->seqs[i].n_segments;
    st->covers = malloc((n + 1) * sizeof *st->covers);
    if (!st->covers)
        return no_memory(st);
    for (uint32_t i = 0; i < st->n_seqs; i++)
        for (uint32_t j = 0; j < st->seqs[i].n_segments; j++) {
            const rkvi_segment *g = &st->seqs[i].segments[j];
            st->covers[st->n_covers++] =
                (rkvi_state_cover){st->seqs[i].tiles[g->tile_index], g->first, g->count};
        }
    qsort(st->covers, st->n_covers, sizeof *st->covers, by_cell);
    return RKV_OK;
}

/* The first cover of a tile. */
static uint64_t cover_of(const rkvi_state *st, uint32_t tile)
{
    uint64_t lo = 0, hi = st->n_covers;
    while (lo < hi) {
        const uint64_t mid = lo + (hi - lo) / 2;
        if (st->covers[mid].tile < tile)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* The first run of cells from *at on that nobody holds; false: there is none. */
static bool next_gap(const rkvi_state *st, uint32_t tile, uint64_t *cover, uint32_t *at,
                     uint32_t *out_end)
{
    while (*cover < st->n_covers && st->covers[*cover].tile == tile &&
           st->covers[*cover].first <= *at) {
        const rkvi_state_cover *v = &st->covers[(*cover)++];
        *at = v->first + v->count > *at ? v->first + v->count : *at;
    }
    const bool more = *cover < st->n_covers && st->covers[*cover].tile == tile;
    *out_end = more ? st->covers[*cover].first : st->cfg->tile_cells;
    return *at < *out_end;
}

bool rkvi_state_is_full(const rkvi_state *st, uint32_t tile)
{
    uint64_t cover = cover_of(st, tile);
    uint32_t at = 0, end;
    return !next_gap(st, tile, &cover, &at, &end);
}

static void blank_cells(const rkvi_geom *g, uint8_t *bytes, uint32_t from, uint32_t to)
{
    const uint64_t n = to - from;
    for (uint32_t h = 0; h < g->n_heads; h++, bytes += g->head_bytes) {
        memset(bytes + g->k_off + (uint64_t)from * g->k_cell_bytes, 0, n * g->k_cell_bytes);
        memset(bytes + g->k_scale_off + (uint64_t)from * g->k_scale_cell_bytes, 0,
               n * g->k_scale_cell_bytes);
        memset(bytes + g->v_off + (uint64_t)from * g->v_cell_bytes, 0, n * g->v_cell_bytes);
        memset(bytes + g->v_scale_off + (uint64_t)from * g->v_scale_cell_bytes, 0,
               n * g->v_scale_cell_bytes);
    }
}

void rkvi_state_blank(const rkvi_state *st, uint32_t tile, uint32_t layer, uint8_t *bytes)
{
    uint64_t cover = cover_of(st, tile);
    uint32_t at = 0, end;
    while (next_gap(st, tile, &cover, &at, &end)) {
        blank_cells(&st->cfg->layers[layer].geom, bytes, at, end);
        at = end;
    }
}

int64_t rkvi_state_lowest_seen(const rkvi_config *cfg, uint32_t layer, int64_t pos)
{
    const rkvi_row row = {.pos = pos, .from = 0, .to = INT64_MAX};
    int64_t lowest = pos, lo, hi;
    for (uint32_t s = 0; s < cfg->n_sites; s++) {
        if (cfg->sites[s].kv_layer != layer)
            continue;
        rkvi_visible(&row, cfg->sites[s].mask, &lo, &hi);
        lowest = lo < lowest ? lo : lowest;
    }
    return lowest;
}

/* ------------------------------------------------------------------ collect */

static rkv_status copy_seqs(rkvi_state *st, const rkvi_seq *seqs)
{
    st->seqs = calloc(st->n_seqs, sizeof *st->seqs);
    if (!st->seqs)
        return no_memory(st);
    rkv_status s = RKV_OK;
    for (uint32_t i = 0; i < st->n_seqs && s == RKV_OK; i++)
        s = rkvi_seq_copy(&st->seqs[i], &seqs[i]);
    return s;
}

typedef struct numbered {
    uint64_t serial;
    uint32_t record;
} numbered;

static int by_serial(const void *a, const void *b)
{
    const numbered *x = a, *y = b;
    return x->serial < y->serial ? -1 : x->serial > y->serial;
}

/* Each tile once, numbered in the order of serials. */
static rkv_status number_tiles(rkvi_state *st, const rkvi_tiles *tiles, const rkvi_seq *seqs)
{
    uint32_t *number = calloc(tiles->capacity, sizeof *number);
    numbered *list = malloc((tiles->capacity + (size_t)1) * sizeof *list);
    st->records = malloc((tiles->capacity + (size_t)1) * sizeof *st->records);
    if (!number || !list || !st->records) {
        free(number);
        free(list);
        return no_memory(st);
    }
    for (uint32_t i = 0; i < st->n_seqs; i++)
        for (uint32_t t = 0; t < seqs[i].n_tiles; t++) {
            const uint32_t record = seqs[i].tiles[t];
            if (number[record]++ == 0)
                list[st->n_tiles++] = (numbered){tiles->tiles[record].serial, record};
        }
    qsort(list, st->n_tiles, sizeof *list, by_serial);
    for (uint32_t t = 0; t < st->n_tiles; t++) {
        st->records[t] = list[t].record;
        number[list[t].record] = t;
    }
    for (uint32_t i = 0; i < st->n_seqs; i++)
        for (uint32_t t = 0; t < seqs[i].n_tiles; t++)
            st->seqs[i].tiles[t] = number[seqs[i].tiles[t]];
    free(number);
    free(list);
    return RKV_OK;
}

static rkv_status find_present(rkvi_state *st, const rkvi_tiles *tiles)
{
    const uint32_t n_layers = st->cfg->n_layers;
    st->present = calloc((size_t)st->n_tiles * n_layers + 1, 1);
    if (!st->present)
        return no_memory(st);
    for (uint32_t t = 0; t < st->n_tiles; t++)
        for (uint32_t l = 0; l < n_layers; l++) {
            if (!rkvi_tile_layer_is_held(rkvi_tile_layer_at(tiles, st->records[t], l)))
                continue;
            st->present[(size_t)t * n_layers + l] = 1;
            st->n_payloads++;
            st->payload_bytes += rkvi_state_payload_bytes(st->cfg, l) + RKVI_STATE_CHECKSUM_BYTES;
        }
    return RKV_OK;
}

static uint64_t description_bytes(const rkvi_state *st)
{
    uint64_t n = RKVI_STATE_FIXED_BYTES + (uint64_t)st->cfg->n_layers * RKVI_STATE_LAYER_BYTES;
    n += rkvi_state_pad(4 * (uint64_t)rkvi_config_rope(st->cfg).n);
    for (uint32_t i = 0; i < st->n_seqs; i++)
        n += RKVI_STATE_SEQ_BYTES + rkvi_state_pad(4 * (uint64_t)st->seqs[i].n_tiles) +
             (uint64_t)st->seqs[i].n_segments * RKVI_STATE_SEGMENT_BYTES;
    return n + rkvi_state_pad((uint64_t)st->n_tiles * st->cfg->n_layers);
}

rkv_status rkvi_state_collect(rkvi_state *st, const rkvi_config *cfg, const rkvi_tiles *tiles,
                              const rkvi_seq *seqs, uint32_t n, bool is_whole)
{
    *st = (rkvi_state){.cfg = cfg, .is_whole = is_whole, .n_seqs = n};
    rkv_status s = copy_seqs(st, seqs);
    if (s == RKV_OK)
        s = number_tiles(st, tiles, seqs);
    if (s == RKV_OK)
        s = find_present(st, tiles);
    if (s == RKV_OK)
        s = rkvi_state_cover_make(st);
    if (s != RKV_OK) {
        rkvi_state_free(st);
        return s;
    }
    st->description_bytes = description_bytes(st);
    st->total_bytes =
        RKVI_STATE_HEADER_BYTES + st->description_bytes + RKVI_STATE_CHECKSUM_BYTES + st->payload_bytes;
    return RKV_OK;
}

/* ------------------------------------------------------------------ rotation */

rkvi_state_rope rkvi_state_rope_of(const rkvi_config *cfg, uint32_t layer)
{
    const rkvi_layer_config *l = &cfg->layers[layer];
    rkvi_state_rope r = {.k_form = l->k_form};
    const bool is_cache_rope = cfg->has_rope && l->rope == 0;
    if (l->rope != RKVI_NO_ROPE && !is_cache_rope) {
        const rkvi_rope *rope = &cfg->ropes[l->rope];
        r.n = rope->n;
        r.hash = rkvi_state_hash(rope->frequencies, rope->n * sizeof(float), rope->pairing);
    }
    return r;
}
